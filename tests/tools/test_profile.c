/* test_profile.c: `espresso profile codecs` and `espresso profile links`: files that espresso plan reads, whole or not at all, and
 * errors that say what to do. What the figures are is not looked at: other programs run here too. */
#include "plan_files.h"

#define CODECS(...) SPAWN("profile", "codecs", __VA_ARGS__)
#define COSTS(...) SPAWN("profile", "costs", __VA_ARGS__)
#define REPLAY(...) SPAWN("replay", "--model", in_dir("m.json"), "--elements-scale", "0.001", __VA_ARGS__)
#define LINKS(...) SPAWN("profile", "links", __VA_ARGS__)

static json_t *load(const char *name) {
    json_error_t e;
    json_t *j = json_load_file(in_dir(name), JSON_REJECT_DUPLICATES, &e);
    if (!j) fail_msg("%s:%d: %s", name, e.line, e.text);
    return j;
}

/* [[size, us], ...]: so many, ascending, times above 0. */
static void check_points(const json_t *points, size_t n, double first) {
    assert_int_equal(json_array_size(points), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *p = json_array_get(points, i);
        assert_true(fabs(json_number_value(json_array_get(p, 0)) - first * pow(2, (double)i)) < 0.5);
        assert_true(json_number_value(json_array_get(p, 1)) > 0);
    }
}

/* Profiles of both kinds, and a plan from them. */
static void test_round_trip(void **state) {
    (void)state;
    check(CODECS("-n", "4", "--codec", "dgc:ratio=0.01", "--codec", "fp16", "--sizes", "2^10..2^14", "--budget", "5s",
                 "-o", in_dir("gc-%.json")),
          0, 0, "dgc:ratio=0.01: 0.0");
    check(LINKS("-n", "4", "--machines", "2", "--sizes", "1024..8192", "--budget", "5s", "-o", in_dir("system.json")),
          0, 0, "starting an op: cpu ");
    json_t *gc = load("gc-dgc-ratio-0.01.json"), *fp16 = load("gc-fp16.json"), *system = load("system.json");
    json_t *cpu = json_object_get(json_object_get(gc, "devices"), "cpu");
    assert_string_equal(text(gc, "codec"), "dgc:ratio=0.01");
    check_points(json_object_get(cpu, "compress"), 5, 1024);
    check_points(json_object_get(cpu, "decompress"), 5, 1024);
    assert_true(number(gc, "ranks") == 4 && number(gc, "cores") >= 1 && number(gc, "spread") >= 0);
    assert_true(json_is_boolean(json_object_get(gc, "noisy")) && number(gc, "error") > 0.1);
    assert_true(json_is_true(json_object_get(fp16, "reducible")) && number(fp16, "error") < 1e-5);
    assert_true(number(json_object_get(fp16, "payload"), "units_per_element") == 2);
    assert_true(number(system, "ranks") == 4 && number(system, "machines") == 2 &&
                number(system, "ranks_per_machine") == 2);
    for (int level = 0; level < 3; level++) {
        static const char *const levels[] = {"flat", "intra", "inter"}, *const colls[] = {"allreduce", "gather"};
        for (int k = 0; k < 2; k++) {
            json_t *tables = json_object_get(json_object_get(system, levels[level]), "tables");
            check_points(json_object_get(json_object_get(tables, colls[k]), "points"), 4, 1024);
        }
    }
    assert_true(number(json_object_get(system, "dispatch_us"), "cpu") > 0);
    json_decref(gc);
    json_decref(fp16);
    json_decref(system);
    spawned s = PLAN("--gc", in_dir("gc-dgc-ratio-0.01.json"), "--gc", in_dir("gc-fp16.json"), "--system",
                     in_dir("system.json"));
    assert_int_equal(s.status, 0);
    assert_false(spawn_said(&s, 1, "was measured with"));
    assert_false(spawn_said(&s, 1, "unknown"));
    spawn_free(&s);
    check(PLAN("--gc", in_dir("gc-fp16.json"), "--system", "paper-pcie", "--forbid", "*gpu*"), 0, 1,
          "was measured with 4 rank(s), and this plan is for 64, 8 a machine");
    check(PLAN("--gc", in_dir("gc-fp16.json"), "--system", in_dir("system.json"), "--machines", "8"), 0, 1,
          "system.json was measured with 4 rank(s), and this plan is for 16");
    assert_int_equal(files_there(0), 4); /* the model, and these; nothing half written */
}

