/* fit.c: makes the planner's input from measured points: tables where there are enough points, and for each level a
 * latency and a rate, fitted to all of its points. */
#include "planner/calibrate/costs.h"
#include "planner/plan.h"
#include <math.h>

enum { ESP__CALIBRATION_TABLE_LEAST = 3 };

/* A collective takes hops * alpha + bytes / rate; hops are messages that follow one another. */
typedef struct esp__calibration_terms {
    double hops, bytes;
} esp__calibration_terms;
typedef struct esp__calibration_line {
    double alpha_ns, ns_per_byte;
    uint32_t n; /* number of points; if 0, the line is unknown */
} esp__calibration_line;

static double esp__calibration_sharing(const esp_ctx *ctx, uint8_t level) {
    double n = (double)esp__calibration_locals(ctx);
    return level == ESP__OUTER ? n * (double)esp__calibration_ranks(ctx, ESP__INTER) : n;
}

/* Returns the hops and bytes of a collective of `size` bytes (as in tables) by the planner's formula. Sets *link to the
 * level whose link determines the time; for collectives over all ranks this is the outermost. */
static esp__calibration_terms esp__calibration_formula(const esp_ctx *ctx, uint8_t level, uint32_t coll, double size,
                                                       uint8_t *link) {
    double n = (double)esp__calibration_ranks(ctx, level);
    double piece = size / n, bytes = esp__traffic(coll, n, size, piece);
    *link = level != ESP__FLAT ? level : esp__calibration_outermost(ctx);
    if (ctx->job.topo.n_machines < 2) *link = ESP__INTRA;
    const double sharing = esp__calibration_sharing(ctx, *link);
    if (*link != ESP__INTRA && level != ESP__FLAT) bytes *= sharing;
    if (*link != ESP__INTRA && level == ESP__FLAT && coll == ESP_COLL_ALLTOALL) bytes = piece * sharing * (n - sharing);
    return (esp__calibration_terms){(double)esp__hops(coll, (uint32_t)n), bytes};
}

/* Sums for a least-squares fit of relative errors. Neither the latency nor the time per byte may become negative. */
typedef struct esp__calibration_sums {
    double hh, hb, bb, h, b;
    uint32_t n;
} esp__calibration_sums;

static void esp__calibration_sum(esp__calibration_sums *m, esp__calibration_terms t, double ns) {
    double h = t.hops / ns, b = t.bytes / ns;
    m->hh += h * h, m->hb += h * b, m->bb += b * b;
    m->h += h, m->b += b;
    m->n++;
}

static esp__calibration_line esp__calibration_solve(const esp__calibration_sums *m) {
    esp__calibration_line l = {0.0, 0.0, m->n};
    double det = m->hh * m->bb - m->hb * m->hb;
    if (!m->n) return l;
    if (m->n > 1 && det > 1e-12 * m->hh * m->bb) {
        l.alpha_ns = (m->h * m->bb - m->b * m->hb) / det;
        l.ns_per_byte = (m->b * m->hh - m->h * m->hb) / det;
    }
    if (l.ns_per_byte <= 0.0) { /* no rate is visible, so all time is latency */
        l.alpha_ns = m->h / m->hh;
        l.ns_per_byte = 1e-6;
    }
    if (l.alpha_ns <= 0.0) l.alpha_ns = 0.0, l.ns_per_byte = m->b / m->bb;
    return l;
}

/* Fits a latency and a rate to the measured times of collectives at one level, such as between machines. If the
 * outermost level was not measured, fits them to the times of collectives over all ranks. */
static esp__calibration_line esp__calibration_level(const esp_ctx *ctx, const esp__calibration *s, uint8_t want) {
    esp__calibration_sums own, flat;
    memset(&own, 0, sizeof own);
    memset(&flat, 0, sizeof flat);
    for (uint8_t level = 0; level < ESP__CALIBRATION_LEVELS; level++)
        for (uint32_t coll = 1; coll < ESP_PLAN_COLLS; coll++) {
            const esp__calibration_curve *c = &s->link[level][coll];
            for (uint32_t i = 0; i < c->n; i++) {
                uint8_t link;
                esp__calibration_terms t = esp__calibration_formula(ctx, level, coll, c->at[i].size, &link);
                if (link != want || c->at[i].ns <= 0.0) continue;
                esp__calibration_sum(level == ESP__FLAT && ctx->job.topo.n_machines > 1 ? &flat : &own, t, c->at[i].ns);
            }
        }
    return esp__calibration_solve(own.n ? &own : &flat);
}

typedef struct esp__calibration_lines {
    esp__calibration_line of[ESP__CALIBRATION_LEVELS];
} esp__calibration_lines;
static esp__calibration_lines esp__calibration_levels(const esp_ctx *ctx, const esp__calibration *s) {
    esp__calibration_lines lines;
    memset(&lines, 0, sizeof lines);
    for (uint8_t level = ESP__INTRA; level < ESP__CALIBRATION_LEVELS; level++)
        lines.of[level] = esp__calibration_level(ctx, s, level);
    return lines;
}

