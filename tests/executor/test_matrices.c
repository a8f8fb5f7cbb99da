/* test_matrices.c checks that tensors with rows and columns are split only between rows, and codec powersgd on a whole
 * model: equal bits, no lost gradients, discarded steps, saved states, changes of strategy. */
/* runs: tsan */
#include "tests/lib/test.h"

#define FLAT "comp@cpu > flat.allreduce > decomp@cpu"
#define TREE "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather"
#define ROOT "intra.reduce > comp@cpu > inter.allreduce > decomp@cpu > intra.broadcast"
#define FLAT_CUT "flat.reduce_scatter > comp@cpu > flat.allgather > decomp@cpu"

/* Vectors and matrices, some with few columns, fewer rows than ranks, or rows that do not divide by the ranks. */
typedef struct shape {
    const char *name;
    uint64_t rows, cols, count;
} shape;
static const shape model[] = {{"w1", 37, 53, 1961}, {"b1", 0, 0, 53},   {"w2", 3, 200, 600},
                              {"thin", 90, 2, 180}, {"row", 1, 64, 64}, {"w3", 64, 40, 2560}};
enum { TENSORS = 6, TOTAL = 1961 + 53 + 600 + 180 + 64 + 2560 };

typedef struct task {
    const char *codec, *option, *path;
    int steps, exact_rank;
    esp_dtype dtype;
} task;

static int run_failures(int32_t size, int32_t per_machine, uint32_t flags, void (*body)(esp_ctx *, void *), task *k) {
    RUN_RANKS(.size = size, .per_machine = per_machine, .body = body, .user = k, .config.flags = flags,
              .config.codec = k->codec, .config.timeout_ms = 30000);
    return atomic_load(&failures);
}

static void add_model(esp_ctx *ctx, const task *k) {
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = model[t].name,
                             .count = model[t].count,
                             .rows = model[t].rows,
                             .cols = model[t].cols,
                             .option = k->option};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
    CHECK(esp_start(ctx) == ESP_OK);
}

/* Returns element i of the gradient of tensor t: a matrix of rank 1 if k->exact_rank is set, otherwise of full rank. */
static float gradient(const task *k, int32_t rank, int t, int step, uint64_t i) {
    const uint64_t cols = model[t].cols ? model[t].cols : 1, r = i / cols, c = i % cols;
    const float a = sinf((float)(r * 3 + (uint64_t)t) * 0.7f + (float)step), b = cosf((float)c * 0.3f);
    const float full = (float)((i * 7 + (uint64_t)step * 5 + (uint64_t)rank * 11) % 13) * 0.1f - 0.6f;
    return (1.0f + 0.5f * (float)rank) * a * b + (k->exact_rank ? 0.0f : full);
}

static void fill(const esp_ctx *ctx, const task *k, float *g, int step) {
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < model[t].count; i++) *g++ = gradient(k, ctx->job.rank, t, step, i);
}
static void step_run(esp_ctx *ctx, float *g) {
    esp_stream here = ESP_ZERO;
    for (uint32_t t = 0; t < TENSORS; t++, g += model[t - 1].count) CHECK(esp_push(ctx, t, g, here) == ESP_OK);
    CHECK(esp_wait_all(ctx) == ESP_OK);
}

/* Checks that no gradient is lost: over all ranks and steps, the sum of gradients must equal the sum of results and
 * of what is left in residuals. `out` has the sum of results. */
static void check_conserved(esp_ctx *ctx, const task *k, const double *out, int steps) {
    float *held = calloc(TOTAL, 4);
    uint64_t first[TENSORS], at = 0;
    for (int t = 0; t < TENSORS; at += model[t++].count) first[t] = at;
    for (uint32_t i = 0; i < ctx->active.n_feedback; i++) {
        const esp__feedback *f = &ctx->active.feedback[i];
        for (uint64_t x = 0; f->owner_replica && x < f->count; x++)
            held[first[f->place.first] + f->place.begin + f->offset + x] += f->residual[x];
    }
    CHECK(esp_allreduce(ctx, held, TOTAL) == ESP_OK);
    int bad = 0;
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t x = 0; x < model[t].count && !bad; x++) {
            double in = 0, got = out[first[t] + x] * ctx->job.size + (double)held[first[t] + x];
            for (int s = 0; s < steps; s++)
                for (int32_t r = 0; r < ctx->job.size; r++) in += (double)gradient(k, r, t, s, x);
            bad = fabs(got - in) > 1e-3;
            if (bad) fprintf(stderr, "%s[%d]: %g went in, %g came out or is held\n", model[t].name, (int)x, in, got);
        }
    CHECK(!bad);
    free(held);
}

