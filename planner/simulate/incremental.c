/* incremental.c: computes quickly how long a step would be if neighbouring tensors or groups were replaced by others,
 * or got other options (a trial). The tail of an op is the longest chain of dependent ops from its start to the end of
 * the step. A trial inserts the new ops into the order of the old ones. The largest start + tail of the ops that it
 * passes is the step time, so it can stop after the last new op, or when a sum is too large. */
#include "planner/simulate/schedule.h"

/* Returns the longest chain of ops from an op's start: until the tails of the next ops on its processors and links
 * (bits of `lanes`) end, and at least `least`. */
static uint64_t esp__lanes_rest(const uint64_t *next, uint32_t lanes, const esp__op_time *time, uint64_t least) {
    const uint64_t core = time->core, link = time->link;
    if (lanes & 1u && core + next[0] > least) least = core + next[0];
    if (lanes & 2u && core + next[1] > least) least = core + next[1];
    if (lanes & 4u && link + next[2] > least) least = link + next[2];
    if (lanes & 8u && link + next[3] > least) least = link + next[3];
    for (uint32_t k = 4; lanes >> k; k++)
        if (lanes >> k & 1u && esp__kept(time, k) + next[k] > least) least = esp__kept(time, k) + next[k];
    return least;
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */
static void esp__incremental_room(esp__incremental *k, uint32_t n) {
    esp__arena *arena = k->p->arena;
    if (n <= k->room) return;
    k->room = n + n / 2 + 64;
    k->timed_ops = esp__arena_get(arena, k->room * sizeof *k->timed_ops);
    k->end = esp__arena_get(arena, k->room * sizeof *k->end);
    k->now = esp__arena_get(arena, k->room * sizeof *k->now);
    k->tail = esp__arena_get(arena, k->room * sizeof *k->tail);
    k->saved_tail = esp__arena_get(arena, k->room * sizeof *k->tail);
    k->free_at = esp__arena_get(arena, (k->room + 1u) * sizeof *k->free_at);
    k->next = esp__arena_get(arena, (k->room + 1u) * sizeof *k->next);
    k->saved_next = esp__arena_get(arena, (k->room + 1u) * sizeof *k->next);
}

static void esp__incremental_sequence_room(esp__incremental *k, uint32_t n) {
    if (n <= k->room_sequence) return;
    k->sequence = esp__arena_grow(k->p->arena, k->sequence, k->room_sequence * sizeof *k->sequence,
                                  (2u * n + 256u) * sizeof *k->sequence);
    k->room_sequence = 2u * n + 256u;
}

static void esp__incremental_ops(esp__incremental *k) {
    const esp__schedule *d = k->d;
    uint32_t tensor = 0;
    k->n = d->n_sequence;
    for (uint32_t u = 0; u < d->n_units; u++) k->fill[u] = 0, k->first[u] = k->last[u] = ESP__NOWHERE;
    for (uint32_t i = 0; i < k->n; i++) {
        esp__timed *s = &k->timed_ops[i];
        s->unit = d->sequence[i];
        s->after = ESP__NOWHERE;
        if (s->unit == ESP__NEXT_BACKWARD) {
            s->time = esp__backward_time(k->p->compute[tensor]);
            s->lanes = 1u << ESP__LANE_COMPUTE;
            s->tensor = tensor;
            s->before = tensor ? k->backward[tensor - 1] : ESP__NOWHERE;
            k->backward[tensor++] = i;
        } else {
            const esp__plan_op *op = &d->paths[s->unit]->ops[k->fill[s->unit]++];
            uint32_t *last = &k->last[s->unit];
            s->time = op->time;
            s->lanes = op->lanes;
            if (*last == ESP__NOWHERE) {
                k->first[s->unit] = i;
                s->before = k->backward[d->units[s->unit].first + d->units[s->unit].n - 1];
            } else {
                s->before = *last;
            }
            *last = i;
        }
        if (s->before != ESP__NOWHERE && (k->timed_ops[s->before].unit == s->unit)) k->timed_ops[s->before].after = i;
    }
}

static void esp__incremental_forward(esp__incremental *k) {
    uint64_t free_at[ESP__LANES] = {0}, makespan = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        const esp__timed *s = &k->timed_ops[i];
        memcpy(k->free_at[i].lane, free_at, sizeof free_at);
        uint64_t start = esp__lanes_free(free_at, s->lanes, s->before == ESP__NOWHERE ? 0 : k->end[s->before]);
        k->end[i] = k->now[i] = start + s->time.ns;
        esp__lanes_take(free_at, s->lanes, start, &s->time);
        if (k->end[i] > makespan) makespan = k->end[i];
    }
    memcpy(k->free_at[k->n].lane, free_at, sizeof free_at);
    k->d->makespan = makespan;
}

