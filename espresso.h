/* espresso.h: decides, tensor by tensor, how gradients are compressed and synchronised, and does it.
 *
 * Do this, in C or C++:
 *
 *     gcc -O3 -I. -c espresso.c                  // once: the library, compiled as C (about 12 seconds)
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
 *     ESPRESSO_IMPLEMENTATION   this file also carries the code, and takes those 12 seconds (C only; not with -ffast-math)
 *     ESP_NO_PLANNER            leave planner and autopilot out: no esp_plan_*, no strategy auto, and half the time
 *     ESPRESSO_STATIC           everything is private to this file
 *     ESP_NO_BUILTIN            leave the built-in codecs and backends out; they come as plugins
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

/* ---- 1. status: 0 ok, >0 not an error, <0 error; values are never renumbered ----------------- */
typedef int32_t esp_status;
/* name, value, text: one row per status, expanded by the enum and by esp_status_text() */
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
    X(ESP_E_TIMEOUT, -12, "a rank is late")                                                                            \
    X(ESP_E_MISMATCH, -13, "ranks disagree")
#define ESP__STATUS_ENUM(name, value, text) name = value,
enum { ESP_STATUS_LIST(ESP__STATUS_ENUM) ESP__STATUS_END = 2 };

/* ---- 2. vocabulary: fixed-width ints only; no bool, no bare enum in a struct -------------------
 * A growable struct opens with struct_size and may get new members at its end; a frozen one never changes. */
typedef uint32_t esp_dtype;
enum { ESP_F32 = 1, ESP_F16 = 2, ESP_BF16 = 3 };
typedef uint32_t esp_devkind;
enum { ESP_CPU = 1, ESP_CUDA = 2 };
#define ESP_BIT(k) (1u << (k))

/** A device. All zero means the CPU. Frozen. */
typedef struct esp_device {
    esp_devkind kind;
    int32_t ordinal;
} esp_device;

/** A queue whose work runs in order. All zero is the CPU: what is enqueued there is done when the call returns.
 *  On CUDA, native is a cudaStream_t. Frozen. */
typedef struct esp_stream {
    esp_device dev;
    void *native;
} esp_stream;

/** Memory of `bytes` bytes that the caller owns. Frozen. */
typedef struct esp_buf {
    void *ptr;
    uint64_t bytes;
    esp_device dev;
} esp_buf;

/** A flat array of numbers, as a codec sees it. Growable. */
typedef struct esp_tensor {
    uint32_t struct_size;
    esp_dtype dtype;
    uint64_t key;   /* 64-bit hash of the name of the whole tensor, or of the names in a group      */
    uint64_t count; /* elements, flat                                                               */
    esp_buf data;
    uint64_t rows, cols; /* 0: not a matrix                                                         */
} esp_tensor;

/** One compressed part: header (section 7) and body in one buffer. Frozen, so arrays of it are safe. */
typedef struct esp_payload {
    esp_buf data;   /* compress: bytes is the capacity, at least bound(); decompress: the bytes there */
    uint64_t *used; /* compress writes header + body bytes here; on the same device as data          */
} esp_payload;

/* ---- 3. what the host gives a plugin (a plugin links to nothing of ours) ------------------------ */
enum { ESP_LOG_ERROR = 1, ESP_LOG_WARN = 2, ESP_LOG_INFO = 3, ESP_LOG_DEBUG = 4 };
typedef struct esp_log_event {
    uint32_t struct_size;
    int32_t level;
    esp_status status;
    int32_t line;
    const char *component, *message, *file;
} esp_log_event;

/** Services of the host. Every call may come from any thread. The table is valid while its context is open.
 *  Growable: check with ESP_HAS before calling a member added after version 1.0. */
typedef struct esp_host {
    uint32_t struct_size, abi_major, abi_minor, reserved0;
    void *user;
    /** `bytes` bytes on `d`, aligned to `align` (a power of two); NULL: out of memory. free_ takes the same `bytes`. */
    void *(*alloc)(void *user, esp_device d, uint64_t bytes, uint64_t align);
    void (*free_)(void *user, esp_device d, void *p, uint64_t bytes);
    /** Passes one event to the log, and keeps the text of an error as the detail of the failing call. */
    void (*log)(void *user, const esp_log_event *ev);
    /** Runs body over [0, n) in pieces on the compression workers and returns when all pieces are done. Pieces begin
     *  at multiples of `grain`. A body must not call parallel_for. */
    void (*parallel_for)(void *user, uint64_t n, uint64_t grain, void (*body)(void *arg, uint64_t begin, uint64_t end),
                         void *arg);
} esp_host;

