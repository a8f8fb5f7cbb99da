#include "planner/search/search.h"
#include "planner/simulate/schedule.h"
#include "planner/plan.h"

struct esp_plan {
    esp__arena arena;
    jmp_buf no_memory;
    esp__problem problem;
    esp__schedule schedule;
    char *text;
    esp_plan_report report;
    esp_plan_event *events;
    esp_plan_unit *units;
};

static int esp__event_before(const void *a, const void *b) {
    const esp_plan_event *x = a, *y = b;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns < y->end_ns ? -1 : 1;
    return x->unit != y->unit ? (x->unit < y->unit ? -1 : 1) : (int)x->step - (int)y->step;
}

/* ---- exposed time: visits the starts and ends of all ops in order of time ---------------------------------------- */
typedef struct esp__edge_of_op {
    uint64_t at;
    int32_t delta;
    uint32_t what; /* 0: backward, 1: an op on a link, 2: a codec */
} esp__edge_of_op;

static int esp__edge_before(const void *a, const void *b) {
    const esp__edge_of_op *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Computes how long links are busy outside of backward, and how long only codecs are. A step is longer by these. */
static void esp__exposed(esp_plan *plan, uint32_t n_events) {
    esp__checkpoint mark = esp__arena_checkpoint(&plan->arena);
    esp__edge_of_op *edges = esp__arena_get(&plan->arena, 2u * n_events * sizeof *edges);
    uint32_t n = 0, running[3] = {0, 0, 0};
    uint64_t communication = 0, compression = 0;
    for (uint32_t i = 0; i < n_events; i++) {
        const esp_plan_event *e = &plan->events[i];
        uint32_t what = e->kind == ESP_PLAN_BACKWARD ? 0 : e->lanes & ESP__LINK_LANES ? 1 : 2;
        edges[n].at = e->start_ns, edges[n].delta = 1, edges[n++].what = what;
        edges[n].at = e->end_ns, edges[n].delta = -1, edges[n++].what = what;
    }
    qsort(edges, n, sizeof *edges, esp__edge_before);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t span = i ? edges[i].at - edges[i - 1].at : 0;
        if (!running[0]) {
            if (running[1])
                communication += span;
            else if (running[2])
                compression += span;
        }
        running[edges[i].what] += (uint32_t)edges[i].delta;
    }
    plan->report.exposed_communication_ns = (double)communication;
    plan->report.exposed_compression_ns = (double)compression;
    esp__arena_rewind(&plan->arena, mark);
}

static void esp__report_lanes(esp_plan *plan, uint32_t n_events) {
    esp_plan_report *r = &plan->report;
    uint64_t first[ESP__LANES], last[ESP__LANES] = {0}, busy[ESP__LANES] = {0};
    for (uint32_t k = 0; k < ESP__LANES; k++) first[k] = UINT64_MAX;
    for (uint32_t i = 0; i < n_events; i++) {
        const esp_plan_event *e = &plan->events[i];
        for (uint32_t k = 0; k < ESP__LANES; k++) {
            if (!(e->lanes >> k & 1u)) continue;
            const uint64_t kept = ESP__CORE_LANES >> k & 1 ? e->core_ns : e->link_ns;
            busy[k] += kept;
            if (e->start_ns < first[k]) first[k] = e->start_ns;
            if (e->start_ns + kept > last[k]) last[k] = e->start_ns + kept;
        }
    }
    for (uint32_t k = 0; k < ESP__LANES; k++) {
        r->lane_ns[k] = (double)busy[k];
        r->bubble_ns[k] = first[k] == UINT64_MAX ? 0.0 : (double)(last[k] - first[k] - busy[k]);
    }
}

static void esp__report_schedule(esp_plan *plan) {
    esp__problem *p = &plan->problem;
    const esp__schedule *d = &plan->schedule;
    esp_plan_report *r = &plan->report;
    double sent[ESP__LEVELS] = {0.0};
    plan->events = esp__arena_get(p->arena, d->n_sequence * sizeof *plan->events);
    esp__timeline(p, d, plan->events);
    qsort(plan->events, d->n_sequence, sizeof *plan->events, esp__event_before);
    plan->units = esp__arena_get(p->arena, d->n_units * sizeof *plan->units);
    for (uint32_t u = 0, counted = UINT32_MAX; u < d->n_units; u++) {
        const esp__extent *x = &d->units[u];
        const esp__path *path = d->paths[u];
        char option[ESP__TEXT_MAX];
        esp__option_print(path->option, option, sizeof option);
        plan->units[u].first = x->first;
        plan->units[u].n_tensors = x->n;
        plan->units[u].begin = x->begin;
        plan->units[u].elements = x->elements;
        plan->units[u].codec = esp__codec_word(p, path);
        plan->units[u].option = esp__arena_text(p->arena, option);
        if (path->codec != ESP__NO_CODEC && x->first != counted) { /* a tensor in several chunks counts once */
            r->compressed += x->n;
            counted = x->first;
        }
        r->memory_bytes += path->memory;
        for (uint32_t k = 0; k < path->n; k++) esp__op_traffic(p, x, path, k, sent);
    }
    r->n_tensors = (uint32_t)p->n_tensors;
    r->n_units = d->n_units;
    r->intra_bytes = (uint64_t)sent[0];
    r->inter_bytes = (uint64_t)sent[1];
    for (uint32_t k = 0; k < ESP__LEVELS; k++) r->level_bytes[k] = (uint64_t)sent[k];
    r->iteration_ns = p->model->forward_ns + (double)d->makespan + p->model->update_ns;
    esp__report_lanes(plan, d->n_sequence);
    esp__exposed(plan, d->n_sequence);
}

