/* problems.h makes random inputs for the planner's tests: models, codecs and systems as an application gives them, and
 * random programs for the simulator. Equal seeds give equal inputs. */
#ifndef TESTS_PLANNER_PROBLEMS_H
#define TESTS_PLANNER_PROBLEMS_H
#include "tests/lib/test.h"

/* ---- numbers ---- */
typedef struct rng {
    uint64_t s;
} rng;
static inline uint64_t rng_next(rng *r) { return test_random64(&r->s); }
static inline uint32_t rng_below(rng *r, uint32_t n) { return (uint32_t)(rng_next(r) % n); }
static inline double rng_unit(rng *r) { return (double)(rng_next(r) >> 11) / 9007199254740992.0; }
static inline int rng_chance(rng *r, double p) { return rng_unit(r) < p; }

static int problem_plain; /* nonzero: make no codecs that compress several times */

/* ---- random problems of the kind that users give to the planner ---- */
enum { PROBLEM_TENSORS = 64, PROBLEM_CODECS = 3 };
typedef struct problem_input {
    esp_plan_model model;
    esp_plan_tensor tensors[PROBLEM_TENSORS];
    char names[PROBLEM_TENSORS][16];
    esp_plan_codec codecs[PROBLEM_CODECS];
    uint32_t n_codecs;
    esp_cost_point points[PROBLEM_CODECS][6][3];
    esp_cost_point tables[3][ESP_PLAN_COLLS][3][3];
    esp_plan_system system;
    esp_plan_config config;
} problem_input;

/* Makes n tensors, which share a few small and large sizes as layers do. Some have no backward time. */
static inline void problem_model(rng *r, problem_input *in, uint32_t n) {
    uint64_t sizes[5];
    for (int i = 0; i < 5; i++) {
        uint64_t most = (uint64_t)1 << (4 + rng_below(r, 21));
        sizes[i] = 1 + (rng_next(r) >> 11) % most;
    }
    for (uint32_t t = 0; t < n; t++) {
        snprintf(in->names[t], sizeof in->names[t], "t%u", t);
        in->tensors[t].name = in->names[t];
        in->tensors[t].elements = sizes[rng_below(r, 5)];
        in->tensors[t].compute_ns = rng_chance(r, 0.1) ? 0.0 : 1000.0 * rng_below(r, 2000);
    }
    in->model.n_tensors = n;
    in->model.name = "random";
    in->model.tensors = in->tensors;
    in->model.forward_ns = 1000.0 * rng_below(r, 5000);
    in->model.update_ns = 1000.0 * rng_below(r, 100);
}

static inline esp_cost_curve problem_curve(rng *r, esp_cost_point *points) {
    double launch = 1e3 * (1 + rng_below(r, 400)), per_element = 0.05 + rng_unit(r);
    esp_cost_curve c = {points, 3, rng_below(r, 2)};
    points[0].size = 1024, points[1].size = 65536, points[2].size = 1048576;
    for (int i = 0; i < 3; i++) points[i].ns = launch + per_element * points[i].size;
    return c;
}

/* Makes codec c: kind 0 keeps 1% of the elements, kind 1 their signs, kind 2 halves the bytes and its payloads can be
 * summed without decoding. */
static inline void problem_codec(rng *r, problem_input *in, uint32_t c, uint32_t kind) {
    static const char *const specs[] = {"dgc:ratio=0.01", "efsignsgd", "fp16"};
    static const double header[] = {32, 36, 32}, unit[] = {8, 1, 2}, units[] = {0.01, 0.125, 1},
                        error[] = {0.5, 0.3, 1e-7};
    esp_plan_codec *k = &in->codecs[c];
    memset(k, 0, sizeof *k);
    k->spec = specs[kind];
    k->caps = kind == 2 ? ESP_CODEC_REDUCIBLE : 0;
    k->header_bytes = header[kind], k->unit_bytes = unit[kind], k->units = units[kind], k->error = error[kind];
    k->takes_list = rng_below(r, 2);
    for (int d = 0; d < 2; d++) {
        if (!(in->system.devices >> d & 1u)) continue;
        k->compress[d] = problem_curve(r, in->points[c][d]);
        k->decompress[d] = problem_curve(r, in->points[c][2 + d]);
        if (r->s >> 7 & 1u) continue;
        memcpy(in->points[c][4 + d], in->points[c][2 + d], sizeof in->points[c][2 + d]);
        for (int i = 0; i < 3; i++) in->points[c][4 + d][i].ns *= 0.4;
        k->decompress_more[d] = (esp_cost_curve){in->points[c][4 + d], 3, k->decompress[d].log_size};
    }
}

