/* plan.h: the structs that the planner's files share. All times are integer nanoseconds; time 0 is the start of
 * the backward pass. The planner's words:
 *
 *   option             the steps that synchronise a unit: Comp (compress), Decomp and collectives (strategy/option.h)
 *   op                 one step of an option, or a copy or pack that it needs; it runs on one or several lanes
 *   lane               a resource that runs one op at a time: compute, cpu, the link of a level, a progress thread
 *   scope              the levels over which a collective runs: one (intra, inter, outer), several, or all (flat)
 *   unit               what is synchronised as one: a tensor, a chunk of one, or a group of neighbours
 *   constraint         a tensor's restriction to some options, from `keep` or because the tensor is small
 *   path               an option for one size and codec, with the times of its ops; its load is its time on a lane
 *   candidate options  the paths for one size that a search considers: those that no other path dominates
 *   schedule           one strategy: units, a path for each, and the sequence in which all ops take their lanes */
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
    /* An allocation that fails jumps here, so that callers need no checks. */
    jmp_buf *on_failure;
    esp_ctx *ctx; /* allocates the blocks; if NULL, calloc does */
} esp__arena;
typedef struct esp__checkpoint {
    esp__block *block;
    uint64_t used;
} esp__checkpoint;
/* The memory is zeroed and aligned to 16 bytes. The function never returns NULL. */
ESP__FN void *esp__arena_get(esp__arena *arena, uint64_t bytes);
/* Returns an array of `bytes` that begins with a copy of the first `used` bytes of `old`. */
ESP__FN void *esp__arena_grow(esp__arena *arena, const void *old, uint64_t used, uint64_t bytes);
ESP__FN esp__checkpoint esp__arena_checkpoint(const esp__arena *arena);
ESP__FN void esp__arena_rewind(esp__arena *arena, esp__checkpoint mark); /* frees what was allocated since `mark` */
ESP__FN void esp__arena_free(esp__arena *arena);
ESP__FN char *esp__arena_text(esp__arena *arena, const char *text);

/* ---- problem/templates.c: the options that one system allows, as ops without sizes ------------------------------- */
/* The most ops that an option can have. Each codec round repeats steps; host copies and packs are ops too. */
enum { ESP__MAX_OPS = ESP__CHAIN_MAX + ESP__MAX_STEPS };
/* A cut is one way to divide a unit among ranks, by a set of scopes that share no level. Its largest part has the size
 * of the unit divided by the ranks of each scope, inner scopes first, rounded up each time. Cut 0 leaves it whole. */
enum { ESP__CUTS = 16 };
/* Which ranks of a machine run an op. ALL: every rank. ONE: only the machine's root. SPREAD: the ranks that are roots
 * of groups that span machines; the roots of different groups are on different machines. */
enum { ESP__FLOWS_ALL = 0, ESP__FLOWS_ONE, ESP__FLOWS_SPREAD };
/* One op of an option. The unit's size and the codec are not known yet. */
typedef struct esp__op_template {
    uint8_t kind;
    uint8_t lanes;                                 /* bits 1 << ESP__LANE_* */
    uint8_t device;                                /* device on which a Comp or Decomp runs */
    uint8_t coll, level, role, compressed, summed; /* set for collectives only */
    /* The cut that divides a rank's numbers before the op, or the content of each payload. */
    uint8_t cut;
    /* Before the op, a rank holds this many payloads: the product of (ranks of scope s) to the power slots[s], over
     * all s. */
    uint8_t slots[ESP__SCOPES];
    uint8_t slots_after[ESP__SCOPES]; /* the same exponents after the op */
    /* For a Decomp: the number of payloads that it sums into the same elements, as exponents like `slots`. */
    uint8_t sources[ESP__SCOPES];
    uint8_t parts;    /* cut of each payload's content after the op */
    uint8_t flows;    /* which ranks run it, ESP__FLOWS_* */
    uint32_t on_cpu;  /* ranks of one machine that run it on the same CPU */
    uint32_t on_link; /* for a collective, ranks that share its innermost link */
    bool reverse;     /* true for copies from the host and for unpacks */
    /* Rounds that the unit runs with a codec that has bound(), so that payload sizes depend on round and shape; else 0.
     */
    uint8_t n_rounds;
    uint8_t early; /* number of rounds that follow this op's round */
    /* A collective of a round before the last comes this many steps after its Comp in the option. */
    uint8_t ahead;
    /* The scopes (bits) over which the op's codec round sums payload bodies, which are payloads without headers. */
    uint16_t reduced;
} esp__op_template;

