/* call.c: calls a codec's compress and decompress, and computes the residual if the codec does not. */
#include "espresso_impl/codec/codec.h"
#include "codecs/common/simd.h"

ESP__FN void esp__call_begin(esp__codec_call *c, const esp__codec *codec, esp_stream stream, const float *data,
                             uint64_t count) {
    memset(c, 0, sizeof *c);
    c->codec = codec;
    c->args.struct_size = sizeof c->args;
    c->args.n_reduced = c->args.n_tensors = c->args.n_payloads = 1;
    c->args.beta = codec->beta, c->args.gamma = codec->gamma;
    c->args.scale = 1.0f;
    c->args.tensor = &c->tensor;
    c->args.offset = &c->offset;
    c->args.payload = &c->payload;
    c->args.stream = stream;
    c->tensor = &c->part;
    c->part.struct_size = sizeof c->part;
    c->part.dtype = ESP_F32;
    c->part.count = count;
    memcpy(&c->part.data.ptr, &data, sizeof data);
    c->part.data.bytes = count * 4u;
    c->part.data.dev = stream.dev;
}

/* ---- lists ---- */
ESP__FN uint64_t esp__call_list_bytes(uint64_t n) {
    const esp__codec_list *l = NULL;
    return n * (sizeof *l->part + sizeof *l->tensor + sizeof *l->offset + sizeof *l->residual + sizeof *l->state +
                sizeof *l->payload + sizeof *l->reduced);
}

ESP__FN void esp__call_list_place(esp__codec_list *l, void *memory, uint64_t n) {
    l->part = memory;
    l->tensor = (esp_tensor **)(void *)(l->part + n);
    l->offset = (uint64_t *)(void *)(l->tensor + n);
    l->residual = (esp_buf *)(void *)(l->offset + n);
    l->state = l->residual + n;
    l->payload = (esp_payload *)(void *)(l->state + n);
    l->reduced = l->payload + n;
    l->n = 0;
}

ESP__FN void esp__call_list_add(esp__codec_list *l, const esp__codec_call *c) {
    const uint32_t i = l->n++;
    l->part[i] = c->part;
    l->tensor[i] = &l->part[i];
    l->offset[i] = c->offset;
    l->residual[i] = c->residual;
    l->state[i] = c->state;
    l->payload[i] = c->payload;
    l->reduced[i] = c->reduced;
}

ESP__FN void esp__call_list_take(esp__codec_call *c, const esp__codec_list *l) {
    c->args.n_tensors = l->n;
    c->args.tensor = l->tensor;
    c->args.offset = l->offset;
    c->args.residual = c->args.state = NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->residual[i].ptr && l->residual[i].bytes) c->args.residual = l->residual;
        if (l->state[i].ptr && l->state[i].bytes) c->args.state = l->state;
    }
    if (c->args.payload == &c->payload) c->args.payload = l->payload;
    if (c->args.reduced) c->args.reduced = l->reduced;
}

/* ---- calls ---- */
static void esp__call_numbers(const esp__codec_call *c, float *at) {
    for (uint32_t t = 0; t < c->args.n_tensors; t++) {
        c->args.tensor[t]->data.ptr = at;
        at += c->args.tensor[t]->count;
    }
}

/* Computes phi = beta * residual + gamma * data for all tensors of the call. */
static void esp__call_compensate(const esp__codec_call *c, float *phi) {
    const float beta = c->args.beta, gamma = c->args.gamma;
    for (uint32_t k = 0; k < c->args.n_tensors; k++) {
        const uint64_t n = c->args.tensor[k]->count;
        const float *e = c->args.residual[k].ptr, *g = c->args.tensor[k]->data.ptr;
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) phi[i] = beta * e[i] + gamma * g[i];
        phi += n;
    }
}

