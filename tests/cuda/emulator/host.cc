/* host.cc has memory, streams, events and graphs of the tests' CUDA emulator; block.cc runs kernels. One lock guards
 * everything. The thread that waits for work runs it, so the seed determines the order of work. */
#include "tests/cuda/emulator/host.h"
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <deque>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct locked {
    locked() { pthread_mutex_lock(&lock); }
    ~locked() { pthread_mutex_unlock(&lock); }
};
static thread_local cudaError_t last;
static cuda_host_counts counts;
uint64_t cuda_host_read, cuda_host_written;
static void count(uint64_t *what) { __atomic_fetch_add(what, 1u, __ATOMIC_SEQ_CST); }

static cudaError_t said(cudaError_t e) {
    if (e) last = e;
    return e;
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */
static uint64_t state = 1;
uint32_t cuda_host_random(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}
void cuda_host_seed(uint64_t seed) {
    locked l;
    state = seed * 2 + 1;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */
static int device_count(void) {
    const char *n = getenv("CUDA_HOST_DEVICES");
    return n ? atoi(n) : 2;
}
static int driver_version(void) {
    const char *version = getenv("CUDA_HOST_DRIVER");
    return version ? atoi(version) : CUDART_VERSION;
}
cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    if (driver_version() < CUDART_VERSION / 1000 * 1000) return said(cudaErrorInsufficientDriver);
    *count = device_count();
    return *count ? cudaSuccess : said(cudaErrorNoDevice);
}
/* A thread's contexts: the last is current. As in CUDA 12, cudaSetDevice makes a context at once, and a call that needs
 * one in a thread without any makes that of device 0. */
static thread_local std::vector<int> contexts;
static unsigned made;
static int primary[32]; /* their addresses stand for the devices' primary contexts */
static void make(int device) { __atomic_or_fetch(&made, 1u << device, __ATOMIC_SEQ_CST); }
static int current(void) {
    if (contexts.empty()) contexts.push_back(0), make(0);
    return contexts.back();
}
unsigned cuda_host_contexts(void) { return __atomic_exchange_n(&made, 0u, __ATOMIC_SEQ_CST); }
cudaError_t cudaSetDevice(int device) {
    count(&counts.devices);
    if (device < 0 || device >= device_count()) return said(cudaErrorInvalidDevice);
    if (contexts.empty()) contexts.push_back(device);
    contexts.back() = device;
    make(device);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    count(&counts.devices);
    return *device = contexts.empty() ? 0 : contexts.back(), cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) { return *value = 4, cudaSuccess; }
static int device_get(int *device, int ordinal) {
    return *device = ordinal, ordinal < 0 || ordinal >= device_count() ? cudaErrorInvalidDevice : 0;
}
static int context_retain(void **context, int device) { return *context = &primary[device], make(device), 0; }
static int context_release(int) { return 0; }
static int context_current(void **context) {
    count(&counts.devices);
    return *context = contexts.empty() ? NULL : &primary[contexts.back()], 0;
}
static int context_push(void *context) {
    count(&counts.devices);
    return contexts.push_back((int)((int *)context - primary)), 0;
}
static int context_pop(void **context) {
    context_current(context);
    if (!contexts.empty()) contexts.pop_back();
    return 0;
}
cudaError_t cudaDriverGetVersion(int *version) { return *version = driver_version(), cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *) {
    static const struct {
        const char *name;
        void *function;
    } all[] = {{"cuDeviceGet", (void *)device_get},
               {"cuDevicePrimaryCtxRetain", (void *)context_retain},
               {"cuDevicePrimaryCtxRelease", (void *)context_release},
               {"cuCtxGetCurrent", (void *)context_current},
               {"cuCtxPushCurrent", (void *)context_push},
               {"cuCtxPopCurrent", (void *)context_pop}};
    *function = NULL;
    for (const auto &f : all)
        if (!strcmp(f.name, name)) *function = f.function;
    return *function ? cudaSuccess : said(cudaErrorInvalidValue);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    snprintf(p->name, sizeof p->name, "the tests' runtime, device %d", device);
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
    const cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
const char *cudaGetErrorName(cudaError_t e) { return e ? "cudaError" : "cudaSuccess"; }
const char *cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return "unknown error";
    }
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */
struct cuda_host_event {
    uint64_t recorded, passed, ns;
    int device, times;
};
typedef struct item {
    std::function<void()> run;
    cuda_host_event *mark, *wait;
    uint64_t number;
} item;
struct cuda_host_graph {
    std::vector<item> items;
};
struct cuda_host_stream {
    int device, priority;
    std::deque<item> queue;
    cuda_host_graph *graph; /* NULL unless the stream is being captured, by thread `by` */
    pthread_t by;
    cudaStreamCaptureMode mode;
};
static std::vector<cuda_host_stream *> streams;
/* While a stream is captured, CUDA refuses calls that might wait: by this thread, or by any if the mode is global. */
static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
static int refused(void) {
    for (const cuda_host_stream *s : streams) {
        if (!s->graph || capture_mode == cudaStreamCaptureModeRelaxed) continue;
        if (pthread_equal(s->by, pthread_self()) ? s->mode != cudaStreamCaptureModeRelaxed
                                                 : !s->mode && capture_mode == cudaStreamCaptureModeGlobal)
            return 1;
    }
    return 0;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    const cudaStreamCaptureMode before = capture_mode;
    count(&counts.devices);
    capture_mode = *mode;
    return *mode = before, cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
typedef struct block {
    unsigned char *p;
    size_t bytes;
    int pinned;
} block;
static std::vector<block> blocks;

static cudaError_t take(void **p, size_t bytes, int pinned) {
    locked l;
    current();
    if (refused()) return said(cudaErrorStreamCaptureUnsupported);
    if (posix_memalign(p, 256, bytes ? bytes : 1)) return said(cudaErrorMemoryAllocation);
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)*p)[i] = (unsigned char)(0xA5 ^ cuda_host_random(256));
    cuda_host_unwritten(*p, bytes);
    blocks.push_back({(unsigned char *)*p, bytes, pinned});
    if (!pinned) ASAN_POISON_MEMORY_REGION(*p, bytes);
    return cudaSuccess;
}
static cudaError_t give(void *p, int pinned) {
    locked l;
    if (!p) return cudaSuccess;
    while (cuda_host_work()) {
    }
    for (size_t i = 0; i < blocks.size(); i++)
        if (blocks[i].p == p && blocks[i].pinned == pinned) {
            ASAN_UNPOISON_MEMORY_REGION(p, blocks[i].bytes);
            blocks.erase(blocks.begin() + (ptrdiff_t)i);
            free(p);
            return cudaSuccess;
        }
    return said(cudaErrorInvalidValue);
}
cudaError_t cudaMalloc(void **p, size_t bytes) { return take(p, bytes, 0); }
cudaError_t cudaFree(void *p) { return give(p, 0); }
static uint32_t pinned_taken;
uint32_t cuda_host_pinned(void) { return __atomic_exchange_n(&pinned_taken, 0u, __ATOMIC_SEQ_CST); }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    __atomic_fetch_add(&pinned_taken, 1u, __ATOMIC_SEQ_CST);
    return take(p, bytes, 1);
}
cudaError_t cudaFreeHost(void *p) { return give(p, 1); }
static void open_memory(int opened) {
    for (const block &b : blocks) {
        if (b.pinned) continue;
        if (opened)
            ASAN_UNPOISON_MEMORY_REGION(b.p, b.bytes);
        else
            ASAN_POISON_MEMORY_REGION(b.p, b.bytes);
    }
}
static int reached(const void *p, size_t bytes) {
    for (const block &b : blocks)
        if ((const unsigned char *)p >= b.p && bytes <= b.bytes &&
            (size_t)((const unsigned char *)p - b.p) <= b.bytes - bytes)
            return 1;
    return 0;
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */
static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
int cuda_host_work(void) {
    cuda_host_stream *found = NULL;
    uint32_t n = 0;
    for (cuda_host_stream *s : streams) {
        if (s->queue.empty()) continue;
        const item &i = s->queue.front();
        if (i.wait && i.wait->passed < i.number) continue;
        if (cuda_host_random(++n) == 0) found = s;
    }
    if (!found) return 0;
    const item i = found->queue.front();
    if (i.run) {
        open_memory(1);
        i.run();
        open_memory(0);
    }
    if (i.mark && i.mark->passed < i.number) i.mark->passed = i.number, i.mark->ns = now();
    found->queue.pop_front();
    return 1;
}
/* Returns the stream, or for NULL the default stream of the thread's device. Default streams do not wait for others. */
static cudaStream_t meant(cudaStream_t s) {
    static std::vector<cudaStream_t> &defaults = *new std::vector<cudaStream_t>; /* never freed, as CUDA's */
    if (s) return s;
    while (defaults.size() <= (size_t)current()) {
        defaults.push_back(new cuda_host_stream{(int)defaults.size(), 0, {}, NULL, {}, {}});
        streams.push_back(defaults.back());
    }
    return defaults[(size_t)current()];
}
static int known(cudaStream_t s) {
    for (const cuda_host_stream *k : streams)
        if (k == s) return 1;
    return 0;
}
static cudaError_t enqueue(cudaStream_t s, item i) {
    s = meant(s);
    if (!known(s)) return said(cudaErrorInvalidResourceHandle);
    if (s->graph)
        s->graph->items.push_back(i);
    else
        s->queue.push_back(i);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int priority) {
    locked l;
    streams.push_back(*out = new cuda_host_stream{current(), priority, {}, NULL, {}, {}});
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { return *priority = s->priority, cudaSuccess; }
template <typename F> static cudaError_t until(F holds) {
    while (!holds()) {
        if (cuda_host_work()) continue;
        fprintf(stderr, "cuda_host: somebody waits for work that can never run\n");
        abort();
    }
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    locked l;
    if (!known(s)) return said(cudaErrorInvalidResourceHandle);
    until([&] { return s->queue.empty(); });
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s) streams.erase(streams.begin() + (ptrdiff_t)i);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    locked l;
    s = meant(s);
    if (!known(s)) return said(cudaErrorInvalidResourceHandle);
    if (s->graph || refused()) return said(cudaErrorStreamCaptureUnsupported);
    return until([&] { return s->queue.empty(); });
}
cudaError_t cudaDeviceSynchronize(void) {
    locked l;
    if (refused()) return said(cudaErrorStreamCaptureUnsupported);
    while (cuda_host_work()) {
    }
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    *out = new cuda_host_event{0, 0, 0, current(), !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    locked l;
    until([&] { return e->passed >= e->recorded; });
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    locked l;
    current();
    count(&counts.records);
    s = meant(s);
    if (!known(s) || e->device != s->device) return said(cudaErrorInvalidResourceHandle);
    return enqueue(s, {NULL, e, NULL, ++e->recorded});
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    locked l;
    current();
    count(&counts.waits);
    return enqueue(s, {NULL, NULL, e, e->recorded});
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    locked l;
    current();
    count(&counts.queries);
    if (refused()) return said(cudaErrorStreamCaptureUnsupported);
    if (cuda_host_random(2)) cuda_host_work();
    return e->passed < e->recorded ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    locked l;
    current();
    count(&counts.queries);
    if (refused()) return said(cudaErrorStreamCaptureUnsupported);
    return until([&] { return e->passed >= e->recorded; });
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    locked l;
    current();
    count(&counts.elapsed);
    if (!from->times || !to->times || !from->recorded || !to->recorded) return said(cudaErrorInvalidResourceHandle);
    if (from->passed < from->recorded || to->passed < to->recorded) return cudaErrorNotReady;
    *ms = (float)((double)(int64_t)(to->ns - from->ns) / 1e6);
    return cudaSuccess;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
    locked l;
    open_memory(1);
    memmove(to, from, bytes);
    open_memory(0);
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t s) {
    locked l;
    if (!width || !height) return cudaSuccess;
    if (to_pitch > INT_MAX || from_pitch > INT_MAX) return said(cudaErrorInvalidPitchValue);
    if ((height > 1 && (width > to_pitch || width > from_pitch)) || !reached(to, to_pitch * (height - 1) + width) ||
        !reached(from, from_pitch * (height - 1) + width))
        return said(cudaErrorInvalidValue);
    current();
    counts.copies++;
    return enqueue(s, {[=] {
                           for (size_t r = 0; r < height; r++)
                               memmove((char *)to + r * to_pitch, (const char *)from + r * from_pitch, width);
                       },
                       NULL, NULL, 0});
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
    return cudaMemcpy2DAsync(to, 0, from, 0, bytes, 1, kind, s); /* a pitch of 0: one row of any length */
}
cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int byte, size_t width, size_t height, cudaStream_t s) {
    locked l;
    if (!width || !height) return cudaSuccess;
    if (pitch > INT_MAX) return said(cudaErrorInvalidPitchValue);
    if ((height > 1 && width > pitch) || !reached(p, pitch * (height - 1) + width)) return said(cudaErrorInvalidValue);
    current();
    counts.fills++;
    return enqueue(s, {[=] {
                           for (size_t r = 0; r < height; r++) memset((char *)p + r * pitch, byte, width);
                       },
                       NULL, NULL, 0});
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t s) {
    return cudaMemset2DAsync(p, 0, byte, bytes, 1, s);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
    locked l;
    if (!known(s) || s->graph) return said(cudaErrorInvalidResourceHandle);
    s->by = pthread_self(), s->mode = mode;
    s->graph = new cuda_host_graph;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status) {
    locked l;
    current();
    count(&counts.captures);
    s = meant(s);
    if (!known(s)) return said(cudaErrorInvalidResourceHandle);
    *status = s->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    locked l;
    if (!known(s) || !s->graph) return said(cudaErrorInvalidResourceHandle);
    *graph = s->graph;
    s->graph = NULL;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    *exec = new cuda_host_graph(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    locked l;
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < exec->items.size() && !e; i++) e = enqueue(s, exec->items[i]);
    return e;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }

/* ---- launches ---------------------------------------------------------------------------------------------------- */
typedef struct loaded {
    const void *kernel;
    int launched;
} loaded;
static std::vector<loaded> touched;
static loaded *find_loaded(const void *kernel) {
    for (loaded &t : touched)
        if (t.kernel == kernel) return &t;
    return NULL;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *kernel) {
    locked l;
    current();
    if (!find_loaded(kernel)) touched.push_back({kernel, 0});
    return cudaSuccess;
}
int cuda_host_idle(const void **one) {
    locked l;
    int n = 0;
    for (const loaded &t : touched)
        if (!t.launched) n++, *one = t.kernel;
    return n;
}
static uint32_t widest;
uint32_t cuda_host_widest(void) {
    locked l;
    const uint32_t w = widest;
    widest = 0;
    return w;
}
cudaError_t cuda_host_launch(const cudaLaunchConfig_t *c, const void *name,
                             std::function<void(cuda_host_kernel)> kernel) {
    locked l;
    const dim3 g = c->gridDim, b = c->blockDim;
    const uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (!known(c->stream) || c->stream->device != current()) return said(cudaErrorInvalidResourceHandle);
    if (!g.x || !g.y || !g.z || g.y > 65535 || g.z > 65535 || g.x > 0x7FFFFFFFu || !threads || threads > 1024 ||
        c->dynamicSmemBytes > 0)
        return said(cudaErrorInvalidConfiguration);
    counts.launches++;
    if (g.x > widest) widest = g.x;
    loaded *const found = find_loaded(name);
    if (found)
        found->launched = 1;
    else
        counts.untouched++;
    const cuda_host_kernel instead = cuda_host_instead ? cuda_host_instead(name) : NULL;
    return enqueue(c->stream, {[=] { cuda_host_run(g, b, [&] { kernel(instead); }); }, NULL, NULL, 0});
}
uint64_t cuda_host_untouched(void) {
    locked l;
    return counts.untouched;
}
cuda_host_counts cuda_host_counted(int reset) {
    locked l;
    cuda_host_counts c = counts;
    c.read = cuda_host_read, c.written = cuda_host_written;
    if (reset) counts = cuda_host_counts(), cuda_host_read = cuda_host_written = 0;
    return c;
}
