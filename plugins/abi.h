/* abi.h: the plugin ABI, sections 1 to 7 of espresso.h, which includes it: all that a codec, backend or device plugin needs.
 * docs/design/abi.md says what may still grow. Everything that a table says is read: the registry refuses what this library
 * cannot do, and names it. */

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
/* Gradients are f32, f16 or bf16. Integers occur only as numbers of payload bodies that collectives reduce. */
enum { ESP_F32 = 1, ESP_F16 = 2, ESP_BF16 = 3, ESP_I8 = 4, ESP_I16 = 5, ESP_I32 = 6 };
typedef uint32_t esp_reduce;
enum { ESP_REDUCE_SUM = 1, ESP_REDUCE_MAX = 2, ESP_REDUCE_MIN = 3 };
typedef uint32_t esp_devkind;
enum {
    ESP_CPU = 1,
    ESP_CUDA = 2,
    ESP_DEVKIND_OWN = 16 /* 16 to 31: for device plugins of other kinds; the user sees to it that they differ */
};
#define ESP_BIT(k) (1u << (k))
/* Capabilities in bits 0 to 31 change how the host must call: a host refuses those that it does not know. Bits from 32 on
 * only offer something, and a host that does not know them ignores them. */
#define ESP_OFFER(k) ((uint64_t)1 << (32 + (k)))

/** Bytes of one number; 0: no such dtype. */
static inline uint64_t esp_dtype_bytes(esp_dtype d) {
    return d == ESP_F32 || d == ESP_I32 ? 4u : d == ESP_F16 || d == ESP_BF16 || d == ESP_I16 ? 2u : d == ESP_I8;
}

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

/** An array of numbers, as a codec sees it. Growable. */
typedef struct esp_tensor {
    uint32_t struct_size;
    esp_dtype dtype;
    uint64_t key;   /* 64-bit hash of the name of the whole tensor, or of the names in a group      */
    uint64_t count; /* elements, flat                                                               */
    esp_buf data;
    uint64_t rows, cols; /* row-major; 0: not a matrix                                              */
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

struct esp_codec;
struct esp_payload_header;
struct esp_device_table;
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
    /** For wrappers, in their open(): opens the codec of a spec ("topk:ratio=0.01"). The caller closes it with codec_close
     *  in its own close(). On an error the host keeps the detail: return the status as it is. A spec may nest at most 4 deep. */
    esp_status (*codec_open)(void *user, const char *spec, const struct esp_codec **table, void **self);
    void (*codec_close)(void *user, const struct esp_codec *table, void *self);
    /** The open device `d` (a zeroed `d`: the CPU), for codecs and backends that enqueue work there. ESP_E_UNSUPPORTED: no
     *  plugin of the context serves it. The host closes it. */
    esp_status (*device)(void *user, esp_device d, const struct esp_device_table **table, void **self);
} esp_host;

/* ---- 4. codec table ----------------------------------------------------------------------------- */
enum {
    ESP_CODEC_HAS_STATE = 1u << 0,      /* bound() may ask for state: memory kept from step to step        */
    ESP_CODEC_REDUCIBLE = 1u << 1,      /* a collective can reduce undecoded bodies of the last round      */
    ESP_CODEC_OWN_FEEDBACK = 1u << 2,   /* keeps its method's own feedback (DGC): ESP_ARG_OWN_MEMORY       */
    ESP_CODEC_DETERMINISTIC = 1u << 3,  /* draws no random numbers                                         */
    ESP_CODEC_NEEDS_MATRIX = 1u << 4,   /* uses rows and columns: the host cuts matrices between rows      */
    ESP_CODEC_FUSED_RESIDUAL = 1u << 5, /* reads and writes args->residual itself; otherwise the host does */
    ESP_CODEC_NO_FEEDBACK = 1u << 6,    /* default feedback is "none" (fp16, unbiased methods)             */
    ESP_CODEC_LISTS = 1u << 7,          /* one call of compress or decompress takes all parts of an op     */
    ESP_CODEC_WRAPPER = 1u << 8         /* opens another codec: takes the parameter of=(SPEC); set traits  */
};
enum { ESP_OUT_SET = 0, ESP_OUT_SUM = 1 };
/* This Comp reads the rank's own gradient: use the method's own feedback. A residual without this flag: plain residual feedback. */
enum { ESP_ARG_OWN_MEMORY = 1u << 0 };

