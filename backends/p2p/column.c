/* column.c: cuts a collective into columns, and moves one column: posts its messages, and goes on as they come through. Nothing blocks.
 * A column knows no other column. */
#include "backends/p2p/p2p.h"

/* ---- plan: all ranks must make the same one from the same call ----------------------------------------------------------- */
static uint64_t mesh_part_at(const mesh_req *r, int32_t p) {
    return backend_min((uint64_t)p * r->part, r->c.count) * r->unit;
}
/* Column `i` of part `p`: offset in the part, and bytes; 0: the part is shorter. */
static uint64_t mesh_piece(const mesh_req *r, int32_t p, uint64_t i, uint64_t *at) {
    const uint64_t len = mesh_part_at(r, p + 1) - mesh_part_at(r, p);
    *at = i * r->width;
    return *at < len ? backend_min(r->width, len - *at) : 0;
}
ESP__FN uint64_t mesh_widest(int32_t ranks) {
    const uint64_t fits = (uint64_t)MESH_STAGING / (uint64_t)ranks / 64 * 64;
    return backend_max(backend_min(MESH_WIDE, fits), MESH_LEAST);
}

ESP__FN void mesh_plan(const mesh_comm *m, const esp_coll *c, mesh_req *r) {
    const uint64_t n = (uint64_t)m->who.size, widest = mesh_widest(m->who.size);
    memset(r, 0, sizeof *r);
    r->c = *c;
    r->scale = c->scale != 0 ? c->scale : 1.0f;
    r->esize = (uint32_t)(c->slot_bytes ? 1 : esp_dtype_bytes(c->dtype));
    r->unit = backend_item(c);
    r->how = backend_sums_of(c, m->simd);
    r->kind = (uint32_t)((backend_call_hash(c) + c->op * 0x9e3779b97f4a7c15ull) >> 56); /* below MESH_KINDS */
    const uint64_t bytes = c->count * r->unit;
    const int broadcast = c->op == ESP_COLL_BROADCAST, little = bytes * (n - 1) <= MESH_SMALL && bytes <= widest;
    r->sums = (uint8_t)backend_op_sums(c->op);
    r->whole = (uint8_t)((r->sums && c->op != ESP_COLL_REDUCE_SCATTER && little) ||
                         (broadcast && (little || c->slot_bytes || n == 2)));
    r->scatter = (uint8_t)(broadcast && !r->whole);
    r->gets = (uint8_t)(!r->sums || (c->op != ESP_COLL_REDUCE_SCATTER && !r->whole));
    r->part = r->whole ? c->count : (c->count + n - 1) / n;
    const uint64_t longest = r->part * r->unit;
    if (c->slot_bytes) /* a column has one slot of each part, so that each message has the length that its slot uses */
        r->width = c->slot_bytes;
    else /* at least four columns of a long part, so that stages overlap */
        r->width = backend_min(backend_max((longest / 4 + 63) / 64 * 64, MESH_NARROW), r->sums ? widest : MESH_WIDE);
    r->cols = (longest + r->width - 1) / r->width;
}

/* ---- messages -------------------------------------------------------------------------------------------------------- */
static uint32_t mesh_tag(const mesh_column *x, uint32_t stage) {
    return (x->r->kind * MESH_COLUMNS + (uint32_t)(x->seq % MESH_COLUMNS)) * 2 + stage;
}

