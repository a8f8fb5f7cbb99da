/* espresso.h: averages the gradients of data-parallel training over all ranks, and compresses tensors where that saves
 * time.
 *
 *     gcc -O3 -I. -c espresso.c                  // once: the library, compiled as C (about 22 seconds)
 *
 *     #include "espresso.h"                      // in your C or C++ files; link espresso.o -pthread -ldl -lm
 *
 *     esp_config cfg = ESP_ZERO;                 // all zero: the defaults
 *     esp_ctx *ctx;
 *     esp_open(&cfg, &ctx);                      // finds rank and peers from the launcher's environment
 *     for each parameter, in backward order:
 *         esp_tensor_add(ctx, &desc, &id);       // name, dtype, count
 *     esp_start(ctx);                            // compares the ranks' tensors, allocates all memory
 *     esp_broadcast(ctx, params, bytes, 0);      // gives every rank the parameters of rank 0
 *     each step:
 *         esp_push(ctx, id, grad, stream)        // as each gradient is ready; returns at once
 *         esp_wait_all(ctx)                      // now every gradient is the mean over all ranks
 *     esp_close(ctx);
 *
 * Optional defines, set before the include:
 *     ESPRESSO_IMPLEMENTATION   the including C file also contains the library's code, and so compiles about 22
 *                               seconds longer. Not with -ffast-math
 *     ESP_NO_PLANNER            leaves planner and autopilot out: no esp_plan_*, no strategy "auto". The library then
 *                               compiles in about 12 seconds
 *     ESPRESSO_STATIC           makes all functions static: for a private copy of the library in one file
 *
 * Contents: status and types; configuration; calls; planner (planner/api.h); interface of plugins (plugins/abi.h),
 * which trainers do not need. */
#ifndef ESPRESSO_H
#define ESPRESSO_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ESPRESSO_VERSION "0.1.0"

#if defined(ESPRESSO_API) /* the build has defined it: tests do */
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

/* Initializes a struct to zero: esp_config cfg = ESP_ZERO; */
#ifdef __cplusplus
#define ESP_ZERO                                                                                                       \
    {}
#else
#define ESP_ZERO                                                                                                       \
    { 0 }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status and types -------------------------------------------------------------------------------------------- */
/** The result of a call: 0 is success, a negative value an error. Values never change. */
typedef int32_t esp_status;
/* name, value, text: one row for each status */
#define ESP_STATUS_LIST(X)                                                                                             \
    X(ESP_OK, 0, "done")                                                                                               \
    X(ESP_PENDING, 1, "not done yet")                                                                                  \
    X(ESP_E_ARG, -1, "an argument is wrong")                                                                           \
    X(ESP_E_NOMEM, -2, "out of memory")                                                                                \
    X(ESP_E_UNSUPPORTED, -3, "not supported here")                                                                     \
    X(ESP_E_TOO_SMALL, -4, "the buffer is too small")                                                                  \
    X(ESP_E_ABI, -5, "the plugin was built for another ABI")                                                           \
    X(ESP_E_NOT_FOUND, -6, "not found")                                                                                \
    X(ESP_E_DEVICE, -7, "the device failed")                                                                           \
    X(ESP_E_COMM, -8, "communication failed")                                                                          \
    X(ESP_E_CORRUPT, -9, "the data is corrupt")                                                                        \
    X(ESP_E_STATE, -10, "not allowed in this state")                                                                   \
    X(ESP_E_PEER, -11, "a rank died or left")                                                                          \
    X(ESP_E_TIMEOUT, -12, "a rank did not answer in time")                                                             \
    X(ESP_E_MISMATCH, -13, "ranks disagree")
#define ESP__STATUS_ENUM(name, value, text) name = value,
enum { ESP_STATUS_LIST(ESP__STATUS_ENUM) ESP__STATUS_END = 2 };

/* Structs have integers of fixed width, no bool and no enum. A *growable* struct begins with struct_size, its size in
 * bytes, and may get new members at its end in later versions. A *frozen* struct never changes. */

typedef uint32_t esp_dtype;
/* Gradients are f32, f16 or bf16. Only payloads of codecs contain integers. */
enum { ESP_F32 = 1, ESP_F16 = 2, ESP_BF16 = 3, ESP_I8 = 4, ESP_I16 = 5, ESP_I32 = 6 };
/** Bytes of one number; 0 for an unknown dtype. */
static inline uint64_t esp_dtype_bytes(esp_dtype d) {
    return d == ESP_F32 || d == ESP_I32 ? 4u : d == ESP_F16 || d == ESP_BF16 || d == ESP_I16 ? 2u : d == ESP_I8;
}

