/* conformance.h helps tests of single codecs: it opens codecs by their tables, makes inputs, and compresses and
 * decompresses them. Rules for all codecs are tested by `espresso plugins --check`. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H
#include "tests/lib/specs.h"
#include "tests/lib/test.h"
#include "espresso_impl/registry/builtin.h"

#define CF_UNUSED __attribute__((unused))
#define CF_COUNT(a) (sizeof(a) / sizeof *(a))

static const esp_plugin_fn cf_entries[] = {ESP__BUILTIN_CODECS(ESP__BUILTIN_ENTRY) NULL};
static const char *const cf_specs[] = {"none",
                                       "fp16",
                                       "bf16",
                                       "efsignsgd",
                                       "twobit:threshold=0.5",
                                       "twobit:relative=1.2",
                                       "int8",
                                       "int8:block=32",
                                       "int4",
                                       "chunktopk",
                                       "chunktopk:chunk=64,k=5",
                                       "topk:ratio=0.01",
                                       "topk:ratio=0.3",
                                       "randomk:ratio=0.01",
                                       "dgc:ratio=0.01",
                                       "fp16:of=(topk:ratio=0.01)",
                                       "fp16:of=(none)",
                                       "bf16:of=(randomk:ratio=0.1)",
                                       "warmup:steps=2,of=(topk:ratio=0.01)",
                                       "warmup:steps=2,of=(dgc:ratio=0.01)",
                                       "warmup:steps=2,of=(fp16:of=(randomk:ratio=0.1))",
                                       CODEC_SPECS,
                                       "threshold:value=0.5"};

/* ---- hosts ------------------------------------------------------------------------------------------------ */
static char cf_message[1024];
static int64_t cf_live;

static void *cf_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    cf_live++;
    return test_host_alloc(user, d, bytes, align);
}
static void cf_free(void *user, esp_device d, void *p, uint64_t bytes) {
    cf_live--;
    test_host_free(user, d, p, bytes);
}
static void cf_log(void *user, const esp_log_event *ev) {
    if (ev->level == ESP_LOG_ERROR) (void)snprintf(cf_message, sizeof cf_message, "%s", ev->message);
}
/* Runs a codec's loops on two threads, so that the thread sanitizer sees races. Each takes every other piece. */
typedef struct cf_half {
    uint64_t n, grain, first;
    void (*body)(void *, uint64_t, uint64_t);
    void *arg;
} cf_half;
static void *cf_half_run(void *arg) {
    const cf_half *h = arg;
    for (uint64_t at = h->first * h->grain; at < h->n; at += 2 * h->grain)
        h->body(h->arg, at, at + h->grain < h->n ? at + h->grain : h->n);
    return NULL;
}
static void cf_two_threads(void *user, uint64_t n, uint64_t grain, void (*body)(void *, uint64_t, uint64_t),
                           void *arg) {
    cf_half even = {n, grain, 0, body, arg}, odd = {n, grain, 1, body, arg};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, cf_half_run, &odd), 0);
    cf_half_run(&even);
    assert_int_equal(pthread_join(t, NULL), 0);
}
static esp_status cf_inner_open(void *user, const char *spec, const esp_codec **table, void **self);
static void cf_inner_close(void *user, const esp_codec *table, void *self);
#define CF_HOST(name, loop)                                                                                            \
    CF_UNUSED static const esp_host name = {.struct_size = sizeof(esp_host),                                           \
                                            .abi_major = 1,                                                            \
                                            .user = (void *)(uintptr_t)&name,                                          \
                                            .alloc = cf_alloc,                                                         \
                                            .free_ = cf_free,                                                          \
                                            .log = cf_log,                                                             \
                                            .parallel_for = loop,                                                      \
                                            .codec_open = cf_inner_open,                                               \
                                            .codec_close = cf_inner_close}
CF_HOST(cf_plain, NULL);
CF_HOST(cf_threads, cf_two_threads);

