/* test_powersgd.c runs the codecs of several ranks in one thread, sums their payloads, and compares the result with a
 * plain reference in double: matrices that are sent exactly, zeros, shapes, the initial factor Q, all instruction sets,
 * NaN, corrupt payloads, and lists. */
#include "tests/lib/test.h"
#include "tests/codecs/one_codec.h"

enum { RANKS_MAX = 4 };

typedef struct job {
    const esp_codec *codec;
    void *self;
    uint64_t m, n, bytes[2];
    int ranks, feedback;
    esp_tensor tensor[RANKS_MAX];
    esp_payload payload[RANKS_MAX][2], reduced[2];
    esp_buf state[RANKS_MAX], residual[RANKS_MAX], scratch;
    float *g[RANKS_MAX], *out[RANKS_MAX];
    uint64_t step, used[RANKS_MAX][2];
} job;

static void *fresh(uint64_t bytes) {
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    return memset(p, 0, (bytes + 127) / 64 * 64);
}

static job job_open(const char *params, uint64_t m, uint64_t n, int ranks, int feedback, const char *simd,
                    int threads) {
    job j;
    memset(&j, 0, sizeof j);
    if (simd)
        setenv("ESPRESSO_SIMD", simd, 1);
    else
        unsetenv("ESPRESSO_SIMD");
    codec_host.parallel_for = threads ? codec_parallel : NULL;
    j.codec = codec_named("powersgd");
    assert_int_equal(j.codec->open(&codec_host, params, &j.self), ESP_OK);
    j.m = m, j.n = n, j.ranks = ranks, j.feedback = feedback;
    uint64_t scratch = 0, state = 0;
    for (uint32_t r = 0; r < 2; r++) {
        esp_bound b = {.struct_size = sizeof b};
        esp_tensor like = {sizeof like, ESP_F32, 4711, m * n, {NULL, 0, {ESP_CPU, 0}}, m, n};
        assert_int_equal(j.codec->bound(j.self, &like, r, (uint32_t)ranks, &b), ESP_OK);
        j.bytes[r] = b.payload_bytes < ESP_PAYLOAD_HEADER ? ESP_PAYLOAD_HEADER : b.payload_bytes;
        if (b.scratch_bytes > scratch) scratch = b.scratch_bytes;
        if (!r) state = b.state_bytes;
        j.reduced[r] = (esp_payload){{fresh(j.bytes[r]), j.bytes[r], {ESP_CPU, 0}}, NULL};
    }
    j.scratch = (esp_buf){fresh(scratch), scratch, {ESP_CPU, 0}};
    for (int k = 0; k < ranks; k++) {
        j.g[k] = fresh(m * n * 4), j.out[k] = fresh(m * n * 4);
        j.tensor[k] = (esp_tensor){sizeof(esp_tensor), ESP_F32, 4711, m * n, {j.g[k], m * n * 4, {ESP_CPU, 0}}, m, n};
        j.state[k] = (esp_buf){fresh(state), state, {ESP_CPU, 0}};
        j.residual[k] = (esp_buf){fresh(m * n * 4), m * n * 4, {ESP_CPU, 0}};
        for (uint32_t r = 0; r < 2; r++)
            j.payload[k][r] = (esp_payload){{fresh(j.bytes[r]), j.bytes[r], {ESP_CPU, 0}}, NULL};
    }
    return j;
}
static void job_close(job *j) {
    j->codec->close(j->self);
    for (uint32_t r = 0; r < 2; r++) free(j->reduced[r].data.ptr);
    for (int k = 0; k < j->ranks; k++) {
        free(j->g[k]), free(j->out[k]), free(j->state[k].ptr), free(j->residual[k].ptr);
        for (uint32_t r = 0; r < 2; r++) free(j->payload[k][r].data.ptr);
    }
    free(j->scratch.ptr);
}

