/* abi.h: the interface of plugins: codecs, backends and devices. A plugin includes "espresso.h", which includes this
 * file, and links to nothing of this library. The library checks every member of a table, and refuses a plugin that
 * needs something it does not have; the message names the member. docs/design/abi.md says what may still change.
 *
 * Contents: numbers and memory; host services; codecs; backends; devices; the plugin's entry; payloads; parameters.
 *
 * In this file the *host* is the library that has loaded the plugin. Unless a comment differs, pointers are valid
 * during the call only, and memory belongs to the caller. Functions return ESP_OK or an error (ESP_E_*). A growable
 * struct may get more members at its end in later versions; whoever provides one sets its struct_size. */

#define ESP_ABI_MAJOR 1u /* part of the name of a plugin's entry function */
#define ESP_ABI_MINOR 0u /* for information only: struct_size says which members a table has */

#if defined(__GNUC__)
#define ESPRESSO_EXPORT __attribute__((visibility("default")))
#else
#define ESPRESSO_EXPORT
#endif
#ifdef __cplusplus
#define ESP__C extern "C"
#define ESP__CAST(T, x) static_cast<T>(x)
#else
#define ESP__C
#define ESP__CAST(T, x) ((T)(x))
#endif

/** True if table `t`, a struct T, has member `f` (its struct_size is large enough) and `f` is not 0. */
#define ESP_HAS(T, t, f) ((t) != NULL && (t)->struct_size >= offsetof(T, f) + sizeof((t)->f) && (t)->f)
/** The bit that stands for `k` in a set, as in ESP_BIT(ESP_F32) | ESP_BIT(ESP_BF16). */
#define ESP_BIT(k) (1u << (k))
/** Bits 0 to 31 of `caps` change how the host must call a table; a host refuses a table with bits that it does not
 *  know. Bits from 32 on (ESP_OFFER) are optional features, which a host may ignore. */
#define ESP_OFFER(k) ((uint64_t)1 << (32 + (k)))

/* ---- numbers and memory ------------------------------------------------------------------------------------------ */

/** Memory of `bytes` bytes on device `dev`. Frozen. */
typedef struct esp_buf {
    void *ptr;
    uint64_t bytes;
    esp_device dev;
} esp_buf;

/** A part of a tensor, which a codec gets as an array of numbers. Growable: later versions may append members. */
struct esp_tensor {
    uint32_t struct_size;
    esp_dtype dtype;
    uint64_t key;   /* hash of the tensor's name, or of all names of a group of tensors */
    uint64_t count; /* elements of this part */
    esp_buf data;
    uint64_t rows, cols; /* row-major; 0 if it is no matrix */
};

/** One compressed part of a tensor: a buffer with a header (esp_payload_header) and then the compressed data, called
 *  body. Frozen, so arrays of it are allowed. */
typedef struct esp_payload {
    /** For compress, data.bytes is the capacity, at least what bound() returned. For decompress, it is the size of
     *  header and body. */
    esp_buf data;
    /** Where compress writes the size of header and body. It lies on the device of `data`. */
    uint64_t *used;
} esp_payload;

/* ---- host services ----------------------------------------------------------------------------------------------- */
/** A message for the log. Growable: later versions may append members. */
typedef struct esp_log_event {
    uint32_t struct_size;
    int32_t level; /* ESP_LOG_* */
    esp_status status;
    int32_t line; /* line in `file` */
    const char *component, *message, *file;
} esp_log_event;

struct esp_codec;
struct esp_payload_header;
struct esp_device_table;
/** Functions of the library for plugins. Any thread may call them while the context exists. Growable: test members that
 *  were added after version 1.0 with ESP_HAS. */
struct esp_host {
    uint32_t struct_size, abi_major, abi_minor, reserved0;
    void *user; /* first argument of every function */
    /** Allocates `bytes` bytes on device `d`, aligned to `align`, a power of two. Returns NULL if memory is short. */
    void *(*alloc)(void *user, esp_device d, uint64_t bytes, uint64_t align);
    /** Frees what alloc returned, with the same `d` and `bytes`. */
    void (*free_)(void *user, esp_device d, void *p, uint64_t bytes);
    /** Logs a message. At ESP_LOG_ERROR it also becomes part of the failing call's error message. A log of the program
     *  may be called by any thread and with a lock held: calls with the same context fail in it with ESP_E_STATE. */
    void (*log)(void *user, const esp_log_event *ev);
    /** Divides [0, n) into ranges that begin at multiples of `grain`, runs `body` for each on the compression
     *  threads, and returns when all have ended. `body` must not call parallel_for. */
    void (*parallel_for)(void *user, uint64_t n, uint64_t grain, void (*body)(void *arg, uint64_t begin, uint64_t end),
                         void *arg);
    /** For codecs that wrap another codec: open it in open(), and close it in close(). `spec` is the inner codec, such
     *  as "topk:ratio=0.01". If codec_open fails, return its status; the library keeps the message. At most 4 codecs
     *  nest. */
    esp_status (*codec_open)(void *user, const char *spec, const struct esp_codec **table, void **self);
    void (*codec_close)(void *user, const struct esp_codec *table, void *self);
    /** Returns the open device `d`, where all zero is the CPU. Do not close it. Returns ESP_E_UNSUPPORTED if no loaded
     *  plugin has this device. */
    esp_status (*device)(void *user, esp_device d, const struct esp_device_table **table, void **self);
    /** Returns nonzero if the library has started the calling thread. Such a thread is of no other use to the program,
     *  so a plugin may change its settings for good, such as its current device. */
    int (*own_thread)(void *user);
};

