/* search.h: what the files of the search share. */
#ifndef ESP__SEARCH_H
#define ESP__SEARCH_H
#include "planner/simulate/schedule.h"

/* ---- paper.c ---- */
/* Returns whether the option compresses on these devices only. */
ESP__FN int esp__path_on(const esp__problem *p, const esp__path *path, uint32_t devices);
/* Strategy "cpu-only": Algorithm 1 with the CPU alone. */
ESP__FN void esp__cpu_only_make(esp__problem *p, esp__schedule *d);

/* ---- search.c ---- */
/* What p->allow permits. Options that compress on the GPU alone do not load the CPU. */
enum { ESP__ALLOW_ALL = 0, ESP__ALLOW_RAW, ESP__ALLOW_GPU, ESP__ALLOWANCES, ESP__ALLOW_CPU = ESP__ALLOWANCES };
static inline bool esp__path_open(const esp__problem *p, const esp__path *path) {
    return p->allow == ESP__ALLOW_ALL || path->codec == ESP__NO_CODEC ||
           (p->allow == ESP__ALLOW_GPU && !path->load[ESP__LANE_CPU]) ||
           (p->allow == ESP__ALLOW_CPU && esp__path_on(p, path, 1u << ESP_ON_CPU));
}
static inline int esp__is_chunk(const esp__problem *p, const esp__extent *u) {
    return u->n == 1 && u->elements != p->model->tensors[u->first].elements;
}

/* ---- regroup.c ---- */
/* Sizes of groups (`merge`) and chunks (`split`), in elements, to start a search from, the makespan with them, and a
 * hash of the groups and chunks, because several sizes can give the same ones. */
typedef struct esp__partition_start {
    uint64_t merge, split, makespan, hash;
} esp__partition_start;
enum { ESP__PARTITIONS_MAX = 11 * 6 };

/* ---- improve.c ---- */
typedef struct esp__ranked {
    uint64_t elements;
    uint32_t unit;
} esp__ranked;
ESP__FN esp_status esp__limits_fail(esp__problem *p);
ESP__FN esp__ranked *esp__ranking(esp__problem *p, const esp__schedule *d);
ESP__FN esp__swap *esp__swap_open(esp__incremental *k, uint32_t u, uint32_t n);
ESP__FN void esp__swap_add(const esp__incremental *k, esp__swap *w, const esp__extent *u, const esp__path *path);
ESP__FN int esp__swap_take(esp__incremental *k, esp__swap *w, uint64_t limit);
ESP__FN void esp__start_balanced(esp__problem *p, esp__schedule *d);
ESP__FN int esp__fit(esp__problem *p, esp__schedule *d);
ESP__FN void esp__improve_passes(esp__incremental *k, const esp__ranked *ranking);
ESP__FN void esp__improve_orders(esp__incremental *k);
ESP__FN void esp__partition(esp__problem *p, esp__schedule *d, uint64_t merge, uint64_t split);
ESP__FN uint32_t esp__partitions(esp__problem *p, esp__partition_start *out);
ESP__FN void esp__regroup_passes(esp__incremental *k);
/* Merges or splits tensor or group u as the random number says, even if the step gets longer. */
ESP__FN void esp__regroup_random(esp__incremental *k, uint32_t u, uint32_t random);
ESP__FN void esp__small_exact(esp__problem *p, esp__schedule *d, uint64_t nodes_max);
#endif
