/* fake.c is a stand-in for NCCL and the CUDA driver, for machines without a GPU. It is a shared library whose ranks are
 * threads or processes of one machine, and whose devices are host memory. It runs calls late and in stream order, and
 * ends the process if a caller breaks a rule of NCCL's manual. So it tests the backend's calls, and not NCCL. With
 * FAKE_OLD it is version 2.14, without later functions. */
#include "codecs/common/half.h"
#include "tests/nccl/fake/driver.h"
#include "tests/nccl/fake/control.h"
#include "tests/nccl/fake/world.h"

#include <math.h>

enum { OK = 0, CUDA_ERROR = 1, SYSTEM = 2, ARGUMENT = 4, USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };
enum { INT8 = 0, INT32 = 2, FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9 };
enum { SUM = 0, MAX = 2, MIN = 3, FIRST_OWN_OP = 5 };
enum { OPS = 64, GROUP = 4096, MAGIC = 0x4E43434C };
typedef struct ncclUniqueId {
    char bytes[128];
} ncclUniqueId;
typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas;
    const char *net;
} config;

/* ---- calls ------------------------------------------------------------------------------------------------------- */
enum { ALLREDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALLGATHER, ALLTOALL, GATHER, SEND, RECV };
static const char *const kinds[] = {"ncclAllReduce", "ncclReduce",    "ncclReduceScatter",
                                    "ncclBroadcast", "ncclAllGather", "ncclAlltoAll",
                                    "ncclGather",    "ncclSend",      "ncclRecv"};
typedef struct call {
    int kind, type, op, root;
    uint64_t count, number;
    const uint8_t *src;
    uint8_t *dst;
    void *stream;
    struct comm *comm;
    uint64_t here; /* bit q is set once the data of rank q has arrived */
} call;
/* The calls of a group on one communicator. They are enqueued together. */
typedef struct kernel {
    struct comm *comm;
    int n, refs;
    void *stream;
    call calls[];
} kernel;
typedef struct comm {
    unsigned magic;
    world w;
    int rank, n, device, error, aborted, finalized, delay, running;
    uint64_t number;
    kernel *waits;
    float scales[OPS];
    int types[OPS], n_ops;
    struct comm *next;
} comm;

