/* improve.c: takes a draft to a local optimum, units as given: for one unit after the other every other path is tried in a
 * fixed sequence of all other ops.
 *
 * A trial costs little. Without the unit, every other op has a *tail*: the longest path from its start to the end of the
 * step. The unit's new ops are then merged into the sequence by ready time, from the unit's backward on; of every op that
 * comes by, start + tail is a path through the new schedule, and the longest of these is its makespan. So a trial ends
 * with the unit's last op, or at the first path that is too long. */
#include "plan.h"

typedef struct esp__spot { /* one op of the sequence */
    uint64_t ns;
    uint32_t unit;          /* or ESP__NEXT_BACKWARD */
    uint32_t before, after; /* places of its chain's neighbours; backward: of the backward before and after */
    uint32_t tensor;        /* of a backward */
    uint8_t lanes;
} esp__spot;
#define ESP__NOWHERE 0xffffffffu

typedef struct esp__times {
    uint64_t lane[ESP__LANES];
} esp__times;

/* A draft laid out for trials. */
typedef struct esp__desk {
    esp__problem *p;
    esp__draft *d;
    uint32_t n, room;
    esp__spot *spots;
    uint64_t *end, *now; /* [n] in the draft; in the trial under way                                     */
    uint64_t *tail;      /* [n] from its start to the end of the step                                    */
    esp__times *free_at; /* [n] when lanes are free just before this op                                   */
    esp__times *next;    /* [n + 1] tail of the next op on each lane, from this place on                 */
    uint64_t *saved_tail;
    esp__times *saved_next;
    uint32_t *first, *last; /* [units] places of a unit's ops                                         */
    uint32_t *backward;     /* [tensors] place                                                       */
    uint32_t *attached;     /* [tensors + 1] first unit that ends with this tensor or a later one     */
    uint32_t *fill, *sequence, *saved_sequence; /* scratch                                              */
    uint64_t memory, volume; /* sums over the draft, for the limits                                     */
    double error;
    uint64_t trials;
} esp__desk;

static uint64_t esp__lanes_free(const uint64_t *free_at, uint32_t lanes, uint64_t ready) {
    if (lanes & 1u && free_at[0] > ready) ready = free_at[0];
    if (lanes & 2u && free_at[1] > ready) ready = free_at[1];
    if (lanes & 4u && free_at[2] > ready) ready = free_at[2];
    if (lanes & 8u && free_at[3] > ready) ready = free_at[3];
    return ready;
}

static void esp__lanes_take(uint64_t *free_at, uint32_t lanes, uint64_t end) {
    if (lanes & 1u) free_at[0] = end;
    if (lanes & 2u) free_at[1] = end;
    if (lanes & 4u) free_at[2] = end;
    if (lanes & 8u) free_at[3] = end;
}

/* The largest of the lanes' values, or `least`. */
static uint64_t esp__lanes_max(const uint64_t *value, uint32_t lanes, uint64_t least) {
    return esp__lanes_free(value, lanes, least);
}

/* ---- laying out ------------------------------------------------------------------------------------------------------ */
static void esp__desk_room(esp__desk *k, uint32_t n) {
    esp__pool *pool = k->p->pool;
    const uint32_t *saved = k->saved_sequence, n_saved = k->room;
    if (n <= k->room) return;
    k->room = n + n / 2 + 64;
    k->spots = esp__pool_get(pool, k->room * sizeof *k->spots);
    k->end = esp__pool_get(pool, k->room * sizeof *k->end);
    k->now = esp__pool_get(pool, k->room * sizeof *k->now);
    k->tail = esp__pool_get(pool, k->room * sizeof *k->tail);
    k->saved_tail = esp__pool_get(pool, k->room * sizeof *k->tail);
    k->free_at = esp__pool_get(pool, (k->room + 1u) * sizeof *k->free_at);
    k->next = esp__pool_get(pool, (k->room + 1u) * sizeof *k->next);
    k->saved_next = esp__pool_get(pool, (k->room + 1u) * sizeof *k->next);
    k->sequence = esp__pool_get(pool, k->room * sizeof *k->sequence);
    k->saved_sequence = esp__pool_get(pool, k->room * sizeof *k->sequence);
    if (saved) memcpy(k->saved_sequence, saved, n_saved * sizeof *saved);
}

