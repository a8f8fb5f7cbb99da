/* test_plan.c checks esp_plan_make and esp_plan_simulate as an application calls them: a plan's text gives the same
 * plan again, and no plan is slower than a published strategy or faster than the lower bound. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "tests/planner/search/paper.h"
#include "plans.h"
#include "planner/files/files.h"

static double iteration(const esp_plan *plan) { return report_of(plan).iteration_ns; }

/* ---- the text ---- */
static char *bare(const char *text) {
    char *out = calloc(1, strlen(text) + 1), *at = out;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        size_t n = (size_t)(strchr(line, '\n') + 1 - line);
        if (*line != '#') memcpy(at, line, n), at += n;
    }
    return out;
}

static void expect_same_plan(const esp_plan *a, const esp_plan *b) {
    char *x = bare(esp_plan_text(a)), *y = bare(esp_plan_text(b));
    assert_string_equal(x, y);
    free(x);
    free(y);
    assert_true(iteration(a) == iteration(b));
    uint32_t n, m;
    const esp_plan_event *e = esp_plan_events(a, &n), *f = esp_plan_events(b, &m);
    assert_int_equal(n, m);
    for (uint32_t i = 0; i < n; i++) assert_true(e[i].start_ns == f[i].start_ns && e[i].end_ns == f[i].end_ns);
    const esp_plan_unit *u = esp_plan_units(a, &n), *v = esp_plan_units(b, &m);
    assert_int_equal(n, m);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(u[i].first == v[i].first && u[i].n_tensors == v[i].n_tensors);
        assert_true(u[i].begin == v[i].begin && u[i].elements == v[i].elements);
        assert_string_equal(u[i].codec, v[i].codec);
        assert_string_equal(u[i].option, v[i].option);
    }
}

/* esp_plan_simulate predicts for a plan's text the time that the plan states, and writes the same text again. */
TEST(test_round_trip) {
    static problem_input in;
    for (uint64_t seed = 0; seed < test_repeats(60); seed++) {
        problem_random(seed, 10, 0, &in);
        esp_plan *plan = make(&in, NULL), *again = simulate(&in, esp_plan_text(plan));
        expect_same_plan(plan, again);
        esp_plan_free(again);
        esp_plan_free(plan);
    }
}

static uint32_t text_units(const problem_input *in, const esp__extent *units, uint32_t n, char *text, size_t room) {
    size_t at = (size_t)snprintf(text, room, "espresso-strategy 1\n");
    uint32_t tensor = 0;
    for (uint32_t u = 0; u < n; u++) {
        const esp__extent *x = &units[u];
        const char *head = "tensor";
        if (x->n > 1) {
            for (uint32_t i = 0; i < x->n; i++)
                at += (size_t)snprintf(text + at, room - at, "tensor %s %llu group\n", in->names[x->first + i],
                                       (unsigned long long)in->tensors[x->first + i].elements);
            head = "group";
        } else if (x->elements < in->tensors[x->first].elements) {
            uint32_t chunks = 0;
            while (u + chunks < n && units[u + chunks].first == x->first) chunks++;
            if (!x->begin)
                at += (size_t)snprintf(text + at, room - at, "tensor %s %llu split %u\n", in->names[x->first],
                                       (unsigned long long)in->tensors[x->first].elements, chunks);
            head = "chunk";
        }
        tensor = x->first + x->n;
        at += (size_t)snprintf(text + at, room - at, "%s", head);
        if (*head == 't') at += (size_t)snprintf(text + at, room - at, " %s", in->names[x->first]);
        at += (size_t)snprintf(text + at, room - at, " %llu ", (unsigned long long)x->elements);
        at += (size_t)snprintf(
            text + at, room - at, u % 3 ? "%s comp@%s > flat.allgather > decomp@%s\n" : "none flat.allreduce\n",
            in->codecs[0].spec, in->system.devices & 1 ? "cpu" : "gpu", in->system.devices & 1 ? "cpu" : "gpu");
    }
    assert_true(at < room);
    return tensor;
}

/* A plan made from a text without an order of collectives has the text's chunks and groups. The plan's own text gives
 * the same plan. */
TEST(test_units) {
    static problem_input in;
    static char text[65536];
    problem_plain = 1;
    for (uint64_t seed = 0; seed < test_repeats(100); seed++) {
        rng r = {seed};
        esp__extent units[4 * PROBLEM_TENSORS];
        uint32_t n, m;
        problem_random(seed, 30, 0, &in);
        n = problem_units(&r, in.tensors, in.model.n_tensors, units);
        assert_int_equal(text_units(&in, units, n, text, sizeof text), in.model.n_tensors);
        esp_plan *plan = simulate(&in, text);
        const esp_plan_unit *u = esp_plan_units(plan, &m);
        assert_int_equal(m, n);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(u[i].first == units[i].first && u[i].n_tensors == units[i].n);
            assert_true(u[i].begin == units[i].begin && u[i].elements == units[i].elements);
        }
        esp_plan *again = simulate(&in, esp_plan_text(plan));
        expect_same_plan(plan, again);
        esp_plan_free(again);
        esp_plan_free(plan);
    }
    problem_plain = 0;
}

