/* thread.h: the library's threads. They leave the program's signals to the program's own threads. */
#ifndef ESP__THREAD_H
#define ESP__THREAD_H
#include "espresso_impl/base/private.h"

/* Starts a thread: 0 or pthread_create's error. The thread blocks all signals except faults of its own instructions, and computes in
 * the default floating-point mode (fpmode.c). */
ESP__FN int esp__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg);
#endif
