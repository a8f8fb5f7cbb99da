/* program.h: a strategy compiled for this rank into ops, which the executor runs. Each sync unit (a tensor, a chunk or
 * a group) has a chain of ops, which run one after another. A Comp compresses, a Decomp decompresses. A slot is room
 * for one payload, which has a header and a body. A codec with several rounds compresses several times per step. */
#ifndef ESP__PROGRAM_H
#define ESP__PROGRAM_H
#include "espresso_impl/device/device.h"
#include "espresso_impl/base/heap.h"
#include "espresso_impl/codec/codec.h"
#include "espresso_impl/strategy/strategy.h"

enum { ESP__OP_COMPRESS = 1, ESP__OP_DECOMPRESS, ESP__OP_COLLECTIVE, ESP__OP_COPY };
enum {
    ESP__COPY_SWAP = 1, /* reorders payloads for alltoall */
    ESP__COPY_TO_F32,   /* f16 or bf16 gradient to f32, times `scale` */
    ESP__COPY_FROM_F32, /* f32 to the f16 or bf16 gradient, times `scale` */
    ESP__COPY_SCALE,    /* multiplies the numbers by `scale`, in place */
    ESP__COPY_FINALIZE, /* calls the codec's finalize() (majority vote) */
    ESP__COPY_PACK,     /* copies a tensor into its group's memory */
    ESP__COPY_UNPACK,   /* copies a group's memory back into its tensors */
    ESP__COPY_DOWN,     /* copies from the unit's GPU to the host */
    ESP__COPY_UP        /* copies from the host to the unit's GPU */
};

/* Memory of an op: an offset in the gradient, in the arena of the unit's device, or in the host memory that is pinned
 * for that device. Units on the CPU use no pinned memory. */
enum { ESP__AT_NOTHING = 0, ESP__AT_DATA, ESP__AT_ARENA, ESP__AT_PINNED };
typedef struct esp__ref {
    uint8_t at;
    uint64_t offset; /* in bytes */
} esp__ref;

/* One part of a compress or decompress op: a range of elements, and the slots of its payloads. */
typedef struct esp__range {
    uint64_t begin, length; /* elements of the unit */
    uint32_t first_slot;    /* index in program.slots of its first slot number */
    uint32_t reduced_slot;  /* slot of its reduced payload of the previous round */
    uint64_t state_offset, state_bytes;
} esp__range;

/* A piece of a copy between GPU and host (pieces.c). The op before or after the copy works on the same pieces. */
typedef struct esp__copy_piece {
    uint64_t offset, bytes; /* from the copy's begin */
    uint32_t n_ranges;      /* parts of a Comp or Decomp in this piece */
    uint32_t event;         /* event at the piece's end, in a copy to the host */
} esp__copy_piece;

typedef struct esp__collective_op {
    esp_coll coll;       /* pointers are unset: src and dst give them */
    uint8_t scope;       /* scope whose backend runs it */
    uint8_t links;       /* links that it uses; bit 0 is intra */
    bool stream_ordered; /* the backend runs it in the device's stream */
    bool rebuild;        /* reduces payload bodies: headers stay on this rank */
    esp__ref src, dst;
    /* the members below are set if rebuild is true */
    uint64_t slot_bytes, n_sent, n_slots; /* n_sent: slots at src; n_slots: slots at dst */
    uint64_t own_slot;                    /* slot at src that has the header of the first slot at dst */
    esp__ref headers;                     /* memory for n_slots headers */
} esp__collective_op;

typedef struct esp__codec_op {
    const esp__codec *codec; /* the codec's implementation for the op's device */
    bool raw;                /* the Comp reads the rank's own gradient, not a sum */
    bool headers_later;      /* the host reads the headers only at the step's end */
    uint8_t comp_index;
    uint32_t first_range, n_ranges, n_sources;
    int32_t feedback; /* index in active.feedback, or -1 */
    uint32_t source, n_reduced;
    esp__ref data, slots; /* element 0 of the unit as f32; payload slot 0 */
    uint64_t slot_bytes;
    esp__ref reduced;       /* slot 0 of the previous round; unset in the first */
    uint64_t reduced_bytes; /* bytes of one slot of the previous round */
    uint32_t first_header;  /* index in memory_on.headers */
    float scale;            /* factor of the result of a decompress */
} esp__codec_op;

