/* driver.h is a part of fake.c, the stand-in for NCCL. It has the functions of the CUDA driver that the backend uses,
 * on host memory. A stream is a thread that runs its work late and in order. A call that breaks a rule of the driver
 * ends the process, and prints the rule. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FAKE_EXPORT __attribute__((visibility("default")))
enum { FAKE_GPUS = 8, FAKE_NOT_READY = 600, FAKE_NO_MEMORY = 2, FAKE_CAPTURES = 900 };

__attribute__((format(printf, 1, 2), noreturn)) static void fake_wrong(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "the stand-in for NCCL: ");
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

static pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gpu_news = PTHREAD_COND_INITIALIZER;
static unsigned gpu_seed = 1;
static unsigned gpu_random(void) { return (gpu_seed = gpu_seed * 1664525u + 1013904223u) >> 8; }

/* ---- the device that a thread uses ------------------------------------------------------------------------------- */
static __thread int gpu_stack[16], gpu_depth;
static int gpu_current(const char *call) {
    if (!gpu_depth) fake_wrong("%s: the thread has no context", call);
    return gpu_stack[gpu_depth - 1];
}
static int gpu_contexts[FAKE_GPUS], gpu_inited, gpu_live; /* gpu_live: blocks, streams and events that are not freed */

static int gpu_count(void) {
    const char *env = getenv("FAKE_GPUS");
    const int n = env ? atoi(env) : FAKE_GPUS;
    return n < 0 || n > FAKE_GPUS ? FAKE_GPUS : n;
}

/* Fails in a process whose parent has called cuInit, as CUDA does. */
FAKE_EXPORT int cuInit(unsigned flags) {
    static pid_t process;
    if (process && process != getpid()) return 3;
    process = getpid();
    return gpu_inited = 1, (int)flags;
}
FAKE_EXPORT int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
FAKE_EXPORT int cuDeviceGetCount(int *count) {
    if (!gpu_inited) fake_wrong("cuDeviceGetCount before cuInit");
    return *count = gpu_count(), 0;
}
FAKE_EXPORT int cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= gpu_count()) return 101;
    return *device = ordinal, 0;
}
FAKE_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return *value = attribute == 16 ? 40 : 0, device < gpu_count() ? 0 : 101; /* 40 multiprocessors */
}
FAKE_EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    __atomic_add_fetch(&gpu_contexts[device], 1, __ATOMIC_SEQ_CST);
    return *context = &gpu_contexts[device], 0;
}
FAKE_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    if (__atomic_sub_fetch(&gpu_contexts[device], 1, __ATOMIC_SEQ_CST) < 0) fake_wrong("a context was released twice");
    return 0;
}
FAKE_EXPORT int cuCtxPushCurrent_v2(void *context) {
    const int device = (int)((int *)context - gpu_contexts);
    if (gpu_depth == 16) fake_wrong("contexts are pushed and not popped");
    gpu_stack[gpu_depth++] = device;
    return 0;
}
FAKE_EXPORT int cuCtxPopCurrent_v2(void **context) {
    *context = &gpu_contexts[gpu_current("cuCtxPopCurrent")];
    gpu_depth--;
    return 0;
}
FAKE_EXPORT int cuCtxGetDevice(int *device) {
    if (!gpu_depth) return 201;
    return *device = gpu_stack[gpu_depth - 1], 0;
}
/* While somebody captures a stream in mode global (0), the driver refuses calls that might wait, in threads of that
 * mode. */