/* Posts one message of stage 0 or 1. */
static int mesh_post(mesh_comm *m, mesh_column *x, uint32_t what, int32_t peer, uint32_t stage, const void *p,
                     uint64_t bytes) {
    const uint32_t place = m->free[m->n_free - 1];
    const int in = what == MESH_IN || what == MESH_GET;
    const int s = in ? m->wire->recv(m->self, place, peer, mesh_tag(x, stage), (void *)(uintptr_t)p, bytes)
                     : m->wire->send(m->self, place, peer, mesh_tag(x, stage), p, bytes);
    if (s) return s;
    m->n_free--;
    m->messages[place] = (mesh_message){(uint32_t)(x - m->columns), what, peer};
    return 0;
}
/* Bytes of a piece that travel: of a payload slot, the used ones. */
static uint64_t mesh_used(const mesh_req *r, const uint8_t *p, uint64_t len) {
    return r->c.slot_bytes && len ? backend_slot_used(p, len) : len;
}
/* ---- who does what --------------------------------------------------------------------------------------------------- */
/* The ranks whose contributions meet at this one in stage 1. */
static int mesh_adds(const mesh_comm *m, const mesh_req *r) {
    return r->sums && (!r->whole || r->c.op == ESP_COLL_ALLREDUCE || m->who.rank == r->c.root);
}
/* Does stage 2 bring `to` the piece of `from`? */
static int mesh_wants(const mesh_req *r, int32_t from, int32_t to) {
    if (from == to || !r->gets) return 0;
    switch (r->c.op) {
    case ESP_COLL_REDUCE:
    case ESP_COLL_GATHER: return to == r->c.root;
    case ESP_COLL_BROADCAST: return to != r->c.root && (!r->whole || from == r->c.root);
    default: return 1;
    }
}
/* The piece of dst that `from` fills in stage 2; NULL: it is empty. */
static uint8_t *mesh_get_at(const mesh_comm *m, const mesh_req *r, int32_t from, uint64_t i, uint64_t *len) {
    const int32_t part = r->whole ? 0 : r->c.op == ESP_COLL_ALLTOALL ? m->who.rank : from;
    uint64_t at;
    *len = mesh_piece(r, part, i, &at);
    if (!*len) return NULL;
    return (uint8_t *)r->c.dst.ptr + (r->whole ? 0 : mesh_part_at(r, from)) + at;
}
/* Where the sum of this rank's piece goes: dst, or the own place of the staging where dst has no room for it. */
static uint8_t *mesh_sum_at(const mesh_comm *m, const mesh_column *x, uint64_t at) {
    const mesh_req *r = x->r;
    uint8_t *dst = (uint8_t *)r->c.dst.ptr;
    if (r->c.op == ESP_COLL_REDUCE_SCATTER) return dst + at;
    if (r->c.op == ESP_COLL_REDUCE && m->who.rank != r->c.root) return x->cell + (uint64_t)m->who.rank * r->width;
    return dst + (r->whole ? 0 : mesh_part_at(r, m->who.rank)) + at;
}
/* Where this rank's piece for stage 2 to `to` lies; NULL: it is empty. */
static const uint8_t *mesh_give_at(const mesh_comm *m, const mesh_column *x, int32_t to, uint64_t *len) {
    const mesh_req *r = x->r;
    const uint8_t *src = (const uint8_t *)r->c.src.ptr;
    uint64_t at;
    *len = mesh_piece(r, r->whole ? 0 : r->c.op == ESP_COLL_ALLTOALL ? to : m->who.rank, x->i, &at);
    if (!*len) return NULL;
    if (r->sums) return mesh_sum_at(m, x, at);
    if (r->c.op == ESP_COLL_ALLTOALL) return src + mesh_part_at(r, to) + at;
    if (r->c.op != ESP_COLL_BROADCAST) return src + at;
    if (m->who.rank != r->c.root) return (const uint8_t *)r->c.dst.ptr + mesh_part_at(r, m->who.rank) + at;
    return src + (r->whole ? 0 : mesh_part_at(r, m->who.rank)) + at;
}

/* ---- stages ------------------------------------------------------------------------------------------------------------ */
static int mesh_get(mesh_comm *m, mesh_column *x, int32_t from) {
    uint64_t len;
    uint8_t *to = mesh_wants(x->r, from, m->who.rank) ? mesh_get_at(m, x->r, from, x->i, &len) : NULL;
    if (!to) return 0;
    x->gets++;
    return mesh_post(m, x, MESH_GET, from, 1, to, len);
}
/* Peers in an order that begins behind this rank, so that ranks do not all send to the same one. */
static int32_t mesh_peer(const mesh_comm *m, int32_t k) { return (m->who.rank + k) % m->who.size; }

static int mesh_give_all(mesh_comm *m, mesh_column *x) {
    for (int32_t k = 1; k < m->who.size; k++) {
        const int32_t to = mesh_peer(m, k);
        uint64_t len;
        const uint8_t *from = mesh_wants(x->r, m->who.rank, to) ? mesh_give_at(m, x, to, &len) : NULL;
        if (!from) continue;
        x->gives++;
        const int s = mesh_post(m, x, MESH_GIVE, to, 1, from, mesh_used(x->r, from, len));
        if (s) return s;
    }
    return 0;
}
/* The own piece, where stage 2 does not bring it. */
static void mesh_own(mesh_comm *m, mesh_column *x) {
    const mesh_req *r = x->r;
    const int root = m->who.rank == r->c.root;
    if (r->sums || r->c.op == ESP_COLL_BROADCAST || (r->c.op == ESP_COLL_GATHER && !root)) return;
    uint64_t len, to_len;
    uint8_t *to = mesh_get_at(m, r, m->who.rank, x->i, &to_len);
    const uint8_t *from = mesh_give_at(m, x, m->who.rank, &len);
    if (to && from && to != from) memcpy(to, from, mesh_used(r, from, len));
}

