/* small_model.h has a small model, and strategies that split its tensors into chunks and merge them into groups. */
#ifndef SMALL_MODEL_H
#define SMALL_MODEL_H
#include "tests/lib/test.h"

enum { TENSORS = 6, TOTAL = 1000 + 37 + 5 + 2048 + 3 + 1 };
static const uint64_t counts[TENSORS] = {1000, 37, 5, 2048, 3, 1};
static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};
static const uint64_t begins[TENSORS] = {0, 1000, 1037, 1042, 3090, 3093};

#define FLAT_RAW "flat.allreduce"
#define FLAT_COMP "comp@cpu > flat.allgather > decomp@cpu"
#define TREE_RAW "intra.reduce_scatter > inter.allreduce > intra.allgather"
#define TREE_ROOT "intra.reduce > inter.reduce > inter.broadcast > intra.broadcast"
#define TREE_COMP "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather"
#define TREE_REPLICAS "intra.reduce_scatter > inter.allreduce > comp@cpu > intra.allgather > decomp@cpu"
#define TREE_THREE                                                                                                     \
    "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > "  \
    "decomp@cpu > intra.allgather"

/* Ways to split and merge the tensors. Some chunks have fewer elements than there are ranks. In the texts below, "U"
 * stands for a codec and an option. */
enum { WHOLE, CHUNKS, GROUPS, MIXED, ALL_IN_ONE, KINDS };
static const char *const shapes[KINDS] = {
    "tensor a 1000 U\ntensor b 37 U\ntensor c 5 U\ntensor d 2048 U\ntensor e 3 U\ntensor f 1 U\n",
    "tensor a 1000 split 4\nchunk 250 U\nchunk 249 U\nchunk 500 U\nchunk 1 U\ntensor b 37 split 2\nchunk 36 U\nchunk 1 "
    "U\ntensor c 5 U\ntensor d 2048 split 3\nchunk 2000 U\nchunk 45 U\nchunk 3 U\ntensor e 3 split 3\nchunk 1 U\nchunk "
    "1 U\nchunk 1 U\ntensor f 1 U\n",
    "tensor a 1000 group\ntensor b 37 group\ngroup 1037 U\ntensor c 5 U\ntensor d 2048 group\ntensor e 3 group\ntensor "
    "f 1 group\ngroup 2052 U\n",
    "tensor a 1000 split 2\nchunk 7 U\nchunk 993 U\ntensor b 37 group\ntensor c 5 group\ngroup 42 U\ntensor d 2048 "
    "U\ntensor e 3 group\ntensor f 1 group\ngroup 4 U\n",
    "tensor a 1000 group\ntensor b 37 group\ntensor c 5 group\ntensor d 2048 group\ntensor e 3 group\ntensor f 1 "
    "group\ngroup 3094 U\n",
};

typedef struct text {
    char data[8192];
} text;

static text strategy_of(int kind, const char *codec, const char *option) {
    text t;
    size_t n = (size_t)snprintf(t.data, sizeof t.data, "espresso-strategy 1\n");
    for (const char *p = shapes[kind]; *p; p++) {
        if (p[0] == 'U' && p[-1] == ' ')
            n += (size_t)snprintf(t.data + n, sizeof t.data - n, "%s %s", codec, option);
        else
            t.data[n++] = *p;
        t.data[n] = 0;
    }
    return t;
}

typedef struct task {
    const char *codec, *option;
    esp_dtype dtype;
    int kind;
    uint32_t tensor_flags;
    const char *path;
} task;

static inline void add_tensors(esp_ctx *ctx, const task *k) {
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = names[t], .count = counts[t], .dtype = k->dtype, .flags = k->tensor_flags};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
}

static inline void run_ranks(int32_t size, int32_t per_machine, const char *backend, uint32_t flags,
                             void (*body)(esp_ctx *, void *), task *k) {
    RUN_RANKS(.size = size, .per_machine = per_machine, .body = body, .user = k, .config.backend = backend,
              .config.flags = flags, .config.timeout_ms = 30000);
}
#endif
