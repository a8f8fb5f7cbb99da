/* codecs.c: measures codecs while all ranks of the job call them at once, as in a step. Must not know what the figures are for. */
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/costs/costs.h"

/* What is measured: compressing, decompressing one payload, and decompressing two into the same elements. */
enum { ESP__SURVEY_COMPRESS, ESP__SURVEY_DECOMPRESS, ESP__SURVEY_SUM, ESP__SURVEY_CALLS };

/* The memory of calls: arrays of max_elements each. Smaller calls use one place of an array after another, so that they do not
 * read what the call before left in the cache. */
typedef struct esp__survey_bench {
    esp_ctx *ctx;
    const esp__codec *codec;
    const float *data;
    float *residual, *out, *phi;
    uint8_t *payload, *other; /* other: a copy */
    esp_buf state, scratch;
    uint64_t payload_bytes, used, elements, max, calls;
    uint32_t first_round;
    esp_tensor like; /* what is compressed: for codecs that use rows and columns a matrix of about `elements` */
} esp__survey_bench;

/* An array of `elements` numbers, or for a codec of matrices the one of nearly as many that is closest to a square. */
static esp_tensor esp__survey_like(const esp__codec *c, uint64_t elements) {
    uint64_t rows = 1;
    if (!(c->traits.caps & ESP_CODEC_NEEDS_MATRIX) || !elements) return esp__codec_like(elements, 0, 0);
    while (rows * rows * 4 <= elements) rows *= 2;
    return esp__codec_like(elements / rows * rows, rows, elements / rows);
}

static uint64_t esp__survey_round(uint64_t bytes) { return (bytes + 63u) / 64u * 64u; }

/* Divides s->work into the arrays that a codec with bound `b` needs, and returns their bytes in all. work NULL: only adds up. */
static uint64_t esp__survey_share(const esp__survey *s, const esp_bound *b, esp__survey_bench *w) {
    uint64_t n = esp__survey_round(s->max_elements * 4u), at = 0;
    uint8_t *p = s->work;
    w->residual = p ? (float *)(void *)p : NULL;
    w->out = p ? (float *)(void *)(p + n) : NULL;
    w->phi = p ? (float *)(void *)(p + 2 * n) : NULL; /* two arrays, as in esp__compress_unfused */
    at = 4 * n;
    w->payload = p ? p + at : NULL;
    w->payload_bytes = esp__survey_round(b->payload_bytes);
    w->other = p ? p + at + w->payload_bytes : NULL;
    at += 2 * w->payload_bytes;
    w->state.ptr = p ? p + at : NULL;
    at += esp__survey_round(b->state_bytes);
    w->scratch.ptr = p ? p + at : NULL;
    w->scratch.bytes = b->scratch_bytes;
    return at + esp__survey_round(b->scratch_bytes);
}

ESP__FN esp_status esp__survey_codec_add(esp_ctx *ctx, esp__survey *s, const char *spec) {
    esp__survey_bench w;
    esp_bound b;
    esp__codec *c;
    if (s->n_codecs == ESP__SURVEY_CODECS)
        return esp__fail(ctx, ESP_E_ARG, "codec '%s': at most %d codecs are measured at a time", spec,
                         ESP__SURVEY_CODECS);
    if (strlen(spec) >= ESP__SPEC_MAX) return esp__fail(ctx, ESP_E_ARG, "codec '%.40s...': too long", spec);
    esp_status st = esp__codec_get(ctx, spec, &c);
    memset(&w, 0, sizeof w);
    if (!st) w.like = esp__survey_like(c, s->max_elements);
    if (!st) st = esp__alone_bound(ctx, c, &w.like, &b, &w.first_round);
    if (st) return st;
    uint8_t *work = s->work;
    s->work = NULL;
    uint64_t need = esp__survey_share(s, &b, &w);
    s->work = work;
    if (need > s->work_bytes) {
        esp__free(ctx, s->work);
        s->work = esp__alloc(ctx, need);
        s->work_bytes = s->work ? need : 0;
        if (!s->work)
            return esp__fail(ctx, ESP_E_NOMEM, "codec '%s': out of memory: measuring it takes %llu bytes", spec,
                             (unsigned long long)need);
    }
    esp__survey_codec *k = &s->codecs[s->n_codecs++];
    memset(k, 0, sizeof *k);
    snprintf(k->spec, sizeof k->spec, "%s", spec);
    k->codec = c;
    return ESP_OK;
}

