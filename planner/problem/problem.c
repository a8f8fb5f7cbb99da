/* problem.c: checks the caller's inputs and makes the planner's state (esp__problem) from them. */
#include "planner/problem/problem.h"
#include <math.h>
#include <fnmatch.h>

enum { ESP__PLAN_TENSORS_MAX = 32768 };

static int esp__bad(double x) { return !(x >= 0.0) || x > 1e18; }
/* 1e13 ns are 2.8 hours; sums of longer times could overflow. */
static int esp__bad_time(double ns) { return !(ns >= 0.0) || ns > 1e13; }

static esp_status esp__check_curve(const esp_cost_curve *c, const char *what, const char *which) {
    if (c->n && !c->points) return esp__fail(NULL, ESP_E_ARG, "%s: %s: points is NULL, but n is %u", what, which, c->n);
    for (uint32_t i = 0; i < c->n; i++) {
        const esp_cost_point *p = &c->points[i];
        if (!(p->size > 0.0) || p->size > 1e18 || esp__bad_time(p->ns))
            return esp__fail(NULL, ESP_E_ARG, "%s: %s: point %u (%g, %g ns): sizes must be > 0 and times >= 0", what,
                             which, i, p->size, p->ns);
        if (i && !(p->size > c->points[i - 1].size))
            return esp__fail(NULL, ESP_E_ARG, "%s: %s: point %u: sizes must ascend (%g after %g)", what, which, i,
                             p->size, c->points[i - 1].size);
    }
    return ESP_OK;
}

static esp_status esp__check_link(const esp_plan_link *l, const char *system, const char *level, int used) {
    char what[ESP__SPEC_MAX];
    snprintf(what, sizeof what, "system '%s': %s", system, level);
    if (used && (!(l->bytes_per_us >= 1e-6) || l->bytes_per_us > 1e15))
        return esp__fail(NULL, ESP_E_ARG, "%s: bytes_per_us must be > 0, not %g", what, l->bytes_per_us);
    if (esp__bad_time(l->alpha_ns))
        return esp__fail(NULL, ESP_E_ARG, "%s: alpha must be >= 0, not %g ns", what, l->alpha_ns);
    if (l->alpha_is > ESP_ALPHA_HOP) return esp__fail(NULL, ESP_E_ARG, "%s: alpha_is must be ESP_ALPHA_*", what);
    for (uint32_t k = 0; k < ESP_PLAN_COLLS; k++) {
        esp_status s = esp__check_curve(&l->table[k], what, esp__coll_word(k));
        if (!s) s = esp__check_curve(&l->gap[k], what, esp__coll_word(k));
        if (!s) s = esp__check_curve(&l->core[k], what, esp__coll_word(k));
        if (s) return s;
        if (!l->table[k].n && (l->gap[k].n || l->core[k].n))
            return esp__fail(NULL, ESP_E_ARG, "%s: %s has a gap or core time, but no times: measure its table too",
                             what, esp__coll_word(k));
    }
    return ESP_OK;
}

ESP__FN esp_status esp__check_system(const esp_plan_system *s) {
    const char *name = s->name ? s->name : "";
    esp_status e;
    if (!s->machines || !s->ranks_per_machine || (uint64_t)s->machines * s->ranks_per_machine > 1u << 20)
        return esp__fail(NULL, ESP_E_ARG,
                         "system '%s': %u machines with %u ranks each: expected 1 to 1048576 ranks in all", name,
                         s->machines, s->ranks_per_machine);
    if (!(s->devices & 3u) || s->devices > 3u)
        return esp__fail(NULL, ESP_E_ARG, "system '%s': devices: expected cpu, gpu or both", name);
    if ((e = esp__check_link(&s->intra, name, "intra", s->ranks_per_machine > 1)) != ESP_OK) return e;
    if ((e = esp__check_link(&s->inter, name, "inter", s->machines > 1)) != ESP_OK) return e;
    if (s->n_outer > ESP_PLAN_OUTER)
        return esp__fail(NULL, ESP_E_ARG, "system '%s': n_outer is %u: at most %d level beyond machines can be planned",
                         name, s->n_outer, (int)ESP_PLAN_OUTER);
    for (uint32_t k = 0; k < s->n_outer; k++) {
        if (!s->outer[k].size || (uint64_t)s->machines * s->ranks_per_machine * s->outer[k].size > 1u << 20)
            return esp__fail(NULL, ESP_E_ARG, "system '%s': level '%s' has size %u: expected 1 to 1048576 ranks in all",
                             name, esp__scope_word(k + 3), s->outer[k].size);
        if ((e = esp__check_link(&s->outer[k].link, name, esp__scope_word(k + 3), s->outer[k].size > 1)) != ESP_OK)
            return e;
    }
    if ((e = esp__check_link(&s->flat, name, "flat", 0)) != ESP_OK) return e;
    if (s->cores_per_rank > 3)
        return esp__fail(NULL, ESP_E_ARG, "system '%s': cores_per_rank is %u: expected 0 to 3", name,
                         s->cores_per_rank);
    if (esp__bad(s->host_bytes_per_us) || esp__bad_time(s->pack_ns) || esp__bad(s->pack_bytes_per_us))
        return esp__fail(NULL, ESP_E_ARG, "system '%s': host_bytes_per_us, pack_ns and pack_bytes_per_us must be >= 0",
                         name);
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (esp__bad_time(s->dispatch_ns[k]))
            return esp__fail(NULL, ESP_E_ARG, "system '%s': dispatch_ns[%u] must be >= 0, not %g", name, k,
                             s->dispatch_ns[k]);
    return ESP_OK;
}

