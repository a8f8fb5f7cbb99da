/* fuzz_activate.c is libFuzzer's entry to esp_strategy_set, for `make fuzz`. */
#include "tests/lib/library.h"
#include "state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_activate(data, size);
    return 0;
}
