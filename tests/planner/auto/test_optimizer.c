/* test_optimizer.c checks how a program states its optimizer, and whether each codec is expected to raise the training
 * loss with it. */
/* runs: no-tsan: one rank at a time: no thread but the context's own */
#include "tests/lib/test.h"

/* ---- how it is given --------------------------------------------------------------------------------------------- */
TEST(test_environment) {
    static const struct {
        const char *text;
        uint32_t optimizer;
        float momentum;
    } good[] = {{"sgd", ESP_OPTIMIZER_SGD, 0},
                {"momentum", ESP_OPTIMIZER_MOMENTUM, 0.9f},
                {"momentum:0.5", ESP_OPTIMIZER_MOMENTUM, 0.5f},
                {"adam", ESP_OPTIMIZER_ADAM, 0.9f},
                {"adam:0", ESP_OPTIMIZER_ADAM, 0},
                {"adamw", ESP_OPTIMIZER_ADAM, 0.9f},
                {"adamw:0.8", ESP_OPTIMIZER_ADAM, 0.8f},
                {"rmsprop", ESP_OPTIMIZER_ADAM, 0},
                {"rmsprop:0.9", ESP_OPTIMIZER_ADAM, 0.9f},
                {"adagrad", ESP_OPTIMIZER_ADAM, 0},
                {"lion", ESP_OPTIMIZER_UNKNOWN, 0},
                {"unknown", ESP_OPTIMIZER_UNKNOWN, 0}};
    static const char *const bad[] = {"Adam",     "adam:",   "adam:1",   "adam:-0.1", "adam:0.9x",
                                      "adam:nan", "sgd:0.9", "lion:0.9", "ada",       ":"};
    esp_config cfg = ESP_ZERO, out;
    cfg.optimizer = ESP_OPTIMIZER_ADAM; /* the environment overrides it */
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        setenv("ESPRESSO_OPTIMIZER", good[i].text, 1);
        assert_int_equal(esp__env_config(&cfg, &out), ESP_OK);
        assert_int_equal(out.optimizer, good[i].optimizer);
        assert_true(out.momentum == good[i].momentum);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char expected[64];
        setenv("ESPRESSO_OPTIMIZER", bad[i], 1);
        assert_int_equal(esp__env_config(&cfg, &out), ESP_E_ARG);
        snprintf(expected, sizeof expected, "ESPRESSO_OPTIMIZER is \"%s\": it must be", bad[i]);
        assert_non_null(strstr(esp_last_error(NULL), expected));
    }
    unsetenv("ESPRESSO_OPTIMIZER");
}