ESP__FN esp_status esp__check_codec(const esp_plan_codec *c, uint32_t i) {
    char what[ESP__SPEC_MAX + 32];
    if (!c->spec || !*c->spec || strpbrk(c->spec, " \t\n") || strlen(c->spec) >= ESP__SPEC_MAX)
        return esp__fail(NULL, ESP_E_ARG, "codec %u: its spec must be 1 to %d characters without blanks", i,
                         (int)ESP__SPEC_MAX - 1);
    snprintf(what, sizeof what, "codec '%s'", c->spec);
    if (esp__bad(c->header_bytes) || esp__bad(c->unit_bytes) || esp__bad(c->units) || c->units > 1e6)
        return esp__fail(NULL, ESP_E_ARG, "%s: header_bytes, unit_bytes and units must be >= 0", what);
    if (!(c->error >= 0.0 && c->error <= 1e6)) return esp__fail(NULL, ESP_E_ARG, "%s: error must be >= 0", what);
    if (c->n_rounds > ESP_ROUNDS_MAX)
        return esp__fail(NULL, ESP_E_ARG, "%s: n_rounds is %u: at most %d", what, c->n_rounds, (int)ESP_ROUNDS_MAX);
    if (!c->bound && (c->n_rounds > 1 || c->caps & ESP_CODEC_NEEDS_MATRIX))
        return esp__fail(NULL, ESP_E_ARG,
                         "%s: a codec of several rounds or of matrices needs bound and self: set them as in its table "
                         "and as its open() gave it",
                         what);
    if (!(c->vector_error >= 0.0 && c->vector_error <= 1e6))
        return esp__fail(NULL, ESP_E_ARG, "%s: vector_error must be >= 0", what);
    for (int d = 0; d < 2; d++) {
        esp_status s = esp__check_curve(&c->compress[d], what, d ? "compress on gpu" : "compress on cpu");
        if (!s) s = esp__check_curve(&c->decompress[d], what, d ? "decompress on gpu" : "decompress on cpu");
        if (!s) s = esp__check_curve(&c->decompress_more[d], what, "decompress of a further payload");
        if (!s) s = esp__check_curve(&c->vector_compress[d], what, "compress of a vector");
        if (!s) s = esp__check_curve(&c->vector_decompress[d], what, "decompress of a vector");
        if (s) return s;
        if (!c->compress[d].n != !c->decompress[d].n)
            return esp__fail(NULL, ESP_E_ARG, "%s: on %s it has times for only one of compress and decompress", what,
                             d ? "gpu" : "cpu");
    }
    return ESP_OK;
}

/* Replaces control characters, because names appear in messages and in comments of strategy files. */
static const char *esp__one_line(esp__problem *p, const char *name) {
    char *copy = esp__arena_text(p->arena, name ? name : "");
    for (char *c = copy; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127) *c = '?';
    return copy;
}

