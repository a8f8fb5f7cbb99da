/* top.c: `espresso top` shows the statistics of a running job on a terminal, or prints them once. A job writes them if
 * ESPRESSO_STATS names a file. */
#include "tools/top/top.h"
#include "tools/run/run.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { TOP_LOOK_MS = 200, TOP_DRAW_MS = 1000 };
static const tool_flag top_flags[] = {
    {"--once", NULL, "print what is known now as text, and end (also where the output is no terminal)"},
};

/* ---- the terminal ------------------------------------------------------------------------------------------------ */
/* The terminal's state. It is global since signal handlers use it. */
static struct {
    struct termios before;
    bool keys; /* stdin returns single keys */
    volatile sig_atomic_t shown, resized, ended;
} top_terminal;

static void top_write(const char *text, size_t len) {
    while (len) {
        ssize_t n = write(1, text, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        text += n;
        len -= (size_t)n;
    }
}

/* Restores the terminal. Uses only async-signal-safe functions, since signal handlers call it. */
static void top_hide(void) {
    static const char back[] = "\033[?25h\033[?1049l";
    if (!top_terminal.shown) return;
    top_terminal.shown = 0;
    top_write(back, sizeof back - 1);
    if (top_terminal.keys) tcsetattr(0, TCSAFLUSH, &top_terminal.before);
}

static void top_show(void) {
    static const char screen[] = "\033[?1049h\033[?25l\033[2J";
    struct termios raw;
    top_terminal.keys = isatty(0) && tcgetattr(0, &top_terminal.before) == 0;
    if (top_terminal.keys) {
        raw = top_terminal.before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        tcsetattr(0, TCSAFLUSH, &raw);
    }
    top_terminal.shown = 1;
    top_write(screen, sizeof screen - 1);
}

static void top_on_resize(int sig) { top_terminal.resized = sig; }
static void top_on_end(int sig) { top_terminal.ended = sig; }
static void top_on_crash(int sig) {
    top_hide();
    signal(sig, SIG_DFL);
    raise(sig);
}
/* Handles Ctrl-Z: restores the terminal while this process is stopped. */
static void top_on_stop(int sig) {
    const int saved = errno;
    (void)sig;
    top_hide();
    raise(SIGSTOP);
    top_show();
    top_terminal.resized = 1;
    errno = saved;
}

static void top_signals(void) {
    static const int end[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}, crash[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE};
    struct sigaction a = {.sa_handler = top_on_end};
    for (size_t i = 0; i < sizeof end / sizeof *end; i++) sigaction(end[i], &a, NULL);
    a.sa_handler = top_on_crash;
    for (size_t i = 0; i < sizeof crash / sizeof *crash; i++) sigaction(crash[i], &a, NULL);
    a.sa_handler = top_on_resize;
    sigaction(SIGWINCH, &a, NULL);
    a.sa_handler = top_on_stop;
    sigaction(SIGTSTP, &a, NULL);
    atexit(top_hide); /* restores the terminal after an error too */
}

/* ---- showing ----------------------------------------------------------------------------------------------------- */
static bool top_is_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *is = getenv(names[i]);
        if (is && *is) return strcasestr(is, "utf-8") || strcasestr(is, "utf8");
    }
    return false;
}

static top_view top_view_now(int terminal) {
    struct winsize w = {0};
    struct timespec now;
    top_view v = {.utf8 = top_is_utf8(), .ansi = terminal};
    clock_gettime(CLOCK_REALTIME, &now);
    v.now = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    if (terminal && ioctl(1, TIOCGWINSZ, &w) == 0 && w.ws_col && w.ws_row) {
        v.columns = w.ws_col;
        v.rows = w.ws_row - 1; /* leaves a line, which names the keys */
    } else if (terminal) {
        v.columns = 80;
        v.rows = 23;
    }
    return v;
}

static void top_draw(const top_file *f, const top_job *j) {
    const top_view v = top_view_now(1);
    esp__text t = {0};
    char last[64];
    esp__text_add(&t, "\033[H");
    top_render(f, j, &v, &t);
    esp__text_add(&t, "\033[J");
    snprintf(last, sizeof last, "q: quit");
    if (v.rows > 0) esp__text_add(&t, "\033[%d;1H%.*s", v.rows + 1, v.columns - 1, last);
    if (t.data) top_write(t.data, t.len);
    esp__text_free(&t);
}