/* Stage 1: sends each rank its part of the source. */
static int mesh_deal(mesh_comm *m, mesh_column *x) {
    const mesh_req *r = x->r;
    int s = 0;
    for (int32_t k = 1; k < m->who.size && !s; k++) {
        const int32_t to = mesh_peer(m, k);
        uint64_t at;
        const uint64_t len = mesh_piece(r, r->whole ? 0 : to, x->i, &at);
        const uint8_t *from = (const uint8_t *)r->c.src.ptr + (r->whole ? 0 : mesh_part_at(r, to)) + at;
        if (!len || (r->whole && r->c.op == ESP_COLL_REDUCE && to != r->c.root)) continue;
        x->outs++;
        s = mesh_post(m, x, MESH_OUT, to, 0, from, len);
    }
    return s;
}
/* Stage 1 of sums: inputs go to the ranks of their parts; those for this rank arrive in the cell. */
static int mesh_begin_sum(mesh_comm *m, mesh_column *x) {
    const mesh_req *r = x->r;
    uint64_t at, own = mesh_piece(r, r->whole ? 0 : m->who.rank, x->i, &at);
    int s = 0;
    for (int32_t k = 1; k < m->who.size && own && mesh_adds(m, r) && !s; k++) {
        const int32_t from = mesh_peer(m, m->who.size - k);
        x->ins++;
        s = mesh_post(m, x, MESH_IN, from, 0, x->cell + (uint64_t)from * r->width, own);
    }
    if (!s) s = mesh_deal(m, x);
    return s; /* a result may overwrite the input of its part, so it is asked for when that input has been sent */
}
/* Stage 1 of a broadcast: the root deals out the parts. */
static int mesh_begin_scatter(mesh_comm *m, mesh_column *x) {
    const mesh_req *r = x->r;
    uint64_t at, own = mesh_piece(r, m->who.rank, x->i, &at);
    if (m->who.rank != r->c.root) {
        if (!own) return 0;
        x->ins++;
        return mesh_post(m, x, MESH_IN, r->c.root, 0, (uint8_t *)r->c.dst.ptr + mesh_part_at(r, m->who.rank) + at, own);
    }
    return mesh_deal(m, x);
}

/* Adds the inputs of the own piece in rank order. The own input is read where it lies. */
static void mesh_sum(mesh_comm *m, mesh_column *x) {
    const mesh_req *r = x->r;
    float acc[BACKEND_BLOCK];
    uint64_t at, len = mesh_piece(r, r->whole ? 0 : m->who.rank, x->i, &at);
    const uint8_t *own = (const uint8_t *)r->c.src.ptr + (r->whole ? 0 : mesh_part_at(r, m->who.rank)) + at;
    const uint8_t *first = m->who.rank ? x->cell : own;
    uint8_t *out = mesh_sum_at(m, x, at);
    /* a block of all inputs at a time: it stays in a near cache */
    const uint64_t block = backend_sums_halves(&r->how) ? sizeof acc / 2 : sizeof acc;
    for (uint64_t b = 0; b < len; b += block) {
        const uint64_t count = backend_min(block, len - b) / r->esize;
        for (int32_t q = 1; q < m->who.size; q++) {
            const uint8_t *in = q == m->who.rank ? own : x->cell + (uint64_t)q * r->width;
            backend_reduce_step(&r->how, q == m->who.size - 1 ? out + b : NULL, acc, q == 1 ? first + b : NULL, in + b,
                                count, r->scale);
        }
    }
}

ESP__FN int mesh_begin(mesh_comm *m, mesh_column *x) {
    const mesh_req *r = x->r;
    int s = 0;
    if (r->sums) return mesh_begin_sum(m, x);
    for (int32_t k = 1; k < m->who.size && !s; k++) s = mesh_get(m, x, mesh_peer(m, m->who.size - k));
    if (r->scatter && !s) s = mesh_begin_scatter(m, x);
    if (!r->scatter || m->who.rank == r->c.root) { /* the others give when their piece is there */
        mesh_own(m, x);
        x->summed = 1;
        if (!s) s = mesh_give_all(m, x);
    }
    return s;
}

ESP__FN int mesh_through(mesh_comm *m, mesh_column *x, const mesh_message *t) {
    switch (t->what) {
    case MESH_IN: x->ins--; return 0;
    case MESH_GET: x->gets--; return 0;
    case MESH_GIVE: x->gives--; return 0;
    default: x->outs--; return x->r->sums ? mesh_get(m, x, t->peer) : 0;
    }
}
ESP__FN int mesh_go_on(mesh_comm *m, mesh_column *x) {
    const mesh_req *r = x->r;
    if (!x->summed && !x->ins && !(r->whole && x->outs)) { /* a small sum may lie where the input is being sent from */
        x->summed = 1;
        uint64_t at;
        if (mesh_adds(m, r) && mesh_piece(r, r->whole ? 0 : m->who.rank, x->i, &at)) mesh_sum(m, x);
        if (r->gets) {
            const int s = mesh_give_all(m, x);
            if (s) return s;
        }
    }
    return x->summed && !x->ins && !x->outs && !x->gets && !x->gives;
}
