/* trainer.c: an MPI trainer that does not know the library: least squares by SGD, with four gradients a step, which
 * MPI_Allreduce sums, or MPI_Iallreduce ("overlap") while backward goes on. Prints the first and the last loss, and a
 * hash of rank 0's parameters if all ranks have the same. test_mpi_shim.sh preloads libespresso-mpi-shim.so. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { PARTS = 4, COUNT = 20000, STEPS = 150 };
static float params[PARTS][COUNT], grads[PARTS][COUNT];

static unsigned hash(void) {
    unsigned h = 2166136261u;
    for (size_t i = 0; i < sizeof params; i++) h = (h ^ ((unsigned char *)params)[i]) * 16777619u;
    return h;
}

int main(int argc, char **argv) {
    const int overlap = argc > 1 && !strcmp(argv[1], "overlap");
    int rank, size;
    float first = 0, loss = 0;
    unsigned mine, low, high, noise;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    noise = (unsigned)rank;
    for (int step = 0; step < STEPS; step++) {
        MPI_Request request[PARTS];
        loss = 0;
        for (int p = 0; p < PARTS; p++) {
            for (int i = 0; i < COUNT; i++) {
                const float off = params[p][i] - (float)(i % 5);
                noise = noise * 1664525u + 1013904223u;
                grads[p][i] = off + (float)(noise >> 8) / (1 << 24) - 0.5f;
                loss += off * off / (PARTS * COUNT);
            }
            if (overlap)
                MPI_Iallreduce(MPI_IN_PLACE, grads[p], COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request[p]);
            else
                MPI_Allreduce(MPI_IN_PLACE, grads[p], COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        }
        if (overlap) {
            int done = 0;
            MPI_Wait(&request[1], MPI_STATUS_IGNORE); /* in another order than they were started */
            while (!done) MPI_Test(&request[3], &done, MPI_STATUS_IGNORE);
            MPI_Waitall(PARTS, request, MPI_STATUSES_IGNORE);
        }
        MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); /* not a gradient */
        loss /= (float)size;
        if (!step) first = loss;
        for (int p = 0; p < PARTS; p++)
            for (int i = 0; i < COUNT; i++) params[p][i] -= 0.1f * grads[p][i] / (float)size;
    }
    mine = hash();
    MPI_Allreduce(&mine, &low, 1, MPI_UNSIGNED, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&mine, &high, 1, MPI_UNSIGNED, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("loss %.6f -> %.6f, parameters %s\n", (double)first, (double)loss, low == high ? "same" : "DIFFERENT");
    MPI_Finalize();
    return 0;
}
