/* element.h: how per-element maths is marked, so that a codec's file for the CPU and its twin for CUDA compile the same lines.
 *
 *     ESP_ELEMENT float scale_of(...) { ...plain C, no libc but memcpy... }
 *
 * A kernel calls these functions; everything else of codecs/ stays on the host. Both sides are compiled without contraction of
 * a * b + c, with exact division and with denormals, so that both give the same bits. */
#ifndef ESP_ELEMENT_H
#define ESP_ELEMENT_H
#define ESP_INLINE static inline __attribute__((always_inline))
#ifdef __CUDACC__
#define ESP_ELEMENT static inline __host__ __device__ __attribute__((always_inline))
#else
#define ESP_ELEMENT ESP_INLINE
#endif
#endif
