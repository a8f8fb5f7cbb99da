/* test_waiting.c checks what a backend does besides moving data: the order of sums, requests, several communicators at
 * once, abort, death of a rank, wake, bytes on the emulated link, and errors of bad calls. */
/* runs: quiet slow tsan */
#include "tests/lib/test.h"

#include "backends/shm/transport.h"
#include "codecs/common/simd.h"
#include "ranks.h"

static const char *const both[] = {"loop", "shm"};
static void expect_ok(const char *name, const char *params, int32_t n, int32_t per_machine, ranks_fn fn,
                      int32_t killed) {
    const char *why = ranks_run(ranks_backend(name), params, n, per_machine, fn, NULL, killed);
    if (why[0]) fail_msg("%s", why);
}
static esp_coll coll(uint32_t op, esp_dtype t, uint64_t count, void *src, void *dst) {
    esp_coll c = ESP_ZERO;
    c.struct_size = sizeof c, c.op = op, c.dtype = t, c.count = count, c.src.ptr = src, c.dst.ptr = dst;
    return c;
}
static float noise(int32_t rank, uint64_t i) {
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)rank * UINT64_C(0xd1b54a32d192ed03);
    x ^= x >> 29, x *= UINT64_C(0xbf58476d1ce4e5b9), x ^= x >> 32;
    return ((float)(x & 0xffffff) - 8388608.0f) * (float)(1.0 / (double)(UINT64_C(1) << (x >> 59)));
}

/* ---- sums: added in rank order, with the bits of a plain loop; around a ring, equal bits on all ranks ---- */
static void rank_order(ranks_me *me) {
    enum { N = 40003 };
    void *comm = ranks_open(me, 0, NULL);
    float *x = (float *)malloc(N * 4), *y = (float *)malloc(N * 4), *all = (float *)malloc((size_t)me->size * N * 4);
    for (uint64_t n = 1000; n <= N && comm; n += N - 1000) {
        for (uint64_t i = 0; i < n; i++) x[i] = noise(me->rank, i);
        esp_coll c = coll(ESP_COLL_ALLREDUCE, ESP_F32, n, x, y);
        if (ranks_coll(me, comm, &c) != ESP_OK) break;
        for (uint64_t i = 0; i < n && !me->arg; i++) {
            float want = noise(0, i);
            for (int32_t q = 1; q < me->size; q++) want += noise(q, i);
            if (memcmp(&want, &y[i], 4)) {
                ranks_fail(me, "element %llu is not the sum in rank order", (unsigned long long)i);
                break;
            }
        }
        memcpy(all + (uint64_t)me->rank * n, y, n * 4);
        c = coll(ESP_COLL_ALLGATHER, ESP_F32, n * (uint64_t)me->size, y, all);
        if (ranks_coll(me, comm, &c) != ESP_OK) break;
        for (int32_t q = 0; q < me->size; q++)
            if (memcmp(all + (uint64_t)q * n, y, n * 4)) ranks_fail(me, "rank %d has other bits", (int)q);
    }
    if (comm) me->b->close(comm);
    free(x), free(y), free(all);
}
TEST(sums_in_rank_order) {
    for (int b = 0; b < 2; b++)
        for (int32_t n = 2; n <= 5; n++) expect_ok(both[b], "", n, 0, rank_order, -1);
    expect_ok("shm", "inter=100gbit", 3, 1, rank_order, -1);
}
TEST(sums_on_a_ring_are_the_same_everywhere) {
    const char *why = ranks_run(ranks_backend("shm"), "inter=100gbit", 4, 2, rank_order, (void *)both, -1);
    if (why[0]) fail_msg("%s", why);
}

