/* test_registry.c checks names of codecs and backends, their parameters, statuses and the log, without esp_open. */
#include "tests/lib/test.h"

static esp_status fake_open(const esp_host *h, const char *params, void **self) { return ESP_E_UNSUPPORTED; }
static void fake_close(void *self) {}
static esp_status fake_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    return ESP_E_UNSUPPORTED;
}
static esp_status fake_run(void *self, const esp_codec_args *a) { return ESP_E_UNSUPPORTED; }
static esp_codec fake_codec(const char *name) {
    esp_codec c;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c;
    c.wire_version = c.n_rounds = 1;
    c.dtypes = ESP_BIT(ESP_F32);
    c.devices = ESP_BIT(ESP_CPU);
    c.name = name;
    c.open = fake_open;
    c.close = fake_close;
    c.bound = fake_bound;
    c.compress = c.decompress = fake_run;
    return c;
}
static esp_plugin fake_plugin(const esp_codec *const *codecs, uint32_t n) {
    esp_plugin p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.codecs = codecs;
    p.n_codecs = n;
    return p;
}

static esp_ctx *ctx_new(const esp_host *user_host) {
    esp_ctx *ctx = (esp_ctx *)calloc(1, sizeof *ctx);
    ctx->base.user_host = user_host;
    ctx->base.log_level = ESP_LOG_ERROR;
    ctx->job.size = 1;
    esp__base_parts(ctx);
    esp__host_init(&ctx->host, ctx);
    return ctx;
}
static void ctx_free(esp_ctx *ctx) {
    esp__registry_free(ctx);
    free(ctx);
}
static void assert_error(const char *part) {
    if (!strstr(esp_last_error(NULL), part)) fail_msg("\"%s\" lacks \"%s\"", esp_last_error(NULL), part);
}

TEST(test_add_and_find) {
    esp_ctx *ctx = ctx_new(NULL);
    esp_codec c[40];
    const esp_codec *list[40];
    char names[40][16];
    esp_plugin p;
    for (int i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "codec%d", i);
        c[i] = fake_codec(names[i]);
        list[i] = &c[i];
    }
    p = fake_plugin(list, 40);
    assert_int_equal(esp__registry_add(ctx, &p, "one.so"), ESP_OK);
    for (int i = 0; i < 40; i++) assert_ptr_equal(esp__registry_codec(ctx, names[i]), &c[i]);
    assert_int_equal(ctx->registry.codecs.n, 40);
    assert_string_equal(ctx->registry.codecs.at[39].from, "one.so");
    assert_null(esp__registry_backend(ctx, "codec1"));
    ctx_free(ctx);
}

TEST(test_unknown_name) {
    esp_ctx *ctx = ctx_new(NULL);
    const esp_codec a = fake_codec("topk"), b = fake_codec("randomk");
    const esp_codec *const list[] = {&a, &b};
    const esp_plugin p = fake_plugin(list, 2);
    assert_int_equal(esp__registry_add(ctx, &p, "one.so"), ESP_OK);
    assert_null(esp__registry_codec(ctx, "topc"));
    assert_error("there is no codec \"topc\" (did you mean \"topk\"?); known: topk, randomk");
    static const struct {
        const char *word, *known;
        int near;
    } slips[] = {{"autto", "auto", 1},         {"atuo", "auto", 1}, {"auto", "auto", 1}, {"auto:steps", "auto", 1},
                 {"flip", "flops", 0},         {"plna", "plan", 1}, {"run", "plan", 0},  {"layerwsie", "layerwise", 1},
                 {"forward", "forward_us", 1}, {"fp", "fp16", 0},   {"", "auto", 0},     {"x", "", 0},
                 {"fast", "fp32", 0}};
    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++) {
        unsigned best = 3;
        if (esp__suggests(slips[i].word, slips[i].known, &best) != slips[i].near)
            fail_msg("%s, %s", slips[i].word, slips[i].known);
    }
    assert_error("/lib/espresso/libespresso-topc.so");
    assert_null(esp__registry_codec(ctx, "something-else"));
    assert_error("there is no codec \"something-else\"; known: topk, randomk");
    assert_null(esp__registry_backend(ctx, "shm"));
    assert_error("there is no backend \"shm\"; known: none at all");
    ctx_free(ctx);
}

TEST(test_duplicate) {
    esp_ctx *ctx = ctx_new(NULL);
    const esp_codec a = fake_codec("x"), b = fake_codec("x");
    const esp_codec *const list_a[] = {&a}, *const list_b[] = {&b}, *const both[] = {&a, &b};
    const esp_plugin pa = fake_plugin(list_a, 1), pb = fake_plugin(list_b, 1), pc = fake_plugin(both, 2);
    assert_int_equal(esp__registry_add(ctx, &pc, "c.so"), ESP_E_ARG);
    assert_int_equal(ctx->registry.codecs.n, 0);
    assert_int_equal(esp__registry_add(ctx, &pa, "a.so"), ESP_OK);
    assert_int_equal(esp__registry_add(ctx, &pa, "a.so"), ESP_OK);
    assert_int_equal(ctx->registry.codecs.n, 1);
    assert_int_equal(esp__registry_add(ctx, &pb, "b.so"), ESP_E_ARG);
    assert_error("codec \"x\" is there twice: first a.so, now b.so");
    assert_ptr_equal(esp__registry_codec(ctx, "x"), &a);
    ctx->registry.may_override = 1;
    assert_int_equal(esp__registry_add(ctx, &pb, "b.so"), ESP_OK);
    assert_ptr_equal(esp__registry_codec(ctx, "x"), &b);
    assert_string_equal(ctx->registry.codecs.at[0].from, "b.so");
    assert_int_equal(ctx->registry.codecs.n, 1);
    ctx_free(ctx);
}

