/* faults.cc has kernels with one fault each, and their correct form, for the test of the CUDA emulator
 * (test_runtime.c). */
#include "tests/cuda/emulator/faults.h"
#include <cuda_runtime.h>

enum { N = 64 };
typedef struct job {
    const float *in;
    float *out;
    int wrong;
} job;

/* Reverses the elements through shared memory. The fault is a missing barrier. */
static __global__ void reverse(job j) {
    __shared__ float held[N];
    held[threadIdx.x] = j.in[threadIdx.x];
    if (!j.wrong) __syncthreads();
    j.out[threadIdx.x] = held[N - 1 - threadIdx.x];
}
/* The fault is that the second half of the threads does not reach the barrier. */
static __global__ void diverge(job j) {
    if (!j.wrong || threadIdx.x < N / 2) __syncthreads();
    j.out[threadIdx.x] = 1;
}
/* The fault is that each half of the threads reaches another barrier. */
static __global__ void two_barriers(job j) {
    if (!j.wrong) {
        __syncthreads();
    } else if (threadIdx.x < N / 2) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    j.out[threadIdx.x] = 1;
}
/* The fault is that the mask has threads of the warp that do not call the operation. */
static __global__ void masked(job j) {
    const unsigned mask = j.wrong ? 0xFFFFFFFFu : 0x0000FFFFu;
    if (threadIdx.x % 32 < 16) j.out[threadIdx.x] = (float)__popc(__ballot_sync(mask, 1));
}
/* The fault is that a thread reads from one that is not in the mask. */
static __global__ void shuffled(job j) {
    if (threadIdx.x % 32 < 16) j.out[threadIdx.x] = __shfl_sync(0x0000FFFFu, 1.0f, j.wrong ? 20 : 3);
}
/* The fault is a write beyond the end of global memory. */
static __global__ void beyond(job j) { j.out[threadIdx.x + (unsigned)j.wrong] = 1; }
/* The fault is a write beyond the end of shared memory. */
static __global__ void beyond_shared(job j) {
    __shared__ volatile float held[N];
    volatile float *at = held; /* hides the array's size from the compiler */
    asm volatile("" : "+r"(at));
    at[threadIdx.x + (unsigned)j.wrong] = 1;
    __syncthreads();
    j.out[threadIdx.x] = held[threadIdx.x];
}
static __global__ void unwritten(job j) {
    __shared__ float held[N];
    if (!j.wrong || threadIdx.x < N / 2) held[threadIdx.x] = 1;
    __syncthreads();
    j.out[threadIdx.x] = held[threadIdx.x] > 0 ? 2.0f : 1.0f;
}
/* Counts the threads of all blocks. The fault is a sum without an atomic operation, so that threads overwrite each
 * other's sum. */
static __global__ void counted(job j) {
    if (!j.wrong) {
        atomicAdd(j.out, 1.0f);
    } else {
        const float was = j.out[0];
        __threadfence();
        j.out[0] = was + 1;
    }
}

typedef void (*kernel_fn)(job j);
static const struct {
    const char *name;
    kernel_fn run;
} kernels[] = {{"reverse", reverse},     {"diverge", diverge},   {"two_barriers", two_barriers},
               {"masked", masked},       {"shuffled", shuffled}, {"beyond", beyond},
               {"unwritten", unwritten}, {"counted", counted},   {"beyond_shared", beyond_shared}};

