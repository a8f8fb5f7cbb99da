/* powersgd.c: codec "powersgd", which sends an m x n matrix phi (gradient plus residual) as the product of two thin
 * matrices P and Q of r columns, in two exchanges. After Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019.
 *     round 0 sums P = phi Q over the ranks, where all ranks hold the same Q (random, or with start=warm the last one)
 *     round 1 sums Q = phi^T P^ over the ranks, where P^ is an orthonormal basis of the columns of the summed P
 * The result is P^ Q^T. Each rank keeps phi minus the product of P^ and its own Q as its residual. A tensor that is no
 * matrix, or has at most `rank` columns, is sent uncompressed. */
#include <float.h>
#include "codecs/lowrank/lowrank.h"
#include "codecs/common/plain.h"
#include "codecs/common/rng.h"

enum { POWERSGD_RANK_MAX = 64, POWERSGD_STATE = 64 };

typedef struct powersgd_self {
    dense_self dense; /* must be the first member */
    uint64_t rank;
    bool warm;
} powersgd_self;

static const char powersgd_params[] = "rank=1,start=warm";

static esp_status powersgd_open(const esp_host *h, const char *params, void **self) {
    double rank = 1;
    char rest[ESP_PARAMS_MAX], start[ESP_PARAMS_MAX];
    esp_param p[] = {{"rank", &rank, 1, POWERSGD_RANK_MAX, 0, 1, "a whole number from 1 to 64"}};
    esp_status st = esp_params_take(h, "powersgd", params, "start", rest, start);
    if (*start && strcmp(start, "warm") != 0 && strcmp(start, "cold") != 0)
        return esp_codec_fail(h, "powersgd", ESP_E_ARG,
                              "powersgd: start must be warm or cold (parameters: rank=1,start=warm)");
    if (st == ESP_OK) st = dense_open(h, "powersgd", rest, p, 1, powersgd_params, sizeof(powersgd_self), self);
    if (st != ESP_OK) return st;
    powersgd_self *s = (powersgd_self *)*self;
    s->rank = (uint64_t)rank;
    s->warm = *start != 'c';
    return ESP_OK;
}

/* Returns the number r of columns of P and Q for a tensor, or 0 if the tensor is sent uncompressed. */
static uint64_t powersgd_rank(const powersgd_self *s, const esp_tensor *t) {
    if (!t->count || !t->rows || t->cols <= s->rank) return 0;
    return t->rows < s->rank ? t->rows : s->rank;
}

typedef struct powersgd_room {
    double *columns;
    float *p, *q;
    uint64_t bytes;
} powersgd_room;

ESP_ELEMENT powersgd_room powersgd_room_of(unsigned char *scratch, uint64_t m, uint64_t n, uint64_t r) {
    powersgd_room x = {NULL, NULL, NULL, 0};
    const uint64_t columns = (m * r * sizeof(double) + 63) / 64 * 64, p = (m * r * sizeof(float) + 63) / 64 * 64;
    if (scratch) {
        x.columns = (double *)(void *)scratch;
        x.p = (float *)(void *)(scratch + columns);
        x.q = (float *)(void *)(scratch + columns + p);
    }
    x.bytes = columns + p + lowrank_n_sums(m) * r * n * sizeof(float);
    return x;
}

static esp_status powersgd_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                 esp_bound *out) {
    const powersgd_self *s = (const powersgd_self *)self;
    const uint64_t r = powersgd_rank(s, like);
    (void)n_reduced;
    if (r) {
        const uint64_t state = s->warm ? POWERSGD_STATE + r * like->cols * sizeof(float) : 0;
        return esp_bound_fill(out, r * (round ? like->cols : like->rows) * sizeof(float),
                              powersgd_room_of(NULL, like->rows, like->cols, r).bytes, state);
    }
    const esp_status st = esp_bound_fill(out, round ? like->count * sizeof(float) : 0, 0, 0);
    if (!round) out->payload_bytes = 0;
    return st;
}

/* ---- the initial Q ----------------------------------------------------------------------------------------------- */
static uint64_t powersgd_key(const esp_codec_args *a, uint64_t tensor) {
    return esp_rng_key(a->seed, a->step, tensor, a->comp_index, 0);
}
/* Draws random numbers in (-1, 1) for rows 4 b to 4 b + 3 of column k of Q, as far as Q, which has n rows, has them. */
ESP_ELEMENT void powersgd_draw_four(uint64_t key, uint64_t first, uint64_t k, uint64_t b, float *q, uint64_t n) {
    const esp_philox_t x = esp_philox(key, first, k << 32 | b);
    for (uint64_t i = 0; i < 4 && 4 * b + i < n; i++)
        q[4 * b + i] = (float)((int32_t)(x.w[i] >> 8) - 0x800000) * 0x1p-23f + 0x1p-24f;
}

