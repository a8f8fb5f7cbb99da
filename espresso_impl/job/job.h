/* job.h: finds the ranks of the job and their machines, and exchanges small messages. Knows nothing of tensors. */
#ifndef ESP__JOB_H
#define ESP__JOB_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/levels.h"
#include <stdbool.h>

/* ---- env.c: reads rank, size, machine and rank 0's address from the launcher's environment ---- */
enum { ESP__SECRET_MIN = 16 };
typedef struct esp__where {
    int32_t rank, size;
    /* Equal on all ranks of one machine: "m<id>", host name and boot id, or a place such as "rack1/machine0". */
    char machine[ESP__NAME_MAX * 2];
    /* The address where rank 0 listens, "unix:NAME" or "HOST:PORT". It is "" if no address is known, if the job has one
     * rank, or if the ranks meet through esp_config.oob_allgather or through a backend. */
    char root[ESP__SPEC_MAX];
    char join[ESP__SPEC_MAX]; /* the address where rank 0 listens for ranks that join, or "" */
    bool default_root;        /* root is made from the launcher's job id */
    bool no_root;             /* ranks need an address, and none is known */
    bool several_hosts;
    bool by_mpi;
    bool explicit_rank; /* the user has set rank and size, not the launcher */
    uint32_t n_levels;
    const char *launcher; /* such as "Open MPI", for messages */
    const char *secret;   /* ESPRESSO_SECRET or NULL; it must not be printed */
} esp__where;
ESP__FN esp_status esp__env_where(const esp_config *cfg, esp__where *out);
ESP__FN int32_t esp__env_process(void);
ESP__FN esp_status esp__env_no_root(esp_ctx *ctx, const esp__where *w);
/* The values of ESPRESSO_INTER_LINK and ESPRESSO_OUTER_LINK, which emulate slow links. "" if not set. */
typedef struct esp__env_links {
    const char *inter, *outer;
} esp__env_links;
/* Returns a hash of this host and of the cores that this process may use. Ranks with equal hashes share their cores. */
ESP__FN uint64_t esp__env_host(void);
ESP__FN esp__env_links esp__env_links_get(void);
ESP__FN esp_status esp__env_config(const esp_config *cfg, esp_config *out);
ESP__FN const char *esp__optimizer_name(uint32_t optimizer);
ESP__FN void esp__env_check_names(const esp_ctx *ctx);

/* ---- rendezvous.c (ranks meet), exchange.c (allgather), liveness.c (deaths, timeouts, stragglers) ---- */
typedef struct esp__peers esp__peers;
enum { ESP__WAITS_FOR_NOBODY = -2, ESP__ANSWER_NAMES = 4 };
/* A rank's state, sent when rank 0 asks for it. Its members have fixed sizes, as it is sent between processes. */
typedef struct esp__answer {
    int32_t waits_for; /* the rank that it waits for, -1 if unknown, or ESP__WAITS_FOR_NOBODY */
    uint32_t tensor;   /* id of the first unfinished one, or UINT32_MAX */
    uint64_t step;
    uint64_t waited_ns;
    uint32_t started;
    uint32_t trainer;
    uint32_t open;                       /* 1 if a tensor of this step was pushed */
    uint32_t n_tensors, n_missing;       /* tensors in all, and those not pushed yet */
    uint32_t missing[ESP__ANSWER_NAMES]; /* ids of the first tensors not pushed */
} esp__answer;
/* Where the program's thread is: outside the library, waiting in a step, or waiting in a call between steps. */
enum { ESP__TRAINER_ELSEWHERE = 0, ESP__TRAINER_IN_STEP, ESP__TRAINER_IN_CALL };

/* Callbacks, which the thread that watches the connections calls. */
typedef struct esp__peers_events {
    void *user;
    /* Called for the first rank that is lost. `left` is 0 if it died, 1 if it closed its context early, or the negative
     * status of the error after which it closed. If this rank runs out of memory for messages, `rank` is this rank. */
    void (*lost)(void *user, int32_t rank, int left);
    /* Called on all ranks after a timeout: `rank` (-1 if unknown) did not take part in synchronizing `tensor`
     * (UINT32_MAX if it is not about a tensor). */
    void (*decided)(void *user, int32_t rank, uint32_t tensor);
    void (*answer)(void *user, esp__answer *out);
    void (*excluded)(void *user);                /* the other ranks continue without this rank */
    void (*turn)(void *user, uint64_t fragment); /* another rank has called esp__peers_turn */
} esp__peers_events;
ESP__FN esp_status esp__peers_open(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev, esp__peers **out);
/* Tells all other ranks, without waiting, that this one has come to fragment number `fragment` of an outer loop. They
 * hear only of the first rank that does. */
