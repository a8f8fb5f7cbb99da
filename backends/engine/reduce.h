/* reduce.h: all reductions, and the kernels of those whose numbers keep their own format: sums of integers, which wrap, and the
 * largest or least of any dtype. The order of the ranks does not matter to them. Plain loops, one for each width, compiled for
 * several instruction sets: same bytes from all.
 *
 * Floats are compared by their bits, in the order -Inf .. -0, +0 .. +Inf, so that halves need no conversion and two zeros give
 * the same bits whichever comes first. A NaN gives the one quiet NaN without sign and payload. */
#ifndef ENGINE_REDUCE_H
#define ENGINE_REDUCE_H

/* Kernels for numbers of `bits` bits. pick: the larger, or where `least`, the lesser; inf and nan: 0 for integers, else the bits of
 * Inf and of the NaN to write. */
#define ENGINE_LOOPS(bits)                                                                                             \
    typedef int##bits##_t engine_s##bits __attribute__((may_alias));                                                   \
    typedef uint##bits##_t engine_w##bits __attribute__((may_alias));                                                  \
    ESP_INLINE uint64_t engine_add_##bits##_body(void *out, const void *a, const void *b, uint64_t n) {                \
        engine_w##bits *o = (engine_w##bits *)out;                                                                     \
        const engine_w##bits *x = (const engine_w##bits *)a, *y = (const engine_w##bits *)b;                           \
        ENGINE_APART                                                                                                   \
        for (uint64_t i = 0; i < n; i++) o[i] = (uint##bits##_t)(x[i] + y[i]);                                         \
        return n;                                                                                                      \
    }                                                                                                                  \
    ESP_INLINE int##bits##_t engine_key_##bits(int##bits##_t x) { /* sign and magnitude to two's complement */         \
        return (int##bits##_t)(x ^ ((x >> (bits - 1)) & INT##bits##_MAX));                                             \
    }                                                                                                                  \
    ESP_INLINE uint64_t engine_pick_##bits##_body(void *out, const void *a, const void *b, uint64_t n, int least,      \
                                                  int32_t inf, int32_t nan) {                                          \
        engine_s##bits *o = (engine_s##bits *)out;                                                                     \
        const engine_s##bits *px = (const engine_s##bits *)a, *py = (const engine_s##bits *)b;                         \
        const int##bits##_t turn = (int##bits##_t)(least ? -1 : 0), above = (int##bits##_t)inf;                        \
        if (!inf) {                                                                                                    \
            ENGINE_APART                                                                                               \
            for (uint64_t i = 0; i < n; i++) {                                                                         \
                const int##bits##_t x = (int##bits##_t)(px[i] ^ turn), y = (int##bits##_t)(py[i] ^ turn);              \
                o[i] = (int##bits##_t)((x > y ? x : y) ^ turn);                                                        \
            }                                                                                                          \
            return n;                                                                                                  \
        }                                                                                                              \
        ENGINE_APART                                                                                                   \
        for (uint64_t i = 0; i < n; i++) {                                                                             \
            const int##bits##_t x = px[i], y = py[i];                                                                  \
            const int##bits##_t kx = engine_key_##bits(x), ky = engine_key_##bits(y);                                  \
            const int##bits##_t r = least ? (kx < ky ? kx : ky) : (kx > ky ? kx : ky);                                 \
            const int##bits##_t mx = (int##bits##_t)(x & INT##bits##_MAX), my = (int##bits##_t)(y & INT##bits##_MAX);  \
            const int##bits##_t bad = (int##bits##_t) - ((mx > my ? mx : my) > above); /* all bits, where a NaN is */  \
            o[i] = (int##bits##_t)((engine_key_##bits(r) & ~bad) | (nan & bad));                                       \
        }                                                                                                              \
        return n;                                                                                                      \
    }                                                                                                                  \
    ESP_KERNEL(engine_add_##bits, (void *out, const void *a, const void *b, uint64_t n), (out, a, b, n))               \
    ESP_KERNEL(engine_pick_##bits,                                                                                     \
               (void *out, const void *a, const void *b, uint64_t n, int least, int32_t inf, int32_t nan),             \
               (out, a, b, n, least, inf, nan))
ENGINE_LOOPS(8)
ENGINE_LOOPS(16)
ENGINE_LOOPS(32)

/* Are these sums of halves? They pass through f32: see engine_sum_halves. */
ENGINE_FN int engine_sums_halves(const engine_sums *s) {
    return s->op == ESP_REDUCE_SUM && (s->type == ESP_F16 || s->type == ESP_BF16);
}
/* out = a and b reduced, in their own format; out may be a. b NULL, floats only: out = a scale. Only sums of f32 have a scale. */
ENGINE_FN void engine_reduce_same(const engine_sums *s, void *out, const void *a, const void *b, uint64_t n,
                                  float scale) {
    const int least = s->op == ESP_REDUCE_MIN, level = s->level;
    if (s->op == ESP_REDUCE_SUM) switch (s->type) {
        case ESP_I8: engine_add_8_for(level)(out, a, b, n); return;
        case ESP_I16: engine_add_16_for(level)(out, a, b, n); return;
        case ESP_I32: engine_add_32_for(level)(out, a, b, n); return;
        default: engine_sum_f32_for(level)(out, a, b, n, scale); return;
        }
    switch (s->type) {
    case ESP_I8: engine_pick_8_for(level)(out, a, b, n, least, 0, 0); return;
    case ESP_I16: engine_pick_16_for(level)(out, a, b, n, least, 0, 0); return;
    case ESP_I32: engine_pick_32_for(level)(out, a, b, n, least, 0, 0); return;
    case ESP_F16: engine_pick_16_for(level)(out, a, b, n, least, 0x7c00, HALF_F16_NAN); return;
    case ESP_BF16: engine_pick_16_for(level)(out, a, b, n, least, 0x7f80, HALF_BF16_NAN); return;
    default: engine_pick_32_for(level)(out, a, b, n, least, 0x7f800000, 0x7fc00000); return;
    }
}
/* In all formats: out = (a and b reduced) scale. */
ENGINE_FN void engine_reduce(const engine_sums *s, uint8_t *out, const uint8_t *a, const uint8_t *b, uint64_t n,
                             float scale) {
    float acc[ENGINE_BLOCK];
    if (!engine_sums_halves(s)) {
        engine_reduce_same(s, out, a, b, n, scale);
        return;
    }
    for (uint64_t at = 0; at < n; at += ENGINE_BLOCK) {
        const uint64_t some = n - at < ENGINE_BLOCK ? n - at : ENGINE_BLOCK;
        engine_sum_halves(s, out + 2 * at, acc, a + 2 * at, b ? b + 2 * at : NULL, some, scale);
    }
}
#endif
