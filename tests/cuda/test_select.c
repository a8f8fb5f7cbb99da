/* test_select.c compares the selection of the k largest elements on the GPU (codecs/cuda/common/select.h) with the
 * CPU's, byte by byte, for tensors that several blocks handle. The GPU samples elements to guess the k-th largest; some
 * inputs mislead the sample, have equal numbers, or numbers that differ only in their last bits. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "tests/cuda/compare.h"

enum { NORMAL, EQUAL, SPARSE, TWO, SAMPLE_HIGH, SAMPLE_LOW, LAST_BITS, LATE_NAN, SHAPES };

static float uniform(void) { return (float)(cf_random() % 100000 + 1) / 100000.0f; }
static float bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static float number(int shape, uint64_t i, uint64_t count) {
    const float sign = cf_random() % 2 ? 1.0f : -1.0f, u = uniform();
    const int sampled = i / 16 % 3 == 0;
    switch (shape) {
    case EQUAL: return sign * 0.25f;
    case SPARSE: return cf_random() % 1000 ? 0.0f * sign : sign * u;
    case TWO: return cf_random() % 3 ? sign * 2.0f : sign * u;
    case SAMPLE_HIGH: return sampled ? sign * (10.0f + u) : sign * u * 1e-3f;
    case SAMPLE_LOW: return sampled ? sign * u * 1e-3f : sign * (10.0f + u);
    case LAST_BITS: return sign * bits(0x3F800000u + cf_random() % 200);
    case LATE_NAN: return i == count - 1 ? bits(0x7FC00000u) : sign * u;
    default: return sign * u * u * u;
    }
}
static void one(const pair_codec *c, uint64_t count, int shape, int feedback) {
    pair_part p, *list = &p;
    pair_how how = {.feedback = feedback, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SET};
    float *g;
    how.flags = feedback && cf_has(&c->cpu, ESP_CODEC_OWN_FEEDBACK) ? ESP_ARG_OWN_MEMORY : 0;
    pair_part_make(&p, c, count, 1, 1);
    g = (float *)(void *)p.cpu.at[TW_G] + p.shift;
    for (uint64_t i = 0; i < count; i++) g[i] = number(shape, i, count);
    pair_up(&p, TW_G);
    for (how.step = 0; how.step < 1u + (uint64_t)feedback; how.step++) pair_compress(c, &list, 1, &how);
    pair_decompress(c, &list, 1, &how);
    how.mode = ESP_OUT_SUM, how.n_payloads = 2;
    pair_decompress(c, &list, 1, &how);
    pair_part_free(&p);
}
static void shape(int kind) {
    static const char *const specs[] = {"topk", "topk:ratio=0.11", "dgc:ratio=0.004"};
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        pair_open(s == 1 ? "1" : "4", (uint64_t)kind * 8 + s);
        pair_codec_open(&c, specs[s]);
        one(&c, 70001, kind, s == 2);
        one(&c, 65536 + 4096, kind, s != 2);
        if (s == 0) one(&c, 150000, kind, kind % 2);
        pair_codec_close(&c);
        pair_close();
    }
}
TEST(normal) { shape(NORMAL); }
TEST(equal_but_for_signs) { shape(EQUAL); }
TEST(mostly_zeros) { shape(SPARSE); }
TEST(two_magnitudes) { shape(TWO); }
TEST(a_sample_of_large_ones) { shape(SAMPLE_HIGH); }
TEST(a_sample_of_small_ones) { shape(SAMPLE_LOW); }
TEST(same_but_for_the_last_bits) { shape(LAST_BITS); }
TEST(a_nan_at_the_end) { shape(LATE_NAN); }

TEST(many_spans) {
    enum { LONG = 65536 * 34 + 17 };
    pair_codec c;
    pair_part p, *list = &p;
    pair_how how = {.n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SET};
    pair_open("4", 3);
    pair_codec_open(&c, "topk:ratio=0.001");
    pair_part_make(&p, &c, LONG, 1, 0);
    for (uint64_t i = 0; i < LONG; i++) ((float *)(void *)p.cpu.at[TW_G])[i] = number(NORMAL, i, LONG);
    pair_up(&p, TW_G);
    for (uint64_t seed = 0; seed < 2; seed++) cuda_host_seed(seed), pair_compress(&c, &list, 1, &how);
    pair_decompress(&c, &list, 1, &how);
    pair_part_free(&p);
    pair_codec_close(&c);
    pair_close();
}

TEST(orders) {
    static const char *const specs[] = {"topk:ratio=0.05", "topk:ratio=0.11"};
    enum { FROM = 4 };
    pair_open("4", 5);
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        pair_part part[FROM], *list[FROM];
        pair_how how = {.n_reduced = 1, .n_payloads = FROM, .from = list, .n_from = FROM};
        pair_codec_open(&c, specs[s]);
        for (int t = 0; t < FROM; t++) {
            list[t] = &part[t];
            pair_part_make(&part[t], &c, 70001, 1, 0);
            float *g = (float *)(void *)part[t].cpu.at[TW_G];
            for (uint64_t i = 0; i < 70001; i++) g[i] = number(NORMAL, i, 70001) * (i % 16 ? 1.0f : 50.0f);
            pair_up(&part[t], TW_G);
            pair_compress(&c, &list[t], 1, &how);
        }
        for (int seed = 0; seed < 3; seed++) cuda_host_seed((uint64_t)seed), pair_decompress(&c, list, 1, &how);
        for (int t = 0; t < FROM; t++) pair_part_free(&part[t]);
        pair_codec_close(&c);
    }
    pair_close();
}

/* ---- payloads with one small damage, which the CPU and the GPU must both refuse --------------------------------- */
enum { COUNT = 70001, SPANS = 2, LEFT = COUNT - 65536 };
enum { MOVED, ONE_LESS, HUGE, FIRST_TWICE, BEYOND, ONE_AWAY, INFINITE, DAMAGES };

