/* test_validate.c checks that plugins are refused if their tables have values that this library does not support, with
 * errors that name the member. */
#include "tests/lib/test.h"

static esp_status codec_open(const esp_host *h, const char *params, void **self) {
    *self = NULL;
    return ESP_OK;
}
static void any_close(void *self) {}
static esp_status codec_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    return ESP_OK;
}
static esp_status codec_run(void *self, const esp_codec_args *a) { return ESP_OK; }
static esp_status codec_traits(void *self, esp_traits *out) { return ESP_OK; }
static const esp_round sum[] = {{ESP_REDUCE_SUM, ESP_F32, 0, 0}, {ESP_REDUCE_SUM, ESP_F32, 0, 0}};
static esp_codec good_codec(void) {
    const esp_codec c = {.struct_size = sizeof c,
                         .wire_version = 1,
                         .caps = ESP_CODEC_REDUCIBLE,
                         .dtypes = ESP_BIT(ESP_F32),
                         .devices = ESP_BIT(ESP_CPU),
                         .name = "x",
                         .n_rounds = 1,
                         .rounds = sum,
                         .open = codec_open,
                         .close = any_close,
                         .bound = codec_bound,
                         .compress = codec_run,
                         .decompress = codec_run};
    return c;
}

static esp_status backend_probe(const esp_host *h, int32_t *score) {
    *score = 0;
    return ESP_OK;
}
static esp_status backend_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    return ESP_E_UNSUPPORTED;
}
static esp_status backend_start(void *comm, const esp_coll *c, esp_stream s, void **req) { return ESP_E_UNSUPPORTED; }
static esp_status backend_test(void *comm, void *req) { return ESP_E_UNSUPPORTED; }
static int32_t backend_wait_fd(void *comm) { return -1; }
static esp_status backend_progress(void *comm, uint64_t us) { return ESP_OK; }
static esp_status backend_reg(void *comm, const esp_buf *b, void **mh) { return ESP_OK; }
static esp_status backend_dereg(void *comm, void *mh) { return ESP_OK; }
static esp_backend good_backend(void) {
    const esp_backend b = {.struct_size = sizeof b,
                           .colls = ESP_BIT(ESP_COLL_ALLREDUCE) | ESP_BIT(ESP_COLL_BROADCAST),
                           .devices = ESP_BIT(ESP_CPU),
                           .dtypes = ESP_BIT(ESP_F32),
                           .reduces = ESP_BIT(ESP_REDUCE_SUM),
                           .name = "y",
                           .probe = backend_probe,
                           .open = backend_open,
                           .close = any_close,
                           .start = backend_start,
                           .test = backend_test};
    return b;
}

/* Adds a plugin with these tables to an empty registry. Compares the status, and expects `part` in the error. */
static void add(const esp_codec *c, const esp_backend *b, uint32_t n_devices, esp_status want, const char *part) {
    esp_ctx *ctx = (esp_ctx *)calloc(1, sizeof *ctx);
    const esp_plugin p = {.struct_size = sizeof p,
                          .n_codecs = c != NULL,
                          .n_backends = b != NULL,
                          .n_devices = n_devices,
                          .codecs = &c,
                          .backends = &b};
    ctx->base.log_level = ESP_LOG_ERROR;
    esp__base_parts(ctx);
    ctx->job.size = 1;
    esp__host_init(&ctx->host, ctx);
    const esp_status s = esp__registry_add(ctx, &p, "bad.so");
    if (s != want) fail_msg("%s: status %d, not %d: %s", part, (int)s, (int)want, s ? esp_last_error(NULL) : "");
    if (want && (!strstr(esp_last_error(NULL), part) || !strstr(esp_last_error(NULL), "bad.so")))
        fail_msg("\"%s\" lacks \"%s\"", esp_last_error(NULL), part);
    assert_int_equal(ctx->registry.codecs.n + ctx->registry.backends.n, want ? 0 : 1);
    esp__registry_free(ctx);
    free(ctx);
}