TEST(test_config) {
    static const struct {
        uint32_t optimizer;
        float momentum, meant; /* `meant` is the expected value, or -1 for an error */
        const char *says;
    } cases[] = {
        {ESP_OPTIMIZER_UNKNOWN, 0, 0, NULL},
        {ESP_OPTIMIZER_SGD, 0, 0, NULL},
        {ESP_OPTIMIZER_SGD, -1, 0, NULL},
        {ESP_OPTIMIZER_MOMENTUM, 0, 0.9f, NULL},
        {ESP_OPTIMIZER_ADAM, 0.3f, 0.3f, NULL},
        {ESP_OPTIMIZER_ADAM, -1, 0, NULL},
        {ESP_OPTIMIZER_ADAM, 1, -1, "esp_config.momentum is 1: it must be a number from 0"},
        {ESP_OPTIMIZER_ADAM, -0.5f, -1, "esp_config.momentum is -0.5"},
        {ESP_OPTIMIZER_SGD, 0.9f, -1, "esp_config.momentum is 0.9, but optimizer sgd has none: set ESP_OPTIMIZER_M"},
        {ESP_OPTIMIZER_UNKNOWN, 0.9f, -1, "but optimizer unknown has none"},
        {4, 0, -1, "esp_config.optimizer is 4: it must be"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        esp_config cfg = ESP_ZERO, out;
        cfg.optimizer = cases[i].optimizer, cfg.momentum = cases[i].momentum;
        assert_int_equal(esp__env_config(&cfg, &out), cases[i].says ? ESP_E_ARG : ESP_OK);
        if (cases[i].says)
            assert_non_null(strstr(esp_last_error(NULL), cases[i].says));
        else
            assert_true(out.momentum == cases[i].meant);
    }
}

/* ---- with which optimizers a codec keeps the loss as low as fp32 does: the table in docs/use/codecs.md ----------- */
enum { NONE, LOW, HIGH, ADAM, ADAM_LOW, N };
TEST(test_table) {
    static const struct {
        uint32_t optimizer;
        double momentum;
    } with[N] = {{ESP_OPTIMIZER_SGD, 0.0},
                 {ESP_OPTIMIZER_MOMENTUM, 0.5},
                 {ESP_OPTIMIZER_MOMENTUM, 0.9},
                 {ESP_OPTIMIZER_ADAM, 0.9},
                 {ESP_OPTIMIZER_ADAM, 0.0}};
    static const struct {
        const char *spec;
        int safe[N];
    } cases[] = {
        {"fp16", {1, 1, 1, 1, 1}},
        {"bf16", {1, 1, 1, 1, 1}},
        {"int8", {1, 1, 1, 1, 1}},
        {"int8:shared=1", {1, 1, 1, 1, 1}},
        {"int4", {1, 1, 1, 1, 1}},
        {"efsignsgd", {1, 1, 0, 0, 0}},
        {"topk:ratio=0.1", {1, 1, 0, 0, 1}},
        {"topk:ratio=0.01", {1, 1, 0, 0, 0}},
        {"fp16:of=(topk:ratio=0.01)", {1, 1, 0, 0, 0}},
        {"topk:ratio=0.001", {0, 0, 0, 0, 0}},
        {"chunktopk", {1, 1, 0, 0, 0}},
        {"twobit:relative=1.2", {1, 1, 0, 0, 0}},
        {"randomk:ratio=0.1", {0, 0, 0, 0, 0}},
        {"powersgd:rank=1", {0, 0, 0, 0, 0}},
        {"topk:ratio=0.01,feedback=none", {0, 0, 0, 0, 0}},
        {"dgc", {0, 0, 0, 0, 0}}, /* dgc has its own momentum of 0.9 */
        {"dgc:momentum=0.5", {0, 0, 0, 0, 0}},
        {"dgc:momentum=0", {1, 1, 0, 0, 0}},
        {"warmup:steps=10,of=(dgc:momentum=0.5)", {0, 0, 0, 0, 0}},
        {"fp8", {1, 1, 1, 1, 1}},
        {"natural", {1, 1, 1, 1, 1}}, /* right on average, and it sends every element */
        {"qsgd:bits=4", {1, 1, 1, 1, 1}},
        {"terngrad", {1, 1, 1, 1, 1}},
        {"qsgd:bits=2", {0, 0, 0, 0, 0}}, /* its error is over the gradient itself */
        {"randomk:ratio=0.1,unbiased=1", {0, 0, 0, 0, 0}},
        {"sketchml", {1, 1, 0, 0, 1}}, /* its error is small, but only for normally distributed gradients */
        {"onebit", {1, 1, 0, 0, 0}},
        {"lossless", {1, 1, 1, 1, 1}},
        {"threelc", {1, 1, 0, 0, 1}},
        {"adaptive:ratio=0.01", {1, 1, 0, 0, 0}},
        {"maxmin:bits=2", {1, 1, 0, 0, 0}},
        {"maxmin:bits=1", {0, 0, 0, 0, 0}},
        {"mxnet1bit", {0, 0, 0, 0, 0}},
        {"twobit", {0, 0, 0, 0, 0}},
        {"warmup:steps=10,of=(mxnet1bit)", {0, 0, 0, 0, 0}},
        {"topk:ratio=0.01,feedback=(residual:beta=0.9)", {0, 0, 0, 0, 0}},
    };
    esp_ctx *ctx = NULL;
    esp_config cfg = {.backend = "loop", .rank = 0, .size = 1};
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        esp__codec *c;
        assert_int_equal(esp__codec_get(ctx, cases[i].spec, &c), ESP_OK);
        for (int k = 0; k < N; k++) {
            const esp__effect *e = esp__safety(c, 1.0, with[k].optimizer, with[k].momentum);
            if ((e->slower <= 1.0) != cases[i].safe[k])
                fail_msg("%s with optimizer %u, momentum %g: %g", cases[i].spec, with[k].optimizer, with[k].momentum,
                         e->slower);
            assert_non_null(e->loss);
        }
        const esp__effect *e = esp__safety(c, 1.0, ESP_OPTIMIZER_UNKNOWN, 0.0); /* no preference */
        assert_true(e->slower == 1.0);
        assert_int_equal(e->loss != NULL, cases[i].safe[HIGH]);
    }
    esp_close(ctx);
}

/* ---- the same table against bench/results/accuracy ----------------------------------------------------------------
 */
enum { TRAINERS = 5, LINE = 512, SAFE_PERCENT = 5, EQUAL_PERCENT = 1, ENOUGH = 4 };
static const struct {
    const char *name;
    uint32_t optimizer;
    double momentum;
} trainers[TRAINERS] = {{"gpt-adamw", ESP_OPTIMIZER_ADAM, 0.9},
                        {"gpt-momentum0.9", ESP_OPTIMIZER_MOMENTUM, 0.9},
                        {"lstm-momentum0.5", ESP_OPTIMIZER_MOMENTUM, 0.5},
                        {"fashion-momentum0.5", ESP_OPTIMIZER_MOMENTUM, 0.5},
                        {"fashion-momentum0.9", ESP_OPTIMIZER_MOMENTUM, 0.9}};

