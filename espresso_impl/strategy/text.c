/* text.c: reads the text of a strategy file, line by line: units with their codecs and options, and the order of
 * ops. Every error says file, line and what was expected. Must not know what options and codecs mean. */
#include "espresso_impl/executor/context.h"
#include <ctype.h>

/* ---- lines and words --------------------------------------------------------------------------------------------- */
typedef struct esp__lines {
    const char *name, *at;
    int number;
    char line[ESP__TEXT_MAX * 4];
} esp__lines;

/* Next line without comment and blanks around it; 0 at the end, -1 if one is too long. */
static int esp__lines_next(esp__lines *l) {
    while (*l->at) {
        size_t len = strcspn(l->at, "\n"), keep = len;
        const char *start = l->at, *hash;
        l->at += len + (l->at[len] == '\n');
        l->number++;
        hash = memchr(start, '#', len);
        if (hash) keep = (size_t)(hash - start);
        while (keep && isspace((unsigned char)*start)) start++, keep--;
        while (keep && isspace((unsigned char)start[keep - 1])) keep--;
        if (keep >= sizeof l->line) return -1;
        memcpy(l->line, start, keep);
        l->line[keep] = 0;
        if (keep) return 1;
    }
    return 0;
}

/* Cuts the next word off *p. */
static char *esp__word(char **p) {
    char *start = *p + strspn(*p, " \t"), *end = start + strcspn(start, " \t");
    *p = *end ? end + 1 : end;
    *end = 0;
    return start;
}

static int esp__number(const char *word, uint64_t *out) {
    char *end;
    if (!isdigit((unsigned char)*word)) return 0;
    *out = strtoull(word, &end, 10);
    return !*end;
}

/* ---- units ---------------------------------------------------------------------------------------------------------- */
/* Where the reader stands. At most one of a split and a group is open. */
typedef struct esp__loading {
    esp_ctx *ctx;
    esp__lines l;
    char where[ESP__SPEC_MAX * 2]; /* "file:line" */
    uint32_t n_tensors;            /* whose lines were read, an open group's with them              */
    uint32_t n_chunks, chunk;      /* an open split: how many it has, and how many were read; 0: none */
    uint64_t cut;                  /* the elements of those                                          */
    uint32_t group;                /* tensors of the open group; 0: none                             */
} esp__loading;

static const esp__tensor *esp__loading_last(const esp__loading *r) { return &r->ctx->model.tensors[r->n_tensors - 1]; }

/* The next tensor of the model must be this one. */
static esp_status esp__load_tensor_name(esp__loading *r, const char *name, uint64_t count) {
    esp_ctx *ctx = r->ctx;
    uint32_t i = r->n_tensors;
    if (i >= ctx->model.n_tensors)
        return esp__fail(
            ctx, ESP_E_ARG,
            "%s: tensor '%s' is one too many: this model has %u tensors. The strategy was made for another "
            "model: make it anew",
            r->where, name, ctx->model.n_tensors);
    const esp__tensor *t = &ctx->model.tensors[i];
    if (strcmp(t->name, name) || t->count != count)
        return esp__fail(
            ctx, ESP_E_ARG,
            "%s: tensor %u is '%s' with %llu elements in the strategy, but '%s' with %llu in this model. The "
            "strategy was made for another model, or tensors were added in another order: make it anew",
            r->where, i, name, (unsigned long long)count, t->name, (unsigned long long)t->count);
    r->n_tensors++;
    return ESP_OK;
}

static esp_status esp__load_unit(esp__loading *r, esp__extent place, uint32_t chunk, uint32_t n_chunks,
                                 const char *codec, const char *option) {
    esp__work_unit *u = esp__unit_add(r->ctx, place, chunk, n_chunks);
    if (!u) return esp__fail(r->ctx, ESP_E_NOMEM, "%s: out of memory, or too many units", r->where);
    return esp__unit_assign(r->ctx, u, codec, option, r->where);
}

