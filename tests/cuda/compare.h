/* compare.h: one part, compressed and decompressed by a codec's table for the CPU and by its CUDA twin on the test runtime. */
#ifndef CUDA_COMPARE_H
#define CUDA_COMPARE_H
#include "tests/codecs/conformance.h"
#include "tests/cuda/emulator/missing.h"

#ifdef CUDA_DEVICE /* a real one: its order is its own */
static void cuda_host_seed(uint64_t seed) { (void)seed; }
#else
void cuda_host_seed(uint64_t seed);
#endif

/* As esp_status_text(): this test links nothing of the library, so that the memory sanitizer sees all of it. */
static const char *tw_status(esp_status s) {
#define TW_CASE(name, value, text)                                                                                     \
    if (s == value) return text;
    ESP_STATUS_LIST(TW_CASE)
#undef TW_CASE
    return "?";
}

/* ---- the device ---------------------------------------------------------------------------------------------------------- */
static const esp_device_table *tw_table;
static void *tw_device;
static esp_stream tw_stream;
static esp_status tw_find_device(void *user, esp_device d, const esp_device_table **table, void **self) {
    (void)user, (void)d;
    *table = tw_table, *self = tw_device;
    return ESP_OK;
}
static const esp_host tw_host = {.struct_size = sizeof(esp_host),
                                 .abi_major = 1,
                                 .user = (void *)(uintptr_t)&tw_host,
                                 .alloc = cf_alloc,
                                 .free_ = cf_free,
                                 .log = cf_log,
                                 .device = tw_find_device,
                                 .codec_open = cf_inner_open,
                                 .codec_close = cf_inner_close};

/* sms: how many multiprocessors codecs may use, which decides the grids. */
static void tw_open(const char *sms, uint64_t seed) {
    setenv("ESPRESSO_CUDA_SMS", sms, 1);
    cuda_host_seed(seed);
    tw_table = espresso_plugin_v1_cuda(&tw_host)->devices[0];
    assert_int_equal(tw_table->open(&tw_host, 0, &tw_device), ESP_OK);
    assert_int_equal(tw_table->stream_create(tw_device, &tw_stream), ESP_OK);
}
static void tw_close(void) {
    tw_table->stream_destroy(tw_device, tw_stream);
    tw_table->close(tw_device);
}
/* The status of all that was enqueued. */
static esp_status tw_wait(void) {
    void *event;
    assert_int_equal(tw_table->event_create(tw_device, &event), ESP_OK);
    assert_int_equal(tw_table->event_record(tw_device, event, tw_stream), ESP_OK);
    const esp_status s = tw_table->event_sync(tw_device, event);
    tw_table->event_destroy(tw_device, event);
    return s;
}
static void *tw_take(uint64_t bytes) {
    void *p = NULL;
    assert_int_equal(tw_table->alloc(tw_device, bytes, ESP_MEM_DEVICE, &p), ESP_OK);
    return p;
}
static void tw_give(void *p, uint64_t bytes) { tw_table->free_(tw_device, p, bytes, ESP_MEM_DEVICE); }
/* Copies through pinned memory, and waits. */
static void tw_copy(void *to, const void *from, uint64_t bytes, int up) {
    void *pinned = NULL;
    if (!bytes) return;
    assert_int_equal(tw_table->alloc(tw_device, bytes, ESP_MEM_PINNED, &pinned), ESP_OK);
    if (up) memcpy(pinned, from, bytes);
    assert_int_equal(tw_table->copy(tw_device, up ? to : pinned, up ? pinned : from, bytes, tw_stream), ESP_OK);
    (void)tw_wait();
    if (!up) memcpy(to, pinned, bytes);
    tw_table->free_(tw_device, pinned, bytes, ESP_MEM_PINNED);
}

/* ---- a codec's two tables ---------------------------------------------------------------------------------------------------- */
typedef struct tw_codec {
    cf_codec cpu;
    const esp_codec *cuda;
    void *self;
    const char *spec;
} tw_codec;

static const esp_codec *tw_find(const char *spec) {
    const esp_plugin *p = espresso_plugin_v1_cuda(&tw_host);
    const size_t n = strcspn(spec, ":");
    for (uint32_t i = 0; i < p->n_codecs; i++)
        if (strlen(p->codecs[i]->name) == n && !memcmp(p->codecs[i]->name, spec, n)) return p->codecs[i];
    return NULL;
}
static void tw_codec_open(tw_codec *c, const char *spec) {
    const char *params = strchr(spec, ':');
    c->spec = spec;
    c->cuda = tw_find(spec);
    assert_non_null(c->cuda);
    assert_int_equal(c->cuda->devices, ESP_BIT(ESP_CUDA));
    assert_true(cf_open(spec, &cf_plain, &c->cpu));
    assert_int_equal(c->cuda->open(&tw_host, params ? params + 1 : "", &c->self), ESP_OK);
}
static void tw_codec_close(tw_codec *c) {
    c->cuda->close(c->self);
    cf_close(&c->cpu);
}

