/* test_fake_tree.c runs every option that compresses on the device, and some that compress on CPU and device, in one
 * job with a tensor for each. Results have the same bits as on the CPU. The backend moves device memory. In
 * test_fake_processes.c it moves host memory only. */
/* runs: tsan-long */
#include "tests/lib/test.h"
#include "tests/device/device_options.h"
#include "tests/device/backend_fake.c"
#include "tests/lib/rounds_codec.h"

static void over(const char *codec, const char *backend) {
    static const esp_plugin_fn entries[] = {fake_plugin, moved_plugin, rounds_entry, fake_rounds_plugin};
    const tree_plan plan = {codec, {backend, backend}, entries, 4, 17, 0};
    run_tree(&plan);
}

TEST(test_ordered) { over("topk:ratio=0.1", "ordered"); }
/* These codecs need several exchanges. A sum of payloads is copied to where the next exchange or decompression runs. */
TEST(test_rounds) {
    over("shared2", "loop");
    over("shared3", "ordered");
}
