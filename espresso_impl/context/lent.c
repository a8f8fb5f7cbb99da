/* lent.c: finds gradients that share memory. A gradient is lent to the library from its push until its wait returns. If
 * two tensors lent the same memory, the result of one would overwrite the gradient of the other. A treap (a search tree
 * with random priorities) holds the address range of each tensor's last gradient. Ranges in the tree never overlap, so
 * if a tensor is pushed with the same address as before, nothing needs to be searched. */
#include "espresso_impl/context/context.h"

static esp__lent *esp__lent_at(const esp_ctx *ctx, uint32_t node) { return &ctx->model.tensors[node - 1].lent; }
static uint64_t esp__lent_priority(const esp_ctx *ctx, uint32_t node) {
    return ctx->model.tensors[node - 1].key * 0x9E3779B97F4A7C15ull;
}

/* Returns whether the range of `node` begins before address `at` of `device`. */
static bool esp__lent_before(const esp_ctx *ctx, uint32_t node, uint32_t device, uintptr_t at) {
    const esp__tensor *t = &ctx->model.tensors[node - 1];
    return t->device != device ? t->device < device : t->lent.begin < at;
}

/* Joins two trees. All ranges of `a` come before those of `b`. */
static uint32_t esp__lent_join(const esp_ctx *ctx, uint32_t a, uint32_t b) {
    uint32_t root, *link = &root;
    while (a && b) {
        if (esp__lent_priority(ctx, a) > esp__lent_priority(ctx, b)) {
            *link = a;
            link = &esp__lent_at(ctx, a)->higher;
            a = *link;
        } else {
            *link = b;
            link = &esp__lent_at(ctx, b)->lower;
            b = *link;
        }
    }
    *link = a ? a : b;
    return root;
}

static void esp__lent_remove(esp_ctx *ctx, const esp__tensor *t) {
    const uint32_t node = (uint32_t)(t - ctx->model.tensors) + 1;
    uint32_t *link = &ctx->steps.lent;
    while (*link != node)
        link = esp__lent_before(ctx, *link, t->device, t->lent.begin) ? &esp__lent_at(ctx, *link)->higher
                                                                      : &esp__lent_at(ctx, *link)->lower;
    *link = esp__lent_join(ctx, t->lent.lower, t->lent.higher);
}

static void esp__lent_insert(esp_ctx *ctx, esp__tensor *t) {
    const uint32_t node = (uint32_t)(t - ctx->model.tensors) + 1;
    uint32_t *link = &ctx->steps.lent, *lower = &t->lent.lower, *higher = &t->lent.higher;
    while (*link && esp__lent_priority(ctx, *link) > esp__lent_priority(ctx, node))
        link = esp__lent_before(ctx, *link, t->device, t->lent.begin) ? &esp__lent_at(ctx, *link)->higher
                                                                      : &esp__lent_at(ctx, *link)->lower;
    uint32_t rest = *link;
    *link = node;
    while (rest) { /* divides the subtree into what comes before and after the new range */
        if (esp__lent_before(ctx, rest, t->device, t->lent.begin)) {
            *lower = rest;
            lower = &esp__lent_at(ctx, rest)->higher;
            rest = *lower;
        } else {
            *higher = rest;
            higher = &esp__lent_at(ctx, rest)->lower;
            rest = *higher;
        }
    }
    *lower = *higher = 0;
}

/* Returns a tensor of the tree whose range overlaps that of `t`, or NULL. */
static esp__tensor *esp__lent_overlap(const esp_ctx *ctx, const esp__tensor *t) {
    const uintptr_t end = t->lent.begin + t->count * esp_dtype_bytes(t->dtype);
    uint32_t last = 0; /* of the ranges that begin before `end`, the last one */
    for (uint32_t node = ctx->steps.lent; node;) {
        const bool before = esp__lent_before(ctx, node, t->device, end);
        if (before) last = node;
        node = before ? esp__lent_at(ctx, node)->higher : esp__lent_at(ctx, node)->lower;
    }
    esp__tensor *o = last ? &ctx->model.tensors[last - 1] : NULL;
    return o && o->device == t->device && o->lent.begin + o->count * esp_dtype_bytes(o->dtype) > t->lent.begin ? o
                                                                                                               : NULL;
}

ESP__FN const esp__tensor *esp__lend(esp_ctx *ctx, esp__tensor *t, const void *grad) {
    const uintptr_t begin = (uintptr_t)grad;
    if (!t->lent.listed || t->lent.begin != begin) {
        if (t->lent.listed) esp__lent_remove(ctx, t);
        t->lent.listed = false;
        t->lent.begin = begin;
        for (esp__tensor *o; (o = esp__lent_overlap(ctx, t)) != NULL; o->lent.listed = false) {
            if (o->lent.now) return o;
            esp__lent_remove(ctx, o);
        }
        esp__lent_insert(ctx, t);
        t->lent.listed = true;
    }
    t->lent.now = true;
    return NULL;
}
