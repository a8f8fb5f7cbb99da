/* fuzz_wire.c is libFuzzer's entry to the reader of messages between ranks, for `make fuzz`. */
#include "tests/lib/library.h"
#include "espresso_impl/job/peers.h"
#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_wire(data, size);
    return 0;
}
