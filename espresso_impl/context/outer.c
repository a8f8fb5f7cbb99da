/* outer.c: outer contexts. Ranks train by themselves, and now and then average how far their parameters have moved from
 * an anchor, which is the same on all ranks (DiLoCo: Douillard et al. 2023; fragments, delay and alpha: Streaming
 * DiLoCo, Douillard et al. 2025). A round is a step of the executor: each tensor is pushed once, and the tensors of a
 * fragment together. At most one fragment is under way, so all fragments share memory for what they push. */
#include "codecs/common/half.h"
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/context/outer.h"
#include "espresso_impl/context/state.h"
#include "espresso_impl/strategy/fragments.h"
#include <math.h>

/* ---- fragments --------------------------------------------------------------------------------------------------- */
ESP__FN uint32_t esp__outer_turn(const esp__outer *o, uint32_t f) {
    return (uint32_t)((uint64_t)(f + 1) * o->every / o->fragments);
}

static uint64_t esp__outer_count(const void *model, uint32_t tensor) {
    return ((const esp__model *)model)->tensors[tensor].count;
}

static void *esp__outer_take(esp_ctx *ctx, const esp__outer *o, const esp__tensor *t, uint64_t n) {
    return esp__device_take(ctx, t->device, n * sizeof(float),
                            o->flags & ESP_OUTER_HOST ? ESP_MEM_PINNED : ESP_MEM_DEVICE);
}

static void esp__outer_give(esp_ctx *ctx, const esp__outer *o, const esp__tensor *t, float *p, uint64_t n) {
    esp__device_give(ctx, t->device, p, n * sizeof(float), o->flags & ESP_OUTER_HOST ? ESP_MEM_PINNED : ESP_MEM_DEVICE);
}

/* Gives the tensors of each fragment their places in o->room; the first pass only counts. */
static void esp__outer_place(const esp_ctx *ctx, esp__outer *o, bool count) {
    for (uint32_t f = 0; f < o->fragments; f++) {
        uint64_t at[ESP__DEVICES_MAX] = {0};
        for (uint32_t i = o->first[f]; i < o->first[f + 1]; i++) {
            const esp__tensor *t = &ctx->model.tensors[i];
            if (!count) o->tensors[i].pushed = o->room[t->device] + at[t->device];
            at[t->device] += (esp__outer_bytes(t) + 255u) / 256u * 256u;
            if (at[t->device] > o->room_bytes[t->device]) o->room_bytes[t->device] = at[t->device];
        }
    }
}

static esp_status esp__outer_no_memory(const esp_ctx *ctx, const char *what, uint64_t bytes) {
    return esp__fail(ctx, ESP_E_NOMEM, "outer: no memory for %s: about %llu MiB are needed%s", what,
                     (unsigned long long)(bytes >> 20),
                     ctx->outer->flags & ESP_OUTER_HOST ? "" : ", which ESP_OUTER_HOST takes from the host");
}

static esp_status esp__outer_memory(esp_ctx *ctx, esp__outer *o) {
    const esp__model *m = &ctx->model;
    uint64_t bytes = 0;
    bool all = true;
    o->tensors = esp__alloc(ctx, m->n_tensors * sizeof *o->tensors);
    if (!o->tensors) return esp__fail(ctx, ESP_E_NOMEM, "outer: out of memory");
    esp__outer_place(ctx, o, true);
    for (uint32_t k = 0; k < ESP__DEVICES_MAX && all; k++) {
        if (o->room_bytes[k]) all = (o->room[k] = esp__device_take(ctx, k, o->room_bytes[k], ESP_MEM_DEVICE)) != NULL;
        bytes += o->room_bytes[k];
    }
    for (uint32_t i = 0; i < m->n_tensors && all; i++) {
        esp__outer_tensor *x = &o->tensors[i];
        x->anchor = esp__outer_take(ctx, o, &m->tensors[i], m->tensors[i].count);
        if (o->late.window_ns) x->move = esp__outer_take(ctx, o, &m->tensors[i], m->tensors[i].count);
        all = x->anchor && (x->move || !o->late.window_ns);
        bytes += m->tensors[i].count * sizeof(float) * (1u + (o->late.window_ns != 0));
    }
    if (!all) return esp__outer_no_memory(ctx, "anchors", bytes);
    esp__outer_place(ctx, o, false);
    ctx->steps.stats.outer_bytes = bytes;
    return ESP_OK;
}

