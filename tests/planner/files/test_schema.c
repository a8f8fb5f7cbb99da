/* test_schema.c checks that the JSON schemas in docs/plan/schema and the readers agree: for each key of an example that
 * has all keys, the reader must act as the schema demands. */
#include "tests/lib/test.h"
#include "planner/files/keys.h"
#include "planner/files/costs_parts.h"
#include "files.h"

static const char *const schemas[] = {"docs/plan/schema/model.schema.json", "docs/plan/schema/codec.schema.json",
                                      "docs/plan/schema/system.schema.json", "docs/plan/schema/costs.schema.json"};
static const char *const required_here[][4] = {{NULL}, {NULL}, {"intra", "inter", "outer", NULL}};

typedef struct walk {
    int kind, tried, wrong;
    json_t *schema, *root;
    char path[256];
} walk;

static json_t *load(const char *path) {
    json_error_t e;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!root) fail_msg("%s:%d: %s", path, e.line, e.text);
    return root;
}

/* Follows a reference to a definition: "$ref": "#/$defs/NAME". */
static json_t *resolved(const walk *w, json_t *s) {
    const char *ref = json_string_value(json_object_get(s, "$ref"));
    if (!ref) return s;
    json_t *def = json_object_get(json_object_get(w->schema, "$defs"), strrchr(ref, '/') + 1);
    assert_non_null(def);
    return def;
}

/* Checks that the changed example is accepted or refused, with this number of warnings. */
static void expect(walk *w, int accepted, int warnings, const char *what) {
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    char *text = json_dumps(w->root, 0);
    esp_status s = parse(w->kind, "f", text, strlen(text), &log);
    w->tried++;
    if ((s == ESP_OK) != accepted || (accepted && h.n != warnings)) {
        print_error("%s: %s: %s: %s%s\n", full[w->kind], w->path, what, s ? esp_last_error(NULL) : "accepted; ",
                    h.text);
        w->wrong++;
    }
    free(text);
}

/* Checks that the example is refused while `key` of `object` is `value`. Takes ownership of `value`. */
static void expect_refused(walk *w, json_t *object, const char *key, json_t *value, const char *what) {
    json_t *was = json_incref(json_object_get(object, key));
    json_object_set_new(object, key, value);
    expect(w, 0, 0, what);
    json_object_set_new(object, key, was);
}

static void expect_limit(walk *w, json_t *object, const char *key, json_t *limit) {
    static const char *const fit_others[] = {"parameters", "tensors", "rows", "cols"};
    char named[64];
    for (size_t i = 0; i < sizeof fit_others / sizeof *fit_others; i++)
        if (!strcmp(fit_others[i], key)) return;
    json_t *was = json_incref(json_object_get(object, key));
    json_object_set(object, key, limit);
    char *text = json_dumps(w->root, 0);
    snprintf(named, sizeof named, "%s: ", key);
    if (parse(w->kind, "f", text, strlen(text), &fuzz_log) != ESP_OK && strstr(esp_last_error(NULL), named)) {
        print_error("%s: %s: the schema's limit: %s\n", full[w->kind], w->path, esp_last_error(NULL));
        w->wrong++;
    }
    free(text);
    json_object_set_new(object, key, was);
}

static int is_type(const char *type, const json_t *value) {
    return !strcmp(type, "object")    ? json_is_object(value)
           : !strcmp(type, "array")   ? json_is_array(value)
           : !strcmp(type, "string")  ? json_is_string(value)
           : !strcmp(type, "boolean") ? json_is_boolean(value)
                                      : json_is_number(value);
}

static int allows(json_t *s, const json_t *value) {
    json_t *type = json_object_get(s, "type");
    json_t *some = json_object_get(s, "enum"), *only = json_object_get(s, "const"), *item;
    size_t i;
    if (only) return json_equal(only, value);
    json_array_foreach(some, i, item) if (json_equal(item, value)) return 1;
    if (some) return 0;
    if (!type) fail_msg("a schema without type, enum and const");
    if (json_is_string(type)) return is_type(json_string_value(type), value);
    json_array_foreach(type, i, item) if (is_type(json_string_value(item), value)) return 1;
    return 0;
}

