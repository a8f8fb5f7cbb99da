# tests.mk: how tests are built and run. Part of the Makefile. Each test is a program of its own; run.sh counts their test functions.
FIXTURES := $(patsubst tests/abi/plugin_%.c,$(BUILD)/tests/abi/libespresso-%.so,$(wildcard tests/abi/plugin_*.c))
$(BUILD)/tests/abi/libespresso-%.so: tests/abi/plugin_%.c $(STAMP) | $(BUILD)/tests/abi/
	$(PLUGIN_LINK)

# three ways to build them: plain, with the address and undefined-behaviour sanitizers, with the thread sanitizer
SAN         := -O1 -g -fno-omit-frame-pointer
TEST_tests  := -O2 -g
TEST_asan   := $(SAN) -fsanitize=address,undefined -fno-sanitize-recover=undefined
TEST_tsan   := $(SAN) -fsanitize=thread
TEST_WARN   := -Wall -Wextra -Wno-format-truncation
TEST_LIBS   := -lcmocka $(JSON_LIBS) $(LIBS)

# the library and the command, compiled once for each way and linked by all tests of it
$(BUILD)/test-library/%.a: tests/common/library.c $(PAGES) $(STAMP) | $(BUILD)/test-library/
	$(CC) $(BASE) $(TEST_$*) $(TEST_WARN) $(DEP) -c $< -o $(@:.a=.o)
	rm -f $@ && ar rcs $@ $(@:.a=.o)
.SECONDARY: $(BUILD)/test-library/tests.a $(BUILD)/test-library/asan.a $(BUILD)/test-library/tsan.a

define TEST_WAY
$(BUILD)/$(1)/%: tests/%.c $(BUILD)/test-library/$(1).a $(STAMP)
	@mkdir -p $$(@D)
	$$(CC) $$(BASE) $$(TEST_$(1)) $$(TEST_WARN) $$(DEP) $$< -o $$@ $(BUILD)/test-library/$(1).a $$(TEST_LIBS)
endef
$(foreach way,tests asan tsan,$(eval $(call TEST_WAY,$(way))))

# sanitizers: tests in C but those of the command; threads: those whose first lines mention the thread sanitizer
ASAN := $(filter-out $(addprefix $(BUILD)/asan/,tools/% page/% replay/%),$(TESTS:$(BUILD)/tests/%=$(BUILD)/asan/%))
TSAN := $(patsubst tests/%.c,$(BUILD)/tsan/%,$(shell grep -li 'thread sanitizer' $(TEST_SRC)))

RUN_TESTS := BUILD=$(BUILD) PREFIX=$(PREFIX) sh tests/run.sh
test: all $(FIXTURES) $(TESTS)
	@$(RUN_TESTS) $(TESTS) $(TEST_SH)
test-san: all $(FIXTURES) $(ASAN) $(TSAN)
	@$(RUN_TESTS) $(ASAN) $(TSAN)
# everything, with one total at the end; what does not build counts as failed
CI := $(TESTS) $(TEST_SH) $(ASAN) $(TSAN) .ci/check-style.sh .ci/check-parts.sh .ci/check-docs.sh
ci-programs: all $(BENCHES) $(FIXTURES) $(TESTS) $(ASAN) $(TSAN)
ci: ci-programs
	@$(RUN_TESTS) $(CI)
ci-list:
	@echo $(CI)
check-parts:
	@sh .ci/check-parts.sh
check-style: all
	BUILD=$(BUILD) sh .ci/check-style.sh
