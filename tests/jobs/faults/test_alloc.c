/* test_alloc.c lets allocation number n of one rank fail, alone or with all later ones, for n = 1, 2, ... The rank must
 * get ESP_E_NOMEM with a text, or continue where the library promises that. The other ranks must soon get an error that
 * names this rank. Nothing may leak, and the library may use only the user's allocator. The linker redirects malloc to
 * this file to check that. */
/* runs: slow asan-long no-tsan: too slow; other tests run such jobs under the sanitizer */
#include "tests/lib/test.h"
#include <execinfo.h>
enum { RANKS = 4, COUNT = 600, WAIT_MS = 20000, OPEN_MS = 300 };

/* ---- the user's allocator, one for each rank --------------------------------------------------------------------- */
typedef struct pool {
    atomic_int live, seen, hits;
    int fail_at, sticky;
    atomic_int wrong;
    int at_connect, at_opened;
} pool;

void *__real_malloc(size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);

/* Counts calls of malloc and the like in `past`. If libc_live_fail is not 0, the call with that number fails. */
static atomic_int watching, past, libc_live_fail, libc_seen, libc_hits;
static int libc_fails(void) {
    if (atomic_load(&watching)) atomic_fetch_add(&past, 1);
    if (!atomic_load(&libc_live_fail)) return 0;
    if (atomic_fetch_add(&libc_seen, 1) + 1 != atomic_load(&libc_live_fail)) return 0;
    atomic_fetch_add(&libc_hits, 1);
    return 1;
}
void *__wrap_malloc(size_t n) { return libc_fails() ? NULL : __real_malloc(n); }
void *__wrap_aligned_alloc(size_t align, size_t n) { return libc_fails() ? NULL : __real_aligned_alloc(align, n); }
void *__wrap_calloc(size_t n, size_t m) { return libc_fails() ? NULL : __real_calloc(n, m); }
void *__wrap_realloc(void *p, size_t n) { return libc_fails() ? NULL : __real_realloc(p, n); }

enum { HEAD = 64 }; /* bytes before each block, which hold its size */
static void *pool_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    pool *p = user;
    const int n = atomic_fetch_add(&p->seen, 1) + 1;
    if (p->fail_at && (n == p->fail_at || (p->sticky && n > p->fail_at))) {
        if (!atomic_fetch_add(&p->hits, 1) && getenv("VERBOSE")) {
            void *at[12];
            backtrace_symbols_fd(at, backtrace(at, 12), 2); /* addr2line finds the lines of these addresses */
        }
        return NULL;
    }
    if (d.kind > ESP_CPU || align > 4096) abort();
    const uint64_t head = align > HEAD ? align : HEAD;
    uint8_t *b = __real_aligned_alloc((size_t)head, (size_t)(head + (bytes + head - 1) / head * head));
    if (!b) abort();
    memset(b + head, 0xa7, (size_t)bytes);
    memcpy(b + head - 8, &bytes, 8);
    memcpy(b + head - 16, &head, 8);
    atomic_fetch_add(&p->live, 1);
    return b + head;
}
static void pool_free(void *user, esp_device d, void *block, uint64_t bytes) {
    pool *p = user;
    uint64_t had, head;
    if (!block) return;
    memcpy(&had, (uint8_t *)block - 8, 8);
    memcpy(&head, (uint8_t *)block - 16, 8);
    if (had != bytes) atomic_fetch_add(&p->wrong, 1);
    atomic_fetch_sub(&p->live, 1);
    free((uint8_t *)block - head);
}
static void pool_log(void *user, const esp_log_event *ev) {
    if (getenv("VERBOSE"))
        fprintf(stderr, "  [%d] %s: %s\n", ev->level, ev->component ? ev->component : "", ev->message);
}

/* ---- scenarios --------------------------------------------------------------------------------------------------- */
typedef struct scenario {
    const char *name;
    int32_t size, per_machine;
    esp_config config;
    esp_status (*body)(esp_ctx *ctx, const struct scenario *c);
    const char *tensor_codec, *gather;
    uint32_t tensor_flags;
    int goes_on; /* nonzero: the rank may go on after the failure */
    const char *env[2];
} scenario;

