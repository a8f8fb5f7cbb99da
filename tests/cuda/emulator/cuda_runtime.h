/* cuda_runtime.h is the tests' CUDA emulator: it replaces CUDA's header, so that codecs/cuda runs on the CPU. Threads
 * of a block are fibers in a random order (environment variable CUDA_HOST_SEED) that switch at barriers, warp
 * operations and atomics, so a missing barrier gives wrong results; a barrier that some threads do not reach ends the
 * process. Shared memory begins with random contents. Device memory is the heap's, so the address sanitizer checks its
 * bounds; the CPU's code may not touch it. Work in streams runs only when a call waits for it, in a random order that
 * respects events. */
#ifndef CUDA_HOST_RUNTIME_H
#define CUDA_HOST_RUNTIME_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <functional>
#include <tuple>
#include <type_traits>
#define CUDA_HOST 1
#define CUDART_VERSION 13000

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))
#define __restrict__ __restrict

/* ---- types ------------------------------------------------------------------------------------------------------- */
struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidPitchValue = 12,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900
};
typedef struct cuda_host_stream *cudaStream_t;
typedef struct cuda_host_event *cudaEvent_t;
typedef struct cuda_host_graph *cudaGraph_t, *cudaGraphExec_t;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDefault = 4 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault = 0 };
struct cudaFuncAttributes {
    int numRegs;
};
struct cudaLaunchAttribute;
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

/* ---- the host's side --------------------------------------------------------------------------------------------- */
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
/* Knows the driver's functions for contexts. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult *result = NULL);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
struct cudaDeviceProp {
    char name[256];
};
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int byte, size_t width, size_t height, cudaStream_t stream);
/* While a stream is captured, its work goes to the graph, and a call that waits or allocates memory fails: in this
 * thread or, with the global mode, in all threads that have not exchanged theirs. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* A kernel that is called with the addresses of its arguments. A program may have cuda_host_instead(), which returns
 * one to run instead of a kernel, or NULL. */
typedef void (*cuda_host_kernel)(const void *const *arguments);
cuda_host_kernel cuda_host_instead(const void *kernel) __attribute__((weak));
cudaError_t cuda_host_launch(const cudaLaunchConfig_t *c, const void *name,
                             std::function<void(cuda_host_kernel instead)> kernel);
template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A &&...arguments) {
    static_assert((sizeof(P) + ... + 0) <= 4096, "arguments of a kernel have at most 4096 bytes");
    const std::tuple<P...> held(static_cast<P>(arguments)...);
    return cuda_host_launch(c, (const void *)kernel, [kernel, held](cuda_host_kernel instead) {
        if (!instead) return std::apply(kernel, held);
        std::apply(
            [instead](const P &...p) {
                const void *const at[] = {(const void *)&p..., NULL};
                instead(at);
            },
            held);
    });
}

/* ---- for tests --------------------------------------------------------------------------------------------------- */
typedef struct cuda_host_counts {
    uint64_t launches, fills, copies;
    uint64_t read, written;
    /* other calls: of events (queries: also those that wait), whether streams are captured, of current devices and
     * contexts; and launches of kernels that may not be loaded yet */
    uint64_t records, waits, queries, elapsed, captures, devices, untouched;
} cuda_host_counts;
extern "C" cuda_host_counts cuda_host_counted(int reset);
/* Returns on which devices (bit d: device d) contexts were made since the last call. */
extern "C" unsigned cuda_host_contexts(void);
/* Returns how many loaded kernels were never launched, and sets *one to one of them. */
extern "C" int cuda_host_idle(const void **one);
/* Returns the largest gridDim.x of the launches since the last call. */
extern "C" uint32_t cuda_host_widest(void);
/* Returns how often pinned memory was allocated since the last call. */
extern "C" uint32_t cuda_host_pinned(void);
/* Returns how many launches were of kernels that may not be loaded yet. */
extern "C" uint64_t cuda_host_untouched(void);
extern "C" void cuda_host_seed(uint64_t seed);

/* ---- the device's side ------------------------------------------------------------------------------------------- */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;
extern uint64_t cuda_host_read, cuda_host_written;

