/* rank.h: what a rank of a job does. It trains, and after the fault the remaining ranks open a second job. */
#ifndef CHAOS_RANK_H
#define CHAOS_RANK_H
#include "fault.h"
#include <sys/wait.h>

/* ---- one step ---- */
static inline void exit_here(self *x, uint32_t step, uint32_t pushed) {
    if (x->p->kind != EXIT || !is_victim(x) || step != x->p->step || pushed != x->p->pushes) return;
    usleep(x->p->delay_us / 4);
    atomic_store(&x->me->fault_ns, esp__now_ns());
    _exit(0); /* the rank exits without telling the others */
}
static inline esp_status push_all(self *x, uint32_t step, uint32_t except) {
    const esp_stream here = ESP_ZERO;
    const int now = step == x->p->step && is_victim(x) && !x->second;
    esp_status s = ESP_OK;
    if (!x->second) atomic_store(&x->me->pushes, 0);
    for (uint32_t t = 0; t < TENSORS && !s; t++) {
        exit_here(x, step, t);
        if (now && x->p->kind == ORDER) refused_calls(x, t);
        if (t == except) continue;
        if (now && x->p->kind == SLOW && x->p->variant == 0 && t == x->p->pushes % TENSORS)
            usleep(x->p->timeout_ms * 500ull);
        s = esp_push(x->ctx, t, x->grad[t], here);
        if (!s && !x->second) atomic_fetch_add(&x->me->pushes, 1);
    }
    exit_here(x, step, TENSORS);
    return s;
}
static inline esp_status train_step(self *x, uint32_t step) {
    const int odd = step == x->p->step && !x->second;
    uint32_t except = TENSORS;
    int instead = 0;
    esp_status s = odd && x->p->kind == ORDER ? unfit_calls(x, &instead) : ESP_OK;
    if (s || instead) return s;
    gradients_fill(x, step);
    if (odd && x->p->kind == PUSH && x->p->variant == ONLY_ONE_PUSHES) except = x->p->pushes % TENSORS;
    if (odd && x->p->kind == PUSH && x->p->variant == ONE_NEVER_PUSHES && is_victim(x)) {
        s = push_all(x, step, 0); /* all but tensor 0, which the others wait for */
        return s ? s : esp_wait(x->ctx, 1);
    }
    s = push_all(x, step, is_victim(x) ? TENSORS : except);
    if (!s) s = esp_wait_all(x->ctx);
    /* a tensor that only the victim pushed causes an error that names it, and the job continues */
    if (except < TENSORS && !is_victim(x)) {
        char name[32];
        snprintf(name, sizeof name, "'layer%u.weight'", (unsigned)except);
        if (s != ESP_E_STATE || !error_has(x->ctx, name))
            wrong(x, "a tensor not pushed: %s %.200s", esp_status_name(s), esp_last_error(x->ctx));
        s = s == ESP_E_STATE ? ESP_OK : s;
    }
    if (!s && !x->second) atomic_store(&x->me->pushes, 0);
    if (!s) averages_check(x, step, except);
    return s;
}

/* Changes the strategy on all ranks. If one has too little memory, all must keep the old strategy. */
static inline void change_strategy(self *x) {
    char *text = strdup(esp_strategy_text(x->ctx));
    if (is_victim(x)) limit_memory(x->p->amount);
    const esp_status s = esp_strategy_set(x->ctx, text);
    atomic_store(&x->me->saved[1], s ? 1 : 2);
    if (s && s != ESP_E_NOMEM) wrong(x, "esp_strategy_set: %s: %.200s", esp_status_name(s), esp_last_error(x->ctx));
    free(text);
}

static inline esp_status train(self *x) {
    const plan *p = x->p;
    const int small = p->kind == DISK && is_victim(x) && disk_small(x);
    esp_status s = ESP_OK;
    for (uint32_t k = 0; !s && (!p->steps || k < p->steps); k++) {
        if (p->kind == ORDER && p->variant == CLOSE_EARLY && is_victim(x) && k == p->step) {
            atomic_store(&x->me->fault_ns, esp__now_ns());
            break;
        }
        s = train_step(x, k);
        if (!s && p->kind == DISK) disk_step(x, k, small);
        if (!s && p->kind == KILL_SAVE) s = save_step(x);
        if (!s && p->kind == MEMORY && p->variant == BEFORE_STRATEGY && k == p->step) change_strategy(x);
        if (s) break;
        atomic_store(&x->me->step, (int)k + 1);
        if (k + 1 == WARM_STEPS) atomic_store(&x->me->ready, 1);
    }
    return s;
}

