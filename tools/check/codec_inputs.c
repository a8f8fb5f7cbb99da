/* codec_inputs.c: checks that decoded output and residual add up to the input, for many sizes and kinds of input, over
 * one step and several, with one payload and several. */
#include "tools/check/check.h"
#include <math.h>

#ifndef CHECK_LARGE_COUNT
#define CHECK_LARGE_COUNT (1u << 20)
#endif
static const uint64_t check_sizes[] = {0, 1, 7, 8, 9, 31, 32, 33, 4095, 4096, 4097, 100003, CHECK_LARGE_COUNT + 1};
enum { CHECK_SIZES = sizeof check_sizes / sizeof *check_sizes };

/* Returns the rows of the most nearly square matrix of `count` elements, or 0 if the codec compresses vectors. */
ESP__FN uint64_t check_rows(const esp__codec *c, uint64_t count, bool matrix) {
    uint64_t rows = 1;
    if (!matrix || !(c->traits.caps & ESP_CODEC_NEEDS_MATRIX) || !count) return 0;
    for (uint64_t r = 1; r * r <= count; r++)
        if (count % r == 0) rows = r;
    return count / rows;
}
ESP__FN int check_shapes(const esp__codec *c) { return c->traits.caps & ESP_CODEC_NEEDS_MATRIX ? 2 : 1; }

ESP__FN esp_payload_header check_header(check_part *p) {
    esp_payload_header h;
    memcpy(&h, check_payload(p), sizeof h);
    return h;
}

static void check_good_header(check_part *p, const char *kind) {
    const esp_payload_header h = check_header(p);
    const uint64_t used = check_used(p);
    if (h.count != p->count)
        check_fail("%s input, %llu elements: the header's count is %llu", kind, (check_u)p->count, (check_u)h.count);
    /* a codec around another one may return the header that the inner codec wrote */
    if (h.codec != p->codec->id && !(p->codec->traits.caps & ESP_CODEC_WRAPPER))
        check_fail("the header's codec is 0x%08x, not 0x%08x: use esp_name_hash of the table's name", h.codec,
                   p->codec->id);
    if (!p->count && h.body_bytes)
        check_fail("a part without elements has a body of %llu bytes", (check_u)h.body_bytes);
    if (!h.wire_version) check_fail("the header's wire_version is 0: use the table's");
    if (used != ESP_PAYLOAD_HEADER + h.body_bytes)
        check_fail(
            "%s input, %llu elements: *used is %llu, but header and body have %llu bytes: call esp_payload_begin "
            "with the right body_bytes",
            kind, (check_u)p->count, (check_u)used, (check_u)(ESP_PAYLOAD_HEADER + h.body_bytes));
    if (used > p->bound[check_last(p)].payload_bytes)
        check_fail("%s input, %llu elements: %llu bytes written, bound() gave %llu", kind, (check_u)p->count,
                   (check_u)used, (check_u)p->bound[check_last(p)].payload_bytes);
}

static void check_bad_input(check_part *p, const char *kind, const float *before, const uint8_t *state) {
    const esp_payload_header h = check_header(p);
    if (!(h.flags & ESP_PAYLOAD_NONFINITE))
        check_fail("%s input, %llu elements: the header lacks ESP_PAYLOAD_NONFINITE: look for NaN and Inf before you "
                   "encode",
                   kind, (check_u)p->count);
    if (memcmp(p->e, before, (size_t)p->count * 4))
        check_fail("%s input, %llu elements: the residual changed: leave it as it was", kind, (check_u)p->count);
    /* if a codec needs several exchanges, the first may store random numbers that all ranks share */
    if (!check_last(p) && memcmp(p->state.data, state, (size_t)p->bound[0].state_bytes))
        check_fail("%s input, %llu elements: the state changed: leave it as it was", kind, (check_u)p->count);
    if (h.body_bytes && !(p->codec->traits.caps & ESP_CODEC_REDUCIBLE))
        check_fail("%s input, %llu elements: a payload with ESP_PAYLOAD_NONFINITE has a body of %llu bytes: send none",
                   kind, (check_u)p->count, (check_u)h.body_bytes);
    if (check_decode(p, check_payload(p), check_used(p)) != ESP_OK)
        check_fail("%s input: the payload with ESP_PAYLOAD_NONFINITE was refused: decode it to NaN", kind);
    for (uint64_t i = 0; i < p->count; i++)
        if (!isnan(p->o[i]))
            check_fail("%s input: element %llu decodes to %g, not NaN", kind, (check_u)i, (double)p->o[i]);
}

