/* pieces.c: divides a large copy between GPU and host into pieces. Then the host can compress or decompress one piece
 * while the GPU copies another. Results stay the same. */
#include "espresso_impl/program/compile.h"

enum { ESP__PIECES_MAX = 16 };

static bool esp__piecewise(const esp__compile *c, const esp__op *work, bool up, esp__ref *at, uint64_t *bytes) {
    const uint64_t e = esp_dtype_bytes(c->u->dtype);
    if (work->kind == (up ? ESP__OP_DECOMPRESS : ESP__OP_COMPRESS)) {
        const esp__range *r = &c->p->ranges[work->codec.first_range];
        uint64_t end = r->begin;
        for (uint32_t k = 0; k < work->codec.n_ranges; end += r[k++].length)
            if (r[k].length && r[k].begin != end) return false;
        *at = work->codec.data;
        at->offset += r->begin * 4u;
        *bytes = (end - r->begin) * 4u;
        return work->codec.n_ranges > 1;
    }
    if (work->kind != ESP__OP_COPY) return false;
    *at = work->copy.grad;
    at->offset += work->copy.begin * e;
    *bytes = work->copy.length * e;
    return up ? work->copy.what == ESP__COPY_FROM_F32 || work->copy.what == ESP__COPY_SCALE
              : work->copy.what == ESP__COPY_TO_F32;
}

static esp__copy_piece esp__piece_at(const esp__compile *c, const esp__op *work, uint64_t least, uint64_t offset,
                                     uint64_t bytes, uint32_t range) {
    esp__copy_piece x = {offset, 0, 0, 0};
    const uint64_t share = (bytes / ESP__PIECES_MAX + 63u) / 64u * 64u, step = share > least ? share : least;
    if (work->kind == ESP__OP_COPY) {
        x.bytes = bytes - offset < step ? bytes - offset : step;
        return x;
    }
    do x.bytes += c->p->ranges[work->codec.first_range + range + x.n_ranges++].length * 4u;
    while (range + x.n_ranges < work->codec.n_ranges && (x.bytes < least || offset + x.bytes == bytes));
    return x;
}

static void esp__pieces_make(esp__compile *c, uint32_t copy_at, uint32_t work_at) {
    esp__program *p = c->p;
    esp__op *copy = &p->ops[copy_at], *work = &p->ops[work_at];
    const bool up = copy->copy.what == ESP__COPY_UP;
    const esp__ref host = up ? copy->copy.src : copy->copy.dst;
    const uint64_t least = (esp__device_list_of(c->ctx)->piece_bytes + 63u) / 64u * 64u;
    const uint32_t first = p->n_pieces;
    uint32_t range = 0;
    uint64_t bytes;
    esp__ref at;
    if (work->n_pieces || work->on == copy->on || copy->copy.length < 2 * least ||
        !esp__piecewise(c, work, up, &at, &bytes))
        return;
    if (at.at != host.at || at.offset != host.offset || bytes != copy->copy.length) return;
    for (uint64_t offset = 0; offset < bytes;) {
        const esp__copy_piece x = esp__piece_at(c, work, least, offset, bytes, range);
        esp__copy_piece *grown =
            esp__grow(c->ctx, p->pieces, &p->cap_pieces, ((uint64_t)p->n_pieces + 1) * sizeof *p->pieces);
        if (!grown) {
            c->status = ESP_E_NOMEM;
            return;
        }
        p->pieces = grown;
        p->pieces[p->n_pieces++] = x;
        offset += x.bytes;
        range += x.n_ranges;
    }
    const uint32_t n = p->n_pieces - first;
    if (n < 2) {
        p->n_pieces = first;
        return;
    }
    for (uint32_t k = 0; k < n && !up; k++) p->pieces[first + k].event = p->on[c->device].n_events++;
    copy->first_piece = work->first_piece = first;
    copy->n_pieces = work->n_pieces = n;
}

ESP__FN void esp__unit_pieces(esp__compile *c) {
    const uint32_t first = c->u->first_op, n = c->p->n_ops;
    for (uint32_t i = first; i < n && !c->status; i++) {
        const esp__op *op = &c->p->ops[i];
        if (esp__op_is_copy(op, ESP__COPY_DOWN) && i + 1 < n) esp__pieces_make(c, i, i + 1);
        if (esp__op_is_copy(op, ESP__COPY_UP) && i > first) esp__pieces_make(c, i, i - 1);
    }
}
