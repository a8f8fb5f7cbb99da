/* model.h: how a codec describes itself to the planner (its model()): fills the answer from a few facts. Error formulas are for
 * numbers from a normal distribution. Knows no codec. */
#ifndef ESP_MODEL_H
#define ESP_MODEL_H
#include <math.h>
#include <string.h>
#include "espresso.h"

/* What a codec knows of itself. Time of a call on `e` elements: begin_ns + ns * e. */
typedef struct esp_facts {
    uint32_t flags;            /* ESP_MODEL_*                                     */
    int reducible;             /* 1: bodies that are reduced have the same size as those that are sent */
    esp_payload_size size;     /* `fixed` without the header: esp_model_fill adds it */
    double error;              /* as in esp_codec_model                           */
    double begin_ns[2], ns[2]; /* compress, decompress                         */
} esp_facts;

/* Nanoseconds an element for a kernel that moves `bytes` bytes an element, at 8 GB/s a core. */
static inline double esp_model_stream(double bytes) { return bytes / 8; }

/* Fills the answer of model(), only the members that the caller's struct has. */
static inline esp_status esp_model_fill(esp_codec_model *out, const esp_facts *f) {
    const double far = 1e12; /* elements; more than any tensor has */
    esp_codec_model m;
    memset(&m, 0, sizeof m);
    m.struct_size = out->struct_size;
    m.flags = f->flags;
    m.sent = f->size;
    m.sent.fixed += ESP_PAYLOAD_HEADER;
    if (f->reducible) m.reduced[0] = m.sent;
    m.error = f->error;
    m.n_times = 2;
    for (int i = 0; i < 2; i++) {
        m.times[i].elements = i ? far : 1;
        m.times[i].compress_ns = f->begin_ns[0] + f->ns[0] * m.times[i].elements;
        m.times[i].decompress_ns = f->begin_ns[1] + f->ns[1] * m.times[i].elements;
    }
    memcpy(out, &m, out->struct_size < sizeof m ? out->struct_size : sizeof m);
    return ESP_OK;
}

/* The error of keeping the share `ratio` of the elements, those of largest magnitude. They are the |x| > t of probability `ratio`,
 * and carry ratio + 2 t density(t) of E x^2 = 1. */
static inline double esp_model_error_largest(double ratio) {
    const double pi = 3.14159265358979323846;
    double low = 0, high = 40;
    for (int i = 0; i < 100; i++) {
        const double mid = (low + high) / 2;
        if (erfc(mid / sqrt(2.0)) > ratio)
            low = mid;
        else
            high = mid;
    }
    return fmax(0.0, 1 - ratio - 2 * low * exp(-low * low / 2) / sqrt(2 * pi));
}
#endif
