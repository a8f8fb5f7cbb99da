/* critical_path.c: local search over the order of ops while all options stay. It exchanges ops on the critical path
 * with the ops for which they wait on their processor or link, as is usual for job shops (Van Laarhoven, Aarts, Lenstra
 * 1992; Balas, Vazacopoulos 1998). Ops before the exchanged ones keep their times, later ops keep their tails (the
 * longest chain of dependent ops to the step's end), so a trial evaluates only the ops between. */
#include "planner/simulate/schedule.h"
#include "planner/search/search.h"

/* Limits: how far an op moves, and past how many ops that use the same processors or links. */
enum { ESP__SHIFT_SPAN = 96, ESP__SHIFT_JUMPS = 6 };

typedef struct esp__shift {
    uint32_t from, n, order[ESP__SHIFT_SPAN + 1];
    uint8_t marked[ESP__SHIFT_SPAN + 1];
} esp__shift;

static int esp__shift_has(const esp__shift *s, uint32_t place) {
    return place - s->from < s->n && s->marked[place - s->from];
}

/* Moves op j before op i, together with the ops between them that must precede j. Returns 0 if i itself must precede
 * j. */
static int esp__shift_pull(const esp__incremental *k, uint32_t i, uint32_t j, esp__shift *s) {
    uint32_t lanes = 0, n = 0;
    s->from = i, s->n = j - i + 1;
    memset(s->marked, 0, s->n);
    if (k->timed_ops[j].before != ESP__NOWHERE && k->timed_ops[j].before >= i)
        s->marked[k->timed_ops[j].before - i] = 1;
    for (uint32_t x = j; x-- > i;) {
        const esp__timed *timed = &k->timed_ops[x];
        if (!s->marked[x - i] && !(timed->lanes & lanes)) continue;
        if (x == i) return 0;
        s->marked[x - i] = 1;
        lanes |= timed->lanes;
        if (timed->before != ESP__NOWHERE && timed->before >= i) s->marked[timed->before - i] = 1;
    }
    s->marked[j - i] = 1;
    for (int marked = 1; marked >= 0; marked--)
        for (uint32_t x = i; x <= j; x++)
            if (s->marked[x - i] == marked) s->order[n++] = x;
    return 1;
}

/* Moves op i after op j, together with the ops between them that must follow i. Returns 0 if j itself must follow i. */
static int esp__shift_push(const esp__incremental *k, uint32_t i, uint32_t j, esp__shift *s) {
    uint32_t lanes = 0, n = 0;
    s->from = i, s->n = j - i + 1;
    memset(s->marked, 0, s->n);
    s->marked[0] = 1;
    for (uint32_t x = i + 1; x <= j; x++) {
        const esp__timed *timed = &k->timed_ops[x];
        if (!(timed->before != ESP__NOWHERE && esp__shift_has(s, timed->before)) && !(timed->lanes & lanes)) continue;
        if (x == j) return 0;
        s->marked[x - i] = 1;
        lanes |= timed->lanes;
    }
    for (int marked = 0; marked < 2; marked++)
        for (uint32_t x = i; x <= j; x++)
            if (s->marked[x - i] == marked) s->order[n++] = x;
    return 1;
}

