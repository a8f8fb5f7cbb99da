/* fuzz_system.c is libFuzzer's entry to the reader of system files, for `make fuzz`. */
#include "tests/lib/library.h"
#include "planner/files/files.h"
#include "planner/files/read.h"
#include "targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_system((const char *)data, size);
    return 0;
}
