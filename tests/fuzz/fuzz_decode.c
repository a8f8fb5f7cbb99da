/* fuzz_decode.c: libFuzzer's entry to the decoders of all built-in codecs; `make fuzz`. */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "planner/files/files.c"
#include "targets.h"
#include "decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_decode(data, size);
    return 0;
}