ESP__FN esp_status esp__outer_parts(esp_ctx *ctx) {
    esp__outer *o = ctx->outer;
    uint64_t bytes = 0;
    bool all = true;
    for (uint32_t i = 0; o && i < ctx->model.n_tensors; i++) {
        esp__outer_tensor *x = &o->tensors[i];
        const esp__tensor *t = &ctx->model.tensors[i];
        if (!x->momentum) esp__shard_range(ctx, &t->shard, t->count, ctx->job.rank, &x->begin, &x->n);
        if (o->momentum == 0.0f || !x->n) continue;
        bytes += x->n * sizeof(float);
        if (x->momentum) continue; /* esp_start had failed */
        x->momentum = esp__outer_take(ctx, o, t, x->n);
        if (x->momentum) ctx->steps.stats.outer_bytes += x->n * sizeof(float);
        all &= x->momentum != NULL;
    }
    return all ? ESP_OK : esp__outer_no_memory(ctx, "momenta", bytes);
}

static void esp__outer_memory_free(esp_ctx *ctx, esp__outer *o) {
    for (uint32_t i = 0; o->tensors && i < ctx->model.n_tensors; i++) {
        const esp__outer_tensor *x = &o->tensors[i];
        esp__outer_give(ctx, o, &ctx->model.tensors[i], x->anchor, ctx->model.tensors[i].count);
        esp__outer_give(ctx, o, &ctx->model.tensors[i], x->momentum, x->n);
        esp__outer_give(ctx, o, &ctx->model.tensors[i], x->move, ctx->model.tensors[i].count);
    }
    for (uint32_t k = 0; k < ESP__DEVICES_MAX; k++) {
        esp__device_give(ctx, k, o->room[k], o->room_bytes[k], ESP_MEM_DEVICE);
        o->room[k] = NULL, o->room_bytes[k] = 0;
    }
    esp__free(ctx, o->tensors);
    esp__free(ctx, o->first);
    o->tensors = NULL, o->first = NULL;
}

ESP__FN esp_status esp__outer_start(esp_ctx *ctx) {
    esp__outer *o = ctx->outer;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        if (t->flags & ESP_SUM)
            return esp__fail(ctx, ESP_E_UNSUPPORTED,
                             "outer: tensor '%s' has ESP_SUM in its flags, but parameters are averaged: leave it out",
                             t->name);
        if (t->flags & ESP_SHARD && o->late.window_ns)
            return esp__fail(ctx, ESP_E_UNSUPPORTED,
                             "outer: tensor '%s' is sharded (ESP_SHARD), so the others need this rank's part, and a "
                             "late rank holds them up: leave window out, or ESP_SHARD",
                             t->name);
        if (t->gather_spec)
            return esp__fail(ctx, ESP_E_UNSUPPORTED,
                             "outer: tensor '%s' names codec '%s' for gathering: anchors are gathered as they are, "
                             "because rounded ones would lose small updates: leave `gather` out",
                             t->name, t->gather_spec);
    }
    if (o->fragments > ctx->model.n_tensors)
        return esp__fail(ctx, ESP_E_ARG, "outer: fragments is %u, but there are only %u tensors", o->fragments,
                         ctx->model.n_tensors);
    if (o->tensors) return ESP_OK; /* esp_start had failed */
    o->first = esp__alloc(ctx, ((uint64_t)o->high[1] + 1) * sizeof *o->first);
    if (!o->first) return esp__fail(ctx, ESP_E_NOMEM, "outer: out of memory");
    esp__outer_divide(ctx, o->fragments, o->first); /* into the fewest fragments, which need the most memory */
    esp_status s = esp__outer_memory(ctx, o);
    if (!s && esp__outer_chooses(o)) esp__outer_timer_begin(ctx);
    if (!s) s = esp__outer_late_open(ctx);
    if (s) esp__outer_memory_free(ctx, o); /* esp_start may be called again */
    return s;
}

ESP__FN void esp__outer_divide(const esp_ctx *ctx, uint32_t fragments, uint32_t *first) {
    esp__fragments_divide(esp__outer_count, &ctx->model, ctx->model.n_tensors, fragments, first);
}

ESP__FN void esp__outer_shape(esp_ctx *ctx, uint32_t every, uint32_t fragments, uint32_t delay) {
    esp__outer *o = ctx->outer;
    o->every = every, o->fragments = fragments, o->delay = delay;
    esp__outer_divide(ctx, fragments, o->first);
    esp__outer_place(ctx, o, false);
}

