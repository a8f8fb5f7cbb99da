/* test_lanes.c checks that links and cores work at the same time, that every rank runs collectives in the strategy's
 * order, and that a step allocates no memory. It reads the measured timeline of an emulated link. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "tests/lib/allocations.h"
#include "espresso_impl/observe/trace.h"

enum { TENSORS = 6, COUNT = 40001 };
static esp_stream here;

static void add_tensors(esp_ctx *ctx, const char *option) {
    static const char *const codecs[] = {"topk:ratio=0.02", "efsignsgd", "twobit",
                                         "dgc:ratio=0.02",  "fp16",      "randomk:ratio=0.02"};
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[16];
        snprintf(name, sizeof name, "layer%u", t);
        esp_tensor_desc d = {.name = name, .count = COUNT, .codec = codecs[t], .option = option};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
}

static void step(esp_ctx *ctx, float *g, useconds_t backward_us) {
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < COUNT; i++) g[t * COUNT + i] = (float)((i * 7 + t) % 101) - 50.0f;
        if (backward_us) usleep(backward_us);
        CHECK(esp_push(ctx, t, g + t * COUNT, here) == ESP_OK);
    }
    CHECK(esp_wait_all(ctx) == ESP_OK);
}

#if COUNTS_ALLOCATIONS
static const char in_units[] =
    "espresso-strategy 1\n"
    "tensor layer0 40001 split 2\nchunk 40000 topk:ratio=0.02 flat.allreduce\nchunk 1 none flat.allreduce\n"
    "tensor layer1 40001 group\ntensor layer2 40001 group\n"
    "group 80002 efsignsgd intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather\n"
    "tensor layer3 40001 group\ntensor layer4 40001 group\ntensor layer5 40001 group\n"
    "group 120003 dgc:ratio=0.02 comp@cpu > flat.allgather > decomp@cpu\n";

static void count_steps(esp_ctx *ctx, float *g) {
    step(ctx, g, 0);
    CHECK(esp_barrier(ctx) == ESP_OK);
    if (esp_rank(ctx) == 0) atomic_store(&counting, 1);
    CHECK(esp_barrier(ctx) == ESP_OK);
    for (int k = 0; k < 3; k++) step(ctx, g, 0);
    CHECK(esp_barrier(ctx) == ESP_OK);
    if (esp_rank(ctx) == 0) atomic_store(&counting, 0);
    CHECK(esp_barrier(ctx) == ESP_OK);
}

static void body_allocations(esp_ctx *ctx, void *user) {
    float *g = malloc(TENSORS * COUNT * sizeof *g);
    int units = *(int *)user;
    if (units)
        for (uint32_t t = 0; t < TENSORS; t++) {
            char name[16];
            snprintf(name, sizeof name, "layer%u", t);
            esp_tensor_desc d = {.name = name, .count = COUNT};
            CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        }
    else
        add_tensors(ctx, "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > "
                         "inter.allgather > decomp@cpu > intra.allgather");
    CHECK(esp_start(ctx) == ESP_OK);
    if (units) CHECK(esp_strategy_set(ctx, in_units) == ESP_OK);
    count_steps(ctx, g);
    free(g);
}

TEST(test_no_allocation) {
    static const char *const backends[] = {"loop", "shm"};
    for (int k = 0; k < 4; k++) {
        int units = k / 2;
        atomic_store(&allocations, 0);
        RUN_RANKS(.size = 4, .per_machine = 2, .body = body_allocations, .user = &units,
                  .config.backend = backends[k % 2]);
        assert_int_equal(atomic_load(&allocations), 0);
    }
}
#endif

/* ---- overlap ----------------------------------------------------------------------------------------------------- */
/* Returns whether an op on link or core `a` overlaps in time with an op of another tensor on `b`. */
static bool overlap(const esp_ctx *ctx, uint32_t a, uint32_t b) {
    const esp__trace *t = ctx->observers.self[ESP__OBSERVE_TRACE];
    uint64_t n = atomic_load(&t->n);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < n; k++) {
            const esp__event *x = &t->events[i], *y = &t->events[k];
            if (x->lane == a && y->lane == b && x->tensor != y->tensor && x->start_ns < y->end_ns &&
                y->start_ns < x->end_ns)
                return true;
        }
    return false;
}

/* Checks that a link or core runs one op at a time, and that collectives keep the strategy's order in all `steps`. */
static void check_lanes(const esp_ctx *ctx, uint32_t steps) {
    const esp__trace *t = ctx->observers.self[ESP__OBSERVE_TRACE];
    uint64_t n = atomic_load(&t->n);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = i + 1; k < n; k++) {
            const esp__event *x = &t->events[i], *y = &t->events[k];
            if (x->lane != y->lane || x->lane == ESP__LANE_COMPUTE) continue;
            CHECK(x->end_ns <= y->start_ns || y->end_ns <= x->start_ns);
        }
    for (int l = 0; l < 2; l++) {
        uint32_t at = 0;
        for (uint64_t i = 0; i < n; i++) {
            if (t->events[i].lane != (uint32_t)(ESP__LANE_INTRA + l)) continue;
            const esp__op *op = &ctx->active.program.ops[ctx->active.sequence[l][at++ % ctx->active.n_sequence[l]]];
            CHECK(ctx->active.strategy.units[op->unit].place.first == t->events[i].tensor);
        }
        CHECK(at == steps * ctx->active.n_sequence[l]);
    }
}

