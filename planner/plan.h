/* plan.h: the structs that the planner's files share. All times are integer nanoseconds; time 0 is the start of backward.
 *
 *   problem   what is asked: tensors, codecs, system, constraints, and the candidate options made from them
 *   candidate options      the paths that are worth trying for one size: options with the times of their ops, none dominated
 *   schedule     one strategy: units, a path for each, and the sequence in which all ops take their lanes
 *
 * Knows nothing of contexts, ranks and buffers; of the library it uses options, regions and error texts only. */
#ifndef ESP__PLAN_H
#define ESP__PLAN_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/strategy/option.h"
#include "espresso_impl/strategy/region.h"
#include <setjmp.h>

/* ---- problem/arena.c: memory that is given back all at once ------------------------------------------------------------- */
typedef struct esp__block esp__block;
typedef struct esp__arena {
    esp__block *blocks;
    jmp_buf *on_failure; /* where to go when there is no memory: so callers need no checks */
} esp__arena;
typedef struct esp__checkpoint {
    esp__block *block;
    uint64_t used;
} esp__checkpoint;
ESP__FN void *esp__arena_get(esp__arena *arena, uint64_t bytes); /* zeroed, 16-byte aligned; never NULL          */
ESP__FN esp__checkpoint esp__arena_checkpoint(const esp__arena *arena);
ESP__FN void esp__arena_rewind(esp__arena *arena,
                               esp__checkpoint mark); /* gives back what was got since               */
ESP__FN void esp__arena_free(esp__arena *arena);
ESP__FN char *esp__arena_text(esp__arena *arena, const char *text); /* a copy */

/* ---- problem/templates.c: the tree for one system, as ops whose sizes are symbols --------------------------------------------- */
enum { ESP__MAX_OPS = 24 }; /* 12 steps, a copy to or from the host for each Comp and Decomp, pack and unpack */
/* How a region was cut: sizes are nested ceilings, outermost first. */
enum { ESP__CUT_NONE = 0, ESP__CUT_FLAT, ESP__CUT_INTRA, ESP__CUT_INTER, ESP__CUT_BOTH, ESP__CUTS };
enum { ESP__FLOWS_ALL = 0, ESP__FLOWS_ONE, ESP__FLOWS_SPREAD }; /* ranks of a machine at work: all; one; k/N of them */
/* One op of a op template, but for the tensor's size and the codec. Its step is the number of ops before it that are no copies. */
typedef struct esp__op_template {
    uint8_t kind;   /* ESP_PLAN_COLLECTIVE, COMP, DECOMP, COPY, PACK                                    */
    uint8_t lanes;  /* mask of 1 << ESP__LANE_*                                                         */
    uint8_t device; /* Comp and Decomp                                                                  */
    uint8_t coll, level, role, compressed, summed; /* collectives                                          */
    uint8_t cut;      /* ESP__CUT_*: raw: of what a rank holds before it; payloads: of one part            */
    uint8_t slots[3]; /* payloads held before it: sizes of flat, intra, inter to these powers              */
    uint8_t slots_after[3];
    uint8_t parts; /* Comp: it cuts its region again: ESP__CUT_* of one part                            */
    uint8_t flows; /* ESP__FLOWS_*                                                                     */
    uint8_t up;    /* copies: 0 to the host, 1 from it; PACK: 0 pack, 1 unpack                          */
} esp__op_template;

