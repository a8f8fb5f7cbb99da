/* adaptive.c: codec "adaptive", which sends which elements are the largest share `ratio` of the positive ones, and of
 * the negative ones, and the mean of either group, with error feedback. After Dryden, Moon, Jacobs, Van Essen,
 * "Communication quantization for data-parallel training of deep neural networks", MLHPC 2016. The body has the two
 * means, then the number of elements of each group in each span of 65536 elements, then the groups' places as in
 * sparse.h. */
#include "espresso.h"
#include "codecs/common/fixed.h"
#include "codecs/common/parts.h"
#include "codecs/common/sparse.h"

typedef struct adaptive_self {
    dense_self dense;
    double ratio;
} adaptive_self;

static const char adaptive_name[] = "adaptive", adaptive_params[] = "ratio=0.01";
enum { ADAPTIVE_MEANS = 8 };

static esp_status adaptive_open(const esp_host *h, const char *params, void **self) {
    double ratio = 0.01;
    esp_param p[] = {{"ratio", &ratio, 0.0, 1.0, 1, 0, "above 0 and at most 1"}};
    const esp_status st = dense_open(h, adaptive_name, params, p, 1, adaptive_params, sizeof(adaptive_self), self);
    if (st == ESP_OK) ((adaptive_self *)*self)->ratio = ratio;
    return st;
}

ESP_ELEMENT uint64_t adaptive_place_bytes(uint64_t count, uint64_t k) {
    return sparse_is_map(count, k) ? sparse_map_bytes(count) : 2 * k;
}
ESP_ELEMENT uint64_t adaptive_body(uint64_t count, const uint64_t k[2]) {
    if (!count) return 0;
    return ADAPTIVE_MEANS + 8 * sparse_spans(count) + adaptive_place_bytes(count, k[0]) +
           adaptive_place_bytes(count, k[1]);
}

/* Returns the size of the largest body. Both groups together have at most k + 1 elements, because either share is
 * rounded up. */
static uint64_t adaptive_most(const adaptive_self *s, uint64_t n) {
    const uint64_t maps = 2 * sparse_map_bytes(n), lists = 2 * (sparse_k(s->ratio, n) + 1), none[2] = {0, 0};
    return n ? adaptive_body(n, none) + (maps < lists ? maps : lists) : 0;
}
static esp_status adaptive_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                 esp_bound *out) {
    const adaptive_self *s = (const adaptive_self *)self;
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, adaptive_most(s, like->count),
                          select_scratch_bytes(like->count, sparse_k(s->ratio, like->count)), 0);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
/* One group's part of a span: the mean, the number of elements, and their places. */
typedef struct adaptive_part {
    float mean;
    uint64_t n;
    const uint8_t *place;
    bool map;
} adaptive_part;

static adaptive_part adaptive_part_of(const uint8_t *body, uint64_t count, uint64_t span, int group) {
    const uint64_t spans = sparse_spans(count);
    const uint8_t *held = body + ADAPTIVE_MEANS, *place = held + 8 * spans;
    uint64_t k[2] = {0, 0}, before = 0;
    for (int i = 0; i < 2; i++)
        for (uint64_t s = 0; s < spans; s++) {
            if (i == group && s == span) before = k[i];
            k[i] += sparse_u32(held + 4 * (spans * (uint64_t)i + s));
        }
    if (group) place += adaptive_place_bytes(count, k[0]);
    const bool map = sparse_is_map(count, k[group]);
    return (adaptive_part){sparse_f32(body + 4 * group), sparse_u32(held + 4 * (spans * (uint64_t)group + span)),
                           place + (map ? span * (SELECT_SPAN / 8) : 2 * before), map};
}

static bool adaptive_body_ok(int level, const uint8_t *body, uint64_t count, uint64_t bytes) {
    const uint64_t spans = sparse_spans(count);
    uint64_t k[2] = {0, 0};
    if (bytes < ADAPTIVE_MEANS + 8 * spans || !sparse_finite_scalar(body, 2)) return false;
    for (uint64_t i = 0; i < 2 * spans; i++) {
        const uint64_t n = sparse_u32(body + ADAPTIVE_MEANS + 4 * i);
        if (n > sparse_span_len(count, i % spans)) return false;
        k[i / spans] += n;
    }
    if (bytes != adaptive_body(count, k)) return false;
    for (uint64_t i = 0; i < 2 * spans; i++) {
        const uint64_t len = sparse_span_len(count, i % spans);
        const adaptive_part p = adaptive_part_of(body, count, i % spans, (int)(i / spans));
        if (p.map ? !sparse_map_ok(level, p.place, p.n, len) : !sparse_places_ok(p.place, p.n, len)) return false;
    }
    return true;
}

typedef struct adaptive_sum {
    const esp_payload *payload;
    uint32_t n_payloads;
    bool set;
    float scale, *out;
    uint64_t count;
} adaptive_sum;

