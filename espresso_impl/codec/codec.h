/* codec.h: opened codecs, each with its parameters, such as "topk:ratio=0.01", and functions to call them. */
#ifndef ESP__CODEC_H
#define ESP__CODEC_H
#include "espresso_impl/registry/registry.h"

struct esp__codec {
    char *spec;
    const esp_codec *table;
    void *self;
    esp_traits traits;
    esp_codec_model model; /* not of a codec that esp__codec_open opened */
    uint32_t id;
    bool feedback; /* the library keeps a residual for error feedback */
    /* The codec itself keeps what it left out of this rank's gradients and adds it to the next ones. */
    bool own_memory;
    float beta, gamma;
    bool reported;
    esp__codec *device_codec; /* the same codec on another device, or NULL */
};

/* ---- instance.c ---- */
/* Returns the codec of a text such as "topk:ratio=0.01", which is opened once for all tensors. The registry owns it. */
ESP__FN esp_status esp__codec_get(esp_ctx *ctx, const char *spec, esp__codec **out);
/* Opens a codec for the caller, who frees it. `feedback` replaces the value of the key "feedback" in `spec` unless it
 * is NULL. */
ESP__FN esp_status esp__codec_make(esp_ctx *ctx, const char *spec, const char *feedback, esp__codec **out);
/* The same without the codec's model, which takes some codecs a millisecond. */
ESP__FN esp_status esp__codec_open(esp_ctx *ctx, const char *spec, const char *feedback, esp__codec **out);
ESP__FN void esp__codec_free(esp_ctx *ctx, esp__codec *c);
/* Opens codec `c` also for devices of another kind, such as CUDA; `c` owns the result. *out is NULL if no plugin offers
 * the codec for these devices, or not with these parameters. */
ESP__FN esp_status esp__codec_on(esp_ctx *ctx, esp__codec *c, esp_devkind kind, esp__codec **out);
/* Returns 1 if the registry's i-th codec, opened without parameters, can compress any tensor, 0 if not, -1 if memory
 * ran out. */
ESP__FN int esp__codec_opens(esp_ctx *ctx, uint32_t i, int *lossy);
ESP__FN esp_status esp__host_codec_open(void *user, const char *spec, const esp_codec **table, void **self);
ESP__FN void esp__host_codec_close(void *user, const esp_codec *table, void *self);

/* ---- describe.c ---- */
ESP__FN esp_status esp__codec_describe(esp_ctx *ctx, esp__codec *c);
ESP__FN bool esp__codec_has_model(const esp__codec *c);
ESP__FN esp_status esp__codec_model(esp_ctx *ctx, const esp__codec *c, bool matrix, uint32_t n_reduced,
                                    esp_devkind kind, esp_codec_model *out);
/* True if the codec may change training. False if it only rounds numbers, or changes nothing. */
ESP__FN bool esp__codec_lossy(const esp__codec *c);
/* Makes an esp_tensor without data. rows and cols are 0 if it is no matrix. */
ESP__FN esp_tensor esp__codec_like(uint64_t count, uint64_t rows, uint64_t cols);
/* Returns the memory that compression of such a tensor needs. Codecs such as PowerSGD exchange several payloads in
 * turn; `round` is the number of the exchange. n_reduced is the number of ranks whose payloads are added, or 1. */
ESP__FN esp_status esp__codec_bound_of(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, uint32_t round,
                                       uint32_t n_reduced, esp_bound *b);
/* True if payloads are smaller than the gradient, or if their size is unknown. */
ESP__FN bool esp__codec_shrinks(const esp__codec *c);
ESP__FN double esp__payload_size(const esp_payload_size *s, uint64_t count, uint64_t rows, uint64_t cols);
ESP__FN esp_round esp__codec_round(const esp__codec *c, uint32_t round);

/* ---- call.c: calls a codec for one tensor or part of a tensor, or for several at once ---- */
/* The arguments of one call. Do not copy this struct, because its members point to each other. */
typedef struct esp__codec_call {
    const esp__codec *codec;
    esp_codec_args args;
    esp_tensor part, *tensor;
    uint64_t offset;
    esp_buf residual, state, scratch;
    esp_payload payload, reduced;
} esp__codec_call;

