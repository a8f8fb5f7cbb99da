/* progress.h: shows a line on the terminal (if stderr is one) while work takes more than a second. */
#ifndef ESPRESSO_TOOLS_PROGRESS_H
#define ESPRESSO_TOOLS_PROGRESS_H
#include "espresso_impl/base/private.h"

/* Sets the line's text. The seconds since the start follow it. */
ESP__FN void progress_set(const char *fmt, ...) ESP__PRINTF(1, 2);
/* Clears the line. Call it before anything else is printed. */
ESP__FN void progress_done(void);
#endif
