/* sign.c: codecs that send one bit per element, and values -1 or +1 for it.
 * "signsgd": Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: compressed optimisation for non-convex problems",
 * ICML 2018. The ranks vote: the result is +1 where at least half of them have an element >= 0, otherwise -1.
 * "signum", of the same paper: each rank sends the signs of its momentum M = momentum * M + (1 - momentum) * gradient,
 * which the codec keeps as state. Where a machine's gradients are added before compression, it has one vote.
 * "mxnet1bit": MXNet's "1bit" compression (src/kvstore/gradient_compression.cc): +1 if gradient plus residual is above
 * the threshold, otherwise -1, and the rest is the residual. Bits are in MXNet's order, the first in a byte's highest
 * bit. The result is the mean, as of other codecs. */
#include "codecs/common/dense.h"
#include "codecs/common/bits.h"

typedef struct sign_self {
    dense_self dense;
    const char *name;
    float momentum;  /* signum's; 0 for others */
    float threshold; /* mxnet1bit's; 0 for others */
    bool mxnet;
} sign_self;

static esp_status sign_open(const char *name, const esp_host *h, const char *params, esp_param *p, int n,
                            const char *all, void **self) {
    const esp_status st = dense_open(h, name, params, p, n, all, sizeof(sign_self), self);
    if (st == ESP_OK) ((sign_self *)*self)->name = name;
    return st;
}
static esp_status signsgd_open(const esp_host *h, const char *params, void **self) {
    return sign_open("signsgd", h, params, NULL, 0, "", self);
}
static const char signum_params[] = "momentum=0.9", mxnet1bit_params[] = "threshold=0";
static esp_status signum_open(const esp_host *h, const char *params, void **self) {
    double momentum = 0.9;
    esp_param p[] = {{"momentum", &momentum, 0, 0.9999, 0, 0, "0 to 0.9999"}};
    const esp_status st = sign_open("signum", h, params, p, 1, signum_params, self);
    if (st == ESP_OK) ((sign_self *)*self)->momentum = (float)momentum;
    return st;
}
static esp_status mxnet1bit_open(const esp_host *h, const char *params, void **self) {
    double threshold = 0;
    esp_param p[] = {{"threshold", &threshold, -1e30, 1e30, 0, 0, "a number (-1e30 to 1e30)"}};
    const esp_status st = sign_open("mxnet1bit", h, params, p, 1, mxnet1bit_params, self);
    if (st != ESP_OK) return st;
    ((sign_self *)*self)->threshold = (float)threshold;
    ((sign_self *)*self)->mxnet = true;
    return ESP_OK;
}

static bool sign_has_state(const sign_self *s) { return s->momentum > 0; }

static esp_status sign_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, bits_bytes(like->count), 0, sign_has_state((sign_self *)self) ? 4 * like->count : 0);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */
ESP_ELEMENT float sign_momentum(float m, float g, float momentum) { return momentum * m + (1 - momentum) * g; }
ESP_INLINE uint64_t sign_step_body(float *m, const float *g, float momentum, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) m[i] = sign_momentum(m[i], g[i], momentum);
    return 0;
}
ESP_KERNEL(sign_step, (float *m, const float *g, float momentum, uint64_t n), (m, g, momentum, n))

/* Subtracts the signs of phi: -1 where it is negative, otherwise 1. */
ESP_INLINE uint64_t sign_left_body(float *e, const float *phi, const float *x, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) e[i] = phi[i] - (x[i] < 0 ? -1.0f : 1.0f);
    return 0;
}
ESP_KERNEL(sign_left, (float *e, const float *phi, const float *x, uint64_t n), (e, phi, x, n))

