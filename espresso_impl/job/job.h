/* job.h: who this rank is, who the others are, and how they exchange small messages. Knows nothing of tensors. */
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
/* Copy of cfg with the environment's overrides. Strings point into the environment or the caller's. */
ESP__FN esp_status esp__env_config(const esp_config *cfg, esp_config *out);
/* Warns of variables whose names look like a misspelt ESPRESSO_* (env_names.c). */
ESP__FN void esp__env_check_names(const esp_ctx *ctx);

/* ---- peers.c: meeting, small exchanges, finding out that a peer is gone --------------------------------------- */
typedef struct esp__peers esp__peers;
/* What the peers' watch thread asks of and tells the context. All are called from the watch thread. */
typedef struct esp__peers_events {
    void (*lost)(void *user, int32_t rank, int left); /* died, or (left) closed while others go on; first one only */
    /* The verdict on a timeout: `rank` (-1: unknown) is late for tensor `tensor` (UINT32_MAX: none). */
    void (*late)(void *user, int32_t rank, uint32_t tensor);
    /* What this rank is waiting for right now: 1 and who and what, or 0 when it is not waiting. */
    int (*waiting)(void *user, int32_t *on_rank, uint32_t *tensor);
    void *user;
} esp__peers_events;
/* All ranks meet. Uses cfg->oob_allgather, if given, only to agree on an address. size 1: no socket, no thread. */
ESP__FN esp_status esp__peers_open(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev, esp__peers **out);
/* Says goodbye (so that closing is not taken for death) and frees. Never blocks for long. `bytes` of `farewell`, if
 * any, go to rank 0, which gets every rank's through `collect` (rank by rank; waits at most 5 s for them). */
ESP__FN void esp__peers_close(esp__peers *p, const void *farewell, uint64_t bytes,
                              void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes), void *user);
/* Blocking exchange among the `n` ranks of `members` (NULL: all), which all call it, in the same order for one set of
 * members. out is [n][bytes]. Returns ESP_E_PEER or ESP_E_TIMEOUT with the text set. Any thread but the watch's. */
ESP__FN esp_status esp__peers_allgather(esp__peers *p, const int32_t *members, int32_t n, const void *in, void *out,
                                        uint64_t bytes);
/* 1 if `rank` has said goodbye (not only the first one that did). */
ESP__FN int esp__peers_left(esp__peers *p, int32_t rank);
/* This rank has waited too long, directly for `on_rank` (-1: unknown): asks everybody, and `late` gets the verdict. */
ESP__FN void esp__peers_accuse(esp__peers *p, int32_t on_rank, uint32_t tensor);

/* ---- topology.c ------------------------------------------------------------------------------------------------------------ */
typedef struct esp__topology {
    int32_t size, n_machines;
    int32_t n_local;                /* ranks a machine; 0: they differ (then only the flat tree)          */
    int32_t rank, machine, local;   /* this rank                                                       */
    int32_t *machine_of, *local_of; /* [size]                                                        */
    int32_t *ranks; /* machine-major: ranks[m * n_local + l]; with unequal machines, grouped by machine */
} esp__topology;

/* What this rank leaves behind for rank 0 when it closes, and what rank 0 does with everybody's. */
typedef struct esp__farewell {
    void *data; /* the context's memory */
    uint64_t bytes;
    void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes); /* rank 0, for each other rank */
    void (*done)(void *user);                                                    /* rank 0, at the end         */
    void *user;
} esp__farewell;

/* Who this rank is, who the others are, and how they are reached. From esp_open to esp_close. */
enum { ESP__JOB_ROOM = 16 };
typedef struct esp__job {
    int32_t rank, size;
    esp__peers *peers;
    esp__topology topo;
    const esp_backend *backend;
    void *comms[3]; /* by scope: all, intra, inter */
    void *room;     /* ESP__JOB_ROOM bytes a rank: agreeing needs no memory, so that its want can be agreed on */
    esp__farewell farewell;
} esp__job;
ESP__FN const esp__job *esp__job_of(const esp_ctx *ctx); /* executor/context.c */

/* The members of this rank's group at `level` (ESP_SCOPE as in esp_group), and which of them this rank is. Returns how many. */
ESP__FN int32_t esp__group_members(const esp__topology *p, uint8_t level, int32_t *members, int32_t *index);
/* The rank in the job of member `i` of this rank's group at `level`; -1 for -1. */
ESP__FN int32_t esp__group_rank(const esp_ctx *ctx, uint8_t level, int32_t i);
/* From machine_of: everything else. */
ESP__FN void esp__topology_make(esp__topology *p);

/* ---- agree.c ------------------------------------------------------------------------------------------------------------ */
/* Collective. `lines`: what must be the same on all ranks, a line each; `mine`: this rank's own status so far. If any rank
 * failed, all do; the first line that differs is named with the ranks that differ. Frees the text. */
ESP__FN esp_status esp__agree_lines(esp_ctx *ctx, esp__text *lines, esp_status mine);
/* All ranks learn whether one of them failed. Collective. */
ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine);
#endif