/* Repeats steps until each rank has seen all overlaps, since an op may wait for a core on a busy machine. */
static void body_overlap(esp_ctx *ctx, void *user) {
    float *g = malloc(TENSORS * COUNT * sizeof *g);
    float missing = 1;
    uint32_t steps = 0;
    add_tensors(ctx, "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather");
    CHECK(esp_start(ctx) == ESP_OK);
    while (missing > 0 && steps++ < 50) {
        step(ctx, g, 2000);
        missing = !overlap(ctx, ESP__LANE_CPU, ESP__LANE_INTER) || !overlap(ctx, ESP__LANE_INTRA, ESP__LANE_INTER) ||
                  !overlap(ctx, ESP__LANE_COMPUTE, ESP__LANE_INTER);
        CHECK(esp_allreduce(ctx, &missing, 1) == ESP_OK);
    }
    CHECK(missing <= 0);
    check_lanes(ctx, steps);
    free(g);
}

TEST(test_overlap) {
    static const char path[] = "/tmp/espresso-test-lanes.json";
    RUN_RANKS(.size = 4, .per_machine = 2, .body = body_overlap, .config.backend = "loop:inter=100mbit,latency=1ms",
              .config.trace = path);
    char *text = file_text(path);
    remove(path);
    assert_non_null(text);
    assert_non_null(strstr(text, "\"traceEvents\""));
    free(text);
}

/* With ESPRESSO_TRACE=FILE,steps=2 every rank writes a file after two steps. It must contain only these steps. */
static void body_traced(esp_ctx *ctx, void *user) {
    float *g = malloc(TENSORS * COUNT * sizeof *g);
    char path[64];
    add_tensors(ctx, "intra.reduce_scatter > inter.allreduce > intra.allgather");
    CHECK(esp_start(ctx) == ESP_OK);
    snprintf(path, sizeof path, "/tmp/espresso-test-lanes.%d.json", (int)esp_rank(ctx));
    step(ctx, g, 0);
    CHECK(access(path, F_OK) != 0);
    for (int k = 0; k < 3; k++) step(ctx, g, 0);
    char *text = file_text(path);
    remove(path);
    CHECK(text != NULL);
    if (!text) text = calloc(1, 1);
    const size_t n = strlen(text);
    CHECK(strstr(text, "\"step\":0") && strstr(text, "\"step\":1,") && !strstr(text, "\"step\":2,"));
    CHECK(n > 3 && !strcmp(text + n - 4, "\n]}\n"));
    int32_t rank = -1;
    const char *named = strstr(text, "\"rank ");
    CHECK(named && sscanf(named, "\"rank %d ", &rank) == 1 && rank == esp_rank(ctx));
    free(text);
    free(g);
}

static void body_refused(esp_ctx *ctx, void *user) {
    add_tensors(ctx, "flat.allreduce");
    CHECK(esp_start(ctx) == ESP_E_ARG);
    if (!strstr(esp_last_error(ctx), user)) fprintf(stderr, "got: %s\n", esp_last_error(ctx));
    CHECK(strstr(esp_last_error(ctx), user) != NULL);
}

TEST(test_trace_of_some_steps) {
    static const char *const spec[] = {"/tmp/espresso-test-lanes.%r.json,steps=2",
                                       "/tmp/espresso-test-lanes.%r.json,steps=0",
                                       "/tmp/espresso-test-lanes.json,steps=2"};
    static const char *const why[] = {NULL, "whole number from 1 to", "put %r for the rank"};
    for (int k = 0; k < 3; k++) {
        RUN_RANKS(.size = why[k] ? 2 : 4, .per_machine = 2, .body = why[k] ? body_refused : body_traced,
                  .user = (void *)(uintptr_t)why[k], .config.backend = "loop", .config.trace = spec[k]);
    }
}

/* esp_push must return while the link is still busy with the gradient. */
static void body_returns(esp_ctx *ctx, void *user) {
    float *g = malloc(TENSORS * COUNT * sizeof *g);
    add_tensors(ctx, "flat.allreduce");
    CHECK(esp_start(ctx) == ESP_OK);
    for (uint64_t i = 0; i < TENSORS * COUNT; i++) g[i] = 1.0f;
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(esp_push(ctx, t, g + t * COUNT, here) == ESP_OK);
    CHECK(esp_test(ctx, TENSORS - 1) == ESP_PENDING); /* 960 KB over 100 Mbit/s take longer than the push */
    CHECK(esp_wait_all(ctx) == ESP_OK && g[0] == 1.0f && g[TENSORS * COUNT - 1] == 1.0f);
    free(g);
}
TEST(test_push_returns) {
    RUN_RANKS(.size = 2, .per_machine = 1, .body = body_returns, .config.backend = "loop:inter=100mbit");
}