ESP__FN void esp__outer_close(esp_ctx *ctx) {
    esp__outer *o = ctx->outer;
    if (!o) return;
    esp__outer_late_close(ctx);
    esp__outer_memory_free(ctx, o);
    esp__free(ctx, o);
    ctx->outer = NULL;
}

ESP__FN void esp__outer_agree(const esp_ctx *ctx, esp__text *lines) {
    const esp__outer *o = ctx->outer;
    if (!o) return;
    if (esp__outer_chooses(o))
        esp__text_add(lines, "outer every from %u to %u, fragments from %u to %u, delay from %u to %u", o->low[0],
                      o->high[0], o->low[1], o->high[1], o->low[2], o->high[2]);
    else
        esp__text_add(lines, "outer every=%u,fragments=%u,delay=%u", o->every, o->fragments, o->delay);
    esp__text_add(lines, ",alpha=%g,lr=%g,momentum=%g,nesterov=%d,check=%g,window=%g\n", (double)o->alpha,
                  (double)o->lr, (double)o->momentum, (int)o->nesterov, (double)o->check,
                  (double)o->late.window_ns / 1e6);
}

static uint32_t esp__outer_fragment(const esp__outer *o, uint32_t tensor) {
    uint32_t f = 0;
    while (tensor >= o->first[f + 1]) f++;
    return f;
}

ESP__FN esp_status esp__outer_order(esp_ctx *ctx, esp__strategy *y) {
    const esp__outer *o = ctx->outer;
    if (!o) return ESP_OK;
    for (uint32_t i = 0; i < y->n_units; i++) {
        const esp__unit *u = &y->units[i];
        const uint32_t f = esp__outer_fragment(o, u->place.first);
        if (u->place.first + u->place.n > o->first[f + 1])
            return esp__fail(
                ctx, ESP_E_ARG,
                "the strategy synchronizes '%s' and tensor '%s' together, which belong to fragments %u and "
                "%u of the outer loop: use a strategy made for these fragments, layerwise or fp32",
                u->name, ctx->model.tensors[o->first[f + 1]].name, f + 1, f + 2);
    }
    uint32_t *sorted = esp__alloc(ctx, (uint64_t)y->n_order * sizeof *sorted + 1), n = 0;
    if (!sorted) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    for (uint32_t f = 0; f < o->fragments; f++)
        for (uint32_t k = 0; k < y->n_order; k++) {
            const uint32_t tensor = y->units[y->order[k] >> 8].place.first;
            if (tensor >= o->first[f] && tensor < o->first[f + 1]) sorted[n++] = y->order[k];
        }
    memcpy(y->order, sorted, n * sizeof *sorted);
    esp__free(ctx, sorted);
    return ESP_OK;
}

/* ---- the trainer's parameters ------------------------------------------------------------------------------------ */
ESP__FN esp_status esp__outer_refuse(const esp_ctx *ctx, const char *what) {
    if (!ctx->outer || ctx->outer->calls) return ESP_OK;
    return esp__fail(ctx, ESP_E_STATE,
                     "%s: this is an outer context (esp_outer_open), whose tensors esp_outer_step synchronizes: add "
                     "tensors that are averaged in every step to another context",
                     what);
}

static esp_status esp__outer_usable(const esp_ctx *ctx, const char *what) {
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!ctx->outer) return esp__fail(ctx, ESP_E_STATE, "%s: call esp_outer_open before esp_start", what);
    return ctx->started ? ESP_OK : esp__fail(ctx, ESP_E_STATE, "%s: call esp_start first", what);
}

ESPRESSO_API esp_status esp_outer_add(esp_ctx *ctx, uint32_t id, void *params) {
    esp_status s = esp__outer_usable(ctx, "esp_outer_add");
    if (!s) s = esp__usable_id(ctx, id);
    if (s) return s;
    const esp__tensor *t = &ctx->model.tensors[id];
    esp__outer_tensor *x = &ctx->outer->tensors[id];
    if (!params) return esp__fail(ctx, ESP_E_ARG, "tensor '%s': esp_outer_add: params is NULL", t->name);
    const bool before = x->params != NULL;
    x->params = params;
    if (!before && ctx->outer->joined) return esp__outer_mix(ctx, id, 0.0f);
    return before ? ESP_OK
                  : esp__device_convert(ctx, t->device, x->anchor, ESP_F32, params, t->dtype, 1.0f, false, t->count);
}