/* Returns the makespan of the strategy "fp32", which does not compress. */
static uint64_t esp__fp32_makespan(esp__problem *p) {
    esp__schedule *d = esp__arena_get(p->arena, sizeof *d);
    esp__scheme_find("fp32")->make(p, d);
    p->fp32 = d;
    return d->makespan;
}

/* Returns a hash of the inputs, so that users see for which inputs a strategy was made. */
static uint64_t esp__plan_hash(const esp__problem *p) {
    const esp_plan_system *s = &p->system;
    const double numbers[] = {
        s->machines,       s->ranks_per_machine,  s->devices,           s->intra.alpha_ns, s->intra.bytes_per_us,
        s->inter.alpha_ns, s->inter.bytes_per_us, s->host_bytes_per_us, s->pack_ns,        s->pack_bytes_per_us,
        s->cores_per_rank, s->dispatch_ns[0],     s->dispatch_ns[1],    s->dispatch_ns[2], s->dispatch_ns[3]};
    uint64_t h = esp__hash64(ESP__HASH0, numbers, sizeof numbers);
    for (uint64_t i = 0; i < p->n_tensors; i++) {
        const esp_plan_tensor *t = &p->model->tensors[i];
        h = esp__hash64(h, t->name, strlen(t->name) + 1);
        h = esp__hash64(h, &t->elements, sizeof t->elements);
        h = esp__hash64(h, &p->compute[i], sizeof p->compute[i]);
    }
    for (uint32_t c = 0; c < p->n_codecs; c++) h = esp__hash64(h, p->codecs[c].spec, strlen(p->codecs[c].spec) + 1);
    return h;
}

static void esp__plan_text_make(esp_plan *plan) {
    const esp__problem *p = &plan->problem;
    const esp_plan_report *r = &plan->report;
    char comment[1024], bound[64] = "";
    if (r->bound_ns > 0.0) esp__format(bound, sizeof bound, "; bound %.3f us", r->bound_ns / 1e3);
    esp__format(
        comment, sizeof comment,
        "# model %.200s, system %.100s: %u machines x %u ranks, strategy %.64s\n# predicted %.3f us a step; fp32 "
        "%.3f us%s\n# made for %016llx\n",
        p->model_name, p->system.name, p->system.machines, p->system.ranks_per_machine,
        p->config.strategy ? p->config.strategy : "espresso+", r->iteration_ns / 1e3, r->fp32_ns / 1e3, bound,
        (unsigned long long)esp__plan_hash(p));
    plan->text = esp__schedule_text(&plan->problem, &plan->schedule, comment);
}

/* Computes how short the step would be if compression took no time (the Espresso paper's "Upper Bound"). */
static esp_status esp__plan_free_compression(esp_plan *plan) {
    const esp__problem *p = &plan->problem;
    esp__problem *other = esp__arena_get(&plan->arena, sizeof *other);
    esp__schedule best = {0};
    esp_status s = esp__problem_open(other, &plan->arena, p->model, p->codecs, p->n_codecs, &p->system, &p->config, 1);
    if (s) return s;
    other->effort = 0.1 * p->effort;
    esp__search_all(other, &best);
    uint64_t makespan = best.makespan < plan->schedule.makespan ? best.makespan : plan->schedule.makespan;
    plan->report.free_compression_ns = p->model->forward_ns + p->model->update_ns + (double)makespan;
    return ESP_OK;
}

