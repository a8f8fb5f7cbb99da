/* library.h: libnccl and the CUDA driver, opened at run time. Their interfaces are declared here, as far as the backend uses them, so
 * that it compiles without their headers and loads on a machine without a GPU. tests/compile/test_nccl_header.sh compares the
 * declarations with nccl.h and cuda.h. Knows nothing of collectives. */
#ifndef NCCL_LIBRARY_H
#define NCCL_LIBRARY_H
#include "espresso.h"

#include "backends/engine/common.h"
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- what nccl.h says ---------------------------------------------------------------------------------------------- */
enum { NCCL_SUCCESS = 0, NCCL_CUDA_ERROR = 1, NCCL_BAD_ARGUMENT = 4, NCCL_BAD_USAGE = 5 };
enum { NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8 = 0, NCCL_INT32 = 2, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };
enum { NCCL_SUM = 0, NCCL_MAX = 2, NCCL_MIN = 3 };
enum { NCCL_SCALAR_IN_HOST = 1 };
/* 2.14: the first with communicators that do not block. 2.17: the first whose configuration has min_ctas and max_ctas */
enum { NCCL_OLDEST = 21400, NCCL_WITH_CTAS = 21700, NCCL_ID_BYTES = 128, NCCL_UNSET = INT_MIN };
typedef struct nccl_id {
    char bytes[NCCL_ID_BYTES];
} nccl_id;
/* ncclConfig_t of version 2.17. Other versions read as much of it as they know. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
} nccl_config;
typedef void *nccl_handle; /* ncclComm_t */

/* name, arguments. Results are ncclResult_t */
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
/* of versions 2.19 and 2.28 */
#define NCCL_NEWER_FUNCTIONS(X)                                                                                        \
    X(ncclCommRegister, (nccl_handle comm, void *at, size_t bytes, void **handle))                                     \
    X(ncclCommDeregister, (nccl_handle comm, void *handle))                                                            \
    X(ncclAlltoAll, (const void *src, void *dst, size_t n, int type, nccl_handle comm, void *stream))                  \
    X(ncclGather, (const void *src, void *dst, size_t n, int type, int root, nccl_handle comm, void *stream))

/* ---- what cuda.h says: the driver, which needs no runtime library. Results are CUresult ------------------------------ */
enum { CUDA_SUCCESS_ = 0, CUDA_NOT_READY = 600 };
enum { CUDA_STREAM_NON_BLOCKING = 1, CUDA_EVENT_NO_TIMES = 2, CUDA_HOST_PORTABLE = 1 };
#define CUDA_FUNCTIONS(X)                                                                                              \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuDriverGetVersion, (int *version))                                                                              \
    X(cuDeviceGetCount, (int *count))                                                                                  \
    X(cuDeviceGet, (int *device, int ordinal))                                                                         \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                          \
    X(cuDevicePrimaryCtxRelease_v2, (int device))                                                                      \
    X(cuCtxGetDevice, (int *device))                                                                                   \
    X(cuCtxPushCurrent_v2, (void *context))                                                                            \
    X(cuCtxPopCurrent_v2, (void **context))                                                                            \
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

/* ---- both, opened ------------------------------------------------------------------------------------------------------ */
typedef struct nccl_library {
#define NCCL_MEMBER(name, arguments) int(*name) arguments;
    NCCL_FUNCTIONS(NCCL_MEMBER)
    NCCL_NEWER_FUNCTIONS(NCCL_MEMBER)
    CUDA_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
    const char *(*ncclGetErrorString)(int result);
    const char *(*ncclGetLastError)(nccl_handle comm); /* NULL: an older library */
    int version;
} nccl_library;

/* Passes the error text to the host and returns `s`; ESP_OK: for information. */
#define nccl_say(host, ...) engine_say((host), "nccl", __VA_ARGS__)

