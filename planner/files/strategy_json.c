/* strategy_json.c: a strategy as JSON, for scripts, and back without loss. Must not know the text form: strategy.c does. */
#include "espresso_impl/base/json.h"

/* ---- writing JSON ---------------------------------------------------------------------------------------------------- */
static void files_put_unit(esp__text *t, const esp_plan_unit *u) {
    esp__text_add(t, "    {\"first\": %u, \"tensors\": %u, \"begin\": %llu, \"elements\": %llu, \"codec\": ", u->first,
                  u->n_tensors, (unsigned long long)u->begin, (unsigned long long)u->elements);
    esp__json_string(t, u->codec);
    esp__text_add(t, ", \"option\": ");
    esp__json_string(t, u->option);
}

/* The predicted start of a unit's first op and end of its last. */
static void files_put_unit_times(esp__text *t, const uint64_t times[2]) {
    if (!times[1]) return;
    esp__text_add(t, ", \"start_us\": ");
    files_put_us(t, (double)times[0]);
    esp__text_add(t, ", \"end_us\": ");
    files_put_us(t, (double)times[1]);
}

/* [n] start of each unit's first op and end of its last, from the plan's timeline; zeros without a plan. */
static uint64_t (*files_unit_times(files_strategy *s, const esp_plan *plan))[2] {
    uint64_t(*times)[2] = esp__arena_get(&s->arena, (s->n_units + 1) * sizeof *times);
    uint32_t n = 0;
    const esp_plan_event *e = plan ? esp_plan_events(plan, &n) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (e[i].kind == ESP_PLAN_BACKWARD || e[i].unit >= s->n_units) continue;
        uint64_t *x = times[e[i].unit];
        if (!x[1] || e[i].start_ns < x[0]) x[0] = e[i].start_ns;
        if (e[i].end_ns > x[1]) x[1] = e[i].end_ns;
    }
    return times;
}

static void files_put_predicted(esp__text *t, const esp_plan *plan) {
    esp_plan_report r = {.struct_size = sizeof r};
    if (!plan || esp_plan_report_read(plan, &r) != ESP_OK) return;
    const struct {
        const char *key;
        double ns;
    } rows[] = {{"fp32_us", r.fp32_ns},
                {"iteration_us", r.iteration_ns},
                {"bound_us", r.bound_ns},
                {"bound_any_us", r.bound_any_ns},
                {"free_compression_us", r.free_compression_ns},
                {"exposed_communication_us", r.exposed_communication_ns},
                {"exposed_compression_us", r.exposed_compression_ns}};
    esp__text_add(t, "  \"predicted\": {\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) files_put_us_line(t, "    ", rows[i].key, rows[i].ns);
    esp__text_add(t, "    \"memory_bytes\": %llu\n  },\n", (unsigned long long)r.memory_bytes);
}

static void files_put_comments(const files_strategy *s, esp__text *t) {
    esp__text_add(t, "  \"comments\": [");
    for (uint32_t i = 0; i < s->n_comments; i++) {
        esp__text_add(t, i ? ",\n    " : "\n    ");
        esp__json_string(t, s->comments[i]);
    }
    esp__text_add(t, s->n_comments ? "\n  ],\n" : "],\n");
}

static void files_put_order(const files_strategy *s, esp__text *t) {
    char word[ESP__ENTRY_MAX];
    esp__text_add(t, "  \"order\": [");
    for (uint32_t i = 0; i < s->n_order; i++)
        esp__text_add(t, "%s%s\"%s\"", i ? "," : "", i % 16 ? " " : "\n    ",
                      esp__order_entry_word(&s->order[i], word));
    esp__text_add(t, s->n_order ? "\n  ]\n" : "]\n");
}

static void files_put_strategy(files_strategy *s, const esp_plan *plan, esp__text *t) {
    uint64_t(*times)[2] = files_unit_times(s, plan);
    esp__text_add(t, "{\n  \"espresso\": 1,\n  \"strategy\": 1,\n");
    files_put_comments(s, t);
    files_put_predicted(t, plan);
    esp__text_add(t, "  \"tensors\": [\n");
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        esp__text_add(t, "    {\"name\": ");
        esp__json_string(t, s->tensors[i].name);
        esp__text_add(t, ", \"elements\": %llu}%s\n", (unsigned long long)s->tensors[i].elements,
                      i + 1 < s->n_tensors ? "," : "");
    }
    esp__text_add(t, "  ],\n  \"units\": [\n");
    for (uint32_t u = 0; u < s->n_units; u++) {
        files_put_unit(t, &s->units[u]);
        files_put_unit_times(t, times[u]);
        esp__text_add(t, u + 1 < s->n_units ? "},\n" : "}\n");
    }
    esp__text_add(t, "  ],\n");
    files_put_order(s, t);
    esp__text_add(t, "}\n");
}

/* The strategy and its plan, passed together to the function that may run out of memory. */
typedef struct files_print_job {
    files_strategy s;
    const esp_plan *plan;
} files_print_job;

