/* text.h: a string that grows. Must not know what is written. */
#ifndef ESP__TEXT_H
#define ESP__TEXT_H
#include "espresso_impl/base/private.h"

struct esp_ctx;

/* All zero but ctx is an empty text. Free it with esp__text_free, which keeps ctx. */
typedef struct esp__text {
    char *data; /* NUL-terminated, or NULL while empty */
    size_t len, cap;
    int failed;          /* an allocation failed: the text is not whole            */
    struct esp_ctx *ctx; /* whose memory data is (esp__alloc); NULL: of malloc     */
} esp__text;
ESP__FN void esp__text_add(esp__text *t, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN int esp__text_reserve(esp__text *t, size_t cap); /* 0: out of memory, and the text is as it was */
ESP__FN void esp__text_free(esp__text *t);
#endif
