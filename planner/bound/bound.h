/* bound.h: what the files of the lower bound share. A row is an inequality that bounds the step time. A column is a
 * choice of an option for each tensor or group. Weighing rows against columns is a matrix game; a high value is a good
 * bound. */
#ifndef ESP__BOUND_H
#define ESP__BOUND_H
#include "planner/plan.h"

/* ---- game.c ---------------------------------------------------------------------------------------------------- */
enum { ESP__GAME_ROWS = 28, ESP__GAME_COLUMNS = 64 };
typedef struct esp__game {
    uint32_t n_rows, n_columns;
    double g[ESP__GAME_COLUMNS][ESP__GAME_ROWS]; /* bound of inequality j for choice i, about 1 */
    double value;
    double row[ESP__GAME_ROWS];       /* best weights of the inequalities; they sum to 1 */
    double column[ESP__GAME_COLUMNS]; /* weights of the choices that allow no higher bound */
    double t[ESP__GAME_ROWS + 1][ESP__GAME_COLUMNS + ESP__GAME_ROWS + 1]; /* simplex tableau */
    uint32_t basis[ESP__GAME_ROWS];
} esp__game;

/* ---- rows.c ---------------------------------------------------------------------------------------------------- */
/* How long one option occupies one processor or link (p), and its time before (head) and after that (tail), in ns. */
typedef struct esp__stay {
    double p, head, tail;
    uint32_t path;
} esp__stay;
/* The options of a tensor or group, with their work on each processor and link. */
typedef struct esp__lanes_candidates {
    const esp__candidates *candidates;
    const esp__path **paths;
    uint32_t n;
    double *total;
    uint32_t *first[ESP__LANES]; /* each option's first entry in `stays` */
    esp__stay *stays[ESP__LANES];
    double head[ESP__LANES];
    uint32_t low, high, rows;
    uint32_t best, call;
    double cost;
} esp__lanes_candidates;
typedef struct esp__row {
    uint32_t lane;
    double s, q;
    double base; /* fixed part: s + q + the work of backward ops */
    /* For each tensor or group and each of its options, the work that must run in the interval. Equal arrays are
     * shared. */
    const double **w;
} esp__row;

static inline double esp__min2(double a, double b) { return a < b ? a : b; }
static inline double esp__max2(double a, double b) { return a > b ? a : b; }

/* ---- the state of a bound --------------------------------------------------------------------------------------- */
typedef struct esp__bounding {
    esp__problem *p;
    const esp__extent *units; /* NULL if each tensor is on its own */
    bool pieces;              /* whether tensors may be split, as in any.c */
    uint32_t n, n_tensors, n_candidate_sets, largest;
    /* The time of each backward op, its earliest start, and the least time after its end. */
    double *compute, *start, *tail;
    uint32_t *candidates;
    const double **same, *zeros;
    double *ready;
    /* For each tensor or group, inequalities as bits. `early`: those that count none of its work, because all of it may
     * run before s. `late`: those whose s is before its gradient is ready. */
    uint32_t *early, *late;
    uint32_t *low, *high; /* the candidates that are still allowed */
    esp__lanes_candidates *candidate_sets;
    esp__row rows[ESP__GAME_ROWS];
    esp__game game;
    uint16_t *choice[ESP__GAME_COLUMNS];
    uint32_t call;
    double *cost;
    double scale;  /* converts ns to the game's values */
    double proven; /* ns; it is proven that no plan is faster */
    /* The best weights of the inequalities so far, and the bound that they give, in ns. */
    double best, lambda[ESP__GAME_ROWS];
    uint64_t work, work_max;
} esp__bounding;

ESP__FN uint64_t esp__bounding_ns(const esp__bounding *b);
ESP__FN esp__bounding *esp__bounding_open(esp__problem *p, uint32_t n);
ESP__FN void esp__bounding_run(esp__bounding *b);
ESP__FN void esp__game_solve(esp__game *m);
ESP__FN void esp__lanes_candidates_add(esp__lanes_candidates *m, uint32_t lane, uint32_t x, double p, double head,
                                       double tail);
ESP__FN void esp__lanes_candidates_make(esp__problem *p, const esp__candidates *candidates, esp__lanes_candidates *out);
ESP__FN void esp__lanes_candidates_open(esp__problem *p, esp__lanes_candidates *m, uint32_t n);
ESP__FN double esp__row_value(const esp__bounding *b, const esp__row *r, const uint16_t *choice);
ESP__FN uint32_t esp__rows_find(esp__bounding *b, double above);
ESP__FN double esp__table_share(const esp_plan_system *s, uint32_t scope, uint32_t coll, uint32_t flows);
ESP__FN void esp__bounding_candidates(esp__bounding *b);
#endif
