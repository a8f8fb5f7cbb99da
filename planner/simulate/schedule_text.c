/* schedule_text.c: converts a schedule to the text of a strategy file and back. espresso_impl/strategy/text.c parses
 * and prints the lines. */
#include "planner/problem/problem.h"
#include "planner/simulate/schedule.h"
#include "espresso_impl/strategy/text.h"

ESP__FN const char *esp__codec_word(const esp__problem *p, const esp__path *path) {
    return path->codec == ESP__NO_CODEC ? ESP__CODEC_NONE : p->codecs[path->codec].spec;
}

/* Returns the entry that stands for op `k` in the line "order" of a strategy file. */
static esp__order_entry esp__path_entry(const esp__path *path, uint32_t k, uint32_t unit) {
    const esp__plan_op *op = &path->ops[k];
    esp__order_entry e = {unit, ESP__ENTRY_STEP, op->step};
    if (op->kind == ESP_PLAN_PACK)
        e.what = op->reverse ? ESP__ENTRY_UNPACK : ESP__ENTRY_PACK, e.step = 0;
    else if (op->kind == ESP_PLAN_COPY)
        e.what = op->reverse ? ESP__ENTRY_UP : ESP__ENTRY_DOWN;
    return e;
}

static const char *esp__problem_tensor(const void *user, uint32_t i, uint64_t *elements) {
    const esp_plan_tensor *t = &((const esp__problem *)user)->model->tensors[i];
    *elements = t->elements;
    return t->name;
}

static void esp__text_units(const esp__problem *p, const esp__schedule *d, esp__text *t) {
    const esp__text_tensors tensors = {p, (uint32_t)p->n_tensors, esp__problem_tensor};
    char option[ESP__TEXT_MAX];
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__extent *x = &d->units[u];
        esp__unit_line y = {x->first, x->n, x->begin, x->elements, 0, 1, esp__codec_word(p, d->paths[u]), option};
        esp__option_print(d->paths[u]->option, option, sizeof option);
        if (x->n == 1 && x->elements != p->model->tensors[x->first].elements) {
            y.chunk = x->begin ? 1 : 0;
            for (y.n_chunks = 2;
                 !x->begin && u + y.n_chunks < d->n_units && d->units[u + y.n_chunks].first == x->first;)
                y.n_chunks++;
        }
        esp__strategy_put_unit(t, &tensors, &y);
    }
}

