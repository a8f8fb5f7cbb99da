/* reduce.h: reductions whose numbers keep their own format: sums of integers, which wrap, and the largest or least of any
 * dtype. The order of the ranks does not matter to them. Plain loops, compiled for several instruction sets: same bytes
 * from all.
 *
 * Floats are compared by their bits, in the order -Inf .. -0, +0 .. +Inf, so that halves need no conversion and two zeros give
 * the same bits whichever comes first. A NaN gives the one quiet NaN without sign and payload. */
#ifndef ENGINE_REDUCE_H
#define ENGINE_REDUCE_H

/* For a loop whose result may be its first input: no number depends on an earlier one. */
#if defined(__clang__)
#define ENGINE_APART _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define ENGINE_APART _Pragma("GCC ivdep")
#else
#define ENGINE_APART
#endif

/* Loops over numbers of `bits` bits. pick: the larger, or the lesser where `least`; inf and nan: 0 for integers, else the
 * bits of Inf and of the NaN to write. */
#define ENGINE_LOOPS(bits)                                                                                             \
    typedef int##bits##_t engine_s##bits __attribute__((may_alias));                                                   \
    typedef uint##bits##_t engine_w##bits __attribute__((may_alias));                                                  \
    ESP_INLINE void engine_add_##bits(void *out, const void *a, const void *b, uint64_t n) {                           \
        engine_w##bits *o = (engine_w##bits *)out;                                                                     \
        const engine_w##bits *x = (const engine_w##bits *)a, *y = (const engine_w##bits *)b;                           \
        ENGINE_APART                                                                                                   \
        for (uint64_t i = 0; i < n; i++) o[i] = (uint##bits##_t)(x[i] + y[i]);                                         \
    }                                                                                                                  \
    ESP_INLINE int##bits##_t engine_key_##bits(int##bits##_t x) { /* sign and magnitude to two's complement */         \
        return (int##bits##_t)(x ^ ((x >> (bits - 1)) & INT##bits##_MAX));                                             \
    }                                                                                                                  \
    ESP_INLINE void engine_pick_##bits(void *out, const void *a, const void *b, uint64_t n, int least,                 \
                                       int##bits##_t inf, int##bits##_t nan) {                                         \
        engine_s##bits *o = (engine_s##bits *)out;                                                                     \
        const engine_s##bits *px = (const engine_s##bits *)a, *py = (const engine_s##bits *)b;                         \
        ENGINE_APART                                                                                                   \
        for (uint64_t i = 0; i < n; i++) {                                                                             \
            const int##bits##_t x = px[i], y = py[i];                                                                  \
            const int##bits##_t kx = inf ? engine_key_##bits(x) : x, ky = inf ? engine_key_##bits(y) : y;              \
            const int##bits##_t r = least ? (kx < ky ? kx : ky) : (kx > ky ? kx : ky);                                 \
            const int##bits##_t mx = (int##bits##_t)(x & INT##bits##_MAX), my = (int##bits##_t)(y & INT##bits##_MAX);  \
            const int##bits##_t bad = (int##bits##_t) - ((mx > my ? mx : my) > inf); /* all bits, where a NaN is */    \
            o[i] = inf ? (int##bits##_t)((engine_key_##bits(r) & ~bad) | (nan & bad)) : r;                             \
        }                                                                                                              \
    }
ENGINE_LOOPS(8)
ENGINE_LOOPS(16)
ENGINE_LOOPS(32)

ESP_INLINE uint64_t engine_reduce_any(uint32_t type, uint32_t op, void *o, const void *a, const void *b, uint64_t n) {
    const int least = op == ESP_REDUCE_MIN, sum = op == ESP_REDUCE_SUM;
    if (type == ESP_I8 && sum)
        engine_add_8(o, a, b, n);
    else if (type == ESP_I16 && sum)
        engine_add_16(o, a, b, n);
    else if (type == ESP_I32 && sum)
        engine_add_32(o, a, b, n);
    else if (type == ESP_I8)
        engine_pick_8(o, a, b, n, least, 0, 0);
    else if (type == ESP_I16)
        engine_pick_16(o, a, b, n, least, 0, 0);
    else if (type == ESP_I32)
        engine_pick_32(o, a, b, n, least, 0, 0);
    else if (type == ESP_F16)
        engine_pick_16(o, a, b, n, least, 0x7c00, 0x7e00);
    else if (type == ESP_BF16)
        engine_pick_16(o, a, b, n, least, 0x7f80, 0x7fc0);
    else
        engine_pick_32(o, a, b, n, least, 0x7f800000, 0x7fc00000);
    return n;
}

/* name, dtype, reduction: sums of floats are in sum.h */
#define ENGINE_REDUCES(X)                                                                                              \
    X(engine_sum_i8, ESP_I8, ESP_REDUCE_SUM)                                                                           \
    X(engine_sum_i16, ESP_I16, ESP_REDUCE_SUM)                                                                         \
    X(engine_sum_i32, ESP_I32, ESP_REDUCE_SUM)                                                                         \
    X(engine_max_i8, ESP_I8, ESP_REDUCE_MAX)                                                                           \
    X(engine_max_i16, ESP_I16, ESP_REDUCE_MAX)                                                                         \
    X(engine_max_i32, ESP_I32, ESP_REDUCE_MAX)                                                                         \
    X(engine_max_f16, ESP_F16, ESP_REDUCE_MAX)                                                                         \
    X(engine_max_bf16, ESP_BF16, ESP_REDUCE_MAX)                                                                       \
    X(engine_max_f32, ESP_F32, ESP_REDUCE_MAX)                                                                         \
    X(engine_min_i8, ESP_I8, ESP_REDUCE_MIN)                                                                           \
    X(engine_min_i16, ESP_I16, ESP_REDUCE_MIN)                                                                         \
    X(engine_min_i32, ESP_I32, ESP_REDUCE_MIN)                                                                         \
    X(engine_min_f16, ESP_F16, ESP_REDUCE_MIN)                                                                         \
    X(engine_min_bf16, ESP_BF16, ESP_REDUCE_MIN)                                                                       \
    X(engine_min_f32, ESP_F32, ESP_REDUCE_MIN)

/* The same signature as a sum's kernel; the scale is 1. */
#define ENGINE_REDUCE(name, type, op)                                                                                  \
    ESP_INLINE uint64_t name##_body(void *out, const void *a, const void *b, uint64_t n, float scale) {                \
        (void)scale;                                                                                                   \
        return engine_reduce_any(type, op, out, a, b, n);                                                              \
    }                                                                                                                  \
    ESP_KERNEL(name, (void *out, const void *a, const void *b, uint64_t n, float scale), (out, a, b, n, scale))
ENGINE_REDUCES(ENGINE_REDUCE)

#define ENGINE_REDUCE_PICK(name, of, op)                                                                               \
    if (type == (of) && reduce == (op)) s.two = name##_for(level);
/* The kernels of a reduction. reduce 0: a sum. */
ENGINE_FN engine_sums engine_kernels_for(esp_dtype type, esp_reduce reduce, int level) {
    engine_sums s = {NULL, NULL, NULL, NULL};
    if (!reduce) reduce = ESP_REDUCE_SUM;
    ENGINE_REDUCES(ENGINE_REDUCE_PICK)
    if (!s.two) return engine_sums_for(type, level);
    s.first = s.next = s.last = s.two;
    return s;
}
#endif
