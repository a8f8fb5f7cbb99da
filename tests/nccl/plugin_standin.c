/* plugin_standin.c is a plugin with a CUDA device that uses the stand-in for the CUDA driver (fake/), for tests of
 * whole commands. Its memory is host memory. It has no codecs, so that compression runs on the CPU. */
#include "espresso.h"

#include "codecs/common/half.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
static struct {
    int (*cuInit)(unsigned);
    int (*cuDeviceGetCount)(int *);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuDevicePrimaryCtxRelease_v2)(int);
    int (*cuCtxPushCurrent_v2)(void *);
    int (*cuCtxPopCurrent_v2)(void **);
    int (*cuMemAlloc_v2)(address *, size_t);
    int (*cuMemFree_v2)(address);
    int (*cuMemHostAlloc)(void **, size_t, unsigned);
    int (*cuMemFreeHost)(void *);
    int (*cuStreamCreate)(void **, unsigned);
    int (*cuStreamDestroy_v2)(void *);
    int (*cuStreamWaitEvent)(void *, void *, unsigned);
    int (*cuEventCreate)(void **, unsigned);
    int (*cuEventDestroy_v2)(void *);
    int (*cuEventRecord)(void *, void *);
    int (*cuEventQuery)(void *);
    int (*cuEventSynchronize)(void *);
    int (*cuMemcpyAsync)(address, address, size_t, void *);
    int (*cuMemsetD8Async)(address, unsigned char, size_t, void *);
    int (*cuLaunchHostFunc)(void *, void (*)(void *), void *);
} cu;

typedef struct standin {
    int32_t ordinal;
    void *context;
} standin;
static void enter(void *self) { cu.cuCtxPushCurrent_v2(((standin *)self)->context); }
static esp_status leave(int result) {
    void *before;
    cu.cuCtxPopCurrent_v2(&before);
    return result ? ESP_E_DEVICE : ESP_OK;
}

static int find(void *from, const char *name, void *to) {
    void *p = dlsym(from, name);
    memcpy(to, &p, sizeof p);
    return p != NULL;
}
static esp_status device_probe(const esp_host *h, int32_t *count) {
    int n = 0, found = 1;
    (void)h;
    const char *path = getenv("ESPRESSO_NCCL");
    void *p = path ? dlopen(path, RTLD_NOW) : NULL;
    *count = 0;
    if (!p) return ESP_OK;
    found &= find(p, "cuInit", &cu.cuInit);
    found &= find(p, "cuDeviceGetCount", &cu.cuDeviceGetCount);
    found &= find(p, "cuDevicePrimaryCtxRetain", &cu.cuDevicePrimaryCtxRetain);
    found &= find(p, "cuDevicePrimaryCtxRelease_v2", &cu.cuDevicePrimaryCtxRelease_v2);
    found &= find(p, "cuCtxPushCurrent_v2", &cu.cuCtxPushCurrent_v2);
    found &= find(p, "cuCtxPopCurrent_v2", &cu.cuCtxPopCurrent_v2);
    found &= find(p, "cuMemAlloc_v2", &cu.cuMemAlloc_v2);
    found &= find(p, "cuMemFree_v2", &cu.cuMemFree_v2);
    found &= find(p, "cuMemHostAlloc", &cu.cuMemHostAlloc);
    found &= find(p, "cuMemFreeHost", &cu.cuMemFreeHost);
    found &= find(p, "cuStreamCreate", &cu.cuStreamCreate);
    found &= find(p, "cuStreamDestroy_v2", &cu.cuStreamDestroy_v2);
    found &= find(p, "cuStreamWaitEvent", &cu.cuStreamWaitEvent);
    found &= find(p, "cuEventCreate", &cu.cuEventCreate);
    found &= find(p, "cuEventDestroy_v2", &cu.cuEventDestroy_v2);
    found &= find(p, "cuEventRecord", &cu.cuEventRecord);
    found &= find(p, "cuEventQuery", &cu.cuEventQuery);
    found &= find(p, "cuEventSynchronize", &cu.cuEventSynchronize);
    found &= find(p, "cuMemcpyAsync", &cu.cuMemcpyAsync);
    found &= find(p, "cuMemsetD8Async", &cu.cuMemsetD8Async);
    found &= find(p, "cuLaunchHostFunc", &cu.cuLaunchHostFunc);
    if (!found) return ESP_E_DEVICE;
    if (cu.cuInit(0) || cu.cuDeviceGetCount(&n)) return ESP_E_DEVICE;
    return *count = n, ESP_OK;
}
static esp_status device_open(const esp_host *h, int32_t ordinal, void **self) {
    standin *d = (standin *)calloc(1, sizeof *d);
    (void)h;
    if (!d) return ESP_E_NOMEM;
    d->ordinal = ordinal;
    cu.cuDevicePrimaryCtxRetain(&d->context, ordinal);
    return *self = d, ESP_OK;
}
static void device_close(void *self) {
    cu.cuDevicePrimaryCtxRelease_v2(((standin *)self)->ordinal);
    free(self);
}
static esp_status device_alloc(void *self, uint64_t bytes, uint32_t where, void **out) {
    address at = 0;
    enter(self);
    int r = where == ESP_MEM_PINNED ? cu.cuMemHostAlloc(out, bytes, 1) : cu.cuMemAlloc_v2(&at, bytes);
    if (where != ESP_MEM_PINNED) *out = (void *)(uintptr_t)at;
    if (!r) memset(*out, 0, bytes);
    return leave(r) ? ESP_E_NOMEM : ESP_OK;
}
static void device_free(void *self, void *p, uint64_t bytes, uint32_t where) {
    (void)bytes;
    enter(self);
    leave(where == ESP_MEM_PINNED ? cu.cuMemFreeHost(p) : cu.cuMemFree_v2((address)(uintptr_t)p));
}
static esp_status device_stream_create(void *self, esp_stream *out) {
    *out = (esp_stream){{ESP_CUDA, ((standin *)self)->ordinal}, NULL};
    enter(self);
    return leave(cu.cuStreamCreate(&out->native, 1));
}
static void device_stream_destroy(void *self, esp_stream s) {
    enter(self);
    leave(cu.cuStreamDestroy_v2(s.native));
}
static esp_status device_event_create(void *self, void **event) {
    enter(self);
    return leave(cu.cuEventCreate(event, 2));
}
static void device_event_destroy(void *self, void *event) {
    enter(self);
    leave(cu.cuEventDestroy_v2(event));
}
static esp_status device_event_record(void *self, void *event, esp_stream s) {
    enter(self);
    return leave(cu.cuEventRecord(event, s.native));
}
static esp_status device_event_wait(void *self, void *event, esp_stream s) {
    enter(self);
    return leave(cu.cuStreamWaitEvent(s.native, event, 0));
}
static esp_status device_event_query(void *self, void *event) {
    enter(self);
    const int r = cu.cuEventQuery(event);
    return leave(r == 600 ? 0 : r) ? ESP_E_DEVICE : r ? ESP_PENDING : ESP_OK;
}
static esp_status device_event_sync(void *self, void *event) {
    enter(self);
    return leave(cu.cuEventSynchronize(event));
}
static esp_status device_copy2d(void *self, void *dst, uint64_t dst_pitch, const void *src, uint64_t src_pitch,
                                uint64_t bytes, uint64_t rows, esp_stream s) {
    int r = 0;
    enter(self);
    for (uint64_t k = 0; k < rows && bytes && !r; k++)
        r = cu.cuMemcpyAsync((address)(uintptr_t)dst + k * dst_pitch, (address)(uintptr_t)src + k * src_pitch, bytes,
                             s.native);
    return leave(r);
}
static esp_status device_copy(void *self, void *dst, const void *src, uint64_t bytes, esp_stream s) {
    return device_copy2d(self, dst, bytes, src, bytes, bytes, 1, s);
}
static esp_status device_fill(void *self, void *dst, uint8_t byte, uint64_t bytes, esp_stream s) {
    enter(self);
    return leave(bytes ? cu.cuMemsetD8Async((address)(uintptr_t)dst, byte, bytes, s.native) : 0);
}

