/* test_growth.c checks that a residual which grows without bounds is reported once, and others are not. */
/* runs: quiet tsan */
#include "tests/lib/test.h"

enum { N = 5000, STEPS = 520 };
static atomic_int warnings;
static char last[ESP__ERROR_MAX];
static pthread_mutex_t hearing = PTHREAD_MUTEX_INITIALIZER;

static void hear(void *user, const esp_log_event *ev) {
    if (ev->level != ESP_LOG_WARN || strcmp(ev->component, "feedback")) return;
    pthread_mutex_lock(&hearing);
    atomic_fetch_add(&warnings, 1);
    snprintf(last, sizeof last, "%s", ev->message);
    pthread_mutex_unlock(&hearing);
}

/* Gradients of the first tensor are between -1 and 1. Those of the second one are `*scale` times as large. */
static void train(esp_ctx *ctx, void *user) {
    static const char *const names[] = {"first", "second"};
    const float scale = *(const float *)user;
    float *g = malloc(2 * N * sizeof *g);
    int bad = !g;
    for (uint32_t t = 0; t < 2 && !bad; t++) {
        esp_tensor_desc d = {.name = names[t], .count = N};
        bad |= esp_tensor_add(ctx, &d, NULL) != ESP_OK;
    }
    bad |= esp_start(ctx) != ESP_OK;
    for (int k = 0; k < STEPS && !bad; k++) {
        for (uint32_t i = 0; i < 2 * N; i++) {
            const uint32_t h = (i * 2654435761u + (uint32_t)(k * 104729 + esp_rank(ctx))) * 2246822519u;
            g[i] = ((float)(h >> 16 & 1023u) - 200.0f) / 1024.0f * (i < N ? 1.0f : scale);
        }
        for (uint32_t t = 0; t < 2; t++) bad |= esp_push(ctx, t, g + t * N, (esp_stream){0}) != ESP_OK;
        bad |= esp_wait_all(ctx) != ESP_OK;
    }
    free(g);
    atomic_fetch_add(&failures, bad);
}

static int warned(const char *codec, float scale) {
    static const esp_host host = {.struct_size = sizeof host, .log = hear};
    atomic_store(&warnings, 0);
    *last = 0;
    RUN_RANKS(.size = 2, .per_machine = 1, .body = train, .user = &scale, .config.codec = codec, .config.host = &host,
              .config.log_level = ESP_LOG_WARN);
    return atomic_load(&warnings);
}

TEST(grows) {
    assert_int_equal(warned("twobit:threshold=10", 1e-3f), 2);
    assert_non_null(strstr(last, "tensor 'second'"));
    assert_non_null(strstr(last, "codec 'twobit:threshold=10'"));
    assert_non_null(strstr(last, "relative=1.2"));
}

TEST(once_a_job, folder_make, folder_remove) {
    float scale = 1e-3f;
    fflush(stderr);
    const int before = dup(2), file = open(in_folder("stderr"), O_WRONLY | O_CREAT, 0600);
    assert_true(before >= 0 && file >= 0 && dup2(file, 2) == 2);
    test_job j = {.size = 2,
                  .per_machine = 1,
                  .body = train,
                  .user = &scale,
                  .config = {.codec = "twobit:threshold=10", .log_level = ESP_LOG_WARN}};
    const int failed = test_run_failures(&j);
    dup2(before, 2), close(before), close(file);
    assert_int_equal(failed, 0);
    char *text = file_text(in_folder("stderr"));
    assert_int_equal(count_of(text, "warn: feedback"), 1);
    assert_int_equal(count_of(text, "rank 0: warn: feedback"), 1);
    free(text);
}

TEST(stays) {
    assert_int_equal(warned("twobit:relative=1.2", 1e-3f), 0);
    assert_int_equal(warned("topk:ratio=0.01", 1e-3f), 0);
    assert_int_equal(warned("efsignsgd", 1e-3f), 0);
    assert_int_equal(warned("fp16", 1e-3f), 0);
}

/* A ratio of residual to gradient above 30 is reported if it has grown by a fifth. A ratio above 300, or NaN, is
 * always reported. */
TEST(rule) {
    double seen = 0;
    assert_int_equal(esp__growth_bad(&seen, 29.9), 0);
    assert_int_equal(esp__growth_bad(&seen, 31), 0);
    assert_int_equal(esp__growth_bad(&seen, 36), 0);
    assert_int_equal(esp__growth_bad(&seen, 44), 1);
    assert_int_equal(esp__growth_bad(&seen, 44), 0);
    assert_int_equal(esp__growth_bad(&seen, 301), 1);
    assert_int_equal(esp__growth_bad(&seen, 301), 1);
    assert_int_equal(esp__growth_bad(&seen, 1), 0);
    assert_int_equal(esp__growth_bad(&seen, (double)NAN), ESP__GROWTH_LIMIT);
}
