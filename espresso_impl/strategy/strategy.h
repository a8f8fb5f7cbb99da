/* strategy.h: the model's tensors, and a strategy: sync units, each with a codec and an option, and their order. */
#ifndef ESP__STRATEGY_H
#define ESP__STRATEGY_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/codec/codec.h"
#include "espresso_impl/strategy/option.h"
#include "espresso_impl/strategy/region.h"
#include "espresso_impl/strategy/text.h"

/* ---- units.c: which elements of which tensors -------------------------------------------------------------------- */
/* A piece of an extent's elements that lies in one tensor. */
typedef struct esp__segment {
    uint32_t tensor;
    uint64_t begin, length; /* in the tensor */
    uint64_t at;            /* elements of the extent's range before it */
} esp__segment;
/* Changes `s`, zero at first, to the next piece of an extent's elements [from, from + length), if there is one. */
ESP__FN bool esp__segment_next(const esp_ctx *ctx, const esp__extent *place, uint64_t from, uint64_t length,
                               esp__segment *s);

/* Phases of a tensor or unit in a step. CLAIMED: esp_push has begun, but the executor may not use the gradient yet. */
enum { ESP__IDLE = 0, ESP__CLAIMED, ESP__PUSHED, ESP__DONE };

/* How a sharded tensor is cut into parts: once for each scope, the outermost cut first, at multiples of `width`. */
typedef struct esp__shard {
    uint8_t scopes[ESP__LEVELS];
    uint32_t n;
    uint64_t width;
} esp__shard;

typedef struct esp__tensor {
    char *name;
    uint64_t key, count, rows, cols;
    esp_dtype dtype;
    uint32_t flags;
    char *codec_override, *option_override; /* esp_tensor_desc's, instead of the strategy's */
    char *gather_spec;                      /* codec of gathered parameters, or NULL */
    esp__codec *gather;                     /* that codec, open from esp_start on */
    uint64_t gather_slot;                   /* bytes of a slot for its payloads */
    esp_device where;                       /* the gradient's device */
    uint32_t device;                        /* its index in the context; 0 is host memory */
    esp__shard shard;                       /* from esp_start on, if ESP_SHARD */
    float *pending_residual;                /* [count] to add to the next gradient, or NULL */
    float *pending_before;                  /* as before the step, if ESP_DISCARDABLE */
    /* in a step */
    int phase;
    uint32_t units_left;         /* its units that are not done */
    uint64_t enter_ns, leave_ns; /* of the call of esp_push */
    esp_tensor_stats sampled;    /* observe/errors.c writes it */
    void *grad;
    void *zeros;  /* in place of a gradient that was not pushed */
    void *pushed; /* on a device: the event of the push */
    bool ordered; /* wait for `pushed` before using the gradient */
} esp__tensor;

/* A sync unit: a tensor, a chunk of one, or a group of neighbours. */
typedef struct esp__unit {
    char *name; /* tensor "fc1", chunk "fc1[2/4]", group of eight "fc1+7" */
    uint64_t key;
    esp__extent place;
    uint64_t rows, cols; /* 0 for groups, and chunks of broken rows */
    uint64_t width;      /* cuts lie at its multiples: cols or 1 */
    esp_dtype dtype;
    uint32_t flags; /* ESP_SUM or 0 */
    esp__option option;
    esp__codec *codec;
    uint32_t first_round;     /* rounds before it have no payload */
    uint32_t device;          /* of its tensors' gradients */
    uint32_t first_op, n_ops; /* its ops in ctx->active.program.ops */
    uint64_t packed;          /* of a group: its offset in the arena */
    int32_t raw_feedback;     /* error feedback of the gradient itself, or -1 */
    /* in a step */
    int phase;
    uint32_t pc;  /* the next op */
    void *data;   /* the gradient, or a group's copy in the arena */
    void *after;  /* event that the next device op waits for, or NULL */
    int after_on; /* the stream of `after`, or -1 */
    uint64_t ready_ns;
} esp__unit;

/* The units of a tensor's elements. */
typedef struct esp__tensor_units {
    uint32_t first, n;
} esp__tensor_units;

/* A strategy. The executor uses only the collectives of its order; the other entries are kept for printing. */
typedef struct esp__strategy {
    esp__unit *units;
    uint32_t n_units;
    esp__tensor_units *of_tensor; /* [n_tensors of the model] */
    uint32_t n_order, *order;     /* collectives: unit << 8 | step */
    esp__order_entry *entries;    /* as read; NULL if `order` was generated */
    uint32_t n_entries;
    uint64_t cap_units, cap_order, cap_entries; /* bytes of the arrays */
    char *text;
    uint64_t hash;
} esp__strategy;

