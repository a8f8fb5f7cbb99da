/* input.c: reads a file into values, with errors as "FILE:LINE: KEY: ...". An error jumps back to where reading began, so that
 * readers need no checks. Must not know any key. */

enum { FILES_INPUT_UNKNOWN = 16, FILES_INPUT_BYTES = 1 << 30, FILES_KEY_MAX = 256 };
typedef struct files_unknown {
    char *text;    /* the warning about the first key of its kind */
    uint64_t kind; /* hash of its path without list indices */
    uint64_t count;
} files_unknown;
typedef struct files_input {
    const char *name, *text;
    size_t len;
    int plain; /* 1: the text is not JSON */
    json_t *root;
    esp__arena *arena; /* of the struct that the reader fills */
    const esp__files_log *log;
    jmp_buf fail;
    esp_status status;
    files_unknown unknown[FILES_INPUT_UNKNOWN];
    uint32_t n_unknown;
} files_input;
/* A value and its path. */
typedef struct files_place {
    const struct files_place *in; /* NULL: the whole file */
    const char *key;              /* NULL: `index` in a list */
    size_t index;
    json_t *value; /* NULL: missing */
} files_place;

/* ---- places ----------------------------------------------------------------------------------------------------- */
/* Prints "tensors[3].compute_us", or with `general` "tensors[].compute_us". Returns the length, as snprintf does. */
static size_t files_place_print(const files_place *p, int general, char *buf, size_t cap) {
    size_t n;
    int more;
    if (!p || !p->in) return *buf = 0, (size_t)0;
    n = files_place_print(p->in, general, buf, cap); /* recursion is as deep as a reader's path: a few levels */
    if (n >= cap) return n;
    if (p->key)
        more = snprintf(buf + n, cap - n, "%s%s", n ? "." : "", p->key);
    else
        more = general ? snprintf(buf + n, cap - n, "[]") : snprintf(buf + n, cap - n, "[%zu]", p->index);
    return n + (size_t)more;
}

/* Is this the path of the value that the walk found? */
static int files_place_is(const files_place *p, const files_json_walk *w) {
    uint32_t depth = 0;
    for (const files_place *q = p; q->in; q = q->in) depth++;
    if (depth != w->value_depth || depth > FILES_JSON_PATH) return 0;
    for (; p->in; p = p->in) {
        const files_json_step *s = &w->path[--depth];
        if (p->key ? !s->key || !files_json_key_is(s, p->key) : s->key || s->index != p->index) return 0;
    }
    return 1;
}

/* The line of a place; if the value is missing, of the container that should have it. */
static int files_place_line(const files_input *in, const files_place *p) {
    files_json_walk w;
    while (p && p->in && !p->value) p = p->in;
    files_json_walk_init(&w, in->text, in->len);
    while (p && files_json_next(&w))
        if (files_place_is(p, &w)) return files_json_line(in->text, w.value);
    return 1;
}

/* ---- errors and warnings ------------------------------------------------------------------------------------------ */
static void files_input_warn(const files_input *in, const char *text) {
    if (in->log && in->log->warn)
        in->log->warn(in->log->user, text);
    else
        fprintf(stderr, "espresso: warning: %s\n", text);
}

/* Warnings come at the end, so that one for many tensors appears once. */
static void files_input_warnings(files_input *in) {
    for (uint32_t i = 0; i < in->n_unknown; i++) {
        files_unknown *u = &in->unknown[i];
        char text[ESP__ERROR_MAX + 64];
        if (u->count > 1)
            snprintf(text, sizeof text, "%s; and %llu more like it", u->text, (unsigned long long)(u->count - 1));
        else
            snprintf(text, sizeof text, "%s", u->text);
        files_input_warn(in, text);
    }
}

/* Replaces control characters: a file's text must not control the terminal that shows a message. */
static char *files_printable(char *text) {
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '?';
    return text;
}

