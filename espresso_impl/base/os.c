/* os.c: threads, forks and the floating-point mode. */
#include "espresso_impl/base/os.h"
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* ---- the floating-point mode ---- */
/* A program linked with -ffast-math (-Ofast) rounds denormal numbers to zero, and a program may set another rounding.
 * Its threads inherit this, and ranks in different modes would compute different sums and payloads. So the library
 * always computes in the default mode. */
ESP__FN uint64_t esp__fp_default(void) {
#if defined(__SSE2__)
    /* the low six bits only record exceptions */
    const uint32_t before = _mm_getcsr(), wanted = (before & 0x3fu) | 0x1f80u;
    if (before != wanted) _mm_setcsr(wanted);
    return before;
#elif defined(__aarch64__) && defined(__GNUC__)
    uint64_t before, wanted = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before != wanted) __asm__ volatile("msr fpcr, %0" : : "r"(wanted));
    return before;
#else
    return 0;
#endif
}

ESP__FN void esp__fp_restore(uint64_t before) {
#if defined(__SSE2__)
    if (_mm_getcsr() != (uint32_t)before) _mm_setcsr((uint32_t)before);
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
    (void)before;
#endif
}

/* ---- threads ---- */
ESP__FN int esp__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg) {
    /* Signals of faults stay unblocked: a blocked one would end the process without calling the program's handler. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&others, faults[i]);
    /* the new thread inherits the signal mask and the floating-point mode */
    pthread_sigmask(SIG_SETMASK, &others, &before);
    uint64_t mode = esp__fp_default();
    int error = pthread_create(thread, NULL, body, arg);
    esp__fp_restore(mode);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

ESP__FN void esp__cond_init(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

/* ---- forks ---- */
/* Detects forks by a page that the kernel clears in a forked child. Unlike a pthread_atfork handler, this works for
 * every kind of fork, and nothing remains when the library is unloaded. */
static size_t esp__page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

ESP__FN void esp__process_open(esp__process *p) {
    p->pid = (int32_t)getpid();
    p->page = NULL;
#ifdef MADV_WIPEONFORK
    void *page = mmap(NULL, esp__page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    /* Some emulators accept all advice and ignore it. Advice -1 is invalid, so it tells them from the kernel. */
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
