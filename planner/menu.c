/* menu.c: for one size of unit: every option's op times, and of the options those that no other dominates. One path
 * dominates another where its ops are found among the other's, in order, on the same lanes, none of them longer: with any
 * fixed sequence the other's places then do for it, and the step is no longer. Paths are pruned while they grow, at every
 * state of the tree, so that most of the 4341 are never finished. */
#include "plan.h"

typedef struct esp__prefix { /* a path up to some node of the graph */
    struct esp__prefix *next;
    uint64_t total, memory;
    uint32_t n, comps, codec;
    double error, volume; /* whole paths, under limits: for comparing codecs */
    uint64_t ns[ESP__MAX_OPS];
    uint16_t op[ESP__MAX_OPS];
    uint8_t lanes[ESP__MAX_OPS];
} esp__prefix;

/* What making one menu carries along. */
typedef struct esp__tasting {
    esp__problem *p;
    const esp__unit *unit;
    const esp_plan_codec *codec; /* or NULL */
    uint32_t codec_index;
    uint64_t size[ESP__CUTS];        /* elements                              */
    uint64_t cost[ESP__RECIPE_ROOM]; /* by recipe op; not yet known: UINT64_MAX - 1 */
    esp__prefix **heads, *spare;
    int limits; /* memory or error count too: a path that does not compress is then not dominated by one that does */
} esp__tasting;
static const uint64_t esp__cannot = UINT64_MAX, esp__unknown = UINT64_MAX - 1;

static uint64_t esp__part_of(uint64_t e, uint64_t n) { return (e + n - 1) / n; }

static void esp__sizes(const esp__problem *p, uint64_t e, uint64_t size[ESP__CUTS]) {
    size[ESP__CUT_NONE] = e;
    size[ESP__CUT_FLAT] = esp__part_of(e, p->size[ESP__FLAT]);
    size[ESP__CUT_INTRA] = esp__part_of(e, p->size[ESP__INTRA]);
    size[ESP__CUT_INTER] = esp__part_of(e, p->size[ESP__INTER]);
    size[ESP__CUT_BOTH] = esp__part_of(size[ESP__CUT_INTRA], p->size[ESP__INTER]);
}

static double esp__slots(const esp__problem *p, const uint8_t slots[3]) {
    double n = 1.0;
    for (uint32_t level = 0; level < 3; level++)
        for (uint32_t k = 0; k < slots[level]; k++) n *= p->size[level];
    return n;
}

static double esp__op_bytes_before(const esp__problem *p, const esp__recipe_op *op, const uint64_t *size,
                                   const esp_plan_codec *codec) {
    if (!op->compressed) return 4.0 * (double)size[op->cut];
    return esp__slots(p, op->slots) * esp__payload_bytes(codec, size[op->cut]);
}

static double esp__link_ns(const esp__problem *p, const esp__recipe_op *op, const uint64_t *size,
                           const esp_plan_codec *codec) {
    double before = esp__op_bytes_before(p, op, size, codec), piece = before;
    uint32_t n = p->size[op->level];
    if (op->coll == ESP_COLL_ALLREDUCE || op->coll == ESP_COLL_REDUCE_SCATTER || op->coll == ESP_COLL_ALLTOALL)
        piece = op->compressed ? before / n : 4.0 * (double)esp__part_of(size[op->cut], n);
    return esp__collective_ns(&p->system, op->level, op->coll, before, piece,
                              op->flows == ESP__FLOWS_ONE ? 1 : p->system.ranks_per_machine);
}

/* A Comp or Decomp of `elements`: every rank on its own GPU; one after the other in the machine's one CPU pool. */
static double esp__codec_ns(const esp__problem *p, const esp__recipe_op *op, const esp_cost_curve *curve,
                            double elements) {
    uint32_t k = p->system.ranks_per_machine, spread = (k + p->system.machines - 1) / p->system.machines;
    double one = esp__curve_at(&curve[op->device], elements);
    if (op->device == ESP__DEV_GPU || op->flows == ESP__FLOWS_ONE) return one;
    return one * (op->flows == ESP__FLOWS_SPREAD ? spread : k);
}

