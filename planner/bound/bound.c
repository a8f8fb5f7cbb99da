/* bound.c: computes a lower bound on the step time of every plan for given tensors and groups. rows.c makes
 * inequalities ("rows"), which bound.c adds with weights that sum to 1. At any weights, the cheapest option of each
 * tensor gives a bound; game.c finds good weights. The bound rises further by refuting times: a plan within time T has
 * no option that would end after T even if it started when its gradient is ready. Fewer options remain, which gives a
 * higher bound; if it is above T, no plan is within T. docs/design/planner.md has the proofs. */
#include "planner/bound/bound.h"
#include <math.h>

typedef double esp__two __attribute__((vector_size(16), aligned(8), may_alias));

/* Returns the cheapest of the options that a tensor or group may have. Each option costs the weighted sum of its work
 * in the inequalities listed in rows[]. */
static uint32_t esp__unit_choose(esp__bounding *b, uint32_t u, const uint32_t *rows, uint32_t n_rows,
                                 const double *lambda, double *least) {
    uint32_t low = b->low[u], n = b->high[u] - low, best = 0, x;
    double *cost = b->cost;
    memset(cost, 0, n * sizeof *cost);
    for (uint32_t j = 0; j < n_rows; j++) {
        const double *w = b->rows[rows[j]].w[u] + low, l = lambda[rows[j]];
        if (b->early[u] >> rows[j] & 1u) continue;
        for (x = 0; x + 2 <= n; x += 2) *(esp__two *)(void *)&cost[x] += l * *(const esp__two *)(const void *)&w[x];
        if (x < n) cost[x] += l * w[x];
    }
    for (x = 1; x < n; x++)
        if (cost[x] < cost[best]) best = x;
    *least = cost[best];
    b->work += n * n_rows;
    return low + best;
}

/* Gives each tensor or group its cheapest option at the weights `lambda` of the inequalities. The sum of their costs is
 * returned, a lower bound for all plans that use allowed options. */
static double esp__bound_at(esp__bounding *b, const double *lambda, uint16_t *choice) {
    double sum = 0.0, least;
    uint32_t rows[ESP__GAME_ROWS], n_rows = 0, bits = 0;
    for (uint32_t j = 0; j < b->game.n_rows; j++) {
        if (lambda[j] <= 0.0) continue;
        sum += lambda[j] * b->rows[j].base;
        rows[n_rows++] = j;
        bits |= 1u << j;
    }
    b->call++;
    for (uint32_t u = 0; u < b->n; u++) {
        esp__lanes_candidates *m = &b->candidate_sets[b->candidates[u]];
        int alike = ((b->early[u] | b->late[u]) & bits) == bits;
        if (alike && m->call == b->call && m->rows == (b->late[u] & bits) && m->low == b->low[u] &&
            m->high == b->high[u]) {
            sum += m->cost;
            choice[u] = (uint16_t)m->best;
            continue;
        }
        uint32_t best = esp__unit_choose(b, u, rows, n_rows, lambda, &least);
        sum += least;
        choice[u] = (uint16_t)best;
        if (!alike) continue;
        m->call = b->call, m->rows = b->late[u] & bits, m->low = b->low[u], m->high = b->high[u];
        m->best = best, m->cost = least;
    }
    return sum;
}

static void esp__column_value(esp__bounding *b, uint32_t i) {
    for (uint32_t j = 0; j < b->game.n_rows; j++)
        b->game.g[i][j] = esp__row_value(b, &b->rows[j], b->choice[i]) * b->scale + 1e-12;
}

/* Returns the index at which to store a new choice of an option for each tensor: a free one, else that of the choice
 * with the highest bound, which matters least. */
static uint32_t esp__column_place(esp__bounding *b) {
    esp__game *m = &b->game;
    uint32_t place = 0;
    if (m->n_columns < ESP__GAME_COLUMNS) {
        place = m->n_columns++;
        if (!b->choice[place]) b->choice[place] = esp__arena_get(b->p->arena, b->n * sizeof **b->choice);
        return place;
    }
    double most = -1.0;
    for (uint32_t i = 0; i < m->n_columns; i++) {
        double slack = 0.0; /* the choice's bound at the best weights so far */
        if (m->column[i] > 0.0) continue;
        for (uint32_t j = 0; j < m->n_rows; j++) slack += b->lambda[j] * m->g[i][j];
        if (slack > most) most = slack, place = i;
    }
    return place;
}

