/* candidates.c: finds the options worth considering for a tensor, group or chunk (its candidates). It times the ops of
 * every option with every codec and keeps the options that no other one beats on all processors, links and in total.
 * Options are paths in a graph whose edges are ops. Extending them op by op, it drops beginnings (prefixes) that
 * another one beats, so that most of the 4341 options are never completed. */
#include "planner/problem/problem.h"

typedef struct esp__prefix { /* the beginning of an option, up to a node of the graph */
    struct esp__prefix *next, *spare;
    const struct esp__prefix *before; /* the beginning without its last op; NULL if it has no ops */
    uint64_t sum, total, load[ESP__LANES], memory;
    double error, volume;
    uint32_t n, comps, codec, unpacks;
    uint16_t op;
} esp__prefix;

typedef struct esp__timing {
    esp__problem *p;
    const esp__extent *unit;
    const esp_plan_codec *codec;
    uint32_t codec_index;
    uint64_t cols;
    esp__shape shape;
    esp__op_time cost[ESP__TEMPLATE_ROOM];
    esp__prefix **heads;
    esp__prefix *used, *spare;
    uint64_t most; /* largest payload of an op, in bytes; 0: no limit */
    /* whether memory, volume and error are compared, too. If so, an option that compresses never replaces one that
     * does not compress. */
    bool limited;
    bool timed; /* whether `cost` is for `unit` and `codec`, as far as it is known */
} esp__timing;

/* ---- pruning ----------------------------------------------------------------------------------------------------- */
/* Returns whether the beginning of an option `a` is so much better than `b` that `b` can be dropped. */
static inline int esp__dominates(const esp__timing *t, const esp__prefix *a, const esp__prefix *b) {
    if (a->total > b->total || a->unpacks > b->unpacks) return 0;
    for (uint32_t k = 0; k < t->p->n_lanes; k++)
        if (a->load[k] > b->load[k]) return 0;
    return !t->limited ||
           (a->comps <= b->comps && a->memory <= b->memory && a->error <= b->error && a->volume <= b->volume);
}

/* Returns the sum by which lists are sorted, so that a beginning can only be beaten by those before it. */
static uint64_t esp__prefix_sum(const esp__timing *t, const esp__prefix *l) {
    uint64_t sum = l->total;
    for (uint32_t k = 0; k < t->p->n_lanes; k++) sum += l->load[k];
    return sum;
}

static void esp__prefix_add(esp__timing *t, esp__prefix **head, esp__prefix *l) {
    esp__prefix **at = head;
    l->sum = esp__prefix_sum(t, l);
    for (; *at && (*at)->sum <= l->sum; at = &(*at)->next)
        if (esp__dominates(t, *at, l)) return;
    l->next = *at;
    *at = l;
    for (at = &l->next; *at;)
        if (esp__dominates(t, l, *at))
            *at = (*at)->next;
        else
            at = &(*at)->next;
}

static esp__prefix *esp__prefix_new(esp__timing *t) {
    esp__prefix *l = t->spare;
    if (l)
        t->spare = l->spare;
    else
        l = esp__arena_get(t->p->arena, sizeof *l);
    memset(l, 0, sizeof *l);
    l->spare = t->used;
    t->used = l;
    l->codec = t->codec_index;
    return l;
}

static int esp__needs_pack(const esp__timing *t, uint16_t op, uint8_t kind) {
    if (t->unit->n < 2) return 0;
    return !(t->codec && t->codec->takes_list && op != ESP__OP_END && t->p->op_templates[op].kind == kind);
}

static esp__prefix *esp__prefix_op(esp__timing *t, const esp__prefix *from, uint16_t op) {
    esp__prefix *l = esp__prefix_new(t), *spare = l->spare;
    const esp__op_template *r = &t->p->op_templates[op];
    const esp__op_time *time = &t->cost[op];
    *l = *from;
    l->spare = spare;
    l->before = from;
    l->op = op;
    l->n++;
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (r->lanes >> k & 1u) l->load[k] += esp__kept(time, k);
    l->total += time->ns;
    l->comps += r->kind == ESP_PLAN_COMPRESS && !r->early;
    l->unpacks = op != ESP__OP_UNPACK && esp__needs_pack(t, op, ESP_PLAN_DECOMPRESS);
    if (t->limited) l->memory += esp__template_memory(t->p, r, &t->shape, t->codec);
    return l;
}