typedef uint32_t esp_devkind;
enum {
    ESP_CPU = 1,
    ESP_CUDA = 2,
    ESP_DEVKIND_OWN = 16 /* 16 to 31: for device plugins of your own */
};
/** A device. All zero is the CPU. Frozen. */
typedef struct esp_device {
    esp_devkind kind;
    int32_t ordinal; /* number of the device among those of its kind */
} esp_device;

/** A queue of a device, which runs its work in order. All zero is the CPU's: work on it is done when the call that
 *  enqueues it returns. Frozen. */
typedef struct esp_stream {
    esp_device dev;
    void *native; /* CUDA: the cudaStream_t */
} esp_stream;

enum { ESP_LOG_ERROR = 1, ESP_LOG_WARN = 2, ESP_LOG_INFO = 3, ESP_LOG_DEBUG = 4 };

/* Most levels of a job. Level 1 is the ranks of a machine, level 2 the machines, level 3 the racks. */
enum { ESP_LEVELS = 3 };

/* Whether an option's Comp or Decomp runs on the CPU or on the GPU (comp@cpu, comp@gpu). Also an index of the planner's
 * arrays, and a bit number of its sets of devices. */
enum { ESP_ON_CPU = 0, ESP_ON_GPU = 1 };

/* Of plugins/abi.h */
typedef struct esp_host esp_host;
typedef struct esp_plugin esp_plugin;
typedef const esp_plugin *(*esp_plugin_fn)(const esp_host *h);
typedef struct esp_tensor esp_tensor;
typedef struct esp_bound esp_bound;

/* ---- configuration ----------------------------------------------------------------------------------------------- */
/* esp_config.flags */
enum {
    ESP_ALLOW_OVERRIDE = 1u << 0, /* plugins may replace codecs and backends of their name */
    ESP_DISCARDABLE = 1u << 1     /* allows esp_discard_step; keeps copies of residuals */
};
/* Default of min_compress_elements. Tensors of at most 4096 elements are a small part of all bytes, and their results
 * suffer most from compression. */
enum { ESP_MIN_COMPRESS_ELEMENTS = 4097 };
/* esp_config.optimizer */
enum {
    ESP_OPTIMIZER_UNKNOWN = 0,
    ESP_OPTIMIZER_SGD = 1,      /* without momentum */
    ESP_OPTIMIZER_MOMENTUM = 2, /* SGD with momentum, also Nesterov's */
    ESP_OPTIMIZER_ADAM = 3      /* Adam, AdamW and similar ones */
};
/** Configuration of a context. All members are optional: zero, NULL or an empty string selects the default. esp_open
 *  copies the strings. Environment variables ESPRESSO_* override members (docs/use/using.md). Growable. */
