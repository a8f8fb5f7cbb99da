/* merge.c: MergeComp's search (Wang et al., 2021) on measured steps: neighbouring tensors are merged into groups, each
 * compressed as one. Tries one group, then one more at a time, as long as each saves enough time. The borders between
 * groups move by half as far each time, and stay where steps are shortest. All ranks get the same times and so try the
 * same groups. */
#include "planner/auto/autopilot.h"
#include <math.h>

enum { ESP__GROUPING_STEPS = 50 }; /* most steps of a search */

/* Halves the largest group of several tensors. Returns false if there is none. */
static bool esp__groups_split(const esp_ctx *ctx, esp__groups *g) {
    const esp__tensor *t = ctx->model.tensors;
    uint64_t most = 0, half = 0;
    uint32_t widest = 0, at;
    for (uint32_t k = 0; k < g->n; k++) {
        uint64_t sum = 0;
        for (uint32_t i = g->first[k]; i < g->first[k + 1]; i++) sum += t[i].count;
        if (g->first[k + 1] - g->first[k] > 1 && sum > most) most = sum, widest = k;
    }
    if (!most) return false;
    for (at = g->first[widest]; at + 1 < g->first[widest + 1] && half + t[at].count / 2 < most / 2; at++)
        half += t[at].count;
    if (at == g->first[widest]) at++;
    memmove(&g->first[widest + 2], &g->first[widest + 1], (g->n - widest) * sizeof *g->first);
    g->first[widest + 1] = at;
    g->n++;
    return true;
}

/* Makes the next groups to try: a border of the best ones moves, or there is one group more. Returns false after the
 * last. */
static bool esp__grouping_move(const esp_ctx *ctx, esp__grouping *m) {
    const uint32_t moves = 2 * (m->best.n - 1);
    for (; m->far; m->far = m->far > 1 ? (m->far + 1) / 2 : 0, m->move = 0)
        for (; m->move < moves;) {
            const uint32_t k = 1 + m->move / 2, at = m->best.first[k];
            const bool up = m->move++ % 2;
            if (up ? at + m->far >= m->best.first[k + 1] : at <= m->best.first[k - 1] + m->far) continue;
            m->trial = m->best;
            m->trial.first[k] = up ? at + m->far : at - m->far;
            return true;
        }
    if (m->best.n > 1 && m->best.ns > (1.0 - m->least_gain) * m->before_ns) return false;
    m->before_ns = m->best.ns;
    m->trial = m->best;
    if (m->best.n >= m->most || !esp__groups_split(ctx, &m->trial)) return false;
    m->best.ns = INFINITY;
    m->move = 0;
    m->far = (ctx->model.n_tensors - 1) / (2 * m->trial.n) + 1;
    return true;
}

ESP__FN void esp__grouping_begin(const esp_ctx *ctx, esp__grouping *m, uint32_t most, double least_gain) {
    *m = (esp__grouping){.codec = m->codec, .most = most, .least_gain = least_gain};
    m->trial = (esp__groups){.n = 1, .first = {0, ctx->model.n_tensors}};
    m->best.ns = m->fastest.ns = INFINITY;
    m->left = ESP__GROUPING_STEPS / ESP__GROUPING_BLOCK;
}

ESP__FN bool esp__grouping_next(const esp_ctx *ctx, esp__grouping *m, double ns) {
    m->trial.ns = ns;
    if (ns < m->best.ns) {
        m->move -= m->best.ns < INFINITY; /* a move that saves time is repeated */
        m->best = m->trial;
    }
    if (ns < m->fastest.ns) m->fastest = m->trial;
    return --m->left && esp__grouping_move(ctx, m);
}

ESP__FN void esp__grouping_text(const esp__groups *g, const char *codec, char *text, size_t room) {
    size_t n = (size_t)snprintf(text, room, "merged:%s", g->n > 1 ? "at=" : "groups=1");
    for (uint32_t k = 1; k < g->n && n < room; k++)
        n += (size_t)snprintf(text + n, room - n, "%s%u", k > 1 ? "+" : "", g->first[k]);
    if (n < room) snprintf(text + n, room - n, ",of=(%s)", codec);
}
