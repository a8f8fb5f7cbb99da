/* transport.h: the streaming engine behind the backends loop and shm. It must not know how ranks meet or where memory
 * comes from: a backend makes the region and says how a peer's buffers are reached (engine_reach).
 *
 * A collective is cut into columns: column i holds bytes [i width, (i+1) width) of every part. Each rank passes
 * columns through three stages. Each stage has a counter that peers read, and takes a column as soon as the column's
 * input is ready:
 *
 *     put   copy inputs into the rank's own window in shared memory (only where peers cannot read the buffer itself)
 *     sum   read one column of every rank's input, add in rank order, write the result
 *     get   read a column of a peer's input or result into dst
 *
 * Counters never go back: a collective of `cols` columns moves each counter from `base` to `base + cols` on every
 * rank. Columns are numbered through all collectives of a comm. Column x uses window cell x % cells, which may be
 * written when every peer has finished column x - cells. A rank writes its own counters only, so a rank that dies
 * leaves nothing locked.
 */
#ifndef ENGINE_H
#define ENGINE_H
#include "backends/common/common.h"
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    ENGINE_CELL = 512 * 1024,  /* bytes of a window for one column: inputs and result                     */
    ENGINE_CHUNK = 256 * 1024, /* widest column (measured: narrower ones cost more in waiting)           */
    ENGINE_BUDGET = 1 << 20,   /* bytes moved by one call of test(): about 0.1 ms                         */
    ENGINE_STAMPS = 64,        /* logical times kept of the last columns                                  */
    ENGINE_AHEAD = 8,          /* columns of a flow on the link at the same time                          */
    ENGINE_QUEUE = 64,         /* requests open at the same time on one comm                              */
    ENGINE_CALLS = 8,          /* collectives that a rank shows: a root may be that many ahead of others  */
    ENGINE_PHASES = 16,        /* changes of a link while a job runs                                      */
    ENGINE_LINK_MAX = 256,     /* characters of a link's description                                      */
    ENGINE_NICS = 2,           /* links that data of a rank may pass: its machine's and its rack's        */
    ENGINE_LOCAL_NAME = 40     /* bytes of a local socket's name                                          */
};

/* How a rank reads a peer's own buffers. */
enum {
    ENGINE_REACH_WINDOW = 0, /* not at all: everything passes through windows                             */
    ENGINE_REACH_POINTER,    /* threads of one process: addresses are valid in all of them                */
    ENGINE_REACH_PULL        /* comm->pull copies from the other process                                  */
};

/* What one rank shows to the others. Only that rank writes it. */
typedef struct engine_line {
    uint64_t put, sum, got; /* columns whose input is ready; whose result is ready; that this rank has finished */
    uint64_t src, dst;      /* addresses in the owner's process                                           */
    uint64_t start_ns;      /* logical time at which the inputs were ready                                */
    uint32_t reading;       /* POINTER only: inside a read                                           */
    uint32_t gone;          /* the user owns the buffers again: the rank failed, with this status times -1 */
    uint64_t reserved0;
    uint64_t call[ENGINE_CALLS];   /* the collectives that the rank began last: see drive.c                */
    uint64_t stamp[ENGINE_STAMPS]; /* logical time at which a column's result was ready                   */
} engine_line;

/* A bell wakes one rank's thread; a nic is the emulated link of one machine, or of one rack. Both lie in the region of the comm of
 * level 0. */
enum {
    ENGINE_AWAKE = 0,
    ENGINE_ASLEEP, /* in progress(): woken through a futex on `word`                                      */
    ENGINE_POLLED  /* its thread may sleep in poll(): see wait.c                                       */
};
typedef struct engine_bell {
    uint32_t word, asleep;
    char socket[ENGINE_LOCAL_NAME]; /* of the rank's wait_fd; written before `asleep` is POLLED               */
    uint64_t reserved0[2];
} engine_bell;
typedef struct engine_nic {
    uint64_t tx_free_ns, rx_free_ns; /* when the link will have sent, received all that it was given      */
    uint64_t reserved0[6];
} engine_nic;

