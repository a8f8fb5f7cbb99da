/* myopic.c: each tensor gets the option that is shortest for it alone, regardless of other tensors on the same lanes (section
 * 5.3). */
#include "planner/search/search.h"

static void esp__myopic_make(esp__problem *p, esp__schedule *d) {
    esp__schedule_tensors(p, d);
    for (uint32_t u = 0; u < d->n_units; u++)
        d->paths[u] = esp__candidates_get(p, &d->units[u])->paths; /* by ascending time */
    esp__generate(p, d);
}

static const esp__scheme esp__scheme_myopic = {
    .name = "myopic",
    .summary = "each tensor's shortest option by itself, without the others",
    .source = "Espresso, section 5.3",
    .make = esp__myopic_make,
};
