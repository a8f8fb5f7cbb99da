/* test_simulate.c compares the planner's simulator with the slow one in reference.h. It checks that a shorter op never
 * makes a step longer if the order is fixed, that ops on one link or core never overlap, and that no op is lost. Random
 * programs are short, and many of their ops end at the same time. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "tests/planner/reference.h"
#include "tests/planner/problems.h"

enum { PROGRAMS = 10000 };

static void check_timeline(const problem_program *g, const ref_program *r, uint64_t seed) {
    const esp__schedule *d = &g->schedule;
    esp_plan_event *events = calloc(d->n_sequence, sizeof *events);
    uint32_t *op = calloc(d->n_units + 1u, sizeof *op);
    esp__timeline(&g->problem, d, events);
    for (uint32_t i = 0; i < d->n_sequence; i++) {
        const esp_plan_event *e = &events[i];
        const ref_op *o =
            e->kind == ESP_PLAN_BACKWARD ? &r->ops[e->unit] : &r->ops[r->first[e->unit] + (int)op[e->unit]++];
        if (e->start_ns != o->start || e->end_ns != o->end || e->lanes != o->lanes)
            fail_msg("program %llu: entry %u runs %llu to %llu, the reference %llu to %llu", (unsigned long long)seed,
                     i, (unsigned long long)e->start_ns, (unsigned long long)e->end_ns, (unsigned long long)o->start,
                     (unsigned long long)o->end);
    }
    free(op);
    free(events);
}

static void expect_same(uint64_t got, uint64_t want, const char *what, uint64_t seed) {
    if (got != want)
        fail_msg("program %llu: %s takes %llu, by the reference %llu", (unsigned long long)seed, what,
                 (unsigned long long)got, (unsigned long long)want);
}

static void one_generate(uint64_t seed, double zeros) {
    problem_program g;
    program_random(seed, zeros, &g);
    ref_program *r = ref_open(&g.problem, &g.schedule);
    uint64_t want = ref_ready_order(r);
    expect_same(esp__generate(&g.problem, &g.schedule), want, "the generated order", seed);
    expect_same(g.schedule.makespan, want, "the schedule", seed);
    assert_int_equal(g.schedule.n_sequence, r->n);
    assert_int_equal(esp__sequence_length(&g.problem, &g.schedule), r->n);
    check_timeline(&g, r, seed);
    expect_same(esp__replay(&g.problem, &g.schedule), want, "its replay", seed);
    expect_same(ref_sequence(r, g.schedule.sequence, g.schedule.n_sequence), want, "the reference's replay", seed);
    ref_close(r);
    program_close(&g);
}

TEST(test_generate) {
    for (uint64_t seed = 0; seed < test_repeats(PROGRAMS); seed++) one_generate(seed, (double)(seed % 4) * 0.25);
}

static uint32_t random_sequence(rng *r, const problem_program *g, uint32_t *out) {
    const esp__schedule *d = &g->schedule;
    uint32_t tensor = 0, n = 0, op[PROGRAM_UNITS] = {0}, ready[PROGRAM_UNITS + 1];
    for (;;) {
        uint32_t m = 0;
        if (tensor < g->problem.n_tensors) ready[m++] = ESP__NEXT_BACKWARD;
        for (uint32_t u = 0; u < d->n_units; u++)
            if (d->units[u].first + d->units[u].n <= tensor && op[u] < d->paths[u]->n) ready[m++] = u;
        if (!m) return n;
        uint32_t pick = ready[rng_below(r, m)];
        out[n++] = pick;
        if (pick == ESP__NEXT_BACKWARD)
            tensor++;
        else
            op[pick]++;
    }
}

static uint32_t random_links(rng *r, const problem_program *g, uint32_t *links) {
    const esp__schedule *d = &g->schedule;
    uint32_t sequence[PROGRAM_TENSORS + PROGRAM_UNITS * PROGRAM_OPS], op[PROGRAM_UNITS] = {0}, n = 0;
    uint32_t length = random_sequence(r, g, sequence);
    for (uint32_t i = 0; i < length; i++) {
        uint32_t u = sequence[i];
        if (u != ESP__NEXT_BACKWARD && d->paths[u]->ops[op[u]++].lanes & REF_LINKS) links[n++] = u;
    }
    return n;
}

static const esp__plan_op *next_link(const problem_program *g, uint32_t u, uint32_t *at) {
    while (!(g->ops[u][*at].lanes & REF_LINKS)) ++*at;
    return &g->ops[u][(*at)++];
}
static int takes(const problem_program *g, uint32_t u, uint32_t *at, uint32_t lane) {
    return u != ESP__NEXT_BACKWARD && g->ops[u][at[u]++].lanes >> lane & 1u;
}

static void one_generate_with(uint64_t seed, int instant) {
    problem_program g;
    rng r = {seed + 99};
    uint32_t links[PROGRAM_UNITS * PROGRAM_OPS], n;
    program_random(seed, (double)(seed % 4) * 0.25, &g);
    for (uint32_t u = 0; u < g.schedule.n_units; u++)
        for (uint32_t k = 0; k < g.paths[u].n; k++)
            if (!instant && g.ops[u][k].lanes & REF_LINKS && !g.ops[u][k].time.link) {
                esp__op_time *time = &g.ops[u][k].time;
                time->link = 1;
                time->ns += !time->ns;
            }
    n = random_links(&r, &g, links);
    ref_program *ref = ref_open(&g.problem, &g.schedule);
    uint64_t got = esp__generate_with(&g.problem, &g.schedule, links, n);
    for (uint32_t lane = ESP__LANE_INTRA; lane <= ESP__LANE_INTER; lane++) {
        uint32_t in_links[PROGRAM_UNITS] = {0}, in_sequence[PROGRAM_UNITS] = {0}, i = 0, k = 0;
        for (;; i++, k++) {
            while (i < n && !(next_link(&g, links[i], &in_links[links[i]])->lanes >> lane & 1u)) i++;
            while (k < g.schedule.n_sequence && !takes(&g, g.schedule.sequence[k], in_sequence, lane)) k++;
            if (i == n || k == g.schedule.n_sequence) break;
            assert_int_equal(links[i], g.schedule.sequence[k]);
        }
        assert_true(i == n && k == g.schedule.n_sequence);
    }
    expect_same(got,
                instant ? ref_sequence(ref, g.schedule.sequence, g.schedule.n_sequence) : ref_link_order(ref, links, n),
                "the order with given links", seed);
    check_timeline(&g, ref, seed);
    expect_same(esp__replay(&g.problem, &g.schedule), got, "its replay", seed);
    ref_close(ref);
    program_close(&g);
}

TEST(test_generate_with) {
    for (uint64_t seed = 0; seed < test_repeats(PROGRAMS); seed++) one_generate_with(seed, seed % 8 == 7);
}

static void set_sequence(problem_program *g, rng *r) {
    esp__generate(&g->problem, &g->schedule);
    g->schedule.n_sequence = random_sequence(r, g, g->schedule.sequence);
}

TEST(test_replay) {
    for (uint64_t seed = 0; seed < test_repeats(PROGRAMS); seed++) {
        problem_program g;
        rng r = {seed + 5};
        program_random(seed, (double)(seed % 4) * 0.25, &g);
        set_sequence(&g, &r);
        ref_program *ref = ref_open(&g.problem, &g.schedule);
        uint64_t want = ref_sequence(ref, g.schedule.sequence, g.schedule.n_sequence);
        expect_same(esp__replay(&g.problem, &g.schedule), want, "a random sequence", seed);
        check_timeline(&g, ref, seed);
        ref_close(ref);
        program_close(&g);
    }
}
/* In a fixed order, shortening or removing an op never makes the step longer, and lengthening one never makes it
 * shorter. */
