/* device.cu: implements the table of CUDA devices (esp_device_table): memory, streams, events, copies and
 * conversion. The CUDA runtime is linked into the plugin and loads the driver at run time; without a driver there
 * are no devices, which is not an error. ESPRESSO_CUDA_SMS=N makes codecs use at most N multiprocessors.
 * ESPRESSO_CUDA_PRIORITY=high raises the priority of the library's streams. */
#include "codecs/common/half.h"
#include "codecs/cuda/common/memory.h"
#include "codecs/cuda/device.h"
#include <new>
#include <stdio.h>
#include <stdlib.h>

static esp_status cuda_log(const esp_host *h, int32_t level, esp_status s, const char *text) {
    const esp_log_event ev = {(uint32_t)sizeof ev, level, s, 0, "cuda", text, "codecs/cuda/device.cu"};
    if (h && h->log) h->log(h->user, &ev);
    return s;
}
esp_status cuda_failed(const esp_host *h, const char *call, cudaError_t e) {
    char text[256];
    (void)cudaGetLastError(); /* Without this, the program's next cudaGetLastError() would return this error. */
    (void)snprintf(text, sizeof text, "%s: CUDA error %d: %s", call, (int)e, cudaGetErrorString(e));
    return cuda_log(h, ESP_LOG_ERROR, e == cudaErrorMemoryAllocation ? ESP_E_NOMEM : ESP_E_DEVICE, text);
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */
/* Functions of CUDA's driver: the runtime cannot restore a thread that has no context. All return CUresult. */
static struct {
    int (*get)(int *device, int ordinal), (*retain)(void **context, int device), (*release)(int device);
    int (*current)(void **context), (*push)(void *context), (*pop)(void **context);
} cuda_driver;

template <typename F> static cudaError_t cuda_find(const char *name, F *function) {
    void *found = NULL;
#if CUDART_VERSION >= 12050
    const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault);
#else
    const cudaError_t e = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault);
#endif
    memcpy(function, &found, sizeof found);
    return e != cudaSuccess || found ? e : cudaErrorNotSupported;
}
static cudaError_t cuda_find_all(void) {
    cudaError_t e = cuda_find("cuDeviceGet", &cuda_driver.get);
    if (e == cudaSuccess) e = cuda_find("cuDevicePrimaryCtxRetain", &cuda_driver.retain);
    if (e == cudaSuccess) e = cuda_find("cuDevicePrimaryCtxRelease", &cuda_driver.release);
    if (e == cudaSuccess) e = cuda_find("cuCtxGetCurrent", &cuda_driver.current);
    if (e == cudaSuccess) e = cuda_find("cuCtxPushCurrent", &cuda_driver.push);
    return e == cudaSuccess ? cuda_find("cuCtxPopCurrent", &cuda_driver.pop) : e;
}
static esp_status cuda_retain(cuda_device *d) {
    static const cudaError_t found = cuda_find_all(); /* once, although several threads may open devices */
    int device = 0;
    if (found != cudaSuccess) return cuda_failed(d->host, "cudaGetDriverEntryPoint", found);
    const int r =
        cuda_driver.get(&device, d->ordinal) ? (int)cudaErrorInvalidDevice : cuda_driver.retain(&d->context, device);
    return r ? cuda_failed(d->host, "cuDevicePrimaryCtxRetain", (cudaError_t)r) : ESP_OK;
}
static void cuda_release(const cuda_device *d) {
    int device = 0;
    if (d->context && !cuda_driver.get(&device, d->ordinal)) cuda_driver.release(device);
}