typedef struct esp__codec_list {
    esp_tensor *part, **tensor;
    uint64_t *offset;
    esp_buf *residual, *state;
    esp_payload *payload, *reduced;
    uint32_t n;
} esp__codec_list;

static inline esp_stream esp__host_stream(void) { return (esp_stream){.dev = {.kind = ESP_CPU}}; }
ESP__FN void esp__call_begin(esp__codec_call *c, const esp__codec *codec, esp_stream stream, const float *data,
                             uint64_t count);

/* These functions set the buffers of a call after esp__call_begin. NULL means that the call has no such buffer. */
static inline const esp_buf *esp__call_buf(const esp__codec_call *c, esp_buf *b, const void *p, uint64_t bytes) {
    memcpy(&b->ptr, &p, sizeof p);
    b->bytes = bytes;
    b->dev = c->args.stream.dev;
    return p && bytes ? b : NULL;
}
static inline void esp__call_residual(esp__codec_call *c, float *residual) {
    c->args.residual = esp__call_buf(c, &c->residual, residual, c->part.count * 4u);
}
static inline void esp__call_state(esp__codec_call *c, void *state, uint64_t bytes) {
    c->args.state = esp__call_buf(c, &c->state, state, bytes);
}
static inline void esp__call_scratch(esp__codec_call *c, void *scratch, uint64_t bytes) {
    c->args.scratch = esp__call_buf(c, &c->scratch, scratch, bytes);
}
static inline void esp__call_payload(esp__codec_call *c, const void *payload, uint64_t bytes, uint64_t *used) {
    esp__call_buf(c, &c->payload.data, payload, bytes);
    c->payload.used = used;
}
static inline void esp__call_reduced(esp__codec_call *c, const void *payload, uint64_t bytes) {
    c->args.reduced = esp__call_buf(c, &c->reduced.data, payload, bytes) ? &c->reduced : NULL;
}
static inline bool esp__payload_nonfinite(const esp_payload *p) {
    esp_payload_header h;
    memcpy(&h, p->data.ptr, sizeof h);
    return (h.flags & ESP_PAYLOAD_NONFINITE) != 0;
}

/* To process several tensors in one call: esp__call_list_place makes an empty list for n tensors in `memory`,
 * esp__call_list_add appends the tensor of a call, and esp__call_list_take replaces a call's tensor by those of the
 * list. */
ESP__FN uint64_t esp__call_list_bytes(uint64_t n);
ESP__FN void esp__call_list_place(esp__codec_list *l, void *memory, uint64_t n);
ESP__FN void esp__call_list_add(esp__codec_list *l, const esp__codec_call *c);
ESP__FN void esp__call_list_take(esp__codec_call *c, const esp__codec_list *l);
/* Compresses. If the call has a residual and the codec does not update it (it lacks ESP_CODEC_FUSED_RESIDUAL), this
 * compresses phi = beta * residual + gamma * data, and sets residual = phi - decoded payload. phi and back are memory
 * for the numbers of all tensors, and the call's tensors point into it afterwards. */
ESP__FN esp_status esp__call_compress(esp__codec_call *c, float *phi, float *back);
ESP__FN esp_status esp__call_decompress(esp__codec_call *c);
/* The esp__alone_* functions compress and decompress without other ranks. Codecs such as PowerSGD make several payloads
 * in turn, and need the sum over ranks of each before the next; here they get their own payload instead. All payloads
 * follow each other, aligned to 32 bytes. */
/* Returns the size of all payloads, and the number of the first one that is not empty. */
ESP__FN esp_status esp__alone_bound(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, esp_bound *b,
                                    uint32_t *first_round);
ESP__FN esp_status esp__alone_compress(esp__codec_call *c, uint32_t first_round, void *out, uint64_t capacity,
                                       uint64_t *used, float *phi, float *back);
ESP__FN esp_status esp__alone_decompress(esp__codec_call *c, uint32_t first_round, const void *in, uint64_t bytes);
#endif
