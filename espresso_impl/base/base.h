/* base.h: what the files of espresso_impl/ share. One translation unit (see espresso_impl.c): everything private is
 * static and named esp__. Files are listed in the order in which they may use each other: upwards only. */
#ifndef ESP__INTERNAL_H
#define ESP__INTERNAL_H
#include "espresso_impl/base/fpmode.h"
#include "espresso_impl/base/near.h"
#include "espresso_impl/base/text.h"

enum { ESP__NAME_MAX = 64, ESP__SPEC_MAX = 256, ESP__ERROR_MAX = 2048 };

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
typedef struct esp__workers esp__workers;
/* `n` threads, the caller of esp__workers_for among them. */
ESP__FN esp_status esp__workers_open(esp_ctx *ctx, int32_t n, esp__workers **out);
ESP__FN void esp__workers_close(esp__workers *w);
/* Runs body over [0, n) in pieces whose borders are multiples of `grain`; returns when all is done. w NULL: inline. A
 * second caller at the same time, and a nested call, run inline as one piece. Allocates nothing. */
ESP__FN void esp__workers_for(esp__workers *w, uint64_t n, uint64_t grain,
                              void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg);

/* ---- env.c: rank, size, machine and meeting point from the launcher's environment --------------------------- */
typedef struct esp__where {
    int32_t rank, size;
    char machine[ESP__NAME_MAX * 2]; /* ranks with the same text are on one machine: "m<id>" or host name + boot id */
    char root[ESP__SPEC_MAX];        /* "unix:NAME", "HOST:PORT", or "" where size is 1 */
    const char *launcher;            /* "config", "espresso run", "Open MPI", ... for messages */
} esp__where;
ESP__FN esp_status esp__env_where(const esp_config *cfg, esp__where *out);
/* Copy of cfg with the environment's overrides. Strings point into the environment or the caller's. */
ESP__FN esp_status esp__env_config(const esp_config *cfg, esp_config *out);
/* Warns of variables whose names look like a misspelt ESPRESSO_* (env_names.c). */
ESP__FN void esp__env_check_names(const esp_ctx *ctx);

/* ---- peers.c: meeting, small exchanges, finding out that a peer is gone --------------------------------------- */
typedef struct esp__peers esp__peers;
/* What the peers' watch thread asks of and tells the context. All are called from the watch thread. */
typedef struct esp__peers_events {
    void (*lost)(void *user, int32_t rank, int left); /* died, or (left) closed while others go on; first one only */
    /* The verdict on a timeout: `rank` (-1: unknown) is late for tensor `tensor` (UINT32_MAX: none). */
    void (*late)(void *user, int32_t rank, uint32_t tensor);
    /* What this rank is waiting for right now: 1 and who and what, or 0 when it is not waiting. */
    int (*waiting)(void *user, int32_t *on_rank, uint32_t *tensor);
    void *user;
} esp__peers_events;
/* All ranks meet. Uses cfg->oob_allgather, if given, only to agree on an address. size 1: no socket, no thread. */
ESP__FN esp_status esp__peers_open(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev, esp__peers **out);
/* Says goodbye (so that closing is not taken for death) and frees. Never blocks for long. `bytes` of `farewell`, if
 * any, go to rank 0, which gets every rank's through `collect` (rank by rank; waits at most 5 s for them). */
ESP__FN void esp__peers_close(esp__peers *p, const void *farewell, uint64_t bytes,
                              void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes), void *user);
/* Blocking exchange among the `n` ranks of `members` (NULL: all), which all call it, in the same order for one set of
 * members. out is [n][bytes]. Returns ESP_E_PEER or ESP_E_TIMEOUT with the text set. Any thread but the watch's. */
ESP__FN esp_status esp__peers_allgather(esp__peers *p, const int32_t *members, int32_t n, const void *in, void *out,
                                        uint64_t bytes);
/* 1 if `rank` has said goodbye (not only the first one that did). */
ESP__FN int esp__peers_left(esp__peers *p, int32_t rank);
/* This rank has waited too long, directly for `on_rank` (-1: unknown): asks everybody, and `late` gets the verdict. */
ESP__FN void esp__peers_accuse(esp__peers *p, int32_t on_rank, uint32_t tensor);

/* ---- spec.c: "name:key=val,key=val" ------------------------------------------------------------------------------ */
/* Splits a spec; *params points behind the colon (or at ""). ESP_E_ARG with the position where it is malformed. */
ESP__FN esp_status esp__spec_split(const esp_ctx *ctx, const char *spec, char name[ESP__NAME_MAX], const char **params);

/* ---- registry.c, loader.c: codecs and backends of one context ----------------------------------------------------- */
typedef struct esp__registry {
    const esp_codec **codecs;
    const esp_backend **backends;
    uint32_t n_codecs, n_backends, cap_codecs, cap_backends;
    char **codec_from, **backend_from; /* "built in", or the plugin's path: for messages and `espresso plugins` */
    int frozen;                        /* after esp_start */
} esp__registry;
ESP__FN esp_status esp__registry_add(esp_ctx *ctx, const esp_plugin *plugin, const char *from);
/* NULL, and an error that lists what there is, when there is none of that name. Tries to load the plugin
 * libespresso-<name>.so before it gives up. */