/* ---- 16-bit floats: all 65536 of each format, against a plain conversion, on every instruction set ---- */
static float plain_f16(uint32_t h) {
    float m = (float)(h & 0x3ffu), sign = h & 0x8000u ? -1.0f : 1.0f;
    uint32_t e = (h >> 10) & 31u, inf = 0x7f800000u;
    float f;
    memcpy(&f, &inf, 4);
    if (e == 31) return h & 0x3ffu ? f - f : sign * f;
    if (e == 0) return sign * m * (float)(1.0 / 16777216);
    for (f = (m + 1024.0f) * (float)(1.0 / 1024); e > 15; e--) f *= 2;
    for (; e < 15; e++) f *= 0.5f;
    return sign * f;
}
/* Rounds to the nearest f16 by bisection. Of two equally near ones, the even one is taken. */
static uint32_t plain_to_f16(float f) {
    uint32_t sign = f < 0 ? 0x8000u : 0, lo = 0, hi = 0x7c00u;
    double x = f < 0 ? -(double)f : (double)f, a, b;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if ((double)plain_f16(mid) <= x)
            lo = mid;
        else
            hi = mid;
    }
    a = (double)plain_f16(lo), b = hi == 0x7c00u ? 65536.0 : (double)plain_f16(hi);
    return sign | (x - a < b - x || (!(x - a > b - x) && !(lo & 1u)) ? lo : hi);
}
TEST(halves) {
    static uint16_t in[65536], zero[65536], out[65536];
    static float wide[65536];
    for (uint32_t i = 0; i < 65536; i++) in[i] = (uint16_t)i, zero[i] = 0x8000u;
    for (int level = 0; level <= esp_simd_level(); level++) {
        const backend_reduction s = {ESP_F16, ESP_REDUCE_SUM, level}, b = {ESP_BF16, ESP_REDUCE_SUM, level};
        backend_reduce_step(&s, NULL, wide, (const uint8_t *)in, (const uint8_t *)zero, 65536, 1.0f); /* x + -0 is x */
        for (uint32_t i = 0; i < 65536; i++) {
            float want = plain_f16(i);
            if (memcmp(&wide[i], &want, 4) && !(want != want && wide[i] != wide[i]))
                fail_msg("f16 %04x read wrongly", i);
        }
        backend_reduce(&s, (uint8_t *)out, (const uint8_t *)in, (const uint8_t *)zero, 65536, 1.0f);
        for (uint32_t i = 0; i < 65536; i++)
            if (out[i] != ((i & 0x7fffu) > 0x7c00u ? 0x7e00u : i)) fail_msg("f16 %04x became %04x", i, out[i]);
        for (uint32_t i = 0; i < 65536; i++) {
            uint32_t u = i << 16 | (i * 40503u & 0xffffu);
            if (i % 3 == 0)
                u = (i % 2 ? 0x80000000u : 0) | (101u + i % 45u) << 23 |
                    (i * 2654435761u & 0x7ff000u); /* covers f16's range, and numbers midway between two f16 */
            memcpy(&wide[i], &u, 4);
        }
        backend_reduce_step(&s, (uint8_t *)out, wide, NULL, (const uint8_t *)zero, 65535, 1.0f);
        for (uint32_t i = 0; i < 65535; i++)
            if (wide[i] == wide[i] && out[i] != plain_to_f16(wide[i]) && (out[i] & 0x7fffu))
                fail_msg("%.9g became f16 %04x", (double)wide[i], out[i]);
        for (uint32_t i = 0; i < 65535; i++)
            if (wide[i] != wide[i] && out[i] != 0x7e00u) fail_msg("a NaN became f16 %04x", out[i]);
        backend_reduce_step(&b, (uint8_t *)out, wide, NULL, (const uint8_t *)zero, 65535, 1.0f);
        for (uint32_t i = 0; i < 65535; i++) {
            uint32_t u, r;
            memcpy(&u, &wide[i], 4);
            r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
            if (out[i] != ((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : r)) fail_msg("%08x became bf16 %04x", u, out[i]);
        }
    }
}

/* ---- requests ---- */
/* Starts many in-place collectives in a row on ranks that are not in step. No rank may overwrite data that another one
 * still needs. */
static void in_a_row(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL), *req[40];
    static const uint64_t counts[] = {1, 100, 3000, 20000};
    esp_stream none = ESP_ZERO;
    for (int round = 0; comm && round < 4; round++) {
        uint64_t n = counts[round];
        float *x = (float *)malloc(40 * n * 4);
        for (uint64_t i = 0; i < 40 * n; i++) x[i] = (float)((int)(i % 7) + me->rank);
        for (int k = 0; k < 40; k++) {
            esp_coll c = coll(k % 4 == 3 ? ESP_COLL_BROADCAST : ESP_COLL_ALLREDUCE, ESP_F32, n, x + (uint64_t)k * n,
                              x + (uint64_t)k * n);
            c.root = k % me->size;
            if (k % 10 == 3 * me->rank) usleep(300);
            if (me->b->start(comm, &c, none, &req[k]) != ESP_OK) ranks_fail(me, "start %d: %s", k, ranks_said);
        }
        for (int k = 39; k >= 0; k--) /* requests may be tested in any order */
            if (ranks_wait(me, comm, req[k]) != ESP_OK) ranks_fail(me, "request %d", k);
        for (uint64_t i = 0; i < 40 * n; i++) {
            int k = (int)(i / n), v = (int)(i % 7);
            int want = k % 4 == 3 ? v + k % me->size : v * me->size + me->size * (me->size - 1) / 2;
            if (x[i] < (float)want || x[i] > (float)want) {
                ranks_fail(me, "collective %d of %llu elements is wrong", k, (unsigned long long)n);
                break;
            }
        }
        free(x);
    }
    if (comm) me->b->close(comm);
}
TEST(many_in_a_row) {
    for (int b = 0; b < 2; b++)
        for (int32_t n = 2; n <= 3; n++) expect_ok(both[b], "", n, 0, in_a_row, -1);
    expect_ok("shm", "inter=10gbit,latency=20us", 4, 2, in_a_row, -1);
}

