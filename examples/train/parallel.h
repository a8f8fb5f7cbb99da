/* parallel.h: runs loops on OpenMP's threads if the program is compiled with -fopenmp, otherwise on one thread. Each
 * result is computed by one thread, so the number of threads does not change its bits. */
#ifndef TRAIN_PARALLEL_H
#define TRAIN_PARALLEL_H
#ifdef _OPENMP
#define PARALLEL__(text) _Pragma(#text)
/** Put it before a loop of independent iterations. If `large` is 0, or inside another such loop, one thread runs it. */
#define PARALLEL_IF(large) PARALLEL__(omp parallel for schedule(static) if (large))
#else
#define PARALLEL_IF(large)
#endif
#endif
