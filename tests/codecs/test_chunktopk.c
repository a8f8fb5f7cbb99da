/* test_chunktopk.c checks codec chunktopk against a plain reference that sorts every chunk: the elements that are kept,
 * ties, signs, magnitudes, the residual and its decay, NaN, and corrupt payloads. */
#include "tests/lib/test.h"
#include <float.h>
#include "tests/codecs/one_codec.h"

static const char *const levels[] = {"scalar", "avx2", "avx512"};

/* ---- reference --------------------------------------------------------------------------------------------------- */
static const float *ref_numbers;
static int ref_order(const void *a, const void *b) {
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const float x = fabsf(ref_numbers[i]), y = fabsf(ref_numbers[j]);
    return x > y ? -1 : x < y ? 1 : i < j ? -1 : 1;
}
static int ref_up(const void *a, const void *b) { return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : 1; }

static float ref_bf16(const unsigned char *p) {
    const uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static uint32_t ref_bits(const unsigned char *p, uint64_t at, int n) {
    uint32_t x = 0;
    for (int i = 0; i < n; i++) x |= (uint32_t)(p[(at + (uint64_t)i) / 8] >> (at + (uint64_t)i) % 8 & 1) << i;
    return x;
}
/* Checks that `got` is the mean of n magnitudes, rounded to bf16. */
static void ref_mean(double sum, uint64_t n, float got) {
    const double mean = n ? sum / (double)n : 0;
    if (n) assert_true(fabs((double)got - mean) <= mean * 0x1p-8 + 1e-40);
}

/* Checks the bytes of one chunk's payload, decodes them to `sent`, and returns their number. */
static uint64_t ref_chunk(const unsigned char *record, const float *x, uint64_t n, uint64_t chunk, uint64_t k,
                          float *sent) {
    const uint64_t kept = (k * n + chunk - 1) / chunk;
    const int width = (int)log2((double)chunk);
    uint32_t order[4096];
    double all = 0, sum[2] = {0, 0};
    uint64_t many[2] = {0, 0};
    for (uint32_t i = 0; i < n; i++) order[i] = i, sent[i] = 0;
    ref_numbers = x;
    qsort(order, n, sizeof *order, ref_order);
    qsort(order, kept, sizeof *order, ref_up);
    for (uint64_t i = 0; i < kept; i++) all += fabs((double)x[order[i]]);
    const float magnitude[2] = {ref_bf16(record), ref_bf16(record + 2)};
    const double mean = all / (double)kept;
    for (uint64_t i = 0; i < kept; i++) {
        const uint32_t code = ref_bits(record + 4, i * (uint64_t)(width + 2), width + 2), at = order[i];
        const int high = (int)(code >> (width + 1)), negative = (int)(code >> width & 1);
        assert_int_equal(code & ((1u << width) - 1), at);
        assert_int_equal(negative, x[at] < 0);
        if (fabs(fabs((double)x[at]) - mean) > mean * 1e-6) assert_int_equal(high, fabs((double)x[at]) > mean);
        sum[high] += fabs((double)x[at]), many[high]++;
        sent[at] = negative ? -magnitude[high] : magnitude[high];
    }
    ref_mean(sum[0], many[0], magnitude[0]);
    ref_mean(sum[1], many[1], magnitude[1]);
    const uint64_t bits = kept * (uint64_t)(width + 2), bytes = (bits + 7) / 8;
    for (uint64_t b = bits; b < 8 * bytes; b++) assert_int_equal(ref_bits(record + 4, b, 1), 0);
    return 4 + bytes;
}

/* ---- comparison with the reference ---- */
enum { ANY, FEW, SPARSE, STEPS, CONSTANT, ZERO, KINDS };
static float number(int kind, uint64_t i, int step) {
    switch (kind) {
    case FEW: return 0.25f * (float)((int)(codec_random() % 7) - 3);  /* many ties */
    case SPARSE: return codec_random() % 97 ? 0.0f : codec_uniform(); /* often fewer than k elements are nonzero */
    case STEPS:
        return ldexpf(codec_uniform(),
                      (int)((i / 4096 * 37 + (uint64_t)step) % 60) - 40); /* another scale in each chunk */
    case CONSTANT: return i / 4096 % 2 ? -0.375f : 3e-39f;
    case ZERO: return i % 2 ? -0.0f : 0.0f;
    default: return codec_uniform() * codec_uniform() * codec_uniform();
    }
}

typedef struct shape {
    const char *params;
    uint64_t chunk, k;
    float decay;
} shape;

/* Compares three steps with the reference. `feedback` 0 uses no residual. 1 adds beta * residual + gamma * gradient,
 * with the call's beta and gamma. 2 adds decay * residual + gradient, with the codec's parameter `decay`. */
static void one_case(const shape *s, uint64_t n, int kind, int feedback, const char *simd, int threads) {
    opened_codec r = codec_open(codec_named("chunktopk"), s->params, n, simd, threads);
    float *g = malloc(n * 4 + 4), *phi = malloc(n * 4 + 4), *out = malloc(n * 4 + 4), sent[4096];
    const float beta = feedback == 2 ? s->decay : 0.9f, gamma = feedback == 2 ? 1.0f : 0.7f;
    r.args.beta = 0.9f, r.args.gamma = 0.7f, r.args.scale = 0.5f;
    r.args.flags = feedback == 2 ? ESP_ARG_OWN_MEMORY : 0;
    for (int step = 0; step < 3; step++) {
        for (uint64_t i = 0; i < n; i++) {
            g[i] = number(kind, i, step);
            const float e = beta * r.residual[i], x = gamma * g[i];
            phi[i] = feedback ? e + x : g[i];
            out[i] = (float)(i % 5);
        }
        assert_int_equal(codec_compress(&r, g, feedback > 0), ESP_OK);
        const esp_payload_header h = codec_header(&r);
        assert_true(h.count == n && h.flags == 0 && h.aux == 0 && r.used == ESP_PAYLOAD_HEADER + h.body_bytes);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SUM), ESP_OK);
        const unsigned char *record = (const unsigned char *)esp_payload_body(&r.payload);
        for (uint64_t at = 0; at < n; at += s->chunk) {
            const uint64_t m = n - at < s->chunk ? n - at : s->chunk;
            record += ref_chunk(record, phi + at, m, s->chunk, s->k, sent);
            for (uint64_t i = 0; i < m; i++) {
                assert_true(out[at + i] == (float)((at + i) % 5) + 0.5f * sent[i]);
                if (feedback) assert_true(r.residual[at + i] == phi[at + i] - sent[i]);
            }
        }
        assert_true(record == (const unsigned char *)esp_payload_body(&r.payload) + h.body_bytes);
    }
    free(g), free(phi), free(out);
    codec_close(&r);
}
TEST(against_reference) {
    static const shape shapes[] = {{"", 4096, 64, 0.95f},
                                   {"chunk=16,k=1,decay=0", 16, 1, 0},
                                   {"chunk=64,k=64,decay=1", 64, 64, 1},
                                   {"chunk=1024,k=7,bits=2,decay=0.5", 1024, 7, 0.5f},
                                   {"chunk=4096,k=4096", 4096, 4096, 0.95f},
                                   {"chunk=4096,k=1000", 4096, 1000, 0.95f}};
    static const uint64_t sizes[] = {0, 1, 2, 15, 63, 64, 65, 1000, 4095, 4096, 4097, 20011};
    for (int s = 0; s < 6; s++)
        for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
            for (int kind = 0; kind < KINDS; kind++)
                for (int f = 0; f < 3; f++)
                    one_case(&shapes[s], sizes[z], kind, f, levels[(z + (size_t)(kind + f)) % 3], 0);
    for (int l = 0; l < 3; l++)
        for (int kind = 0; kind < KINDS; kind++) one_case(&shapes[0], 70001, kind, 2, levels[l], 1);
}

