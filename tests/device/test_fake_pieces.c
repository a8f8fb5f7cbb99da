/* test_fake_pieces.c checks that large copies between host and device overlap the host's work on the data. The fake
 * device copies a piece to the host only when the host has begun to compress the piece before, and the codec
 * decompresses a piece only when the piece before was copied to the device. Without overlap both wait for each other,
 * and the test fails after a time limit. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

enum { COUNT = 12001, PIECE_RANKS = 4, GIVE_UP = 60000 };

typedef enum waits { BY_PART, BY_CHUNK, BY_NOTHING } waits;

typedef struct gate {
    const esp_ctx *ctx;
    void *device;
    int on;
    waits waits;
    int first_up;
    int down, up; /* numbers of copies to the host, and to the device */
    int copied_up;
    int compress, decompress;
    /* when the first and the last copy ended: [0] of those to the host, [1] of those to the device */
    uint64_t first_ns[2], last_ns[2];
    int gave_up;
} gate;
static gate gates[PIECE_RANKS];

static int get(const int *x) { return __atomic_load_n(x, __ATOMIC_SEQ_CST); }
static int add(int *x) { return __atomic_fetch_add(x, 1, __ATOMIC_SEQ_CST); }
static gate *gate_of(const esp_ctx *ctx) { return &gates[esp_rank(ctx)]; }

/* Counts allocations of host and device memory by all ranks. A step must make none. */
static int allocations;
static void *host_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    add(&allocations);
    return test_host_alloc(user, d, bytes, align);
}
static esp_status table_alloc(void *self, uint64_t bytes, uint32_t where, void **out) {
    add(&allocations);
    return fake_alloc(self, bytes, where, out);
}

/* ---- the device -------------------------------------------------------------------------------------------------- */
typedef struct gated_copy {
    fake_move move; /* must be first, since fake_run_copy() casts it */
    gate *g;
    int k, asked, up;
} gated_copy;

static int copy_ready(void *arg) {
    gated_copy *c = arg;
    const gate *g = c->g;
    if (c->up || g->waits == BY_NOTHING || get(g->waits == BY_CHUNK ? &g->decompress : &g->compress) >= c->k) return 1;
    if (++c->asked < GIVE_UP) return 0;
    add(&c->g->gave_up);
    return 1;
}
static esp_status copy_run(void *arg) {
    const gated_copy *c = arg;
    const esp_status s = fake_run_copy(arg);
    const uint64_t now = esp__now_ns();
    if (!c->k) c->g->first_ns[c->up] = now;
    c->g->last_ns[c->up] = now;
    if (c->up) add(&c->g->copied_up);
    return s;
}
static esp_status table_copy(void *self, void *dst, const void *src, uint64_t bytes, esp_stream s) {
    for (gate *g = gates; g < gates + PIECE_RANKS; g++) {
        if (g->device != self || !get(&g->on)) continue;
        const esp__device *d = esp__device_at(g->ctx, 1);
        const int up = s.native == d->stream[ESP__ON_UP].native;
        if (!up && s.native != d->stream[ESP__ON_DOWN].native) break;
        gated_copy c = {
            {.dst = fake_own(dst, bytes), .src = fake_own(src, bytes)}, g, add(up ? &g->up : &g->down), 0, up};
        c.move.dst_pitch = c.move.src_pitch = c.move.bytes = bytes, c.move.rows = 1;
        return c.move.dst && c.move.src ? fake_launch_when(s, copy_ready, copy_run, &c, sizeof c) : ESP_E_ARG;
    }
    return fake_copy(self, dst, src, bytes, s);
}

/* ---- CPU codecs that count their calls, and wait for the copies before them -------------------------------------- */
typedef struct gated_codec {
    fake_codec of; /* must be first, since fake_codec_bound() casts it */
    gate *g;
} gated_codec;

