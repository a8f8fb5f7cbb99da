/* reduce.c: adds, or takes the maximum or minimum of, two arrays and scales the result in one pass; every instruction
 * set gives the same bytes. f16 and bf16 are summed in f32, in blocks that fit the first-level cache, and rounded once.
 * MAX and MIN compare floats by their bits, in the order -Inf .. -0, +0 .. +Inf, so that -0 and +0 give the same result
 * in either order. Any NaN in the input gives the same NaN (quiet, positive). Integer sums wrap. */
#include "backends/common/common.h"
#include "codecs/common/half.h"

/* Lets the compiler vectorise the next loop: its iterations are independent even if `out` is the first input. */
#if defined(__clang__)
#define BACKEND_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define BACKEND_INDEPENDENT _Pragma("GCC ivdep")
#else
#define BACKEND_INDEPENDENT
#endif

typedef float backend_f32 __attribute__((may_alias));

ESP_INLINE uint64_t backend_sum_f32_body(void *out, const void *a, const void *b, uint64_t n, float scale) {
    backend_f32 *o = (backend_f32 *)out;
    const backend_f32 *x = (const backend_f32 *)a, *y = (const backend_f32 *)b;
    if (y) {
        BACKEND_INDEPENDENT
        for (uint64_t i = 0; i < n; i++) o[i] = (x[i] + y[i]) * scale;
    } else {
        BACKEND_INDEPENDENT
        for (uint64_t i = 0; i < n; i++) o[i] = x[i] * scale;
    }
    return n;
}
ESP_INLINE uint64_t backend_round_bf16_body(half_u16 *out, const float *x, uint64_t n, float scale) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) out[i] = (uint16_t)half_any_bf16(x[i] * scale);
    return n;
}
ESP_KERNEL(backend_sum_f32, (void *out, const void *a, const void *b, uint64_t n, float scale), (out, a, b, n, scale))
ESP_KERNEL(backend_round_bf16, (half_u16 * out, const float *x, uint64_t n, float scale), (out, x, n, scale))

static void backend_widen(const backend_reduction *s, float *acc, const uint8_t *x, uint64_t n, bool set) {
    const half_u16 *h = (const half_u16 *)(const void *)x;
    half_add_for(s->type == ESP_F16, s->level)(acc, h, 1.0f, set, n);
}
static void backend_round(const backend_reduction *s, uint8_t *out, const float *x, uint64_t n, float scale) {
    half_u16 *h = (half_u16 *)(void *)out;
    if (s->type == ESP_BF16)
        backend_round_bf16_for(s->level)(h, x, n, scale);
    else
        half_f16_encode_for(s->level)(h, x, NULL, scale, HALF_F16_MAX, n);
}
/* Sets acc to a + b, or adds b to acc if a is NULL. Then writes acc * scale to out unless out is NULL. */
static void backend_sum_halves(const backend_reduction *s, uint8_t *out, float *acc, const uint8_t *a, const uint8_t *b,
                               uint64_t n, float scale) {
    for (uint64_t at = 0; at < n; at += BACKEND_BLOCK) {
        const uint64_t some = n - at < BACKEND_BLOCK ? n - at : BACKEND_BLOCK;
        if (a) backend_widen(s, acc + at, a + 2 * at, some, true);
        if (b) backend_widen(s, acc + at, b + 2 * at, some, false);
        if (out) backend_round(s, out + 2 * at, acc + at, some, scale);
    }
}
/* Defines kernels that add arrays of `bits`-bit numbers, or take their maximum or, if `least`, their minimum. inf and
 * nan are the bit patterns of infinity and of the NaN that is written; for integers, they are 0. */
