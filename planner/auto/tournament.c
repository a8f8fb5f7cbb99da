/* tournament.c: finds the fastest of several candidates. In each round, those that are not clearly slower run a block
 * of steps each, until one is left or those left are as fast. A candidate's cost is its step time times the number of
 * steps that training needs with its codecs, relative to fp32. All ranks pass the same numbers and so get the same
 * result. */
#include "planner/auto/autopilot.h"
#include <math.h>

enum {
    ESP__TRY_BLOCK = 3, /* steps of a block, or more if they are short; twice as many from the third round on */
    /* After ESP__TRY_STEPS of all steps, or after ESP__TRY_FEWER that took esp__try_long_ns, only candidates that never
     * ran may still run. */
    ESP__TRY_STEPS = 400,
    ESP__TRY_FEWER = 260
};
static const double esp__try_long_ns = 40e9;
/* A candidate does not run while its cost is more than this many times the least cost: if it never ran, and if it was
 * measured before the tournament. */
static const double esp__try_excluded = 1.5, esp__try_measured = 2.9;
/* After each round, candidates are out if their cost is more than least_gain and this many standard errors of the
 * difference above the least cost. After the first round, a step's error is guessed: the spread within blocks, times
 * esp__try_within, and at least a share; in an outer context, where blocks are single rounds, another one. Times are
 * exact if the standard error of each difference is below a share. */
static const double esp__try_sure = 1.5, esp__try_within = 1.3, esp__try_error = 0.033, esp__try_outer_error = 0.13;
static const double esp__try_exact = 0.01;
/* A tournament loses time against steps of its best candidate. If it has lost this many such steps, only candidates
 * that never ran may still run. */
static const double esp__try_loss = 15.0;
/* Least time of a block of steps, because changes between strategies take time themselves. */
static const double esp__try_block_ns = 5e6;
/* Most time that steps may wait for communication before other strategies are tried, in steps without waiting. */
static const double esp__measure_loss = 5.0;
/* The first step runs with a candidate whose communication is predicted to be this many times as fast as fp32's. */
static const double esp__first_gain = 10.0;

ESP__FN bool esp__measured_enough(uint32_t steps, double waiting) {
    return steps * waiting >= esp__measure_loss * (1.0 - waiting);
}

static double esp__candidate_cost(const esp__auto_candidate *c) {
    return (c->ns > 0.0 ? c->ns : c->predicted_ns) * c->slower;
}

/* Returns the measured candidate of the least cost, or NULL. One that is out counts only if all are. */
static const esp__auto_candidate *esp__tournament_best(const esp__tournament *t) {
    const esp__auto_candidate *best = NULL;
    for (const esp__auto_candidate *c = t->at; c < t->at + t->n; c++) {
        if (!(c->ns > 0.0)) continue;
        const bool less = best && esp__candidate_cost(c) < esp__candidate_cost(best);
        if (!best || (c->out == best->out ? less : best->out)) best = c;
    }
    return best;
}

/* Returns the cost to expect: if candidate 0 is faster than predicted, others will be, too. */
static double esp__candidate_expected(const esp__tournament *t, const esp__auto_candidate *c) {
    const double shorter = t->at->ns > 0.0 ? fmin(t->at->ns / t->at->predicted_ns, 1.0) : 1.0;
    return esp__candidate_cost(c) * (c->ns > 0.0 ? 1.0 : shorter);
}

static bool esp__tournament_allows(const esp__tournament *t, const esp__auto_candidate *c) {
    double least = INFINITY;
    for (uint32_t i = 0; i < t->n; i++)
        if (!t->at[i].out) least = fmin(least, esp__candidate_expected(t, &t->at[i]));
    const double most = c->n ? INFINITY : c->ns > 0.0 ? esp__try_measured : esp__try_excluded;
    return !c->out && esp__candidate_expected(t, c) <= most * least;
}

ESP__FN uint32_t esp__tournament_first(const esp__tournament *t) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < t->n; i++)
        if (esp__candidate_cost(&t->at[i]) < esp__candidate_cost(&t->at[best])) best = i;
    return t->at[0].predicted_ns > esp__first_gain * esp__candidate_cost(&t->at[best]) ? best : 0;
}

/* Returns the standard error of the difference between two candidates' times, relative to them. */
static double esp__tournament_error(const esp__tournament *t, const esp__auto_candidate *x,
                                    const esp__auto_candidate *y) {
    return t->spread * sqrt(1.0 / fmax(x->n, 1.0) + 1.0 / fmax(y->n, 1.0));
}

