/* test_plan.c: `espresso plan`: what it prints and writes holds together, and bad input gets a clear error. */
/* runs: slow asan-long */
#include "plan_files.h"

/* The option of the tensor's unit, or of its first chunk. */
static const char *option_of(const json_t *j, const char *tensor) {
    const json_t *unit, *name;
    size_t u, t;
    json_array_foreach(json_object_get(j, "units"), u, unit)
        json_array_foreach(json_object_get(unit, "tensors"), t,
                           name) if (!strcmp(json_string_value(name), tensor)) return text(unit, "option");
    fail_msg("no unit of %s", tensor);
    return NULL;
}

static void one_object(void **state) {
    (void)state;
    static const char *const numbers[] = {"machines",
                                          "ranks_per_machine",
                                          "fp32_us",
                                          "iteration_us",
                                          "bound_us",
                                          "bound_any_us",
                                          "memory_bytes",
                                          "free_compression_us",
                                          "plan_us",
                                          "compressed",
                                          "n_units",
                                          "gap_percent",
                                          "speedup",
                                          "exposed_compression_us",
                                          "exposed_communication_us"};
    json_t *j = json_of(PLAN("--json"));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) assert_true(number(j, numbers[i]) >= 0);
    assert_string_equal(text(j, "model"), "small");
    assert_string_equal(text(j, "codec"), "dgc:ratio=0.01");
    assert_string_equal(text(j, "system"), "paper-pcie");
    assert_int_equal(number(j, "machines"), 8);
    /* forward, backward and update are in each */
    assert_true(number(j, "bound_any_us") >= 2310.5);
    assert_true(number(j, "bound_us") <= number(j, "iteration_us") ||
                number(j, "bound_any_us") <= number(j, "iteration_us"));
    assert_true(number(j, "iteration_us") <= number(j, "fp32_us"));
    static const char *const tensors[] = {"head.weight", "norm.bias", "norm.weight", "body.weight", "embed.weight"};
    int compressed = 0;
    for (size_t i = 0; i < 5; i++) compressed += strstr(option_of(j, tensors[i]), "comp@") != NULL;
    assert_int_equal(compressed, number(j, "compressed"));
    assert_int_equal(json_array_size(json_object_get(j, "units")), number(j, "n_units"));
    json_decref(j);
}

static void machines_come_over_the_system(void **state) {
    (void)state;
    json_t *eight = json_of(PLAN("--json")), *two = json_of(PLAN("--json", "--machines", "2"));
    json_t *one = json_of(PLAN("--json", "--machines=1"));
    assert_int_equal(number(two, "machines"), 2);
    assert_true(number(two, "fp32_us") < number(eight, "fp32_us"));
    assert_non_null(strstr(option_of(one, "body.weight"), "flat."));
    json_decref(eight);
    json_decref(two);
    json_decref(one);
}

/* The same step from the strategy's text as from the search itself. */
static void a_strategy_and_back(void **state) {
    (void)state;
    json_t *made = json_of(PLAN("--json", "-o", in_dir("p.strategy")));
    json_t *again = json_of(PLAN("--json", "--strategy", in_dir("p.strategy")));
    assert_true(number(made, "iteration_us") == number(again, "iteration_us"));
    assert_int_equal(number(made, "compressed"), number(again, "compressed"));
    assert_true(json_equal(json_object_get(made, "units"), json_object_get(again, "units")));
    json_decref(made);
    json_decref(again);
    spawned s = PLAN("-o", "-"); /* the strategy on stdout, what there is to say about it on stderr */
    char *written = get_file("p.strategy");
    assert_int_equal(s.status, 0);
    assert_int_equal(strncmp(s.text[0], written, 15), 0);
    assert_non_null(strstr(s.text[0], "\ntensor "));
    assert_null(strstr(s.text[0], "speed"));
    assert_true(spawn_said(&s, 1, "times as fast"));
    free(written);
    spawn_free(&s);
}

static void a_page_and_a_trace(void **state) {
    (void)state;
    json_error_t e;
    check(PLAN("--timeline", in_dir("t.html"), "--trace", in_dir("t.json")), 0, 0, "times as fast");
    char *page = get_file("t.html"), *trace = get_file("t.json");
    assert_non_null(strstr(page, "<html"));
    assert_non_null(strstr(page, "embed.weight"));
    assert_non_null(strstr(page, "</html>"));
    json_t *j = json_loads(trace, 0, &e);
    assert_non_null(j);
    json_decref(j);
    free(page);
    free(trace);
}

