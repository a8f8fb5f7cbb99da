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
#include <stdlib.h>

static uint64_t esp__outer_bytes(const esp__tensor *t) { return t->count * esp_dtype_bytes(t->dtype); }

/* ---- configuration ----------------------------------------------------------------------------------------------- */
/* A method's settings. SparseLoCo has no outer momentum: the residuals of its codec take that place. */
typedef struct esp__outer_method {
    const char *name;
    uint32_t every, fragments, delay;
    float alpha, lr, momentum;
    uint32_t nesterov;
} esp__outer_method;
static const esp__outer_method esp__outer_methods[] = {{"average", 0, 1, 0, 0.0f, 1.0f, 0.0f, 0},
                                                       {"diloco", 500, 1, 0, 0.0f, 0.7f, 0.9f, 1},
                                                       {"streaming", 100, 8, 5, 0.5f, 0.4f, 0.9f, 1},
                                                       {"sparseloco", 30, 1, 0, 0.0f, 1.0f, 0.0f, 0}};

static const esp__outer_method *esp__outer_method_of(const char *name) {
    for (size_t i = 0; i < sizeof esp__outer_methods / sizeof *esp__outer_methods; i++)
        if (!strcmp(name, esp__outer_methods[i].name)) return &esp__outer_methods[i];
    return NULL;
}

static bool esp__outer_number(double v, bool whole, double least, double most) {
    return v >= least && v <= most && (!whole || v == (double)(uint64_t)v);
}

/* Sets the member or limit that `key` names. */
static esp_status esp__outer_set(const esp_ctx *ctx, esp__outer *o, const char *key, double v, const char *said) {
    static const struct {
        const char *key;
        double least, most;
        bool whole;
    } keys[] = {{"every", 1, 1e9, true},
                {"fragments", 1, 1e6, true},
                {"delay", 0, 1e9, true},
                {"max_every", 1, 1e5, true},
                {"max_fragments", 1, ESP__FRAGMENTS_MOST, true},
                {"max_delay", 1, 1e5, true},
                {"nesterov", 0, 1, true},
                {"alpha", 0, 0.9999999, false},
                {"lr", 1e-9, 1e6, false},
                {"momentum", 0, 0.9999999, false},
                {"check", 1, 1e9, false},
                {"window", 1, 3.6e6, false}};
    enum { KEYS = sizeof keys / sizeof *keys };
    static const uint32_t least[] = {1, 1, 0};
    float window = 0;
    float *const numbers[] = {&o->alpha, &o->lr, &o->momentum, &o->check, &window};
    size_t k = 0;
    while (k < KEYS && strcmp(key, keys[k].key)) k++;
    if (k == KEYS)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: '%s' is no parameter: known are every, fragments, delay, the same with max_ before, "
                         "alpha, lr, momentum, nesterov (0 or 1), check and window",
                         key);
    if (!esp__outer_number(v, keys[k].whole, keys[k].least, keys[k].most))
        return esp__fail(ctx, ESP_E_ARG, "outer: %s is %s: expected %s from %g to %g", key, said,
                         keys[k].whole ? "a whole number" : "a number", keys[k].least, keys[k].most);
    if (k < 6)
        o->low[k % 3] = k < 3 ? (uint32_t)v : least[k % 3], o->high[k % 3] = (uint32_t)v;
    else if (k == 6)
        o->nesterov = v != 0;
    else
        *numbers[k - 7] = (float)v;
    if (window > 0) o->late.window_ns = (uint64_t)(v * 1e6);
    return ESP_OK;
}

static esp_status esp__outer_set_text(const esp_ctx *ctx, esp__outer *o, const char *params) {
    char key[ESP__NAME_MAX], text[ESP__SPEC_MAX];
    esp_status s = ESP_OK;
    while (!s && esp_params_next(&params, key, sizeof key, text, sizeof text) > 0) {
        double v;
        if (!esp_params_number(text, NULL, &v))
            return esp__fail(ctx, ESP_E_ARG, "outer: %s is '%s', which is no number", key, text);
        s = esp__outer_set(ctx, o, key, v, text);
    }
    return s;
}

static esp_status esp__outer_set_member(const esp_ctx *ctx, esp__outer *o, const char *key, double v) {
    char said[32];
    esp__format(said, sizeof said, "%g", v);
    if (v == -1.0 && (!strcmp(key, "alpha") || !strcmp(key, "momentum"))) v = 0;
    return esp__outer_set(ctx, o, key, v, said);
}

