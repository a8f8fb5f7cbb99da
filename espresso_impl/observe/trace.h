/* trace.h: a rank's events in memory, and what it sends of them. */
#ifndef ESP__TRACE_H
#define ESP__TRACE_H
#include "espresso_impl/observe/observe.h"
#include <stdatomic.h>

enum { ESP__LABEL_MAX = 104, ESP__LABELS_MIN = 1024, ESP__LABELS_MAX = 65536, ESP__TRACE_MAGIC = 0x54505345 };

/* Labels are copied, each once: a change of strategy frees the ops that they came from. */
typedef struct esp__label {
    atomic_ullong key; /* hash of the text, 0: free */
    char text[ESP__LABEL_MAX];
} esp__label;

typedef struct esp__event {
    uint64_t start_ns, end_ns, core_ns, bytes; /* core_ns 0: not known */
    uint32_t label, lane, tensor, step;
} esp__event;

struct esp__trace {
    uint64_t capacity, origin_ns;
    uint32_t n_labels; /* places in labels[], a power of two */
    atomic_ullong n;   /* events added, with those beyond the capacity */
    esp__event *events;
    esp__label *labels;
    esp__trace_file *file; /* rank 0's; NULL elsewhere. With `own`, this rank's, until it is written */
    int own, done;         /* every rank writes a file of its own; it was written: nothing is added any more */
    uint64_t steps_left;   /* with `own`: steps until it is written */
    /* the last push was in step push_step - 1 and returned at last_push_ns: from then to the step's next push is backward */
    uint64_t push_step, last_push_ns;
};

/* What travels to rank 0: this, the labels' texts, the events. */
typedef struct esp__trace_head {
    uint32_t magic;
    int32_t machine;
    uint64_t origin_ns, n_events, n_dropped;
    int64_t wall_ns; /* this rank's clock plus wall_ns is the time of day */
    uint64_t n_labels;
    uint32_t n_lanes, reserved0;
} esp__trace_head;
#endif
