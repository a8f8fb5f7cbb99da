/* test_replay.c: `espresso replay`: runs real ranks to the end with costs from a file, with costs that it measures, and as a program of
 * `espresso run`; refuses wrong usage before it starts any; and leaves nothing behind when a rank dies. No test depends on how long
 * anything took. */
/* runs: quiet */
#include "espresso_impl/base/cores.h"
#include "tests/tools/plan_files.h"

static const char timed[] = "{\"espresso\": 1, \"model\": \"timed\", \"forward_us\": 500, \"update_us\": 100, "
                            "\"dtype\": \"f32\", \"tensors\": [\n"
                            "  {\"name\": \"head.weight\", \"elements\": 40000, \"compute_us\": 500},\n"
                            "  {\"name\": \"norm.bias\", \"elements\": 10, \"compute_us\": 200},\n"
                            "  {\"name\": \"norm.weight\", \"elements\": 1000, \"compute_us\": 200},\n"
                            "  {\"name\": \"body.weight\", \"elements\": 25000, \"compute_us\": 700.5},\n"
                            "  {\"name\": \"embed\", \"elements\": 9000, \"compute_us\": 900}\n"
                            "]}\n";
enum { TIMED_TENSORS = 5 };
#define TIMED_US 3100.5

/* Costs of `machines` machines with two ranks each. */
static void put_costs(const char *name, int machines) {
    char text[2000];
    snprintf(
        text, sizeof text,
        "{\"espresso\": 1, \"costs\": \"here\", \"system\": {\"espresso\": 1, \"system\": \"made up\", \"machines\": "
        "%d, "
        "\"ranks_per_machine\": 2, \"devices\": [\"cpu\"], \"intra\": {\"alpha_us\": 20, \"bytes_per_us\": 2000}, "
        "\"inter\": {\"alpha_us\": 50, \"bytes_per_us\": 100}}, \"codecs\": [{\"espresso\": 1, \"codec\": "
        "\"dgc:ratio=0.01\", \"error\": 0.6, \"payload\": {\"header_bytes\": 70, \"unit_bytes\": 1, "
        "\"units_per_element\": 0.06}, \"devices\": {\"cpu\": {\"interpolate\": \"linear\", \"compress\": [[1000, 5], "
        "[1000000, 900]], \"decompress\": [[1000, 1], [1000000, 50]]}}}]}\n",
        machines);
    put_file(name, text);
}

/* The model "timed" and costs of four ranks, unless `more` says others. */
#define REPLAY(...) replay((const char *const[]){__VA_ARGS__, NULL})
static spawned replay(const char *const *more) {
    const char *args[48] = {"replay"};
    int n = 1, model = 0, costs = 0;
    for (int i = 0; more[i]; i++) model |= !strcmp(more[i], "--model"), costs |= !strcmp(more[i], "--costs");
    if (!model) args[n++] = "--model", args[n++] = in_dir("timed.json");
    if (!costs) args[n++] = "--costs", args[n++] = in_dir("costs.json");
    for (int i = 0; more[i] && n < 47; i++) args[n++] = more[i];
    spawned s = spawn_all(args);
    assert_true(spawn_nobody_left(&s));
    return s;
}

static int open_files(void **state) {
    if (plan_files_open(state)) return 1;
    put_file("timed.json", timed);
    put_costs("costs.json", 2);
    put_costs("one.json", 1);
    return 0;
}

static double stretch_of(int ranks) {
    const double ratio = (double)ranks / esp__cores();
    return ratio > 1 ? ratio : 1;
}

/* The executor runs exactly the ops that the planner predicts. */
static void check_ops(const json_t *row) {
    const json_t *ops = json_object_get(row, "ops");
    double backward = 0;
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *op = json_array_get(ops, i);
        assert_true(number(op, "measured_us") >= 0 && number(op, "predicted_us") >= 0);
        if (!strcmp(text(op, "op"), "backward")) backward = number(op, "n");
    }
    assert_true(json_array_size(ops) >= 2);
    assert_int_equal(backward, TIMED_TENSORS);
    assert_int_equal(number(row, "ops_missing"), 0);
    assert_true(number(json_object_get(json_object_get(row, "lanes_us"), "measured"), "inter") > 0);
}