static void codec(esp_codec c, esp_status want, const char *part) { add(&c, NULL, 0, want, part); }
static void backend(esp_backend b, esp_status want, const char *part) { add(NULL, &b, 0, want, part); }

TEST(good_tables) {
    esp_codec c = good_codec();
    esp_backend b = good_backend();
    codec(c, ESP_OK, "");
    c.caps |= ESP_OFFER(5);
    codec(c, ESP_OK, "");
    c.caps = 0, c.rounds = NULL;
    codec(c, ESP_OK, "");
    c.caps = ESP_CODEC_WRAPPER, c.traits = codec_traits;
    codec(c, ESP_OK, "");
    backend(b, ESP_OK, "");
    b.progress = backend_progress, b.wake = any_close, b.reg = backend_reg, b.dereg = backend_dereg;
    backend(b, ESP_OK, "");
}

#define CODEC(change, status, part)                                                                                    \
    do {                                                                                                               \
        esp_codec c = good_codec();                                                                                    \
        change;                                                                                                        \
        codec(c, status, part);                                                                                        \
    } while (0)

TEST(codec_members) {
    static const esp_round max_then_none[] = {{0, 0, 0, 0}};
    static const esp_round odd_op[] = {{9, ESP_F32, 0, 0}}, odd_dtype[] = {{ESP_REDUCE_SUM, 77, 0, 0}};
    static const esp_round two[] = {{ESP_REDUCE_MAX, ESP_F32, 0, 0}, {ESP_REDUCE_SUM, ESP_F32, ESP_ROUND_ALLREDUCE, 0}};
    static const esp_round first_none[] = {{0, 0, 0, 0}, {ESP_REDUCE_SUM, ESP_F32, 0, 0}};
    static const esp_round odd_flags[] = {{ESP_REDUCE_SUM, ESP_F32, 8, 0}};
    CODEC(c.wire_version = 0, ESP_E_ABI, "wire_version");
    CODEC(c.caps |= 1u << 30, ESP_E_UNSUPPORTED, "caps: this library does not know the capability 0x40000000");
    CODEC(c.caps |= ESP_CODEC_OWN_FEEDBACK | ESP_CODEC_NO_FEEDBACK, ESP_E_ABI, "caps: ESP_CODEC_OWN_FEEDBACK");
    CODEC(c.caps |= ESP_CODEC_WRAPPER, ESP_E_ABI, "traits: NULL");
    CODEC(c.dtypes = ESP_BIT(ESP_F16), ESP_E_UNSUPPORTED, "dtypes");
    CODEC(c.dtypes |= 1u << 20, ESP_E_UNSUPPORTED, "dtypes");
    CODEC(c.devices = ESP_BIT(ESP_CUDA), ESP_E_UNSUPPORTED, "caps: lacks ESP_CODEC_FUSED_RESIDUAL");
    CODEC((c.devices = ESP_BIT(ESP_CUDA), c.caps |= ESP_CODEC_FUSED_RESIDUAL), ESP_OK, "");
    CODEC(c.reserved0 = 1, ESP_E_UNSUPPORTED, "reserved0");
    CODEC(c.n_rounds = 0, ESP_E_ABI, "n_rounds");
    CODEC((c.n_rounds = 2, c.caps |= ESP_CODEC_FUSED_RESIDUAL, c.rounds = two), ESP_OK, "");
    CODEC((c.n_rounds = 2, c.rounds = two), ESP_E_ABI, "caps: lacks ESP_CODEC_FUSED_RESIDUAL, but n_rounds is 2");
    CODEC((c.n_rounds = 2, c.caps = ESP_CODEC_FUSED_RESIDUAL, c.rounds = NULL), ESP_E_ABI,
          "rounds: NULL, but n_rounds");
    CODEC((c.n_rounds = 2, c.caps |= ESP_CODEC_FUSED_RESIDUAL, c.rounds = first_none), ESP_E_ABI,
          "rounds[0]: op is 0: every round but the last must be reduced");
    CODEC(c.n_rounds = 5, ESP_E_UNSUPPORTED, "n_rounds");
    CODEC(c.rounds = NULL, ESP_E_ABI, "rounds: NULL");
    CODEC(c.rounds = max_then_none, ESP_E_ABI, "rounds[0]: op is 0, but caps has ESP_CODEC_REDUCIBLE");
    CODEC(c.caps = 0, ESP_E_ABI, "rounds[0]: op is 1, but caps lacks ESP_CODEC_REDUCIBLE");
    CODEC(c.rounds = odd_op, ESP_E_UNSUPPORTED, "rounds[0]");
    CODEC(c.rounds = odd_dtype, ESP_E_UNSUPPORTED, "rounds[0]");
    CODEC(c.rounds = odd_flags, ESP_E_UNSUPPORTED, "rounds[0]");
}

