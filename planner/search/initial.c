/* initial.c: finds schedules from which the search starts. It sets a price on the time of each processor and link and
 * gives every tensor or group the option that costs least. */
#include "planner/simulate/schedule.h"
#include "planner/search/search.h"
#include <math.h>

/* The price per ns of each processor and link is multiplied by a factor. CHAIN is the factor for the total time of an
 * option. */
enum { ESP__CHAIN = ESP__LANES, ESP__FACTORS };

/* How to set the price per ns of each processor and link: equal for all tensors, or that of the lower bound for each
 * tensor; with random differences up to `jitter`; with factors for the processors compute and cpu. A large factor makes
 * the search avoid the processor. */
static const struct {
    bool uniform;
    double jitter, compute, cpu;
} esp__pricings[] = {{false, 0.0, 1.0, 1.0}, {true, 0.3, 1.0, 1.0}, {true, 0.3, 1.0, 1e3}, {true, 0.0, 1e3, 1e3},
                     {false, 0.3, 1.0, 1.0}, {true, 0.6, 1.0, 1.0}, {true, 0.6, 1.0, 1e3}};
_Static_assert(sizeof esp__pricings / sizeof *esp__pricings == ESP__PRICINGS, "search.h counts the pricings");

/* Whether these prices are worth trying on this system. With one device, options cannot avoid it. */
ESP__FN int esp__pricing_applies(const esp__problem *p, uint32_t pricing) {
    return esp__pricings[pricing].cpu < 2.0 || esp__pricings[pricing].compute > 2.0 || esp__devices(p) == 3u;
}

ESP__FN int esp__pricing_uniform(const esp__problem *p, uint32_t pricing) {
    return esp__pricings[pricing].uniform && esp__pricing_applies(p, pricing);
}

static int esp__has_prices(const esp__bound *b) {
    double sum = 0.0;
    for (uint32_t k = 0; k < ESP__LANES; k++) sum += b->lane_price[k];
    return sum > 0.01;
}

static void esp__choose_by_price(esp__problem *p, esp__schedule *d, const double factor[ESP__FACTORS],
                                 uint32_t pricing) {
    const esp__bound *bound = p->bound;
    const bool uniform = esp__pricings[pricing].uniform || !bound || !esp__has_prices(bound);
    double jitter = esp__pricings[pricing].jitter;
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__candidates *candidates = esp__candidates_get(p, &d->units[u]);
        double best = 0.0, price[ESP__FACTORS];
        uint32_t t = d->units[u].first + d->units[u].n - 1;
        for (uint32_t k = 0; k < ESP__LANES; k++) price[k] = (uniform ? 0.25 : bound->price[t][k]) * factor[k];
        price[ESP__LANE_COMPUTE] *= esp__pricings[pricing].compute;
        price[ESP__LANE_CPU] *= esp__pricings[pricing].cpu;
        /* Random differences let equal tensors have different options, as the optimum of the lower bound does. */
        if (jitter > 0.0)
            price[ESP__LANE_COMPUTE] *=
                1.0 + jitter * ((double)((u + 1 + (uint32_t)p->seed * 97u) * 2654435769u >> 8) / (1u << 24) - 0.5);
        price[ESP__CHAIN] = (uniform ? 0.01 : bound->chain_price[t]) * factor[ESP__CHAIN] + 1e-9;
        uint32_t chosen = 0;
        for (uint32_t i = 0; i < candidates->n_core; i++) {
            double cost = 0.0;
            for (uint32_t k = 0; k < ESP__FACTORS; k++) cost += price[k] * candidates->core[i][k];
            if (i && cost >= best) continue;
            best = cost;
            chosen = i;
        }
        d->paths[u] = &candidates->paths[chosen];
        p->work += candidates->n_core / 2;
    }
    esp__generate(p, d);
}

/* Repeatedly raises the price per ns of busy processors and links and lowers that of idle ones. Keeps the shortest
 * schedule and its factors. */
static void esp__balance_prices(esp__problem *p, esp__schedule *d, uint32_t pricing, double factor[ESP__FACTORS]) {
    double f[ESP__FACTORS];
    esp__schedule *other = &p->spare[0];
    for (uint32_t k = 0; k < ESP__FACTORS; k++) f[k] = 1.0;
    esp__schedule_set_units(p, other, d->units, d->n_units);
    d->makespan = UINT64_MAX;
    for (int round = 0; round < 12 && !(round && esp__out_of_time(p)); round++) {
        double load[ESP__LANES] = {(double)p->ready[p->n_tensors - 1]}, most = 1.0, pull = round < 6 ? 2.0 : 0.7;
        uint64_t last = other->makespan;
        esp__choose_by_price(p, other, f, pricing);
        if (round && other->makespan == last) break;
        if (other->makespan < d->makespan) {
            esp__schedule_copy(p, d, other);
            memcpy(factor, f, sizeof f);
        }
        for (uint32_t u = 0; u < other->n_units; u++)
            for (uint32_t k = 0; k < ESP__LANES; k++) load[k] += (double)other->paths[u]->load[k];
        /* All but compute are idle until the first gradient is ready, which counts as load. */
        for (uint32_t k = 1; k < p->n_lanes; k++) load[k] += (double)p->compute[0];
        double sum = 0.0;
        for (uint32_t k = 0; k < p->n_lanes; k++)
            if (load[k] > most) most = load[k];
        for (uint32_t k = 0; k < p->n_lanes; k++) sum += f[k] *= pow(load[k] / most + 0.02, pull);
        for (uint32_t k = 0; k < p->n_lanes; k++) f[k] = f[k] / sum * p->n_lanes + 1e-3;
    }
}

/* Finds good prices per ns of each processor and link and gives `d` the options that are cheapest at them. It first
 * balances the load; unless `coarse`, it then changes one price after the other as long as that makes the step
 * shorter. */
ESP__FN void esp__update_prices(esp__problem *p, esp__schedule *d, uint32_t pricing, bool coarse) {
    static const double steps[] = {1.7, 1.3, 1.1};
    double factor[ESP__FACTORS];
    esp__schedule *other = &p->spare[1];
    for (uint32_t k = 0; k < ESP__FACTORS; k++) factor[k] = 1.0;
    esp__schedule_set_units(p, other, d->units, d->n_units);
    esp__balance_prices(p, d, pricing, factor);
    for (uint32_t s = 0; s < sizeof steps / sizeof *steps && !coarse; s++)
        for (int better = 1, rounds = 0; better && rounds < 3 && !esp__out_of_time(p); rounds++) {
            better = 0;
            for (uint32_t k = 0; k < 2 * ESP__FACTORS; k++) {
                double old = factor[k / 2];
                if (k / 2 >= p->n_lanes && k / 2 != ESP__CHAIN) continue;
                if (k / 2 == ESP__LANE_CPU && !(p->system.devices & 1u << ESP_ON_CPU)) continue;
                factor[k / 2] = k % 2 ? old / steps[s] : old * steps[s];
                esp__choose_by_price(p, other, factor, pricing);
                if (esp__schedule_keep_better(p, d, other))
                    better = 1;
                else
                    factor[k / 2] = old;
            }
        }
}
