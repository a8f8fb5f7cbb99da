/* transport.h: the shm transport implements collectives over a shared region of memory, for backends loop (threads) and
 * shm (processes), which create the region. A communicator ("comm") is one group of ranks. */
#ifndef SHM_TRANSPORT_H
#define SHM_TRANSPORT_H
#include "backends/common/common.h"
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The data are divided into one part for each rank, and the parts into chunks: chunk i holds bytes [i width, (i+1)
 * width) of every part. In the shared memory each rank has a window of several cells, with room for one chunk each.
 * A chunk takes up to three steps:
 *     put   copies inputs into this rank's window (not needed if others can read this rank's buffers)
 *     sum   adds a chunk of all ranks' inputs, in rank order
 *     get   copies a chunk of another rank's input or result to dst
 * Each rank publishes how many chunks it has put, summed and finished since the communicator opened. Chunk x uses
 * cell x % cells, after all ranks have finished chunk x - cells. Only the rank itself writes its counters, so a rank
 * that dies leaves nothing locked. */
enum {
    SHM_CELL = 512 * 1024,    /* bytes of shared memory for one chunk */
    SHM_CHUNK = 256 * 1024,   /* bytes of the longest chunk */
    SHM_SUMS = 2 * SHM_CHUNK, /* bytes of a chunk of f16 or bf16 as f32 */
    SHM_BUDGET = 1 << 20,
    SHM_STAMPS = 64,
    SHM_AHEAD = 8,
    SHM_QUEUE = 64,
    SHM_CALLS = 8,
    SHM_PHASES = 16,
    SHM_LINK_MAX = 256,
    SHM_NICS = 2, /* NICs per rank: its machine's and its rack's */
    SHM_LOCAL_NAME = 40
};

/* What a rank publishes in shared memory. Only that rank writes it. */
typedef struct shm_published {
    uint64_t put, sum, got;
    uint64_t src, dst; /* addresses of its buffers in its own process */
    uint64_t start_ns;
    uint32_t reading; /* nonzero while it reads a peer's buffer */
    uint32_t failed;  /* 0, or -status after an error: then src and dst may be freed */
    uint64_t reserved0;
    uint64_t call[SHM_CALLS];
    uint64_t stamp[SHM_STAMPS]; /* when a chunk was summed, on the emulated clock */
} shm_published;

/* How a rank's thread waits. Peers wake it accordingly. */
enum {
    SHM_AWAKE = 0,
    SHM_ASLEEP, /* waits in progress(), on a futex at `word` */
    SHM_POLLED  /* may be in poll(), on a socket (wait.c) */
};
/* A doorbell wakes one rank's thread. It is in memory that all ranks of the job share. */
typedef struct shm_doorbell {
    uint32_t word, asleep;
    char socket[SHM_LOCAL_NAME];
    uint64_t reserved0[2];
} shm_doorbell;
/* The emulated NIC of a machine, or the uplink of a rack: until when it is busy with sending and receiving. */
typedef struct shm_nic {
    uint64_t tx_free_ns, rx_free_ns;
    uint64_t reserved0[6];
} shm_nic;

/* The start of a shared region. doorbells[n], nics[SHM_NICS][n], published[n] and the memory for chunks follow it. */
typedef struct shm_head {
    uint32_t refs;
    uint32_t broken; /* 1 + the first rank that failed, or 0 */
    uint64_t number; /* random, the same as in rank 0's shm_hello, if a System V segment is the region */
    uint64_t reserved0[6];
} shm_head;

/* What ranks exchange when a communicator opens, before they share memory. */
typedef struct shm_hello {
    int32_t status;
    int32_t pid, job_rank;
    uint32_t params;
    uint64_t address;
    char socket[SHM_LOCAL_NAME];
    uint64_t opened_ns;
    uint64_t number; /* on rank 0: that of the region, if `segment` is one */
    int32_t segment; /* on rank 0: the System V segment, or -1 if the region is a memfd */
    int32_t reserved0;
} shm_hello;

