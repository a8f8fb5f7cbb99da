/* codecs.c: measures the speed of codecs. All ranks call the codec at the same time, as in a training step. */
#include "espresso_impl/base/quantile.h"
#include "planner/calibrate/codec_calls.h"

static esp_status esp__calibration_use_own(esp_ctx *ctx, esp__calibration *s, esp_devkind kind) {
    static const char who[] = "measuring codecs";
    const uint64_t bytes = s->max_elements * 4u;
    uint32_t on;
    int32_t count = 0;
    esp_status st = esp__device_open(ctx, (esp_device){kind, 0}, who, &on);
    if (!st) st = esp__device_at(ctx, on)->table->probe(esp__registry_of(ctx)->host, &count);
    if (!st) st = esp__device_open(ctx, (esp_device){kind, ctx->job.topo.local % (count > 0 ? count : 1)}, who, &on);
    if (!st) st = esp__device_use(ctx, on, ctx->job.levels, who);
    if (st) return st;
    s->device = on;
    s->device_data = esp__device_take(ctx, on, bytes, ESP_MEM_DEVICE);
    return s->device_data ? esp__device_copy(ctx, on, s->device_data, ESP__CPU_INDEX, s->data, bytes)
                          : esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory of the device: %llu bytes", who,
                                      (unsigned long long)bytes);
}
ESP__FN esp_status esp__calibration_use(esp_ctx *ctx, esp__calibration *s, esp_devkind kind) {
    return esp__agree_ok(ctx, esp__calibration_use_own(ctx, s, kind));
}

ESP__FN esp_status esp__calibration_codec_add(esp_ctx *ctx, esp__calibration *s, const char *spec) {
    esp__codec *c;
    const esp_devkind kind = esp__device_at(ctx, s->device)->id.kind;
    if (s->n_codecs == ESP__CALIBRATION_CODECS)
        return esp__fail(ctx, ESP_E_ARG, "codec '%s': at most %d codecs are measured at a time", spec,
                         ESP__CALIBRATION_CODECS);
    if (strlen(spec) >= ESP__SPEC_MAX) return esp__fail(ctx, ESP_E_ARG, "codec '%.40s...': too long", spec);
    esp_status st = esp__codec_get(ctx, spec, &c);
    if (!st && s->device) {
        st = esp__codec_on(ctx, c, kind, &c);
        if (!st && (!c || (c->feedback && !(c->traits.caps & ESP_CODEC_FUSED_RESIDUAL))))
            st = esp__fail(ctx, ESP_E_UNSUPPORTED,
                           "codec '%s': it has no table for device '%s': steps run it on the host, so measure it there",
                           spec, esp__device_at(ctx, s->device)->table->name);
    }
    if (!st) st = esp__calibration_reserve(ctx, s, c);
    if (st) return st;
    esp__calibration_codec *k = &s->codecs[s->n_codecs++];
    memset(k, 0, sizeof *k);
    snprintf(k->spec, sizeof k->spec, "%s", spec);
    k->codec = c;
    return ESP_OK;
}

typedef struct esp__calibration_first {
    int32_t status;
    uint32_t reserved0;
    double used, error, ns[2];
} esp__calibration_first;

static void esp__calibration_try(esp__calibration_bench *w, const float *data, esp__calibration_first *f) {
    double off = 0.0, whole = 0.0;
    memset(f, 0, sizeof *f);
    f->status = esp__calibration_clear(w);
    for (int again = 0; again < 2 && !f->status; again++) { /* the first time warms up the caches */
        for (int d = 0; d < 2 && !f->status; d++) {
            uint64_t start = esp__now_ns();
            w->calls = 0;
            f->status = esp__calibration_call(w, d);
            if (!f->status) f->status = esp__calibration_settle(w);
            f->ns[d] = (double)(esp__now_ns() - start);
        }
        if (!again && !f->status) f->status = esp__calibration_error(w, data, &whole, &off);
        if (!again && !f->status) f->status = esp__calibration_used(w);
        if (!again) f->used = (double)w->used;
    }
    f->error = whole > 0.0 ? off / whole : 0.0;
}