static __thread int gpu_capture_mode;
static int gpu_captures;
FAKE_EXPORT void fake_capture(int on);
FAKE_EXPORT void fake_capture(int on) { __atomic_store_n(&gpu_captures, on, __ATOMIC_SEQ_CST); }
static int gpu_refused(void) { return __atomic_load_n(&gpu_captures, __ATOMIC_SEQ_CST) && gpu_capture_mode == 0; }
FAKE_EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
    const int before = gpu_capture_mode;
    gpu_capture_mode = *mode;
    return *mode = before, 0;
}
FAKE_EXPORT int cuGetErrorString(int error, const char **text) {
    *text = error == FAKE_NO_MEMORY ? "out of memory" : error == 201 ? "invalid device context" : "some error";
    return 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
typedef struct gpu_block {
    uint8_t *at;
    uint64_t bytes;
    int pinned;
    struct gpu_block *next;
} gpu_block;
static gpu_block *gpu_blocks;
typedef struct gpu_known {
    const uint8_t *at;
    uint64_t bytes;
    void *comm;
    struct gpu_known *next;
} gpu_known;
static gpu_known *gpu_all_known;
static uint64_t gpu_left = UINT64_MAX; /* allocations that still succeed */
FAKE_EXPORT void fake_allocations(uint64_t left);
FAKE_EXPORT void fake_allocations(uint64_t left) { gpu_left = left; }
FAKE_EXPORT int fake_remains(void);
FAKE_EXPORT int fake_remains(void) {
    pthread_mutex_lock(&gpu_lock);
    const int n = gpu_live;
    pthread_mutex_unlock(&gpu_lock);
    return n;
}

static int gpu_alloc(void *out, uint64_t bytes, int pinned) {
    gpu_current("an allocation");
    if (gpu_refused()) return FAKE_CAPTURES;
    pthread_mutex_lock(&gpu_lock);
    gpu_block *b = gpu_left ? (gpu_block *)calloc(1, sizeof *b) : NULL;
    if (b) {
        if (gpu_left != UINT64_MAX) gpu_left--;
        b->at = (uint8_t *)malloc(bytes);
        memset(b->at, 0xA5, bytes);
        b->bytes = bytes, b->pinned = pinned, b->next = gpu_blocks;
        gpu_blocks = b;
        gpu_live++;
        memcpy(out, &b->at, sizeof b->at);
    }
    pthread_mutex_unlock(&gpu_lock);
    return b ? 0 : FAKE_NO_MEMORY;
}
static int gpu_free(const void *p, int pinned) {
    pthread_mutex_lock(&gpu_lock);
    gpu_block **at = &gpu_blocks, *b;
    while (*at && ((*at)->at != p || (*at)->pinned != pinned)) at = &(*at)->next;
    if (!*at) fake_wrong("what is freed was not allocated so");
    b = *at;
    for (const gpu_known *k = gpu_all_known; k && !pinned; k = k->next)
        if (k->at >= b->at && k->at < b->at + b->bytes) fake_wrong("memory is freed that is registered with NCCL");
    *at = b->next;
    gpu_live--;
    pthread_mutex_unlock(&gpu_lock);
    free(b->at);
    free(b);
    return 0;
}
/* Is this range in an allocation of device memory or, if `pinned`, of pinned host memory? The caller holds gpu_lock. */
static int gpu_holds(const void *p, uint64_t bytes, int pinned) {
    const uint8_t *at = (const uint8_t *)p;
    for (const gpu_block *b = gpu_blocks; b; b = b->next)
        if (b->pinned == pinned && at >= b->at && bytes <= b->bytes && (uint64_t)(at - b->at) <= b->bytes - bytes)
            return 1;
    return 0;
}
FAKE_EXPORT int cuMemAlloc_v2(unsigned long long *address, size_t bytes) { return gpu_alloc(address, bytes, 0); }
FAKE_EXPORT int cuMemFree_v2(unsigned long long address) { return gpu_free((void *)(uintptr_t)address, 0); }
FAKE_EXPORT int cuMemHostAlloc(void **p, size_t bytes, unsigned flags) { return (void)flags, gpu_alloc(p, bytes, 1); }
FAKE_EXPORT int cuMemFreeHost(void *p) { return gpu_free(p, 1); }

/* ---- streams and events ------------------------------------------------------------------------------------------ */
typedef struct gpu_work {
    struct gpu_work *next;
    int (*ready)(void *arg);
    void (*run)(void *arg); /* both are called with the lock held */
    void *arg;
} gpu_work;
typedef struct gpu_stream {
    struct gpu_stream *next;
    pthread_t thread;
    gpu_work *first, **last;
    uint64_t queued, done;
    int quit;
} gpu_stream;
typedef struct gpu_event {
    gpu_stream *stream;
    uint64_t number;
} gpu_event;
static gpu_stream *gpu_streams;

static void *gpu_main(void *arg) {
    gpu_stream *s = (gpu_stream *)arg;
    pthread_mutex_lock(&gpu_lock);
    while (!s->quit || s->first) {
        gpu_work *w = s->first;
        /* Looks again after a while, since ranks in other processes cannot signal this thread's condition. */
        if (!w || (w->ready && !w->ready(w->arg))) {
            struct timespec soon;
            clock_gettime(CLOCK_REALTIME, &soon);
            soon.tv_nsec += 200000;
            if (soon.tv_nsec >= 1000000000) soon.tv_sec++, soon.tv_nsec -= 1000000000;
            if (w)
                pthread_cond_timedwait(&gpu_news, &gpu_lock, &soon);
            else
                pthread_cond_wait(&gpu_news, &gpu_lock);
            continue;
        }
        if (gpu_random() % 8 == 0) {
            const unsigned us = gpu_random() % 100;
            pthread_mutex_unlock(&gpu_lock);
            usleep(us);
            pthread_mutex_lock(&gpu_lock);
        }
        w->run(w->arg);
        s->first = w->next;
        if (!s->first) s->last = &s->first;
        s->done++;
        free(w->arg);
        free(w);
        pthread_cond_broadcast(&gpu_news);
    }
    pthread_mutex_unlock(&gpu_lock);
    return NULL;
}
/* Returns whether `p` is a stream. The caller holds the lock. */
static int gpu_is_stream(const void *p) {
    for (const gpu_stream *s = gpu_streams; s; s = s->next)
        if (s == p) return 1;
    return 0;
}
static void gpu_enqueue(gpu_stream *s, int (*ready)(void *), void (*run)(void *), void *arg) {
    gpu_work *w = (gpu_work *)calloc(1, sizeof *w);
    w->ready = ready, w->run = run, w->arg = arg;
    *s->last = w;
    s->last = &w->next;
    s->queued++;
    pthread_cond_broadcast(&gpu_news);
}

FAKE_EXPORT int cuStreamCreate(void **stream, unsigned flags) {
    gpu_stream *s = (gpu_stream *)calloc(1, sizeof *s);
    gpu_current("cuStreamCreate");
    s->last = &s->first;
    pthread_mutex_lock(&gpu_lock);
    s->next = gpu_streams;
    gpu_streams = s;
    gpu_live++;
    pthread_mutex_unlock(&gpu_lock);
    if (pthread_create(&s->thread, NULL, gpu_main, s)) fake_wrong("no thread");
    return *stream = s, flags == 1 ? 0 : 1;
}
FAKE_EXPORT int cuStreamDestroy_v2(void *stream) {
    gpu_stream *s = (gpu_stream *)stream, **at = &gpu_streams;
    pthread_mutex_lock(&gpu_lock);
    if (!gpu_is_stream(s)) fake_wrong("cuStreamDestroy of what is no stream");
    if (s->first) fake_wrong("a stream is destroyed that has work");
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    s->quit = 1;
    gpu_live--;
    pthread_cond_broadcast(&gpu_news);
    pthread_mutex_unlock(&gpu_lock);
    pthread_join(s->thread, NULL);
    free(s);
    return 0;
}
FAKE_EXPORT int cuStreamSynchronize(void *stream) {
    gpu_stream *s = (gpu_stream *)stream;
    if (gpu_refused()) return FAKE_CAPTURES;
    pthread_mutex_lock(&gpu_lock);
    const uint64_t until = s->queued;
    while (s->done < until) pthread_cond_wait(&gpu_news, &gpu_lock);
    pthread_mutex_unlock(&gpu_lock);
    return 0;
}
FAKE_EXPORT int cuEventCreate(void **event, unsigned flags) {
    gpu_current("cuEventCreate");
    pthread_mutex_lock(&gpu_lock);
    gpu_live++;
    pthread_mutex_unlock(&gpu_lock);
    return *event = calloc(1, sizeof(gpu_event)), flags == 2 ? 0 : 1;
}
FAKE_EXPORT int cuEventDestroy_v2(void *event) {
    pthread_mutex_lock(&gpu_lock);
    gpu_live--;
    pthread_mutex_unlock(&gpu_lock);
    free(event);
    return 0;
}
FAKE_EXPORT int cuEventRecord(void *event, void *stream) {
    gpu_event *e = (gpu_event *)event;
    gpu_current("cuEventRecord");
    pthread_mutex_lock(&gpu_lock);
    e->stream = (gpu_stream *)stream;
    e->number = e->stream->queued;
    pthread_mutex_unlock(&gpu_lock);
    return 0;
}
FAKE_EXPORT int cuEventQuery(void *event) {
    const gpu_event *e = (gpu_event *)event;
    gpu_current("cuEventQuery");
    if (gpu_refused()) return FAKE_CAPTURES;
    pthread_mutex_lock(&gpu_lock);
    const int pending = e->stream && e->stream->done < e->number;
    pthread_mutex_unlock(&gpu_lock);
    return pending ? FAKE_NOT_READY : 0;
}

typedef struct gpu_copy {
    void *to;
    const void *from;
    size_t bytes;
} gpu_copy;
static void gpu_run_copy(void *arg) {
    const gpu_copy *c = (gpu_copy *)arg;
    memcpy(c->to, c->from, c->bytes);
}
static int gpu_copy_async(void *to, const void *from, size_t bytes, void *stream, int down) {
    gpu_copy *c = (gpu_copy *)malloc(sizeof *c);
    *c = (gpu_copy){to, from, bytes};
    gpu_current("a copy");
    pthread_mutex_lock(&gpu_lock);
    if (!gpu_holds(to, bytes, down) || !gpu_holds(from, bytes, !down))
        fake_wrong("a copy of %zu bytes leaves the device's or pinned memory", bytes);
    gpu_enqueue((gpu_stream *)stream, NULL, gpu_run_copy, c);
    pthread_mutex_unlock(&gpu_lock);
    return 0;
}
FAKE_EXPORT int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
    return gpu_copy_async((void *)(uintptr_t)to, from, bytes, stream, 0);
}
FAKE_EXPORT int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
    return gpu_copy_async(to, (void *)(uintptr_t)from, bytes, stream, 1);
}
/* The driver functions up to cuLaunchHostFunc are needed only by plugin_standin.c. */
FAKE_EXPORT int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
    gpu_copy *c = (gpu_copy *)malloc(sizeof *c);
    *c = (gpu_copy){(void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes};
    gpu_current("a copy");
    pthread_mutex_lock(&gpu_lock);
    if ((!gpu_holds(c->to, bytes, 0) && !gpu_holds(c->to, bytes, 1)) ||
        (!gpu_holds(c->from, bytes, 0) && !gpu_holds(c->from, bytes, 1)))
        fake_wrong("a copy of %zu bytes leaves the device's or pinned memory", bytes);
    gpu_enqueue((gpu_stream *)stream, NULL, gpu_run_copy, c);
    pthread_mutex_unlock(&gpu_lock);
    return 0;
}
typedef struct gpu_fill {
    void *to;
    size_t bytes;
    unsigned char byte;
} gpu_fill;
static void gpu_run_fill(void *arg) {
    const gpu_fill *f = (gpu_fill *)arg;
    memset(f->to, f->byte, f->bytes);
}
FAKE_EXPORT int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t bytes, void *stream) {
    gpu_fill *f = (gpu_fill *)malloc(sizeof *f);
    *f = (gpu_fill){(void *)(uintptr_t)to, bytes, byte};
    gpu_current("a fill");
    pthread_mutex_lock(&gpu_lock);
    if (!gpu_holds(f->to, bytes, 0)) fake_wrong("a fill of %zu bytes leaves the device's memory", bytes);
    gpu_enqueue((gpu_stream *)stream, NULL, gpu_run_fill, f);
    pthread_mutex_unlock(&gpu_lock);
    return 0;
}
typedef struct gpu_function {
    void (*run)(void *arg);
    void *arg;
} gpu_function;
static void gpu_run_function(void *arg) {
    const gpu_function *f = (gpu_function *)arg;
    f->run(f->arg);
}
FAKE_EXPORT int cuLaunchHostFunc(void *stream, void (*run)(void *), void *arg) {
    gpu_function *f = (gpu_function *)malloc(sizeof *f);
    *f = (gpu_function){run, arg};
    gpu_current("cuLaunchHostFunc");
    pthread_mutex_lock(&gpu_lock);
    gpu_enqueue((gpu_stream *)stream, NULL, gpu_run_function, f);
    pthread_mutex_unlock(&gpu_lock);
    return 0;
}
static int gpu_has_passed(void *arg) {
    const gpu_event *e = (gpu_event *)arg;
    return !e->stream || e->stream->done >= e->number;
}
static void gpu_nothing(void *arg) { (void)arg; }
FAKE_EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    gpu_event *copy = (gpu_event *)malloc(sizeof *copy); /* later recordings of the event must not change this wait */
    gpu_current("cuStreamWaitEvent");
    pthread_mutex_lock(&gpu_lock);
    *copy = *(gpu_event *)event;
    gpu_enqueue((gpu_stream *)stream, gpu_has_passed, gpu_nothing, copy);
    pthread_mutex_unlock(&gpu_lock);
    return (int)flags;
}
FAKE_EXPORT int cuEventSynchronize(void *event) {
    gpu_current("cuEventSynchronize");
    pthread_mutex_lock(&gpu_lock);
    while (!gpu_has_passed(event)) pthread_cond_wait(&gpu_news, &gpu_lock);
    pthread_mutex_unlock(&gpu_lock);
    return 0;
}
FAKE_EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
    return memcpy((void *)(uintptr_t)to, from, bytes), 0;
}
FAKE_EXPORT int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) {
    return memcpy(to, (void *)(uintptr_t)from, bytes), 0;
}
#endif
