/* mpi_job.c: one rank of bench/peers/mpi.sh. It averages a buffer by MPI_Allreduce, by this library without
 * compression, and by it with a codec, in turn. Usage: mpirun -n N mpi_job LABEL BYTES ROUNDS [CODEC]. In each round it
 * prints "LABEL BYTES mpi|fp32|CODEC MILLISECONDS" of the slowest rank. The buffer is one tensor; with CODEC, it is
 * divided into tensors of 1 MiB, as gradients are. */
#include "espresso.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256, TENSOR = 1 << 18 };

typedef struct job {
    esp_ctx *ctx;
    uint32_t n, id[MOST];
    float *grad;
    uint64_t count, each;
} job;

static void stop(const char *what) {
    fprintf(stderr, "mpi_job: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void job_open(job *j, float *grad, uint64_t count, uint64_t each, const char *codec, const char *strategy) {
    esp_config cfg = ESP_ZERO;
    cfg.codec = codec, cfg.strategy = strategy;
    j->grad = grad, j->count = count, j->each = each;
    if (esp_open(&cfg, &j->ctx)) stop(esp_last_error(NULL));
    for (uint64_t at = 0; at < count; at += each) {
        char name[32];
        snprintf(name, sizeof name, "t%u", j->n);
        esp_tensor_desc d = {.name = name, .count = count - at < each ? count - at : each};
        if (j->n == MOST || esp_tensor_add(j->ctx, &d, &j->id[j->n++])) stop(esp_last_error(j->ctx));
    }
    if (esp_start(j->ctx)) stop(esp_last_error(j->ctx));
}
static void job_step(job *j) {
    esp_stream cpu = ESP_ZERO;
    for (uint32_t t = 0; t < j->n; t++)
        if (esp_push(j->ctx, j->id[t], j->grad + t * j->each, cpu)) stop(esp_last_error(j->ctx));
    if (esp_wait_all(j->ctx)) stop(esp_last_error(j->ctx));
}

static double slowest(double begin) {
    double mine = MPI_Wtime() - begin, most;
    MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most * 1e3;
}

int main(int argc, char **argv) {
    int rank, level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4) stop("usage: mpi_job LABEL BYTES ROUNDS [CODEC]");
    const uint64_t bytes = strtoull(argv[2], NULL, 10), count = bytes / 4;
    const int rounds = atoi(argv[3]);
    const char *codec = argc > 4 ? argv[4] : NULL;
    const uint64_t each = codec && count > TENSOR ? TENSOR : count;
    float *grad = calloc(count, 4), *out = calloc(count, 4);
    job fp32 = {0}, coded = {0};
    if (!grad || !out) stop("no memory");
    job_open(&fp32, grad, count, each, NULL, "fp32");
    if (codec) job_open(&coded, grad, count, each, codec, "layerwise");
    for (int round = -1; round < rounds; round++) { /* round -1 only warms up */
        double ms[3] = {0};
        for (int which = 0; which < 3; which++) {
            if (which == 2 && !codec) continue;
            for (uint64_t i = 0; i < count; i++)
                grad[i] = (float)((i * 2654435761u + (uint64_t)round) % 1000) * 1e-3f - 0.5f;
            MPI_Barrier(MPI_COMM_WORLD);
            const double begin = MPI_Wtime();
            if (which == 0)
                for (uint64_t at = 0; at < count; at += each)
                    MPI_Allreduce(grad + at, out + at, (int)(count - at < each ? count - at : each), MPI_FLOAT, MPI_SUM,
                                  MPI_COMM_WORLD);
            else
                job_step(which == 1 ? &fp32 : &coded);
            ms[which] = slowest(begin);
        }
        if (rank || round < 0) continue;
        printf("%s %llu mpi %.3f\n%s %llu fp32 %.3f\n", argv[1], (unsigned long long)bytes, ms[0], argv[1],
               (unsigned long long)bytes, ms[1]);
        if (codec) printf("%s %llu %s %.3f\n", argv[1], (unsigned long long)bytes, codec, ms[2]);
        fflush(stdout);
    }
    if (codec) esp_close(coded.ctx);
    esp_close(fp32.ctx);
    MPI_Finalize();
    return 0;
}
