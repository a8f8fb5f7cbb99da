/* targets.h has the fuzz targets of the planner's files. A reader must either report an error with a text, or read a
 * value that stays the same when it is written and read again. Include tests/lib/library.h and planner/files/files.h
 * first. */
#ifndef ESPRESSO_TESTS_FUZZ_TARGETS_H
#define ESPRESSO_TESTS_FUZZ_TARGETS_H
#include "planner/files/files.h"
#include "check.h"
#include "model_print.h"

static void fuzz_quiet(void *user, const char *text) { fuzz_check(*text != 0, "a warning without text"); }
static const esp__files_log fuzz_log = {fuzz_quiet, NULL};

static inline int fuzz_refused(esp_status s) {
    if (s != ESP_OK) fuzz_check(!strncmp(esp_last_error(NULL), "fuzz", 4), "an error that does not name the file");
    return s != ESP_OK;
}

static inline void fuzz_same(esp__text *a, esp__text *b) {
    fuzz_check(!a->failed && !b->failed && a->len == b->len && !memcmp(a->data, b->data, a->len),
               "what was written reads back as something else");
    esp__text_free(a);
    esp__text_free(b);
}

static inline int fuzz_model(const char *data, size_t len) {
    esp__text once = {0}, twice = {0};
    esp__model_file f, again;
    if (fuzz_refused(esp__model_parse("fuzz", data, len, &f, &fuzz_log))) return 0;
    model_print(&f, &once);
    fuzz_check(esp__model_parse("fuzz", once.data, once.len, &again, NULL) == ESP_OK,
               "a model that was written is refused");
    model_print(&again, &twice);
    for (uint32_t i = 0; i < f.model.n_tensors; i++)
        fuzz_check(f.model.tensors[i].compute_ns == again.model.tensors[i].compute_ns, "times differ");
    fuzz_same(&once, &twice);
    esp__model_free(&f);
    esp__model_free(&again);
    return 1;
}

static inline int fuzz_gc(const char *data, size_t len) {
    esp__text once = {0}, twice = {0};
    esp__gc_file f, again;
    if (fuzz_refused(esp__gc_parse("fuzz", data, len, &f, &fuzz_log))) return 0;
    esp__gc_print(&f, &once);
    fuzz_check(esp__gc_parse("fuzz", once.data, once.len, &again, NULL) == ESP_OK,
               "a codec that was written is refused");
    esp__gc_print(&again, &twice);
    fuzz_check(!strcmp(f.codec.spec, again.codec.spec) && f.codec.units == again.codec.units, "payloads differ");
    fuzz_same(&once, &twice);
    esp__gc_free(&f);
    esp__gc_free(&again);
    return 1;
}

static inline int fuzz_system(const char *data, size_t len) {
    esp__text once = {0}, twice = {0};
    esp__system_file f, again;
    if (fuzz_refused(esp__system_parse("fuzz", data, len, &f, &fuzz_log))) return 0;
    esp__system_print(&f, &once);
    fuzz_check(esp__system_parse("fuzz", once.data, once.len, &again, NULL) == ESP_OK,
               "a system that was written is refused");
    esp__system_print(&again, &twice);
    fuzz_check(f.system.inter.alpha_ns == again.system.inter.alpha_ns, "latencies differ");
    fuzz_same(&once, &twice);
    esp__system_free(&f);
    esp__system_free(&again);
    return 1;
}

/* Parses a costs file, and writes what was parsed. esp__costs_write checks that it can read the result. */
static inline int fuzz_costs(const char *data, size_t len) {
    esp__text part[ESP__COSTS_CODECS + 2];
    esp__costs_file f;
    esp__costs_texts texts;
    memset(part, 0, sizeof part);
    memset(&texts, 0, sizeof texts);
    if (fuzz_refused(esp__costs_parse("fuzz", data, len, &f, &fuzz_log))) return 0;
    for (uint32_t i = 0; i < f.n_codecs; i++) {
        esp__gc_print(&f.codecs[i], &part[i]);
        texts.codecs[i] = part[i].data;
    }
    if (f.has_system) esp__system_print(&f.system, &part[ESP__COSTS_CODECS]);
    if (f.has_model) model_print(&f.model, &part[ESP__COSTS_CODECS + 1]);
    texts.host = f.host, texts.inter = f.inter, texts.n_codecs = f.n_codecs;
    texts.system = part[ESP__COSTS_CODECS].data, texts.model = part[ESP__COSTS_CODECS + 1].data;
    fuzz_check(esp__costs_write("/dev/null", &texts) == ESP_OK, "costs that were written are refused");
    for (uint32_t i = 0; i < ESP__COSTS_CODECS + 2; i++) esp__text_free(&part[i]);
    esp__costs_free(&f);
    return 1;
}
#endif
