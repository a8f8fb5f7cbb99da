/* page_open.h opens a page in headless Chromium, with checks inserted into it (page_check*.js), and reports their
 * results. Without Chromium the test is skipped. */
#ifndef ESPRESSO_TESTS_PAGE_OPEN_H
#define ESPRESSO_TESTS_PAGE_OPEN_H
#include "tests/lib/test.h"

/* ---- files ------------------------------------------------------------------------------------------------------- */
static inline char *page_read_stream(FILE *f) {
    char *text = calloc(1, 64u << 20);
    assert_non_null(f);
    assert_non_null(text);
    size_t n = fread(text, 1, (64u << 20) - 1, f);
    assert_true(n > 0);
    return text;
}

static inline char *page_read_file(const char *path) {
    FILE *f = fopen(path, "r");
    char *text = page_read_stream(f);
    fclose(f);
    return text;
}

/* ---- with a browser ---------------------------------------------------------------------------------------------- */
static inline const char *page_browser(void) {
    static const char *const names[] = {"chromium", "chromium-browser", "google-chrome"};
    char command[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", names[i]);
        if (system(command) == 0) return names[i];
    }
    return NULL;
}

/* Writes the page with the checks. Some come before the page's own scripts, the others at the end. */
static inline void page_with_checks(const char *page, const char *checks, const char *constants, const char *to) {
    char *html = page_read_file(page), *first = page_read_file("tests/tools/page/page_check.js"),
         *last = page_read_file(checks);
    char *head = strstr(html, "<style>"), *body = NULL;
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    for (char *at = html; (at = strstr(at, "</body>")); at++) body = at;
    assert_true(head && body);
    fprintf(f, "%.*s<script>%s%s</script>", (int)(head - html), html, first, constants);
    fprintf(f, "%.*s<script>%s</script>%s", (int)(body - head), head, last, body);
    assert_int_equal(fclose(f), 0);
    free(html), free(first), free(last);
}

static inline void page_open(const char *page, const char *checks, const char *flags, const char *first_tensor) {
    char path[128], command[1024], constants[128] = "const expectedName=";
    const char *name = page_browser();
    if (!name) test_skip("chromium is not there: pages are not opened");
    FILE *f = fmemopen(constants + strlen(constants), sizeof constants - strlen(constants), "w");
    page_text(f, first_tensor), fputs(";", f), fclose(f);
    snprintf(path, sizeof path, "%s/checked.html", in_folder(""));
    page_with_checks(page, checks, constants, path);
    snprintf(command, sizeof command,
             "timeout -k 5 90 %s --headless --no-sandbox --disable-gpu --user-data-dir=%s/profile "
             "--virtual-time-budget=20000 %s "
             "--dump-dom file://%s 2>%s/errors",
             name, in_folder(""), flags, path, in_folder(""));
    f = popen(command, "r");
    char *dom = page_read_stream(f), *result = strstr(dom, "<pre id=\"result\">");
    pclose(f);
    if (!result) fail_msg("the page did not get to its checks; see %s", path);
    *strstr(result, "</pre>") = 0;
    result = strchr(result, '>') + 1;
    if (strncmp(result, "PASSED", 6) != 0) fail_msg("%s", result);
    print_message("%s", result);
    free(dom);
}

#endif
