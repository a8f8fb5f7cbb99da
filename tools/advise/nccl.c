/* nccl.c: reads what NCCL's profiler plugins write, a JSON object for each collective: those of our plugin
 * (backends/nccl_profiler) and of NVIDIA's NCCL Inspector. They tell the sizes and order of collectives and the time
 * from step to step. Inspector tells how long collectives took, too. */
#include "tools/advise/advise.h"

typedef struct nccl_coll {
    double begin, time, bytes; /* time: 0 if unknown; bytes: of the whole buffer that is reduced */
    uint64_t key;              /* two collectives of different function or size have different keys */
    size_t comm;
    bool reduces, f32;
} nccl_coll;
/* A communicator, as one of its ranks. */
typedef struct nccl_comm {
    char id[32];
    json_int_t rank;
    uint32_t ranks, nodes;
    double reduced, f32; /* bytes of all AllReduces and ReduceScatters, and of those of float32 */
} nccl_comm;
typedef struct nccl_file {
    nccl_coll *at;
    nccl_comm *comms;
    json_t *header; /* Inspector, version 4.3: the communicator of the lines that follow */
    size_t n, n_comms, room;
} nccl_file;

static double nccl_number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static size_t nccl_comm_of(nccl_file *f, const json_t *o, const char *id, const char *ranks, const char *nodes) {
    nccl_comm c = {.rank = json_integer_value(json_object_get(o, "rank")),
                   .ranks = (uint32_t)json_integer_value(json_object_get(o, ranks)),
                   .nodes = (uint32_t)json_integer_value(json_object_get(o, nodes))};
    snprintf(c.id, sizeof c.id, "%s", advise_text(o, id));
    for (size_t i = 0; i < f->n_comms; i++)
        if (f->comms[i].rank == c.rank && strcmp(f->comms[i].id, c.id) == 0) return i;
    f->comms = tool_realloc(f->comms, (f->n_comms + 1) * sizeof c);
    f->comms[f->n_comms] = c;
    return f->n_comms++;
}

/* Adds the collective that a line describes, if it does. */
static void nccl_add(nccl_file *f, json_t *line) {
    json_t *header = json_object_get(line, "header");
    const json_t *inspected = json_object_get(line, "coll_perf"), *times = json_object_get(inspected, "event_trace_ts");
    nccl_coll x = {.f32 = true};
    if (json_object_get(line, "dump_stats")) json_decref(f->header), f->header = json_incref(header);
    if (!header) header = f->header;
    if (inspected) {
        const json_t *kernel = json_array_get(json_object_get(times, "kernel_events"), 0);
        x.begin = nccl_number(kernel, "kernel_start_ts");
        if (!(x.begin > 0)) x.begin = nccl_number(times, "coll_start_ts");
        x.time = nccl_number(inspected, "coll_exec_time_us");
        x.bytes = nccl_number(inspected, "coll_msg_size_bytes");
        x.comm = nccl_comm_of(f, header, "id", "n_ranks", "nnodes");
    } else if (strcmp(advise_text(line, "event"), "collective") == 0) { /* others are the calls of the same ones */
        x.f32 = strcmp(advise_text(line, "datatype"), "ncclFloat32") == 0;
        x.begin = nccl_number(line, "start_us");
        x.bytes = nccl_number(line, "count") * (x.f32 ? 4 : 2);
        x.comm = nccl_comm_of(f, line, "comm", "ranks", "nodes");
    } else {
        return;
    }
    if (!(x.bytes >= 4 && x.bytes < 1e15)) return; /* of no element, or no size */
    nccl_comm *c = &f->comms[x.comm];
    const char *func = inspected ? advise_text(inspected, "coll") : advise_text(line, "func");
    const bool scatters = strcmp(func, "ReduceScatter") == 0;
    x.reduces = scatters || strcmp(func, "AllReduce") == 0;
    x.key = (uint64_t)x.bytes << 2 | (uint64_t)(x.reduces ? 1 + scatters : 0);
    if (scatters) x.bytes *= c->ranks; /* NCCL's count is that of a rank's result */
    if (x.reduces) c->reduced += x.bytes, c->f32 += x.f32 ? x.bytes : 0;
    if (f->n == f->room) f->at = tool_realloc(f->at, (f->room = 2 * f->room + 1024) * sizeof *f->at);
    f->at[f->n++] = x;
}

/* Finds the shortest sequence that repeats over more than half of the collectives: the steps, without those at first,
 * which differ, and without what follows the training. Returns its length, or 0. Keeps only the collectives where it
 * repeats. */
static size_t nccl_period(nccl_file *f) {
    const nccl_coll *at = f->at;
    for (size_t p = 1; p <= f->n / 3; p++) {
        size_t run = 0, longest = 0, end = 0;
        for (size_t i = f->n; i-- > p;) {
            run = at[i].key == at[i - p].key ? run + 1 : 0;
            if (run > longest) longest = run, end = i + run;
        }
        if (longest < 2 * p || 2 * (longest + p) <= f->n) continue;
        f->n = longest + p;
        memmove(f->at, f->at + end - f->n, f->n * sizeof *f->at);
        return p;
    }
    return 0;
}

