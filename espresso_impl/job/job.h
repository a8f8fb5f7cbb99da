/* job.h: the ranks of the job, their machines, and small messages between them. Knows nothing of tensors. */
#ifndef ESP__JOB_H
#define ESP__JOB_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/levels.h"
#include <stdbool.h>

/* ---- env.c: rank, size, machine and meeting point from the launcher's environment --------------------------- */
enum { ESP__SECRET_MIN = 16 }; /* characters of ESPRESSO_SECRET */
typedef struct esp__where {
    int32_t rank, size;
    char machine[ESP__NAME_MAX * 2]; /* ranks with the same text are on one machine: "m<id>" or host name + boot id */
    char root[ESP__SPEC_MAX]; /* "unix:NAME", "HOST:PORT"; "": size is 1, or ranks meet by esp_config's exchange or a
                                        backend's, or (nowhere: 1) no place is known */
    int implied;              /* root follows from the job's name: nobody named it                                    */
    int nowhere, hosts;       /* hosts: 1 if the launcher says that ranks are on several hosts                        */
    int by_mpi;           /* the launcher is one whose ranks may use MPI                                           */
    int asked;            /* rank and size come from ESPRESSO_* or esp_config: a backend may not say otherwise    */
    uint32_t n_levels;    /* 2; with a place, one more than its parts; `machine` is then the place */
    const char *launcher; /* "config", "espresso run", "Open MPI", ... for messages */
    const char *secret;   /* ESPRESSO_SECRET, in the environment; NULL: none. Never print it */
} esp__where;
ESP__FN esp_status esp__env_where(const esp_config *cfg, esp__where *out);
/* The error of a job whose ranks know no place to meet. */
ESP__FN esp_status esp__env_nowhere(esp_ctx *ctx, const esp__where *w);
/* The launcher's emulated links, ESPRESSO_INTER_LINK and ESPRESSO_OUTER_LINK; "": none. */
typedef struct esp__env_links {
    const char *inter, *outer;
} esp__env_links;
/* Differs between hosts, and between sets of cores of one host: ranks with the same number share their cores. */
ESP__FN uint64_t esp__env_host(void);
ESP__FN esp__env_links esp__env_links_get(void);
/* Copies cfg and applies the environment's overrides. Strings point into the environment or are those of cfg. */
ESP__FN esp_status esp__env_config(const esp_config *cfg, esp_config *out);
ESP__FN const char *esp__optimizer_name(uint32_t optimizer); /* "adam" */
/* Warns of variables whose names look like a misspelt ESPRESSO_* (env_names.c). */
ESP__FN void esp__env_check_names(const esp_ctx *ctx);

/* ---- the ranks: rendezvous.c (how they meet), exchange.c, liveness.c (who died, left, or keeps the others waiting) ---------- */
typedef struct esp__peers esp__peers;
enum { ESP__WAITS_FOR_NOBODY = -2, ESP__ANSWER_NAMES = 4 };
/* What a rank answers when rank 0 asks how far it is. */
typedef struct esp__answer {
    int32_t waits_for;        /* the rank that its oldest request waits for; -1: unknown; or ESP__WAITS_FOR_NOBODY */
    uint32_t tensor;          /* the request's; UINT32_MAX: none (a broadcast or the like) */
    uint64_t step, waited_ns; /* waited_ns: of its trainer; 0: it does not wait */
    uint32_t started;         /* 0: it has not started, has failed, or closes: nothing here counts */
    uint32_t trainer;         /* ESP__TRAINER_*: where its trainer is                        */
    uint32_t open;            /* something was pushed in this step                       */
    uint32_t n_tensors, n_missing, missing[ESP__ANSWER_NAMES]; /* not pushed: how many, and the first of them */
} esp__answer;
enum {
    ESP__TRAINER_ELSEWHERE = 0,
    ESP__TRAINER_IN_STEP,
    ESP__TRAINER_IN_CALL
}; /* waits in the step, in a call between steps */

