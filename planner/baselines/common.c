/* common.c: helpers of the comparison strategies, which decide as the published systems do. They ignore the user's
 * settings `forbid` and `only`, but obey a tensor's `keep`. */
#include "planner/baselines/baselines.h"

static int esp__codec_runs(const esp__problem *p, uint32_t codec, uint32_t device) {
    return p->codecs[codec].compress[device].n && p->codecs[codec].decompress[device].n &&
           (p->system.devices >> device & 1u);
}

static void esp__form_text(const esp__problem *p, const esp__form *f, uint32_t device, int flat,
                           char text[ESP__TEXT_MAX]) {
    const char *from = p->hierarchical && !flat ? f->tree : f->flat;
    size_t n = 0;
    while (*from && n + 8 < ESP__TEXT_MAX) {
        if (strncmp(from, "comp", 4)) {
            text[n++] = *from++;
            continue;
        }
        memcpy(text + n, device == ESP_ON_GPU ? "comp@gpu" : "comp@cpu", 8);
        n += 8;
        from += 4;
    }
    text[n] = 0;
}

/* Returns the predicted times of option `f`, with the codec on `device`. If the codec cannot run there, takes the other
 * device, then an option without compression. */
ESP__FN const esp__path *esp__form_path(esp__problem *p, const esp__extent *u, const esp__form *f, uint32_t device,
                                        uint32_t codec) {
    char text[ESP__TEXT_MAX];
    const char *shard = p->model->tensors[u->first].shard;
    if (shard) f = strstr(f->tree, "comp") ? &esp__form_shard : &esp__form_shard_raw;
    if (codec != ESP__NO_CODEC && !esp__codec_runs(p, codec, device)) device = 1u - device;
    if (codec == ESP__NO_CODEC || !esp__codec_runs(p, codec, device)) {
        if (strstr(f->tree, "comp")) f = shard ? &esp__form_shard_raw : &esp__form_raw;
        codec = ESP__NO_CODEC;
    }
    esp__form_text(p, f, device, shard && !strcmp(shard, "flat"), text);
    const esp__path *path = esp__path_make(p, u, text, codec);
    if (path || codec == ESP__NO_CODEC) return path;
    /* If the option's collectives cannot transfer the codec's payloads, tries to sum payloads instead, then no
     * compression. */
    if (!shard) esp__form_text(p, &esp__form_sum, device, 0, text);
    if (!shard && (path = esp__path_make(p, u, text, codec)) != NULL) return path;
    esp__form_text(p, shard ? &esp__form_shard_raw : &esp__form_raw, device, shard && !strcmp(shard, "flat"), text);
    return esp__path_make(p, u, text, ESP__NO_CODEC);
}

/* Returns the caller's first codec, because published systems use one codec per training run. */
ESP__FN uint32_t esp__scheme_codec(const esp__problem *p) { return p->n_free_codecs ? 0u : (uint32_t)ESP__NO_CODEC; }

ESP__FN void esp__scheme_set(esp__problem *p, esp__schedule *d, uint32_t u, const esp__form *f, uint32_t device,
                             uint32_t codec, esp__scheme_memo *memo) {
    const esp__extent *unit = &d->units[u];
    uint64_t key = (unit->elements * 2 + (unit->n > 1)) * 0x9E3779B97F4A7C15ull;
    uint32_t k = (uint32_t)(key >> 56);
    const uint64_t cols = esp__unit_cols(p, unit);
    if (p->model->tensors[unit->first].shard && !p->model->tensors[unit->first].keep) {
        d->paths[u] = esp__form_path(p, unit, f, device, codec);
        return;
    }
    if (p->keep[unit->first]) {
        d->paths[u] = esp__candidates_get(p, unit)->paths;
        return;
    }
    if (memo->form[k] != f || memo->unit[k].elements != unit->elements || memo->cols[k] != cols ||
        (memo->unit[k].n > 1) != (unit->n > 1)) {
        memo->form[k] = f;
        memo->unit[k] = *unit;
        memo->cols[k] = cols;
        memo->path[k] = esp__form_path(p, unit, f, device, codec);
    }
    d->paths[u] = memo->path[k];
}

ESP__FN void esp__scheme_fill(esp__problem *p, esp__schedule *d, const esp__form *f, uint32_t device, uint32_t codec) {
    esp__scheme_memo memo;
    memset(&memo, 0, sizeof memo);
    for (uint32_t u = 0; u < d->n_units; u++) esp__scheme_set(p, d, u, f, device, codec, &memo);
    esp__generate(p, d);
}

ESP__FN void esp__scheme_tensors(esp__problem *p, esp__schedule *d, const esp__form *f, uint32_t device,
                                 uint32_t codec) {
    esp__schedule_tensors(p, d);
    esp__scheme_fill(p, d, f, device, codec);
}

/* Adds tensors [first, end) to `units` as one group, or as several if their p->keep differs. Returns the new length of
 * `units`. */
ESP__FN uint32_t esp__units_group(const esp__problem *p, esp__extent *units, uint32_t n, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++) {
        if (i == first || p->keep[i] != p->keep[i - 1]) {
            memset(&units[n], 0, sizeof units[n]);
            units[n++].first = i;
        }
        units[n - 1].n++;
        units[n - 1].elements += p->model->tensors[i].elements;
    }
    return n;
}

/* Adds one tensor to `units` in chunks of at most `most` elements. Returns the new length. */
ESP__FN uint32_t esp__units_chunks(const esp__problem *p, esp__extent *units, uint32_t n, uint32_t tensor,
                                   uint64_t most) {
    uint64_t elements = p->model->tensors[tensor].elements;
    for (uint64_t begin = 0; begin < elements; begin += most, n++) {
        memset(&units[n], 0, sizeof units[n]);
        units[n].first = tensor;
        units[n].n = 1;
        units[n].begin = begin;
        units[n].elements = elements - begin < most ? elements - begin : most;
    }
    return n;
}