static void part(json_t *whole, const char *name) {
    char *text = json_dumps(whole, 0);
    put_file(name, text);
    free(text);
}

/* One costs file gives the same plan as the three files in it, and replay takes it instead of measuring. */
static void test_costs(void **state) {
    (void)state;
    const char *command = getenv("ESPRESSO_COMMAND");
    const int before = files_there(0);
    check(COSTS("-n", "2", "--codec", "dgc:ratio=0.01", "--sizes", "2^10..2^14", "--budget", "4", "--steps", "3", "-o",
                in_dir("costs.json"), "--", command ? command : "build/bin/espresso", "replay",
                "--as-a-program-that-fails"),
          1, 1, "nothing was written");
    assert_int_equal(files_there(0), before);
    check(COSTS("-n", "2", "--codec", "dgc:ratio=0.01", "--codec", "fp16", "--sizes", "2^10..2^14", "--budget", "4",
                "-o", in_dir("costs.json")),
          0, 0, "written: ");
    assert_int_equal(files_there(0), before + 1);
    json_t *c = load("costs.json"), *codecs = json_object_get(c, "codecs");
    assert_int_equal(json_array_size(codecs), 2);
    part(json_object_get(c, "system"), "part-s.json");
    part(json_array_get(codecs, 0), "part-1.json");
    part(json_array_get(codecs, 1), "part-2.json");
    check(PLAN("--gc", in_dir("part-1.json"), "--gc", in_dir("part-2.json"), "--system", in_dir("part-s.json"), "-o",
               in_dir("three.strategy")),
          0, 0, "step ");
    check(SPAWN("plan", "--model", in_dir("m.json"), "--costs", in_dir("costs.json"), "-o", in_dir("one.strategy")), 0,
          0, "step ");
    char *one = get_file("one.strategy"), *three = get_file("three.strategy");
    assert_string_equal(one, three);
    free(one);
    free(three);
    check(SPAWN("plan", "--costs", in_dir("costs.json")), 2, 1, "it has no model: add --model");
    check(SPAWN("compare", "--model", in_dir("m.json"), "--costs", in_dir("costs.json"), "--gc", "fp16", "--system",
                "one-box"),
          0, 1, "fp16 was measured with 2 rank(s)");
    check(REPLAY("--costs", in_dir("costs.json"), "--strategy", "fp32", "--steps", "1"), 0, 0, "fp32");
    check(REPLAY("--costs", in_dir("costs.json"), "-n", "4"), 1, 1, "it is for 1 machine(s) of 2 rank(s)");
    check(REPLAY("--costs", in_dir("costs.json"), "--gc", "bf16"), 1, 1, "it has no codec 'bf16'");
    check(REPLAY("--costs", in_dir("m.json")), 1, 1, "this is a model file; expected a costs file");
    check(REPLAY("--costs", in_dir("none.json")), 1, 1, "none.json: cannot be read");
    check(COSTS("-n", "2", "-o", "/nowhere/c.json"), 1, 1, "/nowhere/c.json: cannot be written");
    check(COSTS("-n", "2"), 2, 1, "-o is missing");
    check(COSTS("-o", "c.json"), 2, 1, "how many ranks?");
    check(COSTS("-n", "2", "--steps", "4", "-o", in_dir("c.json")), 2, 1, "needs a PROGRAM");
    json_decref(c);
}

/* For how many threads a rank has cores, where computing takes `load` of them: at least one, three at most. */
static void check_cores(const json_t *file, int ranks, int load) {
    const int cores = (int)number(file, "cores") / ranks + 1 - load;
    assert_int_equal(json_integer_value(json_object_get(file, "cores_per_rank")), cores < 1   ? 1
                                                                                  : cores > 3 ? 3
                                                                                              : cores);
}

