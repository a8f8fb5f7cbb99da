/* plan.h: the structs that the planner's files share. The planner chooses for every tensor, group of neighbouring
 * tensors or chunk of a tensor (in code: unit) how ranks synchronize it, and in which order all ops run. All times
 * are integer nanoseconds; time 0 is the start of the backward pass. Names in the code:
 *
 *   op                 one compression, decompression, collective or copy
 *   option             the ops that synchronize a unit, one after the other (strategy/option.h)
 *   lane               a processor, thread or link, which runs one op at a time
 *   level              ranks of one machine, machines, racks; a scope is one level, several, or all of them (flat)
 *   keep               a constraint: the user allows a tensor only some options, or it is too small to compress
 *   path               an option for one size and one codec, with the times of its ops
 *   candidates         the paths that the search considers for one size
 *   schedule           a whole plan: units, a path for each, and the order of all ops */
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
    esp__block *blocks, *spare; /* `spare` was given back and is used next */
    /* If an allocation fails, it jumps here, so that callers need no checks. */
    jmp_buf *on_failure;
    esp_ctx *ctx;
} esp__arena;
typedef struct esp__checkpoint {
    esp__block *block;
    uint64_t used;
} esp__checkpoint;
/* Returns zeroed memory, aligned to 16 bytes, and never NULL. */
ESP__FN void *esp__arena_get(esp__arena *arena, uint64_t bytes);
/* Returns an array of `bytes` that begins with a copy of the first `used` bytes of `old`. */
ESP__FN void *esp__arena_grow(esp__arena *arena, const void *old, uint64_t used, uint64_t bytes);
ESP__FN esp__checkpoint esp__arena_checkpoint(const esp__arena *arena);
ESP__FN void esp__arena_rewind(esp__arena *arena, esp__checkpoint mark); /* frees what was allocated since `mark` */
ESP__FN void esp__arena_free(esp__arena *arena);
ESP__FN char *esp__arena_text(esp__arena *arena, const char *text);

/* ---- problem/templates.c: the options that one system allows, as ops without sizes ------------------------------- */
/* The most ops of an option. A codec such as PowerSGD, which exchanges data several times, repeats ops. */
enum { ESP__MAX_OPS = ESP__CHAIN_MAX + ESP__MAX_STEPS };
/* A cut is one way to divide a tensor among ranks: by the ranks of a machine, for example, and then by machines. Cut 0
 * leaves the tensor whole. */
enum { ESP__CUTS = 16 };
/* Which ranks of a machine run an op. ALL: every rank. ONE: only one, the root of the machine's ranks. SPREAD: the
 * ranks that are roots of groups that span machines; different groups have their roots on different machines. */
enum { ESP__FLOWS_ALL = 0, ESP__FLOWS_ONE, ESP__FLOWS_SPREAD };
/* An op of an option before codec and number of elements are filled in. */
typedef struct esp__op_template {
    uint8_t kind;
    uint8_t lanes;
    uint8_t device;
    uint8_t coll, level, role, compressed, summed;
    /* How the tensor is divided before the op: the size of the data that the rank holds, or that each payload
     * encodes. */
    uint8_t cut;
    /* Number of payloads that a rank holds before the op, as exponents: the product of (ranks that a collective over
     * levels s has) to the power slots[s]. */
    uint8_t slots[ESP__SCOPES];
    uint8_t slots_after[ESP__SCOPES]; /* number of payloads after the op, as in `slots` */
    /* For decompression, the number of payloads that are summed into the same elements, as exponents like `slots`. */
    uint8_t sources[ESP__SCOPES];
    uint8_t parts; /* how the tensor is divided after the op, like `cut` */
    uint8_t flows;
    uint32_t on_cpu;  /* ranks of a machine that run it at once on its CPU */
    uint32_t on_link; /* for a collective, ranks that share one network link */
    bool reverse;     /* true for copies from host to device, and for unpacking */
    /* Exchanges that a codec such as PowerSGD needs, whose bound() tells the size of each payload. 0 for other
     * codecs. */
    uint8_t n_rounds;
    uint8_t early; /* how many exchanges follow that of this op */
    /* For a collective of an exchange before the last: how many steps of the option it comes after its compression. */
    uint8_t ahead;
    /* The levels (as bits of ESP__INTRA, ...) over which the op's exchange sums payloads without decoding them. */
    uint16_t reduced;
} esp__op_template;