/* The sizes of the parts into which each cut divides a unit. */
typedef struct esp__shape {
    uint64_t size[ESP__CUTS]; /* for each cut, elements of the largest part */
    uint64_t elements, cols;  /* of the whole unit; cols is 0 for a vector */
} esp__shape;
/* `codec` may be NULL. */
ESP__FN void esp__shape_make(const esp__problem *p, uint64_t elements, uint64_t cols, const esp_plan_codec *codec,
                             esp__shape *out);

/* ---- problem/candidates.c ---------------------------------------------------------------------------------------- */
/* How long an op takes and how long it occupies its lanes (the LogGP model of Alexandrov, Ionescu, Schauser, Scheiman
 * 1995). An op starts when all its lanes are free, and may release its core before its links, or its links first. */
typedef struct esp__op_time {
    uint64_t ns;   /* from its start until the unit's next op may start */
    uint64_t core; /* time that it occupies its core lane (overhead, o) */
    /* Time that the op occupies its links (gap, g). The latency L is ns - link. */
    uint64_t link;
} esp__op_time;
typedef struct esp__plan_op {
    esp__op_time time;
    uint8_t lanes;
    uint8_t kind;
    uint8_t step; /* index of the step in the option */
    bool reverse;
    uint8_t round;        /* codec round, as in esp_plan_event */
    uint32_t op_template; /* index in problem.op_templates */
} esp__plan_op;
typedef struct esp__path {
    const esp__plan_op *ops;
    uint32_t n;
    /* An index in problem.codecs, or ESP__NO_CODEC if the path does not compress. */
    uint32_t codec;
    uint32_t rounds;           /* rounds that the codec runs, at least 1 */
    uint64_t total;            /* sum of all ops' times */
    uint64_t load[ESP__LANES]; /* time that the ops occupy each lane */
    uint64_t memory;           /* bytes of residuals and payload buffers */
    uint64_t volume;           /* bytes of all payloads, or of the raw numbers */
    double error;              /* compression error of the codec, times elements */
    const esp__option *option;
} esp__path;
#define ESP__NO_CODEC 0xffffffffu
typedef struct esp__candidates {
    uint64_t elements, cols; /* cols is 0 if no codec needs a matrix */
    uint32_t n_pieces;       /* tensors in the unit; if several, they are packed */
    uint32_t keep;           /* number of the unit's constraint; 0 if it has none */
    uint32_t width;          /* ESP__WIDTH_* with which the paths were compared */
    bool retimed;            /* paths come from a similar size, with new times */
    bool limited;            /* paths were also compared by memory, volume and error */
    uint32_t n;
    double (*core)[ESP__LANES + 1]; /* loads and total time of each core path */
    /* The first n_core paths are the core: no path is faster than one of them on all lanes and in total. */
    uint32_t n_core;
    const esp__path *paths;       /* each of the two parts is sorted by total time */
    struct esp__candidates *next; /* next entry in the same bucket of the hash table */
} esp__candidates;

/* Path a dominates path b, so that b is dropped, if (each width demands more than the one before it):
 *   LOADS  a needs no more time than b on any lane and in total. This leaves the fewest paths and suffices for search.
 *   ENDS   also, a's time before its first op and after its last op on each link is no longer. Bounds need this.
 *   EXACT  also, a's ops occur among b's, in order and none longer. Then a in place of b never lengthens a step. */
enum { ESP__WIDTH_LOADS = 0, ESP__WIDTH_ENDS, ESP__WIDTH_EXACT };

/* The planner drops an op that holds more payload bytes than both limits: the unit's bytes times the first, and the
 * second in MiB. */
enum { ESP__WASTE_TIMES = 16, ESP__WASTE_MIB = 256 };

