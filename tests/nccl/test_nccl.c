/* test_nccl.c tests backend nccl with a stand-in for NCCL and the CUDA driver (fake/): all collectives on host and
 * device memory, and which functions of NCCL it calls, in which groups and on which streams. test_nccl_gpu.c uses NCCL
 * itself. */
/* runs: quiet slow asan-long no-tsan: each check is a process, in which the sanitizer cannot follow threads */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include <sys/resource.h>
#include "tests/lib/test.h"
#include "tests/nccl/child.h"

/* ---- collectives ------------------------------------------------------------------------------------------------- */
static void every_kind(int device) {
    wants(run_nccl("", 3, 0, all_numbers, device));
    wants(run_nccl("", 3, 0, all_slots, device));
    wants(run_nccl("", 1, 0, few, device));
    wants(run_nccl("", 4, 0, few, device));
}
static void host_memory(void) { every_kind(0); }
static void device_memory(void) { every_kind(1); }
TEST(collectives_host) { with("new", host_memory); }
TEST(collectives_device) { with("new", device_memory); }
/* The trainer captures a CUDA graph meanwhile. */
static void captured(void) {
    fake.capture(1);
    wants(run_nccl("", 2, 0, few, 0));
    wants(run_nccl("", 2, 0, few, 1));
}
TEST(during_capture) { with("new", captured); }
/* Older versions of NCCL need sends and receives for gather and alltoall. */
static void by_messages(void) {
    for (int device = 0; device < 2; device++) {
        wants(run_nccl("", 3, 0, few, device));
        wants(run_nccl("", 2, 0, all_slots, device));
    }
}
TEST(collectives_old) { with("old", by_messages); }

/* The backend must call the function of NCCL for a collective. If there is none, as for unequal parts, or if the
 * version is too old, it must call a group of others. */
static int old_version;
static void calls(ranks_me *me) {
    static const struct {
        uint32_t op, count;
        const char *newer, *older;
    } cases[] = {
        {ESP_COLL_ALLREDUCE, 6, "ncclAllReduce ", NULL},
        {ESP_COLL_ALLGATHER, 6, "ncclAllGather ", NULL},
        {ESP_COLL_ALLGATHER, 5, "(ncclBroadcast ncclBroadcast ) ", NULL},
        {ESP_COLL_REDUCE_SCATTER, 6, "ncclReduceScatter ", NULL},
        {ESP_COLL_REDUCE_SCATTER, 5, "(ncclReduce ncclReduce ) ", NULL},
        {ESP_COLL_ALLTOALL, 6, "ncclAlltoAll ", "(ncclSend ncclRecv ncclSend ncclRecv ) "},
        {ESP_COLL_GATHER, 6, "ncclGather ", "(ncclSend ncclRecv ncclRecv ) "},
        {ESP_COLL_GATHER, 5, "(ncclSend ncclRecv ncclRecv ) ", NULL},
        {ESP_COLL_BROADCAST, 6, "ncclBroadcast ", NULL},
        {ESP_COLL_REDUCE, 6, "ncclReduce ", NULL},
    };
    void *comm = ranks_open(me, 0, NULL);
    for (size_t k = 0; comm && k < sizeof cases / sizeof *cases; k++) {
        const char *want = old_version && cases[k].older ? cases[k].older : cases[k].newer;
        float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
        char got[256];
        esp_coll c = ESP_ZERO;
        c.struct_size = sizeof c, c.op = cases[k].op, c.dtype = ESP_F32, c.count = cases[k].count;
        c.src.ptr = x, c.dst.ptr = y;
        if (coll_on_device(me, (nccl_comm *)comm, &c)) ranks_fail(me, "%s: %s", want, ranks_said);
        fake.record(me->rank, got, sizeof got);
        if (!me->rank && strcmp(got, want)) ranks_fail(me, "case %d: \"%s\", not \"%s\"", (int)k, got, want);
    }
    if (comm) me->b->close(comm);
}
static void calls_run(void) { wants(run_nccl("", 2, 0, calls, 1)); }
TEST(calls_new) { old_version = 0, with("new", calls_run); }
TEST(calls_old) { old_version = 1, with("old", calls_run); }