static const esp__prefix *esp__prefix_pack(esp__timing *t, const esp__prefix *l, uint16_t op) {
    t->cost[op] = esp__template_time(t->p, &t->p->op_templates[op], &t->shape, NULL);
    return esp__prefix_op(t, l, op);
}

/* Returns the most payload bytes that an op may hold. An op that collects the payloads of thousands of ranks would need
 * more memory than a machine has, and send more bytes than uncompressed gradients have. */
static uint64_t esp__op_most(const esp__extent *u) {
    const uint64_t own = ESP__WASTE_TIMES * 4u * u->elements, least = (uint64_t)ESP__WASTE_MIB << 20;
    return own > least ? own : least;
}

static int esp__op_wasteful(const esp__timing *t, const esp__op_template *op) {
    if (!t->most || !t->codec || !esp__template_possible(op, t->codec)) return 0;
    if (op->kind != ESP_PLAN_COMPRESS && !(op->kind == ESP_PLAN_COLLECTIVE && op->compressed)) return 0;
    return esp__template_memory(t->p, op, &t->shape, t->codec) > t->most;
}

static void esp__prefix_extend(esp__timing *t, const esp__prefix *from, const esp__edge *e) {
    const esp__prefix *start = from;
    if (e->op == ESP__OP_END) {
        esp__prefix *whole;
        if (esp__needs_pack(t, from->before ? from->op : (uint16_t)ESP__OP_END, ESP_PLAN_DECOMPRESS))
            from = esp__prefix_pack(t, from, ESP__OP_UNPACK);
        whole = esp__prefix_new(t);
        esp__prefix *spare = whole->spare;
        *whole = *from;
        whole->spare = spare;
        esp__prefix_add(t, &t->heads[e->to], whole);
        return;
    }
    if (t->cost[e->op].ns == esp__unknown)
        t->cost[e->op] = esp__op_wasteful(t, &t->p->op_templates[e->op])
                             ? (esp__op_time){esp__cannot, 0, 0}
                             : esp__template_time(t->p, &t->p->op_templates[e->op], &t->shape, t->codec);
    if (t->cost[e->op].ns == esp__cannot) return;
    if (!from->n && esp__needs_pack(t, e->op, ESP_PLAN_COMPRESS)) start = esp__prefix_pack(t, from, ESP__OP_PACK);
    /* the limit is for all tensors together, so no single tensor may exceed it */
    const uint64_t limit = t->most ? t->p->config.max_memory_bytes : 0;
    esp__prefix *next = esp__prefix_op(t, start, e->op);
    if (limit && next->memory > limit) return;
    esp__prefix_add(t, &t->heads[e->to], next);
}

static void esp__time_options(esp__timing *t, const esp__tree *tree) {
    t->heads[tree->root] = esp__prefix_new(t);
    for (uint32_t node = tree->n_nodes; node-- > 1;) {
        const esp__edge *edges = &tree->edges[tree->nodes[node].first];
        for (esp__prefix *l = t->heads[node]; l; l = l->next)
            for (uint32_t k = 0; k < tree->nodes[node].n; k++) esp__prefix_extend(t, l, &edges[k]);
        t->heads[node] = NULL;
    }
}

/* ---- from prefixes to paths -------------------------------------------------------------------------------------- */
static const esp__option *esp__option_of(esp__problem *p, const uint16_t *ops, uint32_t n) {
    esp__option *o = esp__arena_get(p->arena, sizeof *o);
    for (uint32_t i = 0; i < n; i++) {
        const esp__op_template *r = &p->op_templates[ops[i]];
        if (r->kind == ESP_PLAN_COPY || r->kind == ESP_PLAN_PACK || r->early) continue;
        esp__step *s = &o->steps[o->n++];
        s->kind = r->kind == ESP_PLAN_COLLECTIVE ? (uint8_t)ESP__STAGE_COLLECTIVE
                  : r->kind == ESP_PLAN_COMPRESS ? (uint8_t)ESP__STAGE_COMP
                                                 : (uint8_t)ESP__STAGE_DECOMP;
        s->device = r->device, s->level = r->level, s->coll = r->coll, s->role = r->role;
        s->compressed = r->compressed, s->summed = r->summed;
    }
    return o;
}

/* Sets each op's step in the option, and its exchange if the codec needs several. Earlier exchanges repeat the steps of
 * the last one. */
