/* test_replay_report.c: what `espresso replay` shows of a run that is made up: the table, op by op, JSON, CSV, the trace, and
 * the two pages, which headless Chromium opens and uses. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define main espresso_main
#include "tools/espresso.c"
#undef main
#include <setjmp.h>
#include <cmocka.h>

#include "tests/page/page_open.h"
#include "replay_data.h"

static const char *const names[] = {"fp32", "hipress", "cpu-only", "espresso+", NULL};
static const char odd[] = "<b>odd</b>";
static made_run made;

static int open_all(void **state) {
    setenv("ESPRESSO_MODELS", "planner/models", 0);
    return page_folder_open(state) || made_open(&made, "vgg16", names);
}
static int close_all(void **state) {
    made_close(&made);
    return page_folder_close(state);
}

/* The run as a test wants it: everything anew from what was measured. */
static replay_job job_of(replay_result results[4]) {
    replay_job job = made.job;
    memcpy(results, made.results, 4 * sizeof *results);
    job.results = results;
    return job;
}

static const char *in_folder(const char *name) {
    static char path[4][160];
    static unsigned at;
    char *out = path[at++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", page_folder, name);
    return out;
}

/* What the report prints. The caller frees. */
static char *printed(const replay_job *job) {
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    report_print(to, job);
    fclose(to);
    return text;
}
static void says(const char *text, const char *what) {
    if (!strstr(text, what)) fail_msg("\"%s\" is not said in:\n%s", what, text);
}
static void says_not(const char *text, const char *what) {
    if (strstr(text, what)) fail_msg("\"%s\" is said in:\n%s", what, text);
}

static json_t *json_of_report(replay_job *job) {
    json_error_t e;
    job->json = in_folder("out.json");
    assert_int_equal(report_json(job), TOOL_OK);
    json_t *j = json_load_file(job->json, JSON_REJECT_DUPLICATES, &e);
    if (!j) fail_msg("line %d: %s", e.line, e.text);
    return j;
}
static double number_at(const json_t *j, const char *key) {
    const json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("%s: no number", key);
    return json_number_value(v);
}

/* ---- text ------------------------------------------------------------------------------------------------------------ */
static void the_table(void **state) {
    replay_result r[4];
    replay_job job = job_of(r);
    (void)state;
    char *text = printed(&job);
    for (int i = 0; names[i]; i++) {
        says(text, names[i]);
        says(text, tool_time(r[i].median_ns));
        says(text, tool_time(r[i].predicted.report.iteration_ns));
    }
    says(text, "64 on 8 machines, between machines 25gbit,50us");
    says(text, "elements x 0.01");
    says(text, "fastest");
    says(text, "espresso+, op by op");
    says(text, "largest differences");
    says_not(text, "noisy");
    says_not(text, "nan");
    says_not(text, "warning");
    free(text);
    job.strategy_shown = "hipress";
    job.warning = "too much work";
    text = printed(&job);
    says(text, "hipress, op by op");
    says(text, "warning     too much work");
    free(text);
}

static void noisy_is_no_number(void **state) {
    replay_result r[4];
    replay_job job = job_of(r);
    (void)state;
    r[1].noisy = 1;
    char *text = printed(&job);
    says(text, "noisy");
    says_not(text, tool_time(r[1].median_ns));
    free(text);
    json_t *j = json_of_report(&job);
    const json_t *row = json_array_get(json_object_get(j, "strategies"), 1);
    assert_true(json_is_true(json_object_get(row, "noisy")));
    assert_true(json_is_null(json_object_get(row, "error_percent")));
    assert_true(json_is_null(json_object_get(json_object_get(row, "measured_us"), "median")));
    assert_true(number_at(json_object_get(row, "measured_us"), "p90") > 0);
    json_decref(j);
}

/* The choice is the fastest; within its spread; not; not known. */
static void the_verdict(void **state) {
    static const char *const expected[] = {"is the fastest measured",
                                           "is within the spread of the fastest measured, cpu-only",
                                           "takes 50.0% longer than the fastest measured, cpu-only", "too noisy"};
    (void)state;
    for (int k = 0; k < 4; k++) {
        replay_result r[4];
        replay_job job = job_of(r);
        for (int i = 0; i < 4; i++) r[i].median_ns = 200e6 - 10e6 * i, r[i].p10_ns = 0, r[i].p90_ns = 300e6;
        if (k == 1) r[2].median_ns = 160e6, r[2].p90_ns = 170e6;
        if (k == 2) r[2].median_ns = 170e6 / 1.5, r[2].p90_ns = 115e6;
        r[3].noisy = k == 3;
        char *text = printed(&job);
        says(text, expected[k]);
        free(text);
        json_t *j = json_of_report(&job);
        const json_t *right = json_object_get(j, "chosen_within_spread");
        assert_string_equal(json_string_value(json_object_get(j, "chosen")), "espresso+");
        assert_string_equal(json_string_value(json_object_get(j, "fastest")), k ? "cpu-only" : "espresso+");
        assert_true(k == 3 ? json_is_null(right) : k == 2 ? json_is_false(right) : json_is_true(right));
        json_decref(j);
    }
}

/* Without espresso+ the choice is what is predicted to be the fastest. */
static void the_choice_of_others(void **state) {
    replay_result r[4];
    replay_job job = job_of(r);
    (void)state;
    job.n_results = 3;
    uint32_t least = 0;
    for (uint32_t i = 1; i < 3; i++)
        if (r[i].predicted.report.iteration_ns < r[least].predicted.report.iteration_ns) least = i;
    assert_int_equal(report_chosen(&job), least);
    assert_int_equal(report_shown(&job), least);
}

static void nothing_was_measured(void **state) {
    replay_result r[4];
    replay_job job = job_of(r);
    (void)state;
    for (int i = 0; i < 4; i++) r[i].measured = NULL, r[i].n_steps = 0, r[i].median_ns = 0;
    assert_int_equal(report_fastest(&job), 4);
    assert_int_equal(report_chosen_is_right(&job), -1);
    char *text = printed(&job);
    says(text, "0 of ");
    says_not(text, "nan");
    says_not(text, "largest differences");
    free(text);
    job.timeline = in_folder("none.html"), job.page = in_folder("none2.html"), job.trace = in_folder("none.json");
    assert_int_equal(report_pages(&job), TOOL_OK);
}

/* ---- op by op -------------------------------------------------------------------------------------------------------- */
static void ops_are_summed(void **state) {
    const replay_result *r = &made.results[3];
    report_group lane[4], *groups;
    double predicted[4] = {0}, measured[4] = {0}, in_groups = 0, all = 0;
    uint32_t n, ops = 0, found = 0;
    (void)state;
    report_lanes(r, lane);
    for (uint32_t i = 0; i < r->predicted.n_events; i++) {
        const esp_plan_event *e = &r->predicted.events[i], *m = &r->measured[i];
        if (m->end_ns == UINT64_MAX) continue;
        found++;
        all += (double)(m->end_ns - m->start_ns);
        for (int l = 0; l < 4; l++)
            if (e->lanes >> l & 1)
                predicted[l] += (double)(e->end_ns - e->start_ns), measured[l] += (double)(m->end_ns - m->start_ns);
    }
    for (int l = 0; l < 4; l++) {
        assert_true(fabs(lane[l].predicted_ns - predicted[l]) < 1);
        assert_true(fabs(lane[l].measured_ns - measured[l]) < 1);
    }
    assert_true(found < r->predicted.n_events); /* some are missing */
    groups = report_groups(&made.in, r, &n);
    for (uint32_t i = 0; i < n; i++) ops += groups[i].ops, in_groups += groups[i].measured_ns;
    assert_int_equal(ops, found);
    assert_true(fabs(in_groups - all) < 1);
    assert_true(n > 3 && n < 40);
    free(groups);
}

/* Where all ran as predicted, exposed time is what the planner says. */
static void exposed_as_the_planner_counts(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        replay_result r = made.results[i];
        r.measured = calloc(r.predicted.n_events, sizeof *r.measured);
        assert_non_null(r.measured);
        memcpy(r.measured, r.predicted.events, r.predicted.n_events * sizeof *r.measured);
        r.exposed_communication_ns = r.exposed_compression_ns = -1;
        const report_exposed e = report_exposed_of(&r);
        assert_true(fabs(e.communication_ns - r.predicted.report.exposed_communication_ns) < 1);
        assert_true(fabs(e.compression_ns - r.predicted.report.exposed_compression_ns) < 1);
        free(r.measured);
    }
    replay_result none = made.results[0];
    none.measured = NULL;
    assert_true(report_exposed_of(&none).communication_ns == none.exposed_communication_ns);
}