/* Start of a region; bells[n], nics[ENGINE_NICS][n], lines[n] and the windows follow. */
typedef struct engine_head {
    uint32_t refs;   /* loop: comms that still use the memory                                             */
    uint32_t broken; /* rank + 1 of the first rank that gave up a collective                              */
    uint64_t reserved0[7];
} engine_head;

/* What every rank tells the group when a comm opens, before memory is shared. */
typedef struct engine_hello {
    int32_t status; /* of this rank so far: where one rank failed, all give up                          */
    int32_t pid, job_rank;
    uint32_t params;  /* hash of the parameters: must be the same on all ranks                            */
    uint64_t address; /* loop: rank 0's region. shm: a word that peers read to test CMA                   */
    uint64_t secret;  /* shm: the value of that word                                                      */
    char socket[ENGINE_LOCAL_NAME]; /* shm: where rank 0 gives the memory away                            */
    uint64_t opened_ns;             /* the times of a changing link count from rank 0's                   */
} engine_hello;

typedef struct engine_pace {
    double ns_per_byte; /* 0: no limit */
    uint64_t latency_ns;
    int on;
} engine_pace;

/* A link that may change while a job runs: its phases, each in effect from a time on, or a file that holds its
 * present state. */
typedef struct engine_phase {
    double ns_per_byte;
    uint64_t latency_ns, from_ns; /* from_ns: counted from opened_ns                                          */
} engine_phase;
typedef struct engine_link {
    engine_phase phases[ENGINE_PHASES];
    int n;
    uint64_t opened_ns, looked_ns; /* looked_ns: last look at the file                                     */
    char file[ENGINE_LINK_MAX];    /* "": the link has no file                                             */
    int warned;
} engine_link;

/* The racks of a job of three levels: see link.c. */
typedef struct engine_outer {
    bool on;           /* the job has three levels                                           */
    engine_nic **nics; /* [size]: link of the rank's rack                                    */
    engine_link link;  /* n phases 0: not emulated                                           */
} engine_outer;

/* Columns of one peer on their way over the emulated link, for one stage. */
typedef struct engine_flow {
    uint64_t next; /* first column that is not on the link yet                                            */
    uint64_t used; /* used bytes of the payload slot that `next` is in                                    */
    uint64_t due[ENGINE_AHEAD]; /* logical time at which a column arrives                                 */
} engine_flow;

/* The collective that moves now. */
typedef struct engine_op {
    esp_coll c;
    uint64_t unit, part;          /* bytes of an item (a number, a row or a slot), items of a part          */
    uint64_t width, cols, base;   /* bytes of a column; columns; number of the first column in this comm     */
    uint64_t per_slot;            /* columns of one payload slot that is wider than a column, else 0         */
    uint64_t put_i, sum_i, get_i; /* next column of each stage                                            */
    int32_t get_k;                /* next peer of column get_i                                            */
    uint8_t in_window, result_window, whole, by_destination; /* see plan.c                          */
    uint8_t puts, sums, gets, gets_result; /* stages that this rank has; get reads results, not inputs */
    uint8_t stream, ring, chain, begun;    /* ring: see ring.c                       */
    uint8_t compared;                      /* all peers were seen in this collective, or beyond it: see drive.c */
    int32_t place, prev, next;             /* this rank's place in the ring, and its neighbours */
    uint64_t steps, group, lag, slots;     /* of the ring: see ring.c                       */
    uint32_t esize;                        /* bytes of a number */
    float scale;
    backend_sums sum;
    uint64_t start_ns;               /* logical begin                                                     */
    uint64_t clock_ns;               /* logical time at which this rank's link finishes its last piece        */
    uint64_t sum_due_ns, get_due_ns; /* when a moved column may be shown to peers; 0: no column waits      */
    uint64_t end_ns;                 /* logical end so far                                                */
} engine_op;

