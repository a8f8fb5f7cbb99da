/* test_thread.c checks that threads of the library receive no signals that are meant for the program, but still die
 * of faults of their own, such as SIGSEGV. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "espresso_impl/base/os.h"

static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

static void *mask_of(void *arg) {
    pthread_sigmask(SIG_SETMASK, NULL, (sigset_t *)arg);
    return arg;
}

TEST(masks) {
    sigset_t before, inside, after;
    pthread_t t;
    void *came = NULL;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(esp__thread_start(&t, mask_of, &inside), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    pthread_join(t, &came);
    assert_ptr_equal(came, &inside);
    for (int s = 1; s <= SIGRTMAX; s++) {
        int fault = s == SIGKILL || s == SIGSTOP || (s > SIGSYS && s < SIGRTMIN);
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) fault |= s == faults[i];
        if (sigismember(&inside, s) != !fault) fail_msg("signal %d", s);
        if (sigismember(&after, s) != (s == SIGUSR2)) fail_msg("signal %d of the starter", s);
    }
}
