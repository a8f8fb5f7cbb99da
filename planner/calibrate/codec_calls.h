/* codec_calls.h: calls of one codec in memory that is used again, for codecs.c. */
#ifndef ESP__CODEC_CALLS_H
#define ESP__CODEC_CALLS_H
#include "planner/calibrate/costs.h"

/* What is measured: compressing, decompressing one payload, and decompressing two into the same elements. */
enum { ESP__SURVEY_BATCH = 512 }; /* most calls between two looks at the clock */
enum { ESP__SURVEY_COMPRESS, ESP__SURVEY_DECOMPRESS, ESP__SURVEY_SUM, ESP__SURVEY_CALLS };

/* The memory of calls: arrays of max_elements each. Smaller calls use one place of an array after another, so that they do not
 * read what the call before left in the cache. */
typedef struct esp__survey_bench {
    esp_ctx *ctx;
    const esp__codec *codec; /* its table for the device */
    uint32_t on;             /* as in esp__survey */
    const float *data;
    float *residual, *out, *phi;
    uint8_t *payload, *other; /* other: a copy */
    esp_buf state, scratch;
    uint64_t payload_bytes, used, elements, max, calls;
    uint32_t first_round;
    esp_tensor like; /* what is compressed: for codecs that use rows and columns a matrix of about `elements` */
    /* on a device, where the host does not know a payload's size when it enqueues the next round: */
    uint64_t *used_there;            /* [ESP_ROUNDS_MAX], on the device                        */
    uint64_t at[ESP_ROUNDS_MAX + 1]; /* where each round's payload is, as far apart as they can be large */
} esp__survey_bench;

ESP__FN esp_status esp__survey_call(esp__survey_bench *w, int what);
ESP__FN esp_status esp__survey_clear(const esp__survey_bench *w);
ESP__FN esp_status esp__survey_copy(const esp__survey_bench *w);
ESP__FN esp_status esp__survey_error(const esp__survey_bench *w, const float *data, double *whole, double *off);
ESP__FN esp_status esp__survey_prepare(esp_ctx *ctx, const esp__survey *s, const esp__codec *c, uint64_t elements,
                                       esp__survey_bench *w);
ESP__FN esp_status esp__survey_reserve(esp_ctx *ctx, esp__survey *s, const esp__codec *c);
ESP__FN esp_status esp__survey_settle(const esp__survey_bench *w);
ESP__FN esp_status esp__survey_used(esp__survey_bench *w);
#endif
