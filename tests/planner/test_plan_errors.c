/* test_plan_errors.c checks that the planner answers bad input with an error text that names the fault. Every case
 * changes one thing of a small correct problem. */
#include "tests/lib/test.h"

typedef struct input {
    esp_plan_tensor tensors[3];
    esp_plan_model model;
    esp_cost_point points[2];
    esp_plan_codec codecs[2];
    uint32_t n_codecs;
    esp_plan_system system;
    esp_plan_config config;
    const char *strategy; /* text to simulate, or NULL to make a plan */
} input;

static const char right[] =
    "espresso-strategy 1\ntensor a 1000 none flat.allreduce\n"
    "tensor b 2000 topk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu\ntensor c 3000 none flat.allreduce\n";

static void input_open(input *in) {
    memset(in, 0, sizeof *in);
    in->tensors[0] = (esp_plan_tensor){"a", 1000, 5000, NULL, NULL, 0, 0};
    in->tensors[1] = (esp_plan_tensor){"b", 2000, 5000, NULL, NULL, 0, 0};
    in->tensors[2] = (esp_plan_tensor){"c", 3000, 5000, NULL, NULL, 0, 0};
    in->model = (esp_plan_model){.n_tensors = 3, .name = "abc", .tensors = in->tensors};
    in->points[0] = (esp_cost_point){1000, 2000};
    in->points[1] = (esp_cost_point){2000, 3000};
    esp_cost_curve curve = {in->points, 2, 0};
    in->codecs[0] = (esp_plan_codec){
        .spec = "topk:ratio=0.1", .unit_bytes = 8, .units = 0.1, .compress = {curve}, .decompress = {curve}};
    in->codecs[1] = (esp_plan_codec){
        .spec = "efsignsgd", .unit_bytes = 1, .units = 0.125, .compress = {curve}, .decompress = {curve}};
    in->n_codecs = 2;
    in->system = (esp_plan_system){.machines = 2,
                                   .ranks_per_machine = 2,
                                   .devices = 1,
                                   .name = "two by two",
                                   .intra = {.bytes_per_us = 10000},
                                   .inter = {.bytes_per_us = 1000}};
}

static esp_status call(const input *in, esp_plan **plan) {
    if (in->strategy)
        return esp_plan_simulate(&in->model, in->codecs, in->n_codecs, &in->system, &in->config, in->strategy, plan);
    return esp_plan_make(&in->model, in->codecs, in->n_codecs, &in->system, &in->config, plan);
}

static void refused_line(const input *in, const char *word, int line) {
    esp_plan *plan = (esp_plan *)(uintptr_t)1;
    if (call(in, &plan) != ESP_E_ARG) fail_msg("line %d: taken, or another error: %s", line, esp_last_error(NULL));
    assert_null(plan);
    if (!strstr(esp_last_error(NULL), word)) fail_msg("line %d: no '%s' in: %s", line, word, esp_last_error(NULL));
}
/* Applies one change to the correct input and checks that the planner refuses it with an error text that contains
 * `word`. */
#define REFUSED(change, word)                                                                                          \
    do {                                                                                                               \
        input in;                                                                                                      \
        input_open(&in);                                                                                               \
        change;                                                                                                        \
        refused_line(&in, word, __LINE__);                                                                             \
    } while (0)

TEST(test_right) {
    input in;
    esp_plan *plan;
    input_open(&in);
    if (call(&in, &plan)) fail_msg("%s", esp_last_error(NULL));
    assert_non_null(esp_plan_text(plan));
    esp_plan_free(plan);
    in.strategy = right;
    if (call(&in, &plan)) fail_msg("%s", esp_last_error(NULL));
    esp_plan_free(plan);
}