/* Places and links of all ops, from the draft's sequence. */
static void esp__desk_spots(esp__desk *k) {
    const esp__draft *d = k->d;
    uint32_t tensor = 0;
    k->n = d->n_sequence;
    for (uint32_t u = 0; u < d->n_units; u++) k->fill[u] = 0, k->first[u] = k->last[u] = ESP__NOWHERE;
    for (uint32_t i = 0; i < k->n; i++) {
        esp__spot *s = &k->spots[i];
        s->unit = d->sequence[i];
        s->after = ESP__NOWHERE;
        if (s->unit == ESP__NEXT_BACKWARD) {
            s->ns = k->p->compute[tensor];
            s->lanes = 1u << ESP__LANE_COMPUTE;
            s->tensor = tensor;
            s->before = tensor ? k->backward[tensor - 1] : ESP__NOWHERE;
            k->backward[tensor++] = i;
        } else {
            const esp__plan_op *op = &d->paths[s->unit]->ops[k->fill[s->unit]++];
            uint32_t *last = &k->last[s->unit];
            s->ns = op->ns;
            s->lanes = op->lanes;
            if (*last == ESP__NOWHERE) {
                k->first[s->unit] = i;
                s->before = k->backward[d->units[s->unit].first + d->units[s->unit].n - 1];
            } else {
                s->before = *last;
            }
            *last = i;
        }
        /* a backward's other followers, the units that it makes ready, are found through `attached` */
        if (s->before != ESP__NOWHERE && (k->spots[s->before].unit == s->unit)) k->spots[s->before].after = i;
    }
}

static void esp__desk_forward(esp__desk *k) {
    uint64_t free_at[ESP__LANES] = {0}, makespan = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        const esp__spot *s = &k->spots[i];
        memcpy(k->free_at[i].lane, free_at, sizeof free_at);
        uint64_t start = esp__lanes_free(free_at, s->lanes, s->before == ESP__NOWHERE ? 0 : k->end[s->before]);
        k->end[i] = k->now[i] = start + s->ns;
        esp__lanes_take(free_at, s->lanes, k->end[i]);
        if (k->end[i] > makespan) makespan = k->end[i];
    }
    memcpy(k->free_at[k->n].lane, free_at, sizeof free_at);
    k->d->makespan = makespan;
}

/* Tails of the places [from, to), as if unit `without` were not there. */
static void esp__desk_tails(esp__desk *k, uint32_t from, uint32_t to, uint32_t without) {
    for (uint32_t i = to; i-- > from;) {
        const esp__spot *s = &k->spots[i];
        k->next[i] = k->next[i + 1];
        if (s->unit == without) continue;
        uint64_t rest = s->after == ESP__NOWHERE ? 0 : k->tail[s->after];
        if (s->unit == ESP__NEXT_BACKWARD)
            for (uint32_t u = k->attached[s->tensor]; u < k->attached[s->tensor + 1]; u++)
                if (u != without && k->first[u] != ESP__NOWHERE && k->tail[k->first[u]] > rest)
                    rest = k->tail[k->first[u]];
        k->tail[i] = s->ns + esp__lanes_max(k->next[i + 1].lane, s->lanes, rest);
        esp__lanes_take(k->next[i].lane, s->lanes, k->tail[i]);
    }
}

static void esp__desk_lay(esp__desk *k) {
    esp__desk_room(k, k->d->n_sequence + ESP__MAX_OPS);
    esp__desk_spots(k);
    esp__desk_forward(k);
    memset(&k->next[k->n], 0, sizeof k->next[k->n]);
    esp__desk_tails(k, 0, k->n, ESP__NOWHERE - 1);
}

