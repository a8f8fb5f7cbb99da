/* job.h: the ranks of the job, their machines, and small messages between them. Knows nothing of tensors. */
#ifndef ESP__JOB_H
#define ESP__JOB_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/levels.h"
#include <stdbool.h>

/* ---- env.c: rank, size, machine and meeting point from the launcher's environment ---- */
enum { ESP__SECRET_MIN = 16 }; /* characters of ESPRESSO_SECRET */
typedef struct esp__where {
    int32_t rank, size;
    /* Ranks with the same text are on one machine: "m<id>", host name and boot id, or a place as "rack1/machine0". */
    char machine[ESP__NAME_MAX * 2];
    /* The address where rank 0 listens, "unix:NAME" or "HOST:PORT". "" where the job has one rank, where the ranks meet
     * by esp_config.oob_allgather or by a backend, and where no address is known (no_root). */
    char root[ESP__SPEC_MAX];
    bool default_root;    /* root is derived from the launcher's job id */
    bool no_root;         /* no address is known */
    bool several_hosts;   /* the launcher runs ranks on several hosts */
    bool by_mpi;          /* ranks of this launcher may use MPI */
    bool explicit_rank;   /* rank, size are the user's, not the launcher's */
    uint32_t n_levels;    /* 2, or 1 + the parts of the place */
    const char *launcher; /* "Open MPI", ... for messages */
    const char *secret;   /* ESPRESSO_SECRET or NULL. Never print it */
} esp__where;
ESP__FN esp_status esp__env_where(const esp_config *cfg, esp__where *out);
/* The error of a job without an address where its ranks can meet. */
ESP__FN esp_status esp__env_no_root(esp_ctx *ctx, const esp__where *w);
/* The emulated links of ESPRESSO_INTER_LINK and ESPRESSO_OUTER_LINK; "" for none. */
typedef struct esp__env_links {
    const char *inter, *outer;
} esp__env_links;
/* Identifies this host and the cores that this process may use: ranks with the same number share their cores. */
ESP__FN uint64_t esp__env_host(void);
ESP__FN esp__env_links esp__env_links_get(void);
/* Copies cfg and applies the environment's overrides. Does not copy strings. */
ESP__FN esp_status esp__env_config(const esp_config *cfg, esp_config *out);
ESP__FN const char *esp__optimizer_name(uint32_t optimizer); /* "adam" */
/* Warns of variables whose names look like a misspelt ESPRESSO_* (env_names.c). */
ESP__FN void esp__env_check_names(const esp_ctx *ctx);

/* ---- connections: rendezvous.c (meeting), exchange.c (allgather), liveness.c (deaths, timeouts, stragglers) ---- */
typedef struct esp__peers esp__peers;
enum { ESP__WAITS_FOR_NOBODY = -2, ESP__ANSWER_NAMES = 4 };
/* A rank's state, which it sends when rank 0 asks for it. Sent between processes, so its members have fixed sizes. */
typedef struct esp__answer {
    int32_t waits_for; /* a rank, -1 (unknown), or ESP__WAITS_FOR_NOBODY */
    uint32_t tensor;   /* of its oldest request, or UINT32_MAX */
    uint64_t step;
    uint64_t waited_ns;                  /* by its trainer so far, or 0 */
    uint32_t started;                    /* 0 before start, after an error, in esp_close */
    uint32_t trainer;                    /* ESP__TRAINER_* */
    uint32_t open;                       /* 1 after the first push of the step */
    uint32_t n_tensors, n_missing;       /* n_missing: not pushed yet */
    uint32_t missing[ESP__ANSWER_NAMES]; /* the first of these */
} esp__answer;
/* Where a trainer is: outside of the library, waiting in a step, or waiting in a call between steps. */
enum { ESP__TRAINER_ELSEWHERE = 0, ESP__TRAINER_IN_STEP, ESP__TRAINER_IN_CALL };

