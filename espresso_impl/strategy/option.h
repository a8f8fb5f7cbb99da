/* option.h: one path of the decision tree, as a list of steps. Knows nothing of tensors, ranks or time. */
#ifndef ESP__OPTION_H
#define ESP__OPTION_H
#include "espresso_impl/base/base.h"

/* The codec's name, in strategies and lists of codecs, that stands for no compression. */
#define ESP__CODEC_NONE "none"

/* What can be busy: the device that runs backward propagation, the compression workers, the links inside a machine, those
 * between machines. */
enum { ESP__LANE_COMPUTE = 0, ESP__LANE_CPU = 1, ESP__LANE_INTRA = 2, ESP__LANE_INTER = 3, ESP__LANES = 4 };

enum { ESP__COLL = 1, ESP__COMP = 2, ESP__DECOMP = 3 };
enum { ESP__DEV_CPU = 0, ESP__DEV_GPU = 1 };
/* What a collective does to contributions: sums them all, sums them while cutting (or to a root), spreads the result. */
enum { ESP__WHOLE = 0, ESP__FIRST = 1, ESP__SECOND = 2 };

typedef struct esp__step {
    uint8_t kind;   /* ESP__COLL, ESP__COMP, ESP__DECOMP */
    uint8_t device; /* of Comp and Decomp                */
    uint8_t level;  /* of a collective                   */
    uint8_t coll;   /* ESP_COLL_*                        */
    uint8_t role;
    uint8_t compressed; /* moves payloads                    */
    uint8_t summed;     /* moves payloads and sums their bodies: codecs with ESP_CODEC_REDUCIBLE only */
    uint8_t pad;
} esp__step;

enum { ESP__MAX_STEPS = 12, ESP__MAX_COMPS = 4 };
typedef struct esp__option {
    uint32_t n;
    esp__step steps[ESP__MAX_STEPS];
} esp__option;

enum { ESP__TEXT_MAX = 512 }; /* of an option's text */

/* Parses the text form. ESP_E_ARG says at which position what was expected. */
ESP__FN esp_status esp__option_parse(const esp_ctx *ctx, const char *text, esp__option *out);
/* Writes the text form (at most ESP__TEXT_MAX with the NUL) and returns its length. */
ESP__FN size_t esp__option_print(const esp__option *o, char *buf, size_t cap);
ESP__FN void esp__step_print(const esp__step *s, char *buf, size_t cap); /* one step of it */
ESP__FN int esp__option_is_flat(const esp__option *o);
ESP__FN int esp__option_uses(const esp__option *o, uint8_t kind);
/* Calls `each` for every option of a part of the tree until it returns non-zero. devices: bit 0 cpu, bit 1 gpu;
 * extended: also the edges on which bodies of payloads are summed. Returns how many it visited. */
enum { ESP__TREE_FLAT = 1, ESP__TREE_HIERARCHICAL = 2 };
ESP__FN uint64_t esp__option_each(uint32_t parts, uint32_t devices, int extended,
                                  int (*each)(void *user, const esp__option *o), void *user);
#endif
