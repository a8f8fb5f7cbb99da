/* strategy.h: the model's tensors, and the strategy, which says what is synchronized together (a tensor, a chunk of
 * one, or a group), and with which codec and stages. */
#ifndef ESP__STRATEGY_H
#define ESP__STRATEGY_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/codec/codec.h"
#include "espresso_impl/strategy/option.h"
#include "espresso_impl/strategy/region.h"
#include "espresso_impl/strategy/text.h"

/* ---- units.c: the elements of a sync unit (a tensor, a chunk of one, or a group) ---- */
/* A run of consecutive elements of one tensor. The elements of a group of tensors consist of several such runs. */
typedef struct esp__segment {
    uint32_t tensor;
    uint64_t begin, length; /* in elements of the tensor */
    uint64_t at;
} esp__segment;
/* Moves `s`, which is zeroed at first, to the next run within elements [from, from + length). Returns false after the
 * last. */
ESP__FN bool esp__segment_next(const esp_ctx *ctx, const esp__extent *place, uint64_t from, uint64_t length,
                               esp__segment *s);

/* CLAIMED: esp_push of the tensor has begun but not returned, so the gradient must not be read yet. */
enum { ESP__IDLE = 0, ESP__CLAIMED, ESP__PUSHED, ESP__DONE };

/* How a tensor with ESP_SHARD is divided: between the groups' members at each of `scopes` in turn (first inside
 * machines, for example). Parts begin at multiples of `width` elements. */
typedef struct esp__shard {
    uint8_t scopes[ESP__LEVELS];
    uint32_t n;
    uint64_t width;
} esp__shard;

/* Where a tensor's gradient was at its last push: a node of a binary tree of all gradients' addresses (context/lent.c).
 * */
typedef struct esp__lent {
    uintptr_t begin;
    uint32_t lower, higher; /* index of a tensor plus 1, or 0 */
    bool listed;            /* it is in the tree */
    bool now;
} esp__lent;

typedef struct esp__tensor {
    char *name;
    uint64_t key, count, rows, cols;
    esp_dtype dtype;
    uint32_t flags;
    char *codec_override, *option_override;
    char *gather_spec;
    esp__codec *gather; /* codec that esp_gather compresses parameters with */
    uint64_t gather_slot;
    esp_device where;
    uint32_t device;  /* index in the context's list of devices; 0 is the CPU */
    esp__shard shard; /* set by esp_start if ESP_SHARD is set */
    float *pending_residual;
    float *pending_before; /* what the last push added, if it may still be needed */
    bool pending_added;    /* this step's push has added it */
    int phase;
    uint32_t units_left;
    uint64_t enter_ns, leave_ns; /* when esp_push began and returned */
    esp_tensor_stats sampled;
    uint64_t pushes, zero_pushes; /* steps in which this rank pushed the tensor, or took part with zeros */
    esp__lent lent;
    void *grad;
    void *zeros;
    void *pushed;
    bool ordered; /* device work must wait for the event `pushed` */
} esp__tensor;

/* A sync unit: a tensor, a chunk (range) of one, or a group of tensors that follow each other in backward order. */
typedef struct esp__unit {
    char *name; /* tensor "fc1", chunk "fc1[2/4]", or group of eight "fc1+7" */
    uint64_t key;
    esp__extent place;
    uint64_t rows, cols;
    uint64_t width;
    esp_dtype dtype;
    uint32_t flags;
    esp__option option;
    esp__codec *codec;
    bool replaced;
    uint32_t first_round;
    uint32_t device;
    uint32_t first_op, n_ops;
    uint64_t packed;
    int32_t raw_feedback;
    int phase;
    uint32_t pc;
    void *data;
    void *after;
    int after_on;
    bool unmarked; /* its last op is enqueued, and `after` not recorded */
    uint64_t ready_ns;
} esp__unit;

typedef struct esp__tensor_units {
    uint32_t first, n;
} esp__tensor_units;

typedef struct esp__strategy {
    esp__unit *units;
    uint32_t n_units;
    esp__tensor_units *of_tensor; /* [n_tensors of the model] */
    /* The order of collectives: each is the index of its unit << 8 | the index of its stage in the unit's option. */
    uint32_t n_order, *order;
    esp__order_entry *entries;
    uint32_t n_entries;
    uint64_t cap_units, cap_order, cap_entries;
    char *text;
    uint64_t hash;
} esp__strategy;

/* The model's tensors are in the order in which backward propagation finishes gradients: the last layer comes first. */
typedef struct esp__model {
    esp__tensor *tensors;
    uint32_t n_tensors, cap_tensors;
    uint32_t *names, n_names;       /* [n_names] hash table of names: index of a tensor plus 1, or 0 */
    char *codec_spec;               /* esp_config.codec, or NULL */
    uint64_t min_compress_elements; /* built-in strategies leave smaller tensors uncompressed */
} esp__model;
static inline const esp__model *esp__model_of(const esp_ctx *ctx) { return esp__base_of(ctx)->model; }

