/* gc.c: reads and writes codec files: what one codec costs in bytes and in time. */
#include "planner/files/costs_parts.h"
#include "planner/files/keys.h"
#include "planner/files/write.h"

static const files_range files_range_bytes = {0, 1e15, false, "a number of bytes >= 0"};

/* ---- reading --------------------------------------------------------------------------------------------------- */
/* Appends the value of "feedback" to the codec's spec, because strategy files contain only specs. */
static void files_gc_spec(files_input *in, const files_place *root, esp__gc_file *f) {
    const files_place codec = files_at(root, "codec"), feedback = files_at(root, "feedback");
    char name[ESP__NAME_MAX], joined[ESP__SPEC_MAX * 2];
    const char *params, *wrong = "";
    f->spec = files_get_word(in, codec, "a codec such as \"dgc:ratio=0.01\"");
    if (esp__spec_split(NULL, f->spec, name, &params) != ESP_OK) files_fail(in, codec, "%s", esp_last_error(NULL));
    f->codec.spec = f->spec;
    if (!feedback.value) return;
    f->feedback = files_get_word(in, feedback, "\"none\", \"own\" or \"residual\", with parameters");
    snprintf(joined, sizeof joined,
             strchr(f->feedback, ':') && *f->feedback != '(' ? "%s%cfeedback=(%s)" : "%s%cfeedback=%s", f->spec,
             *params ? ',' : ':', f->feedback);
    if (strstr(f->spec, "feedback=")) wrong = "the codec's text has a feedback already: expected one of them only";
    if (strlen(joined) >= ESP__SPEC_MAX) wrong = "codec and feedback together are too long";
    if (*wrong) files_fail(in, feedback, "%s", wrong);
    if (esp__spec_split(NULL, joined, name, &params) != ESP_OK) files_fail(in, feedback, "%s", esp_last_error(NULL));
    f->codec.spec = esp__arena_text(in->arena, joined);
}

static void files_read_payload(files_input *in, const files_place *root, esp_plan_codec *c) {
    static const files_range units = {0, 1e6, false, "a number of units per element >= 0"};
    const files_place p = files_at(root, "payload");
    files_object(in, p, files_payload_keys,
                 "an object { \"header_bytes\": ..., \"unit_bytes\": ..., \"units_per_element\": ... }");
    files_get_number(in, files_at(&p, "header_bytes"), &files_range_bytes, FILES_OPTIONAL, &c->header_bytes);
    files_get_number(in, files_at(&p, "unit_bytes"), &files_range_bytes, FILES_NEEDED, &c->unit_bytes);
    files_get_number(in, files_at(&p, "units_per_element"), &units, FILES_NEEDED, &c->units);
}

static void files_read_device(files_input *in, const files_place *p, esp_plan_codec *c, int device) {
    esp_cost_curve *curves[] = {&c->compress[device], &c->decompress[device], &c->decompress_more[device]};
    files_object(in, *p, files_device_keys, "an object { \"compress\": [...], \"decompress\": [...] }");
    const uint32_t log_size = files_get_interpolate(in, p);
    for (int k = 0; k < 3; k++) {
        const files_place points = files_at(p, files_device_keys[k + 1]);
        if (k == 2 && !points.value) continue;
        curves[k]->points = files_get_points(in, points, &curves[k]->n);
        curves[k]->log_size = log_size;
    }
}

ESP__FN void files_read_gc(files_input *in, const files_place *root, void *out) {
    static const files_range rounds = {1, ESP_ROUNDS_MAX, false, "a number of rounds from 1 to 4"};
    static const files_range error = {0, 1, false, "a number from 0 (exact) to 1"};
    esp__gc_file *f = (esp__gc_file *)out;
    esp_plan_codec *c = &f->codec;
    files_get_version(in, root, "codec");
    files_object(in, *root, files_gc_keys, "an object");
    c->struct_size = sizeof *c;
    files_gc_spec(in, root, f);
    f->source = files_get_text(in, files_at(root, "source"), "text", FILES_OPTIONAL);
    files_get_measured(in, root, &f->measured);
    files_get_spread(in, root, &f->measured);
    if (files_get_flag(in, files_at(root, "reducible"))) c->caps |= ESP_CODEC_REDUCIBLE;
    if (files_get_flag(in, files_at(root, "matrices"))) c->caps |= ESP_CODEC_NEEDS_MATRIX;
    c->n_rounds = files_get_count(in, files_at(root, "rounds"), &rounds, FILES_OPTIONAL);
    c->takes_list = files_get_flag(in, files_at(root, "takes_list"));
    files_get_number(in, files_at(root, "error"), &error, FILES_OPTIONAL, &c->error);
    files_read_payload(in, root, c);
    const files_place devices = files_at(root, "devices");
    files_object(in, devices, files_device_names, "an object { \"cpu\": ..., \"gpu\": ... }");
    for (int d = 0; d < 2; d++) {
        const files_place p = files_at(&devices, files_device_names[d]);
        if (p.value) files_read_device(in, &p, c, d);
    }
    if (!c->compress[0].n && !c->compress[1].n)
        files_fail(in, devices, "expected times for \"cpu\", \"gpu\" or both, found neither");
}

FILES_KIND(gc)

/* ---- writing ---------------------------------------------------------------------------------------------------- */
static void files_put_device(esp__text *t, const esp_plan_codec *c, int device) {
    const esp_cost_curve *curves[] = {&c->compress[device], &c->decompress[device], &c->decompress_more[device]};
    esp__text_add(t, "    \"%s\": {\n      \"interpolate\": \"%s\"", files_device_names[device],
                  files_curve_kinds[curves[0]->log_size != 0]);
    for (int k = 0; k < 3; k++) {
        if (!curves[k]->n) continue;
        esp__text_add(t, ",\n      \"%s\": ", files_device_keys[k + 1]);
        files_put_points(t, curves[k]);
    }
    esp__text_add(t, "\n    },\n");
}

ESP__FN void esp__gc_print(const esp__gc_file *f, esp__text *t) {
    const esp_plan_codec *c = &f->codec;
    esp__text_add(t, "{\n  \"espresso\": 1,\n");
    files_put_text_line(t, "  ", "codec", f->spec ? f->spec : c->spec);
    files_put_text_line(t, "  ", "feedback", f->feedback);
    files_put_text_line(t, "  ", "source", f->source);
    files_put_measured(t, &f->measured);
    esp__text_add(t, "  \"reducible\": %s,\n", c->caps & ESP_CODEC_REDUCIBLE ? "true" : "false");
    if (c->n_rounds > 1) esp__text_add(t, "  \"rounds\": %u,\n", c->n_rounds);
    if (c->caps & ESP_CODEC_NEEDS_MATRIX) esp__text_add(t, "  \"matrices\": true,\n");
    esp__text_add(t, "  \"takes_list\": %s,\n  \"error\": ", c->takes_list ? "true" : "false");
    files_put_number(t, c->error);
    esp__text_add(t, ",\n  \"payload\": {\"header_bytes\": ");
    files_put_number(t, c->header_bytes);
    esp__text_add(t, ", \"unit_bytes\": ");
    files_put_number(t, c->unit_bytes);
    esp__text_add(t, ", \"units_per_element\": ");
    files_put_number(t, c->units);
    esp__text_add(t, "},\n  \"devices\": {\n");
    for (int d = 0; d < 2; d++)
        if (c->compress[d].n) files_put_device(t, c, d);
    files_put_no_comma(t);
    esp__text_add(t, "  }\n}\n");
}
