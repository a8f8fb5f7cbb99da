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
/* The library's code needs functions of POSIX and C11, which libc's headers declare under -std=c99 only if asked. */
#ifdef ESPRESSO_IMPLEMENTATION
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1
#endif
#ifndef _ISOC11_SOURCE
#define _ISOC11_SOURCE 1
#endif
#endif
#ifndef ESPRESSO_H
#define ESPRESSO_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ESPRESSO_VERSION "0.1.0"

#if defined(ESPRESSO_API) /* set by the build that includes this file */
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

/* Initializes all members of a struct to zero: esp_config cfg = ESP_ZERO; */
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
/* For each status: its name, value and text. */
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
    X(ESP_E_MISMATCH, -13, "ranks disagree")                                                                           \
    X(ESP_E_CANCELED, -14, "the step was canceled")
#define ESP__STATUS_ENUM(name, value, text) name = value,
enum { ESP_STATUS_LIST(ESP__STATUS_ENUM) ESP__STATUS_END = 2 };

/* Members of structs are integers of fixed width, never bool or enum. A *growable* struct begins with struct_size, its
 * size in bytes, and later versions may add members at its end. A *frozen* struct never changes. */

typedef uint32_t esp_dtype;
/* Gradients are f32, f16 or bf16. The integer types occur only in compressed data. */
enum { ESP_F32 = 1, ESP_F16 = 2, ESP_BF16 = 3, ESP_I8 = 4, ESP_I16 = 5, ESP_I32 = 6 };
enum { ESP_F64 = 7, ESP_I64 = 8 }; /* only for esp_allreduce_as */
typedef uint32_t esp_reduce;
enum { ESP_REDUCE_SUM = 1, ESP_REDUCE_MAX = 2, ESP_REDUCE_MIN = 3 };
/** Returns the bytes of one number of a gradient or of compressed data, or 0 for another dtype. */
static inline uint64_t esp_dtype_bytes(esp_dtype d) {
    return d == ESP_F32 || d == ESP_I32 ? 4u : d == ESP_F16 || d == ESP_BF16 || d == ESP_I16 ? 2u : d == ESP_I8;
}

typedef uint32_t esp_devkind;
enum {
    ESP_CPU = 1,
    ESP_CUDA = 2,
    ESP_DEVKIND_OWN = 16 /* 16 to 31 are for your own device plugins */
};
/** A device. If all members are zero, it is the CPU. Frozen. */
typedef struct esp_device {
    esp_devkind kind;
    int32_t ordinal; /* index of the device among those of its kind, from 0 */
} esp_device;

/** A stream of a device, which runs its work in order. If all members are zero, it belongs to the CPU, and a call that
 *  adds work returns when the work is done. Frozen. */
typedef struct esp_stream {
    esp_device dev;
    void *native; /* for CUDA, the cudaStream_t */
} esp_stream;

enum { ESP_LOG_ERROR = 1, ESP_LOG_WARN = 2, ESP_LOG_INFO = 3, ESP_LOG_DEBUG = 4 };

/* The most levels of a job. Level 1 connects the ranks of a machine, level 2 the machines, level 3 the racks. */
enum { ESP_LEVELS = 3 };

/* Where a tensor is compressed or decompressed, as in comp@cpu and comp@gpu in a strategy. The planner also uses these
 * values as array indices and bit numbers. */
enum { ESP_ON_CPU = 0, ESP_ON_GPU = 1 };

/* Declared here because esp_config uses them; plugins/abi.h defines them. */
typedef struct esp_host esp_host;
typedef struct esp_plugin esp_plugin;
typedef const esp_plugin *(*esp_plugin_fn)(const esp_host *h);
typedef struct esp_tensor esp_tensor;
typedef struct esp_bound esp_bound;