ESP__FN void esp__peers_turn(esp__peers *p, uint64_t fragment);
/* Sets the error that other ranks will see as the reason why this one closes. */
ESP__FN void esp__peers_cause(esp__peers *p, esp_status why);
/* Announces that this rank leaves, so that the others do not take it for dead, and frees `p`. Sends `last` of `bytes`
 * bytes to rank 0, which waits for all ranks, at most 5 s, and calls `collect` for each in order. */
ESP__FN void esp__peers_close(esp__peers *p, const void *last, uint64_t bytes,
                              void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes), void *user);
/* Blocks for an allgather among the `n` ranks in `members` (NULL: all ranks). Ranks that take part in several
 * allgathers must start them in the same order. `out` has room for n * bytes. Sets the error text. Callbacks must not
 * call it. */
ESP__FN esp_status esp__peers_allgather(esp__peers *p, const int32_t *members, int32_t n, const void *in, void *out,
                                        uint64_t bytes);
ESP__FN bool esp__peers_left(esp__peers *p, int32_t rank);
/* Closes the connections and frees `p`, which may be NULL, without a word to the other ranks. */
ESP__FN void esp__peers_drop(esp__peers *p);
/* Reports that this rank has waited too long for `on_rank` (-1 if unknown). That rank may itself wait for another one,
 * so rank 0 asks all ranks for their state and then calls `decided` on every rank with the one that failed. */
ESP__FN void esp__peers_suspect(esp__peers *p, int32_t on_rank, uint32_t tensor);
/* Makes rank 0 ask all ranks for their state. Called esp__peers_lead_ms before a timeout: ranks that have not answered
 * by the timeout count as silent, without a further wait. */
ESP__FN void esp__peers_check(esp__peers *p);
static inline uint32_t esp__peers_lead_ms(uint32_t timeout_ms) { return timeout_ms < 2000 ? timeout_ms / 2 : 1000; }
/* Returns true if rank 0 has not answered this rank's esp__peers_check. */
ESP__FN bool esp__peers_hub_silent(esp__peers *p);

/* A rank's state as rank 0 knows it. */
typedef struct esp__rank_state {
    bool connected;
    bool answered;
    bool waits_long;
    int kind;
    esp__answer answer;
} esp__rank_state;
/* Callbacks that report stragglers. The watch thread calls all of them. */
typedef struct esp__report_events {
    uint64_t after_ns; /* shortest wait to report, in ns */
    void *user;
    void (*report)(void *user, esp__rank_state *ranks, int32_t n, uint64_t waited_ns);
    void (*ended)(void *user, uint64_t waited_ns); /* a reported wait ended */
    /* Called on rank 1 only: its program has waited for after_ns, and rank 0, which should report that, is silent. */
    void (*silent)(void *user, uint64_t waited_ns);
} esp__report_events;
/* Starts the reports, once in a context. After esp__peers_report_off has returned, no callback runs. */
ESP__FN void esp__peers_report_on(esp__peers *p, const esp__report_events *ev);
ESP__FN void esp__peers_report_off(esp__peers *p);
/* Reads ESPRESSO_MEMORY_MAX in bytes; 0 if there is no limit. */
ESP__FN esp_status esp__env_memory_max(uint64_t *bytes);
/* Reads ESPRESSO_STRAGGLER_MS; 0 if stragglers are not reported. */
ESP__FN esp_status esp__env_straggler(int64_t *ms);

/* ---- regroup.c: the remaining ranks meet again after ranks died or fell silent ---- */
/* This rank's listening socket and the addresses of all ranks' sockets, through which ranks meet again after one is
 * lost. */
typedef struct esp__standby esp__standby;
/* Called by all ranks, with the same random `number`. If a rank cannot listen, succeeds, but no rank has a socket. */
ESP__FN esp_status esp__standby_open(esp_ctx *ctx, uint64_t number, bool one_host, esp__standby **out);
ESP__FN void esp__standby_close(esp_ctx *ctx, esp__standby *s); /* s may be NULL */
ESP__FN bool esp__standby_ready(const esp__standby *s);
/* A rank that continues after a regroup. "Old" ranks are numbered as before the regroup, "new" ranks as after it. */
typedef struct esp__survivor {
    int32_t origin;
    uint32_t epoch;
    uint64_t step, host;
} esp__survivor;
typedef struct esp__survivors {
    int32_t n, rank; /* rank: the new rank of this process */
    uint32_t epoch;
    esp__survivor *who; /* [n]; has room for all old ranks */
    int32_t *was;       /* [n], each new rank's old rank, in rising order */
    esp__peers *peers;  /* new connections; esp__peers_watch starts to watch them */
} esp__survivors;
/* The remaining ranks meet and agree on a list of survivors. Waits until the timeout for all old ranks that may still
 * run, except rank `silent` (-1 for none), which did not answer before. Fails if too few ranks answer; may then be
 * called again. Does not close the connections `old`. */
