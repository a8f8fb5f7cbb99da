/* test_units_feedback.c checks that no residual is lost if a new strategy, or a state that is loaded, splits and
 * merges tensors differently. */
/* runs: tsan-long */
#include "tests/lib/test.h"
#include "totals.h"

static void set(esp_ctx *ctx, int kind, const char *codec, const char *option) {
    text s = strategy_of(kind, codec, option);
    CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
}

/* ---- nothing is lost --------------------------------------------------------------------------------------------- */
static void body_conserved(esp_ctx *ctx, void *user) {
    static const int kinds[] = {WHOLE, CHUNKS, GROUPS, WHOLE, MIXED, ALL_IN_ONE, CHUNKS, MIXED, WHOLE};
    const task *k = user;
    totals *b = calloc(1, sizeof *b);
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        set(ctx, kinds[i], k->codec, ctx->job.topo.n_machines == 1 ? FLAT_COMP : i % 2 ? TREE_REPLICAS : k->option);
        check_totals(ctx, b);
        train(ctx, b, 3);
        check_totals(ctx, b);
    }
    set(ctx, GROUPS, "none", FLAT_RAW);
    train(ctx, b, 1); /* without compression, all residuals are sent */
    for (int i = 0; i < TOTAL; i++)
        if (fabs(b->in[i] - b->out[i]) >= 2e-2) {
            CHECK(fabs(b->in[i] - b->out[i]) < 2e-2);
            break;
        }
    free(b);
}
TEST(test_conserved) {
    static const char *const codecs[] = {"topk:ratio=0.05",
                                         "efsignsgd",
                                         "twobit",
                                         "dgc:ratio=0.05,feedback=residual",
                                         "int8",
                                         "int8:shared=1",
                                         "int4",
                                         "chunktopk:chunk=64,k=8,feedback=residual"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        task k = {codecs[c], TREE_THREE, ESP_F32, 0, 0, NULL};
        run_ranks(6, 2, "loop", 0, body_conserved, &k);
        k.option = FLAT_COMP;
        run_ranks(3, 3, "shm", 0, body_conserved, &k);
    }
}

/* Residuals of a rank's own gradients move between chunks, groups and tensors without a change of a bit. */
static void body_moved(esp_ctx *ctx, void *user) {
    static const int kinds[] = {CHUNKS, GROUPS, MIXED, ALL_IN_ONE, WHOLE, ALL_IN_ONE, CHUNKS, WHOLE};
    totals *b = calloc(1, sizeof *b);
    float *before = malloc(TOTAL * 4), *after = malloc(TOTAL * 4);
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    set(ctx, WHOLE, "topk:ratio=0.05", FLAT_COMP);
    train(ctx, b, 4);
    add_residuals(ctx, before, 1);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        set(ctx, kinds[i], "topk:ratio=0.05", i % 2 ? TREE_THREE : FLAT_COMP);
        add_residuals(ctx, after, 1);
        CHECK(!memcmp(before, after, TOTAL * 4));
        for (uint32_t t = 0; t < TENSORS; t++)
            for (uint64_t e = 0; ctx->model.tensors[t].pending_residual && e < counts[t]; e++)
                CHECK(ctx->model.tensors[t].pending_residual[e] == 0);
    }
    int nonzero = 0;
    for (int i = 0; i < TOTAL; i++) nonzero += before[i] != 0;
    CHECK(nonzero > TOTAL / 2);
    free(before), free(after), free(b);
}
TEST(test_moved_bit_by_bit) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    run_ranks(4, 2, "loop", 0, body_moved, &k);
}

/* If a strategy no longer compresses a tensor, its residual must be added to the next gradient. */
static const char part_only[] =
    "espresso-strategy 1\ntensor a 1000 split 2\nchunk 600 none " FLAT_RAW "\nchunk 400 topk:ratio=0.05 " FLAT_COMP
    "\ntensor b 37 group\ntensor c 5 group\ngroup 42 none " FLAT_RAW "\ntensor d 2048 topk:ratio=0.05 " FLAT_COMP
    "\ntensor e 3 none " FLAT_RAW "\ntensor f 1 none " FLAT_RAW "\n";
