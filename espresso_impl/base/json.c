/* json.c: see json.h. */
#include "espresso_impl/base/json.h"
#include <math.h>

ESP__FN size_t esp__utf8_bytes(const unsigned char *p) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = *p < 0x80 ? 1 : (*p & 0xe0) == 0xc0 ? 2 : (*p & 0xf0) == 0xe0 ? 3 : (*p & 0xf8) == 0xf0 ? 4 : 0;
    uint32_t c = n > 1 ? *p & (0xffu >> (n + 1)) : *p;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    return n && c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n : 0;
}

static size_t esp__json_hex(unsigned c, char out[ESP__JSON_CHAR]) {
    static const char digit[] = "0123456789abcdef";
    const char text[ESP__JSON_CHAR] = {'\\',         'u', digit[c >> 12 & 15], digit[c >> 8 & 15], digit[c >> 4 & 15],
                                       digit[c & 15]};
    memcpy(out, text, sizeof text);
    return sizeof text;
}

ESP__FN size_t esp__json_char(const char **s, const char *also, char out[ESP__JSON_CHAR]) {
    const unsigned char *p = (const unsigned char *)*s;
    if (!*p) return 0;
    size_t n = esp__utf8_bytes(p);
    *s += n ? n : 1;
    if (!n) return esp__json_hex(0xfffd, out);
    if (*p < 0x80 && also && strchr(also, *p)) return esp__json_hex(*p, out);
    if (*p == '"' || *p == '\\' || *p == '\n') {
        out[0] = '\\';
        out[1] = *p == '\n' ? 'n' : (char)*p;
        return 2;
    }
    if (*p < ' ') return esp__json_hex(*p, out);
    memcpy(out, p, n);
    return n;
}

ESP__FN void esp__json_string(esp__text *t, const char *s) {
    char part[120], one[ESP__JSON_CHAR];
    size_t n = 0, more;
    part[n++] = '"';
    while ((more = esp__json_char(&s, NULL, one)) > 0) {
        if (n + more > sizeof part) {
            esp__text_add(t, "%.*s", (int)n, part);
            n = 0;
        }
        memcpy(part + n, one, more);
        n += more;
    }
    esp__text_add(t, "%.*s\"", (int)n, part);
}

ESP__FN void esp__json_double(esp__text *t, double x, int digits) {
    if (x - x == 0)
        esp__text_add(t, "%.*g", digits, x);
    else
        esp__text_add(t, "null");
}

ESP__FN void esp__json_us(esp__text *t, double ns) { esp__json_double(t, (double)(uint64_t)(ns + 0.5) / 1000.0, 15); }

ESP__FN void esp__json_scaled(esp__text *t, double x, double unit) {
    char number[40];
    double down = x / unit, tries[3] = {down, nextafter(down, -INFINITY), nextafter(down, INFINITY)};
    for (int k = 0; k < 3; k++)
        for (int digits = 15; digits <= 17; digits++) {
            esp__format(number, sizeof number, "%.*g", digits, tries[k]);
            if (esp__number_of(number) * unit == x) {
                esp__text_add(t, "%s", number);
                return;
            }
        }
    esp__format(number, sizeof number, "%.17g", down);
    esp__text_add(t, "%s", number);
}