/* Three communicators of one job are polled from one thread, and their collectives start in different order on
 * different ranks. */
static void three_comms(ranks_me *me) {
    enum { N = 50000 };
    void *comm[3] = {ranks_open(me, 0, NULL), NULL, NULL}, *req[3];
    comm[1] = comm[0] ? ranks_open(me, 1, comm[0]) : NULL;
    comm[2] = comm[1] ? ranks_open(me, 2, comm[0]) : NULL;
    float *x = (float *)malloc(3 * N * 4);
    esp_stream none = ESP_ZERO;
    for (int round = 0; comm[2] && round < 10; round++) {
        int left = 3;
        for (int i = 0; i < 3 * N; i++) x[i] = 1.0f;
        for (int k = 0; k < 3; k++) {
            int g = (k + me->rank + round) % 3;
            esp_coll c = coll(ESP_COLL_ALLREDUCE, ESP_F32, N, x + g * N, x + g * N);
            if (me->b->start(comm[g], &c, none, &req[g]) != ESP_OK) ranks_fail(me, "start: %s", ranks_said);
        }
        double end = test_seconds() + 20;
        while (left && test_seconds() < end) {
            for (int g = 0; g < 3; g++) {
                esp_status s = req[g] ? me->b->test(comm[g], req[g]) : ESP_PENDING;
                if (s == ESP_OK)
                    req[g] = NULL, left--;
                else if (s != ESP_PENDING)
                    ranks_fail(me, "comm %d: status %d", g, (int)s), left = 0;
            }
            if (left) me->b->progress(comm[0], 100000);
        }
        for (int i = 0; i < 3 * N; i++) {
            float want = (float)(i / N == 0 ? me->size : i / N == 1 ? me->per_machine : me->size / me->per_machine);
            if (x[i] < want || x[i] > want) {
                ranks_fail(me, "comm %d: element %d is wrong", i / N, i % N);
                break;
            }
        }
    }
    for (int g = 0; g < 3; g++)
        if (comm[g]) me->b->close(comm[g]);
    free(x);
}
TEST(comms_of_one_job) {
    for (int b = 0; b < 2; b++) expect_ok(both[b], "", 4, 2, three_comms, -1);
    expect_ok("shm", "inter=10gbit,latency=20us", 4, 2, three_comms, -1);
}

