/* plan.h: the structs that the planner's files share. All times are integer nanoseconds; time 0 is the start of
 * backward.
 *
 *   option             the steps that synchronise a unit: Comp (compress), Decomp and collectives (strategy/option.h)
 *   op                 one step of an option, or a copy or pack that it needs; it runs on one or several lanes
 *   lane               a resource that runs one op at a time: compute, cpu, the link of a level, a progress thread
 *   scope              the levels over which a collective runs: one (intra, inter, outer), several, or all (flat)
 *   unit               what is synchronised as one: a tensor, a chunk of one, or a group of neighbours
 *   problem            the inputs (tensors, codecs, system, constraints) and the candidate options made from them
 *   path               an option for one size and codec, with the times of its ops
 *   candidate options  the paths for one size that a search considers: a Pareto set
 *   schedule           one strategy: units, a path for each, and the sequence in which all ops take their lanes
 *
 * Knows nothing of contexts, ranks and buffers; of the library it uses options, regions and error texts only. */
#ifndef ESP__PLAN_H
#define ESP__PLAN_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/strategy/option.h"
#include "espresso_impl/strategy/region.h"
#include <setjmp.h>

typedef struct esp__problem esp__problem;

/* ---- problem/arena.c: memory that is freed all at once ----------------------------------------------------------- */
typedef struct esp__block esp__block;
typedef struct esp__arena {
    esp__block *blocks;
    /* where allocation failures jump, so that callers need no checks */
    jmp_buf *on_failure;
    esp_ctx *ctx; /* blocks come from its allocator; NULL: from calloc */
} esp__arena;
typedef struct esp__checkpoint {
    esp__block *block;
    uint64_t used;
} esp__checkpoint;
ESP__FN void *esp__arena_get(esp__arena *arena, uint64_t bytes); /* zeroed, 16-byte aligned; never NULL */
/* An array of `bytes`, which begins with the first `used` bytes of the old one. */
ESP__FN void *esp__arena_grow(esp__arena *arena, const void *old, uint64_t used, uint64_t bytes);
ESP__FN esp__checkpoint esp__arena_checkpoint(const esp__arena *arena);
ESP__FN void esp__arena_rewind(esp__arena *arena, esp__checkpoint mark); /* frees what was allocated since */
ESP__FN void esp__arena_free(esp__arena *arena);
ESP__FN char *esp__arena_text(esp__arena *arena, const char *text);

/* ---- problem/templates.c: the tree for one system; the sizes of its ops are symbols ------------------------------ */
/* The most ops of an option: its steps in every round, host copies around Comps and Decomps, pack and unpack. */
enum { ESP__MAX_OPS = ESP__CHAIN_MAX + ESP__MAX_STEPS };
/* A cut divides a unit among ranks along a set of scopes that have no level in common. The size of a part is the
 * unit's, divided by the ranks of each scope (inner scopes first) and rounded up. Cuts are numbered; number 0 leaves
 * the unit whole. */
enum { ESP__CUTS = 16 };
/* Which of a machine's ranks run an op: ALL; ONE, the machine's root; or SPREAD, the ranks that are roots of groups
 * that span machines (groups have their roots on different machines). */
