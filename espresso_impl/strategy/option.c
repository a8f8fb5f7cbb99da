/* option.c: parses, prints and enumerates options, the sequences of collectives, compressions and decompressions that
 * section 4.2 (Tables 2 and 3) of the Espresso paper defines. The paper has two levels of links, intra (inside
 * machines) and inter (between machines). For more levels, its rules are applied once more for each further one. */
#include "espresso_impl/strategy/option.h"

/* A rule of the grammar: up to three symbols, then the set of rules to apply next. COMM1 and COMM2 are a pair of
 * collectives: reduce_scatter and allgather, or reduce and broadcast. A C at the end marks collectives of payloads. */
enum esp__symbol {
    ESP__S_NONE = 0,
    ESP__S_COMM,   /* allreduce */
    ESP__S_COMM1,  /* reduce_scatter or reduce */
    ESP__S_COMM2,  /* allgather or broadcast */
    ESP__S_COMMC,  /* allgather of payloads */
    ESP__S_COMM1C, /* alltoall or gather of payloads */
    ESP__S_COMM2C, /* allgather or broadcast of payloads */
    ESP__S_SUMC,   /* allreduce of payloads; not in the paper */
    ESP__S_SUM1C,  /* reduce_scatter of payloads; not in the paper */
    ESP__S_COMP,
    ESP__S_DECOMP
};
enum esp__subtree {
    ESP__N_END = 0,
    ESP__N_FLAT,
    ESP__N_HIER,
    ESP__N_MID,
    ESP__N_T1,
    ESP__N_T2,
    ESP__N_T3,
    ESP__N_T4,
    ESP__N_T4C,
    ESP__N_T5,
    ESP__N_T6,
    /* Which rules these stand for depends on the level: OUT goes on with the next level outwards, BACK with the second
     * collective of this level. The input is uncompressed (RAW) or compressed (COMP). */
    ESP__N_OUT_RAW,
    ESP__N_OUT_COMP,
    ESP__N_BACK_RAW,
    ESP__N_BACK_COMP,
    /* for sharded tensors; LAST is for the outermost level */
    ESP__N_SHARD,
    ESP__N_SHARD_COMP,
    ESP__N_SHARD_LAST,
    ESP__N_SHARD_LAST_COMP,
    ESP__N_SHARD_OUT_RAW,
    ESP__N_SHARD_OUT_COMP
};
enum { ESP__SAME = 0, ESP__OUTWARD = 1, ESP__BACK = -1 };

typedef struct esp__rule {
    uint8_t subtree;
    int8_t move;
    bool extended; /* sums payloads, which the paper's options do not */
    uint8_t next;
    uint8_t symbols[3];
} esp__rule;

#define ESP__R(sub, move, ext, next, ...)                                                                              \
    {                                                                                                                  \
        ESP__N_##sub, ESP__##move, ext, ESP__N_##next, { __VA_ARGS__ }                                                 \
    }