/* A system of racks has one more lane: it is named in the text, in the explanation, on the page and in the trace. */
static void racks_have_a_lane(void **state) {
    (void)state;
    put_file("racks.json",
             "{\"espresso\": 1, \"system\": \"two-racks\", \"racks\": 2, \"machines\": 2, \"ranks_per_machine\": 2, "
             "\"devices\": [\"cpu\"], \"intra\": {\"alpha_us\": 1, \"bytes_per_us\": 20000}, "
             "\"inter\": {\"alpha_us\": 10, \"bytes_per_us\": 3000}, "
             "\"outer\": {\"alpha_us\": 50, \"bytes_per_us\": 125}}");
#define RACKS(...)                                                                                                     \
    SPAWN("plan", "--model", in_dir("m.json"), "--gc", "dgc:ratio=0.01", "--system", in_dir("racks.json"), __VA_ARGS__)
    check(RACKS("--timeline", in_dir("r.html"), "--trace", in_dir("r.json")), 0, 0, ", outer ");
    char *page = get_file("r.html"), *trace = get_file("r.json");
    assert_non_null(strstr(page, "\"racks\":2,\"machines\":2,\"ranks\":2,\"cores\":0}"));
    assert_non_null(strstr(trace, "\"tid\":4,\"args\":{\"name\":\"outer\"}"));
    assert_non_null(strstr(trace, "\"name\":\"outer.allgather\",\"pid\":2,\"tid\":4,"));
    free(page);
    free(trace);
    check(RACKS("--explain", "head.weight"), 0, 0, ", outer ");
    check(RACKS("--explain", "head.weight"), 0, 0, "us, outer ");
#undef RACKS
}

/* The text names the lanes that are cores; page and trace show for how long ops keep each. */
static void cores_are_lanes(void **state) {
    (void)state;
    check(PLAN("--system", put_cores(3)), 0, 0, "progress ");
    check(PLAN("--system", put_cores(3)), 0, 0, "\ncores busy  compute ");
    check(PLAN("--system", put_cores(3)), 0, 0, "\nlinks busy  intra ");
    check(PLAN("--system", put_cores(1)), 0, 0, "\ncore busy   compute ");
    check(PLAN("--system", put_cores(0)), 0, 0, "\nlanes busy  compute ");
    json_t *j =
        json_of(PLAN("--json", "--system", put_cores(3), "--timeline", in_dir("c.html"), "--trace", in_dir("c.json")));
    assert_true(number(json_object_get(j, "lanes_us"), "progress") > 0);
    char *page = get_file("c.html"), *trace = get_file("c.json");
    assert_non_null(strstr(page, "\"cores\":3}"));
    assert_non_null(strstr(trace, "\"tid\":5,\"args\":{\"name\":\"progress\"}"));
    assert_non_null(strstr(trace, "\"takes_us\":"));
    assert_null(strstr(trace, "\"name\":\"outer\""));
    free(page);
    free(trace);
    json_decref(j);
}

/* What was measured on a busy machine is named wherever the plan is shown; so is a number of ranks that is not the plan's. */
static void how_it_was_measured(void **state) {
    static const char model[] =
        "{\"espresso\": 1, \"model\": \"busy\", \"forward_us\": 100, \"ranks\": %d, \"noisy\": %s, "
        "\"tensors\": [{\"name\": \"a\", \"elements\": 100000, \"compute_us\": 5000}]}\n";
    char said[400];
    (void)state;
    for (int k = 0; k < 3; k++) { /* one rank; as many as a machine has, or all */
        snprintf(said, sizeof said, model, 1 << k, k ? "false" : "true");
        put_file("busy.json", said);
        spawned s =
            PLAN("--model", in_dir("busy.json"), "--system", put_cores(1), "--timeline", in_dir("b.html"), "--json");
        if (s.status) fail_msg("%s", s.text[1]);
        assert_true(spawn_said(&s, 1, "was measured with 1 rank(s), and this plan is for 4, 2 a machine") == !k);
        json_t *j = json_of(s);
        assert_int_equal(json_array_size(json_object_get(j, "noisy")), !k);
        json_decref(j);
        char *page = get_file("b.html");
        assert_true((strstr(page, "busy.json: measured on a busy machine") != NULL) == !k);
        free(page);
    }
    snprintf(said, sizeof said, model, 2, "true");
    put_file("busy.json", said);
    check(PLAN("--model", in_dir("busy.json")), 0, 0, "busy.json: measured on a busy machine");
    check(COMPARE("--model", in_dir("busy.json"), "--strategies", "fp32"), 0, 0,
          "busy.json: measured on a busy machine");
    unlink(in_dir("busy.json"));
}