/* Loads `name`, or adds to `why` the reason and what to do. */
ENGINE_FN void *nccl_load(const char *name, const char *advice, char *why, size_t cap) {
    void *p = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!p) snprintf(why + strlen(why), cap - strlen(why), "%s%s: %s", *why ? "; " : "", dlerror(), advice);
    return p;
}
/* The function `name`, into *to. 0: it is not there. */
ENGINE_FN int nccl_find(void *from, const char *name, void *to) {
    void *p = dlsym(from, name);
    memcpy(to, &p, sizeof p);
    return p != NULL;
}

/* Opens both libraries. NULL: *why says what was tried. They stay open. */
ENGINE_FN const nccl_library *nccl_open_libraries(char *why, size_t cap) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static nccl_library all;
    static int opened;
    const char *path = getenv("ESPRESSO_NCCL"), *missing = NULL;
    void *nccl, *cuda;
    *why = 0;
    pthread_mutex_lock(&lock);
    if (opened) {
        pthread_mutex_unlock(&lock);
        return &all;
    }
    nccl =
        nccl_load(path && *path ? path : "libnccl.so.2", "install NCCL, or name its file in ESPRESSO_NCCL", why, cap);
    cuda = nccl_load("libcuda.so.1", "install the GPU's driver", why, cap);
#define NCCL_FIND(name, arguments)                                                                                     \
    if (nccl && !nccl_find(nccl, #name, &all.name)) missing = #name;
#define CUDA_FIND(name, arguments)                                                                                     \
    if (cuda && !nccl_find(cuda, #name, &all.name)) missing = #name;
#define NCCL_FIND_NEWER(name, arguments)                                                                               \
    if (nccl) nccl_find(nccl, #name, &all.name);
    CUDA_FUNCTIONS(CUDA_FIND)
    NCCL_FUNCTIONS(NCCL_FIND)
    NCCL_NEWER_FUNCTIONS(NCCL_FIND_NEWER)
#undef NCCL_FIND
#undef CUDA_FIND
#undef NCCL_FIND_NEWER
    if (nccl && !nccl_find(nccl, "ncclGetErrorString", &all.ncclGetErrorString)) missing = "ncclGetErrorString";
    if (nccl) nccl_find(nccl, "ncclGetLastError", &all.ncclGetLastError);
    if (nccl && all.ncclGetVersion && all.ncclGetVersion(&all.version)) all.version = 0;
    if (nccl && cuda && (missing || all.version < NCCL_OLDEST))
        snprintf(why, cap, "%s is version %d and %s%s: NCCL 2.14 or newer is needed",
                 path && *path ? path : "libnccl.so.2", all.version, missing ? "lacks " : "too old",
                 missing ? missing : "");
    opened = !*why;
    if (!opened && nccl) dlclose(nccl);
    if (!opened && cuda) dlclose(cuda);
    pthread_mutex_unlock(&lock);
    return opened ? &all : NULL;
}

/* ---- errors --------------------------------------------------------------------------------------------------------------- */
ENGINE_FN esp_status nccl_failed(const esp_host *h, const nccl_library *l, const char *call, int result,
                                 nccl_handle comm) {
    const char *more = l->ncclGetLastError ? l->ncclGetLastError(comm) : NULL;
    const esp_status s = result == NCCL_CUDA_ERROR     ? ESP_E_DEVICE
                         : result == NCCL_REMOTE_ERROR ? ESP_E_PEER
                         : result == NCCL_BAD_ARGUMENT ? ESP_E_ARG
                                                       : ESP_E_COMM;
    return nccl_say(
        h, s, "%s: %s%s%.300s%s", call, l->ncclGetErrorString(result), more && *more ? ": " : "", more ? more : "",
        result == NCCL_BAD_USAGE ? " (NCCL wants a GPU of its own for each rank: see the parameter device=)" : "");
}
ENGINE_FN esp_status nccl_cuda_failed(const esp_host *h, const nccl_library *l, const char *call, int result) {
    const char *text = NULL;
    if (l->cuGetErrorString(result, &text) || !text) text = "unknown error";
    return nccl_say(h, ESP_E_DEVICE, "%s: CUDA error %d: %s", call, result, text);
}
#endif
