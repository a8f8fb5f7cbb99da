/* test_errors.c checks that sampled compression errors are exact, and that sampling does not change results. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "tests/lib/allocations.h"
#include "espresso_impl/observe/errors.h"

enum { N = 1000, TENSORS = 3, STEPS = 12 };
static esp_stream here;

static void run(int32_t size, int32_t per_machine, void (*body)(esp_ctx *, void *), void *user, const char *codec) {
    RUN_RANKS(.size = size, .per_machine = per_machine, .body = body, .user = user, .config.codec = codec);
}

/* Adds tensors of N, N + 1, ... elements. `sampling` turns on the measuring of compression errors. */
static void start(esp_ctx *ctx, const char *option, const char *strategy, int sampling) {
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", t);
        esp_tensor_desc d = {.name = name, .count = N + t, .option = option};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
    ctx->config.sample_errors = sampling;
    CHECK(esp_start(ctx) == ESP_OK);
    if (!strategy) strategy = esp_strategy_text(ctx);
    CHECK(esp_strategy_set(ctx, strategy) == ESP_OK);
    CHECK((esp__errors_of(ctx) != NULL) == sampling);
}

static float gradient(int rank, int step, uint32_t tensor, uint64_t i) {
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)(rank * 7919 + step * 104729) + tensor * 1299709u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    return ((float)(h % 20001u) - 10000.0f) / 1000.0f;
}

static void fill(esp_ctx *ctx, int step, float *g) {
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < N + t; i++) g[t * 2 * N + i] = gradient(esp_rank(ctx), step, t, i);
}

static void step(esp_ctx *ctx, float *g) {
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(esp_push(ctx, t, g + t * 2 * N, here) == ESP_OK);
    CHECK(esp_wait_all(ctx) == ESP_OK);
}

static esp_tensor_stats stats(esp_ctx *ctx, uint32_t t) {
    esp_tensor_stats s = {sizeof s, 0, -1.0, -1.0};
    CHECK(esp_tensor_stats_read(ctx, t, &s) == ESP_OK);
    return s;
}

static double square(const float *x, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}
static int close_to(double a, double b) { return fabs(a - b) <= 1e-6 * (fabs(a) + fabs(b)); }

/* ---- errors of topk, compared with a simple implementation ---- */
static int larger(const void *a, const void *b) {
    float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
    return x > y ? -1 : x < y;
}

typedef struct figures {
    double error, feedback;
} figures;

/* Compresses `add`, or the gradient g if it is NULL, plus the residual e by keeping the k largest elements. Updates
 * e, and returns the errors that the library should report. */
static figures topk_model(float *e, const float *g, const float *add, uint64_t n, uint64_t k) {
    float input[2 * N], sorted[2 * N];
    for (uint64_t i = 0; i < n; i++) input[i] = sorted[i] = e[i] + (add ? add[i] : g[i]);
    qsort(sorted, n, sizeof *sorted, larger);
    float least = fabsf(sorted[k - 1]);
    uint64_t ties = k;
    for (uint64_t i = 0; i < n; i++) ties -= fabsf(input[i]) > least;
    for (uint64_t i = 0; i < n; i++) {
        int kept = fabsf(input[i]) > least || (fabsf(input[i]) == least && ties && ties--);
        e[i] = kept ? 0.0f : input[i];
    }
    return (figures){square(e, n) / square(input, n), sqrt(square(e, n) / square(g, n))};
}