/* Returns the final loss of a row of accuracy-ends.csv, 100 if it equals fp32's. */
static double loss_of(const char *trainer, const char *row) {
    char line[LINE], plain[LINE], quoted[LINE];
    double percent = NAN;
    FILE *f = fopen("bench/results/accuracy/accuracy-ends.csv", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const size_t n = strlen(trainer);
        const char *at = !strncmp(line, trainer, n) && line[n] == ',' ? strchr(line + n + 1, ',') : NULL;
        snprintf(plain, sizeof plain, ",%s,", row);
        snprintf(quoted, sizeof quoted, ",\"%s\",", row);
        const char *found = at && !strncmp(at, plain, strlen(plain))     ? at + strlen(plain)
                            : at && !strncmp(at, quoted, strlen(quoted)) ? at + strlen(quoted)
                                                                         : NULL;
        if (found) percent = strncmp(found, "diverged", 8) ? strtod(found, NULL) : INFINITY;
    }
    fclose(f);
    if (isnan(percent)) fail_msg("accuracy-ends.csv has no row %s of %s", row, trainer);
    return 100 + percent;
}

/* Replaces a last "=M" of a codec by the trainer's momentum. */
static void with_momentum(char out[LINE], const char *codec, double momentum) {
    const char *at = strstr(codec, "=M");
    if (at)
        snprintf(out, LINE, "%.*s=%g", (int)(at - codec), codec, momentum);
    else
        snprintf(out, LINE, "%s", codec);
}

/* An effect's codecs are called safe only if each of them ended at most 5% above fp32 with each trainer of these
 * optimizers, and they are called safe if four or more cases all ended at
 * most 1% above it. */
TEST(test_table_follows_measurements) {
    struct {
        const esp__effect *effect;
        double worst;
        int cases;
    } seen[64] = {{NULL, 0, 0}};
    char line[LINE], spec[LINE];
    int n = 0, compared = 0;
    esp_ctx *ctx = NULL;
    esp_config cfg = {.backend = "loop", .rank = 0, .size = 1};
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    FILE *f = fopen("bench/accuracy/accuracy.rows", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *name = strtok(line, ";\n"), *codec = strtok(NULL, ";\n"), *own = strtok(NULL, ";\n"),
                   *tensors = strtok(NULL, ";\n");
        if (!tensors || strcmp(tensors, "large") || strstr(codec, "=W")) continue;
        for (int t = 0; t < TRAINERS; t++) {
            const bool off = !strcmp(own, "0");
            esp__codec *c;
            with_momentum(spec, codec, trainers[t].momentum);
            assert_int_equal(esp__codec_get(ctx, spec, &c), ESP_OK);
            const esp__effect *e = esp__safety(c, 1.0, trainers[t].optimizer, off ? 0 : trainers[t].momentum);
            const bool plain = off && c->model.momentum == 0.0;
            const double base = loss_of(trainers[t].name, plain ? "fp32, no momentum" : "fp32");
            const double above = 100 * (loss_of(trainers[t].name, name) / base - 1);
            if (e->slower <= 1.0 && !(above <= SAFE_PERCENT))
                fail_msg("%s (%s) is called safe: %s ended %.1f%% above fp32", name, spec, trainers[t].name, above);
            int k = 0;
            while (k < n && seen[k].effect != e) k++;
            if (k == n) n++, seen[k].effect = e, seen[k].worst = -100;
            if (above > seen[k].worst) seen[k].worst = above;
            compared++, seen[k].cases++;
        }
    }
    fclose(f);
    assert_true(compared > 200);
    for (int k = 0; k < n; k++)
        if (seen[k].effect->slower > 1.0 && seen[k].worst <= EQUAL_PERCENT && seen[k].cases >= ENOUGH)
            fail_msg("an effect (%s) is not called safe, but all ended at most %.1f%% above fp32", seen[k].effect->loss,
                     seen[k].worst);
    esp_close(ctx);
}

/* Momentum in both the codec and the optimizer is worse than in one of them. */
TEST(test_twice) {
    esp_ctx *ctx = NULL;
    esp__codec *c;
    esp_config cfg = {.backend = "loop", .rank = 0, .size = 1};
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    assert_int_equal(esp__codec_get(ctx, "dgc", &c), ESP_OK);
    const esp__effect *one = esp__safety(c, 1.0, ESP_OPTIMIZER_SGD, 0.0);
    const esp__effect *both = esp__safety(c, 1.0, ESP_OPTIMIZER_MOMENTUM, 0.5);
    assert_true(both->slower > one->slower);
    assert_non_null(strstr(both->loss, "momentum counts twice"));
    assert_null(strstr(one->loss, "twice"));
    esp_close(ctx);
}