ESP__FN esp_status esp__regroup(esp__standby *s, esp__peers *old, const esp__survivor *mine, int32_t silent,
                                esp__survivors *out);
/* Makes the survivors the ranks of the job, and frees `old`. Tells excluded ranks that can be reached that they are
 * excluded. */
ESP__FN void esp__regroup_adopt(esp__standby *s, esp__peers *old, const esp__survivors *now);
ESP__FN esp_status esp__peers_watch(esp__peers *p);

/* ---- join.c: ranks join a running job ---- */
/* Rank 0's listening socket, and the ranks that have connected. */
typedef struct esp__joins esp__joins;
/* What a rank that joins learns of the job. The strategy's text follows in the message. */
typedef struct esp__admission {
    int32_t rank, size, members; /* `members`: ranks of the job before, which keep the first numbers */
    int32_t reserved;
    uint64_t step, rounds; /* completed steps, and rounds of an outer context */
    uint32_t weighted;     /* 1 if ranks have weights (esp_weight) */
    uint32_t compared;     /* 1 if the members have compared their anchors */
} esp__admission;
ESP__FN void esp__joins_close(esp_ctx *ctx, esp__joins *j); /* j may be NULL */
/* On rank 0: listens for ranks that join at w->join, unless it does already, and reads what has come. Keeps ranks with
 * the same `description`, and refuses others. Does not wait for ranks that may come later. */
ESP__FN esp_status esp__joins_collect(esp_ctx *ctx, const esp__where *w, const char *description, esp__joins **joins);
/* Collective over the ranks of `old`. *n becomes the number of ranks that join; then *peers has new connections between
 * all ranks (for esp__peers_watch), or is NULL if they could not all meet. Joining ranks get the ranks after the old
 * ones, and learn *offer and `text`. Fails if `mine` is an error on rank 0, or if an old rank is lost. `joins` is rank
 * 0's, NULL on others. */
ESP__FN esp_status esp__joins_meet(esp__joins *joins, esp_status mine, esp__peers *old, bool one_host,
                                   const esp__admission *offer, const char *text, int32_t *n, esp__peers **peers);
/* On a rank that joins: waits until `deadline_ns` for the job to admit it, and meets the other ranks. *text is from
 * esp__alloc. */
ESP__FN esp_status esp__join_job(esp_ctx *ctx, const esp_config *cfg, const esp__where *w, const char *description,
                                 uint64_t deadline_ns, const esp__peers_events *ev, esp__admission *out, char **text,
                                 esp__peers **peers);
ESP__FN bool esp__standby_one_host(const esp__standby *s);

/* Sends `bytes` bytes to n ranks, which call esp__standby_get with this rank. Ends without an error if a rank does not
 * come until the timeout, or if over(ctx) is true. */
ESP__FN esp_status esp__standby_put(esp_ctx *ctx, const esp__standby *s, int32_t n, const void *data, uint64_t bytes,
                                    uint32_t timeout_ms, bool (*over)(esp_ctx *ctx));
ESP__FN esp_status esp__standby_get(esp_ctx *ctx, const esp__standby *s, int32_t from, void *data, uint64_t bytes,
                                    uint32_t timeout_ms, bool (*over)(esp_ctx *ctx));

/* ---- topology.c ---- */
/* Ranks, machines and racks of a job. Level 1 is a machine, level 2 a rack, and the last level the whole job. */
typedef struct esp__topology {
    int32_t size, n_machines;
    int32_t n_local;   /* ranks of each machine; 0 if machines differ */
    uint32_t n_levels; /* 2 (ranks and machines) or more */
    /* [level]: ranks of a machine (1), machines of a rack (2), ...; only if n_local > 0 */
    int32_t level_size[ESP__LEVELS + 1];
    int32_t rank, machine, local;   /* this rank, its machine, and its index there */
    int32_t *machine_of, *local_of; /* [size], each rank's machine and index there */
    int32_t *unit_of;               /* [level - 1][rank], lowest rank on its machine, in its rack */
    int32_t *place;                 /* [size][ESP__LEVELS]: index in the machine, machine's in the rack, ... */
    int32_t *ranks;
} esp__topology;

/* What this rank sends to rank 0 in esp_close, such as its trace. Rank 0 calls `collect` for each rank's data. */
typedef struct esp__final {
    void *data;
    uint64_t bytes;
    void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes);
    void (*done)(void *user);
    void *user;
} esp__final;

/* The backend that connects a group of ranks, and the backend's handle for this group. */
typedef struct esp__comm {
    const esp_backend *backend;
    void *handle;
} esp__comm;

