/* main.c: of test programs that have no main of their own. */
#include "tests/common/test.h"

int main(void) { return test_main(); }