typedef struct esp_config {
    uint32_t struct_size; /* 0: the size in this header */
    uint32_t flags;       /* ESP_ALLOW_OVERRIDE | ESP_DISCARDABLE */
    /** Such as "shm", "loop", "shm:inter=1gbit,latency=50us". NULL: the backend with the highest probe score. */
    const char *backend;
    /** Such as "topk:ratio=0.01". NULL: no compression. Strategy "auto" takes several codecs, separated by ';'. */
    const char *codec;
    /** "fp32", "layerwise", "auto" (docs/use/autopilot.md), or the path of a strategy file. NULL: "layerwise" with a
     *  codec, else "fp32". */
    const char *strategy;
    const char *plugin_path; /* directories of plugins, separated by ':' */
    /** [n_builtin] entry functions of plugins that are linked into the program. */
    const esp_plugin_fn *builtin;
    uint32_t n_builtin;
    int32_t log_level;  /* ESP_LOG_*; 0: ESP_LOG_WARN */
    int32_t rank, size; /* size 0: both from the launcher's environment */
    /** This rank's machine: a number above 0, the same on all ranks of the machine. 0: found by host name and boot
     *  id. */
    int32_t machine;
    uint32_t timeout_ms; /* longest wait for other ranks; 0: 300000 */
    /** Exchanges `bytes` bytes of each rank among all ranks, in rank order: `out` has size * bytes bytes. Blocks. Ranks
     *  that provide it connect through it, and need no `root`. NULL: ranks connect through `root`. */
    esp_status (*oob_allgather)(void *user, const void *in, void *out, uint64_t bytes);
    void *oob_user; /* first argument of oob_allgather */
    /** Address at which the ranks connect: "unix:NAME" or "HOST:PORT". NULL: from the environment. */
    const char *root;
    const char *trace;    /* path of a measured timeline (Chrome JSON); NULL: none */
    uint32_t cpu_workers; /* compression threads; 0: the machine's cores / its ranks */
    uint32_t reserved0;
    uint64_t seed; /* of all random draws; the same on all ranks */
    /** The caller's allocator and log, valid until esp_close returns. NULL: malloc and stderr. */
    const esp_host *host;
    const char *stats; /* path for statistics (docs/use/stats.md); NULL: none */
    /** Threads that compress: "pthreads" (the library's own), "openmp", or "openmp:4" (docs/use/using.md).
     *  NULL: "pthreads". */
    const char *workers;
    /** This rank's rack and machine, as in "rack1/machine0", for a job of three levels; or its machine, for two levels.
     *  Ranks with equal text are on one machine. NULL: `machine` decides. */
    const char *place;
    /** "threads": the library's threads run the ops. "caller": the trainer's thread runs them, inside esp_push,
     *  esp_test and waits. NULL: "threads" if each rank has at least two cores, else "caller" (docs/use/using.md). */
    const char *progress;
    /** Built-in strategies and "auto" compress only tensors with at least this many elements (docs/use/codecs.md).
     *  0: ESP_MIN_COMPRESS_ELEMENTS. 1: tensors of any size. */
    uint64_t min_compress_elements;
    /** The trainer's optimizer, ESP_OPTIMIZER_*. Strategy "auto" prefers codecs that are safe with it
     *  (docs/use/autopilot.md). */
    uint32_t optimizer;
    /** The optimizer's momentum; with ESP_OPTIMIZER_ADAM, beta1. 0: 0.9. -1: none. */
    float momentum;
} esp_config;

/* esp_tensor_desc.flags */
enum {
    ESP_SUM = 1u << 0,  /* the result is the sum over ranks, not the mean */
    ESP_RAW = 1u << 1,  /* the tensor is never compressed */
    ESP_SHARD = 1u << 2 /* each rank gets only its part of the result: esp_part */
};
/** A tensor, for esp_tensor_add, which copies the strings. Growable. */
typedef struct esp_tensor_desc {
    uint32_t struct_size;       /* 0: the size in this header */
    esp_dtype dtype;            /* of the gradient; 0: ESP_F32 */
    const char *name;           /* unique in the context */
    uint64_t count, rows, cols; /* elements; rows and cols 0: not a matrix */
    /** Device of the gradient's memory. A plugin of that kind of device must be loaded. All zero: the CPU. */
    esp_device device;
    uint32_t flags, reserved0;
    /** Codec and option of this tensor, in place of the strategy's. NULL: the strategy's. */
    const char *codec, *option;
    /** With ESP_SHARD: the codec of esp_gather, such as "bf16". NULL: esp_gather does not compress. */
    const char *gather;
} esp_tensor_desc;

/* ---- calls ------------------------------------------------------------------------------------------------------- */
/* Threads: any thread may call esp_push and esp_report_loss, at the same time as others. One thread at a time may
 * wait for tensors. All other calls on a context come from one thread at a time.
 * Collective calls: all ranks make them, in the same order. "Between steps" means after esp_start or esp_wait_all,
 * and before the next esp_push.
 * Errors: after ESP_E_ARG and ESP_E_STATE the context remains usable. An error that ends collectives, such as
 * ESP_E_PEER, ESP_E_TIMEOUT or ESP_E_DEVICE, is returned by all later calls that need them; only esp_shrink and
 * esp_close still work. */
typedef struct esp_ctx esp_ctx;

/** Loads plugins, finds rank, size and peers, and opens the backend. `cfg` may be NULL. Collective. Blocks until all
 *  ranks have called it, or until the timeout. On failure *out is NULL, and esp_last_error(NULL) explains why. */
ESPRESSO_API esp_status esp_open(const esp_config *cfg, esp_ctx **out);
/** Frees the context and everything that it owns. Close codec handles first. NULL is allowed. After an error it does
 *  not wait for other ranks. */
ESPRESSO_API void esp_close(esp_ctx *ctx);
ESPRESSO_API int32_t esp_rank(const esp_ctx *ctx);
ESPRESSO_API int32_t esp_size(const esp_ctx *ctx);
ESPRESSO_API int32_t esp_machine(const esp_ctx *ctx);  /* number of this rank's machine, from 0 */
ESPRESSO_API int32_t esp_machines(const esp_ctx *ctx); /* how many machines the job has */

