# Makefile: builds what this machine can build, and reports what it left out.
#   make            library, command, plugins, examples     make test      every test
#   make demo       the training run of the README          make check     quick tests; T=NAME: those
#   make dist       one-file dist/espresso.h                make bench     benchmark programs
#   make fuzz FUZZ_SECONDS=600          fuzzes all readers of input: files, states, payloads, messages
#   make hostile HOSTILE=100000         number of hostile connections to a job that connects, and to one that runs
#   make ptx-tests  the CUDA kernels' tests with nvcc's PTX on the CPU (nvcc, python3)
#   make bare       bootstrap in a minimal Debian root      make demo DEMO_FLAGS=--quick
#   make soak SOAK_RUNS=500              faults at random moments: writes bench/results/faults/faults.csv
#   make truth TRUTH_FLAGS=             predicted against measured steps, with costs measured before (python3)
#   make results    texts and pictures of bench/results, into $(BUILD)/results (python3)
#   make OPENMP=1   the same with -fopenmp, for ESPRESSO_WORKERS=openmp
#   make install PREFIX=/usr/local DESTDIR=                 make docs, check-style, check-parts, plugins, clean
ifeq ($(origin CC),default)
CC := gcc
endif
BUILD  ?= build
PREFIX ?= /usr/local
OPT    ?= -O3
CFLAGS ?= -g
# WERROR=-Werror: no warning passes (./bootstrap test)
WERROR ?=
# gcc keeps vectors larger than a register in memory, which takes up to 18 times as long
VECTORS := -Wvector-operation-performance
WARN   := -Wall -Wextra -Wpedantic -Wconversion -Wshadow $(WERROR) \
          $(shell $(CC) -Werror $(VECTORS) -fsyntax-only -x c /dev/null 2>/dev/null && echo $(VECTORS))
# generated sources are in $(GEN), in folders like those of the tree
GEN    := $(BUILD)/gen
# OPENMP=1: the library too is compiled with -fopenmp, and programs that link libespresso.a then need it as well
OPENMP ?= 0
BASE   := -std=gnu11 -ffp-contract=off -I. -I$(GEN) -pthread $(if $(filter-out 0,$(OPENMP)),-fopenmp)
DEP     = -MMD -MP -MT $@ -MF $(BUILD)/dep/$(subst /,-,$@).d
FLAGS   = $(BASE) $(OPT) $(CFLAGS) $(WARN) $(DEP)
LIBS   := -pthread -ldl -lm $(if $(filter-out 0,$(OPENMP)),-fopenmp)
VERSION := $(shell sed -n 's/^.define ESPRESSO_VERSION "\(.*\)"/\1/p' espresso.h)
SOVER   := $(word 1,$(subst ., ,$(VERSION)))
have = $(shell command -v $(1) 2>/dev/null)
# objects are compiled through ccache if it is installed
CCACHE := $(call have,ccache)

LIB     := $(BUILD)/lib/libespresso.a
SO      := $(BUILD)/lib/libespresso.so
# backend gloo is in C++, as gloo's interface is; without warnings that gloo's and C headers cause in C++
GLOO_CXX  := $(CXX) -std=gnu++20 -I. -pthread $(OPT) $(CFLAGS) -Wall -Wconversion -Wshadow \
             -Wno-deprecated-enum-enum-conversion -Wno-maybe-uninitialized
HAVE_GLOO := $(shell printf '\043include <gloo/rendezvous/context.h>\n' | \
             $(CXX) -std=gnu++20 -E -x c++ - >/dev/null 2>&1 && echo yes)
include codecs/cuda/cuda.mk
# backend mpi is compiled by the installed MPI's wrapper, with our compiler
MPICC      ?= $(call have,mpicc)
PLUGINS := $(BUILD)/lib/espresso/libespresso-nccl.so $(BUILD)/lib/libnccl-profiler-espresso.so \
           $(if $(NVCC),$(BUILD)/lib/espresso/libespresso-cuda.so) \
           $(if $(MPICC),$(BUILD)/lib/espresso/libespresso-mpi.so $(BUILD)/lib/libespresso-mpi-shim.so) \
            $(if $(HAVE_GLOO),$(BUILD)/lib/espresso/libespresso-gloo.so)
