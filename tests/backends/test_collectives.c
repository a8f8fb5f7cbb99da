/* test_collectives.c: every collective, over both backends and every path of the data, against plain sums. Knows the
 * backend table only. Also runs under the thread and address sanitizers, with fewer ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

enum { FENCE = 64 };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 }; /* these take long: fewer of the large cases */
#else
enum { SANITIZED = 0 };
#endif

static uint32_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(x >> 32);
}
/* A small integer, so that sums are exact in every dtype: rank's element i of collective `op`. */
static int value(int32_t rank, uint64_t i, uint32_t op) {
    return (int)(mix(i * 131 + (uint64_t)rank * 7 + op) % 15) - 7;
}

static uint16_t f16_of(int v) { /* small integers only */
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    return v ? (uint16_t)(((u >> 16) & 0x8000u) | ((((u >> 23) & 255u) - 112u) << 10) | ((u >> 13) & 0x3ffu)) : 0;
}
static void store(esp_dtype t, void *p, uint64_t i, int v) {
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    if (t == ESP_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = t == ESP_F16 ? f16_of(v) : (uint16_t)(u >> 16);
}
static uint64_t esize(esp_dtype t) { return t == ESP_F32 ? 4 : 2; }
static int same(esp_dtype t, const void *p, uint64_t i, int v) {
    uint8_t want[4] = {0};
    store(t, want, 0, v);
    return !memcmp((const uint8_t *)p + i * esize(t), want, esize(t));
}

static uint64_t part_size(uint64_t count, int32_t n) { return (count + (uint64_t)n - 1) / (uint64_t)n; }
static uint64_t part_begin(uint64_t count, int32_t n, int32_t p) {
    uint64_t b = (uint64_t)p * part_size(count, n);
    return b < count ? b : count;
}
static int sums(uint32_t op) {
    return op == ESP_COLL_ALLREDUCE || op == ESP_COLL_REDUCE_SCATTER || op == ESP_COLL_REDUCE;
}

static int rooted(uint32_t op) { return op == ESP_COLL_BROADCAST || op == ESP_COLL_GATHER || op == ESP_COLL_REDUCE; }

/* Bytes beyond the end of a result must stay. */
static uint8_t *fenced(uint64_t bytes) {
    uint8_t *p = (uint8_t *)malloc(bytes + FENCE);
    memset(p, 0x5a, bytes + FENCE);
    return p;
}
static int fence_ok(const uint8_t *p, uint64_t bytes) {
    for (int i = 0; i < FENCE; i++)
        if (p[bytes + (uint64_t)i] != 0x5a) return 0;
    return 1;
}

/* Where src and dst lie, by the table in espresso.h. */
static void place(esp_coll *c, int32_t rank, int32_t n, uint64_t unit, uint8_t *src, uint8_t *dst, int alias) {
    uint64_t own = part_begin(c->count, n, rank) * unit;
    int root = rank == c->root;
    int part_in = c->op == ESP_COLL_ALLGATHER || c->op == ESP_COLL_GATHER;
    c->src.ptr = src + (part_in ? own : 0);
    c->dst.ptr = !alias ? dst : src + (c->op == ESP_COLL_REDUCE_SCATTER ? own : 0);
    if (c->op == ESP_COLL_BROADCAST && root) c->dst.ptr = alias ? src : NULL;
    if ((c->op == ESP_COLL_GATHER || c->op == ESP_COLL_REDUCE) && !root) c->dst.ptr = NULL;
    if (c->op == ESP_COLL_BROADCAST && !root && !alias) c->src.ptr = NULL;
}
/* What element `i` of the result is, over the whole buffer. */
static int expected(uint32_t op, int32_t rank, int32_t n, int32_t root, uint64_t count, uint64_t i, float scale) {
    uint64_t c = part_size(count, n);
    int v = 0;
    if (op == ESP_COLL_BROADCAST) return value(root, i, op);
    if (op == ESP_COLL_ALLTOALL) return value((int32_t)(i / c), (uint64_t)rank * c + i % c, op);
    if (!sums(op)) return value((int32_t)(i / c), i, op);
    for (int32_t q = 0; q < n; q++) v += value(q, i, op);
    return (int)((float)v * scale);
}

static int numbers(ranks_me *me, void *comm, uint32_t op, esp_dtype type, uint64_t count, int in_place, int32_t root,
                   float scale) {
    int32_t n = me->size, r = me->rank;
    uint64_t e = esize(type), bytes;
    if (op == ESP_COLL_ALLTOALL) count = count / (uint64_t)n * (uint64_t)n;
    bytes = count * e;
    uint8_t *src = fenced(bytes), *dst = fenced(bytes), *keep = (uint8_t *)malloc(bytes + FENCE);
    int alias = in_place && op != ESP_COLL_GATHER && op != ESP_COLL_ALLTOALL, bad = 0;
    for (uint64_t i = 0; i < count; i++) store(type, src, i, value(r, i, op));
    memcpy(keep, src, bytes + FENCE);
    esp_coll c = ESP_ZERO;
    c.struct_size = sizeof c, c.op = op, c.dtype = type, c.root = root, c.count = count, c.scale = scale;
    place(&c, r, n, e, src, dst, alias);
    const uint8_t *out = (const uint8_t *)c.dst.ptr;
    esp_status s = ranks_coll(me, comm, &c);
    if (s != ESP_OK)
        bad = ranks_fail(me, "op %u count %llu: status %d: %s", op, (unsigned long long)count, (int)s, ranks_said);
    int part_out = op == ESP_COLL_REDUCE_SCATTER;
    uint64_t first = part_out ? part_begin(count, n, r) : 0, last = part_out ? part_begin(count, n, r + 1) : count;
    for (uint64_t i = first; out && i < last && !bad; i++)
        if (!same(type, out, i - first, expected(op, r, n, root, count, i, scale != 0 ? scale : 1)))
            bad = ranks_fail(me, "op %u dtype %u count %llu root %d in_place %d: element %llu is wrong", op, type,
                             (unsigned long long)count, (int)root, in_place, (unsigned long long)i);
    if (!fence_ok(src, bytes) || !fence_ok(dst, bytes)) bad = ranks_fail(me, "op %u wrote past the end", op);
    if (!alias && memcmp(src, keep, bytes)) bad = ranks_fail(me, "op %u changed its source", op);
    free(src), free(dst), free(keep);
    return bad;
}
static void all_numbers(ranks_me *me) {
    static const uint64_t counts[] = {0, 1, 7, 1000, 65537, 300001};
    void *comm = ranks_open(me, 0, NULL);
    int bad = comm == NULL;
    for (uint32_t op = ESP_COLL_ALLREDUCE; op <= ESP_COLL_REDUCE; op++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            for (esp_dtype t = ESP_F32; t <= ESP_BF16; t++)
                for (int in_place = 0; in_place < 2; in_place++) {
                    if (k == 5 && (int)(op + t) % 2 != in_place) continue; /* the largest: half of them */
                    if (k == 5 && SANITIZED && t != ESP_F32) continue;
                    int32_t step = me->size > 1 ? me->size - 1 : 1, roots = rooted(op) ? me->size : 1;
                    for (int32_t root = 0; !bad && root < roots; root += step)
                        bad = numbers(me, comm, op, t, counts[k], in_place, root, k % 2 ? 2.0f : 0.0f);
                }
    if (comm) me->b->close(comm);
}

/* ---- payload slots: only the used bytes of each must come ---- */
static uint64_t body_of(int32_t rank, uint64_t slot, uint64_t slot_bytes) {
    uint64_t most = slot_bytes - ESP_PAYLOAD_HEADER, pick = mix(slot * 17 + (uint64_t)rank);
    return pick % 5 == 0 ? 0 : pick % 5 == 1 ? most : pick % (most + 1);
}
static void slot_fill(uint8_t *p, int32_t rank, uint64_t slot, uint64_t slot_bytes) {
    esp_payload_header h = esp_payload_header_of(7, 1, 0, slot, body_of(rank, slot, slot_bytes), (uint64_t)rank);
    memset(p, 0xee, slot_bytes);
    memcpy(p, &h, sizeof h);
    for (uint64_t i = 0; i < h.body_bytes; i++) p[ESP_PAYLOAD_HEADER + i] = (uint8_t)(mix(slot + i) + (uint32_t)rank);
}
static int slots(ranks_me *me, void *comm, uint32_t op, uint64_t slot_bytes, uint64_t count, int32_t root,
                 int in_place) {
    int32_t n = me->size, r = me->rank;
    if (op == ESP_COLL_ALLTOALL) count = count / (uint64_t)n * (uint64_t)n;
    uint64_t bytes = count * slot_bytes, c1 = part_size(count, n), came = 0;
    uint8_t *src = fenced(bytes), *dst = fenced(bytes), *want = (uint8_t *)malloc(slot_bytes);
    int alias = in_place && op != ESP_COLL_GATHER && op != ESP_COLL_ALLTOALL, bad = 0;
    for (uint64_t i = 0; i < count; i++) slot_fill(src + i * slot_bytes, r, i, slot_bytes);
    esp_coll c = ESP_ZERO;
    c.struct_size = sizeof c, c.op = op, c.root = root, c.count = count, c.slot_bytes = slot_bytes;
    place(&c, r, n, slot_bytes, src, dst, alias);
    esp_traffic before = {sizeof before, 0, 0, 0}, after = before;
    me->b->traffic(comm, &before);
    const uint8_t *out = (const uint8_t *)c.dst.ptr;
    esp_status s = ranks_coll(me, comm, &c);
    me->b->traffic(comm, &after);
    if (s != ESP_OK) bad = ranks_fail(me, "slots, op %u: status %d: %s", op, (int)s, ranks_said);
    for (uint64_t i = 0; out && i < count && !bad; i++) {
        int32_t from = op == ESP_COLL_BROADCAST ? root : (int32_t)(i / c1);
        uint64_t slot = op == ESP_COLL_ALLTOALL ? (uint64_t)r * c1 + i % c1 : i;
        slot_fill(want, from, slot, slot_bytes);
        uint64_t used = ESP_PAYLOAD_HEADER + body_of(from, slot, slot_bytes);
        if (from != r) came += used;
        if (memcmp(out + i * slot_bytes, want, used))
            bad = ranks_fail(me, "op %u slot %llu of %llu x %llu bytes is wrong", op, (unsigned long long)i,
                             (unsigned long long)count, (unsigned long long)slot_bytes);
    }
    uint64_t moved = after.intra_bytes + after.inter_bytes - before.intra_bytes - before.inter_bytes;
    if (!bad && (op == ESP_COLL_BROADCAST && r == root ? moved != 0 : moved != came))
        bad = ranks_fail(me, "op %u slots of %llu: %llu bytes were used, %llu counted", op,
                         (unsigned long long)slot_bytes, (unsigned long long)came, (unsigned long long)moved);
    if (!fence_ok(src, bytes) || !fence_ok(dst, bytes)) bad = ranks_fail(me, "slots, op %u wrote past the end", op);
    free(src), free(dst), free(want);
    return bad;
}
static void all_slots(ranks_me *me) {
    static const uint64_t sizes[] = {64, 96, 4128, 300032, 700000};
    static const uint32_t ops[] = {ESP_COLL_ALLGATHER, ESP_COLL_ALLTOALL, ESP_COLL_BROADCAST, ESP_COLL_GATHER};
    void *comm = ranks_open(me, 0, NULL);
    int bad = comm == NULL;
    for (int o = 0; o < 4; o++)
        for (int k = 0; k < 5; k++)
            for (uint64_t count = 0; count < 13; count += SANITIZED ? 8 : 4)
                for (int in_place = 0; in_place < 2; in_place++)
                    if (!bad)
                        bad = slots(me, comm, ops[o], sizes[k], k > 2 && count > 4 ? 5 : count, me->size - 1, in_place);
    if (comm) me->b->close(comm);
}

/* ---- the two functions above over every way that data takes ---- */
static void expect_ok(const char *name, const char *params, int32_t n, int32_t per_machine, ranks_fn fn) {
    const char *why = ranks_run(ranks_backend(name), params, n, per_machine, fn, NULL, -1);
    if (why[0]) fail_msg("%s", why);
}
static void run_both(const char *name, const char *params, int32_t per_machine) {
    static const int32_t sizes[] = {3, 5, 1, 2, 4}; /* on several machines, and when it is slow: the first ones */
    for (int k = 0; k < (SANITIZED ? 1 : per_machine ? 2 : 5); k++) {
        expect_ok(name, params, sizes[k], per_machine, all_numbers);
        expect_ok(name, params, sizes[k], per_machine, all_slots);
    }
}
static void loop_direct(void **s) { (void)s, run_both("loop", "", 0); }
static void shm_by_window(void **s) { (void)s, run_both("shm", "", 0); }
static void shm_by_pull(void **s) { (void)s, run_both("shm", "cma=1", 0); }
/* so fast a link that it takes no time, but with all that an emulated link does */
static void loop_linked(void **s) { (void)s, run_both("loop", "inter=100gbit,latency=1us", 1); }
static void loop_ring(void **s) { (void)s, run_both("loop", "inter=100gbit", 2); }
static void shm_ring(void **s) { (void)s, run_both("shm", "inter=100gbit", 2); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_direct), cmocka_unit_test(shm_by_window), cmocka_unit_test(shm_by_pull),
        cmocka_unit_test(loop_linked), cmocka_unit_test(loop_ring),     cmocka_unit_test(shm_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
