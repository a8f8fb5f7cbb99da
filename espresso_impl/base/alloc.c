/* alloc.c: allocates with the program's allocator (esp_host.alloc) or, if it gave none, with malloc. */
#include "espresso_impl/base/base.h"

ESP__FN void *esp__host_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    const esp_ctx *ctx = (const esp_ctx *)user;
    if (align < sizeof(void *)) align = sizeof(void *);
    if ((align & (align - 1)) || bytes > UINT64_MAX - align) return NULL;
    if (!bytes) bytes = 1;
    if (ctx && ESP_HAS(esp_host, esp__base_of(ctx)->user_host, alloc))
        return esp__base_of(ctx)->user_host->alloc(esp__base_of(ctx)->user_host->user, d, bytes, align);
    bytes = (bytes + align - 1) / align * align;
    if (d.kind > ESP_CPU || bytes > SIZE_MAX) return NULL;
    return aligned_alloc((size_t)align, (size_t)bytes);
}

ESP__FN void esp__host_free(void *user, esp_device d, void *p, uint64_t bytes) {
    const esp_ctx *ctx = (const esp_ctx *)user;
    if (!p) return;
    if (ctx && ESP_HAS(esp_host, esp__base_of(ctx)->user_host, alloc)) {
        if (ESP_HAS(esp_host, esp__base_of(ctx)->user_host, free_))
            esp__base_of(ctx)->user_host->free_(esp__base_of(ctx)->user_host->user, d, p, bytes ? bytes : 1);
    } else {
        free(p);
    }
}

static const esp_device esp__cpu = {ESP_CPU, 0};

/* esp_host.free_ gets the size of a block, so esp__alloc stores the size in this many bytes in front of the block. */
enum { ESP__ALLOC_HEAD = 64 };

ESP__FN void *esp__alloc(esp_ctx *ctx, uint64_t bytes) {
    uint64_t whole = (bytes + 2 * ESP__ALLOC_HEAD - 1) / ESP__ALLOC_HEAD * ESP__ALLOC_HEAD;
    uint8_t *p = bytes < whole ? esp__host_alloc(ctx, esp__cpu, whole, ESP__ALLOC_HEAD) : NULL;
    if (!p) return NULL;
    memset(p, 0, whole);
    memcpy(p, &whole, sizeof whole);
    return p + ESP__ALLOC_HEAD;
}

ESP__FN void esp__free(esp_ctx *ctx, void *p) {
    uint64_t whole;
    if (!p) return;
    uint8_t *start = (uint8_t *)p - ESP__ALLOC_HEAD;
    memcpy(&whole, start, sizeof whole);
    esp__host_free(ctx, esp__cpu, start, whole);
}

ESP__FN void *esp__grow(esp_ctx *ctx, void *old, uint64_t *cap_bytes, uint64_t need_bytes) {
    if (need_bytes <= *cap_bytes) return old;
    uint64_t cap = need_bytes * 2;
    void *grown = esp__alloc(ctx, cap);
    if (!grown) return NULL;
    if (old) memcpy(grown, old, (size_t)*cap_bytes);
    esp__free(ctx, old);
    *cap_bytes = cap;
    return grown;
}

ESP__FN char *esp__strdup(esp_ctx *ctx, const char *s) {
    size_t bytes = s ? strlen(s) + 1 : 0;
    char *copy = s ? (char *)esp__alloc(ctx, bytes) : NULL;
    if (copy) memcpy(copy, s, bytes);
    return copy;
}
