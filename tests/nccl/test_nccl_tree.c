/* test_nccl_tree.c runs many strategies with backend nccl, gradients on the fake device (tests/device) and the
 * stand-in for NCCL (fake/). Results must have the same bits as with gradients in host memory over backend loop. */
/* runs: quiet no-tsan: the stand-in for NCCL is a library that is built without the sanitizer */
#include "tests/lib/test.h"
#include "tests/nccl/on_fake_device.h"
#include "tests/device/device_options.h"

static int (*remains)(void), (*registered)(void);

static void over(const char *codec, const char *backend, uint32_t every, uint32_t every_gpu) {
    static const esp_plugin_fn entries[] = {fake_plugin, espresso_plugin_v1_nccl};
    const tree_plan plan = {.codec = codec,
                            .backend = {"loop", backend},
                            .entries = entries,
                            .n_entries = 2,
                            .every = every,
                            .every_gpu = every_gpu};
    const int before = registered();
    run_tree(&plan);
    assert_true(registered() > before);
    assert_int_equal(remains(), 0);
}
TEST(one_backend) {
    over("topk:ratio=0.1", "nccl:device=0", 23, 0);
    over("none", "nccl:device=0", 101, 7);
}
TEST(levels) {
    over("topk:ratio=0.1", "levels:intra=(nccl:device=0),inter=(nccl:device=0)", 101, 3);
    over("topk:ratio=0.1", "levels:intra=(nccl:device=0),inter=(loop)", 101, 3);
}

int main(void) {
    standin_choose();
    void *p = standin_load();
    if (!nccl_find(p, "fake_remains", &remains) || !nccl_find(p, "fake_registered", &registered)) return 1;
    return test_main();
}