TEST(test_null) {
    input in;
    esp_plan *plan;
    input_open(&in);
    assert_int_equal(esp_plan_make(NULL, in.codecs, 2, &in.system, NULL, &plan), ESP_E_ARG);
    assert_int_equal(esp_plan_make(&in.model, NULL, 2, &in.system, NULL, &plan), ESP_E_ARG);
    assert_int_equal(esp_plan_make(&in.model, in.codecs, 2, NULL, NULL, &plan), ESP_E_ARG);
    assert_int_equal(esp_plan_make(&in.model, in.codecs, 2, &in.system, NULL, NULL), ESP_E_ARG);
    assert_int_equal(esp_plan_simulate(&in.model, in.codecs, 2, &in.system, NULL, NULL, &plan), ESP_E_ARG);
    assert_int_equal(esp_plan_make(&in.model, NULL, 0, &in.system, NULL, &plan), ESP_OK);
    esp_plan_report r = {.struct_size = sizeof r};
    assert_int_equal(esp_plan_report_read(plan, NULL), ESP_E_ARG);
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    assert_int_equal(r.compressed, 0);
    esp_plan_free(plan);
    esp_plan_free(NULL);
    uint32_t n = 7;
    assert_int_equal(esp_plan_report_read(NULL, &r), ESP_E_ARG);
    assert_null(esp_plan_text(NULL));
    assert_null(esp_plan_events(NULL, &n));
    assert_int_equal(n, 0);
    assert_null(esp_plan_units(NULL, NULL));
}

static esp_status any_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    out->payload_bytes = 64;
    return like->rows ? ESP_OK : ESP_E_UNSUPPORTED;
}

TEST(test_rounds) {
    static const char *only[] = {"comp"};
    REFUSED(in.tensors[1].rows = 20, "tensor 'b': 20 rows and 0 cols are not its 2000 elements");
    REFUSED((in.tensors[1].rows = 20, in.tensors[1].cols = 99), "20 rows and 99 cols are not its 2000 elements");
    REFUSED((in.tensors[1].rows = 1, in.tensors[1].cols = 4000), "1 rows and 4000 cols");
    REFUSED(in.codecs[0].n_rounds = 2, "needs bound and self");
    REFUSED(in.codecs[0].caps = ESP_CODEC_NEEDS_MATRIX, "needs bound and self");
    REFUSED((in.codecs[0].n_rounds = 5, in.codecs[0].bound = any_bound), "n_rounds is 5: at most 4");
    REFUSED(in.codecs[0].vector_error = -1, "vector_error must be >= 0");
    /* A codec's bound() may refuse vectors without ESP_CODEC_NEEDS_MATRIX: here first those of a tensor that is no
     * matrix, then those of the chunks of a matrix. */
    REFUSED((in.codecs[0].bound = in.codecs[1].bound = any_bound, in.config.only = only, in.config.n_only = 1),
            "tensor 'a': what is forbidden or requested leaves no option that a codec can run");
    REFUSED((in.codecs[0].bound = in.codecs[1].bound = any_bound, in.config.only = only, in.config.n_only = 1,
             in.model.n_tensors = 1, in.tensors[0].rows = 10, in.tensors[0].cols = 100),
            "leaves no option for its chunks and groups, which are no matrices");
}

TEST(test_model) {
    REFUSED(in.model.n_tensors = 0, "no tensors");
    REFUSED(in.model.tensors = NULL, "no tensors");
    REFUSED(in.model.forward_ns = -1, "forward");
    REFUSED(in.model.update_ns = NAN, "update");
    REFUSED(in.tensors[1].name = NULL, "tensor 1");
    REFUSED(in.tensors[1].name = "", "tensor 1");
    REFUSED(in.tensors[1].name = "with blank", "tensor 1");
    REFUSED(in.tensors[1].name = "a", "both named 'a'");
    REFUSED((in.tensors[1].name = "a", in.model.name = NULL), "both named 'a'");
    REFUSED(in.tensors[1].elements = 0, "'b'");
    REFUSED(in.tensors[1].elements = UINT64_MAX, "'b'");
    REFUSED(in.tensors[2].compute_ns = -5, "'c'");
    REFUSED(in.tensors[2].compute_ns = NAN, "'c'");
    REFUSED(in.tensors[2].compute_ns = INFINITY, "'c'");
    REFUSED(in.tensors[0].keep = "topk:ratio=0.5", "'a'");
    REFUSED(in.tensors[0].keep = "", "'a'");
    REFUSED(in.tensors[0].keep = "flat.allreduce > comp@cpu", "'a'");
}

