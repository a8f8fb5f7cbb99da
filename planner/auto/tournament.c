/* tournament.c: finds the fastest of several candidates by successive halving: they run in turns, a few steps each, and
 * after each round those that are clearly slower are left out. It sees only times, and does the same on all ranks.
 * A candidate's cost is its step time, measured or else predicted, times the relative number of steps that training
 * needs with its codecs. */
#include "planner/auto/autopilot.h"
#include "espresso_impl/base/quantile.h"
#include <math.h>

enum { ESP__TRY_STEPS = 200 }; /* a tournament of more steps ends */
/* A candidate is not tried while its predicted cost is more than this many times the least cost. */
static const double esp__try_excluded = 1.5;
/* A measurement from before the tournament decides only if it is this many times the least cost. */
static const double esp__try_stale = 3.0;
/* The loss of a tournament, in steps of its best candidate, after which only candidates that never ran may run. */
static const double esp__try_loss = 15.0;
static const double esp__try_block_ns = 5e6; /* shortest blocks of steps, because changes take time themselves */

static double esp__candidate_cost(const esp__auto_candidate *c) { return (c->n ? c->ns : c->predicted_ns) * c->slower; }

static bool esp__candidate_fresh(const esp__auto_candidate *c) { return c->n && !c->stale; }

/* Returns the candidate of the least cost, among those that were measured if there is one; UINT32_MAX if all are
 * out. */
static uint32_t esp__tournament_best(const esp__tournament *t) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < t->n; i++) {
        const esp__auto_candidate *c = &t->at[i], *b = best < t->n ? &t->at[best] : NULL;
        if (c->out || (b && b->n && !c->n)) continue;
        if (!b || (c->n && !b->n) || esp__candidate_cost(c) < esp__candidate_cost(b)) best = i;
    }
    return best;
}

/* Whether the candidate may run: it was measured, or its prediction does not exclude it. */
static bool esp__tournament_allows(const esp__tournament *t, const esp__auto_candidate *c) {
    double least = INFINITY;
    for (uint32_t i = 0; i < t->n; i++)
        if (!t->at[i].out) least = fmin(least, esp__candidate_cost(&t->at[i]));
    return !c->out && (c->n || esp__candidate_cost(c) <= esp__try_excluded * least);
}

/* Returns the time that the tournament has lost against running its best candidate all the time. */
static double esp__tournament_lost(const esp__tournament *t, const esp__auto_candidate *best) {
    return t->total_ns - t->steps * best->ns;
}

/* Returns by which share two measured medians may differ by chance: twice the standard error of their difference. */
static double esp__tournament_margin(const esp__tournament *t, const esp__auto_candidate *a,
                                     const esp__auto_candidate *b) {
    double spreads[ESP__AUTO_CANDIDATES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->at[i].n >= 4) spreads[n++] = t->at[i].spread;
    const double noise = n ? esp__median(spreads, n) : t->noise;
    return 2.0 * 0.93 * fmax(noise, 0.02) * sqrt(1.0 / a->n + 1.0 / b->n);
}

/* Decides about one candidate after a round. `rank` is the number of faster ones, of `of`. */
static void esp__tournament_judge(const esp__tournament *t, const esp__auto_candidate *best, esp__auto_candidate *c,
                                  uint32_t rank, uint32_t of) {
    const double behind = esp__candidate_cost(c) / esp__candidate_cost(best) - 1.0, gain = t->least_gain;
    const double margin = esp__tournament_margin(t, c, best);
    const bool gentler = c->loss<best->loss, half = t->round> 1 && 2 * rank >= of;
    if (c->stale)
        c->out = behind > esp__try_stale - 1.0;
    else if (behind > gain + margin || (half && behind > fmax(gain, 0.5 * margin)))
        c->out = true;
    else if (margin <= gain || (!gentler && behind > margin))
        c->tie = gentler && behind <= gain, c->out = !c->tie;
}

static void esp__tournament_round_end(esp__tournament *t) {
    const uint32_t best = esp__tournament_best(t);
    uint32_t of = 0, rank[ESP__AUTO_CANDIDATES] = {0};
    if (best == UINT32_MAX || !t->at[best].n) return;
    for (uint32_t i = 0; i < t->n; i++) {
        of += esp__candidate_fresh(&t->at[i]) && !t->at[i].out;
        for (uint32_t k = 0; k < t->n; k++)
            rank[i] += esp__candidate_fresh(&t->at[k]) && !t->at[k].out &&
                       esp__candidate_cost(&t->at[k]) < esp__candidate_cost(&t->at[i]);
    }
    for (uint32_t i = 0; i < t->n; i++) {
        t->at[i].tie = false;
        if (i != best && t->at[i].n && !t->at[i].out) esp__tournament_judge(t, &t->at[best], &t->at[i], rank[i], of);
    }
}

/* Lists the blocks of the next round: all that may run and are not decided, in the order of their costs, and then in
 * reverse, so that drift of the machine hits all alike. Candidates that never ran come first, each for one block. */
