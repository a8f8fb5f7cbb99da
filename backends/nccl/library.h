/* library.h: the functions of libnccl and the CUDA driver that the backend uses, opened at run time, so that the
 * backend compiles without their headers and loads on machines without a GPU. tests/compile/test_nccl_header.sh
 * compares these declarations with nccl.h and cuda.h. */
#ifndef NCCL_LIBRARY_H
#define NCCL_LIBRARY_H
#include <limits.h>
#include <stddef.h>

/* ---- from nccl.h ------------------------------------------------------------------------------------------------- */
enum { NCCL_SUCCESS = 0, NCCL_CUDA_ERROR = 1, NCCL_BAD_ARGUMENT = 4, NCCL_BAD_USAGE = 5 };
enum { NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8 = 0, NCCL_INT32 = 2, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };
enum { NCCL_SUM = 0, NCCL_MAX = 2, NCCL_MIN = 3 };
enum { NCCL_SCALAR_IN_HOST = 1 };
/* The oldest version with non-blocking communicators is 2.14; 2.17 adds min_ctas and max_ctas to the configuration. */
enum { NCCL_OLDEST = 21400, NCCL_WITH_CTAS = 21700, NCCL_ID_BYTES = 128, NCCL_UNSET = INT_MIN };
typedef struct nccl_id {
    char bytes[NCCL_ID_BYTES];
} nccl_id;
/* ncclConfig_t of version 2.17. Other versions ignore members that they do not know. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
} nccl_config;
typedef void *nccl_handle; /* NCCL's ncclComm_t */

/* X(name, arguments) for each function. All return ncclResult_t. */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclGetVersion, (int *version))                                                                                  \
    X(ncclGetUniqueId, (nccl_id * id))                                                                                 \
    X(ncclCommInitRankConfig, (nccl_handle * out, int n, nccl_id id, int rank, nccl_config *config))                   \
    X(ncclCommFinalize, (nccl_handle comm))                                                                            \
    X(ncclCommDestroy, (nccl_handle comm))                                                                             \
    X(ncclCommAbort, (nccl_handle comm))                                                                               \
    X(ncclCommGetAsyncError, (nccl_handle comm, int *state))                                                           \
    X(ncclGroupStart, (void))                                                                                          \
    X(ncclGroupEnd, (void))                                                                                            \
    X(ncclRedOpCreatePreMulSum, (int *op, void *scalar, int type, int where, nccl_handle comm))                        \
    X(ncclRedOpDestroy, (int op, nccl_handle comm))                                                                    \
    X(ncclAllReduce, (const void *src, void *dst, size_t n, int type, int op, nccl_handle comm, void *stream))         \
    X(ncclReduce, (const void *src, void *dst, size_t n, int type, int op, int root, nccl_handle comm, void *stream))  \
    X(ncclReduceScatter, (const void *src, void *dst, size_t n, int type, int op, nccl_handle comm, void *stream))     \
    X(ncclBroadcast, (const void *src, void *dst, size_t n, int type, int root, nccl_handle comm, void *stream))       \
    X(ncclAllGather, (const void *src, void *dst, size_t n, int type, nccl_handle comm, void *stream))                 \
    X(ncclSend, (const void *src, size_t n, int type, int peer, nccl_handle comm, void *stream))                       \
    X(ncclRecv, (void *dst, size_t n, int type, int peer, nccl_handle comm, void *stream))
/* Optional functions, which exist from version 2.19 or 2.28 on. */
#define NCCL_NEWER_FUNCTIONS(X)                                                                                        \
    X(ncclCommRegister, (nccl_handle comm, void *at, size_t bytes, void **handle))                                     \
    X(ncclCommDeregister, (nccl_handle comm, void *handle))                                                            \
    X(ncclAlltoAll, (const void *src, void *dst, size_t n, int type, nccl_handle comm, void *stream))                  \
    X(ncclGather, (const void *src, void *dst, size_t n, int type, int root, nccl_handle comm, void *stream))

/* ---- from cuda.h, the driver's interface. Functions return CUresult ---------------------------------------------- */
enum { CUDA_SUCCESS_ = 0, CUDA_NOT_READY = 600 };
enum { CUDA_MULTIPROCESSORS = 16 }; /* an attribute of devices */
enum { CUDA_STREAM_NON_BLOCKING = 1, CUDA_EVENT_NO_TIMES = 2, CUDA_HOST_PORTABLE = 1 };
enum { CUDA_CAPTURE_THREAD_LOCAL = 1 };
#define CUDA_FUNCTIONS(X)                                                                                              \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuDriverGetVersion, (int *version))                                                                              \
    X(cuDeviceGetCount, (int *count))                                                                                  \
    X(cuDeviceGet, (int *device, int ordinal))                                                                         \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device))                                                   \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                          \
    X(cuDevicePrimaryCtxRelease_v2, (int device))                                                                      \
    X(cuCtxGetDevice, (int *device))                                                                                   \
    X(cuCtxPushCurrent_v2, (void *context))                                                                            \
    X(cuCtxPopCurrent_v2, (void **context))                                                                            \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                                                                  \
    X(cuStreamCreate, (void **stream, unsigned flags))                                                                 \
    X(cuStreamDestroy_v2, (void *stream))                                                                              \
    X(cuStreamSynchronize, (void *stream))                                                                             \
    X(cuEventCreate, (void **event, unsigned flags))                                                                   \
    X(cuEventDestroy_v2, (void *event))                                                                                \
    X(cuEventRecord, (void *event, void *stream))                                                                      \
    X(cuEventQuery, (void *event))                                                                                     \
    X(cuMemAlloc_v2, (unsigned long long *address, size_t bytes))                                                      \
    X(cuMemFree_v2, (unsigned long long address))                                                                      \
    X(cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))                                                        \
    X(cuMemFreeHost, (void *p))                                                                                        \
    X(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t bytes, void *stream))                     \
    X(cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t bytes, void *stream))                           \
    X(cuGetErrorString, (int error, const char **text))

/* ---- the opened libraries ---------------------------------------------------------------------------------------- */
typedef struct nccl_library {
#define NCCL_MEMBER(name, arguments) int(*name) arguments;
    NCCL_FUNCTIONS(NCCL_MEMBER)
    NCCL_NEWER_FUNCTIONS(NCCL_MEMBER)
    CUDA_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
    const char *(*ncclGetErrorString)(int result);
    const char *(*ncclGetLastError)(nccl_handle comm); /* NULL in old versions */
    int version;
} nccl_library;
#endif