typedef struct esp__shape {
    uint64_t size[ESP__CUTS]; /* elements of the largest part, for each way to divide */
    uint64_t elements, cols;  /* of the whole; cols is 0 if it is not a matrix */
} esp__shape;
/* Computes the sizes of the parts into which ranks divide `elements`. If the codec takes matrices, parts have whole
 * rows. `codec` may be NULL. */
ESP__FN void esp__shape_make(const esp__problem *p, uint64_t elements, uint64_t cols, const esp_plan_codec *codec,
                             esp__shape *out);

/* ---- problem/candidates.c ---------------------------------------------------------------------------------------- */
/* How long an op takes, and how long it occupies its processor and its links (the LogGP model of Alexandrov, Ionescu,
 * Schauser, Scheiman 1995). The op starts when both are free, and may release one before the other. */
typedef struct esp__op_time {
    uint64_t ns;   /* from its start until the option's next op may start */
    uint64_t core; /* time that it occupies its processor (LogGP's overhead o) */
    /* Time that it occupies its links (LogGP's gap g). The latency L is ns - link. */
    uint64_t link;
} esp__op_time;
typedef struct esp__plan_op {
    esp__op_time time;
    uint8_t lanes;
    uint8_t kind;
    uint8_t step; /* index of its step in the option; a copy has that of a neighbour */
    bool reverse;
    uint8_t round;
    uint32_t op_template;
} esp__plan_op;
typedef struct esp__path {
    const esp__plan_op *ops;
    uint32_t n;
    /* index in problem.codecs; ESP__NO_CODEC if nothing is compressed */
    uint32_t codec;
    uint32_t rounds; /* how often the codec exchanges payloads, usually once */
    uint64_t total;
    uint64_t load[ESP__LANES]; /* how long the ops occupy each processor and link */
    uint64_t memory;           /* bytes of residuals and payload buffers */
    uint64_t volume;           /* bytes of all payloads, or of uncompressed numbers */
    double error;              /* compression error of the codec times elements */
    const esp__option *option;
} esp__path;
#define ESP__NO_CODEC 0xffffffffu
/* The candidate that costs least at the current prices (initial.c). */
typedef struct esp__cheapest_option {
    uint64_t prices;       /* problem.prices when it was found */
    uint32_t option, open; /* its index, and how many candidates the search may choose now */
} esp__cheapest_option;
typedef struct esp__candidates {
    uint64_t elements, cols;
    uint32_t n_pieces; /* tensors in the group; several are copied together first */
    uint32_t keep;
    bool retimed; /* options are those of a similar size, with new times */
    uint32_t n;
    double (*times)[ESP__LANES + 1]; /* load[] and total of each option */
    const esp__path *paths;          /* sorted by total time */
    esp__cheapest_option *cheapest;
    struct esp__candidates *next;
} esp__candidates;

/* The planner drops an op that holds more payload bytes than both limits: this many times the tensor's own bytes, and
 * this many MiB. */
enum { ESP__WASTE_TIMES = 16, ESP__WASTE_MIB = 256 };

static inline uint64_t esp__part_of(uint64_t e, uint64_t n) { return (e + n - 1) / n; }

#define ESP__SHARD_ANY "any" /* value of esp_plan_tensor.shard that allows every division */
typedef struct esp__tree esp__tree;

/* ---- schedules --------------------------------------------------------------------------------------------------- */
#define ESP__NEXT_BACKWARD 0xffffffffu
#define ESP__NOTHING_RAN 0xfffffffeu
/* A whole plan. `sequence` is the order in which ops get their processors and links. An entry u is the next op of
 * units[u]; ESP__NEXT_BACKWARD is the backward computation of the next tensor. */
typedef struct esp__schedule {
    uint32_t n_units, n_sequence;
    esp__extent *units; /* what is synchronized as one, in the order of the backward pass */
    const esp__path **paths;
    uint32_t *sequence;
    uint64_t makespan; /* time from the start of backward to the end of the last op */
    uint32_t room_units, room_sequence;
} esp__schedule;