static int spoil(unsigned char *body, uint64_t k, int map, int how) {
    uint32_t *held = (uint32_t *)(void *)(body + 4 * k), *word = held + SPANS;
    uint16_t *place = (uint16_t *)(void *)word;
    const uint32_t end = COUNT / 32;
    switch (how) {
    case MOVED: return held[0]--, held[1]++, 1;
    case ONE_LESS: return held[1]--, 1;
    case HUGE: return held[0] = UINT32_MAX, 1;
    case FIRST_TWICE: return !map && (place[1] = place[0], 1);
    case BEYOND:
        if (!map) return place[k - 1] = LEFT, 1;
        for (uint32_t w = end;; w--)
            if (word[w]) return word[w] &= word[w] - 1, word[end] |= 1u << 31, 1;
    case ONE_AWAY: return map && word[5] && (word[5] &= word[5] - 1, 1);
    default: return memset(body + 4 * (k - 1), 0xFF, 4), 1;
    }
}
TEST(damaged) {
    static const char *const specs[] = {"topk", "topk:ratio=0.11"};
    for (size_t s = 0; s < CF_COUNT(specs); s++)
        for (int i = 0; i < DAMAGES; i++) {
            pair_codec c;
            pair_part p, *list = &p;
            pair_how how = {.n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SUM};
            esp_payload_header h;
            pair_open("2", (uint64_t)i);
            pair_codec_open(&c, specs[s]);
            pair_part_make(&p, &c, COUNT, 1, 0);
            for (uint64_t n = 0; n < COUNT; n++) ((float *)(void *)p.cpu.at[TW_G])[n] = number(NORMAL, n, COUNT);
            pair_up(&p, TW_G);
            pair_compress(&c, &list, 1, &how);
            memcpy(&h, p.cpu.payload[0], sizeof h);
            if (spoil(p.cpu.payload[0] + ESP_PAYLOAD_HEADER, h.aux, s == 1, i)) {
                pair_copy(p.cuda.payload[0], p.cpu.payload[0], p.body[0], 1);
                cf_fill((float *)(void *)p.cpu.at[TW_OUT], p.count, CF_RANDOM);
                pair_up(&p, TW_OUT);
                const esp_status cpu = pair_on_cpu(&c, &list, 1, &how, 0, 1);
                const esp_status cuda = pair_on_cuda(&c, &list, 1, &how, 0, 1);
                if (cpu != ESP_E_CORRUPT || cuda != ESP_E_CORRUPT)
                    fail_msg("%s: damage %d: the CPU says '%s', CUDA '%s'", specs[s], i, pair_status(cpu),
                             pair_status(cuda));
                pair_same(specs[s], &p, "after damage: the output", p.cpu.at[TW_OUT], p.cuda.at[TW_OUT], p.count * 4);
            }
            pair_part_free(&p);
            pair_codec_close(&c);
            pair_close();
        }
}

int main(void) { return cuda_missing() ? 77 : test_main(); }