/* Waits at most `ms` for a key. Returns false if that key means to quit. */
static bool top_wait(int ms) {
    struct pollfd p = {.fd = top_terminal.keys ? 0 : -1, .events = POLLIN};
    char key[16];
    if (poll(&p, 1, ms) <= 0 || !p.revents) return true;
    ssize_t n = read(0, key, sizeof key);
    if (n < 0 || (n == 0 && (p.revents & (POLLHUP | POLLERR)))) return errno == EINTR;
    for (ssize_t i = 0; i < n; i++)
        if (key[i] == 'q' || key[i] == 'Q' || key[i] == 3 || key[i] == 4) return false;
    return true;
}

static int top_watch(top_file *f, top_job *j) {
    int64_t drawn = 0;
    long lines = -1;
    top_signals();
    top_show();
    do {
        top_follow(f, j);
        if (lines != j->lines || top_terminal.resized || run_now_ms() - drawn >= TOP_DRAW_MS) {
            top_terminal.resized = 0;
            lines = j->lines;
            drawn = run_now_ms();
            top_draw(f, j);
        }
    } while (!top_terminal.ended && top_wait(TOP_LOOK_MS) && !top_terminal.ended);
    top_hide();
    int sig = top_terminal.ended;
    return !sig || sig == SIGINT ? TOOL_OK : 128 + sig;
}

/* ---- once -------------------------------------------------------------------------------------------------------- */
static int top_once(const tool_command *c, top_file *f, top_job *j) {
    const top_view v = top_view_now(0);
    esp__text t = {0};
    top_follow(f, j);
    if (f->error)
        return tool_fail(c, "%s: cannot be read: %s%s", f->path, strerror(f->error),
                         f->error == ENOENT ? " (a job writes it when it runs with ESPRESSO_STATS)" : "");
    if (!j->header && j->garbage)
        return tool_fail(c,
                         "%s is no file of statistics: %ld of its %ld lines are not what ESPRESSO_STATS writes (a file "
                         "that ends in .prom is for Prometheus: name another one too)",
                         f->path, j->garbage, j->lines);
    top_render(f, j, &v, &t);
    if (t.data) fputs(t.data, stdout);
    esp__text_free(&t);
    if (fflush(stdout) != 0) return tool_fail(c, "standard output cannot be written: %s", strerror(errno));
    return TOOL_OK;
}

static int top_main(const tool_command *self, int argc, char **argv) {
    const char *value, *term = getenv("TERM");
    int at = 0, once = 0;
    top_job job = {0};
    while (tool_next(self, argc, argv, &at, &value) >= 0) once = 1;
    if (at + 1 < argc && argv[at + 1][0] == '-') tool_usage(self, "flags come before the file: %s", argv[at + 1]);
    if (at + 1 != argc) tool_usage(self, "takes one file: what ESPRESSO_STATS names, such as stats.jsonl");
    top_file file = {.path = argv[at], .fd = -1};
    top_follow(&file, &job);
    int screen = !once && isatty(1) && term && strcmp(term, "dumb") != 0;
    /* waits for a missing file, which may still appear, but fails for a folder */
    int status = screen && (!file.error || file.error == ENOENT) ? top_watch(&file, &job) : top_once(self, &file, &job);
    top_file_close(&file);
    top_job_free(&job);
    return status;
}

const tool_command top_command = {
    .name = "top",
    .summary = "Shows the statistics of a running job.",
    .synopsis = "[--once] FILE",
    TOOL_FLAGS(top_flags),
    .run = top_main,
    .details = "FILE is what the job writes with ESPRESSO_STATS=FILE or esp_config.stats (docs/use/stats.md).\n"
               "The screen is refreshed once a second; q leaves. A file that is not there yet is waited for.\n"
               "\n"
               "examples:\n"
               "  ESPRESSO_STATS=stats.jsonl espresso run -n 4 -- ./train &\n"
               "  espresso top stats.jsonl\n"
               "  espresso top --once stats.jsonl | head",
};
