/* outer_state.c: saves and loads an outer context's anchors, momenta and place in a round. */
#include "espresso_impl/context/context.h"
#include "espresso_impl/context/outer.h"
#include "espresso_impl/context/state.h"

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