/* ---- whole models ------------------------------------------------------------------------------------------------ */
static void model_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    float *g = malloc(TOTAL * 4);
    double *out = calloc(TOTAL, sizeof *out), off = 0, whole = 0;
    add_model(ctx, k);
    for (int step = 0; step < k->steps && !atomic_load(&failures); step++) {
        fill(ctx, k, g, step);
        step_run(ctx, g);
        check_same_bits(ctx, g, TOTAL * 4);
        const float *at = g;
        for (int t = 0; t < TENSORS; t++)
            for (uint64_t i = 0; i < model[t].count; i++, at++) {
                double mean = 0;
                for (int32_t r = 0; r < ctx->job.size; r++) mean += (double)gradient(k, r, t, step, i);
                mean /= ctx->job.size;
                whole += mean * mean;
                off += (mean - (double)*at) * (mean - (double)*at);
                if (!model[t].rows || model[t].cols <= 2) CHECK(fabs(mean - (double)*at) < 1e-5);
                out[at - g] += (double)*at;
            }
    }
    if (k->exact_rank) CHECK(off < 1e-9 * whole);
    CHECK(k->exact_rank || off < whole);
    check_conserved(ctx, k, out, k->steps);
    free(g);
    free(out);
}

TEST(test_model) {
    static const int32_t shapes[][2] = {{2, 2}, {3, 3}, {4, 4}, {4, 2}, {6, 3}, {1, 1}};
    static const char *const codecs[] = {"powersgd:rank=2", "powersgd:rank=4,start=cold"};
    for (int s = 0; s < 6; s++)
        for (int c = 0; c < 2; c++)
            for (int exact = 0; exact < 2; exact++) {
                task k = {.codec = codecs[c], .steps = 4, .exact_rank = exact};
                assert_int_equal(run_failures(shapes[s][0], shapes[s][1], 0, model_body, &k), 0);
            }
    static const char *const options[] = {FLAT, ROOT, TREE};
    for (int o = 0; o < 3; o++) {
        task k = {.codec = "powersgd:rank=3", .option = options[o], .steps = 3};
        assert_int_equal(run_failures(4, 2, 0, model_body, &k), 0);
    }
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */
static void parts_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    add_model(ctx, k);
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++) {
        const esp__op *op = &ctx->active.program.ops[i];
        const esp__unit *u = &ctx->active.strategy.units[op->unit];
        uint64_t rows, cols;
        for (uint32_t x = 0; esp__op_is_codec(op) && x < op->codec.n_ranges && u->rows; x++) {
            const esp__range *r = &ctx->active.program.ranges[op->codec.first_range + x];
            esp__unit_shape(u, r->length, &rows, &cols);
            CHECK(r->begin % u->cols == 0 && rows * u->cols == r->length && (cols == u->cols || !rows));
            if (op->kind == ESP__OP_COMPRESS) {
                const uint64_t half = (u->rows + 1) / 2;
                CHECK(rows == (ctx->job.topo.local ? u->rows - half : half));
            }
        }
        CHECK(op->kind != ESP__OP_COLLECTIVE || op->collective.scope != ESP__INTRA ||
              op->collective.coll.width == (u->cols > 1 ? u->cols : 0));
    }
}
TEST(test_parts) {
    task k = {.codec = "powersgd", .option = TREE};
    assert_int_equal(run_failures(4, 2, 0, parts_body, &k), 0);
}

