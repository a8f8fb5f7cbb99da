/* state.h has the fuzz target that reads arbitrary bytes as a saved state of a context. esp_state_read must either
 * return ESP_OK, and the state must be the same when it is written again; or report an error with a text, and the
 * context must not change. The target corrects the checksums of most inputs, which otherwise would always be
 * refused. */
#ifndef ESPRESSO_TESTS_FUZZ_STATE_H
#define ESPRESSO_TESTS_FUZZ_STATE_H
#include "check.h"
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/context/state.h"

/* Sizes and offsets of the header, as in espresso_impl/context/state.c. */
enum { STATE_HEAD = 72, STATE_BODY_BYTES = 56, STATE_HEAD_SUM = 64, STATE_MOST = 1 << 16, STATE_TENSORS = 3 };

typedef struct state_bytes {
    uint8_t data[STATE_MOST];
    uint64_t n, at;
} state_bytes;

static esp_status state_put(void *user, void *data, uint64_t bytes) {
    state_bytes *b = user;
    if (bytes > sizeof b->data - b->n) return ESP_E_TOO_SMALL;
    if (bytes) memcpy(b->data + b->n, data, (size_t)bytes);
    b->n += bytes;
    return ESP_OK;
}
static esp_status state_get(void *user, void *data, uint64_t bytes) {
    state_bytes *b = user;
    if (bytes > b->n - b->at) return ESP_E_CORRUPT;
    memcpy(data, b->data + b->at, (size_t)bytes);
    b->at += bytes;
    return ESP_OK;
}

/* Corrects the checksums of a mutated state and, with size_too, the size in its header. */
static void state_repair(state_bytes *b, int size_too) {
    if (b->n < STATE_HEAD + 8) return;
    const uint64_t body = b->n - STATE_HEAD - 8;
    uint64_t sum;
    if (size_too) memcpy(b->data + STATE_BODY_BYTES, &body, 8);
    sum = esp__state_sum(0, b->data, STATE_HEAD_SUM);
    memcpy(b->data + STATE_HEAD_SUM, &sum, 8);
    sum = esp__state_sum(esp__state_sum(0, b->data, STATE_HEAD), b->data + STATE_HEAD, body);
    memcpy(b->data + b->n - 8, &sum, 8);
}

static esp_ctx *state_open(const char *strategy) {
    static const uint64_t rows[STATE_TENSORS] = {8, 0, 0}, counts[STATE_TENSORS] = {64, 33, 5};
    static const char *const names[STATE_TENSORS] = {"first", "second.weight", "b"};
    esp_ctx *ctx = NULL;
    esp_config cfg = {
        .size = 1, .strategy = strategy, .backend = "loop", .log_level = ESP_LOG_ERROR, .progress = "caller"};
    fuzz_check(esp_open(&cfg, &ctx) == ESP_OK, "a context cannot be opened");
    for (int t = 0; t < STATE_TENSORS; t++) {
        esp_tensor_desc d = {.name = names[t], .count = counts[t]};
        if (rows[t]) d.rows = rows[t], d.cols = counts[t] / rows[t];
        fuzz_check(esp_tensor_add(ctx, &d, NULL) == ESP_OK, "a tensor cannot be added");
    }
    fuzz_check(esp_start(ctx) == ESP_OK, "a context cannot be started");
    return ctx;
}
static void state_step(esp_ctx *ctx) {
    static float g[STATE_TENSORS][64];
    esp_stream cpu = ESP_ZERO;
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        for (int i = 0; i < 64; i++) g[t][i] = (float)(i * 37 % 11 - 5);
        fuzz_check(esp_push(ctx, t, g[t], cpu) == ESP_OK, "a push failed");
    }
    fuzz_check(esp_wait_all(ctx) == ESP_OK, "a step failed");
}

#define STATE_PATH "comp@cpu > flat.allgather > decomp@cpu"
static const char *const state_strategies[] = {
    "espresso-strategy 1\ntensor first 64 split 2\nchunk 24 dgc:ratio=0.1 " STATE_PATH
    "\nchunk 40 topk:ratio=0.1 " STATE_PATH
    "\ntensor second.weight 33 group\ntensor b 5 group\ngroup 38 efsignsgd " STATE_PATH "\n",
    "espresso-strategy 1\ntensor first 64 dgc:ratio=0.1 " STATE_PATH "\ntensor second.weight 33 efsignsgd " STATE_PATH
    "\ntensor b 5 none flat.allreduce\n"};
