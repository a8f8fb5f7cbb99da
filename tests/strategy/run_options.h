/* run_options.h runs jobs that have a tensor for each option, which is a way to compress and send it. Without
 * compression the mean must be exact. With a codec, all ranks must get the same bits, and no part of a gradient may get
 * lost. */
#ifndef TEST_RUN_OPTIONS_H
#define TEST_RUN_OPTIONS_H
#include "tests/lib/test.h"

typedef struct plan {
    uint32_t devices;
    const char *const *codecs;
    uint64_t count;
    int steps, exact, extended, narrow;
    uint32_t every;  /* run only each `every`th option; 0: all */
    uint32_t levels; /* 2 (or 0): ranks and machines; 3: racks, too */
    esp_dtype dtype;
    float level;      /* if not 0, all elements are this or minus this */
    esp_device where; /* whose memory has the gradients */
} plan;

typedef struct adding {
    esp_ctx *ctx;
    const plan *p;
    const char *codec;
    uint32_t seen;
    int failed;
} adding;

static int add_option(void *user, const esp__option *o) {
    adding *a = user;
    char text[ESP__TEXT_MAX], name[32];
    esp_tensor_desc d = ESP_ZERO;
    esp__codec *codec;
    if (a->p->every && a->seen++ % a->p->every) return 0;
    if (esp__codec_get(a->ctx, a->codec, &codec)) return a->failed = 1;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].summed && !(codec->traits.caps & ESP_CODEC_REDUCIBLE)) return 0;
    esp__option_print(o, text, sizeof text);
    snprintf(name, sizeof name, "t%u", a->ctx->model.n_tensors);
    d.name = name;
    d.count = a->p->count;
    d.dtype = a->p->dtype;
    d.device = a->p->where;
    d.codec = codec_for(text, a->codec);
    d.option = text;
    if (a->p->narrow) d.flags = ESP_SHARD;
    if (esp_tensor_add(a->ctx, &d, NULL)) a->failed = 1;
    return 0;
}

/* Prints an option, checks that reading its text gives the same option, and counts it in *user. */
static inline int round_trip(void *user, const esp__option *o) {
    char text[ESP__TEXT_MAX], again[ESP__TEXT_MAX];
    esp__option parsed;
    assert_true(esp__option_print(o, text, sizeof text) < sizeof text);
    if (esp__option_parse(NULL, text, &parsed)) fail_msg("%s: %s", text, esp_last_error(NULL));
    assert_int_equal(parsed.n, o->n);
    assert_memory_equal(parsed.steps, o->steps, o->n * sizeof *o->steps);
    esp__option_print(&parsed, again, sizeof again);
    assert_string_equal(text, again);
    ++*(int *)user;
    return 0;
}

/* Checks that the text of an option, bad[i][0], is refused with an error that contains bad[i][1]. */
static inline void check_bad_texts(const char *const bad[][2], size_t n) {
    for (size_t i = 0; i < n; i++) {
        esp__option o;
        assert_int_equal(esp__option_parse(NULL, bad[i][0], &o), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), bad[i][1])) fail_msg("'%s' gave: %s", bad[i][0], esp_last_error(NULL));
    }
}

/* Returns an element of a gradient: a small integer that is divisible by the number of ranks, or a quarter of one. */
static float gradient(const plan *p, int32_t size, int32_t rank, uint32_t t, int step, uint64_t i) {
    if (p->level != 0) return i % 2 ? -p->level : p->level;
    int v = (int)((i * 7 + t * 3 + (uint64_t)step * 5 + (uint64_t)rank * 11) % 13) - 6;
    return p->exact ? (float)(v * size) : (float)v * 0.25f;
}

#define REPORT(ctx, ...)                                                                                               \
    do {                                                                                                               \
        if (atomic_fetch_add(&failures, 1) < 5) {                                                                      \
            fprintf(stderr, "rank %d: ", (ctx)->job.rank);                                                             \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
        }                                                                                                              \
    } while (0)

