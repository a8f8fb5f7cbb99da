/* model.h: how a codec describes itself to the planner (its model()): fills the answer from a few facts. Error formulas are for
 * numbers from a normal distribution. Knows no codec. */
#ifndef ESP_MODEL_H
#define ESP_MODEL_H
#include <math.h>
#include <string.h>
#include "espresso.h"

/* What a codec knows of itself. */
typedef struct esp_facts {
    uint32_t flags;            /* ESP_MODEL_*                                                          */
    int reducible;             /* 1: bodies that are reduced have the same size as those that are sent */
    esp_payload_size size;     /* `fixed` without the header: esp_model_fill adds it                   */
    double error;              /* as in esp_codec_model                                                */
    double begin_ns[2], ns[2]; /* on the CPU: compress and decompress of e elements take begin_ns + ns * e */
    /* on CUDA: kernels that are launched, and bytes an element that they move; no launches: not known */
    double launches[2], bytes[2];
    double momentum; /* as in esp_codec_model */
} esp_facts;

/* Nanoseconds an element for a kernel that moves `bytes` bytes an element, on one core. */
static inline double esp_model_stream(double bytes) { return bytes / (double)ESP_MODEL_CORE_RATE; }

/* Times on a straight line: base[] + slope[] * e, for compress and decompress. */
static inline void esp_model_line(esp_codec_model *m, const double base[2], const double slope[2]) {
    const double far = 1e12; /* elements; more than any tensor has */
    m->n_times = 2;
    for (int i = 0; i < 2; i++) {
        m->times[i].elements = i ? far : 1;
        m->times[i].compress_ns = base[0] + slope[0] * m->times[i].elements;
        m->times[i].decompress_ns = base[1] + slope[1] * m->times[i].elements;
    }
}

/* Fills the answer of model(), only the members that the caller's struct has. */
static inline esp_status esp_model_answer(esp_codec_model *out, const esp_codec_model *from) {
    const uint32_t bytes = out->struct_size;
    memcpy(out, from, bytes < sizeof *from ? bytes : sizeof *from);
    out->struct_size = bytes;
    return ESP_OK;
}

/* The answer of model() from what a codec knows of itself. A launch takes 10 us. */
static inline esp_status esp_model_fill(esp_codec_model *out, const esp_facts *f, esp_device d) {
    esp_codec_model m;
    memset(&m, 0, sizeof m);
    m.flags = f->flags;
    m.sent = f->size;
    m.sent.fixed += ESP_PAYLOAD_HEADER;
    if (f->reducible) m.reduced[0] = m.sent;
    m.error = f->error;
    m.momentum = f->momentum;
    if (d.kind <= ESP_CPU) {
        esp_model_line(&m, f->begin_ns, f->ns);
    } else if (d.kind == ESP_CUDA && f->launches[0] > 0) {
        const double base[2] = {1e4 * f->launches[0], 1e4 * f->launches[1]};
        const double rate = (double)ESP_MODEL_CUDA_RATE;
        const double slope[2] = {f->bytes[0] / rate, f->bytes[1] / rate};
        esp_model_line(&m, base, slope);
    }
    return esp_model_answer(out, &m);
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
