/* test_device.c checks device plugins in the registry, codecs with one table for each device, devices that are opened
 * when needed, and the device table of the CPU. */
/* runs: no-tsan: starts only threads of the library, which other tests run under the thread sanitizer */
#include "tests/lib/test.h"

/* A device that counts how often it is opened and closed, and otherwise equals the CPU. */
static int opened, closed;
static esp_status two_probe(const esp_host *h, int32_t *count) { return (void)h, *count = 2, ESP_OK; }
static esp_status two_open(const esp_host *h, int32_t ordinal, void **self) {
    opened++;
    return (void)ordinal, esp__device_cpu()->open(h, 0, self);
}
static void two_close(void *self) { closed++, (void)self; }
static esp_device_table two_table(const char *name, esp_devkind kind) {
    esp_device_table t = *esp__device_cpu();
    t.name = name;
    t.kind = kind;
    t.probe = two_probe;
    t.open = two_open;
    t.close = two_close;
    return t;
}

static esp_plugin plugin_of(const esp_device_table *const *devices, uint32_t n) {
    esp_plugin p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.devices = devices;
    p.n_devices = n;
    return p;
}

static esp_ctx *open_one(void) {
    esp_ctx *ctx;
    esp_config c = {.backend = "loop", .size = 1};
    assert_int_equal(esp_open(&c, &ctx), ESP_OK);
    return ctx;
}
static void assert_error(const char *part) {
    if (!strstr(esp_last_error(NULL), part)) fail_msg("\"%s\" lacks \"%s\"", esp_last_error(NULL), part);
}
static esp_status add(esp_ctx *ctx, const esp_device_table *d) {
    const esp_plugin p = plugin_of(&d, 1);
    return esp__registry_add(ctx, &p, "two.so");
}

TEST(test_opens_once) {
    esp_ctx *ctx = open_one();
    const esp_device_table t = two_table("two", 16);
    const esp_device_table *table;
    void *self, *again;
    opened = closed = 0;
    assert_int_equal(add(ctx, &t), ESP_OK);
    assert_int_equal(opened, 0);
    assert_int_equal(ctx->host.device(ctx->host.user, (esp_device){16, 1}, &table, &self), ESP_OK);
    assert_ptr_equal(table, &t);
    assert_int_equal(ctx->host.device(ctx->host.user, (esp_device){16, 1}, &table, &again), ESP_OK);
    assert_ptr_equal(self, again);
    assert_int_equal(opened, 1);
    assert_int_equal(ctx->host.device(ctx->host.user, (esp_device){16, 0}, &table, &self), ESP_OK);
    assert_int_equal(opened, 2);
    assert_int_equal(ctx->host.device(ctx->host.user, (esp_device){16, 2}, &table, &self), ESP_E_UNSUPPORTED);
    assert_error("there is no device two:2 here: 2 can be used, from 0 on");
    assert_null(table);
    assert_int_equal(ctx->host.device(ctx->host.user, (esp_device){17, 0}, &table, &self), ESP_E_UNSUPPORTED);
    assert_error("there is no device of kind 17 here");
    unsigned char *p = ctx->host.alloc(ctx->host.user, (esp_device){16, 0}, 100, 64);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 256, 0);
    ctx->host.free_(ctx->host.user, (esp_device){16, 0}, p, 100);
    assert_int_equal(ctx->host.device(ctx->host.user, (esp_device){0, 0}, &table, &self), ESP_OK); /* zero: the CPU */
    assert_ptr_equal(table, esp__device_cpu());
    assert_int_equal(ctx->host.device(ctx->host.user, (esp_device){ESP_CPU, 0}, &table, &again), ESP_OK);
    assert_ptr_equal(self, again);
    esp_close(ctx);
    assert_int_equal(closed, 2);
}

/* If the host can access a device's memory, the library works on it as on the CPU's: it waits for streams, and
 * allocates nothing on the device. */
