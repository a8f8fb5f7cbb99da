/* test_collectives.c: every collective, over both backends, against sums made by hand. Knows the backend table only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ranks.h"

enum { GUARD = 64 };

/* What a test asks of every rank. */
typedef struct job {
    esp_dtype dtype;
    uint64_t count;
    int in_place;
    uint64_t slot_bytes; /* copies of payload slots instead of numbers */
} job;

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

static uint64_t part_begin(uint64_t count, int32_t n, int32_t p) {
    uint64_t c = (count + (uint64_t)n - 1) / (uint64_t)n, b = (uint64_t)p * c;
    return b < count ? b : count;
}
static int sums(uint32_t op) {
    return op == ESP_COLL_ALLREDUCE || op == ESP_COLL_REDUCE_SCATTER || op == ESP_COLL_REDUCE;
}

/* Bytes beyond the end of a result must stay. */
static uint8_t *guarded(uint64_t bytes) {
    uint8_t *p = (uint8_t *)malloc(bytes + GUARD);
    memset(p, 0x5a, bytes + GUARD);
    return p;
}
static int guard_ok(const uint8_t *p, uint64_t bytes) {
    for (int i = 0; i < GUARD; i++)
        if (p[bytes + (uint64_t)i] != 0x5a) return 0;
    return 1;
}

/* One collective on numbers. x: this rank's input over the whole buffer; the result of element i is known. */
static int numbers(ranks_me *me, void *comm, uint32_t op, const job *j, int32_t root, float scale) {
    int32_t n = me->size, r = me->rank;
    uint64_t count = j->count, e = esize(j->dtype), bytes = count * e;
    if (op == ESP_COLL_ALLTOALL) count = count / (uint64_t)n * (uint64_t)n, bytes = count * e;
    uint64_t b = part_begin(count, n, r), own = part_begin(count, n, r + 1) - b;
    uint8_t *src = guarded(bytes), *dst = guarded(bytes), *keep;
    int alias = j->in_place && op != ESP_COLL_GATHER && op != ESP_COLL_ALLTOALL, bad = 0;
    int part_in = op == ESP_COLL_ALLGATHER || op == ESP_COLL_GATHER;
    for (uint64_t i = 0; i < count; i++) store(j->dtype, src, i, value(r, i, op));
    keep = (uint8_t *)malloc(bytes + GUARD);
    memcpy(keep, src, bytes + GUARD);
    esp_coll c = ESP_ZERO;
    c.struct_size = sizeof c, c.op = op, c.dtype = j->dtype, c.root = root, c.count = count, c.scale = scale;
    c.src.ptr = src + (part_in ? b * e : 0);
    c.dst.ptr = !alias ? dst : src + (op == ESP_COLL_REDUCE_SCATTER ? b * e : 0);
    if (op == ESP_COLL_BROADCAST && r == root) c.dst.ptr = alias ? src : NULL;
    if ((op == ESP_COLL_GATHER || op == ESP_COLL_REDUCE) && r != root) c.dst.ptr = NULL;
    if (op == ESP_COLL_BROADCAST && r != root && !alias) c.src.ptr = NULL;
    const uint8_t *out = (const uint8_t *)c.dst.ptr;
    esp_status s = ranks_coll(me, comm, &c);
    if (s != ESP_OK)
        return ranks_fail(me, "op %u count %llu: status %d: %s", op, (unsigned long long)count, (int)s, ranks_said);
    if (scale == 0) scale = 1;
    uint64_t first = op == ESP_COLL_REDUCE_SCATTER ? b : 0, last = op == ESP_COLL_REDUCE_SCATTER ? b + own : count;
    for (uint64_t i = first; out && i < last && !bad; i++) {
        int v = 0;
        uint64_t c1 = (count + (uint64_t)n - 1) / (uint64_t)n;
        if (sums(op)) {
            for (int32_t q = 0; q < n; q++) v += value(q, i, op);
            v = (int)((float)v * scale);
        } else if (op == ESP_COLL_BROADCAST)
            v = value(root, i, op);
        else if (op == ESP_COLL_ALLTOALL)
            v = value((int32_t)(i / c1), b + i % c1, op);
        else
            v = value((int32_t)(i / c1), i, op);
        if (!same(j->dtype, out, i - first, v))
            bad = 1, ranks_fail(me, "op %u dtype %u count %llu root %d in_place %d: element %llu is wrong", op,
                                j->dtype, (unsigned long long)count, (int)root, j->in_place, (unsigned long long)i);
    }
    if (!guard_ok(src, bytes) || !guard_ok(dst, bytes)) bad = ranks_fail(me, "op %u wrote past the end", op);
    if (!alias && memcmp(src, keep, bytes)) bad = ranks_fail(me, "op %u changed its source", op);
    free(src), free(dst), free(keep);
    return bad ? -1 : 0;
}

static void all_numbers(ranks_me *me) {
    static const uint64_t counts[] = {0, 1, 7, 1000, 65537, 300001};
    void *comm = ranks_open(me, 0, NULL);
    if (!comm) return;
    job j = *(const job *)me->arg;
    for (uint32_t op = ESP_COLL_ALLREDUCE; op <= ESP_COLL_REDUCE; op++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            j.count = counts[k];
            for (int32_t root = 0; root<me->size; root += me->size> 1 ? me->size - 1 : 1)
                if (numbers(me, comm, op, &j, root, k % 2 ? 2.0f : 0.0f)) goto out;
        }
out:
    me->b->close(comm);
}

static const esp_backend *backend(const char *name) {
    const esp_plugin *p =
        !strcmp(name, "loop") ? espresso_plugin_v1_loop(&ranks_host) : espresso_plugin_v1_shm(&ranks_host);
    return p->backends[0];
}
static void expect_ok(const char *name, const char *params, int32_t n, int32_t per_machine, ranks_fn fn, void *arg) {
    const char *why = ranks_run(backend(name), params, n, per_machine, fn, arg, -1);
    if (why[0]) fail_msg("%s", why);
}
static void test_numbers(const char *name, const char *params, int32_t per_machine) {
    for (int32_t n = per_machine ? 2 : 1; n <= 5; n++)
        for (esp_dtype t = ESP_F32; t <= ESP_BF16; t++)
            for (int in_place = 0; in_place < 2; in_place++) {
                job j = {t, 0, in_place, 0};
                expect_ok(name, params, n, per_machine, all_numbers, &j);
            }
}
static void loop_numbers(void **s) { (void)s, test_numbers("loop", "", 0); }
static void shm_numbers(void **s) { (void)s, test_numbers("shm", "", 0); }
static void shm_numbers_by_pull(void **s) { (void)s, test_numbers("shm", "cma=1", 0); }
/* so fast a link that it takes no time, but with all that an emulated link does */
static void loop_numbers_linked(void **s) { (void)s, test_numbers("loop", "inter=100gbit,latency=1us", 1); }
static void loop_numbers_ring(void **s) { (void)s, test_numbers("loop", "inter=100gbit", 2); }
static void shm_numbers_ring(void **s) { (void)s, test_numbers("shm", "inter=100gbit", 2); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_numbers),          cmocka_unit_test(shm_numbers),
        cmocka_unit_test(shm_numbers_by_pull), cmocka_unit_test(loop_numbers_linked),
        cmocka_unit_test(loop_numbers_ring),     cmocka_unit_test(shm_numbers_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
