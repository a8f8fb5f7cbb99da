/* option.h: an option is the list of steps that synchronize a unit: compress (Comp), send, decompress (Decomp). */
#ifndef ESP__OPTION_H
#define ESP__OPTION_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/levels.h"
#include <stdbool.h>

/* stands for the codec of a unit that is not compressed */
#define ESP__CODEC_NONE "none"

/* A lane runs one op at a time. Lanes are the device that runs backward propagation, the compression workers, and the
 * links of each level: inside machines, between machines, and between racks. */
enum {
    ESP__LANE_COMPUTE = 0,
    ESP__LANE_CPU = 1,
    ESP__LANE_INTRA = 2,
    ESP__LANE_INTER = 3,
    ESP__LANE_OUTER = 4,
    ESP__LANE_PROGRESS = 2 + ESP__LEVELS, /* only in the planner: the core that runs collectives */
    ESP__LANES = 3 + ESP__LEVELS,
    ESP__CORE_LANES = 1 << ESP__LANE_COMPUTE | 1 << ESP__LANE_CPU | 1 << ESP__LANE_PROGRESS,
    ESP__LINK_LANES = (1 << ESP__LANE_PROGRESS) - (1 << ESP__LANE_INTRA)
};

ESP__FN const char *esp__lane_word(uint32_t lane); /* such as "compute", "cpu" or "intra" */

enum { ESP__STAGE_COLLECTIVE = 1, ESP__STAGE_COMP = 2, ESP__STAGE_DECOMP = 3 };
/* How a collective takes part in a sum. WHOLE sums and leaves the result on all ranks. FIRST sums, and leaves each rank
 * a part, or the root all. SECOND, later, spreads that result to all ranks. */
enum { ESP__WHOLE = 0, ESP__FIRST = 1, ESP__SECOND = 2 };

static inline bool esp__coll_rooted(uint32_t coll) {
    return coll == ESP_COLL_REDUCE || coll == ESP_COLL_GATHER || coll == ESP_COLL_BROADCAST;
}

typedef struct esp__step {
    uint8_t kind;   /* ESP__STAGE_COLLECTIVE, ESP__STAGE_COMP, ESP__STAGE_DECOMP */
    uint8_t device; /* for Comp and Decomp: where it runs */
    /* the members below are for collectives */
    uint8_t level;      /* scope of the collective */
    uint8_t coll;       /* one of ESP_COLL_* */
    uint8_t role;       /* one of ESP__WHOLE, ESP__FIRST, ESP__SECOND */
    uint8_t compressed; /* 1 if it sends payloads of a codec */
    uint8_t summed;     /* 1 if it sums the payloads' bodies */
} esp__step;

enum { ESP__MAX_STEPS = 18, ESP__MAX_COMPS = 6 };
typedef struct esp__option {
    uint32_t n;
    esp__step steps[ESP__MAX_STEPS];
} esp__option;

enum { ESP__TEXT_MAX = 512 }; /* bytes of an option's text, with the NUL */

/* Parses an option's text. Error texts have the position, and the steps that could follow there. */
ESP__FN esp_status esp__option_parse(const esp_ctx *ctx, const char *text, esp__option *out);
/* Writes the option's text, of at most ESP__TEXT_MAX bytes, and returns its length. */
ESP__FN size_t esp__option_print(const esp__option *o, char *buf, size_t cap);
ESP__FN void esp__step_print(const esp__step *s, char *buf, size_t cap);
ESP__FN const char *esp__coll_word(uint32_t coll); /* such as "allreduce" for ESP_COLL_ALLREDUCE */
ESP__FN bool esp__option_is_flat(const esp__option *o);
/* Does the option leave each rank with only its own part of the result, as sharded tensors need? */
ESP__FN bool esp__option_narrow(const esp__option *o);
/* Writes the scopes in which the option divides its unit among ranks, the outermost first. Returns their number. */
ESP__FN uint32_t esp__option_cuts(const esp__option *o, uint8_t scopes[ESP__LEVELS]);
enum { ESP__CUTS_TEXT = 96 };
ESP__FN void esp__scopes_print(const uint8_t *scopes, uint32_t n, char *buf, size_t cap); /* such as "intra,inter" */
ESP__FN bool esp__option_compresses(const esp__option *o);
/* ---- rounds.c ---- */
/* A step in one of the rounds of a codec such as PowerSGD. Uncompressed collectives run in the last round. */
typedef struct esp__chain_step {
    uint8_t step, round;
} esp__chain_step;
enum { ESP__CHAIN_MAX = ESP__MAX_STEPS * ESP_ROUNDS_MAX };
/* Writes the steps as they run in rounds first_round to n_rounds - 1. Returns their number. */
ESP__FN uint32_t esp__option_chain(const esp__option *o, uint32_t first_round, uint32_t n_rounds,
                                   esp__chain_step out[ESP__CHAIN_MAX]);
/* Returns the index of the first collective among chain[at] to chain[n - 1], or n if there is none. */
ESP__FN uint32_t esp__chain_collective(const esp__option *o, const esp__chain_step *chain, uint32_t n, uint32_t at);
/* Does collective `i` also run in earlier rounds than the last of the Comp at step `comp`? There it runs as an
 * allreduce, if it is not the second of a pair. */
ESP__FN bool esp__early_step(const esp__option *o, uint32_t comp, uint32_t i);

/* Calls `each` for options until it returns non-zero, and returns the number of calls. `parts` is a sum of ESP__TREE_*,
 * and of ESP__TREE_OF(n_levels) for more than two levels; NARROW selects the options of sharded tensors only. Bits 0
 * and 1 of `devices` allow compression on CPU and GPU. `extended` adds options that sum payload bodies, which the
 * paper's tree lacks. */
enum { ESP__TREE_FLAT = 1, ESP__TREE_HIERARCHICAL = 2, ESP__TREE_NARROW = 4 };
#define ESP__TREE_OF(n_levels) ((uint32_t)(n_levels) << 8)
ESP__FN uint64_t esp__option_each(uint32_t parts, uint32_t devices, bool extended,
                                  int (*each)(void *user, const esp__option *o), void *user);
#endif
