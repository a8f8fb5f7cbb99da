/* strategy.h: the model's tensors, and a strategy: sync units, each with a codec and an option, and the order of their collectives.
 * Knows nothing of the memory and threads that run it. */
#ifndef ESP__STRATEGY_H
#define ESP__STRATEGY_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/codec/codec.h"
#include "espresso_impl/strategy/option.h"
#include "espresso_impl/strategy/region.h"
#include "espresso_impl/strategy/text.h"

/* ---- units.c: which elements of which tensors ------------------------------------------------------------------------------ */
/* A piece of an extent's elements that lies in one tensor. */
typedef struct esp__segment {
    uint32_t tensor;
    uint64_t begin, length; /* in the tensor                             */
    uint64_t at;            /* how many of the elements asked for are before it */
} esp__segment;
/* Changes `s` to the next piece of an extent's elements [from, from + length). Zero `s` before the first call. 0: no more. */
ESP__FN int esp__segment_next(const esp_ctx *ctx, const esp__extent *place, uint64_t from, uint64_t length,
                              esp__segment *s);

/* Phases of a tensor, and of a unit, in a step. Claimed: esp_push has begun, but the executor may not use the gradient yet. */
enum { ESP__IDLE = 0, ESP__CLAIMED, ESP__PUSHED, ESP__DONE };

/* How a sharded tensor is cut into the ranks' parts: in these scopes, the first outermost, between numbers or rows of `width`. */
typedef struct esp__shard {
    uint8_t scopes[ESP__LEVELS];
    uint32_t n; /* 0: not cut */
    uint64_t width;
} esp__shard;

typedef struct esp__tensor {
    char *name;
    uint64_t key, count, rows, cols;
    esp_dtype dtype;
    uint32_t flags;
    char *want_codec, *want_option; /* from esp_tensor_desc: they replace any strategy's          */
    char *want_gather;              /* ESP_SHARD: the codec of the parameters; NULL: exact          */
    esp__codec *gather;             /* that codec, opened by esp_start                              */
    uint64_t gather_slot;           /* bytes of a slot for its payloads                             */
    esp_device where;               /* the gradient's device                                        */
    uint32_t device;                /* its index in the context; 0: the host may touch its memory   */
    esp__shard shard;               /* ESP_SHARD: its parts, from esp_start on                      */
    float *pending_residual;        /* the pending residual, `count` floats; NULL: none             */
    float *pending_before;          /* ESP_DISCARDABLE: the pending residual that the last push added */
    /* the step */
    int phase;
    uint32_t units_left;         /* how many of its units are not done                         */
    uint64_t enter_ns, leave_ns; /* when esp_push was called for it, and when it returned      */
    esp_tensor_stats sampled;    /* written by observe/errors.c                                         */
    void *grad;
    void *zeros;  /* memory in place of a gradient that was never pushed        */
    void *pushed; /* on a device: the event after which the gradient is there   */
    int ordered;  /* 1: wait for `pushed`                                       */
} esp__tensor;

/* A sync unit: a tensor, a chunk of one, or a group of neighbours. */
typedef struct esp__unit {
    char *name; /* "fc1.weight", its second chunk "fc1.weight[2/4]", with seven neighbours "fc1.weight+7" */
    uint64_t key;
    esp__extent place;
    uint64_t rows, cols; /* 0: not a matrix. A chunk of whole rows is one, a group is none */
    uint64_t width;      /* cuts lie at multiples of it: cols if the codec needs matrices, else 1 */
    esp_dtype dtype;
    uint32_t flags; /* ESP_SUM, if its tensors have it                            */
    esp__option option;
    esp__codec *codec;
    uint32_t first_round;     /* of the codec, for this unit: those before it have no body         */
    uint32_t device;          /* of its tensors' gradients                          */
    uint32_t first_op, n_ops; /* this rank's chain in ctx->active.program.ops                      */
    uint64_t packed;          /* a group: where its elements begin in the arena             */
    int32_t raw_feedback;     /* index of the feedback of the Comp on the rank's own gradient; -1: none */
    /* the step */
    int phase;
    uint32_t pc;  /* next op of the chain                                       */
    void *data;   /* its elements: in the gradient, or for a group in the arena */
    void *after;  /* on a device: the event of the op before, for which the next one waits; NULL: none */
    int after_on; /* the stream in which `after` is; -1: another                  */
    uint64_t ready_ns;
} esp__unit;

/* The units of a tensor's elements. */
typedef struct esp__tensor_units {
    uint32_t first, n;
} esp__tensor_units;

/* A strategy. The executor uses only the collectives of its order; other entries are kept for whoever reads its text. */
typedef struct esp__strategy {
    esp__unit *units;
    uint32_t n_units;
    esp__tensor_units *of_tensor; /* [n_tensors of the model] */
    uint32_t n_order, *order;     /* collectives: unit << 8 | step of the option                */
    esp__order_entry *entries;    /* the whole order as read; NULL: order[] was generated      */
    uint32_t n_entries;
    uint64_t cap_units, cap_order, cap_entries; /* bytes allocated for the arrays                           */
    char *text;
    uint64_t hash;
} esp__strategy;