/* Computes the tails of ops [from, to) as if tensors or groups gone, ..., gone + n_gone - 1 did not exist. */
static void esp__incremental_tails(esp__incremental *k, uint32_t from, uint32_t to, uint32_t gone, uint32_t n_gone) {
    const esp__op_time none = {0, 0, 0};
    for (uint32_t i = to; i-- > from;) {
        const esp__timed *s = &k->timed_ops[i];
        k->next[i] = k->next[i + 1];
        /* the difference is unsigned, so the condition is false for s->unit < gone */
        if (s->unit - gone < n_gone) continue;
        uint64_t rest = s->after == ESP__NOWHERE ? 0 : k->tail[s->after];
        if (s->unit == ESP__NEXT_BACKWARD)
            for (uint32_t u = k->attached[s->tensor]; u < k->attached[s->tensor + 1]; u++)
                if (u - gone >= n_gone && k->first[u] != ESP__NOWHERE && k->tail[k->first[u]] > rest)
                    rest = k->tail[k->first[u]];
        k->tail[i] = esp__lanes_rest(k->next[i + 1].lane, s->lanes, &s->time, s->time.ns + rest);
        esp__lanes_take(k->next[i].lane, s->lanes, k->tail[i], &none);
    }
}

ESP__FN void esp__incremental_retime(esp__incremental *k) {
    k->p->work += 2u * k->d->n_sequence;
    esp__incremental_room(k, k->d->n_sequence + ESP__MAX_OPS);
    esp__incremental_ops(k);
    esp__incremental_forward(k);
    memset(&k->next[k->n], 0, sizeof k->next[k->n]);
    esp__incremental_tails(k, 0, k->n, 0, 0);
}

static void esp__incremental_units(esp__incremental *k) {
    const esp__schedule *d = k->d;
    uint32_t tensors = (uint32_t)k->p->n_tensors, u = 0;
    if (d->n_units > k->room_units) {
        k->room_units = d->n_units + d->n_units / 2 + 16;
        k->first = esp__arena_get(k->p->arena, k->room_units * sizeof *k->first);
        k->last = esp__arena_get(k->p->arena, k->room_units * sizeof *k->last);
        k->fill = esp__arena_get(k->p->arena, k->room_units * sizeof *k->fill);
    }
    for (uint32_t t = 0; t < tensors; t++) {
        k->attached[t] = u;
        while (u < d->n_units && d->units[u].first + d->units[u].n - 1 == t) u++;
    }
    k->attached[tensors] = d->n_units;
    memset(k->used, 0, sizeof k->used);
    for (u = 0; u < d->n_units && k->limited; u++) esp__uses_add(d->paths[u], 1.0, k->used);
}

/* Prepares trials. The caller repeats this after it changes the schedule. */
ESP__FN void esp__incremental_prepare(esp__incremental *k) {
    esp__incremental_units(k);
    esp__incremental_retime(k);
}

