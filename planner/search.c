/* search.c: everything together: several starts, each taken to a local optimum; the best of them. */
#include "plan.h"

/* Every unit's cheapest path at the bound's prices: what an optimum would look like if lanes could be shared out freely. */
static void esp__start_from_bound(esp__problem *p, esp__draft *d, const esp__bound *bound) {
    esp__draft_tensors(p, d);
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__menu *menu = esp__menu_get(p, &d->units[u]);
        double best = 0.0;
        for (uint32_t i = 0; i < menu->n; i++) {
            const esp__path *path = &menu->paths[i];
            double cost = (bound->chain_price[u] + 1e-9) * (double)path->total;
            for (uint32_t k = 0; k < ESP__LANES; k++) cost += bound->price[u][k] * (double)path->load[k];
            if (i && cost >= best) continue;
            best = cost;
            d->paths[u] = path;
        }
    }
    esp__generate(p, d);
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

ESP__FN void esp__search_all(esp__problem *p, esp__draft *d) {
    esp__draft start = {0};
    esp__start_plain(p, &start);
    esp__improve(p, &start);
    esp__draft_keep_better(p, d, &start);
    if (p->bound) {
        memset(&start, 0, sizeof start);
        esp__start_from_bound(p, &start, p->bound);
        esp__improve(p, &start);
        esp__draft_keep_better(p, d, &start);
    }
}