static char path[64];

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        if (s == ESP_OK) s = (call);                                                                                   \
    } while (0)

static esp_status add(esp_ctx *ctx, const scenario *c) {
    esp_status s = ESP_OK;
    esp_tensor_desc d = ESP_ZERO;
    char name[16];
    for (int t = 0; t < 3; t++) {
        snprintf(name, sizeof name, "t%d", t);
        d.name = name;
        d.count = t ? (uint64_t)COUNT / 2 * (uint64_t)t : COUNT;
        d.rows = t ? 0 : 20, d.cols = t ? 0 : COUNT / 20;
        d.codec = t ? NULL : c->tensor_codec;
        d.gather = t ? NULL : c->gather;
        d.flags = t ? 0 : c->tensor_flags;
        DO(esp_tensor_add(ctx, &d, NULL));
    }
    return s;
}
static float grads[RANKS][3][COUNT + 1];
static esp_status step(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    esp_stream cpu = ESP_ZERO;
    for (uint32_t t = 0; t < 3; t++) {
        float *g = grads[esp_rank(ctx)][t];
        for (int i = 0; i < COUNT; i++) g[i] = (float)(i % 7 - 3);
        DO(esp_push(ctx, t, g, cpu));
    }
    DO(esp_wait_all(ctx));
    return s;
}
static esp_status begin(esp_ctx *ctx, const scenario *c) {
    esp_status s = add(ctx, c);
    DO(esp_start(ctx));
    return s;
}

static esp_status opens(esp_ctx *ctx, const scenario *c) { return ESP_OK; }
static esp_status trains(esp_ctx *ctx, const scenario *c) {
    esp_status s = begin(ctx, c);
    for (int k = 0; k < 2; k++) DO(step(ctx));
    return s;
}
static esp_status speaks(esp_ctx *ctx, const scenario *c) {
    static float x[RANKS][COUNT];
    esp_status s = begin(ctx, c);
    DO(esp_broadcast(ctx, x[esp_rank(ctx)], sizeof x[0], 0));
    DO(esp_allreduce(ctx, x[esp_rank(ctx)], COUNT));
    DO(esp_allreduce_as(ctx, x[esp_rank(ctx)], COUNT / 2, ESP_I64, ESP_REDUCE_MAX));
    DO(esp_weight(ctx, 2.0f));
    DO(esp_barrier(ctx));
    DO(step(ctx));
    return s;
}
static esp_status changes(esp_ctx *ctx, const scenario *c) {
    static const char *const strategies[] = {
        "layerwise", "fp32",
        "espresso-strategy 1\ntensor t0 600 split 2\nchunk 250 topk:ratio=0.1 comp@cpu > "
        "flat.allgather > decomp@cpu\nchunk 350 none flat.allreduce\ntensor t1 300 "
        "group\ntensor t2 600 group\ngroup 900 efsignsgd comp@cpu > flat.allgather > decomp@cpu\n"};
    esp_status s = trains(ctx, c);
    for (size_t k = 0; k < sizeof strategies / sizeof *strategies; k++) {
        DO(esp_strategy_set(ctx, strategies[k]));
        DO(esp_feedback_scale(ctx, 0.5f));
        DO(step(ctx));
    }
    return s;
}
static esp_status saves(esp_ctx *ctx, const scenario *c) {
    esp_status s = trains(ctx, c);
    DO(esp_state_save(ctx, path));
    DO(esp_state_load(ctx, path));
    DO(step(ctx));
    DO(esp_strategy_set(ctx, "fp32"));
    DO(esp_state_save(ctx, path));
    DO(step(ctx));
    DO(esp_state_load(ctx, path));
    DO(step(ctx));
    return s;
}
static esp_status gathers(esp_ctx *ctx, const scenario *c) {
    esp_stream cpu = ESP_ZERO;
    static float params[RANKS][COUNT];
    esp_status s = trains(ctx, c);
    DO(esp_gather(ctx, 0, params[esp_rank(ctx)], cpu));
    return s;
}
/* Outer rounds as ESPRESSO_OUTER says: enough whole ones that the library has chosen, and one that esp_outer_sync
 * ends. */
