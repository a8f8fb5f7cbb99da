/* common.c: implements common.h: logging, memory, groups of ranks, and checks of collective calls. */
#include "backends/common/common.h"

/* ---- the host ---------------------------------------------------------------------------------------------------- */
ESP__FN esp_status backend_log(const esp_host *h, const char *name, esp_status s, const char *fmt, ...) {
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

ESP__FN void *backend_alloc(const esp_host *h, uint64_t bytes) {
    esp_device cpu = {ESP_CPU, 0};
    void *p = h->alloc(h->user, cpu, bytes, 64);
    if (p) memset(p, 0, bytes);
    return p;
}
ESP__FN void backend_release(const esp_host *h, void *p, uint64_t bytes) {
    esp_device cpu = {ESP_CPU, 0};
    if (p) h->free_(h->user, cpu, p, bytes);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */
ESP__FN esp_status backend_check_group(const esp_host *h, const char *name, const esp_group *g, int32_t most) {
    if (g->size > 0 && g->rank >= 0 && g->rank < g->size && g->size <= most) return ESP_OK;
    return backend_log(h, name, ESP_E_ARG, "rank %d of %d: the group is malformed (at most %d ranks)", (int)g->rank,
                       (int)g->size, (int)most);
}
ESP__FN uint8_t backend_level(const esp_group *g, int32_t a, int32_t b) {
    const uint32_t n = (uint32_t)g->n_levels;
    uint32_t level = g->machine && g->machine[a] != g->machine[b] ? 2 : 1;
    for (uint32_t k = level; g->place && k < n; k++)
        if (g->place[(uint32_t)a * n + k] != g->place[(uint32_t)b * n + k]) level = k + 1;
    return (uint8_t)level;
}
ESP__FN esp_status backend_traffic(esp_traffic *out, const uint64_t *level_bytes, uint64_t memory_bytes) {
    esp_traffic t;
    memset(&t, 0, sizeof t);
    t.struct_size = out->struct_size;
    for (int k = 0; k < ESP_LEVELS; k++) {
        t.level_bytes[k] = __atomic_load_n(&level_bytes[k], __ATOMIC_RELAXED);
        *(k ? &t.inter_bytes : &t.intra_bytes) += t.level_bytes[k];
    }
    t.memory_bytes = memory_bytes;
    memcpy(out, &t, backend_min(out->struct_size, sizeof t));
    return ESP_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */
ESP__FN const char *backend_op_name(uint32_t op) {
    static const char *const name[] = {"?",         "allreduce", "allgather", "alltoall", "reduce_scatter",
                                       "broadcast", "gather",    "reduce"};
    return op <= ESP_COLL_REDUCE ? name[op] : "?";
}
ESP__FN uint64_t backend_call_hash(const esp_coll *c) {
    const uint64_t parts[] = {c->dtype,
                              c->count,
                              c->slot_bytes,
                              backend_max(c->width, 1),
                              backend_op_rooted(c->op) ? (uint64_t)c->root : 0,
                              c->reduce ? c->reduce : ESP_REDUCE_SUM};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) h = (h ^ parts[i]) * 0x9e3779b97f4a7c15ull + (h >> 29);
    return h;
}
ESP__FN uint64_t backend_copy_slots(uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t slot_bytes) {
    uint64_t sum = 0;
    for (uint64_t at = 0; at < bytes; at += slot_bytes) {
        const uint64_t used = backend_slot_used(from + at, slot_bytes);
        if (to != from) memcpy(to + at, from + at, used);
        sum += used;
    }
    return sum;
}

/* Checks the number type, the room for payloads and the kind of reduction of a collective call. */
static esp_status backend_check_items(const backend_caller *m, const esp_coll *c) {
    const char *what = backend_op_name(c->op);
    const bool reduces = backend_op_sums(c->op), floats = c->dtype >= ESP_F32 && c->dtype <= ESP_BF16;
    if (c->slot_bytes && reduces)
        return backend_error(m, ESP_E_ARG, "%s: payload slots cannot be reduced: set slot_bytes to 0", what);
    if (c->slot_bytes && c->slot_bytes < ESP_PAYLOAD_HEADER)
        return backend_error(m, ESP_E_ARG, "%s: slot_bytes is %llu, but a payload's header alone has %u bytes", what,
                             (unsigned long long)c->slot_bytes, (unsigned)ESP_PAYLOAD_HEADER);
    if (c->slot_bytes && c->width > 1)
        return backend_error(m, ESP_E_ARG, "%s: width %llu is for plain numbers: set it to 0 with payload slots", what,
                             (unsigned long long)c->width);
    if (!c->slot_bytes && !esp_dtype_bytes(c->dtype))
        return backend_error(m, ESP_E_ARG, "%s: there is no dtype %u: use ESP_F32 to ESP_I32", what,
                             (unsigned)c->dtype);
    if (c->reduce > ESP_REDUCE_MIN)
        return backend_error(m, ESP_E_ARG, "%s: there is no reduction %u: use ESP_REDUCE_*", what, (unsigned)c->reduce);
    if (reduces && backend_scales(c) && (!floats || c->reduce > ESP_REDUCE_SUM))
        return backend_error(m, ESP_E_ARG,
                             "%s: scale %g is for sums of f32, f16 and bf16: set it to 0 for integers, MAX and MIN",
                             what, (double)c->scale);
    return ESP_OK;
}
static esp_status backend_check_shape(const backend_caller *m, const esp_coll *c) {
    const char *what = backend_op_name(c->op);
    const uint64_t most = UINT64_MAX / 16, width = backend_max(c->width, 1);
    if (backend_op_rooted(c->op) && (c->root < 0 || c->root >= m->size))
        return backend_error(m, ESP_E_ARG, "%s: root %d is not in 0..%d", what, (int)c->root, (int)m->size - 1);
    if (c->op == ESP_COLL_ALLTOALL && c->count % (uint64_t)m->size)
        return backend_error(m, ESP_E_ARG, "alltoall: count %llu must be a multiple of the %d ranks",
                             (unsigned long long)c->count, (int)m->size);
    if (width > most / 4 || c->count > most / (c->slot_bytes ? c->slot_bytes : 4 * width))
        return backend_error(m, ESP_E_ARG, "%s: count %llu of width %llu is too large", what,
                             (unsigned long long)c->count, (unsigned long long)width);
    return ESP_OK;
}
/* Collectives divide `count` items into one part of ceil(count / size) for each rank. Returns false if this rank's
 * part is empty because `count` is too small. */
static bool backend_has_part(const backend_caller *m, const esp_coll *c) {
    return (uint64_t)m->rank * ((c->count + (uint64_t)m->size - 1) / (uint64_t)m->size) < c->count;
}
ESP__FN bool backend_needs_src(const backend_caller *m, const esp_coll *c) {
    if (c->op == ESP_COLL_BROADCAST) return m->rank == c->root;
    return (c->op != ESP_COLL_ALLGATHER && c->op != ESP_COLL_GATHER) || backend_has_part(m, c);
}
ESP__FN bool backend_needs_dst(const backend_caller *m, const esp_coll *c) {
    if (backend_op_rooted(c->op)) return (m->rank == c->root) != (c->op == ESP_COLL_BROADCAST);
    return c->op != ESP_COLL_REDUCE_SCATTER || backend_has_part(m, c);
}
ESP__FN esp_status backend_check_call(const backend_caller *m, const esp_coll *c) {
    if (c->op < ESP_COLL_ALLREDUCE || c->op > ESP_COLL_REDUCE)
        return backend_error(m, ESP_E_ARG, "there is no collective %u: use ESP_COLL_*", (unsigned)c->op);
    esp_status s = backend_check_items(m, c);
    if (s == ESP_OK) s = backend_check_shape(m, c);
    if (s != ESP_OK || !c->count) return s;
    const bool no_src = backend_needs_src(m, c) && !c->src.ptr, no_dst = backend_needs_dst(m, c) && !c->dst.ptr;
    if (!no_src && !no_dst) return ESP_OK;
    return backend_error(m, ESP_E_ARG, "%s: %s is NULL", backend_op_name(c->op), no_src ? "src" : "dst");
}
ESP__FN esp_status backend_check(const backend_caller *m, const esp_coll *c) {
    const esp_status s = backend_check_call(m, c);
    if (s != ESP_OK || (c->src.dev.kind <= ESP_CPU && c->dst.dev.kind <= ESP_CPU)) return s;
    return backend_error(m, ESP_E_UNSUPPORTED, "%s: moves host memory only: copy to the CPU first",
                         backend_op_name(c->op));
}