/* Checks that values of other types and beyond the limits are refused. */
static void check_value(walk *w, json_t *object, const char *key, json_t *s) {
    json_t *others[] = {json_null(), json_true(), json_integer(7), json_string("seven"), json_array(), json_object()};
    json_t *least = json_object_get(s, "minimum"), *most = json_object_get(s, "maximum"),
           *above = json_object_get(s, "exclusiveMinimum"), *items = json_object_get(s, "minItems"),
           *pattern = json_object_get(s, "pattern"), *length = json_object_get(s, "minLength");
    const char *type = json_string_value(json_object_get(s, "type"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (!allows(s, others[i])) expect_refused(w, object, key, json_incref(others[i]), "another type");
        json_decref(others[i]);
    }
    if (json_is_array(json_object_get(s, "type")) && items)
        expect_refused(w, object, key, json_pack("[f]", 0.0), "a list with such an item");
    if (least) expect_refused(w, object, key, json_real(json_number_value(least) - 0.5), "below the minimum");
    if (above) expect_refused(w, object, key, json_real(json_number_value(above)), "not above the minimum");
    if (most) expect_refused(w, object, key, json_real(json_number_value(most) * 1.001), "above the maximum");
    if (least) expect_limit(w, object, key, least);
    if (most) expect_limit(w, object, key, most);
    if (type && !strcmp(type, "integer")) expect_refused(w, object, key, json_real(2.5), "not whole");
    if (items && json_integer_value(items)) expect_refused(w, object, key, json_array(), "empty");
    if (length) expect_refused(w, object, key, json_string(""), "empty");
    if (pattern) expect_refused(w, object, key, json_string("two\nlines"), "two lines");
    if (json_object_get(s, "const")) expect_refused(w, object, key, json_integer(2), "not the constant");
}

static int is_required(const walk *w, json_t *s, const char *key, int top) {
    const char *name_of;
    json_t *list;
    json_t *required = json_object_get(s, "required"), *name;
    size_t i;
    json_array_foreach(required, i, name) if (!strcmp(json_string_value(name), key)) return 1;
    for (i = 0; top && required_here[w->kind][i]; i++)
        if (!strcmp(required_here[w->kind][i], key)) return 1;
    json_object_foreach(json_object_get(s, "dependentRequired"), name_of, list)
        json_array_foreach(list, i, name) if (!strcmp(json_string_value(name), key)) return 1;
    return 0;
}

static void check_object(walk *w, json_t *object, json_t *s) {
    json_t *properties = json_object_get(s, "properties"), *rest = json_object_get(s, "additionalProperties"), *sub;
    const char *key;
    size_t at = strlen(w->path);
    if (!rest) {
        json_object_set_new(object, "no such key", json_true());
        expect(w, 1, 1, "an unknown key");
        json_object_del(object, "no such key");
    }
    json_object_foreach(properties, key, sub) {
        json_t *value = json_incref(json_object_get(object, key));
        snprintf(w->path + at, sizeof w->path - at, "%s%s", at ? "." : "", key);
        if (value) {
            json_t *child = resolved(w, sub), *items = json_object_get(child, "items");
            assert_true(json_is_string(json_object_get(sub, "description")) || json_object_get(sub, "$ref"));
            json_object_del(object, key);
            expect(w, !is_required(w, s, key, at == 0), 0, "left out");
            json_object_set(object, key, value);
            check_value(w, object, key, child);
            if (json_object_get(child, "properties")) check_object(w, value, child);
            if (items && json_object_get(resolved(w, items), "properties"))
                check_object(w, json_array_get(value, 0), resolved(w, items));
        } else if (w->kind != SYSTEM || !strstr(w->path, "tables.")) {
            print_error("%s: %s is missing in the example\n", full[w->kind], w->path);
            w->wrong++;
        }
        json_decref(value);
        w->path[at] = 0;
    }
}

TEST(readers_do_what_schemas_say) {
    for (int k = 0; k < KINDS; k++) {
        walk w = {.kind = k, .schema = load(schemas[k]), .root = load(full[k])};
        expect(&w, 1, 0, "the example itself");
        check_object(&w, w.root, w.schema);
        json_decref(w.schema);
        json_decref(w.root);
        assert_int_equal(w.wrong, 0);
        assert_true(w.tried > 50);
    }
}

TEST(schemas_have_the_readers_keys) {
    static const struct {
        int kind;
        const char *def;
        const char *const *keys;
    } rows[] = {
        {MODEL, NULL, files_model_keys},     {MODEL, "tensor", files_tensor_keys}, {GC, NULL, files_gc_keys},
        {GC, "device", files_device_keys},   {SYSTEM, NULL, files_system_keys},    {SYSTEM, "link", files_link_keys},
        {SYSTEM, "tables", files_coll_keys}, {SYSTEM, "table", files_table_keys},  {KINDS, NULL, files_costs_keys}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *schema = load(schemas[rows[i].kind]), *s = schema;
        size_t n = 0;
        if (rows[i].def) s = json_object_get(json_object_get(schema, "$defs"), rows[i].def);
        s = json_object_get(s, "properties");
        for (; rows[i].keys[n]; n++)
            if (!json_object_get(s, rows[i].keys[n])) fail_msg("%s lacks %s", schemas[rows[i].kind], rows[i].keys[n]);
        assert_int_equal(json_object_size(s), n);
        json_decref(schema);
    }
}
