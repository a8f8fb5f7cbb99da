/* test_serve.c checks that a tensor that its codec cannot compress is sent uncompressed, and that the log says so once,
 * with the setting that would help. */
/* runs: tsan */
#include "tests/lib/test.h"

typedef struct serve {
    const char *codec, *strategy;
    uint64_t rows, cols, count;
    uint32_t flags;
    const char *own; /* codec in the description */
    bool compressed;
    const char *says, *fails;
    atomic_int warnings, right;
} serve;

static void count_warning(void *user, const esp_log_event *ev) {
    serve *s = user;
    if (ev->level > ESP_LOG_WARN || strcmp(ev->component, "codec")) return;
    atomic_fetch_add(&s->warnings, 1);
    if (s->says && strstr(ev->message, s->says) && strstr(ev->message, "codec '")) atomic_fetch_add(&s->right, 1);
    if (!s->says) fprintf(stderr, "%s\n", ev->message);
}

static void serve_body(esp_ctx *ctx, void *user) {
    serve *s = user;
    esp_tensor_desc d = {.name = "w", .rows = s->rows, .cols = s->cols, .count = s->count, .flags = s->flags};
    float *g = calloc(s->count, sizeof *g);
    uint32_t id;
    esp_stream cpu = ESP_ZERO;
    d.codec = s->own;
    CHECK(esp_tensor_add(ctx, &d, &id) == ESP_OK);
    const esp_status status = esp_start(ctx);
    if (s->fails) {
        CHECK(status && error_has(ctx, s->fails));
    } else {
        CHECK(status == ESP_OK);
        CHECK(esp__option_compresses(&ctx->active.strategy.units[0].option) == s->compressed);
        for (uint64_t i = 0; i < s->count; i++) g[i] = 3;
        CHECK(esp_push(ctx, id, g, cpu) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
        if (!s->compressed && !(s->flags & ESP_SHARD)) CHECK(g[0] == 3 && g[s->count - 1] == 3);
        CHECK(s->strategy || esp_strategy_set(ctx, "layerwise") == ESP_OK);
    }
    free(g);
}

static void serve_with(serve s) {
    esp_host host = {.struct_size = sizeof host, .log = count_warning, .user = &s};
    setenv("ESPRESSO_MIN_COMPRESS_ELEMENTS", "1000", 1);
    RUN_RANKS(.size = 4, .per_machine = 2, .body = serve_body, .user = &s,
              .config = {.codec = s.codec,
                         .strategy = s.strategy,
                         .host = &host,
                         .log_level = ESP_LOG_WARN,
                         .min_compress_elements = 1000});
    assert_int_equal(atomic_load(&s.warnings), s.says ? 4 : 0);
    assert_int_equal(atomic_load(&s.right), atomic_load(&s.warnings));
}

#define SHARDED "is sharded (ESP_SHARD), but every rank must get the sum"

TEST(matrices) {
    serve_with((serve){"powersgd:rank=2", .count = 90000, .rows = 300, .cols = 300, .compressed = true});
    serve_with((serve){"powersgd:rank=2", .count = 90000, .says = "'w' has no rows and cols: set them"});
    serve_with((serve){"powersgd:rank=4", .count = 90000, .rows = 30000, .cols = 3, .says = "a lower rank"});
    serve_with((serve){"powersgd:rank=64", .count = 10000, .rows = 100, .cols = 100, .says = "a lower rank"});
    serve_with(
        (serve){"none", .own = "powersgd", .count = 90000, .compressed = true, .says = "'w' has no rows and cols"});
    serve_with((serve){"topk", .count = 90000, .compressed = true});
}

TEST(sharded) {
    serve_with((serve){"powersgd", .count = 90000, .rows = 300, .cols = 300, .flags = ESP_SHARD, .says = SHARDED});
    serve_with((serve){"none", .own = "powersgd", .count = 90000, .flags = ESP_SHARD, .fails = SHARDED});
    serve_with((serve){"topk", .count = 90000, .flags = ESP_SHARD, .compressed = true});
}

TEST(by_name_and_by_text) {
    static const char text[] = "espresso-strategy 1\ntensor w 90000 powersgd comp@cpu > flat.allreduce > decomp@cpu\n";
    serve_with((serve){.strategy = text, .count = 90000, .compressed = true, .says = "'w' has no rows and cols"});
    serve_with((serve){.strategy = text, .count = 90000, .flags = ESP_SHARD, .fails = SHARDED});
    serve_with((serve){"powersgd", .strategy = "fp32", .count = 90000});
}

TEST(too_small) {
    serve_with((serve){"topk", .count = 100, .says = "compresses nothing: each tensor has fewer than"});
    serve_with((serve){"topk", .count = 90000, .flags = ESP_RAW, .says = "compresses nothing"});
    serve_with((serve){"none", .count = 100});
    serve_with((serve){"nosuch", .count = 100, .fails = "nosuch"});
}