/* ---- problem/candidates.c ---------------------------------------------------------------------------------------------------------- */
typedef struct esp__plan_op {
    uint64_t ns;
    uint8_t lanes; /* mask: the lanes that it holds while it runs                                              */
    uint8_t kind;  /* ESP_PLAN_*                                                                               */
    uint8_t step;  /* of the option                                                                            */
    uint8_t up;
    uint32_t op_template; /* index in problem.op_templates: for bytes                                                 */
} esp__plan_op;
/* One option for one size with one codec. */
typedef struct esp__path {
    const esp__plan_op *ops;
    uint32_t n;
    uint32_t codec; /* index in problem.codecs; ESP__NO_CODEC: it does not compress                         */
    uint64_t total; /* of all ops                                                                           */
    uint64_t load[ESP__LANES];
    uint64_t memory; /* bytes of residuals and payload buffers                                               */
    uint64_t volume; /* bytes of the payload, or of the raw tensor                                           */
    double error;    /* the codec's error times elements                                                     */
    const esp__option *option;
} esp__path;
#define ESP__NO_CODEC 0xffffffffu
typedef struct esp__candidates {
    uint64_t elements;
    uint32_t n_pieces;    /* tensors in the unit: over one, it is packed                                          */
    uint32_t keep;        /* index of the constraint, or 0                                                        */
    uint32_t width, near; /* near: made for a size like this one                                             */
    int limits;
    uint32_t n;
    double (*core)[ESP__LANES + 1]; /* loads and sum of the paths that come first                          */
    uint32_t n_core;              /* of these: not dominated by their loads and sums alone; they come first          */
    const esp__path *paths;       /* none dominated by another; by ascending total                                   */
    struct esp__candidates *next; /* in the problem's hash table                                                     */
} esp__candidates;

/* When one path makes another needless: where its load is no larger on any lane, nor its sum (LOADS: few are left, good for
 * searching); nor the time before its first and after its last op on a link (ENDS: what lower bounds look at);
 * or where its ops are found among the other's, in order, none longer (EXACT: no step can ever be longer with it). */
enum { ESP__WIDTH_LOADS = 0, ESP__WIDTH_ENDS, ESP__WIDTH_EXACT };

typedef struct esp__tree esp__tree; /* problem/templates.c: the options that are left, as a graph with shared ends */

/* ---- schedules ------------------------------------------------------------------------------------------------------------- */
/* What is synchronised as one: a tensor, a chunk of one, or several neighbours. In backward order. */
typedef struct esp__unit {
    uint32_t first, n;        /* tensors; ready when the last of them is                                      */
    uint64_t begin, elements; /* n == 1: the range of the tensor                                              */
} esp__unit;

#define ESP__NEXT_BACKWARD 0xffffffffu
/* One strategy. `sequence` has every op once, in an order in which all could start: ESP__NEXT_BACKWARD is the next
 * tensor's backward, a unit's number is its next op. Each lane runs its ops in this order (clock.md). */
typedef struct esp__schedule {
    uint32_t n_units, n_sequence;
    esp__unit *units;
    const esp__path **paths; /* [n_units] */
    uint32_t *sequence;
    uint64_t makespan;                  /* from the start of backward to the end of the last op */
    uint32_t room_units, room_sequence; /* what the arrays hold                             */
} esp__schedule;

/* ---- problem.c ---------------------------------------------------------------------------------------------------------- */
typedef struct esp__problem {
    esp__arena *arena;
    const esp_plan_model *model;
    const char *model_name; /* one line; never NULL */
    const esp_plan_codec *codecs;
    uint32_t n_codecs;
    esp_plan_system system;
    esp_plan_config config;
    uint64_t n_tensors;
    const uint64_t *compute; /* [n_tensors] backward, ns                                                      */
    const uint64_t *ready;   /* [n_tensors] sum of compute up to and with it: earliest time of a unit that ends there */
    const uint32_t *keep;    /* [n_tensors] constraint, 0: none                                               */
    uint32_t size[3];        /* ranks by ESP__FLAT, ESP__INTRA, ESP__INTER                                    */
    int hierarchical;        /* several machines with several ranks: the whole tree; else the flat part       */
    int roughly; /* too many sizes for a set of candidate options each: near ones do for tensors too, and prices are even */
    int free_compression; /* Comp, Decomp and copies to the host take no time and are left out             */
    const esp__op_template *op_templates;
    uint32_t n_op_templates;
    esp__tree **trees; /* by constraint: [n_keeps]                                                            */
    uint32_t n_keeps;
    esp__candidates *
        *candidate_sets; /* hash table                                                                          */
    uint32_t n_candidate_slots, n_candidate_sets;
    uint32_t width;                       /* ESP__WIDTH_* of the candidate options that are made from now on */
    const esp__unit *whole;               /* [n_tensors] one unit a tensor: schedule.c's                       */
    esp__unit *cut_units;                 /* regroup.c's                                                    */
    struct esp__incremental *incremental; /* schedule/incremental.c's */
    esp__schedule spare[4];               /* for a moment: start.c, regroup.c, order.c                     */
    struct esp__timing *timing;           /* problem/candidates.c's */
    struct esp__prefix **heads;           /* [nodes of the largest tree] */
    const esp__schedule *fp32;            /* what is to be beaten; NULL: not known                       */
    const struct esp__bound *bound;       /* of one unit a tensor; NULL: not asked for             */
    double effort; /* of searching: 1 is the usual                                              */
    uint64_t seed;
    uint64_t work, work_end;  /* ops looked at, and where to stop (0: nowhere): the same on every machine */
    esp__schedule *finalists; /* [8] with ESP_PLAN_ROBUST: what the search found, n_finalists of them      */
    uint32_t n_finalists;
    uint64_t deadline_ns; /* of esp__now_ns(); 0: none                                                        */
} esp__problem;
/* Memory comes from `arena`, whose on_failure is set. free_compression: see above. The inputs must outlive the problem. */
ESP__FN esp_status esp__problem_open(esp__problem *p, esp__arena *arena, const esp_plan_model *model,
                                     const esp_plan_codec *codecs, uint32_t n_codecs, const esp_plan_system *system,
                                     const esp_plan_config *config, int free_compression);

