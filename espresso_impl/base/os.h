/* os.h: threads that leave signals to the program, the detection of forks, and the floating-point mode. */
#ifndef ESP__OS_H
#define ESP__OS_H
#include "espresso_impl/base/private.h"
#include <unistd.h>

/* ---- the floating-point mode ---- */
/* Sets the default mode on this thread and on threads that it starts, so that all ranks compute the same bits. Returns
 * the previous mode for esp__fp_restore. */
ESP__FN uint64_t esp__fp_default(void);
ESP__FN void esp__fp_restore(uint64_t before);

/* ---- the library's threads ---- */
/* Starts a thread, which blocks all signals except faults of its own instructions, and computes in the default
 * floating-point mode. Returns 0 or pthread_create's error. */
ESP__FN int esp__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg);

/* ---- forks ---- */
typedef struct esp__process {
    uint32_t *page; /* *page is 1, and in a forked child 0; or NULL */
    int32_t pid;    /* compared if the kernel has no such pages */
} esp__process;

ESP__FN void esp__process_open(esp__process *p);
ESP__FN void esp__process_close(esp__process *p); /* not in a forked child */
/* Is this the process of esp__process_open, and not a forked child? Mostly without a system call: every push asks. */
static inline bool esp__process_same(const esp__process *p) {
    return p->page ? *p->page != 0 : p->pid == (int32_t)getpid();
}
#endif