static void what_if(void **state) {
    (void)state;
    json_t *j = json_of(PLAN("--json", "--what-if", "nic=100gbit", "--what-if", "inter=4x,codec=2x", "--what-if",
                             "machines=1", "--what-if", "compute=0.5x"));
    const json_t *w = json_object_get(j, "what_if");
    assert_int_equal(json_array_size(w), 4);
    assert_string_equal(text(json_array_get(w, 0), "change"), "nic=100gbit");
    /* a faster link never makes a kept plan longer; 25 to 100 Gbit/s must be seen in fp32 */
    assert_true(number(json_array_get(w, 0), "kept_us") <= number(j, "iteration_us"));
    assert_true(number(json_array_get(w, 0), "fp32_us") < 0.8 * number(j, "fp32_us"));
    assert_true(number(json_array_get(w, 1), "kept_us") <= number(json_array_get(w, 0), "kept_us"));
    assert_true(number(json_array_get(w, 0), "iteration_us") >= number(json_array_get(w, 0), "bound_us"));
    /* half the speed: twice forward, backward and update */
    assert_true(number(json_array_get(w, 3), "bound_us") >= 2 * 2310.5);
    json_decref(j);
    check(PLAN("--what-if", "inter=2x"), 0, 0, "inter=2x");
}

/* Faster wires shorten the gap, and half the latency what the time has beyond the gap; both to the digit, for one tensor. */
static void what_if_tables(void **state) {
    (void)state;
    put_file("one.json", "{\"espresso\": 1, \"model\": \"one\", \"forward_us\": 100, \"update_us\": 10, "
                         "\"tensors\": [{\"name\": \"a\", \"elements\": 1250125, \"compute_us\": 500}]}\n");
    /* 5000500 bytes are half-way between the points of the tables */
    const double around = 610, time = 10150, gap = 7550;
    json_t *j =
        json_of(PLAN("--json", "--model", in_dir("one.json"), "--system", put_cores(0), "--no-split", "--only",
                     "flat.allreduce", "--what-if", "inter=2x", "--what-if", "latency=2x", "--what-if", "intra=2x"));
    const json_t *w = json_object_get(j, "what_if");
    const double expected[] = {around + time - gap / 2, around + gap + (time - gap) / 2, around + time};
    assert_true(fabs(number(j, "iteration_us") - around - time) < 0.01);
    for (size_t i = 0; i < 3; i++) {
        const double kept = number(json_array_get(w, i), "kept_us");
        if (fabs(kept - expected[i]) > 0.01) fail_msg("change %zu: %f, expected %f", i, kept, expected[i]);
    }
    json_decref(j);
    check(PLAN("--system", put_cores(0), "--what-if", "cores=2"), 2, 1, "where the system has cores_per_rank");
    check(PLAN("--system", put_cores(1), "--what-if", "cores=4"), 2, 1, "expected NAME=CHANGE");
    check(PLAN("--system", put_cores(1), "--what-if", "outer=2x"), 2, 1, "expected NAME=CHANGE");
    unlink(in_dir("one.json"));
}

/* Computing, compression and collectives share one core: with a second one they no longer take turns. */
static void what_if_cores(void **state) {
    (void)state;
    json_t *j = json_of(PLAN("--json", "--what-if", "cores=2", "--system", put_cores(1)));
    const json_t *row = json_array_get(json_object_get(j, "what_if"), 0);
    assert_true(number(row, "iteration_us") < 0.98 * number(j, "iteration_us"));
    assert_true(number(row, "iteration_us") <= number(row, "kept_us"));
    json_decref(j);
}

