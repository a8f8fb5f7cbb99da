/* progress.h: shows a text and the elapsed seconds during long work, if stderr is a terminal. */
#ifndef ESPRESSO_TOOLS_PROGRESS_H
#define ESPRESSO_TOOLS_PROGRESS_H
#include "espresso_impl/base/private.h"

/* Sets the text. */
ESP__FN void progress_set(const char *fmt, ...) ESP__PRINTF(1, 2);
/* Clears the line. Must be called before anything else is printed. */
ESP__FN void progress_done(void);
#endif
