/* rates.c: finds the least time per element of every option, for the lower bound in bound.c. An op's rate is the
 * minimum of t(e) / e, where t(e) is its time for e elements. For e elements it takes at least e times its rate, so the
 * sum of the rates bounds the load of each processor and link, however tensors are merged or split. */
#include "planner/bound/bound.h"
#include "planner/problem/problem.h"
#include <math.h>

static const double esp__rounding = 0.51; /* ns; op times are rounded to whole nanoseconds */

/* Returns the minimum of times * curve(x) / x for sizes x up to `high`, less the rounding error. It is at a point of
 * the curve or at `high`. Sets *least to the least time. */
static double esp__curve_rate(const esp_cost_curve *c, double times, double high, double *least) {
    double rate = times * esp__curve_at(c, high) / high;
    *least = times * c->points[0].ns;
    for (uint32_t i = 0; i < c->n; i++) {
        double ns = times * c->points[i].ns;
        *least = esp__min2(*least, ns);
        if (c->points[i].size > high) break;
        rate = esp__min2(rate, (ns - esp__rounding) / c->points[i].size);
    }
    rate = esp__min2(rate, (times * esp__curve_at(c, high) - esp__rounding) / high);
    *least = esp__max2(0.0, *least - esp__rounding);
    return *least > 0.0 ? esp__max2(0.0, rate) : 0.0;
}

static double esp__cut_parts(const esp__problem *p, uint8_t cut) {
    double parts = 1.0;
    for (uint32_t scope = 0; scope < ESP__SCOPES; scope++)
        if (p->cuts[cut] >> scope & 1u) parts *= p->size[scope];
    return parts;
}

/* Returns a lower bound on a collective's time, which leaves out that sizes are rounded up. Its time per element falls
 * as sizes grow. */
static double esp__link_smooth(const esp__rating *w, const esp__op_template *op, double elements) {
    const esp__problem *p = w->p;
    double part = elements / esp__cut_parts(p, op->cut), n = p->size[op->level];
    double before = !op->compressed   ? 4.0 * part
                    : w->codec->bound ? esp__slots(p, op->slots) * ESP_PAYLOAD_HEADER
                                      : esp__slots(p, op->slots) *
                                            (w->codec->header_bytes + w->codec->unit_bytes * w->codec->units * part);
    double piece = before;
    if (op->coll == ESP_COLL_ALLREDUCE || op->coll == ESP_COLL_REDUCE_SCATTER || op->coll == ESP_COLL_ALLTOALL)
        piece = before / n;
    return esp__collective_ns(&p->system, op->level, op->coll, before, piece, op->on_link);
}

static const esp_cost_curve *esp__link_table(const esp__problem *p, const esp__op_template *op) {
    const esp_plan_link *link = esp__system_tables(&p->system, op->level);
    return link && link->table[op->coll].n ? &link->table[op->coll] : NULL;
}

/* Returns the least time of a collective. `kept`, if it is not NULL, is a measured curve of how long the collective
 * occupies the link or processor, which may be less. */
static esp__rate esp__link_rate(const esp__rating *w, const esp__op_template *op, const esp_cost_curve *kept) {
    const esp__problem *p = w->p;
    const esp_cost_curve *table = esp__link_table(p, op);
    esp__rate r = {0.0, 0.0, 0.0};
    double n = p->size[op->level], all, none;
    if (n < 2.0) return r;
    if (table && op->compressed && w->codec->bound) {
        r.least = table->points[0].ns;
        for (uint32_t i = 1; i < table->n; i++) r.least = esp__min2(r.least, table->points[i].ns);
        r.least = esp__max2(0.0, r.least - esp__rounding);
        return r;
    }
    if (table) {
        double high = esp__op_bytes_before(p, op, &w->shape, w->codec);
        double low = op->compressed ? esp__slots(p, op->slots) * w->codec->unit_bytes * w->codec->units : 4.0;
        double gathers = op->coll == ESP_COLL_ALLGATHER || op->coll == ESP_COLL_GATHER ? n : 1.0;
        if (high > 0.0) r.each = esp__curve_rate(table, 1.0, gathers * high, &r.least);
        if (high > 0.0 && kept && kept->n)
            r.each = esp__min2(r.each, esp__curve_rate(kept, 1.0, gathers * high, &none));
        r.each *=
            gathers * low * esp__table_share(&p->system, op->level, op->coll, op->on_link) / esp__cut_parts(p, op->cut);
        return r;
    }
    r.least = esp__max2(0.0, esp__link_smooth(w, op, 0.0) - esp__rounding);
    all = esp__link_smooth(w, op, w->elements);
    if (r.least >= 4.0) {
        r.fixed = 3.0;
        r.each = (all - esp__rounding - r.fixed) / w->elements;
    } else if (op->level != ESP__FLAT) {
        r.fixed = -esp__rounding;
        r.each = (all - r.least - esp__rounding) / w->elements;
    }
    return r;
}

