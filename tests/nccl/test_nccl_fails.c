/* test_nccl_fails.c checks failures of backend nccl with the stand-in for NCCL (fake/): no library, no device, no
 * memory, ranks that cannot open, malformed calls, work that never ends. No rank may hang, and nothing may leak. */
/* runs: quiet no-tsan: each check is a process, in which the sanitizer cannot follow threads */
#include "tests/lib/test.h"
#include "tests/nccl/child.h"

/* Opens a communicator, checks the status and the error's text, and returns the communicator. ESP_PENDING stands for
 * any error. */
static void *opens(ranks_me *me, const char *params, esp_status want, const char *text) {
    esp_group g = ESP_ZERO;
    ranks_group r = {.shared = me->shared, .n = me->size, .me = me->rank, .barrier = &me->shared->barrier[0]};
    void *comm = NULL;
    for (int32_t q = 0; q < me->size; q++) r.members[q] = q;
    g.struct_size = sizeof g, g.rank = me->rank, g.size = me->size, g.n_levels = 2, g.machine = r.machine;
    g.oob_allgather = ranks_oob, g.user = &r;
    *ranks_said = 0;
    const esp_status s = me->b->open(&ranks_host, &g, params, &comm);
    if ((want == ESP_PENDING ? s == ESP_OK : s != want) || !strstr(ranks_said, text))
        ranks_fail(me, "open: status %d: %s", (int)s, ranks_said);
    if ((s == ESP_OK) != (comm != NULL)) ranks_fail(me, "status %d, but the comm is %p", (int)s, comm);
    return comm;
}
static void shut(ranks_me *me, void *comm) {
    if (comm) me->b->close(comm);
}
static const char *const *now; /* text that the error of rank r must contain */
static esp_status now_status[4];
static const char *now_params;
static void opens_badly(ranks_me *me) { shut(me, opens(me, now_params, now_status[me->rank], now[me->rank])); }
static int32_t now_ranks = 3;
static void expect(const char *params, esp_status a, esp_status b, esp_status c, const char *const texts[3]) {
    now = texts, now_params = params;
    now_status[0] = a, now_status[1] = b, now_status[2] = c;
    wants(run_nccl("", now_ranks, 0, opens_badly, 0));
    if (fake.live()) wants("an open that failed left something behind");
}
static void open_errors(void) {
    static const char *const any[3] = {"", "", ""};
    static const char *const key[3] = {"does not know devise=1: it takes device=local", "", ""};
    static const char *const nine[3] = {"device=9: there are 8 devices", "", ""};
    static const char *const none[3] = {"device=current, but this thread has no device", "", ""};
    static const char *const fails[3] = {"", "a test wants ncclCommInitRankConfig to fail", ""};
    static const char *const late[3] = {"has not connected the 2 ranks within 300 ms: set NCCL_DEBUG=INFO",
                                        "a test wants ncclCommInitRankConfig to fail", ""};
    static const char *const same[3] = {"Duplicate GPU detected (NCCL needs a GPU of its own for each rank",
                                        "Duplicate", ""};
    static const char *const empty[3] = {"no device here (see CUDA_VISIBLE_DEVICES)", "", ""};
    expect("devise=1", ESP_E_ARG, ESP_E_ARG, ESP_E_ARG, key);
    expect("device=9", ESP_E_ARG, ESP_E_ARG, ESP_E_ARG, nine);
    expect("device=current", ESP_E_DEVICE, ESP_E_DEVICE, ESP_E_DEVICE, none);
    expect("device=3", ESP_E_COMM, ESP_E_COMM, ESP_E_COMM, same);
    fake.fails("ncclCommInitRankConfig", 1, 2);
    /* each other rank gets either its own timeout or the error of another rank */
    expect("timeout=300", ESP_PENDING, ESP_E_COMM, ESP_PENDING, fails);
    static const char *const told[3] = {"", "a test wants async to fail", ""};
    fake.fails("async", 1, 3);
    expect("timeout=500", ESP_PENDING, ESP_E_COMM, ESP_PENDING, told);
    now_ranks = 2;
    fake.fails("ncclCommInitRankConfig", 1, 2);
    expect("timeout=300", ESP_E_TIMEOUT, ESP_E_COMM, ESP_OK, late);
    now_ranks = 3;
    setenv("FAKE_GPUS", "0", 1);
    expect("", ESP_E_DEVICE, ESP_E_DEVICE, ESP_E_DEVICE, empty);
    unsetenv("FAKE_GPUS");
    expect("device=local,ctas=4", ESP_OK, ESP_OK, ESP_OK, any);
}
TEST(opening_fails) { with("new", open_errors); }