/** Message of the last error on `ctx` in the calling thread; of any context if `ctx` is NULL. Valid until the next
 *  call of this thread that fails. */
ESPRESSO_API const char *esp_last_error(const esp_ctx *ctx);
ESPRESSO_API const char *esp_status_name(esp_status s); /* such as "ESP_E_PEER" */
ESPRESSO_API const char *esp_status_text(esp_status s); /* such as "a rank died or left" */

/** Registers a tensor; *id becomes 0, 1, 2, ... Call it before esp_start, in backward order: the order in which the
 *  backward pass finishes the gradients. All ranks register the same tensors. */
ESPRESSO_API esp_status esp_tensor_add(esp_ctx *ctx, const esp_tensor_desc *desc, uint32_t *id);
/** Compares tensors, codecs and strategy of all ranks (ESP_E_MISMATCH on every rank if they differ), and allocates all
 *  memory that steps need. Collective. Blocks. */
ESPRESSO_API esp_status esp_start(esp_ctx *ctx);

/* Collectives without compression. Call them between steps. They block until `data` has the result. */
/** Copies `bytes` bytes from `data` of rank `root` to `data` of every other rank. */
ESPRESSO_API esp_status esp_broadcast(esp_ctx *ctx, void *data, uint64_t bytes, int32_t root);
/** Replaces `count` floats by their sums over all ranks. */
ESPRESSO_API esp_status esp_allreduce(esp_ctx *ctx, float *data, uint64_t count);
/** As above for memory on the stream's device, after the work that is now on `stream`. */
ESPRESSO_API esp_status esp_broadcast_on(esp_ctx *ctx, esp_stream stream, void *data, uint64_t bytes, int32_t root);
ESPRESSO_API esp_status esp_allreduce_on(esp_ctx *ctx, esp_stream stream, float *data, uint64_t count);
/** Returns when all ranks have called it. */
ESPRESSO_API esp_status esp_barrier(esp_ctx *ctx);

/* A step: push every tensor once, then wait. */
/** Starts to synchronize a tensor, and returns without waiting for it. `grad` has the tensor's `count` elements, of
 *  its dtype and on its device. The library reads it after the work that is now on `stream`, and writes the mean over
 *  all ranks into it. From this call until the tensor's wait returns, only the library may use that memory. Each step
 *  may pass another address. */
ESPRESSO_API esp_status esp_push(esp_ctx *ctx, uint32_t id, void *grad, esp_stream stream);
/** Like esp_push, for a rank that has no gradient in this step: it contributes zeros. `out` gets the mean. */
ESPRESSO_API esp_status esp_push_zero(esp_ctx *ctx, uint32_t id, void *out, esp_stream stream);
/** Blocks until one pushed tensor has its mean. Push all tensors of the step first: collectives run in the strategy's
 *  order, so a tensor that is not yet pushed can block others. A warning names it after 2 s. */
ESPRESSO_API esp_status esp_wait(esp_ctx *ctx, uint32_t id);
/** Returns ESP_OK if esp_wait would return at once, else ESP_PENDING, or an error. Does not block. */
ESPRESSO_API esp_status esp_test(esp_ctx *ctx, uint32_t id);
/** Makes later work on `stream` wait for the tensor. Blocks only until all work of the tensor is enqueued on its
 *  device. With a stream of the CPU it is esp_wait. */
ESPRESSO_API esp_status esp_wait_on(esp_ctx *ctx, uint32_t id, esp_stream stream);
/** Declares that this rank has pushed all that it pushes in this step. For each tensor that is missing it contributes
 *  zeros. This call and esp_wait_all then return ESP_E_STATE, with a message that names the tensors. Does not wait. */
ESPRESSO_API esp_status esp_step_end(esp_ctx *ctx);
/** Blocks until all tensors have their means, and ends the step. It includes esp_step_end. */
ESPRESSO_API esp_status esp_wait_all(esp_ctx *ctx);
/** Restores residuals and the state of codecs from before the last step, for a trainer that does not apply the step
 *  (a loss scaler found Inf). Call it after esp_wait_all, on all ranks or on none. Needs ESP_DISCARDABLE. */
ESPRESSO_API esp_status esp_discard_step(esp_ctx *ctx);

/** Reports the training loss, such as this rank's mean over its part of the batch. All ranks or some may report it,
 *  in every step or in some, at any time after esp_start. Strategy "auto" compares losses before and after it changed
 *  the strategy, and returns to fp32 if they rise (docs/use/autopilot.md). NaN and Inf are allowed. Does not block. */