/* Not inlined into the caller of setjmp, where its variables would be lost after a longjmp. */
__attribute__((noinline)) static esp_status esp__plan_run(esp_plan *plan, const char *strategy) {
    esp__problem *p = &plan->problem;
    const char *name = p->config.strategy;
    double around = p->model->forward_ns + p->model->update_ns;
    esp_status s;
    plan->report.fp32_ns = around + (double)esp__fp32_makespan(p);
    if (!(p->config.flags & ESP_PLAN_NO_BOUND)) plan->report.bound_ns = around + (double)esp__bound(p);
    if (strategy) {
        if ((s = esp__schedule_read(p, &plan->schedule, "strategy", strategy)) != ESP_OK) return s;
    } else if (!name || !strcmp(name, "espresso+")) {
        esp__search_all(p, &plan->schedule);
    } else {
        const esp__scheme *scheme = esp__scheme_find(name);
        if (!scheme)
            return esp__fail(NULL, ESP_E_ARG,
                             "strategy '%s': expected espresso+ or a comparison strategy (espresso compare lists them)",
                             name);
        scheme->make(p, &plan->schedule);
    }
    if (!plan->schedule.n_units || !esp__schedule_allowed(p, &plan->schedule)) return esp__limits_fail(p);
    if (!(p->config.flags & ESP_PLAN_NO_BOUND) && (s = esp__plan_free_compression(plan)) != ESP_OK) return s;
    return ESP_OK;
}

ESP__FN esp_status esp__plan_make_for(esp_ctx *ctx, const esp_plan_model *model, const esp_plan_codec *codecs,
                                      uint32_t n_codecs, const esp_plan_system *system, const esp_plan_config *config,
                                      const char *strategy, esp_plan **out) {
    uint64_t start = esp__now_ns();
    esp_plan *plan;
    esp_status s;
    if (!out) return esp__fail(NULL, ESP_E_ARG, "plan: out is NULL");
    *out = NULL;
    /* If the caller set no allocator, uses calloc, which is faster: esp__alloc would clear zeroed memory again. */
    if (ctx && !ESP_HAS(esp_host, esp__base_of(ctx)->user_host, alloc)) ctx = NULL;
    plan = ctx ? esp__alloc(ctx, sizeof *plan) : calloc(1, sizeof *plan);
    if (!plan) return esp__fail(NULL, ESP_E_NOMEM, "plan: out of memory");
    plan->arena.ctx = ctx;
    plan->arena.on_failure = &plan->no_memory;
    *out = plan; /* set before setjmp, because local variables may be lost after a longjmp */
    if (setjmp(plan->no_memory)) {
        esp_plan_free(*out);
        *out = NULL;
        return esp__fail(NULL, ESP_E_NOMEM, "plan: out of memory");
    }
    s = esp__problem_open(&plan->problem, &plan->arena, model, codecs, n_codecs, system, config, 0);
    if (!s && plan->problem.config.budget_ns > 0.0)
        plan->problem.deadline_ns = start + (uint64_t)plan->problem.config.budget_ns;
    if (!s) s = esp__plan_run(plan, strategy);
    if (!s) {
        plan->report.plan_ns = (double)(esp__now_ns() - start);
        esp__report_schedule(plan);
        esp__plan_text_make(plan);
        return ESP_OK;
    }
    esp_plan_free(*out);
    *out = NULL;
    return s;
}

ESPRESSO_API esp_status esp_plan_make(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                      const esp_plan_system *system, const esp_plan_config *config, esp_plan **out) {
    return esp__plan_make_for(NULL, model, codecs, n_codecs, system, config, NULL, out);
}

ESPRESSO_API esp_status esp_plan_simulate(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                          const esp_plan_system *system, const esp_plan_config *config,
                                          const char *strategy, esp_plan **out) {
    if (!strategy) return esp__fail(NULL, ESP_E_ARG, "plan: the strategy's text is NULL");
    return esp__plan_make_for(NULL, model, codecs, n_codecs, system, config, strategy, out);
}

ESPRESSO_API const char *esp_plan_text(const esp_plan *plan) { return plan ? plan->text : NULL; }

ESPRESSO_API esp_status esp_plan_report_read(const esp_plan *plan, esp_plan_report *out) {
    if (!plan || !out) return esp__fail(NULL, ESP_E_ARG, "esp_plan_report_read: plan or out is NULL");
    uint32_t size = out->struct_size ? out->struct_size : (uint32_t)sizeof *out;
    memcpy(out, &plan->report, size < sizeof *out ? size : sizeof *out);
    out->struct_size = size;
    return ESP_OK;
}

ESPRESSO_API const esp_plan_event *esp_plan_events(const esp_plan *plan, uint32_t *n) {
    if (n) *n = plan ? plan->schedule.n_sequence : 0;
    return plan ? plan->events : NULL;
}

ESPRESSO_API const esp_plan_unit *esp_plan_units(const esp_plan *plan, uint32_t *n) {
    if (n) *n = plan ? plan->schedule.n_units : 0;
    return plan ? plan->units : NULL;
}

ESPRESSO_API void esp_plan_free(esp_plan *plan) {
    if (!plan) return;
    esp_ctx *ctx = plan->arena.ctx;
    esp__arena_free(&plan->arena);
    if (ctx) {
        esp__free(ctx, plan->text);
        esp__free(ctx, plan);
    } else {
        free(plan->text);
        free(plan);
    }
}