/* Returns the least time of a compression or decompression. On the CPU, the ranks of a machine share the cores, so
 * their times add up. */
static esp__rate esp__curve_rates(const esp__rating *w, const esp__op_template *op, const esp_cost_curve *curve) {
    const esp_cost_curve *more =
        op->kind == ESP_PLAN_COMPRESS ? NULL : esp__decompress_more(w->codec, curve, op->device);
    const double sources = more ? esp__slots(w->p, op->sources) : 1.0;
    double slots = op->kind == ESP_PLAN_COMPRESS ? 1.0 : esp__slots(w->p, op->slots) / sources, none;
    double times = op->device == ESP_ON_GPU ? 1.0 : (double)op->on_cpu;
    uint64_t most = w->codec->bound ? w->shape.elements : w->shape.size[op->cut];
    esp__rate r = {0.0, 0.0, 0.0};
    if (op->n_rounds > 1) times /= op->n_rounds;
    r.each = esp__curve_rate(curve, times, slots * (double)most, &r.least);
    if (sources > 1.0) r.each += (sources - 1.0) * esp__curve_rate(more, times, slots * (double)most, &none);
    r.each *= slots / esp__cut_parts(w->p, op->cut);
    return r;
}

static esp__rate esp__codec_rate(const esp__rating *w, const esp__op_template *op) {
    const int decompress = op->kind == ESP_PLAN_DECOMPRESS;
    esp__rate r = esp__curve_rates(w, op, esp__codec_curve(w->codec, 1, decompress, op->device));
    if (!esp__codec_vector(w->codec, 0)) return r;
    const esp__rate v = esp__curve_rates(w, op, esp__codec_curve(w->codec, 0, decompress, op->device));
    r.each = esp__min2(r.each, v.each), r.least = esp__min2(r.least, v.least);
    return r;
}

static const esp_cost_curve *esp__kept_curve(const esp__problem *p, const esp__op_template *op, int core) {
    const esp_plan_link *link = esp__system_tables(&p->system, op->level);
    return !link ? NULL : core ? &link->core[op->coll] : &link->gap[op->coll];
}

static esp__rate esp__core_rate(const esp__rating *w, const esp__op_template *op) {
    esp__rate r = {0.0, 0.0, 0.0};
    if (op->kind != ESP_PLAN_COLLECTIVE || !(op->lanes & ESP__CORE_LANES)) return r;
    if (!esp__template_possible(op, w->codec)) return r;
    r.each = esp__link_rate(w, op, esp__kept_curve(w->p, op, 1)).each * (1.0 - 1e-7);
    return r;
}

static esp__rate esp__rate_of(const esp__rating *w, const esp__op_template *op) {
    esp__rate r = {0.0, 0.0, 0.0};
    if (!esp__template_possible(op, w->codec)) {
        r.least = -1.0;
    } else if (op->kind == ESP_PLAN_COLLECTIVE) {
        r = esp__link_rate(w, op, esp__kept_curve(w->p, op, 0));
    } else if (op->kind == ESP_PLAN_COMPRESS || op->kind == ESP_PLAN_DECOMPRESS) {
        r = esp__codec_rate(w, op);
    } else if (op->kind == ESP_PLAN_COPY) {
        r.fixed = -esp__rounding;
        r.each = 4000.0 / w->p->system.host_bytes_per_us / esp__cut_parts(w->p, op->cut);
    }
    r.each *= 1.0 - 1e-7;
    return r;
}

