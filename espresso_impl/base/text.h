/* text.h: a string that grows, and suggestions for misspelt names. */
#ifndef ESP__TEXT_H
#define ESP__TEXT_H
#include "espresso_impl/base/private.h"

struct esp_ctx;

/* A text is empty if all members but ctx are 0. Free it with esp__text_free, which keeps ctx. */
typedef struct esp__text {
    char *data; /* NUL-terminated, or NULL while empty */
    size_t len, cap;
    bool failed;         /* an allocation failed: the text is incomplete */
    struct esp_ctx *ctx; /* data is of esp__alloc or, if NULL, of malloc */
} esp__text;
ESP__FN void esp__text_add(esp__text *t, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN bool esp__text_reserve(esp__text *t, size_t cap); /* false when out of memory */
ESP__FN void esp__text_free(esp__text *t);

/* Is `known` the best suggestion so far for a misspelt `word`? Their distance must be less than *best, which it then
 * replaces; set that to 3 before the first name. The distance is the number of edits, which must be at most a third of
 * the name's length, or 1 if one of the words is the beginning of the other. */
ESP__FN bool esp__suggests(const char *word, const char *known, unsigned *best);
#endif
