/* any.h: the state of the bound of any.c: rates of ops, and the Pareto set of what the options take per element. */
#ifndef ESP__ANY_H
#define ESP__ANY_H
#include "planner/plan.h"

/* A lower bound on an op's time for e elements: fixed + each * e; and for every e: `least`. */
typedef struct esp__rate {
    double fixed, each, least;
} esp__rate;

/* An option: ns per element on each lane. */
typedef struct esp__any_path {
    double each[ESP__LANES];
} esp__any_path;

typedef struct esp__any {
    esp__problem *p;
    const esp__tree *tree;
    const esp_plan_codec *codec;
    double elements;      /* of all tensors: the largest unit */
    esp__shape shape;     /* of a unit of all `elements` */
    esp__rate *rates;     /* by op template; `least` < 0: the op cannot run */
    esp__rate *cores;     /* by op template: of the core that a collective needs */
    esp__any_path *paths; /* [n] a Pareto set */
    uint32_t n, room;
    double least; /* ns that every option takes at least, even for the smallest unit */
} esp__any;

/* The options of one constraint, with every codec. */
ESP__FN void esp__any_options(esp__any *w, uint32_t keep);
#endif
