/* templates.c: finds the options (sequences of collectives, compressions and decompressions) that the system and the
 * user's constraints allow, and lists the ops of each, without sizes. Options are stored in a graph, in which equal
 * ends of options are stored once. */
#include "planner/problem/problem.h"

/* Lists all ways to divide a tensor among ranks: by machines, by the ranks of a machine, by both, and so on. */
static void esp__cuts_open(esp__problem *p) {
    p->n_cuts = 0;
    for (uint32_t set = 0; set < 1u << ESP__SCOPES; set++) {
        uint32_t levels = 0, first, last, good = 1;
        for (uint32_t scope = 0; scope < ESP__SCOPES; scope++) {
            if (!(set >> scope & 1u)) continue;
            esp__scope_levels(scope, p->n_levels, &first, &last);
            uint32_t own = (2u << last) - (1u << first);
            good &= p->size[scope] && !(levels & own);
            levels |= own;
        }
        if (good) p->cuts[p->n_cuts++] = (uint16_t)set;
    }
}

static uint8_t esp__cut_of(const esp__problem *p, const esp__region *r) {
    uint32_t set = 0;
    uint8_t number = 0;
    for (uint32_t c = 0; c < r->n_cuts; c++) set |= 1u << r->cuts[c].level;
    while (p->cuts[number] != set) number++;
    return number;
}

static void esp__slots_of(const esp__region *r, uint8_t slots[ESP__SCOPES]) {
    memset(slots, 0, ESP__SCOPES);
    for (uint32_t d = 0; d < r->n_dims; d++) slots[r->dims[d].level]++;
}

static void esp__sources_of(const esp__region *r, uint8_t sources[ESP__SCOPES]) {
    memset(sources, 0, ESP__SCOPES);
    for (uint32_t d = 0; d < r->n_dims; d++)
        if (r->dims[d].what == ESP__DIM_SOURCE) sources[r->dims[d].level]++;
}

/* Returns the bit of the processor core that a collective occupies, or 0 if it needs none. */
static uint32_t esp__core_lane(const esp__problem *p, const esp__step *s) {
    static const uint8_t lane[] = {ESP__LANE_COMPUTE, ESP__LANE_CPU, ESP__LANE_PROGRESS};
    const uint32_t cores = p->system.cores_per_rank;
    const esp_plan_link *link = esp__system_tables(&p->system, s->level);
    return cores && link && link->core[s->coll].n ? 1u << lane[cores - 1] : 0;
}

static uint8_t esp__lane_mask(const esp__problem *p, const esp__step *s) {
    if (s->kind != ESP__STAGE_COLLECTIVE) {
        if (s->device == ESP_ON_GPU) return 1u << ESP__LANE_COMPUTE;
        return (uint8_t)(1u << ESP__LANE_CPU | (p->system.cores_per_rank == 1 ? 1u << ESP__LANE_COMPUTE : 0u));
    }
    uint32_t first, last, lanes = 0;
    esp__scope_levels(s->level, p->n_levels, &first, &last);
    for (uint32_t level = first; level <= last; level++)
        if (esp__system_size(&p->system, level) > 1) lanes |= 1u << (ESP__LANE_CPU + level);
    if (!lanes) lanes = 1u << (ESP__LANE_CPU + first);
    return (uint8_t)(lanes | esp__core_lane(p, s));
}

/* Sets how many ranks run the op. After a reduce or gather only the root of each group of ranks goes on, until a
 * broadcast. `rooted` has a bit for each scope, such as inter, in which this is so. If the ranks of a machine belong
 * to different groups, the roots of these groups are on different machines. */