/* ---- codecs ------------------------------------------------------------------------------------------------------ */
/* esp_codec.caps */
enum {
    ESP_CODEC_HAS_STATE = 1u << 0,      /* may need memory that lasts from step to step */
    ESP_CODEC_REDUCIBLE = 1u << 1,      /* collectives can reduce its payloads without decoding them */
    ESP_CODEC_OWN_FEEDBACK = 1u << 2,   /* keeps what compression leaves out itself: see ESP_ARG_OWN_MEMORY */
    ESP_CODEC_DETERMINISTIC = 1u << 3,  /* draws no random numbers */
    ESP_CODEC_NEEDS_MATRIX = 1u << 4,   /* compresses matrices, which the host divides only between rows */
    ESP_CODEC_FUSED_RESIDUAL = 1u << 5, /* compress computes the new residual, so the host does not */
    ESP_CODEC_NO_FEEDBACK = 1u << 6,    /* uses error feedback only if parameter feedback= asks for it */
    ESP_CODEC_LISTS = 1u << 7,          /* compress and decompress accept several parts in one call */
    ESP_CODEC_WRAPPER = 1u << 8         /* wraps another codec, given by parameter of=; must have traits() */
};
/* Set in esp_codec_args.flags if compress gets the rank's own gradient and a codec with OWN_FEEDBACK must apply its
 * error feedback. Otherwise such a codec uses args->residual like any other codec. */
enum { ESP_ARG_OWN_MEMORY = 1u << 0 };

enum { ESP_ROUNDS_MAX = 4 };
/* Set in esp_round.flags if only an allreduce may combine the payloads of a REDUCIBLE codec's last round. They are
 * never sent to other ranks and decoded there one by one. */
enum { ESP_ROUND_ALLREDUCE = 1u << 0 };
/** One of a codec's rounds. A codec with n rounds, such as PowerSGD with n = 2, compresses n times in a step. After
 *  each round but the last, collectives combine the payloads of all ranks that take part, and the next round gets the
 *  result in args->reduced. Codecs with several rounds need ESP_CODEC_FUSED_RESIDUAL. Frozen. */
typedef struct esp_round {
    esp_reduce op; /* operation by which collectives combine payloads; 0 if they never do (last round only) */
    esp_dtype dtype;
    uint32_t flags; /* ESP_ROUND_* */
    uint32_t reserved0;
} esp_round;

/** Memory that one round of compression needs for one part of a tensor, in bytes. Growable: bound() writes at most
 *  struct_size bytes. */
struct esp_bound {
    uint32_t struct_size;
    /** dtype of the payload's numbers if collectives sum them, or 0 for the dtype in esp_round. It may depend on the
     *  number of ranks, so that sums do not overflow. */
    esp_dtype dtype;
    /** Largest size of header and body. Must not fall as `count` rises. In a round before the last, 0 means that the
     *  part does not need the round. It sends only a header if other parts of its tensor need the round. */
    uint64_t payload_bytes;
    uint64_t scratch_bytes; /* temporary memory for one call */
    /** Memory that lasts from step to step, zero at first, and saved in state files. The host uses the size that
     *  bound() returns for round 0. */
    uint64_t state_bytes;
};

/** Properties of an opened codec that may depend on its parameters. Before it calls traits(), the host copies them from
 *  esp_codec. Growable: later versions may append members. */
typedef struct esp_traits {
    uint32_t struct_size;
    uint32_t wire_version; /* version of the payload's format; a wrapper combines its own with the inner codec's */
    uint64_t caps;
    uint32_t n_rounds, reserved0;
    const esp_round *rounds;
    const char *default_option;
} esp_traits;

/** Bytes of a payload, header included:
 *      fixed + quantum * ceil((per_element * count + per_row * rows + per_col * cols) / quantum)
 *  A quantum of 0 means 1. Frozen. */
typedef struct esp_payload_size {
    double fixed, quantum, per_element, per_row, per_col;
} esp_payload_size;
/** Time of one compress (all rounds) and of one decompress of one payload, for `elements` elements. Frozen. */
typedef struct esp_codec_time {
    double elements, compress_ns, decompress_ns;
} esp_codec_time;
/* The times in esp_codec_model are for a core and a CUDA device with this memory bandwidth, in bytes per nanosecond.
 * The host expects a device with twice the bandwidth to process twice as many elements in the same time. */
