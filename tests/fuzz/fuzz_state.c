/* fuzz_state.c is libFuzzer's entry to the reader of saved states, for `make fuzz`. */
#include "tests/lib/library.h"
#include "state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_state(data, size);
    return 0;
}
