/* fpmode.h: the default floating-point mode, so that all ranks compute the same bits whatever a program's flags are. */
#ifndef ESP__FPMODE_H
#define ESP__FPMODE_H
#include "espresso_impl/base/private.h"

/* Sets the default mode on this thread, and on threads that it starts. Returns the mode before, for esp__fp_restore. */
ESP__FN uint64_t esp__fp_default(void);
ESP__FN void esp__fp_restore(uint64_t before);
#endif