TEST(test_frozen) {
    esp_ctx *ctx = ctx_new(NULL);
    const esp_codec a = fake_codec("x");
    const esp_codec *const list[] = {&a};
    const esp_plugin p = fake_plugin(list, 1);
    ctx->registry.frozen = 1;
    assert_int_equal(esp__registry_add(ctx, &p, "a.so"), ESP_E_STATE);
    assert_error("a.so: plugins must be loaded before esp_start");
    assert_null(esp__registry_codec(ctx, "x"));
    ctx_free(ctx);
}

/* Adds a codec's table with one wrong member. Expects this status, and an error that contains `part`. */
static void refuse(const esp_codec *c, esp_status status, const char *part) {
    esp_ctx *ctx = ctx_new(NULL);
    const esp_plugin p = fake_plugin(&c, 1);
    assert_int_equal(esp__registry_add(ctx, &p, "bad.so"), status);
    assert_error("bad.so");
    assert_error(part);
    assert_int_equal(ctx->registry.codecs.n, 0);
    ctx_free(ctx);
}

TEST(test_incomplete_tables) {
    esp_codec c = fake_codec("x");
    esp_ctx *ctx = ctx_new(NULL);
    esp_plugin p = fake_plugin(NULL, 1);
    refuse(NULL, ESP_E_ABI, "struct_size");
    c.struct_size = 0;
    refuse(&c, ESP_E_ABI, "required member name");
    c.struct_size = offsetof(esp_codec, decompress);
    refuse(&c, ESP_E_ABI, "\"x\" lacks the required member decompress");
    c = fake_codec("x"), c.close = NULL;
    refuse(&c, ESP_E_ABI, "required member close");
    c = fake_codec("a b");
    refuse(&c, ESP_E_ARG, "\"a b\" cannot be a codec's name");
    c = fake_codec("");
    refuse(&c, ESP_E_ARG, "cannot be a codec's name");
    c = fake_codec("0123456789012345678901234567890123456789012345678901234567890123456789");
    refuse(&c, ESP_E_ARG, "cannot be a codec's name");
    assert_int_equal(esp__registry_add(ctx, NULL, "bad.so"), ESP_E_ABI);
    assert_int_equal(esp__registry_add(ctx, &p, "bad.so"), ESP_E_ABI); /* n_codecs is 1, but the list is NULL */
    p.n_codecs = 0, p.struct_size = 8;
    assert_int_equal(esp__registry_add(ctx, &p, "bad.so"), ESP_E_ABI);
    ctx_free(ctx);
}

/* An allocator that fails at call number `fail_at`, and counts blocks that are not freed. */
typedef struct meter {
    int calls, fail_at;
    int64_t out;
} meter;
static void *meter_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    meter *m = (meter *)user;
    void *p = m->calls++ == m->fail_at ? NULL : test_host_alloc(user, d, bytes, align);
    if (p) memset(p, 0xa5, bytes); /* the library must zero memory itself */
    if (p) m->out++;
    return p;
}
static void meter_free(void *user, esp_device d, void *p, uint64_t bytes) {
    ((meter *)user)->out--;
    test_host_free(user, d, p, bytes);
}

TEST(test_out_of_memory) {
    const esp_codec a = fake_codec("a"), b = fake_codec("b");
    const esp_codec *const list[] = {&a, &b};
    const esp_plugin p = fake_plugin(list, 2);
    int at, ok = 0;
    for (at = 0; !ok && at < 50; at++) {
        meter m = {0, at, 0};
        const esp_host host = {
            .struct_size = sizeof host, .abi_major = 1, .user = &m, .alloc = meter_alloc, .free_ = meter_free};
        esp_ctx *ctx = ctx_new(&host);
        const esp_status s = esp__registry_add(ctx, &p, "one.so");
        ok = s == ESP_OK;
        if (!ok) assert_int_equal(s, ESP_E_NOMEM);
        ctx_free(ctx);
        assert_int_equal(m.out, 0);
    }
    assert_true(ok && at > 3);
}

