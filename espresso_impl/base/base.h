/* base.h: errors, memory, growing texts, specs and worker threads, for all other folders. Knows nothing of the rest of
 * the library. Names of functions that other files call begin with esp__ (see espresso.c: ESP__FN). */
#ifndef ESP__BASE_H
#define ESP__BASE_H
#include "espresso_impl/base/os.h"
#include "espresso_impl/base/text.h"

enum { ESP__NAME_MAX = 64, ESP__SPEC_MAX = 256, ESP__ERROR_MAX = 2048 };

/* A context begins with this: what base uses of it, and where the parts are that belong to the folders between base and the
 * executor. The header of each such folder has the function that returns its part (esp__job_of and the like). */
typedef struct esp__workers esp__workers;
typedef struct esp__base {
    const esp_host *user_host;
    int32_t log_level, rank, size;    /* rank and size: copies of the job's                        */
    esp__workers *workers;            /* opened after the watch thread, which must not ask for it  */
    struct esp__registry *registry;   /* plugins/                                                  */
    struct esp__device_list *devices; /* device/                                                   */
    const struct esp__job *job;       /* job/                                                      */
    const struct esp__model *model;   /* strategy/                                                 */
} esp__base;
/* Any thread: apart from `workers`, nothing changes once threads run. ctx must not be NULL. */
static inline const esp__base *esp__base_of(const esp_ctx *ctx) { return (const esp__base *)(const void *)ctx; }
static inline esp__workers *esp__workers_of(const esp_ctx *ctx) { return esp__base_of(ctx)->workers; }

/* ---- status.c: errors and log --------------------------------------------------------------------------- */
/* Formats the error's text, keeps it for this thread's esp_last_error, logs it at INFO, and returns `s`. ctx may be NULL. */
ESP__FN esp_status esp__fail(const esp_ctx *ctx, esp_status s, const char *fmt, ...) ESP__PRINTF(3, 4);
/* The last text that a plugin logged at ERROR on this thread, or "". Callers append it to their own error. */
ESP__FN const char *esp__plugin_detail(void);
ESP__FN void esp__plugin_detail_set(const char *text);
ESP__FN void esp__plugin_detail_clear(void); /* call it before the plugin whose text is wanted */
ESP__FN void esp__log(const esp_ctx *ctx, int32_t level, const char *component, const char *fmt, ...) ESP__PRINTF(4, 5);
ESP__FN uint64_t esp__now_ns(void); /* CLOCK_MONOTONIC: one clock for all processes of a machine */
ESP__FN uint64_t esp__hash64(uint64_t h, const void *data, uint64_t bytes); /* FNV-1a; start with ESP__HASH0 */
#define ESP__HASH0 14695981039346656037ull

/* ---- host.c: allocator, the table given to plugins -------------------------------------------------------- */
ESP__FN void *esp__alloc(esp_ctx *ctx, uint64_t bytes); /* zeroed, 64-byte aligned, through the user's allocator */
ESP__FN void esp__free(esp_ctx *ctx, void *p);
/* Returns `old` if its *cap_bytes suffice for need_bytes. Else moves it to a larger array, zeroed behind the old content, frees
 * `old` and raises *cap_bytes. NULL: out of memory, and `old` is unchanged. */
ESP__FN void *esp__grow(esp_ctx *ctx, void *old, uint64_t *cap_bytes, uint64_t need_bytes);
ESP__FN char *esp__strdup(esp_ctx *ctx, const char *s); /* NULL for NULL */
ESP__FN void esp__strfree(esp_ctx *ctx, char *s);

/* As in esp_host, for the CPU. */
ESP__FN void *esp__host_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align);
ESP__FN void esp__host_free(void *user, esp_device d, void *p, uint64_t bytes);
/* Fills the table that plugins get; its `user` is ctx. */
ESP__FN void esp__host_init(esp_host *host, esp_ctx *ctx);

/* ---- workers.c: runs one loop at a time on several threads; with threads of its own ------------------------------- */
/* `n` threads in all: the caller of esp__workers_for is one of them. */
ESP__FN esp_status esp__workers_open(esp_ctx *ctx, int32_t n, esp__workers **out);
ESP__FN void esp__workers_close(esp__workers *w);
/* Runs body over [0, n) in pieces that begin at multiples of `grain`, and returns when all pieces are done. Runs the loop inline,
 * as one piece, if w is NULL, another caller's loop runs, or the call is nested. Allocates nothing. */
ESP__FN void esp__workers_for(esp__workers *w, uint64_t n, uint64_t grain,
                              void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg);

/* ---- workers_omp.c: the same loops on the trainer's OpenMP team -------------------------------------------------- */
/* At most `most` threads run a loop (0: as many as the team has). `offer` wakes the threads that wait, so that each can ask
 * esp__workers_offered. ESP_E_UNSUPPORTED: compiled without OpenMP. */
ESP__FN esp_status esp__workers_open_omp(esp_ctx *ctx, int32_t most, void (*offer)(esp_ctx *ctx), esp__workers **out);
ESP__FN void esp__workers_never_lend(void); /* the calling thread is the library's: its loops are offered to others */
/* May the calling thread, which waits, help with the loop under way? Then esp__workers_help runs pieces of it, on the thread's team
 * or, inside a parallel region, on this thread alone. */
ESP__FN int esp__workers_offered(esp__workers *w); /* w may be NULL */
ESP__FN void esp__workers_help(esp__workers *w);

/* ---- text.c: "name:key=val,key=val" ------------------------------------------------------------------------------ */
ESP__FN int esp__spec_name_char(char c); /* may a name contain it? */
/* The length of a list's first spec: up to the next ';' outside parentheses. */
ESP__FN size_t esp__spec_length(const char *list);
/* Splits a spec into its name and *params, which points behind the colon in `spec`, or to "". ESP_E_ARG: it is malformed, and the
 * text says where. */
ESP__FN esp_status esp__spec_split(const esp_ctx *ctx, const char *spec, char name[ESP__NAME_MAX], const char **params);

ESP__FN const char *esp__dtype_word(esp_dtype d); /* "f32"; "?" for others */

/* A time span, in nanoseconds of esp__now_ns. */
typedef struct esp__span {
    uint64_t start_ns, end_ns;
} esp__span;

ESP__FN void esp__plugin_log(void *user, const esp_log_event *ev);
#endif