/* ---- codecs ------------------------------------------------------------------------------------------------ */
typedef struct cf_codec {
    const esp_codec *table;
    void *self;
    const char *spec;
    esp_traits traits;
} cf_codec;

/* Returns built-in codec number i, or NULL if there are fewer. */
CF_UNUSED static const esp_codec *cf_nth(uint32_t i) {
    for (const esp_plugin_fn *e = cf_entries; *e; e++) {
        const esp_plugin *p = (*e)(&cf_plain);
        if (i < p->n_codecs) return p->codecs[i];
        i -= p->n_codecs;
    }
    return NULL;
}
CF_UNUSED static const esp_codec *cf_find(const char *spec) {
    const size_t n = strcspn(spec, ":");
    const esp_codec *c;
    for (uint32_t i = 0; (c = cf_nth(i)) != NULL; i++)
        if (strlen(c->name) == n && !memcmp(c->name, spec, n)) return c;
    return NULL;
}
CF_UNUSED static int cf_open(const char *spec, const esp_host *h, cf_codec *out) {
    const char *params = strchr(spec, ':');
    *out = (cf_codec){.table = cf_find(spec), .spec = spec};
    if (!out->table) return 0;
    assert_int_equal(out->table->open(h, params ? params + 1 : "", &out->self), ESP_OK);
    out->traits = (esp_traits){.struct_size = sizeof out->traits,
                               .wire_version = out->table->wire_version,
                               .caps = out->table->caps,
                               .n_rounds = out->table->n_rounds,
                               .rounds = out->table->rounds,
                               .default_option = out->table->default_option};
    if (out->table->traits) assert_int_equal(out->table->traits(out->self, &out->traits), ESP_OK);
    return 1;
}
CF_UNUSED static void cf_close(cf_codec *c) { c->table->close(c->self); }
CF_UNUSED static int cf_has(const cf_codec *c, uint64_t cap) { return (c->traits.caps & cap) != 0; }
/* Opens a codec that another codec wraps. The spec may have parentheses around it. */
static esp_status cf_inner_open(void *user, const char *spec, const esp_codec **table, void **self) {
    char inner[256];
    const size_t n = strlen(spec);
    (void)snprintf(inner, sizeof inner, "%.*s", (int)(*spec == '(' ? n - 2 : n), spec + (*spec == '('));
    *table = cf_find(inner);
    return *table ? (*table)->open((const esp_host *)user, strchr(inner, ':') ? strchr(inner, ':') + 1 : "", self)
                  : ESP_E_NOT_FOUND;
}
static void cf_inner_close(void *user, const esp_codec *table, void *self) { table->close(self); }

/* ---- memory that ends at an inaccessible page ---- */
typedef struct cf_fenced {
    unsigned char *map, *data;
    size_t mapped;
} cf_fenced;

/* Allocates `bytes` that end, as closely as `align` allows, at an inaccessible page, so that reads beyond crash. */
CF_UNUSED static cf_fenced cf_fenced_make(uint64_t bytes, uint64_t align) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + align - 1) / align * align;
    cf_fenced g;
    g.mapped = (room + page - 1) / page * page + page;
    g.map = mmap(NULL, g.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(g.map, MAP_FAILED);
    assert_int_equal(mprotect(g.map + g.mapped - page, page, PROT_NONE), 0);
    g.data = g.map + g.mapped - page - room;
    return g;
}
CF_UNUSED static void cf_fenced_free(cf_fenced *g) { assert_int_equal(munmap(g->map, g->mapped), 0); }

/* ---- buffers for one tensor of `count` elements ---- */
typedef struct cf_part {
    cf_codec *codec;
    uint64_t count, used;
    esp_bound bound;
    cf_fenced payload, scratch, state, in, out, residual;
    float *g, *o, *e;
    int feedback;
    float beta, gamma;
    uint64_t step, state_bytes;
} cf_part;