static void the_largest_come_first(void **state) {
    const replay_result *r = &made.results[3];
    uint32_t top[REPORT_TOP];
    double last = INFINITY, least;
    (void)state;
    assert_int_equal(report_largest(r, top), REPORT_TOP);
    for (int k = 0; k < REPORT_TOP; k++) {
        least = fabs(report_takes(&r->measured[top[k]]) - report_takes(&r->predicted.events[top[k]]));
        assert_true(least <= last);
        last = least;
    }
    for (uint32_t i = 0; i < r->predicted.n_events; i++) {
        int listed = !report_has(r, i);
        for (int k = 0; k < REPORT_TOP; k++) listed |= top[k] == i;
        if (!listed) assert_true(fabs(report_takes(&r->measured[i]) - report_takes(&r->predicted.events[i])) <= last);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------------- */
static void json_has_everything(void **state) {
    replay_result r[4];
    replay_job job = job_of(r);
    (void)state;
    json_t *j = json_of_report(&job);
    const json_t *rows = json_object_get(j, "strategies");
    assert_string_equal(json_string_value(json_object_get(j, "model")), "vgg16");
    assert_string_equal(json_string_value(json_object_get(j, "mode")), "real");
    assert_string_equal(json_string_value(json_object_get(j, "inter")), "25gbit,50us");
    static const char *const keys[] = {"n",     "machines", "elements_scale", "time_scale",
                                       "ratio", "cores",    "stolen_percent", "load_percent"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) assert_true(number_at(j, keys[i]) > 0);
    assert_int_equal(json_array_size(rows), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(rows, i), *lanes = json_object_get(row, "lanes_us");
        assert_string_equal(json_string_value(json_object_get(row, "name")), names[i]);
        assert_true(fabs(number_at(row, "predicted_us") * 1000 - r[i].predicted.report.iteration_ns) < 1);
        assert_true(fabs(number_at(json_object_get(row, "measured_us"), "median") * 1000 - r[i].median_ns) < 1);
        assert_true(fabs(number_at(row, "error_percent") -
                         100 * (r[i].predicted.report.iteration_ns / r[i].median_ns - 1)) < 1e-6);
        assert_true(number_at(json_object_get(row, "bytes"), "inter") == (double)r[i].inter_bytes);
        assert_true(number_at(json_object_get(lanes, "measured"), "inter") >
                    number_at(json_object_get(lanes, "predicted"), "inter"));
        assert_true(number_at(row, "exposed_communication_us") > 0);
        double by_lane = 0, by_op = 0; /* an op on two lanes is busy on both */
        size_t k;
        const json_t *op;
        json_array_foreach(json_object_get(row, "ops"), k, op) by_op +=
            number_at(op, "measured_us") *
            (strcmp(json_string_value(json_object_get(op, "lane")), "intra-inter") == 0 ? 2 : 1);
        static const char *const lane[] = {"compute", "cpu", "intra", "inter"};
        for (int l = 0; l < 4; l++) by_lane += number_at(json_object_get(lanes, "measured"), lane[l]);
        assert_true(by_op > 0 && fabs(by_op - by_lane) < 1e-6 * by_lane);
    }
    json_decref(j);
}

static void csv_has_a_row_each(void **state) {
    replay_result r[4];
    replay_job job = job_of(r);
    int fields[8] = {0}, lines = 0, quoted = 0;
    (void)state;
    r[1].noisy = 1;
    r[2].name = "a,\"b\"";
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    assert_int_equal(report_print_csv(to, &job), 0);
    fclose(to);
    for (const char *at = text; *at && lines < 8; at++) {
        quoted ^= *at == '"';
        fields[lines] += *at == ',' && !quoted;
        lines += *at == '\n';
    }
    assert_int_equal(lines, 5);
    for (int i = 1; i < 5; i++) assert_int_equal(fields[i], fields[0]);
    says(text, "\"a,\"\"b\"\"\"");
    says_not(text, "nan");
    free(text);
}

static void the_trace(void **state) {
    replay_result r[4];
    replay_job job = job_of(r);
    size_t expected = 0, found = 0, left_out = 0;
    json_error_t e;
    (void)state;
    job.trace = in_folder("trace.json");
    assert_int_equal(report_pages(&job), TOOL_OK);
    json_t *j = json_load_file(job.trace, 0, &e), *event;
    if (!j) fail_msg("line %d: %s", e.line, e.text);
    for (int i = 0; i < 4; i++)
        for (uint32_t k = 0; k < r[i].predicted.n_events; k++) {
            const size_t lanes = (size_t)__builtin_popcount(r[i].predicted.events[k].lanes);
            const int measured = r[i].measured[k].end_ns != UINT64_MAX;
            expected += lanes * (size_t)(1 + measured);
            left_out += lanes * (size_t)!measured;
        }
    size_t k;
    int processes = 0;
    json_array_foreach(json_object_get(j, "traceEvents"), k, event) {
        const char *ph = json_string_value(json_object_get(event, "ph"));
        const char *name = json_string_value(json_object_get(event, "name"));
        found += !strcmp(ph, "X") && strcmp(name, "forward") != 0 && strcmp(name, "update") != 0;
        if (strcmp(name, "process_name") != 0) continue;
        processes++;
        name = json_string_value(json_object_get(json_object_get(event, "args"), "name"));
        assert_true(strstr(name, ", predicted") || strstr(name, ", measured"));
    }
    assert_int_equal(processes, 8);
    assert_int_equal(found, expected);
    assert_true(left_out > 0);
    json_decref(j);
}

/* ---- pages ------------------------------------------------------------------------------------------------------------- */
static void open_run(int timeline, const char *flags) {
    replay_result r[4];
    replay_job job = job_of(r);
    const char *path = in_folder(timeline ? "timeline.html" : "compare.html");
    r[1].name = odd, r[1].noisy = 1, r[1].p90_ns *= 1.4;
    job.warning = "run with --force: </script><b>busy</b>";
    if (timeline)
        job.timeline = path;
    else
        job.page = path;
    assert_int_equal(report_pages(&job), TOOL_OK);
    page_open(path, timeline ? "tests/page/page_check_replay.js" : "tests/page/page_check_measured.js", flags, odd);
}
static void timeline_wide(void **state) { (void)state, open_run(1, "--window-size=1600,1200"); }
static void timeline_narrow_and_dark(void **state) {
    (void)state, open_run(1, "--window-size=900,900 --force-dark-mode --force-device-scale-factor=2");
}
static void bars_wide(void **state) { (void)state, open_run(0, "--window-size=1600,1200"); }
static void bars_narrow_and_dark(void **state) { (void)state, open_run(0, "--window-size=900,900 --force-dark-mode"); }

/* ---- what can go wrong -------------------------------------------------------------------------------------------------- */
/* Calls the report with messages thrown away. */
static int quiet(const replay_job *job) {
    fflush(NULL);
    const int out = dup(1), err = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 1), dup2(null, 2);
    const int status = replay_report(job);
    fflush(NULL);
    dup2(out, 1), dup2(err, 2);
    close(out), close(err), close(null);
    return status;
}

static void wrong(void **state) {
    replay_result r[4];
    (void)state;
    replay_job job = job_of(r);
    job.n_results = 0;
    assert_int_equal(quiet(&job), TOOL_FAILED);
    job = job_of(r);
    job.json = job.csv = "-";
    assert_int_equal(quiet(&job), TOOL_USAGE);
    const char **const at[] = {&job.json, &job.csv, &job.timeline, &job.trace, &job.page};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        job = job_of(r);
        *at[i] = "/nix/none";
        assert_int_equal(quiet(&job), TOOL_FAILED);
    }
    job = job_of(r);
    assert_int_equal(quiet(&job), TOOL_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table),
        cmocka_unit_test(noisy_is_no_number),
        cmocka_unit_test(the_verdict),
        cmocka_unit_test(the_choice_of_others),
        cmocka_unit_test(nothing_was_measured),
        cmocka_unit_test(ops_are_summed),
        cmocka_unit_test(exposed_as_the_planner_counts),
        cmocka_unit_test(the_largest_come_first),
        cmocka_unit_test(json_has_everything),
        cmocka_unit_test(csv_has_a_row_each),
        cmocka_unit_test(the_trace),
        cmocka_unit_test(timeline_wide),
        cmocka_unit_test(timeline_narrow_and_dark),
        cmocka_unit_test(bars_wide),
        cmocka_unit_test(bars_narrow_and_dark),
        cmocka_unit_test(wrong),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
