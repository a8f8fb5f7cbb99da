/* test_shrink.c kills or stops ranks while they train, and the others go on with esp_shrink. The loss of a rank is |w -
 * c|^2 / 2 with a point c of its own, so that training converges to the mean of the remaining ranks' points. */
/* runs: quiet no-tsan: ranks are processes: context/test_shrink has threads */
#include "tests/lib/test.h"
#include "tests/lib/processes.h"

enum { N = 6000, TENSORS = 3, ALL = N * TENSORS, STEPS = 60 };

typedef struct outcome {
    atomic_int steps, shrinks, rank, size, machines, bad;
    atomic_ullong hash;
    double distance;
    char text[600];
} outcome;
typedef struct page {
    outcome of[MAX_PROCS];
    float sent[2][MAX_PROCS][ALL];
} page;

/* The job under test. Child processes inherit it. */
static struct {
    const char *codec, *strategy, *backend, *progress;
    int32_t machine[MAX_PROCS];
    uint32_t timeout_ms, flags;
    int32_t dies[MAX_PROCS];     /* step in which a rank dies, or 0 */
    int32_t delay_us[MAX_PROCS]; /* time from its esp_shrink to its death, or 0 */
    bool after_regroup;          /* that time begins when esp_shrink has found who is left */
    int32_t stops;               /* rank that stops in step 20, or -1 */
    bool forgets;                /* ranks above 1 do not know which rank does not answer when they call esp_shrink */
    int steps;
    double lr;
} job;
static page *shared;

static void job_begin(procs *p, int32_t size, int32_t per_machine, const char *codec, const char *strategy) {
    static int turn;
    memset(&job, 0, sizeof job);
    for (int r = 0; r < MAX_PROCS; r++) job.machine[r] = 1 + r / per_machine;
    job.codec = codec;
    job.strategy = strategy;
    job.backend = "shm";
    job.progress = turn++ % 2 ? "threads" : "caller";
    job.timeout_ms = 20000;
    job.stops = -1;
    job.steps = STEPS;
    job.lr = 0.25;
    procs_init(p, size);
    memset(shared, 0, sizeof shared->of);
}

static float point(int32_t origin, int i) { return (float)((i * 7 + origin * 5) % 64 - 20); }

static esp_ctx *open_job(procs *p, int32_t rank, char *text) {
    static char name[TENSORS][16];
    esp_ctx *ctx = NULL;
    esp_config cfg = {.rank = rank,
                      .size = p->size,
                      .machine = job.machine[rank],
                      .root = p->root,
                      .backend = job.backend,
                      .codec = job.codec,
                      .strategy = job.strategy,
                      .progress = job.progress,
                      .timeout_ms = job.timeout_ms,
                      .flags = job.flags,
                      .cpu_workers = 1,
                      .log_level = ESP_LOG_ERROR};
    if (esp_open(&cfg, &ctx)) {
        snprintf(text, 600, "open: %.500s", esp_last_error(NULL));
        return NULL;
    }
    for (int i = 0; i < TENSORS; i++) {
        esp_tensor_desc d = ESP_ZERO;
        uint32_t id;
        snprintf(name[i], sizeof name[i], "layer%d", i);
        d.name = name[i];
        d.count = N;
        esp_tensor_add(ctx, &d, &id);
    }
    if (esp_start(ctx) == ESP_OK) return ctx;
    snprintf(text, 600, "start: %.500s", esp_last_error(ctx));
    esp_close(ctx);
    return NULL;
}

typedef struct killer {
    esp_ctx *ctx;
    int32_t size; /* waits until the job's size is another one */
    useconds_t us;
} killer;
static void *die_later(void *arg) {
    const killer *k = arg;
    while (*(volatile int32_t *)&k->ctx->job.size == k->size) {
    }
    usleep(k->us);
    raise(SIGKILL);
    return NULL;
}