static esp_codec_args job_args(job *j, int k, uint32_t round, esp_tensor *const *t, const uint64_t *offset) {
    esp_codec_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.step = j->step, a.seed = 7, a.source = (uint32_t)k, a.round = round;
    a.n_reduced = (uint32_t)j->ranks, a.n_tensors = a.n_payloads = 1;
    a.beta = a.gamma = a.scale = 1;
    a.tensor = t, a.offset = offset;
    a.state = j->state[k].bytes ? &j->state[k] : NULL;
    a.scratch = j->scratch.bytes ? &j->scratch : NULL;
    if (j->feedback) a.residual = &j->residual[k];
    return a;
}

static esp_status job_round(job *j, uint32_t round) {
    const uint64_t offset = 0;
    for (int k = 0; k < j->ranks; k++) {
        esp_tensor *t = &j->tensor[k];
        esp_codec_args a = job_args(j, k, round, &t, &offset);
        a.payload = &j->payload[k][round];
        a.payload->used = &j->used[k][round];
        a.reduced = round ? &j->reduced[0] : NULL;
        esp_status s = j->codec->compress(j->self, &a);
        if (s != ESP_OK) return s;
        assert_true(j->used[k][round] <= j->bytes[round]);
    }
    esp_payload_header h, other;
    memcpy(j->reduced[round].data.ptr, j->payload[0][round].data.ptr, j->bytes[round]);
    memcpy(&h, j->reduced[round].data.ptr, sizeof h);
    float *sum = esp_payload_body(&j->reduced[round]);
    for (int k = 1; k < j->ranks; k++) {
        const float *x = esp_payload_body(&j->payload[k][round]);
        memcpy(&other, j->payload[k][round].data.ptr, sizeof other);
        assert_true(other.body_bytes == h.body_bytes);
        h.flags |= other.flags;
        for (uint64_t i = 0; i < h.body_bytes / 4; i++) sum[i] += x[i];
    }
    memcpy(j->reduced[round].data.ptr, &h, sizeof h);
    return ESP_OK;
}

static esp_status job_decode(job *j, int k, esp_payload *p, uint32_t mode, float scale, int state) {
    const uint64_t offset = 0;
    esp_tensor to = j->tensor[k], *t = &to;
    esp_codec_args a = job_args(j, k, 1, &t, &offset);
    to.data.ptr = j->out[k];
    a.mode = mode, a.scale = scale;
    a.payload = p, a.reduced = &j->reduced[0];
    if (!state) a.state = NULL;
    a.residual = NULL;
    return j->codec->decompress(j->self, &a);
}

static void job_step(job *j) {
    for (uint32_t r = 0; r < 2; r++) assert_int_equal(job_round(j, r), ESP_OK);
    for (int k = 0; k < j->ranks; k++) {
        assert_int_equal(job_decode(j, k, &j->reduced[1], ESP_OUT_SET, 1, 1), ESP_OK);
        assert_memory_equal(j->out[k], j->out[0], j->m * j->n * 4);
        assert_memory_equal(j->state[k].ptr, j->state[0].ptr, j->state[0].bytes);
    }
    j->step++;
}

static void matrix_fill(float *g, uint64_t m, uint64_t n, uint64_t rank, float noise) {
    float *a = malloc((m + n) * (rank + 1) * 4), *b = a + m * rank;
    for (uint64_t i = 0; i < (m + n) * rank; i++) a[i] = codec_uniform();
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t k = 0; k < n; k++) {
            float x = noise * codec_uniform();
            for (uint64_t r = 0; r < rank; r++) x += a[i * rank + r] * b[k * rank + r] / (float)(1 + 3 * r);
            g[i * n + k] = x;
        }
    free(a);
}

static double job_error(const job *j, const float *y) {
    double off = 0, whole = 0;
    for (uint64_t i = 0; i < j->m * j->n; i++) {
        double x = 0;
        for (int k = 0; k < j->ranks; k++) x += (double)j->g[k][i];
        off += (x - (double)y[i]) * (x - (double)y[i]);
        whole += x * x;
    }
    return whole > 0 ? off / whole : off;
}