static void files_print_strategy(files_input *in, const files_place *root, void *out) {
    files_print_job *job = (files_print_job *)out;
    files_read_strategy_text(in, root, &job->s);
    files_put_strategy(&job->s, job->plan, job->s.out);
    if (job->s.out->failed) longjmp(in->fail, 1);
}

ESP__FN esp_status esp__strategy_json_print(const char *name, const char *text, const esp_plan *plan, esp__text *out) {
    files_print_job job = {.s = {.out = out}, .plan = plan};
    esp_status s = files_text_parse(name, text, strlen(text), NULL, files_print_strategy, &job, &job.s.arena);
    esp__arena_free(&job.s.arena);
    return s;
}

/* ---- reading JSON ----------------------------------------------------------------------------------------------------- */
static const char *const files_strategy_keys[] = {"espresso", "strategy", "comments", "predicted",
                                                  "tensors",  "units",    "order",    NULL};
static const char *const files_strategy_tensor_keys[] = {"name", "elements", NULL};
static const char *const files_unit_keys[] = {"first",  "tensors",  "begin",  "elements", "codec",
                                              "option", "start_us", "end_us", NULL};

/* Reads a comment, which may be empty. */
static const char *files_get_comment(files_input *in, const files_place *p) {
    return json_is_string(p->value) && !json_string_length(p->value) ? "" : files_get_line(in, p, "one line of text");
}

/* Reads a word with the limits of the text format. */
static const char *files_get_strategy_word(files_input *in, const files_place *p, const char *expected, size_t most) {
    const char *text = files_get_text(in, p, expected, FILES_NEEDED), *wrong = esp__strategy_word_wrong(text, most);
    if (wrong) files_input_fail(in, p, "expected %s, found \"%.60s\": %s", expected, text, wrong);
    return text;
}

/* How far the units have been read. */
typedef struct files_units_at {
    uint32_t next; /* the tensor with which the next unit begins, or of which it is a chunk */
    uint64_t done; /* its elements in chunks so far */
} files_units_at;

/* What is wrong with the next unit, of `n` tensors or a chunk of one; NULL: nothing. */
static const char *files_unit_wrong(const files_strategy *s, const files_units_at *at, uint32_t n, uint64_t elements,
                                    const char *codec) {
    uint64_t all = 0;
    if (s->n_units == ESP__UNITS_MAX) return "expected at most 2^24 units";
    if (!strcmp(codec, "split") || !strcmp(codec, "group")) return "expected a codec, not 'split' or 'group'";
    if (!n || n > s->n_tensors - at->next) return "expected a tensor that no unit before it has taken";
    for (uint32_t i = 0; i < n; i++) all += s->tensors[at->next + i].elements;
    if (n > 1 && at->done) return "expected the other chunks of the tensor before a group begins";
    if (n > 1 && elements != all) return "expected the sum of the elements of the group's tensors";
    if (!elements || elements > all - at->done) return "expected no more elements than the tensor has left";
    return NULL;
}

static void files_read_json_unit(files_input *in, files_strategy *s, const files_place *p, files_units_at *at) {
    files_object(in, p, files_unit_keys,
                 "an object { \"tensors\": ..., \"elements\": ..., \"codec\": ..., \"option\": ... }");
    const files_place first = files_at(p, "first"), tensors = files_at(p, "tensors"), begin = files_at(p, "begin"),
                      elements = files_at(p, "elements"), codec = files_at(p, "codec"), option = files_at(p, "option");
    const files_place times[] = {files_at(p, "start_us"), files_at(p, "end_us")};
    uint64_t n = 1, x = 0, count = 0;
    files_get_us(in, &times[0], FILES_OPTIONAL);
    files_get_us(in, &times[1], FILES_OPTIONAL);
    files_get_whole(in, &tensors, &files_range_group, FILES_OPTIONAL, &n);
    if (files_get_whole(in, &first, &files_range_index, FILES_OPTIONAL, &x) && x != at->next)
        files_input_fail(in, &first, "expected %u, the tensor that the units before this one leave, found %llu",
                         at->next, (unsigned long long)x);
    if (files_get_whole(in, &begin, &files_range_strategy_begin, FILES_OPTIONAL, &x) && x != at->done)
        files_input_fail(in, &begin, "expected %llu, where the chunk before this one ends, found %llu",
                         (unsigned long long)at->done, (unsigned long long)x);
    files_get_whole(in, &elements, &files_range_strategy, FILES_NEEDED, &count);
    const char *codec_text = files_get_strategy_word(in, &codec, "a codec, or \"none\"", ESP__SPEC_MAX - 1);
    const char *option_text = files_get_line(in, &option, "an option");
    if (strchr(option_text, '#') || isspace((unsigned char)*option_text) ||
        isspace((unsigned char)option_text[strlen(option_text) - 1]))
        files_input_expected(in, &option, "an option such as \"flat.allreduce\"");
    if (esp__option_parse(NULL, option_text, &(esp__option){0}))
        files_input_fail(in, &option, "%s", esp_last_error(NULL));
    const char *wrong = files_unit_wrong(s, at, (uint32_t)n, count, codec_text);
    if (wrong) files_input_fail(in, &elements, "%s", wrong);
    files_add_unit(s, at->next, (uint32_t)n, at->done, count, codec_text, option_text);
    at->done += count;
    if (n > 1 || at->done == s->tensors[at->next].elements) at->next += (uint32_t)n, at->done = 0;
}