static const esp__rule esp__rules[] = {
    /* T1: second collective inside machines, if its input is not compressed */
    ESP__R(T1, SAME, 0, END, ESP__S_COMM2),
    ESP__R(T1, SAME, 0, END, ESP__S_COMP, ESP__S_COMM2C, ESP__S_DECOMP),
    /* T2: second collective inside machines, if its input is compressed */
    ESP__R(T2, SAME, 0, END, ESP__S_COMM2C, ESP__S_DECOMP),
    ESP__R(T2, SAME, 0, T1, ESP__S_DECOMP),
    /* T5: second collective between machines, if its input is not compressed */
    ESP__R(T5, BACK, 0, BACK_RAW, ESP__S_COMM2),
    ESP__R(T5, BACK, 0, BACK_COMP, ESP__S_COMP, ESP__S_COMM2C),
    /* T6: second collective between machines, if its input is compressed */
    ESP__R(T6, BACK, 0, BACK_COMP, ESP__S_COMM2C),
    ESP__R(T6, SAME, 0, T5, ESP__S_DECOMP),
    /* T4C: stages between machines that begin with a collective of payloads */
    ESP__R(T4C, BACK, 0, BACK_COMP, ESP__S_COMMC),
    ESP__R(T4C, SAME, 0, T5, ESP__S_COMM1C, ESP__S_DECOMP),
    ESP__R(T4C, BACK, 0, BACK_COMP, ESP__S_COMM1C, ESP__S_COMM2C),
    ESP__R(T4C, BACK, 1, BACK_COMP, ESP__S_SUMC),
    ESP__R(T4C, SAME, 1, T5, ESP__S_SUM1C, ESP__S_DECOMP),
    ESP__R(T4C, BACK, 1, BACK_COMP, ESP__S_SUM1C, ESP__S_COMM2C),
    /* T3: stages between machines, if their input is not compressed */
    ESP__R(T3, BACK, 0, BACK_RAW, ESP__S_COMM),
    ESP__R(T3, SAME, 0, T5, ESP__S_COMM1),
    ESP__R(T3, SAME, 0, T4C, ESP__S_COMP),
    /* T4: stages between machines, if their input is compressed */
    ESP__R(T4, SAME, 0, T4C, ESP__S_NONE),
    ESP__R(T4, SAME, 0, T3, ESP__S_DECOMP),
    /* HIER: first stages inside machines. MID: first stages of a middle level, if their input is compressed. */
    ESP__R(HIER, OUTWARD, 0, OUT_RAW, ESP__S_COMM1),
    ESP__R(HIER, OUTWARD, 0, OUT_COMP, ESP__S_COMP, ESP__S_COMM1C),
    ESP__R(HIER, OUTWARD, 1, OUT_COMP, ESP__S_COMP, ESP__S_SUM1C),
    ESP__R(MID, OUTWARD, 0, OUT_COMP, ESP__S_COMM1C),
    ESP__R(MID, OUTWARD, 1, OUT_COMP, ESP__S_SUM1C),
    ESP__R(MID, SAME, 0, HIER, ESP__S_DECOMP),
    ESP__R(FLAT, SAME, 0, END, ESP__S_COMM),
    ESP__R(FLAT, SAME, 0, T1, ESP__S_COMM1),
    ESP__R(FLAT, SAME, 0, END, ESP__S_COMP, ESP__S_COMMC, ESP__S_DECOMP),
    ESP__R(FLAT, SAME, 0, T2, ESP__S_COMP, ESP__S_COMM1C),
    ESP__R(FLAT, SAME, 1, END, ESP__S_COMP, ESP__S_SUMC, ESP__S_DECOMP),
    ESP__R(FLAT, SAME, 1, T2, ESP__S_COMP, ESP__S_SUM1C),
    /* SHARD: for sharded tensors, which need only the first collective of each pair */
    ESP__R(SHARD, OUTWARD, 0, SHARD_OUT_RAW, ESP__S_COMM1),
    ESP__R(SHARD, OUTWARD, 0, SHARD_OUT_COMP, ESP__S_COMP, ESP__S_COMM1C),
    ESP__R(SHARD, OUTWARD, 1, SHARD_OUT_COMP, ESP__S_COMP, ESP__S_SUM1C),
    ESP__R(SHARD_COMP, OUTWARD, 0, SHARD_OUT_COMP, ESP__S_COMM1C),
    ESP__R(SHARD_COMP, OUTWARD, 1, SHARD_OUT_COMP, ESP__S_SUM1C),
    ESP__R(SHARD_COMP, SAME, 0, SHARD, ESP__S_DECOMP),
    ESP__R(SHARD_LAST, SAME, 0, END, ESP__S_COMM1),
    ESP__R(SHARD_LAST, SAME, 0, END, ESP__S_COMP, ESP__S_COMM1C, ESP__S_DECOMP),
    ESP__R(SHARD_LAST, SAME, 1, END, ESP__S_COMP, ESP__S_SUM1C, ESP__S_DECOMP),
    ESP__R(SHARD_LAST_COMP, SAME, 0, END, ESP__S_COMM1C, ESP__S_DECOMP),
    ESP__R(SHARD_LAST_COMP, SAME, 1, END, ESP__S_SUM1C, ESP__S_DECOMP),
    ESP__R(SHARD_LAST_COMP, SAME, 0, SHARD_LAST, ESP__S_DECOMP),
};

static const char *const esp__coll_names[] = {
    [ESP_COLL_ALLREDUCE] = "allreduce", [ESP_COLL_ALLGATHER] = "allgather",
    [ESP_COLL_ALLTOALL] = "alltoall",   [ESP_COLL_REDUCE_SCATTER] = "reduce_scatter",
    [ESP_COLL_BROADCAST] = "broadcast", [ESP_COLL_GATHER] = "gather",
    [ESP_COLL_REDUCE] = "reduce"};

