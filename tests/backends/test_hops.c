/* test_hops.c: allreduces that compress at every hop, in shm and loop, with codecs made up here: one that keeps each number, and
 * one that keeps multiples of 1/8 only. Every element must pass encode or forward once on each rank, the sum must be right, and all
 * ranks must get the same bits: for sizes of every kind, between other collectives, and over an emulated link. */
#include "tests/backends/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* ---- the codec of one rank ---- */
typedef struct hopper {
    float *x;        /* the buffer        */
    uint8_t *passed; /* [count]           */
    uint64_t count;
    int rounds, faults; /* rounds: to multiples of 1/8 */
    int fails_at;       /* the call that fails; 0: none */
    int calls;
    uint64_t most; /* elements of a call; 0: 65536 */
    int slow;      /* decodes late */
} hopper;

static uint64_t hopper_bound(void *user, uint64_t count) {
    (void)user;
    return ESP_PAYLOAD_HEADER + (4 * count + 31) / 32 * 32;
}
static float hopper_kept(const hopper *h, float v) { return h->rounds ? floorf(v * 8) / 8 : v; }
static esp_status hopper_out(hopper *h, uint64_t begin, uint64_t count, const float *add, esp_payload *out) {
    esp_payload_header head = esp_payload_header_of(7, 1, 0, count, 4 * count, begin);
    if (h->fails_at && ++h->calls == h->fails_at) return ESP_E_CORRUPT;
    if (!count || begin + count > h->count || (h->most && count > h->most)) return h->faults++, ESP_E_ARG;
    if (esp_payload_begin(out, &head)) return h->faults++, ESP_E_TOO_SMALL;
    float *to = esp_payload_body(out);
    for (uint64_t i = 0; i < count; i++) {
        h->faults += h->passed[begin + i]++ != 0;
        to[i] = hopper_kept(h, h->x[begin + i] + (add ? add[i] : 0.0f));
    }
    return ESP_OK;
}
static const float *hopper_in(hopper *h, uint64_t begin, uint64_t count, const esp_payload *in) {
    esp_payload_header head;
    if (esp_payload_read(in, 7, 1, count, &head) || head.aux != begin || head.body_bytes != 4 * count ||
        in->data.bytes != ESP_PAYLOAD_HEADER + 4 * count)
        h->faults++;
    return esp_payload_body(in);
}
static esp_status hopper_encode(void *user, uint64_t begin, uint64_t count, esp_payload *out) {
    return hopper_out(user, begin, count, NULL, out);
}
static esp_status hopper_forward(void *user, uint64_t begin, uint64_t count, const esp_payload *in, esp_payload *out) {
    return hopper_out(user, begin, count, hopper_in(user, begin, count, in), out);
}
static esp_status hopper_decode(void *user, uint64_t begin, uint64_t count, uint32_t mode, const esp_payload *in) {
    hopper *h = user;
    if (h->slow) usleep(1000);
    const float *from = hopper_in(h, begin, count, in);
    for (uint64_t i = 0; i < count; i++) {
        h->faults += mode == ESP_OUT_SUM ? h->passed[begin + i] != 0 : h->passed[begin + i] != 1;
        h->x[begin + i] = from[i] + (mode == ESP_OUT_SUM ? h->x[begin + i] : 0.0f);
    }
    return ESP_OK;
}
static esp_hops hopper_hops(hopper *h, uint32_t route) {
    const uint64_t most = h->most ? h->most : 65536;
    const esp_hops x = {sizeof x, route, h, most, hopper_bound, hopper_encode, hopper_forward, hopper_decode};
    return x;
}

/* ---- one rank's run ---- */
typedef struct hop_case {
    uint32_t route;
    int rounds;
    const uint64_t *counts; /* ends with UINT64_MAX */
    uint64_t most;
} hop_case;

static float brought(const hop_case *c, int32_t rank, uint64_t i) {
    const float v = (float)((int)((i * 7 + (uint64_t)rank * 11) % 29) - 14);
    return c->rounds ? v / 32 : v;
}