/* Returns the part of the state memory that holds Q of the previous step, or NULL if the tensor has no state. In the
 * first step it is zero. */
static float *powersgd_state(const esp_codec_args *a, uint32_t t) {
    if (!a->state || !a->state[t].ptr || a->state[t].bytes <= POWERSGD_STATE) return NULL;
    return (float *)(void *)((unsigned char *)a->state[t].ptr + POWERSGD_STATE);
}

static const float *powersgd_first(const esp_codec_args *a, uint32_t t, uint64_t r, float *room) {
    const uint64_t n = a->tensor[t]->cols, key = powersgd_key(a, a->tensor[t]->key);
    float *state = powersgd_state(a, t), *q = state ? state : room;
    for (uint64_t k = 0; k < r; k++) {
        uint32_t any = 0;
        for (uint64_t j = 0; state && j < n; j++) any |= float_bits(q[k * n + j]) << 1;
        for (uint64_t b = 0; !any && b < (n + 3) / 4; b++) powersgd_draw_four(key, a->offset[t], k, b, q + k * n, n);
    }
    return q;
}

/* Divides q by the length of its column. If the length is not finite, since a sum overflowed, the column becomes
 * zero: the next step then draws a random one, and recovers. */
ESP_ELEMENT float powersgd_unit(float q, double length) {
    return length > 0 && length <= DBL_MAX ? (float)((double)q / length) : 0;
}
/* Stores the summed Q for the next step, with every column scaled to length 1. */
static void powersgd_keep(float *state, const dense_f32 *q, uint64_t n, uint64_t r) {
    for (uint64_t k = 0; k < r; k++) {
        const double length = lowrank_length(q + k * n, n);
        for (uint64_t j = 0; j < n; j++) state[k * n + j] = powersgd_unit(q[k * n + j], length);
    }
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
static lowrank_job powersgd_job(const powersgd_self *s, const esp_codec_args *a, uint32_t t, uint64_t r) {
    lowrank_job l;
    memset(&l, 0, sizeof l);
    l.self = &s->dense;
    l.m = a->tensor[t]->rows, l.n = a->tensor[t]->cols, l.r = r;
    l.g = (const float *)a->tensor[t]->data.ptr;
    l.e = esp_residual_of(a, t);
    l.beta = a->beta, l.gamma = a->gamma;
    return l;
}

static esp_payload_header powersgd_header(const esp_codec_args *a, uint32_t t, uint64_t r, uint64_t body) {
    return esp_payload_header_of(esp_name_hash("powersgd"), 1, 0, a->tensor[t]->count, body * sizeof(float), r);
}

/* Sends a tensor uncompressed, in the second of the codec's two exchanges. */
static esp_status powersgd_plain(const powersgd_self *s, const esp_codec_args *a, uint32_t t) {
    const bool last = a->round == 1;
    esp_payload_header h = powersgd_header(a, t, 0, last ? a->tensor[t]->count : 0);
    const esp_status st = esp_payload_begin(&a->payload[t], &h);
    if (st != ESP_OK || !last) return st;
    esp_codec_args one = *a;
    const esp_buf *e = a->residual ? &a->residual[t] : NULL;
    one.tensor = &a->tensor[t];
    one.residual = e;
    if (dense_encode(&s->dense, &one, esp_payload_body(&a->payload[t]), plain_encode)) return ESP_OK;
    return dense_send_nan(&a->payload[t], &h, h.body_bytes);
}

static esp_status powersgd_round0(const powersgd_self *s, const esp_codec_args *a, uint32_t t, uint64_t r) {
    lowrank_job l = powersgd_job(s, a, t, r);
    const powersgd_room room = powersgd_room_of((unsigned char *)a->scratch->ptr, l.m, l.n, r);
    esp_payload_header h = powersgd_header(a, t, r, l.m * r);
    const esp_status st = esp_payload_begin(&a->payload[t], &h);
    if (st != ESP_OK) return st;
    l.p = room.p;
    l.q = powersgd_first(a, t, r, room.q);
    lowrank_p(&l);
    memcpy(esp_payload_body(&a->payload[t]), l.p, h.body_bytes);
    /* A NaN or Inf in phi also makes its row of P non-finite. */
    return dense_check_for(s->dense.level)(l.p, l.m * r) ? dense_send_nan(&a->payload[t], &h, h.body_bytes) : ESP_OK;
}

static esp_status powersgd_sum_header(const esp_codec_args *a, uint32_t t, uint64_t r, esp_payload_header *h) {
    const bool ok = a->reduced &&
                    !esp_payload_read(&a->reduced[t], esp_name_hash("powersgd"), 1, a->tensor[t]->count, h) &&
                    h->body_bytes == a->tensor[t]->rows * r * sizeof(float);
    return ok ? ESP_OK : ESP_E_CORRUPT;
}

/* Writes an orthonormal basis of the summed P to room->p. Sets *nan if any rank's input, or the sum, is not finite. */
static esp_status powersgd_basis(const powersgd_self *s, const esp_codec_args *a, uint32_t t, uint64_t r,
                                 const powersgd_room *room, bool *nan) {
    const uint64_t m = a->tensor[t]->rows;
    esp_payload_header h;
    const esp_status st = powersgd_sum_header(a, t, r, &h);
    *nan = false;
    if (st != ESP_OK) return st;
    memcpy(room->p, esp_payload_body(&a->reduced[t]), h.body_bytes);
    *nan = (h.flags & ESP_PAYLOAD_NONFINITE) || dense_check_for(s->dense.level)(room->p, m * r);
    if (*nan) return ESP_OK;
    for (uint64_t k = 0; k < r; k++)
        for (uint64_t i = 0; i < m; i++) room->columns[k * m + i] = (double)room->p[i * r + k];
    lowrank_orthonormal(room->columns, m, r);
    for (uint64_t k = 0; k < r; k++)
        for (uint64_t i = 0; i < m; i++) room->p[i * r + k] = (float)room->columns[k * m + i];
    return ESP_OK;
}

static esp_status powersgd_round1(const powersgd_self *s, const esp_codec_args *a, uint32_t t, uint64_t r) {
    lowrank_job l = powersgd_job(s, a, t, r);
    const powersgd_room room = powersgd_room_of((unsigned char *)a->scratch->ptr, l.m, l.n, r);
    esp_payload_header h = powersgd_header(a, t, r, l.n * r);
    bool nan;
    esp_status st = esp_payload_begin(&a->payload[t], &h);
    if (st == ESP_OK) st = powersgd_basis(s, a, t, r, &room, &nan);
    if (st != ESP_OK) return st;
    if (nan) return dense_send_nan(&a->payload[t], &h, h.body_bytes);
    l.p = room.p;
    l.sums = room.q;
    lowrank_qt(&l);
    if (dense_check_for(s->dense.level)(room.q, l.n * r)) return dense_send_nan(&a->payload[t], &h, h.body_bytes);
    memcpy(esp_payload_body(&a->payload[t]), room.q, h.body_bytes);
    if (!l.e) return ESP_OK;
    l.q = room.q;
    l.out = esp_residual_of(a, t);
    lowrank_rest_of(&l);
    return ESP_OK;
}

static esp_status powersgd_compress(void *self, const esp_codec_args *a) {
    const powersgd_self *s = (const powersgd_self *)self;
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        const uint64_t r = powersgd_rank(s, a->tensor[t]);
        const esp_status st = !r         ? powersgd_plain(s, a, t)
                              : a->round ? powersgd_round1(s, a, t, r)
                                         : powersgd_round0(s, a, t, r);
        if (st != ESP_OK) return st;
    }
    return ESP_OK;
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
/* Checks all payloads of tensor t, and sets *nan if one of them is marked as not finite. */
static esp_status powersgd_check(const esp_codec_args *a, uint32_t t, uint64_t r, bool *nan) {
    const uint64_t body = (r ? r * a->tensor[t]->cols : a->tensor[t]->count) * sizeof(float);
    for (uint32_t k = 0; k < a->n_payloads; k++) {
        esp_payload_header h;
        memset(&h, 0, sizeof h);
        const esp_status st =
            esp_payload_read(&a->payload[t * a->n_payloads + k], esp_name_hash("powersgd"), 1, a->tensor[t]->count, &h);
        if (st != ESP_OK || h.flags & ESP_PAYLOAD_EMPTY || h.body_bytes != body || h.aux != r) return ESP_E_CORRUPT;
        *nan |= (h.flags & ESP_PAYLOAD_NONFINITE) != 0;
    }
    return ESP_OK;
}

static void powersgd_decode(const powersgd_self *s, const esp_codec_args *a, uint32_t t, uint64_t r,
                            const powersgd_room *room) {
    lowrank_job l = powersgd_job(s, a, t, r);
    l.p = room->p;
    l.out = (float *)a->tensor[t]->data.ptr;
    l.scale = a->scale == 0 ? 1 : a->scale;
    for (uint32_t k = 0; k < a->n_payloads; k++) {
        const void *body = esp_payload_body(&a->payload[t * a->n_payloads + k]);
        l.set = a->mode == ESP_OUT_SET && !k;
        if (r) {
            l.q = (const float *)body;
            lowrank_put_of(&l);
        } else {
            plain_add_for(s->dense.level)(l.out, (const dense_f32 *)body, l.scale, l.set, a->tensor[t]->count);
        }
    }
    float *state = powersgd_state(a, t);
    if (r && state && a->n_payloads == 1)
        powersgd_keep(state, (const dense_f32 *)esp_payload_body(&a->payload[t]), l.n, r);
}

static esp_status powersgd_decompress(void *self, const esp_codec_args *a) {
    const powersgd_self *s = (const powersgd_self *)self;
    for (uint32_t t = 0; t < a->n_tensors; t++) { /* Check all tensors before writing to any. */
        bool nan = false;
        const uint64_t r = powersgd_rank(s, a->tensor[t]);
        esp_payload_header h;
        if (powersgd_check(a, t, r, &nan) != ESP_OK) return ESP_E_CORRUPT;
        if (r && (powersgd_sum_header(a, t, r, &h) != ESP_OK || h.aux != r)) return ESP_E_CORRUPT;
    }
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        const uint64_t r = powersgd_rank(s, a->tensor[t]);
        powersgd_room room = {0};
        bool nan = false, sum_nan = false;
        (void)powersgd_check(a, t, r, &nan);
        if (r) {
            room = powersgd_room_of((unsigned char *)a->scratch->ptr, a->tensor[t]->rows, a->tensor[t]->cols, r);
            (void)powersgd_basis(s, a, t, r, &room, &sum_nan);
        }
        if (nan || sum_nan)
            dense_fill_nan(a->tensor[t]->data.ptr, a->tensor[t]->count);
        else
            powersgd_decode(s, a, t, r, &room);
    }
    return ESP_OK;
}

