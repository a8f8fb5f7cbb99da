/* bound.c: computes a lower bound on the step time of every plan, from inequalities. For a processor or link and a time
 * s, all work of the tensors whose gradients are ready at s or later runs after s, so the step takes at least s plus
 * this work. (For the processor that computes gradients, s is 0 and backward counts as work.) The bound is a weighted
 * sum of the inequalities with the cheapest option for each tensor; game.c finds good weights. docs/design/planner.md
 * has the proofs. */
#include "planner/bound/bound.h"
#include <math.h>

/* ---- choices of options ------------------------------------------------------------------------------------------ */
static uint32_t esp__loads_cheapest(const esp__loads *m, const double price[ESP__LANES], double *cost, double *least) {
    uint32_t best = 0;
    memset(cost, 0, m->n * sizeof *cost);
    for (uint32_t l = 0; l < ESP__LANES; l++)
        for (uint32_t x = 0; x < m->n && price[l] > 0.0; x++) cost[x] += price[l] * m->lane[l][x];
    for (uint32_t x = 1; x < m->n; x++)
        if (cost[x] < cost[best]) best = x;
    *least = cost[best];
    return best;
}

/* Sets choice[u] to the cheapest option of each tensor or group u, if the inequalities have the weights `lambda`.
 * Returns the weighted sum for these options, which is a lower bound on the step time of every plan. */
static double esp__bound_at(esp__bounding *b, const double *lambda, uint16_t *choice) {
    double sum = 0.0;
    for (uint32_t j = 0; j < b->game.n_rows; j++) sum += lambda[j] * b->rows[j].base;
    b->call++;
    for (uint32_t u = 0; u < b->n; u++) {
        esp__loads *m = b->loads[u];
        double price[ESP__LANES] = {0.0};
        uint32_t rows = 0;
        for (uint32_t j = 0; j < b->game.n_rows; j++) {
            if (lambda[j] <= 0.0 || b->ready[u] < b->rows[j].s) continue;
            price[b->rows[j].lane] += lambda[j];
            rows |= 1u << j;
        }
        if (m->call != b->call || m->rows != rows) {
            m->best = esp__loads_cheapest(m, price, b->cost, &m->cost);
            m->call = b->call, m->rows = rows;
            b->work += m->n * b->p->n_lanes;
        }
        sum += b->size[u] * m->cost;
        choice[u] = (uint16_t)m->best;
    }
    return sum;
}

/* Returns the bound that inequality j gives if each tensor or group u has option choice[u]. */
static double esp__row_value(const esp__bounding *b, uint32_t j, const uint16_t *choice) {
    double sum = b->rows[j].base;
    for (uint32_t u = 0; u < b->n; u++) sum += esp__row_load(b, j, u, choice[u]);
    return sum * b->scale + 1e-12;
}

static void esp__column_value(esp__bounding *b, uint32_t i) {
    for (uint32_t j = 0; j < b->game.n_rows; j++) b->game.g[i][j] = esp__row_value(b, j, b->choice[i]);
}

/* Returns the column of the game for a new choice of options: a free column, or the one of the unused choice with
 * the highest bound. */
static uint32_t esp__column_place(esp__bounding *b) {
    esp__game *m = &b->game;
    uint32_t place = 0;
    if (m->n_columns < ESP__GAME_COLUMNS) {
        place = m->n_columns++;
        b->choice[place] = esp__arena_get(b->p->arena, b->n * sizeof **b->choice);
        return place;
    }
    double most = -1.0;
    for (uint32_t i = 0; i < m->n_columns; i++) {
        double slack = 0.0;
        if (m->column[i] > 0.0) continue;
        for (uint32_t j = 0; j < m->n_rows; j++) slack += b->lambda[j] * m->g[i][j];
        if (slack > most) most = slack, place = i;
    }
    return place;
}