/* ---- parts ------------------------------------------------------------------------------------------------------------------- */
/* The memory of one part, on one side. Sizes in bytes. */
enum { TW_G, TW_E, TW_STATE, TW_OUT, TW_PAYLOAD, TW_USED, TW_MEMORIES, TW_ROUNDS = ESP_ROUNDS_MAX };
typedef struct tw_side {
    unsigned char *at[TW_MEMORIES], *payload[TW_ROUNDS];
    uint64_t bytes[TW_MEMORIES], capacity[TW_ROUNDS];
} tw_side;
typedef struct tw_part {
    uint64_t count, rows, cols, shift; /* shift: elements by which the gradient is off its memory's begin */
    tw_side cpu, cuda;
    uint64_t body[TW_ROUNDS];
} tw_part;

/* A part of `rows` rows; 0: no matrix. 16 bytes before a payload keep its alignment; the gradient's own is 4. */
static void tw_matrix_make(tw_part *p, const tw_codec *c, uint64_t count, uint64_t rows, uint32_t n_reduced,
                           uint64_t shift) {
    esp_tensor like = {sizeof like, ESP_F32, 7, count, {NULL, 0, {0, 0}}, 0, 0};
    esp_bound b = {.struct_size = sizeof b}, d = {.struct_size = sizeof d};
    memset(p, 0, sizeof *p);
    p->count = count, p->shift = shift;
    p->rows = rows, p->cols = rows ? count / rows : 0;
    like.rows = p->rows, like.cols = p->cols;
    for (uint32_t r = 0; r < c->cpu.traits.n_rounds; r++) {
        assert_int_equal(c->cpu.table->bound(c->cpu.self, &like, r, n_reduced, &b), ESP_OK);
        assert_int_equal(c->cuda->bound(c->self, &like, r, n_reduced, &d), ESP_OK);
        assert_int_equal(b.payload_bytes, d.payload_bytes);
        assert_int_equal(b.state_bytes, d.state_bytes);
        if (r == 0) p->cpu.bytes[TW_STATE] = b.state_bytes;
        if (!b.payload_bytes) b.payload_bytes = ESP_PAYLOAD_HEADER; /* begins with a later round: a header alone */
        p->cpu.capacity[r] = p->cuda.capacity[r] = b.payload_bytes;
        p->cpu.payload[r] = calloc(1, b.payload_bytes + 1);
        p->cuda.payload[r] = tw_take(b.payload_bytes);
    }
    p->cpu.bytes[TW_G] = p->cpu.bytes[TW_E] = p->cpu.bytes[TW_OUT] = (count + shift) * 4;
    p->cpu.bytes[TW_USED] = 8 * TW_ROUNDS;
    for (int i = 0; i < TW_MEMORIES; i++) {
        p->cuda.bytes[i] = p->cpu.bytes[i];
        p->cpu.at[i] = calloc(1, p->cpu.bytes[i] + 1);
        p->cuda.at[i] = tw_take(p->cpu.bytes[i]);
    }
}
static void tw_part_make(tw_part *p, const tw_codec *c, uint64_t count, uint32_t n_reduced, uint64_t shift) {
    const int matrix = cf_has(&c->cpu, ESP_CODEC_NEEDS_MATRIX) && count;
    tw_matrix_make(p, c, count, !matrix ? 0 : count % 6 == 0 ? 6 : count % 4 == 0 ? 4 : 1, n_reduced, shift);
}
static void tw_part_free(tw_part *p) {
    for (int i = 0; i < TW_MEMORIES; i++) {
        free(p->cpu.at[i]);
        tw_give(p->cuda.at[i], p->cuda.bytes[i]);
    }
    for (int r = 0; r < TW_ROUNDS; r++) {
        free(p->cpu.payload[r]);
        if (p->cuda.payload[r]) tw_give(p->cuda.payload[r], p->cuda.capacity[r]);
    }
}
static void tw_up(tw_part *p, int which) { tw_copy(p->cuda.at[which], p->cpu.at[which], p->cpu.bytes[which], 1); }

/* How a list is called. */
typedef struct tw_how {
    int feedback;
    float beta, gamma, scale;
    uint64_t step;
    uint32_t n_reduced, mode, n_payloads, flags;
    tw_part *const *
        from; /* decompress: the parts, of the same size, whose payloads are summed, in a circle; NULL: the part's own */
    uint32_t n_from;
} tw_how;