/* ---- maths ------------------------------------------------------------------------------------------------------- */
/* The result must be the sum of all ranks' gradients, projected on the columns of factor P. The test computes that
 * by Gram-Schmidt in double precision. */
TEST(test_reference) {
    enum { M = 37, N = 1061, R = 5 };
    job j = job_open("rank=5", M, N, 3, 0, NULL, 1);
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < 3; k++) matrix_fill(j.g[k], M, N, 9, 0.1f);
        const float *q = (const float *)(const void *)((const char *)j.state[0].ptr + 64);
        double *want = calloc(M * R, sizeof *want);
        for (int i = 0; i < M && step; i++)
            for (int k = 0; k < R; k++)
                for (int r = 0; r < 3; r++)
                    for (int c = 0; c < N; c++) want[i * R + k] += (double)j.g[r][i * N + c] * (double)q[k * N + c];
        job_step(&j);
        const float *p = esp_payload_body(&j.reduced[0]);
        double basis[R][M], expected[N];
        for (int i = 0; i < M * R && step; i++) assert_true(fabs(want[i] - (double)p[i]) < 1e-4);
        for (int k = 0; k < R; k++) {
            for (int i = 0; i < M; i++) basis[k][i] = (double)p[i * R + k];
            for (int b = 0; b <= k; b++) {
                double d = 0;
                for (int i = 0; i < M; i++) d += basis[b][i] * basis[k][i];
                for (int i = 0; i < M && b < k; i++) basis[k][i] -= d * basis[b][i];
                for (int i = 0; i < M && b == k; i++) basis[k][i] /= sqrt(d);
            }
        }
        for (int i = 0; i < M; i++) {
            memset(expected, 0, sizeof expected);
            for (int k = 0; k < R; k++)
                for (int x = 0; x < M; x++)
                    for (int c = 0; c < N; c++)
                        for (int r = 0; r < 3; r++)
                            expected[c] += basis[k][i] * basis[k][x] * (double)j.g[r][x * N + c];
            for (int c = 0; c < N; c++) assert_true(fabs(expected[c] - (double)j.out[0][i * N + c]) < 2e-4);
        }
        free(want);
    }
    job_close(&j);
}

/* Matrices of rank at most r are sent exactly, also those of rank 1 with r = 4, where the columns of P depend on each
 * other. */
