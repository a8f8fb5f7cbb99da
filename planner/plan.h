/* plan.h: the structs that the planner's files share. All times are integer nanoseconds; time 0 is the start of backward.
 *
 *   problem            the inputs: tensors, codecs, system and constraints; and the candidate options made from them
 *   path               an option for one size and codec, with the times of its ops
 *   candidate options  the Pareto set of paths for one size: those that a search considers
 *   schedule           one strategy: units, a path for each, and the sequence in which all ops take their lanes
 *
 * "Unit" means sync unit. Knows nothing of contexts, ranks and buffers; of the library it uses options, regions and error
 * texts only. */
#ifndef ESP__PLAN_H
#define ESP__PLAN_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/strategy/option.h"
#include "espresso_impl/strategy/region.h"
#include <setjmp.h>

typedef struct esp__problem esp__problem;

/* ---- problem/arena.c: memory that is freed all at once ------------------------------------------------------------- */
typedef struct esp__block esp__block;
typedef struct esp__arena {
    esp__block *blocks;
    jmp_buf *on_failure; /* jumped to when memory ends, so that callers need no checks */
    esp_ctx *ctx;        /* whose memory it is; NULL: of calloc */
} esp__arena;
typedef struct esp__checkpoint {
    esp__block *block;
    uint64_t used;
} esp__checkpoint;
ESP__FN void *esp__arena_get(esp__arena *arena, uint64_t bytes); /* zeroed, 16-byte aligned; never NULL */
ESP__FN esp__checkpoint esp__arena_checkpoint(const esp__arena *arena);
ESP__FN void esp__arena_rewind(esp__arena *arena,
                               esp__checkpoint mark); /* frees what was allocated after the checkpoint */
ESP__FN void esp__arena_free(esp__arena *arena);
ESP__FN char *esp__arena_text(esp__arena *arena, const char *text); /* a copy */

/* ---- problem/templates.c: the tree for one system; the sizes of its ops are symbols --------------------------------------------- */
/* steps in each round; a copy to or from the host for Comps and Decomps; pack and unpack */
enum { ESP__MAX_OPS = ESP__CHAIN_MAX + ESP__MAX_STEPS };
/* How a region was divided among ranks: a set of scopes without a level in common. A size is a quotient rounded up, by the inner
 * scope first. Sets are numbered; 0 is the whole unit. */
enum { ESP__CUT_NONE = 0, ESP__CUTS = 16 };
enum {
    ESP__FLOWS_ALL = 0,
    ESP__FLOWS_ONE,
    ESP__FLOWS_SPREAD
}; /* of a machine's ranks: all; one; those that are roots */
/* One op of an option, without the unit's size and the codec. Its step is the number of Comps, Decomps and collectives before
 * it. */
typedef struct esp__op_template {
    uint8_t kind;                                  /* ESP_PLAN_COLLECTIVE, COMP, DECOMP, COPY, PACK */
    uint8_t lanes;                                 /* bits 1 << ESP__LANE_* */
    uint8_t device;                                /* of a Comp or Decomp */
    uint8_t coll, level, role, compressed, summed; /* of a collective */
    uint8_t cut;                /* ESP__CUT_* before the op: of a rank's numbers; of payloads: of the part in each */
    uint8_t slots[ESP__SCOPES]; /* payloads held before it: ranks of each scope to these powers */
    uint8_t slots_after[ESP__SCOPES]; /* payloads held after it */
    uint8_t
        sources[ESP__SCOPES]; /* Decomp: of its payloads, those that are summed into the same elements; as in slots */
    uint8_t parts;            /* ESP__CUT_* after the op: of the part in each payload */
    uint8_t flows;            /* ESP__FLOWS_* */
    uint32_t on_cpu;          /* ranks of a machine that run it: codecs take turns on its CPU */
    uint32_t on_link;         /* collective: ranks that share the link of its innermost level */
    uint8_t up;               /* copy: 0 to the host, 1 from it; PACK: 0 pack, 1 unpack */
    /* of Comps and payloads of a codec with bound(): the rounds that its units run; else 0. And the rounds that follow this op's */
    uint8_t n_rounds, early;
    uint8_t
        ahead; /* of a collective in such an earlier round: how many steps it stands behind its Comp in the option */
    uint16_t reduced; /* scopes over which the bodies of this round are reduced, as bits */
} esp__op_template;