/* ---- codecs that compress several times in a step, or need matrices ---- */
static inline uint64_t problem_body(esp_bound *out, uint64_t body) {
    return out->payload_bytes = 64 + (body + 31) / 32 * 32;
}

/* Sizes for a codec that sends a matrix as two factors, one after the other, and a vector uncompressed. */
static inline esp_status problem_thin(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                      esp_bound *out) {
    uint64_t rank = *(const uint64_t *)self;
    if (like->rows && like->cols > rank) {
        if (like->rows < rank) rank = like->rows;
        problem_body(out, 4 * rank * (round ? like->cols : like->rows));
        out->state_bytes = 4 * rank * like->cols;
    } else {
        problem_body(out, 4 * like->count);
        if (!round) out->payload_bytes = 0;
    }
    return ESP_OK;
}

/* Sizes for a codec that compresses three times in a step: it sends one float, then one bit per element, then 1 to 4
 * bytes per element. */
static inline esp_status problem_range(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                       esp_bound *out) {
    problem_body(out, round == 0   ? 4
                      : round == 1 ? like->count / 8 + 1
                                   : like->count * (n_reduced < 2   ? 1
                                                    : n_reduced < 5 ? 2
                                                                    : 4));
    return ESP_OK;
}

/* This codec accepts only matrices. */
static inline esp_status problem_matrix(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                        esp_bound *out) {
    if (!like->rows) return ESP_E_UNSUPPORTED;
    problem_body(out, 4 * (like->rows + like->cols));
    return ESP_OK;
}

/* Replaces the last codec by one whose payload size depends on more than the number of elements, and turns most tensors
 * into matrices. */
static inline void problem_rounds(uint64_t seed, problem_input *in) {
    static uint64_t rank[] = {1, 3};
    rng r = {seed * 40503u + 11};
    esp_plan_codec *k = &in->codecs[in->n_codecs - 1];
    uint32_t kind = rng_below(&r, 3);
    for (uint32_t t = 0; t < in->model.n_tensors; t++) {
        uint64_t e = in->tensors[t].elements, cols = 1 + e % 61;
        if (e % 4 == 0 || cols > e) continue;
        in->tensors[t].cols = cols, in->tensors[t].rows = e / cols;
        in->tensors[t].elements = e / cols * cols;
    }
    k->self = &rank[seed % 2];
    k->bound = kind == 0 ? problem_thin : kind == 1 ? problem_range : problem_matrix;
    k->spec = kind == 0 ? "thin" : kind == 1 ? "range" : "matrix";
    k->n_rounds = kind == 0 ? 2 : kind == 1 ? 3 : 1;
    k->caps = kind == 1 ? ESP_CODEC_REDUCIBLE : ESP_CODEC_REDUCIBLE | ESP_CODEC_NEEDS_MATRIX | ESP_CODEC_HAS_STATE;
    k->round_flags = kind == 0 && rng_chance(&r, 0.5) ? ESP_ROUND_ALLREDUCE : 0;
    for (int d = 0; d < 2 && kind == 0; d++)
        if (k->compress[d].n) k->vector_compress[d] = k->decompress[d], k->vector_decompress[d] = k->decompress[d];
}

/* Adds measured times of collectives. They also occupy a core, and some leave their link before they end. */
static inline void problem_tables(rng *r, problem_input *in) {
    esp_plan_link *const links[] = {&in->system.intra, &in->system.inter, &in->system.flat};
    for (int l = 0; l < 3; l++)
        for (uint32_t c = ESP_COLL_ALLREDUCE; c <= ESP_COLL_REDUCE; c++) {
            esp_cost_point(*points)[3] = in->tables[l][c];
            links[l]->table[c] = problem_curve(r, points[0]);
            links[l]->core[c] = (esp_cost_curve){points[1], 3, 0};
            if (rng_chance(r, 0.5)) links[l]->gap[c] = (esp_cost_curve){points[2], 3, 0};
            for (int k = 0; k < 3; k++) {
                points[1][k] = points[2][k] = points[0][k];
                points[1][k].ns *= 0.6 * rng_unit(r), points[2][k].ns *= rng_unit(r);
            }
        }
}

