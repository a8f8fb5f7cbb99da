/* feedback.c: moves the residuals of error feedback to a new strategy, so that no gradient is lost. A residual of a
 * rank's own gradient moves to the new strategy's residual of the same elements. Any other residual is added to the
 * next gradient by the lowest rank that has it. */
#include "espresso_impl/program/program.h"

/* Sets *out to the address of the residual of element `begin` of a tensor in the new strategy, or to NULL if it has
 * none. Returns how many of the next `length` elements follow there. */
static uint64_t esp__feedback_place(const esp_ctx *ctx, const esp__active *to, uint32_t tensor, uint64_t begin,
                                    uint64_t length, float **out, uint32_t *device) {
    const esp__tensor *t = &esp__model_of(ctx)->tensors[tensor];
    const esp__strategy *y = &to->strategy;
    const esp__tensor_units *of = &y->of_tensor[tensor];
    uint64_t skip = 0;
    uint32_t i = of->first;
    *out = NULL;
    while (i + 1 < of->first + of->n && begin >= y->units[i + 1].place.begin) i++;
    const esp__unit *u = &y->units[i];
    for (uint32_t k = u->place.first; k < tensor; k++) skip += esp__model_of(ctx)->tensors[k].count;
    uint64_t end = u->place.n > 1 ? t->count : u->place.begin + u->place.elements;
    const esp__feedback *f = u->raw_feedback >= 0 ? &to->feedback[u->raw_feedback] : NULL;
    if (f && f->residual) *out = f->residual + (skip + begin - u->place.begin), *device = f->device;
    return length < end - begin ? length : end - begin;
}

static bool esp__feedback_same_place(const esp__feedback *a, const esp__feedback *b) {
    return !memcmp(&a->place, &b->place, sizeof a->place) && a->offset == b->offset && a->count == b->count;
}

/* A codec's state cannot be split, so it moves only if the same codec compresses the same elements in the same
 * parts. */
static esp_status esp__feedback_move_state(const esp_ctx *ctx, const esp__active *to, const esp__feedback *was) {
    esp_status s = ESP_OK;
    const esp__tensor_units *of = &to->strategy.of_tensor[was->place.first];
    for (uint32_t i = of->first; was->state && i < of->first + of->n; i++) {
        int32_t k = to->strategy.units[i].raw_feedback;
        esp__feedback *now = k >= 0 ? &to->feedback[k] : NULL;
        if (!now || !now->state || now->state_bytes != was->state_bytes || now->codec != was->codec) continue;
        if (!esp__feedback_same_place(now, was)) continue;
        if (now->option == was->option || (now->n_ranges == 1 && was->n_ranges == 1))
            s = esp__device_copy(ctx, now->device, now->state, was->device, was->state, was->state_bytes);
        if (s) break;
    }
    return s;
}

/* A piece of an old residual. `to` is its address in the new strategy. If NULL, the piece is added to the next
 * gradient. */
typedef struct esp__pending {
    uint32_t tensor;
    uint64_t begin, length; /* in elements of the tensor */
    float *to;
    uint32_t to_device;
    const float *from;
} esp__pending;
typedef struct esp__pending_at {
    esp__segment segment;
    uint64_t done; /* elements of `segment` that are moved already */
} esp__pending_at;

/* Finds the next piece of a residual. Zero `at` before the first call. Returns false after the last piece. */
static bool esp__pending_next(const esp_ctx *ctx, const esp__active *to, const esp__feedback *was, esp__pending_at *at,
                              esp__pending *p) {
    esp__segment *s = &at->segment;
    if (!was->residual) return false;
    if (at->done == s->length) {
        at->done = 0;
        if (!esp__segment_next(ctx, &was->place, was->offset, was->count, s)) return false;
    }
    p->tensor = s->tensor;
    p->begin = s->begin + at->done;
    p->length = s->length - at->done;
    p->from = was->residual + s->at + at->done;
    p->to = NULL;
    if (was->raw) p->length = esp__feedback_place(ctx, to, p->tensor, p->begin, p->length, &p->to, &p->to_device);
    at->done += p->length;
    return true;
}

ESP__FN esp_status esp__feedback_pending_take(esp_ctx *ctx, const esp__active *to, const esp__feedback *all, uint32_t n,
                                              float **pending) {
    for (uint32_t i = 0; i < n; i++) {
        esp__pending_at at = {0};
        esp__pending p;
        while (all[i].owner_replica && esp__pending_next(ctx, to, &all[i], &at, &p)) {
            const esp__tensor *t = &esp__model_of(ctx)->tensors[p.tensor];
            if (p.to || pending[p.tensor]) continue;
            pending[p.tensor] = esp__device_take(ctx, t->device, t->count * 4u, ESP_MEM_DEVICE);
            if (!pending[p.tensor])
                return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory for the feedback of '%s'", t->name);
        }
    }
    return ESP_OK;
}

/* Adds factor * in[n] on device `from` to out[n] on device `to`. */
static esp_status esp__pending_add(esp_ctx *ctx, float *out, uint32_t to, const float *in, uint32_t from, float factor,
                                   uint64_t n) {
    if (from == to) return esp__device_add(ctx, to, out, in, factor, 1, n);
    float *room = esp__device_take(ctx, to, n * 4u, ESP_MEM_DEVICE);
    if (!room) return esp__fail(ctx, ESP_E_NOMEM, "no memory to move feedback");
    esp_status s = esp__device_copy(ctx, to, room, from, in, n * 4u);
    if (!s) s = esp__device_add(ctx, to, out, room, factor, 1, n);
    esp__device_give(ctx, to, room, n * 4u, ESP_MEM_DEVICE);
    return s;
}

static esp_status esp__feedback_move_one(esp_ctx *ctx, const esp__active *to, const esp__feedback *was, float **pending,
                                         double ratio) {
    esp__pending_at at = {0};
    esp__pending p;
    esp_status s = ESP_OK;
    while (!s && esp__pending_next(ctx, to, was, &at, &p)) {
        const esp__tensor *t = &esp__model_of(ctx)->tensors[p.tensor];
        const float factor = t->flags & ESP_SUM ? 1.0f : (float)ratio;
        if (p.to && ratio == 1.0)
            s = esp__device_copy(ctx, p.to_device, p.to, was->device, p.from, p.length * 4u);
        else if (p.to)
            s = esp__pending_add(ctx, p.to, p.to_device, p.from, was->device, factor, p.length);
        else if (was->owner_replica)
            s = esp__pending_add(ctx, pending[p.tensor] + p.begin, t->device, p.from, was->device, factor, p.length);
    }
    return s;
}

ESP__FN esp_status esp__feedback_move(esp_ctx *ctx, const esp__active *to, const esp__feedback *all, uint32_t n,
                                      float **pending, double ratio, bool states) {
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < n && !s; i++) {
        s = esp__feedback_move_one(ctx, to, &all[i], pending, ratio);
        if (!s && states && all[i].raw && all[i].residual) s = esp__feedback_move_state(ctx, to, &all[i]);
    }
    for (uint32_t i = 0; i < to->n_feedback && !s; i++) {
        esp__feedback *f = &to->feedback[i];
        if (f->residual_before)
            s = esp__device_copy(ctx, f->device, f->residual_before, f->device, f->residual, f->count * 4u);
        if (f->state_before && !s)
            s = esp__device_copy(ctx, f->device, f->state_before, f->device, f->state, f->state_bytes);
    }
    return s;
}
