/* backend.c: checks that a backend keeps the rules in plugins/abi.h: results of collectives, their order, groups, abort
 * and wake-up. Must not know any backend by name. */
#include "espresso_impl/context/context.h"
#include "backends/common/common.h"
#include "tools/check/check.h"
#include "codecs/common/half.h"
#include "espresso_impl/base/os.h"
#include <fcntl.h>

/* Returns element i of a rank's input to collective `op`. It is a small integer, so that sums are exact in any type. */
static int check_value(int32_t rank, uint64_t i, uint32_t op) {
    uint64_t x = (i * 131 + (uint64_t)rank * 7 + op + 1) * 0x9e3779b97f4a7c15ull;
    return (int)(x >> 33) % 15 - 7;
}

static void check_store(esp_dtype t, void *p, uint64_t i, int v) {
    const float f = (float)v;
    switch (t) {
    case ESP_F32: memcpy((uint8_t *)p + 4 * i, &f, 4); break;
    case ESP_F16:
    case ESP_BF16: {
        const uint16_t h = (uint16_t)(t == ESP_F16 ? half_to_f16(f) : half_to_bf16(f));
        memcpy((uint8_t *)p + 2 * i, &h, 2);
        break;
    }
    default: {
        const int32_t w = v;
        memcpy((uint8_t *)p + esp_dtype_bytes(t) * i, &w, esp_dtype_bytes(t));
    }
    }
}

/* Returns element i of the result that rank `r` must get from collective `c`. */
static int check_expected(const check_rank *r, const esp_coll *c, uint64_t i) {
    const uint64_t part = (c->count + (uint64_t)r->size - 1) / (uint64_t)r->size;
    if (c->op == ESP_COLL_BROADCAST) return check_value(c->root, i, c->op);
    if (c->op == ESP_COLL_ALLTOALL) return check_value((int32_t)(i / part), (uint64_t)r->rank * part + i % part, c->op);
    if (!backend_op_sums(c->op)) return check_value((int32_t)(i / part), i, c->op);
    int v = check_value(0, i, c->op);
    for (int32_t q = 1; q < r->size; q++) {
        const int x = check_value(q, i, c->op);
        v = c->reduce == ESP_REDUCE_MAX ? (x > v ? x : v) : c->reduce == ESP_REDUCE_MIN ? (x < v ? x : v) : v + x;
    }
    return v;
}

/* Runs a collective, compares the result, and checks that nothing was written after the end of the buffers. */
static void check_one_coll(check_rank *r, uint32_t op, esp_dtype dtype, esp_reduce reduce, uint64_t count,
                           bool in_place) {
    enum { FENCE = 64 };
    const uint64_t n = (uint64_t)r->size, e = esp_dtype_bytes(dtype);
    if (op == ESP_COLL_ALLTOALL) count = count / n * n;
    const uint64_t part = (count + n - 1) / n,
                   begin = (uint64_t)r->rank * part < count ? (uint64_t)r->rank * part : count;
    const uint64_t end = begin + part < count ? begin + part : count, bytes = count * e;
    uint8_t *src = malloc((size_t)bytes + FENCE), *dst = malloc((size_t)bytes + FENCE);
    esp_coll c;
    memset(src, 0x5A, (size_t)bytes + FENCE);
    memset(dst, 0x5A, (size_t)bytes + FENCE);
    for (uint64_t i = 0; i < count; i++) check_store(dtype, src, i, check_value(r->rank, i, op));
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c, c.op = op, c.dtype = dtype, c.reduce = reduce, c.count = count, c.root = r->size - 1;
    const int from_part = op == ESP_COLL_ALLGATHER || op == ESP_COLL_GATHER, to_part = op == ESP_COLL_REDUCE_SCATTER;
    const int root = r->rank == c.root;
    c.src.ptr = src + (from_part ? begin * e : 0);
    c.dst.ptr = in_place ? src + (to_part ? begin * e : 0) : dst;
    if (backend_op_rooted(op) && (op == ESP_COLL_BROADCAST ? root && !in_place : !root)) c.dst.ptr = NULL;
    if (op == ESP_COLL_BROADCAST && !root && !in_place) c.src.ptr = NULL;
    c.src.bytes = from_part ? (end - begin) * e : bytes;
    c.dst.bytes = to_part ? (end - begin) * e : bytes;
    const uint8_t *out = c.dst.ptr;
    const esp_status s = check_rank_coll(r, &c);
    /* a backend may refuse min and max, but not sums, if the data is in device memory */
    const int refused = s == ESP_E_UNSUPPORTED && r->t->where && reduce > ESP_REDUCE_SUM;
    if (s && s != ESP_E_TIMEOUT && !refused)
        check_rank_fail(r, "%s of %llu %s%s: status %d: %s", esp__coll_word(op), (check_u)count, esp__dtype_word(dtype),
                        in_place ? " in place" : "", (int)s, esp__plugin_detail());
    for (uint64_t i = to_part ? begin : 0; out && !refused && i < (to_part ? end : count) && !check_failed(r); i++) {
        uint8_t want[4] = {0};
        check_store(dtype, want, 0, check_expected(r, &c, i));
        if (memcmp(out + (i - (to_part ? begin : 0)) * e, want, (size_t)e))
            check_rank_fail(r, "%s of %llu %s%s: element %llu is not %d", esp__coll_word(op), (check_u)count,
                            esp__dtype_word(dtype), in_place ? " in place" : "", (check_u)i, check_expected(r, &c, i));
    }
    for (int i = 0; i < FENCE && !check_failed(r); i++)
        if (src[bytes + (uint64_t)i] != 0x5A || dst[bytes + (uint64_t)i] != 0x5A)
            check_rank_fail(r, "%s of %llu %s wrote behind the end", esp__coll_word(op), (check_u)count,
                            esp__dtype_word(dtype));
    free(src);
    free(dst);
}