static void test_json(void **state) {
    (void)state;
    json_t *c = json_of(CODECS("--codec", "efsignsgd", "--sizes", "1024", "--budget", "1", "--json"));
    json_t *one = json_array_get(json_object_get(c, "codecs"), 0);
    assert_true(number(c, "ranks") == 1 && json_array_size(json_object_get(c, "codecs")) == 1);
    assert_string_equal(text(one, "codec"), "efsignsgd");
    assert_true(number(json_array_get(json_object_get(one, "compress"), 0), "us") > 0);
    json_t *l =
        json_of(LINKS("-n", "2", "--sizes", "1024..2048", "--budget", "2s", "--json", "--compute-on", "device"));
    assert_int_equal(json_array_size(json_object_get(l, "links")), 7); /* one machine: flat only */
    check_cores(l, 2, 0);
    json_decref(c);
    json_decref(l);
}

/* Several numbers of ranks; the file on standard output. */
static void test_ranks(void **state) {
    (void)state;
    check(
        LINKS("--ranks", "2,3", "--sizes", "1024", "--budget", "2s", "-o", in_dir("of-%.json"), "--compute-on", "cpu"),
        0, 0, "3 ranks, 1 machine(s)");
    json_t *two = load("of-2.json"), *three = load("of-3.json");
    assert_true(number(two, "ranks_per_machine") == 2 && number(three, "ranks_per_machine") == 3);
    check_cores(two, 2, 1);
    check_cores(three, 3, 1);
    json_t *out = json_of(LINKS("-n", "2", "--sizes", "1024", "--budget", "1s", "-o", "-"));
    assert_true(number(out, "ranks") == 2);
    json_decref(two);
    json_decref(three);
    json_decref(out);
}

static void test_bad_input(void **state) {
    (void)state;
    const int before = files_there(0);
    check(CODECS("--codec", "nonsense"), 1, 1, "there is no codec \"nonsense\"");
    check(CODECS("--codec", "dgc:ratio=7"), 1, 1, "ratio");
    check(CODECS("--codec", "fp16", "--codec", "fp16"), 2, 1, "named twice");
    check(CODECS("-n", "0"), 2, 1, "write a number of ranks");
    check(CODECS("-n", "3", "--machines", "2"), 2, 1, "3 ranks do not divide by 2 machines");
    check(CODECS("--sizes", "5..4"), 2, 1, "--sizes 5..4: write a size or two");
    check(CODECS("--sizes", "2^99"), 2, 1, "write a size or two");
    check(CODECS("--budget", "soon"), 2, 1, "write a time, as in 30s");
    check(CODECS("--codec", "fp16", "--codec", "bf16", "-o", in_dir("gc.json")), 2, 1,
          "write % where a codec's name goes");
    check(CODECS("--codec", "fp16", "-o", "/nowhere/gc.json"), 1, 1,
          "/nowhere/gc.json: cannot be written: No such file");
    check(CODECS("--codec", "fp16", "-o", plan_dir), 1, 1, "Is a directory");
    check(CODECS("fp16"), 2, 1, "'fp16': takes flags only");
    check(CODECS("--as-rank", "3,4", "--codec", "fp16"), 2, 1, "--as-rank is the command's own");
    check(LINKS("--sizes", "1024"), 2, 1, "how many ranks?");
    check(LINKS("-n", "0"), 2, 1, "write a number of ranks");
    check(LINKS("-n", "1"), 2, 1, "1 rank has no links");
    check(LINKS("-n", "3", "--machines", "2"), 2, 1, "3 ranks do not divide by 2 machines");
    check(LINKS("-n", "2", "--inter", "1gbit"), 2, 1, "--inter has no effect with one machine");
    check(LINKS("-n", "2", "--machines", "2", "--inter", "fast"), 2, 1, "is no rate");
    check(LINKS("-n", "2", "--ranks", "2,4"), 2, 1, "give one of them");
    check(LINKS("--ranks", "2,x"), 2, 1, "as in 2,4,8");
    check(LINKS("--ranks", "2,4", "-o", in_dir("s.json")), 2, 1, "write % where the number goes");
    check(LINKS("-n", "2", "-o", "/nowhere/s.json"), 1, 1, "cannot be written");
    check(LINKS("-n", "2", "--backend", "nonsense", "--budget", "1s", "-o", in_dir("s.json")), 1, 1, "nonsense");
    check(SPAWN("profile", "nonsense"), 2, 1, "no profile of 'nonsense'");
    check(SPAWN("profile"), 2, 1, "costs, codecs, links or model");
    check(SPAWN("profile", "--help"), 0, 0, "examples:");
    check(SPAWN("profile", "codecs", "--help"), 0, 0, "examples:");
    check(SPAWN("help", "profile", "links"), 0, 0, "examples:");
    assert_int_equal(files_there(0), before);
}

