/* test_files_errors.c checks that the readers of the planner's JSON files refuse every kind of mistake. */
#include "tests/lib/test.h"
#include "files.h"

/* ---- errors ---- */
/* A text of a correct file, what replaces it, and the error that this must cause. */
typedef struct mistake {
    int kind;
    const char *from, *to, *error;
} mistake;
static const mistake mistakes[] = {
    {MODEL, "\"compute_us\": 0.1", "\"compute_us\": -5",
     "f: tensors[0].compute_us: expected a number of microseconds >= 0, found -5"},
    {MODEL, "\"compute_us\": 0.1", "\"compute_us\": \"5\"",
     "f: tensors[0].compute_us: expected a number of microseconds >= 0, found \"5\""},
    {MODEL, "\"compute_us\": 0.1", "\"compute_us\": 1e13",
     "f: tensors[0].compute_us: expected at most 1000000000000, found 10000000000000"},
    {MODEL, ", \"compute_us\": 0.1", "", "f: tensors[0].compute_us: missing: expected a number of microseconds >= 0"},
    {MODEL, "\"elements\": 30", "\"elements\": 0",
     "f: tensors[1].elements: expected a whole number of elements >= 1, found 0"},
    {MODEL, "\"elements\": 30", "\"elements\": 1.5",
     "f: tensors[1].elements: expected a whole number of elements >= 1, found 1.5"},
    {MODEL, "\"elements\": 30", "\"elements\": null",
     "f: tensors[1].elements: expected a whole number of elements >= 1, found null"},
    {MODEL, "\"elements\": 30", "\"elements\": NaN", "f:14: this is not JSON; invalid token near 'NaN'"},
    {MODEL, "\"elements\": 30", "\"elements\": 1e999",
     "f:14: the number is too large; real number overflow near '1e999'"},
    {MODEL, "\"elements\": 30", "\"elements\": 30, \"elements\": 3",
     "f:14: a key is there twice; duplicate object key near '\"elements\"'"},
    {MODEL, "fc2.w\xc3\xa9ight", "fc2.bias",
     "f: tensors[1].name: \"fc2.bias\" is already tensors[0]: expected each name once"},
    {MODEL, "fc2.bias", "fc2 bias",
     "f: tensors[0].name: expected a name, found \"fc2 bias\": it has blanks, '#' or control characters"},
    {MODEL, "fc2.bias", "", "f: tensors[0].name: expected a name, found \"\": it is empty"},
    {MODEL, "[3]", "[3, 2]",
     "f: tensors[0].shape: expected sizes whose product is the tensor's 3 elements, found a product of 6"},
    {MODEL, "\"rows\": 3", "\"rows\": 7",
     "f: tensors[0].rows: expected rows * cols to be the tensor's 3 elements, found 7 * 1"},
    {MODEL, "\"rows\": 3, ", "", "f: tensors[0].cols: expected \"rows\" and \"cols\" together: \"rows\" is missing"},
    {MODEL, ", \"cols\": 1", "", "f: tensors[0].rows: expected \"rows\" and \"cols\" together: \"cols\" is missing"},
    {MODEL, "\"cols\": 1", "\"cols\": 0", "f: tensors[0].cols: expected a whole number of elements >= 1, found 0"},
    {MODEL, "\"parameters\": 33", "\"parameters\": 34",
     "f: parameters: expected the sum of all tensors' elements, 33, found 34"},
    {MODEL, "\"f32\"", "\"f16\"", "f: dtype: expected \"f32\", the only type that is planned for, found \"f16\""},
    {MODEL, "\"espresso\": 1", "\"espresso\": 2",
     "f: espresso: the file was made by a newer espresso: expected version 1, found 2; update espresso, or make the "
     "file again"},
    {MODEL, "\"espresso\": 1,", "",
     "f: espresso: missing: expected the version of the format, 1; is this a model file?"},
    {MODEL, "\"model\"", "\"system\"", "f: this is a system file; expected a model file"},
    {MODEL, "\"model\": \"two layers\",", "", "f: model: missing: expected the model's name"},
    {GC, "dgc:ratio=0.01", "dgc:ratio", "f: codec: \"dgc:ratio\", position 5: expected key=value here"},
    {GC, "\"rounds\": 2", "\"rounds\": 5", "f: rounds: expected at most 4, found 5"},
    {GC, "0.9", "1.1", "f: error: expected at most 1, found 1.1"},
    {GC, "[2048, 15.5]", "[1024, 15.5]", "f: devices.cpu.compress[1][0]: expected ascending sizes: 1024 follows 1024"},
    {GC, "[[1048576, 34]]", "[]",
     "f: devices.gpu.decompress: expected a list of pairs [size, microseconds], sizes ascending, at least one, "
     "found a list"},
    {GC, "[[1048576, 34]]", "[[1048576]]",
     "f: devices.gpu.decompress[0]: expected a pair [size, microseconds], found a list"},
    {GC, "\"log\"", "\"cubic\"", "f: devices.cpu.interpolate: expected \"linear\" or \"log\", found \"cubic\""},
    {GC, "dgc:ratio=0.01", "dgc:feedback=own",
     "f: feedback: the codec's text has a feedback already: expected one of them only"},
    {SYSTEM, "\"machines\": 2", "\"machines\": 0", "f: machines: expected a whole number from 1 to 1048576, found 0"},
    {SYSTEM, "\"ranks_per_machine\": 4", "\"ranks_per_machine\": 0",
     "f: ranks_per_machine: expected a whole number from 1 to 1048576, found 0"},
    {SYSTEM, "\"gpu\"]", "\"tpu\"]", "f: devices[1]: expected \"cpu\" or \"gpu\", found \"tpu\""},
    {SYSTEM, "[\"cpu\", \"gpu\"]", "[]",
     "f: devices: expected a list of the devices that can compress: \"cpu\", \"gpu\" or both, found a list"},
    {SYSTEM, "\"bytes_per_us\": 10000", "\"bytes_per_us\": 0",
     "f: inter.bytes_per_us: expected a number of bytes per microsecond > 0, found 0"},
    {SYSTEM, "\"hop\"", "\"jump\"", "f: intra.alpha_is: expected \"collective\" or \"hop\", found \"jump\""},
    {SYSTEM, "\"inter\"", "\"innter\"",
     "f: inter: missing: expected the links between machines, { \"alpha_us\": ..., \"bytes_per_us\": ... }"},
    {SYSTEM, "\"cores_per_rank\": 1", "\"cores_per_rank\": 4", "f: cores_per_rank: expected 0 to 3, found 4"},
};

