/* spawn.c: starts a process for each rank or host, and a watchdog, a process that ends them if the launcher dies. */
#include "tools/run/run.h"
#include "espresso_impl/base/limits.h"
#include "espresso_impl/base/machine.h"
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static bool run_is_program(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Finds the program argv[0] in PATH. Done here and not in each rank, so that an error is printed once. */
ESP__FN int run_find_program(run_plan *p) {
    const char *name = p->argv[0], *path = getenv("PATH");
    struct stat st;
    if (strchr(name, '/')) {
        if ((size_t)snprintf(p->path, sizeof p->path, "%s", name) >= sizeof p->path)
            return tool_fail(p->command, "the program's name is too long");
        if (run_is_program(name)) return TOOL_OK;
        if (stat(name, &st) != 0) return tool_fail(p->command, "cannot start '%s': %s", name, strerror(errno));
        if (S_ISDIR(st.st_mode)) return tool_fail(p->command, "cannot start '%s': it is a directory", name);
        return tool_fail(p->command, "cannot start '%s': it is not executable (chmod +x makes it so)", name);
    }
    if (!path) path = "/usr/local/bin:/usr/bin:/bin";
    for (const char *dir = path;; dir++) {
        size_t n = strcspn(dir, ":");
        if ((size_t)snprintf(p->path, sizeof p->path, "%.*s/%s", n ? (int)n : 1, n ? dir : ".", name) <
                sizeof p->path &&
            run_is_program(p->path))
            return TOOL_OK;
        dir += n;
        if (!*dir) break;
    }
    if (run_is_program(name))
        return tool_fail(p->command, "cannot start '%s': not found in PATH; for the one in this directory write ./%s",
                         name, name);
    return tool_fail(p->command, "cannot start '%s': not found in PATH (%s); or write its path, as in ./%s", name, path,
                     name);
}

static void run_set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void run_set_environment(const run_plan *p, int i) {
    for (int e = 0; e < p->n_env; e++) {
        char *name = strndup(p->env[e], strcspn(p->env[e], "="));
        if (name) setenv(name, strchr(p->env[e], '=') + 1, 1);
        free(name);
    }
    run_set_number("ESPRESSO_RANK", p->first + i);
    run_set_number("ESPRESSO_SIZE", p->n);
    run_set_number("ESPRESSO_MACHINE", p->machine_of[i]);
    run_set_number("ESPRESSO_LOCAL_RANK", p->local_of[i]);
    unsetenv("ESPRESSO_PLACE");
    if (p->racks) {
        char place[64];
        int m = p->machine_of[i], each = p->machines / p->racks;
        snprintf(place, sizeof place, "rack%d/machine%d", m / each, m % each);
        setenv("ESPRESSO_PLACE", place, 1);
    }
    setenv("ESPRESSO_LAUNCHER", "espresso-run", 1);
    unsetenv("ESPRESSO_HOSTS");
    if (p->part) run_set_number("ESPRESSO_HOSTS", p->machines);
    if (!getenv("OMP_NUM_THREADS")) { /* ranks share the cores, and OpenMP would use all of them in each rank */
        int share = (int)esp__cores() / p->here;
        run_set_number("OMP_NUM_THREADS", share > 0 ? share : 1);
    }
    setenv("OMP_WAIT_POLICY", "passive", 0); /* idle OpenMP threads must not spin on shared cores */
    /* collectives of NCCL on several levels: streams must not share hardware queues, and all ranks launch in one order
     */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    setenv("ESPRESSO_ROOT", p->root, 1);
    setenv("ESPRESSO_SECRET", p->secret, 1);
    if (p->inter) setenv("ESPRESSO_INTER_LINK", p->inter, 1);
    if (p->outer) setenv("ESPRESSO_OUTER_LINK", p->outer, 1);
}

/* Returns the number of threads that esp_open() will start in a rank: the user's number, or a share of the cores. */
static long run_workers(const run_plan *p, long cores) {
    const char *text = getenv("ESPRESSO_WORKERS");
    for (int i = 0; i < p->n_env; i++)
        if (!strncmp(p->env[i], "ESPRESSO_WORKERS=", 17)) text = p->env[i] + 17;
    const char *number = text ? strchr(text, ':') : NULL; /* a number may follow a name, as in "openmp:4" */
    long n = text ? strtol(number ? number + 1 : text, NULL, 10) : 0;
    long machines = p->part ? 1 : p->machines, locals = (p->here + machines - 1) / machines;
    if (n < 1) n = cores / locals;
    return n < 1 ? 1 : n;
}

/* Limits how many ranks compress at the same time, if their threads would outnumber the cores. A rank reads a byte from
 * a pipe before it compresses, and writes it back afterwards, as jobs of make do. ESPRESSO_TOKENS=off turns this
 * off. */
static int run_tokens_open(run_job *j) {
    const char *setting = getenv("ESPRESSO_TOKENS");
    const long cores = (long)esp__cores();
    if (setting && !strcmp(setting, "off")) return TOOL_OK;
    long workers = run_workers(j->plan, cores), n = cores / workers;
    if (j->plan->here * workers <= cores) return TOOL_OK;
    if (pipe2(j->tokens, O_CLOEXEC | O_NONBLOCK) != 0)
        return tool_fail(j->plan->command, "no pipe: %s", strerror(errno));
    for (long i = 0; i < n || i < 1; i++)
        if (write(j->tokens[1], "+", 1) != 1) break;
    return TOOL_OK;
}

ESP__FN void run_tokens_close(run_job *j) {
    for (int i = 0; i < 2; i++)
        if (j->tokens[i] >= 0) close(j->tokens[i]);
}

/* Passes the pipe of run_tokens_open() to a rank, but not to programs that the rank starts. */
static void run_tokens_give(const run_job *j) {
    char text[64];
    struct stat st;
    unsetenv("ESPRESSO_TOKENS");
    if (j->tokens[0] < 0 || fstat(j->tokens[0], &st) != 0) return;
    for (int i = 0; i < 2; i++) fcntl(j->tokens[i], F_SETFD, 0);
    snprintf(text, sizeof text, "%d,%d,%llu", j->tokens[0], j->tokens[1], (unsigned long long)st.st_ino);
    setenv("ESPRESSO_TOKENS", text, 1);
}

/* Runs in the child process, and executes the rank's program or a remote shell. It starts a session of its own, so that
 * Ctrl-C does not reach it, and the launcher can end it with its children. If exec fails, writes errno to `report`. */
static _Noreturn void run_become(const run_job *j, int i, pid_t launcher, const int streams[3], int report) {
    const run_plan *p = j->plan;
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == launcher) {
        for (int k = 0; k < 3; k++) dup2(streams[k], k);
        signal(SIGPIPE, SIG_DFL);
        sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
        if (p->hosts) run_become_shell(p, &p->hosts[i]);
        run_set_environment(p, i);
        run_tokens_give(j);
        execvp(p->path, p->argv);
    }
    int error = errno;
    ssize_t n = write(report, &error, sizeof error);
    _exit(n < 0 ? 126 : 127);
}

