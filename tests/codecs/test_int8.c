/* test_int8.c checks codec int8 against a plain reference: scales per block and a scale that all ranks share, rounding,
 * zeros, numbers at the ends of f32's range, sums at the ends of 16 bits, NaN, and corrupt payloads. All instruction
 * sets must give the same bytes. */
#include "tests/lib/test.h"
#include <float.h>
#include "tests/codecs/one_codec.h"

static const char *const levels[] = {"scalar", "avx2", "avx512"};

/* ---- reference --------------------------------------------------------------------------------------------------- */
static float ref_unit(const float *x, uint64_t n) {
    float top = 0;
    for (uint64_t i = 0; i < n; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return top < 0x1p-100f ? 0 : (float)((double)top / 127);
}
/* Checks that a number is rounded to the nearest multiple of `unit`, and that the residual is exact. */
static void ref_check(float x, float unit, int level, float rest, int feedback) {
    const double exact = unit > 0 ? (double)x / (double)unit : 0;
    assert_in_range(level + 127, 0, 254);
    if (!(fabs(exact - level) <= 0.5 + 4e-5)) fail_msg("%a is %g units, but has level %d", (double)x, exact, level);
    if (fabs(fabs(exact - rint(exact)) - 0.5) > 4e-5) assert_int_equal(level, (int)rint(exact));
    const float decoded = unit * (float)level;
    if (feedback) assert_true((double)decoded + (double)rest == (double)x);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */
static void block_case(uint64_t n, uint64_t block, int feedback, const char *simd, int threads) {
    char params[32];
    snprintf(params, sizeof params, "block=%d", (int)block);
    opened_codec r = codec_open(codec_named("int8"), params, n, simd, threads);
    const uint64_t blocks = (n + block - 1) / block;
    float *g = malloc(n * 4 + 4), *phi = malloc(n * 4 + 4), *out = malloc(n * 4 + 4);
    r.args.beta = 0.9f, r.args.gamma = 0.7f;
    for (int step = 0; step < 2; step++) {
        for (uint64_t i = 0; i < n; i++) {
            g[i] = codec_uniform() * (i / 77 % 3 ? 1.0f : 1e-6f);
            const float e = 0.9f * r.residual[i], x = 0.7f * g[i];
            phi[i] = feedback ? e + x : g[i];
        }
        assert_int_equal(codec_compress(&r, g, feedback), ESP_OK);
        const esp_payload_header h = codec_header(&r);
        assert_true(h.count == n && h.flags == 0 && h.body_bytes == 4 * blocks + n && h.aux == 0);
        const unsigned char *body = (const unsigned char *)esp_payload_body(&r.payload);
        for (uint64_t b = 0; b < blocks; b++) {
            const uint64_t at = b * block, m = n - at < block ? n - at : block;
            float unit;
            memcpy(&unit, body + 4 * b, 4);
            assert_true(unit == ref_unit(phi + at, m));
            for (uint64_t i = at; i < at + m; i++)
                ref_check(phi[i], unit, (int8_t)body[4 * blocks + i], r.residual[i], feedback);
        }
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
        for (uint64_t i = 0; i < n; i++) {
            float unit;
            memcpy(&unit, body + 4 * (i / block), 4);
            assert_true(out[i] == unit * (float)(int8_t)body[4 * blocks + i]);
        }
    }
    free(g), free(phi), free(out);
    codec_close(&r);
}
TEST(blocks_against_reference) {
    static const uint64_t sizes[] = {0, 1, 2, 31, 32, 33, 255, 256, 257, 1000, 1025, 70001}, blocks[] = {32, 256, 1024};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int b = 0; b < 3; b++)
            for (int k = 0; k < 12; k++) block_case(sizes[z], blocks[b], k & 1, levels[k / 4], k >> 1 & 1);
}

TEST(known_bytes) {
    const float in[12] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127, 126.5f, -0.0f, 0.25f, -126.75f, 3};
    const int8_t want[12] = {127, 0, 2, 2, 0, -2, -127, 126, 0, 0, -127, 3};
    const float keeps[12] = {0, 0.5f, -0.5f, 0.5f, -0.5f, 0.5f, 0, 0.5f, 0, 0.25f, 0.25f, 0};
    float zeros[40] = {0}, same[40];
    for (int l = 0; l < 3; l++) {
        opened_codec r = codec_open(codec_named("int8"), "", 12, levels[l], 0);
        assert_int_equal(codec_compress(&r, in, 1), ESP_OK);
        const unsigned char *body = (const unsigned char *)esp_payload_body(&r.payload);
        float unit;
        memcpy(&unit, body, 4);
        assert_true(unit == 1.0f);
        assert_memory_equal(body + 4, want, 12);
        for (int i = 0; i < 12; i++) assert_true(r.residual[i] == keeps[i]);
        codec_close(&r);
        r = codec_open(codec_named("int8"), "block=32", 40, levels[l], 0);
        assert_int_equal(codec_compress(&r, zeros, 1), ESP_OK);
        body = (const unsigned char *)esp_payload_body(&r.payload);
        for (int i = 0; i < 48; i++) assert_int_equal(body[i], 0);
        for (int i = 0; i < 40; i++) same[i] = i < 32 ? -0.3f : 7e-5f;
        assert_int_equal(codec_compress(&r, same, 1), ESP_OK);
        body = (const unsigned char *)esp_payload_body(&r.payload);
        for (int i = 0; i < 40; i++) assert_int_equal((int8_t)body[8 + i], i < 32 ? -127 : 127);
        codec_close(&r);
    }
}