/* Callbacks into the context. The watch thread calls all of them. */
typedef struct esp__peers_events {
    void *user;
    /* Called for the first rank that is lost. left: 0 if it died, 1 if it closed its context early, or the negative
     * status after which it closed. `rank` is this rank where this rank has no memory for messages. */
    void (*lost)(void *user, int32_t rank, int left);
    /* After a timeout, on all ranks: `rank` (-1: unknown) did not arrive at tensor `tensor` (UINT32_MAX: none). */
    void (*decided)(void *user, int32_t rank, uint32_t tensor);
    void (*answer)(void *user, esp__answer *out); /* this rank's state */
    void (*excluded)(void *user);                 /* the others continue without this rank */
} esp__peers_events;
/* Blocks until all ranks have met. Uses cfg->oob_allgather only to agree on an address. One rank needs no thread. */
ESP__FN esp_status esp__peers_open(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev, esp__peers **out);
/* Sets the error that esp__peers_close reports to the other ranks. */
ESP__FN void esp__peers_cause(esp__peers *p, esp_status why);
/* Announces that this rank leaves, so that the others do not take it for dead, and frees `p`. Sends the final message
 * `last` of `bytes` bytes to rank 0. Rank 0 waits at most 5 s for these, and passes them to `collect` in the order of
 * ranks. */
ESP__FN void esp__peers_close(esp__peers *p, const void *last, uint64_t bytes,
                              void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes), void *user);
/* Blocking allgather among the `n` ranks of `members` (NULL: all ranks). Members that exchange several times do so in
 * the same order. out is [n][bytes]. Sets the error text. Not for the watch thread. */
ESP__FN esp_status esp__peers_allgather(esp__peers *p, const int32_t *members, int32_t n, const void *in, void *out,
                                        uint64_t bytes);
ESP__FN bool esp__peers_left(esp__peers *p, int32_t rank);
/* Reports that this rank has waited too long for `on_rank` (-1 if unknown), which may itself wait for another rank.
 * Rank 0 asks all ranks for their state, and every rank's `decided` callback gets the rank that failed. */
ESP__FN void esp__peers_suspect(esp__peers *p, int32_t on_rank, uint32_t tensor);
/* Makes rank 0 ask all ranks for a sign of life. Called esp__peers_lead_ms before a timeout, so that after the timeout
 * a rank that has not answered is known to be silent, and nobody has to wait again. */
ESP__FN void esp__peers_check(esp__peers *p);
static inline uint32_t esp__peers_lead_ms(uint32_t timeout_ms) { return timeout_ms < 2000 ? timeout_ms / 2 : 1000; }
/* Has rank 0 been silent since this rank's esp__peers_check? */
ESP__FN bool esp__peers_hub_silent(esp__peers *p);

/* A rank's state as rank 0 knows it. */
typedef struct esp__rank_state {
    bool connected;
    bool answered;
    bool waits_long; /* it has waited for after_ns or more */
    int kind;        /* for the caller's use */
    esp__answer answer;
} esp__rank_state;
/* Callbacks that report stragglers. The watch thread calls all of them. */
typedef struct esp__report_events {
    uint64_t after_ns; /* report waits of this length */
    void *user;
    /* On rank 0: some rank has waited for long. Called again each time the wait has doubled. */
    void (*report)(void *user, esp__rank_state *ranks, int32_t n, uint64_t waited_ns);
    void (*ended)(void *user, uint64_t waited_ns); /* a reported wait has ended */
    /* On rank 1, which speaks for all: it has waited for long, and rank 0 reports nothing. */
    void (*silent)(void *user, uint64_t waited_ns);
} esp__report_events;
/* Starts the reports, once in a context. After `off` no callback runs. */
ESP__FN void esp__peers_report_on(esp__peers *p, const esp__report_events *ev);
ESP__FN void esp__peers_report_off(esp__peers *p);
/* ESPRESSO_MEMORY_MAX in bytes; 0 for no limit. */
ESP__FN esp_status esp__env_memory_max(uint64_t *bytes);
/* ESPRESSO_STRAGGLER_MS; 0 for no reports. */
ESP__FN esp_status esp__env_straggler(int64_t *ms);