#define BACKEND(change, status, part)                                                                                  \
    do {                                                                                                               \
        esp_backend b = good_backend();                                                                                \
        change;                                                                                                        \
        backend(b, status, part);                                                                                      \
    } while (0)

TEST(backend_members) {
    BACKEND(b.caps |= 1u << 30, ESP_E_UNSUPPORTED, "caps: this library does not know the capability 0x40000000");
    BACKEND(b.caps |= ESP_BACKEND_STREAM_ORDERED, ESP_OK, "");
    BACKEND(b.colls = ESP_BIT(ESP_COLL_ALLREDUCE), ESP_E_UNSUPPORTED, "colls");
    BACKEND(b.colls |= 1u << 31, ESP_E_UNSUPPORTED, "colls");
    BACKEND(b.devices = ESP_BIT(ESP_CUDA), ESP_E_UNSUPPORTED, "devices");
    BACKEND(b.dtypes = ESP_BIT(ESP_F16), ESP_E_UNSUPPORTED, "dtypes");
    BACKEND(b.dtypes |= 1u << 31, ESP_E_UNSUPPORTED, "dtypes");
    BACKEND(b.reduces = ESP_BIT(ESP_REDUCE_MAX), ESP_E_UNSUPPORTED, "reduces");
    BACKEND(b.reduces |= 1u << 31, ESP_E_UNSUPPORTED, "reduces");
    BACKEND(b.reserved0 = 1, ESP_E_UNSUPPORTED, "reserved0");
    BACKEND(b.progress = backend_progress, ESP_E_ABI, "wake: NULL");
    BACKEND(b.wake = any_close, ESP_E_ABI, "progress: NULL");
    BACKEND(b.wait_fd = backend_wait_fd, ESP_E_ABI, "progress: NULL: progress() makes the descriptor");
    BACKEND(b.reg = backend_reg, ESP_E_ABI, "dereg: NULL");
    BACKEND(b.dereg = backend_dereg, ESP_E_ABI, "reg: NULL");
}

static esp_status state_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    out->payload_bytes = 128;
    out->state_bytes = 8;
    return ESP_OK;
}

/* Not only a codec's table, but also its function traits() may give wrong values. They must be refused, too. */
TEST(state_without_the_capability) {
    static char spec[] = "x";
    esp_codec t = good_codec();
    esp__codec c = {.spec = spec, .table = &t};
    const esp_tensor like = {.struct_size = sizeof like, .dtype = ESP_F32, .count = 1};
    esp_bound b;
    t.bound = state_bound;
    c.traits.n_rounds = 1;
    assert_int_equal(esp__codec_bound_of(NULL, &c, &like, 0, 1, &b), ESP_E_ABI);
    assert_non_null(strstr(esp_last_error(NULL), "lack ESP_CODEC_HAS_STATE"));
    c.traits.caps = ESP_CODEC_HAS_STATE;
    assert_int_equal(esp__codec_bound_of(NULL, &c, &like, 0, 1, &b), ESP_OK);
}

TEST(device_tables) {
    const esp_codec c = good_codec();
    add(&c, NULL, 1, ESP_E_ABI, "devices must be set where they are counted"); /* test_device.c has more */
}
