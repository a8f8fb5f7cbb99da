/* text.c: a string that grows. Must not know what is written. */
#include "espresso_impl/base/text.h"

ESP__FN void esp__text_add(esp__text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt); /* first tries the room that is there: most pieces fit */
    int n = vsnprintf(t->data ? t->data + t->len : NULL, t->cap - t->len, fmt, ap);
    va_end(ap);
    if (n >= 0 && t->len + (size_t)n + 1 > t->cap) {
        size_t cap = (t->len + (size_t)n + 1) * 2;
        char *data = (char *)realloc(t->data, cap);
        if (data) {
            t->data = data;
            t->cap = cap;
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
    free(t->data);
    memset(t, 0, sizeof *t);
}
