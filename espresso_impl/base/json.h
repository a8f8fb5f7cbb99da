/* json.h: prints strings and numbers as JSON, for the whole library. */
#ifndef ESP__JSON_H
#define ESP__JSON_H
#include "espresso_impl/base/text.h"

/* The bytes of the UTF-8 character at p, or 0 if it is not UTF-8. */
ESP__FN size_t esp__utf8_bytes(const unsigned char *p);
/* Writes the next character of *s, escaped for a JSON string, and moves *s after it. Returns the bytes written, 0 at
 * the end of *s. A byte that is not UTF-8 becomes U+FFFD. `also` lists more ASCII characters to write as \uXXXX. */
enum { ESP__JSON_CHAR = 6 };
ESP__FN size_t esp__json_char(const char **s, const char *also, char out[ESP__JSON_CHAR]);
/* Adds a string, with quotes. */
ESP__FN void esp__json_string(esp__text *t, const char *s);
/* Adds a number with up to `digits` digits, or null for an infinity or a NaN. */
ESP__FN void esp__json_double(esp__text *t, double x, int digits);
/* Adds nanoseconds (>= 0) as microseconds with three decimals. */
ESP__FN void esp__json_us(esp__text *t, double ns);
/* Adds x / unit, as the shortest number that gives x when it is multiplied by `unit`. */
ESP__FN void esp__json_scaled(esp__text *t, double x, double unit);
#endif