TEST(test_monotone) {
    for (uint64_t seed = 0; seed < test_repeats(PROGRAMS); seed++) {
        problem_program g;
        rng r = {seed + 17};
        program_random(seed, 0.1, &g);
        if (seed % 2)
            set_sequence(&g, &r);
        else
            esp__generate(&g.problem, &g.schedule);
        uint64_t before = esp__replay(&g.problem, &g.schedule);
        for (int trial = 0; trial < 8; trial++) {
            uint32_t u = rng_below(&r, g.schedule.n_units);
            uint64_t *ns = &g.compute[rng_below(&r, (uint32_t)g.problem.n_tensors)], old;
            if (rng_chance(&r, 0.8) && g.schedule.paths[u]->n) {
                esp__op_time *time = &g.ops[u][rng_below(&r, g.schedule.paths[u]->n)].time;
                uint64_t *const parts[] = {&time->ns, &time->core, &time->link};
                ns = parts[rng_below(&r, 3)];
            }
            old = *ns;
            *ns = old ? rng_below(&r, (uint32_t)old) : 0;
            assert_true(esp__replay(&g.problem, &g.schedule) <= before);
            *ns = old + 1 + rng_below(&r, 5);
            assert_true(esp__replay(&g.problem, &g.schedule) >= before);
            *ns = old;
        }
        program_close(&g);
    }
}

