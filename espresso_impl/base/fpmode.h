/* fpmode.h: arithmetic as on every other rank, whatever the program's flags. */
#ifndef ESP__FPMODE_H
#define ESP__FPMODE_H
#include "espresso_impl/base/private.h"

/* Begins the default mode on this thread, and threads that it starts; returns what esp__fp_restore wants back. */
ESP__FN uint64_t esp__fp_default(void);
ESP__FN void esp__fp_restore(uint64_t before);
#endif