static void esp__path_steps(const esp__problem *p, const uint16_t *op_template, uint32_t n, uint32_t last_round,
                            esp__plan_op *ops) {
    uint8_t step = 0;
    for (uint32_t i = 0; i < n; i++) {
        const esp__op_template *r = &p->op_templates[op_template[i]];
        /* A copy to the host belongs to the step after it, a copy from the host to the step before it. */
        ops[i].step = r->kind == ESP_PLAN_COPY && r->reverse ? (uint8_t)(step - 1) : (uint8_t)(step + r->ahead);
        ops[i].round = (uint8_t)(last_round - r->early);
        if (r->kind != ESP_PLAN_COPY && r->kind != ESP_PLAN_PACK && !r->early) step++;
    }
}

static void esp__path_time(esp__timing *t, const uint16_t *op_template, uint32_t n, esp__path *path) {
    esp__problem *p = t->p;
    esp__plan_op *ops = esp__arena_get(p->arena, n * sizeof *ops);
    uint64_t e = t->unit->elements;
    path->ops = ops;
    path->n = n;
    path->rounds = 1;
    path->codec = ESP__NO_CODEC;
    for (uint32_t i = 0; i < n; i++) {
        const esp__op_template *r = &p->op_templates[op_template[i]];
        if (r->kind == ESP_PLAN_COMPRESS || (r->kind == ESP_PLAN_COLLECTIVE && r->compressed))
            path->codec = t->codec_index;
        if (r->n_rounds > path->rounds) path->rounds = r->n_rounds;
        esp__op_time *cost = &t->cost[op_template[i]];
        if (cost->ns == esp__unknown) *cost = esp__template_time(p, r, &t->shape, t->codec);
        ops[i].time = *cost;
        ops[i].lanes = r->lanes;
        ops[i].kind = r->kind;
        ops[i].reverse = r->reverse;
        ops[i].op_template = op_template[i];
        path->total += ops[i].time.ns;
        for (uint32_t lane = 0; lane < ESP__LANES; lane++)
            if (r->lanes >> lane & 1u) path->load[lane] += esp__kept(&ops[i].time, lane);
        path->memory += esp__template_memory(p, r, &t->shape, t->codec);
    }
    esp__path_steps(p, op_template, n, path->codec == ESP__NO_CODEC ? 0 : esp__rounds_of(t->codec) - 1, ops);
    path->volume = path->codec == ESP__NO_CODEC ? 4 * e : (uint64_t)esp__unit_volume(p, t->codec, e, t->cols);
    path->error = path->codec == ESP__NO_CODEC ? 0.0 : esp__codec_error(t->codec, t->cols) * (double)e;
}

static void esp__path_fill(esp__timing *t, const esp__prefix *l, esp__path *path) {
    uint16_t op_template[ESP__MAX_OPS];
    uint32_t at = l->n;
    for (const esp__prefix *x = l; x->before; x = x->before) op_template[--at] = x->op;
    esp__path_time(t, op_template, l->n, path);
    if (!t->p->free_compression) path->option = esp__option_of(t->p, op_template, l->n);
}

static int esp__path_before(const void *a, const void *b) {
    const esp__path *x = a, *y = b;
    if (x->total != y->total) return x->total < y->total ? -1 : 1;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    for (uint32_t i = 0; i < x->n; i++)
        if (x->ops[i].op_template != y->ops[i].op_template)
            return x->ops[i].op_template < y->ops[i].op_template ? -1 : 1;
    return x->codec < y->codec ? -1 : x->codec > y->codec;
}

/* Prepares to time ops with this codec. Forgets the times of ops with another codec or of another size. */
static void esp__timing_codec(esp__timing *t, uint32_t codec) {
    if (t->timed && t->codec_index == codec) return;
    t->timed = true;
    t->codec_index = codec;
    t->codec = codec == ESP__NO_CODEC ? NULL : &t->p->codecs[codec];
    esp__shape_make(t->p, t->unit->elements, t->cols, t->codec, &t->shape);
    for (uint32_t i = 0; i < t->p->n_op_templates; i++) t->cost[i].ns = esp__unknown;
}

static void esp__timing_open(esp__timing *t, esp__problem *p, const esp__extent *u, uint64_t cols) {
    t->p = p;
    t->unit = u;
    t->limited = p->config.max_memory_bytes || p->config.max_volume > 0.0 || p->config.max_error > 0.0;
    t->cols = cols;
    t->timed = false;
}