ESP__FN char *esp__schedule_text(esp__problem *p, const esp__schedule *d, const char *comment) {
    esp__text t = {.ctx = p->arena->ctx};
    uint8_t *op = esp__arena_get(p->arena, d->n_units);
    esp__strategy_put_head(&t, comment);
    esp__text_units(p, d, &t);
    for (uint32_t i = 0; i < d->n_sequence; i++) {
        uint32_t u = d->sequence[i];
        esp__order_entry e = {0, ESP__ENTRY_BACKWARD, 0};
        if (u != ESP__NEXT_BACKWARD) e = esp__path_entry(d->paths[u], op[u]++, u);
        esp__strategy_put_entry(&t, i, d->n_sequence, &e);
    }
    if (t.failed) {
        esp__text_free(&t);
        longjmp(*p->arena->on_failure, 1);
    }
    return t.data;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
typedef struct esp__schedule_reading {
    esp__problem *p;
    esp__schedule *d;
    esp__order_entry *entries;
    uint32_t n_entries, room_entries;
} esp__schedule_reading;

static const esp__option *esp__schedule_option(const void *user, uint32_t unit, int *group) {
    const esp__schedule *d = ((const esp__schedule_reading *)user)->d;
    *group = d->units[unit].n > 1;
    return d->paths[unit]->option;
}

static const char *esp__schedule_unit_name(const void *user, uint32_t unit) {
    const esp__schedule_reading *r = (const esp__schedule_reading *)user;
    return r->p->model->tensors[r->d->units[unit].first].name;
}

static uint32_t esp__schedule_rounds(const void *user, uint32_t unit) {
    return ((const esp__schedule_reading *)user)->d->paths[unit]->rounds;
}

static esp__order_units esp__schedule_order_units(const esp__schedule_reading *r) {
    return (esp__order_units){.user = r,
                              .n_units = r->d->n_units,
                              .n_tensors = (uint32_t)r->p->n_tensors,
                              .option = esp__schedule_option,
                              .name = esp__schedule_unit_name,
                              .rounds = esp__schedule_rounds};
}

/* Fails if a tensor is sharded (each rank gets a part of the mean), but the option gives every rank the whole mean,
 * or the other way round. */
static esp_status esp__read_narrow(const esp__problem *p, const char *where, const esp__unit_line *x,
                                   const esp__option *o) {
    for (uint32_t i = x->first; i < x->first + x->n; i++) {
        const esp_plan_tensor *t = &p->model->tensors[i];
        if (!t->shard == !esp__option_narrow(o)) continue;
        return esp__fail(NULL, ESP_E_ARG,
                         t->shard
                             ? "%s: tensor '%s' is sharded, but option '%s' gives every rank all of it"
                             : "%s: tensor '%s': option '%s' leaves each rank with a part only, but the tensor is not "
                               "sharded in the model (shard, --shard)",
                         where, t->name, x->option);
    }
    return ESP_OK;
}

static esp_status esp__read_path(esp__problem *p, const char *where, const esp__unit_line *x, const esp__extent *u,
                                 const esp__path **out) {
    esp__option o;
    uint32_t c = ESP__NO_CODEC;
    const char *tensor = p->model->tensors[x->first].name;
    if (esp__option_parse(NULL, x->option, &o))
        return esp__fail(NULL, ESP_E_ARG, "%s: tensor '%s': %s", where, tensor, esp_last_error(NULL));
    esp_status s = esp__read_narrow(p, where, x, &o);
    if (s) return s;
    if (esp__option_compresses(&o) && (c = esp__codec_named(p, x->codec)) == ESP__NO_CODEC)
        return esp__fail(NULL, ESP_E_ARG, "%s: codec '%s': no costs were given for it%s%s", where, x->codec,
                         p->n_codecs ? "; there are some for " : "", p->n_codecs ? p->codecs[0].spec : "");
    if ((*out = esp__path_of(p, u, &o, c)) != NULL) return ESP_OK;
    return esp__fail(NULL, ESP_E_ARG,
                     "%s: option '%s' cannot be run on system '%s' (%u machines with %u ranks) with codec '%s'", where,
                     x->option, p->system.name ? p->system.name : "", p->system.machines, p->system.ranks_per_machine,
                     x->codec);
}

static esp_status esp__read_unit_path(void *user, const char *where, const esp__unit_line *x) {
    esp__schedule_reading *r = (esp__schedule_reading *)user;
    const esp__extent u = {x->first, x->n, x->begin, x->elements};
    const esp__path *path;
    esp_status s = esp__read_path(r->p, where, x, &u, &path);
    if (s) return s;
    esp__schedule *d = r->d;
    esp__schedule_room_units(r->p, d, d->n_units + 1);
    d->units[d->n_units] = u;
    d->paths[d->n_units++] = path;
    return ESP_OK;
}

static esp_status esp__read_entry(void *user, const char *where, const esp__order_entry *e) {
    esp__schedule_reading *r = (esp__schedule_reading *)user;
    const esp__order_units units = esp__schedule_order_units(r);
    char word[ESP__ENTRY_MAX];
    if (!esp__order_entry_fits(e, &units)) return esp__order_entry_fail(NULL, where, esp__order_entry_word(e, word));
    if (r->n_entries == r->room_entries)
        r->entries = esp__arena_grow(r->p->arena, r->entries, r->n_entries * sizeof *r->entries,
                                     (r->room_entries *= 2) * sizeof *r->entries);
    r->entries[r->n_entries++] = *e;
    return ESP_OK;
}

/* Copies the order of all ops from the text, and returns 1. Returns 0 if the text lacks an op that this system
 * needs. */
static int esp__order_whole(esp__schedule_reading *r, uint8_t *op) {
    esp__schedule *d = r->d;
    uint32_t tensor = 0, unit = 0;
    esp__sequence_room(r->p, d);
    if (r->n_entries != d->n_sequence) return 0;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        const esp__order_entry *e = &r->entries[i];
        const uint32_t u = e->unit;
        if (e->what == ESP__ENTRY_BACKWARD) {
            if (tensor == r->p->n_tensors) return 0;
            d->sequence[i] = ESP__NEXT_BACKWARD;
            for (; unit < d->n_units && d->units[unit].first + d->units[unit].n - 1 == tensor; unit++) {
            }
            tensor++;
            continue;
        }
        if (u >= unit || op[u] == d->paths[u]->n) return 0;
        const esp__order_entry want = esp__path_entry(d->paths[u], op[u]++, u);
        if (want.what != e->what || want.step != e->step) return 0;
        d->sequence[i] = u;
    }
    d->makespan = esp__replay(r->p, d);
    return 1;
}