static int run_start_child(run_job *j, int i) {
    const run_plan *p = j->plan;
    run_child *c = &j->children[i];
    const int n_pipes = p->hosts ? 4 : 3;
    int pipes[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}, error = 0, n = 0;
    const pid_t launcher = getpid();
    char who[300];
    snprintf(who, sizeof who, "rank %d", p->first + i);
    if (p->hosts) snprintf(who, sizeof who, "host %s", p->hosts[i].name);
    while (n < n_pipes && pipe2(pipes[n], O_CLOEXEC) == 0) n++;
    const pid_t pid = n == n_pipes ? fork() : -1;
    if (pid == 0) {
        int in = p->hosts ? pipes[3][0] : p->first + i || p->part ? open("/dev/null", O_RDONLY | O_CLOEXEC) : 0;
        run_become(j, i, launcher, (int[]){in, pipes[0][1], pipes[1][1]}, pipes[2][1]);
    }
    if (pid < 0) return tool_fail(p->command, "%s: cannot start a process: %s", who, esp__strerror(errno));
    for (int k = 0; k < 3; k++) close(pipes[k][1]);
    if (p->hosts) close(pipes[3][0]);
    *c = (run_child){.pid = pid, .to = pipes[3][1]};
    j->started++;
    j->alive++;
    if (write(j->watchdog, &pid, sizeof pid) < 0)
        tool_fail(p->command, "the watchdog process is gone: %s", strerror(errno));
    for (int s = 0; s < 2; s++) {
        fcntl(pipes[s][0], F_SETFL, O_NONBLOCK);
        c->out[s] = (run_stream){.fd = pipes[s][0], .child = i, .sink = s ? j->err : j->out};
    }
    ssize_t got = read(pipes[2][0], &error, sizeof error);
    close(pipes[2][0]);
    if (got > 0) return tool_fail(p->command, "cannot start '%s': %s", p->path, strerror(error));
    return p->hosts ? run_part_send(j, i) : TOOL_OK;
}

ESP__FN int run_start(run_job *j) {
    int status = j->plan->hosts ? TOOL_OK : run_tokens_open(j);
    for (int i = 0; i < j->n && status == TOOL_OK; i++) status = run_start_child(j, i);
    return status;
}

/* The watchdog process. Waits until the launcher writes 0, which means that the job is over, or dies. Then kills every
 * child with its process group: a parent-death signal would not kill the children's own children. */
static _Noreturn void run_watchdog(int from, int n) {
    pid_t *pids = malloc((size_t)n * sizeof *pids), pid = 0;
    int have = 0;
    setsid();
    prctl(PR_SET_NAME, "esp-watchdog");
    dup2(from, 0);
    for (int fd = 1; fd < 64; fd++) close(fd);
    for (;;) {
        ssize_t got = read(0, &pid, sizeof pid);
        if (got < 0 && errno == EINTR) continue;
        if (got != sizeof pid) break;
        if (pid == 0) _exit(0);
        if (pids && have < n) pids[have++] = pid;
    }
    for (int i = 0; i < have; i++) kill(-pids[i], SIGKILL);
    _exit(0);
}

ESP__FN int run_start_watchdog(run_job *j) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0 || (j->watchdog_pid = fork()) < 0)
        return tool_fail(j->plan->command, "cannot start a process: %s", esp__strerror(errno));
    if (j->watchdog_pid == 0) run_watchdog(ends[0], j->n);
    close(ends[0]);
    j->watchdog = ends[1];
    return TOOL_OK;
}

ESP__FN void run_end_watchdog(run_job *j) {
    pid_t none = 0;
    ssize_t n = write(j->watchdog, &none, sizeof none);
    (void)n;
    close(j->watchdog);
    waitpid(j->watchdog_pid, NULL, 0);
}
