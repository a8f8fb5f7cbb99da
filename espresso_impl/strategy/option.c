/* option.c: the grammar of the decision tree (Espresso, section 4.2, Tables 2 and 3), and the three things done with it:
 * parsing an option, printing it, and enumerating the tree. Knows nothing of tensors, ranks or time. */
#include "espresso_impl/strategy/option.h"

/* Every rule of the grammar is a few symbols and then at most one sub-tree, so that one table has all rules. */
enum esp__symbol {
    ESP__S_NONE = 0,
    ESP__S_COMM,   /* allreduce                                                        */
    ESP__S_COMM1,  /* reduce_scatter or reduce: opens a pair                           */
    ESP__S_COMM2,  /* allgather or broadcast: closes it                                */
    ESP__S_COMMC,  /* allgather of payloads                                            */
    ESP__S_COMM1C, /* alltoall or gather of payloads: opens a pair                     */
    ESP__S_COMM2C, /* allgather or broadcast of payloads: closes it                    */
    ESP__S_SUMC,   /* allreduce of payload bodies (extension)                          */
    ESP__S_SUM1C,  /* reduce_scatter of payload bodies (extension): opens a pair       */
    ESP__S_COMP,
    ESP__S_DECOMP
};
enum esp__subtree {
    ESP__N_END = 0,
    ESP__N_FLAT,
    ESP__N_HIER,
    ESP__N_T1,
    ESP__N_T2,
    ESP__N_T3,
    ESP__N_T4,
    ESP__N_T4C,
    ESP__N_T5
};
enum { ESP__OUTER = 0, ESP__INNER = 1 }; /* flat or intra; inter */

typedef struct esp__rule {
    uint8_t subtree, level, extended, next;
    uint8_t symbols[3];
} esp__rule;

#define ESP__R(sub, level, ext, next, ...)                                                                             \
    {                                                                                                                  \
        ESP__N_##sub, ESP__##level, ext, ESP__N_##next, { __VA_ARGS__ }                                                \
    }
static const esp__rule esp__rules[] = {
    /* T1: second outer step, raw input */
    ESP__R(T1, OUTER, 0, END, ESP__S_COMM2),
    ESP__R(T1, OUTER, 0, END, ESP__S_COMP, ESP__S_COMM2C, ESP__S_DECOMP),
    /* T2: second outer step, compressed input */
    ESP__R(T2, OUTER, 0, END, ESP__S_COMM2C, ESP__S_DECOMP),
    ESP__R(T2, OUTER, 0, T1, ESP__S_DECOMP),
    /* T5: second inter step, raw input */
    ESP__R(T5, INNER, 0, T1, ESP__S_COMM2),
    ESP__R(T5, INNER, 0, T2, ESP__S_COMP, ESP__S_COMM2C),
    /* T4': inter, payloads whose first step moves them compressed */
    ESP__R(T4C, INNER, 0, T2, ESP__S_COMMC),
    ESP__R(T4C, INNER, 0, T5, ESP__S_COMM1C, ESP__S_DECOMP),
    ESP__R(T4C, INNER, 0, T2, ESP__S_COMM1C, ESP__S_COMM2C),
    ESP__R(T4C, INNER, 1, T2, ESP__S_SUMC),
    ESP__R(T4C, INNER, 1, T5, ESP__S_SUM1C, ESP__S_DECOMP),
    ESP__R(T4C, INNER, 1, T2, ESP__S_SUM1C, ESP__S_COMM2C),
    /* T3: inter, raw input */
    ESP__R(T3, INNER, 0, T1, ESP__S_COMM),
    ESP__R(T3, INNER, 0, T5, ESP__S_COMM1),
    ESP__R(T3, INNER, 0, T4C, ESP__S_COMP),
    /* T4: inter, compressed input */
    ESP__R(T4, INNER, 0, T4C, ESP__S_NONE),
    ESP__R(T4, INNER, 0, T3, ESP__S_DECOMP),
    /* roots */
    ESP__R(HIER, OUTER, 0, T3, ESP__S_COMM1),
    ESP__R(HIER, OUTER, 0, T4, ESP__S_COMP, ESP__S_COMM1C),
    ESP__R(HIER, OUTER, 1, T4, ESP__S_COMP, ESP__S_SUM1C),
    ESP__R(FLAT, OUTER, 0, END, ESP__S_COMM),
    ESP__R(FLAT, OUTER, 0, T1, ESP__S_COMM1),
    ESP__R(FLAT, OUTER, 0, END, ESP__S_COMP, ESP__S_COMMC, ESP__S_DECOMP),
    ESP__R(FLAT, OUTER, 0, T2, ESP__S_COMP, ESP__S_COMM1C),
    ESP__R(FLAT, OUTER, 1, END, ESP__S_COMP, ESP__S_SUMC, ESP__S_DECOMP),
    ESP__R(FLAT, OUTER, 1, T2, ESP__S_COMP, ESP__S_SUM1C),
};