/* ---- inequalities ------------------------------------------------------------------------------------------------ */
/* Adds an inequality. Returns 0 if it exists, or if there is no room because all inequalities have positive weights. */
static int esp__row_add(esp__bounding *b, uint32_t lane, double s) {
    esp__game *m = &b->game;
    uint32_t place = m->n_rows;
    for (uint32_t j = 0; j < m->n_rows; j++) {
        if (b->rows[j].lane == lane && b->rows[j].s == s) return 0;
        if (m->n_rows == ESP__GAME_ROWS && !(b->lambda[j] > 0.0) && !(m->row[j] > 0.0)) place = j;
    }
    if (place == ESP__GAME_ROWS) return 0;
    m->n_rows += place == m->n_rows;
    b->rows[place] = (esp__row){lane, s, lane == ESP__LANE_COMPUTE ? (double)b->p->ready[b->p->n_tensors - 1] : s};
    b->lambda[place] = 0.0;
    for (uint32_t i = 0; i < m->n_columns; i++) m->g[i][place] = esp__row_value(b, place, b->choice[i]);
    return 1;
}

/* For each processor and link, finds the inequality that gives the largest bound for the current mix of choices (the
 * game's `column`), and adds it if that bound is above `above`. Returns how many it added. */
static uint32_t esp__rows_find(esp__bounding *b, double above) {
    const esp__game *m = &b->game;
    uint32_t added = 0;
    for (uint32_t l = 0; l < b->p->n_lanes; l++) {
        double sum = 0.0, best = 0.0, s = 0.0;
        for (uint32_t u = b->n; u-- > 0;) {
            for (uint32_t i = 0; i < m->n_columns; i++)
                if (m->column[i] >= 1e-6) sum += m->column[i] * b->size[u] * b->loads[u]->lane[l][b->choice[i][u]];
            if (l != ESP__LANE_COMPUTE && b->ready[u] + sum > best) best = b->ready[u] + sum, s = b->ready[u];
        }
        if (l == ESP__LANE_COMPUTE) best = (double)b->p->ready[b->p->n_tensors - 1] + sum;
        if (best > above) added += (uint32_t)esp__row_add(b, l, s);
    }
    return added;
}

/* ---- the best weights -------------------------------------------------------------------------------------------- */
static void esp__mix(const esp__bounding *b, double keep, double *out) {
    double sum = 0.0;
    for (uint32_t j = 0; j < ESP__GAME_ROWS; j++) {
        out[j] = j < b->game.n_rows ? keep * b->lambda[j] + (1.0 - keep) * b->game.row[j] : 0.0;
        out[j] = out[j] < 2e-4 ? 0.0 : out[j];
        sum += out[j];
    }
    for (uint32_t j = 0; j < ESP__GAME_ROWS; j++) out[j] /= sum;
}

/* Raises the bound `best` by trying weights of the inequalities, until it is close to the highest possible one. */
static void esp__bound_climb(esp__bounding *b) {
    const double tolerance = 1e-4;
    double lambda[ESP__GAME_ROWS], keep = 0.6;
    for (int call = 0; call < 200 && b->work < 100000000; call++) {
        esp__game_solve(&b->game);
        double value = b->game.value / b->scale;
        if (value - b->best <= tolerance * value) {
            if (!esp__rows_find(b, esp__max2(value, b->best) * (1.0 + tolerance))) break;
            continue;
        }
        uint32_t place = esp__column_place(b);
        esp__mix(b, keep, lambda);
        double f = esp__bound_at(b, lambda, b->choice[place]), predicted = 0.0;
        esp__column_value(b, place);
        for (uint32_t j = 0; j < b->game.n_rows; j++) predicted += b->game.row[j] * b->game.g[place][j];
        /* if the new choice does not improve the mix of choices, uses weights closer to the linear program's
         * solution from now on */
        keep = predicted / b->scale < value * (1.0 - 1e-9) ? keep : keep * 0.5;
        if (f > b->best) {
            b->best = f;
            memcpy(b->lambda, lambda, sizeof lambda);
        }
    }
}