static esp_coll summing(float *x, uint64_t count, const esp_hops *hops) {
    esp_coll c;
    memset(&c, 0, sizeof c);
    c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = count;
    c.src.ptr = c.dst.ptr = x, c.src.bytes = c.dst.bytes = 4 * count, c.hops = hops;
    return c;
}

/* All ranks have what rank 0 has. */
static int same_bits(ranks_me *me, void *comm, const float *x, uint64_t count) {
    float *first = malloc(4 * count + 4);
    memcpy(first, x, 4 * count);
    esp_coll c = summing(first, count, NULL);
    c.op = ESP_COLL_BROADCAST;
    int bad = ranks_coll(me, comm, &c) || memcmp(first, x, 4 * count) != 0;
    free(first);
    return !bad;
}

static void hop_once(ranks_me *me, void *comm, const hop_case *c, uint64_t count) {
    hopper h = {malloc(4 * count + 4), calloc(count + 1, 1), count, c->rounds, 0, 0, 0, c->most, 0};
    const esp_hops hops = hopper_hops(&h, c->route);
    double lost = 0;
    for (uint64_t i = 0; i < count; i++) h.x[i] = brought(c, me->rank, i);
    const esp_coll coll = summing(h.x, count, &hops);
    const esp_status s = ranks_coll(me, comm, &coll);
    if (s) ranks_fail(me, "%llu elements: status %d: %s", (unsigned long long)count, (int)s, ranks_said);
    for (uint64_t i = 0; i < count && !s && me->size > 1; i++) {
        double want = 0;
        for (int32_t r = 0; r < me->size; r++) want += (double)brought(c, r, i);
        h.faults += h.passed[i] != 1;
        lost = fmax(lost, fabs(want - (double)h.x[i]));
        if (!c->rounds && lost > 0) {
            ranks_fail(me, "element %llu of %llu is %g, not %g", (unsigned long long)i, (unsigned long long)count,
                       (double)h.x[i], want);
            break;
        }
    }
    const double hops_most = c->route == ESP_HOPS_RING ? me->size : log2(me->size) + 1;
    /* each hop rounds down by less than 1/8; the rounds of the halves of a tree add up */
    if (c->rounds && lost >= (c->route == ESP_HOPS_RING ? hops_most : (double)me->size) / 8)
        ranks_fail(me, "%llu elements: lost %g", (unsigned long long)count, lost);
    if (h.faults) ranks_fail(me, "%llu elements: %d faults", (unsigned long long)count, h.faults);
    if (!s && !same_bits(me, comm, h.x, count))
        ranks_fail(me, "%llu elements: differs from rank 0", (unsigned long long)count);
    free(h.x);
    free(h.passed);
}

static void hop_rank(ranks_me *me) {
    const hop_case *c = me->arg;
    void *comm = ranks_open(me, 0, NULL);
    for (const uint64_t *n = c->counts; comm && *n != UINT64_MAX; n++) hop_once(me, comm, c, *n);
    if (comm) me->b->close(comm);
}

static const uint64_t many[] = {0, 1, 2, 3, 5, 7, 8, 9, 64, 1000, 65537, 300001, 1, 2000003, UINT64_MAX};
static const uint64_t few[] = {0, 1, 3, 40000, 150001, UINT64_MAX};

static void every_size(void **state) {
    (void)state;
    for (int b = 0; b < 2; b++)
        for (int32_t n = 1; n <= 8; n++)
            for (uint32_t route = ESP_HOPS_RING; route <= ESP_HOPS_HALVING; route++)
                for (int rounds = 0; rounds < 2; rounds++) {
                    hop_case c = {route, rounds, n == 4 || n == 3 ? many : few, 0};
                    if (route == ESP_HOPS_HALVING && n & (n - 1)) continue;
                    assert_string_equal(ranks_run(ranks_backend(b ? "shm" : "loop"), "", n, 0, hop_rank, &c, -1), "");
                }
}

static void over_a_link(void **state) {
    (void)state;
    for (int b = 0; b < 2; b++)
        for (uint32_t route = ESP_HOPS_RING; route <= ESP_HOPS_HALVING; route++) {
            hop_case c = {route, 0, few, 0};
            assert_string_equal(
                ranks_run(ranks_backend(b ? "shm" : "loop"), "inter=10gbit,latency=20us", 4, 2, hop_rank, &c, -1), "");
        }
}