/* ---- ends ---- */
static void *abort_later(void *arg) {
    ranks_me *me = ((ranks_me **)arg)[0];
    usleep(30000);
    me->b->abort(((void **)arg)[1]);
    return NULL;
}
/* Rank 0 never starts the collective. Another thread aborts the other ranks, which must return soon. */
static void nobody_comes(ranks_me *me) {
    float x[100] = {0};
    void *comm = ranks_open(me, 0, NULL), *arg[2] = {me, comm}, *req;
    esp_stream none = ESP_ZERO;
    pthread_t t;
    if (!comm) return;
    if (me->rank) {
        esp_coll c = coll(ESP_COLL_ALLREDUCE, ESP_F32, 100, x, x);
        double begin = test_seconds();
        if (me->b->start(comm, &c, none, &req) != ESP_OK) ranks_fail(me, "start: %s", ranks_said);
        if (me->b->test(comm, req) != ESP_PENDING) ranks_fail(me, "done without rank 0");
        if (me->b->straggler(comm, req) != 0) ranks_fail(me, "waits for %d, not 0", (int)me->b->straggler(comm, req));
        pthread_create(&t, NULL, abort_later, arg);
        esp_status s = ranks_wait(me, comm, req);
        pthread_join(t, NULL);
        if (s != ESP_E_PEER || test_seconds() - begin > 5)
            ranks_fail(me, "status %d after %.3f s", (int)s, test_seconds() - begin);
        if (me->b->start(comm, &c, none, &req) != ESP_E_PEER) ranks_fail(me, "start after abort");
    } else {
        usleep(100000);
    }
    me->b->close(comm);
}
TEST(abort_ends_waiting) {
    for (int b = 0; b < 2; b++) expect_ok(both[b], "", 3, 0, nobody_comes, -1);
}
static void *abort_after_death(void *arg) {
    ranks_me *me = ((ranks_me **)arg)[0];
    while (!__atomic_load_n(&me->shared->mark, __ATOMIC_SEQ_CST)) usleep(1000);
    return abort_later(arg);
}
static void dies(ranks_me *me) {
    enum { N = 1 << 20 };
    float *x = (float *)calloc(N, 4);
    void *comm = ranks_open(me, 0, NULL), *arg[2] = {me, comm};
    pthread_t t;
    esp_status s = ESP_OK;
    if (!comm) return;
    if (me->rank != 1) pthread_create(&t, NULL, abort_after_death, arg);
    for (int i = 0; s == ESP_OK; i++) {
        esp_coll c = coll(ESP_COLL_ALLREDUCE, ESP_F32, N, x, x);
        if (me->rank == 1 && i == 3) __atomic_store_n(&me->shared->mark, 1, __ATOMIC_SEQ_CST), kill(getpid(), SIGKILL);
        s = ranks_coll(me, comm, &c);
    }
    pthread_join(t, NULL);
    if (s != ESP_E_PEER) ranks_fail(me, "status %d", (int)s);
    me->b->close(comm);
    free(x);
}
TEST(a_dead_rank_holds_nobody) {
    expect_ok("shm", "", 3, 0, dies, 1);
    expect_ok("shm", "inter=1gbit", 4, 2, dies, 1);
}
/* A rank that fails makes the others fail too, without abort(). */
static void gives_up(ranks_me *me) {
    enum { N = 3000000 };
    float *x = (float *)calloc(N, 4);
    void *comm = ranks_open(me, 0, NULL), *req;
    esp_stream none = ESP_ZERO;
    esp_coll c = coll(ESP_COLL_ALLREDUCE, ESP_F32, N, x, x);
    if (!comm) return;
    if (me->rank) {
        esp_status s = ranks_coll(me, comm, &c);
        if (s != ESP_E_PEER) ranks_fail(me, "status %d", (int)s);
        me->b->close(comm);
    } else {
        if (me->b->start(comm, &c, none, &req) == ESP_OK) me->b->test(comm, req);
        me->b->close(comm);
    }
    free(x);
}
TEST(closing_in_the_middle) {
    for (int b = 0; b < 2; b++) expect_ok(both[b], "", 3, 0, gives_up, -1);
}
static void closes_first(ranks_me *me) {
    float x[1000];
    void *comm = ranks_open(me, 0, NULL);
    if (!comm) return;
    for (int i = 0; i < 1000; i++) x[i] = 1;
    if (me->rank == 1) usleep(100000);
    esp_coll c = coll(ESP_COLL_BROADCAST, ESP_F32, 1000, x, x);
    if (me->rank) memset(x, 0, sizeof x);
    if (ranks_coll(me, comm, &c) != ESP_OK || x[999] < 1) ranks_fail(me, "broadcast");
    me->b->close(comm);
}
TEST(closing_early) {
    for (int b = 0; b < 2; b++) expect_ok(both[b], "", 2, 0, closes_first, -1);
}
static void *wake_later(void *arg) {
    usleep(20000);
    ((ranks_me **)arg)[0]->b->wake(((void **)arg)[1]);
    return NULL;
}
static void sleeps(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL), *arg[2] = {me, comm};
    pthread_t t;
    if (!comm) return;
    double begin = test_seconds();
    pthread_create(&t, NULL, wake_later, arg);
    me->b->progress(comm, 10000000);
    pthread_join(t, NULL);
    me->b->wake(comm); /* a wake before the sleep must not be lost */
    me->b->progress(comm, 10000000);
    me->b->progress(comm, 1000);
    if (test_seconds() - begin > 5) ranks_fail(me, "slept through wake()");
    me->b->close(comm);
}
TEST(wake_ends_sleeping) {
    for (int b = 0; b < 2; b++) expect_ok(both[b], "", 2, 0, sleeps, -1);
}

