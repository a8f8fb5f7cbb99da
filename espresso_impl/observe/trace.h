/* trace.h: a rank's events in memory, and the form in which rank 0 gets them. */
#ifndef ESP__TRACE_H
#define ESP__TRACE_H
#include "espresso_impl/observe/observe.h"
#include <stdatomic.h>

enum { ESP__LABEL_MAX = 104, ESP__LABELS_MIN = 1024, ESP__LABELS_MAX = 65536, ESP__TRACE_MAGIC = 0x54505345 };

/* Each label is copied once, because a change of strategy frees the ops that have the texts. */
typedef struct esp__label {
    atomic_ullong key; /* hash of the text; 0 in a free entry */
    char text[ESP__LABEL_MAX];
} esp__label;

typedef struct esp__event {
    uint64_t start_ns, end_ns, core_ns, bytes; /* as in esp__trace_add */
    uint32_t label, lane, tensor, step;
} esp__event;

struct esp__trace {
    uint64_t capacity, origin_ns;
    uint32_t n_labels; /* size of the hash table, a power of two */
    atomic_ullong n;   /* events added, including dropped ones */
    esp__event *events;
    esp__label *labels;
    esp__trace_file *file; /* on ranks that write one */
    /* with steps=N, every rank writes a file of its own after N steps */
    bool own_file;
    bool done; /* this file is written */
    uint64_t steps_left;
    /* The last push, in step push_step - 1, returned at last_push_ns. From then to the next push is backward. */
    uint64_t push_step, last_push_ns;
};

/* The head of a rank's final message. The labels' texts and the events follow. */
typedef struct esp__trace_head {
    uint32_t magic;
    int32_t machine;
    uint64_t origin_ns, n_events, n_dropped;
    int64_t wall_ns; /* time of day minus esp__now_ns */
    uint64_t n_labels;
    uint32_t n_lanes, reserved0;
} esp__trace_head;
#endif
