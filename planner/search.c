/* search.c: everything together: starts from prices, as given and in partitions, each taken to a local optimum of single
 * changes, merging, splitting and order; the best of them. */
#include "plan.h"

static int PARTS = 3, POLISH = 2, VERB = 0, ALG = 0;
/* Passes of every kind until none helps. */
static void esp__polish(esp__problem *p, esp__draft *d, int regroup) {
    esp__desk *k = esp__desk_open(p, d);
    for (int round = 0; round < 6 && !esp__out_of_time(p); round++) {
        uint64_t before = d->makespan;
        if (esp__reorder(p, d)) esp__desk_anew(k);
        esp__improve_passes(k, esp__ranking(p, d));
        if (regroup) esp__regroup_passes(k);
        if (d->makespan == before) break;
    }
}

/* Tensors as given. */
static void esp__search_units(esp__problem *p, esp__draft *best) {
    esp__draft d = {0};
    for (uint32_t pricing = 0; pricing < 3; pricing++) {
        esp__draft_tensors(p, &d);
        esp__turn_prices(p, &d, pricing);
        esp__draft_keep_better(p, best, &d);
    }
    esp__polish(p, best, 0);
    if (ALG) {
    esp__draft_tensors(p, &d);
    esp__algorithm1(p, &d);
    esp__polish(p, &d, 0);
    esp__draft_keep_better(p, best, &d);
    }
}

/* Merged and split. */
static void esp__search_partitions(esp__problem *p, esp__draft *best) {
    esp__cut_up *cuts = esp__pool_get(p->pool, ESP__PARTITIONS_MAX * sizeof *cuts);
    uint32_t n = esp__partitions(p, cuts);
    esp__draft d[8] = {0}, x = {0};
    uint32_t m = 0;
    if (VERB) for (uint32_t i = 0; i < 12 && i < n; i++) printf("  cut merge %lu split %lu pricing %u %.3f\n", cuts[i].merge, cuts[i].split, cuts[i].pricing, cuts[i].makespan/1e6);
    for (uint32_t i = 0; i < n && m < (uint32_t)PARTS; i++) {
        int again = 0;
        for (uint32_t k = 0; k < i; k++) again |= cuts[k].merge == cuts[i].merge && cuts[k].split == cuts[i].split;
        if (again) continue;
        for (uint32_t pricing = 0; pricing < 3; pricing++) {
            esp__partition(p, &x, cuts[i].merge, cuts[i].split);
            esp__turn_prices(p, &x, pricing);
            esp__draft_keep_better(p, &d[m], &x);
        }
        m++;
    }
    for (uint32_t r = 0; r < (uint32_t)POLISH && r < m; r++) {
        uint32_t b = r;
        for (uint32_t i = r + 1; i < m; i++)
            if (d[i].makespan < d[b].makespan) b = i;
        esp__draft t = d[r]; d[r] = d[b]; d[b] = t;
        uint64_t bf = d[r].makespan;
        esp__polish(p, &d[r], 1);
        if (VERB) printf("  polish %.3f -> %.3f units %u\n", bf/1e6, d[r].makespan/1e6, d[r].n_units);
        esp__draft_keep_better(p, best, &d[r]);
    }
}

ESP__FN void esp__search_all(esp__problem *p, esp__draft *d) {
    if (getenv("PARTS")) PARTS = atoi(getenv("PARTS"));
    if (getenv("POLISH")) POLISH = atoi(getenv("POLISH"));
    if (getenv("ALG")) ALG = atoi(getenv("ALG"));
    VERB = getenv("VERBOSE") != NULL;
    uint64_t t0 = esp__now_ns();
    esp__search_units(p, d);
    uint64_t t1 = esp__now_ns(), m = d->makespan;
    if (!getenv("ASGIVEN")) {
    esp__search_partitions(p, d);
    uint64_t t2 = esp__now_ns(), m2 = d->makespan;
    esp__polish(p, d, 1);
    if (VERB) printf(" units %.2f ms %.3f; partitions %.2f ms %.3f; polish %.2f ms %.3f\n", (t1-t0)/1e6, m/1e6, (t2-t1)/1e6, m2/1e6, (esp__now_ns()-t2)/1e6, d->makespan/1e6);
    }
}
