/* test_sum_range.c checks that no sum on the way to the mean of 16 ranks' gradients overflows if the mean fits into
 * 16-bit floats, with every option (way to compress and send a tensor). The gradients are 40000, so that even the sum
 * of one machine's ranks would not fit. */
/* runs: slow asan-long no-tsan: 16 ranks with hundreds of tensors, run by what executor/test_units runs: too slow */
#include "tests/lib/test.h"
#include "tests/strategy/run_options.h"

enum { SAMPLE = 5 };
static const char *const halves[] = {
    "fp16", "bf16", "fp16:of=(randomk:ratio=1)", "fp16:of=(topk:ratio=1)", "warmup:steps=0,of=(fp16)", NULL};
static const char *const with_feedback[] = {"fp16:feedback=residual", "bf16:feedback=residual",
                                            "fp16:of=(topk:ratio=1)", NULL};
static const char *const none[] = {"none", NULL};

static void range_with(int32_t size, int32_t per_machine, const char *const *places, plan p) {
    p.devices = 1;
    p.count = 37;
    if (!p.level) p.level = 40000;
    if (!p.steps) p.steps = 1;
    if (!getenv("TEST_ALL") && !p.every) p.every = SAMPLE;
    run_plan_at(size, per_machine, places, &p);
}

TEST(four_machines_of_four) { range_with(16, 4, NULL, (plan){.codecs = halves, .dtype = ESP_F32}); }
TEST(largest_number) { range_with(16, 4, NULL, (plan){.codecs = halves, .dtype = ESP_F32, .level = HALF_F16_MAX}); }
TEST(no_power_of_two) { range_with(15, 3, NULL, (plan){.codecs = halves, .dtype = ESP_F32}); }
TEST(sharded) { range_with(16, 4, NULL, (plan){.codecs = halves, .dtype = ESP_F32, .narrow = 1}); }
TEST(gradients_of_halves) {
    range_with(16, 4, NULL, (plan){.codecs = none, .dtype = ESP_F16});
    range_with(15, 3, NULL, (plan){.codecs = halves, .dtype = ESP_F16});
}
TEST(three_levels) {
    static const char *const places[] = {"a/1", "a/1", "a/2", "a/2", "b/1", "b/1", "b/2", "b/2"};
    range_with(8, 0, places, (plan){.codecs = halves, .dtype = ESP_F32, .levels = 3, .every = 67});
}
TEST(nothing_is_lost) { range_with(15, 3, NULL, (plan){.codecs = with_feedback, .dtype = ESP_F32, .steps = 3}); }