static esp_status averages(esp_ctx *ctx, const scenario *c) {
    const esp_outer_desc outer = {.method = "average", .every = 1};
    static float params[RANKS][3][COUNT + 1];
    const esp_stream cpu = ESP_ZERO;
    esp_status s = esp_outer_open(ctx, &outer);
    DO(begin(ctx, c));
    for (uint32_t t = 0; t < 3; t++) {
        memset(params[esp_rank(ctx)][t], 0, sizeof params[0][t]);
        DO(esp_outer_add(ctx, t, params[esp_rank(ctx)][t]));
    }
    for (int k = 0; k < 63 && !s; k++) {
        for (int i = 0; i < COUNT; i++) params[esp_rank(ctx)][k % 3][i] += (float)((i + k) % 5 - 2);
        DO(esp_outer_step(ctx, cpu));
    }
    DO(esp_outer_sync(ctx, cpu));
    return s;
}
static esp_status decodes(esp_ctx *ctx, const scenario *c) {
    static const char *const specs[] = {"none",
                                        "fp16",
                                        "bf16:of=(topk:ratio=0.1)",
                                        "efsignsgd",
                                        "twobit",
                                        "int8",
                                        "int8:shared=1",
                                        "int4",
                                        "topk",
                                        "chunktopk",
                                        "randomk",
                                        "dgc",
                                        "powersgd:rank=2",
                                        "warmup:steps=1,of=(int8)"};
    static float in[COUNT], out[COUNT];
    static uint8_t room[8 * COUNT + 4096];
    esp_status s = ESP_OK;
    for (size_t k = 0; k < sizeof specs / sizeof *specs && !s; k++)
        for (int matrix = 0; matrix < 2 && !s; matrix++) {
            esp_codec_handle *h = NULL;
            uint64_t used = 0;
            s = matrix ? esp_codec_open_matrix(ctx, specs[k], 20, COUNT / 20, NULL, &h)
                       : esp_codec_open(ctx, specs[k], COUNT, NULL, &h);
            DO(esp_compress(h, in, COUNT, room, sizeof room, &used));
            DO(esp_decompress(h, room, used, out, COUNT, ESP_OUT_SET));
            esp_codec_close(h);
        }
    return s;
}
static esp_status loads(esp_ctx *ctx, const scenario *c) {
    const char *build = getenv("ESPRESSO_BUILD");
    char plugin[512];
    snprintf(plugin, sizeof plugin, "%s/tests/abi/libespresso-everysecond.so", build ? build : "build");
    esp_status s = esp_plugin_load(ctx, plugin);
    snprintf(plugin, sizeof plugin, "%s/tests/abi", build ? build : "build");
    setenv("ESPRESSO_PLUGIN_PATH", plugin, 1);
    DO(esp_plugin_load(ctx, "newer"));
    unsetenv("ESPRESSO_PLUGIN_PATH");
    return s;
}
static esp_status asks_nonsense(esp_ctx *ctx, const scenario *c) {
    esp_tensor_desc d = {.name = "x", .count = 5, .codec = "topq"};
    esp_status s = esp_plugin_load(ctx, "nobody");
    s = s == ESP_E_NOT_FOUND ? ESP_OK : s;
    DO(esp_tensor_add(ctx, &d, NULL));
    DO(esp_start(ctx));
    return s == ESP_E_NOT_FOUND ? ESP_OK : s;
}
/* Strategy auto with made-up costs. It measures, makes a plan that compresses, activates it, and keeps it. */
static uint64_t auto_step(void *user, esp_ctx *ctx) {
    for (uint32_t i = 0; i < ctx->active.strategy.n_units; i++)
        if (esp__option_compresses(&ctx->active.strategy.units[i].option)) return 7000000;
    return 20000000;
}
static void auto_ready(void *user, esp_ctx *ctx, uint64_t *out) {
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) out[i] = 1000000u * (i + 1);
}
static esp_status auto_costs(void *user, esp_ctx *ctx, esp_plan_system *y, esp_plan_codec *codecs, uint32_t *n) {
    static const esp_cost_point quick[] = {{1, 1000}, {1000, 2000}};
    esp__codec *opened;
    memset(y, 0, sizeof *y);
    memset(codecs, 0, sizeof *codecs);
    y->struct_size = sizeof *y;
    y->machines = 2, y->ranks_per_machine = 1, y->devices = 1;
    y->intra.alpha_ns = y->inter.alpha_ns = 1000;
    y->intra.bytes_per_us = 1e6, y->inter.bytes_per_us = 0.3;
    codecs->struct_size = sizeof *codecs;
    codecs->spec = "topk:ratio=0.25";
    codecs->header_bytes = 32, codecs->unit_bytes = 1, codecs->units = 0.5, codecs->error = 0.5;
    codecs->compress[0].points = codecs->decompress[0].points = quick;
    codecs->compress[0].n = codecs->decompress[0].n = 2;
    *n = 1;
    const esp_status s = esp__codec_get(ctx, codecs->spec, &opened);
    if (!s) esp__plan_codec_rounds(codecs, opened->table, &opened->traits, opened->self);
    return s;
}
static esp_status chooses(esp_ctx *ctx, const scenario *c) {
    static const esp__auto_source source = {NULL, auto_step, auto_ready, auto_costs, NULL, NULL};
    esp_status s = begin(ctx, c);
    if (!s && esp__autopilot_of(ctx)) esp__autopilot_of(ctx)->source = source;
    for (int k = 0; k < 40; k++) DO(step(ctx));
    return s;
}