typedef struct engine_req {
    esp_coll c;
    uint64_t start_ns;
    uint32_t used, done;
} engine_req;

/* Shared by all comms of one rank: its thread drives all of them, and sleeps for all of them together. */
typedef struct engine_job {
    struct engine_comm *comms; /* linked list                                                             */
    struct engine_comm *owner; /* the comm of level 0                                                     */
    engine_bell *bell;         /* this rank's                                                             */
    uint32_t woken;            /* wake() came since the last progress()                                   */
    uint32_t refs;
    int32_t spin; /* the ranks fit the cores, so spinning takes no other rank's time         */
    /* see wait.c; -1: none */
    int32_t wait_fd, socket, timer, sender;
} engine_job;

typedef struct engine_comm {
    const esp_host *host;
    const char *name;
    int32_t rank, size;
    engine_job *job;
    struct engine_comm *next;
    /* the region */
    engine_head *head;
    engine_line *lines;
    uint8_t *windows;
    uint64_t cells; /* cells of a window: how many columns a rank may be ahead of the slowest reader          */
    uint64_t region_bytes;
    void (*drop_region)(struct engine_comm *m);
    /* per rank of the group */
    int32_t *job_rank; /* each rank's number in the job                                                 */
    uint8_t *level;    /* the outermost level at which its place differs from this rank's               */
    engine_bell **bells;
    engine_nic **nics;  /* link of the rank's machine                                                    */
    uint64_t *used;     /* used bytes of the payload slot that is being read from each rank              */
    int32_t *ring_rank; /* the ranks, those of one machine side by side                                  */
    int32_t *order;     /* the ranks in the order of the running ring or chain                                */
    int32_t machines;
    int32_t *pid;
    engine_hello *hello;
    int reach;
    int (*pull)(struct engine_comm *m, int32_t rank, uint64_t address, void *to, uint64_t bytes);
    engine_pace pace; /* the link as it was opened: all ranks plan with it, so their plans agree */
    engine_link link; /* the link as it is now: transfer times follow it                                  */
    engine_outer outer;
    engine_flow *flows; /* [2][size]: for sum, then for get                                     */
    /* the collectives that run */
    engine_op op;
    engine_req reqs[ENGINE_QUEUE];
    uint64_t req_first, req_next; /* the request that runs; the next free one                             */
    uint32_t ready;               /* requests that are done but not yet tested                            */
    uint64_t columns, min_got;    /* columns begun so far; a lower bound of every peer's `got`            */
    uint64_t begun;               /* collectives begun so far                                             */
    uint64_t logical_end_ns;
    uint64_t moved; /* bytes moved in this call                                             */
    int simd;
    int news; /* a counter moved that a sleeping peer may wait for                                        */
    uint8_t *sum_acc, *sum_in; /* room for one column: f32 accumulator; two peers' inputs                 */
    uint64_t scratch_bytes;
    void *scratch;
    uint32_t aborted;
    esp_status error, read_error; /* of the comm; of the last read */
    int32_t waits_for;
    uint64_t level_bytes[ESP_LEVELS]; /* received */
} engine_comm;

