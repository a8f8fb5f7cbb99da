/* run.h: helpers for trainers that do not use espresso: flags, shuffling, learning rate, median and clock. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H
#include <stddef.h>
#include <stdint.h>

/** A flag of the command line. text is its value, initially the default, or NULL. A number must be at least `least`. */
typedef struct flag {
    const char *name, *text, *help;
    double least, number;
} flag;

/** Prints "PROGRAM: what: why" and ends the process. */
void run_die(const char *program, const char *what, const char *why);
/** Reads "--flag value" pairs into the n flags, of which the first n_numbers must be numbers. Prints an error and ends
 * the process if a flag is wrong. */
void run_flags(const char *program, flag *f, int n, int n_numbers, int argc, char **argv);
/** Writes the numbers 0 to n - 1 in a random order that depends on `seed` only. */
void run_shuffle(uint32_t *order, size_t n, uint64_t seed);
/** Returns the learning rate of step s: it rises to `highest` in the first tenth of a run, then falls to a tenth. */
double run_lr(double highest, size_t s, size_t total);
/** Sorts the n numbers and returns their median, or 0 if n is 0. */
double run_median(double *x, size_t n);
/** Returns milliseconds on a clock that never goes back. */
double run_now_ms(void);
#endif
