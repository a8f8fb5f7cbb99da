/* compile.h: what the files share that compile a unit's option into ops: program.c, program_comp.c (Comps), program_sides.c (a unit
 * on a device), program_pieces.c (copies cut into pieces). */
#ifndef ESP__COMPILE_H
#define ESP__COMPILE_H
#include "espresso_impl/job/job.h"
#include "espresso_impl/program/program.h"

/* The state of compiling one unit, step by step. */
typedef struct esp__compile {
    esp_ctx *ctx;
    const esp__job *job;
    esp__active *f;
    esp__program *p;
    esp__unit *u;
    uint32_t unit, comps;
    esp__coordinates at;
    esp__region region;
    int half;     /* the gradient is f16 or bf16: `work` holds it as f32 around Comps        */
    int in_grad;  /* half: 1 while the region's numbers are in the gradient, 0: in `work`    */
    double share; /* half: the gradient is the sum so far times `share`, so that no sum overflows */
    esp__ref work, slots;
    uint64_t slot_bytes;
    esp_dtype body_dtype; /* of the numbers of bodies that a collective reduces */
    /* since the last Comp */
    esp__region comp_region;    /* right after it */
    esp__region reduced_region; /* of the slots that its rounds before the last leave */
    uint32_t comp_range, comp_ranges;
    uint32_t n_reduced; /* over how many ranks the bodies of its last round are reduced */
    int32_t comp_feedback;
    esp__ref reduced; /* slots of the round before */
    uint64_t reduced_bytes;
    int reduced_space;
    uint32_t last_value; /* the last step that changes numbers; after it the sum becomes the mean  */
    int finalized;
    /* a unit on a device; both spaces are the host's on the CPU */
    uint32_t device;
    esp__codec *device_codec;    /* the codec for this device; NULL: Comps and Decomps run on the CPU */
    int space, slots_space;      /* where the numbers and the payloads are: 0 host, 1 device */
    esp__ref grads[2], works[2]; /* for each space, once it is used: the unit's elements, and `work` */
    esp_status status;
    esp__op nowhere; /* esp__op_new returns it when memory is short, so that its callers need no check */
} esp__compile;

ESP__FN int esp__codec_space(esp__compile *c, const esp__step *s);
ESP__FN void esp__compile_comp(esp__compile *c, uint32_t i);
ESP__FN int esp__link_space(const esp__compile *c, uint8_t scope);
ESP__FN void esp__numbers_begin(esp__compile *c, int space);
ESP__FN void esp__numbers_to(esp__compile *c, int space, uint32_t step);
/* The unit's step i as an op on this space's memory: a Comp or Decomp; a collective. */
ESP__FN esp__op *esp__op_codec(esp__compile *c, uint8_t kind, int space, uint32_t i);
ESP__FN esp__op *esp__op_collective(esp__compile *c, int space, uint32_t i);
ESP__FN void esp__op_reduces(esp__compile *c, esp__op *op, uint64_t have, uint64_t want, uint64_t own_slot);
ESP__FN void esp__op_scratch(esp__compile *c, const esp__op *op);
ESP__FN void esp__payloads_to(esp__compile *c, int space, uint32_t step, uint64_t held);
ESP__FN void esp__ranges_make(esp__compile *c, const esp__region *r, esp__op *op);
ESP__FN void esp__reduced_to(esp__compile *c, int space, uint32_t step, int active);
ESP__FN void esp__spaces_start(esp__compile *c);
ESP__FN void esp__unit_pieces(esp__compile *c);
ESP__FN int esp__takes_part(const esp__compile *c);
ESP__FN esp__ref esp__arena_place(esp__compile *c, int space, uint64_t bytes);
ESP__FN uint64_t esp__contributions(const esp__compile *c);
ESP__FN esp__op *esp__op_new(esp__compile *c, uint8_t kind, uint8_t lane, uint32_t step);
ESP__FN void esp__op_place(esp__compile *c, esp__op *op, int space, int stream);
ESP__FN void esp__region_now(const esp__compile *c, uint64_t *begin, uint64_t *length);
ESP__FN void esp__room_for_codec(esp__compile *c, int space, uint64_t count, uint32_t round, uint32_t n_reduced,
                                 uint32_t n_parts, const esp_bound *b);
ESP__FN void esp__room_for_phi(esp__compile *c, int space, uint64_t count);
ESP__FN uint32_t *esp__slots_new(esp__compile *c, uint64_t n);
ESP__FN void esp__to_f32(esp__compile *c, uint32_t step);
#endif