/* How a unit's numbers are divided with one codec. */
typedef struct esp__shape {
    uint64_t size[ESP__CUTS]; /* elements of the largest part, by ESP__CUT_* */
    uint64_t elements, cols;  /* of the whole unit; cols 0: it is not a matrix */
} esp__shape;
/* codec NULL: none. cols: the unit's. */
ESP__FN void esp__shape_make(const esp__problem *p, uint64_t elements, uint64_t cols, const esp_plan_codec *codec,
                             esp__shape *out);

/* ---- problem/candidates.c ---------------------------------------------------------------------------------------------------------- */
/* How long an op takes and keeps its lanes (LogGP: Alexandrov, Ionescu, Schauser, Scheiman 1995). An op on a core and on links
 * needs both when it starts, and may give up one before the other. */
typedef struct esp__op_time {
    uint64_t ns;   /* from its start until its unit goes on: at least core and link */
    uint64_t core; /* it keeps its core lane (overhead, o) */
    uint64_t link; /* it keeps its links (gap, g); ns - link is their latency, L */
} esp__op_time;
typedef struct esp__plan_op {
    esp__op_time time;
    uint8_t lanes;        /* bits: the lanes that it needs */
    uint8_t kind;         /* ESP_PLAN_* */
    uint8_t step;         /* number of the step in the option */
    uint8_t up;           /* as in its op template */
    uint8_t round;        /* as in esp_plan_event */
    uint32_t op_template; /* index in problem.op_templates */
} esp__plan_op;
/* One option for one size and codec, with the times of its ops. */
typedef struct esp__path {
    const esp__plan_op *ops;
    uint32_t n;
    uint32_t codec;            /* index in problem.codecs; ESP__NO_CODEC: the path does not compress */
    uint32_t rounds;           /* that its codec runs, at least 1 */
    uint64_t total;            /* ns, all ops */
    uint64_t load[ESP__LANES]; /* ns, the ops of each lane */
    uint64_t memory;           /* bytes of residuals and payload buffers */
    uint64_t volume;           /* bytes of the payload, or of the raw unit */
    double error;              /* the codec's compression error times elements */
    const esp__option *option;
} esp__path;
#define ESP__NO_CODEC 0xffffffffu
typedef struct esp__candidates {
    uint64_t elements, cols; /* cols 0: not a matrix, or no codec asks for it */
    uint32_t n_pieces;       /* tensors in the unit: two or more are packed */
    uint32_t keep;           /* number of the constraint; 0: none */
    uint32_t width, near;    /* ESP__WIDTH_*; 1: the paths were selected for a near size */
    int limits;              /* 1: selected by memory, volume and error too */
    uint32_t n;
    double (*core)[ESP__LANES + 1]; /* [n_core] loads and total of the core's paths */
    uint32_t n_core;                /* paths that no other dominates in loads and total: the core; they come first */
    const esp__path *paths;         /* [n] none dominated by another; core and rest each by ascending total */
    struct esp__candidates *next;   /* in the problem's hash table */
} esp__candidates;

/* When one path dominates another.
 *   LOADS  its load is no larger on any lane, nor its total: leaves few paths, for searching
 *   ENDS   and neither is its time before the first and after the last op on each link: what lower bounds depend on
 *   EXACT  and its ops are found among the other's, in order, none longer: replacing the other by it never lengthens a step */
enum { ESP__WIDTH_LOADS = 0, ESP__WIDTH_ENDS, ESP__WIDTH_EXACT };

/* One op may hold so many times the bytes of its unit, and so many MiB in any case. */
enum { ESP__WASTE_TIMES = 16, ESP__WASTE_MIB = 256 };