enum { ESP__FLOWS_ALL = 0, ESP__FLOWS_ONE, ESP__FLOWS_SPREAD };
/* One op of an option, without the unit's size and the codec. */
typedef struct esp__op_template {
    uint8_t kind;                                  /* ESP_PLAN_COLLECTIVE, COMP, DECOMP, COPY or PACK */
    uint8_t lanes;                                 /* the lanes that it needs: bits 1 << ESP__LANE_* */
    uint8_t device;                                /* where a Comp or Decomp runs */
    uint8_t coll, level, role, compressed, summed; /* collectives only */
    /* How the op's input is divided, as a cut: of a rank's numbers, or of what each payload contains. */
    uint8_t cut;
    /* The number of payloads that a rank holds before the op is the product of (ranks of a scope) to the power
     * slots[scope]. */
    uint8_t slots[ESP__SCOPES];
    uint8_t slots_after[ESP__SCOPES]; /* like `slots`, after the op */
    /* Decomp: how many of its payloads are summed into the same elements, as a product as in `slots`. */
    uint8_t sources[ESP__SCOPES];
    uint8_t parts;    /* the cut of what each payload contains after the op */
    uint8_t flows;    /* ESP__FLOWS_*: which of a machine's ranks run it */
    uint32_t on_cpu;  /* ranks of one machine that run it; codecs share its CPU */
    uint32_t on_link; /* collective: ranks that share the innermost level's link */
    bool reverse;     /* a copy from the host (not to it), or an unpack */
    /* Codecs whose payload sizes depend on round and shape have bound(). With these: the rounds that the unit runs. */
    uint8_t n_rounds;
    uint8_t early; /* how many of its rounds come after this op's */
    /* For a collective in an early round: how many steps it is behind its Comp in the option. */
    uint8_t ahead;
    /* The scopes over which this round's payload bodies (payloads without headers) are summed. */
    uint16_t reduced;
} esp__op_template;

/* The sizes into which cuts divide a unit with one codec. */
typedef struct esp__shape {
    uint64_t size[ESP__CUTS]; /* elements of the largest part, by cut */
    uint64_t elements, cols;  /* the whole unit's; cols is 0 if it is no matrix */
} esp__shape;
/* codec may be NULL. */
ESP__FN void esp__shape_make(const esp__problem *p, uint64_t elements, uint64_t cols, const esp_plan_codec *codec,
                             esp__shape *out);

/* ---- problem/candidates.c ---------------------------------------------------------------------------------------- */
/* How long an op takes and how long it occupies its lanes (LogGP: Alexandrov, Ionescu, Schauser, Scheiman 1995). An op
 * that needs a core and links starts when all are free, and may release one before the other. */
typedef struct esp__op_time {
    uint64_t ns;   /* until the unit's next op may start */
    uint64_t core; /* how long it occupies its core lane (overhead, o) */
    /* How long it occupies its links (gap, g). The latency L is ns - link. */
    uint64_t link;
} esp__op_time;
typedef struct esp__plan_op {
    esp__op_time time;
    uint8_t lanes;        /* bits 1 << ESP__LANE_* */
    uint8_t kind;         /* ESP_PLAN_* */
    uint8_t step;         /* index of the step in the option */
    bool reverse;         /* as in esp__op_template */
    uint8_t round;        /* as in esp_plan_event */
    uint32_t op_template; /* index in problem.op_templates */
} esp__plan_op;
/* One option for one size and codec, with the times of its ops. */
typedef struct esp__path {
    const esp__plan_op *ops;
    uint32_t n;
    /* An index in problem.codecs, or ESP__NO_CODEC. */
    uint32_t codec;
    uint32_t rounds;           /* rounds that its codec runs, at least 1 */
    uint64_t total;            /* sum of its ops' times */
    uint64_t load[ESP__LANES]; /* how long its ops occupy each lane */
    uint64_t memory;           /* bytes of residuals and payload buffers */
    uint64_t volume;           /* bytes of its payload; of the numbers if it does not compress */
    double error;              /* the codec's compression error times elements */
    const esp__option *option;
} esp__path;
#define ESP__NO_CODEC 0xffffffffu
typedef struct esp__candidates {
    uint64_t elements, cols; /* cols is 0 unless a codec uses the shape of a matrix */
    uint32_t n_pieces;       /* tensors in the unit; two or more are packed first */
    uint32_t keep;           /* number of the unit's constraint; 0: none */
    uint32_t width;          /* ESP__WIDTH_* */
    bool retimed;            /* the paths are those of a similar size's core, with their own times */
    bool limited;            /* memory, volume and error were compared too */
    uint32_t n;
    double (*core)[ESP__LANES + 1]; /* [n_core] loads and total of each core path */
    /* The core: the paths that no other one dominates in loads and total. They come first. */
    uint32_t n_core;
    const esp__path *paths;       /* [n] core, then the rest; each by rising total */
    struct esp__candidates *next; /* in its hash bucket */
} esp__candidates;

