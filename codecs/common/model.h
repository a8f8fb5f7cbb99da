/* model.h: helpers for model(), which computes a codec's cost for the planner, and its error on normally distributed
 * numbers. */
#ifndef ESP_MODEL_H
#define ESP_MODEL_H
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "espresso.h"

#define ESP_MODEL_PI 3.14159265358979323846

/* Measured or known properties of a codec, from which esp_model_fill computes what the planner asks for. */
typedef struct esp_facts {
    uint32_t flags; /* ESP_MODEL_* */
    bool reducible;
    esp_payload_size size;
    double error; /* mean squared error relative to E x^2 */
    /* On the CPU, a call with e elements takes 1000 + ns * e nanoseconds, ns[0] to compress and ns[1] to decompress.
     * These are times of a core that moves ESP_MODEL_CORE_RATE bytes per ns: 3.5 times what bench/micro/codec measures
     * for 2^22 elements where codecs that only move bytes take 1 / 3.5 of esp_model_stream(). */
    double setup_ns; /* added to each compress */
    double ns[2];
    /* On CUDA: kernel launches of a call, and bytes that its kernels move per element, [0] to compress, [1] to
     * decompress. launches[0] == 0 means that CUDA times are unknown. */
    double launches[2], bytes[2];
    /* To compress at most small[i].elements takes small[i].launches; ascending. */
    struct {
        double elements, launches;
    } small[2];
    double momentum; /* as in esp_codec_model */
} esp_facts;

/* Returns nanoseconds per element on one core for a kernel that moves `bytes` bytes per element. */
static inline double esp_model_stream(double bytes) { return bytes / (double)ESP_MODEL_CORE_RATE; }

/* Sets compress [0] and decompress [1] of e elements to take base[] + slope[] * e nanoseconds. */
static inline void esp_model_line(esp_codec_model *m, const double base[2], const double slope[2]) {
    m->n_times = 2;
    for (int i = 0; i < 2; i++) {
        m->times[i].elements = i ? 1e11 : 1; /* more elements than any tensor */
        m->times[i].compress_ns = base[0] + slope[0] * m->times[i].elements;
        m->times[i].decompress_ns = base[1] + slope[1] * m->times[i].elements;
    }
}

/* Sets the times on CUDA, where each kernel launch is assumed to take 10 us. */
static inline void esp_model_cuda(esp_codec_model *m, const esp_facts *f) {
    const double rate = (double)ESP_MODEL_CUDA_RATE;
    double from = 1;
    for (int i = 0, small = 1; small; i++) {
        small = i < 2 && f->small[i].elements > 0;
        const double launches = small ? f->small[i].launches : f->launches[0];
        const double ends[2] = {from, small ? f->small[i].elements : 1e11};
        for (int k = 0; k < 2; k++)
            m->times[m->n_times++] = (esp_codec_time){ends[k], 1e4 * launches + f->bytes[0] / rate * ends[k],
                                                      1e4 * f->launches[1] + f->bytes[1] / rate * ends[k]};
        from = ends[1] + 1;
    }
    m->n_fixed = m->n_times > 2 ? m->n_times - 1 : 0;
}

/* Copies *from to the caller's struct, which may be an older, shorter version. */
static inline esp_status esp_model_answer(esp_codec_model *out, const esp_codec_model *from) {
    const uint32_t bytes = out->struct_size;
    memcpy(out, from, bytes < sizeof *from ? bytes : sizeof *from);
    out->struct_size = bytes;
    return ESP_OK;
}

/* Computes the sizes and times that model() reports. */
static inline esp_codec_model esp_model_of(const esp_facts *f, esp_device d) {
    esp_codec_model m;
    memset(&m, 0, sizeof m);
    m.flags = f->flags;
    m.sent = f->size;
    m.sent.fixed += ESP_PAYLOAD_HEADER;
    if (f->reducible) m.reduced[0] = m.sent;
    m.error = f->error;
    m.momentum = f->momentum;
    if (d.kind <= ESP_CPU) {
        const double base[2] = {1000 + f->setup_ns, 1000};
        esp_model_line(&m, base, f->ns);
    } else if (d.kind == ESP_CUDA && f->launches[0] > 0) {
        esp_model_cuda(&m, f);
    }
    return m;
}
static inline esp_status esp_model_fill(esp_codec_model *out, const esp_facts *f, esp_device d) {
    const esp_codec_model m = esp_model_of(f, d);
    return esp_model_answer(out, &m);
}

/* Returns the t that |x| exceeds with probability `ratio`, for normally distributed x of variance 1. */
static inline double esp_model_quantile(double ratio) {
    double low = 0, high = 40;
    for (int i = 0; i < 100; i++) {
        const double mid = (low + high) / 2;
        if (erfc(mid / sqrt(2.0)) > ratio)
            low = mid;
        else
            high = mid;
    }
    return low;
}
/* Returns the error that remains if the fraction `ratio` of elements, those of largest magnitude, is sent exactly.
 * For normally distributed x the sent ones have ratio + 2 t density(t) of the energy E x^2 = 1. */
static inline double esp_model_error_largest(double ratio) {
    const double t = esp_model_quantile(ratio);
    return fmax(0.0, 1 - ratio - 2 * t * exp(-t * t / 2) / sqrt(2 * ESP_MODEL_PI));
}
#endif
