/* test_tree.c checks the number of options (ways to compress and send a tensor), and runs all in a job with a tensor
 * for each. Without compression the mean must be exact. Codecs must give the same bits on all ranks, and no residual
 * may be lost. */
/* runs: slow asan-long no-tsan: it runs thousands of strategies, which would take too long */
#include "tests/lib/test.h"
#include "tests/strategy/run_options.h"

enum { STEPS = 20 };

static int count_raw(void *user, const esp__option *o) {
    *(int *)user += !esp__option_compresses(o);
    return 0;
}

TEST(test_counts) {
    int raw = 0;
    assert_int_equal(esp__option_each(ESP__TREE_FLAT, 3, 0, count_raw, &raw), 63);
    assert_int_equal(esp__option_each(ESP__TREE_HIERARCHICAL, 3, 0, count_raw, &raw), 4278);
    assert_int_equal(raw, 9);
    for (uint32_t device = 1; device <= 2; device++) {
        raw = 0;
        assert_int_equal(esp__option_each(ESP__TREE_FLAT, device, 0, count_raw, &raw), 12);
        assert_int_equal(esp__option_each(ESP__TREE_HIERARCHICAL, device, 0, count_raw, &raw), 162);
        assert_int_equal(raw, 9);
    }
}

TEST(test_text_one_to_one) {
    int n = 0;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 1, round_trip, &n);
    assert_true(n > 4341);
}

TEST(test_bad_text) {
    static const char *const bad[][2] = {
        {"", "empty"},
        {"flat.allreduce >", "position 17"},
        {"flat.allreduse", "position 1: 'flat.allreduse' is no stage"},
        {"flat.allreduce > flat.allgather", "position 18: 'flat.allgather' cannot stand here; expected the end"},
        {"intra.reduce_scatter > inter.allreduce", "ends too soon; expected intra.allgather"},
        {"intra.reduce > inter.allreduce > intra.allgather", "expected intra.broadcast"},
        {"comp@tpu > flat.allgather > decomp@cpu", "position 1: 'comp@tpu' is no stage"},
        {"flat.allreduce flat.allreduce", "position 16: expected '>' between two stages"},
        {"flat.allreduce +1", "position 16: expected '>' between two stages"},
        {"flat.allreduce+1", "position 1: 'flat.allreduce+1' is no stage"},
        {"comp@cpu > flat.alltoall > comp@cpu", "expected flat.allgather, decomp@cpu, decomp@gpu"},
    };
    check_bad_texts(bad, sizeof bad / sizeof *bad);
}

static const char *const lossy[] = {"fp16:feedback=residual",
                                    "bf16:feedback=residual",
                                    "topk:ratio=0.1",
                                    "randomk:ratio=0.1",
                                    "dgc:ratio=0.1,momentum=0",
                                    "efsignsgd",
                                    "twobit:threshold=1.5",
                                    "int8",
                                    "chunktopk:chunk=64,k=8,decay=1",
                                    NULL};
static const char *const none[] = {"none", NULL};
static const char *const topk[] = {"topk:ratio=0.05", NULL};
static const int32_t shapes[3][2] = {{4, 2}, {6, 2}, {3, 3}};
static const uint64_t sizes[3] = {1, 37, 515};

TEST(test_all_options_run) {
    plan p = {.devices = 3, .codecs = topk, .count = 37, .steps = 1, .dtype = ESP_F32};
    run_plan(4, 2, &p);
}

TEST(test_none_is_exact) {
    for (int k = 0; k < 3; k++)
        for (int c = 0; c < 3; c++) {
            plan p = {.devices = 1,
                      .codecs = none,
                      .count = sizes[c],
                      .steps = 2,
                      .exact = 1,
                      .extended = 1,
                      .dtype = ESP_F32};
            run_plan(shapes[k][0], shapes[k][1], &p);
        }
}

static void lossy_with(int k, int c) {
    plan p = {.devices = 1,
              .codecs = lossy,
              .count = sizes[c],
              .steps = test_repeats(STEPS),
              .extended = 1,
              .dtype = ESP_F32};
    run_plan(shapes[k][0], shapes[k][1], &p);
}
#define LOSSY(k)                                                                                                       \
    TEST(test_lossy_##k##_0) { lossy_with(k, 0); }                                                                     \
    TEST(test_lossy_##k##_1) { lossy_with(k, 1); }                                                                     \
    TEST(test_lossy_##k##_2) { lossy_with(k, 2); }
LOSSY(0)
LOSSY(1)
LOSSY(2)

/* Small integers and their means are exact in 16-bit floats too. */
TEST(test_halves) {
    for (esp_dtype d = ESP_F16; d <= ESP_BF16; d++) {
        plan p = {.devices = 1, .codecs = none, .count = 37, .steps = 2, .exact = 1, .dtype = d};
        run_plan(4, 2, &p);
        plan q = {.devices = 1, .codecs = lossy, .count = 37, .steps = 3, .exact = 0, .dtype = d};
        q.steps = 1;
        run_plan(4, 2, &q);
    }
}

/* If machines have different numbers of ranks, only options over all ranks at once (flat) are possible. */
TEST(test_unequal_machines) {
    static const int32_t machines[3] = {1, 1, 2};
    plan p = {.devices = 1, .codecs = none, .count = 37, .steps = 2, .exact = 1, .extended = 1, .dtype = ESP_F32};
    RUN_RANKS(.size = 3, .machines = machines, .body = run_body, .user = &p);
}
