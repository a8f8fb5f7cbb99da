/* step.c: the trainer's calls in every step (push, wait, end), and between steps. A step allocates nothing, unless the
 * trainer forgets to push a tensor. "Lock" means ctx->lanes.lock. */
#include "espresso_impl/context/context.h"

enum { ESP__UNASKED_STEPS = 8 };

/* Starts the ops of tensor `id`. If the strategy synchronizes it together with other tensors (a group), their gradients
 * are copied in order, and the copy of this one starts only after those before it. Lock held. */
static void esp__push_locked(esp_ctx *ctx, uint32_t id, void *grad, uint64_t now) {
    esp__tensor *t = &ctx->model.tensors[id];
    t->grad = grad;
    t->phase = ESP__PUSHED;
    const esp__tensor_units *of = &ctx->active.strategy.of_tensor[id];
    t->units_left = of->n;
    if (!ctx->steps.n_pushed++) {
        ctx->steps.timed = __atomic_load_n(&ctx->lanes.core_times, __ATOMIC_RELAXED) != 0;
        ctx->steps.marked = ctx->steps.unasked++ < ESP__UNASKED_STEPS;
    }
    ctx->steps.open = 1;
    for (uint32_t i = of->first; i < of->first + of->n; i++) {
        esp__unit *u = &ctx->active.strategy.units[i];
        u->phase = ESP__PUSHED;
        if (!esp__unit_is_group(u)) {
            u->data = (uint8_t *)grad + u->place.begin * (t->dtype == ESP_F32 ? 4u : 2u);
            u->after = t->ordered ? t->pushed : NULL;
            u->after_on = -1;
        } else if (u->pc != id - u->place.first)
            continue;
        esp__unit_ready(ctx, i, now, false);
    }
}

ESP__FN void esp__pending_before_free(esp_ctx *ctx, esp__tensor *t) {
    esp__device_give(ctx, t->device, t->pending_before, t->count * 4u, ESP_MEM_DEVICE);
    t->pending_before = NULL;
}

static esp_status esp__claim(esp_ctx *ctx, esp__tensor *t, const void *grad) {
    if (ctx->health.fatal) return esp__dead(ctx);
    if (t->phase != ESP__IDLE)
        return esp__fail(ctx, ESP_E_STATE, "tensor '%s' was already pushed in this step%s", t->name,
                         t->phase == ESP__DONE ? ": end the step with esp_wait_all first" : "");
    if (ctx->steps.closed)
        return esp__fail(ctx, ESP_E_STATE,
                         "tensor '%s': the step was ended: call esp_wait_all before pushing for the next one", t->name);
    const esp__tensor *other = esp__lend(ctx, t, grad);
    if (other)
        return esp__fail(ctx, ESP_E_STATE,
                         "tensor '%.300s': its gradient has the memory of tensor '%.300s', which is pushed and not yet "
                         "waited for: push weights that layers share once, as one tensor, or use other memory",
                         t->name, other->name);
    t->phase = ESP__CLAIMED;
    ctx->steps.open = 1;
    return ESP_OK;
}

static uint64_t esp__tensor_bytes(const esp__tensor *t) { return t->count * (t->dtype == ESP_F32 ? 4u : 2u); }

ESP__FN esp_status esp__stream_check(const esp_ctx *ctx, const esp__tensor *t, esp_stream stream, const char *what) {
    const esp_device *d = &stream.dev;
    if (d->kind <= ESP_CPU && !stream.native) return ESP_OK;
    if (d->kind > ESP_CPU && d->kind == t->where.kind && d->ordinal == t->where.ordinal) return ESP_OK;
    return esp__fail(ctx, ESP_E_UNSUPPORTED,
                     "%s: tensor '%s' lies on device %u:%d, and the stream belongs to device %u:%d: pass a stream of "
                     "the tensor's device, or a zeroed esp_stream",
                     what, t->name, (unsigned)t->where.kind, (int)t->where.ordinal, (unsigned)d->kind, (int)d->ordinal);
}

