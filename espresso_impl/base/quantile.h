/* quantile.h: medians and quantiles of numbers. Must not know what they are of. */
#ifndef ESP__QUANTILE_H
#define ESP__QUANTILE_H
#include "espresso_impl/base/private.h"

/* Rising. */
ESP__FN void esp__sort(double *v, size_t n);
/* Of n sorted numbers the one at `part` (0 to 1) of the way from the first to the last, between two neighbours in
 * proportion. 0 for n = 0. */
ESP__FN double esp__quantile(const double *sorted, size_t n, double part);
/* Of n sorted numbers the first that at least `part` of them do not exceed: always one of the numbers. 0 for n = 0. */
ESP__FN double esp__quantile_rank(const double *sorted, size_t n, double part);
/* Sorts; then esp__quantile(v, n, 0.5). */
ESP__FN double esp__median(double *v, size_t n);
/* Of n sorted numbers: from the first quartile to the third, both of them numbers of the list. 0 for n = 0. */
ESP__FN double esp__quartile_distance(const double *sorted, size_t n);
#endif