static esp_status push_all(esp_ctx *ctx, int32_t origin, float *g, int step) {
    const esp_stream here = ESP_ZERO;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < TENSORS && !s; i++) {
        s = esp_push(ctx, i, g + i * N, here);
        if (i == 1 && job.dies[origin] && step == job.dies[origin]) raise(SIGKILL);
        if (i == 1 && job.stops == origin && step == 20) raise(SIGSTOP);
    }
    return s ? s : esp_wait_all(ctx);
}

/* Returns whether the gradient g is the mean of w - point(r) over the remaining ranks r. w is equal on all of them. */
static int is_mean(procs *p, const float *g, const float *w, const uint8_t *left) {
    int n = 0;
    for (int32_t r = 0; r < p->size; r++) n += left[r];
    for (int i = 0; i < ALL; i++) {
        double sum = 0;
        for (int32_t r = 0; r < p->size; r++) sum += left[r] ? (double)(w[i] - point(r, i)) : 0.0;
        if (fabs((double)g[i] - sum / n) > 1e-5 * (fabs(sum / n) + 1)) return 0;
    }
    return 1;
}

/* Finds the remaining ranks by an exchange of their original numbers. */
static esp_status who_is_left(procs *p, esp_ctx *ctx, int32_t origin, uint8_t *left) {
    float here[MAX_PROCS] = {0};
    here[origin] = 1;
    const esp_status s = esp_allreduce(ctx, here, MAX_PROCS);
    for (int32_t r = 0; r < p->size; r++) left[r] = here[r] > 0;
    return s;
}

static esp_status go_on(procs *p, esp_ctx *ctx, int32_t origin, float *w, int *step, uint8_t *left) {
    pthread_t thread;
    killer k = {ctx, job.after_regroup ? ctx->job.size : -1, (useconds_t)job.delay_us[origin]};
    if (job.delay_us[origin]) pthread_create(&thread, NULL, die_later, &k);
    if (job.forgets && ctx->job.rank > 1) ctx->job.silent = -1;
    esp_status s = esp_shrink(ctx);
    if (job.delay_us[origin]) pause();
    if (!s) s = esp_broadcast(ctx, w, ALL * sizeof *w, 0);
    if (!s) s = esp_broadcast(ctx, step, sizeof *step, 0);
    if (!s) s = who_is_left(p, ctx, origin, left);
    return s;
}

static void body(procs *p, int32_t origin) {
    outcome *out = &shared->of[origin];
    float *w = calloc(ALL, sizeof *w), *g = calloc(ALL, sizeof *g);
    uint8_t left[MAX_PROCS];
    const int files = test_count_files("/proc/self/fd", "");
    esp_ctx *ctx = open_job(p, origin, out->text);
    esp_status s = ctx ? ESP_OK : ESP_E_STATE;
    int tries = 0;
    memset(left, 1, sizeof left);
    for (int step = 0; step < job.steps && !s;) {
        for (int i = 0; i < ALL; i++) g[i] = w[i] - point(origin, i);
        s = push_all(ctx, origin, g, step);
        if (!s && !job.codec && !is_mean(p, g, w, left)) atomic_fetch_add(&out->bad, 1);
        /* compressed gradients do not become 0, so the learning rate must */
        const float lr = (float)(job.codec ? job.lr / (1 + step / 20.0) : job.lr);
        for (int i = 0; i < ALL && !s; i++) w[i] -= lr * g[i];
        if (!s) atomic_store(&out->steps, ++step);
        while ((s == ESP_E_PEER || s == ESP_E_TIMEOUT) && tries++ < 4) {
            s = go_on(p, ctx, origin, w, &step, left);
            if (!s) atomic_fetch_add(&out->shrinks, 1);
            if (s) snprintf(out->text, sizeof out->text, "%.500s", esp_last_error(ctx));
            if (s && strstr(out->text, "other ranks")) break;
            if (s && strstr(out->text, "must not both go on")) break;
        }
    }
    if (s && ctx) snprintf(out->text, sizeof out->text, "%.500s", esp_last_error(ctx));
    /* waits for slower ranks, which would lose this one in their last step if it closed now */
    for (int32_t r = 0, ms = 0; r < p->size && !s && ms < 10000; r++)
        for (; left[r] && atomic_load(&shared->of[r].steps) < job.steps && ms < 10000; ms++) usleep(1000);
    for (int i = 0; i < ALL; i++) {
        double best = 0, n = 0;
        for (int32_t r = 0; r < p->size; r++) best += left[r] ? point(r, i) : 0, n += left[r];
        out->distance = fmax(out->distance, fabs((double)w[i] - best / n));
    }
    atomic_store(&out->hash, esp__hash64(ESP__HASH0, w, ALL * sizeof *w));
    if (ctx) {
        atomic_store(&out->rank, esp_rank(ctx));
        atomic_store(&out->size, esp_size(ctx));
        atomic_store(&out->machines, esp_machines(ctx));
    }
    esp_close(ctx);
    if (ctx && test_count_files("/proc/self/fd", "") != files)
        snprintf(out->text, sizeof out->text, "files are left open"), s = s ? s : ESP_E_STATE;
    free(w);
    free(g);
    atomic_store(&p->b->rank[origin].status, s);
}

