/* column.c: runs one chunk (column) of a collective in two stages: inputs go to the ranks that add them or pass them
 * on, and results to all ranks (p2p.h). It posts the chunk's messages, and goes on as they complete; nothing blocks. */
#include "backends/p2p/p2p.h"

/* ---- plan -------------------------------------------------------------------------------------------------------- */
static uint64_t p2p_part_at(const p2p_req *r, int32_t p) {
    return backend_min((uint64_t)p * r->part, r->c.count) * r->unit;
}
/* Returns the bytes of chunk `i` of rank `p`'s part, 0 if the part is shorter. *at receives its offset in the part. */
static uint64_t p2p_piece(const p2p_req *r, int32_t p, uint64_t i, uint64_t *at) {
    const uint64_t len = p2p_part_at(r, p + 1) - p2p_part_at(r, p);
    *at = i * r->width;
    return *at < len ? backend_min(r->width, len - *at) : 0;
}
ESP__FN uint64_t p2p_widest(int32_t ranks) {
    const uint64_t fits = (uint64_t)P2P_STAGING / (uint64_t)ranks / 64 * 64;
    return backend_max(backend_min(P2P_WIDE, fits), P2P_LEAST);
}

ESP__FN void p2p_plan(const p2p_comm *m, const esp_coll *c, p2p_req *r) {
    const uint64_t n = (uint64_t)m->who.size, widest = p2p_widest(m->who.size);
    memset(r, 0, sizeof *r);
    r->c = *c;
    r->scale = c->scale != 0 ? c->scale : 1.0f;
    r->esize = (uint32_t)(c->slot_bytes ? 1 : esp_dtype_bytes(c->dtype));
    r->unit = backend_item(c);
    r->reduction = backend_reduction_of(c, m->simd);
    r->kind = (uint32_t)((backend_call_hash(c) + c->op * 0x9e3779b97f4a7c15ull) >> 56); /* below P2P_KINDS */
    const uint64_t bytes = c->count * r->unit;
    const bool broadcast = c->op == ESP_COLL_BROADCAST, little = bytes * (n - 1) <= P2P_SMALL && bytes <= widest;
    r->sums = backend_op_sums(c->op);
    r->whole =
        (r->sums && c->op != ESP_COLL_REDUCE_SCATTER && little) || (broadcast && (little || c->slot_bytes || n == 2));
    r->scatter = broadcast && !r->whole;
    r->gets = !r->sums || (c->op != ESP_COLL_REDUCE_SCATTER && !r->whole);
    r->part = r->whole ? c->count : (c->count + n - 1) / n;
    const uint64_t longest = r->part * r->unit;
    /* A chunk has one payload of each rank's part, so that a message can be as short as the payload. Other long parts
     * are cut into at least four chunks, so that inputs and results are sent at the same time. */
    if (c->slot_bytes)
        r->width = c->slot_bytes;
    else
        r->width = backend_min(backend_max((longest / 4 + 63) / 64 * 64, P2P_NARROW), r->sums ? widest : P2P_WIDE);
    r->cols = (longest + r->width - 1) / r->width;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
static uint32_t p2p_tag(const p2p_column *x, uint32_t stage) {
    return (x->r->kind * P2P_COLUMNS + (uint32_t)(x->seq % P2P_COLUMNS)) * 2 + stage;
}

/* Posts a send or receive of an input (stage 0) or a result (stage 1). */
static int p2p_post(p2p_comm *m, p2p_column *x, uint32_t what, int32_t peer, uint32_t stage, const void *p,
                    uint64_t bytes) {
    const uint32_t place = m->free[m->n_free - 1];
    const bool in = what == P2P_INPUT_IN || what == P2P_RESULT_IN;
    const int s = in ? m->wire->recv(m->self, place, peer, p2p_tag(x, stage), (void *)(uintptr_t)p, bytes)
                     : m->wire->send(m->self, place, peer, p2p_tag(x, stage), p, bytes);
    if (s) return s;
    m->n_free--;
    m->messages[place] = (p2p_message){(uint32_t)(x - m->columns), what, peer};
    return 0;
}
/* Returns the bytes to send: all `len`, but of a payload only those that it uses. */
static uint64_t p2p_used(const p2p_req *r, const uint8_t *p, uint64_t len) {
    return r->c.slot_bytes && len ? backend_slot_used(p, len) : len;
}
/* ---- which ranks send what --------------------------------------------------------------------------------------- */
static bool p2p_adds(const p2p_comm *m, const p2p_req *r) {
    return r->sums && (!r->whole || r->c.op == ESP_COLL_ALLREDUCE || m->who.rank == r->c.root);
}
/* Returns true if rank `from` sends rank `to` a result or, in collectives without sums, its data. */
static bool p2p_delivers(const p2p_req *r, int32_t from, int32_t to) {
    if (from == to || !r->gets) return false;
    switch (r->c.op) {
    case ESP_COLL_REDUCE:
    case ESP_COLL_GATHER: return to == r->c.root;
    case ESP_COLL_BROADCAST: return to != r->c.root && (!r->whole || from == r->c.root);
    default: return true;
    }
}
/* Returns where the data that `from` sends as a result are written, or NULL if they are empty. */
static uint8_t *p2p_result_to(const p2p_comm *m, const p2p_req *r, int32_t from, uint64_t i, uint64_t *len) {
    const int32_t part = r->whole ? 0 : r->c.op == ESP_COLL_ALLTOALL ? m->who.rank : from;
    uint64_t at;
    *len = p2p_piece(r, part, i, &at);
    if (!*len) return NULL;
    return (uint8_t *)r->c.dst.ptr + (r->whole ? 0 : p2p_part_at(r, from)) + at;
}
/* Returns where this rank writes its sum: in dst or, without a dst, in the memory for inputs. */
static uint8_t *p2p_sum_at(const p2p_comm *m, const p2p_column *x, uint64_t at) {
    const p2p_req *r = x->r;
    uint8_t *dst = (uint8_t *)r->c.dst.ptr;
    if (r->c.op == ESP_COLL_REDUCE_SCATTER) return dst + at;
    if (r->c.op == ESP_COLL_REDUCE && m->who.rank != r->c.root) return x->cell + (uint64_t)m->who.rank * r->width;
    return dst + (r->whole ? 0 : p2p_part_at(r, m->who.rank)) + at;
}
/* Returns the data that this rank sends to `to` as a result, or NULL if they are empty. */
static const uint8_t *p2p_result_at(const p2p_comm *m, const p2p_column *x, int32_t to, uint64_t *len) {
    const p2p_req *r = x->r;
    const uint8_t *src = (const uint8_t *)r->c.src.ptr;
    uint64_t at;
    *len = p2p_piece(r, r->whole ? 0 : r->c.op == ESP_COLL_ALLTOALL ? to : m->who.rank, x->i, &at);
    if (!*len) return NULL;
    if (r->sums) return p2p_sum_at(m, x, at);
    if (r->c.op == ESP_COLL_ALLTOALL) return src + p2p_part_at(r, to) + at;
    if (r->c.op != ESP_COLL_BROADCAST) return src + at;
    if (m->who.rank != r->c.root) return (const uint8_t *)r->c.dst.ptr + p2p_part_at(r, m->who.rank) + at;
    return src + (r->whole ? 0 : p2p_part_at(r, m->who.rank)) + at;
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */
static int p2p_receive_result(p2p_comm *m, p2p_column *x, int32_t from) {
    uint64_t len;
    uint8_t *to = p2p_delivers(x->r, from, m->who.rank) ? p2p_result_to(m, x->r, from, x->i, &len) : NULL;
    if (!to) return 0;
    x->results_in++;
    return p2p_post(m, x, P2P_RESULT_IN, from, 1, to, len);
}
/* Returns the k-th peer after this rank. So ranks do not all send to the same peer first. */
static int32_t p2p_peer(const p2p_comm *m, int32_t k) { return (m->who.rank + k) % m->who.size; }

static int p2p_send_results(p2p_comm *m, p2p_column *x) {
    for (int32_t k = 1; k < m->who.size; k++) {
        const int32_t to = p2p_peer(m, k);
        uint64_t len;
        const uint8_t *from = p2p_delivers(x->r, m->who.rank, to) ? p2p_result_at(m, x, to, &len) : NULL;
        if (!from) continue;
        x->results_out++;
        const int s = p2p_post(m, x, P2P_RESULT_OUT, to, 1, from, p2p_used(x->r, from, len));
        if (s) return s;
    }
    return 0;
}
/* Copies this rank's own data to dst, if the collective does not write them there otherwise. */
static void p2p_copy_own(p2p_comm *m, p2p_column *x) {
    const p2p_req *r = x->r;
    const bool root = m->who.rank == r->c.root;
    if (r->sums || r->c.op == ESP_COLL_BROADCAST || (r->c.op == ESP_COLL_GATHER && !root)) return;
    uint64_t len, to_len;
    uint8_t *to = p2p_result_to(m, r, m->who.rank, x->i, &to_len);
    const uint8_t *from = p2p_result_at(m, x, m->who.rank, &len);
    if (to && from && to != from) memcpy(to, from, p2p_used(r, from, len));
}

/* Sends each rank the part of this rank's input that it adds (or, in a broadcast, passes on). */
static int p2p_send_inputs(p2p_comm *m, p2p_column *x) {
    const p2p_req *r = x->r;
    int s = 0;
    for (int32_t k = 1; k < m->who.size && !s; k++) {
        const int32_t to = p2p_peer(m, k);
        uint64_t at;
        const uint64_t len = p2p_piece(r, r->whole ? 0 : to, x->i, &at);
        const uint8_t *from = (const uint8_t *)r->c.src.ptr + (r->whole ? 0 : p2p_part_at(r, to)) + at;
        if (!len || (r->whole && r->c.op == ESP_COLL_REDUCE && to != r->c.root)) continue;
        x->inputs_out++;
        s = p2p_post(m, x, P2P_INPUT_OUT, to, 0, from, len);
    }
    return s;
}
/* Begins a sum: sends each rank the input that it adds, and receives the inputs that this rank adds. A result may
 * overwrite an input, so p2p_message_done posts its receive after the input was sent. */
static int p2p_begin_sum(p2p_comm *m, p2p_column *x) {
    const p2p_req *r = x->r;
    uint64_t at, own = p2p_piece(r, r->whole ? 0 : m->who.rank, x->i, &at);
    int s = 0;
    for (int32_t k = 1; k < m->who.size && own && p2p_adds(m, r) && !s; k++) {
        const int32_t from = p2p_peer(m, m->who.size - k);
        x->inputs_in++;
        s = p2p_post(m, x, P2P_INPUT_IN, from, 0, x->cell + (uint64_t)from * r->width, own);
    }
    return s ? s : p2p_send_inputs(m, x);
}
/* Begins a large broadcast: the root sends each rank the part of the data that this rank will pass on. */
static int p2p_begin_scatter(p2p_comm *m, p2p_column *x) {
    const p2p_req *r = x->r;
    uint64_t at, own = p2p_piece(r, m->who.rank, x->i, &at);
    if (m->who.rank != r->c.root) {
        if (!own) return 0;
        x->inputs_in++;
        return p2p_post(m, x, P2P_INPUT_IN, r->c.root, 0, (uint8_t *)r->c.dst.ptr + p2p_part_at(r, m->who.rank) + at,
                        own);
    }
    return p2p_send_inputs(m, x);
}

/* Adds all ranks' inputs for this rank's part, in rank order, in blocks that fit the first-level cache. */
static void p2p_sum(p2p_comm *m, p2p_column *x) {
    const p2p_req *r = x->r;
    float acc[BACKEND_BLOCK];
    uint64_t at, len = p2p_piece(r, r->whole ? 0 : m->who.rank, x->i, &at);
    const uint8_t *own = (const uint8_t *)r->c.src.ptr + (r->whole ? 0 : p2p_part_at(r, m->who.rank)) + at;
    const uint8_t *first = m->who.rank ? x->cell : own;
    uint8_t *out = p2p_sum_at(m, x, at);
    const uint64_t block = backend_sums_halves(&r->reduction) ? sizeof acc / 2 : sizeof acc;
    for (uint64_t b = 0; b < len; b += block) {
        const uint64_t count = backend_min(block, len - b) / r->esize;
        for (int32_t q = 1; q < m->who.size; q++) {
            const uint8_t *in = q == m->who.rank ? own : x->cell + (uint64_t)q * r->width;
            backend_reduce_step(&r->reduction, q == m->who.size - 1 ? out + b : NULL, acc, q == 1 ? first + b : NULL,
                                in + b, count, r->scale);
        }
    }
}

ESP__FN int p2p_begin(p2p_comm *m, p2p_column *x) {
    const p2p_req *r = x->r;
    int s = 0;
    if (r->sums) return p2p_begin_sum(m, x);
    for (int32_t k = 1; k < m->who.size && !s; k++) s = p2p_receive_result(m, x, p2p_peer(m, m->who.size - k));
    if (r->scatter && !s) s = p2p_begin_scatter(m, x);
    if (!r->scatter || m->who.rank == r->c.root) { /* the others must receive data before they send them on */
        p2p_copy_own(m, x);
        x->summed = true;
        if (!s) s = p2p_send_results(m, x);
    }
    return s;
}

ESP__FN int p2p_message_done(p2p_comm *m, p2p_column *x, const p2p_message *t) {
    switch (t->what) {
    case P2P_INPUT_IN: x->inputs_in--; return 0;
    case P2P_RESULT_IN: x->results_in--; return 0;
    case P2P_RESULT_OUT: x->results_out--; return 0;
    default: x->inputs_out--; return x->r->sums ? p2p_receive_result(m, x, t->peer) : 0;
    }
}
ESP__FN int p2p_advance(p2p_comm *m, p2p_column *x) {
    const p2p_req *r = x->r;
    /* If a small sum is in place, its input must be sent before the result overwrites it. */
    if (!x->summed && !x->inputs_in && !(r->whole && x->inputs_out)) {
        x->summed = true;
        uint64_t at;
        if (p2p_adds(m, r) && p2p_piece(r, r->whole ? 0 : m->who.rank, x->i, &at)) p2p_sum(m, x);
        if (r->gets) {
            const int s = p2p_send_results(m, x);
            if (s) return s;
        }
    }
    return x->summed && !x->inputs_in && !x->inputs_out && !x->results_in && !x->results_out;
}