/* Returns the size of the largest of n parts of e. */
static inline uint64_t esp__part_of(uint64_t e, uint64_t n) { return (e + n - 1) / n; }

#define ESP__SHARD_ANY "any"        /* value of esp_plan_tensor.shard that allows every cut */
typedef struct esp__tree esp__tree; /* all allowed options, as a graph */

/* ---- schedules --------------------------------------------------------------------------------------------------- */
#define ESP__NEXT_BACKWARD 0xffffffffu
#define ESP__NOTHING_RAN 0xfffffffeu
/* One strategy. `sequence` lists every op once, after the ops that it needs. An entry u is the next op of unit u;
 * ESP__NEXT_BACKWARD is the backward of the next tensor. Each lane runs its ops in this order (docs/design/planner.md,
 * "Rules of time"). */
typedef struct esp__schedule {
    uint32_t n_units, n_sequence;
    esp__extent *units; /* in backward order; a unit is ready with its last tensor */
    const esp__path **paths;
    uint32_t *sequence;
    uint64_t makespan;                  /* from the start of backward to the end of the last op */
    uint32_t room_units, room_sequence; /* allocated entries of the arrays */
} esp__schedule;

/* ---- problem.c --------------------------------------------------------------------------------------------------- */
struct esp__problem {
    esp__arena *arena;
    const esp_plan_model *model;
    const char *model_name; /* never NULL, has no line breaks */
    const esp_plan_codec *codecs;
    uint32_t n_codecs;
    esp_plan_system system;
    esp_plan_config config;
    uint64_t n_tensors;
    const uint64_t *compute; /* backward time of each tensor */
    /* Time at which each tensor's gradient exists: the sum of `compute` up to it. */
    const uint64_t *ready;
    const uint32_t *keep; /* number of each tensor's constraint; 0 if it has none */
    /* n_small[i] of the tensors before i must stay raw because they are small. NULL if no tensor must. */
    const uint32_t *n_small;
    uint32_t keep_raw; /* the constraint of small tensors, which stay raw */
    uint32_t n_levels, n_lanes;
    uint32_t size[ESP__SCOPES]; /* ranks of each scope; 0 if the system does not have it */
    uint16_t cuts[ESP__CUTS];   /* scopes of each cut, as bits */
    uint32_t n_cuts;
    /* There are several machines with several ranks each, so that hierarchical options exist. */
    bool hierarchical;
    /* The model has too many sizes to make candidate options for each. Similar sizes then share them, and the bound for
     * whole tensors is not computed. */
    bool approximate;
    bool free_compression; /* Comp, Decomp and host copies take no time */
    const esp__op_template *op_templates;
    uint32_t n_op_templates;
    esp__tree **trees; /* allowed options for each constraint */
    uint32_t n_keeps;
    esp__candidates **candidate_sets; /* hash table of all sets made so far */
    uint32_t n_candidate_slots, n_candidate_sets;
    uint32_t width;                       /* ESP__WIDTH_* for sets that are made from now on */
    const esp__extent *whole;             /* every tensor as a unit; schedule.c fills it */
    esp__extent *cut_units;               /* scratch of regroup.c */
    struct esp__incremental *incremental; /* scratch of simulate/incremental.c */
    esp__schedule spare[4];               /* scratch of initial.c ([0], [1]) and urgency.c ([2]) */
    struct esp__timing *timing;           /* scratch of candidates.c */
    struct esp__prefix **heads;           /* scratch of candidates.c, one entry per node of a tree */
    const esp__schedule *fp32;            /* plan without compression; NULL until it is made */
    const struct esp__bound *bound;       /* lower bound for whole tensors, or NULL */
    double effort;                        /* search time relative to the default, which is 1 */
    uint64_t seed;
    /* `work` counts the ops evaluated so far. The search stops at work_end, unless it is 0, on every machine alike. */
    uint64_t work, work_end;
    bool core_ops;        /* collectives occupy a core lane too */
    uint64_t deadline_ns; /* end of planning by esp__now_ns(); 0 if there is none */
    uint32_t most_rounds; /* most rounds of any codec with bound(), or 0 */
};
/* Finds two tensors with equal names. Returns the second one's index and sets *first to the first one's index; returns
 * n if all names differ. */
