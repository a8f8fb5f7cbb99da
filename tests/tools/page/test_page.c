/* test_page.c checks that the pages and the trace have valid JSON whatever the names are, and that the pages work:
 * headless Chromium opens each, clicks and hovers (page_check*.js). Those tests are skipped without Chromium. */
/* runs: long */
#include "tests/lib/test.h"
#include "tools/page/page.h"
#include "tools/page/page.inc"
#include "page_data.h"
#include "page_open.h"
#include "tests/lib/json.h"

static const char odd_name[] = "</script><!--<b>\"q\"\\ \xe2\x82\xac";
static page_info info = {.model = "made-up & more",
                         .codec = "dgc:ratio=0.01",
                         .system = "paper-nvlink",
                         .machines = 8,
                         .ranks_per_machine = 8,
                         .command = "espresso plan --model 'made up'"};

/* ---- without a browser ------------------------------------------------------------------------------------------- */
static void write_timeline(FILE *f, uint32_t n_tensors, int both, const char *name) {
    fake_plan fp32, plan;
    fake_make(&fp32, n_tensors, 0, 0, name);
    fake_make(&plan, n_tensors, both, fp32.page.report.iteration_ns, name);
    assert_int_equal(page_timeline(f, both ? &fp32.page : NULL, &plan.page, &info), 0);
    fake_free(&fp32);
    fake_free(&plan);
}

TEST(data_is_json) {
    /* The names have quotes, markup, control characters, and invalid UTF-8: overlong, truncated, and surrogates. */
    static const char *const names[] = {odd_name,    "\x01\x1f\x7f\t\n\"\\", "\xff\xfe",         "\xc0\xaf",
                                        "a\xe2\x82", "\xed\xa0\x80",         "\xf0\x9f\x98\x80", "\xf4\x90\x80\x80",
                                        "]]>&lt;"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        FILE *f = tmpfile();
        write_timeline(f, 6, 1, names[i]);
        rewind(f);
        char *html = page_read_stream(f), *data = strstr(html, "application/json\">");
        fclose(f);
        assert_non_null(data);
        const char *begin = strchr(data, '>') + 1, *end = json_end(begin);
        if (!end) fail_msg("not JSON with the name %zu", i);
        assert_int_equal(strncmp(end, "</script>", 9), 0);
        assert_ptr_equal(memchr(begin, '<', (size_t)(end - begin)), NULL);
        assert_null(strstr(html, "http:"));
        assert_null(strstr(html, "https:"));
        assert_null(strstr(html, "@include"));
        free(html);
    }
}

TEST(trace_is_json) {
    fake_plan plans[2];
    page_plan pages[2];
    uint32_t lanes = 0;
    fake_make(&plans[0], 40, 0, 0, odd_name);
    fake_make(&plans[1], 40, 1, 1e9, odd_name);
    for (int i = 0; i < 2; i++) pages[i] = plans[i].page;
    FILE *f = tmpfile();
    assert_int_equal(page_trace(f, pages, 2, &info), 0);
    rewind(f);
    char *text = page_read_stream(f);
    const char *end = json_end(text);
    assert_non_null(end);
    assert_int_equal(*end, 0);
    for (int i = 0; i < 2; i++)
        for (uint32_t k = 0; k < pages[i].n_events; k++)
            lanes += (uint32_t)__builtin_popcount(pages[i].events[k].lanes);
    uint32_t found = 0;
    for (const char *at = text; (at = strstr(at, "\"ph\":\"X\"")); at++) found++;
    assert_int_equal(found, lanes + 4);
    assert_non_null(strstr(text, "\"name\":\"comp@gpu\""));
    assert_non_null(strstr(text, "\"thread_name\",\"pid\":2,\"tid\":3,\"args\":{\"name\":\"inter\"}"));
    assert_non_null(strstr(text, "\"step\":3,\"bytes\":"));
    fclose(f);
    free(text);
    for (int i = 0; i < 2; i++) fake_free(&plans[i]);
}

