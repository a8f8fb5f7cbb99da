/* driver.h runs a job once: starts the ranks, kills or stops one, waits for reports, and checks that nothing is
 * left. */
#ifndef CHAOS_DRIVER_H
#define CHAOS_DRIVER_H
#include "judge.h"

typedef struct options {
    const char *backend;
    const char *launcher; /* such as "mpirun -n 4", or NULL */
    uint32_t timeout_ms;
    double bound_ms; /* limit for noticing a fault, in ms */
    int verbose;
} options;

typedef struct run {
    board *b;
    const options *o;
    char folder[PATH_ROOM], path[PATH_ROOM + 32], program[PATH_ROOM];
    pid_t pid[RANKS], launcher;
    uint64_t fault_ns;
} run;

/* ---- processes ---- */
static inline void rank_start(run *x, int32_t r) {
    char number[16];
    x->pid[r] = child_fork(0);
    if (x->pid[r]) return;
    snprintf(number, sizeof number, "%d", (int)r);
    execl(x->program, x->program, "--rank", x->path, number, (char *)NULL);
    _exit(127);
}
static inline void ranks_start(run *x) {
    char command[1000];
    if (!x->o->launcher) {
        for (int32_t r = 0; r < RANKS; r++) rank_start(x, r);
        return;
    }
    snprintf(command, sizeof command, "exec %s %s --rank %s -", x->o->launcher, x->program, x->path);
    x->launcher = fork();
    if (x->launcher) return;
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}
static inline void signal_rank(run *x, int32_t r, int sig) {
    const pid_t pid = x->o->launcher ? (pid_t)atomic_load(&x->b->rank[r].pid) : x->pid[r];
    if (pid > 0) kill(pid, sig);
}
/* Reaps the ranks, and kills those that have not ended by the deadline. Reports those that ended unexpectedly. */
static inline void ranks_end(run *x, uint64_t deadline, result *out) {
    const plan *p = &x->b->plan;
    int status = 0;
    for (int32_t r = 0; r < RANKS && !x->o->launcher; r++) {
        int ended;
        while (!(ended = waitpid(x->pid[r], &status, WNOHANG)) && esp__now_ns() < deadline) usleep(300);
        if (!ended) {
            fault_found(out, "rank %d does not end (step %d, status %d, second job %d)\n", (int)r,
                        atomic_load(&x->b->rank[r].step), atomic_load(&x->b->rank[r].status),
                        atomic_load(&x->b->rank[r].again));
            kill(x->pid[r], SIGKILL);
            waitpid(x->pid[r], &status, 0);
            continue;
        }
        if (is_lost(p) && r == p->victim && !(p->kind == STOP && p->resume)) continue;
        if (WIFSIGNALED(status)) fault_found(out, "rank %d was ended by signal %d\n", (int)r, WTERMSIG(status));
        if (WIFEXITED(status) && WEXITSTATUS(status))
            fault_found(out, "rank %d ended with status %d\n", (int)r, WEXITSTATUS(status));
    }
    while (x->launcher > 0 && !waitpid(x->launcher, NULL, WNOHANG)) {
        if (esp__now_ns() > deadline) kill(x->launcher, SIGKILL);
        usleep(300);
    }
}

/* ---- waiting ---- */
/* Waits until all ranks are ready. Returns 0 if one has failed, or at the deadline. */
static inline int await_ready(run *x, uint64_t deadline) {
    for (; esp__now_ns() < deadline; usleep(200)) {
        int n = 0;
        for (int r = 0; r < RANKS; r++) {
            if (atomic_load(&x->b->rank[r].status) != NOT_REPORTED) return 0;
            n += atomic_load(&x->b->rank[r].ready);
        }
        if (n == RANKS) return 1;
    }
    return 0;
}
static inline int await_reports(run *x, uint64_t deadline, int with_victim) {
    for (; esp__now_ns() < deadline; usleep(200)) {
        int n = 0;
        for (int r = 0; r < RANKS; r++)
            n += atomic_load(&x->b->rank[r].status) != NOT_REPORTED ||
                 (r == x->b->plan.victim && is_lost(&x->b->plan) && !with_victim);
        if (n == RANKS) return 1;
    }
    return 0;
}

/* ---- the fault ---- */
static inline void inject(run *x, result *out) {
    const plan *p = &x->b->plan;
    const int outside = p->kind == KILL || p->kind == STOP || p->kind == KILL_SAVE || (p->kind == SLOW && p->variant);
    if (p->kind == KILL_OPEN) {
        usleep(p->delay_us);
        x->fault_ns = esp__now_ns();
        signal_rank(x, p->victim, SIGKILL);
    }
    if (!outside) return;
    if (!await_ready(x, esp__now_ns() + 60000000000u)) {
        for (int r = 0; r < RANKS; r++) out->busy |= atomic_load(&x->b->rank[r].status) == ESP_E_TIMEOUT;
        return;
    }
    usleep(p->delay_us);
    x->fault_ns = esp__now_ns();
    signal_rank(x, p->victim, p->kind == STOP || p->kind == SLOW ? SIGSTOP : SIGKILL);
    if (p->kind != SLOW) return;
    usleep(p->timeout_ms * 500ull);
    signal_rank(x, p->victim, SIGCONT);
}
/* Runs when the other ranks have reported the fault: continues or kills a stopped victim, and stores which ranks are
 * to open the second job. */