/* "tensor NAME ELEMENTS CODEC OPTION", "tensor NAME ELEMENTS split N" or "tensor NAME ELEMENTS group". */
static esp_status esp__load_tensor(esp__loading *r, char *rest) {
    char *name = esp__word(&rest), *elements = esp__word(&rest), *codec = esp__word(&rest);
    char *option = rest + strspn(rest, " \t");
    int member = !strcmp(codec, "group") && !*option;
    uint64_t count, chunks = 0;
    if (!esp__number(elements, &count) || !*codec || (!*option && !member))
        return esp__fail(r->ctx, ESP_E_ARG, "%s: expected 'tensor NAME ELEMENTS CODEC OPTION' (or split N, or group)",
                         r->where);
    if (r->group && !member)
        return esp__fail(r->ctx, ESP_E_ARG,
                         "%s: the group of tensor '%s' is not closed: expected 'group ELEMENTS CODEC OPTION', or "
                         "another 'tensor NAME ELEMENTS group'",
                         r->where, esp__loading_last(r)->name);
    esp_status s = esp__load_tensor_name(r, name, count);
    if (s) return s;
    if (member) return r->group++, ESP_OK;
    if (!strcmp(codec, "split")) {
        if (!esp__number(option, &chunks) || chunks < 2 || chunks > count || chunks > ESP__UNITS_MAX)
            return esp__fail(r->ctx, ESP_E_ARG,
                             "%s: tensor '%s': 'split %s': expected a number of chunks from 2 to its %llu elements",
                             r->where, name, option, (unsigned long long)count);
        r->n_chunks = (uint32_t)chunks;
        r->chunk = 0;
        r->cut = 0;
        return ESP_OK;
    }
    esp__extent whole = {r->n_tensors - 1, 1, 0, count};
    return esp__load_unit(r, whole, 0, 1, codec, option);
}

/* "chunk ELEMENTS CODEC OPTION". */
static esp_status esp__load_chunk(esp__loading *r, char *rest) {
    char *elements = esp__word(&rest), *codec = esp__word(&rest), *option = rest + strspn(rest, " \t");
    esp_ctx *ctx = r->ctx;
    esp__extent place = {r->n_tensors - 1, 1, r->cut, 0};
    if (!r->n_chunks)
        return esp__fail(ctx, ESP_E_ARG, "%s: a chunk belongs behind 'tensor NAME ELEMENTS split N'", r->where);
    if (!esp__number(elements, &place.count) || !place.count || !*codec || !*option)
        return esp__fail(ctx, ESP_E_ARG, "%s: expected 'chunk ELEMENTS CODEC OPTION', with at least one element",
                         r->where);
    const esp__tensor *t = esp__loading_last(r);
    if (place.count > t->count - r->cut || (r->chunk + 1 == r->n_chunks && place.count < t->count - r->cut))
        return esp__fail(ctx, ESP_E_ARG,
                         "%s: the chunks of tensor '%s' add up to %llu elements with this one, but it has %llu",
                         r->where, t->name, (unsigned long long)(r->cut + place.count), (unsigned long long)t->count);
    if (place.count == t->count - r->cut && r->chunk + 1 < r->n_chunks)
        return esp__fail(ctx, ESP_E_ARG, "%s: tensor '%s' has no elements left after chunk %u of %u", r->where, t->name,
                         r->chunk + 1, r->n_chunks);
    esp_status s = esp__load_unit(r, place, r->chunk, r->n_chunks, codec, option);
    r->cut += place.count;
    if (++r->chunk == r->n_chunks) r->n_chunks = 0;
    return s;
}