TEST(ends_of_f32) {
    static const float tops[] = {FLT_MAX,   0x1.fffffcp127f,  0x1p127f, 0x1p-99f,     0x1.000002p-100f,
                                 0x1p-100f, 0x1.fffffep-101f, FLT_MIN,  0x1p-149f * 5};
    for (size_t t = 0; t < sizeof tops / sizeof *tops; t++) {
        opened_codec r = codec_open(codec_named("int8"), "", 300, NULL, 0);
        float g[300], out[300];
        for (int i = 0; i < 300; i++) g[i] = tops[t] * (i % 256 == 7 ? -1.0f : codec_uniform());
        assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
        assert_int_equal(codec_header(&r).flags, 0);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
        for (int i = 0; i < 300; i++) {
            assert_true(isfinite(out[i]) && isfinite(r.residual[i]));
            assert_true((double)out[i] + (double)r.residual[i] == (double)g[i]);
            if (tops[t] >= 0x1p-99f) assert_true(fabsf(r.residual[i]) <= tops[t] / 253);
        }
        codec_close(&r);
    }
}

/* The largest number below unit / 2 must be rounded to 0. `unit` is a power of two here, and the difference to unit / 2
 * needs one bit more than f32 has. */
TEST(half_a_unit) {
    opened_codec r = codec_open(codec_named("int8"), "", 3, NULL, 0);
    for (int k = -90; k <= 120; k++) {
        float g[3] = {ldexpf(127, k), nextafterf(ldexpf(0.5f, k), 0), nextafterf(ldexpf(-0.5f, k), 0)}, out[3];
        memset(r.residual, 0, sizeof g);
        assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
        for (int i = 0; i < 3; i++) assert_true((double)out[i] + (double)r.residual[i] == (double)g[i]);
    }
    codec_close(&r);
}

TEST(blocks_not_finite) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++)
        for (int k = 0; k < 4; k++) {
            opened_codec r = codec_open(codec_named("int8"), "block=32", 100000, NULL, k >> 1);
            float *g = calloc(100000, 4), *out = calloc(100000, 4);
            r.residual[3] = 2.5f, g[70001] = bad[b];
            assert_int_equal(codec_compress(&r, g, k & 1), ESP_OK);
            assert_int_equal(codec_header(&r).flags, ESP_PAYLOAD_NONFINITE);
            assert_int_equal(r.used, ESP_PAYLOAD_HEADER);
            assert_true(r.residual[3] == 2.5f && r.residual[4] == 0);
            assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SUM), ESP_OK);
            for (int i = 0; i < 100000; i++) assert_true(isnan(out[i]));
            free(g), free(out);
            codec_close(&r);
        }
}

/* ---- a shared range ---------------------------------------------------------------------------------------------- */
typedef struct team {
    const esp_codec *codec;
    void *self;
    uint64_t n, bytes[2];
    uint32_t ranks, sums;
    esp_dtype dtype;
    float **g, **e;
    esp_payload *payload, range;
    uint64_t used;
} team;