/* The allowed error of decoded output plus residual: one rounding, or more for codecs that multiply matrices. */
static double check_allowed(const check_part *p, double residual, double decoded) {
    return check_last(p) ? 1e-5 * (fabs(residual) + fabs(decoded)) : 0x1p-23 * fabs(residual);
}

static void check_conserved(check_part *p, const char *kind, const float *before) {
    const esp_payload_header h = check_header(p);
    if (h.flags & ESP_PAYLOAD_NONFINITE)
        check_fail("%s input, %llu elements: ESP_PAYLOAD_NONFINITE is set, but all numbers are finite", kind,
                   (check_u)p->count);
    if (check_decode(p, check_payload(p), check_used(p)) != ESP_OK)
        check_fail("%s input, %llu elements: decompress refused the codec's own payload", kind, (check_u)p->count);
    for (uint64_t i = 0; i < p->count; i++) {
        const float a = p->beta * before[i], b = p->gamma * p->g[i];
        const double phi = (double)(a + b), back = (double)p->o[i] + (double)p->e[i];
        if (!p->feedback && isnan(p->o[i]))
            check_fail("%s input, %llu elements: element %llu is not written: SET writes all of them", kind,
                       (check_u)p->count, (check_u)i);
        if (p->feedback && !(fabs(back - phi) <= check_allowed(p, (double)p->e[i], (double)p->o[i])))
            check_fail("%s input, %llu elements: element %llu: decoded %g + residual %g is %g, but %g went in: the "
                       "residual must be what the payload lacks",
                       kind, (check_u)p->count, (check_u)i, (double)p->o[i], (double)p->e[i], back, phi);
    }
}

/* `feedback` is 0 without error feedback, 1 with beta = gamma = 1, and 2 with other factors. */
static void check_input(const esp__codec *c, uint64_t count, uint64_t rows, int kind, int feedback) {
    check_part p = check_part_make(c, count, rows, 1);
    float *before = malloc((size_t)count * 4 + 4);
    uint8_t *state = malloc((size_t)p.bound[0].state_bytes + 1);
    p.feedback = feedback > 0;
    if (feedback == 2) p.beta = 0.9f, p.gamma = 0.7f;
    check_doing("compressing %llu elements, %s", (check_u)count, check_inputs[kind]);
    check_fill(p.g, count, kind);
    check_fill(p.e, count, IN_NORMAL);
    memcpy(before, p.e, (size_t)count * 4);
    memcpy(state, p.state.data, (size_t)p.bound[0].state_bytes);
    memset(p.o, 0xFF, (size_t)count * 4); /* NaN, to find elements that are not written */
    if (check_compress(&p) != ESP_OK)
        check_fail("%s input, %llu elements: compress failed: %s", check_inputs[kind], (check_u)count,
                   *esp__plugin_detail() ? esp__plugin_detail() : "it gave no reason");
    check_good_header(&p, check_inputs[kind]);
    if (count && (kind == IN_NAN || kind == IN_INF))
        check_bad_input(&p, check_inputs[kind], before, state);
    else
        check_conserved(&p, check_inputs[kind], before);
    free(before);
    free(state);
    check_part_free(&p);
}

ESP__FN void check_inputs_run(void *target) {
    const esp__codec *c = target;
    for (int shape = 0; shape < check_shapes(c); shape++)
        for (int z = 0; z < CHECK_SIZES; z++)
            for (int kind = 0; kind < IN_KINDS; kind++)
                for (int feedback = 0; feedback < (check_feedback(c) ? 3 : 1); feedback++) {
                    const uint64_t n = check_sizes[z];
                    if (n > 1000000 && kind != IN_NORMAL && kind != IN_ZERO && kind != IN_NAN) continue;
                    check_input(c, n, check_rows(c, n, shape), kind, feedback);
                }
}