TEST(test_exact) {
    static const uint64_t shapes[][4] = {{40, 50, 4, 4}, {40, 50, 1, 4},     {300, 17, 3, 4}, {5, 1500, 2, 4},
                                         {3, 70, 3, 4},  {1100, 1030, 2, 2}, {1, 100, 1, 1},  {2, 9, 2, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char params[32];
        snprintf(params, sizeof params, "rank=%d", (int)shapes[i][3]);
        job j = job_open(params, shapes[i][0], shapes[i][1], 1, 1, NULL, 1);
        for (int step = 0; step < 3; step++) {
            matrix_fill(j.g[0], j.m, j.n, shapes[i][2], 0);
            memset(j.residual[0].ptr, 0, j.residual[0].bytes);
            job_step(&j);
            if (job_error(&j, j.out[0]) > 1e-10)
                fail_msg("%d x %d, rank %d: error %g", (int)j.m, (int)j.n, (int)shapes[i][2], job_error(&j, j.out[0]));
        }
        job_close(&j);
    }
}

static int all_finite(const float *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

TEST(test_zeros) {
    job j = job_open("rank=3", 33, 65, 2, 0, NULL, 0);
    static const float scales[] = {0, 1, 0, 1e-30f, 1e12f, 1e-42f, 1};
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        matrix_fill(j.g[0], 33, 65, 2, 0);
        for (uint64_t i = 0; i < 33 * 65; i++) j.g[0][i] *= scales[s], j.g[1][i] = s % 2 ? 0 : -0.0f;
        job_step(&j);
        assert_true(all_finite(j.out[0], 33 * 65) && all_finite(j.state[0].ptr, j.state[0].bytes / 4));
        if (scales[s] == 0)
            for (uint64_t i = 0; i < 33 * 65; i++) assert_true(j.out[0][i] == 0);
        if (scales[s] >= 1) assert_true(job_error(&j, j.out[0]) < 1e-9);
    }
    job_close(&j);
}

/* Tensors that are not matrices, or have few columns, are sent uncompressed. */
TEST(test_plain) {
    static const uint64_t shapes[][2] = {{100, 1}, {100, 4}, {7, 2}};
    for (int i = 0; i < 5; i++) {
        job j = job_open("rank=4", i < 3 ? shapes[i][0] : i == 3 ? 1000 : 1, i < 3 ? shapes[i][1] : 1, 2, 1, NULL, 0);
        esp_bound b = {.struct_size = sizeof b};
        if (i >= 3)
            for (int k = 0; k < 2; k++) j.tensor[k].rows = j.tensor[k].cols = 0;
        assert_int_equal(j.codec->bound(j.self, &j.tensor[0], 0, 2, &b), ESP_OK);
        assert_true(b.payload_bytes == 0 && b.state_bytes == 0);
        matrix_fill(j.g[0], j.m, j.n, 2, 1), matrix_fill(j.g[1], j.m, j.n, 2, 1);
        job_step(&j);
        for (uint64_t x = 0; x < j.m * j.n; x++) {
            assert_true(j.out[0][x] == j.g[0][x] + j.g[1][x]);
            assert_true(((float *)j.residual[0].ptr)[x] == 0);
        }
        job_close(&j);
    }
}

/* The decoded payload of a rank plus its residual equals its input in every step, also if beta and gamma are not 1. */
TEST(test_residual) {
    job j = job_open("rank=2", 45, 1039, 2, 1, NULL, 1);
    float *phi = malloc(45 * 1039 * 4);
    for (int step = 0; step < 4; step++) {
        for (int k = 0; k < 2; k++) matrix_fill(j.g[k], 45, 1039, 6, 0.3f);
        const float *e = j.residual[1].ptr;
        for (uint64_t i = 0; i < 45 * 1039; i++) phi[i] = e[i] + j.g[1][i];
        for (uint32_t r = 0; r < 2; r++) assert_int_equal(job_round(&j, r), ESP_OK);
        assert_int_equal(job_decode(&j, 1, &j.payload[1][1], ESP_OUT_SET, 1, 0), ESP_OK);
        for (uint64_t i = 0; i < 45 * 1039; i++)
            assert_true(fabsf(j.out[1][i] + e[i] - phi[i]) <= 4e-7f * (fabsf(phi[i]) + fabsf(e[i])));
        for (int k = 0; k < 2; k++) assert_int_equal(job_decode(&j, k, &j.reduced[1], ESP_OUT_SET, 1, 1), ESP_OK);
        j.step++;
    }
    float *twice = malloc(45 * 1039 * 4);
    memcpy(twice, j.out[0], 45 * 1039 * 4);
    assert_int_equal(job_decode(&j, 0, &j.reduced[1], ESP_OUT_SUM, 0.5f, 0), ESP_OK);
    for (uint64_t i = 0; i < 45 * 1039; i++) assert_true(j.out[0][i] == twice[i] + 0.5f * twice[i]);
    free(phi);
    free(twice);
    job_close(&j);
}

/* On a fixed matrix the error falls from step to step with start=warm, and does not with start=cold. */
TEST(test_start) {
    double first[2], last[2], least = 1;
    for (int cold = 0; cold < 2; cold++) {
        job j = job_open(cold ? "rank=2,start=cold" : "rank=2,start=warm", 60, 80, 2, 0, NULL, 0);
        codec_random_state = 99;
        matrix_fill(j.g[0], 60, 80, 12, 0.2f), matrix_fill(j.g[1], 60, 80, 12, 0.2f);
        assert_true((j.state[0].bytes == 0) == cold);
        double sum = 0;
        for (int step = 0; step < 40; step++) {
            float before[60 * 80];
            memcpy(before, j.out[0], sizeof before);
            job_step(&j);
            const double e = job_error(&j, j.out[0]);
            if (!step) first[cold] = e;
            if (step >= 30) sum += e / 10;
            if (cold) assert_true(memcmp(before, j.out[0], sizeof before));
            if (!cold && step && e > least * 1.0001) fail_msg("step %d: error %g, before %g", step, e, least);
            if (!cold) least = e;
        }
        last[cold] = sum;
        job_close(&j);
    }
    assert_true(last[0] < 0.9 * first[0]);
    assert_true(last[0] < 0.97 * last[1]);
    assert_true(last[1] > 0.8 * first[1]);
}

/* All instruction sets give the same bytes, with one thread and with several. */
TEST(test_bits) {
    static const char *const levels[] = {"scalar", "avx2", "avx512", NULL};
    static const uint64_t shapes[][3] = {{700, 1100, 5}, {33, 4099, 4}, {5000, 70, 3}, {64, 64, 7}, {3, 5, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        unsigned char *want[3] = {NULL, NULL, NULL};
        for (int way = 0; way < 8; way++) {
            char params[32];
            snprintf(params, sizeof params, "rank=%d", (int)shapes[i][2]);
            job j = job_open(params, shapes[i][0], shapes[i][1], 1, 1, levels[way / 2], way % 2);
            codec_random_state = 5 + i;
            matrix_fill(j.g[0], j.m, j.n, 3, 0.5f);
            job_step(&j);
            job_step(&j);
            const void *got[3] = {j.reduced[0].data.ptr, j.reduced[1].data.ptr, j.out[0]};
            const uint64_t bytes[3] = {j.used[0][0], j.used[0][1], j.m * j.n * 4};
            for (int k = 0; k < 3; k++) {
                if (!way) want[k] = memcpy(malloc(bytes[k]), got[k], bytes[k]);
                assert_memory_equal(want[k], got[k], bytes[k]);
            }
            job_close(&j);
        }
        for (int k = 0; k < 3; k++) free(want[k]);
    }
}

TEST(test_nonfinite) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++)
        for (int matrix = 0; matrix < 2; matrix++) {
            job j = job_open("rank=2", 20, 30, 2, 1, NULL, 0);
            for (int k = 0; k < 2 && !matrix; k++) j.tensor[k].rows = j.tensor[k].cols = 0;
            matrix_fill(j.g[0], 20, 30, 5, 1), matrix_fill(j.g[1], 20, 30, 5, 1);
            float before[600];
            if (matrix) {
                job_step(&j);
                memcpy(before, j.residual[0].ptr, sizeof before);
                j.g[1][599] = bad[b];
                for (uint32_t r = 0; r < 2; r++) assert_int_equal(job_round(&j, r), ESP_OK);
                assert_memory_equal(before, j.residual[0].ptr, sizeof before);
                assert_int_equal(job_decode(&j, 0, &j.reduced[1], ESP_OUT_SET, 1, 1), ESP_OK);
                for (int i = 0; i < 600; i++) assert_true(isnan(j.out[0][i]));
                j.g[1][599] = 0;
                job_step(&j);
                assert_true(all_finite(j.out[0], 600));
            } else {
                j.bytes[1] = ESP_PAYLOAD_HEADER + 2400;
                for (int k = 0; k < 2; k++) {
                    free(j.payload[k][1].data.ptr);
                    j.payload[k][1].data = (esp_buf){fresh(j.bytes[1]), j.bytes[1], {ESP_CPU, 0}};
                }
                free(j.reduced[1].data.ptr);
                j.reduced[1].data = (esp_buf){fresh(j.bytes[1]), j.bytes[1], {ESP_CPU, 0}};
                j.g[0][3] = bad[b];
                for (int i = 0; i < 600; i++) ((float *)j.residual[0].ptr)[i] = 0.5f;
                for (uint32_t r = 0; r < 2; r++) assert_int_equal(job_round(&j, r), ESP_OK);
                assert_true(((float *)j.residual[0].ptr)[7] == 0.5f && ((float *)j.residual[1].ptr)[7] == 0);
                assert_int_equal(job_decode(&j, 0, &j.reduced[1], ESP_OUT_SET, 1, 1), ESP_OK);
                for (int i = 0; i < 600; i++) assert_true(isnan(j.out[0][i]));
            }
            job_close(&j);
        }
}