/* ---- the emulated network: it carries the expected number of bytes, and no faster than its rate ---- */
static void volumes(ranks_me *me) {
    enum { N = 24 * 4096 };
    static const struct {
        uint32_t op;
        double direct, ring;
    } table[] = {
        {ESP_COLL_ALLREDUCE, 6, 3}, {ESP_COLL_REDUCE_SCATTER, 3, 1.5}, {ESP_COLL_ALLGATHER, 3, 1.5},
        {ESP_COLL_ALLTOALL, 3, 2},  {ESP_COLL_GATHER, 0.75, 0.5},      {ESP_COLL_BROADCAST, 3, 1},
        {ESP_COLL_REDUCE, 3, 1},
    };
    float *x = (float *)calloc(N, 4), *y = (float *)calloc(N, 4);
    int ring = me->per_machine == 2;
    double all[RANKS_MAX];
    void *comm = ranks_open(me, 0, NULL);
    for (int k = 0; comm && k < 7; k++) {
        esp_coll c = coll(table[k].op, ESP_F32, N, x, y),
                 d = coll(ESP_COLL_ALLGATHER, ESP_F32, (uint64_t)me->size * 2, NULL, all);
        esp_traffic a = {.struct_size = sizeof a}, b = a;
        me->b->traffic(comm, &a);
        double begin = test_seconds(), took;
        if (ranks_coll(me, comm, &c) != ESP_OK) break;
        took = test_seconds() - begin;
        me->b->traffic(comm, &b);
        double mine = (double)(b.inter_bytes - a.inter_bytes), sum = 0, unit = N * 4.0;
        d.src.ptr = &mine;
        if (ranks_coll(me, comm, &d) != ESP_OK) break;
        for (int32_t q = 0; q < me->size; q++) sum += all[q];
        double want = ring ? table[k].ring : table[k].direct;
        if ((c.op == ESP_COLL_BROADCAST || c.op == ESP_COLL_REDUCE) && ring) want = 1;
        if (sum < want * unit || sum > want * unit)
            ranks_fail(me, "op %u moved %.3f buffers between machines, not %.3f", c.op, sum / unit, want);
        if (took < mine * 8 / 1e9) ranks_fail(me, "op %u was faster than the link", c.op);
    }
    if (comm) me->b->close(comm);
    free(x), free(y);
}
TEST(link_volumes) {
    for (int b = 0; b < 2; b++) {
        expect_ok(both[b], "inter=1gbit,latency=50us", 4, 1, volumes, -1);
        expect_ok(both[b], "inter=1gbit,latency=50us", 4, 2, volumes, -1);
    }
}