static void adaptive_add(float *out, const adaptive_part *p, uint64_t len, float x) {
    if (p->map) {
        for (uint64_t w = 0; w < (len + 31) / 32; w++)
            for (uint32_t m = sparse_u32(p->place + 4 * w); m; m &= m - 1)
                out[32 * w + (uint64_t)__builtin_ctz(m)] += x;
    } else {
        for (uint64_t i = 0; i < p->n; i++) out[sparse_u16(p->place + 2 * i)] += x;
    }
}
static void adaptive_sum_piece(void *arg, uint64_t begin, uint64_t end) {
    const adaptive_sum *d = (const adaptive_sum *)arg;
    for (uint64_t at = begin; at < end; at += SELECT_SPAN) {
        const uint64_t len = end - at < SELECT_SPAN ? end - at : SELECT_SPAN;
        if (d->set) memset(d->out + at, 0, 4 * len);
        for (uint32_t i = 0; i < d->n_payloads; i++) {
            esp_payload_header h;
            memcpy(&h, d->payload[i].data.ptr, sizeof h);
            for (int group = 0; group < 2 && h.body_bytes; group++) {
                const adaptive_part p = adaptive_part_of((const uint8_t *)esp_payload_body(&d->payload[i]), d->count,
                                                         at / SELECT_SPAN, group);
                adaptive_add(d->out + at, &p, len, p.mean * d->scale);
            }
        }
    }
}

static esp_status adaptive_decompress_one(const void *self, const esp_host *host, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    adaptive_sum d = {a->payload, a->n_payloads, a->mode == ESP_OUT_SET, a->scale != 0 ? a->scale : 1, dense_out(a), n};
    int nan = 0;
    for (uint32_t i = 0; i < a->n_payloads; i++) {
        esp_payload_header h;
        if (esp_payload_read(&a->payload[i], esp_name_hash(adaptive_name), 1, n, &h) != ESP_OK || h.aux ||
            (h.flags || !n ? h.body_bytes != 0
                           : !adaptive_body_ok(((const dense_self *)self)->level,
                                               (const uint8_t *)esp_payload_body(&a->payload[i]), n, h.body_bytes)))
            return esp_codec_fail(host, adaptive_name, ESP_E_CORRUPT, "the payload is corrupt, or from another codec");
        nan |= h.flags & ESP_PAYLOAD_NONFINITE;
    }
    if (nan)
        dense_fill_nan(d.out, n);
    else
        esp_codec_parallel(host, n, SELECT_SPAN, adaptive_sum_piece, &d);
    return ESP_OK;
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
ESP_INLINE uint64_t adaptive_signs_body(const float *x, uint64_t n) {
    uint32_t positive = 0, negative = 0;
    for (uint64_t i = 0; i < n; i++) positive += x[i] > 0, negative += x[i] < 0;
    return positive | (uint64_t)negative << 32;
}
ESP_KERNEL(adaptive_signs, (const float *x, uint64_t n), (x, n))
/* Replaces elements of the other sign by 0. */
ESP_INLINE uint64_t adaptive_group_body(float *out, const float *x, float sign, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) out[i] = x[i] * sign > 0 ? x[i] : 0;
    return 0;
}
ESP_KERNEL(adaptive_group, (float *out, const float *x, float sign, uint64_t n), (out, x, sign, n))

typedef struct adaptive_input {
    sparse_input all;
    float sign;
    uint64_t n[2]; /* positive and negative elements */
    uint32_t bad;
} adaptive_input;

static const float *adaptive_load(const void *arg, uint64_t at, uint64_t n, float *buf) {
    const adaptive_input *in = (const adaptive_input *)arg;
    adaptive_group_for(in->all.level)(buf, sparse_load(&in->all, at, n, buf), in->sign, n);
    return buf;
}
static void adaptive_count(void *arg, uint64_t begin, uint64_t end) {
    adaptive_input *in = (adaptive_input *)arg;
    float buf[SELECT_BLOCK];
    for (uint64_t at = begin; at < end; at += SELECT_BLOCK) {
        const uint64_t n = end - at < SELECT_BLOCK ? end - at : SELECT_BLOCK;
        const float *x = sparse_load(&in->all, at, n, buf);
        const uint64_t signs = adaptive_signs_for(in->all.level)(x, n);
        if (dense_check_for(in->all.level)(x, n)) esp_codec_raise(&in->bad, 1);
        __atomic_fetch_add(&in->n[0], (uint32_t)signs, __ATOMIC_RELAXED);
        __atomic_fetch_add(&in->n[1], signs >> 32, __ATOMIC_RELAXED);
    }
}
static void adaptive_keep(void *arg, uint64_t begin, uint64_t end) {
    const sparse_input *in = (const sparse_input *)arg;
    sparse_keep_for(in->level)(in->g + begin, in->e + begin, in->beta, in->gamma, end - begin);
}