/* When path a dominates path b, from the weakest requirement to the strictest:
 *   LOADS  no lane's load and not the total of a is larger. Leaves the fewest paths; enough for searching.
 *   ENDS   and a's time before its first and after its last op on each link is no larger. Lower bounds need these.
 *   EXACT  and a's ops are found among b's, in order, none longer: a in place of b never lengthens a step. */
enum { ESP__WIDTH_LOADS = 0, ESP__WIDTH_ENDS, ESP__WIDTH_EXACT };

/* An op may hold payloads of at most this multiple of its unit's bytes, and of this many MiB in any case. */
enum { ESP__WASTE_TIMES = 16, ESP__WASTE_MIB = 256 };

static inline uint64_t esp__part_of(uint64_t e, uint64_t n) { return (e + n - 1) / n; } /* the largest of n parts */

#define ESP__SHARD_ANY "any"        /* esp_plan_tensor.shard: any cut will do */
typedef struct esp__tree esp__tree; /* the allowed options, as a graph */

/* ---- schedules --------------------------------------------------------------------------------------------------- */
#define ESP__NEXT_BACKWARD 0xffffffffu
#define ESP__NOTHING_RAN 0xfffffffeu
/* One strategy. `sequence` contains every op once, after the ops that it needs: the number of a unit is the unit's next
 * op, ESP__NEXT_BACKWARD the next tensor's backward. Each lane runs its ops in this order (docs/design/planner.md,
 * "Rules of time"). */
typedef struct esp__schedule {
    uint32_t n_units, n_sequence;
    esp__extent *units;      /* [n_units] in backward order; a unit is ready when its last tensor is */
    const esp__path **paths; /* [n_units] */
    uint32_t *sequence;
    uint64_t makespan;                  /* start of backward to the end of the last op */
    uint32_t room_units, room_sequence; /* capacity of the arrays */
} esp__schedule;

/* ---- problem.c --------------------------------------------------------------------------------------------------- */
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
    /* [n_tensors] when a tensor's gradient exists: the sum of compute up to it. */
    const uint64_t *ready;
    const uint32_t *keep; /* [n_tensors] number of the tensor's constraint; 0: none */
    /* [n_tensors + 1] how many tensors before this one must stay raw because they are small; NULL if none must. */
    const uint32_t *n_small;
    uint32_t keep_raw; /* number of the constraint on small tensors */
    uint32_t n_levels, n_lanes;
    uint32_t size[ESP__SCOPES]; /* ranks of a scope; 0: the system has no such scope */
    uint16_t cuts[ESP__CUTS];   /* each cut's scopes, as bits */
    uint32_t n_cuts;
    /* Several machines with several ranks each: hierarchical options exist. */
    bool hierarchical;
    /* The model has too many sizes to make candidate options for each: similar sizes share them, and whole tensors
     * get no bound. */
    bool approximate;
    bool free_compression; /* Comp, Decomp and host copies take no time. */
    const esp__op_template *op_templates;
    uint32_t n_op_templates;
    esp__tree **trees; /* [n_keeps] the allowed options, by constraint */
    uint32_t n_keeps;
    esp__candidates **candidate_sets; /* hash table */
    uint32_t n_candidate_slots, n_candidate_sets;
    uint32_t width;                       /* ESP__WIDTH_* of candidate options made from now on */
    const esp__extent *whole;             /* [n_tensors] one unit per tensor; schedule.c's */
    esp__extent *cut_units;               /* regroup.c's */
    struct esp__incremental *incremental; /* simulate/incremental.c's */
    esp__schedule spare[4];               /* scratch: [0], [1] initial.c; [2] urgency.c */
    struct esp__timing *timing;           /* problem/candidates.c's */
    struct esp__prefix **heads;           /* [nodes of the largest tree] candidates.c's */
    const esp__schedule *fp32;            /* the plan without compression; NULL until it is known */
    const struct esp__bound *bound;       /* for whole tensors as units; NULL if not computed */
    double effort;                        /* how long to search; 1 by default */
    uint64_t seed;
    /* Ops evaluated so far, and where the search stops (0: nowhere). The same on every machine. */
    uint64_t work, work_end;
    bool core_ops;        /* collectives need cores, and queue for them */
    uint64_t deadline_ns; /* when to stop, by esp__now_ns(); 0: never */
    uint32_t most_rounds; /* the most rounds of a codec with bound(), or 0 */
};
/* Finds two tensors with equal names. Returns the second one's index (*first gets the first's), or n if there are
 * none. */
