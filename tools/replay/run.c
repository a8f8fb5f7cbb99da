/* run.c: what each rank of `espresso replay` does. It makes gradients, gets the strategies from rank 0, executes steps
 * with each, and sends its measured times to rank 0. */
#include "tools/replay/replay.h"
#include "espresso_impl/base/machine.h"
#include "espresso_impl/base/quantile.h"
#include <math.h>
#include <time.h>

enum { REPLAY_POOL_EXTRA = 1 << 16 };

/* ---- the model --------------------------------------------------------------------------------------------------- */
/* Multiplies the sizes of tensors by --elements-scale, and the times of computing by the slowdown of shared cores. */
static void replay_scale(replay_run *r) {
    esp_plan_model *m = &r->in.model;
    const double ratio = (double)r->ctx->job.sharing / esp__cores();
    r->stretch = ratio > 1 ? ratio : 1;
    r->tensors = tool_realloc(NULL, m->n_tensors * sizeof *r->tensors);
    memcpy(r->tensors, m->tensors, m->n_tensors * sizeof *r->tensors);
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        esp_plan_tensor *x = &r->tensors[t];
        const double elements = (double)x->elements * r->elements_scale + 0.5;
        x->compute_ns *= r->stretch;
        if (r->elements_scale == 1) continue;
        x->elements = elements < 1 ? 1 : (uint64_t)elements;
        x->rows = x->cols = 0;
    }
    m->tensors = r->tensors;
    m->forward_ns *= r->stretch;
    m->update_ns *= r->stretch;
}

static uint64_t replay_random(uint64_t *state) { /* the generator splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Allocates the gradients, and a pool of normally distributed numbers to fill them from. Some numbers are ten times as
 * large, since real gradients have more large values than a normal distribution. */
static void replay_make_gradients(replay_run *r) {
    const esp_plan_model *m = &r->in.model;
    uint64_t largest = 0, state = 1000003u * (uint64_t)r->ctx->job.rank + 1;
    r->grads = tool_realloc(NULL, m->n_tensors * sizeof *r->grads);
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        r->grads[t] = tool_realloc(NULL, m->tensors[t].elements * sizeof(float));
        if (m->tensors[t].elements > largest) largest = m->tensors[t].elements;
    }
    r->pool_count = largest + REPLAY_POOL_EXTRA;
    r->pool = tool_realloc(NULL, r->pool_count * sizeof(float));
    for (uint64_t i = 0; i < r->pool_count; i++) {
        const uint64_t x = replay_random(&state);
        const double u = ((double)(x >> 40) + 1) / 16777217.0, v = (double)(x >> 8 & 0xffffff) / 16777216.0;
        const double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
        r->pool[i] = (float)(normal * 1e-2 * ((x & 0xff) < 3 ? 10 : 1));
    }
}

/* Copies other random numbers into the gradients for each step. */
static void replay_renew_gradients(replay_run *r) {
    const esp_plan_model *m = &r->in.model;
    uint64_t state = r->ctx->steps.step + 1;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        memcpy(r->grads[t], r->pool + replay_random(&state) % REPLAY_POOL_EXTRA,
               m->tensors[t].elements * sizeof(float));
}

static esp_status replay_add_tensors(replay_run *r) {
    esp_status s = ESP_OK;
    for (uint32_t t = 0; t < r->in.model.n_tensors && !s; t++) {
        const esp_plan_tensor *x = &r->tensors[t];
        const esp_tensor_desc d = {
            .struct_size = sizeof d, .name = x->name, .count = x->elements, .rows = x->rows, .cols = x->cols};
        uint32_t id;
        s = esp_tensor_add(r->ctx, &d, &id);
    }
    return s ? s : esp_start(r->ctx);
}

/* ---- strategies: rank 0 plans them, and all ranks simulate the same text ---------------------------------------- */
/* Predicts the step time, and stores the strategy with the order of collectives. Ignores the user's limits. */
static int replay_predict(replay_run *r, replay_strategy *s) {
    plan_inputs in = r->in;
    in.config = (esp_plan_config){.struct_size = sizeof in.config, .flags = ESP_PLAN_NO_BOUND};
    if (plan_simulate(&in, s->text.data, s->name, &s->predicted) != ESP_OK)
        return tool_fail(r->in.command, "%s: %s", s->name, esp_last_error(NULL));
    esp__text_free(&s->text);
    esp__text_add(&s->text, "%s", esp_plan_text(s->predicted.plan));
    return s->text.failed ? tool_fail(r->in.command, "out of memory") : TOOL_OK;
}

static int replay_plan(replay_run *r, replay_strategy *s) {
    plan_made m;
    if (s->text.data) return TOOL_OK;
    if (plan_make(&r->in, s->name, ESP_PLAN_NO_BOUND, &m) != ESP_OK)
        return tool_fail(r->in.command, "%s: %s", s->name, esp_last_error(NULL));
    esp__text_add(&s->text, "%s", esp_plan_text(m.plan));
    plan_free(&m);
    return TOOL_OK;
}