/* Reverses the bits of each byte: MXNet's order to ours, and back. */
ESP_ELEMENT uint32_t sign_reversed(uint32_t w) {
    w = (w >> 4 & 0x0F0F0F0Fu) | (w & 0x0F0F0F0Fu) << 4;
    w = (w >> 2 & 0x33333333u) | (w & 0x33333333u) << 2;
    return (w >> 1 & 0x55555555u) | (w & 0x55555555u) << 1;
}
/* MXNet's bits: 1 where phi is above the threshold. Its residual is phi - 1 there, and phi + 1 elsewhere. */
ESP_TARGET_SCALAR static uint64_t sign_mxnet_scalar(unsigned char *out, float *e, const float *phi, float threshold,
                                                    uint64_t n) {
    for (uint64_t i = 0; i < n; i += 32) {
        const uint64_t len = n - i < 32 ? n - i : 32;
        uint32_t w = 0;
        for (uint64_t j = 0; j < len; j++) w |= (uint32_t)(phi[i + j] > threshold) << j;
        for (uint64_t j = 0; e && j < len; j++) e[i + j] = phi[i + j] - (w >> j & 1 ? 1.0f : -1.0f);
        w = sign_reversed(w);
        memcpy(out + i / 8, &w, sizeof w);
    }
    return 0;
}
#ifdef ESP_SIMD_X86
ESP_TARGET_AVX2 static uint64_t sign_mxnet_avx2(unsigned char *out, float *e, const float *phi, float threshold,
                                                uint64_t n) {
    const __m256 t = _mm256_set1_ps(threshold), up = _mm256_set1_ps(1), down = _mm256_set1_ps(-1);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t w = 0;
        for (uint32_t q = 0; q < 32; q += 8) {
            const __m256 x = _mm256_loadu_ps(phi + i + q), above = _mm256_cmp_ps(x, t, _CMP_GT_OQ);
            w |= (uint32_t)_mm256_movemask_ps(above) << q;
            if (e) _mm256_storeu_ps(e + i + q, _mm256_sub_ps(x, _mm256_blendv_ps(down, up, above)));
        }
        w = sign_reversed(w);
        memcpy(out + i / 8, &w, sizeof w);
    }
    ESP_LEAVE_WIDE();
    return sign_mxnet_scalar(out + i / 8, e ? e + i : NULL, phi + i, threshold, n - i);
}
ESP_TARGET_AVX512 static uint64_t sign_mxnet_avx512(unsigned char *out, float *e, const float *phi, float threshold,
                                                    uint64_t n) {
    const __m512 t = _mm512_set1_ps(threshold), up = _mm512_set1_ps(1), down = _mm512_set1_ps(-1);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t w = 0;
        for (uint32_t q = 0; q < 32; q += 16) {
            const __m512 x = _mm512_loadu_ps(phi + i + q);
            const __mmask16 above = _mm512_cmp_ps_mask(x, t, _CMP_GT_OQ);
            w |= (uint32_t)above << q;
            if (e) _mm512_storeu_ps(e + i + q, _mm512_sub_ps(x, _mm512_mask_blend_ps(above, down, up)));
        }
        w = sign_reversed(w);
        memcpy(out + i / 8, &w, sizeof w);
    }
    ESP_LEAVE_WIDE();
    return sign_mxnet_scalar(out + i / 8, e ? e + i : NULL, phi + i, threshold, n - i);
}
#endif
ESP_KERNEL_PICK(sign_mxnet)
/* Sets `out` to the words of `in` with reversed bytes, complemented: MXNet's bit 1 stands for +1, ours for -1. Bits
 * behind the last of n elements are 0. `out` may be `in`. */
ESP_INLINE uint64_t sign_turn_body(unsigned char *out, const unsigned char *in, uint64_t n) {
    uint32_t w;
    for (uint64_t i = 0; i < n; i += 32) {
        const uint32_t last = n - i < 32 ? (1u << (n - i)) - 1 : 0xFFFFFFFFu;
        memcpy(&w, in + i / 8, sizeof w);
        w = ~sign_reversed(w) & last;
        memcpy(out + i / 8, &w, sizeof w);
    }
    return 0;
}
ESP_KERNEL(sign_turn, (unsigned char *out, const unsigned char *in, uint64_t n), (out, in, n))

/* ---- compress ---------------------------------------------------------------------------------------------------- */
typedef struct sign_job {
    const sign_self *self;
    unsigned char *bits;
    float *momentum; /* NULL without */
} sign_job;

static void sign_encode(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    const sign_job *j = (const sign_job *)user;
    const int level = j->self->dense.level;
    const float *x = phi;
    if (j->self->mxnet) {
        sign_mxnet_for(level)(j->bits + at / 8, residual, phi, j->self->threshold, n);
        return;
    }
    if (j->momentum) {
        sign_step_for(level)(j->momentum + at, phi, j->self->momentum, n);
        x = j->momentum + at;
    }
    bits_negative_for(level)(j->bits + at / 8, x, n);
    if (residual) sign_left_for(level)(residual, phi, x, n);
}