TEST(test_host_access) {
    esp_ctx *ctx = open_one();
    const esp_device_table t = two_table("two", 16);
    const esp_stream stream = {{16, 1}, &opened}, other = {{16, 0}, &opened};
    esp_tensor_desc d = ESP_ZERO;
    float g[40];
    opened = closed = 0;
    for (int i = 0; i < 40; i++) g[i] = (float)i;
    assert_int_equal(add(ctx, &t), ESP_OK);
    d.name = "w";
    d.count = 40;
    d.device = stream.dev;
    d.codec = "topk:ratio=1";
    d.option = "comp@gpu > flat.allgather > decomp@gpu";
    ctx->devices.warned = true;
    assert_int_equal(esp_tensor_add(ctx, &d, NULL), ESP_OK);
    assert_int_equal(opened, 1);
    assert_int_equal(ctx->model.tensors[0].device, ESP__CPU_INDEX);
    assert_int_equal(esp_start(ctx), ESP_OK);
    assert_int_equal(esp_push(ctx, 0, g, other), ESP_E_UNSUPPORTED);
    assert_error("the stream belongs to device 16:0");
    assert_int_equal(esp_push(ctx, 0, g, stream), ESP_OK);
    assert_int_equal(esp_wait_on(ctx, 0, stream), ESP_OK);
    assert_int_equal(esp_wait_all(ctx), ESP_OK);
    for (int i = 0; i < 40; i++) assert_true(g[i] == (float)i);
    assert_int_equal(esp_broadcast_on(ctx, stream, g, sizeof g, 0), ESP_OK);
    assert_int_equal(esp_allreduce_on(ctx, stream, g, 40), ESP_OK);
    for (int i = 0; i < 40; i++) assert_true(g[i] == (float)i);
    esp_close(ctx);
    assert_int_equal(closed, 1);
}

TEST(test_unique) {
    esp_ctx *ctx = open_one();
    const esp_device_table a = two_table("two", 16), b = two_table("two", 17), c = two_table("three", 16);
    const esp_device_table *const both[] = {&a, &c};
    const esp_plugin p = plugin_of(both, 2);
    assert_int_equal(esp__registry_add(ctx, &p, "both.so"), ESP_E_ARG);
    assert_error("device \"three\" of both.so has kind 16, as \"two\" of both.so has");
    assert_int_equal(ctx->registry.devices.n, 0);
    assert_int_equal(add(ctx, &a), ESP_OK);
    assert_int_equal(add(ctx, &a), ESP_OK); /* adding the same device again is allowed */
    assert_int_equal(add(ctx, &b), ESP_E_ARG);
    assert_error("device \"two\" is there twice");
    assert_int_equal(add(ctx, &c), ESP_E_ARG);
    assert_error("device \"three\" of two.so has kind 16, as \"two\" of two.so has");
    assert_int_equal(ctx->registry.devices.n, 1);
    esp_close(ctx);
}

/* Each required member of the device table is left out in turn. The library must refuse the table. */
TEST(test_members) {
    static const struct {
        size_t at;
        const char *name;
    } members[] = {
#define M(f) {offsetof(esp_device_table, f), #f}
        M(name),          M(probe),          M(open),         M(close),         M(alloc),        M(free_),
        M(stream_create), M(stream_destroy), M(event_create), M(event_destroy), M(event_record), M(event_wait),
        M(event_query),   M(event_sync),     M(copy),         M(copy2d),        M(fill),         M(convert),
#undef M
    };
    esp_ctx *ctx = open_one();
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        esp_device_table t = two_table("two", 16);
        char text[64];
        memset((char *)&t + members[i].at, 0, sizeof(void *));
        assert_int_equal(add(ctx, &t), ESP_E_ABI);
        snprintf(text, sizeof text, "lacks the required member %s", members[i].name);
        assert_error(text);
    }
    esp_device_table t = two_table("two", 16);
    t.struct_size = offsetof(esp_device_table, convert);
    assert_int_equal(add(ctx, &t), ESP_E_ABI);
    assert_error("required member convert");
    t = two_table("two", 16), t.elapsed = NULL, t.core_time = NULL; /* optional members */
    t.struct_size = offsetof(esp_device_table, elapsed);
    assert_int_equal(add(ctx, &t), ESP_OK);
    t = two_table("three", 18), t.caps = 2;
    assert_int_equal(add(ctx, &t), ESP_E_UNSUPPORTED);
    assert_error("device \"three\": caps: this library does not know the capability 0x2");
    for (esp_devkind k = 0; k < 40; k++) {
        const int good = k == ESP_CUDA || (k >= 16 && k < 32 && k != 16);
        char name[16];
        snprintf(name, sizeof name, "d%u", (unsigned)k);
        t = two_table(name, k);
        if (k == 16) continue;
        assert_int_equal(esp__device_validate(ctx, &t, "x.so") == ESP_OK && add(ctx, &t) != ESP_E_ABI && k, good);
        if (!good) assert_error(k ? "kind: " : "kind");
    }
    esp_plugin p = plugin_of(NULL, 1);
    assert_int_equal(esp__registry_add(ctx, &p, "bad.so"), ESP_E_ABI);
    esp_close(ctx);
}