static esp_tensor team_like(uint64_t n) {
    const esp_tensor t = {sizeof t, ESP_F32, 4711, n, {NULL, n * 4, {ESP_CPU, 0}}, 0, 0};
    return t;
}
static team team_open(uint64_t n, uint32_t ranks, uint32_t sums, const char *simd, int threads) {
    team t = {.n = n, .ranks = ranks, .sums = sums};
    const esp_tensor like = team_like(n);
    if (simd)
        setenv("ESPRESSO_SIMD", simd, 1);
    else
        unsetenv("ESPRESSO_SIMD");
    codec_host.parallel_for = threads ? codec_parallel : NULL;
    t.codec = codec_named("int8");
    assert_int_equal(t.codec->open(&codec_host, "shared=1", &t.self), ESP_OK);
    for (uint32_t r = 0; r < 2; r++) {
        esp_bound b = {.struct_size = sizeof b};
        assert_int_equal(t.codec->bound(t.self, &like, r, r ? sums : ranks, &b), ESP_OK);
        assert_true(b.scratch_bytes == 0 && b.state_bytes == 0);
        t.bytes[r] = b.payload_bytes;
        t.dtype = b.dtype;
    }
    t.g = calloc(ranks, sizeof *t.g), t.e = calloc(ranks, sizeof *t.e), t.payload = calloc(ranks, sizeof *t.payload);
    for (uint32_t r = 0; r < ranks; r++) {
        t.g[r] = calloc(n + 1, 4), t.e[r] = calloc(n + 1, 4);
        t.payload[r].data = (esp_buf){malloc(t.bytes[1]), t.bytes[1], {ESP_CPU, 0}};
    }
    t.range.data = (esp_buf){malloc(t.bytes[0]), t.bytes[0], {ESP_CPU, 0}};
    return t;
}
static void team_close(team *t) {
    t->codec->close(t->self);
    for (uint32_t r = 0; r < t->ranks; r++) free(t->g[r]), free(t->e[r]), free(t->payload[r].data.ptr);
    free(t->g), free(t->e), free(t->payload), free(t->range.data.ptr);
}
static esp_status team_call(team *t, uint32_t rank, uint32_t round, esp_payload *p, int feedback) {
    esp_tensor x = team_like(t->n), *one = &x;
    const esp_buf residual = {t->e[rank], t->n * 4, {ESP_CPU, 0}};
    const uint64_t offset = 0;
    esp_codec_args a = {.struct_size = sizeof a, .round = round, .n_reduced = round ? t->sums : t->ranks};
    x.data.ptr = t->g[rank];
    a.n_tensors = a.n_payloads = 1;
    a.beta = a.gamma = a.scale = 1;
    a.residual = feedback ? &residual : NULL;
    a.tensor = &one, a.offset = &offset, a.payload = p;
    a.reduced = round ? &t->range : NULL;
    p->used = &t->used;
    return t->codec->compress(t->self, &a);
}
static void team_compress(team *t, int feedback) {
    float top = -1;
    uint16_t flags = 0;
    for (uint32_t r = 0; r < t->ranks; r++) {
        float x;
        assert_int_equal(team_call(t, r, 0, &t->range, feedback), ESP_OK);
        esp_payload_header h;
        memcpy(&h, t->range.data.ptr, sizeof h);
        assert_int_equal(h.body_bytes, t->n ? 4 : 0);
        assert_true(t->used == ESP_PAYLOAD_HEADER + h.body_bytes && t->used <= t->bytes[0]);
        flags |= h.flags;
        if (!t->n) continue;
        memcpy(&x, esp_payload_body(&t->range), 4);
        top = isnan(x) || isnan(top) ? NAN : x > top ? x : top;
    }
    if (t->n) memcpy(esp_payload_body(&t->range), &top, 4);
    memcpy((unsigned char *)t->range.data.ptr + offsetof(esp_payload_header, flags), &flags, 2);
    for (uint32_t r = 0; r < t->ranks; r++) {
        assert_int_equal(team_call(t, r, 1, &t->payload[r], feedback), ESP_OK);
        assert_true(t->used <= t->bytes[1]);
        t->payload[r].data.bytes = t->used;
    }
}
static int64_t team_level(const team *t, const esp_payload *p, uint64_t i) {
    const unsigned char *body = (const unsigned char *)esp_payload_body(p);
    int16_t w;
    int32_t d;
    if (t->dtype == ESP_I8) return (int8_t)body[i];
    memcpy(&w, body + 2 * i, sizeof w * (t->dtype == ESP_I16));
    if (t->dtype == ESP_I16) return w;
    memcpy(&d, body + 4 * i, sizeof d);
    return d;
}
/* Sums payloads as a collective does, in their integer type, which must not overflow. */
static void team_sum(team *t, esp_payload *into) {
    const int64_t most = t->dtype == ESP_I8 ? INT8_MAX : t->dtype == ESP_I16 ? INT16_MAX : INT32_MAX;
    for (uint64_t i = 0; i < t->n; i++) {
        int64_t sum = 0;
        for (uint32_t r = 0; r < t->ranks; r++) {
            sum += team_level(t, &t->payload[r], i);
            assert_true(sum <= most && sum >= -most - 1);
        }
        unsigned char *to = (unsigned char *)esp_payload_body(into);
        const int16_t w = (int16_t)sum;
        const int32_t d = (int32_t)sum;
        if (t->dtype == ESP_I8) to[i] = (unsigned char)sum;
        if (t->dtype == ESP_I16) memcpy(to + 2 * i, &w, 2);
        if (t->dtype == ESP_I32) memcpy(to + 4 * i, &d, 4);
    }
}
static esp_status team_decode(team *t, esp_payload *p, uint32_t n, float *out, uint32_t mode, float scale) {
    esp_tensor x = team_like(t->n), *one = &x;
    const uint64_t offset = 0;
    esp_codec_args a = {.struct_size = sizeof a, .mode = mode, .n_reduced = t->sums, .n_payloads = n, .round = 1};
    x.data.ptr = out;
    a.n_tensors = 1;
    a.scale = scale;
    a.tensor = &one, a.offset = &offset, a.payload = p;
    a.reduced = &t->range;
    return t->codec->decompress(t->self, &a);
}