static thread_local const void *cuda_kept; /* the context that this thread of the library has */
bool cuda_enter(const cuda_device *d) {
    void *now = NULL;
    if (cuda_kept == d->context) return false;
    if (ESP_HAS(esp_host, d->host, own_thread) && d->host->own_thread(d->host->user)) {
        /* This thread's waits must not fail while a thread of the program captures a stream in CUDA's global mode. */
        cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
        if (cudaSetDevice(d->ordinal) == cudaSuccess && cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess)
            cuda_kept = d->context;
        return false;
    }
    return cuda_driver.current(&now) || now != d->context ? cuda_driver.push(d->context) == 0 : false;
}
void cuda_leave(void) {
    void *context;
    (void)cuda_driver.pop(&context);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static esp_status cuda_probe(const esp_host *h, int32_t *count) {
    int n = 0, driver = 0, runtime = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    char text[384];
    (void)cudaGetLastError();
    *count = e == cudaSuccess ? n : 0;
    if (e == cudaSuccess) return ESP_OK;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0; /* also 0 if there is no driver */
    (void)cudaRuntimeGetVersion(&runtime);
    (void)snprintf(
        text, sizeof text,
        "there are no CUDA devices here: %s (the driver knows CUDA up to %d.%d, the plugin is built with %d.%d: "
        "see nvidia-smi, and CUDA_VISIBLE_DEVICES)",
        cudaGetErrorString(e), driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100);
    return cuda_log(h, driver && e != cudaErrorNoDevice ? ESP_LOG_WARN : ESP_LOG_INFO, ESP_OK, text);
}

/* Parses a positive number. Returns `most` if the text is empty or the number is larger, and 0 if the text is
 * malformed. */
static unsigned cuda_env_number(const char *text, unsigned most) {
    char *end;
    if (!text || !*text) return most;
    const unsigned long long n = strtoull(text, &end, 10);
    return *end || *text < '0' || *text > '9' || n == 0 ? 0 : n > most ? most : (unsigned)n;
}
static esp_status cuda_settings(cuda_device *d) {
    const char *priority = getenv("ESPRESSO_CUDA_PRIORITY");
    int sms = 0, greatest = 0;
    cudaError_t e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, d->ordinal);
    if (e == cudaSuccess) e = cudaDeviceGetStreamPriorityRange(NULL, &greatest);
    if (e != cudaSuccess) return cuda_failed(d->host, "cudaDeviceGetAttribute", e);
    d->sms = cuda_env_number(getenv("ESPRESSO_CUDA_SMS"), sms > 0 ? (unsigned)sms : 1);
    if (!d->sms)
        return cuda_log(d->host, ESP_LOG_ERROR, ESP_E_ARG,
                        "ESPRESSO_CUDA_SMS: set it to a whole number of multiprocessors, at least 1, or leave it out");
    if (priority && *priority && strcmp(priority, "high") != 0)
        return cuda_log(d->host, ESP_LOG_ERROR, ESP_E_ARG,
                        "ESPRESSO_CUDA_PRIORITY: set it to high, or leave it out: the default is CUDA's lowest");
    d->priority = priority && *priority ? greatest : 0;
    return ESP_OK;
}
/* Loads all kernels. CUDA would load each at its first launch and wait for other work of the device, such as a
 * collective that waits for another rank. */
