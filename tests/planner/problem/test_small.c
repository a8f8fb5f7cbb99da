/* test_small.c checks esp_plan_config.min_compress_elements: plans compress neither a tensor with fewer elements nor a
 * group that contains one. Lower bounds of the step time stay valid, and the published strategies ignore the limit. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "tests/planner/open_problem.h"

static uint64_t smallest_of(const opened_problem *g, const esp__extent *u) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = u->first; i < u->first + u->n; i++)
        if (g->in.tensors[i].elements < least) least = g->in.tensors[i].elements;
    return least;
}

static uint32_t compressed(const opened_problem *g, const esp__schedule *d, uint64_t least) {
    uint32_t n = 0;
    for (uint32_t u = 0; u < d->n_units; u++) {
        if (d->paths[u]->codec == ESP__NO_CODEC) continue;
        assert_true(smallest_of(g, &d->units[u]) >= least);
        n++;
    }
    return n;
}

/* Opens a random problem. Returns 0 if no strategy meets the problem's random constraints together with this limit. */
static int open_random(opened_problem *g, uint64_t seed, uint64_t least) {
    memset(g, 0, sizeof *g);
    problem_random(seed, 12, 0, &g->in);
    g->in.config.min_compress_elements = least;
    return open_problem(g, 0) == ESP_OK;
}

TEST(plans) {
    static const char *const searched[] = {"layerwise", "paper", "cpu-only", NULL};
    uint32_t n[4] = {0};
    for (uint64_t seed = 0; seed < test_repeats(40); seed++)
        for (int i = 0; i < 4; i++) {
            static opened_problem g;
            const uint64_t small = seed % 2 ? 4097 : 201;
            if (!open_random(&g, seed, small)) {
                close_problem(&g);
                continue;
            }
            esp__schedule d = {0};
            if (searched[i])
                d = make_schedule(&g, searched[i]);
            else
                esp__search_all(&g.p, &d);
            check_schedule(&g, &d);
            n[i] += compressed(&g, &d, small);
            if (i != 2) assert_true(esp__bound(&g.p) <= d.makespan);
            close_problem(&g);
        }
    for (int i = 0; i < 4; i++) assert_true(n[i] > test_repeats(40) / 8);
}

/* A group that contains a small tensor is not compressed, however large the group is. */
TEST(groups) {
    static opened_problem g;
    simple_problem(&g, 4, 4);
    for (int i = 0; i < 3; i++) add_tensor(&g, i == 1 ? 4096 : 1 << 20, 100);
    g.in.config.min_compress_elements = 4097;
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    const esp__extent all = {0, 3, 0, 4096 + (2 << 20)}, first = {0, 1, 0, 1 << 20};
    const esp__candidates *c = esp__candidates_get(&g.p, &all), *one = esp__candidates_get(&g.p, &first);
    uint32_t with_codec = 0;
    for (uint32_t k = 0; k < c->n; k++) assert_int_equal(c->paths[k].codec, ESP__NO_CODEC);
    for (uint32_t k = 0; k < one->n; k++) with_codec += one->paths[k].codec != ESP__NO_CODEC;
    assert_true(with_codec > 0);
    close_problem(&g);
}

/* Published strategies take the same time with and without the limit. */
TEST(published) {
    static const char *const names[] = {"ddp", "mergecomp", "hipress", "hitopkcomm", "byteps-compress"};
    for (uint64_t seed = 0; seed < test_repeats(40); seed++)
        for (int i = 0; i < 5; i++) {
            uint64_t time[2] = {0};
            static opened_problem g;
            for (int k = 0; k < 2; k++) {
                if (open_random(&g, seed, k ? 4097 : 0)) time[k] = make_schedule(&g, names[i]).makespan;
                close_problem(&g);
            }
            assert_int_equal(time[0], time[1]);
        }
}

/* Small tensors may be compressed if the user requests it, for one tensor (`keep`) or for all (`only`). */
TEST(wishes) {
    static const char *const only[] = {"comp@gpu > inter.allgather"}, *const keep[] = {"t1=dgc:ratio=0.01"};
    static opened_problem g;
    for (int i = 0; i < 2; i++) {
        simple_problem(&g, 4, 4);
        add_tensor(&g, 1 << 20, 100);
        add_tensor(&g, 100, 100);
        g.in.config.min_compress_elements = 4097;
        if (i)
            g.in.config.only = only, g.in.config.n_only = 1;
        else
            g.in.config.keep = keep, g.in.config.n_keep = 1;
        assert_int_equal(open_problem(&g, 0), ESP_OK);
        const esp__extent u = {1, 1, 0, 100};
        const esp__candidates *c = esp__candidates_get(&g.p, &u);
        uint32_t with_codec = 0;
        for (uint32_t k = 0; k < c->n; k++) with_codec += c->paths[k].codec != ESP__NO_CODEC;
        assert_true(with_codec > 0);
        close_problem(&g);
    }
}