/** One round of a codec. A codec of n rounds compresses n times: the bodies of every round but the last are reduced over all
 *  ranks that the last round's payloads reach undecoded, and the next round reads the result (args->reduced). Such a codec has
 *  ESP_CODEC_FUSED_RESIDUAL. Frozen. */
enum { ESP_ROUNDS_MAX = 4 };
enum { ESP_ROUND_ALLREDUCE = 1u << 0 }; /* last round: only an allreduce of bodies serves; the codec is REDUCIBLE */
typedef struct esp_round {
    esp_reduce op;   /* how bodies are reduced; 0, in the last round only: they cannot be                     */
    esp_dtype dtype; /* of a body's numbers, where bound() says no other                                      */
    uint32_t flags;  /* ESP_ROUND_*                                                                           */
    uint32_t reserved0;
} esp_round;

/** Sizes of one round of one part. Growable: a codec fills members only up to the caller's struct_size. */
typedef struct esp_bound {
    uint32_t struct_size;
    esp_dtype dtype; /* of the reduced body's numbers; 0: as the round's. May depend on n_reduced, so that sums fit */
    /* Header and body, at most; never falls as count rises. 0 in a round before the last: a tensor of this shape begins with a
     * later round. Where it is a part of one that does not, its payload has a header alone. */
    uint64_t payload_bytes;
    uint64_t scratch_bytes; /* needed by one compress or decompress call; lost when it returns             */
    uint64_t state_bytes;   /* kept between steps, zero at the start; saved in state files. Round 0's counts */
} esp_bound;

/** What one opened codec is, where its parameters decide that. The host fills it from the table before traits(). Growable. */
typedef struct esp_traits {
    uint32_t struct_size;
    uint32_t wire_version; /* a wrapper's tells the inner codec's too                                      */
    uint64_t caps;
    uint32_t n_rounds, reserved0;
    const esp_round *rounds;
    const char *default_option;
} esp_traits;

/** Bytes of a payload, header included: fixed + quantum * ceil((per_element * count + per_row * rows + per_col * cols) /
 *  quantum). Quantum 0 means 1. Frozen. */
typedef struct esp_payload_size {
    double fixed, quantum, per_element, per_row, per_col;
} esp_payload_size;
/** Nanoseconds of one compress (all rounds) and one decompress of a payload, at `elements`. Frozen. */
typedef struct esp_codec_time {
    double elements, compress_ns, decompress_ns;
} esp_codec_time;
/* The device that times are for: a core, or a CUDA device, on which a kernel that only streams memory moves so many bytes in a
 * nanosecond. On one with k times the rate, the host takes the time of e elements for that of k e: what takes time whatever the
 * size stays, and what grows with the size is divided by k. */
enum { ESP_MODEL_CORE_RATE = 8, ESP_MODEL_CUDA_RATE = 800 };
enum { ESP_MODEL_TIMES = 8 };
enum {
    ESP_MODEL_LOSSY =
        1u << 0 /* training may suffer: strategy "auto" watches it. Not set: it only rounds each number to a
                                 shorter format, or changes nothing                                        */
};
/** How an opened codec describes itself to planner and autopilot. Growable; zeroed before the call. */
typedef struct esp_codec_model {
    uint32_t struct_size, flags;              /* ESP_MODEL_*                                               */
    esp_payload_size sent;                    /* the payload where bodies are not reduced                  */
    esp_payload_size reduced[ESP_ROUNDS_MAX]; /* each round's payload where its body is reduced            */
    double error; /* E |decoded - x|^2 / E |x|^2 for normal x of variance 1, without feedback; negative: not known */
    uint32_t n_times, reserved0;           /* n_times 0: not known, or the codec cannot run on the device  */
    esp_codec_time times[ESP_MODEL_TIMES]; /* by rising elements; straight lines between                   */
    double momentum; /* that the codec applies to gradients itself, so that the trainer's should be off; 0: none   */
} esp_codec_model;

