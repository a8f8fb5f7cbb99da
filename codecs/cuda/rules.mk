# rules.mk: builds plugin cuda, its bench, the trainer on CUDA, and the tests that run on a GPU. The Makefile includes it.
$(call stamp,$(BUILD)/cuda-flags,$(NVCC) $(CUDA_BASE) $(CUDA_ARCH))
# -Xptxas -v prints each kernel's registers, shared memory and spills; bench/cuda/kernels.sh makes a table of them
NVCC_FLAGS = $(filter-out -Wall -Wno-unused-function -ffp-contract=off,$(CUDA_BASE)) -arch=$(CUDA_ARCH) -fmad=false -O3 \
             -Xcompiler $(CUDA_HOST_FLAGS) -Werror all-warnings -Wno-deprecated-gpu-targets # CUDA 12 says so of sm_70
$(BUILD)/cuda/%.o: codecs/cuda/%.cu $(BUILD)/cuda-flags | $(BUILD)/cuda/
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -Xptxas -v -MMD -MP -MT $@ -MF $(BUILD)/dep/$(subst /,-,$@).d -c $< -o $@ 2>$(@:.o=.ptxas) || { cat $(@:.o=.ptxas); exit 1; }
$(BUILD)/lib/espresso/libespresso-cuda.so: $(CUDA_SRC:codecs/cuda/%.cu=$(BUILD)/cuda/%.o) | $(BUILD)/lib/espresso/
	@echo '{ global: espresso_plugin_v1; local: *; };' >$(BUILD)/cuda.map # otherwise C++ templates would be exported too
	$(NVCC) -shared -cudart static -Xlinker -z,defs,--version-script=$(BUILD)/cuda.map $^ -o $@

# The trainer on CUDA has its own files, and shares some with the trainer on CPUs.
TRAIN_CUDA   := $(wildcard examples/train_cuda/*.c[cu])
TRAIN_CUDA_C := $(patsubst %.c,$(BUILD)/obj/%.o,$(addprefix examples/train/,data.c model.c gemm.c run.c report.c))
$(BUILD)/obj/examples/%.o: examples/%.c $(STAMP)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -c $< -o $@
$(TRAIN_CUDA:%=$(BUILD)/cuda/%.o): $(BUILD)/cuda/%.o: % $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(NVCC) -std=c++20 -I. -arch=$(CUDA_ARCH) -O3 -Xcompiler -Wall -Werror all-warnings -MMD -MP -MT $@ -MF $(BUILD)/dep/$(subst /,-,$@).d -c $< -o $@
$(BUILD)/bin/train_cuda: $(TRAIN_CUDA:%=$(BUILD)/cuda/%.o) $(TRAIN_CUDA_C) $(LIB) | $(BUILD)/bin/
	$(NVCC) -cudart static $^ -o $@ -lpthread -ldl -lm

# This bench measures CUDA codecs on a GPU; cuda-counted counts their memory accesses with the emulator on a CPU.
$(BUILD)/cuda/static/%.o: codecs/cuda/%.cu $(BUILD)/cuda-flags | $(BUILD)/cuda/static/
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -DESPRESSO_STATIC_PLUGINS -MMD -MP -MT $@ -MF $(BUILD)/dep/$(subst /,-,$@).d -c $< -o $@
CUDA_STATIC := $(filter-out $(BUILD)/cuda/plugin.o,$(CUDA_SRC:codecs/cuda/%.cu=$(BUILD)/cuda/%.o)) $(BUILD)/cuda/static/plugin.o
BENCH_CUDA := $(addprefix bench/cuda/,codecs.c steps.c)
$(BUILD)/bench/cuda: $(BENCH_CUDA:%.c=$(BUILD)/obj/%.o) $(CUDA_STATIC) $(OBJECTS) | $(BUILD)/bench/
	$(NVCC) -cudart static $(filter %.o %.a,$^) -o $@ -lpthread -ldl -lm
$(BUILD)/bench/cuda-counted: $(BENCH_CUDA:%.c=$(BUILD)/obj/%.o) $(BUILD)/cuda-host/tests.a $(OBJECTS) | $(BUILD)/bench/
	$(CC) $(FLAGS) $(filter %.o,$^) -o $@ $(filter %.a,$^) -lstdc++ $(LIBS)
# These tests run on a GPU, with the objects of plugin cuda instead of the emulator (bench/gpu.sh).
GPU_TESTS := $(if $(TESTS),$(addprefix $(BUILD)/gpu/,test_canary test_codecs test_select test_graph test_rounds test_cuda_tree test_cuda_steps test_cuda_between test_cuda_outer))
gpu-tests: $(GPU_TESTS)
$(BUILD)/gpu/capture.o: tests/cuda/emulator/capture.cc $(BUILD)/cuda-flags | $(BUILD)/gpu/
	$(NVCC) -std=c++20 -I. -c $< -o $@
$(BUILD)/gpu/%: tests/cuda/%.c $(CUDA_STATIC) $(BUILD)/gpu/capture.o $(BUILD)/test-library/tests.a $(STAMP) | $(BUILD)/gpu/
	$(CC) $(BASE) -DCUDA_DEVICE $(TEST_tests) $(TEST_WARN) $(DEP) -c $< -o $@.o
	$(NVCC) -cudart static $@.o $(CUDA_STATIC) $(BUILD)/gpu/capture.o $(BUILD)/test-library/tests.a -Xlinker --wrap=pthread_create -o $@ $(TEST_LIBS:-pthread=-lpthread) $(if $(OPENMP_FLAG),-lgomp)
.PHONY: gpu-tests