CF_UNUSED static cf_part cf_part_make(cf_codec *c, uint64_t count, int feedback) {
    cf_part p = {.codec = c, .count = count, .feedback = feedback, .beta = 1, .gamma = 1};
    esp_tensor like = {sizeof like, ESP_F32, 7, count, {NULL, 0, {0, 0}}, 0, 0};
    p.bound.struct_size = sizeof p.bound;
    assert_int_equal(c->table->bound(c->self, &like, 0, 1, &p.bound), ESP_OK);
    p.payload = cf_fenced_make(p.bound.payload_bytes, 1);
    p.scratch = cf_fenced_make(p.bound.scratch_bytes, 64);
    p.state = cf_fenced_make(p.bound.state_bytes, 64);
    p.in = cf_fenced_make(count * 4, 4);
    p.out = cf_fenced_make(count * 4, 4);
    p.residual = cf_fenced_make(count * 4, 4);
    p.g = (float *)(void *)p.in.data;
    p.o = (float *)(void *)p.out.data;
    p.e = (float *)(void *)p.residual.data;
    return p;
}
CF_UNUSED static void cf_part_free(cf_part *p) {
    cf_fenced *const all[] = {&p->payload, &p->scratch, &p->state, &p->in, &p->out, &p->residual};
    for (size_t i = 0; i < CF_COUNT(all); i++) cf_fenced_free(all[i]);
}

/* Compresses p->g. If the codec computes the residual, p->e is its input and output. */
static esp_status cf_compress_call(cf_part *p, void *data, uint64_t capacity) {
    esp_payload out = {{data, capacity, {0, 0}}, &p->used};
    esp_tensor t = {sizeof t, ESP_F32, 7, p->count, {p->g, p->count * 4, {0, 0}}, 0, 0}, *one = &t;
    const esp_buf residual = {p->e, p->count * 4, {0, 0}};
    const uint64_t offset = 0;
    esp_buf state = {p->state.data, p->bound.state_bytes, {0, 0}};
    esp_buf scratch = {p->scratch.data, p->bound.scratch_bytes, {0, 0}};
    esp_codec_args a = {.struct_size = sizeof a, .step = p->step, .seed = 42, .n_payloads = 1, .n_reduced = 1};
    a.beta = p->beta;
    a.gamma = p->gamma;
    a.residual = p->feedback && cf_has(p->codec, ESP_CODEC_FUSED_RESIDUAL) ? &residual : NULL;
    a.state = p->bound.state_bytes ? &state : NULL;
    a.scratch = p->bound.scratch_bytes ? &scratch : NULL;
    a.tensor = &one;
    a.offset = &offset;
    a.n_tensors = 1;
    a.payload = &out;
    return p->codec->table->compress(p->codec->self, &a);
}
static esp_status cf_decompress_all(cf_part *p, esp_payload *payload, uint32_t n, uint32_t mode, float scale);

/* Compresses p->g into `capacity` bytes at `data`, and sets p->used. If the codec does not compute the residual,
 * this function does, as the library would. */
CF_UNUSED static esp_status cf_compress_into(cf_part *p, void *data, uint64_t capacity) {
    float *g = p->g, *o = p->o, *phi, *back;
    esp_payload_header h;
    if (!p->feedback || cf_has(p->codec, ESP_CODEC_FUSED_RESIDUAL)) return cf_compress_call(p, data, capacity);
    phi = malloc(p->count * 8 + 8), back = phi + p->count;
    for (uint64_t i = 0; i < p->count; i++) {
        const float a = p->gamma * g[i], b = p->beta * p->e[i];
        phi[i] = b + a;
    }
    p->g = phi, p->o = back;
    esp_status st = cf_compress_call(p, data, capacity);
    if (st == ESP_OK) memcpy(&h, data, sizeof h);
    if (st == ESP_OK && !(h.flags & ESP_PAYLOAD_NONFINITE)) {
        esp_payload in = {{data, p->used, {0, 0}}, NULL};
        st = cf_decompress_all(p, &in, 1, ESP_OUT_SET, 0);
        for (uint64_t i = 0; i < p->count; i++) p->e[i] = phi[i] - back[i];
    }
    p->g = g, p->o = o;
    free(phi);
    return st;
}
CF_UNUSED static esp_status cf_compress(cf_part *p) {
    return cf_compress_into(p, p->payload.data, p->bound.payload_bytes);
}

