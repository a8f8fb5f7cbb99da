/* test_soak.c: a job of 4 to 8 ranks in an outer loop, which ranks join and which they leave by SIGKILL, at random
 * times. After each round, each rank compares its parameters, bit by bit, with those of all ranks simulated: ranks push
 * whole numbers, whose sum is exact in any order. SOAK_SECONDS sets the duration (60 in make test-all), SOAK_PACE how
 * many times as long the inner steps (1 ms) and the pauses between joins and losses (15 ms in the mean) take. */
/* runs: quiet long no-tsan: ranks are processes */
#include "tests/lib/test.h"
#include "tests/lib/processes.h"

enum { N = 3000, LEAST = 4, MOST = 8, ORIGINS = 1 << 16 };
static const esp_stream here;

typedef struct page {
    atomic_int stop, rounds, bad, changes, size;
    atomic_int member[MOST], done[MOST]; /* by slot: the rank takes part; it has ended well */
    atomic_long memory[2];               /* KiB of the rank in slot 1, which is never killed, early and last */
    atomic_int files[2], early;
    char root[64], text[MOST][400];
} page;
static page *shared;

/* How far a rank moves parameter i in a round. */
static float step_of(int32_t origin, int round, int i) {
    uint64_t seed = (uint64_t)origin * 1000003u + (uint64_t)round * 7919u + (uint64_t)(i % 61);
    return (float)((int)(test_random64(&seed) % 2001u) - 1000);
}

typedef struct job {
    esp_ctx *ctx;
    int32_t slot, origin, members[MOST];
    int round;
    float w[N], before[N];
    uint64_t lost, joined;
    bool changed;
} job;

static long memory_kib(void) {
    char *text = file_text("/proc/self/status"), *at = text ? strstr(text, "VmRSS:") : NULL;
    const long kib = at ? strtol(at + 6, NULL, 10) : 0;
    free(text);
    return kib;
}

/* After a change: all ranks get rank 0's round, and learn who is there. */
static esp_status meet(job *j) {
    const int32_t n = esp_size(j->ctx);
    float ids[MOST] = {0}, theirs[N];
    if (n > MOST) return atomic_fetch_add(&shared->bad, 1), ESP_E_STATE;
    ids[esp_rank(j->ctx)] = (float)j->origin;
    esp_status s = esp_outer_sync(j->ctx, here); /* all have the anchors */
    if (!s) s = esp_broadcast(j->ctx, &j->round, sizeof j->round, 0);
    if (!s) s = esp_allreduce(j->ctx, ids, (uint64_t)n);
    memcpy(theirs, j->w, sizeof theirs);
    if (!s) s = esp_broadcast(j->ctx, theirs, sizeof theirs, 0);
    if (s) return s;
    for (int32_t r = 0; r < n; r++) j->members[r] = (int32_t)ids[r];
    if (memcmp(theirs, j->w, sizeof theirs)) atomic_fetch_add(&shared->bad, 1);
    j->changed = false;
    return ESP_OK;
}

static esp_status reconfigure(job *j) {
    esp_stats now = {.struct_size = sizeof now};
    esp_status s = esp_reconfigure(j->ctx);
    if (s || esp_stats_read(j->ctx, &now)) return s;
    j->changed |= now.ranks_lost != j->lost || now.ranks_joined != j->joined;
    if (esp_rank(j->ctx) == 0)
        atomic_fetch_add(&shared->changes, (int)(now.ranks_lost - j->lost + now.ranks_joined - j->joined));
    j->lost = now.ranks_lost, j->joined = now.ranks_joined;
    return ESP_OK;
}

static int pace(void) {
    const char *times = getenv("SOAK_PACE");
    return times ? atoi(times) : 0;
}

