/* per_tensor.c: strategies that synchronize every tensor on its own, all with the same option.
 *   fp32        no compression: the baseline of the paper's measurements
 *   layerwise   compresses every tensor as soon as it is ready, as most codec libraries do, except for tensors that
 *               are too small to compress
 *   hitopkcomm  HiTopKComm: gradients are summed inside the machine; each rank compresses its part of the sum on its
 *               GPU; payloads are gathered between machines and decompressed; the result is gathered inside machines */
#include "planner/baselines/baselines.h"

ESP__FN void esp__fp32_make(esp__problem *p, esp__schedule *d) {
    esp__scheme_tensors(p, d, &esp__form_raw, ESP_ON_GPU, ESP__NO_CODEC);
}

ESP__FN void esp__layerwise_with(esp__problem *p, esp__schedule *d, uint32_t codec) {
    esp__scheme_memo memo;
    memset(&memo, 0, sizeof memo);
    esp__schedule_tensors(p, d);
    for (uint32_t u = 0; u < d->n_units; u++) {
        const int small = esp__has_small(p, u, 1);
        esp__scheme_set(p, d, u, small ? &esp__form_raw : &esp__form_allgather, ESP_ON_GPU,
                        small ? (uint32_t)ESP__NO_CODEC : codec, &memo);
    }
    esp__generate(p, d);
}

ESP__FN void esp__layerwise_make(esp__problem *p, esp__schedule *d) { esp__layerwise_with(p, d, esp__scheme_codec(p)); }

ESP__FN void esp__hitopkcomm_make(esp__problem *p, esp__schedule *d) {
    esp__scheme_tensors(p, d, &esp__form_allgather, ESP_ON_GPU, esp__scheme_codec(p));
}
