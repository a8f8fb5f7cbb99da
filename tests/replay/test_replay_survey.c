/* test_replay_survey.c: what real mode of `espresso replay` computes from its first measured steps: the cost of
 * starting an op, how much longer large ops take than in a microbenchmark, and which points of a table are outliers.
 * Steps are made up. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define main espresso_main
#include "tools/espresso.c"
#undef main
#include <setjmp.h>
#include <cmocka.h>

enum { MOST = 64 };
#define MS 1000000u

/* One collective a unit on one link, as it was predicted and as it was measured. */
typedef struct made_step {
    esp_plan_event events[2 * MOST];
    esp_plan_unit units[MOST];
    esp__span spans[2 * MOST];
    uint32_t n;
} made_step;

static void made_op(made_step *m, uint8_t lane, uint64_t bytes, uint64_t ready, uint64_t takes, uint64_t start,
                    uint64_t end) {
    const uint32_t u = m->n++;
    m->units[u] = (esp_plan_unit){.first = u, .n_tensors = 1, .elements = bytes / 4};
    m->events[2 * u] = (esp_plan_event){.unit = u, .kind = ESP_PLAN_BACKWARD, .lanes = 1, .end_ns = ready};
    m->spans[2 * u] = (esp__span){0, ready};
    m->events[2 * u + 1] = (esp_plan_event){.unit = u,
                                            .kind = ESP_PLAN_COLLECTIVE,
                                            .lanes = (uint8_t)(1u << lane),
                                            .bytes = bytes,
                                            .start_ns = ready,
                                            .end_ns = ready + takes};
    m->spans[2 * u + 1] = (esp__span){start, end};
}

static void add(replay_dispatch *d, made_step *m) {
    replay_strategy s = {.spans = m->spans, .n_steps = 1, .n_events = 2 * m->n};
    s.predicted.events = m->events;
    s.predicted.units = m->units;
    s.predicted.n_events = 2 * m->n;
    s.predicted.n_units = m->n;
    replay_dispatch_add(d, &s);
}

/* Small ops that wait for another rank's large ones, which take less in return: together they took 20 us more a
 * pair. */
static void queued(void **state) {
    static made_step m;
    replay_dispatch d = {0};
    double out[ESP__LANES];
    uint64_t at = MS;
    (void)state;
    m.n = 0;
    for (int i = 0; i < 10; i++) {
        made_op(&m, ESP__LANE_INTER, 64, MS, 100000, at, at + 2 * MS);
        at += 2 * MS;
        made_op(&m, ESP__LANE_INTER, 40000, MS, 10 * MS, at, at + 8 * MS + 120000);
        at += 8 * MS + 120000;
    }
    add(&d, &m);
    replay_dispatch_take(&d, out);
    assert_int_equal(d.n_queued[ESP__LANE_INTER], 19); /* the first found its link idle */
    assert_true(out[ESP__LANE_INTER] < 20000);         /* the first one's 1.9 ms are not among them */
    assert_true(out[ESP__LANE_INTRA] == 0 && out[ESP__LANE_CPU] == 0);
}

/* Nothing queues: starting is what an op is late and longer. */
static void alone(void **state) {
    static made_step m;
    replay_dispatch d = {0};
    double out[ESP__LANES];
    (void)state;
    m.n = 0;
    for (uint64_t i = 1; i <= 10; i++)
        made_op(&m, ESP__LANE_INTER, 64, i * 10 * MS, 100000, i * 10 * MS + 30000, i * 10 * MS + 150000);
    made_op(&m, ESP__LANE_INTER, 1 << 20, 200 * MS, 20 * MS, 200 * MS,
            290 * MS); /* of large ones it is something else */
    add(&d, &m);
    replay_dispatch_take(&d, out);
    assert_int_equal(d.n_queued[ESP__LANE_INTER], 0);
    assert_true(out[ESP__LANE_INTER] > 49000 && out[ESP__LANE_INTER] < 51000);
}