TEST(test_same_seed) {
    static problem_input in;
    for (uint64_t seed = 0; seed < test_repeats(20); seed++) {
        problem_random(seed, 12, 0, &in);
        esp_plan_config config = {.seed = seed};
        esp_plan *a = make(&in, &config), *b = make(&in, &config);
        assert_string_equal(esp_plan_text(a), esp_plan_text(b));
        esp_plan_free(a);
        esp_plan_free(b);
    }
}

/* ---- the report ---- */
enum { LINKS = 1u << ESP__LANE_INTRA | 1u << ESP__LANE_INTER };

/* Returns 1 if an op of kind `what` (0 backward, 1 collective, 2 compression) runs at time `t`. */
static int running(const esp_plan_event *e, uint32_t n, uint64_t t, int what) {
    for (uint32_t i = 0; i < n; i++) {
        int is = e[i].kind == ESP_PLAN_BACKWARD ? 0 : e[i].lanes & LINKS ? 1 : 2;
        if (is == what && e[i].start_ns <= t && t < e[i].end_ns) return 1;
    }
    return 0;
}

static uint64_t next_moment(const esp_plan_event *e, uint32_t n, uint64_t t) {
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (e[i].start_ns > t && e[i].start_ns < next) next = e[i].start_ns;
        if (e[i].end_ns > t && e[i].end_ns < next) next = e[i].end_ns;
    }
    return next;
}

static void check_report(const problem_input *in, const esp_plan *plan) {
    uint32_t n, n_units, compressed = 0, backward = 0;
    uint64_t end = 0, communication = 0, compression = 0;
    const esp_plan_event *e = esp_plan_events(plan, &n);
    const esp_plan_unit *u = esp_plan_units(plan, &n_units);
    esp_plan_report r = report_of(plan);
    for (uint64_t t = 0, next; (next = next_moment(e, n, t)) != UINT64_MAX; t = next) {
        if (running(e, n, t, 0)) continue;
        if (running(e, n, t, 1))
            communication += next - t;
        else if (running(e, n, t, 2))
            compression += next - t;
    }
    assert_true(r.exposed_communication_ns == (double)communication);
    assert_true(r.exposed_compression_ns == (double)compression);
    for (uint32_t lane = 0; lane < ESP__LANES; lane++) {
        uint64_t busy = 0, first = UINT64_MAX, last = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (i) assert_true(e[i].start_ns >= e[i - 1].start_ns);
            if (!(e[i].lanes >> lane & 1u)) continue;
            const uint64_t kept = ESP__CORE_LANES >> lane & 1 ? e[i].core_ns : e[i].link_ns;
            assert_true(kept <= e[i].end_ns - e[i].start_ns);
            busy += kept;
            if (e[i].start_ns < first) first = e[i].start_ns;
            if (e[i].start_ns + kept > last) last = e[i].start_ns + kept;
        }
        assert_true(r.lane_ns[lane] == (double)busy);
        assert_true(r.bubble_ns[lane] == (last ? (double)(last - first - busy) : 0.0) || first == UINT64_MAX);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (e[i].end_ns > end) end = e[i].end_ns;
        backward += e[i].kind == ESP_PLAN_BACKWARD;
    }
    assert_int_equal(backward, in->model.n_tensors);
    assert_true(fabs(r.iteration_ns - (in->model.forward_ns + (double)end + in->model.update_ns)) < 0.5);
    for (uint32_t t = 0; t < in->model.n_tensors; t++) {
        int any = 0;
        for (uint32_t k = 0; k < n_units; k++)
            any |= t >= u[k].first && t < u[k].first + u[k].n_tensors && strcmp(u[k].codec, "none") != 0;
        compressed += (uint32_t)any;
    }
    assert_int_equal(r.compressed, compressed);
    assert_int_equal(r.n_tensors, in->model.n_tensors);
    assert_int_equal(r.n_units, n_units);
}

static void check_units(const problem_input *in, const esp_plan *plan) {
    uint32_t n, tensor = 0;
    uint64_t begin = 0;
    const esp_plan_unit *u = esp_plan_units(plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(u[i].first, tensor);
        assert_true(u[i].n_tensors >= 1 && u[i].elements >= 1);
        if (u[i].n_tensors == 1) {
            assert_int_equal(u[i].begin, begin);
            begin += u[i].elements;
            assert_true(begin <= in->tensors[tensor].elements);
            if (begin == in->tensors[tensor].elements) begin = 0, tensor++;
            continue;
        }
        uint64_t sum = 0;
        for (uint32_t k = 0; k < u[i].n_tensors; k++) sum += in->tensors[tensor++].elements;
        assert_int_equal(sum, u[i].elements);
        assert_int_equal(begin, 0);
    }
    assert_int_equal(tensor, in->model.n_tensors);
}