static esp_status esp__outer_set_members(const esp_ctx *ctx, esp__outer *o, const esp_outer_desc *d) {
    esp_status s = ESP_OK;
    if (d->every) s = esp__outer_set_member(ctx, o, "every", d->every);
    if (!s && d->fragments) s = esp__outer_set_member(ctx, o, "fragments", d->fragments);
    if (!s && d->delay) s = esp__outer_set_member(ctx, o, "delay", d->delay);
    if (!s && d->nesterov) s = esp__outer_set_member(ctx, o, "nesterov", d->nesterov);
    if (!s && d->alpha != 0) s = esp__outer_set_member(ctx, o, "alpha", (double)d->alpha);
    if (!s && d->lr != 0) s = esp__outer_set_member(ctx, o, "lr", (double)d->lr);
    if (!s && d->momentum != 0) s = esp__outer_set_member(ctx, o, "momentum", (double)d->momentum);
    return s;
}

ESP__FN uint32_t esp__outer_turn(const esp__outer *o, uint32_t f) {
    return (uint32_t)((uint64_t)(f + 1) * o->every / o->fragments);
}

/* Checks the longest round that is allowed. */
static esp_status esp__outer_fits(const esp_ctx *ctx, esp__outer *o) {
    o->every = o->high[0], o->fragments = o->low[1], o->delay = o->low[2];
    if (!o->every)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: every is not set: give the inner steps of a round, such as every=30, or max_every=100 "
                         "to let the library choose");
    if (o->fragments > o->every)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: fragments is %u, but a round has only %u inner steps (every): fragments take turns, "
                         "one at a step",
                         o->fragments, o->every);
    if (o->delay > o->every / o->fragments)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: delay is %u, but with every=%u and fragments=%u a fragment's turn comes %u inner "
                         "steps after the one before: delay is at most that",
                         o->delay, o->every, o->fragments, o->every / o->fragments);
    if (esp__outer_chooses(o) && o->high[1] > ESP__FRAGMENTS_MOST)
        return esp__fail(ctx, ESP_E_ARG, "outer: fragments is %u: at most %d, if the library chooses something",
                         o->fragments, (int)ESP__FRAGMENTS_MOST);
    if (o->nesterov && o->momentum == 0.0f)
        return esp__fail(ctx, ESP_E_ARG, "outer: nesterov is set without momentum: set momentum, such as 0.9");
    if (o->late.window_ns && (esp__outer_chooses(o) || o->check != 0.0f))
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: window cannot be set together with %s: ranks exchange %s at once, which a late rank "
                         "would hold up",
                         o->check != 0.0f ? "check" : "max_every, max_fragments or max_delay",
                         o->check != 0.0f ? "lengths" : "times");
    return ESP_OK;
}

static esp_status esp__outer_configure(const esp_ctx *ctx, esp__outer *o, const esp_outer_desc *d) {
    const char *env = getenv("ESPRESSO_OUTER"), *spec = env && *env ? env : d->method, *params;
    char name[ESP__NAME_MAX];
    esp_status s = esp__spec_split(ctx, spec && *spec ? spec : "average", name, &params);
    const esp__outer_method *m = s ? NULL : esp__outer_method_of(name);
    if (s) return s;
    if (!m)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: '%s' is no method: known are average, diloco, streaming and sparseloco", name);
    if (d->flags & ~(uint32_t)ESP_OUTER_HOST)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: flags is %u: known is ESP_OUTER_HOST (%u); was the struct zeroed (ESP_ZERO)?",
                         (unsigned)d->flags, (unsigned)ESP_OUTER_HOST);
    o->flags = d->flags;
    o->low[0] = o->high[0] = m->every;
    o->low[1] = o->high[1] = m->fragments;
    o->low[2] = o->high[2] = m->delay;
    o->alpha = m->alpha, o->lr = m->lr, o->momentum = m->momentum, o->nesterov = m->nesterov != 0;
    s = esp__outer_set_members(ctx, o, d);
    if (!s) s = esp__outer_set_text(ctx, o, params);
    return s ? s : esp__outer_fits(ctx, o);
}

/* An outer loop was opened in this process, or its user was warned that none was. */
static bool esp__outer_known;

