/* limits.c: finds schedules within max_memory_bytes, max_volume and max_error, with Lagrange multipliers (Sinha,
 * Zoltners 1979, for the multiple-choice knapsack). Each limited quantity has a price, and every tensor or group gets
 * the option with the lowest cost of time and prices. Prices of exceeded limits rise until none is exceeded. */
#include "planner/search/search.h"
#include <math.h>

enum { ESP__FIT_ROUNDS = 40, ESP__FIT_TRIALS = 2000000 };

typedef struct esp__fitting {
    esp__problem *p;
    const esp__schedule *from;
    /* The option of each tensor or group: now; in the cheapest result within the limits, if `fits` is true; and in the
     * result that exceeds them least. */
    const esp__path **paths, **best, **closest;
    double may[ESP__LIMITS], used[ESP__LIMITS], price[ESP__LIMITS];
    double cost, best_cost, closest_excess;
    bool fits;
} esp__fitting;

static double esp__fit_time(const double times[ESP__LANES + 1]) {
    double sum = 0.02 * times[ESP__LANES];
    for (uint32_t k = 0; k < ESP__LANES; k++) sum += 0.25 * times[k];
    return sum;
}

static double esp__fit_limits_price(const esp__fitting *f, const esp__path *path) {
    double uses[ESP__LIMITS] = {0.0}, sum = 0.0;
    esp__uses_add(path, 1.0, uses);
    for (uint32_t k = 0; k < ESP__LIMITS; k++) sum += f->price[k] * uses[k];
    return sum;
}

/* Gives every tensor or group the option that costs least; among equals, the fastest. */
static void esp__fit_choose(esp__fitting *f) {
    memset(f->used, 0, sizeof f->used);
    f->cost = 0.0;
    for (uint32_t u = 0; u < f->from->n_units; u++) {
        const esp__candidates *candidates = esp__candidates_get(f->p, &f->from->units[u]);
        double least = INFINITY, time = 0.0;
        for (uint32_t i = 0; i < candidates->n; i++) {
            double t = esp__fit_time(candidates->times[i]), sum = t + esp__fit_limits_price(f, &candidates->paths[i]);
            if (sum > least || (sum == least && t >= time)) continue;
            least = sum;
            time = t;
            f->paths[u] = &candidates->paths[i];
        }
        f->cost += time;
        esp__uses_add(f->paths[u], 1.0, f->used);
        f->p->work += candidates->n / 2;
    }
}

/* Returns how far limits are exceeded: the sum of the excess over each limit divided by that limit. */
static double esp__fit_excess(const esp__fitting *f, const double used[ESP__LIMITS]) {
    double excess = 0.0;
    for (uint32_t k = 0; k < ESP__LIMITS; k++)
        if (used[k] > f->may[k]) excess += used[k] / f->may[k] - 1.0;
    return excess;
}

static void esp__fit_keep(esp__fitting *f) {
    double excess = esp__fit_excess(f, f->used);
    if (excess > 0.0 && excess < f->closest_excess) {
        f->closest_excess = excess;
        memcpy((void *)f->closest, (const void *)f->paths, f->from->n_units * sizeof *f->closest);
    }
    if (excess > 0.0 || (f->fits && f->cost >= f->best_cost)) return;
    f->fits = true;
    f->best_cost = f->cost;
    memcpy((void *)f->best, (const void *)f->paths, f->from->n_units * sizeof *f->best);
}

/* Raises the prices of whatever exceeds its limit and lowers all others, in steps that get smaller, until no limit is
 * exceeded. */
static void esp__fit_prices(esp__fitting *f) {
    double unit[ESP__LIMITS], step = 16.0;
    for (uint32_t k = 0; k < ESP__LIMITS; k++) f->price[k] = 0.0;
    esp__fit_choose(f);
    esp__fit_keep(f);
    if (f->fits) return;
    /* The first price: using up all of a limit costs a hundredth of the total time. */
    for (uint32_t k = 0; k < ESP__LIMITS; k++) {
        unit[k] = f->may[k] < INFINITY && f->may[k] > 0.0 ? (f->cost + 1.0) * 0.01 / f->may[k] : 0.0;
        f->price[k] = f->used[k] > f->may[k] ? unit[k] : 0.0;
    }
    for (uint32_t round = 0; round < ESP__FIT_ROUNDS; round++) {
        esp__fit_choose(f);
        esp__fit_keep(f);
        int found = !(esp__fit_excess(f, f->used) > 0.0);
        if (found || round % 3 == 2) step = step > 1.02 ? 1.0 + (step - 1.0) * (f->fits ? 0.6 : 0.95) : 1.02;
        for (uint32_t k = 0; k < ESP__LIMITS; k++) {
            if (f->used[k] > f->may[k])
                f->price[k] = f->price[k] > 0.0 ? f->price[k] * step : unit[k];
            else
                f->price[k] /= step;
        }
    }
}

