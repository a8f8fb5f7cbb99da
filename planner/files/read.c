/* read.c: reads JSON values as C values, for all of the planner's files. */
#include "planner/files/read.h"
#include "espresso_impl/base/file.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>

enum { FILES_INPUT_BYTES = 1 << 30, FILES_KEY_MAX = 256 };

/* ---- values and where they are in the file ----------------------------------------------------------------------- */
ESP__FN files_place files_at(const files_place *object, const char *key) {
    return (files_place){object, key, 0, json_object_get(object->value, key)};
}

ESP__FN files_place files_item(const files_place *list, size_t i) {
    return (files_place){list, NULL, i, json_array_get(list->value, i)};
}

/* Prints where a value is, such as "tensors[3].compute_us", or if `general`, "tensors[].compute_us". Returns the
 * length, as snprintf does. */
static size_t files_place_print(const files_place *p, bool general, char *buf, size_t cap) {
    size_t n;
    int more;
    if (!p->in) return *buf = 0, (size_t)0;
    n = files_place_print(p->in, general, buf, cap); /* recursion, but files have only a few levels */
    if (n >= cap) return n;
    if (p->key)
        more = snprintf(buf + n, cap - n, "%s%s", n ? "." : "", p->key);
    else
        more = general ? snprintf(buf + n, cap - n, "[]") : snprintf(buf + n, cap - n, "[%zu]", p->index);
    return n + (size_t)more;
}

/* ---- errors and warnings ----------------------------------------------------------------------------------------- */
/* Replaces control characters, because text from a file must not control the terminal that shows a message. */
static char *files_printable(char *text) {
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '?';
    return text;
}

static void files_message(const files_input *in, const files_place *p, const char *text, char out[ESP__ERROR_MAX]) {
    char key[FILES_KEY_MAX];
    files_place_print(p, false, key, sizeof key);
    const int n = snprintf(out, ESP__ERROR_MAX, "%s: ", in->name);
    if (n >= ESP__ERROR_MAX) return;
    snprintf(out + n, (size_t)(ESP__ERROR_MAX - n), "%s%s%s", key, *key ? ": " : "", text);
    files_printable(out + n);
}

_Noreturn ESP__FN void files_fail(files_input *in, files_place p, const char *fmt, ...) {
    char text[ESP__ERROR_MAX], message[ESP__ERROR_MAX];
    va_list ap;
    va_start(ap, fmt);
    esp__format_list(text, sizeof text, fmt, ap);
    va_end(ap);
    files_message(in, &p, text, message);
    in->status = esp__fail(NULL, ESP_E_ARG, "%s", message);
    longjmp(in->fail, 2);
}

ESP__FN void files_warn(const files_input *in, files_place p, const char *text) {
    char message[ESP__ERROR_MAX];
    files_message(in, &p, text, message);
    if (in->log && in->log->warn)
        in->log->warn(in->log->user, message);
    else
        fprintf(stderr, "espresso: warning: %s\n", message);
}

static const char *files_found(const json_t *v, char *buf, size_t cap) {
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_STRING:
        snprintf(buf, cap, json_string_length(v) > 40 ? "\"%.40s...\"" : "\"%s\"", json_string_value(v));
        return buf;
    case JSON_INTEGER: snprintf(buf, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); return buf;
    case JSON_REAL: esp__format(buf, cap, "%.15g", json_real_value(v)); return buf;
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}

