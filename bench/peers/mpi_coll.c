/* mpi_coll.c: measures MPI's collectives like bench/micro/coll.c. Usage: mpirun -n RANKS mpi_coll [op...]. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "coll_table.h"

static void once(int op, int n, float *src, float *dst, int ranks) {
    int per = n / ranks;
    MPI_Comm w = MPI_COMM_WORLD;
    switch (op) {
    case COLL_ALLREDUCE: MPI_Allreduce(src, dst, n, MPI_FLOAT, MPI_SUM, w); break;
    case COLL_REDUCE_SCATTER: MPI_Reduce_scatter_block(src, dst, per, MPI_FLOAT, MPI_SUM, w); break;
    case COLL_ALLGATHER: MPI_Allgather(src, per, MPI_FLOAT, dst, per, MPI_FLOAT, w); break;
    case COLL_ALLTOALL: MPI_Alltoall(src, per, MPI_FLOAT, dst, per, MPI_FLOAT, w); break;
    case COLL_BROADCAST: MPI_Bcast(src, n, MPI_FLOAT, 0, w); break;
    case COLL_REDUCE: MPI_Reduce(src, dst, n, MPI_FLOAT, MPI_SUM, 0, w); break;
    default: MPI_Gather(src, per, MPI_FLOAT, dst, per, MPI_FLOAT, 0, w); break;
    }
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *src = malloc(COLL_LARGEST), *dst = malloc(COLL_LARGEST);
    if (!src || !dst) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(src, 0, COLL_LARGEST), memset(dst, 0, COLL_LARGEST);
    for (int op = 0; op < COLL_OPS; op++) {
        int wanted = argc < 2;
        for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], coll_names[op]);
        for (int k = 0; wanted && k < COLL_SIZES; k++) {
            int repeats = coll_repeats(coll_sizes[k]), n = (int)(coll_sizes[k] / 4);
            for (int i = 0; i < 1 + repeats / 10; i++) once(op, n, src, dst, ranks);
            double best = 1e18, t, us, slowest;
            for (int b = 0; b < COLL_BATCHES; b++) {
                MPI_Barrier(MPI_COMM_WORLD);
                t = coll_now();
                for (int i = 0; i < repeats; i++) once(op, n, src, dst, ranks);
                us = (coll_now() - t) / repeats;
                MPI_Reduce(&us, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
                best = slowest < best ? slowest : best;
            }
            if (rank == 0) coll_print("openmpi", ranks, op, coll_sizes[k], best);
        }
    }
    MPI_Finalize();
    return 0;
}