static void check_numbers(check_rank *r) {
    static const uint64_t counts[] = {0, 1, 7, 1000, 65537};
    const esp_backend *b = r->t->table;
    for (uint32_t op = ESP_COLL_ALLREDUCE; op <= ESP_COLL_REDUCE; op++)
        for (int k = 0; k < 5 && b->colls & ESP_BIT(op); k++)
            for (esp_dtype t = ESP_F32; t <= ESP_I32; t++)
                for (esp_reduce o = ESP_REDUCE_SUM; o <= ESP_REDUCE_MIN; o++)
                    for (int in_place = 0; in_place < 2; in_place++) {
                        const int alias = in_place && op != ESP_COLL_GATHER && op != ESP_COLL_ALLTOALL;
                        if (check_failed(r) || !(b->dtypes & ESP_BIT(t))) continue;
                        if (backend_op_sums(op) ? !(b->reduces & ESP_BIT(o)) : o != ESP_REDUCE_SUM) continue;
                        check_one_coll(r, op, t, o, counts[k], alias);
                    }
}
static void check_numbers_run(void *target) {
    const check_backend_target *t = target;
    CHECK_EACH(n, 1) {
        check_doing("running all collectives on %d ranks", (int)n);
        check_ranks(t, n, check_numbers);
    }
}

static void check_open_only(check_rank *r) { (void)r; }
static void check_open_run(void *target) {
    CHECK_EACH(n, 1) {
        check_doing("opening a comm of %d ranks", (int)n);
        check_ranks(target, n, check_open_only);
    }
}

/* Sizes of buffers for payloads, in bytes. check_body() returns the bytes of a payload after its header. */
enum { CHECK_SLOT = 4128, CHECK_SLOT_LARGE = 65536 };
static uint64_t check_body(uint64_t slot, uint64_t k, uint64_t rank) {
    return slot == CHECK_SLOT ? (k * 997 + rank * 13) % (slot - 64) : 32 * ((k + rank) % 3);
}

static void check_arrived(check_rank *r, const uint8_t *slot, uint64_t bytes, uint64_t i, uint64_t k, uint64_t q) {
    const uint64_t used = ESP_PAYLOAD_HEADER + check_body(bytes, k, q);
    uint64_t more = 0;
    esp_payload_header h;
    memcpy(&h, slot, sizeof h);
    if (h.count != k || ESP_PAYLOAD_HEADER + h.body_bytes != used)
        check_rank_fail(r, "allgather of slots: the header of slot %llu is wrong", (check_u)i);
    for (uint64_t at = ESP_PAYLOAD_HEADER; at < used && !check_failed(r); at++)
        if (slot[at] != (uint8_t)(k + 16 * q))
            check_rank_fail(r, "allgather of slots: byte %llu of slot %llu is wrong", (check_u)at, (check_u)i);
    for (uint64_t at = used; at < bytes; at++) more += slot[at] != 0x5A;
    if (bytes == CHECK_SLOT_LARGE && more > 4096)
        check_rank_fail(r,
                        "of a slot of %llu bytes, %llu are used, but %llu more were written: leave ESP_BACKEND_VARLEN "
                        "out, or move only header and body",
                        (check_u)bytes, (check_u)used, (check_u)more);
}

