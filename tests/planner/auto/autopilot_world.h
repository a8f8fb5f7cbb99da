/* autopilot_world.h simulates training for strategy "auto" (the autopilot): step times, links and codec costs are
 * made up, threads are the ranks, and the test reads what the autopilot did. */
#ifndef AUTOPILOT_WORLD_H
#define AUTOPILOT_WORLD_H
#include "tests/lib/test.h"

enum { TENSORS = 5, DESCRIBED = 2, STEPS_MOST = 600, RANKS_MOST = 8 };
static const uint64_t counts[TENSORS] = {300, 17, 1000, 64, 1}, columns[TENSORS] = {20, 0, 40, 8, 0};

/* A made-up training, step by step. */
typedef struct world world;
struct world {
    int steps;
    int slow_from, slow_to;              /* in these steps the link between machines is slow */
    double fp32_ms[2], compressed_ms[2]; /* step times: [0] fast link, [1] slow link */
    double gentle_ms;                    /* added to step times with codecs other than specs[0] */
    int32_t excess;
    const char *specs[2]; /* a lossy codec, and one that only rounds numbers */
    double errors[2];
    const char *plugin; /* file of a plugin to load, or NULL */
    int real;
    const char *backend;
    int matrices;                   /* tensors are matrices */
    const char *described, *option; /* that tensor DESCRIBED asks for, or NULL */
    double tolerance;
    int costs_fail; /* calibration fails */
    int busy_from, busy_to;
    double busy;
    /* The share of a step in which a rank waits for communication is `waiting` on rank waits_less, and 0.5 on others.
     * If waits_less is -2, it is `waiting` on all. */
    int32_t waits_less;
    double waiting;
    double slow_rate;
    double layerwise_ms;                      /* if not 0: step time with strategy layerwise */
    double (*merged)(const esp__strategy *y); /* if not NULL: step time with a strategy that has groups, or 0 */
    int swings;
    double noise; /* random steps are longer by up to this share */
    uint32_t seed;
    int sets_own_at; /* step after which the program sets a strategy, or 0 */
    uint32_t optimizer;
    float momentum;
    double (*loss)(const world *w, const esp_ctx *ctx, int step); /* NULL or NO_LOSS: the trainer reports no loss */
    uint64_t hash[RANKS_MOST][STEPS_MOST];
    const char *phase[RANKS_MOST][STEPS_MOST];
    double in[RANKS_MOST][TENSORS][1000], out[RANKS_MOST][TENSORS][1000];
    char last[RANKS_MOST][8192];
    int ran[2];            /* number of steps with each of the specs */
    double ms[STEPS_MOST]; /* step times */
    int allocated[RANKS_MOST];
    char heard[16384]; /* rank 0's log of decisions */
    int hears;
};
static const double NO_LOSS = -1e300;

static int slow(const world *w, const esp_ctx *ctx) {
    return (int)ctx->steps.step >= w->slow_from && (int)ctx->steps.step < w->slow_to;
}
static int compresses(const esp_ctx *ctx) {
    for (uint32_t i = 0; i < ctx->active.strategy.n_units; i++) {
        const esp__unit *u = &ctx->active.strategy.units[i];
        const esp__tensor *t = &ctx->model.tensors[u->place.first];
        if (esp__option_compresses(&u->option) && !t->codec_override && !t->option_override) return 1;
    }
    return 0;
}

/* Returns 1 if the text is that of strategy layerwise: with these costs, no other strategy has such an option. */
static int layerwise(const char *text) { return strstr(text, "reduce_scatter > comp") != NULL; }

static uint64_t world_step(void *user, esp_ctx *ctx) {
    world *w = user;
    const double *of = compresses(ctx) ? w->compressed_ms : w->fp32_ms;
    double ms = of[slow(w, ctx)];
    if (compresses(ctx) && !strstr(ctx->active.strategy.text, w->specs[0])) ms += w->gentle_ms;
    if (w->layerwise_ms > 0.0 && layerwise(ctx->active.strategy.text)) ms = w->layerwise_ms;
    if (w->merged && w->merged(&ctx->active.strategy) > 0.0) ms = w->merged(&ctx->active.strategy);
    if ((int)ctx->steps.step >= w->busy_from && (int)ctx->steps.step < w->busy_to) ms *= w->busy;
    if (w->swings && ctx->steps.step / 20 % 2) ms *= 1.5;
    uint64_t at = (w->seed + 1) * 7919u + ctx->steps.step;
    ms *= 1.0 + w->noise * (double)(test_random64(&at) >> 11) / 9007199254740992.0;
    if (!ctx->job.rank && ctx->steps.step <= STEPS_MOST) w->ms[ctx->steps.step - 1] = ms;
    return (uint64_t)(ms * 1e6) + (uint64_t)(ctx->job.rank * 1000);
}
static void world_ready(void *user, esp_ctx *ctx, uint64_t *out) {
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) out[i] = 1000000u * (i + 1) + (uint64_t)ctx->job.rank;
}
static bool world_excess(void *user, esp_ctx *ctx, uint32_t tensor) {
    const world *w = user;
    const esp__unit *u = &ctx->active.strategy.units[ctx->active.strategy.of_tensor[tensor].first];
    return (int32_t)tensor == w->excess && ctx->job.rank == 1 && strstr(u->codec->spec, w->specs[0]) != NULL;
}

