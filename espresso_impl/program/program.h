/* program.h: a strategy compiled for this rank into ops, which the executor runs. The ops of one sync unit (a tensor, a
 * chunk of one, or a group) run one after another. A slot is memory for one compressed payload: a header and the data.
 * A codec such as PowerSGD compresses several times per step, in several rounds. */
#ifndef ESP__PROGRAM_H
#define ESP__PROGRAM_H
#include "espresso_impl/device/device.h"
#include "espresso_impl/base/heap.h"
#include "espresso_impl/codec/codec.h"
#include "espresso_impl/strategy/strategy.h"

enum { ESP__OP_COMPRESS = 1, ESP__OP_DECOMPRESS, ESP__OP_COLLECTIVE, ESP__OP_COPY };
enum {
    ESP__COPY_SWAP = 1, /* reorders payloads before an alltoall */
    ESP__COPY_TO_F32,   /* converts f16 or bf16 to f32, times `scale` */
    ESP__COPY_FROM_F32, /* converts f32 to f16 or bf16, times `scale` */
    ESP__COPY_SCALE,
    ESP__COPY_FINALIZE,
    ESP__COPY_PACK,   /* copies a tensor into its group's memory */
    ESP__COPY_UNPACK, /* copies a group's memory back into its tensors */
    ESP__COPY_DOWN,   /* copies from the GPU to the host */
    ESP__COPY_UP      /* copies from the host to the GPU */
};

/* An address: `offset` bytes into the gradient (DATA), into the strategy's block of memory on the gradient's device
 * (ARENA), or into host memory that is pinned for a GPU (PINNED). */
enum { ESP__AT_NOTHING = 0, ESP__AT_DATA, ESP__AT_ARENA, ESP__AT_PINNED };
typedef struct esp__ref {
    uint8_t at;
    uint64_t offset;
} esp__ref;

/* Elements that one call of the codec compresses or decompresses, and the payloads of them. */
typedef struct esp__range {
    uint64_t begin, length; /* in elements of the tensor or group */
    uint32_t first_slot;    /* index in program.slots of its first payload's slot */
    uint32_t reduced_slot;  /* number of the slot with the previous round's sum */
    uint64_t state_offset, state_bytes;
} esp__range;

/* A large copy between GPU and host is cut into pieces (pieces.c), so that the CPU can compress or decompress one piece
 * while another is copied. */
typedef struct esp__copy_piece {
    uint64_t offset, bytes; /* offset in the copy */
    uint32_t n_ranges;      /* ranges of the compress or decompress op in this piece */
    uint32_t event;         /* event recorded at the piece's end, if the copy is to the host */
} esp__copy_piece;

typedef struct esp__collective_op {
    esp_coll coll; /* pointers are set when it starts, from src and dst */
    uint8_t scope; /* which ranks take part, such as ESP__INTRA */
    uint8_t links; /* set of links that it uses; bit 0: inside machines */
    bool stream_ordered;
    bool rebuild; /* sums payloads, whose headers are restored afterwards */
    esp__ref src, dst;
    /* set if `rebuild` is true */
    uint64_t slot_bytes, n_sent, n_slots; /* payloads at src (n_sent) and at dst (n_slots) */
    uint64_t own_slot;                    /* index at src of the first payload that this rank keeps */
    esp__ref headers;
} esp__collective_op;

typedef struct esp__codec_op {
    const esp__codec *codec; /* implementation for the op's device */
    bool raw;                /* compresses the rank's own gradient, not a sum */
    bool headers_later;      /* headers are copied from the GPU at the step's end */
    uint8_t comp_index;
    uint32_t first_range, n_ranges, n_sources;
    int32_t feedback;
    uint32_t source, n_reduced, n_summed;
    esp__ref data;  /* element 0 of the f32 numbers */
    esp__ref slots; /* the first payload */
    uint64_t slot_bytes;
    esp__ref reduced;       /* first payload of the previous round; unset in the first */
    uint64_t reduced_bytes; /* bytes of one payload of the previous round */
    uint32_t first_header;  /* index of its first header in esp__memory_on.headers */
    float scale;            /* a decompress op multiplies its result by it */
} esp__codec_op;