/* Ends a round, after which clearly slower candidates are out. */
static void esp__tournament_round_end(esp__tournament *t) {
    const esp__auto_candidate *best = esp__tournament_best(t);
    for (esp__auto_candidate *c = t->at; best && c < t->at + t->n; c++) {
        const double close = t->least_gain + esp__try_sure * esp__tournament_error(t, c, best);
        if (c->n && esp__candidate_cost(c) > (1.0 + close) * esp__candidate_cost(best)) c->out = true;
    }
    t->round++;
}

/* Returns whether there have been enough rounds. */
static bool esp__tournament_enough(const esp__tournament *t) {
    const esp__auto_candidate *best = esp__tournament_best(t);
    double most = 0.0;
    for (const esp__auto_candidate *c = t->at; best && c < t->at + t->n; c++)
        if (!c->out && c->n) most = fmax(most, esp__tournament_error(t, c, best));
    if (t->inner) return t->round >= ESP__TRY_OUTER;
    return t->round == ESP__TRY_ROUNDS || (t->round > 1 && most < esp__try_exact);
}

/* Returns the candidate that must run next, or NULL: of those that never ran, or of those that may run in this round,
 * the one of the least cost. */
static esp__auto_candidate *esp__tournament_pick(esp__tournament *t, bool never_ran) {
    esp__auto_candidate *next = NULL;
    uint32_t allowed = 0;
    for (esp__auto_candidate *c = t->at; c < t->at + t->n; c++) {
        if (!esp__tournament_allows(t, c)) continue;
        allowed++;
        if (never_ran ? c->ns > 0.0 : c->steps[t->round] > 0) continue;
        if (!next || esp__candidate_cost(c) < esp__candidate_cost(next)) next = c;
    }
    return never_ran || allowed > 1 ? next : NULL;
}

ESP__FN bool esp__tournament_step(esp__tournament *t, double ns) {
    t->steps++;
    t->at[t->now].ran++;
    /* The first step after a change touches new memory. */
    if (!t->skip) esp__step_times_add(&t->times, ns);
    t->skip = false;
    return --t->left == 0;
}

/* Sets a candidate's time: the mean over its blocks, each divided by how slow the machine was in its round. */
static void esp__candidate_fit(esp__auto_candidate *c, const double *slow, uint32_t rounds) {
    double sum = 0.0;
    c->n = 0;
    for (uint32_t r = 0; r < rounds; r++)
        if (c->steps[r]) c->n += c->steps[r], sum += c->steps[r] * c->block[r] / slow[r];
    if (c->n) c->ns = sum / c->n;
}

/* Returns how slow the machine was in round r: the mean of its blocks, each divided by its candidate's time. */
static double esp__round_fit(const esp__tournament *t, uint32_t r) {
    double sum = 0.0, n = 0.0;
    for (const esp__auto_candidate *c = t->at; c < t->at + t->n; c++)
        if (c->steps[r]) sum += c->block[r] / c->ns, n++;
    return n > 0.0 ? sum / n : 0.0;
}

/* Returns how slow the machine was on average, in rounds of longer blocks if there were any: times of short ones are
 * those of their fastest step. */
static double esp__mean_slow(const double *slow, uint32_t rounds) {
    double sum = 0.0, n = 0.0;
    for (uint32_t r = rounds > 2 ? 2 : 0; r < rounds; r++) sum += slow[r], n += slow[r] > 0.0;
    return sum / n;
}

/* Sets all candidates' times, as on average, and the spread of steps about them. What slows down the machine for a
 * while slows down all blocks of a round, so it does not count (a two-way layout). */
static void esp__tournament_fit(esp__tournament *t) {
    double slow[ESP__TRY_ROUNDS + 1], sum = 0.0, freedom = 1.0;
    const uint32_t rounds = t->round + 1;
    for (uint32_t r = 0; r < rounds; r++) slow[r] = 1.0;
    for (int k = 0; k < 8; k++) {
        for (uint32_t i = 0; i < t->n; i++) esp__candidate_fit(&t->at[i], slow, rounds);
        for (uint32_t r = 0; r < rounds; r++) slow[r] = esp__round_fit(t, r);
        const double mean = esp__mean_slow(slow, rounds);
        for (uint32_t r = 0; r < rounds; r++) slow[r] /= mean;
    }
    for (uint32_t r = 0; r < rounds; r++) freedom -= slow[r] > 0.0;
    for (const esp__auto_candidate *c = t->at; c < t->at + t->n; c++) {
        freedom -= c->n > 0;
        for (uint32_t r = 0; r < rounds; r++) {
            const double off = c->steps[r] ? c->block[r] / (slow[r] * c->ns) - 1.0 : 0.0;
            sum += c->steps[r] * off * off;
            freedom += c->steps[r] > 0;
        }
    }
    const double guess =
        fmax(t->inner ? esp__try_outer_error : esp__try_error, esp__try_within * t->within / t->blocks);
    t->spread = freedom > 0.0 ? sqrt(sum / freedom) : guess;
}

