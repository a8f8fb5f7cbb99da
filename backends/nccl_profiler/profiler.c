/* profiler.c: libnccl-profiler-espresso.so, a plugin for NCCL's profiler interface, which records the collectives of a
 * job that does not know this library:
 *
 *     NCCL_PROFILER_PLUGIN=espresso LD_LIBRARY_PATH=/usr/local/lib torchrun ... train.py
 *
 * Each process writes espresso-nccl.PID.jsonl in the folder ESPRESSO_NCCL_TRACE (the current one if not set), a line
 * for each collective: communicator, rank, function, element count, datatype, and when its call began and NCCL had
 * enqueued it, in microseconds of the monotonic clock. `espresso advise` reads it.
 *
 * NCCL 2.26 and newer look for ncclProfiler_v3 to _v7 and take the newest that they know. Only the members that are
 * read here are declared; the offsets are those of NVIDIA's headers. Forks of NCCL have other layouts of v7: this
 * version accepts it only from NCCL 2.32 or newer, and v3 to v6 from 2.26 or newer. The events asked for are
 * collectives and their calls, which cost nothing on the GPU; kernel events would cost 4 to 13% (NCCL issue 2355). */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PROFILE_COLL = 1 << 1, PROFILE_COLL_API = 1 << 9 };
enum { NCCL_OK = 0, NCCL_SYSTEM_ERROR = 2 };
typedef void (*log_fn)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* What begins each event's description: until v4, its type has one byte. */
typedef struct old_event {
    uint8_t type;
    void *parent;
    int rank;
} old_event;
typedef struct new_event {
    uint64_t type;
    void *parent;
    int rank;
} new_event;
/* A collective, in v3, in v4, and since v5. */
typedef struct coll {
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype;
} coll;
typedef struct coll_v3 {
    old_event event;
    const char *comm_name;
    uint64_t comm_hash;
    coll coll;
} coll_v3;
typedef struct coll_v4 {
    old_event event;
    coll coll;
} coll_v4;
typedef struct coll_v5 {
    new_event event;
    coll coll;
} coll_v5;
/* The call of a collective, since v5. */
typedef struct coll_api_v5 {
    new_event event;
    const char *func;
    size_t count;
    const char *datatype;
    int root;
} coll_api_v5;

/* A communicator, for which NCCL keeps a context. */
typedef struct comm {
    uint64_t hash;
    int rank, ranks, nodes;
} comm;
/* A recorded event: a line of the file. Strings are NCCL's constants. */
typedef struct record {
    comm of;
    const char *func, *datatype;
    uint64_t seq;
    size_t count;
    double start_us, stop_us; /* stop_us: 0 until the event stops */
    int api;
} record;

/* Records are written when the file's buffer is full, and when the last communicator is finalized or the process ends.
 */