/* Sends rank 0's strategies to all ranks. All ranks must call it, and get the same *status. */
static esp_status replay_agree_strategies(replay_run *r, int *status) {
    const bool first = r->ctx->job.rank == 0;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < r->n_list && !s && *status == TOOL_OK; i++) {
        replay_strategy *y = &r->list[i];
        if (first && replay_plan(r, y) != TOOL_OK) esp__text_free(&y->text);
        uint32_t len = first && y->text.data ? (uint32_t)strlen(y->text.data) + 1 : 0;
        s = esp_broadcast(r->ctx, &len, sizeof len, 0);
        if (s || !len) {
            *status = TOOL_FAILED;
            return s;
        }
        char *text = tool_realloc(NULL, len);
        if (first) memcpy(text, y->text.data, len);
        s = esp_broadcast(r->ctx, text, len, 0);
        esp__text_free(&y->text);
        if (!s) esp__text_add(&y->text, "%s", text);
        free(text);
        if (!s) *status = replay_predict(r, y);
    }
    return s;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */
static uint64_t replay_thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Keeps a core busy for as much processor time as a computation of `ns` would need on a core of its own. */
static void replay_burn(const replay_run *r, double ns) {
    const uint64_t until = replay_thread_ns() + (uint64_t)(ns / r->stretch);
    while (replay_thread_ns() < until) {
    }
}

static void replay_note(esp__span *span, uint64_t start, uint64_t end, uint64_t begin) {
    if (!end) return;
    span->start_ns = start > begin ? start - begin : 0;
    span->end_ns = end > begin ? end - begin : 0;
}

static void replay_note_events(const replay_run *r, const replay_strategy *s, uint64_t begin, esp__span *spans) {
    const esp__active *f = &r->ctx->active;
    uint64_t before = begin;
    memset(spans, 0xff, s->predicted.n_events * sizeof *spans);
    for (uint32_t i = 0; i < f->program.n_ops; i++)
        if (s->event_of_op[i] != UINT32_MAX)
            replay_note(&spans[s->event_of_op[i]], f->op_time[i].start_ns, f->op_time[i].end_ns, begin);
    for (uint32_t e = 0; e < s->predicted.n_events; e++) {
        const esp_plan_event *x = &s->predicted.events[e];
        if (x->kind != ESP_PLAN_BACKWARD) continue;
        const uint64_t end = r->ctx->model.tensors[x->unit].enter_ns;
        replay_note(&spans[e], before, end, begin);
        before = end;
    }
}

/* Executes a training step. Records its times in `s`, or nowhere if that is NULL. */
static esp_status replay_step(replay_run *r, replay_strategy *s) {
    const esp_plan_model *m = &r->in.model;
    const esp_stream here = {{ESP_CPU, 0}, NULL};
    replay_renew_gradients(r);
    esp_status status = esp_barrier(r->ctx);
    const uint64_t start = esp__now_ns();
    replay_burn(r, m->forward_ns);
    const uint64_t begin = esp__now_ns();
    for (uint32_t t = 0; t < m->n_tensors && !status; t++) {
        replay_burn(r, m->tensors[t].compute_ns);
        status = esp_push(r->ctx, t, r->grads[t], here);
    }
    if (!status) status = esp_wait_all(r->ctx);
    replay_burn(r, m->update_ns);
    if (status || !s) return status;
    s->step_ns[s->n_steps] = (double)(esp__now_ns() - start);
    replay_note_events(r, s, begin, s->spans + (size_t)s->n_steps++ * s->predicted.n_events);
    return ESP_OK;
}

/* ---- runs the strategies in turn, so that other programs disturb all of them alike ------------------------------- */
static void replay_room(replay_strategy *s, size_t steps) {
    s->step_ns = tool_realloc(NULL, steps * sizeof *s->step_ns);
    s->spans = tool_realloc(NULL, steps * s->predicted.n_events * sizeof *s->spans);
}

/* Activates a strategy, executes one step to warm up, and then `steps` steps whose times are recorded. */
static esp_status replay_turn(replay_run *r, replay_strategy *s, uint32_t steps) {
    esp_stats before = {.struct_size = sizeof before}, after = before;
    esp_status status = esp_strategy_set(r->ctx, s->text.data);
    if (status) return status;
    free(s->event_of_op);
    s->event_of_op = replay_match(r->ctx, &s->predicted);
    status = replay_step(r, NULL);
    if (!status) status = esp_stats_read(r->ctx, &before);
    for (uint32_t i = 0; i < steps && !status; i++) status = replay_step(r, s);
    if (!status) status = esp_stats_read(r->ctx, &after);
    s->exposed_communication_ns += (double)(after.exposed_communication_ns - before.exposed_communication_ns);
    s->exposed_compression_ns += (double)(after.exposed_compression_ns - before.exposed_compression_ns);
    return status;
}

