/* only compiled: install/test_guide.sh makes and uses a plugin mycodec */
#include "lib.h"
void load(void);
void load(void) { BLOCK; }
