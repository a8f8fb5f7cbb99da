/* number.c: reads values of a JSON file as C values and checks their ranges. Knows no key except "espresso". */

/* The range of a number, and the words for it in messages. The limits prevent overflow in the planner's sums. */
typedef struct files_range {
    double least, most;
    int above; /* 1: `least` itself is not allowed */
    const char *expected;
} files_range;
enum { FILES_NEEDED = 0, FILES_OPTIONAL = 1 };
static const files_range files_range_us = {0, 1e12, 0, "a number of microseconds >= 0"};
static const files_range files_range_bytes = {0, 1e15, 0, "a number of bytes >= 0"};
static const files_range files_range_speed = {0, 1e12, 1, "a number of bytes per microsecond > 0"};
static const files_range files_range_host = {0, 1e12, 0, "a number of bytes per microsecond >= 0"};
static const files_range files_range_flops = {0, 1e24, 0, "a number of operations >= 0"};
static const files_range files_range_units = {0, 1e6, 0, "a number of units per element >= 0"};
static const files_range files_range_error = {0, 1, 0, "a number from 0 (exact) to 1"};
static const files_range files_range_elements = {1, 1e15, 0, "a whole number of elements >= 1"};
static const files_range files_range_strategy = {1, 0x1p58, 0, "a whole number of elements >= 1"};
static const files_range files_range_strategy_begin = {0, 0x1p58, 0, "a whole number of elements >= 0"};
static const files_range files_range_size = {0, 1e15, 1, "a size > 0"};
static const files_range files_range_count = {1, 1048576, 0, "a whole number from 1 to 1048576"};
static const files_range files_range_group = {1, 16777216, 0, "a whole number of tensors >= 1"};
static const files_range files_range_index = {0, 4294967295.0, 0, "a whole number from 0 to 4294967295"};
static const files_range files_range_version = {1, 1e9, 0, "the version of the format, 1"};

/* Reads a number within the range and returns 1. 0: an optional one is missing; *out is unchanged. */
static int files_get_number(files_input *in, const files_place *p, const files_range *range, int optional,
                            double *out) {
    double x;
    if (!p->value && optional) return 0;
    x = json_is_number(p->value) ? json_number_value(p->value) : -1;
    if (!json_is_number(p->value) || !(x >= range->least) || (range->above && x <= range->least))
        files_input_expected(in, p, range->expected);
    if (x > range->most) files_input_fail(in, p, "expected at most %.15g, found %.15g", range->most, x);
    *out = x + 0.0; /* turns -0 into 0 */
    return 1;
}

/* The same for a whole number; 3.0 is whole. */
static int files_get_whole(files_input *in, const files_place *p, const files_range *range, int optional,
                           uint64_t *out) {
    double x;
    if (!files_get_number(in, p, range, optional, &x)) return 0;
    if (x != floor(x)) files_input_expected(in, p, range->expected);
    *out = json_is_integer(p->value) ? (uint64_t)json_integer_value(p->value) : (uint64_t)x;
    return 1;
}

static uint32_t files_get_count(files_input *in, const files_place *p, const files_range *range, int optional) {
    uint64_t n = 0;
    files_get_whole(in, p, range, optional, &n);
    return (uint32_t)n;
}

/* Reads microseconds, returns nanoseconds; 0 if missing. */
static double files_get_us(files_input *in, const files_place *p, int optional) {
    double us = 0;
    files_get_number(in, p, &files_range_us, optional, &us);
    return us * 1000.0;
}

static int files_get_flag(files_input *in, const files_place *p, int otherwise) {
    if (!p->value) return otherwise;
    if (!json_is_boolean(p->value)) files_input_expected(in, p, "true or false");
    return json_is_true(p->value);
}

/* Reads any text into the arena; NULL: an optional one is missing. */
static const char *files_get_text(files_input *in, const files_place *p, const char *expected, int optional) {
    if (!p->value && optional) return NULL;
    if (!json_is_string(p->value)) files_input_expected(in, p, expected);
    return esp__arena_text(in->arena, json_string_value(p->value));
}

/* What is wrong with this text as a word of a strategy file, in which blanks end a word and '#' begins a comment; NULL: nothing. */
static const char *files_word_wrong(const char *word) {
    if (!*word) return "it is empty";
    if (strlen(word) >= ESP__SPEC_MAX) return "it has more than 255 bytes";
    for (const char *c = word; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == '#' || *c == 0x7f) return "it has blanks, '#' or control characters";
    return NULL;
}

static const char *files_get_word(files_input *in, const files_place *p, const char *expected) {
    const char *text = files_get_text(in, p, expected, FILES_NEEDED), *wrong = files_word_wrong(text);
    if (wrong) files_input_fail(in, p, "expected %s, found \"%.60s\": %s", expected, text, wrong);
    return text;
}

/* Reads one line, which must not be empty. */
static const char *files_get_line(files_input *in, const files_place *p, const char *expected) {
    const char *text = files_get_text(in, p, expected, FILES_NEEDED);
    if (!*text) files_input_expected(in, p, expected);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\t')
            files_input_fail(in, p, "expected one line without control characters, found \"%.60s\"", text);
    return text;
}

/* Reads one of these words (NULL-terminated list); returns its index. */
static uint32_t files_get_choice(files_input *in, const files_place *p, const char *const *words,
                                 const char *expected) {
    const char *text = json_is_string(p->value) ? json_string_value(p->value) : "";
    for (uint32_t i = 0; words[i]; i++)
        if (!strcmp(words[i], text)) return i;
    files_input_expected(in, p, expected);
}

static size_t files_get_list(files_input *in, const files_place *p, const char *expected) {
    if (!json_is_array(p->value)) files_input_expected(in, p, expected);
    return json_array_size(p->value);
}

static files_place files_item(const files_place *list, size_t i) {
    files_place at = {list, NULL, i, json_array_get(list->value, i)};
    return at;
}

/* The first check of every file: is it of a known version and of this kind? `kind` ("model", ...) is also a key that every file of
 * the kind has. */
static void files_get_version(files_input *in, const files_place *root, const char *kind) {
    static const char *const kinds[] = {"model", "codec", "system", "strategy"};
    const files_place version = files_at(root, "espresso");
    uint64_t v = 0;
    if (!json_is_object(root->value)) files_input_expected(in, root, "an object { \"espresso\": 1, ... }");
    if (!version.value)
        files_input_fail(in, &version, "missing: expected the version of the format, 1; is this a %s file?", kind);
    files_get_whole(in, &version, &files_range_version, FILES_NEEDED, &v);
    if (v > 1)
        files_input_fail(in, &version,
                         "the file was made by a newer espresso: expected version 1, found %llu; update espresso, or "
                         "make the file anew",
                         (unsigned long long)v);
    if (json_object_get(root->value, "costs") && strcmp(kind, "costs") != 0)
        files_input_fail(in, root, "this is a costs file; expected a %s file: --costs reads it", kind);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!json_object_get(root->value, kind) && json_object_get(root->value, kinds[i]))
            files_input_fail(in, root, "this is a %s file; expected a %s file", kinds[i], kind);
}