/* Computes an order of all ops if the text orders collectives only. A copy between host and device also uses a link;
 * it is put directly before the next collective of its tensor or group. */
static esp_status esp__order_links(esp__schedule_reading *r, const char *name, uint8_t *op) {
    esp__schedule *d = r->d;
    uint32_t *links = esp__arena_get(r->p->arena, d->n_sequence * sizeof *links), n = 0;
    memset(op, 0, d->n_units);
    for (uint32_t i = 0; i < r->n_entries; i++) {
        const esp__order_entry *e = &r->entries[i];
        if (e->what != ESP__ENTRY_STEP) continue;
        const esp__path *path = d->paths[e->unit];
        if (path->option->steps[e->step].kind != ESP__STAGE_COLLECTIVE) continue;
        for (; op[e->unit] < path->n && path->ops[op[e->unit]].kind != ESP_PLAN_COLLECTIVE; op[e->unit]++)
            if (path->ops[op[e->unit]].kind == ESP_PLAN_COPY) links[n++] = e->unit;
        op[e->unit]++;
        links[n++] = e->unit;
    }
    for (uint32_t u = 0; u < d->n_units; u++)
        for (; op[u] < d->paths[u]->n; op[u]++)
            if (d->paths[u]->ops[op[u]].kind == ESP_PLAN_COPY) links[n++] = u;
    if (esp__generate_with(r->p, d, links, n) == UINT64_MAX)
        return esp__fail(NULL, ESP_E_ARG, "%s: order: collectives wait for each other in a circle", name);
    return ESP_OK;
}

ESP__FN esp_status esp__schedule_read(esp__problem *p, esp__schedule *d, const char *name, const char *text) {
    esp__schedule_reading *r = esp__arena_get(p->arena, sizeof *r);
    const esp__text_tensors tensors = {p, (uint32_t)p->n_tensors, esp__problem_tensor};
    const esp__strategy_lines to = {.user = r, .unit = esp__read_unit_path, .entry = esp__read_entry};
    memset(d, 0, sizeof *d);
    r->p = p, r->d = d;
    r->room_entries = 1024;
    r->entries = esp__arena_get(p->arena, r->room_entries * sizeof *r->entries);
    esp__schedule_room_units(p, d, (uint32_t)p->n_tensors + 16);
    esp_status s = esp__strategy_read(NULL, name, esp__arena_text(p->arena, text), &tensors, &to);
    if (s) return s;
    if (!r->n_entries) {
        esp__generate(p, d);
        return ESP_OK;
    }
    uint8_t *op = esp__arena_get(p->arena, d->n_units);
    esp__order_units units = esp__schedule_order_units(r);
    units.at = esp__arena_get(p->arena, d->n_units * sizeof *units.at);
    s = esp__order_check(NULL, name, r->entries, r->n_entries, &units);
    if (s) return s;
    return esp__order_whole(r, op) ? ESP_OK : esp__order_links(r, name, op);
}