TEST(every_mistake_is_named) {
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

TEST(unknown_keys_warn_once_a_kind) {
    static const char text[] =
        "{\"espresso\": 1, \"model\": \"m\",\n \"forward\": 1, \"forward_us\": 1, \"tensors\": [\n"
        "{\"name\": \"a\", \"elements\": 1, \"compute_us\": 1, \"elemnts\": 2},\n"
        "{\"name\": \"b\", \"elements\": 1, \"compute_us\": 1, \"elemnts\": 2, \"flip\": {}}]}";
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    assert_int_equal(parse(MODEL, "f", text, strlen(text), &log), ESP_OK);
    assert_string_equal(h.text, "f: forward: unknown, ignored (did you mean 'forward_us'?)\n"
                                "f: tensors[0].elemnts: unknown, ignored (did you mean 'elements'?)\n"
                                "f: tensors[1].flip: unknown, ignored\n");
    assert_int_equal(h.n, 3);
}

/* A truncated file is refused, wherever it ends. */
TEST(cut_off_files_are_refused) {
    for (int k = 0; k < KINDS; k++) {
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

/* Files with too deep nesting or too long names are refused. */
TEST(monsters_are_refused) {
    const size_t n = 1000000;
    char *text = malloc(n + 1);
    for (int k = 0; k < KINDS; k++) {
        memset(text, '[', n);
        assert_int_equal(parse(k, "f", text, n, NULL), ESP_E_ARG);
        for (size_t i = 0; i + 6 <= n; i += 6) memcpy(text + i, "{\"a\":", 6);
        assert_int_equal(parse(k, "f", text, n, NULL), ESP_E_ARG);
        memset(text, 'x', n);
        memcpy(text, "{\"espresso\":1,\"", 16);
        memcpy(text + n - 4, "\":1}", 4);
        assert_int_equal(parse(k, "f", text, n, &fuzz_log), ESP_E_ARG);
        assert_true(strlen(esp_last_error(NULL)) < 400);
        memset(text + 16, 0x1b, 64); /* a terminal that prints the error would obey them */
        assert_int_equal(parse(k, "f", text, n, &fuzz_log), ESP_E_ARG);
        assert_null(strchr(esp_last_error(NULL), 0x1b));
    }
    free(text);
}