ESP__FN uint32_t esp__same_names(esp__arena *arena, const esp_plan_tensor *t, uint32_t n, uint32_t *first);
/* Checks the inputs and makes the problem; fails if the constraints leave no option. Memory comes from `arena`, whose
 * on_failure must be set. The inputs must outlive the problem. */
ESP__FN esp_status esp__problem_open(esp__problem *p, esp__arena *arena, const esp_plan_model *model,
                                     const esp_plan_codec *codecs, uint32_t n_codecs, const esp_plan_system *system,
                                     const esp_plan_config *config, bool free_compression);

/* The candidate options of a unit, made at the first call. Groups and chunks get the core of a similar size's set, with
 * their own times. The constraint is that of the unit's first tensor (only tensors with equal constraints are merged).
 * Never empty. */
ESP__FN const esp__candidates *esp__candidates_get(esp__problem *p, const esp__extent *u);
/* The path for this option and codec, even if a constraint excludes it or another path dominates it; NULL if it cannot
 * run on this system. */
ESP__FN const esp__path *esp__path_make(esp__problem *p, const esp__extent *u, const char *option, uint32_t codec);
ESP__FN const esp__path *esp__path_of(esp__problem *p, const esp__extent *u, const esp__option *o, uint32_t codec);
/* Bytes that one rank holds before op `k`: what a collective sends, or what a codec, copy or pack reads or writes as
 * f32. */
ESP__FN uint64_t esp__op_bytes(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k);

/* Adds the bytes that op `k` sends: by one rank to out[0], through one machine's NIC to out[1], through one rack's
 * uplink to out[2]. */
ESP__FN void esp__op_traffic(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k,
                             double out[ESP__LEVELS]);
/* Whether the option uses the system's levels, with several ranks in each of its scopes. */
ESP__FN int esp__option_fits_system(const esp__problem *p, const esp__option *o);
/* Whether the configuration's forbid, only, max_comp, devices and NO_COMP allow the option. */
ESP__FN int esp__option_permitted(const esp__problem *p, const esp__option *o);

/* ---- cost.c ------------------------------------------------------------------------------------------------------ */
ESP__FN uint32_t esp__hops(uint32_t coll, uint32_t n); /* sequential hops among n ranks */
/* Bytes that one of n ranks sends. before, piece: as in esp__collective_ns. */
ESP__FN double esp__traffic(uint32_t coll, double n, double before, double piece);
ESP__FN double esp__curve_at(const esp_cost_curve *c, double size);
ESP__FN uint32_t esp__system_levels(const esp_plan_system *s);
ESP__FN uint32_t esp__system_size(const esp_plan_system *s, uint32_t level);
ESP__FN const esp_plan_link *esp__system_link(const esp_plan_system *s, uint32_t level);
/* The link whose measured tables describe collectives of this scope; NULL if none does. */
ESP__FN const esp_plan_link *esp__system_tables(const esp_plan_system *s, uint32_t scope);
/* Time of one collective. before: bytes that a rank holds before it. piece: bytes of one of the n parts of the buffer,
 * or of one rank's contribution. flows: groups that run it at the same time over the same links. */
ESP__FN double esp__collective_ns(const esp_plan_system *s, uint32_t scope, uint32_t coll, double before, double piece,
                                  uint32_t flows);
/* The same, from one of the level's measured curves (time, gap or core time). */
ESP__FN double esp__measured_ns(const esp_plan_system *s, const esp_cost_curve *curve, uint32_t scope, uint32_t coll,
                                double before, double piece, uint32_t flows);
