/* budget.c: what trying may cost. All ranks keep the same account, in steps: every hundred steps of training pay in one; what the
 * autopilot spends, and what a try takes longer than the strategy before, is paid from it. Must not know how steps are timed, nor
 * which strategies are tried: every function takes figures that the ranks agreed on. */
#include "espresso_impl/autopilot/autopilot.h"
#include <math.h>

static const double esp__budget_share = 0.01; /* of the training time                                             */
static const double esp__budget_start = 0.75; /* steps: the credit of the first try, and the least of a later one */
static const double esp__budget_most = 10.0;  /* steps: a long quiet time does not pay for a very expensive try   */
static const double esp__budget_worst = 3.0;  /* a misjudgement beyond this says more about the machine           */

/* The first measurement is over, and a step took step_ns. */
ESP__FN void esp__budget_open(esp__budget *b, uint64_t step, double step_ns) {
    if (b->open || !(step_ns > 0.0)) return;
    b->open = 1;
    b->step = step;
    b->step_ns = step_ns;
    b->credit = esp__budget_start;
    b->misjudged[0] = b->misjudged[1] = 1.0;
}

/* Training reached `step`. step_ns: what a step takes without trying; 0: as before. spent_ns: the autopilot's own time since the
 * last update. */
ESP__FN void esp__budget_update(esp__budget *b, uint64_t step, double step_ns, double spent_ns) {
    if (!b->open) return;
    if (step_ns > 0.0) b->step_ns = step_ns;
    if (step > b->step) b->credit += esp__budget_share * (double)(step - b->step);
    if (b->credit > esp__budget_most) b->credit = esp__budget_most;
    b->credit -= spent_ns / b->step_ns;
    b->spent += spent_ns / b->step_ns;
    b->step = step;
}

/* What was just measured, and planned from it, took the autopilot this time: so will the next time. */
ESP__FN void esp__budget_measured(esp__budget *b, double spent_ns) {
    if (b->open) b->measure = spent_ns / b->step_ns;
}

/* Steps until it may be measured and tried again: until what was lost is paid, and there is credit for measuring and for the
 * first try. 0: now. */
ESP__FN uint64_t esp__budget_wait(const esp__budget *b) {
    double missing = b->measure + esp__budget_start - b->credit;
    return missing > 0.0 ? (uint64_t)ceil(missing / esp__budget_share) : 0;
}

/* A try goes on while its loss is below the credit. over_ns: what its steps together took longer than the strategy before;
 * first_ns: the first step's part. That one touches new memory: up to one step of its part is not held against the try. */
ESP__FN int esp__budget_exhausted(const esp__budget *b, double over_ns, double first_ns) {
    double forgiven = first_ns < b->step_ns ? first_ns : b->step_ns;
    if (!b->open) return 0;
    if (forgiven > 0.0) over_ns -= forgiven;
    return over_ns > (b->credit > 0.0 ? b->credit : 0.0) * b->step_ns;
}

/* A try, or one round of it, is over: what it lost is paid. What it won is training's, and not credit for other tries. */
ESP__FN void esp__budget_pay(esp__budget *b, double over_ns) {
    if (!b->open || !(over_ns > 0.0)) return;
    b->credit -= over_ns / b->step_ns;
    b->lost += over_ns / b->step_ns;
}

/* A plan that compresses, or one that does not, lost: the next of its kind must be predicted to win by so much more. */
ESP__FN void esp__budget_lost(esp__budget *b, int compresses, double measured_ns, double predicted_ns) {
    double ratio = predicted_ns > 0.0 ? measured_ns / predicted_ns : 1.0;
    b->misjudged[compresses != 0] = ratio < 1.0 ? 1.0 : ratio > esp__budget_worst ? esp__budget_worst : ratio;
}

ESP__FN void esp__budget_won(esp__budget *b, int compresses) { b->misjudged[compresses != 0] = 1.0; }

/* The machine changed: what the last try says about the next one counts less. */
ESP__FN void esp__budget_drifted(esp__budget *b) {
    for (int i = 0; i < 2; i++) b->misjudged[i] = sqrt(b->misjudged[i]);
}