/* What cannot be synchronised as one cannot be in one group. */
static esp_status esp__load_group_check(const esp__loading *r, uint32_t first) {
    static const char *const dtypes[] = {"?", "f32", "f16", "bf16"};
    const esp__tensor *a = &r->ctx->model.tensors[first];
    if (r->group == 1)
        return esp__fail(r->ctx, ESP_E_ARG,
                         "%s: tensor '%s' is alone in its group: expected at least two 'tensor NAME ELEMENTS group' "
                         "lines before it, or 'tensor %s %llu CODEC OPTION' without a group",
                         r->where, a->name, a->name, (unsigned long long)a->count);
    for (const esp__tensor *t = a; t < a + r->group; t++) {
        if (t->dtype != a->dtype)
            return esp__fail(r->ctx, ESP_E_ARG,
                             "%s: tensor '%s' is %s but '%s' is %s: a group's tensors have one type of numbers",
                             r->where, a->name, dtypes[a->dtype & 3u], t->name, dtypes[t->dtype & 3u]);
        if ((t->flags ^ a->flags) & ESP_SUM)
            return esp__fail(r->ctx, ESP_E_ARG,
                             "%s: of tensors '%s' and '%s' only one wants the sum (ESP_SUM), the other the mean: they "
                             "cannot be in one group",
                             r->where, a->name, t->name);
        if (t->want_codec || t->want_option)
            return esp__fail(
                r->ctx, ESP_E_ARG,
                "%s: tensor '%s' has %s of its own ('%s'): it cannot be in a group; give it a line of its own",
                r->where, t->name, t->want_codec ? "a codec" : "an option",
                t->want_codec ? t->want_codec : t->want_option);
    }
    return ESP_OK;
}

/* "group ELEMENTS CODEC OPTION". */
static esp_status esp__load_group(esp__loading *r, char *rest) {
    char *elements = esp__word(&rest), *codec = esp__word(&rest), *option = rest + strspn(rest, " \t");
    esp_ctx *ctx = r->ctx;
    uint64_t count, sum = 0;
    if (!r->group)
        return esp__fail(ctx, ESP_E_ARG, "%s: a group belongs behind its tensors' lines 'tensor NAME ELEMENTS group'",
                         r->where);
    if (!esp__number(elements, &count) || !*codec || !*option)
        return esp__fail(ctx, ESP_E_ARG, "%s: expected 'group ELEMENTS CODEC OPTION'", r->where);
    esp__extent place = {r->n_tensors - r->group, r->group, 0, count};
    esp_status s = esp__load_group_check(r, place.first);
    if (s) return s;
    for (uint32_t k = 0; k < place.n; k++) sum += ctx->model.tensors[place.first + k].count;
    if (sum != count)
        return esp__fail(ctx, ESP_E_ARG, "%s: the group has %llu elements, but its %u tensors add up to %llu", r->where,
                         (unsigned long long)count, place.n, (unsigned long long)sum);
    r->group = 0;
    return esp__load_unit(r, place, 0, 1, codec, option);
}

/* ---- the order ------------------------------------------------------------------------------------------------------ */
/* "b", "UNIT:STEP", "UNIT:STEPd", "UNIT:STEPu", "UNIT:p" or "UNIT:u". 0: none of these, or of no op that there is. */
static int esp__turn_parse(const esp__strategy *y, const char *word, esp__turn *e) {
    char *end;
    memset(e, 0, sizeof *e);
    e->what = ESP__TURN_BACKWARD;
    if (!strcmp(word, "b")) return 1;
    if (!isdigit((unsigned char)*word)) return 0;
    unsigned long unit = strtoul(word, &end, 10), step = 0;
    if (*end != ':' || unit >= y->n_units) return 0;
    const esp__work_unit *u = &y->units[unit];
    e->unit = (uint32_t)unit;
    e->what = end[1] == 'p' ? ESP__TURN_PACK : ESP__TURN_UNPACK;
    if (end[1] == 'p' || end[1] == 'u') return !end[2] && esp__unit_is_group(u);
    if (!isdigit((unsigned char)end[1])) return 0;
    step = strtoul(end + 1, &end, 10);
    if (step >= u->option.n) return 0;
    e->step = (uint8_t)step;
    e->what = ESP__TURN_STEP;
    if (!*end) return 1;
    e->what = *end == 'd' ? ESP__TURN_DOWN : ESP__TURN_UP;
    return (*end == 'd' || *end == 'u') && !end[1] && u->option.steps[step].kind != ESP__COLL;
}

static int esp__turn_is_collective(const esp__strategy *y, const esp__turn *e) {
    return e->what == ESP__TURN_STEP && y->units[e->unit].option.steps[e->step].kind == ESP__COLL;
}

