/* codec_size.c: checks what a codec states in bound() and model(): sizes of payloads, compression error, and whether
 * payloads can be summed without decoding them. */
#include "tools/check/check.h"
#include <math.h>

ESP__FN void check_bound_run(void *target) {
    const esp__codec *c = target;
    for (uint32_t r = 0; r < c->traits.n_rounds; r++) {
        esp_bound b;
        uint64_t last = 0;
        for (uint64_t n = 0; n < 1u << 22; n += 1 + n / 300, last = b.payload_bytes) {
            if (check_bound(c, n, 0, 0, r, 1, &b) != ESP_OK) check_fail("bound() failed for %llu elements", (check_u)n);
            if (b.payload_bytes < last)
                check_fail("bound() falls to %llu bytes at %llu elements: slots are sized by the largest part",
                           (check_u)b.payload_bytes, (check_u)n);
        }
        esp_tensor like = {sizeof like, ESP_F32, 7, 1000, {NULL, 0, {0, 0}}, 0, 0};
        memset(&b, 0x12, sizeof b); /* a caller built for an older version has a struct without state_bytes */
        b.struct_size = offsetof(esp_bound, state_bytes);
        if (c->table->bound(c->self, &like, r, 1, &b) != ESP_OK)
            check_fail("bound() failed for an older caller's struct");
        if (b.state_bytes != 0x1212121212121212ull)
            check_fail("bound() wrote behind struct_size: fill members only up to the caller's struct_size");
    }
}

static double check_bytes(const esp_payload_size *s, uint64_t count) {
    const double q = s->quantum > 0 ? s->quantum : 1;
    return s->fixed + q * ceil(s->per_element * (double)count / q);
}
static bool check_is_close(double stated, double is, double relative, double absolute) {
    return fabs(stated - is) <= relative * fabs(is) + absolute;
}

static void check_model_of(const esp__codec *c, uint64_t count, uint32_t n_reduced, esp_devkind kind,
                           esp_codec_model *m) {
    const esp_tensor like = {sizeof like, ESP_F32, 7, count, {NULL, 0, {0, 0}}, 0, 0};
    memset(m, 0, sizeof *m);
    m->struct_size = sizeof *m;
    if (c->table->model(c->self, &like, n_reduced, (esp_device){kind, 0}, m) != ESP_OK) check_fail("model() failed");
}

static void check_times(const esp_codec_model *m, esp_devkind kind) {
    if (m->n_times > ESP_MODEL_TIMES || (!m->n_times && kind == ESP_CPU))
        check_fail("n_times is %u: give 1 to %d", m->n_times, (int)ESP_MODEL_TIMES);
    for (uint32_t i = 0; i < m->n_times; i++)
        if (!(m->times[i].compress_ns > 0) || !(m->times[i].decompress_ns > 0) ||
            (i && (!(m->times[i].elements > m->times[i - 1].elements) ||
                   !(m->times[i].compress_ns > m->times[i - 1].compress_ns) ||
                   !(m->times[i].decompress_ns > m->times[i - 1].decompress_ns))))
            check_fail("times[%u]: times must be above 0, and rise with the elements", i);
}

/* Compares a payload's size with model() and bound(), in a late step: codecs may compress less in the first ones. If
 * sizes depend on the input, model() may state more than this input needs, but not less. */