static void explain(void **state) {
    (void)state;
    json_t *j = json_of(PLAN("--json", "--explain", "head.weight"));
    const json_t *e = json_object_get(j, "explain"), *rows = json_object_get(e, "best");
    double before = 0, best = INFINITY;
    int current = 0;
    assert_true(json_array_size(rows) >= 3 && json_array_size(rows) <= 11);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const double step = number(row, "iteration_us");
        if (json_is_true(json_object_get(row, "current"))) {
            current++;
            assert_true(fabs(step - number(j, "iteration_us")) < 0.01);
        }
        if (i < 10) assert_true(step >= before);
        before = step;
        best = step < best ? step : best;
        assert_true(number(row, "alone_us") > 0);
        assert_true(strlen(text(row, "ops")) > 10);
    }
    assert_int_equal(current, 1);
    assert_true(number(e, "without_us") <= best);
    json_decref(j);
    check(PLAN("--explain", "norm.bias"), 0, 0, "norm.bias");
    /* a tensor in a group, and one in chunks */
    check(PLAN("--explain", "norm.bias", "--strategy", "ddp"), 0, 0, "the group of ");
    check(PLAN("--explain", "embed.weight", "--strategy", "byteps-compress"), 0, 0, " chunks, which change together");
    check(PLAN("--explain", "head.weigth"), 1, 1, "did you mean 'head.weight'?");
}

static void constraints(void **state) {
    (void)state;
    json_t *j =
        json_of(PLAN("--json", "--no-merge", "--no-split", "--keep", "e*=fp32", "--keep", "embed*=dgc:ratio=0.01"));
    assert_int_equal(number(j, "n_units"), 5);
    assert_null(strstr(option_of(j, "embed.weight"), "comp@"));
    json_decref(j);
    j = json_of(PLAN("--json", "--forbid", "comp@cpu", "--forbid", "inter.alltoall", "--max-comp", "1"));
    char *all = json_dumps(json_object_get(j, "units"), 0);
    assert_null(strstr(all, "comp@cpu > "));
    assert_null(strstr(all, "inter.alltoall"));
    free(all);
    json_decref(j);
    j = json_of(PLAN("--json", "--devices", "cpu"));
    all = json_dumps(json_object_get(j, "units"), 0);
    assert_null(strstr(all, "@gpu"));
    free(all);
    json_decref(j);
    j = json_of(PLAN("--json", "--max-comp", "0"));
    assert_int_equal(number(j, "compressed"), 0);
    json_decref(j);
    j = json_of(PLAN("--json", "--max-memory", "20MB"));
    assert_true(number(j, "memory_bytes") <= 20e6);
    json_decref(j);
    check(PLAN("--only", "comp", "--max-memory", "1KB"), 1, 1, "the least that these tensors need is");
    check(PLAN("--only", "comp", "--max-error", "0.001"), 1, 1, "the least that these codecs and options reach is");
    check(PLAN("--only", "flat", "--forbid", "flat"), 1, 1, "no option is left");
    check(PLAN("--keep", "nix*=fp32"), 0, 1, "no tensor of model 'small' has such a name");
}

static void names_and_several_codecs(void **state) {
    (void)state;
    json_t *j =
        json_of(PLAN("--json", "--model", "lstm", "--gc", "efsignsgd", "--gc", "fp16", "--strategy", "espresso"));
    assert_string_equal(text(j, "model"), "lstm");
    assert_string_equal(text(j, "codec"), "efsignsgd, fp16");
    json_decref(j);
    j = json_of(PLAN("--json", "--strategy", "hipress"));
    assert_string_equal(text(j, "strategy"), "hipress");
    json_decref(j);
}

/* A codec that nothing here knows is planned by what it says of itself; a wrapper by what it and its inner codec say. */
static void codecs_describe_themselves(void **state) {
    (void)state;
    char folder[4096];
    const char *build = getenv("ESPRESSO_BUILD");
    snprintf(folder, sizeof folder, "%s/tests/abi", build ? build : "./build");
    setenv("ESPRESSO_PLUGIN_PATH", folder, 1);
    check(SPAWN("plan", "--model", in_dir("m.json"), "--gc", "everysecond", "--system", "commodity-10g", "-o", "-"), 0,
          0, " everysecond ");
    unsetenv("ESPRESSO_PLUGIN_PATH");
    check(SPAWN("plan", "--model", in_dir("m.json"), "--gc", "fp16:of=(topk:ratio=0.01)", "--system", "commodity-10g",
                "-o", "-"),
          0, 0, " fp16:of=(topk:ratio=0.01) ");
    check(SPAWN("plan", "--model", in_dir("m.json"), "--gc", "everysecond", "--system", "commodity-10g"), 1, 1,
          "there is no codec \"everysecond\"");
}