/* Memory that is registered with one communicator must count as registered in the communicators split off it, too. */
static esp_status sum_on(ranks_me *me, nccl_comm *m, unsigned long long at, void *stream) {
    esp_coll c = ESP_ZERO;
    c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = 100;
    c.src.ptr = c.dst.ptr = (void *)(uintptr_t)at;
    c.src.dev = c.dst.dev = (esp_device){ESP_CUDA, m->job->ordinal};
    return wait_on_stream(me, m, &c, stream);
}
static void registers(ranks_me *me) {
    nccl_comm *m = (nccl_comm *)ranks_open(me, 0, NULL), *part = (nccl_comm *)ranks_open(me, 1, m);
    float x[100];
    void *known = x, *again = NULL, *stream;
    for (int i = 0; i < 100; i++) x[i] = (float)me->rank;
    if (!m || !part) return;
    nccl_enter(m);
    m->library->cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING);
    nccl_leave(m);
    const unsigned long long at = device_take(m, x, sizeof x);
    const esp_buf host = {x, sizeof x, {ESP_CPU, 0}}, other = {x, sizeof x, {ESP_CUDA, m->job->ordinal + 1}},
                  own = {(void *)(uintptr_t)at, sizeof x, {ESP_CUDA, m->job->ordinal}};
    const int before = fake.registered();
    pthread_barrier_wait(&me->shared->barrier[0]);
    if (me->b->reg(m, &host, &known) || known || me->b->reg(m, &other, &known) || known)
        ranks_fail(me, "memory of the host, or of another device, is registered");
    if (me->b->reg(m, &own, &known)) ranks_fail(me, "reg: %s", ranks_said);
    for (int k = 0; k < 2 && !me->shared->failed; k++)
        if (sum_on(me, k ? part : m, at, stream)) ranks_fail(me, "sum: %s", ranks_said);
    pthread_barrier_wait(&me->shared->barrier[0]);
    if (fake.registered() != before + (old_version ? 0 : 4 * me->size))
        ranks_fail(me, "%d of %d buffers lie in registered memory", fake.registered() - before, 4 * (int)me->size);
    pthread_barrier_wait(&me->shared->barrier[0]);
    if (!old_version && !known) ranks_fail(me, "nothing is registered");
    if (me->rank == 0) fake.fails("ncclCommRegister", 0, 1); /* memory that cannot be registered works too */
    if (me->b->reg(m, &own, &again)) ranks_fail(me, "reg: %s", ranks_said);
    if (me->b->dereg(m, known) || sum_on(me, m, at, stream)) ranks_fail(me, "dereg or sum: %s", ranks_said);
    if (me->rank % 2) me->b->dereg(m, again), again = NULL; /* ranks with even numbers deregister it after close() */
    me->b->close(part);
    if (again) me->b->dereg(m, again);
    device_give(m, at, NULL, 0);
    nccl_enter(m);
    m->library->cuStreamDestroy_v2(stream);
    nccl_leave(m);
    me->b->close(m);
}
static void registers_run(void) { wants(run_nccl("", 4, 4, registers, 1)); }
TEST(registers_new) { old_version = 0, with("new", registers_run); }
TEST(registers_old) { old_version = 1, with("old", registers_run); }

/* For a mean over three ranks, the sum is multiplied by a factor. The result must have the expected bits. */
static void thirds(ranks_me *me) {
    enum { N = 300000 };
    void *comm = ranks_open(me, 0, NULL);
    float *x = (float *)malloc(N * sizeof *x);
    for (int k = 0; comm && k < 3; k++) {
        esp_coll c = ESP_ZERO;
        for (int i = 0; i < N; i++) x[i] = (float)(i % 1000 + me->rank);
        c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = N;
        c.scale = k == 1 ? 0.25f : 1.0f / 3.0f;
        c.src.ptr = c.dst.ptr = x;
        if (ranks_coll(me, comm, &c)) ranks_fail(me, "allreduce: %s", ranks_said);
        for (int i = 0; i < N; i++) {
            const float want = (float)(3 * (i % 1000) + 3) * c.scale;
            if (memcmp(&want, &x[i], 4) && ranks_fail(me, "number %d is %g, not %g", i, (double)x[i], (double)want))
                break;
        }
    }
    free(x);
    if (comm) me->b->close(comm);
}
static void thirds_run(void) { wants(run_nccl("", 3, 0, thirds, 0)); }
TEST(scales) { with("new", thirds_run); }

static void mixed(ranks_me *me) {
    enum { OPEN = 24, N = 200000 };
    nccl_comm *m = (nccl_comm *)ranks_open(me, 0, NULL);
    if (!m) return;
    float *x = (float *)malloc(OPEN * N * sizeof *x);
    unsigned long long at[OPEN] = {0};
    void *stream, *req[OPEN];
    nccl_enter(m);
    m->library->cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING);
    nccl_leave(m);
    for (int k = 0; k < OPEN; k++) {
        const esp_stream s = {{k % 3 ? ESP_CUDA : ESP_CPU, k % 3 ? m->job->ordinal : 0}, k % 3 ? stream : NULL};
        /* every third collective is on host memory, and sizes differ */
        const uint64_t n = k % 5 == 4 ? 0 : k % 2 ? 1000 : N;
        esp_coll c = ESP_ZERO;
        for (int i = 0; i < N; i++) x[k * N + i] = (float)(k + me->rank);
        if (k % 3) at[k] = device_take(m, x + k * N, n * 4);
        c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = n;
        c.src.ptr = c.dst.ptr = k % 3 ? (void *)(uintptr_t)at[k] : x + k * N;
        c.src.dev = c.dst.dev = s.dev;
        if (me->b->start(m, &c, s, &req[k])) ranks_fail(me, "start %d: %s", k, ranks_said);
    }
    for (int k = OPEN; k-- > 0 && !me->shared->failed;)
        if (ranks_wait(me, m, req[k])) ranks_fail(me, "request %d: %s", k, ranks_said);
    m->library->cuStreamSynchronize(stream);
    for (int k = 0; k < OPEN; k++) {
        const uint64_t n = k % 5 == 4 ? 0 : k % 2 ? 1000 : N;
        const float want = (float)(k * me->size + me->size * (me->size - 1) / 2);
        if (k % 3) device_give(m, at[k], x + k * N, n * 4);
        for (uint64_t i = 0; i < n && !me->shared->failed; i++)
            if (!(x[(uint64_t)k * N + i] == want))
                ranks_fail(me, "request %d gives %g", k, (double)x[(uint64_t)k * N + i]);
    }
    free(x);
    nccl_enter(m);
    m->library->cuStreamDestroy_v2(stream);
    nccl_leave(m);
    me->b->close(m);
}
static void mixed_run(void) { wants(run_nccl("", 3, 0, mixed, 0)); }
TEST(requests) { with("new", mixed_run); }

