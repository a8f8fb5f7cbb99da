/* files.h: the planner's JSON files (docs/schema/): model, codec costs ("gc"), system; and a strategy as JSON. Used by the
 * command and by tests only: the library reads no JSON. Must not know how plans are made. */
#ifndef ESP__FILES_H
#define ESP__FILES_H
#include "planner/plan.h"
#include "espresso_impl/strategy/text.h"

/* Errors are in esp_last_error(NULL), as "FILE:LINE: KEY: expected ..., found ...". Reading a file twice gives equal
 * structs; writing what was read and reading that gives equal structs again. Every *_free may be called on a zeroed
 * struct, and after a call that failed. Strings and arrays of a file that was read belong to it. */

/* Where warnings go, such as unknown keys. */
typedef struct esp__files_log {
    void (*warn)(void *user, const char *text); /* NULL: stderr */
    void *user;
} esp__files_log;

/* ---- model.c -------------------------------------------------------------------------------------------------- */
/* What a model file may say of a tensor beyond what the planner needs. */
typedef struct esp__model_more {
    const uint64_t *shape; /* its product is the tensor's elements */
    uint32_t n_shape;      /* 0: not said                          */
    double flops;          /* of its backward; below 0: not said   */
    double spread;         /* of compute_ns over the steps measured: (p90 - p10) / median; below 0: not said */
} esp__model_more;
typedef struct esp__model_file {
    esp_plan_model model;                     /* for esp_plan_make                   */
    const esp__model_more *more;              /* [n_tensors], or NULL: nothing more  */
    const char *source, *forward_is, *device; /* NULL: not said; device: what the times are of */
    uint64_t batch;                           /* samples a step, a rank; 0: not said           */
    int parameters;                           /* the file states the sum of all elements, and it is right */
    uint32_t steps, ranks, cores; /* measured over so many steps, by ranks at once, on a machine's cores; 0: not said */
    int noisy;                    /* the machine was busy then                             */
    esp__arena arena;
} esp__model_file;
ESP__FN esp_status esp__model_read(const char *path, esp__model_file *out, const esp__files_log *log);
ESP__FN void esp__model_free(esp__model_file *f);

/* ---- measured.c: how the figures of a codec's or a system's file were measured ------------------------------------------ */
typedef struct esp__measured {
    uint32_t ranks, cores; /* at the same time, on this many cores; 0: not said      */
    double spread;         /* distance of the quartiles / median; median of all points */
    int has_spread, noisy; /* noisy: the machine had other work; do not trust it     */
    const char *device;    /* NULL: not said                                         */
} esp__measured;

/* ---- gc.c: what one codec costs ------------------------------------------------------------------------------------ */
typedef struct esp__gc_file {
    esp_plan_codec codec; /* for esp_plan_make; its spec has the feedback in it             */
    const char *spec;     /* as the file's key "codec" says it                              */
    const char *feedback; /* as a spec's key "feedback": "none", "own", ...; NULL: not said */
    const char *source;   /* NULL: not said                                                 */
    esp__measured measured;
    esp__arena arena;
} esp__gc_file;
ESP__FN esp_status esp__gc_read(const char *path, esp__gc_file *out, const esp__files_log *log);
ESP__FN void esp__gc_free(esp__gc_file *f);

/* ---- system.c ------------------------------------------------------------------------------------------------------ */
typedef struct esp__system_file {
    esp_plan_system system;           /* for esp_plan_make                                 */
    const char *accelerator, *source; /* NULL: not said                                    */
    uint32_t cpu_workers;             /* threads that compress, a machine; 0: not said     */
    esp__measured measured;
    esp__arena arena;
} esp__system_file;
ESP__FN esp_status esp__system_read(const char *path, esp__system_file *out, const esp__files_log *log);
ESP__FN void esp__system_free(esp__system_file *f);

/* ---- strategy.c: the text of a strategy file as JSON, and back -------------------------------------------------------- */
/* Adds the JSON of `text` to `out`; `plan`, if not NULL, is what predicted it: its times go in as well. `name` stands for
 * the text in messages. */
ESP__FN esp_status esp__strategy_json_print(const char *name, const char *text, const esp_plan *plan, esp__text *out);
/* Adds the text that a strategy's JSON says. Text -> JSON -> text gives the same bytes for a text that the library or the
 * planner printed. */
ESP__FN esp_status esp__strategy_json_read(const char *path, esp__text *out, const esp__files_log *log);

/* ---- output.c ------------------------------------------------------------------------------------------------------------ */
/* Writes to a temporary name beside `path`, then renames; "-" is standard output. */
ESP__FN esp_status esp__output_write(const char *path, const char *text, size_t len);

/* ---- reading from memory (`name` stands for the file in messages) and writing -------------------------------------- */
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
ESP__FN esp_status esp__strategy_json_parse(const char *name, const char *json, size_t len, esp__text *out,
                                            const esp__files_log *log);
#endif
