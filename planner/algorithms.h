/* algorithms.h: what Algorithms 1 and 2 and the comparison strategies built on them share. */
#ifndef ESP__ALGORITHMS_H
#define ESP__ALGORITHMS_H
#include "plan.h"

/* The paths that one unit may have. */
typedef struct esp__choices {
    const esp__path **paths;
    uint32_t n;
} esp__choices;
typedef int (*esp__path_test)(const esp__problem *p, const esp__path *path);

/* ---- rerun.c: a draft whose ready order is simulated again and again with a few paths changed ------------------------ */
typedef struct esp__rerun esp__rerun;
typedef struct esp__change {
    uint32_t unit;
    const esp__path *path;
} esp__change;
/* Simulates the draft, whose units must not change from here on. */
ESP__FN esp__rerun *esp__rerun_open(esp__problem *p, esp__draft *d);
/* The makespan with these changes (by ascending unit); UINT64_MAX where it is not below `limit`. Changes nothing. */
ESP__FN uint64_t esp__rerun_try(esp__rerun *r, const esp__change *changes, uint32_t n, uint64_t limit);
/* Makes the changes; d->makespan follows, d->sequence does not (esp__generate writes it in the end). */
ESP__FN void esp__rerun_set(esp__rerun *r, const esp__change *changes, uint32_t n);
/* No step with this path for unit `u`, all else as it is, can be shorter. */
ESP__FN uint64_t esp__rerun_bound(const esp__rerun *r, uint32_t u, const esp__path *path);
/* 0: even without unit `u` the step would be as long, in the same order. */
ESP__FN int esp__rerun_matters(const esp__rerun *r, uint32_t u);

/* ---- algorithm1.c ----------------------------------------------------------------------------------------------------- */
/* [n_units] the paths in each unit's menu that pass the test (NULL: all). Units with equal menus share them. */
ESP__FN esp__choices *esp__choices_of(esp__problem *p, const esp__draft *d, esp__path_test wanted);
/* Algorithm 1 over these; starts from the best that does not compress, where there is one. */
ESP__FN void esp__algorithm1_over(esp__problem *p, esp__draft *d, const esp__choices *choices);
ESP__FN int esp__path_on(const esp__problem *p, const esp__path *path, uint32_t devices); /* no codec runs elsewhere */

/* ---- algorithm2.c ----------------------------------------------------------------------------------------------------- */
/* Algorithm 2 where a unit on the GPU may move to any of `choices` that has the same steps on other devices. */
ESP__FN void esp__algorithm2_over(esp__problem *p, esp__draft *d, const esp__choices *choices);
#endif