/* ---- the rank ---- */
static inline void tell(self *x, esp_status s) {
    atomic_store(&x->me->returned_ns, esp__now_ns());
    snprintf(x->me->text, sizeof x->me->text, "%s", s ? esp_last_error(x->ctx) : "");
    if (s && x->ctx && atomic_load(&x->me->ready) && x->p->kind != ORDER && x->p->kind != PUSH) {
        const esp_stream here = ESP_ZERO; /* later calls must fail too */
        const esp_status then = esp_push(x->ctx, 0, x->grad[0], here);
        if (then != s && x->p->kind != KILL_SAVE)
            wrong(x, "after %s a push returns %s", esp_status_name(s), esp_status_name(then));
    }
    atomic_store(&x->me->status, s);
}

static inline void first_job(self *x) {
    esp_status s;
    fault_before_open(x);
    s = job_open(x, x->b->root, x->p->timeout_ms);
    if (!s) fault_before_start(x);
    if (!s) s = job_start(x);
    if (!s) s = train(x);
    tell(x, s);
    esp_close(x->ctx);
    x->ctx = NULL;
    atomic_store(&x->me->closed_ns, esp__now_ns());
    fault_over(x);
}

static inline void second_job(self *x) {
    char root[80];
    esp_status s;
    int survivors = 0, own = x->ids[x->rank];
    while (!(survivors = atomic_load(&x->b->survivors))) usleep(500);
    if (!(survivors >> own & 1)) return;
    x->second = 1;
    x->size = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        if (!(survivors >> r & 1)) continue;
        if (r == own) x->rank = x->size;
        x->ids[x->size++] = r;
    }
    snprintf(root, sizeof root, "%s-2", x->b->root);
    s = job_open(x, root, 20000);
    if (!s) s = job_start(x);
    for (uint32_t k = 0; k < 3 && !s; k++) s = train_step(x, k);
    if (s) wrong(x, "the second job: %.300s", esp_last_error(x->ctx));
    esp_close(x->ctx);
    x->ctx = NULL;
    atomic_store(&x->me->again, 1);
}

/* Checks that descriptors, threads, mappings of shared memory and children are as before the first job. A thread may
 * stay in /proc for a moment after it has ended. */
static inline void left_behind(self *x, int files, int threads) {
    char line[512];
    int more = 0;
    for (int i = 0; i < 200 && (more = test_count_files("/proc/self/task", "") - threads) > 0; i++) usleep(5000);
    if (more > 0) wrong(x, "%d threads are left", more);
    more = test_count_files("/proc/self/fd", "") - files;
    if (more) wrong(x, "%d descriptors are left", more);
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, "memfd:") || strstr(line, "/dev/shm/")) wrong(x, "mapped: %.200s", line);
    if (f) fclose(f);
    if (waitpid(-1, NULL, WNOHANG) != -1) wrong(x, "a child is left");
}

static inline int32_t rank_from_environment(void) {
    static const char *const names[] = {"ESPRESSO_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return atoi(getenv(names[i]));
    return -1;
}

/* Runs one rank. `path` is the mapped file, and `number` the rank, or "-" if a launcher has set an environment
 * variable. */
static inline int rank_main(const char *path, const char *number) {
    board *b = board_map(path, 0);
    self x;
    memset(&x, 0, sizeof x);
    x.rank = *number == '-' ? rank_from_environment() : atoi(number);
    if (!b || x.rank < 0 || x.rank >= RANKS) return 2;
    if (b->launched)
        setenv("ESPRESSO_MACHINE", x.rank < RANKS / 2 ? "chaos0" : "chaos1", 1); /* replaces the launcher's setting */
    else
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(90);
    signal(SIGXFSZ, SIG_IGN); /* otherwise RLIMIT_FSIZE kills the process */
    x.b = b;
    x.p = &b->plan;
    x.me = &b->rank[x.rank];
    x.size = RANKS;
    for (int32_t r = 0; r < RANKS; r++) x.ids[r] = r;
    for (uint32_t t = 0; t < TENSORS; t++) x.grad[t] = (float *)malloc(tensor_count[t] * sizeof(float));
    atomic_store(&x.me->pid, (int)getpid());
    const int files = test_count_files("/proc/self/fd", ""), threads = test_count_files("/proc/self/task", "");
    const int own = x.rank;
    first_job(&x);
    if (!b->launched) second_job(&x);
    if (!b->launched) left_behind(&x, files, threads);
    atomic_store(&b->rank[own].ended, 1);
    for (uint32_t t = 0; t < TENSORS; t++) free(x.grad[t]);
    return 0;
}
#endif
