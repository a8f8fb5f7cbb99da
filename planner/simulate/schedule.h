/* schedule.h: the simulation of schedules, and trials (incremental.c), which compute how the step time changes if some
 * tensors or groups are replaced. An op's tail is the longest chain of dependent ops from its start to the end of the
 * step. */
#ifndef ESP__SCHEDULE_H
#define ESP__SCHEDULE_H
#include "planner/plan.h"

/* ---- schedule.c: the limits of a configuration ------------------------------------------------------------------- */
enum { ESP__MEMORY = 0, ESP__VOLUME, ESP__ERROR, ESP__LIMITS };
ESP__FN bool esp__may_use(const esp__problem *p, double may[ESP__LIMITS]);
/* Adds what the option uses of each limited quantity, `times` times. */
ESP__FN void esp__uses_add(const esp__path *path, double times, double used[ESP__LIMITS]);

/* ---- simulate.c ------------------------------------------------------------------------------------------------ */
/* The state of a simulation that runs the ops of a schedule one after the other. */
typedef struct esp__clock {
    uint64_t free_at[ESP__LANES];
    uint64_t *ready;
    uint8_t *op;
    uint8_t *turn;
    uint32_t tensor;
    uint32_t unit;
    uint64_t backward_ready, makespan;
} esp__clock;

/* ---- incremental.c --------------------------------------------------------------------------------------------- */
typedef struct esp__timed { /* an op, in the schedule's order of all ops */
    esp__op_time time;
    uint32_t unit;
    uint32_t before, after;
    uint32_t tensor;
    uint8_t lanes;
} esp__timed;
#define ESP__NOWHERE 0xffffffffu

typedef struct esp__times {
    uint64_t lane[ESP__LANES];
} esp__times;

enum { ESP__NEW_MAX = 16 };

/* A tensor, group or chunk whose ops a trial inserts into the schedule. */
typedef struct esp__chain {
    esp__extent unit;
    const esp__path *path;
    uint32_t after;
    uint32_t op;
    uint64_t ready;
} esp__chain;
/* Replaces n_gone neighbouring tensors or groups of a schedule by n others with the same tensors. */
typedef struct esp__swap {
    uint32_t gone, n_gone, n;
    /* Only ops with indexes [from, to) can change places. */
    uint32_t from, to;
    esp__chain chains[ESP__NEW_MAX];
    uint32_t n_places;
    struct {
        uint32_t before, chain;
    } places[ESP__NEW_MAX * ESP__MAX_OPS];
} esp__swap;

/* A schedule, prepared for trials. */
typedef struct esp__incremental {
    esp__problem *p;
    esp__schedule *d;
    uint32_t n, room, room_units;
    esp__timed *timed_ops;
    uint64_t *end, *now;
    uint64_t *tail; /* longest chain from each op's start to the step's end */
    esp__times *free_at;
    esp__times *next;
    uint64_t *saved_tail;
    esp__times *saved_next;
    uint32_t *first, *last;
    uint32_t *backward;
    uint32_t *attached;
    uint32_t *fill, *sequence;
    uint32_t room_sequence, reached;
    esp__swap swaps[3];
    esp__schedule before, other;
    double used[ESP__LIMITS], may[ESP__LIMITS];
    bool limited;
    uint64_t trials;
} esp__incremental;

ESP__FN uint64_t esp__clock_backward(esp__clock *c, const esp__problem *p, const esp__schedule *d);
ESP__FN void esp__clock_open(esp__clock *c, const esp__problem *p, const esp__schedule *d);
ESP__FN uint64_t esp__clock_unit(esp__clock *c, const esp__schedule *d, uint32_t u);
ESP__FN const char *esp__codec_word(const esp__problem *p, const esp__path *path);
ESP__FN esp_status esp__schedule_read(esp__problem *p, esp__schedule *d, const char *name, const char *text);
ESP__FN bool esp__incremental_allows(const esp__incremental *k, const esp__swap *w);
ESP__FN void esp__incremental_prepare(esp__incremental *k);
ESP__FN void esp__incremental_remove(esp__incremental *k, esp__swap *s, uint32_t gone, uint32_t n_gone);
ESP__FN esp__incremental *esp__incremental_open(esp__problem *p, esp__schedule *d);
ESP__FN uint64_t esp__incremental_try(esp__incremental *k, esp__swap *w, uint64_t limit);
ESP__FN void esp__incremental_restore(esp__incremental *k, const esp__swap *s);
ESP__FN uint64_t esp__incremental_without(esp__incremental *k, const esp__swap *w, uint64_t limit);
ESP__FN void esp__incremental_retime(esp__incremental *k);
ESP__FN int esp__incremental_critical(const esp__incremental *k, uint32_t unit, uint32_t n);
ESP__FN uint32_t esp__devices(const esp__problem *p);
ESP__FN void esp__schedule_room_units(esp__problem *p, esp__schedule *d, uint32_t n);
ESP__FN void esp__keep_better_allowed(esp__problem *p, esp__schedule *to, const esp__schedule *from);
/* Changes the schedule as the last trial of `w` did. Trials can follow at once. */
ESP__FN void esp__incremental_set(esp__incremental *k, const esp__swap *w);
/* Makes the change that was last tried with `w`, if the real step time is then below `limit`, and returns 1. A trial
 * gives only a lower bound on this time. Orders ops by when they become ready if that is faster. */
ESP__FN int esp__incremental_take(esp__incremental *k, const esp__swap *w, uint64_t limit);
#endif
