/* test_codecs.c runs `espresso plugins --check` on every built-in codec, with several parameters. */
/* runs: slow asan-long no-tsan: each check is a process, in which the sanitizer cannot follow threads */
#include "tests/lib/specs.h"
#include "tests/lib/test.h"
#include "tests/lib/run_check.h"

static const char *const specs[] = {"none",
                                    "powersgd",
                                    "topk:ratio=0.01",
                                    "int8:shared=1",
                                    "warmup:steps=2,of=(efsignsgd)",
                                    "fp16",
                                    "bf16",
                                    "efsignsgd",
                                    "twobit:threshold=0.5",
                                    "twobit:threshold=2",
                                    "twobit:relative=1.2",
                                    "int8",
                                    "int8:block=32",
                                    "int8:block=1024",
                                    "int4",
                                    "int4:block=32",
                                    "int4:block=1024",
                                    "chunktopk",
                                    "chunktopk:chunk=64,k=5",
                                    "chunktopk:chunk=64,k=32",
                                    "chunktopk:chunk=1024,k=300",
                                    "randomk:ratio=0.4",
                                    "bf16:of=(none)",
                                    "fp16:of=(topk:ratio=0.3)",
                                    "warmup:of=(topk:ratio=0.3)",
                                    "topk:ratio=0.3",
                                    "randomk:ratio=0.01",
                                    "randomk:ratio=0.9,unbiased=1,feedback=none",
                                    "dgc:ratio=0.01",
                                    "dgc:ratio=0.1",
                                    "powersgd:rank=2",
                                    "fp16:of=(topk:ratio=0.01)",
                                    "fp16:of=(none)",
                                    "bf16:of=(randomk:ratio=0.1)",
                                    "warmup:steps=2,of=(topk:ratio=0.01)",
                                    "warmup:steps=2,of=(dgc:ratio=0.01)",
                                    "warmup:steps=2,of=(fp16:of=(randomk:ratio=0.1))",
                                    CODEC_SPECS,
                                    "threshold:value=0.001",
                                    "fp16:of=(threshold)",
                                    "fp8:mantissa=2",
                                    "fp8:block=1024",
                                    "qsgd:bits=2",
                                    "terngrad:clip=0",
                                    "maxmin:bits=8",
                                    "maxmin:bits=1",
                                    "mxnet1bit:threshold=0.5",
                                    "signum:momentum=0"};
enum { SPECS = sizeof specs / sizeof *specs };

/* Returns true if the codec is earlier in the list, with other parameters. */
static bool again(int i) {
    const size_t n = strcspn(specs[i], ":");
    for (int k = 0; k < i; k++)
        if (strcspn(specs[k], ":") == n && !strncmp(specs[k], specs[i], n)) return true;
    return false;
}

/* Every codec once; with TEST_ALL, with all parameters. */
TEST(all_rules) {
    for (int i = 0; i < SPECS; i++)
        if (getenv("TEST_ALL") || !again(i)) run_check(specs[i]);
}

TEST(all_codecs) {
    esp_ctx *ctx = NULL;
    assert_int_equal(esp__open_alone(&ctx), ESP_OK);
    assert_true(ctx->registry.codecs.n > 0);
    for (uint32_t i = 0; i < ctx->registry.codecs.n; i++)
        run_check_named(ctx->registry.codecs.at[i].codec->name, specs, SPECS);
    esp_close(ctx);
}