static esp_status cuda_load(const cuda_device *d) {
    cudaFuncAttributes a;
    cudaError_t e = cudaSuccess;
    for (const cuda_kernel_node *k = cuda_kernels; k && e == cudaSuccess; k = k->next)
        e = cudaFuncGetAttributes(&a, k->kernel);
    return e == cudaSuccess
               ? ESP_OK
               : cuda_failed(d->host, "loading the codecs' kernels (built for this GPU? see CUDA_ARCH)", e);
}
static void cuda_close(void *self) {
    cuda_device *d = (cuda_device *)self;
    if (d->context) {
        const cuda_on on(d);
        if (d->own) (void)cudaStreamDestroy(d->own);
        if (d->finding) (void)cudaFreeHost(d->finding);
    }
    cuda_release(d);
    d->host->free_(d->host->user, esp_device(), d, sizeof *d);
}
static esp_status cuda_open(const esp_host *h, int32_t ordinal, void **self) {
    void *at = h->alloc(h->user, esp_device(), sizeof(cuda_device), 64);
    if (!at) return ESP_E_NOMEM;
    cuda_device *d = new (at) cuda_device();
    d->host = h, d->ordinal = ordinal;
    esp_status s = cuda_retain(d);
    if (s == ESP_OK) {
        const cuda_on on(d);
        s = cuda_settings(d);
        if (s == ESP_OK) s = cuda_load(d);
        if (s == ESP_OK) {
            cudaError_t e =
                cudaHostAlloc((void **)&d->finding, sizeof *d->finding, cudaHostAllocPortable | cudaHostAllocMapped);
            if (e == cudaSuccess) memset(d->finding, 0, sizeof *d->finding);
            if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&d->own, cudaStreamNonBlocking, 0);
            if (e != cudaSuccess) s = cuda_failed(h, "cudaHostAlloc", e);
        }
    }
    if (s != ESP_OK)
        cuda_close(d);
    else
        *self = d;
    return s;
}
static esp_status cuda_done(void *self, const char *call, cudaError_t e) {
    return e == cudaSuccess ? ESP_OK : cuda_failed(((cuda_device *)self)->host, call, e);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static esp_status cuda_alloc(void *self, uint64_t bytes, uint32_t where, void **out) {
    cuda_device *d = (cuda_device *)self;
    const cuda_on on(d);
    cudaError_t e;
    *out = NULL;
    if (where == ESP_MEM_PINNED) {
        e = cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocPortable);
        if (e == cudaSuccess && bytes) memset(*out, 0, bytes);
        return cuda_done(self, "cudaHostAlloc", e);
    }
    e = cudaMalloc(out, bytes ? bytes : 1);
    if (e == cudaSuccess) e = cudaMemsetAsync(*out, 0, bytes, d->own);
    if (e == cudaSuccess) e = cudaStreamSynchronize(d->own);
    if (e != cudaSuccess && *out) (void)cudaFree(*out), *out = NULL;
    return cuda_done(self, "cudaMalloc", e);
}
static void cuda_free(void *self, void *p, uint64_t bytes, uint32_t where) {
    const cuda_on on((const cuda_device *)self);
    (void)bytes;
    if (where == ESP_MEM_PINNED)
        (void)cudaFreeHost(p);
    else
        (void)cudaFree(p);
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */
static esp_status cuda_stream_create(void *self, esp_stream *out) {
    cuda_device *d = (cuda_device *)self;
    const cuda_on on(d);
    cudaStream_t s = NULL;
    const cudaError_t e = cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, d->priority);
    *out = esp_stream();
    out->dev.kind = ESP_CUDA, out->dev.ordinal = d->ordinal, out->native = s;
    return cuda_done(self, "cudaStreamCreateWithPriority", e);
}
static void cuda_stream_destroy(void *self, esp_stream s) {
    const cuda_on on((const cuda_device *)self);
    (void)cudaStreamDestroy((cudaStream_t)s.native);
}
static esp_status cuda_event_make(void *self, unsigned flags, void **event) {
    const cuda_on on((const cuda_device *)self);
    cudaEvent_t made = NULL;
    const cudaError_t e = cudaEventCreateWithFlags(&made, flags);
    *event = made;
    return cuda_done(self, "cudaEventCreate", e);
}
static esp_status cuda_event_create(void *self, void **event) { return cuda_event_make(self, 0, event); }
static esp_status cuda_event_create_untimed(void *self, void **event) {
    return cuda_event_make(self, cudaEventDisableTiming, event);
}
static void cuda_event_destroy(void *self, void *event) {
    const cuda_on on((const cuda_device *)self);
    (void)cudaEventDestroy((cudaEvent_t)event);
}
/* Events cannot be used while stream `s` is being captured into a CUDA graph: they would belong to the graph, and
 * work outside of it would not wait for them. The library's threads use streams of the library only. */
