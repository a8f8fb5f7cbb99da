/* job.h: the ranks of the job, their machines, and small messages between them. Knows nothing of tensors. */
#ifndef ESP__JOB_H
#define ESP__JOB_H
#include "espresso_impl/base/base.h"

/* ---- env.c: rank, size, machine and meeting point from the launcher's environment --------------------------- */
typedef struct esp__where {
    int32_t rank, size;
    char machine[ESP__NAME_MAX * 2]; /* ranks with the same text are on one machine: "m<id>" or host name + boot id */
    char root[ESP__SPEC_MAX];        /* "unix:NAME", "HOST:PORT", or "" where size is 1 */
    const char *launcher;            /* "config", "espresso run", "Open MPI", ... for messages */
} esp__where;
ESP__FN esp_status esp__env_where(const esp_config *cfg, esp__where *out);
/* Copies cfg and applies the environment's overrides. Strings point into the environment or are those of cfg. */
ESP__FN esp_status esp__env_config(const esp_config *cfg, esp_config *out);
/* Warns of variables whose names look like a misspelt ESPRESSO_* (env_names.c). */
ESP__FN void esp__env_check_names(const esp_ctx *ctx);

/* ---- peers.c: meeting, small exchanges, and noticing that a peer is gone -------------------------------------- */
typedef struct esp__peers esp__peers;
/* Callbacks into the context. The watch thread calls all of them. */
typedef struct esp__peers_events {
    void (*lost)(void *user, int32_t rank,
                 int left); /* the first rank that died or (left: 1) closed its context early */
    /* A timeout's verdict, on all ranks: `rank` (-1: unknown) is late for tensor `tensor` (UINT32_MAX: none). */
    void (*late)(void *user, int32_t rank, uint32_t tensor);
    /* 1: this rank waits, for rank *on_rank and tensor *tensor. 0: it does not wait. */
    int (*waiting)(void *user, int32_t *on_rank, uint32_t *tensor);
    void *user;
} esp__peers_events;
/* Blocks until all ranks have met. Uses cfg->oob_allgather, if given, only to agree on an address. size 1: no socket, no thread. */
ESP__FN esp_status esp__peers_open(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev, esp__peers **out);
/* Says goodbye, so that the other ranks do not take closing for death, and frees `p`. Sends `bytes` bytes of `farewell`, if any, to
 * rank 0. Rank 0 waits for all farewells, at most 5 s, and hands them to `collect` by rising rank. Other ranks hardly block. */
ESP__FN void esp__peers_close(esp__peers *p, const void *farewell, uint64_t bytes,
                              void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes), void *user);
/* Blocking exchange among the `n` ranks of `members` (NULL: all). Each of them calls it; one set of members makes its exchanges
 * in the same order on all of them. out is [n][bytes]. ESP_E_PEER and ESP_E_TIMEOUT have their text set. From any thread but the
 * watch thread. */
ESP__FN esp_status esp__peers_allgather(esp__peers *p, const int32_t *members, int32_t n, const void *in, void *out,
                                        uint64_t bytes);
/* 1 if `rank` has said goodbye. */
ESP__FN int esp__peers_left(esp__peers *p, int32_t rank);
/* This rank has waited too long for `on_rank` (-1: unknown), which may itself wait for another. Rank 0 asks all ranks, and every
 * rank's `late` callback gets its verdict. */
ESP__FN void esp__peers_accuse(esp__peers *p, int32_t on_rank, uint32_t tensor);

/* ---- topology.c ------------------------------------------------------------------------------------------------------------ */
typedef struct esp__topology {
    int32_t size, n_machines;
    int32_t n_local;                /* ranks on each machine; 0: machines differ, which leaves only the flat tree */
    int32_t rank, machine, local;   /* this rank                                                       */
    int32_t *machine_of, *local_of; /* [size]                                                        */
    int32_t *ranks; /* machine-major: ranks[m * n_local + l]; with unequal machines, grouped by machine */
} esp__topology;

/* What this rank sends to rank 0 when it closes, and what rank 0 does with all ranks' farewells. */
typedef struct esp__farewell {
    void *data; /* the context's memory */
    uint64_t bytes;
    void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes); /* rank 0, for each other rank */
    void (*done)(void *user);                                                    /* rank 0, at the end         */
    void *user;
} esp__farewell;

/* The ranks, and the connections to them. Lives from esp_open to esp_close. */
enum { ESP__JOB_ROOM = 16 };
typedef struct esp__job {
    int32_t rank, size;
    esp__peers *peers;
    esp__topology topo;
    const esp_backend *backend;
    void *comms[3]; /* by level: flat, intra, inter */
    void *room;     /* [size][ESP__JOB_ROOM] bytes, taken early: ranks can agree even when memory is short */
    esp__farewell farewell;
} esp__job;
static inline const esp__job *esp__job_of(const esp_ctx *ctx) { return esp__base_of(ctx)->job; }

/* The ranks of this rank's group at `level` (ESP__FLAT, ESP__INTRA or ESP__INTER), in group order; *index: this rank's place among them.
 * Returns how many they are. */
ESP__FN int32_t esp__group_members(const esp__topology *p, uint8_t level, int32_t *members, int32_t *index);
/* The rank in the job of member `i` of this rank's group at `level`; -1 for -1. */
ESP__FN int32_t esp__group_rank(const esp_ctx *ctx, uint8_t level, int32_t i);
/* Fills everything else from size, rank and machine_of, which numbers machines by first appearance. */
ESP__FN void esp__topology_make(esp__topology *p);

/* ---- agree.c ------------------------------------------------------------------------------------------------------------ */
/* Collective. `lines`: a line for each thing that must be the same on all ranks; frees them. `mine`: this rank's status so far.
 * Fails on all ranks if one failed or a line differs. The error names the first such line and the ranks that differ in it. */
ESP__FN esp_status esp__agree_lines(esp_ctx *ctx, esp__text *lines, esp_status mine);
/* Collective: fails on all ranks if `mine` is an error on one of them. */
ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine);
#endif