static void esp__mix(const esp__bounding *b, double keep, double *out) {
    double sum = 0.0;
    for (uint32_t j = 0; j < ESP__GAME_ROWS; j++) {
        out[j] = j < b->game.n_rows ? keep * b->lambda[j] + (1.0 - keep) * b->game.row[j] : 0.0;
        out[j] = out[j] < 2e-4 ? 0.0 : out[j];
        sum += out[j];
    }
    for (uint32_t j = 0; j < ESP__GAME_ROWS; j++) out[j] /= sum;
}

/* Raises the bound `best` by trying weights of the inequalities, until it is above `target` or will clearly stay below.
 * Returns 1 if it is above. */
static int esp__bound_climb(esp__bounding *b, double target, double tolerance) {
    double lambda[ESP__GAME_ROWS], keep = 0.6, enough = isinf(target) ? 0.0 : target;
    for (int call = 0; call < 100 && b->best <= target && b->work < b->work_max; call++) {
        esp__game_solve(&b->game);
        double value = b->game.value / b->scale;
        if (value <= enough || value - b->best <= tolerance * value) {
            if (!esp__rows_find(b, esp__max2(value, b->best) * (1.0 + tolerance))) break;
            continue;
        }
        uint32_t place = esp__column_place(b);
        esp__mix(b, keep, lambda);
        double f = esp__bound_at(b, lambda, b->choice[place]), predicted = 0.0;
        esp__column_value(b, place);
        for (uint32_t j = 0; j < b->game.n_rows; j++) predicted += b->game.row[j] * b->game.g[place][j];
        /* If the new choice changes nothing, the next weights are closer to the solution of the linear program. */
        keep = predicted / b->scale < value * (1.0 - 1e-9) ? keep : keep * 0.5;
        if (f > b->best) {
            b->best = f;
            memcpy(b->lambda, lambda, sizeof lambda);
        }
    }
    return b->best > target;
}

/* Replaces options that are no longer allowed with those that are cheapest at the best weights. */
static void esp__columns_fit(esp__bounding *b) {
    uint32_t place = esp__column_place(b);
    uint16_t *best = b->choice[place];
    b->best = esp__bound_at(b, b->lambda, best);
    esp__column_value(b, place);
    for (uint32_t i = 0; i < b->game.n_columns; i++)
        for (uint32_t u = 0; u < b->n; u++) {
            uint32_t was = b->choice[i][u];
            if (was >= b->low[u] && was < b->high[u]) continue;
            b->choice[i][u] = best[u];
            for (uint32_t j = 0; j < b->game.n_rows; j++)
                b->game.g[i][j] += (b->rows[j].w[u][best[u]] - b->rows[j].w[u][was]) * b->scale;
        }
}

/* Allows only options that can end by `t`. Returns 0 if a tensor or group has none left. */
static int esp__bound_limit(esp__bounding *b, double t) {
    for (uint32_t u = 0; u < b->n; u++) {
        const esp__lanes_candidates *m = &b->candidate_sets[b->candidates[u]];
        uint32_t low = 0, high = m->n;
        while (low < high) {
            uint32_t mid = (low + high) / 2;
            if (b->ready[u] + m->total[mid] <= t)
                low = mid + 1;
            else
                high = mid;
        }
        if (!low) return 0;
        b->low[u] = 0;
        b->high[u] = low;
    }
    return 1;
}

/* Returns 1 if no plan is within t, 0 if there may be one. */
static int esp__bound_refutes(esp__bounding *b, double t) {
    if (!esp__bound_limit(b, t)) return 1;
    esp__columns_fit(b);
    if (b->best > t || esp__bound_climb(b, t, 1e-4)) return 1;
    b->proven = esp__max2(b->proven, b->best);
    return 0;
}