/* Every header field of both payloads is checked, and nothing is written if one is invalid. */
TEST(test_corrupt) {
    job j = job_open("rank=2", 20, 30, 1, 0, NULL, 0);
    matrix_fill(j.g[0], 20, 30, 5, 1);
    job_step(&j);
    for (int which = 0; which < 2; which++)
        for (int field = 0; field < 7; field++) {
            esp_payload p = j.reduced[which];
            esp_payload_header h, good;
            memcpy(&good, p.data.ptr, sizeof good);
            h = good;
            if (field == 0) h.codec++;
            if (field == 1) h.wire_version++;
            if (field == 2) h.count++;
            if (field == 3) h.body_bytes += 4;
            if (field == 4) h.aux++;
            if (field == 5) h.flags |= ESP_PAYLOAD_EMPTY;
            if (field == 6) h.body_bytes = UINT64_MAX;
            memcpy(p.data.ptr, &h, sizeof h);
            j.out[0][5] = 42;
            if (which || field != 5)
                assert_int_equal(job_decode(&j, 0, &j.reduced[1], ESP_OUT_SET, 1, 1), ESP_E_CORRUPT);
            assert_true(j.out[0][5] == 42 || (!which && field == 5));
            memcpy(p.data.ptr, &good, sizeof good);
        }
    esp_payload small = j.reduced[1];
    small.data.bytes -= 32;
    assert_int_equal(job_decode(&j, 0, &small, ESP_OUT_SET, 1, 1), ESP_E_CORRUPT);
    for (uint32_t r = 0; r < 2; r++) {
        j.payload[0][r].data.bytes -= 32;
        assert_int_equal(job_round(&j, r), ESP_E_TOO_SMALL);
        j.payload[0][r].data.bytes += 32;
        assert_int_equal(job_round(&j, r), ESP_OK);
    }
    esp_payload none = {{NULL, 0, {ESP_CPU, 0}}, NULL}, kept = j.reduced[0];
    j.reduced[0] = none;
    assert_int_equal(job_decode(&j, 0, &j.reduced[1], ESP_OUT_SET, 1, 1), ESP_E_CORRUPT);
    j.reduced[0] = kept;
    job_close(&j);
}

