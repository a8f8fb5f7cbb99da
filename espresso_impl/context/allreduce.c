/* allreduce.c: esp_allreduce_as, for numbers that backends cannot reduce. Every rank gets the numbers of all ranks, and
 * reduces them in rank order, so that all ranks get the same bits. Also compares the arguments of helper calls. */
#include "espresso_impl/context/context.h"

enum { ESP__ALLREDUCE_WORDS = 1 << 16 };

ESP__FN esp_status esp__same_arguments(esp_ctx *ctx, const char *what, const char *const names[ESP__ARGUMENTS],
                                       const uint64_t mine[ESP__ARGUMENTS]) {
    const uint64_t bytes = sizeof(uint64_t[ESP__ARGUMENTS]), n = (uint64_t)ctx->job.size;
    esp_coll c;
    /* without memory, this rank would not take part, and others would wait for it: few ranks need none */
    uint64_t own[ESP__ARGUMENTS], few[ESP__FEW_RANKS * ESP__ARGUMENTS];
    uint64_t *all = n <= ESP__FEW_RANKS ? few : esp__alloc(ctx, n * bytes);
    if (!all) return esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory", what);
    memcpy(own, mine, bytes);
    esp__coll_init(&c, ESP_COLL_ALLGATHER, ESP_F32, n * bytes / 4, all, 0);
    c.src.ptr = own, c.src.bytes = bytes;
    esp_status s = esp__request_run_at(ctx, ESP__FLAT, &c, what);
    for (uint64_t i = 0; i < n * ESP__ARGUMENTS && !s; i++) {
        const uint64_t of = all[i], here = mine[i % ESP__ARGUMENTS];
        if (of != here)
            s = esp__fail(ctx, ESP_E_MISMATCH,
                          "%s: rank %d gives %s %llu, rank %d gives %llu: all ranks must give the same", what,
                          (int)(i / ESP__ARGUMENTS), names[i % ESP__ARGUMENTS], (unsigned long long)of, ctx->job.rank,
                          (unsigned long long)here);
    }
    if (all != few) esp__free(ctx, all);
    return s;
}

/* Sets a[i] to the sum, maximum or minimum of a[i] and b[i]. A NaN stays. Sums of integers wrap around. */
#define ESP__REDUCE(name, type, add)                                                                                   \
    static void name(void *into, const void *from, uint64_t count, uint32_t op) {                                      \
        type *a = into;                                                                                                \
        const type *b = from;                                                                                          \
        for (uint64_t i = 0; i < count; i++) {                                                                         \
            if (op == ESP_REDUCE_SUM)                                                                                  \
                a[i] = (type)((add)a[i] + (add)b[i]);                                                                  \
            else if (b[i] != b[i] || (op == ESP_REDUCE_MAX ? b[i] > a[i] : b[i] < a[i]))                               \
                a[i] = b[i];                                                                                           \
        }                                                                                                              \
    }
ESP__REDUCE(esp__reduce_f32, float, float)
ESP__REDUCE(esp__reduce_f64, double, double)
ESP__REDUCE(esp__reduce_i32, int32_t, uint32_t)
ESP__REDUCE(esp__reduce_i64, int64_t, uint64_t)

static esp_status esp__allreduce_piece(esp_ctx *ctx, uint8_t *data, uint64_t count, uint64_t bytes, uint32_t op,
                                       void (*reduce)(void *, const void *, uint64_t, uint32_t), uint8_t *all) {
    const uint64_t n = (uint64_t)ctx->job.size, part = count * bytes;
    uint8_t *mine = all + (uint64_t)ctx->job.rank * part;
    esp_coll c;
    memcpy(mine, data, part);
    esp__coll_init(&c, ESP_COLL_ALLGATHER, ESP_F32, n * part / 4, all, 0);
    c.src.ptr = mine, c.src.bytes = part;
    esp_status s = esp__request_run_at(ctx, ESP__FLAT, &c, "esp_allreduce_as");
    for (uint64_t r = 1; r < n && !s; r++) reduce(all, all + r * part, count, op);
    if (!s) memcpy(data, all, part);
    return s;
}

ESPRESSO_API esp_status esp_allreduce_as(esp_ctx *ctx, void *data, uint64_t count, esp_dtype dtype, esp_reduce op) {
    static const char *const names[ESP__ARGUMENTS] = {"count", "dtype", "op"};
    const uint64_t arguments[ESP__ARGUMENTS] = {count, dtype, op};
    esp_status s = esp__usable(ctx);
    if (s) return s;
    void (*const reduce)(void *, const void *, uint64_t, uint32_t) = dtype == ESP_F32   ? esp__reduce_f32
                                                                     : dtype == ESP_F64 ? esp__reduce_f64
                                                                     : dtype == ESP_I32 ? esp__reduce_i32
                                                                     : dtype == ESP_I64 ? esp__reduce_i64
                                                                                        : NULL;
    const uint64_t n = (uint64_t)ctx->job.size, bytes = dtype == ESP_F64 || dtype == ESP_I64 ? 8 : 4;
    uint64_t piece = ESP__ALLREDUCE_WORDS / n;
    if (!data && count) return esp__fail(ctx, ESP_E_ARG, "esp_allreduce_as: data is NULL");
    if (!reduce)
        return esp__fail(ctx, ESP_E_ARG, "esp_allreduce_as: dtype %u is none of ESP_F32, ESP_F64, ESP_I32, ESP_I64",
                         (unsigned)dtype);
    if (op < ESP_REDUCE_SUM || op > ESP_REDUCE_MIN)
        return esp__fail(ctx, ESP_E_ARG, "esp_allreduce_as: op %u is none of ESP_REDUCE_SUM, _MAX, _MIN", (unsigned)op);
    s = esp__same_arguments(ctx, "esp_allreduce_as", names, arguments);
    if (s || !count) return s;
    if (!piece) piece = 1;
    if (piece > count) piece = count;
    uint8_t *all = esp__alloc(ctx, n * piece * bytes);
    if (!all) return esp__fail(ctx, ESP_E_NOMEM, "esp_allreduce_as: out of memory");
    for (uint64_t at = 0; at < count && !s; at += piece)
        s = esp__allreduce_piece(ctx, (uint8_t *)data + at * bytes, count - at < piece ? count - at : piece, bytes, op,
                                 reduce, all);
    esp__free(ctx, all);
    return s;
}
