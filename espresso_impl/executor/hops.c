/* hops.c: the codec's part in a collective that compresses at every hop. The backend calls these functions on the link thread, while
 * the cpu thread may run Comps: so they have scratch memory of their own. Knows nothing of how payloads travel.
 *
 * What a hop loses, the rank that compresses there keeps in its residual of these elements. So nothing is lost: the result and all
 * ranks' residuals add up to all ranks' gradients and former residuals. */
#include "espresso_impl/executor/executor.h"

static void esp__hop_call(const esp__link *l, uint64_t begin, uint64_t count, esp__codec_call *c) {
    const esp__op *op = l->hops_op;
    const esp__in_force *f = &l->hops_ctx->in_force;
    esp__range r;
    memset(&r, 0, sizeof r);
    r.begin = op->begin + begin;
    r.length = count;
    esp__call_range(l->hops_ctx, op, &r, c);
    c->part.rows = c->part.cols = 0; /* a piece has no whole rows */
    esp__call_scratch(c, f->hop_scratch, f->hop_scratch_bytes);
}

/* As a rank compresses: with its residual. */
static void esp__hop_compresses(const esp__link *l, esp__codec_call *c, uint64_t begin, const esp_payload *out) {
    const esp__feedback *f = l->hops_op->feedback >= 0 ? &l->hops_ctx->in_force.feedback[l->hops_op->feedback] : NULL;
    esp__call_payload(c, out->data.ptr, out->data.bytes, out->used);
    esp__call_residual(c, f && f->residual ? f->residual + begin : NULL);
    c->args.flags = l->hops_op->raw && c->codec->own_memory ? ESP_ARG_OWN_MEMORY : 0u;
}

static esp_status esp__hop_done(const esp__link *l, esp_status s, const char *what, uint64_t count) {
    const esp__work_unit *u = &l->hops_ctx->in_force.strategy.units[l->hops_op->unit];
    char text[ESP__ERROR_MAX / 2];
    if (!s) return ESP_OK;
    const char *why = *esp__plugin_detail() ? esp__plugin_detail() : esp_status_text(s);
    snprintf(text, sizeof text, "tensor '%s': codec '%.200s' failed to %s %llu elements at a hop: %.300s", u->name,
             u->codec->spec, what, (unsigned long long)count, why);
    esp__plugin_detail_set(text);
    return s;
}

static uint16_t esp__hop_flags(const esp_payload *p) {
    esp_payload_header h;
    memcpy(&h, p->data.ptr, sizeof h);
    return h.flags;
}

/* Counts a piece with NaN or Inf where it comes in. `from`: the flags of what came. In recursive halving a rank that has added such a
 * piece to its own counts it once more. */
static void esp__hop_count(const esp__link *l, const esp_payload *out, uint16_t from) {
    if (esp__hop_flags(out) & ~from & ESP_PAYLOAD_NONFINITE)
        __atomic_add_fetch(&l->hops_ctx->steps.stats.nonfinite, 1, __ATOMIC_RELAXED);
}

static uint64_t esp__hop_bound(void *user, uint64_t count) {
    const esp__link *l = user;
    const esp_tensor like = esp__codec_like(count, 0, 0);
    esp_bound b;
    const esp__codec *codec = l->hops_ctx->in_force.strategy.units[l->hops_op->unit].codec;
    return esp__codec_bound_of(l->hops_ctx, codec, &like, 0, 1, &b) ? UINT64_MAX / 4 : b.payload_bytes;
}

static esp_status esp__hop_encode(void *user, uint64_t begin, uint64_t count, esp_payload *out) {
    const esp__link *l = user;
    const esp__in_force *f = &l->hops_ctx->in_force;
    esp__codec_call c;
    esp__hop_call(l, begin, count, &c);
    esp__hop_compresses(l, &c, begin, out);
    const esp_status s = esp__call_compress(&c, f->hop_phi, f->hop_phi + f->hop_count);
    if (!s) esp__hop_count(l, out, 0);
    return esp__hop_done(l, s, "compress", count);
}

static esp_status esp__hop_forward(void *user, uint64_t begin, uint64_t count, const esp_payload *in,
                                   esp_payload *out) {
    const esp__link *l = user;
    const esp__in_force *f = &l->hops_ctx->in_force;
    esp__codec_call c;
    esp__hop_call(l, begin, count, &c);
    esp__hop_compresses(l, &c, begin, out);
    const esp_status s = esp__call_forward(&c, in, f->hop_phi, f->hop_phi + f->hop_count);
    if (!s) esp__hop_count(l, out, esp__hop_flags(in));
    return esp__hop_done(l, s, "forward", count);
}

static esp_status esp__hop_decode(void *user, uint64_t begin, uint64_t count, uint32_t mode, const esp_payload *in) {
    const esp__link *l = user;
    esp_payload one = *in;
    esp__codec_call c;
    esp__hop_call(l, begin, count, &c);
    c.args.mode = mode;
    c.args.payload = &one;
    c.args.scale = mode == ESP_OUT_SET ? l->hops_op->scale : 0.0f;
    return esp__hop_done(l, esp__call_decompress(&c), "decode", count);
}

ESP__FN const esp_hops *esp__hops_begin(esp_ctx *ctx, esp__link *l, const esp__op *op) {
    const esp__feedback *f = op->feedback >= 0 ? &ctx->in_force.feedback[op->feedback] : NULL;
    if (f && f->residual_before) memcpy(f->residual_before, f->residual, f->count * 4u);
    l->hops_ctx = ctx;
    l->hops_op = op;
    memset(&l->hops, 0, sizeof l->hops);
    l->hops.struct_size = sizeof l->hops;
    l->hops.route = op->hops;
    l->hops.user = l;
    l->hops.most = ESP__HOP_ELEMENTS;
    l->hops.bound = esp__hop_bound;
    l->hops.encode = esp__hop_encode;
    l->hops.forward = esp__hop_forward;
    l->hops.decode = esp__hop_decode;
    return &l->hops;
}
