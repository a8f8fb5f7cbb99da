/* test_targets.c runs the fuzz targets of payloads, states, strategies, messages and costs files without a fuzzer: with
 * the fuzzer's start inputs, inputs that once failed, and random changes of both. tests/planner/files does so for other
 * files. */
/* runs: no-tsan: one rank at a time: no thread but the context's own */
#include "tests/lib/test.h"
#include "espresso_impl/job/peers.h"
#include "espresso_impl/base/file.h"
#include "planner/files/read.h"
#include "decode.h"
#include "state.h"
#include "targets.h"
#include "wire.h"

typedef int (*target_fn)(const uint8_t *data, size_t size);
static int costs(const uint8_t *data, size_t size) { return fuzz_costs((const char *)data, size); }

static uint64_t seed = 1;
static uint32_t draw(void) { return test_random32(&seed); }

/* Runs a target with all inputs of a folder and `times` random changes of each. Returns how many were accepted. */
static int replay(const char *name, target_fn target, unsigned times) {
    char folder[128], path[512];
    static uint8_t changed[1 << 16];
    int accepted = 0, files = 0;
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char *text;
        size_t n;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(esp__file_read(path, sizeof changed / 2, &text, &n), 0);
        files++;
        accepted += target((const uint8_t *)text, n);
        for (unsigned k = 0; k < times; k++) {
            size_t m = n;
            memcpy(changed, text, n);
            for (uint32_t i = 1 + draw() % 4; i && m; i--)
                changed[draw() % m] = (uint8_t)(draw() % 3 ? draw() : draw() % 4);
            if (draw() % 4 == 0) m = draw() % (n + 1);
            if (draw() % 4 == 0)
                for (uint32_t i = draw() % 64; i; i--) changed[m++] = (uint8_t)draw();
            accepted += target(changed, m);
        }
        free(text);
    }
    closedir(d);
    assert_true(files > 0);
    return accepted;
}

/* PAYLOADS=1000000 in the environment sets the number of payloads of all codecs together. */
TEST(payloads) {
    const char *number = getenv("PAYLOADS");
    const unsigned each =
        number ? 1 + (unsigned)atoi(number) / (DECODE_SPECS * DECODE_KINDS * DECODE_OPS) : test_repeats(24);
    uint8_t in[DECODE_HEAD + 64];
    int decoded = 0, all = 0;
    for (int codec = 0; codec < DECODE_SPECS; codec++)
        for (int how = 0; how < DECODE_KINDS * DECODE_OPS; how++)
            for (unsigned k = 0; k < each; k++) {
                for (size_t i = 0; i < sizeof in; i++) in[i] = (uint8_t)draw();
                in[0] = (uint8_t)codec;
                in[1] = (uint8_t)(draw() % 8 ? draw() % 14 : 14);
                in[4] = (uint8_t)how;
                all++;
                decoded += fuzz_decode(in, k % 3 ? DECODE_HEAD + draw() % 64 : DECODE_HEAD);
            }
    if (number) print_message("%d payloads, of which %d were decoded\n", all, decoded);
    assert_true(decoded > all / 8 && decoded < all * 7 / 8);
    assert_true(replay("decode", fuzz_decode, 3) >= 0);
    decode_close();
}
TEST(states) {
    assert_true(replay("state", fuzz_state, test_repeats(200)) > 10);
    state_close();
}
TEST(strategies) {
    assert_true(replay("activate", fuzz_activate, test_repeats(200)) >= 3);
    state_close();
}
TEST(messages) {
    assert_true(replay("wire", fuzz_wire, test_repeats(400)) >= 1);
    esp_close(wire_ctx);
}
TEST(costs_files) { assert_true(replay("costs", costs, test_repeats(60)) > 1); }
