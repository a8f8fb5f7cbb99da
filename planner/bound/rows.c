/* rows.c: the inequalities ("rows") of the lower bound. Row (lane, s, q) says for one processor or link (lane): the
 * work that must run on it between times s and T - q takes at most T - q - s, where T is the makespan.
 *
 * A tensor's work p on the lane starts no earlier than a, when its gradient is ready and the ops before its first op
 * on the lane have ended; so at most s - a of it runs before s. Ops of length `tail` follow its last op on the lane,
 * so at most q - tail of it runs after T - q. All other work runs between. So T >= s + q + the sum of this work over
 * all tensors and groups, and any weighted mean of rows is a bound too. Backward ops are work of lane compute. Only
 * loads, totals and the times before and after on links count, so candidates of ESP__WIDTH_ENDS suffice. */
#include "planner/bound/bound.h"

/* Returns how much of work p, which begins at `a` or later, must run between s and T - q. With `pieces`, chunks may
 * have different options; then all of the work counts or none, so that the amounts can be added over chunks. */
static double esp__must(double a, double p, double tail, double s, double q, int pieces) {
    if (pieces) return a >= s && tail >= q ? p : 0.0;
    return esp__max2(0.0, p - esp__max2(0.0, s - a) - esp__max2(0.0, q - tail));
}

ESP__FN void esp__lanes_candidates_open(esp__problem *p, esp__lanes_candidates *m, uint32_t n) {
    m->n = n;
    m->total = esp__arena_get(p->arena, n * sizeof *m->total);
    for (uint32_t l = 0; l < p->n_lanes; l++) {
        m->first[l] = esp__arena_get(p->arena, (n + 1u) * sizeof **m->first);
        m->stays[l] = esp__arena_get(p->arena, n * sizeof **m->stays);
    }
}

/* Adds an entry of candidate x. No later candidate may have entries yet. */
ESP__FN void esp__lanes_candidates_add(esp__lanes_candidates *m, uint32_t lane, uint32_t x, double p, double head,
                                       double tail) {
    esp__stay stay = {p, head, tail, x};
    m->stays[lane][m->first[lane][x + 1]++] = stay;
    m->head[lane] = esp__max2(m->head[lane], head + p);
}

static void esp__lanes_candidates_path(esp__lanes_candidates *m, const esp__path *path, uint32_t lane, uint32_t x) {
    double done = 0.0, head = 0.0, end = 0.0, load = (double)path->load[lane];
    m->first[lane][x + 1] = m->first[lane][x];
    if (!path->load[lane]) return;
    for (uint32_t k = 0; k < path->n; k++) {
        const esp__op_time *time = &path->ops[k].time;
        int on = path->ops[k].lanes >> lane & 1u && esp__kept(time, lane);
        if (on && end == 0.0) head = done;
        if (on) end = done + (double)esp__kept(time, lane);
        done += (double)time->ns;
    }
    /* ESP__WIDTH_ENDS compares times before and after ops on links only, so for processors they count as 0. */
    if (lane == ESP__LANE_COMPUTE || lane == ESP__LANE_CPU)
        esp__lanes_candidates_add(m, lane, x, load, 0.0, 0.0);
    else
        esp__lanes_candidates_add(m, lane, x, load, head, (double)path->total - end);
}

static int esp__shorter(const void *a, const void *b) {
    const esp__path *x = *(const esp__path *const *)a, *y = *(const esp__path *const *)b;
    if (x->total != y->total) return x->total < y->total ? -1 : 1;
    return x < y ? -1 : x > y;
}

ESP__FN void esp__lanes_candidates_make(esp__problem *p, const esp__candidates *candidates,
                                        esp__lanes_candidates *out) {
    out->candidates = candidates;
    out->paths = esp__arena_get(p->arena, candidates->n * sizeof *out->paths);
    for (uint32_t x = 0; x < candidates->n; x++) out->paths[x] = &candidates->paths[x];
    qsort((void *)out->paths, candidates->n, sizeof *out->paths, esp__shorter);
    esp__lanes_candidates_open(p, out, candidates->n);
    for (uint32_t x = 0; x < candidates->n; x++) {
        out->total[x] = (double)out->paths[x]->total;
        for (uint32_t l = 0; l < p->n_lanes; l++) esp__lanes_candidates_path(out, out->paths[x], l, x);
    }
}

