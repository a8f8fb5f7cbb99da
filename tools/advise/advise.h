/* advise.h: what the source files of `espresso advise` share. Times are in microseconds, as in traces, unless a name
 * ends with _ns. */
#ifndef ESPRESSO_TOOLS_ADVISE_H
#define ESPRESSO_TOOLS_ADVISE_H
#include "tools/plan/plan.h"

/* An event of a trace. `args` says more, such as the shape of its tensor. */
typedef struct advise_span {
    double begin, end;
    const json_t *args;
} advise_span;
/* Kinds of events that are read. All others are ignored. */
enum {
    ADVISE_FORWARD,  /* a forward pass of DistributedDataParallel */
    ADVISE_BACKWARD, /* the function of an operator in the backward pass */
    ADVISE_GRAD,     /* a parameter's gradient is complete */
    ADVISE_BUCKET,   /* DDP starts the all-reduce of a bucket */
    ADVISE_REDUCE,   /* an all-reduce, by gloo or on the GPU */
    ADVISE_UPDATE,   /* a step of the optimizer */
    ADVISE_COPY,     /* a tensor is copied, such as into a bucket */
    ADVISE_SCALING,  /* a tensor is multiplied in place, as SGD with momentum does */
    ADVISE_LAUNCH,   /* the CPU starts a kernel on the GPU */
    ADVISE_KERNEL,   /* a kernel that computes */
    ADVISE_KINDS
};
typedef struct advise_spans {
    advise_span *at; /* in order of `begin`; kernels begin when they are launched */
    size_t n, room;
} advise_spans;

/* A bucket's all-reduce, or several that overlap and share the link. */
typedef struct advise_burst {
    double bytes, time;
} advise_burst;

enum { ADVISE_TORCH, ADVISE_NCCL, ADVISE_INSPECTOR }; /* kinds of files */
/* A trace, and the medians of its steps. Traces of NCCL have no times of computing: grad, forward and backward are 0
 * until links are known. */
typedef struct advise_trace {
    const char *path;
    int kind;
    json_t *root;
    const char *host, *backend, *gpu, *comm; /* NULL if the trace does not say; comm: NCCL's communicator */
    uint32_t rank, world, nodes;             /* world and nodes are 0 if the trace does not say */
    char optimizer[64];
    bool momentum, noisy;
    advise_spans of[ADVISE_KINDS];
    size_t n_grads, n_steps, first_grad; /* first_grad: index of the last step's first gradient in of[ADVISE_GRAD] */
    double *grad;                        /* [n_grads] time from the previous gradient to this one */
    size_t *bucket;                      /* [n_grads] number of gradients in the bucket that begins here, or 0 */
    double elements, forward, backward, update, step; /* elements of all gradients */
    double copied;                                    /* bytes that a core copies in a microsecond; 0 if not known */
    advise_burst *bursts;
    size_t n_bursts;
} advise_trace;

/* Links as the latency of an all-reduce and one rate. */
typedef struct advise_link {
    double latency, bytes_per_us;
    bool latency_measured;
} advise_link;

typedef struct advise_job {
    plan_inputs in;
    const char **paths, *out, *timeline, *optimizer, *gpu;
    advise_trace *traces, *slowest; /* slowest: the rank that computes for the longest time */
    uint32_t n_traces;
    double step;
    advise_link link;
    const char *system_note; /* what was assumed about the machines */
    esp_cost_point points[2][ESP_PLAN_COLLS][2][2];
    /* For NCCL's traces: the model's tensors without time between them, so that nothing overlaps. in.model has those
     * that overlap as much as possible. */
    esp_plan_tensor *apart;
    double reducing; /* all-reduces of a step, in ns */
} advise_job;

extern const tool_command advise_command;

/* Defined in trace.c: */
/* Reads a file. Returns TOOL_OK, or the exit status after it has printed an error. */
ESP__FN int advise_read(const tool_command *c, const char *path, advise_trace *out);
ESP__FN void advise_free(advise_trace *t);
ESP__FN double advise_elements(const advise_span *s, const json_t **dims);
ESP__FN const char *advise_text(const json_t *object, const char *key);
/* Compares structs whose first member is a double, for qsort. */
ESP__FN int advise_ascending(const void *a, const void *b);
ESP__FN void advise_add(advise_trace *t, int kind, advise_span span);
/* Defined in nccl.c: */
ESP__FN int advise_nccl(const tool_command *c, const char *text, size_t len, advise_trace *t);
/* Defined in steps.c: */
/* Sets the trace's step to the median of n times, which are sorted. */
ESP__FN void advise_step_times(advise_trace *t, double *v, size_t n);
ESP__FN int advise_steps(const tool_command *c, advise_trace *t);
/* Defined in inputs.c: */
ESP__FN int advise_inputs(advise_job *j);
/* Defined in answer.c: */
/* Predicts the step as it is: with the trace's buckets, or else those that DDP makes by default. Returns TOOL_OK, or
 * the exit status after it has printed an error. */
ESP__FN int advise_now(const advise_job *j, plan_made *now);
ESP__FN int advise_answer(advise_job *j);
#endif
