/* test_units_text.c checks the text of strategies with chunks, groups and an order of collectives. It is read and
 * printed without loss, and errors name the line of every mistake. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "espresso_impl/codec/codec.h"
#include "tests/executor/small_model.h"

/* ---- texts that are read and then printed again ------------------------------------------------------------------ */
#define HEAD "espresso-strategy 1\n"
#define A_SPLIT "tensor a 1000 split 2\nchunk 600 none flat.allreduce\nchunk 400 topk:ratio=0.05 " FLAT_COMP "\n"
#define BC_GROUP "tensor b 37 group\ntensor c 5 group\ngroup 42 topk:ratio=0.05 " FLAT_COMP "\n"
#define D_E_F                                                                                                          \
    "tensor d 2048 none flat.reduce > flat.broadcast\ntensor e 3 none flat.allreduce\ntensor f 1 none "                \
    "flat.allreduce\n"
/* In an order of collectives, 0 and 1 are the chunks, 2 is the group, 3 to 5 are tensors d to f. */
#define UNITS A_SPLIT BC_GROUP D_E_F
#define COLLECTIVES "order 0:0 5:0 4:0 1:1 2:1 3:0 3:1\n"
#define EVERYTHING                                                                                                     \
    "order b 0:0 1:0d 1:0 1:0u 1:1 b b 2:p 2:0d 2:0 2:1 1:2d 1:2 1:2u b\n"                                             \
    "order 3:0 2:2 2:u b 4:0 b 5:0 3:1\n"

static void body_lossless(esp_ctx *ctx, void *user) {
    static const char *const texts[] = {HEAD UNITS COLLECTIVES, HEAD UNITS EVERYTHING};
    float g[TOTAL];
    esp_stream here = ESP_ZERO;
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(esp_strategy_set(ctx, texts[i]) == ESP_OK);
        CHECK(!strcmp(esp_strategy_text(ctx), texts[i]));
        char *printed = strdup(esp_strategy_text(ctx));
        uint64_t hash = ctx->active.strategy.hash;
        CHECK(esp_strategy_set(ctx, "fp32") == ESP_OK && ctx->active.strategy.hash != hash);
        CHECK(esp_strategy_set(ctx, printed) == ESP_OK && !strcmp(printed, esp_strategy_text(ctx)));
        CHECK(ctx->active.strategy.hash == hash && ctx->active.strategy.n_order == 7 &&
              ctx->active.strategy.n_units == 6);
        CHECK(esp_strategy_set(ctx, esp_strategy_text(ctx)) == ESP_OK);
        for (int k = 0; k < TOTAL; k++) g[k] = 2.0f;
        for (uint32_t t = 0; t < TENSORS; t++) CHECK(!esp_push(ctx, t, g + begins[t], here));
        CHECK(!esp_wait_all(ctx) && g[0] == 2.0f && g[begins[3]] == 2.0f);
        free(printed);
    }
    /* Without an order, the library adds one. Comments are not part of the strategy. */
    CHECK(esp_strategy_set(ctx, HEAD "# predicted 12 us\n# hash 0123\n" UNITS "# end\n") == ESP_OK);
    CHECK(strstr(esp_strategy_text(ctx), UNITS "order ") && !strchr(esp_strategy_text(ctx), '#'));
    static const char *const codecs[] = {"topk:ratio=0.5",
                                         "warmup:steps=9,of=(fp16:of=(topk:ratio=0.5)),feedback=(residual:beta=0.9)"};
    for (int kind = 0; kind < 2 * KINDS; kind++) {
        text s = strategy_of(kind / 2, codecs[kind % 2], FLAT_COMP);
        CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
        CHECK(!strncmp(esp_strategy_text(ctx), s.data, strlen(s.data)));
    }
}
TEST(test_lossless) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    run_ranks(2, 2, "loop", 0, body_lossless, &k);
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */
#define U " none flat.allreduce\n"
#define B_TO_F "tensor b 37" U "tensor c 5" U "tensor d 2048" U "tensor e 3" U "tensor f 1" U
#define C_TO_F "tensor c 5" U "tensor d 2048" U "tensor e 3" U "tensor f 1" U

