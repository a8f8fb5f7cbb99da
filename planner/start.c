/* start.c: drafts to start the search from. */
#include "plan.h"

/* Prices that the search may turn: of a nanosecond on each lane, and of a chain's on any. */
enum { ESP__CHAIN = ESP__LANES, ESP__FACTORS };

/* Every unit's cheapest path at the bound's prices times `factor`: what an optimum would look like if lanes could be shared
 * out freely. */
static void esp__choose_by_price(esp__problem *p, esp__draft *d, const double factor[ESP__FACTORS]) {
    const esp__bound *bound = p->bound;
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__menu *menu = esp__menu_get(p, &d->units[u]);
        double best = 0.0, price[ESP__FACTORS];
        uint32_t t = d->units[u].first + d->units[u].n - 1; /* the bound is of one unit a tensor */
        for (uint32_t k = 0; k < ESP__LANES; k++) price[k] = bound->price[t][k] * factor[k];
        price[ESP__CHAIN] = bound->chain_price[t] * factor[ESP__CHAIN] + 1e-9;
        for (uint32_t i = 0; i < menu->n_core; i++) {
            const esp__path *path = &menu->paths[i];
            double cost = price[ESP__CHAIN] * (double)path->total;
            for (uint32_t k = 0; k < ESP__LANES; k++) cost += price[k] * (double)path->load[k];
            if (i && cost >= best) continue;
            best = cost;
            d->paths[u] = path;
        }
    }
    esp__generate(p, d);
}

/* Turns one price after the other up and down, as long as the step gets shorter. */
static void esp__turn_prices(esp__problem *p, esp__draft *d) {
    static const double steps[] = {3.0, 1.7, 1.3, 1.1};
    double factor[ESP__FACTORS] = {1.0, 1.0, 1.0, 1.0, 1.0};
    esp__draft other = {0};
    esp__draft_set_units(p, &other, d->units, d->n_units);
    esp__choose_by_price(p, d, factor);
    for (uint32_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        for (int better = 1, rounds = 0; better && rounds < 4 && !esp__out_of_time(p); rounds++) {
            better = 0;
            for (uint32_t k = 0; k < 2 * ESP__FACTORS; k++) {
                double old = factor[k / 2];
                factor[k / 2] = k % 2 ? old / steps[s] : old * steps[s];
                esp__choose_by_price(p, &other, factor);
                if (esp__draft_keep_better(p, d, &other))
                    better = 1;
                else
                    factor[k / 2] = old;
            }
        }
    }
}

/* Every unit's shortest path without compression (with, where it must). */
static void esp__start_plain(esp__problem *p, esp__draft *d) {
    esp__draft_tensors(p, d);
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__menu *menu = esp__menu_get(p, &d->units[u]);
        d->paths[u] = &menu->paths[0];
        for (uint32_t i = menu->n; i-- > 0;)
            if (menu->paths[i].codec == ESP__NO_CODEC) d->paths[u] = &menu->paths[i];
    }
    esp__generate(p, d);
}
