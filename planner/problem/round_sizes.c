/* round_sizes.c: computes payload sizes of codecs that take matrices or compress in several rounds, such as
 * PowerSGD. It calls the codec's bound(), as the library does at run time. */
#include "planner/problem/problem.h"

/* Describes a part of a tensor to a codec as the library does at run time. A part of a matrix is a matrix only if it
 * has whole rows. */
static esp_tensor esp__part_like(const esp_plan_codec *c, uint64_t part, uint64_t elements, uint64_t cols) {
    const int matrix = cols && part && (c->caps & ESP_CODEC_NEEDS_MATRIX || part == elements);
    esp_tensor like;
    memset(&like, 0, sizeof like);
    like.struct_size = sizeof like;
    like.dtype = ESP_F32;
    like.count = part;
    if (matrix) like.rows = part / cols, like.cols = cols;
    return like;
}

ESP__FN uint32_t esp__rounds_of(const esp_plan_codec *c) { return c->n_rounds ? c->n_rounds : 1; }

ESP__FN void esp__plan_codec_rounds(esp_plan_codec *out, const esp_codec *table, const esp_traits *traits, void *self) {
    const uint32_t last = traits->n_rounds - 1;
    if (!last && !(traits->caps & ESP_CODEC_NEEDS_MATRIX)) return;
    out->caps = (uint32_t)(traits->caps & (ESP_CODEC_REDUCIBLE | ESP_CODEC_HAS_STATE | ESP_CODEC_NEEDS_MATRIX));
    out->bound = table->bound;
    out->self = self;
    out->n_rounds = traits->n_rounds;
    out->round_flags = traits->rounds ? traits->rounds[last].flags : 0;
}

static esp_status esp__part_bound(const esp_plan_codec *c, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                  esp_bound *b) {
    memset(b, 0, sizeof *b);
    b->struct_size = sizeof *b;
    return c->bound(c->self, like, round, n_reduced, b);
}

ESP__FN uint64_t esp__unit_cols(const esp__problem *p, const esp__extent *u) {
    const esp_plan_tensor *t = &p->model->tensors[u->first];
    return p->most_rounds && u->n == 1 && t->cols && !(u->begin % t->cols) && !(u->elements % t->cols) ? t->cols : 0;
}

ESP__FN uint32_t esp__unit_rounds_run(const esp__problem *p, const esp_plan_codec *c, uint64_t elements,
                                      uint64_t cols) {
    const esp_tensor like = esp__part_like(c, elements, elements, cols);
    const uint32_t n = esp__rounds_of(c);
    esp_bound b;
    if (!c->bound) return 1;
    for (uint32_t round = 0; round < n; round++) {
        if (esp__part_bound(c, &like, round, p->size[ESP__FLAT], &b)) return 0;
        if (b.payload_bytes) return n - round;
    }
    return 0;
}

static double esp__payload_slot(uint64_t bytes) {
    return bytes < ESP_PAYLOAD_HEADER ? ESP_PAYLOAD_HEADER : (double)((bytes + 31u) / 32u * 32u);
}

ESP__FN double esp__round_bytes(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                const esp_plan_codec *c, uint64_t part, uint64_t *state) {
    const esp_tensor like = esp__part_like(c, part, shape->elements, shape->cols);
    uint32_t n_reduced = 1;
    esp_bound b;
    for (uint32_t scope = 0; scope < ESP__SCOPES; scope++)
        if (op->reduced >> scope & 1u) n_reduced *= p->size[scope];
    if (esp__part_bound(c, &like, esp__rounds_of(c) - 1 - op->early, n_reduced, &b)) return -1.0;
    if (state) *state = b.state_bytes;
    return esp__payload_slot(b.payload_bytes);
}

ESP__FN double esp__unit_volume(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols) {
    const uint32_t n = esp__rounds_of(c), run = esp__unit_rounds_run(p, c, elements, cols);
    const esp_tensor like = esp__part_like(c, elements, elements, cols);
    double bytes = 0.0;
    esp_bound b;
    if (!c->bound) return esp__payload_bytes(c, elements);
    for (uint32_t round = n - run; round < n; round++)
        if (!esp__part_bound(c, &like, round, p->size[ESP__FLAT], &b)) bytes += esp__payload_slot(b.payload_bytes);
    return bytes;
}

ESP__FN int esp__codec_vector(const esp_plan_codec *c, uint64_t cols) {
    return c->bound && c->caps & ESP_CODEC_NEEDS_MATRIX && !cols;
}

ESP__FN double esp__codec_error(const esp_plan_codec *c, uint64_t cols) {
    const double error = esp__codec_vector(c, cols) ? c->vector_error : c->error;
    return error < 1.0 ? error : 1.0;
}

ESP__FN const esp_cost_curve *esp__decompress_more(const esp_plan_codec *c, const esp_cost_curve *first, int device) {
    const esp_cost_curve *more = &c->decompress_more[device];
    return first == &c->decompress[device] && more->n ? more : NULL;
}

ESP__FN const esp_cost_curve *esp__codec_curve(const esp_plan_codec *c, uint64_t cols, int decompress, int device) {
    const esp_cost_curve *vector = decompress ? &c->vector_decompress[device] : &c->vector_compress[device];
    if (esp__codec_vector(c, cols) && vector->n) return vector;
    return decompress ? &c->decompress[device] : &c->compress[device];
}

ESP__FN int esp__payloads_pass(const esp_plan_codec *c, const esp__op_template *op) {
    if (op->summed && !op->early && !(c->caps & ESP_CODEC_REDUCIBLE)) return 0;
    return op->early || op->coll == ESP_COLL_ALLREDUCE || !(c->round_flags & ESP_ROUND_ALLREDUCE);
}
