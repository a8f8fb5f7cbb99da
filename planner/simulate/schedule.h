/* schedule.h: what the files share that time a schedule: the clock, and incremental evaluation. */
#ifndef ESP__SCHEDULE_H
#define ESP__SCHEDULE_H
#include "planner/plan.h"

/* ---- simulate.c ------------------------------------------------------------------------------------------------ */
/* The simulation's state. */
typedef struct esp__clock {
    uint64_t free_at[ESP__LANES];
    uint64_t *ready; /* [n_units] when the unit's next op has its input */
    uint8_t *op;     /* [n_units] the unit's next op */
    uint8_t *turn;   /* [n_units] 1: it has its turn on its links, and waits for its core; only where p->core_ops */
    uint32_t tensor; /* of the next backward */
    uint32_t unit;   /* the first unit that no backward has made ready */
    uint64_t backward_ready, makespan;
} esp__clock;

/* ---- urgency.c ------------------------------------------------------------------------------------------------- */
/* More urgent is: the op of the earlier unit; the op whose unit has more time left. A backward competes with these, or comes
 * before all of them (the rules that are named AFTER_BACKWARD). */
enum {
    ESP__EARLIER_UNIT = 0,
    ESP__LONGER_REST,
    ESP__EARLIER_UNIT_AFTER_BACKWARD,
    ESP__LONGER_REST_AFTER_BACKWARD,
    ESP__RULES
};

/* ---- incremental.c --------------------------------------------------------------------------------------------- */
typedef struct esp__timed { /* one op of the sequence */
    esp__op_time time;
    uint32_t unit;          /* or ESP__NEXT_BACKWARD */
    uint32_t before, after; /* places of its unit's op before and after; of a backward: of its neighbours */
    uint32_t tensor;        /* of a backward: its tensor */
    uint8_t lanes;
} esp__timed;
#define ESP__NOWHERE 0xffffffffu

typedef struct esp__times {
    uint64_t lane[ESP__LANES];
} esp__times;

/* Where a new op goes: by ready time; the same, but after a backward that is ready at the same time; as early as its lanes
 * allow. */
enum { ESP__BY_READY = 0, ESP__BACKWARD_FIRST, ESP__EAGER, ESP__WAYS };
enum { ESP__NEW_MAX = 16 };

/* A new unit, whose ops are being merged into the sequence. */
typedef struct esp__chain {
    esp__extent unit;
    const esp__path *path;
    uint32_t after; /* place of the backward that makes it ready */
    uint32_t op;
    uint64_t ready;
} esp__chain;
/* Replaces units [gone, gone + n_gone) of the schedule by n new ones, which cover the same tensors. */
typedef struct esp__swap {
    uint32_t gone, n_gone, n, way;
    uint32_t from, to; /* places: the first that can change; the end of the old ops */
    esp__chain chains[ESP__NEW_MAX];
    uint32_t n_places;
    struct {
        uint32_t before, chain; /* the next op of this chain goes before this place */
    } places[ESP__NEW_MAX * ESP__MAX_OPS];
} esp__swap;

/* A schedule prepared for trials. */
typedef struct esp__incremental {
    esp__problem *p;
    esp__schedule *d;
    uint32_t n, room, room_units;
    esp__timed *timed_ops;
    uint64_t *end, *now; /* [n] each op's end: in the schedule; in the current trial */
    uint64_t *tail;      /* [n] longest path from an op's start to the end of the step */
    esp__times *free_at; /* [n + 1] when each lane is free just before this op */
    esp__times *next;    /* [n + 1] tail of the next op on each lane from this place on */
    uint64_t *saved_tail;
    esp__times *saved_next;
    uint32_t *first, *last;    /* [units] places of a unit's first and last op */
    uint32_t *backward;        /* [tensors] place of the tensor's backward */
    uint32_t *attached;        /* [tensors + 1] the first unit that ends with this tensor or a later one */
    uint32_t *fill, *sequence; /* scratch */
    uint32_t room_sequence, reached;
    esp__swap swaps[3];
    esp__schedule before, other; /* to undo a move; to compare with */
    uint64_t memory, volume;     /* sums over the schedule, for the limits */
    double error, elements;
    uint64_t trials;
} esp__incremental;

ESP__FN uint64_t esp__clock_backward(esp__clock *c, const esp__problem *p, const esp__schedule *d);
ESP__FN void esp__clock_open(esp__clock *c, const esp__problem *p, const esp__schedule *d);
ESP__FN uint64_t esp__clock_unit(esp__clock *c, const esp__schedule *d, uint32_t u);
ESP__FN const char *esp__codec_word(const esp__problem *p, const esp__path *path);
ESP__FN esp_status esp__schedule_read(esp__problem *p, esp__schedule *d, const char *name, const char *text);
ESP__FN int esp__incremental_allows(const esp__incremental *k, const esp__swap *w);
ESP__FN void esp__incremental_anew(esp__incremental *k);
ESP__FN void esp__incremental_lift(esp__incremental *k, esp__swap *s, uint32_t gone, uint32_t n_gone);
ESP__FN esp__incremental *esp__incremental_open(esp__problem *p, esp__schedule *d);
ESP__FN int esp__incremental_take(esp__incremental *k, const esp__swap *w);
ESP__FN uint64_t esp__incremental_try(esp__incremental *k, esp__swap *w, uint64_t limit);
ESP__FN void esp__incremental_unlift(esp__incremental *k, const esp__swap *s);
ESP__FN uint64_t esp__incremental_without(esp__incremental *k, const esp__swap *w, uint64_t limit);
ESP__FN void esp__incremental_lay(esp__incremental *k);
ESP__FN int esp__incremental_critical(const esp__incremental *k, uint32_t unit, uint32_t n);
ESP__FN uint32_t esp__devices(const esp__problem *p);
ESP__FN int esp__reorder(esp__problem *p, esp__schedule *d);
/* Makes the swap, with the new units' ops at the places from the trial, and prepares the schedule again. */
ESP__FN void esp__incremental_set(esp__incremental *k, const esp__swap *w);
/* Makes the swap if the step is then below `limit`; returns 1 if it did. The step may be longer than the trial predicted, because of paths
 * that the trial ignores. Uses ready order if that is shorter still. */
ESP__FN int esp__incremental_move(esp__incremental *k, const esp__swap *w, uint64_t limit);
#endif
