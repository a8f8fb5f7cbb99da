/* byteps_compress.c: BytePS with gradient compression and its defaults. It divides tensors into partitions of 4,096,000
 * bytes (rounded up to whole pages of each rank), so that some are compressed while others are sent. It compresses
 * tensors of at least 64 KiB on the CPU, between machines only, and in both directions: servers sum the gradients and
 * compress the sum again. */
#include "planner/baselines/baselines.h"

enum { ESP__BYTEPS_PARTITION_BYTES = 4096000, ESP__BYTEPS_LEAST_BYTES = 65536, ESP__BYTEPS_PAGE = 4096 };

ESP__FN void esp__byteps_make(esp__problem *p, esp__schedule *d) {
    uint64_t page = (uint64_t)ESP__BYTEPS_PAGE * p->size[ESP__INTRA], n_most = 0;
    uint64_t most = (ESP__BYTEPS_PARTITION_BYTES + page - 1) / page * page / 4;
    uint32_t n = 0, codec = p->size[ESP__INTER] > 1 ? esp__scheme_codec(p) : (uint32_t)ESP__NO_CODEC;
    esp__scheme_memo memo;
    memset(&memo, 0, sizeof memo);
    for (uint32_t i = 0; i < p->n_tensors; i++) n_most += p->model->tensors[i].elements / most + 1;
    esp__extent *units = esp__arena_get(p->arena, n_most * sizeof *units);
    for (uint32_t i = 0; i < p->n_tensors; i++)
        n = esp__units_chunks(p, units, n, i, p->keep[i] ? p->model->tensors[i].elements : most);
    esp__schedule_set_units(p, d, units, n);
    for (uint32_t u = 0; u < n; u++) {
        int large = 4 * p->model->tensors[units[u].first].elements >= ESP__BYTEPS_LEAST_BYTES;
        esp__scheme_set(p, d, u, large && codec != ESP__NO_CODEC ? &esp__form_alltoall : &esp__form_raw, ESP_ON_CPU,
                        codec, &memo);
    }
    esp__generate(p, d);
}