_Noreturn static void files_input_fail(files_input *in, const files_place *p, const char *fmt, ...) ESP__PRINTF(3, 4);
_Noreturn static void files_input_fail(files_input *in, const files_place *p, const char *fmt, ...) {
    char text[ESP__ERROR_MAX], key[FILES_KEY_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    files_place_print(p, 0, key, sizeof key);
    in->status = esp__fail(NULL, ESP_E_ARG, "%s:%d: %s%s%s", in->name, files_place_line(in, p), files_printable(key),
                           *key ? ": " : "", files_printable(text));
    longjmp(in->fail, 2);
}

/* Describes a value in a few words. */
static const char *files_found(const json_t *v, char *buf, size_t cap) {
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_STRING:
        snprintf(buf, cap, json_string_length(v) > 40 ? "\"%.40s...\"" : "\"%s\"", json_string_value(v));
        return buf;
    case JSON_INTEGER: snprintf(buf, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); return buf;
    case JSON_REAL: snprintf(buf, cap, "%.15g", json_real_value(v)); return buf;
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}

_Noreturn static void files_input_expected(files_input *in, const files_place *p, const char *expected) {
    char found[64];
    if (!p->value) files_input_fail(in, p, "missing: expected %s", expected);
    files_input_fail(in, p, "expected %s, found %s", expected, files_found(p->value, found, sizeof found));
}

/* ---- keys ------------------------------------------------------------------------------------------------------------ */
static void files_unknown_key(files_input *in, const files_place *p, const char *const *known) {
    char key[FILES_KEY_MAX], kind_text[FILES_KEY_MAX], hint[FILES_KEY_MAX] = "", text[ESP__ERROR_MAX];
    const char *near = NULL;
    unsigned best = 3;
    uint64_t kind;
    files_place_print(p, 1, kind_text, sizeof kind_text);
    kind = esp__hash64(ESP__HASH0, kind_text, strlen(kind_text));
    for (uint32_t i = 0; i < in->n_unknown; i++)
        if (in->unknown[i].kind == kind) {
            in->unknown[i].count++;
            return;
        }
    if (in->n_unknown == FILES_INPUT_UNKNOWN) return;
    files_place_print(p, 0, key, sizeof key);
    for (; *known; known++)
        if (esp__near(p->key, *known, &best)) near = *known;
    if (near) snprintf(hint, sizeof hint, " (did you mean '%s'?)", near);
    snprintf(text, sizeof text, "%s:%d: %s: unknown, ignored%s", in->name, files_place_line(in, p), key, hint);
    files_unknown *u = &in->unknown[in->n_unknown];
    u->text = esp__arena_text(in->arena, files_printable(text));
    u->kind = kind;
    u->count = 1;
    in->n_unknown++;
}

/* Checks that the value is an object, and warns of keys other than these (NULL-terminated). The warnings appear even if a missing key
 * is an error later. */
static void files_object(files_input *in, const files_place *p, const char *const *known, const char *expected) {
    const char *key;
    json_t *value;
    if (!json_is_object(p->value)) files_input_expected(in, p, expected);
    json_object_foreach(p->value, key, value) {
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0) k++;
        if (!*k) {
            files_place at = {p, key, 0, value};
            files_unknown_key(in, &at, known);
        }
    }
}

static files_place files_at(const files_place *p, const char *key) {
    files_place at = {p, key, 0, json_object_get(p->value, key)};
    return at;
}

/* ---- the file --------------------------------------------------------------------------------------------------------- */
static int files_is_blank(const char *text, size_t len) {
    size_t i = 0;
    while (i < len && isspace((unsigned char)text[i])) i++;
    return i == len;
}

/* Prints the path of the value at which the parser stopped, such as a number that is too large. */
static void files_stopped_at(const files_input *in, const json_error_t *e, char *key, size_t cap) {
    files_json_walk w;
    int n = 0;
    size_t stop = e->position > 0 ? (size_t)e->position : 0, room;
    *key = 0;
    files_json_walk_init(&w, in->text, in->len);
    while (files_json_next(&w) && w.at < stop) {
    }
    for (uint32_t d = 0; d < w.value_depth && d < FILES_JSON_PATH && w.value < stop; d++) {
        const files_json_step *s = &w.path[d];
        room = cap - (size_t)n;
        if (s->key)
            n += snprintf(key + n, room, "%s%.*s", d ? "." : "", s->len < 64 ? (int)s->len : 64, s->key);
        else
            n += snprintf(key + n, room, "[%zu]", s->index);
        if ((size_t)n + 1 >= cap) return;
    }
}

_Noreturn static void files_input_syntax(files_input *in, const json_error_t *e) {
    char key[FILES_KEY_MAX], what[sizeof e->text + 1];
    const char *hint = "";
    if (json_error_code(e) == json_error_out_of_memory) longjmp(in->fail, 1);
    if (files_is_blank(in->text, in->len)) files_input_fail(in, NULL, "the file is empty");
    snprintf(what, sizeof what, "%s", e->text);
    files_stopped_at(in, e, key, sizeof key);
    switch (json_error_code(e)) {
    case json_error_premature_end_of_input: hint = "the file ends in the middle (was it cut off?); "; break;
    case json_error_numeric_overflow: hint = "the number is too large; "; break;
    case json_error_duplicate_key: hint = "a key stands there twice; "; break;
    case json_error_invalid_syntax: hint = "this is not JSON; "; break;
    default: break;
    }
    in->status = esp__fail(NULL, ESP_E_ARG, "%s:%d: %s%s%s%s", in->name, e->line > 0 ? e->line : 1,
                           files_printable(key), *key ? ": " : "", hint, files_printable(what));
    longjmp(in->fail, 2);
}