/* The slowest emulated link between this communicator's ranks. */
typedef struct shm_pace {
    double ns_per_byte;
    uint64_t latency_ns;
    bool on; /* this communicator's data pass an emulated link */
} shm_pace;

/* A link's rate and latency from time opened_ns + from_ns on. */
typedef struct shm_phase {
    double ns_per_byte;
    uint64_t latency_ns, from_ns;
} shm_phase;
/* An emulated link: rates and latencies, each from a time on, or a file that is read again and again. */
typedef struct shm_link {
    shm_phase phases[SHM_PHASES];
    int n;
    uint64_t opened_ns, polled_ns;
    char file[SHM_LINK_MAX];
    bool warned;
} shm_link;

/* The emulated links between racks (link.c). */
typedef struct shm_outer {
    bool on;        /* the job has racks */
    shm_nic **nics; /* [size]: the uplink of each rank's rack */
    shm_link link;  /* not emulated if it has no phases */
} shm_outer;

/* The chunks that this rank reads from one other rank over the emulated link, in step sum or get. */
typedef struct shm_flow {
    uint64_t next;
    uint64_t used;
    uint64_t due[SHM_AHEAD];
} shm_flow;

/* The collective that runs now. An item is a number, a row of numbers or a payload. */
typedef struct shm_op {
    esp_coll c;
    uint64_t unit, part;
    uint64_t width, cols; /* bytes per chunk, number of chunks */
    uint64_t base;
    uint64_t per_slot;
    uint64_t put_i, sum_i, get_i;
    int32_t get_k;
    bool in_window;
    bool result_window;
    bool whole;
    bool per_destination;
    bool puts, sums, gets;
    bool gets_result;
    bool stream;
    bool ring, chain; /* runs around a ring or a chain (ring.c) */
    bool begun;
    bool compared; /* all peers run this collective (drive.c) */
    int32_t place, prev, next;
    uint64_t steps, group, lag, slots;
    uint32_t esize;
    float scale;
    backend_reduction sum;
    uint64_t start_ns;
    uint64_t clock_ns;
    uint64_t sum_due_ns, get_due_ns; /* when the copied chunk arrives over the emulated link, or 0 */
    uint64_t end_ns;
} shm_op;

typedef struct shm_req {
    esp_coll c;
    uint64_t start_ns;
    bool used, done;
} shm_req;

/* Shared by all communicators of one rank. Its thread runs all of them, and can sleep for all of them at once. */
typedef struct shm_job {
    struct shm_comm *comms;
    struct shm_comm *owner; /* the communicator of all ranks */
    shm_doorbell *doorbell;
    uint32_t woken; /* wake() was called since the last progress() */
    uint32_t refs;
    bool spin;                              /* each rank has a core, so that spinning is cheap */
    int32_t wait_fd, socket, timer, sender; /* -1 if closed (wait.c) */
} shm_job;

typedef struct shm_comm {
    const esp_host *host;
    const char *name;
    int32_t rank, size;
    shm_job *job;
    struct shm_comm *next;
    shm_head *head;
    shm_published *published;
    uint8_t *windows;
    uint64_t cells;
    uint64_t region_bytes;
    void (*drop_region)(struct shm_comm *m);
    /* arrays with an entry per rank of the group */
    int32_t *job_rank;
    uint8_t *level;
    shm_doorbell **doorbells;
    shm_nic **nics; /* the NIC of its machine */
    uint64_t *used;
    int32_t *ring_rank;
    int32_t *order;
    int32_t machines;
    int32_t *pid;
    shm_hello *hello;
    bool direct;   /* peers can read each other's buffers (threads) */
    shm_pace pace; /* the link at the start, for which collectives are planned */
    shm_link link;
    shm_outer outer;
    shm_flow *flows;
    shm_op op;
    shm_req reqs[SHM_QUEUE];
    uint64_t req_first, req_next;
    uint32_t ready;
    uint64_t columns; /* chunks begun so far */
    uint64_t min_got; /* no peer's `got` is lower than this */
    uint64_t begun;
    uint64_t logical_end_ns;
    uint64_t moved;
    int simd;
    bool must_notify;
    void *sum_acc; /* sums of a chunk, in f32 for f16 and bf16 */
    uint32_t aborted;
    esp_status error;
    int32_t waits_for; /* the peer that this rank waits for, or -1 */
    /* bytes received inside this machine, between machines, and between racks */
    uint64_t level_bytes[ESP_LEVELS];
} shm_comm;

