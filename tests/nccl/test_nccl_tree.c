/* test_nccl_tree.c runs many options with backend nccl, gradients on the fake device (tests/device) and the stand-in
 * for NCCL (fake/). Results equal those of gradients in host memory over backend loop, bit by bit. One backend serves
 * all levels, or each level has its own. */
/* runs: quiet no-tsan: the stand-in for NCCL is a library that is built without the sanitizer */
#include "tests/lib/test.h"
#include <dlfcn.h>
#define ESP_DEVKIND_OWN ESP_CUDA /* the kind of the fake device included below */
#include "tests/device/device_options.h"
#include "tests/nccl/fake/control.h"
#include "backends/nccl/nccl.h"
#include "tests/lib/entries.h"

static void *device_own(const void *p, uint64_t bytes) { return fake_own(p, bytes); }
static void device_launch(void *stream, int (*ready)(void *), int (*run)(void *), const void *arg, size_t bytes) {
    const esp_stream s = {{FAKE_KIND, 0}, stream};
    if (fake_launch_when(s, ready, run, arg, bytes)) abort();
}
static int (*remains)(void), (*registered)(void);

static void over(const char *codec, const char *backend, uint32_t every, uint32_t every_gpu) {
    static const esp_plugin_fn entries[] = {fake_plugin, espresso_plugin_v1_nccl};
    const tree_plan plan = {codec, {"loop", backend}, entries, 2, every, every_gpu};
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
    static const fake_hooks device = {device_own, device_launch};
    const char *build = getenv("ESPRESSO_BUILD");
    void (*use)(const fake_hooks *);
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/nccl/new/libcuda.so.1", build ? build : "./build");
    setenv("ESPRESSO_NCCL", path, 1);
    setenv("FAKE_SHARED", "1", 1);
    void *p = dlopen(path, RTLD_NOW);
    if (!p || !nccl_find(p, "fake_device_use", &use) || !nccl_find(p, "fake_remains", &remains) ||
        !nccl_find(p, "fake_registered", &registered)) {
        fprintf(stderr, "%s is not there: make it\n", path);
        return 1;
    }
    use(&device);
    return test_main();
}
