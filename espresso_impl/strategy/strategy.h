/* strategy.h: a strategy: sync units, each with a codec and an option, and the order of their collectives. Knows nothing of
 * memory, threads and time. */
#ifndef ESP__STRATEGY_H
#define ESP__STRATEGY_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/plugins/plugins.h"
#include "espresso_impl/strategy/option.h"
#include "espresso_impl/strategy/region.h"
#include "espresso_impl/strategy/text.h"

/* ---- units.c: where elements of tensors lie ------------------------------------------------------------------------------ */
/* The elements of one unit: a tensor, a range of one, or several neighbours whole. */
typedef struct esp__extent {
    uint32_t first, n;     /* tensors                                      */
    uint64_t begin, count; /* elements; begin: in the tensor, if it is one */
} esp__extent;
/* A piece of them that lies in one tensor. */
typedef struct esp__segment {
    uint32_t tensor;
    uint64_t begin, length; /* in the tensor                             */
    uint64_t at;            /* of the elements asked for: how many are before it */
} esp__segment;
/* The next piece of elements [from, from + length) of a place. `s` is zeroed before the first. 0: no more. */
ESP__FN int esp__segment_next(const esp_ctx *ctx, const esp__extent *place, uint64_t from, uint64_t length,
                              esp__segment *s);

/* Of a tensor in a step, and of a unit. Claimed: a push is under way, the gradient is not yet the library's. */
enum { ESP__IDLE = 0, ESP__CLAIMED, ESP__PUSHED, ESP__DONE };

typedef struct esp__tensor {
    char *name;
    uint64_t key, count, rows, cols;
    esp_dtype dtype;
    uint32_t flags;
    char *want_codec, *want_option; /* from the descriptor, over any strategy                     */
    float *carry;                   /* feedback that lost its place: added to the next push; or NULL */
    float *spent;                   /* ESP_DISCARDABLE: what the last step's push added              */
    /* the step */
    int phase;
    uint32_t units_left;         /* not yet done                                               */
    uint64_t enter_ns, leave_ns; /* its esp_push: called, and about to return                  */
    esp_tensor_stats sampled;    /* observe/errors.c's                                                  */
    void *grad;
    void *zeros; /* stands in for a gradient that was never pushed             */
} esp__tensor;

/* What is synchronised as one: a tensor, a chunk of one, or a group of neighbours. */
typedef struct esp__work_unit {
    char *name; /* "fc1.weight", its second chunk "fc1.weight[2/4]", with seven neighbours "fc1.weight+7" */
    uint64_t key;
    esp__extent place;
    uint64_t rows, cols; /* 0: not a matrix, as chunks and groups                      */
    esp_dtype dtype;
    uint32_t flags; /* ESP_SUM of its tensors                                     */
    esp__option option;
    esp__codec *codec;
    uint32_t first_op, n_ops; /* this rank's chain in ctx->in_force.program.ops                      */
    uint64_t packed;          /* a group: where in the arena its tensors lie side by side   */
    int32_t raw_feedback;     /* of the Comp on the rank's own gradient, or -1              */
    /* the step */
    int phase;
    uint32_t pc; /* next op of the chain                                       */
    void *data;  /* its elements: in the gradient, or a group's in the arena   */
    uint64_t ready_ns;
} esp__work_unit;

/* The units that hold a tensor's elements. */
typedef struct esp__tensor_units {
    uint32_t first, n;
} esp__tensor_units;

/* What is in force, or about to be. The executor follows collectives only; the other entries are for readers of the text. */
typedef struct esp__strategy {
    esp__work_unit *units;
    uint32_t n_units;
    esp__tensor_units *of_tensor; /* [n_tensors of the model] */
    uint32_t n_order, *order;     /* collectives: unit << 8 | step of the option                */
    esp__order_entry *entries;    /* the order as given; none: it was generated                */
    uint32_t n_entries;
    uint64_t cap_units, cap_order, cap_entries; /* bytes, of the arrays                                     */
    char *text;
    uint64_t hash;
} esp__strategy;

/* What is trained: the tensors in backward order. */
typedef struct esp__model {
    esp__tensor *tensors;
    uint32_t n_tensors, cap_tensors;
    char *codec_spec; /* of tensors that name none; NULL: nothing is compressed */
} esp__model;
ESP__FN const esp__model *esp__model_of(const esp_ctx *ctx); /* executor/context.c */

/* ---- units.c ------------------------------------------------------------------------------------------------------------- */
ESP__FN int esp__unit_is_group(const esp__work_unit *u);
ESP__FN int esp__unit_is_chunk(const esp_ctx *ctx, const esp__work_unit *u);
/* Adds a unit to `s`; chunk of n_chunks: 0 of 1 where the tensor is whole. NULL: out of memory. */
ESP__FN esp__work_unit *esp__unit_add(esp_ctx *ctx, esp__strategy *s, esp__extent place, uint32_t chunk,
                                      uint32_t n_chunks);
/* Sizes for a part of `count` elements of a unit (NULL: of no unit); every member set. */
ESP__FN esp_status esp__codec_bound(const esp_ctx *ctx, const esp__codec *c, const esp__work_unit *u, uint64_t count,
                                    esp_bound *b);
ESP__FN void esp__strategy_free(esp_ctx *ctx, esp__strategy *s); /* zeroed is fine */

/* ---- strategy.c, read.c, order.c ------------------------------------------------------------------------------------------- */
/* Units, options, codecs and order from `spec`: a built-in name, a strategy's text, or (if `files`) a path. Into `y`, zeroed;
 * free it in any case. */
ESP__FN esp_status esp__strategy_load(esp_ctx *ctx, esp__strategy *y, const char *spec, int files);
/* Of a strategy's text; `name` stands for it in messages. */
ESP__FN esp_status esp__strategy_parse(esp_ctx *ctx, esp__strategy *y, const char *name, const char *text);
/* Gives a unit its codec and option. What the description of its tensor asks for comes first. `where` opens the message. */
ESP__FN esp_status esp__unit_assign(esp_ctx *ctx, esp__work_unit *u, const char *spec, const char *option,
                                    const char *where);
/* Only with the same number (over one) of ranks on each of several machines do intra and inter mean something. */
ESP__FN int esp__hierarchical(const esp_ctx *ctx);
ESP__FN esp_status esp__strategy_print(esp_ctx *ctx,
                                       esp__strategy *s); /* its text and its hash, from everything else */
/* A small file, whole; NULL and the error if it cannot be read. Freed with free(). */
ESP__FN char *esp__file_text(const esp_ctx *ctx, const char *path);
/* The order of collectives by the clock's rule under nominal costs: the same on all ranks. */
ESP__FN esp_status esp__order_make(esp_ctx *ctx, esp__strategy *y);
/* The tensors of the context, for the reader and the printer of texts. */
ESP__FN esp__text_tensors esp__text_tensors_of(const esp_ctx *ctx);
/* Where this rank stands for one unit. */
ESP__FN void esp__coordinates_of(const esp_ctx *ctx, uint32_t unit, esp__coordinates *at);
#endif