static uint64_t esp__recipe_ns(const esp__problem *p, const esp__recipe_op *op, const uint64_t *size,
                               const esp_plan_codec *codec) {
    double ns = 0.0;
    switch (op->kind) {
    case ESP_PLAN_COLLECTIVE:
        if (op->compressed && !codec) return esp__cannot;
        if (op->summed && !(codec->caps & ESP_CODEC_REDUCIBLE)) return esp__cannot;
        ns = esp__link_ns(p, op, size, codec);
        break;
    case ESP_PLAN_COMP:
        if (!codec || !codec->compress[op->device].n) return esp__cannot;
        ns = esp__codec_ns(p, op, codec->compress, (double)size[op->cut]);
        break;
    case ESP_PLAN_DECOMP:
        if (!codec || !codec->decompress[op->device].n) return esp__cannot;
        ns = esp__codec_ns(p, op, codec->decompress, esp__slots(p, op->slots) * (double)size[op->cut]);
        break;
    case ESP_PLAN_COPY: ns = 4.0 * (double)size[op->cut] * 1000.0 / p->system.host_bytes_per_us; break;
    default:
        ns = p->system.pack_ns;
        if (p->system.pack_bytes_per_us > 0.0) ns += 4.0 * (double)size[0] * 1000.0 / p->system.pack_bytes_per_us;
    }
    return (uint64_t)(ns + 0.5);
}

/* Residuals, and buffers for payloads made or received. */
static uint64_t esp__recipe_memory(const esp__problem *p, const esp__recipe_op *op, const uint64_t *size,
                                   const esp_plan_codec *codec) {
    double bytes = 0.0;
    if (op->kind == ESP_PLAN_COMP || (op->kind == ESP_PLAN_COLLECTIVE && op->compressed))
        bytes = esp__slots(p, op->slots_after) * esp__payload_bytes(codec, size[op->parts]);
    if (op->kind == ESP_PLAN_COMP) bytes += 4.0 * (double)size[op->cut];
    if (op->kind == ESP_PLAN_PACK && !op->up) bytes = 4.0 * (double)size[0];
    return (uint64_t)bytes;
}

/* ---- pruning ---------------------------------------------------------------------------------------------------------- */
static int esp__dominates(const esp__prefix *a, const esp__prefix *b, int limits) {
    uint32_t i = 0;
    if (a->n > b->n || a->total > b->total) return 0;
    if (limits && (a->comps > b->comps || a->memory > b->memory || a->error > b->error || a->volume > b->volume))
        return 0;
    for (uint32_t k = 0; k < b->n && i < a->n; k++)
        if (a->lanes[i] == b->lanes[k] && a->ns[i] <= b->ns[k]) i++;
    return i == a->n;
}

/* Adds `l` to the list unless one there dominates it; takes out those that it dominates. */
static void esp__prefix_add(esp__tasting *t, esp__prefix **head, esp__prefix *l) {
    esp__prefix **at = head;
    for (esp__prefix *x = *head; x; x = x->next)
        if (esp__dominates(x, l, t->limits)) {
            l->next = t->spare;
            t->spare = l;
            return;
        }
    while (*at) {
        esp__prefix *x = *at;
        if (esp__dominates(l, x, t->limits)) {
            *at = x->next;
            x->next = t->spare;
            t->spare = x;
        } else {
            at = &x->next;
        }
    }
    l->next = NULL;
    *at = l;
}

static esp__prefix *esp__prefix_new(esp__tasting *t, const esp__prefix *from) {
    esp__prefix *l = t->spare;
    if (l)
        t->spare = l->next;
    else
        l = esp__pool_get(t->p->pool, sizeof *l);
    if (!from) {
        l->n = l->comps = 0;
        l->total = l->memory = 0;
        l->error = l->volume = 0.0;
        return l;
    }
    l->error = l->volume = 0.0;
    l->n = from->n, l->comps = from->comps, l->total = from->total, l->memory = from->memory;
    memcpy(l->ns, from->ns, from->n * sizeof *l->ns);
    memcpy(l->op, from->op, from->n * sizeof *l->op);
    memcpy(l->lanes, from->lanes, from->n);
    return l;
}