/* A longer option, with one op more at its end, never makes the step shorter. */
TEST(test_an_op_more) {
    for (uint64_t seed = 0; seed < test_repeats(PROGRAMS); seed++) {
        problem_program g;
        rng r = {seed + 3};
        program_random(seed, 0.1, &g);
        set_sequence(&g, &r);
        uint64_t before = esp__replay(&g.problem, &g.schedule);
        esp__schedule longer = g.schedule;
        uint32_t u = rng_below(&r, g.schedule.n_units), n = g.schedule.n_sequence, after = 0, at;
        uint32_t sequence[PROGRAM_TENSORS + PROGRAM_UNITS * PROGRAM_OPS + 1], tensors = g.units[u].first + g.units[u].n;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t s = g.schedule.sequence[i];
            if (s == u || (s == ESP__NEXT_BACKWARD && tensors && !--tensors)) after = i + 1;
        }
        at = after + rng_below(&r, n - after + 1);
        memcpy(sequence, g.schedule.sequence, at * sizeof *sequence);
        sequence[at] = u;
        memcpy(sequence + at + 1, g.schedule.sequence + at, (n - at) * sizeof *sequence);
        esp__plan_op *op = &g.ops[u][g.paths[u].n++];
        op->lanes = program_lanes(&r, &g.problem, 0),
        op->time = program_time(&r, &g.problem, op->lanes, program_ns(&r, g.problem.core_ops ? 0.0 : 0.1));
        longer.sequence = sequence, longer.n_sequence = n + 1;
        assert_true(esp__replay(&g.problem, &longer) >= before);
        program_close(&g);
    }
}

/* No step is shorter than the work of one link or core, or than a tensor's ops after its backward. */
TEST(test_at_least) {
    for (uint64_t seed = 0; seed < test_repeats(PROGRAMS); seed++) {
        problem_program g;
        program_random(seed, 0.1, &g);
        uint64_t makespan = esp__generate(&g.problem, &g.schedule), load[ESP__LANES] = {0};
        load[ESP__LANE_COMPUTE] = g.ready[g.problem.n_tensors - 1];
        for (uint32_t u = 0; u < g.schedule.n_units; u++) {
            const esp__path *path = g.schedule.paths[u];
            for (uint32_t l = 0; l < ESP__LANES; l++) load[l] += path->load[l];
            assert_true(makespan >= g.ready[g.units[u].first + g.units[u].n - 1] + path->total);
        }
        for (uint32_t l = 0; l < ESP__LANES; l++) assert_true(makespan >= load[l]);
        program_close(&g);
    }
}

static uint64_t kept(const esp_plan_event *e, uint32_t lane) {
    return !(e->lanes >> lane & 1u) ? 0 : ESP__CORE_LANES >> lane & 1 ? e->core_ns : e->link_ns;
}

static int overlap(const esp_plan_event *a, const esp_plan_event *b) {
    for (uint32_t l = 0; l < ESP__LANES; l++) {
        const uint64_t from = a->start_ns > b->start_ns ? a->start_ns : b->start_ns, x = a->start_ns + kept(a, l),
                       y = b->start_ns + kept(b, l);
        if ((a->lanes & b->lanes) >> l & 1u && kept(a, l) && kept(b, l) && (x < y ? x : y) > from) return 1;
    }
    return 0;
}