CF_UNUSED static esp_status cf_decompress_all(cf_part *p, esp_payload *payload, uint32_t n, uint32_t mode,
                                              float scale) {
    esp_tensor t = {sizeof t, ESP_F32, 7, p->count, {p->o, p->count * 4, {0, 0}}, 0, 0}, *one = &t;
    const uint64_t offset = 0;
    esp_buf scratch = {p->scratch.data, p->bound.scratch_bytes, {0, 0}};
    esp_codec_args a = {
        .struct_size = sizeof a, .mode = mode, .step = p->step, .seed = 42, .n_payloads = n, .n_reduced = 1};
    a.scale = scale;
    a.scratch = p->bound.scratch_bytes ? &scratch : NULL;
    a.tensor = &one;
    a.offset = &offset;
    a.n_tensors = 1;
    a.payload = payload;
    return p->codec->table->decompress(p->codec->self, &a);
}
CF_UNUSED static esp_status cf_decompress(cf_part *p) {
    esp_payload in = {{p->payload.data, p->used, {0, 0}}, NULL};
    return cf_decompress_all(p, &in, 1, ESP_OUT_SET, 0);
}
CF_UNUSED static esp_payload_header cf_header(const cf_part *p) {
    esp_payload_header h;
    memcpy(&h, p->payload.data, sizeof h);
    return h;
}

/* ---- inputs --------------------------------------------------------------------------------------------------- */
static uint64_t cf_seed = 1;
CF_UNUSED static uint32_t cf_random(void) { return test_random32(&cf_seed); }
/* Returns a roughly normal random number with standard deviation 0.6. */
CF_UNUSED static float cf_normal(void) {
    double s = 0;
    for (int i = 0; i < 4; i++) s += (double)cf_random() / 4294967296.0 - 0.5;
    return (float)s;
}
enum {
    CF_RANDOM,
    CF_WIDE, /* floats with every exponent */
    CF_ZERO,
    CF_MINUS_ZERO,
    CF_DENORMAL,
    CF_EQUAL,
    CF_NEGATIVE,
    CF_SPIKE,
    CF_FEW,
    CF_LARGE,
    CF_NAN,
    CF_INF,
    CF_KINDS
};
static const char *const cf_kind_name[] = {"random",       "wide",  "zeros",      "-0",    "denormal", "all equal",
                                           "all negative", "spike", "few values", "large", "NaN",      "Inf"};

CF_UNUSED static float cf_number(int kind) {
    switch (kind) {
    case CF_WIDE: return ldexpf(cf_normal(), (int)(cf_random() % 120) - 90);
    case CF_ZERO: return 0.0f;
    case CF_MINUS_ZERO: return -0.0f;
    case CF_DENORMAL: return ldexpf(cf_normal(), -140);
    case CF_EQUAL: return 0.375f;
    case CF_NEGATIVE: return -fabsf(cf_normal()) - 1e-3f;
    case CF_SPIKE: return 0.0f;
    case CF_FEW: return 0.25f * (float)((int)(cf_random() % 7) - 3);
    case CF_LARGE: return cf_normal() * 1e30f;
    default: return cf_normal();
    }
}
CF_UNUSED static void cf_fill(float *x, uint64_t n, int kind) {
    for (uint64_t i = 0; i < n; i++) x[i] = cf_number(kind);
    if (!n) return;
    if (kind == CF_SPIKE) x[n / 2] = -1e30f;
    if (kind == CF_NAN) x[n - 1 - n / 3] = NAN;
    if (kind == CF_INF) x[n - 1] = -INFINITY;
}
CF_UNUSED static uint64_t cf_hash(const void *data, uint64_t bytes) {
    uint64_t h = 14695981039346656037ull;
    for (uint64_t i = 0; i < bytes; i++) h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211ull;
    return h;
}
#endif
