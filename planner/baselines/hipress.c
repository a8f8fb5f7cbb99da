/* hipress.c: HiPress (CaSync), which compresses on the GPU and between machines only. For each gradient, an estimate
 * of its time decides whether to compress it and into how many parts to divide it (at most one per machine), so that
 * some parts are compressed while others are sent. As its parameter servers run on the workers, it compresses in
 * both directions: alltoall, sum, compress again, allgather. */
#include "planner/baselines/baselines.h"

/* Estimates the time of a tensor that is divided into k chunks: the time of all ops of the first chunk and, because
 * chunks overlap, for each further chunk only the time on the busiest processor or link. */
static double esp__hipress_estimate(const esp__path *path, uint64_t k) {
    uint64_t pace = 0;
    for (uint32_t lane = 0; lane < ESP__LANES; lane++)
        if (path->load[lane] > pace) pace = path->load[lane];
    return (double)path->total + (double)(k - 1) * (double)pace;
}

static const esp__form *esp__hipress_choose(esp__problem *p, uint32_t tensor, uint64_t *chunk) {
    static const esp__form *const forms[] = {&esp__form_raw, &esp__form_alltoall};
    uint32_t codec = esp__scheme_codec(p), n_forms = codec == ESP__NO_CODEC || p->size[ESP__INTER] < 2 ? 1 : 2;
    const esp__form *best = forms[0];
    double least = 0.0;
    uint64_t elements = p->model->tensors[tensor].elements;
    *chunk = elements;
    for (uint32_t f = 0; f < n_forms; f++)
        for (uint64_t k = 1; k <= p->size[ESP__INTER] && k <= elements; k++) {
            esp__extent u = {tensor, 1, 0, (elements + k - 1) / k};
            double t = esp__hipress_estimate(esp__form_path(p, &u, forms[f], ESP_ON_GPU, codec), k);
            if ((f || k > 1) && t >= least) continue;
            least = t;
            best = forms[f];
            *chunk = u.elements;
        }
    return best;
}

ESP__FN void esp__hipress_make(esp__problem *p, esp__schedule *d) {
    uint32_t most = p->size[ESP__INTER] ? p->size[ESP__INTER] : 1u, n = 0, n_tensors = (uint32_t)p->n_tensors;
    esp__extent *units = esp__arena_get(p->arena, (uint64_t)n_tensors * most * sizeof *units);
    const esp__form **forms = esp__arena_get(p->arena, n_tensors * sizeof *forms);
    uint64_t *chunk = esp__arena_get(p->arena, n_tensors * sizeof *chunk);
    uint32_t *like = esp__arena_get(p->arena, 1024 * sizeof *like);
    esp__scheme_memo memo;
    memset(&memo, 0, sizeof memo);
    for (uint32_t i = 0; i < n_tensors; i++) {
        uint64_t elements = p->model->tensors[i].elements;
        uint32_t *slot = &like[elements * 0x9E3779B97F4A7C15ull >> 54];
        if (p->keep[i]) {
            forms[i] = &esp__form_raw;
            chunk[i] = elements;
        } else if (*slot && p->model->tensors[*slot - 1].elements == elements &&
                   p->model->tensors[*slot - 1].cols == p->model->tensors[i].cols) {
            forms[i] = forms[*slot - 1];
            chunk[i] = chunk[*slot - 1];
        } else {
            forms[i] = esp__hipress_choose(p, i, &chunk[i]);
            *slot = i + 1;
        }
        n = esp__units_chunks(p, units, n, i, chunk[i]);
    }
    esp__schedule_set_units(p, d, units, n);
    for (uint32_t u = 0; u < n; u++)
        esp__scheme_set(p, d, u, forms[units[u].first], ESP_ON_GPU, esp__scheme_codec(p), &memo);
    esp__generate(p, d);
}
