/* defaults.c has settings of every test and of the command that tests start. */
#include <stdlib.h>

/* By default, strategies do not compress small tensors. Tests have only small ones, so this sets the limit to 0. */
__attribute__((constructor)) static void compress_small_tensors(void) {
    setenv("ESPRESSO_MIN_COMPRESS_ELEMENTS", "0", 0);
}