/** The parts of a body: `offset` bytes (a multiple of 4), `count` f32 values, `rest` bytes. Frozen. */
typedef struct esp_values {
    uint64_t offset, count, rest;
} esp_values;

/** Everything one compress or decompress call may need. Growable.
 *  compress: payload[t] := code(beta * residual + gamma * tensor); residual := what the payload does not carry. With several
 *  rounds, every round may read the residual, and only the last one writes it.
 *  decompress: tensor := (mode SUM: tensor; SET: 0) + scale * payload[0] + scale * payload[1] ..., added in that order. */
typedef struct esp_codec_args {
    uint32_t struct_size;
    uint32_t mode;       /* decompress: ESP_OUT_SET or ESP_OUT_SUM                                   */
    uint64_t step, seed; /* same on every rank                                                       */
    uint32_t source; /* lowest rank with the same numbers: these ranks draw the same random numbers, others differ */
    uint32_t comp_index; /* which Comp of the option, from 0                                         */
    uint32_t flags;      /* ESP_ARG_*                                                                */
    uint32_t round;      /* compress: from 0                                                         */
    uint32_t
        n_reduced; /* over how many ranks a collective reduces this round's body; 1: none. decompress: of the last */
    uint32_t n_tensors;  /* length of the lists below; 1 without ESP_CODEC_LISTS                     */
    uint32_t n_payloads; /* decompress: how many payloads of each tensor are summed (compress: 1)    */
    float beta, gamma;   /* compress, with a residual: see above                                     */
    float scale;         /* decompress: see above; always a power of two; 0 means 1                  */
    /* lists of n_tensors. In a residual or state of several parts, an entry of 0 bytes means NULL */
    esp_tensor *const *tensor;  /* compress: in; decompress: out. f32                                 */
    const uint64_t *offset;     /* index of each part's first element in the whole tensor, or group   */
    esp_payload *payload;       /* compress: out; decompress: [n_tensors][n_payloads]                 */
    const esp_payload *reduced; /* reduced payload of the round before (decompress: of the last but one), or NULL */
    const esp_buf *residual;    /* count floats each; NULL: no feedback                              */
    const esp_buf *state;   /* host-owned, sized by bound(); NULL where 0 bytes were asked for. decompress: the state
                                   of the Comp where this rank compressed the same parts, else NULL  */
    const esp_buf *scratch; /* one for the whole list: n_tensors times what the part that needs most asked for, which
                               is rounded up to 64 bytes. NULL where 0 bytes were asked for          */
    esp_stream stream;
} esp_codec_args;

/** The residual of the list's tensor t; NULL: no feedback. */
static inline float *esp_residual_of(const esp_codec_args *a, uint32_t t) {
    return a->residual ? ESP__CAST(float *, a->residual[t].ptr) : NULL;
}

/** One codec. Threads: open/close are serialised by the host; bound, traits and model are re-entrant; compress and
 *  decompress may run at the same time for different tensors, so `self` must not change in them.
 *  Memory: only open allocates. Errors: tell host->log what is wrong, then return the status.
 *  Two tables may share a name if their devices differ. Only the caps that tell how to call a table, LISTS and FUSED_RESIDUAL,
 *  may differ then; wire_version, rounds, params, the other caps, and whether there is finalize, must be the same. */
