/* test_tree.c: the decision tree's counts, and every option of it executed over `loop`: in a few contexts, each with
 * a tensor for every option. Codec none must give the exact mean, lossy codecs the same bits on all ranks, and
 * feedback must lose nothing. */
#include "tests/common/repeats.h"
#include "tests/common/library.h"
#include "tests/common/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <cmocka.h>

enum { STEPS = 20 };

static int count_raw(void *user, const esp__option *o) {
    *(int *)user += !esp__option_uses(o, ESP__COMP);
    return 0;
}

static void test_counts(void **state) {
    (void)state;
    int raw = 0;
    assert_int_equal(esp__option_each(ESP__TREE_FLAT, 3, 0, count_raw, &raw), 63);
    assert_int_equal(esp__option_each(ESP__TREE_HIERARCHICAL, 3, 0, count_raw, &raw), 4278);
    assert_int_equal(raw, 9);
    for (uint32_t device = 1; device <= 2; device++) {
        raw = 0;
        assert_int_equal(esp__option_each(ESP__TREE_FLAT, device, 0, count_raw, &raw), 12);
        assert_int_equal(esp__option_each(ESP__TREE_HIERARCHICAL, device, 0, count_raw, &raw), 162);
        assert_int_equal(raw, 9);
    }
}

static int round_trip(void *user, const esp__option *o) {
    char text[ESP__TEXT_MAX], again[ESP__TEXT_MAX];
    esp__option parsed;
    assert_true(esp__option_print(o, text, sizeof text) < sizeof text);
    assert_int_equal(esp__option_parse(NULL, text, &parsed), ESP_OK);
    assert_int_equal(parsed.n, o->n);
    assert_memory_equal(parsed.steps, o->steps, o->n * sizeof *o->steps);
    esp__option_print(&parsed, again, sizeof again);
    assert_string_equal(text, again);
    const uint32_t later = 1 + (uint32_t) * (int *)user % ESP__LATER_MAX;
    size_t len = strlen(text);
    snprintf(text + len, sizeof text - len, " +%u", later);
    assert_int_equal(esp__option_parse(NULL, text, &parsed), ESP_OK);
    assert_true(parsed.later == later && parsed.n == o->n);
    assert_int_equal(esp__option_print(&parsed, again, sizeof again), strlen(text));
    assert_string_equal(text, again);
    ++*(int *)user;
    return 0;
}

static void test_text_one_to_one(void **state) {
    (void)state;
    int n = 0;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 1, round_trip, &n);
    assert_true(n > 4341);
}

static void test_bad_text(void **state) {
    static const char *const bad[][2] = {
        {"", "empty"},
        {"flat.allreduce >", "position 17"},
        {"flat.allreduse", "position 1: 'flat.allreduse' is no step"},
        {"flat.allreduce > flat.allgather", "position 18: 'flat.allgather' cannot stand here; expected the end"},
        {"intra.reduce_scatter > inter.allreduce", "ends too soon; expected intra.allgather"},
        {"intra.reduce > inter.allreduce > intra.allgather", "expected intra.broadcast"},
        {"comp@tpu > flat.allgather > decomp@cpu", "position 1: 'comp@tpu' is no step"},
        {"flat.allreduce flat.allreduce", "position 16: expected '>' between two steps, or '+N' behind the last"},
        {"flat.allreduce +", "position 16: '+': expected +1 to +255"},
        {"flat.allreduce +0", "position 16: '+0': expected +1 to +255"},
        {"flat.allreduce +01", "position 16: '+01': expected"},
        {"flat.allreduce +256", "position 16: '+256': expected"},
        {"flat.allreduce +4294967297", "position 16: '+4294967297': expected"},
        {"flat.allreduce +18446744073709551617", "position 16: '+18446744073709551617': expected"},
        {"flat.allreduce + 1", "position 16: '+': expected"},
        {"flat.allreduce +1x", "position 16: '+1x': expected"},
        {"flat.allreduce +-1", "position 16: '+-1': expected"},
        {"flat.allreduce ++1", "position 16: '+': expected"},
        {"flat.allreduce +1 +2", "position 19: expected the end behind '+1'"},
        {"flat.allreduce +1 +1", "position 19: expected the end behind '+1'"},
        {"flat.allreduce +1 > flat.allgather", "position 19: expected the end behind '+1'"},
        {"flat.reduce_scatter +1 > flat.allgather", "position 24: expected the end behind '+1'"},
        {"flat.reduce_scatter +1", "position 21: ends too soon; expected flat.allgather"},
        {"+1", "position 1: '' is no step"},
        {"comp@cpu > flat.alltoall > comp@cpu", "expected flat.allgather, decomp@cpu, decomp@gpu"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        esp__option o;
        assert_int_equal(esp__option_parse(NULL, bad[i][0], &o), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), bad[i][1])) fail_msg("'%s' gave: %s", bad[i][0], esp_last_error(NULL));
    }
}

