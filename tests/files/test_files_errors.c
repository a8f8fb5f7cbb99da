/* test_files_errors.c: the errors of the readers of the planner's JSON files, for every kind of mistake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/common/library.h"
#include "files.h"

/* ---- errors ---------------------------------------------------------------------------------------------------------------- */
/* What is changed in a full example, and what the error must be. */
typedef struct mistake {
    int kind;
    const char *from, *to, *error;
} mistake;
static const mistake mistakes[] = {
    {MODEL, "\"compute_us\": 0.1", "\"compute_us\": -5",
     "f:13: tensors[0].compute_us: expected a number of microseconds >= 0, found -5"},
    {MODEL, "\"compute_us\": 0.1", "\"compute_us\": \"5\"",
     "f:13: tensors[0].compute_us: expected a number of microseconds >= 0, found \"5\""},
    {MODEL, "\"compute_us\": 0.1", "\"compute_us\": 1e13",
     "f:13: tensors[0].compute_us: expected at most 1000000000000, found 10000000000000"},
    {MODEL, ", \"compute_us\": 0.1", "",
     "f:13: tensors[0].compute_us: missing: expected a number of microseconds >= 0"},
    {MODEL, "\"elements\": 30", "\"elements\": 0",
     "f:14: tensors[1].elements: expected a whole number of elements >= 1, found 0"},
    {MODEL, "\"elements\": 30", "\"elements\": 1.5",
     "f:14: tensors[1].elements: expected a whole number of elements >= 1, found 1.5"},
    {MODEL, "\"elements\": 30", "\"elements\": null",
     "f:14: tensors[1].elements: expected a whole number of elements >= 1, found null"},
    {MODEL, "\"elements\": 30", "\"elements\": NaN",
     "f:14: tensors[1].elements: this is not JSON; invalid token near 'NaN'"},
    {MODEL, "\"elements\": 30", "\"elements\": 1e999",
     "f:14: tensors[1].elements: the number is too large; real number overflow near '1e999'"},
    {MODEL, "\"elements\": 30", "\"elements\": 30, \"elements\": 3",
     "f:14: a key stands there twice; duplicate object key near '\"elements\"'"},
    {MODEL, "fc2.w\xc3\xa9ight", "fc2.bias",
     "f:14: tensors[1].name: \"fc2.bias\" is already tensors[0]: expected each name once"},
    {MODEL, "fc2.bias", "fc2 bias",
     "f:13: tensors[0].name: expected a name, found \"fc2 bias\": it has blanks, '#' or control characters"},
    {MODEL, "fc2.bias", "", "f:13: tensors[0].name: expected a name, found \"\": it is empty"},
    {MODEL, "[3]", "[3, 2]",
     "f:13: tensors[0].shape: expected sizes whose product is the tensor's 3 elements, found a product of 6"},
    {MODEL, "\"rows\": 3", "\"rows\": 7",
     "f:13: tensors[0].rows: expected rows * cols to be the tensor's 3 elements, found 7 * 1"},
    {MODEL, "\"rows\": 3, ", "", "f:13: tensors[0].cols: expected \"rows\" and \"cols\" together: \"rows\" is missing"},
    {MODEL, ", \"cols\": 1", "", "f:13: tensors[0].rows: expected \"rows\" and \"cols\" together: \"cols\" is missing"},
    {MODEL, "\"cols\": 1", "\"cols\": 0", "f:13: tensors[0].cols: expected a whole number of elements >= 1, found 0"},
    {MODEL, "\"parameters\": 33", "\"parameters\": 34",
     "f:7: parameters: expected the sum of all tensors' elements, 33, found 34"},
    {MODEL, "\"f32\"", "\"f16\"", "f:11: dtype: expected \"f32\", the only type that is planned for, found \"f16\""},
    {MODEL, "\"espresso\": 1", "\"espresso\": 2",
     "f:2: espresso: the file was made by a newer espresso: expected version 1, found 2; update espresso, or make the "
     "file anew"},
    {MODEL, "\"espresso\": 1,", "",
     "f:1: espresso: missing: expected the version of the format, 1; is this a model file?"},
    {MODEL, "\"model\"", "\"system\"", "f:1: this is a system file; expected a model file"},
    {MODEL, "\"model\": \"two layers\",", "", "f:1: model: missing: expected the model's name"},
    {GC, "dgc:ratio=0.01", "dgc:ratio", "f:3: codec: \"dgc:ratio\", position 5: expected key=value here"},
    {GC, "\"rounds\": 2", "\"rounds\": 5", "f:6: rounds: expected at most 4, found 5"},
    {GC, "0.9", "1.1", "f:8: error: expected at most 1, found 1.1"},
    {GC, "[2048, 15.5]", "[1024, 15.5]",
     "f:11: devices.cpu.compress[1][0]: expected ascending sizes: 1024 follows 1024"},
    {GC, "[[1048576, 34]]", "[]",
     "f:12: devices.gpu.decompress: expected a list of pairs [size, microseconds], sizes ascending, at least one, "
     "found a list"},
    {GC, "[[1048576, 34]]", "[[1048576]]",
     "f:12: devices.gpu.decompress[0]: expected a pair [size, microseconds], found a list"},
    {GC, "\"log\"", "\"cubic\"", "f:11: devices.cpu.interpolate: expected \"linear\" or \"log\", found \"cubic\""},
    {GC, "dgc:ratio=0.01", "dgc:feedback=own",
     "f:4: feedback: the codec's text has a feedback already: expected one of them only"},
    {SYSTEM, "\"machines\": 2", "\"machines\": 0", "f:5: machines: expected a whole number from 1 to 1048576, found 0"},
    {SYSTEM, "\"ranks_per_machine\": 4", "\"ranks_per_machine\": 0",
     "f:6: ranks_per_machine: expected a whole number from 1 to 1048576, found 0"},
    {SYSTEM, "\"gpu\"]", "\"tpu\"]", "f:7: devices[1]: expected \"cpu\" or \"gpu\", found \"tpu\""},
    {SYSTEM, "[\"cpu\", \"gpu\"]", "[]",
     "f:7: devices: expected a list of the devices that can compress: \"cpu\", \"gpu\" or both, found a list"},
    {SYSTEM, "\"bytes_per_us\": 10000", "\"bytes_per_us\": 0",
     "f:11: inter.bytes_per_us: expected a number of bytes per microsecond > 0, found 0"},
    {SYSTEM, "\"hop\"", "\"jump\"", "f:9: intra.alpha_is: expected \"collective\" or \"hop\", found \"jump\""},
    {SYSTEM, "\"inter\"", "\"innter\"",
     "f:1: inter: missing: expected the links between machines, { \"alpha_us\": ..., \"bytes_per_us\": ... }"},
    {SYSTEM, "\"cores_per_rank\": 1", "\"cores_per_rank\": 4", "f:17: cores_per_rank: expected 0 to 3, found 4"},
    {STRATEGY, "\"elements\": 14", "\"elements\": 13",
     "f:9: units[1].elements: expected the sum of the elements of the group's tensors"},
    {STRATEGY, "\"first\": 1", "\"first\": 0",
     "f:9: units[1].first: expected 1, the tensor that the units before this one leave, found 0"},
    {STRATEGY, "\"1:u\"", "\"2:u\"",
     "f:11: order[6]: expected b, UNIT:STEP, UNIT:STEPd, UNIT:STEPu, UNIT:p or UNIT:u, found \"2:u\""},
    {STRATEGY, "flat.allreduce\"}", "flat.allredoce\"}",
     "f:9: units[1].option: option: position 1: 'flat.allredoce' is no step; expected comp@cpu, comp@gpu, decomp@cpu, "
     "decomp@gpu, or flat., intra. or inter. with allreduce, reduce_scatter, reduce, allgather, broadcast, alltoall, "
     "gather, ring_hops or halving_hops"},
    {STRATEGY, "\"strategy\": 1", "\"strategy\": 2", "f:3: strategy: expected at most 1, found 2"},
    {STRATEGY, ", {\"name\": \"c\", \"elements\": 4}", "",
     "f:9: units[1].elements: expected a tensor that no unit before it has taken"},
};