ESPRESSO_API esp_status esp_report_loss(esp_ctx *ctx, double loss);
/** Multiplies all residuals by `factor`. When the learning rate changes, pass the old rate divided by the new one.
 *  Call it between steps, on all ranks. */
ESPRESSO_API esp_status esp_feedback_scale(esp_ctx *ctx, float factor);

/** Changes the strategy to `text`: "fp32", "layerwise", "auto", or the text of a strategy file. Collective; call it
 *  between steps. Residuals are kept: one that has no place in the new strategy is added to the next gradient of its
 *  tensor. */
ESPRESSO_API esp_status esp_strategy_set(esp_ctx *ctx, const char *text);
/** The active strategy, as the text of a strategy file. The context owns it; it is valid until the strategy changes. */
ESPRESSO_API const char *esp_strategy_text(const esp_ctx *ctx);

/** Continues without failed ranks. Call it on every remaining rank after a call has failed with ESP_E_PEER (a rank
 *  died or left) or ESP_E_TIMEOUT (a rank did not answer), while no other thread uses the context. Blocks until the
 *  remaining ranks have connected. Afterwards esp_rank and esp_size count only those ranks, and means are over them;
 *  tensors, residuals and statistics are kept. Some ranks may have finished the failed step and others not: broadcast
 *  the parameters and the optimizer's state from rank 0, and repeat the step. If esp_shrink itself fails with
 *  ESP_E_PEER or ESP_E_TIMEOUT, call it again. ESP_E_UNSUPPORTED: the backend or a sharded tensor does not allow it.
 *  A rank that the others have excluded gets ESP_E_PEER. See docs/use/shrink.md. */
ESPRESSO_API esp_status esp_shrink(esp_ctx *ctx);

/* Sharded tensors (ESP_SHARD), for trainers that divide the optimizer's state among ranks. After the wait, the pushed
 * gradient has the mean in this rank's part, and undefined values elsewhere. */
/** The part of the tensor that belongs to rank `rank`: elements *begin to *begin + *count - 1. The same on all ranks,
 *  and constant from esp_start to esp_close. *count may be 0. For a tensor without ESP_SHARD it is the whole tensor.
 *  `begin` and `count` may be NULL. */
ESPRESSO_API esp_status esp_part(const esp_ctx *ctx, uint32_t id, int32_t rank, uint64_t *begin, uint64_t *count);
/** Collects the parts of a sharded tensor's parameters. `params` has the tensor's `count` floats, on its device; this
 *  rank has written its own part, and gets the other ranks' parts. With esp_tensor_desc.gather, parts are sent
 *  compressed, and every rank, the owner too, gets the decoded values, so that all ranks have the same bits: keep the
 *  exact part elsewhere. Collective; call it between steps. Blocks. Does nothing for a tensor without ESP_SHARD. */
ESPRESSO_API esp_status esp_gather(esp_ctx *ctx, uint32_t id, float *params, esp_stream stream);

/* Saved state: number of steps, residuals, and what codecs keep. Collective; call these between steps. */
/** Writes this rank's file, PATH.r<rank>of<size>: first under a temporary name, which it then renames. */
ESPRESSO_API esp_status esp_state_save(esp_ctx *ctx, const char *path);
ESPRESSO_API esp_status esp_state_load(esp_ctx *ctx, const char *path);
/** Writes `bytes` bytes from `data`, or reads them into it, and returns ESP_OK. */
typedef esp_status (*esp_io_fn)(void *user, void *data, uint64_t bytes);
/** As esp_state_save and esp_state_load, through a function of the caller. */
ESPRESSO_API esp_status esp_state_write(esp_ctx *ctx, esp_io_fn write, void *user);
ESPRESSO_API esp_status esp_state_read(esp_ctx *ctx, esp_io_fn read, void *user);

