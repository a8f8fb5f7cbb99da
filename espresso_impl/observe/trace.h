/* trace.h: the events that a rank has recorded, and how it sends them to rank 0. */
#ifndef ESP__TRACE_H
#define ESP__TRACE_H
#include "espresso_impl/observe/observe.h"
#include <stdatomic.h>

enum { ESP__LABEL_MAX = 104, ESP__LABELS_MIN = 1024, ESP__LABELS_MAX = 65536, ESP__TRACE_MAGIC = 0x54505345 };

/* The name of an op. It is a copy, because a change of strategy frees the ops. */
typedef struct esp__label {
    atomic_ullong key;
    char text[ESP__LABEL_MAX];
} esp__label;

typedef struct esp__event {
    uint64_t start_ns, end_ns, core_ns, bytes;
    uint32_t label, lane, tensor, step;
} esp__event;

struct esp__trace {
    uint64_t capacity, origin_ns;
    uint32_t n_labels; /* size of the hash table `labels`, a power of two */
    atomic_ullong n;
    esp__event *events;
    esp__label *labels;
    esp__trace_file *file; /* NULL on ranks that write no file */
    /* with ESPRESSO_TRACE=FILE,steps=N every rank writes a file of its own after N steps */
    bool own_file;
    bool done;
    uint64_t steps_left;
    uint64_t push_step, last_push_ns;
};

/* A rank sends this to rank 0 when it closes, then the texts of the labels, then the events. */
typedef struct esp__trace_head {
    uint32_t magic;
    int32_t machine;
    uint64_t origin_ns, n_events, n_dropped;
    int64_t wall_ns; /* time of day minus esp__now_ns */
    uint64_t n_labels;
    uint32_t n_lanes, reserved0;
} esp__trace_head;
#endif
