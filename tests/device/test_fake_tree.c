/* test_fake_tree.c runs every option that compresses on the device, and some that compress on CPU and device, in one
 * job with a tensor for each: the fake device's bits equal the CPU's. It uses a stream-ordered backend and codecs of
 * several rounds; test_fake_processes.c has a backend that moves host memory only. */
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
/* Codecs of several rounds: reduced payloads are copied to the memory of the next round and of the decompression. */
TEST(test_rounds) {
    over("shared2", "loop");
    over("shared3", "ordered");
}