/* powersgd compresses chunks of whole rows. Groups and other chunks are sent uncompressed. */
static void chunks_body(esp_ctx *ctx, void *user) {
    task *k = user;
    add_model(ctx, k);
    CHECK(esp_strategy_set(
              ctx, "espresso-strategy 1\ntensor w1 1961 split 3\nchunk 530 powersgd " FLAT "\nchunk 431 powersgd " FLAT
                   "\nchunk 1000 powersgd " FLAT "\ntensor b1 53 group\ntensor w2 600 group\ngroup 653 powersgd " FLAT
                   "\ntensor thin 180 powersgd " FLAT "\ntensor row 64 powersgd " FLAT
                   "\ntensor w3 2560 split 2\nchunk 1280 powersgd " FLAT "\nchunk 1280 powersgd " FLAT "\n") == ESP_OK);
    const esp__unit *u = ctx->active.strategy.units;
    CHECK(u[0].rows == 10 && u[0].cols == 53 && u[0].first_round == 0);
    CHECK(u[1].rows == 0 && u[1].first_round == 1);
    CHECK(u[2].rows == 0 && u[3].rows == 0 && u[3].place.n == 2);
    CHECK(u[4].rows == 90 && u[4].first_round == 0 && u[6].rows == 32 && u[7].rows == 32);
    float *g = malloc(TOTAL * 4);
    double *out = calloc(TOTAL, sizeof *out);
    for (int step = 0; step < 3; step++) {
        fill(ctx, k, g, step);
        step_run(ctx, g);
        check_same_bits(ctx, g, TOTAL * 4);
        for (int i = 0; i < TOTAL; i++) out[i] += (double)g[i];
    }
    check_conserved(ctx, k, out, 3);
    free(g), free(out);
}
TEST(test_chunks) {
    task k = {.codec = "powersgd"};
    assert_int_equal(run_failures(2, 2, 0, chunks_body, &k), 0);
    assert_int_equal(run_failures(4, 2, 0, chunks_body, &k), 0);
}

static void refused_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    add_model(ctx, k);
    char text[2048];
    size_t n = (size_t)snprintf(text, sizeof text, "espresso-strategy 1\ntensor w1 1961 powersgd " FLAT_CUT "\n");
    for (int t = 1; t < TENSORS; t++)
        n += (size_t)snprintf(text + n, sizeof text - n, "tensor %s %d powersgd " FLAT "\n", model[t].name,
                              (int)model[t].count);
    CHECK(esp_strategy_set(ctx, text) == ESP_E_ARG &&
          strstr(esp_last_error(ctx), "every rank must get the sum of all payloads of codec 'powersgd'"));
}
TEST(test_refused) {
    task k = {.codec = "powersgd"};
    assert_int_equal(run_failures(2, 2, 0, refused_body, &k), 0);
}

/* ---- state between steps ----------------------------------------------------------------------------------------- */
static void discard_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    float *g = malloc(TOTAL * 4), *want = malloc(TOTAL * 4);
    add_model(ctx, k);
    /* Step 0 is not repeated, because the codec would draw other random numbers. */
    fill(ctx, k, g, 0);
    step_run(ctx, g);
    for (int step = 1; step < 4; step++)
        for (int again = 0; again < 2; again++) {
            fill(ctx, k, g, step);
            step_run(ctx, g);
            if (again)
                CHECK(!memcmp(g, want, TOTAL * 4));
            else
                CHECK(memcpy(want, g, TOTAL * 4) && esp_discard_step(ctx) == ESP_OK);
        }
    free(g), free(want);
}
static void save_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    float *g = malloc(TOTAL * 4), *want = malloc(TOTAL * 4);
    add_model(ctx, k);
    for (int step = 0; step < 6; step++) {
        if (step == 2) CHECK(esp_state_save(ctx, k->path) == ESP_OK);
        if (step == 4) CHECK(memcpy(want, g, TOTAL * 4) && esp_state_load(ctx, k->path) == ESP_OK);
        fill(ctx, k, g, step < 4 ? step : step - 2);
        step_run(ctx, g);
    }
    CHECK(!memcmp(g, want, TOTAL * 4));
    free(g), free(want);
}
/* Changing the strategy must lose no residual. Setting the same strategy again must also keep the codec's state. */
static void change_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    float *g = malloc(TOTAL * 4);
    double *out = calloc(TOTAL, sizeof *out);
    add_model(ctx, k);
    char text[3][2048];
    static const char *const lines[] = {"powersgd:rank=2 " FLAT, "powersgd:rank=2 " TREE, "none flat.allreduce"};
    for (int x = 0; x < 3; x++) {
        size_t n = (size_t)snprintf(text[x], sizeof text[x], "espresso-strategy 1\n");
        for (int t = 0; t < TENSORS; t++)
            n += (size_t)snprintf(text[x] + n, sizeof text[x] - n, "tensor %s %d %s\n", model[t].name,
                                  (int)model[t].count, lines[x]);
    }
    for (int step = 0; step < 7; step++) {
        CHECK(esp_strategy_set(ctx, text[step == 6 ? 2 : step / 2 % 2]) == ESP_OK);
        const esp__feedback *f = &ctx->active.feedback[0];
        if (step % 2 && step / 2 % 2 == 0) {
            float any = 0;
            for (uint64_t i = 0; i < f->state_bytes / 4; i++) any += fabsf(((const float *)(const void *)f->state)[i]);
            CHECK(any > 0);
        }
        fill(ctx, k, g, step);
        step_run(ctx, g);
        check_same_bits(ctx, g, TOTAL * 4);
        for (int i = 0; i < TOTAL; i++) out[i] += (double)g[i];
    }
    check_conserved(ctx, k, out, 7);
    free(g), free(out);
}
TEST(test_lasts) {
    char path[64], name[96];
    snprintf(path, sizeof path, "/tmp/espresso_matrices_%d", (int)getpid());
    task k = {.codec = "powersgd:rank=2", .path = path};
    assert_int_equal(run_failures(4, 2, ESP_DISCARDABLE, discard_body, &k), 0);
    assert_int_equal(run_failures(4, 2, 0, save_body, &k), 0);
    for (int r = 0; r < 4; r++) {
        snprintf(name, sizeof name, "%s.r%dof4", path, r);
        assert_int_equal(unlink(name), 0);
    }
    assert_int_equal(run_failures(4, 2, 0, change_body, &k), 0);
}

