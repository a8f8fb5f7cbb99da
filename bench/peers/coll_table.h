/* coll_table.h: the collectives, sizes and repetitions that bench/micro/coll.c and the programs for gloo and MPI
 * measure, and the line that they print. "bytes" is the size of the whole buffer: the input of a sum or an alltoall,
 * the result of a gather. */
#ifndef COLL_TABLE_H
#define COLL_TABLE_H
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static const char *const coll_names[] = {"allreduce", "reduce_scatter", "allgather", "alltoall",
                                         "broadcast", "reduce",         "gather"};
enum {
    COLL_ALLREDUCE,
    COLL_REDUCE_SCATTER,
    COLL_ALLGATHER,
    COLL_ALLTOALL,
    COLL_BROADCAST,
    COLL_REDUCE,
    COLL_GATHER,
    COLL_OPS
};
static const uint64_t coll_sizes[] = {4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864};
enum { COLL_SIZES = 8 };
#define COLL_LARGEST 67108864u

/* The best of several batches of repetitions counts, because other load on the machine comes and goes. */
enum { COLL_BATCHES = 5 };
static inline int coll_repeats(uint64_t bytes) {
    uint64_t n = 200000000u / (bytes + 20000u);
    return n > 2000 ? 400 : n < 10 ? 2 : (int)n / COLL_BATCHES;
}
static inline double coll_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}
static inline void coll_print(const char *who, int ranks, int op, uint64_t bytes, double us) {
    printf("%s %d %s %llu %.3f\n", who, ranks, coll_names[op], (unsigned long long)bytes, us);
    fflush(stdout);
}
#endif
