/* board.h has what the test program and the ranks share in a mapped file: the plan of a job, which is computed from
 * a random seed, and each rank's report. The victim is the rank at which the fault happens. */
#ifndef CHAOS_BOARD_H
#define CHAOS_BOARD_H
#include "espresso.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, TENSORS = 7, STEPS_MAX = 20000, SAVE_STEPS = 2, WARM_STEPS = 3, PATH_ROOM = 200 };
enum { NOT_REPORTED = 1 };

typedef enum kind {
    KILL,
    KILL_OPEN,
    STOP,
    SLOW,
    EXIT,
    MEMORY,
    NO_MEMFD,
    DISK,
    KILL_SAVE,
    ORDER,
    PUSH,
    VERSION,
    CODEC,
    LINK_CUT,
    KINDS
} kind;

typedef enum want {
    WANT_OK,
    WANT_PEER,    /* ESP_E_PEER on all ranks except the victim */
    WANT_TIMEOUT, /* ESP_E_TIMEOUT on all ranks except the victim */
    WANT_DIFFER
} want;

enum {
    TWO_PUSHES,
    WAIT_UNPUSHED,
    STRATEGY_IN_STEP,
    START_TWICE,
    BARRIER_FOR_STEP,
    OTHER_COUNT,
    OTHER_CALL,
    CLOSE_EARLY,
    STRATEGY_ALONE,
    ORDERS
};
enum { ONLY_ONE_PUSHES, ONE_HAS_MORE, ONE_NEVER_PUSHES, PUSHES };                       /* variants of kind PUSH */
enum { OTHER_CODEC, OTHER_OPTION, OTHER_SEED, OTHER_SIZE, OTHER_BACKEND, DIFFERENCES }; /* variants of kind CODEC */
enum { BEFORE_OPEN, BEFORE_START, BEFORE_STRATEGY, MOMENTS };                           /* variants of kind MEMORY */

typedef struct plan {
    kind kind;
    uint64_t seed;
    int32_t victim;
    uint32_t setup, variant;
    uint32_t caller; /* nonzero: compression runs on the program's thread */
    /* When the fault happens: in which step, after how many pushes of the victim, and after which delay. */
    uint32_t step, pushes, delay_us;
    uint32_t amount;
    uint32_t timeout_ms;
    uint32_t steps; /* number of steps, or 0 to train until an error */
    int resume;     /* after SIGSTOP, the victim gets SIGCONT */
} plan;

typedef struct report {
    atomic_int pid, step, ready, resumed;
    atomic_int status; /* status of the call that failed, ESP_OK, or NOT_REPORTED */
    atomic_int pushes;
    atomic_ullong fault_ns, returned_ns, closed_ns;
    atomic_int wrong; /* nonzero after a wrong result, which `why` describes */
    atomic_int again; /* 1 if a second job of the same process succeeded */
    atomic_int ended;
    char text[1400], why[400];
    atomic_ullong saved[2];
    _Atomic uint64_t average[STEPS_MAX];
} report;

typedef struct board {
    plan plan;
    int32_t launched;
    atomic_int go;
    atomic_int survivors; /* a bit for each remaining rank; 0 until known */
    char root[64], folder[PATH_ROOM], backend[128];
    report rank[RANKS];
} board;

static const struct kind_info {
    const char *name, *what;
    int timed;
    int silence; /* ranks notice by the timeout: count time from its end */
} kinds[KINDS] = {
    [KILL] = {"kill", "kill -9 in a step", 1, 0},
    [KILL_OPEN] = {"kill-open", "kill -9 while the job opens", 0, 0},
    [STOP] = {"stop", "SIGSTOP in a step", 1, 1},
    [SLOW] = {"slow", "a rank is slow or stopped for half the timeout", 0, 0},
    [EXIT] = {"exit", "a rank exits without esp_close", 1, 0},
    [MEMORY] = {"memory", "RLIMIT_AS in esp_open, esp_start, esp_strategy_set", 0, 0},
    [NO_MEMFD] = {"no-memfd", "no memfd (seccomp) or no descriptors (RLIMIT_NOFILE)", 0, 0},
    [DISK] = {"disk", "full disk in esp_state_save", 0, 0},
    [KILL_SAVE] = {"kill-save", "kill -9 in esp_state_save (its time includes fsync)", 1, 0},
    [ORDER] = {"order", "calls in the wrong order", 0, 0},
    [PUSH] = {"push", "a tensor that only some ranks push or have", 0, 0},
    [VERSION] = {"version", "another library version on one rank", 0, 0},
    [CODEC] = {"codec", "another codec, option, seed, size or backend on one rank", 0, 0},
    [LINK_CUT] = {"link-cut", "a link is cut for 3 s: needs hosts, so tests/jobs/hosts has it", 0, 0},
};