/* The host takes few elements in a call. */
static void short_calls(void **state) {
    (void)state;
    for (uint32_t route = ESP_HOPS_RING; route <= ESP_HOPS_HALVING; route++) {
        hop_case c = {route, 0, few, 1000};
        assert_string_equal(ranks_run(ranks_backend("loop"), "", 4, 0, hop_rank, &c, -1), "");
    }
}

/* What follows must not overwrite what a slow rank still decodes. */
static void slow_rank(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL);
    hop_case c = {0, 0, NULL, 0};
    for (int k = 0; comm && k < 24; k++) {
        enum { N = 8, OVER = 1000 };
        float x[N], y[OVER] = {0};
        uint8_t passed[N] = {0};
        hopper h = {x, passed, N, 0, 0, 0, 0, 0, me->rank == me->size - 1};
        const esp_hops hops = hopper_hops(&h, k % 2 ? ESP_HOPS_RING : ESP_HOPS_HALVING);
        const esp_coll hopping = summing(x, N, &hops), plain = summing(y, OVER, NULL);
        for (uint64_t i = 0; i < N; i++) x[i] = brought(&c, me->rank, i);
        esp_status s = ranks_coll(me, comm, &hopping);
        for (int more = 0; more <= k % 5 && !s; more++) s = ranks_coll(me, comm, &plain);
        float want = 0;
        for (int32_t r = 0; r < me->size; r++) want += brought(&c, r, N - 1);
        if (s || h.faults || x[N - 1] != want)
            ranks_fail(me, "run %d: status %d, %d faults, %g", k, (int)s, h.faults, (double)x[N - 1]);
    }
    if (comm) me->b->close(comm);
}
static void slow_ranks(void **state) {
    (void)state;
    assert_string_equal(ranks_run(ranks_backend("loop"), "", 2, 0, slow_rank, NULL, -1), "");
    assert_string_equal(ranks_run(ranks_backend("shm"), "", 4, 0, slow_rank, NULL, -1), "");
}

/* Hops take the whole window: collectives before and after them must not meet them there. */
static void between_rank(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL), *req[3];
    enum { N = 50000 };
    static const uint32_t routes[] = {ESP_HOPS_RING, ESP_HOPS_HALVING, ESP_HOPS_RING};
    hop_case c = {ESP_HOPS_RING, 0, NULL, 0};
    float *x = malloc(4 * N), *y = malloc(4 * N * (size_t)me->size);
    hopper h = {malloc(4 * N), malloc(N), N, 0, 0, 0, 0, 0, 0};
    esp_stream none = ESP_ZERO;
    for (int k = 0; comm && k < 30; k++) {
        const esp_hops hops = hopper_hops(&h, routes[k % 3]);
        memset(h.passed, 0, N);
        for (uint64_t i = 0; i < N; i++) x[i] = h.x[i] = brought(&c, me->rank, i + (uint64_t)k);
        const esp_coll plain = summing(x, N - (uint64_t)(k % 5) * 9000, NULL), hopping = summing(h.x, N, &hops);
        esp_coll all = summing(y, N * (uint64_t)me->size, NULL);
        float *mine = malloc(4 * N);
        memcpy(mine, x, 4 * N);
        all.op = ESP_COLL_ALLGATHER, all.src.ptr = mine;
        esp_status s = me->b->start(comm, &plain, none, &req[0]);
        if (!s) s = me->b->start(comm, &hopping, none, &req[1]);
        if (!s) s = me->b->start(comm, &all, none, &req[2]);
        for (int r = 0; r < 3 && !s; r++) s = ranks_wait(me, comm, req[r]);
        if (s) ranks_fail(me, "status %d: %s", (int)s, ranks_said);
        for (uint64_t i = 0; i < N && !s; i++) {
            float want = 0;
            for (int32_t r = 0; r < me->size; r++) want += brought(&c, r, i + (uint64_t)k);
            int bad = h.x[i] != want || (i < plain.count && x[i] != want);
            for (int32_t r = 0; r < me->size; r++) bad |= y[(uint64_t)r * N + i] != brought(&c, r, i + (uint64_t)k);
            if (bad) s = ranks_fail(me, "collective %d: element %llu is wrong", k, (unsigned long long)i);
        }
        free(mine);
    }
    if (comm) me->b->close(comm);
    free(x), free(y), free(h.x), free(h.passed);
}
static void between_others(void **state) {
    (void)state;
    assert_string_equal(ranks_run(ranks_backend("loop"), "", 4, 0, between_rank, NULL, -1), "");
    assert_string_equal(ranks_run(ranks_backend("shm"), "", 4, 0, between_rank, NULL, -1), "");
    assert_string_equal(ranks_run(ranks_backend("shm"), "inter=10gbit", 4, 2, between_rank, NULL, -1), "");
}