static bool cuda_captured(const void *self, esp_stream s) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cuda_kept) return false;
    if (cudaStreamIsCapturing((cudaStream_t)s.native, &status) != cudaSuccess) (void)cudaGetLastError();
    if (status == cudaStreamCaptureStatusNone) return false;
    (void)cuda_log(((const cuda_device *)self)->host, ESP_LOG_ERROR, ESP_E_UNSUPPORTED,
                   "the stream is being captured into a CUDA graph: call esp_push and esp_wait_on after the capture, "
                   "behind the graph's launch");
    return true;
}
static esp_status cuda_event_record(void *self, void *event, esp_stream s) {
    const cuda_on on((const cuda_device *)self);
    if (cuda_captured(self, s)) return ESP_E_UNSUPPORTED;
    return cuda_done(self, "cudaEventRecord", cudaEventRecord((cudaEvent_t)event, (cudaStream_t)s.native));
}
static esp_status cuda_event_wait(void *self, void *event, esp_stream s) {
    const cuda_on on((const cuda_device *)self);
    if (cuda_captured(self, s)) return ESP_E_UNSUPPORTED;
    return cuda_done(self, "cudaStreamWaitEvent", cudaStreamWaitEvent((cudaStream_t)s.native, (cudaEvent_t)event, 0));
}
/* Returns the status of a completed event: ESP_E_CORRUPT if any kernel of this device has found a corrupt payload. */
static esp_status cuda_found(cuda_device *d) {
    char text[256];
    if (!*(volatile uint32_t *)&d->finding->corrupt) return ESP_OK;
    const char *name = cuda_codec_name(*(volatile uint32_t *)&d->finding->codec);
    if (!__atomic_exchange_n(&d->logged, 1, __ATOMIC_RELAXED)) {
        (void)snprintf(text, sizeof text,
                       "device cuda:%d: a payload for codec %s is corrupt, or from another codec, size or parameters",
                       d->ordinal, name ? name : "(unknown)");
        (void)cuda_log(d->host, ESP_LOG_ERROR, ESP_E_CORRUPT, text);
    }
    return ESP_E_CORRUPT;
}
static esp_status cuda_passed(void *self, const char *call, cudaError_t e) {
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return ESP_PENDING;
    }
    return e == cudaSuccess ? cuda_found((cuda_device *)self) : cuda_done(self, call, e);
}
static esp_status cuda_event_query(void *self, void *event) {
    const cuda_on on((const cuda_device *)self);
    return cuda_passed(self, "cudaEventQuery", cudaEventQuery((cudaEvent_t)event));
}
static esp_status cuda_event_sync(void *self, void *event) {
    const cuda_on on((const cuda_device *)self);
    return cuda_passed(self, "cudaEventSynchronize", cudaEventSynchronize((cudaEvent_t)event));
}
static esp_status cuda_elapsed(void *self, void *from, void *to, uint64_t *ns) {
    const cuda_on on((const cuda_device *)self);
    float ms = 0;
    const cudaError_t e = cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to);
    *ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    return e == cudaErrorNotReady ? ESP_E_STATE : cuda_done(self, "cudaEventElapsedTime", e);
}

static esp_status cuda_device_name(void *self, char *out, uint64_t room) {
    cudaDeviceProp p;
    const cudaError_t e = cudaGetDeviceProperties(&p, ((const cuda_device *)self)->ordinal);
    if (e == cudaSuccess) snprintf(out, room, "%s", p.name);
    return cuda_done(self, "cudaGetDeviceProperties", e);
}

/* ---- copies and conversion --------------------------------------------------------------------------------------- */
static esp_status cuda_copy(void *self, void *dst, const void *src, uint64_t bytes, esp_stream s) {
    if (!bytes) return ESP_OK;
    const cuda_on on((const cuda_device *)self);
    return cuda_done(self, "cudaMemcpyAsync",
                     cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)s.native));
}
static esp_status cuda_copy2d(void *self, void *dst, uint64_t dst_pitch, const void *src, uint64_t src_pitch,
                              uint64_t bytes, uint64_t rows, esp_stream s) {
    if (!bytes || !rows) return ESP_OK;
    const cuda_on on((const cuda_device *)self);
    cudaError_t e = cudaSuccess;
    if (dst_pitch <= CUDA_PITCH_MAX && src_pitch <= CUDA_PITCH_MAX)
        e = cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, bytes, rows, cudaMemcpyDefault, (cudaStream_t)s.native);
    else
        for (uint64_t r = 0; r < rows && e == cudaSuccess; r++)
            e = cudaMemcpyAsync((char *)dst + r * dst_pitch, (const char *)src + r * src_pitch, bytes,
                                cudaMemcpyDefault, (cudaStream_t)s.native);
    return cuda_done(self, "cudaMemcpy2DAsync", e);
}
static esp_status cuda_fill(void *self, void *dst, uint8_t byte, uint64_t bytes, esp_stream s) {
    if (!bytes) return ESP_OK;
    const cuda_on on((const cuda_device *)self);
    return cuda_done(self, "cudaMemsetAsync", cudaMemsetAsync(dst, byte, bytes, (cudaStream_t)s.native));
}