static void body_mistakes(esp_ctx *ctx, void *user) {
    static const char *const cases[][2] = {
        {HEAD "tensor a 1000 split 1\nchunk 1000" U B_TO_F, "strategy:2: tensor 'a': 'split 1': expected a number"},
        {HEAD "tensor a 1000 split\nchunk 1000" U B_TO_F, "strategy:2: expected 'tensor NAME ELEMENTS CODEC OPTION'"},
        {HEAD "tensor a 1000 split 1001\n", "strategy:2: tensor 'a': 'split 1001'"},
        {HEAD "tensor a 1000 split -2\n", "strategy:2: tensor 'a': 'split -2'"},
        {HEAD "tensor a 1000 split two\n", "strategy:2: tensor 'a': 'split two'"},
        {HEAD "tensor a 1000 split 2\nchunk 600" U "chunk 399" U B_TO_F,
         "strategy:4: the chunks of tensor 'a' add up to 999 elements with this one, but it has 1000"},
        {HEAD "tensor a 1000 split 2\nchunk 600" U "chunk 401" U B_TO_F,
         "strategy:4: the chunks of tensor 'a' add up to 1001"},
        {HEAD "tensor a 1000 split 2\nchunk 18446744073709551615" U, "strategy:3: the chunks of tensor 'a' add up to"},
        {HEAD "tensor a 1000 split 3\nchunk 600" U "chunk 400" U,
         "strategy:4: tensor 'a' has no elements left after chunk 2 of 3"},
        {HEAD "tensor a 1000 split 2\nchunk 0" U "chunk 1000" U B_TO_F,
         "strategy:3: expected 'chunk ELEMENTS CODEC OPTION'"},
        {HEAD "tensor a 1000 split 2\nchunk 600 none\n", "strategy:3: expected 'chunk ELEMENTS CODEC OPTION'"},
        {HEAD "tensor a 1000 split 2\nchunk 600" U B_TO_F, "strategy:4: expected chunk 2 of 2 of tensor 'a'"},
        {HEAD "tensor a 1000 split 2\nchunk 600" U, "strategy:3: the text ends after 1 of 2 chunks of tensor 'a'"},
        {HEAD "tensor a 1000" U "chunk 37" U, "strategy:3: a chunk belongs behind"},
        {HEAD "chunk 37" U, "strategy:2: a chunk belongs behind"},
        {HEAD "tensor x 1000 split 2\nchunk 600" U "chunk 400" U B_TO_F, "strategy:2: tensor 0 is 'x'"},
        {HEAD "tensor a 999 split 2\nchunk 600" U "chunk 399" U B_TO_F,
         "strategy:2: tensor 0 is 'a' with 999 elements"},
        {HEAD "tensor a 1000 split 2\nchunk 600 nosuch " FLAT_COMP "\n", "strategy:3: tensor 'a[1/2]': "},
        {HEAD "tensor a 1000 split 2\nchunk 600 none flat.allredoce\n", "strategy:3: tensor 'a[1/2]': "},
        {HEAD "tensor a 1000 group\ngroup 1000" U B_TO_F, "strategy:3: tensor 'a' is alone in its group"},
        {HEAD "group 1000" U, "strategy:2: a group belongs behind"},
        {HEAD "tensor a 1000 group\ntensor b 37" U, "strategy:3: the group of tensor 'a' is not closed"},
        {HEAD "tensor a 1000 group\ntensor b 37 split 2\n", "strategy:3: the group of tensor 'a' is not closed"},
        {HEAD "tensor a 1000 group\ntensor b 37 group\ngroup 1038" U C_TO_F,
         "strategy:4: the group has 1038 elements, but its 2 tensors add up to 1037"},
        {HEAD "tensor a 1000 group\ntensor b 37 group\ngroup 1037 none\n",
         "strategy:4: expected 'group ELEMENTS CODEC OPTION'"},
        {HEAD "tensor a 1000 group\ntensor c 5 group\ngroup 1005" U,
         "strategy:3: tensor 1 is 'c' with 5 elements in the strategy"},
        {HEAD "tensor a 1000 group\ntensor b 37 group\nchunk 1037" U, "strategy:4: a chunk belongs behind"},
        {HEAD "tensor a 1000 group\ntensor b 37 group\norder 0:0\n", "strategy:4: 'order' must follow all 6 tensors"},
        {HEAD
         "tensor a 1000 group\ntensor b 37 group\ntensor c 5 group\ntensor d 2048 group\ntensor e 3 group\ntensor f 1 "
         "group\n",
         "strategy:7: the text ends before the group of tensor 'f' is closed"},
        {HEAD
         "tensor a 1000 group\ntensor b 37 group\ngroup 1037 topk:ratio=0.1 comp@cpu > flat.allreduce > decomp@cpu\n",
         "strategy:4: tensor 'a+1': codec 'topk:ratio=0.1' has no payloads that can be summed"},
        {HEAD "tensor a 1000 group\ntensor b 37 group\ngroup 1037 none " TREE_RAW "\n",
         "strategy:4: tensor 'a+1': option"},
        {HEAD UNITS "order 6:0\n", "'6:0' names no collective or other op"},
        {HEAD UNITS "order 1:3\n", "'1:3' names no collective"},
        {HEAD UNITS "order 0:p\n", "'0:p' names no"},
        {HEAD UNITS "order 2:x\n", "'2:x' names no"},
        {HEAD UNITS "order 1:1d\n", "'1:1d' names no"},
        {HEAD UNITS "order bb\n", "'bb' names no"},
        {HEAD UNITS "order -1:0\n", "'-1:0' names no"},
        {HEAD UNITS "order 0:0 1:1 3:0 3:1 4:0 5:0\n", "order: 2:1 is missing: unit 2 is 'b+1'"},
        {HEAD UNITS "order b b b b b b\n", "order: 0:0 is missing"},
        {HEAD UNITS "order 0:0 1:1 2:1 3:1 3:0 4:0 5:0\n", "3:1 stands where 3:0 must come first"},
        {HEAD UNITS "order b 0:0 1:1 2:1 3:0 3:1 4:0 5:0\n", "'b' comes 1 times, but there are 6 tensors"},
        {HEAD UNITS "order 1:0 1:0 0:0 1:1 2:1 3:0 3:1 4:0 5:0\n", "order: 1:0 comes twice, or too late"},
        {HEAD UNITS "order 0:0 1:1 1:0u 2:1 3:0 3:1 4:0 5:0\n", "order: 1:0u comes twice, or too late"},
        {HEAD UNITS "order 0:0 1:1 2:1 2:p 3:0 3:1 4:0 5:0\n", "order: 2:p comes twice, or too late"},
        {HEAD UNITS "order 0:0 1:1 2:1 2:u 2:2 3:0 3:1 4:0 5:0\n", "order: 2:2 comes twice, or too late"},
    };
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    char *before = strdup(esp_strategy_text(ctx));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        esp_status s = esp_strategy_set(ctx, cases[i][0]);
        if (s >= 0) fprintf(stderr, "case %d was taken: %s\n", (int)i, cases[i][0]);
        CHECK(s < 0 && error_has(ctx, cases[i][1]));
        CHECK(!strcmp(before, esp_strategy_text(ctx)));
    }
    /* A text that is truncated anywhere gives an error or a valid strategy. */
    char whole[] = HEAD UNITS EVERYTHING;
    for (size_t n = sizeof whole - 1; n > sizeof HEAD; n -= 3) {
        whole[n] = 0;
        CHECK(esp_strategy_set(ctx, whole) <= 0);
    }
    free(before);
}
TEST(test_mistakes) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    run_ranks(1, 1, "loop", 0, body_mistakes, &k);
}