static uint64_t esp__survey_places(const esp__survey_bench *w) {
    uint64_t n = w->max / w->elements;
    return n > 256 ? 256 : n;
}

static esp_status esp__survey_two(const esp__survey_bench *w, esp__codec_call *c) {
    esp_payload both[2];
    esp__call_payload(c, w->other, w->payload_bytes, NULL);
    both[1] = c->payload;
    esp__call_payload(c, w->payload, w->payload_bytes, NULL);
    both[0] = c->payload;
    c->args.payload = both;
    c->args.n_payloads = 2;
    return esp__call_decompress(c);
}

/* One call as an op of a step makes it, with a token. */
static esp_status esp__survey_call(esp__survey_bench *w, int what) {
    const int decompress = what != ESP__SURVEY_COMPRESS;
    esp__codec_call c;
    uint64_t n = w->like.count, at = w->calls % esp__survey_places(w) * w->elements / 16u * 16u;
    esp_status st;
    esp__call_begin(&c, w->codec, decompress ? w->out + at : w->data + at, n);
    c.args.step = w->calls++;
    c.args.seed = w->ctx->config.seed;
    c.args.source = (uint32_t)w->ctx->job.rank;
    c.args.flags = w->codec->own_memory ? ESP_ARG_OWN_MEMORY : 0u;
    esp__call_state(&c, w->state.ptr, w->state.bytes);
    esp__call_scratch(&c, w->scratch.ptr, w->scratch.bytes);
    c.part.rows = w->like.rows, c.part.cols = w->like.cols;
    if (!decompress) esp__call_residual(&c, w->codec->feedback ? w->residual + at : NULL);
    int token = esp__token_take(w->ctx, n);
    if (what == ESP__SURVEY_SUM)
        st = esp__survey_two(w, &c);
    else if (decompress)
        st = esp__alone_decompress(&c, w->first_round, w->payload, w->payload_bytes);
    else
        st = esp__alone_compress(&c, w->first_round, w->payload, w->payload_bytes, &w->used, w->phi, w->phi + w->max);
    esp__token_put(w->ctx, token);
    return st;
}

/* What this rank learns about the codec from its first call, which has no feedback yet. */
typedef struct esp__survey_first {
    int32_t status;
    uint32_t reserved0;
    double used, error, ns[2];
} esp__survey_first;

static void esp__survey_try(esp__survey_bench *w, esp__survey_first *f) {
    double off = 0.0, whole = 0.0;
    memset(f, 0, sizeof *f);
    memset(w->residual, 0, esp__survey_places(w) * w->elements * 4u);
    if (w->state.bytes) memset(w->state.ptr, 0, w->state.bytes);
    for (int again = 0; again < 2 && !f->status; again++) { /* the second one is timed */
        w->calls = 0;
        for (int d = 0; d < 2 && !f->status; d++) {
            uint64_t start = esp__now_ns();
            w->calls = 0; /* both calls use the same place */
            f->status = esp__survey_call(w, d);
            f->ns[d] = (double)(esp__now_ns() - start);
        }
        for (uint64_t i = 0; i < w->like.count && !again; i++) {
            double x = (double)w->data[i], e = (double)w->out[i] - x;
            whole += x * x;
            off += e * e;
        }
        if (!again) f->used = (double)w->used;
    }
    f->error = whole > 0.0 ? off / whole : 0.0;
}