#define TWO "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.allgather > decomp@cpu > intra.allgather"
#define OUTER(name, flags, goes_on, spec, ...)                                                                         \
    {                                                                                                                  \
        name, 2, 1, {.backend = "loop", __VA_ARGS__}, averages, 0, 0, flags, goes_on, { "ESPRESSO_OUTER", spec }       \
    }
static scenario all[] = {
    {"open alone", 1, 1, {.codec = "topk", .strategy = "layerwise", .plugin_path = "/nowhere"}, opens, 0, 0, 0, 0, {0}},
    {"plugins", 1, 1, {.flags = ESP_ALLOW_OVERRIDE}, loads, 0, 0, 0, 0, {0}},
    {"names that do not exist", 1, 1, {.plugin_path = "/nowhere:/usr/nowhere"}, asks_nonsense, 0, 0, 0, 1, {0}},
    {"codec handles", 1, 1, {.cpu_workers = 2}, decodes, 0, 0, 0, 0, {0}},
    {"fp32 over loop", 2, 1, {.backend = "loop"}, speaks, 0, 0, 0, 0, {0}},
    {"fp32 over shm, one machine", 2, 2, {.backend = "shm", .cpu_workers = 2}, trains, 0, 0, 0, 0, {0}},
    {"two levels, dgc with state",
     4,
     2,
     {.backend = "loop", .codec = "dgc:ratio=0.05", .strategy = "layerwise"},
     trains,
     0,
     0,
     0,
     0,
     {0}},
    {"two levels over shm, rounds",
     4,
     2,
     {.backend = "shm", .codec = "powersgd:rank=2"},
     trains,
     "int8:shared=1",
     0,
     0,
     0,
     {0}},
    {"links emulated, a wrapper, kept copies",
     2,
     1,
     {.backend = "loop:inter=10gbit,latency=5us", .codec = "fp16:of=(topk:ratio=0.1)", .flags = ESP_DISCARDABLE},
     trains,
     0,
     0,
     0,
     0,
     {0}},
    {"the trainer's threads run the ops",
     2,
     2,
     {.backend = "shm", .codec = "int8", .progress = "caller"},
     trains,
     0,
     0,
     0,
     0,
     {0}},
    {"changes of strategy", 2, 1, {.backend = "loop", .codec = "efsignsgd"}, changes, "topk:ratio=0.05", 0, 0, 0, {0}},
    {"states", 2, 1, {.backend = "loop", .codec = "dgc:ratio=0.1"}, saves, "efsignsgd", 0, 0, 0, {0}},
    {"shards", 2, 2, {.backend = "loop"}, gathers, "fp16", "bf16", ESP_SHARD, 0, {0}},
    {"auto",
     2,
     1,
     {.backend = "loop", .codec = "topk:ratio=0.25", .strategy = "auto:warmup=0"},
     chooses,
     0,
     0,
     0,
     1,
     {0}},
    OUTER("outer rounds", 0, 0, "diloco:every=4,fragments=2,delay=1,check=10", .codec = "topk:ratio=0.1",
          .strategy = "layerwise"),
    OUTER("outer rounds that are chosen", 0, 0, "average:max_every=6,max_fragments=2,max_delay=1", .codec = NULL),
    OUTER("outer rounds under auto", 0, 1, "average:every=1", .codec = "topk:ratio=0.1", .strategy = "auto"),
    OUTER("outer rounds, late ranks", 0, 0, "diloco:every=4,window=1000", .codec = NULL),
    OUTER("outer rounds, shards", ESP_SHARD, 0, "diloco:every=4", .codec = NULL),
    {"trace", 2, 1, {.backend = "loop", .codec = "topk", .trace = path}, trains, 0, 0, 0, 1, {0}},
    {"statistics", 2, 1, {.backend = "loop", .codec = "topk", .stats = path}, trains, 0, 0, 0, 1, {0}},
    {"profile", 2, 1, {.backend = "loop"}, trains, 0, 0, 0, 1, {"ESPRESSO_PROFILE", path}},
};

