/* test_fake_tree.c runs many strategies that compress on the device. Results must have the same bits as on the CPU. */
/* runs: tsan-long */
#include "tests/lib/test.h"
#include "tests/device/device_options.h"
#include "tests/device/backend_fake.c"
#include "tests/lib/rounds_codec.h"

static void over(const char *codec, const char *backend) {
    static const esp_plugin_fn entries[] = {fake_plugin, moved_plugin, rounds_entry, fake_rounds_plugin};
    const tree_plan plan = {
        .codec = codec, .backend = {backend, backend}, .entries = entries, .n_entries = 4, .every = 17};
    run_tree(&plan);
}

TEST(test_ordered) { over("topk:ratio=0.1", "ordered"); }
/* These codecs need several exchanges between ranks for one gradient. */
TEST(test_rounds) {
    over("shared2", "loop");
    over("shared3", "ordered");
}