static void body_topk(esp_ctx *ctx, void *user) {
    float g[TENSORS * 2 * N], e[TENSORS * 2 * N] = {0};
    uint32_t samples[TENSORS] = {0};
    start(ctx, "comp@cpu > flat.allgather > decomp@cpu", NULL, 1);
    for (int k = 0; k < STEPS; k++) {
        uint32_t sampled = 0;
        figures want[TENSORS];
        fill(ctx, k, g);
        for (uint32_t t = 0; t < TENSORS; t++)
            want[t] = topk_model(e + t * 2 * N, g + t * 2 * N, NULL, N + t, (N + t + 19) / 20);
        step(ctx, g);
        for (uint32_t t = 0; t < TENSORS; t++) {
            esp_tensor_stats s = stats(ctx, t);
            CHECK(s.samples == samples[t] || s.samples == samples[t] + 1);
            if (s.samples == samples[t]) continue;
            sampled++;
            samples[t] = s.samples;
            CHECK(close_to(s.error, want[t].error));
            CHECK(close_to(s.feedback, want[t].feedback));
            CHECK(s.error > 0.1 && s.error < 1 && s.feedback > 0.1);
        }
        CHECK(sampled <= 1);
        if (k < TENSORS) CHECK(sampled == 1); /* at first, each step samples another tensor */
    }
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(samples[t] >= 1);
}
TEST(test_topk_is_exact) { run(2, 2, body_topk, NULL, "topk:ratio=0.05"); }

/* ---- momentum: the error of dgc is relative to the gradient that it has accumulated ---- */
static void body_dgc(esp_ctx *ctx, void *user) {
    float g[TENSORS * 2 * N], u[TENSORS * 2 * N] = {0}, v[TENSORS * 2 * N] = {0};
    uint32_t samples[TENSORS] = {0}, sampled = 0;
    start(ctx, "comp@cpu > flat.allgather > decomp@cpu", NULL, 1);
    for (int k = 0; k < STEPS; k++) {
        figures want[TENSORS];
        fill(ctx, k, g);
        for (uint32_t t = 0; t < TENSORS; t++) {
            float *ut = u + t * 2 * N, *vt = v + t * 2 * N;
            for (uint64_t i = 0; i < N + t; i++) ut[i] = 0.5f * ut[i] + g[t * 2 * N + i];
            want[t] = topk_model(vt, g + t * 2 * N, ut, N + t, (N + t + 19) / 20);
            for (uint64_t i = 0; i < N + t; i++)
                if (vt[i] == 0.0f) ut[i] = 0.0f;
        }
        step(ctx, g);
        for (uint32_t t = 0; t < TENSORS; t++) {
            esp_tensor_stats s = stats(ctx, t);
            if (s.samples == samples[t]) continue;
            sampled++;
            samples[t] = s.samples;
            CHECK(close_to(s.error, want[t].error));
            CHECK(close_to(s.feedback, want[t].feedback));
        }
    }
    CHECK(sampled >= TENSORS);
}
TEST(test_dgc_counts_its_momentum) { run(2, 2, body_dgc, NULL, "dgc:ratio=0.05,momentum=0.5"); }

/* ---- cases without error feedback, without compression and without statistics ---- */
static void body_fp16(esp_ctx *ctx, void *user) {
    float g[TENSORS * 2 * N];
    start(ctx, (const char *)user, NULL, 1);
    for (int k = 0; k < STEPS; k++) {
        fill(ctx, k, g);
        step(ctx, g);
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        esp_tensor_stats s = stats(ctx, t);
        CHECK(s.samples >= 1);
        CHECK(s.error > 1e-9 && s.error < 1e-6);
        CHECK(s.feedback == 0.0);
    }
}
TEST(test_fp16_is_near) {
    run(2, 2, body_fp16, (void *)(uintptr_t) "comp@cpu > flat.allgather > decomp@cpu", "fp16");
    run(4, 2, body_fp16, (void *)(uintptr_t) "comp@cpu > flat.allreduce > decomp@cpu", "fp16"); /* sums of payloads */
}

