/* trainer.c: an MPI trainer that does not know the library: least squares by SGD, with four gradients a step, which
 * MPI_Allreduce sums, or MPI_Iallreduce ("overlap") while backward goes on. Prints the first and the last loss, and
 * whether all ranks have the same parameters. With a second argument, each rank forks in every fifth step while sums
 * are under way: children that only end, as those of a data loader, and ("calls") some that call MPI although they must
 * not. test_mpi_shim.sh preloads libespresso-mpi-shim.so. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PARTS = 4, COUNT = 20000, STEPS = 150 };
static float params[PARTS][COUNT], grads[PARTS][COUNT];

static unsigned hash(void) {
    unsigned h = 2166136261u;
    for (size_t i = 0; i < sizeof params; i++) h = (h ^ ((unsigned char *)params)[i]) * 16777619u;
    return h;
}

/* A child that ends by exit(), and, if `calls`, calls MPI before. Its exit status is 0 if MPI refused the sums. */
static pid_t begin_child(MPI_Request *request, int calls) {
    float sum[COUNT] = {0};
    const pid_t child = fork();
    if (child) return child;
    if (calls && (MPI_Allreduce(MPI_IN_PLACE, sum, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS ||
                  (request && MPI_Wait(request, MPI_STATUS_IGNORE) == MPI_SUCCESS) || MPI_Finalize() != MPI_SUCCESS))
        exit(1);
    exit(0);
}
static void end_child(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) == child && !status) return;
    printf("a child ended with status %d\n", status);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
    const int forks = argc > 2, calls = forks && !strcmp(argv[2], "calls");
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
        pid_t child[PARTS];
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
            if (forks && step % 5 == 3) child[p] = begin_child(overlap ? &request[p] : NULL, calls);
        }
        if (overlap) {
            int done = 0;
            MPI_Wait(&request[1], MPI_STATUS_IGNORE); /* in another order than they were started */
            while (!done) MPI_Test(&request[3], &done, MPI_STATUS_IGNORE);
            MPI_Waitall(PARTS, request, MPI_STATUSES_IGNORE);
        }
        for (int p = 0; forks && step % 5 == 3 && p < PARTS; p++) end_child(child[p]);
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