static inline void inject_after(run *x) {
    const plan *p = &x->b->plan;
    int all = (1 << RANKS) - 1;
    if (p->kind == STOP) signal_rank(x, p->victim, p->resume ? SIGCONT : SIGKILL);
    if (p->kind == STOP && p->resume) await_reports(x, esp__now_ns() + 20000000000u, 1);
    if (is_lost(p) || (p->kind == NO_MEMFD && p->variant)) all &= ~(1 << p->victim);
    if (p->kind == EXIT || p->kind == ORDER) {
        const uint64_t own = atomic_load(&x->b->rank[p->victim].fault_ns);
        if (own) x->fault_ns = own;
    }
    atomic_store(&x->b->survivors, all);
}

/* ---- a run ---- */
static inline int run_folder(run *x, int create) {
    char path[PATH_ROOM + 320];
    for (int r = 0; r < RANKS; r++) {
        snprintf(path, sizeof path, "%s/r%d", x->folder, r);
        if (create && mkdir(path, 0700) != 0) return 0;
        DIR *d = create ? NULL : opendir(path);
        for (struct dirent *e; d && (e = readdir(d));) {
            snprintf(path, sizeof path, "%s/r%d/%s", x->folder, r, e->d_name);
            unlink(path);
        }
        if (d) closedir(d);
        snprintf(path, sizeof path, "%s/r%d", x->folder, r);
        if (!create) rmdir(path);
    }
    return 1;
}

/* Reports sockets, and files in /dev/shm, that the job has left behind. */
static inline void run_left(run *x, int shm_before, result *out) {
    char line[512];
    const char *name = strchr(x->b->root, ':') + 1;
    FILE *f = fopen("/proc/net/unix", "r");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, name)) fault_found(out, "a socket is left: %s", line);
    if (f) fclose(f);
    if (!x->o->launcher && test_count_files("/dev/shm", "espresso") > shm_before)
        fault_found(out, "there is a new file in /dev/shm\n");
}

static inline void run_tell(const run *x, const result *out) {
    const plan *p = &x->b->plan;
    fprintf(stderr, "%s, seed %llu: %s\n%s  again: %s --kind %s --seed %llu --runs 1 --timeout %u\n",
            kinds[p->kind].name, (unsigned long long)p->seed, out->failed ? "FAILED" : "passed", out->why, x->program,
            kinds[p->kind].name, (unsigned long long)p->seed, (unsigned)x->o->timeout_ms);
    fprintf(stderr, "  victim %d, setup %u (%s %s), %s, variant %u, step %u, pushes %u, delay %u us, amount %u%s\n",
            (int)p->victim, (unsigned)p->setup, setups[p->setup].codec ? setups[p->setup].codec : "none",
            setups[p->setup].option, p->caller ? "caller" : "threads", (unsigned)p->variant, (unsigned)p->step,
            (unsigned)p->pushes, (unsigned)p->delay_us, (unsigned)p->amount, p->resume ? ", resumes" : "");
    for (int r = 0; r < RANKS; r++) {
        const report *y = &x->b->rank[r];
        const unsigned long long at = atomic_load(&y->returned_ns);
        fprintf(stderr, "  rank %d: status %d, step %d, pushes %d, after %.1f ms: %s\n", r, atomic_load(&y->status),
                atomic_load(&y->step), atomic_load(&y->pushes),
                at && x->fault_ns ? ((double)at - (double)x->fault_ns) / 1e6 : 0.0, y->text);
    }
}

static inline void run_once(kind k, uint64_t seed, const options *o, uint64_t (*hash)(const char *, int32_t),
                            result *out) {
    run x;
    memset(&x, 0, sizeof x);
    memset(out, 0, sizeof *out);
    x.o = o;
    const ssize_t n = readlink("/proc/self/exe", x.program, sizeof x.program - 1);
    const char *tmp = getenv("TMPDIR");
    snprintf(x.folder, sizeof x.folder, "%.100s/espresso-chaos-%d-XXXXXX", tmp && *tmp ? tmp : "/tmp", (int)getpid());
    if (n < 0 || !mkdtemp(x.folder) || !run_folder(&x, 1)) {
        fault_found(out, "cannot make a folder: %s\n", strerror(errno));
        return;
    }
    snprintf(x.path, sizeof x.path, "%s/board", x.folder);
    x.b = board_map(x.path, 1);
    if (!x.b) {
        fault_found(out, "cannot make %s: %s\n", x.path, strerror(errno));
        return;
    }
    x.b->plan = plan_make(k, seed, o->timeout_ms);
    x.b->launched = o->launcher != NULL;
    snprintf(x.b->root, sizeof x.b->root, "%s", test_root(false));
    snprintf(x.b->folder, sizeof x.b->folder, "%s", x.folder);
    snprintf(x.b->backend, sizeof x.b->backend, "%s", o->backend);
    for (int r = 0; r < RANKS; r++) atomic_store(&x.b->rank[r].status, NOT_REPORTED);
    const int shm_before = test_count_files("/dev/shm", "espresso");
    ranks_start(&x);
    inject(&x, out);
    await_reports(&x, esp__now_ns() + x.b->plan.timeout_ms * 1000000ull + 30000000000u, 0);
    inject_after(&x);
    ranks_end(&x, esp__now_ns() + 30000000000u, out);
    judge(x.b, x.fault_ns, o->bound_ms, hash, out);
    run_left(&x, shm_before, out);
    if (out->failed || o->verbose) run_tell(&x, out);
    munmap(x.b, sizeof *x.b);
    run_folder(&x, 0);
    unlink(x.path);
    rmdir(x.folder);
}
#endif