TEST(a_trace_of_racks) {
    fake_plan plan;
    uint32_t lanes = 0, found = 0;
    fake_racks = 1;
    fake_make(&plan, 40, 1, 1e9, odd_name);
    fake_racks = 0;
    FILE *f = tmpfile();
    assert_int_equal(page_trace(f, &plan.page, 1, &info), 0);
    rewind(f);
    char *text = page_read_stream(f);
    for (uint32_t k = 0; k < plan.page.n_events; k++) lanes += (uint32_t)__builtin_popcount(plan.page.events[k].lanes);
    for (const char *at = text; (at = strstr(at, "\"ph\":\"X\"")); at++) found++;
    assert_int_equal(found, lanes + 2); /* forward and update */
    assert_non_null(strstr(text, "\"thread_name\",\"pid\":1,\"tid\":4,\"args\":{\"name\":\"outer\"}"));
    assert_non_null(strstr(text, "{\"ph\":\"X\",\"name\":\"outer.allgather\",\"pid\":1,\"tid\":4,"));
    assert_null(strstr(text, "{\"name\":\"top\"}"));
    fclose(f);
    free(text);
    fake_free(&plan);
}

/* In a trace, an event lasts as long as it keeps a core or link busy, and its arguments give the op's whole duration.
 * Cores come before links. */
TEST(a_trace_of_cores) {
    fake_plan plan;
    char expected[3][160];
    fake_cores = 1;
    fake_make(&plan, 12, 1, 0, NULL);
    fake_cores = 0;
    FILE *f = tmpfile();
    assert_int_equal(page_trace(f, &plan.page, 1, &info), 0);
    rewind(f);
    char *text = page_read_stream(f);
    assert_non_null(json_end(text));
    assert_non_null(strstr(text, "\"tid\":5,\"args\":{\"name\":\"progress\"}"));
    assert_non_null(strstr(text, "\"tid\":5,\"args\":{\"sort_index\":2}"));
    assert_null(strstr(text, "\"name\":\"outer\""));
    for (uint32_t i = 0; i < plan.page.n_events; i++) {
        const esp_plan_event *e = &plan.events[i];
        const double at = ((double)e->start_ns + plan.model.forward_ns) / 1e3;
        const int split = e->kind == ESP_PLAN_COLLECTIVE;
        snprintf(expected[0], sizeof *expected, "\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,",
                 split ? 5 : __builtin_ctz(e->lanes), at, (double)(split ? e->core_ns : e->end_ns - e->start_ns) / 1e3);
        assert_non_null(strstr(text, expected[0]));
        if (!split) continue;
        snprintf(expected[1], sizeof *expected, "\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,", __builtin_ctz(e->lanes), at,
                 (double)e->link_ns / 1e3);
        snprintf(expected[2], sizeof *expected, "\"takes_us\":%.3f,\"bytes\":%llu}",
                 (double)(e->end_ns - e->start_ns) / 1e3, (unsigned long long)e->bytes);
        assert_non_null(strstr(text, expected[1]));
        assert_non_null(strstr(text, expected[2]));
    }
    fclose(f);
    free(text);
    fake_free(&plan);
}

/* Writes a page that shows a predicted step above a measured one. In the measured step, ops run a tenth later, and one
 * is missing. */
static void write_measured(FILE *f) {
    fake_plan plan;
    fake_make(&plan, 12, 1, 1e9, odd_name);
    page_plan predicted = plan.page, measured = plan.page;
    esp_plan_event *events = calloc(plan.page.n_events, sizeof *events);
    assert_non_null(events);
    for (uint32_t i = 0; i < plan.page.n_events; i++) {
        events[i] = plan.events[i];
        events[i].start_ns += events[i].start_ns / 10;
        events[i].end_ns += events[i].end_ns / 10;
    }
    events[3].start_ns = events[3].end_ns = UINT64_MAX;
    predicted.name = "predicted";
    measured.name = "measured";
    measured.events = events;
    measured.measured = 1;
    measured.report = (esp_plan_report){.iteration_ns = predicted.report.iteration_ns / 0.9,
                                        .n_tensors = predicted.report.n_tensors,
                                        .n_units = predicted.report.n_units};
    assert_int_equal(page_timeline(f, &predicted, &measured, &info), 0);
    free(events);
    fake_free(&plan);
}

TEST(measured_is_json) {
    FILE *f = tmpfile();
    write_measured(f);
    rewind(f);
    char *html = page_read_stream(f), *begin = strchr(strstr(html, "application/json"), '>') + 1;
    const char *end = json_end(begin);
    assert_non_null(end);
    assert_int_equal(strncmp(end, "</script>", 9), 0);
    assert_non_null(strstr(begin, ",-1,0"));
    fclose(f);
    free(html);
}