static void esp__rating_add(esp__rating *w, const double fixed[ESP__LANES], const double each[ESP__LANES]) {
    esp__rate_path path;
    uint32_t kept = 0;
    for (uint32_t l = 0; l < ESP__LANES; l++)
        path.each[l] = esp__max2(0.0, each[l] + fixed[l] / (fixed[l] < 0.0 ? 1.0 : w->elements));
    for (uint32_t i = 0; i < w->n; i++) {
        int less = 0, more = 0;
        for (uint32_t l = 0; l < ESP__LANES; l++) {
            less |= w->paths[i].each[l] < path.each[l];
            more |= w->paths[i].each[l] > path.each[l];
        }
        if (!more) return;
        if (less) w->paths[kept++] = w->paths[i];
    }
    w->n = kept;
    if (w->n == w->room)
        w->paths = esp__arena_grow(w->p->arena, w->paths, w->n * sizeof *w->paths, (w->room *= 2) * sizeof *w->paths);
    w->paths[w->n++] = path;
}

static void esp__rating_walk(esp__rating *w, uint32_t node, const double fixed[ESP__LANES],
                             const double each[ESP__LANES], double least) {
    if (!node) {
        w->least = esp__min2(w->least, least);
        esp__rating_add(w, fixed, each);
        return;
    }
    const esp__edge *e = &w->tree->edges[w->tree->nodes[node].first];
    for (uint32_t k = 0; k < w->tree->nodes[node].n; k++, e++) {
        double f[ESP__LANES], x[ESP__LANES];
        const esp__rate none = {0.0, 0.0, 0.0}, *r = e->op == ESP__OP_END ? &none : &w->rates[e->op];
        if (r->least < 0.0) continue;
        for (uint32_t l = 0; l < ESP__LANES; l++) {
            const esp__op_template *op = e->op == ESP__OP_END ? NULL : &w->p->op_templates[e->op];
            const int on = op && op->lanes >> l & 1u;
            const int core = on && op->kind == ESP_PLAN_COLLECTIVE && ESP__CORE_LANES >> l & 1;
            const esp__rate *own = core ? &w->cores[e->op] : r;
            f[l] = fixed[l] + (on ? own->fixed : 0.0);
            x[l] = each[l] + (on ? own->each : 0.0);
        }
        esp__rating_walk(w, e->to, f, x, least + r->least);
    }
}

static void esp__rating_tree(esp__rating *w, const esp__tree *tree, const esp_plan_codec *codec) {
    const double zero[ESP__LANES] = {0.0};
    w->tree = tree;
    w->codec = codec;
    if (!tree->n_options) return;
    for (uint32_t i = 0; i < w->p->n_op_templates; i++) {
        w->rates[i] = esp__rate_of(w, &w->p->op_templates[i]);
        w->cores[i] = esp__core_rate(w, &w->p->op_templates[i]);
    }
    esp__rating_walk(w, tree->root, zero, zero, 0.0);
}

ESP__FN void esp__rating_options(esp__rating *w, uint32_t keep) {
    esp__problem *p = w->p;
    const esp__tree *tree = p->trees[keep];
    int raw = 1;
    w->n = 0;
    w->least = 1e300;
    for (uint32_t c = 0; c < p->n_codecs; c++) {
        const esp_plan_codec *codec = &p->codecs[c];
        if (tree->codec == ESP__NO_CODEC ? c >= p->n_free_codecs : tree->codec != c) continue;
        if (!codec->bound) esp__rating_tree(w, tree, codec), raw = 0;
        for (uint32_t k = 0; codec->bound && k < esp__rounds_of(codec) && tree->rounds[k]; k++)
            esp__rating_tree(w, tree->rounds[k], codec);
    }
    if (raw) esp__rating_tree(w, tree, NULL);
}

ESP__FN esp__rating *esp__rating_new(esp__problem *p) {
    esp__rating *w = esp__arena_get(p->arena, sizeof *w);
    uint64_t all = 0;
    for (uint32_t i = 0; i < p->n_tensors; i++) all += p->model->tensors[i].elements;
    w->p = p;
    w->elements = (double)all;
    w->room = 64;
    w->paths = esp__arena_get(p->arena, w->room * sizeof *w->paths);
    w->rates = esp__arena_get(p->arena, p->n_op_templates * sizeof *w->rates);
    w->cores = esp__arena_get(p->arena, p->n_op_templates * sizeof *w->cores);
    esp__shape_make(p, all, 0, NULL, &w->shape);
    return w;
}
