/* espresso.h: decides, tensor by tensor, how gradients are compressed and synchronised, and does it.
 *
 * Do this, in C or C++:
 *
 *     gcc -O3 -I. -c espresso.c                  // once: the library, compiled as C (about 23 seconds)
 *
 *     #include "espresso.h"                      // in your files; link espresso.o -pthread -ldl -lm
 *
 *     esp_config cfg = ESP_ZERO;                 // zero is the default everywhere
 *     esp_ctx *ctx;
 *     esp_open(&cfg, &ctx);                      // finds rank and peers from the launcher's environment
 *     for each parameter, in backward order:
 *         esp_tensor_add(ctx, &desc, &id);       // name, dtype, count
 *     esp_start(ctx);                            // ranks agree, memory is taken, nothing allocates after this
 *     esp_broadcast(ctx, params, bytes, 0);      // same parameters everywhere
 *     each step:
 *         esp_push(ctx, id, grad, stream)        // as each gradient is ready; returns at once
 *         esp_wait_all(ctx)                      // every gradient now holds the mean over ranks
 *     esp_close(ctx);
 *
 * Defines, all optional, set before the include:
 *     ESPRESSO_IMPLEMENTATION   this file also carries the code, and takes those 23 seconds (C only; not with -ffast-math)
 *     ESP_NO_PLANNER            leave planner and autopilot out: no esp_plan_*, no strategy auto; about 8 seconds
 *     ESPRESSO_STATIC           everything is private to this file
 *
 * Sections: 1 status, 2 vocabulary, 3 host services, 4 codec table, 5 backend table, 6 plugin entry,
 * 7 payload header, 8 application API, 9 planner (planner/api.h). Sections 1 to 7 are all that a plugin needs. */
#ifndef ESPRESSO_H
#define ESPRESSO_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(ESPRESSO_API) /* given: a build for tests */
#elif defined(ESPRESSO_STATIC)
#if defined(__GNUC__)
#define ESPRESSO_API __attribute__((unused)) static
#else
#define ESPRESSO_API static
#endif
#elif defined(__GNUC__)
#define ESPRESSO_API __attribute__((visibility("default"))) extern
#else
#define ESPRESSO_API extern
#endif
#if defined(__GNUC__)
#define ESPRESSO_EXPORT __attribute__((visibility("default")))
#else
#define ESPRESSO_EXPORT
#endif

#ifdef __cplusplus
#define ESP_ZERO                                                                                                       \
    {}
#define ESP__C extern "C"
#define ESP__CAST(T, x) static_cast<T>(x)
#else
#define ESP_ZERO                                                                                                       \
    { 0 }
#define ESP__C
#define ESP__CAST(T, x) ((T)(x))
#endif

#define ESPRESSO_VERSION "0.1.0"
#define ESP_ABI_MAJOR 1u /* in the entry symbol's name: a plugin of another major is refused       */
#define ESP_ABI_MINOR 0u /* informational: growth inside a major is carried by struct_size         */

/** True if table `t` (of struct type T) is long enough to hold member `f` and `f` is set. */
#define ESP_HAS(T, t, f) ((t) != NULL && (t)->struct_size >= offsetof(T, f) + sizeof((t)->f) && (t)->f)

