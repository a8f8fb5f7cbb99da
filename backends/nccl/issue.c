/* issue.c: translates a collective on device memory into calls of NCCL. NCCL's allgather, reduce_scatter and gather
 * need data of one length from each rank. Ours divide `count` items into parts of ceil(count / n), the last of which
 * may be shorter or empty: this file then calls one broadcast, reduction, or send and receive for each rank.
 * Payloads are sent with all the room reserved for them, since their lengths are in device memory, for which the
 * host would have to wait. */
#include "backends/nccl/nccl.h"
#include "codecs/common/half.h"

static int nccl_type(esp_dtype d) {
    return d == ESP_F32    ? NCCL_FLOAT32
           : d == ESP_F16  ? NCCL_FLOAT16
           : d == ESP_BF16 ? NCCL_BFLOAT16
           : d == ESP_I32  ? NCCL_INT32
                           : NCCL_INT8;
}

/* ---- scale ------------------------------------------------------------------------------------------------------- */
static bool nccl_power_of_two(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return !(bits & 0x7FFFFFu) && bits >> 23 & 255u;
}
/* NCCL multiplies each rank's input by the scale, not the sum. If the scale is a power of two, the result is the same.
 * For f16 and bf16 every scale is applied first, since NCCL rounds their sums to 16 bits, which might overflow. Other
 * f32 sums are multiplied afterwards. */
