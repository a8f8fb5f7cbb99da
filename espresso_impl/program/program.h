/* program.h: a strategy compiled for this rank into ops, which the executor runs. Every unit has a chain of ops. An op
 * is one of four kinds, and names its lane and its memory. It depends on the op before it in the chain; ops on a link
 * also run in the strategy's order. */
#ifndef ESP__PROGRAM_H
#define ESP__PROGRAM_H
#include "espresso_impl/device/device.h"
#include "espresso_impl/base/heap.h"
#include "espresso_impl/codec/codec.h"
#include "espresso_impl/strategy/strategy.h"

enum { ESP__OP_COMPRESS = 1, ESP__OP_DECOMPRESS, ESP__OP_COLLECTIVE, ESP__OP_COPY };
enum {
    ESP__COPY_SWAP = 1, /* brings another dimension of a slot array to the front         */
    ESP__COPY_TO_F32,   /* halves of the gradient into the f32 work array, times `scale` */
    ESP__COPY_FROM_F32, /* the f32 work array into the halves, times `scale`             */
    ESP__COPY_SCALE,    /* multiplies the region in place                                */
    ESP__COPY_FINALIZE, /* the codec's finalize() on the final sum (majority vote)       */
    ESP__COPY_PACK,     /* one tensor of a group into the group's memory                 */
    ESP__COPY_UNPACK,   /* the group's memory back into all its tensors                  */
    ESP__COPY_DOWN,     /* numbers or payloads from the unit's device to the host        */
    ESP__COPY_UP        /* and back                                                      */
};

/* Memory of an op, as an offset in a block whose address is known only in the step: the gradient, the arena of the
 * unit's device, or that device's pinned memory of the host. A unit on the CPU has no pinned memory. */
enum { ESP__AT_NOTHING = 0, ESP__AT_DATA, ESP__AT_ARENA, ESP__AT_PINNED };
typedef struct esp__ref {
    uint8_t at;
    uint64_t offset; /* bytes */
} esp__ref;

/* One part of a compress or decompress op: a range of elements, and the payloads for it. */
typedef struct esp__range {
    uint64_t begin, length; /* elements of the unit */
    uint32_t first_slot;    /* in program.slots: its payloads' slot numbers, in the order of the sum */
    uint32_t reduced_slot;  /* this part's slot of the round before */
    uint64_t state_offset, state_bytes;
} esp__range;

/* A piece of a copy between the spaces. The op beside the copy works on the same pieces: see pieces.c. */
typedef struct esp__copy_piece {
    uint64_t offset, bytes; /* from the copy's begin */
    uint32_t n_ranges;      /* of the Comp or Decomp that works on it */
    uint32_t event;         /* of a copy down: marks the piece's end */
} esp__copy_piece;

typedef struct esp__collective_op {
    esp_coll coll;       /* without the pointers, which src and dst give */
    uint8_t scope;       /* gives the comm */
    uint8_t links;       /* the link lanes that it occupies, bit 0 for intra; op.lane is the outermost */
    bool stream_ordered; /* the backend puts it in order with the device's other work: the host need not see its end */
    bool rebuild;        /* reduces bodies: headers stay on this rank, see esp__headers_hide */
    esp__ref src, dst;
    /* rebuild */
    uint64_t slot_bytes, n_sent, n_slots; /* slots at src, at dst */
    uint64_t own_slot;                    /* the slot at src whose header belongs to the first at dst */
    esp__ref headers;                     /* room for n_slots headers */
} esp__collective_op;

typedef struct esp__codec_op {
    const esp__codec *codec; /* the codec's implementation for the op's device */
    bool raw;                /* a Comp that reads the rank's own gradient */
    bool headers_later;      /* the host reads the headers at the end of the step, from memory_on.headers */
    uint8_t comp_index;
    uint32_t first_range, n_ranges, n_sources;
    int32_t feedback; /* index in active.feedback, or -1 */
    uint32_t source, n_reduced;
    esp__ref data, slots; /* element 0 of the unit (f32), and payload slot 0 */
    uint64_t slot_bytes;
    esp__ref reduced;       /* payload slot 0 of the round before, with reduced bodies; nothing in the first round */
    uint64_t reduced_bytes; /* of one such slot */
    uint32_t first_header;  /* in memory_on.headers */
    float scale;            /* decompress */
} esp__codec_op;

