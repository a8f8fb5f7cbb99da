/* spawn.h: starts the command `espresso` from a test and keeps what it says. Must not know any subcommand. */
#ifndef ESPRESSO_TESTS_SPAWN_H
#define ESPRESSO_TESTS_SPAWN_H
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SPAWN_LIMIT_MS /* a test whose commands take long sets it before the include */
#define SPAWN_LIMIT_MS 20000
#endif
enum { SPAWN_MS = SPAWN_LIMIT_MS, SPAWN_ALIVE_FD = 9 };

typedef struct spawned {
    pid_t pid;
    int in, out[2]; /* our ends of its pipes                                                   */
    int alive;      /* at its end once nobody started by the command lives (all inherit fd 9)  */
    char *text[2];  /* what came through out[]                                                 */
    size_t len[2];
    int status; /* exit status, or 128 + signal                                            */
} spawned;

static inline long spawn_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Starts `espresso ARGS...`, args NULL-terminated. */
static inline spawned spawn_start(const char *const *args) {
    spawned s = {.out = {-1, -1}};
    const char *command = getenv("ESPRESSO_COMMAND");
    const char *argv[64] = {command ? command : "build/bin/espresso"};
    int in[2], out[2], err[2], alive[2];
    for (int i = 0; args[i] && i < 62; i++) argv[i + 1] = args[i];
    if (pipe(in) || pipe(out) || pipe(err) || pipe(alive)) abort();
    fflush(NULL);
    s.pid = fork();
    if (s.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        dup2(alive[1], SPAWN_ALIVE_FD); /* last: one of the others may have that number */
        int own[] = {in[0], in[1], out[0], out[1], err[0], err[1], alive[0], alive[1]};
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            if (own[i] > 2 && own[i] != SPAWN_ALIVE_FD) close(own[i]);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        dprintf(2, "cannot start %s: build it or set ESPRESSO_COMMAND\n", argv[0]);
        _exit(99);
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    close(alive[1]);
    s.in = in[1];
    s.out[0] = out[0];
    s.out[1] = err[0];
    s.alive = alive[0];
    return s;
}

static inline void spawn_take(spawned *s, int k) {
    s->text[k] = realloc(s->text[k], s->len[k] + 65537);
    if (!s->text[k]) abort();
    ssize_t n = read(s->out[k], s->text[k] + s->len[k], 65536);
    if (n > 0) s->len[k] += (size_t)n;
    s->text[k][s->len[k]] = 0;
    if (n > 0 || (n < 0 && errno == EINTR)) return;
    close(s->out[k]);
    s->out[k] = -1;
}

/* Reads until both streams are at their end, or `want` was said on stdout or stderr; 0 after SPAWN_MS. */
static inline int spawn_read(spawned *s, const char *want) {
    long end = spawn_now_ms() + SPAWN_MS;
    while (s->out[0] >= 0 || s->out[1] >= 0) {
        struct pollfd p[2] = {{.fd = s->out[0], .events = POLLIN}, {.fd = s->out[1], .events = POLLIN}};
        for (int k = 0; want && k < 2; k++)
            if (s->text[k] && strstr(s->text[k], want)) return 1;
        if (spawn_now_ms() > end) return 0;
        if (poll(p, 2, 100) <= 0) continue;
        for (int k = 0; k < 2; k++)
            if (p[k].revents) spawn_take(s, k);
    }
    return !want || (s->text[0] && strstr(s->text[0], want)) || (s->text[1] && strstr(s->text[1], want));
}

static inline void spawn_close_input(spawned *s) {
    if (s->in >= 0) close(s->in);
    s->in = -1;
}

/* Waits for its end; a command that hangs is killed and gives status -1. */
static inline void spawn_end(spawned *s) {
    int status = 0;
    spawn_close_input(s);
    if (!spawn_read(s, NULL)) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, &status, 0);
        s->status = -1;
        return;
    }
    waitpid(s->pid, &status, 0);
    s->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* True once every process that the command started is gone. */
static inline int spawn_nobody_left(const spawned *s) {
    struct pollfd p = {.fd = s->alive, .events = POLLIN};
    return poll(&p, 1, 5000) == 1 && (p.revents & POLLHUP);
}

static inline void spawn_free(spawned *s) {
    spawn_close_input(s);
    for (int k = 0; k < 2; k++) {
        if (s->out[k] >= 0) close(s->out[k]);
        free(s->text[k]);
    }
    close(s->alive);
}

/* Runs `espresso ARGS...` to its end. */
#define SPAWN(...) spawn_all((const char *const[]){__VA_ARGS__, NULL})
static inline spawned spawn_all(const char *const *args) {
    spawned s = spawn_start(args);
    spawn_end(&s);
    return s;
}

static inline int spawn_said(const spawned *s, int k, const char *text) {
    return s->text[k] && strstr(s->text[k], text);
}

#endif
