/* call.h: one call of a codec for one part, or for a list of parts: the arguments, and everything that their lists point to. */
#ifndef ESP__CODEC_CALL_H
#define ESP__CODEC_CALL_H
#include "espresso_impl/registry/registry.h"

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
    uint64_t *offset, *used;
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