/* ---- running paths ---------------------------------------------------------------------------------------------- */
typedef struct plan {
    uint32_t devices;
    const char *const *codecs;
    uint64_t count; /* elements of every tensor */
    int steps, exact, extended;
    esp_dtype dtype;
    atomic_int failures;
} plan;

typedef struct adding {
    esp_ctx *ctx;
    const plan *p;
    const char *codec;
    int failed;
} adding;

static int add_option(void *user, const esp__option *o) {
    adding *a = user;
    char text[ESP__TEXT_MAX], name[32];
    esp_tensor_desc d = ESP_ZERO;
    for (uint32_t i = 0; i < o->n; i++) /* the extension is for codecs whose payloads can be summed */
        if (o->steps[i].summed && strncmp(a->codec, "none", 4) && strncmp(a->codec, "fp16", 4) &&
            strncmp(a->codec, "bf16", 4) && strncmp(a->codec, "randomk", 7))
            return 0;
    esp__option_print(o, text, sizeof text);
    snprintf(name, sizeof name, "t%u", a->ctx->model.n_tensors);
    d.name = name;
    d.count = a->p->count;
    d.dtype = a->p->dtype;
    d.codec = a->codec;
    d.option = text;
    if (esp_tensor_add(a->ctx, &d, NULL)) a->failed = 1;
    return 0;
}

static float from_bits(esp_dtype d, const void *g, uint64_t i) {
    if (d == ESP_F32) return ((const float *)g)[i];
    return test_half(d, ((const uint16_t *)g)[i]);
}
static void to_bits(esp_dtype d, void *g, uint64_t i, float x) {
    if (d == ESP_F32)
        ((float *)g)[i] = x;
    else
        ((uint16_t *)g)[i] = (uint16_t)(d == ESP_F16 ? half_to_f16(x) : half_to_bf16(x));
}

/* Gradient of (rank, tensor, step, element): a small integer that divides by the ranks, or a quarter of one. */
static float gradient(const plan *p, int32_t size, int32_t rank, uint32_t t, int step, uint64_t i) {
    int v = (int)((i * 7 + t * 3 + (uint64_t)step * 5 + (uint64_t)rank * 11) % 13) - 6;
    return p->exact ? (float)(v * size) : (float)v * 0.25f;
}

#define REPORT(ctx, p, ...)                                                                                            \
    do {                                                                                                               \
        if (atomic_fetch_add(&(p)->failures, 1) < 5) {                                                                 \
            fprintf(stderr, "rank %d: ", (ctx)->job.rank);                                                             \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
        }                                                                                                              \
    } while (0)

static void describe(const esp_ctx *ctx, uint32_t t, char *buf, size_t cap) {
    char option[ESP__TEXT_MAX];
    esp__option_print(&ctx->in_force.strategy.units[t].option, option, sizeof option);
    snprintf(buf, cap, "%s: %s", ctx->in_force.strategy.units[t].codec->spec, option);
}

