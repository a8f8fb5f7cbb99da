/* codec.h: an opened codec, what it says of itself, and calls of it. Knows nothing of ranks and strategies. */
#ifndef ESP__CODEC_H
#define ESP__CODEC_H
#include "espresso_impl/registry/registry.h"

/* One opened codec: all tensors with the same spec share it. */
struct esp__codec {
    char *spec; /* as the user wrote it: compared between ranks, printed in strategies */
    const esp_codec *table;
    void *self;
    esp_traits traits; /* what this instance is: the table's, or narrower              */
    esp_codec_model
        model;    /* on its device, for tensors that are no matrix; without model(): zero, and its error is not known */
    uint32_t id;  /* esp_name_hash(name)                                          */
    int feedback; /* 1: its Comps have residuals                                        */
    int own_memory; /* 1: Comps on the rank's own gradient use the method's own feedback  */
    float beta, gamma;
    esp__codec *device_codec; /* the same spec opened with a table for another device, or NULL; this one frees it */
};

/* ---- instance.c ---- */
/* the opened codec for a spec, which all units with this spec share. The registry owns it. */
ESP__FN esp_status esp__codec_get(esp_ctx *ctx, const char *spec, esp__codec **out);
/* Opens a codec that is not shared; free it with esp__codec_free. feedback NULL: as the spec says. */
ESP__FN esp_status esp__codec_make(esp_ctx *ctx, const char *spec, const char *feedback, esp__codec **out);
ESP__FN void esp__codec_free(esp_ctx *ctx, esp__codec *c);
/* *out: the same codec, opened for devices of a kind; NULL: it has no table for them, or one that does not support this spec (a
 * wrapper whose codec has none). `c` owns it. */
ESP__FN esp_status esp__codec_on(esp_ctx *ctx, esp__codec *c, esp_devkind kind, esp__codec **out);
/* The host's codec_open and codec_close, for wrappers. */
ESP__FN esp_status esp__host_codec_open(void *user, const char *spec, const esp_codec **table, void **self);
ESP__FN void esp__host_codec_close(void *user, const esp_codec *table, void *self);

/* ---- describe.c ---- */
/* what an opened codec says of itself. Fills c->traits and c->model. */
ESP__FN esp_status esp__codec_describe(esp_ctx *ctx, esp__codec *c, esp_devkind kind);
ESP__FN int esp__codec_has_model(const esp__codec *c);
/* The codec's model on one kind of device: of matrices, or of parts that are none. */
ESP__FN esp_status esp__codec_model(esp_ctx *ctx, const esp__codec *c, int matrix, uint32_t n_reduced, esp_devkind kind,
                                    esp_codec_model *out);
/* Does training need to be watched with this codec? Not if it only rounds numbers, or changes nothing. */
ESP__FN int esp__codec_lossy(const esp__codec *c);
/* A part of `count` elements, rows x cols (0 and 0: no matrix), without data. */
ESP__FN esp_tensor esp__codec_like(uint64_t count, uint64_t rows, uint64_t cols);
/* The codec's sizes for a part, in one round, with its body reduced over n_reduced ranks (1: sent as it is). Sets every member. */
ESP__FN esp_status esp__codec_bound_of(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, uint32_t round,
                                       uint32_t n_reduced, esp_bound *b);
/* Are its payloads smaller than the gradient? Yes, if it has no model. */
ESP__FN int esp__codec_shrinks(const esp__codec *c);
/* Bytes of a payload of a size that a model gives. */
ESP__FN double esp__payload_size(const esp_payload_size *s, uint64_t count, uint64_t rows, uint64_t cols);
/* 1 if the registry's i-th codec can compress any tensor by its name alone, without parameters; 0 if not; -1: out of memory.
 * *lossy: as above; NULL: not wanted. 0 and -1 leave an error behind. */
ESP__FN int esp__codec_opens(esp_ctx *ctx, uint32_t i, int *lossy);
/* How bodies of round `round` are reduced; its op is 0 where they are not. */
ESP__FN esp_round esp__codec_round(const esp__codec *c, uint32_t round);

/* ---- call.c: one call for one part, or for a list of parts: the arguments, and what their lists point to ---- */
/* Its members point into it: do not copy it. */
typedef struct esp__codec_call {
    const esp__codec *codec;
    esp_codec_args args;
    esp_tensor part, *tensor;
    uint64_t offset;
    esp_buf residual, state, scratch;
    esp_payload payload, reduced;
} esp__codec_call;

/* The lists of a call for several parts (ESP_CODEC_LISTS), in memory of the caller. */
typedef struct esp__codec_list {
    esp_tensor *part, **tensor;
    uint64_t *offset;
    esp_buf *residual, *state;
    esp_payload *payload, *reduced;
    uint32_t n;
} esp__codec_list;

/* A call with one f32 part of `count` numbers at `data` (only read by compress), no feedback, no state, no scratch. */
ESP__FN void esp__call_begin(esp__codec_call *c, const esp__codec *codec, const float *data, uint64_t count);
/* The call is enqueued on `stream`, and all of its memory lies on that stream's device. Before the calls below. */
ESP__FN void esp__call_on(esp__codec_call *c, esp_stream stream);
/* NULL: none, in all three. */
ESP__FN void esp__call_residual(esp__codec_call *c, float *residual);
ESP__FN void esp__call_state(esp__codec_call *c, void *state, uint64_t bytes);
ESP__FN void esp__call_scratch(esp__codec_call *c, void *scratch, uint64_t bytes);
ESP__FN void esp__call_payload(esp__codec_call *c, const void *payload, uint64_t bytes, uint64_t *used);
ESP__FN void esp__call_reduced(esp__codec_call *c, const void *payload, uint64_t bytes);
ESP__FN int esp__payload_nonfinite(const esp_payload *p); /* the flag of its header, which the host can read */

/* Makes one call of several: lays out an empty list in memory of that many bytes for up to n parts; adds the part of a call whose
 * arguments are complete; gives the last such call all parts. Payloads of a decompress are the caller's to list. */
ESP__FN uint64_t esp__call_list_bytes(uint64_t n);
ESP__FN void esp__call_list_place(esp__codec_list *l, void *memory, uint64_t n);
ESP__FN void esp__call_list_add(esp__codec_list *l, const esp__codec_call *c);
ESP__FN void esp__call_list_take(esp__codec_call *c, const esp__codec_list *l);
/* Compresses. If the call has a residual and the codec does not write it (ESP_CODEC_FUSED_RESIDUAL), this function does: phi =
 * beta * residual + gamma * part; the payload is phi compressed; residual = phi - decode(payload). phi and back then have room
 * for the numbers of all parts, and the call's tensors end up in them. */
ESP__FN esp_status esp__call_compress(esp__codec_call *c, float *phi, float *back);
ESP__FN esp_status esp__call_decompress(esp__codec_call *c);
/* A codec alone, without peers: each round's own body stands for the reduced one. Its payload is those of the rounds one behind
 * the other, each from a multiple of 32 bytes on; with one round, this is the payload. */
/* The sizes of all rounds together, and the first of them for such a part. */
ESP__FN esp_status esp__alone_bound(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, esp_bound *b,
                                    uint32_t *first_round);
/* As esp__call_compress, for all rounds. *used: bytes written. */
ESP__FN esp_status esp__alone_compress(esp__codec_call *c, uint32_t first_round, void *out, uint64_t capacity,
                                       uint64_t *used, float *phi, float *back);
ESP__FN esp_status esp__alone_decompress(esp__codec_call *c, uint32_t first_round, const void *in, uint64_t bytes);
#endif
