/* main.c is the main of all test programs that have none of their own. */
#include "tests/lib/test.h"

__attribute__((weak)) int main(void) { return test_main(); }