/* ---- tensors with a data type, codec or flag of their own ---- */
static void add(esp_ctx *ctx, const char *name, uint64_t count, esp_dtype dtype, uint32_t flags, const char *codec) {
    esp_tensor_desc d = {.name = name, .count = count, .dtype = dtype, .flags = flags, .codec = codec};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
}
#define P(...) HEAD "tensor f 8" U __VA_ARGS__
static void body_wants(esp_ctx *ctx, void *user) {
    static const char tail[] = "tensor h 8 none flat.allreduce\ntensor s 8 none flat.allreduce\ntensor c 8 none "
                               "flat.allreduce\ntensor r 8 none flat.allreduce\n";
    char t[2048];
    add(ctx, "f", 8, ESP_F32, 0, NULL), add(ctx, "h", 8, ESP_F16, 0, NULL), add(ctx, "s", 8, ESP_F32, ESP_SUM, NULL);
    add(ctx, "c", 8, ESP_F32, 0, "topk:ratio=0.5"), add(ctx, "r", 8, ESP_F32, ESP_RAW, NULL);
    CHECK(esp_start(ctx) == ESP_OK);
    snprintf(t, sizeof t, HEAD "tensor f 8 group\ntensor h 8 group\ngroup 16 none flat.allreduce\n%s",
             strchr(tail, '\n') + 1);
    CHECK(esp_strategy_set(ctx, t) == ESP_E_ARG && error_has(ctx, "strategy:4: tensor 'f' is f32 but 'h' is f16"));
    snprintf(t, sizeof t,
             P("tensor h 8 none flat.allreduce\ntensor s 8 group\ntensor c 8 group\ngroup 16" U "tensor r 8" U));
    CHECK(esp_strategy_set(ctx, t) == ESP_E_ARG &&
          error_has(ctx, "strategy:6: of tensors 's' and 'c' only one wants the sum"));
    snprintf(t, sizeof t, P("tensor h 8" U "tensor s 8" U "tensor c 8 group\ntensor r 8 group\ngroup 16" U));
    CHECK(esp_strategy_set(ctx, t) == ESP_E_ARG &&
          error_has(ctx, "strategy:7: tensor 'c' has a codec of its own ('topk:ratio=0.5')"));
    /* Tensor c keeps its own codec, and r is never compressed, even if they are split into chunks. */
    snprintf(t, sizeof t,
             P("tensor h 8" U "tensor s 8" U "tensor c 8 split 2\nchunk 4 efsignsgd " FLAT_COMP
               "\nchunk 4 none " FLAT_COMP "\n"
               "tensor r 8 split 2\nchunk 7 efsignsgd " FLAT_COMP "\nchunk 1 none flat.allreduce\n"));
    CHECK(esp_strategy_set(ctx, t) == ESP_OK);
    CHECK(!strcmp(ctx->active.strategy.units[3].codec->spec, "topk:ratio=0.5") &&
          !strcmp(ctx->active.strategy.units[4].codec->spec, "topk:ratio=0.5"));
    CHECK(!strcmp(ctx->active.strategy.units[5].codec->spec, "none") &&
          !esp__option_compresses(&ctx->active.strategy.units[5].option));
}
static void body_raw_group(esp_ctx *ctx, void *user) {
    add(ctx, "p", 8, ESP_F32, 0, NULL), add(ctx, "r", 8, ESP_F32, ESP_RAW, NULL);
    CHECK(esp_start(ctx) == ESP_OK);
    CHECK(esp_strategy_set(ctx, HEAD "tensor p 8 group\ntensor r 8 group\ngroup 16 topk:ratio=0.5 " FLAT_COMP "\n") ==
              ESP_E_ARG &&
          error_has(ctx, "strategy:4: tensor 'r' must not be compressed (ESP_RAW), but the group 'p+1' compresses"));
    CHECK(esp_strategy_set(ctx, HEAD "tensor p 8 group\ntensor r 8 group\ngroup 16" U) == ESP_OK);
}