/* The state while the grammar's rules are applied one by one, to enumerate options or to parse a text. */
typedef struct esp__walk {
    esp__option option;
    uint8_t scope[ESP__LEVELS];
    bool rooted[ESP__LEVELS];
    uint32_t n_blocks;
    uint32_t devices;
    bool extended;
    bool narrow;
    /* set to enumerate */
    int (*each)(void *user, const esp__option *o);
    void *user;
    uint64_t visited;
    bool stop;
    const esp__step *want;
    uint32_t n_want;
    uint32_t furthest;
    char expected[256];
} esp__walk;

static void esp__walk_symbols(esp__walk *w, const esp__rule *r, uint32_t block, uint32_t at);

static uint8_t esp__walk_next(const esp__walk *w, uint8_t next, uint32_t block) {
    const bool outermost = block + 1 == w->n_blocks;
    switch (next) {
    case ESP__N_OUT_RAW: return outermost ? ESP__N_T3 : ESP__N_HIER;
    case ESP__N_OUT_COMP: return outermost ? ESP__N_T4 : ESP__N_MID;
    case ESP__N_BACK_RAW: return block ? ESP__N_T5 : ESP__N_T1;
    case ESP__N_BACK_COMP: return block ? ESP__N_T6 : ESP__N_T2;
    case ESP__N_SHARD_OUT_RAW: return outermost ? ESP__N_SHARD_LAST : ESP__N_SHARD;
    case ESP__N_SHARD_OUT_COMP: return outermost ? ESP__N_SHARD_LAST_COMP : ESP__N_SHARD_COMP;
    default: return next;
    }
}

/* Adds `text` to what the parser expected at the furthest position that it has reached. */
static void esp__walk_expect(esp__walk *w, const char *text) {
    if (w->option.n > w->furthest) w->furthest = w->option.n, w->expected[0] = 0;
    const size_t n = strlen(w->expected);
    if (w->option.n == w->furthest && !strstr(w->expected, text))
        snprintf(w->expected + n, sizeof w->expected - n, "%s%s", n ? ", " : "", text);
}

static void esp__walk_subtree(esp__walk *w, uint8_t subtree, uint32_t block) {
    if (subtree == ESP__N_END) {
        if (w->want && w->option.n != w->n_want) {
            esp__walk_expect(w, "the end");
            return;
        }
        w->visited++;
        w->stop = w->each(w->user, &w->option);
        return;
    }
    for (size_t i = 0; i < sizeof esp__rules / sizeof *esp__rules && !w->stop; i++)
        if (esp__rules[i].subtree == subtree && (w->extended || !esp__rules[i].extended))
            esp__walk_symbols(w, &esp__rules[i], block, 0);
}

ESP__FN const char *esp__coll_word(uint32_t coll) {
    return coll <= ESP_COLL_REDUCE && coll ? esp__coll_names[coll] : "?";
}

ESP__FN const char *esp__lane_word(uint32_t lane) {
    return lane == ESP__LANE_COMPUTE    ? "compute"
           : lane == ESP__LANE_CPU      ? "cpu"
           : lane == ESP__LANE_PROGRESS ? "progress"
                                        : esp__scope_word(lane - ESP__LANE_CPU);
}

ESP__FN void esp__step_print(const esp__step *s, char *buf, size_t cap) {
    if (s->kind == ESP__STAGE_COLLECTIVE)
        snprintf(buf, cap, "%s.%s", esp__scope_word(s->level), esp__coll_names[s->coll]);
    else
        snprintf(buf, cap, "%s@%s", s->kind == ESP__STAGE_COMP ? "comp" : "decomp",
                 s->device == ESP_ON_GPU ? "gpu" : "cpu");
}

static bool esp__step_same(const esp__step *a, const esp__step *b) {
    if (a->kind != b->kind) return false;
    return a->kind == ESP__STAGE_COLLECTIVE ? a->level == b->level && a->coll == b->coll : a->device == b->device;
}