TEST(test_report) {
    static problem_input in;
    for (uint64_t seed = 100; seed < 100 + test_repeats(50); seed++) {
        problem_random(seed, 12, 0, &in);
        esp_plan *plan = make(&in, NULL);
        check_report(&in, plan);
        check_units(&in, plan);
        esp_plan_report r = report_of(plan);
        assert_true(r.iteration_ns <= r.fp32_ns);
        assert_true(r.bound_ns > 0 && r.free_compression_ns > 0);
        assert_true(r.bound_ns <= r.iteration_ns && r.bound_ns <= r.free_compression_ns + 0.5 + r.iteration_ns);
        esp_plan_free(plan);
    }
}

/* The plan takes no longer than that of strategy layerwise with any of the codecs, even if it may not use some
 * options. */
enum { ALL_OPTIONS = 0, ONE_MACHINE, ONE_RANK, NO_ALLTOALL, ONE_COMP, ALLOWED };
static uint32_t layerwise_allowed(problem_input *in, int allowed) {
    static const char *const levels[] = {"*intra.*", "*inter.*"}, *const alltoall[] = {"*alltoall*"};
    esp_plan_config layerwise = {.strategy = "layerwise"}, config = ESP_ZERO;
    esp_plan_report best;
    uint32_t c = 0;
    if (allowed == ONE_MACHINE) in->system.ranks_per_machine *= in->system.machines, in->system.machines = 1;
    if (allowed == ONE_RANK) in->system.machines *= in->system.ranks_per_machine, in->system.ranks_per_machine = 1;
    if (allowed == ONE_MACHINE || allowed == ONE_RANK) config.forbid = levels, config.n_forbid = 2;
    if (allowed == NO_ALLTOALL) config.forbid = alltoall, config.n_forbid = 1;
    if (allowed == ONE_COMP) config.max_comp = 1;
    esp_plan *plan = make(in, &config);
    best = report_of(plan);
    esp_plan_free(plan);
    for (; c < in->n_codecs; c++) {
        esp_plan *other;
        if (esp_plan_make(&in->model, &in->codecs[c], 1, &in->system, &layerwise, &other))
            fail_msg("%s", esp_last_error(NULL));
        if (best.iteration_ns > report_of(other).iteration_ns)
            fail_msg("case %d: the plan takes %.3f ms, layerwise with codec %u %.3f ms", allowed,
                     best.iteration_ns / 1e6, c, report_of(other).iteration_ns / 1e6);
        esp_plan_free(other);
    }
    return c;
}

TEST(test_layerwise) {
    static problem_input in;
    uint32_t compared = 0;
    for (uint64_t seed = 5012; seed < 5012 + test_repeats(20); seed++)
        for (int allowed = 0; allowed < ALLOWED; allowed++) {
            problem_random(seed, PROBLEM_TENSORS, (uint32_t)(seed & 1) ? 1u << ESP_ON_CPU : 0, &in);
            compared += layerwise_allowed(&in, allowed);
        }
    assert_true(compared > 0);
}

/* A caller that was compiled with an older, shorter report struct gets the members that it knows. */
TEST(test_short_report) {
    static problem_input in;
    problem_random(5, 4, 0, &in);
    esp_plan *plan = make(&in, NULL);
    esp_plan_report r;
    memset(&r, 0x5a, sizeof r);
    r.struct_size = offsetof(esp_plan_report, bound_ns);
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    assert_true(r.iteration_ns == iteration(plan));
    const unsigned char *rest = (const unsigned char *)&r.bound_ns;
    for (size_t i = 0; i < sizeof r - offsetof(esp_plan_report, bound_ns); i++) assert_int_equal(rest[i], 0x5a);
    esp_plan_free(plan);
}

