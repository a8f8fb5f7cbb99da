/* quantity.c: reads and prints numbers with units: times, sizes, bandwidths, factors. */
#include "tools/common/quantity.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

ESP__FN bool tool_quantity(const char *text, const tool_unit *units, double *out) {
    const char *end;
    double v;
    if (!esp_params_number(text, &end, &v)) return false;
    for (; units->name; units++)
        if (strcasecmp(end, units->name) == 0 && v > 0 && isfinite(v * units->factor)) {
            *out = v * units->factor;
            return true;
        }
    return false;
}

ESP__FN bool tool_factor(const char *text, double *out) {
    char number[32];
    const size_t n = strlen(text);
    if (n < 2 || n > sizeof number || (text[n - 1] != 'x' && text[n - 1] != 'X')) return false;
    memcpy(number, text, n - 1);
    number[n - 1] = 0;
    return tool_quantity(number, tool_parts, out);
}

ESP__FN char *tool_scratch(void) {
    static __thread char text[8][32];
    static __thread unsigned at;
    return text[at++ % 8];
}

ESP__FN const char *tool_time(double ns) {
    static const char *const unit[] = {"ns", "us", "ms", "s"};
    char *out = tool_scratch();
    int u = 0;
    while (fabs(ns) >= 999.95 && u < 3) ns /= 1000, u++;
    snprintf(out, 32, "%.*f %s",
             ns == 0 || u == 0   ? 0
             : fabs(ns) < 9.9995 ? 3
             : fabs(ns) < 99.995 ? 2
                                 : 1,
             ns, unit[u]);
    return out;
}

static const char *tool_thousands(double v, const char *unit) {
    static const char *const prefix[] = {"", "k", "M", "G", "T"};
    char *out = tool_scratch();
    int u = 0;
    while (v >= 999.5 && u < 4) v /= 1000, u++;
    snprintf(out, 32, "%.*f%s%s%s",
             u == 0 || v >= 99.95 ? 0
             : v < 9.995          ? 2
                                  : 1,
             v, *unit || u ? " " : "", prefix[u], unit);
    return out;
}
ESP__FN const char *tool_bytes(double bytes) { return tool_thousands(bytes, "B"); }
ESP__FN const char *tool_count(double n) { return tool_thousands(n, ""); }
