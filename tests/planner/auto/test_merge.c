/* test_merge.c checks MergeComp's search on measured steps: which groups it tries and finds, that it ends in time, and
 * that strategy "auto" then trains with them. Step times are made up. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "autopilot_world.h"

enum { MANY = 40 };

/* A model whose gradients become ready one after the other. */
typedef struct training {
    esp_ctx ctx;
    esp__tensor tensors[MANY];
    double compute, call, per_element; /* ns of backward, and of compressing and sending, for each element or group */
} training;

static void training_open(training *t, uint32_t n, uint64_t seed, double compute, double call, double per_element) {
    memset(t, 0, sizeof *t);
    t->ctx.model.tensors = t->tensors;
    t->ctx.model.n_tensors = n;
    for (uint32_t i = 0; i < n; i++) t->tensors[i].count = 1000 + (seed ? test_random64(&seed) % 9000 : 0);
    t->compute = compute, t->call = call, t->per_element = per_element;
}

/* MergeComp's step time (its equations 3 to 5): a group is compressed and sent when its last gradient is ready and the
 * group before it is sent. */
static double step_of(const training *t, const esp__groups *g) {
    double ready = 0.0, sent = 0.0;
    for (uint32_t k = 0; k < g->n; k++) {
        uint64_t elements = 0;
        for (uint32_t i = g->first[k]; i < g->first[k + 1]; i++) elements += t->tensors[i].count;
        ready += t->compute * (double)elements;
        sent = fmax(sent, ready) + t->call + t->per_element * (double)elements;
    }
    return sent;
}

static uint32_t search(const training *t, esp__grouping *m, uint32_t most, double least_gain) {
    uint32_t tries = 0;
    esp__grouping_begin(&t->ctx, m, most, least_gain);
    do {
        assert_true(m->trial.n >= 1 && m->trial.n <= most);
        assert_int_equal(m->trial.first[0], 0);
        assert_int_equal(m->trial.first[m->trial.n], t->ctx.model.n_tensors);
        for (uint32_t k = 0; k < m->trial.n; k++) assert_true(m->trial.first[k] < m->trial.first[k + 1]);
        tries++;
    } while (esp__grouping_next(&t->ctx, m, step_of(t, &m->trial)));
    assert_true(tries * ESP__GROUPING_BLOCK <= 50);
    return tries;
}

static double best_of_two(const training *t, uint32_t *at) {
    double best = INFINITY;
    for (uint32_t i = 1; i < t->ctx.model.n_tensors; i++) {
        const esp__groups g = {.n = 2, .first = {0, i, t->ctx.model.n_tensors}};
        if (step_of(t, &g) < best) best = step_of(t, &g), *at = i;
    }
    return best;
}

/* If a call costs much and elements little, one group is the fastest (MergeComp's theorem 1: merging two groups saves
 * a call's fixed time). The search tries two groups and stops. */
TEST(one_group) {
    static training t;
    esp__grouping m;
    training_open(&t, 24, 0, 1.0, 1e6, 0.1);
    search(&t, &m, 4, 0.02);
    assert_int_equal(m.fastest.n, 1);
    assert_int_equal(m.best.n, 2); /* never three */
    training_open(&t, 24, 0, 1.0, 1.0, 1.0);
    assert_int_equal(search(&t, &m, 1, 0.02), 1);
    training_open(&t, 1, 0, 1.0, 1.0, 1.0);
    assert_int_equal(search(&t, &m, 4, 0.02), 1);
}

/* Two groups: as the border moves, the step time first falls and then rises (theorem 2), so a search that halves its
 * moves ends next to the best border. */
