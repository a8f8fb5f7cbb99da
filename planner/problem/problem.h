/* problem.h: shared by the files in problem/. They list the options of a tensor, each a sequence of collectives,
 * compressions and decompressions (ops), and compute the times of ops. */
#ifndef ESP__PROBLEM_H
#define ESP__PROBLEM_H
#include "planner/plan.h"

/* ---- tree.c ---------------------------------------------------------------------------------------------------- */
typedef struct esp__tree_filter {
    uint32_t parts, devices;
    bool extended; /* include options that sum payloads without decompressing them */
    /* Patterns with wildcards: an option's text must contain all of `match` and none of `forbid`. */
    const char *const *match, *const *forbid;
    uint32_t n_match, n_forbid;
    int max_comp;
} esp__tree_filter;

typedef struct esp__tree_counts {
    uint64_t flat, hierarchical, raw;
} esp__tree_counts;

/* ---- templates.c ----------------------------------------------------------------------------------------------- */
typedef struct esp__edge {
    uint32_t to;
    uint16_t op;
} esp__edge;
typedef struct esp__node {
    uint32_t first, n;
} esp__node;
/* All allowed options, as a graph. An edge is an op (a compression, decompression, copy or collective), and each
 * path from node `root` to node 0 is an option. Edges lead to lower node numbers. */
struct esp__tree {
    esp__node *nodes;
    esp__edge *edges;
    uint32_t n_nodes, root, n_options;
    uint32_t codec;
    /* rounds[n - 1]: options for codecs such as PowerSGD that compress in n rounds, each with collectives of its own */
    struct esp__tree *rounds[ESP_ROUNDS_MAX];
};

enum { ESP__OP_PACK = 0, ESP__OP_UNPACK = 1, ESP__TEMPLATE_ROOM = 16384, ESP__OP_END = 0xffff };
/* ---- op_time.c ------------------------------------------------------------------------------------------------- */
/* esp__op_time.ns of an op that cannot run, and of an op whose time is not computed yet */
static const uint64_t esp__cannot = UINT64_MAX, esp__unknown = UINT64_MAX - 1;
ESP__FN const esp__candidates *esp__candidates_of_shape(esp__problem *p, const esp__extent *u, uint64_t cols);
ESP__FN double esp__op_bytes_before(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                    const esp_plan_codec *codec);
ESP__FN uint32_t esp__op_templates(const esp__problem *p, const esp__option *o, uint32_t n_rounds,
                                   esp__op_template *out);
ESP__FN double esp__slots(const esp__problem *p, const uint8_t slots[ESP__SCOPES]);
ESP__FN uint32_t esp__system_ranks(const esp_plan_system *s, uint32_t first, uint32_t last);
ESP__FN uint16_t esp__template_intern(esp__problem *p, const esp__op_template *op);
ESP__FN uint64_t esp__template_memory(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                      const esp_plan_codec *codec);
ESP__FN int esp__template_possible(const esp__op_template *op, const esp_plan_codec *codec);
ESP__FN esp__op_time esp__template_time(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                        const esp_plan_codec *codec);
ESP__FN void esp__templates_open(esp__problem *p);
ESP__FN const esp__tree *esp__tree_for(const esp__tree *tree, const esp_plan_codec *codec, uint32_t n_rounds);
ESP__FN int esp__tree_has(const char *text, const char *pattern);
ESP__FN esp__tree *esp__tree_make(esp__problem *p, const char *shard, const char *only_option, uint32_t codec,
                                  bool no_comp);
ESP__FN uint32_t esp__codec_named(const esp__problem *p, const char *spec);
ESP__FN void esp__tree_each(const esp__tree_filter *f, esp__tree_counts *counts,
                            int (*each)(void *user, const esp__option *o, const char *text), void *user);
ESP__FN esp_status esp__check_system(const esp_plan_system *s);
ESP__FN esp_status esp__check_codec(const esp_plan_codec *c, uint32_t i);
ESP__FN esp_status esp__check_model(esp__problem *p);
ESP__FN int esp__unit_whole(const esp__problem *p, const esp__extent *u);
/* Returns the bytes of one payload, if a rank compresses the share of a tensor that `cut` describes. */
ESP__FN double esp__template_payload(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                     const esp_plan_codec *codec, uint8_t cut);
#endif
