/* ranks.h: runs a function as several ranks, threads of one process over the backend `loop`. For tests. */
#ifndef TEST_RANKS_H
#define TEST_RANKS_H
#include "codecs/common/half.h"
#include "espresso.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct test_job {
    int32_t size, per_machine; /* ranks, and ranks a machine                         */
    const int32_t *machines;   /* or each rank's machine, from 1                     */
    const char *const *places; /* or each rank's place                               */
    esp_config config;         /* what all ranks open with, but for rank and machine */
    void (*body)(esp_ctx *ctx, void *user);
    void *user;
    esp_status open_status[64]; /* of each rank */
    /* exchange */
    pthread_barrier_t barrier;
    unsigned char *board;
    pthread_mutex_t lock;
} test_job;

typedef struct test_rank {
    test_job *job;
    int32_t rank;
} test_rank;

static inline esp_status test_oob(void *user, const void *in, void *out, uint64_t bytes) {
    test_rank *r = user;
    test_job *j = r->job;
    if (pthread_barrier_wait(&j->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
        j->board = malloc((size_t)bytes * (size_t)j->size + 1);
    pthread_barrier_wait(&j->barrier);
    memcpy(j->board + (size_t)r->rank * bytes, in, bytes);
    pthread_barrier_wait(&j->barrier);
    memcpy(out, j->board, bytes * (size_t)j->size);
    if (pthread_barrier_wait(&j->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) free(j->board);
    pthread_barrier_wait(&j->barrier);
    return ESP_OK;
}

static inline void *test_rank_main(void *arg) {
    test_rank *r = arg;
    test_job *j = r->job;
    esp_config c = j->config;
    esp_ctx *ctx = NULL;
    c.rank = r->rank;
    c.size = j->size;
    c.machine = j->machines ? j->machines[r->rank] : 1 + r->rank / (j->per_machine ? j->per_machine : j->size);
    if (j->places) c.place = j->places[r->rank];
    if (!c.backend) c.backend = "loop";
    c.oob_allgather = test_oob;
    c.oob_user = r;
    j->open_status[r->rank] = esp_open(&c, &ctx);
    if (ctx)
        j->body(ctx, j->user);
    else
        fprintf(stderr, "rank %d: esp_open: %s\n", r->rank, esp_last_error(NULL));
    esp_close(ctx);
    return NULL;
}

static inline float test_half(esp_dtype d, uint16_t h) {
    return d == ESP_F16 ? half_from_f16(h) : half_float((uint32_t)h << 16);
}

/* Opens all ranks, runs `body` in each, closes. */
static inline void test_run(test_job *j) {
    pthread_t threads[64];
    test_rank ranks[64];
    pthread_barrier_init(&j->barrier, NULL, (unsigned)j->size);
    for (int32_t r = 0; r < j->size; r++) {
        ranks[r].job = j;
        ranks[r].rank = r;
        pthread_create(&threads[r], NULL, test_rank_main, &ranks[r]);
    }
    for (int32_t r = 0; r < j->size; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&j->barrier);
}
#endif