static void check_model_sizes(const esp__codec *c, uint64_t n) {
    esp_codec_model m, two;
    esp_bound b;
    check_model_of(c, n, 1, ESP_CPU, &m);
    check_model_of(c, n, 2, ESP_CPU, &two);
    check_part p = check_part_make(c, n, 0, 1);
    const double stated = check_bytes(&m.sent, n);
    p.step = 1000;
    check_fill(p.g, n, IN_NORMAL);
    if (check_compress(&p) != ESP_OK) check_fail("compress failed");
    const uint64_t used = check_used(&p);
    check_fill(p.g, n, IN_ZERO);
    p.feedback = 0;
    if (check_compress(&p) != ESP_OK) check_fail("compress failed");
    const bool varies = check_used(&p) != used;
    if (!check_is_close(stated, (double)used, 0.02, ESP_PAYLOAD_HEADER) && !(varies && stated > (double)used))
        check_fail(
            "model() gives %.0f bytes for %llu elements, a payload has %llu: the planner would choose by a wrong "
            "size",
            stated, (check_u)n, (check_u)used);
    if (stated > 1.01 * (double)p.bound[0].payload_bytes + ESP_PAYLOAD_HEADER)
        check_fail(
            "model() gives %.0f bytes for %llu elements, bound() gives %llu: the planner would choose by a wrong size",
            stated, (check_u)n, (check_u)p.bound[0].payload_bytes);
    if (c->traits.caps & ESP_CODEC_REDUCIBLE) {
        if (check_bound(c, n, 0, 0, 0, 2, &b) != ESP_OK) check_fail("bound() failed for %llu elements", (check_u)n);
        if (!check_is_close(check_bytes(&two.reduced[0], n), (double)b.payload_bytes, 0.02, 96))
            check_fail("model() gives %.0f bytes for %llu elements whose bodies are reduced, bound() gives %llu: set "
                       "reduced[0]",
                       check_bytes(&two.reduced[0], n), (check_u)n, (check_u)b.payload_bytes);
    } else if (check_bytes(&two.reduced[0], n) > 0) {
        check_fail("model() gives a size for reduced bodies, but the codec does not set ESP_CODEC_REDUCIBLE");
    }
    check_part_free(&p);
}

ESP__FN void check_model_run(void *target) {
    static const esp_devkind kinds[] = {ESP_CPU, ESP_CUDA};
    static const uint64_t sizes[] = {100000, 300000, (1u << 20) + 1};
    const esp__codec *c = target;
    esp_codec_model m;
    if (!ESP_HAS(esp_codec, c->table, model))
        check_skip("the table has no model(): the planner then measures, and auto takes the codec for lossy");
    for (int k = 0; k < 2; k++) {
        check_model_of(c, 1u << 20, 1, kinds[k], &m);
        check_times(&m, kinds[k]);
    }
    const esp_tensor like = {sizeof like, ESP_F32, 7, 1u << 20, {NULL, 0, {0, 0}}, 0, 0};
    memset(&m, 0x5A, sizeof m); /* a caller built for an older version has a struct without n_times */
    m.struct_size = offsetof(esp_codec_model, n_times);
    if (c->table->model(c->self, &like, 1, (esp_device){ESP_CPU, 0}, &m) != ESP_OK)
        check_fail("model() failed for an older caller's struct");
    if (m.n_times != 0x5A5A5A5Au)
        check_fail("model() wrote behind struct_size: fill members only up to the caller's struct_size");
    for (int z = 0; z < 3 && c->traits.n_rounds == 1; z++) check_model_sizes(c, sizes[z]);
}

static float check_gauss(void) {
    const double u = ((double)check_random() + 1) / 4294967296.0, v = ((double)check_random() + 1) / 4294967296.0;
    return (float)(sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v));
}

/* Compares the compression error that model() states with that of normally distributed input, without feedback. */
ESP__FN void check_error_run(void *target) {
    enum { N = 400000 };
    const esp__codec *c = target;
    double lost = 0, whole = 0;
    if (!ESP_HAS(esp_codec, c->table, model) || c->model.error < 0) check_skip("model() states no error");
    if (c->traits.caps & ESP_CODEC_NEEDS_MATRIX) check_skip("the error of a matrix depends on the matrix");
    if (c->traits.n_rounds > 1) check_skip("a codec of several rounds needs ranks: run it with espresso run -n 2");
    check_part p = check_part_make(c, N, 0, 1);
    p.feedback = 0;
    p.step = 1000;
    for (int i = 0; i < N; i++) p.g[i] = check_gauss();
    if (check_compress(&p) != ESP_OK || check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK)
        check_fail("compress or decompress failed");
    for (int i = 0; i < N; i++) {
        const double x = (double)p.g[i], d = (double)p.o[i] - x;
        lost += d * d, whole += x * x;
    }
    const double allowed = c->traits.caps & ESP_CODEC_DETERMINISTIC ? 0.02 : 0.05;
    if (!check_is_close(c->model.error, lost / whole, allowed, 1e-12))
        check_fail("model() gives an error of %.6g, and for normal numbers it is %.6g: E |decoded - x|^2 / E |x|^2",
                   c->model.error, lost / whole);
}

