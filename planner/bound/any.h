/* any.h: the state of any.c: each op's rate (the least time per element), and the best options by time per element. */
#ifndef ESP__ANY_H
#define ESP__ANY_H
#include "planner/plan.h"

/* An op takes at least fixed + each * e for e elements, and at least `least` for any number of elements. */
typedef struct esp__rate {
    double fixed, each, least;
} esp__rate;

/* One option's time per element on each lane, in ns. */
typedef struct esp__any_path {
    double each[ESP__LANES];
} esp__any_path;

typedef struct esp__any {
    esp__problem *p;
    const esp__tree *tree;
    const esp_plan_codec *codec;
    double elements;      /* sum over all tensors, the largest possible unit */
    esp__shape shape;     /* shape of a unit with all `elements` */
    esp__rate *rates;     /* for each op template; least < 0 if it cannot run */
    esp__rate *cores;     /* for each op template, core time of a collective */
    esp__any_path *paths; /* paths that no other one dominates */
    uint32_t n, room;
    double least; /* ns that every option takes, even for the smallest unit */
} esp__any;

/* Sets `paths` to the options of one constraint, with every codec. */
ESP__FN void esp__any_options(esp__any *w, uint32_t keep);
#endif