ESP__FN uint32_t esp__same_names(esp__arena *arena, const esp_plan_tensor *t, uint32_t n, uint32_t *first);
/* Checks the inputs, which must outlive the problem, and makes the problem. Fails if the constraints leave no option.
 * Memory comes from `arena`, whose on_failure must be set. */
ESP__FN esp_status esp__problem_open(esp__problem *p, esp__arena *arena, const esp_plan_model *model,
                                     const esp_plan_codec *codecs, uint32_t n_codecs, const esp_plan_system *system,
                                     const esp_plan_config *config, bool free_compression);

/* Returns the candidate options of a unit, at least one, and makes them at the first call. For a group or chunk, the
 * options are the core for a similar size, timed for this size. All tensors of a unit have the same constraint. */
ESP__FN const esp__candidates *esp__candidates_get(esp__problem *p, const esp__extent *u);
/* Makes the path for this option and codec, even if a constraint excludes it or another path dominates it. Returns
 * NULL if the option cannot run on this system. */
ESP__FN const esp__path *esp__path_make(esp__problem *p, const esp__extent *u, const char *option, uint32_t codec);
ESP__FN const esp__path *esp__path_of(esp__problem *p, const esp__extent *u, const esp__option *o, uint32_t codec);
/* Returns the bytes that one rank holds before op `k`: the bytes that a collective sends, or another op processes. */
ESP__FN uint64_t esp__op_bytes(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k);

/* Adds the bytes that op `k` sends: out[0] gets those of one rank, out[1] those through one machine's network card,
 * out[2] those through one rack's uplink. */
ESP__FN void esp__op_traffic(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k,
                             double out[ESP__LEVELS]);
/* Whether the option uses all levels of the system, and each of its scopes has several ranks. */
ESP__FN int esp__option_fits_system(const esp__problem *p, const esp__option *o);
/* Whether the option obeys the members forbid, only, max_comp and devices of the configuration, and NO_COMP. */
ESP__FN int esp__option_permitted(const esp__problem *p, const esp__option *o);

/* ---- cost.c ------------------------------------------------------------------------------------------------------ */
ESP__FN uint32_t esp__hops(uint32_t coll, uint32_t n); /* messages that n ranks send one after another */
/* Returns the bytes that one of n ranks sends. `before` and `piece` are as in esp__collective_ns. */
ESP__FN double esp__traffic(uint32_t coll, double n, double before, double piece);
ESP__FN double esp__curve_at(const esp_cost_curve *c, double size);
ESP__FN uint32_t esp__system_levels(const esp_plan_system *s);
ESP__FN uint32_t esp__system_size(const esp_plan_system *s, uint32_t level);
ESP__FN const esp_plan_link *esp__system_link(const esp_plan_system *s, uint32_t level);
/* Returns the link whose measured tables describe collectives of this scope, or NULL if no link has them. */
ESP__FN const esp_plan_link *esp__system_tables(const esp_plan_system *s, uint32_t scope);
/* Returns the time of one collective. A rank holds `before` bytes before it. `piece` is the bytes of one of the n parts
 * of the buffer, or of one rank's contribution. `flows` groups run it at the same time over the same links. */
ESP__FN double esp__collective_ns(const esp_plan_system *s, uint32_t scope, uint32_t coll, double before, double piece,
                                  uint32_t flows);
/* Like esp__collective_ns, but reads the time, gap or core time from the measured `curve`. */
ESP__FN double esp__measured_ns(const esp_plan_system *s, const esp_cost_curve *curve, uint32_t scope, uint32_t coll,
                                double before, double piece, uint32_t flows);
ESP__FN double esp__payload_bytes(const esp_plan_codec *c, uint64_t elements);
/* ---- problem/round_sizes.c: codecs whose bound() determines the bytes of payloads -----------------------------------
 */
