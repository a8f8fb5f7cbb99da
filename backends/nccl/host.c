/* host.c: runs collectives on host memory. NCCL moves device memory only, so this file copies the data in pieces into
 * pinned memory, to the device, through NCCL, and back; two pieces are in progress at a time. In a piece, the data of
 * all ranks have the same length, so some unused bytes are sent at the end. */
#include "backends/nccl/nccl.h"
#include "codecs/common/half.h"

/* Returns an integer that orders as the float at `p`. A NaN is above all numbers for MAX, and below them for MIN. */
static int32_t nccl_order_key(esp_dtype d, const uint8_t *p, bool max) {
    uint16_t h;
    float x;
    int32_t bits;
    memcpy(&h, p, 2);
    if (d == ESP_F32)
        memcpy(&x, p, 4);
    else
        x = d == ESP_F16 ? half_from_f16(h) : bits_float((uint32_t)h << 16);
    if (x != x) return max ? INT32_MAX : INT32_MIN;
    memcpy(&bits, &x, 4);
    return bits < 0 ? bits ^ INT32_MAX : bits;
}
static void nccl_from_order_key(esp_dtype d, int32_t order, uint8_t *p) {
    const bool nan = order == INT32_MAX || order == INT32_MIN;
    const int32_t bits = nan ? 0x7FC00000 : order < 0 ? order ^ INT32_MAX : order;
    float x;
    memcpy(&x, &bits, 4);
    const uint16_t h = (uint16_t)(nan            ? d == ESP_F16 ? 0x7E00u : 0x7FC0u
                                  : d == ESP_F16 ? half_to_f16(x)
                                                 : half_to_bf16(x));
    if (d == ESP_F32)
        memcpy(p, &x, 4);
    else
        memcpy(p, &h, 2);
}

/* ---- shape ------------------------------------------------------------------------------------------------------- */
/* Pieces are counted in units: numbers if the collective reduces, otherwise bytes. Returns the units of an item. */
static uint64_t nccl_host_units(const esp_coll *c) {
    return backend_op_sums(c->op) ? backend_max(c->width, 1) : backend_item(c);
}
static uint64_t nccl_host_bytes(const esp_coll *c) { return backend_op_sums(c->op) ? esp_dtype_bytes(c->dtype) : 1; }
static uint64_t nccl_staged_bytes(const nccl_comm *m, const esp_coll *c) {
    return nccl_ordered(m, c) ? 4 : nccl_host_bytes(c);
}
ESP__FN uint64_t nccl_host_total(const nccl_comm *m, const esp_coll *c) {
    return (nccl_has_parts(c) ? nccl_part(m, c, 0) : c->count) * nccl_host_units(c);
}
static uint64_t nccl_host_most(const nccl_comm *m, const esp_coll *c) {
    return NCCL_PIECE / nccl_staged_bytes(m, c) / (nccl_has_parts(c) ? (uint64_t)m->who.size : 1);
}
/* Returns how many units of rank p's part a piece has. *at receives their byte offset in the caller's buffer. */
static uint64_t nccl_piece_of(const nccl_comm *m, const esp_coll *c, const nccl_slot *s, int32_t p, uint64_t *at) {
    const uint64_t units = nccl_host_units(c), all = nccl_has_parts(c) ? nccl_part(m, c, p) * units : c->count * units;
    *at = ((nccl_has_parts(c) ? nccl_begin(m, c, p) * units : 0) + s->at) * nccl_host_bytes(c);
    return s->at >= all ? 0 : all - s->at < s->n ? all - s->at : s->n;
}
/* ---- moving ------------------------------------------------------------------------------------------------------ */
static void nccl_put(const nccl_comm *m, const esp_coll *c, const uint8_t *from, uint8_t *to, uint64_t n) {
    const uint64_t e = nccl_host_bytes(c);
    if (!nccl_ordered(m, c)) {
        if (n) memcpy(to, from, (size_t)(n * e));
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        const int32_t order = nccl_order_key(c->dtype, from + i * e, c->reduce == ESP_REDUCE_MAX);
        memcpy(to + i * 4, &order, 4);
    }
}
static void nccl_get(const nccl_comm *m, const esp_coll *c, const uint8_t *from, uint8_t *to, uint64_t n) {
    const uint64_t e = nccl_host_bytes(c);
    const bool scale = nccl_has_scale(c) && !nccl_scales_first(c);
    if (!nccl_ordered(m, c) && !scale && n) memcpy(to, from, (size_t)(n * e));
    for (uint64_t i = 0; i < n && nccl_ordered(m, c); i++) {
        int32_t order;
        memcpy(&order, from + i * 4, 4);
        nccl_from_order_key(c->dtype, order, to + i * e);
    }
    for (uint64_t i = 0; i < n && scale; i++) {
        float x;
        memcpy(&x, from + i * 4, 4);
        x *= c->scale;
        memcpy(to + i * 4, &x, 4);
    }
}

