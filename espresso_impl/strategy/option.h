/* option.h: an option is the list of collectives, compress (Comp) and decompress (Decomp) stages that synchronize a
 * tensor. */
#ifndef ESP__OPTION_H
#define ESP__OPTION_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/levels.h"
#include <stdbool.h>

#define ESP__CODEC_NONE "none"

/* A lane is a resource that runs one op at a time: the device that runs backward propagation, the CPU workers that
 * compress, or the link of a level (inside machines, between machines, or between racks). */
enum {
    ESP__LANE_COMPUTE = 0,
    ESP__LANE_CPU = 1,
    ESP__LANE_INTRA = 2,
    ESP__LANE_INTER = 3,
    ESP__LANE_OUTER = 4,
    ESP__LANE_PROGRESS = 2 + ESP__LEVELS, /* only in the planner: the CPU core that runs collectives */
    ESP__LANES = 3 + ESP__LEVELS,
    ESP__CORE_LANES = 1 << ESP__LANE_COMPUTE | 1 << ESP__LANE_CPU | 1 << ESP__LANE_PROGRESS,
    ESP__LINK_LANES = (1 << ESP__LANE_PROGRESS) - (1 << ESP__LANE_INTRA)
};

ESP__FN const char *esp__lane_word(uint32_t lane);

enum { ESP__STAGE_COLLECTIVE = 1, ESP__STAGE_COMP = 2, ESP__STAGE_DECOMP = 3 };
/* A sum takes one collective (WHOLE), which leaves the result on all ranks, or a pair. FIRST of a pair sums, and leaves
 * each rank a part of the result, or leaves all of it on one rank. SECOND distributes the result to all ranks. */
enum { ESP__WHOLE = 0, ESP__FIRST = 1, ESP__SECOND = 2 };

static inline bool esp__coll_rooted(uint32_t coll) {
    return coll == ESP_COLL_REDUCE || coll == ESP_COLL_GATHER || coll == ESP_COLL_BROADCAST;
}

typedef struct esp__step {
    uint8_t kind;
    uint8_t device; /* compress and decompress: ESP_ON_CPU or ESP_ON_GPU */
    /* set for collectives only */
    uint8_t level;      /* which ranks take part, such as ESP__INTRA */
    uint8_t coll;       /* one of ESP_COLL_* */
    uint8_t role;       /* one of ESP__WHOLE, ESP__FIRST, ESP__SECOND */
    uint8_t compressed; /* 1 if it sends compressed payloads */
    uint8_t summed;     /* 1 if it sums payloads without decompressing them */
} esp__step;

enum { ESP__MAX_STEPS = 18, ESP__MAX_COMPS = 6 };
typedef struct esp__option {
    uint32_t n;
    esp__step steps[ESP__MAX_STEPS];
} esp__option;

enum { ESP__TEXT_MAX = 512 }; /* bytes, with the NUL */

/* Parses an option's text. If it fails, the error text has the position and the stages that would be valid there. */
ESP__FN esp_status esp__option_parse(const esp_ctx *ctx, const char *text, esp__option *out);
ESP__FN size_t esp__option_print(const esp__option *o, char *buf, size_t cap);
ESP__FN void esp__step_print(const esp__step *s, char *buf, size_t cap);
ESP__FN const char *esp__coll_word(uint32_t coll);
ESP__FN bool esp__option_is_flat(const esp__option *o);
ESP__FN bool esp__option_narrow(const esp__option *o);
ESP__FN uint32_t esp__option_cuts(const esp__option *o, uint8_t scopes[ESP__LEVELS]);
enum { ESP__CUTS_TEXT = 96 };
ESP__FN void esp__scopes_print(const uint8_t *scopes, uint32_t n, char *buf, size_t cap);
ESP__FN bool esp__option_compresses(const esp__option *o);
/* ---- rounds.c ---- */
/* A stage of an option, and the round in which it runs: a codec such as PowerSGD compresses and sums several times (in
 * several rounds) per training step. */
typedef struct esp__chain_step {
    uint8_t step, round;
} esp__chain_step;
enum { ESP__CHAIN_MAX = ESP__MAX_STEPS * ESP_ROUNDS_MAX };
ESP__FN uint32_t esp__option_chain(const esp__option *o, uint32_t first_round, uint32_t n_rounds,
                                   esp__chain_step out[ESP__CHAIN_MAX]);
ESP__FN uint32_t esp__chain_collective(const esp__option *o, const esp__chain_step *chain, uint32_t n, uint32_t at);
/* For codecs that compress several times in each training step: returns true if collective `i` runs after each of these
 * compressions, not only after the last. After the others it is an allreduce if it sums. */
ESP__FN bool esp__early_step(const esp__option *o, uint32_t comp, uint32_t i);

/* Calls `each` for every option that `parts` selects, until it returns non-zero. Returns the number of calls.
 * ESP__TREE_NARROW selects only the options for sharded tensors. Bit 0 of `devices` allows compression on the CPU, bit
 * 1 on the GPU. `extended` adds options that sum payloads without decompressing them. */
enum { ESP__TREE_FLAT = 1, ESP__TREE_HIERARCHICAL = 2, ESP__TREE_NARROW = 4 };
#define ESP__TREE_OF(n_levels) ((uint32_t)(n_levels) << 8)
ESP__FN uint64_t esp__option_each(uint32_t parts, uint32_t devices, bool extended,
                                  int (*each)(void *user, const esp__option *o), void *user);
#endif