/* Calls look(user, block, bytes) for parts of `data`, which it copies to the host if it must. */
static esp_status esp__outer_look(const esp_ctx *ctx, uint32_t device, const void *data, uint64_t bytes,
                                  void (*look)(void *user, const void *block, uint64_t bytes), void *user) {
    uint8_t block[1 << 15];
    esp_status s = ESP_OK;
    if (device == ESP__CPU_INDEX) return look(user, data, bytes), ESP_OK;
    for (uint64_t at = 0, n; at < bytes && !s; at += n) {
        n = bytes - at < sizeof block ? bytes - at : sizeof block;
        s = esp__device_copy(ctx, ESP__CPU_INDEX, block, device, (const uint8_t *)data + at, n);
        if (!s) look(user, block, n);
    }
    return s;
}

static void esp__outer_hash(void *user, const void *block, uint64_t bytes) {
    uint64_t *sum = user;
    *sum = esp__state_sum(*sum, block, bytes);
}

/* Fails on all ranks unless their anchors are equal. Collective. */
static esp_status esp__outer_compare(esp_ctx *ctx) {
    esp__outer *o = ctx->outer;
    esp__text lines = {.ctx = ctx};
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        uint64_t sum = 0;
        if (!o->tensors[i].params)
            s = esp__fail(ctx, ESP_E_STATE, "tensor '%s': call esp_outer_add for it before esp_outer_step", t->name);
        else
            s = esp__outer_look(ctx, t->device, o->tensors[i].anchor, t->count * 4u, esp__outer_hash, &sum);
        esp__text_add(&lines, "parameters of tensor %s at esp_outer_add: checksum %016llx; call esp_broadcast before\n",
                      t->name, (unsigned long long)sum);
    }
    s = esp__agree_lines(ctx, &lines, s);
    o->compared = !s;
    o->timer.begin_ns = esp__now_ns();
    return s;
}

/* ---- a fragment's turn ------------------------------------------------------------------------------------------- */
/* True if the outer update is the mean of the parameters, and the tensor is not compressed: then the parameters are
 * pushed, and no difference is rounded. */
static bool esp__outer_whole(const esp_ctx *ctx, uint32_t id) {
    const esp__outer *o = ctx->outer;
    const esp__tensor_units *of = &ctx->active.strategy.of_tensor[id];
    bool whole = o->lr == 1.0f && o->momentum == 0.0f && o->check == 0.0f && !o->late.window_ns;
    for (uint32_t i = of->first; i < of->first + of->n && whole; i++)
        whole = !strcmp(ctx->active.strategy.units[i].codec->table->name, ESP__CODEC_NONE);
    return whole;
}

/* Makes `stream` done, so that the library can use the parameters. */
static esp_status esp__outer_settle(esp_ctx *ctx, uint32_t f, esp_stream stream) {
    const esp__outer *o = ctx->outer;
    for (uint32_t i = o->first[f]; i < o->first[f + 1] && esp__stream_async(stream); i++)
        if (ctx->model.tensors[i].device) return esp__stream_settle(ctx, ctx->model.tensors[i].device, stream);
    return ESP_OK;
}

/* The difference begins at the anchor as the parameters can represent it: what f16 or bf16 round is no progress. */
static esp_status esp__outer_difference(esp_ctx *ctx, uint32_t id) {
    const esp__tensor *t = &ctx->model.tensors[id];
    esp__outer_tensor *x = &ctx->outer->tensors[id];
    x->whole = esp__outer_whole(ctx, id);
    esp_status s = ESP_OK;
    if (!x->whole)
        s = esp__device_convert(ctx, t->device, x->pushed, t->dtype, x->anchor, ESP_F32, 1.0f, false, t->count);
    if (!s)
        s = esp__device_convert(ctx, t->device, x->pushed, t->dtype, x->params, t->dtype, x->whole ? 1.0f : -1.0f,
                                !x->whole, t->count);
    return s;
}

typedef struct esp__outer_square {
    esp_dtype dtype;
    double sum;
} esp__outer_square;
static void esp__outer_square_in(void *user, const void *block, uint64_t bytes) {
    esp__outer_square *q = user;
    const float *x = block;
    const uint16_t *h = block;
    for (uint64_t i = 0; q->dtype == ESP_F32 && i < bytes / 4; i++) q->sum += (double)x[i] * (double)x[i];
    for (uint64_t i = 0; q->dtype != ESP_F32 && i < bytes / 2; i++) {
        const double v = (double)(q->dtype == ESP_F16 ? half_from_f16(h[i]) : half_from_bf16(h[i]));
        q->sum += v * v;
    }
}

/* Finds the ranks whose difference in fragment f is not finite, or is longer than `check` times the median of the other
 * ranks' lengths. All ranks find the same. Collective. */