typedef struct esp_codec {
    uint32_t struct_size;
    uint32_t wire_version; /* of the body's format, at least 1; ranks must agree                       */
    uint64_t caps;         /* ESP_CODEC_*                                                              */
    uint32_t dtypes;       /* of args->tensor: ESP_BIT(ESP_F32), which the host uses, and others       */
    uint32_t devices;      /* ESP_BIT(ESP_CPU) | ...                                                   */
    const char *name, *summary;
    const char *params;         /* "ratio=0.01,..." with defaults, for help and errors; NULL: takes none */
    const char *default_option; /* text form for strategy "layerwise"; NULL: the library's choice      */
    uint32_t n_rounds;          /* 1 to ESP_ROUNDS_MAX                                                 */
    uint32_t reserved0;
    const esp_round *rounds; /* [n_rounds]; NULL: one round, whose bodies cannot be reduced            */
    /** params: "key=val,key=val" or "" (never NULL). May keep `h`. ESP_E_ARG for an unknown key or bad value. */
    esp_status (*open)(const esp_host *h, const char *params, void **self);
    void (*close)(void *self);
    /** Sizes of round `round` for a part like `like` (its data is not read), whose body is reduced over n_reduced ranks (1:
     *  sent as it is). ESP_E_UNSUPPORTED: the codec cannot compress such a part. */
    esp_status (*bound)(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out);
    /** Enqueues on args->stream. The lists of `a` are gone when the call returns; the memory that they name stays until the
     *  stream has passed it. ESP_E_TOO_SMALL (nothing written past the end) if the payload's capacity is short. */
    esp_status (*compress)(void *self, const esp_codec_args *a);
    /** Checks everything in the payloads before it writes: ESP_E_CORRUPT, and no write out of bounds. What a kernel on a device
     *  finds later is an error of that device's events. A wrapper may have added the payloads before the corrupt one, and of a list
     *  other parts may have been written. */
    esp_status (*decompress)(void *self, const esp_codec_args *a);
    /* optional from here: test with ESP_HAS */
    /** Changes *out where this instance differs from the table. It may have fewer capabilities, not more. */
    esp_status (*traits)(void *self, esp_traits *out);
    /** Describes parts like `like` (only rows and cols matter: a matrix or not) on device `d`, reduced over n_reduced ranks. */
    esp_status (*model)(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d, esp_codec_model *out);
    /** Runs once on the final sum of `ranks` contributions, for example a majority vote. `count` floats, in place. */
    esp_status (*finalize)(void *self, float *sum, uint64_t count, uint32_t ranks, esp_stream s);
    /** Where the body of a part like `like` holds plain f32 values, which a wrapper may recode. `h`: the payload's header, but for
     *  body_bytes, which the wrapper does not know yet; NULL: the largest payload. */
    esp_status (*values)(void *self, const esp_tensor *like, const struct esp_payload_header *h, esp_values *out);
} esp_codec;

/* ---- 5. communication backend table --------------------------------------------------------------- */
enum {
    ESP_BACKEND_STREAM_ORDERED =
        1u << 0, /* test() gives ESP_OK when work is enqueued: later work on its stream sees it */
    ESP_BACKEND_NEEDS_PROGRESS = 1u << 1, /* moves data only inside test() or progress(): the host keeps calling */
    ESP_BACKEND_VARLEN = 1u << 2,         /* moves only the used bytes of payload slots                    */
    ESP_BACKEND_SCALE = 1u << 3,          /* honours esp_coll.scale                                        */
    ESP_BACKEND_PACED = 1u << 4,          /* emulates a link: takes the params inter= and latency=         */
    ESP_BACKEND_CALLER = 1u << 5          /* only the trainer's calls, on its threads, may call it: progress "caller" */
};
/** An offer: open() works again for the ranks that are left after others died, once the comms before are closed. esp_shrink needs it. */
#define ESP_BACKEND_REOPENS ESP_OFFER(0)
/** An offer: a request is done only when its peers have what this rank sends them. So a rank that has left owes nothing. */
#define ESP_BACKEND_DELIVERS ESP_OFFER(1)
enum { ESP_COLL_ALLREDUCE = 1, ESP_COLL_ALLGATHER = 2, ESP_COLL_ALLTOALL = 3, ESP_COLL_REDUCE_SCATTER = 4 };
enum { ESP_COLL_BROADCAST = 5, ESP_COLL_GATHER = 6, ESP_COLL_REDUCE = 7 };

/** Who takes part. Growable. Valid during open() only, except `parent`.
 *  Level 0 has all ranks. Levels 1 to n_levels go from the innermost (ranks of one machine, or the GPUs of one) to the
 *  outermost; a group of level k has one rank of each group of level k - 1 that it joins: those of the same index. A group of
 *  several levels has all ranks whose indices in the other levels are the same. */