TEST(two_groups) {
    for (uint64_t seed = 1; seed <= 200; seed++) {
        static training t;
        esp__grouping m;
        uint32_t at = 0, turns = 0;
        uint64_t draw = seed;
        const double per_element = 0.1 + (double)(test_random64(&draw) % 100) / 25.0;
        training_open(&t, 3 + (uint32_t)(seed % (MANY - 3)), seed, 1.0, 2000.0, per_element);
        const double best = best_of_two(&t, &at);
        double before = INFINITY;
        bool rises = false;
        for (uint32_t i = 1; i < t.ctx.model.n_tensors; i++) {
            const esp__groups g = {.n = 2, .first = {0, i, t.ctx.model.n_tensors}};
            const double now = step_of(&t, &g);
            turns += rises && now < before * (1.0 - 1e-12);
            rises |= now > before * (1.0 + 1e-12);
            before = now;
        }
        assert_int_equal(turns, 0);
        search(&t, &m, 2, 0.02);
        assert_true(m.fastest.ns <= 1.03 * best);
    }
}

/* More groups are tried only while each saves least_gain. */
TEST(more_groups) {
    static training t;
    esp__grouping m;
    training_open(&t, MANY, 0, 1.0, 10.0, 1.0);
    search(&t, &m, 8, 0.0);
    const double many = m.fastest.ns;
    assert_true(m.fastest.n >= 3);
    search(&t, &m, 8, 0.3);
    assert_int_equal(m.fastest.n, 2);
    assert_true(many < m.fastest.ns);
}

/* ---- strategy auto ------------------------------------------------------------------------------------------------
 */
static const char topk[] = "topk:ratio=0.25";

/* Tensors 0 to 2 and tensors 3 and 4 are the best groups. */
static double two_are_best(const esp__strategy *y) {
    double ms = 5.0;
    if (y->n_units == TENSORS) return 0.0;
    if (y->n_units != 2) return 6.5;
    for (uint32_t u = 0; u < 2; u++) ms -= y->units[u].place.first == 3;
    return ms;
}
static double groups_are_slow(const esp__strategy *y) { return y->n_units == TENSORS ? 0.0 : 9.0; }

static int steps_of(const world *w, const char *phase) {
    int n = 0;
    for (int s = 0; s < w->steps; s++) n += w->phase[0][s] && strstr(w->phase[0][s], phase) != NULL;
    return n;
}

TEST(auto_merges) {
    static const char *const strategies[] = {"auto:steps=6,merge=3", "auto:steps=6", "auto:steps=6,merge=3"};
    for (int i = 0; i < 3; i++) {
        world *w = world_new();
        w->hears = 1;
        w->steps = 200;
        w->merged = i == 2 ? groups_are_slow : two_are_best;
        run(w, strategies[i], topk, 4, 2);
        assert_int_equal(strstr(w->heard, "merged topk:ratio=0.25 into 2 as tried") != NULL, i == 0);
        assert_int_equal(strstr(w->last[0], "\ngroup 1317 topk:ratio=0.25 ") != NULL, i == 0);
        assert_int_equal(first_in(w, "merging", 0) > 0, i != 1);
        assert_true(steps_of(w, "merging") <= 50);
        free(w);
    }
}

static void body_bad(esp_ctx *ctx, void *user) {
    (void)user;
    CHECK(esp_tensor_add(ctx, &(esp_tensor_desc){.name = "a", .count = 10}, NULL) == ESP_OK);
    CHECK(esp_tensor_add(ctx, &(esp_tensor_desc){.name = "b", .count = 10}, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    static const char *const bad[] = {"merged:groups=0", "merged:groups=9", "merged:at=0",
                                      "merged:at=2",     "merged:at=",      "merged:at=1+1",
                                      "merged:at=1x",    "merged:far=1",    "merged:groups=1,at=1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(esp_strategy_set(ctx, bad[i]) == ESP_E_ARG);
    CHECK(esp_strategy_set(ctx, "merged:groups=1,of=(signsgd)") == ESP_OK);
    CHECK(strstr(esp_strategy_text(ctx), "group 20 signsgd ") != NULL);
}

TEST(bad_groups) {
    test_job j = {.size = 2, .per_machine = 1, .body = body_bad};
    failures = 0;
    test_run(&j);
    assert_int_equal(failures, 0);
}