/* Over 20 steps, inputs must add up to outputs plus the last residual. An input with a NaN must change nothing. */
ESP__FN void check_steps_run(void *target) {
    enum { N = 9000, STEPS = 20, LOST = 11 };
    const esp__codec *c = target;
    if (!check_feedback(c)) check_skip("feedback=none: nothing is kept");
    for (int shape = 0; shape < check_shapes(c); shape++) {
        check_part p = check_part_make(c, N, check_rows(c, N, shape), 1);
        double *in = calloc(N, sizeof *in), *out = calloc(N, sizeof *out), *most = calloc(N, sizeof *most);
        for (p.step = 0; p.step < STEPS; p.step++) {
            check_fill(p.g, N, p.step == LOST ? IN_NAN : IN_NORMAL);
            if (check_compress(&p) != ESP_OK) check_fail("compress failed in step %llu", (check_u)p.step);
            if (p.step == LOST) continue;
            if (check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK) check_fail("decompress failed");
            for (int i = 0; i < N; i++) {
                in[i] += (double)p.g[i];
                out[i] += (double)p.o[i];
                most[i] += fabs((double)p.g[i]) + fabs((double)p.o[i]) + fabs((double)p.e[i]);
            }
        }
        for (int i = 0; i < N; i++)
            if (!(fabs(in[i] - out[i] - (double)p.e[i]) <= most[i] * (check_last(&p) ? 1e-5 : 0x1p-23)))
                check_fail(
                    "over %d steps element %d got %g, gave %g and keeps %g: the residual must be what payloads do "
                    "not carry, and a step with NaN must not change it",
                    (int)STEPS, i, in[i], out[i], (double)p.e[i]);
        free(in), free(out), free(most);
        check_part_free(&p);
    }
}

ESP__FN void check_small_run(void *target) {
    const esp__codec *c = target;
    for (int z = 0; z < CHECK_SIZES; z++) {
        check_part p = check_part_make(c, check_sizes[z], check_rows(c, check_sizes[z], 1), 1);
        const uint32_t last = check_last(&p);
        check_fill(p.g, p.count, IN_NORMAL);
        if (check_compress(&p) != ESP_OK) check_fail("compress failed for %llu elements", (check_u)p.count);
        const uint64_t need = p.used[last], tries[] = {0, 1, ESP_PAYLOAD_HEADER - 1, need - 1};
        float *before = malloc((size_t)p.count * 4 + 4);
        uint8_t *state = malloc((size_t)p.bound[0].state_bytes + 1);
        memcpy(before, p.e, (size_t)p.count * 4);
        memcpy(state, p.state.data, (size_t)p.bound[0].state_bytes);
        for (int t = 0; t < 4; t++) {
            check_fenced small = check_fence(tries[t], 1);
            memset(small.data, 0x5A, (size_t)tries[t]);
            check_doing("compressing %llu elements into %llu bytes", (check_u)p.count, (check_u)tries[t]);
            p.used[last] = 99;
            if (check_round(&p, last, small.data, tries[t]) != ESP_E_TOO_SMALL)
                check_fail(
                    "%llu elements need %llu bytes; with a capacity of %llu compress must return ESP_E_TOO_SMALL",
                    (check_u)p.count, (check_u)need, (check_u)tries[t]);
            for (uint64_t i = 0; i < tries[t]; i++)
                if (small.data[i] != 0x5A)
                    check_fail("a capacity of %llu bytes is too small, but byte %llu was written: look at the capacity "
                               "first",
                               (check_u)tries[t], (check_u)i);
            if (p.used[last] != 99) check_fail("compress returned ESP_E_TOO_SMALL, but wrote *used");
            if (memcmp(p.e, before, (size_t)p.count * 4))
                check_fail("compress returned ESP_E_TOO_SMALL, but changed the residual");
            if (memcmp(p.state.data, state, (size_t)p.bound[0].state_bytes))
                check_fail("compress returned ESP_E_TOO_SMALL, but changed the state");
            check_unfence(&small);
        }
        free(before);
        free(state);
        check_part_free(&p);
    }
}