TEST(test_system) {
    REFUSED(in.system.machines = 0, "0 machines");
    REFUSED(in.system.ranks_per_machine = 0, "0 ranks");
    REFUSED(in.system.machines = UINT32_MAX, "machines");
    REFUSED(in.system.devices = 0, "devices");
    REFUSED(in.system.devices = 8, "devices");
    REFUSED(in.system.intra.bytes_per_us = 0, "intra");
    REFUSED(in.system.intra.bytes_per_us = -1, "intra");
    REFUSED(in.system.inter.bytes_per_us = NAN, "inter");
    REFUSED(in.system.inter.alpha_ns = -1, "inter");
    REFUSED(in.system.inter.alpha_is = 7, "alpha_is");
    REFUSED(in.system.host_bytes_per_us = -1, "host_bytes_per_us");
    REFUSED(in.system.pack_ns = NAN, "pack_ns");
    REFUSED(in.system.inter.table[ESP_COLL_ALLREDUCE] = ((esp_cost_curve){NULL, 2, 0}), "allreduce");
    REFUSED((in.points[1].size = 1000, in.system.flat.table[ESP_COLL_GATHER] = ((esp_cost_curve){in.points, 2, 0})),
            "gather");
    REFUSED((in.system.inter.bytes_per_us = 0), "inter");
    input in;
    esp_plan *plan;
    input_open(&in);
    in.system.machines = 1, in.system.inter.bytes_per_us = 0;
    assert_int_equal(call(&in, &plan), ESP_OK);
    esp_plan_free(plan);
}

TEST(test_codec) {
    REFUSED(in.codecs[1].spec = NULL, "codec 1");
    REFUSED(in.codecs[1].spec = "", "codec 1");
    REFUSED(in.codecs[1].spec = "two words", "codec 1");
    REFUSED(in.codecs[1].spec = "topk:ratio=0.1", "both");
    REFUSED(in.codecs[1].header_bytes = -1, "efsignsgd");
    REFUSED(in.codecs[1].unit_bytes = NAN, "efsignsgd");
    REFUSED(in.codecs[1].units = INFINITY, "efsignsgd");
    REFUSED(in.codecs[1].error = -1, "efsignsgd");
    REFUSED(in.codecs[1].decompress[0].n = 0, "only one of compress and decompress");
    REFUSED(in.codecs[1].compress[0].points = NULL, "efsignsgd");
    REFUSED(in.points[0].ns = -1, "topk");
    REFUSED(in.points[0].ns = NAN, "topk");
    REFUSED(in.points[0].size = 0, "topk");
    REFUSED(in.points[0].size = NAN, "topk");
    REFUSED(in.points[1].size = 500, "ascend");
}

static const char *const nothing[] = {NULL};
static const char *const all[] = {"*"};
static const char *const no_equals[] = {"a"};
static const char *const no_such[] = {"a=zstd"};

TEST(test_config) {
    REFUSED(in.config.strategy = "fastest", "fastest");
    REFUSED((in.config.forbid = all, in.config.n_forbid = 1), "forbid");
    REFUSED(in.config.n_forbid = 1, "forbid");
    REFUSED(in.config.n_only = 1, "only");
    REFUSED(in.config.n_keep = 1, "keep");
    REFUSED((in.config.forbid = nothing, in.config.n_forbid = 1), "forbid");
    REFUSED((in.config.only = nothing, in.config.n_only = 1), "only");
    REFUSED((in.config.keep = nothing, in.config.n_keep = 1), "keep");
    REFUSED((in.config.keep = no_equals, in.config.n_keep = 1), "GLOB=fp32");
    REFUSED((in.config.keep = no_such, in.config.n_keep = 1), "zstd");
    REFUSED(in.config.devices = 2, "devices");
    REFUSED(in.config.budget_ns = -1, "budget");
    REFUSED(in.config.budget_ns = NAN, "budget");
    REFUSED(in.config.max_volume = -1, "max_volume");
    REFUSED(in.config.max_error = NAN, "max_error");
    REFUSED(in.config.max_volume = 1e-9, "max_volume");
}

/* ---- strategies ---- */
#define HEAD "espresso-strategy 1\n"
#define A "tensor a 1000 none flat.allreduce\n"
#define B "tensor b 2000 none flat.allreduce\n"
#define C "tensor c 3000 none flat.allreduce\n"
#define FLAT " none flat.allreduce\n"