typedef struct esp__copy_op {
    uint8_t what; /* ESP__COPY_* */
    float scale;
    uint32_t member; /* PACK: index of the tensor */
    const esp__codec *codec;
    esp__ref src, dst;        /* set for SWAP, DOWN and UP */
    esp__ref grad, work;      /* set for other copies: element 0 of the gradient, and of its f32 copy */
    uint64_t begin, length;   /* in elements; for DOWN and UP in bytes */
    uint64_t outer, mid, run; /* SWAP transposes [outer][mid] runs of `run` bytes to [mid][outer] */
} esp__copy_op;

typedef struct esp__op {
    uint8_t kind, lane;
    uint8_t step;
    uint8_t round, n_rounds; /* the codec's round, from 0, and the number of rounds */
    uint8_t on, stream;      /* index of the device, and of a stream on it */
    bool timed_later;        /* its duration is read from device events at the step's end */
    uint32_t event;          /* its events begin at ESP__EVENTS times this number */
    uint32_t unit;
    /* pieces of a copy between GPU and host, and of the host's op before or after it; n_pieces is 0 if it is copied at
     * once */
    uint32_t first_piece, n_pieces;
    char *label;
    union {
        esp__collective_op collective;
        esp__codec_op codec;
        esp__copy_op copy;
    };
} esp__op;

static inline bool esp__op_is_copy(const esp__op *op, uint8_t what) {
    return op->kind == ESP__OP_COPY && op->copy.what == what;
}
static inline bool esp__op_is_codec(const esp__op *op) {
    return op->kind == ESP__OP_COMPRESS || op->kind == ESP__OP_DECOMPRESS;
}
static inline bool esp__stream_ordered(const esp__op *op) {
    return op->kind == ESP__OP_COLLECTIVE && op->collective.stream_ordered;
}
/* True if the op is in a stream that waits for the collectives of a link. */
static inline bool esp__op_behind(const esp__op *op) {
    return op->kind != ESP__OP_COLLECTIVE && op->stream >= ESP__ON_LINKS;
}
static inline uint32_t esp__scratch_of(const esp__op *op) {
    return esp__op_behind(op) ? (uint32_t)(op->stream - ESP__ON_LINKS) / 2 + 1 : 0;
}
/* Returns how many of the op's ranges of elements one codec call handles: all if the codec accepts lists, else 1. */
static inline uint32_t esp__op_list(const esp__op *op) {
    return op->codec.codec->traits.caps & ESP_CODEC_LISTS && op->codec.n_ranges ? op->codec.n_ranges : 1;
}

typedef struct esp__program_on {
    uint64_t arena_bytes, pinned_bytes;
    uint64_t scratch_bytes, phi_count; /* largest need of a codec call, in bytes and floats */
    uint32_t n_events, n_headers;
    uint32_t n_behind;
} esp__program_on;

typedef struct esp__program {
    esp__op *ops;
    esp__range *ranges;
    uint32_t *slots;
    esp__copy_piece *pieces;
    uint32_t n_ops, n_ranges, n_slots, n_pieces;
    uint64_t cap_ops, cap_ranges, cap_slots, cap_pieces;
    uint32_t max_payloads, max_list; /* largest numbers in one codec call */
    esp__program_on on[ESP__DEVICES_MAX];
} esp__program;

static inline uint32_t esp__list_most(const esp__program *p) { return p->max_list ? p->max_list : 1; }

/* What error feedback keeps for one compress stage on this rank. The context owns the memory. */
typedef struct esp__feedback {
    esp__extent place;
    uint64_t codec, option; /* hashes, to find the same codec and option in the next strategy */
    uint32_t comp_index, n_ranges;
    bool raw;           /* compresses the rank's own gradient, not a sum */
    bool owner_replica; /* of the ranks with this residual, this is the lowest */
    uint32_t device;
    uint64_t offset, count; /* in elements of the tensor or group */
    float *residual;
    uint8_t *state;
    uint64_t state_bytes;
    float *residual_before; /* copies from before the step, with ESP_DISCARDABLE */
    uint8_t *state_before;
} esp__feedback;

/* The backends with which an arena (block of payload memory) is registered by reg(), so that they can send from it. */
typedef struct esp__announced {
    uint32_t to;              /* bit p: the backend of job.parents[p] has it */
    void *given[ESP__SCOPES]; /* [p] is the handle that its reg() returned */
} esp__announced;

