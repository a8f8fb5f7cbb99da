/* test_canary.c is the first that runs on a GPU: one element of codec none, and 70,000 of topk. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "tests/cuda/compare.h"

static void sings(const char *spec, uint64_t count) {
    const pair_how how = {.beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SET};
    pair_codec c;
    pair_part p, *list = &p;
    pair_open("4", 1);
    pair_codec_open(&c, spec);
    pair_part_make(&p, &c, count, 1, 0);
    cf_fill((float *)(void *)p.cpu.at[TW_G], count, CF_RANDOM);
    pair_up(&p, TW_G);
    pair_compress(&c, &list, 1, &how);
    pair_decompress(&c, &list, 1, &how);
    pair_part_free(&p);
    pair_codec_close(&c);
    pair_close();
}
TEST(one_element) { sings("none", 1); }
TEST(many_elements) { sings("topk", 70000); }
int main(void) { return cuda_missing() ? 77 : test_main(); }
