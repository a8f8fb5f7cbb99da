/* test_machines.c: `espresso plan --machines 1,2,8`: the table and the JSON agree with plans for one number of machines, and bad
 * input gets a clear error. */
#include "plan_files.h"

static json_t *row_at(const json_t *j, size_t i) { return json_array_get(json_object_get(j, "scaling"), i); }

/* Each row is the plan that the command makes for that number alone. */
static void rows_are_plans(void **state) {
    static const int machines[] = {1, 2, 4, 8, 16};
    (void)state;
    json_t *j = json_of(PLAN("--json", "--machines", "1,2,4,8,16"));
    const double alone = number(j, "alone_us");
    assert_true(alone == 100 + 500 + 50 + 50 + 700.5 + 900 + 10);
    assert_int_equal(json_array_size(json_object_get(j, "scaling")), 5);
    for (size_t i = 0; i < 5; i++) {
        char n[16];
        const json_t *row = row_at(j, i);
        snprintf(n, sizeof n, "%d", machines[i]);
        json_t *one = json_of(PLAN("--json", "--machines", n));
        assert_int_equal(number(row, "machines"), machines[i]);
        assert_int_equal(number(row, "ranks"), 8 * machines[i]);
        assert_true(number(row, "iteration_us") == number(one, "iteration_us"));
        assert_true(number(row, "fp32_us") == number(one, "fp32_us"));
        assert_true(number(row, "bound_us") == number(one, "bound_any_us"));
        assert_true(number(row, "memory_bytes") == number(one, "memory_bytes"));
        assert_true(fabs(number(row, "scaling") - alone / number(row, "iteration_us")) < 1e-9);
        assert_true(fabs(number(row, "fp32_scaling") - alone / number(row, "fp32_us")) < 1e-9);
        assert_true(number(row, "fp32_scaling") <= number(row, "scaling"));
        assert_true(number(row, "scaling") <= number(row, "scaling_at_most") && number(row, "scaling_at_most") <= 1);
        if (i) assert_true(number(row, "fp32_scaling") <= number(row_at(j, i - 1), "fp32_scaling"));
        json_decref(one);
    }
    json_decref(j);
}

/* In the order that the user wrote, up to the planner's last rank. */
static void any_list(void **state) {
    static const int machines[] = {3, 131072, 5}; /* a million ranks */
    (void)state;
    json_t *j = json_of(PLAN("--json", "--strategy", "fp32", "--machines", "3,131072,5"));
    assert_string_equal(text(j, "strategy"), "fp32");
    assert_int_equal(json_array_size(json_object_get(j, "scaling")), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(number(row_at(j, i), "machines"), machines[i]);
        assert_true(number(row_at(j, i), "iteration_us") == number(row_at(j, i), "fp32_us"));
    }
    json_decref(j);
}

static void table(void **state) {
    (void)state;
    check(PLAN("--machines", "1,64,4096"), 0, 0, "\n    4096    32768  ");
}

static void errors(void **state) {
    static const char *const wrong[] = {"0,1", "1,x", "1,,2", ",1", "1,", "1,2000000", "1, 2", "1,-2", "1,...,8"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char says[64];
        snprintf(says, sizeof says, "--machines %s: ", wrong[i]);
        check(PLAN("--machines", wrong[i]), 2, 1, says);
    }
    check(PLAN("--machines", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"), 2, 1, "at most 16 of them");
    check(PLAN("--machines", "1,2", "-o", in_dir("x")), 2, 1, "give --machines one number");
    check(PLAN("--machines", "1,2", "--explain", "norm.bias"), 2, 1, "give --machines one number");
    check(PLAN("--machines", "1,2", "--what-if", "inter=2x"), 2, 1, "give --machines one number");
    check(COMPARE("--machines", "1,2"), 2, 1, "--machines 1,2: expected a whole number");
    check(PLAN("--machines", "1,262144"), 1, 1, "expected 1 to 1048576 ranks in all"); /* 8 ranks each: two million */
    check(PLAN("--machines", "1,262144"), 1, 1, "this was the plan for 262144 machines");
    check(PLAN("--machines", "2,4", "--max-volume", "0.00001"), 1, 1, "this was the plan for 2 machines");
    check(PLAN("--machines", "1,2", "--system", put_cores(2)), 0, 1, "has measured tables");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_plans),
        cmocka_unit_test(any_list),
        cmocka_unit_test(table),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, plan_files_open, plan_files_close);
}