typedef struct esp__copy_op {
    uint8_t what; /* ESP__COPY_* */
    float scale;
    uint32_t member;          /* PACK: the tensor, whose push the op waits for */
    const esp__codec *codec;  /* the codec of FINALIZE */
    esp__ref src, dst;        /* addresses of SWAP, DOWN and UP */
    esp__ref grad, work;      /* other ops: element 0 of the gradient, and as f32 */
    uint64_t begin, length;   /* in elements; for DOWN and UP in bytes */
    uint64_t outer, mid, run; /* SWAP transposes runs of bytes: [outer][mid] to [mid][outer] */
} esp__copy_op;

typedef struct esp__op {
    uint8_t kind, lane;
    uint8_t step;            /* index of the step in the unit's option */
    uint8_t round, n_rounds; /* the codec's round, from 0, and their number */
    uint8_t on, stream;      /* device whose memory the op uses; stream on it */
    bool timed_later;        /* device events give the op's time, at the step's end */
    uint32_t event;          /* event in memory_on.events at the op's end */
    uint32_t unit;
    /* Pieces of a copy between GPU and host, or 0 if it is not cut. The host's op beside the copy has the same. */
    uint32_t first_piece, n_pieces;
    char *label;
    union {
        esp__collective_op collective;
        esp__codec_op codec; /* for compress and decompress */
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
/* True if the op is in a stream that waits for a link's collectives. */
static inline bool esp__op_behind(const esp__op *op) {
    return op->kind != ESP__OP_COLLECTIVE && op->stream >= ESP__ON_LINKS;
}
/* Returns the index of the op's scratch memory. Each stream has its own. */
static inline uint32_t esp__scratch_of(const esp__op *op) {
    return esp__op_behind(op) ? (uint32_t)(op->stream - ESP__ON_LINKS) / 2 + 1 : 0;
}
/* Returns how many parts go into one call of the codec: all, if the codec takes lists. */
static inline uint32_t esp__op_list(const esp__op *op) {
    return op->codec.codec->traits.caps & ESP_CODEC_LISTS && op->codec.n_ranges ? op->codec.n_ranges : 1;
}

typedef struct esp__program_on {
    uint64_t arena_bytes, pinned_bytes;
    uint64_t scratch_bytes, phi_count; /* largest need of one codec call; phi_count in floats */
    uint32_t n_events, n_headers;
    uint32_t n_behind; /* number of streams that wait for links */
} esp__program_on;

typedef struct esp__program {
    esp__op *ops;
    esp__range *ranges;
    uint32_t *slots;
    esp__copy_piece *pieces;
    uint32_t n_ops, n_ranges, n_slots, n_pieces;
    uint64_t cap_ops, cap_ranges, cap_slots, cap_pieces; /* allocated bytes of the arrays */
    uint32_t max_payloads, max_list; /* largest numbers of payloads, and of parts, in one codec call */
    esp__program_on on[ESP__DEVICES_MAX];
} esp__program;

static inline uint32_t esp__list_most(const esp__program *p) { return p->max_list ? p->max_list : 1; }

/* What error feedback keeps for one Comp of one unit on this rank. The context owns the memory. */
typedef struct esp__feedback {
    esp__extent place;      /* tensors or chunk of the unit */
    uint64_t codec, option; /* hashes of the texts of codec and option */
    uint32_t comp_index, n_ranges;
    bool raw;               /* the Comp reads the rank's own gradient, not a sum */
    bool owner_replica;     /* this rank is the lowest that has this residual */
    uint32_t device;        /* device of the arrays below */
    uint64_t offset, count; /* range of elements in the unit */
    float *residual;        /* [count], or NULL */
    uint8_t *state;         /* the codec's state, or NULL */
    uint64_t state_bytes;
    float *residual_before; /* with ESP_DISCARDABLE, copies from before the step */
    uint8_t *state_before;
} esp__feedback;

/* The backends that know an arena, because the library called their reg(). */
typedef struct esp__announced {
    uint32_t to;              /* bit p: the backend of job.parents[p] knows the arena */
    void *given[ESP__SCOPES]; /* [p]: handle that this backend's reg() returned */
} esp__announced;

/* A program's memory on one device, and the host memory for copies to and from it. */
typedef struct esp__memory_on {
    esp__device *device;
    uint8_t *arena, *pinned, *scratch;
    float *phi;          /* [has.phi_count] for compress inputs and decoded payloads */
    uint64_t *used;      /* compress writes payload sizes here, which nobody reads */
    uint8_t *headers;    /* headers of all payloads compressed in this step */
    uint8_t *flags;      /* copy of `headers` on the host, at the step's end */
    uint64_t settled_ns; /* time at which the device finished the last step */
    void **events;       /* [2 n_events] begin and end of ops; NULL without events */
    esp__program_on has; /* sizes that were allocated */
    esp__announced announced;
} esp__memory_on;

typedef struct esp__active {
    bool discardable;   /* ESP_DISCARDABLE is set */
    bool sample_errors; /* an observer measures compression errors */
    esp__strategy strategy;
    esp__program program;
    esp__feedback *feedback;
    uint32_t n_feedback;
    uint64_t cap_feedback; /* allocated bytes of `feedback` */
    uint64_t memory_bytes;
    uint64_t slots_bytes, feedback_bytes; /* parts of memory_bytes: arenas; residuals and states */
    uint64_t most_bytes;                  /* ESPRESSO_MEMORY_MAX, or 0 if there is no limit */
    esp_payload *payloads;                /* argument of the decompress with most payloads */
    void *list_room;
    esp__codec_list list;                                     /* argument of the codec call with most parts */
    esp__heap ready;                                          /* units whose next op needs a cpu or compute lane */
    uint32_t *sequence[ESP__LEVELS], n_sequence[ESP__LEVELS]; /* ops of each link, in the strategy's order */
    uint32_t *order, n_order;                                 /* collectives of all links, in the strategy's order */
    bool has_behind;                                          /* some ops are in streams that wait for links */
    uint32_t behind;      /* all ops that wait for order[0 .. behind) are enqueued */
    esp__span *op_time;   /* [program.n_ops] times in the current or last step */
    uint64_t *op_core_ns; /* [program.n_ops] core time; 0 unless lanes.core_times is set */
    esp__memory_on on[ESP__DEVICES_MAX];
    uint32_t *pending, n_pending; /* units that wait for their device to finish an op */
} esp__active;

/* ---- compile.c --------------------------------------------------------------------------------------------------- */
/* Compiles all units of f->strategy into f->program, and computes the sizes of f->feedback without allocating it. */
ESP__FN esp_status esp__program_make(esp_ctx *ctx, esp__active *f);
ESP__FN void esp__program_free(esp_ctx *ctx, esp__program *p);

/* ---- memory.c: the memory of a program --------------------------------------------------------------------------- */
ESP__FN esp_status esp__memory_take(esp_ctx *ctx, esp__active *f);
ESP__FN void esp__active_free(esp_ctx *ctx, esp__active *f);

ESP__FN uint8_t *esp__at(const esp__active *f, const esp__op *op, esp__ref r); /* address of `r` in this step */
/* Returns the event at the op's begin or end, or NULL if the op's work is done when its call returns. */
static inline void *esp__op_event(const esp__active *f, const esp__op *op, bool end) {
    void *const *events = f->on[op->on].events;
    return events ? events[2 * op->event + end] : NULL;
}

/* Announces f's arenas to each backend that has reg() and can send from such memory. withdraw undoes it; call it
 * between steps and before the backends close. */
ESP__FN esp_status esp__arenas_announce(esp_ctx *ctx, esp__active *f);
ESP__FN void esp__arenas_withdraw(esp_ctx *ctx, esp__active *f);

/* ---- feedback.c: from one strategy to the next, so that nothing is lost ------------------------------------------ */
/* Allocates pending[tensor] for each residual of all[n] that has no place in the strategy `to`. `pending` has n_tensors
 * pointers; NULL if a tensor needs none. */
ESP__FN esp_status esp__feedback_pending_take(esp_ctx *ctx, const esp__active *to, const esp__feedback *all, uint32_t n,
                                              float **pending);
/* Adds these residuals to `pending`, and moves the other residuals of all[n] into `to`. Fails only if a device fails.
 * Residuals are then lost, and the job must end. */
ESP__FN esp_status esp__feedback_move(esp_ctx *ctx, const esp__active *to, const esp__feedback *all, uint32_t n,
                                      float **pending);

/* Returns the lane's name for people, with the job's own names of levels, such as "machine". */
ESP__FN const char *esp__lane_name(const esp_ctx *ctx, uint32_t lane);
#endif
