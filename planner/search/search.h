/* search.h: what the files of the search share. */
#ifndef ESP__SEARCH_H
#define ESP__SEARCH_H
#include "planner/simulate/schedule.h"

typedef struct esp__choices {
    const esp__candidates *of;
    const esp__path **paths;
    uint32_t n;
    uint32_t like; /* index of the first tensor or group with the same options */
} esp__choices;
typedef int (*esp__path_test)(const esp__problem *p, const esp__path *path);

/* ---- algorithm1.c ---- */
/* Returns the limit on the work of Algorithms 1 and 2 of the Espresso paper, whose time is quadratic in the number of
 * tensors. Models of up to about 1000 tensors do not reach it. */
ESP__FN uint64_t esp__paper_work(const esp__schedule *d);
/* Returns, for each tensor or group, its candidate options that pass the test `wanted`; all of them if none passes or
 * `wanted` is NULL. */
ESP__FN esp__choices *esp__choices_of(esp__problem *p, const esp__schedule *d, esp__path_test wanted);
ESP__FN void esp__algorithm1_over(esp__problem *p, esp__schedule *d, const esp__choices *choices);
/* Returns whether the option compresses on these devices only. */
ESP__FN int esp__path_on(const esp__problem *p, const esp__path *path, uint32_t devices);

/* ---- algorithm2.c ---- */
typedef struct esp__change {
    uint32_t unit;
    const esp__path *path;
} esp__change;
/* Returns the step time after these changes, with ops in the order in which they become ready. Returns UINT64_MAX if it
 * is not below `limit`. */
ESP__FN uint64_t esp__change_try(esp__problem *p, const esp__schedule *d, const esp__change *changes, uint32_t n,
                                 uint64_t limit);
ESP__FN void esp__algorithm2_over(esp__problem *p, esp__schedule *d, const esp__choices *choices);

/* ---- search.c ---- */
/* What p->allow permits. Options that compress on the GPU alone do not load the CPU. */
enum { ESP__ALLOW_ALL = 0, ESP__ALLOW_RAW, ESP__ALLOW_GPU, ESP__ALLOWANCES };
static inline bool esp__path_open(const esp__problem *p, const esp__path *path) {
    return p->allow == ESP__ALLOW_ALL || path->codec == ESP__NO_CODEC ||
           (p->allow == ESP__ALLOW_GPU && !path->load[ESP__LANE_CPU]);
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

/* ---- limits.c: the limits of a configuration ---- */
enum { ESP__MEMORY = 0, ESP__VOLUME, ESP__ERROR, ESP__LIMITS };

/* ---- improve.c ---- */
typedef struct esp__ranked {
    uint64_t elements;
    uint32_t unit;
} esp__ranked;
ESP__FN esp_status esp__limits_fail(esp__problem *p);
ESP__FN int esp__path_one_device(const esp__problem *p, const esp__path *path);
ESP__FN esp__ranked *esp__ranking(esp__problem *p, const esp__schedule *d);
ESP__FN void esp__swap_path(const esp__incremental *k, esp__swap *w, uint32_t u, const esp__path *path);
ESP__FN void esp__may_use(const esp__problem *p, double may[ESP__LIMITS]);
ESP__FN void esp__uses(const esp__path *path, double uses[ESP__LIMITS]);
ESP__FN void esp__start_balanced(esp__problem *p, esp__schedule *d, double jitter);
ESP__FN int esp__fit(esp__problem *p, esp__schedule *d);
ESP__FN void esp__improve_passes(esp__incremental *k, const esp__ranked *ranking);
ESP__FN void esp__improve_orders(esp__incremental *k);
ESP__FN void esp__partition(esp__problem *p, esp__schedule *d, uint64_t merge, uint64_t split);
ESP__FN uint32_t esp__partitions(esp__problem *p, esp__partition_start *out);
ESP__FN void esp__regroup_passes(esp__incremental *k);
/* Merges tensor or group u with the next one, or divides it, as the random number says, even if the step gets longer.
 */
ESP__FN void esp__regroup_random(esp__incremental *k, uint32_t u, uint32_t random);
ESP__FN void esp__small_exact(esp__problem *p, esp__schedule *d, uint64_t nodes_max);
/* Gives each tensor or group the option with the least memory if memory is limited, else with the least volume. */
ESP__FN void esp__start_least(esp__problem *p, esp__schedule *d, const esp__choices *choices);
#endif