ESP__FN void esp__tournament_block(esp__tournament *t, double ns, double spread_ns) {
    t->within += spread_ns / fmax(ns, 1.0);
    t->blocks++;
    t->at[t->now].block[t->round] = fmax(ns, 1.0);
    t->at[t->now].steps[t->round] = (uint8_t)esp__step_times_held(&t->times);
    esp__tournament_fit(t);
}

static bool esp__tournament_spent(const esp__tournament *t) {
    const double best = esp__tournament_best(t)->ns;
    double lost = 0.0;
    for (const esp__auto_candidate *c = t->at; c < t->at + t->n; c++) lost += c->ran * (c->ns - best);
    const bool slow = t->steps * best >= esp__try_long_ns;
    return lost > esp__try_loss * best || t->steps >= (slow ? ESP__TRY_FEWER : ESP__TRY_STEPS);
}

ESP__FN int esp__tournament_next(esp__tournament *t) {
    esp__auto_candidate *c = esp__tournament_pick(t, true);
    if (!c) {
        if (t->more || esp__tournament_enough(t)) return -1;
        c = esp__tournament_pick(t, false);
        if (!c) {
            esp__tournament_round_end(t);
            if (!esp__tournament_enough(t)) c = esp__tournament_pick(t, false);
        }
        if (!c) return -1;
        if ((t->ended_early = esp__tournament_spent(t))) return -1;
    }
    t->times.n = 0;
    const double blocks = ceil(esp__try_block_ns / fmax(esp__candidate_cost(c), 1.0) / ESP__TRY_BLOCK);
    t->skip = c - t->at != t->now || t->steps == 0;
    t->left = (t->inner ? 1 : ESP__TRY_BLOCK * (uint32_t)fmin(fmax(blocks, t->round > 1 ? 2.0 : 1.0), 4.0)) + t->skip;
    return (int)(c - t->at);
}

ESP__FN uint32_t esp__tournament_winner(const esp__tournament *t) {
    const esp__auto_candidate *best = esp__tournament_best(t), *winner = best;
    for (const esp__auto_candidate *c = t->at; best && c < t->at + t->n; c++)
        if (!c->out && c->ns > 0.0 && c->loss < winner->loss &&
            esp__candidate_cost(c) <= (1.0 + t->least_gain) * esp__candidate_cost(best))
            winner = c;
    return best ? (uint32_t)(winner - t->at) : t->n;
}

/* Adds the times of the candidates that ran, or of the others. */
static void esp__tournament_times(const esp__tournament *t, bool ran, const char *before, esp__text *text) {
    for (const esp__auto_candidate *c = t->at; c < t->at + t->n; c++) {
        if ((c->ns > 0.0) != ran || (!ran && c->out)) continue; /* `out` here: it could not be activated */
        esp__text_add(text, "%s%s ", before, c->name);
        if (ran) esp__text_add(text, "%.3f ", c->ns / 1e6);
        esp__text_add(text, ran ? "(%.3f)" : "%.3f", c->predicted_ns / 1e6);
        if (c->slower > 1.0) esp__text_add(text, " x %g steps", c->slower);
        before = ", ";
    }
}

ESP__FN void esp__tournament_text(const esp__tournament *t, esp__text *text) {
    const esp__auto_candidate *best = esp__tournament_best(t), *winner = &t->at[esp__tournament_winner(t)];
    uint32_t tried = 0;
    for (uint32_t i = 0; i < t->n; i++) tried += t->at[i].ns > 0.0;
    esp__text_add(text, "chose %s: ", winner->name);
    if (winner == best)
        esp__text_add(text, "the fastest of %u tried", tried);
    else
        esp__text_add(text, "within %g%% of the fastest of %u tried (%s), and compresses less", 100.0 * t->least_gain,
                      tried, best->name);
    if (t->ended_early) esp__text_add(text, "; ended early: trying may cost no more");
    if (t->inner) esp__text_add(text, "; of an exchange and %u inner step%s", t->inner, t->inner > 1 ? "s" : "");
    esp__tournament_times(
        t, true, t->inner ? ", measured and (predicted) in ms: " : "; measured, and (predicted), in ms a step: ", text);
    esp__tournament_times(t, false, "; not tried, because predicted over 1.5 times as slow: ", text);
}