/* ---- one attempt ------------------------------------------------------------------------------------------------ */
typedef struct outcome {
    esp_status status;
    int opened;
    int at_end; /* no error but in a last barrier, whose status is `status` */
    char text[2048];
} outcome;
typedef struct run_of {
    const scenario *scenario;
    uint32_t timeout_ms;
    pool pool[RANKS];
    outcome out[RANKS];
    pthread_barrier_t barrier;
    uint8_t board[RANKS * 16384];
} run_of;
typedef struct rank_of {
    run_of *run;
    int32_t rank;
} rank_of;

static esp_status exchange(void *user, const void *in, void *out, uint64_t bytes) {
    const rank_of *r = user;
    if (bytes > sizeof r->run->board / RANKS) abort();
    if (!r->run->pool[r->rank].at_connect) r->run->pool[r->rank].at_connect = atomic_load(&r->run->pool[r->rank].seen);
    memcpy(r->run->board + (uint64_t)r->rank * bytes, in, bytes);
    pthread_barrier_wait(&r->run->barrier);
    memcpy(out, r->run->board, bytes * (uint64_t)r->run->scenario->size);
    pthread_barrier_wait(&r->run->barrier);
    return ESP_OK;
}

static void *rank_main(void *arg) {
    rank_of *r = arg;
    const scenario *c = r->run->scenario;
    outcome *o = &r->run->out[r->rank];
    pool *p = &r->run->pool[r->rank];
    const esp_host host = {
        .struct_size = sizeof host, .user = p, .alloc = pool_alloc, .free_ = pool_free, .log = pool_log};
    esp_config cfg = c->config;
    esp_ctx *ctx = NULL;
    cfg.host = &host;
    cfg.rank = r->rank, cfg.size = c->size;
    cfg.machine = 1 + r->rank / c->per_machine;
    cfg.timeout_ms = r->run->timeout_ms;
    cfg.log_level = getenv("VERBOSE") ? ESP_LOG_DEBUG : ESP_LOG_ERROR;
    if (c->size > 1) cfg.oob_allgather = exchange, cfg.oob_user = r;
    o->status = esp_open(&cfg, &ctx);
    p->at_opened = atomic_load(&p->seen);
    if (ctx) o->status = c->body(ctx, c);
    if (ctx && !o->status && c->size > 1 && c->body != opens) {
        o->status = esp_barrier(ctx);
        o->at_end = 1;
    }
    snprintf(o->text, sizeof o->text, "%s", o->status ? esp_last_error(ctx) : "");
    esp_close(ctx);
    return NULL;
}

