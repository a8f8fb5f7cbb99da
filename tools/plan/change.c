/* change.c: changes a plan's inputs, such as the speed of links or the number of machines, by a text: "inter=2x". */
#include "tools/plan/plan.h"
#include <math.h>

enum {
    CHANGE_INTER,
    CHANGE_INTRA,
    CHANGE_OUTER,
    CHANGE_LATENCY,
    CHANGE_HOST,
    CHANGE_MACHINES,
    CHANGE_RANKS,
    CHANGE_CODEC,
    CHANGE_COMPUTE,
    CHANGE_CORES,
    CHANGE_WAN
};
static const char *const change_names[] = {"inter", "intra", "outer",   "latency", "host", "machines",
                                           "ranks", "codec", "compute", "cores",   "wan",  NULL};
static void change_curve(plan_changed *c, esp_cost_curve *curve, double factor) {
    esp_cost_point *to = c->points + c->n_points;
    for (uint32_t i = 0; i < curve->n; i++)
        to[i] = (esp_cost_point){curve->points[i].size, curve->points[i].ns / factor};
    c->n_points += curve->n;
    curve->points = curve->n ? to : NULL;
}

static void change_room(plan_changed *c, size_t changes) {
    size_t n = 1;
    const esp_plan_system *s = &c->in.system;
    const esp_plan_link *links[] = {&s->intra, &s->inter, &s->flat, &s->outer[0].link};
    for (int l = 0; l < 4; l++)
        for (int k = 0; k < ESP_PLAN_COLLS; k++) n += links[l]->table[k].n + links[l]->gap[k].n;
    for (uint32_t i = 0; i < c->in.n_codecs; i++) {
        const esp_plan_codec *one = &c->in.codecs[i];
        for (int d = 0; d < 2; d++)
            n += one->compress[d].n + one->decompress[d].n + one->vector_compress[d].n + one->vector_decompress[d].n +
                 one->decompress_more[d].n;
    }
    c->points = tool_realloc(NULL, n * changes * sizeof *c->points);
    c->tensors = tool_realloc(NULL, c->in.model.n_tensors * sizeof *c->tensors);
    memcpy(c->tensors, c->in.model.tensors, c->in.model.n_tensors * sizeof *c->tensors);
    c->in.model.tensors = c->tensors;
}

/* Changes the measured times of collectives on a link. Divides the time for which the link is busy by `wire`, and all
 * other time by `latency`. If the busy time (curve `gap`) was not measured, all time counts as busy. */
static void change_tables(plan_changed *c, esp_plan_link *l, double wire, double latency) {
    for (int k = 0; k < ESP_PLAN_COLLS; k++) {
        esp_cost_curve *const time = &l->table[k], *const gap = &l->gap[k], *const core = &l->core[k];
        esp_cost_point *const to = c->points + c->n_points;
        for (uint32_t i = 0; i < time->n; i++) {
            const esp_cost_point p = time->points[i];
            const double busy = gap->n ? fmin(esp__curve_at(gap, p.size), p.ns) : p.ns,
                         least = core->n && c->in.system.cores_per_rank ? esp__curve_at(core, p.size) : 0;
            to[i] = (esp_cost_point){p.size, fmax(busy / wire + (p.ns - busy) / latency, fmin(least, p.ns))};
        }
        c->n_points += time->n;
        time->points = time->n ? to : NULL;
        change_curve(c, gap, wire);
    }
}

static esp_plan_link *change_slowest(esp_plan_system *s) {
    return s->n_outer && s->outer[0].size > 1 ? &s->outer[0].link : s->machines > 1 ? &s->inter : &s->intra;
}

static void change_link(plan_changed *c, esp_plan_link *l, double factor) {
    l->bytes_per_us *= factor;
    if (l == change_slowest(&c->in.system)) change_tables(c, &c->in.system.flat, factor, 1);
    change_tables(c, l, factor, 1);
}

static void change_latency(plan_changed *c, esp_plan_link *l, double factor) {
    l->alpha_ns /= factor;
    change_tables(c, l, 1, factor);
}

static void change_codec(plan_changed *c, esp_plan_codec *codec, double factor) {
    for (int d = 0; d < 2; d++) {
        change_curve(c, &codec->compress[d], factor);
        change_curve(c, &codec->decompress[d], factor);
        change_curve(c, &codec->decompress_more[d], factor);
        change_curve(c, &codec->vector_compress[d], factor);
        change_curve(c, &codec->vector_decompress[d], factor);
    }
}

static void change_apply(plan_changed *c, int what, double factor) {
    esp_plan_system *s = &c->in.system;
    switch (what) {
    case CHANGE_INTER: change_link(c, &s->inter, factor); break;
    case CHANGE_INTRA: change_link(c, &s->intra, factor); break;
    case CHANGE_OUTER: change_link(c, &s->outer[0].link, factor); break;
    case CHANGE_WAN: change_link(c, change_slowest(s), factor); break;
    case CHANGE_LATENCY:
        change_latency(c, &s->intra, factor);
        change_latency(c, &s->inter, factor);
        change_latency(c, &s->flat, factor);
        change_latency(c, &s->outer[0].link, factor);
        break;
    case CHANGE_HOST: s->host_bytes_per_us *= factor; break;
    case CHANGE_CODEC:
        for (uint32_t i = 0; i < c->in.n_codecs; i++) change_codec(c, &c->in.codecs[i], factor);
        break;
    case CHANGE_COMPUTE:
        for (uint32_t i = 0; i < c->in.model.n_tensors; i++) c->tensors[i].compute_ns /= factor;
        c->in.model.forward_ns /= factor;
        c->in.model.update_ns /= factor;
        break;
    default: break;
    }
}