ESP__FN void esp__outer_unused(const esp_ctx *ctx) {
    const char *env = getenv("ESPRESSO_OUTER");
    if (!env || !*env || !esp__log_speaks(ctx) || __atomic_exchange_n(&esp__outer_known, true, __ATOMIC_RELAXED))
        return;
    esp__log(ctx, ESP_LOG_WARN, "outer",
             "ESPRESSO_OUTER is \"%s\", but this program calls no esp_outer_open: gradients are averaged in every step",
             env);
}

ESPRESSO_API esp_status esp_outer_open(esp_ctx *ctx, const esp_outer_desc *desc) {
    esp_outer_desc d;
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!desc) return esp__fail(ctx, ESP_E_ARG, "esp_outer_open: the description is NULL");
    if (ctx->started) return esp__fail(ctx, ESP_E_STATE, "esp_outer_open: call it before esp_start");
    if (ctx->outer) return esp__fail(ctx, ESP_E_STATE, "esp_outer_open was already called");
    __atomic_store_n(&esp__outer_known, true, __ATOMIC_RELAXED);
    memset(&d, 0, sizeof d);
    memcpy(&d, desc, desc->struct_size && desc->struct_size < sizeof d ? desc->struct_size : sizeof d);
    esp__outer *o = esp__alloc(ctx, sizeof *o);
    if (!o) return esp__fail(ctx, ESP_E_NOMEM, "esp_outer_open: out of memory");
    s = esp__outer_configure(ctx, o, &d);
    if (s)
        esp__free(ctx, o);
    else
        ctx->outer = o;
    return s;
}

/* ---- fragments --------------------------------------------------------------------------------------------------- */
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
    double *all = esp__alloc(ctx, 2 * (uint64_t)n * sizeof *all), *others = all + n;
    esp_status s = all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "outer: out of memory");
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
    esp__free(ctx, all);
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
    uint8_t *all = esp__alloc(ctx, (uint64_t)ctx->job.size);
    esp_status s = all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "outer: out of memory");
    if (!s) s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &mine, all, sizeof mine);
    for (int32_t r = 0; r < ctx->job.size && !s; r++) *yes &= all[r];
    esp__free(ctx, all);
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

/* ---- saved state ------------------------------------------------------------------------------------------------- */
ESP__FN void esp__outer_save(const esp_ctx *ctx, esp__outer_put put, void *user) {
    const esp__outer *o = ctx->outer;
    if (!o) return;
    const bool momentum = o->momentum != 0.0f, chosen = esp__outer_chooses(o) && !o->timer.on;
    const esp__state_outer head = {
        o->every, o->fragments, o->delay,  (momentum ? ESP__STATE_MOMENTUM : 0u) | (chosen ? ESP__STATE_CHOSEN : 0u),
        o->at,    o->left,      o->pushed, o->applied};
    put(ctx, user, ESP__CPU_INDEX, &head, sizeof head);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        put(ctx, user, t->device, o->tensors[i].anchor, t->count * sizeof(float));
        const uint64_t part[2] = {o->tensors[i].begin, o->tensors[i].n};
        if (momentum && t->flags & ESP_SHARD) put(ctx, user, ESP__CPU_INDEX, part, sizeof part);
        if (momentum) put(ctx, user, t->device, o->tensors[i].momentum, part[1] * sizeof(float));
    }
    for (uint32_t i = o->first[o->applied]; i < o->first[o->pushed]; i++) {
        const uint32_t whole = o->tensors[i].whole | o->outliers << 1 | (uint32_t)o->outlier << 31;
        put(ctx, user, ESP__CPU_INDEX, &whole, sizeof whole);
        put(ctx, user, ctx->model.tensors[i].device, o->tensors[i].pushed, esp__outer_bytes(&ctx->model.tensors[i]));
    }
}

/* Size of what says which part of the momentum follows. */
static uint64_t esp__outer_part_bytes(const esp_ctx *ctx, uint32_t id) {
    return ctx->model.tensors[id].flags & ESP_SHARD ? esp__state_padded(2 * sizeof(uint64_t)) : 0;
}

