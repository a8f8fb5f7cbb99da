/* compile.h: types and functions shared by the files that compile a sync unit's option into ops: compile.c, comps.c
 * (Comps), pieces.c (copies cut into pieces), spaces.c (memory spaces and number formats) and emit.c (new ops). A
 * region (strategy/region.h) is what a rank holds of a unit: elements, or payloads in slots. */
#ifndef ESP__COMPILE_H
#define ESP__COMPILE_H
#include "espresso_impl/job/job.h"
#include "espresso_impl/program/program.h"

/* A unit whose tensors are on a GPU uses the GPU's memory and the host's. A unit on the CPU has only ESP__SPACE_DEVICE,
 * which is then host memory. */
enum { ESP__SPACE_HOST, ESP__SPACE_DEVICE };

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
    bool half;    /* the gradient is f16 or bf16; `work` is its f32 copy */
    bool in_grad; /* if `half`: the gradient is newer than `work` */
    double share; /* if `half`: gradient = sum so far * share */
    esp__ref work, slots;
    uint64_t slot_bytes;
    esp_dtype body_dtype; /* dtype in which a collective reduces payloads */
    /* the members below describe the last Comp */
    esp__region comp_region;    /* elements and payloads that the rank holds after it */
    esp__region reduced_region; /* the same after the rounds before the last */
    uint32_t comp_range, comp_ranges;
    uint32_t n_reduced; /* number of ranks that reduce payloads in a Comp's last round */
    int32_t comp_feedback;
    esp__ref reduced; /* payloads of the previous round, after their reduction */
    uint64_t reduced_bytes;
    int reduced_space;
    uint32_t last_value; /* last step that changes numbers; then the sum is divided */
    bool finalized;
    uint32_t device;             /* device of the unit's tensors */
    esp__codec *device_codec;    /* the codec for that device, or NULL */
    int host;                    /* memory space that CPU code can access */
    int space, slots_space;      /* where the numbers and the payloads are now */
    esp__ref grads[2], works[2]; /* per memory space: the unit's elements, their f32 copy */
    esp_status status;
    esp__op nowhere; /* esp__op_new returns it when memory is short */
} esp__compile;

static inline uint32_t esp__space_device(const esp__compile *c, int space) {
    return space == ESP__SPACE_DEVICE ? c->device : ESP__CPU_INDEX;
}
static inline int esp__op_space(const esp__compile *c, const esp__op *op) {
    return op->on == c->device ? ESP__SPACE_DEVICE : ESP__SPACE_HOST;
}
/* Returns the codec's implementation that works on this memory space. */
static inline const esp__codec *esp__codec_of(const esp__compile *c, int space) {
    return space == ESP__SPACE_DEVICE ? c->device_codec : c->u->codec;
}

ESP__FN int esp__codec_space(esp__compile *c, const esp__step *s);
ESP__FN void esp__compile_comp(esp__compile *c, uint32_t i);
ESP__FN int esp__link_space(const esp__compile *c, uint8_t scope);
ESP__FN void esp__numbers_begin(esp__compile *c, int space);
ESP__FN void esp__numbers_to(esp__compile *c, int space, uint32_t step);
/* Both add an op for step i of the unit's option, which works on memory of `space`. esp__op_codec: a Comp or Decomp. */
ESP__FN esp__op *esp__op_codec(esp__compile *c, uint8_t kind, int space, uint32_t i);
ESP__FN esp__op *esp__op_collective(esp__compile *c, int space, uint32_t i);
ESP__FN void esp__op_reduces(esp__compile *c, esp__op *op, uint64_t have, uint64_t want, uint64_t own_slot);
ESP__FN void esp__op_scratch(esp__compile *c, const esp__op *op);
ESP__FN void esp__payloads_to(esp__compile *c, int space, uint32_t step, uint64_t held);
ESP__FN void esp__ranges_make(esp__compile *c, const esp__region *r, esp__op *op);
ESP__FN void esp__reduced_to(esp__compile *c, int space, uint32_t step, bool active);
ESP__FN void esp__spaces_start(esp__compile *c);
ESP__FN void esp__unit_pieces(esp__compile *c);
ESP__FN bool esp__takes_part(const esp__compile *c);
ESP__FN esp__ref esp__arena_place(esp__compile *c, int space, uint64_t bytes);
ESP__FN uint64_t esp__contributions(const esp__compile *c);
ESP__FN esp__op *esp__op_new(esp__compile *c, uint8_t kind, uint8_t lane, uint32_t step);
ESP__FN void esp__op_place(esp__compile *c, esp__op *op, int space, int stream);
ESP__FN void esp__region_now(const esp__compile *c, uint64_t *begin, uint64_t *length);
ESP__FN void esp__room_for_codec(esp__compile *c, int space, uint64_t count, uint32_t round, uint32_t n_reduced,
                                 uint32_t n_parts, const esp_bound *b);
ESP__FN void esp__room_for_phi(esp__compile *c, int space, uint64_t count);
ESP__FN uint32_t *esp__slots_new(esp__compile *c, uint64_t n);
/* Adds a copy op over the numbers that this rank holds. Returns NULL if it holds none. */
ESP__FN esp__op *esp__op_copy(esp__compile *c, uint8_t copy, uint32_t step, float scale);
ESP__FN void esp__to_f32(esp__compile *c, uint32_t step);
ESP__FN void esp__from_f32(esp__compile *c, uint32_t step, double share);
#endif
