/* progress.h: a line on the terminal while work takes more than a second. Nothing is shown where stderr is no terminal. */
#ifndef ESPRESSO_TOOLS_PROGRESS_H
#define ESPRESSO_TOOLS_PROGRESS_H
#include "espresso_impl/base/private.h"

/* Sets the line's text. The seconds that have passed are shown behind it. */
ESP__FN void progress_say(const char *fmt, ...) ESP__PRINTF(1, 2);
/* Clears the line. Call it before anything else is printed. */
ESP__FN void progress_done(void);
#endif