/* A codec's error ends the collective on its rank; the others learn of it. */
static void error_rank(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL);
    hopper h = {calloc(1000, 4), calloc(1000, 1), 1000, 0, 0, me->rank == 1 ? 2 : 0, 0, 0, 0};
    const esp_hops hops = hopper_hops(&h, ESP_HOPS_RING);
    const esp_coll c = summing(h.x, 1000, &hops);
    const esp_status s = comm ? ranks_coll(me, comm, &c) : ESP_E_ARG;
    if (s != (me->rank == 1 ? ESP_E_CORRUPT : ESP_E_PEER)) ranks_fail(me, "status %d", (int)s);
    if (comm) me->b->close(comm);
    free(h.x), free(h.passed);
}
static void errors_end_it(void **state) {
    (void)state;
    assert_string_equal(ranks_run(ranks_backend("loop"), "", 3, 0, error_rank, NULL, -1), "");
    assert_string_equal(ranks_run(ranks_backend("shm"), "", 3, 0, error_rank, NULL, -1), "");
}

static uint64_t huge_bound(void *user, uint64_t count) { return (void)user, count + (1u << 30); }
#define REFUSED(change, part)                                                                                          \
    do {                                                                                                               \
        esp_hops hops = hopper_hops(&h, ESP_HOPS_RING);                                                                \
        esp_coll c = summing(h.x, 8, &hops);                                                                           \
        change;                                                                                                        \
        ranks_said[0] = 0;                                                                                             \
        if (me->b->start(comm, &c, none, &req) != ESP_E_ARG || !strstr(ranks_said, part))                              \
            ranks_fail(me, "'%s' does not say '%s'", ranks_said, part);                                                \
    } while (0)
static void refused_rank(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL), *req = NULL;
    float x[8] = {0}, y[8];
    hopper h = {x, NULL, 8, 0, 0, 0, 0, 0, 0};
    esp_stream none = ESP_ZERO;
    if (!comm) return;
    REFUSED(c.op = ESP_COLL_REDUCE, "an allreduce that sums f32");
    REFUSED(c.dtype = ESP_F16, "an allreduce that sums f32");
    REFUSED(c.reduce = ESP_REDUCE_MAX, "an allreduce that sums f32");
    REFUSED(c.width = 2, "an allreduce that sums f32");
    REFUSED(c.scale = 0.5f, "scale: leave it 0");
    REFUSED(c.dst.ptr = y, "the same buffer");
    REFUSED(hops.route = 3, "route: use ESP_HOPS_RING");
    REFUSED(hops.encode = NULL, "encode, forward and decode");
    REFUSED(hops.most = 0, "most, bound");
    REFUSED(hops.route = ESP_HOPS_HALVING, "no power of two: use ESP_HOPS_RING");
    REFUSED(hops.bound = huge_bound, "windows are too small");
    me->b->close(comm);
}
static void refusals(void **state) {
    (void)state;
    assert_string_equal(ranks_run(ranks_backend("loop"), "", 3, 0, refused_rank, NULL, -1), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size),    cmocka_unit_test(over_a_link), cmocka_unit_test(between_others),
        cmocka_unit_test(errors_end_it), cmocka_unit_test(short_calls), cmocka_unit_test(slow_ranks),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