/* ---- problem.c --------------------------------------------------------------------------------------------------- */
struct esp__problem {
    esp__arena *arena;
    const esp_plan_model *model;
    const char *model_name;
    const esp_plan_codec *codecs;
    uint32_t n_codecs, n_free_codecs; /* the latter without those of esp_plan_config.n_kept_codecs */
    esp_plan_system system;
    esp_plan_config config;
    uint64_t n_tensors;
    const uint64_t *compute; /* backward time of each tensor, in ns */
    /* When each tensor's gradient is ready: the sum of `compute` up to it. */
    const uint64_t *ready;
    const uint32_t *keep; /* each tensor's constraint; 0 if it has none */
    /* How many of the first i tensors are too small to compress: now, and with the usual limit, if that is larger. NULL
     * if none is. */
    const uint32_t *n_small, *n_small_usual;
    uint32_t keep_raw;
    uint32_t n_levels, n_lanes;
    uint32_t size[ESP__SCOPES]; /* ranks of a collective over these levels, or 0 */
    uint16_t cuts[ESP__CUTS];   /* ways to divide a tensor among ranks */
    uint32_t n_cuts;
    /* Whether there are several machines with several ranks each; if not, options treat all ranks alike. */
    bool hierarchical;
    /* True if the model has too many sizes to compare options for each of them. Similar sizes then share options. */
    bool approximate;
    bool free_compression; /* whether compression and copies to the host take no time */
    const esp__op_template *op_templates;
    uint32_t n_op_templates;
    esp__tree **trees; /* the options that each constraint allows */
    uint32_t n_keeps;
    esp__candidates **candidate_sets;
    uint32_t n_candidate_slots, n_candidate_sets;
    const esp__extent *whole; /* each tensor on its own */
    esp__extent *cut_units;
    struct esp__incremental *incremental;
    struct esp__ranked *ranked; /* the last result of esp__ranking, and its room */
    uint32_t n_ranked, room_ranked;
    const esp__candidates **sets; /* memory of initial.c */
    uint32_t room_sets;
    uint64_t prices;        /* how often prices were set */
    esp__schedule spare[2]; /* [0] for search.c, [1] for initial.c */
    struct esp__timing *timing;
    struct esp__prefix **heads;
    const esp__schedule *fp32; /* the plan without compression; NULL until it is made */
    esp__schedule *layerwise;  /* strategy layerwise with each codec; n_units is 0 until one is made */
    double effort;             /* how much to search; 1 is usual */
    uint64_t seed;             /* of the search's random numbers */
    uint32_t allow;            /* which options the search may choose now (search.h) */
    /* `work` counts the ops evaluated so far. The search stops at work_end (0: never), so that it is the same on every
     * machine. */
    uint64_t work, work_end;
    bool core_ops;        /* whether collectives need a processor too, not only links */
    uint64_t deadline_ns; /* when planning must end, by esp__now_ns(); 0: no limit */
    uint32_t most_rounds; /* most exchanges that any codec needs */
};
/* Finds two tensors with the same name. Sets *first to the index of the first and returns that of the second, or n if
 * all names differ. */
ESP__FN uint32_t esp__same_names(esp__arena *arena, const esp_plan_tensor *t, uint32_t n, uint32_t *first);
/* Checks the inputs and keeps pointers to them. Fails if no option is left for some tensor. Memory comes from `arena`,
 * whose on_failure must be set. */
ESP__FN esp_status esp__problem_open(esp__problem *p, esp__arena *arena, const esp_plan_model *model,
                                     const esp_plan_codec *codecs, uint32_t n_codecs, const esp_plan_system *system,
                                     const esp_plan_config *config, bool free_compression);

/* Returns the options to consider for a tensor, group or chunk: at least one. Groups and chunks get the options of a
 * similar size, timed for their own size. */
ESP__FN const esp__candidates *esp__candidates_get(esp__problem *p, const esp__extent *u);
/* Times this option with this codec, even if the user forbids it. Returns NULL if it cannot run on this system. */
ESP__FN const esp__path *esp__path_make(esp__problem *p, const esp__extent *u, const char *option, uint32_t codec);
ESP__FN const esp__path *esp__path_of(esp__problem *p, const esp__extent *u, const esp__option *o, uint32_t codec);
ESP__FN uint64_t esp__op_bytes(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k);

/* Adds the bytes that op `k` sends: out[0] gets those of one rank, out[1] those through one machine's network card,
 * out[2] those through one rack's uplink. */
ESP__FN void esp__op_traffic(const esp__problem *p, const esp__extent *u, const esp__path *path, uint32_t k,
                             double out[ESP__LEVELS]);
