/* test_agree.c: if settings that must be equal differ between ranks, all report the first difference and none hangs. */
/* runs: tsan */
#include "tests/lib/test.h"

/* How rank 1's settings differ from the others'. All ranks must get the error `says`, or none if it is NULL. */
typedef struct difference {
    const char *strategy, *codec, *other_strategy, *other_codec;
    uint64_t other_seed;
    uint64_t other_count;
    const char *says[2];
} difference;

static void tell(esp_ctx *ctx, const char *strategy, const char *codec) {
    ctx->config.strategy_spec = esp__strdup(ctx, strategy);
    ctx->model.codec_spec = esp__strdup(ctx, codec);
}

static void body(esp_ctx *ctx, void *user) {
    const difference *d = user;
    esp_tensor_desc t = ESP_ZERO;
    int other = esp_rank(ctx) == 1;
    tell(ctx, other ? d->other_strategy : d->strategy, other ? d->other_codec : d->codec);
    if (other && d->other_seed) ctx->config.seed = d->other_seed;
    t.name = "weight";
    t.count = other && d->other_count ? d->other_count : 100;
    CHECK(esp_tensor_add(ctx, &t, NULL) == ESP_OK);
    esp_status s = esp_start(ctx);
    if (!d->says[0]) {
        CHECK(s == ESP_OK);
        return;
    }
    CHECK(s == ESP_E_MISMATCH);
    CHECK(strstr(esp_last_error(ctx), "ranks disagree: rank 0 has '"));
    CHECK(strstr(esp_last_error(ctx), "(differing ranks: 1)"));
    for (int k = 0; k < 2; k++) CHECK(strstr(esp_last_error(ctx), d->says[k]));
    CHECK(esp_start(ctx) == ESP_E_MISMATCH);
}

static void check(difference d) { RUN_RANKS(.size = 3, .body = body, .user = &d, .config.timeout_ms = 20000); }

TEST(test_tensors_and_seed) {
    check((difference){.other_seed = 7, .says = {"seed 0", "seed 7"}});
    check((difference){.other_count = 101, .says = {"100 elements", "101 elements"}});
}

TEST(test_codec_and_strategy) {
    const char *topk = "topk:ratio=0.1";
    check((difference){.codec = topk, .other_codec = "topk:ratio=0.2", .says = {"ratio=0.1", "ratio=0.2"}});
    check((difference){.strategy = "fp32",
                       .codec = topk,
                       .other_strategy = "layerwise",
                       .other_codec = topk,
                       .says = {"codec none", "codec topk:ratio=0.1"}});
    /* strategy fp32 equals a strategy whose text says the same */
    check((difference){.strategy = "fp32",
                       .other_strategy = "espresso-strategy 1\ntensor weight 100 none flat.allreduce\n"});
}

/* Strategy auto needs all ranks, so all must choose it. */
TEST(test_autopilot) {
    const char *codecs = "fp16;topk:ratio=0.1";
    check((difference){.strategy = "auto",
                       .codec = codecs,
                       .other_strategy = "fp32",
                       .other_codec = codecs,
                       .says = {"'strategy auto, codecs fp16;topk:ratio=0.1'", "'a strategy that is not auto'"}});
    check((difference){.strategy = "fp32",
                       .other_strategy = "auto",
                       .says = {"'a strategy that is not auto'", "'strategy auto, codecs none named'"}});
    check((difference){.strategy = "auto",
                       .codec = codecs,
                       .other_strategy = "auto:steps=7",
                       .other_codec = codecs,
                       .says = {"'strategy auto, codecs", "'strategy auto:steps=7, codecs"}});
    check((difference){.strategy = "auto",
                       .codec = codecs,
                       .other_strategy = "auto",
                       .other_codec = "fp16",
                       .says = {"codecs fp16;topk:ratio=0.1'", "codecs fp16'"}});
    check((difference){
        .strategy = "auto:steps=7", .codec = codecs, .other_strategy = "auto:steps=7", .other_codec = codecs});
}
