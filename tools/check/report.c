/* report.c: runs each check in a process of its own, so that the report can state which check of a plugin crashed or
 * hung. Must not know codecs or backends. */
#include "tools/check/check.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHECK_SECONDS = 120 };
enum { CHECK_PASSED = 0, CHECK_FAILED = 1, CHECK_SKIPPED = 77 };

/* true if checks run in this process, since it is a rank that a launcher has started */
int check_in_place;
/* a check in this process ends by a jump to this point */
static sigjmp_buf check_back;
static char check_ended[CHECK_TEXT_MAX + 1];
int check_pipe = -1;
/* what the check does at present, printed if it crashes */
static char check_at[256];

ESP__FN void check_doing(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(check_at, sizeof check_at, fmt, args);
    va_end(args);
}

_Noreturn static void check_end(int code, const char *fmt, va_list args) {
    char text[CHECK_TEXT_MAX];
    int n = vsnprintf(text, sizeof text, fmt, args);
    if (check_in_place) {
        memcpy(check_ended, text, sizeof text);
        siglongjmp(check_back, code + 1);
    }
    if (check_pipe >= 0 && write(check_pipe, text, n < CHECK_TEXT_MAX ? (size_t)n : CHECK_TEXT_MAX - 1) < 0)
        _exit(code);
    _exit(code);
}
/* Ends the check as failed. The text states the expected and the actual result, and what to do. */
ESP__FN _Noreturn void check_fail(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    check_end(CHECK_FAILED, fmt, args);
    va_end(args);
}
ESP__FN _Noreturn void check_skip(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    check_end(CHECK_SKIPPED, fmt, args);
    va_end(args);
}

/* Handles a signal such as SIGSEGV: sends the parent process what the check was doing. */
static void check_crashed(int signal_number) {
    static const char crash[] = "crashed";
    static const char late[] = "did not come back";
    const char *what = signal_number == SIGALRM ? late : crash;
    if (write(check_pipe, what, strlen(what)) < 0 || write(check_pipe, " while ", 7) < 0 ||
        write(check_pipe, check_at, strlen(check_at)) < 0)
        _exit(CHECK_FAILED);
    _exit(CHECK_FAILED);
}

ESP__FN void check_catch(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], check_crashed);
}
static void check_child(const check *c, void *target) {
    check_catch();
    alarm(CHECK_SECONDS);
    check_doing("beginning");
    c->run(target);
    _exit(CHECK_PASSED);
}

/* Runs a check in this process. If it crashes, prints what it was doing, and ends the job. */
static int check_here(const check *c, void *target) {
    alarm(10 * CHECK_SECONDS);
    check_doing("%s", c->name);
    check_ended[0] = 0;
    const int ended = sigsetjmp(check_back, 0);
    if (ended) return ended - 1;
    c->run(target);
    return CHECK_PASSED;
}

static void check_result(check_report *r, const check *c, int code, const char *message) {
    const char *word = code == CHECK_PASSED ? "ok     " : code == CHECK_SKIPPED ? "skipped" : "FAILED ";
    if (code == CHECK_PASSED)
        r->passed++;
    else if (code == CHECK_SKIPPED)
        r->skipped++;
    else
        r->failed++;
    printf("  %s  %-12s %s\n", word, c->name, c->demands);
    if (code != CHECK_PASSED) printf("           %s\n", *message ? message : "(without a message)");
    fflush(stdout);
}

ESP__FN void check_one(check_report *r, const check *c, void *target) {
    int ends[2], status = 0;
    char said[CHECK_TEXT_MAX + 1];
    size_t n = 0;
    if (check_in_place) {
        const int code = check_here(c, target);
        check_result(r, c, code, check_ended);
        return;
    }
    if (pipe(ends)) {
        perror("espresso plugins: pipe");
        exit(TOOL_FAILED);
    }
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        check_pipe = ends[1];
        check_child(c, target);
    }
    close(ends[1]);
    for (ssize_t got; n < CHECK_TEXT_MAX && (got = read(ends[0], said + n, CHECK_TEXT_MAX - n)) > 0;) n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) < 0) {
        snprintf(said, sizeof said, "the check could not be started: %s", strerror(errno));
        status = CHECK_FAILED << 8;
    }
    check_result(r, c, WIFEXITED(status) ? WEXITSTATUS(status) : CHECK_FAILED, said);
}

ESP__FN void check_all(check_report *r, const check *checks, size_t n, void *target) {
    for (size_t i = 0; i < n; i++) check_one(r, &checks[i], target);
}