static void esp__flows_of(const esp__problem *p, uint32_t rooted, esp__op_template *op) {
    uint32_t first, last, from, to, roots = 1, k = p->system.ranks_per_machine;
    op->flows = ESP__FLOWS_ALL;
    op->on_link = 0;
    for (uint32_t scope = 0; scope < ESP__SCOPES; scope++) {
        if (!(rooted >> scope & 1u)) continue;
        esp__scope_levels(scope, p->n_levels, &first, &last);
        if (first == 1) op->flows = ESP__FLOWS_ONE;
        if (first > 1 && op->flows == ESP__FLOWS_ALL) op->flows = ESP__FLOWS_SPREAD;
        roots *= p->size[scope];
    }
    op->on_cpu = op->flows == ESP__FLOWS_ONE ? 1 : (k + roots - 1) / roots;
    if (op->kind != ESP_PLAN_COLLECTIVE) return;
    esp__scope_levels(op->level, p->n_levels, &first, &last);
    op->on_link = 1;
    for (uint32_t level = 1; level < first; level++) op->on_link *= esp__system_size(&p->system, level);
    for (uint32_t scope = 1; scope < ESP__SCOPES; scope++) {
        esp__scope_levels(scope, p->n_levels, &from, &to);
        if (rooted >> scope & 1u && to < first) op->on_link /= p->size[scope];
    }
}

static int esp__step_on_cpu(const esp__option *o, uint32_t i, uint8_t kind) {
    return i < o->n && o->steps[i].kind == kind && o->steps[i].device == ESP_ON_CPU;
}

static void esp__template_copy(const esp__problem *p, const esp__region *r, uint32_t rooted, bool reverse,
                               esp__op_template *op) {
    memset(op, 0, sizeof *op);
    op->kind = ESP_PLAN_COPY;
    op->lanes = 1u << ESP__LANE_INTRA;
    op->cut = esp__cut_of(p, r);
    esp__flows_of(p, rooted, op);
    op->reverse = reverse;
}

/* Returns a bit for each scope, such as inter, in which payloads of the compression at step `i` are summed without
 * decompressing them: in the codec's last round or, if `early`, in rounds before it. */
static uint16_t esp__scopes_reduced(const esp__option *o, uint32_t i, int early) {
    uint32_t scopes = 0;
    for (uint32_t k = i + 1; k < o->n && o->steps[k].kind != ESP__STAGE_DECOMP; k++)
        if (early ? esp__early_step(o, i, k) && o->steps[k].role != ESP__SECOND : o->steps[k].summed)
            scopes |= 1u << o->steps[k].level;
    return (uint16_t)scopes;
}

/* For a codec that compresses in several rounds, lists the collectives of a round before the last. They exchange the
 * payloads of `comp`, which compresses region `r` of the tensor at step `i`. Where the option sums, payloads are
 * summed by an allreduce; where it distributes one rank's payload, they are distributed in the same way. */
static uint32_t esp__early_templates(const esp__problem *p, const esp__option *o, uint32_t i, esp__region r,
                                     const esp__coordinates *at, uint32_t rooted, const esp__op_template *comp,
                                     esp__op_template *out) {
    uint32_t n = 0, swap;
    for (uint32_t k = i + 1; k < o->n && o->steps[k].kind != ESP__STAGE_DECOMP; k++) {
        const esp__step *s = &o->steps[k];
        const int spreads = s->role == ESP__SECOND;
        esp__op_template *op = &out[n];
        if (!esp__early_step(o, i, k)) continue;
        memset(op, 0, sizeof *op);
        op->kind = ESP_PLAN_COLLECTIVE;
        op->lanes = esp__lane_mask(p, s);
        op->coll = spreads ? s->coll : (uint8_t)ESP_COLL_ALLREDUCE;
        op->level = s->level, op->role = s->role;
        op->compressed = 1, op->summed = !spreads;
        op->n_rounds = comp->n_rounds, op->early = comp->early, op->reduced = comp->reduced;
        op->ahead = (uint8_t)(k - i);
        op->cut = esp__cut_of(p, &r);
        esp__flows_of(p, rooted, op);
        esp__slots_of(&r, op->slots);
        if (spreads) esp__region_step(&r, at, o, k, &swap);
        if (spreads && s->coll == ESP_COLL_BROADCAST) rooted &= ~(1u << s->level);
        op->parts = esp__cut_of(p, &r);
        esp__slots_of(&r, op->slots_after);
        n++;
    }
    return n;
}

