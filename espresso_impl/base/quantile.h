/* quantile.h: medians and quantiles of numbers. Must not know what they are of. */
#ifndef ESP__QUANTILE_H
#define ESP__QUANTILE_H
#include "espresso_impl/base/private.h"

/* Sorts numbers by rising value. */
ESP__FN void esp__sort(double *v, size_t n);
/* The quantile `part` (0 to 1) of n sorted numbers, interpolated linearly between neighbours. 0 for n = 0. */
ESP__FN double esp__quantile(const double *sorted, size_t n, double part);
/* Sorts v and returns its median. */
ESP__FN double esp__median(double *v, size_t n);
/* The third quartile of n sorted numbers minus the first; both are numbers of the list. 0 for n = 0. */
ESP__FN double esp__quartile_distance(const double *sorted, size_t n);
#endif
