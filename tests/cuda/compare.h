/* compare.h compares the CPU and the CUDA implementation of a codec on tensors that both compress and decompress. CUDA
 * runs on the tests' emulator, or on a GPU. */
#ifndef CUDA_COMPARE_H
#define CUDA_COMPARE_H
#include "tests/codecs/conformance.h"
#include "tests/cuda/emulator/missing.h"

#ifdef CUDA_DEVICE
static void cuda_host_seed(uint64_t seed) { (void)seed; }
static uint64_t cuda_host_untouched(void) { return 0; }
static inline uint32_t cuda_host_widest(void) { return 1; }
static inline uint32_t cuda_host_pinned(void) { return 0; }
static inline int cuda_host_idle(const void **one) { return (void)one, 0; }
#else
void cuda_host_seed(uint64_t seed);
uint64_t cuda_host_untouched(void);
uint32_t cuda_host_widest(void), cuda_host_pinned(void);
int cuda_host_idle(const void **one);
typedef struct cuda_host_counts {
    uint64_t launches, fills, copies, read, written;
    uint64_t records, waits, queries, elapsed, captures, devices, untouched;
} cuda_host_counts;
cuda_host_counts cuda_host_counted(int reset);
#endif

/* The same as esp_status_text(). This test cannot link the library, which is built without the memory sanitizer. */
static const char *pair_status(esp_status s) {
#define TW_CASE(name, value, text)                                                                                     \
    if (s == value) return text;
    ESP_STATUS_LIST(TW_CASE)
#undef TW_CASE
    return "?";
}

/* ---- the device -------------------------------------------------------------------------------------------------- */
static const esp_device_table *pair_table;
static void *pair_device;
static esp_stream pair_stream;
static void *pair_event, *pair_pinned; /* for copies between host and device */
static uint64_t pair_pinned_bytes;
static esp_status pair_find_device(void *user, esp_device d, const esp_device_table **table, void **self) {
    (void)user, (void)d;
    *table = pair_table, *self = pair_device;
    return ESP_OK;
}
static const esp_host pair_host = {.struct_size = sizeof(esp_host),
                                   .abi_major = 1,
                                   .user = (void *)(uintptr_t)&pair_host,
                                   .alloc = cf_alloc,
                                   .free_ = cf_free,
                                   .log = cf_log,
                                   .device = pair_find_device,
                                   .codec_open = cf_inner_open,
                                   .codec_close = cf_inner_close};

/* Opens plugin cuda. Its codecs may use `sms` multiprocessors, which determines the number of blocks. */
static void pair_open(const char *sms, uint64_t seed) {
    setenv("ESPRESSO_CUDA_SMS", sms, 1);
    cuda_host_seed(seed);
    pair_table = espresso_plugin_v1_cuda(&pair_host)->devices[0];
    assert_int_equal(pair_table->open(&pair_host, 0, &pair_device), ESP_OK);
    assert_int_equal(pair_table->stream_create(pair_device, &pair_stream), ESP_OK);
    assert_int_equal(pair_table->event_create(pair_device, &pair_event), ESP_OK);
    (void)cuda_host_pinned();
}
static void pair_close(void) {
    assert_int_equal(cuda_host_untouched(), 0);
    assert_true(cuda_host_pinned() <= 32); /* on a GPU each takes about as long as a codec */
    if (pair_pinned) pair_table->free_(pair_device, pair_pinned, pair_pinned_bytes, ESP_MEM_PINNED);
    pair_pinned = NULL, pair_pinned_bytes = 0;
    pair_table->event_destroy(pair_device, pair_event);
    pair_table->stream_destroy(pair_device, pair_stream);
    pair_table->close(pair_device);
}
static esp_status pair_wait(void) {
    assert_int_equal(pair_table->event_record(pair_device, pair_event, pair_stream), ESP_OK);
    return pair_table->event_sync(pair_device, pair_event);
}
static void *pair_take(uint64_t bytes) {
    void *p = NULL;
    assert_int_equal(pair_table->alloc(pair_device, bytes, ESP_MEM_DEVICE, &p), ESP_OK);
    return p;
}
static void pair_give(void *p, uint64_t bytes) { pair_table->free_(pair_device, p, bytes, ESP_MEM_DEVICE); }
static void pair_copy(void *to, const void *from, uint64_t bytes, int up) {
    if (bytes > pair_pinned_bytes) {
        if (pair_pinned) pair_table->free_(pair_device, pair_pinned, pair_pinned_bytes, ESP_MEM_PINNED);
        pair_pinned_bytes = 2 * bytes;
        assert_int_equal(pair_table->alloc(pair_device, pair_pinned_bytes, ESP_MEM_PINNED, &pair_pinned), ESP_OK);
    }
    if (up && bytes) memcpy(pair_pinned, from, bytes); /* pair_pinned may still be NULL */
    assert_int_equal(pair_table->copy(pair_device, up ? to : pair_pinned, up ? pair_pinned : from, bytes, pair_stream),
                     ESP_OK);
    (void)pair_wait();
    if (!up && bytes) memcpy(to, pair_pinned, bytes);
}