static double esp__row_backward(const esp__bounding *b, const esp__row *r) {
    double sum = 0.0;
    if (r->lane != ESP__LANE_COMPUTE) return 0.0;
    for (uint32_t i = 0; i < b->n_tensors; i++) sum += esp__must(b->start[i], b->compute[i], b->tail[i], r->s, r->q, 0);
    return sum;
}

/* Computes r->w[u]: for each candidate of tensor or group u, its work that the inequality r counts. Those with equal
 * candidates that become ready at r->s or later share one array. */
static void esp__row_fill(esp__bounding *b, const esp__row *r, uint32_t bit) {
    memset((void *)b->same, 0, b->n_candidate_sets * sizeof *b->same);
    for (uint32_t u = 0; u < b->n; u++) {
        const esp__lanes_candidates *m = &b->candidate_sets[b->candidates[u]];
        int late = b->ready[u] >= r->s, early = b->ready[u] + m->head[r->lane] <= r->s;
        b->early[u] &= ~bit;
        b->late[u] &= ~bit;
        if (early) b->early[u] |= bit;
        if (late && !early) b->late[u] |= bit;
        r->w[u] = early ? b->zeros : late ? b->same[b->candidates[u]] : NULL;
        if (r->w[u]) continue;
        double *w = esp__arena_get(b->p->arena, m->n * sizeof *w);
        const esp__stay *stay = m->stays[r->lane];
        for (uint32_t k = 0; k < m->first[r->lane][m->n]; k++, stay++)
            w[stay->path] += esp__must(b->ready[u] + stay->head, stay->p, stay->tail, r->s, r->q, b->pieces);
        r->w[u] = w;
        if (late) b->same[b->candidates[u]] = w;
    }
}

/* Returns the bound that the inequality r gives if each tensor or group u has option choice[u]. */
ESP__FN double esp__row_value(const esp__bounding *b, const esp__row *r, const uint16_t *choice) {
    double sum = r->base;
    for (uint32_t u = 0; u < b->n; u++) sum += r->w[u][choice[u]];
    return sum;
}

/* Returns the index at which to store a new inequality: a free one, else that of one with weight 0; ESP__GAME_ROWS if
 * there is none. */
static uint32_t esp__row_place(const esp__bounding *b) {
    uint32_t j = 0;
    if (b->game.n_rows < ESP__GAME_ROWS) return b->game.n_rows;
    while (j < ESP__GAME_ROWS && (b->lambda[j] > 0.0 || b->game.row[j] > 0.0)) j++;
    return j;
}

static int esp__row_add(esp__bounding *b, uint32_t lane, double s, double q) {
    esp__game *m = &b->game;
    uint32_t place = esp__row_place(b);
    for (uint32_t j = 0; j < m->n_rows; j++)
        if (b->rows[j].lane == lane && b->rows[j].s == s && b->rows[j].q == q) return 0;
    if (place == ESP__GAME_ROWS || b->proven - s - q <= 0.0) return 0;
    esp__row *r = &b->rows[place];
    r->lane = lane, r->s = s, r->q = q;
    r->base = s + q + esp__row_backward(b, r);
    if (!r->w) r->w = esp__arena_get(b->p->arena, b->n * sizeof *r->w);
    esp__row_fill(b, r, 1u << place);
    for (uint32_t i = 0; i < m->n_columns; i++) m->g[i][place] = esp__row_value(b, r, b->choice[i]) * b->scale + 1e-12;
    b->lambda[place] = 0.0;
    m->n_rows += place == m->n_rows;
    return 1;
}

/* ---- looking for rows -------------------------------------------------------------------------------------------- */
/* Work on one processor or link; `w` is the weight of the option that it belongs to. */
typedef struct esp__weighed {
    double end, p, tail_end, w; /* end is a + p, tail_end is tail + p */
} esp__weighed;
enum { ESP__BINS = 128 };

/* Without its fixed part `other` (s or q), an inequality has the value x + the sum of w * min(max(0, end - x), size),
 * where x is s, or q if `from_right`. Returns the largest value among points from x0 on that are `step` apart. */