enum { ESP_MODEL_CORE_RATE = 8, ESP_MODEL_CUDA_RATE = 800 };
enum { ESP_MODEL_TIMES = 8 };
/* Set in esp_codec_model.flags if the codec does more than round numbers to a shorter format. Strategy "auto" watches
 * the training loss when it uses such a codec. */
enum { ESP_MODEL_LOSSY = 1u << 0 };
/** A codec's sizes, times and error, for planner and autopilot. The host sets it to zero before the call. Growable:
 * later versions may append members. */
typedef struct esp_codec_model {
    uint32_t struct_size, flags;              /* flags: ESP_MODEL_* */
    esp_payload_size sent;                    /* size of a payload that other ranks receive and decode */
    esp_payload_size reduced[ESP_ROUNDS_MAX]; /* size in each round of payloads that collectives sum */
    /** Expected |decoded - x|^2 / |x|^2 for standard normal x, without error feedback. Negative if unknown. */
    double error;
    uint32_t n_times, reserved0; /* n_times is 0 if times are unknown on this device */
    /** Ascending by elements; between two entries, time is linear. */
    esp_codec_time times[ESP_MODEL_TIMES];
    double momentum; /* momentum that the codec itself applies; 0 if none */
    /** How many of the first times are the same on faster devices: those of few elements on a GPU, which are kernel
     *  launches. */
    uint32_t n_fixed, reserved1;
} esp_codec_model;

/** Where a payload's body has f32 values: after `offset` bytes (a multiple of 4) come `count` values, and then `rest`
 *  other bytes. Frozen. */
typedef struct esp_values {
    uint64_t offset, count, rest;
} esp_values;

/** Arguments of compress and decompress. Growable: later versions may append members.
 *
 *  compress, for each part t:
 *      payload[t]  := the compressed form of beta * residual[t] + gamma * tensor[t]
 *      residual[t] := that sum minus what the payload decodes to
 *    With several rounds, each round may read the residual, and the last one writes it.
 *  decompress, for each part t with n payloads:
 *      tensor[t] := (mode SUM: tensor[t]; SET: 0) + scale * payload[t][0] + ... + scale * payload[t][n - 1]
 *    The additions are in this order. */
typedef struct esp_codec_args {
    uint32_t struct_size;
    uint32_t mode;       /* decompress: ESP_OUT_SET or ESP_OUT_SUM */
    uint64_t step, seed; /* for random numbers; the same on all ranks */
    /** Part of the seed: the lowest of the ranks that compress the same numbers. All of these ranks must draw the same
     *  random numbers. */
    uint32_t source;
    uint32_t comp_index; /* part of the seed: how many earlier compress ops the tensor's option has */
    uint32_t flags;      /* ESP_ARG_* */
    uint32_t round;      /* the codec's round that this call of compress is for, from 0 */
    /** Number of ranks whose payloads collectives combine after this call (decompress: before it). 1 if they do not. */
    uint32_t n_reduced;
    uint32_t n_tensors; /* number of parts in the arrays below; 1 without ESP_CODEC_LISTS */
    uint32_t n_payloads;
    float beta, gamma; /* compress: factors of residual and gradient */
    float scale;       /* factor of decompress: a power of two; 0 means 1 */
    /* Arrays of n_tensors entries. The entry of a part without residual or without state has 0 bytes. */
    esp_tensor *const *tensor; /* f32; compress reads them, decompress writes them */
    const uint64_t *offset;    /* index of each part's first element in its tensor or group of tensors */
    esp_payload *payload;      /* one per part; decompress: [n_tensors][n_payloads] */
    /** Payloads that collectives combined after the previous round, or NULL. For decompress of a codec with n rounds,
     *  those of the round before the last. */
    const esp_payload *reduced;
    const esp_buf *residual; /* `count` floats each; NULL without error feedback */
    /** State of each part, in the size that bound() returned, or NULL if no part needs any. decompress gets the state
     *  that this rank's compress used for the same parts, or NULL. */
    const esp_buf *state;
    /** Temporary memory for the whole call, or NULL if no part needs any. Its size is n_tensors * m, where m is the
     *  largest scratch_bytes of a part, rounded up to a multiple of 64. */
    const esp_buf *scratch;
    esp_stream stream;
    /** Number of ranks whose gradients were added before they were compressed, such as the ranks of one machine. The
     *  sum may be that many times larger than a single gradient. 0 or 1 means the rank's own gradient. */
    uint32_t n_summed, reserved0;
} esp_codec_args;

/** Returns a->n_summed, or 1 if it is 0 or if the caller's struct is too short to have it. */
static inline uint32_t esp_summed_of(const esp_codec_args *a) {
    return ESP_HAS(esp_codec_args, a, n_summed) ? a->n_summed : 1;
}
static inline float *esp_residual_of(const esp_codec_args *a, uint32_t t) {
    return a->residual ? ESP__CAST(float *, a->residual[t].ptr) : NULL;
}