/* Pushes `grad`, filled with zeros first if `zero`. Loops over elements run without the lock. */
static esp_status esp__push(esp_ctx *ctx, uint32_t id, void *grad, esp_stream stream, bool zero) {
    esp__tensor *t = &ctx->model.tensors[id];
    esp_status s = esp__stream_check(ctx, t, stream, "esp_push");
    if (s) return s;
    uint64_t now = esp__now_ns();
    pthread_mutex_lock(&ctx->lanes.lock);
    s = esp__claim(ctx, t, grad);
    if (!s && (zero || t->pending_residual || esp__push_factor(ctx, t) != 1.0f || esp__stream_async(stream))) {
        pthread_mutex_unlock(&ctx->lanes.lock);
        s = esp__push_order(ctx, t, stream, grad, zero);
        pthread_mutex_lock(&ctx->lanes.lock);
        if (s) esp__fatal_locked(ctx, s, esp_last_error(ctx));
        if (!s && ctx->health.fatal) s = esp__dead(ctx);
    } else if (!s) {
        t->ordered = 0;
    }
    if (!s) {
        t->pushes += !zero;
        t->zero_pushes += zero;
        esp__push_locked(ctx, id, grad, now);
        esp__span in_push = {now, esp__now_ns()};
        esp__meter_push(ctx, t, in_push);
        esp__observers_pushed(ctx, id, in_push);
        if (ctx->steps.n_pushed == 1 && ctx->lanes.caller_drives) pthread_cond_signal(&ctx->lanes.link_cv);
        esp__drive(ctx);
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

ESPRESSO_API esp_status esp_push(esp_ctx *ctx, uint32_t id, void *grad, esp_stream stream) {
    esp_status s = esp__usable_id(ctx, id);
    if (!s) s = esp__outer_refuse(ctx, "esp_push");
    if (s) return s;
    if (!grad)
        return esp__fail(ctx, ESP_E_ARG, "tensor '%s': the gradient is NULL (esp_push_zero takes part without one)",
                         ctx->model.tensors[id].name);
    return esp__push(ctx, id, grad, stream, false);
}

ESPRESSO_API esp_status esp_push_zero(esp_ctx *ctx, uint32_t id, void *out, esp_stream stream) {
    esp_status s = esp__usable_id(ctx, id);
    if (!s) s = esp__outer_refuse(ctx, "esp_push_zero");
    if (s) return s;
    if (!out) return esp__fail(ctx, ESP_E_ARG, "tensor '%s': out is NULL", ctx->model.tensors[id].name);
    return esp__push(ctx, id, out, stream, true);
}

/* ---- waiting ---- */
static void esp__wait_begin(esp_ctx *ctx) {
    esp__core_enter(ctx);
    if (!ctx->lanes.waiters++) {
        ctx->lanes.wait_since_ns = esp__now_ns();
        if (!ctx->lanes.caller_drives) pthread_cond_signal(&ctx->lanes.link_cv);
    }
}

/* Sleeps until something may have changed, or takes a share of a loop over elements that the cpu thread has divided.
 * Returns false if the context has failed and no thread uses the caller's memory any more. Lock held. */
static bool esp__wait_more(esp_ctx *ctx) {
    if (ctx->lanes.caller_drives) return esp__drive_wait(ctx);
    if (ctx->health.fatal && !ctx->lanes.link_busy && !ctx->lanes.cpu_busy) return false;
    if (esp__workers_offered(ctx->base.workers)) {
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp__workers_help(ctx->base.workers);
        pthread_mutex_lock(&ctx->lanes.lock);
        return true;
    }
    pthread_cond_wait(&ctx->lanes.done_cv, &ctx->lanes.lock);
    return true;
}

/* The trainer asks for this tensor, whose ops are all enqueued. Lock held */
static esp_status esp__tensor_mark(esp_ctx *ctx, uint32_t id, bool *late) {
    const esp__tensor_units *of = &ctx->active.strategy.of_tensor[id];
    esp_status s = ESP_OK;
    ctx->steps.unasked = 0;
    for (uint32_t i = of->first; i < of->first + of->n && !s; i++)
        s = esp__unit_mark(ctx, &ctx->active.strategy.units[i], late);
    return s;
}

static esp_status esp__wait_issued(esp_ctx *ctx, uint32_t id, bool *late) {
    esp_status s = esp__usable_id(ctx, id);
    if (s) return s;
    esp__tensor *t = &ctx->model.tensors[id];
    pthread_mutex_lock(&ctx->lanes.lock);
    if (t->phase == ESP__IDLE) {
        s = ctx->health.fatal
                ? esp__dead(ctx)
                : esp__fail(ctx, ESP_E_STATE, "tensor '%s' was not pushed in this step: nothing to wait for", t->name);
    } else {
        esp__wait_begin(ctx);
        ctx->lanes.waiters_one++;
        while (t->phase != ESP__DONE && esp__wait_more(ctx)) {
        }
        ctx->lanes.waiters_one--;
        ctx->lanes.waiters--;
        s = t->phase == ESP__DONE ? esp__tensor_mark(ctx, id, late) : esp__dead(ctx);
        t->lent.now = false;
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

/* Makes stream `on` or, if NULL, the caller wait for the tensor's ops, which are all enqueued. */
static esp_status esp__tensor_after(const esp_ctx *ctx, uint32_t id, const esp_stream *on) {
    const esp__tensor *t = &ctx->model.tensors[id];
    const esp__tensor_units *of = &ctx->active.strategy.of_tensor[id];
    const esp__device *d = esp__device_at(ctx, t->device);
    esp_status s = ESP_OK;
    for (uint32_t i = of->first; i < of->first + of->n && !s; i++) {
        const esp__unit *u = &ctx->active.strategy.units[i];
        if (!u->after) continue;
        s = on ? esp__device_follow(d, u->after, *on) : esp__device_wait(d, u->after);
        if (s) return esp__unit_failed(ctx, u, s);
    }
    return s;
}

/* True if the context failed while a device may have been running a collective, whose result is then wrong. Lock
 * held. */
static bool esp__in_doubt(const esp_ctx *ctx) {
    for (uint32_t i = 0; ctx->health.fatal && i < ctx->active.program.n_ops; i++) {
        if (esp__stream_ordered(&ctx->active.program.ops[i])) return true;
    }
    return false;
}

/* Waits for collectives on devices until they are done or the context has failed. The host waits, because a wait on the
 * device has no timeout and does not notice a dead rank. Lock held, but released meanwhile. */
static void esp__collectives_settle(esp_ctx *ctx, uint32_t first, uint32_t n) {
    if (!esp__devices_any(ctx) || ctx->health.fatal || !esp__collective_behind(&ctx->active, first, n)) return;
    esp__wait_begin(ctx);
    for (uint32_t i = first; i < first + n && !ctx->health.fatal;) {
        if (esp__collective_behind(&ctx->active, i, 1))
            esp__drive_nap(ctx);
        else
            i++;
    }
    ctx->lanes.waiters--;
}

ESPRESSO_API esp_status esp_wait(esp_ctx *ctx, uint32_t id) {
    bool late = false;
    esp_status s = esp__wait_issued(ctx, id, &late);
    if (!s && ctx->model.tensors[id].device) {
        const esp__tensor_units *of = &ctx->active.strategy.of_tensor[id];
        pthread_mutex_lock(&ctx->lanes.lock);
        esp__collectives_settle(ctx, late ? 0 : of->first, late ? ctx->active.strategy.n_units : of->n);
        if (ctx->health.fatal) s = esp__dead(ctx);
        pthread_mutex_unlock(&ctx->lanes.lock);
    }
    const esp_status dead = s && ctx && esp__devices_any(ctx) ? esp__alive(ctx) : ESP_OK;
    if (dead) { /* waits until no device uses the caller's memory */
        esp__devices_step_end(ctx);
        return esp__alive(ctx);
    }
    if (s || (s = esp__tensor_after(ctx, id, NULL)) != ESP_OK || !ctx->model.tensors[id].device) return s;
    pthread_mutex_lock(&ctx->lanes.lock);
    if (esp__in_doubt(ctx)) s = esp__dead(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

ESPRESSO_API esp_status esp_wait_on(esp_ctx *ctx, uint32_t id, esp_stream stream) {
    bool late;
    esp_status s = esp__usable_id(ctx, id);
    if (!s) s = esp__stream_check(ctx, &ctx->model.tensors[id], stream, "esp_wait_on");
    if (!s) s = esp__wait_issued(ctx, id, &late);
    if (!s) s = esp__tensor_after(ctx, id, esp__stream_async(stream) ? &stream : NULL);
    /* the timeout starts here, as the trainer may wait for the stream outside the library */
    if (!s && esp__stream_async(stream)) {
        pthread_mutex_lock(&ctx->lanes.lock);
        if (!ctx->lanes.stream_since_ns) ctx->lanes.stream_since_ns = esp__now_ns();
        if (!ctx->lanes.caller_drives) pthread_cond_signal(&ctx->lanes.link_cv);
        pthread_mutex_unlock(&ctx->lanes.lock);
    }
    return s;
}

static esp_status esp__tensor_test(esp_ctx *ctx, uint32_t id) {
    const esp__tensor_units *of = &ctx->active.strategy.of_tensor[id];
    bool late;
    esp_status s = esp__tensor_mark(ctx, id, &late);
    for (uint32_t i = of->first; i < of->first + of->n && !s; i++)
        s = esp__unit_passed(ctx, &ctx->active.strategy.units[i]);
    return s;
}

ESPRESSO_API esp_status esp_test(esp_ctx *ctx, uint32_t id) {
    esp_status s = esp__usable_id(ctx, id);
    if (s) return s;
    esp__tensor *t = &ctx->model.tensors[id];
    pthread_mutex_lock(&ctx->lanes.lock);
    if (t->phase != ESP__DONE) esp__drive(ctx);
    if (t->phase == ESP__DONE) {
        s = esp__tensor_test(ctx, id);
        if (!s && t->device && esp__in_doubt(ctx)) s = esp__dead(ctx);
        if (!s) t->lent.now = false;
    } else if (ctx->health.fatal) {
        s = esp__dead(ctx);
    } else if (t->phase == ESP__IDLE) {
        s = esp__fail(ctx, ESP_E_STATE, "tensor '%s' was not pushed in this step", t->name);
    } else {
        s = ESP_PENDING;
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

static esp_status esp__push_zeros(esp_ctx *ctx, esp__tensor *t) {
    const esp_stream none = {{0, 0}, NULL};
    t->zeros = esp__device_take(ctx, t->device, esp__tensor_bytes(t), ESP_MEM_DEVICE);
    return t->zeros ? esp__push_order(ctx, t, none, t->zeros, false)
                    : esp__fail(ctx, ESP_E_NOMEM,
                                "tensor '%s' was never pushed, and there is no memory to stand in for it", t->name);
}

/* Pushes zeros for tensors that the trainer did not push, so that the other ranks' collectives complete. The step is
 * closed, so no other thread pushes them. Lock held, but released meanwhile. */
static esp_status esp__push_missing(esp_ctx *ctx) {
    uint64_t now = esp__now_ns();
    ctx->steps.missing_text[0] = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        size_t len = strlen(ctx->steps.missing_text);
        if (t->phase != ESP__IDLE) continue;
        snprintf(ctx->steps.missing_text + len, sizeof ctx->steps.missing_text - len, "%s'%s'", len ? ", " : "",
                 t->name);
        t->phase = ESP__CLAIMED;
        pthread_mutex_unlock(&ctx->lanes.lock);
        const esp_status s = esp__push_zeros(ctx, t);
        pthread_mutex_lock(&ctx->lanes.lock);
        if (s) esp__fatal_locked(ctx, s, esp_last_error(ctx));
        if (ctx->health.fatal) return esp__dead(ctx);
        t->zero_pushes++;
        esp__push_locked(ctx, i, t->zeros, now);
    }
    return ESP_OK;
}

static esp_status esp__missing_error(const esp_ctx *ctx) {
    return esp__fail(ctx, ESP_E_STATE,
                     "never pushed in this step: %s. It took part with zeros so that other ranks go on; call "
                     "esp_push_zero for a tensor that is unused in a step",
                     ctx->steps.missing_text);
}

static esp_status esp__close_step(esp_ctx *ctx) {
    if (ctx->health.fatal) return esp__dead(ctx);
    if (ctx->steps.closed) return ESP_OK;
    if (!ctx->steps.n_pushed && !ctx->steps.open && ctx->model.n_tensors == 0) return ESP_OK;
    ctx->steps.closed = 1;
    esp_status s = esp__push_missing(ctx);
    if (s) return esp__dead(ctx);
    return ctx->steps.missing_text[0] ? esp__missing_error(ctx) : ESP_OK;
}

ESPRESSO_API esp_status esp_step_end(esp_ctx *ctx) {
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "call esp_start first");
    if ((s = esp__outer_refuse(ctx, "esp_step_end")) != ESP_OK) return s;
    pthread_mutex_lock(&ctx->lanes.lock);
    s = esp__close_step(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

/* Call it between the last work of a step and esp__step_reset, and without the lock: to free memory of a device may
 * wait for all its work, and so for other ranks, whose collectives may wait for this rank's link thread. */
ESP__FN void esp__step_free(esp_ctx *ctx) {
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        esp__device_give(ctx, t->device, t->zeros, esp__tensor_bytes(t), ESP_MEM_DEVICE);
        t->zeros = NULL;
        if (!t->pending_added || !(ctx->config.flags & ESP_DISCARDABLE)) esp__pending_before_free(ctx, t);
        t->pending_added = false;
    }
}

ESP__FN void esp__step_reset(esp_ctx *ctx) {
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        t->phase = ESP__IDLE;
        t->grad = NULL;
        t->lent.now = false;
    }
    for (uint32_t i = 0; i < ctx->active.strategy.n_units; i++) {
        ctx->active.strategy.units[i].phase = ESP__IDLE;
        ctx->active.strategy.units[i].pc = 0;
        ctx->active.strategy.units[i].after = NULL;
        ctx->active.strategy.units[i].unmarked = false;
    }
    for (int k = 0; k < ESP__LEVELS; k++) ctx->lanes.links[k].cursor = 0;
    ctx->active.ready.n = ctx->active.n_pending = ctx->active.behind = 0;
    ctx->lanes.stream_since_ns = 0;
    ctx->steps.n_pushed = ctx->steps.n_done = 0;
    ctx->steps.closed = ctx->steps.open = 0;
    ctx->steps.missing_text[0] = 0;
}

/* Devices may use the caller's memory even after an error, so wait for them. Lock held, but released meanwhile. */
static esp_status esp__devices_end(esp_ctx *ctx) {
    pthread_mutex_unlock(&ctx->lanes.lock);
    const esp_status s = esp__devices_step_end(ctx);
    pthread_mutex_lock(&ctx->lanes.lock);
    if (s)
        esp__fatal_locked(ctx, s, esp_last_error(ctx));
    else if (!ctx->health.fatal && ctx->steps.n_done == ctx->model.n_tensors)
        esp__devices_times(ctx);
    return s || esp__in_doubt(ctx) ? esp__dead(ctx) : ESP_OK;
}

ESPRESSO_API esp_status esp_wait_all(esp_ctx *ctx) {
    esp_status s = esp__usable(ctx), missing;
    if (s) return s;
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "call esp_start first");
    if ((s = esp__outer_refuse(ctx, "esp_wait_all")) != ESP_OK) return s;
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__close_step(ctx);
    esp__wait_begin(ctx);
    while (ctx->steps.n_done < ctx->model.n_tensors && esp__wait_more(ctx)) {
    }
    ctx->lanes.waiters--;
    esp__collectives_settle(ctx, 0, ctx->active.strategy.n_units);
    if (esp__devices_any(ctx)) s = esp__devices_end(ctx);
    if (!s && ctx->steps.n_done == ctx->model.n_tensors) {
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp__step_free(ctx);
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    if (ctx->steps.n_done < ctx->model.n_tensors) {
        s = esp__dead(ctx);
    } else if (!s) {
        missing = ctx->steps.missing_text[0] ? esp__missing_error(ctx) : ESP_OK;
        esp__meter_step(ctx);
        esp__step_reset(ctx);
        ctx->steps.step++;
        ctx->steps.stats.steps++;
        s = missing;
    }
    const esp_status dead = ctx->health.fatal;
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (dead) return s;
    if (ctx->steps.stats.steps == 2) esp__outer_unused(ctx);
    /* called even after a missing push, because other ranks' observers wait for this rank */
    char text[ESP__ERROR_MAX];
    snprintf(text, sizeof text, "%s", s ? esp_last_error(ctx) : "");
    esp_status after = esp__observers_step(ctx);
    if (after) esp__fatal(ctx, after, esp_last_error(ctx));
    return after || !s ? after : esp__fail(ctx, s, "%s", text);
}

ESPRESSO_API esp_status esp_cancel(esp_ctx *ctx) {
    esp_status s = esp__usable(ctx);
    char text[ESP__ERROR_MAX];
    if (s) return s;
    pthread_mutex_lock(&ctx->lanes.lock);
    const bool under_way = ctx->steps.open || ctx->steps.closed;
    if (under_way) {
        snprintf(text, sizeof text, "esp_cancel took back the gradients of step %llu, which is lost: close the context",
                 (unsigned long long)ctx->steps.step);
        esp__fatal_locked(ctx, ESP_E_CANCELED, text);
        esp__wait_begin(ctx);
        while (esp__wait_more(ctx)) {
        }
        ctx->lanes.waiters--;
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (under_way && esp__devices_any(ctx)) esp__devices_step_end(ctx);
    return ESP_OK;
}

ESPRESSO_API esp_status esp_report_loss(esp_ctx *ctx, double loss) {
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "esp_report_loss: call esp_start first");
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->steps.loss = loss;
    esp__observers_loss(ctx, loss);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return ESP_OK;
}

/* ---- between steps ---- */
ESP__FN esp_status esp__between_steps(esp_ctx *ctx, const char *what) {
    esp_status s = esp__usable(ctx);
    if (!s) s = esp__alive(ctx);
    if (s || ctx->outer) return s ? s : esp__outer_between_steps(ctx, what);
    if (ctx->steps.open || ctx->steps.closed)
        return esp__fail(ctx, ESP_E_STATE, "%s: a step is under way: call esp_wait_all first", what);
    return ESP_OK;
}

ESPRESSO_API esp_status esp_discard_step(esp_ctx *ctx) {
    esp_status s = esp__between_steps(ctx, "esp_discard_step");
    if (!s) s = esp__outer_refuse(ctx, "esp_discard_step");
    if (s) return s;
    if (!(ctx->config.flags & ESP_DISCARDABLE))
        return esp__fail(ctx, ESP_E_STATE, "esp_discard_step needs ESP_DISCARDABLE in esp_config.flags");
    if (!ctx->steps.stats.steps) return esp__fail(ctx, ESP_E_STATE, "esp_discard_step: no step was made yet");
    for (uint32_t i = 0; i < ctx->active.n_feedback; i++) {
        esp__feedback *f = &ctx->active.feedback[i];
        if (f->residual)
            s = esp__device_copy(ctx, f->device, f->residual, f->device, f->residual_before, f->count * 4u);
        if (f->state && !s) s = esp__device_copy(ctx, f->device, f->state, f->device, f->state_before, f->state_bytes);
        if (s) return s;
    }
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        if (!t->pending_before) continue;
        t->pending_residual = t->pending_before;
        t->pending_before = NULL;
    }
    return ESP_OK;
}

ESPRESSO_API esp_status esp_feedback_scale(esp_ctx *ctx, float factor) {
    esp_status s = esp__between_steps(ctx, "esp_feedback_scale");
    if (s) return s;
    if (!(factor > 0.0f && factor < 1e30f))
        return esp__fail(ctx, ESP_E_ARG, "esp_feedback_scale: the factor must be a number > 0, not %g", (double)factor);
    for (uint32_t i = 0; i < ctx->active.n_feedback && !s; i++) {
        const esp__feedback *f = &ctx->active.feedback[i];
        s = esp__device_add(ctx, f->device, f->residual, f->residual, factor, 0, f->count);
    }
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        if (t->pending_residual)
            s = esp__device_add(ctx, t->device, t->pending_residual, t->pending_residual, factor, 0, t->count);
    }
    return s;
}

ESPRESSO_API esp_status esp_feedback_clear(esp_ctx *ctx) {
    esp_status s = esp__between_steps(ctx, "esp_feedback_clear");
    for (uint32_t i = 0; i < ctx->active.n_feedback && !s; i++) {
        const esp__feedback *f = &ctx->active.feedback[i];
        if (f->residual) s = esp__device_zero(ctx, f->device, f->residual, f->count * sizeof(float));
        if (f->state && !s) s = esp__device_zero(ctx, f->device, f->state, f->state_bytes);
    }
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        esp__device_give(ctx, t->device, t->pending_residual, t->count * sizeof(float), ESP_MEM_DEVICE);
        t->pending_residual = NULL;
        esp__pending_before_free(ctx, t);
    }
    return s;
}

ESP__FN esp_status esp__request_run_at(esp_ctx *ctx, uint8_t level, const esp_coll *c, const char *what) {
    esp_status s = esp__between_steps(ctx, what);
    if (s) return s;
    pthread_mutex_lock(&ctx->lanes.lock);
    memset(&ctx->lanes.request, 0, sizeof ctx->lanes.request);
    ctx->lanes.request.coll = *c;
    ctx->lanes.request.level = level;
    ctx->lanes.request.what = what;
    ctx->lanes.request.wanted = 1;
    esp__wait_begin(ctx);
    if (!ctx->lanes.caller_drives) pthread_cond_signal(&ctx->lanes.link_cv);
    while (!ctx->lanes.request.done && esp__wait_more(ctx)) {
    }
    ctx->lanes.waiters--;
    if (!ctx->lanes.request.done) s = esp__dead(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

static esp_status esp__request_run(esp_ctx *ctx, const esp_coll *c, const char *what) {
    return esp__request_run_at(ctx, ESP__FLAT, c, what);
}

ESP__FN void esp__coll_init(esp_coll *c, uint32_t op, esp_dtype dtype, uint64_t count, void *data, int32_t root) {
    memset(c, 0, sizeof *c);
    c->struct_size = sizeof *c;
    c->op = op;
    c->dtype = dtype;
    c->count = count;
    c->root = root;
    c->src.ptr = c->dst.ptr = data;
    c->src.bytes = c->dst.bytes = count * 4u;
    c->src.dev.kind = c->dst.dev.kind = ESP_CPU;
}

ESPRESSO_API esp_status esp_broadcast(esp_ctx *ctx, void *data, uint64_t bytes, int32_t root) {
    static const char *const names[ESP__ARGUMENTS] = {"bytes", "root", "zero"};
    const uint64_t arguments[ESP__ARGUMENTS] = {bytes, (uint64_t)(uint32_t)root, 0};
    esp_coll c;
    esp_status s = esp__usable(ctx);
    float tail = 0.0f; /* the last bytes % 4 bytes */
    if (s) return s;
    if (root < 0 || root >= ctx->job.size)
        return esp__fail(ctx, ESP_E_ARG, "esp_broadcast: root %d is no rank of 0 to %d", root, ctx->job.size - 1);
    if (!data && bytes) return esp__fail(ctx, ESP_E_ARG, "esp_broadcast: data is NULL");
    s = esp__same_arguments(ctx, "esp_broadcast", names, arguments);
    if (s) return s;
    esp__coll_init(&c, ESP_COLL_BROADCAST, ESP_F32, bytes / 4, data, root);
    if (bytes / 4) s = esp__request_run(ctx, &c, "esp_broadcast");
    if (s || bytes % 4 == 0) return s;
    memcpy(&tail, (uint8_t *)data + bytes / 4 * 4, bytes % 4);
    esp__coll_init(&c, ESP_COLL_BROADCAST, ESP_F32, 1, &tail, root);
    s = esp__request_run(ctx, &c, "esp_broadcast");
    if (!s) memcpy((uint8_t *)data + bytes / 4 * 4, &tail, bytes % 4);
    return s;
}

ESPRESSO_API esp_status esp_allreduce(esp_ctx *ctx, float *data, uint64_t count) {
    esp_coll c;
    esp_status s = esp__usable(ctx);
    if (s || !count) return s;
    if (!data) return esp__fail(ctx, ESP_E_ARG, "esp_allreduce: data is NULL");
    esp__coll_init(&c, ESP_COLL_ALLREDUCE, ESP_F32, count, data, 0);
    return esp__request_run(ctx, &c, "esp_allreduce");
}

ESPRESSO_API esp_status esp_barrier(esp_ctx *ctx) {
    float one = 1.0f;
    esp_coll c;
    esp_status s = esp__usable(ctx);
    if (s) return s;
    esp__coll_init(&c, ESP_COLL_ALLREDUCE, ESP_F32, 1, &one, 0);
    return esp__request_run(ctx, &c, "esp_barrier");
}
