/* test_nccl_gpu.c tests backend nccl with NCCL itself, on this machine's GPUs. It is skipped without a GPU, driver or
 * library. Ranks are processes. If they share a GPU, they claim to be on different machines (NCCL_HOSTID), since NCCL
 * wants a GPU for each rank of a machine. */
/* runs: quiet */
#include "tests/lib/test.h"
#include "tests/nccl/device_memory.h"

/* Returns the number of GPUs, or -1 with the reason in `why`. A child process counts them, since a process that has
 * called cuInit cannot use CUDA in its children. */
static int devices(const char **why) {
    static char text[300];
    int count = 0, result = 0;
    if ((*why = driver_load()) != NULL) return -1;
    const pid_t pid = child_fork(0);
    if (!pid) {
        const nccl_library *l = nccl_open_libraries(text, sizeof text);
        result = l->cuInit(0);
        if (!result) result = l->cuDeviceGetCount(&count);
        _exit(result ? 100 + (result > 100 ? 100 : result) : count > 99 ? 99 : count);
    }
    count = child_wait(pid);
    *why = text;
    snprintf(text, sizeof text, "the CUDA driver is there, but %s", count ? "cuInit fails" : "it has no device");
    return count > 0 && count < 100 ? count : -1;
}

static int one_gpu;
static ranks_fn body;
static void on_its_own(ranks_me *me) {
    char id[32];
    snprintf(id, sizeof id, "espresso-test-%d", (int)me->rank);
    if (one_gpu) setenv("NCCL_HOSTID", id, 1), setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    body(me);
}
static void on_gpus(ranks_fn fn) {
    const char *why;
    const int count = devices(&why);
    if (count < 0) test_skip(why);
    for (int32_t n = 1; n <= 3; n += 2) { /* three ranks get parts of unequal sizes */
        one_gpu = n > count, body = fn;
        for (int device = 0; device < 2; device++) {
            print_message("%d ranks on %d GPUs, %s memory\n", (int)n, count, device ? "device" : "host");
            why = run_nccl("", n, 0, on_its_own, device);
            if (why) fail_msg("%s", why);
        }
    }
}
TEST(numbers_on_gpus) { on_gpus(few); }
TEST(slots_on_gpus) { on_gpus(all_slots); }

/* Only rank 0 has started a sum. abort() must end it on the device. */
static void abandoned(ranks_me *me) {
    nccl_comm *m = (nccl_comm *)ranks_open(me, 0, NULL);
    float x[1000] = {0};
    esp_coll c = ESP_ZERO;
    void *stream, *before, *req = NULL;
    if (!m) return;
    if (!me->rank) {
        const unsigned long long at = device_take(m, x, sizeof x);
        nccl_enter(m);
        m->library->cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING);
        nccl_leave(m);
        const esp_stream s = {{ESP_CUDA, m->job->ordinal}, stream};
        c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = 1000;
        c.src.ptr = c.dst.ptr = (void *)(uintptr_t)at, c.src.dev = c.dst.dev = s.dev;
        if (me->b->start(m, &c, s, &req) || ranks_wait(me, m, req))
            ranks_fail(me, "not stream-ordered: %s", ranks_said);
        usleep(100000);
        const double begin = test_seconds();
        me->b->abort(m);
        m->library->cuCtxPushCurrent_v2(m->job->context); /* without nccl_enter's lock, which the abort needs */
        m->library->cuStreamSynchronize(stream);
        m->library->cuCtxPopCurrent_v2(&before);
        if (test_seconds() - begin > 10) ranks_fail(me, "abort() took %g s", test_seconds() - begin);
        device_give(m, at, NULL, 0);
    }
    pthread_barrier_wait(&me->shared->barrier[0]);
    me->b->close(m);
}
TEST(abort_on_gpus) {
    const char *why;
    const int count = devices(&why);
    if (count < 0) test_skip(why);
    one_gpu = count < 2, body = abandoned;
    why = run_nccl("", 2, 0, on_its_own, 0);
    if (why) fail_msg("%s", why);
}

TEST(reopen_on_gpus) {
    const char *why;
    const int count = devices(&why);
    if (count < 0) test_skip(why);
    one_gpu = count < 2, body = shrinks_and_reopens;
    why = run_nccl("", 2, 0, on_its_own, 0);
    if (why) fail_msg("%s", why);
}
