/* spaces.c: adds copies and conversions where an op needs its numbers in another memory (GPU or host) or format. */
#include "espresso_impl/program/compile.h"

ESP__FN void esp__numbers_begin(esp__compile *c, int space) {
    const uint64_t count = c->u->place.elements;
    const bool work = c->half && esp__option_compresses(&c->u->option);
    c->space = space;
    if (!c->grads[space].at) c->grads[space] = esp__arena_place(c, space, count * esp_dtype_bytes(c->u->dtype));
    if (work && !c->works[space].at) c->works[space] = esp__arena_place(c, space, count * 4u);
    c->work = work ? c->works[space] : c->grads[space];
}

ESP__FN void esp__spaces_start(esp__compile *c) {
    c->device = c->u->device;
    const esp__device *d = esp__device_at(c->ctx, c->device);
    c->host = d->async ? ESP__SPACE_HOST : ESP__SPACE_DEVICE;
    if (esp__option_compresses(&c->u->option)) {
        const esp_status s = esp__codec_on(c->ctx, c->u->codec, d->id.kind, &c->device_codec);
        if (s) c->status = s;
    }
    c->grads[ESP__SPACE_DEVICE].at = ESP__AT_DATA;
    esp__numbers_begin(c, ESP__SPACE_DEVICE);
}

static void esp__warn_of_cpu(const esp__compile *c) {
    esp__device_list *devices = esp__device_list_of(c->ctx);
    const esp__device *d = esp__device_at(c->ctx, c->device);
    if (devices->warned || (d->async && c->device_codec)) return;
    devices->warned = true;
    if (d->async)
        esp__log(c->ctx, ESP_LOG_WARN, "executor",
                 "codec '%s' has no table for device '%s', where tensor '%s' lies: comp@gpu and decomp@gpu of it run "
                 "on the CPU workers",
                 c->u->codec->spec, d->table->name, c->u->name);
    else
        esp__log(c->ctx, ESP_LOG_WARN, "executor",
                 "this machine has no GPU that the library can use: comp@gpu and decomp@gpu run on the CPU workers");
}

ESP__FN int esp__codec_space(esp__compile *c, const esp__step *s) {
    if (s->device != ESP_ON_GPU) return c->host;
    esp__warn_of_cpu(c);
    return c->device_codec ? ESP__SPACE_DEVICE : c->host;
}

/* Returns the memory that the backend of these links can send from. */
ESP__FN int esp__link_space(const esp__compile *c, uint8_t scope) {
    const esp_devkind kind = esp__device_at(c->ctx, c->device)->id.kind;
    return esp__backend_of(c->job, scope)->devices & ESP_BIT(kind) ? ESP__SPACE_DEVICE : c->host;
}

static void esp__space_copy(esp__compile *c, int space, uint32_t step, esp__ref src, esp__ref dst, uint64_t bytes) {
    esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, step);
    const bool up = space == ESP__SPACE_DEVICE;
    esp__op_place(c, op, ESP__SPACE_DEVICE, up ? ESP__ON_UP : ESP__ON_DOWN);
    op->copy.what = up ? ESP__COPY_UP : ESP__COPY_DOWN;
    op->copy.src = src;
    op->copy.dst = dst;
    op->copy.length = bytes;
}

ESP__FN void esp__numbers_to(esp__compile *c, int space, uint32_t step) {
    const bool work = c->half && !c->in_grad;
    const uint64_t e = work ? 4u : esp_dtype_bytes(c->u->dtype);
    uint64_t begin, length;
    if (c->space == space) return;
    esp__ref from = work ? c->works[c->space] : c->grads[c->space];
    esp__numbers_begin(c, space);
    esp__ref to = work ? c->works[space] : c->grads[space];
    if (!esp__takes_part(c)) return;
    esp__region_now(c, &begin, &length);
    from.offset += begin * e;
    to.offset += begin * e;
    esp__space_copy(c, space, step, from, to, length * e);
}

