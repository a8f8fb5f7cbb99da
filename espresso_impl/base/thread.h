/* thread.h: the library's threads. They leave the program's signals to the program's own threads. */
#ifndef ESP__THREAD_H
#define ESP__THREAD_H
#include "espresso_impl/base/private.h"

/* As pthread_create: 0 or the error. The new thread blocks every signal but those that its own instructions raise, and computes
 * in the default floating-point mode (fpmode.c). */
ESP__FN int esp__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg);
#endif
