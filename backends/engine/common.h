/* common.h: what all backends of this folder and of mesh/ share: messages to the host, memory, sums, and the facts of a
 * collective. Knows no comm. */
#ifndef ENGINE_COMMON_H
#define ENGINE_COMMON_H
#include "espresso.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ENGINE_FN __attribute__((unused)) static

enum { ENGINE_RANKS = 4096 }; /* of one group, at most */

#define ENGINE_COLLS                                                                                                   \
    (ESP_BIT(ESP_COLL_ALLREDUCE) | ESP_BIT(ESP_COLL_ALLGATHER) | ESP_BIT(ESP_COLL_ALLTOALL) |                          \
     ESP_BIT(ESP_COLL_REDUCE_SCATTER) | ESP_BIT(ESP_COLL_BROADCAST) | ESP_BIT(ESP_COLL_GATHER) |                       \
     ESP_BIT(ESP_COLL_REDUCE))

#define ENGINE_DTYPES                                                                                                  \
    (ESP_BIT(ESP_F32) | ESP_BIT(ESP_F16) | ESP_BIT(ESP_BF16) | ESP_BIT(ESP_I8) | ESP_BIT(ESP_I16) | ESP_BIT(ESP_I32))
#define ENGINE_REDUCTIONS (ESP_BIT(ESP_REDUCE_SUM) | ESP_BIT(ESP_REDUCE_MAX) | ESP_BIT(ESP_REDUCE_MIN))

ENGINE_FN uint64_t engine_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
ENGINE_FN uint64_t engine_max(uint64_t a, uint64_t b) { return a > b ? a : b; }
ENGINE_FN uint64_t engine_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Passes the error text to the host and returns `s`. */
__attribute__((format(printf, 4, 5))) ENGINE_FN esp_status engine_say(const esp_host *h, const char *name, esp_status s,
                                                                      const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    esp_log_event ev;
    memset(&ev, 0, sizeof ev);
    ev.struct_size = sizeof ev;
    ev.level = s == ESP_OK ? ESP_LOG_INFO : ESP_LOG_ERROR;
    ev.status = s;
    ev.component = name;
    ev.message = text;
    ev.file = "backends";
    if (h && h->log) h->log(h->user, &ev);
    return s;
}

ENGINE_FN void *engine_alloc(const esp_host *h, uint64_t bytes) {
    esp_device cpu = {ESP_CPU, 0};
    void *p = h->alloc(h->user, cpu, bytes, 64);
    if (p) memset(p, 0, bytes);
    return p;
}
ENGINE_FN void engine_release(const esp_host *h, void *p, uint64_t bytes) {
    esp_device cpu = {ESP_CPU, 0};
    if (p) h->free_(h->user, cpu, p, bytes);
}

ENGINE_FN int engine_op_sums(uint32_t op) {
    return op == ESP_COLL_ALLREDUCE || op == ESP_COLL_REDUCE_SCATTER || op == ESP_COLL_REDUCE;
}
ENGINE_FN const char *engine_op_name(uint32_t op) {
    static const char *const name[] = {"?",         "allreduce", "allgather", "alltoall", "reduce_scatter",
                                       "broadcast", "gather",    "reduce"};
    return op <= ESP_COLL_REDUCE ? name[op] : "?";
}

/* Of what must be the same on all ranks of a collective, but for the op. */
ENGINE_FN uint64_t engine_call_hash(const esp_coll *c) {
    const int rooted = c->op == ESP_COLL_BROADCAST || c->op == ESP_COLL_GATHER || c->op == ESP_COLL_REDUCE;
    const uint64_t parts[] = {c->dtype,
                              c->count,
                              c->slot_bytes,
                              engine_max(c->width, 1),
                              rooted ? (uint64_t)c->root : 0,
                              c->reduce ? c->reduce : ESP_REDUCE_SUM};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) h = (h ^ parts[i]) * 0x9e3779b97f4a7c15ull + (h >> 29);
    return h;
}
/* Used bytes of a payload slot: its header and the body that the header names. */
ENGINE_FN uint64_t engine_slot_used(const void *slot, uint64_t slot_bytes) {
    uint64_t body;
    memcpy(&body, (const uint8_t *)slot + offsetof(esp_payload_header, body_bytes), sizeof body);
    __asm__ volatile("" : "+r"(body)); /* a peer may write there: what is checked is what is used, not read again */
    return body > slot_bytes - ESP_PAYLOAD_HEADER ? slot_bytes : ESP_PAYLOAD_HEADER + body;
}

#include "backends/engine/sum.h"

#include "backends/engine/reduce.h"
#endif
