/* thread.c: the library's threads. Must not know what they do. */
#include "espresso_impl/base/thread.h"
#include "espresso_impl/base/fpmode.h"
#include <signal.h>

ESP__FN int esp__thread_start(pthread_t *thread, void *(*body)(void *arg), void *arg) {
    /* not blocked: a blocked fault ends the process without calling the program's handler, which may report it */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_SETMASK, &others, &before); /* the new thread inherits the mask, and the floating-point mode */
    uint64_t mode = esp__fp_default();
    int error = pthread_create(thread, NULL, body, arg);
    esp__fp_restore(mode);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