static float adaptive_mean(const select_job *s) {
    int64_t sum = 0;
    uint32_t top = 0;
    for (uint64_t b = 0; b < select_blocks(s->count); b++)
        for (uint64_t i = 0; i < s->block[b].n; i++) {
            const uint32_t bits = select_bits(s->val[s->block[b].at + i]);
            top = bits > top ? bits : top;
        }
    const int32_t unit = fixed_unit(top, s->k);
    for (uint64_t b = 0; b < select_blocks(s->count); b++)
        for (uint64_t i = 0; i < s->block[b].n; i++) sum += fixed_of(s->val[s->block[b].at + i], unit);
    return fixed_mean(sum, s->k, unit);
}

static esp_status adaptive_compress_one(const void *self, const esp_host *host, const esp_codec_args *a) {
    const adaptive_self *t = (const adaptive_self *)self;
    const uint64_t n = a->tensor[0]->count, spans = sparse_spans(n);
    adaptive_input in = {sparse_input_of(a, t->dense.level), 1, {0, 0}, 0};
    esp_codec_parallel(host, n, SELECT_SPAN, adaptive_count, &in);
    const uint64_t k[2] = {sparse_k(t->ratio, in.n[0]), sparse_k(t->ratio, in.n[1])};
    esp_payload_header h = esp_payload_header_of(esp_name_hash(adaptive_name), 1, in.bad ? ESP_PAYLOAD_NONFINITE : 0, n,
                                                 in.bad ? 0 : adaptive_body(n, k), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || in.bad || !n) return st;
    if (!a->scratch || a->scratch->bytes < select_scratch_bytes(n, sparse_k(t->ratio, n)))
        return esp_codec_fail(host, adaptive_name, ESP_E_ARG, "scratch memory is less than bound() requires");
    uint8_t *body = (uint8_t *)esp_payload_body(a->payload), *held = body + ADAPTIVE_MEANS, *place = held + 8 * spans;
    memset(body, 0, ADAPTIVE_MEANS + 8 * spans);
    for (int group = 0; group < 2; group++, held += 4 * spans) {
        select_job s = {.host = host, .simd = t->dense.level, .load = adaptive_load, .arg = &in, .count = n};
        if (!k[group]) continue;
        s.k = k[group];
        s.n_sample = select_sample(n);
        in.sign = group ? -1.0f : 1.0f;
        (void)select_run(&s, a->scratch->ptr);
        const float mean = adaptive_mean(&s);
        memcpy(body + 4 * group, &mean, sizeof mean);
        sparse_write_to(&s, NULL, held, place);
        place += adaptive_place_bytes(n, s.k);
    }
    if (!in.all.e) return ESP_OK;
    adaptive_sum d = {a->payload, 1, false, -1, in.all.e, n};
    esp_codec_parallel(host, n, SELECT_SPAN, adaptive_keep, &in.all);
    esp_codec_parallel(host, n, SELECT_SPAN, adaptive_sum_piece, &d);
    return ESP_OK;
}

/* Tensors of at least this size are compressed one at a time, each by all worker threads. */
enum { ADAPTIVE_LARGE = 2 * SELECT_SPAN };
static esp_status adaptive_compress(void *self, const esp_codec_args *a) {
    return parts_run(self, ((const dense_self *)self)->host, a, ADAPTIVE_LARGE, adaptive_compress_one);
}
static esp_status adaptive_decompress(void *self, const esp_codec_args *a) {
    return parts_run(self, ((const dense_self *)self)->host, a, ADAPTIVE_LARGE, adaptive_decompress_one);
}

/* Of normally distributed elements, those above t in magnitude are the share r, and their mean m is 2 density(t) / r.
 * Sending m instead of them loses 1 - r m^2 of the energy. */
static esp_status adaptive_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                 esp_codec_model *out) {
    const double r = ((const adaptive_self *)self)->ratio, t = esp_model_quantile(r);
    const double mean = 2 * exp(-t * t / 2) / sqrt(2 * ESP_MODEL_PI) / r;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {ADAPTIVE_MEANS, 0, fmin(0.25, 2 * r) + 8 / (double)SELECT_SPAN, 0, 0},
        .error = 1 - r * mean * mean,
        .setup_ns = 2000,
        .ns = {9 + 6 * r, esp_model_stream(4) + 2 * r},
        .launches = {5, 2},
        .bytes = {44 + 2 * r, 4 + 68 * r},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec adaptive_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_LISTS),
    .name = adaptive_name,
    .summary = "the largest positive and the most negative elements, as two means (Dryden)",
    .params = adaptive_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(adaptive_open, esp_codec_self_free, NULL, adaptive),
    .family = "hybrid",
    .paper = "Dryden et al., MLHPC 2016",
};

ESP_PLUGIN_CODEC(adaptive, &adaptive_codec)