/** A codec.
 *  Threads: the host calls open and close one at a time. The other functions may run in several threads at once, so
 *  they must not change `self`.
 *  Memory: only open allocates. Errors: log what is wrong (host->log), then return the status.
 *  Tables for different devices may have the same name. They must then agree in wire_version, rounds, params, caps
 *  (except LISTS and FUSED_RESIDUAL), and in whether they have finalize. Growable: later versions may append members.
 */
typedef struct esp_codec {
    uint32_t struct_size;
    uint32_t wire_version; /* version of the payload's format, from 1; the same on all ranks */
    uint64_t caps;         /* ESP_CODEC_* */
    uint32_t dtypes;       /* dtypes of args->tensor; must include ESP_BIT(ESP_F32) */
    uint32_t devices;      /* set of devices: ESP_BIT(ESP_CPU) | ... */
    const char *name, *summary;
    /** The parameters with their defaults, "ratio=0.01,...", for help and messages. NULL if it has none. */
    const char *params;
    const char *default_option; /* option that strategy "layerwise" uses; NULL: the library chooses */
    uint32_t n_rounds;          /* 1 to ESP_ROUNDS_MAX */
    uint32_t reserved0;
    const esp_round *rounds; /* [n_rounds]; NULL means one round without reduction */
    /** Opens the codec with parameters "key=val,key=val", or "". `self` may keep `h`. Returns ESP_E_ARG for an unknown
     *  key or a bad value. */
    esp_status (*open)(const esp_host *h, const char *params, void **self);
    void (*close)(void *self);
    /** Writes to *out the memory that round `round` needs for a part with the shape of `like`. n_reduced is the number
     *  of ranks whose payloads collectives combine, or 1 if they do not. Returns ESP_E_UNSUPPORTED if the codec cannot
     *  compress a part of this shape. */
    esp_status (*bound)(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out);
    /** Enqueues work on args->stream. `a` and its arrays are valid during the call only, but their buffers until the
     *  stream has done the work. Returns ESP_E_TOO_SMALL if a capacity is too small, and writes nothing past it. */
    esp_status (*compress)(void *self, const esp_codec_args *a);
    /** Enqueues work like compress. Checks payloads before it writes, returns ESP_E_CORRUPT for invalid ones, and never
     *  writes out of bounds. If code on the device makes the check, the device's event functions return the error.
     *  After an error, other parts of the call may have been written, and a wrapper may have added earlier payloads. */
    esp_status (*decompress)(void *self, const esp_codec_args *a);
    /* The functions below are optional: the host tests them with ESP_HAS. */
    /** Changes the members of *out in which this codec differs from its esp_codec because of its parameters. It may
     *  remove caps, but not add any. */
    esp_status (*traits)(void *self, esp_traits *out);
    /** Describes payload sizes, times and error on device `d` if collectives combine the payloads of n_reduced ranks.
     *  Reads only `rows` and `cols` of `like`, which are 0 if tensors are no matrices. */
    esp_status (*model)(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d, esp_codec_model *out);
    /** Changes `count` floats of the sum of `ranks` ranks' gradients in place, for example into a majority vote. The
     *  host passes no element of the sum twice. */
    esp_status (*finalize)(void *self, float *sum, uint64_t count, uint32_t ranks, esp_stream s);
    /** Tells which bytes of a payload are f32 values, so that a wrapper can compress them again. `h` is the payload's
     *  header without body_bytes. If `h` is NULL, describes the largest payload that a part like `like` can have. */
    esp_status (*values)(void *self, const esp_tensor *like, const struct esp_payload_header *h, esp_values *out);
    /** For help; NULL if not known. GRACE's class of the method ("quantize", "sparsify", "hybrid", "low rank") or
     *  "lossless"; its authors, and where they published it. */
    const char *family, *paper;
} esp_codec;

/* ---- backends ---------------------------------------------------------------------------------------------------- */
/* esp_backend.caps */
enum {
    /** test() returns ESP_OK as soon as the work is enqueued: later work on the same stream sees the result. */
    ESP_BACKEND_STREAM_ORDERED = 1u << 0,
    ESP_BACKEND_NEEDS_PROGRESS = 1u << 1, /* makes progress only inside test() and progress() */
    ESP_BACKEND_VARLEN = 1u << 2,         /* sends only the used bytes of a payload's buffer */
    ESP_BACKEND_SCALE = 1u << 3,          /* applies esp_coll.scale */
    ESP_BACKEND_PACED = 1u << 4,          /* can emulate slower links, which parameters inter= and latency= set */
    ESP_BACKEND_CALLER = 1u << 5          /* only the trainer's thread may call it */
};
/** An optional ability (ESP_OFFER): after ranks have failed and all communicators are closed, open() works again for
 *  the remaining ranks. esp_shrink needs it. */
#define ESP_BACKEND_REOPENS ESP_OFFER(0)
/** An optional ability (ESP_OFFER): a request is complete only when the other ranks have received all that this rank
 *  sends. */