/* ---- a codec's two tables ---------------------------------------------------------------------------------------- */
typedef struct pair_codec {
    cf_codec cpu;
    const esp_codec *cuda;
    void *self;
    const char *spec;
} pair_codec;

static const esp_codec *pair_find(const char *spec) {
    const esp_plugin *p = espresso_plugin_v1_cuda(&pair_host);
    const size_t n = strcspn(spec, ":");
    for (uint32_t i = 0; i < p->n_codecs; i++)
        if (strlen(p->codecs[i]->name) == n && !memcmp(p->codecs[i]->name, spec, n)) return p->codecs[i];
    return NULL;
}
static void pair_codec_open(pair_codec *c, const char *spec) {
    const char *params = strchr(spec, ':');
    c->spec = spec;
    c->cuda = pair_find(spec);
    assert_non_null(c->cuda);
    assert_int_equal(c->cuda->devices, ESP_BIT(ESP_CUDA));
    assert_true(cf_open(spec, &cf_plain, &c->cpu));
    assert_int_equal(c->cuda->open(&pair_host, params ? params + 1 : "", &c->self), ESP_OK);
}
static void pair_codec_close(pair_codec *c) {
    c->cuda->close(c->self);
    cf_close(&c->cpu);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */
enum { TW_G, TW_E, TW_STATE, TW_OUT, TW_PAYLOAD, TW_USED, TW_MEMORIES, TW_ROUNDS = ESP_ROUNDS_MAX };
typedef struct pair_side {
    unsigned char *at[TW_MEMORIES], *payload[TW_ROUNDS];
    uint64_t bytes[TW_MEMORIES], capacity[TW_ROUNDS];
} pair_side;
typedef struct pair_part {
    /* The gradient begins `shift` elements into its memory, so that it is aligned to no more than 4 bytes. */
    uint64_t count, rows, cols, shift;
    pair_side cpu, cuda;
    uint64_t body[TW_ROUNDS];
} pair_part;

static void pair_matrix_make(pair_part *p, const pair_codec *c, uint64_t count, uint64_t rows, uint32_t n_reduced,
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
        if (!b.payload_bytes) b.payload_bytes = ESP_PAYLOAD_HEADER;
        p->cpu.capacity[r] = p->cuda.capacity[r] = b.payload_bytes;
        p->cpu.payload[r] = calloc(1, b.payload_bytes + 1);
        p->cuda.payload[r] = pair_take(b.payload_bytes);
    }
    p->cpu.bytes[TW_G] = p->cpu.bytes[TW_E] = p->cpu.bytes[TW_OUT] = (count + shift) * 4;
    p->cpu.bytes[TW_USED] = 8 * TW_ROUNDS;
    for (int i = 0; i < TW_MEMORIES; i++) {
        p->cuda.bytes[i] = p->cpu.bytes[i];
        p->cpu.at[i] = calloc(1, p->cpu.bytes[i] + 1);
        p->cuda.at[i] = pair_take(p->cpu.bytes[i]);
    }
}
static void pair_part_make(pair_part *p, const pair_codec *c, uint64_t count, uint32_t n_reduced, uint64_t shift) {
    const int matrix = cf_has(&c->cpu, ESP_CODEC_NEEDS_MATRIX) && count;
    pair_matrix_make(p, c, count, !matrix ? 0 : count % 6 == 0 ? 6 : count % 4 == 0 ? 4 : 1, n_reduced, shift);
}
static void pair_part_free(pair_part *p) {
    for (int i = 0; i < TW_MEMORIES; i++) {
        free(p->cpu.at[i]);
        pair_give(p->cuda.at[i], p->cuda.bytes[i]);
    }
    for (int r = 0; r < TW_ROUNDS; r++) {
        free(p->cpu.payload[r]);
        if (p->cuda.payload[r]) pair_give(p->cuda.payload[r], p->cuda.capacity[r]);
    }
}
static void pair_up(pair_part *p, int which) { pair_copy(p->cuda.at[which], p->cpu.at[which], p->cpu.bytes[which], 1); }

