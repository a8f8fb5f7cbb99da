/* seal.c: protects payloads on a transport that may damage them, or that may deliver those of former members of the job. Before each
 * such collective an op of the cpu lane writes epoch and CRC-32C into the headers that this rank sends; after it, one checks what
 * arrived, and clears both, so that codecs never see them. Collectives of other backends have no such ops. */
#include "espresso_impl/base/crc32c.h"
#include "espresso_impl/executor/executor.h"

/* What is done to the slots. */
typedef struct esp__seals {
    const esp_ctx *ctx;
    const esp__sealed *on;
    uint64_t caps; /* of the backend that carries them */
    uint64_t bad;  /* the first slot that is not as it was sent; atomic */
} esp__seals;

static uint8_t *esp__seals_read(const esp__seals *s, uint64_t i, esp_payload_header *h) {
    uint8_t *slot = s->on->slots + i * s->on->slot_bytes;
    memcpy(h, slot, sizeof *h);
    return slot;
}

static int esp__seal_fits(const esp__seals *s, const esp_payload_header *h) {
    return h->body_bytes <= s->on->slot_bytes - sizeof *h;
}

static uint32_t esp__seal_sum(const uint8_t *slot, esp_payload_header h) {
    h.crc32c = 0;
    return esp__crc32c(esp__crc32c(0, &h, sizeof h), slot + sizeof h, h.body_bytes);
}

static void esp__seal_some(void *arg, uint64_t begin, uint64_t end) {
    const esp__seals *s = arg;
    for (uint64_t i = begin; i < end; i++) {
        esp_payload_header h;
        uint8_t *slot = esp__seals_read(s, i, &h);
        if (s->caps & ESP_BACKEND_EPOCH) h.epoch = s->ctx->job.epoch;
        if (s->caps & ESP_BACKEND_CHECKSUM && esp__seal_fits(s, &h)) {
            h.flags |= ESP_PAYLOAD_CRC;
            h.crc32c = esp__seal_sum(slot, h);
        }
        memcpy(slot, &h, sizeof h);
    }
}

ESP__FN void esp__payloads_seal(esp_ctx *ctx, const esp__sealed *on) {
    esp__seals s = {ctx, on, esp__backend_of(&ctx->job, on->scope)->caps, UINT64_MAX};
    if (s.caps & ESP__BACKEND_SEALS) ctx->host.parallel_for(ctx->host.user, on->n, 1, esp__seal_some, &s);
}

/* The member of the group whose payload lies in slot i after the collective. */
static int32_t esp__seal_sender(const esp__seals *s, uint64_t i) {
    if (s->on->coll == ESP_COLL_BROADCAST) return s->on->root;
    return (int32_t)(i / (s->on->n / (uint64_t)esp__group_size(&s->ctx->job.topo, s->on->scope)));
}

static int esp__seal_whole(const esp__seals *s, const uint8_t *slot, const esp_payload_header *h) {
    return h->flags & ESP_PAYLOAD_CRC && esp__seal_fits(s, h) && esp__seal_sum(slot, *h) == h->crc32c;
}

static void esp__check_some(void *arg, uint64_t begin, uint64_t end) {
    esp__seals *s = arg;
    const int32_t me = esp__group_index(&s->ctx->job.topo, s->on->scope);
    for (uint64_t i = begin; i < end; i++) {
        esp_payload_header h;
        uint8_t *slot = esp__seals_read(s, i, &h);
        const int own = esp__seal_sender(s, i) == me; /* it did not travel */
        if (!own && ((s->caps & ESP_BACKEND_CHECKSUM && !esp__seal_whole(s, slot, &h)) ||
                     (s->caps & ESP_BACKEND_EPOCH && h.epoch != s->ctx->job.epoch))) {
            uint64_t first = __atomic_load_n(&s->bad, __ATOMIC_RELAXED);
            while (i < first &&
                   !__atomic_compare_exchange_n(&s->bad, &first, i, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            }
            continue;
        }
        h.flags &= (uint16_t)~ESP_PAYLOAD_CRC;
        h.epoch = h.crc32c = 0;
        memcpy(slot, &h, sizeof h);
    }
}

static esp_status esp__check_failed(const esp__seals *s, uint64_t i) {
    const esp_ctx *ctx = s->ctx;
    const int32_t from = esp__group_rank(ctx, s->on->scope, esp__seal_sender(s, i));
    const char *backend = esp__backend_of(&ctx->job, s->on->scope)->name;
    char step[64] = "esp_gather", sums[96] = "its header has changed";
    esp_payload_header h;
    const uint8_t *slot = esp__seals_read(s, i, &h);
    if (s->on->step) esp__step_name(ctx, s->on->step, step, sizeof step);
    if (!(s->caps & ESP_BACKEND_CHECKSUM) || esp__seal_whole(s, slot, &h))
        return esp__fail(ctx, ESP_E_MISMATCH,
                         "tensor '%s': %s: the payload that rank %d sent is of epoch %u, but rank %d is in epoch %u: "
                         "a rank was lost or joined, and one of the two does not know. Start all ranks again, from the "
                         "last state that was saved",
                         s->on->tensor, step, from, (unsigned)h.epoch, ctx->job.rank, (unsigned)ctx->job.epoch);
    if (h.flags & ESP_PAYLOAD_CRC && esp__seal_fits(s, &h))
        snprintf(sums, sizeof sums, "its CRC32C was 0x%08x and is 0x%08x", (unsigned)h.crc32c,
                 (unsigned)esp__seal_sum(slot, h));
    return esp__fail(ctx, ESP_E_CORRUPT,
                     "tensor '%s': %s: the payload that rank %d sent was damaged on its way to rank %d (%s). Backend "
                     "'%s' or what is under it changes data: check the network cards, cables and memory of these two "
                     "ranks' machines, then start again from the last state that was saved",
                     s->on->tensor, step, from, ctx->job.rank, sums, backend);
}

ESP__FN esp_status esp__payloads_check(esp_ctx *ctx, const esp__sealed *on) {
    esp__seals s = {ctx, on, esp__backend_of(&ctx->job, on->scope)->caps, UINT64_MAX};
    if (s.caps & ESP__BACKEND_SEALS) ctx->host.parallel_for(ctx->host.user, on->n, 1, esp__check_some, &s);
    return s.bad == UINT64_MAX ? ESP_OK : esp__check_failed(&s, s.bad);
}

ESP__FN esp_status esp__op_seal(esp_ctx *ctx, const esp__op *op) {
    const esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
    const esp__sealed on = {u->name,       &u->option.steps[op->step], op->level,      op->coll.op,
                            op->coll.root, esp__at(ctx, op, op->src),  op->slot_bytes, op->n_slots};
    if (op->copy == ESP__COPY_CHECK) return esp__payloads_check(ctx, &on);
    esp__payloads_seal(ctx, &on);
    return ESP_OK;
}