/* All ranks begin together and make `calls` calls each. *ns: the mean time of one call on this rank. */
static esp_status esp__survey_run(esp__survey_bench *w, int what, uint32_t calls, int *failed, double *ns) {
    uint8_t one = 1;
    esp_status st = esp__peers_allgather(w->ctx->job.peers, NULL, w->ctx->job.size, &one, esp__job_of(w->ctx)->room, 1);
    if (st) return st;
    uint64_t start = esp__now_ns();
    for (uint32_t i = 0; i < calls && !*failed; i++) *failed = esp__survey_call(w, what) != ESP_OK;
    *ns = (double)(esp__now_ns() - start) / calls;
    return ESP_OK;
}

/* *ns: the median over the runs of the slowest rank's time. */
static void esp__survey_runs(const esp_ctx *ctx, const double *all, uint32_t repeats, int which, double *ns,
                             double *spread) {
    double slowest[ESP__PROBE_REPEATS];
    for (uint32_t i = 0; i < repeats; i++) {
        slowest[i] = 0.0;
        for (int32_t r = 0; r < ctx->job.size; r++) {
            double one = all[((uint32_t)r * ESP__SURVEY_CALLS + (uint32_t)which) * ESP__PROBE_REPEATS + i];
            if (one > slowest[i]) slowest[i] = one;
        }
    }
    *ns = esp__median(slowest, repeats);
    *spread = esp__quartile_distance(slowest, repeats) / (*ns + 1.0);
}

static void esp__survey_payload(esp__survey_codec *k, double elements, double used) {
    if (k->sizes[0] <= 0.0 || elements < k->sizes[0]) k->sizes[0] = elements, k->used[0] = used;
    if (elements >= k->sizes[1]) k->sizes[1] = elements, k->used[1] = used;
    k->unit_bytes = 1.0;
    k->units = k->sizes[1] > k->sizes[0] ? (k->used[1] - k->used[0]) / (k->sizes[1] - k->sizes[0])
                                         : (used - ESP_PAYLOAD_HEADER) / elements;
    if (k->units < 0.0) k->units = 0.0;
    k->header_bytes = k->used[1] - k->units * k->sizes[1];
    if (k->header_bytes < 0.0) k->header_bytes = 0.0;
}

/* Combines all ranks' first calls: the largest error, the largest payload, and how many calls make a run long enough to time. */
static esp_status esp__survey_meet(esp_ctx *ctx, esp__survey_codec *k, esp__survey_first *mine, uint64_t elements) {
    esp__survey_first *all = ctx->job.room;
    _Static_assert(sizeof *mine <= ESP__JOB_ROOM, "it must fit into the room of a rank");
    esp_status st = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, mine, all, sizeof *mine);
    for (int32_t r = 0; r < ctx->job.size && !st; r++) {
        if (all[r].status)
            st = esp__fail(ctx, (esp_status)all[r].status, "measuring codec '%s': %llu elements on rank %d: %s",
                           k->spec, (unsigned long long)elements, r, esp_status_text((esp_status)all[r].status));
        if (all[r].used > mine->used) mine->used = all[r].used;
        if (all[r].error > mine->error) mine->error = all[r].error;
        for (int d = 0; d < 2; d++)
            if (all[r].ns[d] > mine->ns[d]) mine->ns[d] = all[r].ns[d];
    }
    if (st) return st;
    if ((double)elements >= k->sizes[1]) k->error = mine->error < 1.0 ? mine->error : 1.0;
    esp__survey_payload(k, (double)elements, mine->used);
    return ESP_OK;
}

