/* efsignsgd.c: codec "efsignsgd", which sends one bit per element (its sign) and one scale s, with error feedback.
 * After Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes SignSGD and other gradient compression schemes",
 * ICML 2019.
 *     phi = beta e + gamma g;   s = mean of |phi|;   e = phi - s sign(phi)          (g gradient, e residual)
 * The paper puts the learning rate into phi, this codec does not. A trainer that changes the rate from lr0 to lr1
 * must therefore call esp_feedback_scale(ctx, lr0 / lr1). docs/design/wire.md has the wire format. */
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
    norm_l1_fn norm;
    bits_negative_fn pack;
    bits_signs_fn unpack;
    efsign_residual_fn residual;
} efsign_self;

typedef struct efsign_job {
    const efsign_self *self;
    const esp_codec_args *args;
    unsigned char *bits;
    float *block_norm;
    float scale;
} efsign_job;

/* The first pass over phi writes the signs and the sum of |phi| of each block, but leaves the residual alone, since
 * phi may still prove to contain a NaN. */
static void efsign_measure(void *arg, uint64_t begin, uint64_t end) {
    const efsign_job *j = (const efsign_job *)arg;
    float tmp[DENSE_BLOCK], part[NORM_LANES] = {0};
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t n = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        const float *phi = dense_block_phi(&j->self->dense, j->args, at, n, tmp);
        j->self->pack(j->bits + at / 8, phi, n);
        j->self->norm(part, phi, n);
        if ((at + n) % NORM_BLOCK && at + n < end) continue;
        j->block_norm[at / NORM_BLOCK] = norm_tree(part);
        memset(part, 0, sizeof part);
    }
}

/* The second pass sets the residual to phi minus the value that the receiver decodes. */
static void efsign_keep(void *arg, uint64_t begin, uint64_t end) {
    const efsign_job *j = (const efsign_job *)arg;
    float tmp[DENSE_BLOCK];
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t n = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        const float *phi = dense_block_phi(&j->self->dense, j->args, at, n, tmp);
        j->self->residual(esp_residual_of(j->args, 0) + at, phi, j->scale, n);
    }
}

static esp_status efsign_compress(void *self, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash("efsignsgd"), 1, 0, n, efsign_body(n), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || n == 0) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    efsign_job j = {(const efsign_self *)self, a, body + EFSIGN_SCALE_BYTES, (float *)a->scratch->ptr, 0};
    dense_run(&j.self->dense, n, efsign_measure, &j);
    double sum = 0;
    for (uint64_t b = 0; b < (n + NORM_BLOCK - 1) / NORM_BLOCK; b++) sum += (double)j.block_norm[b];
    j.scale = efsign_scale(sum, n);
    if (dense_bad(j.scale)) return dense_send_nan(a->payload, &h, 0);
    memcpy(body, &j.scale, sizeof j.scale);
    if (a->residual) dense_run(&j.self->dense, n, efsign_keep, &j);
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
    ((const efsign_self *)self)->unpack(b->out, signs, s * b->scale, b->set, b->n);
}
static const dense_format efsign_format = {"efsignsgd", 1, 0, efsign_valid, efsign_add};

static esp_status efsign_decompress(void *self, const esp_codec_args *a) {
    return dense_decompress((const dense_self *)self, &efsign_format, a, efsign_body(a->tensor[0]->count));
}

static esp_status efsign_open(const esp_host *h, const char *params, void **self) {
    const esp_status st = esp_params_parse(h, "efsignsgd", params, NULL, 0, "");
    if (st != ESP_OK) return st;
    efsign_self *s = (efsign_self *)esp_codec_self(h, sizeof *s);
    if (!s) return ESP_E_NOMEM;
    dense_open(&s->dense, h);
    s->norm = norm_l1_for(s->dense.level);
    s->pack = bits_negative_for(s->dense.level);
    s->unpack = bits_signs_for(s->dense.level);
    s->residual = efsign_residual_for(s->dense.level);
    *self = s;
    return ESP_OK;
}

static esp_status efsign_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round, (void)n_reduced;
    const uint64_t blocks = (like->count + NORM_BLOCK - 1) / NORM_BLOCK;
    (void)self;
    return esp_bound_fill(out, efsign_body(like->count), blocks * sizeof(float), 0);
}

static esp_status efsign_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                               esp_codec_model *out) {
    (void)self;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {EFSIGN_SCALE_BYTES, 0, 0.125, 0, 0},
        .error = 1 - 2 / ESP_MODEL_PI,
        .begin_ns = {1000, 1000},
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
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(efsign),
    .model = efsign_model,
};

ESP_PLUGIN_CODEC(efsignsgd, &efsign_codec)