static void check_gather(check_rank *r, uint64_t slot) {
    enum { SLOTS = 8 };
    const uint64_t n = (uint64_t)r->size, rank = (uint64_t)r->rank;
    uint8_t *src = malloc(SLOTS * slot), *dst = malloc((size_t)(n * SLOTS * slot));
    esp_coll c;
    memset(src, 0x11, SLOTS * slot);
    memset(dst, 0x5A, (size_t)(n * SLOTS * slot));
    for (uint64_t k = 0; k < SLOTS; k++) {
        esp_payload_header h = esp_payload_header_of(7, 1, 0, k, check_body(slot, k, rank), k);
        memcpy(src + k * slot, &h, sizeof h);
        memset(src + k * slot + sizeof h, (int)(k + 16 * rank), (size_t)h.body_bytes);
    }
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c, c.op = ESP_COLL_ALLGATHER, c.slot_bytes = slot, c.count = n * SLOTS;
    c.src.ptr = src, c.src.bytes = SLOTS * slot;
    c.dst.ptr = dst, c.dst.bytes = n * SLOTS * slot;
    const esp_status s = check_rank_coll(r, &c);
    if (s && s != ESP_E_TIMEOUT) check_rank_fail(r, "allgather of slots: status %d: %s", (int)s, esp__plugin_detail());
    for (uint64_t i = 0; i < n * SLOTS && !check_failed(r); i++)
        check_arrived(r, dst + i * slot, slot, i, i % SLOTS, i / SLOTS);
    free(src);
    free(dst);
}
static void check_slots(check_rank *r) { check_gather(r, CHECK_SLOT); }
static void check_slots_run(void *target) {
    const check_backend_target *t = target;
    if (!(t->table->colls & ESP_BIT(ESP_COLL_ALLGATHER))) check_skip("the backend has no allgather");
    check_doing("gathering payload slots");
    CHECK_EACH(n, 1) check_ranks(t, n, check_slots);
}

/* Sums numbers whose sums must be rounded. The result must have the same bits on all ranks. */
static void check_bits(check_rank *r) {
    enum { N = 30011 };
    float *x = malloc(N * sizeof *x);
    esp_coll c;
    check_seed = (uint64_t)r->rank + 1;
    for (int i = 0; i < N; i++) x[i] = check_normal() * 3.3f;
    esp__coll_init(&c, ESP_COLL_ALLREDUCE, ESP_F32, N, x, 0);
    const esp_status s = check_rank_coll(r, &c);
    if (s && s != ESP_E_TIMEOUT) check_rank_fail(r, "allreduce: status %d", (int)s);
    if (!check_same(r, esp__hash64(ESP__HASH0, x, N * sizeof *x)))
        check_rank_fail(r,
                        "the sum differs from rank 0's in some bits: replicas of a model would drift apart: sum in the "
                        "same order on all ranks");
    free(x);
}
static void check_bits_run(void *target) {
    check_doing("comparing the bits of a sum");
    CHECK_EACH(n, 2) check_ranks(target, n, check_bits);
}

/* Data of the largest collective: more than backends buffer. Builds with sanitizers use less. */
#ifndef CHECK_LARGE_MIB
#define CHECK_LARGE_MIB 64u
#endif
static void check_large(check_rank *r) {
    for (uint32_t op = ESP_COLL_ALLREDUCE; op <= ESP_COLL_REDUCE && !check_failed(r); op++)
        if (r->t->table->colls & ESP_BIT(op))
            check_one_coll(r, op, ESP_F32, ESP_REDUCE_SUM, (CHECK_LARGE_MIB << 20) / 4 + 3, 0);
}
static void check_large_run(void *target) {
    check_doing("running all collectives on %u MiB", CHECK_LARGE_MIB);
    check_ranks(target, 2, check_large);
    if (check_ranks_most() > 2) check_ranks(target, check_ranks_most(), check_large);
}