/* A list of two tensors in one call gives the same as two calls. */
TEST(test_list) {
    job one = job_open("rank=2", 20, 300, 1, 1, NULL, 0), two = job_open("rank=2", 20, 300, 2, 1, NULL, 0);
    for (int k = 0; k < 2; k++) {
        codec_random_state = 17u + (unsigned)k;
        matrix_fill(two.g[k], 20, 300, 5, 1);
    }
    const uint64_t offset[2] = {0, 6000};
    for (uint32_t r = 0; r < 2; r++) {
        esp_tensor *t[2] = {&two.tensor[0], &two.tensor[1]};
        esp_payload p[2] = {two.payload[0][r], two.payload[1][r]}, reduced[2] = {two.payload[0][0], two.payload[1][0]};
        esp_buf state[2] = {two.state[0], two.state[1]}, residual[2] = {two.residual[0], two.residual[1]};
        esp_codec_args a = job_args(&two, 0, r, t, offset);
        a.n_tensors = 2, a.payload = p, a.state = state, a.residual = residual, a.reduced = r ? reduced : NULL;
        assert_int_equal(two.codec->compress(two.self, &a), ESP_OK);
        if (!r) continue;
        esp_tensor to[2] = {two.tensor[0], two.tensor[1]}, *out[2] = {&to[0], &to[1]};
        to[0].data.ptr = two.out[0], to[1].data.ptr = two.out[1];
        a.tensor = out, a.residual = NULL;
        assert_int_equal(two.codec->decompress(two.self, &a), ESP_OK);
    }
    for (int k = 0; k < 2; k++) {
        esp_tensor *t = &one.tensor[0];
        memcpy(one.g[0], two.g[k], 20 * 300 * 4);
        memset(one.state[0].ptr, 0, one.state[0].bytes);
        memset(one.residual[0].ptr, 0, one.residual[0].bytes);
        for (uint32_t r = 0; r < 2; r++) {
            esp_codec_args a = job_args(&one, 0, r, &t, &offset[k]);
            one.payload[0][r].used = &one.used[0][r];
            a.payload = &one.payload[0][r], a.reduced = r ? &one.payload[0][0] : NULL;
            assert_int_equal(one.codec->compress(one.self, &a), ESP_OK);
            assert_memory_equal(one.payload[0][r].data.ptr, two.payload[k][r].data.ptr, one.used[0][r]);
        }
        memcpy(one.reduced[0].data.ptr, one.payload[0][0].data.ptr, one.bytes[0]);
        assert_int_equal(job_decode(&one, 0, &one.payload[0][1], ESP_OUT_SET, 1, 1), ESP_OK);
        assert_memory_equal(one.out[0], two.out[k], 20 * 300 * 4);
        assert_memory_equal(one.state[0].ptr, two.state[k].ptr, one.state[0].bytes);
        assert_memory_equal(one.residual[0].ptr, two.residual[k].ptr, one.residual[0].bytes);
    }
    job_close(&one);
    job_close(&two);
}

