/* initial.c: finds schedules from which the search starts. It sets a price on the time of each processor and link and
 * gives every tensor or group the option that costs least. Then it raises the prices of busy processors and links,
 * lowers those of idle ones, and repeats. */
#include "planner/simulate/schedule.h"
#include "planner/search/search.h"
#include <math.h>

/* The cost of 1 ns of an option's duration, when 1 ns of a processor or link costs 1 on average. */
static const double esp__total_price = 0.04;

/* Sets sets[u] to the candidates of each tensor or group. */
static const esp__candidates **esp__sets_of(esp__problem *p, const esp__schedule *d) {
    if (d->n_units > p->room_sets) {
        p->room_sets = d->n_units + d->n_units / 2;
        p->sets = esp__arena_get(p->arena, p->room_sets * sizeof *p->sets);
    }
    for (uint32_t u = 0; u < d->n_units; u++) p->sets[u] = esp__candidates_get(p, &d->units[u]);
    return p->sets;
}

static void esp__cheapest(esp__problem *p, const esp__candidates *candidates, const double price[ESP__LANES],
                          esp__cheapest_option *out) {
    double best = 0.0;
    uint32_t chosen = 0, open = 0;
    for (uint32_t i = 0; i < candidates->n; i++) {
        double cost = esp__total_price * candidates->times[i][ESP__LANES];
        for (uint32_t k = 0; k < ESP__LANES; k++) cost += price[k] * candidates->times[i][k];
        if (!esp__path_open(p, &candidates->paths[i]) || (open++ && cost >= best)) continue;
        best = cost;
        chosen = i;
    }
    *out = (esp__cheapest_option){p->prices, open ? chosen : 0, open};
}

static void esp__choose_by_price(esp__problem *p, const esp__candidates **sets, esp__schedule *d,
                                 const double price[ESP__LANES]) {
    p->prices++;
    for (uint32_t u = 0; u < d->n_units; u++) {
        esp__cheapest_option *cheapest = sets[u]->cheapest;
        if (cheapest->prices != p->prices) esp__cheapest(p, sets[u], price, cheapest);
        d->paths[u] = &sets[u]->paths[cheapest->option];
        p->work += cheapest->open / 2;
    }
    esp__generate(p, d);
}

/* Replaces the options of `d` with those of the shortest schedule found. */
ESP__FN void esp__start_balanced(esp__problem *p, esp__schedule *d) {
    double price[ESP__LANES];
    esp__schedule *other = &p->spare[1];
    for (uint32_t k = 0; k < ESP__LANES; k++) price[k] = 1.0;
    esp__schedule_set_units(p, other, d->units, d->n_units);
    d->makespan = UINT64_MAX;
    const esp__candidates **sets = esp__sets_of(p, d);
    for (int round = 0; round < 12 && !(round && esp__out_of_time(p)); round++) {
        double load[ESP__LANES] = {(double)p->ready[p->n_tensors - 1]}, most = 1.0, pull = round < 6 ? 2.0 : 0.7;
        uint64_t last = other->makespan;
        esp__choose_by_price(p, sets, other, price);
        if (round && other->makespan == last) break;
        if (other->makespan < d->makespan) esp__schedule_copy(p, d, other);
        for (uint32_t u = 0; u < other->n_units; u++)
            for (uint32_t k = 0; k < ESP__LANES; k++) load[k] += (double)other->paths[u]->load[k];
        for (uint32_t k = 1; k < p->n_lanes; k++) load[k] += (double)p->compute[0];
        double sum = 0.0;
        for (uint32_t k = 0; k < p->n_lanes; k++)
            if (load[k] > most) most = load[k];
        for (uint32_t k = 0; k < p->n_lanes; k++) sum += price[k] *= pow(load[k] / most + 0.02, pull);
        for (uint32_t k = 0; k < p->n_lanes; k++) price[k] = price[k] / sum * p->n_lanes + 1e-3;
    }
}
