/* topology.c: the machine of each rank, and the groups that follow from it. Knows nothing of how ranks meet. */
#include "espresso_impl/job/job.h"

ESP__FN void esp__topology_make(esp__topology *p) {
    int32_t equal = 1, first_size = 0;
    p->n_machines = 0;
    for (int32_t r = 0; r < p->size; r++)
        if (p->machine_of[r] >= p->n_machines) p->n_machines = p->machine_of[r] + 1;
    int32_t at = 0;
    for (int32_t m = 0; m < p->n_machines; m++) {
        int32_t n = 0;
        for (int32_t r = 0; r < p->size; r++)
            if (p->machine_of[r] == m) {
                p->local_of[r] = n++;
                p->ranks[at++] = r;
            }
        if (m == 0) first_size = n;
        equal &= n == first_size;
    }
    p->n_local = equal ? first_size : 0;
    p->machine = p->machine_of[p->rank];
    p->local = p->local_of[p->rank];
}

ESP__FN int32_t esp__group_members(const esp__topology *p, uint8_t level, int32_t *members, int32_t *index) {
    int32_t n = 0;
    *index = 0;
    for (int32_t k = 0; k < p->size; k++) {
        int32_t r = level == ESP__FLAT ? k : p->ranks[k];
        int in = level == ESP__FLAT || (level == ESP__INTRA && p->machine_of[r] == p->machine) ||
                 (level == ESP__INTER && p->local_of[r] == p->local);
        if (!in) continue;
        if (r == p->rank) *index = n;
        members[n++] = r;
    }
    return n;
}

ESP__FN int32_t esp__group_rank(const esp_ctx *ctx, uint8_t level, int32_t i) {
    const esp__topology *p = &esp__job_of(ctx)->topo;
    int32_t n = 0;
    for (int32_t k = 0; k < p->size && i >= 0; k++) {
        int32_t r = level == ESP__FLAT ? k : p->ranks[k];
        if ((level == ESP__INTRA && p->machine_of[r] != p->machine) ||
            (level == ESP__INTER && p->local_of[r] != p->local))
            continue;
        if (n++ == i) return r;
    }
    return -1;
}