static __thread call group[GROUP];
static __thread int group_n, group_depth, group_ends;
static __thread char last_error[256];
static fake_hooks hooks;
FAKE_EXPORT void fake_device_use(const fake_hooks *d) { hooks = *d; }
static char fails_call[64];
static int fails_rank = -1, fails_result;
FAKE_EXPORT void fake_fail(const char *name, int rank, int result) {
    pthread_mutex_lock(&gpu_lock);
    snprintf(fails_call, sizeof fails_call, "%s", name);
    fails_rank = rank, fails_result = result;
    pthread_mutex_unlock(&gpu_lock);
}
static int fails(const char *name, int rank) {
    const int yes = rank == fails_rank && !strcmp(name, fails_call);
    if (yes) fails_rank = -1, snprintf(last_error, sizeof last_error, "a test wants %s to fail", name);
    return yes ? fails_result : OK;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
static uint64_t bytes_of(int type) { return type == INT8 ? 1 : type == FLOAT16 || type == BFLOAT16 ? 2 : 4; }
static float load(int type, const uint8_t *p) {
    uint16_t h;
    float x;
    if (type == FLOAT32) return memcpy(&x, p, 4), x;
    memcpy(&h, p, 2);
    return type == FLOAT16 ? half_from_f16(h) : bits_float((uint32_t)h << 16);
}
static void store(int type, uint8_t *p, float x) {
    const uint16_t h = (uint16_t)(type == FLOAT16 ? half_to_f16(x) : half_to_bf16(x));
    if (type == FLOAT32)
        memcpy(p, &x, 4);
    else
        memcpy(p, &h, 2);
}
static float rounded(int type, float x) {
    uint8_t p[4];
    return store(type, p, x), load(type, p);
}
/* A collective that all ranks have called, with the data of each. */
typedef struct meeting {
    int type, op;
    float scale;
    const world_post *post[RANKS];
    const uint8_t *src[RANKS];
} meeting;
/* Sets `out` to the reduction of element i over all ranks. It does as NCCL: rounds 16-bit floats at every addition, and
 * ignores NaNs in MAX and MIN. */
static void reduce_one(const meeting *t, int n, uint64_t i, uint8_t *out) {
    const uint64_t e = bytes_of(t->type), at = i * e;
    if (n == 1 && t->scale >= 1 && t->scale <= 1) { /* a sum over one rank is a copy */
        memcpy(out, t->src[0] + at, e);
        return;
    }
    if (t->type == INT8 || t->type == INT32) {
        int32_t all = 0, x = 0;
        for (int q = 0; q < n; q++) {
            if (t->type == INT8)
                x = (int8_t)t->src[q][at];
            else
                memcpy(&x, t->src[q] + at, 4);
            all = !q             ? x
                  : t->op == MAX ? (x > all ? x : all)
                  : t->op == MIN ? (x < all ? x : all)
                                 : (int32_t)((uint32_t)all + (uint32_t)x);
        }
        memcpy(out, &all, e);
        return;
    }
    float all = 0;
    for (int q = 0; q < n; q++) {
        const float x = rounded(t->type, load(t->type, t->src[q] + at) * t->scale);
        all = !q ? x : t->op == MAX ? fmaxf(all, x) : t->op == MIN ? fminf(all, x) : rounded(t->type, all + x);
    }
    store(t->type, out, all);
}

/* Reduces many elements, and faster for sums of floats, since most tests use these. */
static void reduce(const meeting *t, int n, uint64_t first, uint64_t count, uint8_t *out) {
    const int plain = n > 1 && t->type == FLOAT32 && t->op == SUM;
    float *to = (float *)(void *)out;
    for (uint64_t i = 0; i < count && !plain; i++) reduce_one(t, n, first + i, out + i * bytes_of(t->type));
    for (uint64_t at = 0, some; plain && at < count; at += some) {
        float sum[1024];
        some = count - at < 1024 ? count - at : 1024;
        for (int q = 0; q < n; q++) {
            const float *x = (const float *)(const void *)(t->src[q]) + first + at;
            for (uint64_t i = 0; i < some; i++) sum[i] = q ? sum[i] + x[i] * t->scale : x[i] * t->scale;
        }
        memcpy(to + at, sum, some * sizeof *sum);
    }
}

/* ---- kernels, all run with the lock held ------------------------------------------------------------------------- */
static world_post post_of(const call *c, uint64_t bytes) {
    const int own = c->op >= FIRST_OWN_OP;
    return (world_post){c->kind,  c->type, own ? SUM : c->op, c->root, own ? c->comm->scales[c->op - FIRST_OWN_OP] : 1,
                        c->count, bytes};
}
/* Returns rank q's data of this collective. Ends the process if that rank calls another one. */
static const world_post *joined_by(const call *c, int q) {
    const world_post *p = world_post_read(&c->comm->w, c->number, q, -1), mine = post_of(c, 0);
    if (p->count != mine.count || p->kind != mine.kind || p->type != mine.type || p->root != mine.root ||
        p->op != mine.op || memcmp(&p->scale, &mine.scale, 4))
        fake_wrong("collective %d: rank %d calls %s of %d, rank %d %s of %d", (int)c->number, c->comm->rank,
                   kinds[c->kind], (int)c->count, q, kinds[p->kind], (int)p->count);
    return p;
}
/* Return the sizes in bytes of a rank's source and of its result. */
static uint64_t source_bytes(const call *c) {
    const uint64_t n = (uint64_t)c->comm->n, one = c->count * bytes_of(c->type);
    if (c->kind == RECV || (c->kind == BROADCAST && c->root != c->comm->rank)) return 0;
    return c->kind == REDUCE_SCATTER || c->kind == ALLTOALL ? one * n : one;
}
static uint64_t result_bytes(const call *c) {
    const uint64_t n = (uint64_t)c->comm->n, one = c->count * bytes_of(c->type);
    const int root = c->root == c->comm->rank;
    if (c->kind == SEND || ((c->kind == REDUCE || c->kind == GATHER) && !root)) return 0;
    return c->kind == ALLGATHER || c->kind == ALLTOALL || c->kind == GATHER ? one * n : one;
}

static void kernel_free(kernel *k) {
    if (--k->refs) return;
    k->comm->running--;
    free(k);
    pthread_cond_broadcast(&gpu_news);
}
/* Stores this rank's data in files that the other ranks read. */
static void kernel_begin(void *arg) {
    kernel *k = *(kernel **)arg;
    world *w = &k->comm->w;
    for (int i = 0; i < k->n && !k->comm->aborted; i++) {
        const call *c = &k->calls[i];
        const world_post p = post_of(c, source_bytes(c));
        if (c->kind == SEND)
            world_post_write(w, w->sent[c->root]++, c->root, &p, c->src);
        else if (c->kind != RECV)
            world_post_write(w, c->number, -1, &p, c->src);
    }
    pthread_cond_broadcast(&gpu_news);
    kernel_free(k);
}
static int kernel_ready(void *arg) {
    kernel *k = *(kernel **)arg;
    uint64_t wanted[RANKS] = {0};
    if (k->comm->aborted) return 1;
    for (int i = 0; i < k->n; i++) {
        call *c = &k->calls[i];
        world *w = &k->comm->w;
        if (c->kind == SEND) continue;
        for (int q = c->kind == RECV ? c->root : 0; q < (c->kind == RECV ? c->root + 1 : k->comm->n); q++) {
            const int moved = c->kind == RECV;
            const uint64_t number = moved ? w->got[q] + wanted[q]++ : c->number;
            if (c->here >> q & 1u) continue;
            if (!world_post_there(w, number, q, moved ? w->rank : -1)) return 0;
            c->here |= (uint64_t)1 << q;
        }
    }
    return 1;
}
static void receive(const call *c) {
    world *w = &c->comm->w;
    const world_post *p = world_post_read(w, w->got[c->root], c->root, w->rank);
    if (p->bytes != result_bytes(c))
        fake_wrong("rank %d receives %d bytes from rank %d, which sent %d", c->comm->rank, (int)result_bytes(c),
                   c->root, (int)p->bytes);
    memcpy(c->dst, p + 1, p->bytes);
    world_post_end(p);
    world_message_took(w, c->root);
}
static void finish(const call *c) {
    const world_post mine = post_of(c, 0);
    meeting t = {mine.type, mine.op, mine.scale, {NULL}, {NULL}};
    const uint64_t e = bytes_of(c->type), one = c->count * e;
    const int rank = c->comm->rank, n = c->comm->n, root = c->root == rank;
    const uint64_t first = c->kind == REDUCE_SCATTER ? (uint64_t)rank * c->count : 0;
    const int reduces = c->kind == ALLREDUCE || c->kind == REDUCE_SCATTER || (c->kind == REDUCE && root);
    for (int q = 0; q < n; q++) t.post[q] = joined_by(c, q), t.src[q] = (const uint8_t *)(t.post[q] + 1);
    if (reduces) reduce(&t, n, first, c->count, c->dst);
    if (c->kind == BROADCAST) memcpy(c->dst, t.src[c->root], one);
    for (int q = 0; q < n; q++) {
        if (c->kind == ALLGATHER || (c->kind == GATHER && root)) memcpy(c->dst + (uint64_t)q * one, t.src[q], one);
        if (c->kind == ALLTOALL) memcpy(c->dst + (uint64_t)q * one, t.src[q] + (uint64_t)rank * one, one);
    }
    for (int q = 0; q < n; q++) world_post_end(t.post[q]);
    world_did(&c->comm->w, c->number);
}
static void kernel_end(void *arg) {
    kernel *k = *(kernel **)arg;
    for (int i = 0; i < k->n && !k->comm->aborted; i++)
        if (k->calls[i].kind == RECV)
            receive(&k->calls[i]);
        else if (k->calls[i].kind != SEND)
            finish(&k->calls[i]);
    kernel_free(k);
}
/* Streams of tests/device/fake.c do not hold gpu_lock, so this takes it. */
static int hooked(void (*run)(void *), void *arg) {
    pthread_mutex_lock(&gpu_lock);
    run(arg);
    pthread_mutex_unlock(&gpu_lock);
    return 0;
}
static int hooked_begin(void *arg) { return hooked(kernel_begin, arg); }
static int hooked_end(void *arg) { return hooked(kernel_end, arg); }
static int hooked_ready(void *arg) {
    pthread_mutex_lock(&gpu_lock);
    const int ready = kernel_ready(arg);
    pthread_mutex_unlock(&gpu_lock);
    return ready;
}
static void kernel_launch(kernel *k) {
    if (gpu_is_stream(k->stream)) {
        kernel **begin = (kernel **)malloc(sizeof k), **end = (kernel **)malloc(sizeof k);
        *begin = *end = k;
        gpu_enqueue((gpu_stream *)k->stream, NULL, kernel_begin, begin);
        gpu_enqueue((gpu_stream *)k->stream, kernel_ready, kernel_end, end);
    } else {
        if (!hooks.launch) fake_wrong("%p is no stream", k->stream);
        pthread_mutex_unlock(&gpu_lock);
        hooks.launch(k->stream, NULL, hooked_begin, &k, sizeof k);
        hooks.launch(k->stream, hooked_ready, hooked_end, &k, sizeof k);
        pthread_mutex_lock(&gpu_lock);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */
static comm *known(void *c, const char *name) {
    comm *m = (comm *)c;
    if (!m || m->magic != MAGIC) fake_wrong("%s: the communicator is gone", name);
    return m;
}
/* Returns the address by which the device's thread can access these bytes. The caller holds gpu_lock. */
static uint8_t *reachable(const call *c, const void *p, uint64_t bytes, const char *what) {
    if (!bytes) return (uint8_t *)(uintptr_t)p;
    if (gpu_is_stream(c->stream)) {
        if (!gpu_holds(p, bytes, 0))
            fake_wrong("%s: %s of %d bytes is not device memory", kinds[c->kind], what, (int)bytes);
        return (uint8_t *)(uintptr_t)p;
    }
    uint8_t *own = hooks.own ? (uint8_t *)hooks.own(p, bytes) : NULL;
    if (!own) fake_wrong("%s: %s of %d bytes is not device memory", kinds[c->kind], what, (int)bytes);
    return own;
}
/* Returns whether source and result do not overlap, or overlap as NCCL's manual allows. */
static int in_place_as_told(const call *c) {
    const uint64_t from = source_bytes(c), to = result_bytes(c), own = (uint64_t)c->comm->rank;
    if (!from || !to || c->src >= c->dst + to || c->dst >= c->src + from) return 1;
    switch (c->kind) {
    case ALLREDUCE:
    case REDUCE:
    case BROADCAST: return c->src == c->dst;
    case REDUCE_SCATTER: return c->dst == c->src + own * to;
    case ALLGATHER:
    case GATHER: return c->src == c->dst + own * from;
    default: return 0;
    }
}
static int n_registered;
FAKE_EXPORT int fake_registered(void) {
    pthread_mutex_lock(&gpu_lock);
    const int n = n_registered;
    pthread_mutex_unlock(&gpu_lock);
    return n;
}
static int is_registered(const comm *m, const uint8_t *at, uint64_t bytes) {
    for (const gpu_known *k = gpu_all_known; k && bytes; k = k->next)
        if (k->comm == m && at >= k->at && at + bytes <= k->at + k->bytes) return 1;
    return 0;
}
static int add(call c) {
    if (group_n == GROUP) fake_wrong("a group of more than %d calls", (int)GROUP);
    comm *m = known(c.comm, kinds[c.kind]);
    const int moved = c.kind == SEND || c.kind == RECV;
    const int device = gpu_current(kinds[c.kind]);
    if (m->delay || m->finalized) fake_wrong("%s while the communicator is in progress", kinds[c.kind]);
    if (moved && !group_depth) fake_wrong("%s outside of a group: it may wait for ever", kinds[c.kind]);
    if (c.root < 0 || c.root >= m->n) fake_wrong("%s: rank %d is not in the communicator", kinds[c.kind], c.root);
    if (c.type != INT8 && c.type != INT32 && c.type != FLOAT16 && c.type != FLOAT32 && c.type != BFLOAT16)
        fake_wrong("%s: no type %d", kinds[c.kind], c.type);
    if (c.op < 0 || c.op == 1 || c.op == 4 || c.op >= FIRST_OWN_OP + m->n_ops ||
        (c.op >= FIRST_OWN_OP && m->types[c.op - FIRST_OWN_OP] != c.type))
        fake_wrong("%s: no operation %d", kinds[c.kind], c.op);
    if (!c.count) fake_wrong("%s of nothing", kinds[c.kind]);
    pthread_mutex_lock(&gpu_lock);
    if (device != m->device) fake_wrong("the thread has another device");
    n_registered += is_registered(m, c.src, source_bytes(&c)) + is_registered(m, c.dst, result_bytes(&c));
    c.src = reachable(&c, c.src, source_bytes(&c), "the source");
    c.dst = reachable(&c, c.dst, result_bytes(&c), "the result");
    if (!in_place_as_told(&c))
        fake_wrong("%s: the source and the result overlap, but for no operation in place", kinds[c.kind]);
    c.number = moved ? 0 : m->number++;
    const int failed = fails(kinds[c.kind], m->rank);
    pthread_mutex_unlock(&gpu_lock);
    if (failed) return failed;
    group[group_n++] = c;
    return OK;
}
static char records[RANKS][4096];
static void record(int rank, const char *text) {
    char *at = records[rank];
    if (strlen(at) + strlen(text) < sizeof records[0]) strcat(at, text);
}
FAKE_EXPORT void fake_record(int rank, char *out, size_t cap) {
    pthread_mutex_lock(&gpu_lock);
    snprintf(out, cap, "%s", records[rank]);
    records[rank][0] = 0;
    pthread_mutex_unlock(&gpu_lock);
}
static void record_group(void) {
    const int rank = group[0].comm->rank;
    pthread_mutex_lock(&gpu_lock);
    if (group_ends) record(rank, "(");
    for (int i = 0; i < group_n; i++) record(rank, kinds[group[i].kind]), record(rank, " ");
    if (group_ends) record(rank, ") ");
    pthread_mutex_unlock(&gpu_lock);
}
/* As NCCL does for communicators that do not block, a thread of its own launches the kernel. It takes 10 us, and some
 * more to start. */
typedef struct settling {
    comm *m;
    const kernel *k; /* an abort may have freed it */
} settling;
static void *settle(void *arg) {
    const settling s = *(settling *)arg;
    comm *m = s.m;
    free(arg);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do /* a sleep would take longer */
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000L + (now.tv_nsec - begin.tv_nsec) < 10000);
    pthread_mutex_lock(&gpu_lock);
    if (m->waits && m->waits == s.k) kernel_launch(m->waits), m->waits = NULL, m->delay = 0;
    pthread_mutex_unlock(&gpu_lock);
    return NULL;
}
static void settle_later(kernel *k) {
    pthread_t thread;
    settling *s = (settling *)malloc(sizeof *s);
    *s = (settling){k->comm, k};
    k->comm->waits = k;
    if (pthread_create(&thread, NULL, settle, s)) fake_wrong("no thread");
    pthread_detach(thread);
}
static int group_launch(void) {
    comm *m = group[0].comm;
    kernel *k = (kernel *)calloc(1, sizeof *k + (size_t)group_n * sizeof(call));
    record_group();
    k->comm = m, k->n = group_n, k->refs = 2, k->stream = group[0].stream;
    for (int i = 0; i < group_n; i++) {
        k->calls[i] = group[i];
        if (group[i].comm != m || group[i].stream != k->stream)
            fake_wrong("a group on several communicators or streams");
    }
    group_n = 0;
    pthread_mutex_lock(&gpu_lock);
    m->running++;
    m->delay = 1;
    settle_later(k);
    pthread_mutex_unlock(&gpu_lock);
    return IN_PROGRESS;
}
static int give(call c) {
    const int r = add(c);
    return r || group_depth ? r : group_launch();
}
FAKE_EXPORT int ncclGroupStart(void) { return group_depth++, OK; }
FAKE_EXPORT int ncclGroupEnd(void) {
    if (!group_depth) fake_wrong("ncclGroupEnd without ncclGroupStart");
    if (--group_depth || !group_n) return OK;
    group_ends = 1;
    const int r = group_launch();
    group_ends = 0;
    return r;
}
#define COMM ((comm *)c)
FAKE_EXPORT int ncclAllReduce(const void *s, void *d, size_t n, int type, int op, void *c, void *stream) {
    return give((call){ALLREDUCE, type, op, 0, n, 0, (const uint8_t *)s, (uint8_t *)d, stream, COMM, 0});
}
FAKE_EXPORT int ncclReduce(const void *s, void *d, size_t n, int type, int op, int root, void *c, void *stream) {
    return give((call){REDUCE, type, op, root, n, 0, (const uint8_t *)s, (uint8_t *)d, stream, COMM, 0});
}
FAKE_EXPORT int ncclReduceScatter(const void *s, void *d, size_t n, int type, int op, void *c, void *stream) {
    return give((call){REDUCE_SCATTER, type, op, 0, n, 0, (const uint8_t *)s, (uint8_t *)d, stream, COMM, 0});
}
FAKE_EXPORT int ncclBroadcast(const void *s, void *d, size_t n, int type, int root, void *c, void *stream) {
    return give((call){BROADCAST, type, 0, root, n, 0, (const uint8_t *)s, (uint8_t *)d, stream, COMM, 0});
}
FAKE_EXPORT int ncclAllGather(const void *s, void *d, size_t n, int type, void *c, void *stream) {
    return give((call){ALLGATHER, type, 0, 0, n, 0, (const uint8_t *)s, (uint8_t *)d, stream, COMM, 0});
}
FAKE_EXPORT int ncclSend(const void *s, size_t n, int type, int peer, void *c, void *stream) {
    return give((call){SEND, type, 0, peer, n, 0, (const uint8_t *)s, NULL, stream, COMM, 0});
}
FAKE_EXPORT int ncclRecv(void *d, size_t n, int type, int peer, void *c, void *stream) {
    return give((call){RECV, type, 0, peer, n, 0, NULL, (uint8_t *)d, stream, COMM, 0});
}
#ifndef FAKE_OLD
FAKE_EXPORT int ncclAlltoAll(const void *s, void *d, size_t n, int type, void *c, void *stream) {
    return give((call){ALLTOALL, type, 0, 0, n, 0, (const uint8_t *)s, (uint8_t *)d, stream, COMM, 0});
}
FAKE_EXPORT int ncclGather(const void *s, void *d, size_t n, int type, int root, void *c, void *stream) {
    return give((call){GATHER, type, 0, root, n, 0, (const uint8_t *)s, (uint8_t *)d, stream, COMM, 0});
}
#endif
#include "tests/nccl/fake/life.h"