/* Lists the ops of one option, and returns their number. Sizes are those of a rank that is root of every reduce and
 * gather, because it holds most. n_rounds is the number of rounds of a codec with bound(), 0 for other codecs. */
ESP__FN uint32_t esp__op_templates(const esp__problem *p, const esp__option *o, uint32_t n_rounds,
                                   esp__op_template *out) {
    esp__coordinates at;
    esp__region r;
    uint32_t rooted = 0, n = 0, swap;
    uint16_t reduced = 0;
    int copies = p->system.host_bytes_per_us > 0.0 && !p->free_compression;
    memset(&at, 0, sizeof at);
    for (uint32_t scope = 0; scope < ESP__SCOPES; scope++) at.size[scope] = (int32_t)p->size[scope];
    esp__region_start(&r);
    for (uint32_t i = 0; i < o->n; i++) {
        const esp__step *s = &o->steps[i];
        esp__op_template op;
        memset(&op, 0, sizeof op);
        op.kind = s->kind == ESP__STAGE_COLLECTIVE ? (uint8_t)ESP_PLAN_COLLECTIVE
                  : s->kind == ESP__STAGE_COMP     ? (uint8_t)ESP_PLAN_COMPRESS
                                                   : (uint8_t)ESP_PLAN_DECOMPRESS;
        op.lanes = esp__lane_mask(p, s);
        op.device = s->device, op.coll = s->coll, op.level = s->level, op.role = s->role;
        op.compressed = s->compressed, op.summed = s->summed;
        op.cut = esp__cut_of(p, &r);
        esp__flows_of(p, rooted, &op);
        esp__slots_of(&r, op.slots);
        if (s->kind == ESP__STAGE_DECOMP) esp__sources_of(&r, op.sources);
        if (copies && esp__step_on_cpu(o, i, ESP__STAGE_COMP) && !(i && esp__step_on_cpu(o, i - 1, ESP__STAGE_DECOMP)))
            esp__template_copy(p, &r, rooted, 0, &out[n++]);
        esp__region_step(&r, &at, o, i, &swap);
        op.parts = esp__cut_of(p, &r);
        esp__slots_of(&r, op.slots_after);
        if (n_rounds && s->kind == ESP__STAGE_COMP) reduced = esp__scopes_reduced(o, i, 0);
        if (n_rounds && (s->kind == ESP__STAGE_COMP || op.compressed))
            op.n_rounds = (uint8_t)n_rounds, op.reduced = reduced;
        for (uint32_t early = n_rounds; s->kind == ESP__STAGE_COMP && early-- > 1;) {
            esp__op_template comp = op;
            comp.early = (uint8_t)early;
            comp.reduced = esp__scopes_reduced(o, i, 1);
            if (!p->free_compression) out[n++] = comp;
            n += esp__early_templates(p, o, i, r, &at, rooted, &comp, out + n);
        }
        if (s->kind == ESP__STAGE_COLLECTIVE || !p->free_compression) out[n++] = op;
        if (copies && esp__step_on_cpu(o, i, ESP__STAGE_DECOMP) && !esp__step_on_cpu(o, i + 1, ESP__STAGE_COMP))
            esp__template_copy(p, &r, rooted, 1, &out[n++]);
        if (s->coll == ESP_COLL_REDUCE || s->coll == ESP_COLL_GATHER) rooted |= 1u << s->level;
        if (s->coll == ESP_COLL_BROADCAST) rooted &= ~(1u << s->level);
    }
    return n;
}

ESP__FN uint16_t esp__template_intern(esp__problem *p, const esp__op_template *op) {
    esp__op_template *all = (esp__op_template *)(uintptr_t)p->op_templates;
    uint32_t i = 0;
    while (i < p->n_op_templates && memcmp(&all[i], op, sizeof *op)) i++;
    if (i == p->n_op_templates) {
        /* The array is large enough: two levels of the network have a few hundred ops, three levels below 2000, and
         * with codecs of four exchanges 7000. */
        all[i] = *op;
        p->n_op_templates++;
    }
    return (uint16_t)i;
}