static inline uint64_t esp__part_of(uint64_t e, uint64_t n) { return (e + n - 1) / n; } /* the largest of n parts */

#define ESP__SHARD_ANY "any"        /* esp_plan_tensor.shard: parts may be cut in any way */
typedef struct esp__tree esp__tree; /* problem/templates.c: the options that remain, as a graph with shared ends */

/* ---- schedules ------------------------------------------------------------------------------------------------------------- */
#define ESP__NEXT_BACKWARD 0xffffffffu
#define ESP__NOTHING_RAN 0xfffffffeu
/* One strategy. `sequence` contains every op once, each after the ops that it needs: ESP__NEXT_BACKWARD is the next tensor's
 * backward, a unit's number is its next op. Each lane runs its ops in this order (docs/design/planner.md, "Rules of time"). */
typedef struct esp__schedule {
    uint32_t n_units, n_sequence;
    esp__extent *units;      /* [n_units] in backward order; a unit is ready when its last tensor is */
    const esp__path **paths; /* [n_units] */
    uint32_t *sequence;
    uint64_t makespan;                  /* from the start of backward to the end of the last op */
    uint32_t room_units, room_sequence; /* capacity of the arrays */
} esp__schedule;

/* ---- problem.c ---------------------------------------------------------------------------------------------------------- */
struct esp__problem {
    esp__arena *arena;
    const esp_plan_model *model;
    const char *model_name; /* without line breaks; never NULL */
    const esp_plan_codec *codecs;
    uint32_t n_codecs;
    esp_plan_system system;
    esp_plan_config config;
    uint64_t n_tensors;
    const uint64_t *compute; /* [n_tensors] backward, ns */
    const uint64_t *ready; /* [n_tensors] sum of compute up to and including it: when a unit that ends there is ready */
    const uint32_t *keep;  /* [n_tensors] number of its constraint; 0: none */
    const uint32_t
        *n_small; /* [n_tensors + 1] so many tensors before it must stay raw because they are small; NULL: none must */
    uint32_t keep_raw; /* their constraint's number */
    uint32_t n_levels, n_lanes;
    uint32_t size[ESP__SCOPES]; /* ranks in a collective, by scope; 0: the system has no such groups */
    uint16_t cuts[ESP__CUTS];   /* by number: the cut's scopes, as bits */
    uint32_t n_cuts;
    int hierarchical; /* 1: several machines with several ranks each, the whole tree; 0: its flat part */
    int roughly; /* 1: too many sizes for candidate options each: near sizes share a set, no bound for whole tensors */
    int free_compression; /* 1: Comp, Decomp and host copies take no time and are left out */
    const esp__op_template *op_templates;
    uint32_t n_op_templates;
    esp__tree **trees; /* [n_keeps] by constraint */
    uint32_t n_keeps;
    esp__candidates **candidate_sets; /* hash table */
    uint32_t n_candidate_slots, n_candidate_sets;
    uint32_t width;                       /* ESP__WIDTH_* for candidate options made from now on */
    const esp__extent *whole;             /* [n_tensors] one unit per tensor; schedule.c's */
    esp__extent *cut_units;               /* regroup.c's */
    struct esp__incremental *incremental; /* schedule/incremental.c's */
    esp__schedule spare[4];               /* scratch: [0], [1] initial.c; [2] urgency.c */
    struct esp__timing *timing;           /* problem/candidates.c's */
    struct esp__prefix **heads;           /* [nodes of the largest tree] candidates.c's */
    const esp__schedule *fp32;            /* the plan without compression; NULL: not known */
    const struct esp__bound *bound;       /* for one unit per tensor; NULL: not asked for */
    double effort;                        /* of the search: 1 is the usual */
    uint64_t seed;
    uint64_t work, work_end; /* ops looked at so far; where to stop, 0: nowhere. The same on every machine */
    int core_ops;            /* collectives need cores: they queue for them when they have their links */
    uint64_t deadline_ns;    /* on the clock of esp__now_ns(); 0: none */
    uint32_t most_rounds;    /* of the codecs with bound(); 0: there is none */
};
/* Checks the inputs and makes the problem; refuses constraints that leave no option. Memory comes from `arena`, whose
 * on_failure must be set. The inputs must outlive the problem. */
