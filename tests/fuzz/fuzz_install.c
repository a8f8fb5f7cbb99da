/* fuzz_install.c: libFuzzer's entry to esp_strategy_set; `make fuzz`. */
#include "tests/lib/library.h"
#include "state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_install(data, size);
    return 0;
}