/* ---- codecs with a table for each kind of device ----------------------------------------------------------------- */
static esp_status add_codec(esp_ctx *ctx, const esp_codec *c) {
    const esp_codec *const list[] = {c};
    esp_plugin p = plugin_of(NULL, 0);
    p.codecs = list;
    p.n_codecs = 1;
    return esp__registry_add(ctx, &p, "device_codec.so");
}

static esp_traits said;
static esp_status say(void *self, esp_traits *out) { return (void)self, *out = said, ESP_OK; }

TEST(test_instances) {
    esp_ctx *ctx = open_one();
    esp_codec t = *esp__registry_codec(ctx, "topk");
    esp__codec *c, *device_codec;
    assert_int_equal(esp__codec_get(ctx, "topk:ratio=0.5", &c), ESP_OK);
    t.devices = ESP_BIT(16);
    t.traits = say;
    assert_int_equal(add_codec(ctx, &t), ESP_OK);
    said = c->traits;
    said.caps &= ~(uint64_t)ESP_CODEC_DETERMINISTIC;
    assert_int_equal(esp__codec_on(ctx, c, 16, &device_codec), ESP_E_ABI);
    assert_error("codec 'topk:ratio=0.5': traits() of its table for devices of kind 16 gives another caps than that");
    assert_null(device_codec);
    said = c->traits;
    said.wire_version++;
    assert_int_equal(esp__codec_on(ctx, c, 16, &device_codec), ESP_E_ABI);
    assert_error("gives another wire_version");
    said = c->traits;
    said.caps &= ~(uint64_t)ESP_CODEC_LISTS;
    assert_int_equal(esp__codec_on(ctx, c, 16, &device_codec), ESP_OK);
    assert_non_null(device_codec);
    assert_int_equal(device_codec->traits.caps ^ c->traits.caps, ESP_CODEC_LISTS);
    esp_close(ctx);
}

/* If a codec around another one has a table for the device and the inner one has none, both run on the CPU. */
static esp_status no_inner(const esp_host *h, const char *params, void **self) {
    const esp_codec *inner;
    return h->codec_open(h->user, "randomk:ratio=0.5", &inner, self);
}
TEST(test_no_inner_table) {
    esp_ctx *ctx = open_one();
    esp_codec t = *esp__registry_codec(ctx, "topk");
    esp__codec *c, *device_codec = NULL;
    assert_int_equal(esp__codec_get(ctx, "topk:ratio=0.5", &c), ESP_OK);
    t.devices = ESP_BIT(16);
    t.open = no_inner;
    assert_int_equal(add_codec(ctx, &t), ESP_OK);
    assert_int_equal(esp__codec_on(ctx, c, 16, &device_codec), ESP_OK);
    assert_null(device_codec);
    esp_close(ctx);
}