/* Ranks start no ranks: it would never end. */
static void test_not_inside_a_job(void **state) {
    (void)state;
    const char *command = getenv("ESPRESSO_COMMAND");
    check(
        SPAWN("run", "-n", "2", "--", command ? command : "build/bin/espresso", "profile", "codecs", "--codec", "fp16"),
        1, 1, "starts ranks of its own: start it by itself");
}

/* Ranks that a launcher started measure together, and rank 0 writes. */
static void test_launched(void **state) {
    (void)state;
    const char *set = getenv("ESPRESSO_COMMAND"), *command = set ? set : "build/bin/espresso";
#define LAUNCHED(...) SPAWN("run", "-n", "2", "--no-prefix", "--", command, "profile", "links", __VA_ARGS__)
    check(LAUNCHED("--sizes", "2^10..2^12", "--budget", "5s", "-o", in_dir("launched.json")), 0, 0, "starting an op");
    json_t *system = load("launched.json");
    assert_true(number(system, "ranks") == 2 && number(system, "machines") == 1);
    check_points(
        json_object_get(json_object_get(json_object_get(json_object_get(system, "flat"), "tables"), "allreduce"),
                        "points"),
        3, 1024);
    json_decref(system);
    const int before = files_there(0);
    check(LAUNCHED("--machines", "2"), 2, 1, "on the machines where it starts them: leave it out");
    check(LAUNCHED("-o", "/no/such/folder/x.json"), 1, 1, "cannot be written");
    check(LAUNCHED("-n", "2"), 1, 1, "starts ranks of its own");
    assert_int_equal(files_there(0), before);
}

/* The process id that rank 1 has: a child of the command with ESPRESSO_RANK=1. 0: not there yet. */
static pid_t rank_one(pid_t command) {
    char path[64], environment[16384];
    long child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)command, (int)command);
    FILE *f = fopen(path, "r");
    pid_t found = 0;
    while (f && !found && fscanf(f, "%ld", &child) == 1) {
        snprintf(path, sizeof path, "/proc/%ld/environ", child);
        FILE *e = fopen(path, "r");
        const size_t n = e ? fread(environment, 1, sizeof environment - 1, e) : 0;
        for (size_t i = 0; i < n; i += strlen(environment + i) + 1) {
            environment[n] = 0;
            if (!strcmp(environment + i, "ESPRESSO_RANK=1")) found = (pid_t)child;
        }
        if (e) fclose(e);
    }
    if (f) fclose(f);
    return found;
}

static void test_killed_rank(void **state) {
    (void)state;
    const int before = files_there(0);
    for (int k = 0; k < 2; k++) {
        const char *const codecs[] = {"profile", "codecs", "-n", "2", "--codec", "dgc", "-o", in_dir("killed.json"),
                                      NULL};
        const char *const links[] = {"profile", "links", "-n", "2", "-o", in_dir("killed.json"), NULL};
        spawned s = spawn_start(k ? links : codecs);
        pid_t pid = 0;
        const struct timespec pause = {0, 20000000};
        for (int i = 0; i < 500 && !pid; i++) {
            nanosleep(&pause, NULL);
            pid = rank_one(s.pid);
        }
        assert_true(pid > 0);
        nanosleep(&pause, NULL);
        assert_int_equal(kill(pid, SIGKILL), 0);
        spawn_end(&s);
        assert_true(spawn_nobody_left(&s));
        check(s, 1, 1, "rank 1 (pid ");
        assert_int_equal(files_there(0), before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),       cmocka_unit_test(test_json),    cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_bad_input),        cmocka_unit_test(test_costs),   cmocka_unit_test(test_killed_rank),
        cmocka_unit_test(test_not_inside_a_job), cmocka_unit_test(test_launched)};
    return cmocka_run_group_tests(tests, plan_files_open, plan_files_close);
}