static void esp__prefix_op(esp__tasting *t, esp__prefix *l, uint16_t op) {
    const esp__recipe_op *r = &t->p->recipe_ops[op];
    l->ns[l->n] = t->cost[op];
    l->op[l->n] = op;
    l->lanes[l->n++] = r->lanes;
    l->total += t->cost[op];
    l->comps += r->kind == ESP_PLAN_COMP;
    if (t->limits) l->memory += esp__recipe_memory(t->p, r, t->size, t->codec);
}

static int esp__needs_pack(const esp__tasting *t, uint16_t op, uint8_t kind) {
    if (t->unit->n < 2) return 0;
    return !(t->codec && t->codec->takes_list && op != ESP__OP_END && t->p->recipe_ops[op].kind == kind);
}

static void esp__prefix_pack(esp__tasting *t, esp__prefix *l, uint16_t op) {
    t->cost[op] = esp__recipe_ns(t->p, &t->p->recipe_ops[op], t->size, NULL);
    esp__prefix_op(t, l, op);
}

/* Follows one edge with one label. */
static void esp__prefix_extend(esp__tasting *t, const esp__prefix *from, const esp__edge *e) {
    esp__prefix *l;
    if (e->op != ESP__OP_END && t->cost[e->op] == esp__unknown)
        t->cost[e->op] = esp__recipe_ns(t->p, &t->p->recipe_ops[e->op], t->size, t->codec);
    if (e->op != ESP__OP_END && t->cost[e->op] == esp__cannot) return;
    l = esp__prefix_new(t, from);
    if (!from->n && esp__needs_pack(t, e->op, ESP_PLAN_COMP)) esp__prefix_pack(t, l, ESP__OP_PACK);
    if (e->op != ESP__OP_END)
        esp__prefix_op(t, l, e->op);
    else if (esp__needs_pack(t, l->n ? l->op[l->n - 1] : (uint16_t)ESP__OP_END, ESP_PLAN_DECOMP))
        esp__prefix_pack(t, l, ESP__OP_UNPACK);
    esp__prefix_add(t, &t->heads[e->to], l);
}

static void esp__taste(esp__tasting *t, const esp__tree *tree) {
    for (uint32_t i = 0; i < t->p->n_recipe_ops; i++) t->cost[i] = esp__unknown;
    t->heads[tree->root] = esp__prefix_new(t, NULL);
    t->heads[tree->root]->next = NULL;
    for (uint32_t node = tree->n_nodes; node-- > 1;) {
        const esp__edge *edges = &tree->edges[tree->nodes[node].first];
        for (esp__prefix *l = t->heads[node]; l; l = l->next)
            for (uint32_t k = 0; k < tree->nodes[node].n; k++) esp__prefix_extend(t, l, &edges[k]);
        while (t->heads[node]) {
            esp__prefix *l = t->heads[node];
            t->heads[node] = l->next;
            l->next = t->spare;
            t->spare = l;
        }
    }
}

/* ---- from labels to paths ------------------------------------------------------------------------------------------- */
static const esp__option *esp__option_of(esp__problem *p, const uint16_t *ops, uint32_t n) {
    esp__option *o = esp__pool_get(p->pool, sizeof *o);
    for (uint32_t i = 0; i < n; i++) {
        const esp__recipe_op *r = &p->recipe_ops[ops[i]];
        if (r->kind == ESP_PLAN_COPY || r->kind == ESP_PLAN_PACK) continue;
        esp__step *s = &o->steps[o->n++];
        s->kind = r->kind == ESP_PLAN_COLLECTIVE ? (uint8_t)ESP__COLL
                  : r->kind == ESP_PLAN_COMP     ? (uint8_t)ESP__COMP
                                                 : (uint8_t)ESP__DECOMP;
        s->device = r->device, s->level = r->level, s->coll = r->coll, s->role = r->role;
        s->compressed = r->compressed, s->summed = r->summed;
    }
    return o;
}