static void check_exact(esp_ctx *ctx, plan *p, void *grads, int step) {
    uint64_t e = p->dtype == ESP_F32 ? 4 : 2;
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++)
        for (uint64_t i = 0; i < p->count; i++) {
            float want = 0, got = from_bits(p->dtype, (char *)grads + t * p->count * e, i);
            for (int32_t r = 0; r < ctx->job.size; r++) want += gradient(p, 1, r, t, step, i);
            if (got == want) continue;
            char what[ESP__TEXT_MAX * 2];
            describe(ctx, t, what, sizeof what);
            REPORT(ctx, p, "%s: element %d is %g, the mean is %g", what, (int)i, (double)got, (double)want);
            break;
        }
}

/* All ranks must hold the same bits: compare with rank 0's. */
static void check_same(esp_ctx *ctx, plan *p, const void *grads) {
    uint64_t bytes = ctx->model.n_tensors * p->count * (p->dtype == ESP_F32 ? 4 : 2),
             per = bytes / ctx->model.n_tensors;
    char *root = malloc(bytes);
    memcpy(root, grads, bytes);
    if (esp_broadcast(ctx, root, bytes, 0)) REPORT(ctx, p, "broadcast: %s", esp_last_error(ctx));
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++)
        if (memcmp(root + t * per, (const char *)grads + t * per, per)) {
            char what[ESP__TEXT_MAX * 2];
            describe(ctx, t, what, sizeof what);
            REPORT(ctx, p, "%s: differs from rank 0", what);
        }
    free(root);
}

/* Everything that went in either came out or is held by feedback. */
static void check_conserved(esp_ctx *ctx, plan *p, const double *out) {
    uint64_t n = ctx->model.n_tensors * p->count;
    float *held = calloc(n, 4);
    for (uint32_t k = 0; k < ctx->in_force.n_feedback; k++) {
        const esp__feedback *f = &ctx->in_force.feedback[k];
        for (uint64_t i = 0; f->owner_replica && i < f->count; i++)
            held[f->place.first * p->count + f->offset + i] += f->residual[i];
    }
    if (esp_allreduce(ctx, held, n)) REPORT(ctx, p, "allreduce: %s", esp_last_error(ctx));
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
            REPORT(ctx, p, "%s: element %d: %g went in, %g came out or is held", what, (int)i, in, got);
            break;
        }
    free(held);
}

static void run_steps(esp_ctx *ctx, plan *p) {
    uint64_t e = p->dtype == ESP_F32 ? 4 : 2, n = ctx->model.n_tensors * p->count;
    void *grads = malloc(n * e);
    double *out = calloc(n, sizeof *out);
    esp_stream here = ESP_ZERO;
    for (int step = 0; step < p->steps; step++) {
        for (uint32_t t = 0; t < ctx->model.n_tensors; t++) {
            char *g = (char *)grads + t * p->count * e;
            for (uint64_t i = 0; i < p->count; i++)
                to_bits(p->dtype, g, i, gradient(p, ctx->job.size, ctx->job.rank, t, step, i));
            if (esp_push(ctx, t, g, here)) REPORT(ctx, p, "push: %s", esp_last_error(ctx));
        }
        if (esp_wait_all(ctx)) {
            REPORT(ctx, p, "wait: %s", esp_last_error(ctx));
            break;
        }
        for (uint64_t i = 0; i < n; i++) out[i] += (double)from_bits(p->dtype, grads, i);
        if (p->exact) check_exact(ctx, p, grads, step);
        if (step % 5 == 0 || step + 1 == p->steps) check_same(ctx, p, grads);
    }
    if (!p->exact && p->steps > 1) check_conserved(ctx, p, out);
    free(grads);
    free(out);
}

static void run_body(esp_ctx *ctx, void *user) {
    plan *p = user;
    int flat = !ctx->job.topo.n_local || ctx->job.topo.n_local == 1 || ctx->job.topo.n_machines == 1;
    adding a = {ctx, p, NULL, 0};
    for (const char *const *c = p->codecs; *c; c++) {
        a.codec = *c;
        esp__option_each(flat ? ESP__TREE_FLAT : ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, p->devices, p->extended,
                         add_option, &a);
    }
    if (a.failed || esp_start(ctx))
        REPORT(ctx, p, "start: %s", esp_last_error(ctx));
    else
        run_steps(ctx, p);
}

