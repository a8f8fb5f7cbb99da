/* budget.c: limits the cost of trials of strategies. The budget counts steps and is the same on all ranks. Every
 * hundred training steps add a credit of one step; the autopilot's time, and the time by which a trial's steps are
 * longer than the previous ones, are subtracted. */
#include "planner/auto/autopilot.h"
#include <math.h>

static const double esp__budget_share = 0.01; /* share of the training time that trials may cost */
/* In steps: the credit before the first trial, and the least credit that a later one needs. */
static const double esp__budget_start = 0.75;
/* In steps: the largest credit, so that no trial is very expensive after a long time. */
static const double esp__budget_most = 10.0;
/* If a prediction was wrong by more than this factor, the machine was disturbed, and the trial does not count. */
static const double esp__budget_worst = 3.0;

/* Opens the budget after the first measuring phase, in which a step took step_ns. */
ESP__FN void esp__budget_open(esp__budget *b, uint64_t step, double step_ns) {
    if (b->open || !(step_ns > 0.0)) return;
    b->open = 1;
    b->step = step;
    b->step_ns = step_ns;
    b->credit = esp__budget_start;
    b->misjudged[0] = b->misjudged[1] = 1.0;
}

/* Adds credit up to training step `step`. step_ns is the time of a step outside trials, or 0 if unchanged; spent_ns
 * is the autopilot's own time since the last update. */
ESP__FN void esp__budget_update(esp__budget *b, uint64_t step, double step_ns, double spent_ns) {
    if (!b->open) return;
    if (step_ns > 0.0) b->step_ns = step_ns;
    if (step > b->step) b->credit += esp__budget_share * (double)(step - b->step);
    if (b->credit > esp__budget_most) b->credit = esp__budget_most;
    b->credit -= spent_ns / b->step_ns;
    b->spent += spent_ns / b->step_ns;
    b->step = step;
}

/* Subtracts spent_ns for measuring and planning, and expects the same cost the next time. */
ESP__FN void esp__budget_measured(esp__budget *b, double spent_ns) {
    if (b->open) b->measure = spent_ns / b->step_ns;
}

/* Returns the steps until there is credit for measuring and for a trial, when the autopilot may try again; 0 if it
 * may now. */
ESP__FN uint64_t esp__budget_wait(const esp__budget *b) {
    double missing = b->measure + esp__budget_start - b->credit;
    return missing > 0.0 ? (uint64_t)ceil(missing / esp__budget_share) : 0;
}

/* Whether the current trial must end because its loss reaches the credit. over_ns is the time by which its steps
 * were longer than the previous strategy's; first_ns is the first step's part of it. The first step touches new
 * memory, so up to one step's time of first_ns does not count. */
ESP__FN int esp__budget_exhausted(const esp__budget *b, double over_ns, double first_ns) {
    double forgiven = first_ns < b->step_ns ? first_ns : b->step_ns;
    if (!b->open) return 0;
    if (forgiven > 0.0) over_ns -= forgiven;
    return over_ns > (b->credit > 0.0 ? b->credit : 0.0) * b->step_ns;
}

/* Subtracts the loss of a trial, or of one round of it. */
ESP__FN void esp__budget_pay(esp__budget *b, double over_ns) {
    if (!b->open || !(over_ns > 0.0)) return;
    b->credit -= over_ns / b->step_ns;
    b->lost += over_ns / b->step_ns;
}

/* Called when a plan lost its trial. From the next plan of this kind (with or without compression), a larger gain is
 * demanded: by the factor by which this plan took longer than predicted. */
ESP__FN void esp__budget_lost(esp__budget *b, int compresses, double measured_ns, double predicted_ns) {
    double ratio = predicted_ns > 0.0 ? measured_ns / predicted_ns : 1.0;
    b->misjudged[compresses != 0] = ratio < 1.0 ? 1.0 : ratio > esp__budget_worst ? esp__budget_worst : ratio;
}

/* Called when a plan won its trial. The time that the trial saved pays for another one. */
ESP__FN void esp__budget_won(esp__budget *b, int compresses, double saved_ns) {
    b->misjudged[compresses != 0] = 1.0;
    if (!b->open || !(saved_ns > 0.0)) return;
    b->credit += saved_ns / b->step_ns;
    if (b->credit > esp__budget_most) b->credit = esp__budget_most;
}

/* Called when the machine changed. Earlier wrong predictions then count less. */
ESP__FN void esp__budget_drifted(esp__budget *b) {
    for (int i = 0; i < 2; i++) b->misjudged[i] = sqrt(b->misjudged[i]);
}
