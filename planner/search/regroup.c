/* regroup.c: merges neighbouring tensors and splits large ones, and chooses their options at the same time. (MergeComp,
 * Wang et al. 2021, merges with one codec only.) It starts with groups and chunks of equal size. Then it merges
 * neighbours, divides groups and splits tensors as long as that makes the step shorter. */
#include "planner/search/search.h"

enum { ESP__CHUNKS_MAX = ESP__NEW_MAX };
static const uint64_t esp__chunk_least = 4096;

/* ---- groups and chunks of equal size ----------------------------------------------------------------------------- */
/* Sets `u` to chunk c of a tensor. If a codec may need whole rows of a matrix, no row is cut. */
static void esp__chunk_part(const esp__problem *p, uint32_t tensor, uint64_t chunks, uint64_t c, esp__extent *u) {
    const esp_plan_tensor *t = &p->model->tensors[tensor];
    const uint64_t width = p->most_rounds && t->cols && t->rows >= chunks ? t->cols : 1;
    esp__part(t->elements / width, chunks, c, &u->begin, &u->elements);
    u->begin *= width, u->elements *= width;
}

/* Merges neighbours into groups of up to `merge` elements, and divides tensors with more than `split` elements into
 * equal chunks. If `merge` or `split` is 0, it leaves that out. */
ESP__FN void esp__partition(esp__problem *p, esp__schedule *d, uint64_t merge, uint64_t split) {
    const esp_plan_tensor *t = p->model->tensors;
    uint32_t n = 0;
    if (!p->cut_units) p->cut_units = esp__arena_get(p->arena, p->n_tensors * ESP__CHUNKS_MAX * sizeof *p->cut_units);
    esp__extent *units = p->cut_units;
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        esp__extent *last = n ? &units[n - 1] : NULL;
        uint64_t e = t[i].elements, chunks = split ? (e + split - 1) / split : 1;
        if (last && !last->begin && last->elements + e <= merge && p->keep[last->first] == p->keep[i] &&
            (!p->n_codecs || esp__has_small(p, last->first, 1) == esp__has_small(p, i, 1)) &&
            (last->n > 1 || last->elements == t[last->first].elements)) {
            last->n++;
            last->elements += e;
            continue;
        }
        if (chunks > ESP__CHUNKS_MAX) chunks = ESP__CHUNKS_MAX;
        if (e / chunks < esp__chunk_least || t[i].shard) chunks = 1;
        for (uint64_t c = 0; c < chunks; c++) {
            units[n].first = i;
            units[n].n = 1;
            esp__chunk_part(p, i, chunks, c, &units[n]);
            n++;
        }
    }
    esp__schedule_set_units(p, d, units, n);
}

static int esp__partition_start_before(const void *a, const void *b) {
    const esp__partition_start *x = a, *y = b;
    if (x->makespan != y->makespan) return x->makespan < y->makespan ? -1 : 1;
    if (x->merge != y->merge) return x->merge < y->merge ? -1 : 1;
    return x->split < y->split ? -1 : x->split > y->split;
}

/* Evaluates many sizes of groups and chunks, and sorts them by makespan. Large groups come first, because they take
 * least time to evaluate. Returns the length of `out`. */