enum { RECORDS = 8192 };
static struct {
    pthread_mutex_t lock;
    FILE *file;
    record at[RECORDS];
    int n, comms;
    int full; /* stop of events that were written without it */
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Writes all records, and forgets them. Called with the lock held. */
static void trace_write(void) {
    for (int i = 0; i < trace.n; i++) {
        const record *r = &trace.at[i];
        fprintf(trace.file,
                "{\"comm\": \"%llx\", \"rank\": %d, \"ranks\": %d, \"nodes\": %d, \"event\": \"%s\", \"func\": \"%s\", "
                "\"seq\": %llu, \"count\": %zu, \"datatype\": \"%s\", \"start_us\": %.1f, \"stop_us\": %.1f}\n",
                (unsigned long long)r->of.hash, r->of.rank, r->of.ranks, r->of.nodes, r->api ? "call" : "collective",
                r->func, (unsigned long long)r->seq, r->count, r->datatype, r->start_us, r->stop_us);
    }
    fflush(trace.file);
    trace.n = 0;
    trace.full++;
}

static void trace_at_exit(void) {
    pthread_mutex_lock(&trace.lock);
    if (trace.file) trace_write();
    pthread_mutex_unlock(&trace.lock);
}

/* Opens the file if it is not open. Called with the lock held. */
static int trace_open(void) {
    const char *folder = getenv("ESPRESSO_NCCL_TRACE");
    char path[4096];
    if (trace.file) return NCCL_OK;
    snprintf(path, sizeof path, "%s/espresso-nccl.%d.jsonl", folder && *folder ? folder : ".", (int)getpid());
    trace.file = fopen(path, "w");
    if (!trace.file) {
        fprintf(stderr, "espresso: the NCCL profiler cannot write %s: set ESPRESSO_NCCL_TRACE to a folder: ", path);
        perror(NULL);
        return NCCL_SYSTEM_ERROR;
    }
    atexit(trace_at_exit);
    return NCCL_OK;
}

/* Returns whether the NCCL in this process is known to use this version of the interface as its headers say. */
static int known(int interface) {
    int (*get_version)(int *) = NULL;
    int version = 0;
    void *const symbol = dlsym(RTLD_DEFAULT, "ncclGetVersion");
    memcpy(&get_version, &symbol, sizeof get_version);
    if (!get_version || get_version(&version)) return interface < 7; /* NCCL is linked statically */
    const int least = interface < 7 ? 22600 : 23200;
    if (version >= least) return 1;
    fprintf(stderr,
            "espresso: the NCCL profiler records nothing: this NCCL (version code %d) asks for interface v%d, which "
            "NVIDIA's has since %d\n",
            version, interface, least);
    return 0;
}

static int begin(void **context, int *mask, int interface, comm of) {
    *context = NULL;
    *mask = 0;
    if (!known(interface)) return NCCL_OK;
    comm *const c = malloc(sizeof *c);
    if (!c) return NCCL_SYSTEM_ERROR;
    *c = of;
    pthread_mutex_lock(&trace.lock);
    const int error = trace_open();
    trace.comms += !error;
    pthread_mutex_unlock(&trace.lock);
    if (error) return free(c), error;
    *context = c;
    *mask = PROFILE_COLL | (interface >= 5 ? PROFILE_COLL_API : 0);
    return NCCL_OK;
}

/* A handle is the record's index, with the number of writes before it, so that a late stop finds no other record. */
static void *handle_of(int index) { return (void *)((uintptr_t)trace.full * RECORDS + (uintptr_t)index + 1); }

static int start(const comm *c, void **handle, int api, int rank, uint64_t hash, const coll *x) {
    *handle = NULL;
    if (!c) return NCCL_OK;
    pthread_mutex_lock(&trace.lock);
    if (trace.n == RECORDS) trace_write();
    record *const r = &trace.at[trace.n];
    *r = (record){*c, x->func ? x->func : "", x->datatype ? x->datatype : "", x->seq, x->count, now_us(), 0, api};
    if (hash) r->of.hash = hash, r->of.rank = rank; /* v3 says so only here */
    *handle = handle_of(trace.n++);
    pthread_mutex_unlock(&trace.lock);
    return NCCL_OK;
}

static int start_v3(void *context, void **handle, coll_v3 *d) {
    *handle = NULL;
    if (d->event.type != PROFILE_COLL) return NCCL_OK;
    return start(context, handle, 0, d->event.rank, d->comm_hash, &d->coll);
}
static int start_v4(void *context, void **handle, coll_v4 *d) {
    *handle = NULL;
    if (d->event.type != PROFILE_COLL) return NCCL_OK;
    return start(context, handle, 0, d->event.rank, 0, &d->coll);
}
static int start_v5(void *context, void **handle, coll_v5 *d) {
    const coll_api_v5 *const api = (const void *)d;
    *handle = NULL;
    if (d->event.type == PROFILE_COLL) return start(context, handle, 0, d->event.rank, 0, &d->coll);
    if (d->event.type != PROFILE_COLL_API) return NCCL_OK; /* NCCL also sends the parents of events */
    const coll x = {.func = api->func, .count = api->count, .root = api->root, .datatype = api->datatype};
    return start(context, handle, 1, d->event.rank, 0, &x);
}

static int stop(void *handle) {
    if (!handle) return NCCL_OK;
    pthread_mutex_lock(&trace.lock);
    const uintptr_t at = (uintptr_t)handle - 1;
    if (at / RECORDS == (uintptr_t)trace.full && (int)(at % RECORDS) < trace.n)
        trace.at[at % RECORDS].stop_us = now_us();
    pthread_mutex_unlock(&trace.lock);
    return NCCL_OK;
}

static int state(void *handle, int new_state, void *arguments) {
    return (void)handle, (void)new_state, (void)arguments, NCCL_OK;
}

static int end(void *context) {
    if (!context) return NCCL_OK;
    free(context);
    pthread_mutex_lock(&trace.lock);
    if (--trace.comms == 0) trace_write();
    pthread_mutex_unlock(&trace.lock);
    return NCCL_OK;
}

static int init_v3(void **context, int *mask) { return begin(context, mask, 3, (comm){0, -1, 0, 0}); }
static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks, int rank,
                   log_fn log) {
    return (void)name, (void)log, begin(context, mask, 4, (comm){hash, rank, ranks, nodes});
}
/* Since v5 in this order of arguments. */
#define INIT(version)                                                                                                  \
    static int init_v##version(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks,       \
                               int rank, log_fn log) {                                                                 \
        return (void)name, (void)log, begin(context, mask, version, (comm){hash, rank, ranks, nodes});                 \
    }
INIT(5)
INIT(6)
INIT(7)

/* ncclProfiler_vN of NVIDIA's headers. */
#define PROFILER(version, layout)                                                                                      \
    struct profiler_v##version {                                                                                       \
        const char *name;                                                                                              \
        __typeof__(&init_v##version) init;                                                                             \
        __typeof__(&start_v##layout) start;                                                                            \
        int (*stop)(void *);                                                                                           \
        int (*state)(void *, int, void *);                                                                             \
        int (*finalize)(void *);                                                                                       \
    };                                                                                                                 \
    extern const struct profiler_v##version ncclProfiler_v##version;                                                   \
    __attribute__((visibility("default"))) const struct profiler_v##version ncclProfiler_v##version = {                \
        "espresso", init_v##version, start_v##layout, stop, state, end};
PROFILER(3, 3)
PROFILER(4, 4)
PROFILER(5, 5)
PROFILER(6, 5)
PROFILER(7, 5)