static double world_waiting(void *user, esp_ctx *ctx) {
    const world *w = user;
    return ctx->job.rank == w->waits_less || w->waits_less == -2 ? w->waiting : 0.5;
}

/* While the link is slow, its rate is slow_rate. Else it is so fast that compression does not pay. */
static esp_status world_costs(void *user, esp_ctx *ctx, esp_plan_system *s, esp_plan_codec *codecs, uint32_t *n) {
    static const esp_cost_point quick[] = {{1, 1000}, {1000, 2000}}, slower[] = {{1, 2000}, {1000, 3000}};
    const world *w = user;
    if (w->costs_fail) return esp__fail(ctx, ESP_E_NOMEM, "no costs today");
    memset(s, 0, sizeof *s);
    memset(codecs, 0, 2 * sizeof *codecs);
    s->struct_size = sizeof *s;
    s->machines = ctx->job.topo.n_local > 1 ? (uint32_t)ctx->job.topo.n_machines : (uint32_t)ctx->job.size;
    s->ranks_per_machine = (uint32_t)ctx->job.size / s->machines;
    s->devices = 1;
    s->intra.alpha_ns = s->inter.alpha_ns = 1000;
    s->intra.bytes_per_us = 1e6;
    s->inter.bytes_per_us = slow(user, ctx) ? w->slow_rate : 1e6;
    for (*n = 0; *n < 2; ++*n) {
        esp_plan_codec *c = &codecs[*n];
        c->struct_size = sizeof *c;
        c->spec = w->specs[*n];
        c->header_bytes = 32;
        c->unit_bytes = 1;
        c->units = *n ? 2 : 0.5;
        c->error = w->errors[*n];
        c->compress[0].points = c->decompress[0].points = *n ? slower : quick;
        c->compress[0].n = c->decompress[0].n = 2;
        esp__codec *opened;
        if (esp__codec_get(ctx, c->spec, &opened)) return ESP_E_NOT_FOUND;
        esp__plan_codec_rounds(c, opened->table, &opened->traits, opened->self);
        if (w->described) c->caps |= opened->traits.caps & ESP_CODEC_REDUCIBLE;
    }
    return ESP_OK;
}

static void push_all(esp_ctx *ctx, world *w, float grads[TENSORS][1000], int step, int zero) {
    esp_stream cpu = ESP_ZERO;
    for (uint32_t i = 0; i < TENSORS; i++) {
        for (uint64_t k = 0; k < counts[i]; k++) {
            uint32_t h = (uint32_t)(step * 7919 + ctx->job.rank * 104729 + (int)i * 1299709 + (int)k) * 2654435761u;
            grads[i][k] = zero ? 0.0f : (float)((int)(h >> 28) - 8);
            w->in[ctx->job.rank][i][k] += (double)grads[i][k];
        }
        CHECK(!esp_push(ctx, i, grads[i], cpu));
    }
    CHECK(!esp_wait_all(ctx));
    for (uint32_t i = 0; i < TENSORS; i++)
        for (uint64_t k = 0; k < counts[i]; k++) w->out[ctx->job.rank][i][k] += (double)grads[i][k];
}

static void hear(void *user, const esp_log_event *ev) {
    world *w = user;
    if (strcmp(ev->component, "autopilot") != 0 || ev->level != ESP_LOG_INFO) return;
    const size_t n = strlen(w->heard);
    snprintf(w->heard + n, sizeof w->heard - n, "%s\n", ev->message);
}

static _Thread_local int allocations;
static void *counting_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    allocations++;
    return test_host_alloc(user, d, bytes, align);
}

