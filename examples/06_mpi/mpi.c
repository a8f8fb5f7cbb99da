/* mpi.c: a trainer that is an MPI program already. MPI says which rank this is, and carries the addresses at which the
 * library's ranks connect; the library then averages gradients with a backend of its choice, or over MPI with
 * ESPRESSO_BACKEND=mpi. Run: mpirun -n 4 ./mpi */
#include "espresso.h"
#include <mpi.h>
#include <stdio.h>

enum { COUNT = 100000 };

static int check(esp_status s, const esp_ctx *ctx) {
    if (s < 0) fprintf(stderr, "mpi: %s\n", esp_last_error(ctx));
    return s < 0;
}

/* esp_config.oob_allgather: the ranks exchange a few bytes while the job starts. */
static esp_status exchange(void *user, const void *in, void *out, uint64_t bytes) {
    const MPI_Comm *comm = user;
    const int n = (int)bytes; /* a few hundred */
    return MPI_Allgather(in, n, MPI_BYTE, out, n, MPI_BYTE, *comm) == MPI_SUCCESS ? ESP_OK : ESP_E_COMM;
}

int main(int argc, char **argv) {
    static float grad[COUNT];
    MPI_Comm comm = MPI_COMM_WORLD; /* or any communicator whose ranks hold the same parameters */
    const esp_stream cpu = ESP_ZERO;
    esp_config cfg = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    esp_ctx *ctx = NULL;
    uint32_t id = 0;
    int rank, size, threads;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    cfg.rank = rank, cfg.size = size, cfg.oob_allgather = exchange, cfg.oob_user = &comm;
    desc.name = "gradient", desc.count = COUNT;
    int failed =
        check(esp_open(&cfg, &ctx), NULL) || check(esp_tensor_add(ctx, &desc, &id), ctx) || check(esp_start(ctx), ctx);
    for (int i = 0; i < COUNT; i++) grad[i] = (float)rank;
    failed = failed || check(esp_push(ctx, id, grad, cpu), ctx) || check(esp_wait_all(ctx), ctx);
    if (!failed) {
        float by_mpi = (float)rank; /* MPI remains the trainer's own */
        MPI_Allreduce(MPI_IN_PLACE, &by_mpi, 1, MPI_FLOAT, MPI_SUM, comm);
        if (rank == 0) printf("the mean is %g, by MPI %g\n", (double)grad[0], (double)by_mpi / size);
    }
    esp_close(ctx);
    if (failed) MPI_Abort(comm, 1);
    MPI_Finalize();
    return 0;
}