/* ---- 4. codec table ----------------------------------------------------------------------------- */
enum {
    ESP_CODEC_FIXED_SIZE = 1u << 0,     /* compressed size follows from count alone                    */
    ESP_CODEC_HAS_STATE = 1u << 1,      /* bound() may ask for state: memory kept from step to step    */
    ESP_CODEC_REDUCIBLE = 1u << 2,      /* bodies can be summed undecoded, as arrays of reduce_dtype   */
    ESP_CODEC_OWN_FEEDBACK = 1u << 3,   /* keeps its method's own feedback (DGC): ESP_ARG_OWN_MEMORY   */
    ESP_CODEC_DETERMINISTIC = 1u << 4,  /* draws no random numbers                                     */
    ESP_CODEC_NEEDS_MATRIX = 1u << 5,   /* uses the tensor's rows and columns                          */
    ESP_CODEC_FUSED_RESIDUAL = 1u << 6, /* reads and writes args->residual itself; otherwise the host does */
    ESP_CODEC_NO_FEEDBACK = 1u << 7,    /* default feedback is "none" (fp16, unbiased methods)         */
    ESP_CODEC_ROUNDING = 1u << 8        /* only rounds each number (fp16, bf16); any other counts as lossy */
};
enum { ESP_OUT_SET = 0, ESP_OUT_SUM = 1 };
enum {
    ESP_ARG_OWN_MEMORY = 1u << 0 /* this Comp reads the rank's own gradient: use the method's own feedback. A call
                                    with a residual but without this flag uses plain residual feedback   */
};

/** Sizes for one part of a unit. Growable: a codec fills members only up to the caller's struct_size. */
typedef struct esp_bound {
    uint32_t struct_size, align;
    uint64_t payload_bytes; /* header + body, at most; never falls as count rises                      */
    uint64_t scratch_bytes; /* needed by one compress or decompress call; lost when it returns         */
    uint64_t state_bytes;   /* kept between steps, zero at the start; saved in state files             */
} esp_bound;

/** Everything one compress or decompress call may need. Growable.
 *  compress: payload[0] := code(beta * residual + gamma * tensor); residual := what the payload does not carry.
 *  decompress: tensor := (mode SUM: tensor; SET: 0) + scale * payload[0] + scale * payload[1] ..., added in that order. */
typedef struct esp_codec_args {
    uint32_t struct_size;
    uint32_t mode;       /* decompress: ESP_OUT_SET or ESP_OUT_SUM                                   */
    uint64_t step, seed; /* same on every rank                                                       */
    uint64_t offset;     /* index of the part's first element in the whole tensor, or group          */
    uint32_t source; /* lowest rank with the same numbers: these ranks draw the same random numbers, others differ */
    uint32_t comp_index; /* which Comp of the option, from 0                                         */
    uint32_t flags;      /* ESP_ARG_*                                                                */
    uint32_t round;      /* from 0, of the codec's n_rounds                                          */
    uint32_t n_payloads; /* decompress: how many payloads are summed (compress: 1)                   */
    uint32_t n_reduced;  /* compress: over how many ranks a collective will sum this body; 1: none   */
    float beta, gamma;   /* compress, with a residual: see above                                     */
    float scale;         /* decompress: see above; always a power of two; 0 means 1                  */
    uint32_t reserved0;
    float *residual;                /* count floats, or NULL: no feedback                                       */
    const esp_buf *state, *scratch; /* host-owned, sized by bound(); NULL where 0 bytes were asked for */
    esp_tensor *tensor;             /* compress: in; decompress: out. f32                                       */
    esp_payload *payload;           /* compress: out; decompress: array of n_payloads                           */
    esp_stream stream;
} esp_codec_args;

/** One codec. Threads: open/close are serialised by the host; bound and cost_ns are re-entrant; compress and
 *  decompress may run at the same time for different tensors, so `self` must not change in them.
 *  Memory: only open allocates. Errors: tell host->log what is wrong, then return the status. */