static uint64_t esp__outer_saved_bytes(const esp_ctx *ctx, const esp__state_outer *h, const uint32_t *first) {
    uint64_t bytes = esp__state_padded(sizeof *h);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__outer_tensor *x = &ctx->outer->tensors[i];
        bytes += esp__state_padded(ctx->model.tensors[i].count * sizeof(float));
        if (h->flags & ESP__STATE_MOMENTUM) bytes += esp__outer_part_bytes(ctx, i) + esp__state_padded(x->n * 4u);
    }
    for (uint32_t i = first[h->applied]; i < first[h->pushed]; i++)
        bytes += esp__state_padded(sizeof(uint32_t)) + esp__state_padded(esp__outer_bytes(&ctx->model.tensors[i]));
    return bytes;
}

/* Whether loading the state changes a round's numbers to the saved ones: if the library chooses, and it had chosen them
 * or the state is of mid-round. */
static bool esp__outer_adopts(const esp__outer *o, const esp__state_outer *h) {
    return esp__outer_limits(o) && (h->flags & ESP__STATE_CHOSEN || h->at || h->pushed);
}

static esp_status esp__outer_check_shape(const esp_ctx *ctx, const esp__state_outer *h) {
    const esp__outer *o = ctx->outer;
    if (esp__outer_adopts(o, h) &&
        (h->every > o->high[0] || h->fragments < o->low[1] || h->fragments > o->high[1] || h->delay > o->high[2]))
        return esp__fail(ctx, ESP_E_MISMATCH,
                         "the state was saved with every=%u,fragments=%u,delay=%u, which this job's limits do not "
                         "allow: max_every=%u, fragments from %u to %u, max_delay=%u",
                         h->every, h->fragments, h->delay, o->high[0], o->low[1], o->high[1], o->high[2]);
    const uint32_t delay = o->timer.automatic && !(h->flags & ESP__STATE_CHOSEN) ? 0 : o->low[2];
    if (!esp__outer_limits(o) && (h->at || h->pushed) &&
        (h->every != o->every || h->fragments != o->fragments || h->delay != delay))
        return esp__fail(ctx, ESP_E_MISMATCH,
                         "the state was saved in mid-round with every=%u,fragments=%u,delay=%u, this job has every=%u,"
                         "fragments=%u,delay=%u: start with the saved ones; only a state from the end of a round may "
                         "change them",
                         h->every, h->fragments, h->delay, o->every, o->fragments, delay);
    return ESP_OK;
}

/* Checks the place in the round, and that the state has all parts. */
static esp_status esp__outer_check_parts(esp_ctx *ctx, const esp__state_outer *h, uint64_t bytes) {
    bool whole = h->every && h->fragments && h->fragments <= h->every && h->fragments <= ctx->model.n_tensors &&
                 h->pushed <= h->fragments && h->applied <= h->pushed && h->pushed - h->applied <= 1 &&
                 h->left <= h->delay && h->delay <= h->every / h->fragments && h->at < h->every;
    uint32_t *first = whole ? esp__alloc(ctx, ((uint64_t)h->fragments + 1) * sizeof *first) : NULL;
    if (whole && !first) return esp__fail(ctx, ESP_E_NOMEM, "outer: out of memory");
    if (whole) esp__outer_divide(ctx, h->fragments, first);
    whole = whole && esp__outer_saved_bytes(ctx, h, first) == bytes;
    esp__free(ctx, first);
    return whole ? ESP_OK
                 : esp__fail(ctx, ESP_E_CORRUPT,
                             "the state's outer part does not fit its tensors: use a state saved whole, with ESP_SHARD "
                             "for the same tensors");
}

/* Checks that the state has the momenta of this rank's parts. */
static esp_status esp__outer_check_momenta(const esp_ctx *ctx, const uint8_t *saved, uint64_t bytes) {
    uint64_t at = esp__state_padded(sizeof(esp__state_outer));
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__outer_tensor *x = &ctx->outer->tensors[i];
        uint64_t part[2] = {UINT64_MAX, 0};
        at += esp__state_padded(ctx->model.tensors[i].count * sizeof(float));
        if (esp__outer_part_bytes(ctx, i)) {
            if (at + sizeof part <= bytes) memcpy(part, saved + at, sizeof part);
            if (part[0] != x->begin || part[1] != x->n)
                return esp__fail(ctx, ESP_E_MISMATCH,
                                 "tensor '%s' is sharded (ESP_SHARD), and the state does not have the momentum of this "
                                 "rank's part, elements %llu to %llu: load it on as many ranks and machines as saved "
                                 "it, with a strategy that cuts the tensor alike",
                                 ctx->model.tensors[i].name, (unsigned long long)x->begin,
                                 (unsigned long long)(x->begin + x->n));
        }
        at += esp__outer_part_bytes(ctx, i) + esp__state_padded(x->n * sizeof(float));
    }
    return ESP_OK;
}

