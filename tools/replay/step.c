/* step.c: one step as a trainer with this model would run it: computing takes the model's time, gradients change,
 * and times are recorded. Must not know which strategy runs, or why. */
#include "tools/replay/replay.h"

enum { REPLAY_POOL_EXTRA = 1 << 16 };

/* ---- gradients ---------------------------------------------------------------------------------------------------------- */
static uint64_t replay_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Fills `out` with normal numbers; one in a hundred is ten times as large: a heavy tail, as gradients have. */
static void replay_fill(float *out, uint64_t n, uint64_t seed) {
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t x = replay_random(&seed);
        const double u = ((double)(x >> 40) + 1) / 16777217.0, v = (double)(x >> 8 & 0xffffff) / 16777216.0;
        const double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
        out[i] = (float)(normal * 1e-2 * ((x & 0xff) < 3 ? 10 : 1));
    }
}

static esp_status replay_buffers(replay_run *r) {
    const esp_plan_model *m = &r->in.model;
    uint64_t largest = 0, ready = 0;
    r->grads = tool_realloc(NULL, m->n_tensors * sizeof *r->grads);
    r->ready_ns = tool_realloc(NULL, m->n_tensors * sizeof *r->ready_ns);
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const uint64_t e = m->tensors[t].elements;
        if (e > largest) largest = e;
        r->grads[t] = tool_realloc(NULL, e * sizeof(float));
        ready += (uint64_t)(m->tensors[t].compute_ns + 0.5);
        r->ready_ns[t] = ready;
    }
    r->pool_count = largest + REPLAY_POOL_EXTRA;
    r->pool = tool_realloc(NULL, r->pool_count * sizeof(float));
    replay_fill(r->pool, r->pool_count, 1000003u * (uint64_t)r->ctx->job.rank + 1);
    return ESP_OK;
}

/* Gives gradients new numbers in every step: copies them from another place of the pool of random numbers. */
static void replay_refresh(replay_run *r) {
    const esp_plan_model *m = &r->in.model;
    uint64_t state = r->ctx->steps.step + 1;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const uint64_t at = replay_random(&state) % REPLAY_POOL_EXTRA;
        memcpy(r->grads[t], r->pool + at, m->tensors[t].elements * sizeof(float));
    }
}

/* ---- time ---------------------------------------------------------------------------------------------------------------- */
static void replay_sleep_until(uint64_t at_ns) {
    const struct timespec t = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

static uint64_t replay_thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Keeps a core busy for that long, as computing on it would. */
static void replay_burn(double ns) {
    const uint64_t until = replay_thread_ns() + (uint64_t)ns;
    while (replay_thread_ns() < until) {
    }
}

/* Agrees on a start time in the near future. The ranks are on one machine, so they share a clock. */
static esp_status replay_agree_start(replay_run *r, uint64_t *start) {
    uint64_t now = esp__now_ns(), all[1024];
    const esp_status s = esp__peers_allgather(r->ctx->job.peers, NULL, r->ctx->job.size, &now, all, sizeof now);
    *start = 0;
    for (int32_t k = 0; k < r->ctx->job.size && !s; k++)
        if (all[k] > *start) *start = all[k];
    *start += 2000000;
    return s;
}

/* ---- the step ---------------------------------------------------------------------------------------------------------------- */
/* Runs backward, which starts at *begin. */
static esp_status replay_backward(replay_run *r, uint64_t *begin) {
    const esp_plan_model *m = &r->in.model;
    const esp_stream here = {{ESP_CPU, 0}, NULL};
    esp_status s = ESP_OK;
    if (r->job.mode == REPLAY_MODEL) esp__clocked_begin(r->ctx, *begin);
    if (r->job.mode == REPLAY_REAL && r->compute == REPLAY_BUSY) {
        replay_burn(m->forward_ns);
        *begin = esp__now_ns();
    } else {
        replay_sleep_until(*begin);
    }
    for (uint32_t t = 0; t < m->n_tensors && !s; t++) {
        if (r->job.mode == REPLAY_MODEL)
            s = esp__clocked_backward(r->ctx, t);
        else if (r->compute == REPLAY_BUSY)
            replay_burn(m->tensors[t].compute_ns);
        else if (m->tensors[t].compute_ns > 0)
            replay_sleep_until(*begin + r->ready_ns[t]);
        if (!s) s = esp_push(r->ctx, t, r->grads[t], here);
    }
    return s;
}

/* Records an op's span. Where several ops are one event of the plan (a group's packs), keeps the one that ended
 * last. */
static void replay_note(esp__span *span, uint64_t start, uint64_t end, uint64_t begin) {
    if (!end) return;
    start = start > begin ? start - begin : 0;
    end = end > begin ? end - begin : 0;
    if (span->end_ns == UINT64_MAX || end > span->end_ns) *span = (esp__span){start, end};
}

/* Records when the plan's events really ran, counted from the begin of backward. */
static void replay_note_events(const replay_run *r, replay_strategy *s, uint64_t begin) {
    const esp_ctx *ctx = r->ctx;
    esp__span *spans = s->spans + (size_t)s->n_steps * s->n_events;
    uint64_t before = begin;
    memset(spans, 0xff, s->n_events * sizeof *spans);
    for (uint32_t e = 0; e < s->n_events && r->job.mode == REPLAY_MODEL; e++)
        spans[e] = esp__clocked_event_real(ctx, e);
    if (r->job.mode == REPLAY_MODEL) return;
    for (uint32_t i = 0; i < ctx->in_force.program.n_ops; i++)
        if (s->event_of_op[i] < s->n_events)
            replay_note(&spans[s->event_of_op[i]], ctx->in_force.op_time[i].start_ns, ctx->in_force.op_time[i].end_ns,
                        begin);
    for (uint32_t e = 0; e < s->n_events; e++) {
        const esp_plan_event *x = &s->predicted.events[e];
        if (x->kind != ESP_PLAN_BACKWARD) continue;
        const esp__tensor *t = &ctx->model.tensors[x->unit];
        replay_note(&spans[e], before, t->enter_ns, begin);
        before = t->enter_ns;
    }
}

static esp_status replay_step(replay_run *r, replay_strategy *s) {
    uint64_t start, communication, compression;
    replay_refresh(r);
    esp_status status = replay_agree_start(r, &start);
    if (status) return status;
    uint64_t begin = start + (uint64_t)r->in.model.forward_ns;
    if (r->compute == REPLAY_BUSY) replay_sleep_until(start);
    status = replay_backward(r, &begin);
    if (!status) status = esp_wait_all(r->ctx);
    if (status || !s) return status;
    const uint32_t k = s->n_steps;
    s->step_ns[k] = (double)(esp__now_ns() - start) + r->in.model.update_ns;
    esp__meter_exposed(r->ctx, r->ctx->steps.clock.last_push_ns, r->ctx->steps.clock.end_ns, &communication,
                       &compression);
    s->communication_ns[k] = (double)communication;
    s->compression_ns[k] = (double)compression;
    replay_note_events(r, s, begin);
    s->n_steps++;
    return ESP_OK;
}