static esp_status gated_open(const esp_host *h, const char *name, const char *params, void **self) {
    gated_codec *c = calloc(1, sizeof *c);
    c->of.cpu = esp__registry_codec_on(h->user, name, ESP_CPU);
    c->g = gate_of(h->user);
    *self = c;
    return c->of.cpu->open(h, params, &c->of.self);
}
static esp_status list_open(const esp_host *h, const char *p, void **self) { return gated_open(h, "topk", p, self); }
static esp_status one_open(const esp_host *h, const char *p, void **self) { return gated_open(h, "none", p, self); }
static esp_status gated_compress(void *self, const esp_codec_args *a) {
    gated_codec *c = self;
    if (get(&c->g->on)) add(&c->g->compress);
    return c->of.cpu->compress(c->of.self, a);
}
static esp_status gated_decompress(void *self, const esp_codec_args *a) {
    gated_codec *c = self;
    gate *g = c->g;
    if (get(&g->on)) {
        const int k = add(&g->decompress) - g->first_up;
        int asked = 0;
        while (g->device && g->waits != BY_NOTHING && get(&g->copied_up) < k && ++asked < GIVE_UP) usleep(50);
        if (asked == GIVE_UP) add(&g->gave_up);
    }
    return c->of.cpu->decompress(c->of.self, a);
}

static const esp_plugin *gated_plugin(const esp_host *h) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static esp_device_table device;
    static esp_codec list, one;
    static const esp_codec *const codecs[] = {&list, &one};
    static const esp_device_table *const devices[] = {&device};
    static const esp_plugin plugin = {
        .struct_size = sizeof plugin, .n_codecs = 2, .n_devices = 1, .codecs = codecs, .devices = devices};
    pthread_mutex_lock(&once);
    if (!device.struct_size) {
        fake_codec_like(&list, esp__registry_codec_on(h->user, "topk", ESP_CPU), list_open);
        fake_codec_like(&one, esp__registry_codec_on(h->user, "none", ESP_CPU), one_open);
        list.name = "list", one.name = "one";
        list.devices = one.devices = ESP_BIT(ESP_CPU);
        list.compress = one.compress = gated_compress;
        list.decompress = one.decompress = gated_decompress;
        device = fake_table;
        device.copy = table_copy;
        device.alloc = table_alloc;
    }
    pthread_mutex_unlock(&once);
    return &plugin;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */
typedef struct piece_job {
    const char *codec, *option;
    int chunks;
    esp_dtype dtype;
    waits waits;
    int on_device, first_up;
    uint64_t piece_bytes;
    uint8_t *out; /* results, as [rank][step][element] */
} piece_job;

static void piece_strategy(const piece_job *j, char *text, size_t cap) {
    size_t n = (size_t)snprintf(text, cap, "espresso-strategy 1\ntensor w %d ", (int)COUNT);
    if (j->chunks) n += (size_t)snprintf(text + n, cap - n, "split %d\n", j->chunks);
    for (int k = 0, left = COUNT; k < (j->chunks ? j->chunks : 1); k++) {
        const int count = k + 1 < j->chunks ? COUNT / j->chunks : left;
        if (j->chunks) n += (size_t)snprintf(text + n, cap - n, "chunk %d ", count);
        n += (size_t)snprintf(text + n, cap - n, "%s %s\n", j->codec, j->option);
        left -= count;
    }
}

/* Checks that the measured time of a copy covers all its pieces. */
static void check_spans(const esp_ctx *ctx, const gate *g) {
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++) {
        const esp__op *op = &ctx->active.program.ops[i];
        const esp__span *t = &ctx->active.op_time[i];
        const int up = op->copy.what == ESP__COPY_UP;
        if (op->on && op->n_pieces) CHECK(t->end_ns - t->start_ns >= g->last_ns[up] - g->first_ns[up]);
    }
}

static void piece_body(esp_ctx *ctx, void *user) {
    const piece_job *j = user;
    gate *g = gate_of(ctx);
    const uint64_t bytes = COUNT * (uint64_t)esp_dtype_bytes(j->dtype);
    char strategy[1024];
    place p;
    esp_tensor_desc d = {.name = "w", .count = COUNT, .dtype = j->dtype};
    if (j->on_device) d.device.kind = FAKE_KIND;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    place_open(ctx, &p, d.device, bytes);
    ctx->devices.piece_bytes = j->piece_bytes;
    *g = (gate){.ctx = ctx, .device = j->on_device ? p.self : NULL, .waits = j->waits, .first_up = j->first_up};
    piece_strategy(j, strategy, sizeof strategy);
    CHECK(esp_start(ctx) == ESP_OK);
    esp__core_times(ctx, ESP__CORE_STATS, true);
    CHECK(esp_strategy_set(ctx, strategy) == ESP_OK);
    CHECK(esp_barrier(ctx) == ESP_OK);
    const int taken = get(&allocations);
    CHECK(taken > 0);
    for (int step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < COUNT; i++) test_value_set(j->dtype, p.pinned, i, input(esp_rank(ctx), step, i));
        write_late(&p);
        __atomic_store_n(&g->on, step == 1, __ATOMIC_SEQ_CST);
        CHECK(esp_push(ctx, 0, p.grad, p.stream) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (step == 1) check_spans(ctx, g);
        if (j->on_device) fake_get(p.pinned, p.grad, bytes);
        memcpy(j->out + ((uint64_t)esp_rank(ctx) * STEPS + (uint64_t)step) * bytes, p.pinned, bytes);
    }
    __atomic_store_n(&g->on, 0, __ATOMIC_SEQ_CST);
    CHECK(get(&allocations) == taken);
    CHECK(esp_barrier(ctx) == ESP_OK);
    place_close(&p);
}