/* Returns the collective from whose points those of `coll` are estimated: `coll` itself if it has enough points for a
 * table, else the one with the most points on this level, or 0 if there are none. */
static uint32_t esp__calibration_reference(const esp__calibration *s, uint8_t level, uint32_t coll) {
    uint32_t best = 0, most = 0;
    if (s->link[level][coll].n >= ESP__CALIBRATION_TABLE_LEAST) return coll;
    for (uint32_t k = 1; k < ESP_PLAN_COLLS; k++)
        if (s->link[level][k].n > most) most = s->link[level][k].n, best = k;
    return best;
}

/* Estimates points of `coll` from those of the collective `reference`. At sizes where both move the same bytes, their
 * times differ only by the hops. Returns the number of points in `out`. */
static uint32_t esp__calibration_estimate_points(const esp_ctx *ctx, const esp__calibration *s,
                                                 const esp__calibration_lines *lines, uint8_t level, uint32_t coll,
                                                 uint32_t reference, esp_cost_point *out) {
    const esp__calibration_curve *c = &s->link[level][reference];
    for (uint32_t i = 0; i < c->n; i++) {
        uint8_t link;
        double size = c->at[i].size;
        esp__calibration_terms was = esp__calibration_formula(ctx, level, reference, size, &link);
        esp__calibration_terms is = esp__calibration_formula(ctx, level, coll, size, &link);
        double scale = is.bytes > 0.0 ? was.bytes / is.bytes : 1.0,
               hops = (is.hops - was.hops) * lines->of[link].alpha_ns;
        double ns = c->at[i].ns + hops;
        out[i] = (esp_cost_point){size * scale, ns > 0.25 * c->at[i].ns ? ns : 0.25 * c->at[i].ns};
    }
    return c->n;
}

ESP__FN uint32_t esp__calibration_cores(const esp__calibration *s) {
    const double m = floor((double)s->cores / (double)s->sharing + 1.0 - s->load + 1e-9);
    return m < 1.0 ? 1u : m > 3.0 ? 3u : (uint32_t)m;
}

ESP__FN double esp__calibration_stretch(const esp__calibration *s) {
    const double busy = (double)s->sharing / (double)s->cores;
    return esp__calibration_cores(s) == 1 && busy > 1.0 ? busy : 1.0;
}

/* Returns 1 if interpolation over the logarithm of size predicts inner points from their neighbours better than
 * interpolation over size, else 0. */
static uint32_t esp__calibration_shape(const esp_cost_point *at, uint32_t n) {
    double off[2] = {0.0, 0.0};
    for (uint32_t i = 1; i + 1 < n; i++)
        for (uint32_t k = 0; k < 2; k++) {
            esp_cost_point ends[2] = {at[i - 1], at[i + 1]};
            esp_cost_curve c = {ends, 2, k};
            off[k] += fabs(esp__curve_at(&c, at[i].size) - at[i].ns) / (at[i].ns + 1.0);
        }
    return off[1] < off[0];
}

static esp_cost_curve esp__calibration_table(const esp_cost_point *at, uint32_t n) {
    return (esp_cost_curve){at, n, esp__calibration_shape(at, n)};
}

ESP__FN double esp__calibration_estimate(const esp_ctx *ctx, const esp__calibration *s, uint8_t level, uint32_t coll,
                                         uint64_t bytes) {
    esp_cost_point estimated[ESP__CALIBRATION_POINTS];
    const esp__calibration_lines lines = esp__calibration_levels(ctx, s);
    uint32_t reference = esp__calibration_reference(s, level, coll);
    uint8_t link;
    if (esp__calibration_ranks(ctx, level) < 2) return 0.0;
    esp__calibration_terms t = esp__calibration_formula(ctx, level, coll, (double)bytes, &link);
    if (reference) {
        uint32_t n = esp__calibration_estimate_points(ctx, s, &lines, level, coll, reference, estimated);
        double last = estimated[n - 1].size, size = (double)bytes < last ? (double)bytes : last;
        esp_cost_curve c = {estimated, n, 0};
        double beyond = ((double)bytes - size) * (t.bytes / (double)bytes) * lines.of[link].ns_per_byte;
        return esp__curve_at(&c, size) + beyond;
    }
    if (!lines.of[link].n) return 0.0;
    return t.hops * lines.of[link].alpha_ns + t.bytes * lines.of[link].ns_per_byte;
}

/* If a link was not measured, takes the values of `other`. If neither was, assumes the speed of copying memory
 * twice. */