/* Checks that the ranks in `left` have trained to the end together. */
static void expect_left(procs *p, const char *left, double distance) {
    int32_t n = 0, first = -1, rank = 0;
    for (int32_t r = 0; r < p->size; r++) n += left[r] == '1';
    for (int32_t r = 0; r < p->size; r++)
        if (left[r] == '1' && atomic_load(&p->b->rank[r].status))
            fail_msg("rank %d: status %d after step %d: %s", (int)r, atomic_load(&p->b->rank[r].status),
                     atomic_load(&shared->of[r].steps), shared->of[r].text);
    for (int32_t r = 0; r < p->size; r++) {
        const outcome *o = &shared->of[r];
        if (left[r] != '1') continue;
        if (first < 0) first = r;
        assert_int_equal(atomic_load(&o->steps), job.steps);
        assert_int_equal(atomic_load(&o->bad), 0);
        assert_int_equal(atomic_load(&o->size), n);
        assert_int_equal(atomic_load(&o->rank), rank++);
        assert_true(atomic_load(&o->hash) == atomic_load(&shared->of[first].hash));
        if (o->distance > distance) fail_msg("rank %d is %g from the optimum", (int)r, o->distance);
    }
}

static void run(procs *p) {
    procs_start_all(p, body);
    procs_wait(p);
}

static void lose(int32_t size, int32_t per_machine, const char *codec, const char *strategy, int32_t victim,
                 double distance) {
    procs p;
    char left[MAX_PROCS + 1] = "11111111";
    job_begin(&p, size, per_machine, codec, strategy);
    job.dies[victim] = 20;
    left[victim] = '0';
    run(&p);
    expect_left(&p, left, distance);
    for (int32_t r = 0; r < size; r++)
        if (r != victim) assert_int_equal(atomic_load(&shared->of[r].shrinks), 1);
    assert_int_equal(procs_end(&p), 0);
}

TEST(test_each_rank_flat) {
    for (int32_t victim = 0; victim < 4; victim++) lose(4, 4, NULL, NULL, victim, 1e-3);
}
/* Two machines of two ranks lose one rank. With machines of different sizes only strategies without machine levels
 * remain. */
