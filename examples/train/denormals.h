/* denormals.h: lets a trainer compute with 0 in place of denormal numbers, with which processors are many times slower.
 * Where a sparse codec sends no gradient of an element, momentum decays until it is denormal. */
#ifndef TRAIN_DENORMALS_H
#define TRAIN_DENORMALS_H
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/** Applies to this thread and to those that it starts later. espresso's functions compute with denormals nevertheless,
 * and restore this on return. */
static inline void denormals_flush(void) {
#if defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* results, and operands */
#elif defined(__aarch64__) && defined(__GNUC__)
    unsigned long long mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode | 1ull << 24));
#endif
}
#endif
