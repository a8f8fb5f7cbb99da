/* test_cuda_tree.c runs plugin cuda on an emulator of CUDA. One job has a tensor for each option that compresses only
 * on the GPU, and for some that also use the CPU, with all codecs in turn. Results must have the same bits as with
 * gradients in CPU memory. */
/* runs: slow asan-long no-tsan: the emulator runs kernels as fibers, which the thread sanitizer does not follow */
#define DEVICE_IS_CUDA
#include "tests/lib/test.h"
#include "tests/cuda/emulator/missing.h"
#include "tests/device/device_options.h"

static const char *const codecs[] = {"none",
                                     "topk:ratio=0.1",
                                     "fp16",
                                     "efsignsgd",
                                     "twobit:relative=1.2",
                                     "int8:block=32",
                                     "int4:block=32",
                                     "chunktopk:chunk=16,k=2",
                                     "dgc:ratio=0.1",
                                     "bf16",
                                     "randomk:ratio=0.2",
                                     "threshold:value=0.5",
                                     "signum",
                                     "qsgd:bits=3,block=32",
                                     "mxnet1bit",
                                     "fp8",
                                     "signsgd"};
static const char *const summed[] = {"powersgd:rank=2", "int8:shared=1", "randomk:ratio=0.2", "fp16", "none"};

TEST(tree) {
    static const esp_plugin_fn entries[1] = {espresso_plugin_v1_cuda};
    const tree_plan plan = {.entries = entries,
                            .n_entries = 1,
                            .every = 17,
                            .codecs = codecs,
                            .n_codecs = sizeof codecs / sizeof *codecs,
                            .summed = summed,
                            .n_summed = sizeof summed / sizeof *summed};
    run_tree(&plan);
}

int main(void) { return cuda_missing() ? 77 : test_main(); }