/* In the timeline, ops on one link or core never overlap, a tensor's ops are in order, and no op is missing. */
TEST(test_timeline) {
    esp_plan_event events[PROGRAM_TENSORS + PROGRAM_UNITS * PROGRAM_OPS];
    for (uint64_t seed = 0; seed < test_repeats(1000); seed++) {
        problem_program g;
        program_random(seed, 0.1, &g);
        uint64_t makespan = esp__generate(&g.problem, &g.schedule), end[PROGRAM_UNITS], backward = 0, last = 0;
        uint64_t load[ESP__LANES] = {0}, want[ESP__LANES] = {0};
        uint32_t n = g.schedule.n_sequence, next[PROGRAM_UNITS] = {0}, tensor = 0;
        esp__timeline(&g.problem, &g.schedule, events);
        for (uint32_t i = 0; i < n; i++) {
            const esp_plan_event *e = &events[i];
            assert_true(e->end_ns >= e->start_ns);
            if (e->end_ns > last) last = e->end_ns;
            for (uint32_t l = 0; l < ESP__LANES; l++) load[l] += kept(e, l);
            for (uint32_t k = 0; k < i; k++) assert_false(overlap(e, &events[k]));
            if (e->kind == ESP_PLAN_BACKWARD) {
                assert_int_equal(e->unit, tensor++);
                assert_true(e->start_ns >= backward);
                assert_int_equal(e->end_ns - e->start_ns, g.compute[e->unit]);
                backward = e->end_ns;
                for (uint32_t u = 0; u < g.schedule.n_units; u++)
                    if (g.units[u].first + g.units[u].n == tensor) end[u] = backward;
                continue;
            }
            const esp__plan_op *op = &g.ops[e->unit][next[e->unit]++];
            assert_true(g.units[e->unit].first + g.units[e->unit].n <= tensor);
            assert_true(e->start_ns >= end[e->unit]);
            end[e->unit] = e->end_ns;
            assert_int_equal(e->end_ns - e->start_ns, op->time.ns);
            assert_int_equal(e->core_ns, op->time.core);
            assert_int_equal(e->link_ns, op->time.link);
            assert_int_equal(e->lanes, op->lanes);
            assert_int_equal(e->step, op->step);
            assert_int_equal(e->kind, op->kind);
        }
        want[ESP__LANE_COMPUTE] = g.ready[g.problem.n_tensors - 1];
        for (uint32_t u = 0; u < g.schedule.n_units; u++) {
            assert_int_equal(next[u], g.schedule.paths[u]->n);
            for (uint32_t l = 0; l < ESP__LANES; l++) want[l] += g.schedule.paths[u]->load[l];
        }
        for (uint32_t l = 0; l < ESP__LANES; l++) assert_int_equal(load[l], want[l]);
        assert_int_equal(last, makespan);
        assert_int_equal(tensor, g.problem.n_tensors);
        program_close(&g);
    }
}

/* ---- the rules of the simulation, one by one, with times computed by hand ---- */
enum { C = 1u << ESP__LANE_COMPUTE, P = 1u << ESP__LANE_CPU, A = 1u << ESP__LANE_INTRA, E = 1u << ESP__LANE_INTER };

typedef struct hand_op {
    uint8_t lanes;
    uint64_t ns;
} hand_op;

static void hand(problem_program *g, uint32_t n, const uint64_t *compute, const hand_op (*ops)[3]) {
    memset(g, 0, sizeof *g);
    g->arena.on_failure = &g->on_failure;
    g->model.n_tensors = n, g->model.tensors = g->tensors;
    esp__problem *p = &g->problem;
    p->arena = &g->arena, p->model = &g->model, p->n_tensors = n, p->compute = g->compute, p->ready = g->ready;
    p->size[0] = p->size[1] = p->size[2] = 1;
    p->n_levels = 2, p->n_lanes = 4, p->core_ops = 1;
    p->op_templates = &g->op_template, p->n_op_templates = 1;
    for (uint32_t u = 0; u < n; u++) {
        g->tensors[u].elements = 1;
        g->compute[u] = compute[u];
        g->units[u] = (esp__extent){u, 1, 0, 1};
        g->paths[u].ops = g->ops[u];
        for (; g->paths[u].n < 3 && ops[u][g->paths[u].n].lanes; g->paths[u].n++) {
            g->ops[u][g->paths[u].n].lanes = ops[u][g->paths[u].n].lanes;
            const uint64_t ns = ops[u][g->paths[u].n].ns;
            g->ops[u][g->paths[u].n].time = (esp__op_time){ns, ns, ns};
            g->ops[u][g->paths[u].n].kind = ESP_PLAN_COMPRESS;
        }
    }
    esp__schedule_set_units(p, &g->schedule, g->units, n);
    for (uint32_t u = 0; u < n; u++) g->schedule.paths[u] = &g->paths[u];
}

/* Compression on the device that computes gradients goes before a backward op that is ready at the same time. Backward
 * of tensor 0 ends at 10, its compression at 14, backward of tensor 1 at 24, its compression at 28. The link sends
 * tensor 0 from 14 to 34 and tensor 1 until 35. */
