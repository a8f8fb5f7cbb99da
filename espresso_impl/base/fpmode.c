/* fpmode.c: the mode of floating-point arithmetic. A program linked with -ffast-math (-Ofast) starts with denormal numbers
 * flushed to zero, and a program may set another rounding. Threads inherit this mode, and their sums and payloads would differ
 * from those of a rank in another mode. So the library computes in the default mode, whatever the program's mode is. */
#include "espresso_impl/base/fpmode.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

ESP__FN uint64_t esp__fp_default(void) {
#if defined(__SSE2__)
    uint32_t before = _mm_getcsr(),
             wanted = (before & 0x3fu) | 0x1f80u; /* the low six bits are not modes: they record exceptions */
    if (before != wanted) _mm_setcsr(wanted);
    return before;
#elif defined(__aarch64__) && defined(__GNUC__)
    uint64_t before, wanted = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before != wanted) __asm__ volatile("msr fpcr, %0" : : "r"(wanted));
    return before;
#else
    return 0;
#endif
}

ESP__FN void esp__fp_restore(uint64_t before) {
#if defined(__SSE2__)
    if (_mm_getcsr() != (uint32_t)before) _mm_setcsr((uint32_t)before);
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
    (void)before;
#endif
}