/* Compresses (or decompresses) a list on one side, in a round. `cuda`: which. */
enum { TW_MOST = 64, TW_PAYLOADS = 300 };
typedef struct tw_call {
    esp_tensor tensor[TW_MOST], *list[TW_MOST];
    uint64_t offset[TW_MOST];
    esp_payload payload[TW_MOST * TW_PAYLOADS / 8], reduced[TW_MOST];
    esp_buf residual[TW_MOST], state[TW_MOST];
} tw_call;
static tw_call tw_now;

static esp_codec_args tw_args(const tw_codec *c, tw_part *const *part, uint32_t n, const tw_how *how, uint32_t round,
                              int cuda, int decompress) {
    const esp_device dev = {cuda ? ESP_CUDA : ESP_CPU, 0};
    const uint32_t per = decompress ? how->n_payloads : 1, last = c->cpu.traits.n_rounds - 1;
    esp_codec_args a = {.struct_size = sizeof a, .mode = how->mode, .step = how->step, .seed = 42, .source = 3};
    memset(&tw_now, 0, sizeof tw_now);
    assert_true(n <= TW_MOST && (uint64_t)n * per <= CF_COUNT(tw_now.payload));
    for (uint32_t t = 0; t < n; t++) {
        tw_part *p = part[t];
        tw_side *s = cuda ? &p->cuda : &p->cpu;
        unsigned char *x = s->at[decompress ? TW_OUT : TW_G] + 4 * p->shift;
        tw_now.tensor[t] =
            (esp_tensor){sizeof(esp_tensor), ESP_F32, 7 + t, p->count, {x, p->count * 4, dev}, p->rows, p->cols};
        tw_now.list[t] = &tw_now.tensor[t];
        tw_now.offset[t] = p->shift;
        tw_now.residual[t] = (esp_buf){s->at[TW_E] + 4 * p->shift, p->count * 4, dev};
        tw_now.state[t] = (esp_buf){s->at[TW_STATE], s->bytes[TW_STATE], dev};
        for (uint32_t k = 0; k < per; k++) {
            tw_part *q = decompress && how->from ? how->from[k % how->n_from] : p;
            tw_now.payload[t * per + k] =
                (esp_payload){{(cuda ? &q->cuda : &q->cpu)->payload[decompress ? last : round],
                               decompress ? q->body[last] : s->capacity[round], dev},
                              decompress ? NULL : (uint64_t *)(void *)s->at[TW_USED] + round};
        }
        const uint32_t before = decompress ? last : round;
        if (before) tw_now.reduced[t] = (esp_payload){{s->payload[before - 1], s->capacity[before - 1], dev}, NULL};
    }
    a.n_tensors = n, a.n_payloads = per, a.n_reduced = how->n_reduced, a.round = decompress ? 0 : round;
    a.beta = how->beta, a.gamma = how->gamma, a.scale = how->scale, a.flags = how->flags;
    a.tensor = tw_now.list, a.offset = tw_now.offset, a.payload = tw_now.payload;
    if (how->feedback && !decompress) a.residual = tw_now.residual;
    for (uint32_t t = 0; t < n; t++)
        if (part[t]->cpu.bytes[TW_STATE]) a.state = tw_now.state;
    if (decompress ? last : round) a.reduced = tw_now.reduced;
    if (cuda) a.stream = tw_stream;
    return a;
}

/* Scratch memory of a list's call: that of the part that needs most, for each. */
static uint64_t tw_scratch(const esp_codec *table, void *self, tw_part *const *part, uint32_t n, uint32_t round,
                           uint32_t n_reduced) {
    uint64_t most = 0;
    for (uint32_t t = 0; t < n; t++) {
        esp_tensor like = {sizeof like, ESP_F32, 7, part[t]->count, {NULL, 0, {0, 0}}, part[t]->rows, part[t]->cols};
        esp_bound b = {.struct_size = sizeof b};
        assert_int_equal(table->bound(self, &like, round, n_reduced, &b), ESP_OK);
        const uint64_t bytes = (b.scratch_bytes + 63) / 64 * 64;
        most = bytes > most ? bytes : most;
    }
    return most * n;
}