static esp__desk *esp__desk_open(esp__problem *p, esp__draft *d) {
    esp__desk *k = esp__pool_get(p->pool, sizeof *k);
    uint32_t tensors = (uint32_t)p->n_tensors, u = 0;
    k->p = p;
    k->d = d;
    k->first = esp__pool_get(p->pool, d->n_units * sizeof *k->first);
    k->last = esp__pool_get(p->pool, d->n_units * sizeof *k->last);
    k->fill = esp__pool_get(p->pool, d->n_units * sizeof *k->fill);
    k->backward = esp__pool_get(p->pool, tensors * sizeof *k->backward);
    k->attached = esp__pool_get(p->pool, (tensors + 1u) * sizeof *k->attached);
    for (uint32_t t = 0; t < tensors; t++) {
        k->attached[t] = u;
        while (u < d->n_units && d->units[u].first + d->units[u].n - 1 == t) u++;
    }
    k->attached[tensors] = d->n_units;
    for (u = 0; u < d->n_units; u++) {
        k->memory += d->paths[u]->memory;
        k->volume += d->paths[u]->volume;
        k->error += d->paths[u]->error;
    }
    esp__desk_lay(k);
    return k;
}

/* ---- trials ------------------------------------------------------------------------------------------------------------ */
/* How a unit's new ops find their place: by ready time; the next backward before a Comp that is ready as early; or as
 * early as a lane lets them. */
enum { ESP__BY_READY = 0, ESP__BACKWARD_FIRST, ESP__EAGER, ESP__WAYS };

/* The tails are those without unit `u`, from its backward on. Returns how far they were changed (for unlifting). */
static uint32_t esp__desk_lift(esp__desk *k, uint32_t u, uint32_t from) {
    uint32_t to = k->last[u] == ESP__NOWHERE ? from : k->last[u] + 1;
    memcpy(&k->saved_tail[from], &k->tail[from], (to - from) * sizeof *k->tail);
    memcpy(&k->saved_next[from], &k->next[from], (to - from) * sizeof *k->next);
    esp__desk_tails(k, from, to, u);
    return to;
}

static void esp__desk_unlift(esp__desk *k, uint32_t from, uint32_t to) {
    memcpy(&k->tail[from], &k->saved_tail[from], (to - from) * sizeof *k->tail);
    memcpy(&k->next[from], &k->saved_next[from], (to - from) * sizeof *k->next);
}

/* The step without the lifted unit: no longer than any with it. At least that: paths that pass by [from, to) are left out. */
static uint64_t esp__desk_without(esp__desk *k, uint32_t u, uint32_t from, uint32_t to, uint64_t limit) {
    uint64_t free_at[ESP__LANES], longest = 0;
    memcpy(free_at, k->free_at[from].lane, sizeof free_at);
    for (uint32_t i = from; i < to && longest < limit; i++) {
        const esp__spot *s = &k->spots[i];
        if (s->unit == u) continue;
        uint64_t start = esp__lanes_free(free_at, s->lanes, s->before == ESP__NOWHERE ? 0 : k->now[s->before]);
        k->now[i] = start + s->ns;
        esp__lanes_take(free_at, s->lanes, k->now[i]);
        if (start + k->tail[i] > longest) longest = start + k->tail[i];
    }
    for (uint32_t lane = 0; lane < ESP__LANES; lane++)
        if (free_at[lane] + k->next[to].lane[lane] > longest) longest = free_at[lane] + k->next[to].lane[lane];
    return longest;
}

/* Does `op` of unit u, ready at `ready`, take its lanes before the op at `s`, which is ready at `other` and would start at `start`? */
static int esp__goes_first(const esp__plan_op *op, uint32_t u, uint64_t ready, uint64_t could, const esp__spot *s,
                           uint64_t other, uint64_t start, int way) {
    if (!(op->lanes & s->lanes)) return could <= start;
    if (way == ESP__EAGER) return could <= start;
    if (ready != other) return ready < other;
    if (s->unit == ESP__NEXT_BACKWARD) return way != ESP__BACKWARD_FIRST;
    return u < s->unit;
}