enum { ESP_LEVELS = 3 }; /* most levels of a job */
typedef struct esp_group {
    uint32_t struct_size;
    int32_t rank, size;     /* inside this group                                                        */
    int32_t level;          /* 0: all                                                                   */
    int32_t n_levels;       /* of the job, without level 0: 2 for intra and inter                       */
    int32_t last_level;     /* the group joins levels `level` to last_level: mostly one. Level 0: all, so n_levels */
    const char *level_name; /* "flat", "intra", "inter", "intra-inter", ...                             */
    const int32_t *place;   /* [size][n_levels]: each member's index in its group of level 1, 2, ...    */
    const int32_t *machine; /* [size]: machine of each member                                           */
    void *parent;           /* the job's first comm of this backend that has all ranks of this group; NULL: none yet */
    /** Blocking exchange on this group: `bytes` from each rank, out is [size][bytes] in rank order. */
    esp_status (*oob_allgather)(void *user, const void *in, void *out, uint64_t bytes);
    void *user;
} esp_group;

/** One collective. Growable. An *item* is `width` numbers of `dtype`, or one payload slot of `slot_bytes` bytes where
 *  slot_bytes is not 0. `count` is the number of items in the whole buffer. Over n ranks, part p of them is
 *  [p c, min(count, (p+1) c)) with c = ceil(count / n), so that the last parts may be short or empty.
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
 *  Sums: f32; halves are summed in f32 and rounded once; integers wrap. shm and loop sum in rank order, except in a flat
 *  collective over an emulated link: there a ring sums in ring order and rounds halves at every hop, as rings on real links
 *  do. MAX and MIN: a NaN in any rank gives the quiet NaN without sign (a single rank keeps its own); -0 is less than +0.
 *  Every backend gives the same bits on all ranks. Until the request is done, src must not change; afterwards nobody reads
 *  it. */
typedef struct esp_coll {
    uint32_t struct_size, op;
    esp_dtype dtype; /* of reductions and raw copies; 0 with slots                                      */
    int32_t root;
    uint64_t count;      /* in items, see above                                                         */
    uint64_t slot_bytes; /* 0: plain numbers. Otherwise src and dst are arrays of payload slots; only the used bytes
                            of each (header and body) need to move                                      */
    esp_buf src, dst;    /* ptr may be NULL where the table above gives the rank nothing                */
    float scale;         /* sums of f32, f16 and bf16: the result is multiplied by it; 0 means 1        */
    esp_reduce reduce;   /* 0 means ESP_REDUCE_SUM                                                      */
    uint64_t width;      /* numbers of an item: the columns of a matrix that is cut between rows; 0 means 1 */
} esp_coll;

/** Bytes that this rank received from others so far, and the comm's memory. Growable. */
typedef struct esp_traffic {
    uint32_t struct_size, reserved0;
    uint64_t intra_bytes, inter_bytes; /* from ranks of its own machine, and of others                  */
    uint64_t level_bytes[ESP_LEVELS]; /* the same bytes, by the outermost level at which the two ranks' places differ */
    uint64_t memory_bytes;            /* this rank's share of the comm's windows and buffers, at most; 0: not known  */
} esp_traffic;

/** The ranks of the job, from something that connected them before the library: a launcher's library. Growable. */
typedef struct esp_meeting {
    uint32_t struct_size, reserved0;
    int32_t rank, size;
    /** Blocking exchange among all ranks: `bytes` from each, out is [size][bytes] in rank order. */
    esp_status (*oob_allgather)(void *user, const void *in, void *out, uint64_t bytes);
    void *user;
} esp_meeting;

/** One backend. Threads: all calls on one comm (and on comms with the same parent) come from one thread at a time,
 *  except wake and abort, which may come from any thread at any time. Nothing blocks but open and close. */