/* Applies "machines=16" or "machines=2x". The result must be a whole number of at least 1. */
static bool change_number(plan_changed *c, int what, const char *value) {
    uint32_t *n = what == CHANGE_MACHINES ? &c->in.system.machines : &c->in.system.ranks_per_machine;
    double factor;
    long whole;
    if (tool_number(value, 1, 1 << 20, &whole)) {
        *n = (uint32_t)whole;
        return true;
    }
    if (!tool_factor(value, &factor) || factor * *n < 1 || factor * *n > 1 << 20 || floor(factor * *n) != factor * *n)
        return false;
    *n = (uint32_t)(factor * *n);
    return true;
}

/* Applies "cores=2". Fails if the system's costs do not state a number of cores. */
static bool change_cores(plan_changed *c, const char *value) {
    long whole;
    if (!c->in.system.cores_per_rank || !tool_number(value, 1, 3, &whole)) return false;
    c->in.system.cores_per_rank = (uint32_t)whole;
    return true;
}

/* Reads "500mbit", or of the two directions "100mbit/500mbit". Collectives send as much as they receive, so the slower
 * one counts. */
static bool change_bandwidth(const char *value, double *out) {
    char one[64];
    double other;
    const char *slash = strchr(value, '/');
    const char *second = slash && strncmp(slash, "/s", 2) == 0 ? strchr(slash + 1, '/') : slash; /* "12.5GB/s" */
    if (!second) return tool_quantity(value, tool_bandwidths, out);
    snprintf(one, sizeof one, "%.*s", (int)(second - value), value);
    if (!tool_quantity(one, tool_bandwidths, out) || !tool_quantity(second + 1, tool_bandwidths, &other)) return false;
    *out = fmin(*out, other);
    return true;
}

/* Applies "latency=80ms" to the slowest link. Fails if its system states no latency. */
static bool change_latency_time(plan_changed *c, const char *value) {
    esp_plan_link *l = change_slowest(&c->in.system);
    double ns;
    if (!tool_quantity(value, tool_times, &ns) || !(ns > 0) || !(l->alpha_ns > 0)) return false;
    const double factor = l->alpha_ns / ns;
    change_tables(c, &c->in.system.flat, 1, factor);
    change_latency(c, l, factor);
    return true;
}

static bool change_one(plan_changed *c, int what, const char *value) {
    esp_plan_system *s = &c->in.system;
    const double now = what == CHANGE_INTER   ? s->inter.bytes_per_us
                       : what == CHANGE_INTRA ? s->intra.bytes_per_us
                       : what == CHANGE_OUTER ? s->outer[0].link.bytes_per_us
                       : what == CHANGE_WAN   ? change_slowest(s)->bytes_per_us
                       : what == CHANGE_HOST  ? s->host_bytes_per_us
                                              : 0;
    double factor, bandwidth;
    if (what == CHANGE_MACHINES || what == CHANGE_RANKS) return change_number(c, what, value);
    if (what == CHANGE_CORES) return change_cores(c, value);
    if (what == CHANGE_OUTER && !s->n_outer) return false;
    if (!tool_factor(value, &factor)) {
        if (what == CHANGE_LATENCY) return change_latency_time(c, value);
        if (!(now > 0) || !change_bandwidth(value, &bandwidth)) return false;
        factor = bandwidth / now;
    }
    change_apply(c, what, factor);
    return true;
}

/* Copies `from` to `out`, with changes such as "inter=2x,machines=16". The caller calls change_free() later. */
ESP__FN void change_make(const plan_inputs *from, const char *text, plan_changed *out) {
    size_t changes = 1;
    memset(out, 0, sizeof *out);
    out->in = *from;
    for (const char *at = text; *at; at++) changes += *at == ',';
    change_room(out, changes);
    for (const char *at = text;;) {
        char one[80] = {0};
        const size_t n = strcspn(at, ","), name = strcspn(at, "=,");
        const char *word = one;
        snprintf(one, sizeof one, "%.*s", (int)(n < 64 ? n : 0), at);
        one[n < 64 ? name : 0] = 0;
        const int what = tool_listed(&word, change_names);
        if (what < 0 || !change_one(out, what, one + strlen(one) + 1))
            tool_usage(from->command,
                       "--what-if %.*s: expected NAME=CHANGE, such as inter=2x or machines=16.\n" CHANGE_HELP, (int)n,
                       at);
        if (!at[n]) break;
        at += n + 1;
    }
    if (out->in.after_change) out->in.after_change(&out->in.system);
}

ESP__FN void change_free(plan_changed *c) {
    free(c->points);
    free(c->tensors);
    memset(c, 0, sizeof *c);
}