typedef struct conversion {
    uint8_t *dst;
    const uint8_t *src;
    esp_dtype to, from;
    float scale;
    uint32_t sum;
    uint64_t count;
} conversion;
static float number(esp_dtype d, const uint8_t *p) {
    float x;
    uint16_t h;
    if (d == ESP_F32) return memcpy(&x, p, 4), x;
    memcpy(&h, p, 2);
    return d == ESP_F16 ? half_from_f16(h) : bits_float((uint32_t)h << 16);
}
static void convert_now(void *arg) {
    const conversion *c = (conversion *)arg;
    for (uint64_t i = 0; i < c->count; i++) {
        uint8_t *to = c->dst + i * esp_dtype_bytes(c->to);
        const float x = number(c->from, c->src + i * esp_dtype_bytes(c->from)) * c->scale,
                    y = c->sum ? number(c->to, to) + x : x;
        const uint16_t h = (uint16_t)(c->to == ESP_F16 ? half_to_f16(y) : half_to_bf16(y));
        memcpy(to, c->to == ESP_F32 ? (const void *)&y : &h, esp_dtype_bytes(c->to));
    }
    free(arg);
}
static esp_status device_convert(void *self, void *dst, esp_dtype to, const void *src, esp_dtype from, float scale,
                                 uint32_t sum, uint64_t count, esp_stream s) {
    conversion *c = (conversion *)malloc(sizeof *c);
    if (!c) return ESP_E_NOMEM;
    *c = (conversion){(uint8_t *)dst, (const uint8_t *)src, to, from, scale, sum, count};
    enter(self);
    return leave(cu.cuLaunchHostFunc(s.native, convert_now, c));
}

static const esp_device_table device = {.struct_size = sizeof(esp_device_table),
                                        .kind = ESP_CUDA,
                                        .name = "standin",
                                        .summary = "the stand-in for the CUDA driver, for tests",
                                        .probe = device_probe,
                                        .open = device_open,
                                        .close = device_close,
                                        .alloc = device_alloc,
                                        .free_ = device_free,
                                        .stream_create = device_stream_create,
                                        .stream_destroy = device_stream_destroy,
                                        .event_create = device_event_create,
                                        .event_destroy = device_event_destroy,
                                        .event_record = device_event_record,
                                        .event_wait = device_event_wait,
                                        .event_query = device_event_query,
                                        .event_sync = device_event_sync,
                                        .copy = device_copy,
                                        .copy2d = device_copy2d,
                                        .fill = device_fill,
                                        .convert = device_convert};
ESPRESSO_PLUGIN_ENTRY(standin) {
    static const esp_device_table *const devices[] = {&device};
    static const esp_plugin plugin = {.struct_size = sizeof plugin, .n_devices = 1, .devices = devices};
    (void)h;
    return &plugin;
}
