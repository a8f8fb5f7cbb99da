/* gather.c: esp_part returns a rank's part of a sharded tensor (ESP_SHARD), and esp_gather collects all parts. */
#include "espresso_impl/context/context.h"

ESPRESSO_API esp_status esp_part(const esp_ctx *ctx, uint32_t id, int32_t rank, uint64_t *begin, uint64_t *count) {
    esp_status s = esp__usable_id(ctx, id);
    if (s) return s;
    const esp__tensor *t = &ctx->model.tensors[id];
    uint64_t b, n;
    if (rank < 0 || rank >= ctx->job.size)
        return esp__fail(ctx, ESP_E_ARG, "esp_part: tensor '%s': rank %d is none of 0 to %d", t->name, rank,
                         ctx->job.size - 1);
    esp__shard_range(ctx, &t->shard, t->count, rank, &b, &n);
    if (begin) *begin = b;
    if (count) *count = n;
    return ESP_OK;
}

/* ---- at esp_start: codecs and memory ---- */
static uint64_t esp__gather_largest(const esp_ctx *ctx, const esp__tensor *t) {
    uint64_t largest = 0, begin, n;
    for (int32_t r = 0; r < ctx->job.size; r++) {
        esp__shard_range(ctx, &t->shard, t->count, r, &begin, &n);
        if (n > largest) largest = n;
    }
    return largest;
}

static esp_status esp__gather_codec(esp_ctx *ctx, esp__tensor *t) {
    esp__codec *c;
    esp_bound b;
    esp_status s = esp__codec_get(ctx, t->gather_spec, &c);
    if (s) return esp__fail(ctx, s, "tensor '%s': gather: %s", t->name, esp_last_error(ctx));
    if (c->traits.n_rounds > 1 || c->traits.caps & (ESP_CODEC_HAS_STATE | ESP_CODEC_NEEDS_MATRIX))
        return esp__fail(ctx, ESP_E_UNSUPPORTED,
                         "tensor '%s': gather: codec '%s' %s, so it cannot compress parameters: use fp16, bf16 or "
                         "another codec of one round without state",
                         t->name, c->spec,
                         c->traits.n_rounds > 1                    ? "has several rounds"
                         : c->traits.caps & ESP_CODEC_NEEDS_MATRIX ? "needs a matrix"
                                                                   : "keeps state from step to step");
    const esp_tensor like = esp__codec_like(esp__gather_largest(ctx, t), 0, 0);
    s = esp__codec_bound_of(ctx, c, &like, 0, 1, &b);
    if (s) return s;
    t->gather = c;
    t->gather_slot = b.payload_bytes;
    esp__gather *g = &ctx->gather;
    const uint64_t slots = t->gather_slot * (uint64_t)ctx->job.size;
    if (slots > g->slots_bytes) g->slots_bytes = slots;
    if (b.scratch_bytes > g->scratch_bytes) g->scratch_bytes = b.scratch_bytes;
    return ESP_OK;
}

ESP__FN esp_status esp__gather_open(esp_ctx *ctx) {
    esp__gather *g = &ctx->gather;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        if (!(t->flags & ESP_SHARD)) continue;
        if (t->gather_spec) s = esp__gather_codec(ctx, t);
        if (t->device && t->count * 4u > g->host_bytes) g->host_bytes = t->count * 4u;
    }
    if (s) return s;
    if (g->slots_bytes) g->slots = esp__alloc(ctx, g->slots_bytes);
    if (g->scratch_bytes) g->scratch = esp__alloc(ctx, g->scratch_bytes);
    if (g->host_bytes) g->host = esp__alloc(ctx, g->host_bytes);
    if ((g->slots_bytes && !g->slots) || (g->scratch_bytes && !g->scratch) || (g->host_bytes && !g->host))
        return esp__fail(ctx, ESP_E_NOMEM, "esp_start: out of memory for esp_gather");
    return ESP_OK;
}

ESP__FN void esp__gather_close(esp_ctx *ctx) {
    esp__free(ctx, ctx->gather.slots);
    esp__free(ctx, ctx->gather.scratch);
    esp__free(ctx, ctx->gather.host);
}

/* Gathers uncompressed parts on one level of the network after another, in the reverse order of the reduce-scatters
 * that made the parts. `base` is the tensor's memory. */
static esp_status esp__gather_numbers(esp_ctx *ctx, const esp__tensor *t, float *base) {
    esp__shard cuts = t->shard;
    const uint64_t width = cuts.width ? cuts.width : 1;
    esp_status s = ESP_OK;
    while (cuts.n && !s) {
        uint64_t mine, n_mine, all, n_all;
        const uint8_t scope = cuts.scopes[cuts.n - 1];
        esp_coll c;
        esp__shard_range(ctx, &cuts, t->count, ctx->job.rank, &mine, &n_mine);
        cuts.n--;
        esp__shard_range(ctx, &cuts, t->count, ctx->job.rank, &all, &n_all);
        esp__coll_init(&c, ESP_COLL_ALLGATHER, ESP_F32, n_all / width, base, 0);
        c.width = width;
        c.src.ptr = base + mine, c.src.bytes = n_mine * 4u;
        c.dst.ptr = base + all, c.dst.bytes = n_all * 4u;
        if (n_all) s = esp__request_run_at(ctx, scope, &c, "esp_gather");
    }
    return s;
}

/* esp__gather_payloads collects payloads over the levels shard->scopes[], the last one first. When all but the first
 * n_cuts levels are done, rank p->rank holds *n payloads. Returns the index of the first of them. */
