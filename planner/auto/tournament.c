/* tournament.c: finds the fastest of several candidates by successive halving: they run in turns, a few steps each, and
 * after each round those that are clearly slower are left out. A candidate's cost is its step time times the number of
 * steps that training needs with its codecs, relative to fp32. All ranks pass the same numbers and so get the same
 * result. */
#include "planner/auto/autopilot.h"
#include "espresso_impl/base/quantile.h"
#include <math.h>

enum { ESP__TRY_STEPS = 200 }; /* after more steps, only candidates that never ran may run */
/* A candidate that never ran is not tried while its predicted cost is more than this many times the least cost. */
static const double esp__try_excluded = 1.5;
/* A candidate that was only measured before the tournament is left out if its cost is more than this many times the
 * least cost. If one step was measured, which may have been a slow one, its cost must be half as much again. */
static const double esp__try_stale = 3.0;
/* A tournament loses time against steps of its best candidate. If it has lost this many such steps, only candidates
 * that never ran may still run. */
static const double esp__try_loss = 15.0;
/* Least time of a block of steps, because changes between strategies take time themselves. */
static const double esp__try_block_ns = 5e6;
/* Most time that steps may wait for communication before other strategies are tried, in steps without waiting. */
static const double esp__measure_loss = 5.0;

ESP__FN bool esp__measured_enough(uint32_t steps, double waiting) {
    return steps * waiting >= esp__measure_loss * (1.0 - waiting);
}

static double esp__candidate_cost(const esp__auto_candidate *c) { return (c->n ? c->ns : c->predicted_ns) * c->slower; }

static bool esp__candidate_fresh(const esp__auto_candidate *c) { return c->n && !c->stale; }

/* Lists the candidates that are not out, or all: first the measured ones, then the others, each in the order of their
 * costs. Returns their number. */
static uint32_t esp__tournament_order(const esp__tournament *t, bool all, const esp__auto_candidate **order) {
    uint32_t n = 0;
    for (const esp__auto_candidate *c = t->at; c < t->at + t->n; c++) {
        if (c->out && !all) continue;
        uint32_t k = n++;
        for (; k; k--) {
            const esp__auto_candidate *b = order[k - 1];
            if (!b->n == !c->n ? esp__candidate_cost(b) <= esp__candidate_cost(c) : b->n > 0) break;
            order[k] = b;
        }
        order[k] = c;
    }
    return n;
}

/* Returns the measured candidate of the least cost, or NULL. */
static const esp__auto_candidate *esp__tournament_best(const esp__tournament *t) {
    const esp__auto_candidate *order[ESP__AUTO_CANDIDATES];
    return esp__tournament_order(t, false, order) && order[0]->n ? order[0] : NULL;
}

static bool esp__tournament_allows(const esp__tournament *t, const esp__auto_candidate *c) {
    double least = INFINITY;
    for (uint32_t i = 0; i < t->n; i++)
        if (!t->at[i].out) least = fmin(least, esp__candidate_cost(&t->at[i]));
    return !c->out && (c->n || esp__candidate_cost(c) <= esp__try_excluded * least);
}

/* Returns by which share two measured medians may differ by chance: twice the standard error of their difference. */
static double esp__tournament_margin(const esp__tournament *t, const esp__auto_candidate *a,
                                     const esp__auto_candidate *b) {
    double spreads[ESP__AUTO_CANDIDATES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->at[i].n >= 4) spreads[n++] = t->at[i].spread;
    return 2.0 * 0.93 * fmax(esp__median(spreads, n), 0.02) * sqrt(1.0 / a->n + 1.0 / b->n);
}

/* Decides after a round whether a candidate is out, or as good as the best one. `rank` of the `of` candidates that ran
 * are faster. */
static void esp__tournament_judge(const esp__tournament *t, const esp__auto_candidate *best, esp__auto_candidate *c,
                                  uint32_t rank, uint32_t of) {
    const double behind = esp__candidate_cost(c) / esp__candidate_cost(best) - 1.0, gain = t->least_gain;
    const double margin = esp__tournament_margin(t, c, best);
    const bool gentler = c->loss < best->loss;
    const bool half = t->round > 1 && 2 * rank >= of;
    if (c->stale)
        c->out = behind > esp__try_stale * (c->n > 1 ? 1.0 : 1.5) - 1.0;
    else if (behind > gain + margin || (half && behind > fmax(gain, 0.5 * margin)))
        c->out = true;
    else if (margin <= gain || (!gentler && behind > margin))
        c->tie = gentler && behind <= gain, c->out = !c->tie;
}

static void esp__tournament_round_end(esp__tournament *t) {
    const esp__auto_candidate *order[ESP__AUTO_CANDIDATES];
    const uint32_t n = esp__tournament_order(t, false, order);
    uint32_t rank = 0, of = 0;
    for (uint32_t k = 0; k < n; k++) of += esp__candidate_fresh(order[k]);
    for (uint32_t k = 0; k < n && order[0]->n; k++) {
        esp__auto_candidate *c = &t->at[order[k] - t->at];
        c->tie = false;
        if (k && c->n) esp__tournament_judge(t, order[0], c, rank, of);
        rank += esp__candidate_fresh(c);
    }
}

