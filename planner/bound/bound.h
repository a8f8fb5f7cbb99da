/* bound.h: the lower bound of the step time. A row is an inequality that bounds the step time. A column is a choice of
 * an option for each tensor or group. Weighing rows against columns is a matrix game; a high value is a good bound. */
#ifndef ESP__BOUND_H
#define ESP__BOUND_H
#include "planner/plan.h"

/* ---- game.c ---------------------------------------------------------------------------------------------------- */
enum { ESP__GAME_ROWS = 28, ESP__GAME_COLUMNS = 64 };
typedef struct esp__game {
    uint32_t n_rows, n_columns;
    double g[ESP__GAME_COLUMNS][ESP__GAME_ROWS]; /* bound by inequality j for choice i, scaled to about 1 */
    double value;
    double row[ESP__GAME_ROWS];
    double column[ESP__GAME_COLUMNS];
    double t[ESP__GAME_ROWS + 1][ESP__GAME_COLUMNS + ESP__GAME_ROWS + 1]; /* simplex tableau */
    uint32_t basis[ESP__GAME_ROWS];
} esp__game;
ESP__FN void esp__game_solve(esp__game *m);

/* ---- bound.c --------------------------------------------------------------------------------------------------- */
typedef struct esp__loads {
    uint32_t n;
    double *lane[ESP__LANES]; /* how long each option occupies this processor or link, in ns or ns per element */
    double least;
    /* The result of esp__bound_at for these options: computed in call number `call`, with the inequalities in the bits
     * `rows`. */
    uint32_t best, call, rows;
    double cost;
} esp__loads;
typedef struct esp__row {
    uint32_t lane;
    double s;
    double base;
} esp__row;
typedef struct esp__bounding {
    esp__problem *p;
    uint32_t n;
    double *ready;
    double *size;       /* for each tensor: the factor of its loads */
    esp__loads **loads; /* for each tensor: loads of its options */
    esp__row rows[ESP__GAME_ROWS];
    esp__game game;
    uint16_t *choice[ESP__GAME_COLUMNS];
    uint32_t call;
    double *cost, scale;
    /* The best weights of the inequalities so far, and the bound that they give, in ns. */
    double best, lambda[ESP__GAME_ROWS];
    uint64_t work;
} esp__bounding;

static inline double esp__min2(double a, double b) { return a < b ? a : b; }
static inline double esp__max2(double a, double b) { return a > b ? a : b; }
static inline double esp__row_load(const esp__bounding *b, uint32_t j, uint32_t u, uint32_t x) {
    return b->ready[u] < b->rows[j].s ? 0.0 : b->size[u] * b->loads[u]->lane[b->rows[j].lane][x];
}

ESP__FN esp__loads *esp__loads_new(esp__problem *p, uint32_t n);
ESP__FN esp__bounding *esp__bounding_open(esp__problem *p, uint32_t n);
ESP__FN void esp__bounding_run(esp__bounding *b);
ESP__FN uint64_t esp__bounding_ns(const esp__bounding *b);

/* ---- rates.c --------------------------------------------------------------------------------------------------- */
/* An op takes at least fixed + each * e ns for e elements, and at least `least` ns for any number of elements. */
typedef struct esp__rate {
    double fixed, each, least;
} esp__rate;

/* One option's time per element on each processor and link, in ns. */
typedef struct esp__rate_path {
    double each[ESP__LANES];
} esp__rate_path;

typedef struct esp__rating {
    esp__problem *p;
    const esp__tree *tree;
    const esp_plan_codec *codec;
    double elements; /* sum over all tensors, the largest possible group */
    esp__shape shape;
    esp__rate *rates;
    esp__rate *cores;
    esp__rate_path *paths;
    uint32_t n, room;
    double least; /* ns that each option takes at least, even for one element */
} esp__rating;

ESP__FN esp__rating *esp__rating_new(esp__problem *p);
ESP__FN void esp__rating_options(esp__rating *w, uint32_t keep);
ESP__FN double esp__table_share(const esp_plan_system *s, uint32_t scope, uint32_t coll, uint32_t flows);
#endif
