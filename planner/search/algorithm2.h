/* algorithm2.h: the state of Algorithm 2, which moves the compression of groups of tensors to the CPU. */
#ifndef ESP__ALGORITHM2_H
#define ESP__ALGORITHM2_H
#include "planner/search/search.h"

enum { ESP__COMBINATIONS_MOST = 200, ESP__VARIANTS_MOST = 16, ESP__COUNT_TRIALS = 8 };

typedef struct esp__offload {
    const esp__path *from;
    const esp__path *to[ESP__VARIANTS_MOST];
    uint32_t *members;
    uint32_t n, n_to;
    /* how many members a trial moves, and to which option in `to` */
    uint32_t count, variant;
    uint32_t best_count, best_variant;
} esp__offload;

typedef struct esp__offloading {
    esp__problem *p;
    esp__schedule *d;
    esp__offload *groups;
    esp__change *changes;
    const esp__path **wanted;
    uint32_t n;
    uint64_t best;
    uint64_t work;
} esp__offloading;

ESP__FN void esp__offload_groups(esp__offloading *o, const esp__choices *choices);
ESP__FN void esp__offload_all(esp__offloading *o);
ESP__FN void esp__offload_by_group(esp__offloading *o);
#endif
