/* text.h: a string that grows, and suggestions for misspelt names. */
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

/* 1 if `word` is probably a misspelt `known`, and nearer to it than *best, which it then lowers. Near means: at most two edits, one
 * for short words, or one is the beginning of the other, without regard to case. Set *best to 3 before the first name. */
ESP__FN int esp__suggests(const char *word, const char *known, unsigned *best);
#endif