ESP__FN esp_status esp__outer_check(esp_ctx *ctx, const void *saved, uint64_t bytes) {
    const esp__outer *o = ctx->outer;
    esp__state_outer h;
    if (!o && !bytes) return ESP_OK;
    if (!o || !bytes)
        return esp__fail(ctx, ESP_E_MISMATCH, "the state is %s an outer context, this context is %s: %s",
                         bytes ? "of" : "not of", o ? "one" : "none",
                         o ? "load a state that an outer context saved" : "call esp_outer_open before esp_start");
    if (bytes < sizeof h) return esp__fail(ctx, ESP_E_CORRUPT, "the state ends too early: use a state saved whole");
    memcpy(&h, saved, sizeof h);
    const bool momentum = h.flags & ESP__STATE_MOMENTUM;
    if (momentum != (o->momentum != 0.0f))
        return esp__fail(ctx, ESP_E_MISMATCH, "the state was saved with%s outer momentum, this job has %s",
                         momentum ? "" : "out", momentum ? "none" : "it");
    esp_status s = esp__outer_check_shape(ctx, &h);
    if (!s && momentum) s = esp__outer_check_momenta(ctx, saved, bytes);
    return s ? s : esp__outer_check_parts(ctx, &h, bytes);
}

/* Drops the round, and takes the numbers of the saved one. */
static esp_status esp__outer_load_shape(esp_ctx *ctx, const esp__state_outer *h) {
    esp__outer *o = ctx->outer;
    esp__step_free(ctx);
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__step_reset(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    o->at = o->left = o->pushed = o->applied = 0;
    if (!esp__outer_chooses(o)) return ESP_OK;
    const uint32_t before = o->fragments;
    esp__outer_timer_begin(ctx);
    if (esp__outer_adopts(o, h))
        esp__outer_shape(ctx, h->every, h->fragments, h->delay);
    else if (h->flags & ESP__STATE_CHOSEN)
        esp__outer_shape(ctx, o->low[0], o->low[1], o->low[2]);
    o->timer.on = !(h->flags & ESP__STATE_CHOSEN);
    o->timer.tries &= o->timer.on;
    return o->fragments == before ? ESP_OK : esp__outer_activate(ctx);
}

static esp_status esp__outer_get(const esp_ctx *ctx, uint32_t device, void *to, uint64_t bytes, const uint8_t **saved) {
    const esp_status s = esp__device_copy(ctx, device, to, ESP__CPU_INDEX, *saved, bytes);
    *saved += esp__state_padded(bytes);
    return s;
}

ESP__FN esp_status esp__outer_load(esp_ctx *ctx, const void *saved) {
    esp__outer *o = ctx->outer;
    const uint8_t *p = saved;
    esp__state_outer h;
    esp_status s = esp__outer_get(ctx, ESP__CPU_INDEX, &h, sizeof h, &p);
    if (!s) s = esp__outer_load_shape(ctx, &h);
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        s = esp__outer_get(ctx, t->device, o->tensors[i].anchor, t->count * sizeof(float), &p);
        if (h.flags & ESP__STATE_MOMENTUM) p += esp__outer_part_bytes(ctx, i);
        if (!s && h.flags & ESP__STATE_MOMENTUM)
            s = esp__outer_get(ctx, t->device, o->tensors[i].momentum, o->tensors[i].n * sizeof(float), &p);
    }
    for (uint32_t i = o->first[h.applied]; i < o->first[h.pushed] && !s; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        uint32_t whole = 0;
        s = esp__outer_get(ctx, ESP__CPU_INDEX, &whole, sizeof whole, &p);
        o->tensors[i].whole = whole & 1u;
        o->outliers = whole << 1 >> 2, o->outlier = whole >> 31;
        if (!s) s = esp__outer_get(ctx, t->device, o->tensors[i].pushed, esp__outer_bytes(t), &p);
    }
    pthread_mutex_lock(&ctx->lanes.lock);
    o->at = h.at, o->left = h.left, o->pushed = h.pushed, o->applied = h.applied;
    esp__outer_resume(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}