/* Compresses phi = gradient + residual for a codec that leaves residuals alone, and sets them to phi - decoded phi. */
static esp_status esp__call_unfused(esp__codec_call *c, float *phi, float *back) {
    const esp_codec *t = c->codec->table;
    const esp_codec_args saved = c->args;
    uint32_t finite = 0;
    esp__call_compensate(c, phi);
    c->args.residual = NULL;
    esp__call_numbers(c, phi);
    esp_status s = t->compress(c->codec->self, &c->args);
    for (uint32_t k = 0; k < saved.n_tensors && !s; k++) finite += !esp__payload_nonfinite(&saved.payload[k]);
    if (finite) {
        esp__call_numbers(c, back);
        c->args.mode = ESP_OUT_SET;
        c->args.scale = 1.0f;
        s = t->decompress(c->codec->self, &c->args);
    }
    for (uint32_t k = 0; k < saved.n_tensors && finite && !s; k++) {
        const uint64_t n = saved.tensor[k]->count;
        /* a tensor with NaN or Inf keeps its old residual */
        const uint64_t kept = esp__payload_nonfinite(&saved.payload[k]) ? 0 : n;
        float *e = saved.residual[k].ptr;
        ESP_SIMD
        for (uint64_t i = 0; i < kept; i++) e[i] = phi[i] - back[i];
        phi += n, back += n;
    }
    c->args = saved;
    return s;
}

ESP__FN esp_status esp__call_compress(esp__codec_call *c, float *phi, float *back) {
    if (c->args.residual && !(c->codec->traits.caps & ESP_CODEC_FUSED_RESIDUAL)) return esp__call_unfused(c, phi, back);
    return c->codec->table->compress(c->codec->self, &c->args);
}

ESP__FN esp_status esp__call_decompress(esp__codec_call *c) {
    return c->codec->table->decompress(c->codec->self, &c->args);
}

/* ---- alone ---- */
ESP__FN esp_status esp__alone_bound(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, esp_bound *b,
                                    uint32_t *first_round) {
    const uint32_t n = c->traits.n_rounds;
    esp_status s = esp__codec_bound_of(ctx, c, like, 0, 1, b);
    *first_round = s || b->payload_bytes ? 0 : 1;
    for (uint32_t r = 1; r < n && !s; r++) {
        esp_bound one;
        s = esp__codec_bound_of(ctx, c, like, r, 1, &one);
        if (!one.payload_bytes && *first_round == r) ++*first_round;
        b->payload_bytes += one.payload_bytes;
        if (one.scratch_bytes > b->scratch_bytes) b->scratch_bytes = one.scratch_bytes;
    }
    return s;
}

ESP__FN esp_status esp__alone_compress(esp__codec_call *c, uint32_t first_round, void *out, uint64_t capacity,
                                       uint64_t *used, float *phi, float *back) {
    uint64_t at = 0, wrote = 0;
    esp_status s = ESP_OK;
    esp__call_reduced(c, NULL, 0);
    for (uint32_t r = first_round; r < c->codec->traits.n_rounds && !s; r++) {
        at += (wrote + 31u) / 32u * 32u;
        if (at >= capacity && r > first_round) return ESP_E_TOO_SMALL;
        wrote = 0;
        c->args.round = r;
        esp__call_payload(c, (uint8_t *)out + at, capacity - at, &wrote);
        s = esp__call_compress(c, phi, back);
        esp__call_reduced(c, (uint8_t *)out + at, wrote);
    }
    *used = at + wrote;
    return s;
}

ESP__FN esp_status esp__alone_decompress(esp__codec_call *c, uint32_t first_round, const void *in, uint64_t bytes) {
    const uint32_t last = c->codec->traits.n_rounds - 1;
    uint64_t at = 0;
    esp__call_reduced(c, NULL, 0);
    for (uint32_t r = first_round; r < last; r++) {
        esp_payload_header h;
        if (bytes - at < sizeof h) return ESP_E_CORRUPT;
        memcpy(&h, (const uint8_t *)in + at, sizeof h);
        if (h.body_bytes > bytes - at - sizeof h) return ESP_E_CORRUPT;
        const uint64_t size = sizeof h + h.body_bytes, next = (size + 31u) / 32u * 32u;
        esp__call_reduced(c, (const uint8_t *)in + at, size);
        if (next > bytes - at) return ESP_E_CORRUPT;
        at += next;
    }
    c->args.round = last;
    esp__call_payload(c, (const uint8_t *)in + at, bytes - at, NULL);
    return esp__call_decompress(c);
}