/* Computing alone takes as long as the model says, however many ranks share a core. */
static void check_strategies(const json_t *j, int ranks, const char *const *names, size_t n) {
    const json_t *rows = json_object_get(j, "strategies");
    assert_int_equal(json_array_size(rows), n);
    assert_true(fabs(number(j, "compute_stretch") - stretch_of(ranks)) < 1e-9);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(rows, i), *measured = json_object_get(row, "measured_us");
        assert_string_equal(text(row, "name"), names[i]);
        assert_true(number(row, "predicted_us") >= TIMED_US * stretch_of(ranks));
        assert_true(number(measured, "p10") > TIMED_US);
        assert_true(number(measured, "p10") <= number(measured, "median"));
        assert_true(number(measured, "median") <= number(measured, "p90"));
        check_ops(row);
    }
}

static void costs_of_a_file(void **state) {
    (void)state;
    static const char *const names[] = {"fp32", "ddp", "layerwise", "hipress", "mergecomp", "espresso+"};
    json_t *j =
        json_of(REPLAY("--strategy", "fp32,ddp,layerwise,hipress,mergecomp,espresso+", "--steps", "4", "--json"));
    check_strategies(j, 4, names, sizeof names / sizeof *names);
    assert_int_equal(number(j, "machines"), 2);
    assert_int_equal(number(j, "ranks_per_machine"), 2);
    assert_int_equal(number(json_array_get(json_object_get(j, "strategies"), 0), "steps"), 4);
    json_decref(j);
}

static void costs_that_are_measured(void **state) {
    (void)state;
    static const char *const names[] = {"fp32", "espresso+"};
    const char *const args[] = {
        "replay", "--model", in_dir("timed.json"), "-n", "2", "--elements-scale", "0.1", "--steps", "1",
        "--json", NULL};
    spawned s = spawn_all(args);
    assert_true(spawn_nobody_left(&s));
    json_t *j = json_of(s);
    const json_t *rows = json_object_get(j, "strategies");
    assert_int_equal(json_array_size(rows), 2);
    for (size_t i = 0; i < 2; i++) assert_string_equal(text(json_array_get(rows, i), "name"), names[i]);
    assert_string_equal(text(j, "codec"), "dgc:ratio=0.01");
    json_decref(j);
}

/* The table, the page, and nothing but that file. */
static void table_and_page(void **state) {
    (void)state;
    const int before = files_there(0);
    spawned s = REPLAY("--steps", "1", "--timeline", in_dir("t.html"));
    if (!spawn_said(&s, 0, "fp32 ") || !spawn_said(&s, 0, "espresso+ ")) fail_msg("%s%s", s.text[0], s.text[1]);
    spawn_free(&s);
    assert_int_equal(files_there(0), before + 1);
    char *html = get_file("t.html");
    assert_non_null(strstr(html, "\"name\":\"predicted\""));
    assert_non_null(strstr(html, "\"name\":\"measured\""));
    assert_non_null(strstr(html, "--timeline"));
    free(html);
}

static void a_file_is_a_strategy(void **state) {
    (void)state;
    check(SPAWN("plan", "--model", in_dir("timed.json"), "--costs", in_dir("costs.json"), "-o", in_dir("h.strategy")),
          0, 0, "written");
    check(REPLAY("--strategy", in_dir("h.strategy"), "--steps", "1"), 0, 0, "h.strategy");
    check(REPLAY("--strategy", in_dir("costs.json"), "--steps", "1"), 1, 1, "costs.json");
}

/* The ranks of a job that somebody started are replay's. */
static void in_a_job(void **state) {
    (void)state;
    const char *const command = getenv("ESPRESSO_COMMAND");
    const char *const espresso = command ? command : "build/bin/espresso";
    check(SPAWN("run", "-n", "2", "--", espresso, "replay", "--model", in_dir("timed.json"), "--costs",
                in_dir("one.json"), "--steps", "1"),
          0, 0, "espresso+ ");
    check(SPAWN("run", "-n", "4", "--", espresso, "replay", "--model", in_dir("timed.json"), "--costs",
                in_dir("one.json")),
          1, 1, "it is for 1 machine(s) of 2 rank(s), and this run has 1 of 4");
    check(SPAWN("run", "-n", "2", "--", espresso, "replay", "--model", in_dir("timed.json")), 1, 1,
          "--costs is missing");
}