static void team_case(uint64_t n, uint32_t ranks, uint32_t sums, const char *simd, int threads) {
    team t = team_open(n, ranks, sums, simd, threads);
    float *phi = malloc(ranks * n * 4 + 4), *out = malloc(n * 4 + 4);
    for (int step = 0; step < 2; step++) {
        for (uint32_t r = 0; r < ranks; r++)
            for (uint64_t i = 0; i < n; i++) {
                t.g[r][i] = codec_uniform() * (r == 1 ? 3.0f : 0.5f);
                phi[r * n + i] = t.g[r][i] + t.e[r][i];
            }
        team_compress(&t, 1);
        const float unit = ref_unit(phi, ranks * n);
        for (uint32_t r = 0; r < ranks; r++)
            for (uint64_t i = 0; i < n; i++)
                ref_check(phi[r * n + i], unit, (int)team_level(&t, &t.payload[r], i), t.e[r][i], 1);
        for (uint64_t i = 0; i < n; i++) out[i] = 1;
        double *want = calloc(n + 1, sizeof *want);
        for (uint32_t r = 0; r < ranks; r++)
            for (uint64_t i = 0; i < n; i++) want[i] += (double)unit * (double)team_level(&t, &t.payload[r], i);
        if (sums > 1) {
            esp_payload all = {{malloc(t.bytes[1]), t.payload[0].data.bytes, {ESP_CPU, 0}}, NULL};
            memcpy(all.data.ptr, t.payload[0].data.ptr, all.data.bytes);
            team_sum(&t, &all);
            assert_int_equal(team_decode(&t, &all, 1, out, ESP_OUT_SUM, 0.5f), ESP_OK);
            free(all.data.ptr);
        } else {
            assert_int_equal(team_decode(&t, t.payload, ranks, out, ESP_OUT_SUM, 0.5f), ESP_OK);
        }
        for (uint64_t i = 0; i < n; i++)
            assert_true(fabs((double)out[i] - 1 - want[i] / 2) <= 1e-6 * (1 + fabs(want[i])));
        free(want);
    }
    free(phi), free(out);
    team_close(&t);
}
TEST(shared_against_reference) {
    static const uint64_t sizes[] = {0, 1, 2, 31, 33, 1000, 1025, 70001};
    static const uint32_t ranks[] = {1, 2, 3, 5, 8};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int r = 0; r < 5; r++)
            for (int k = 0; k < 4; k++)
                team_case(sizes[z], ranks[r], k & 1 ? ranks[r] : 1, levels[(z + (size_t)r) % 3], k >> 1);
}