static void body_part(esp_ctx *ctx, void *user) {
    totals *b = calloc(1, sizeof *b);
    float *before = malloc(TOTAL * 4);
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    set(ctx, GROUPS, "topk:ratio=0.05", FLAT_COMP);
    train(ctx, b, 3);
    add_residuals(ctx, before, 1);
    CHECK(esp_strategy_set(ctx, part_only) == ESP_OK);
    const float *carry = ctx->model.tensors[0].pending_residual;
    CHECK(carry && !memcmp(carry, before, 600 * 4) && carry[600] == 0 && carry[999] == 0);
    CHECK(ctx->model.tensors[1].pending_residual && ctx->model.tensors[2].pending_residual &&
          !ctx->model.tensors[3].pending_residual && ctx->model.tensors[4].pending_residual);
    CHECK(ctx->active.n_feedback == 2 && !memcmp(ctx->active.feedback[0].residual, before + 600, 400 * 4));
    check_totals(ctx, b);
    train(ctx, b, 1);
    check_totals(ctx, b);
    free(before), free(b);
}
TEST(test_part_without_compression) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    run_ranks(3, 3, "loop", 0, body_part, &k);
}

/* If a chunk stays the same in a new strategy, it must keep the codec's state. */
static void body_own_state(esp_ctx *ctx, void *user) {
    static const char a[] = "espresso-strategy 1\ntensor a 1000 split 2\nchunk 600 dgc:ratio=0.05 " FLAT_COMP
                            "\nchunk 400 dgc:ratio=0.05 " FLAT_COMP "\ntensor b 37 group\ntensor c 5 group\ngroup 42 "
                            "dgc:ratio=0.05 " FLAT_COMP "\ntensor d 2048 none " FLAT_RAW "\ntensor e 3 none " FLAT_RAW
                            "\ntensor f 1 none " FLAT_RAW "\n";
    totals *b = calloc(1, sizeof *b);
    char equal[] = "espresso-strategy 1\ntensor a 1000 split 2\nchunk 500 dgc:ratio=0.05 " FLAT_COMP
                   "\nchunk 500 dgc:ratio=0.05 " FLAT_COMP "\ntensor b 37 none " FLAT_RAW "\ntensor c 5 none " FLAT_RAW
                   "\ntensor d 2048 none " FLAT_RAW "\ntensor e 3 none " FLAT_RAW "\ntensor f 1 none " FLAT_RAW "\n";
    char *other = strdup(a), *state;
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    CHECK(esp_strategy_set(ctx, a) == ESP_OK);
    train(ctx, b, 2);
    const esp__feedback *f = &ctx->active.feedback[1];
    uint64_t bytes = f->state_bytes, nonzero = 0;
    state = malloc(bytes);
    memcpy(state, f->state, bytes);
    for (uint64_t i = 0; i < bytes; i++) nonzero += state[i] != 0;
    CHECK(bytes >= 1600 && nonzero > 100);
    memcpy(strstr(other, "chunk 600 dgc:ratio=0.05 "), "chunk 600 topk:ratio=0.1 ", 25);
    CHECK(esp_strategy_set(ctx, other) == ESP_OK);
    CHECK(ctx->active.feedback[1].place.begin == 600 && !memcmp(state, ctx->active.feedback[1].state, bytes));
    CHECK(esp_strategy_set(ctx, equal) == ESP_OK);
    train(ctx, b, 2);
    bytes = ctx->active.feedback[0].state_bytes;
    free(state);
    state = malloc(2 * bytes);
    memcpy(state, ctx->active.feedback[0].state, bytes), memcpy(state + bytes, ctx->active.feedback[1].state, bytes);
    CHECK(memcmp(state, state + bytes, bytes));
    memcpy(strstr(equal, "tensor f 1 none"), "tensor f 1 topk", 15);
    CHECK(esp_strategy_set(ctx, equal) == ESP_OK);
    CHECK(!memcmp(state, ctx->active.feedback[0].state, bytes) &&
          !memcmp(state + bytes, ctx->active.feedback[1].state, bytes));
    set(ctx, WHOLE, "dgc:ratio=0.05", FLAT_COMP); /* the state is dropped, since it was that of a chunk */
    nonzero = 0;
    for (uint64_t i = 0; i < ctx->active.feedback[0].state_bytes; i++) nonzero += ctx->active.feedback[0].state[i] != 0;
    CHECK(nonzero == 0);
    free(state), free(other), free(b);
}
TEST(test_own_state) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    run_ranks(2, 2, "loop", 0, body_own_state, &k);
}

