/* fragments.h: outer loops (docs/use/outer.md): how a model is divided into fragments, and how long training waits in a
 * round. Contexts and `espresso plan` use it. */
#ifndef ESP__FRAGMENTS_H
#define ESP__FRAGMENTS_H
#include "espresso_impl/base/private.h"

/* Divides tensors 0 to n_tensors - 1, of count(user, tensor) elements, into contiguous fragments of about equal size,
 * none of them empty. Fragment f has tensors first[f] to first[f + 1] - 1; `first` has fragments + 1 entries. */
ESP__FN void esp__fragments_divide(uint64_t (*count)(const void *user, uint32_t tensor), const void *user,
                                   uint32_t n_tensors, uint32_t fragments, uint32_t *first);

enum { ESP__FRAGMENTS_MOST = 64 };
/* Costs of a division into n fragments: for each, the time from its push until its mean is applied, and the part of it
 * in which training cannot use the processor. */
typedef struct esp__division {
    uint32_t n;
    double ns[ESP__FRAGMENTS_MOST], busy_ns[ESP__FRAGMENTS_MOST];
} esp__division;

/* A round of `every` inner steps. `of` is NULL if there is none. */
typedef struct esp__outer_round {
    uint32_t every, delay;
    const esp__division *of;
    double exposed_ns, used; /* time that training waits in a round; part of a round in which it trains */
} esp__outer_round;

/* Returns how long training waits for fragment f. */
ESP__FN double esp__outer_exposed(const esp__division *d, uint32_t f, double alone_ns, uint32_t delay);
/* Returns the best round of `every` inner steps, each of which takes alone_ns: no other waits less, and of these it has
 * the fewest fragments and the least delay. Delays are from delay[0] to delay[1]. */
ESP__FN esp__outer_round esp__outer_round_best(const esp__division *all, uint32_t n, double alone_ns, uint32_t every,
                                               const uint32_t delay[2]);
#endif