/* Every rank has +127 or -127, so that the sums reach the ends of 16 bits, and one more rank needs 32. */
TEST(sums_do_not_overflow) {
    static const struct {
        uint32_t ranks;
        esp_dtype dtype;
    } cases[] = {{1, ESP_I8}, {2, ESP_I16}, {8, ESP_I16}, {258, ESP_I16}, {259, ESP_I32}, {1000, ESP_I32}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        enum { N = 70 };
        const uint32_t ranks = cases[c].ranks;
        team t = team_open(N, ranks, ranks, NULL, 0);
        float out[N];
        for (uint32_t r = 0; r < ranks; r++)
            for (int i = 0; i < N; i++) t.g[r][i] = i % 2 ? -254.0f : 254.0f;
        assert_int_equal(t.dtype, cases[c].dtype);
        team_compress(&t, 1);
        for (uint32_t r = 0; r < ranks; r++)
            for (uint64_t i = 0; i < N; i++) assert_int_equal(team_level(&t, &t.payload[r], i), i % 2 ? -127 : 127);
        esp_payload all = {{malloc(t.bytes[1]), t.payload[0].data.bytes, {ESP_CPU, 0}}, NULL};
        memcpy(all.data.ptr, t.payload[0].data.ptr, all.data.bytes);
        team_sum(&t, &all);
        assert_int_equal(team_decode(&t, &all, 1, out, ESP_OUT_SET, 1), ESP_OK);
        for (int i = 0; i < N; i++) assert_true(out[i] == (i % 2 ? -254.0f : 254.0f) * (float)ranks);
        free(all.data.ptr);
        team_close(&t);
    }
}

/* For any number of ranks, the sum of 127 from each fits the integer type that bound() returns. */
TEST(widths) {
    team t = team_open(100, 2, 2, NULL, 0);
    const esp_tensor like = team_like(100);
    for (uint32_t n = 1; n < 2000; n++) {
        esp_bound b = {.struct_size = sizeof b};
        assert_int_equal(t.codec->bound(t.self, &like, 1, n, &b), ESP_OK);
        const uint64_t bits = 8 * esp_dtype_bytes(b.dtype);
        assert_true(127ull * n <= (1ull << (bits - 1)) - 1);
        if (n > 1) assert_true(b.dtype != ESP_I8 && (b.dtype == ESP_I16 || 127ull * n > INT16_MAX));
        assert_true(b.payload_bytes == esp_payload_capacity(100 * bits / 8));
    }
    team_close(&t);
}

/* If one rank has NaN, the range is NaN for all, all payloads are marked as not finite, and no residual changes. */
TEST(shared_not_finite) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++)
        for (uint32_t sums = 1; sums <= 3; sums += 2) {
            team t = team_open(1000, 3, sums, NULL, 0);
            float out[1000], x;
            for (uint32_t r = 0; r < 3; r++)
                for (int i = 0; i < 1000; i++) t.g[r][i] = 1, t.e[r][i] = 0.25f;
            t.g[1][999] = bad[b];
            assert_int_equal(team_call(&t, 1, 0, &t.range, 1), ESP_OK);
            memcpy(&x, esp_payload_body(&t.range), 4);
            assert_true(isnan(x));
            team_compress(&t, 1);
            for (uint32_t r = 0; r < 3; r++) {
                esp_payload_header h;
                memcpy(&h, t.payload[r].data.ptr, sizeof h);
                assert_int_equal(h.flags, ESP_PAYLOAD_NONFINITE);
                for (uint64_t i = 0; i < 1000; i++)
                    assert_true(t.e[r][i] == 0.25f && team_level(&t, &t.payload[r], i) == 0);
            }
            assert_int_equal(team_decode(&t, t.payload, sums > 1 ? 1 : 3, out, ESP_OUT_SUM, 1), ESP_OK);
            for (int i = 0; i < 1000; i++) assert_true(isnan(out[i]));
            team_close(&t);
        }
}

