/* test_compare.c: `espresso compare`: every strategy is there, ours is the best, and all its forms say the same. */
#include "plan_files.h"

static const char *const all[] = {"fp32",      "ddp",      "fp16",       "layerwise",
                                  "mergecomp", "hipress",  "hitopkcomm", "byteps-compress",
                                  "cpu-only",  "espresso", "espresso+"};
enum { ALL = sizeof all / sizeof *all };

static void every_strategy(void **state) {
    (void)state;
    json_t *j = json_of(COMPARE("--json"));
    const json_t *rows = json_object_get(j, "strategies");
    const double any = number(j, "bound_any_us"), fp32 = number(j, "fp32_us");
    double best = INFINITY, ours = 0;
    assert_int_equal(json_array_size(rows), ALL);
    for (size_t i = 0; i < ALL; i++) {
        const json_t *row = json_array_get(rows, i);
        const double step = number(row, "iteration_us");
        assert_string_equal(text(row, "strategy"), all[i]);
        assert_true(strlen(text(row, "summary")) > 5);
        assert_true(step >= any - 0.001);
        assert_true(number(row, "fp32_us") == fp32);
        if (number(row, "n_units") == 5) assert_true(step >= number(j, "bound_us") - 0.001);
        if (step < best) best = step;
        if (i == ALL - 1) ours = step;
    }
    assert_true(ours <= best);
    assert_true(number(json_array_get(rows, 0), "iteration_us") == fp32);
    assert_true(number(j, "free_compression_us") <= ours);
    json_decref(j);
}

static void picked_and_sorted(void **state) {
    (void)state;
    json_t *j = json_of(COMPARE("--json", "--strategies", "hipress,ddp,espresso+"));
    const json_t *rows = json_object_get(j, "strategies");
    assert_int_equal(json_array_size(rows), 3);
    assert_string_equal(text(json_array_get(rows, 0), "strategy"), "hipress");
    assert_string_equal(text(json_array_get(rows, 2), "strategy"), "espresso+");
    json_decref(j);
}

static void table(void **state) {
    (void)state;
    spawned s = COMPARE("--budget", "50ms");
    assert_int_equal(s.status, 0);
    for (int i = 0; i < ALL; i++) assert_true(spawn_said(&s, 0, all[i]));
    assert_true(spawn_said(&s, 0, "bound, tensors as given"));
    spawn_free(&s);
}

static void page(void **state) {
    (void)state;
    check(COMPARE("--page", in_dir("c.html"), "--strategies", "hipress,espresso+"), 0, 0, "hipress");
    char *html = get_file("c.html");
    assert_non_null(strstr(html, "hipress"));
    assert_non_null(strstr(html, "</html>"));
    free(html);
    spawned s = COMPARE("--page", "-", "--strategies", "fp32");
    assert_int_equal(s.status, 0);
    assert_null(strstr(s.text[0], "speed-up  ")); /* the page alone */
    assert_non_null(strstr(s.text[0], "</html>"));
    spawn_free(&s);
}

static void wrong(void **state) {
    (void)state;
    check(SPAWN("compare"), 2, 1, "--model is missing");
    check(COMPARE("--strategies", "zipper"), 2, 1, "no strategy 'zipper'");
    check(COMPARE("--strategies", ""), 2, 1, "names none");
    check(COMPARE("--json", "--page", "-"), 2, 1, "can go to standard output");
    check(COMPARE("--page", "/nix/c.html"), 1, 1, "/nix/c.html");
    check(COMPARE("--system", "mars"), 1, 1, "There are: paper-nvlink");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy), cmocka_unit_test(picked_and_sorted),
        cmocka_unit_test(table),          cmocka_unit_test(page),
        cmocka_unit_test(wrong),
    };
    return cmocka_run_group_tests(tests, plan_files_open, plan_files_close);
}
