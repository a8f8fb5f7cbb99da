/* region.c: computes which elements of a tensor a rank holds after each stage (compression or collective) of its
 * option. */
#include "espresso_impl/strategy/region.h"

ESP__FN void esp__region_start(esp__region *r) { memset(r, 0, sizeof *r); }

ESP__FN void esp__part(uint64_t count, uint64_t n, uint64_t p, uint64_t *begin, uint64_t *length) {
    uint64_t c = (count + n - 1) / n;
    uint64_t b = p * c < count ? p * c : count;
    uint64_t e = (p + 1) * c < count ? (p + 1) * c : count;
    *begin = b;
    *length = e - b;
}

ESP__FN void esp__region_range(const esp__region *r, const esp__coordinates *at, uint64_t count, const uint32_t *index,
                               uint64_t *begin, uint64_t *length) {
    const uint64_t width = at->width ? at->width : 1;
    uint64_t b = 0, len = count;
    for (uint32_t c = 0; c < r->n_cuts; c++) {
        uint8_t level = r->cuts[c].level;
        uint64_t p = (uint64_t)at->index[level], off, part;
        if (r->cuts[c].open)
            for (uint32_t d = 0; d < r->n_dims; d++)
                if (r->dims[d].what == ESP__DIM_PART && r->dims[d].level == level) p = index[d];
        esp__part(len / width, (uint64_t)at->size[level], p, &off, &part);
        b += off * width;
        len = part * width;
    }
    *begin = b;
    *length = len;
}

ESP__FN uint64_t esp__region_slots(const esp__region *r, const esp__coordinates *at) {
    uint64_t n = 1;
    for (uint32_t d = 0; d < r->n_dims; d++) n *= (uint64_t)at->size[r->dims[d].level];
    return n;
}

ESP__FN bool esp__region_active(const esp__region *r) {
    for (uint32_t k = 0; k < ESP__SCOPES; k++)
        if (r->idle[k]) return false;
    return true;
}

ESP__FN bool esp__region_takes_part(const esp__region *r, const esp__step *s) {
    for (uint32_t k = 0; k < ESP__SCOPES; k++)
        if (r->idle[k] && (s->kind != ESP__STAGE_COLLECTIVE || s->level != k)) return false;
    return true;
}

ESP__FN int32_t esp__region_root(const esp__coordinates *at, const esp__step *s) {
    uint64_t turn = at->unit;
    uint32_t first, last;
    if (s->kind != ESP__STAGE_COLLECTIVE || !esp__coll_rooted(s->coll)) return -1;
    esp__scope_levels(s->level, 0, &first, &last);
    /* ranks of one machine are in different groups, whose roots lie on different machines, to share the load */
    for (uint32_t level = 1; level < first; level++) turn += (uint64_t)at->index[level];
    return (int32_t)(turn % (uint64_t)at->size[s->level]);
}

static void esp__dims_prepend(esp__region *r, uint8_t what, uint8_t level) {
    memmove(r->dims + 1, r->dims, r->n_dims * sizeof *r->dims);
    r->dims[0].what = what;
    r->dims[0].level = level;
    r->n_dims++;
}

static uint32_t esp__part_find(const esp__region *r, uint8_t level) {
    for (uint32_t d = 0; d < r->n_dims; d++)
        if (r->dims[d].what == ESP__DIM_PART && r->dims[d].level == level) return d;
    return r->n_dims;
}

static esp__cut *esp__cut_find(esp__region *r, uint8_t level) {
    for (uint32_t c = 0; c < r->n_cuts; c++)
        if (r->cuts[c].level == level) return &r->cuts[c];
    return NULL;
}

static void esp__cut_push(esp__region *r, uint8_t level, uint8_t open) {
    r->cuts[r->n_cuts].level = level;
    r->cuts[r->n_cuts].open = open;
    r->n_cuts++;
}

/* Divides the elements into one payload for each part that a collective before the next decompression sends to another
 * rank. */
static void esp__region_comp(esp__region *r, const esp__option *o, uint32_t i) {
    r->compressed = 1;
    for (i++; i < o->n && o->steps[i].kind != ESP__STAGE_DECOMP; i++) {
        uint8_t coll = o->steps[i].coll, level = o->steps[i].level;
        if (o->steps[i].role != ESP__FIRST || coll == ESP_COLL_GATHER) continue;
        esp__cut_push(r, level, 1);
        r->dims[r->n_dims].what = ESP__DIM_PART;
        r->dims[r->n_dims].level = level;
        r->n_dims++;
    }
}

static void esp__region_decomp(esp__region *r) {
    uint32_t n = 0;
    r->compressed = 0;
    r->n_dims = 0;
    for (uint32_t c = 0; c < r->n_cuts; c++)
        if (!r->cuts[c].open) r->cuts[n++] = r->cuts[c];
    r->n_cuts = n;
}

static void esp__region_payload_coll(esp__region *r, const esp__coordinates *at, const esp__step *s, uint32_t *swap) {
    int32_t root = esp__region_root(at, s);
    switch (s->coll) {
    case ESP_COLL_ALLTOALL:
    case ESP_COLL_REDUCE_SCATTER: {
        uint32_t d = esp__part_find(r, s->level);
        *swap = d;
        memmove(r->dims + d, r->dims + d + 1, (r->n_dims - d - 1) * sizeof *r->dims);
        r->n_dims--;
        esp__cut_find(r, s->level)->open = 0;
        if (s->coll == ESP_COLL_ALLTOALL) esp__dims_prepend(r, ESP__DIM_SOURCE, s->level);
        break;
    }
    case ESP_COLL_GATHER:
        esp__dims_prepend(r, ESP__DIM_SOURCE, s->level);
        r->idle[s->level] = at->index[s->level] != root;
        break;
    case ESP_COLL_ALLGATHER:
        if (s->role == ESP__SECOND) {
            esp__dims_prepend(r, ESP__DIM_PART, s->level);
            esp__cut_find(r, s->level)->open = 1;
        } else {
            esp__dims_prepend(r, ESP__DIM_SOURCE, s->level);
        }
        break;
    default: break; /* an allreduce or a broadcast keeps the number of payloads */
    }
}

static void esp__region_raw_coll(esp__region *r, const esp__coordinates *at, const esp__step *s) {
    switch (s->coll) {
    case ESP_COLL_REDUCE_SCATTER: esp__cut_push(r, s->level, 0); break;
    case ESP_COLL_ALLGATHER: r->n_cuts--; break; /* it joins the parts of the last reduce_scatter */
    case ESP_COLL_REDUCE: r->idle[s->level] = at->index[s->level] != esp__region_root(at, s); break;
    default: break;
    }
}

ESP__FN void esp__region_step(esp__region *r, const esp__coordinates *at, const esp__option *o, uint32_t i,
                              uint32_t *swap) {
    const esp__step *s = &o->steps[i];
    *swap = 0;
    if (s->kind == ESP__STAGE_COMP) {
        esp__region_comp(r, o, i);
        return;
    }
    if (s->kind == ESP__STAGE_DECOMP) {
        esp__region_decomp(r);
        return;
    }
    if (s->compressed)
        esp__region_payload_coll(r, at, s, swap);
    else
        esp__region_raw_coll(r, at, s);
    if (s->role != ESP__SECOND) r->summed[s->level] = 1;
    if (s->role != ESP__FIRST) r->replicated[s->level] = 1;
    if (s->coll == ESP_COLL_BROADCAST) r->idle[s->level] = 0;
}