ESP__FN uint32_t esp__same_names(esp__arena *arena, const esp_plan_tensor *t, uint32_t n, uint32_t *first) {
    uint32_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    uint32_t *table = esp__arena_get(arena, slots * sizeof *table);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t hash = esp__hash64(ESP__HASH0, t[i].name, strlen(t[i].name)) * 0x9E3779B97F4A7C15ull;
        uint32_t at = (uint32_t)(hash >> 32) & (slots - 1);
        for (; table[at]; at = (at + 1) & (slots - 1))
            if (!strcmp(t[ *first = table[at] - 1].name, t[i].name)) return i;
        table[at] = i + 1;
    }
    return n;
}

ESP__FN esp_status esp__check_model(esp__problem *p) {
    const esp_plan_model *m = p->model;
    const char *name = p->model_name ? p->model_name : "";
    if (!m->n_tensors || !m->tensors) return esp__fail(NULL, ESP_E_ARG, "model '%s' has no tensors", name);
    if (m->n_tensors > ESP__PLAN_TENSORS_MAX)
        return esp__fail(NULL, ESP_E_ARG, "model '%s' has %u tensors: at most %d can be planned; merge small ones",
                         name, m->n_tensors, (int)ESP__PLAN_TENSORS_MAX);
    if (esp__bad_time(m->forward_ns) || esp__bad_time(m->update_ns))
        return esp__fail(NULL, ESP_E_ARG, "model '%s': forward and update times must be 0 to 1e13 ns", name);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const esp_plan_tensor *t = &m->tensors[i];
        if (!t->name || !*t->name || strpbrk(t->name, " \t\r\n#") || strlen(t->name) > 1000)
            return esp__fail(NULL, ESP_E_ARG,
                             "model '%s': tensor %u: names have 1 to 1000 characters, no blanks and no '#'", name, i);
        if (!t->elements || t->elements > (uint64_t)1 << 50)
            return esp__fail(NULL, ESP_E_ARG, "model '%s': tensor '%s': elements must be 1 to 2^50, not %llu", name,
                             t->name, (unsigned long long)t->elements);
        if (!t->rows != !t->cols ||
            (t->rows && (t->cols > t->elements || t->elements % t->cols || t->rows != t->elements / t->cols)))
            return esp__fail(
                NULL, ESP_E_ARG,
                "model '%s': tensor '%s': %llu rows and %llu cols are not its %llu elements: give both, or "
                "0 and 0 if it is not a matrix",
                name, t->name, (unsigned long long)t->rows, (unsigned long long)t->cols,
                (unsigned long long)t->elements);
        if (esp__bad_time(t->compute_ns))
            return esp__fail(NULL, ESP_E_ARG,
                             "model '%s': tensor '%s': its compute time must be 0 to 1e13 ns, not %g ns", name, t->name,
                             t->compute_ns);
    }
    uint32_t first = 0, second = esp__same_names(p->arena, m->tensors, m->n_tensors, &first);
    if (second == m->n_tensors) return ESP_OK;
    return esp__fail(NULL, ESP_E_ARG, "model '%s': tensors %u and %u are both named '%s'", name, first, second,
                     m->tensors[first].name);
}

/* ---- constraints on single tensors ------------------------------------------------------------------------------- */
static int esp__glob(const char *pattern, const char *text) { return fnmatch(pattern, text, 0) == 0; }

/* Returns the user's constraint on tensor i: its own `keep`, else that of the first pattern that matches its name, else
 * NULL. Small sharded tensors get "fp32" here; esp__raw_open handles all other small ones. */
static const char *esp__keep_text(const esp__problem *p, uint32_t i) {
    char glob[ESP__SPEC_MAX];
    if (p->model->tensors[i].keep) return p->model->tensors[i].keep;
    for (uint32_t k = 0; k < p->config.n_keep; k++) {
        const char *equals = strchr(p->config.keep[k], '=');
        snprintf(glob, sizeof glob, "%.*s", (int)(equals - p->config.keep[k]), p->config.keep[k]);
        if (esp__glob(glob, p->model->tensors[i].name)) return equals + 1;
    }
    return p->model->tensors[i].shard && p->model->tensors[i].elements < p->config.min_compress_elements ? "fp32"
                                                                                                         : NULL;
}

ESP__FN uint32_t esp__codec_named(const esp__problem *p, const char *spec) {
    for (uint32_t c = 0; c < p->n_codecs; c++)
        if (!strcmp(p->codecs[c].spec, spec)) return c;
    for (uint32_t c = 0; c < p->n_codecs; c++) {
        size_t n = strcspn(p->codecs[c].spec, ":");
        if (strlen(spec) == n && !strncmp(p->codecs[c].spec, spec, n)) return c;
    }
    return ESP__NO_CODEC;
}