/* Ranks with even numbers form one group, ranks with odd numbers another. This exchanges data in a rank's group. */
static esp_status check_group_oob(void *user, const void *in, void *out, uint64_t bytes) {
    check_rank *r = user;
    uint8_t *all = malloc((size_t)bytes * (size_t)r->size);
    const esp_status s = all ? check_oob(r, in, all, bytes) : ESP_E_NOMEM;
    for (int32_t q = r->rank % 2, k = 0; !s && q < r->size; q += 2, k++)
        memcpy((uint8_t *)out + (uint64_t)k * bytes, all + (uint64_t)q * bytes, (size_t)bytes);
    free(all);
    return s;
}
static void check_groups(check_rank *r) {
    enum { N = 70001, TIMES = 5 };
    const esp_stream cpu = {{ESP_CPU, 0}, NULL};
    int32_t place[CHECK_MOST * 2], machine[CHECK_MOST];
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    void *half = NULL, *req[2];
    esp_group g;
    memset(&g, 0, sizeof g);
    g.struct_size = sizeof g;
    g.rank = r->rank / 2, g.size = (r->size + 1 - r->rank % 2) / 2;
    for (int32_t k = 0; k < g.size; k++)
        place[2 * k] = 0, place[2 * k + 1] = k, machine[k] = check_job.machine[2 * k + r->rank % 2];
    g.level = g.last_level = 2, g.n_levels = 2, g.level_name = "inter";
    g.place = place, g.machine = machine, g.parent = r->comm;
    g.oob_allgather = check_group_oob, g.user = r;
    if (r->t->table->open(r->t->host, &g, r->t->params, &half))
        check_rank_fail(r, "a group of %d ranks does not open: %s", (int)g.size, esp__plugin_detail());
    for (int k = 0; k < TIMES && !check_failed(r); k++) {
        esp_coll a, b;
        float sum = 0;
        for (int32_t q = r->rank % 2; q < r->size; q += 2) sum += (float)(q + k);
        for (int i = 0; i < N; i++) x[i] = 1, y[i] = (float)(r->rank + k);
        esp__coll_init(&a, ESP_COLL_ALLREDUCE, ESP_F32, N, x, 0);
        esp__coll_init(&b, ESP_COLL_ALLREDUCE, ESP_F32, N, y, 0);
        if (r->t->table->start(r->comm, &a, cpu, &req[0]) || r->t->table->start(half, &b, cpu, &req[1]))
            check_rank_fail(r, "start failed: %s", esp__plugin_detail());
        /* ranks with odd numbers wait for their requests in the opposite order */
        for (int side = 0; side < 2 && !check_failed(r); side++) {
            const int which = (side + r->rank) % 2;
            void *const all = r->comm;
            r->comm = which ? half : all;
            const esp_status s = check_rank_wait(r, req[which]);
            r->comm = all;
            if (s) check_rank_fail(r, "an allreduce of a group gives status %d", (int)s);
        }
        if (!check_failed(r) && (!(x[N - 1] == (float)r->size) || !(y[N - 1] == sum)))
            check_rank_fail(r, "sums over all ranks and over a half are %g and %g, not %d and %g", (double)x[N - 1],
                            (double)y[N - 1], (int)r->size, (double)sum);
    }
    check_barrier(r);
    if (half) r->t->table->close(half);
    free(x);
    free(y);
}
static void check_groups_run(void *target) {
    check_doing("running collectives of two groups and of all ranks at once");
    /* with 4 ranks, each group has 2; a group of one rank would send nothing */
    CHECK_EACH(n, 4) check_ranks(target, n, check_groups);
}

/* Starts several collectives, and asks for their completion in another order. */
static void check_queue(check_rank *r) {
    enum { OPEN = 16, N = 1000 };
    const esp_stream cpu = {{ESP_CPU, 0}, NULL};
    float *x = malloc(OPEN * N * sizeof *x);
    void *req[OPEN];
    for (int k = 0; k < OPEN && !check_failed(r); k++) {
        esp_coll c;
        for (int i = 0; i < N; i++) x[k * N + i] = (float)(k + r->rank);
        esp__coll_init(&c, ESP_COLL_ALLREDUCE, ESP_F32, N, x + k * N, 0);
        if (r->t->table->start(r->comm, &c, cpu, &req[k])) check_rank_fail(r, "start of request %d failed", k);
    }
    for (int k = OPEN; k-- > 0 && !check_failed(r);)
        if (check_rank_wait(r, req[k]) && !check_failed(r)) check_rank_fail(r, "request %d failed", k);
    for (int k = 0; k < OPEN && !check_failed(r); k++)
        for (int i = 0; i < N; i++) {
            const float want = (float)(k * r->size + r->size * (r->size - 1) / 2);
            if (!(x[k * N + i] == want) &&
                check_rank_fail(r, "request %d gives %g, not %g", k, (double)x[k * N + i], (double)want))
                break;
        }
    free(x);
}
static void check_queue_run(void *target) {
    check_doing("running several requests at once");
    check_ranks(target, 3, check_queue);
}