static esp_status esp__outer_outliers(esp_ctx *ctx, uint32_t f) {
    esp__outer *o = ctx->outer;
    const int32_t n = ctx->job.size;
    esp__outer_square mine = {.sum = 0};
    double *all = ctx->job.room, *others = all + n;
    esp_status s = ESP_OK;
    _Static_assert(2 * sizeof *all <= ESP__JOB_ROOM, "two numbers must fit into the room of a rank");
    for (uint32_t i = o->first[f]; i < o->first[f + 1] && !s; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        mine.dtype = t->dtype;
        s = esp__outer_look(ctx, t->device, o->tensors[i].pushed, esp__outer_bytes(t), esp__outer_square_in, &mine);
    }
    if (!s) s = esp__peers_allgather(ctx->job.peers, NULL, n, &mine.sum, all, sizeof mine.sum);
    o->outliers = 0;
    o->outlier = false;
    for (int32_t r = 0; r < n && !s; r++) {
        uint32_t k = 0;
        for (int32_t q = 0; q < n; q++)
            if (q != r && all[q] < INFINITY) others[k++] = all[q];
        const double median = k ? esp__median(others, k) : 0;
        const double limit = median > 0 ? (double)o->check * (double)o->check * median : INFINITY;
        if (all[r] < INFINITY && all[r] <= limit) continue;
        o->outliers++;
        o->outlier |= r == ctx->job.rank;
        if (ctx->job.rank == 0)
            esp__log(ctx, ESP_LOG_WARN, "outer",
                     "rank %d is left out of the mean of fragment %u: its difference has length %g, the median of the "
                     "others is %g (check=%g)",
                     r, f + 1, sqrt(all[r]), sqrt(median), (double)o->check);
    }
    if (esp__shrink_lost(s)) esp__fatal(ctx, s, esp_last_error(ctx));
    return s;
}

ESP__FN esp_status esp__outer_push(esp_ctx *ctx, uint32_t f, esp_stream stream) {
    esp__outer *o = ctx->outer;
    const esp_stream none = {{0, 0}, NULL};
    esp_status s = esp__outer_settle(ctx, f, stream);
    o->timer.pushed_ns = esp__now_ns();
    for (uint32_t i = o->first[f]; i < o->first[f + 1] && !s && !o->late.misses; i++) s = esp__outer_difference(ctx, i);
    if (!s && o->check != 0.0f) s = esp__outer_outliers(ctx, f);
    for (uint32_t i = o->first[f]; i < o->first[f + 1] && !s; i++)
        s = o->outlier || o->late.misses ? esp_push_zero(ctx, i, o->tensors[i].pushed, none)
                                         : esp_push(ctx, i, o->tensors[i].pushed, none);
    if (s) return s;
    o->pushed++;
    o->late.pushes++;
    o->left = o->delay;
    return ESP_OK;
}

typedef struct esp__outer_finite {
    uint32_t word_bytes, exponent;
    bool bad;
} esp__outer_finite;
static void esp__outer_finite_in(void *user, const void *block, uint64_t bytes) {
    esp__outer_finite *f = user;
    uint32_t bad = 0;
    if (f->word_bytes == 4) {
        const uint32_t *x = block;
        for (uint64_t i = 0; i < bytes / 4; i++) bad |= (x[i] & f->exponent) == f->exponent;
    } else {
        const uint16_t *x = block;
        for (uint64_t i = 0; i < bytes / 2; i++) bad |= (x[i] & f->exponent) == f->exponent;
    }
    f->bad |= bad != 0;
}

/* Sets *yes to whether it is true on all ranks. Collective. */
static esp_status esp__outer_all(esp_ctx *ctx, bool *yes) {
    const uint8_t mine = *yes;
    uint8_t *all = ctx->job.room; /* no rank may be without memory, for which others would wait */
    const esp_status s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &mine, all, sizeof mine);
    for (int32_t r = 0; r < ctx->job.size && !s; r++) *yes &= all[r];
    if (esp__shrink_lost(s)) esp__fatal(ctx, s, esp_last_error(ctx));
    return s;
}