typedef struct esp_backend {
    uint32_t struct_size, reserved0;
    uint64_t caps;    /* ESP_BACKEND_*                                                                  */
    uint32_t colls;   /* ESP_BIT(ESP_COLL_ALLREDUCE) | ...; allreduce and broadcast are required        */
    uint32_t devices; /* whose memory it moves: ESP_BIT(ESP_CPU) | ...                                  */
    uint32_t dtypes;  /* that it reduces: ESP_BIT(ESP_F32) | ...                                        */
    uint32_t reduces; /* ESP_BIT(ESP_REDUCE_SUM) | ...                                                  */
    const char *name, *summary;
    const char *params; /* as in esp_codec                                                              */
    /** *score 0: cannot run here. The default backend is the one with the highest score. */
    esp_status (*probe)(const esp_host *h, int32_t *score);
    esp_status (*open)(const esp_host *h, const esp_group *g, const char *params, void **comm);
    void (*close)(void *comm); /* never blocks for a peer that is gone                                  */
    /** Begins a collective, after the work that is on `s` now. All ranks of the group start the same collectives in the same
     *  order. `c` is copied. */
    esp_status (*start)(void *comm, const esp_coll *c, esp_stream s, void **req);
    /** Moves data. Returns ESP_OK (done, and `req` is freed), ESP_PENDING or an error, within about 0.2 ms. */
    esp_status (*test)(void *comm, void *req);
    /* optional from here: test with ESP_HAS */
    /** Sleeps until this comm, or one with the same parent, may have changed; until wake(); or for timeout_us. */
    esp_status (*progress)(void *comm, uint64_t timeout_us);
    void (*wake)(void *comm);
    /** A file descriptor, the same for all comms of one parent, so that a thread can sleep on several backends; -1: none. It is
     *  readable from when one of these comms may have changed, or wake() was called, until progress(comm, 0). Call that
     *  first, then look at everything that you wait for (test() every request), and then sleep: no change is missed. */
    int32_t (*wait_fd)(void *comm);
    /** Makes every pending and later call on this comm return ESP_E_PEER soon. */
    esp_status (*abort)(void *comm);
    /** The rank in the group for which `req` waits; -1: not known. */
    int32_t (*straggler)(void *comm, void *req);
    esp_status (*traffic)(void *comm, esp_traffic *out);
    /** Announces memory on which collectives will often work, until dereg: payload slots and work arrays, on the CPU and each of
     *  `devices` (see b->dev), not gradients. Called between steps, on comms without a parent, for all groups. Not without dereg. */
    esp_status (*reg)(void *comm, const esp_buf *b, void **mh);
    esp_status (*dereg)(void *comm, void *mh);
    /** Says who the ranks are, before open(), where nobody names a place to meet: they then meet through `out`. Blocks for all ranks. */
    esp_status (*meet)(const esp_host *h, const char *params, esp_meeting *out);
} esp_backend;

/* ---- 6. device table, plugin entry ---------------------------------------------------------------------- */
/* PINNED: host memory that the device copies from and to without help. HOST_ACCESS: the host may read and write the device's
 * memory, and its streams are always drained. */
enum { ESP_MEM_DEVICE = 0, ESP_MEM_PINNED = 1 };
enum { ESP_DEVICE_HOST_ACCESS = 1u << 0 };
/** One kind of device. Calls that take a stream enqueue, and return before the work is done; their arguments stay valid until
 *  the stream has passed them. Any thread may call; calls on one stream come from one thread at a time. `dst` and `src` are
 *  memory of the device, or PINNED memory of the host. Growable. */