typedef struct esp__copy_op {
    uint8_t what; /* ESP__COPY_* */
    float scale;
    uint32_t member;          /* PACK: the tensor; the op waits for its push */
    const esp__codec *codec;  /* FINALIZE */
    esp__ref src, dst;        /* SWAP, DOWN, UP */
    esp__ref grad, work;      /* the others: element 0 of the unit, in its dtype and as f32 */
    uint64_t begin, length;   /* elements; DOWN, UP: bytes */
    uint64_t outer, mid, run; /* SWAP: [outer][mid] runs of `run` bytes -> [mid][outer] */
} esp__copy_op;

typedef struct esp__op {
    uint8_t kind, lane;
    uint8_t step;            /* of the option */
    uint8_t round, n_rounds; /* of the codec */
    uint8_t on, stream;      /* the device whose memory the op works on, and the stream there */
    bool timed_later;        /* the op's time is known from its events, at the end of the step */
    uint32_t event;          /* in memory_on.events: marks the op's end */
    uint32_t unit;
    /* DOWN and UP: the pieces of the copy. The op behind DOWN or before UP has the same. n_pieces 0: not cut */
    uint32_t first_piece, n_pieces;
    char *label;
    union {
        esp__collective_op collective;
        esp__codec_op codec; /* compress, decompress */
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
/* Is the op in a stream behind a link's collectives? */
static inline bool esp__op_behind(const esp__op *op) {
    return op->kind != ESP__OP_COLLECTIVE && op->stream >= ESP__ON_LINKS;
}
/* Which scratch memory the op uses. Ops whose streams differ may run at the same time. */
static inline uint32_t esp__scratch_of(const esp__op *op) {
    return esp__op_behind(op) ? (uint32_t)(op->stream - ESP__ON_LINKS) / 2 + 1 : 0;
}
/* How many ranges of a compress or decompress op go into one call of the codec: all of them, where it takes lists. */
static inline uint32_t esp__op_list(const esp__op *op) {
    return op->codec.codec->traits.caps & ESP_CODEC_LISTS && op->codec.n_ranges ? op->codec.n_ranges : 1;
}

/* What a program needs on one device. */
typedef struct esp__program_on {
    uint64_t arena_bytes, pinned_bytes;
    uint64_t scratch_bytes, phi_count; /* for the codec call that needs most */
    uint32_t n_events, n_headers;
    uint32_t n_behind; /* streams behind links: those of lane 0, 1, ... Each has its own scratch memory */
} esp__program_on;

typedef struct esp__program {
    esp__op *ops;
    esp__range *ranges;
    uint32_t *slots;
    esp__copy_piece *pieces;
    uint32_t n_ops, n_ranges, n_slots, n_pieces;
    uint64_t cap_ops, cap_ranges, cap_slots, cap_pieces; /* bytes allocated for the arrays */
    uint32_t max_payloads, max_list; /* of one call: payloads of a decompress; parts, where they are more than 1 */
    esp__program_on on[ESP__DEVICES_MAX];
} esp__program;

static inline uint32_t esp__list_most(const esp__program *p) { return p->max_list ? p->max_list : 1; }

/* The feedback of one Comp of one unit on this rank. Memory belongs to the context. */
typedef struct esp__feedback {
    esp__extent place;      /* of the unit                                                         */
    uint64_t codec, option; /* hashes of their texts                                               */
    uint32_t comp_index, n_ranges;
    bool raw;               /* the Comp reads the rank's own gradient: a change of strategy keeps the residual */
    bool owner_replica;     /* this rank is the lowest with this residual */
    uint32_t device;        /* where the arrays below lie                                          */
    uint64_t offset, count; /* element range in the unit                                           */
    float *residual;        /* count floats, or NULL                                               */
    uint8_t *state;         /* the codec's, or NULL                                                */
    uint64_t state_bytes;
    float *residual_before; /* ESP_DISCARDABLE: copies from before the step                        */
    uint8_t *state_before;
} esp__feedback;

/* To which backends an arena was announced. */
typedef struct esp__announced {
    uint32_t to;              /* bit p: to that of job.parents[p] */
    void *given[ESP__SCOPES]; /* [p]: what its reg() gave */
} esp__announced;

/* A program's memory on one device, and in the host's memory for copies to and from it. */
typedef struct esp__memory_on {
    esp__device *device;
    uint8_t *arena, *pinned, *scratch;
    float *phi;          /* [has.phi_count]: room for what is compressed and for a decoded payload */
    uint64_t *used;      /* where compress writes the bytes used, which nobody reads; one for each scratch memory */
    uint8_t *headers;    /* of all payloads that were compressed in this step */
    uint8_t *flags;      /* pinned: `headers` at the end of the step */
    uint64_t settled_ns; /* when the device had done the last step */
    void **events; /* [2 n_events]: the begin and the end of each op; NULL: all work is done when a call returns */
    esp__program_on has; /* what was taken */
    esp__announced announced;
} esp__memory_on;

/* The active strategy, its program, and all of its memory. */
typedef struct esp__active {
    bool discardable;   /* keeps copies of the feedback from before each step: ESP_DISCARDABLE */
    bool sample_errors; /* an observer decodes payloads that this rank sends               */
    esp__strategy strategy;
    esp__program program;
    esp__feedback *feedback;
    uint32_t n_feedback;
    uint64_t cap_feedback; /* bytes */
    uint64_t memory_bytes;
    uint64_t slots_bytes, feedback_bytes; /* of memory_bytes: the arenas; residuals and codecs' state */
    uint64_t most_bytes;                  /* ESPRESSO_MEMORY_MAX, or 0 */
    esp_payload *payloads;                /* room for the payloads of the call of a decompress that has most       */
    void *list_room;
    esp__codec_list list; /* in list_room, for the call that has most parts                        */
    esp__heap ready;      /* units whose next op is on the cpu or compute lane; key: unit */
    uint32_t *sequence[ESP__LEVELS], n_sequence[ESP__LEVELS]; /* ops of each link lane, in the strategy's order */
    uint32_t *order, n_order;                                 /* collectives of all lanes, in the strategy's order */
    bool has_behind;                                          /* some ops are in streams behind links */
    uint32_t behind;      /* [0 .. behind) of `order`: all that follows them in streams behind links is enqueued */
    esp__span *op_time;   /* [program.n_ops] of the step under way, or of the last one              */
    uint64_t *op_core_ns; /* [program.n_ops] core time of each op, while lanes.core_times is not 0; else 0 */
    esp__memory_on on[ESP__DEVICES_MAX];
    uint32_t *pending, n_pending; /* units whose next op must not begin before their device has done the op before it */
} esp__active;

/* ---- compile.c --------------------------------------------------------------------------------------------------- */
/* Compiles all units of f->strategy into f->program, and sets the sizes of f->feedback. Takes no memory for feedback.
 */
ESP__FN esp_status esp__program_make(esp_ctx *ctx, esp__active *f);
ESP__FN void esp__program_free(esp_ctx *ctx, esp__program *p);

/* ---- memory.c: the memory of a program --------------------------------------------------------------------------- */
ESP__FN esp_status esp__memory_take(esp_ctx *ctx, esp__active *f);
ESP__FN void esp__active_free(esp_ctx *ctx, esp__active *f); /* strategy and program too; a zeroed `f` is fine */

ESP__FN uint8_t *esp__at(const esp__active *f, const esp__op *op, esp__ref r); /* the address of `r` in this step */
/* The event at the op's begin or end; NULL: the op's work is done when its call returns. */
static inline void *esp__op_event(const esp__active *f, const esp__op *op, bool end) {
    void *const *events = f->on[op->on].events;
    return events ? events[2 * op->event + end] : NULL;
}

/* Announces f's arenas to each backend that has reg(), and moves such memory; and takes that back, between steps and
 * before the comms close. */
ESP__FN esp_status esp__arenas_announce(esp_ctx *ctx, esp__active *f);
ESP__FN void esp__arenas_withdraw(esp_ctx *ctx, esp__active *f);

/* ---- feedback.c: from one strategy to the next, so that nothing is lost ------------------------------------------ */
/* Takes memory, pending[tensor] (n_tensors pointers, NULL: none yet), for those residuals of all[n] that have no place
 * in `to`. */
ESP__FN esp_status esp__feedback_pending_take(esp_ctx *ctx, const esp__active *to, const esp__feedback *all, uint32_t n,
                                              float **pending);
/* Adds these residuals to pending, and moves the others of all[n] to their place in `to`. Fails only where a device
 * does: then feedback is lost, and the job cannot go on. */
ESP__FN esp_status esp__feedback_move(esp_ctx *ctx, const esp__active *to, const esp__feedback *all, uint32_t n,
                                      float **pending);

/* The lane's name, with the names of the job's levels: "machine". For people: strategies have words. */
ESP__FN const char *esp__lane_name(const esp_ctx *ctx, uint32_t lane); /* ctx NULL: the standard word */
#endif
