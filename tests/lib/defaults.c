/* defaults.c has settings of every test and of the command that tests start. */
#include <stdlib.h>

/* Tests have small tensors, which built-in strategies must compress anyway, unless a test sets the variable itself. */
__attribute__((constructor)) static void compress_small_tensors(void) {
    setenv("ESPRESSO_MIN_COMPRESS_ELEMENTS", "0", 0);
}
