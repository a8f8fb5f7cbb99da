/* collectives.h checks every collective against plain arithmetic, in functions that each rank calls. If a
 * test defines RANKS_COLL, all collectives run by this function instead of ranks_coll(). */
#ifndef TEST_COLLECTIVES_H
#define TEST_COLLECTIVES_H
#include "numbers.h"
#include "ranks.h"
#ifndef RANKS_COLL
#define RANKS_COLL ranks_coll
#endif

enum { FENCE = 64 };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 }; /* sanitizers are slow, so take fewer large cases */
#else
enum { SANITIZED = 0 };
#endif

/* Allocates a result followed by bytes that must not change. */
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

/* Sets the buffers of a collective: whole ones, or the rank's own part of one, or NULL where a collective does not use
 * it. In place (`alias`), the result is in the source buffer. */
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
static void numbers_fill(const number_case *c, int32_t rank, uint8_t *p) {
    uint64_t bytes = esp_dtype_bytes(c->type);
    for (uint64_t i = 0; i < c->count * c->width; i++) {
        uint32_t x = number(c, rank, i);
        memcpy(p + i * bytes, &x, bytes);
    }
}
static int numbers(ranks_me *me, void *comm, const number_case *k) {
    int32_t n = me->size, r = me->rank;
    uint64_t e = esp_dtype_bytes(k->type), item = e * k->width, bytes = k->count * item;
    uint8_t *src = fenced(bytes), *dst = fenced(bytes), *keep = (uint8_t *)malloc(bytes + FENCE);
    int alias = k->in_place && k->op != ESP_COLL_GATHER && k->op != ESP_COLL_ALLTOALL, bad = 0;
    numbers_fill(k, r, src);
    memcpy(keep, src, bytes + FENCE);
    esp_coll c = ESP_ZERO;
    c.struct_size = sizeof c, c.op = k->op, c.dtype = k->type, c.root = k->root, c.count = k->count, c.scale = k->scale;
    c.reduce = k->reduce, c.width = k->width;
    place(&c, r, n, item, src, dst, alias);
    const uint8_t *out = (const uint8_t *)c.dst.ptr;
    esp_status s = RANKS_COLL(me, comm, &c);
    if (reduces(k->op) && !(me->b->dtypes >> k->type & 1u &&
                            me->b->reduces >> (k->reduce ? k->reduce : (esp_reduce)ESP_REDUCE_SUM) & 1u)) {
        bad = s == ESP_E_UNSUPPORTED && ranks_said[0]
                  ? 0
                  : ranks_fail(me, "dtype %u reduce %u is not in the table: status %d", k->type, k->reduce, (int)s);
        out = NULL, s = ESP_OK;
    }
    if (s != ESP_OK) bad = ranks_fail(me, "op %u: status %d: %s", k->op, (int)s, ranks_said);
    int part_out = k->op == ESP_COLL_REDUCE_SCATTER;
    uint64_t first = part_out ? part_begin(k->count, n, r) : 0;
    uint64_t last = part_out ? part_begin(k->count, n, r + 1) : k->count;
    for (uint64_t i = first * k->width; out && i < last * k->width && !bad; i++) {
        uint32_t want = expected(k, r, n, i), got = 0;
        memcpy(&got, out + (i - first * k->width) * e, e);
        if (got != want)
            bad = ranks_fail(
                me, "op %u dtype %u reduce %u count %llu width %llu root %d in_place %d: number %llu is %x, not %x",
                k->op, k->type, k->reduce, (unsigned long long)k->count, (unsigned long long)k->width, (int)k->root,
                k->in_place, (unsigned long long)i, got, want);
    }
    if (!fence_ok(src, bytes) || !fence_ok(dst, bytes)) bad = ranks_fail(me, "op %u wrote past the end", k->op);
    if (!alias && memcmp(src, keep, bytes)) bad = ranks_fail(me, "op %u changed its source", k->op);
    free(src), free(dst), free(keep);
    return bad;
}
/* Checks buffers of one size with every collective, data type and reduction, in place and not. `pick` is a random
 * state, equal on all ranks. */