/* The model: its tensors in backward order. */
typedef struct esp__model {
    esp__tensor *tensors;
    uint32_t n_tensors, cap_tensors;
    char *codec_spec;               /* esp_config.codec, for tensors that name none; NULL: no codec */
    uint64_t min_compress_elements; /* built-in strategies compress no smaller tensors */
} esp__model;
static inline const esp__model *esp__model_of(const esp_ctx *ctx) { return esp__base_of(ctx)->model; }

/* ---- units.c ------------------------------------------------------------------------------------------------------------- */
ESP__FN int esp__unit_is_group(const esp__unit *u);
ESP__FN int esp__unit_is_chunk(const esp_ctx *ctx, const esp__unit *u);
/* Adds a unit to `s`. chunk, n_chunks: 0 and 1 unless it is a chunk. NULL: out of memory. */
ESP__FN esp__unit *esp__unit_add(esp_ctx *ctx, esp__strategy *s, esp__extent place, uint32_t chunk, uint32_t n_chunks);
/* The rows and columns of a part of `count` elements; 0 and 0 if it is no matrix. */
ESP__FN void esp__unit_shape(const esp__unit *u, uint64_t count, uint64_t *rows, uint64_t *cols);
/* esp__codec_bound_of for a part of `count` elements of unit `u`. */
ESP__FN esp_status esp__codec_bound(const esp_ctx *ctx, const esp__codec *c, const esp__unit *u, uint64_t count,
                                    uint32_t round, uint32_t n_reduced, esp_bound *b);
/* The steps of the unit's option, once for each round of its codec; returns how many. */
ESP__FN uint32_t esp__unit_chain(const esp__unit *u, esp__chain_step out[ESP__CHAIN_MAX]);
ESP__FN void esp__strategy_free(esp_ctx *ctx, esp__strategy *s); /* zeroed is fine */

/* ---- shard.c --------------------------------------------------------------------------------------------------------------- */
/* The default option of a sharded tensor. raw: without compression. */
ESP__FN const char *esp__shard_option(const esp_ctx *ctx, const esp_traits *codec, int raw);
/* Fails unless the unit ends narrow where its tensor is sharded, and only there. `where` begins the message. */
ESP__FN esp_status esp__shard_check(const esp_ctx *ctx, const esp__unit *u, const char *option, const char *where);
/* Fails if `y` would give ranks other parts of a sharded tensor than they have since esp_start. */
ESP__FN esp_status esp__shards_check(const esp_ctx *ctx, const esp__strategy *y);
ESP__FN void esp__shards_set(const esp__strategy *y, esp__tensor *tensors, uint32_t n);
/* The place of t->rank in its group of each scope. */
ESP__FN void esp__coordinates_of(const esp__topology *t, esp__coordinates *at);
/* The elements of a rank's part. */
ESP__FN void esp__shard_range(const esp_ctx *ctx, const esp__shard *s, uint64_t count, int32_t rank, uint64_t *begin,
                              uint64_t *length);

/* ---- assign.c --------------------------------------------------------------------------------------------------------- */
/* Gives unit `u` its codec and option; those in its tensor's description replace `spec` and `option`. Messages begin with
 * `where`. */
ESP__FN esp_status esp__unit_assign(esp_ctx *ctx, esp__unit *u, const char *spec, const char *option,
                                    const char *where);
/* The option without compression: the flat allreduce, or the hierarchical one that sends each byte over an outer link only once.
 * shard: its first half. */
ESP__FN void esp__raw_option(const esp_ctx *ctx, int shard, esp__option *o);

/* ---- strategy.c, read.c, order.c ------------------------------------------------------------------------------------------- */
/* Fills `y`, which must be zeroed, from `spec`: a built-in name, a strategy's text, or (if `files`) a path. Free `y` even after an
 * error. */
ESP__FN esp_status esp__strategy_load(esp_ctx *ctx, esp__strategy *y, const char *spec, int files);
/* Fills `y` from a strategy's text; messages call the text `name`. */
ESP__FN esp_status esp__strategy_parse(esp_ctx *ctx, esp__strategy *y, const char *name, const char *text);
ESP__FN esp_status esp__strategy_print(esp_ctx *ctx,
                                       esp__strategy *s); /* sets s->text and s->hash from all other members */
/* The content of a small file, in memory of ctx (freed with esp__free), or without ctx of malloc. */
ESP__FN esp_status esp__file_text(esp_ctx *ctx, const char *path, char **out);
/* Generates the order of collectives from nominal costs; the same on all ranks. */
ESP__FN esp_status esp__order_make(esp_ctx *ctx, esp__strategy *y);
/* The link lanes that a collective of the scope occupies: *first to *last. */
ESP__FN void esp__scope_lanes(const esp__topology *t, uint8_t scope, uint32_t *first, uint32_t *last);
/* The tensors of the context, for the reader and the printer of texts. */
ESP__FN esp__text_tensors esp__text_tensors_of(const esp_ctx *ctx);
#endif