static void esp__path_fill(const esp__tasting *t, const esp__prefix *l, esp__path *path) {
    esp__problem *p = t->p;
    esp__plan_op *ops = esp__pool_get(p->pool, l->n * sizeof *ops);
    uint8_t step = 0;
    uint64_t e = t->unit->elements;
    path->ops = ops;
    path->n = l->n;
    path->codec = l->comps || (p->free_compression && t->codec) ? t->codec_index : (uint32_t)ESP__NO_CODEC;
    for (uint32_t i = 0; i < l->n; i++) {
        const esp__recipe_op *r = &p->recipe_ops[l->op[i]];
        ops[i].ns = l->ns[i];
        ops[i].lanes = r->lanes;
        ops[i].kind = r->kind;
        ops[i].up = r->up;
        ops[i].recipe = l->op[i];
        /* a copy belongs to the step that it serves: the next one down, the one before up */
        ops[i].step = r->kind == ESP_PLAN_COPY && r->up ? (uint8_t)(step - 1) : step;
        if (r->kind != ESP_PLAN_COPY && r->kind != ESP_PLAN_PACK) step++;
        path->total += l->ns[i];
        for (uint32_t lane = 0; lane < ESP__LANES; lane++)
            if (r->lanes >> lane & 1u) path->load[lane] += l->ns[i];
        path->memory += esp__recipe_memory(p, r, t->size, t->codec);
    }
    path->volume = path->codec == ESP__NO_CODEC ? 4 * e : (uint64_t)esp__payload_bytes(t->codec, e);
    path->error = path->codec == ESP__NO_CODEC ? 0.0 : t->codec->error * (double)e;
    if (!p->free_compression) path->option = esp__option_of(p, l->op, l->n);
}

static int esp__path_before(const void *a, const void *b) {
    const esp__path *x = a, *y = b;
    if (x->total != y->total) return x->total < y->total ? -1 : 1;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    for (uint32_t i = 0; i < x->n; i++)
        if (x->ops[i].recipe != y->ops[i].recipe) return x->ops[i].recipe < y->ops[i].recipe ? -1 : 1;
    return x->codec < y->codec ? -1 : x->codec > y->codec;
}

static void esp__tasting_open(esp__tasting *t, esp__problem *p, const esp__unit *u) {
    t->p = p;
    t->unit = u;
    t->limits = p->config.max_memory_bytes || p->config.max_volume > 0.0 || p->config.max_error > 0.0;
    esp__sizes(p, u->elements, t->size);
}

static void esp__menu_make(esp__problem *p, const esp__unit *u, esp__menu *menu) {
    const esp__tree *tree = p->trees[menu->keep];
    esp__tasting *t = p->tasting;
    esp__prefix *all = NULL, *l;
    uint32_t n = 0, runs = p->n_codecs ? p->n_codecs : 1;
    if (!t) p->tasting = t = esp__pool_get(p->pool, sizeof *t);
    esp__tasting_open(t, p, u);
    t->heads = p->heads;
    for (uint32_t c = 0; c < runs; c++) {
        if (tree->codec != ESP__NO_CODEC && tree->codec != c) continue;
        t->codec_index = c;
        t->codec = p->n_codecs ? &p->codecs[c] : NULL;
        esp__taste(t, tree);
        while ((l = t->heads[0]) != NULL) { /* one of another codec may dominate it, or it that one */
            t->heads[0] = l->next;
            l->codec = c;
            l->error = l->comps ? t->codec->error : 0.0;
            l->volume = l->comps ? esp__payload_bytes(t->codec, u->elements) : 4.0 * (double)u->elements;
            esp__prefix_add(t, &all, l);
        }
    }
    for (l = all; l; l = l->next) n++;
    esp__path *paths = esp__pool_get(p->pool, n * sizeof *paths);
    n = 0;
    while ((l = all) != NULL) {
        all = l->next;
        t->codec_index = l->codec;
        t->codec = p->n_codecs ? &p->codecs[l->codec] : NULL;
        esp__path_fill(t, l, &paths[n++]);
        l->next = t->spare;
        t->spare = l;
    }
    qsort(paths, n, sizeof *paths, esp__path_before);
    menu->n = n;
    menu->paths = paths;
}