TEST(test_strategy) {
    REFUSED(in.strategy = "", "strategy:1");
    REFUSED(in.strategy = "fp32", "strategy:1");
    REFUSED(in.strategy = "espresso-strategy 2\n" A B C, "strategy:1");
    REFUSED(in.strategy = HEAD A B, "has 2 tensors, but this model has 3; the first without a line is 'c'");
    REFUSED(in.strategy = HEAD A B C "tensor d 1" FLAT, "strategy:5");
    REFUSED(in.strategy = HEAD B A C, "another model");
    REFUSED(in.strategy = HEAD "tensor a 999" FLAT B C, "another model");
    REFUSED(in.strategy = HEAD "tensor a" FLAT B C, "strategy:2");
    REFUSED(in.strategy = HEAD "tensor a 1000\n" B C, "strategy:2");
    REFUSED(in.strategy = HEAD "tensor a 1000 none\n" B C, "strategy:2");
    REFUSED(in.strategy = HEAD "tensor a 1000 none flat.allgather\n" B C, "strategy:2");
    REFUSED(in.strategy = HEAD A "tensor b 2000 zstd comp@cpu > flat.allgather > decomp@cpu\n" C, "zstd");
    REFUSED(in.strategy = HEAD A "tensor b 2000 topk:ratio=0.1 comp@gpu > flat.allgather > decomp@gpu\n" C,
            "strategy:3");
    REFUSED(in.strategy = HEAD A "tensor b 2000 topk:ratio=0.1 comp@cpu > flat.allreduce > decomp@cpu\n" C,
            "strategy:3");
    REFUSED((in.system.machines = 1,
             in.strategy = HEAD "tensor a 1000 none intra.reduce_scatter > inter.allreduce > intra.allgather\n" B C),
            "strategy:2");
    REFUSED(in.strategy = HEAD A B C "nonsense\n", "strategy:5");
    REFUSED(in.strategy = HEAD A "tensor b 2000 none flat.all", "strategy:3");
}

TEST(test_strategy_units) {
    REFUSED(in.strategy = HEAD "tensor a 1000 split 1\nchunk 1000" FLAT B C, "strategy:2");
    REFUSED(in.strategy = HEAD "tensor a 1000 split x\nchunk 1000" FLAT B C, "strategy:2");
    REFUSED(in.strategy = HEAD "tensor a 1000 split 2\nchunk 500" FLAT B C, "expected chunk 2 of 2 of tensor 'a'");
    REFUSED(in.strategy = HEAD "tensor a 1000 split 2\nchunk 500" FLAT "chunk 499" FLAT B C, "strategy:4");
    REFUSED(in.strategy = HEAD "tensor a 1000 split 2\nchunk 1000" FLAT "chunk 0" FLAT B C, "strategy:3");
    REFUSED(in.strategy = HEAD "tensor a 1000 split 2\nchunk 1001" FLAT B C, "strategy:3");
    REFUSED(in.strategy = HEAD "chunk 1000" FLAT A B C, "strategy:2");
    REFUSED(in.strategy = HEAD A "tensor b 2000 group\n" C, "strategy:4");
    REFUSED(in.strategy = HEAD A "tensor b 2000 group\ngroup 2000" FLAT C, "strategy:4");
    REFUSED(in.strategy = HEAD A "tensor b 2000 group\ntensor c 3000 group\ngroup 4999" FLAT, "strategy:5");
    REFUSED(in.strategy = HEAD A "tensor b 2000 group\ntensor c 3000 group\n",
            "before the group of tensor 'c' is closed");
    REFUSED(in.strategy = HEAD A B "tensor c 3000 split 2\nchunk 1500" FLAT, "ends after 1 of 2 chunks of tensor 'c'");
    REFUSED(in.strategy = HEAD A B C "group 6000" FLAT, "strategy:5");
}