ESP__FN uint32_t esp__partitions(esp__problem *p, esp__partition_start *out) {
    /* log2 of the elements of a group; 0: no groups */
    static const uint8_t merges[] = {25, 23, 22, 24, 21, 20, 26, 18, 16, 14, 0};
    static const uint8_t splits[] = {0, 23, 22, 24, 25, 20};
    int no_merge = (p->config.flags & ESP_PLAN_NO_MERGE) != 0, no_split = (p->config.flags & ESP_PLAN_NO_SPLIT) != 0;
    uint32_t n = 0, i;
    esp__schedule d = {0};
    for (uint32_t m = 0; m < sizeof merges; m++)
        for (uint32_t s = 0; s < sizeof splits && !(n && esp__out_of_time(p)); s++) {
            esp__partition_start c = {merges[m] ? (uint64_t)1 << merges[m] : 0,
                                      splits[s] ? (uint64_t)1 << splits[s] : 0, UINT64_MAX, 0};
            if ((no_merge && c.merge) || (no_split && c.split)) continue;
            if (!c.merge && !c.split && !(no_merge && no_split)) continue; /* tensors as given were searched before */
            esp__partition(p, &d, c.merge, c.split);
            for (i = 0; i < d.n_units; i++)
                c.hash = (c.hash ^ (d.units[i].begin << 8 ^ d.units[i].elements)) * 0x9E3779B97F4A7C15ull + i;
            for (i = 0; i < n && out[i].hash != c.hash;) i++;
            if (i < n) continue;
            esp__start_balanced(p, &d);
            c.makespan = d.makespan;
            out[n++] = c;
        }
    qsort(out, n, sizeof *out, esp__partition_start_before);
    return n;
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */
static int esp__try_merge(esp__incremental *k, uint32_t u, uint64_t limit) {
    const esp__schedule *d = k->d;
    if (u + 1 >= d->n_units || esp__is_chunk(k->p, &d->units[u]) || esp__is_chunk(k->p, &d->units[u + 1]) ||
        k->p->keep[d->units[u].first] != k->p->keep[d->units[u + 1].first])
        return 0;
    esp__extent both = d->units[u];
    both.n += d->units[u + 1].n;
    both.elements += d->units[u + 1].elements;
    esp__swap *w = esp__swap_open(k, u, 2);
    if (!w) return 0;
    esp__swap_add(k, w, &both, NULL);
    return esp__swap_take(k, w, limit);
}

/* Tries to divide a tensor, which is whole or in chunks, into `chunks` equal chunks. 1 makes it whole. */
static int esp__try_split(esp__incremental *k, uint32_t u, uint32_t chunks, uint64_t limit) {
    const esp__schedule *d = k->d;
    const uint64_t e = k->p->model->tensors[d->units[u].first].elements;
    uint32_t n = 1;
    if (d->units[u].n > 1 || (chunks > 1 && e / chunks < esp__chunk_least)) return 0;
    if (k->p->model->tensors[d->units[u].first].shard) return 0;
    while (u + n < d->n_units && d->units[u + n].first == d->units[u].first) n++;
    if (n == chunks || n > ESP__NEW_MAX) return 0;
    esp__swap *w = esp__swap_open(k, u, n);
    if (!w) return 0;
    for (uint32_t c = 0; c < chunks; c++) {
        esp__extent x = {d->units[u].first, 1, 0, 0};
        esp__chunk_part(k->p, x.first, chunks, c, &x);
        esp__swap_add(k, w, &x, NULL);
    }
    return esp__swap_take(k, w, limit);
}

/* Tries to divide a group after its first `n` tensors. */
static int esp__try_divide(esp__incremental *k, uint32_t u, uint32_t n) {
    const esp__extent group = k->d->units[u];
    esp__extent left = {group.first, n, 0, 0};
    for (uint32_t t = 0; t < n; t++) left.elements += k->p->model->tensors[group.first + t].elements;
    const esp__extent right = {group.first + n, group.n - n, 0, group.elements - left.elements};
    esp__swap *w = esp__swap_open(k, u, 1);
    if (!w) return 0;
    esp__swap_add(k, w, &left, NULL), esp__swap_add(k, w, &right, NULL);
    return esp__swap_take(k, w, k->d->makespan);
}

static int esp__regroup_unit(esp__incremental *k, uint32_t u) {
    static const uint32_t chunks[] = {2, 3, 4, 6, 8, 12, 16, 1};
    const esp__schedule *d = k->d;
    uint32_t flags = k->p->config.flags;
    if (!(flags & ESP_PLAN_NO_MERGE) && esp__try_merge(k, u, d->makespan)) return 1;
    if (d->units[u].n > 1) { /* in the middle, after its first tensor or before its last */
        const uint32_t n = d->units[u].n;
        return esp__try_divide(k, u, (n + 1) / 2) ||
               (n > 2 && (esp__try_divide(k, u, 1) || esp__try_divide(k, u, n - 1)));
    }
    if (!(flags & ESP_PLAN_NO_SPLIT) && d->units[u].n == 1 && !d->units[u].begin)
        for (uint32_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
            if (esp__try_split(k, u, chunks[i], d->makespan)) return 1;
    return 0;
}

ESP__FN void esp__regroup_random(esp__incremental *k, uint32_t u, uint32_t random) {
    const esp__extent *unit = &k->d->units[u];
    if (random & 1u && !(k->p->config.flags & ESP_PLAN_NO_MERGE))
        esp__try_merge(k, u, UINT64_MAX);
    else if (unit->n == 1 && !unit->begin && !(k->p->config.flags & ESP_PLAN_NO_SPLIT))
        esp__try_split(k, u, 1 + (random >> 1) % ESP__NEW_MAX, UINT64_MAX);
}

ESP__FN void esp__regroup_passes(esp__incremental *k) {
    for (int better = 1, rounds = 0; better && rounds < 8 && !esp__out_of_time(k->p); rounds++) {
        better = 0;
        for (uint32_t u = 0; u < k->d->n_units && !esp__out_of_time(k->p); u++)
            for (uint32_t again = 0; again < 16 && u < k->d->n_units && esp__regroup_unit(k, u); again++) better = 1;
    }
}
