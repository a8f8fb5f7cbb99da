#ifndef ESPRESSO_TESTS_PLANNER_FILES_H
#define ESPRESSO_TESTS_PLANNER_FILES_H
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* a test may use only some of these functions */
#include "planner/files/files.h"
#include "planner/files/read.h"
#pragma GCC diagnostic pop
#include "tests/fuzz/targets.h"
#include <dirent.h>

/* ---- helpers ----------------------------------------------------------------------------------------------------- */
static inline char *slurp(const char *path, size_t *len) {
    static char *text; /* static, because gcc 12 warns falsely about a local one */
    if (files_input_load(path, &text, len) != ESP_OK) fail_msg("%s", esp_last_error(NULL));
    return text;
}

/* Returns a copy of `text` with the first `from` replaced by `to`. The caller frees it. */
static inline char *replaced(const char *text, const char *from, const char *to) {
    const char *found = strstr(text, from);
    assert_non_null(found);
    const size_t before = (size_t)(found - text);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    memcpy(out, text, before);
    sprintf(out + before, "%s%s", to, text + before + strlen(from));
    return out;
}

typedef struct heard {
    char text[4096];
    int n;
} heard;
static inline void hear(void *user, const char *text) {
    heard *h = user;
    h->n++;
    strncat(h->text, text, sizeof h->text - strlen(h->text) - 2);
    strcat(h->text, "\n");
}

enum { MODEL, GC, SYSTEM, KINDS };
static const char *const full[] = {"tests/fuzz/corpus/model/full.json", "tests/fuzz/corpus/gc/full.json",
                                   "tests/fuzz/corpus/system/full.json"};

static inline esp_status parse(int kind, const char *name, const char *text, size_t len, const esp__files_log *log) {
    esp__model_file m;
    esp__gc_file g;
    esp__system_file y;
    esp_status s;
    switch (kind) {
    case MODEL: s = esp__model_parse(name, text, len, &m, log), esp__model_free(&m); return s;
    case GC: s = esp__gc_parse(name, text, len, &g, log), esp__gc_free(&g); return s;
    default: s = esp__system_parse(name, text, len, &y, log), esp__system_free(&y); return s;
    }
}

#endif