/* bytes of `room` for each rank; so few ranks have more room on the stack */
enum { ESP__JOB_ROOM = 64, ESP__FEW_RANKS = 64 };
/* The ranks and the connections to them. Lives from esp_open to esp_close. */
typedef struct esp__job {
    int32_t rank, size;
    uint32_t cores;   /* number of cores that this rank may use */
    uint32_t sharing; /* ranks that use the same cores, this one included */
    esp__peers *peers;
    esp__standby *standby;
    esp__joins *joins; /* on rank 0, from the first esp_reconfigure on */
    int32_t silent;    /* the rank that a timeout found silent, or -1 */
    uint32_t levels;
    esp__topology topo;
    const esp_backend *backend; /* the backend of collectives over all ranks */
    esp__comm comms[ESP__SCOPES];
    uint64_t links;
    uint8_t parents[ESP__SCOPES];
    esp__level_names names; /* names that the user gave to levels, as `gpu` in "levels:gpu=(shm)" */
    uint32_t n_parents;
    uint32_t woken;
    void *room;
    esp__final last;
} esp__job;
static inline const esp__job *esp__job_of(const esp_ctx *ctx) { return esp__base_of(ctx)->job; }

/* Writes the ranks of this rank's group (`scope` says which) in order, and this rank's index among them. Returns their
 * number. */
ESP__FN int32_t esp__group_members(const esp__topology *p, uint8_t scope, int32_t *members, int32_t *index);
ESP__FN bool esp__group_same(const esp__topology *p, uint8_t scope, int32_t a, int32_t b);
/* Returns the job's rank of member `i` of this rank's group, or -1 if `i` is -1. */
ESP__FN int32_t esp__group_rank(const esp_ctx *ctx, uint8_t scope, int32_t i);
/* The number of ranks in a group (0 if the job has no such groups), and this rank's index in its group. */
ESP__FN int32_t esp__group_size(const esp__topology *p, uint8_t scope);
ESP__FN int32_t esp__group_index(const esp__topology *p, uint8_t scope);
/* Returns the rank's index inside its machine (level 1), or its machine's index inside the rack (level 2). */
ESP__FN int32_t esp__place_at(const esp__topology *p, int32_t rank, uint32_t level);
/* Returns the backend of the group's collectives, or that of the whole job if the group has none of its own. */
ESP__FN const esp_backend *esp__backend_of(const esp__job *j, uint8_t scope);
ESP__FN int32_t esp__rank_at(const esp__topology *p, const int32_t *place);
/* Collective. Ranks exchange where they run, which fills the topology and the numbers of cores. Fails if `settings` (a
 * text) or library versions differ. *number gets the same random number on all ranks; *one_host, whether all share one
 * kernel and one network namespace. */
ESP__FN esp_status esp__job_introduce(esp_ctx *ctx, esp__job *job, const esp__where *w, const char *settings,
                                      uint64_t *number, bool *one_host);
/* Returns a hash of the network namespace. Processes with equal hashes can connect by abstract Unix names. */
ESP__FN uint64_t esp__network_id(void);
/* Computes the topology from size, rank and unit_of. Returns 0 or, if machines or racks differ in size, the first such
 * level. The job then has two levels or, if its machines differ, only the group of all ranks. */
ESP__FN uint32_t esp__topology_make(esp__topology *p, uint32_t n_levels);

/* Keeps only the ranks was[0] < was[1] < ... < was[n - 1], and numbers them from 0. This rank becomes number `rank`. */
ESP__FN void esp__topology_keep(esp__topology *p, const int32_t *was, int32_t n, int32_t rank, uint32_t n_levels);

/* ---- agree.c ---- */
/* Collective. Fails on all ranks, with the same message, if a line of `lines` (a setting) differs between ranks or
 * `mine` is an error on any rank. Frees `lines`. */
ESP__FN esp_status esp__agree_lines(esp_ctx *ctx, esp__text *lines, esp_status mine);
/* Collective: fails on all ranks if `mine` is an error on one of them. */
ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine);
static inline void esp__raise_to(uint64_t *v, const uint64_t *other, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (other[i] > v[i]) v[i] = other[i];
}
/* Collective: the maximum of each number over all ranks. `room` has space for n numbers of each rank. */
ESP__FN esp_status esp__agree_latest(esp_ctx *ctx, uint64_t *v, uint64_t n, uint64_t *room);
/* Returns whether all machines have the same number of ranks, and at least two levels have several members. */
ESP__FN bool esp__hierarchical(const esp_ctx *ctx);
/* Maps "intra" and "inter" of a strategy file for two levels to this job, which may have more: "intra" becomes the
 * innermost level with several members, "inter" all levels outside of it. */
ESP__FN uint8_t esp__two_levels(const esp_ctx *ctx, uint8_t level);
ESP__FN uint32_t esp__level_blocks(const esp__topology *t, uint8_t scope[ESP__LEVELS]);
#endif