/* Rank 0 starts a collective that no other rank joins, and aborts it. */
static void check_abort(check_rank *r) {
    float x[8] = {0};
    const esp_stream cpu = {{ESP_CPU, 0}, NULL};
    void *req = NULL;
    esp_coll c;
    esp__coll_init(&c, ESP_COLL_ALLREDUCE, ESP_F32, 8, x, 0);
    if (r->rank == 0) {
        esp_status s = r->t->table->start(r->comm, &c, cpu, &req);
        if (!s) s = r->t->table->test(r->comm, req);
        if (s != ESP_PENDING)
            check_rank_fail(r, "a collective in which no other rank takes part gives status %d, not ESP_PENDING",
                            (int)s);
        r->t->table->abort(r->comm);
        const uint64_t end = esp__now_ns() + 5000000000u;
        while (!check_failed(r) && (s = r->t->table->test(r->comm, req)) == ESP_PENDING)
            if (esp__now_ns() > end) check_rank_fail(r, "abort() was called 5 s ago, and the request is still pending");
        if (s != ESP_E_PEER) check_rank_fail(r, "after abort() a request gives status %d, not ESP_E_PEER", (int)s);
    }
    check_barrier(r);
}
static void check_abort_run(void *target) {
    const check_backend_target *t = target;
    if (!ESP_HAS(esp_backend, t->table, abort))
        check_skip("the table has no abort(): a rank that waits for a dead one waits for the timeout");
    check_doing("aborting a collective");
    check_ranks(t, 2, check_abort);
}

static void *check_waker(void *arg) {
    check_rank *r = arg;
    const struct timespec soon = {0, 20000000};
    nanosleep(&soon, NULL);
    r->t->table->wake(r->comm);
    return NULL;
}
static void check_sleep(check_rank *r) {
    pthread_t waker;
    const uint64_t begin = esp__now_ns();
    if (r->t->table->progress(r->comm, 1000)) check_rank_fail(r, "progress() with nothing to do failed");
    if (esp__now_ns() - begin > 2000000000u) check_rank_fail(r, "progress(1000 us) slept over 2 s");
    if (esp__thread_start(&waker, check_waker, r)) return;
    /* wake() must end progress() soon, even if it came before progress() slept */
    if (r->t->table->progress(r->comm, 8000000)) check_rank_fail(r, "progress() failed");
    if (esp__now_ns() - begin > 6000000000u) check_rank_fail(r, "wake() did not end progress()");
    pthread_join(waker, NULL);
    check_barrier(r);
}
static void check_sleep_run(void *target) {
    const check_backend_target *t = target;
    if (!ESP_HAS(esp_backend, t->table, progress)) check_skip("the table has no progress(): the library polls");
    check_doing("sleeping in progress() and being woken");
    check_ranks(t, 2, check_sleep);
}

static void check_traffic(check_rank *r) {
    enum { N = 100000 };
    float *x = calloc(N, sizeof *x);
    esp_traffic t;
    esp_coll c;
    esp__coll_init(&c, ESP_COLL_BROADCAST, ESP_F32, N, x, 0);
    if (check_rank_coll(r, &c)) check_rank_fail(r, "broadcast failed");
    memset(&t, 0, sizeof t);
    t.struct_size = sizeof t;
    if (r->t->table->traffic(r->comm, &t)) check_rank_fail(r, "traffic() failed");
    if (r->rank && t.intra_bytes + t.inter_bytes < N * sizeof *x)
        check_rank_fail(r, "%llu bytes were broadcast, traffic() counts %llu", (check_u)(N * sizeof *x),
                        (check_u)(t.intra_bytes + t.inter_bytes));
    check_barrier(r);
    free(x);
}
static void check_traffic_run(void *target) {
    const check_backend_target *t = target;
    if (!ESP_HAS(esp_backend, t->table, traffic)) check_skip("the table has no traffic(): statistics show no bytes");
    check_ranks(t, 2, check_traffic);
}

