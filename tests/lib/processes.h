/* processes.h runs ranks as processes that may be killed or stopped, and shares memory between them and the test. */
#ifndef TEST_PROCESSES_H
#define TEST_PROCESSES_H
#include "tests/lib/test.h"
#include <sys/syscall.h>

enum { MAX_PROCS = 8, NOBODY = -9 };

typedef struct report {
    atomic_int ready; /* set when the rank has reached the situation under test */
    /* ranks that the library's callbacks have named, or NOBODY */
    atomic_int lost, straggler;
    atomic_int lost_left;
    atomic_uint straggler_tensor;
    atomic_int status; /* result of the call under test; 1 until it returns */
    atomic_ullong noticed_ns, returned_ns, closed_ns;
    atomic_int other; /* for use by a single test */
    char text[1024];
} report;

typedef struct board {
    atomic_int go;
    report rank[MAX_PROCS];
} board;

typedef struct procs {
    int32_t size;
    char root[64];
    board *b;
    pid_t pid[MAX_PROCS];
} procs;

static inline void procs_init(procs *p, int32_t size) {
    memset(p, 0, sizeof *p);
    p->size = size;
    snprintf(p->root, sizeof p->root, "%s", test_root(false));
    p->b = test_shared(sizeof *p->b);
    for (int r = 0; r < MAX_PROCS; r++) {
        atomic_store(&p->b->rank[r].lost, NOBODY);
        atomic_store(&p->b->rank[r].straggler, NOBODY);
        atomic_store(&p->b->rank[r].status, 1);
    }
}

/* Starts rank r: body(p, r) in a child process, which is killed if the test ends. */
static inline void procs_start(procs *p, int32_t r, void (*body)(procs *, int32_t)) {
    p->pid[r] = child_fork(60);
    if (p->pid[r] != 0) return;
    body(p, r);
    fflush(NULL);
    _exit(0);
}

static inline void procs_start_all(procs *p, void (*body)(procs *, int32_t)) {
    for (int32_t r = 0; r < p->size; r++) procs_start(p, r, body);
}

/* Waits until `member` differs from `from` in the reports of all ranks but `except`. Returns 0 if 30 s pass before. */
#define PROCS_AWAIT(p, member, from, except)                                                                           \
    __extension__({                                                                                                    \
        uint64_t end_ = esp__now_ns() + 30000000000u;                                                                  \
        int n_ = 0;                                                                                                    \
        while (n_ < (p)->size && esp__now_ns() < end_) {                                                               \
            n_ = 0;                                                                                                    \
            for (int32_t r_ = 0; r_ < (p)->size; r_++)                                                                 \
                n_ += r_ == (except) || atomic_load(&(p)->b->rank[r_].member) != (from);                               \
            if (n_ < (p)->size) usleep(1000);                                                                          \
        }                                                                                                              \
        n_ == (p)->size;                                                                                               \
    })

static inline void procs_wait(procs *p) {
    for (int32_t r = 0; r < p->size; r++) child_wait(p->pid[r]), p->pid[r] = 0;
}

/* Reaps all ranks. Kills those that have not ended after 20 s, and returns their number. */
static inline int procs_end(procs *p) {
    uint64_t end = esp__now_ns() + 20000000000u;
    int hung = 0;
    for (int32_t r = 0; r < p->size; r++) {
        while (p->pid[r] > 0 && waitpid(p->pid[r], NULL, WNOHANG) == 0) {
            if (esp__now_ns() > end) hung++, kill(p->pid[r], SIGKILL), waitpid(p->pid[r], NULL, 0), p->pid[r] = 0;
            usleep(1000);
        }
    }
    munmap(p->b, sizeof *p->b);
    return hung;
}
#endif