static const char *const esp__coll_names[] = {
    [ESP_COLL_ALLREDUCE] = "allreduce", [ESP_COLL_ALLGATHER] = "allgather",
    [ESP_COLL_ALLTOALL] = "alltoall",   [ESP_COLL_REDUCE_SCATTER] = "reduce_scatter",
    [ESP_COLL_BROADCAST] = "broadcast", [ESP_COLL_GATHER] = "gather",
    [ESP_COLL_REDUCE] = "reduce"};
static const char *const esp__level_names[] = {"flat", "intra", "inter"};

/* A walk through the grammar: the steps so far and, for each level, the kind of its open pair (0: cut and allgather, 1: rooted). */
typedef struct esp__walk {
    esp__option option;
    uint8_t outer; /* ESP__FLAT or ESP__INTRA */
    uint8_t pair[3];
    uint32_t devices;
    int extended;
    /* enumerating */
    int (*each)(void *user, const esp__option *o);
    void *user;
    uint64_t visited;
    int stop;
    /* parsing: the steps that the text has */
    const esp__step *want;
    uint32_t n_want;
    uint32_t furthest;  /* most steps that matched on any path */
    char expected[256]; /* the steps that could follow them    */
} esp__walk;

static void esp__walk_symbols(esp__walk *w, const esp__rule *r, uint32_t at);

static void esp__walk_subtree(esp__walk *w, uint8_t subtree) {
    if (subtree == ESP__N_END) {
        if (w->want && w->option.n != w->n_want) {
            if (w->option.n >= w->furthest) {
                if (w->option.n > w->furthest) w->expected[0] = 0;
                w->furthest = w->option.n;
                if (!strstr(w->expected, "the end"))
                    snprintf(w->expected + strlen(w->expected), sizeof w->expected - strlen(w->expected), "%sthe end",
                             w->expected[0] ? ", " : "");
            }
            return;
        }
        w->visited++;
        if (w->each(w->user, &w->option)) w->stop = 1;
        return;
    }
    for (size_t i = 0; i < sizeof esp__rules / sizeof *esp__rules && !w->stop; i++)
        if (esp__rules[i].subtree == subtree && (w->extended || !esp__rules[i].extended))
            esp__walk_symbols(w, &esp__rules[i], 0);
}

ESP__FN void esp__step_print(const esp__step *s, char *buf, size_t cap) {
    if (s->kind == ESP__COLL)
        snprintf(buf, cap, "%s.%s", esp__level_names[s->level], esp__coll_names[s->coll]);
    else
        snprintf(buf, cap, "%s@%s", s->kind == ESP__COMP ? "comp" : "decomp",
                 s->device == ESP__DEV_GPU ? "gpu" : "cpu");
}

static int esp__step_same(const esp__step *a, const esp__step *b) {
    if (a->kind != b->kind) return 0;
    return a->kind == ESP__COLL ? a->level == b->level && a->coll == b->coll : a->device == b->device;
}

/* Takes `s` as the next step and walks on. When parsing, only if the text has this step here. */
static void esp__walk_step(esp__walk *w, const esp__rule *r, uint32_t at, const esp__step *s) {
    uint32_t n = w->option.n;
    if (w->want && (n >= w->n_want || !esp__step_same(&w->want[n], s))) {
        char text[40];
        esp__step_print(s, text, sizeof text);
        if (n > w->furthest) w->furthest = n, w->expected[0] = 0;
        if (n == w->furthest && !strstr(w->expected, text))
            snprintf(w->expected + strlen(w->expected), sizeof w->expected - strlen(w->expected), "%s%s",
                     w->expected[0] ? ", " : "", text);
        return;
    }
    if (n == ESP__MAX_STEPS) return; /* cannot happen: the grammar's longest path has as many steps */
    w->option.steps[n] = *s;
    w->option.n = n + 1;
    esp__walk_symbols(w, r, at + 1);
    w->option.n = n;
}

