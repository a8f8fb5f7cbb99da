/* procs.h: ranks as processes that may be killed or stopped, and a page that they share with the test. For tests. */
#ifndef TEST_PROCS_H
#define TEST_PROCS_H
#include "espresso.h"
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PROCS = 8, NOBODY = -9 };

/* What one rank reports. */
typedef struct report {
    atomic_int ready;      /* in the situation that the test wants to disturb              */
    atomic_int lost, late; /* ranks named by callbacks, or NOBODY                       */
    atomic_int lost_left;
    atomic_uint late_tensor;
    atomic_int status; /* of the call under test; 1: it has not returned               */
    atomic_ullong told_ns, returned_ns, closed_ns;
    atomic_int other; /* whatever a test needs                                        */
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

static inline uint64_t procs_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void procs_sleep_ms(int ms) {
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000l};
    nanosleep(&t, NULL);
}

static inline void procs_init(procs *p, int32_t size) {
    static int serial;
    memset(p, 0, sizeof *p);
    p->size = size;
    snprintf(p->root, sizeof p->root, "unix:test-fault-%d-%d", (int)getpid(), serial++);
    p->b = (board *)mmap(NULL, sizeof *p->b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int r = 0; r < MAX_PROCS; r++) {
        atomic_store(&p->b->rank[r].lost, NOBODY);
        atomic_store(&p->b->rank[r].late, NOBODY);
        atomic_store(&p->b->rank[r].status, 1);
    }
}

/* Starts rank r: body(p, r) in a process of its own, which ends with the test at the latest. */
static inline void procs_start(procs *p, int32_t r, void (*body)(procs *, int32_t)) {
    fflush(NULL);
    p->pid[r] = fork();
    if (p->pid[r] != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    body(p, r);
    fflush(NULL);
    _exit(0); /* not exit(): cmocka's and the sanitizers' work at exit is the parent's */
}

static inline void procs_start_all(procs *p, void (*body)(procs *, int32_t)) {
    for (int32_t r = 0; r < p->size; r++) procs_start(p, r, body);
}

/* Waits until every rank but `but` has set the given member to something else than `from`; 0 after 30 s. */
#define PROCS_AWAIT(p, member, from, but)                                                                              \
    __extension__({                                                                                                    \
        uint64_t end_ = procs_now() + 30000000000u;                                                                    \
        int n_ = 0;                                                                                                    \
        while (n_ < (p)->size && procs_now() < end_) {                                                                 \
            n_ = 0;                                                                                                    \
            for (int32_t r_ = 0; r_ < (p)->size; r_++)                                                                 \
                n_ += r_ == (but) || atomic_load(&(p)->b->rank[r_].member) != (from);                                  \
            if (n_ < (p)->size) procs_sleep_ms(1);                                                                     \
        }                                                                                                              \
        n_ == (p)->size;                                                                                               \
    })

/* Reaps all; returns how many had to be killed because they did not end within 20 s. */
static inline int procs_end(procs *p) {
    uint64_t end = procs_now() + 20000000000u;
    int hung = 0;
    for (int32_t r = 0; r < p->size; r++) {
        while (p->pid[r] > 0 && waitpid(p->pid[r], NULL, WNOHANG) == 0) {
            if (procs_now() > end) hung++, kill(p->pid[r], SIGKILL), waitpid(p->pid[r], NULL, 0), p->pid[r] = 0;
            procs_sleep_ms(1);
        }
    }
    munmap(p->b, sizeof *p->b);
    return hung;
}

static inline int count_files(const char *dir) {
    DIR *d = opendir(dir);
    int n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
#endif