/* Without ESP_MODEL_LOSSY, all numbers must decode as precisely as 16-bit floats. With it, some must not. */
ESP__FN void check_lossy_run(void *target) {
    enum { N = 4096 };
    const esp__codec *c = target;
    const int lossy = esp__codec_lossy(c);
    if (lossy && !ESP_HAS(esp_codec, c->table, model)) check_skip("a codec without model() counts as lossy");
    check_part p = check_part_make(c, N, check_rows(c, N, 1), 1);
    int rounds = 1;
    p.feedback = 0;
    p.step = 1000;
    check_fill(p.g, N, IN_NORMAL);
    if (check_compress(&p) != ESP_OK || check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK)
        check_fail("compress or decompress failed");
    for (int i = 0; i < N; i++) {
        const int like_half = fabs((double)p.o[i] - (double)p.g[i]) <= fabs((double)p.g[i]) * 0x1p-8 + 0x1p-24;
        if (!like_half && !lossy)
            check_fail("%g comes back as %g: that is more than rounding to a shorter format: set ESP_MODEL_LOSSY in "
                       "model()",
                       (double)p.g[i], (double)p.o[i]);
        rounds &= like_half;
    }
    if (lossy && rounds)
        check_fail(
            "model() sets ESP_MODEL_LOSSY, but every number is decoded with the precision of 16-bit floats: leave the "
            "flag out, so that strategy auto may use the codec at once");
}

/* Sums two payloads without decoding them. The sum must decode to about the sum of the inputs. */
ESP__FN void check_reduce_run(void *target) {
    enum { N = 5000 };
    const esp__codec *c = target;
    if (!(c->traits.caps & ESP_CODEC_REDUCIBLE)) check_skip("the codec does not set ESP_CODEC_REDUCIBLE");
    if (c->traits.n_rounds > 1) check_skip("a codec of several rounds needs ranks: run it with espresso run -n 2");
    check_part p = check_part_make(c, N, check_rows(c, N, 1), 2);
    const esp_round round = esp__codec_round(c, 0);
    const esp_dtype dtype = p.bound[0].dtype ? p.bound[0].dtype : round.dtype;
    uint8_t *first = malloc((size_t)p.bound[0].payload_bytes);
    double *sum = calloc(N, sizeof *sum), size = 0, off = 0;
    if (round.op != ESP_REDUCE_SUM || dtype != ESP_F32) check_skip("only sums of f32 bodies are checked");
    p.feedback = 0;
    for (int rank = 0; rank < 2; rank++) {
        check_fill(p.g, N, IN_NORMAL);
        if (check_compress(&p) != ESP_OK) check_fail("compress failed with n_reduced 2");
        if (check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK) check_fail("decompress failed");
        for (int i = 0; i < N; i++) sum[i] += (double)p.o[i];
        if (!rank) memcpy(first, check_payload(&p), (size_t)check_used(&p));
    }
    const esp_payload_header h = check_header(&p);
    for (uint64_t at = 0; at + 4 <= h.body_bytes; at += 4) {
        float a, b;
        memcpy(&a, first + ESP_PAYLOAD_HEADER + at, 4);
        memcpy(&b, check_payload(&p) + ESP_PAYLOAD_HEADER + at, 4);
        a += b;
        memcpy(check_payload(&p) + ESP_PAYLOAD_HEADER + at, &a, 4);
    }
    if (check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK) check_fail("decompress refused a reduced body");
    for (int i = 0; i < N; i++) size += sum[i] * sum[i], off += (sum[i] - (double)p.o[i]) * (sum[i] - (double)p.o[i]);
    if (!(off <= 1e-6 * size))
        check_fail(
            "the sum of two bodies decodes to something %.2g of their decoded sum away: bodies must be linear, or "
            "leave ESP_CODEC_REDUCIBLE out",
            sqrt(off / size));
}