ESP__FN bool nccl_scales_first(const esp_coll *c) {
    return nccl_has_scale(c) && (c->dtype != ESP_F32 || nccl_power_of_two(c->scale));
}
/* Writes x in the number type of the sum, as NCCL requires. */
static void nccl_scalar(esp_dtype d, float x, void *out) {
    const uint16_t half = (uint16_t)(d == ESP_F16 ? half_to_f16(x) : half_to_bf16(x));
    if (d == ESP_F32)
        memcpy(out, &x, 4);
    else
        memcpy(out, &half, 2);
}
static esp_status nccl_operation(nccl_comm *m, const esp_coll *c, int *op) {
    *op = c->reduce == ESP_REDUCE_MAX ? NCCL_MAX : c->reduce == ESP_REDUCE_MIN ? NCCL_MIN : NCCL_SUM;
    if (!backend_op_sums(c->op) || !nccl_scales_first(c)) return ESP_OK;
    for (int i = 0; i < NCCL_OPS; i++) {
        const nccl_scaled *s = &m->scaled[i];
        if (s->made && s->type == nccl_type(c->dtype) && !memcmp(&s->scale, &c->scale, 4)) return *op = s->op, ESP_OK;
    }
    nccl_scaled *s = &m->scaled[m->n_scaled++ % NCCL_OPS];
    float scalar = 0;
    if (s->made) m->library->ncclRedOpDestroy(s->op, m->handle);
    nccl_scalar(c->dtype, c->scale, &scalar);
    s->type = nccl_type(c->dtype), s->scale = c->scale;
    const int result = m->library->ncclRedOpCreatePreMulSum(&s->op, &scalar, s->type, NCCL_SCALAR_IN_HOST, m->handle);
    s->made = result == NCCL_SUCCESS;
    *op = s->op;
    return s->made ? ESP_OK
                   : nccl_mark_failed(
                         m, nccl_failed(m->who.host, m->library, "ncclRedOpCreatePreMulSum", result, m->handle));
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */
/* A call of NCCL, with its data type: numbers if the collective reduces, otherwise bytes. */
typedef struct nccl_call {
    const esp_coll *c;
    const uint8_t *src;
    uint8_t *dst;
    void *stream;
    uint64_t unit, bytes; /* elements of NCCL's data type per item, bytes per element */
    int type, op;
} nccl_call;

static uint64_t nccl_units(const nccl_comm *m, const nccl_call *k, int32_t part) {
    return nccl_part(m, k->c, part) * k->unit;
}
static uint64_t nccl_at(const nccl_comm *m, const nccl_call *k, int32_t part) {
    return nccl_begin(m, k->c, part) * k->unit * k->bytes;
}

/* Makes NCCL's calls for rank q's data, in collectives that no single call of NCCL does. */
static int nccl_one_part(nccl_comm *m, const nccl_call *k, int32_t q) {
    const nccl_library *l = m->library;
    const uint64_t n = nccl_units(m, k, q), own = nccl_units(m, k, m->who.rank), at = nccl_at(m, k, q);
    int r = NCCL_SUCCESS;
    switch (k->c->op) {
    case ESP_COLL_ALLGATHER:
        if (n)
            r = l->ncclBroadcast(q == m->who.rank ? k->src : k->dst + at, k->dst + at, n, k->type, q, m->handle,
                                 k->stream);
        return r;
    case ESP_COLL_REDUCE_SCATTER:
        if (n)
            r = l->ncclReduce(k->src + at, q == m->who.rank ? k->dst : NULL, n, k->type, k->op, q, m->handle,
                              k->stream);
        return r;
    case ESP_COLL_GATHER:
        if (q == k->c->root && own) r = l->ncclSend(k->src, own, k->type, q, m->handle, k->stream);
        if (!r && m->who.rank == k->c->root && n) r = l->ncclRecv(k->dst + at, n, k->type, q, m->handle, k->stream);
        return r;
    default: /* alltoall */
        r = l->ncclSend(k->src + at, n, k->type, q, m->handle, k->stream);
        return r ? r : l->ncclRecv(k->dst + at, n, k->type, q, m->handle, k->stream);
    }
}
static int nccl_by_parts(nccl_comm *m, const nccl_call *k) {
    int r = m->library->ncclGroupStart();
    if (r) return r;
    for (int32_t q = 0; q < m->who.size && !r; q++) r = nccl_one_part(m, k, q);
    const int end = m->library->ncclGroupEnd();
    return r ? r : end;
}

static int nccl_dispatch(nccl_comm *m, const nccl_call *k) {
    const nccl_library *l = m->library;
    const bool equal = k->c->count % (uint64_t)m->who.size == 0, root = k->c->root == m->who.rank;
    const uint64_t all = k->c->count * k->unit, part = nccl_units(m, k, 0);
    switch (k->c->op) {
    case ESP_COLL_ALLREDUCE: return l->ncclAllReduce(k->src, k->dst, all, k->type, k->op, m->handle, k->stream);
    case ESP_COLL_REDUCE:
        return l->ncclReduce(k->src, root ? k->dst : NULL, all, k->type, k->op, k->c->root, m->handle, k->stream);
    case ESP_COLL_BROADCAST: /* the root has no dst, so it broadcasts in place */
        return l->ncclBroadcast(root ? k->src : k->dst, root ? (uint8_t *)(uintptr_t)k->src : k->dst, all, k->type,
                                k->c->root, m->handle, k->stream);
    case ESP_COLL_ALLGATHER:
        if (equal) return l->ncclAllGather(k->src, k->dst, part, k->type, m->handle, k->stream);
        break;
    case ESP_COLL_REDUCE_SCATTER:
        if (equal) return l->ncclReduceScatter(k->src, k->dst, part, k->type, k->op, m->handle, k->stream);
        break;
    case ESP_COLL_GATHER:
        if (equal && l->ncclGather)
            return l->ncclGather(k->src, k->dst, part, k->type, k->c->root, m->handle, k->stream);
        break;
    default:
        if (l->ncclAlltoAll) return l->ncclAlltoAll(k->src, k->dst, part, k->type, m->handle, k->stream);
    }
    return nccl_by_parts(m, k);
}

ESP__FN esp_status nccl_issue(nccl_comm *m, const esp_coll *c, void *stream) {
    nccl_call k = {c, (const uint8_t *)c->src.ptr, (uint8_t *)c->dst.ptr, stream, backend_item(c), 1, NCCL_INT8, 0};
    if (backend_op_sums(c->op))
        k.unit = backend_max(c->width, 1), k.bytes = esp_dtype_bytes(c->dtype), k.type = nccl_type(c->dtype);
    const esp_status s = nccl_operation(m, c, &k.op);
    return s ? s : nccl_check(m, backend_op_name(c->op), nccl_dispatch(m, &k));
}

/* ---- traffic ----------------------------------------------------------------------------------------------------- */
static void nccl_received(nccl_comm *m, int32_t from, uint64_t bytes) {
    if (from != m->who.rank) backend_count(&m->level_bytes[m->level[from] - 1], bytes);
}
/* Counts the received bytes, which NCCL does not report. For alltoall and gather each rank's part comes from that rank.
 * Other collectives are assumed to be rings, in which all data come from the rank before this one. */
ESP__FN void nccl_count(nccl_comm *m, const esp_coll *c) {
    const uint64_t item = backend_item(c), all = c->count * item, own = nccl_part(m, c, m->who.rank) * item;
    const int32_t before = (m->who.rank + m->who.size - 1) % m->who.size;
    const bool root = m->who.rank == c->root;
    switch (c->op) {
    case ESP_COLL_ALLREDUCE: nccl_received(m, before, 2 * (all - all / (uint64_t)m->who.size)); break;
    case ESP_COLL_REDUCE_SCATTER: nccl_received(m, before, all - all / (uint64_t)m->who.size); break;
    case ESP_COLL_ALLGATHER: nccl_received(m, before, all - own); break;
    case ESP_COLL_BROADCAST: nccl_received(m, before, root ? 0 : all); break;
    case ESP_COLL_REDUCE: nccl_received(m, before, before == c->root ? 0 : all); break;
    default:
        for (int32_t q = 0; q < m->who.size; q++)
            if (c->op == ESP_COLL_ALLTOALL || root) nccl_received(m, q, nccl_part(m, c, q) * item);
    }
}
