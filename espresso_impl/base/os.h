/* os.h: what the library asks of the operating system: threads that leave signals to the program, whether this process was forked,
 * and the mode of floating-point arithmetic. */
#ifndef ESP__OS_H
#define ESP__OS_H
#include "espresso_impl/base/private.h"
#include <unistd.h>

/* ---- the floating-point mode, so that all ranks compute the same bits whatever a program's flags are ---- */
/* Sets the default mode on this thread, and on threads that it starts. Returns the mode before, for esp__fp_restore. */
ESP__FN uint64_t esp__fp_default(void);
ESP__FN void esp__fp_restore(uint64_t before);

/* ---- the library's threads, which leave the program's signals to the program's own threads ---- */
/* Starts a thread: 0 or pthread_create's error. The thread blocks all signals except faults of its own instructions, and computes in
 * the default floating-point mode (esp__fp_default). */
ESP__FN int esp__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg);

/* ---- is this still the process that opened a context, or a forked child of it? Every push asks, so the answer takes no system call. ---- */
typedef struct esp__process {
    uint32_t
        *page; /* 1; the kernel shows a forked child a page of zeros. NULL: the kernel cannot, so compare the pid */
    int32_t pid;
} esp__process;

ESP__FN void esp__process_open(esp__process *p);  /* cannot fail */
ESP__FN void esp__process_close(esp__process *p); /* only where esp__process_same says 1 */
static inline int esp__process_same(const esp__process *p) {
    return p->page ? *p->page != 0 : p->pid == (int32_t)getpid();
}
#endif