static void esp__candidates_times(esp__problem *p, esp__candidates *candidates) {
    candidates->times = esp__arena_get(p->arena, candidates->n * sizeof *candidates->times);
    candidates->cheapest = esp__arena_get(p->arena, sizeof *candidates->cheapest);
    for (uint32_t i = 0; i < candidates->n; i++) {
        for (uint32_t k = 0; k < ESP__LANES; k++) candidates->times[i][k] = (double)candidates->paths[i].load[k];
        candidates->times[i][ESP__LANES] = (double)candidates->paths[i].total;
    }
}

static void esp__timing_close(esp__timing *t) {
    while (t->used) {
        esp__prefix *l = t->used;
        t->used = l->spare;
        l->spare = t->spare;
        t->spare = l;
    }
}

static esp__timing *esp__timing_of(esp__problem *p, const esp__extent *u, uint64_t cols) {
    if (!p->timing) p->timing = esp__arena_get(p->arena, sizeof *p->timing);
    esp__timing_open(p->timing, p, u, cols);
    return p->timing;
}

/* Adds the options with one codec (an index, or ESP__NO_CODEC) to `all`, which keeps the best with any codec. Adds
 * options without compression only if `raw`. */
static void esp__candidates_of(esp__timing *t, const esp__tree *tree, uint32_t codec, bool raw, esp__prefix **all) {
    esp__problem *p = t->p;
    esp__prefix *l;
    esp__timing_codec(t, codec);
    const uint32_t n_rounds = t->codec ? esp__unit_rounds_run(p, t->codec, t->unit->elements, t->cols) : 1;
    tree = n_rounds ? esp__tree_for(tree, t->codec, n_rounds) : NULL;
    if (!tree || !tree->n_options) return;
    esp__time_options(t, tree);
    while ((l = t->heads[0]) != NULL) {
        t->heads[0] = l->next;
        if (!l->comps && !raw && tree->codec == ESP__NO_CODEC && !p->free_compression) continue;
        l->error = l->comps ? esp__codec_error(t->codec, t->cols) : 0.0;
        l->volume =
            l->comps ? esp__unit_volume(p, t->codec, t->unit->elements, t->cols) : 4.0 * (double)t->unit->elements;
        esp__prefix_add(t, all, l);
    }
}

/* Makes the candidates. If there would be none, it calls itself with `unbounded`, which admits ops that hold very much
 * memory. */
static void esp__candidates_make(esp__problem *p, const esp__extent *u, uint64_t cols, esp__candidates *candidates,
                                 bool unbounded) {
    const esp__tree *tree = p->trees[candidates->keep];
    esp__timing *t = esp__timing_of(p, u, cols);
    esp__prefix *all = NULL, *l;
    uint32_t n = 0;
    /* Options without compression are the same for all codecs, so only the first codec in the loop adds them. */
    bool raw = true;
    t->heads = p->heads;
    t->most = unbounded ? 0 : esp__op_most(u);
    for (uint32_t c = 0; c < p->n_codecs; c++) {
        if (tree->codec == ESP__NO_CODEC ? c >= p->n_free_codecs : tree->codec != c) continue;
        esp__candidates_of(t, tree, c, raw, &all);
        if (!p->codecs[c].bound) raw = false;
    }
    if (raw) esp__candidates_of(t, tree, ESP__NO_CODEC, true, &all);
    for (l = all; l; l = l->next) n++;
    if (!n && !unbounded) {
        esp__timing_close(t);
        esp__candidates_make(p, u, cols, candidates, true);
        return;
    }
    esp__path *paths = esp__arena_get(p->arena, n * sizeof *paths);
    candidates->n = n;
    candidates->paths = paths;
    for (l = all; l; l = l->next) {
        esp__timing_codec(t, l->codec);
        esp__path_fill(t, l, paths++);
    }
    esp__timing_close(t);
    paths -= n;
    qsort(paths, n, sizeof *paths, esp__path_before);
    esp__candidates_times(p, candidates);
}

/* Copies the options of `like` and computes their times for this size. Groups and chunks have many sizes, between
 * which the best options change slowly, so comparing all options for each size would take too long. */
