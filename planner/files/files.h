/* files.h: the planner's JSON files, for the command and for tests: model, codec costs ("gc"), system, and costs files,
 * which contain all of these. docs/plan/schema has their schemas. The library itself reads no JSON. */
#ifndef ESP__FILES_H
#define ESP__FILES_H
#include "espresso.h"
#include "planner/plan.h"
#include "espresso_impl/base/text.h"
#include <stdbool.h>

/* A function that fails sets the error text to "FILE: KEY: expected ..., found ...", or to "FILE:LINE: ..." if the text
 * is not JSON (see esp_last_error). A struct that was read owns its strings and arrays; those that the file lacks are
 * NULL, with counts of 0. Every *_free accepts a zeroed struct, and a struct after a failure. */

/* Receives warnings, such as those about unknown keys. */
typedef struct esp__files_log {
    void (*warn)(void *user, const char *text); /* if NULL, warnings go to stderr */
    void *user;
} esp__files_log;

typedef struct esp__measured {
    uint32_t ranks, cores; /* ranks that ran at once, on this many cores */
    /* Median, over all points, of quartile distance / median of the point's times. */
    double spread;
    bool has_spread;
    bool noisy; /* other work ran on the machine at the same time */
    const char *device;
} esp__measured;

/* ---- model.c -------------------------------------------------------------------------------------------------- */
typedef struct esp__model_file {
    esp_plan_model model;
    const char *source;
    uint32_t steps;
    esp__measured measured;
    esp__arena arena;
} esp__model_file;
ESP__FN esp_status esp__model_read(const char *path, esp__model_file *out, const esp__files_log *log);
ESP__FN void esp__model_free(esp__model_file *f);

/* ---- gc.c: what one codec costs ---------------------------------------------------------------------------------- */
typedef struct esp__gc_file {
    esp_plan_codec codec; /* codec.spec is `spec` with the error feedback added */
    const char *spec;
    const char *feedback;
    const char *source;
    esp__measured measured;
    esp__arena arena;
} esp__gc_file;
ESP__FN esp_status esp__gc_read(const char *path, esp__gc_file *out, const esp__files_log *log);
ESP__FN void esp__gc_free(esp__gc_file *f);

/* ---- system.c ---------------------------------------------------------------------------------------------------- */
/* Rates of a link in a file: one, or one for each group that the link connects. */
typedef struct esp__rates {
    const double *rate;
    uint32_t n;
} esp__rates;
typedef struct esp__directions {
    esp__rates up, down; /* down.n is 0 if it is not stated, and up.n, too, if the system was not read from a file */
} esp__directions;
typedef struct esp__system_file {
    esp_plan_system system;
    esp__directions rates[3]; /* intra, inter, outer */
    const char *accelerator, *source;
    uint32_t cpu_workers;
    esp__measured measured;
    esp__arena arena;
} esp__system_file;
ESP__FN esp_status esp__system_read(const char *path, esp__system_file *out, const esp__files_log *log);
ESP__FN void esp__system_free(esp__system_file *f);

/* ---- costs.c ----------------------------------------------------------------------------------------------------- */
/* A costs file: everything that was measured on one system. Readers of model and system files accept it, too. */
enum { ESP__COSTS_CODECS = 16 };
typedef struct esp__costs_file {
    const char *host, *made, *inter;
    esp__system_file system;
    esp__gc_file codecs[ESP__COSTS_CODECS];
    uint32_t n_codecs;
    esp__model_file model;
    bool has_system, has_model;
    esp__arena arena; /* owns all members; only the file as a whole is freed */
} esp__costs_file;
ESP__FN esp_status esp__costs_read(const char *path, esp__costs_file *out, const esp__files_log *log);
ESP__FN void esp__costs_free(esp__costs_file *f);
typedef struct esp__costs_texts {
    const char *host, *inter;
    const char *system, *codecs[ESP__COSTS_CODECS], *model;
    uint32_t n_codecs;
} esp__costs_texts;
ESP__FN esp_status esp__costs_write(const char *path, const esp__costs_texts *texts);

/* ---- read.c and write.c ------------------------------------------------------------------------------------------ */
/* Writes to a temporary file beside `path` and renames it. A path of "-" is standard output. */
ESP__FN esp_status esp__output_write(const char *path, const char *text, size_t len);
/* Reads a whole file. The caller frees the text. */
ESP__FN esp_status files_input_load(const char *path, char **text, size_t *len);
ESP__FN void files_silent(void *user, const char *text);

/* ---- reading from memory (error messages call the file `name`) and writing -------------------------------------- */
ESP__FN esp_status esp__model_parse(const char *name, const char *text, size_t len, esp__model_file *out,
                                    const esp__files_log *log);
ESP__FN esp_status esp__gc_parse(const char *name, const char *text, size_t len, esp__gc_file *out,
                                 const esp__files_log *log);
ESP__FN void esp__gc_print(const esp__gc_file *f, esp__text *out);
ESP__FN esp_status esp__system_parse(const char *name, const char *text, size_t len, esp__system_file *out,
                                     const esp__files_log *log);
ESP__FN void esp__system_print(const esp__system_file *f, esp__text *out);
ESP__FN esp_status esp__system_write(const char *path, const esp__system_file *f);
ESP__FN esp_status esp__costs_parse(const char *name, const char *text, size_t len, esp__costs_file *out,
                                    const esp__files_log *log);
#endif
