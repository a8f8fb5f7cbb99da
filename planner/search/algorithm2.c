/* algorithm2.c: Algorithm 2 of the Espresso paper (section 4.4), which moves compression from the GPU to the CPU
 * after Algorithm 1 has chosen an option for each tensor. Tensors of one size with the same option are a group. In a
 * group, the tensors whose gradients are ready first are moved first, because they leave most time to hide the
 * slower CPU (the paper's Lemma 1). So the search only needs to find one number for each group. It tries all
 * combinations of these numbers if they are few, otherwise one group after the other. */
#include "planner/search/algorithm2.h"

static int esp__path_has(const esp__problem *p, const esp__path *path, uint32_t device) {
    return !esp__path_on(p, path, 1u << (1u - device));
}

/* Returns 1 if the options differ in devices only: the codec and the sequence of steps are the same. */
static int esp__same_steps(const esp__path *a, const esp__path *b) {
    if (a->codec != b->codec || !a->option || !b->option || a->option->n != b->option->n) return 0;
    for (uint32_t i = 0; i < a->option->n; i++) {
        const esp__step *x = &a->option->steps[i], *y = &b->option->steps[i];
        if (x->kind != y->kind || x->level != y->level || x->coll != y->coll || x->summed != y->summed) return 0;
    }
    return 1;
}

/* Lists the options to which tensors of the group may change: the same steps with compression on the CPU. If there
 * are none, lists the first option that compresses on the CPU only. */
static void esp__offload_variants(const esp__problem *p, const esp__choices *c, esp__offload *g) {
    for (uint32_t i = 0; i < c->n && g->n_to < ESP__VARIANTS_MOST; i++)
        if (esp__same_steps(c->paths[i], g->from) && esp__path_has(p, c->paths[i], ESP_ON_CPU))
            g->to[g->n_to++] = c->paths[i];
    for (uint32_t i = 0; i < c->n && !g->n_to; i++)
        if (c->paths[i]->codec != ESP__NO_CODEC && esp__path_on(p, c->paths[i], 1u << ESP_ON_CPU))
            g->to[g->n_to++] = c->paths[i];
}

ESP__FN void esp__offload_groups(esp__offloading *o, const esp__choices *choices) {
    esp__problem *p = o->p;
    esp__schedule *d = o->d;
    o->groups = esp__arena_get(p->arena, d->n_units * sizeof *o->groups);
    uint32_t *group_of = esp__arena_get(p->arena, d->n_units * sizeof *group_of), kept = 0;
    uint32_t *members = esp__arena_get(p->arena, d->n_units * sizeof *members);
    for (uint32_t u = 0; u < d->n_units; u++) {
        group_of[u] = UINT32_MAX;
        if (d->paths[u]->codec == ESP__NO_CODEC || !esp__path_has(p, d->paths[u], ESP_ON_GPU)) continue;
        uint32_t g = 0;
        while (g < o->n && o->groups[g].from != d->paths[u]) g++;
        group_of[u] = g;
        if (g == o->n) {
            o->groups[o->n++].from = d->paths[u];
            esp__offload_variants(p, &choices[u], &o->groups[g]);
        }
        o->groups[g].n++;
    }
    for (uint32_t g = 0; g < o->n; g++) {
        o->groups[g].members = members;
        members += o->groups[g].n;
        o->groups[g].n = 0;
    }
    for (uint32_t u = 0; u < d->n_units; u++)
        if (group_of[u] != UINT32_MAX) {
            esp__offload *group = &o->groups[group_of[u]];
            group->members[group->n++] = u;
        }
    for (uint32_t g = 0; g < o->n; g++)
        if (o->groups[g].n_to) o->groups[kept++] = o->groups[g];
    o->n = kept;
}

static uint32_t esp__offload_changes(esp__offloading *o) {
    uint32_t n = 0;
    for (uint32_t g = 0; g < o->n; g++) {
        const esp__offload *group = &o->groups[g];
        for (uint32_t i = 0; i < group->n; i++)
            o->wanted[group->members[i]] = i < group->count ? group->to[group->variant] : group->from;
    }
    for (uint32_t u = 0; u < o->d->n_units; u++) {
        if (!o->wanted[u] || o->wanted[u] == o->d->paths[u]) continue;
        o->changes[n].unit = u;
        o->changes[n++].path = o->wanted[u];
    }
    return n;
}