/* ---- the codec's table ------------------------------------------------------------------------------------------- */
/* Estimates how long a GPU orthonormalizes r columns of m numbers. One block does so, with as many inner products as
 * the CPU, r (r + 1), and four partial sums, so that the bits are the same; an addition takes about 8 ns. */
static double powersgd_basis_ns(double m, double r) { return r * (r + 1) * (m / 4) * 8; }
static esp_status powersgd_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                 esp_codec_model *out) {
    const powersgd_self *s = (const powersgd_self *)self;
    const bool matrix = like->rows != 0;
    const double bytes = 4 * (double)s->rank, passes = matrix ? esp_model_stream(28) : esp_model_stream(12);
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .reducible = 1,
        .size = {0, 0, 4, 0, 0},
        .error = matrix ? -1.0 : 0,
        .setup_ns = 1000,
        .ns = {passes, esp_model_stream(8)},
        .launches = {matrix ? 6.0 : 4.0, matrix ? 3.0 : 2.0},
        .bytes = {matrix ? 28.0 : 24.0, matrix ? 8.0 : 12.0},
    };
    esp_codec_model m = esp_model_of(&f, d);
    const double basis = d.kind == ESP_CUDA ? powersgd_basis_ns((double)like->rows, (double)powersgd_rank(s, like)) : 0;
    (void)n_reduced;
    for (uint32_t i = 0; i < m.n_times; i++) m.times[i].compress_ns += basis, m.times[i].decompress_ns += basis;
    m.reduced[1] = m.reduced[0];
    memset(&m.reduced[0], 0, sizeof m.reduced[0]);
    if (matrix) {
        const esp_payload_size p = {ESP_PAYLOAD_HEADER, 0, 0, bytes, 0}, q = {ESP_PAYLOAD_HEADER, 0, 0, 0, bytes};
        m.reduced[0] = p;
        m.reduced[1] = m.sent = q;
    }
    return esp_model_answer(out, &m);
}

/* With start=warm every rank needs the sum of Q in the next step, so the second sum must be an allreduce. */
static const esp_round powersgd_rounds[] = {{ESP_REDUCE_SUM, ESP_F32, 0, 0},
                                            {ESP_REDUCE_SUM, ESP_F32, ESP_ROUND_ALLREDUCE, 0}};
static const esp_codec powersgd_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_HAS_STATE | ESP_CODEC_REDUCIBLE | ESP_CODEC_NEEDS_MATRIX | ESP_CODEC_FUSED_RESIDUAL |
                          ESP_CODEC_LISTS),
    .name = "powersgd",
    .summary = "matrices as products of two thin ones, both summed undecoded",
    .params = powersgd_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather",
    .n_rounds = 2,
    .rounds = powersgd_rounds,
    ESP_CODEC_CALLS(powersgd_open, esp_codec_self_free, NULL, powersgd),
    .family = "low rank",
    .paper = "Vogels et al., NeurIPS 2019",
};

ESP_PLUGIN_CODEC(powersgd, &powersgd_codec)
