/* any.h: the state of any.c, which bounds the step time by each op's rate: its least time per element. */
#ifndef ESP__ANY_H
#define ESP__ANY_H
#include "planner/plan.h"

/* An op takes at least fixed + each * e ns for e elements, and at least `least` ns for any number of elements. */
typedef struct esp__rate {
    double fixed, each, least;
} esp__rate;

/* One option's time per element on each processor and link, in ns. */
typedef struct esp__any_path {
    double each[ESP__LANES];
} esp__any_path;

typedef struct esp__any {
    esp__problem *p;
    const esp__tree *tree;
    const esp_plan_codec *codec;
    double elements; /* sum over all tensors, the largest possible group */
    esp__shape shape;
    esp__rate *rates; /* for each op; least < 0 if it cannot run */
    esp__rate *cores; /* for each op, time of a collective on a core */
    esp__any_path *paths;
    uint32_t n, room;
    double least; /* ns that every option takes, even for one element */
} esp__any;

ESP__FN void esp__any_options(esp__any *w, uint32_t keep);
#endif
