/* one_codec.h opens a built-in codec directly from its table, for tests of single codecs. Buffers have exactly the size
 * that the codec's bound() returns, so that a sanitizer reports an access beyond. */
#ifndef ONE_CODEC_H
#define ONE_CODEC_H
#include "tests/lib/test.h"
#include "espresso_impl/registry/builtin.h"

static uint64_t codec_random_state = 88172645463325252ull;
static inline uint32_t codec_random(void) { return test_random32(&codec_random_state); }
static inline float codec_uniform(void) { return (float)(codec_random() >> 8) / 8388608.0f - 1.0f; }
static inline uint32_t codec_bits(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}

static char codec_message[512];
static void codec_log(void *user, const esp_log_event *ev) {
    strncpy(codec_message, ev->message, sizeof codec_message - 1);
}
/* Runs pieces of a loop in reverse order, since results must not depend on the order. */
static void codec_parallel(void *user, uint64_t n, uint64_t grain, void (*body)(void *, uint64_t, uint64_t),
                           void *arg) {
    for (uint64_t p = (n + grain - 1) / grain; p-- > 0;)
        body(arg, p * grain, (p + 1) * grain < n ? (p + 1) * grain : n);
}
static esp_host codec_host = {.struct_size = sizeof(esp_host),
                              .abi_major = ESP_ABI_MAJOR,
                              .alloc = test_host_alloc,
                              .free_ = test_host_free,
                              .log = codec_log,
                              .parallel_for = codec_parallel};

static inline const esp_codec *codec_named(const char *name) {
    static const esp_plugin_fn entries[] = {ESP__BUILTIN_CODECS(ESP__BUILTIN_ENTRY)};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const esp_plugin *p = entries[i](&codec_host);
        for (uint32_t c = 0; c < p->n_codecs; c++)
            if (!strcmp(p->codecs[c]->name, name)) return p->codecs[c];
    }
    fail_msg("no built-in codec is named %s", name);
    return NULL;
}

typedef struct opened_codec {
    const esp_codec *codec;
    void *self;
    uint64_t count, used, offset;
    esp_tensor tensor;
    esp_buf state, scratch;
    esp_payload payload;
    esp_codec_args args;
    float *residual;
} opened_codec;

/* Opens a codec for a tensor of `count` elements. `simd` is "scalar", "avx2", "avx512", or NULL for the best that this
 * machine has. */
static inline opened_codec codec_open(const esp_codec *codec, const char *params, uint64_t count, const char *simd,
                                      int threads) {
    opened_codec r = {0};
    esp_bound b = {0};
    b.struct_size = sizeof b;
    if (simd)
        setenv("ESPRESSO_SIMD", simd, 1);
    else
        unsetenv("ESPRESSO_SIMD");
    codec_host.parallel_for = threads ? codec_parallel : NULL;
    r.codec = codec;
    assert_int_equal(r.codec->open(&codec_host, params, &r.self), ESP_OK);
    r.count = count;
    r.tensor = (esp_tensor){sizeof(esp_tensor), ESP_F32, 4711, count, {NULL, count * 4, {ESP_CPU, 0}}, 0, 0};
    assert_int_equal(r.codec->bound(r.self, &r.tensor, 0, 1, &b), ESP_OK);
    r.state = (esp_buf){calloc(1, b.state_bytes + 1), b.state_bytes, {ESP_CPU, 0}};
    r.scratch = (esp_buf){malloc(b.scratch_bytes + 1), b.scratch_bytes, {ESP_CPU, 0}};
    r.payload = (esp_payload){{malloc(b.payload_bytes), b.payload_bytes, {ESP_CPU, 0}}, NULL};
    r.residual = calloc(count + 1, 4);
    r.args.struct_size = sizeof r.args;
    r.args.n_payloads = r.args.n_reduced = r.args.n_tensors = 1;
    r.args.beta = r.args.gamma = r.args.scale = 1.0f;
    return r;
}
static inline void codec_close(opened_codec *r) {
    r->codec->close(r->self);
    free(r->state.ptr), free(r->scratch.ptr), free(r->payload.data.ptr), free(r->residual);
}

static inline esp_status codec_compress(opened_codec *r, const float *g, int feedback) {
    esp_codec_args a = r->args;
    esp_tensor *one = &r->tensor;
    const esp_buf residual = {r->residual, r->count * 4, {ESP_CPU, 0}};
    r->payload.used = &r->used;
    r->tensor.data.ptr = (void *)(uintptr_t)g;
    a.residual = feedback ? &residual : NULL;
    a.state = r->state.bytes ? &r->state : NULL;
    a.scratch = r->scratch.bytes ? &r->scratch : NULL;
    a.tensor = &one;
    a.offset = &r->offset;
    a.payload = &r->payload;
    return r->codec->compress(r->self, &a);
}
/* Decodes the n payloads `p`, or the one that codec_compress() made last if `p` is NULL. */
static inline esp_status codec_decompress(opened_codec *r, esp_payload *p, uint32_t n, float *out, uint32_t mode) {
    esp_codec_args a = r->args;
    esp_tensor t = r->tensor, *one = &t;
    esp_payload own = r->payload;
    own.data.bytes = r->used;
    t.data.ptr = out;
    a.mode = mode;
    a.n_payloads = n;
    a.scratch = r->scratch.bytes ? &r->scratch : NULL;
    a.tensor = &one;
    a.offset = &r->offset;
    a.payload = p ? p : &own;
    return r->codec->decompress(r->self, &a);
}
static inline esp_payload_header codec_header(const opened_codec *r) {
    esp_payload_header h;
    memcpy(&h, r->payload.data.ptr, sizeof h);
    return h;
}
#endif
