/* rounds_codec.h has codecs that need two or three exchanges between ranks. First the ranks find the largest range of
 * their values. In the last exchange they send multiples of 1/1024 of it, whose sums are exact. Every call checks its
 * arguments, and returns ESP_E_STATE if they are wrong. */
#ifndef TEST_ROUNDS_CODEC_H
#define TEST_ROUNDS_CODEC_H
#include "espresso.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* With fewer elements, only the last exchange takes place. */
enum { ROUNDS_ALONE = 3 };

/* What the codec keeps for a tensor between exchanges and steps. */
typedef struct rounds_state {
    float range,
        /* range: largest of all ranks, after the first exchange; decoded: range used by the last decompress */
        decoded;
    uint32_t steps, next; /* number of finished steps; number of the next exchange */
} rounds_state;

typedef struct rounds_self {
    const esp_host *host;
    uint32_t n_rounds, id;
} rounds_self;

static inline esp_status rounds_wrong(const rounds_self *s, const char *what) {
    const esp_log_event ev = {sizeof ev, ESP_LOG_ERROR, ESP_E_STATE, __LINE__, "rounds", what, __FILE__};
    s->host->log(s->host->user, &ev);
    return ESP_E_STATE;
}

static inline esp_status rounds_open(const esp_host *h, uint32_t n_rounds, const char *name, void **out) {
    rounds_self *s = h->alloc(h->user, (esp_device){ESP_CPU, 0}, sizeof *s, 64);
    if (!s) return ESP_E_NOMEM;
    *s = (rounds_self){h, n_rounds, esp_name_hash(name)};
    *out = s;
    return ESP_OK;
}
static inline esp_status rounds_open2(const esp_host *h, const char *params, void **out) {
    (void)params;
    return rounds_open(h, 2, "shared2", out);
}
static inline esp_status rounds_open3(const esp_host *h, const char *params, void **out) {
    (void)params;
    return rounds_open(h, 3, "shared3", out);
}
static inline esp_status rounds_open_all(const esp_host *h, const char *params, void **out) {
    (void)params;
    return rounds_open(h, 2, "sharedall", out);
}
static inline void rounds_close(void *self) {
    rounds_self *s = self;
    s->host->free_(s->host->user, (esp_device){ESP_CPU, 0}, s, sizeof *s);
}

static inline esp_status rounds_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                      esp_bound *out) {
    const rounds_self *s = self;
    const int last = round + 1 == s->n_rounds, alone = like->count < ROUNDS_ALONE;
    (void)n_reduced;
    out->payload_bytes = last ? ESP_PAYLOAD_HEADER + like->count * 4 : alone ? 0 : esp_payload_capacity(4);
    out->scratch_bytes = 0;
    out->state_bytes = sizeof(rounds_state);
    return ESP_OK;
}

static inline float rounds_phi(const esp_codec_args *a, uint64_t i) {
    const float *g = a->tensor[0]->data.ptr, *e = esp_residual_of(a, 0);
    return e ? a->beta * e[i] + a->gamma * g[i] : g[i];
}

static inline float rounds_reduced(const esp_codec_args *a) {
    float x;
    memcpy(&x, esp_payload_body(a->reduced), sizeof x);
    return x;
}

/* Makes the payload of an exchange before the last. The first exchange sends this rank's range of values. The second
 * sends twice the range that all ranks then have in common, so that a test can tell the two apart. */
static inline esp_status rounds_early(const rounds_self *s, const esp_codec_args *a, rounds_state *state) {
    const uint64_t n = a->tensor[0]->count, alone = n < ROUNDS_ALONE;
    esp_payload_header h = esp_payload_header_of(s->id, 1, 0, n, alone ? 0 : 4, 0), got;
    float range = 0;
    int bad = 0;
    for (uint64_t i = 0; i < n; i++) {
        const float x = fabsf(rounds_phi(a, i));
        bad |= !isfinite(x);
        range = x > range ? x : range;
    }
    if (a->round == 1) {
        if (!a->reduced || esp_payload_read(a->reduced, s->id, 1, n, &got)) return rounds_wrong(s, "round 1: reduced");
        bad |= got.flags & ESP_PAYLOAD_NONFINITE;
        state->range = alone ? 0 : rounds_reduced(a);
        range = 2 * state->range;
    } else if (a->reduced) {
        return rounds_wrong(s, "round 0 has a reduced payload");
    }
    if (bad) h.flags = ESP_PAYLOAD_NONFINITE;
    if (esp_payload_begin(a->payload, &h)) return ESP_E_TOO_SMALL;
    if (!alone) memcpy(esp_payload_body(a->payload), &range, sizeof range);
    state->next = a->round + 1;
    return ESP_OK;
}

/* Returns the range for the last exchange, or a negative number if the payload is wrong. */
static inline float rounds_range(const rounds_self *s, const esp_codec_args *a, int *nan) {
    esp_payload_header got;
    const uint64_t n = a->tensor[0]->count;
    *nan = 0;
    if (n < ROUNDS_ALONE) return 256; /* for few elements the range is fixed: 1/1024 of it is 1/4 */
    if (!a->reduced || esp_payload_read(a->reduced, s->id, 1, n, &got)) return -1;
    *nan = (got.flags & ESP_PAYLOAD_NONFINITE) != 0;
    return rounds_reduced(a);
}

