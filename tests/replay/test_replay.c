/* test_replay.c: `espresso replay`: both modes run real ranks to the end, say the same in all forms, refuse what would measure
 * something else, and leave nothing behind when a rank dies. No test depends on how long anything took. */
#include "espresso_impl/base/cores.h"
#include "tests/tools/plan_files.h"
#include "tests/common/skip.h"

/* Gaps of 200 us and more; a hundredth of its elements is enough to compress. */
static const char timed[] = "{\"espresso\": 1, \"model\": \"timed\", \"forward_us\": 500, \"update_us\": 100, "
                            "\"dtype\": \"f32\", \"tensors\": [\n"
                            "  {\"name\": \"head.weight\", \"elements\": 4000000, \"compute_us\": 500},\n"
                            "  {\"name\": \"norm.bias\", \"elements\": 10, \"compute_us\": 200},\n"
                            "  {\"name\": \"norm.weight\", \"elements\": 1000, \"compute_us\": 200},\n"
                            "  {\"name\": \"body.weight\", \"elements\": 2500000, \"compute_us\": 700.5},\n"
                            "  {\"name\": \"embed\", \"elements\": 900000, \"compute_us\": 900}\n"
                            "]}\n";
static const char hurried[] = "{\"espresso\": 1, \"model\": \"hurried\", \"forward_us\": 10, \"dtype\": \"f32\", "
                              "\"tensors\": [{\"name\": \"a\", \"elements\": 1000, \"compute_us\": 20},\n"
                              "{\"name\": \"b\", \"elements\": 1000, \"compute_us\": 20},\n"
                              "{\"name\": \"c\", \"elements\": 1000, \"compute_us\": 20}]}\n";
/* Few ops, and computing so long that nothing else counts. */
static const char slow[] = "{\"espresso\": 1, \"model\": \"slow\", \"forward_us\": 1000, \"dtype\": \"f32\", "
                           "\"tensors\": [{\"name\": \"a\", \"elements\": 1000, \"compute_us\": 40000}]}\n";

static const char profiled[] =
    "{\"espresso\": 1, \"model\": \"slow\", \"device\": \"cpu: Some Processor 9\", \"forward_us\": 1000, "
    "\"dtype\": \"f32\", \"tensors\": [{\"name\": \"a\", \"elements\": 1000, \"compute_us\": 40000}]}\n";

#define REPLAY(...) replay((const char *const[]){__VA_ARGS__, NULL})
static spawned replay(const char *const *more) {
    const char *args[48] = {"replay"};
    int n = 1, model = 0;
    for (int i = 0; more[i]; i++) model |= !strcmp(more[i], "--model");
    if (!model) args[n++] = "--model", args[n++] = in_dir("timed.json");
    for (int i = 0; more[i] && n < 47; i++) args[n++] = more[i];
    spawned s = spawn_all(args);
    assert_true(spawn_nobody_left(&s));
    return s;
}

static int open_files(void **state) {
    if (plan_files_open(state)) return 1;
    put_file("timed.json", timed);
    put_file("hurried.json", hurried);
    put_file("slow.json", slow);
    put_file("profiled.json", profiled);
    return 0;
}

static void check_strategies(const json_t *j, const char *const *names, size_t n) {
    const json_t *rows = json_object_get(j, "strategies");
    assert_int_equal(json_array_size(rows), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(rows, i), *measured = json_object_get(row, "measured_us");
        assert_string_equal(text(row, "name"), names[i]);
        assert_true(number(row, "predicted_us") > 2500); /* computing alone */
        assert_true(number(measured, "p10") > 2500);
        assert_true(number(measured, "p10") <= number(measured, "p90"));
        if (json_is_true(json_object_get(row, "noisy"))) { /* no number then */
            assert_true(json_is_null(json_object_get(measured, "median")));
        } else {
            assert_true(number(measured, "p10") <= number(measured, "median"));
            assert_true(number(measured, "median") <= number(measured, "p90"));
        }
        assert_true(number(json_object_get(row, "bytes"), "intra") > 0);
        assert_true(number(json_object_get(row, "bytes"), "inter") > 0);
    }
}

/* Holds end at their deadlines or later, never before: a measured step is never shorter than predicted. */
static void model_mode(void **state) {
    (void)state;
    static const char *const names[] = {"fp32", "hipress", "espresso+"};
    json_t *j = json_of(REPLAY("--mode", "model", "--strategy", "fp32,hipress,espresso+", "--system", "paper-pcie",
                               "-n", "4", "--steps", "2", "--json"));
    check_strategies(j, names, 3);
    assert_string_equal(text(j, "mode"), "model");
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(json_object_get(j, "strategies"), i);
        assert_true(number(json_object_get(row, "measured_us"), "p10") >= number(row, "predicted_us") - 1);
    }
    json_decref(j);
}