TEST(bytes_of_a_chunk) {
    static const struct {
        uint64_t count, body;
    } want[] = {{0, 0},      {1, 4 + 2},  {64, 4 + 2},     {65, 4 + 4},
                {4095, 116}, {4096, 116}, {4097, 116 + 6}, {1u << 20, 256 * 116}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        opened_codec r = codec_open(codec_named("chunktopk"), "", want[i].count, NULL, 0);
        float *g = calloc(want[i].count + 1, 4);
        assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
        assert_int_equal(r.used, ESP_PAYLOAD_HEADER + want[i].body);
        free(g);
        codec_close(&r);
    }
}

/* The bytes of a chunk are computed by hand: the 3 largest of 16 elements are 5, 3 and 1. 5 and 3 are at least their
 * mean, so they are sent as "high" with mean 4, and 1 as "low". */
TEST(known_bytes) {
    const float in[16] = {0, 0.5f, -5, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0.5f, -1};
    /* A code has 6 bits: the index, + 16 if negative, + 32 if high. Indices 2, 9 and 15 give 0x32, 0x29, 0x1F. */
    const unsigned char want[7] = {0x80, 0x3F, 0x80, 0x40, 0x72, 0xFA, 0x01};
    for (int l = 0; l < 3; l++) {
        opened_codec r = codec_open(codec_named("chunktopk"), "chunk=16,k=3", 16, levels[l], 0);
        assert_int_equal(codec_compress(&r, in, 1), ESP_OK);
        assert_int_equal(r.used, ESP_PAYLOAD_HEADER + 7);
        assert_memory_equal(esp_payload_body(&r.payload), want, 7);
        for (int i = 0; i < 16; i++) assert_true(r.residual[i] == (i == 2 ? -1 : i == 9 ? -1 : i == 15 ? 0 : in[i]));
        codec_close(&r);
    }
}