typedef struct esp_codec {
    uint32_t struct_size;
    uint32_t wire_version; /* of the body's format; ranks must agree                                   */
    uint64_t caps;         /* ESP_CODEC_*                                                              */
    uint32_t dtypes;       /* ESP_BIT(ESP_F32) | ...                                                   */
    uint32_t devices;      /* ESP_BIT(ESP_CPU) | ...                                                   */
    const char *name, *summary;
    const char *params;         /* "ratio=0.01,..." with defaults, for help and errors; NULL: takes none */
    const char *default_option; /* text form for strategy "layerwise"; NULL: the library's choice      */
    uint32_t n_rounds;          /* 1 for most                                                          */
    esp_dtype reduce_dtype;     /* with REDUCIBLE                                                      */
    /** params: "key=val,key=val" or "" (never NULL). May keep `h`. ESP_E_ARG for an unknown key or bad value. */
    esp_status (*open)(const esp_host *h, const char *params, void **self);
    void (*close)(void *self);
    /** Sizes for a part like `like` (its data is not read). */
    esp_status (*bound)(void *self, const esp_tensor *like, esp_bound *out);
    /** Enqueues on args->stream. ESP_E_TOO_SMALL (nothing written past the end) if the payload's capacity is short. */
    esp_status (*compress)(void *self, const esp_codec_args *a);
    /** Checks everything in the payloads before it writes: ESP_E_CORRUPT, and no write out of bounds. */
    esp_status (*decompress)(void *self, const esp_codec_args *a);
    /* optional from here: test with ESP_HAS */
    /** Runs once on the final sum of `ranks` contributions, for example a majority vote. `count` floats, in place. */
    esp_status (*finalize)(void *self, float *sum, uint64_t count, uint32_t ranks, esp_stream s);
    /** Estimated nanoseconds of one call, for planning before anything was measured. */
    esp_status (*cost_ns)(void *self, const esp_tensor *like, esp_device d, double *compress_ns, double *decompress_ns);
} esp_codec;

/* ---- 5. communication backend table --------------------------------------------------------------- */
enum {
    ESP_BACKEND_STREAM_ORDERED = 1u << 0,  /* completes in stream order (NCCL)                           */
    ESP_BACKEND_NEEDS_PROGRESS = 1u << 1,  /* moves data only inside test() or progress()                */
    ESP_BACKEND_VARLEN = 1u << 2,          /* moves only the used bytes of payload slots                 */
    ESP_BACKEND_THREAD_MULTIPLE = 1u << 3, /* allows calls from several threads at once; the library makes none yet */
    ESP_BACKEND_SCALE = 1u << 4,           /* honours esp_coll.scale                                     */
    ESP_BACKEND_PACED = 1u << 5            /* emulates a link: takes the params inter= and latency=      */
};
enum {
    ESP_COLL_ALLREDUCE = 1,
    ESP_COLL_ALLGATHER = 2,
    ESP_COLL_ALLTOALL = 3,
    ESP_COLL_REDUCE_SCATTER = 4,
    ESP_COLL_BROADCAST = 5,
    ESP_COLL_GATHER = 6,
    ESP_COLL_REDUCE = 7
};

/** Who takes part. Growable. Valid during open() only, except `parent`. */
typedef struct esp_group {
    uint32_t struct_size;
    int32_t rank, size;     /* inside this group                                                        */
    int32_t scope;          /* 0 all, 1 intra (one machine), 2 inter (same local index on every machine) */
    const int32_t *machine; /* [size]: machine index of every rank of the group                         */
    void *parent;           /* the same job's comm of scope 0, which is opened first; NULL in scope 0   */
    /** Blocking exchange on this group: `bytes` from each rank, out is [size][bytes] in rank order. */
    esp_status (*oob_allgather)(void *user, const void *in, void *out, uint64_t bytes);
    void *user;
} esp_group;

/** One collective. Growable. An *item* is one number of `dtype`, or one payload slot of `slot_bytes` bytes where
 *  slot_bytes is not 0. `count` is the number of items in the whole buffer. Over n ranks, part p of them is
 *  [p c, min(count, (p+1) c)) with c = ceil(count / n), so that the last parts may be short or empty.
 *
 *     op              src            dst                     may alias
 *     ALLREDUCE       count          count, summed           dst == src
 *     REDUCE_SCATTER  count          part(rank), summed      dst == src + own part's offset
 *     REDUCE          count          count at root           dst == src
 *     ALLGATHER       part(rank)     count                   src == dst + own part's offset
 *     BROADCAST       count at root  count elsewhere         dst == src
 *     GATHER          part(rank)     count at root           no
 *     ALLTOALL        n equal parts  n parts in rank order   no       (n divides count)
 *
 *  Sums: f32; halves are summed in f32 and rounded once. shm and loop sum in rank order, except in a flat collective over
 *  an emulated link: there a ring sums in ring order and rounds halves at every hop, as rings on real links do. Every
 *  backend gives the same bits on all ranks. Until the request is done, src must not change; afterwards nobody reads it. */