/* For each single processor or link, adds the choice that loads it least, and the inequality with the highest bound for
 * it. */
static void esp__bounding_start(esp__bounding *b) {
    for (uint32_t l = 0; l < b->p->n_lanes; l++) {
        uint32_t place = esp__column_place(b);
        double price[ESP__LANES] = {0.0}, least;
        price[l] = 1.0;
        for (uint32_t u = 0; u < b->n; u++)
            b->choice[place][u] = u && b->loads[u] == b->loads[u - 1]
                                      ? b->choice[place][u - 1]
                                      : (uint16_t)esp__loads_cheapest(b->loads[u], price, b->cost, &least);
        memset(b->game.column, 0, sizeof b->game.column);
        b->game.column[place] = 1.0;
        esp__column_value(b, place);
        esp__rows_find(b, 0.0);
    }
    for (uint32_t j = 0; j < b->game.n_rows; j++) b->lambda[j] = 1.0 / b->game.n_rows;
}

ESP__FN void esp__bounding_run(esp__bounding *b) {
    double single = (double)b->p->ready[b->p->n_tensors - 1];
    uint32_t largest = 1;
    for (uint32_t u = 0; u < b->n; u++) {
        single = esp__max2(single, b->ready[u] + b->loads[u]->least);
        if (b->loads[u]->n > largest) largest = b->loads[u]->n;
    }
    if (single <= 0.0) return;
    b->cost = esp__arena_get(b->p->arena, largest * sizeof *b->cost);
    b->scale = 1.0 / single;
    esp__bounding_start(b);
    if (b->game.n_rows) esp__bound_climb(b);
    b->best = esp__max2(b->best, single);
}

ESP__FN uint64_t esp__bounding_ns(const esp__bounding *b) {
    /* Times are integers, so the bound may be rounded up. The factor makes up for rounding errors. */
    return (uint64_t)ceil(b->best * (1.0 - 1e-11));
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
ESP__FN esp__loads *esp__loads_new(esp__problem *p, uint32_t n) {
    esp__loads *m = esp__arena_get(p->arena, sizeof *m);
    m->n = n;
    for (uint32_t l = 0; l < ESP__LANES; l++) m->lane[l] = esp__arena_get(p->arena, n * sizeof **m->lane);
    return m;
}

ESP__FN esp__bounding *esp__bounding_open(esp__problem *p, uint32_t n) {
    esp__bounding *b = esp__arena_get(p->arena, sizeof *b);
    b->p = p, b->n = n;
    b->ready = esp__arena_get(p->arena, n * sizeof *b->ready);
    b->size = esp__arena_get(p->arena, n * sizeof *b->size);
    b->loads = esp__arena_get(p->arena, n * sizeof *b->loads);
    return b;
}

ESP__FN uint64_t esp__bound(esp__problem *p) {
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    esp__bounding *b = esp__bounding_open(p, (uint32_t)p->n_tensors);
    esp__rating *w = esp__rating_new(p);
    esp__loads **loads = esp__arena_get(p->arena, p->n_keeps * sizeof *loads);
    for (uint32_t k = 0; k < p->n_keeps; k++) {
        esp__rating_options(w, k);
        loads[k] = esp__loads_new(p, w->n);
        loads[k]->least = floor(w->least);
        for (uint32_t x = 0; x < w->n; x++)
            for (uint32_t l = 0; l < ESP__LANES; l++) loads[k]->lane[l][x] = w->paths[x].each[l];
    }
    for (uint32_t u = 0; u < b->n; u++) {
        b->ready[u] = (double)p->ready[u];
        b->size[u] = (double)p->model->tensors[u].elements;
        b->loads[u] = loads[esp__keep_of(p, u, 1)];
    }
    esp__bounding_run(b);
    const uint64_t ns = esp__bounding_ns(b);
    esp__arena_rewind(p->arena, mark);
    return ns;
}
