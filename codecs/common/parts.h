/* parts.h: for codecs with flag ESP_CODEC_LISTS, whose compress and decompress get a list of tensors: splits such a
 * call into calls with one tensor each. Small tensors are processed in parallel; a large tensor uses all worker
 * threads itself. */
#ifndef ESP_PARTS_H
#define ESP_PARTS_H
#include "codecs/common/params.h"

/* Compresses or decompresses one tensor. Implementations must use `h`, not the host that open() got: on a worker
 * thread `h` has no parallel_for. */
typedef esp_status (*parts_fn)(const void *self, const esp_host *h, const esp_codec_args *a);

typedef struct parts_job {
    const esp_codec_args *args;
    const void *self;
    const esp_host *host;
    parts_fn run;
    uint32_t failed; /* atomic: n_tensors - t for the first failed tensor t, otherwise 0 */
} parts_job;

static inline esp_status parts_one(const parts_job *j, uint32_t t) {
    const esp_codec_args *a = j->args;
    esp_codec_args one = esp_codec_args_of(a);
    esp_buf scratch;
    one.n_tensors = 1;
    one.tensor = a->tensor + t;
    one.offset = a->offset ? a->offset + t : NULL;
    one.payload = a->payload + (size_t)t * (a->n_payloads ? a->n_payloads : 1);
    one.reduced = a->reduced ? a->reduced + t : NULL;
    one.residual = a->residual && a->residual[t].bytes ? a->residual + t : NULL;
    one.state = a->state && a->state[t].bytes ? a->state + t : NULL;
    if (a->scratch) {
        scratch = *a->scratch;
        scratch.bytes = scratch.bytes / a->n_tensors / 64 * 64;
        scratch.ptr = ESP__CAST(unsigned char *, a->scratch->ptr) + t * scratch.bytes;
        one.scratch = &scratch;
    }
    return j->run(j->self, j->host, &one);
}

static inline void parts_some(void *arg, uint64_t begin, uint64_t end) {
    parts_job *j = ESP__CAST(parts_job *, arg);
    for (uint32_t t = ESP__CAST(uint32_t, begin); t < end; t++)
        if (parts_one(j, t) != ESP_OK) esp_codec_raise(&j->failed, j->args->n_tensors - t);
}

/* Processes all tensors of the list: one after the other if one has at least `large` elements, or all together have
 * fewer; otherwise in parallel. */
static inline esp_status parts_run(const void *self, const esp_host *h, const esp_codec_args *a, uint64_t large,
                                   parts_fn run) {
    parts_job j = {a, self, h, run, 0};
    uint64_t all = 0, most = 0;
    esp_host alone; /* h without parallel_for, which worker threads may not call */
    esp_status s = ESP_OK;
    if (a->n_tensors <= 1) return run(self, h, a);
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        const uint64_t n = a->tensor[t]->count;
        all += n;
        most = n > most ? n : most;
    }
    if (most >= large || all < large || !ESP_HAS(esp_host, h, parallel_for)) {
        for (uint32_t t = 0; t < a->n_tensors && s == ESP_OK; t++) s = parts_one(&j, t);
        return s;
    }
    memset(&alone, 0, sizeof alone);
    memcpy(&alone, h, h->struct_size < sizeof alone ? h->struct_size : sizeof alone);
    alone.parallel_for = NULL;
    j.host = &alone;
    h->parallel_for(h->user, a->n_tensors, 1, parts_some, &j);
    if (!j.failed) return ESP_OK;
    s = parts_one(&j, a->n_tensors - j.failed); /* the failed tensor again, on this thread, which may log why */
    return s == ESP_OK ? ESP_E_CORRUPT : s;
}
#endif