TEST(test_each_rank_of_two_machines) {
    for (int32_t victim = 0; victim < 4; victim++) lose(4, 2, NULL, NULL, victim, 1e-3);
    for (int32_t victim = 0; victim < 4; victim += 3) lose(4, 2, "topk:ratio=0.5", NULL, victim, 1.0);
}
/* One machine has 3 ranks and another one rank, which is lost. A single machine is left. */
TEST(test_last_rank_of_a_machine) {
    procs p;
    job_begin(&p, 4, 3, "fp16", NULL);
    job.dies[3] = 20;
    run(&p);
    expect_left(&p, "1110", 1.0);
    assert_int_equal(atomic_load(&shared->of[0].machines), 1);
    assert_int_equal(procs_end(&p), 0);
}
TEST(test_compressed) {
    lose(4, 4, "topk:ratio=0.5", NULL, 0, 1.0);
    lose(4, 4, "int8", NULL, 3, 1.0);
    lose(3, 1, "topk:ratio=0.5", NULL, 1, 1.0);
}
TEST(test_one_rank_is_left) {
    lose(2, 2, NULL, NULL, 0, 1e-3);
    lose(2, 1, NULL, NULL, 1, 1e-3);
}
TEST(test_one_after_the_other) {
    procs p;
    job_begin(&p, 4, 2, NULL, NULL);
    job.dies[2] = 15;
    job.dies[0] = 30; /* leaves one rank on each machine, as many as on the other */
    run(&p);
    expect_left(&p, "0101", 1e-2);
    assert_int_equal(atomic_load(&shared->of[1].shrinks), 2);
    assert_int_equal(atomic_load(&shared->of[1].machines), 2);
    assert_int_equal(procs_end(&p), 0);

    job_begin(&p, 5, 5, "topk:ratio=0.5", NULL);
    job.dies[0] = 15;
    job.dies[1] = 25;
    job.dies[4] = 26;
    run(&p);
    expect_left(&p, "00110", 1.0);
    assert_int_equal(procs_end(&p), 0);
}
TEST(test_two_at_once) {
    procs p;
    job_begin(&p, 4, 2, NULL, NULL);
    job.dies[0] = job.dies[1] = 15;
    run(&p);
    expect_left(&p, "0011", 1e-3);
    assert_int_equal(procs_end(&p), 0);
}
/* Another rank dies inside esp_shrink. It may be the one to which the others connect, and it may die while backends
 * connect. */
TEST(test_during_the_shrink) {
    for (int k = 0; k < 36; k++) {
        procs p;
        char left[] = "11101";
        const int32_t second = k % 3;
        job_begin(&p, 5, 5, NULL, NULL);
        job.dies[3] = 10;
        job.after_regroup = k >= 12;
        job.delay_us[second] = 1 + (k >= 12 ? (k - 12) / 3 * 30 : k * k * 40);
        left[second] = '0';
        run(&p);
        expect_left(&p, left, 1e-3);
        assert_int_equal(procs_end(&p), 0);
    }
}

/* The job goes on without a stopped rank. If that rank runs again, it gets an error, and the others notice nothing. */
static void stop_one(int32_t victim, const char *left, bool forgets) {
    procs p;
    uint64_t end = esp__now_ns() + 30000000000u;
    job_begin(&p, 4, 4, NULL, NULL);
    job.stops = victim;
    job.forgets = forgets;
    job.timeout_ms = 600;
    job.steps = 500;
    job.lr = 0.03;
    procs_start_all(&p, body);
    const int32_t other = victim == 1 ? 2 : 1;
    while (atomic_load(&shared->of[other].shrinks) == 0 && esp__now_ns() < end) usleep(5000);
    const int went_on = atomic_load(&shared->of[other].shrinks);
    kill(p.pid[victim], SIGCONT);
    procs_wait(&p);
    assert_int_equal(went_on, 1);
    expect_left(&p, left, 1e-2);
    const outcome *o = &shared->of[victim];
    print_message("rank %d, stopped: %s\n", (int)victim, o->text);
    assert_int_equal(atomic_load(&p.b->rank[victim].status), ESP_E_PEER);
    assert_non_null(strstr(o->text, "other ranks"));
    assert_non_null(strstr(o->text, "close this context"));
    assert_int_equal(procs_end(&p), 0);
}
TEST(test_stopped) {
    stop_one(2, "1101", false);
    stop_one(0, "0111", false);
}
/* Ranks that do not know that rank 0 is stopped wait for it first. Rank 1 waits longer. */
TEST(test_stopped_unknown) { stop_one(0, "0111", true); }
/* Rank 1 of 2 cannot know whether rank 0 has died, so it must not go on alone: rank 0 might do the same. */
TEST(test_too_few) {
    procs p;
    job_begin(&p, 2, 2, NULL, NULL);
    job.stops = 0;
    job.timeout_ms = 500;
    procs_start_all(&p, body);
    child_wait(p.pid[1]), p.pid[1] = 0;
    kill(p.pid[0], SIGKILL);
    kill(p.pid[0], SIGCONT);
    assert_int_equal(atomic_load(&p.b->rank[1].status), ESP_E_TIMEOUT);
    if (!strstr(shared->of[1].text, "must not both go on")) fail_msg("%s", shared->of[1].text);
    assert_int_equal(procs_end(&p), 0);
}