/* ---- against the others ---- */
TEST(test_schemes) {
    static problem_input in;
    for (uint64_t seed = 200; seed < 200 + test_repeats(40); seed++) {
        problem_random(seed, 12, 0, &in);
        esp_plan_config thorough = {.flags = ESP_PLAN_THOROUGH};
        esp_plan *best = make(&in, &thorough);
        double bound = report_of(best).bound_ns;
        for (const esp__scheme *s = esp__schemes(); s->name; s++) {
            esp_plan_config config = {.strategy = s->name, .flags = ESP_PLAN_NO_BOUND};
            int others = !strcmp(s->name, "fp16");
            for (uint32_t c = 0; c < in.n_codecs; c++) others &= strcmp(in.codecs[c].spec, "fp16") != 0;
            if (others) continue;
            esp_plan *plan = make(&in, &config), *again;
            if (iteration(best) > iteration(plan))
                fail_msg("seed %llu: %s takes %.0f ns, espresso+ %.0f", (unsigned long long)seed, s->name,
                         iteration(plan), iteration(best));
            if (bound > iteration(plan))
                fail_msg("seed %llu: %s takes %.0f ns, the bound says %.0f", (unsigned long long)seed, s->name,
                         iteration(plan), bound);
            check_units(&in, plan);
            again = simulate(&in, esp_plan_text(plan));
            expect_same_plan(plan, again);
            esp_plan_free(again);
            esp_plan_free(plan);
        }
        esp_plan_free(best);
    }
}

/* No strategy takes less time than the lower bound, whatever chunks, groups, options and codecs it has. */
TEST(test_bounds) {
    static problem_input in;
    static char text[65536];
    problem_plain = 1;
    for (uint64_t seed = 300; seed < 300 + test_repeats(40); seed++) {
        esp__extent units[4 * PROBLEM_TENSORS];
        rng r = {seed};
        problem_random(seed, 8, 0, &in);
        esp_plan *plan = make(&in, NULL);
        esp_plan_report best = report_of(plan);
        for (int trial = 0; trial < 10; trial++) {
            uint32_t n = problem_units(&r, in.tensors, in.model.n_tensors, units);
            text_units(&in, units, n, text, sizeof text);
            esp_plan *other = simulate(&in, text);
            assert_true(iteration(other) >= best.bound_ns - 0.5);
            esp_plan_free(other);
        }
        esp_plan_config whole = {.flags = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT};
        esp_plan *as_given = make(&in, &whole);
        esp_plan_report given = report_of(as_given);
        assert_int_equal(given.n_units, in.model.n_tensors);
        assert_true(given.bound_ns == best.bound_ns && given.bound_ns <= given.iteration_ns + 0.5);
        esp_plan_free(as_given);
        esp_plan_free(plan);
    }
    problem_plain = 0;
}

TEST(test_flags) {
    static problem_input in;
    for (uint64_t seed = 400; seed < 400 + test_repeats(20); seed++) {
        problem_random(seed, 12, 0, &in);
        esp_plan_config config = {.flags = ESP_PLAN_NO_COMP | ESP_PLAN_NO_BOUND};
        esp_plan *raw = make(&in, &config);
        esp_plan_report r = report_of(raw);
        assert_int_equal(r.compressed, 0);
        assert_true(r.bound_ns == 0 && r.free_compression_ns == 0);
        config.flags = ESP_PLAN_THOROUGH;
        esp_plan *any = make(&in, &config);
        r = report_of(any);
        if (r.memory_bytes > 1000) {
            config.max_memory_bytes = r.memory_bytes / 2;
            esp_plan *small = NULL;
            if (!esp_plan_make(&in.model, in.codecs, in.n_codecs, &in.system, &config, &small)) {
                assert_true(report_of(small).memory_bytes <= config.max_memory_bytes);
                esp_plan_free(small);
            }
        }
        if (r.iteration_ns > 1.001 * iteration(raw))
            fail_msg("seed %llu: %.0f ns, without compression %.0f", (unsigned long long)seed, r.iteration_ns,
                     iteration(raw));
        esp_plan_free(any);
        esp_plan_free(raw);
    }
}

/* ---- the project's models ---- */
TEST(test_models) {
    static const char *const names[] = {"lstm", "vgg16", "ugatit", "bert-base", "resnet101", "gpt2"};
    static const char *const folders[] = {"planner/models", "tests/planner/files/published"};
    uint32_t seen = 0;
    for (size_t f = 0; f < 2; f++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char path[256];
            static paper_input paper;
            esp__model_file file;
            snprintf(path, sizeof path, "%s/%s.json", folders[f], names[i]);
            if (f == 1 && access(path, R_OK)) continue;
            if (esp__model_read(path, &file, NULL)) fail_msg("%s", esp_last_error(NULL));
            seen++;
            paper_open(&paper, (int)(i & 1), 8);
            paper.system.devices = 1u << ESP_ON_GPU;
            const problem_input in = {
                .model = file.model, .codecs = {paper.codecs[i % PAPER_CODECS]}, .n_codecs = 1, .system = paper.system};
            esp_plan *plan = make(&in, NULL), *again = simulate(&in, esp_plan_text(plan));
            esp_plan_report r = report_of(plan);
            assert_true(r.bound_ns <= r.iteration_ns && r.iteration_ns <= r.fp32_ns);
            expect_same_plan(plan, again);
            esp_plan_free(again);
            esp_plan_free(plan);
            esp__model_free(&file);
        }
    assert_int_equal(seen, 7);
}