/* Returns the longest chain of ops through the moved ones, or UINT64_MAX if it reaches `limit`. */
static uint64_t esp__shift_try(esp__incremental *k, const esp__shift *s, uint64_t limit) {
    uint64_t free_at[ESP__LANES], longest = 0;
    uint32_t end = s->from + s->n;
    memcpy(free_at, k->free_at[s->from].lane, sizeof free_at);
    k->p->work += s->n + 4;
    for (uint32_t x = 0; x < s->n; x++) {
        uint32_t i = s->order[x];
        const esp__timed *timed = &k->timed_ops[i];
        uint64_t ready = timed->before == ESP__NOWHERE ? 0
                         : timed->before >= s->from    ? k->now[timed->before]
                                                       : k->end[timed->before];
        uint64_t start = esp__lanes_free(free_at, timed->lanes, ready), at = k->now[i] = start + timed->time.ns,
                 rest = 0;
        esp__lanes_take(free_at, timed->lanes, start, &timed->time);
        if (timed->after != ESP__NOWHERE && timed->after >= end) rest = k->tail[timed->after];
        if (timed->unit == ESP__NEXT_BACKWARD)
            for (uint32_t u = k->attached[timed->tensor]; u < k->attached[timed->tensor + 1]; u++)
                if (k->first[u] != ESP__NOWHERE && k->first[u] >= end && k->tail[k->first[u]] > rest)
                    rest = k->tail[k->first[u]];
        if (at + rest > longest) longest = at + rest;
        if (longest >= limit) return UINT64_MAX;
    }
    for (uint32_t lane = 0; lane < ESP__LANES; lane++)
        if (free_at[lane] + k->next[end].lane[lane] > longest) longest = free_at[lane] + k->next[end].lane[lane];
    return longest < limit ? longest : UINT64_MAX;
}

/* Moves the ops if the step then takes less than `limit`, and returns 1 if it did. It simulates the whole step, because
 * esp__shift_try sees only chains through the moved ops. */
static int esp__shift_take(esp__incremental *k, const esp__shift *s, uint64_t limit) {
    uint32_t was[ESP__SHIFT_SPAN + 1], *sequence = &k->d->sequence[s->from];
    memcpy(was, sequence, s->n * sizeof *was);
    for (uint32_t x = 0; x < s->n; x++) sequence[x] = was[s->order[x] - s->from];
    esp__incremental_retime(k);
    if (k->d->makespan < limit) return 1;
    memcpy(sequence, was, s->n * sizeof *was);
    esp__incremental_retime(k);
    return 0;
}

static int esp__shift_critical(const esp__incremental *k, uint32_t i) {
    return k->end[i] - k->timed_ops[i].time.ns + k->tail[i] == k->d->makespan;
}

static int esp__shift_adjacent(const esp__incremental *k, uint32_t i, uint32_t lanes, uint64_t start) {
    const esp__timed *timed = &k->timed_ops[i];
    for (uint32_t lane = 0; lanes >> lane; lane++)
        if ((lanes & timed->lanes) >> lane & 1u && k->end[i] - timed->time.ns + esp__kept(&timed->time, lane) == start)
            return 1;
    return 0;
}

/* If op j waits for a processor or link, tries to put it before the ops for which it waits. Returns 1 if the step
 * became shorter. */
static int esp__shift_op(esp__incremental *k, uint32_t j) {
    const esp__timed *timed = &k->timed_ops[j];
    uint64_t start = k->end[j] - timed->time.ns, best = k->d->makespan;
    uint32_t jumps = 0;
    esp__shift s, taken;
    if (timed->before != ESP__NOWHERE && k->end[timed->before] == start) return 0;
    taken.n = 0;
    for (uint32_t i = j; i-- > 0 && j - i < ESP__SHIFT_SPAN && jumps < ESP__SHIFT_JUMPS;) {
        if (i == timed->before) break;
        if (!(k->timed_ops[i].lanes & timed->lanes)) continue;
        if (!jumps++ && !esp__shift_adjacent(k, i, timed->lanes, start) &&
            !(k->timed_ops[i].lanes & (k->timed_ops[i].lanes - 1u)))
            continue;
        for (int push = 0; push < 2; push++) {
            if (!(push ? esp__shift_push(k, i, j, &s) : esp__shift_pull(k, i, j, &s))) continue;
            uint64_t t = esp__shift_try(k, &s, best);
            if (t >= best) continue;
            best = t;
            taken = s;
        }
    }
    return taken.n && esp__shift_take(k, &taken, k->d->makespan);
}

ESP__FN int esp__shift_passes(esp__incremental *k) {
    int any = 0;
    for (int better = 1; better && !esp__out_of_time(k->p);) {
        better = 0;
        for (uint32_t j = 1; j < k->n && !esp__out_of_time(k->p); j++)
            while (esp__shift_critical(k, j) && esp__shift_op(k, j)) better = any = 1;
    }
    return any;
}
