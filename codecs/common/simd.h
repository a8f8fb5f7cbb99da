/* simd.h: compiles a kernel body in plain C for several instruction sets and chooses one at run time. All give the same
 * bytes: a body's lanes are independent (or sums form a fixed tree), and fused multiply-add (a * b + c with one
 * rounding) is off in every kernel.
 *
 *     ESP_INLINE uint64_t foo_body(const float *g, float *e, uint64_t n) { ...plain C... }
 *     ESP_KERNEL(foo, (const float *g, float *e, uint64_t n), (g, e, n))
 *
 * defines foo_for(level), which returns the body compiled for that level. Call esp_simd_level() once, in open().
 * Where compilers do not vectorise a body (packing, compaction), write foo_avx2 and foo_avx512 by hand, foo_scalar
 * in plain C, and ESP_KERNEL_PICK in place of ESP_KERNEL. With ESP_NO_SIMD there is only the scalar level. */
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
/* A plugin's author chooses the compiler flags, so contraction is switched off here too. No code reads floating-point
 * exception flags; without "no-trapping-math" gcc preserves them, keeps a branch in a ? b + c : d, and does not
 * vectorise. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#define ESP_KERNEL_OPT
#elif defined(__GNUC__) && defined(__OPTIMIZE__)
#define ESP_KERNEL_OPT __attribute__((optimize("O3", "fp-contract=off", "no-trapping-math")))
#else
#define ESP_KERNEL_OPT
#endif

/* ESP_SIMD before a loop of independent iterations makes the compiler vectorise it at any optimisation level, with the
 * same bits. ESP_SIMD_REDUCE does so where iterations update one integer by | or max, which any order gives; never use
 * it for a floating-point sum. Without OpenMP both are empty (-fopenmp-simd -DESP_OPENMP_SIMD enables them without an
 * OpenMP runtime). */
#if defined(_OPENMP) || defined(ESP_OPENMP_SIMD)
#define ESP__PRAGMA(text) _Pragma(#text)
#define ESP_SIMD ESP__PRAGMA(omp simd)
#define ESP_SIMD_REDUCE(op, to) ESP__PRAGMA(omp simd reduction(op : to))
#else
#define ESP_SIMD
#define ESP_SIMD_REDUCE(op, to)
#endif

enum { ESP_SIMD_SCALAR = 0, ESP_SIMD_AVX2 = 1, ESP_SIMD_AVX512 = 2 };

/* The highest level that the processor and the operating system support. */
static inline int esp_simd_best(void) {
#ifdef ESP_SIMD_X86
    unsigned a, b, c, d;
    __builtin_cpu_init(); /* includes the operating system's support */
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

/* This machine's highest level, or a lower one that ESPRESSO_SIMD=scalar|avx2|avx512 names (tests compare the
 * bytes). */
static inline int esp_simd_level(void) {
    const char *want = getenv("ESPRESSO_SIMD");
    const int best = esp_simd_best();
    int cap = ESP_SIMD_AVX512;
    if (want && !strcmp(want, "scalar")) cap = ESP_SIMD_SCALAR;
    if (want && !strcmp(want, "avx2")) cap = ESP_SIMD_AVX2;
    return best < cap ? best : cap;
}

#define ESP_KERNEL_SCALAR(name, params, args)                                                                          \
    ESP_KERNEL_OPT static uint64_t name##_scalar params { return name##_body args; }
#ifdef ESP_SIMD_X86
#define ESP_TARGET_AVX2 ESP_KERNEL_OPT __attribute__((target("avx2,f16c,bmi,bmi2,popcnt,lzcnt")))
#define ESP_TARGET_AVX512                                                                                              \
    ESP_KERNEL_OPT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,bmi,bmi2,popcnt,lzcnt")))
#define ESP_KERNEL_PICK(name, params)                                                                                  \
    typedef uint64_t(*name##_fn) params;                                                                               \
    static inline name##_fn name##_for(int level) {                                                                    \
        return level == ESP_SIMD_AVX512 ? name##_avx512 : level == ESP_SIMD_AVX2 ? name##_avx2 : name##_scalar;        \
    }
#define ESP_KERNEL(name, params, args)                                                                                 \
    ESP_TARGET_AVX512 static uint64_t name##_avx512 params { return name##_body args; }                                \
    ESP_TARGET_AVX2 static uint64_t name##_avx2 params { return name##_body args; }                                    \
    ESP_KERNEL_SCALAR(name, params, args)                                                                              \
    ESP_KERNEL_PICK(name, params)
#else
#define ESP_KERNEL_PICK(name, params)                                                                                  \
    typedef uint64_t(*name##_fn) params;                                                                               \
    static inline name##_fn name##_for(int level) {                                                                    \
        (void)level;                                                                                                   \
        return name##_scalar;                                                                                          \
    }
#define ESP_KERNEL(name, params, args)                                                                                 \
    ESP_KERNEL_SCALAR(name, params, args)                                                                              \
    ESP_KERNEL_PICK(name, params)
#endif
#endif
