/* main.c: of test programs that have no main of their own. */
#include "tests/lib/test.h"

__attribute__((weak)) int main(void) { return test_main(); }
