/* test_hops.c: options that compress at every hop, over `loop`: their text and number, every one of them executed with codecs that
 * have forward() and others, what a step does with NaN, and what is refused. Codec none must give the exact mean, and with feedback
 * the result and all ranks' residuals must hold everything that went in. */
#include "tests/common/allocations.h"
#include "tests/common/repeats.h"
#include "tests/tree/run_options.h"

static int count_hops(void *user, const esp__option *o) {
    ((int *)user)[0] += esp__option_hops(o) != 0;
    ((int *)user)[1] += esp__option_uses(o, ESP__COMP) && esp__option_hops(o);
    return 0;
}

/* Wherever numbers may be summed by an allreduce, a ring and a halving may stand. */
static int count_allreduces(void *user, const esp__option *o) {
    for (uint32_t i = 0; i < o->n; i++)
        *(int *)user += o->steps[i].kind == ESP__COLL && o->steps[i].coll == ESP_COLL_ALLREDUCE;
    return 0;
}

static void test_counts(void **state) {
    (void)state;
    for (uint32_t devices = 1; devices <= 3; devices++)
        for (uint32_t levels = 2; levels <= 3; levels++) {
            const uint32_t parts = ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL | ESP__TREE_OF(levels);
            int hops[2] = {0, 0}, allreduces = 0;
            const uint64_t paper = esp__option_each(parts, devices, 0, count_allreduces, &allreduces);
            const uint64_t with = esp__option_each(parts, devices, ESP__WITH_HOPS, count_hops, hops);
            assert_int_equal(paper, devices < 3 ? (levels == 2 ? 174 : 2556) : levels == 2 ? 4341 : 299271);
            assert_int_equal(hops[0], 2 * allreduces);
            assert_int_equal(with, paper + (uint64_t)hops[0]);
            assert_true(hops[1] > 0 && hops[1] < hops[0]);
            if (devices == 1 && levels == 2) assert_int_equal(hops[0], 18);
        }
}

static int round_trip(void *user, const esp__option *o) {
    char text[ESP__TEXT_MAX];
    esp__option parsed;
    assert_true(esp__option_print(o, text, sizeof text) < sizeof text);
    assert_int_equal(esp__option_parse(NULL, text, &parsed), ESP_OK);
    assert_int_equal(parsed.n, o->n);
    assert_memory_equal(parsed.steps, o->steps, o->n * sizeof *o->steps);
    return ++*(int *)user, 0;
}

static void test_text(void **state) {
    esp__option o;
    int n = 0;
    (void)state;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, ESP__WITH_HOPS, round_trip, &n);
    assert_true(n > 4341);
    assert_int_equal(esp__option_parse(NULL, "flat.ring_hops", &o), ESP_OK);
    assert_int_equal(esp__option_hops(&o), ESP_HOPS_RING);
    assert_int_equal(esp__option_parse(NULL, "intra.reduce > inter.halving_hops > intra.broadcast", &o), ESP_OK);
    assert_int_equal(esp__option_hops(&o), ESP_HOPS_HALVING);
    assert_int_equal(esp__option_parse(NULL, "flat.ringhops", &o), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "ring_hops or halving_hops"));
    assert_int_equal(esp__option_parse(NULL, "comp@cpu > flat.ring_hops > decomp@cpu", &o), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "position 12: 'flat.ring_hops' cannot stand here"));
}

static const char *const none[] = {"none", NULL};
static const char *const lossy[] = {"none:feedback=residual",
                                    "fp16:feedback=residual",
                                    "topk:ratio=0.1",
                                    "randomk:ratio=0.1",
                                    "efsignsgd",
                                    "twobit:threshold=1.5",
                                    "int8",
                                    "int4",
                                    "chunktopk:chunk=64,k=8,decay=1",
                                    "fp16:of=(topk:ratio=0.1)",
                                    NULL};