static esp_status replay_turns(replay_run *r) {
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < r->n_list; i++) replay_room(&r->list[i], (size_t)r->steps);
    for (long done = 0; done < r->steps && !s; done += REPLAY_TURN_STEPS) {
        const long left = r->steps - done;
        replay_progress(r, "steps %ld to %ld of each strategy", done + 1,
                        done + (left < REPLAY_TURN_STEPS ? left : REPLAY_TURN_STEPS));
        for (uint32_t i = 0; i < r->n_list && !s; i++)
            s = replay_turn(r, &r->list[i], (uint32_t)(left < REPLAY_TURN_STEPS ? left : REPLAY_TURN_STEPS));
    }
    return s;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */
/* Combines the times of all ranks. A step takes as long as on its slowest rank. An op starts when the last rank has
 * started it, and ends when the last rank has ended it, so that waiting for a slow rank does not count. */
static esp_status replay_gather_step(const replay_run *r, replay_strategy *s, uint32_t step) {
    const size_t n = (size_t)r->ctx->job.size, events = s->predicted.n_events;
    esp__span *mine = s->spans + step * events, *all = tool_realloc(NULL, n * events * sizeof *all);
    double *ns = tool_realloc(NULL, n * sizeof *ns);
    esp_status status =
        esp__peers_allgather(r->ctx->job.peers, NULL, r->ctx->job.size, mine, all, events * sizeof *all);
    if (!status)
        status = esp__peers_allgather(r->ctx->job.peers, NULL, r->ctx->job.size, &s->step_ns[step], ns, sizeof *ns);
    for (size_t i = 0; i < n && !status; i++)
        if (ns[i] > s->step_ns[step]) s->step_ns[step] = ns[i];
    for (size_t i = 0; i < n * events && !status; i++) {
        esp__span *to = &mine[i % events];
        if (all[i].end_ns == UINT64_MAX) continue;
        if (to->end_ns == UINT64_MAX) *to = all[i];
        if (all[i].start_ns > to->start_ns) to->start_ns = all[i].start_ns;
        if (all[i].end_ns > to->end_ns) to->end_ns = all[i].end_ns;
    }
    free(ns);
    free(all);
    return status;
}

static void replay_medians(replay_strategy *s) {
    const uint32_t events = s->predicted.n_events;
    double *start = tool_realloc(NULL, s->n_steps * sizeof *start), *end = tool_realloc(NULL, s->n_steps * sizeof *end);
    s->measured = tool_realloc(NULL, (events + 1) * sizeof *s->measured);
    for (uint32_t e = 0; e < events; e++) {
        esp_plan_event *x = &s->measured[e];
        *x = s->predicted.events[e];
        x->start_ns = x->end_ns = UINT64_MAX;
        if (s->spans[e].end_ns == UINT64_MAX) continue; /* no step has run it */
        for (uint32_t k = 0; k < s->n_steps; k++) {
            start[k] = (double)s->spans[(size_t)k * events + e].start_ns;
            end[k] = (double)s->spans[(size_t)k * events + e].end_ns;
        }
        x->start_ns = (uint64_t)esp__median(start, s->n_steps);
        x->end_ns = (uint64_t)esp__median(end, s->n_steps);
        if (x->end_ns < x->start_ns) x->end_ns = x->start_ns;
    }
    free(start);
    free(end);
    esp__sort(s->step_ns, s->n_steps);
}

static esp_status replay_gather(replay_run *r) {
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < r->n_list; i++) {
        for (uint32_t k = 0; k < r->list[i].n_steps && !s; k++) s = replay_gather_step(r, &r->list[i], k);
        if (!s) replay_medians(&r->list[i]);
    }
    return s;
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */
static esp_status replay_open(replay_run *r) {
    const esp_config cfg = {.struct_size = sizeof cfg, .strategy = "fp32", .seed = 1};
    unsetenv("ESPRESSO_STRATEGY");
    unsetenv("ESPRESSO_CODEC");
    const esp_status s = esp_open(&cfg, &r->ctx);
    if (s) return s;
    r->n = r->ctx->job.size;
    r->machines = r->ctx->job.topo.n_machines;
    return ESP_OK;
}

static esp_status replay_run_all(replay_run *r, int *status) {
    replay_scale(r);
    replay_make_gradients(r);
    esp_status s = replay_add_tensors(r);
    replay_progress(r, "planning");
    if (!s) s = replay_agree_strategies(r, status);
    if (!s && *status == TOOL_OK) s = replay_turns(r);
    if (!s && *status == TOOL_OK) s = replay_gather(r);
    if (!s && *status == TOOL_OK && r->ctx->job.rank == 0) *status = replay_report(r);
    return s;
}

ESP__FN int replay_as_rank(replay_run *r) {
    int status = TOOL_OK;
    esp_status s = replay_open(r);
    if (!s) status = replay_costs_fit(r);
    if (!s && status == TOOL_OK) s = replay_run_all(r, &status);
    /* if another rank has failed, that rank prints why */
    if (s && (!r->ctx || r->ctx->job.rank == 0 || s != ESP_E_PEER))
        tool_fail(r->in.command, "%s", esp_last_error(r->ctx));
    for (uint32_t t = 0; r->grads && t < r->in.model.n_tensors; t++) free(r->grads[t]);
    free(r->grads);
    free(r->pool);
    free(r->tensors);
    esp_close(r->ctx);
    return s ? TOOL_FAILED : status;
}
