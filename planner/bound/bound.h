/* bound.h: what the files of the lower bound share: its linear program, its rows, and the state of one bound. */
#ifndef ESP__BOUND_H
#define ESP__BOUND_H
#include "planner/plan.h"

/* ---- game.c ---------------------------------------------------------------------------------------------------- */
enum { ESP__GAME_ROWS = 28, ESP__GAME_COLUMNS = 64 };
typedef struct esp__game {
    uint32_t n_rows, n_columns;
    double g[ESP__GAME_COLUMNS][ESP__GAME_ROWS]; /* value of row j for column i; > 0, about 1 */
    double value;                                /* the largest value that a mixture of rows has for every column */
    double row[ESP__GAME_ROWS];                  /* that mixture: weights >= 0, which sum to 1 */
    double column[ESP__GAME_COLUMNS];            /* the mixture of columns for which no mixture of rows exceeds it */
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
    const esp__candidates *candidates; /* NULL: made for any.c */
    const esp__path **paths;           /* [n] by ascending total */
    uint32_t n;
    double *total;                /* [n] of the paths, ascending */
    uint32_t *first[ESP__LANES];  /* [n + 1] index of a path's first entry in stays */
    esp__stay *stays[ESP__LANES]; /* ordered by path */
    double head[ESP__LANES];      /* the largest head + p of any path */
    uint32_t low, high, rows;     /* the last choice, for the units that share it */
    uint32_t best, call;
    double cost;
} esp__lanes_candidates;
typedef struct esp__row {
    uint32_t lane;
    double s, q;
    double base;      /* s + q + the backward ops' work */
    const double **w; /* [units] work of each path in the row; units with equal values share an array */
} esp__row;

static inline double esp__min2(double a, double b) { return a < b ? a : b; }
static inline double esp__max2(double a, double b) { return a > b ? a : b; }

/* ---- all of a bound's work ---------------------------------------------------------------------------------------- */
typedef struct esp__bounding {
    esp__problem *p;
    const esp__extent *units;                         /* NULL: each tensor is a unit */
    int pieces;                                       /* 1: any.c's paths, see esp__must */
    uint32_t n, n_tensors, n_candidate_sets, largest; /* largest: most paths of a unit */
    double *compute, *start, *tail; /* [n_tensors] backward: its time, its earliest start, the least time after it */
    uint32_t *candidates;           /* [n] index in candidate_sets */
    const double **same, *zeros;    /* [n_candidate_sets] scratch: w of late units; [largest] zeros: w of early units */
    double *ready;                  /* [n] */
    uint32_t *early, *late;         /* [n] bits of rows: all its work may run before s; it is ready at s or later */
    uint32_t *low, *high;           /* [n] the paths [low, high) are allowed */
    esp__lanes_candidates *candidate_sets;
    esp__row rows[ESP__GAME_ROWS];
    esp__game game;
    uint16_t *choice[ESP__GAME_COLUMNS]; /* [n] path of each unit, for each column */
    uint32_t call;
    double *cost;                        /* [largest] */
    double scale;                        /* converts ns to the game's values */
    double proven;                       /* ns; no plan is faster */
    double best, lambda[ESP__GAME_ROWS]; /* the best mixture for the allowed paths, and its value in ns */
    uint64_t work, work_max;             /* path prices computed; where to stop */
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