/* Tries a scenario once. Returns 1 if an allocation has failed. */
static int run_once(const scenario *c, int32_t victim, int fail_at, int sticky, uint32_t timeout_ms, run_of *r) {
    rank_of ranks[RANKS];
    memset(r, 0, sizeof *r);
    r->scenario = c;
    r->timeout_ms = timeout_ms;
    r->pool[victim].fail_at = fail_at, r->pool[victim].sticky = sticky;
    pthread_barrier_init(&r->barrier, NULL, (unsigned)c->size);
    atomic_store(&past, 0);
    atomic_store(&watching, 1);
    for (int32_t k = 0; k < c->size; k++) ranks[k] = (rank_of){r, k};
    if (c->size == 1)
        rank_main(&ranks[0]);
    else
        run_threads(c->size, rank_main, ranks, sizeof *ranks);
    atomic_store(&watching, 0);
    pthread_barrier_destroy(&r->barrier);
    return atomic_load(&r->pool[victim].hits) > 0;
}

static int bad;
static void report(const scenario *c, int32_t victim, int n, int sticky, int32_t rank, const char *what,
                   const run_of *r) {
    if (++bad > 40) return;
    print_message("%s: allocation %d of rank %d fails %s: rank %d: %s; %s: %s\n", c->name, n, (int)victim,
                  sticky ? "and all after it" : "once", (int)rank, what, esp_status_name(r->out[rank].status),
                  r->out[rank].text);
}

/* A rank may notice only that another rank has failed because of the victim. Returns 1 if rank k's error names such a
 * rank. */
static int names_by_another(const scenario *c, const run_of *r, int32_t victim, int32_t k) {
    char named[2][32];
    snprintf(named[0], sizeof named[0], "rank %d", (int)victim);
    for (int32_t q = 0; q < c->size; q++) {
        snprintf(named[1], sizeof named[1], "rank %d", (int)q);
        if (q != k && r->out[q].status && strstr(r->out[k].text, named[1]) && strstr(r->out[q].text, named[0]))
            return 1;
    }
    return 0;
}

static const char *wrong_with(const scenario *c, const run_of *r, int32_t victim, int32_t k, int hit) {
    char named[32];
    const outcome *o = &r->out[k];
    const int failed = r->out[victim].status != ESP_OK;
    snprintf(named, sizeof named, "rank %d", (int)victim);
    if (atomic_load(&r->pool[k].live)) return "it leaked";
    if (atomic_load(&r->pool[k].wrong)) return "a block was freed with another size";
    if (o->status && !*o->text) return "an error without text";
    if (!hit) return o->status ? "an error, though no allocation failed" : NULL;
    /* esp_open tries again until the timeout, so the victim may succeed, or fail with ESP_E_TIMEOUT */
    if (r->timeout_ms == OPEN_MS && (!failed || r->out[victim].status == ESP_E_TIMEOUT)) return NULL;
    if (k == victim) return o->status == ESP_E_NOMEM || (c->goes_on && !failed) ? NULL : "not ESP_E_NOMEM";
    if (!o->status) return failed && !r->out[victim].at_end ? "no error where another rank has one" : NULL;
    /* a victim without memory cannot tell the others that it leaves, so they report that it died */
    if (!failed && r->out[victim].at_end && o->status == ESP_E_PEER && strstr(o->text, named)) return NULL;
    if (!failed) return "an error where the rank itself went on";
    if (!strstr(o->text, named) && !names_by_another(c, r, victim, k)) return "the error does not name the rank";
    return o->status == ESP_E_TIMEOUT && r->timeout_ms == WAIT_MS ? "it waited for its whole timeout" : NULL;
}

static void check(const scenario *c, int32_t victim, int n, int sticky, int hit, const run_of *r, double seconds) {
    for (int32_t k = 0; k < c->size; k++) {
        const char *wrong = wrong_with(c, r, victim, k, hit);
        if (wrong) report(c, victim, n, sticky, k, wrong, r);
    }
    if (atomic_load(&past)) report(c, victim, n, sticky, victim, "memory was taken past the user's allocator", r);
    if (seconds > WAIT_MS / 2000.0) report(c, victim, n, sticky, victim, "the run took longer than 10 s", r);
}

/* Repeats the scenario, each time with another failing allocation of the victim, beginning when ranks connect. `make
 * test-all` tries every allocation (a tenth under the address sanitizer); otherwise more are skipped. If the victim
 * fails before it has connected, the others wait for a timeout, which is short here. */
