/* explain.c: `plan --explain TENSOR` shows the step time for each option of one tensor, if all others keep theirs. */
#include "tools/plan/plan.h"
#include "planner/simulate/schedule.h"

enum { EXPLAIN_ROWS = 10 };

/* The plan as a schedule, a list of units (tensors, groups and chunks). `unit` is the index of the tensor's unit; if
 * the tensor is split, that of its first chunk, which the others follow. */
typedef struct plan_explain_job {
    const plan_inputs *in;
    esp__problem p;
    esp__schedule kept, trial;
    uint32_t tensor, unit, n_units;
    uint64_t around_ns; /* ns of forward pass and update, which no option changes */
} plan_explain_job;

static int plan_find_tensor(const plan_inputs *in, const char *name, uint32_t *out) {
    unsigned best = 3;
    const char *guess = NULL;
    for (uint32_t t = 0; t < in->model.n_tensors; t++) {
        const char *known = in->model.tensors[t].name;
        *out = t;
        if (strcmp(known, name) == 0) return TOOL_OK;
        if (esp__suggests(name, known, &best)) guess = known;
    }
    return tool_fail(in->command, "--explain %s: model '%s' has no such tensor%s", name, in->model.name,
                     tool_meant(guess));
}

static bool explain_is_mine(const plan_explain_job *j, uint32_t unit) {
    return unit != ESP__NEXT_BACKWARD && unit >= j->unit && unit < j->unit + j->n_units;
}
static bool explain_on_link(const esp__plan_op *op) { return (op->lanes & ESP__LINK_LANES) != 0; }

/* Writes an order of collectives for a new option of the tensor. Its k-th collective takes the position of its k-th one
 * in the plan. Further ones follow the last position. */
static uint32_t explain_links(plan_explain_job *j, uint32_t *links) {
    const esp__schedule *kept = &j->kept, *trial = &j->trial;
    uint8_t *op = esp__arena_get(j->p.arena, kept->n_units);
    uint32_t *had = esp__arena_get(j->p.arena, j->n_units * sizeof *had);
    uint32_t *want = esp__arena_get(j->p.arena, j->n_units * sizeof *want), n = 0;
    for (uint32_t k = 0; k < j->n_units; k++) {
        const esp__path *old = kept->paths[j->unit + k], *new = trial->paths[j->unit + k];
        for (uint32_t i = 0; i < old->n; i++) had[k] += (uint32_t)explain_on_link(&old->ops[i]);
        for (uint32_t i = 0; i < new->n; i++) want[k] += (uint32_t)explain_on_link(&new->ops[i]);
    }
    for (uint32_t i = 0; i < kept->n_sequence; i++) {
        const uint32_t u = kept->sequence[i];
        if (u == ESP__NEXT_BACKWARD || !explain_on_link(&kept->paths[u]->ops[op[u]++])) continue;
        if (!explain_is_mine(j, u)) {
            links[n++] = u;
            continue;
        }
        const uint32_t k = u - j->unit;
        uint32_t times = --had[k] ? 1 : want[k];
        if (times > want[k]) times = want[k];
        for (want[k] -= times; times; times--) links[n++] = u;
    }
    return n;
}

static double explain_step(plan_explain_job *j) {
    esp__arena *arena = j->p.arena;
    const esp__checkpoint mark = esp__arena_checkpoint(arena);
    esp__schedule by_ready = {0}, by_kept = {0};
    esp__schedule_copy(&j->p, &by_ready, &j->trial);
    esp__schedule_copy(&j->p, &by_kept, &j->trial);
    uint64_t ns = esp__generate(&j->p, &by_ready);
    uint32_t *links = esp__arena_get(arena, ((size_t)esp__sequence_length(&j->p, &j->trial) + 1) * sizeof *links);
    const uint64_t other = esp__generate_with(&j->p, &by_kept, links, explain_links(j, links));
    if (other < ns) ns = other;
    esp__arena_rewind(arena, mark);
    return (double)(ns + j->around_ns);
}

/* Gives the tensor, or all its chunks, this option and codec. Returns false if they are not possible. */
static bool explain_set(plan_explain_job *j, const esp__path *path) {
    for (uint32_t k = 0; k < j->n_units; k++) {
        const esp__path *mine = esp__path_of(&j->p, &j->kept.units[j->unit + k], path->option, path->codec);
        if (!mine) return false;
        j->trial.paths[j->unit + k] = mine;
    }
    return true;
}