static void esp__walk_step(esp__walk *w, const esp__rule *r, uint32_t block, uint32_t at, const esp__step *s) {
    uint32_t n = w->option.n;
    if (w->want && (n >= w->n_want || !esp__step_same(&w->want[n], s))) {
        char text[40];
        esp__step_print(s, text, sizeof text);
        esp__walk_expect(w, text);
        return;
    }
    if (n == ESP__MAX_STEPS) return; /* never happens: every option of the grammar is shorter */
    w->option.steps[n] = *s;
    w->option.n = n + 1;
    esp__walk_symbols(w, r, block, at + 1);
    w->option.n = n;
}

static void esp__walk_coll(esp__walk *w, const esp__rule *r, uint32_t block, uint32_t at, uint8_t symbol) {
    esp__step s = {.kind = ESP__STAGE_COLLECTIVE, .level = w->scope[block]};
    s.compressed = symbol == ESP__S_COMMC || symbol == ESP__S_COMM1C || symbol == ESP__S_COMM2C ||
                   symbol == ESP__S_SUMC || symbol == ESP__S_SUM1C;
    s.summed = symbol == ESP__S_SUMC || symbol == ESP__S_SUM1C;
    const bool saved = w->rooted[block];
    switch (symbol) {
    case ESP__S_COMM:
    case ESP__S_SUMC:
        s.coll = ESP_COLL_ALLREDUCE;
        esp__walk_step(w, r, block, at, &s);
        break;
    case ESP__S_COMMC:
        s.coll = ESP_COLL_ALLGATHER;
        esp__walk_step(w, r, block, at, &s);
        break;
    case ESP__S_COMM2:
    case ESP__S_COMM2C:
        s.role = ESP__SECOND;
        s.coll = w->rooted[block] ? ESP_COLL_BROADCAST : ESP_COLL_ALLGATHER;
        esp__walk_step(w, r, block, at, &s);
        break;
    default: {
        static const uint8_t colls[3][2] = {{ESP_COLL_REDUCE_SCATTER, ESP_COLL_REDUCE},
                                            {ESP_COLL_ALLTOALL, ESP_COLL_GATHER},
                                            {ESP_COLL_REDUCE_SCATTER, 0}};
        const uint8_t *c = colls[symbol == ESP__S_COMM1 ? 0 : symbol == ESP__S_COMM1C ? 1 : 2];
        s.role = ESP__FIRST;
        for (uint8_t i = 0; i < 2 && c[i] && !w->stop && !(i && w->narrow); i++) {
            s.coll = c[i];
            w->rooted[block] = i == 1;
            esp__walk_step(w, r, block, at, &s);
        }
        w->rooted[block] = saved;
    }
    }
}

static void esp__walk_symbols(esp__walk *w, const esp__rule *r, uint32_t block, uint32_t at) {
    uint8_t symbol = at < 3 ? r->symbols[at] : (uint8_t)ESP__S_NONE;
    if (w->stop) return;
    if (symbol == ESP__S_NONE) {
        uint32_t then = (uint32_t)((int32_t)block + r->move);
        esp__walk_subtree(w, esp__walk_next(w, r->next, then), then);
    } else if (symbol == ESP__S_COMP || symbol == ESP__S_DECOMP) {
        esp__step s = {.kind = symbol == ESP__S_COMP ? ESP__STAGE_COMP : ESP__STAGE_DECOMP};
        for (uint8_t d = 0; d < 2 && !w->stop; d++) {
            if (!(w->devices >> d & 1u)) continue;
            s.device = d;
            esp__walk_step(w, r, block, at, &s);
        }
    } else {
        esp__walk_coll(w, r, block, at, symbol);
    }
}

static void esp__walk_flat(esp__walk *w) {
    w->scope[0] = ESP__FLAT;
    w->n_blocks = 1;
    esp__walk_subtree(w, w->narrow ? ESP__N_SHARD_LAST : ESP__N_FLAT, 0);
}

static void esp__walk_blocks(esp__walk *w, uint32_t n_levels) {
    for (uint32_t ends = 1; ends < 1u << (n_levels - 1) && !w->stop; ends++) {
        uint32_t first = 1;
        w->n_blocks = 0;
        for (uint32_t level = 1; level <= n_levels; level++) {
            if (level < n_levels && !(ends >> (level - 1) & 1u)) continue;
            w->scope[w->n_blocks++] = esp__scope_of(first, level, n_levels);
            first = level + 1;
        }
        esp__walk_subtree(w, w->narrow ? ESP__N_SHARD : ESP__N_HIER, 0);
    }
}

