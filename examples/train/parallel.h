/* parallel.h: loops on OpenMP's threads where the program is compiled with -fopenmp, otherwise on one thread. Each
 * result is computed by one thread, so any number of threads gives the same bits. */
#ifndef TRAIN_PARALLEL_H
#define TRAIN_PARALLEL_H
#ifdef _OPENMP
#define PARALLEL__(text) _Pragma(#text)
/** Before a loop whose iterations are independent; runs on one thread if `large` is 0, or inside another such loop. */
#define PARALLEL_IF(large) PARALLEL__(omp parallel for schedule(static) if (large))
#else
#define PARALLEL_IF(large)
#endif
#endif
