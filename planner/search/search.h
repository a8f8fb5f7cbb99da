/* search.h: what Algorithms 1 and 2 and the comparison strategies built on them share. */
#ifndef ESP__ALGORITHMS_H
#define ESP__ALGORITHMS_H
#include "planner/plan.h"

/* The paths that one unit may have. */
typedef struct esp__choices {
    const esp__path **paths;
    uint32_t n, like; /* like: the first unit that has the same */
} esp__choices;
typedef int (*esp__path_test)(const esp__problem *p, const esp__path *path);

/* ---- schedule/resimulate.c: a schedule simulated in ready order again and again with some paths changed ---- */
typedef struct esp__rerun esp__rerun;
typedef struct esp__change {
    uint32_t unit;
    const esp__path *path;
} esp__change;
/* From here on the schedule must not change. */
ESP__FN esp__rerun *esp__rerun_open(esp__problem *p, esp__schedule *d);
/* The makespan with these changes (by ascending unit); UINT64_MAX where it is not below `limit`. Changes nothing. */
ESP__FN uint64_t esp__rerun_try(esp__rerun *r, const esp__change *changes, uint32_t n, uint64_t limit);

/* ---- lagrangian.c: `best` with other paths, where lanes with prices lead to a shorter step ---- */
ESP__FN void esp__start_priced(esp__problem *p, esp__schedule *best, const esp__choices *choices);
ESP__FN void esp__keep_better_allowed(esp__problem *p, esp__schedule *to, const esp__schedule *from);

/* ---- algorithm1.c ---- */
/* [n_units] the paths in each unit's candidate options that pass the test (NULL: all). Units with equal candidate options share them. */
ESP__FN esp__choices *esp__choices_of(esp__problem *p, const esp__schedule *d, esp__path_test wanted);
/* Algorithm 1 over these; starts from the best that does not compress, where there is one. */
ESP__FN void esp__algorithm1_over(esp__problem *p, esp__schedule *d, const esp__choices *choices);
ESP__FN int esp__path_on(const esp__problem *p, const esp__path *path, uint32_t devices); /* no codec runs elsewhere */

/* ---- algorithm2.c ---- */
/* Algorithm 2 where a unit on the GPU may move to any of `choices` that has the same steps on other devices. */
ESP__FN void esp__algorithm2_over(esp__problem *p, esp__schedule *d, const esp__choices *choices);
/* ---- espresso.c: both, over tensors, chunks of large ones and groups of small ones (unless ruled out) ---- */
ESP__FN void esp__espresso(esp__problem *p, esp__schedule *d);
#endif
