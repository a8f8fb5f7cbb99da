/* codec_same.c: checks that a codec makes equal bytes from equal input, however parallel_for divides the work, while
 * another thread uses the codec too, for several tensors in one call, and with another seed if it is deterministic. */
#include "tools/check/check.h"
#include "espresso_impl/base/os.h"

/* A parallel_for that divides the work into small pieces, and runs the last one first. */
static void check_backwards(void *user, uint64_t n, uint64_t grain, void (*body)(void *, uint64_t, uint64_t),
                            void *arg) {
    (void)user;
    for (uint64_t piece = (n + grain - 1) / grain; piece-- > 0;)
        body(arg, piece * grain, (piece + 1) * grain < n ? (piece + 1) * grain : n);
}

const esp_host *check_ctx_host;

/* A parallel_for with two threads: the caller runs every second piece, and another thread the others. */
typedef struct check_half {
    uint64_t n, grain, first;
    void (*body)(void *, uint64_t, uint64_t);
    void *arg;
} check_half;
static void *check_half_run(void *arg) {
    const check_half *h = arg;
    for (uint64_t at = h->first * h->grain; at < h->n; at += 2 * h->grain)
        h->body(h->arg, at, at + h->grain < h->n ? at + h->grain : h->n);
    return NULL;
}
static void check_two_threads(void *user, uint64_t n, uint64_t grain, void (*body)(void *, uint64_t, uint64_t),
                              void *arg) {
    check_half even = {n, grain, 0, body, arg}, odd = {n, grain, 1, body, arg};
    pthread_t t;
    (void)user;
    if (esp__thread_start(&t, check_half_run, &odd)) check_fail("no thread could be started");
    check_half_run(&even);
    pthread_join(t, NULL);
}

/* Compresses and decompresses in several steps. Returns a hash of all payloads, the last residual and last output. */
static uint64_t check_steps(const esp__codec *c, uint64_t count, uint64_t rows, uint64_t steps, uint64_t seed) {
    check_part p = check_part_make(c, count, rows, 1);
    uint64_t hash = ESP__HASH0;
    p.seed = seed;
    for (p.step = 0; p.step < steps; p.step++) {
        check_fill(p.g, count, IN_NORMAL);
        if (check_compress(&p) != ESP_OK) check_fail("compress failed for %llu elements", (check_u)count);
        hash = esp__hash64(hash, check_payload(&p), check_used(&p));
    }
    p.step--;
    if (check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK) check_fail("decompress failed");
    hash = esp__hash64(esp__hash64(hash, p.e, count * 4), p.o, count * 4);
    check_part_free(&p);
    return hash;
}
static uint64_t check_two_steps(const esp__codec *c, uint64_t count, uint64_t rows) {
    check_seed = 5;
    return check_steps(c, count, rows, 2, 42);
}

ESP__FN void check_same_run(void *target) {
    enum { N = 300007, SQUARE = 262144 };
    const esp__codec *c = target;
    esp_host *host = (esp_host *)(uintptr_t)check_ctx_host;
    void (*const loop)(void *, uint64_t, uint64_t, void (*)(void *, uint64_t, uint64_t), void *) = host->parallel_for;
    for (int shape = 0; shape < check_shapes(c); shape++) {
        const uint64_t n = shape ? SQUARE : N, rows = check_rows(c, n, shape);
        const uint64_t first = check_two_steps(c, n, rows), again = check_two_steps(c, n, rows);
        if (again != first)
            check_fail(
                "the same input gave other bytes the second time: draw random numbers from seed, step, key and element "
                "index only, and read no memory that was not written");
        for (int k = 0; k < 2; k++) {
            host->parallel_for = k ? check_two_threads : check_backwards;
            const uint64_t other = check_two_steps(c, n, rows);
            host->parallel_for = loop;
            if (other != first)
                check_fail("the result depends on %s parallel_for runs its pieces: sum in a fixed order",
                           k ? "the threads that" : "the order in which");
        }
    }
}