/* All ranks begin together and make `calls` calls each. Sets *ns to the mean time of one call on this rank. */
static esp_status esp__calibration_run(esp__calibration_bench *w, int what, uint32_t calls, int *failed, double *ns) {
    uint8_t one = 1;
    esp_status st = esp__peers_allgather(w->ctx->job.peers, NULL, w->ctx->job.size, &one, esp__job_of(w->ctx)->room, 1);
    if (st) return st;
    uint64_t start = esp__now_ns();
    for (uint32_t i = 0; i < calls && !*failed; i++) *failed = esp__calibration_call(w, what) != ESP_OK;
    *failed |= esp__calibration_settle(w) != ESP_OK;
    *ns = (double)(esp__now_ns() - start) / calls;
    return ESP_OK;
}

static void esp__calibration_runs(const esp_ctx *ctx, const double *all, uint32_t repeats, int which, double *ns,
                                  double *spread) {
    double slowest[ESP__PROBE_REPEATS];
    for (uint32_t i = 0; i < repeats; i++) {
        slowest[i] = 0.0;
        for (int32_t r = 0; r < ctx->job.size; r++) {
            double one = all[((uint32_t)r * ESP__CALIBRATION_CALLS + (uint32_t)which) * ESP__PROBE_REPEATS + i];
            if (one > slowest[i]) slowest[i] = one;
        }
    }
    *ns = esp__median(slowest, repeats);
    *spread = esp__quartile_distance(slowest, repeats) / (*ns + 1.0);
}

static void esp__calibration_payload(esp__calibration_codec *k, double elements, double used) {
    if (k->sizes[0] <= 0.0 || elements < k->sizes[0]) k->sizes[0] = elements, k->used[0] = used;
    if (elements >= k->sizes[1]) k->sizes[1] = elements, k->used[1] = used;
    k->unit_bytes = 1.0;
    k->units = k->sizes[1] > k->sizes[0] ? (k->used[1] - k->used[0]) / (k->sizes[1] - k->sizes[0])
                                         : (used - ESP_PAYLOAD_HEADER) / elements;
    if (k->units < 0.0) k->units = 0.0;
    k->header_bytes = k->used[1] - k->units * k->sizes[1];
    if (k->header_bytes < 0.0) k->header_bytes = 0.0;
}

static esp_status esp__calibration_combine(esp_ctx *ctx, esp__calibration_codec *k, esp__calibration_first *mine,
                                           uint64_t elements) {
    esp__calibration_first *all = ctx->job.room;
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
    esp__calibration_payload(k, (double)elements, mine->used);
    return ESP_OK;
}

/* Measures a codec on all ranks. Sets runs[ESP__CALIBRATION_CALLS][ESP__PROBE_REPEATS] to this rank's times, and stores
 * the times of all ranks behind them. */
static esp_status esp__calibration_measure(esp__calibration_bench *w, const esp__calibration_first *f, uint32_t repeats,
                                           double *runs, int *failed) {
    esp_status st = ESP_OK;
    const uint32_t room = ESP__CALIBRATION_CALLS * ESP__PROBE_REPEATS;
    memset(runs, 0, room * sizeof *runs);
    *failed |= esp__calibration_copy(w) != ESP_OK;
    for (int d = 0; d < (w->codec->traits.n_rounds > 1 ? ESP__CALIBRATION_SUM : ESP__CALIBRATION_CALLS) && !st; d++) {
        double calls = ESP__CALIBRATION_ROUND_NS /
                       (f->ns[d != ESP__CALIBRATION_COMPRESS] * (d == ESP__CALIBRATION_SUM ? 2.0 : 1.0) + 1.0);
        uint32_t n = calls < 1.0                      ? 1u
                     : calls > ESP__CALIBRATION_BATCH ? (uint32_t)ESP__CALIBRATION_BATCH
                                                      : (uint32_t)calls;
        for (uint32_t i = 0; i < repeats && !st; i++)
            st = esp__calibration_run(w, d, n, failed, &runs[(uint32_t)d * ESP__PROBE_REPEATS + i]);
    }
    if (!st && *failed) runs[0] = -1.0; /* reports the failure to all ranks */
    double *all = runs + room;
    if (!st) st = esp__peers_allgather(w->ctx->job.peers, NULL, w->ctx->job.size, runs, all, room * sizeof *runs);
    for (int32_t r = 0; r < w->ctx->job.size && !st; r++) *failed |= all[(uint32_t)r * room] < 0.0;
    return st;
}

