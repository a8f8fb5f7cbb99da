/* text.h: a string that grows, and suggestions for misspelt names. */
#ifndef ESP__TEXT_H
#define ESP__TEXT_H
#include "espresso_impl/base/private.h"

struct esp_ctx;

/* Like snprintf and vsnprintf, but with the number format of C in every locale of the program. */
ESP__FN int esp__format(char *out, size_t cap, const char *fmt, ...) ESP__PRINTF(3, 4);
ESP__FN int esp__format_list(char *out, size_t cap, const char *fmt, va_list ap) ESP__PRINTF(3, 0);
/* Reads a number that esp__format printed, exactly. Numbers that users write are read by esp_params_number. */
ESP__FN double esp__number_of(const char *text);

/* An esp__text of zeros is empty; `ctx` may be set. esp__text_free makes it empty again. */
typedef struct esp__text {
    char *data;
    size_t len, cap;
    bool failed;         /* memory ran out, so the text is incomplete */
    struct esp_ctx *ctx; /* data is from esp__alloc or, if ctx is NULL, malloc */
} esp__text;
ESP__FN void esp__text_add(esp__text *t, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN bool esp__text_reserve(esp__text *t, size_t cap);
ESP__FN void esp__text_free(esp__text *t);

/* Call this for every known name, with *best = 3 before the first call. Returns true if fewer edits turn `known` into
 * `word` than any name before it, and at most a third of its characters change. */
ESP__FN bool esp__suggests(const char *word, const char *known, unsigned *best);
#endif