/* The model: its tensors in backward order. */
typedef struct esp__model {
    esp__tensor *tensors;
    uint32_t n_tensors, cap_tensors;
    char *codec_spec;               /* esp_config.codec, or NULL */
    uint64_t min_compress_elements; /* built-in strategies compress no smaller tensors */
} esp__model;
static inline const esp__model *esp__model_of(const esp_ctx *ctx) { return esp__base_of(ctx)->model; }

/* ---- units.c: sync units ---- */
ESP__FN bool esp__unit_is_group(const esp__unit *u);
ESP__FN bool esp__unit_is_chunk(const esp_ctx *ctx, const esp__unit *u);
/* Adds a unit to `s`; NULL when out of memory. `chunk` and `n_chunks` are 0 and 1 unless it is a chunk. */
ESP__FN esp__unit *esp__unit_add(esp_ctx *ctx, esp__strategy *s, esp__extent place, uint32_t chunk, uint32_t n_chunks);
/* The rows and columns of a part of `count` elements, or 0 if it is no matrix. */
ESP__FN void esp__unit_shape(const esp__unit *u, uint64_t count, uint64_t *rows, uint64_t *cols);
/* esp__codec_bound_of for a part of `count` elements of unit `u`. */
ESP__FN esp_status esp__codec_bound(const esp_ctx *ctx, const esp__codec *c, const esp__unit *u, uint64_t count,
                                    uint32_t round, uint32_t n_reduced, esp_bound *b);
/* esp__option_chain with the unit's option and rounds. */
ESP__FN uint32_t esp__unit_chain(const esp__unit *u, esp__chain_step out[ESP__CHAIN_MAX]);
ESP__FN void esp__strategy_free(esp_ctx *ctx, esp__strategy *s); /* zeroed is fine */

/* ---- shard.c ---- */
/* The default option of a sharded tensor, without compression if `raw`. */
ESP__FN const char *esp__shard_option(const esp_ctx *ctx, const esp_traits *codec, bool raw);
/* Fails unless the option leaves ranks with parts exactly if the tensor is sharded. `where` begins the message. */
ESP__FN esp_status esp__shard_check(const esp_ctx *ctx, const esp__unit *u, const char *option, const char *where);
/* Fails if `y` would change the parts of a sharded tensor that ranks have since esp_start. */
ESP__FN esp_status esp__shards_check(const esp_ctx *ctx, const esp__strategy *y);
ESP__FN void esp__shards_set(const esp__strategy *y, esp__tensor *tensors, uint32_t n);
/* The indices of t->rank in its groups, and the groups' sizes. */
ESP__FN void esp__coordinates_of(const esp__topology *t, esp__coordinates *at);
/* The elements of a rank's part. */
ESP__FN void esp__shard_range(const esp_ctx *ctx, const esp__shard *s, uint64_t count, int32_t rank, uint64_t *begin,
                              uint64_t *length);

/* ---- assign.c ---- */
/* Gives unit `u` its codec and option, of the arguments or its tensor's description. Messages begin with `where`. */
ESP__FN esp_status esp__unit_assign(esp_ctx *ctx, esp__unit *u, const char *spec, const char *option,
                                    const char *where);
/* The option without compression: the flat allreduce, or a hierarchical one that sends each byte over an outer link
 * only once. For a `shard`, only the first half of its steps. */
ESP__FN void esp__raw_option(const esp_ctx *ctx, bool shard, esp__option *o);

/* ---- strategy.c, read.c, order.c ---- */
/* Fills the zeroed `y` from a built-in name, a strategy's text, or (if `files`) a path. Free it even after an error. */
ESP__FN esp_status esp__strategy_load(esp_ctx *ctx, esp__strategy *y, const char *spec, bool files);
/* Fills `y` from a strategy's text; messages call the text `name`. */
ESP__FN esp_status esp__strategy_parse(esp_ctx *ctx, esp__strategy *y, const char *name, const char *text);
/* Sets s->text and s->hash from the other members. */
ESP__FN esp_status esp__strategy_print(esp_ctx *ctx, esp__strategy *s);
/* Reads a strategy file into memory that esp__free frees, or if ctx is NULL, free. */
ESP__FN esp_status esp__file_text(esp_ctx *ctx, const char *path, char **out);
/* Generates the order of collectives from nominal costs; the same on all ranks. */
ESP__FN esp_status esp__order_make(esp_ctx *ctx, esp__strategy *y);
/* The first and last link lane that a collective of the scope occupies. */
ESP__FN void esp__scope_lanes(const esp__topology *t, uint8_t scope, uint32_t *first, uint32_t *last);
ESP__FN esp__text_tensors esp__text_tensors_of(const esp_ctx *ctx);
#endif
