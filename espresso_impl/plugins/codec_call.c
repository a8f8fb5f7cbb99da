/* codec_call.c: fills the arguments of a codec's compress and decompress for one part, and does the feedback of codecs that do not
 * do it themselves. Must not know where memory comes from. */
#include "espresso_impl/plugins/codec_call.h"
#include "codecs/common/simd.h"

ESP__FN void esp__call_begin(esp__codec_call *c, const esp__codec *codec, const float *data, uint64_t count) {
    memset(c, 0, sizeof *c);
    c->codec = codec;
    c->args.struct_size = sizeof c->args;
    c->args.n_reduced = c->args.n_tensors = c->args.n_payloads = 1;
    c->args.beta = codec->beta, c->args.gamma = codec->gamma;
    c->args.scale = 1.0f;
    c->args.tensor = &c->tensor;
    c->args.offset = &c->offset;
    c->args.payload = &c->payload;
    c->args.stream.dev.kind = ESP_CPU;
    c->tensor = &c->part;
    c->part.struct_size = sizeof c->part;
    c->part.dtype = ESP_F32;
    c->part.count = count;
    memcpy(&c->part.data.ptr, &data, sizeof data); /* esp_tensor has no const: decompress writes to one */
    c->part.data.bytes = count * 4u;
    c->part.data.dev.kind = ESP_CPU;
}

ESP__FN void esp__call_on(esp__codec_call *c, esp_stream stream) {
    c->args.stream = stream;
    c->part.data.dev = stream.dev;
}

/* Sets one of the lists' buffers, and returns what the argument points to. */
static const esp_buf *esp__call_buf(esp_buf *b, esp_device dev, const void *p, uint64_t bytes) {
    memcpy(&b->ptr, &p, sizeof p);
    b->bytes = bytes;
    b->dev = dev;
    return p && bytes ? b : NULL;
}

ESP__FN void esp__call_residual(esp__codec_call *c, float *residual) {
    c->args.residual = esp__call_buf(&c->residual, c->args.stream.dev, residual, c->part.count * 4u);
}
ESP__FN void esp__call_state(esp__codec_call *c, void *state, uint64_t bytes) {
    c->args.state = esp__call_buf(&c->state, c->args.stream.dev, state, bytes);
}
ESP__FN void esp__call_scratch(esp__codec_call *c, void *scratch, uint64_t bytes) {
    c->args.scratch = esp__call_buf(&c->scratch, c->args.stream.dev, scratch, bytes);
}
ESP__FN void esp__call_payload(esp__codec_call *c, const void *payload, uint64_t bytes, uint64_t *used) {
    esp__call_buf(&c->payload.data, c->args.stream.dev, payload, bytes);
    c->payload.used = used;
}
ESP__FN void esp__call_reduced(esp__codec_call *c, const void *payload, uint64_t bytes) {
    c->args.reduced = esp__call_buf(&c->reduced.data, c->args.stream.dev, payload, bytes) ? &c->reduced : NULL;
}

static esp_status esp__call_unfused(esp__codec_call *c, float *phi, float *back) {
    const esp_codec *t = c->codec->table;
    const esp_codec_args saved = c->args;
    const uint64_t n = c->part.count;
    float *e = c->residual.ptr;
    const float *g = c->part.data.ptr;
    void *data = c->part.data.ptr;
    esp_payload_header h;
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) phi[i] = saved.beta * e[i] + saved.gamma * g[i];
    c->args.residual = NULL;
    c->part.data.ptr = phi;
    esp_status s = t->compress(c->codec->self, &c->args);
    if (!s) memcpy(&h, c->payload.data.ptr, sizeof h);
    if (!s && !(h.flags & ESP_PAYLOAD_NONFINITE)) { /* NaN or Inf: the residual stays as it was */
        c->part.data.ptr = back;
        c->args.mode = ESP_OUT_SET;
        c->args.scale = 1.0f;
        s = t->decompress(c->codec->self, &c->args);
        const uint64_t kept = s ? 0 : n;
        ESP_SIMD
        for (uint64_t i = 0; i < kept; i++) e[i] = phi[i] - back[i];
    }
    c->part.data.ptr = data;
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