typedef struct esp_coll {
    uint32_t struct_size, op;
    esp_dtype dtype; /* of sums and raw copies; 0 with slots                                            */
    int32_t root;
    uint64_t count;      /* in items, see above                                                         */
    uint64_t slot_bytes; /* 0: plain numbers. Otherwise src and dst are arrays of payload slots; only the used bytes
                            of each (32 + the header's body bytes) need to move                         */
    esp_buf src, dst;    /* ptr may be NULL where the table above gives the rank nothing                */
    float scale;         /* sums: the result is multiplied by it; 0 means 1                             */
    uint32_t reserved0;
} esp_coll;

/** Bytes that this rank received from others so far. Growable. */
typedef struct esp_traffic {
    uint32_t struct_size, reserved0;
    uint64_t intra_bytes, inter_bytes; /* from ranks of its own machine, and of others                  */
} esp_traffic;

/** One backend. Threads: all calls on one comm (and on comms with the same parent) come from one thread at a time,
 *  except wake and abort, which may come from any thread at any time. Nothing blocks but open and close. */
typedef struct esp_backend {
    uint32_t struct_size, reserved0;
    uint64_t caps;    /* ESP_BACKEND_*                                                                  */
    uint32_t colls;   /* ESP_BIT(ESP_COLL_ALLREDUCE) | ...                                              */
    uint32_t devices; /* ESP_BIT(ESP_CPU) | ...                                                         */
    const char *name, *summary;
    const char *params; /* as in esp_codec                                                              */
    /** *score 0: cannot run here. The default backend is the one with the highest score. */
    esp_status (*probe)(const esp_host *h, int32_t *score);
    esp_status (*open)(const esp_host *h, const esp_group *g, const char *params, void **comm);
    void (*close)(void *comm); /* never blocks for a peer that is gone                                  */
    /** Begins a collective. All ranks of the group start the same collectives in the same order. `c` is copied. */
    esp_status (*start)(void *comm, const esp_coll *c, esp_stream s, void **req);
    /** Moves data. Returns ESP_OK (done, and `req` is freed), ESP_PENDING or an error, within about 0.2 ms. */
    esp_status (*test)(void *comm, void *req);
    /* optional from here: test with ESP_HAS */
    /** Sleeps until this comm, or one with the same parent, may have changed; until wake(); or for timeout_us. */
    esp_status (*progress)(void *comm, uint64_t timeout_us);
    void (*wake)(void *comm);
    /** Makes every pending and later call on this comm return ESP_E_PEER soon. */
    esp_status (*abort)(void *comm);
    /** The rank in the group for which `req` waits; -1: not known. */
    int32_t (*late)(void *comm, void *req);
    esp_status (*traffic)(void *comm, esp_traffic *out);
    esp_status (*reg)(void *comm, const esp_buf *b, void **mh); /* reserved, as dereg: neither is called yet */
    esp_status (*dereg)(void *comm, void *mh);
} esp_backend;

/* ---- 6. plugin entry ---------------------------------------------------------------------------------- */
/** A plugin's codecs and backends. Growable; in static storage: a plugin that was accepted is never unloaded. */
typedef struct esp_plugin {
    uint32_t struct_size; /* must be set                                                                */
    uint32_t n_codecs, n_backends, reserved0;
    const char *name, *version, *license;
    const esp_codec *const *codecs;
    const esp_backend *const *backends;
} esp_plugin;
typedef const esp_plugin *(*esp_plugin_fn)(const esp_host *h);

/** Defines the plugin's one exported function. Built with ESPRESSO_STATIC_PLUGINS it is named
 *  espresso_plugin_v1_<id>, to be listed in esp_config.builtin. The entry must not start threads or touch a device. */
#ifdef ESPRESSO_STATIC_PLUGINS
#define ESPRESSO_PLUGIN_ENTRY(id)                                                                                      \
    ESP__C const esp_plugin *espresso_plugin_v1_##id(const esp_host *h);                                               \
    const esp_plugin *espresso_plugin_v1_##id(const esp_host *h)
#else
#define ESPRESSO_PLUGIN_ENTRY(id)                                                                                      \
    ESP__C ESPRESSO_EXPORT const esp_plugin *espresso_plugin_v1(const esp_host *h);                                    \
    ESPRESSO_EXPORT const esp_plugin *espresso_plugin_v1(const esp_host *h)
