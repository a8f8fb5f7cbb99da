/* common.h: what all backends share: messages to the host, memory, the facts of a collective and what is checked of it, reductions.
 * Plugins link these files too, so they call nothing of the library. */
#ifndef BACKEND_COMMON_H
#define BACKEND_COMMON_H
#include "espresso_impl/base/private.h"
#include <stddef.h>
#include <time.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { BACKEND_RANKS = 4096 }; /* of one group, at most */

#define BACKEND_COLLS                                                                                                  \
    (ESP_BIT(ESP_COLL_ALLREDUCE) | ESP_BIT(ESP_COLL_ALLGATHER) | ESP_BIT(ESP_COLL_ALLTOALL) |                          \
     ESP_BIT(ESP_COLL_REDUCE_SCATTER) | ESP_BIT(ESP_COLL_BROADCAST) | ESP_BIT(ESP_COLL_GATHER) |                       \
     ESP_BIT(ESP_COLL_REDUCE))

#define BACKEND_DTYPES                                                                                                 \
    (ESP_BIT(ESP_F32) | ESP_BIT(ESP_F16) | ESP_BIT(ESP_BF16) | ESP_BIT(ESP_I8) | ESP_BIT(ESP_I16) | ESP_BIT(ESP_I32))
#define BACKEND_REDUCTIONS (ESP_BIT(ESP_REDUCE_SUM) | ESP_BIT(ESP_REDUCE_MAX) | ESP_BIT(ESP_REDUCE_MIN))

#define BACKEND_LOAD(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define BACKEND_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)

static inline uint64_t backend_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t backend_max(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t backend_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the host --------------------------------------------------------------------------------------------------------- */
/* Passes the error text to the host and returns `s`; ESP_OK: for information. */
ESP__PRINTF(4, 5)
ESP__FN esp_status backend_say(const esp_host *h, const char *name, esp_status s, const char *fmt, ...);
/* The same, where `m` is a struct with host and name. */
#define backend_error(m, ...) backend_say((m)->host, (m)->name, __VA_ARGS__)
/* Zeroed memory, or NULL. */
ESP__FN void *backend_alloc(const esp_host *h, uint64_t bytes);
ESP__FN void backend_release(const esp_host *h, void *p, uint64_t bytes);

/* ---- groups ----------------------------------------------------------------------------------------------------------- */
/* Refuses a group that is malformed, or has more than `most` ranks. */
ESP__FN esp_status backend_check_group(const esp_host *h, const char *name, const esp_group *g, int32_t most);
/* The outermost level at which the places of two members differ: 1 inside a machine. */
ESP__FN uint8_t backend_level(const esp_group *g, int32_t a, int32_t b);
/* Fills the traffic of a comm, which received level_bytes[ESP_LEVELS]. */
ESP__FN esp_status backend_traffic(esp_traffic *out, const uint64_t *level_bytes, uint64_t memory_bytes);

/* ---- collectives ------------------------------------------------------------------------------------------------------ */
/* The rank that calls. */
typedef struct backend_who {
    const esp_host *host;
    const char *name; /* of the backend */
    int32_t rank, size;
} backend_who;

static inline int backend_op_sums(uint32_t op) {
    return op == ESP_COLL_ALLREDUCE || op == ESP_COLL_REDUCE_SCATTER || op == ESP_COLL_REDUCE;
}
static inline int backend_op_rooted(uint32_t op) {
    return op == ESP_COLL_BROADCAST || op == ESP_COLL_GATHER || op == ESP_COLL_REDUCE;
}
ESP__FN const char *backend_op_name(uint32_t op);
static inline int backend_scales(const esp_coll *c) {
    return (c->scale < 0 || c->scale > 0) && (c->scale < 1 || c->scale > 1);
}
/* Bytes of an item: a number, a row or a payload slot. */
static inline uint64_t backend_item(const esp_coll *c) {
    return c->slot_bytes ? c->slot_bytes : esp_dtype_bytes(c->dtype) * backend_max(c->width, 1);
}
/* Copies the struct to `whole`: a caller of an older version has a shorter one. */
static inline void backend_whole_call(const esp_coll *c, esp_coll *whole) {
    if (c->struct_size >= sizeof *whole || !c->struct_size) {
        *whole = *c;
        return;
    }
    memset(whole, 0, sizeof *whole);
    memcpy(whole, c, c->struct_size);
}
/* Does this rank need the buffer? Its own part may be empty. */
ESP__FN int backend_needs_src(const backend_who *m, const esp_coll *c);
ESP__FN int backend_needs_dst(const backend_who *m, const esp_coll *c);
/* Refuses a malformed call, with a message that says what to do. backend_check also refuses memory that is not the host's. */
ESP__FN esp_status backend_check_call(const backend_who *m, const esp_coll *c);
ESP__FN esp_status backend_check(const backend_who *m, const esp_coll *c);
/* Of what must be the same on all ranks of a collective, but for the op. */
ESP__FN uint64_t backend_call_hash(const esp_coll *c);
/* Used bytes of a payload slot: its header and the body that the header names. */
static inline uint64_t backend_slot_used(const void *slot, uint64_t slot_bytes) {
    uint64_t body;
    memcpy(&body, (const uint8_t *)slot + offsetof(esp_payload_header, body_bytes), sizeof body);
    __asm__ volatile("" : "+r"(body)); /* a peer may write there: what is checked is what is used, not read again */
    return body > slot_bytes - ESP_PAYLOAD_HEADER ? slot_bytes : ESP_PAYLOAD_HEADER + body;
}
/* Copies the used bytes of the payload slots that begin at `from`; returns how many. */
ESP__FN uint64_t backend_copy_slots(uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t slot_bytes);

/* ---- reductions ------------------------------------------------------------------------------------------------------- */
enum { BACKEND_BLOCK = 1024 }; /* numbers that are summed in f32 at a time */
typedef struct backend_sums {
    uint32_t type, op; /* op: an esp_reduce */
    int level;         /* of simd.h */
} backend_sums;
/* How the numbers of a collective are reduced. */
static inline backend_sums backend_sums_of(const esp_coll *c, int simd_level) {
    const backend_sums s = {c->dtype, c->reduce ? c->reduce : (uint32_t)ESP_REDUCE_SUM, simd_level};
    return s;
}
/* Are these sums of halves? They pass through f32. */
static inline int backend_sums_halves(const backend_sums *s) {
    return s->op == ESP_REDUCE_SUM && (s->type == ESP_F16 || s->type == ESP_BF16);
}
/* out = (a and b reduced) scale; b NULL, for sums of floats: out = a scale. Only sums of floats have a scale. out may be a. */
ESP__FN void backend_reduce(const backend_sums *s, void *out, const void *a, const void *b, uint64_t n, float scale);
/* One step of a sum over many ranks: acc = a and b reduced, or acc and b where a is NULL. In the last step, which has an `out`, that
 * times the scale goes there. acc has room for n numbers, of f32 for halves. */
ESP__FN void backend_reduce_step(const backend_sums *s, void *out, void *acc, const void *a, const void *b, uint64_t n,
                                 float scale);
/* A collective of one rank: copies its source to its destination, scaled. */
ESP__FN void backend_alone(const esp_coll *c, int simd_level);
#ifdef __cplusplus
}
#endif
#endif