/* ---- addresses and lengths ---- */
/* Returns the offset of rank `p`'s part in the whole buffer, in bytes. */
static inline uint64_t shm_part_at(const shm_op *o, int32_t p) {
    return backend_min((uint64_t)p * o->part, o->c.count) * o->unit;
}
static inline uint64_t shm_piece(const shm_op *o, int32_t p, uint64_t i, uint64_t *at) {
    uint64_t len = shm_part_at(o, p + 1) - shm_part_at(o, p);
    if (o->per_slot) {
        uint64_t slot = i / o->per_slot * o->unit, in = i % o->per_slot * o->width;
        *at = slot + in;
        return slot < len ? backend_min(o->width, o->unit - in) : 0;
    }
    *at = i * o->width;
    return *at < len ? backend_min(o->width, len - *at) : 0;
}
/* Of a payload the first `used` bytes are valid. Returns how many of these are among the `len` bytes from offset
 * `in` on. */
static inline uint64_t shm_used_here(uint64_t used, uint64_t in, uint64_t len) {
    return used > in ? backend_min(len, used - in) : 0;
}
/* Returns the address of chunk `i` in the window of `rank`. Its cell has room for several inputs (for different
 * readers) and a result; `slot` numbers them. */
static inline uint8_t *shm_cell(const shm_comm *m, int32_t rank, uint64_t i, uint64_t slot) {
    uint64_t cell = (m->op.base + i) % m->cells;
    return m->windows + ((uint64_t)rank * m->cells + cell) * SHM_CELL + slot * m->op.width;
}
static inline uint64_t shm_result_slot(const shm_comm *m, const shm_op *o) {
    return !o->in_window ? 0 : o->per_destination ? (uint64_t)m->size : 1;
}
static inline bool shm_crosses_link(const shm_comm *m, int32_t rank) { return m->nics[rank] != m->nics[m->rank]; }
static inline void shm_count(shm_comm *m, int32_t rank, uint64_t bytes) {
    backend_count(&m->level_bytes[m->level[rank] - 1], bytes);
}
static inline int shm_wait_for(shm_comm *m, int32_t rank) { return m->waits_for = rank, 0; }
static inline shm_req *shm_running(shm_comm *m) {
    return m->req_first == m->req_next ? NULL : &m->reqs[m->req_first % SHM_QUEUE];
}
static inline void shm_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* ---- link.c: the emulated link ---- */
/* Parses "RATE[,LATENCY]" and, after each ';', "RATE[,LATENCY]@TIME" with rising times. Returns NULL on success,
 * otherwise a text that names what is expected at *where. */
ESP__FN const char *shm_parse_phases(const char *text, shm_link *l, const char **where);
/* Reads the link's present state from a file's first line. Returns NULL on success, otherwise an error text. */
ESP__FN const char *shm_read_link(const char *path, shm_link *l);
/* Reads the link's file again every 100 ms. While the file is malformed, the link stays as it is. */
ESP__FN void shm_link_poll(shm_comm *m, uint64_t now);
ESP__FN esp_status shm_params(shm_comm *m, const char *params);
/* Sends `bytes`, which are ready at time `from`, over the emulated links from `rank` to this rank. Returns the time
 * at which they have passed the slowest link, without its latency. */
