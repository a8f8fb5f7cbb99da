/* program.h: a strategy compiled for this rank: what the executor walks. Every op is one of four kinds and knows its lane,
 * its memory and its place in its unit's chain; an op depends on the one before it in the chain, and link ops run in the
 * strategy's order. */
#ifndef ESP__PROGRAM_H
#define ESP__PROGRAM_H
#include "espresso_impl/strategy/region.h"

enum { ESP__OP_COMPRESS = 1, ESP__OP_DECOMPRESS, ESP__OP_COLLECTIVE, ESP__OP_COPY };
enum {
    ESP__COPY_SWAP = 1, /* brings another dimension of a slot array to the front        */
    ESP__COPY_TO_F32,   /* halves of the gradient into the f32 work array, times `scale` */
    ESP__COPY_FROM_F32, /* and back                                                     */
    ESP__COPY_SCALE,    /* multiplies the region in place                               */
    ESP__COPY_FINALIZE, /* the codec's last word on the sum (majority vote)             */
    ESP__COPY_PACK,     /* a tensor of a group into the group's memory                  */
    ESP__COPY_UNPACK    /* all of them back                                             */
};

/* Memory that an op names before the step's pointer is known. */
enum { ESP__AT_NOTHING = 0, ESP__AT_DATA = 1, ESP__AT_ARENA = 2 };
typedef struct esp__ref {
    uint8_t at;
    uint64_t offset; /* bytes */
} esp__ref;

/* One part of a compress or decompress: an element range, and its payloads. */
typedef struct esp__range {
    uint64_t begin, length; /* elements of the unit                                        */
    uint32_t first_slot;    /* in program.slots: one slot number per payload, summed in order */
    uint64_t state_offset, state_bytes;
} esp__range;

typedef struct esp__op {
    uint8_t kind, lane;
    uint8_t both_links; /* a flat collective over several machines holds intra and inter    */
    uint8_t copy;
    uint8_t level; /* collectives: which comm                                          */
    uint8_t step;  /* of the option                                                    */
    uint8_t device;
    uint8_t comp_index;
    uint8_t raw;     /* Comp on the rank's own gradient                                  */
    uint8_t rebuild; /* bodies are summed: write the payloads' headers anew afterwards   */
    uint32_t unit;
    uint32_t member; /* PACK: the tensor, whose push it waits for                        */
    char *label;
    /* collective */
    esp_coll coll; /* but for the pointers                                                  */
    esp__ref src, dst;
    uint64_t n_slots;  /* at dst, with rebuild                                               */
    uint64_t own_slot; /* at src: whose headers are like those at dst                       */
    /* compress, decompress */
    uint32_t first_range, n_ranges, n_sources;
    int32_t feedback; /* index in ctx->in_force.feedback, or -1                                      */
    uint32_t source, n_reduced;
    esp__ref data, slots; /* element 0 of the unit as f32; slot 0                         */
    uint64_t slot_bytes;
    float scale;
    /* copy */
    uint64_t begin, length;     /* elements                                                  */
    uint64_t outer, mid, inner; /* SWAP: [outer][mid][inner] slots -> [mid][outer][inner]   */
} esp__op;

typedef struct esp__program {
    esp__op *ops;
    esp__range *ranges;
    uint32_t *slots;
    uint32_t n_ops, n_ranges, n_slots;
    uint64_t cap_ops, cap_ranges, cap_slots; /* bytes, of the arrays */
    uint64_t arena_bytes;
    uint64_t scratch_bytes, phi_count; /* of the largest call */
    uint32_t max_payloads;
} esp__program;
#endif