#define ESP_BACKEND_DELIVERS ESP_OFFER(1)
enum { ESP_COLL_ALLREDUCE = 1, ESP_COLL_ALLGATHER = 2, ESP_COLL_ALLTOALL = 3, ESP_COLL_REDUCE_SCATTER = 4 };
enum { ESP_COLL_BROADCAST = 5, ESP_COLL_GATHER = 6, ESP_COLL_REDUCE = 7 };

/** The ranks of a communicator (comm). Growable: later versions may append members. Valid during open() only, except
 *  `parent`. Every rank has an index in each level: in level 1, for example, its index in its machine, and in level 2
 *  the index of its machine. A group of level k has ranks that differ only in this index. A group of several levels has
 *  all ranks that have the same index in each other level. Level 0 means all ranks. */
typedef struct esp_group {
    uint32_t struct_size;
    int32_t rank, size;     /* this rank's index in the group, and the group's size */
    int32_t level;          /* level of the group; 0 means all ranks */
    int32_t n_levels;       /* number of levels of the job, such as 2: intra, inter */
    int32_t last_level;     /* the group has all levels from `level` to this one */
    const char *level_name; /* "flat", "intra", "inter", "intra-inter", ... */
    const int32_t *place;   /* [size][n_levels]: each rank's index in level 1, 2, ... */
    const int32_t *machine; /* [size]: machine of each rank */
    /** The first comm of this backend that includes all ranks of this group, or NULL if this one is the first. */
    void *parent;
    /** Gathers `bytes` bytes from each rank of the group: `out` gets size * bytes bytes in rank order. Blocks. */
    esp_status (*oob_allgather)(void *user, const void *in, void *out, uint64_t bytes);
    void *user;
} esp_group;

/** One collective. Growable: later versions may append members. The buffer has `count` items. An *item* is `width`
 * numbers of `dtype`; or, where slot_bytes is not 0, one payload slot of slot_bytes bytes. On n ranks, part(p) is items
 * p * c to min(count, (p + 1) * c) - 1, with c = ceil(count / n): the last parts may be shorter or empty.
 *
 *     op              src            dst                     may alias
 *     ALLREDUCE       count          count, reduced          dst == src
 *     REDUCE_SCATTER  count          part(rank), reduced     dst == src + own part's offset
 *     REDUCE          count          count at root           dst == src
 *     ALLGATHER       part(rank)     count                   src == dst + own part's offset
 *     BROADCAST       count at root  count elsewhere         dst == src
 *     GATHER          part(rank)     count at root           no
 *     ALLTOALL        n equal parts  n parts in rank order   no       (n divides count)
 *
 *  Sums of f16 and bf16 are computed in f32 and rounded once; sums of integers wrap. Backends shm and loop add in rank
 *  order, except in a collective of all ranks over emulated links. That one adds in the order of a ring, and rounds f16
 *  and bf16 at every hop of the ring. MAX and MIN: if any rank has a NaN, the result is the quiet NaN with sign 0 (with
 *  one rank, its own NaN); -0 is less than +0. All ranks get the same bits. `src` must not change until the request
 *  is complete. */
typedef struct esp_coll {
    uint32_t struct_size, op; /* op: ESP_COLL_* */
    esp_dtype dtype;          /* 0 with payload slots */
    int32_t root;
    uint64_t count;
    /** If not 0, src and dst are arrays of payload slots of this size, and only their used bytes need to be sent. */
    uint64_t slot_bytes;
    esp_buf src, dst;  /* ptr may be NULL where the table above has no entry */
    float scale;       /* factor for sums of f32, f16 and bf16; 0 means 1 */
    esp_reduce reduce; /* 0 means ESP_REDUCE_SUM */
    uint64_t width;    /* numbers per item, such as a matrix's columns; 0 means 1 */
} esp_coll;

/** Bytes that this rank has received over a comm, and the comm's memory. Growable: later versions may append members.
 */
typedef struct esp_traffic {
    uint32_t struct_size, reserved0;
    uint64_t intra_bytes, inter_bytes; /* received from this, and from other machines */
    /** Received bytes by level. Each byte counts at the outermost level in which the indices of sender and receiver
     *  differ. */
    uint64_t level_bytes[ESP_LEVELS];
    uint64_t memory_bytes; /* largest size that this rank's share of the comm's buffers has had; 0 if unknown */
} esp_traffic;

/** The ranks of a job that a launcher's library, such as MPI, has already connected. Growable: later versions may
 * append members. */
typedef struct esp_meeting {
    uint32_t struct_size, reserved0;
    int32_t rank, size;
    /** Gathers `bytes` bytes from each rank of the job: `out` gets size * bytes bytes in rank order. Blocks. */
    esp_status (*oob_allgather)(void *user, const void *in, void *out, uint64_t bytes);
    void *user;
} esp_meeting;

/** A backend runs collectives. Growable: later versions may append members. Threads: calls on comms with the same
 * parent come from one thread at a time; only wake and abort may come from any thread at any time. Only open, close and
 * meet may block. */