/* Strategy auto must measure and choose again after the loss of a rank. */
TEST(test_auto) {
    procs p;
    for (int32_t victim = 0; victim < 3; victim += 2) {
        job_begin(&p, 3, 3, "fp16", "auto:steps=5");
        job.dies[victim] = 30;
        job.steps = 70;
        run(&p);
        expect_left(&p, victim ? "110" : "011", 1.0);
        assert_int_equal(procs_end(&p), 0);
    }
}

/* ---- residuals --------------------------------------------------------------------------------------------------- */
static void residuals(const esp_ctx *ctx, float *out) {
    memset(out, 0, ALL * sizeof *out);
    for (uint32_t i = 0; i < ctx->active.n_feedback; i++) {
        const esp__feedback *f = &ctx->active.feedback[i];
        if (f->residual) memcpy(out + f->place.first * N + f->offset, f->residual, f->count * sizeof *out);
    }
    for (uint32_t i = 0; i < TENSORS; i++)
        for (int k = 0; k < N && ctx->model.tensors[i].pending_residual; k++)
            out[i * N + (uint32_t)k] += ctx->model.tensors[i].pending_residual[k];
}

/* Runs a step, and computes what this rank has sent: gradient + old residual - new residual. */
static esp_status step_sends(esp_ctx *ctx, int32_t origin, int step, float *g, float *sent) {
    float *before = malloc(ALL * sizeof *before), *after = malloc(ALL * sizeof *after);
    residuals(ctx, before);
    for (int i = 0; i < ALL; i++) g[i] = sinf((float)(i * (origin + 2) + step * 31));
    for (int i = 0; i < ALL; i++) sent[i] = g[i] + before[i];
    const esp_status s = push_all(ctx, origin, g, step);
    residuals(ctx, after);
    for (int i = 0; i < ALL; i++) sent[i] -= after[i];
    free(before);
    free(after);
    return s;
}

static int near(float a, float b) { return fabsf(a - b) <= 1e-5f * (fabsf(a) + fabsf(b) + 1.0f); }

static void body_residuals(procs *p, int32_t origin) {
    outcome *out = &shared->of[origin];
    float *g = calloc(ALL, sizeof *g), *before = calloc(ALL, sizeof *g), *after = calloc(ALL, sizeof *g);
    esp_ctx *ctx = open_job(p, origin, out->text);
    esp_status s = ctx ? ESP_OK : ESP_E_STATE;
    for (int step = 0; step < 20 && !s; step++) s = step_sends(ctx, origin, step, g, shared->sent[0][origin]);
    if (!s) s = step_sends(ctx, origin, 20, g, shared->sent[0][origin]);
    if (s == ESP_E_PEER) {
        residuals(ctx, before);
        s = esp_shrink(ctx);
        residuals(ctx, after);
        if (memcmp(before, after, ALL * sizeof *before) != 0) atomic_fetch_add(&out->bad, 1);
        double size = 0;
        for (int i = 0; i < ALL; i++) size += (double)fabsf(before[i]);
        if (size < 1) atomic_fetch_add(&out->bad, 100);
    } else if (ctx) {
        snprintf(out->text, sizeof out->text, "the loss was not noticed: %d", s);
        s = ESP_E_STATE;
    }
    for (int step = 21; step < 25 && !s; step++) s = step_sends(ctx, origin, step, g, shared->sent[1][origin]);
    if (!s) s = esp_barrier(ctx);
    for (int i = 0; i < ALL && !s; i++) {
        float sum = 0;
        for (int32_t r = 0; r < p->size; r++)
            if (!job.dies[r]) sum += shared->sent[1][r][i];
        if (!near(g[i], sum / (float)esp_size(ctx))) atomic_fetch_add(&out->bad, 10000);
    }
    if (s && ctx && !*out->text) snprintf(out->text, sizeof out->text, "%.500s", esp_last_error(ctx));
    esp_close(ctx);
    atomic_store(&p->b->rank[origin].status, s);
}