static void explain_ops(const esp__path *path, esp__text *out) {
    for (uint32_t i = 0; i < path->n; i++) {
        const esp__plan_op *op = &path->ops[i];
        char step[64];
        if (op->kind == ESP_PLAN_PACK)
            snprintf(step, sizeof step, "%s", op->reverse ? "unpack" : "pack");
        else if (op->kind == ESP_PLAN_COPY)
            snprintf(step, sizeof step, "copy %s the host", op->reverse ? "from" : "to");
        else
            esp__step_print(&path->option->steps[op->step], step, sizeof step);
        esp__text_add(out, "%s%s %s", i ? " > " : "", step, tool_time((double)op->time.ns));
    }
}

static void explain_row(const plan_explain_job *j, const esp__path *path, plan_explained *row) {
    const int raw = path->codec == ESP__NO_CODEC;
    esp__text ops = {NULL, 0, 0, 0, NULL};
    snprintf(row->codec, sizeof row->codec, "%s", raw ? ESP__CODEC_NONE : j->in->codecs[path->codec].spec);
    esp__option_print(path->option, row->option, sizeof row->option);
    for (uint32_t k = 0; k < j->n_units; k++) {
        const esp__path *mine = j->trial.paths[j->unit + k];
        row->chain_ns += (double)mine->total;
        row->memory += (double)mine->memory;
        for (int l = 0; l < ESP__LANES; l++) row->load_ns[l] += (double)mine->load[l];
    }
    explain_ops(path, &ops);
    row->ops = ops.data;
}

static int explain_before(const void *a, const void *b) {
    const plan_explained *x = a, *y = b;
    if (x->step_ns != y->step_ns) return x->step_ns < y->step_ns ? -1 : 1;
    return x->chain_ns < y->chain_ns ? -1 : x->chain_ns > y->chain_ns;
}

/* Sorts the options and keeps the best ones. The option that the plan has stays too, as the last one. */
static void explain_best(plan_explanation *e) {
    qsort(e->rows, e->tried, sizeof *e->rows, explain_before);
    e->n = e->tried < EXPLAIN_ROWS ? e->tried : EXPLAIN_ROWS;
    for (uint32_t i = e->n; i < e->tried; i++) {
        if (!e->rows[i].current) continue;
        const plan_explained current = e->rows[i];
        e->rows[i] = e->rows[e->n];
        e->rows[e->n++] = current;
        return;
    }
}

static void explain_try(plan_explain_job *j, plan_explanation *e, const esp__path *path, bool current) {
    if (!explain_set(j, path)) return;
    plan_explained *row = &e->rows[e->tried++];
    row->current = current;
    row->step_ns = current ? (double)(j->kept.makespan + j->around_ns) : explain_step(j);
    explain_row(j, path, row);
}

static void explain_when(const plan_explain_job *j, const plan_made *m, plan_explanation *e) {
    e->end_ns = (double)j->kept.makespan;
    for (uint32_t i = 0; i < m->n_events; i++) {
        const esp_plan_event *v = &m->events[i];
        const esp__extent *u = &j->kept.units[j->unit];
        if (v->kind == ESP_PLAN_BACKWARD && v->unit == u->first + u->n - 1) e->ready_ns = (double)v->end_ns;
        if (v->kind != ESP_PLAN_BACKWARD && explain_is_mine(j, v->unit) && (double)v->end_ns > e->done_ns)
            e->done_ns = (double)v->end_ns;
    }
}

static void explain_unit(plan_explain_job *j, plan_explanation *e) {
    const esp__schedule *d = &j->kept;
    while (d->units[j->unit].first + d->units[j->unit].n <= j->tensor) j->unit++;
    const uint32_t first = d->units[j->unit].first;
    for (j->n_units = 1; j->unit + j->n_units < d->n_units && d->units[j->unit + j->n_units].first == first;)
        j->n_units++;
    for (uint32_t k = 0; k < j->n_units; k++) e->elements += d->units[j->unit + k].elements;
    if (j->n_units > 1)
        snprintf(e->what, sizeof e->what, ", in %u chunks, which change together (ops are the first one's)",
                 j->n_units);
    else if (d->units[j->unit].n > 1)
        snprintf(e->what, sizeof e->what, ", the group of %u tensors from %s to %s", d->units[j->unit].n,
                 j->in->model.tensors[first].name, j->in->model.tensors[first + d->units[j->unit].n - 1].name);
}