typedef struct esp_backend {
    uint32_t struct_size, reserved0;
    uint64_t caps;    /* ESP_BACKEND_* */
    uint32_t colls;   /* ESP_BIT(ESP_COLL_*); must have ALLREDUCE and BROADCAST */
    uint32_t devices; /* devices whose memory it can access */
    uint32_t dtypes;  /* dtypes that it can reduce */
    uint32_t reduces; /* set of reductions: ESP_BIT(ESP_REDUCE_SUM) | ... */
    const char *name, *summary;
    const char *params; /* parameters with their defaults, for help and messages; NULL if it has none */
    /** Sets *score to 0 if the backend cannot run here. The default backend is the one with the highest score. */
    esp_status (*probe)(const esp_host *h, int32_t *score);
    /** Opens a comm for the ranks of `g`, which all call it. */
    esp_status (*open)(const esp_host *h, const esp_group *g, const char *params, void **comm);
    void (*close)(void *comm); /* must not wait for a rank that has died */
    /** Starts a collective when stream `s` has done the work enqueued so far, and returns a request. All ranks of a
     *  comm start the same collectives in the same order. `c` is valid during the call only. */
    esp_status (*start)(void *comm, const esp_coll *c, esp_stream s, void **req);
    /** Works on a request for at most about 0.2 ms. Returns ESP_OK if it is complete and freed, else ESP_PENDING or an
     *  error. */
    esp_status (*test)(void *comm, void *req);
    /* The functions below are optional: the host tests them with ESP_HAS. */
    /** Sleeps until a request of this comm, or of one with the same parent, may be complete, until wake(), or for
     *  timeout_us microseconds. */
    esp_status (*progress)(void *comm, uint64_t timeout_us);
    void (*wake)(void *comm); /* ends a progress() that sleeps */
    /** Returns a file descriptor on which a thread can sleep for several backends at once, or -1. All comms of one
     *  parent have the same. It becomes readable when a request may be complete or wake() was called, and stays so
     *  until progress(comm, 0). To miss no event, call progress(comm, 0), test all requests, then sleep. */
    int32_t (*wait_fd)(void *comm);
    /** Makes all pending and later calls on this comm return ESP_E_PEER soon. */
    esp_status (*abort)(void *comm);
    /** Returns the rank in the group that `req` waits for, or -1 if unknown. */
    int32_t (*straggler)(void *comm, void *req);
    esp_status (*traffic)(void *comm, esp_traffic *out);
    /** Registers memory that many collectives will use, until dereg, for the CPU and for each of `devices`. It contains
     *  payload slots or work buffers, but no gradients. The host calls reg between steps, on a comm without a parent.
     *  Comms with that parent use the memory, too. A backend has both reg and dereg, or neither. */
    esp_status (*reg)(void *comm, const esp_buf *b, void **mh);
    esp_status (*dereg)(void *comm, void *mh);
    /** Called before open() if the configuration has no address of rank 0. Writes this rank and the number of ranks to
     *  *out, with a function through which the host connects them. Blocks until all ranks have called it. */
    esp_status (*meet)(const esp_host *h, const char *params, esp_meeting *out);
} esp_backend;

/* ---- devices ----------------------------------------------------------------------------------------------------- */
/* DEVICE is the device's memory; PINNED is host memory that the device can access directly. */
enum { ESP_MEM_DEVICE = 0, ESP_MEM_PINNED = 1 };
/* esp_device_table.caps. With HOST_ACCESS, the host can access the device's memory directly, and a call that enqueues
 * work returns when the work is done. */
enum { ESP_DEVICE_HOST_ACCESS = 1u << 0 };
/** A kind of device. Growable: later versions may append members.
 *  Streams: a function with a stream enqueues work and returns before it is done. Its buffers stay valid until the
 *  stream has done the work. `dst` and `src` are memory of the device, or pinned memory.
 *  Threads: any thread may call; calls on one stream come from one thread at a time. */