/* ---- where things lie: link.c, plan.c ---- */
/* Where part `p` begins in the whole buffer, and its length, in bytes. */
static inline uint64_t engine_part_at(const engine_op *o, int32_t p) {
    return backend_min((uint64_t)p * o->part, o->c.count) * o->unit;
}
/* Column `i` of part `p`: offset from the part's begin, and bytes (0: the part is shorter). */
static inline uint64_t engine_piece(const engine_op *o, int32_t p, uint64_t i, uint64_t *at) {
    uint64_t len = engine_part_at(o, p + 1) - engine_part_at(o, p);
    if (o->per_slot) {
        uint64_t slot = i / o->per_slot * o->unit, in = i % o->per_slot * o->width;
        *at = slot + in;
        return slot < len ? backend_min(o->width, o->unit - in) : 0;
    }
    *at = i * o->width;
    return *at < len ? backend_min(o->width, len - *at) : 0;
}
/* Used bytes of a piece that begins `in` bytes into a slot wider than a column. */
static inline uint64_t engine_used_here(uint64_t used, uint64_t in, uint64_t len) {
    return used > in ? backend_min(len, used - in) : 0;
}
/* Address of an input or of the result in `rank`'s window: the cell of column `i`, and in it number `slot`. */
static inline uint8_t *engine_cell(const engine_comm *m, int32_t rank, uint64_t i, uint64_t slot) {
    uint64_t cell = (m->op.base + i) % m->cells;
    return m->windows + ((uint64_t)rank * m->cells + cell) * ENGINE_CELL + slot * m->op.width;
}
/* How many inputs a column of this rank's window holds; a result lies behind them. */
static inline uint64_t engine_result_slot(const engine_comm *m, const engine_op *o) {
    return !o->in_window ? 0 : o->by_destination ? (uint64_t)m->size : 1;
}
/* Do data from the rank pass an emulated link? */
static inline bool engine_is_far(const engine_comm *m, int32_t rank) { return m->nics[rank] != m->nics[m->rank]; }
static inline void engine_count(engine_comm *m, int32_t rank, uint64_t bytes) {
    m->level_bytes[m->level[rank] - 1] += bytes;
}
static inline int engine_waits(engine_comm *m, int32_t rank) { return m->waits_for = rank, 0; }
static inline engine_req *engine_running(engine_comm *m) {
    return m->req_first == m->req_next ? NULL : &m->reqs[m->req_first % ENGINE_QUEUE];
}
static inline void engine_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* ---- link.c: the emulated link ---- */
/* Reads "RATE[,LATENCY]", and after each ';' "RATE[,LATENCY]@TIME" with rising times. Returns NULL, or what is
 * expected at *where. */
ESP__FN const char *engine_parse_phases(const char *text, engine_link *l, const char **where);
/* Reads the link's present state from the file's first line. Returns NULL, or what is wrong. */
ESP__FN const char *engine_read_link(const char *path, engine_link *l);
/* Reads the file again every 100 ms. While the file is malformed the link stays as it is. */
ESP__FN void engine_link_look(engine_comm *m, uint64_t now);
/* Reads the parameters, which are those of both backends; cma=1, where peers can be pulled from, sets `reach`. */
ESP__FN esp_status engine_params(engine_comm *m, const char *params);
/* Gives `bytes` of `rank`, ready at `from`, to all links between it and this rank. Returns when the last of them is done, without
 * the latency. */
ESP__FN uint64_t engine_transfer(engine_comm *m, int32_t rank, uint64_t from, uint64_t bytes);
/* The latency between the rank and this rank at a logical time: that of the slowest link between them. */
ESP__FN uint64_t engine_latency(const engine_comm *m, int32_t rank, uint64_t ns);
/* The lowest rank in the same unit of `level` (1: machine, 2: rack) as rank q. */
ESP__FN int32_t engine_unit(const esp_group *g, uint32_t level, int32_t q);
/* Finds the links between racks in `nics`, the region's [ENGINE_NICS][size], or the parent's. Then collectives are planned for the
 * slowest link that this group crosses. */
ESP__FN void engine_outer_join(engine_comm *m, const esp_group *g, const engine_comm *parent, engine_nic *nics);

/* ---- plan.c, ring.c: which way a collective takes ---- */
ESP__FN void engine_plan(const engine_comm *m, const esp_coll *c, engine_op *o);
/* Cuts the op into columns. The rest of the plan must be there already. */
ESP__FN void engine_plan_columns(const engine_comm *m, engine_op *o);
/* Orders ranks so that a ring enters and leaves each machine, and each rack, once. */
ESP__FN void engine_ring_order(engine_comm *m, const esp_group *g);
/* Turns a plan into a ring, where the link then carries fewer bytes. */
ESP__FN void engine_ring_plan(const engine_comm *m, engine_op *o);
/* Stages return 1 when they moved something, 0 when they must wait, negative on an error. */
ESP__FN int engine_ring(engine_comm *m);
ESP__FN int engine_ring_finished(engine_comm *m);