ESP__FN const esp__menu *esp__menu_get(esp__problem *p, const esp__unit *u) {
    uint32_t keep = p->keep[u->first], packed = u->n > 1;
    uint64_t h = (u->elements * 2 + packed) * 0x9E3779B97F4A7C15ull + keep * 0xD1B54A32D192ED03ull;
    esp__menu **slot = &p->menus[(h >> 40) & (p->n_menu_slots - 1)], *m;
    for (m = *slot; m; m = m->next)
        if (m->elements == u->elements && m->keep == keep && (m->n_pieces > 1) == packed) return m;
    m = esp__pool_get(p->pool, sizeof *m);
    m->elements = u->elements;
    m->n_pieces = u->n;
    m->keep = keep;
    esp__menu_make(p, u, m);
    m->next = *slot;
    *slot = m;
    p->n_menus++;
    return m;
}

ESP__FN const esp__path *esp__path_of(esp__problem *p, const esp__unit *u, const esp__option *o, uint32_t codec) {
    esp__recipe_op ops[ESP__MAX_OPS];
    esp__tasting *t = p->tasting;
    uint32_t n;
    if (!t) p->tasting = t = esp__pool_get(p->pool, sizeof *t);
    if (!esp__option_is_flat(o) && !p->hierarchical) return NULL;
    esp__tasting_open(t, p, u);
    t->codec_index = codec;
    t->codec = codec == ESP__NO_CODEC || !esp__option_uses(o, ESP__COMP) ? NULL : &p->codecs[codec];
    esp__prefix *l = esp__prefix_new(t, NULL);
    n = esp__recipe_ops(p, o, ops);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t op = esp__recipe_intern(p, &ops[i]);
        t->cost[op] = esp__recipe_ns(p, &ops[i], t->size, t->codec);
        if (t->cost[op] == esp__cannot) return NULL;
        if (!i && esp__needs_pack(t, op, ESP_PLAN_COMP)) esp__prefix_pack(t, l, ESP__OP_PACK);
        esp__prefix_op(t, l, op);
        if (i + 1 == n && esp__needs_pack(t, op, ESP_PLAN_DECOMP)) esp__prefix_pack(t, l, ESP__OP_UNPACK);
    }
    esp__path *path = esp__pool_get(p->pool, sizeof *path);
    esp__path_fill(t, l, path);
    l->next = t->spare;
    t->spare = l;
    return path;
}

ESP__FN const esp__path *esp__path_make(esp__problem *p, const esp__unit *u, const char *option, uint32_t codec) {
    esp__option o;
    if (esp__option_parse(NULL, option, &o)) return NULL;
    return esp__path_of(p, u, &o, codec);
}

ESP__FN uint64_t esp__op_bytes(const esp__problem *p, const esp__unit *u, const esp__path *path, uint32_t k) {
    const esp__recipe_op *op = &p->recipe_ops[path->ops[k].recipe];
    const esp_plan_codec *codec = path->codec == ESP__NO_CODEC ? NULL : &p->codecs[path->codec];
    uint64_t size[ESP__CUTS];
    esp__sizes(p, u->elements, size);
    if (op->kind == ESP_PLAN_COLLECTIVE) return (uint64_t)esp__op_bytes_before(p, op, size, codec);
    if (op->kind == ESP_PLAN_DECOMP) return (uint64_t)(4.0 * esp__slots(p, op->slots) * (double)size[op->cut]);
    return 4 * size[op->cut];
}