TEST(test_device_implementations) {
    esp_ctx *ctx = open_one();
    const esp_codec *const cpu = esp__registry_codec(ctx, "topk");
    esp_codec t = *cpu;
    esp__codec *c, *device_codec;
    assert_int_equal(esp__codec_get(ctx, "topk:ratio=0.5", &c), ESP_OK);
    assert_int_equal(esp__codec_on(ctx, c, 16, &device_codec), ESP_OK);
    assert_null(device_codec);
    t.devices = ESP_BIT(16);
#define DIFFERS(change, member)                                                                                        \
    do {                                                                                                               \
        esp_codec x = t;                                                                                               \
        change;                                                                                                        \
        assert_int_equal(add_codec(ctx, &x), ESP_E_ABI);                                                               \
        assert_error("codec \"topk\": " member ": it differs from the table for other devices, of built in");          \
    } while (0)
    static const esp_round round = {ESP_REDUCE_SUM, ESP_F32, 0, 0};
    DIFFERS(x.wire_version++, "wire_version");
    DIFFERS(x.params = "k=1", "params");
    DIFFERS(x.caps |= ESP_CODEC_HAS_STATE, "caps");
    DIFFERS((x.rounds = &round, x.caps |= ESP_CODEC_REDUCIBLE), "caps");
    DIFFERS((x.caps ^= ESP_CODEC_LISTS | ESP_CODEC_DETERMINISTIC), "caps");
#undef DIFFERS
    t.caps &= ~(uint64_t)ESP_CODEC_FUSED_RESIDUAL;
    assert_int_equal(add_codec(ctx, &t), ESP_E_UNSUPPORTED);
    assert_error("caps: lacks ESP_CODEC_FUSED_RESIDUAL, and devices is 0x10000");
    t.caps = (cpu->caps ^ ESP_CODEC_LISTS) | ESP_CODEC_FUSED_RESIDUAL;
    assert_int_equal(add_codec(ctx, &t), ESP_OK);
    assert_ptr_equal(esp__registry_codec(ctx, "topk"), cpu);
    assert_ptr_equal(esp__registry_codec_on(ctx, "topk", 16), &t);
    assert_null(esp__registry_codec_on(ctx, "topk", 17));
    assert_int_equal(esp__codec_on(ctx, c, ESP_CPU, &device_codec), ESP_OK);
    assert_ptr_equal(device_codec, c);
    assert_int_equal(esp__codec_on(ctx, c, 16, &device_codec), ESP_OK);
    assert_ptr_equal(device_codec->table, &t);
    assert_string_equal(device_codec->spec, c->spec);
    esp__codec *again;
    assert_int_equal(esp__codec_on(ctx, c, 16, &again), ESP_OK);
    assert_ptr_equal(again, device_codec);
    assert_null(esp__registry_codec(ctx, "tokp"));
    assert_error("known: none, ");
    assert_null(strstr(strstr(esp_last_error(ctx), "known: ") + 8, "topk, randomk, dgc, topk"));
    esp_codec both = t;
    both.devices |= ESP_BIT(ESP_CPU);
    assert_int_equal(add_codec(ctx, &both), ESP_E_ARG);
    assert_error("codec \"topk\" is there twice");
    esp_codec only = t;
    only.name = "only";
    assert_int_equal(add_codec(ctx, &only), ESP_OK);
    assert_null(esp__registry_codec(ctx, "only"));
    assert_error("codec \"only\" of device_codec.so has no table for the CPU");
    esp_codec nowhere = only;
    nowhere.name = "nowhere", nowhere.devices = 0;
    assert_int_equal(add_codec(ctx, &nowhere), ESP_E_ABI);
    assert_error("required member devices");
    esp_close(ctx);
}

/* ---- the CPU's table --------------------------------------------------------------------------------------------- */
static void put(void *at, esp_dtype d, uint64_t i, float x) {
    if (d == ESP_F32)
        ((float *)at)[i] = x;
    else
        ((uint16_t *)at)[i] = (uint16_t)(d == ESP_F16 ? half_to_f16(x) : half_to_bf16(x));
}
static float get(const void *at, esp_dtype d, uint64_t i) {
    if (d == ESP_F32) return ((const float *)at)[i];
    const uint16_t h = ((const uint16_t *)at)[i];
    return d == ESP_F16 ? half_from_f16(h) : bits_float((uint32_t)h << 16);
}