static void body_nothing(esp_ctx *ctx, void *user) {
    float g[TENSORS * 2 * N];
    start(ctx, NULL, (const char *)user, user != NULL);
    for (int k = 0; k < STEPS; k++) {
        fill(ctx, k, g);
        step(ctx, g);
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        esp_tensor_stats s = stats(ctx, t);
        CHECK(s.samples == 0 && s.error == 0.0 && s.feedback == 0.0);
    }
}
static void body_fp32(esp_ctx *ctx, void *user) {
    float g[TENSORS * 2 * N];
    start(ctx, "comp@cpu > flat.allgather > decomp@cpu", NULL, 1);
    for (int k = 0; k < STEPS; k++) {
        fill(ctx, k, g);
        step(ctx, g);
    }
    CHECK(stats(ctx, 0).samples >= 1);
    /* a change of strategy drops the samples */
    CHECK(esp_strategy_set(ctx, "fp32") == ESP_OK);
    CHECK(stats(ctx, 0).samples == 0);
}
TEST(test_nothing_to_sample) {
    run(2, 2, body_nothing, NULL, "topk:ratio=0.05"); /* statistics are off */
    run(2, 2, body_fp32, NULL, "topk:ratio=0.05");
}

/* ---- groups and chunks ---- */
static const char in_units[] = "espresso-strategy 1\n"
                               "tensor t0 1000 split 2\n"
                               "chunk 900 topk:ratio=0.01 comp@cpu > flat.allgather > decomp@cpu\n"
                               "chunk 100 topk:ratio=0.5 comp@cpu > flat.allgather > decomp@cpu\n"
                               "tensor t1 1001 group\n"
                               "tensor t2 1002 group\n"
                               "group 2003 topk:ratio=0.05 comp@cpu > flat.allgather > decomp@cpu\n";

static void body_units(esp_ctx *ctx, void *user) {
    float g[TENSORS * 2 * N];
    start(ctx, NULL, in_units, 1);
    for (int k = 0; k < STEPS; k++) {
        fill(ctx, k, g);
        step(ctx, g);
        if (k != 1) continue; /* the first step has sampled chunk 0, the second chunk 1 */
        const esp__errors_unit *u = esp__errors_of(ctx)->units;
        CHECK(u[0].samples == 1 && u[1].samples == 1 && u[2].samples == 0);
        CHECK(u[0].error > u[1].error);
        CHECK(close_to(stats(ctx, 0).error, 0.9 * u[0].error + 0.1 * u[1].error));
        CHECK(stats(ctx, 0).samples == 2 && stats(ctx, 1).samples == 0);
    }
    esp_tensor_stats a = stats(ctx, 1), b = stats(ctx, 2);
    CHECK(a.samples >= 1 && a.samples == b.samples && a.error == b.error && a.feedback == b.feedback);
}
TEST(test_groups_and_chunks) { run(2, 2, body_units, NULL, NULL); }

/* ---- the error of a large tensor is estimated from some of its elements ---- */
TEST(test_large_ranges_are_estimated) {
    const uint64_t sizes[] = {1, 7, 4096, ESP__ERRORS_EXACT - 1, 3 * ESP__ERRORS_EXACT + 5};
    float *x = malloc(3 * sizes[4] * sizeof *x), *y = x + sizes[4], *e = y + sizes[4];
    for (uint64_t i = 0; i < sizes[4]; i++) {
        x[i] = gradient(0, 1, 2, i);
        y[i] = i % 3 ? 0.0f : x[i];
        e[i] = x[i] - y[i];
    }
    for (int k = 0; k < 10; k++) {
        uint64_t n = sizes[k / 2];
        struct esp__errors g;
        memset(&g, 0, sizeof g);
        const esp__errors_arrays arrays = {0, {x, y, k % 2 ? e : NULL}};
        assert_int_equal(esp__errors_add(NULL, &g, &arrays, n), ESP_OK);
        double near = n < ESP__ERRORS_EXACT ? 1e-12 : 0.02, lost = square(e, n), all = square(x, n);
        assert_true(fabs(g.input - all) <= near * all && fabs(g.gradient - all) <= near * all);
        assert_true(fabs(g.lost - lost) <= near * lost);
        assert_true(k % 2 ? g.residual == g.lost : g.residual == 0.0);
    }
    free(x);
}