/* ---- configuration ----------------------------------------------------------------------------------------------- */
/* esp_config.flags */
enum {
    ESP_ALLOW_OVERRIDE = 1u << 0, /* plugins may replace codecs and backends of the same name */
    ESP_DISCARDABLE = 1u << 1,    /* allows esp_discard_step; costs a copy of residuals */
    ESP_JOIN = 1u << 2            /* this rank joins a running job (esp_reconfigure) */
};
/* Default of min_compress_elements. Smaller tensors are a small part of all bytes, and compression harms them most. */
enum { ESP_MIN_COMPRESS_ELEMENTS = 4097 };
/* esp_config.optimizer */
enum {
    ESP_OPTIMIZER_UNKNOWN = 0,
    ESP_OPTIMIZER_SGD = 1,      /* without momentum */
    ESP_OPTIMIZER_MOMENTUM = 2, /* SGD with momentum, also Nesterov's */
    ESP_OPTIMIZER_ADAM = 3      /* Adam, AdamW and similar ones */
};
/** Configuration of a context. Members that are zero, NULL or "" select their default. esp_open copies the strings.
 *  Environment variables ESPRESSO_* override members other than rank, size and root (docs/use/using.md).
 *  Growable: later versions may append members. */
typedef struct esp_config {
    uint32_t struct_size; /* 0 means the size in this header */
    uint32_t flags;       /* ESP_ALLOW_OVERRIDE | ESP_DISCARDABLE | ESP_JOIN */
    /** The backend for communication, such as "shm" or "shm:inter=1gbit,latency=50us". NULL selects the one with the
     *  highest probe score. */
    const char *backend;
    /** The codec that compresses, such as "topk:ratio=0.01", or several for strategy "auto", separated by ';'. NULL
     *  means no compression. */
    const char *codec;
    /** "fp32", "layerwise", "merged:groups=N", "auto" (docs/use/autopilot.md), or the path of a strategy file. NULL
     *  selects "layerwise" if a codec is given, else "fp32". */
    const char *strategy;
    const char *plugin_path; /* directories of plugins, separated by ':' */
    /** [n_builtin] entry functions of plugins that are linked into the program. */
    const esp_plugin_fn *builtin;
    uint32_t n_builtin;
    int32_t log_level;  /* ESP_LOG_*; 0 means ESP_LOG_WARN */
    int32_t rank, size; /* if size is 0, the launcher's environment sets both; else these count */
    /** A positive number that all ranks of this machine share. If 0, the library compares host name and boot id. */
    int32_t machine;
    uint32_t timeout_ms; /* longest wait for other ranks; 0 means 300000 */
    /** Gathers `bytes` bytes from each rank: `out` gets size * bytes bytes in rank order. Blocks. Ranks that provide it
     *  connect through it, and need no `root`. If NULL, ranks connect through `root`. */
    esp_status (*oob_allgather)(void *user, const void *in, void *out, uint64_t bytes);
    void *oob_user; /* first argument of oob_allgather */
    /** Address at which the ranks connect, "unix:NAME" or "HOST:PORT". If NULL, it comes from the environment. If a job
     *  has several contexts, each over a group of its ranks, each group needs its own address or oob_allgather. */
    const char *root;
    const char *trace;    /* writes a timeline (Chrome JSON) to this path, if not NULL */
    uint32_t cpu_workers; /* compression threads; 0 means cores / ranks */
    uint32_t reserved0;
    uint64_t seed; /* seed of all random numbers; the same on all ranks */
    /** The caller's allocator and log, which stay valid until esp_close returns. NULL means malloc and stderr. */
    const esp_host *host;
    const char *stats; /* writes statistics (docs/use/stats.md), if not NULL */
    /** The threads that compress: "pthreads" (the library's own), "openmp", or "openmp:4" (docs/use/using.md). NULL
     *  means "pthreads". */
    const char *workers;
    /** Names this rank's machine, or its rack and machine, as in "rack1/machine0". Ranks with equal text are on one
     *  machine. If NULL, the member `machine` has the machine's number. */
    const char *place;
    /** The threads that run compression and communication: the library's ("threads"), or the trainer's inside esp_push,
     *  esp_test and waits ("caller"). NULL selects "threads" if each rank has two cores or more, else "caller". */
    const char *progress;
    /** Built-in strategies and "auto" do not compress tensors with fewer elements (docs/use/codecs.md). 0 means
     *  ESP_MIN_COMPRESS_ELEMENTS, and 1 allows tensors of any size. */
    uint64_t min_compress_elements;
    /** ESP_OPTIMIZER_*. Strategy "auto" prefers codecs that are safe with it (docs/use/autopilot.md). */
    uint32_t optimizer;
    /** The optimizer's momentum, or with ESP_OPTIMIZER_ADAM beta1. 0 means 0.9, and -1 means none. */
    float momentum;
} esp_config;

