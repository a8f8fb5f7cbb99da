/* ranks.c: runs a check of a backend on several ranks. They are processes or threads that connect through shared
 * memory. If a launcher such as mpirun has started this command several times, each process is a rank, and they connect
 * as in any job, since some backends need their launcher or several machines. */
#include "tools/check/check.h"
#include "espresso_impl/base/os.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>

check_launched check_job;

/* Records the check's first failure, and returns 1. The rank goes on, since others may wait for it. */
ESP__FN int check_rank_fail(check_rank *r, const char *fmt, ...) {
    va_list args;
    int32_t none = 0, *failed = check_job.peers ? &check_job.failed : &r->meet->failed;
    char *text = check_job.peers ? check_job.text : r->meet->text;
    if (!__atomic_compare_exchange_n(failed, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
    int n = snprintf(text, CHECK_TEXT_MAX, "rank %d of %d: ", (int)r->rank, (int)r->size);
    va_start(args, fmt);
    vsnprintf(text + n, CHECK_TEXT_MAX - (size_t)n, fmt, args);
    va_end(args);
    return 1;
}
ESP__FN bool check_failed(const check_rank *r) {
    return __atomic_load_n(check_job.peers ? &check_job.failed : &r->meet->failed, __ATOMIC_SEQ_CST) != 0;
}

ESP__FN void check_barrier(check_rank *r) {
    int failed[CHECK_MOST];
    if (!check_job.peers) {
        pthread_barrier_wait(&r->meet->barrier);
        return;
    }
    if (esp__peers_allgather(check_job.peers, check_job.members, r->size, &check_job.failed, failed, sizeof *failed))
        check_rank_fail(r, "the ranks of the check have lost each other: %s", esp_last_error(check_job.ctx));
    for (int32_t q = 0; q < r->size; q++)
        if (failed[q] == 1 && !check_job.failed) check_job.failed = 2;
}
/* Returns whether all ranks of the check pass the same value. */
ESP__FN bool check_same(check_rank *r, uint64_t value) {
    uint64_t all[CHECK_MOST];
    if (!check_job.peers) {
        r->meet->hash[r->rank] = value;
        check_barrier(r);
        return value == r->meet->hash[0];
    }
    all[0] = value;
    esp__peers_allgather(check_job.peers, check_job.members, r->size, &value, all, sizeof value);
    return value == all[0];
}

/* Returns the largest number of ranks that checks run on: 4, or as many as a launcher has started. */
ESP__FN int32_t check_ranks_most(void) { return check_job.peers ? check_job.size : CHECK_RANKS; }
ESP__FN int32_t check_ranks_next(int32_t n) {
    const int32_t most = check_ranks_most();
    return n < CHECK_RANKS && n < most ? n + 1 : n < most ? most : most + 1;
}
ESP__FN esp_status check_oob(void *user, const void *in, void *out, uint64_t bytes) {
    check_rank *r = user;
    if (check_job.peers) return esp__peers_allgather(check_job.peers, check_job.members, r->size, in, out, bytes);
    if (bytes > CHECK_OOB) return ESP_E_ARG;
    memcpy(r->meet->oob[r->rank], in, (size_t)bytes);
    pthread_barrier_wait(&r->meet->barrier);
    for (int32_t q = 0; q < r->size; q++) memcpy((uint8_t *)out + (uint64_t)q * bytes, r->meet->oob[q], (size_t)bytes);
    pthread_barrier_wait(&r->meet->barrier);
    return ESP_OK;
}

static int check_rank_open(check_rank *r) {
    int32_t place[CHECK_MOST * 2], local[CHECK_MOST] = {0};
    const int32_t *machine = check_job.machine;
    esp_group g;
    memset(&g, 0, sizeof g);
    for (int32_t q = 0; q < r->size; q++) place[2 * q] = local[machine[q]]++, place[2 * q + 1] = machine[q];
    r->local = place[2 * r->rank];
    g.struct_size = sizeof g;
    g.rank = r->rank, g.size = r->size;
    g.n_levels = 2;
    g.level_name = "flat";
    g.place = place;
    g.machine = machine;
    g.oob_allgather = check_oob;
    g.user = r;
    esp__plugin_detail_clear();
    const esp_status s = r->t->table->open(r->t->host, &g, r->t->params, &r->comm);
    if (s == ESP_OK) return 0;
    return check_rank_fail(r, "open failed with status %d: %s", (int)s,
                           *esp__plugin_detail() ? esp__plugin_detail() : "it logged no reason with ESP_LOG_ERROR");
}

/* Waits for a request. Fails the check after CHECK_WAIT_S seconds. */
ESP__FN esp_status check_rank_wait(check_rank *r, void *req) {
    const uint64_t end = esp__now_ns() + (uint64_t)CHECK_WAIT_S * 1000000000u;
    esp_status s;
    while ((s = r->t->table->test(r->comm, req)) == ESP_PENDING) {
        if (check_failed(r)) return ESP_E_PEER;
        if (esp__now_ns() > end) {
            check_rank_fail(r, "a collective did not end in %d s", (int)CHECK_WAIT_S);
            return ESP_E_TIMEOUT;
        }
        if (ESP_HAS(esp_backend, r->t->table, progress))
            r->t->table->progress(r->comm, 1000);
        else
            sched_yield();
    }
    return s;
}
static void *check_rank_main(void *arg) {
    check_rank *r = arg;
    if (!check_rank_open(r)) {
        r->run(r);
        if (r->comm) r->t->table->close(r->comm);
    }
    return NULL;
}

/* Does the work of check_ranks() for ranks that a launcher has started. All of them get the same result. */
static void check_ranks_launched(const check_backend_target *t, int32_t n, void (*run)(check_rank *r)) {
    check_rank r = {t, NULL, check_job.rank, n, 0, NULL, run};
    check_launched *j = &check_job;
    struct {
        int failed;
        char text[CHECK_TEXT_MAX];
    } mine, *all;
    if (n > j->size) check_skip("the launcher started %d ranks, and this needs %d", (int)j->size, (int)n);
    j->failed = 0;
    if (j->rank < n) check_rank_main(&r);
    memset(&mine, 0, sizeof mine);
    mine.failed = j->failed == 1;
    if (mine.failed) memcpy(mine.text, j->text, sizeof mine.text);
    if (!(all = calloc((size_t)j->size, sizeof *all))) abort();
    char text[CHECK_TEXT_MAX] = "";
    int failed = esp__peers_allgather(j->peers, NULL, j->size, &mine, all, sizeof mine) != ESP_OK;
    if (failed)
        snprintf(text, sizeof text, "the ranks of the check have lost each other: %.300s", esp_last_error(j->ctx));
    for (int32_t q = 0; q < j->size && !failed; q++)
        if ((failed = all[q].failed)) memcpy(text, all[q].text, sizeof text);
    free(all);
    if (failed) check_fail("%s", text);
}

/* Calls `run` on each of n ranks. If one fails, ends the process that runs this check. */
ESP__FN void check_ranks(const check_backend_target *t, int32_t n, void (*run)(check_rank *r)) {
    check_meet *meet = mmap(NULL, sizeof *meet, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check_rank r[CHECK_RANKS];
    pthread_t thread[CHECK_RANKS];
    pid_t child[CHECK_RANKS];
    pthread_barrierattr_t shared;
    if (check_job.peers) {
        munmap(meet, sizeof *meet);
        check_ranks_launched(t, n, run);
        return;
    }
    if (meet == MAP_FAILED) check_fail("no memory for the check: %s", strerror(errno));
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&meet->barrier, &shared, (unsigned)n);
    for (int32_t q = 0; q < n; q++) {
        r[q] = (check_rank){t, meet, q, n, 0, NULL, run};
        if (t->threads) {
            if (esp__thread_start(&thread[q], check_rank_main, &r[q])) check_fail("no thread could be started");
        } else if ((child[q] = fork()) == 0) {
            check_rank_main(&r[q]);
            _exit(0);
        }
    }
    int dead = -1;
    for (int32_t q = 0; q < n; q++) {
        int status = 0;
        if (t->threads)
            pthread_join(thread[q], NULL);
        else if (child[q] < 0 || waitpid(child[q], &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
            dead = q;
    }
    if (check_failed(&r[0])) check_fail("%s", meet->text);
    if (dead >= 0) check_fail("rank %d of %d crashed", dead, (int)n);
    munmap(meet, sizeof *meet);
}

/* Connects to the other ranks, if a launcher has started several. Returns 0, or -1 after it has printed an error. */
ESP__FN int check_launched_open(esp_ctx *ctx, const esp_backend *b, const char *params) {
    static char machines[CHECK_MOST][128];
    esp__comm_plan plans[ESP__SCOPES];
    char mine[128] = "";
    esp__where w;
    esp_config cfg;
    if (check_job.peers) return 0;
    memset(&cfg, 0, sizeof cfg);
    memset(plans, 0, sizeof plans);
    plans[ESP__FLAT].backend = b;
    snprintf(plans[ESP__FLAT].params, sizeof plans[ESP__FLAT].params, "%s", params);
    if (esp__env_where(&cfg, &w) || w.size < 2) return 0;
    if (w.size > CHECK_MOST) return -1;
    ctx->config.timeout_ms = CHECK_WAIT_S * 1000;
    if (esp__backends_meet(ctx, plans, &w, &cfg)) return -1;
    ctx->job.rank = ctx->base.rank = w.rank, ctx->job.size = ctx->base.size = w.size;
    if (esp__peers_open(ctx, &cfg, &w, NULL, &check_job.peers)) return -1;
    check_job.ctx = ctx, check_job.rank = w.rank, check_job.size = w.size;
    check_in_place = 1, check_pipe = 2;
    check_catch();
    snprintf(mine, sizeof mine, "%.127s", w.machine);
    if (esp__peers_allgather(check_job.peers, NULL, w.size, mine, machines, sizeof mine)) return -1;
    int32_t n = 0;
    for (int32_t q = 0; q < w.size; q++) {
        int32_t first = 0;
        while (strcmp(machines[first], machines[q]) != 0) first++;
        check_job.members[q] = q;
        check_job.machine[q] = first == q ? n++ : check_job.machine[first];
    }
    return 0;
}
ESP__FN void check_launched_close(void) {
    if (check_job.peers) esp__peers_close(check_job.peers, NULL, 0, NULL, NULL);
    check_job.peers = NULL;
}
