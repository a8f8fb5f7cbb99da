/* test_fake_processes.c runs four processes over shared memory with gradients on the fake device, in one job with a
 * tensor for each of many options. Results have the same bits as with gradients in host memory. The processes of a
 * machine share a device, or each has one. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

enum { ELEMENTS = 67, MOST = 800, TREE_STEPS = 2, TREE_RANKS = 4, EVERY = 11 };

typedef struct tree_job {
    const char *codec;
    /* 0: host memory; 1: all ranks share device 0; 2: the ranks of a machine have a device each */
    int devices;
    uint32_t phase; /* number of the first option that uses both CPU and device */
} tree_job;

typedef struct results {
    uint32_t n;
    uint32_t bits[TREE_RANKS][TREE_STEPS][MOST * ELEMENTS];
} results;

typedef struct adding {
    esp_ctx *ctx;
    const tree_job *j;
    esp_device device;
    uint32_t every, seen, n;
} adding;

/* fewer options are tried when a sanitizer makes the test slow */
static uint32_t every(void) { return EVERY * 4 / test_repeats(4); }

static int add_option(void *user, const esp__option *o) {
    adding *a = user;
    char text[ESP__TEXT_MAX], name[32];
    if (a->seen++ % a->every) return 0;
    snprintf(name, sizeof name, "t%u", a->n);
    esp__option_print(o, text, sizeof text);
    esp_tensor_desc d = {.name = name, .count = ELEMENTS, .codec = a->j->codec, .option = text, .device = a->device};
    CHECK(a->n < MOST && esp_tensor_add(a->ctx, &d, NULL) == ESP_OK);
    a->n++;
    return 0;
}

static void tree_body(esp_ctx *ctx, const tree_job *j, results *out) {
    const uint32_t tree = ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL;
    const int32_t rank = esp_rank(ctx);
    adding a = {ctx, j, {j->devices ? FAKE_KIND : 0, j->devices == 2 ? rank % 2 : 0}, 1, 0, 0};
    place p;
    for (uint32_t device = 1; device <= 2; device++) CHECK(esp__option_each(tree, device, 0, add_option, &a) == 174);
    a.every = every(), a.seen = a.every - j->phase;
    CHECK(esp__option_each(tree, 3, 0, add_option, &a) == 4341);
    const uint64_t all = (uint64_t)a.n * ELEMENTS;
    place_open(ctx, &p, a.device, all * 4);
    ctx->devices.piece_bytes = 64;
    const esp_status s = esp_start(ctx);
    CHECK(s == ESP_OK);
    for (int step = 0; step < TREE_STEPS && !s; step++) {
        for (uint64_t i = 0; i < all; i++) ((float *)p.pinned)[i] = input(rank, step, i);
        write_late(&p);
        for (uint32_t t = 0; t < a.n; t++)
            CHECK(esp_push(ctx, t, (float *)p.grad + (uint64_t)t * ELEMENTS, p.stream) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (j->devices) fake_get(p.pinned, p.grad, all * 4);
        memcpy(out->bits[rank][step], p.pinned, all * 4);
    }
    out->n = a.n;
    place_close(&p);
}

/* Runs a rank. Returns how many checks failed. */
static int tree_rank(const tree_job *j, const char *root, int32_t rank, results *out) {
    static const esp_plugin_fn entry = fake_plugin;
    esp_ctx *ctx;
    esp_config c = {.rank = rank,
                    .size = TREE_RANKS,
                    .machine = 1 + rank / 2,
                    .root = root,
                    .backend = "shm",
                    .timeout_ms = 60000,
                    .builtin = &entry,
                    .n_builtin = 1,
                    .log_level = ESP_LOG_ERROR};
    if (esp_open(&c, &ctx)) return fprintf(stderr, "rank %d: %s\n", (int)rank, esp_last_error(NULL)), 1;
    tree_body(ctx, j, out);
    esp_close(ctx);
    CHECK(fake_live + fake_refused == 0);
    return atomic_load(&failures);
}

static void tree_run(const tree_job *j, results *out) {
    const char *root = test_root(false);
    pid_t pid[TREE_RANKS];
    int bad = 0;
    for (int32_t r = 0; r < TREE_RANKS; r++) {
        if ((pid[r] = child_fork(0)) != 0) continue;
        signal(SIGSEGV, SIG_DFL); /* a handler of the parent must not run here */
        _exit(tree_rank(j, root, r, out) != 0);
    }
    for (int32_t r = 0; r < TREE_RANKS; r++) bad += child_wait(pid[r]) != 0;
    assert_int_equal(bad, 0);
}

static void run_tree(const char *codec, int devices, uint32_t phase) {
    results *const all = test_shared(2 * sizeof *all);
    for (int k = 0; k < 2; k++) {
        const tree_job j = {codec, k ? devices : 0, phase};
        tree_run(&j, &all[k]);
    }
    assert_true(all[0].n >= 2 * 174 + 4341 / every());
    for (int r = 0; r < TREE_RANKS; r++)
        for (int s = 0; s < TREE_STEPS; s++)
            for (uint32_t i = 0; i < all[0].n * ELEMENTS; i++)
                if (all[0].bits[r][s][i] != all[1].bits[r][s][i])
                    fail_msg("%s: rank %d, step %d, tensor %u, element %u: %08x on the CPU, %08x on the device", codec,
                             r, s, i / ELEMENTS, i % ELEMENTS, all[0].bits[r][s][i], all[1].bits[r][s][i]);
    munmap(all, 2 * sizeof *all);
}

TEST(test_shared_device) { run_tree("topk:ratio=0.1", 1, 0); }
TEST(test_own_device) { run_tree("none:feedback=residual", 2, 5); }
