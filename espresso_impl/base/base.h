/* base.h: errors, memory, growing strings, specs ("name:key=val") and worker threads, for all other folders. */
#ifndef ESP__BASE_H
#define ESP__BASE_H
#include "espresso_impl/base/os.h"
#include "espresso_impl/base/text.h"

enum { ESP__NAME_MAX = 64, ESP__SPEC_MAX = 256, ESP__ERROR_MAX = 2048 };

/* An esp_ctx begins with this struct: folders that know nothing else of a context can read these members. */
typedef struct esp__workers esp__workers;
typedef struct esp__base {
    const esp_host *user_host;
    int32_t log_level, rank, size;
    int32_t process; /* the rank in the launcher's environment if it differs from `rank`, else -1 */
    esp__workers *workers;
    struct esp__registry *registry;
    struct esp__device_list *devices;
    const struct esp__job *job;
    const struct esp__model *model;
} esp__base;
/* Any thread may call these two functions. ctx must not be NULL. Once threads run, `workers` is the only member that
 * still changes. */
static inline const esp__base *esp__base_of(const esp_ctx *ctx) { return (const esp__base *)(const void *)ctx; }
static inline esp__workers *esp__workers_of(const esp_ctx *ctx) { return esp__base_of(ctx)->workers; }

/* ---- status.c: errors and log ---- */
/* Sets this thread's esp_last_error to the text, logs it at INFO, and returns `s`. ctx may be NULL. */
ESP__FN esp_status esp__fail(const esp_ctx *ctx, esp_status s, const char *fmt, ...) ESP__PRINTF(3, 4);
/* While quiet, this thread neither logs errors nor stores their text. */
ESP__FN void esp__errors_quiet(bool quiet);
/* Returns the last text that a plugin has logged at ERROR on this thread since esp__plugin_detail_clear, or "". The
 * caller of the plugin appends it to its own error text. */
ESP__FN const char *esp__plugin_detail(void);
ESP__FN const char *esp__plugin_why(esp_status s); /* the same, or if it is "" the text of `s` */
ESP__FN void esp__plugin_detail_set(const char *text);
ESP__FN void esp__plugin_detail_clear(void);
/* Returns true if this rank should log a message that all ranks have alike: every rank if the program receives the log
 * itself (esp_host.log), otherwise only rank 0. */
ESP__FN bool esp__log_speaks(const esp_ctx *ctx);
/* Returns true in the log callback of `ctx`, which may be called with a lock held. */
ESP__FN bool esp__in_log(const esp_ctx *ctx);
ESP__FN void esp__log(const esp_ctx *ctx, int32_t level, const char *component, const char *fmt, ...) ESP__PRINTF(4, 5);
/* Logs a line on rank 0 about what the library decides, at a level that users see by default. */
ESP__FN void esp__say(const esp_ctx *ctx, const char *component, const char *fmt, ...) ESP__PRINTF(3, 4);
/* Returns the log level of a text such as "warn" or "2", or 0 if it is none. */
ESP__FN int32_t esp__log_level_read(const char *text);
ESP__FN uint64_t esp__now_ns(void); /* CLOCK_MONOTONIC, which all processes of a machine share */
/* FNV-1a hash of `data`. `h` is ESP__HASH0 at first, and the result of the previous call to continue that one. */
ESP__FN uint64_t esp__hash64(uint64_t h, const void *data, uint64_t bytes);
#define ESP__HASH0 14695981039346656037ull

/* ---- alloc.c: memory of the user's allocator ---- */
ESP__FN void *esp__alloc(esp_ctx *ctx, uint64_t bytes); /* returns zeroed memory, aligned to 64 bytes, or NULL */
ESP__FN void esp__free(esp_ctx *ctx, void *p);
/* Returns `old` if its *cap_bytes are at least need_bytes. Otherwise returns a larger copy with zeros behind it, frees
 * `old` and raises *cap_bytes. If memory runs out, returns NULL and leaves `old` unchanged. */
ESP__FN void *esp__grow(esp_ctx *ctx, void *old, uint64_t *cap_bytes, uint64_t need_bytes);
ESP__FN char *esp__strdup(esp_ctx *ctx, const char *s);

/* The alloc and free_ that esp_host offers to plugins, for host memory. */
ESP__FN void *esp__host_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align);
ESP__FN void esp__host_free(void *user, esp_device d, void *p, uint64_t bytes);
/* ---- workers.c: several threads run one loop at a time ---- */
/* Starts n - 1 threads: with the caller of esp__workers_for, n threads run a loop. */
ESP__FN esp_status esp__workers_open(esp_ctx *ctx, int32_t n, esp__workers **out);
ESP__FN void esp__workers_close(esp__workers *w);
/* Calls body for pieces of [0, n) that begin at multiples of `grain`, and returns when all are done. If w is NULL or
 * another loop runs, calls it once, on this thread, for the whole range. Allocates nothing. */
ESP__FN void esp__workers_for(esp__workers *w, uint64_t n, uint64_t grain,
                              void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg);

/* ---- the same on the OpenMP threads of the training program ---- */
/* `most` is the largest number of threads that run a loop, 0 for no limit. `offer` must wake the program's threads that
 * wait in the library, so that they call esp__workers_offered. Returns ESP_E_UNSUPPORTED if compiled without OpenMP. */
ESP__FN esp_status esp__workers_open_omp(esp_ctx *ctx, int32_t most, void (*offer)(esp_ctx *ctx), esp__workers **out);
/* Each thread that the library starts calls this once. Afterwards it opens no OpenMP parallel region itself; threads of
 * the program that wait in the library run its loops. */
ESP__FN void esp__workers_never_lend(void);
/* Returns true if a loop has work left for the calling thread, which waits in the library, or for its OpenMP team. w
 * may be NULL. */
ESP__FN bool esp__workers_offered(esp__workers *w);
/* Runs a share of the current loop on the calling thread's OpenMP team, or on this thread alone if it is inside a
 * parallel region. */
ESP__FN void esp__workers_help(esp__workers *w);

/* ---- spec.c: specs, such as "name:key=val,key=val" ---- */
ESP__FN bool esp__spec_name_char(char c);
/* Returns the length of a list's first spec, which ends at the next ';' outside parentheses. */
ESP__FN size_t esp__spec_length(const char *list);
/* Splits a spec into its name and *params, which is the text after the colon, or "". */
ESP__FN esp_status esp__spec_split(const esp_ctx *ctx, const char *spec, char name[ESP__NAME_MAX], const char **params);

ESP__FN const char *esp__dtype_word(esp_dtype d);

typedef struct esp__span {
    uint64_t start_ns, end_ns;
} esp__span;

ESP__FN void esp__plugin_log(void *user, const esp_log_event *ev);
#endif
