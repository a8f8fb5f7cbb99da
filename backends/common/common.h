/* common.h: shared by all backends: logging, memory, groups of ranks, checks of collective calls, and reductions.
 * Plugins link these files too, so the files call no function of the library. */
#ifndef BACKEND_COMMON_H
#define BACKEND_COMMON_H
#include "espresso_impl/base/private.h"
#include <stdbool.h>
#include <stddef.h>
#include <time.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { BACKEND_RANKS = 4096 };

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

/* ---- the host ---------------------------------------------------------------------------------------------------- */
/* Logs the text as an error, or as information if `s` is ESP_OK. Returns `s`. */
ESP__PRINTF(4, 5)
ESP__FN esp_status backend_log(const esp_host *h, const char *name, esp_status s, const char *fmt, ...);
/* Logs an error for a struct `m` that has the members host and name. */
#define backend_error(m, ...) backend_log((m)->host, (m)->name, __VA_ARGS__)
ESP__FN void *backend_alloc(const esp_host *h, uint64_t bytes);
ESP__FN void backend_release(const esp_host *h, void *p, uint64_t bytes);

/* ---- groups ------------------------------------------------------------------------------------------------------ */
ESP__FN esp_status backend_check_group(const esp_host *h, const char *name, const esp_group *g, int32_t most);
/* Returns the outermost level of the topology at which two ranks differ, which is 1 if they share a machine. */
ESP__FN uint8_t backend_level(const esp_group *g, int32_t a, int32_t b);
/* Counts received bytes. Another thread may call backend_traffic meanwhile. */
static inline void backend_count(uint64_t *level_bytes, uint64_t bytes) {
    __atomic_store_n(level_bytes, *level_bytes + bytes, __ATOMIC_RELAXED);
}
/* Fills *out from level_bytes[ESP_LEVELS], the bytes that a communicator has received over each level. */
ESP__FN esp_status backend_traffic(esp_traffic *out, const uint64_t *level_bytes, uint64_t memory_bytes);

/* ---- collectives ------------------------------------------------------------------------------------------------- */
typedef struct backend_caller {
    const esp_host *host;
    const char *name;
    int32_t rank, size;
} backend_caller;

static inline bool backend_op_sums(uint32_t op) {
    return op == ESP_COLL_ALLREDUCE || op == ESP_COLL_REDUCE_SCATTER || op == ESP_COLL_REDUCE;
}
static inline bool backend_op_rooted(uint32_t op) {
    return op == ESP_COLL_BROADCAST || op == ESP_COLL_GATHER || op == ESP_COLL_REDUCE;
}
ESP__FN const char *backend_op_name(uint32_t op);
static inline bool backend_scales(const esp_coll *c) {
    return (c->scale < 0 || c->scale > 0) && (c->scale < 1 || c->scale > 1);
}
static inline uint64_t backend_item(const esp_coll *c) {
    return c->slot_bytes ? c->slot_bytes : esp_dtype_bytes(c->dtype) * backend_max(c->width, 1);
}
/* Copies a caller's struct, which may be an older, shorter version. Missing members become 0. */
static inline void backend_copy_call(const esp_coll *c, esp_coll *whole) {
    if (c->struct_size >= sizeof *whole || !c->struct_size) {
        *whole = *c;
        return;
    }
    memset(whole, 0, sizeof *whole);
    memcpy(whole, c, c->struct_size);
}
/* Return true if the collective reads memory of this rank (needs_src) or writes it (needs_dst), so that the caller
 * must pass that buffer. */
ESP__FN bool backend_needs_src(const backend_caller *m, const esp_coll *c);
ESP__FN bool backend_needs_dst(const backend_caller *m, const esp_coll *c);
/* Both return an error if a call's arguments are invalid. backend_check also refuses buffers in device memory. */
ESP__FN esp_status backend_check_call(const backend_caller *m, const esp_coll *c);
ESP__FN esp_status backend_check(const backend_caller *m, const esp_coll *c);
/* Returns a hash of the members that must be equal on all ranks of a collective, except the op. */
ESP__FN uint64_t backend_call_hash(const esp_coll *c);
/* Returns the length of a payload with its header, which is at most slot_bytes, the memory reserved for it. */
static inline uint64_t backend_slot_used(const void *slot, uint64_t slot_bytes) {
    uint64_t body;
    memcpy(&body, (const uint8_t *)slot + offsetof(esp_payload_header, body_bytes), sizeof body);
    /* A peer may change the size at any time, so the compiler must not read it again after the check. */
    __asm__ volatile("" : "+r"(body));
    return body > slot_bytes - ESP_PAYLOAD_HEADER ? slot_bytes : ESP_PAYLOAD_HEADER + body;
}
/* Copies an array of payloads, each stored in slot_bytes bytes, but not the unused bytes after each payload. Returns
 * the number of bytes copied. */
ESP__FN uint64_t backend_copy_slots(uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t slot_bytes);

/* ---- reductions -------------------------------------------------------------------------------------------------- */
enum { BACKEND_BLOCK = 1024 }; /* numbers that are summed in f32 at a time */
/* A reduction: a number type (esp_dtype), an operation (esp_reduce), and an instruction set (ESP_SIMD_*). */
typedef struct backend_reduction {
    uint32_t type, op;
    int level;
} backend_reduction;
static inline backend_reduction backend_reduction_of(const esp_coll *c, int simd_level) {
    const backend_reduction s = {c->dtype, c->reduce ? c->reduce : (uint32_t)ESP_REDUCE_SUM, simd_level};
    return s;
}
/* Returns true for sums of f16 or bf16, which are computed in f32. */
static inline bool backend_sums_halves(const backend_reduction *s) {
    return s->op == ESP_REDUCE_SUM && (s->type == ESP_F16 || s->type == ESP_BF16);
}
/* Sets out to reduce(a, b) * scale, or a * scale if b is NULL. out may be a. Except for sums of floats, b is not
 * NULL and the scale is 1. */
ESP__FN void backend_reduce(const backend_reduction *s, void *out, const void *a, const void *b, uint64_t n,
                            float scale);
/* Adds one more rank's numbers to a reduction: sets acc to reduce(a, b) for the first two ranks, then to reduce(acc,
 * b) with a = NULL. For the last rank the caller passes `out`, which receives the result times `scale`. acc has room
 * for n numbers (f32 for sums of f16 or bf16). */
ESP__FN void backend_reduce_step(const backend_reduction *s, void *out, void *acc, const void *a, const void *b,
                                 uint64_t n, float scale);
/* Runs a collective of one rank: copies its source, times the scale, to its destination. */
ESP__FN void backend_single_rank(const esp_coll *c, int simd_level);
#ifdef __cplusplus
}
#endif
#endif
