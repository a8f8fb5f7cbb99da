/* compile.h: shared by the files that turn a tensor's option (its sequence of compress stages and collectives) into
 * ops: compile.c, comps.c (compress stages), pieces.c (copies cut into pieces), spaces.c (memory and number formats)
 * and emit.c (new ops). */
#ifndef ESP__COMPILE_H
#define ESP__COMPILE_H
#include "espresso_impl/job/job.h"
#include "espresso_impl/program/program.h"

/* The memory in which numbers lie: the host's, or that of the gradient's device (which may be the CPU's, too). */
enum { ESP__SPACE_HOST, ESP__SPACE_DEVICE };

typedef struct esp__compile {
    esp_ctx *ctx;
    const esp__job *job;
    esp__active *f;
    esp__program *p;
    esp__unit *u;
    uint32_t unit, comps;
    esp__coordinates at;
    esp__region region;
    bool half; /* true if the gradient is f16 or bf16; `work` is its f32 copy */
    bool in_grad;
    double share;
    esp__ref work, slots;
    uint64_t slot_bytes;
    esp_dtype body_dtype;
    /* the last compress stage: */
    esp__region comp_region;
    esp__region reduced_region;
    uint32_t comp_range, comp_ranges;
    uint32_t n_reduced;
    uint32_t n_summed;
    int32_t comp_feedback;
    esp__ref reduced;
    uint64_t reduced_bytes;
    int reduced_space;
    uint32_t last_value;
    bool finalized;
    uint32_t device;
    esp__codec *device_codec;
    int host;
    int space, slots_space;
    esp__ref grads[2], works[2];
    esp_status status;
    esp__op nowhere;
} esp__compile;

static inline uint32_t esp__space_device(const esp__compile *c, int space) {
    return space == ESP__SPACE_DEVICE ? c->device : ESP__CPU_INDEX;
}
static inline int esp__op_space(const esp__compile *c, const esp__op *op) {
    return op->on == c->device ? ESP__SPACE_DEVICE : ESP__SPACE_HOST;
}
static inline const esp__codec *esp__codec_of(const esp__compile *c, int space) {
    return space == ESP__SPACE_DEVICE ? c->device_codec : c->u->codec;
}

ESP__FN int esp__codec_space(esp__compile *c, const esp__step *s);
ESP__FN void esp__compile_comp(esp__compile *c, uint32_t i);
ESP__FN int esp__link_space(const esp__compile *c, uint8_t scope);
ESP__FN void esp__numbers_begin(esp__compile *c, int space);
ESP__FN void esp__numbers_to(esp__compile *c, int space, uint32_t step);
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
ESP__FN esp__op *esp__op_copy(esp__compile *c, uint8_t copy, uint32_t step, float scale);
ESP__FN void esp__to_f32(esp__compile *c, uint32_t step);
ESP__FN void esp__from_f32(esp__compile *c, uint32_t step, double share);
#endif
