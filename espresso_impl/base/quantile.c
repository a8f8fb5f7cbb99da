/* quantile.c: sorts numbers, and computes medians and quantiles. */
#include "espresso_impl/base/quantile.h"

static int esp__number_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

ESP__FN void esp__sort(double *v, size_t n) {
    if (n > 1) qsort(v, n, sizeof *v, esp__number_order);
}

ESP__FN double esp__quantile(const double *sorted, size_t n, double part) {
    if (!n) return 0;
    double at = part * (double)(n - 1);
    size_t k = (size_t)at;
    return k + 1 < n ? sorted[k] + (at - (double)k) * (sorted[k + 1] - sorted[k]) : sorted[n - 1];
}

ESP__FN double esp__median(double *v, size_t n) {
    esp__sort(v, n);
    return esp__quantile(v, n, 0.5);
}

ESP__FN double esp__quartile_distance(const double *sorted, size_t n) {
    return n ? sorted[n - 1 - n / 4] - sorted[n / 4] : 0;
}