static inline int all_kinds(ranks_me *me, void *comm, uint64_t count, uint64_t width, uint64_t *pick) {
    int bad = 0;
    for (uint32_t op = ESP_COLL_ALLREDUCE; op <= ESP_COLL_REDUCE; op++)
        for (esp_dtype t = ESP_F32; t <= ESP_I32; t++)
            for (esp_reduce reduce = 0; reduce <= (reduces(op) ? (esp_reduce)ESP_REDUCE_MIN : 0); reduce++)
                for (int in_place = 0; !bad && in_place < 2; in_place++) {
                    uint32_t r = mix(++*pick);
                    int scaled = reduces(op) && is_float(t) && reduce <= ESP_REDUCE_SUM && r % 2;
                    number_case k = {op,       t,
                                     reduce,   count,
                                     width,    (int32_t)(r / 2 % (uint32_t)me->size),
                                     in_place, scaled ? 2.0f : (float)(r / 64 % 2)};
                    if (count * width > 10000 && r / 128 % (SANITIZED ? 64 : 16)) continue;
                    if (op == ESP_COLL_ALLTOALL) k.count = count / (uint64_t)me->size * (uint64_t)me->size;
                    bad = numbers(me, comm, &k);
                }
    return bad;
}
static inline void all_numbers(ranks_me *me) {
    static const uint64_t shapes[][2] = {{0, 1},   {1, 1},  {7, 1},     {1001, 1},   {1, 3},    {5, 33},
                                         {101, 7}, {3, 99}, {65537, 1}, {300001, 1}, {7, 9973}, {2, 60001}};
    uint64_t pick = (uint64_t)me->size;
    void *comm = ranks_open(me, 0, NULL);
    int bad = comm == NULL;
    for (size_t k = 0; !bad && k < sizeof shapes / sizeof *shapes; k++)
        bad = all_kinds(me, comm, shapes[k][0], shapes[k][1], &pick);
    for (unsigned k = 0; !bad && k < test_repeats(3); k++) {
        uint64_t width = 1 + mix(++pick) % 70, count = mix(++pick) % (5000 / width);
        bad = all_kinds(me, comm, count, width, &pick);
    }
    if (comm) me->b->close(comm);
}

/* ---- payloads of different lengths: all bytes up to the end of each payload must arrive ---- */
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
    esp_traffic before = {.struct_size = sizeof before}, after = before;
    me->b->traffic(comm, &before);
    const uint8_t *out = (const uint8_t *)c.dst.ptr;
    esp_status s = RANKS_COLL(me, comm, &c);
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
    if (!bad && me->b->caps & ESP_BACKEND_VARLEN &&
        (op == ESP_COLL_BROADCAST && r == root ? moved != 0 : moved != came))
        bad = ranks_fail(me, "op %u slots of %llu: %llu bytes were used, %llu counted", op,
                         (unsigned long long)slot_bytes, (unsigned long long)came, (unsigned long long)moved);
    if (!fence_ok(src, bytes) || !fence_ok(dst, bytes)) bad = ranks_fail(me, "slots, op %u wrote past the end", op);
    free(src), free(dst), free(want);
    return bad;
}
static inline void all_slots(ranks_me *me) {
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

/* Runs fewer cases than all_numbers() and all_slots(), for tests that repeat them in several setups. */
static inline void few(ranks_me *me) {
    static const uint64_t shapes[][2] = {{1, 1}, {7, 1}, {5, 3}, {9001, 1}};
    uint64_t pick = (uint64_t)me->size;
    void *comm = ranks_open(me, 0, NULL);
    int bad = comm == NULL;
    for (int k = 0; !bad && k < 4; k++) bad = all_kinds(me, comm, shapes[k][0], shapes[k][1], &pick);
    for (uint32_t op = ESP_COLL_ALLGATHER; !bad && op <= ESP_COLL_ALLTOALL; op++)
        bad = slots(me, comm, op, 96, 7, 0, 0);
    if (comm) me->b->close(comm);
}
#endif
