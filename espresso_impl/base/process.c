/* process.c: a page that the kernel wipes in a forked child. Unlike a handler of pthread_atfork, it needs nothing that outlives the
 * context (the library may be one of several copies in the process, and may be unloaded), and it notices every kind of fork. */
#include "espresso_impl/base/process.h"
#include <sys/mman.h>

static size_t esp__page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

ESP__FN void esp__process_open(esp__process *p) {
    p->pid = (int32_t)getpid();
    p->page = NULL;
#ifdef MADV_WIPEONFORK
    void *page = mmap(NULL, esp__page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    /* emulators that ignore advice say yes to all of it, even to this, which does not exist */
    if (!madvise(page, esp__page_bytes(), -1) || madvise(page, esp__page_bytes(), MADV_WIPEONFORK)) {
        munmap(page, esp__page_bytes());
        return;
    }
    p->page = page;
    *p->page = 1;
#endif
}

ESP__FN void esp__process_close(esp__process *p) {
    if (p->page) munmap(p->page, esp__page_bytes());
    p->page = NULL;
}