/* The call on the CPU: part by part. */
static esp_status tw_on_cpu(const tw_codec *c, tw_part *const *part, uint32_t n, const tw_how *how, uint32_t round,
                            int decompress) {
    esp_status s = ESP_OK;
    for (uint32_t t = 0; t < n && s == ESP_OK; t++) {
        esp_codec_args a = tw_args(c, part + t, 1, how, round, 0, decompress);
        tw_now.tensor[0].key = 7 + t;
        const uint64_t bytes = tw_scratch(c->cpu.table, c->cpu.self, part + t, 1, round, how->n_reduced);
        esp_buf scratch = {bytes ? aligned_alloc(64, bytes) : NULL, bytes, {0, 0}};
        a.scratch = bytes ? &scratch : NULL;
        s = decompress ? c->cpu.table->decompress(c->cpu.self, &a) : c->cpu.table->compress(c->cpu.self, &a);
        free(scratch.ptr);
    }
    return s;
}
/* The call on the device: one list. Its status, or that of the work. */
static esp_status tw_on_cuda(const tw_codec *c, tw_part *const *part, uint32_t n, const tw_how *how, uint32_t round,
                             int decompress) {
    const uint64_t bytes = tw_scratch(c->cuda, c->self, part, n, round, how->n_reduced);
    esp_codec_args a = tw_args(c, part, n, how, round, 1, decompress);
    esp_buf scratch = {bytes ? tw_take(bytes) : NULL, bytes, {ESP_CUDA, 0}};
    a.scratch = bytes ? &scratch : NULL;
    esp_status s = decompress ? c->cuda->decompress(c->self, &a) : c->cuda->compress(c->self, &a);
    memset(&tw_now, 0xEE, sizeof tw_now); /* the lists are gone when the call returns */
    const esp_status later = tw_wait();
    if (bytes) tw_give(scratch.ptr, bytes);
    return s ? s : later;
}

/* Fails unless a memory is the same on both sides. */
static void tw_same(const char *spec, const tw_part *p, const char *what, const void *cpu, const void *cuda,
                    uint64_t bytes) {
    unsigned char *got = malloc(bytes + 1);
    tw_copy(got, cuda, bytes, 0);
    for (uint64_t i = 0; i < bytes; i++)
        if (got[i] != ((const unsigned char *)cpu)[i])
            fail_msg("%s, %llu elements: %s differs at byte %llu of %llu: the CPU has %02x, CUDA %02x", spec,
                     (unsigned long long)p->count, what, (unsigned long long)i, (unsigned long long)bytes,
                     ((const unsigned char *)cpu)[i], got[i]);
    free(got);
}
/* Compresses all rounds of a list on both sides, and compares everything that they wrote. */
CF_UNUSED static void tw_compress(const tw_codec *c, tw_part *const *part, uint32_t n, const tw_how *how) {
    for (uint32_t r = 0; r < c->cpu.traits.n_rounds; r++) {
        const esp_status s = tw_on_cpu(c, part, n, how, r, 0);
        if (s != ESP_OK) fail_msg("%s: the CPU's compress: %s: %s", c->spec, tw_status(s), cf_message);
        const esp_status d = tw_on_cuda(c, part, n, how, r, 0);
        if (d != ESP_OK) fail_msg("%s: CUDA's compress: %s: %s", c->spec, tw_status(d), cf_message);
        for (uint32_t t = 0; t < n; t++) {
            tw_part *p = part[t];
            p->body[r] = ((const uint64_t *)(void *)p->cpu.at[TW_USED])[r];
            tw_same(c->spec, p, "used", p->cpu.at[TW_USED] + 8 * r, p->cuda.at[TW_USED] + 8 * r, 8);
            tw_same(c->spec, p, "the payload", p->cpu.payload[r], p->cuda.payload[r], p->body[r]);
        }
    }
    for (uint32_t t = 0; t < n; t++) {
        tw_same(c->spec, part[t], "the residual", part[t]->cpu.at[TW_E], part[t]->cuda.at[TW_E],
                part[t]->cpu.bytes[TW_E]);
        tw_same(c->spec, part[t], "state", part[t]->cpu.at[TW_STATE], part[t]->cuda.at[TW_STATE],
                part[t]->cpu.bytes[TW_STATE]);
    }
}
CF_UNUSED static void tw_decompress(const tw_codec *c, tw_part *const *part, uint32_t n, const tw_how *how) {
    for (uint32_t t = 0; t < n; t++) {
        for (uint64_t i = 0; i < part[t]->cpu.bytes[TW_OUT] / 4; i++)
            ((float *)(void *)part[t]->cpu.at[TW_OUT])[i] = cf_normal();
        tw_up(part[t], TW_OUT);
    }
    const esp_status s = tw_on_cpu(c, part, n, how, 0, 1), d = tw_on_cuda(c, part, n, how, 0, 1);
    if (s != ESP_OK) fail_msg("%s: the CPU's decompress: %s: %s", c->spec, tw_status(s), cf_message);
    if (d != ESP_OK) fail_msg("%s: CUDA's decompress: %s: %s", c->spec, tw_status(d), cf_message);
    for (uint32_t t = 0; t < n; t++)
        tw_same(c->spec, part[t], "what was decoded", part[t]->cpu.at[TW_OUT], part[t]->cuda.at[TW_OUT],
                part[t]->cpu.bytes[TW_OUT]);
}
#endif