/* Where ops give up cores and links before they end, too. */
static void model_mode_cores(void **state) {
    (void)state;
    static const char *const names[] = {"fp32", "espresso+"};
    for (int cores = 1; cores <= 3; cores++) {
        json_t *j = json_of(REPLAY("--mode", "model", "--strategy", "fp32,espresso+", "--system", put_cores(cores),
                                   "-n", "4", "--machines", "2", "--steps", "1", "--json"));
        check_strategies(j, names, 2);
        for (size_t i = 0; i < 2; i++) {
            const json_t *row = json_array_get(json_object_get(j, "strategies"), i);
            assert_true(number(json_object_get(row, "measured_us"), "p10") >= number(row, "predicted_us") - 1);
        }
        json_decref(j);
    }
}

/* The links are made so slow that the ratio holds. */
static void model_ratio(void **state) {
    (void)state;
    json_t *j = json_of(REPLAY("--mode", "model", "--strategy", "fp32", "--ratio", "3", "--steps", "1", "--json"));
    assert_true(fabs(number(j, "ratio") - 3) < 0.03);
    json_decref(j);
}

/* Bytes are exact: fp32 moves every element over each level as often as its collectives do, whatever the time. */
static void real_mode(void **state) {
    (void)state;
    static const char *const names[] = {"fp32", "layerwise", "espresso+"};
    json_t *j = json_of(REPLAY("--strategy", "fp32,layerwise,espresso+", "-n", "4", "--machines", "2",
                               "--elements-scale", "0.01", "--steps", "2", "--time-scale", "2", "--force", "--json"));
    check_strategies(j, names, 3);
    assert_string_equal(text(j, "mode"), "real");
    assert_int_equal(number(j, "n"), 4);
    const json_t *bytes = json_object_get(json_array_get(json_object_get(j, "strategies"), 0), "bytes");
    /* 40000, 1, 10, 25000 and 9000 elements: halves of 20000, 1, 5, 12500 and 4500 on each of two machines: reduce_scatter
     * and allgather bring every rank the other half once each, allreduce each rank the other machine's half */
    const double elements = 40000 + 10 + 25000 + 9000;
    assert_true(fabs(number(bytes, "intra") - 4 * 4 * elements) < 64);
    assert_true(fabs(number(bytes, "inter") - 4 * 2 * elements) < 64);
    json_decref(j);
}

/* Every form at once, and nothing but those files. */
static void all_forms(void **state) {
    (void)state;
    const int before = files_there(0);
    check(REPLAY("--mode", "model", "--strategy", "fp32,espresso+", "--steps", "1", "--timeline", in_dir("t.html"),
                 "--trace", in_dir("t.json"), "--page", in_dir("p.html"), "--csv", in_dir("r.csv")),
          0, 0, "espresso+");
    assert_int_equal(files_there(0), before + 4);
}

static void a_file_is_a_strategy(void **state) {
    (void)state;
    check(PLAN("--model", in_dir("hurried.json"), "--machines", "2", "-o", in_dir("h.strategy")), 0, 0, "written");
    check(REPLAY("--mode", "model", "--strategy", in_dir("h.strategy"), "--steps", "1"), 1, 1, "h.strategy");
}

static void wrong_usage(void **state) {
    (void)state;
    check(SPAWN("replay"), 2, 1, "--model is missing");
    check(REPLAY("-n", "5", "--machines", "2"), 2, 1, "does not divide by 2 machines");
    check(REPLAY("-n", "0"), 2, 1, "whole number");
    check(REPLAY("--mode", "both"), 2, 1, "model or real");
    check(REPLAY("--inter", "fast"), 2, 1, "is no rate");
    check(REPLAY("--inter", "1gbit", "--machines", "1"), 2, 1, "no effect with one machine");
    check(REPLAY("--elements-scale", "0"), 2, 1, "expected a number");
    check(REPLAY("--strategy", "fp32,fp32"), 2, 1, "twice");
    check(REPLAY("--json", "--csv", "-"), 2, 1, "only one of");
    check(REPLAY("--system", "paper-pcie"), 2, 1, "--mode model");
    check(REPLAY("--as-rank", "3,4"), 2, 1, "leave it out");
    setenv("ESPRESSO_RANK", "1", 1); /* ranks that start ranks that start ranks would be the end of the machine */
    check(REPLAY("--strategy", "fp32"), 1, 1, "run it by itself");
    check(REPLAY("--as-rank", "3"), 2, 1, "leave it out");
    unsetenv("ESPRESSO_RANK");
}