/* Raises the proven lower bound until the next higher time cannot be refuted. */
static void esp__bound_push(esp__bounding *b) {
    double hopeless = 0.0, step = 3e-4;
    for (int round = 0; round < 24 && b->work < b->work_max; round++) {
        double t = b->proven * (1.0 + step);
        if (hopeless > 0.0 && t >= hopeless) t = 0.5 * (b->proven + hopeless);
        if (hopeless > 0.0 && hopeless - b->proven < 3e-4 * b->proven) break;
        if (esp__bound_refutes(b, t)) {
            b->proven = esp__max2(b->proven, t);
            step *= 4.0;
        } else {
            hopeless = t;
        }
    }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
ESP__FN void esp__bounding_candidates(esp__bounding *b) {
    uint32_t slots = 64;
    while (slots < 4 * b->n) slots *= 2;
    uint32_t *table = esp__arena_get(b->p->arena, slots * sizeof *table);
    for (uint32_t u = 0; u < b->n; u++) {
        const esp__candidates *m = esp__candidates_get(b->p, &b->units[u]);
        uint32_t at = (uint32_t)((uintptr_t)m * 0x9E3779B97F4A7C15ull >> 40) & (slots - 1);
        while (table[at] && b->candidate_sets[table[at] - 1].candidates != m) at = (at + 1) & (slots - 1);
        if (!table[at]) {
            esp__lanes_candidates_make(b->p, m, &b->candidate_sets[b->n_candidate_sets]);
            table[at] = ++b->n_candidate_sets;
        }
        b->candidates[u] = table[at] - 1;
    }
}

/* Sets the least time after the end of each backward op. Every gradient that becomes ready then or later needs the
 * backward ops up to that time and then its fastest option; the longest of these counts. */
static void esp__bounding_backward(esp__bounding *b) {
    double sum = 0.0, after = 0.0;
    for (uint32_t i = 0; i < b->n_tensors; i++) {
        b->compute[i] = (double)b->p->compute[i];
        b->start[i] = sum;
        sum += b->compute[i];
    }
    for (uint32_t u = 0; u < b->n; u++) {
        uint32_t last = b->units ? b->units[u].first + b->units[u].n - 1 : u;
        b->ready[u] = b->start[last] + b->compute[last];
        b->tail[last] = esp__max2(b->tail[last], b->candidate_sets[b->candidates[u]].total[0]);
    }
    for (uint32_t i = b->n_tensors; i-- > 0;) {
        after = b->tail[i] = esp__max2(b->tail[i], after);
        after += b->compute[i];
        b->proven = esp__max2(b->proven, b->start[i] + b->compute[i] + b->tail[i]);
    }
}

ESP__FN esp__bounding *esp__bounding_open(esp__problem *p, uint32_t n) {
    esp__bounding *b = esp__arena_get(p->arena, sizeof *b);
    b->p = p, b->n = n;
    b->n_tensors = (uint32_t)p->n_tensors;
    b->compute = esp__arena_get(p->arena, b->n_tensors * sizeof *b->compute);
    b->start = esp__arena_get(p->arena, b->n_tensors * sizeof *b->start);
    b->tail = esp__arena_get(p->arena, b->n_tensors * sizeof *b->tail);
    b->candidates = esp__arena_get(p->arena, n * sizeof *b->candidates);
    b->candidate_sets = esp__arena_get(p->arena, n * sizeof *b->candidate_sets);
    b->ready = esp__arena_get(p->arena, n * sizeof *b->ready);
    b->low = esp__arena_get(p->arena, n * sizeof *b->low);
    b->high = esp__arena_get(p->arena, n * sizeof *b->high);
    b->early = esp__arena_get(p->arena, n * sizeof *b->early);
    b->late = esp__arena_get(p->arena, n * sizeof *b->late);
    b->work_max = 100000000;
    return b;
}

/* Starts with these choices: the options with the least load on each processor and link, and the fastest options. For
 * each choice, adds the inequalities that bound it best. */
static void esp__bounding_start(esp__bounding *b) {
    for (uint32_t l = 0; l <= b->p->n_lanes; l++) {
        uint32_t place = esp__column_place(b);
        for (uint32_t u = 0; u < b->n && l < b->p->n_lanes; u++) {
            const esp__lanes_candidates *m = &b->candidate_sets[b->candidates[u]];
            double least = 1e300;
            for (uint32_t x = 0; x < m->n; x++) {
                double load = 0.0;
                for (uint32_t k = m->first[l][x]; k < m->first[l][x + 1]; k++) load += m->stays[l][k].p;
                if (load < least) least = load, b->choice[place][u] = (uint16_t)x;
            }
        }
        memset(b->game.column, 0, sizeof b->game.column);
        b->game.column[place] = 1.0;
        esp__column_value(b, place);
        esp__rows_find(b, 0.0);
    }
    for (uint32_t j = 0; j < b->game.n_rows; j++) b->lambda[j] = 1.0 / b->game.n_rows;
}

ESP__FN void esp__bounding_run(esp__bounding *b) {
    for (uint32_t u = 0; u < b->n; u++) {
        const esp__lanes_candidates *m = &b->candidate_sets[b->candidates[u]];
        b->high[u] = m->n;
        if (m->n > b->largest) b->largest = m->n;
    }
    b->cost = esp__arena_get(b->p->arena, b->largest * sizeof *b->cost);
    b->zeros = esp__arena_get(b->p->arena, b->largest * sizeof *b->zeros);
    b->same = esp__arena_get(b->p->arena, b->n_candidate_sets * sizeof *b->same);
    esp__bounding_backward(b);
    if (b->proven <= 0.0) return;
    b->scale = 1.0 / b->proven;
    esp__bounding_start(b);
    if (!b->game.n_rows) return;
    esp__columns_fit(b);
    esp__bound_climb(b, INFINITY, 1e-3);
    b->proven = esp__max2(b->proven, b->best);
    esp__bound_push(b);
}

ESP__FN uint64_t esp__bounding_ns(const esp__bounding *b) {
    /* Times are integers, so the bound may be rounded up. The factor makes up for rounding errors. */
    return (uint64_t)ceil(b->proven * (1.0 - 1e-11));
}

/* ---- prices ------------------------------------------------------------------------------------------------------ */
/* Divides the bound among processors and links. The interval [s, T - q] of an inequality belongs to its processor or
 * link, the time before it to compute, where backward runs. */
static void esp__bound_lanes(const esp__bounding *b, double share, esp__bound *out) {
    for (uint32_t j = 0; j < b->game.n_rows; j++) {
        const esp__row *r = &b->rows[j];
        double ready = 0.0, part = share * b->lambda[j] / b->proven;
        for (uint32_t i = 0; i < b->n_tensors && b->start[i] + b->compute[i] <= r->s; i++)
            ready = b->start[i] + b->compute[i];
        out->lane_price[ESP__LANE_COMPUTE] += part * ready;
        out->lane_price[r->lane] += part * esp__max2(0.0, b->proven - r->s - r->q);
    }
}

static void esp__bound_prices(esp__bounding *b, esp__bound *out) {
    uint16_t *choice = b->choice[esp__column_place(b)];
    double f = esp__bound_at(b, b->lambda, choice);
    int chain = f < 0.9 * b->proven; /* the ops of a single tensor determine the bound */
    esp__bound_lanes(b, chain ? 0.0 : 1.0, out);
    for (uint32_t u = 0; u < b->n; u++) {
        const esp__lanes_candidates *m = &b->candidate_sets[b->candidates[u]];
        const esp__path *path = m->paths[choice[u]];
        for (uint32_t j = 0; j < b->game.n_rows; j++) {
            const esp__row *r = &b->rows[j];
            double load = (double)path->load[r->lane], w = r->w[u][choice[u]];
            out->price[u][r->lane] += b->lambda[j] * (load > 0.0 ? w / load : b->ready[u] >= r->s ? 1.0 : 0.0);
        }
        /* At this cost per ns of total time, options that end too late are no cheaper than the chosen one. */
        for (uint32_t x = b->high[u]; x < m->n; x++) {
            double longer = m->total[x] - (double)path->total, cheaper = 0.0;
            for (uint32_t j = 0; j < b->game.n_rows; j++)
                cheaper += b->lambda[j] * (b->rows[j].w[u][choice[u]] - b->rows[j].w[u][x]);
            if (longer > 0.0) out->chain_price[u] = esp__max2(out->chain_price[u], cheaper / longer);
        }
        if (chain) out->chain_price[u] = esp__max2(out->chain_price[u], 1.0 / b->n);
    }
}

ESP__FN void esp__bound_units(esp__problem *p, const esp__extent *units, uint32_t n_units, esp__bound *out) {
    memset(out, 0, sizeof *out);
    out->price = esp__arena_get(p->arena, n_units * sizeof *out->price);
    out->chain_price = esp__arena_get(p->arena, n_units * sizeof *out->chain_price);
    for (uint32_t u = 0; u < n_units; u++)
        esp__candidates_get(p, &units[u]); /* before the checkpoint, because candidates stay */
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    esp__bounding *b = esp__bounding_open(p, n_units);
    b->units = units;
    esp__bounding_candidates(b);
    esp__bounding_run(b);
    if (b->game.n_rows) esp__bound_prices(b, out);
    out->ns = esp__bounding_ns(b);
    esp__arena_rewind(p->arena, mark);
}