static double esp__breakpoints_best(const esp__weighed *at, uint32_t n, int from_right, double other, double x0,
                                    double step, double *best_x) {
    double c0[ESP__BINS + 1] = {0}, c1[ESP__BINS + 1] = {0}, n0 = 0.0, n1 = 0.0, best = -1.0, bins = 1.0 / step;
    for (uint32_t i = 0; i < n; i++) {
        double end = from_right ? at[i].tail_end : at[i].end, far = from_right ? at[i].end : at[i].tail_end;
        double size = esp__min2(at[i].p, far - other);
        if (size <= 0.0 || end <= x0) continue;
        for (int k = 0; k < 2; k++, end -= size) { /* w * min(max(0, end - x), size) as a difference */
            double bin = (end - x0) * bins, w = k ? -at[i].w : at[i].w;
            if (bin <= 0.0) break;
            uint32_t to = bin < ESP__BINS ? (uint32_t)bin : (uint32_t)ESP__BINS;
            c0[to] += w, c1[to] += w * end;
        }
    }
    for (uint32_t k = ESP__BINS + 1; k-- > 0;) {
        double x = x0 + step * k, value;
        n0 += c0[k], n1 += c1[k];
        value = x + n1 - n0 * x;
        if (value > best) best = value, *best_x = x;
    }
    return best;
}

/* Searches [low, high] for the best x, in `rounds` smaller and smaller intervals. */
static double esp__breakpoints_zoom(const esp__weighed *at, uint32_t n, int from_right, double other, double low,
                                    double high, int rounds, double *x) {
    double best = 0.0, seen = 0.0;
    for (int round = 0; round < rounds && high > low; round++) {
        double step = (high - low) / ESP__BINS;
        double value = esp__breakpoints_best(at, n, from_right, other, low, step, &seen);
        if (value > best) best = value, *x = seen;
        low = esp__max2(0.0, *x - step);
        high = *x + step;
    }
    return best;
}

/* Returns the earliest start of work, or with `from_right` the time after work, that is closest to x. The best x is one
 * of these. */
static double esp__nearest(const esp__weighed *at, uint32_t n, int from_right, double x) {
    double best = x, off = 1e300;
    for (uint32_t i = 0; i < n; i++) {
        double a = (from_right ? at[i].tail_end : at[i].end) - at[i].p, d = a < x ? x - a : a - x;
        if (d < off) off = d, best = a;
    }
    return best;
}

/* Finds the inequality with the largest value for one processor or link. Sets its s and q, and returns the value. */
static double esp__row_look(const esp__weighed *at, uint32_t n, double *s, double *q) {
    double latest = 0.0, longest = 0.0, sum;
    *s = *q = 0.0;
    for (uint32_t i = 0; i < n; i++)
        latest = esp__max2(latest, at[i].end), longest = esp__max2(longest, at[i].tail_end);
    esp__breakpoints_zoom(at, n, 0, 0.0, 0.0, latest, 2, s);
    esp__breakpoints_zoom(at, n, 1, *s, 0.0, longest, 2, q);
    *q = esp__nearest(at, n, 1, *q);
    esp__breakpoints_zoom(at, n, 0, *q, esp__max2(0.0, *s - latest / ESP__BINS), *s + latest / ESP__BINS, 2, s);
    *s = esp__nearest(at, n, 0, *s);
    sum = *s + *q;
    for (uint32_t i = 0; i < n; i++)
        sum += at[i].w * esp__must(at[i].end - at[i].p, at[i].p, at[i].tail_end - at[i].p, *s, *q, 0);
    return sum;
}

/* Like esp__row_look, if tensors may be split. The work is sorted by ready time, and s is one of these times. */
static double esp__row_look_pieces(const esp__weighed *at, uint32_t n, uint32_t lane, double *s, double *q) {
    double sum = 0.0, best = 0.0;
    *s = *q = 0.0;
    for (uint32_t i = n; i-- > 0;) {
        double a = at[i].end - at[i].p;
        sum += at[i].w * at[i].p;
        if (lane != ESP__LANE_COMPUTE && a + sum > best) best = a + sum, *s = a;
    }
    return lane == ESP__LANE_COMPUTE ? sum : best; /* backward begins at 0, so s = 0 is best */
}