static void what_is_not_there(void **state) {
    (void)state;
    check(REPLAY("--model", "nosuch"), 1, 1, "no model 'nosuch'");
    check(REPLAY("--strategy", "hipres"), 1, 1, "did you mean 'hipress'");
    check(REPLAY("--gc", "topq:ratio=0.1"), 1, 1, "topq");
    check(REPLAY("--gc", "topk:ratoi=0.1"), 1, 1, "ratoi");
    check(REPLAY("--mode", "model", "--system", "moon"), 1, 1, "no system 'moon'");
    check(REPLAY("--page", "/nonexistent/p.html"), 1, 1, "/nonexistent/p.html: cannot be written");
    check(REPLAY("--model", "llama-1b", "--elements-scale", "10", "-n", "64"), 1, 1, "of memory");
}

static void refused(void **state) {
    (void)state;
    check(REPLAY("--model", in_dir("hurried.json"), "--mode", "model"), 1, 1, "under 20.00 us");
    check(REPLAY("--model", in_dir("hurried.json"), "--mode", "model", "--force", "--steps", "1"), 0, 0, "--force");
    /* twice as many ranks that compute as there are cores: too many, however long the rest takes */
    char n[16];
    const long cores = (long)esp__cores();
    snprintf(n, sizeof n, "%ld", 2 * cores);
    if (cores > 8) test_skip("more than 8 cores: twice as many ranks are no test of a machine that is too small");
    check(REPLAY("--model", in_dir("slow.json"), "--compute", "busy", "-n", n, "--machines", "2", "--strategy", "fp32"),
          1, 1, "cores x step");
    /* so it is where the profile says that the times are a processor's, and not where they are an accelerator's */
    check(REPLAY("--model", in_dir("profiled.json"), "-n", n, "--machines", "2", "--strategy", "fp32"), 1, 1,
          "cores x step");
    put_file("gpu.json",
             "{\"espresso\": 1, \"model\": \"slow\", \"device\": \"cpuless GPU\", \"forward_us\": 1000, \"dtype\": "
             "\"f32\", \"tensors\": [{\"name\": \"a\", \"elements\": 1000, \"compute_us\": 4000}]}\n");
    check(REPLAY("--model", in_dir("gpu.json"), "-n", "2", "--strategy", "fp32", "--steps", "1", "--json"), 0, 0,
          "\"real\"");
}

/* A layer's tensors are ready together: most gaps are zero, and the others are what threads must wake up for. */
static void ready_together(void **state) {
    (void)state;
    static const char pairs[] =
        "{\"espresso\": 1, \"model\": \"pairs\", \"forward_us\": 1000, \"dtype\": \"f32\", \"tensors\": ["
        "{\"name\": \"b.bias\", \"elements\": 1000, \"compute_us\": %d},"
        "{\"name\": \"b.weight\", \"elements\": 1000, \"compute_us\": 0},"
        "{\"name\": \"b.scale\", \"elements\": 1000, \"compute_us\": 0},"
        "{\"name\": \"a.bias\", \"elements\": 1000, \"compute_us\": %d},"
        "{\"name\": \"a.weight\", \"elements\": 1000, \"compute_us\": 0}]}\n";
    char model[sizeof pairs + 32];
    for (int us = 5; us <= 5000; us *= 1000) {
        snprintf(model, sizeof model, pairs, us, us);
        put_file("pairs.json", model);
        const int far = us > 20;
        check(REPLAY("--model", in_dir("pairs.json"), "-n", "2", "--strategy", "fp32", "--steps", "1"), !far, !far,
              far ? "fp32" : "half of all backward gaps are under");
    }
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
    const char *const args[] = {"replay", "--model", in_dir("timed.json"), "--strategy", "fp32", "--inter",
                                "1mbit",  "--csv",   in_dir("killed.csv"), NULL};
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
        cmocka_unit_test(model_mode),     cmocka_unit_test(model_mode_cores),  cmocka_unit_test(model_ratio),
        cmocka_unit_test(real_mode),      cmocka_unit_test(all_forms),         cmocka_unit_test(a_file_is_a_strategy),
        cmocka_unit_test(wrong_usage),    cmocka_unit_test(what_is_not_there), cmocka_unit_test(refused),
        cmocka_unit_test(ready_together), cmocka_unit_test(a_killed_rank),
    };
    return cmocka_run_group_tests(tests, open_files, plan_files_close);
}