static void write_text(const char *path, const char *said) {
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    assert_true(fputs(said, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

/* Codecs of several rounds: of matrices, where the model says which tensors are some; and from a file of measured costs. */
static void several_rounds(void **state) {
    static const char
        model[] = "{\"espresso\": 1, \"model\": \"m\", \"forward_us\": 100, \"tensors\": [{\"name\": \"w\", "
                  "\"elements\": 1048576, \"compute_us\": 100%s}]}\n",
        codec[] = "{\"espresso\": 1, \"codec\": \"%s\", \"rounds\": 2, \"reducible\": true, \"payload\": "
                  "{\"unit_bytes\": 1, \"units_per_element\": 0.1}, \"devices\": {\"cpu\": {\"compress\": [[1000, "
                  "1]], \"decompress\": [[1000, 1]]}}}\n";
    char said[512];
    (void)state;
    for (int matrix = 0; matrix < 2; matrix++) {
        snprintf(said, sizeof said, model, matrix ? ", \"rows\": 1024, \"cols\": 1024" : "");
        write_text(in_dir("rounds.json"), said);
        spawned s = SPAWN("plan", "--model", in_dir("rounds.json"), "--gc", "powersgd:rank=4", "--system",
                          "commodity-10g", "-o", "-");
        if (s.status) fail_msg("%s", s.text[1]);
        assert_true(spawn_said(&s, 0, " powersgd:rank=4 ") == matrix);
        spawn_free(&s);
    }
    for (int known = 0; known < 2; known++) {
        snprintf(said, sizeof said, codec, known ? "int8:shared=1" : "nosuch");
        write_text(in_dir("gc.json"), said);
        check(SPAWN("plan", "--model", in_dir("rounds.json"), "--gc", in_dir("gc.json"), "--system", "commodity-10g",
                    "-o", "-"),
              !known, !known, known ? " int8:shared=1 " : "planning with it needs the codec itself");
    }
    unlink(in_dir("rounds.json"));
    unlink(in_dir("gc.json"));
}

/* ---- bad input ----------------------------------------------------------------------------------------------------------------- */
static void wrong_usage(void **state) {
    (void)state;
    check(SPAWN("plan"), 2, 1, "--model is missing");
    check(SPAWN("plan", "--model", "m"), 2, 1, "--gc is missing");
    check(PLAN("--machines", "0"), 2, 1, "expected a whole number from 1");
    check(PLAN("--machines", "2.5"), 2, 1, "expected a whole number from 1");
    check(PLAN("--max-memory", "-3GB"), 2, 1, "expected a size such as 2GB");
    check(PLAN("--max-memory", "nan"), 2, 1, "expected a size such as 2GB");
    check(PLAN("--max-volume", "inf"), 2, 1, "expected a number such as 0.1");
    check(PLAN("--budget", "5"), 2, 1, "expected a time such as 5ms");
    check(PLAN("--keep", "embed"), 2, 1, "expected GLOB=fp32");
    check(PLAN("--devices", "tpu"), 2, 1, "expected cpu, gpu or cpu,gpu");
    check(PLAN("--what-if", "inter=0x"), 2, 1, "expected NAME=CHANGE");
    check(PLAN("--what-if", "wire=2x"), 2, 1, "expected NAME=CHANGE");
    check(PLAN("--what-if", ""), 2, 1, "expected NAME=CHANGE");
    check(PLAN("--what-if", "machines=1.3x"), 2, 1, "expected NAME=CHANGE");
    check(PLAN("--json", "-o", "-"), 2, 1, "can go to standard output");
    check(PLAN("now"), 2, 1, "takes flags only");
    check(PLAN("--explian"), 2, 1, "did you mean '--explain'?");
    check(SPAWN("help", "plan"), 0, 0, "examples:");
}

static void unknown_names(void **state) {
    (void)state;
    check(PLAN("--model", "vgg17"), 1, 1, "tried planner/models/vgg17.json");
    check(PLAN("--model", "vgg17"), 1, 1, " vgg16 ");
    check(PLAN("--model", "nix.json"), 1, 1, "nix.json: ");
    check(PLAN("--model", "/tmp"), 1, 1, "/tmp: ");
    check(PLAN("--gc", "zip"), 1, 1, "there is no codec \"zip\"; known: none, fp16");
    check(PLAN("--gc", "warmup:of=(topk:ratio=7)"), 1, 1, "of=(topk:ratio=7): topk: parameter ratio=7");
    check(PLAN("--gc", "dgc:ratio=7"), 1, 1, "ratio=7");
    check(PLAN("--gc", "nix.json"), 1, 1, "nix.json: ");
    check(PLAN("--gc", "dgc", "--gc", "dgc"), 1, 1, "both 'dgc'");
    check(PLAN("--system", "mars"), 1, 1, "There are: paper-nvlink paper-pcie");
    check(PLAN("--system", "nix.json"), 1, 1, "nix.json: ");
    check(PLAN("--strategy", "hipres"), 2, 1, "did you mean 'hipress'?");
    check(PLAN("--strategy", "nix.strategy"), 2, 1, "There are: espresso+");
    check(PLAN("--strategy", "./nix.strategy"), 1, 1, "./nix.strategy: ");
}

static void bad_models(void **state) {
    (void)state;
    static const struct {
        const char *tensors, *says;
    } bad[] = {
        {"{\"name\": \"a\", \"elements\": 10, \"compute_us\": -5}", "compute_us: expected"},
        {"{\"name\": \"a\", \"elements\": 10}", "compute_us"},
        {"{\"name\": \"a\", \"elements\": 10, \"compute_us\": NaN}", "bad.json:"},
        {"{\"name\": \"a\", \"elements\": 10, \"compute_us\": \"1\"}", "compute_us: expected"},
        {"{\"name\": \"a\", \"elements\": 0, \"compute_us\": 1}", "elements: expected"},
        {"{\"name\": \"a\", \"elements\": -1, \"compute_us\": 1}", "elements: expected"},
        {"{\"name\": \"a b\", \"elements\": 1, \"compute_us\": 1}", "name"},
        {"{\"name\": \"a\", \"elements\": 1, \"compute_us\": 1}, {\"name\": \"a\", \"elements\": 1, \"compute_us\": 1}",
         "expected each name once"},
        {"", "tensors"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char model[512];
        snprintf(model, sizeof model,
                 "{\"espresso\": 1, \"model\": \"bad\", \"forward_us\": 1, \"dtype\": \"f32\", \"tensors\": [%s]}",
                 bad[i].tensors);
        put_file("bad.json", model);
        check(PLAN("--model", in_dir("bad.json")), 1, 1, bad[i].says);
    }
    unlink(in_dir("bad.json"));
}

static void truncated_files(void **state) {
    (void)state;
    char part[sizeof plan_small];
    for (size_t n = 0; n + 3 < sizeof plan_small; n += 29) {
        memcpy(part, plan_small, n);
        part[n] = 0;
        put_file("cut.json", part);
        check(PLAN("--model", in_dir("cut.json")), 1, 1, "cut.json");
    }
    unlink(in_dir("cut.json"));
    check(PLAN("-o", in_dir("p.strategy")), 0, 0, "times as fast");
    char *whole = get_file("p.strategy");
    /* up to the order's last entry: a strategy may be without one, but not with half of one */
    const size_t tensors = (size_t)(strstr(whole, "\norder") - whole);
    for (size_t n = 0; n + 1 < tensors; n += 1 + tensors / 12) {
        char *cut = strdup(whole);
        cut[n] = 0;
        put_file("cut.strategy", cut);
        check(PLAN("--strategy", in_dir("cut.strategy")), 1, 1, "cut.strategy");
        free(cut);
    }
    free(whole);
    unlink(in_dir("cut.strategy"));
}

static void bad_strategies(void **state) {
    (void)state;
    check(PLAN("--model", "lstm", "--strategy", "fp32", "-o", in_dir("other.strategy")), 0, 0, "times as fast");
    check(PLAN("--strategy", in_dir("other.strategy")), 1, 1, "made for another model");
    check(PLAN("--strategy", in_dir("m.json")), 1, 1, "m.json");
    check(PLAN("--only", "comp", "--no-merge", "--no-split", "-o", in_dir("c.strategy")), 0, 0, "times as fast");
    check(PLAN("--gc", "efsignsgd", "--strategy", in_dir("c.strategy")), 1, 1, "no costs were given for it");
    check(PLAN("--strategy", plan_dir), 1, 1, "directory");
}

static void sharded(void **state) {
    (void)state;
    check(PLAN("--shard", "*", "-o", in_dir("shard.strategy")), 0, 0, "times as fast");
    char *text = get_file("shard.strategy");
    assert_null(strstr(text, "allgather")); /* nothing spreads a result */
    assert_null(strstr(text, "allreduce"));
    assert_null(strstr(text, "\ngroup "));
    assert_non_null(strstr(text, "reduce_scatter"));
    free(text);
    check(PLAN("--shard", "*=inter"), 1, 1,
          "shard 'inter' leaves no option: expected any, flat or the levels from intra on");
    check(PLAN("--shard", "*", "--strategy", in_dir("shard.strategy")), 0, 0, "times as fast");
    check(PLAN("--strategy", in_dir("shard.strategy")), 1, 1, "leaves each rank with a part only");
    check(PLAN("--shard", "*", "--strategy", "fp32", "-o", in_dir("fp32.strategy")), 0, 0, "step");
    check(PLAN("--shard", "no_such*"), 0, 1, "--shard no_such*: no tensor of model");
}

static void a_million_tensors(void **state) {
    (void)state;
    FILE *f = fopen(in_dir("million.json"), "wb");
    assert_non_null(f);
    fputs("{\"espresso\": 1, \"model\": \"million\", \"forward_us\": 1, \"dtype\": \"f32\", \"tensors\": [\n", f);
    for (int i = 0; i < 1000000; i++)
        fprintf(f, "{\"name\": \"t%d\", \"elements\": 10, \"compute_us\": 1}%s", i, i < 999999 ? ",\n" : "]}\n");
    assert_int_equal(fclose(f), 0);
    check(PLAN("--model", in_dir("million.json")), 1, 1, "1000000 tensors");
    unlink(in_dir("million.json"));
}

/* What fails leaves what was there, and nothing half. */
static void outputs_are_whole(void **state) {
    (void)state;
    files_there(1);
    put_file("m.json", plan_small);
    put_file("kept.strategy", "mine\n");
    check(PLAN("-o", in_dir("kept.strategy"), "--only", "flat", "--forbid", "flat"), 1, 1, "no option is left");
    check(PLAN("-o", in_dir("kept.strategy"), "--explain", "nix"), 1, 1, "no such tensor");
    char *text = get_file("kept.strategy");
    assert_string_equal(text, "mine\n");
    free(text);
    check(PLAN("-o", in_dir("nix/p.strategy")), 1, 1, "nix/p.strategy");
    check(PLAN("-o", plan_dir), 1, 1, "directory");
    check(PLAN("--timeline", "/dev/full"), 1, 1, "/dev/full");
    check(PLAN("--trace", "/dev/null"), 0, 0, "times as fast");
    assert_int_equal(access("/dev/null", W_OK), 0);
    assert_int_equal(files_there(0), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_object),
        cmocka_unit_test(machines_come_over_the_system),
        cmocka_unit_test(a_strategy_and_back),
        cmocka_unit_test(a_page_and_a_trace),
        cmocka_unit_test(what_if),
        cmocka_unit_test(cores_are_lanes),
        cmocka_unit_test(how_it_was_measured),
        cmocka_unit_test(what_if_tables),
        cmocka_unit_test(what_if_cores),
        cmocka_unit_test(racks_have_a_lane),
        cmocka_unit_test(explain),
        cmocka_unit_test(constraints),
        cmocka_unit_test(names_and_several_codecs),
        cmocka_unit_test(codecs_describe_themselves),
        cmocka_unit_test(several_rounds),
        cmocka_unit_test(wrong_usage),
        cmocka_unit_test(unknown_names),
        cmocka_unit_test(bad_models),
        cmocka_unit_test(truncated_files),
        cmocka_unit_test(bad_strategies),
        cmocka_unit_test(sharded),
        cmocka_unit_test(a_million_tensors),
        cmocka_unit_test(outputs_are_whole),
    };
    return cmocka_run_group_tests(tests, plan_files_open, plan_files_close);
}