ESP__FN double esp__payload_bytes(const esp_plan_codec *c, uint64_t elements);
/* ---- problem/rounds.c: codecs whose bound() determines the bytes of payloads ------------------------------------- */
/* The columns of a unit that is a matrix, if a codec uses them; else 0. */
ESP__FN uint64_t esp__unit_cols(const esp__problem *p, const esp__extent *u);
/* Whether one of the tensors [first, first + n) must stay raw because it is small. */
static inline int esp__has_small(const esp__problem *p, uint32_t first, uint32_t n) {
    return p->n_small && p->n_small[first + n] > p->n_small[first];
}
/* The number of the constraint on a unit of these tensors. */
static inline uint32_t esp__keep_of(const esp__problem *p, uint32_t first, uint32_t n) {
    return esp__has_small(p, first, n) ? p->keep_raw : p->keep[first];
}
/* The rounds that such a unit runs with the codec; 0 if the codec cannot compress it. */
ESP__FN uint32_t esp__unit_rounds_run(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols);
/* Bytes of a part's payload in the op's round, as the executor sizes it; negative if the codec cannot compress it.
 * *state (may be NULL) gets the bytes of the codec's state. */
ESP__FN double esp__round_bytes(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                const esp_plan_codec *c, uint64_t part, uint64_t *state);
/* Bytes of all payloads of a unit that is compressed whole. */
ESP__FN double esp__unit_volume(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols);
/* Copies an opened codec's rounds and bound() to `out`, if sizes depend on round or shape. */
ESP__FN void esp__plan_codec_rounds(esp_plan_codec *out, const esp_codec *table, const esp_traits *traits, void *self);
ESP__FN uint32_t esp__rounds_of(const esp_plan_codec *c); /* at least 1 */
/* Whether the codec takes matrices and this unit is none. */
ESP__FN int esp__codec_vector(const esp_plan_codec *c, uint64_t cols);
/* The error of one compression of such a unit, and the curve of its times on a device. */
ESP__FN double esp__codec_error(const esp_plan_codec *c, uint64_t cols);
ESP__FN const esp_cost_curve *esp__codec_curve(const esp_plan_codec *c, uint64_t cols, int decompress, int device);
/* The curve of a Decomp's second and further payloads, if the first has curve `first`; NULL if it is the same curve. */
ESP__FN const esp_cost_curve *esp__decompress_more(const esp_plan_codec *c, const esp_cost_curve *first, int device);
/* Whether the codec's payloads can pass the collective; the executor refuses those that cannot. */
ESP__FN int esp__payloads_pass(const esp_plan_codec *c, const esp__op_template *op);

/* ---- simulate.c -------------------------------------------------------------------------------------------------- */
/* The makespan if every lane runs its ops in the order in which they become ready (docs/design/planner.md, "Rules of
 * time"). `sequence` (may be NULL) gets the order. */
ESP__FN uint64_t esp__by_ready(esp__problem *p, const esp__schedule *d, uint32_t *sequence);
/* The same for the schedule's own sequence and makespan, which it sets. */
ESP__FN uint64_t esp__generate(esp__problem *p, esp__schedule *d);
/* The same, but ops on links follow `links`: a list of units, each once per op that it has on a link. UINT64_MAX if ops
 * would wait for each other in a circle. */
ESP__FN uint64_t esp__generate_with(esp__problem *p, esp__schedule *d, const uint32_t *links, uint32_t n_links);
/* The makespan of schedule->sequence as it is: the length of the longest path. Shortening an op never makes it
 * longer. */
ESP__FN uint64_t esp__replay(const esp__problem *p, const esp__schedule *d);
ESP__FN uint32_t esp__sequence_length(const esp__problem *p, const esp__schedule *d);
ESP__FN void esp__sequence_room(esp__problem *p, esp__schedule *d); /* allocates it, sets n_sequence */
/* esp__lanes_free returns the first time from `ready` on when all of an op's lanes are free; esp__lanes_take occupies
 * them from `start` on. */
