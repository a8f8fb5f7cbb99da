/* files.h: the planner's JSON files (docs/schema/): model, codec costs ("gc"), system, all of them as "costs"; and a strategy as JSON. Used by the
 * command and by tests only: the library reads no JSON. Must not know how plans are made. */
#ifndef ESP__FILES_H
#define ESP__FILES_H
#include "planner/plan.h"
#include "espresso_impl/strategy/text.h"

/* esp_last_error(NULL) has the text of an error: "FILE:LINE: KEY: expected ..., found ...". Writing a struct and reading the file
 * again gives an equal struct. Every *_free may be called on a zeroed struct, and after a call that failed. A struct that was read
 * owns its strings and arrays. */

/* Where warnings go, such as unknown keys. */
typedef struct esp__files_log {
    void (*warn)(void *user, const char *text); /* NULL: stderr */
    void *user;
} esp__files_log;

/* ---- model.c -------------------------------------------------------------------------------------------------- */
/* Facts about a tensor that a model file may contain and the planner does not need. */
typedef struct esp__model_more {
    const uint64_t *shape; /* its product is the tensor's elements */
    uint32_t n_shape;      /* 0: not stated */
    double flops;          /* of its backward; below 0: not stated */
    double spread;         /* of compute_ns over the measured steps: (p90 - p10) / median; below 0: not stated */
} esp__model_more;
typedef struct esp__model_file {
    esp_plan_model model;                     /* for esp_plan_make */
    const esp__model_more *more;              /* [n_tensors]; NULL: no such facts */
    const char *source, *forward_is, *device; /* NULL: not stated; device: of the times */
    uint64_t batch;                           /* samples per step and rank; 0: not stated */
    int parameters;                           /* 1: the file states the sum of all elements, correctly */
    uint32_t steps, ranks, cores; /* measured steps, ranks that ran at once, cores of a machine; 0: not stated */
    int noisy;                    /* 1: other work ran on the machine */
    esp__arena arena;
} esp__model_file;
ESP__FN esp_status esp__model_read(const char *path, esp__model_file *out, const esp__files_log *log);
ESP__FN void esp__model_free(esp__model_file *f);

/* ---- measured.c: how the figures of a codec's or a system's file were measured ------------------------------------------ */
typedef struct esp__measured {
    uint32_t ranks, cores; /* ranks that ran at once, on this many cores; 0: not stated */
    double spread;         /* distance of the quartiles / median: the median of this over all points */
    int has_spread, noisy; /* noisy: other work ran on the machine; do not trust the figures */
    const char *device;    /* NULL: not stated */
} esp__measured;

/* ---- gc.c: what one codec costs ------------------------------------------------------------------------------------ */
typedef struct esp__gc_file {
    esp_plan_codec codec; /* for esp_plan_make; its spec contains the feedback */
    const char *spec;     /* text of the file's key "codec" */
    const char *feedback; /* as in a spec's key "feedback": "none", "own", ...; NULL: not stated */
    const char *source;   /* NULL: not stated */
    esp__measured measured;
    esp__arena arena;
} esp__gc_file;
ESP__FN esp_status esp__gc_read(const char *path, esp__gc_file *out, const esp__files_log *log);
ESP__FN void esp__gc_free(esp__gc_file *f);

/* ---- system.c ------------------------------------------------------------------------------------------------------ */
typedef struct esp__system_file {
    esp_plan_system system;           /* for esp_plan_make */
    const char *accelerator, *source; /* NULL: not stated */
    uint32_t cpu_workers;             /* threads per machine that compress; 0: not stated */
    esp__measured measured;
    esp__arena arena;
} esp__system_file;
ESP__FN esp_status esp__system_read(const char *path, esp__system_file *out, const esp__files_log *log);
ESP__FN void esp__system_free(esp__system_file *f);

/* ---- costs.c: what one survey measured, in one file ------------------------------------------------------------------- */
enum { ESP__COSTS_CODECS = 16 };
typedef struct esp__costs_file {
    const char *host, *made, *inter; /* made, inter: NULL: not stated */
    esp__system_file system;
    esp__gc_file codecs[ESP__COSTS_CODECS];
    uint32_t n_codecs;
    esp__model_file model;
    int has_model;
    esp__arena arena; /* of all members: do not free these one by one */
} esp__costs_file;
ESP__FN esp_status esp__costs_read(const char *path, esp__costs_file *out, const esp__files_log *log);
ESP__FN void esp__costs_free(esp__costs_file *f);
/* The files that a costs file consists of, as texts. */
typedef struct esp__costs_texts {
    const char *host, *inter;                               /* inter: NULL: no emulated link */
    const char *system, *codecs[ESP__COSTS_CODECS], *model; /* model: NULL: none */
    uint32_t n_codecs;
} esp__costs_texts;
ESP__FN esp_status esp__costs_write(const char *path, const esp__costs_texts *texts);

/* ---- strategy.c: the text of a strategy file as JSON, and back -------------------------------------------------------- */
/* Adds the strategy `text` as JSON to `out`, with the predicted times of `plan` unless that is NULL. Error messages call the text
 * `name`. */
ESP__FN esp_status esp__strategy_json_print(const char *name, const char *text, const esp_plan *plan, esp__text *out);
/* Reads a strategy's JSON and adds its text to `out`. Text -> JSON -> text gives the same bytes for a text that the library or the
 * planner printed. */
ESP__FN esp_status esp__strategy_json_read(const char *path, esp__text *out, const esp__files_log *log);

/* ---- output.c ------------------------------------------------------------------------------------------------------------ */
/* Writes to a temporary name beside `path`, then renames; "-" is standard output. */
ESP__FN esp_status esp__output_write(const char *path, const char *text, size_t len);

/* ---- reading from memory (error messages call the file `name`) and writing -------------------------------------- */
ESP__FN esp_status esp__model_parse(const char *name, const char *text, size_t len, esp__model_file *out,
                                    const esp__files_log *log);
ESP__FN esp_status esp__gc_parse(const char *name, const char *text, size_t len, esp__gc_file *out,
                                 const esp__files_log *log);
ESP__FN void esp__gc_print(const esp__gc_file *f, esp__text *out);
ESP__FN esp_status esp__gc_write(const char *path, const esp__gc_file *f);
ESP__FN esp_status esp__system_parse(const char *name, const char *text, size_t len, esp__system_file *out,
                                     const esp__files_log *log);
ESP__FN void esp__system_print(const esp__system_file *f, esp__text *out);
ESP__FN esp_status esp__system_write(const char *path, const esp__system_file *f);
ESP__FN esp_status esp__costs_parse(const char *name, const char *text, size_t len, esp__costs_file *out,
                                    const esp__files_log *log);
ESP__FN esp_status esp__strategy_json_parse(const char *name, const char *json, size_t len, esp__text *out,
                                            const esp__files_log *log);
#endif