TEST(corrupt) {
    team t = team_open(100, 1, 1, NULL, 0);
    float out[100];
    for (int i = 0; i < 100; i++) t.g[0][i] = (float)i, out[i] = 77;
    team_compress(&t, 0);
    unsigned char *range = (unsigned char *)t.range.data.ptr, *p = (unsigned char *)t.payload[0].data.ptr;
    range[ESP_PAYLOAD_HEADER] ^= 1;
    assert_int_equal(team_decode(&t, t.payload, 1, out, ESP_OUT_SET, 1), ESP_E_CORRUPT);
    range[ESP_PAYLOAD_HEADER] ^= 1;
    range[offsetof(esp_payload_header, body_bytes)] = 3;
    assert_int_equal(team_decode(&t, t.payload, 1, out, ESP_OUT_SET, 1), ESP_E_CORRUPT);
    assert_int_equal(team_call(&t, 0, 1, &t.payload[0], 0), ESP_E_CORRUPT);
    range[offsetof(esp_payload_header, body_bytes)] = 4;
    t.sums = 2;
    assert_int_equal(team_decode(&t, t.payload, 1, out, ESP_OUT_SET, 1), ESP_E_CORRUPT);
    t.sums = 1;
    p[offsetof(esp_payload_header, aux)] ^= 1;
    assert_int_equal(team_decode(&t, t.payload, 1, out, ESP_OUT_SET, 1), ESP_E_CORRUPT);
    p[offsetof(esp_payload_header, aux)] ^= 1;
    for (int i = 0; i < 100; i++) assert_true(out[i] == 77);
    assert_int_equal(team_decode(&t, t.payload, 1, out, ESP_OUT_SET, 1), ESP_OK);
    assert_true(out[99] == 99.0f / 127 * 127);
    team_close(&t);

    static const uint32_t units[] = {0x7F800000u, 0x7FC00000u, 0x80000000u, 0xBF800000u};
    opened_codec r = codec_open(codec_named("int8"), "", 300, NULL, 0);
    float g[300] = {1}, o[300];
    for (int u = 0; u < 4; u++) {
        assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
        memcpy((unsigned char *)esp_payload_body(&r.payload) + 4, &units[u], 4);
        for (int i = 0; i < 300; i++) o[i] = 77;
        assert_int_equal(codec_decompress(&r, NULL, 1, o, ESP_OUT_SET), ESP_E_CORRUPT);
        for (int i = 0; i < 300; i++) assert_true(o[i] == 77);
    }
    codec_close(&r);
}

TEST(parameters) {
    static const struct {
        const char *params, *says;
    } bad[] = {{"block=31", "must be a power of two from 32 to 1024"},
               {"block=48", "must be a power of two"},
               {"block=2048", "must be a power of two"},
               {"block=0", "block=0 is not allowed"},
               {"block=1.5", "a power of two from 32 to 1024"},
               {"shared=2", "it must be 0 or 1"},
               {"shared=1,block=256", "leave block= out"},
               {"range=1", "unknown parameter 'range'"}};
    static const char *const good[] = {"", "block=32", "block=1024", "shared=1", "shared=0,block=64"};
    const esp_codec *c = codec_named("int8");
    void *self;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(c->open(&codec_host, bad[i].params, &self), ESP_E_ARG);
        if (!strstr(codec_message, bad[i].says)) fail_msg("%s: %s", bad[i].params, codec_message);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        esp_traits t = {.struct_size = sizeof t, .caps = c->caps, .n_rounds = c->n_rounds, .rounds = c->rounds};
        assert_int_equal(c->open(&codec_host, good[i], &self), ESP_OK);
        assert_int_equal(c->traits(self, &t), ESP_OK);
        assert_int_equal(t.n_rounds, i == 3 ? 2 : 1);
        assert_int_equal((t.caps & ESP_CODEC_REDUCIBLE) != 0, i == 3);
        c->close(self);
    }
}

TEST(shared_model) {
    enum { N = 1 << 20 };
    team t = team_open(N, 1, 1, NULL, 0);
    const esp_tensor like = team_like(N);
    float *out = malloc(N * 4);
    double lost = 0, whole = 0;
    for (uint64_t i = 0; i < N; i++) {
        const double a = ((double)codec_random() + 1) / 4294967296.0, b = (double)codec_random() / 4294967296.0;
        t.g[0][i] = (float)(sqrt(-2 * log(a)) * cos(2 * 3.14159265358979 * b));
    }
    team_compress(&t, 0);
    assert_int_equal(team_decode(&t, t.payload, 1, out, ESP_OUT_SET, 1), ESP_OK);
    for (uint64_t i = 0; i < N; i++) {
        const double x = (double)t.g[0][i], d = (double)out[i] - x;
        lost += d * d, whole += x * x;
    }
    for (uint32_t n = 1; n <= 259; n += 129) {
        esp_codec_model m = {.struct_size = sizeof m};
        esp_bound b = {.struct_size = sizeof b};
        assert_int_equal(t.codec->model(t.self, &like, n, (esp_device){ESP_CPU, 0}, &m), ESP_OK);
        assert_true(m.flags & ESP_MODEL_LOSSY);
        assert_true(fabs(m.error / (lost / whole) - 1) < 0.2);
        assert_int_equal(t.codec->bound(t.self, &like, 1, n, &b), ESP_OK);
        assert_true(fabs(m.reduced[1].fixed + m.reduced[1].per_element * N - (double)b.payload_bytes) <= 32);
        assert_true(m.reduced[0].fixed == ESP_PAYLOAD_HEADER + 4 && m.sent.per_element == 1);
    }
    free(out);
    team_close(&t);
}