static void wrong_usage(void **state) {
    (void)state;
    check(SPAWN("replay"), 2, 1, "--model is missing");
    check(REPLAY("-n", "5", "--machines", "2"), 2, 1, "5 ranks do not divide by 2 machines");
    check(REPLAY("-n", "1"), 2, 1, "whole number");
    check(REPLAY("--inter", "fast"), 1, 1, "inter=fast is not a rate");
    check(REPLAY("--costs", in_dir("one.json"), "--inter", "1gbit"), 2, 1, "no effect with one machine");
    check(REPLAY("--elements-scale", "0"), 2, 1, "expected a number");
    check(REPLAY("--strategy", "fp32,fp32"), 2, 1, "twice");
    check(REPLAY("--strategy", ","), 2, 1, "names none");
    check(REPLAY("--json", "--timeline", "-"), 2, 1, "only one of");
    check(REPLAY("--system", "paper-pcie"), 2, 1, "--costs FILE");
    check(REPLAY("fp32"), 2, 1, "flags only");
}

static void what_is_not_there(void **state) {
    (void)state;
    check(REPLAY("--model", "nosuch"), 1, 1, "no model 'nosuch'");
    check(REPLAY("--strategy", "hipres"), 2, 1, "did you mean 'hipress'");
    check(REPLAY("--gc", "fp16"), 1, 1, "it has no codec 'fp16'");
    check(REPLAY("--costs", in_dir("timed.json")), 1, 1, "expected a costs file");
    check(REPLAY("--timeline", "/nonexistent/p.html"), 1, 1, "/nonexistent/p.html: cannot be written");
    check(REPLAY("-n", "8"), 1, 1, "it is for 2 machine(s) of 2 rank(s), and this run has 2 of 4");
    check(REPLAY("--model", "llama-1b", "--elements-scale", "10"), 1, 1, "of memory");
    check(SPAWN("replay", "--model", in_dir("timed.json"), "-n", "2", "--gc", "topk:ratoi=0.1"), 1, 1, "ratoi");
}

/* The processes that `parent` started, in the order of their numbers as far as `most` goes. */
static int children_of(pid_t parent, int *out, int most) {
    DIR *d = opendir("/proc");
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[300];
        int its = 0;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%*d %*[^)]) %*c %d", &its) == 1 && its == parent && n < most) out[n++] = atoi(e->d_name);
        if (f) fclose(f);
    }
    closedir(d);
    return n;
}

/* No result, no file, nobody left. */
static void a_killed_rank(void **state) {
    (void)state;
    const int before = files_there(0);
    const char *const args[] = {
        "replay", "--model",    in_dir("timed.json"), "--costs", in_dir("costs.json"), "--steps",
        "10000",  "--timeline", in_dir("never.html"), NULL};
    spawned s = spawn_start(args);
    int children[8], n = 0;
    for (int tries = 0; tries < 500 && n < 5; tries++) { /* the watchdog and four ranks */
        const struct timespec pause = {0, 10000000};
        nanosleep(&pause, NULL);
        n = children_of(s.pid, children, 8);
    }
    if (n < 5) fail_msg("%d processes were started, not the watchdog and four ranks", n);
    assert_int_equal(kill(children[3], SIGKILL), 0);
    spawn_end(&s);
    assert_true(spawn_nobody_left(&s));
    assert_int_equal(files_there(0), before);
    if (s.status != 1 || (!spawn_said(&s, 1, "died") && !spawn_said(&s, 1, "killed")))
        fail_msg("status %d\nstderr:\n%.2000s", s.status, s.text[1]);
    spawn_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_of_a_file),   cmocka_unit_test(costs_that_are_measured),
        cmocka_unit_test(table_and_page),    cmocka_unit_test(a_file_is_a_strategy),
        cmocka_unit_test(in_a_job),          cmocka_unit_test(wrong_usage),
        cmocka_unit_test(what_is_not_there), cmocka_unit_test(a_killed_rank),
    };
    return cmocka_run_group_tests(tests, open_files, plan_files_close);
}