/** Statistics of this rank since esp_start. Times are in nanoseconds. Growable: set struct_size. */
typedef struct esp_stats {
    uint32_t struct_size, reserved0;
    uint64_t steps;
    uint64_t intra_bytes, inter_bytes; /* received from ranks of its machine; of others */
    uint64_t nonfinite;                /* parts with NaN or Inf, which left residuals as they were */
    uint64_t memory_bytes;             /* allocated for the active strategy */
    uint64_t compress_ns, decompress_ns, intra_ns, inter_ns; /* sums of the ops' times */
    /* Sums over all steps. A step lasts from one return of esp_wait_all to the next. */
    uint64_t step_ns;
    uint64_t backward_ns; /* from the step's first push to its last */
    /** After the last push: time in which a link is busy; time in which only compression runs. */
    uint64_t exposed_communication_ns, exposed_compression_ns;
    uint64_t level_bytes[ESP_LEVELS]; /* received over the links of level 1, 2, ... */
    uint64_t level_ns[ESP_LEVELS];    /* time of ops on the links of level 1, 2, ... */
    /** Parts of memory_bytes: payloads and other buffers between ops; residuals and the state of codecs. */
    uint64_t slots_bytes, feedback_bytes;
    /** This rank's share of the backends' buffers, at most; not in memory_bytes. 0: not known. */
    uint64_t backend_bytes;
} esp_stats;
/** Compression error and residual of one tensor. Growable: set struct_size. */
typedef struct esp_tensor_stats {
    uint32_t struct_size;
    /** Number of measurements. 0: the tensor is not compressed, or neither ESPRESSO_STATS nor "auto" asked for any. */
    uint32_t samples;
    /** |input - decoded|^2 / |input|^2 at the last measurement, where input is gradient plus residual. */
    double error;
    double feedback; /* |residual| / |gradient| at the last measurement */
} esp_tensor_stats;
/** Copies statistics to *out, at most out->struct_size bytes. */
ESPRESSO_API esp_status esp_stats_read(esp_ctx *ctx, esp_stats *out);
ESPRESSO_API esp_status esp_tensor_stats_read(esp_ctx *ctx, uint32_t id, esp_tensor_stats *out);

/** Loads a plugin before esp_start. An argument with '/' is a path. Else it is a name: the library looks for
 *  `libespresso-<name>.so` in esp_config.plugin_path, in $ESPRESSO_PLUGIN_PATH, and in `<prefix>/lib/espresso`. The
 *  error message lists every path tried. */
ESPRESSO_API esp_status esp_plugin_load(esp_ctx *ctx, const char *path_or_name);
ESPRESSO_API uint32_t esp_abi_version(void); /* major << 16 | minor */

/* A codec without communication, for trials: `ctx` may have size 1. One thread at a time may use a handle. Numbers and
 * payloads are in the CPU's memory. */
typedef struct esp_codec_handle esp_codec_handle;
/** Opens codec `spec` for tensors of `count` floats. `feedback`: "none", "residual", or "residual:beta=1,gamma=1";
 *  NULL: the codec's default. */
ESPRESSO_API esp_status esp_codec_open(esp_ctx *ctx, const char *spec, uint64_t count, const char *feedback,
                                       esp_codec_handle **out);
/** As esp_codec_open, for matrices of rows * cols floats, row-major. */
ESPRESSO_API esp_status esp_codec_open_matrix(esp_ctx *ctx, const char *spec, uint64_t rows, uint64_t cols,
                                              const char *feedback, esp_codec_handle **out);
ESPRESSO_API void esp_codec_close(esp_codec_handle *h);
/** Most bytes that esp_compress writes, of all rounds together. */
ESPRESSO_API uint64_t esp_compress_bound(const esp_codec_handle *h);
/** Compresses `count` floats into `out` of `capacity` bytes, and sets *used to the bytes written. Each call is one
 *  step. */
ESPRESSO_API esp_status esp_compress(esp_codec_handle *h, const float *in, uint64_t count, void *out, uint64_t capacity,
                                     uint64_t *used);
/* Whether decoded numbers replace those of the output, or are added to them. */
enum { ESP_OUT_SET = 0, ESP_OUT_SUM = 1 };
/** Decodes `bytes` bytes that esp_compress wrote into `count` floats. `mode`: ESP_OUT_SET or ESP_OUT_SUM. */
ESPRESSO_API esp_status esp_decompress(esp_codec_handle *h, const void *in, uint64_t bytes, float *out, uint64_t count,
                                       uint32_t mode);
/** The residual after the last esp_compress: `count` floats that the handle owns. NULL: the codec keeps none. */
ESPRESSO_API const float *esp_codec_residual(const esp_codec_handle *h);

#include "planner/api.h"
#include "plugins/abi.h"

#ifdef __cplusplus
}
#endif
#endif /* ESPRESSO_H */

/* Outside the include guard, so that a file that has already included the declarations can still add the code. */
#if defined(ESPRESSO_IMPLEMENTATION) && !defined(ESPRESSO_IMPL_DONE)
#include "espresso.c"
#endif