/* Waits for the means of fragment f. They are the same on all ranks, and so is *finite. */
static esp_status esp__outer_means(esp_ctx *ctx, uint32_t f, bool *finite) {
    bool sharded = false;
    const esp__outer *o = ctx->outer;
    const uint64_t begin = esp__now_ns();
    esp_status s = ESP_OK;
    for (uint32_t i = o->first[f]; i < o->first[f + 1] && !s; i++) s = esp_wait(ctx, i);
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->steps.stats.outer_wait_ns += esp__now_ns() - begin;
    pthread_mutex_unlock(&ctx->lanes.lock);
    *finite = true;
    for (uint32_t i = o->first[f]; i < o->first[f + 1] && !s && *finite; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        esp__outer_finite look = {(uint32_t)esp_dtype_bytes(t->dtype),
                                  t->dtype == ESP_F32   ? 0x7f800000u
                                  : t->dtype == ESP_F16 ? 0x7c00u
                                                        : 0x7f80u,
                                  false};
        const esp__outer_tensor *x = &o->tensors[i];
        const uint64_t word = esp_dtype_bytes(t->dtype);
        s = esp__outer_look(ctx, t->device, (const uint8_t *)x->pushed + x->begin * word, x->n * word,
                            esp__outer_finite_in, &look);
        *finite = !look.bad;
    }
    for (uint32_t i = o->first[f]; i < o->first[f + 1]; i++) sharded |= ctx->model.tensors[i].flags & ESP_SHARD;
    return s || !sharded ? s : esp__outer_all(ctx, finite);
}