ESP__FN uint64_t esp__option_each(uint32_t parts, uint32_t devices, bool extended,
                                  int (*each)(void *user, const esp__option *o), void *user) {
    esp__walk w;
    memset(&w, 0, sizeof w);
    w.devices = devices;
    w.extended = extended;
    w.each = each;
    w.user = user;
    w.narrow = (parts & ESP__TREE_NARROW) != 0;
    uint32_t n_levels = parts >> 8 ? parts >> 8 : 2;
    if (parts & ESP__TREE_FLAT) esp__walk_flat(&w);
    if (parts & ESP__TREE_HIERARCHICAL) esp__walk_blocks(&w, n_levels);
    return w.visited;
}

static size_t esp__word_put(char *buf, size_t cap, size_t len, const char *before, const char *word) {
    size_t at = len < cap ? len : cap;
    int n = snprintf(buf + at, cap - at, "%s%s", before, word);
    return len + (n > 0 ? (size_t)n : 0);
}

ESP__FN size_t esp__option_print(const esp__option *o, char *buf, size_t cap) {
    size_t len = 0;
    char word[40];
    if (cap) buf[0] = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        esp__step_print(&o->steps[i], word, sizeof word);
        len = esp__word_put(buf, cap, len, i ? " > " : "", word);
    }
    return len;
}

static bool esp__step_read(const char *word, size_t len, esp__step *s) {
    memset(s, 0, sizeof *s);
    for (uint8_t kind = ESP__STAGE_COMP; kind <= ESP__STAGE_DECOMP; kind++)
        for (uint8_t d = 0; d < 2; d++) {
            char text[40];
            s->kind = kind, s->device = d;
            esp__step_print(s, text, sizeof text);
            if (strlen(text) == len && !memcmp(text, word, len)) return true;
        }
    memset(s, 0, sizeof *s);
    s->kind = ESP__STAGE_COLLECTIVE;
    for (uint8_t level = 0; level < ESP__SCOPES; level++)
        for (uint8_t c = ESP_COLL_ALLREDUCE; c <= ESP_COLL_REDUCE; c++) {
            char text[40];
            s->level = level;
            s->coll = c;
            esp__step_print(s, text, sizeof text);
            if (strlen(text) == len && !memcmp(text, word, len)) return true;
        }
    return false;
}

static int esp__option_found(void *user, const esp__option *o) {
    *(esp__option *)user = *o;
    return 1;
}

/* Finds the levels of links that each collective of an option's text spans. Together they must cover all levels from 1
 * on. */
static esp_status esp__walk_wanted(const esp_ctx *ctx, esp__walk *w) {
    uint8_t at[ESP__LEVELS + 2] = {0};
    uint32_t first, last, next = 1;
    at[1] = ESP__INTRA, at[2] = ESP__INTER;
    for (uint32_t i = 0; i < w->n_want; i++)
        if (w->want[i].kind == ESP__STAGE_COLLECTIVE && w->want[i].level > ESP__INTER) at[1] = at[2] = 0;
    for (uint32_t i = 0; i < w->n_want; i++) {
        if (w->want[i].kind != ESP__STAGE_COLLECTIVE || !w->want[i].level) continue;
        esp__scope_levels(w->want[i].level, 0, &first, &last);
        if (at[first] && at[first] != w->want[i].level)
            return esp__fail(ctx, ESP_E_ARG,
                             "option: '%s' and '%s' share a level: each level may be in one of them only",
                             esp__scope_word(at[first]), esp__scope_word(w->want[i].level));
        at[first] = w->want[i].level;
    }
    for (w->n_blocks = 0; next <= ESP__LEVELS && at[next]; next = last + 1) {
        w->scope[w->n_blocks++] = at[next];
        esp__scope_levels(at[next], 0, &first, &last);
    }
    for (uint32_t level = 1; level <= ESP__LEVELS; level++) {
        bool found = false;
        for (uint32_t k = 0; k < w->n_blocks; k++) found |= w->scope[k] == at[level];
        if (at[level] && !found)
            return esp__fail(ctx, ESP_E_ARG,
                             "option: has stages at '%s', but level '%s' inside it is in none: the levels of an option "
                             "follow each other from intra",
                             esp__scope_word(at[level]), esp__scope_word(next));
    }
    return ESP_OK;
}