/* ---- units.c: sync units ---- */
ESP__FN bool esp__unit_is_group(const esp__unit *u);
ESP__FN bool esp__unit_is_chunk(const esp_ctx *ctx, const esp__unit *u);
/* Returns NULL if memory runs out. For a whole tensor or a group, `chunk` is 0 and `n_chunks` 1. */
ESP__FN esp__unit *esp__unit_add(esp_ctx *ctx, esp__strategy *s, esp__extent place, uint32_t chunk, uint32_t n_chunks);
ESP__FN void esp__unit_shape(const esp__unit *u, uint64_t count, uint64_t *rows, uint64_t *cols);
ESP__FN esp_status esp__codec_bound(const esp_ctx *ctx, const esp__codec *c, const esp__unit *u, uint64_t count,
                                    uint32_t round, uint32_t n_reduced, esp_bound *b);
ESP__FN uint32_t esp__unit_chain(const esp__unit *u, esp__chain_step out[ESP__CHAIN_MAX]);
ESP__FN void esp__strategy_free(esp_ctx *ctx, esp__strategy *s);

/* True if built-in strategies do not compress the tensor because it is small. A tensor with a codec or option of its
 * own never is. */
ESP__FN bool esp__tensor_small(const esp_ctx *ctx, const esp__tensor *t);

/* ---- serve.c: codecs and tensors that do not fit ---- */
/* Returns whether the codec's payloads can only be combined by an allreduce, so that each rank has the whole result. */
ESP__FN bool esp__codec_needs_all(const esp__codec *c);
/* Returns why the codec cannot compress the unit, with what to set, or NULL if it can. */
ESP__FN const char *esp__codec_refuses(const esp_ctx *ctx, const esp__codec *c, const esp__unit *u);
/* Logs for each codec how much of the model is sent uncompressed because the codec cannot compress it. `asked` is the
 * codec that a built-in strategy uses for all tensors, or NULL. */
ESP__FN void esp__codecs_report(const esp_ctx *ctx, const esp__strategy *y, esp__codec *asked);

/* ---- shard.c ---- */
/* Returns the default option of a tensor with ESP_SHARD: without compression if `raw`. */
ESP__FN const char *esp__shard_option(const esp_ctx *ctx, const esp_traits *codec, bool raw);
/* Fails if the option leaves each rank a part of the result but the tensor has no ESP_SHARD, or the other way round. */
ESP__FN esp_status esp__shard_check(const esp_ctx *ctx, const esp__unit *u, const char *option, const char *where);
/* Fails if `y` divides a sharded tensor differently than esp_start did, because ranks keep their parts for training. */
ESP__FN esp_status esp__shards_check(const esp_ctx *ctx, const esp__strategy *y);
ESP__FN void esp__shards_set(const esp__strategy *y, esp__tensor *tensors, uint32_t n);
ESP__FN void esp__coordinates_of(const esp__topology *t, esp__coordinates *at);
ESP__FN void esp__shard_range(const esp_ctx *ctx, const esp__shard *s, uint64_t count, int32_t rank, uint64_t *begin,
                              uint64_t *length);

/* ---- assign.c ---- */
/* Sets the codec and option of `u`: those of the tensor's esp_tensor_desc or, if it has none, `spec` and `option`. */
ESP__FN esp_status esp__unit_assign(esp_ctx *ctx, esp__unit *u, const char *spec, const char *option,
                                    const char *where);
/* Makes an option without compression: one allreduce over all ranks or, if machines are equal, a hierarchical one. If
 * `shard`, it ends when each rank has its part of the sum. */
ESP__FN void esp__raw_option(const esp_ctx *ctx, bool shard, esp__option *o);

/* ---- strategy.c, read.c, order.c ---- */
/* `spec` is a built-in name, the text of a strategy file or, if `files`, a path. Free `y` even after an error. */
ESP__FN esp_status esp__strategy_load(esp_ctx *ctx, esp__strategy *y, const char *spec, bool files);
ESP__FN esp_status esp__strategy_parse(esp_ctx *ctx, esp__strategy *y, const char *name, const char *text);
ESP__FN esp_status esp__strategy_print(esp_ctx *ctx, esp__strategy *s);
/* Reads a strategy file. The caller frees the text with esp__free or, if ctx is NULL, with free. */
ESP__FN esp_status esp__file_text(esp_ctx *ctx, const char *path, char **out);
ESP__FN esp_status esp__order_make(esp_ctx *ctx, esp__strategy *y);
ESP__FN void esp__scope_lanes(const esp__topology *t, uint8_t scope, uint32_t *first, uint32_t *last);
ESP__FN esp__text_tensors esp__text_tensors_of(const esp_ctx *ctx);
#endif
