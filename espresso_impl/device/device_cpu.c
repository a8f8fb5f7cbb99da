/* device_cpu.c: the CPU as a device, whose work is done when the call that enqueues it returns. */
#include "codecs/common/half.h"
#include "espresso_impl/device/device.h"
#include <time.h>

static esp_status esp__cpu_probe(const esp_host *h, int32_t *count) { return (void)h, *count = 1, ESP_OK; }
static int esp__cpu_simd; /* SIMD level for conversions; accessed atomically */
static esp_status esp__cpu_open(const esp_host *h, int32_t ordinal, void **self) {
    __atomic_store_n(&esp__cpu_simd, esp_simd_level(), __ATOMIC_RELAXED);
    memcpy(self, &h, sizeof h); /* `self` is the esp_host, because the CPU has no state */
    return ordinal ? ESP_E_UNSUPPORTED : ESP_OK;
}
static void esp__cpu_close(void *self) { (void)self; }

static esp_status esp__cpu_alloc(void *self, uint64_t bytes, uint32_t where, void **out) {
    const esp_host *h = self;
    (void)where;
    *out = h->alloc(h->user, (esp_device){ESP_CPU, 0}, bytes, 256);
    return *out ? memset(*out, 0, bytes), ESP_OK : ESP_E_NOMEM;
}
static void esp__cpu_free(void *self, void *p, uint64_t bytes, uint32_t where) {
    const esp_host *h = self;
    (void)where;
    h->free_(h->user, (esp_device){ESP_CPU, 0}, p, bytes);
}

static esp_status esp__cpu_stream(void *self, esp_stream *out) {
    return (void)self, *out = (esp_stream){{ESP_CPU, 0}, NULL}, ESP_OK;
}
static void esp__cpu_stream_end(void *self, esp_stream s) { (void)self, (void)s; }

/* An event of the CPU is the time at which it was recorded. */
static esp_status esp__cpu_event(void *self, void **event) {
    const esp_host *h = self;
    *event = h->alloc(h->user, (esp_device){ESP_CPU, 0}, sizeof(uint64_t), 8);
    return *event ? memset(*event, 0, sizeof(uint64_t)), ESP_OK : ESP_E_NOMEM;
}
static void esp__cpu_event_end(void *self, void *event) {
    const esp_host *h = self;
    h->free_(h->user, (esp_device){ESP_CPU, 0}, event, sizeof(uint64_t));
}
static esp_status esp__cpu_record(void *self, void *event, esp_stream s) {
    return (void)self, (void)s, *(uint64_t *)event = esp__now_ns(), ESP_OK;
}
static esp_status esp__cpu_wait(void *self, void *event, esp_stream s) {
    return (void)self, (void)event, (void)s, ESP_OK;
}
static esp_status esp__cpu_passed(void *self, void *event) { return (void)self, (void)event, ESP_OK; }
static esp_status esp__cpu_elapsed(void *self, void *from, void *to, uint64_t *ns) {
    return (void)self, *ns = *(uint64_t *)to - *(uint64_t *)from, ESP_OK;
}

enum { ESP__CPU_GRAIN = 65536 }; /* elements per piece of a loop that worker threads share */

static void esp__cpu_for(const esp_host *self, uint64_t n, uint64_t grain, void (*body)(void *, uint64_t, uint64_t),
                         void *arg) {
    if (self)
        self->parallel_for(self->user, n, grain, body, arg);
    else
        body(arg, 0, n);
}

typedef struct esp__cpu_move {
    uint8_t *to;
    const uint8_t *from;
} esp__cpu_move;
static void esp__cpu_move_run(void *arg, uint64_t begin, uint64_t end) {
    const esp__cpu_move *m = arg;
    memcpy(m->to + begin, m->from + begin, end - begin);
}
static esp_status esp__cpu_copy(void *self, void *dst, const void *src, uint64_t bytes, esp_stream s) {
    esp__cpu_move m = {dst, src};
    (void)s;
    esp__cpu_for(self, bytes, ESP__CPU_GRAIN * 4u, esp__cpu_move_run, &m);
    return ESP_OK;
}
static esp_status esp__cpu_copy2d(void *self, void *dst, uint64_t dst_pitch, const void *src, uint64_t src_pitch,
                                  uint64_t bytes, uint64_t rows, esp_stream s) {
    (void)self, (void)s;
    for (uint64_t r = 0; r < rows; r++)
        memmove((uint8_t *)dst + r * dst_pitch, (const uint8_t *)src + r * src_pitch, bytes);
    return ESP_OK;
}
static esp_status esp__cpu_fill(void *self, void *dst, uint8_t byte, uint64_t bytes, esp_stream s) {
    return (void)self, (void)s, memset(dst, byte, bytes), ESP_OK;
}