static esp__tree *esp__keep_option(esp__problem *p, const esp__option *o, const char *shard, uint32_t codec) {
    char option[ESP__TEXT_MAX];
    esp__option_print(o, option, sizeof option);
    return esp__tree_make(p, shard, option, codec, 0);
}

/* If the text is "CODEC OPTION", returns the codec and moves *text to the option. */
static uint32_t esp__keep_codec(const esp__problem *p, const char **text) {
    char spec[ESP__SPEC_MAX];
    const size_t n = strcspn(*text, " ");
    if (!(*text)[n] || n >= sizeof spec) return ESP__NO_CODEC;
    snprintf(spec, sizeof spec, "%.*s", (int)n, *text);
    const uint32_t codec = esp__codec_named(p, spec);
    if (codec != ESP__NO_CODEC) *text += n + 1;
    return codec;
}

static esp_status esp__keep_tree(esp__problem *p, const char *text, const char *shard, const char *tensor,
                                 esp__tree **out) {
    esp__option o;
    const char *option = text;
    uint32_t codec;
    if (!text) {
        *out = esp__tree_make(p, shard, NULL, ESP__NO_CODEC, 0);
        if ((*out)->n_options) return ESP_OK;
        return esp__fail(
            NULL, ESP_E_ARG,
            "tensor '%s': shard '%s' leaves no option: expected any, flat%s; look at forbid, only, max_comp "
            "and devices too",
            tensor, shard,
            p->hierarchical ? " or the levels from intra on, such as intra,inter"
                            : " (one machine, or one rank a machine, has only flat options)");
    }
    if (!strcmp(text, "fp32") || !strcmp(text, ESP__CODEC_NONE)) {
        *out = esp__tree_make(p, shard, NULL, ESP__NO_CODEC, 1);
    } else if ((codec = esp__codec_named(p, text)) != ESP__NO_CODEC) {
        *out = esp__tree_make(p, shard, NULL, codec, 0);
    } else if ((codec = esp__keep_codec(p, &option)) != ESP__NO_CODEC ||
               (strchr(text, '.') && !strchr(text, ':') && strpbrk(text, "> @"))) {
        esp_status s = esp__option_parse(NULL, option, &o);
        if (s) return esp__fail(NULL, s, "tensor '%s': keep: %s", tensor, esp_last_error(NULL));
        *out = esp__keep_option(p, &o, shard, codec);
    } else if (!esp__option_parse(NULL, text, &o)) {
        *out = esp__keep_option(p, &o, shard, ESP__NO_CODEC);
    } else {
        return esp__fail(NULL, ESP_E_ARG,
                         "tensor '%s': keep '%s': expected fp32, one of the codecs given, or an option's text", tensor,
                         text);
    }
    if (!(*out)->n_options)
        return esp__fail(NULL, ESP_E_ARG,
                         "tensor '%s': keep '%s'%s leaves no option%s: look at forbid, only, max_comp and devices",
                         tensor, text, shard ? " of a sharded tensor" : "",
                         p->hierarchical ? "" : " (one machine, or one rank a machine, has only flat options)");
    return ESP_OK;
}

/* Fails if the tensor would have no option, whole or in chunks and groups, which are no matrices for the codec. */
static esp_status esp__keep_check(esp__problem *p, uint32_t tensor, const char *text) {
    const uint32_t as_given = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
    const esp_plan_tensor *t = &p->model->tensors[tensor];
    esp__extent u = {tensor, 1, 0, t->elements};
    if (!esp__candidates_get(p, &u)->n)
        return esp__fail(NULL, ESP_E_ARG, "tensor '%s': %s%s leaves no option that a codec can run on these devices",
                         t->name, text ? "keep " : "what is forbidden or requested", text ? text : "");
    if (!esp__unit_cols(p, &u) || t->shard || (p->config.flags & as_given) == as_given) return ESP_OK;
    if (esp__candidates_of_shape(p, &u, 0)->n) return ESP_OK;
    return esp__fail(
        NULL, ESP_E_ARG,
        "tensor '%s': %s%s leaves no option for its chunks and groups, which are no matrices: allow options "
        "without compression, give a codec that takes any tensor, or neither merge nor split",
        t->name, text ? "keep " : "what is forbidden or requested", text ? text : "");
}

/* All different constraints so far; each tensor refers to its own by index. */
typedef struct esp__keeping {
    const char **texts, **shards;
    uint32_t room;
} esp__keeping;