static void esp__tournament_round(esp__tournament *t) {
    uint32_t n = 0, fresh = 0;
    t->n_queue = t->at_queue = 0;
    for (uint32_t i = 0; i < t->n; i++) fresh += esp__tournament_allows(t, &t->at[i]) && !t->at[i].n;
    for (uint32_t i = 0; i < t->n; i++) {
        if (!esp__tournament_allows(t, &t->at[i]) || t->at[i].tie || (fresh && t->at[i].n)) continue;
        uint32_t k = n++;
        for (; k && esp__candidate_cost(&t->at[t->queue[k - 1]]) > esp__candidate_cost(&t->at[i]); k--)
            t->queue[k] = t->queue[k - 1];
        t->queue[k] = (uint8_t)i;
    }
    if (!fresh && n == 1) n = 0; /* it is decided */
    for (uint32_t k = 0; k < n && !fresh; k++) t->queue[n + k] = t->queue[n - 1 - k];
    t->n_queue = fresh ? n : 2 * n;
}

ESP__FN void esp__tournament_begin(esp__tournament *t, uint32_t now, double least_gain, double noise) {
    t->now = now;
    t->least_gain = least_gain;
    t->noise = noise;
    t->round = t->left = t->steps = t->n_queue = t->at_queue = 0;
    t->total_ns = 0.0;
    t->ended = NULL;
}

ESP__FN bool esp__tournament_step(esp__tournament *t, double ns) {
    esp__auto_candidate *c = &t->at[t->now];
    t->steps++;
    /* The first step after a change touches new memory. */
    if (!t->skip) c->times[c->n_times++ % ESP__TRY_TIMES] = ns;
    t->skip = false;
    return --t->left == 0;
}

ESP__FN void esp__tournament_block(esp__tournament *t, double ns, double spread_ns, double total_ns) {
    esp__auto_candidate *c = &t->at[t->now];
    c->ns = ns;
    c->spread = ns > 0.0 ? spread_ns / ns : 0.0;
    c->n = c->n_times < ESP__TRY_TIMES ? c->n_times : ESP__TRY_TIMES;
    c->stale = false;
    t->total_ns += total_ns;
}

/* Whether only candidates that never ran may still run. */
static bool esp__tournament_ends(esp__tournament *t) {
    const uint32_t best = esp__tournament_best(t);
    if (best == UINT32_MAX || !t->at[best].n) return false;
    if (esp__tournament_lost(t, &t->at[best]) > esp__try_loss * t->at[best].ns)
        t->ended = "trying may cost no more";
    else if (t->steps >= ESP__TRY_STEPS)
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
        if (c->stale) c->n_times = 0;
        const double most = ceil(esp__try_block_ns / fmax(esp__candidate_cost(c), 1.0));
        t->left = lengths[t->round > 4 ? 3 : t->round - 1] * (uint32_t)fmin(fmax(most, 1.0), 4.0);
        t->skip = i != t->now || t->steps == 0;
        t->left += t->skip;
        return (int)i;
    }
}

ESP__FN uint32_t esp__tournament_winner(const esp__tournament *t) {
    const uint32_t best = esp__tournament_best(t);
    uint32_t winner = best;
    for (uint32_t i = 0; i < t->n && best < t->n; i++) {
        const esp__auto_candidate *c = &t->at[i];
        if (c->out || !c->n || esp__candidate_cost(c) > (1.0 + t->least_gain) * esp__candidate_cost(&t->at[best]))
            continue;
        if (c->loss < t->at[winner].loss) winner = i;
    }
    return winner;
}

/* ---- the log's line ---------------------------------------------------------------------------------------------- */
static size_t esp__tournament_list(const esp__tournament *t, bool tried, char *text, size_t room, size_t at) {
    const char *before = tried ? "; measured, and (predicted), in ms a step: "
                               : "; not tried, because predicted over 1.5 times as slow: ";
    bool listed[ESP__AUTO_CANDIDATES] = {false};
    for (uint32_t k = 0; k < t->n; k++) {
        uint32_t i = UINT32_MAX;
        for (uint32_t j = 0; j < t->n; j++)
            if (!listed[j] && tried == (t->at[j].n > 0) &&
                (i == UINT32_MAX || esp__candidate_cost(&t->at[j]) < esp__candidate_cost(&t->at[i])))
                i = j;
        if (i == UINT32_MAX || at >= room) break;
        const esp__auto_candidate *c = &t->at[i];
        listed[i] = true;
        at += (size_t)snprintf(text + at, room - at, "%s%s ", before, c->name);
        before = ", ";
        if (at < room && tried) at += (size_t)snprintf(text + at, room - at, "%.3f ", c->ns / 1e6);
        if (at < room) at += (size_t)snprintf(text + at, room - at, tried ? "(%.3f)" : "%.3f", c->predicted_ns / 1e6);
        if (at < room && c->slower > 1.0) at += (size_t)snprintf(text + at, room - at, " x %g steps", c->slower);
    }
    return at;
}

ESP__FN void esp__tournament_text(const esp__tournament *t, char *text, size_t room) {
    const uint32_t winner = esp__tournament_winner(t), best = esp__tournament_best(t);
    uint32_t tried = 0;
    size_t at;
    for (uint32_t i = 0; i < t->n; i++) tried += t->at[i].n > 0;
    if (winner == best)
        at = (size_t)snprintf(text, room, "chose %s: the fastest of %u tried", t->at[winner].name, tried);
    else
        at = (size_t)snprintf(text, room, "chose %s: within %g%% of the fastest of %u tried (%s), and compresses less",
                              t->at[winner].name, 100.0 * t->least_gain, tried, t->at[best].name);
    if (at < room && t->ended) at += (size_t)snprintf(text + at, room - at, "; ended early: %s", t->ended);
    if (at < room) at = esp__tournament_list(t, true, text, room, at);
    if (at < room) esp__tournament_list(t, false, text, room, at);
}