enum { ESP__CPU_BLOCK = 1024 };
typedef struct esp__cpu_conversion {
    uint8_t *out;
    const uint8_t *in;
    esp_dtype to, from;
    float scale;
    bool sum;
} esp__cpu_conversion;

/* out = scale * in, or with `sum` out += scale * in. `in` may have any dtype. */
static void esp__cpu_decode(float *out, const void *in, esp_dtype dtype, float scale, bool sum, uint64_t n) {
    const int simd = __atomic_load_n(&esp__cpu_simd, __ATOMIC_RELAXED);
    const float *f = in;
    if (dtype != ESP_F32) {
        half_add_for(dtype == ESP_F16, simd)(out, in, scale, !sum, n);
    } else if (sum) {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) out[i] += scale * f[i];
    } else {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) out[i] = scale * f[i];
    }
}
static void esp__cpu_convert_run(void *arg, uint64_t begin, uint64_t end) {
    const esp__cpu_conversion *c = arg;
    const uint64_t to_bytes = esp_dtype_bytes(c->to), from_bytes = esp_dtype_bytes(c->from);
    const int simd = __atomic_load_n(&esp__cpu_simd, __ATOMIC_RELAXED);
    float block[ESP__CPU_BLOCK];
    for (uint64_t at = begin; at < end; at += ESP__CPU_BLOCK) {
        const uint64_t n = end - at < ESP__CPU_BLOCK ? end - at : ESP__CPU_BLOCK;
        uint8_t *out = c->out + at * to_bytes;
        float *number = c->to == ESP_F32 ? (float *)(void *)out : block;
        if (c->sum && number == block) esp__cpu_decode(block, out, c->to, 1.0f, false, n);
        esp__cpu_decode(number, c->in + at * from_bytes, c->from, c->scale, c->sum, n);
        if (number == block)
            half_encode_for(c->to == ESP_F16, simd)((half_u16 *)(void *)out, block, NULL, 1.0f, HALF_F16_MAX, n);
    }
}
static esp_status esp__cpu_convert(void *self, void *dst, esp_dtype to, const void *src, esp_dtype from, float scale,
                                   uint32_t sum, uint64_t count, esp_stream s) {
    const uint64_t fp = esp__fp_default(); /* the program may have changed the floating-point mode */
    esp__cpu_conversion c = {dst, src, to, from, scale, sum != 0};
    (void)s;
    esp__cpu_for(self, count, ESP__CPU_GRAIN, esp__cpu_convert_run, &c);
    esp__fp_restore(fp);
    return ESP_OK;
}

static esp_status esp__cpu_core_time(void *self, uint64_t *ns) {
    struct timespec t;
    (void)self;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t)) return ESP_E_DEVICE;
    *ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return ESP_OK;
}

ESP__FN const esp_device_table *esp__device_cpu(void) {
    static const esp_device_table t = {.struct_size = sizeof t,
                                       .kind = ESP_CPU,
                                       .caps = ESP_DEVICE_HOST_ACCESS,
                                       .name = "cpu",
                                       .summary = "host memory; work is done when the call returns",
                                       .probe = esp__cpu_probe,
                                       .open = esp__cpu_open,
                                       .close = esp__cpu_close,
                                       .alloc = esp__cpu_alloc,
                                       .free_ = esp__cpu_free,
                                       .stream_create = esp__cpu_stream,
                                       .stream_destroy = esp__cpu_stream_end,
                                       .event_create = esp__cpu_event,
                                       .event_destroy = esp__cpu_event_end,
                                       .event_record = esp__cpu_record,
                                       .event_wait = esp__cpu_wait,
                                       .event_query = esp__cpu_passed,
                                       .event_sync = esp__cpu_passed,
                                       .copy = esp__cpu_copy,
                                       .copy2d = esp__cpu_copy2d,
                                       .fill = esp__cpu_fill,
                                       .convert = esp__cpu_convert,
                                       .elapsed = esp__cpu_elapsed,
                                       .core_time = esp__cpu_core_time};
    return &t;
}