/* Decodes several payloads in one call, one of them empty. The result must equal that of decoding them one by one. */
static void check_many_payloads(const esp__codec *c, uint64_t count) {
    enum { M = 4 };
    check_part p = check_part_make(c, count, 0, 1);
    const size_t bytes = (size_t)count * 4;
    esp_payload all[M];
    float *expect = malloc(bytes + 4), *start = malloc(bytes + 4);
    p.feedback = 0;
    memset(all, 0, sizeof all);
    for (int m = 0; m < M; m++) {
        check_fill(p.g, count, IN_NORMAL);
        if (check_compress(&p) != ESP_OK) check_fail("compress failed");
        all[m].data.ptr = malloc((size_t)p.bound[0].payload_bytes);
        all[m].data.bytes = p.used[0];
        memcpy(all[m].data.ptr, p.payload[0].data, (size_t)p.used[0]);
    }
    esp_payload_header h;
    memcpy(&h, all[2].data.ptr, sizeof h);
    h.flags = ESP_PAYLOAD_EMPTY, h.body_bytes = 0;
    memcpy(all[2].data.ptr, &h, sizeof h);
    if (check_decompress(&p, all, 1, ESP_OUT_SET, 1.0f) != ESP_OK) check_fail("a payload was refused");
    memcpy(expect, p.o, bytes);
    if (check_decompress(&p, all, 1, ESP_OUT_SET, 0.25f) != ESP_OK) check_fail("a payload was refused");
    for (uint64_t i = 0; i < count; i++)
        if (!(p.o[i] == 0.25f * expect[i]))
            check_fail("element %llu decodes to %g, and with scale 0.25 to %g: multiply by scale", (check_u)i,
                       (double)expect[i], (double)p.o[i]);
    check_fill(start, count, IN_NORMAL);
    for (uint32_t mode = ESP_OUT_SET; mode <= ESP_OUT_SUM; mode++)
        for (int scaled = 0; scaled < 2; scaled++) {
            const float scale = scaled ? 0.25f : 0;
            memcpy(p.o, start, bytes);
            for (uint32_t m = 0; m < M; m++)
                if (check_decompress(&p, all + m, 1, m || mode ? ESP_OUT_SUM : ESP_OUT_SET, scale) != ESP_OK)
                    check_fail("a payload%s was refused", m == 2 ? " with ESP_PAYLOAD_EMPTY" : "");
            memcpy(expect, p.o, bytes);
            memcpy(p.o, start, bytes);
            if (check_decompress(&p, all, M, mode, scale) != ESP_OK) check_fail("%d payloads were refused", (int)M);
            for (uint64_t i = 0; i < count; i++)
                if (!(p.o[i] == expect[i]))
                    check_fail("element %llu: %d payloads in one call give %g, one after the other %g: add them in the "
                               "order given, each times scale",
                               (check_u)i, (int)M, (double)p.o[i], (double)expect[i]);
        }
    if (check_decompress(&p, all + 2, 1, ESP_OUT_SET, 0) != ESP_OK) check_fail("an empty payload alone was refused");
    for (uint64_t i = 0; i < count; i++)
        if (!(p.o[i] == 0)) check_fail("an empty payload alone gives %g, not zeros", (double)p.o[i]);
    check_fill(p.g, count, IN_NAN);
    if (check_compress(&p) != ESP_OK) check_fail("compress failed");
    memcpy(all[3].data.ptr, p.payload[0].data, (size_t)p.used[0]);
    all[3].data.bytes = p.used[0];
    if (check_decompress(&p, all, M, ESP_OUT_SUM, 0) != ESP_OK) check_fail("%d payloads were refused", (int)M);
    for (uint64_t i = 0; i < count; i++)
        if (!isnan(p.o[i]))
            check_fail("one of %d payloads is NaN, but element %llu of the sum is not", (int)M, (check_u)i);
    for (int m = 0; m < M; m++) free(all[m].data.ptr);
    free(expect), free(start);
    check_part_free(&p);
}

ESP__FN void check_many_run(void *target) {
    const esp__codec *c = target;
    if (c->traits.n_rounds > 1 || esp__codec_round(c, 0).flags & ESP_ROUND_ALLREDUCE)
        check_skip("payloads of a codec of several rounds are reduced, not collected");
    check_many_payloads(c, 1);
    check_many_payloads(c, 9001);
    check_many_payloads(c, 70001);
}