ESP__FN esp__incremental *esp__incremental_open(esp__problem *p, esp__schedule *d) {
    esp__incremental *k = p->incremental;
    if (!k) {
        p->incremental = k = esp__arena_get(p->arena, sizeof *k);
        k->p = p;
        k->backward = esp__arena_get(p->arena, p->n_tensors * sizeof *k->backward);
        k->attached = esp__arena_get(p->arena, (p->n_tensors + 1u) * sizeof *k->attached);
    }
    k->d = d;
    k->limited = esp__may_use(p, k->may);
    esp__incremental_prepare(k);
    return k;
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */
/* Returns whether an op of one of n tensors or groups, from `unit` on, is in a longest chain of ops of the step. If
 * not, no change to them makes the step shorter. */
ESP__FN int esp__incremental_critical(const esp__incremental *k, uint32_t unit, uint32_t n) {
    for (uint32_t u = unit; u < unit + n; u++)
        for (uint32_t i = k->first[u]; i != ESP__NOWHERE; i = k->timed_ops[i].after)
            if (k->end[i] - k->timed_ops[i].time.ns + k->tail[i] == k->d->makespan) return 1;
    return 0;
}

/* Recomputes the tails of ops as if n_gone tensors or groups from `gone` on did not exist. esp__incremental_restore
 * undoes this. */
ESP__FN void esp__incremental_remove(esp__incremental *k, esp__swap *s, uint32_t gone, uint32_t n_gone) {
    const esp__extent *first = &k->d->units[gone];
    s->gone = gone;
    s->n_gone = n_gone;
    s->from = s->to = k->backward[first->first + first->n - 1] + 1;
    for (uint32_t u = gone; u < gone + n_gone; u++)
        if (k->last[u] != ESP__NOWHERE && k->last[u] + 1 > s->to) s->to = k->last[u] + 1;
    memcpy(&k->saved_tail[s->from], &k->tail[s->from], (s->to - s->from) * sizeof *k->tail);
    memcpy(&k->saved_next[s->from], &k->next[s->from], (s->to - s->from) * sizeof *k->next);
    k->reached = s->to;
    k->p->work += s->to - s->from + 16;
    esp__incremental_tails(k, s->from, s->to, gone, n_gone);
}

ESP__FN void esp__incremental_restore(esp__incremental *k, const esp__swap *s) {
    uint32_t end = k->reached < k->n ? k->reached + 1 : k->n;
    memcpy(&k->now[s->from], &k->end[s->from], (end - s->from) * sizeof *k->now);
    memcpy(&k->tail[s->from], &k->saved_tail[s->from], (s->to - s->from) * sizeof *k->tail);
    memcpy(&k->next[s->from], &k->saved_next[s->from], (s->to - s->from) * sizeof *k->next);
}

/* Returns a lower bound on the step time with any replacement: the longest chain through the remaining ops [from, to),
 * without the removed ones. */
ESP__FN uint64_t esp__incremental_without(esp__incremental *k, const esp__swap *w, uint64_t limit) {
    uint64_t free_at[ESP__LANES], longest = 0;
    memcpy(free_at, k->free_at[w->from].lane, sizeof free_at);
    for (uint32_t i = w->from; i < w->to && longest < limit; i++) {
        const esp__timed *s = &k->timed_ops[i];
        if (s->unit - w->gone < w->n_gone) continue;
        uint64_t start = esp__lanes_free(free_at, s->lanes, k->now[s->before]);
        k->now[i] = start + s->time.ns;
        esp__lanes_take(free_at, s->lanes, start, &s->time);
        if (start + k->tail[i] > longest) longest = start + k->tail[i];
    }
    for (uint32_t lane = 0; lane < ESP__LANES; lane++)
        if (free_at[lane] + k->next[w->to].lane[lane] > longest) longest = free_at[lane] + k->next[w->to].lane[lane];
    return longest;
}

/* Returns the new tensor or group whose next op can start first, at *could; among equals, the one that was ready first.
 * Returns NULL if none is ready. Sets *lanes to what the next ops of all that are ready need: as long as these are not
 * used, the result stays the same. */
static esp__chain *esp__swap_next(esp__swap *w, const uint64_t *free_at, uint32_t place, uint64_t *could,
                                  uint32_t *lanes) {
    esp__chain *best = NULL;
    *lanes = 0;
    for (uint32_t c = 0; c < w->n; c++) {
        esp__chain *x = &w->chains[c];
        if (x->op == x->path->n || x->after >= place) continue;
        uint64_t start = esp__lanes_free(free_at, x->path->ops[x->op].lanes, x->ready);
        *lanes |= x->path->ops[x->op].lanes;
        if (best && (start > *could || (start == *could && x->ready >= best->ready))) continue;
        best = x;
        *could = start;
    }
    return best;
}

static uint64_t esp__waits_from(const uint64_t *free_at, uint32_t lanes, uint64_t ready) {
    return lanes & ESP__CORE_LANES ? esp__lanes_free(free_at, lanes & ESP__LINK_LANES, ready) : ready;
}

/* Returns whether the next op of `c`, which could start at `could`, runs before op `s`, which is ready at `other` and
 * could start at `start`. */
static int esp__goes_first(const esp__chain *c, uint32_t number, uint64_t could, const esp__timed *s, uint64_t other,
                           uint64_t start, const uint64_t *free_at) {
    const uint32_t lanes = c->path->ops[c->op].lanes;
    if (!(lanes & s->lanes)) return could <= start;
    if (lanes & s->lanes & ESP__CORE_LANES) {
        const uint64_t from = esp__waits_from(free_at, lanes, c->ready),
                       other_from = esp__waits_from(free_at, s->lanes, other);
        if (from != other_from) return from < other_from;
    }
    return c->ready != other ? c->ready < other : number < s->unit;
}

/* Inserts the ops of the new tensors or groups. Returns a lower bound on the new step time, or UINT64_MAX if that is
 * not below `limit`. */
ESP__FN uint64_t esp__incremental_try(esp__incremental *k, esp__swap *w, uint64_t limit) {
    uint64_t free_at[ESP__LANES], longest = 0, could = 0;
    uint32_t i = w->from, left = 0, lanes = 0;
    esp__chain *c = NULL;
    memcpy(free_at, k->free_at[i].lane, sizeof free_at);
    w->n_places = 0;
    for (uint32_t x = 0; x < w->n; x++) {
        w->chains[x].op = 0;
        w->chains[x].ready = k->end[w->chains[x].after];
        left += w->chains[x].path->n;
    }
    k->trials++;
    while (left && longest < limit) {
        while (i < k->n && k->timed_ops[i].unit - w->gone < w->n_gone) i++;
        if (!c) c = esp__swap_next(w, free_at, i, &could, &lanes);
        if (i < k->n) {
            const esp__timed *s = &k->timed_ops[i];
            uint64_t other = k->now[s->before];
            uint64_t start = esp__lanes_free(free_at, s->lanes, other);
            if (!c || !esp__goes_first(c, w->gone, could, s, other, start, free_at)) {
                k->now[i] = start + s->time.ns;
                esp__lanes_take(free_at, s->lanes, start, &s->time);
                if (start + k->tail[i] > longest) longest = start + k->tail[i];
                if (s->unit == ESP__NEXT_BACKWARD)
                    for (uint32_t x = 0; x < w->n; x++)
                        if (w->chains[x].after == i) w->chains[x].ready = k->now[i];
                if (s->lanes & lanes || s->unit == ESP__NEXT_BACKWARD) c = NULL;
                i++;
                continue;
            }
        }
        const esp__plan_op *op = &c->path->ops[c->op++];
        c->ready = could + op->time.ns;
        uint64_t through = could + esp__lanes_rest(k->next[i].lane, op->lanes, &op->time, op->time.ns);
        if (through > longest) longest = through;
        esp__lanes_take(free_at, op->lanes, could, &op->time);
        w->places[w->n_places].before = i;
        w->places[w->n_places++].chain = (uint32_t)(c - w->chains);
        c = NULL;
        left--;
    }
    if (i > k->reached) k->reached = i;
    k->p->work += i - w->from + w->n_places + 16;
    return longest < limit ? longest : UINT64_MAX;
}

/* Returns whether the trial's schedule keeps each limit of memory, volume and error, or exceeds it no more than the
 * current one. */
ESP__FN bool esp__incremental_allows(const esp__incremental *k, const esp__swap *w) {
    double more[ESP__LIMITS] = {0.0};
    if (!k->limited) return true;
    for (uint32_t u = w->gone; u < w->gone + w->n_gone; u++) esp__uses_add(k->d->paths[u], -1.0, more);
    for (uint32_t i = 0; i < w->n; i++) esp__uses_add(w->chains[i].path, 1.0, more);
    for (uint32_t l = 0; l < ESP__LIMITS; l++)
        if (more[l] > 0.0 && k->used[l] + more[l] > k->may[l]) return false;
    return true;
}

ESP__FN void esp__incremental_set(esp__incremental *k, const esp__swap *w) {
    esp__schedule *d = k->d;
    uint32_t n = 0, place = 0, rest = d->n_units - w->gone - w->n_gone;
    esp__incremental_sequence_room(k, d->n_sequence + w->n_places);
    for (uint32_t i = 0; i <= d->n_sequence; i++) {
        for (; place < w->n_places && w->places[place].before == i; place++)
            k->sequence[n++] = w->gone + w->places[place].chain;
        if (i == d->n_sequence || d->sequence[i] - w->gone < w->n_gone) continue;
        uint32_t u = d->sequence[i];
        k->sequence[n++] = u == ESP__NEXT_BACKWARD || u < w->gone ? u : u - w->n_gone + w->n;
    }
    esp__schedule_room_units(k->p, d, d->n_units - w->n_gone + w->n);
    memmove(&d->units[w->gone + w->n], &d->units[w->gone + w->n_gone], rest * sizeof *d->units);
    memmove((void *)&d->paths[w->gone + w->n], (const void *)&d->paths[w->gone + w->n_gone], rest * sizeof *d->paths);
    for (uint32_t c = 0; c < w->n; c++) {
        d->units[w->gone + c] = w->chains[c].unit;
        d->paths[w->gone + c] = w->chains[c].path;
    }
    d->n_units = d->n_units - w->n_gone + w->n;
    esp__sequence_room(k->p, d);
    memcpy(d->sequence, k->sequence, n * sizeof *d->sequence);
    esp__incremental_prepare(k);
}

ESP__FN int esp__incremental_take(esp__incremental *k, const esp__swap *w, uint64_t limit) {
    esp__schedule_copy(k->p, &k->before, k->d);
    esp__incremental_set(k, w);
    const uint64_t placed = k->d->makespan;
    esp__schedule_copy(k->p, &k->other, k->d);
    if (esp__generate(k->p, &k->other) >= (placed < limit ? placed : limit)) {
        if (placed < limit) return 1;
        esp__schedule_copy(k->p, k->d, &k->before);
        esp__incremental_prepare(k);
        return 0;
    }
    esp__schedule_copy(k->p, k->d, &k->other);
    esp__incremental_prepare(k);
    return 1;
}