static uint64_t esp__gather_slot(const esp__topology *p, const esp__shard *shard, uint32_t n_cuts, uint64_t *n) {
    uint64_t at = 0;
    *n = 1;
    for (uint32_t k = 0; k < shard->n; k++) {
        const uint64_t size = (uint64_t)esp__group_size(p, shard->scopes[k]);
        at = at * size + (k < n_cuts ? (uint64_t)esp__group_index(p, shard->scopes[k]) : 0);
        if (k >= n_cuts) *n *= size;
    }
    return at;
}

static void esp__gather_call(esp_ctx *ctx, const esp__tensor *t, float *data, uint64_t begin, uint64_t n, uint64_t slot,
                             uint64_t *used, esp__codec_call *c) {
    esp__call_begin(c, t->gather, esp__host_stream(), data + begin, n);
    c->args.step = ctx->steps.step;
    c->args.seed = ctx->config.seed;
    c->args.source = (uint32_t)ctx->job.rank;
    c->part.key = t->key;
    c->offset = begin;
    esp__call_scratch(c, ctx->gather.scratch, ctx->gather.scratch_bytes);
    esp__call_payload(c, ctx->gather.slots + slot * t->gather_slot, t->gather_slot, used);
}

/* Decodes even this rank's own part, so that all ranks get the same bits. */
static esp_status esp__gather_decode(esp_ctx *ctx, const esp__tensor *t, float *base) {
    esp_status s = ESP_OK;
    for (int32_t r = 0; r < ctx->job.size && !s; r++) {
        esp__topology of = ctx->job.topo;
        esp__codec_call c;
        uint64_t begin, n, one;
        of.rank = r;
        const uint64_t slot = esp__gather_slot(&of, &t->shard, t->shard.n, &one);
        esp__shard_range(ctx, &t->shard, t->count, r, &begin, &n);
        esp__gather_call(ctx, t, base, begin, n, slot, NULL, &c);
        c.args.mode = ESP_OUT_SET;
        s = esp__call_decompress(&c);
        if (s)
            return esp__fail(ctx, s, "esp_gather: tensor '%s': codec '%s' cannot decode the part of rank %d: %s",
                             t->name, t->gather->spec, r, esp_status_text(s));
    }
    return s;
}

static esp_status esp__gather_payloads(esp_ctx *ctx, const esp__tensor *t, float *base) {
    uint64_t begin, n, have, used = 0;
    esp__codec_call c;
    const uint64_t fp = esp__fp_default();
    esp__shard_range(ctx, &t->shard, t->count, ctx->job.rank, &begin, &n);
    esp__gather_call(ctx, t, base, begin, n, esp__gather_slot(&ctx->job.topo, &t->shard, t->shard.n, &have), &used, &c);
    esp_status s = esp__call_compress(&c, NULL, NULL);
    if (s)
        s = esp__fail(ctx, s, "esp_gather: tensor '%s': codec '%s' failed to compress %llu elements: %s", t->name,
                      t->gather->spec, (unsigned long long)n, esp_status_text(s));
    for (uint32_t k = t->shard.n; k-- > 0 && !s;) {
        uint64_t n_src, n_dst;
        const uint64_t src = esp__gather_slot(&ctx->job.topo, &t->shard, k + 1, &n_src),
                       dst = esp__gather_slot(&ctx->job.topo, &t->shard, k, &n_dst);
        esp_coll x;
        esp__coll_init(&x, ESP_COLL_ALLGATHER, 0, n_dst, ctx->gather.slots, 0);
        x.slot_bytes = t->gather_slot;
        x.src.ptr = ctx->gather.slots + src * t->gather_slot, x.src.bytes = n_src * t->gather_slot;
        x.dst.ptr = ctx->gather.slots + dst * t->gather_slot, x.dst.bytes = n_dst * t->gather_slot;
        s = esp__request_run_at(ctx, t->shard.scopes[k], &x, "esp_gather");
    }
    if (!s) s = esp__gather_decode(ctx, t, base);
    esp__fp_restore(fp);
    return s;
}

static esp_status esp__gather_host(esp_ctx *ctx, const esp__tensor *t, float *base) {
    return t->gather ? esp__gather_payloads(ctx, t, base) : esp__gather_numbers(ctx, t, base);
}

ESPRESSO_API esp_status esp_gather(esp_ctx *ctx, uint32_t id, float *params, esp_stream stream) {
    esp_status s = esp__usable_id(ctx, id);
    if (!s) s = esp__between_steps(ctx, "esp_gather");
    if (s) return s;
    const esp__tensor *t = &ctx->model.tensors[id];
    if (!params) return esp__fail(ctx, ESP_E_ARG, "esp_gather: tensor '%s': params is NULL", t->name);
    s = esp__stream_check(ctx, t, stream, "esp_gather");
    if (s || !(t->flags & ESP_SHARD)) return s;
    if (!t->device) return esp__gather_host(ctx, t, params);
    uint64_t begin, n;
    float *host = (float *)(void *)ctx->gather.host;
    if (esp__stream_async(stream)) s = esp__stream_settle(ctx, t->device, stream);
    esp__shard_range(ctx, &t->shard, t->count, ctx->job.rank, &begin, &n);
    if (!s) s = esp__device_copy(ctx, ESP__CPU_INDEX, host + begin, t->device, params + begin, n * 4u);
    if (!s) s = esp__gather_host(ctx, t, host);
    return s ? s : esp__device_copy(ctx, t->device, params, ESP__CPU_INDEX, host, t->count * 4u);
}