static int esp__text_same(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

static void esp__keeping_grow(esp__problem *p, esp__keeping *w) {
    const uint64_t used = w->room * sizeof *w->texts, bytes = (w->room *= 2) * sizeof *w->texts;
    w->texts = esp__arena_grow(p->arena, (const void *)w->texts, used, bytes);
    w->shards = esp__arena_grow(p->arena, (const void *)w->shards, used, bytes);
    p->trees = esp__arena_grow(p->arena, p->trees, used, bytes);
}

/* Sets *number to the index of tensor i's constraint. Only tensors with the same index can be merged, so each sharded
 * tensor gets its own. */
static esp_status esp__keep_number(esp__problem *p, esp__keeping *w, uint32_t i, uint32_t *number) {
    const char *text = esp__keep_text(p, i), *shard = p->model->tensors[i].shard;
    uint32_t k = 0;
    if (text || shard)
        for (k = 1; k < p->n_keeps && !(esp__text_same(w->texts[k], text) && esp__text_same(w->shards[k], shard));
             k++) {
        }
    *number = k;
    if (k < p->n_keeps && !shard) return ESP_OK;
    if (p->n_keeps == w->room) esp__keeping_grow(p, w);
    const uint32_t next = p->n_keeps;
    w->texts[next] = text, w->shards[next] = shard;
    if (k < next) {
        p->trees[next] = p->trees[k];
    } else {
        esp_status s = esp__keep_tree(p, text, shard, p->model->tensors[i].name, &p->trees[next]);
        if (s) return s;
    }
    *number = next;
    p->n_keeps++;
    return ESP_OK;
}

/* Counts the tensors with fewer elements than `limit`, before each tensor. Returns NULL if there are none. */
static const uint32_t *esp__small_count(const esp__problem *p, uint64_t limit) {
    uint32_t *n = esp__arena_get(p->arena, (p->n_tensors + 1) * sizeof *n);
    for (uint32_t i = 0; i < p->n_tensors; i++)
        n[i + 1] = n[i] + (!p->keep[i] && p->model->tensors[i].elements < limit);
    return n[p->n_tensors] ? n : NULL;
}

/* Finds the tensors that are too small to compress. If the configuration excludes every option without compression,
 * they are treated like all others. */
static void esp__raw_open(esp__problem *p, esp__keeping *w) {
    const uint64_t limit = p->config.min_compress_elements;
    const uint32_t *own = esp__small_count(p, limit), *usual = own;
    if (limit < ESP_MIN_COMPRESS_ELEMENTS) usual = esp__small_count(p, ESP_MIN_COMPRESS_ELEMENTS);
    if (!usual) return;
    if (p->n_keeps == w->room) esp__keeping_grow(p, w);
    esp__tree *raw = esp__tree_make(p, NULL, NULL, ESP__NO_CODEC, 1);
    if (!raw->n_options) return;
    w->texts[p->n_keeps] = "fp32", w->shards[p->n_keeps] = NULL;
    p->trees[p->n_keeps] = raw;
    p->keep_raw = p->n_keeps++;
    p->n_small = own, p->n_small_usual = usual;
}

static esp_status esp__keeps_open(esp__problem *p) {
    uint32_t *keep = esp__arena_get(p->arena, p->n_tensors * sizeof *keep), nodes = 0;
    esp__keeping w = {NULL, NULL, 8};
    w.texts = esp__arena_get(p->arena, w.room * sizeof *w.texts);
    w.shards = esp__arena_get(p->arena, w.room * sizeof *w.shards);
    p->trees = esp__arena_get(p->arena, w.room * sizeof *p->trees);
    p->trees[0] = esp__tree_make(p, NULL, NULL, ESP__NO_CODEC, 0);
    p->n_keeps = 1;
    p->keep = keep;
    for (uint32_t k = 0; k < p->config.n_keep; k++)
        if (!p->config.keep[k] || !strchr(p->config.keep[k], '='))
            return esp__fail(NULL, ESP_E_ARG, "keep '%s': expected GLOB=fp32, GLOB=CODEC or GLOB=OPTION",
                             p->config.keep[k] ? p->config.keep[k] : "");
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        esp_status s = esp__keep_number(p, &w, i, &keep[i]);
        if (s) return s;
    }
    esp__raw_open(p, &w);
    for (uint32_t k = 0; k < p->n_keeps; k++)
        for (uint32_t r = 0; r <= p->most_rounds; r++) {
            const esp__tree *tree = r ? p->trees[k]->rounds[r - 1] : p->trees[k];
            if (tree && tree->n_nodes > nodes) nodes = tree->n_nodes;
        }
    p->heads = esp__arena_get(p->arena, (nodes + 1) * sizeof *p->heads);
    for (uint32_t i = 0, done = 0; i < p->n_tensors; i++) {
        /* Whether a codec with bound() can run depends on the tensor's shape. If there is such a codec, each tensor
         * is checked, otherwise each constraint once. */
        if (keep[i] < done && !p->most_rounds) continue;
        if (!p->trees[keep[i]]->n_options)
            return esp__fail(NULL, ESP_E_ARG, "no option is left: look at forbid, only, max_comp and devices%s",
                             p->hierarchical ? "" : " (one machine, or one rank a machine, has only flat options)");
        esp_status s = esp__keep_check(p, i, keep[i] ? w.texts[keep[i]] : NULL);
        if (s) return s;
        if (keep[i] == done) done++;
    }
    return ESP_OK;
}

