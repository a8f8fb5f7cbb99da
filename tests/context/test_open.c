/* test_open.c checks what happens if threads of a process open contexts at the same time. */
/* runs: tsan */
#include "tests/lib/test.h"

typedef struct opened {
    char root[64];
    int32_t rank;
    uint32_t timeout_ms;
    esp_status status;
    char error[ESP__ERROR_MAX];
} opened;

static void *open_one(void *arg) {
    opened *o = arg;
    const esp_config c = {
        .backend = "loop", .size = 2, .rank = o->rank, .machine = 1, .root = o->root, .timeout_ms = o->timeout_ms};
    esp_ctx *ctx = NULL;
    o->status = esp_open(&c, &ctx);
    snprintf(o->error, sizeof o->error, "%s", o->status ? esp_last_error(NULL) : "");
    if (!o->status && esp_barrier(ctx)) o->status = ESP_E_COMM;
    esp_close(ctx);
    return NULL;
}

/* Two contexts have the same rank and the same address of rank 0. One is refused, and the other waits for rank 1 until
 * its timeout. */
TEST(test_two_contexts_at_once) {
    for (int i = 0; i < 3; i++) {
        opened o[2] = {{.timeout_ms = 1000}, {.timeout_ms = 1000}};
        for (int k = 0; k < 2; k++) snprintf(o[k].root, sizeof o[k].root, "unix:twice-%d", (int)getpid());
        run_threads(2, open_one, o, sizeof *o);
        const opened *refused = o[0].status == ESP_E_STATE ? &o[0] : &o[1];
        assert_int_equal(refused->status, ESP_E_STATE);
        assert_non_null(strstr(refused->error, "open contexts one after another, in the same order on all ranks"));
        assert_int_equal(o[refused == o].status, ESP_E_TIMEOUT);
    }
}

/* Two groups of two ranks open at the same time, each with its own address of rank 0. They ignore the address in the
 * environment. */
TEST(test_two_groups_at_once) {
    setenv("ESPRESSO_RANK", "3", 1);
    setenv("ESPRESSO_SIZE", "4", 1);
    setenv("ESPRESSO_ROOT", "unix:job", 1);
    for (int i = 0; i < 5; i++) {
        opened o[4] = {{.rank = 0}, {.rank = 0}, {.rank = 1}, {.rank = 1}};
        for (int k = 0; k < 4; k++) {
            o[k].timeout_ms = 20000;
            snprintf(o[k].root, sizeof o[k].root, "unix:group-%d-%d", (int)getpid(), k % 2);
        }
        run_threads(4, open_one, o, sizeof *o);
        for (int k = 0; k < 4; k++)
            if (o[k].status) fail_msg("%s", o[k].error);
    }
    unsetenv("ESPRESSO_RANK");
    unsetenv("ESPRESSO_SIZE");
    unsetenv("ESPRESSO_ROOT");
}

/* A log callback may run with a lock held, so a call that needs the lock fails in it, and the error that the event is
 * about stays. */
typedef struct caller {
    esp_ctx *ctx;
    int events, refused;
} caller;
static void log_that_calls(void *user, const esp_log_event *ev) {
    caller *c = user;
    esp_stats stats = {.struct_size = sizeof stats};
    if (!c->ctx) return;
    c->events++;
    c->refused += esp_stats_read(c->ctx, &stats) == ESP_E_STATE && strstr(esp_last_error(c->ctx), "log callback");
}
TEST(test_log_callback) {
    caller user = {0};
    const esp_host host = {.struct_size = sizeof host, .user = &user, .log = log_that_calls};
    const esp_config c = {.backend = "loop", .size = 1, .host = &host, .log_level = ESP_LOG_DEBUG};
    esp_ctx *ctx = NULL;
    esp_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(esp_open(&c, &ctx), ESP_OK);
    user.ctx = ctx;
    assert_true(esp_wait(ctx, 7) < 0);
    assert_null(strstr(esp_last_error(ctx), "log callback"));
    assert_true(user.events > 0);
    assert_int_equal(user.refused, user.events);
    assert_int_equal(esp_stats_read(ctx, &stats), ESP_OK);
    user.ctx = NULL;
    esp_close(ctx);
}