/* A step begins after the longest pause, that of the optimizer and of the forward pass. Drops what precedes the first
 * one. */
static void nccl_align(nccl_file *f, size_t p) {
    double longest = 0;
    size_t first = 0;
    for (size_t q = 1; q <= p; q++) {
        double pause = 0;
        for (size_t i = q; i < f->n - p; i += p) pause += f->at[i].begin - f->at[i - 1].begin - f->at[i - 1].time;
        if (pause > longest) longest = pause, first = q % p;
    }
    f->n -= first;
    memmove(f->at, f->at + first, f->n * sizeof *f->at);
}

/* Sets the trace's step and gradients from n steps of p collectives each. */
static void nccl_steps(const nccl_file *f, size_t p, advise_trace *t) {
    const size_t n = (f->n - 1) / p; /* each with the begin of the next one */
    double *v = tool_realloc(NULL, n * sizeof *v);
    t->n_steps = n;
    for (size_t k = 0; k < n; k++) v[k] = f->at[(k + 1) * p].begin - f->at[k * p].begin;
    advise_step_times(t, v, n);
    free(v);
    t->bursts = tool_realloc(NULL, n * p * sizeof *t->bursts);
    for (size_t i = 0; i < n * p; i++) {
        const nccl_coll *x = &f->at[i];
        if (!x->reduces || !x->f32) continue;
        if (x->time > 0) t->bursts[t->n_bursts++] = (advise_burst){x->bytes, x->time};
        if (i >= p) continue;
        json_t *args = json_pack("{s:f}", "In msg nelems", x->bytes / 4);
        json_array_append_new(t->root, args);
        advise_add(t, ADVISE_GRAD, (advise_span){x->begin, x->begin, args});
        t->elements += x->bytes / 4;
    }
    t->n_grads = t->of[ADVISE_GRAD].n;
    t->grad = tool_zeroed(t->n_grads * sizeof *t->grad);
    t->bucket = tool_realloc(NULL, t->n_grads * sizeof *t->bucket);
    for (size_t i = 0; i < t->n_grads; i++) t->bucket[i] = 1;
}

/* Sets the trace from a file's collectives: those of the communicator that reduces the most bytes. Returns NULL, or
 * what is wrong. */
static const char *nccl_read(nccl_file *f, advise_trace *t) {
    enum { LATEST = 20000 }; /* more tell no more */
    size_t n = 0, most = 0;
    if (!f->n) return "it has no collectives";
    for (size_t i = 1; i < f->n_comms; i++)
        if (f->comms[i].reduced > f->comms[most].reduced) most = i;
    const nccl_comm *c = &f->comms[most];
    for (size_t i = 0; i < f->n; i++)
        if (f->at[i].comm == most) f->at[n++] = f->at[i];
    f->n = n;
    t->rank = (uint32_t)c->rank, t->world = c->ranks, t->nodes = c->nodes;
    json_t *id = json_string(c->id);
    json_array_append_new(t->root, id);
    t->comm = json_string_value(id);
    if (!(c->reduced > 0))
        return "it has no gradients: no AllReduce, and no ReduceScatter among a known number of ranks";
    if (2 * c->f32 < c->reduced) return "its gradients are not float32, and the planner knows no others";
    qsort(f->at, n, sizeof *f->at, advise_ascending);
    if (n > 1 && !(f->at[n - 1].begin > f->at[0].begin))
        return "it has no times, from which the step would follow: record it with NCCL_INSPECTOR_DUMP_VERBOSE=1";
    if (n > LATEST) memmove(f->at, f->at + n - LATEST, LATEST * sizeof *f->at), f->n = LATEST;
    const size_t p = nccl_period(f);
    if (!p) return "its collectives do not repeat from step to step: record more steps, and without other work";
    nccl_align(f, p);
    nccl_steps(f, p, t);
    return t->n_grads ? NULL : "its steps have no AllReduce or ReduceScatter of float32";
}

ESP__FN int advise_nccl(const tool_command *c, const char *text, size_t len, advise_trace *t) {
    static const char blank[] = " \t\r\n";
    nccl_file f = {0};
    json_error_t e;
    int status = TOOL_OK;
    json_decref(t->root);
    t->root = json_array();
    t->backend = "nccl";
    for (size_t at = strspn(text, blank); status == TOOL_OK && at < len; at += strspn(text + at, blank)) {
        json_t *line = json_loadb(text + at, len - at, JSON_DISABLE_EOF_CHECK, &e);
        if (line) {
            nccl_add(&f, line);
            json_decref(line);
            at += (size_t)e.position;
        } else if (json_error_code(&e) == json_error_premature_end_of_input) {
            fprintf(stderr, "espresso advise: warning: %s ends in the middle of a collective, which is left out\n",
                    t->path);
            at = len;
        } else {
            status = tool_fail(c, "%s: what follows collective %zu is not JSON: %s", t->path, f.n, e.text);
        }
    }
    const char *why = status == TOOL_OK ? nccl_read(&f, t) : NULL;
    if (why) status = tool_fail(c, "%s: %s", t->path, why);
    json_decref(f.header);
    free(f.comms);
    free(f.at);
    return status;
}