ESP__FN uint64_t shm_transfer(shm_comm *m, int32_t rank, uint64_t from, uint64_t bytes);
ESP__FN uint64_t shm_latency(const shm_comm *m, int32_t rank, uint64_t ns);
/* Returns the lowest rank on the same machine (level 1) or in the same rack (level 2) as rank q. */
ESP__FN int32_t shm_unit(const esp_group *g, uint32_t level, int32_t q);
/* Finds the emulated links between racks: those of `parent` or, if it is NULL, those in `nics`. */
ESP__FN void shm_outer_join(shm_comm *m, const esp_group *g, const shm_comm *parent, shm_nic *nics);

/* ---- plan.c, ring.c: how a collective is cut into chunks, and what each rank copies and adds ---- */
ESP__FN void shm_plan(const shm_comm *m, const esp_coll *c, shm_op *o);
ESP__FN void shm_plan_columns(const shm_comm *m, shm_op *o);
/* Orders ranks so that a ring enters and leaves each machine, and each rack, once. */
ESP__FN void shm_ring_order(shm_comm *m, const esp_group *g);
/* Makes a large collective go around a ring of ranks if there is an emulated link between machines. */
ESP__FN void shm_ring_plan(const shm_comm *m, shm_op *o);
/* Runs a ring. Returns 1 if it moved something, 0 if it must wait, a negative number on an error. */
ESP__FN int shm_ring(shm_comm *m);
ESP__FN int shm_ring_finished(shm_comm *m);

/* ---- move.c: the steps put, sum and get ---- */
ESP__FN void shm_begin(shm_comm *m, uint64_t start_ns);
ESP__FN void shm_flows(shm_comm *m);
ESP__FN int shm_put(shm_comm *m);
ESP__FN int shm_sum(shm_comm *m);
ESP__FN int shm_get(shm_comm *m);
/* Returns true if this rank has finished its steps of the collective, and no other rank still reads its buffers. */
ESP__FN bool shm_finished(shm_comm *m);
/* Returns true if all peers have finished all chunks before number `x`. */
ESP__FN bool shm_all_finished(shm_comm *m, uint64_t x);
/* Logs that `rank` failed, and returns the error with which this rank's collective then fails. */
ESP__FN esp_status shm_peer_failed(shm_comm *m, int32_t rank);

/* ---- drive.c: the collectives of a communicator, in the order in which they were started ---- */
ESP__FN void shm_next(shm_comm *m);
/* Copies and adds until about SHM_BUDGET bytes were moved. Returns 1 if any were, 0 if it must wait, a negative
 * number on an error. */
ESP__FN int shm_drive(shm_comm *m);
/* Calls shm_drive for every communicator of this rank. Returns SHM_MOVED if more may move at once, plus SHM_READY if
 * a finished request waits for its test(). *due receives the earliest time at which data arrive over the emulated
 * link. */
enum { SHM_MOVED = 1, SHM_READY = 2 };
ESP__FN int shm_drive_all(shm_job *j, int *pending, uint64_t *due);
/* Marks the communicator as failed and notifies its peers. Returns its first error. */
ESP__FN esp_status shm_fail(shm_comm *m, esp_status s);

/* ---- wait.c: wakes peers, and waits for them ---- */
/* Wakes sleeping peers after a counter of this rank moved. If that fails, `must_notify` stays set. */
ESP__FN void shm_notify_peers(shm_comm *m);
/* Makes the descriptor of this rank's shm_wait_fd readable, if it is open. */
ESP__FN void shm_notify_self(shm_job *j);
ESP__FN void shm_publish_failure(shm_comm *m);
ESP__FN esp_status shm_progress(void *comm, uint64_t timeout_us);
ESP__FN void shm_wake(void *comm);
ESP__FN int32_t shm_wait_fd(void *comm);
ESP__FN void shm_wait_close(shm_job *j);