/* The bytes of a matrix with one row are computed by hand. Hashes check both payloads of a larger matrix. */
TEST(test_golden) {
    job j = job_open("", 1, 3, 1, 0, NULL, 0);
    j.g[0][0] = 3, j.g[0][1] = -4, j.g[0][2] = 0.5f;
    job_step(&j);
    const float *p = esp_payload_body(&j.reduced[0]), *q = esp_payload_body(&j.reduced[1]), sign = p[0] < 0 ? -1 : 1;
    esp_payload_header h;
    memcpy(&h, j.reduced[1].data.ptr, sizeof h);
    assert_true(h.codec == esp_name_hash("powersgd") && h.wire_version == 1 && h.flags == 0 && h.count == 3);
    assert_true(h.body_bytes == 12 && h.aux == 1 && h.reserved[0] == 0);
    for (int i = 0; i < 3; i++) assert_true(q[i] == sign * j.g[0][i] && j.out[0][i] == j.g[0][i]);
    job_close(&j);
    j = job_open("rank=3", 33, 1047, 1, 1, NULL, 0);
    for (uint64_t i = 0; i < 33 * 1047; i++) j.g[0][i] = (float)((int)(i * 7919 % 1009) - 504) / 256;
    job_step(&j);
    job_step(&j);
    uint64_t hash[2];
    for (int r = 0; r < 2; r++) {
        const unsigned char *b = j.reduced[r].data.ptr;
        hash[r] = 14695981039346656037ull;
        for (uint64_t i = 0; i < j.used[0][r]; i++) hash[r] = (hash[r] ^ b[i]) * 1099511628211ull;
    }
    if (hash[0] != 0x2558a3e8de31b823ull || hash[1] != 0xd08cdf18e6f91ae0ull)
        fail_msg("payloads have the hashes 0x%llx and 0x%llx", (unsigned long long)hash[0],
                 (unsigned long long)hash[1]);
    job_close(&j);
}

TEST(test_params) {
    static const char *const bad[][2] = {
        {"rank=0", "rank=0"},          {"rank=65", "rank=65"}, {"rank=1.5", "rank=1.5"},
        {"start=hot", "warm or cold"}, {"k=3", "k"},           {"rank", "rank"}};
    const esp_codec *c = codec_named("powersgd");
    void *self;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(c->open(&codec_host, bad[i][0], &self), ESP_E_ARG);
        if (!strstr(codec_message, bad[i][1])) fail_msg("'%s' gave: %s", bad[i][0], codec_message);
    }
    assert_int_equal(c->open(&codec_host, "start=cold,rank=64", &self), ESP_OK);
    c->close(self);
}