/* Lists the different options of u in all choices so far, with the sums of the choices' weights. */
static uint32_t esp__mixture(const uint16_t *const *columns, const double *weights, uint32_t n_columns, uint32_t u,
                             uint16_t *path, double *weight) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_columns; i++) {
        uint32_t seen = 0;
        while (seen < n && path[seen] != columns[i][u]) seen++;
        if (seen == n) path[n] = columns[i][u], weight[n++] = 0.0;
        weight[seen] += weights[i];
    }
    return n;
}

/* Lists the work of all choices of options so far, with the choices' weights: at[l] gets n[l] entries for processor or
 * link l. */
static void esp__weigh(const esp__bounding *b, esp__weighed *at[ESP__LANES], uint32_t n[ESP__LANES]) {
    const uint16_t *columns[ESP__GAME_COLUMNS];
    double weights[ESP__GAME_COLUMNS], weight[ESP__GAME_COLUMNS];
    uint16_t path[ESP__GAME_COLUMNS];
    uint32_t n_columns = 0;
    for (uint32_t i = 0; i < b->game.n_columns; i++)
        if (b->game.column[i] >= 1e-6) columns[n_columns] = b->choice[i], weights[n_columns++] = b->game.column[i];
    memset(n, 0, ESP__LANES * sizeof *n);
    for (uint32_t i = 0; i < b->n_tensors; i++) {
        esp__weighed w = {b->start[i] + b->compute[i], b->compute[i], b->tail[i] + b->compute[i], 1.0};
        at[ESP__LANE_COMPUTE][n[ESP__LANE_COMPUTE]++] = w;
    }
    for (uint32_t u = 0; u < b->n; u++) {
        const esp__lanes_candidates *m = &b->candidate_sets[b->candidates[u]];
        uint32_t n_paths = esp__mixture(columns, weights, n_columns, u, path, weight);
        for (uint32_t i = 0; i < n_paths; i++)
            for (uint32_t l = 0; l < b->p->n_lanes; l++)
                for (uint32_t k = m->first[l][path[i]]; k < m->first[l][path[i] + 1]; k++) {
                    const esp__stay *stay = &m->stays[l][k];
                    esp__weighed w = {b->ready[u] + stay->head + stay->p, stay->p, stay->tail + stay->p, weight[i]};
                    at[l][n[l]++] = w;
                }
    }
}

static uint32_t esp__weigh_room(const esp__bounding *b, uint32_t lane) {
    uint32_t room = b->n_tensors;
    for (uint32_t i = 0; i < b->game.n_columns; i++) {
        if (b->game.column[i] < 1e-6) continue;
        for (uint32_t u = 0; u < b->n; u++) {
            const uint32_t *first = &b->candidate_sets[b->candidates[u]].first[lane][b->choice[i][u]];
            room += first[1] - first[0];
        }
    }
    return room;
}

/* For each processor and link, adds the inequality with the largest value at the choices' weights, if it is above
 * `above`. Returns how many it added. */
ESP__FN uint32_t esp__rows_find(esp__bounding *b, double above) {
    uint32_t added = 0, n[ESP__LANES];
    double found[ESP__LANES][3];
    esp__weighed *at[ESP__LANES];
    esp__checkpoint mark = esp__arena_checkpoint(b->p->arena);
    for (uint32_t l = 0; l < b->p->n_lanes; l++)
        at[l] = esp__arena_get(b->p->arena, esp__weigh_room(b, l) * sizeof **at);
    esp__weigh(b, at, n);
    for (uint32_t l = 0; l < b->p->n_lanes; l++) {
        found[l][0] = b->pieces ? esp__row_look_pieces(at[l], n[l], l, &found[l][1], &found[l][2])
                                : esp__row_look(at[l], n[l], &found[l][1], &found[l][2]);
    }
    esp__arena_rewind(b->p->arena, mark);
    for (uint32_t l = 0; l < b->p->n_lanes; l++)
        if (found[l][0] > above) added += (uint32_t)esp__row_add(b, l, found[l][1], found[l][2]);
    return added;
}
