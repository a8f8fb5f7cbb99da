/* test_fake_tree.c: every option with compression on the device, and some of those that compress on CPU and device, in
 * one job with a tensor for each: the fake device's bits are the CPU's. With a stream-ordered backend, and with codecs
 * of several rounds. For a backend that moves host memory only see test_fake_processes.c. */
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
/* Codecs of several rounds: reduced payloads are copied to the memory space of the next round, and of the Decomp. */
TEST(test_rounds) {
    over("shared2", "loop");
    over("shared3", "ordered");
}