typedef struct pair_how {
    int feedback;
    float beta, gamma, scale;
    uint64_t step;
    uint32_t n_reduced, n_summed, mode, n_payloads, flags;
    pair_part *const *from;
    uint32_t n_from;
} pair_how;

enum { TW_MOST = 64, TW_PAYLOADS = 300 };
typedef struct pair_call {
    esp_tensor tensor[TW_MOST], *list[TW_MOST];
    uint64_t offset[TW_MOST];
    esp_payload payload[TW_MOST * TW_PAYLOADS / 8], reduced[TW_MOST];
    esp_buf residual[TW_MOST], state[TW_MOST];
} pair_call;
static pair_call pair_now;

static esp_codec_args pair_args(const pair_codec *c, pair_part *const *part, uint32_t n, const pair_how *how,
                                uint32_t round, int cuda, int decompress) {
    const esp_device dev = {cuda ? ESP_CUDA : ESP_CPU, 0};
    const uint32_t per = decompress ? how->n_payloads : 1, last = c->cpu.traits.n_rounds - 1;
    esp_codec_args a = {.struct_size = sizeof a, .mode = how->mode, .step = how->step, .seed = 42, .source = 3};
    memset(&pair_now, 0, sizeof pair_now);
    assert_true(n <= TW_MOST && (uint64_t)n * per <= CF_COUNT(pair_now.payload));
    for (uint32_t t = 0; t < n; t++) {
        pair_part *p = part[t];
        pair_side *s = cuda ? &p->cuda : &p->cpu;
        unsigned char *x = s->at[decompress ? TW_OUT : TW_G] + 4 * p->shift;
        pair_now.tensor[t] =
            (esp_tensor){sizeof(esp_tensor), ESP_F32, 7 + t, p->count, {x, p->count * 4, dev}, p->rows, p->cols};
        pair_now.list[t] = &pair_now.tensor[t];
        pair_now.offset[t] = p->shift;
        pair_now.residual[t] = (esp_buf){s->at[TW_E] + 4 * p->shift, p->count * 4, dev};
        pair_now.state[t] = (esp_buf){s->at[TW_STATE], s->bytes[TW_STATE], dev};
        for (uint32_t k = 0; k < per; k++) {
            pair_part *q = decompress && how->from ? how->from[k % how->n_from] : p;
            pair_now.payload[t * per + k] =
                (esp_payload){{(cuda ? &q->cuda : &q->cpu)->payload[decompress ? last : round],
                               decompress ? q->body[last] : s->capacity[round], dev},
                              decompress ? NULL : (uint64_t *)(void *)s->at[TW_USED] + round};
        }
        const uint32_t before = decompress ? last : round;
        if (before) pair_now.reduced[t] = (esp_payload){{s->payload[before - 1], s->capacity[before - 1], dev}, NULL};
    }
    a.n_tensors = n, a.n_payloads = per, a.n_reduced = how->n_reduced, a.n_summed = how->n_summed,
    a.round = decompress ? 0 : round;
    a.beta = how->beta, a.gamma = how->gamma, a.scale = how->scale, a.flags = how->flags;
    a.tensor = pair_now.list, a.offset = pair_now.offset, a.payload = pair_now.payload;
    if (how->feedback && !decompress) a.residual = pair_now.residual;
    for (uint32_t t = 0; t < n; t++)
        if (part[t]->cpu.bytes[TW_STATE]) a.state = pair_now.state;
    if (decompress ? last : round) a.reduced = pair_now.reduced;
    if (cuda) a.stream = pair_stream;
    return a;
}