#define BACKEND_LOOPS(bits)                                                                                            \
    typedef int##bits##_t backend_s##bits __attribute__((may_alias));                                                  \
    typedef uint##bits##_t backend_w##bits __attribute__((may_alias));                                                 \
    ESP_INLINE uint64_t backend_add_##bits##_body(void *out, const void *a, const void *b, uint64_t n) {               \
        backend_w##bits *o = (backend_w##bits *)out;                                                                   \
        const backend_w##bits *x = (const backend_w##bits *)a, *y = (const backend_w##bits *)b;                        \
        BACKEND_INDEPENDENT                                                                                            \
        for (uint64_t i = 0; i < n; i++) o[i] = (uint##bits##_t)(x[i] + y[i]);                                         \
        return n;                                                                                                      \
    }                                                                                                                  \
    ESP_INLINE int##bits##_t backend_key_##bits(int##bits##_t x) { /* float bits to an integer of same order */        \
        return (int##bits##_t)(x ^ ((x >> (bits - 1)) & INT##bits##_MAX));                                             \
    }                                                                                                                  \
    ESP_INLINE uint64_t backend_pick_##bits##_body(void *out, const void *a, const void *b, uint64_t n, int least,     \
                                                   int32_t inf, int32_t nan) {                                         \
        backend_s##bits *o = (backend_s##bits *)out;                                                                   \
        const backend_s##bits *px = (const backend_s##bits *)a, *py = (const backend_s##bits *)b;                      \
        const int##bits##_t flip = (int##bits##_t)(least ? -1 : 0), above = (int##bits##_t)inf;                        \
        if (!inf) {                                                                                                    \
            BACKEND_INDEPENDENT                                                                                        \
            for (uint64_t i = 0; i < n; i++) {                                                                         \
                const int##bits##_t x = (int##bits##_t)(px[i] ^ flip), y = (int##bits##_t)(py[i] ^ flip);              \
                o[i] = (int##bits##_t)((x > y ? x : y) ^ flip);                                                        \
            }                                                                                                          \
            return n;                                                                                                  \
        }                                                                                                              \
        BACKEND_INDEPENDENT                                                                                            \
        for (uint64_t i = 0; i < n; i++) {                                                                             \
            const int##bits##_t x = px[i], y = py[i];                                                                  \
            const int##bits##_t kx = backend_key_##bits(x), ky = backend_key_##bits(y);                                \
            const int##bits##_t r = least ? (kx < ky ? kx : ky) : (kx > ky ? kx : ky);                                 \
            const int##bits##_t mx = (int##bits##_t)(x & INT##bits##_MAX), my = (int##bits##_t)(y & INT##bits##_MAX);  \
            const int##bits##_t bad = (int##bits##_t) - ((mx > my ? mx : my) > above); /* a NaN sets all bits */       \
            o[i] = (int##bits##_t)((backend_key_##bits(r) & ~bad) | (nan & bad));                                      \
        }                                                                                                              \
        return n;                                                                                                      \
    }                                                                                                                  \
    ESP_KERNEL(backend_add_##bits, (void *out, const void *a, const void *b, uint64_t n), (out, a, b, n))              \
    ESP_KERNEL(backend_pick_##bits,                                                                                    \
               (void *out, const void *a, const void *b, uint64_t n, int least, int32_t inf, int32_t nan),             \
               (out, a, b, n, least, inf, nan))
BACKEND_LOOPS(8)
BACKEND_LOOPS(16)
BACKEND_LOOPS(32)

/* Reduces everything except sums of f16 and bf16. */
static void backend_reduce_same(const backend_reduction *s, void *out, const void *a, const void *b, uint64_t n,
                                float scale) {
    const int least = s->op == ESP_REDUCE_MIN, level = s->level;
    if (s->op == ESP_REDUCE_SUM) switch (s->type) {
        case ESP_I8: backend_add_8_for(level)(out, a, b, n); return;
        case ESP_I16: backend_add_16_for(level)(out, a, b, n); return;
        case ESP_I32: backend_add_32_for(level)(out, a, b, n); return;
        default: backend_sum_f32_for(level)(out, a, b, n, scale); return;
        }
    switch (s->type) {
    case ESP_I8: backend_pick_8_for(level)(out, a, b, n, least, 0, 0); return;
    case ESP_I16: backend_pick_16_for(level)(out, a, b, n, least, 0, 0); return;
    case ESP_I32: backend_pick_32_for(level)(out, a, b, n, least, 0, 0); return;
    case ESP_F16: backend_pick_16_for(level)(out, a, b, n, least, 0x7c00, HALF_F16_NAN); return;
    case ESP_BF16: backend_pick_16_for(level)(out, a, b, n, least, 0x7f80, HALF_BF16_NAN); return;
    default: backend_pick_32_for(level)(out, a, b, n, least, 0x7f800000, 0x7fc00000); return;
    }
}
ESP__FN void backend_reduce(const backend_reduction *s, void *out, const void *a, const void *b, uint64_t n,
                            float scale) {
    float acc[BACKEND_BLOCK];
    if (!backend_sums_halves(s)) {
        backend_reduce_same(s, out, a, b, n, scale);
        return;
    }
    for (uint64_t at = 0; at < n; at += BACKEND_BLOCK) {
        const uint64_t some = n - at < BACKEND_BLOCK ? n - at : BACKEND_BLOCK;
        backend_sum_halves(s, (uint8_t *)out + 2 * at, acc, (const uint8_t *)a + 2 * at,
                           b ? (const uint8_t *)b + 2 * at : NULL, some, scale);
    }
}
ESP__FN void backend_reduce_step(const backend_reduction *s, void *out, void *acc, const void *a, const void *b,
                                 uint64_t n, float scale) {
    if (backend_sums_halves(s))
        backend_sum_halves(s, (uint8_t *)out, (float *)acc, (const uint8_t *)a, (const uint8_t *)b, n, scale);
    else
        backend_reduce_same(s, out ? out : acc, a ? a : acc, b, n, out ? scale : 1.0f);
}
ESP__FN void backend_single_rank(const esp_coll *c, int simd_level) {
    const backend_reduction s = backend_reduction_of(c, simd_level);
    const uint64_t bytes = c->count * backend_item(c);
    if (!bytes || c->op == ESP_COLL_BROADCAST) return;
    if (backend_op_sums(c->op) && backend_scales(c))
        backend_reduce(&s, c->dst.ptr, c->src.ptr, NULL, bytes / esp_dtype_bytes(c->dtype), c->scale);
    else if (c->slot_bytes)
        backend_copy_slots((uint8_t *)c->dst.ptr, (const uint8_t *)c->src.ptr, bytes, c->slot_bytes);
    else if (c->dst.ptr != c->src.ptr)
        memcpy(c->dst.ptr, c->src.ptr, bytes);
}
