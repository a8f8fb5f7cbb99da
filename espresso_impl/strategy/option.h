/* option.h: one path of the decision tree, as a list of steps. Knows nothing of tensors, ranks or time. */
#ifndef ESP__OPTION_H
#define ESP__OPTION_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/levels.h"
#include <stdbool.h>

/* Stands for no compression where strategies and lists of codecs name a codec. */
#define ESP__CODEC_NONE "none"

/* Lanes: the device that runs backward propagation, the compression workers, and the links of each level: inside machines, between
 * machines, and between racks. */
enum {
    ESP__LANE_COMPUTE = 0,
    ESP__LANE_CPU = 1,
    ESP__LANE_INTRA = 2,
    ESP__LANE_INTER = 3,
    ESP__LANE_OUTER = 4,
    ESP__LANE_PROGRESS =
        2 + ESP__LEVELS,          /* the thread that drives collectives, where it has a core of its own: planner only */
    ESP__LANES = 3 + ESP__LEVELS, /* of the job with most levels */
    ESP__CORE_LANES = 1 << ESP__LANE_COMPUTE | 1 << ESP__LANE_CPU | 1 << ESP__LANE_PROGRESS,
    ESP__LINK_LANES = (1 << ESP__LANE_PROGRESS) - (1 << ESP__LANE_INTRA)
};

ESP__FN const char *esp__lane_word(uint32_t lane); /* "compute", "cpu", "intra", ... */

enum { ESP__STAGE_COLLECTIVE = 1, ESP__STAGE_COMP = 2, ESP__STAGE_DECOMP = 3 };
/* A collective's role: it sums all contributions (WHOLE); or is the first of a pair, which sums while it cuts or to a root; or the
 * second, which spreads the result. */
enum { ESP__WHOLE = 0, ESP__FIRST = 1, ESP__SECOND = 2 };

/* Do its ranks have a root? */
static inline int esp__coll_rooted(uint32_t coll) {
    return coll == ESP_COLL_REDUCE || coll == ESP_COLL_GATHER || coll == ESP_COLL_BROADCAST;
}

typedef struct esp__step {
    uint8_t kind;       /* ESP__STAGE_COLLECTIVE, ESP__STAGE_COMP, ESP__STAGE_DECOMP */
    uint8_t device;     /* of Comp and Decomp: ESP_ON_*      */
    uint8_t level;      /* of a collective: its scope        */
    uint8_t coll;       /* ESP_COLL_*                        */
    uint8_t role;       /* ESP__WHOLE, ESP__FIRST, ESP__SECOND; of a collective */
    uint8_t compressed; /* the collective moves payloads     */
    uint8_t summed;     /* it also sums their bodies, which needs ESP_CODEC_REDUCIBLE */
} esp__step;

enum { ESP__MAX_STEPS = 18, ESP__MAX_COMPS = 6 }; /* with three levels; with two, 12 and 4 */
typedef struct esp__option {
    uint32_t n;
    esp__step steps[ESP__MAX_STEPS];
} esp__option;

enum { ESP__TEXT_MAX = 512 }; /* bytes of an option's text, with the NUL */

/* Parses the text form. The text of ESP_E_ARG says at which position what was expected. */
ESP__FN esp_status esp__option_parse(const esp_ctx *ctx, const char *text, esp__option *out);
/* Writes the text form (at most ESP__TEXT_MAX with the NUL) and returns its length. */
ESP__FN size_t esp__option_print(const esp__option *o, char *buf, size_t cap);
ESP__FN const char *esp__coll_word(uint32_t coll);                       /* "allreduce", ...; coll is an ESP_COLL_* */
ESP__FN void esp__step_print(const esp__step *s, char *buf, size_t cap); /* the text of one step */
ESP__FN int esp__option_is_flat(const esp__option *o);
/* Does the option end narrow, with each rank holding only its part of the result? */
ESP__FN int esp__option_narrow(const esp__option *o);
/* The scopes in which an option that ends narrow cuts its unit, the outermost cut first. Returns how many. */
ESP__FN uint32_t esp__option_cuts(const esp__option *o, uint8_t scopes[ESP__LEVELS]);
enum { ESP__CUTS_TEXT = 96 };
ESP__FN void esp__scopes_print(const uint8_t *scopes, uint32_t n, char *buf, size_t cap); /* "intra,inter" */
ESP__FN bool esp__option_compresses(const esp__option *o);                                /* has it a Comp? */
/* ---- rounds.c ---- */
/* A step in one round of the unit's codec. Collectives of numbers count to the last round. */
typedef struct esp__chain_step {
    uint8_t step, round;
} esp__chain_step;
enum { ESP__CHAIN_MAX = ESP__MAX_STEPS * ESP_ROUNDS_MAX };
/* The steps in the sequence in which they run, with a codec that begins with round `first_round` of n_rounds. Returns how many. */
ESP__FN uint32_t esp__option_chain(const esp__option *o, uint32_t first_round, uint32_t n_rounds,
                                   esp__chain_step out[ESP__CHAIN_MAX]);
/* The first collective among chain[at] to chain[n - 1]; n: none. */
ESP__FN uint32_t esp__chain_collective(const esp__option *o, const esp__chain_step *chain, uint32_t n, uint32_t at);
/* Does step `i` also run in the rounds before the last of the Comp at step `comp`? Then the first or only collective of a group
 * is an allreduce; one that only spreads stays what it is. */
ESP__FN int esp__early_step(const esp__option *o, uint32_t comp, uint32_t i);

/* Calls `each` for the options of some parts of the tree (ESP__TREE_*) until it returns non-zero. devices: bit 0 cpu, bit 1 gpu,
 * for Comps and Decomps. extended: also options outside the paper's tree, which sum payload bodies. Returns the number of calls. The tree is
 * that of two levels, or of ESP__TREE_OF(n_levels). NARROW: instead of those, the options of the parts that end narrow. */
enum { ESP__TREE_FLAT = 1, ESP__TREE_HIERARCHICAL = 2, ESP__TREE_NARROW = 4 };
#define ESP__TREE_OF(n_levels) ((uint32_t)(n_levels) << 8)
ESP__FN uint64_t esp__option_each(uint32_t parts, uint32_t devices, bool extended,
                                  int (*each)(void *user, const esp__option *o), void *user);
#endif