static const int32_t shapes[][2] = {{4, 2}, {6, 2}, {3, 3}, {5, 5}, {8, 8}, {8, 2}, {2, 2}, {1, 1}};
static const uint64_t sizes[] = {1, 2, 37, 515};

static void test_none_is_exact(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++)
            for (esp_dtype d = ESP_F32; d <= (c == 2 ? ESP_BF16 : ESP_F32); d++) {
                plan p = {.devices = 1,
                          .codecs = none,
                          .count = sizes[c],
                          .steps = 2,
                          .exact = 1,
                          .extended = ESP__WITH_HOPS,
                          .hops = 1,
                          .dtype = d};
                run_plan(shapes[k][0], shapes[k][1], &p);
            }
}

static void test_lossy(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes - 1; k++)
        for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++) {
            plan p = {.devices = 1,
                      .codecs = lossy,
                      .count = sizes[c],
                      .steps = test_repeats(12),
                      .extended = ESP__WITH_HOPS,
                      .hops = 1,
                      .dtype = ESP_F32};
            run_plan(shapes[k][0], shapes[k][1], &p);
        }
}

/* Pieces: more elements than one payload carries. */
static void test_long(void **state) {
    plan p = {.devices = 1,
              .codecs = lossy,
              .count = 400003,
              .steps = 2,
              .extended = ESP__WITH_HOPS,
              .hops = 1,
              .every = 7,
              .dtype = ESP_F32};
    (void)state;
    run_plan(4, 2, &p);
}

/* ---- one tensor ---- */
typedef struct single {
    const char *codec, *option, *said;
    atomic_int faults;
} single;

static void nan_body(esp_ctx *ctx, void *user) {
    single *x = user;
    esp_tensor_desc d = ESP_ZERO;
    enum { N = 1000 };
    float g[N];
    uint32_t id = 0;
    esp_stats st = ESP_ZERO;
    esp_stream here = ESP_ZERO;
    st.struct_size = sizeof st;
    d.name = "t", d.count = N, d.codec = x->codec, d.option = x->option;
    if (esp_tensor_add(ctx, &d, &id) || esp_start(ctx)) atomic_fetch_add(&x->faults, 1);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < N; i++) g[i] = 1.0f;
        if (step == 1 && esp_rank(ctx) == 1) g[10] = INFINITY;
        if (esp_push(ctx, id, g, here) || esp_wait_all(ctx)) atomic_fetch_add(&x->faults, 1);
        for (int i = 0; i < N; i++) { /* rank 0's part, and with it its piece, has the element */
            const int bad = step == 1 && i < N / 4;
            if (bad ? !isnan(g[i]) : !(g[i] == 1.0f)) atomic_fetch_add(&x->faults, 1);
        }
    }
    if (esp_stats_read(ctx, &st)) atomic_fetch_add(&x->faults, 1);
    if (strstr(x->option, "ring") ? st.nonfinite != (esp_rank(ctx) == 1) : st.nonfinite < (esp_rank(ctx) == 1))
        atomic_fetch_add(&x->faults, 1);
}

/* A NaN or Inf reaches all ranks as NaN, is counted where it came in, and is forgotten in the next step. */
static void test_nan(void **state) {
    static const char *const codecs[] = {"none", "fp16:feedback=residual", "topk:ratio=1"};
    (void)state;
    for (int k = 0; k < 6; k++) {
        single x = {codecs[k / 2], k % 2 ? "flat.ring_hops" : "flat.halving_hops", NULL, 0};
        test_job j;
        memset(&j, 0, sizeof j);
        j.size = j.per_machine = 4;
        j.body = nan_body, j.user = &x;
        test_run(&j);
        assert_int_equal(atomic_load(&x.faults), 0);
    }
}

