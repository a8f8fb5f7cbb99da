/* main.c is the main of most test programs. */
#include "tests/lib/test.h"

__attribute__((weak)) int main(void) { return test_main(); }
