/* strategy.h: the model's tensors, and a strategy: it divides these into sync units, each with a codec and steps. */
#ifndef ESP__STRATEGY_H
#define ESP__STRATEGY_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/codec/codec.h"
#include "espresso_impl/strategy/option.h"
#include "espresso_impl/strategy/region.h"
#include "espresso_impl/strategy/text.h"

/* ---- units.c: the elements of a unit ---- */
/* A piece of an extent (a unit's elements) that lies in one tensor. */
typedef struct esp__segment {
    uint32_t tensor;
    uint64_t begin, length; /* first element in the tensor, and number of elements */
    uint64_t at;            /* elements of the extent's range before this piece */
} esp__segment;
/* Changes `s`, zero at first, to the extent's next piece within [from, from + length). Returns false after the last. */
ESP__FN bool esp__segment_next(const esp_ctx *ctx, const esp__extent *place, uint64_t from, uint64_t length,
                               esp__segment *s);

/* How far a tensor or unit is in a step. CLAIMED: esp_push has begun, but the executor may not use the gradient yet. */
enum { ESP__IDLE = 0, ESP__CLAIMED, ESP__PUSHED, ESP__DONE };

/* How a sharded tensor is cut into parts: once for each scope, first for the outermost one, at multiples of `width`. */
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
    char *codec_override, *option_override; /* from esp_tensor_desc; they precede the strategy's */
    char *gather_spec;                      /* codec for parameters in esp_gather, or NULL */
    esp__codec *gather;                     /* gather_spec's codec, open from esp_start on */
    uint64_t gather_slot;                   /* bytes of one rank's payload of it */
    esp_device where;                       /* the gradient's device */
    uint32_t device;                        /* the context's number for it; 0 is host memory */
    esp__shard shard;                       /* used from esp_start on, with flag ESP_SHARD */
    float *pending_residual;                /* [count], to add to the next gradient, or NULL */
    float *pending_before;                  /* its value before the step, with ESP_DISCARDABLE */
    /* state in the current step */
    int phase;
    uint32_t units_left;         /* number of its units that are not done */
    uint64_t enter_ns, leave_ns; /* begin and end of the call of esp_push */
    esp_tensor_stats sampled;    /* compression error, from observe/errors.c */
    void *grad;
    void *zeros;  /* used if the gradient was not pushed */
    void *pushed; /* device event recorded by the push */
    bool ordered; /* wait for `pushed` before using the gradient */
} esp__tensor;

/* A sync unit: a tensor, a chunk of a tensor, or a group of tensors that are neighbours in backward order. */
typedef struct esp__unit {
    char *name; /* "fc1", chunk "fc1[2/4]", group of eight "fc1+7" */
    uint64_t key;
    esp__extent place;
    uint64_t rows, cols; /* 0 for a group, or a chunk that splits rows */
    uint64_t width;      /* parts begin at multiples of it: cols or 1 */
    esp_dtype dtype;
    uint32_t flags; /* ESP_SUM, or 0 for the mean */
    esp__option option;
    esp__codec *codec;
    uint32_t first_round;     /* rounds of the codec before it are skipped */
    uint32_t device;          /* device of its gradients */
    uint32_t first_op, n_ops; /* indices of its ops in ctx->active.program.ops */
    uint64_t packed;          /* of a group: its offset in the arena in bytes */
    int32_t raw_feedback;     /* index of its raw gradient's feedback, or -1 */
    /* state in the current step */
    int phase;
    uint32_t pc;  /* index of the next op */
    void *data;   /* the gradient, or the arena's copy of a group's */
    void *after;  /* event that the next device op must wait for, or NULL */
    int after_on; /* stream of that event, or -1 */
    uint64_t ready_ns;
} esp__unit;

/* The units that contain a tensor's elements. */
typedef struct esp__tensor_units {
    uint32_t first, n;
} esp__tensor_units;

/* A strategy. Of its order the executor uses only the collectives; the other entries are kept for printing. */
typedef struct esp__strategy {
    esp__unit *units;
    uint32_t n_units;
    esp__tensor_units *of_tensor; /* [number of tensors of the model] */
    uint32_t n_order, *order;     /* collectives in order, each as unit << 8 | step */
    esp__order_entry *entries;    /* the order that was read; NULL if it was generated */
    uint32_t n_entries;
    uint64_t cap_units, cap_order, cap_entries; /* allocated bytes of the three arrays */
    char *text;
    uint64_t hash;
} esp__strategy;