/* The makespan with this path for the lifted unit u, if it is below limit (else UINT64_MAX). places[i]: before which spot op i goes. */
static uint64_t esp__desk_try(esp__desk *k, uint32_t u, const esp__path *path, uint32_t from, int way, uint64_t limit,
                              uint32_t *places, uint32_t *reached) {
    uint64_t free_at[ESP__LANES], ready = k->end[from - 1], longest = 0;
    uint32_t i = from, op = 0;
    memcpy(free_at, k->free_at[i].lane, sizeof free_at);
    k->trials++;
    while (op < path->n) {
        const esp__plan_op *b = &path->ops[op];
        while (i < k->n && k->spots[i].unit == u) i++;
        uint64_t could = esp__lanes_free(free_at, b->lanes, ready), start = 0;
        if (i < k->n) {
            const esp__spot *s = &k->spots[i];
            uint64_t other =
                k->now[s->before]; /* `from` comes after a backward: every op from here on follows some op */
            start = esp__lanes_free(free_at, s->lanes, other);
            if (!esp__goes_first(b, u, ready, could, s, other, start, way)) {
                k->now[i] = start + s->ns;
                esp__lanes_take(free_at, s->lanes, k->now[i]);
                if (start + k->tail[i] > longest) longest = start + k->tail[i];
                if (longest >= limit) break;
                i++;
                continue;
            }
        }
        ready = could + b->ns;
        uint64_t through = ready + esp__lanes_max(k->next[i].lane, b->lanes, 0);
        if (through > longest) longest = through;
        if (longest >= limit) break;
        esp__lanes_take(free_at, b->lanes, ready);
        places[op++] = i;
    }
    if (i > *reached) *reached = i;
    return op == path->n && longest < limit ? longest : UINT64_MAX;
}

/* Would the draft with this path for unit u be within the limits? */
static int esp__desk_allows(const esp__desk *k, uint32_t u, const esp__path *path) {
    const esp_plan_config *c = &k->p->config;
    const esp__path *old = k->d->paths[u];
    double elements = 0.0;
    if (!c->max_memory_bytes && !(c->max_volume > 0.0) && !(c->max_error > 0.0)) return 1;
    for (uint32_t i = 0; i < k->d->n_units; i++) elements += (double)k->d->units[i].elements;
    uint64_t memory = k->memory - old->memory + path->memory, volume = k->volume - old->volume + path->volume;
    if (c->max_memory_bytes && memory > c->max_memory_bytes && path->memory > old->memory) return 0;
    if (c->max_volume > 0.0 && (double)volume > c->max_volume * 4.0 * elements && path->volume > old->volume) return 0;
    return !(c->max_error > 0.0) || k->error - old->error + path->error <= c->max_error * elements ||
           path->error <= old->error;
}

/* Gives unit u this path, its ops put where the trial found places for them. */
static void esp__desk_set(esp__desk *k, uint32_t u, const esp__path *path, const uint32_t *places) {
    esp__draft *d = k->d;
    uint32_t n = 0, op = 0;
    for (uint32_t i = 0; i <= d->n_sequence; i++) {
        while (op < path->n && places[op] == i) k->sequence[n++] = u, op++;
        if (i < d->n_sequence && d->sequence[i] != u) k->sequence[n++] = d->sequence[i];
    }
    k->memory += path->memory - d->paths[u]->memory;
    k->volume += path->volume - d->paths[u]->volume;
    k->error += path->error - d->paths[u]->error;
    d->paths[u] = path;
    esp__sequence_room(k->p, d);
    memcpy(d->sequence, k->sequence, n * sizeof *d->sequence);
    esp__desk_lay(k);
}

