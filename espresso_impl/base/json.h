/* json.h: prints strings and numbers as JSON. No other code does. Must not know what is written. */
#ifndef ESP__JSON_H
#define ESP__JSON_H
#include "espresso_impl/base/text.h"

/* The length in bytes of the UTF-8 character at p; 0: it is not UTF-8. */
ESP__FN size_t esp__utf8_bytes(const unsigned char *p);
/* Writes the next character of *s into `out`, escaped for a JSON string, and moves *s behind it. Returns the bytes written, 0 at
 * the end of *s. A byte that is not UTF-8 becomes U+FFFD. `also`: more ASCII characters to write as \uXXXX. */
enum { ESP__JSON_CHAR = 6 };
ESP__FN size_t esp__json_char(const char **s, const char *also, char out[ESP__JSON_CHAR]);
/* A string, with the quotes. */
ESP__FN void esp__json_string(esp__text *t, const char *s);
/* A number with up to `digits` digits and a decimal point in every locale; null for an infinity or a NaN. */
ESP__FN void esp__json_double(esp__text *t, double x, int digits);
/* Nanoseconds (>= 0) as microseconds with three decimals. */
ESP__FN void esp__json_us(esp__text *t, double ns);
/* x / unit, as the shortest number that gives x again when it is read and multiplied by `unit`. */
ESP__FN void esp__json_scaled(esp__text *t, double x, double unit);
#endif
