/* text.h: a string that grows, and suggestions for misspelt names. */
#ifndef ESP__TEXT_H
#define ESP__TEXT_H
#include "espresso_impl/base/private.h"

struct esp_ctx;

/* Like snprintf and vsnprintf, but with the number format of C in every locale of the program. */
ESP__FN int esp__format(char *out, size_t cap, const char *fmt, ...) ESP__PRINTF(3, 4);
ESP__FN int esp__format_list(char *out, size_t cap, const char *fmt, va_list ap) ESP__PRINTF(3, 0);
/* Reads what these printed, exactly. For numbers that users write, there is esp_params_number. */
ESP__FN double esp__number_of(const char *text);

/* An empty text has only zeros, except for ctx. esp__text_free makes it empty again. */
typedef struct esp__text {
    char *data; /* NUL-terminated, or NULL while empty */
    size_t len, cap;
    bool failed;         /* memory ran out, so the text is incomplete */
    struct esp_ctx *ctx; /* data is from esp__alloc or, if ctx is NULL, malloc */
} esp__text;
ESP__FN void esp__text_add(esp__text *t, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN bool esp__text_reserve(esp__text *t, size_t cap); /* returns false if memory runs out */
ESP__FN void esp__text_free(esp__text *t);

/* Is `known` a better suggestion for a misspelt `word` than those before? Set *best to 3 before the first name. The
 * number of edits must be less than *best, which it then becomes, and at most a third of the name's length. It counts
 * as 1 if one of the words is the beginning of the other. */
ESP__FN bool esp__suggests(const char *word, const char *known, unsigned *best);
#endif