/* If an allocation fails, all ranks return an error, and nothing leaks. */
static esp_status got[3];
static void opens_or_not(ranks_me *me) {
    ranks_group r = {.shared = me->shared, .n = me->size, .me = me->rank, .barrier = &me->shared->barrier[0]};
    esp_group g = ESP_ZERO;
    void *comm = NULL;
    for (int32_t q = 0; q < me->size; q++) r.members[q] = q;
    g.struct_size = sizeof g, g.rank = me->rank, g.size = me->size, g.machine = r.machine;
    g.oob_allgather = ranks_oob, g.user = &r;
    got[me->rank] = me->b->open(&ranks_host, &g, "", &comm);
    shut(me, comm);
}
static void open_poor(void) {
    for (uint64_t left = 0; left < 26; left++) { /* 3 ranks allocate 24 blocks in all */
        fake.allocations(left);
        wants(run_nccl("", 3, 0, opens_or_not, 0));
        for (int q = 0; q < 3; q++)
            if ((got[q] == ESP_OK) != (left >= 24)) wants("without memory, not every rank has an error");
        if (fake.live()) wants("an open without memory left something behind");
    }
}
TEST(without_memory) { with("new", open_poor); }

/* Without NCCL, or with a version that is too old, the backend's score is 0, and the log has the reason. */
static void library_missing(void) {
    const esp_backend *b = espresso_plugin_v1_nccl(&ranks_host)->backends[0];
    esp_group g = ESP_ZERO;
    int32_t score = 9;
    void *comm;
    char path[4096];
    g.struct_size = sizeof g, g.size = 1;
    setenv("ESPRESSO_NCCL", "/nowhere/libnccl.so.2", 1);
    WANT(b->probe(&ranks_host, &score) == ESP_OK && score == 0);
    WANT(b->open(&ranks_host, &g, "", &comm) == ESP_E_UNSUPPORTED && !comm);
    WANT(strstr(ranks_said, "/nowhere/libnccl.so.2: cannot open"));
    WANT(strstr(ranks_said, "install NCCL, or name its file in ESPRESSO_NCCL"));
    setenv("FAKE_NCCL_VERSION", "21300", 1);
    fake_path(path, sizeof path, "old");
    setenv("ESPRESSO_NCCL", path, 1);
    WANT(b->open(&ranks_host, &g, "", &comm) == ESP_E_UNSUPPORTED);
    WANT(strstr(ranks_said, "is version 21300 and too old: NCCL 2.14 or newer is needed"));
    unsetenv("FAKE_NCCL_VERSION");
    WANT(b->probe(&ranks_host, &score) == ESP_OK && score > 0);
}
TEST(missing) { with(NULL, library_missing); }

static esp_coll sum_of(float *x, uint64_t n) {
    esp_coll c = ESP_ZERO;
    c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = n, c.src.ptr = c.dst.ptr = x;
    return c;
}
static void refuses(ranks_me *me, void *comm, esp_coll c, esp_stream s, esp_status want, const char *text) {
    void *req;
    *ranks_said = 0;
    const esp_status st = me->b->start(comm, &c, s, &req);
    if (st != want || !strstr(ranks_said, text))
        ranks_fail(me, "status %d, \"%s\" lacks \"%s\"", (int)st, ranks_said, text);
}
static void bad_calls(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL);
    float x[8];
    const esp_stream cpu = ESP_ZERO, other = {{ESP_CUDA, 7}, x}, unknown = {{16, 0}, x};
    esp_coll c = sum_of(x, 8);
    if (!comm) return;
#define BAD(change, s, want, text)                                                                                     \
    do {                                                                                                               \
        c = sum_of(x, 8);                                                                                              \
        change;                                                                                                        \
        refuses(me, comm, c, s, want, text);                                                                           \
    } while (0)
    BAD(c.op = 9, cpu, ESP_E_ARG, "there is no collective 9");
    BAD(c.slot_bytes = 96, cpu, ESP_E_ARG, "payload slots cannot be reduced");
    BAD(c.dtype = ESP_I16, cpu, ESP_E_UNSUPPORTED, "reduces f32, f16, bf16, i8 and i32");
    BAD((c.dtype = ESP_I32, c.scale = 0.5f), cpu, ESP_E_ARG, "scale 0.5 is for sums of f32");
    BAD((c.op = ESP_COLL_ALLTOALL, c.count = 3), cpu, ESP_E_ARG, "must be a multiple of the 2 ranks");
    BAD((c.op = ESP_COLL_REDUCE, c.root = 2), cpu, ESP_E_ARG, "root 2 is not in 0..1");
    BAD(c.count = UINT64_MAX / 8, cpu, ESP_E_ARG, "is too large");
    BAD(c.src.ptr = NULL, cpu, ESP_E_ARG, "src is NULL");
    BAD(c.dst.ptr = NULL, cpu, ESP_E_ARG, "dst is NULL");
    BAD(c.src.dev.kind = ESP_CUDA, cpu, ESP_E_ARG, "the buffers and the stream must be on the same device");
    BAD(c.src.dev = c.dst.dev = other.dev, other, ESP_E_ARG,
        "the memory is of device 2:7, but this rank's communicator is on CUDA");
    BAD(c.src.dev = c.dst.dev = unknown.dev, unknown, ESP_E_ARG, "the memory is of device 16:0");