/* The codec multiplies the residual by 0.95 in each step if a rank compresses its own gradient. It does not if the rank
 * compresses a sum over several ranks. */
TEST(decay) {
    for (int own = 0; own < 2; own++) {
        opened_codec r = codec_open(codec_named("chunktopk"), "chunk=16,k=1", 16, NULL, 0);
        float g[16] = {1, 0.125f}, expect = 0.125f;
        r.args.flags = own ? ESP_ARG_OWN_MEMORY : 0;
        for (int step = 0; step < 20; step++) {
            assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
            g[1] = 0;
            if (own && step) expect *= 0.95f;
            assert_true(r.residual[1] == expect);
        }
        codec_close(&r);
    }
}

/* Magnitudes beyond bf16's range are clipped, and the difference remains in the residual. */
TEST(ends_of_f32) {
    static const float tops[] = {FLT_MAX, 0x1.fffffcp127f, FLT_MIN, 0x1p-149f * 3};
    for (int t = 0; t < 4; t++) {
        opened_codec r = codec_open(codec_named("chunktopk"), "", 4096, NULL, 0);
        float g[4096], out[4096];
        for (int i = 0; i < 4096; i++) g[i] = i % 64 == 5 ? (i % 128 > 64 ? -tops[t] : tops[t]) : 0;
        assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
        assert_int_equal(codec_header(&r).flags, 0);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
        for (int i = 0; i < 4096; i++) {
            assert_true(isfinite(out[i]) && isfinite(r.residual[i]));
            assert_true((double)out[i] + (double)r.residual[i] == (double)g[i]);
            assert_true(g[i] == 0 || fabsf(out[i]) >= 0.99f * tops[t] || tops[t] < FLT_MIN);
        }
        codec_close(&r);
    }
}