/* Returns the bytes of scratch memory for a list: for each tensor as much as the largest needs. */
static uint64_t pair_scratch(const esp_codec *table, void *self, pair_part *const *part, uint32_t n, uint32_t round,
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

static esp_status pair_on_cpu(const pair_codec *c, pair_part *const *part, uint32_t n, const pair_how *how,
                              uint32_t round, int decompress) {
    esp_status s = ESP_OK;
    for (uint32_t t = 0; t < n && s == ESP_OK; t++) {
        esp_codec_args a = pair_args(c, part + t, 1, how, round, 0, decompress);
        pair_now.tensor[0].key = 7 + t;
        const uint64_t bytes = pair_scratch(c->cpu.table, c->cpu.self, part + t, 1, round, how->n_reduced);
        esp_buf scratch = {bytes ? aligned_alloc(64, bytes) : NULL, bytes, {0, 0}};
        a.scratch = bytes ? &scratch : NULL;
        s = decompress ? c->cpu.table->decompress(c->cpu.self, &a) : c->cpu.table->compress(c->cpu.self, &a);
        free(scratch.ptr);
    }
    return s;
}
/* Calls the CUDA implementation once for the list. Returns the status of the call or of its later work. */
static esp_status pair_on_cuda(const pair_codec *c, pair_part *const *part, uint32_t n, const pair_how *how,
                               uint32_t round, int decompress) {
    const uint64_t bytes = pair_scratch(c->cuda, c->self, part, n, round, how->n_reduced);
    esp_codec_args a = pair_args(c, part, n, how, round, 1, decompress);
    esp_buf scratch = {bytes ? pair_take(bytes) : NULL, bytes, {ESP_CUDA, 0}};
    a.scratch = bytes ? &scratch : NULL;
    esp_status s = decompress ? c->cuda->decompress(c->self, &a) : c->cuda->compress(c->self, &a);
    memset(&pair_now, 0xEE, sizeof pair_now); /* so that kernels that read the arguments later fail */
    const esp_status later = pair_wait();
    if (bytes) pair_give(scratch.ptr, bytes);
    return s ? s : later;
}

static void pair_same(const char *spec, const pair_part *p, const char *what, const void *cpu, const void *cuda,
                      uint64_t bytes) {
    unsigned char *got = malloc(bytes + 1);
    pair_copy(got, cuda, bytes, 0);
    for (uint64_t i = 0; i < bytes; i++)
        if (got[i] != ((const unsigned char *)cpu)[i])
            fail_msg("%s, %llu elements: %s differs at byte %llu of %llu: the CPU has %02x, CUDA %02x", spec,
                     (unsigned long long)p->count, what, (unsigned long long)i, (unsigned long long)bytes,
                     ((const unsigned char *)cpu)[i], got[i]);
    free(got);
}
/* Compresses a list with both implementations and compares everything that they wrote. */
CF_UNUSED static void pair_compress(const pair_codec *c, pair_part *const *part, uint32_t n, const pair_how *how) {
    for (uint32_t r = 0; r < c->cpu.traits.n_rounds; r++) {
        const esp_status s = pair_on_cpu(c, part, n, how, r, 0);
        if (s != ESP_OK) fail_msg("%s: the CPU's compress: %s: %s", c->spec, pair_status(s), cf_message);
        const esp_status d = pair_on_cuda(c, part, n, how, r, 0);
        if (d != ESP_OK) fail_msg("%s: CUDA's compress: %s: %s", c->spec, pair_status(d), cf_message);
        for (uint32_t t = 0; t < n; t++) {
            pair_part *p = part[t];
            p->body[r] = ((const uint64_t *)(void *)p->cpu.at[TW_USED])[r];
            pair_same(c->spec, p, "used", p->cpu.at[TW_USED] + 8 * r, p->cuda.at[TW_USED] + 8 * r, 8);
            pair_same(c->spec, p, "the payload", p->cpu.payload[r], p->cuda.payload[r], p->body[r]);
        }
    }
    for (uint32_t t = 0; t < n; t++) {
        pair_same(c->spec, part[t], "the residual", part[t]->cpu.at[TW_E], part[t]->cuda.at[TW_E],
                  part[t]->cpu.bytes[TW_E]);
        pair_same(c->spec, part[t], "state", part[t]->cpu.at[TW_STATE], part[t]->cuda.at[TW_STATE],
                  part[t]->cpu.bytes[TW_STATE]);
    }
}
CF_UNUSED static void pair_decompress(const pair_codec *c, pair_part *const *part, uint32_t n, const pair_how *how) {
    for (uint32_t t = 0; t < n; t++) {
        for (uint64_t i = 0; i < part[t]->cpu.bytes[TW_OUT] / 4; i++)
            ((float *)(void *)part[t]->cpu.at[TW_OUT])[i] = cf_normal();
        pair_up(part[t], TW_OUT);
    }
    const esp_status s = pair_on_cpu(c, part, n, how, 0, 1), d = pair_on_cuda(c, part, n, how, 0, 1);
    if (s != ESP_OK) fail_msg("%s: the CPU's decompress: %s: %s", c->spec, pair_status(s), cf_message);
    if (d != ESP_OK) fail_msg("%s: CUDA's decompress: %s: %s", c->spec, pair_status(d), cf_message);
    for (uint32_t t = 0; t < n; t++)
        pair_same(c->spec, part[t], "what was decoded", part[t]->cpu.at[TW_OUT], part[t]->cuda.at[TW_OUT],
                  part[t]->cpu.bytes[TW_OUT]);
}
#endif
