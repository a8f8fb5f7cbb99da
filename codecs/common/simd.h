/* simd.h: compiles a kernel written in plain C for several instruction sets, and chooses one at run time. All give the
 * same bytes, since fused multiply-add is off and sums have a fixed order.
 *     ESP_INLINE uint64_t foo_body(const float *g, float *e, uint64_t n) { ...plain C... }
 *     ESP_KERNEL(foo, (const float *g, float *e, uint64_t n), (g, e, n))
 * defines foo_for(level), which returns foo for the instruction set `level`. open() gets that from esp_simd_level().
 * ESP_KERNEL_PICK instead takes hand-written foo_scalar, foo_avx2 and foo_avx512. With ESP_NO_SIMD all is scalar. */
#ifndef ESP_SIMD_H
#define ESP_SIMD_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "codecs/common/element.h"
#if defined(__x86_64__) && defined(__GNUC__) && !defined(ESP_NO_SIMD)
#define ESP_SIMD_X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

#ifdef __FAST_MATH__
#error "espresso's codecs give the same bytes everywhere: compile them with -fno-fast-math after your flags"
#endif
/* A plugin's author chooses the compiler flags, so fused multiply-add is switched off here too. no-trapping-math
 * lets gcc vectorise a ? b + c : d, which would otherwise stay a branch to preserve exception flags. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#define ESP_KERNEL_OPT
#elif defined(__GNUC__) && defined(__OPTIMIZE__)
#define ESP_KERNEL_OPT __attribute__((optimize("O3", "fp-contract=off", "no-trapping-math")))
#else
#define ESP_KERNEL_OPT
#endif

/* ESP_SIMD before a loop of independent iterations makes the compiler vectorise it at any optimisation level.
 * ESP_SIMD_REDUCE does so for a loop that updates one integer by | or max; never use it for a floating-point sum,
 * whose order it would change. Both need OpenMP, or -fopenmp-simd -DESP_OPENMP_SIMD; otherwise they do nothing. */
#if defined(_OPENMP) || defined(ESP_OPENMP_SIMD)
#define ESP__PRAGMA(text) _Pragma(#text)
#define ESP_SIMD ESP__PRAGMA(omp simd)
#define ESP_SIMD_REDUCE(op, to) ESP__PRAGMA(omp simd reduction(op : to))
#else
#define ESP_SIMD
#define ESP_SIMD_REDUCE(op, to)
#endif

enum { ESP_SIMD_SCALAR = 0, ESP_SIMD_AVX2 = 1, ESP_SIMD_AVX512 = 2 };

/* Returns the best instruction set that processor and operating system support. */
static inline int esp_simd_best(void) {
#ifdef ESP_SIMD_X86
    unsigned a, b, c, d;
    __builtin_cpu_init(); /* also checks the operating system */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("popcnt"))
        return ESP_SIMD_SCALAR;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return ESP_SIMD_SCALAR;
    if (!__get_cpuid(0x80000001u, &a, &b, &c, &d) || !(c & bit_LZCNT)) return ESP_SIMD_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return ESP_SIMD_AVX512;
    return ESP_SIMD_AVX2;
#else
    return ESP_SIMD_SCALAR;
#endif
}

/* Returns the instruction set to use: the best one, or a lesser one that ESPRESSO_SIMD=scalar|avx2|avx512 asks for. */
static inline int esp_simd_level(void) {
    const char *want = getenv("ESPRESSO_SIMD");
    const int best = esp_simd_best();
    int cap = ESP_SIMD_AVX512;
    if (want && !strcmp(want, "scalar")) cap = ESP_SIMD_SCALAR;
    if (want && !strcmp(want, "avx2")) cap = ESP_SIMD_AVX2;
    return best < cap ? best : cap;
}

#define ESP_TARGET_SCALAR ESP_KERNEL_OPT
#ifdef ESP_SIMD_X86
#define ESP_TARGET_AVX2 ESP_KERNEL_OPT __attribute__((target("avx2,f16c,bmi,bmi2,popcnt,lzcnt")))
#define ESP_TARGET_AVX512                                                                                              \
    ESP_KERNEL_OPT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,bmi,bmi2,popcnt,lzcnt")))
/* Put it before a hand-written kernel calls a scalar function, also to return its result. Compilers add this
 * instruction where a kernel returns, but gcc not before such a call, after which each SSE instruction waits for 100
 * ns. */
#define ESP_LEAVE_WIDE() _mm256_zeroupper()
#define ESP__KERNEL_WIDE(name, params, args)                                                                           \
    ESP_TARGET_AVX512 static uint64_t name##_avx512 params { return name##_body args; }                                \
    ESP_TARGET_AVX2 static uint64_t name##_avx2 params { return name##_body args; }
#define ESP__KERNEL_AT(name, level)                                                                                    \
    (level) == ESP_SIMD_AVX512 ? name##_avx512 : (level) == ESP_SIMD_AVX2 ? name##_avx2 : name##_scalar
#else
#define ESP__KERNEL_WIDE(name, params, args)
#define ESP__KERNEL_AT(name, level) ((void)(level), name##_scalar)
#endif
#define ESP_KERNEL_PICK(name)                                                                                          \
    typedef __typeof__(&name##_scalar) name##_fn;                                                                      \
    static inline name##_fn name##_for(int level) { return ESP__KERNEL_AT(name, level); }
#define ESP_KERNEL(name, params, args)                                                                                 \
    ESP__KERNEL_WIDE(name, params, args)                                                                               \
    ESP_TARGET_SCALAR static uint64_t name##_scalar params { return name##_body args; }                                \
    ESP_KERNEL_PICK(name)
#endif