/* Callbacks into the context. The watch thread calls all of them. */
typedef struct esp__peers_events {
    void *user;
    /* The first rank that died (left: 0), closed its context early (1), or closed it after an error (its status). This rank itself:
     * it has no memory for messages. */
    void (*lost)(void *user, int32_t rank, int left);
    /* The decision after a timeout, on all ranks: `rank` (-1: unknown) did not come to tensor `tensor` (UINT32_MAX: none). */
    void (*decided)(void *user, int32_t rank, uint32_t tensor);
    void (*answer)(void *user, esp__answer *out); /* how far this rank is */
    void (*excluded)(void *user);                 /* the other ranks went on without this one */
} esp__peers_events;
/* Blocks until all ranks have met. Uses cfg->oob_allgather, if given, only to agree on an address. size 1: no socket, no thread. */
ESP__FN esp_status esp__peers_open(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev, esp__peers **out);
/* The other ranks will know that this rank closes after error `why`. */
ESP__FN void esp__peers_cause(esp__peers *p, esp_status why);
/* Says that this rank leaves, so that the others do not take closing for death, and frees `p`. Sends `bytes` bytes of `last`, if any,
 * to rank 0. Rank 0 waits for all final messages, at most 5 s, and hands them to `collect` by rising rank. Other ranks hardly block. */
ESP__FN void esp__peers_close(esp__peers *p, const void *last, uint64_t bytes,
                              void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes), void *user);
/* Blocking exchange among the `n` ranks of `members` (NULL: all). Each of them calls it; one set of members makes its exchanges
 * in the same order on all of them. out is [n][bytes]. ESP_E_PEER and ESP_E_TIMEOUT have their text set. From any thread but the
 * watch thread. */
ESP__FN esp_status esp__peers_allgather(esp__peers *p, const int32_t *members, int32_t n, const void *in, void *out,
                                        uint64_t bytes);
ESP__FN int esp__peers_left(esp__peers *p, int32_t rank); /* 1: it has left */
/* This rank has waited too long for `on_rank` (-1: unknown), which may itself wait for another. Rank 0 asks all ranks, and every
 * rank's `decided` callback gets the rank that failed. */
ESP__FN void esp__peers_suspect(esp__peers *p, int32_t on_rank, uint32_t tensor);
/* This rank waits for long, and may soon suspect one: all ranks are asked whether they answer. A rank that did not by then is found
 * silent at once. Called esp__peers_lead_ms before the timeout. */
ESP__FN void esp__peers_check(esp__peers *p);
ESP__FN uint32_t esp__peers_lead_ms(uint32_t timeout_ms);
ESP__FN int esp__peers_hub_silent(esp__peers *p); /* 1: rank 0 has not answered since this rank checked */

/* What rank 0 knows of a rank in an inquiry. */
typedef struct esp__asked {
    bool waits_long;     /* it has waited for after_ns or more              */
    bool here, answered; /* its connection is open; it has answered, and ...  */
    int kind;            /* for the caller's use                              */
    esp__answer answer;
} esp__asked;
/* Reports of stragglers. The watch thread calls all of them. */
typedef struct esp__report_events {
    uint64_t after_ns; /* a wait of this length is long */
    void *user;
    void (*report)(void *user, esp__asked *ranks, int32_t n, uint64_t waited_ns); /* rank 0 */
    void (*ended)(void *user, uint64_t waited_ns);                                /* a reported wait has ended */
    void (*silent)(void *user, uint64_t waited_ns);                               /* rank 1: rank 0 asks nothing */
} esp__report_events;
/* Once a context, in jobs of several ranks. After `off` no callback is called. */
ESP__FN void esp__peers_report_on(esp__peers *p, const esp__report_events *ev);
ESP__FN void esp__peers_report_off(esp__peers *p);
/* ESPRESSO_MEMORY_MAX, in bytes; 0: no limit. */
ESP__FN esp_status esp__env_memory_max(uint64_t *bytes);
/* ESPRESSO_STRAGGLER_MS; 0: no reports. */
ESP__FN esp_status esp__env_straggler(int64_t *ms);

/* ---- regroup.c: how ranks meet again after some of them died or fell silent ------------------------------------------------- */
/* A socket at which this rank listens as long as its context is open, and the addresses of all ranks' sockets. */
typedef struct esp__standby esp__standby;
/* Collective. `number`: a random one, the same on all ranks. Leaves *out without a socket, and succeeds, where a rank cannot listen:
 * then the job cannot shrink. */