enum { STATE_STRATEGIES = sizeof state_strategies / sizeof *state_strategies };
static esp_ctx *state_ctx[STATE_STRATEGIES];

static void state_close(void) {
    for (int k = 0; k < STATE_STRATEGIES; k++) esp_close(state_ctx[k]), state_ctx[k] = NULL;
}

/* Tests esp_state_read. The input's first byte selects the strategy and how the rest becomes a state: it either is
 * the state, or says which bytes of a valid state to change. Then checksums and size are corrected or left wrong. */
static inline int fuzz_state(const uint8_t *data, size_t size) {
    static state_bytes b, before, after;
    if (!state_ctx[0])
        for (int k = 0; k < STATE_STRATEGIES; k++) {
            state_ctx[k] = state_open(state_strategies[k]);
            state_step(state_ctx[k]);
        }
    if (size < 1) return 0;
    const uint8_t how = data[0];
    esp_ctx *ctx = state_ctx[how >> 4 & 1];
    data++, size--;
    b.n = b.at = 0;
    if (how & 4) {
        fuzz_check(size > sizeof b.data || state_put(&b, (void *)(uintptr_t)data, size) == ESP_OK, "too long");
    } else {
        fuzz_check(esp_state_write(state_ctx[how >> 3 & 1], state_put, &b) == ESP_OK, "a state cannot be written");
        for (size_t i = 0; i + 3 <= size; i += 3) {
            const uint64_t at = ((uint64_t)data[i] | (uint64_t)data[i + 1] << 8) % (b.n + 64);
            if (at < b.n)
                b.data[at] = data[i + 2];
            else if (at & 1 && b.n > data[i + 2])
                b.n -= data[i + 2];
            else if (b.n + data[i + 2] <= sizeof b.data)
                memset(b.data + b.n, 0, data[i + 2]), b.n += data[i + 2];
        }
    }
    if (!(how & 1)) state_repair(&b, !(how & 2));
    before.n = after.n = 0;
    fuzz_check(esp_state_write(ctx, state_put, &before) == ESP_OK, "a state cannot be written");
    const esp_status s = esp_state_read(ctx, state_get, &b);
    fuzz_check(esp_state_write(ctx, state_put, &after) == ESP_OK, "a state cannot be written");
    if (s != ESP_OK) {
        fuzz_check(*esp_last_error(ctx) != 0, "an error without a text");
        fuzz_check(before.n == after.n && !memcmp(before.data, after.data, (size_t)after.n),
                   "refused, but something changed");
        return 0;
    }
    /* The state that was written must be the same when it is read again. */
    before.n = 0;
    after.at = 0;
    fuzz_check(esp_state_read(ctx, state_get, &after) == ESP_OK, "a state that was written is refused");
    fuzz_check(esp_state_write(ctx, state_put, &before) == ESP_OK, "a state cannot be written");
    fuzz_check(before.n == after.n && !memcmp(before.data, after.data, (size_t)after.n),
               "a state reads as another one");
    state_step(ctx);
    return 1;
}

/* The fuzz target that activates arbitrary text as a strategy. Either it is refused with an error text and without any
 * change, or a training step runs, and the text that the library prints is the same strategy. */
static inline int fuzz_activate(const uint8_t *data, size_t size) {
    static esp_ctx *ctx;
    static char was[STATE_MOST];
    if (!ctx) ctx = state_ctx[0] ? state_ctx[0] : (state_ctx[0] = state_open(state_strategies[0]));
    char *text = malloc(size + 1);
    if (!text) return 0;
    if (size) memcpy(text, data, size);
    text[size] = 0;
    snprintf(was, sizeof was, "%s", esp_strategy_text(ctx));
    const esp_status s = esp_strategy_set(ctx, text);
    free(text);
    if (s != ESP_OK) {
        fuzz_check(*esp_last_error(ctx) != 0, "an error without a text");
        fuzz_check(!strcmp(was, esp_strategy_text(ctx)), "refused, but the strategy changed");
        return 0;
    }
    state_step(ctx);
    snprintf(was, sizeof was, "%s", esp_strategy_text(ctx));
    fuzz_check(esp_strategy_set(ctx, was) == ESP_OK, "a strategy that was printed is refused");
    fuzz_check(!strcmp(was, esp_strategy_text(ctx)), "a strategy reads as another one");
    return 1;
}
#endif
