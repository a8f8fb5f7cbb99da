/* rounds.c: the order of an option's stages for codecs such as PowerSGD, which compress several times in each training
 * step. After each compression but the last, an allreduce sums the payloads of all ranks. Then the last payloads go
 * through all stages. */
#include "espresso_impl/strategy/option.h"

ESP__FN bool esp__early_step(const esp__option *o, uint32_t comp, uint32_t i) {
    const esp__step *s = &o->steps[i];
    if (i <= comp || s->kind != ESP__STAGE_COLLECTIVE || !s->compressed) return false;
    for (uint32_t k = comp + 1; k < i; k++) /* a second collective over these ranks sums nothing */
        if (o->steps[k].kind != ESP__STAGE_COLLECTIVE || o->steps[k].level == s->level) return false;
    return true;
}

static uint32_t esp__chain_add(esp__chain_step *out, uint32_t n, uint32_t step, uint32_t round) {
    out[n].step = (uint8_t)step;
    out[n].round = (uint8_t)round;
    return n + 1;
}

ESP__FN uint32_t esp__option_chain(const esp__option *o, uint32_t first_round, uint32_t n_rounds,
                                   esp__chain_step out[ESP__CHAIN_MAX]) {
    uint32_t n = 0, last = n_rounds ? n_rounds - 1 : 0;
    for (uint32_t i = 0; i < o->n; i++) {
        for (uint32_t r = first_round; r < last && o->steps[i].kind == ESP__STAGE_COMP; r++) {
            n = esp__chain_add(out, n, i, r);
            for (uint32_t k = i + 1; k < o->n && o->steps[k].kind != ESP__STAGE_DECOMP; k++)
                if (esp__early_step(o, i, k)) n = esp__chain_add(out, n, k, r);
        }
        n = esp__chain_add(out, n, i, last);
    }
    return n;
}

ESP__FN uint32_t esp__chain_collective(const esp__option *o, const esp__chain_step *chain, uint32_t n, uint32_t at) {
    while (at < n && o->steps[chain[at].step].kind != ESP__STAGE_COLLECTIVE) at++;
    return at;
}