/* The model: its tensors in the order of backward propagation, the last layer first. */
typedef struct esp__model {
    esp__tensor *tensors;
    uint32_t n_tensors, cap_tensors;
    char *codec_spec;               /* esp_config.codec, or NULL */
    uint64_t min_compress_elements; /* built-in strategies do not compress smaller ones */
} esp__model;
static inline const esp__model *esp__model_of(const esp_ctx *ctx) { return esp__base_of(ctx)->model; }

/* ---- units.c: sync units ---- */
ESP__FN bool esp__unit_is_group(const esp__unit *u);
ESP__FN bool esp__unit_is_chunk(const esp_ctx *ctx, const esp__unit *u);
/* Adds a unit to `s`. Returns NULL if memory runs out. For a unit that is no chunk, pass chunk 0 and n_chunks 1. */
ESP__FN esp__unit *esp__unit_add(esp_ctx *ctx, esp__strategy *s, esp__extent place, uint32_t chunk, uint32_t n_chunks);
/* Writes the shape of a part of `count` elements as a matrix, or 0 rows and 0 columns if it is none. */
ESP__FN void esp__unit_shape(const esp__unit *u, uint64_t count, uint64_t *rows, uint64_t *cols);
/* Calls esp__codec_bound_of for a part of `count` elements of unit `u`. */
ESP__FN esp_status esp__codec_bound(const esp_ctx *ctx, const esp__codec *c, const esp__unit *u, uint64_t count,
                                    uint32_t round, uint32_t n_reduced, esp_bound *b);
/* Calls esp__option_chain for the unit's option and rounds. */
ESP__FN uint32_t esp__unit_chain(const esp__unit *u, esp__chain_step out[ESP__CHAIN_MAX]);
ESP__FN void esp__strategy_free(esp_ctx *ctx, esp__strategy *s); /* s may be zeroed */

/* ---- shard.c ---- */
/* Returns the default option of a sharded tensor. It does not compress if `raw`. */
ESP__FN const char *esp__shard_option(const esp_ctx *ctx, const esp_traits *codec, bool raw);
/* Fails if the option leaves ranks with parts and `u` is not sharded, or the reverse. `where` begins error texts. */
ESP__FN esp_status esp__shard_check(const esp_ctx *ctx, const esp__unit *u, const char *option, const char *where);
/* Fails if `y` divides a sharded tensor differently than esp_start did, since ranks keep their parts. */
ESP__FN esp_status esp__shards_check(const esp_ctx *ctx, const esp__strategy *y);
ESP__FN void esp__shards_set(const esp__strategy *y, esp__tensor *tensors, uint32_t n);
/* Writes the index of rank t->rank in its group of each scope, and the groups' sizes. */
ESP__FN void esp__coordinates_of(const esp__topology *t, esp__coordinates *at);
/* Writes which elements belong to a rank's part. */
ESP__FN void esp__shard_range(const esp_ctx *ctx, const esp__shard *s, uint64_t count, int32_t rank, uint64_t *begin,
                              uint64_t *length);

/* ---- assign.c ---- */
/* Gives unit `u` its codec and option, from the arguments or its tensor's description. `where` begins error texts. */
ESP__FN esp_status esp__unit_assign(esp_ctx *ctx, esp__unit *u, const char *spec, const char *option,
                                    const char *where);
/* The option without compression: a flat allreduce, or a hierarchical one that sends each byte over an outer link only
 * once. If `shard`, only the first half of its steps, which leaves each rank with its part. */
ESP__FN void esp__raw_option(const esp_ctx *ctx, bool shard, esp__option *o);

/* ---- strategy.c, read.c, order.c ---- */
/* Fills the zeroed `y` from a built-in name, a text or (if `files`) a file's path. Free it even after an error. */
ESP__FN esp_status esp__strategy_load(esp_ctx *ctx, esp__strategy *y, const char *spec, bool files);
/* Fills `y` from a strategy's text, which error texts call `name`. */
ESP__FN esp_status esp__strategy_parse(esp_ctx *ctx, esp__strategy *y, const char *name, const char *text);
/* Makes s->text and s->hash from the other members. */
ESP__FN esp_status esp__strategy_print(esp_ctx *ctx, esp__strategy *s);
/* Reads a strategy file. The caller frees the text with esp__free or, if ctx is NULL, with free. */
ESP__FN esp_status esp__file_text(esp_ctx *ctx, const char *path, char **out);
/* Makes the order of collectives by a simulation with fixed costs, so that all ranks get the same one. */
ESP__FN esp_status esp__order_make(esp_ctx *ctx, esp__strategy *y);
/* Writes the first and last link lane that a collective of the scope occupies. */
ESP__FN void esp__scope_lanes(const esp__topology *t, uint8_t scope, uint32_t *first, uint32_t *last);
ESP__FN esp__text_tensors esp__text_tensors_of(const esp_ctx *ctx);
#endif