ESP__FN esp_status esp__problem_open(esp__problem *p, esp__arena *arena, const esp_plan_model *model,
                                     const esp_plan_codec *codecs, uint32_t n_codecs, const esp_plan_system *system,
                                     const esp_plan_config *config, int free_compression);

/* The candidate options of a unit, made at the first call. For a group or chunk they are the core of a near size's set, with
 * new times. The constraint of the unit's first tensor applies (tensors with different constraints are never merged). Never
 * empty. */
ESP__FN const esp__candidates *esp__candidates_get(esp__problem *p, const esp__extent *u);
/* The path for exactly this option (as text; as a struct) and codec, even if it is dominated or a constraint excludes it;
 * NULL: it cannot run on this system. */
ESP__FN const esp__path *esp__path_make(esp__problem *p, const esp__extent *u, const char *option, uint32_t codec);
ESP__FN const esp__path *esp__path_of(esp__problem *p, const esp__extent *u, const esp__option *o, uint32_t codec);
/* Bytes that one rank holds before collective `k`, or that a codec, copy or pack reads or writes as f32. */
ESP__FN uint64_t esp__op_bytes(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k);

/* Adds the bytes that op `k` sends by its algorithm: one rank's to out[0], one machine's NIC's to out[1], one rack's uplink's to
 * out[2]. */
ESP__FN void esp__op_traffic(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k,
                             double out[ESP__LEVELS]);
/* Is the option for the system's levels, with several ranks in each of its scopes? */
ESP__FN int esp__option_fits_system(const esp__problem *p, const esp__option *o);
/* Do the configuration's forbid, only, max_comp, devices and NO_COMP allow it? */
ESP__FN int esp__option_permitted(const esp__problem *p, const esp__option *o);

/* ---- cost.c ----------------------------------------------------------------------------------------------------------------- */
ESP__FN uint32_t esp__hops(uint32_t coll, uint32_t n); /* sequential hops of n ranks */
/* Bytes that one of n ranks sends over its link. before, piece: as below. */
ESP__FN double esp__traffic(uint32_t coll, double n, double before, double piece);
ESP__FN double esp__curve_at(const esp_cost_curve *c, double size);
ESP__FN uint32_t esp__system_levels(const esp_plan_system *s);
ESP__FN uint32_t esp__system_size(const esp_plan_system *s, uint32_t level);
ESP__FN const esp_plan_link *esp__system_link(const esp_plan_system *s, uint32_t level);
/* The link whose tables are of this scope's collectives; NULL: none is. */
ESP__FN const esp_plan_link *esp__system_tables(const esp_plan_system *s, uint32_t scope);
/* Time of one collective. before: bytes that a rank holds before it; piece: bytes of one of the n pieces into which the
 * buffer is divided, or that each rank contributes; flows: groups that do it at the same time over the same links. */
ESP__FN double esp__collective_ns(const esp_plan_system *s, uint32_t scope, uint32_t coll, double before, double piece,
                                  uint32_t flows);
/* The same from one of its level's measured curves: time, gap or core time. */
ESP__FN double esp__measured_ns(const esp_plan_system *s, const esp_cost_curve *curve, uint32_t scope, uint32_t coll,
                                double before, double piece, uint32_t flows);