static void keep_residuals(const char *codec, int32_t per_machine, int32_t victim, uint32_t flags) {
    procs p;
    job_begin(&p, 4, per_machine, codec, NULL);
    job.dies[victim] = 20;
    job.flags = flags;
    procs_start_all(&p, body_residuals);
    procs_wait(&p);
    for (int32_t r = 0; r < p.size; r++) {
        if (r == victim) continue;
        if (atomic_load(&p.b->rank[r].status)) fail_msg("rank %d: %s", (int)r, shared->of[r].text);
        assert_int_equal(atomic_load(&shared->of[r].bad), 0);
    }
    assert_int_equal(procs_end(&p), 0);
}
TEST(test_residuals) {
    keep_residuals("topk:ratio=0.05", 4, 1, 0);
    keep_residuals("topk:ratio=0.05", 4, 0, ESP_DISCARDABLE);
    keep_residuals("efsignsgd", 4, 3, 0);
    /* Here, ranks keep residuals of sums over their machine. After the loss there are no such sums. */
    keep_residuals("topk:ratio=0.05", 2, 2, 0);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
TEST(test_refuses) {
    esp_tensor_desc d = ESP_ZERO;
    esp_ctx *ctx;
    uint32_t id;
    esp_config cfg = {.size = 1, .log_level = ESP_LOG_ERROR};
    assert_int_equal(esp_shrink(NULL), ESP_E_ARG);
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    assert_int_equal(esp_shrink(ctx), ESP_E_STATE); /* before esp_start */
    d.name = "w";
    d.count = 100;
    d.flags = ESP_SHARD;
    esp_tensor_add(ctx, &d, &id);
    assert_int_equal(esp_start(ctx), ESP_OK);
    assert_int_equal(esp_shrink(ctx), ESP_E_STATE);
    assert_non_null(strstr(esp_last_error(ctx), "no rank was lost"));
    esp__fatal(ctx, ESP_E_CORRUPT, "a payload was damaged");
    assert_int_equal(esp_shrink(ctx), ESP_E_STATE);
    assert_non_null(strstr(esp_last_error(ctx), "failed by itself"));
    ctx->health.fatal = ESP_E_PEER;
    assert_int_equal(esp_shrink(ctx), ESP_E_UNSUPPORTED);
    assert_non_null(strstr(esp_last_error(ctx), "sharded"));
    esp_backend narrow = *ctx->config.plans[0].backend;
    const esp_backend *was = ctx->config.plans[0].backend;
    narrow.caps &= ~(uint64_t)ESP_BACKEND_REOPENS;
    ctx->config.plans[0].backend = &narrow;
    assert_int_equal(esp_shrink(ctx), ESP_E_UNSUPPORTED);
    assert_non_null(strstr(esp_last_error(ctx), "cannot be opened again"));
    ctx->config.plans[0].backend = was;
    esp_close(ctx);
}

int main(void) {
    shared = test_shared(sizeof *shared);
    return test_main();
}
