/* ranks.c: runs a check of a backend once per rank: as processes, or as threads where a backend wants that. Ranks meet in shared
 * memory, so that nothing of the library is needed. Knows the backend table only. */

enum { CHECK_RANKS = 4, CHECK_OOB = 65536, CHECK_WAIT_S = 20 };

typedef struct check_meet {
    pthread_barrier_t barrier;
    uint8_t oob[CHECK_RANKS][CHECK_OOB];
    int32_t failed;
    char text[CHECK_SAID];
    uint64_t hash[CHECK_RANKS];
} check_meet;

typedef struct check_backend_target {
    const esp_backend *table;
    const esp_host *host;
    const char *params;
    int threads; /* 1: ranks are threads of one process */
} check_backend_target;

typedef struct check_rank {
    const check_backend_target *t;
    check_meet *meet;
    int32_t rank, size;
    void *comm;
    void (*run)(struct check_rank *r);
} check_rank;

/* The first failure counts; the rank goes on to its end. Returns 1. */
static int check_rank_fail(check_rank *r, const char *fmt, ...) ESP__PRINTF(2, 3);
static int check_rank_fail(check_rank *r, const char *fmt, ...) {
    va_list args;
    int32_t none = 0;
    if (!__atomic_compare_exchange_n(&r->meet->failed, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
    int n = snprintf(r->meet->text, CHECK_SAID, "rank %d of %d: ", (int)r->rank, (int)r->size);
    va_start(args, fmt);
    vsnprintf(r->meet->text + n, CHECK_SAID - (size_t)n, fmt, args);
    va_end(args);
    return 1;
}
static int check_failed(const check_rank *r) { return __atomic_load_n(&r->meet->failed, __ATOMIC_SEQ_CST) != 0; }

static esp_status check_oob(void *user, const void *in, void *out, uint64_t bytes) {
    check_rank *r = user;
    if (bytes > CHECK_OOB) return ESP_E_ARG;
    memcpy(r->meet->oob[r->rank], in, (size_t)bytes);
    pthread_barrier_wait(&r->meet->barrier);
    for (int32_t q = 0; q < r->size; q++) memcpy((uint8_t *)out + (uint64_t)q * bytes, r->meet->oob[q], (size_t)bytes);
    pthread_barrier_wait(&r->meet->barrier);
    return ESP_OK;
}

static int check_rank_open(check_rank *r) {
    static const int32_t machine[CHECK_RANKS] = {0};
    int32_t place[CHECK_RANKS * 2];
    esp_group g;
    memset(&g, 0, sizeof g);
    for (int32_t q = 0; q < r->size; q++) place[2 * q] = q, place[2 * q + 1] = 0;
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

/* Waits for a request, at most CHECK_WAIT_S. */
static esp_status check_rank_wait(check_rank *r, void *req) {
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
static esp_status check_rank_coll(check_rank *r, const esp_coll *c) {
    const esp_stream cpu = {{ESP_CPU, 0}, NULL};
    void *req = NULL;
    esp_status s = r->t->table->start(r->comm, c, cpu, &req);
    return s ? s : check_rank_wait(r, req);
}

static void *check_rank_main(void *arg) {
    check_rank *r = arg;
    if (!check_rank_open(r)) {
        r->run(r);
        if (r->comm) r->t->table->close(r->comm);
    }
    return NULL;
}

/* Runs `run` on n ranks. The caller is the process of one check: a failure of any rank ends it. */
static void check_ranks(const check_backend_target *t, int32_t n, void (*run)(check_rank *r)) {
    check_meet *meet = mmap(NULL, sizeof *meet, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check_rank r[CHECK_RANKS];
    pthread_t thread[CHECK_RANKS];
    pid_t child[CHECK_RANKS];
    pthread_barrierattr_t shared;
    if (meet == MAP_FAILED) check_fail("no memory for the check: %s", strerror(errno));
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&meet->barrier, &shared, (unsigned)n);
    for (int32_t q = 0; q < n; q++) {
        r[q] = (check_rank){t, meet, q, n, NULL, run};
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
