# ptx.mk: make ptx-tests runs the tests of the CUDA kernels with nvcc's PTX, translated to C++, in place of the kernels
# that g++ compiles; with all repetitions in make test-all. There is a program for each test and architecture, such as
# $(BUILD)/ptx-sm_90/cuda/test_codecs; with PTX_IDLE=1 it prints which kernels it did not launch. tests.mk includes this.
PTX_ARCHS := 75 80 90 100
PTX_NAMES := test_codecs test_select test_rounds
PTX_STEPS := test_graph test_cuda_tree test_cuda_steps test_cuda_between # of the newest architecture only
PTX_KNOWN := $(if $(NVCC),$(filter $(PTX_ARCHS),$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch))))
PTX_FILES := $(filter-out plugin,$(CUDA_SRC:codecs/cuda/%.cu=%))
PTX_MISSING := $(if $(NVCC),$(if $(call have,python3),$(if $(TESTS),,cmocka or jansson),python3),nvcc)
PTX_TESTS := $(if $(PTX_MISSING),,$(foreach a,$(PTX_KNOWN),$(PTX_NAMES:%=$(BUILD)/ptx-sm_$a/cuda/%)) \
             $(PTX_STEPS:%=$(BUILD)/ptx-sm_$(lastword $(PTX_KNOWN))/cuda/%))
PTX_CXX   := $(CXX) -std=c++20 -I. -O1 -ffp-contract=off -fwrapv -fno-strict-aliasing -fPIC -pthread
$(BUILD)/ptx/%.o: tests/cuda/ptx/%.cc $(STAMP) | $(BUILD)/ptx/
	$(CCACHE) $(CXX) -std=c++20 -I. -O2 -fPIC -pthread -Wall -Wextra $(DEP) -c $< -o $@
# files that two architectures have in common are compiled once
$(BUILD)/ptx-sm_%.o: $(BUILD)/ptx-sm_%.cc tests/cuda/ptx/ptx.h tests/cuda/emulator/cuda_runtime.h $(STAMP) | $(BUILD)/ptx/same/
	@same=$(BUILD)/ptx/same/$$(cat $^ | sha1sum | cut -c1-40); \
	 [ -e $$same.o ] || { $(PTX_CXX) -c $< -o $$same.$$$$.o && mv $$same.$$$$.o $$same.o; } && cp $$same.o $@
$(BUILD)/ptx-sm_%.cc: $(BUILD)/ptx-sm_%.ptx tests/cuda/ptx/translate.py tests/cuda/ptx/parse.py
	python3 tests/cuda/ptx/translate.py $(notdir $*) <$< >$@
define PTX_ARCH
$(BUILD)/ptx-sm_$(1)/%.ptx: codecs/cuda/%.cu codecs/cuda/cuda.mk $(STAMP) | $(BUILD)/ptx-sm_$(1)/
	@mkdir -p $$(@D)
	$$(NVCC) $$(filter-out -Wall -Wno-unused-function -ffp-contract=off,$$(CUDA_BASE)) -fmad=false -O3 -arch=compute_$(1) -lineinfo \
	   -Wno-deprecated-gpu-targets -MMD -MP -MT $$@ -MF $(BUILD)/dep/$$(subst /,-,$$@).d -ptx $$< -o $$@
$(BUILD)/ptx-sm_$(1)/cuda/%: $(BUILD)/tests/obj/tests/cuda/%.o $(BUILD)/tests/obj/tests/lib/defaults.o $(PTX_FILES:%=$(BUILD)/ptx-sm_$(1)/%.o) \
        $(BUILD)/ptx/ptx.o $(BUILD)/ptx/order.o $(BUILD)/cuda-host/tests.a $(BUILD)/test-library/tests.a
	@mkdir -p $$(@D)
	$$(CC) $$(BASE) $$(TEST_tests) $$(filter %.o,$$^) -o $$@ $(BUILD)/cuda-host/tests.a -lstdc++ $(BUILD)/test-library/tests.a $$(TEST_LINK_tests) $$(TEST_LIBS)
endef
$(foreach a,$(PTX_KNOWN),$(eval $(call PTX_ARCH,$a)))
.PRECIOUS: $(BUILD)/ptx-sm_%.cc $(BUILD)/ptx-sm_%.o $(foreach a,$(PTX_KNOWN),$(BUILD)/ptx-sm_$a/%.ptx)
# without tests of PTX that an earlier architecture has, too
PTX_RUN = $$(sh tests/cuda/ptx/distinct.sh $(PTX_TESTS))
ptx-tests: $(PTX_TESTS)
	@$(if $(PTX_MISSING),echo "make ptx-tests: skipped: $(PTX_MISSING) is not there",TEST_TIMEOUT=900 $(RUN_TESTS) $(PTX_RUN))
.PHONY: ptx-tests
