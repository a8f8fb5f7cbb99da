/* fragments.c: divides a model's tensors into the fragments of an outer loop. Contexts and the planner use it. */
#include "espresso_impl/strategy/text.h"

ESP__FN void esp__fragments_divide(uint64_t (*count)(const void *user, uint32_t tensor), const void *user,
                                   uint32_t n_tensors, uint32_t fragments, uint32_t *first) {
    double all = 0, done = 0;
    for (uint32_t i = 0; i < n_tensors; i++) all += (double)count(user, i);
    for (uint32_t f = 0, i = 0; f < fragments; f++) {
        const double until = all * (f + 1) / fragments;
        const uint32_t last = n_tensors - (fragments - f - 1);
        first[f] = i;
        do done += (double)count(user, i++);
        while (i < last && (f + 1 == fragments || done + (double)count(user, i) / 2 <= until));
    }
    first[fragments] = n_tensors;
}
