/* base.h: errors, memory, growing texts, specs and worker threads, for everything above. The library is one translation unit
 * (see espresso_impl.c): everything private is static and named esp__. Knows nothing of the rest of the library. */
#ifndef ESP__BASE_H
#define ESP__BASE_H
#include "espresso_impl/base/fpmode.h"
#include "espresso_impl/base/near.h"
#include "espresso_impl/base/text.h"

enum { ESP__NAME_MAX = 64, ESP__SPEC_MAX = 256, ESP__ERROR_MAX = 2048 };

/* What base needs to know of a context. executor/context.c answers. */
typedef struct esp__workers esp__workers;
typedef struct esp__base {
    const esp_host *user_host;
    esp__workers *workers;
    int32_t log_level, rank, size;
} esp__base;
ESP__FN esp__base esp__base_of(const esp_ctx *ctx);

/* ---- status.c: errors and log --------------------------------------------------------------------------- */
/* Formats the error's text (kept per thread for esp_last_error), logs it at INFO, returns `s`. ctx may be NULL. */
ESP__FN esp_status esp__fail(const esp_ctx *ctx, esp_status s, const char *fmt, ...) ESP__PRINTF(3, 4);
/* The text that a plugin logged at ERROR last on this thread, or "": append it to the caller's own error. */
ESP__FN const char *esp__plugin_detail(void);
ESP__FN void esp__plugin_detail_clear(void); /* before a call whose detail is wanted */
ESP__FN void esp__log(const esp_ctx *ctx, int32_t level, const char *component, const char *fmt, ...) ESP__PRINTF(4, 5);
ESP__FN uint64_t esp__now_ns(void); /* CLOCK_MONOTONIC: one clock for all processes of a machine */
ESP__FN uint64_t esp__hash64(uint64_t h, const void *data, uint64_t bytes); /* FNV-1a; start with ESP__HASH0 */
#define ESP__HASH0 14695981039346656037ull

/* ---- host.c: allocator, the table given to plugins -------------------------------------------------------- */
ESP__FN void *esp__alloc(esp_ctx *ctx, uint64_t bytes); /* zeroed, 64-byte aligned, through the user's allocator */
ESP__FN void esp__free(esp_ctx *ctx, void *p);
/* `old` with room for at least need_bytes: the same, or a larger copy with *cap_bytes raised. NULL: out of memory. */
ESP__FN void *esp__grow(esp_ctx *ctx, void *old, uint64_t *cap_bytes, uint64_t need_bytes);
ESP__FN char *esp__strdup(esp_ctx *ctx, const char *s); /* NULL for NULL */
ESP__FN void esp__strfree(esp_ctx *ctx, char *s);

/* Fills the table that plugins of `ctx` get. */
ESP__FN void esp__host_init(esp_host *host, esp_ctx *ctx);

/* ---- workers.c: one loop at a time over several threads ------------------------------------------------------ */
/* `n` threads, the caller of esp__workers_for among them. */
ESP__FN esp_status esp__workers_open(esp_ctx *ctx, int32_t n, esp__workers **out);
ESP__FN void esp__workers_close(esp__workers *w);
/* Runs body over [0, n) in pieces whose borders are multiples of `grain`; returns when all is done. w NULL: inline. A
 * second caller at the same time, and a nested call, run inline as one piece. Allocates nothing. */
ESP__FN void esp__workers_for(esp__workers *w, uint64_t n, uint64_t grain,
                              void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg);

/* ---- spec.c: "name:key=val,key=val" ------------------------------------------------------------------------------ */
ESP__FN int esp__spec_name_char(char c); /* may it be in a name? */
/* Splits a spec; *params points behind the colon (or at ""). ESP_E_ARG with the position where it is malformed. */
ESP__FN esp_status esp__spec_split(const esp_ctx *ctx, const char *spec, char name[ESP__NAME_MAX], const char **params);

/* Who takes part in a collective; the values are those of esp_group.scope. */
enum { ESP__FLAT = 0, ESP__INTRA = 1, ESP__INTER = 2 };

/* From when to when. */
typedef struct esp__span {
    uint64_t start_ns, end_ns;
} esp__span;

#endif