static void run_plan(int32_t size, int32_t per_machine, plan *p) {
    test_job j;
    memset(&j, 0, sizeof j);
    j.size = size;
    j.per_machine = per_machine;
    j.body = run_body;
    j.user = p;
    j.config.log_level = ESP_LOG_ERROR;
    test_run(&j);
    for (int32_t r = 0; r < size; r++) assert_int_equal(j.open_status[r], ESP_OK);
    assert_int_equal(atomic_load(&p->failures), 0);
}

static const char *const lossy[] = {"fp16:feedback=residual",   "bf16:feedback=residual",
                                    "topk:ratio=0.1",           "randomk:ratio=0.1",
                                    "dgc:ratio=0.1,momentum=0", "efsignsgd",
                                    "twobit:threshold=1.5",     NULL};
static const char *const none[] = {"none", NULL};
static const char *const topk[] = {"topk:ratio=0.05", NULL};
static const int32_t shapes[3][2] = {{4, 2}, {6, 2}, {3, 3}};
static const uint64_t sizes[3] = {1, 37, 515};

static void test_all_options_run(void **state) {
    plan p = {.devices = 3, .codecs = topk, .count = 37, .steps = 1, .dtype = ESP_F32};
    (void)state;
    run_plan(4, 2, &p);
}

static void test_none_is_exact(void **state) {
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int c = 0; c < 3; c++) {
            plan p = {.devices = 1,
                      .codecs = none,
                      .count = sizes[c],
                      .steps = 2,
                      .exact = 1,
                      .extended = 1,
                      .dtype = ESP_F32};
            run_plan(shapes[k][0], shapes[k][1], &p);
        }
}

static void test_lossy(void **state) {
    int k = (int)(intptr_t)*state / 3, c = (int)(intptr_t)*state % 3;
    plan p = {.devices = 1,
              .codecs = lossy,
              .count = sizes[c],
              .steps = test_repeats(STEPS),
              .extended = 1,
              .dtype = ESP_F32};
    run_plan(shapes[k][0], shapes[k][1], &p);
}

/* Small integers are exact in halves, too, and so is their mean. */
static void test_halves(void **state) {
    (void)state;
    for (esp_dtype d = ESP_F16; d <= ESP_BF16; d++) {
        plan p = {.devices = 1, .codecs = none, .count = 37, .steps = 2, .exact = 1, .dtype = d};
        run_plan(4, 2, &p);
        plan q = {.devices = 1, .codecs = lossy, .count = 37, .steps = 3, .exact = 0, .dtype = d};
        q.steps = 1;
        run_plan(4, 2, &q);
    }
}

/* Machines of 2 and 1 ranks: only the flat tree. */
static void test_unequal_machines(void **state) {
    static const int32_t machines[3] = {1, 1, 2};
    plan p = {.devices = 1, .codecs = none, .count = 37, .steps = 2, .exact = 1, .extended = 1, .dtype = ESP_F32};
    test_job j;
    (void)state;
    memset(&j, 0, sizeof j);
    j.size = 3;
    j.machines = machines;
    j.body = run_body;
    j.user = &p;
    test_run(&j);
    assert_int_equal(atomic_load(&p.failures), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_text_one_to_one),
        cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_none_is_exact),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_unequal_machines),
        cmocka_unit_test(test_all_options_run),
#define LOSSY(k) {"test_lossy " #k, test_lossy, NULL, NULL, (void *)(intptr_t)(k)}
        LOSSY(0),
        LOSSY(1),
        LOSSY(2),
        LOSSY(3),
        LOSSY(4),
        LOSSY(5),
        LOSSY(6),
        LOSSY(7),
        LOSSY(8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
