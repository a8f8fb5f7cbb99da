/* base.h: errors, memory, growing texts, specs and worker threads, for all other folders. */
#ifndef ESP__BASE_H
#define ESP__BASE_H
#include "espresso_impl/base/os.h"
#include "espresso_impl/base/text.h"

enum { ESP__NAME_MAX = 64, ESP__SPEC_MAX = 256, ESP__ERROR_MAX = 2048 };

/* A context begins with this struct, as the folders below the executor do not know the context: the members that base
 * uses, and a pointer to each folder's part, which a function of its header returns, such as esp__job_of. */
typedef struct esp__workers esp__workers;
typedef struct esp__base {
    const esp_host *user_host;
    int32_t log_level, rank, size;    /* rank and size are the job's */
    esp__workers *workers;            /* opened when the watch thread runs: not for it */
    struct esp__registry *registry;   /* registry/ */
    struct esp__device_list *devices; /* device/ */
    const struct esp__job *job;       /* job/ */
    const struct esp__model *model;   /* strategy/ */
} esp__base;
/* For any thread: apart from `workers`, nothing changes once threads run. ctx must not be NULL. */
static inline const esp__base *esp__base_of(const esp_ctx *ctx) { return (const esp__base *)(const void *)ctx; }
static inline esp__workers *esp__workers_of(const esp_ctx *ctx) { return esp__base_of(ctx)->workers; }

/* ---- status.c: errors and log ---- */
/* Formats the error's text for this thread's esp_last_error, logs it at INFO, and returns `s`. ctx may be NULL. */
ESP__FN esp_status esp__fail(const esp_ctx *ctx, esp_status s, const char *fmt, ...) ESP__PRINTF(3, 4);
/* The last text that a plugin logged at ERROR on this thread since esp__plugin_detail_clear, or "". Callers of the
 * plugin append it to their own error. */
ESP__FN const char *esp__plugin_detail(void);
ESP__FN void esp__plugin_detail_set(const char *text);
ESP__FN void esp__plugin_detail_clear(void);
ESP__FN void esp__log(const esp_ctx *ctx, int32_t level, const char *component, const char *fmt, ...) ESP__PRINTF(4, 5);
ESP__FN int32_t esp__log_level_read(const char *text); /* of "warn", "2", ...; 0 if it is none */
ESP__FN uint64_t esp__now_ns(void);                    /* CLOCK_MONOTONIC, the same on all processes of a machine */
/* FNV-1a of `data`, continuing from h, which is ESP__HASH0 at first. */
ESP__FN uint64_t esp__hash64(uint64_t h, const void *data, uint64_t bytes);
#define ESP__HASH0 14695981039346656037ull

/* ---- alloc.c: memory ---- */
ESP__FN void *esp__alloc(esp_ctx *ctx, uint64_t bytes); /* zeroed, aligned to 64 bytes */
ESP__FN void esp__free(esp_ctx *ctx, void *p);
/* Makes an array of *cap_bytes large enough for need_bytes: returns `old`, or a larger copy with zeros after the old
 * content, and then frees `old` and raises *cap_bytes. Returns NULL when out of memory, and `old` is unchanged. */
ESP__FN void *esp__grow(esp_ctx *ctx, void *old, uint64_t *cap_bytes, uint64_t need_bytes);
ESP__FN char *esp__strdup(esp_ctx *ctx, const char *s); /* NULL for NULL */
ESP__FN void esp__strfree(esp_ctx *ctx, char *s);

/* esp_host's alloc and free_, for host memory. */
ESP__FN void *esp__host_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align);
ESP__FN void esp__host_free(void *user, esp_device d, void *p, uint64_t bytes);
/* ---- workers.c: runs one loop at a time on several threads of its own ---- */
/* Opens `n` workers, one of which is the caller of esp__workers_for. */
ESP__FN esp_status esp__workers_open(esp_ctx *ctx, int32_t n, esp__workers **out);
ESP__FN void esp__workers_close(esp__workers *w);
/* Runs body over [0, n) in pieces that begin at multiples of `grain`, and returns when all pieces are done. Runs the
 * loop on the calling thread alone, as one piece, if w is NULL or another loop runs. Allocates nothing. */
ESP__FN void esp__workers_for(esp__workers *w, uint64_t n, uint64_t grain,
                              void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg);

/* ---- workers_omp.c: the same loops on the trainer's OpenMP team ---- */
/* At most `most` threads run a loop, or if it is 0, as many as the team has. `offer` wakes the trainer's threads that
 * wait in the library, so that they call esp__workers_offered. ESP_E_UNSUPPORTED: compiled without OpenMP. */
ESP__FN esp_status esp__workers_open_omp(esp_ctx *ctx, int32_t most, void (*offer)(esp_ctx *ctx), esp__workers **out);
/* Marks the calling thread as one of the library, whose loops the trainer's threads run. */
ESP__FN void esp__workers_never_lend(void);
/* Can the calling thread, which waits, help with the current loop? w may be NULL. */
ESP__FN bool esp__workers_offered(esp__workers *w);
/* Runs pieces of the loop on this thread's team or, inside a parallel region, on this thread alone. */
ESP__FN void esp__workers_help(esp__workers *w);

/* ---- text.c: "name:key=val,key=val" ---- */
ESP__FN bool esp__spec_name_char(char c); /* may a name contain it? */
/* The length of a list's first spec: up to the next ';' outside parentheses. */
ESP__FN size_t esp__spec_length(const char *list);
/* Splits a spec into its name and *params, the text after the colon or "". Errors have the position. */
ESP__FN esp_status esp__spec_split(const esp_ctx *ctx, const char *spec, char name[ESP__NAME_MAX], const char **params);

ESP__FN const char *esp__dtype_word(esp_dtype d); /* "f32"; "?" for others */

/* A time span, in nanoseconds of esp__now_ns. */
typedef struct esp__span {
    uint64_t start_ns, end_ns;
} esp__span;

ESP__FN void esp__plugin_log(void *user, const esp_log_event *ev);
#endif