/* esp_tensor_desc.flags */
enum {
    ESP_SUM = 1u << 0,  /* the result is the sum over ranks, not the mean */
    ESP_RAW = 1u << 1,  /* the tensor is never compressed */
    ESP_SHARD = 1u << 2 /* each rank gets only its part of the result (esp_part) */
};
/** A tensor. esp_tensor_add copies the strings. Growable: later versions may append members. */
typedef struct esp_tensor_desc {
    uint32_t struct_size;       /* 0 means the size in this header */
    esp_dtype dtype;            /* dtype of the gradient; 0 means ESP_F32 */
    const char *name;           /* unique in the context */
    uint64_t count, rows, cols; /* elements; rows and cols are 0 if it is no matrix */
    /** Device of the gradient's memory. Its kind needs a loaded plugin. All zero is the CPU. */
    esp_device device;
    uint32_t flags, reserved0;
    /** This tensor's codec, and how it is compressed and sent (its option, a list of stages). NULL means what the
     *  strategy says. */
    const char *codec, *option;
    /** With ESP_SHARD, the codec of esp_gather, such as "bf16". If NULL, esp_gather does not compress. */
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
 *  not wait for other ranks. Of an outer context, it first waits for the means that are under way. */
ESPRESSO_API void esp_close(esp_ctx *ctx);
ESPRESSO_API int32_t esp_rank(const esp_ctx *ctx);
ESPRESSO_API int32_t esp_size(const esp_ctx *ctx);
ESPRESSO_API int32_t esp_machine(const esp_ctx *ctx);  /* number of this rank's machine, from 0 */
ESPRESSO_API int32_t esp_machines(const esp_ctx *ctx); /* number of machines */

/** Returns the message of this thread's last error on `ctx`, or on any context if `ctx` is NULL. It is valid until the
 *  next call of this thread that fails. */
ESPRESSO_API const char *esp_last_error(const esp_ctx *ctx);
ESPRESSO_API const char *esp_status_name(esp_status s); /* such as "ESP_E_PEER" */
ESPRESSO_API const char *esp_status_text(esp_status s); /* such as "a rank died or left" */

/** Registers a tensor, and sets *id to 0, 1, 2, ... Call it before esp_start, in the order in which the backward pass
 *  finishes the gradients. All ranks register the same tensors. */
ESPRESSO_API esp_status esp_tensor_add(esp_ctx *ctx, const esp_tensor_desc *desc, uint32_t *id);
/** Compares tensors, codecs and strategy of all ranks, and allocates all memory that steps need. Every rank gets
 *  ESP_E_MISMATCH if they differ. Collective. Blocks. */
ESPRESSO_API esp_status esp_start(esp_ctx *ctx);

/* Collectives without compression. Call them between steps. They return when `data` has the result. */
/** Copies `bytes` bytes from `data` of rank `root` to `data` of every other rank. Every rank gets ESP_E_MISMATCH if
 * their `bytes` or `root` differ. */
ESPRESSO_API esp_status esp_broadcast(esp_ctx *ctx, void *data, uint64_t bytes, int32_t root);
/** Replaces `count` floats by their sums over all ranks. */
ESPRESSO_API esp_status esp_allreduce(esp_ctx *ctx, float *data, uint64_t count);
/** Replaces `count` numbers of ESP_F32, ESP_F64, ESP_I32 or ESP_I64 by their sums, maxima or minima (ESP_REDUCE_*) over
 *  all ranks, computed in rank order, so that all ranks have the same bits. A NaN stays, and sums of integers wrap
 *  around. Every rank receives all numbers of all ranks: meant for counters and metrics. Every rank gets
 *  ESP_E_MISMATCH if their `count`, `dtype` or `op` differ. */
ESPRESSO_API esp_status esp_allreduce_as(esp_ctx *ctx, void *data, uint64_t count, esp_dtype dtype, esp_reduce op);
/** Like esp_broadcast and esp_allreduce, for device memory, after the work that `stream` has now. */
ESPRESSO_API esp_status esp_broadcast_on(esp_ctx *ctx, esp_stream stream, void *data, uint64_t bytes, int32_t root);
ESPRESSO_API esp_status esp_allreduce_on(esp_ctx *ctx, esp_stream stream, float *data, uint64_t count);
/** Returns when all ranks have called it. */
ESPRESSO_API esp_status esp_barrier(esp_ctx *ctx);

/** Sets this rank's weight in the means of all later steps, such as the number of its samples. A mean is then
 *  sum(weight * gradient) / sum(weight), with the same bits on all ranks; with equal weights, it has the bits of the
 *  mean without weights. A rank without data passes 0, and what it pushes does not matter. `weight` is from 0 to 1e30,
 *  and 1 at first. All ranks get ESP_E_STATE if all pass 0, as at the end of their data. Sums (ESP_SUM) have no
 * weights. A gradient is first multiplied by size * weight / sum(weight), for which f16 numbers need room. Collective;
 * call it between steps. Blocks. */
ESPRESSO_API esp_status esp_weight(esp_ctx *ctx, float weight);

/* A step: push every tensor once, then wait. */
/** Starts to average a tensor, and returns without waiting. `grad` has the tensor's `count` elements, in its dtype and
 *  on its device. The library reads them after the work that `stream` has now, and replaces them by the mean over all
 *  ranks. Do not touch that memory until the tensor's wait returns. Each step may pass another address. */
ESPRESSO_API esp_status esp_push(esp_ctx *ctx, uint32_t id, void *grad, esp_stream stream);
/** Like esp_push, for a rank that has no gradient in this step and contributes zeros. `out` gets the mean. */
ESPRESSO_API esp_status esp_push_zero(esp_ctx *ctx, uint32_t id, void *out, esp_stream stream);
/** Blocks until the tensor has its mean. Push all tensors of the step first: ranks communicate in the strategy's order,
 *  so a tensor that is not yet pushed can block others. After 2 s a warning names it. */
ESPRESSO_API esp_status esp_wait(esp_ctx *ctx, uint32_t id);
/** Returns ESP_OK if esp_wait would return at once, else ESP_PENDING, or an error. Does not block. */
ESPRESSO_API esp_status esp_test(esp_ctx *ctx, uint32_t id);
/** Makes later work on `stream` wait for the tensor's mean. Blocks only until all work of the tensor is enqueued on its
 *  device. With a CPU stream it is the same as esp_wait. */
ESPRESSO_API esp_status esp_wait_on(esp_ctx *ctx, uint32_t id, esp_stream stream);
/** Ends this rank's pushes of the step, without waiting. The rank contributes zeros for each tensor that it did not
 *  push. In that case this call and esp_wait_all return ESP_E_STATE, with a message that names the tensors. */
ESPRESSO_API esp_status esp_step_end(esp_ctx *ctx);
/** Calls esp_step_end, blocks until all tensors have their means, and ends the step. */
ESPRESSO_API esp_status esp_wait_all(esp_ctx *ctx);
/** Takes back the gradients of a step that cannot go on: when it returns, the library uses none of them any more. Call
 *  it before their memory is freed, for example while an exception unwinds, and while no other thread uses the context.
 *  The step is lost: later calls return ESP_E_CANCELED, and other ranks get ESP_E_PEER when this rank calls esp_close,
 *  so call it soon. Outside a step it does nothing. */
ESPRESSO_API esp_status esp_cancel(esp_ctx *ctx);
/** Restores the residuals and codec states from before the last step. Call it if the trainer skips that step, as when a
 *  loss scaler finds Inf, after esp_wait_all on all ranks. Needs ESP_DISCARDABLE. */
ESPRESSO_API esp_status esp_discard_step(esp_ctx *ctx);

/** Reports the training loss, such as this rank's mean over its part of the batch. All ranks or some may report it,
 *  in every step or in some, at any time after esp_start. Strategy "auto" compares losses before and after it changed
 *  the strategy, and returns to fp32 if they rise (docs/use/autopilot.md). NaN and Inf are allowed. Does not block. */
ESPRESSO_API esp_status esp_report_loss(esp_ctx *ctx, double loss);
/** Multiplies all residuals by `factor`. When the learning rate changes, pass the old rate divided by the new one.
 *  Call it between steps, on all ranks. */
ESPRESSO_API esp_status esp_feedback_scale(esp_ctx *ctx, float factor);
/** Sets all residuals, and what codecs keep, to zero, as at esp_start. Call it between steps, on all ranks, for example
 *  after parameters were replaced. */
ESPRESSO_API esp_status esp_feedback_clear(esp_ctx *ctx);

/** Changes the strategy to `text`: "fp32", "layerwise", "merged:groups=N", or the text of a strategy file. A residual
 *  that has no place in the new strategy is added to its tensor's next gradient. Collective; call it between steps. */
ESPRESSO_API esp_status esp_strategy_set(esp_ctx *ctx, const char *text);
/** Returns the active strategy as the text of a strategy file. The context owns it until the strategy changes. */
ESPRESSO_API const char *esp_strategy_text(const esp_ctx *ctx);

/** Continues without failed ranks. Call it on every remaining rank after a call has failed with ESP_E_PEER (a rank
 *  died or left) or ESP_E_TIMEOUT (a rank did not answer), while no other thread uses the context. Blocks until the
 *  remaining ranks have connected. Afterwards esp_rank and esp_size count only those ranks, and means are over them;
 *  tensors, residuals and statistics are kept. Some ranks may have finished the failed step and others not: broadcast
 *  the parameters and the optimizer's state from rank 0, and repeat the step. If esp_shrink itself fails with
 *  ESP_E_PEER or ESP_E_TIMEOUT, call it again. ESP_E_UNSUPPORTED: the backend or a sharded tensor does not allow it.
 *  A rank that the others have excluded gets ESP_E_PEER. See docs/use/shrink.md. */
ESPRESSO_API esp_status esp_shrink(esp_ctx *ctx);
/** Continues with the ranks that are there now: without lost ones, as esp_shrink does, and with those that join.
 *  Collective; call it between steps, or between rounds of an outer context (esp_outer_sync ends one), at any time or
 *  after ESP_E_PEER or ESP_E_TIMEOUT, while no other thread uses the context. The first call makes rank 0 listen at the
 *  job's address (esp_config.root) until esp_close. With no change it costs one message to each rank. Members keep
 *  their numbers among themselves, their residuals and statistics; ranks that join get the next numbers.
 *  esp_stats.ranks_lost and ranks_joined say what has changed.
 *  A rank joins with ESP_JOIN in esp_config.flags and the job's address. It adds the same tensors, and if it is an
 * outer context calls esp_outer_open; then esp_start blocks until the job calls esp_reconfigure, or until the timeout.
 *  esp_rank and esp_size are valid after that. It gets the job's strategy and step number; in an outer context also
 *  anchors, momenta and round number, and esp_outer_add then copies the anchor to its parameters. In another context,
 *  all ranks next broadcast parameters and optimizer state from rank 0. Its residuals are zero. esp_start fails with
 *  ESP_E_MISMATCH, and the job goes on without it, if its tensors, options or library version differ. A rank that dies
 *  while it joins does not harm the job. */
ESPRESSO_API esp_status esp_reconfigure(esp_ctx *ctx);

/* Outer loop: ranks train by themselves for `every` optimizer steps (inner steps), and then average how far their
 * parameters have moved. An outer context does that instead of averaging gradients: open it, call esp_outer_open, add
 * the tensors (esp_tensor_add), start it, give all ranks the same parameters, pass each tensor's parameters to
 * esp_outer_add, and call esp_outer_step after every optimizer step. Tensors that are averaged in every step belong to
 * another context of the same job. docs/use/outer.md explains methods, memory and what to save. */
/* esp_outer_desc.flags */
enum { ESP_OUTER_HOST = 1u << 0 /* anchors and outer momenta of tensors on a GPU are in pinned host memory */ };
/** How an outer context synchronizes. Members that are zero take the method's value. Growable: later versions may
 *  append members. */
typedef struct esp_outer_desc {
    uint32_t struct_size; /* 0 means the size in this header */
    uint32_t flags;       /* ESP_OUTER_HOST */
    /** "average" (of the parameters; the default), "diloco", "streaming" or "sparseloco" (docs/use/outer.md), also with
     *  parameters named as the members below: "streaming:every=50,fragments=8". max_every=N instead of every=N lets the
     *  library choose up to N, and so do max_fragments and max_delay. Environment variable ESPRESSO_OUTER overrides it.
     *  What the text sets overrides the members. */
    const char *method;
    uint32_t every; /* inner steps of a round, in which each tensor is synchronized once; the paper calls them H */
    /** The tensors are divided, in their order, into this many parts of about equal size, which are synchronized one
     *  after another, spread over the round. 0 means 1. */
    uint32_t fragments;
    /** The inner steps from the push of a fragment to the use of its mean, during which it is communicated. At most
     *  every / fragments. */
    uint32_t delay;
    float alpha;       /* parameters become alpha * own + (1 - alpha) * common ones; 0 <= alpha < 1; -1 means 0 */
    float lr;          /* learning rate of the outer optimizer, which is SGD; 0 means 1 */
    float momentum;    /* of the outer optimizer; 0 <= momentum < 1; -1 means none */
    uint32_t nesterov; /* 1: Nesterov's momentum */
    uint32_t reserved0;
} esp_outer_desc;
/** Makes the context an outer one. Call it before esp_start, on all ranks alike. Strategy "auto" chooses codecs and
 *  paths by the times of exchanges. With ESP_SHARD, a rank keeps the momentum of its part of a tensor only. ESP_E_ARG:
 * a member or parameter is out of range, and the message says which. */
ESPRESSO_API esp_status esp_outer_open(esp_ctx *ctx, const esp_outer_desc *desc);
/** Names the memory of a tensor's parameters, which has the tensor's dtype, count and device and stays valid until
 *  esp_close, or until another call names other memory. The first call copies the parameters: these become the anchor,
 *  the common parameters from which ranks depart. Call it after esp_start, for each tensor. */
ESPRESSO_API esp_status esp_outer_add(esp_ctx *ctx, uint32_t id, void *params);
/** Counts an inner step; call it after the optimizer, or instead of it if the optimizer skips a step. When a fragment's
 *  turn comes, pushes anchor - parameters, and `delay` calls later applies the outer optimizer to the fragment's mean,
 *  and changes its parameters. Other calls return at once. Blocks if `delay` is too short for the network. It reads and
 *  changes parameters after the work that `stream` has now. If a mean is not finite, all ranks return to the fragment's
 *  anchor. The first call fails with ESP_E_MISMATCH on all ranks if their parameters differed in esp_outer_add. All
 *  ranks make as many calls, unless late ranks may be left out (`window` in docs/use/outer.md). */
ESPRESSO_API esp_status esp_outer_step(esp_ctx *ctx, esp_stream stream);
/** Ends the round early: synchronizes the fragments that are left of it, and gives all ranks the anchors as their
 *  parameters, the same bits. Call it before the model is saved or evaluated and at the end of training. Blocks. */
ESPRESSO_API esp_status esp_outer_sync(esp_ctx *ctx, esp_stream stream);

/* Sharded tensors (ESP_SHARD), for trainers that divide the optimizer's state among ranks. After the wait, the pushed
 * gradient has the mean in this rank's part, and undefined values elsewhere. */
/** Finds the part of a tensor that belongs to rank `rank`: *count elements from *begin on. All ranks get the same until
 *  esp_close. *count may be 0. Without ESP_SHARD it is the whole tensor. `begin` and `count` may be NULL. */
ESPRESSO_API esp_status esp_part(const esp_ctx *ctx, uint32_t id, int32_t rank, uint64_t *begin, uint64_t *count);
/** Collects the parts of a sharded tensor's parameters. `params` has the tensor's `count` floats, on its device; this
 *  rank has written its own part, and gets the other ranks' parts. With esp_tensor_desc.gather, parts are sent
 *  compressed, and every rank, the owner too, gets the decoded values, so that all ranks have the same bits: keep the
 *  exact part elsewhere. Collective; call it between steps. Blocks. Does nothing for a tensor without ESP_SHARD. */
ESPRESSO_API esp_status esp_gather(esp_ctx *ctx, uint32_t id, float *params, esp_stream stream);

/* Saved state: step number, residuals, and what codecs keep. All ranks call these together, between steps. */
/** Writes this rank's file, `PATH.rRANKofSIZE`, under a temporary name, and renames it when it is complete. */
ESPRESSO_API esp_status esp_state_save(esp_ctx *ctx, const char *path);
/** Loads the state that was saved last with this path. If another number of ranks saved it, each rank must be able to
 *  read all files: residuals are redistributed so that their contribution to the next mean (or sum) stays the same.
 *  State that codecs keep starts from zero for ranks that did not exist then or do not exist now. */
ESPRESSO_API esp_status esp_state_load(esp_ctx *ctx, const char *path);
/** Writes `bytes` bytes from `data`, or reads them into `data`, and returns ESP_OK or an error. */
typedef esp_status (*esp_io_fn)(void *user, void *data, uint64_t bytes);
/** Like esp_state_save and esp_state_load, through a function of the caller. */
ESPRESSO_API esp_status esp_state_write(esp_ctx *ctx, esp_io_fn write, void *user);
ESPRESSO_API esp_status esp_state_read(esp_ctx *ctx, esp_io_fn read, void *user);

/** Statistics of this rank since esp_start. Times are in nanoseconds. Growable: set struct_size, as later versions may
 * append members. */
typedef struct esp_stats {
    uint32_t struct_size, reserved0;
    uint64_t steps;
    uint64_t intra_bytes, inter_bytes; /* received from this, and from other machines */
    uint64_t nonfinite;                /* payloads with NaN or Inf; they do not change residuals */
    uint64_t memory_bytes;             /* memory allocated for the active strategy */
    uint64_t compress_ns, decompress_ns, intra_ns, inter_ns; /* total time of such work; of work on a GPU only in
                                                              * steps after the first call */
    /* Sums over all steps. A step lasts from one return of esp_wait_all to the next. */
    uint64_t step_ns;
    uint64_t backward_ns; /* from the step's first push to its last */
    /** After the last push of each step: time in which a link is busy, and time in which only compression runs. */
    uint64_t exposed_communication_ns, exposed_compression_ns;
    uint64_t level_bytes[ESP_LEVELS]; /* bytes received over the links of level 1, 2, ... */
    uint64_t level_ns[ESP_LEVELS];    /* total time of collectives on level 1, 2, ... */
    /** Parts of memory_bytes: slots_bytes for compressed data, feedback_bytes for residuals and codec states. */
    uint64_t slots_bytes, feedback_bytes;
    /** Upper limit of this rank's share of the backends' buffers. Not in memory_bytes. 0 if unknown. */
    uint64_t backend_bytes;
    /** Of an outer context: completed rounds, bytes of anchors, momenta and pushed differences, and the time in which
     *  esp_outer_step waited for communication. */
    uint64_t outer_rounds, outer_bytes, outer_wait_ns;
    uint64_t ranks_lost, ranks_joined; /* by esp_shrink and esp_reconfigure */
    uint64_t outer_missed;             /* fragments from whose means this rank was left out, as it was late (window) */
} esp_stats;
/** Compression error and residual of one tensor. Growable: set struct_size, as later versions may append members. */
typedef struct esp_tensor_stats {
    uint32_t struct_size;
    /** Number of measurements. 0 if the tensor is not compressed, or neither ESPRESSO_STATS nor "auto" measures it. */
    uint32_t samples;
    /** |input - decoded|^2 / |input|^2 at the last measurement. `input` is gradient plus residual. */
    double error;
    double feedback; /* |residual| / |gradient| at the last measurement */
    /** Steps in which this rank pushed the tensor; in which it took part with zeros (esp_push_zero, or no push). */
    uint64_t pushes, zeros;
} esp_tensor_stats;
/** Copies statistics to *out, at most out->struct_size bytes. */
ESPRESSO_API esp_status esp_stats_read(esp_ctx *ctx, esp_stats *out);
ESPRESSO_API esp_status esp_tensor_stats_read(esp_ctx *ctx, uint32_t id, esp_tensor_stats *out);

/** Loads a plugin; call it before esp_start. An argument with '/' is a path. A name is searched as
 *  `libespresso-NAME.so` in esp_config.plugin_path, $ESPRESSO_PLUGIN_PATH, `espresso` and `../lib/espresso`
 *  beside the library or program, and `<prefix>/lib/espresso`. An error lists all paths tried. */
ESPRESSO_API esp_status esp_plugin_load(esp_ctx *ctx, const char *path_or_name);
ESPRESSO_API uint32_t esp_abi_version(void); /* major << 16 | minor */

/* A codec handle compresses without other ranks, for trials. `ctx` may be of a job of one rank. One thread at a time
 * may use a handle. Numbers and payloads are in host memory. */
typedef struct esp_codec_handle esp_codec_handle;
/** Opens codec `spec` for tensors of `count` floats. `feedback` is "none", "residual" or "residual:beta=1,gamma=1";
 *  NULL means the codec's default. */
ESPRESSO_API esp_status esp_codec_open(esp_ctx *ctx, const char *spec, uint64_t count, const char *feedback,
                                       esp_codec_handle **out);
/** Like esp_codec_open, for row-major matrices of rows * cols floats. */
ESPRESSO_API esp_status esp_codec_open_matrix(esp_ctx *ctx, const char *spec, uint64_t rows, uint64_t cols,
                                              const char *feedback, esp_codec_handle **out);
ESPRESSO_API void esp_codec_close(esp_codec_handle *h);
/** Returns the most bytes that one esp_compress can write. */
ESPRESSO_API uint64_t esp_compress_bound(const esp_codec_handle *h);
/** Compresses `count` floats into `out` of `capacity` bytes, as one step, and sets *used to the bytes written. */
ESPRESSO_API esp_status esp_compress(esp_codec_handle *h, const float *in, uint64_t count, void *out, uint64_t capacity,
                                     uint64_t *used);
/* ESP_OUT_SET overwrites the output with the decoded numbers; ESP_OUT_SUM adds them to it. */
enum { ESP_OUT_SET = 0, ESP_OUT_SUM = 1 };
/** Decodes `bytes` bytes of esp_compress into `count` floats. `mode` is ESP_OUT_SET or ESP_OUT_SUM. */
ESPRESSO_API esp_status esp_decompress(esp_codec_handle *h, const void *in, uint64_t bytes, float *out, uint64_t count,
                                       uint32_t mode);
/** Returns the residual after the last esp_compress: `count` floats that the handle owns, or NULL if it keeps none. */
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
