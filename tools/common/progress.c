/* progress.c: shows a line on the terminal that counts seconds during long work. Must not know what the work is. */
#include "tools/common/progress.h"
#include <errno.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

static struct {
    char text[160];
    volatile sig_atomic_t seconds, length;
} progress;

static void progress_tick(int signal) {
    char line[200];
    int n = 0;
    (void)signal;
    if (!progress.length) return;
    /* a signal handler must not call printf */
    line[n++] = '\r';
    for (int i = 0; i < progress.length; i++) line[n++] = progress.text[i];
    char digits[12];
    int d = 0;
    for (int s = ++progress.seconds; s > 0; s /= 10) digits[d++] = (char)('0' + s % 10);
    line[n++] = ' ';
    while (d > 0) line[n++] = digits[--d];
    line[n++] = ' ';
    line[n++] = 's';
    const int saved = errno;
    const ssize_t wrote = write(2, line, (size_t)n);
    (void)wrote;
    errno = saved;
}

ESP__FN void progress_set(const char *fmt, ...) {
    static int ready;
    va_list ap;
    if (!isatty(2)) return;
    if (!ready) {
        struct sigaction a = {.sa_handler = progress_tick, .sa_flags = SA_RESTART};
        const struct itimerval each = {{1, 0}, {1, 0}};
        sigaction(SIGALRM, &a, NULL);
        setitimer(ITIMER_REAL, &each, NULL);
        ready = 1;
    }
    progress.length = 0; /* keeps the signal handler from printing while the text changes */
    if (progress.seconds) fputs("\r\033[K", stderr);
    va_start(ap, fmt);
    const int n = vsnprintf(progress.text, sizeof progress.text, fmt, ap);
    va_end(ap);
    progress.length = n < 0 ? 0 : n >= (int)sizeof progress.text ? (int)sizeof progress.text - 1 : n;
}

ESP__FN void progress_done(void) {
    progress.length = 0;
    if (progress.seconds) fputs("\r\033[K", stderr);
    progress.seconds = 0;
}
