/* test_narrow.c checks options (ways to compress and send a tensor) that divide the mean among the ranks: their number,
 * their texts, and every one executed with float and 16-bit gradients, on two levels and three. */
/* runs: asan-long no-tsan: test_shard in tests/context runs the same code */
#include "tests/lib/test.h"
#include "tests/strategy/run_options.h"

static int count_raw(void *user, const esp__option *o) {
    *(int *)user += !esp__option_compresses(o);
    assert_true(esp__option_narrow(o));
    return 0;
}

static int wide(void *user, const esp__option *o) {
    assert_false(esp__option_narrow(o));
    return 0;
}

/* Returns the number of options, by a formula instead of by listing them. d devices can compress. */
static uint64_t by_hand(uint32_t d, uint32_t n_levels) {
    uint64_t raw = 1 + (uint64_t)d * d, comp = d + d * raw;
    for (uint32_t k = 1; k < n_levels; k++) {
        uint64_t r = raw + d * comp, c = comp + d * r;
        raw = r, comp = c;
    }
    return raw;
}

TEST(test_counts) {
    for (uint32_t device = 1; device <= 3; device++) {
        const uint32_t d = device == 3 ? 2 : 1;
        int raw = 0;
        assert_int_equal(esp__option_each(ESP__TREE_FLAT | ESP__TREE_NARROW, device, 0, count_raw, &raw),
                         by_hand(d, 1));
        assert_int_equal(esp__option_each(ESP__TREE_HIERARCHICAL | ESP__TREE_NARROW, device, 0, count_raw, &raw),
                         by_hand(d, 2));
        assert_int_equal(raw, 2);
    }
    assert_int_equal(by_hand(1, 1), 2);
    assert_int_equal(by_hand(1, 2), 5);
    assert_int_equal(by_hand(2, 2), 29);
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 1, wide, NULL);
}

TEST(test_text_one_to_one) {
    int n = 0;
    for (uint32_t levels = 2; levels <= 3; levels++)
        esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL | ESP__TREE_NARROW | ESP__TREE_OF(levels), 3, 1,
                         round_trip, &n);
    assert_true(n > 100);
}

static const char *const lossy[] = {"fp16:feedback=residual",
                                    "topk:ratio=0.1",
                                    "randomk:ratio=0.1",
                                    "dgc:ratio=0.1,momentum=0",
                                    "efsignsgd",
                                    "twobit:threshold=1.5",
                                    NULL};
static const char *const none[] = {"none", NULL};
static const int32_t shapes[4][2] = {{4, 2}, {6, 2}, {3, 3}, {1, 1}};
static const uint64_t sizes[3] = {1, 37, 515};
static const esp_dtype dtypes[3] = {ESP_F32, ESP_F16, ESP_BF16};

TEST(test_none_is_exact) {
    for (int k = 0; k < 4; k++)
        for (int c = 0; c < 9; c++) {
            plan p = {.devices = c < 3 ? 3 : 1,
                      .codecs = none,
                      .count = sizes[c % 3],
                      .steps = 2,
                      .exact = 1,
                      .extended = 1,
                      .narrow = 1,
                      .dtype = dtypes[c / 3]};
            run_plan(shapes[k][0], shapes[k][1], &p);
        }
}

TEST(test_lossy) {
    for (int k = 0; k < 3; k++)
        for (int c = 0; c < 3; c++) {
            plan p = {.devices = 1,
                      .codecs = lossy,
                      .count = sizes[c],
                      .steps = test_repeats(20),
                      .extended = 1,
                      .narrow = 1,
                      .dtype = ESP_F32};
            run_plan(shapes[k][0], shapes[k][1], &p);
            p.dtype = dtypes[1 + (k + c) % 2];
            p.steps = 1;
            run_plan(shapes[k][0], shapes[k][1], &p);
        }
}

TEST(test_three_levels) {
    static const char *const places[8] = {"r0/m0", "r1/m0", "r0/m1", "r1/m1", "r1/m0", "r0/m0", "r1/m1", "r0/m1"};
    for (int c = 0; c < 3; c++) {
        plan p = {.devices = 1,
                  .codecs = none,
                  .count = sizes[c],
                  .steps = 2,
                  .exact = 1,
                  .extended = 1,
                  .narrow = 1,
                  .levels = 3,
                  .dtype = ESP_F32};
        run_plan_at(8, 0, places, &p);
        plan q = {
            .devices = 1, .codecs = lossy, .count = sizes[c], .steps = 3, .narrow = 1, .levels = 3, .dtype = ESP_F32};
        run_plan_at(8, 0, places, &q);
    }
}