/* Copies a piece from the source to pinned memory if `in` is true, otherwise from pinned memory to the result. */
static void nccl_piece_copy(const nccl_comm *m, const esp_coll *c, const nccl_slot *s, bool in) {
    const bool rows = in ? nccl_rows_in(c) : nccl_rows_out(c);
    const uint64_t row = s->n * nccl_staged_bytes(m, c);
    for (int32_t q = rows ? 0 : m->who.rank; q < (rows ? m->who.size : m->who.rank + 1); q++) {
        uint64_t at, n = nccl_piece_of(m, c, s, q, &at), slot = rows ? (uint64_t)q * row : 0;
        if (!rows) at = s->at * nccl_host_bytes(c); /* the buffer has only this rank's part, or is not divided */
        if (n && in) nccl_put(m, c, (const uint8_t *)c->src.ptr + at, s->in + slot, n);
        if (n && !in) nccl_get(m, c, s->out + slot, (uint8_t *)c->dst.ptr + at, n);
    }
}
/* Copies the next piece to the device, and starts its collective. */
static esp_status nccl_piece_begin(nccl_comm *m, nccl_req *r) {
    const nccl_library *l = m->library;
    const esp_coll *c = &r->c;
    nccl_slot *s = &m->slots[m->slot_next % NCCL_SLOTS];
    const uint64_t most = nccl_host_most(m, c), e = nccl_staged_bytes(m, c),
                   rows = nccl_has_parts(c) ? (uint64_t)m->who.size : 1;
    s->at = r->filled;
    s->n = r->total - r->filled < most ? r->total - r->filled : most;
    if (backend_needs_src(&m->who, c)) nccl_piece_copy(m, c, s, true);
    esp_coll inner = *c;
    inner.slot_bytes = 0, inner.width = 1;
    inner.dtype = nccl_ordered(m, c) ? ESP_I32 : backend_op_sums(c->op) ? c->dtype : ESP_I8;
    inner.count = s->n * rows;
    inner.scale = nccl_scales_first(c) ? c->scale : 0;
    inner.src.ptr = (void *)(uintptr_t)s->device_in, inner.dst.ptr = (void *)(uintptr_t)s->device_out;
    esp_status st = ESP_OK;
    if (backend_needs_src(&m->who, c))
        st = nccl_check_cuda(
            m, "cuMemcpyHtoDAsync",
            l->cuMemcpyHtoDAsync_v2(s->device_in, s->in, s->n * e * (nccl_rows_in(c) ? rows : 1), m->stream));
    if (!st) st = nccl_issue(m, &inner, m->stream);
    r->filled += s->n;
    m->slot_next++;
    m->launching = true;
    return st;
}
/* Enqueues the copy from the device for the newest piece, after NCCL has enqueued its collective. */
static esp_status nccl_piece_return(nccl_comm *m, const nccl_req *r) {
    const nccl_library *l = m->library;
    const esp_coll *c = &r->c;
    nccl_slot *s = &m->slots[(m->slot_next - 1) % NCCL_SLOTS];
    const uint64_t bytes = s->n * nccl_staged_bytes(m, c) * (nccl_rows_out(c) ? (uint64_t)m->who.size : 1);
    esp_status st = ESP_OK;
    m->launching = false;
    if (backend_needs_dst(&m->who, c))
        st = nccl_check_cuda(m, "cuMemcpyDtoHAsync", l->cuMemcpyDtoHAsync_v2(s->out, s->device_out, bytes, m->stream));
    return st ? st : nccl_check_cuda(m, "cuEventRecord", l->cuEventRecord(s->event, m->stream));
}
/* Copies the oldest piece to the caller's memory if it has arrived in pinned memory. */
static esp_status nccl_piece_end(nccl_comm *m, nccl_req *r) {
    const esp_coll *c = &r->c;
    const nccl_slot *s = &m->slots[m->slot_first % NCCL_SLOTS];
    const int passed = m->library->cuEventQuery(s->event);
    if (passed == CUDA_NOT_READY) return ESP_PENDING;
    const esp_status st = nccl_check_cuda(m, "cuEventQuery", passed);
    if (st) return st;
    if (backend_needs_dst(&m->who, c)) nccl_piece_copy(m, c, s, false);
    r->drained += s->n;
    m->slot_first++;
    return ESP_OK;
}

ESP__FN esp_status nccl_host_drive(nccl_comm *m, nccl_req *r) {
    if (m->launching) return nccl_piece_return(m, r);
    if (r->filled < r->total && m->slot_next - m->slot_first < NCCL_SLOTS) return nccl_piece_begin(m, r);
    if (r->drained < r->total) return nccl_piece_end(m, r);
    r->done = true;
    return ESP_OK;
}
