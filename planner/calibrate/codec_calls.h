/* codec_calls.h: calls a codec on test data, so that codecs.c can measure how long it takes. */
#ifndef ESP__CODEC_CALLS_H
#define ESP__CODEC_CALLS_H
#include "planner/calibrate/costs.h"

enum { ESP__CALIBRATION_BATCH = 512 };
/* What is measured: compressing, decompressing one payload, and decompressing two payloads into the same elements. */
enum { ESP__CALIBRATION_COMPRESS, ESP__CALIBRATION_DECOMPRESS, ESP__CALIBRATION_SUM, ESP__CALIBRATION_CALLS };

/* The state of calls of one codec. The arrays have max_elements each. Small calls use one part of an array after
 * another, so that they do not find what the previous call left in the cache. */
typedef struct esp__calibration_bench {
    esp_ctx *ctx;
    const esp__codec *codec;
    uint32_t device;
    const float *data;
    float *residual, *out, *phi;
    uint8_t *payload, *other;
    esp_buf state, scratch;
    uint64_t payload_bytes, used, elements, max, calls;
    uint32_t first_round;
    esp_tensor like;
    /* The sizes and offsets of payloads, for codecs that compress several times in a step. The host enqueues each call
     * before it knows the previous size, so the sizes are in device memory. */
    uint64_t *device_used;
    uint64_t at[ESP_ROUNDS_MAX + 1];
} esp__calibration_bench;

ESP__FN esp_status esp__calibration_call(esp__calibration_bench *w, int what);
ESP__FN esp_status esp__calibration_clear(const esp__calibration_bench *w);
ESP__FN esp_status esp__calibration_copy(const esp__calibration_bench *w);
ESP__FN esp_status esp__calibration_error(const esp__calibration_bench *w, const float *data, double *whole,
                                          double *off);
ESP__FN esp_status esp__calibration_prepare(esp_ctx *ctx, const esp__calibration *s, const esp__codec *c,
                                            uint64_t elements, esp__calibration_bench *w);
ESP__FN esp_status esp__calibration_reserve(esp_ctx *ctx, esp__calibration *s, const esp__codec *c);
ESP__FN esp_status esp__calibration_settle(const esp__calibration_bench *w);
ESP__FN esp_status esp__calibration_used(esp__calibration_bench *w);
#endif