int faults_run(const char *name, int wrong, uint64_t seed, float *out, int n) {
    cudaStream_t stream, other;
    cudaEvent_t ready;
    float *device = NULL, *in = NULL;
    void *pinned = NULL;
    int found = 0;
    cuda_host_seed(seed);
    cudaSetDevice(0);
    cudaStreamCreateWithPriority(&stream, 0, 0);
    cudaStreamCreateWithPriority(&other, 0, 0);
    cudaEventCreateWithFlags(&ready, 0);
    cudaMalloc((void **)&device, N * sizeof(float));
    cudaMalloc((void **)&in, N * sizeof(float));
    cudaHostAlloc(&pinned, N * sizeof(float), 0);
    for (int i = 0; i < N; i++) ((float *)pinned)[i] = (float)i;
    cudaMemsetAsync(device, 0, N * sizeof(float), stream);
    cudaMemcpyAsync(in, pinned, N * sizeof(float), cudaMemcpyDefault, other);
    cudaEventRecord(ready, other);
    if (strcmp(name, "unordered") != 0 || !wrong) cudaStreamWaitEvent(stream, ready, 0);
    if (!strcmp(name, "touched") && wrong) *(volatile float *)device = 1;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        const int same =
            !strcmp(kernels[k].name, strcmp(name, "unordered") && strcmp(name, "touched") ? name : "reverse");
        if (!same) continue;
        cudaLaunchConfig_t c;
        memset((void *)&c, 0, sizeof c);
        c.gridDim = dim3(k == 7 ? 4 : 1), c.blockDim = dim3(N), c.stream = stream;
        found = cudaLaunchKernelEx(&c, kernels[k].run, job{in, device, strcmp(name, kernels[k].name) ? 0 : wrong}) ==
                cudaSuccess;
    }
    cudaStreamSynchronize(stream);
    cudaMemcpy(out, device, (size_t)n * sizeof(float), cudaMemcpyDefault);
    cudaDeviceSynchronize();
    cudaFree(device), cudaFree(in), cudaFreeHost(pinned);
    cudaEventDestroy(ready), cudaStreamDestroy(stream), cudaStreamDestroy(other);
    return found;
}

/* Makes calls that the emulator must refuse. Returns the number of the first call that it accepted, or 0. */
int faults_refused(void) {
    cudaStream_t stream, far;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaLaunchConfig_t c;
    float *device = NULL, host[4] = {0}, zero = 0;
    void *p = NULL;
    if (cudaSetDevice(7) != cudaErrorInvalidDevice) return 1;
    cudaSetDevice(1);
    cudaStreamCreateWithPriority(&far, 0, 0);
    cudaSetDevice(0);
    cudaStreamCreateWithPriority(&stream, 0, 0);
    cudaMalloc((void **)&device, N * sizeof(float));
    memset((void *)&c, 0, sizeof c);
    c.gridDim = dim3(1), c.blockDim = dim3(N), c.stream = far;
    if (cudaLaunchKernelEx(&c, beyond, job{NULL, device, 0}) != cudaErrorInvalidResourceHandle) return 2;
    c.stream = NULL;
    if (cudaLaunchKernelEx(&c, beyond, job{NULL, device, 0}) != cudaErrorInvalidResourceHandle) return 3;
    c.stream = stream, c.blockDim = dim3(2048);
    if (cudaLaunchKernelEx(&c, beyond, job{NULL, device, 0}) != cudaErrorInvalidConfiguration) return 4;
    if (cudaMemcpyAsync(device, host, sizeof host, cudaMemcpyDefault, stream) != cudaErrorInvalidValue) return 5;
    if (cudaMemsetAsync(device, 0, N * sizeof(float) + 1, stream) != cudaErrorInvalidValue) return 6;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    if (cudaStreamSynchronize(stream) != cudaErrorStreamCaptureUnsupported) return 7;
    if (cudaMalloc(&p, 4) != cudaErrorStreamCaptureUnsupported) return 8;
    c.blockDim = dim3(N);
    if (cudaMemsetAsync(device, 0, sizeof(float), stream) != cudaSuccess) return 9;
    if (cudaLaunchKernelEx(&c, counted, job{NULL, device, 0}) != cudaSuccess) return 9;
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 3; i++) cudaGraphLaunch(exec, stream);
    cudaStreamSynchronize(stream);
    cudaMemcpy(&zero, device, sizeof zero, cudaMemcpyDefault);
    if (zero != (float)N) return 10;
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    cudaFree(device), cudaStreamDestroy(stream), cudaStreamDestroy(far);
    return 0;
}
