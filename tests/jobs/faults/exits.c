/* exits.c is a test program whose ranks end in unusual ways: mpirun -n 2 exits WAY, or espresso run. WAY is one of:
 * - fork: a child ends with exit(0), and another one with esp_close and exit(0), while a step runs; training goes on
 * - forget: all ranks return from main without esp_close
 * - step: exit(7) on all ranks while a step runs
 * - one: the same on rank 1 only
 * - between: exit(7) on rank 1 only, between steps
 * - alone: exit(0) on rank 1 only, between steps
 * - signal: a signal handler calls exit(7) while steps run
 * - handler: exit(7) while a step runs, and then a handler of the program calls esp_close
 * - wait: the same, and the handler waits for the step first
 * - closed: stdout and stderr are closed before esp_open, and written to in each step
 * - forever: steps, until the process is killed
 * - abort: abort() while a step runs, as after an exception that is not caught */
#include "espresso.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 900000 };
static float grad[N];
static esp_ctx *ctx;
static int waits;

static void check(esp_status s) {
    if (!s) return;
    fprintf(stderr, "exits: %s\n", esp_last_error(ctx));
    exit(3);
}
static void on_alarm(int n) {
    (void)n;
    exit(7);
}
static void at_exit(void) {
    if (waits) esp_wait_all(ctx);
    esp_close(ctx);
}

/* Returns 0 if a child that ends with exit(0) does so within 10 s. */
static int forks(int closes) {
    int status = 1;
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        if (closes) esp_close(ctx);
        exit(0);
    }
    for (int ms = 0; waitpid(child, &status, WNOHANG) == 0; ms++) {
        usleep(1000);
        if (ms == 10000) kill(child, SIGKILL);
    }
    return !WIFEXITED(status) || WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    const struct rlimit none = {0, 0};
    const char *way = argc > 1 ? argv[1] : "";
    esp_config cfg = ESP_ZERO;
    esp_tensor_desc d = ESP_ZERO;
    esp_stream cpu = ESP_ZERO;
    uint32_t id = 0;
    int bad = 0;
    setrlimit(RLIMIT_CORE, &none);
    waits = !strcmp(way, "wait");
    if (waits || !strcmp(way, "handler")) atexit(at_exit); /* registered before the library's, so it runs after it */
    const int closed = !strcmp(way, "closed");
    for (int fd = 0; closed && fd < 3; fd++) close(fd);
    check(esp_open(&cfg, &ctx));
    const int last = esp_rank(ctx) == esp_size(ctx) - 1,
              all = strcmp(way, "one") && strcmp(way, "between") && strcmp(way, "alone");
    const int in_step =
        strcmp(way, "fork") && strcmp(way, "forget") && strcmp(way, "between") && strcmp(way, "alone") && !closed;
    d.name = "w", d.count = N;
    check(esp_tensor_add(ctx, &d, &id));
    check(esp_start(ctx));
    signal(SIGALRM, on_alarm);
    if (!strcmp(way, "signal") && last) ualarm(300000, 0);
    const int endless = !strcmp(way, "signal") || !strcmp(way, "forever");
    for (int step = 0; step < 20 || endless; step++) {
        if (!strcmp(way, "between") && last && step == 3) exit(7);
        if (!strcmp(way, "alone") && last && step == 3) exit(0);
        check(esp_push(ctx, id, grad, cpu));
        if (closed && write(1, "not for a rank\n", 15) + write(2, "not for a rank\n", 15) < 0) exit(4);
        if (!strcmp(way, "fork") && step % 10 == 3) bad |= forks(0) | forks(1);
        if (!strcmp(way, "abort") && step == 3) abort();
        if (in_step && !endless && (all || last) && step == 3) exit(7);
        check(esp_wait_all(ctx));
    }
    if (!strcmp(way, "forget")) return 0;
    esp_close(ctx);
    if (!bad) puts("went on");
    return bad;
}
