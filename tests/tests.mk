# tests.mk: how tests are built and run. Part of the Makefile. Each test is a program of its own; run.sh counts their
# test functions.
FIXTURES := $(patsubst tests/abi/plugin_%.c,$(BUILD)/tests/abi/libespresso-%.so,$(wildcard tests/abi/plugin_*.c))
$(BUILD)/tests/abi/libespresso-%.so: tests/abi/plugin_%.c $(STAMP) | $(BUILD)/tests/abi/
	$(CC) $(FLAGS) $(PLUGIN_LINK) $(LIBS)
# these have a modified backend loop
LOOP_PARTS := $(BUILD)/tests/abi/loop.o $(patsubst %.c,$(BUILD)/plugin/%.o,$(wildcard backends/common/*.c) \
             $(filter-out %/loop.c %/shm.c,$(wildcard backends/shm/*.c)))
$(BUILD)/tests/abi/loop.o: backends/shm/loop.c $(STAMP) | $(BUILD)/tests/abi/
	$(CC) $(FLAGS) $(PLUGIN_FLAGS) -DESPRESSO_STATIC_PLUGINS -c $< -o $@
$(patsubst %,$(BUILD)/tests/abi/libespresso-%.so,faulty lazy): $(LOOP_PARTS)

# emulations of NCCL and of the CUDA driver, which the backend loads by the driver's name: the newest version and the
# oldest
FAKE_NCCL := $(BUILD)/tests/nccl/new/libcuda.so.1 $(BUILD)/tests/nccl/old/libcuda.so.1
$(BUILD)/tests/nccl/old/libcuda.so.1: FLAGS += -DFAKE_OLD
$(FAKE_NCCL): $(BUILD)/tests/nccl/%/libcuda.so.1: tests/nccl/fake/fake.c $(STAMP)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -fPIC -fvisibility=hidden -shared -Wl,-z,defs -Wl,-soname,libcuda.so.1 $< -o $@ $(LIBS)
FIXTURES += $(FAKE_NCCL) $(BUILD)/tests/nccl/libespresso-standin.so
$(BUILD)/tests/nccl/libespresso-standin.so: tests/nccl/plugin_standin.c $(STAMP)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(PLUGIN_LINK) $(LIBS)

# three ways to build them: plain, with the address and undefined-behaviour sanitizers, with the thread sanitizer.
# OpenMP is in the first two: the thread sanitizer does not understand libgomp's barriers, and reports false races.
# CHECK_LARGE: the largest collective and tensor of `espresso plugins --check`; 64 MiB and 2^20 elements in the command
# that is installed
CHECK_LARGE := -DCHECK_LARGE_MIB=4u -DCHECK_LARGE_COUNT=131072u
SAN         := -O1 -g1 -fno-omit-frame-pointer
TEST_tests  := -O1 -g1 $(CHECK_LARGE) $(OPENMP_FLAG)
TEST_asan   := $(SAN) -fsanitize=address,undefined -fno-sanitize-recover=undefined $(CHECK_LARGE) $(OPENMP_FLAG)
TEST_tsan   := $(SAN) -fsanitize=thread $(CHECK_LARGE)
# most tests do not use their parameter `state`
TEST_WARN   := -Wall -Wextra -Wno-format-truncation -Wno-unused-parameter -Wno-missing-field-initializers
# there are hundreds of programs, and gold links them in two thirds of the time
TEST_LD     := $(if $(call have,ld.gold),-fuse-ld=gold)
TEST_LIBS   := -lcmocka $(JSON_LIBS) $(LIBS)

# the objects of the library and of the command, for each way; tests and the tests' command link them. No test under the
# thread sanitizer calls the command. The plain way uses the objects of the normal build, except for those in OWN, which
# differ for tests. ENTRIES: plugins outside the library, which tests link.
ENTRIES := $(NCCL_SRC:%.c=%) plugins/template_backend/example
OWN     := tools/espresso.c $(wildcard tools/check/*.c) espresso_impl/base/workers.c
PRODUCT := $(LIB_SRC) $(FILES_SRC) $(TOOLS_SRC)
OBJECTS_asan  = $(PRODUCT:%.c=$(BUILD)/asan/obj/%.o)
OBJECTS_tsan  = $(patsubst %.c,$(BUILD)/tsan/obj/%.o,$(LIB_SRC) $(FILES_SRC))
OBJECTS_tests = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out $(OWN),$(PRODUCT))) \
                $(patsubst %.c,$(BUILD)/tests/obj/%.o,$(filter $(OWN),$(PRODUCT)))
COMMON  := $(addprefix tests/lib/,main.c test.c ranks.c threads.c)
define TEST_WAY
$(BUILD)/$(1)/obj/%.o: %.c $(STAMP)
	@mkdir -p $$(@D)
	$$(CCACHE) $$(CC) $$(BASE) $$(TEST_$(1)) $$(TEST_WARN) $$(OBJECT) $$(DEP) -c $$< -o $$@
$(BUILD)/$(1)/obj/tools/page/page.o $(BUILD)/$(1)/obj/tests/tools/page/test_page.o: $(PAGES)
$(BUILD)/$(1)/obj/tools/espresso.o: OBJECT += -Dmain=espresso_main
$(BUILD)/test-library/$(1).a: $(OBJECTS_$(1)) $(COMMON:%.c=$(BUILD)/$(1)/obj/%.o) | $(BUILD)/test-library/
	@rm -f $$@ && ar rcs $$@ $$^
$(BUILD)/$(1)/obj/tests/%.o: tests/%.c $(STAMP)
	@mkdir -p $$(@D)
	$$(CCACHE) $$(CC) $$(BASE) $$(TEST_$(1)) $$(TEST_WARN) $$(DEP) -c $$< -o $$@
$(BUILD)/$(1)/%: $(BUILD)/$(1)/obj/tests/%.o $(BUILD)/test-library/$(1).a $(BUILD)/$(1)/obj/tests/lib/defaults.o
	@mkdir -p $$(@D)
	$$(CC) $$(BASE) $$(TEST_$(1)) $(TEST_LD) $$< -o $$@ $(BUILD)/$(1)/obj/tests/lib/defaults.o $$(TEST_MORE) $(BUILD)/test-library/$(1).a $$(TEST_LINK_$(1)) $$(TEST_LIBS)
$(BUILD)/$(1)/bin/espresso: $(BUILD)/$(1)/obj/tests/lib/command.o $(BUILD)/$(1)/obj/tests/lib/defaults.o $(BUILD)/test-library/$(1).a
	@mkdir -p $$(@D)
	$$(CC) $$(BASE) $$(TEST_$(1)) $(TEST_LD) $$^ -o $$@ $$(TEST_LIBS)
# plugins that tests know by their entries: tests/lib/entries.h
$(patsubst tests/%.c,$(BUILD)/$(1)/%,$(wildcard tests/nccl/test_*.c) tests/backends/test_collectives.c): $(ENTRIES:%=$(BUILD)/$(1)/obj/%.o)
$(patsubst tests/%.c,$(BUILD)/$(1)/%,$(wildcard tests/nccl/test_*.c) tests/backends/test_collectives.c): TEST_MORE := $(ENTRIES:%=$(BUILD)/$(1)/obj/%.o)
endef
.SECONDARY:
# how long a collective over backend nccl takes, with the tests' stand-in for NCCL
$(BUILD)/bench/nccl-collectives: $(BUILD)/tests/obj/bench/cuda/collectives.o $(BUILD)/test-library/tests.a $(BUILD)/tests/obj/tests/lib/defaults.o \
        $(ENTRIES:%=$(BUILD)/tests/obj/%.o) | $(FAKE_NCCL) $(BUILD)/bench/
	$(CC) $(BASE) $(TEST_tests) $^ -o $@ $(TEST_LINK_tests) $(TEST_LIBS)
$(BUILD)/tests/obj/bench/cuda/%.o: bench/cuda/%.c $(STAMP)
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(BASE) $(TEST_tests) $(TEST_WARN) $(DEP) -c $< -o $@
TEST_LINK_tests := -Wl,--wrap=pthread_create

# CUDA's kernels for the host: codecs/cuda compiled as C++ with the runtime of tests/cuda, once for each way
CUDA_HOST_SRC := $(wildcard codecs/cuda/*.cu codecs/cuda/*/*.cu) $(wildcard tests/cuda/emulator/*.cc)
CUDA_HOST_CXX := $(CXX) -fPIC $(CUDA_BASE) -DESPRESSO_STATIC_PLUGINS -Itests/cuda/emulator -pthread
# shared memory is a section of its own, and gcc needs this flag to check arrays there
CUDA_HOST_asan := $(if $(findstring clang,$(shell $(CXX) --version 2>/dev/null)),,-fsanitize-sections=cuda_shared)
define CUDA_HOST_WAY
$(BUILD)/cuda-host/$(1)/%.o: % $(STAMP)
	@mkdir -p $$(@D)
	$$(CCACHE) $$(CUDA_HOST_CXX) $$(TEST_$(1)) $$(CUDA_HOST_$(1)) $$(DEP) -x c++ -c $$< -o $$@
$(BUILD)/cuda-host/$(1).a: $(CUDA_HOST_SRC:%=$(BUILD)/cuda-host/$(1)/%.o)
	rm -f $$@ && ar rcs $$@ $$^
$(patsubst tests/%.c,$(BUILD)/$(1)/%,$(wildcard tests/cuda/test_*.c)): $(BUILD)/cuda-host/$(1).a
$(patsubst tests/%.c,$(BUILD)/$(1)/%,$(wildcard tests/cuda/test_*.c)): TEST_MORE := $(BUILD)/cuda-host/$(1).a -lstdc++
endef
$(foreach way,tests asan,$(eval $(call CUDA_HOST_WAY,$(way))))
# the trainer on CUDA, for that runtime, with plugin cuda linked into it
TRAIN_CUDA_HOST := $(if $(and $(TESTS),$(HAVE_CXX)),$(BUILD)/tests/bin/train_cuda $(BUILD)/asan/bin/train_cuda)
$(TRAIN_CUDA_HOST): $(BUILD)/%/bin/train_cuda: $(TRAIN_CUDA_C) $(BUILD)/test-library/%.a
	@mkdir -p $(@D)
	$(CXX) $(TEST_$*) $(filter %.cu.o %.cc.o,$^) $(TRAIN_CUDA_C) $(BUILD)/cuda-host/$*.a $(BUILD)/test-library/$*.a -o $@ $(TEST_LIBS) $(TEST_LINK_$*)
$(foreach way,tests asan,$(eval $(BUILD)/$(way)/bin/train_cuda: $(TRAIN_CUDA:%=$(BUILD)/cuda-host/$(way)/%.o) $(BUILD)/cuda-host/$(way).a))
.SECONDARY: $(foreach way,tests asan msan,$(CUDA_HOST_SRC:%=$(BUILD)/cuda-host/$(way)/%.o))
# plugin cuda with that runtime, for programs that load it; and a plugin with which `espresso plugins --check` runs its
# rules on the CUDA codecs
CUDA_HOST_PLUGIN := $(BUILD)/tests/cuda/plugins/libespresso-cuda.so
$(CUDA_HOST_PLUGIN): $(BUILD)/cuda-host/tests.a
	@mkdir -p $(@D)
	@echo '{ global: espresso_plugin_v1; local: *; };' >$(BUILD)/cuda-host.map
	$(CXX) $(TEST_tests) -shared -Wl,-z,defs -Wl,--version-script=$(BUILD)/cuda-host.map -Wl,-u,espresso_plugin_v1_cuda \
	   -Wl,--defsym,espresso_plugin_v1=espresso_plugin_v1_cuda $< -o $@ -pthread
ON_CPU := $(BUILD)/tests/cuda/libespresso-on_cpu.so
$(ON_CPU): tests/cuda/emulator/on_cpu/on_cpu.cc $(BUILD)/cuda-host/tests.a
	@mkdir -p $(@D)
	@echo '{ global: espresso_plugin_v1; local: *; };' >$(BUILD)/on_cpu.map
	$(CXX) -std=c++20 -fPIC -I. -Itests/cuda/emulator -Wall -Wextra $(TEST_tests) $(DEP) -shared -Wl,-z,defs -Wl,--version-script=$(BUILD)/on_cpu.map $< $(BUILD)/cuda-host/tests.a -o $@ -pthread
FIXTURES += $(if $(HAVE_CXX),$(CUDA_HOST_PLUGIN) $(ON_CPU))
# a third way, by clang: the memory sanitizer finds shared and other memory that a kernel reads before it is written.
# These tests need no object of the library, which would need this way, too.
MSAN_FLAGS := $(SAN) -fsanitize=memory
MSAN_TESTS := $(if $(and $(TESTS),$(call have,clang),$(call have,clang++)),$(patsubst %,$(BUILD)/msan/cuda/%,test_codecs test_runtime))
$(BUILD)/cuda-host/msan/%.o: % $(STAMP)
	@mkdir -p $(@D)
	clang++ $(CUDA_BASE) -DESPRESSO_STATIC_PLUGINS -Itests/cuda/emulator $(MSAN_FLAGS) $(DEP) -x c++ -c $< -o $@
$(BUILD)/msan/obj/%.o: %.c $(STAMP)
	@mkdir -p $(@D)
	clang $(BASE) -DESP_NO_SIMD $(MSAN_FLAGS) $(OBJECT) $(DEP) -c $< -o $@
$(BUILD)/msan/cuda/%: tests/cuda/%.c $(CUDA_HOST_SRC:%=$(BUILD)/cuda-host/msan/%.o) \
        $(patsubst %.c,$(BUILD)/msan/obj/%.o,$(filter codecs/%,$(LIB_SRC)) tests/lib/test.c tests/lib/main.c) $(STAMP)
	@mkdir -p $(@D)
	clang $(BASE) -DESP_NO_SIMD $(MSAN_FLAGS) $(filter-out -Wno-format-truncation,$(TEST_WARN)) $(DEP) -c $< -o $@.o
	clang++ $(MSAN_FLAGS) $@.o $(filter %.o,$^) -o $@ -lcmocka $(LIBS)
$(foreach way,tests asan tsan,$(eval $(call TEST_WAY,$(way))))

# test_chaos.c changes the version in the hello
$(foreach way,tests asan tsan,$(BUILD)/$(way)/jobs/faults/test_chaos): TEST_LIBS += -Wl,--wrap=esp__hello_make
# the NCCL profiler finds the test's ncclGetVersion
$(foreach way,tests asan tsan,$(BUILD)/$(way)/nccl/test_profiler): TEST_LIBS += -rdynamic
# counts the bytes of connections at their end
$(foreach way,tests asan tsan,$(BUILD)/$(way)/job/test_many_ranks): TEST_LIBS += -Wl,--wrap=esp__conn_free
# test_alloc.c replaces malloc
$(foreach way,tests asan tsan,$(BUILD)/$(way)/jobs/faults/test_alloc): TEST_LIBS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc

# A test's line "runs:" says where it runs (CONTRIBUTING.md): quiet (alone), slow (not in make check), long (in test-all
# only), asan-long (under the address sanitizer in test-all only), tsan and tsan-long (under the thread sanitizer).
# run.sh fails a test that starts threads and does not mention tsan.
runs = $(shell grep -lE '^(/\*|\#) runs:([^:]* )?$(1)( |$$)' $(TEST_SRC) $(TEST_SH))
way  = $(if $(TESTS),$(patsubst tests/%.c,$(BUILD)/$(1)/%,$(filter %.c,$(2))))
LONG := $(call runs,long)
ASAN_ALL := $(call way,asan,$(TEST_SRC))
ASAN := $(call way,asan,$(filter-out $(LONG) $(call runs,asan-long),$(TEST_SRC)))
TSAN := $(call way,tsan,$(call runs,tsan))
TSAN_ALL := $(TSAN) $(call way,tsan,$(call runs,tsan-long))
ASAN_COMMAND := $(if $(ASAN),$(BUILD)/asan/bin/espresso $(BUILD)/asan/cli/trainer)
TEST_COMMAND := $(if $(TESTS),$(BUILD)/tests/bin/espresso $(BUILD)/tests/cli/trainer)
# scripts that start the command: as build/tests/cli/test_NAME.sh that of the tests' build, as
# build/asan/cli/test_NAME.sh that under the address sanitizer (run.sh)
cli     = $(if $(TESTS),$(patsubst tests/%,$(BUILD)/$(1)/%,$(filter tests/cli/%,$(2))))
SCRIPTS := $(filter-out tests/cli/%,$(TEST_SH))
CLI     := $(call cli,tests,$(TEST_SH))
ASAN_CLI := $(call cli,asan,$(TEST_SH))

include tests/cuda/ptx/ptx.mk
# makes that tests start are not part of this make: they have its job server neither
RUN_TESTS := env -u MAKEFLAGS -u MFLAGS BUILD=$(BUILD) PREFIX=$(PREFIX) sh tests/run.sh
FILES_OF_TESTS := dist $(FIXTURES) $(BUILD)/bench/trainer $(firstword $(TRAIN_CUDA_HOST)) $(TEST_COMMAND) mpi-programs \
                  $(BUILD)/tests/jobs/faults/exits
test: all $(FILES_OF_TESTS) $(TESTS)
	@$(RUN_TESTS) $(TESTS) $(CLI) $(SCRIPTS)
test-san: all $(FILES_OF_TESTS) $(TRAIN_CUDA_HOST) $(ASAN_ALL) $(ASAN_COMMAND) $(TSAN_ALL) $(MSAN_TESTS)
	@TEST_ALL=1 $(RUN_TESTS) $(ASAN_ALL) $(ASAN_CLI) $(TSAN_ALL) $(MSAN_TESTS)
# the tests of every push (./bootstrap test), and all tests with all repetitions. A test that does not build counts as
# failed. Long tests come first, so that all cores are busy to the end
CHECKS := .ci/check-style.sh .ci/check-parts.sh .ci/check-docs.sh
CI   := tests/jobs/bare/test_bare.sh $(CHECKS) $(filter-out tests/jobs/bare/test_bare.sh $(LONG),$(SCRIPTS)) \
        $(call cli,tests,$(call runs,asan-long)) $(call cli,asan,$(filter-out $(LONG) $(call runs,asan-long),$(TEST_SH))) \
        $(TSAN) $(ASAN) $(call way,tests,$(filter-out $(LONG),$(TEST_SRC)))
EVERYTHING := $(CHECKS) $(SCRIPTS) $(CLI) $(TESTS) $(ASAN_ALL) $(ASAN_CLI) $(TSAN_ALL) $(MSAN_TESTS)
ci-programs: all $(FILES_OF_TESTS) $(ASAN_COMMAND) $(filter-out %.sh,$(CI))
ci-list:
	@echo $(CI)
test-all:
	-@$(MAKE) -k all $(FILES_OF_TESTS) $(TRAIN_CUDA_HOST) $(ASAN_COMMAND) $(filter-out %.sh,$(EVERYTHING)) $(PTX_TESTS)
	@$(if $(PTX_MISSING),echo "nvcc's PTX is not tested: $(PTX_MISSING) is not there")
	@TEST_ALL=1 TEST_TIMEOUT=1800 $(RUN_TESTS) $(EVERYTHING) $(PTX_RUN)
# while working: the quick tests, in three minutes; or all whose path contains T: make check T=executor/test_lanes, or
# T=planner
T ?=
QUICK := $(filter-out $(LONG) $(call runs,slow),$(TEST_SRC) $(TEST_SH))
CHECK := $(if $(T),$(foreach t,$(TESTS) $(CLI) $(SCRIPTS),$(if $(findstring $(T),$(t)),$(t))),$(call way,tests,$(QUICK)) $(call cli,tests,$(QUICK)))
# they start the command of the test build. With T, only small plugins are built, unless T selects scripts
check: $(if $(T),$(TEST_COMMAND) $(filter %.so,$(filter $(BUILD)/tests/abi/%,$(FIXTURES))) $(if $(filter $(BUILD)/tests/nccl/%,$(CHECK)),$(filter $(BUILD)/tests/nccl/%,$(FIXTURES))) $(if $(filter $(SCRIPTS),$(CHECK)),all $(FILES_OF_TESTS)),quick-programs) $(filter-out %.sh,$(CHECK))
	@$(if $(strip $(CHECK)),ESPRESSO_COMMAND=$(CURDIR)/$(firstword $(TEST_COMMAND)) $(RUN_TESTS) $(CHECK),echo "make check: no test has '$(T)' in its path: write T=executor, or T=executor/test_lanes" && exit 2)
.PHONY: check
# the test of faults at random moments, with more runs of one or two seconds each; writes
# bench/results/faults/faults.csv
SOAK_RUNS ?= 500
soak: $(BUILD)/tests/jobs/faults/test_chaos # SOAK_FLAGS="--kind stop --seed 7": see tests/jobs/faults/test_chaos.c
	$< --runs $(SOAK_RUNS) --report bench/results/faults/faults.csv $(SOAK_FLAGS)
# inserts faults into the CUDA kernels, one at a time; bench/results/cuda/cuda-faults.csv is its output. An hour on two
# cores
plant:
	python3 -B tests/cuda/plant.py
# a short test on this machine: make check with the command of the test build
quick-programs: report $(FIXTURES) $(TEST_COMMAND) $(filter-out %.sh,$(CHECK))
$(BUILD)/tests/planner/files/test_builtin: | $(BUILTIN_FILES)
quick-list:
	@echo $(CHECK)
check-parts:
	@sh .ci/check-parts.sh
check-style: all
	BUILD=$(BUILD) sh .ci/check-style.sh
# programs that test_mpi.sh starts: `options` links the tests' objects, as every test does
MPI_PROGRAMS := $(if $(and $(MPICC),$(TESTS)),$(addprefix $(BUILD)/tests/jobs/mpi/,options joined outer))
mpi-programs: $(MPI_PROGRAMS)
.PHONY: mpi-programs
$(BUILD)/tests/jobs/mpi/joined: tests/jobs/mpi/joined.c $(LIB) $(STAMP)
	@mkdir -p $(@D)
	OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(BASE) -O2 $(WARN) $(DEP) $< -o $@ $(LIB) $(LIBS)
# programs of test_exits.sh and test_mpi.sh, linked as users do
$(BUILD)/tests/jobs/faults/exits $(BUILD)/tests/jobs/mpi/outer: $(BUILD)/%: %.c $(LIB) $(STAMP)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $< -o $@ $(LIB) $(LIBS)

# libFuzzer (clang) on all readers of input: files, states, payloads, messages. Each target runs for FUZZ_SECONDS, and
# adds new inputs to $(BUILD)/fuzz/corpus. FUZZERS: the targets
FUZZ_SECONDS ?= 600
FUZZERS := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_CC := clang $(BASE) $(SAN) -fno-sanitize-recover=undefined -Wno-pass-failed
$(BUILD)/fuzz/obj/%.o: %.c $(STAMP)
	@mkdir -p $(@D)
	$(FUZZ_CC) -fsanitize=fuzzer-no-link,address,undefined $(OBJECT) $(DEP) -c $< -o $@
$(BUILD)/fuzz/library.a: $(patsubst %.c,$(BUILD)/fuzz/obj/%.o,$(LIB_SRC) $(FILES_SRC))
	rm -f $@ && ar rcs $@ $^
$(BUILD)/fuzz/%: tests/fuzz/fuzz_%.c $(BUILD)/fuzz/library.a $(BUILD)/fuzz/obj/tests/lib/defaults.o $(STAMP) | $(BUILD)/fuzz/
	$(FUZZ_CC) -fsanitize=fuzzer,address,undefined $(DEP) $< $(BUILD)/fuzz/obj/tests/lib/defaults.o $(BUILD)/fuzz/library.a -o $@ $(JSON_LIBS) $(LIBS)
fuzz: $(FUZZERS:%=$(BUILD)/fuzz/%)
	@for f in $(FUZZERS); do mkdir -p $(BUILD)/fuzz/corpus/$$f; \
	   $(BUILD)/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 \
	   -artifact_prefix=$(BUILD)/fuzz/ $(BUILD)/fuzz/corpus/$$f tests/fuzz/corpus/$$f >$(BUILD)/fuzz/$$f.log 2>&1 || \
	   { tail -n 40 $(BUILD)/fuzz/$$f.log; echo "fuzz: $$f failed"; exit 1; }; \
	   echo "$$f: $$(grep '^Done' $(BUILD)/fuzz/$$f.log), nothing found"; done

# tests/jobs/faults/test_hostile.c with more connections
HOSTILE ?= 100000
hostile: $(BUILD)/tests/jobs/faults/test_hostile
	ESPRESSO_HOSTILE=$(HOSTILE) $<
