/* text.c: a draft as the text of a strategy file, and back. The format is the library's (espresso_impl/strategy/strategy.c reads it
 * too, for running it): here it becomes units, paths and a sequence. */
#include "planner/plan.h"

static const char *esp__codec_word(const esp__problem *p, const esp__path *path) {
    return path->codec == ESP__NO_CODEC ? "none" : p->codecs[path->codec].spec;
}

/* How the order names op `k` of a path: its step; 'd' and 'u' for its copy down to the host and up; pack and unpack. */
static void esp__order_word(const esp__path *path, uint32_t k, uint32_t unit, char out[32]) {
    const esp__plan_op *op = &path->ops[k];
    if (op->kind == ESP_PLAN_PACK)
        snprintf(out, 32, "%u:%c", unit, op->up ? 'u' : 'p');
    else
        snprintf(out, 32, "%u:%u%s", unit, op->step, op->kind != ESP_PLAN_COPY ? "" : op->up ? "u" : "d");
}

static void esp__text_units(const esp__problem *p, const esp__draft *d, esp__text *t) {
    const esp_plan_tensor *tensors = p->model->tensors;
    char option[ESP__TEXT_MAX];
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__unit *x = &d->units[u];
        const esp_plan_tensor *first = &tensors[x->first];
        const char *codec = esp__codec_word(p, d->paths[u]);
        esp__option_print(d->paths[u]->option, option, sizeof option);
        if (x->n > 1) {
            for (uint32_t i = x->first; i < x->first + x->n; i++)
                esp__text_add(t, "tensor %s %llu group\n", tensors[i].name, (unsigned long long)tensors[i].elements);
            esp__text_add(t, "group %llu %s %s\n", (unsigned long long)x->elements, codec, option);
        } else if (x->elements != first->elements) {
            if (!x->begin) {
                uint32_t n = 0;
                while (u + n < d->n_units && d->units[u + n].first == x->first) n++;
                esp__text_add(t, "tensor %s %llu split %u\n", first->name, (unsigned long long)first->elements, n);
            }
            esp__text_add(t, "chunk %llu %s %s\n", (unsigned long long)x->elements, codec, option);
        } else {
            esp__text_add(t, "tensor %s %llu %s %s\n", first->name, (unsigned long long)x->elements, codec, option);
        }
    }
}