static inline void problem_system(rng *r, problem_input *in, uint32_t devices) {
    esp_plan_system *s = &in->system;
    memset(s, 0, sizeof *s);
    s->name = "random";
    s->machines = 1 + rng_below(r, 8);
    s->ranks_per_machine = 1 + rng_below(r, 8);
    if (s->machines * s->ranks_per_machine == 1) s->machines = 2;
    s->devices = devices ? devices : 1 + rng_below(r, 3);
    s->intra.alpha_ns = 1e3 * rng_below(r, 200);
    s->inter.alpha_ns = 1e3 * rng_below(r, 200);
    s->intra.alpha_is = rng_below(r, 2), s->inter.alpha_is = rng_below(r, 2);
    s->inter.bytes_per_us = 100 + rng_below(r, 20000);
    s->intra.bytes_per_us = s->inter.bytes_per_us * (1 + rng_below(r, 8));
    if (rng_chance(r, 0.5)) s->host_bytes_per_us = 12000;
    if (rng_chance(r, 0.5)) s->pack_ns = 5e3, s->pack_bytes_per_us = 100000;
    if (!(s->devices >> ESP_ON_GPU & 1u)) s->cores_per_rank = rng_below(r, 4);
    if (s->cores_per_rank && rng_chance(r, 0.7)) problem_tables(r, in);
}

/* Makes a random problem of 1 to max_tensors tensors, 1 to 3 codecs and any system. `devices` is a mask, or 0 for
 * any. */
static inline void problem_random(uint64_t seed, uint32_t max_tensors, uint32_t devices, problem_input *in) {
    rng r = {seed * 2654435761u + 1};
    uint32_t first = rng_below(&r, 3);
    memset(in, 0, sizeof *in);
    problem_system(&r, in, devices);
    in->n_codecs = 1 + (rng_chance(&r, 0.3) ? rng_below(&r, PROBLEM_CODECS) : 0);
    for (uint32_t c = 0; c < in->n_codecs; c++) problem_codec(&r, in, c, (first + c) % 3);
    problem_model(&r, in, 1 + rng_below(&r, max_tensors));
    if (seed % 5 == 2 && !problem_plain) problem_rounds(seed, in);
}

/* Splits some of n tensors into chunks and merges others with their neighbours. Returns the number of chunks, groups
 * and whole tensors; `units` needs room for 4 n. */
static inline uint32_t problem_units(rng *r, const esp_plan_tensor *tensors, uint32_t n, esp__extent *units) {
    uint32_t n_units = 0;
    for (uint32_t t = 0; t < n;) {
        uint32_t kind = rng_below(r, 4), many = 2 + rng_below(r, 3);
        esp__extent whole = {t, 1, 0, tensors[t].elements};
        if (kind == 0 && t + many <= n) {
            whole.n = many;
            for (uint32_t k = 1; k < many; k++) whole.elements += tensors[t + k].elements;
            units[n_units++] = whole;
        } else if (kind == 1 && whole.elements >= many) {
            uint64_t chunk = (whole.elements + many - 1) / many, total = whole.elements;
            for (uint64_t at = 0; at < total; at += chunk) {
                whole.begin = at;
                whole.elements = total - at < chunk ? total - at : chunk;
                units[n_units++] = whole;
            }
        } else {
            units[n_units++] = whole;
        }
        t += whole.n;
    }
    return n_units;
}

/* ---- programs of made-up ops ---- */
enum { PROGRAM_TENSORS = 8, PROGRAM_UNITS = 4 * PROGRAM_TENSORS, PROGRAM_OPS = 6 };
/* Input for the simulator: random ops on random links and cores. Must not be copied: it has pointers into itself. */
typedef struct problem_program {
    jmp_buf on_failure;
    esp__arena arena;
    esp_plan_model model;
    esp_plan_tensor tensors[PROGRAM_TENSORS];
    uint64_t compute[PROGRAM_TENSORS], ready[PROGRAM_TENSORS];
    esp__op_template op_template;
    esp__problem problem;
    esp__extent units[PROGRAM_UNITS];
    const esp__path *path_of[PROGRAM_UNITS];
    esp__path paths[PROGRAM_UNITS];
    esp__plan_op ops[PROGRAM_UNITS][PROGRAM_OPS + 1];
    esp__schedule schedule;
} problem_program;

/* Returns a short random time, so that many ops end at the same time. A share `zeros` of the times is 0. */
static inline uint64_t program_ns(rng *r, double zeros) { return rng_chance(r, zeros) ? 0 : 1 + rng_below(r, 7); }

