/* wrap.h: for codecs that wrap another codec: opens the inner codec that parameter of=(SPEC) names, asks for its
 * traits and memory sizes, and splits scratch memory between the two. */
#ifndef ESP_WRAP_H
#define ESP_WRAP_H
#include "espresso.h"
#include "codecs/common/model.h"
#include "codecs/common/params.h"

typedef struct wrap_inner {
    const esp_host *host;
    const esp_codec *table;
    void *self;
    esp_traits traits;
} wrap_inner;

static inline void wrap_close(wrap_inner *w) {
    if (w->table) w->host->codec_close(w->host->user, w->table, w->self);
    w->table = NULL;
}

/* Logs an error that begins with the spec of the inner codec. */
static inline esp_status wrap_fail(const esp_host *h, const char *codec, const char *of, esp_status s,
                                   const char *why) {
    char text[768];
    (void)snprintf(text, sizeof text, "of=%s: %s", of, why);
    return esp_codec_fail(h, codec, s, text);
}

static inline esp_status wrap_open(const esp_host *h, const char *codec, const char *of, wrap_inner *w) {
    memset(w, 0, sizeof *w);
    w->host = h;
    if (!ESP_HAS(esp_host, h, codec_open) || !ESP_HAS(esp_host, h, codec_close))
        return wrap_fail(h, codec, of, ESP_E_UNSUPPORTED, "this host opens no codecs for others");
    esp_status s = h->codec_open(h->user, of, &w->table, &w->self);
    if (s != ESP_OK) {
        w->table = NULL;
        return s;
    }
    w->traits.struct_size = sizeof w->traits;
    w->traits.wire_version = w->table->wire_version;
    w->traits.caps = w->table->caps;
    w->traits.n_rounds = w->table->n_rounds;
    w->traits.rounds = w->table->rounds;
    w->traits.default_option = ESP_HAS(esp_codec, w->table, default_option) ? w->table->default_option : NULL;
    if (ESP_HAS(esp_codec, w->table, traits)) s = w->table->traits(w->self, &w->traits);
    if (s == ESP_OK && w->traits.n_rounds > 1)
        s = wrap_fail(h, codec, of, ESP_E_UNSUPPORTED, "a codec of several rounds cannot be wrapped");
    if (s == ESP_OK && ESP_HAS(esp_codec, w->table, finalize))
        s = wrap_fail(h, codec, of, ESP_E_UNSUPPORTED, "a codec that changes the sum at the end cannot be wrapped");
    if (s != ESP_OK) wrap_close(w);
    return s;
}

/* Asks for the inner codec's sizes. A size that the inner codec does not set is 0. */
static inline esp_status wrap_bound(const wrap_inner *w, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                    esp_bound *b) {
    memset(b, 0, sizeof *b);
    b->struct_size = sizeof *b;
    return w->table->bound(w->self, like, round, n_reduced, b);
}

/* Asks for the inner codec's model. If it has none, the model is lossy with an unknown error. */
static inline esp_status wrap_model(const wrap_inner *w, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                    esp_codec_model *m) {
    memset(m, 0, sizeof *m);
    m->struct_size = sizeof *m;
    if (!ESP_HAS(esp_codec, w->table, model)) {
        m->flags = ESP_MODEL_LOSSY;
        m->error = -1;
        return ESP_OK;
    }
    return w->table->model(w->self, like, n_reduced, d, m);
}

/* Combines the wire versions of both codecs: the outer codec's in the lowest hexadecimal digit, the inner one's
 * above. */
static inline uint32_t wrap_wire_version(uint32_t own, const wrap_inner *w) {
    return own + 16 * w->traits.wire_version;
}

/* Rounds a size up to 64 bytes, so that the memory that follows is aligned. */
static inline uint64_t wrap_round(uint64_t n) { return (n + 63) / 64 * 64; }

/* Takes `bytes` from the beginning of the remaining scratch memory, or returns NULL if too little is left. */
static inline void *wrap_take(esp_buf *left, uint64_t bytes) {
    const uint64_t n = wrap_round(bytes);
    unsigned char *p = (unsigned char *)left->ptr;
    if (!p || left->bytes < n) return NULL;
    left->ptr = p + n;
    left->bytes -= n;
    return p;
}
#endif