/* The candidate options for a unit; made when it is first asked for. That of a group or chunk is the core of a near size's, timed anew. `keep` of its first tensor holds (units with different keeps are
 * never merged). Never empty: constraints that leave nothing are refused when the problem is made. */
ESP__FN const esp__candidates *esp__candidates_get(esp__problem *p, const esp__unit *u);
/* The path for exactly this option and codec, dominated or not, constraints or not; NULL: not in the tree of this system. */
ESP__FN const esp__path *esp__path_make(esp__problem *p, const esp__unit *u, const char *option, uint32_t codec);
ESP__FN const esp__path *esp__path_of(esp__problem *p, const esp__unit *u, const esp__option *o, uint32_t codec);
/* Bytes that op `k` moves (a rank's, before any factor of the algorithm), or that a codec reads or writes (f32). */
ESP__FN uint64_t esp__op_bytes(const esp__problem *p, const esp__unit *u, const esp__path *path, uint32_t k);

/* Adds what op `k` sends with its algorithm's factors: a rank's bytes on intra, a machine's NIC's on inter. */
ESP__FN void esp__op_traffic(const esp__problem *p, const esp__unit *u, const esp__path *path, uint32_t k,
                             double *intra, double *inter);

/* ---- cost.c ----------------------------------------------------------------------------------------------------------------- */
ESP__FN const char *esp__coll_word(uint32_t coll); /* ESP_COLL_* */
ESP__FN uint32_t esp__hops(uint32_t coll, uint32_t n);
/* Bytes that one rank moves over its link. */
ESP__FN double esp__traffic(uint32_t coll, double n, double before, double piece);
ESP__FN double esp__curve_at(const esp_cost_curve *c, double size);
/* One collective. `before`, `piece`: bytes that a rank holds before it, and of one of the n pieces that it is cut into or
 * that each rank gives; flows: ranks of a machine that do it at once. */
ESP__FN double esp__collective_ns(const esp_plan_system *s, uint32_t level, uint32_t coll, double before, double piece,
                                  uint32_t flows);
ESP__FN double esp__payload_bytes(const esp_plan_codec *c, uint64_t elements);

