/* p2p.h: collectives made of messages between pairs of ranks, for backends without shared memory. A backend brings a wire: it
 * sends, receives, and says which messages are through. This folder does the rest of the backend table.
 *
 * A collective is cut into columns: column i holds bytes [i width, (i+1) width) of every part. A column has up to two stages:
 *
 *     op              stage 1: to a part's rank    stage 2: a part's rank to those that want it
 *     ALLREDUCE       inputs, summed there         result to all
 *     REDUCE          inputs, summed there         result to the root
 *     REDUCE_SCATTER  inputs, summed there         -
 *     BROADCAST       the root's data              to all but the root
 *     ALLGATHER       -                            input to all
 *     GATHER          -                            input to the root
 *     ALLTOALL        -                            to each rank its part
 *       small sums    whole inputs to all (REDUCE: to the root), which add; no stage 2
 *       BROADCAST of payload slots or little data: stage 2 only, from the root
 *
 * Inputs are added in rank order, as in the backends loop and shm: same bits. A rank's link carries (n-1)/n of the data in each
 * direction and stage, as in a ring. Payload slots travel with their used length: the receiver offers room for a slot.
 *
 * Up to MESH_AHEAD columns are under way, those of later collectives too. They begin and are numbered in the same order on all
 * ranks, so a column's number is in its messages' tag; and so is a hash of what the collective is: where ranks run different ones
 * at the same time, their messages seldom meet (1 in MESH_KINDS), and the wait ends with ESP_E_TIMEOUT instead of a wrong sum.
 */