static esp_status esp__load_order(esp__loading *r, char *rest) {
    esp__strategy *y = &r->ctx->in_force.strategy;
    char *word;
    if (r->n_tensors < r->ctx->model.n_tensors || r->n_chunks || r->group)
        return esp__fail(r->ctx, ESP_E_ARG, "%s: 'order' must follow all %u tensors", r->where,
                         r->ctx->model.n_tensors);
    while (*(word = esp__word(&rest))) {
        esp__turn e;
        if (!esp__turn_parse(y, word, &e))
            return esp__fail(r->ctx, ESP_E_ARG,
                             "%s: order: '%s' names no collective or other op; expected UNIT:STEP, both from 0, or b, "
                             "UNIT:STEPd, UNIT:STEPu, UNIT:p, UNIT:u",
                             r->where, word);
        esp__turn *grown = esp__grow(r->ctx, y->turns, &y->cap_turns, ((uint64_t)y->n_turns + 1) * sizeof *grown);
        if (!grown) return esp__fail(r->ctx, ESP_E_NOMEM, "%s: out of memory", r->where);
        y->turns = grown;
        y->turns[y->n_turns++] = e;
        if (!esp__turn_is_collective(y, &e)) continue;
        uint32_t *order = esp__grow(r->ctx, y->order, &y->cap_order, ((uint64_t)y->n_order + 1) * sizeof *order);
        if (!order) return esp__fail(r->ctx, ESP_E_NOMEM, "%s: out of memory", r->where);
        y->order = order;
        y->order[y->n_order++] = e.unit << 8 | e.step;
    }
    return ESP_OK;
}

/* Every collective once, and a unit's own in its option's sequence. */
static esp_status esp__order_check(esp_ctx *ctx, const char *name) {
    esp__strategy *y = &ctx->in_force.strategy;
    for (uint32_t i = 0; i < y->n_units; i++) y->units[i].pc = 0;
    for (uint32_t k = 0; k < y->n_order; k++) {
        esp__work_unit *u = &y->units[y->order[k] >> 8];
        while (u->pc < u->option.n && u->option.steps[u->pc].kind != ESP__COLL) u->pc++;
        if (u->pc == u->option.n)
            return esp__fail(ctx, ESP_E_ARG, "%s: order: %u:%u stands where unit %u has no collective left", name,
                             y->order[k] >> 8, y->order[k] & 255u, y->order[k] >> 8);
        if (u->pc != (y->order[k] & 255u))
            return esp__fail(ctx, ESP_E_ARG, "%s: order: %u:%u stands where %u:%u must come first", name,
                             y->order[k] >> 8, y->order[k] & 255u, y->order[k] >> 8, u->pc);
        u->pc++;
    }
    for (uint32_t i = 0; i < y->n_units; i++) {
        esp__work_unit *u = &y->units[i];
        while (u->pc < u->option.n && u->option.steps[u->pc].kind != ESP__COLL) u->pc++;
        if (u->pc < u->option.n)
            return esp__fail(ctx, ESP_E_ARG, "%s: order: %u:%u is missing: unit %u is '%s'", name, i, u->pc, i,
                             u->name);
        u->pc = 0;
    }
    return ESP_OK;
}

/* The other entries too: a unit's are in the sequence of its chain, so each comes at most once; and as many backwards as
 * tensors, or none. */
