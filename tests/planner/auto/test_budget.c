/* test_budget.c checks, with made-up times, how much time the autopilot may spend on trials of strategies: what adds
 * to the budget (counted in steps, "credit"), what takes from it, when a trial ends and when the next may begin. */
#include "tests/lib/test.h"

static const double ms = 1e6;

static esp__budget opened(void) {
    esp__budget b;
    memset(&b, 0, sizeof b);
    esp__budget_open(&b, 22, 20.0 * ms);
    return b;
}

TEST(test_pays_in) {
    esp__budget b = opened();
    assert_true(fabs(b.credit - 0.75) < 1e-9);
    esp__budget_update(&b, 222, 20.0 * ms, 0.0); /* 200 steps earn 2 steps of credit */
    assert_true(fabs(b.credit - 2.75) < 1e-9);
    esp__budget_update(&b, 222, 0.0, 30.0 * ms); /* 30 ms cost a step and a half */
    assert_true(fabs(b.credit - 1.25) < 1e-9);
    esp__budget_update(&b, 322, 40.0 * ms, 20.0 * ms); /* with longer steps, 20 ms are half a step */
    assert_true(fabs(b.credit - 1.75) < 1e-9);
    assert_true(fabs(b.spent - 2.0) < 1e-9);
    esp__budget_update(&b, 1000000, 40.0 * ms, 0.0); /* the credit has a limit */
    assert_true(fabs(b.credit - 10.0) < 1e-9);
    esp__budget_open(&b, 1000001, 5.0 * ms); /* opening again changes nothing */
    assert_true(fabs(b.credit - 10.0) < 1e-9);
}

/* Before the first measurement no step time is known: nothing is counted, and no trial ends. */
TEST(test_not_open) {
    esp__budget b;
    memset(&b, 0, sizeof b);
    esp__budget_update(&b, 500, 20.0 * ms, 20.0 * ms);
    esp__budget_pay(&b, 20.0 * ms);
    assert_true(b.credit >= 0.0 && b.credit <= 0.0);
    assert_int_equal(esp__budget_exhausted(&b, 1e12, 0.0), 0);
    esp__budget_open(&b, 500, 0.0);
    assert_int_equal(b.open, 0);
}

/* Returns after how many steps a trial ends whose steps take `step` ms in place of 20 ms, or 0 if it takes more than
 * `most`. */
static int ends_after(esp__budget *b, double first, double step, int most) {
    double over = 0.0;
    for (int k = 1; k <= most; k++) {
        over += (k == 1 ? first : step) - 20.0 * ms;
        esp__budget_update(b, b->step + 1, 0.0, 0.0);
        if (!esp__budget_exhausted(b, over, first - 20.0 * ms)) continue;
        esp__budget_pay(b, over);
        return k;
    }
    esp__budget_pay(b, over);
    return 0;
}

TEST(test_try_ends) {
    esp__budget b = opened();
    assert_int_equal(ends_after(&b, 40.0 * ms, 40.0 * ms, 12), 2); /* twice as slow */
    assert_true(b.credit < -1.0 && b.credit > -1.5);               /* the trial cost 1 to 1.5 steps */
    b = opened();
    assert_int_equal(ends_after(&b, 70.0 * ms, 70.0 * ms, 12), 1); /* steps so slow that one ends the trial */
    b = opened();
    assert_int_equal(ends_after(&b, 40.0 * ms, 18.0 * ms, 12), 0); /* only the first step is slow */
    b = opened();
    assert_int_equal(ends_after(&b, 21.0 * ms, 21.0 * ms, 12), 0); /* a little slower: the comparison runs to its end */
    assert_true(fabs(b.credit - (0.75 + 0.12 - 0.6)) < 1e-9);
    assert_true(fabs(b.lost - 0.6) < 1e-9);
    b = opened();
    assert_int_equal(ends_after(&b, 10.0 * ms, 10.0 * ms, 12), 0); /* a faster trial earns no credit */
    assert_true(fabs(b.credit - 0.87) < 1e-9);
    b = opened();
    b.credit = -5.0; /* without credit every loss ends a trial, a gain does not */
    assert_int_equal(ends_after(&b, 19.0 * ms, 19.0 * ms, 12), 0);
    assert_int_equal(ends_after(&b, 19.0 * ms, 22.0 * ms, 12), 2);
}