static void esp__calibration_link_set(const esp__calibration *s, esp_plan_link *out, const esp__calibration_line *l,
                                      const esp__calibration_line *other) {
    out->alpha_is = ESP_ALPHA_HOP;
    if (!l->n) l = other;
    out->alpha_ns = l->n ? l->alpha_ns : 2000.0;
    out->bytes_per_us = l->n ? 1000.0 / l->ns_per_byte : s->pack_bytes_per_us / 2.0;
    if (!(out->bytes_per_us > 1e-3)) out->bytes_per_us = 1e-3;
    if (out->bytes_per_us > 1e9) out->bytes_per_us = 1e9;
}

static void esp__calibration_tables(const esp_ctx *ctx, esp__calibration *s, const esp__calibration_lines *lines,
                                    uint8_t level, esp_plan_link *out) {
    for (uint32_t coll = 1; coll < ESP_PLAN_COLLS; coll++) {
        uint32_t reference = esp__calibration_reference(s, level, coll);
        if (!reference || s->link[level][reference].n < ESP__CALIBRATION_TABLE_LEAST) continue;
        esp_cost_point *estimated = s->estimated[level][coll], *core = s->estimated_core[level][coll];
        const uint32_t n = esp__calibration_estimate_points(ctx, s, lines, level, coll, reference, estimated);
        out->table[coll] = esp__calibration_table(estimated, n);
        for (uint32_t i = 0; i < n; i++) {
            const double ns = s->link[level][reference].core[i].ns * esp__calibration_stretch(s);
            core[i] = (esp_cost_point){estimated[i].size, ns < estimated[i].ns ? ns : estimated[i].ns};
        }
        out->core[coll] = (esp_cost_curve){core, n, out->table[coll].log_size};
    }
}

ESP__FN esp_status esp__calibration_finish(const esp_ctx *ctx, esp__calibration *s) {
    esp_plan_system *y = &s->system;
    const esp__calibration_lines lines = esp__calibration_levels(ctx, s);
    const esp__calibration_line *line = lines.of;
    memset(y, 0, sizeof *y);
    y->struct_size = sizeof *y;
    y->name = "measured";
    y->machines = (uint32_t)ctx->job.topo.n_machines;
    y->ranks_per_machine = esp__calibration_locals(ctx);
    const int device = s->device ? ESP_ON_GPU : ESP_ON_CPU;
    y->devices = 1u << device;
    y->cores_per_rank = esp__calibration_cores(s);
    esp__calibration_link_set(s, &y->intra, &line[ESP__INTRA], &line[ESP__INTRA]);
    esp__calibration_link_set(s, &y->inter, &line[ESP__INTER], &line[ESP__INTRA]);
    if (ctx->job.topo.n_local > 1) esp__calibration_tables(ctx, s, &lines, ESP__INTRA, &y->intra);
    if (ctx->job.topo.n_machines > 1 && ctx->job.topo.n_local)
        esp__calibration_tables(ctx, s, &lines, ESP__INTER, &y->inter);
    if (ctx->job.size > 1) esp__calibration_tables(ctx, s, &lines, ESP__FLAT, &y->flat);
    if (esp__calibration_outermost(ctx) == ESP__OUTER) {
        y->n_outer = 1;
        y->outer[0].size = (uint32_t)esp__calibration_ranks(ctx, ESP__OUTER);
        y->machines /= y->outer[0].size;
        esp__calibration_link_set(s, &y->outer[0].link, &line[ESP__OUTER], &line[ESP__INTER]);
        esp__calibration_tables(ctx, s, &lines, ESP__OUTER, &y->outer[0].link);
    }
    y->pack_ns = 1000.0;
    y->pack_bytes_per_us = s->pack_bytes_per_us;
    for (int lane = 0; lane < ESP__LANES; lane++) y->dispatch_ns[lane] = s->dispatch_ns[lane];
    for (uint32_t i = 0; i < s->n_codecs; i++) {
        esp__calibration_codec *c = &s->codecs[i];
        esp_plan_codec *p = &s->plan_codecs[i];
        memset(p, 0, sizeof *p);
        p->struct_size = sizeof *p;
        p->spec = c->spec;
        p->caps = (uint32_t)(c->codec->traits.caps & ESP_CODEC_REDUCIBLE);
        p->header_bytes = c->header_bytes;
        p->unit_bytes = c->unit_bytes;
        p->units = c->units;
        p->error = c->error;
        esp__plan_codec_rounds(p, c->codec->table, &c->codec->traits, c->codec->self);
        p->vector_error = c->codec->model.error >= 0.0 ? c->codec->model.error : c->error;
        p->compress[device] = esp__calibration_table(c->compress.at, c->compress.n);
        p->decompress[device] = esp__calibration_table(c->decompress.at, c->decompress.n);
        p->decompress_more[device] = esp__calibration_table(c->decompress_more.at, c->decompress_more.n);
    }
    return ESP_OK;
}
