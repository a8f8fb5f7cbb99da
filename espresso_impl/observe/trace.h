/* trace.h: a rank's recorded events, and how they are sent to rank 0. */
#ifndef ESP__TRACE_H
#define ESP__TRACE_H
#include "espresso_impl/observe/observe.h"
#include <stdatomic.h>

enum { ESP__LABEL_MAX = 104, ESP__LABELS_MIN = 1024, ESP__LABELS_MAX = 65536, ESP__TRACE_MAGIC = 0x54505345 };

/* Labels are copied, each once, because a change of strategy frees the ops that own the texts. */
typedef struct esp__label {
    atomic_ullong key; /* hash of the text, or 0 if the entry is free */
    char text[ESP__LABEL_MAX];
} esp__label;

typedef struct esp__event {
    uint64_t start_ns, end_ns, core_ns, bytes; /* see esp__trace_add */
    uint32_t label, lane, tensor, step;
} esp__event;

struct esp__trace {
    uint64_t capacity, origin_ns;
    uint32_t n_labels; /* size of the hash table of labels, a power of two */
    atomic_ullong n;   /* number of events, including dropped ones */
    esp__event *events;
    esp__label *labels;
    esp__trace_file *file; /* on the rank that writes the file; else NULL */
    /* with steps=N, every rank writes its own file after N steps */
    bool own_file;
    bool done; /* the own file is written */
    uint64_t steps_left;
    /* The last push was in step push_step - 1, until last_push_ns. Backward runs from then until the next push. */
    uint64_t push_step, last_push_ns;
};

/* The head of a rank's final message. The texts of the labels follow, and then the events. */
typedef struct esp__trace_head {
    uint32_t magic;
    int32_t machine;
    uint64_t origin_ns, n_events, n_dropped;
    int64_t wall_ns; /* offset from esp__now_ns to the time of day */
    uint64_t n_labels;
    uint32_t n_lanes, reserved0;
} esp__trace_head;
#endif
