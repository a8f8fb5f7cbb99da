/* test_profile_model.c: `espresso profile model`: a trainer (this program itself) is measured and ended. A program
 * that is no trainer, ends too early or crashes gets an error that says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/common/library.h"
#include "spawn.h"

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

static char folder[64], out[96], self[512];

static int setup(void **state) {
    (void)state;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    snprintf(folder, sizeof folder, "/tmp/test_profile_model_XXXXXX");
    if (n <= 0 || !mkdtemp(folder)) return -1;
    snprintf(out, sizeof out, "%s/m.json", folder);
    unsetenv("ESPRESSO_STATS");
    unsetenv("ESPRESSO_PROFILE");
    return 0;
}
static int teardown(void **state) {
    (void)state;
    unlink(out);
    return rmdir(folder); /* fails where anything else was left */
}

static void said(const spawned *s, int k, const char *what) {
    if (!spawn_said(s, k, what)) fail_msg("not said: %s\nin:\n%s\n%s", what, s->text[0], s->text[1]);
}

/* A trainer that would run for ever; the file is what the planner reads. */
static void measured_and_ended(void **state) {
    (void)state;
    spawned s = SPAWN("profile", "model", "-n", "2", "--steps", "6", "--skip", "1", "--name", "two layers", "-o", out,
                      "--", self, "--trainer", "1000000");
    if (s.status) fail_msg("status %d: %s", s.status, s.text[1]);
    assert_true(spawn_nobody_left(&s));
    said(&s, 0, "two layers: 2 tensors, 200 elements; forward ");
    said(&s, 0, "medians of 6 steps, 2 rank(s)");
    said(&s, 0, "\nfirst ");
    said(&s, 0, "\nwritten: /tmp/test_profile_model_");
    esp__model_file f;
    assert_int_equal(esp__model_read(out, &f, NULL), ESP_OK);
    assert_true(f.model.n_tensors == 2 && f.steps == 6 && f.measured.ranks == 2);
    assert_string_equal(f.model.tensors[0].name, "last");
    assert_true(f.model.tensors[1].compute_ns > 0);
    esp__model_free(&f);
    spawn_free(&s);
}

