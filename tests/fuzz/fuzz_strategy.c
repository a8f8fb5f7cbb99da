/* fuzz_strategy.c: libFuzzer's entry to the reader of strategy files; `make fuzz`. */
#include "tests/common/library.h"
#include "planner/files/files.c"
#include "targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_strategy((const char *)data, size);
    return 0;
}
