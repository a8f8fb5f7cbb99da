/* limits.h: error texts and signals for limits of the process (ulimit), such as that on file sizes. Backends include
 * this file, too. */
#ifndef ESP__LIMITS_H
#define ESP__LIMITS_H
#include "espresso_impl/base/private.h"
#include <errno.h>
#include <signal.h>
#include <time.h>

/* Returns the text of an errno. Names the limit that has caused it. */
static inline const char *esp__strerror(int error) {
    return error == EFBIG    ? "File too large (see ulimit -f)"
           : error == EMFILE ? "Too many open files (see ulimit -n)"
           : error == EAGAIN ? "Resource temporarily unavailable (see ulimit -u and -v)" /* of a thread or process */
           : error == ENOMEM ? "Cannot allocate memory (see ulimit -v)"
                             : strerror(error);
}

/* Writing beyond the limit on file sizes raises SIGXFSZ, and writing to a closed pipe SIGPIPE, which would end the
 * program. Between these two calls, this thread gets only the errors EFBIG and EPIPE. */
typedef struct esp__held_signals {
    sigset_t mask, pending;
} esp__held_signals;
static inline void esp__signals_hold(esp__held_signals *held) {
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGXFSZ);
    sigaddset(&ours, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &ours, &held->mask);
    sigpending(&held->pending);
}
static inline void esp__signals_release(const esp__held_signals *held) {
    static const int ours[] = {SIGXFSZ, SIGPIPE};
    const struct timespec now = {0, 0};
    const int error = errno;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, ours[i]);
        while (!sigismember(&held->pending, ours[i]) && sigtimedwait(&one, NULL, &now) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &held->mask, NULL);
    errno = error;
}
#endif
