/* costs.c: reads and writes costs files, the results of a calibration. They may contain a system file, codec files and
 * a model file. */
#include "planner/files/keys.h"
#include "planner/files/read.h"
#include "planner/files/write.h"
#include <time.h>

/* ---- reading --------------------------------------------------------------------------------------------------- */
static void files_read_costs(files_input *in, const files_place *root, void *out) {
    esp__costs_file *f = (esp__costs_file *)out;
    files_get_version(in, root, "costs");
    files_object(in, *root, files_costs_keys, "an object");
    const files_place system = files_at(root, "system"), codecs = files_at(root, "codecs"),
                      model = files_at(root, "model");
    f->host = files_get_line(in, files_at(root, "costs"), "the host's name");
    f->made = files_get_text(in, files_at(root, "made"), "text", FILES_OPTIONAL);
    f->inter = files_get_text(in, files_at(root, "inter"), "text", FILES_OPTIONAL);
    f->has_system = system.value != NULL;
    if (f->has_system) files_read_system(in, &system, &f->system);
    const size_t n = codecs.value ? files_get_list(in, codecs, "a list of codec files") : 0;
    if (n > ESP__COSTS_CODECS) files_fail(in, codecs, "expected at most %d codecs, found %zu", ESP__COSTS_CODECS, n);
    for (f->n_codecs = 0; f->n_codecs < n; f->n_codecs++) {
        const files_place one = files_item(&codecs, f->n_codecs);
        files_read_gc(in, &one, &f->codecs[f->n_codecs]);
    }
    f->has_model = model.value != NULL;
    if (f->has_model) files_read_model(in, &model, &f->model);
}

FILES_KIND(costs)

/* ---- writing ---------------------------------------------------------------------------------------------------- */
/* Adds the text of a file as a value, and indents its lines. Strings in JSON contain no line breaks, so this changes
 * none. */
static void files_put_inside(esp__text *t, const char *indent, const char *text) {
    while (*text) {
        const size_t n = strcspn(text, "\n");
        const char *rest = text + n + (text[n] == '\n');
        esp__text_add(t, "%.*s%s%s", (int)n, text, *rest ? "\n" : "", *rest ? indent : "");
        text = rest;
    }
}

ESP__FN void files_silent(void *user, const char *text) { (void)user, (void)text; }

ESP__FN esp_status esp__costs_write(const char *path, const esp__costs_texts *c) {
    const esp__files_log silent = {files_silent, NULL}; /* the measurement has already warned of noise */
    esp__costs_file f;
    esp__text t = {0};
    char made[32];
    const time_t now = time(NULL);
    struct tm tm;
    strftime(made, sizeof made, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    esp__text_add(&t, "{\n  \"espresso\": 1,\n");
    files_put_text_line(&t, "  ", "costs", c->host);
    files_put_text_line(&t, "  ", "made", made);
    files_put_text_line(&t, "  ", "inter", c->inter);
    if (c->system) {
        esp__text_add(&t, "  \"system\": ");
        files_put_inside(&t, "  ", c->system);
        esp__text_add(&t, ",\n");
    }
    esp__text_add(&t, "  \"codecs\": [");
    for (uint32_t i = 0; i < c->n_codecs; i++) {
        esp__text_add(&t, i ? ", " : "");
        files_put_inside(&t, "  ", c->codecs[i]);
    }
    esp__text_add(&t, "]%s", c->model ? ",\n  \"model\": " : "");
    if (c->model) files_put_inside(&t, "  ", c->model);
    esp__text_add(&t, "\n}\n");
    const esp_status s = t.failed ? ESP_OK : esp__costs_parse(path, t.data, t.len, &f, &silent);
    if (s) {
        esp__text_free(&t);
        return s;
    }
    if (!t.failed) esp__costs_free(&f);
    return files_write(path, &t);
}