ESP__FN char *esp__draft_text(esp__problem *p, const esp__draft *d, const char *comment) {
    esp__text t = {0};
    uint8_t *op = esp__pool_get(p->pool, d->n_units);
    esp__text_add(&t, "%s\n%s", ESP__STRATEGY_MAGIC, comment);
    esp__text_units(p, d, &t);
    for (uint32_t i = 0; i < d->n_sequence; i++) {
        uint32_t u = d->sequence[i];
        char word[32] = "b";
        if (u != ESP__NEXT_BACKWARD) esp__order_word(d->paths[u], op[u]++, u, word);
        esp__text_add(&t, "%s%s%s", i % 16 ? " " : "order ", word, i % 16 == 15 || i + 1 == d->n_sequence ? "\n" : "");
    }
    if (t.failed) {
        esp__text_free(&t);
        longjmp(*p->pool->on_failure, 1);
    }
    return t.data;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */
typedef struct esp__reading {
    esp__problem *p;
    esp__draft *d;
    esp__lines lines;
    uint32_t tensor; /* the next one that a line must name */
    uint32_t members, chunks;
    uint64_t elements, begin;
    char (*words)[16]; /* entries of the order */
    uint32_t n_words, room_words;
} esp__reading;

static esp_status esp__read_path(esp__reading *r, char *codec, char *option, const esp__unit *u) {
    esp__problem *p = r->p;
    esp__option o;
    uint32_t c = ESP__NO_CODEC;
    option += strspn(option, " \t");
    if (!*codec || !*option)
        return esp__fail(NULL, ESP_E_ARG, "%s:%d: expected a codec and an option at the end of the line", r->lines.name,
                         r->lines.number);
    if (esp__option_parse(NULL, option, &o))
        return esp__fail(NULL, ESP_E_ARG, "%s:%d: %s", r->lines.name, r->lines.number, esp_last_error(NULL));
    if (esp__option_uses(&o, ESP__COMP) && (c = esp__codec_named(p, codec)) == ESP__NO_CODEC)
        return esp__fail(NULL, ESP_E_ARG, "%s:%d: codec '%s': no costs were given for it%s%s", r->lines.name,
                         r->lines.number, codec, p->n_codecs ? "; there are some for " : "",
                         p->n_codecs ? p->codecs[0].spec : "");
    const esp__path *path = esp__path_of(p, u, &o, c);
    if (!path)
        return esp__fail(NULL, ESP_E_ARG,
                         "%s:%d: option '%s' cannot be run on system '%s' (%u machines with %u ranks) with codec '%s'",
                         r->lines.name, r->lines.number, option, p->system.name ? p->system.name : "",
                         p->system.machines, p->system.ranks_per_machine, codec);
    esp__draft *d = r->d;
    if (d->n_units == d->room_units) {
        esp__unit *units = esp__pool_get(p->pool, 2 * d->room_units * sizeof *units);
        const esp__path **paths = esp__pool_get(p->pool, 2 * d->room_units * sizeof *paths);
        memcpy(units, d->units, d->n_units * sizeof *units);
        memcpy((void *)paths, (const void *)d->paths, d->n_units * sizeof *paths);
        d->units = units, d->paths = paths, d->room_units *= 2;
    }
    d->units[d->n_units] = *u;
    d->paths[d->n_units++] = path;
    return ESP_OK;
}

static esp_status esp__read_tensor(esp__reading *r, char *rest) {
    char *end, *name = esp__word(&rest), *count = esp__word(&rest), *what = esp__word(&rest);
    unsigned long long elements = strtoull(count, &end, 10);
    const esp__problem *p = r->p;
    const char *file = r->lines.name;
    int line = r->lines.number;
    if (!*count || *end || !*what)
        return esp__fail(NULL, ESP_E_ARG,
                         "%s:%d: expected 'tensor NAME ELEMENTS CODEC OPTION', '... split N' or '... group'", file,
                         line);
    if (r->tensor >= p->n_tensors)
        return esp__fail(NULL, ESP_E_ARG,
                         "%s:%d: tensor '%s' is one too many: model '%s' has %llu tensors. The strategy was made for "
                         "another model: make it anew",
                         file, line, name, p->model_name, (unsigned long long)p->n_tensors);
    const esp_plan_tensor *t = &p->model->tensors[r->tensor];
    if (strcmp(name, t->name) || elements != t->elements)
        return esp__fail(
            NULL, ESP_E_ARG,
            "%s:%d: tensor %u is '%s' with %llu elements in the strategy, but '%s' with %llu in model '%s'. "
            "The strategy was made for another model: make it anew",
            file, line, r->tensor, name, elements, t->name, (unsigned long long)t->elements, p->model_name);
    if (r->chunks)
        return esp__fail(NULL, ESP_E_ARG, "%s:%d: expected %u more 'chunk' lines first", file, line, r->chunks);
    if (r->members && strcmp(what, "group") != 0)
        return esp__fail(NULL, ESP_E_ARG, "%s:%d: expected the 'group' line of the tensors before it first", file,
                         line);
    esp__unit u = {r->tensor++, 1, 0, elements};
    if (!strcmp(what, "group")) {
        r->members++;
        r->elements += elements;
        return ESP_OK;
    }
    if (!strcmp(what, "split")) {
        char *n = esp__word(&rest);
        unsigned long chunks = strtoul(n, &end, 10);
        if (!*n || *end || chunks < 2 || chunks > elements || chunks > 1u << 20)
            return esp__fail(NULL, ESP_E_ARG, "%s:%d: split '%s': expected 2 or more chunks, none empty", file, line,
                             n);
        r->chunks = (uint32_t)chunks;
        r->elements = elements;
        r->begin = 0;
        return ESP_OK;
    }
    return esp__read_path(r, what, rest, &u);
}

/* "chunk ELEMENTS CODEC OPTION", "group ELEMENTS CODEC OPTION" */
static esp_status esp__read_part(esp__reading *r, char *rest, int group) {
    char *end, *count = esp__word(&rest), *codec = esp__word(&rest);
    unsigned long long elements = strtoull(count, &end, 10);
    const char *file = r->lines.name;
    int line = r->lines.number;
    esp__unit u = {r->tensor - 1, 1, r->begin, elements};
    if (!*count || *end || !elements)
        return esp__fail(NULL, ESP_E_ARG, "%s:%d: expected '%s ELEMENTS CODEC OPTION'", file, line,
                         group ? "group" : "chunk");
    if (group) {
        if (r->members < 2 || elements != r->elements)
            return esp__fail(NULL, ESP_E_ARG,
                             "%s:%d: the group before this line has %u tensors with %llu elements: expected 2 or more "
                             "tensors, and their sum",
                             file, line, r->members, (unsigned long long)r->elements);
        u.first = r->tensor - r->members;
        u.n = r->members;
        u.begin = 0;
        r->members = 0;
        r->elements = 0;
        return esp__read_path(r, codec, rest, &u);
    }
    if (!r->chunks || elements > r->elements || (r->chunks == 1) != (elements == r->elements))
        return esp__fail(NULL, ESP_E_ARG, "%s:%d: %llu elements where %u chunks with %llu elements in all were left",
                         file, line, elements, r->chunks, (unsigned long long)r->elements);
    r->begin += elements;
    r->elements -= elements;
    r->chunks--;
    return esp__read_path(r, codec, rest, &u);
}

static esp_status esp__read_order(esp__reading *r, char *rest) {
    for (char *word; *(word = esp__word(&rest));) {
        if (strlen(word) >= sizeof *r->words)
            return esp__fail(NULL, ESP_E_ARG, "%s:%d: order: '%s': expected b, UNIT:STEP and the like", r->lines.name,
                             r->lines.number, word);
        if (r->n_words == r->room_words) {
            char(*more)[16] = esp__pool_get(r->p->pool, 2 * r->room_words * sizeof *more);
            memcpy(more, r->words, r->n_words * sizeof *more);
            r->words = more, r->room_words *= 2;
        }
        strcpy(r->words[r->n_words++], word);
    }
    return ESP_OK;
}

/* A whole order, every op as this system has them: the sequence as it stands. */
static int esp__order_whole(esp__reading *r, uint8_t *op) {
    esp__draft *d = r->d;
    uint32_t tensor = 0, unit = 0;
    esp__sequence_room(r->p, d);
    if (r->n_words != d->n_sequence) return 0;
    for (uint32_t i = 0; i < r->n_words; i++) {
        char word[32];
        uint32_t u = (uint32_t)strtoul(r->words[i], NULL, 10);
        if (!strcmp(r->words[i], "b")) {
            if (tensor == r->p->n_tensors) return 0;
            d->sequence[i] = ESP__NEXT_BACKWARD;
            for (; unit < d->n_units && d->units[unit].first + d->units[unit].n - 1 == tensor; unit++) {
            }
            tensor++;
            continue;
        }
        if (u >= unit || op[u] == d->paths[u]->n) return 0;
        esp__order_word(d->paths[u], op[u]++, u, word);
        if (strcmp(word, r->words[i]) != 0) return 0;
        d->sequence[i] = u;
    }
    d->makespan = esp__replay(r->p, d);
    return 1;
}

/* The collectives of an order, with copies to and from the host put where they are needed. */
static esp_status esp__order_links(esp__reading *r, uint8_t *op) {
    esp__draft *d = r->d;
    uint32_t *links = esp__pool_get(r->p->pool, d->n_sequence * sizeof *links), n = 0;
    memset(op, 0, d->n_units);
    for (uint32_t i = 0; i < r->n_words; i++) {
        char *end;
        uint32_t u = (uint32_t)strtoul(r->words[i], &end, 10);
        unsigned long step = *end == ':' ? strtoul(end + 1, &end, 10) : 0;
        if (!strcmp(r->words[i], "b")) continue;
        if (u >= d->n_units || step >= ESP__MAX_STEPS)
            return esp__fail(NULL, ESP_E_ARG, "%s: order: '%s' names no step of a unit: units go from 0 to %u",
                             r->lines.name, r->words[i], d->n_units - 1);
        const esp__path *path = d->paths[u];
        if (*end || step >= path->option->n || path->option->steps[step].kind != ESP__COLL) continue;
        while (op[u] < path->n && (path->ops[op[u]].kind != ESP_PLAN_COLLECTIVE || path->ops[op[u]].step < step)) {
            if (path->ops[op[u]].kind == ESP_PLAN_COLLECTIVE)
                return esp__fail(NULL, ESP_E_ARG, "%s: order: %s stands where %u:%u must come first", r->lines.name,
                                 r->words[i], u, path->ops[op[u]].step);
            if (path->ops[op[u]++].kind == ESP_PLAN_COPY) links[n++] = u;
        }
        if (op[u] == path->n || path->ops[op[u]].step != step)
            return esp__fail(NULL, ESP_E_ARG, "%s: order: %s stands there twice", r->lines.name, r->words[i]);
        op[u]++;
        links[n++] = u;
    }
    for (uint32_t u = 0; u < d->n_units; u++)
        for (; op[u] < d->paths[u]->n; op[u]++) {
            if (d->paths[u]->ops[op[u]].kind == ESP_PLAN_COLLECTIVE)
                return esp__fail(NULL, ESP_E_ARG, "%s: order: %u:%u is missing", r->lines.name, u,
                                 d->paths[u]->ops[op[u]].step);
            if (d->paths[u]->ops[op[u]].kind == ESP_PLAN_COPY) links[n++] = u;
        }
    if (esp__generate_with(r->p, d, links, n) == UINT64_MAX)
        return esp__fail(NULL, ESP_E_ARG, "%s: order: collectives wait for each other in a circle", r->lines.name);
    return ESP_OK;
}

/* Reads a strategy's text into a draft with its time; `name` opens messages. */
ESP__FN esp_status esp__draft_read(esp__problem *p, esp__draft *d, const char *name, const char *text) {
    esp__reading *r = esp__pool_get(p->pool, sizeof *r);
    int more;
    esp_status s;
    memset(d, 0, sizeof *d);
    r->p = p, r->d = d;
    r->lines.name = name;
    r->lines.at = text;
    r->room_words = 1024;
    r->words = esp__pool_get(p->pool, r->room_words * sizeof *r->words);
    d->room_units = (uint32_t)p->n_tensors + 16;
    d->units = esp__pool_get(p->pool, d->room_units * sizeof *d->units);
    d->paths = esp__pool_get(p->pool, d->room_units * sizeof *d->paths);
    if (esp__lines_next(&r->lines) != 1 || strcmp(r->lines.line, ESP__STRATEGY_MAGIC) != 0)
        return esp__fail(NULL, ESP_E_ARG, "%s:%d: expected '%s' in the first line: this is no strategy file", name,
                         r->lines.number ? r->lines.number : 1, ESP__STRATEGY_MAGIC);
    while ((more = esp__lines_next(&r->lines)) == 1) {
        char *rest = r->lines.line, *word = esp__word(&rest);
        if (!strcmp(word, "tensor"))
            s = esp__read_tensor(r, rest);
        else if (!strcmp(word, "chunk") || !strcmp(word, "group"))
            s = esp__read_part(r, rest, *word == 'g');
        else if (!strcmp(word, "order"))
            s = esp__read_order(r, rest);
        else
            s = esp__fail(NULL, ESP_E_ARG, "%s:%d: '%s': expected tensor, chunk, group or order", name, r->lines.number,
                          word);
        if (s) return s;
    }
    if (more < 0) return esp__fail(NULL, ESP_E_ARG, "%s:%d: the line is too long", name, r->lines.number);
    if (r->tensor < p->n_tensors || r->members || r->chunks)
        return esp__fail(NULL, ESP_E_ARG, "%s: ends too soon: %u of %llu tensors of model '%s' are there%s", name,
                         r->tensor, (unsigned long long)p->n_tensors, p->model_name,
                         r->members  ? ", and a 'group' line is missing"
                         : r->chunks ? ", and chunks are missing"
                                     : "");
    uint8_t *op = esp__pool_get(p->pool, d->n_units);
    if (!r->n_words) {
        esp__generate(p, d);
        return ESP_OK;
    }
    return esp__order_whole(r, op) ? ESP_OK : esp__order_links(r, op);
}