#ifdef __cplusplus
extern "C" {
#endif

#include "plugins/abi.h"

/* ---- 8. application API ---------------------------------------------------------------------------------- */
typedef struct esp_ctx esp_ctx;
enum {
    ESP_ALLOW_OVERRIDE = 1u << 0, /* a later plugin may replace a codec or backend of the same name      */
    ESP_DISCARDABLE = 1u << 1     /* keep a copy of the feedback state so that esp_discard_step works    */
};
/* The default of min_compress_elements: tensors of up to 4096 elements are a small part of all bytes, and lose most by compression. */
enum { ESP_MIN_COMPRESS_ELEMENTS = 4097 };

enum {
    ESP_OPTIMIZER_UNKNOWN = 0,
    ESP_OPTIMIZER_SGD = 1,      /* without momentum                  */
    ESP_OPTIMIZER_MOMENTUM = 2, /* SGD with momentum, Nesterov's too */
    ESP_OPTIMIZER_ADAM = 3      /* Adam, AdamW and their like        */
};
/** Where a strategy compresses: comp@cpu, comp@gpu. The planner's cost curves have these indexes, its sets of devices these bits. */
enum { ESP_ON_CPU = 0, ESP_ON_GPU = 1 };

/** Everything is optional: all-zero is valid, and so are empty strings. Strings are copied. The ESPRESSO_* variables, which docs/use/using.md
 *  lists, override members. Growable. */
typedef struct esp_config {
    uint32_t struct_size;    /* 0 means "this header's size"                                               */
    uint32_t flags;          /* ESP_ALLOW_OVERRIDE | ESP_DISCARDABLE                                       */
    const char *backend;     /* "shm", "loop", "shm:inter=1gbit,latency=50us"; NULL: highest probe score   */
    const char *codec;       /* "topk:ratio=0.01"; NULL: none; for "auto" several, ';' between             */
    const char *strategy;    /* "fp32", "layerwise", "auto" (docs/use/autopilot.md) or a strategy file; NULL: layerwise
                                     with a codec, else fp32                                                     */
    const char *plugin_path; /* directories, ':' between                                      */
    const esp_plugin_fn *builtin; /* [n_builtin] entries of plugins that are linked into the program */
    uint32_t n_builtin;
    int32_t log_level;   /* ESP_LOG_*; 0: ESP_LOG_WARN                                    */
    int32_t rank, size;  /* size 0: from the launcher's environment                       */
    int32_t machine;     /* 0: by host name and boot; else a number > 0, the same on all ranks of a machine */
    uint32_t timeout_ms; /* how many milliseconds a wait may take; 0: 300000              */
    esp_status (*oob_allgather)(void *user, const void *in, void *out, uint64_t bytes);
    void *oob_user;       /* passed to oob_allgather. Ranks that give one (as in esp_group) need no address to meet */
    const char *root;     /* where ranks meet: "unix:NAME" or "HOST:PORT"; NULL: from the environment */
    const char *trace;    /* file for the measured timeline (Chrome/Perfetto JSON); NULL: none */
    uint32_t cpu_workers; /* compression threads; 0: cores of the machine / its ranks      */
    uint32_t reserved0;
    uint64_t seed;        /* of all random draws; the same on all ranks                    */
    const esp_host *host; /* the caller's memory and log, valid until esp_close; NULL: libc and stderr */
    const char *stats;    /* file for statistics while training; NULL: none. See docs/use/stats.md   */
    const char *workers;  /* "pthreads", "openmp", "openmp:4" (docs/use/using.md); NULL: pthreads                */
    /** Where this rank is, the outermost unit first: "rack1/machine0"; ranks with the same text are on one machine. Two
     *  parts give the job three levels, one part gives it two. NULL: see `machine`. */
    const char *place;
    /** Who runs the ops: "threads" of the library, or the "caller" inside esp_push, esp_test and the waits. NULL: threads if each rank
     *  has two cores or more, else the caller (docs/use/using.md) */
    const char *progress;
    /** Built-in strategies and auto compress only tensors of at least this many elements (docs/use/codecs.md).
     *  0: ESP_MIN_COMPRESS_ELEMENTS; 1: tensors of any size */
    uint64_t min_compress_elements;
    /** What makes updates from the gradients: ESP_OPTIMIZER_*. auto prefers codecs that learn well with it (docs/use/autopilot.md) */
    uint32_t optimizer;
    float momentum; /* of ESP_OPTIMIZER_MOMENTUM; ESP_OPTIMIZER_ADAM: its first moment's decay. 0: 0.9; -1: none */
} esp_config;

enum {
    ESP_SUM = 1u << 0,  /* the result is the sum, not the mean                                           */
    ESP_RAW = 1u << 1,  /* the tensor is never compressed                                                */
    ESP_SHARD = 1u << 2 /* after the wait a rank has its part of the result only: see esp_part          */
};
/** One tensor. Strings are copied. Growable; struct_size 0 means "this header's size". */
typedef struct esp_tensor_desc {
    uint32_t struct_size;
    esp_dtype dtype; /* 0: ESP_F32                                                                      */
    const char *name;
    uint64_t count, rows, cols; /* elements; rows and cols 0: not a matrix                              */
    esp_device device;          /* where gradients lie; its plugin must be loaded. All zero: the CPU                 */
    uint32_t flags, reserved0;
    const char *codec, *option; /* NULL: the strategy decides                                           */
    const char *gather;         /* ESP_SHARD: the codec of esp_gather, such as "bf16"; NULL: parameters stay exact */
} esp_tensor_desc;

/** Counters since esp_start. Growable: set struct_size, members beyond it are not written. */
typedef struct esp_stats {
    uint32_t struct_size, reserved0;
    uint64_t steps;
    uint64_t intra_bytes, inter_bytes; /* received by this rank from ranks of its own / other machines  */
    uint64_t nonfinite;                /* parts with NaN or Inf: their change of the feedback was dropped */
    uint64_t memory_bytes;             /* of the strategy in force                                     */
    uint64_t compress_ns, decompress_ns, intra_ns, inter_ns; /* time in which ops occupied their lanes  */
    /* sums over all steps; a step goes from esp_wait_all's return to the next one's */
    uint64_t step_ns, backward_ns; /* backward: first to last push       */
    uint64_t exposed_communication_ns,
        exposed_compression_ns;       /* after the last push: a link is busy; no link is, but compression runs */
    uint64_t level_bytes[ESP_LEVELS]; /* of intra_bytes and inter_bytes: over the links of level 1, 2, ...   */
    uint64_t level_ns[ESP_LEVELS];    /* time in which ops occupied the lane of level 1, 2, ...             */
    /* of memory_bytes: payload slots, groups and other buffers between ops; residuals and codecs' state */
    uint64_t slots_bytes, feedback_bytes;
    uint64_t
        backend_bytes; /* the backends' windows and buffers of this rank, at most; 0: not known; not in memory_bytes */
} esp_stats;
/** The compression error and the feedback of one tensor. Growable: set struct_size. */
typedef struct esp_tensor_stats {
    uint32_t struct_size;
    uint32_t samples; /* how often the error was measured; 0: not compressed, or nobody asked (ESPRESSO_STATS, auto) */
    double error;     /* |input - decoded|^2 / |input|^2 of the last sample; input: gradient plus residual */
    double feedback;  /* |residual| / |gradient| in the same sample                                       */
} esp_tensor_stats;

/** Finds rank, size and peers, loads plugins, opens the backend. Blocks until all ranks are here, or the timeout.
 *  On failure *out is NULL and esp_last_error(NULL) has the text. */
ESPRESSO_API esp_status esp_open(const esp_config *cfg, esp_ctx **out);
/** Frees the context; NULL is fine. Never blocks after an error. Close codec handles (below) before. */
ESPRESSO_API void esp_close(esp_ctx *ctx);
ESPRESSO_API int32_t esp_rank(const esp_ctx *ctx);
ESPRESSO_API int32_t esp_size(const esp_ctx *ctx);
ESPRESSO_API int32_t esp_machine(const esp_ctx *ctx);  /* index of this rank's machine                   */
ESPRESSO_API int32_t esp_machines(const esp_ctx *ctx); /* number of machines                             */

/** Registers a tensor before esp_start, in backward order, the same on all ranks. Names are unique. *id: 0, 1, ... */
ESPRESSO_API esp_status esp_tensor_add(esp_ctx *ctx, const esp_tensor_desc *desc, uint32_t *id);
/** Collective. Compares tensors, codecs and strategy (ESP_E_MISMATCH on all ranks where they differ) and takes memory. */
ESPRESSO_API esp_status esp_start(esp_ctx *ctx);
/** Lends `grad` (`count` elements of the tensor's dtype, on its device) to the library until the tensor's wait returns, which leaves
 *  the mean in it. Returns at once: the library reads it after the work that is on `stream` now. Push each tensor once a step,
 *  from any thread; `grad` may differ from step to step. */
ESPRESSO_API esp_status esp_push(esp_ctx *ctx, uint32_t id, void *grad, esp_stream stream);
/** As esp_push, for a rank without a gradient: it contributes zeros, and `out` gets the mean. */
ESPRESSO_API esp_status esp_push_zero(esp_ctx *ctx, uint32_t id, void *out, esp_stream stream);
/** Waits for one pushed tensor. Push all tensors of the step first: collectives run in the strategy's order, so that a
 *  tensor that is not yet pushed may delay the one that is waited for (a warning names it after 2 s). */
ESPRESSO_API esp_status esp_wait(esp_ctx *ctx, uint32_t id);
/** Does not wait: ESP_OK where esp_wait would return at once, ESP_PENDING, or the error. */
ESPRESSO_API esp_status esp_test(esp_ctx *ctx, uint32_t id);
/** Lets later work on `stream` wait for the tensor. Blocks the caller only until all of the tensor's work is enqueued, not until it
 *  is done. A CPU stream: the same as esp_wait. */
ESPRESSO_API esp_status esp_wait_on(esp_ctx *ctx, uint32_t id, esp_stream stream);
/** No more pushes in this step: a tensor never pushed contributes zeros, and this rank gets ESP_E_STATE naming it. */
ESPRESSO_API esp_status esp_step_end(esp_ctx *ctx);
/** Ends the step: calls esp_step_end if the caller did not, and waits for every tensor. */
ESPRESSO_API esp_status esp_wait_all(esp_ctx *ctx);
/** Takes back the last step's change of the feedback, for example when a loss scaler discards the step. After
 *  esp_wait_all, on all ranks or none. Needs ESP_DISCARDABLE in esp_config.flags. */
ESPRESSO_API esp_status esp_discard_step(esp_ctx *ctx);
/** Tells the library the training loss, for example this rank's mean over its part of the batch, in every step or now and then, on
 *  all ranks or some. It only stores the number: call it from any thread, at any time after esp_start. auto compares the losses before
 *  and after it changed the strategy, and returns to fp32 where they rise (docs/use/autopilot.md). NaN and Inf may be reported. */
ESPRESSO_API esp_status esp_report_loss(esp_ctx *ctx, double loss);

/** Goes on without lost ranks. Call it on every rank that is left when a step, or another call, has failed with ESP_E_PEER (a rank
 *  died or left) or ESP_E_TIMEOUT (it is silent), while no other thread is in this context. Blocks until the ranks that are left
 *  have met. Then esp_rank, esp_size and means are of these ranks, and tensors, residuals and statistics stay as they are. The step
 *  that failed is lost, on some ranks: send the parameters and the optimizer's state from rank 0 (esp_broadcast), and repeat the
 *  step. May be called again if it fails with ESP_E_PEER or ESP_E_TIMEOUT. ESP_E_UNSUPPORTED: the backend or a sharded tensor does
 *  not allow it. A rank that the others gave up gets ESP_E_PEER. See docs/use/shrink.md. */
ESPRESSO_API esp_status esp_shrink(esp_ctx *ctx);

/* Uncompressed helpers. All ranks call them in the same order, between steps. They block. `data` is in and out. */
ESPRESSO_API esp_status esp_broadcast(esp_ctx *ctx, void *data, uint64_t bytes, int32_t root);
ESPRESSO_API esp_status esp_allreduce(esp_ctx *ctx, float *data, uint64_t count); /* the sum */
/** The same for memory of the stream's device, after the work that is on the stream now. */
ESPRESSO_API esp_status esp_broadcast_on(esp_ctx *ctx, esp_stream stream, void *data, uint64_t bytes, int32_t root);
ESPRESSO_API esp_status esp_allreduce_on(esp_ctx *ctx, esp_stream stream, float *data, uint64_t count);
ESPRESSO_API esp_status esp_barrier(esp_ctx *ctx);

/* Sharded tensors (ESP_SHARD), for trainers that keep each part of the optimizer's state on one rank only. The gradient that was
 * pushed then has the mean in this rank's part; its other elements are undefined. */
/** Which elements of the tensor rank `rank` has after the wait: [*begin, *begin + *count), the same on all ranks and from esp_start
 *  until esp_close; *count may be 0. A tensor that is not sharded: all of it. begin or count may be NULL. */
ESPRESSO_API esp_status esp_part(const esp_ctx *ctx, uint32_t id, int32_t rank, uint64_t *begin, uint64_t *count);
/** Gives every rank all ranks' parts of `params`, the parameters of the tensor: `count` floats on its device, in which this rank has
 *  written its own part. With esp_tensor_desc.gather the parts travel compressed, and every rank has the decoded values, in
 *  its own part too: so that ranks stay the same, keep the exact part elsewhere. Blocks. All ranks call it in the same
 *  order, between steps. A tensor that is not sharded stays as it is. */
ESPRESSO_API esp_status esp_gather(esp_ctx *ctx, uint32_t id, float *params, esp_stream stream);

/** Changes the strategy between steps, on all ranks: a built-in name or the text of a strategy file. No feedback is
 *  lost: a residual that has no place in the new strategy is added to the next push of its tensor. */
ESPRESSO_API esp_status esp_strategy_set(esp_ctx *ctx, const char *text);
/** The strategy in force, as the text of a strategy file. The context owns it; it is valid until the strategy changes. */
ESPRESSO_API const char *esp_strategy_text(const esp_ctx *ctx);
/** Multiplies all feedback by `factor`: lr_before / lr_now when the learning rate changes. Between steps, on all ranks. */
ESPRESSO_API esp_status esp_feedback_scale(esp_ctx *ctx, float factor);
ESPRESSO_API esp_status esp_stats_read(esp_ctx *ctx, esp_stats *out);
ESPRESSO_API esp_status esp_tensor_stats_read(esp_ctx *ctx, uint32_t id, esp_tensor_stats *out);

/* State that must survive a restart: step, residuals, codec state. Between steps, on all ranks; one file a rank,
 * PATH.r<rank>of<size>, written to a temporary name and renamed. */
ESPRESSO_API esp_status esp_state_save(esp_ctx *ctx, const char *path);
ESPRESSO_API esp_status esp_state_load(esp_ctx *ctx, const char *path);
/** The same through a callback, which writes `bytes` bytes from `data` (or reads them into it) and returns ESP_OK. */
typedef esp_status (*esp_io_fn)(void *user, void *data, uint64_t bytes);
ESPRESSO_API esp_status esp_state_write(esp_ctx *ctx, esp_io_fn write, void *user);
ESPRESSO_API esp_status esp_state_read(esp_ctx *ctx, esp_io_fn read, void *user);

/* Codecs alone, no peers: ctx is any open context (size 1 will do). One thread per handle.
 * feedback: NULL for the codec's default, "none", "residual", "residual:beta=1,gamma=1". */
typedef struct esp_codec_handle esp_codec_handle;
ESPRESSO_API esp_status esp_codec_open(esp_ctx *ctx, const char *spec, uint64_t count, const char *feedback,
                                       esp_codec_handle **out);
/** The same for rows x cols floats, for codecs that use rows and columns. */
ESPRESSO_API esp_status esp_codec_open_matrix(esp_ctx *ctx, const char *spec, uint64_t rows, uint64_t cols,
                                              const char *feedback, esp_codec_handle **out);
ESPRESSO_API void esp_codec_close(esp_codec_handle *h);
/** Bytes that esp_compress may need for `count` elements; with a codec of several rounds, for all of them. */
ESPRESSO_API uint64_t esp_compress_bound(const esp_codec_handle *h);
/** Compresses one step's `count` floats; *used gets the bytes written. Counts as one step for random draws. */
ESPRESSO_API esp_status esp_compress(esp_codec_handle *h, const float *in, uint64_t count, void *out, uint64_t capacity,
                                     uint64_t *used);
/** Decodes into `out`; mode ESP_OUT_SET or ESP_OUT_SUM. */
ESPRESSO_API esp_status esp_decompress(esp_codec_handle *h, const void *in, uint64_t bytes, float *out, uint64_t count,
                                       uint32_t mode);
/** The residual after the last esp_compress: `count` floats that the handle owns; NULL: the codec keeps none. */
ESPRESSO_API const float *esp_codec_residual(const esp_codec_handle *h);

/** Loads a plugin: an exact path if it contains '/', else `libespresso-<name>.so` in cfg.plugin_path,
 *  $ESPRESSO_PLUGIN_PATH, then `<prefix>/lib/espresso`. On failure the message lists every path tried. Before esp_start. */
ESPRESSO_API esp_status esp_plugin_load(esp_ctx *ctx, const char *path_or_name);
ESPRESSO_API const char *esp_status_name(esp_status s); /* "ESP_E_PEER" */
ESPRESSO_API const char *esp_status_text(esp_status s); /* "a rank died or left" */
/** The last error of this thread on `ctx` (any context: NULL). Valid until this thread's next failing call. */
ESPRESSO_API const char *esp_last_error(const esp_ctx *ctx);
ESPRESSO_API uint32_t esp_abi_version(void); /* major << 16 | minor */

#include "planner/api.h"

#ifdef __cplusplus
}
#endif
#endif /* ESPRESSO_H */

/* Outside the include guard, so that a file that already saw the declarations can still add the code. */
#if defined(ESPRESSO_IMPLEMENTATION) && !defined(ESPRESSO_IMPL_DONE)
#include "espresso.c"
#endif