static esp_status esp__turns_check(esp_ctx *ctx, const char *name) {
    static const uint32_t within[] = {1, 0, 2};
    esp__strategy *y = &ctx->in_force.strategy;
    uint32_t backwards = 0;
    for (uint32_t k = 0; k < y->n_turns; k++) {
        const esp__turn *e = &y->turns[k];
        if (e->what == ESP__TURN_BACKWARD) {
            backwards++;
            continue;
        }
        uint32_t place = e->what == ESP__TURN_PACK     ? 1u
                         : e->what == ESP__TURN_UNPACK ? 255u
                                                       : 2u + 3u * e->step + within[e->what];
        if (place <= y->units[e->unit].pc) {
            esp__text t = {0};
            esp__turn_print(&t, e);
            esp_status s =
                esp__fail(ctx, ESP_E_ARG, "%s: order: %s comes twice, or too late", name, t.data ? t.data : "an entry");
            esp__text_free(&t);
            return s;
        }
        y->units[e->unit].pc = place;
    }
    for (uint32_t i = 0; i < y->n_units; i++) y->units[i].pc = 0;
    if (backwards && backwards != ctx->model.n_tensors)
        return esp__fail(ctx, ESP_E_ARG, "%s: order: 'b' comes %u times, but there are %u tensors", name, backwards,
                         ctx->model.n_tensors);
    return ESP_OK;
}

/* ---- the whole text ------------------------------------------------------------------------------------------------- */
static esp_status esp__load_line(esp__loading *r) {
    char *rest = r->l.line, *word = esp__word(&rest);
    snprintf(r->where, sizeof r->where, "%s:%d", r->l.name, r->l.number);
    if (r->n_chunks && strcmp(word, "chunk"))
        return esp__fail(r->ctx, ESP_E_ARG, "%s: expected chunk %u of %u of tensor '%s': 'chunk ELEMENTS CODEC OPTION'",
                         r->where, r->chunk + 1, r->n_chunks, esp__loading_last(r)->name);
    if (!strcmp(word, "tensor")) return esp__load_tensor(r, rest);
    if (!strcmp(word, "chunk")) return esp__load_chunk(r, rest);
    if (!strcmp(word, "group")) return esp__load_group(r, rest);
    if (!strcmp(word, "order")) return esp__load_order(r, rest);
    return esp__fail(r->ctx, ESP_E_ARG, "%s: '%s': expected 'tensor' or 'order'", r->where, word);
}

/* The text ended: is everything there? */
static esp_status esp__load_end(esp__loading *r) {
    esp_ctx *ctx = r->ctx;
    if (r->n_chunks)
        return esp__fail(ctx, ESP_E_ARG, "%s:%d: the text ends after %u of %u chunks of tensor '%s'", r->l.name,
                         r->l.number, r->chunk, r->n_chunks, esp__loading_last(r)->name);
    if (r->n_tensors < ctx->model.n_tensors)
        return esp__fail(
            ctx, ESP_E_ARG,
            "%s: has %u tensors, but this model has %u; the first without a line is '%s'. The strategy was "
            "made for another model: make it anew",
            r->l.name, r->n_tensors, ctx->model.n_tensors, ctx->model.tensors[r->n_tensors].name);
    if (r->group)
        return esp__fail(ctx, ESP_E_ARG,
                         "%s:%d: the text ends before the group of tensor '%s' is closed: expected 'group ELEMENTS "
                         "CODEC OPTION'",
                         r->l.name, r->l.number, esp__loading_last(r)->name);
    return ESP_OK;
}

ESP__FN esp_status esp__strategy_parse(esp_ctx *ctx, const char *name, const char *text) {
    esp__loading r;
    int more;
    memset(&r, 0, sizeof r);
    r.ctx = ctx;
    r.l.name = name;
    r.l.at = text;
    esp__strategy_free(ctx, &ctx->in_force.strategy);
    if (esp__lines_next(&r.l) != 1 || strcmp(r.l.line, ESP__STRATEGY_MAGIC))
        return esp__fail(ctx, ESP_E_ARG, "%s:%d: expected '%s' in the first line: this is no strategy file", name,
                         r.l.number ? r.l.number : 1, ESP__STRATEGY_MAGIC);
    while ((more = esp__lines_next(&r.l)) == 1) {
        esp_status s = esp__load_line(&r);
        if (s) return s;
    }
    if (more < 0) return esp__fail(ctx, ESP_E_ARG, "%s:%d: the line is too long", name, r.l.number);
    esp_status s = esp__load_end(&r);
    if (s) return s;
    if (!ctx->in_force.strategy.n_turns) return esp__order_make(ctx);
    s = esp__order_check(ctx, name);
    return s ? s : esp__turns_check(ctx, name);
}