static void allocating_body(esp_ctx *ctx, void *user) {
    single *x = user;
    enum { N = 100003 };
    static const char *const codecs[] = {"fp16", "int8", "topk"};
    float *g = malloc(3 * N * 4);
    esp_stream here = ESP_ZERO;
    int bad = 0;
    for (int k = 0; k < 3; k++) {
        static const char *const names[] = {"a", "b", "c"};
        esp_tensor_desc d = ESP_ZERO;
        d.name = names[k], d.count = N, d.codec = codecs[k], d.option = k % 2 ? "flat.halving_hops" : "flat.ring_hops";
        bad |= esp_tensor_add(ctx, &d, NULL) != ESP_OK;
    }
    bad |= esp_start(ctx) != ESP_OK;
    for (int step = 0; step < 6 && !bad; step++) {
#if COUNTS_ALLOCATIONS
        if (step == 2) bad |= esp_barrier(ctx) != ESP_OK, atomic_store(&counting, 1);
#endif
        for (uint32_t k = 0; k < 3; k++) {
            for (int i = 0; i < N; i++) g[k * N + (uint32_t)i] = (float)(i % 17);
            bad |= esp_push(ctx, k, g + k * N, here) != ESP_OK;
        }
        bad |= esp_wait_all(ctx) != ESP_OK;
    }
    bad |= esp_barrier(ctx) != ESP_OK;
#if COUNTS_ALLOCATIONS
    atomic_store(&counting, 0);
#endif
    if (bad) atomic_fetch_add(&x->faults, 1);
    free(g);
}

static void test_allocates_nothing(void **state) {
    single x = {NULL, NULL, NULL, 0};
    test_job j;
    (void)state;
    memset(&j, 0, sizeof j);
    j.size = j.per_machine = 4;
    j.body = allocating_body, j.user = &x;
    test_run(&j);
    assert_int_equal(atomic_load(&x.faults), 0);
#if COUNTS_ALLOCATIONS
    assert_int_equal(atomic_load(&allocations), 0);
#endif
}

static void refused_body(esp_ctx *ctx, void *user) {
    single *x = user;
    esp_tensor_desc d = ESP_ZERO;
    d.name = "t", d.count = 64, d.codec = x->codec, d.option = x->option, d.rows = d.cols = 8;
    if (esp_tensor_add(ctx, &d, NULL) || !esp_start(ctx) || !strstr(esp_last_error(ctx), x->said)) {
        fprintf(stderr, "%s, %s: '%s' lacks '%s'\n", x->codec, x->option, esp_last_error(ctx), x->said);
        atomic_fetch_add(&x->faults, 1);
    }
}

static void test_refusals(void **state) {
    static const single cases[] = {
        {"fp16", "flat.halving_hops",
         "tensor 't': option 'flat.halving_hops': flat.halving_hops is for 2, 4, 8, ... ranks, "
         "and here are 3: use ring_hops",
         0},
        {"powersgd", "flat.ring_hops", "codec 'powersgd' cannot compress at every hop: it has several rounds", 0},
        {"dgc", "flat.ring_hops", "codec 'dgc' cannot compress at every hop: it keeps state", 0},
    };
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        single x = cases[k];
        test_job j;
        memset(&j, 0, sizeof j);
        j.size = j.per_machine = 3;
        j.body = refused_body, j.user = &x;
        test_run(&j);
        assert_int_equal(atomic_load(&x.faults), 0);
    }
    single x = {"topk:feedback=(residual:gamma=0.5)", "flat.halving_hops", "feedback's gamma must be 1 there", 0};
    test_job j;
    memset(&j, 0, sizeof j);
    j.size = j.per_machine = 2;
    j.body = refused_body, j.user = &x;
    test_run(&j);
    assert_int_equal(atomic_load(&x.faults), 0);
    single y = {"topk", "flat.ring_hops",
                "tensor 't': option 'flat.ring_hops': backend 'file' cannot compress at every hop, as "
                "flat.ring_hops does",
                0};
    j.user = &y;
    j.config.backend = "file";
    test_run(&j);
    assert_int_equal(atomic_load(&y.faults), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_none_is_exact),

        cmocka_unit_test(test_allocates_nothing),
        cmocka_unit_test(test_lossy),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