/* ---- errors of bad calls ---- */
static void bad_calls(ranks_me *me) {
    float x[8] = {0};
    void *comm = ranks_open(me, 0, NULL), *req;
    esp_stream none = ESP_ZERO;
    static const struct {
        esp_coll c;
        const char *says;
        int null_src;
    } bad[] = {
        {{.op = 9}, "there is no collective 9", 0},
        {{.op = ESP_COLL_BROADCAST, .root = 7}, "root 7 is not in 0..", 0},
        {{.dtype = 77}, "there is no dtype 77", 0},
        {{.op = ESP_COLL_ALLTOALL, .count = 7}, "multiple of", 0},
        {{.op = 0}, "src is NULL", 1},
        {{.slot_bytes = 64}, "slots cannot be reduced", 0},
        {{.op = ESP_COLL_ALLGATHER, .slot_bytes = 63}, "header alone has 64 bytes", 0},
        {{.op = ESP_COLL_ALLGATHER, .slot_bytes = 64, .width = 2}, "width 2 is for plain numbers", 0},
        {{.reduce = 4}, "there is no reduction 4", 0},
        {{.reduce = ESP_REDUCE_MAX, .scale = 0.5f}, "scale 0.5 is for sums of f32", 0},
        {{.dtype = ESP_I8, .scale = 2}, "scale 2 is for sums of f32", 0},
        {{.width = UINT64_MAX / 4}, "is too large", 0},
        {{.count = UINT64_MAX / 64, .width = 3}, "is too large", 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const esp_coll *w = &bad[i].c;
        esp_coll c = coll(ESP_COLL_ALLREDUCE, ESP_F32, 8, x, x);
        if (w->op) c.op = w->op;
        if (w->dtype) c.dtype = w->dtype;
        if (w->count) c.count = w->count;
        c.root = w->root, c.slot_bytes = w->slot_bytes, c.scale = w->scale, c.reduce = w->reduce, c.width = w->width;
        if (bad[i].null_src) c.src.ptr = NULL;
        ranks_said[0] = 0;
        if (me->b->start(comm, &c, none, &req) != ESP_E_ARG || !strstr(ranks_said, bad[i].says))
            ranks_fail(me, "bad call %d: \"%s\", not \"%s\"", (int)i, ranks_said, bad[i].says);
    }
    esp_coll c = coll(ESP_COLL_ALLREDUCE, ESP_F32, 8, x, x);
    /* An older caller's struct is shorter. Members that it lacks must not be read. */
    esp_coll old = c;
    old.struct_size = (uint32_t)offsetof(esp_coll, reduce), old.reduce = 99, old.width = 1 << 20;
    if (ranks_coll(me, comm, &old) != ESP_OK) ranks_fail(me, "an older struct: %s", ranks_said);
    if (ranks_coll(me, comm, &c) != ESP_OK) ranks_fail(me, "broken after bad calls");
    me->b->close(comm);
}
static void bad_open(ranks_me *me) {
    ranks_group g = {me->shared, {0, 1}, {0}, 2, me->rank, &me->shared->barrier[0]};
    esp_group eg = ESP_ZERO;
    void *comm = &g;
    static const char *const bad[] = {"inter=fast", "latency=-1us", "inter", "colour=blue", "link=fast", "inter=0gbit"};
    eg.struct_size = sizeof eg, eg.rank = me->rank, eg.size = 2, eg.machine = g.machine;
    eg.oob_allgather = ranks_oob, eg.user = &g;
    for (int i = 0; i < 6; i++) {
        esp_status s = me->b->open(&ranks_host, &eg, bad[i], &comm);
        if (s != ESP_E_ARG || comm || !ranks_said[0]) ranks_fail(me, "\"%s\" was taken: %d", bad[i], (int)s);
    }
    esp_status s = me->b->open(&ranks_host, &eg, me->rank ? "latency=1us" : "latency=2us", &comm);
    if (s != ESP_E_MISMATCH) ranks_fail(me, "different parameters were taken: %d", (int)s);
    s = me->b->open(&ranks_host, &eg, me->rank ? "" : "nonsense=1", &comm); /* if one rank fails, both get an error */
    if (s == ESP_OK) ranks_fail(me, "opened although a rank could not");
}
/* By mistake, rank 0 is the root of a broadcast while the others reduce. All must get an error, even if rank 0 is
 * already in its next collective when the others begin. */
static void root_is_ahead(ranks_me *me) {
    const int others_first = me->per_machine == 4;
    const esp_stream none = ESP_ZERO;
    float in[100] = {0}, out[100];
    esp_coll c = {.struct_size = sizeof c, .op = ESP_COLL_ALLREDUCE, .dtype = ESP_F32, .count = 100};
    void *comm = ranks_open(me, 0, NULL), *req = NULL;
    c.src.ptr = in, c.dst.ptr = out;
    if (!comm) return;
    esp_coll bc = c;
    bc.op = ESP_COLL_BROADCAST;
    if (ranks_coll(me, comm, &c) != ESP_OK) ranks_fail(me, "the collective before: %s", ranks_said);
    if (me->rank == 0 && others_first) usleep(20000);
    if (me->rank && !others_first) usleep(20000);
    esp_status s = me->b->start(comm, me->rank ? &c : &bc, none, &req);
    if (s == ESP_OK) s = ranks_wait(me, comm, req);
    if (s == ESP_OK && me->rank == 0) s = ranks_coll(me, comm, &c);
    if (s != ESP_E_MISMATCH || !strstr(ranks_said, "the same calls in the same order"))
        ranks_fail(me, "%s: status %d: %s", others_first ? "others first" : "root first", (int)s, ranks_said);
    pthread_barrier_wait(&me->shared->barrier[0]);
    me->b->close(comm);
}
TEST(a_root_ahead_is_noticed) {
    for (int b = 0; b < 2; b++)
        for (int way = 0; way < 2; way++) expect_ok(both[b], "", 4, way ? 4 : 0, root_is_ahead, -1);
}
TEST(bad_calls_are_refused) {
    for (int b = 0; b < 2; b++) {
        expect_ok(both[b], "", 2, 0, bad_calls, -1);
        expect_ok(both[b], "", 2, 0, bad_open, -1);
    }
}
