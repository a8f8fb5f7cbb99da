/* read.h: reads JSON values as C values and checks their ranges. An error ends the reading of the file with a message
 * "FILE: KEY: expected ..., found ...", so that callers check no results. */
#ifndef ESP__FILES_READ_H
#define ESP__FILES_READ_H
#include "planner/files/files.h"
#include <jansson.h>

typedef struct files_input {
    const char *name;
    esp__arena *arena;
    const esp__files_log *log;
    jmp_buf fail;
    esp_status status;
    uint64_t unknown[16]; /* hashes of unknown keys already warned of */
    uint32_t n_unknown;
} files_input;
/* A value and where it is in the file. `in` must outlive it. */
typedef struct files_place {
    const struct files_place *in; /* the value that contains this one, or NULL */
    const char *key;
    size_t index;
    json_t *value; /* NULL if the file lacks it */
} files_place;
ESP__FN files_place files_at(const files_place *object, const char *key);
ESP__FN files_place files_item(const files_place *list, size_t i);

typedef void (*files_reader)(files_input *in, const files_place *root, void *out);
/* Reads a JSON text into `out` with `reader`. Memory comes from `arena`, and is freed if it fails. If the text is a
 * costs file, reads only the value of its key `kind`. */
ESP__FN esp_status files_parse(const char *name, const char *text, size_t len, const esp__files_log *log,
                               const char *kind, files_reader reader, void *out, esp__arena *arena);

_Noreturn ESP__FN void files_fail(files_input *in, files_place p, const char *fmt, ...) ESP__PRINTF(3, 4);
_Noreturn ESP__FN void files_expected(files_input *in, files_place p, const char *expected);
ESP__FN void files_warn(const files_input *in, files_place p, const char *text);

/* The range of a number, and how messages describe it. The limits prevent overflow in the planner's sums. */
typedef struct files_range {
    double least, most;
    bool above; /* whether `least` itself is out of range */
    const char *expected;
} files_range;
enum { FILES_NEEDED, FILES_OPTIONAL };
static const files_range files_range_elements = {1, 1e15, false, "a whole number of elements >= 1"};
static const files_range files_range_count = {1, 1048576, false, "a whole number from 1 to 1048576"};
static const files_range files_range_spread = {0, 1e12, false, "a spread >= 0, as a share of the median"};

/* Checks that the value is an object, and warns of keys that are not in `known`, a list that ends with NULL. */
ESP__FN void files_object(files_input *in, files_place p, const char *const *known, const char *expected);
/* Both set *out and return true. If the value is missing and optional, they return false and leave *out.
 * files_get_whole accepts whole numbers only, also as 3.0. */
ESP__FN bool files_get_number(files_input *in, files_place p, const files_range *range, int optional, double *out);
ESP__FN bool files_get_whole(files_input *in, files_place p, const files_range *range, int optional, uint64_t *out);
ESP__FN uint32_t files_get_count(files_input *in, files_place p, const files_range *range, int optional);
/* Converts microseconds to nanoseconds. Returns 0 if the value is missing. */
ESP__FN double files_get_us(files_input *in, files_place p, int optional);
ESP__FN bool files_get_flag(files_input *in, files_place p); /* returns false if it is missing */
/* The arena owns the strings; a missing optional string is NULL. files_get_word admits no blanks and no '#', because
 * strategy files cannot contain them; files_get_line admits no empty string and no line breaks. */
ESP__FN const char *files_get_text(files_input *in, files_place p, const char *expected, int optional);
ESP__FN const char *files_get_word(files_input *in, files_place p, const char *expected);
ESP__FN const char *files_get_line(files_input *in, files_place p, const char *expected);
/* Returns the index of the value in `words`, a list that ends with NULL. */
ESP__FN uint32_t files_get_choice(files_input *in, files_place p, const char *const *words, const char *expected);
ESP__FN size_t files_get_list(files_input *in, files_place p, const char *expected);
/* Checks that the file has a known version and is of this kind: "model", "codec", "system" or "costs". */
ESP__FN void files_get_version(files_input *in, const files_place *root, const char *kind);

/* Defines esp__KIND_parse, esp__KIND_read and esp__KIND_free for the kind of file that files_read_KIND reads. */
#define FILES_KIND(kind)                                                                                               \
    ESP__FN esp_status esp__##kind##_parse(const char *name, const char *text, size_t len, esp__##kind##_file *out,    \
                                           const esp__files_log *log) {                                                \
        memset(out, 0, sizeof *out);                                                                                   \
        esp_status s = files_parse(name, text, len, log, #kind, files_read_##kind, out, &out->arena);                  \
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

/* ---- readers of the files that a costs file contains ------------------------------------------------------------- */
ESP__FN void files_read_model(files_input *in, const files_place *root, void *out);
ESP__FN void files_read_gc(files_input *in, const files_place *root, void *out);
ESP__FN void files_read_system(files_input *in, const files_place *root, void *out);
#endif