static esp_status explain_all(plan_explain_job *j, esp__arena *arena, const plan_made *m, plan_explanation *e) {
    static const esp__path nothing = {.codec = ESP__NO_CODEC};
    const plan_inputs *in = j->in;
    esp_status s = esp__problem_open(&j->p, arena, &in->model, in->codecs, in->n_codecs, &in->system, &in->config, 0);
    if (s == ESP_OK) s = esp__schedule_read(&j->p, &j->kept, "the plan", esp_plan_text(m->plan));
    if (s != ESP_OK) return s;
    explain_unit(j, e);
    explain_when(j, m, e);
    esp__schedule_copy(&j->p, &j->trial, &j->kept);
    for (uint32_t k = 0; k < j->n_units; k++) j->trial.paths[j->unit + k] = &nothing;
    e->without_ns = explain_step(j);
    const esp__path *current = j->kept.paths[j->unit];
    const esp__candidates *candidates = esp__candidates_get(&j->p, &j->kept.units[j->unit]);
    e->rows = tool_zeroed((candidates->n + 1) * sizeof *e->rows);
    explain_try(j, e, current, 1);
    for (uint32_t i = 0; i < candidates->n; i++)
        if (candidates->paths[i].codec != current->codec ||
            memcmp(candidates->paths[i].option, current->option, sizeof *current->option))
            explain_try(j, e, &candidates->paths[i], 0);
    explain_best(e);
    return ESP_OK;
}

ESP__FN int plan_explain(const plan_inputs *in, const plan_made *m, const char *name, plan_explanation *e) {
    plan_explain_job *j = tool_zeroed(sizeof *j);
    esp__arena *arena = tool_zeroed(sizeof *arena);
    jmp_buf no_memory;
    j->in = in;
    j->around_ns = (uint64_t)(in->model.forward_ns + 0.5) + (uint64_t)(in->model.update_ns + 0.5);
    e->tensor = name;
    arena->on_failure = &no_memory;
    int status = plan_find_tensor(in, name, &j->tensor);
    if (status == TOOL_OK) {
        if (setjmp(no_memory))
            status = tool_fail(in->command, "out of memory");
        else if (explain_all(j, arena, m, e) != ESP_OK)
            status = tool_fail(in->command, "--explain %s: %s", name, esp_last_error(NULL));
    }
    esp__arena_free(arena);
    free(arena);
    free(j);
    return status;
}

ESP__FN void plan_explanation_free(plan_explanation *e) {
    for (uint32_t i = 0; i < e->tried; i++) free(e->rows[i].ops);
    free(e->rows);
}

ESP__FN void plan_print_explanation(FILE *to, const plan_explanation *e) {
    double now = 0;
    for (uint32_t i = 0; i < e->n; i++) now = e->rows[i].current ? e->rows[i].step_ns : now;
    fprintf(to,
            "\n%s, %s elements%s: ready at %s, done at %s of %s; were synchronising it free, the step would take %s\n",
            e->tensor, tool_count((double)e->elements), e->what, tool_time(e->ready_ns), tool_time(e->done_ns),
            tool_time(e->end_ns), tool_time(e->without_ns));
    fprintf(to, "the best of %u options that are worth trying, with everything else kept:\n\n", e->tried);
    for (uint32_t i = 0; i < e->n; i++) {
        const plan_explained *r = &e->rows[i];
        fprintf(to, "%c %10s  %8s  %s: ", r->current ? '*' : ' ', tool_time(r->step_ns),
                r->current ? "the plan" : plan_change_of(r->step_ns, now), r->codec);
        for (uint32_t l = 0; l < ESP__LANES; l++)
            if (r->load_ns[l] > 0) fprintf(to, "%s %s, ", esp__lane_word(l), tool_time(r->load_ns[l]));
        fprintf(to, "%s alone, %s of memory\n    %s\n", tool_time(r->chain_ns), tool_bytes(r->memory), r->ops);
    }
}

ESP__FN void plan_json_explanation(json_t *j, const plan_explanation *e) {
    json_t *out = json_add(j, "explain", json_object());
    json_text(out, "tensor", e->tensor);
    json_double(out, "elements", (double)e->elements);
    json_us(out, "ready_us", e->ready_ns);
    json_us(out, "done_us", e->done_ns);
    json_us(out, "without_us", e->without_ns);
    json_double(out, "tried", e->tried);
    json_t *best = json_add(out, "best", json_array());
    for (uint32_t i = 0; i < e->n; i++) {
        const plan_explained *r = &e->rows[i];
        json_t *row = json_add(best, NULL, json_object());
        json_add(row, "current", json_boolean(r->current));
        json_us(row, "iteration_us", r->step_ns);
        json_us(row, "alone_us", r->chain_ns);
        json_double(row, "memory_bytes", r->memory);
        plan_json_times(row, "lanes_us", r->load_ns);
        json_text(row, "codec", r->codec);
        json_text(row, "option", r->option);
        json_text(row, "ops", r->ops);
    }
}