TEST(not_finite) {
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    static const uint64_t places[] = {0, 4095, 4096, 69999};
    for (int b = 0; b < 4; b++)
        for (int p = 0; p < 4; p++)
            for (int k = 0; k < 6; k++) {
                opened_codec r = codec_open(codec_named("chunktopk"), "", 70000, levels[(b + p) % 3], k & 1);
                float *g = calloc(70000, 4), *out = calloc(70000, 4);
                for (int i = 0; i < 70000; i++) g[i] = codec_uniform();
                g[places[p]] = bad[b];
                for (int i = 0; i < 70000; i++) r.residual[i] = 0.5f;
                r.args.flags = k >> 1 == 2 ? ESP_ARG_OWN_MEMORY : 0;
                assert_int_equal(codec_compress(&r, g, k >> 1 > 0), ESP_OK);
                assert_true(codec_header(&r).flags == ESP_PAYLOAD_NONFINITE && r.used == ESP_PAYLOAD_HEADER);
                for (int i = 0; i < 70000; i++) assert_true(r.residual[i] == 0.5f);
                assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SUM), ESP_OK);
                for (int i = 0; i < 70000; i++) assert_true(isnan(out[i]));
                free(g), free(out);
                codec_close(&r);
            }
}

TEST(corrupt) {
    enum { N = 4096 + 1000, LAST = 116 };
    float g[N], out[N];
    unsigned char good[256];
    for (int i = 0; i < N; i++) g[i] = codec_uniform(), out[i] = 77;
    opened_codec r = codec_open(codec_named("chunktopk"), "", N, NULL, 0);
    unsigned char *body = (unsigned char *)esp_payload_body(&r.payload);
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    assert_int_equal(r.used, ESP_PAYLOAD_HEADER + 116 + 4 + 28);
    memcpy(good, body, r.used - ESP_PAYLOAD_HEADER);
#define DAMAGE(...)                                                                                                    \
    do {                                                                                                               \
        memcpy(body, good, r.used - ESP_PAYLOAD_HEADER);                                                               \
        __VA_ARGS__;                                                                                                   \
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_E_CORRUPT);                              \
    } while (0)
    DAMAGE(body[0] = 0x80, body[1] = 0x7F); /* the mean of "low" is Inf */
    DAMAGE(body[2] = 0xC0, body[3] = 0x7F); /* the mean of "high" is NaN */
    DAMAGE(body[3] |= 0x80);                /* the mean of "high" is negative */
    DAMAGE(memset(body + 4, 0, 8));         /* the same index twice */
    DAMAGE(memset(body + 4, 0xFF, 2));
    DAMAGE(memset(body + LAST + 4 + 26, 0xFF, 2)); /* an index beyond the last element */
    DAMAGE(((unsigned char *)r.payload.data.ptr)[offsetof(esp_payload_header, aux)] = 1);
    ((unsigned char *)r.payload.data.ptr)[offsetof(esp_payload_header, aux)] = 0;
    for (int i = 0; i < N; i++) assert_true(out[i] == 77);
    memcpy(body, good, r.used - ESP_PAYLOAD_HEADER);
    assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
    codec_close(&r);
    r = codec_open(codec_named("chunktopk"), "chunk=16,k=3", 16, NULL, 0);
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    ((unsigned char *)esp_payload_body(&r.payload))[6] |= 4;
    assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_E_CORRUPT);
    codec_close(&r);
}

TEST(parameters) {
    static const struct {
        const char *params, *says;
    } bad[] = {{"chunk=100", "chunk=100 is not allowed: it must be a power of two from 16 to 4096"},
               {"chunk=8192", "a power of two from 16 to 4096"},
               {"chunk=8,k=1", "a power of two from 16 to 4096"},
               {"chunk=32", "k=64 is not allowed: a chunk has fewer elements"},
               {"k=0", "from 1 to the chunk's size"},
               {"k=5000", "from 1 to the chunk's size"},
               {"k=1.5", "a whole number from 1 to the chunk's size"},
               {"bits=3", "bits=3 is not allowed: it must be 2"},
               {"bits=1", "it must be 2"},
               {"decay=1.5", "from 0 to 1"},
               {"decay=-1", "from 0 to 1"},
               {"ratio=0.1", "unknown parameter 'ratio'"}};
    const esp_codec *c = codec_named("chunktopk");
    void *self;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(c->open(&codec_host, bad[i].params, &self), ESP_E_ARG);
        if (!strstr(codec_message, bad[i].says)) fail_msg("%s: %s", bad[i].params, codec_message);
    }
}