typedef void (*files_reader)(files_input *in, const files_place *root, void *out);

static void files_input_catching(files_input *in, files_reader reader, void *out) {
    json_error_t e;
    if (setjmp(in->fail)) {
        if (!in->status) in->status = esp__fail(NULL, ESP_E_NOMEM, "%s: out of memory", in->name);
        return;
    }
    in->arena->on_failure = &in->fail;
    if (!in->plain) in->root = json_loadb(in->text, in->len, JSON_REJECT_DUPLICATES, &e);
    if (!in->plain && !in->root) files_input_syntax(in, &e);
    files_place root = {NULL, NULL, 0, in->root};
    reader(in, &root, out);
}

/* Reads `in` into `out`; frees all memory if that fails. */
static esp_status files_input_run(files_input *in, files_reader reader, void *out) {
    files_input_catching(in, reader, out);
    files_input_warnings(in);
    json_decref(in->root);
    in->arena->on_failure = NULL;
    if (in->status) esp__arena_free(in->arena);
    return in->status;
}

/* Reads JSON; `arena` is that of `out`. */
static esp_status files_input_parse(const char *name, const char *text, size_t len, const esp__files_log *log,
                                    files_reader reader, void *out, esp__arena *arena) {
    files_input in;
    memset(&in, 0, sizeof in);
    in.name = name;
    in.text = text ? text : "";
    in.len = len;
    in.arena = arena;
    in.log = log;
    return files_input_run(&in, reader, out);
}

/* The same for any other text. */
static esp_status files_text_parse(const char *name, const char *text, size_t len, const esp__files_log *log,
                                   files_reader reader, void *out, esp__arena *arena) {
    files_input in;
    memset(&in, 0, sizeof in);
    in.name = name;
    in.text = text;
    in.len = len;
    in.plain = 1;
    in.arena = arena;
    in.log = log;
    return files_input_run(&in, reader, out);
}

/* Loads a whole file; the caller frees the text. */
static esp_status files_input_load(const char *path, char **text, size_t *len) {
    int error = esp__file_read(path, FILES_INPUT_BYTES, text, len);
    if (!error) return ESP_OK;
    const char *why = error == EFBIG    ? "it is larger than 1 GiB: this is no file of the planner"
                      : error == EISDIR ? "it is a directory: give a file in it"
                                        : strerror(error);
    return esp__fail(NULL, error == ENOENT ? ESP_E_NOT_FOUND : ESP_E_ARG, "%s: cannot be read: %s", path, why);
}

/* ---- kinds of files -------------------------------------------------------------------------------------------------- */
/* esp__KIND_parse, esp__KIND_read and esp__KIND_free, of a kind of file that files_read_KIND reads. */
#define FILES_KIND(kind)                                                                                               \
    ESP__FN esp_status esp__##kind##_parse(const char *name, const char *text, size_t len, esp__##kind##_file *out,    \
                                           const esp__files_log *log) {                                                \
        memset(out, 0, sizeof *out);                                                                                   \
        esp_status s = files_input_parse(name, text, len, log, files_read_##kind, out, &out->arena);                   \
        if (s) memset(out, 0, sizeof *out);                                                                            \
        return s;                                                                                                      \
    }                                                                                                                  \
    ESP__FN esp_status esp__##kind##_read(const char *path, esp__##kind##_file *out, const esp__files_log *log) {      \
        char *text;                                                                                                    \
        size_t len = 0;                                                                                                \
        memset(out, 0, sizeof *out);                                                                                   \
        esp_status s = files_input_load(path, &text, &len);                                                            \
        if (s) return s;                                                                                               \
        s = esp__##kind##_parse(path, text, len, out, log);                                                            \
        free(text);                                                                                                    \
        return s;                                                                                                      \
    }                                                                                                                  \
    ESP__FN void esp__##kind##_free(esp__##kind##_file *f) {                                                           \
        esp__arena_free(&f->arena);                                                                                    \
        memset(f, 0, sizeof *f);                                                                                       \
    }
