/* text.c: a string that grows. Must not know what is written. */
#include "espresso_impl/base/text.h"
#include "espresso_impl/base/base.h"

ESP__FN int esp__text_reserve(esp__text *t, size_t cap) {
    char *data;
    if (cap <= t->cap) return 1;
    if (!t->ctx) {
        data = (char *)realloc(t->data, cap);
    } else {
        data = (char *)esp__alloc(t->ctx, cap);
        if (data && t->data) memcpy(data, t->data, t->len + 1);
        if (data) esp__free(t->ctx, t->data);
    }
    if (!data) return 0;
    t->data = data;
    t->cap = cap;
    return 1;
}

ESP__FN void esp__text_add(esp__text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt); /* first tries the room that is there: most pieces fit */
    int n = vsnprintf(t->data ? t->data + t->len : NULL, t->cap - t->len, fmt, ap);
    va_end(ap);
    if (n >= 0 && t->len + (size_t)n + 1 > t->cap) {
        if (esp__text_reserve(t, (t->len + (size_t)n + 1) * 2)) {
            va_start(ap, fmt);
            vsnprintf(t->data + t->len, t->cap - t->len, fmt, ap);
            va_end(ap);
        } else {
            n = -1;
        }
    }
    if (n >= 0) {
        t->len += (size_t)n;
    } else {
        t->failed = 1;
        if (t->data) t->data[t->len] = 0; /* cuts off the part of the piece that fitted */
    }
}

ESP__FN void esp__text_free(esp__text *t) {
    esp_ctx *ctx = t->ctx;
    if (ctx)
        esp__free(ctx, t->data);
    else
        free(t->data);
    memset(t, 0, sizeof *t);
    t->ctx = ctx;
}
