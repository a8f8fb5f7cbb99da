/* quantile.h: medians and quantiles of numbers. */
#ifndef ESP__QUANTILE_H
#define ESP__QUANTILE_H
#include "espresso_impl/base/private.h"

ESP__FN void esp__sort(double *v, size_t n); /* rising */
/* The quantile `part` (0 to 1) of n sorted numbers, interpolated linearly; 0 for n = 0. */
ESP__FN double esp__quantile(const double *sorted, size_t n, double part);
/* Sorts v and returns its median. */
ESP__FN double esp__median(double *v, size_t n);
/* The third quartile of n sorted numbers minus the first, without interpolation; 0 for n = 0. */
ESP__FN double esp__quartile_distance(const double *sorted, size_t n);
#endif
