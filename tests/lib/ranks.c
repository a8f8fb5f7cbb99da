/* ranks.c runs the ranks of a test as threads (see test.h). */
#include "tests/lib/test.h"

atomic_int failures;

typedef struct test_rank {
    test_job *job;
    test_member member;
} test_rank;

void exchange_open(test_exchange *x, int32_t size) {
    *x = (test_exchange){.size = size};
    pthread_barrier_init(&x->barrier, NULL, (unsigned)size);
}
void exchange_close(test_exchange *x) {
    pthread_barrier_destroy(&x->barrier);
    free(x->board);
}
esp_status exchange_allgather(void *member, const void *in, void *out, uint64_t bytes) {
    const test_member *m = member;
    test_exchange *x = m->all;
    if (pthread_barrier_wait(&x->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
        free(x->board);
        x->board = malloc((size_t)bytes * (size_t)x->size + 1);
    }
    pthread_barrier_wait(&x->barrier);
    memcpy(x->board + (size_t)m->rank * bytes, in, bytes);
    pthread_barrier_wait(&x->barrier);
    memcpy(out, x->board, bytes * (size_t)x->size);
    return ESP_OK;
}

static void *rank_main(void *arg) {
    test_rank *r = arg;
    test_job *j = r->job;
    const int32_t rank = r->member.rank;
    esp_config c = j->config;
    esp_ctx *ctx = NULL;
    c.rank = rank;
    c.size = j->size;
    c.machine = j->machines ? j->machines[rank] : 1 + rank / (j->per_machine ? j->per_machine : j->size);
    if (j->places) c.place = j->places[rank];
    if (!c.backend) c.backend = "loop";
    c.oob_allgather = exchange_allgather;
    c.oob_user = &r->member;
    j->open_status[rank] = esp_open(&c, &ctx);
    if (ctx)
        j->body(ctx, j->user);
    else
        fprintf(stderr, "rank %d: esp_open: %s\n", rank, esp_last_error(NULL));
    esp_close(ctx);
    return NULL;
}

void test_run(test_job *j) {
    test_rank ranks[64];
    test_exchange all;
    exchange_open(&all, j->size);
    for (int32_t r = 0; r < j->size; r++) ranks[r] = (test_rank){j, {&all, r}};
    run_threads(j->size, rank_main, ranks, sizeof *ranks);
    exchange_close(&all);
}

int test_run_failures(test_job *j) {
    if (!j->config.log_level) j->config.log_level = ESP_LOG_ERROR;
    atomic_store(&failures, 0);
    test_run(j);
    for (int32_t r = 0; r < j->size; r++)
        if (j->open_status[r]) atomic_fetch_add(&failures, 1);
    return atomic_load(&failures);
}

void test_run_well(test_job *j) { assert_int_equal(test_run_failures(j), 0); }

uint32_t tensor_add(esp_ctx *ctx, const char *name, uint64_t count) {
    const esp_tensor_desc d = {.struct_size = sizeof d, .name = name, .count = count};
    uint32_t id = 0;
    CHECK(esp_tensor_add(ctx, &d, &id) == ESP_OK);
    return id;
}

bool error_has(const esp_ctx *ctx, const char *word) {
    const bool has = strstr(esp_last_error(ctx), word) != NULL;
    if (!has) fprintf(stderr, "expected '%s' in: %s\n", word, esp_last_error(ctx));
    return has;
}

void check_same_bits(esp_ctx *ctx, const void *data, uint64_t bytes) {
    void *root = malloc(bytes);
    memcpy(root, data, bytes);
    CHECK(esp_broadcast(ctx, root, bytes, 0) == ESP_OK);
    CHECK(!memcmp(root, data, bytes));
    free(root);
}
