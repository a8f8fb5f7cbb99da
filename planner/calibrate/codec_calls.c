/* codec_calls.c: calls one codec as the ops of a training step do, on the CPU or on another device, so that codecs.c
 * can measure it. All calls reuse the same memory. */
#include "planner/calibrate/codec_calls.h"

/* Describes the data to compress: an array, or for codecs of matrices a nearly square matrix of about as many
 * elements. */
static esp_tensor esp__calibration_like(const esp__codec *c, uint64_t elements) {
    uint64_t rows = 1;
    if (!(c->traits.caps & ESP_CODEC_NEEDS_MATRIX) || !elements) return esp__codec_like(elements, 0, 0);
    while (rows * rows * 4 <= elements) rows *= 2;
    return esp__codec_like(elements / rows * rows, rows, elements / rows);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static uint64_t esp__calibration_round(uint64_t bytes) { return (bytes + 255u) / 256u * 256u; }

/* Divides s->work into the arrays that a codec with bound `b` needs, and returns their total bytes. If s->work is NULL,
 * only returns the total. */
static uint64_t esp__calibration_share(const esp__calibration *s, const esp_bound *b, esp__calibration_bench *w) {
    uint64_t n = esp__calibration_round(s->max_elements * 4u), at = 0;
    uint8_t *p = s->work;
    w->residual = p ? (float *)(void *)p : NULL;
    w->out = p ? (float *)(void *)(p + n) : NULL;
    w->phi = p ? (float *)(void *)(p + 2 * n) : NULL;
    at = s->device ? 2 * n : 4 * n;
    w->payload = p ? p + at : NULL;
    w->payload_bytes = esp__calibration_round(b->payload_bytes);
    w->other = p ? p + at + w->payload_bytes : NULL;
    at += 2 * w->payload_bytes;
    w->state.ptr = p ? p + at : NULL;
    at += esp__calibration_round(b->state_bytes);
    w->scratch.ptr = p ? p + at : NULL;
    w->scratch.bytes = b->scratch_bytes;
    at += esp__calibration_round(b->scratch_bytes);
    w->device_used = p ? (uint64_t *)(void *)(p + at) : NULL;
    return at + esp__calibration_round(sizeof *w->device_used * ESP_ROUNDS_MAX);
}

ESP__FN esp_status esp__calibration_reserve(esp_ctx *ctx, esp__calibration *s, const esp__codec *c) {
    esp__calibration_bench w;
    esp_bound b;
    memset(&w, 0, sizeof w);
    w.like = esp__calibration_like(c, s->max_elements);
    const esp_status st = esp__alone_bound(ctx, c, &w.like, &b, &w.first_round);
    if (st) return st;
    uint8_t *work = s->work;
    s->work = NULL;
    const uint64_t need = esp__calibration_share(s, &b, &w);
    s->work = work;
    if (need <= s->work_bytes) return ESP_OK;
    esp__device_give(ctx, s->device, s->work, s->work_bytes, ESP_MEM_DEVICE);
    s->work = esp__device_take(ctx, s->device, need, ESP_MEM_DEVICE);
    s->work_bytes = s->work ? need : 0;
    return s->work ? ESP_OK
                   : esp__fail(ctx, ESP_E_NOMEM, "codec '%s': out of memory%s: measuring it takes %llu bytes", c->spec,
                               s->device ? " of the device" : "", (unsigned long long)need);
}

ESP__FN esp_status esp__calibration_prepare(esp_ctx *ctx, const esp__calibration *s, const esp__codec *c,
                                            uint64_t elements, esp__calibration_bench *w) {
    esp_bound b;
    memset(w, 0, sizeof *w);
    w->ctx = ctx, w->codec = c, w->device = s->device;
    w->elements = elements, w->max = s->max_elements;
    w->like = esp__calibration_like(c, s->max_elements);
    esp_status st = esp__alone_bound(ctx, c, &w->like, &b, &w->first_round);
    if (st) return st;
    esp__calibration_share(s, &b, w);
    w->like = esp__calibration_like(c, elements);
    st = esp__alone_bound(ctx, c, &w->like, &b, &w->first_round);
    w->state.bytes = b.state_bytes;
    w->scratch.bytes = b.scratch_bytes;
    w->data = s->device ? s->device_data : s->data;
    for (uint32_t r = 0; r < c->traits.n_rounds && s->device && !st; r++) {
        st = esp__codec_bound_of(ctx, c, &w->like, r, 1, &b);
        w->at[r + 1] = w->at[r] + b.payload_bytes;
    }
    return st;
}

static uint64_t esp__calibration_places(const esp__calibration_bench *w) {
    uint64_t n = w->max / w->elements;
    return n > 256 ? 256 : n;
}

ESP__FN esp_status esp__calibration_clear(const esp__calibration_bench *w) {
    const esp_status s = esp__device_zero(w->ctx, w->device, w->residual,
                                          esp__calibration_places(w) * w->elements * sizeof *w->residual);
    return s ? s : esp__device_zero(w->ctx, w->device, w->state.ptr, w->state.bytes);
}

ESP__FN esp_status esp__calibration_copy(const esp__calibration_bench *w) {
    return esp__device_copy(w->ctx, w->device, w->other, w->device, w->payload, w->payload_bytes);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */
static esp_status esp__calibration_two(const esp__calibration_bench *w, esp__codec_call *c) {
    esp_payload both[2];
    esp__call_payload(c, w->other, w->payload_bytes, NULL);
    both[1] = c->payload;
    esp__call_payload(c, w->payload, w->payload_bytes, NULL);
    both[0] = c->payload;
    c->args.payload = both;
    c->args.n_payloads = 2;
    return esp__call_decompress(c);
}

static esp_status esp__calibration_compress_on_device(const esp__calibration_bench *w, esp__codec_call *c) {
    esp_status s = ESP_OK;
    for (uint32_t r = w->first_round; r < w->codec->traits.n_rounds && !s; r++) {
        c->args.round = r;
        esp__call_payload(c, w->payload + w->at[r], w->at[r + 1] - w->at[r], &w->device_used[r]);
        s = esp__call_compress(c, NULL, NULL);
        esp__call_reduced(c, w->payload + w->at[r], w->at[r + 1] - w->at[r]);
    }
    return s;
}
static esp_status esp__calibration_decompress_on_device(const esp__calibration_bench *w, esp__codec_call *c) {
    const uint32_t last = w->codec->traits.n_rounds - 1;
    if (last > w->first_round) esp__call_reduced(c, w->payload + w->at[last - 1], w->at[last] - w->at[last - 1]);
    c->args.round = last;
    esp__call_payload(c, w->payload + w->at[last], w->at[last + 1] - w->at[last], NULL);
    return esp__call_decompress(c);
}

/* Makes one call as an op of a step does: on the CPU while it holds a token for a processor core, on a device by
 * enqueuing it. */
ESP__FN esp_status esp__calibration_call(esp__calibration_bench *w, int what) {
    const int decompress = what != ESP__CALIBRATION_COMPRESS;
    esp__codec_call c;
    uint64_t n = w->like.count, at = w->calls % esp__calibration_places(w) * w->elements / 16u * 16u;
    esp_status st;
    esp__call_begin(&c, w->codec, esp__device_at(w->ctx, w->device)->stream[ESP__ON_COMPUTE],
                    decompress ? w->out + at : w->data + at, n);
    c.args.step = w->calls++;
    c.args.seed = w->ctx->config.seed;
    c.args.source = (uint32_t)w->ctx->job.rank;
    c.args.flags = w->codec->own_memory ? ESP_ARG_OWN_MEMORY : 0u;
    esp__call_state(&c, w->state.ptr, w->state.bytes);
    esp__call_scratch(&c, w->scratch.ptr, w->scratch.bytes);
    c.part.rows = w->like.rows, c.part.cols = w->like.cols;
    if (!decompress) esp__call_residual(&c, w->codec->feedback ? w->residual + at : NULL);
    if (w->device && what != ESP__CALIBRATION_SUM)
        return decompress ? esp__calibration_decompress_on_device(w, &c) : esp__calibration_compress_on_device(w, &c);
    int token = w->device ? -1 : esp__token_take(w->ctx, n);
    if (what == ESP__CALIBRATION_SUM)
        st = esp__calibration_two(w, &c);
    else if (decompress)
        st = esp__alone_decompress(&c, w->first_round, w->payload, w->payload_bytes);
    else
        st = esp__alone_compress(&c, w->first_round, w->payload, w->payload_bytes, &w->used, w->phi, w->phi + w->max);
    if (!w->device) esp__token_put(w->ctx, token);
    return st;
}

ESP__FN esp_status esp__calibration_settle(const esp__calibration_bench *w) {
    return w->device ? esp__device_drain(w->ctx, w->device, ESP__ON_COMPUTE) : ESP_OK;
}

ESP__FN esp_status esp__calibration_used(esp__calibration_bench *w) {
    uint64_t used[ESP_ROUNDS_MAX], at = 0, wrote = 0;
    if (!w->device) return ESP_OK;
    const esp_status s = esp__device_copy(w->ctx, ESP__CPU_INDEX, used, w->device, w->device_used, sizeof used);
    for (uint32_t r = w->first_round; r < w->codec->traits.n_rounds && !s; r++) {
        at += (wrote + 31u) / 32u * 32u;
        wrote = used[r];
    }
    w->used = at + wrote;
    return s;
}

/* Sets *whole to |input|^2 and *off to |output - input|^2. `data` is the input in host memory. */
ESP__FN esp_status esp__calibration_error(const esp__calibration_bench *w, const float *data, double *whole,
                                          double *off) {
    enum { SOME = 4096 };
    float out[SOME];
    *whole = *off = 0.0;
    for (uint64_t at = 0, n; at < w->like.count; at += n) {
        n = w->like.count - at < SOME ? w->like.count - at : SOME;
        const esp_status s = esp__device_copy(w->ctx, ESP__CPU_INDEX, out, w->device, w->out + at, n * sizeof *out);
        if (s) return s;
        for (uint64_t i = 0; i < n; i++) {
            const double x = (double)data[at + i], e = (double)out[i] - x;
            *whole += x * x;
            *off += e * e;
        }
    }
    return ESP_OK;
}