typedef struct esp_device_table {
    uint32_t struct_size;
    esp_devkind kind;
    uint64_t caps; /* ESP_DEVICE_* */
    const char *name, *summary;
    /** Sets *count to the number of usable devices of this kind. */
    esp_status (*probe)(const esp_host *h, int32_t *count);
    esp_status (*open)(const esp_host *h, int32_t ordinal, void **self);
    void (*close)(void *self);
    /** Allocates `bytes` bytes of zeros, aligned to 256. `where`: ESP_MEM_*. */
    esp_status (*alloc)(void *self, uint64_t bytes, uint32_t where, void **out);
    /** Frees what alloc returned, with the same `bytes` and `where`. */
    void (*free_)(void *self, void *p, uint64_t bytes, uint32_t where);
    esp_status (*stream_create)(void *self, esp_stream *out);
    void (*stream_destroy)(void *self, esp_stream s);
    /* An event marks a point in a stream. event_query returns ESP_OK if the stream has passed it, else ESP_PENDING.
     * event_sync blocks until then. Both also return errors of earlier work on this device. */
    esp_status (*event_create)(void *self, void **event);
    void (*event_destroy)(void *self, void *event);
    esp_status (*event_record)(void *self, void *event, esp_stream s);
    esp_status (*event_wait)(void *self, void *event, esp_stream s); /* makes later work on `s` wait */
    esp_status (*event_query)(void *self, void *event);
    esp_status (*event_sync)(void *self, void *event);
    esp_status (*copy)(void *self, void *dst, const void *src, uint64_t bytes, esp_stream s);
    /** Copies `rows` rows of `bytes` bytes each. Rows begin dst_pitch and src_pitch bytes apart. */
    esp_status (*copy2d)(void *self, void *dst, uint64_t dst_pitch, const void *src, uint64_t src_pitch, uint64_t bytes,
                         uint64_t rows, esp_stream s);
    esp_status (*fill)(void *self, void *dst, uint8_t byte, uint64_t bytes, esp_stream s);
    /** Computes dst = scale * src, or with `sum` dst += scale * src, for `count` numbers of f32, f16 or bf16. If dst ==
     *  src, the dtypes are the same. */
    esp_status (*convert)(void *self, void *dst, esp_dtype dst_dtype, const void *src, esp_dtype src_dtype, float scale,
                          uint32_t sum, uint64_t count, esp_stream s);
    /* The functions below are optional: the host tests them with ESP_HAS. */
    esp_status (*elapsed)(void *self, void *from, void *to, uint64_t *ns); /* time between two past events */
    /** Returns the calling thread's CPU time in nanoseconds. Without it, the host uses the thread's CPU clock. */
    esp_status (*core_time)(void *self, uint64_t *ns);
    /** Copies the device's name, such as "NVIDIA H100", to `out`, cut off after room - 1 characters. */
    esp_status (*device_name)(void *self, char *out, uint64_t room);
    /** Creates an event that is never passed to elapsed(), which may cost less to record. Without it, the host uses
     *  event_create. */
    esp_status (*event_create_untimed)(void *self, void **event);
} esp_device_table;

/* ---- the plugin's entry ------------------------------------------------------------------------------------------ */
/** The tables of a plugin. They are in static storage, since an accepted plugin is never unloaded. Growable: later
 * versions may append members. */
struct esp_plugin {
    uint32_t struct_size;
    uint32_t n_codecs, n_backends, n_devices;
    const esp_codec *const *codecs;
    const esp_backend *const *backends;
    const esp_device_table *const *devices;
};

/** Begins the definition of the plugin's entry, its only exported function, which must not start threads or use a
 *  device. If ESPRESSO_STATIC_PLUGINS is defined, its name is espresso_plugin_v1_<id>, for esp_config.builtin. */
#ifdef ESPRESSO_STATIC_PLUGINS
#define ESPRESSO_PLUGIN_ENTRY(id)                                                                                      \
    ESP__C const esp_plugin *espresso_plugin_v1_##id(const esp_host *h);                                               \
    const esp_plugin *espresso_plugin_v1_##id(const esp_host *h)
#else
#define ESPRESSO_PLUGIN_ENTRY(id)                                                                                      \
    ESP__C ESPRESSO_EXPORT const esp_plugin *espresso_plugin_v1(const esp_host *h);                                    \
    ESPRESSO_EXPORT const esp_plugin *espresso_plugin_v1(const esp_host *h)
#endif

/** Defines the entry of a plugin that has only codecs, or only backends, for example ESP_PLUGIN_CODEC(topk,
 *  &topk_codec). The id is followed by pointers to one or more tables in static storage. */
#define ESP_PLUGIN_CODEC(id, ...)                                                                                      \
    ESPRESSO_PLUGIN_ENTRY(id) {                                                                                        \
        static const esp_codec *const all[] = {__VA_ARGS__};                                                           \
        static const esp_plugin plugin = {sizeof(esp_plugin), sizeof all / sizeof *all, 0, 0, all, NULL, NULL};        \
        (void)h;                                                                                                       \
        return &plugin;                                                                                                \
    }
#define ESP_PLUGIN_BACKEND(id, ...)                                                                                    \
    ESPRESSO_PLUGIN_ENTRY(id) {                                                                                        \
        static const esp_backend *const all[] = {__VA_ARGS__};                                                         \
        static const esp_plugin plugin = {sizeof(esp_plugin), 0, sizeof all / sizeof *all, 0, NULL, all, NULL};        \
        (void)h;                                                                                                       \
        return &plugin;                                                                                                \
    }

/* ---- payloads: a header of 64 bytes, little-endian, and a body --------------------------------------------------- */
#define ESP_PAYLOAD_HEADER 64u
enum {
    ESP_PAYLOAD_NONFINITE = 1u << 0, /* the input had NaN or Inf; it decodes to NaN everywhere */
    ESP_PAYLOAD_EMPTY = 1u << 1      /* it decodes to zeros; not allowed if collectives reduce payloads */
};
/** A payload's header; esp_payload_header_of() makes it. If collectives sum payloads, headers are not sent: each rank
 *  keeps its own, with flag NONFINITE if that of any rank has it. Frozen. */