/* Gives all ranks the anchor, of which each one has updated its part. */
static esp_status esp__outer_gather(esp_ctx *ctx, uint32_t id) {
    const uint64_t begin = esp__now_ns();
    const esp_status s = esp_gather(ctx, id, ctx->outer->tensors[id].anchor, (esp_stream){{0, 0}, NULL});
    const uint64_t took = esp__now_ns() - begin;
    ctx->outer->timer.gather_ns += took; /* no delay hides it */
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->steps.stats.outer_wait_ns += took;
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

/* anchor -= lr * d, where d is the mean g of all ranks' differences, or with momentum m = momentum * m + g, or with
 * Nesterov's g + momentum * m. */
static esp_status esp__outer_update(esp_ctx *ctx, uint32_t id) {
    const esp__outer *o = ctx->outer;
    const esp__tensor *t = &ctx->model.tensors[id];
    const esp__outer_tensor *x = &o->tensors[id];
    const uint32_t on = t->device;
    const uint64_t n = x->n;
    const uint8_t *pushed = (const uint8_t *)x->pushed + x->begin * esp_dtype_bytes(t->dtype);
    float *anchor = x->anchor + x->begin;
    /* the mean over the ranks that were not left out */
    const float share = (float)((double)ctx->job.size / (double)(ctx->job.size - (int32_t)o->outliers));
    esp_status s = x->whole ? esp__device_convert(ctx, on, anchor, ESP_F32, pushed, t->dtype, 1.0f, false, n) : ESP_OK;
    if (x->momentum) {
        s = esp__device_add(ctx, on, x->momentum, x->momentum, o->momentum, 0, n);
        if (!s) s = esp__device_convert(ctx, on, x->momentum, ESP_F32, pushed, t->dtype, share, true, n);
        if (!s) s = esp__device_add(ctx, on, anchor, x->momentum, -o->lr * (o->nesterov ? o->momentum : 1.0f), 1, n);
    }
    if (!s && !x->whole && (!x->momentum || o->nesterov))
        s = esp__device_convert(ctx, on, anchor, ESP_F32, pushed, t->dtype, -o->lr * share, true, n);
    return s || !(t->flags & ESP_SHARD) ? s : esp__outer_gather(ctx, id);
}

/* params = alpha * params + (1 - alpha) * anchor */
ESP__FN esp_status esp__outer_mix(esp_ctx *ctx, uint32_t id, float alpha) {
    const esp__tensor *t = &ctx->model.tensors[id];
    const esp__outer_tensor *x = &ctx->outer->tensors[id];
    esp_status s = ESP_OK;
    if (alpha != 0.0f)
        s = esp__device_convert(ctx, t->device, x->params, t->dtype, x->params, t->dtype, alpha, false, t->count);
    return s ? s
             : esp__device_convert(ctx, t->device, x->params, t->dtype, x->anchor, ESP_F32, 1.0f - alpha, alpha != 0.0f,
                                   t->count);
}

/* Changes a tensor's parameters after an outer update. */
static esp_status esp__outer_follow(esp_ctx *ctx, uint32_t id, bool returns) {
    const esp__outer *o = ctx->outer;
    if (o->late.misses) return ESP_OK;
    if (!o->late.acts) return esp__outer_mix(ctx, id, returns ? 0.0f : o->alpha);
    o->tensors[id].due |= returns ? ESP__OUTER_RETURN : ESP__OUTER_MIX;
    return ESP_OK;
}

ESP__FN esp_status esp__outer_apply(esp_ctx *ctx, esp_stream stream) {
    esp__outer *o = ctx->outer;
    const uint32_t f = o->applied;
    bool finite = true;
    esp_status s = esp__outer_means(ctx, f, &finite);
    if (o->outliers >= (uint32_t)ctx->job.size) finite = false; /* no rank's difference was finite */
    if (!s) s = esp__outer_settle(ctx, f, stream);
    for (uint32_t i = o->first[f]; i < o->first[f + 1] && !s; i++) {
        const bool moves = finite && o->late.misses;
        if (moves) s = esp__outer_late_moves(ctx, i, false);
        if (finite && !s) s = esp__outer_update(ctx, i);
        if (moves && !s) s = esp__outer_late_moves(ctx, i, true);
        if (!s) s = esp__outer_follow(ctx, i, !finite || o->outlier);
    }
    if (s) return s;
    if (!finite && esp__log_speaks(ctx))
        esp__log(ctx, ESP_LOG_WARN, "outer",
                 "a mean of fragment %u has NaN or Inf: all ranks return to the fragment's anchor", f + 1);
    o->timer.exchange_ns += esp__now_ns() - o->timer.pushed_ns;
    if (++o->applied < o->fragments) return ESP_OK;
    o->pushed = o->applied = 0;
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->steps.stats.outer_rounds++;
    pthread_mutex_unlock(&ctx->lanes.lock);
    s = esp_wait_all(ctx);
    return s || !o->timer.on ? s : esp__outer_timed(ctx);
}

static esp_status esp__outer_step(esp_ctx *ctx, esp_stream stream) {
    esp__outer *o = ctx->outer;
    esp_status s = o->compared ? ESP_OK : esp__outer_compare(ctx);
    const bool missed = o->late.missed;
    o->late.missed = false;
    o->late.stepped = true;
    if (s || missed) return s;
    o->at++;
    if (esp__outer_late_called(ctx)) { /* pushes now what others have pushed */
        if (o->pushed > o->applied) s = esp__outer_apply(ctx, stream);
        if (s) return s;
        o->at = esp__outer_turn(o, o->pushed);
    }
    if (o->pushed > o->applied && o->left) o->left--;
    if (o->pushed > o->applied && !o->left)
        s = esp__outer_apply(ctx, stream);
    else if (o->pushed > o->applied)
        esp_test(ctx, o->first[o->pushed] - 1); /* runs ops, if the trainer's threads do that */
    if (s || o->pushed == o->fragments || o->at != esp__outer_turn(o, o->pushed)) return s;
    if (o->pushed + 1 == o->fragments) o->at = 0;
    esp__outer_late_tell(ctx);
    s = esp__outer_push(ctx, o->pushed, stream);
    return s || o->delay ? s : esp__outer_apply(ctx, stream);
}

static esp_status esp__outer_sync(esp_ctx *ctx, esp_stream stream) {
    esp__outer *o = ctx->outer;
    esp_status s = o->compared ? ESP_OK : esp__outer_compare(ctx);
    if (!s) s = esp__outer_late_meet(ctx, stream);
    o->timer.early |= o->at || o->pushed;
    o->late.missed = false;
    if (!s && o->pushed > o->applied) s = esp__outer_apply(ctx, stream);
    /* with a window, inner steps of this round are not the same on all ranks */
    for (bool more = o->at || o->pushed || (o->late.window_ns && o->late.stepped); more && !s; more = o->pushed) {
        s = esp__outer_push(ctx, o->pushed, stream);
        if (!s) s = esp__outer_apply(ctx, stream);
    }
    o->at = 0;
    if (!s) o->late.stepped = false;
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) s = esp__outer_mix(ctx, i, 0.0f);
    return s;
}

static esp_status esp__outer_call(esp_ctx *ctx, esp_stream stream, const char *what,
                                  esp_status (*call)(esp_ctx *ctx, esp_stream stream)) {
    esp_status s = esp__outer_usable(ctx, what);
    if (!s) s = esp__alive(ctx);
    for (uint32_t i = 0; !s && stream.dev.kind > ESP_CPU && i < ctx->model.n_tensors; i++)
        if (ctx->model.tensors[i].device) s = esp__stream_check(ctx, &ctx->model.tensors[i], stream, what);
    if (s) return s;
    s = esp__outer_late_enter(ctx, stream);
    if (s) return s;
    ctx->outer->calls = true;
    s = call(ctx, stream);
    ctx->outer->calls = false;
    esp__outer_late_leave(ctx);
    return s;
}