/* Returns the columns of a unit that is a matrix, if a codec uses them; else 0. */
ESP__FN uint64_t esp__unit_cols(const esp__problem *p, const esp__extent *u);
/* Whether any of the tensors [first, first + n) must stay raw because it is small. */
static inline int esp__has_small(const esp__problem *p, uint32_t first, uint32_t n) {
    return p->n_small && p->n_small[first + n] > p->n_small[first];
}
/* Returns the number of the constraint on a unit that consists of these tensors. */
static inline uint32_t esp__keep_of(const esp__problem *p, uint32_t first, uint32_t n) {
    return esp__has_small(p, first, n) ? p->keep_raw : p->keep[first];
}
/* Returns the rounds that the codec runs for a unit of this size, or 0 if it cannot compress it. */
ESP__FN uint32_t esp__unit_rounds_run(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols);
/* Returns the bytes of a part's payload in the op's round, as the executor computes them; negative if the codec cannot
 * compress the part. Sets *state, unless it is NULL, to the bytes of the codec's state. */
ESP__FN double esp__round_bytes(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                const esp_plan_codec *c, uint64_t part, uint64_t *state);
/* Returns the bytes of the payloads of all rounds, for a unit that one rank compresses whole. */
ESP__FN double esp__unit_volume(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols);
/* Copies the number of rounds and bound() of an opened codec to `out`, if payload sizes depend on round or shape. */
ESP__FN void esp__plan_codec_rounds(esp_plan_codec *out, const esp_codec *table, const esp_traits *traits, void *self);
ESP__FN uint32_t esp__rounds_of(const esp_plan_codec *c); /* returns at least 1 */
/* Whether the codec takes matrices and the unit, with these columns, is a vector. */
ESP__FN int esp__codec_vector(const esp_plan_codec *c, uint64_t cols);
/* The error of one compression of a unit with these columns, and the curve of its times on a device. */
ESP__FN double esp__codec_error(const esp_plan_codec *c, uint64_t cols);
ESP__FN const esp_cost_curve *esp__codec_curve(const esp_plan_codec *c, uint64_t cols, int decompress, int device);
/* Returns the curve of a Decomp's second and further payloads. The curve of the first payload is `first`; if both are
 * the same, returns NULL. */
ESP__FN const esp_cost_curve *esp__decompress_more(const esp_plan_codec *c, const esp_cost_curve *first, int device);
/* Whether the collective can transfer or sum the codec's payloads. The executor rejects strategies where it cannot. */
ESP__FN int esp__payloads_pass(const esp_plan_codec *c, const esp__op_template *op);

/* ---- simulate.c -------------------------------------------------------------------------------------------------- */
/* Returns the makespan if every lane runs its ops in the order in which they become ready (docs/design/planner.md,
 * "Rules of time"), and writes that order to `sequence` unless it is NULL. */
ESP__FN uint64_t esp__by_ready(esp__problem *p, const esp__schedule *d, uint32_t *sequence);
/* Like esp__by_ready, but sets the schedule's own sequence and makespan. */
ESP__FN uint64_t esp__generate(esp__problem *p, esp__schedule *d);
/* Like esp__generate, but ops on links follow `links`, which lists each unit once per op that it has on a link. Returns
 * UINT64_MAX if ops would wait for each other in a circle. */
ESP__FN uint64_t esp__generate_with(esp__problem *p, esp__schedule *d, const uint32_t *links, uint32_t n_links);
/* Returns the makespan of schedule->sequence, which it keeps. A shorter op never makes this makespan longer. */
ESP__FN uint64_t esp__replay(const esp__problem *p, const esp__schedule *d);
ESP__FN uint32_t esp__sequence_length(const esp__problem *p, const esp__schedule *d);
ESP__FN void esp__sequence_room(esp__problem *p, esp__schedule *d); /* allocates the sequence and sets n_sequence */
/* esp__lanes_free returns the first time, not before `ready`, at which all of an op's lanes are free. esp__lanes_take
 * occupies them from `start` on. */
ESP__FN uint64_t esp__lanes_free(const uint64_t *free_at, uint32_t lanes, uint64_t ready);
ESP__FN void esp__lanes_take(uint64_t *free_at, uint32_t lanes, uint64_t start, const esp__op_time *time);
static inline esp__op_time esp__backward_time(uint64_t ns) {
    const esp__op_time time = {ns, ns, 0};
    return time;
}
static inline uint64_t esp__kept(const esp__op_time *time,
                                 uint32_t lane) { /* time that an op occupies one of its lanes */
    return ESP__CORE_LANES >> lane & 1u ? time->core : time->link;
}
/* Writes every op with its start and end to out[n_sequence], in the order of the sequence. */
ESP__FN void esp__timeline(const esp__problem *p, const esp__schedule *d, esp_plan_event *out);

