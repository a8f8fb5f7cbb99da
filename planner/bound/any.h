/* any.h: the state of the bound of any.c: rates of ops, and the Pareto set of what the options take per element. */
#ifndef ESP__ANY_H
#define ESP__ANY_H
#include "planner/plan.h"

/* A lower bound on an op's time for e elements: fixed + each * e; and `least`, for every e. */
typedef struct esp__rate {
    double fixed, each, least;
} esp__rate;

/* One option: ns per element on each lane. */
typedef struct esp__any_path {
    double each[ESP__LANES];
} esp__any_path;

typedef struct esp__any {
    esp__problem *p;
    const esp__tree *tree;
    const esp_plan_codec *codec;
    double elements;      /* all tensors' sum: the largest possible unit */
    esp__shape shape;     /* the shape of a unit with all `elements` */
    esp__rate *rates;     /* by op template; `least` < 0 if the op cannot run */
    esp__rate *cores;     /* by op template: time on the core of a collective */
    esp__any_path *paths; /* [n] a Pareto set */
    uint32_t n, room;
    double least; /* ns that every option takes, even for the smallest unit */
} esp__any;

/* The options of one constraint, with every codec. */
ESP__FN void esp__any_options(esp__any *w, uint32_t keep);
#endif