ESP__FN uint64_t esp__change_try(esp__problem *p, const esp__schedule *d, const esp__change *changes, uint32_t n,
                                 uint64_t limit) {
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    const esp__path **old = esp__arena_get(p->arena, n * sizeof *old);
    for (uint32_t i = 0; i < n; i++) {
        old[i] = d->paths[changes[i].unit];
        d->paths[changes[i].unit] = changes[i].path;
    }
    const uint64_t time = esp__by_ready(p, d, NULL);
    for (uint32_t i = 0; i < n; i++) d->paths[changes[i].unit] = old[i];
    esp__arena_rewind(p->arena, mark);
    return time < limit ? time : UINT64_MAX;
}

static void esp__offload_try(esp__offloading *o) {
    uint32_t n = esp__offload_changes(o);
    o->work += o->d->n_sequence;
    uint64_t t = n ? esp__change_try(o->p, o->d, o->changes, n, o->best) : o->d->makespan;
    if (t >= o->best) return;
    o->best = t;
    for (uint32_t g = 0; g < o->n; g++) {
        o->groups[g].best_count = o->groups[g].count;
        o->groups[g].best_variant = o->groups[g].variant;
    }
}

static void esp__offload_best(esp__offloading *o) {
    for (uint32_t g = 0; g < o->n; g++) {
        o->groups[g].count = o->groups[g].best_count;
        o->groups[g].variant = o->groups[g].best_variant;
    }
}

ESP__FN void esp__offload_all(esp__offloading *o) {
    for (;;) {
        uint32_t g = 0;
        for (; g < o->n; g++) {
            esp__offload *group = &o->groups[g];
            if (group->count < group->n) {
                group->count++;
                break;
            }
            group->count = 1;
            if (++group->variant < group->n_to) break;
            group->count = group->variant = 0;
        }
        if (g == o->n || esp__out_of_time(o->p)) return;
        esp__offload_try(o);
    }
}

/* Finds how many tensors of one group should compress on the CPU, while the other groups stay. Tries numbers over the
 * whole range, then between the neighbours of the best one, and so on. */
static void esp__offload_group(esp__offloading *o, esp__offload *group) {
    for (uint32_t v = 0; v < group->n_to; v++) {
        uint32_t low = 0, high = group->n, step, best = 0;
        do {
            step = (high - low + ESP__COUNT_TRIALS - 1) / ESP__COUNT_TRIALS;
            for (uint32_t count = low; count <= high; count += step) {
                uint64_t before = o->best;
                group->variant = v;
                group->count = count;
                esp__offload_try(o);
                if (o->best < before) best = count;
            }
            low = best > step ? best - step + 1 : 0;
            high = best + step - 1 < group->n ? best + step - 1 : group->n;
        } while (step > 1);
        esp__offload_best(o);
    }
}

static int esp__offload_ends(const esp__offloading *o) {
    return o->work > esp__paper_work(o->d) || esp__out_of_time(o->p);
}

ESP__FN void esp__offload_by_group(esp__offloading *o) {
    uint64_t before;
    do {
        before = o->best;
        for (uint32_t g = 0; g < o->n && !esp__offload_ends(o); g++) esp__offload_group(o, &o->groups[g]);
    } while (o->best < before && !esp__offload_ends(o));
}

ESP__FN void esp__algorithm2_over(esp__problem *p, esp__schedule *d, const esp__choices *choices) {
    esp__offloading o;
    uint64_t combinations = 1;
    memset(&o, 0, sizeof o);
    o.p = p;
    o.d = d;
    esp__offload_groups(&o, choices);
    if (!o.n) return;
    o.changes = esp__arena_get(p->arena, d->n_units * sizeof *o.changes);
    o.wanted = esp__arena_get(p->arena, d->n_units * sizeof *o.wanted);
    o.best = d->makespan;
    for (uint32_t g = 0; g < o.n && combinations <= ESP__COMBINATIONS_MOST; g++)
        combinations *= (uint64_t)o.groups[g].n * o.groups[g].n_to + 1;
    if (combinations <= ESP__COMBINATIONS_MOST)
        esp__offload_all(&o);
    else
        esp__offload_by_group(&o);
    if (o.best == d->makespan) return;
    esp__offload_best(&o);
    for (uint32_t i = 0, n = esp__offload_changes(&o); i < n; i++) d->paths[o.changes[i].unit] = o.changes[i].path;
    esp__generate(p, d);
}

ESP__FN void esp__algorithm2(esp__problem *p, esp__schedule *d) {
    uint32_t both = 1u << ESP_ON_CPU | 1u << ESP_ON_GPU;
    if ((p->system.devices & both) == both) esp__algorithm2_over(p, d, esp__choices_of(p, d, NULL));
}