static __device__ __forceinline__ float cuda_number_get(const void *p, esp_dtype dtype, uint64_t i) {
    if (dtype == ESP_F32) return cuda_get((const float *)p + i);
    const uint16_t v = cuda_get((const uint16_t *)p + i);
    return dtype == ESP_F16 ? half_from_f16(v) : bits_float((uint32_t)v << 16);
}
static __device__ __forceinline__ void cuda_number_put(void *p, esp_dtype dtype, uint64_t i, float x) {
    if (dtype == ESP_F32)
        cuda_put((float *)p + i, x);
    else if (dtype == ESP_F16)
        cuda_put((uint16_t *)p + i, (uint16_t)half_any_f16(x));
    else
        cuda_put((uint16_t *)p + i, (uint16_t)half_any_bf16(x));
}
static __global__ void __launch_bounds__(256)
    cuda_convert_kernel(void *dst, esp_dtype to, const void *src, esp_dtype from, float scale, uint32_t sum,
                        uint64_t n) {
    for (uint64_t i = cuda_thread(); i < n; i += cuda_threads()) {
        const float x = scale * cuda_number_get(src, from, i);
        cuda_number_put(dst, to, i, sum ? cuda_number_get(dst, to, i) + x : x);
    }
}
static esp_status cuda_convert(void *self, void *dst, esp_dtype dst_dtype, const void *src, esp_dtype src_dtype,
                               float scale, uint32_t sum, uint64_t count, esp_stream s) {
    const cuda_device *d = (const cuda_device *)self;
    const uint64_t want = (count + 1023) / 1024, most = (uint64_t)d->sms * 8;
    cudaLaunchConfig_t c;
    if (!count) return ESP_OK;
    if (!esp_dtype_bytes(dst_dtype) || !esp_dtype_bytes(src_dtype) || dst_dtype > ESP_BF16 || src_dtype > ESP_BF16)
        return ESP_E_ARG;
    const cuda_on on(d);
    memset((void *)&c, 0, sizeof c);
    c.gridDim = dim3((unsigned)(want < most ? want : most));
    c.blockDim = dim3(256);
    c.stream = (cudaStream_t)s.native;
    return cuda_done(
        self, "convert",
        cudaLaunchKernelEx(&c, cuda_kernel<cuda_convert_kernel>, dst, dst_dtype, src, src_dtype, scale, sum, count));
}

extern const esp_device_table cuda_device_table;
const esp_device_table cuda_device_table = [] {
    esp_device_table t;
    memset(&t, 0, sizeof t);
    t.struct_size = sizeof t, t.kind = ESP_CUDA;
    t.name = "cuda", t.summary = "NVIDIA GPUs, by the CUDA runtime";
    t.probe = cuda_probe, t.open = cuda_open, t.close = cuda_close;
    t.alloc = cuda_alloc, t.free_ = cuda_free;
    t.stream_create = cuda_stream_create, t.stream_destroy = cuda_stream_destroy;
    t.event_create = cuda_event_create, t.event_destroy = cuda_event_destroy, t.event_record = cuda_event_record;
    t.event_wait = cuda_event_wait, t.event_query = cuda_event_query, t.event_sync = cuda_event_sync;
    t.copy = cuda_copy, t.copy2d = cuda_copy2d, t.fill = cuda_fill, t.convert = cuda_convert;
    t.elapsed = cuda_elapsed, t.device_name = cuda_device_name;
    t.event_create_untimed = cuda_event_create_untimed;
    return t;
}();