static esp__ref esp__slots_on(esp__compile *c, int space, uint32_t step, esp__ref from, uint64_t bytes) {
    const esp__ref to = esp__arena_place(c, space, bytes);
    esp__space_copy(c, space, step, from, to, bytes);
    return to;
}

ESP__FN void esp__payloads_to(esp__compile *c, int space, uint32_t step, uint64_t held) {
    if (c->slots_space == space) return;
    c->slots_space = space;
    if (held && !c->status) c->slots = esp__slots_on(c, space, step, c->slots, held * c->slot_bytes);
}

ESP__FN void esp__reduced_to(esp__compile *c, int space, uint32_t step, bool active) {
    if (c->reduced_space == space || !active || !c->reduced.at) return;
    c->reduced_space = space;
    if (!c->status)
        c->reduced =
            esp__slots_on(c, space, step, c->reduced, esp__region_slots(&c->reduced_region, &c->at) * c->reduced_bytes);
}

static void esp__room_for_scratch(uint64_t *room, uint64_t each, uint32_t n) {
    const uint64_t all = n > 1 ? n * ((each + 63u) / 64u * 64u) : each;
    if (all > *room) *room = all;
}

ESP__FN void esp__room_for_codec(esp__compile *c, int space, uint64_t count, uint32_t round, uint32_t n_reduced,
                                 uint32_t n_parts, const esp_bound *b) {
    const esp__codec *codec = esp__codec_of(c, space);
    esp_bound t = *b;
    esp_status s = ESP_OK;
    if (codec != c->u->codec) s = esp__codec_bound(c->ctx, codec, c->u, count, round, n_reduced, &t);
    if (!s && (t.payload_bytes > b->payload_bytes || t.state_bytes != b->state_bytes || t.dtype != b->dtype))
        s = esp__fail(c->ctx, ESP_E_ABI,
                      "codec '%s': for %llu elements its tables ask for %llu bytes of payload and %llu of state on the "
                      "CPU, and %llu and %llu on device '%s': they must be the same",
                      c->u->codec->spec, (unsigned long long)count, (unsigned long long)b->payload_bytes,
                      (unsigned long long)b->state_bytes, (unsigned long long)t.payload_bytes,
                      (unsigned long long)t.state_bytes, esp__device_at(c->ctx, c->device)->table->name);
    if (s)
        c->status = s;
    else
        esp__room_for_scratch(&c->p->on[esp__space_device(c, space)].scratch_bytes, t.scratch_bytes, n_parts);
}

/* On the host a codec needs a buffer for its input and one for decoded payloads. On a GPU it needs only the latter, and
 * only if compression errors are measured. */
ESP__FN void esp__room_for_phi(esp__compile *c, int space, uint64_t count) {
    uint64_t *phi = &c->p->on[esp__space_device(c, space)].phi_count;
    const uint64_t n = space == c->host ? 2 * count : c->f->sample_errors ? count : 0;
    if (n > *phi) *phi = n;
}

ESP__FN esp__op *esp__op_copy(esp__compile *c, uint8_t copy, uint32_t step, float scale) {
    if (!esp__takes_part(c)) return NULL;
    esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, step);
    op->copy.what = copy;
    op->copy.work = c->work;
    op->copy.grad = c->grads[c->space];
    op->copy.scale = scale;
    esp__region_now(c, &op->copy.begin, &op->copy.length);
    esp__op_place(c, op, c->space, ESP__ON_COMPUTE);
    return op;
}

ESP__FN void esp__to_f32(esp__compile *c, uint32_t step) {
    if (!c->half || !c->in_grad) return;
    esp__op_copy(c, ESP__COPY_TO_F32, step, (float)(1.0 / c->share));
    c->in_grad = false;
}

/* Converts f32 numbers back to f16 or bf16 and multiplies them by `share`. During a step, share is 1 / (number of ranks
 * summed so far), so that sums do not overflow. */
ESP__FN void esp__from_f32(esp__compile *c, uint32_t step, double share) {
    if (!c->half || c->in_grad) return;
    esp__op_copy(c, ESP__COPY_FROM_F32, step, (float)share);
    c->in_grad = true;
    c->share = share;
}