static esp_status esp__check_patterns(const char *const *patterns, uint32_t n, const char *what) {
    for (uint32_t i = 0; i < n; i++)
        if (!patterns || !patterns[i]) return esp__fail(NULL, ESP_E_ARG, "config: %s: pattern %u is NULL", what, i);
    return ESP_OK;
}

static esp_status esp__check_config(const esp_plan_config *c) {
    esp_status s;
    if ((s = esp__check_patterns(c->forbid, c->n_forbid, "forbid")) != ESP_OK) return s;
    if ((s = esp__check_patterns(c->only, c->n_only, "only")) != ESP_OK) return s;
    if ((s = esp__check_patterns(c->keep, c->n_keep, "keep")) != ESP_OK) return s;
    if (esp__bad(c->budget_ns))
        return esp__fail(NULL, ESP_E_ARG, "config: budget_ns must be >= 0, not %g", c->budget_ns);
    if (esp__bad(c->max_volume))
        return esp__fail(NULL, ESP_E_ARG, "config: max_volume must be >= 0, not %g", c->max_volume);
    if (esp__bad(c->max_error))
        return esp__fail(NULL, ESP_E_ARG, "config: max_error must be >= 0, not %g", c->max_error);
    return c->devices > 3u ? esp__fail(NULL, ESP_E_ARG, "config: devices: expected cpu, gpu or both") : ESP_OK;
}

/* ---- everything -------------------------------------------------------------------------------------------------- */
static void esp__copy_struct(void *to, uint32_t size, const void *from, uint32_t from_size) {
    memset(to, 0, size);
    if (from) memcpy(to, from, from_size && from_size < size ? from_size : size);
}

/* Most different sizes of tensors for which options are compared for each size: with one device and with two, because
 * comparing options for two takes longer. */
enum { ESP__SIZES_ONE = 256, ESP__SIZES_TWO = 48 };
static int esp__too_many_sizes(esp__problem *p) {
    uint32_t most = (p->system.devices & 3u) == 3u ? (uint32_t)ESP__SIZES_TWO : (uint32_t)ESP__SIZES_ONE, n = 0;
    uint64_t seen[4 * ESP__SIZES_ONE] = {0};
    for (uint64_t i = 0; i < p->n_tensors && n <= most; i++) {
        const esp_plan_tensor *t = &p->model->tensors[i];
        uint64_t e = t->elements ^ (p->most_rounds ? t->cols << 20 : 0), at = e * 0x9E3779B97F4A7C15ull >> 54;
        while (seen[at] && seen[at] != e) at = (at + 1) & (4 * ESP__SIZES_ONE - 1);
        n += !seen[at];
        seen[at] = e;
    }
    return n > most;
}

static void esp__times_open(esp__problem *p) {
    uint64_t *compute = esp__arena_get(p->arena, p->n_tensors * sizeof *compute), sum = 0;
    uint64_t *ready = esp__arena_get(p->arena, p->n_tensors * sizeof *ready);
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        compute[i] = (uint64_t)(p->model->tensors[i].compute_ns + 0.5);
        ready[i] = sum += compute[i];
    }
    p->compute = compute;
    p->ready = ready;
}

static int esp__has_core_times(const esp_plan_link *l) {
    for (uint32_t k = 0; k < ESP_PLAN_COLLS; k++)
        if (l->core[k].n) return 1;
    return 0;
}

