/* run.h: flags, the order of images, the learning rate, and medians of trainers. Independent of espresso. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H
#include <stddef.h>
#include <stdint.h>

/** A flag of the command line. text is its value, initially its default, or NULL. A number must be at least `least`. */
typedef struct flag {
    const char *name, *text, *help;
    double least, number;
} flag;

/** Prints "PROGRAM: what: why" and ends the process. */
void run_die(const char *program, const char *what, const char *why);
/** Reads "--flag value" pairs. The first n_numbers of the n flags are numbers. Prints an error and ends the process
 *  where one is wrong. */
void run_flags(const char *program, flag *f, int n, int n_numbers, int argc, char **argv);
/** Writes 0 to n - 1 in random order, which `seed` determines. */
void run_shuffle(uint32_t *order, size_t n, uint64_t seed);
/** The learning rate of step s of `total`: rises to `highest` over the first tenth, then falls to a tenth of it. */
double run_lr(double highest, size_t s, size_t total);
/** The median of n numbers, which it sorts, or 0 where n is 0. */
double run_median(double *x, size_t n);
/** Milliseconds on a clock that never goes back. */
double run_now_ms(void);
#endif
