/* joined.c is a test program that calls MPI itself: mpirun -n 4 joined funnelled|serialized|multiple|world|half|unset.
 * It starts MPI, opens a context on backend mpi, runs steps with MPI calls between them, closes, and finalizes MPI.
 * With `half`, even and odd ranks form two jobs, by esp_config.backend "mpi:comm=HANDLE". */
#include "espresso.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 50000, STEPS = 20 };
static float grad[2][N];

static int wrong(const char *what) {
    fprintf(stderr, "joined: %s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "multiple";
    const int wanted = !strcmp(mode, "funnelled")    ? MPI_THREAD_FUNNELED
                       : !strcmp(mode, "serialized") ? MPI_THREAD_SERIALIZED
                                                     : MPI_THREAD_MULTIPLE;
    int level, rank, size, over = 0;
    char backend[64] = "mpi";
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Init_thread(&argc, &argv, wanted, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!strcmp(mode, "half")) MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &comm); /* in reverse order */
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    if (comm != MPI_COMM_WORLD) snprintf(backend, sizeof backend, "mpi:comm=%ld", (long)MPI_Comm_c2f(comm));
    esp_config cfg = ESP_ZERO;
    esp_stream cpu = ESP_ZERO;
    esp_ctx *ctx;
    uint32_t id[2];
    cfg.backend = backend;
    cfg.codec = "none";
    if (esp_open(&cfg, &ctx)) return wrong(esp_last_error(NULL));
    if (esp_rank(ctx) != rank || esp_size(ctx) != size)
        return wrong("the context has another rank than the communicator");
    for (uint32_t t = 0; t < 2; t++) {
        char name[8];
        snprintf(name, sizeof name, "w%u", t);
        esp_tensor_desc d = {.name = name, .count = N};
        if (esp_tensor_add(ctx, &d, &id[t])) return wrong(esp_last_error(ctx));
    }
    if (esp_start(ctx)) return wrong(esp_last_error(ctx));
    for (int step = 0; step < STEPS; step++) {
        int sum = 0;
        for (uint32_t t = 0; t < 2; t++) {
            for (int i = 0; i < N; i++) grad[t][i] = (float)(rank + step + (int)t);
            if (esp_push(ctx, id[t], grad[t], cpu)) return wrong(esp_last_error(ctx));
        }
        if (level == MPI_THREAD_MULTIPLE) MPI_Allreduce(&step, &sum, 1, MPI_INT, MPI_SUM, comm); /* while ops run */
        if (esp_wait_all(ctx)) return wrong(esp_last_error(ctx));
        if (level != MPI_THREAD_MULTIPLE) MPI_Allreduce(&step, &sum, 1, MPI_INT, MPI_SUM, comm);
        if (sum != step * size) return wrong("the program's own MPI_Allreduce is wrong");
        for (uint32_t t = 0; t < 2; t++)
            for (int i = 0; i < N; i++)
                if (!(grad[t][i] == (float)(step + (int)t) + (float)(size - 1) / 2.0f)) return wrong("a mean is wrong");
    }
    esp_close(ctx);
    MPI_Finalized(&over);
    if (over) return wrong("the library has finalized the program's MPI");
    if (rank == 0) printf("joined %s (level %d): ok, %d ranks\n", mode, level, size);
    MPI_Finalize();
    return 0;
}