static void describe(const esp_ctx *ctx, uint32_t t, char *buf, size_t cap) {
    char option[ESP__TEXT_MAX];
    esp__option_print(&ctx->active.strategy.units[t].option, option, sizeof option);
    snprintf(buf, cap, "%s: %s", ctx->active.strategy.units[t].codec->spec, option);
}

static void check_exact(esp_ctx *ctx, plan *p, void *grads, int step) {
    uint64_t e = p->dtype == ESP_F32 ? 4 : 2;
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++)
        for (uint64_t i = 0; i < p->count; i++) {
            float want = 0, got = test_value(p->dtype, (char *)grads + t * p->count * e, i);
            for (int32_t r = 0; r < ctx->job.size; r++) want += gradient(p, 1, r, t, step, i);
            if (got == want) continue;
            char what[ESP__TEXT_MAX * 2];
            describe(ctx, t, what, sizeof what);
            REPORT(ctx, "%s: element %d is %g, the mean is %g", what, (int)i, (double)got, (double)want);
            break;
        }
}

static void check_level(esp_ctx *ctx, plan *p, void *grads) {
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++)
        for (uint64_t i = 0; i < p->count; i++) {
            const float want = gradient(p, 0, 0, t, 0, i), got = test_value(p->dtype, grads, t * p->count + i);
            if (fabsf(got - want) <= 0.02f * p->level) continue;
            char what[ESP__TEXT_MAX * 2];
            describe(ctx, t, what, sizeof what);
            REPORT(ctx, "%s: element %d is %g, the mean is %g", what, (int)i, (double)got, (double)want);
            break;
        }
}

static void check_same_options(esp_ctx *ctx, plan *p, const void *grads) {
    uint64_t bytes = ctx->model.n_tensors * p->count * (p->dtype == ESP_F32 ? 4 : 2),
             per = bytes / ctx->model.n_tensors;
    char *root = malloc(bytes);
    memcpy(root, grads, bytes);
    if (esp_broadcast(ctx, root, bytes, 0)) REPORT(ctx, "broadcast: %s", esp_last_error(ctx));
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++)
        if (memcmp(root + t * per, (const char *)grads + t * per, per)) {
            char what[ESP__TEXT_MAX * 2];
            describe(ctx, t, what, sizeof what);
            REPORT(ctx, "%s: differs from rank 0", what);
        }
    free(root);
}

/* Checks that the sum of all gradients equals the sum of all results and residuals. */
static void check_conserved(esp_ctx *ctx, plan *p, const double *out) {
    uint64_t n = ctx->model.n_tensors * p->count;
    float *held = calloc(n, 4);
    for (uint32_t k = 0; k < ctx->active.n_feedback; k++) {
        const esp__feedback *f = &ctx->active.feedback[k];
        for (uint64_t i = 0; f->owner_replica && i < f->count; i++)
            held[f->place.first * p->count + f->offset + i] += f->residual[i];
    }
    if (esp_allreduce(ctx, held, n)) REPORT(ctx, "allreduce: %s", esp_last_error(ctx));
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++)
        for (uint64_t i = 0; i < p->count; i++) {
            double in = 0, scale = 0, got = out[t * p->count + i] * ctx->job.size + (double)held[t * p->count + i];
            for (int s = 0; s < p->steps; s++)
                for (int32_t r = 0; r < ctx->job.size; r++) {
                    in += (double)gradient(p, ctx->job.size, r, t, s, i);
                    scale += fabs((double)gradient(p, ctx->job.size, r, t, s, i));
                }
            if (fabs(got - in) <= 1e-4 * (scale + 1.0)) continue;
            char what[ESP__TEXT_MAX * 2];
            describe(ctx, t, what, sizeof what);
            REPORT(ctx, "%s: element %d: %g went in, %g came out or is held", what, (int)i, in, got);
            break;
        }
    free(held);
}

