/* device_memory.h runs the tests that all backends share on backend nccl. If `on_device` is set, their buffers are
 * copied to device memory and back. Used with the stand-in for NCCL and with a real GPU. */
#ifndef NCCL_DEVICE_MEMORY_H
#define NCCL_DEVICE_MEMORY_H
#include "tests/backends/ranks.h"
#include "backends/nccl/nccl.h"
#include <dlfcn.h>
#include "tests/lib/entries.h"

/* Functions of the CUDA driver that only tests need. */
typedef struct copy_calls {
    int (*up)(unsigned long long to, const void *from, size_t bytes);
    int (*down)(void *to, unsigned long long from, size_t bytes);
} copy_calls;
static copy_calls copy;
static int on_device;

static const char *driver_load(void) {
    static char why[512];
    const nccl_library *l = nccl_open_libraries(why, sizeof why);
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!l || !nccl_find(cuda, "cuMemcpyHtoD_v2", &copy.up) || !nccl_find(cuda, "cuMemcpyDtoH_v2", &copy.down))
        return why;
    return NULL;
}

static uint64_t item_bytes(const esp_coll *c) {
    return c->slot_bytes ? c->slot_bytes : esp_dtype_bytes(c->dtype) * (c->width ? c->width : 1);
}
static esp_status wait_on_stream(ranks_me *me, nccl_comm *m, const esp_coll *c, void *stream) {
    const esp_stream s = {{ESP_CUDA, m->job->ordinal}, stream};
    void *req = NULL;
    esp_status st = me->b->start(m, c, s, &req);
    if (!st) st = ranks_wait(me, m, req);
    nccl_enter(m);
    if (m->library->cuStreamSynchronize(stream) && !st) ranks_fail(me, "cuStreamSynchronize failed");
    nccl_leave(m);
    return st;
}
/* Copies a buffer to new device memory. The bytes after it must not change. */
static unsigned long long device_take(nccl_comm *m, const void *from, uint64_t bytes) {
    unsigned long long at = 0;
    nccl_enter(m);
    if (m->library->cuMemAlloc_v2(&at, bytes + 64)) abort();
    if (from && bytes && copy.up(at, from, bytes)) abort();
    nccl_leave(m);
    return at;
}
static void device_give(nccl_comm *m, unsigned long long at, void *to, uint64_t bytes) {
    nccl_enter(m);
    if (to && bytes && copy.down(to, at, bytes)) abort();
    m->library->cuMemFree_v2(at);
    nccl_leave(m);
}
static esp_status coll_on_device(ranks_me *me, nccl_comm *m, const esp_coll *call) {
    esp_coll c = *call;
    const uint64_t n = (uint64_t)me->size, item = item_bytes(&c), all = c.count * item, per = (c.count + n - 1) / n;
    const uint64_t begin = per * (uint64_t)me->rank < c.count ? per * (uint64_t)me->rank : c.count;
    const uint64_t part = (begin + per < c.count ? per : c.count - begin) * item;
    const int from_part = c.op == ESP_COLL_ALLGATHER || c.op == ESP_COLL_GATHER;
    const uint64_t src_bytes = from_part ? part : all, dst_bytes = c.op == ESP_COLL_REDUCE_SCATTER ? part : all;
    const uint8_t *src = (const uint8_t *)call->src.ptr;
    uint8_t *dst = (uint8_t *)call->dst.ptr;
    const int in_dst = dst && src && from_part && src == dst + begin * item;
    const int in_src = dst && src && !in_dst && dst == src + (c.op == ESP_COLL_REDUCE_SCATTER ? begin * item : 0);
    unsigned long long s = 0, d = 0;
    void *stream = NULL;
    nccl_enter(m);
    if (m->library->cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING)) abort();
    nccl_leave(m);
    if (src && !in_dst) s = device_take(m, src, src_bytes);
    if (dst && !in_src) d = device_take(m, dst, dst_bytes);
    if (in_dst) s = d + (uint64_t)(src - dst);
    if (in_src) d = s + (uint64_t)(dst - src);
    c.src.ptr = (void *)(uintptr_t)s, c.dst.ptr = (void *)(uintptr_t)d;
    c.src.dev = c.dst.dev = (esp_device){ESP_CUDA, m->job->ordinal};
    const esp_status st = wait_on_stream(me, m, &c, stream);
    if (dst && !in_src) device_give(m, d, dst, dst_bytes);
    if (in_src) {
        nccl_enter(m);
        if (dst_bytes && copy.down(dst, d, dst_bytes)) abort();
        nccl_leave(m);
    }
    if (src && !in_dst) device_give(m, s, NULL, 0);
    nccl_enter(m);
    m->library->cuStreamDestroy_v2(stream);
    nccl_leave(m);
    return st;
}
/* The shared tests call this for each collective. */
static esp_status coll_where_wanted(ranks_me *me, void *comm, const esp_coll *c) {
    nccl_comm *m = (nccl_comm *)comm;
    if (!on_device) return ranks_coll(me, comm, c);
    const esp_status s = coll_on_device(me, m, c);
    if (s != ESP_E_UNSUPPORTED || !nccl_ordered(m, c)) return s;
    return strstr(ranks_said, "leave out NaNs") ? ranks_coll(me, comm, c) : s;
}
#define RANKS_COLL coll_where_wanted
#include "tests/backends/collectives.h"