#ifndef MESH_H
#define MESH_H
#include "backends/common/common.h"
#ifdef __cplusplus
extern "C" {
#endif

enum {
    MESH_QUEUE = 64,         /* requests open at the same time on one comm                                 */
    MESH_AHEAD = 4,          /* columns under way at the same time                                         */
    MESH_WIDE = 512 * 1024,  /* widest column                                                              */
    MESH_NARROW = 32 * 1024, /* a part is not cut into narrower columns                                    */
    MESH_STAGING = 8 << 20,  /* bytes in which a column's inputs arrive, unless MESH_LEAST needs more      */
    MESH_LEAST = 4096,       /* narrowest column of many ranks                                             */
    MESH_SMALL = 64 * 1024,  /* a sum takes one hop while a rank sends no more than this                   */
    MESH_COLUMNS = 2048,     /* numbers of columns before they repeat; 2 tags each                         */
    MESH_KINDS = 256,        /* of collectives, by a hash; MESH_COLUMNS tags each                          */
    MESH_TAGS = 2 * MESH_COLUMNS * MESH_KINDS,
    MESH_MESSAGE = 1 << 30,      /* longest message                                                            */
    MESH_DONE = 64,              /* messages taken from the wire at once                                       */
    MESH_BUDGET_NS = 200 * 1000, /* test() returns after about this time                                       */
    MESH_NAP_LEAST_NS = 20 * 1000,
    MESH_NAP_MOST_NS = 250 * 1000
};

/* How messages travel; a backend's part. A message under way has a place, a number below `places`, which the mesh chooses. Messages
 * of one tag between two ranks arrive in order. Nothing blocks. Functions return 0 or an error, which they have logged. */
typedef struct mesh_wire {
    int (*send)(void *self, uint32_t place, int32_t to, uint32_t tag, const void *p, uint64_t bytes);
    int (*recv)(void *self, uint32_t place, int32_t from, uint32_t tag, void *p, uint64_t room);
    /* Finds messages that are through, at most `most`: their places, and bytes received. Returns how many, or an error. */
    int (*some)(void *self, uint32_t *places, uint64_t *bytes, uint32_t most);
    /* Gives up all messages under way: afterwards none writes into memory of this rank. */
    void (*drop)(void *self);
    void (*close)(void *self, int failed);
} mesh_wire;

typedef struct mesh_req {
    esp_coll c;
    uint64_t unit, part;         /* bytes of an item, items of a part                                       */
    uint64_t width, cols;        /* bytes of a column of a part; columns                                     */
    uint64_t begun, ended;       /* columns that began, that are done                                        */
    uint32_t esize;              /* bytes of a number; 1: payload slots                                      */
    uint32_t kind;               /* below MESH_KINDS: of what must be the same on all ranks                   */
    uint8_t used, done, whole;   /* whole: there is one part, which all ranks have                           */
    uint8_t sums, scatter, gets; /* stage 1 adds; stage 1 is the root's scatter; there is a stage 2          */
    float scale;
    backend_sums how;
} mesh_req;

/* One column under way. */
typedef struct mesh_column {
    mesh_req *r; /* NULL: free */
    uint64_t i, seq;
    uint32_t ins, outs;   /* messages of stage 1 under way, to this rank and from it                          */
    uint32_t gets, gives; /* the same of stage 2                                                              */
    uint8_t summed;       /* stage 1 is over */
    uint8_t *cell;        /* staging: one width for each rank                                                        */
} mesh_column;

/* What a place of the wire carries. */
typedef struct mesh_message {
    uint32_t column, what; /* MESH_* */
    int32_t peer;
} mesh_message;
enum { MESH_FREE, MESH_IN, MESH_OUT, MESH_GET, MESH_GIVE };

struct mesh_comm;
/* Shared by the comms of one job: one thread drives all of them. */
typedef struct mesh_job {
    struct mesh_comm *comms;
    uint32_t refs, woken;
    int32_t timer; /* timerfd: what a thread sleeps on. A wire has no descriptor, so it is looked at after short naps */
    uint64_t nap_ns;
} mesh_job;

typedef struct mesh_comm {
    backend_who who;
    mesh_job *job;
    struct mesh_comm *next;
    const mesh_wire *wire;
    void *self;     /* the wire's */
    uint8_t *level; /* per rank: the outermost level at which its place differs from this rank's             */
    mesh_req reqs[MESH_QUEUE];
    uint64_t first, next_begin,
        next_req; /* oldest request that is not done; that still begins columns; next free one */
    uint64_t seq; /* columns begun                                                    */
    mesh_column columns[MESH_AHEAD];
    uint8_t *staging;
    uint64_t cell_bytes;    /* staging of a column                                                           */
    mesh_message *messages; /* [places] */
    uint32_t *free;         /* free places, a stack */
    uint32_t places, n_free;
    uint32_t ready; /* requests that are done but not yet tested */
    uint32_t aborted;
    esp_status error;
    uint64_t level_bytes[ESP_LEVELS];
    int simd;
} mesh_comm;

/* ---- column.c: a collective in columns, and one column ---- */
/* Cuts a collective into columns. All ranks must make the same plan from the same call. */
ESP__FN void mesh_plan(const mesh_comm *m, const esp_coll *c, mesh_req *r);
/* The widest column whose inputs fit the staging of one. */
ESP__FN uint64_t mesh_widest(int32_t ranks);
/* Begins a column: everything that needs no message of this column first. */
ESP__FN int mesh_begin(mesh_comm *m, mesh_column *x);
/* A message came through. */
ESP__FN int mesh_through(mesh_comm *m, mesh_column *x, const mesh_message *t);
/* Goes on where stage 1 is complete. Returns 1 when the column is done. */
ESP__FN int mesh_go_on(mesh_comm *m, mesh_column *x);

/* ---- comm.c: makes a comm without a wire; the backend table ---- */
ESP__FN esp_status mesh_new(const esp_host *h, const esp_group *g, const char *name, mesh_comm **out);
ESP__FN void mesh_close(void *comm);
ESP__FN esp_status mesh_start(void *comm, const esp_coll *c, esp_stream s, void **req);
ESP__FN esp_status mesh_test(void *comm, void *req);
ESP__FN esp_status mesh_progress(void *comm, uint64_t timeout_us);
ESP__FN void mesh_wake(void *comm);
ESP__FN int32_t mesh_wait_fd(void *comm);
ESP__FN esp_status mesh_abort(void *comm);
ESP__FN int32_t mesh_late(void *comm, void *req);
ESP__FN esp_status mesh_traffic(void *comm, esp_traffic *out);
/* The table of backend `id`: id_probe and id_open are its own; meet_with: how its ranks meet, or NULL. */
#define MESH_TABLE(id, more_caps, text, parameters, meet_with)                                                         \
    {                                                                                                                  \
        .struct_size = sizeof(esp_backend),                                                                            \
        .caps =                                                                                                        \
            ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_VARLEN | ESP_BACKEND_SCALE | ESP_BACKEND_REOPENS | (more_caps),   \
        .colls = BACKEND_COLLS, .devices = ESP_BIT(ESP_CPU), .dtypes = BACKEND_DTYPES, .reduces = BACKEND_REDUCTIONS,  \
        .name = #id, .summary = text, .params = parameters, .probe = id##_probe, .open = id##_open,                    \
        .close = mesh_close, .start = mesh_start, .test = mesh_test, .progress = mesh_progress, .wake = mesh_wake,     \
        .wait_fd = mesh_wait_fd, .abort = mesh_abort, .late = mesh_late, .traffic = mesh_traffic, .meet = meet_with,   \
    }
#ifdef __cplusplus
}
#endif
#endif