/* In strategies where `exact` is set, means have no rounding error. */
static const struct setup {
    const char *codec, *option;
    int exact, feedback, flat;
} setups[] = {
    {NULL, "flat.allreduce", 1, 0, 1},
    {NULL, "intra.reduce_scatter > inter.allreduce > intra.allgather", 1, 0, 0},
    {NULL, "flat.reduce_scatter > flat.allgather", 1, 0, 1},
    {"topk:ratio=0.1", "comp@cpu > flat.allgather > decomp@cpu", 0, 1, 1},
    {"topk:ratio=0.1",
     "intra.reduce_scatter > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > decomp@cpu > "
     "intra.allgather",
     0, 1, 0},
    {"efsignsgd", "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather", 0, 1, 0},
    {"dgc:ratio=0.05,momentum=0", "comp@cpu > flat.allgather > decomp@cpu", 0, 1, 1},
    {"int8", "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu", 0, 1, 1},
};
enum { SETUPS = sizeof setups / sizeof *setups };
static const uint64_t tensor_count[TENSORS] = {20000, 1, 4096, 70001, 37, 1000, 30000};

static inline uint32_t below(uint64_t *seed, uint32_t n) { return (uint32_t)(test_random64(seed) >> 33) % n; }
static inline uint64_t hash_bytes(uint64_t h, const void *data, size_t bytes) {
    const uint8_t *at = (const uint8_t *)data;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t w;
        memcpy(&w, at, 8);
        h = (h ^ w) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 32;
    }
    for (; bytes; bytes--, at++) h = (h ^ *at) * 0x100000001b3ull;
    return h;
}
static inline plan plan_make(kind k, uint64_t seed, uint32_t timeout_ms) {
    static const uint32_t refusals[] = {EPERM, ENOSYS, ENOMEM, EMFILE};
    uint64_t s = seed * 64 + (uint64_t)k;
    plan p;
    memset(&p, 0, sizeof p);
    p.kind = k;
    p.seed = seed;
    p.victim = (int32_t)below(&s, RANKS);
    p.setup = below(&s, SETUPS);
    p.caller = below(&s, 2);
    p.step = WARM_STEPS + below(&s, 6);
    p.pushes = below(&s, TENSORS + 1);
    p.delay_us = below(&s, 20000);
    p.timeout_ms = 20000;
    p.variant = below(&s, 1u << 20);
    p.resume = (int)below(&s, 2);
    if (k == STOP) p.timeout_ms = timeout_ms;
    if (k == KILL_OPEN) p.timeout_ms = 2 * timeout_ms, p.delay_us = below(&s, 40000);
    if (k == SLOW) p.timeout_ms = 2 * timeout_ms, p.variant %= 2, p.steps = 15;
    if (k == MEMORY) {
        p.variant %= MOMENTS;
        p.amount = below(&s, p.variant == BEFORE_OPEN ? 48u << 20 : 4u << 20);
        p.steps = 12;
    }
    if (k == NO_MEMFD) {
        p.timeout_ms = 2 * timeout_ms;
        p.variant %= 2;
        p.amount = p.variant ? refusals[below(&s, 4)] : below(&s, 16);
        p.steps = 6;
    }
    if (k == DISK) p.amount = test_random64(&s) >> 40 & 0xffff, p.steps = 10;
    if (k == ORDER) p.variant %= ORDERS, p.steps = 12;
    if (k == PUSH) p.variant %= PUSHES, p.steps = 12;
    if (k == ORDER && (p.variant == STRATEGY_ALONE || p.variant == BARRIER_FOR_STEP)) p.timeout_ms = 2 * timeout_ms;
    if (k == PUSH && p.variant == ONE_NEVER_PUSHES) p.timeout_ms = 2 * timeout_ms;
    if (k == CODEC || k == VERSION) p.steps = 12;
    if (k == CODEC) p.variant %= DIFFERENCES;
    return p;
}

static inline const struct setup *plan_setup(const plan *p) { return &setups[p->setup]; }

static inline want plan_want(const plan *p) {
    switch (p->kind) {
    case STOP: return WANT_TIMEOUT;
    case SLOW:
    case DISK:
    case MEMORY:
    case NO_MEMFD: return WANT_OK;
    case ORDER: return p->variant < BARRIER_FOR_STEP ? WANT_OK : p->variant == CLOSE_EARLY ? WANT_PEER : WANT_DIFFER;
    case PUSH: return p->variant == ONLY_ONE_PUSHES ? WANT_OK : WANT_DIFFER;
    case VERSION:
    case CODEC: return WANT_DIFFER;
    default: return WANT_PEER;
    }
}

static inline board *board_map(const char *path, int create) {
    int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
    board *b = MAP_FAILED;
    if (fd >= 0 && (!create || ftruncate(fd, sizeof(board)) == 0))
        b = (board *)mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    return b == MAP_FAILED ? NULL : b;
}
#endif