TEST(test_specs) {
    static const struct {
        const char *spec, *name, *params, *error;
    } t[] = {
        {"topk", "topk", "", NULL},
        {"topk:", "topk", "", NULL},
        {"topk:ratio=0.01,x=1", "topk", "ratio=0.01,x=1", NULL},
        {"fp16:of=(topk:ratio=0.01,b=(c=d)),k=v", "fp16", "of=(topk:ratio=0.01,b=(c=d)),k=v", NULL},
        {"", "", "", "position 1: expected a name"},
        {":a=b", "", "", "position 1: expected a name"},
        {"to pk", "", "", "position 3: expected a name"},
        {"topk:ratio", "", "", "position 6: expected key=value"},
        {"topk:a=1,b", "", "", "position 10: expected key=value"},
        {"topk:a=1,=2", "", "", "position 10: expected a key"},
        {"topk:a=1,b=", "", "", "position 10: this key has no value"},
        {"topk:a=(b", "", "", "position 6: parentheses"},
        {"topk:a=b)", "", "", "position 6: parentheses"},
        {NULL, "", "", "no name given"},
        {"0123456789012345678901234567890123456789012345678901234567890123456789", "", "", "70 characters"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char name[ESP__NAME_MAX];
        const char *params;
        const esp_status s = esp__spec_split(NULL, t[i].spec, name, &params);
        assert_int_equal(s, t[i].error ? ESP_E_ARG : ESP_OK);
        assert_string_equal(name, t[i].name);
        assert_string_equal(params, t[i].params);
        if (t[i].error) assert_error(t[i].error);
    }
}

TEST(test_statuses) {
    assert_string_equal(esp_status_name(ESP_E_PEER), "ESP_E_PEER");
    assert_string_equal(esp_status_text(ESP_E_PEER), "a rank died or left");
    assert_string_equal(esp_status_name(ESP_OK), "ESP_OK");
    assert_string_equal(esp_status_name(-99), "unknown status");
    assert_int_equal(esp_abi_version(), ESP_ABI_MAJOR << 16 | ESP_ABI_MINOR);
}

TEST(test_error_text) {
    esp_ctx *a = ctx_new(NULL), *b = ctx_new(NULL);
    assert_int_equal(esp__fail(a, ESP_E_ARG, "%s %d", "number", 1), ESP_E_ARG);
    assert_string_equal(esp_last_error(a), "number 1");
    assert_string_equal(esp_last_error(b), ""); /* a context has only its own errors */
    assert_string_equal(esp_last_error(NULL), "number 1");
    esp__fail(a, ESP_E_ARG, "again: %s", esp_last_error(a)); /* an argument is the context's own error text */
    assert_string_equal(esp_last_error(a), "again: number 1");
    esp__fail(NULL, ESP_E_ARG, "nobody's");
    assert_string_equal(esp_last_error(a), "nobody's");
    ctx_free(a);
    ctx_free(b);
}

typedef struct seen {
    int n;
    int32_t level;
    char component[32], message[64];
} seen;
static void seen_log(void *user, const esp_log_event *ev) {
    seen *s = (seen *)user;
    s->n++;
    s->level = ev->level;
    snprintf(s->component, sizeof s->component, "%s", ev->component);
    snprintf(s->message, sizeof s->message, "%s", ev->message);
}

TEST(test_log) {
    seen s = {0, 0, "", ""};
    const esp_host host = {.struct_size = sizeof host, .abi_major = 1, .user = &s, .log = seen_log};
    esp_ctx *ctx = ctx_new(&host);
    esp_log_event ev = {sizeof ev, ESP_LOG_ERROR, ESP_E_ARG, 1, "plugin", "bad key", "file.c"};
    ctx->base.log_level = ESP_LOG_WARN;
    esp__log(ctx, ESP_LOG_INFO, "core", "not wanted");
    assert_int_equal(s.n, 0);
    esp__log(ctx, ESP_LOG_WARN, "core", "%d ranks", 4);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.component, "core");
    assert_string_equal(s.message, "4 ranks");
    esp__plugin_detail_clear();
    ctx->host.log(ctx->host.user, &ev); /* a plugin's message is in the log and in the error */
    assert_string_equal(esp__plugin_detail(), "bad key");
    assert_int_equal(s.level, ESP_LOG_ERROR);
    assert_int_equal(s.n, 2);
    ev.struct_size = 8;
    ctx->host.log(ctx->host.user, &ev);
    assert_int_equal(s.n, 2);
    ctx_free(ctx);
}

TEST(test_host_memory) {
    esp_ctx *ctx = ctx_new(NULL);
    const esp_device cpu = {ESP_CPU, 0}, cuda = {ESP_CUDA, 0};
    unsigned char *p = (unsigned char *)esp__alloc(ctx, 1000);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], 0);
    esp__free(ctx, p);
    p = (unsigned char *)ctx->host.alloc(ctx->host.user, cpu, 10, 4096);
    assert_int_equal((uintptr_t)p % 4096, 0);
    ctx->host.free_(ctx->host.user, cpu, p, 10);
    assert_null(ctx->host.alloc(ctx->host.user, cuda, 10, 64));
    assert_null(ctx->host.alloc(ctx->host.user, cpu, 10, 48)); /* no power of two */
    assert_null(ctx->host.alloc(ctx->host.user, cpu, UINT64_MAX, 64));
    ctx_free(ctx);
}

int main(void) {
    unsetenv("ESPRESSO_PLUGIN_PATH");
    return test_main();
}