/* Gives every tensor or group the option that uses least of one limit, for limits that are hard to keep. */
static void esp__fit_least(esp__fitting *f, uint32_t limit) {
    double worth = 0.0;
    if (!(f->may[limit] < INFINITY)) return;
    for (uint32_t k = 0; k < ESP__LIMITS; k++) f->price[k] = 0.0;
    for (uint32_t u = 0; u < f->from->n_units; u++) {
        const esp__candidates *candidates = esp__candidates_get(f->p, &f->from->units[u]);
        for (uint32_t i = 0; i < candidates->n; i++) worth += esp__fit_time(candidates->times[i]);
    }
    f->price[limit] = 1e9 * (worth + 1.0);
    esp__fit_choose(f);
    esp__fit_keep(f);
}

static void esp__fit_sum(esp__fitting *f) {
    memset(f->used, 0, sizeof f->used);
    for (uint32_t u = 0; u < f->from->n_units; u++) esp__uses_add(f->paths[u], 1.0, f->used);
}

/* With several limits, setting prices on them may find no options that keep all. This function takes the options that
 * exceed them least, and changes the one that reduces the excess most, until all limits are kept or no change helps. */
static void esp__fit_repair(esp__fitting *f) {
    memcpy((void *)f->paths, (const void *)f->closest, f->from->n_units * sizeof *f->closest);
    esp__fit_sum(f);
    for (uint64_t looked = 0; looked < ESP__FIT_TRIALS;) {
        double least = esp__fit_excess(f, f->used);
        const esp__path *best = NULL;
        uint32_t unit = 0;
        for (uint32_t u = 0; u < f->from->n_units && least > 0.0; u++) {
            const esp__candidates *candidates = esp__candidates_get(f->p, &f->from->units[u]);
            for (uint32_t i = 0; i < candidates->n; i++) {
                double used[ESP__LIMITS];
                memcpy(used, f->used, sizeof used);
                esp__uses_add(f->paths[u], -1.0, used), esp__uses_add(&candidates->paths[i], 1.0, used);
                double excess = esp__fit_excess(f, used);
                if (excess >= least) continue;
                least = excess, best = &candidates->paths[i], unit = u;
            }
            looked += candidates->n;
        }
        if (!best) break;
        f->paths[unit] = best;
        esp__fit_sum(f);
    }
    f->cost = 0.0;
    esp__fit_keep(f);
}

/* Gives `d` options within the limits. Returns 0 if it finds none. */
ESP__FN int esp__fit(esp__problem *p, esp__schedule *d) {
    esp__fitting f = {.p = p, .from = d, .closest_excess = INFINITY};
    if (esp__schedule_allowed(p, d)) return 1;
    f.paths = esp__arena_get(p->arena, d->n_units * sizeof *f.paths);
    f.best = esp__arena_get(p->arena, d->n_units * sizeof *f.best);
    f.closest = esp__arena_get(p->arena, d->n_units * sizeof *f.closest);
    esp__may_use(p, f.may);
    esp__fit_prices(&f);
    for (uint32_t k = 0; k < ESP__LIMITS && !f.fits; k++) esp__fit_least(&f, k);
    if (!f.fits) esp__fit_repair(&f);
    if (!f.fits) return 0;
    memcpy((void *)d->paths, (const void *)f.best, d->n_units * sizeof *d->paths);
    esp__generate(p, d);
    return esp__schedule_allowed(p, d);
}

/* Reports that no strategy was found within the limits, and the lowest possible limits. */
ESP__FN esp_status esp__limits_fail(esp__problem *p) {
    const esp_plan_config *c = &p->config;
    double least[ESP__LIMITS] = {0.0}, elements = 0.0;
    char text[256] = "";
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        const esp__extent u = {t, 1, 0, p->model->tensors[t].elements};
        const esp__candidates *candidates = esp__candidates_get(p, &u);
        double own[ESP__LIMITS] = {INFINITY, INFINITY, INFINITY};
        for (uint32_t i = 0; i < candidates->n; i++) {
            double uses[ESP__LIMITS] = {0.0};
            esp__uses_add(&candidates->paths[i], 1.0, uses);
            for (uint32_t k = 0; k < ESP__LIMITS; k++) own[k] = uses[k] < own[k] ? uses[k] : own[k];
        }
        for (uint32_t k = 0; k < ESP__LIMITS; k++) least[k] += own[k];
        elements += (double)u.elements;
    }
    size_t n = 0;
    if (c->max_memory_bytes)
        n += (size_t)snprintf(text + n, sizeof text - n, "; max_memory_bytes is %llu, the least is %.0f",
                              (unsigned long long)c->max_memory_bytes, least[ESP__MEMORY]);
    if (c->max_volume > 0.0)
        n += (size_t)snprintf(text + n, sizeof text - n, "; max_volume is %g, the least is %.4g", c->max_volume,
                              least[ESP__VOLUME] / (4.0 * elements));
    if (c->max_error > 0.0)
        snprintf(text + n, sizeof text - n, "; max_error is %g, the least is %.4g", c->max_error,
                 least[ESP__ERROR] / elements);
    return esp__fail(
        NULL, ESP_E_ARG, "no strategy was found within the limits: loosen one%s%s", text,
        (c->max_memory_bytes != 0) + (c->max_volume > 0.0) + (c->max_error > 0.0) > 1 ? " (each on its own)" : "");
}