ESP__FN double esp__payload_bytes(const esp_plan_codec *c, uint64_t elements);
/* ---- problem/rounds.c: codecs whose payloads take what their bound() says ---- */
/* The columns of a unit that is a matrix, where a codec may use them; else 0. */
ESP__FN uint64_t esp__unit_cols(const esp__problem *p, const esp__extent *u);
/* Must neighbours [first, first + n) stay raw because one of them is small? */
static inline int esp__has_small(const esp__problem *p, uint32_t first, uint32_t n) {
    return p->n_small && p->n_small[first + n] > p->n_small[first];
}
/* The number of the constraint on a unit of these tensors. */
static inline uint32_t esp__keep_of(const esp__problem *p, uint32_t first, uint32_t n) {
    return esp__has_small(p, first, n) ? p->keep_raw : p->keep[first];
}
/* How many rounds such a unit runs with the codec; 0: the codec cannot compress it. */
ESP__FN uint32_t esp__unit_rounds_run(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols);
/* The payload of a part, as the executor sizes it; negative: the codec cannot compress such a part. state: NULL, or its state. */
ESP__FN double esp__round_bytes(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                const esp_plan_codec *c, uint64_t part, uint64_t *state);
/* Bytes of all payloads of a unit with a codec, if it is compressed whole. */
ESP__FN double esp__unit_volume(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols);
/* Gives the planner an opened codec's rounds and sizes, where they are not those of one payload in proportion to its elements. */
ESP__FN void esp__plan_codec_rounds(esp_plan_codec *out, const esp_codec *table, const esp_traits *traits, void *self);
ESP__FN uint32_t esp__rounds_of(const esp_plan_codec *c); /* at least 1 */
/* Is it a codec of matrices, and the unit none? */
ESP__FN int esp__codec_vector(const esp_plan_codec *c, uint64_t cols);
/* The error of one compression of such a unit, and its times on a device. */
ESP__FN double esp__codec_error(const esp_plan_codec *c, uint64_t cols);
ESP__FN const esp_cost_curve *esp__codec_curve(const esp_plan_codec *c, uint64_t cols, int decompress, int device);
/* The curve of further payloads of a Decomp whose first one has curve `first`; NULL: they take as long as the first. */
ESP__FN const esp_cost_curve *esp__decompress_more(const esp_plan_codec *c, const esp_cost_curve *first, int device);
/* What the executor refuses: a collective that the codec's payloads cannot pass. */
ESP__FN int esp__payloads_pass(const esp_plan_codec *c, const esp__op_template *op);

/* ---- simulate.c ---------------------------------------------------------------------------------------------------------------- */
/* Orders the ops of every lane by ready time (docs/design/planner.md, "Rules of time"): writes sequence and makespan. */
/* The makespan in ready order; sequence: gets the order, NULL: nobody wants it. */
ESP__FN uint64_t esp__by_ready(esp__problem *p, const esp__schedule *d, uint32_t *sequence);
ESP__FN uint64_t esp__generate(esp__problem *p, esp__schedule *d);
/* The same, but the links' ops follow `links`: units in order, each once per op that it has on a link. UINT64_MAX: the ops
 * would wait for each other. */
ESP__FN uint64_t esp__generate_with(esp__problem *p, esp__schedule *d, const uint32_t *links, uint32_t n_links);
/* The makespan of schedule->sequence as it is: the length of a longest path. A longer op never makes it shorter. */
ESP__FN uint64_t esp__replay(const esp__problem *p, const esp__schedule *d);
ESP__FN uint32_t esp__sequence_length(const esp__problem *p, const esp__schedule *d);
ESP__FN void esp__sequence_room(esp__problem *p, esp__schedule *d); /* makes room for it and sets n_sequence */
/* The first time from `ready` on at which all of an op's lanes (bits) are free; and: keeps them from `start` on. */
ESP__FN uint64_t esp__lanes_free(const uint64_t *free_at, uint32_t lanes, uint64_t ready);
ESP__FN void esp__lanes_take(uint64_t *free_at, uint32_t lanes, uint64_t start, const esp__op_time *time);
static inline esp__op_time esp__backward_time(uint64_t ns) {
    const esp__op_time time = {ns, ns, 0};
    return time;
}
static inline uint64_t esp__kept(const esp__op_time *time, uint32_t lane) { /* how long an op keeps this lane of its */
    return ESP__CORE_LANES >> lane & 1u ? time->core : time->link;
}
/* Every op with its times, in the order of the sequence; out[n_sequence]. */
ESP__FN void esp__timeline(const esp__problem *p, const esp__schedule *d, esp_plan_event *out);