static void esp__candidates_retime(esp__problem *p, const esp__extent *u, uint64_t cols, const esp__candidates *like,
                                   esp__candidates *candidates) {
    esp__timing *t = esp__timing_of(p, u, cols);
    esp__path *paths = esp__arena_get(p->arena, like->n * sizeof *paths);
    for (uint32_t i = 0; i < like->n; i++) {
        const esp__path *from = &like->paths[i];
        uint16_t op_template[ESP__MAX_OPS];
        for (uint32_t k = 0; k < from->n; k++) op_template[k] = (uint16_t)from->ops[k].op_template;
        esp__timing_codec(t, from->codec);
        esp__path_time(t, op_template, from->n, &paths[i]);
        paths[i].codec = from->codec;
        paths[i].option = from->option;
    }
    candidates->n = like->n;
    candidates->paths = paths;
    esp__candidates_times(p, candidates);
}

ESP__FN int esp__unit_whole(const esp__problem *p, const esp__extent *u) {
    return u->n == 1 && u->elements == p->model->tensors[u->first].elements;
}

/* Rounds to the closest power of two. Groups and chunks get the options of that size. */
static uint64_t esp__size_rounded(uint64_t elements) {
    uint64_t size = 1;
    while (2 * size <= elements) size *= 2;
    return elements - size > size / 2 ? 2 * size : size;
}

static esp__candidates *esp__candidates_find(esp__problem *p, const esp__extent *u, uint64_t cols, bool retimed) {
    uint32_t keep = esp__keep_of(p, u->first, u->n), packed = u->n > 1;
    uint64_t h =
        (u->elements * 4 + packed * 2 + retimed) * 0x9E3779B97F4A7C15ull + keep * 0xD1B54A32D192ED03ull + (cols << 32);
    esp__candidates **slot = &p->candidate_sets[(h >> 32) & (p->n_candidate_slots - 1)], *m;
    for (m = *slot; m; m = m->next)
        if (m->elements == u->elements && m->cols == cols && m->keep == keep && (m->n_pieces > 1) == packed &&
            m->retimed == retimed)
            return m;
    m = esp__arena_get(p->arena, sizeof *m);
    m->elements = u->elements;
    m->cols = cols;
    m->n_pieces = u->n;
    m->keep = keep;
    m->retimed = retimed;
    m->next = *slot;
    *slot = m;
    p->n_candidate_sets++;
    return m;
}

/* Returns whether every codec exchanges payloads equally often for both sizes (some codecs, such as PowerSGD, need
 * several exchanges). */
static int esp__rounds_alike(const esp__problem *p, uint64_t a, uint64_t b, uint64_t cols) {
    for (uint32_t c = 0; c < p->n_codecs; c++)
        if (esp__unit_rounds_run(p, &p->codecs[c], a, cols) != esp__unit_rounds_run(p, &p->codecs[c], b, cols))
            return 0;
    return 1;
}

/* Returns the candidates for a matrix with `cols` columns, or if `cols` is 0, for data that is no matrix. */
ESP__FN const esp__candidates *esp__candidates_of_shape(esp__problem *p, const esp__extent *u, uint64_t cols) {
    const bool retimed = p->approximate || !esp__unit_whole(p, u);
    esp__candidates *candidates = esp__candidates_find(p, u, cols, retimed), *like;
    esp__extent other = *u;
    if (candidates->paths) return candidates;
    other.elements = cols ? esp__size_rounded(u->elements / cols) * cols : esp__size_rounded(u->elements);
    if (!retimed || !esp__rounds_alike(p, u->elements, other.elements, cols)) {
        esp__candidates_make(p, u, cols, candidates, false);
        return candidates;
    }
    like = esp__candidates_find(p, &other, cols, false);
    if (!like->paths) esp__candidates_make(p, &other, cols, like, false);
    esp__candidates_retime(p, u, cols, like, candidates);
    return candidates;
}

ESP__FN const esp__candidates *esp__candidates_get(esp__problem *p, const esp__extent *u) {
    return esp__candidates_of_shape(p, u, esp__unit_cols(p, u));
}

