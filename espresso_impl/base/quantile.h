/* quantile.h: medians and quantiles of numbers. */
#ifndef ESP__QUANTILE_H
#define ESP__QUANTILE_H
#include "espresso_impl/base/private.h"

ESP__FN void esp__sort(double *v, size_t n); /* in rising order */
ESP__FN double esp__quantile(const double *sorted, size_t n, double part);
ESP__FN double esp__median(double *v, size_t n);
/* Returns the third quartile minus the first one of n sorted numbers, without interpolation. */
ESP__FN double esp__quartile_distance(const double *sorted, size_t n);
#endif