static void to_standard_output(void **state) {
    (void)state;
    spawned s = SPAWN("profile", "model", "--steps", "3", "--skip", "0", "-o", "-", "--", self, "--trainer", "1000000");
    assert_int_equal(s.status, 0);
    assert_int_equal(strncmp(s.text[0], "{\n  \"espresso\": 1,\n", 18), 0);
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

/* SIGTERM does not end it: SIGKILL does. What it prints does not mix with ours. */
static void a_stubborn_trainer(void **state) {
    (void)state;
    char script[700];
    snprintf(script, sizeof script, "echo hello; '%s' --trainer 20; trap '' TERM; sleep 60; sleep 60", self);
    spawned s = SPAWN("profile", "model", "--steps", "3", "--skip", "0", "-o", out, "--", "sh", "-c", script);
    assert_int_equal(s.status, 0);
    said(&s, 1, "hello\n");
    assert_null(strstr(s.text[0], "hello"));
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

static void kept_running(void **state) {
    (void)state;
    char script[700];
    snprintf(script, sizeof script, "'%s' --trainer 9; echo went on >&2; exit 3", self);
    spawned s =
        SPAWN("profile", "model", "--steps", "3", "--skip", "0", "--keep-running", "-o", out, "--", "sh", "-c", script);
    assert_int_equal(s.status, 1);
    said(&s, 1, "went on\n");
    said(&s, 1, "'sh' exited with status 3 after that");
    said(&s, 0, "written: ");
    spawn_free(&s);
}

static void too_few_steps(void **state) {
    (void)state;
    spawned s = SPAWN("profile", "model", "-o", out, "--", self, "--trainer", "4");
    assert_int_equal(s.status, 1);
    said(&s, 1,
         "exited with status 0 after too few steps: 4; 5 are not counted (--skip), and then 100 are wanted (--steps)");
    spawn_free(&s);
    s = SPAWN("profile", "model", "-o", out, "--", self, "--trainer", "9"); /* some: a warning */
    assert_int_equal(s.status, 0);
    said(&s, 1, "warning: only 4 of 100 steps were made, and only rank 0's times count");
    spawn_free(&s);
}

static void what_gives_no_file(void **state) {
    (void)state;
    static const struct {
        const char *script, *says;
    } cases[] = {{"exit 0", "exited with status 0 and never called esp_start: is it a program that uses espresso?"},
                 {"exit 9", "'sh' exited with status 9 before its times were measured: nothing was written"},
                 {"kill -SEGV $$", "'sh' was killed by signal 11 (Segmentation fault) before"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spawned s = SPAWN("profile", "model", "-o", out, "--", "sh", "-c", cases[i].script);
        assert_int_equal(s.status, 1);
        said(&s, 1, cases[i].says);
        assert_true(access(out, F_OK) != 0);
        spawn_free(&s);
    }
    spawned s = SPAWN("profile", "model", "-o", out, "--", self, "--trainer", "0");
    said(&s, 1, "without a step: it called esp_start, but never esp_wait_all");
    spawn_free(&s);
}

/* An older file stays as it was. */
static void interrupted(void **state) {
    (void)state;
    FILE *f = fopen(out, "w");
    fputs("old", f);
    fclose(f);
    const char *args[] = {"profile", "model", "-n", "2", "-o", out, "--", "sh", "-c", "echo ready; sleep 60", NULL};
    spawned s = spawn_start(args);
    assert_true(spawn_read(&s, "[0] ready"));
    assert_true(spawn_read(&s, "[1] ready"));
    kill(s.pid, SIGINT);
    spawn_end(&s);
    assert_int_equal(s.status, 130);
    said(&s, 1, "ended by signal 2 (Interrupt): nothing was written");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
    char text[8] = "";
    f = fopen(out, "r");
    assert_int_equal(fread(text, 1, sizeof text - 1, f), 3);
    fclose(f);
    assert_string_equal(text, "old");
}

static void wrong_usage(void **state) {
    (void)state;
    static const struct {
        const char *args[12];
        int status;
        const char *says;
    } cases[] = {
        {{"profile", "model"}, 2, "no program to measure"},
        {{"profile", "model", "--", "ls"}, 2, "-o is missing"},
        {{"profile", "model", "-o", "m.json"}, 2, "no program"},
        {{"profile", "model", "-o", "m.json", "-n", "0", "ls"}, 2, "-n 0: write a number of ranks"},
        {{"profile", "model", "-o", "m.json", "--machines", "2", "ls"}, 2, "--machines needs -n"},
        {{"profile", "model", "-o", "m.json", "-n", "2", "--inter", "1gbit", "ls"}, 2, "--inter needs --machines"},
        {{"profile", "model", "-o", "m.json", "-n", "3", "--machines", "2", "ls"}, 2, "3 ranks do not divide by 2"},
        {{"profile", "model", "-o", "m.json", "--steps", "0", "ls"}, 2, "--steps 0: write a number"},
        {{"profile", "model", "-o", "m.json", "--name", "a,b", "ls"}, 2, "without commas"},
        {{"profile", "model", "-o", "/no/such/m.json", "ls"}, 1, "/no/such/m.json cannot be written: No such file"},
        {{"profile", "model", "-o", "/tmp", "ls"}, 1, "/tmp cannot be written: Is a directory"},
        {{"profile", "model", "-o", "m.json", "./no/such"}, 1, "cannot start './no/such': No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spawned s = spawn_all(cases[i].args);
        if (s.status != cases[i].status || !spawn_said(&s, 1, cases[i].says))
            fail_msg("case %zu (%s): status %d, %s", i, cases[i].says, s.status, s.text[1]);
        spawn_free(&s);
    }
    spawned s = SPAWN("profile", "model", "--help");
    assert_int_equal(s.status, 0);
    said(&s, 0, "--keep-running");
    spawn_free(&s);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(measured_and_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(to_standard_output, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stubborn_trainer, setup, teardown),
        cmocka_unit_test_setup_teardown(kept_running, setup, teardown),
        cmocka_unit_test_setup_teardown(too_few_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(what_gives_no_file, setup, teardown),
        cmocka_unit_test_setup_teardown(interrupted, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_usage, setup, teardown),
    };
    if (argc == 3 && !strcmp(argv[1], "--trainer")) return trainer(atoi(argv[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