_Noreturn ESP__FN void files_expected(files_input *in, files_place p, const char *expected) {
    char found[64];
    if (!p.value) files_fail(in, p, "missing: expected %s", expected);
    files_fail(in, p, "expected %s, found %s", expected, files_found(p.value, found, sizeof found));
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */
/* Warns of an unknown key; if all items of a list have it, only once. */
static void files_unknown_key(files_input *in, files_place p, const char *const *known) {
    char kind[FILES_KEY_MAX], text[FILES_KEY_MAX + 64];
    const char *suggestion = NULL;
    unsigned best = 3;
    files_place_print(&p, true, kind, sizeof kind);
    const uint64_t hash = esp__hash64(ESP__HASH0, kind, strlen(kind));
    for (uint32_t i = 0; i < in->n_unknown; i++)
        if (in->unknown[i] == hash) return;
    if (in->n_unknown == sizeof in->unknown / sizeof *in->unknown) return;
    in->unknown[in->n_unknown++] = hash;
    for (; *known; known++)
        if (esp__suggests(p.key, *known, &best)) suggestion = *known;
    if (suggestion)
        snprintf(text, sizeof text, "unknown, ignored (did you mean '%s'?)", suggestion);
    else
        snprintf(text, sizeof text, "unknown, ignored");
    files_warn(in, p, text);
}

ESP__FN void files_object(files_input *in, files_place p, const char *const *known, const char *expected) {
    const char *key;
    json_t *value;
    if (!json_is_object(p.value)) files_expected(in, p, expected);
    json_object_foreach(p.value, key, value) {
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0) k++;
        if (!*k) files_unknown_key(in, (files_place){&p, key, 0, value}, known);
    }
}

ESP__FN void files_get_version(files_input *in, const files_place *root, const char *kind) {
    static const char *const kinds[] = {"model", "codec", "system"};
    static const files_range range = {1, 1e9, false, "the version of the format, 1"};
    const files_place version = files_at(root, "espresso");
    uint64_t v = 0;
    if (!json_is_object(root->value)) files_expected(in, *root, "an object { \"espresso\": 1, ... }");
    if (!version.value)
        files_fail(in, version, "missing: expected the version of the format, 1; is this a %s file?", kind);
    files_get_whole(in, version, &range, FILES_NEEDED, &v);
    if (v > 1)
        files_fail(in, version,
                   "the file was made by a newer espresso: expected version 1, found %llu; update espresso, or make "
                   "the file again",
                   (unsigned long long)v);
    if (json_object_get(root->value, "costs") && strcmp(kind, "costs") != 0)
        files_fail(in, *root, "this is a costs file; expected a %s file: --costs reads it", kind);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!json_object_get(root->value, kind) && json_object_get(root->value, kinds[i]))
            files_fail(in, *root, "this is a %s file; expected a %s file", kinds[i], kind);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
ESP__FN bool files_get_number(files_input *in, files_place p, const files_range *range, int optional, double *out) {
    if (!p.value && optional) return false;
    const double x = json_number_value(p.value);
    if (!json_is_number(p.value) || !(x >= range->least) || (range->above && x <= range->least))
        files_expected(in, p, range->expected);
    if (x > range->most) files_fail(in, p, "expected at most %.15g, found %.15g", range->most, x);
    *out = x + 0.0; /* changes -0 to 0 */
    return true;
}

ESP__FN bool files_get_whole(files_input *in, files_place p, const files_range *range, int optional, uint64_t *out) {
    double x;
    if (!files_get_number(in, p, range, optional, &x)) return false;
    if (x != floor(x)) files_expected(in, p, range->expected);
    *out = json_is_integer(p.value) ? (uint64_t)json_integer_value(p.value) : (uint64_t)x;
    return true;
}

ESP__FN uint32_t files_get_count(files_input *in, files_place p, const files_range *range, int optional) {
    uint64_t n = 0;
    files_get_whole(in, p, range, optional, &n);
    return (uint32_t)n;
}

ESP__FN double files_get_us(files_input *in, files_place p, int optional) {
    static const files_range range = {0, 1e12, false, "a number of microseconds >= 0"};
    double us = 0;
    files_get_number(in, p, &range, optional, &us);
    return us * 1000.0;
}

ESP__FN bool files_get_flag(files_input *in, files_place p) {
    if (p.value && !json_is_boolean(p.value)) files_expected(in, p, "true or false");
    return json_is_true(p.value);
}

/* ---- texts and lists --------------------------------------------------------------------------------------------- */
ESP__FN const char *files_get_text(files_input *in, files_place p, const char *expected, int optional) {
    if (!p.value && optional) return NULL;
    if (!json_is_string(p.value)) files_expected(in, p, expected);
    return esp__arena_text(in->arena, json_string_value(p.value));
}

ESP__FN const char *files_get_word(files_input *in, files_place p, const char *expected) {
    const char *text = files_get_text(in, p, expected, FILES_NEEDED), *wrong = NULL;
    if (!*text) wrong = "it is empty";
    if (strlen(text) >= ESP__SPEC_MAX) wrong = "it has more than 255 bytes";
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == '#' || *c == 0x7f) wrong = "it has blanks, '#' or control characters";
    if (wrong) files_fail(in, p, "expected %s, found \"%.60s\": %s", expected, text, wrong);
    return text;
}