static void esp__levels_open(esp__problem *p) {
    uint32_t many = 0;
    p->n_levels = esp__system_levels(&p->system);
    p->n_lanes = p->system.cores_per_rank == 3 ? (uint32_t)ESP__LANES : (uint32_t)ESP__LANE_INTRA + p->n_levels;
    for (uint32_t scope = 0, first, last; scope < ESP__SCOPES; scope++) {
        if (!esp__scope_exists(scope, p->n_levels)) continue;
        esp__scope_levels(scope, p->n_levels, &first, &last);
        p->size[scope] = esp__system_ranks(&p->system, first, last);
    }
    for (uint32_t level = 1; level <= p->n_levels; level++) many += esp__system_size(&p->system, level) > 1;
    p->hierarchical = many > 1;
    p->core_ops = esp__has_core_times(&p->system.flat);
    for (uint32_t level = 1; level <= p->n_levels; level++)
        p->core_ops |= esp__has_core_times(esp__system_link(&p->system, level));
    p->core_ops &= p->system.cores_per_rank > 0;
}

ESP__FN esp_status esp__problem_open(esp__problem *p, esp__arena *arena, const esp_plan_model *model,
                                     const esp_plan_codec *codecs, uint32_t n_codecs, const esp_plan_system *system,
                                     const esp_plan_config *config, bool free_compression) {
    esp_status s;
    memset(p, 0, sizeof *p);
    if (!model || !system || (n_codecs && !codecs))
        return esp__fail(NULL, ESP_E_ARG, "plan: model, system or codecs is NULL");
    p->arena = arena;
    p->model = model;
    p->free_compression = free_compression;
    p->effort = 1.0;
    p->n_tensors = model->n_tensors;
    esp__copy_struct(&p->system, sizeof p->system, system, system->struct_size);
    esp__copy_struct(&p->config, sizeof p->config, config, config ? config->struct_size : 0);
    p->seed = p->config.seed;
    if (p->config.flags & ESP_PLAN_THOROUGH) p->effort = 16.0;
    p->model_name = esp__one_line(p, model->name);
    p->system.name = esp__one_line(p, p->system.name);
    if ((s = esp__check_model(p)) != ESP_OK || (s = esp__check_system(&p->system)) != ESP_OK) return s;
    esp_plan_codec *own = esp__arena_get(arena, n_codecs * sizeof *own);
    const uint8_t *at = (const uint8_t *)codecs;
    for (uint32_t c = 0; c < n_codecs; c++) { /* structs of callers built for an older version may be shorter */
        uint32_t size = codecs->struct_size ? codecs->struct_size : (uint32_t)sizeof *codecs;
        esp__copy_struct(&own[c], sizeof *own, at + (size_t)c * size, size);
        if ((s = esp__check_codec(&own[c], c)) != ESP_OK) return s;
        if (own[c].bound && p->most_rounds < esp__rounds_of(&own[c])) p->most_rounds = esp__rounds_of(&own[c]);
        for (uint32_t b = 0; b < c; b++)
            if (!strcmp(own[b].spec, own[c].spec))
                return esp__fail(NULL, ESP_E_ARG, "codecs %u and %u are both '%s'", b, c, own[c].spec);
    }
    p->codecs = own;
    p->n_codecs = n_codecs;
    if (p->config.n_kept_codecs > n_codecs)
        return esp__fail(NULL, ESP_E_ARG, "config: n_kept_codecs is %u, but there are %u codecs",
                         p->config.n_kept_codecs, n_codecs);
    p->n_free_codecs = n_codecs - p->config.n_kept_codecs;
    esp__levels_open(p);
    if ((s = esp__check_config(&p->config)) != ESP_OK) return s;
    if (p->config.devices && !(p->config.devices & p->system.devices))
        return esp__fail(NULL, ESP_E_ARG, "devices: system '%s' has none of the requested ones",
                         p->system.name ? p->system.name : "");
    p->n_candidate_slots = 256;
    while (p->n_candidate_slots < 4 * p->n_tensors && p->n_candidate_slots < 65536) p->n_candidate_slots *= 2;
    p->candidate_sets = esp__arena_get(arena, p->n_candidate_slots * sizeof *p->candidate_sets);
    p->approximate = esp__too_many_sizes(p);
    esp__times_open(p);
    esp__templates_open(p);
    return esp__keeps_open(p);
}
