/* fragments.c: divides a model's tensors into the fragments of an outer loop, and predicts rounds. */
#include "espresso_impl/strategy/fragments.h"
#include <math.h>

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

ESP__FN double esp__outer_exposed(const esp__division *d, uint32_t f, double alone_ns, uint32_t delay) {
    return fmax(d->ns[f] - delay * alone_ns, d->busy_ns[f]);
}

static esp__outer_round esp__outer_round_predict(const esp__division *d, double alone_ns, uint32_t every,
                                                 uint32_t delay) {
    esp__outer_round r = {every, delay, d, 0, 0};
    for (uint32_t f = 0; f < d->n; f++) r.exposed_ns += esp__outer_exposed(d, f, alone_ns, delay);
    r.used = every * alone_ns / (every * alone_ns + r.exposed_ns);
    return r;
}

ESP__FN esp__outer_round esp__outer_round_best(const esp__division *all, uint32_t n, double alone_ns, uint32_t every,
                                               const uint32_t delay[2]) {
    esp__outer_round best = {0, 0, NULL, 0, 0};
    for (const esp__division *d = all; d < all + n; d++) {
        const uint32_t gap = every / d->n, most = gap < delay[1] ? gap : delay[1];
        double longest = 0;
        if (d->n > every || delay[0] > most) continue;
        for (uint32_t f = 0; f < d->n; f++) longest = fmax(longest, d->ns[f] - d->busy_ns[f]);
        const double need = ceil(longest / alone_ns - 1e-9); /* more delay hides no more */
        const uint32_t least = need < most ? (uint32_t)need : most;
        const esp__outer_round r = esp__outer_round_predict(d, alone_ns, every, least > delay[0] ? least : delay[0]);
        if (!best.of || r.exposed_ns < best.exposed_ns * (1 - 1e-9)) best = r;
    }
    return best;
}