/* If a codec accepts only matrices, a strategy may not use it for a group, or for a chunk that has incomplete rows. */
static _Atomic(const esp_codec *) matrix_real; /* all ranks write the same value */
static int matrix_is(const esp_tensor *t) {
    return t->count ? t->rows && t->cols == 5 && t->rows * 5 == t->count : !t->rows && !t->cols;
}
static esp_status matrix_compress(void *self, const esp_codec_args *a) {
    CHECK(matrix_is(a->tensor[0]) && a->offset[0] % 5 == 0);
    return atomic_load(&matrix_real)->compress(self, a);
}
static esp_status matrix_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    return matrix_is(like) ? atomic_load(&matrix_real)->bound(self, like, round, n_reduced, out)
                           : (esp_status)ESP_E_UNSUPPORTED;
}
static void matrix_step(esp_ctx *ctx) {
    float m[20] = {1}, n[20] = {2};
    esp_stream cpu = ESP_ZERO;
    CHECK(!esp_push(ctx, 0, m, cpu) && !esp_push(ctx, 1, n, cpu) && !esp_wait_all(ctx) && m[0] == 1 && n[0] == 2);
}
static void body_matrix(esp_ctx *ctx, void *user) {
    esp_tensor_desc d = {.rows = 4, .cols = 5, .count = 20, .name = "m"};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    d.name = "n";
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    esp__codec *c;
    CHECK(esp__codec_get(ctx, "topk:ratio=0.5", &c) == ESP_OK);
    esp_codec table = *c->table;
    const esp_codec *real = c->table;
    atomic_store(&matrix_real, real);
    table.caps |= ESP_CODEC_NEEDS_MATRIX;
    c->traits.caps |= ESP_CODEC_NEEDS_MATRIX;
    table.compress = matrix_compress;
    table.bound = matrix_bound;
    c->table = &table;
    CHECK(esp_strategy_set(ctx, HEAD "tensor m 20 topk:ratio=0.5 " FLAT_COMP
                                     "\ntensor n 20 split 2\nchunk 12 topk:ratio=0.5 " FLAT_COMP
                                     "\nchunk 8" U) == ESP_E_ARG &&
          error_has(ctx, "strategy:4: tensor 'n[1/2]'") &&
          error_has(ctx, "which a chunk has only if it consists of whole rows"));
    CHECK(esp_strategy_set(ctx, HEAD "tensor m 20 topk:ratio=0.5 " FLAT_COMP
                                     "\ntensor n 20 split 2\nchunk 15 topk:ratio=0.5 " FLAT_COMP
                                     "\nchunk 5 topk:ratio=0.5 " FLAT_COMP "\n") == ESP_OK);
    matrix_step(ctx);
    CHECK(esp_strategy_set(ctx, HEAD "tensor m 20 group\ntensor n 20 group\ngroup 40 topk:ratio=0.5 " FLAT_COMP "\n") ==
              ESP_E_ARG &&
          error_has(ctx, "which a group has not"));
    CHECK(esp_strategy_set(ctx, HEAD "tensor m 20 topk:ratio=0.5 " FLAT_COMP "\ntensor n 20" U) == ESP_OK);
    matrix_step(ctx);
    static const char *const parts[] = {
        TREE_COMP, TREE_REPLICAS, TREE_THREE,
        "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu"};
    for (int i = 0; i < 4 && esp_machines(ctx) > 1; i++) {
        text t;
        snprintf(t.data, sizeof t.data, HEAD "tensor m 20" U "tensor n 20 topk:ratio=0.5 %s\n", parts[i]);
        CHECK(esp_strategy_set(ctx, t.data) == ESP_OK);
        matrix_step(ctx);
    }
    c->traits.default_option = NULL;
    ctx->model.codec_spec = esp__strdup(ctx, "topk:ratio=0.5");
    CHECK(esp_strategy_set(ctx, "layerwise") == ESP_OK);
    matrix_step(ctx);
    table.default_option = NULL;
    c->table = real;
    esp_codec_handle *h;
    for (uint32_t i = 0; i < ctx->registry.codecs.n; i++)
        if (ctx->registry.codecs.at[i].codec == real) ctx->registry.codecs.at[i].codec = &table;
    CHECK(esp_codec_open(ctx, "topk", 20, NULL, &h) == ESP_E_UNSUPPORTED && error_has(ctx, "esp_codec_open_matrix"));
    CHECK(esp_codec_open_matrix(ctx, "topk", 4, 5, NULL, &h) == ESP_OK);
    esp_codec_close(h);
}
TEST(test_wants) {
    run_ranks(2, 2, "loop", 0, body_wants, NULL);
    run_ranks(2, 2, "loop", 0, body_raw_group, NULL);
    run_ranks(1, 1, "loop", 0, body_matrix, NULL);
    run_ranks(4, 2, "loop", 0, body_matrix, NULL);
}