/* ---- capabilities ----------------------------------------------------------------------------------------- */
/* With ESP_BACKEND_VARLEN, an allgather may transfer only the used bytes of a buffer. */
static void check_varlen(check_rank *r) { check_gather(r, CHECK_SLOT_LARGE); }
static void check_varlen_run(void *target) {
    const check_backend_target *t = target;
    if (!(t->table->caps & ESP_BACKEND_VARLEN)) check_skip("the backend does not set ESP_BACKEND_VARLEN");
    if (!(t->table->colls & ESP_BIT(ESP_COLL_ALLGATHER))) check_skip("the backend has no allgather");
    check_doing("gathering slots of which little is used");
    CHECK_EACH(n, 2) check_ranks(t, n, check_varlen);
}

/* With ESP_BACKEND_SCALE, the backend multiplies sums of float types, here by 1/4. */
static void check_scale(check_rank *r) {
    static const esp_dtype types[] = {ESP_F32, ESP_F16, ESP_BF16};
    enum { N = 1000 };
    for (int k = 0; k < 3 && !check_failed(r); k++) {
        float x[N];
        esp_coll c;
        if (!(r->t->table->dtypes & ESP_BIT(types[k]))) continue;
        for (uint64_t i = 0; i < N; i++) check_store(types[k], x, i, 4 * check_value(r->rank, i, 1));
        esp__coll_init(&c, ESP_COLL_ALLREDUCE, types[k], N, x, 0);
        c.scale = 0.25f;
        const esp_status s = check_rank_coll(r, &c);
        if (s && s != ESP_E_TIMEOUT) check_rank_fail(r, "allreduce with scale: status %d", (int)s);
        for (uint64_t i = 0; i < N && !check_failed(r); i++) {
            uint8_t want[4] = {0};
            int sum = 0;
            for (int32_t q = 0; q < r->size; q++) sum += check_value(q, i, 1);
            check_store(types[k], want, 0, sum);
            if (memcmp((uint8_t *)x + i * esp_dtype_bytes(types[k]), want, (size_t)esp_dtype_bytes(types[k])))
                check_rank_fail(r,
                                "allreduce of %s with scale 0.25: element %llu is not %d: multiply the sum, or leave "
                                "ESP_BACKEND_SCALE out",
                                esp__dtype_word(types[k]), (check_u)i, sum);
        }
    }
}
static void check_scale_run(void *target) {
    const check_backend_target *t = target;
    if (!(t->table->caps & ESP_BACKEND_SCALE)) check_skip("the backend does not set ESP_BACKEND_SCALE");
    check_doing("summing with a scale");
    CHECK_EACH(n, 1) check_ranks(t, n, check_scale);
}

/* Without ESP_BACKEND_NEEDS_PROGRESS, data must arrive even if no thread calls the backend. */
static void check_alone(check_rank *r) {
    enum { N = 4096 };
    static const struct timespec moment = {0, 1000000};
    const esp_stream cpu = {{ESP_CPU, 0}, NULL};
    volatile float *x = calloc(N, sizeof *x);
    void *req = NULL;
    esp_coll c;
    for (int i = 0; i < N; i++) x[i] = 1;
    esp__coll_init(&c, ESP_COLL_ALLREDUCE, ESP_F32, N, (void *)(uintptr_t)x, 0);
    if (r->t->table->start(r->comm, &c, cpu, &req)) check_rank_fail(r, "start failed");
    const uint64_t end = esp__now_ns() + 5000000000u;
    while (!check_failed(r) && !(x[N - 1] == (float)r->size))
        if (esp__now_ns() > end)
            check_rank_fail(r, "5 s after all ranks called start(), nothing has arrived, and nobody called test() or "
                               "progress(): set ESP_BACKEND_NEEDS_PROGRESS");
        else
            nanosleep(&moment, NULL);
    check_barrier(r);
    if (!check_failed(r) && check_rank_wait(r, req)) check_rank_fail(r, "the collective failed");
    free((void *)(uintptr_t)x);
}
static void check_alone_run(void *target) {
    const check_backend_target *t = target;
    if (t->table->caps & ESP_BACKEND_NEEDS_PROGRESS) check_skip("the backend sets ESP_BACKEND_NEEDS_PROGRESS");
    check_doing("waiting for data without a call");
    check_ranks(t, 2, check_alone);
}