/* A call of NCCL settles some 20 us later. The backend must notice this before the thread would have slept. */
static long sleeps(void) {
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return u.ru_nvcsw;
}
static void many_small(ranks_me *me) {
    enum { SMALL = 1000, N = 100 };
    nccl_comm *m = (nccl_comm *)ranks_open(me, 0, NULL);
    int awake = 0;
    void *stream, *req;
    if (!m) return;
    nccl_enter(m);
    m->library->cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING);
    nccl_leave(m);
    const unsigned long long at = device_take(m, NULL, N * 4);
    for (int k = 0; k < SMALL; k++) {
        esp_coll c = {.struct_size = sizeof c, .op = ESP_COLL_ALLREDUCE, .dtype = ESP_I32, .count = N};
        c.src.ptr = c.dst.ptr = (void *)(uintptr_t)at;
        c.src.dev = c.dst.dev = (esp_device){ESP_CUDA, m->job->ordinal};
        const long before = sleeps();
        if (me->b->start(m, &c, (esp_stream){c.src.dev, stream}, &req) || ranks_wait(me, m, req))
            ranks_fail(me, "sum: %s", ranks_said);
        awake += sleeps() == before;
    }
    m->library->cuStreamSynchronize(stream);
    /* On a busy machine a call may settle later than the backend looks, but not every time. */
    if (!awake) ranks_fail(me, "the thread slept in each of %d sums", (int)SMALL);
    device_give(m, at, NULL, 0);
    nccl_enter(m);
    m->library->cuStreamDestroy_v2(stream);
    nccl_leave(m);
    me->b->close(m);
}
static void many_small_run(void) { wants(run_nccl("", 1, 0, many_small, 1)); }
TEST(small) { with("new", many_small_run); }

/* Groups of several levels run collectives at the same time, on two machines of two ranks. */
static void two_levels(ranks_me *me) {
    void *all = ranks_open(me, 0, NULL), *intra = ranks_open(me, 1, all), *inter = ranks_open(me, 2, all);
    const esp_stream cpu = ESP_ZERO;
    float x[3][5000];
    void *req[3], *comms[3] = {all, intra, inter};
    for (int k = 0; k < 3 && all && intra && inter; k++) {
        esp_coll c = ESP_ZERO;
        for (int i = 0; i < 5000; i++) x[k][i] = (float)(1 + me->rank);
        c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = 5000;
        c.src.ptr = c.dst.ptr = x[(k + me->rank) % 3];
        /* each rank starts them in another order */
        if (me->b->start(comms[(k + me->rank) % 3], &c, cpu, &req[(k + me->rank) % 3]))
            ranks_fail(me, "start: %s", ranks_said);
    }
    for (int k = 0; k < 3 && inter; k++) { /* waiting on one communicator must make progress on all */
        const int at = (k + me->rank) % 3;
        const float want = at == 0 ? 10.0f : at == 1 ? (me->rank < 2 ? 3.0f : 7.0f) : me->rank % 2 ? 6.0f : 4.0f;
        if (ranks_wait(me, comms[at], req[at])) ranks_fail(me, "scope %d: %s", at, ranks_said);
        if (!(x[at][4999] == want)) ranks_fail(me, "scope %d: %g, not %g", at, (double)x[at][4999], (double)want);
    }
    esp_traffic t = {.struct_size = sizeof t};
    me->b->traffic(inter, &t);
    if (t.inter_bytes != 5000 * 4 || t.intra_bytes || t.level_bytes[1] != t.inter_bytes)
        ranks_fail(me, "between machines came %d bytes, inside %d", (int)t.inter_bytes, (int)t.intra_bytes);
    me->b->close(inter), me->b->close(intra), me->b->close(all);
}
static void levels_run(void) {
    setenv("FAKE_SHARED", "1", 1);
    wants(run_nccl("", 4, 2, two_levels, 0));
    WANT(fake.ctas() == 5); /* so that the kernels of both levels fit a GPU of 40 multiprocessors together */
    wants(run_nccl("ctas=7", 4, 2, two_levels, 0));
    WANT(fake.ctas() == 7);
    wants(run_nccl("", 2, 2, few, 0));
    WANT(fake.ctas() == INT_MIN);
}
TEST(levels) { with("new", levels_run); }
