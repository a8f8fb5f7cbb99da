/* element.h: ESP_ELEMENT marks functions that both the CPU codec and its CUDA kernels compile, for example
 *     ESP_ELEMENT float scale_of(...) { ...plain C, no libc but memcpy... }
 * Both compilers use exact division and denormals, and never fuse a * b + c, so CPU and GPU give the same bits. */
#ifndef ESP_ELEMENT_H
#define ESP_ELEMENT_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#define ESP_INLINE static inline __attribute__((always_inline))
#ifdef __CUDACC__
#define ESP_ELEMENT static inline __host__ __device__ __attribute__((always_inline))
#else
#define ESP_ELEMENT ESP_INLINE
#endif
ESP_ELEMENT uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
ESP_ELEMENT float bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
#endif