ESPRESSO_API esp_status esp_outer_step(esp_ctx *ctx, esp_stream stream) {
    return esp__outer_call(ctx, stream, "esp_outer_step", esp__outer_step);
}

ESPRESSO_API esp_status esp_outer_sync(esp_ctx *ctx, esp_stream stream) {
    return esp__outer_call(ctx, stream, "esp_outer_sync", esp__outer_sync);
}

/* ---- between a round's fragments --------------------------------------------------------------------------------- */
ESP__FN esp_status esp__outer_quiet(esp_ctx *ctx) {
    const esp__outer *o = ctx->outer;
    esp__outer_late_pause(ctx);
    esp_status s = esp__alive(ctx);
    if (s) return s;
    if (o->pushed == o->applied) return ESP_OK;
    for (uint32_t i = o->first[o->applied]; i < o->first[o->applied + 1] && !s; i++) s = esp_wait(ctx, i);
    return s;
}

ESP__FN void esp__outer_resume(esp_ctx *ctx) {
    const esp__outer *o = ctx->outer;
    esp__active *f = &ctx->active;
    const uint32_t n = o && o->first ? o->first[o->pushed] : 0;
    if (!n) return;
    for (uint32_t i = 0; i < n; i++) ctx->model.tensors[i].phase = ESP__DONE;
    for (uint32_t i = 0; i < f->strategy.n_units; i++) {
        esp__unit *u = &f->strategy.units[i];
        if (u->place.first < n) u->phase = ESP__DONE, u->pc = u->n_ops;
    }
    for (int k = 0; k < ESP__LEVELS; k++) {
        uint32_t *cursor = &ctx->lanes.links[k].cursor;
        while (*cursor < f->n_sequence[k] &&
               f->strategy.units[f->program.ops[f->sequence[k][*cursor]].unit].place.first < n)
            ++*cursor;
    }
    ctx->steps.n_pushed = ctx->steps.n_done = n;
    ctx->steps.open = 1;
}

ESP__FN esp_status esp__outer_between(const esp_ctx *ctx, const char *what) {
    const esp__outer *o = ctx->outer;
    if (!o || (!o->at && !o->pushed)) return ESP_OK;
    if (o->late.window_ns)
        return esp__fail(ctx, ESP_E_STATE,
                         "%s: a round is under way, and with a window ranks are at different places of it: call "
                         "esp_outer_sync first",
                         what);
    return esp__fail(ctx, ESP_E_STATE, "%s: a round is under way: call esp_outer_sync first, or call it after a round",
                     what);
}

ESP__FN esp_status esp__outer_between_steps(esp_ctx *ctx, const char *what) {
    esp__outer_late_pause(ctx);
    const esp_status s = ctx->outer->late.window_ns ? esp__outer_between(ctx, what) : ESP_OK;
    return s ? s : esp__outer_quiet(ctx);
}

ESP__FN bool esp__outer_compared(const esp_ctx *ctx) { return ctx->outer && ctx->outer->compared; }

ESP__FN void esp__outer_joined(esp_ctx *ctx, bool compared) {
    if (ctx->outer) ctx->outer->joined = true, ctx->outer->compared = compared;
}

ESP__FN void esp__outer_restart(esp_ctx *ctx) {
    if (!ctx->outer) return;
    esp__outer_late_restart(ctx);
    ctx->outer->at = ctx->outer->left = ctx->outer->pushed = ctx->outer->applied = 0;
    ctx->outer->outliers = 0;
    ctx->outer->outlier = false;
    ctx->outer->calls = false;
    if (esp__outer_limits(ctx->outer) || ctx->outer->timer.tries) esp__outer_timer_begin(ctx);
}

ESP__FN esp_status esp__outer_shrunk(esp_ctx *ctx) {
    const esp__outer *o = ctx->outer;
    const esp_stream none = {{0, 0}, NULL};
    esp_status s = ESP_OK;
    if (!o) return ESP_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        const esp_stream on = t->device && !(o->flags & ESP_OUTER_HOST) ? (esp_stream){t->where, NULL} : none;
        s = esp_broadcast_on(ctx, on, o->tensors[i].anchor, t->count * sizeof(float), 0);
        if (!s && o->momentum != 0.0f)
            s = esp_broadcast_on(ctx, on, o->tensors[i].momentum, t->count * sizeof(float), 0);
    }
    return s;
}
