/* wander.c: out of a local optimum: random units move to random other paths while the step stays within a margin of the best
 * one known, a margin that shrinks to nothing (threshold accepting: Dueck, Scheuer 1990). Deterministic for a seed. */
#include "plan.h"

static uint64_t esp__dice(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

/* Another path for unit u that keeps the step below `limit`: the first that is found from a random one on. */
static int esp__wander_unit(esp__desk *k, uint32_t u, uint64_t limit, uint64_t *seed) {
    const esp__menu *menu = esp__menu_get(k->p, &k->d->units[u]);
    esp__swap *w = &k->swaps[0];
    uint32_t first = (uint32_t)(esp__dice(seed) % menu->n), way = (uint32_t)(esp__dice(seed) % 8u);
    int found = 0;
    esp__desk_lift(k, w, u, 1);
    if (esp__desk_without(k, w, limit) < limit)
        for (uint32_t i = 0; i < menu->n && !found; i++) {
            const esp__path *path = &menu->paths[(first + i) % menu->n];
            if (path == k->d->paths[u]) continue;
            esp__swap_path(k, w, u, path, way < ESP__WAYS ? way : ESP__BY_READY);
            found = esp__desk_allows(k, w) && esp__desk_try(k, w, limit) < limit;
        }
    esp__desk_unlift(k, w);
    return found && esp__desk_move(k, w, limit);
}

ESP__FN void esp__wander(esp__desk *k, uint64_t trials, double margin, uint64_t seed) {
    esp__problem *p = k->p;
    esp__draft *d = k->d, best = {0};
    uint64_t end = k->trials + trials;
    esp__draft_copy(p, &best, d);
    while (k->trials < end && !esp__out_of_time(p)) {
        double left = (double)(end - k->trials) / (double)trials;
        uint64_t limit = best.makespan + 1 + (uint64_t)(margin * left * (double)best.makespan);
        k->trials++; /* so that it ends where nothing may be tried */
        if (!esp__wander_unit(k, (uint32_t)(esp__dice(&seed) % d->n_units), limit, &seed)) continue;
        if (d->makespan < best.makespan) esp__draft_copy(p, &best, d);
    }
    esp__draft_copy(p, d, &best);
    esp__desk_anew(k);
}