#endif

/* ---- 7. payload header: 32 bytes, little-endian, in front of every payload ----------------------------- */
#define ESP_PAYLOAD_HEADER 32u
enum {
    ESP_PAYLOAD_NONFINITE = 1u << 0, /* the input held NaN or Inf: decoding gives NaN everywhere         */
    ESP_PAYLOAD_EMPTY = 1u << 1      /* carries nothing: decoding adds nothing                           */
};
typedef struct esp_payload_header {
    uint32_t codec; /* esp_name_hash of the codec's name                                                */
    uint16_t wire_version, flags;
    uint64_t count;      /* elements that the payload decodes to                                        */
    uint64_t body_bytes; /* after the header, without padding                                           */
    uint64_t aux;        /* for the codec's own use: 0, or for example the key of a random draw         */
} esp_payload_header;

/** The id of a codec: the 32-bit FNV-1a hash of its name. */
static inline uint32_t esp_name_hash(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ ESP__CAST(unsigned char, *name)) * 16777619u;
    return h;
}
/** Bytes of a payload slot for a body of `body` bytes: the header, and the body rounded up to a multiple of 32. */
static inline uint64_t esp_payload_capacity(uint64_t body) { return ESP_PAYLOAD_HEADER + (body + 31u) / 32u * 32u; }
/** Writes the header and *used. ESP_E_TOO_SMALL, nothing written, if the capacity is short. */
static inline esp_status esp_payload_begin(esp_payload *p, const esp_payload_header *h) {
    if (p->data.bytes < ESP_PAYLOAD_HEADER || p->data.bytes - ESP_PAYLOAD_HEADER < h->body_bytes)
        return ESP_E_TOO_SMALL;
    memcpy(p->data.ptr, h, ESP_PAYLOAD_HEADER);
    if (p->used) *p->used = ESP_PAYLOAD_HEADER + h->body_bytes;
    return ESP_OK;
}
/** Reads and checks a header: id, wire version, count, and that the body lies inside the buffer. */
static inline esp_status esp_payload_read(const esp_payload *p, uint32_t codec, uint32_t wire_version, uint64_t count,
                                          esp_payload_header *h) {
    if (!p->data.ptr || p->data.bytes < ESP_PAYLOAD_HEADER) return ESP_E_CORRUPT;
    memcpy(h, p->data.ptr, ESP_PAYLOAD_HEADER);
    if (h->codec != codec || h->wire_version != wire_version || h->count != count ||
        h->body_bytes > p->data.bytes - ESP_PAYLOAD_HEADER || h->flags > 3u)
        return ESP_E_CORRUPT;
    return ESP_OK;
}
/** First byte of the body. */
static inline void *esp_payload_body(const esp_payload *p) {
    return ESP__CAST(unsigned char *, p->data.ptr) + ESP_PAYLOAD_HEADER;
}

/** Walks "key=val,key=val" (values may nest in parentheses): fills key and val, moves *at, and returns 1; 0 at the
 *  end; -1 where the text is malformed or too long. */
static inline int esp_params_next(const char **at, char *key, size_t key_cap, char *val, size_t val_cap) {
    const char *p = *at;
    size_t n = 0;
    int depth = 0;
    while (*p == ' ' || *p == ',') p++;
    if (!*p) return 0;
    for (; *p && *p != '=' && *p != ','; p++) {
        if (n + 1 >= key_cap) return -1;
        key[n++] = *p;
    }
    key[n] = 0;
    if (*p != '=' || n == 0) return -1;
    for (p++, n = 0; *p && (depth || *p != ','); p++) {
        depth += (*p == '(') - (*p == ')');
        if (depth < 0 || n + 1 >= val_cap) return -1;
        val[n++] = *p;
    }
    val[n] = 0;
    *at = p;
    return depth ? -1 : 1;
}

/* ---- 8. application API ---------------------------------------------------------------------------------- */
typedef struct esp_ctx esp_ctx;
enum {
    ESP_ALLOW_OVERRIDE = 1u << 0, /* a later plugin may replace a codec or backend of the same name      */
    ESP_DISCARDABLE = 1u << 1     /* keep a copy of the feedback state so that esp_discard_step works    */
};

