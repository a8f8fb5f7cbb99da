/* quantile.h: medians and quantiles of numbers. */
#ifndef ESP__QUANTILE_H
#define ESP__QUANTILE_H
#include "espresso_impl/base/private.h"

ESP__FN void esp__sort(double *v, size_t n); /* in rising order */
/* Returns the quantile `part` (0 to 1) of n sorted numbers, with linear interpolation, or 0 if n is 0. */
ESP__FN double esp__quantile(const double *sorted, size_t n, double part);
/* Sorts v and returns its median. */
ESP__FN double esp__median(double *v, size_t n);
/* Returns the third quartile minus the first one of n sorted numbers, without interpolation, or 0 if n is 0. */
ESP__FN double esp__quartile_distance(const double *sorted, size_t n);
#endif