static void esp__walk_coll(esp__walk *w, const esp__rule *r, uint32_t at, uint8_t symbol) {
    uint8_t level = r->level == ESP__INNER ? (uint8_t)ESP__INTER : w->outer;
    esp__step s = {.kind = ESP__COLL, .level = level};
    s.compressed = symbol == ESP__S_COMMC || symbol == ESP__S_COMM1C || symbol == ESP__S_COMM2C ||
                   symbol == ESP__S_SUMC || symbol == ESP__S_SUM1C;
    s.summed = symbol == ESP__S_SUMC || symbol == ESP__S_SUM1C;
    uint8_t saved = w->pair[level];
    switch (symbol) {
    case ESP__S_COMM:
    case ESP__S_SUMC:
        s.coll = ESP_COLL_ALLREDUCE;
        esp__walk_step(w, r, at, &s);
        break;
    case ESP__S_COMMC:
        s.coll = ESP_COLL_ALLGATHER;
        esp__walk_step(w, r, at, &s);
        break;
    case ESP__S_COMM2:
    case ESP__S_COMM2C:
        s.role = ESP__SECOND;
        s.coll = w->pair[level] ? ESP_COLL_BROADCAST : ESP_COLL_ALLGATHER;
        esp__walk_step(w, r, at, &s);
        break;
    default: { /* the first of a pair: cutting or rooted, but only cutting where bodies are summed */
        static const uint8_t colls[3][2] = {{ESP_COLL_REDUCE_SCATTER, ESP_COLL_REDUCE},
                                            {ESP_COLL_ALLTOALL, ESP_COLL_GATHER},
                                            {ESP_COLL_REDUCE_SCATTER, 0}};
        const uint8_t *c = colls[symbol == ESP__S_COMM1 ? 0 : symbol == ESP__S_COMM1C ? 1 : 2];
        s.role = ESP__FIRST;
        for (uint8_t i = 0; i < 2 && c[i] && !w->stop; i++) {
            s.coll = c[i];
            w->pair[level] = i;
            esp__walk_step(w, r, at, &s);
        }
        w->pair[level] = saved;
    }
    }
}

static void esp__walk_symbols(esp__walk *w, const esp__rule *r, uint32_t at) {
    uint8_t symbol = at < 3 ? r->symbols[at] : (uint8_t)ESP__S_NONE;
    if (w->stop) return;
    if (symbol == ESP__S_NONE) {
        esp__walk_subtree(w, r->next);
    } else if (symbol == ESP__S_COMP || symbol == ESP__S_DECOMP) {
        esp__step s = {.kind = symbol == ESP__S_COMP ? ESP__COMP : ESP__DECOMP};
        for (uint8_t d = 0; d < 2 && !w->stop; d++) {
            if (!(w->devices >> d & 1u)) continue;
            s.device = d;
            esp__walk_step(w, r, at, &s);
        }
    } else {
        esp__walk_coll(w, r, at, symbol);
    }
}

ESP__FN uint64_t esp__option_each(uint32_t parts, uint32_t devices, int extended,
                                  int (*each)(void *user, const esp__option *o), void *user) {
    esp__walk w;
    memset(&w, 0, sizeof w);
    w.devices = devices;
    w.extended = extended;
    w.each = each;
    w.user = user;
    w.outer = ESP__FLAT;
    if (parts & ESP__TREE_FLAT) esp__walk_subtree(&w, ESP__N_FLAT);
    w.outer = ESP__INTRA;
    if (parts & ESP__TREE_HIERARCHICAL && !w.stop) esp__walk_subtree(&w, ESP__N_HIER);
    return w.visited;
}