/* ---- a gradient with NaN is not sampled, but the next one is ---- */
static void body_nan(esp_ctx *ctx, void *user) {
    float g[TENSORS * 2 * N];
    start(ctx, "comp@cpu > flat.allgather > decomp@cpu", NULL, 1);
    for (int k = 0; k < TENSORS; k++) {
        fill(ctx, k, g);
        for (uint32_t t = 0; t < TENSORS; t++) g[t * 2 * N + 5] = NAN;
        step(ctx, g);
    }
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(stats(ctx, t).samples == 0);
    for (int k = 0; k < TENSORS; k++) {
        fill(ctx, k, g);
        step(ctx, g);
    }
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(stats(ctx, t).samples == 1 && isfinite(stats(ctx, t).error));
}
TEST(test_nan_is_left_out) { run(2, 2, body_nan, NULL, "topk:ratio=0.05"); }

/* ---- sampling changes neither results nor feedback ---- */
typedef struct trail {
    int sampling;
    uint64_t hash[2][4];
} trail;

static void body_trail(esp_ctx *ctx, void *user) {
    trail *w = user;
    float g[TENSORS * 2 * N] = {0};
    uint64_t h = ESP__HASH0;
    start(ctx,
          esp_size(ctx) == 2 ? "comp@cpu > flat.allgather > decomp@cpu"
                             : "intra.reduce_scatter > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > "
                               "inter.allgather > decomp@cpu > intra.allgather",
          NULL, w->sampling);
    for (int k = 0; k < STEPS; k++) {
        fill(ctx, k, g);
        step(ctx, g);
        h = esp__hash64(h, g, sizeof g);
    }
    for (uint32_t i = 0; i < ctx->active.n_feedback; i++) {
        const esp__feedback *f = &ctx->active.feedback[i];
        if (f->residual) h = esp__hash64(h, f->residual, f->count * 4);
        if (f->state) h = esp__hash64(h, f->state, f->state_bytes);
    }
    if (w->sampling)
        for (uint32_t t = 0; t < TENSORS; t++) CHECK(stats(ctx, t).samples >= 1);
    w->hash[w->sampling][esp_rank(ctx)] = h;
}
TEST(test_bytes_are_the_same) {
    static const char *const codecs[] = {"topk:ratio=0.05", "efsignsgd", "twobit",
                                         "dgc:ratio=0.05",  "fp16",      "randomk:ratio=0.1"};
    for (size_t c = 0; c < 2 * sizeof codecs / sizeof *codecs; c++) {
        trail w = {0, {{0}}};
        int32_t ranks = c % 2 ? 4 : 2;
        for (w.sampling = 0; w.sampling < 2; w.sampling++) run(ranks, 2, body_trail, &w, codecs[c / 2]);
        assert_memory_equal(w.hash[0], w.hash[1], sizeof w.hash[0]);
    }
}

/* ---- a step with sampling allocates no memory ---- */
#if COUNTS_ALLOCATIONS
static void body_allocations(esp_ctx *ctx, void *user) {
    static float all[4][TENSORS * 2 * N];
    float *g = all[esp_rank(ctx)];
    start(ctx, "comp@cpu > flat.allgather > decomp@cpu", NULL, 1);
    fill(ctx, 0, g);
    step(ctx, g);
    CHECK(esp_barrier(ctx) == ESP_OK);
    if (esp_rank(ctx) == 0) atomic_store(&counting, 1);
    CHECK(esp_barrier(ctx) == ESP_OK);
    for (int k = 1; k < STEPS; k++) {
        fill(ctx, k, g);
        step(ctx, g);
    }
    CHECK(esp_barrier(ctx) == ESP_OK);
    if (esp_rank(ctx) == 0) atomic_store(&counting, 0);
    CHECK(esp_barrier(ctx) == ESP_OK);
    CHECK(stats(ctx, TENSORS - 1).samples >= 1);
}
TEST(test_no_allocation) {
    atomic_store(&allocations, 0);
    run(2, 2, body_allocations, NULL, "dgc:ratio=0.05");
    assert_int_equal(atomic_load(&allocations), 0);
}
#endif
