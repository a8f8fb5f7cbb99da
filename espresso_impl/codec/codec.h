/* codec.h: opened codecs: their traits and models, and calls of them. Knows no ranks and strategies. */
#ifndef ESP__CODEC_H
#define ESP__CODEC_H
#include "espresso_impl/registry/registry.h"

/* An opened codec. */
struct esp__codec {
    char *spec; /* as the user wrote it */
    const esp_codec *table;
    void *self;
    esp_traits traits;     /* the table's, or fewer */
    esp_codec_model model; /* for tensors that are no matrix; 0 if unknown */
    uint32_t id;           /* esp_name_hash(name) */
    bool feedback;         /* Comps keep a residual */
    bool own_memory;       /* Comps of a rank's gradient use the codec's own */
    float beta, gamma;
    esp__codec *device_codec; /* the same codec on another device, or NULL */
};

/* ---- instance.c ---- */
/* The opened codec for a spec, which all units with this spec share. The registry owns it. */
ESP__FN esp_status esp__codec_get(esp_ctx *ctx, const char *spec, esp__codec **out);
/* Opens a codec that is not shared, with the spec's feedback if `feedback` is NULL. Free it with esp__codec_free. */
ESP__FN esp_status esp__codec_make(esp_ctx *ctx, const char *spec, const char *feedback, esp__codec **out);
ESP__FN void esp__codec_free(esp_ctx *ctx, esp__codec *c);
/* Opens the same codec for devices of a kind; `c` owns it. *out is NULL if the codec has no table for them, or that
 * table does not support this spec. */
ESP__FN esp_status esp__codec_on(esp_ctx *ctx, esp__codec *c, esp_devkind kind, esp__codec **out);
/* Returns 1 if the registry's i-th codec can compress any tensor without parameters, 0 if not, and -1 when out of
 * memory. Sets *lossy to esp__codec_lossy, unless it is NULL. */
ESP__FN int esp__codec_opens(esp_ctx *ctx, uint32_t i, int *lossy);
/* The host's codec_open and codec_close, by which wrappers open the codec that they wrap. */
ESP__FN esp_status esp__host_codec_open(void *user, const char *spec, const esp_codec **table, void **self);
ESP__FN void esp__host_codec_close(void *user, const esp_codec *table, void *self);

/* ---- describe.c ---- */
/* Fills c->traits and c->model. */
ESP__FN esp_status esp__codec_describe(esp_ctx *ctx, esp__codec *c, esp_devkind kind);
ESP__FN bool esp__codec_has_model(const esp__codec *c);
/* The codec's model on one kind of device, for matrices or for other tensors. */
ESP__FN esp_status esp__codec_model(esp_ctx *ctx, const esp__codec *c, bool matrix, uint32_t n_reduced,
                                    esp_devkind kind, esp_codec_model *out);
/* May the codec change training? Not if it only rounds numbers, or changes nothing. */
ESP__FN bool esp__codec_lossy(const esp__codec *c);
/* A part of `count` elements without data; rows and cols are 0 if it is no matrix. */
ESP__FN esp_tensor esp__codec_like(uint64_t count, uint64_t rows, uint64_t cols);
/* The codec's sizes for a part in one round, with payload bodies reduced over n_reduced ranks (1 if they are not). */
ESP__FN esp_status esp__codec_bound_of(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, uint32_t round,
                                       uint32_t n_reduced, esp_bound *b);
/* Are its payloads smaller than the gradient? A codec without model is assumed to shrink. */
ESP__FN bool esp__codec_shrinks(const esp__codec *c);
/* The bytes of a payload. */
ESP__FN double esp__payload_size(const esp_payload_size *s, uint64_t count, uint64_t rows, uint64_t cols);
/* The reduction of payload bodies in a round; its op is 0 if there is none. */
ESP__FN esp_round esp__codec_round(const esp__codec *c, uint32_t round);

/* ---- call.c: a call for one part of a tensor, or for a list of parts ---- */
/* Its members point to each other: do not copy it. */
typedef struct esp__codec_call {
    const esp__codec *codec;
    esp_codec_args args;
    esp_tensor part, *tensor;
    uint64_t offset;
    esp_buf residual, state, scratch;
    esp_payload payload, reduced;
} esp__codec_call;

/* The lists of a call for several parts (ESP_CODEC_LISTS), in the caller's memory. */
typedef struct esp__codec_list {
    esp_tensor *part, **tensor;
    uint64_t *offset;
    esp_buf *residual, *state;
    esp_payload *payload, *reduced;
    uint32_t n;
} esp__codec_list;

/* Begins a call with one f32 part at `data`, which compress only reads. */
ESP__FN void esp__call_begin(esp__codec_call *c, const esp__codec *codec, const float *data, uint64_t count);
/* Enqueues the call on `stream`, on whose device all of its memory lies. Comes before the functions below. */
ESP__FN void esp__call_on(esp__codec_call *c, esp_stream stream);
/* These set buffers, which may be NULL for none. */
ESP__FN void esp__call_residual(esp__codec_call *c, float *residual);
ESP__FN void esp__call_state(esp__codec_call *c, void *state, uint64_t bytes);
ESP__FN void esp__call_scratch(esp__codec_call *c, void *scratch, uint64_t bytes);
ESP__FN void esp__call_payload(esp__codec_call *c, const void *payload, uint64_t bytes, uint64_t *used);
ESP__FN void esp__call_reduced(esp__codec_call *c, const void *payload, uint64_t bytes);
/* Does the payload's header, in host memory, have ESP_PAYLOAD_NONFINITE? */
ESP__FN bool esp__payload_nonfinite(const esp_payload *p);

/* These make one call of several: _place lays out a list for up to n parts in memory of _bytes bytes, _add adds the
 * part of a complete call, and _take gives the last call all parts. Callers of decompress list the payloads. */
ESP__FN uint64_t esp__call_list_bytes(uint64_t n);
ESP__FN void esp__call_list_place(esp__codec_list *l, void *memory, uint64_t n);
ESP__FN void esp__call_list_add(esp__codec_list *l, const esp__codec_call *c);
ESP__FN void esp__call_list_take(esp__codec_call *c, const esp__codec_list *l);
/* Compresses. If the call has a residual and the codec lacks ESP_CODEC_FUSED_RESIDUAL, this function compresses phi =
 * beta * residual + gamma * data, and sets residual = phi - decode(payload). Then phi and back need room for the
 * numbers of all parts, and the call's tensors point into them afterwards. */
ESP__FN esp_status esp__call_compress(esp__codec_call *c, float *phi, float *back);
ESP__FN esp_status esp__call_decompress(esp__codec_call *c);
/* A codec without other ranks: each round's own body takes the place of the reduced one. The payloads of all rounds
 * follow each other, aligned to 32 bytes. */
/* The sizes of all rounds, and the first round that has a payload for such a part. */
ESP__FN esp_status esp__alone_bound(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, esp_bound *b,
                                    uint32_t *first_round);
/* As esp__call_compress, for all rounds. Writes *used bytes. */
ESP__FN esp_status esp__alone_compress(esp__codec_call *c, uint32_t first_round, void *out, uint64_t capacity,
                                       uint64_t *used, float *phi, float *back);
ESP__FN esp_status esp__alone_decompress(esp__codec_call *c, uint32_t first_round, const void *in, uint64_t bytes);
#endif
