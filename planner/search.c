/* search.c: everything together: several starts, each taken to a local optimum; the best of them. */
#include "plan.h"

ESP__FN void esp__search_all(esp__problem *p, esp__draft *d) {
    esp__draft start = {0};
    int T = getenv("STARTS") ? atoi(getenv("STARTS")) : 7;
    if (T & 1) {
        esp__start_plain(p, &start);
        esp__improve(p, &start);
        esp__draft_keep_better(p, d, &start);
    }
    if (p->bound && T & 2) {
        memset(&start, 0, sizeof start);
        esp__draft_tensors(p, &start);
        esp__turn_prices(p, &start);
        esp__improve(p, &start);
        esp__draft_keep_better(p, d, &start);
    }
    if (T & 4) {
        memset(&start, 0, sizeof start);
        esp__draft_tensors(p, &start);
        esp__algorithm1(p, &start);
        esp__improve(p, &start);
        esp__draft_keep_better(p, d, &start);
    }
    if (getenv("GROUP")) {
        esp__draft parts = {0};
        if (p->bound) esp__start_partitions(p, &parts);
        for (int i = 0; i < 2; i++) {
            esp__draft *x = i ? &parts : &start;
            if (i == 0) esp__draft_copy(p, x, d);
            if (!x->n_units) continue;
            esp__desk *k = esp__desk_open(p, x);
            for (int r = 0; r < 4; r++) {
                uint64_t before = x->makespan;
                esp__improve_passes(k, esp__ranking(p, x));
                esp__regroup_passes(k);
                if (x->makespan == before) break;
            }
            if (getenv("VERBOSE")) printf("start %d -> %.3f units %u\n", i, x->makespan / 1e6, x->n_units);
        }
        esp__draft_keep_better(p, d, &start);
        esp__draft_keep_better(p, d, &parts);
    }
}