/** Everything is optional: all-zero is valid, and so are empty strings. Strings are copied. The environment overrides: ESPRESSO_BACKEND,
 *  ESPRESSO_CODEC, ESPRESSO_STRATEGY, ESPRESSO_PLUGIN_PATH, ESPRESSO_LOG, ESPRESSO_TRACE, ESPRESSO_STATS, ESPRESSO_TIMEOUT_MS,
 *  ESPRESSO_WORKERS, ESPRESSO_ROOT, ESPRESSO_RANK, ESPRESSO_SIZE, ESPRESSO_MACHINE. Growable. */
typedef struct esp_config {
    uint32_t struct_size;         /* 0 means "this header's size"                                               */
    uint32_t flags;               /* ESP_ALLOW_OVERRIDE | ESP_DISCARDABLE                                       */
    const char *backend;          /* "shm", "loop", "shm:inter=1gbit,latency=50us"; NULL: highest probe score   */
    const char *codec;            /* "topk:ratio=0.01"; NULL: none; for "auto" several, ';' between             */
    const char *strategy;         /* "fp32", "layerwise", "auto" (docs/autopilot.md) or a strategy file; NULL: layerwise
                                     with a codec, else fp32                                                     */
    const char *plugin_path;      /* directories, ':' between                                      */
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
    const char *stats;    /* file for statistics while training; NULL: none. See docs/stats.md   */
} esp_config;

enum {
    ESP_SUM = 1u << 0, /* the result is the sum, not the mean                                           */
    ESP_RAW = 1u << 1  /* the tensor is never compressed                                                */
};
/** One tensor. Strings are copied. Growable; struct_size 0 means "this header's size". */
typedef struct esp_tensor_desc {
    uint32_t struct_size;
    esp_dtype dtype; /* 0: ESP_F32                                                                      */
    const char *name;
    uint64_t count, rows, cols; /* elements; rows and cols 0: not a matrix                              */
    esp_device device;
    uint32_t flags, reserved0;
    const char *codec, *option; /* NULL: the strategy decides                                           */
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
        exposed_compression_ns; /* after the last push: a link is busy; no link is, but compression runs */
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
/** Lends `grad` (`count` elements of the tensor's dtype) to the library until the tensor's wait returns, which leaves the
 *  mean in it. Returns at once. Push each tensor once a step, from any thread; `grad` may differ from step to step. */
ESPRESSO_API esp_status esp_push(esp_ctx *ctx, uint32_t id, void *grad, esp_stream stream);
/** As esp_push, for a rank without a gradient: it contributes zeros, and `out` gets the mean. */
ESPRESSO_API esp_status esp_push_zero(esp_ctx *ctx, uint32_t id, void *out, esp_stream stream);
/** Waits for one pushed tensor. Push all tensors of the step first: collectives run in the strategy's order, so that a
 *  tensor that is not yet pushed may delay the one that is waited for (a warning names it after 2 s). */
ESPRESSO_API esp_status esp_wait(esp_ctx *ctx, uint32_t id);
/** Does not wait: ESP_OK where esp_wait would return at once, ESP_PENDING, or the error. */
ESPRESSO_API esp_status esp_test(esp_ctx *ctx, uint32_t id);
/** Lets later work on `stream` wait for the tensor without blocking the caller. A CPU stream: the same as esp_wait. */
ESPRESSO_API esp_status esp_wait_on(esp_ctx *ctx, uint32_t id, esp_stream stream);
/** No more pushes in this step: a tensor never pushed contributes zeros, and this rank gets ESP_E_STATE naming it. */
ESPRESSO_API esp_status esp_step_end(esp_ctx *ctx);
/** Ends the step: calls esp_step_end if the caller did not, and waits for every tensor. */
ESPRESSO_API esp_status esp_wait_all(esp_ctx *ctx);
/** Takes back the last step's change of the feedback, for example when a loss scaler discards the step. After
 *  esp_wait_all, on all ranks or none. Needs ESP_DISCARDABLE in esp_config.flags. */
ESPRESSO_API esp_status esp_discard_step(esp_ctx *ctx);

/* Uncompressed helpers. All ranks call them in the same order, between steps. They block. `data` is in and out. */
ESPRESSO_API esp_status esp_broadcast(esp_ctx *ctx, void *data, uint64_t bytes, int32_t root);
ESPRESSO_API esp_status esp_allreduce(esp_ctx *ctx, float *data, uint64_t count); /* the sum */
ESPRESSO_API esp_status esp_barrier(esp_ctx *ctx);
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
ESPRESSO_API void esp_codec_close(esp_codec_handle *h);
/** Bytes that esp_compress may need for `count` elements. */
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
#define ESPRESSO_IMPL_DONE
#include "espresso_impl/espresso_impl.c"
#endif
