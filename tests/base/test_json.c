/* test_json.c checks JSON strings and numbers, and the growing text that they are written to. */
#include "tests/lib/test.h"
#include "espresso_impl/base/json.h"

static void string_is(const char *s, const char *want) {
    esp__text t = {0};
    esp__json_string(&t, s);
    assert_false(t.failed);
    assert_string_equal(t.data, want);
    assert_int_equal(t.len, strlen(want));
    esp__text_free(&t);
}

TEST(strings) {
    string_is("", "\"\"");
    string_is("a \"b\" \\c\n\t\x01\x7f", "\"a \\\"b\\\" \\\\c\\n\\u0009\\u0001\x7f\"");
    string_is("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
    string_is("a\xff\x80z", "\"a\\ufffd\\ufffdz\"");                   /* bytes that are not UTF-8 */
    string_is("\xc0\xaf", "\"\\ufffd\\ufffd\"");                       /* overlong encoding */
    string_is("\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"");            /* a surrogate */
    string_is("\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""); /* beyond the last code point */
    string_is("x\xe2\x82", "\"x\\ufffd\\ufffd\"");                     /* truncated */
    char many[400], want[2402] = "\"";
    for (size_t i = 0; i < sizeof many - 1; i++) many[i] = i % 3 ? '\\' : 'x';
    many[sizeof many - 1] = 0;
    for (size_t i = 0, n = 1; i < sizeof many; i++)
        n += (size_t)sprintf(want + n, i + 1 == sizeof many ? "\"" : i % 3 ? "\\\\" : "x");
    string_is(many, want);
}

/* Characters that could begin a tag inside <script> can be escaped too. */
TEST(further) {
    char out[ESP__JSON_CHAR + 1] = "", all[64] = "";
    for (const char *s = "<a\"\xc3\xa9"; *s;) {
        const size_t n = esp__json_char(&s, "<>\"", out);
        out[n] = 0;
        strcat(all, out);
    }
    assert_string_equal(all, "\\u003ca\\u0022\xc3\xa9");
    const char *end = "";
    assert_int_equal(esp__json_char(&end, NULL, out), 0);
}

static const char *number(double x, int digits) {
    static char out[64];
    esp__text t = {0};
    esp__json_double(&t, x, digits);
    snprintf(out, sizeof out, "%s", t.data);
    esp__text_free(&t);
    return out;
}

TEST(numbers) {
    assert_string_equal(number(0.5, 15), "0.5");
    assert_string_equal(number(1.0 / 3, 6), "0.333333");
    assert_string_equal(number((double)NAN, 6), "null");
    assert_string_equal(number(-(double)INFINITY, 6), "null");
    esp__text t = {0};
    esp__json_us(&t, 1234567.4);
    esp__text_add(&t, " ");
    esp__json_us(&t, 1e15);
    assert_string_equal(t.data, "1234.567 1000000000000");
    esp__text_free(&t);
    const double hard[] = {0.1, 1.0 / 3, 123456789.123, 5e-324, 1e300, 4097.7, 30e9};
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        esp__json_scaled(&t, hard[i], 1.0);
        assert_true(strtod(t.data, NULL) == hard[i]);
        esp__text_free(&t);
    }
    esp__json_scaled(&t, 1.0 / 3, 1.0);
    assert_string_equal(t.data, "0.3333333333333333");
    esp__text_free(&t);
    esp__json_scaled(&t, 1500.0, 1000.0);
    assert_string_equal(t.data, "1.5"); /* not "1.50" */
    esp__text_free(&t);
}

TEST(texts) {
    esp__text t = {0};
    char want[3000] = "";
    for (int i = 0; i < 500; i++) {
        esp__text_add(&t, "%d,", i);
        sprintf(want + strlen(want), "%d,", i);
        assert_int_equal(t.len, strlen(t.data));
    }
    assert_string_equal(t.data, want);
    esp__text_add(&t, "%s", "");
    assert_string_equal(t.data, want);
    assert_false(t.failed);
    esp__text_free(&t);
    assert_null(t.data);
}