/* Aborts a sum that not all ranks have begun, closes the communicator, and opens a new one, as esp_shrink does. The new
 * one must work on registered memory. */
static inline void shrinks_and_reopens(ranks_me *me) {
    const uint64_t bytes = 1000 * sizeof(float);
    float x[1000];
    for (int turn = 0; turn < 2; turn++) {
        nccl_comm *m = (nccl_comm *)ranks_open(me, 0, NULL);
        void *stream, *known = NULL, *req = NULL;
        esp_coll c = ESP_ZERO;
        if (!m) return;
        for (int i = 0; i < 1000; i++) x[i] = (float)(me->rank + 1);
        nccl_enter(m);
        if (m->library->cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING)) abort();
        nccl_leave(m);
        const unsigned long long at = device_take(m, x, bytes);
        const esp_stream on = {{ESP_CUDA, m->job->ordinal}, stream};
        const esp_buf b = {(void *)(uintptr_t)at, bytes, on.dev};
        if (me->b->reg(m, &b, &known)) ranks_fail(me, "reg: %s", ranks_said);
        c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = 1000;
        c.src = c.dst = b;
        if (!turn && !me->rank && (me->b->start(m, &c, on, &req) || ranks_wait(me, m, req)))
            ranks_fail(me, "start: %s", ranks_said);
        if (turn && wait_on_stream(me, m, &c, stream)) ranks_fail(me, "a sum of the new comm: %s", ranks_said);
        if (!turn) pthread_barrier_wait(&me->shared->barrier[0]); /* only rank 0 has begun the sum */
        if (!turn) me->b->abort(m);
        m->library->cuStreamSynchronize(stream); /* without the lock, since abort() may need it */
        me->b->dereg(m, known);
        device_give(m, at, x, bytes);
        if (turn && !(x[999] == (float)(me->size * (me->size + 1) / 2)))
            ranks_fail(me, "the sum is %g", (double)x[999]);
        nccl_enter(m);
        m->library->cuStreamDestroy_v2(stream);
        nccl_leave(m);
        me->b->close(m);
    }
}

/* Runs `fn` on `n` ranks. Returns NULL, or why it failed. */
static const char *run_nccl(const char *params, int32_t n, int32_t per_machine, ranks_fn fn, int device) {
    on_device = device;
    const char *why =
        ranks_run(espresso_plugin_v1_nccl(&ranks_host)->backends[0], params, n, per_machine, fn, NULL, -1);
    return *why ? why : NULL;
}
#endif