typedef struct esp__option_words {
    esp__step steps[ESP__MAX_STEPS];
    size_t position[ESP__MAX_STEPS + 1];
    uint32_t n;
} esp__option_words;

static esp_status esp__option_words_read(const esp_ctx *ctx, const char *text, esp__option_words *w) {
    const char *p = text + strspn(text, " \t");
    w->n = 0;
    if (!*p)
        return esp__fail(ctx, ESP_E_ARG, "option: empty; expected stages like 'flat.allreduce' with ' > ' between");
    for (;;) {
        size_t len = strcspn(p, " \t>");
        size_t column = (size_t)(p - text) + 1;
        if (w->n == ESP__MAX_STEPS)
            return esp__fail(ctx, ESP_E_ARG, "option: position %zu: more than %d stages", column, (int)ESP__MAX_STEPS);
        if (!esp__step_read(p, len, &w->steps[w->n]))
            return esp__fail(ctx, ESP_E_ARG,
                             "option: position %zu: '%.*s' is no stage; expected comp@cpu, comp@gpu, decomp@cpu, "
                             "decomp@gpu, or flat., intra. or inter. with allreduce, reduce_scatter, reduce, "
                             "allgather, broadcast, alltoall or gather",
                             column, (int)(len > 40 ? 40 : len), p);
        w->position[w->n++] = column;
        p += len;
        p += strspn(p, " \t");
        w->position[w->n] = (size_t)(p - text) + 1;
        if (!*p) return ESP_OK;
        if (*p != '>')
            return esp__fail(ctx, ESP_E_ARG, "option: position %zu: expected '>' between two stages",
                             (size_t)(p - text) + 1);
        p++;
        p += strspn(p, " \t");
    }
}

ESP__FN esp_status esp__option_parse(const esp_ctx *ctx, const char *text, esp__option *out) {
    esp__option_words words;
    esp_status s = esp__option_words_read(ctx, text, &words);
    if (s) return s;
    esp__walk w;
    memset(&w, 0, sizeof w);
    w.devices = 3;
    w.extended = true;
    w.want = words.steps;
    w.n_want = words.n;
    w.each = esp__option_found;
    w.user = out;
    for (int narrow = 0; narrow < 2 && !w.visited; narrow++) {
        w.narrow = narrow == 1;
        w.stop = false;
        esp__walk_flat(&w);
        if (w.visited) break;
        s = esp__walk_wanted(ctx, &w);
        if (s) return s;
        esp__walk_subtree(&w, w.narrow ? ESP__N_SHARD : ESP__N_HIER, 0);
    }
    if (w.visited) return ESP_OK;
    if (w.furthest >= words.n)
        return esp__fail(ctx, ESP_E_ARG, "option: position %zu: ends too soon; expected %s", words.position[words.n],
                         w.expected);
    char found[40];
    esp__step_print(&words.steps[w.furthest], found, sizeof found);
    return esp__fail(ctx, ESP_E_ARG, "option: position %zu: '%s' cannot stand here; expected %s",
                     words.position[w.furthest], found, w.expected);
}

ESP__FN bool esp__option_is_flat(const esp__option *o) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == ESP__STAGE_COLLECTIVE) return o->steps[i].level == ESP__FLAT;
    return true;
}

ESP__FN bool esp__option_narrow(const esp__option *o) {
    int open = 0;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == ESP__STAGE_COLLECTIVE)
            open += (o->steps[i].role == ESP__FIRST) - (o->steps[i].role == ESP__SECOND);
    return open > 0;
}

ESP__FN bool esp__option_compresses(const esp__option *o) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == ESP__STAGE_COMP) return true;
    return false;
}

ESP__FN uint32_t esp__option_cuts(const esp__option *o, uint8_t scopes[ESP__LEVELS]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == ESP__STAGE_COLLECTIVE && o->steps[i].role == ESP__FIRST)
            scopes[n++] = o->steps[i].level;
    return n;
}

ESP__FN void esp__scopes_print(const uint8_t *scopes, uint32_t n, char *buf, size_t cap) {
    size_t len = 0;
    if (cap) *buf = 0;
    for (uint32_t k = 0; k < n; k++) len = esp__word_put(buf, cap, len, k ? "," : "", esp__scope_word(scopes[k]));
}