typedef struct esp_payload_header {
    uint32_t codec; /* esp_name_hash of the codec's name */
    uint16_t wire_version, flags;
    uint64_t count;       /* number of elements that it decodes to */
    uint64_t body_bytes;  /* size of the body, without padding */
    uint64_t aux;         /* for the codec, such as a random seed; else 0 */
    uint64_t reserved[4]; /* 0 */
} esp_payload_header;

/** The 32-bit FNV-1a hash of a codec's name: its id in payload headers. */
static inline uint32_t esp_name_hash(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ ESP__CAST(unsigned char, *name)) * 16777619u;
    return h;
}
static inline esp_payload_header esp_payload_header_of(uint32_t codec, uint16_t wire_version, uint16_t flags,
                                                       uint64_t count, uint64_t body_bytes, uint64_t aux) {
    esp_payload_header h;
    memset(&h, 0, sizeof h);
    h.codec = codec;
    h.wire_version = wire_version;
    h.flags = flags;
    h.count = count;
    h.body_bytes = body_bytes;
    h.aux = aux;
    return h;
}
/** Returns the bytes of a payload's buffer for up to `body` bytes of data: the header, and `body` rounded up to 32. */
static inline uint64_t esp_payload_capacity(uint64_t body) { return ESP_PAYLOAD_HEADER + (body + 31u) / 32u * 32u; }
/** Writes the header and *p->used. If the capacity is too small, returns ESP_E_TOO_SMALL and writes nothing. */
static inline esp_status esp_payload_begin(esp_payload *p, const esp_payload_header *h) {
    if (p->data.bytes < ESP_PAYLOAD_HEADER || p->data.bytes - ESP_PAYLOAD_HEADER < h->body_bytes)
        return ESP_E_TOO_SMALL;
    memcpy(p->data.ptr, h, ESP_PAYLOAD_HEADER);
    if (p->used) *p->used = ESP_PAYLOAD_HEADER + h->body_bytes;
    return ESP_OK;
}
/** Copies the header to *h. Returns ESP_E_CORRUPT if codec, wire version or count differ, a flag is unknown, or the
 *  body is longer than the buffer. */
static inline esp_status esp_payload_read(const esp_payload *p, uint32_t codec, uint32_t wire_version, uint64_t count,
                                          esp_payload_header *h) {
    if (!p->data.ptr || p->data.bytes < ESP_PAYLOAD_HEADER) return ESP_E_CORRUPT;
    memcpy(h, p->data.ptr, ESP_PAYLOAD_HEADER);
    if (h->codec != codec || h->wire_version != wire_version || h->count != count ||
        h->body_bytes > p->data.bytes - ESP_PAYLOAD_HEADER || h->flags > (ESP_PAYLOAD_NONFINITE | ESP_PAYLOAD_EMPTY))
        return ESP_E_CORRUPT;
    return ESP_OK;
}
/** Returns the address of the body's first byte. */
static inline void *esp_payload_body(const esp_payload *p) {
    return ESP__CAST(unsigned char *, p->data.ptr) + ESP_PAYLOAD_HEADER;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */
/** Reads the next pair of "key=val,key=val" from *at into `key` and `val`, and advances *at. Commas inside parentheses
 *  belong to the value. Returns 1 for a pair, 0 at the end, and -1 if the text is malformed or longer than key_cap or
 *  val_cap allow. */
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
/** Parses the decimal number that `text` begins with. Unlike strtod's, its result does not depend on the user's locale.
 * Returns 0 if there is none, or if other characters follow and `end` is NULL. Else stores where it ends in *end. */
static inline int esp_params_number(const char *text, const char **end, double *out) {
    double value = 0, power = 1;
    const int minus = *text == '-';
    int digits = 0, exponent = 0, point = 0, e = 0, e_minus = 0;
    if (minus || *text == '+') text++;
    for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++) {
        if (*text == '.') {
            point = 1;
            continue;
        }
        value = value * 10 + (*text - '0');
        digits++;
        exponent -= point;
    }
    if (!digits) return 0;
    if (*text == 'e' || *text == 'E') {
        const char *at = text + 1;
        e_minus = *at == '-';
        if (e_minus || *at == '+') at++;
        if (*at >= '0' && *at <= '9') text = at;
        for (; text == at && *at >= '0' && *at <= '9'; text = ++at) e = e < 1000 ? e * 10 + (*at - '0') : e;
    }
    exponent += e_minus ? -e : e;
    for (int k = exponent < 0 ? -exponent : exponent; k > 0; k--) power *= 10;
    value = exponent < 0 ? value / power : value * power;
    if (end) *end = text;
    *out = minus ? -value : value;
    return end || !*text;
}