static esp_status one_round(job *j) {
    const int32_t n = esp_size(j->ctx);
    const float share = (float)(1.0 / (double)n);
    for (int i = 0; i < N; i++) {
        j->before[i] = j->w[i];
        j->w[i] = rintf(j->w[i] * 0.5f) + step_of(j->origin, j->round, i);
    }
    usleep((useconds_t)pace() * 1000u);
    const esp_status s = esp_outer_step(j->ctx, here);
    if (s) return s;
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int32_t r = 0; r < n; r++) sum += rintf(j->before[i] * 0.5f) + step_of(j->members[r], j->round, i);
        sum *= share;
        if (memcmp(&sum, &j->w[i], sizeof sum)) {
            if (!atomic_fetch_add(&shared->bad, 1))
                fprintf(stderr, "round %d, parameter %d: %a, expected %a\n", j->round, i, (double)j->w[i], (double)sum);
            break;
        }
    }
    j->round++;
    return ESP_OK;
}

static void *die_later(void *arg) {
    esp_ctx *ctx = arg;
    uint64_t seed = (uint64_t)getpid();
    while (*(volatile int32_t *)&ctx->job.size == 1) {
    }
    usleep((useconds_t)(test_random64(&seed) % 4000u));
    raise(SIGKILL);
    return NULL;
}

static esp_status begin(job *j, int32_t rank, int32_t size, bool dies) {
    const esp_config c = {.rank = rank,
                          .size = size,
                          .root = shared->root,
                          .machine = 1 + j->slot % 2,
                          .backend = "shm",
                          .timeout_ms = 60000,
                          .cpu_workers = 1,
                          .log_level = ESP_LOG_ERROR,
                          .flags = size ? 0 : ESP_JOIN};
    const esp_outer_desc o = {.every = 1};
    esp_stats now = {.struct_size = sizeof now};
    pthread_t killer;
    esp_status s = esp_open(&c, &j->ctx);
    if (!s) s = esp_outer_open(j->ctx, &o);
    if (!s) s = esp_tensor_add(j->ctx, &(esp_tensor_desc){.name = "w", .count = N}, NULL);
    if (dies) pthread_create(&killer, NULL, die_later, j->ctx);
    if (!s) s = esp_start(j->ctx);
    if (!s) s = esp_stats_read(j->ctx, &now);
    j->lost = now.ranks_lost, j->joined = now.ranks_joined;
    return s ? s : esp_outer_add(j->ctx, 0, j->w);
}

static void rank_main(int32_t slot, int32_t origin, int32_t size, bool dies) {
    static job j;
    j.slot = slot, j.origin = origin, j.changed = true;
    for (int i = 0; i < N; i++) j.w[i] = (float)(i % 13);
    esp_status s = begin(&j, size ? slot : 0, size, dies);
    if (!s) atomic_store(&shared->member[slot], 1);
    for (int go = 1, tries = 0; !s;) {
        if (j.changed) s = meet(&j);
        if (!s && esp_rank(j.ctx) == 0) go = !atomic_load(&shared->stop);
        if (!s) s = esp_broadcast(j.ctx, &go, sizeof go, 0);
        if (!s && !go) break;
        if (!s) s = one_round(&j);
        if (!s) tries = 0;
        if (!s && esp_rank(j.ctx) == 0)
            atomic_store(&shared->rounds, j.round), atomic_store(&shared->size, esp_size(j.ctx));
        if (!s) s = reconfigure(&j);
        while ((s == ESP_E_PEER || s == ESP_E_TIMEOUT) && tries++ < 10000) s = reconfigure(&j), j.changed = true;
        if (slot == 1 && !s && j.round % 64 == 0) {
            const int k = atomic_load(&shared->early);
            atomic_store(&shared->memory[!k], memory_kib());
            atomic_store(&shared->files[!k], test_count_files("/proc/self/fd", ""));
        }
    }
    if (s)
        snprintf(shared->text[slot], sizeof shared->text[slot], "status %d in round %d: %.300s", s, j.round,
                 esp_last_error(j.ctx));
    atomic_store(&shared->done[slot], s ? -1 : 1);
    esp_close(j.ctx);
    fflush(NULL);
    _exit(0);
}

static pid_t pids[MOST];
static int32_t n_origins;