ESP__FN int esp__option_fits_system(const esp__problem *p, const esp__option *o);
/* Whether the configuration allows the option: forbid, only, max_comp, devices and ESP_PLAN_NO_COMP. */
ESP__FN int esp__option_permitted(const esp__problem *p, const esp__option *o);

/* ---- cost.c ------------------------------------------------------------------------------------------------------ */
ESP__FN uint32_t esp__hops(uint32_t coll, uint32_t n);
/* Returns the bytes that one of n ranks sends. For `before` and `piece` see esp__collective_ns. */
ESP__FN double esp__traffic(uint32_t coll, double n, double before, double piece);
ESP__FN double esp__curve_at(const esp_cost_curve *c, double size);
ESP__FN uint32_t esp__system_levels(const esp_plan_system *s);
ESP__FN uint32_t esp__system_size(const esp_plan_system *s, uint32_t level);
ESP__FN const esp_plan_link *esp__system_link(const esp_plan_system *s, uint32_t level);
/* Returns the link that has measured times of collectives over these levels, or NULL if none has. */
ESP__FN const esp_plan_link *esp__system_tables(const esp_plan_system *s, uint32_t scope);
/* Returns the time of one collective. A rank holds `before` bytes before it. `piece` is the bytes of one of the n parts
 * of the buffer, or of one rank's contribution. `flows` such collectives run at once over the same links. */
ESP__FN double esp__collective_ns(const esp_plan_system *s, uint32_t scope, uint32_t coll, double before, double piece,
                                  uint32_t flows);
/* Like esp__collective_ns, but reads the time from a measured `curve`. */
ESP__FN double esp__measured_ns(const esp_plan_system *s, const esp_cost_curve *curve, uint32_t scope, uint32_t coll,
                                double before, double piece, uint32_t flows);
ESP__FN double esp__payload_bytes(const esp_plan_codec *c, uint64_t elements);
/* ---- problem/round_sizes.c: codecs that exchange payloads several times, or compress matrices -------------------- */
/* Returns the number of matrix columns of the tensor or chunk, or 0 if it is no matrix or no codec takes matrices. */
ESP__FN uint64_t esp__unit_cols(const esp__problem *p, const esp__extent *u);
static inline int esp__has_small(const esp__problem *p, uint32_t first, uint32_t n) {
    return p->n_small && p->n_small[first + n] > p->n_small[first];
}
static inline uint32_t esp__keep_of(const esp__problem *p, uint32_t first, uint32_t n) {
    return esp__has_small(p, first, n) ? p->keep_raw : p->keep[first];
}
/* Returns how often the codec exchanges payloads for a tensor of this size, or 0 if it cannot compress it. */
ESP__FN uint32_t esp__unit_rounds_run(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols);
/* Returns the bytes of a payload that op sends, as the library computes them at run time; negative if the codec cannot
 * compress `part` elements. Sets *state to the bytes of the codec's state; `state` may be NULL. */
ESP__FN double esp__round_bytes(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                const esp_plan_codec *c, uint64_t part, uint64_t *state);
ESP__FN double esp__unit_volume(const esp__problem *p, const esp_plan_codec *c, uint64_t elements, uint64_t cols);
ESP__FN void esp__plan_codec_rounds(esp_plan_codec *out, const esp_codec *table, const esp_traits *traits, void *self);
ESP__FN uint32_t esp__rounds_of(const esp_plan_codec *c);
/* Whether the codec takes matrices, but the data is none (cols is 0). */
ESP__FN int esp__codec_vector(const esp_plan_codec *c, uint64_t cols);
ESP__FN double esp__codec_error(const esp_plan_codec *c, uint64_t cols);
ESP__FN const esp_cost_curve *esp__codec_curve(const esp_plan_codec *c, uint64_t cols, int decompress, int device);
/* Returns the time of each further payload that a decompression adds, as a curve; NULL if it equals `first`, that of
 * the first payload. */
ESP__FN const esp_cost_curve *esp__decompress_more(const esp_plan_codec *c, const esp_cost_curve *first, int device);
/* Whether the collective can transfer or sum the codec's payloads. */
ESP__FN int esp__payloads_pass(const esp_plan_codec *c, const esp__op_template *op);

/* ---- simulate.c -------------------------------------------------------------------------------------------------- */
/* Returns the makespan if every processor and link runs its ops in the order in which they become ready. If `sequence`
 * is not NULL, writes that order to it. */