/* ---- regroup.c: the remaining ranks meet again after some ranks died or fell silent ---- */
/* A socket at which this rank listens as long as its context is open, and the addresses of all ranks' sockets. */
typedef struct esp__standby esp__standby;
/* Collective. `number` is random, and the same on all ranks. Succeeds without a socket if a rank cannot listen. */
ESP__FN esp_status esp__standby_open(esp_ctx *ctx, uint64_t number, bool one_host, esp__standby **out);
ESP__FN void esp__standby_close(esp_ctx *ctx, esp__standby *s); /* NULL is fine */
ESP__FN bool esp__standby_ready(const esp__standby *s);         /* can ranks meet again? */
/* A rank that survives. Old ranks are those before the regroup, new ranks those after it. */
typedef struct esp__survivor {
    int32_t origin; /* its rank when the job began */
    uint32_t epoch; /* number of regroups that it took part in, plus 1 */
    uint64_t step, host;
} esp__survivor;
typedef struct esp__survivors {
    int32_t n, rank;    /* rank: this rank's new rank */
    uint32_t epoch;     /* of the new job */
    esp__survivor *who; /* [n], room for all old ranks */
    int32_t *was;       /* [n], the old rank of each new rank, rising */
    esp__peers *peers;  /* new connections, still without watch thread */
} esp__survivors;
/* The remaining ranks meet, and agree on the list of survivors. They wait until the timeout for every old rank that is
 * not known to have ended, except for rank `silent` (-1 for none), which a timeout found silent. Fails, and may be
 * called again, where too few ranks answer. The connections `old` between the old ranks stay open. */
ESP__FN esp_status esp__regroup(esp__standby *s, esp__peers *old, const esp__survivor *mine, int32_t silent,
                                esp__survivors *out);
/* Makes the survivors the job's ranks, notifies the excluded ranks that it can reach, and frees `old`. */
ESP__FN void esp__regroup_adopt(esp__standby *s, esp__peers *old, const esp__survivors *now);
ESP__FN esp_status esp__peers_watch(esp__peers *p); /* starts the watch thread */

/* ---- topology.c ---- */
/* A unit of level 0 is a rank, of level 1 a machine, of level 2 a rack; the unit of the outermost level is the job. */
typedef struct esp__topology {
    int32_t size, n_machines;
    int32_t n_local;                     /* ranks on each machine; 0 if machines differ */
    uint32_t n_levels;                   /* 2 (ranks, machines) or more */
    int32_t level_size[ESP__LEVELS + 1]; /* by level; unless n_local is 0 */
    int32_t rank, machine, local;        /* of this rank */
    int32_t *machine_of, *local_of;      /* [size] */
    int32_t *unit_of;                    /* [ESP__LEVELS - 1][size], a unit's lowest rank */
    int32_t *place;                      /* [size][ESP__LEVELS], a rank's index by level */
    int32_t *ranks;                      /* by place: ranks[machine * n_local + local] */
} esp__topology;

/* This rank's final message, and what rank 0 does with those of all ranks. */
typedef struct esp__final {
    void *data; /* the context's memory */
    uint64_t bytes;
    void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes);
    void (*done)(void *user); /* after the last collect */
    void *user;
} esp__final;

/* A group's communicator: its backend and the backend's handle. */
typedef struct esp__comm {
    const esp_backend *backend;
    void *handle;
} esp__comm;

/* The ranks and the connections to them. Lives from esp_open to esp_close. */
enum { ESP__JOB_ROOM = 64 };
typedef struct esp__job {
    int32_t rank, size;
    uint32_t cores;   /* that this rank may use */
    uint32_t sharing; /* ranks that use the same cores, with this one */
    esp__peers *peers;
    esp__standby *standby;
    int32_t silent;  /* rank that a timeout found silent, or -1 */
    uint32_t levels; /* levels of the places; the topology may have fewer */
    esp__topology topo;
    const esp_backend *backend;   /* of scope flat */
    esp__comm comms[ESP__SCOPES]; /* no backend: no such groups */
    uint64_t links;               /* hash of the backends' parameters */
    uint8_t parents[ESP__SCOPES]; /* scopes of comms without a parent */
    esp__level_names names;       /* from levels:gpu=(shm),machine=(mpi) */
    uint32_t n_parents;
    uint32_t woken; /* atomic: woken since the link thread last slept */
    void *room;     /* [size][ESP__JOB_ROOM], so that agreeing needs no memory */
    esp__final last;
} esp__job;
static inline const esp__job *esp__job_of(const esp_ctx *ctx) { return esp__base_of(ctx)->job; }