/* Lists the blocks of the next round. Candidates that never ran come first, each for one block. If there are none, and
 * all candidates are known, those that are not yet decided run in the order of their costs, then in reverse, so that a
 * slow change in the machine's speed affects all alike. */
static void esp__tournament_round(esp__tournament *t) {
    const esp__auto_candidate *order[ESP__AUTO_CANDIDATES];
    const uint32_t of = esp__tournament_order(t, false, order);
    uint32_t n = 0;
    bool fresh = false;
    for (uint32_t k = 0; k < of; k++) fresh |= !order[k]->n && esp__tournament_allows(t, order[k]);
    for (uint32_t k = 0; k < of; k++)
        if (esp__tournament_allows(t, order[k]) && !order[k]->tie && !(fresh && order[k]->n))
            t->queue[n++] = (uint8_t)(order[k] - t->at);
    if (!fresh && (n == 1 || t->more)) n = 0; /* it is decided, or has to wait */
    for (uint32_t k = 0; k < n && !fresh; k++) t->queue[n + k] = t->queue[n - 1 - k];
    t->n_queue = fresh ? n : 2 * n;
    t->at_queue = 0;
}

ESP__FN bool esp__tournament_step(esp__tournament *t, double ns) {
    t->steps++;
    /* The first step after a change touches new memory. */
    if (!t->skip) esp__step_times_add(&t->at[t->now].times, ns);
    t->skip = false;
    return --t->left == 0;
}

ESP__FN void esp__tournament_block(esp__tournament *t, double ns, double spread_ns, double total_ns) {
    esp__auto_candidate *c = &t->at[t->now];
    c->ns = ns;
    c->spread = ns > 0.0 ? spread_ns / ns : 0.0;
    c->n = esp__step_times_held(&c->times);
    c->stale = false;
    t->total_ns += total_ns;
}

static bool esp__tournament_ends(esp__tournament *t) {
    const esp__auto_candidate *best = esp__tournament_best(t);
    if (best && t->total_ns - t->steps * best->ns > esp__try_loss * best->ns)
        t->ended = "trying may cost no more";
    else if (best && t->steps >= ESP__TRY_STEPS)
        t->ended = "the steps vary too much for a closer comparison";
    return t->ended != NULL;
}

ESP__FN int esp__tournament_next(esp__tournament *t) {
    static const uint32_t lengths[] = {3, 3, 4, 6};
    for (;;) {
        if (t->at_queue == t->n_queue) {
            esp__tournament_round_end(t);
            esp__tournament_round(t);
            if (!t->n_queue) return -1;
            t->round++;
        }
        const uint32_t i = t->queue[t->at_queue++];
        esp__auto_candidate *c = &t->at[i];
        if (c->out) continue;
        if (esp__candidate_fresh(c) && esp__tournament_ends(t)) {
            if (t->at_queue == t->n_queue) return -1;
            continue;
        }
        if (c->stale) c->times.n = 0;
        const double most = ceil(esp__try_block_ns / fmax(esp__candidate_cost(c), 1.0));
        t->left = lengths[t->round > 4 ? 3 : t->round - 1] * (uint32_t)fmin(fmax(most, 1.0), 4.0);
        t->skip = i != t->now || t->steps == 0;
        t->left += t->skip;
        return (int)i;
    }
}

ESP__FN uint32_t esp__tournament_winner(const esp__tournament *t) {
    const esp__auto_candidate *order[ESP__AUTO_CANDIDATES], *winner;
    const uint32_t n = esp__tournament_order(t, false, order);
    if (!n || !order[0]->n) return t->n;
    winner = order[0];
    for (uint32_t k = 1; k < n && order[k]->n; k++)
        if (esp__candidate_cost(order[k]) <= (1.0 + t->least_gain) * esp__candidate_cost(order[0]) &&
            order[k]->loss < winner->loss)
            winner = order[k];
    return (uint32_t)(winner - t->at);
}

ESP__FN void esp__tournament_text(const esp__tournament *t, esp__text *text) {
    const esp__auto_candidate *order[ESP__AUTO_CANDIDATES], *best = esp__tournament_best(t);
    const esp__auto_candidate *winner = &t->at[esp__tournament_winner(t)];
    const uint32_t n = esp__tournament_order(t, true, order);
    uint32_t tried = 0;
    while (tried < n && order[tried]->n) tried++;
    esp__text_add(text, "chose %s: ", winner->name);
    if (winner == best)
        esp__text_add(text, "the fastest of %u tried", tried);
    else
        esp__text_add(text, "within %g%% of the fastest of %u tried (%s), and compresses less", 100.0 * t->least_gain,
                      tried, best->name);
    if (t->ended) esp__text_add(text, "; ended early: %s", t->ended);
    for (uint32_t k = 0; k < n; k++) {
        const esp__auto_candidate *c = order[k];
        if (k == 0) esp__text_add(text, "; measured, and (predicted), in ms a step: ");
        if (k == tried) esp__text_add(text, "; not tried, because predicted over 1.5 times as slow: ");
        esp__text_add(text, "%s%s ", k && k != tried ? ", " : "", c->name);
        if (c->n) esp__text_add(text, "%.3f ", c->ns / 1e6);
        esp__text_add(text, c->n ? "(%.3f)" : "%.3f", c->predicted_ns / 1e6);
        if (c->slower > 1.0) esp__text_add(text, " x %g steps", c->slower);
    }
}