ESP__FN esp_status esp__standby_open(esp_ctx *ctx, uint64_t number, bool one_host, esp__standby **out);
ESP__FN void esp__standby_close(esp_ctx *ctx, esp__standby *s); /* NULL is fine */
ESP__FN int esp__standby_ready(const esp__standby *s);          /* 0: no rank may meet again */
/* What ranks exchange when they meet again. */
typedef struct esp__survivor {
    int32_t origin; /* its rank when the job began */
    uint32_t epoch; /* of the members that it knows */
    uint64_t step, host;
} esp__survivor;
typedef struct esp__survivors {
    int32_t n, rank;    /* this rank's new rank */
    uint32_t epoch;     /* of the new members   */
    esp__survivor *who; /* [n], in the order of the ranks before; room for all ranks before */
    int32_t *was;       /* [n]: the rank before; the same room */
    esp__peers *peers;  /* between the new members. Its watch thread does not run yet */
} esp__survivors;
/* The ranks before that are left meet, and agree on who they are. `silent`: a rank that they gave up for its silence, and do not
 * wait for; -1: none. They wait for every other rank that is not known to be gone, until the timeout. Fails, and may be called again,
 * where too few of them answer. `old`: the connections between the ranks before, which stay open. */
ESP__FN esp_status esp__regroup(esp__standby *s, esp__peers *old, const esp__survivor *mine, int32_t silent,
                                esp__survivors *out);
/* The ranks in `now` are the job's members from now on. Notifies the others, as far as this rank has a connection to them, and frees
 * `old`. */
ESP__FN void esp__regroup_adopt(esp__standby *s, esp__peers *old, const esp__survivors *now);
ESP__FN esp_status esp__peers_watch(esp__peers *p); /* starts the watch thread of such connections */

/* ---- topology.c ------------------------------------------------------------------------------------------------------------ */
typedef struct esp__topology {
    int32_t size, n_machines;
    int32_t n_local;   /* ranks on each machine; 0: machines differ, which leaves only the flat tree             */
    uint32_t n_levels; /* 2: ranks of a machine, and machines; or more                                          */
    int32_t level_size[ESP__LEVELS + 1]; /* by level; if n_local is not 0                                      */
    int32_t rank, machine, local;        /* this rank                                                       */
    int32_t *machine_of, *local_of;      /* [size]; machines are numbered by their first rank                 */
    int32_t *unit_of; /* [ESP__LEVELS - 1][size]: the lowest rank on the same machine; in the same rack; ...      */
    int32_t *place;   /* [size][ESP__LEVELS]: each rank's index at level 1, 2, ...                              */
    int32_t *ranks;   /* ordered by place, the outermost level first: ranks[m * n_local + l] with two levels    */
} esp__topology;

/* What this rank sends to rank 0 when it closes, and what rank 0 does with all ranks' final messages. */
typedef struct esp__final {
    void *data; /* the context's memory */
    uint64_t bytes;
    void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes); /* rank 0, for each other rank */
    void (*done)(void *user);                                                    /* rank 0, at the end         */
    void *user;
} esp__final;

/* A group's connection: its backend, and what that opened. */
typedef struct esp__comm {
    const esp_backend *backend;
    void *handle;
} esp__comm;

/* The ranks, and the connections to them. Lives from esp_open to esp_close. */
enum { ESP__JOB_ROOM = 64 };
typedef struct esp__job {
    int32_t rank, size;
    uint32_t cores, sharing; /* cores that this rank may use; ranks that use the same ones, this one included */
    esp__peers *peers;
    esp__standby *standby;
    int32_t silent;  /* the rank that was given up for its silence; -1: none */
    uint32_t levels; /* that the ranks' places have; the topology may have fewer */
    esp__topology topo;
    const esp_backend *backend;   /* of scope flat                                                        */
    esp__comm comms[ESP__SCOPES]; /* no backend: the job has no such groups                               */
    uint64_t links; /* differs between jobs whose backends have other parameters, such as another emulated link */
    uint8_t parents[ESP__SCOPES]; /* scopes of the comms without a parent: sleeping on them is sleeping on all */
    esp__level_names names;       /* from the backend's spec, levels:gpu=(shm),machine=(file)              */
    uint32_t n_parents, woken;    /* woken: since the link thread slept last; atomic                        */
    void *room; /* [size][ESP__JOB_ROOM] bytes, taken early: ranks can agree even when memory is short */
    esp__final last;
} esp__job;
static inline const esp__job *esp__job_of(const esp_ctx *ctx) { return esp__base_of(ctx)->job; }