typedef struct esp_device_table {
    uint32_t struct_size;
    esp_devkind kind;
    uint64_t caps; /* ESP_DEVICE_*                                                                      */
    const char *name, *summary;
    /** How many devices of this kind can be used here. */
    esp_status (*probe)(const esp_host *h, int32_t *count);
    esp_status (*open)(const esp_host *h, int32_t ordinal, void **self);
    void (*close)(void *self);
    /** *out: `bytes` bytes, aligned to 256; `where`: ESP_MEM_*. Zeroed. free_ takes the same bytes and where. */
    esp_status (*alloc)(void *self, uint64_t bytes, uint32_t where, void **out);
    void (*free_)(void *self, void *p, uint64_t bytes, uint32_t where);
    esp_status (*stream_create)(void *self, esp_stream *out);
    void (*stream_destroy)(void *self, esp_stream s);
    /** An event marks a place in a stream. query: ESP_OK or ESP_PENDING. sync blocks the caller. Both return the error of work
     *  on this device that failed. */
    esp_status (*event_create)(void *self, void **event);
    void (*event_destroy)(void *self, void *event);
    esp_status (*event_record)(void *self, void *event, esp_stream s);
    esp_status (*event_wait)(void *self, void *event, esp_stream s); /* later work on s waits for the event     */
    esp_status (*event_query)(void *self, void *event);
    esp_status (*event_sync)(void *self, void *event);
    esp_status (*copy)(void *self, void *dst, const void *src, uint64_t bytes, esp_stream s);
    /** `rows` rows of `bytes` bytes, that begin dst_pitch and src_pitch bytes apart. */
    esp_status (*copy2d)(void *self, void *dst, uint64_t dst_pitch, const void *src, uint64_t src_pitch, uint64_t bytes,
                         uint64_t rows, esp_stream s);
    esp_status (*fill)(void *self, void *dst, uint8_t byte, uint64_t bytes, esp_stream s);
    /** dst := (sum: dst) + scale * src, converted from src_dtype to dst_dtype; f32, f16, bf16. dst == src: the same dtype. */
    esp_status (*convert)(void *self, void *dst, esp_dtype dst_dtype, const void *src, esp_dtype src_dtype, float scale,
                          uint32_t sum, uint64_t count, esp_stream s);
    /* optional from here: test with ESP_HAS */
    esp_status (*elapsed)(void *self, void *from, void *to, uint64_t *ns); /* between two events that have passed */
    /** Time that the calling thread has had a core so far, in ns; without it the host's thread clock is used. */
    esp_status (*core_time)(void *self, uint64_t *ns);
    esp_status (*device_name)(void *self, char *out, uint64_t room); /* such as "NVIDIA H100", cut off to fit */
} esp_device_table;

/** A plugin's codecs, backends and devices. Growable; in static storage: a plugin that was accepted is never unloaded. */
typedef struct esp_plugin {
    uint32_t struct_size; /* must be set                                                                */
    uint32_t n_codecs, n_backends, n_devices;
    const esp_codec *const *codecs;
    const esp_backend *const *backends;
    const esp_device_table *const *devices;
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

/** The entry of a plugin that has codecs, or backends, and nothing else: ESP_PLUGIN_CODEC(topk, &topk_codec). Several tables may
 *  follow the id. They are in static storage. */
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

/* ---- 7. payload header: 64 bytes, little-endian, in front of every payload ----------------------------- */
#define ESP_PAYLOAD_HEADER 64u
enum {
    ESP_PAYLOAD_NONFINITE = 1u << 0, /* the input held NaN or Inf: decoding gives NaN everywhere         */
    ESP_PAYLOAD_EMPTY = 1u << 1      /* carries nothing: decoding adds nothing. Not where bodies are reduced */
};
/** Frozen. A codec fills it with esp_payload_header_of(). Where bodies are reduced, no header travels: the host keeps the
 *  rank's own, and reduces the flag NONFINITE beside the body. */
typedef struct esp_payload_header {
    uint32_t codec; /* esp_name_hash of the codec's name                                                */
    uint16_t wire_version, flags;
    uint64_t count;       /* elements that the payload decodes to                                        */
    uint64_t body_bytes;  /* after the header, without padding                                           */
    uint64_t aux;         /* for the codec's own use: 0, or for example the key of a random draw         */
    uint64_t reserved[4]; /* 0                                                                          */
} esp_payload_header;

/** The id of a codec: the 32-bit FNV-1a hash of its name. */
static inline uint32_t esp_name_hash(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ ESP__CAST(unsigned char, *name)) * 16777619u;
    return h;
}
/** A header whose reserved words are 0. */
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
        h->body_bytes > p->data.bytes - ESP_PAYLOAD_HEADER || h->flags > (ESP_PAYLOAD_NONFINITE | ESP_PAYLOAD_EMPTY))
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
