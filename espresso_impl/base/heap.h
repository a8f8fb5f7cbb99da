/* heap.h: a binary heap, from which the element with the smallest `ready` is taken first. */
#ifndef ESP__HEAP_H
#define ESP__HEAP_H
#include "espresso_impl/base/private.h"

/* Of elements with equal `ready`, the one with the smallest `key` comes first, so that all ranks take the same one. */
typedef struct esp__waiting {
    uint64_t ready, key;
} esp__waiting;

typedef struct esp__heap {
    esp__waiting *at; /* at[0] has the smallest `ready` */
    uint32_t n;
} esp__heap;

static inline bool esp__waits_less(const esp__waiting *a, const esp__waiting *b) {
    return a->ready != b->ready ? a->ready < b->ready : a->key < b->key;
}

static inline void esp__heap_push(esp__heap *h, uint64_t ready, uint64_t key) {
    esp__waiting w = {ready, key};
    uint32_t i = h->n++;
    for (; i && esp__waits_less(&w, &h->at[(i - 1) / 2]); i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = w;
}

/* Replaces the first element. */
static inline void esp__heap_replace(esp__heap *h, uint64_t ready, uint64_t key) {
    const esp__waiting w = {ready, key};
    uint32_t i = 0, c;
    while ((c = 2 * i + 1) < h->n) {
        if (c + 1 < h->n && esp__waits_less(&h->at[c + 1], &h->at[c])) c++;
        if (!esp__waits_less(&h->at[c], &w)) break;
        h->at[i] = h->at[c];
        i = c;
    }
    h->at[i] = w;
}

static inline esp__waiting esp__heap_pop(esp__heap *h) {
    const esp__waiting top = h->at[0], last = h->at[--h->n];
    if (h->n) esp__heap_replace(h, last.ready, last.key);
    return top;
}
#endif