/* ---- a trie (prefix tree) of all options, then the graph ---- */
typedef struct esp__trie_node {
    uint32_t child, sibling, same;
    uint16_t op;
    uint16_t n_children;
} esp__trie_node;

typedef struct esp__planting {
    esp__problem *p;
    esp__trie_node *nodes;
    uint32_t n, room, n_options;
    const char *only_option;
    const char *shard;
    bool no_comp;
    uint32_t n_rounds;
    uint32_t codec;
    uint32_t memo[1u << 14], n_memo;
    esp__op_template last[ESP__MAX_OPS]; /* the ops of the last option, and the node that each leads to */
    uint32_t to[ESP__MAX_OPS], n_last;
} esp__planting;

static int esp__pattern_in(const char *text, const char *const *patterns, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (esp__tree_has(text, patterns[i])) return 1;
    return 0;
}

ESP__FN int esp__option_fits_system(const esp__problem *p, const esp__option *o) {
    uint32_t outermost = 0, first, last;
    for (uint32_t i = 0; i < o->n; i++) {
        if (o->steps[i].kind != ESP__STAGE_COLLECTIVE || o->steps[i].level == ESP__FLAT) continue;
        if (p->size[o->steps[i].level] < 2) return 0;
        esp__scope_levels(o->steps[i].level, p->n_levels, &first, &last);
        if (last > outermost) outermost = last;
    }
    return esp__option_is_flat(o) || outermost == p->n_levels;
}

static uint32_t esp__option_comps(const esp__option *o) {
    uint32_t comps = 0;
    for (uint32_t i = 0; i < o->n; i++) comps += o->steps[i].kind == ESP__STAGE_COMP;
    return comps;
}

ESP__FN int esp__option_permitted(const esp__problem *p, const esp__option *o) {
    const esp_plan_config *c = &p->config;
    const uint32_t devices = c->devices ? p->system.devices & c->devices : p->system.devices;
    char text[ESP__TEXT_MAX];
    if (esp__option_comps(o) && (c->flags & ESP_PLAN_NO_COMP || !p->n_codecs)) return 0;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind != ESP__STAGE_COLLECTIVE && !(devices >> o->steps[i].device & 1u)) return 0;
    if (c->max_comp && esp__option_comps(o) > c->max_comp) return 0;
    if (!c->n_forbid && !c->n_only) return 1;
    esp__option_print(o, text, sizeof text);
    return !esp__pattern_in(text, c->forbid, c->n_forbid) && (!c->n_only || esp__pattern_in(text, c->only, c->n_only));
}

static int esp__option_wanted(esp__planting *w, const esp__option *o) {
    char text[ESP__TEXT_MAX];
    if (w->p->n_levels > 2 && !esp__option_fits_system(w->p, o)) return 0;
    if (w->shard && strcmp(w->shard, ESP__SHARD_ANY) != 0) {
        uint8_t scopes[ESP__LEVELS];
        esp__scopes_print(scopes, esp__option_cuts(o, scopes), text, sizeof text);
        if (strcmp(text, w->shard) != 0) return 0;
    }
    if (w->only_option) {
        esp__option_print(o, text, sizeof text);
        return !strcmp(text, w->only_option);
    }
    return !(w->no_comp && esp__option_comps(o)) && esp__option_permitted(w->p, o);
}

static int esp__option_of_rounds(const esp__planting *w, const esp__option *o) {
    if (!esp__option_compresses(o)) return 0;
    for (uint32_t c = 0; c < w->p->n_codecs; c++) {
        const esp_plan_codec *codec = &w->p->codecs[c];
        uint32_t i = 0;
        if (!codec->bound || (w->codec != ESP__NO_CODEC && w->codec != c)) continue;
        for (; i < o->n; i++) {
            const esp__op_template op = {.coll = o->steps[i].coll, .summed = o->steps[i].summed};
            if (o->steps[i].kind == ESP__STAGE_COLLECTIVE && o->steps[i].compressed && !esp__payloads_pass(codec, &op))
                break;
        }
        if (i == o->n) return 1;
    }
    return 0;
}

