/* process.h: is this still the process that opened a context, or a forked child of it? Answers without a system call, because every
 * push asks. Knows no context. */
#ifndef ESP__PROCESS_H
#define ESP__PROCESS_H
#include "espresso_impl/base/private.h"
#include <unistd.h>

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
