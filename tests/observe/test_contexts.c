/* test_contexts.c checks that contexts of one process write their traces, statistics and profiles to different files.
 * Such contexts are those of a GAN's generator and discriminator, or of groups of a job's ranks. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "espresso_impl/base/file.h"

enum { N = 5000, STEPS = 12 };

static void observe_all(void) {
    char text[600];
    setenv("ESPRESSO_TRACE", in_folder("trace.json"), 1);
    snprintf(text, sizeof text, "%s,%s,%s", in_folder("stats.jsonl"), in_folder("stats.prom"),
             in_folder("all.%r.jsonl"));
    setenv("ESPRESSO_STATS", text, 1);
    snprintf(text, sizeof text, "%s,steps=4,skip=2", in_folder("model.json"));
    setenv("ESPRESSO_PROFILE", text, 1);
}
static void observe_none(void) { unsetenv("ESPRESSO_TRACE"), unsetenv("ESPRESSO_STATS"), unsetenv("ESPRESSO_PROFILE"); }

static void add_and_start(esp_ctx *ctx, const char *name) {
    CHECK(ctx && esp_tensor_add(ctx, &(esp_tensor_desc){.name = name, .count = N}, NULL) == ESP_OK &&
          esp_start(ctx) == ESP_OK);
}
static void train(esp_ctx *ctx, float *g) {
    CHECK(esp_push(ctx, 0, g, (esp_stream){0}) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
}

static const char *const gan[] = {"generator", "discriminator"};

static void gan_body(esp_ctx *ctx, void *user) {
    esp_ctx *x[2] = {ctx, NULL};
    const esp_config c = {
        .rank = esp_rank(ctx), .size = esp_size(ctx), .root = user, .codec = "topk:ratio=0.1", .backend = "loop"};
    float *g = calloc(N, sizeof *g);
    CHECK(esp_open(&c, &x[1]) == ESP_OK);
    for (int k = 0; k < 2; k++) add_and_start(x[k], gan[k]);
    for (int s = 0; s < STEPS; s++)
        for (int k = 0; k < 2; k++) train(x[k], g);
    esp_close(x[1]);
    free(g);
}

static void holds(const char *file, const char *tensor, const char *other) {
    char *text = file_text(in_folder(file));
    if (!text) fail_msg("%s is missing", file);
    if (!strstr(text, tensor) || strstr(text, other)) fail_msg("%s: expected %s alone", file, tensor);
    free(text);
}

TEST(gan_with_all_observers, folder_make, folder_remove) {
    static const char *const files[][2] = {{"trace.json", "trace.2.json"},   {"stats.jsonl", "stats.2.jsonl"},
                                           {"stats.prom", "stats.2.prom"},   {"model.json", "model.2.json"},
                                           {"all.0.jsonl", "all.0.2.jsonl"}, {"all.1.jsonl", "all.1.2.jsonl"}};
    observe_all();
    char root[200];
    snprintf(root, sizeof root, "%s", test_root(false));
    RUN_RANKS(.size = 2, .body = gan_body, .user = root, .config.codec = "topk:ratio=0.1");
    observe_none();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int k = 0; k < 2; k++) holds(files[i][k], gan[k], gan[1 - k]);
}

/* Four processes: contexts {0, 1} and {2, 3} with tensor "rows", then {0, 2} and {1, 3} with "columns". */
static void group_process(int process, char root[4][200]) {
    esp_ctx *x[2] = {NULL, NULL};
    char number[16];
    float *g = calloc(N, sizeof *g);
    snprintf(number, sizeof number, "%d", process);
    setenv("OMPI_COMM_WORLD_RANK", number, 1), setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    for (int k = 0; k < 2; k++) {
        const int row = process / 2, column = process % 2;
        const esp_config c = {.rank = k ? row : column,
                              .size = 2,
                              .codec = "topk:ratio=0.1",
                              .root = root[2 * k + (k ? column : row)],
                              .backend = "shm"};
        CHECK(esp_open(&c, &x[k]) == ESP_OK);
        add_and_start(x[k], k ? "columns" : "rows");
    }
    for (int s = 0; s < STEPS; s++)
        for (int k = 0; k < 2; k++) train(x[k], g);
    for (int k = 0; k < 2; k++) esp_close(x[k]);
    free(g);
    _exit(atomic_load(&failures) != 0);
}

TEST(groups_of_ranks, folder_make, folder_remove) {
    static const char *const rows[] = {"trace.json",  "trace.p2.json", "model.p2.json",  "stats.p2.prom",
                                       "all.0.jsonl", "all.1.jsonl",   "all.0.p2.jsonl", "all.1.p3.jsonl"},
                             *const columns[] = {"trace.2.json",   "trace.p1.json",   "model.p1.json",
                                                 "stats.p1.prom",  "all.0.2.jsonl",   "all.0.p1.jsonl",
                                                 "all.1.p2.jsonl", "all.1.p3.2.jsonl"};
    static char root[4][200];
    pid_t child[4];
    observe_all();
    for (int k = 0; k < 4; k++) snprintf(root[k], sizeof root[k], "%s", test_root(false));
    for (int k = 0; k < 4; k++)
        if (!(child[k] = child_fork(60))) group_process(k, root);
    observe_none();
    for (int k = 0; k < 4; k++) assert_int_equal(child_wait(child[k]), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        holds(rows[i], "rows", "columns");
        holds(columns[i], "columns", "\"rows\"");
    }
}

/* The number that makes a file name unique stands before the extension. It can be used again after its context has
 * closed. */
TEST(names, folder_make, folder_remove) {
    static const char *const cases[][2] = {
        {"a.json", "a.2.json"}, {"a", "a.2"}, {".hidden", ".hidden.2"}, {"x.y/a", "x.y/a.2"}, {"a.b.c", "a.b.2.c"}};
    esp__base one = {.process = -1}, two = {.process = -1}, three = {.process = 7};
    esp_ctx *a = (esp_ctx *)(void *)&one, *b = (esp_ctx *)(void *)&two, *c = (esp_ctx *)(void *)&three;
    char out[PATH_MAX];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = in_folder(cases[i][0]), *second = in_folder(cases[i][1]);
        assert_int_equal(esp__path_of_context(a, path, out), 0);
        assert_string_equal(out, path);
        assert_int_equal(esp__path_of_context(a, path, out), 0);
        assert_string_equal(out, path);
        assert_int_equal(esp__path_of_context(b, path, out), 0);
        assert_string_equal(out, second);
    }
    assert_int_equal(esp__path_of_context(c, in_folder("a.json"), out), 0);
    assert_string_equal(out, in_folder("a.p7.json"));
    assert_int_equal(esp__path_of_context(b, "/dev/null", out), 0);
    assert_int_equal(esp__path_of_context(a, "/dev/null", out), 0);
    assert_string_equal(out, "/dev/null");
    esp__paths_release(a);
    assert_int_equal(esp__path_of_context(c, in_folder("a"), out), 0);
    assert_int_equal(esp__path_of_context(b, in_folder("a.json"), out), 0);
    assert_string_equal(out, in_folder("a.json"));
    esp__paths_release(b), esp__paths_release(c);
}