static void every_mistake_is_named(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const mistake *m = &mistakes[i];
        heard h = {.n = 0};
        const esp__files_log log = {hear, &h};
        size_t len;
        char *text = slurp(full[m->kind], &len), *changed = replaced(text, m->from, m->to);
        esp_status s = parse(m->kind, "f", changed, strlen(changed), &log);
        if (s != ESP_E_ARG || strcmp(esp_last_error(NULL), m->error) != 0) {
            print_error("%s -> %s gave\n  %s\nnot\n  %s\n", m->from, m->to, s ? esp_last_error(NULL) : "no error",
                        m->error);
            wrong++;
        }
        free(text);
        free(changed);
    }
    assert_int_equal(wrong, 0);
}

static void wrong_strategies_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"", "s:1: expected 'espresso-strategy 1' in the first line: this is no strategy file"},
        {"espresso-strategy 2\n", "s:1: expected 'espresso-strategy 1' in the first line: this is no strategy file"},
        {"espresso-strategy 1\n", "s:1: expected at least one 'tensor' line"},
        {"espresso-strategy 1\ntensor a 0 none flat.allreduce",
         "s:2: tensor 'a' with 0 elements: expected at least one element, and in all tensors at most 2^58; and at most "
         "16777216 tensors"},
        {"espresso-strategy 1\ntensor a 5 none",
         "s:2: expected 'tensor NAME ELEMENTS CODEC OPTION' (or split N, or group)"},
        {"espresso-strategy 1\ntensor a 5 split 1\nchunk 5 none flat.allreduce",
         "s:2: tensor 'a': 'split 1': expected a number of chunks from 2 to its 5 elements"},
        {"espresso-strategy 1\ntensor a 5 split 2\nchunk 5 none flat.allreduce",
         "s:3: tensor 'a' has no elements left after chunk 1 of 2"},
        {"espresso-strategy 1\ntensor a 5 split 2\nchunk 3 none flat.allreduce\nchunk 1 none flat.allreduce",
         "s:4: the chunks of tensor 'a' add up to 4 elements with this one, but it has 5"},
        {"espresso-strategy 1\ntensor a 5 split 2\nchunk 3 none flat.allreduce\n",
         "s:3: the text ends after 1 of 2 chunks of tensor 'a'"},
        {"espresso-strategy 1\ntensor a 5 group\ngroup 5 none flat.allreduce\n",
         "s:3: tensor 'a' is alone in its group: expected at least two 'tensor NAME ELEMENTS group' lines before it, "
         "or "
         "'tensor a 5 CODEC OPTION' without a group"},
        {"espresso-strategy 1\ntensor a 5 group\ntensor b 5 group\ngroup 9 none flat.allreduce\n",
         "s:4: the group has 9 elements, but its 2 tensors add up to 10"},
        {"espresso-strategy 1\ntensor a 5 group\ntensor b 5 none flat.allreduce\n",
         "s:3: the group of tensor 'a' is not closed: expected 'group ELEMENTS CODEC OPTION', or another 'tensor NAME "
         "ELEMENTS group'"},
        {"espresso-strategy 1\ntensor a 5 group\ntensor b 5 group\n",
         "s:3: the text ends before the group of tensor 'b' is closed: expected 'group ELEMENTS CODEC OPTION'"},
        {"espresso-strategy 1\ntensor a 5 none flat.allreduce\norder b 1:0",
         "s:3: order: '1:0' names no collective or other op; expected UNIT:STEP, both from 0, or b, UNIT:STEPd, "
         "UNIT:STEPu, UNIT:p, UNIT:u"},
        {"espresso-strategy 1\ntensor a 5 split 2\nchunk 3 none flat.allreduce\nchunk 2 none flat.allreduce +0",
         "s:4: tensor 'a': option: position 16: expected '>' between two steps"},
        {"espresso-strategy 1\nsensor a 5 none flat.allreduce",
         "s:2: 'sensor': expected 'tensor', 'chunk', 'group' or 'order'"},
        {"espresso-strategy 1\ntensor \xff 5 none flat.allreduce", "s:2: expected UTF-8: JSON knows no other text"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        esp__text json = {0};
        assert_int_equal(esp__strategy_json_print("s", rows[i].text, NULL, &json), ESP_E_ARG);
        assert_string_equal(esp_last_error(NULL), rows[i].error);
        esp__text_free(&json);
    }
}