static uint16_t esp__template_number(esp__planting *w, const esp__op_template *op) {
    const uint32_t room = sizeof w->memo / sizeof *w->memo;
    uint32_t at = (uint32_t)(esp__hash64(ESP__HASH0, op, sizeof *op) % room);
    for (; w->memo[at]; at = (at + 1) % room)
        if (!memcmp(&w->p->op_templates[w->memo[at] - 1], op, sizeof *op)) return (uint16_t)(w->memo[at] - 1);
    const uint16_t number = esp__template_intern(w->p, op);
    if (w->n_memo < room / 4 * 3) w->memo[at] = number + 1u, w->n_memo++;
    return number;
}

static uint32_t esp__trie_child(esp__planting *w, uint32_t at, uint16_t op) {
    uint32_t c = w->nodes[at].child;
    while (c && w->nodes[c].op != op) c = w->nodes[c].sibling;
    if (c) return c;
    if (w->n == w->room)
        w->nodes = esp__arena_grow(w->p->arena, w->nodes, w->n * sizeof *w->nodes, (w->room *= 2) * sizeof *w->nodes);
    c = w->n++;
    w->nodes[c].op = op;
    w->nodes[c].sibling = w->nodes[at].child;
    w->nodes[at].child = c;
    w->nodes[at].n_children++;
    return c;
}

static int esp__plant(void *user, const esp__option *o) {
    esp__planting *w = user;
    esp__op_template ops[ESP__MAX_OPS];
    uint32_t at = 0;
    if (!esp__option_wanted(w, o) || (w->n_rounds && !esp__option_of_rounds(w, o))) return 0;
    uint32_t n = esp__op_templates(w->p, o, w->n_rounds, ops);
    uint32_t i = 0;
    for (; i < n && i < w->n_last && !memcmp(&ops[i], &w->last[i], sizeof *ops); i++) at = w->to[i];
    for (; i < n; i++) {
        w->last[i] = ops[i];
        w->to[i] = at = esp__trie_child(w, at, esp__template_number(w, &ops[i]));
    }
    w->n_last = n;
    esp__trie_child(w, at, ESP__OP_END); /* ends the option, since a longer one may begin with the same ops */
    w->n_options++;
    return 0;
}

static int esp__node_same(const esp__planting *w, const esp__tree *tree, uint32_t t, uint32_t g) {
    const esp__edge *e = &tree->edges[tree->nodes[g].first];
    if (tree->nodes[g].n != w->nodes[t].n_children) return 0;
    for (uint32_t c = w->nodes[t].child; c; c = w->nodes[c].sibling, e++)
        if (e->op != w->nodes[c].op || e->to != w->nodes[c].same) return 0;
    return 1;
}

/* Converts the trie into the graph by merging nodes with the same edges. Children have larger numbers than their
 * parents, so going down from the largest number, all children of a node are in the graph before it. */
static void esp__share(esp__planting *w, esp__tree *tree) {
    uint32_t slots = 1, n_edges = 0;
    while (slots < 2 * w->n) slots *= 2;
    tree->nodes = esp__arena_get(w->p->arena, (w->n + 1) * sizeof *tree->nodes);
    tree->edges = esp__arena_get(w->p->arena, (w->n + 1) * sizeof *tree->edges);
    uint32_t *table = esp__arena_get(w->p->arena, slots * sizeof *table);
    tree->n_nodes = 1;
    for (uint32_t t = w->n; t-- > 0;) {
        uint64_t hash = ESP__HASH0;
        uint32_t at;
        if (!w->nodes[t].child) {
            w->nodes[t].same = 0;
            continue;
        }
        for (uint32_t c = w->nodes[t].child; c; c = w->nodes[c].sibling)
            hash = (hash ^ ((uint64_t)w->nodes[c].same << 16 | w->nodes[c].op)) * 0x9E3779B97F4A7C15ull;
        at = (uint32_t)(hash >> 32) & (slots - 1);
        while (table[at] && !esp__node_same(w, tree, t, table[at])) at = (at + 1) & (slots - 1);
        if (!table[at]) {
            esp__node *node = &tree->nodes[tree->n_nodes];
            node->first = n_edges;
            for (uint32_t c = w->nodes[t].child; c; c = w->nodes[c].sibling) {
                tree->edges[n_edges].op = w->nodes[c].op;
                tree->edges[n_edges++].to = w->nodes[c].same;
            }
            node->n = n_edges - node->first;
            table[at] = tree->n_nodes++;
        }
        w->nodes[t].same = table[at];
    }
    tree->root = w->nodes[0].same;
}