static esp_status sign_compress(void *self, const esp_codec_args *a) {
    const sign_self *s = (const sign_self *)self;
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash(s->name), 1, 0, n, bits_bytes(n), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || !n) return st;
    sign_job j = {s, (unsigned char *)esp_payload_body(a->payload), NULL};
    if (sign_has_state(s) && a->state && a->state[0].ptr) j.momentum = (float *)a->state[0].ptr;
    /* the momentum must not change if an element is NaN or Inf */
    if (j.momentum && !a->residual && !dense_finite(&s->dense, a)) return dense_send_nan(a->payload, &h, 0);
    return dense_encode(&s->dense, a, &j, sign_encode) ? ESP_OK : dense_send_nan(a->payload, &h, 0);
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
static bool sign_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    uint32_t w = 0;
    if (h->aux) return false;
    if (!((const sign_self *)self)->mxnet || h->count % 32 == 0) return bits_padding_ok(body, h->count);
    memcpy(&w, body + h->body_bytes - sizeof w, sizeof w);
    return sign_reversed(w) >> h->count % 32 == 0;
}
static void sign_add(const void *self, const dense_block *b) {
    const sign_self *s = (const sign_self *)self;
    const unsigned char *bits = b->body + b->at / 8;
    unsigned char turned[DENSE_BLOCK / 8];
    if (s->mxnet) {
        sign_turn_for(s->dense.level)(turned, bits, b->n);
        bits = turned;
    }
    bits_signs_for(s->dense.level)(b->out, bits, b->scale, b->set, b->n);
}
static esp_status sign_decompress(void *self, const esp_codec_args *a) {
    const sign_self *s = (const sign_self *)self;
    const dense_format format = {s->name, 1, 0, sign_valid, sign_add};
    return dense_decompress(&s->dense, &format, a, bits_bytes(a->tensor[0]->count), DENSE_BLOCK);
}

/* Turns sums of votes into the majority's. NaN stays NaN. A tie is +1. */
ESP_ELEMENT float sign_voted(float sum) { return sum >= 0 ? 1.0f : sum < 0 ? -1.0f : sum; }
ESP_INLINE uint64_t sign_vote_body(float *sum, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) sum[i] = sign_voted(sum[i]);
    return 0;
}
ESP_KERNEL(sign_vote, (float *sum, uint64_t n), (sum, n))
static esp_status sign_finalize(void *self, float *sum, uint64_t count, uint32_t ranks, esp_stream s) {
    (void)ranks, (void)s;
    sign_vote_for(((const sign_self *)self)->dense.level)(sum, count);
    return ESP_OK;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */
static esp_status sign_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    const sign_self *s = (const sign_self *)self;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {0, 4, 0.125, 0, 0},
        .error = -1, /* of no known size of gradients */
        .ns = {esp_model_stream(sign_has_state(s) || s->mxnet ? 16.1 : 4.1), esp_model_stream(8.1)},
        .launches = {s->mxnet || sign_has_state(s) ? 2.0 : 1.0, 2},
        .bytes = {sign_has_state(s) ? 16.1
                  : s->mxnet        ? 20.1
                                    : 4.1,
                  4.2},
        .small = {{8192, 1}},
        .momentum = (double)s->momentum,
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

#define SIGN_OPTION "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather"
static const esp_codec signsgd_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK),
    .name = "signsgd",
    .summary = "signs; the result is the sign of the majority: 1 bit an element",
    .default_option = SIGN_OPTION,
    .n_rounds = 1,
    ESP_CODEC_CALLS(signsgd_open, esp_codec_self_free, NULL, sign),
    .finalize = sign_finalize,
    .family = "quantize",
    .paper = "Bernstein et al., ICML 2018",
};
static const esp_codec signum_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK | ESP_CODEC_HAS_STATE),
    .name = "signum",
    .summary = "signs of the momentum; the result is the sign of the majority: 1 bit an element",
    .params = signum_params,
    .default_option = SIGN_OPTION,
    .n_rounds = 1,
    ESP_CODEC_CALLS(signum_open, esp_codec_self_free, NULL, sign),
    .finalize = sign_finalize,
    .family = "quantize",
    .paper = "Bernstein et al., ICML 2018",
};
static const esp_codec mxnet1bit_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "mxnet1bit",
    .summary = "-1 or +1, with error feedback (MXNet's 1bit): 1 bit an element",
    .params = mxnet1bit_params,
    .default_option = SIGN_OPTION,
    .n_rounds = 1,
    ESP_CODEC_CALLS(mxnet1bit_open, esp_codec_self_free, NULL, sign),
    .family = "quantize",
    .paper = "MXNet, gradient compression 1bit",
};

ESP_PLUGIN_CODEC(sign, &signsgd_codec, &signum_codec, &mxnet1bit_codec)