/* The ranks of this rank's group of a scope, in group order; *index: this rank's place among them. Returns how many they are. */
ESP__FN int32_t esp__group_members(const esp__topology *p, uint8_t scope, int32_t *members, int32_t *index);
ESP__FN int esp__group_same(const esp__topology *p, uint8_t scope, int32_t a,
                            int32_t b); /* are a and b in one group? */
/* The rank in the job of member `i` of this rank's group; -1 for -1. */
ESP__FN int32_t esp__group_rank(const esp_ctx *ctx, uint8_t scope, int32_t i);
/* Ranks of a group; 0: the job has no such groups. And this rank's index in it. */
ESP__FN int32_t esp__group_size(const esp__topology *p, uint8_t scope);
ESP__FN int32_t esp__group_index(const esp__topology *p, uint8_t scope);
/* The index of `rank` among the units of level - 1 in its unit of `level`. */
ESP__FN int32_t esp__place_at(const esp__topology *p, int32_t rank, uint32_t level);
/* The backend of the scope's comm. A context without comms (a tool's) has one for all. */
ESP__FN const esp_backend *esp__backend_of(const esp__job *j, uint8_t scope);
/* The rank with these indices at levels 1, 2, ... */
ESP__FN int32_t esp__rank_at(const esp__topology *p, const int32_t *place);
/* Collective: ranks exchange their places, and whether `settings` (backend and link, as a text) and the library are the same. Fills
 * the job's topology, levels, cores, sharing and room; *number: a random number that all ranks share; *one_host: all ranks run in one
 * network namespace of one kernel. */
ESP__FN esp_status esp__job_introduce(esp_ctx *ctx, esp__job *job, const esp__where *w, const char *settings,
                                      uint64_t *number, bool *one_host);
/* A number that is the same for processes that reach each other by abstract names. */
ESP__FN uint64_t esp__network_id(void);
/* Fills everything else from size, rank and unit_of. Where units of a level differ in size, the job has fewer levels: two, or only
 * the flat tree. Returns the level that differs; 0: none. */
ESP__FN uint32_t esp__topology_make(esp__topology *p, uint32_t n_levels);

/* The topology of those ranks of `p` that are in was[n], which rises; this one has rank `rank` among them. Takes no memory. */
ESP__FN void esp__topology_keep(esp__topology *p, const int32_t *was, int32_t n, int32_t rank, uint32_t n_levels);

/* ---- agree.c ------------------------------------------------------------------------------------------------------------ */
/* Collective. `lines`: a line for each thing that must be the same on all ranks; frees them. `mine`: this rank's status so far.
 * Fails on all ranks if one failed or a line differs. The error names the first such line and the ranks that differ in it. */
ESP__FN esp_status esp__agree_lines(esp_ctx *ctx, esp__text *lines, esp_status mine);
/* Collective: fails on all ranks if `mine` is an error on one of them. */
ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine);
/* Each of the n numbers becomes `other`'s, where that is larger. */
static inline void esp__later(uint64_t *v, const uint64_t *other, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (other[i] > v[i]) v[i] = other[i];
}
/* Collective: each of the n numbers becomes the largest of all ranks': when something was ready on the latest of them. `room`: for n
 * numbers of each rank. */
ESP__FN esp_status esp__agree_latest(esp_ctx *ctx, uint64_t *v, uint64_t n, uint64_t *room);
/* Does the job allow hierarchical options? It needs several machines, each with the same number of ranks, more than one. */
ESP__FN int esp__hierarchical(const esp_ctx *ctx);
/* The scope that a job of three levels has for intra or inter where a strategy or a cost knows two levels only: the innermost
 * level with several ranks, and all further out as one. In a job of two levels: `level` itself. */
ESP__FN uint8_t esp__two_levels(const esp_ctx *ctx, uint8_t level);
/* The job's levels as blocks of neighbours, each with more than one rank where possible. Returns how many. The job is hierarchical. */
ESP__FN uint32_t esp__level_blocks(const esp__topology *t, uint8_t scope[ESP__LEVELS]);
#endif