static esp__tree *esp__tree_plant(esp__planting *w, uint32_t parts, uint32_t devices, bool extended) {
    esp__tree *tree = esp__arena_get(w->p->arena, sizeof *tree);
    w->room = 1024;
    w->nodes = esp__arena_get(w->p->arena, w->room * sizeof *w->nodes);
    w->n = 1;
    w->n_options = w->n_last = 0;
    esp__option_each(parts, devices, extended, esp__plant, w);
    tree->n_options = w->n_options;
    tree->codec = w->codec;
    if (w->n_options) esp__share(w, tree);
    return tree;
}

/* Builds the graph of options. Each parameter restricts them: `shard` is as in esp_plan_tensor, `only_option` the
 * text of the only option, `codec` the only codec, and `no_comp` excludes compression. NULL or ESP__NO_CODEC
 * restricts nothing. */
ESP__FN esp__tree *esp__tree_make(esp__problem *p, const char *shard, const char *only_option, uint32_t codec,
                                  bool no_comp) {
    esp__planting *w = esp__arena_get(p->arena, sizeof *w);
    uint32_t devices = p->system.devices,
             parts = (p->hierarchical ? ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL : ESP__TREE_FLAT) |
                     (shard ? ESP__TREE_NARROW : 0) | ESP__TREE_OF(p->n_levels);
    bool extended = only_option != NULL;
    for (uint32_t i = 0; i < p->n_codecs; i++)
        if (p->codecs[i].caps & ESP_CODEC_REDUCIBLE) extended = true;
    if (p->config.devices && !only_option) devices &= p->config.devices;
    if (only_option) devices = 3u;
    /* if codecs take no time, options that differ in devices only are the same */
    if (p->free_compression && devices == 3u && !p->config.n_forbid && !p->config.n_only && !only_option)
        devices = 1u << ESP_ON_GPU;
    w->p = p;
    w->only_option = only_option;
    w->shard = shard;
    w->codec = codec;
    w->no_comp = no_comp || (!only_option && p->config.flags & ESP_PLAN_NO_COMP);
    esp__tree *tree = esp__tree_plant(w, parts, devices, extended);
    for (w->n_rounds = 1; !w->no_comp && w->n_rounds <= p->most_rounds; w->n_rounds++)
        tree->rounds[w->n_rounds - 1] = esp__tree_plant(w, parts, devices, extended);
    return tree;
}

/* Returns the options for `codec`, which compresses in n_rounds rounds and may be NULL. */
ESP__FN const esp__tree *esp__tree_for(const esp__tree *tree, const esp_plan_codec *codec, uint32_t n_rounds) {
    return codec && codec->bound ? tree->rounds[n_rounds - 1] : tree;
}

ESP__FN void esp__templates_open(esp__problem *p) {
    const uint32_t room = (uint32_t)ESP__TEMPLATE_ROOM / (p->most_rounds ? 1 : 2);
    esp__op_template *ops = esp__arena_get(p->arena, room * sizeof *ops);
    uint8_t lane = (p->system.devices & 1u << ESP_ON_GPU) ? 1u << ESP__LANE_COMPUTE : 1u << ESP__LANE_CPU;
    ops[ESP__OP_PACK].kind = ops[ESP__OP_UNPACK].kind = ESP_PLAN_PACK;
    ops[ESP__OP_PACK].lanes = ops[ESP__OP_UNPACK].lanes = lane;
    ops[ESP__OP_UNPACK].reverse = 1;
    p->op_templates = ops;
    p->n_op_templates = 2;
    esp__cuts_open(p);
}