ESP__FN const esp__path *esp__path_of(esp__problem *p, const esp__extent *u, const esp__option *o, uint32_t codec) {
    esp__op_template ops[ESP__MAX_OPS];
    uint32_t n, n_rounds = 0;
    if (!esp__option_is_flat(o) && (!p->hierarchical || !esp__option_fits_system(p, o))) return NULL;
    esp__timing *t = esp__timing_of(p, u, esp__unit_cols(p, u));
    esp__timing_codec(t, esp__option_compresses(o) ? codec : ESP__NO_CODEC);
    t->codec_index = codec;
    if (t->codec && t->codec->bound && !(n_rounds = esp__unit_rounds_run(p, t->codec, u->elements, t->cols)))
        return NULL;
    const esp__prefix *l = esp__prefix_new(t);
    esp__path *path = NULL;
    n = esp__op_templates(p, o, n_rounds, ops);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t op = esp__template_intern(p, &ops[i]);
        t->cost[op] = esp__template_time(p, &ops[i], &t->shape, t->codec);
        if (t->cost[op].ns == esp__cannot) break;
        if (!i && esp__needs_pack(t, op, ESP_PLAN_COMPRESS)) l = esp__prefix_pack(t, l, ESP__OP_PACK);
        l = esp__prefix_op(t, l, op);
        if (i + 1 < n) continue;
        if (esp__needs_pack(t, op, ESP_PLAN_DECOMPRESS)) l = esp__prefix_pack(t, l, ESP__OP_UNPACK);
        path = esp__arena_get(p->arena, sizeof *path);
        esp__path_fill(t, l, path);
    }
    esp__timing_close(t);
    return path;
}

/* Rewrites an option that knows only ranks of a machine (intra) and machines (inter) for a system with more levels.
 * intra becomes the innermost level with several ranks, inter all levels outside that. */
static void esp__option_spread_system(const esp__problem *p, esp__option *o) {
    uint32_t last = 1;
    if (p->n_levels == 2 || esp__option_is_flat(o) || !p->hierarchical) return;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].level > ESP__INTER) return;
    while (esp__system_size(&p->system, last) == 1) last++;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == ESP__STAGE_COLLECTIVE)
            o->steps[i].level = o->steps[i].level == ESP__INTRA ? esp__scope_of(1, last, p->n_levels)
                                                                : esp__scope_of(last + 1, p->n_levels, p->n_levels);
}

ESP__FN const esp__path *esp__path_make(esp__problem *p, const esp__extent *u, const char *option, uint32_t codec) {
    esp__option o;
    if (esp__option_parse(NULL, option, &o)) return NULL;
    esp__option_spread_system(p, &o);
    return esp__path_of(p, u, &o, codec);
}

ESP__FN uint64_t esp__op_bytes(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k) {
    const esp__op_template *op = &p->op_templates[path->ops[k].op_template];
    const esp_plan_codec *codec = path->codec == ESP__NO_CODEC ? NULL : &p->codecs[path->codec];
    esp__shape shape;
    esp__shape_make(p, u->elements, esp__unit_cols(p, u), codec, &shape);
    if (op->kind == ESP_PLAN_COLLECTIVE) return (uint64_t)esp__op_bytes_before(p, op, &shape, codec);
    if (op->kind == ESP_PLAN_DECOMPRESS)
        return (uint64_t)(4.0 * esp__slots(p, op->slots) * (double)shape.size[op->cut]);
    return 4 * shape.size[op->cut];
}

ESP__FN void esp__op_traffic(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k,
                             double out[ESP__LEVELS]) {
    const esp__op_template *op = &p->op_templates[path->ops[k].op_template];
    const esp_plan_codec *codec = path->codec == ESP__NO_CODEC ? NULL : &p->codecs[path->codec];
    esp__shape shape;
    double piece, traffic, before;
    uint32_t n = p->size[op->level], first, last;
    if (op->kind != ESP_PLAN_COLLECTIVE || n < 2) return;
    esp__shape_make(p, u->elements, esp__unit_cols(p, u), codec, &shape);
    before = piece = esp__op_bytes_before(p, op, &shape, codec);
    if (op->coll == ESP_COLL_ALLREDUCE || op->coll == ESP_COLL_REDUCE_SCATTER || op->coll == ESP_COLL_ALLTOALL)
        piece /= n;
    traffic = esp__traffic(op->coll, n, before, piece);
    esp__scope_levels(op->level, p->n_levels, &first, &last);
    for (uint32_t level = first; level <= last; level++) {
        double inside = esp__system_ranks(&p->system, first, level - 1), bytes = traffic;
        if (level > first && esp__system_size(&p->system, level) == 1) continue;
        if (level > first && op->coll == ESP_COLL_ALLTOALL) bytes = piece * inside * (n - inside);
        out[level - 1] += first > 1 ? bytes * op->on_link : bytes;
    }
}
