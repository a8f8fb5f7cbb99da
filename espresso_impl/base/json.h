/* json.h: JSON's words for strings and numbers: the only writer of them. Must not know what is written. */
#ifndef ESP__JSON_H
#define ESP__JSON_H
#include "espresso_impl/base/text.h"

/* The length of the UTF-8 character at p, or 0 where there is none. */
ESP__FN size_t esp__utf8_bytes(const unsigned char *p);
/* Writes the next character of *s into `out` as it stands between a JSON string's quotes, and moves *s behind it. Returns
 * the bytes written, 0 at the end of *s. A byte that is no UTF-8 becomes U+FFFD. `also`: further ASCII characters to write
 * as \uXXXX. */
enum { ESP__JSON_CHAR = 6 };
ESP__FN size_t esp__json_char(const char **s, const char *also, char out[ESP__JSON_CHAR]);
/* A string, with the quotes. */
ESP__FN void esp__json_string(esp__text *t, const char *s);
/* A number with up to `digits` digits, whatever the program's locale is; null for an infinity or a NaN. */
ESP__FN void esp__json_double(esp__text *t, double x, int digits);
/* Nanoseconds (>= 0) as microseconds, to the nanosecond. */
ESP__FN void esp__json_us(esp__text *t, double ns);
/* The shortest number that reads back as x / unit, and gives x when it is multiplied by `unit`. */
ESP__FN void esp__json_scaled(esp__text *t, double x, double unit);
#endif