static void live(esp_ctx *ctx, void *user) {
    world *w = user;
    float(*grads)[1000] = calloc(TENSORS, sizeof *grads);
    char name[16];
    for (uint32_t i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "t%u", i);
        esp_tensor_desc d = {.name = name, .count = counts[i]};
        if (w->matrices && columns[i]) d.rows = counts[i] / columns[i], d.cols = columns[i];
        d.flags = ESP_SUM;
        if (i == DESCRIBED) d.codec = w->described, d.option = w->option;
        CHECK(!esp_tensor_add(ctx, &d, NULL));
    }
    if (w->plugin) CHECK(!esp_plugin_load(ctx, w->plugin));
    CHECK(!esp_start(ctx));
    if (esp__autopilot_of(ctx) && !w->real) {
        esp__auto_source source = {
            w, world_step, world_ready, world_costs, w->excess < 0 ? NULL : world_excess, world_waiting};
        esp__autopilot_of(ctx)->source = source;
    }
    for (int step = 0; step < w->steps; step++) {
        const double loss = w->loss ? w->loss(w, ctx, step) : NO_LOSS;
        if (loss != NO_LOSS) CHECK(!esp_report_loss(ctx, loss)); /* reports NaN, too */
        const int before = allocations;
        const int inside =
            ctx->steps.phase && !strcmp(ctx->steps.phase, "trying") && esp__autopilot_of(ctx)->tournament.left > 1;
        push_all(ctx, w, grads, step, 0);
        w->hash[ctx->job.rank][step] = ctx->active.strategy.hash;
        w->phase[ctx->job.rank][step] = ctx->steps.phase;
        if (inside) w->allocated[ctx->job.rank] += allocations - before;
        for (int k = 0; k < 2 && !ctx->job.rank; k++) w->ran[k] += strstr(esp_strategy_text(ctx), w->specs[k]) != NULL;
        if (w->sets_own_at && step == w->sets_own_at) CHECK(!esp_strategy_set(ctx, "fp32"));
    }
    snprintf(w->last[ctx->job.rank], sizeof w->last[0], "%s", esp_strategy_text(ctx));
    CHECK(!esp_strategy_set(ctx, "fp32")); /* the next step then adds all residuals */
    push_all(ctx, w, grads, w->steps, 1);
    free(grads);
}

static world *world_new(void) {
    world *w = calloc(1, sizeof *w);
    w->steps = 120;
    w->slow_to = 1 << 30;
    w->excess = w->waits_less = -1;
    w->busy = 3.0;
    w->slow_rate = 0.3;
    w->specs[0] = "topk:ratio=0.25", w->specs[1] = "fp16";
    w->errors[0] = 0.5, w->errors[1] = 1e-7;
    w->fp32_ms[0] = 6.0, w->fp32_ms[1] = 20.0;
    w->compressed_ms[0] = 6.5, w->compressed_ms[1] = 7.0;
    w->gentle_ms = 3.0;
    return w;
}

/* Runs the training. All ranks must make the same decisions, and the results of all steps must add up to the
 * gradients. */
ESP__UNUSED static void run(world *w, const char *strategy, const char *codec, int32_t size, int32_t per_machine) {
    test_job j = {.size = size, .per_machine = per_machine, .body = live, .user = w};
    /* With real costs, bf16 may win. It rounds residuals of some hundreds, each by at most 1. */
    const double tolerance = w->real ? 2.0 : w->tolerance;
    failures = 0;
    j.config.strategy = strategy;
    j.config.codec = codec;
    if (w->real) j.config.backend = "loop:inter=1gbit,latency=50us";
    if (w->backend) j.config.backend = w->backend;
    j.config.log_level = getenv("VERBOSE") ? ESP_LOG_DEBUG : ESP_LOG_ERROR;
    j.config.optimizer = w->optimizer;
    j.config.momentum = w->momentum;
    const esp_host host = {.struct_size = sizeof host,
                           .abi_major = ESP_ABI_MAJOR,
                           .user = w,
                           .log = hear,
                           .alloc = counting_alloc,
                           .free_ = test_host_free};
    if (w->hears) j.config.host = &host, j.config.log_level = ESP_LOG_WARN;
    test_run(&j);
    for (int32_t r = 0; r < size; r++) {
        for (int s = 0; s < w->steps; s++) {
            CHECK(w->hash[r][s] == w->hash[0][s]);
            CHECK(w->phase[r][s] == w->phase[0][s]);
        }
        for (int i = 0; i < TENSORS; i++)
            for (uint64_t k = 0; k < counts[i]; k++) {
                double in = 0.0;
                if (i == DESCRIBED && w->described) continue; /* its residual is not sent */
                for (int32_t q = 0; q < size; q++) in += w->in[q][i][k];
                CHECK(fabs(w->out[r][i][k] - in) <= tolerance);
            }
    }
    assert_int_equal(failures, 0);
}

ESP__UNUSED static int first_in(const world *w, const char *phase, int from) {
    for (int s = from; s < w->steps; s++)
        if (w->phase[0][s] && strstr(w->phase[0][s], phase)) return s;
    return -1;
}
#endif