TEST(test_comp_before_backward) {
    problem_program g;
    esp_plan_event e[6];
    const uint32_t order[] = {ESP__NEXT_BACKWARD, 0, ESP__NEXT_BACKWARD, 0, 1, 1};
    const uint64_t start[] = {0, 10, 14, 14, 24, 34};
    hand(&g, 2, (uint64_t[]){10, 10}, (const hand_op[][3]){{{C, 4}, {E, 20}}, {{C, 4}, {E, 1}}});
    assert_int_equal(esp__generate(&g.problem, &g.schedule), 35);
    esp__timeline(&g.problem, &g.schedule, e);
    for (uint32_t i = 0, k; i < 6; i++) {
        uint32_t unit = order[i] == ESP__NEXT_BACKWARD ? i / 2 : order[i];
        for (k = 0; k < 6; k++)
            if ((e[k].kind == ESP_PLAN_BACKWARD) == (order[i] == ESP__NEXT_BACKWARD) && e[k].unit == unit &&
                e[k].start_ns == start[i])
                break;
        assert_true(k < 6);
    }
    program_close(&g);
}

/* Tensor 1 needs both links, and waits until 11 for the one that tensor 0 uses. Tensor 2 needs only the other link, but
 * must not overtake tensor 1. */
TEST(test_no_back_fill) {
    problem_program g;
    hand(&g, 3, (uint64_t[]){1, 1, 1}, (const hand_op[][3]){{{E, 10}}, {{A | E, 1}}, {{A, 5}}});
    assert_int_equal(esp__generate(&g.problem, &g.schedule), 17);
    program_close(&g);
}

/* On shared cores, compression on the CPU stops backward. Tensor 0: backward until 5, compression until 9. Tensor 1:
 * backward until 14, compression until 18. */
TEST(test_shared_cores) {
    problem_program g;
    hand(&g, 2, (uint64_t[]){5, 5}, (const hand_op[][3]){{{C | P, 4}}, {{C | P, 4}}});
    assert_int_equal(esp__generate(&g.problem, &g.schedule), 18);
    program_close(&g);
}

/* A link runs ops in a given order, tensor 1 first: it is ready at 3 and runs from 3 to 5, tensor 0 is ready at 1 and
 * runs from 5 to 15. If the order followed the ready times, tensor 0 would run from 1 to 11 and tensor 1 until 13. */
TEST(test_links_wait) {
    problem_program g;
    hand(&g, 2, (uint64_t[]){1, 2}, (const hand_op[][3]){{{E, 10}}, {{E, 2}}});
    assert_int_equal(esp__generate(&g.problem, &g.schedule), 13);
    assert_int_equal(esp__generate_with(&g.problem, &g.schedule, (uint32_t[]){1, 0}, 2), 15);
    assert_int_equal(esp__replay(&g.problem, &g.schedule), 15);
    program_close(&g);
}

/* Without a fixed order, a shorter op can make the step longer. If tensor 1's first op takes 2 ns instead of 4, its
 * second op delays tensor 0. So plans store the order of ops. */
TEST(test_ready_order_is_not_monotone) {
    problem_program g;
    hand(&g, 2, (uint64_t[]){1, 1}, (const hand_op[][3]){{{P, 4}, {E, 10}, {C, 10}}, {{A, 2}, {E, 2}}});
    uint64_t fast = esp__generate(&g.problem, &g.schedule);
    assert_int_equal(fast, 26);
    g.ops[1][0].time = (esp__op_time){4, 4, 4};
    assert_int_equal(esp__generate(&g.problem, &g.schedule), 25);
    g.ops[1][0].time = (esp__op_time){2, 2, 2};
    assert_int_equal(esp__replay(&g.problem, &g.schedule), 25);
    program_close(&g);
}

/* A collective first frees its processor core, then its link. Its result is there only later. */
TEST(test_core_link_latency) {
    problem_program g;
    hand(&g, 2, (uint64_t[]){4, 4}, (const hand_op[][3]){{{C | E, 6}}, {{C | E, 6}}});
    for (int u = 0; u < 2; u++) g.ops[u][0].time = (esp__op_time){6, 1, 3};
    assert_int_equal(esp__generate(&g.problem, &g.schedule), 15);
    for (int u = 0; u < 2; u++) g.ops[u][0].time = (esp__op_time){6, 6, 6};
    assert_int_equal(esp__generate(&g.problem, &g.schedule), 20);
    program_close(&g);
}
