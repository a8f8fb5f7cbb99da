/* simd.h: one scalar kernel body, compiled for several instruction sets, chosen at run time.
 * Knows nothing of codecs. Bytes must not depend on the choice: bodies are plain C with independent lanes,
 * and FMA contraction is off (espresso_impl.c and the plugin build both see to it).
 *
 *     ESP_INLINE uint64_t twobit_pack_body(const float *g, float *e, uint64_t n) { ...plain C... }
 *     ESP_KERNEL(twobit_pack, (const float *g, float *e, uint64_t n), (g, e, n))
 *
 * defines twobit_pack_for(level), a pointer to the body compiled for that level (ask esp_simd_level() once, in open).
 * Where compilers fail (packing, compaction) write name_avx2 and so on by hand, next to a portable body. */
#ifndef ESP_SIMD_H
#define ESP_SIMD_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "espresso's codecs promise the same bytes everywhere: compile them without -ffast-math"
#endif

enum { ESP_SIMD_SCALAR = 0, ESP_SIMD_AVX2 = 1, ESP_SIMD_AVX512 = 2 };

/* Best level of this machine; ESPRESSO_SIMD=scalar|avx2|avx512 lowers it (tests compare the bytes). */
static inline int esp_simd_level(void) {
    int level = ESP_SIMD_SCALAR;
    const char *want = getenv("ESPRESSO_SIMD");
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) level = ESP_SIMD_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        level = ESP_SIMD_AVX512;
#endif
    if (want && !strcmp(want, "scalar")) level = ESP_SIMD_SCALAR;
    if (want && !strcmp(want, "avx2") && level > ESP_SIMD_AVX2) level = ESP_SIMD_AVX2;
    return level;
}

#define ESP_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__)
#define ESP_TARGET_AVX2 __attribute__((target("avx2,f16c,bmi,bmi2,popcnt,lzcnt")))
#define ESP_TARGET_AVX512                                                                          \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,bmi,bmi2,popcnt,lzcnt")))
#define ESP_KERNEL(name, params, args)                                                             \
    ESP_TARGET_AVX512 static uint64_t name##_avx512 params { return name##_body args; }            \
    ESP_TARGET_AVX2 static uint64_t name##_avx2 params { return name##_body args; }                \
    static uint64_t name##_scalar params { return name##_body args; }                              \
    typedef uint64_t(*name##_fn) params;                                                           \
    static inline name##_fn name##_for(int level) {                                                \
        return level == ESP_SIMD_AVX512 ? name##_avx512                                            \
               : level == ESP_SIMD_AVX2 ? name##_avx2                                              \
                                        : name##_scalar;                                           \
    }
#else
#define ESP_KERNEL(name, params, args)                                                             \
    static uint64_t name##_scalar params { return name##_body args; }                              \
    typedef uint64_t(*name##_fn) params;                                                           \
    static inline name##_fn name##_for(int level) { return (void)level, name##_scalar; }
#endif
#endif
