/* json.h: prints strings and numbers as JSON. */
#ifndef ESP__JSON_H
#define ESP__JSON_H
#include "espresso_impl/base/text.h"

/* Returns the length of the UTF-8 character at p in bytes, or 0 if it is not UTF-8. */
ESP__FN size_t esp__utf8_bytes(const unsigned char *p);
/* Writes the next character of *s as in a JSON string, and moves *s after it. Returns the bytes written, or 0 at the
 * end of *s. A byte that is not UTF-8 becomes U+FFFD. ASCII characters in `also` are written as \uXXXX, too. */
enum { ESP__JSON_CHAR = 6 };
ESP__FN size_t esp__json_char(const char **s, const char *also, char out[ESP__JSON_CHAR]);
ESP__FN void esp__json_string(esp__text *t, const char *s);
/* Adds a number of at most `digits` significant digits, or null if it is infinite or NaN. */
ESP__FN void esp__json_double(esp__text *t, double x, int digits);
/* Adds a time in ns (0 or more) as microseconds with three decimals. */
ESP__FN void esp__json_us(esp__text *t, double ns);
/* Adds x / unit, with as few digits as possible such that this number times `unit` is exactly x. */
ESP__FN void esp__json_scaled(esp__text *t, double x, double unit);
#endif