static inline esp__op_time program_time(rng *r, const esp__problem *p, uint8_t lanes, uint64_t ns) {
    const uint32_t least = p->core_ops != 0;
    esp__op_time time = {ns, lanes & ESP__CORE_LANES ? ns : 0, lanes & ESP__LINK_LANES ? ns : 0};
    if (rng_chance(r, 0.4) && time.core) time.core = least + rng_below(r, (uint32_t)time.core + 1 - least);
    if (rng_chance(r, 0.4) && time.link) time.link = least + rng_below(r, (uint32_t)time.link + 1 - least);
    return time;
}

static inline void program_add(esp__path *path, const esp__plan_op *op) {
    path->total += op->time.ns;
    for (uint32_t l = 0; l < ESP__LANES; l++) path->load[l] += op->lanes >> l & 1u ? esp__kept(&op->time, l) : 0;
}

static inline uint8_t program_lanes(rng *r, const esp__problem *p, int shared_cores) {
    static const uint8_t core[] = {0, 0, 1u << ESP__LANE_COMPUTE, 1u << ESP__LANE_CPU, 1u << ESP__LANE_PROGRESS};
    const uint32_t n = p->core_ops ? 5 : 1;
    static const uint8_t one[] = {1u << ESP__LANE_COMPUTE, 1u << ESP__LANE_CPU, 1u << ESP__LANE_INTRA,
                                  1u << ESP__LANE_INTER};
    if (rng_chance(r, 0.15)) return one[2] | one[3] | core[rng_below(r, n)];
    uint8_t lanes = one[rng_below(r, 4)];
    if (lanes & ESP__LINK_LANES) return lanes | core[rng_below(r, n)];
    return shared_cores && lanes == one[1] ? (uint8_t)(one[0] | one[1]) : lanes;
}

static inline void program_close(problem_program *g) { esp__arena_free(&g->arena); }

static inline void program_random(uint64_t seed, double zeros, problem_program *g) {
    rng r = {seed * 2654435761u + 7};
    int shared_cores = rng_chance(&r, 0.3), cores = rng_chance(&r, 0.5);
    if (cores) zeros = 0.0; /* ops of 0 ns have no defined order if they share cores */
    uint32_t n = 1 + rng_below(&r, PROGRAM_TENSORS);
    memset(g, 0, sizeof *g);
    g->arena.on_failure = &g->on_failure;
    for (uint32_t t = 0; t < n; t++) {
        g->tensors[t].elements = 1 + rng_below(&r, 100);
        g->compute[t] = program_ns(&r, zeros);
        g->compute[t] *= 1 + rng_below(&r, 3);
        g->ready[t] = g->compute[t] + (t ? g->ready[t - 1] : 0);
    }
    g->model.n_tensors = n, g->model.tensors = g->tensors;
    g->op_template.kind = ESP_PLAN_PACK;
    esp__problem *p = &g->problem;
    p->arena = &g->arena, p->model = &g->model, p->n_tensors = n, p->compute = g->compute, p->ready = g->ready;
    p->size[0] = p->size[1] = p->size[2] = 1;
    p->n_levels = 2, p->n_lanes = ESP__LANES, p->core_ops = cores;
    p->op_templates = &g->op_template, p->n_op_templates = 1;
    p->system.machines = p->system.ranks_per_machine = 1;
    uint32_t n_units = problem_units(&r, g->tensors, n, g->units);
    for (uint32_t u = 0; u < n_units; u++) {
        esp__path *path = &g->paths[u];
        path->ops = g->ops[u];
        path->codec = ESP__NO_CODEC;
        path->n = rng_chance(&r, 0.1) ? 0 : 1 + rng_below(&r, PROGRAM_OPS);
        for (uint32_t k = 0; k < path->n; k++) {
            esp__plan_op *op = &g->ops[u][k];
            op->lanes = program_lanes(&r, p, shared_cores);
            op->time = program_time(&r, p, op->lanes, program_ns(&r, zeros));
            op->kind = ESP_PLAN_COMPRESS, op->step = (uint8_t)k;
            program_add(path, op);
        }
        g->path_of[u] = path;
    }
    esp__schedule_set_units(p, &g->schedule, g->units, n_units);
    memcpy((void *)g->schedule.paths, (const void *)g->path_of, n_units * sizeof *g->path_of);
}
#endif