/* Replaces the elements that other ranks own by NaN, and then gets them from these ranks by esp_gather, in `whole`. */
static void gather_all(esp_ctx *ctx, plan *p, void *grads, float *whole) {
    esp_stream here = ESP_ZERO;
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++) {
        const uint64_t first = t * p->count;
        uint64_t begin, n;
        if (esp_part(ctx, t, ctx->job.rank, &begin, &n)) REPORT(ctx, "part: %s", esp_last_error(ctx));
        for (uint64_t i = 0; i < p->count; i++) whole[i] = i - begin < n ? test_value(p->dtype, grads, first + i) : NAN;
        if (esp_gather(ctx, t, whole, here)) REPORT(ctx, "gather: %s", esp_last_error(ctx));
        for (uint64_t i = 0; i < p->count; i++) test_value_set(p->dtype, grads, first + i, whole[i]);
    }
}

static void run_steps(esp_ctx *ctx, plan *p) {
    uint64_t e = p->dtype == ESP_F32 ? 4 : 2, n = ctx->model.n_tensors * p->count;
    const esp_device_table *table = NULL;
    void *self = NULL, *grads = NULL, *whole = NULL;
    double *out = calloc(n, sizeof *out);
    if (ctx->host.device(ctx->host.user, p->where, &table, &self) ||
        table->alloc(self, n * e, ESP_MEM_DEVICE, &grads) || table->alloc(self, p->count * 4, ESP_MEM_DEVICE, &whole)) {
        REPORT(ctx, "no memory of the device: %s", esp_last_error(ctx));
        free(out);
        return;
    }
    esp_stream here = ESP_ZERO;
    for (int step = 0; step < p->steps; step++) {
        for (uint32_t t = 0; t < ctx->model.n_tensors; t++) {
            char *g = (char *)grads + t * p->count * e;
            for (uint64_t i = 0; i < p->count; i++)
                test_value_set(p->dtype, g, i, gradient(p, ctx->job.size, ctx->job.rank, t, step, i));
            if (esp_push(ctx, t, g, here)) REPORT(ctx, "push: %s", esp_last_error(ctx));
        }
        if (esp_wait_all(ctx)) {
            REPORT(ctx, "wait: %s", esp_last_error(ctx));
            break;
        }
        if (p->narrow) gather_all(ctx, p, grads, whole);
        for (uint64_t i = 0; i < n; i++) out[i] += (double)test_value(p->dtype, grads, i);
        if (p->exact) check_exact(ctx, p, grads, step);
        if (p->level != 0) check_level(ctx, p, grads);
        if (step % 5 == 0 || step + 1 == p->steps) check_same_options(ctx, p, grads);
    }
    if (!p->exact && p->steps > 1) check_conserved(ctx, p, out);
    table->free_(self, grads, n * e, ESP_MEM_DEVICE);
    table->free_(self, whole, p->count * 4, ESP_MEM_DEVICE);
    free(out);
}

static void run_body(esp_ctx *ctx, void *user) {
    plan *p = user;
    int flat = !ctx->job.topo.n_local || ctx->job.topo.n_local == 1 || ctx->job.topo.n_machines == 1;
    adding a = {ctx, p, NULL, 0, 0};
    for (const char *const *c = p->codecs; *c; c++) {
        a.codec = *c;
        esp__option_each((flat ? ESP__TREE_FLAT : ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL) |
                             (p->narrow ? ESP__TREE_NARROW : 0) | ESP__TREE_OF(p->levels),
                         p->devices, p->extended, add_option, &a);
    }
    if (a.failed || esp_start(ctx))
        REPORT(ctx, "start: %s", esp_last_error(ctx));
    else
        run_steps(ctx, p);
}

/* `places` has the position of each rank, as "rack/machine". If it is NULL, each machine has per_machine ranks. */
static void run_plan_at(int32_t size, int32_t per_machine, const char *const *places, plan *p) {
    RUN_RANKS(.size = size, .per_machine = per_machine, .places = places, .body = run_body, .user = p);
}

static inline void run_plan(int32_t size, int32_t per_machine, plan *p) { run_plan_at(size, per_machine, NULL, p); }
#endif
