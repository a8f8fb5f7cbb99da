/* fuzz_decode.c is libFuzzer's entry to the decoders of all built-in codecs, for `make fuzz`. */
#include "tests/lib/library.h"
#include "decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_decode(data, size);
    return 0;
}