ESP__FN const char *files_get_line(files_input *in, files_place p, const char *expected) {
    const char *text = files_get_text(in, p, expected, FILES_NEEDED);
    if (!*text) files_expected(in, p, expected);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\t')
            files_fail(in, p, "expected one line without control characters, found \"%.60s\"", text);
    return text;
}

ESP__FN uint32_t files_get_choice(files_input *in, files_place p, const char *const *words, const char *expected) {
    const char *text = json_is_string(p.value) ? json_string_value(p.value) : "";
    for (uint32_t i = 0; words[i]; i++)
        if (!strcmp(words[i], text)) return i;
    files_expected(in, p, expected);
}

ESP__FN size_t files_get_list(files_input *in, files_place p, const char *expected) {
    if (!json_is_array(p.value)) files_expected(in, p, expected);
    return json_array_size(p.value);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
static bool files_is_blank(const char *text, size_t len) {
    size_t i = 0;
    while (i < len && isspace((unsigned char)text[i])) i++;
    return i == len;
}

/* Fails because the text is not JSON. Only this message has a line number, because jansson does not tell the lines of
 * values. */
_Noreturn static void files_syntax(files_input *in, const char *text, size_t len, json_error_t *e) {
    const char *hint = "this is not JSON; ";
    if (json_error_code(e) == json_error_out_of_memory) longjmp(in->fail, 1);
    if (json_error_code(e) == json_error_premature_end_of_input)
        hint = "the file ends in the middle (was it cut off?); ";
    if (json_error_code(e) == json_error_numeric_overflow) hint = "the number is too large; ";
    if (json_error_code(e) == json_error_duplicate_key) hint = "a key is there twice; ";
    if (files_is_blank(text, len))
        in->status = esp__fail(NULL, ESP_E_ARG, "%s: the file is empty", in->name);
    else
        in->status = esp__fail(NULL, ESP_E_ARG, "%s:%d: %s%s", in->name, e->line > 0 ? e->line : 1, hint,
                               files_printable(e->text));
    longjmp(in->fail, 2);
}

/* The caller frees *root, because local variables may be lost after a longjmp. */
static void files_parse_catching(files_input *in, const char *text, size_t len, const char *kind, files_reader reader,
                                 void *out, json_t **root) {
    json_error_t e;
    if (setjmp(in->fail)) {
        if (!in->status) in->status = esp__fail(NULL, ESP_E_NOMEM, "%s: out of memory", in->name);
        return;
    }
    in->arena->on_failure = &in->fail;
    *root = json_loadb(text ? text : "", len, JSON_REJECT_DUPLICATES, &e);
    if (!*root) files_syntax(in, text, len, &e);
    const files_place whole = {NULL, NULL, 0, *root};
    const files_place part = files_at(&whole, kind);
    const bool in_costs = json_object_get(*root, "costs") && json_is_object(part.value);
    reader(in, in_costs ? &part : &whole, out);
}

ESP__FN esp_status files_parse(const char *name, const char *text, size_t len, const esp__files_log *log,
                               const char *kind, files_reader reader, void *out, esp__arena *arena) {
    files_input in = {.name = name, .arena = arena, .log = log};
    json_t *root = NULL;
    files_parse_catching(&in, text, len, kind, reader, out, &root);
    json_decref(root);
    arena->on_failure = NULL;
    if (in.status) esp__arena_free(arena);
    return in.status;
}

ESP__FN esp_status files_input_load(const char *path, char **text, size_t *len) {
    const int error = esp__file_read(path, FILES_INPUT_BYTES, text, len);
    if (!error) return ESP_OK;
    const char *why = error == EFBIG    ? "it is larger than 1 GiB: this is no file of the planner"
                      : error == EISDIR ? "it is a directory: give a file in it"
                                        : strerror(error);
    return esp__fail(NULL, error == ENOENT ? ESP_E_NOT_FOUND : ESP_E_ARG, "%s: cannot be read: %s", path, why);
}
