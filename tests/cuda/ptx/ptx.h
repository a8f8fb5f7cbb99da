/* ptx.h: what kernels that translate.py made from nvcc's PTX need on the tests' CUDA emulator. They replace g++'s
 * kernels of the same names in each program that they are linked into. They give a GPU's NaN; an access that is
 * misaligned, or that no barrier or fence orders (order.cc), ends the program. */
#ifndef PTX_H
#define PTX_H
#include "tests/cuda/emulator/cuda_runtime.h"
#include <cmath>
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-label"

struct ptx_kernel {
    const char *name; /* mangled */
    cuda_host_kernel run;
};
/* The kernels of a file, and the places ("file:line") of their accesses. `first_kernel` and `first_place` receive the
 * numbers that they have among all. */
struct ptx_unit {
    ptx_unit(const ptx_kernel *kernels, int n_kernels, uint32_t *first_kernel, const char *const *places, int n_places,
             uint32_t *first_place);
};
extern const int ptx_plant; /* which of plant.py's faults is on */
const char *ptx_place(uint32_t place);
const char *ptx_kernel_name(void); /* of the kernel that runs, readable */

enum { PTX_READ, PTX_WRITE, PTX_ATOMIC }; /* PTX_ATOMIC: also volatile writes */
void ptx_enter(uint32_t kernel);
void ptx_order_enter(void);
void ptx_order_access(const unsigned char *p, unsigned bytes, int what, int shared, uint32_t place);
void ptx_order_barrier(void);
void ptx_order_warp_barrier(unsigned mask);
void ptx_order_fence(void);
[[noreturn]] void ptx_misaligned(const unsigned char *p, unsigned bytes, uint32_t place);

static inline void ptx_touch(const unsigned char *p, unsigned bytes, int what, int shared, uint32_t place) {
    if ((uintptr_t)p & (bytes - 1)) ptx_misaligned(p, bytes, place);
    ptx_order_access(p, bytes, what, shared, place);
}
static inline int ptx_barrier(const char *file, int line, int kind, int value) {
    const int result = cuda_host_barrier(file, line, kind, value);
    ptx_order_barrier();
    return result;
}
static inline void ptx_warp_barrier(const char *file, int line, unsigned mask) {
    (void)cuda_host_warp(file, line, CUDA_HOST_WARP, mask, 0, 0, 32);
    ptx_order_warp_barrier(mask);
}
static inline void ptx_fence(void) {
    ptx_order_fence();
    __threadfence();
}
static inline uint32_t ptx_warp_max(const char *file, int line, unsigned mask, uint32_t x) {
    for (unsigned by = 16; by; by /= 2) {
        const uint32_t other = (uint32_t)cuda_host_warp(file, line, CUDA_HOST_XOR, mask, x, by, 32);
        x = x > other ? x : other;
    }
    return x;
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */
template <typename T, typename F> static inline T ptx_bits(F from) {
    static_assert(sizeof(T) == sizeof(F));
    T to;
    memcpy(&to, &from, sizeof to);
    return to;
}
/* the NaN that a GPU gives, whatever NaN went in */
static inline float ptx_nan(float x) { return x != x ? ptx_bits<float>(0x7FFFFFFFu) : x; }
static inline double ptx_nan(double x) { return x != x ? ptx_bits<double>(0xFFF8000000000000ull) : x; }
static inline int32_t ptx_whole(float x) {
    return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int32_t)x;
}
static inline uint64_t ptx_whole64(double x) {
    return x != x ? 1ull << 63 : x >= 0x1p64 ? UINT64_MAX : x < 0 ? 0 : (uint64_t)x;
}
/* -0 is less than 0. Of a NaN and a number, it is the number. */
template <typename T> static inline T ptx_min(T x, T y) {
    if (x != x || (y == x && std::signbit(y))) return ptx_nan(y);
    return y < x ? y : x;
}

template <typename T> static inline T ptx_load(const unsigned char *p) {
    T x;
    memcpy(&x, p, sizeof x);
    return x;
}
template <typename T> static inline void ptx_store(unsigned char *p, T x) { memcpy(p, &x, sizeof x); }
template <typename T> static inline T ptx_shl(T x, uint32_t n) { return n < 8 * sizeof x ? (T)(x << n) : (T)0; }
template <typename T> static inline T ptx_shr(T x, uint32_t n) {
    return n < 8 * sizeof x ? (T)(x >> n) : (T)(x < 0 ? -1 : 0);
}
static inline uint32_t ptx_funnel_l(uint32_t low, uint32_t high, uint32_t n, uint32_t most) {
    n = most == 31 ? n & 31 : n < 32 ? n : 32;
    return (uint32_t)(((uint64_t)high << 32 | low) << n >> 32);
}
static inline uint32_t ptx_funnel_r(uint32_t low, uint32_t high, uint32_t n, uint32_t most) {
    n = most == 31 ? n & 31 : n < 32 ? n : 32;
    return (uint32_t)(((uint64_t)high << 32 | low) >> n);
}
/* the number of zeros before the first one bit, all ones if there is none (bfind.shiftamt) */
template <typename T> static inline uint32_t ptx_leading(T x) {
    const uint64_t u = sizeof x == 8 ? (uint64_t)x : (uint64_t)x << 32;
    return x ? (uint32_t)__builtin_clzll(u) : 0xFFFFFFFFu;
}
template <typename T> static inline T ptx_mask(uint32_t position, uint32_t length) {
    const uint32_t bits = 8 * sizeof(T), fit = position < bits ? bits - position : 0;
    const T ones = length < fit ? (T)(((T)1 << length) - 1) : fit == bits ? (T) ~(T)0 : (T)(((T)1 << fit) - 1);
    return fit ? (T)(ones << position) : (T)0;
}
/* bfi and bfe use only the lowest eight bits of position and length */
template <typename T> static inline T ptx_insert(T from, T into, uint32_t position, uint32_t length) {
    const T mask = ptx_mask<T>(position & 255, length & 255);
    return mask ? (T)((into & ~mask) | (from << (position & 255) & mask)) : into;
}
template <typename T> static inline T ptx_extract(T from, uint32_t position, uint32_t length) {
    const T mask = ptx_mask<T>(position & 255, length & 255);
    return mask ? (T)((from & mask) >> (position & 255)) : (T)0;
}
static inline uint32_t ptx_permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t s = selector >> 4 * i & 15, byte = (uint32_t)(all >> 8 * (s & 7)) & 255;
        result |= (s & 8 ? byte >> 7 ? 255u : 0u : byte) << 8 * i;
    }
    return result;
}
#endif
