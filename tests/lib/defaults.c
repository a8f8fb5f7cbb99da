/* defaults.c: linked into every test, and into the command that tests start. */
#include <stdlib.h>

/* Tests' tensors are small: built-in strategies compress them like large ones, except where a test says otherwise. */
__attribute__((constructor)) static void compress_small_tensors(void) {
    setenv("ESPRESSO_MIN_COMPRESS_ELEMENTS", "0", 0);
}