TEST(test_convert) {
    enum { N = 2500 };
    static float from[N], to[N], want[N];
    const esp_device_table *t = esp__device_cpu();
    const esp_stream s = ESP_ZERO;
    for (esp_dtype a = ESP_F32; a <= ESP_BF16; a++)
        for (esp_dtype b = ESP_F32; b <= ESP_BF16; b++)
            for (uint32_t sum = 0; sum < 2; sum++)
                for (int k = 0; k < 2; k++) {
                    const float scale = k ? -0.37f : 1.0f;
                    for (uint64_t i = 0; i < N; i++) {
                        put(from, a, i, (float)((double)(i * 7919 % 1000) / 77.0 - 6.0));
                        put(to, b, i, (float)((double)(i * 104729 % 1000) / 99.0 - 5.0));
                        memcpy(want, to, sizeof want);
                    }
                    for (uint64_t i = 0; i < N; i++) {
                        const float x = scale * get(from, a, i);
                        put(want, b, i, sum ? get(want, b, i) + x : x);
                    }
                    assert_int_equal(t->convert(NULL, to, b, from, a, scale, sum, N, s), ESP_OK);
                    assert_memory_equal(to, want, N * esp_dtype_bytes(b));
                }
}

TEST(test_cpu) {
    esp_ctx *ctx = open_one();
    const esp_device_table *t;
    const esp_stream s = ESP_ZERO;
    void *self, *p, *event, *later;
    uint64_t before, after, ns;
    assert_int_equal(ctx->host.device(ctx->host.user, (esp_device){ESP_CPU, 0}, &t, &self), ESP_OK);
    assert_true(t->caps & ESP_DEVICE_HOST_ACCESS);
    assert_int_equal(t->alloc(self, 1000, ESP_MEM_PINNED, &p), ESP_OK);
    uint8_t *b = p, want[64];
    for (int i = 0; i < 1000; i++) assert_int_equal(b[i], 0);
    assert_int_equal((uintptr_t)p % 256, 0);
    for (int i = 0; i < 64; i++) b[i] = (uint8_t)i, want[i] = (uint8_t)i;
    assert_int_equal(t->copy(self, b + 100, b, 64, s), ESP_OK);
    assert_memory_equal(b + 100, want, 64);
    assert_int_equal(t->copy2d(self, b + 200, 10, b, 16, 4, 3, s), ESP_OK); /* rows of 4 bytes */
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < 10; k++) assert_int_equal(b[200 + 10 * r + k], k < 4 ? 16 * r + k : 0);
    assert_int_equal(t->fill(self, b, 7, 64, s), ESP_OK);
    for (int i = 0; i < 64; i++) assert_int_equal(b[i], 7);
    assert_int_equal(t->event_create(self, &event), ESP_OK);
    assert_int_equal(t->event_create(self, &later), ESP_OK);
    assert_int_equal(t->core_time(self, &before), ESP_OK);
    const uint64_t began = esp__now_ns();
    assert_int_equal(t->event_record(self, event, s), ESP_OK);
    volatile double x = 1;
    do {
        for (int i = 0; i < 1000; i++) x = x * 1.0000001;
        assert_int_equal(t->core_time(self, &after), ESP_OK);
    } while (after <= before + 100000);
    assert_int_equal(t->event_record(self, later, s), ESP_OK);
    assert_int_equal(t->event_wait(self, later, s), ESP_OK);
    assert_int_equal(t->event_query(self, later), ESP_OK);
    assert_int_equal(t->event_sync(self, later), ESP_OK);
    assert_int_equal(t->elapsed(self, event, later, &ns), ESP_OK);
    assert_true(ns > 0 && ns <= esp__now_ns() - began);
    t->event_destroy(self, event);
    t->event_destroy(self, later);
    t->free_(self, p, 1000, ESP_MEM_PINNED);
    esp_close(ctx);
}