/* ---- discarded steps ------------------------------------------------------------------------------------------ */
static void body_discard(esp_ctx *ctx, void *user) {
    const task *k = user;
    totals *b = calloc(1, sizeof *b), *thrown = malloc(sizeof *b);
    float *before = malloc(TOTAL * 4), *after = malloc(TOTAL * 4);
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    set(ctx, GROUPS, "topk:ratio=0.05", k->option);
    train(ctx, b, 2);
    CHECK(esp_strategy_set(ctx, part_only) == ESP_OK);
    add_residuals(ctx, before, 0);
    CHECK(esp_discard_step(ctx) == ESP_OK);
    add_residuals(ctx, after, 0);
    CHECK(!memcmp(before, after, TOTAL * 4));
    for (int round = 0; round < 2; round++) {
        *thrown = *b;
        train(ctx, thrown, 1);
        CHECK(ctx->model.tensors[0].pending_residual == NULL);
        CHECK(esp_discard_step(ctx) == ESP_OK);
        add_residuals(ctx, after, 0);
        CHECK(!memcmp(before, after, TOTAL * 4));
        check_totals(ctx, b);
    }
    set(ctx, k->kind, "topk:ratio=0.05", k->option);
    for (int round = 0; round < 2; round++) {
        train(ctx, b, 1);
        check_totals(ctx, b);
        *thrown = *b;
        train(ctx, thrown, 1);
        CHECK(esp_discard_step(ctx) == ESP_OK);
        check_totals(ctx, b);
    }
    free(before), free(after), free(thrown), free(b);
}
TEST(test_discard) {
    for (int kind = 0; kind < KINDS; kind++) {
        task k = {NULL, kind % 2 ? FLAT_COMP : TREE_THREE, ESP_F32, kind, 0, NULL};
        run_ranks(4, 2, "loop", ESP_DISCARDABLE, body_discard, &k);
    }
}

/* ---- states ------------------------------------------------------------------------------------------------------ */
static char path[64];
static totals saved_books[8];

static void body_save(esp_ctx *ctx, void *user) {
    const task *k = user;
    totals *b = calloc(1, sizeof *b);
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    set(ctx, WHOLE, "topk:ratio=0.05", k->option);
    train(ctx, b, 2);
    set(ctx, k->kind, "topk:ratio=0.05", k->option);
    train(ctx, b, 2);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
    saved_books[ctx->job.rank] = *b;
    free(b);
}
static void body_load(esp_ctx *ctx, void *user) {
    const task *k = user;
    totals *b = calloc(1, sizeof *b);
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int kind = 0; kind < KINDS; kind++)
        /* The state is loaded with the option with which it was saved, with another one, and without compression. */
        for (int other = 0; other < 3; other++) {
            const char *option = other == 0 ? k->option : other == 1 ? TREE_COMP : TREE_RAW;
            set(ctx, kind, other == 2 ? "none" : "topk:ratio=0.05", option);
            *b = saved_books[ctx->job.rank];
            CHECK(esp_state_load(ctx, path) == ESP_OK && ctx->steps.step == 4);
            check_totals(ctx, b);
            train(ctx, b, 2);
            check_totals(ctx, b);
        }
    free(b);
}
static void body_load_bits(esp_ctx *ctx, void *user) {
    const task *k = user;
    totals *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    set(ctx, k->kind, "dgc:ratio=0.05", k->option);
    train(ctx, a, 2);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
    *b = *a;
    train(ctx, a, 3);
    CHECK(esp_state_load(ctx, path) == ESP_OK);
    train(ctx, b, 3);
    CHECK(!memcmp(a->out, b->out, sizeof a->out));
    set(ctx, k->kind, "efsignsgd", k->option);
    CHECK(esp_state_load(ctx, path) == ESP_E_MISMATCH && error_has(ctx, "another codec for tensor 'a'"));
    free(a), free(b);
}
TEST(test_states) {
    snprintf(path, sizeof path, "/tmp/espresso-test-units-%d", (int)getpid());
    for (int kind = 0; kind < KINDS; kind++) {
        task k = {NULL, kind % 2 ? FLAT_COMP : TREE_THREE, ESP_F32, kind, 0, NULL};
        run_ranks(4, 2, "loop", 0, body_save, &k);
        run_ranks(4, 2, "loop", 0, body_load, &k);
        run_ranks(4, 2, "loop", 0, body_load_bits, &k);
    }
    for (int r = 0; r < 4; r++) {
        char name[96];
        snprintf(name, sizeof name, "%s.r%dof4", path, r);
        unlink(name);
    }
}