/* A program's memory on one device, and pinned host memory for copies to and from it. */
typedef struct esp__memory_on {
    esp__device *device;
    uint8_t *arena, *pinned, *scratch;
    float *phi;          /* [has.phi_count] inputs of compress ops and decoded payloads */
    uint64_t *used;      /* codecs write payload sizes here; nothing reads them */
    uint8_t *headers;    /* headers of the payloads compressed in this step */
    uint8_t *flags;      /* copy of `headers` in host memory, made at the step's end */
    uint64_t settled_ns; /* when the device finished the last step */
    void **events;       /* [ESP__EVENTS * n_events], or NULL */
    esp__program_on has;
    esp__announced announced;
} esp__memory_on;

typedef struct esp__active {
    bool discardable;
    bool sample_errors; /* measure compression errors */
    esp__strategy strategy;
    esp__program program;
    esp__feedback *feedback;
    uint32_t n_feedback;
    uint64_t cap_feedback;
    uint64_t memory_bytes;
    uint64_t slots_bytes, feedback_bytes; /* parts of it: payloads, error feedback */
    uint64_t most_bytes;
    esp_payload *payloads; /* scratch: arguments of a decompress call */
    void *list_room;
    esp__codec_list list;
    esp__heap ready;                                          /* tensors or groups whose next op needs a core */
    uint32_t *sequence[ESP__LEVELS], n_sequence[ESP__LEVELS]; /* ops of each link, in the strategy's order */
    uint32_t *order, n_order;                                 /* collectives of all links, in the strategy's order */
    bool has_behind;                                          /* some streams wait for collectives */
    uint32_t behind;                                          /* ops after order[0] to order[behind - 1] are enqueued */
    esp__span *op_time;   /* [program.n_ops] begin and end in this step, or the last */
    uint64_t *op_core_ns; /* [program.n_ops] ns of CPU time; 0 if it is not measured */
    esp__memory_on on[ESP__DEVICES_MAX];
    uint32_t *pending, n_pending; /* tensors or groups whose op a device has not finished */
} esp__active;

/* ---- compile.c --------------------------------------------------------------------------------------------------- */
/* Compiles f->strategy into f->program. Computes the sizes of f->feedback, without allocating its arrays. */
ESP__FN esp_status esp__program_make(esp_ctx *ctx, esp__active *f);
ESP__FN void esp__program_free(esp_ctx *ctx, esp__program *p);

/* ---- memory.c: the memory of a program --------------------------------------------------------------------------- */
ESP__FN esp_status esp__memory_take(esp_ctx *ctx, esp__active *f);
ESP__FN void esp__active_free(esp_ctx *ctx, esp__active *f);

ESP__FN uint8_t *esp__at(const esp__active *f, const esp__op *op, esp__ref r);
/* Returns an event of the op, or NULL if the op's work is done when its call returns. Later work waits for
 * ESP__EVENT_AFTER; _BEGIN and _END are for its time, and recorded only in steps that are timed. */
static inline void *esp__op_event(const esp__active *f, const esp__op *op, int which) {
    void *const *events = f->on[op->on].events;
    return events ? events[ESP__EVENTS * op->event + (uint32_t)which] : NULL;
}

/* Announces the arenas to each backend that has reg() and can send from such memory. Call withdraw between steps,
 * before the backends close. */
ESP__FN void esp__arenas_withdraw(esp_ctx *ctx, esp__active *f);

/* ---- feedback.c: residuals move from one strategy to the next ---- */
/* Allocates pending[tensor] for each tensor with a residual in all[n] for which the new strategy `to` has no residual.
 * `pending` has n_tensors pointers. */
ESP__FN esp_status esp__feedback_pending_take(esp_ctx *ctx, const esp__active *to, const esp__feedback *all, uint32_t n,
                                              float **pending);
/* Moves the residuals of all[n] into `to`, or else adds them to `pending`; if `states`, also moves the codecs' states.
 * `ratio` is 1 if `all` is of this job. Else it is this job's number of ranks divided by that of the job that saved
 * `all`: then residuals are multiplied by it, except those of ESP_SUM, and added to what `to` has. If it fails (only if
 * a device fails), residuals are lost, and the job must end. */
ESP__FN esp_status esp__feedback_move(esp_ctx *ctx, const esp__active *to, const esp__feedback *all, uint32_t n,
                                      float **pending, double ratio, bool states);

/* Returns the name of a link or core, with the job's own names of levels, such as "machine". */
ESP__FN const char *esp__lane_name(const esp_ctx *ctx, uint32_t lane);
#endif
