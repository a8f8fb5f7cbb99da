/* ranks.c: see test.h, "ranks as threads". */
#include "tests/lib/test.h"

atomic_int failures;

typedef struct test_rank {
    test_job *job;
    int32_t rank;
} test_rank;

static esp_status exchange(void *user, const void *in, void *out, uint64_t bytes) {
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

static void *rank_main(void *arg) {
    test_rank *r = arg;
    test_job *j = r->job;
    esp_config c = j->config;
    esp_ctx *ctx = NULL;
    c.rank = r->rank;
    c.size = j->size;
    c.machine = j->machines ? j->machines[r->rank] : 1 + r->rank / (j->per_machine ? j->per_machine : j->size);
    if (j->places) c.place = j->places[r->rank];
    if (!c.backend) c.backend = "loop";
    c.oob_allgather = exchange;
    c.oob_user = r;
    j->open_status[r->rank] = esp_open(&c, &ctx);
    if (ctx)
        j->body(ctx, j->user);
    else
        fprintf(stderr, "rank %d: esp_open: %s\n", r->rank, esp_last_error(NULL));
    esp_close(ctx);
    return NULL;
}

void test_run(test_job *j) {
    pthread_t threads[64];
    test_rank ranks[64];
    pthread_barrier_init(&j->barrier, NULL, (unsigned)j->size);
    for (int32_t r = 0; r < j->size; r++) {
        ranks[r] = (test_rank){j, r};
        pthread_create(&threads[r], NULL, rank_main, &ranks[r]);
    }
    for (int32_t r = 0; r < j->size; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&j->barrier);
}

void test_run_well(test_job *j) {
    if (!j->config.log_level) j->config.log_level = ESP_LOG_ERROR;
    atomic_store(&failures, 0);
    test_run(j);
    for (int32_t r = 0; r < j->size; r++) assert_int_equal(j->open_status[r], ESP_OK);
    assert_int_equal(atomic_load(&failures), 0);
}