/* Queued ops that took less than predicted: starting costs nothing, not less. */
static void never_negative(void **state) {
    static made_step m;
    replay_dispatch d = {0};
    double out[ESP__LANES];
    uint64_t at = MS;
    (void)state;
    m.n = 0;
    for (int i = 0; i < 10; i++, at += 50000) made_op(&m, ESP__LANE_INTER, 64, MS, 100000, at, at + 50000);
    add(&d, &m);
    replay_dispatch_take(&d, out);
    assert_true(out[ESP__LANE_INTER] == 0);
}

/* Large ops inside a machine, three times as long as predicted: that belongs to the tables, and not to starting as
 * well. */
static void slower(void **state) {
    static made_step m;
    replay_dispatch d = {0};
    double out[ESP__LANES];
    (void)state;
    m.n = 0;
    for (uint64_t i = 1; i <= 8; i++)
        made_op(&m, ESP__LANE_INTRA, 1 << 18, i * 10 * MS, 200000, i * 10 * MS + 40000, i * 10 * MS + 640000);
    add(&d, &m);
    assert_true(fabs(replay_slower(&d) - 3) < 0.01);
    replay_dispatch_take(&d, out);
    assert_true(fabs(out[ESP__LANE_INTRA] - 40000) < 1000);

    memset(&d, 0, sizeof d); /* the same where they queue, 20 us after one another; small ones between them */
    m.n = 0;
    uint64_t at = MS;
    for (uint64_t i = 0; i < 8; i++, at += 620000 + 120000) {
        made_op(&m, ESP__LANE_INTRA, 1 << 18, MS, 200000, at + 20000, at + 620000);
        made_op(&m, ESP__LANE_INTRA, 64, MS, 100000, at + 640000, at + 740000);
    }
    add(&d, &m);
    assert_int_equal(d.n_queued[ESP__LANE_INTRA], 15);
    assert_true(fabs(replay_slower(&d) - 3) < 0.01);
    replay_dispatch_take(&d, out);
    assert_true(fabs(out[ESP__LANE_INTRA] - 20000) < 1000);

    memset(&d, 0, sizeof d); /* small ones say nothing of memory */
    m.n = 0;
    for (uint64_t i = 1; i <= 8; i++)
        made_op(&m, ESP__LANE_INTRA, 1 << 10, i * 10 * MS, 200000, i * 10 * MS, i * 10 * MS + 600000);
    add(&d, &m);
    assert_true(replay_slower(&d) == 1);

    memset(&d, 0, sizeof d); /* nor is anything faster than in a row */
    m.n = 0;
    for (uint64_t i = 1; i <= 8; i++)
        made_op(&m, ESP__LANE_INTRA, 1 << 18, i * 10 * MS, 200000, i * 10 * MS, i * 10 * MS + 100000);
    add(&d, &m);
    assert_true(replay_slower(&d) == 1);
}

static void outliers(void **state) {
    static esp__survey_curve c;
    (void)state;
    c.n = 6;
    for (uint32_t i = 0; i < c.n; i++) {
        c.at[i].size = (double)(64u << 2 * i);
        c.at[i].ns = 50000 + 10 * c.at[i].size;
    }
    for (uint32_t i = 0; i <= c.n; i++) assert_false(replay_survey_outliers(&c, i));
    c.at[3].ns *= 1.3; /* as when something else ran */
    for (uint32_t i = 0; i < c.n; i++) assert_int_equal(replay_survey_outliers(&c, i), i == 3);
    c.at[3].ns /= 1.3;
    c.at[5].ns = c.at[4].ns * 4 * 1.1; /* the last: more than in proportion */
    for (uint32_t i = 0; i < c.n; i++) assert_int_equal(replay_survey_outliers(&c, i), i == 5);
    c.n = 1;
    assert_false(replay_survey_outliers(&c, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(queued), cmocka_unit_test(alone),
                                       cmocka_unit_test(never_negative), cmocka_unit_test(slower),
                                       cmocka_unit_test(outliers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