TEST(numbers_that_json_lacks) {
    fake_plan plan;
    FILE *f = tmpfile();
    fake_make(&plan, 3, 1, 1e9, NULL);
    plan.page.report.bound_ns = 0.0 / 0.0;
    plan.page.report.fp32_ns = 1.0 / 0.0;
    assert_int_equal(page_timeline(f, NULL, &plan.page, NULL), 0);
    rewind(f);
    char *html = page_read_stream(f);
    assert_non_null(json_end(strchr(strstr(html, "application/json"), '>') + 1));
    fclose(f);
    free(html);
    fake_free(&plan);
}

TEST(a_full_disk_is_noticed) {
    fake_plan plan;
    FILE *f = fopen("/dev/full", "w");
    assert_non_null(f);
    fake_make(&plan, 300, 1, 1e9, NULL);
    assert_int_equal(page_timeline(f, NULL, &plan.page, &info), -1);
    assert_int_equal(page_trace(f, &plan.page, 1, &info), -1);
    fclose(f);
    fake_free(&plan);
}

TEST(strings_are_those_of_the_sources) {
    char path[128], line[4096];
    for (size_t i = 0; i < sizeof page_files / sizeof *page_files; i++) {
        snprintf(path, sizeof path, "tools/page/%s", page_files[i].name);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        for (const char *const *l = page_files[i].lines; *l; l++) {
            assert_non_null(fgets(line, sizeof line, f));
            line[strcspn(line, "\n")] = 0;
            assert_string_equal(*l, line);
        }
        assert_null(fgets(line, sizeof line, f));
        fclose(f);
    }
}

/* ---- with a browser ---------------------------------------------------------------------------------------------- */
static void timeline_page(uint32_t n_tensors, int both, const char *flags) {
    char path[128];
    snprintf(path, sizeof path, "%s/timeline.html", in_folder(""));
    FILE *f = fopen(path, "w");
    write_timeline(f, n_tensors, both, odd_name);
    fclose(f);
    page_open(path, "tests/tools/page/page_check_timeline.js", flags, odd_name);
}

TEST(timeline_of_400_tensors) { timeline_page(400, 1, "--window-size=1500,1100"); }
TEST(timeline_of_a_few) { timeline_page(9, 1, "--window-size=900,700"); }
TEST(timeline_of_one_plan_alone) { timeline_page(12, 0, "--window-size=2000,1200"); }
TEST(timeline_of_2000_tensors) { timeline_page(2000, 1, "--window-size=1500,1100"); }
TEST(timeline_of_racks) {
    fake_racks = 1;
    timeline_page(40, 1, "--window-size=1500,1100");
    fake_racks = 0;
}
TEST(timeline_of_cores) {
    fake_cores = 1;
    info.cores_per_rank = 3;
    info.warning = "<i>model.json: measured on a busy machine";
    timeline_page(40, 1, "--window-size=1500,1100");
    fake_cores = 0;
    info.cores_per_rank = 0;
    info.warning = NULL;
}
TEST(timeline_on_a_fine_screen) {
    timeline_page(60, 1, "--window-size=1200,900 --force-device-scale-factor=2 --force-dark-mode");
}

TEST(timeline_of_what_was_measured) {
    char path[128];
    snprintf(path, sizeof path, "%s/measured.html", in_folder(""));
    FILE *f = fopen(path, "w");
    write_measured(f);
    fclose(f);
    page_open(path, "tests/tools/page/page_check_measured.js", "--window-size=1500,1100", odd_name);
}

/* The page's script computes the same exposed time, idle times and step time as the report of the plan that the
 * command has made. */
TEST(timeline_of_a_real_plan) {
    const char *espresso = getenv("ESPRESSO_COMMAND");
    char path[128], command[512];
    snprintf(path, sizeof path, "%s/real.html", in_folder(""));
    snprintf(command, sizeof command,
             "%s plan --model planner/models/bert-base.json --gc dgc:ratio=0.01 --system paper-nvlink --machines 8 "
             "--timeline %s >%s/plan 2>&1",
             espresso ? espresso : "build/bin/espresso", path, in_folder(""));
    if (system(command) != 0) fail_msg("%s: %s", command, "did not succeed");
    char *html = page_read_file(path), name[64] = "";
    assert_int_equal(sscanf(strstr(html, "\"tensors\":[["), "\"tensors\":[[\"%63[^\"]", name), 1);
    free(html);
    page_open(path, "tests/tools/page/page_check_timeline.js", "--window-size=1500,1100", name);
}

TEST_GROUP(folder_make, folder_remove)