/* ---- comm.c: opens and closes communicators, starts and tests requests ---- */
ESP__FN esp_status shm_start(void *comm, const esp_coll *c, esp_stream s, void **req);
ESP__FN esp_status shm_test(void *comm, void *req);
ESP__FN esp_status shm_abort(void *comm);
ESP__FN int32_t shm_straggler(void *comm, void *req);
ESP__FN esp_status shm_traffic(void *comm, esp_traffic *out);
ESP__FN void shm_close(void *comm);
typedef esp_status (*shm_rendezvous)(shm_comm *m, const esp_group *g, esp_status so_far, const char *params);
/* Allocates a communicator and reads its parameters. In `rendezvous`, the ranks get their shared memory. */
ESP__FN esp_status shm_transport_open(const esp_host *h, const esp_group *g, const char *name, const char *params,
                                      shm_rendezvous rendezvous, void **comm);
ESP__FN shm_hello shm_hello_of(const shm_comm *m, const esp_group *g, esp_status so_far, const char *params);
/* Exchanges a shm_hello with every rank, and returns the same status on all of them. If the exchange itself fails,
 * m->pid[0] stays 0, and other ranks may have succeeded. */
ESP__FN esp_status shm_exchange(shm_comm *m, const esp_group *g, const shm_hello *mine);
ESP__FN esp_status shm_same_params(shm_comm *m);
ESP__FN uint64_t shm_region_bytes(int32_t n);
/* Finds the places of the communicator's arrays in `region`, shared memory that must be zeroed. */
ESP__FN esp_status shm_join(shm_comm *m, const esp_group *g, void *region);

/* Defines the table of backend `id`, which has the functions id_probe and id_comm_open. */
#define SHM_BACKEND(id, text, parameters)                                                                              \
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
        .close = shm_close,                                                                                            \
        .start = shm_start,                                                                                            \
        .test = shm_test,                                                                                              \
        .progress = shm_progress,                                                                                      \
        .wake = shm_wake,                                                                                              \
        .wait_fd = shm_wait_fd,                                                                                        \
        .abort = shm_abort,                                                                                            \
        .straggler = shm_straggler,                                                                                    \
        .traffic = shm_traffic,                                                                                        \
    };                                                                                                                 \
    ESP_PLUGIN_BACKEND(id, &id##_backend)

/* ---- shm_memory.c: local sockets, and memory that several processes share ---- */
ESP__FN socklen_t shm_local_address(const char *name, struct sockaddr_un *a);
ESP__FN uint64_t shm_local_random(void);
/* Closes a descriptor but keeps errno, for use after an error. */
ESP__FN void shm_local_close(int fd);
ESP__FN int shm_local_bound(int type, char name[SHM_LOCAL_NAME]);
/* Returns true if this system can fix the size of a memfd. */
ESP__FN bool shm_has_seals(void);
/* Returns the descriptor of zeroed memory, or -1 with errno, which is EFBIG beyond the limit on file sizes. */
ESP__FN int shm_create(uint64_t bytes);
/* Returns a zeroed System V segment that is attached and vanishes with its last process, or NULL with errno. */
ESP__FN void *shm_segment_create(uint64_t bytes, int *segment);
/* Attaches the segment, of `bytes` bytes with `number` in its shm_head, or returns NULL with *why. */
ESP__FN void *shm_segment_attach(int segment, uint64_t bytes, uint64_t number, const char **why);
ESP__FN int shm_listen(char name[SHM_LOCAL_NAME], int backlog);
ESP__FN int shm_connect(const char *name, const char **why);
/* Sends `fd` over all pending connections, and does not wait for more: a rank that has not connected by now has died,
 * as the ranks' next exchange will show. Returns 0, or -1 with errno. */
ESP__FN int shm_send_to_all(int listener, int fd);
ESP__FN int shm_receive_fd(int s);
ESP__FN int shm_receive_memory(int s, uint64_t bytes, const char **why);
#endif