ESP__FN uint64_t esp__lanes_free(const uint64_t *free_at, uint32_t lanes, uint64_t ready);
ESP__FN void esp__lanes_take(uint64_t *free_at, uint32_t lanes, uint64_t start, const esp__op_time *time);
static inline esp__op_time esp__backward_time(uint64_t ns) {
    const esp__op_time time = {ns, ns, 0};
    return time;
}
static inline uint64_t esp__kept(const esp__op_time *time,
                                 uint32_t lane) { /* How long an op occupies this one of its lanes. */
    return ESP__CORE_LANES >> lane & 1u ? time->core : time->link;
}
/* Writes every op with its times to out[n_sequence], in the order of the sequence. */
ESP__FN void esp__timeline(const esp__problem *p, const esp__schedule *d, esp_plan_event *out);

/* ---- schedule.c -------------------------------------------------------------------------------------------------- */
/* These set the units (one per tensor, or those given) and clear the paths. */
ESP__FN void esp__schedule_tensors(esp__problem *p, esp__schedule *d);
ESP__FN void esp__schedule_set_units(esp__problem *p, esp__schedule *d, const esp__extent *units, uint32_t n);
ESP__FN void esp__schedule_copy(esp__problem *p, esp__schedule *to,
                                const esp__schedule *from); /* deep, except for the paths */
/* Copies `from` to `to` if it is shorter or `to` is empty; returns 1 if it did. */
ESP__FN int esp__schedule_keep_better(esp__problem *p, esp__schedule *to, const esp__schedule *from);
/* Whether it is within config.max_memory_bytes, max_volume and max_error. */
ESP__FN int esp__schedule_allowed(const esp__problem *p, const esp__schedule *d);
ESP__FN int esp__out_of_time(const esp__problem *p);
/* text.c: the strategy as text: the format's first line, `comment` (lines with '#', or ""), units and order. The caller
 * frees it. */
ESP__FN char *esp__schedule_text(esp__problem *p, const esp__schedule *d, const char *comment);

/* ---- bound.c ----------------------------------------------------------------------------------------------------- */
typedef struct esp__bound {
    uint64_t ns;                   /* no strategy with these units has a smaller makespan */
    double lane_price[ESP__LANES]; /* weight of each lane in the bound; they sum to at most 1 */
    double (*price)[ESP__LANES];   /* [n_units] price of a nanosecond of the unit on each lane */
    /* [n_units] price of a nanosecond of the unit's path, on any lane */
    double *chain_price;
} esp__bound;
/* A lower bound for these units. */
ESP__FN void esp__bound_units(esp__problem *p, const esp__extent *units, uint32_t n_units, esp__bound *out);
/* A lower bound for every way to merge and split the problem's tensors. */
ESP__FN uint64_t esp__bound_any(esp__problem *p);

/* ---- schemes: one file each in planner/baselines/ ---------------------------------------------------------------- */
typedef struct esp__scheme {
    const char *name, *summary, *source; /* source: section of the paper, or program whose default it is */
    void (*make)(esp__problem *p, esp__schedule *d);
    /* The only codec that it uses, with built-in costs if none were given; NULL: any. */
    const char *codec;
} esp__scheme;
/* Whether the strategy's codec is missing from the given costs. */
ESP__FN int esp__scheme_brings_codec(const esp__problem *p, const esp__scheme *s);
ESP__FN const esp__scheme *esp__scheme_find(const char *name);
ESP__FN const esp__scheme *esp__schemes(void); /* in the order of display; the last has no name */

/* ---- search ------------------------------------------------------------------------------------------------------ */
ESP__FN void esp__algorithm1(esp__problem *p, esp__schedule *d); /* chooses paths */
ESP__FN void esp__algorithm2(esp__problem *p, esp__schedule *d); /* moves compression to the CPU */
ESP__FN void esp__search_all(esp__problem *p, esp__schedule *d); /* the whole search */
/* ---- plan.c: for the autopilot ----------------------------------------------------------------------------------- */
/* esp_plan_make, or esp_plan_simulate if `strategy` is not NULL, in memory of the context's allocator. Reads nothing
 * else of ctx, so it may run beside training. */
ESP__FN esp_status esp__plan_make_for(esp_ctx *ctx, const esp_plan_model *model, const esp_plan_codec *codecs,
                                      uint32_t n_codecs, const esp_plan_system *system, const esp_plan_config *config,
                                      const char *strategy, esp_plan **out);
#endif
