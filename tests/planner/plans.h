/* plans.h makes plans and reads their reports, and fails the test if that fails. */
#ifndef TESTS_PLANNER_PLANS_H
#define TESTS_PLANNER_PLANS_H
#include "problems.h"

static inline esp_plan *make(const problem_input *in, const esp_plan_config *config) {
    esp_plan *plan = NULL;
    if (esp_plan_make(&in->model, in->codecs, in->n_codecs, &in->system, config, &plan))
        fail_msg("esp_plan_make: %s", esp_last_error(NULL));
    return plan;
}

static inline esp_plan *simulate(const problem_input *in, const char *text) {
    esp_plan *plan = NULL;
    if (esp_plan_simulate(&in->model, in->codecs, in->n_codecs, &in->system, NULL, text, &plan))
        fail_msg("esp_plan_simulate: %s of:\n%s", esp_last_error(NULL), text);
    return plan;
}

static inline esp_plan_report report_of(const esp_plan *plan) {
    esp_plan_report r = {.struct_size = sizeof r};
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    return r;
}
#endif
