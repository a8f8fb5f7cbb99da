/* open_problem.h opens and closes a planner problem for tests of strategies and algorithms. check_schedule() checks
 * that a strategy covers each tensor once, has an option for each tensor or group, and takes the time that it
 * states. */
#ifndef TESTS_PLANNER_OPEN_PROBLEM_H
#define TESTS_PLANNER_OPEN_PROBLEM_H
#include "problems.h"

typedef struct opened_problem {
    problem_input in; /* fill this before open_problem, e.g. by problem_random */
    jmp_buf on_failure;
    esp__arena arena;
    esp__problem p;
} opened_problem;

/* Makes a system and a codec with simple times: links of 1000 bytes/us, latency 10 us within and 100 us between
 * machines; the codec takes 20 us (GPU) or 200 us (CPU) for every size up to 2^40 elements and keeps 1% of them. */
static inline void simple_problem(opened_problem *g, uint32_t machines, uint32_t ranks) {
    static const esp_cost_point gpu[] = {{1099511627776.0, 20e3}}, cpu[] = {{1099511627776.0, 200e3}};
    esp_plan_system *s = &g->in.system;
    esp_plan_codec *c = &g->in.codecs[0];
    memset(g, 0, sizeof *g);
    s->name = "simple";
    s->machines = machines;
    s->ranks_per_machine = ranks;
    s->devices = 3;
    s->intra.alpha_ns = 10e3;
    s->inter.alpha_ns = 100e3;
    s->intra.bytes_per_us = s->inter.bytes_per_us = 1000;
    c->spec = "dgc:ratio=0.01";
    c->unit_bytes = 8;
    c->units = 0.01;
    for (int d = 0; d < 2; d++) {
        esp_cost_curve curve = {d ? gpu : cpu, 1, 0};
        c->compress[d] = c->decompress[d] = curve;
    }
    g->in.n_codecs = 1;
    g->in.model.name = "simple";
    g->in.model.tensors = g->in.tensors;
}

static inline void add_tensor(opened_problem *g, uint64_t elements, double compute_us) {
    uint32_t t = g->in.model.n_tensors++;
    snprintf(g->in.names[t], sizeof g->in.names[t], "t%u", t);
    g->in.tensors[t].name = g->in.names[t];
    g->in.tensors[t].elements = elements;
    g->in.tensors[t].compute_ns = 1000.0 * compute_us;
}

/* Aborts if memory runs out. */
static inline esp_status open_problem(opened_problem *g, int free_compression) {
    g->arena.on_failure = &g->on_failure;
    if (setjmp(g->on_failure)) abort();
    return esp__problem_open(&g->p, &g->arena, &g->in.model, g->in.codecs, g->in.n_codecs, &g->in.system, &g->in.config,
                             free_compression);
}

static inline void close_problem(opened_problem *g) { esp__arena_free(&g->arena); }

static inline esp__schedule make_schedule(opened_problem *g, const char *scheme) {
    esp__schedule d;
    const esp__scheme *s = esp__scheme_find(scheme);
    memset(&d, 0, sizeof d);
    assert_non_null(s);
    s->make(&g->p, &d);
    return d;
}

static inline const char *option_text(const esp__schedule *d, uint32_t unit) {
    static char text[ESP__TEXT_MAX];
    esp__option_print(d->paths[unit]->option, text, sizeof text);
    return text;
}

static inline uint64_t sum_of_elements(const opened_problem *g, uint32_t first, uint32_t n) {
    uint64_t sum = 0;
    for (uint32_t i = first; i < first + n; i++) sum += g->in.model.tensors[i].elements;
    return sum;
}

static inline void check_schedule(const opened_problem *g, const esp__schedule *d) {
    uint32_t tensor = 0;
    uint64_t begin = 0;
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__extent *x = &d->units[u];
        assert_non_null(d->paths[u]);
        assert_int_equal(x->first, tensor);
        if (x->n > 1) {
            assert_int_equal(begin, 0);
            assert_int_equal(x->elements, sum_of_elements(g, x->first, x->n));
            for (uint32_t i = 1; i < x->n; i++) assert_int_equal(g->p.keep[x->first + i], g->p.keep[x->first]);
            tensor += x->n;
            continue;
        }
        assert_int_equal(x->n, 1);
        assert_int_equal(x->begin, begin);
        begin += x->elements;
        if (begin < g->in.model.tensors[tensor].elements) continue;
        assert_int_equal(begin, g->in.model.tensors[tensor].elements);
        begin = 0;
        tensor++;
    }
    assert_int_equal(tensor, g->in.model.n_tensors);
    assert_int_equal(d->n_sequence, esp__sequence_length(&g->p, d));
    assert_int_equal(esp__replay(&g->p, d), d->makespan);
}

static inline void expect_same_schedule(const esp__schedule *a, const esp__schedule *b) {
    assert_int_equal(a->n_units, b->n_units);
    assert_memory_equal(a->units, b->units, a->n_units * sizeof *a->units);
    assert_int_equal(a->n_sequence, b->n_sequence);
    assert_memory_equal(a->sequence, b->sequence, a->n_sequence * sizeof *a->sequence);
    for (uint32_t u = 0; u < a->n_units; u++) {
        assert_int_equal(a->paths[u]->codec, b->paths[u]->codec);
        assert_int_equal(a->paths[u]->option->n, b->paths[u]->option->n);
        assert_memory_equal(a->paths[u]->option->steps, b->paths[u]->option->steps,
                            a->paths[u]->option->n * sizeof(esp__step));
    }
}
#endif