/* With ESP_BACKEND_PACED, the backend must accept the parameters of an emulated link. */
static void check_paced_run(void *target) {
    const check_backend_target *t = target;
    check_backend_target paced = *t;
    char params[ESP__SPEC_MAX];
    if (!(t->table->caps & ESP_BACKEND_PACED)) check_skip("the backend does not set ESP_BACKEND_PACED");
    if (strstr(t->params, "inter=") || strstr(t->params, "link=")) check_skip("the parameters have a link already");
    snprintf(params, sizeof params, "%s%sinter=1gbit,latency=50us", t->params, *t->params ? "," : "");
    paced.params = params;
    check_doing("opening with an emulated link: %s", params);
    check_ranks(&paced, 2, check_open_only);
}

/* Runs all collectives on data in the memory of each kind of device that the backend supports. */
static void check_devices_run(void *target) {
    const check_backend_target *t = target;
    const esp__registry *g = esp__registry_of((esp_ctx *)t->host->user);
    int found = 0;
    if (!(t->table->devices & ~ESP_BIT(ESP_CPU))) check_skip("the backend moves the host's memory only");
    for (uint32_t i = 0; i < g->devices.n; i++) {
        check_backend_target on = *t;
        on.where = g->devices.at[i].device->kind;
        if (!(t->table->devices & ESP_BIT(on.where))) continue;
        found++;
        check_doing("running all collectives on memory of device '%s'", g->devices.at[i].device->name);
        CHECK_EACH(n, 1) check_ranks(&on, n, check_numbers);
        if (t->table->colls & ESP_BIT(ESP_COLL_ALLGATHER)) CHECK_EACH(n, 1) check_ranks(&on, n, check_slots);
    }
    if (!found) check_skip("no device whose memory the backend moves: name its plugin in front of the backend's");
}

static const check check_backend_list[] = {
    {"open", "comms of 1 to 4 ranks open and close", check_open_run},
    {"numbers", "all collectives, number types and reductions of the table, in place and not", check_numbers_run},
    {"large", "64 MiB in every collective", check_large_run},
    {"devices", "the same on the memory of each device of the table", check_devices_run},
    {"groups", "groups inside the job, at work at the same time", check_groups_run},
    {"slots", "payload slots arrive whole, whatever their used bytes", check_slots_run},
    {"same bits", "all ranks get the same bits", check_bits_run},
    {"requests", "several requests at once, tested in any order", check_queue_run},
    {"abort", "abort() ends a wait with ESP_E_PEER", check_abort_run},
    {"sleep", "progress() sleeps and wake() ends the sleep", check_sleep_run},
    {"traffic", "received bytes are counted", check_traffic_run},
    {"varlen", "ESP_BACKEND_VARLEN: only used bytes of slots move", check_varlen_run},
    {"scale", "ESP_BACKEND_SCALE: sums are scaled", check_scale_run},
    {"alone", "without ESP_BACKEND_NEEDS_PROGRESS data moves by itself", check_alone_run},
    {"paced", "ESP_BACKEND_PACED: opens with an emulated link", check_paced_run},
};

/* Checks a backend. Each rank is a process or, if the backend cannot connect processes, a thread. */
ESP__FN void check_backend(esp_ctx *ctx, const esp_backend *b, const char *params, check_report *r) {
    check_backend_target t = {b, &ctx->host, params, 0, 0};
    check_report trial = {0, 0, 0};
    fflush(stdout);
    if (check_job.peers) {
        int32_t machines = 0;
        for (int32_t q = 0; q < check_job.size; q++)
            if (check_job.machine[q] >= machines) machines = check_job.machine[q] + 1;
        printf("  ranks are %d processes of the launcher, on %d machine(s)\n", (int)check_job.size, (int)machines);
        check_all(r, check_backend_list, sizeof check_backend_list / sizeof *check_backend_list, &t);
        return;
    }
    const int keep = dup(1), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (keep >= 0 && null >= 0) dup2(null, 1);
    check_one(&trial, &check_backend_list[0], &t);
    fflush(stdout);
    if (keep >= 0) dup2(keep, 1), close(keep);
    if (null >= 0) close(null);
    if (trial.failed) t.threads = 1;
    printf("  ranks are %s\n", t.threads ? "threads: the backend does not connect processes" : "processes");
    check_all(r, check_backend_list, sizeof check_backend_list / sizeof *check_backend_list, &t);
}
