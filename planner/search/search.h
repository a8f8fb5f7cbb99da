/* search.h: what Algorithms 1 and 2 and the comparison strategies built on them share. */
#ifndef ESP__SEARCH_H
#define ESP__SEARCH_H
#include "planner/plan.h"

/* The paths that one unit may take. */
typedef struct esp__choices {
    const esp__path **paths;
    uint32_t n, like; /* like: the first unit with the same paths */
} esp__choices;
typedef int (*esp__path_test)(const esp__problem *p, const esp__path *path);

/* ---- schedule/resimulate.c: simulates a schedule in ready order, repeatedly, with some paths changed ---- */
typedef struct esp__rerun esp__rerun;
typedef struct esp__change {
    uint32_t unit;
    const esp__path *path;
} esp__change;
/* Prepares a schedule, which must not change while the result is in use. */
ESP__FN esp__rerun *esp__rerun_open(esp__problem *p, esp__schedule *d);
/* The makespan with these changes (by ascending unit); UINT64_MAX if it is not below `limit`. Does not apply them. */
ESP__FN uint64_t esp__rerun_try(esp__rerun *r, const esp__change *changes, uint32_t n, uint64_t limit);

/* ---- lagrangian.c: replaces `best` by the Lagrangian start if that is shorter; and a comparison that respects limits ---- */
ESP__FN void esp__start_priced(esp__problem *p, esp__schedule *best, const esp__choices *choices);
ESP__FN void esp__keep_better_allowed(esp__problem *p, esp__schedule *to, const esp__schedule *from);

/* ---- algorithm1.c ---- */
/* [n_units] each unit's candidate options that pass the test (NULL or if none passes: all). Units with equal candidate options
 * share them. */
ESP__FN esp__choices *esp__choices_of(esp__problem *p, const esp__schedule *d, esp__path_test wanted);
/* Algorithm 1 with these choices. */
ESP__FN void esp__algorithm1_over(esp__problem *p, esp__schedule *d, const esp__choices *choices);
ESP__FN int esp__path_on(const esp__problem *p, const esp__path *path,
                         uint32_t devices); /* do all its codecs run on these? */

/* ---- algorithm2.c ---- */
/* Algorithm 2; a unit on the GPU may move to those of its choices that have the same steps on other devices. */
ESP__FN void esp__algorithm2_over(esp__problem *p, esp__schedule *d, const esp__choices *choices);
/* ---- schemes/layerwise.c: every tensor but the small ones compressed with this codec ---- */
ESP__FN void esp__layerwise_with(esp__problem *p, esp__schedule *d, uint32_t codec);

/* ---- espresso.c: both, on whole tensors, chunks of large ones and groups of small ones (unless flags exclude these) ---- */
ESP__FN void esp__espresso(esp__problem *p, esp__schedule *d);
#endif