enum { CUDA_HOST_SYNC, CUDA_HOST_SUM, CUDA_HOST_OR, CUDA_HOST_AND };
int cuda_host_barrier(const char *file, int line, int kind, int value);
#define __syncthreads() ((void)cuda_host_barrier(__FILE__, __LINE__, CUDA_HOST_SYNC, 0))
#define __syncthreads_count(p) cuda_host_barrier(__FILE__, __LINE__, CUDA_HOST_SUM, (p) != 0)
#define __syncthreads_or(p) cuda_host_barrier(__FILE__, __LINE__, CUDA_HOST_OR, (p) != 0)
#define __syncthreads_and(p) cuda_host_barrier(__FILE__, __LINE__, CUDA_HOST_AND, (p) != 0)

enum { CUDA_HOST_WARP, CUDA_HOST_BALLOT, CUDA_HOST_MATCH, CUDA_HOST_LANE, CUDA_HOST_UP, CUDA_HOST_DOWN, CUDA_HOST_XOR };
uint64_t cuda_host_warp(const char *file, int line, int kind, unsigned mask, uint64_t value, unsigned by,
                        unsigned width);
template <typename T>
T cuda_host_shuffle(const char *file, int line, int kind, unsigned mask, T value, unsigned by, unsigned width = 32) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t u = 0;
    memcpy(&u, &value, sizeof value);
    u = cuda_host_warp(file, line, kind, mask, u, by, width);
    memcpy(&value, &u, sizeof value);
    return value;
}
#define __shfl_sync(mask, ...) cuda_host_shuffle(__FILE__, __LINE__, CUDA_HOST_LANE, mask, __VA_ARGS__)
#define __shfl_up_sync(mask, ...) cuda_host_shuffle(__FILE__, __LINE__, CUDA_HOST_UP, mask, __VA_ARGS__)
#define __shfl_down_sync(mask, ...) cuda_host_shuffle(__FILE__, __LINE__, CUDA_HOST_DOWN, mask, __VA_ARGS__)
#define __shfl_xor_sync(mask, ...) cuda_host_shuffle(__FILE__, __LINE__, CUDA_HOST_XOR, mask, __VA_ARGS__)
#define cuda_host_ballot(mask, p)                                                                                      \
    ((unsigned)cuda_host_warp(__FILE__, __LINE__, CUDA_HOST_BALLOT, mask, (p) != 0, 0, 32))
#define __ballot_sync(mask, p) cuda_host_ballot(mask, p)
#define __any_sync(mask, p) (cuda_host_ballot(mask, p) != 0)
#define __all_sync(mask, p) (cuda_host_ballot(mask, p) == (mask))
#define __match_any_sync(mask, v)                                                                                      \
    ((unsigned)cuda_host_warp(__FILE__, __LINE__, CUDA_HOST_MATCH, mask, (uint64_t)(v), 0, 32))
#define cuda_host_first(mask, ...) mask
#define __syncwarp(...)                                                                                                \
    ((void)cuda_host_warp(__FILE__, __LINE__, CUDA_HOST_WARP, cuda_host_mask(__VA_ARGS__), 0, 0, 32))
inline unsigned cuda_host_mask(unsigned mask = 0xFFFFFFFFu) { return mask; }

void cuda_host_yield(void);
template <typename T> inline T cuda_host_swap(T *at, T value) {
    const T old = *at;
    *at = value;
    return old;
}
template <typename T, typename V> T atomicAdd(T *at, V v) {
    cuda_host_yield();
    return cuda_host_swap(at, (T)(*at + (T)v));
}
template <typename T, typename V> T atomicOr(T *at, V v) {
    cuda_host_yield();
    return cuda_host_swap(at, (T)(*at | (T)v));
}
template <typename T, typename V> T atomicMax(T *at, V v) {
    cuda_host_yield();
    return cuda_host_swap(at, *at < (T)v ? (T)v : *at);
}
template <typename T, typename V> T atomicMin(T *at, V v) {
    cuda_host_yield();
    return cuda_host_swap(at, *at > (T)v ? (T)v : *at);
}
template <typename T, typename V> T atomicExch(T *at, V v) {
    cuda_host_yield();
    return cuda_host_swap(at, (T)v);
}
template <typename T, typename V> T atomicCAS(T *at, V was, V v) {
    cuda_host_yield();
    return cuda_host_swap(at, *at == (T)was ? (T)v : *at);
}
inline void __threadfence(void) { cuda_host_yield(); }
inline void __threadfence_system(void) { cuda_host_yield(); }
inline void __threadfence_block(void) { cuda_host_yield(); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, sizeof u);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
template <typename T> inline T __ldg(const T *p) { return *p; }
template <typename T> inline T min(T a, T b) { return b < a ? b : a; }
template <typename T> inline T max(T a, T b) { return a < b ? b : a; }
#endif