ESP__FN const esp_codec *esp__registry_codec(esp_ctx *ctx, const char *name);
ESP__FN const esp_backend *esp__registry_backend(esp_ctx *ctx, const char *name);
ESP__FN void esp__registry_free(esp_ctx *ctx);
/* esp_plugin_load's body. */
ESP__FN esp_status esp__plugin_load(esp_ctx *ctx, const char *path_or_name);
/* The built-in plugins' entries (builtin.c), NULL-terminated. */
ESP__FN const esp_plugin_fn *esp__builtin_entries(void);

/* From when to when. */
typedef struct esp__span {
    uint64_t start_ns, end_ns;
} esp__span;

/* ---- trace.c: the measured timeline --------------------------------------------------------------------------------- */
enum { ESP__LANE_COMPUTE = 0, ESP__LANE_CPU = 1, ESP__LANE_INTRA = 2, ESP__LANE_INTER = 3, ESP__LANES = 4 };
typedef struct esp__trace esp__trace;
/* Room for `capacity` events, taken now; later ones overwrite none and are counted as dropped. */
ESP__FN esp_status esp__trace_open(esp_ctx *ctx, uint64_t capacity, esp__trace **out);
/* Any thread. `label` must outlive the trace (an op's text). tensor UINT32_MAX: none. */
ESP__FN void esp__trace_add(esp__trace *t, uint32_t lane, const char *label, uint32_t tensor, uint64_t step,
                            uint64_t start_ns, uint64_t end_ns, uint64_t bytes);
/* The events as bytes for a farewell, and the file written from all ranks' bytes (rank 0). */
ESP__FN esp_status esp__trace_pack(esp_ctx *ctx, esp__trace *t, void **data, uint64_t *bytes);
typedef struct esp__trace_file esp__trace_file;
ESP__FN esp_status esp__trace_file_open(esp_ctx *ctx, const char *path, esp__trace_file **out);
ESP__FN void esp__trace_file_rank(void *file, int32_t rank, const void *data, uint64_t bytes);
ESP__FN esp_status esp__trace_file_close(esp__trace_file *f); /* temporary name, then renamed */
ESP__FN void esp__trace_free(esp_ctx *ctx, esp__trace *t);

/* ---- units.c: where elements of tensors lie ------------------------------------------------------------------------------ */
/* The elements of one unit: a tensor, a range of one, or several neighbours whole. */
typedef struct esp__extent {
    uint32_t first, n;     /* tensors                                      */
    uint64_t begin, count; /* elements; begin: in the tensor, if it is one */
} esp__extent;
/* A piece of them that lies in one tensor. */
typedef struct esp__segment {
    uint32_t tensor;
    uint64_t begin, length; /* in the tensor                             */
    uint64_t at;            /* of the elements asked for: how many are before it */
} esp__segment;
/* The next piece of elements [from, from + length) of a place. `s` is zeroed before the first. 0: no more. */
ESP__FN int esp__segment_next(const esp_ctx *ctx, const esp__extent *place, uint64_t from, uint64_t length,
                              esp__segment *s);

/* ---- state.c: feedback memory in and out ------------------------------------------------------------------------------ */
/* The feedback of one Comp of one unit on this rank. Memory belongs to the context. */
typedef struct esp__feedback {
    esp__extent place;      /* of the unit                                                         */
    uint64_t codec, option; /* hashes of their texts                                               */
    uint32_t comp_index, n_ranges;
    uint32_t raw;           /* reads the rank's own gradient: kept over strategy changes           */
    uint32_t keeper;        /* this rank is the lowest of the replica set                          */
    uint64_t offset, count; /* element range in the unit                                           */
    float *residual;        /* count floats, or NULL                                               */
    uint8_t *state;         /* codec's own, or NULL                                                */
    uint64_t state_bytes;
    float *residual_before; /* ESP_DISCARDABLE: copies from before the step                        */
    uint8_t *state_before;
} esp__feedback;
/* esp_state_write/read's bodies: the context is started, between steps, and has ctx->in_force.feedback[], ctx->carry. */
ESP__FN esp_status esp__state_write(esp_ctx *ctx, esp_io_fn write, void *user);
ESP__FN esp_status esp__state_read(esp_ctx *ctx, esp_io_fn read, void *user);

/* ---- topology ------------------------------------------------------------------------------------------------------------ */
typedef struct esp__topology {
    int32_t size, n_machines;
    int32_t n_local;                /* ranks a machine; 0: they differ (then only the flat tree)          */
    int32_t rank, machine, local;   /* this rank                                                       */
    int32_t *machine_of, *local_of; /* [size]                                                        */
    int32_t *ranks; /* machine-major: ranks[m * n_local + l]; with unequal machines, grouped by machine */
} esp__topology;

#endif
