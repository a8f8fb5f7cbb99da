/* lagrangian.c: makes the Lagrangian start of Algorithm 1. It sets a price on the time of each processor and link and
 * gives every tensor or group the option that costs least. Then it raises the prices of those with much load, lowers
 * all other prices, and repeats. This balances the load, which deciding for one tensor after the other does not. The
 * start is the shortest schedule that it found. */
#include "planner/search/search.h"
#include <math.h>

enum { ESP__PRICE_ROUNDS = 24 };

static const esp__path *esp__cheapest(const esp__choices *c, const double price[ESP__LANES]) {
    const esp__path *best = NULL;
    double least = 0.0;
    for (uint32_t i = 0; i < c->n; i++) {
        double sum = 1e-3 * (double)c->paths[i]->total;
        for (uint32_t k = 0; k < ESP__LANES; k++) sum += price[k] * (double)c->paths[i]->load[k];
        if (!best || sum < least) least = sum, best = c->paths[i];
    }
    return best;
}

static uint32_t esp__price_round(esp__problem *p, esp__schedule *d, const esp__choices *choices,
                                 const double price[ESP__LANES], const esp__path **cheapest,
                                 uint64_t load[ESP__LANES]) {
    uint32_t changed = 0;
    memset(load, 0, ESP__LANES * sizeof *load);
    load[ESP__LANE_COMPUTE] = p->ready[p->n_tensors - 1];
    for (uint32_t u = 0; u < d->n_units; u++) {
        if (choices[u].like == u) cheapest[u] = esp__cheapest(&choices[u], price);
        const esp__path *path = cheapest[choices[u].like];
        changed += d->paths[u] != path;
        d->paths[u] = path;
        for (uint32_t k = 0; k < ESP__LANES; k++) load[k] += path->load[k];
    }
    return changed;
}

/* Copies `from` to `to` if it is better: it has the shorter makespan, or it alone is within the configured limits. */
ESP__FN void esp__keep_better_allowed(esp__problem *p, esp__schedule *to, const esp__schedule *from) {
    int before = esp__schedule_allowed(p, to), after = esp__schedule_allowed(p, from);
    if (before == after)
        esp__schedule_keep_better(p, to, from);
    else if (after)
        esp__schedule_copy(p, to, from);
}

ESP__FN void esp__start_priced(esp__problem *p, esp__schedule *best, const esp__choices *choices) {
    double price[ESP__LANES] = {0};
    uint64_t load[ESP__LANES];
    const esp__path **cheapest = esp__arena_get(p->arena, best->n_units * sizeof *cheapest);
    esp__schedule d;
    memset(&d, 0, sizeof d);
    esp__schedule_copy(p, &d, best);
    for (uint32_t k = 0; k < p->n_lanes; k++) price[k] = 0.25;
    for (uint32_t round = 0; round < ESP__PRICE_ROUNDS && !esp__out_of_time(p); round++) {
        double most = 1.0, sum = 0.0;
        if (esp__price_round(p, &d, choices, price, cheapest, load)) {
            esp__generate(p, &d);
            esp__keep_better_allowed(p, best, &d);
        }
        for (uint32_t k = 0; k < p->n_lanes; k++)
            if ((double)load[k] > most) most = (double)load[k];
        for (uint32_t k = 0; k < p->n_lanes; k++) {
            price[k] *= exp(2.0 * ((double)load[k] / most - 1.0) / (1.0 + 0.1 * round));
            sum += price[k];
        }
        for (uint32_t k = 0; k < p->n_lanes; k++) price[k] = price[k] / sum + 1e-6;
    }
}