#ifdef __SANITIZE_ADDRESS__
enum { ALL_EVERY = 10 };
#else
enum { ALL_EVERY = 1 };
#endif
enum { AT_BEGIN = 2, SAMPLE = 8 };
static void fail_each(const scenario *c, int32_t victim, int sticky) {
    static run_of r;
    const double began = test_seconds();
    const char *from = getenv("FROM"); /* for debugging: the first allocation to fail */
    int runs = 0;
    if (c->env[0]) setenv(c->env[0], c->env[1], 1);
    run_once(c, victim, 0, 0, WAIT_MS, &r);
    check(c, victim, 0, 0, 0, &r, 0);
    const int first = r.pool[victim].at_connect + 1, opened = r.pool[victim].at_opened;
    const int every = getenv("TEST_ALL") ? ALL_EVERY : 1 + (atomic_load(&r.pool[victim].seen) - first) / SAMPLE;
    for (int n = from ? atoi(from) : first, hit = bad <= 40; hit && bad <= 40; runs++) {
        const double start = test_seconds();
        hit = run_once(c, victim, n, sticky, c->size > 1 && n <= opened ? OPEN_MS : WAIT_MS, &r);
        check(c, victim, n, sticky, hit, &r, test_seconds() - start);
        n += runs < AT_BEGIN ? 1 : runs == AT_BEGIN ? 1 + (2 * (int)victim + sticky) * every / 4 : every;
    }
    if (c->env[0]) unsetenv(c->env[0]);
    unlink(path);
    if (getenv("VERBOSE"))
        print_message("%s, rank %d, %s: %d runs, %.1f s\n", c->name, (int)victim, sticky ? "sticky" : "once", runs,
                      test_seconds() - began);
}

TEST(each_allocation_fails) {
    const char *only = getenv("SCENARIO");
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (int32_t victim = 0; victim < (all[k].size > 1 ? 2 : 1); victim++)
            for (int sticky = 0; sticky < 2; sticky++)
                if (!only || !strcmp(only, all[k].name)) fail_each(&all[k], victim, sticky);
    assert_int_equal(bad, 0);
}

/* The planner uses malloc if it has no context. */
TEST(a_plan_fails_cleanly) {
    static const esp_cost_point quick[] = {{1, 1000}, {100000, 20000}};
    const esp_plan_tensor tensors[] = {{.name = "a", .elements = 100000, .compute_ns = 1e5},
                                       {.name = "b", .elements = 5000, .compute_ns = 2e5}};
    const esp_plan_model model = {.struct_size = sizeof model, .n_tensors = 2, .tensors = tensors};
    esp_plan_codec codec = {.struct_size = sizeof codec, .spec = "topk:ratio=0.01", .unit_bytes = 6, .units = 0.01};
    esp_plan_system y = {.struct_size = sizeof y, .machines = 2, .ranks_per_machine = 2, .devices = 1};
    codec.compress[0].points = codec.decompress[0].points = quick;
    codec.compress[0].n = codec.decompress[0].n = 2;
    y.intra.alpha_ns = y.inter.alpha_ns = 1000;
    y.intra.bytes_per_us = 1e4, y.inter.bytes_per_us = 100;
    for (int n = 1, hit = 1; hit; n++) {
        esp_plan *plan = NULL;
        atomic_store(&libc_seen, 0);
        atomic_store(&libc_hits, 0);
        atomic_store(&libc_live_fail, n);
        const esp_status s = esp_plan_make(&model, &codec, 1, &y, NULL, &plan);
        atomic_store(&libc_live_fail, 0);
        hit = atomic_load(&libc_hits);
        assert_int_equal(s, hit ? ESP_E_NOMEM : ESP_OK);
        assert_int_equal(plan != NULL, !hit);
        if (hit) assert_non_null(strstr(esp_last_error(NULL), "memory"));
        esp_plan_free(plan);
        assert_true(n < 100);
        if (!hit) assert_true(n > 3);
    }
}

static int setup(void **state) {
    if (folder_make(state)) return -1;
    snprintf(path, sizeof path, "%s", in_folder("file"));
    return 0;
}

TEST_GROUP(setup, folder_remove)