/* `runs`: room for this rank's [ESP__SURVEY_CALLS][ESP__PROBE_REPEATS] times, then for those of all ranks. */
static esp_status esp__survey_measure(esp__survey_bench *w, const esp__survey_first *f, uint32_t repeats, double *runs,
                                      int *failed) {
    esp_status st = ESP_OK;
    const uint32_t room = ESP__SURVEY_CALLS * ESP__PROBE_REPEATS;
    memset(runs, 0, room * sizeof *runs);
    memcpy(w->other, w->payload, w->payload_bytes);
    for (int d = 0; d < (w->codec->traits.n_rounds > 1 ? ESP__SURVEY_SUM : ESP__SURVEY_CALLS) && !st; d++) {
        double calls =
            ESP__SURVEY_ROUND_NS / (f->ns[d != ESP__SURVEY_COMPRESS] * (d == ESP__SURVEY_SUM ? 2.0 : 1.0) + 1.0);
        uint32_t n = calls < 1.0 ? 1u : calls > ESP__SURVEY_BATCH ? (uint32_t)ESP__SURVEY_BATCH : (uint32_t)calls;
        for (uint32_t i = 0; i < repeats && !st; i++)
            st = esp__survey_run(w, d, n, failed, &runs[(uint32_t)d * ESP__PROBE_REPEATS + i]);
    }
    if (!st && *failed) runs[0] = -1.0; /* tells the other ranks that this one failed */
    double *all = runs + room;
    if (!st) st = esp__peers_allgather(w->ctx->job.peers, NULL, w->ctx->job.size, runs, all, room * sizeof *runs);
    for (int32_t r = 0; r < w->ctx->job.size && !st; r++) *failed |= all[(uint32_t)r * room] < 0.0;
    return st;
}

ESP__FN esp_status esp__survey_codec_at(esp_ctx *ctx, esp__survey *s, uint32_t codec, uint64_t elements,
                                        uint32_t repeats) {
    esp__survey_codec *k = &s->codecs[codec];
    esp__survey_first first;
    esp__survey_bench w;
    esp_bound b;
    int failed = 0;
    if (codec >= s->n_codecs || !elements || elements > s->max_elements)
        return esp__fail(ctx, ESP_E_ARG, "measuring codecs: codec %u, %llu elements: there are %u, with room for %llu",
                         codec, (unsigned long long)elements, s->n_codecs, (unsigned long long)s->max_elements);
    if (repeats < 1) repeats = 1;
    if (repeats > ESP__PROBE_REPEATS) repeats = ESP__PROBE_REPEATS;
    memset(&w, 0, sizeof w);
    w.like = esp__survey_like(k->codec, s->max_elements);
    esp_status st = esp__alone_bound(ctx, k->codec, &w.like, &b, &w.first_round);
    if (st) return st;
    w.ctx = ctx, w.codec = k->codec, w.data = s->data;
    w.elements = elements, w.max = s->max_elements;
    esp__survey_share(s, &b, &w);
    w.like = esp__survey_like(k->codec, elements);
    st = esp__alone_bound(ctx, k->codec, &w.like, &b, &w.first_round);
    if (st) return st;
    w.state.bytes = b.state_bytes;
    w.scratch.bytes = b.scratch_bytes;
    const uint32_t room = ESP__SURVEY_CALLS * ESP__PROBE_REPEATS;
    double *runs = esp__alloc(ctx, (uint64_t)(ctx->job.size + 1) * room * sizeof *runs);
    esp__survey_try(&w, &first);
    if (!runs) first.status = ESP_E_NOMEM; /* the other ranks learn it in esp__survey_meet */
    st = esp__survey_meet(ctx, k, &first, elements);
    if (!st) st = esp__survey_measure(&w, &first, repeats, runs, &failed);
    if (!st && failed) st = esp__fail(ctx, ESP_E_CORRUPT, "measuring codec '%s': a call failed", k->spec);
    esp__survey_curve *const curves[] = {&k->compress, &k->decompress, &k->decompress_more};
    double one = 0.0; /* decompressing one payload */
    for (int d = 0; d < (k->codec->traits.n_rounds > 1 ? ESP__SURVEY_SUM : ESP__SURVEY_CALLS) && !st; d++) {
        double ns, spread;
        esp__survey_runs(ctx, runs + room, repeats, d, &ns, &spread);
        ns /= esp__survey_locals(ctx);
        if (d == ESP__SURVEY_DECOMPRESS) one = ns;
        if (d == ESP__SURVEY_SUM) ns = ns > one ? ns - one : 0.0;
        esp__survey_observe(curves[d], (double)elements, ns, ns, spread);
    }
    esp__free(ctx, runs);
    if (!st) esp__survey_noise(s);
    return st;
}