static void unknown_keys_warn_once_a_kind(void **state) {
    (void)state;
    static const char text[] =
        "{\"espresso\": 1, \"model\": \"m\",\n \"forward\": 1, \"forward_us\": 1, \"tensors\": [\n"
        "{\"name\": \"a\", \"elements\": 1, \"compute_us\": 1, \"elemnts\": 2},\n"
        "{\"name\": \"b\", \"elements\": 1, \"compute_us\": 1, \"elemnts\": 2, \"flip\": {}}]}";
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    assert_int_equal(parse(MODEL, "f", text, strlen(text), &log), ESP_OK);
    assert_string_equal(h.text,
                        "f:2: forward: unknown, ignored (did you mean 'forward_us'?)\n"
                        "f:3: tensors[0].elemnts: unknown, ignored (did you mean 'elements'?); and 1 more like it\n"
                        "f:4: tensors[1].flip: unknown, ignored\n");
    assert_int_equal(h.n, 3);
}

/* Wherever a file is cut off, it is refused with a line. */
static void cut_off_files_are_refused(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        size_t len;
        char *text = slurp(full[k], &len);
        while (text[len - 1] != '}') len--;
        for (size_t cut = 0; cut < len; cut++) {
            assert_int_equal(parse(k, "f", text, cut, &fuzz_log), ESP_E_ARG);
            assert_int_equal(strncmp(esp_last_error(NULL), "f:", 2), 0);
        }
        free(text);
    }
}

/* Depth and length that no file has. */
static void monsters_are_refused(void **state) {
    (void)state;
    const size_t n = 1000000;
    char *text = malloc(n + 1);
    for (int k = 0; k < 4; k++) {
        memset(text, '[', n);
        assert_int_equal(parse(k, "f", text, n, NULL), ESP_E_ARG);
        for (size_t i = 0; i + 6 <= n; i += 6) memcpy(text + i, "{\"a\":", 6);
        assert_int_equal(parse(k, "f", text, n, NULL), ESP_E_ARG);
        memset(text, 'x', n);
        memcpy(text, "{\"espresso\":1,\"", 16);
        memcpy(text + n - 4, "\":1}", 4); /* a key of a million letters */
        assert_int_equal(parse(k, "f", text, n, &fuzz_log), ESP_E_ARG);
        assert_true(strlen(esp_last_error(NULL)) < 400);
        memset(text + 16, 0x1b, 64); /* what a terminal would obey */
        assert_int_equal(parse(k, "f", text, n, &fuzz_log), ESP_E_ARG);
        assert_null(strchr(esp_last_error(NULL), 0x1b));
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_named),        cmocka_unit_test(wrong_strategies_are_named),
        cmocka_unit_test(unknown_keys_warn_once_a_kind), cmocka_unit_test(cut_off_files_are_refused),
        cmocka_unit_test(monsters_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