/* ---- move.c: the stages ---- */
/* Begins an op that is planned: shows this rank's buffers to the others. */
ESP__FN void engine_begin(engine_comm *m, uint64_t start_ns);
/* Continues what is under way on the link for the running op. Called whenever the comm is driven. */
ESP__FN void engine_flows(engine_comm *m);
ESP__FN int engine_put(engine_comm *m);
ESP__FN int engine_sum(engine_comm *m);
ESP__FN int engine_get(engine_comm *m);
/* 1: this rank's stages of the op are done, and no peer reads its buffers any more. */
ESP__FN int engine_finished(engine_comm *m);
/* 1: all peers have finished all columns before `x`. */
ESP__FN int engine_all_through(engine_comm *m, uint64_t x);
/* The rank gave up: says so. */
ESP__FN esp_status engine_lost(engine_comm *m, int32_t rank);

/* ---- drive.c: the collectives of a comm, in the order in which they were started ---- */
/* Begins the oldest request, unless it moves already. */
ESP__FN void engine_next(engine_comm *m);
/* Moves what can be moved now, at most ENGINE_BUDGET bytes. Returns 1 when it moved something, 0 when not, negative
 * on error. */
ESP__FN int engine_drive(engine_comm *m);
/* Drives every comm of the job. Returns ENGINE_MOVED, where more may move at once, and ENGINE_READY, where a request waits
 * for its test(). *due: the earliest time at which data on the emulated link arrives, so that a comm can go on without a
 * peer. */
enum { ENGINE_MOVED = 1, ENGINE_READY = 2 };
ESP__FN int engine_drive_all(engine_job *j, int *pending, uint64_t *due);
/* The comm is of no use any more, and its peers are told. Returns its first error. */
ESP__FN esp_status engine_fail(engine_comm *m, esp_status s);

/* ---- wait.c: telling peers, and waiting for them ---- */
/* Wakes sleeping peers after a counter of ours moved. `news` stays where a peer could not be told. */
ESP__FN void engine_tell(engine_comm *m);
/* This rank's own descriptor becomes readable, where it has one. */
ESP__FN void engine_poke_self(engine_job *j);
/* This rank gives up a collective that others are in. */
ESP__FN void engine_give_up(engine_comm *m);
ESP__FN esp_status engine_progress(void *comm, uint64_t timeout_us);
ESP__FN void engine_wake(void *comm);
ESP__FN int32_t engine_wait_fd(void *comm);
ESP__FN void engine_wait_close(engine_job *j);

/* ---- comm.c: the rest of the backend table, opening and closing ---- */
ESP__FN esp_status engine_start(void *comm, const esp_coll *c, esp_stream s, void **req);
ESP__FN esp_status engine_test(void *comm, void *req);
ESP__FN esp_status engine_abort(void *comm);
ESP__FN int32_t engine_late(void *comm, void *req);
ESP__FN esp_status engine_traffic(void *comm, esp_traffic *out);
ESP__FN void engine_close(void *comm);
typedef int (*engine_pull)(engine_comm *m, int32_t rank, uint64_t address, void *to, uint64_t bytes);
typedef esp_status (*engine_meet)(engine_comm *m, const esp_group *g, esp_status so_far, const char *params);
/* Makes a comm, reads its parameters, and calls `meet`, by which the ranks get their region: it calls what follows here. */
ESP__FN esp_status engine_open(const esp_host *h, const esp_group *g, const char *name, const char *params,
                               engine_pull pull, engine_meet meet, void **comm);