/* ---- schedule.c -------------------------------------------------------------------------------------------------- */
/* Both set the units, to one per tensor or to those given, and clear the paths. */
ESP__FN void esp__schedule_tensors(esp__problem *p, esp__schedule *d);
ESP__FN void esp__schedule_set_units(esp__problem *p, esp__schedule *d, const esp__extent *units, uint32_t n);
ESP__FN void esp__schedule_copy(esp__problem *p, esp__schedule *to,
                                const esp__schedule *from); /* the copy shares only the paths */
/* Copies `from` to `to` if it has the shorter makespan or `to` is empty; returns 1 if it did. */
ESP__FN int esp__schedule_keep_better(esp__problem *p, esp__schedule *to, const esp__schedule *from);
/* Whether the schedule stays within max_memory_bytes, max_volume and max_error of the configuration. */
ESP__FN int esp__schedule_allowed(const esp__problem *p, const esp__schedule *d);
ESP__FN int esp__out_of_time(const esp__problem *p);
/* schedule_text.c: returns the text of a strategy file. `comment` follows its first line: lines that start with '#', or
 * "". The caller frees the text. */
ESP__FN char *esp__schedule_text(esp__problem *p, const esp__schedule *d, const char *comment);

/* ---- bound.c ----------------------------------------------------------------------------------------------------- */
typedef struct esp__bound {
    uint64_t ns;                   /* no strategy with these units has a smaller makespan */
    double lane_price[ESP__LANES]; /* weight of each lane in the bound; the sum is at most 1 */
    double (*price)[ESP__LANES];   /* for each unit, price of 1 ns on each lane */
    /* For each unit, the price of 1 ns of its path's total time, on any lane. */
    double *chain_price;
} esp__bound;
/* Computes a lower bound on the makespan of all strategies with these units. */
ESP__FN void esp__bound_units(esp__problem *p, const esp__extent *units, uint32_t n_units, esp__bound *out);
/* Returns a lower bound on the makespan of all strategies, whatever tensors they merge or split. */
ESP__FN uint64_t esp__bound_any(esp__problem *p);

/* ---- schemes: one file each in planner/baselines/ ---------------------------------------------------------------- */
typedef struct esp__scheme {
    const char *name, *summary, *source; /* `source` names the section of the paper, or a program */
    void (*make)(esp__problem *p, esp__schedule *d);
    /* The only codec that the strategy uses, with built-in costs if the caller gives none. NULL allows any codec. */
    const char *codec;
} esp__scheme;
/* Whether the caller's costs lack the codec that the strategy uses. */
ESP__FN int esp__scheme_brings_codec(const esp__problem *p, const esp__scheme *s);
ESP__FN const esp__scheme *esp__scheme_find(const char *name);
ESP__FN const esp__scheme *esp__schemes(void); /* in the order of display; the last one's name is NULL */

/* ---- search ------------------------------------------------------------------------------------------------------ */
ESP__FN void esp__algorithm1(esp__problem *p, esp__schedule *d); /* chooses a path for each unit */
/* moves compression to the CPU where that saves time */
ESP__FN void esp__algorithm2(esp__problem *p, esp__schedule *d);
ESP__FN void esp__search_all(esp__problem *p, esp__schedule *d); /* strategy "espresso+" */
/* ---- plan.c: for the autopilot ----------------------------------------------------------------------------------- */
/* Runs esp_plan_make, or esp_plan_simulate if `strategy` is not NULL, with memory from ctx's allocator. It uses nothing
 * else of ctx, so it may run during training. */
ESP__FN esp_status esp__plan_make_for(esp_ctx *ctx, const esp_plan_model *model, const esp_plan_codec *codecs,
                                      uint32_t n_codecs, const esp_plan_system *system, const esp_plan_config *config,
                                      const char *strategy, esp_plan **out);
#endif
