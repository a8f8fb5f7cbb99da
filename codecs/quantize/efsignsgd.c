/* efsignsgd.c: codec "efsignsgd", which sends one bit per element (its sign) and one scale s, with error feedback.
 * After Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD and other gradient compression schemes",
 * ICML 2019.
 *     phi = beta e + gamma g;   s = mean of |phi|;   e = phi - s sign(phi)          (g gradient, e residual)
 * With norm=2, s is the root of the mean of phi^2, as in Tang et al., "1-bit Adam: communication efficient large-scale
 * training with Adam's convergence speed", ICML 2021. The paper puts the learning rate into phi, this codec does not. A
 * trainer that changes the rate from lr0 to lr1 must therefore call esp_feedback_scale(ctx, lr0 / lr1).
 * docs/design/wire.md has the wire format. */
#include "codecs/common/dense.h"
#include "codecs/common/bits.h"
#include "codecs/common/norm.h"

enum { EFSIGN_SCALE_BYTES = 4 };

ESP_ELEMENT float efsign_scale(double norm, uint64_t count) { return (float)(norm / (double)count); }
ESP_ELEMENT float efsign_kept(float phi, float s) { return phi < 0 ? phi + s : phi - s; }
ESP_ELEMENT uint64_t efsign_body(uint64_t count) { return count ? EFSIGN_SCALE_BYTES + bits_bytes(count) : 0; }
ESP_ELEMENT bool efsign_body_ok(const unsigned char *body, uint64_t count) {
    uint32_t s;
    memcpy(&s, body, sizeof s);
    return s <= 0x7F7FFFFFu && bits_padding_ok(body + EFSIGN_SCALE_BYTES, count);
}

ESP_INLINE uint64_t efsign_residual_body(float *e, const float *phi, float s, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) e[i] = efsign_kept(phi[i], s);
    return 0;
}
ESP_KERNEL(efsign_residual, (float *e, const float *phi, float s, uint64_t n), (e, phi, s, n))

typedef struct efsign_self {
    dense_self dense;
    bool squares; /* norm=2 */
} efsign_self;

typedef struct efsign_job {
    int level;
    unsigned char *bits;
    float scale;
} efsign_job;

static void efsign_pack(void *user, const float *phi, uint64_t at, uint64_t n) {
    const efsign_job *j = (const efsign_job *)user;
    bits_negative_for(j->level)(j->bits + at / 8, phi, n);
}
static void efsign_keep(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    const efsign_job *j = (const efsign_job *)user;
    (void)at;
    efsign_residual_for(j->level)(residual, phi, j->scale, n);
}

static esp_status efsign_compress(void *self, const esp_codec_args *a) {
    const bool squares = ((const efsign_self *)self)->squares;
    const dense_self *s = (const dense_self *)self;
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash("efsignsgd"), 1, 0, n, efsign_body(n), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || n == 0) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    efsign_job j = {s->level, body + EFSIGN_SCALE_BYTES, 0};
    norm_pass pass = {s, a, (float *)a->scratch->ptr, efsign_pack, &j, squares};
    const double norm = norm_of_phi(&pass);
    j.scale = squares ? (float)sqrt(norm / (double)n) : efsign_scale(norm, n);
    if (dense_bad(j.scale)) return dense_send_nan(a->payload, &h, 0);
    memcpy(body, &j.scale, sizeof j.scale);
    if (a->residual) (void)dense_blocks(s, a, &j, DENSE_PIECE, efsign_keep);
    return ESP_OK;
}

static bool efsign_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    (void)self;
    return efsign_body_ok(body, h->count);
}
static void efsign_add(const void *self, const dense_block *b) {
    const unsigned char *signs = b->body + EFSIGN_SCALE_BYTES + b->at / 8;
    float s;
    memcpy(&s, b->body, sizeof s);
    bits_signs_for(((const dense_self *)self)->level)(b->out, signs, s * b->scale, b->set, b->n);
}
static const dense_format efsign_format = {"efsignsgd", 1, 0, efsign_valid, efsign_add};

static esp_status efsign_decompress(void *self, const esp_codec_args *a) {
    return dense_decompress((const dense_self *)self, &efsign_format, a, efsign_body(a->tensor[0]->count), DENSE_BLOCK);
}

static const char efsign_params[] = "norm=1";

static esp_status efsign_open(const esp_host *h, const char *params, void **self) {
    double norm = 1;
    esp_param p[] = {{"norm", &norm, 1, 2, 0, ESP_PARAM_WHOLE, "1 (mean of |x|) or 2 (root of the mean of x^2)"}};
    const esp_status st = dense_open(h, "efsignsgd", params, p, 1, efsign_params, sizeof(efsign_self), self);
    if (st == ESP_OK) ((efsign_self *)*self)->squares = norm > 1;
    return st;
}

static esp_status efsign_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)self, (void)round, (void)n_reduced;
    return esp_bound_fill(out, efsign_body(like->count), norm_blocks(like->count) * sizeof(float), 0);
}

static esp_status efsign_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                               esp_codec_model *out) {
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {EFSIGN_SCALE_BYTES, 0, 0.125, 0, 0},
        .error = ((const efsign_self *)self)->squares ? 2 - 2 * sqrt(2 / ESP_MODEL_PI) : 1 - 2 / ESP_MODEL_PI,
        .ns = {esp_model_stream(20.1), esp_model_stream(8.1)},
        .launches = {2, 2},
        .bytes = {20.1, 8.1},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec efsign_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "efsignsgd",
    .summary = "signs and one scale, with error feedback: 1 bit an element",
    .params = efsign_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(efsign_open, esp_codec_self_free, NULL, efsign),
    .family = "quantize",
    .paper = "Karimireddy et al., ICML 2019",
};

ESP_PLUGIN_CODEC(efsignsgd, &efsign_codec)
