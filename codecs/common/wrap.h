/* wrap.h: shared by codecs that wrap another codec: reads the parameter of=(SPEC), opens the inner codec, asks what it is and what
 * memory it needs, and divides scratch memory. Knows no codec, neither outer nor inner. */
#ifndef ESP_WRAP_H
#define ESP_WRAP_H
#include "espresso.h"
#include "codecs/common/model.h"
#include "codecs/common/params.h"

/* An opened inner codec. table NULL: none. */
typedef struct wrap_inner {
    const esp_host *host;
    const esp_codec *table;
    void *self;
    esp_traits traits;
} wrap_inner;

enum { WRAP_SPEC = 256 }; /* characters of a spec, with the 0 at its end; the host allows no more */

/* Divides params into `own` (all others) and the value of `of`, as it is written, with its parentheses; "" if it is absent. */
static inline esp_status wrap_params(const esp_host *h, const char *codec, const char *params, char own[WRAP_SPEC],
                                     char of[WRAP_SPEC]) {
    char key[64], val[WRAP_SPEC], text[512];
    const char *at = params;
    size_t n = 0;
    int more;
    own[0] = of[0] = 0;
    while ((more = esp_params_next(&at, key, sizeof key, val, sizeof val)) > 0) {
        char *to = strcmp(key, "of") == 0 ? of : own + n;
        const size_t room = to == of ? WRAP_SPEC : WRAP_SPEC - n;
        const int wrote =
            to == of ? snprintf(of, room, "%s", val) : snprintf(own + n, room, "%s%s=%s", n ? "," : "", key, val);
        if (wrote < 0 || (size_t)wrote >= room) {
            (void)snprintf(text, sizeof text, "%s: the parameters are too long", codec);
            return esp_codec_fail(h, codec, ESP_E_ARG, text);
        }
        if (to != of) n += (size_t)wrote;
    }
    if (more < 0)
        (void)snprintf(own, WRAP_SPEC, "%.*s", WRAP_SPEC - 1, params); /* the reader of `own` names the fault */
    return ESP_OK;
}

static inline void wrap_close(wrap_inner *w) {
    if (w->table) w->host->codec_close(w->host->user, w->table, w->self);
    w->table = NULL;
}

/* Passes on an error that begins with the inner spec, as those of the host do. */
static inline esp_status wrap_fail(const esp_host *h, const char *codec, const char *of, esp_status s,
                                   const char *why) {
    char text[768];
    (void)snprintf(text, sizeof text, "of=%s: %s", of, why);
    return esp_codec_fail(h, codec, s, text);
}

/* Opens the inner codec of `of`, "(SPEC)" or "SPEC". */
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

/* The inner codec's sizes; all members are set. */
static inline esp_status wrap_bound(const wrap_inner *w, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                    esp_bound *b) {
    memset(b, 0, sizeof *b);
    b->struct_size = sizeof *b;
    return w->table->bound(w->self, like, round, n_reduced, b);
}

/* The inner codec's model; without one, all members are 0, it is lossy, and its error is not known. */
static inline esp_status wrap_model(const wrap_inner *w, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                    esp_codec_model *m) {
    memset(m, 0, sizeof *m);
    m->struct_size = sizeof *m;
    m->flags = ESP_MODEL_LOSSY;
    m->error = -1;
    if (!ESP_HAS(esp_codec, w->table, model)) return ESP_OK;
    memset(m, 0, sizeof *m);
    m->struct_size = sizeof *m;
    return w->table->model(w->self, like, n_reduced, d, m);
}

/* What a header and the traits say as wire version: one hexadecimal digit for each codec, the outermost the lowest. */
static inline uint32_t wrap_wire_version(uint32_t own, const wrap_inner *w) {
    return own + 16 * w->traits.wire_version;
}

/* Sizes of `n` bytes of scratch memory rounded up, so that what follows is aligned. */
static inline uint64_t wrap_round(uint64_t n) { return (n + 63) / 64 * 64; }

/* Takes `bytes` from the beginning of the scratch memory that is left; NULL: there is too little. */
static inline void *wrap_take(esp_buf *left, uint64_t bytes) {
    const uint64_t n = wrap_round(bytes);
    unsigned char *p = (unsigned char *)left->ptr;
    if (!p || left->bytes < n) return NULL;
    left->ptr = p + n;
    left->bytes -= n;
    return p;
}

/* A copy of a call's arguments for the inner codec, whose own struct may be shorter or longer than the host's. */
static inline esp_codec_args wrap_args(const esp_codec_args *a) {
    esp_codec_args copy;
    memset(&copy, 0, sizeof copy);
    memcpy(&copy, a, a->struct_size < sizeof copy ? a->struct_size : sizeof copy);
    copy.struct_size = sizeof copy;
    return copy;
}
#endif
