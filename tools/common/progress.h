/* progress.h: a line on the terminal during work that takes more than a second, if stderr is a terminal. */
#ifndef ESPRESSO_TOOLS_PROGRESS_H
#define ESPRESSO_TOOLS_PROGRESS_H
#include "espresso_impl/base/private.h"

/* Sets the line's text, which is followed by the seconds since the start. */
ESP__FN void progress_set(const char *fmt, ...) ESP__PRINTF(1, 2);
/* Clears the line. Call it before anything else is printed. */
ESP__FN void progress_done(void);
#endif