/* ---- simulate.c ---------------------------------------------------------------------------------------------------------------- */
/* Ready order on every lane (clock.md): writes schedule->sequence and makespan. */
ESP__FN uint64_t esp__generate(esp__problem *p, esp__schedule *d);
/* The same, but link lanes follow `links` (units, each as often as it has ops on a link, in order). */
ESP__FN uint64_t esp__generate_with(esp__problem *p, esp__schedule *d, const uint32_t *links, uint32_t n_links);
/* The time of schedule->sequence as it stands: a longest path. Monotone in the time of every op. */
ESP__FN uint64_t esp__replay(const esp__problem *p, const esp__schedule *d);
ESP__FN uint32_t esp__sequence_length(const esp__problem *p, const esp__schedule *d);
ESP__FN void esp__sequence_room(esp__problem *p, esp__schedule *d); /* room for a sequence of this length */
/* When all of an op's lanes (bits) are free, from `ready` on; and takes them until `end`. */
ESP__FN uint64_t esp__lanes_free(const uint64_t *free_at, uint32_t lanes, uint64_t ready);
ESP__FN void esp__lanes_take(uint64_t *free_at, uint32_t lanes, uint64_t end);
/* Every op with its times, by the sequence; `out` has room for the sequence's length. */
ESP__FN void esp__timeline(const esp__problem *p, const esp__schedule *d, esp_plan_event *out);

/* ---- schedule.c ------------------------------------------------------------------------------------------------------------------ */
/* Sets the units (one a tensor; as given), with paths unset; arrays are kept where they are large enough. */
ESP__FN void esp__schedule_tensors(esp__problem *p, esp__schedule *d);
ESP__FN void esp__schedule_set_units(esp__problem *p, esp__schedule *d, const esp__unit *units, uint32_t n);
ESP__FN void esp__schedule_copy(esp__problem *p, esp__schedule *to,
                                const esp__schedule *from); /* deep, but for the paths */
/* Keeps what was better: copies `from` to `to` and returns 1 where from->makespan < to->makespan (or `to` is empty). */
ESP__FN int esp__schedule_keep_better(esp__problem *p, esp__schedule *to, const esp__schedule *from);
/* Within config.max_memory_bytes, max_volume, max_error? */
ESP__FN int esp__schedule_allowed(const esp__problem *p, const esp__schedule *d);
ESP__FN int esp__out_of_time(const esp__problem *p);
/* text.c: its unit lines and order, opened by the format's first line and `comment` (lines with '#', or ""). malloc'd. */
ESP__FN char *esp__schedule_text(esp__problem *p, const esp__schedule *d, const char *comment);

/* ---- bound.c ------------------------------------------------------------------------------------------------------------------- */
typedef struct esp__bound {
    uint64_t ns;                   /* no strategy has a smaller makespan                                       */
    double lane_price[ESP__LANES]; /* how much of it each lane carries; they sum to at most 1                  */
    double (*price)[ESP__LANES];   /* [n_units] a nanosecond of unit u on a lane costs price[u][lane]; the arena's */
    double *chain_price;           /* [n_units] and a nanosecond of its chain on any lane this                 */
} esp__bound;
/* For these units as given. */
ESP__FN void esp__bound_units(esp__problem *p, const esp__unit *units, uint32_t n_units, esp__bound *out);
/* For any merging and splitting of the problem's tensors. */
ESP__FN uint64_t esp__bound_any(esp__problem *p);

/* ---- schemes: one file each in planner/schemes/ -------------------------------------------------------------------------------- */
typedef struct esp__scheme {
    const char *name, *summary, *source; /* source: the paper's section, or the program whose default it is */
    void (*make)(esp__problem *p, esp__schedule *d);
    const char *codec; /* the only one that it compresses with, which it brings along where it was not given; or NULL */
} esp__scheme;
/* Does it need a codec that was not given? */
ESP__FN int esp__scheme_brings_codec(const esp__problem *p, const esp__scheme *s);
ESP__FN const esp__scheme *esp__scheme_find(const char *name);
ESP__FN const esp__scheme *const *esp__schemes(void); /* NULL-terminated, in the order in which they are shown */

/* ---- search ------------------------------------------------------------------------------------------------------------------------ */
ESP__FN void esp__algorithm1(esp__problem *p, esp__schedule *d); /* algorithm1.c: units of d as given                 */
ESP__FN void esp__algorithm2(esp__problem *p, esp__schedule *d); /* algorithm2.c: moves compression to the CPU        */
ESP__FN void esp__improve(esp__problem *p, esp__schedule *d);    /* improve.c: to a local optimum, units as given     */
ESP__FN void esp__search_all(esp__problem *p, esp__schedule *d); /* search.c: everything, from several starts        */
#endif