/* Tries every path of the menu for unit u; takes the best if it makes the step shorter. */
static int esp__improve_unit(esp__desk *k, uint32_t u) {
    esp__draft *d = k->d;
    const esp__menu *menu = esp__menu_get(k->p, &d->units[u]);
    uint32_t from = k->backward[d->units[u].first + d->units[u].n - 1] + 1, reached = from, to;
    uint32_t places[2][ESP__MAX_OPS];
    uint64_t before = d->makespan, best = before, without;
    const esp__path *best_path = NULL, *old = d->paths[u];
    to = esp__desk_lift(k, u, from);
    without = esp__desk_without(k, u, from, to, before);
    reached = to;
    if (without < before) {
        for (uint32_t i = 0; i < menu->n; i++) {
            const esp__path *path = &menu->paths[i];
            for (int way = 0; way < ESP__WAYS; way++) {
                if (way && path != old && path != best_path) continue; /* other ways for what looks good only */
                if (!esp__desk_allows(k, u, path)) continue;
                uint64_t t = esp__desk_try(k, u, path, from, way, best, places[0], &reached);
                if (t < without) t = without;
                if (t >= best) continue;
                best = t;
                best_path = path;
                memcpy(places[1], places[0], sizeof places[1]);
            }
        }
    }
    memcpy(&k->now[from], &k->end[from], (reached < k->n ? reached + 1 - from : k->n - from) * sizeof *k->now);
    esp__desk_unlift(k, from, to);
    if (!best_path) return 0;
    memcpy(k->saved_sequence, d->sequence, d->n_sequence * sizeof *d->sequence);
    uint32_t n = d->n_sequence;
    esp__desk_set(k, u, best_path, places[1]);
    if (d->makespan < before) return 1;
    /* a path that passes the window by is as long as before: nothing about this unit can help */
    k->memory += old->memory - best_path->memory;
    k->volume += old->volume - best_path->volume;
    k->error += old->error - best_path->error;
    d->paths[u] = old;
    d->n_sequence = n;
    memcpy(d->sequence, k->saved_sequence, n * sizeof *d->sequence);
    esp__desk_lay(k);
    return 0;
}

typedef struct esp__ranked {
    uint64_t elements;
    uint32_t unit;
} esp__ranked;

static int esp__ranked_before(const void *a, const void *b) {
    const esp__ranked *x = a, *y = b;
    if (x->elements != y->elements) return x->elements > y->elements ? -1 : 1;
    return x->unit > y->unit ? -1 : 1;
}

/* Units by size, descending; of equal ones those later in backward order first (Espresso, section 4.3). */
static esp__ranked *esp__ranking(esp__problem *p, const esp__draft *d) {
    esp__ranked *r = esp__pool_get(p->pool, d->n_units * sizeof *r);
    for (uint32_t u = 0; u < d->n_units; u++) {
        r[u].elements = d->units[u].elements;
        r[u].unit = u;
    }
    qsort(r, d->n_units, sizeof *r, esp__ranked_before);
    return r;
}

/* Passes over all units until none helps. */
static void esp__improve_passes(esp__desk *k, const esp__ranked *ranking) {
    int better = 1;
    while (better && !esp__out_of_time(k->p)) {
        better = 0;
        for (uint32_t i = 0; i < k->d->n_units && !esp__out_of_time(k->p); i++)
            better |= esp__improve_unit(k, ranking[i].unit);
    }
}

ESP__FN void esp__improve(esp__problem *p, esp__draft *d) {
    esp__desk *k = esp__desk_open(p, d);
    esp__ranked *ranking = esp__ranking(p, d);
    esp__draft other = {0};
    for (int round = 0; round < 8 && !esp__out_of_time(p); round++) {
        esp__improve_passes(k, ranking);
        /* the same paths in ready order: where that is shorter, there is more to find from there */
        esp__draft_copy(p, &other, d);
        if (esp__generate(p, &other) >= d->makespan) break;
        esp__draft_copy(p, d, &other);
        esp__desk_lay(k);
    }
}