ESP__FN esp_status esp__calibration_codec_at(esp_ctx *ctx, esp__calibration *s, uint32_t codec, uint64_t elements,
                                             uint32_t repeats) {
    esp__calibration_codec *k = &s->codecs[codec];
    esp__calibration_first first;
    esp__calibration_bench w;
    int failed = 0;
    if (codec >= s->n_codecs || !elements || elements > s->max_elements)
        return esp__fail(ctx, ESP_E_ARG, "measuring codecs: codec %u, %llu elements: there are %u, with room for %llu",
                         codec, (unsigned long long)elements, s->n_codecs, (unsigned long long)s->max_elements);
    if (repeats < 1) repeats = 1;
    if (repeats > ESP__PROBE_REPEATS) repeats = ESP__PROBE_REPEATS;
    esp_status st = esp__calibration_prepare(ctx, s, k->codec, elements, &w);
    if (st) return st;
    const uint32_t room = ESP__CALIBRATION_CALLS * ESP__PROBE_REPEATS;
    double *runs = esp__alloc(ctx, (uint64_t)(ctx->job.size + 1) * room * sizeof *runs);
    esp__calibration_try(&w, s->data, &first);
    if (!runs) first.status = ESP_E_NOMEM; /* esp__calibration_combine reports it to all ranks */
    st = esp__calibration_combine(ctx, k, &first, elements);
    if (!st) st = esp__calibration_measure(&w, &first, repeats, runs, &failed);
    if (!st && failed) st = esp__fail(ctx, ESP_E_CORRUPT, "measuring codec '%s': a call failed", k->spec);
    esp__calibration_curve *const curves[] = {&k->compress, &k->decompress, &k->decompress_more};
    double one = 0.0;
    for (int d = 0; d < (k->codec->traits.n_rounds > 1 ? ESP__CALIBRATION_SUM : ESP__CALIBRATION_CALLS) && !st; d++) {
        double ns, spread;
        esp__calibration_runs(ctx, runs + room, repeats, d, &ns, &spread);
        if (!s->device) ns /= esp__calibration_locals(ctx);
        if (d == ESP__CALIBRATION_DECOMPRESS) one = ns;
        if (d == ESP__CALIBRATION_SUM) ns = ns > one ? ns - one : 0.0;
        esp__calibration_observe(curves[d], (double)elements, ns, ns, spread);
    }
    esp__free(ctx, runs);
    if (!st) esp__calibration_noise(s);
    return st;
}

/* A codec may compress in several rounds, whose payloads are reduced in between. Returns whether the job's backends can
 * reduce them. True for codecs of one round, whose payloads can be gathered instead. */
ESP__FN bool esp__calibration_reduces(const esp_ctx *ctx, const esp__codec *c) {
    const uint64_t side = c->traits.caps & ESP_CODEC_NEEDS_MATRIX ? 32 : 0;
    const esp_tensor like = esp__codec_like(1024, side, side);
    for (uint32_t i = 0; c->traits.n_rounds > 1 && i < c->traits.n_rounds; i++) {
        const esp_round round = esp__codec_round(c, i);
        esp_bound bound;
        if (!round.op || esp__codec_bound_of(ctx, c, &like, i, (uint32_t)ctx->job.size, &bound)) continue;
        for (uint8_t scope = 0; scope < ESP__SCOPES; scope++) {
            const esp_backend *b = esp__backend_of(&ctx->job, scope);
            if (!b || (b->dtypes & ESP_BIT(bound.dtype) && b->reduces & ESP_BIT(round.op))) continue;
            esp__log(ctx, ESP_LOG_WARN, "autopilot", "codec '%s' is left out: backend '%s' cannot reduce its payloads",
                     c->spec, b->name);
            return false;
        }
    }
    return true;
}