/* ---- the codec by itself, by esp_codec_open ---------------------------------------------------------------------- */
static void alone_body(esp_ctx *ctx, void *user) {
    esp_codec_handle *h;
    static float in[30 * 40], out[30 * 40];
    static unsigned char payload[8192], damaged[8192];
    uint64_t used;
    CHECK(esp_codec_open_matrix(ctx, "powersgd:rank=4", 30, 40, NULL, &h) == ESP_OK);
    CHECK(esp_compress_bound(h) == 64 + 30 * 4 * 4 + 64 + 40 * 4 * 4);
    for (int step = 0; step < 3; step++) {
        const float *e = esp_codec_residual(h);
        for (int i = 0; i < 1200; i++) in[i] = (float)((i * 37 + step) % 101) - 50, out[i] = in[i] + e[i];
        float phi[1200];
        memcpy(phi, out, sizeof phi);
        CHECK(esp_compress(h, in, 1200, payload, sizeof payload, &used) == ESP_OK && used == esp_compress_bound(h));
        CHECK(esp_decompress(h, payload, used, out, 1200, ESP_OUT_SET) == ESP_OK);
        for (int i = 0; i < 1200; i++) CHECK(fabsf(out[i] + e[i] - phi[i]) < 1e-4f);
    }
    CHECK(esp_compress(h, in, 1200, payload, 600, &used) == ESP_E_TOO_SMALL);
    CHECK(esp_compress(h, in, 1200, payload, 32, &used) == ESP_E_TOO_SMALL);
    CHECK(esp_compress(h, in, 1200, payload, sizeof payload, &used) == ESP_OK);
    for (uint64_t n = 0; n < used; n += 16)
        CHECK(esp_decompress(h, payload, n, out, 1200, ESP_OUT_SET) == ESP_E_CORRUPT);
    for (uint64_t n = 0; n < 64; n++) {
        memcpy(damaged, payload, sizeof damaged);
        damaged[n] ^= 0x40;
        esp_status s = esp_decompress(h, damaged, used, out, 1200, ESP_OUT_SET);
        CHECK(s == ESP_OK || s == ESP_E_CORRUPT);
    }
    esp_codec_close(h);
    CHECK(esp_codec_open(ctx, "powersgd:rank=4", 100, NULL, &h) == ESP_OK); /* a vector is sent uncompressed */
    CHECK(esp_compress_bound(h) == 64 + 416);
    CHECK(esp_compress(h, in, 100, payload, sizeof payload, &used) == ESP_OK && used == 64 + 400);
    CHECK(esp_decompress(h, payload, used, out, 100, ESP_OUT_SET) == ESP_OK && !memcmp(in, out, 400));
    esp_codec_close(h);
    CHECK(esp_codec_open_matrix(ctx, "powersgd", 0, 40, NULL, &h) == ESP_E_ARG);
    CHECK(esp_codec_open_matrix(ctx, "topk:ratio=0.5", 30, 40, NULL, &h) == ESP_OK);
    CHECK(esp_compress(h, in, 1200, payload, sizeof payload, &used) == ESP_OK);
    esp_codec_close(h);
}
TEST(test_alone) {
    task k = {0};
    assert_int_equal(run_failures(1, 1, 0, alone_body, &k), 0);
}