static void files_read_json_tensors(files_input *in, files_strategy *s, const files_place *tensors) {
    uint64_t all = 0, x = 0;
    for (size_t i = 0, n = files_get_list(in, tensors, "a list of tensors"); i < n; i++) {
        const files_place p = files_item(tensors, i);
        files_object(in, &p, files_strategy_tensor_keys, "an object { \"name\": ..., \"elements\": ... }");
        const files_place name = files_at(&p, "name"), elements = files_at(&p, "elements");
        const char *text = files_get_strategy_word(in, &name, "a name", ESP__TENSOR_NAME_MAX);
        files_get_whole(in, &elements, &files_range_strategy, FILES_NEEDED, &x);
        if ((all += x) > ESP__ELEMENTS_MAX || i == ESP__UNITS_MAX)
            files_input_fail(in, &elements, "expected at most 2^58 elements in all, in at most %d tensors",
                             (int)ESP__UNITS_MAX);
        files_add_tensor(s, text, x);
    }
    if (!s->n_tensors) files_input_expected(in, tensors, "a list of at least one tensor");
}

static void files_read_json_order(files_input *in, files_strategy *s, const files_place *order) {
    static const char expected[] = "b, UNIT:STEP, UNIT:STEPd, UNIT:STEPu, UNIT:p or UNIT:u";
    for (size_t i = 0, n = order->value ? files_get_list(in, order, "a list of entries") : 0; i < n; i++) {
        const files_place p = files_item(order, i);
        esp__order_entry e;
        if (!esp__order_entry_read(files_get_text(in, &p, expected, FILES_NEEDED), s->n_units, &e))
            files_input_expected(in, &p, expected);
        files_add_entry(s, &e);
    }
}

/* Checks that predicted values are numbers, although the text does not contain them. */
static void files_check_predicted(files_input *in, const files_place *p) {
    const char *key;
    json_t *value;
    if (p->value && !json_is_object(p->value)) files_input_expected(in, p, "an object { \"iteration_us\": ..., ... }");
    json_object_foreach(p->value, key, value) {
        const files_place number = {p, key, 0, value};
        if (!json_is_number(value)) files_input_expected(in, &number, "a number");
    }
}

static void files_read_strategy_json(files_input *in, const files_place *root, void *out) {
    files_strategy *s = (files_strategy *)out;
    files_get_version(in, root, "strategy");
    files_object(in, root, files_strategy_keys, "an object");
    const files_place format = files_at(root, "strategy"), comments = files_at(root, "comments"),
                      tensors = files_at(root, "tensors"), units = files_at(root, "units"),
                      order = files_at(root, "order");
    static const files_range one = {1, 1, 0, "the format of the strategy, 1"};
    files_units_at at = {0, 0};
    uint64_t x;
    const files_place predicted = files_at(root, "predicted");
    files_check_predicted(in, &predicted);
    files_get_whole(in, &format, &one, FILES_NEEDED, &x);
    for (size_t i = 0, n = comments.value ? files_get_list(in, &comments, "a list of lines") : 0; i < n; i++) {
        const files_place line = files_item(&comments, i);
        files_add_comment(s, files_get_comment(in, &line));
    }
    files_read_json_tensors(in, s, &tensors);
    for (size_t i = 0, n = files_get_list(in, &units, "a list of units"); i < n; i++) {
        const files_place p = files_item(&units, i);
        files_read_json_unit(in, s, &p, &at);
    }
    if (at.next < s->n_tensors)
        files_input_fail(in, &units, "expected units for all tensors: '%s' is left", s->tensors[at.next].name);
    files_read_json_order(in, s, &order);
}

static void files_read_and_print(files_input *in, const files_place *root, void *out) {
    files_strategy *s = (files_strategy *)out;
    files_read_strategy_json(in, root, s);
    files_put_strategy_text(s, s->out);
    if (s->out->failed) longjmp(in->fail, 1);
}

ESP__FN esp_status esp__strategy_json_parse(const char *name, const char *json, size_t len, esp__text *out,
                                            const esp__files_log *log) {
    files_strategy s = {.out = out};
    esp_status status = files_input_parse(name, json, len, log, files_read_and_print, &s, &s.arena);
    esp__arena_free(&s.arena);
    return status;
}

ESP__FN esp_status esp__strategy_json_read(const char *path, esp__text *out, const esp__files_log *log) {
    char *text;
    size_t len = 0;
    esp_status s = files_input_load(path, &text, &len);
    if (s) return s;
    s = esp__strategy_json_parse(path, text, len, out, log);
    free(text);
    return s;
}
