/* run.c: implements run.h. */
#include "run.h"
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void run_die(const char *program, const char *what, const char *why) {
    fprintf(stderr, "%s: %s: %s\n", program, what, why);
    exit(1);
}

void run_flags(const char *program, flag *f, int n, int n_numbers, int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        int k = 0;
        while (k < n && strcmp(argv[i], f[k].name) != 0) k++;
        if (k == n || i + 1 == argc) {
            fprintf(stderr, "%s: %s\n", argv[i], k == n ? "there is no such flag" : "needs a value");
            fprintf(stderr, "usage: %s [FLAG VALUE]...   or   espresso run -n 4 -- %s [FLAG VALUE]...\n", program,
                    program);
            for (k = 0; k < n; k++)
                fprintf(stderr, "  %-14s %s (%s)\n", f[k].name, f[k].help, f[k].text ? f[k].text : "not set");
            exit(2);
        }
        f[k].text = argv[i + 1];
    }
    for (int k = 0; k < n_numbers; k++) {
        char *end, need[64];
        f[k].number = strtod(f[k].text, &end);
        snprintf(need, sizeof need, "needs a number, %g or more", f[k].least);
        if (*end || end == f[k].text || !(f[k].number >= f[k].least && f[k].number < 1e9))
            run_die(program, f[k].name, need);
    }
}

void run_shuffle(uint32_t *order, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (size_t i = n; i > 1; i--) {
        const size_t j = random_u64(&seed) % i;
        const uint32_t other = order[j];
        order[j] = order[i - 1], order[i - 1] = other;
    }
}

double run_lr(double highest, size_t s, size_t total) {
    const double x = (double)(s + 1) / (double)total;
    return highest * (x < 0.1 ? 10 * x : 1.1 - x);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double run_median(double *x, size_t n) {
    qsort(x, n, sizeof *x, by_value);
    return n ? x[n / 2] : 0;
}

double run_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}
