/* bound.h: shared by the files of the lower bound: its linear program, its rows, and its state. */
#ifndef ESP__BOUND_H
#define ESP__BOUND_H
#include "planner/plan.h"

/* ---- game.c ---------------------------------------------------------------------------------------------------- */
enum { ESP__GAME_ROWS = 28, ESP__GAME_COLUMNS = 64 };
typedef struct esp__game {
    uint32_t n_rows, n_columns;
    double g[ESP__GAME_COLUMNS][ESP__GAME_ROWS]; /* the value of row j for column i, about 1 */
    double value;                                /* the largest that a mixture of rows has for every column */
    double row[ESP__GAME_ROWS];                  /* that mixture: weights >= 0 that sum to 1 */
    /* The mixture of columns for which no mixture of rows has a larger value. */
    double column[ESP__GAME_COLUMNS];
    double t[ESP__GAME_ROWS + 1][ESP__GAME_COLUMNS + ESP__GAME_ROWS + 1]; /* simplex tableau */
    uint32_t basis[ESP__GAME_ROWS];
} esp__game;

/* ---- rows.c ---------------------------------------------------------------------------------------------------- */
/* A path's work on one lane. */
typedef struct esp__stay {
    double p, head, tail; /* its time, and the path's time before and after it */
    uint32_t path;
} esp__stay;
/* Candidate options, arranged by lanes. */
typedef struct esp__lanes_candidates {
    const esp__candidates *candidates; /* NULL if any.c made the entries */
    const esp__path **paths;           /* [n] by rising total */
    uint32_t n;
    double *total;                /* [n] the paths' totals */
    uint32_t *first[ESP__LANES];  /* [n + 1] index in `stays` of a path's first entry */
    esp__stay *stays[ESP__LANES]; /* ordered by path */
    double head[ESP__LANES];      /* the largest head + p of any path */
    uint32_t low, high, rows;     /* the last choice, reused by units with equal prices */
    uint32_t best, call;
    double cost;
} esp__lanes_candidates;
typedef struct esp__row {
    uint32_t lane;
    double s, q;
    double base; /* s + q + the work of backward ops */
    /* [units] Work of each path in the row; units with equal values share an array. */
    const double **w;
} esp__row;

static inline double esp__min2(double a, double b) { return a < b ? a : b; }
static inline double esp__max2(double a, double b) { return a > b ? a : b; }

/* ---- all of a bound's work --------------------------------------------------------------------------------------- */
typedef struct esp__bounding {
    esp__problem *p;
    const esp__extent *units;                         /* NULL: each tensor is a unit */
    bool pieces;                                      /* units may be divided into pieces, as in any.c */
    uint32_t n, n_tensors, n_candidate_sets, largest; /* largest: most paths of a unit */
    /* [n_tensors] of backward: time, earliest start, least time after it. */
    double *compute, *start, *tail;
    uint32_t *candidates; /* [n] index in candidate_sets */
    /* Scratch of esp__row_fill: the values of late units, by set of candidates, and those of early units (0). */
    const double **same, *zeros;
    double *ready;
    /* [n] Rows, as bits: those before whose s all of the unit's work may run, and those whose s is not after the time
     * when the unit is ready. */
    uint32_t *early, *late;
    uint32_t *low, *high; /* [n] the paths [low, high) are allowed */
    esp__lanes_candidates *candidate_sets;
    esp__row rows[ESP__GAME_ROWS];
    esp__game game;
    uint16_t *choice[ESP__GAME_COLUMNS]; /* [n] path of each unit, for each column */
    uint32_t call;
    double *cost;  /* [largest] scratch */
    double scale;  /* converts ns to the game's values */
    double proven; /* ns; no plan is faster */
    /* The best mixture for the allowed paths: its value in ns, its weights. */
    double best, lambda[ESP__GAME_ROWS];
    uint64_t work, work_max; /* path prices computed so far, and their limit */
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