#undef BAD
    if (me->b->straggler(comm, &((nccl_comm *)comm)->reqs[0]) != 1 - me->rank) ranks_fail(me, "late");
    pthread_barrier_wait(&me->shared->barrier[0]);
    me->b->close(comm);
}
static void bad_calls_run(void) { wants(run_nccl("", 2, 0, bad_calls, 0)); }
TEST(refused) { with("new", bad_calls_run); }

/* Only rank 0 has started a collective, so its stream waits until abort(), which must end it without a test(). */
static void left_alone(ranks_me *me) {
    nccl_comm *m = (nccl_comm *)ranks_open(me, 0, NULL);
    float x[1000] = {0};
    esp_coll c = sum_of(x, 1000);
    void *stream, *event, *req = NULL;
    if (m && me->rank == 0) {
        unsigned long long at = device_take(m, x, sizeof x);
        nccl_enter(m);
        m->library->cuStreamCreate(&stream, CUDA_STREAM_NON_BLOCKING);
        m->library->cuEventCreate(&event, CUDA_EVENT_NO_TIMES);
        nccl_leave(m);
        const esp_stream s = {{ESP_CUDA, m->job->ordinal}, stream};
        c.src.ptr = c.dst.ptr = (void *)(uintptr_t)at, c.src.dev = c.dst.dev = s.dev;
        if (me->b->start(m, &c, s, &req) || ranks_wait(me, m, req))
            ranks_fail(me, "it is not stream-ordered: %s", ranks_said);
        nccl_enter(m);
        m->library->cuEventRecord(event, stream);
        usleep(20000);
        if (m->library->cuEventQuery(event) != CUDA_NOT_READY) ranks_fail(me, "a sum of one of two ranks is done");
        nccl_leave(m);
        me->b->abort(m);
        m->library->cuStreamSynchronize(stream);
        if (me->b->start(m, &c, s, &req) != ESP_E_PEER) ranks_fail(me, "after abort() a start is not refused");
        device_give(m, at, NULL, 0);
        nccl_enter(m);
        m->library->cuEventDestroy_v2(event), m->library->cuStreamDestroy_v2(stream);
        nccl_leave(m);
    }
    pthread_barrier_wait(&me->shared->barrier[0]);
    shut(me, m);
}
static void left_alone_run(void) { wants(run_nccl("", 2, 0, left_alone, 0)); }
TEST(aborts) { with("new", left_alone_run); }

/* A call or the communicator fails. The rank's error has NCCL's text. The other rank waits until it calls abort(). */
static void fails_late(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL), *req = NULL;
    static float x[2][500000]; /* so large that the collective is done in several pieces */
    const esp_stream cpu = ESP_ZERO;
    esp_coll c = sum_of(x[me->rank], 500000);
    const char *name = (const char *)me->arg;
    if (!comm || me->b->start(comm, &c, cpu, &req)) ranks_fail(me, "start: %s", ranks_said);
    pthread_barrier_wait(&me->shared->barrier[0]);
    if (me->rank) fake.fails(name, 1, *name == 'a' ? 6 : 3);
    if (me->rank) {
        const esp_status s = ranks_wait(me, comm, req);
        if (s != (*name == 'a' ? ESP_E_PEER : ESP_E_COMM) || !strstr(ranks_said, "a test wants"))
            ranks_fail(me, "%s: status %d: %s", name, (int)s, ranks_said);
        if (me->b->test(comm, req) != s) ranks_fail(me, "the error does not stay");
        pthread_barrier_wait(&me->shared->barrier[0]);
    } else {
        esp_status s = ESP_PENDING;
        for (int i = 0; i < 50 && s == ESP_PENDING; i++) s = me->b->test(comm, req), me->b->progress(comm, 1000);
        if (s != ESP_PENDING) ranks_fail(me, "the other rank gets %d", (int)s);
        pthread_barrier_wait(&me->shared->barrier[0]);
        me->b->abort(comm); /* the library calls this when another rank has failed */
        if (me->b->test(comm, req) != ESP_E_PEER) ranks_fail(me, "after abort() it still waits");
    }
    shut(me, comm);
}
static void fails_late_run(void) {
    static char names[3][32] = {"ncclAllReduce", "async"};
    const esp_backend *b = espresso_plugin_v1_nccl(&ranks_host)->backends[0];
    for (int k = 0; k < 2; k++) {
        const char *why = ranks_run(b, "", 2, 0, fails_late, names[k], -1);
        wants(*why ? why : NULL);
    }
}
TEST(collective_fails) { with("new", fails_late_run); }

static void leaves_early(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL), *req;
    float x[10] = {0};
    const esp_stream cpu = ESP_ZERO;
    esp_coll c = sum_of(x, 10);
    if (comm && !me->rank) me->b->start(comm, &c, cpu, &req), me->b->test(comm, req);
    shut(me, comm);
}
static void leaves_run(void) { wants(run_nccl("", 2, 0, leaves_early, 0)); }
TEST(closes) { with("new", leaves_run); }

static void reopens_run(void) {
    wants(run_nccl("", 3, 0, shrinks_and_reopens, 0));
    wants(run_nccl("", 1, 0, shrinks_and_reopens, 0));
}
TEST(reopens) { with("new", reopens_run), with("old", reopens_run); }
