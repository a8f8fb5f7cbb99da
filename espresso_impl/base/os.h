/* os.h: starts threads that leave signals to the program, detects forks, and sets the floating-point mode. */
#ifndef ESP__OS_H
#define ESP__OS_H
#include "espresso_impl/base/private.h"
#include <unistd.h>

/* ---- the floating-point mode ---- */
/* Sets this thread's floating-point mode to the default, so that all ranks compute the same bits. Threads that it
 * starts inherit it. Returns the previous mode for esp__fp_restore. */
ESP__FN uint64_t esp__fp_default(void);
ESP__FN void esp__fp_restore(uint64_t before);

/* ---- the library's threads ---- */
/* Starts a thread that blocks all signals except faults (such as SIGSEGV). Returns 0 or the error of pthread_create. */
ESP__FN int esp__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg);
/* Initializes a condition whose timeouts use the clock of esp__now_ns. */
ESP__FN void esp__cond_init(pthread_cond_t *c);

/* ---- forks ---- */
typedef struct esp__process {
    uint32_t *page; /* *page is 1, or 0 in a forked child; may be NULL */
    int32_t pid;
} esp__process;

ESP__FN void esp__process_open(esp__process *p);
ESP__FN void esp__process_close(esp__process *p);
/* Returns false in forked children of the process that called esp__process_open. */
static inline bool esp__process_same(const esp__process *p) {
    return p->page ? *p->page != 0 : p->pid == (int32_t)getpid();
}
#endif