TEST(test_strategy_order) {
    REFUSED(in.strategy = HEAD A B C "order 0:0 1:0\n", "2:0 is missing");
    REFUSED(in.strategy = HEAD A B C "order 0:0 1:0 1:0 2:0\n", "twice");
    REFUSED(in.strategy = HEAD A B C "order 0:0 1:0 7:0 2:0\n", "7:0");
    REFUSED(in.strategy = HEAD A B C "order 0:0 1:0 -1:0 2:0\n", "-1:0");
    REFUSED(in.strategy =
                HEAD "tensor a 1000 none flat.reduce_scatter > flat.allgather\n" B C "order 0:1 0:0 1:0 2:0\n",
            "0:0 must come first");
    REFUSED(in.strategy = HEAD A B C "order 0:000000000000000000000000000000\n", "order");
}

/* ---- sizes ---- */
TEST(test_too_many) {
    enum { MANY = 1000000 };
    input in;
    input_open(&in);
    esp_plan_tensor *tensors = calloc(MANY, sizeof *tensors);
    char(*names)[12] = calloc(MANY, sizeof *names);
    assert_true(tensors && names);
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        tensors[i] = (esp_plan_tensor){names[i], 100, 10, NULL, NULL, 0, 0};
    }
    in.model.tensors = tensors, in.model.n_tensors = MANY;
    refused_line(&in, "1000000 tensors", __LINE__);
    free(tensors);
    free(names);
}

TEST(test_extremes) {
    for (int i = 0; i < 8; i++) {
        input in;
        esp_plan *plan;
        input_open(&in);
        if (i == 0) in.tensors[0].elements = (uint64_t)1 << 50;
        if (i == 1) in.points[0].ns = in.points[1].ns = 1e18, in.tensors[2].elements = (uint64_t)1 << 50;
        if (i == 2) in.system.inter.bytes_per_us = 1e-300;
        if (i == 3) in.tensors[0].compute_ns = in.tensors[1].compute_ns = in.tensors[2].compute_ns = 1e18;
        if (i == 4)
            in.system.machines = 1u << 19, in.system.inter.alpha_ns = 1e18, in.system.inter.alpha_is = ESP_ALPHA_HOP;
        if (i == 5) in.codecs[0].unit_bytes = 1e18, in.codecs[0].units = 1e6;
        if (i == 6) in.system.machines = 1u << 19, in.tensors[1].elements = 1;
        if (i == 7) in.points[0] = (esp_cost_point){1e-300, 0}, in.points[1] = (esp_cost_point){2e-300, 1e18};
        esp_status s = call(&in, &plan);
        if (s) {
            assert_int_equal(s, ESP_E_ARG);
            assert_true(strlen(esp_last_error(NULL)) > 10);
            continue;
        }
        esp_plan_report r = {.struct_size = sizeof r};
        uint32_t n;
        esp_plan_report_read(plan, &r);
        assert_true(r.iteration_ns >= 0 && r.iteration_ns < 1.9e19 && r.bound_ns <= r.iteration_ns);
        const esp_plan_event *e = esp_plan_events(plan, &n);
        for (uint32_t k = 0; k < n; k++) assert_true(e[k].end_ns >= e[k].start_ns);
        esp_plan_free(plan);
    }
}

/* Long names and special characters in names do not break the strategy's text. */
TEST(test_names) {
    input in;
    esp_plan *plan, *again;
    char name[600];
    input_open(&in);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    in.tensors[0].name = name, in.tensors[1].name = "layer%d/%s", in.tensors[2].name = "\xc3\xa4\xc3\xb6";
    in.model.name = "two\nlines", in.system.name = "also\ntensor x";
    if (call(&in, &plan)) fail_msg("%s", esp_last_error(NULL));
    in.strategy = esp_plan_text(plan);
    if (call(&in, &again)) fail_msg("%s", esp_last_error(NULL));
    assert_string_equal(strstr(esp_plan_text(plan), "tensor n"), strstr(esp_plan_text(again), "tensor n"));
    esp_plan_free(again);
    esp_plan_free(plan);
}

/* A plan is made even if the time budget is over at once. */
TEST(test_budget) {
    input in;
    esp_plan *plan;
    esp_plan_report r = {.struct_size = sizeof r};
    input_open(&in);
    in.config.budget_ns = 1;
    if (call(&in, &plan)) fail_msg("%s", esp_last_error(NULL));
    esp_plan_report_read(plan, &r);
    assert_true(r.iteration_ns > 0 && r.iteration_ns <= r.fp32_ns);
    esp_plan_free(plan);
}
