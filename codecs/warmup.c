/* warmup.c: codec "warmup", which sends uncompressed f32 numbers in steps 0 to steps - 1, and from then on uses another
 * codec, for example warmup:steps=100,of=(topk:ratio=0.01). Early in training gradients are large and change fast, so
 * values that compression delays would be out of date (Tang et al., "1-bit Adam", ICML 2021). All ranks know the step,
 * so all switch at once. Payloads then change their size, so collectives cannot sum them. */
#include "codecs/common/plain.h"
#include "codecs/common/wrap.h"

enum { WARMUP_WIRE = 1 };

typedef struct warmup_self {
    dense_self dense;
    dense_format format; /* format of the uncompressed payloads */
    wrap_inner inner;
    uint64_t steps;
} warmup_self;

static const char warmup_name[] = "warmup", warmup_params[] = "steps=100,of=(SPEC)";

static esp_status warmup_open(const esp_host *h, const char *params, void **self) {
    char own[ESP_PARAMS_MAX], of[ESP_PARAMS_MAX];
    double steps = 100;
    esp_param p = {"steps", &steps, 0, 1e15, 0, 1, "a number of steps, 0 or more"};
    esp_status st = esp_params_take(h, warmup_name, params, "of", own, of);
    if (st == ESP_OK) st = dense_open(h, warmup_name, own, &p, 1, warmup_params, sizeof(warmup_self), self);
    if (st != ESP_OK) return st;
    warmup_self *s = (warmup_self *)*self;
    s->steps = (uint64_t)steps;
    st = *of ? wrap_open(h, warmup_name, of, &s->inner)
             : esp_codec_fail(h, warmup_name, ESP_E_ARG,
                              "warmup: of= is missing: name the codec that follows, as in "
                              "steps=100,of=(topk:ratio=0.01) (parameters: steps=100,of=(SPEC))");
    s->format = (dense_format){warmup_name, wrap_wire_version(WARMUP_WIRE, &s->inner), 0, NULL, plain_decode};
    if (st != ESP_OK) esp_codec_self_free(s);
    return st;
}
static void warmup_close(void *self) {
    wrap_close(&((warmup_self *)self)->inner);
    esp_codec_self_free(self);
}

static esp_status warmup_traits(void *self, esp_traits *out) {
    const esp_traits *inner = &((const warmup_self *)self)->inner.traits;
    const uint64_t dropped = ESP_CODEC_REDUCIBLE | ESP_CODEC_LISTS;
    out->wire_version = ((const warmup_self *)self)->format.wire_version;
    out->caps = ESP_CODEC_WRAPPER | (inner->caps & ~dropped);
    if (!(inner->caps & ESP_CODEC_REDUCIBLE) && inner->default_option) out->default_option = inner->default_option;
    return ESP_OK;
}

static esp_status warmup_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    const wrap_inner *w = &((const warmup_self *)self)->inner;
    esp_bound b;
    const esp_status s = wrap_bound(w, like, round, n_reduced, &b);
    if (s != ESP_OK) return s;
    if (b.payload_bytes < ESP_PAYLOAD_HEADER) return ESP_E_ABI;
    const uint64_t plain = like->count * sizeof(float), later = b.payload_bytes - ESP_PAYLOAD_HEADER;
    return esp_bound_fill(out, plain > later ? plain : later, b.scratch_bytes, b.state_bytes);
}

static esp_status warmup_compress(void *self, const esp_codec_args *a) {
    const warmup_self *s = (const warmup_self *)self;
    if (a->step < s->steps) return plain_compress(&s->dense, &s->format, a);
    return s->inner.table->compress(s->inner.self, a);
}

/* The payloads of a step are either all uncompressed, or all from the inner codec. The first one decides which decoder
 * runs, and that decoder reports payloads of the other kind as corrupt. */
static esp_status warmup_decompress(void *self, const esp_codec_args *a) {
    const warmup_self *s = (const warmup_self *)self;
    esp_payload_header h;
    memset(&h, 0, sizeof h);
    if (a->n_payloads && a->payload[0].data.ptr && a->payload[0].data.bytes >= sizeof h)
        memcpy(&h, a->payload[0].data.ptr, sizeof h);
    if (h.codec == esp_name_hash(warmup_name))
        return dense_decompress(&s->dense, &s->format, a, a->tensor[0]->count * sizeof(float), DENSE_BLOCK);
    return s->inner.table->decompress(s->inner.self, a);
}

/* The model describes steps after the warm-up, which are most of a training run. */
static esp_status warmup_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                               esp_codec_model *out) {
    esp_codec_model m;
    const esp_status s = wrap_model(&((const warmup_self *)self)->inner, like, n_reduced, d, &m);
    memset(m.reduced, 0, sizeof m.reduced);
    return s == ESP_OK ? esp_model_answer(out, &m) : s;
}

static const esp_codec warmup_codec = {
    ESP_CODEC_HEAD(WARMUP_WIRE, ESP_CODEC_WRAPPER | ESP_CODEC_HAS_STATE | ESP_CODEC_OWN_FEEDBACK |
                                    ESP_CODEC_DETERMINISTIC | ESP_CODEC_NEEDS_MATRIX | ESP_CODEC_FUSED_RESIDUAL |
                                    ESP_CODEC_NO_FEEDBACK),
    .name = warmup_name,
    .summary = "no compression in the first steps, then another codec",
    .params = warmup_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(warmup_open, warmup_close, warmup_traits, warmup),
};

ESP_PLUGIN_CODEC(warmup, &warmup_codec)
