/* example.c: a codec to copy that wraps another one. example:every=4,of=(topk:ratio=0.01) lets the inner codec topk
 * send in every 4th step. In other steps it sends empty payloads, and the residual, which the host computes, keeps the
 * whole gradient. The inner codec decodes all payloads, since every codec understands the header's flag for empty
 * ones. */
#include "espresso.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXAMPLE_WIRE = 1 };
static const char example_name[] = "example";

typedef struct example {
    const esp_host *host;
    uint64_t every;
    const esp_codec *inner;
    void *inner_self;
    esp_traits traits; /* the inner codec's traits */
} example;

static esp_status example_fail(const esp_host *h, esp_status status, const char *message) {
    const esp_log_event ev = {sizeof ev, ESP_LOG_ERROR, status, 0, example_name, message, __FILE__};
    h->log(h->user, &ev);
    return status;
}

static void example_close(void *self) {
    const esp_device cpu = {ESP_CPU, 0};
    example *c = self;
    if (c->inner) c->host->codec_close(c->host->user, c->inner, c->inner_self);
    c->host->free_(c->host->user, cpu, c, sizeof *c);
}

/* Reads the parameters. `of` receives the inner codec's spec. */
static esp_status example_params(const esp_host *h, const char *params, uint64_t *every, char of[256]) {
    char key[32], val[256], text[128];
    int more;
    of[0] = 0;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0) {
        char *end = val;
        if (!strcmp(key, "of")) {
            memcpy(of, val, sizeof val);
        } else if (!strcmp(key, "every")) {
            *every = strtoul(val, &end, 10);
            if (*end || *every < 1) return example_fail(h, ESP_E_ARG, "every must be a number of steps, 1 or more");
        } else {
            snprintf(text, sizeof text, "unknown parameter \"%s\": there are every=4 and of=(SPEC)", key);
            return example_fail(h, ESP_E_ARG, text);
        }
    }
    if (more < 0) return example_fail(h, ESP_E_ARG, "expected key=value");
    return *of ? ESP_OK
               : example_fail(h, ESP_E_ARG, "of= is missing: name a codec, as in every=4,of=(topk:ratio=0.01)");
}

static esp_status example_open_inner(example *c, const char *of) {
    esp_status s = c->host->codec_open(c->host->user, of, &c->inner, &c->inner_self);
    if (s) return c->inner = NULL, s; /* the host has logged the reason */
    c->traits.struct_size = sizeof c->traits;
    c->traits.wire_version = c->inner->wire_version;
    c->traits.caps = c->inner->caps;
    c->traits.n_rounds = c->inner->n_rounds;
    c->traits.default_option = c->inner->default_option;
    if (ESP_HAS(esp_codec, c->inner, traits)) s = c->inner->traits(c->inner_self, &c->traits);
    /* An empty payload gets a header of the inner codec. A wrapper may send headers of other codecs, so it cannot be
     * used here. */
    if (!s && (c->traits.n_rounds != 1 || c->traits.caps & ESP_CODEC_WRAPPER))
        s = example_fail(c->host, ESP_E_UNSUPPORTED,
                         "of=: neither a codec of several rounds nor a wrapper can be used here");
    return s;
}

static esp_status example_open(const esp_host *h, const char *params, void **self) {
    const esp_device cpu = {ESP_CPU, 0};
    uint64_t every = 4;
    char of[256];
    esp_status s = example_params(h, params, &every, of);
    if (s) return s;
    example *c = h->alloc(h->user, cpu, sizeof *c, 64);
    if (!c) return example_fail(h, ESP_E_NOMEM, "out of memory");
    memset(c, 0, sizeof *c);
    c->host = h;
    c->every = every;
    s = example_open_inner(c, of);
    if (s)
        example_close(c);
    else
        *self = c;
    return s;
}

/* Returns the inner codec's traits, but without the promise that collectives can sum payloads: their size changes from
 * step to step. */
static esp_status example_traits(void *self, esp_traits *out) {
    const example *c = self;
    out->wire_version = EXAMPLE_WIRE + 16 * c->traits.wire_version; /* includes the inner codec's version */
    out->caps =
        ESP_CODEC_WRAPPER | (c->traits.caps & (ESP_CODEC_HAS_STATE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_NEEDS_MATRIX));
    out->default_option = c->traits.default_option;
    return ESP_OK;
}

static esp_status example_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                esp_bound *out) {
    const example *c = self;
    return c->inner->bound(c->inner_self, like, round, n_reduced, out);
}

static esp_status example_compress(void *self, const esp_codec_args *a) {
    const example *c = self;
    const float *x = a->tensor[0]->data.ptr;
    int finite = 1;
    for (uint64_t i = 0; i < a->tensor[0]->count; i++) finite &= isfinite(x[i]) != 0;
    /* A NaN or Inf must be sent now, or it would stay in the residual. */
    if (a->step % c->every == 0 || !finite) return c->inner->compress(c->inner_self, a);
    const esp_payload_header h = esp_payload_header_of(esp_name_hash(c->inner->name), (uint16_t)c->traits.wire_version,
                                                       ESP_PAYLOAD_EMPTY, a->tensor[0]->count, 0, 0);
    return esp_payload_begin(a->payload, &h);
}

static esp_status example_decompress(void *self, const esp_codec_args *a) {
    const example *c = self;
    return c->inner->decompress(c->inner_self, a);
}

static const esp_codec example_codec = {
    .struct_size = sizeof example_codec,
    .wire_version = EXAMPLE_WIRE,
    /* all capabilities that traits() may return */
    .caps = ESP_CODEC_WRAPPER | ESP_CODEC_HAS_STATE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_NEEDS_MATRIX,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = example_name,
    .summary = "sends in every n-th step only, by another codec",
    .params = "every=4,of=(SPEC)",
    .n_rounds = 1,
    .open = example_open,
    .close = example_close,
    .bound = example_bound,
    .compress = example_compress,
    .decompress = example_decompress,
    .traits = example_traits,
};
ESP_PLUGIN_CODEC(example, &example_codec)