/* The next trial waits until the cost of the last one is earned back. */
TEST(test_next_waits) {
    esp__budget b = opened();
    assert_int_equal(esp__budget_wait(&b), 0);
    esp__budget_measured(&b, 30.0 * ms); /* measuring costs 1.5 steps */
    assert_int_equal(esp__budget_wait(&b), 150);
    esp__budget_pay(&b, 80.0 * ms); /* 80 ms are 4 lost steps */
    assert_int_equal(esp__budget_wait(&b), 550);
    esp__budget_update(&b, 22 + 549, 20.0 * ms, 0.0);
    assert_int_equal(esp__budget_wait(&b), 1);
    esp__budget_update(&b, 22 + 550, 20.0 * ms, 0.0);
    assert_int_equal(esp__budget_wait(&b), 0);
    esp__budget_pay(&b, -80.0 * ms);
    assert_int_equal(esp__budget_wait(&b), 0);
    assert_true(b.credit < 2.3); /* gains earn no credit */
}

/* However slow and however many the trials are, training loses at most one percent and three steps. */
TEST(test_whole_run) {
    static const double slow[] = {21.0, 25.0, 30.0, 40.0, 60.0, 200.0};
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        esp__budget b = opened();
        double lost = 0.0, step = slow[i] * ms;
        uint64_t steps = 20000, tries = 0;
        while (b.step < 22 + steps) {
            double before = b.credit, paid_in = (double)b.step;
            if (esp__budget_wait(&b)) {
                esp__budget_update(&b, b.step + 1, 20.0 * ms, 0.0);
                continue;
            }
            tries++;
            esp__budget_measured(&b, 20.0 * ms);
            esp__budget_update(&b, b.step, 20.0 * ms, 20.0 * ms);
            ends_after(&b, step, step, 12);
            lost += before - b.credit + 0.01 * ((double)b.step - paid_in);
        }
        double overshoot = slow[i] / 20.0 + 2.0; /* one step of the trial, and measuring */
        if (!(tries > 0 && lost <= 0.01 * (double)steps + overshoot))
            fail_msg("%.0f ms: %.2f steps lost in %llu tries", slow[i], lost, (unsigned long long)tries);
    }
}

TEST(test_misjudged) {
    esp__budget b = opened();
    esp__budget_lost(&b, 1, 30.0 * ms, 18.0 * ms);
    assert_true(fabs(b.misjudged[1] - 30.0 / 18.0) < 1e-9);
    assert_true(fabs(b.misjudged[0] - 1.0) < 1e-9); /* plans without compression are not affected */
    esp__budget_drifted(&b);
    assert_true(fabs(b.misjudged[1] * b.misjudged[1] - 30.0 / 18.0) < 1e-9);
    esp__budget_lost(&b, 0, 300.0 * ms, 18.0 * ms); /* the correction ends after some steps */
    assert_true(fabs(b.misjudged[0] - 3.0) < 1e-9);
    esp__budget_lost(&b, 0, 17.0 * ms, 18.0 * ms); /* a loss, though faster than predicted: fp32 was as well */
    assert_true(fabs(b.misjudged[0] - 1.0) < 1e-9);
    const double credit = b.credit;
    esp__budget_won(&b, 1, 30.0 * ms); /* the trial's gain pays for the next trial */
    assert_true(fabs(b.credit - credit - 30.0 * ms / b.step_ns) < 1e-9);
    assert_true(fabs(b.misjudged[1] - 1.0) < 1e-9);
}

/* The gain that a plan must bring, as predicted and as measured. */
TEST(test_worth) {
    esp__auto_job job;
    memset(&job, 0, sizeof job);
    job.min_gain = 0.05;
    job.misjudged[0] = job.misjudged[1] = 1.0;
    job.base_ns = 20.0 * ms;
    assert_true(esp__auto_worth(&job, 20.0, 19.0, 1, 1.05) == 0); /* 20 and 19 are ns, far below the 20 ms measured */
    assert_true(esp__auto_worth(&job, 20.0 * ms, 19.0 * ms, 1, 1.05));
    assert_false(esp__auto_worth(&job, 20.0 * ms, 19.1 * ms, 1, 1.05));
    /* Steps take 1.5 times their prediction: of 30 ms, the 1.2 ms that a plan saves are below the least gain. */
    job.base_ns = 30.0 * ms;
    assert_false(esp__auto_worth(&job, 20.0 * ms, 18.8 * ms, 1, 1.05));
    assert_true(esp__auto_worth(&job, 20.0 * ms, 18.5 * ms, 1, 1.05));
    /* The last plan took 1.4 times its prediction. */
    job.base_ns = 20.0 * ms;
    job.misjudged[1] = 1.4;
    assert_false(esp__auto_worth(&job, 20.0 * ms, 15.0 * ms, 1, 1.05));
    assert_true(esp__auto_worth(&job, 20.0 * ms, 15.0 * ms, 0, 1.05));
    assert_true(esp__auto_worth(&job, 20.0 * ms, 10.0 * ms, 1, 1.05));
}