/* ---- schedule.c ------------------------------------------------------------------------------------------------------------------ */
/* Sets the units (one per tensor; as given) and unsets the paths; reuses the arrays if they are large enough. */
ESP__FN void esp__schedule_tensors(esp__problem *p, esp__schedule *d);
ESP__FN void esp__schedule_set_units(esp__problem *p, esp__schedule *d, const esp__extent *units, uint32_t n);
ESP__FN void esp__schedule_copy(esp__problem *p, esp__schedule *to,
                                const esp__schedule *from); /* deep, except for the paths */
/* Copies `from` to `to` and returns 1 if from->makespan < to->makespan or `to` is empty; else returns 0. */
ESP__FN int esp__schedule_keep_better(esp__problem *p, esp__schedule *to, const esp__schedule *from);
/* Is it within config.max_memory_bytes, max_volume and max_error? */
ESP__FN int esp__schedule_allowed(const esp__problem *p, const esp__schedule *d);
ESP__FN int esp__out_of_time(const esp__problem *p);
/* text.c: the strategy's text: the format's first line, `comment` (lines with '#', or ""), units and order. malloc'd. */
ESP__FN char *esp__schedule_text(esp__problem *p, const esp__schedule *d, const char *comment);

/* ---- bound.c ------------------------------------------------------------------------------------------------------------------- */
typedef struct esp__bound {
    uint64_t ns;                   /* no strategy with these units has a smaller makespan */
    double lane_price[ESP__LANES]; /* weight of each lane in the bound; their sum is at most 1 */
    double (*price)[ESP__LANES];   /* [n_units] price of a nanosecond of unit u on each lane; the arena's */
    double *chain_price;           /* [n_units] price of a nanosecond of unit u's path on any lane */
} esp__bound;
/* A bound for these units. */
ESP__FN void esp__bound_units(esp__problem *p, const esp__extent *units, uint32_t n_units, esp__bound *out);
/* A bound for every merging and splitting of the problem's tensors. */
ESP__FN uint64_t esp__bound_any(esp__problem *p);

/* ---- schemes: one file each in planner/baselines/ -------------------------------------------------------------------------------- */
typedef struct esp__scheme {
    const char *name, *summary, *source; /* source: the paper's section, or the program whose default it is */
    void (*make)(esp__problem *p, esp__schedule *d);
    const char *codec; /* the only codec that it uses, with costs of its own if none were given; NULL: any */
} esp__scheme;
/* Does the strategy need a codec whose costs were not given? */
ESP__FN int esp__scheme_brings_codec(const esp__problem *p, const esp__scheme *s);
ESP__FN const esp__scheme *esp__scheme_find(const char *name);
ESP__FN const esp__scheme *esp__schemes(void); /* in the order in which they are shown; the last has no name */

/* ---- search ------------------------------------------------------------------------------------------------------------------------ */
ESP__FN void esp__algorithm1(esp__problem *p, esp__schedule *d); /* algorithm1.c: chooses paths for the units of d */
ESP__FN void esp__algorithm2(esp__problem *p, esp__schedule *d); /* algorithm2.c: moves compression to the CPU */
ESP__FN void esp__search_all(esp__problem *p, esp__schedule *d); /* search.c: the whole search */
/* ---- plan.c: for the autopilot ------------------------------------------------------------------------------------------ */
/* esp_plan_make, or with a strategy esp_plan_simulate, in memory of the context's allocator. Of ctx it reads nothing else, so that it
 * may run beside training. */
ESP__FN esp_status esp__plan_make_for(esp_ctx *ctx, const esp_plan_model *model, const esp_plan_codec *codecs,
                                      uint32_t n_codecs, const esp_plan_system *system, const esp_plan_config *config,
                                      const char *strategy, esp_plan **out);
#endif