static inline esp_status rounds_compress(void *self, const esp_codec_args *a) {
    const rounds_self *s = self;
    const uint64_t n = a->tensor[0]->count;
    rounds_state *state = a->state ? a->state->ptr : NULL;
    int nan;
    if (!state || a->state->bytes != sizeof *state) return rounds_wrong(s, "compress: no state");
    if (a->round ? state->next != a->round && a->reduced : state->next)
        return rounds_wrong(s, "compress: not its round");
    if (a->round + 1 < s->n_rounds) return rounds_early(s, a, state);
    float range = rounds_range(s, a, &nan), *e = esp_residual_of(a, 0);
    if (range < 0) return rounds_wrong(s, "compress: reduced payload of another part");
    if (s->n_rounds == 3 && n >= ROUNDS_ALONE && !nan && range != 2 * state->range)
        return rounds_wrong(s, "compress: rounds mixed");
    esp_payload_header h = esp_payload_header_of(s->id, 1, (uint16_t)(nan ? ESP_PAYLOAD_NONFINITE : 0), n, n * 4, 0);
    for (uint64_t i = 0; i < n && n < ROUNDS_ALONE; i++)
        if (!isfinite(rounds_phi(a, i))) h.flags = ESP_PAYLOAD_NONFINITE;
    memcpy(&h.aux, &range, sizeof range);
    if (esp_payload_begin(a->payload, &h)) return ESP_E_TOO_SMALL;
    float *body = esp_payload_body(a->payload);
    for (uint64_t i = 0; i < n; i++) {
        const float phi = rounds_phi(a, i), q = range > 0 ? rintf(phi / range * 1024) : 0;
        body[i] = h.flags ? NAN : q;
        if (e && !h.flags) e[i] = phi - q * (range / 1024);
    }
    state->next = 0;
    state->steps++;
    return ESP_OK;
}

static inline esp_status rounds_decompress(void *self, const esp_codec_args *a) {
    const rounds_self *s = self;
    const uint64_t n = a->tensor[0]->count;
    const float scale = a->scale == 0 ? 1 : a->scale;
    float *out = a->tensor[0]->data.ptr;
    int nan;
    const float range = rounds_range(s, a, &nan);
    if (range < 0) return rounds_wrong(s, "decompress: reduced payload of another part");
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        esp_payload_header h;
        float coded;
        if (esp_payload_read(&a->payload[p], s->id, 1, n, &h) || h.body_bytes != n * 4) return ESP_E_CORRUPT;
        memcpy(&coded, &h.aux, sizeof coded);
        if (!(coded == range) && !(h.flags & ESP_PAYLOAD_NONFINITE))
            return rounds_wrong(s, "decompress: not the range that the payload was made with");
        const float *body = esp_payload_body(&a->payload[p]);
        for (uint64_t i = 0; i < n; i++)
            out[i] = (p || a->mode == ESP_OUT_SUM ? out[i] : 0) +
                     (h.flags & ESP_PAYLOAD_NONFINITE ? NAN : scale * (body[i] * (range / 1024)));
    }
    if (a->state) ((rounds_state *)a->state->ptr)->decoded = range;
    return ESP_OK;
}

#define ROUNDS_CODEC(id, codec_name, n, list, opens, more)                                                             \
    static const esp_codec id = {.struct_size = sizeof(esp_codec),                                                     \
                                 .wire_version = 1,                                                                    \
                                 .caps = ESP_CODEC_REDUCIBLE | ESP_CODEC_HAS_STATE | ESP_CODEC_DETERMINISTIC |         \
                                         ESP_CODEC_FUSED_RESIDUAL | (more),                                            \
                                 .dtypes = ESP_BIT(ESP_F32),                                                           \
                                 .devices = ESP_BIT(ESP_CPU),                                                          \
                                 .name = codec_name,                                                                   \
                                 .summary = "multiples of 1/1024 of a range that ranks share",                         \
                                 .n_rounds = n,                                                                        \
                                 .rounds = list,                                                                       \
                                 .open = opens,                                                                        \
                                 .close = rounds_close,                                                                \
                                 .bound = rounds_bound,                                                                \
                                 .compress = rounds_compress,                                                          \
                                 .decompress = rounds_decompress};

static const esp_round rounds_two[] = {{ESP_REDUCE_MAX, ESP_F32, 0, 0}, {ESP_REDUCE_SUM, ESP_F32, 0, 0}};
static const esp_round rounds_three[] = {
    {ESP_REDUCE_MAX, ESP_F32, 0, 0}, {ESP_REDUCE_MIN, ESP_F32, 0, 0}, {ESP_REDUCE_SUM, ESP_F32, 0, 0}};
static const esp_round rounds_only_allreduce[] = {{ESP_REDUCE_SUM, ESP_F32, 0, 0},
                                                  {ESP_REDUCE_SUM, ESP_F32, ESP_ROUND_ALLREDUCE, 0}};
ROUNDS_CODEC(rounds_shared2, "shared2", 2, rounds_two, rounds_open2, 0)
ROUNDS_CODEC(rounds_shared3, "shared3", 3, rounds_three, rounds_open3, 0)
ROUNDS_CODEC(rounds_sharedall, "sharedall", 2, rounds_only_allreduce, rounds_open_all, 0)

/* Entry function of the plugin, for esp_config.builtin. */
static inline const esp_plugin *rounds_entry(const esp_host *h) {
    static const esp_codec *const list[] = {&rounds_shared2, &rounds_shared3, &rounds_sharedall};
    static const esp_plugin plugin = {sizeof plugin, 3, 0, 0, list, NULL, NULL};
    (void)h;
    return &plugin;
}
#endif