ESP__FN uint64_t esp__by_ready(esp__problem *p, const esp__schedule *d, uint32_t *sequence);
ESP__FN uint64_t esp__generate(esp__problem *p, esp__schedule *d);
/* Like esp__generate, but ops on links follow the order in `links`. Returns UINT64_MAX if ops would wait for each other
 * in a circle. */
ESP__FN uint64_t esp__generate_with(esp__problem *p, esp__schedule *d, const uint32_t *links, uint32_t n_links);
ESP__FN uint64_t esp__replay(const esp__problem *p, const esp__schedule *d);
ESP__FN uint32_t esp__sequence_length(const esp__problem *p, const esp__schedule *d);
ESP__FN void esp__sequence_room(esp__problem *p, esp__schedule *d);
/* esp__lanes_free returns the first time, not before `ready`, at which all processors and links in `lanes` (bits) are
 * free. esp__lanes_take occupies them from `start` on. */
ESP__FN uint64_t esp__lanes_free(const uint64_t *free_at, uint32_t lanes, uint64_t ready);
ESP__FN void esp__lanes_take(uint64_t *free_at, uint32_t lanes, uint64_t start, const esp__op_time *time);
static inline esp__op_time esp__backward_time(uint64_t ns) {
    const esp__op_time time = {ns, ns, 0};
    return time;
}
static inline uint64_t esp__kept(const esp__op_time *time, uint32_t lane) {
    return ESP__CORE_LANES >> lane & 1u ? time->core : time->link;
}
ESP__FN void esp__timeline(const esp__problem *p, const esp__schedule *d, esp_plan_event *out);

/* ---- schedule.c -------------------------------------------------------------------------------------------------- */
ESP__FN void esp__schedule_tensors(esp__problem *p, esp__schedule *d);
ESP__FN void esp__schedule_set_units(esp__problem *p, esp__schedule *d, const esp__extent *units, uint32_t n);
ESP__FN void esp__schedule_copy(esp__problem *p, esp__schedule *to, const esp__schedule *from);
/* Copies `from` to `to` if `from` has the shorter makespan or `to` is empty. Returns 1 if so. */
ESP__FN int esp__schedule_keep_better(esp__problem *p, esp__schedule *to, const esp__schedule *from);
ESP__FN int esp__schedule_allowed(const esp__problem *p, const esp__schedule *d);
ESP__FN int esp__out_of_time(const esp__problem *p);
/* Returns the text of a strategy file, which the caller frees. `comment` has lines that start with '#', or is "". */
ESP__FN char *esp__schedule_text(esp__problem *p, const esp__schedule *d, const char *comment);

/* ---- bound.c ----------------------------------------------------------------------------------------------------- */
/* Returns a lower bound on the makespan of all plans, whichever tensors they merge or split. */
ESP__FN uint64_t esp__bound(esp__problem *p);

/* ---- schemes: one file each in planner/baselines/ ---------------------------------------------------------------- */
typedef struct esp__scheme {
    const char *name, *summary, *source;
    void (*make)(esp__problem *p, esp__schedule *d);
    /* The only codec that the strategy uses (built-in costs apply if the caller gives none), or NULL. */
    const char *codec;
} esp__scheme;
/* Whether the strategy uses a codec for which the caller gives no costs. */
ESP__FN int esp__scheme_brings_codec(const esp__problem *p, const esp__scheme *s);
ESP__FN const esp__scheme *esp__scheme_find(const char *name);
ESP__FN const esp__scheme *esp__schemes(void);

/* ---- search ------------------------------------------------------------------------------------------------------ */
ESP__FN void esp__algorithm1(esp__problem *p, esp__schedule *d);
ESP__FN void esp__algorithm2(esp__problem *p, esp__schedule *d);
ESP__FN void esp__paper(esp__problem *p, esp__schedule *d); /* strategy "paper" */
ESP__FN void esp__search_all(esp__problem *p, esp__schedule *d);
/* ---- plan.c: for the autopilot ----------------------------------------------------------------------------------- */
/* Runs esp_plan_make, or esp_plan_simulate if `strategy` is not NULL, with memory from ctx's allocator. It uses nothing
 * else of ctx, so it may run during training. */
ESP__FN esp_status esp__plan_make_for(esp_ctx *ctx, const esp_plan_model *model, const esp_plan_codec *codecs,
                                      uint32_t n_codecs, const esp_plan_system *system, const esp_plan_config *config,
                                      const char *strategy, esp_plan **out);
#endif