ESP__FN size_t esp__option_print(const esp__option *o, char *buf, size_t cap) {
    size_t len = 0;
    if (cap) buf[0] = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        char step[40];
        esp__step_print(&o->steps[i], step, sizeof step);
        int n = snprintf(buf + (len < cap ? len : cap), len < cap ? cap - len : 0, "%s%s", i ? " > " : "", step);
        len += n > 0 ? (size_t)n : 0;
    }
    return len;
}

/* Reads one word of the text as a step. */
static int esp__step_read(const char *word, size_t len, esp__step *s) {
    memset(s, 0, sizeof *s);
    for (uint8_t kind = ESP__COMP; kind <= ESP__DECOMP; kind++)
        for (uint8_t d = 0; d < 2; d++) {
            char text[40];
            s->kind = kind, s->device = d;
            esp__step_print(s, text, sizeof text);
            if (strlen(text) == len && !memcmp(text, word, len)) return 1;
        }
    memset(s, 0, sizeof *s);
    s->kind = ESP__COLL;
    for (uint8_t level = 0; level < 3; level++)
        for (uint8_t c = ESP_COLL_ALLREDUCE; c <= ESP_COLL_REDUCE; c++) {
            char text[40];
            s->level = level, s->coll = c;
            esp__step_print(s, text, sizeof text);
            if (strlen(text) == len && !memcmp(text, word, len)) return 1;
        }
    return 0;
}

static int esp__option_found(void *user, const esp__option *o) {
    *(esp__option *)user = *o;
    return 1;
}

ESP__FN esp_status esp__option_parse(const esp_ctx *ctx, const char *text, esp__option *out) {
    esp__step want[ESP__MAX_STEPS];
    size_t position[ESP__MAX_STEPS + 1];
    uint32_t n = 0;
    const char *p = text + strspn(text, " \t");
    if (!*p) return esp__fail(ctx, ESP_E_ARG, "option: empty; expected steps like 'flat.allreduce' with ' > ' between");
    for (;;) {
        size_t len = strcspn(p, " \t>");
        size_t column = (size_t)(p - text) + 1;
        if (n == ESP__MAX_STEPS)
            return esp__fail(ctx, ESP_E_ARG, "option: position %zu: more than %d steps", column, (int)ESP__MAX_STEPS);
        if (!esp__step_read(p, len, &want[n]))
            return esp__fail(
                ctx, ESP_E_ARG,
                "option: position %zu: '%.*s' is no step; expected comp@cpu, comp@gpu, decomp@cpu, decomp@gpu, "
                "or flat., intra. or inter. with allreduce, reduce_scatter, reduce, allgather, broadcast, "
                "alltoall or gather",
                column, (int)(len > 40 ? 40 : len), p);
        position[n++] = column;
        p += len;
        p += strspn(p, " \t");
        position[n] = (size_t)(p - text) + 1;
        if (!*p) break;
        if (*p != '>')
            return esp__fail(ctx, ESP_E_ARG, "option: position %zu: expected '>' between two steps",
                             (size_t)(p - text) + 1);
        p++;
        p += strspn(p, " \t");
    }
    esp__walk w;
    memset(&w, 0, sizeof w);
    w.devices = 3;
    w.extended = 1;
    w.want = want;
    w.n_want = n;
    w.each = esp__option_found;
    w.user = out;
    w.outer = ESP__FLAT;
    esp__walk_subtree(&w, ESP__N_FLAT);
    w.outer = ESP__INTRA;
    if (!w.visited) esp__walk_subtree(&w, ESP__N_HIER);
    if (w.visited) return ESP_OK;
    if (w.furthest >= n)
        return esp__fail(ctx, ESP_E_ARG, "option: position %zu: ends too soon; expected %s", position[n], w.expected);
    char found[40];
    esp__step_print(&want[w.furthest], found, sizeof found);
    return esp__fail(ctx, ESP_E_ARG, "option: position %zu: '%s' cannot stand here; expected %s", position[w.furthest],
                     found, w.expected);
}

ESP__FN int esp__option_is_flat(const esp__option *o) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == ESP__COLL) return o->steps[i].level == ESP__FLAT;
    return 1;
}

ESP__FN int esp__option_uses(const esp__option *o, uint8_t kind) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == kind) return 1;
    return 0;
}