/* Runs a job with gradients in host memory, then the same job with gradients on the device. Results must be equal.
 * On the device, each rank must copy `down` pieces to the host and `up` pieces back. */
static void run_pieces(piece_job j, int32_t size, int down, int up) {
    static const esp_plugin_fn entry = gated_plugin;
    static const esp_host host = {.struct_size = sizeof host, .alloc = host_alloc, .free_ = test_host_free};
    const uint64_t bytes = (uint64_t)PIECE_RANKS * STEPS * COUNT * esp_dtype_bytes(j.dtype);
    uint8_t *out[2];
    for (j.on_device = 0; j.on_device < 2; j.on_device++) {
        j.out = out[j.on_device] = calloc(1, bytes);
        RUN_RANKS(.size = size, .body = piece_body, .user = &j, .config.timeout_ms = 60000, .config.builtin = &entry,
                  .config.n_builtin = 1, .config.host = &host);
    }
    assert_memory_equal(out[0], out[1], bytes);
    for (int32_t r = 0; r < size; r++) {
        assert_int_equal(gates[r].gave_up, 0);
        assert_int_equal(gates[r].down, down);
        assert_int_equal(gates[r].up, up);
        assert_int_equal(gates[r].copied_up, up);
    }
    free(out[0]);
    free(out[1]);
    assert_int_equal(fake_live + fake_refused, 0);
}

#define ENDS                                                                                                           \
    "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu" /* both have several pieces */

/* A tensor has four pieces, of 4096 bytes or less. If piece_bytes is 4096, each is copied by itself. */
TEST(test_parts) {
    static const char *const codecs[] = {"one", "list:ratio=0.1", "one:feedback=residual"};
    piece_job j = {.option = ENDS, .dtype = ESP_F32, .first_up = 1, .piece_bytes = 4096};
    for (int c = 0; c < 3; c++) {
        j.codec = codecs[c];
        run_pieces(j, 4, 4, 4);
        assert_int_equal(gates[0].compress, 5);
        assert_int_equal(gates[0].decompress, 5);
    }
    j.codec = codecs[1];
    j.piece_bytes = 20000; /* two pieces are copied and compressed together */
    run_pieces(j, 4, 2, 2);
    assert_int_equal(gates[0].compress, 3);
    assert_int_equal(gates[0].decompress, 3);
    j.piece_bytes = 1 << 20; /* all is copied at once, and compressed in one call */
    j.waits = BY_NOTHING;
    run_pieces(j, 4, 1, 1);
    assert_int_equal(gates[0].compress, 2);
}

/* One chunk of a tensor is copied while others are compressed, sent, decompressed and copied back. */
TEST(test_chunks) {
    piece_job j = {.codec = "one", .option = "comp@cpu > flat.allgather > decomp@cpu", .dtype = ESP_F32};
    j.chunks = 4;
    j.waits = BY_CHUNK;
    j.piece_bytes = 1 << 20;
    run_pieces(j, 4, 4, 4);
}

/* Gradients of 16 bits are converted to floats piece by piece, and the sum of three ranks is divided piece by piece. */
TEST(test_conversions) {
    piece_job j = {.codec = "list:ratio=0.1", .option = ENDS, .dtype = ESP_BF16, .piece_bytes = 4096};
    j.waits = BY_NOTHING;
    run_pieces(j, 4, 6, 6);
    j.dtype = ESP_F16;
    run_pieces(j, 3, 6, 6);
    j.dtype = ESP_F32;
    run_pieces(j, 3, 3, 12);
    j.piece_bytes = 64;
    run_pieces(j, 3, 3, 16);
}