/* With ESP_CODEC_DETERMINISTIC, payloads must not depend on the seed. */
ESP__FN void check_seed_run(void *target) {
    enum { N = 10000 };
    const esp__codec *c = target;
    uint64_t hash[2];
    if (!(c->traits.caps & ESP_CODEC_DETERMINISTIC)) check_skip("the codec does not set ESP_CODEC_DETERMINISTIC");
    for (int k = 0; k < 2; k++) {
        check_seed = 9;
        hash[k] = check_steps(c, N, check_rows(c, N, 1), 3, k ? 0x9E3779B97F4A7C15u : 42);
    }
    if (hash[0] != hash[1])
        check_fail("the same input with another seed gives another payload: leave ESP_CODEC_DETERMINISTIC out, or do "
                   "not use args->seed");
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */
enum { CHECK_LIST = 4 };

/* Compresses several tensors in one call, for exchange `round` of a codec that needs several. -1: decompresses. */
static void check_list_call(check_part *p, esp__codec_list *l, void *scratch, uint64_t scratch_bytes, int round) {
    esp__codec_call c;
    esp_payload payloads[CHECK_LIST];
    const uint32_t last = check_last(p);
    float *phi = malloc(8 * 2000 * CHECK_LIST);
    l->n = 0;
    memset(payloads, 0, sizeof payloads);
    for (int k = 0; k < CHECK_LIST; k++) {
        const uint32_t r = round < 0 ? last : (uint32_t)round;
        check_call(&p[k], round < 0 ? p[k].o : p[k].g, &c);
        c.args.round = r;
        c.args.n_reduced = r < last ? 2 : 1;
        esp__call_scratch(&c, scratch, scratch_bytes);
        esp__call_payload(&c, p[k].payload[r].data, round < 0 ? p[k].used[r] : p[k].bound[r].payload_bytes,
                          &p[k].used[r]);
        if (r > p[k].first) esp__call_reduced(&c, p[k].payload[r - 1].data, p[k].used[r - 1]);
        if (round >= 0 && p[k].feedback) esp__call_residual(&c, p[k].e);
        payloads[k] = c.payload;
        esp__call_list_add(l, &c);
    }
    if (round < 0) c.args.payload = payloads, c.args.mode = ESP_OUT_SET;
    esp__call_list_take(&c, l);
    check_doing("calling %s with a list of %d parts", round < 0 ? "decompress" : "compress", (int)CHECK_LIST);
    if ((round < 0 ? esp__call_decompress(&c) : esp__call_compress(&c, phi, phi + 2000 * CHECK_LIST)) != ESP_OK)
        check_fail("%s failed for a list of %d parts: n_tensors is the number of parts",
                   round < 0 ? "decompress" : "compress", (int)CHECK_LIST);
    free(phi);
}

ESP__FN void check_lists_run(void *target) {
    static const uint64_t counts[CHECK_LIST] = {1200, 1200, 600, 60};
    const esp__codec *c = target;
    if (!(c->traits.caps & ESP_CODEC_LISTS)) check_skip("the codec does not set ESP_CODEC_LISTS");
    check_part one[CHECK_LIST], all[CHECK_LIST];
    esp__codec_list l;
    uint64_t each = 0;
    for (int k = 0; k < CHECK_LIST; k++) {
        one[k] = check_part_make(c, counts[k], check_rows(c, counts[k], 1), 1);
        all[k] = check_part_make(c, counts[k], check_rows(c, counts[k], 1), 1);
        const uint64_t room = (one[k].bound[0].scratch_bytes + 63) / 64 * 64;
        each = room > each ? room : each;
    }
    check_fenced scratch = check_fence(each * CHECK_LIST, 64);
    esp__call_list_place(&l, malloc((size_t)esp__call_list_bytes(CHECK_LIST)), CHECK_LIST);
    for (uint64_t step = 0; step < 3; step++) {
        for (int k = 0; k < CHECK_LIST; k++) {
            one[k].step = all[k].step = step;
            check_fill(one[k].g, counts[k], step == 1 && k == 2 ? IN_NAN : IN_NORMAL);
            memcpy(all[k].g, one[k].g, (size_t)counts[k] * 4);
            if (check_compress(&one[k]) != ESP_OK || check_decode(&one[k], check_payload(&one[k]), check_used(&one[k])))
                check_fail("compress or decompress of one part failed");
        }
        for (uint32_t r = all[0].first; r < c->traits.n_rounds; r++)
            check_list_call(all, &l, scratch.data, each * CHECK_LIST, (int)r);
        check_list_call(all, &l, scratch.data, each * CHECK_LIST, -1);
        for (int k = 0; k < CHECK_LIST; k++) {
            const size_t bytes = (size_t)counts[k] * 4;
            if (check_used(&all[k]) != check_used(&one[k]) ||
                memcmp(check_payload(&all[k]), check_payload(&one[k]), (size_t)check_used(&one[k])))
                check_fail("part %d of a list has another payload than alone: use entry t of every list for part t", k);
            if (memcmp(all[k].e, one[k].e, bytes) || memcmp(all[k].o, one[k].o, bytes) ||
                memcmp(all[k].state.data, one[k].state.data, (size_t)one[k].bound[0].state_bytes))
                check_fail(
                    "part %d of a list leaves another residual, state or result than alone: use entry t of every "
                    "list for part t",
                    k);
        }
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */
typedef struct check_thread {
    const esp__codec *codec;
    uint64_t seed, hash;
} check_thread;
static void *check_thread_main(void *arg) {
    check_thread *t = arg;
    check_seed = t->seed;
    t->hash = check_steps(t->codec, 20000, 0, 20, 42);
    return NULL;
}
ESP__FN void check_threads_run(void *target) {
    check_thread t[4] = {{target, 1, 0}, {target, 2, 0}, {target, 1, 0}, {target, 2, 0}};
    pthread_t thread[2];
    check_doing("compressing two tensors at the same time");
    for (int i = 0; i < 2; i++) check_thread_main(&t[i]);
    for (int i = 0; i < 2; i++)
        if (esp__thread_start(&thread[i], check_thread_main, &t[2 + i])) check_fail("no thread could be started");
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        if (t[i].hash != t[2 + i].hash)
            check_fail("two tensors compressed at the same time disturb each other: self must not change in compress");
}