# the numbered examples are built as their READMEs say; two of them also here, for tests
EXAMPLE_NAMES := train gpt hello groups
EXAMPLES := $(EXAMPLE_NAMES:%=$(BUILD)/bin/%)
BENCHES := $(patsubst %.c,$(BUILD)/bench/%,$(notdir $(wildcard bench/micro/*.c)) plan.c trainer.c turns-train.c turns-gpt.c)
# the compiler finds headers or not; this is a variable because versions of make differ in what "\#" is within $(shell)
HASH := \#
have_headers = $(shell printf '$(HASH)include <%s>\n' $(1) | $(CC) $(BASE) $(CFLAGS) -E - >/dev/null 2>&1 && echo yes)
HAVE_CMOCKA  := $(call have_headers,stdarg.h stddef.h setjmp.h stdint.h cmocka.h)
# does the compiler have OpenMP, its header and its runtime? The example trainers and the tests' library are compiled
# with it
HAVE_OPENMP := $(shell mkdir -p $(BUILD) && printf '$(HASH)include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' | \
                       $(CC) $(BASE) $(CFLAGS) -fopenmp -x c - -o $(BUILD)/has-openmp >/dev/null 2>&1 && echo yes)
OPENMP_FLAG := $(if $(HAVE_OPENMP),-fopenmp)
$(if $(filter-out 0,$(OPENMP)),$(if $(HAVE_OPENMP),,$(error OPENMP=$(OPENMP): $(CC) has no OpenMP (Debian: gcc has it, clang needs libomp-dev))))
# jansson reads the planner's JSON files; the command and tests need it, the library does not
HAVE_JANSSON := $(call have_headers,jansson.h)
JSON_LIBS    := -ljansson
COMMAND := $(if $(HAVE_JANSSON),$(BUILD)/bin/espresso)
BUILTIN_FILES := $(if $(HAVE_JANSSON),$(GEN)/builtin-files)
# the CUDA kernels are tested as C++ on the host
HAVE_CXX := $(call have,$(firstword $(CXX)))
TEST_SRC := $(filter-out $(if $(HAVE_CXX),,tests/cuda/%),$(sort $(wildcard tests/*/test_*.c tests/*/*/test_*.c)))
TEST_SH  := $(sort $(wildcard tests/*/test_*.sh tests/*/*/test_*.sh))
TESTS    := $(if $(and $(HAVE_CMOCKA),$(HAVE_JANSSON)),$(TEST_SRC:tests/%.c=$(BUILD)/tests/%))

.PHONY: all lib plugins tools uninstall tarball deb examples tests test test-san test-all ci-programs ci-list quick-programs quick-list fuzz \
        hostile bench results docs dist install demo clean check-style report bare check-parts truth accuracy soak plant
.DELETE_ON_ERROR:
.PRECIOUS: $(BUILD)/%/
all: lib plugins tools examples report
lib: $(LIB) $(SO)
plugins: $(PLUGINS)
tools: $(COMMAND) $(BUILTIN_FILES)
examples: $(EXAMPLES) $(if $(NVCC),$(BUILD)/bin/train_cuda)
tests: $(TESTS) $(BUILTIN_FILES)

# a change of compiler or flags rebuilds everything, a change of the prefix only files that use it
STAMP := $(BUILD)/flags
PREFIX_STAMP := $(BUILD)/prefix
stamp = $(shell mkdir -p $(BUILD)/dep; [ "$$(cat $(1) 2>/dev/null)" = '$(2)' ] || printf '%s\n' '$(2)' >$(1))
$(call stamp,$(STAMP),$(CC) $(BASE) $(OPT) $(CFLAGS))
$(call stamp,$(PREFIX_STAMP),$(PREFIX))

