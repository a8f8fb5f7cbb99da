/* test_profile.c: `espresso profile`: costs files that espresso plan reads, whole or not at all, and errors that say what to do. The trainer
 * is this program itself. What the numbers are is not looked at: other programs run here too. */
/* runs: quiet slow asan-long no-tsan: ranks are processes; unit/test_step has their threads */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/common/library.h"
#include "plan_files.h"
#include <fcntl.h>

#define PROFILE(...) SPAWN("profile", __VA_ARGS__)
#define CODECS(...) SPAWN("profile", "--only", "codecs", __VA_ARGS__)
#define LINKS(...) SPAWN("profile", "--only", "links", __VA_ARGS__)
#define MODEL(...) SPAWN("profile", "--only", "model", __VA_ARGS__)
#define REPLAY(...) SPAWN("replay", "--model", in_dir("m.json"), "--elements-scale", "0.001", __VA_ARGS__)

static char self[512];

/* ---- the trainer ----------------------------------------------------------------------------------------------------------- */
/* Two tensors, `steps` steps. */
static int trainer(int steps) {
    static const esp_stream here;
    float grad[2][100];
    esp_ctx *ctx;
    memset(grad, 0, sizeof grad);
    if (esp_open(NULL, &ctx)) return 3;
    for (int i = 0; i < 2; i++) {
        esp_tensor_desc d;
        memset(&d, 0, sizeof d);
        d.name = i ? "first" : "last";
        d.count = 100;
        if (esp_tensor_add(ctx, &d, NULL)) return 4;
    }
    if (esp_start(ctx)) return 5;
    for (int k = 0; k < steps; k++) {
        for (uint32_t i = 0; i < 2; i++) {
            usleep(300);
            if (esp_push(ctx, i, grad[i], here)) return 6;
        }
        if (esp_wait_all(ctx)) return 7;
    }
    esp_close(ctx);
    return 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------------------ */
static json_t *load(const char *name) {
    json_error_t e;
    json_t *j = json_load_file(in_dir(name), JSON_REJECT_DUPLICATES, &e);
    if (!j) fail_msg("%s:%d: %s", name, e.line, e.text);
    return j;
}

static json_t *at(const json_t *j, const char *key) { return json_object_get(j, key); }

static void put_part(json_t *whole, const char *name) {
    char *text = json_dumps(whole, 0);
    put_file(name, text);
    free(text);
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

/* Everything in the folder that is not hidden must be here before and after. */
static int hidden_files(void) {
    DIR *d = opendir(plan_dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] == '.' && strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    if (d) closedir(d);
    return n;
}

/* ---- what is measured --------------------------------------------------------------------------------------------------------- */
static void check_system(const json_t *system) {
    static const char *const levels[] = {"flat", "intra", "inter"}, *const colls[] = {"allreduce", "gather"};
    assert_true(number(system, "ranks") == 4 && number(system, "machines") == 2 &&
                number(system, "ranks_per_machine") == 2);
    for (int level = 0; level < 3; level++)
        for (int k = 0; k < 2; k++)
            check_points(at(at(at(at(system, levels[level]), "tables"), colls[k]), "points"), 5, 1024);
    assert_true(number(at(system, "dispatch_us"), "cpu") > 0);
}

static void check_codecs(const json_t *codecs) {
    const json_t *dgc = json_array_get(codecs, 0), *fp16 = json_array_get(codecs, 1),
                 *cpu = at(at(dgc, "devices"), "cpu");
    assert_int_equal(json_array_size(codecs), 2);
    assert_string_equal(text(dgc, "codec"), "dgc:ratio=0.01");
    check_points(at(cpu, "compress"), 5, 1024);
    check_points(at(cpu, "decompress"), 5, 1024);
    assert_true(number(dgc, "ranks") == 4 && number(dgc, "cores") >= 1 && number(dgc, "spread") >= 0);
    assert_true(json_is_boolean(at(dgc, "noisy")) && number(dgc, "error") > 0.1);
    assert_true(json_is_true(at(fp16, "reducible")) && number(fp16, "error") < 1e-5);
    assert_true(number(at(fp16, "payload"), "units_per_element") == 2);
}

/* A trainer that would run for ever is measured and ended; one file has all that a plan needs. */
static void everything_in_one_file(void **state) {
    (void)state;
    spawned s = PROFILE("-n", "4", "--machines", "2", "--inter", "1gbit,50us", "--codecs", "dgc:ratio=0.01; fp16",
                        "--up-to", "16384", "--budget", "6s", "--steps", "6", "-o", in_dir("all.json"), "--", self,
                        "--trainer", "1000000");
    assert_true(spawn_nobody_left(&s));
    assert_true(spawn_said(&s, 0, "2 tensors, 200 elements; forward "));
    assert_true(spawn_said(&s, 0, "medians of 6 steps, 4 rank(s)"));
    assert_true(spawn_said(&s, 0, "links: intra ") && spawn_said(&s, 0, "dgc:ratio=0.01 "));
    assert_false(spawn_said(&s, 1, " left, after"));
    check(s, 0, 0, "\nwritten: ");
    json_t *j = load("all.json"), *model = at(j, "model");
    assert_string_equal(text(j, "inter"), "1gbit,50us");
    check_system(at(j, "system"));
    check_codecs(at(j, "codecs"));
    assert_true(number(model, "steps") == 6 && number(model, "ranks") == 4);
    assert_string_equal(text(json_array_get(at(model, "tensors"), 0), "name"), "last");
    assert_int_equal(hidden_files(), 0);
    check(SPAWN("plan", "--costs", in_dir("all.json")), 0, 0, "step ");
    json_decref(j);
}

/* The one file gives the same plan as files of its parts in their own formats, and each flag of plan finds its part in it. */
static void the_same_plan_from_parts(void **state) {
    (void)state;
    char *plans[3];
    json_t *j = load("all.json");
    put_part(at(j, "system"), "part-s.json");
    put_part(json_array_get(at(j, "codecs"), 0), "part-1.json");
    put_part(json_array_get(at(j, "codecs"), 1), "part-2.json");
    check(PLAN("--gc", in_dir("part-1.json"), "--gc", in_dir("part-2.json"), "--system", in_dir("part-s.json"), "-o",
               in_dir("0.strategy")),
          0, 0, "step ");
    check(SPAWN("plan", "--model", in_dir("m.json"), "--costs", in_dir("all.json"), "-o", in_dir("1.strategy")), 0, 0,
          "step ");
    check(PLAN("--gc", in_dir("part-1.json"), "--gc", in_dir("part-2.json"), "--system", in_dir("all.json"), "-o",
               in_dir("2.strategy")),
          0, 0, "step ");
    for (int i = 0; i < 3; i++)
        plans[i] = get_file((char[]){(char)('0' + i), '.', 's', 't', 'r', 'a', 't', 'e', 'g', 'y', 0});
    assert_string_equal(plans[0], plans[1]);
    assert_string_equal(plans[0], plans[2]);
    for (int i = 0; i < 3; i++) free(plans[i]);
    check(PLAN("--model", in_dir("all.json")), 0, 0, "2 tensors");
    spawned s = PLAN("--gc", in_dir("part-1.json"), "--gc", in_dir("part-2.json"), "--system", in_dir("part-s.json"));
    assert_false(spawn_said(&s, 1, "was measured with"));
    assert_false(spawn_said(&s, 1, "unknown"));
    spawn_free(&s);
    check(PLAN("--gc", in_dir("part-2.json"), "--system", "paper-pcie", "--forbid", "*gpu*"), 0, 1,
          "was measured with 4 rank(s), and this plan is for 64, 8 a machine");
    check(PLAN("--gc", in_dir("part-2.json"), "--system", in_dir("part-s.json"), "--machines", "8"), 0, 1,
          "part-s.json was measured with 4 rank(s), and this plan is for 16");
    check(SPAWN("compare", "--model", in_dir("m.json"), "--costs", in_dir("all.json"), "--gc", "fp16", "--system",
                "one-box"),
          0, 1, "fp16 was measured with 4 rank(s)");
    json_decref(j);
}

static void replay_takes_it(void **state) {
    (void)state;
    check(REPLAY("--costs", in_dir("all.json"), "--strategy", "fp32", "--steps", "1"), 0, 0, "fp32");
    check(REPLAY("--costs", in_dir("all.json"), "-n", "2", "--machines", "1"), 1, 1,
          "it is for 2 machine(s) of 2 rank(s)");
    check(REPLAY("--costs", in_dir("all.json"), "--gc", "bf16"), 1, 1, "it has no codec 'bf16'");
    check(REPLAY("--costs", in_dir("m.json")), 1, 1, "this is a model file; expected a costs file");
    check(REPLAY("--costs", in_dir("none.json")), 1, 1, "none.json: cannot be read");
}

/* A part alone, as another file of the same format. What a file lacks must come from others. */
static void parts_alone(void **state) {
    (void)state;
    json_t *model = json_of(MODEL("--steps", "3", "-o", "-", "--", self, "--trainer", "1000000"));
    json_t *codecs =
        json_of(CODECS("-n", "1", "--codecs", "efsignsgd", "--up-to", "1024", "--budget", "1s", "-o", "-"));
    assert_true(!at(model, "system") && json_array_size(at(model, "codecs")) == 0 &&
                number(at(model, "model"), "ranks") == 1);
    assert_true(!at(codecs, "system") && !at(codecs, "model") && json_array_size(at(codecs, "codecs")) == 1);
    for (int ranks = 2; ranks < 4; ranks++) {
        json_t *links = json_of(LINKS("-n", ranks == 2 ? "2" : "3", "--up-to", "2048", "--budget", "1s", "-o", "-"));
        json_t *system = at(links, "system");
        const int cores = (int)number(system, "cores") / ranks; /* one of the rank's threads computes */
        assert_true(number(system, "ranks_per_machine") == ranks && json_array_size(at(links, "codecs")) == 0);
        assert_int_equal(json_integer_value(at(system, "cores_per_rank")), cores < 1 ? 1 : cores > 3 ? 3 : cores);
        put_part(links, "links.json");
        json_decref(links);
    }
    put_part(model, "model.json");
    put_part(codecs, "codecs.json");
    check(SPAWN("plan", "--costs", in_dir("codecs.json"), "--system", in_dir("links.json"), "--model",
                in_dir("model.json")),
          0, 0, "step ");
    check(SPAWN("plan", "--costs", in_dir("codecs.json"), "--system", "one-box"), 2, 1, "it has no model: add --model");
    check(SPAWN("plan", "--costs", in_dir("model.json"), "--gc", "fp16"), 2, 1,
          "it has no links: measure them by espresso profile, or");
    check(SPAWN("replay", "--costs", in_dir("model.json"), "-n", "2", "--gc", "fp16"), 2, 1,
          "it has no links: measure them");
    check(SPAWN("plan", "--costs", in_dir("links.json"), "--model", "bert-base"), 2, 1, "it has no codec: add --gc");
    json_decref(model);
    json_decref(codecs);
}

/* ---- the trainer's end ---------------------------------------------------------------------------------------------------------- */
/* SIGTERM does not end it: SIGKILL does. What it prints does not mix with ours. */
static void a_stubborn_trainer(void **state) {
    char script[700];
    (void)state;
    snprintf(script, sizeof script, "echo hello; '%s' --trainer 20; trap '' TERM; sleep 60; sleep 60", self);
    spawned s = MODEL("--steps", "3", "-o", in_dir("t.json"), "--", "sh", "-c", script);
    assert_null(strstr(s.text[0], "hello"));
    assert_true(spawn_nobody_left(&s));
    check(s, 0, 1, "hello\n");
}

static void too_few_steps(void **state) {
    (void)state;
    check(MODEL("-o", in_dir("t.json"), "--", self, "--trainer", "4"), 1, 1,
          "exited with status 0 after too few steps: 4; 5 are not counted, and then 100 are wanted (--steps)");
    check(MODEL("-o", in_dir("t.json"), "--", self, "--trainer", "9"), 0, 1,
          "warning: only 4 of 100 steps were made, and only rank 0's times count");
}

/* Where the trainer is wrong, links and codecs are not measured, and an older file stays as it was. */
static void what_gives_no_file(void **state) {
    (void)state;
    static const struct {
        const char *script, *says;
    } cases[] = {{"exit 0", "exited with status 0 and never called esp_start: is it a program that uses espresso?"},
                 {"exit 9", "'sh' exited with status 9 before its times were measured: nothing was written"},
                 {"kill -SEGV $$", "'sh' was killed by signal 11 (Segmentation fault) before"}};
    put_file("t.json", "old");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(PROFILE("-n", i ? "1" : "2", "--only", i ? "model" : "model,links,codecs", "-o", in_dir("t.json"), "--",
                      "sh", "-c", cases[i].script),
              1, 1, i ? "'sh'" : cases[i].says);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(MODEL("-o", in_dir("t.json"), "--", "sh", "-c", cases[i].script), 1, 1, cases[i].says);
    check(MODEL("-o", in_dir("t.json"), "--", self, "--trainer", "0"), 1, 1,
          "without a step: it called esp_start, but never esp_wait_all");
    const char *args[] = {"profile", "-n", "2", "-o", in_dir("t.json"), "--", "sh", "-c", "echo ready; sleep 60", NULL};
    spawned s = spawn_start(args);
    assert_true(spawn_read(&s, "[0] ready"));
    assert_true(spawn_read(&s, "[1] ready"));
    kill(s.pid, SIGINT);
    spawn_end(&s);
    assert_true(spawn_nobody_left(&s));
    check(s, 130, 1, "ended by signal 2 (Interrupt): nothing was written");
    char *text = get_file("t.json");
    assert_string_equal(text, "old");
    free(text);
    assert_int_equal(hidden_files(), 0);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------------------- */
static const char *command(void) {
    const char *set = getenv("ESPRESSO_COMMAND");
    return set ? set : "build/bin/espresso";
}

/* Ranks that a launcher started measure together, and rank 0 writes. Ranks start no ranks: it would never end. */
static void launched(void **state) {
    (void)state;
#define LAUNCHED(...) SPAWN("run", "-n", "2", "--no-prefix", "--", command(), "profile", "--only", "links", __VA_ARGS__)
    check(LAUNCHED("--up-to", "4096", "--budget", "5s", "-o", in_dir("launched.json")), 0, 0, " to start an op; ");
    json_t *j = load("launched.json"), *system = at(j, "system");
    assert_true(number(system, "ranks") == 2 && number(system, "machines") == 1);
    check_points(at(at(at(at(system, "flat"), "tables"), "allreduce"), "points"), 3, 1024);
    json_decref(j);
    const int before = files_there(0);
    check(LAUNCHED("--machines", "2", "-o", "x"), 2, 1, "on the machines where it starts them: leave it out");
    check(LAUNCHED("-o", "/no/such/folder/x.json"), 1, 1, "cannot be written");
    check(LAUNCHED("-n", "2", "-o", "x"), 2, 1, "starts ranks of its own");
    check(SPAWN("run", "-n", "2", "--", command(), "profile", "-o", "x", "./train"), 2, 1,
          "ranks of a launcher measure no PROGRAM");
    assert_int_equal(files_there(0), before);
}

/* The process id that rank 1 has: a child of the command with ESPRESSO_RANK=1. 0: not there yet. */
static pid_t rank_one(pid_t parent) {
    char path[64], environment[16384];
    long child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
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

static void killed_rank(void **state) {
    (void)state;
    const int before = files_there(0);
    for (int k = 0; k < 2; k++) {
        const char *const args[] = {"profile", "-n", "2", "--only", k ? "links" : "codecs", "-o", in_dir("killed.json"),
                                    NULL};
        spawned s = spawn_start(args);
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

/* ---- what the user sees ------------------------------------------------------------------------------------------------------------ */
/* Runs `espresso profile`'s words with stderr on a terminal, and returns what was shown there. */
static size_t on_a_terminal(const char *const *words, char *shown, size_t cap) {
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && !grantpt(master) && !unlockpt(master));
    const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(terminal, 2);
        close(terminal);
        dup2(open("/dev/null", O_WRONLY), 1);
        close(master);
        execv(command(), (char *const *)(uintptr_t)words);
        _exit(99);
    }
    close(terminal);
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n + 1 < cap; n += got > 0 ? (size_t)got : 0)
        got = read(master, shown + n, cap - 1 - n);
    shown[n] = 0;
    int status;
    waitpid(pid, &status, 0);
    close(master);
    assert_int_equal(status, 0);
    return n;
}

static void progress_on_a_terminal(void **state) {
    (void)state;
    static char shown[1 << 16];
    const char *const words[] = {command(), "profile",        "-n",       "2",   "--codecs",  "fp16;int8;topk;dgc",
                                 "--up-to", "4194304",        "--budget", "12s", "--steps",   "2000",
                                 "-o",      in_dir("p.json"), "--",       self,  "--trainer", "1000000",
                                 NULL};
    on_a_terminal(words, shown, sizeof shown);
    const char *trained = strstr(shown, "trainer: step "), *measured = strstr(shown, ", round ");
    if (!trained || !measured) fail_msg("shown: %s", shown);
    assert_non_null(strstr(trained, " of 2005: about "));
    assert_non_null(strstr(measured, " of 3: at most "));
    assert_non_null(strstr(measured, " s left, after"));
}

static void wrong_usage(void **state) {
    (void)state;
    static const struct {
        const char *args[12];
        int status;
        const char *says;
    } cases[] = {
        {{"-o", "c.json"}, 2, "how many ranks? For example: espresso profile -n 4 -o costs.json -- ./train"},
        {{"costs", "-n", "2", "-o", "c.json"}, 2, "'costs' is no subcommand any more"},
        {{"-n", "2"}, 2, "-o is missing: the costs file to write"},
        {{"-n", "0", "-o", "c.json"}, 2, "-n 0: expected a whole number"},
        {{"-n", "1", "-o", "c.json"}, 2, "1 rank has no links"},
        {{"-n", "3", "--machines", "2", "-o", "c.json"}, 2, "3 ranks do not divide by 2 machines"},
        {{"-n", "2", "--inter", "1gbit", "-o", "c.json"}, 2, "--inter has no effect with one machine"},
        {{"-n", "2", "--machines", "2", "--inter", "fast", "-o", "c.json"}, 1, "inter=fast is not a rate"},
        {{"-n", "2", "--codecs", "nonsense", "-o", "c.json"}, 1, "there is no codec \"nonsense\""},
        {{"-n", "2", "--codecs", "dgc:ratio=7", "-o", "c.json"}, 1, "ratio"},
        {{"-n", "2", "--codecs", "fp16;fp16", "-o", "c.json"}, 2, "fp16 is there twice"},
        {{"-n", "2", "--codecs", " ;", "-o", "c.json"}, 2, "write codecs with ';' between"},
        {{"-n", "2", "--device", "tpu", "-o", "c.json"}, 2, "write cpu, gpu or both"},
        {{"-n", "2", "--up-to", "1000", "-o", "c.json"}, 2, "--up-to 1000: write a number from 1024 to 2^36"},
        {{"-n", "2", "--up-to", "all", "-o", "c.json"}, 2, "--up-to all: write a number"},
        {{"-n", "2", "--budget", "soon", "-o", "c.json"}, 2, "write a time, as in 30s"},
        {{"-n", "2", "--only", "links,all", "-o", "c.json"}, 2, "the parts are model, links and codecs"},
        {{"-n", "2", "--steps", "4", "-o", "c.json"}, 2, "--steps needs a PROGRAM"},
        {{"-n", "2", "--steps", "0", "-o", "c.json", "ls"}, 2, "--steps 0: expected a whole number"},
        {{"-n", "2", "--only", "links", "-o", "c.json", "ls"}, 2, "'ls' is no flag, and --only leaves out PROGRAM"},
        {{"-n", "2", "--only", "model", "-o", "c.json"}, 2, "no program to measure"},
        {{"--only", "model", "--machines", "2", "-o", "c.json", "ls"}, 2, "--machines needs -n"},
        {{"-n", "2", "-o", "/nowhere/c.json"}, 1, "/nowhere/c.json: cannot be written: No such file"},
        {{"-n", "2", "-o", "/tmp"}, 1, "-o /tmp: cannot be written: Is a directory"},
        {{"-n", "2", "-o", "c.json", "--", "./no/such"}, 1, "cannot start './no/such': No such file"},
        {{"-n", "2", "--as-rank", "3,4", "-o", "c.json"}, 2, "--as-rank is the command's own"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[14] = {"profile"};
        memcpy(args + 1, cases[i].args, sizeof cases[i].args);
        check(spawn_all(args), cases[i].status, 1, cases[i].says);
    }
    setenv("ESPRESSO_BACKEND", "nonsense", 1);
    check(LINKS("-n", "2", "--budget", "1s", "-o", in_dir("s.json")), 1, 1, "nonsense");
    unsetenv("ESPRESSO_BACKEND");
    check(PROFILE("--help"), 0, 0, "examples:");
    check(SPAWN("help", "profile"), 0, 0, "examples:");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_in_one_file),
        cmocka_unit_test(the_same_plan_from_parts),
        cmocka_unit_test(replay_takes_it),
        cmocka_unit_test(parts_alone),
        cmocka_unit_test(a_stubborn_trainer),
        cmocka_unit_test(too_few_steps),
        cmocka_unit_test(what_gives_no_file),
        cmocka_unit_test(launched),
        cmocka_unit_test(killed_rank),
        cmocka_unit_test(progress_on_a_terminal),
        cmocka_unit_test(wrong_usage),
    };
    if (argc == 3 && !strcmp(argv[1], "--trainer")) return trainer(atoi(argv[2]));
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return 1;
    unsetenv("ESPRESSO_STATS");
    unsetenv("ESPRESSO_PROFILE");
    return cmocka_run_group_tests(tests, plan_files_open, plan_files_close);
}