static void begin_rank(int32_t slot, int32_t size, bool dies) {
    const int32_t origin = n_origins++ % ORIGINS;
    atomic_store(&shared->member[slot], 0);
    atomic_store(&shared->done[slot], 0);
    pids[slot] = child_fork(86400);
    if (!pids[slot]) rank_main(slot, origin, size, dies);
}

static int ended(int32_t slot) {
    if (!pids[slot] || waitpid(pids[slot], NULL, WNOHANG) == 0) return 0;
    pids[slot] = 0;
    atomic_store(&shared->member[slot], 0);
    return 1;
}

TEST(test_soak) {
    const char *seconds = getenv("SOAK_SECONDS");
    const double length = seconds ? atof(seconds) : getenv("TEST_ALL") ? 60 : 6, start = test_seconds();
    uint64_t seed = esp__now_ns();
    int joins = 0, kills = 0, last = -1;
    double moved = start;
    shared = test_shared(sizeof *shared);
    snprintf(shared->root, sizeof shared->root, "%s", test_root(false));
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int32_t r = 0; r < LEAST; r++) begin_rank(r, LEAST, false);
    for (int n = 0; n < LEAST; usleep(1000))
        for (int32_t r = n = 0; r < LEAST; r++) n += atomic_load(&shared->member[r]) || ended(r);
    while (test_seconds() - start < length || atomic_load(&shared->rounds) < 30) {
        const int32_t slot = (int32_t)(test_random64(&seed) % MOST);
        int members = 0;
        usleep((useconds_t)(test_random64(&seed) % 30000u) * (useconds_t)(pace() ? pace() : 1));
        for (int32_t r = 0; r < MOST; r++) {
            if (ended(r) && atomic_load(&shared->done[r]) < 0) fail_msg("slot %d: %s", (int)r, shared->text[r]);
            members += atomic_load(&shared->member[r]);
        }
        if (test_seconds() - start > length / 4) atomic_store(&shared->early, 1);
        if (atomic_load(&shared->rounds) != last) last = atomic_load(&shared->rounds), moved = test_seconds();
        if (test_seconds() - moved > 120) fail_msg("no round in 120 s, after round %d", last);
        if (atomic_load(&shared->bad)) break;
        if (!pids[slot]) {
            joins++;
            begin_rank(slot, 0, test_random64(&seed) % 4 == 0);
        } else if (slot != 1 && (members > LEAST || !atomic_load(&shared->member[slot]))) {
            if (test_random64(&seed) % 4) continue;
            kills++;
            kill(pids[slot], SIGKILL);
            atomic_store(&shared->member[slot], 0);
        }
    }
    atomic_store(&shared->stop, 1);
    /* Ranks that wait for the job end last: one that the job has just taken in must not die while the others hear that
     * they must stop, since some would hear it and leave, and the rest could not go on. */
    for (int left = 1; left; usleep(1000))
        for (int32_t r = left = 0; r < MOST; r++) left += atomic_load(&shared->member[r]) && !ended(r);
    for (int32_t r = 0; r < MOST; r++) {
        if (pids[r]) kill(pids[r], SIGKILL);
        if (pids[r]) child_wait(pids[r]);
        if (atomic_load(&shared->done[r]) < 0) fail_msg("slot %d: %s", (int)r, shared->text[r]);
    }
    print_message("%d rounds, %d joins and %d losses begun, %d seen; rank of slot 1: %ld to %ld KiB, %d to %d files\n",
                  atomic_load(&shared->rounds), joins, kills, atomic_load(&shared->changes),
                  atomic_load(&shared->memory[1]), atomic_load(&shared->memory[0]), atomic_load(&shared->files[1]),
                  atomic_load(&shared->files[0]));
    assert_int_equal(atomic_load(&shared->bad), 0);
    assert_true(atomic_load(&shared->changes) > 5);
#ifdef __SANITIZE_ADDRESS__ /* which keeps freed memory for a while */
    return;
#endif
    if (seconds) assert_true(atomic_load(&shared->memory[0]) < atomic_load(&shared->memory[1]) + 4096);
}