/* What this rank tells the group; a backend adds its own. */
ESP__FN engine_hello engine_hello_of(const engine_comm *m, const esp_group *g, esp_status so_far, const char *params);
/* Gives every rank's hello to every rank. Returns the same status on all of them, unless the exchange itself fails: then m->pid[0] is
 * still 0, and other ranks may have had it. */
ESP__FN esp_status engine_exchange(engine_comm *m, const esp_group *g, const engine_hello *mine);
/* Fails unless `params` are the same on every rank. */
ESP__FN esp_status engine_same_params(engine_comm *m);
ESP__FN uint64_t engine_region_bytes(int32_t n);
/* Joins the job: lays out the region, finds bells and links. The region is zeroed memory. */
ESP__FN esp_status engine_join(engine_comm *m, const esp_group *g, void *region);

/* The table of backend `id`: id_probe and id_comm_open are its own. */
#define ENGINE_BACKEND(id, text, parameters)                                                                           \
    static const esp_backend id##_backend = {                                                                          \
        .struct_size = sizeof(esp_backend),                                                                            \
        .caps = ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_VARLEN | ESP_BACKEND_SCALE | ESP_BACKEND_PACED |              \
                ESP_BACKEND_REOPENS | ESP_BACKEND_DELIVERS,                                                            \
        .colls = BACKEND_COLLS,                                                                                        \
        .devices = ESP_BIT(ESP_CPU),                                                                                   \
        .dtypes = BACKEND_DTYPES,                                                                                      \
        .reduces = BACKEND_REDUCTIONS,                                                                                 \
        .name = #id,                                                                                                   \
        .summary = text,                                                                                               \
        .params = parameters,                                                                                          \
        .probe = id##_probe,                                                                                           \
        .open = id##_comm_open,                                                                                        \
        .close = engine_close,                                                                                         \
        .start = engine_start,                                                                                         \
        .test = engine_test,                                                                                           \
        .progress = engine_progress,                                                                                   \
        .wake = engine_wake,                                                                                           \
        .wait_fd = engine_wait_fd,                                                                                     \
        .abort = engine_abort,                                                                                         \
        .late = engine_late,                                                                                           \
        .traffic = engine_traffic,                                                                                     \
    };                                                                                                                 \
    ESP_PLUGIN_BACKEND(id, &id##_backend)

/* ---- shm_memory.c: local sockets, and memory that several processes share ---- */
/* Fills the address and returns its length. */
ESP__FN socklen_t engine_local_address(const char *name, struct sockaddr_un *a);
ESP__FN uint64_t engine_local_random(void);
/* close() that keeps errno, for cleaning up after an error */
ESP__FN void engine_local_shut(int fd);
/* A socket with a random `name`. Returns -1 with errno on error. */
ESP__FN int engine_local_bound(int type, char name[ENGINE_LOCAL_NAME]);
/* 1: this system can fix the size of such memory. */
ESP__FN int shm_has_seals(void);
/* Makes memory of `bytes` zeros. Returns its descriptor, or -1 with errno. */
ESP__FN int shm_make(uint64_t bytes);
/* Opens a socket at which others ask for the memory, with a random `name`. Returns -1 with errno on error. */
ESP__FN int shm_listen(char name[ENGINE_LOCAL_NAME], int backlog);
/* Asks for the memory. Returns the connection, or -1 and what is wrong. */
ESP__FN int shm_ask(const char *name, const char **why);
/* Gives `fd` to all that have asked. Waits for nobody: a rank that has not asked has died, and the ranks' next exchange says so.
 * Returns 0, or -1 with errno. */
ESP__FN int shm_give(int listener, int fd);
/* Receives one descriptor. Returns -1 if anything else came. */
ESP__FN int shm_receive(int s);
/* Takes the memory that was given before, which must be of `bytes` bytes. Returns its descriptor, or -1 and what is wrong. */
ESP__FN int shm_take(int s, uint64_t bytes, const char **why);
#endif