# the library's files, which espresso.c lists; the command and the tests link an object of each. Built-in plugins have
# entry functions with different names.
LIB_SRC   := $(shell sed -n 's/^.include "\(.*\.c\)"/\1/p' espresso.c)
FILES_SRC := $(filter-out %/write_builtin.c,$(wildcard planner/files/*.c))
TOOLS_SRC := $(wildcard tools/*.c tools/*/*.c)
OBJECTS   := $(BUILD)/obj/library.a
$(OBJECTS): $(patsubst %.c,$(BUILD)/obj/%.o,$(LIB_SRC) $(FILES_SRC))
	@rm -f $@ && ar rcs $@ $^
OBJECT     = -fvisibility=hidden -DESPRESSO_STATIC_PLUGINS -DESPRESSO_PREFIX='"$(PREFIX)"'
$(BUILD)/obj/%.o: %.c $(STAMP) $(PREFIX_STAMP)
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(FLAGS) $(OBJECT) -c $< -o $@

# for editors: how each file is compiled
compile_commands.json: Makefile espresso.c
	@for f in $(LIB_SRC) $(wildcard planner/files/*.c) $(TOOLS_SRC) $(NCCL_SRC) $(wildcard backends/p2p/*.c) \
	      $(TEST_SRC); do \
	   printf '{"directory": "%s", "file": "%s", "command": "%s -c %s"},\n' \
	      '$(CURDIR)' $$f '$(CC) $(BASE)' $$f; done | sed '1s/^/[/; $$s/,$$/]/' >$@

# ---- what make writes as source or data ----------------------------------------------------------
PAGES := $(GEN)/tools/page/page.inc
$(BUILD)/obj/tools/page/page.o: $(PAGES)
$(PAGES): $(wildcard tools/page/*.sh tools/page/*.html tools/page/*.css tools/page/*.js) | $(GEN)/tools/page/
	sh tools/page/embed.sh >$@
# built-in systems as files, for users to copy
SHARE := $(BUILD)/share/espresso
$(GEN)/write_builtin: $(BUILD)/obj/planner/files/write_builtin.o $(OBJECTS) | $(GEN)/
	$(CC) $(BASE) $(CFLAGS) $^ -o $@ $(JSON_LIBS) $(LIBS)
$(GEN)/builtin-files: $(GEN)/write_builtin
	rm -rf $(SHARE) && mkdir -p $(SHARE)/systems
	$< $(SHARE)/systems && touch $@

# ---- library, command, plugins, examples -------------------------------------------------------
$(BUILD)/obj/espresso.o: espresso.c $(STAMP) $(PREFIX_STAMP) | $(BUILD)/obj/
	$(CC) $(FLAGS) -fPIC -fvisibility=hidden -DESPRESSO_PREFIX='"$(PREFIX)"' -c $< -o $@
$(LIB): $(BUILD)/obj/espresso.o | $(BUILD)/lib/
	rm -f $@ && ar rcs $@ $<
$(SO): $(BUILD)/obj/espresso.o | $(BUILD)/lib/
	$(CC) -shared -Wl,-soname,libespresso.so.$(SOVER) -Wl,-z,defs $(CFLAGS) $< -o $@.$(VERSION) $(LIBS)
	ln -sf $(@F).$(VERSION) $@.$(SOVER) && ln -sf $(@F).$(SOVER) $@
$(BUILD)/bin/espresso: $(TOOLS_SRC:%.c=$(BUILD)/obj/%.o) $(OBJECTS) | $(BUILD)/bin/
	$(CC) $(BASE) $(CFLAGS) $^ -o $@ $(JSON_LIBS) $(LIBS)

# a backend's plugin: the objects of the folders that it uses
PLUGIN_FLAGS = -fPIC -fvisibility=hidden
PLUGIN_LINK  = $(PLUGIN_FLAGS) -shared -Wl,-z,defs $(filter %.c %.cc %.o,$^) -o $@
NCCL_SRC := $(wildcard backends/nccl/*.c)
NCCL_PARTS := $(patsubst %.c,$(BUILD)/plugin/%.o,$(wildcard backends/common/*.c) $(NCCL_SRC))
P2P_PARTS  := $(patsubst %.c,$(BUILD)/plugin/%.o,$(wildcard backends/common/*.c) \
             $(filter-out %/mpi.c,$(wildcard backends/p2p/*.c)))
$(BUILD)/plugin/%.o: %.c $(STAMP)
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(FLAGS) $(PLUGIN_FLAGS) -c $< -o $@
$(BUILD)/lib/espresso/libespresso-nccl.so: $(NCCL_PARTS) $(STAMP) | $(BUILD)/lib/espresso/
	$(CC) $(FLAGS) $(PLUGIN_LINK) $(LIBS)
$(BUILD)/lib/espresso/libespresso-mpi.so: backends/p2p/mpi.c $(P2P_PARTS) $(STAMP) | $(BUILD)/lib/espresso/
	OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(FLAGS) $(PLUGIN_LINK) $(LIBS)
# NCCL loads it
$(BUILD)/lib/libnccl-profiler-espresso.so: backends/nccl_profiler/profiler.c $(STAMP) | $(BUILD)/lib/
	$(CC) $(FLAGS) $(PLUGIN_LINK) $(LIBS)
# for LD_PRELOAD; no plugin
$(BUILD)/lib/libespresso-mpi-shim.so: backends/mpi_shim/shim.c $(LIB) $(STAMP) | $(BUILD)/lib/
	OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(FLAGS) -fPIC -shared -Wl,--exclude-libs,ALL $< -o $@ $(LIB) $(LIBS)
$(BUILD)/lib/espresso/libespresso-gloo.so: backends/p2p/gloo.cc $(P2P_PARTS) $(STAMP) | $(BUILD)/lib/espresso/
	@echo '{ global: espresso_plugin_v1; local: *; };' >$(BUILD)/gloo.map # templates of C++ would be exported too
	$(GLOO_CXX) $(DEP) $(PLUGIN_LINK) -Wl,--version-script=$(BUILD)/gloo.map -lgloo

SHARED_gpt := $(patsubst %,examples/train/%.c,gemm report run)
define EXAMPLE
$(BUILD)/bin/$(1): $(wildcard examples/*$(1)/*.c examples/*$(1)/*.h) $(SHARED_$(1)) $(LIB) espresso.h $(STAMP) | $(BUILD)/bin/
	$$(CC) $$(BASE) $$(OPT) $$(CFLAGS) $$(WARN) $$(OPENMP_FLAG) $(wildcard examples/*$(1)/*.c) $(SHARED_$(1)) -o $$@ $(LIB) $$(LIBS)
$(BUILD)/bench/turns-$(1): $(BUILD)/bin/$(1) bench/trainers/turns.h | $(BUILD)/bench/
	$$(CC) $$(BASE) $$(OPT) $$(CFLAGS) $$(WARN) $$(OPENMP_FLAG) -include bench/trainers/turns.h $(wildcard examples/*$(1)/*.c) $(SHARED_$(1)) -o $$@ $(LIB) $$(LIBS)
endef
$(foreach e,$(EXAMPLE_NAMES),$(eval $(call EXAMPLE,$(e))))

# the benches' own trainers, which use the product and the text of the examples
TRAINER := $(wildcard bench/trainers/*.c) examples/train/gemm.c examples/gpt/text.c
$(BUILD)/bench/trainer: $(TRAINER) bench/trainers/net.h bench/trainers/turns.h $(LIB) espresso.h $(STAMP) | $(BUILD)/bench/
	$(CC) $(BASE) $(OPT) $(CFLAGS) $(WARN) $(OPENMP_FLAG) -include bench/trainers/turns.h $(TRAINER) -o $@ $(LIB) $(LIBS)
$(BUILD)/bench/workers: FLAGS += $(OPENMP_FLAG)
$(patsubst %,$(BUILD)/bench/%,codec coll matrix): $(BUILD)/bench/%: bench/micro/%.c $(OBJECTS) | $(BUILD)/bench/
	$(CC) $(FLAGS) $< $(OBJECTS) -o $@ $(JSON_LIBS) $(LIBS)
$(BUILD)/bench/%: bench/micro/%.c $(LIB) $(STAMP) | $(BUILD)/bench/
	$(CC) $(FLAGS) $< -o $@ $(LIB) $(LIBS)
$(BUILD)/bench/plan: bench/planner/plan.c $(LIB) $(STAMP) | $(BUILD)/bench/
	$(CC) $(FLAGS) $< -o $@ $(LIB) $(LIBS)
$(BUILD)/%/:
	mkdir -p $@

include codecs/cuda/rules.mk
include tests/tests.mk

# ---- the rest ---------------------------------------------------------------------------------------
bench: lib tools $(BENCHES)
	@echo "benchmarks are in $(BUILD)/bench: $(notdir $(BENCHES))"
truth: lib tools examples $(BUILD)/bench/trainer # TRUTH_FLAGS="gpt 4 1gbit", or --costs-only an hour before: see bench/validate/truth --help
	@BUILD=$(BUILD) bench/validate/truth $(TRUTH_FLAGS)
accuracy: lib tools examples $(BUILD)/bench/trainer # what codecs cost in accuracy: about an hour; see bench/accuracy/accuracy.sh
	@BUILD=$(BUILD) sh bench/accuracy/accuracy.sh
# texts and pictures of the CSV of bench/results
results:
	@command -v python3 >/dev/null || { echo "make results: python3 is not there (Debian: python3)"; exit 1; }
	@python3 bench/make_results.py bench/results $(BUILD)/results
demo: all # DEMO_FLAGS=--quick: the short form
	@sh examples/train/demo.sh $(DEMO_FLAGS)
# bootstrap in a minimal Debian root, as root and as a user with sudo
bare:
	@sh tests/jobs/bare/test_bare.sh
docs:
	@mkdir -p $(BUILD)/docs
	@{ cat docs/Doxyfile; echo "PROJECT_NUMBER = $(VERSION)"; echo "OUTPUT_DIRECTORY = $(BUILD)/docs"; \
	   echo "USE_MDFILE_AS_MAINPAGE = $(CURDIR)/README.md"; } | doxygen -
	@echo "open $(BUILD)/docs/html/index.html"
dist: dist/espresso.h
dist/espresso.h: espresso_impl/amalgamate.sh espresso.h plugins/abi.h espresso.c \
                 $(shell find espresso_impl codecs backends planner -name '*.[ch]' -o -name '*.inc')
	@mkdir -p dist
	sh espresso_impl/amalgamate.sh >$@.tmp && mv $@.tmp $@
install: all dist
	sh espresso_impl/install.sh $(BUILD) $(PREFIX) $(VERSION)
uninstall:
	@sh espresso_impl/install.sh --remove $(PREFIX)
# a source tarball and a Debian package in dist/, with the same bytes whenever and wherever they are made
tarball:
	@sh espresso_impl/package.sh tarball $(BUILD) $(VERSION)
deb: lib plugins tools dist report
	@sh espresso_impl/package.sh deb $(BUILD) $(VERSION)
clean:
	rm -rf $(BUILD) dist
report:
	@$(if $(HAVE_JANSSON),:,echo "left out: the command, demo and tests (jansson.h not found; Debian: libjansson-dev)")
	@$(if $(HAVE_CMOCKA),:,echo "left out: tests (cmocka.h not found; Debian: libcmocka-dev)")
	@$(if $(HAVE_CXX),:,echo "left out: tests of the CUDA kernels ($(CXX) not found; Debian: g++)")
	@$(if $(HAVE_OPENMP),:,echo "left out: OpenMP in the example trainers ($(CC) does not find it; Debian: gcc has it, clang needs libomp-dev)")
	@$(if $(NVCC),:,echo "left out: plugin cuda, the GPU codecs (nvcc not found: install the CUDA toolkit, 12 or newer, or set NVCC)")
	@$(if $(MPICC),:,echo "left out: backend mpi (mpicc not found; Debian: libopenmpi-dev and openmpi-bin)")
	@$(if $(HAVE_GLOO),:,echo "left out: backend gloo ($(CXX) does not find gloo/rendezvous/context.h; Debian: libgloo-dev)")
	@$(if $(call have,doxygen),:,echo "left out: make docs (doxygen not found)")

-include $(wildcard $(BUILD)/dep/*.d)