/* Lists the ranks of this rank's group in group order, and this rank's *index there. Returns their number. */
ESP__FN int32_t esp__group_members(const esp__topology *p, uint8_t scope, int32_t *members, int32_t *index);
/* Are ranks a and b in one group? */
ESP__FN bool esp__group_same(const esp__topology *p, uint8_t scope, int32_t a, int32_t b);
/* The rank in the job of member `i` of this rank's group; -1 for -1. */
ESP__FN int32_t esp__group_rank(const esp_ctx *ctx, uint8_t scope, int32_t i);
/* The number of ranks in a group, 0 if the job has no such groups; and this rank's index in its group. */
ESP__FN int32_t esp__group_size(const esp__topology *p, uint8_t scope);
ESP__FN int32_t esp__group_index(const esp__topology *p, uint8_t scope);
/* The index of `rank` at `level`: among the units of level - 1 in its unit of `level`. */
ESP__FN int32_t esp__place_at(const esp__topology *p, int32_t rank, uint32_t level);
/* The scope's backend. The context of a tool opens no comms, and has one backend for all scopes. */
ESP__FN const esp_backend *esp__backend_of(const esp__job *j, uint8_t scope);
/* The rank with these indices at levels 1, 2, ... */
ESP__FN int32_t esp__rank_at(const esp__topology *p, const int32_t *place);
/* Collective: ranks exchange their places, and compare `settings` (backend and link, as a text) and their libraries.
 * Fills the job's topology, levels, cores, sharing and room. *number is a random number that all ranks share.
 * *one_host: all ranks run in one network namespace of one kernel. */
ESP__FN esp_status esp__job_introduce(esp_ctx *ctx, esp__job *job, const esp__where *w, const char *settings,
                                      uint64_t *number, bool *one_host);
/* Identifies the network namespace: processes with the same number reach each other by abstract socket names. */
ESP__FN uint64_t esp__network_id(void);
/* Fills everything else from size, rank and unit_of. Where units of a level differ in size, the job has fewer levels:
 * two, or only scope flat. Returns that level, or 0. */
ESP__FN uint32_t esp__topology_make(esp__topology *p, uint32_t n_levels);

/* Keeps the ranks was[n] of `p`, in rising order; this rank becomes rank `rank`. Takes no memory. */
ESP__FN void esp__topology_keep(esp__topology *p, const int32_t *was, int32_t n, int32_t rank, uint32_t n_levels);

/* ---- agree.c ---- */
/* Collective. `lines` has a line for each setting that must be the same on all ranks; `mine` is this rank's status so
 * far. Fails on all ranks if one of them failed or a line differs. The error names the first such line and the ranks
 * that differ in it. Frees the text. */
ESP__FN esp_status esp__agree_lines(esp_ctx *ctx, esp__text *lines, esp_status mine);
/* Collective: fails on all ranks if `mine` is an error on one of them. */
ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine);
/* Raises each of the n numbers to `other`'s. */
static inline void esp__raise_to(uint64_t *v, const uint64_t *other, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (other[i] > v[i]) v[i] = other[i];
}
/* Collective: the maximum over all ranks of each of the n numbers. `room` has space for n numbers of each rank. */
ESP__FN esp_status esp__agree_latest(esp_ctx *ctx, uint64_t *v, uint64_t n, uint64_t *room);
/* Does the job allow hierarchical options? It needs several machines, each with the same number of ranks over one. */
ESP__FN bool esp__hierarchical(const esp_ctx *ctx);
/* A strategy or cost written for two levels, applied to this job: scope intra becomes the innermost level with several
 * ranks, and scope inter all levels outside of it. Returns `level` itself in a job of two levels. */
ESP__FN uint8_t esp__two_levels(const esp_ctx *ctx, uint8_t level);
/* Splits a hierarchical job's levels into runs of neighbours, each with more than one rank. Returns their number. */
ESP__FN uint32_t esp__level_blocks(const esp__topology *t, uint8_t scope[ESP__LEVELS]);
#endif
