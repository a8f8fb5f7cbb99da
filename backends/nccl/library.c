/* library.c: opens libnccl and the CUDA driver at run time, and logs their errors. */
#include "backends/nccl/nccl.h"
#include <dlfcn.h>
#include <pthread.h>

static void *nccl_load(const char *name, const char *advice, char *why, size_t cap) {
    void *p = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!p) snprintf(why + strlen(why), cap - strlen(why), "%s%s: %s", *why ? "; " : "", dlerror(), advice);
    return p;
}
ESP__FN bool nccl_find(void *from, const char *name, void *to) {
    void *p = dlsym(from, name);
    memcpy(to, &p, sizeof p);
    return p != NULL;
}

ESP__FN const nccl_library *nccl_open_libraries(char *why, size_t cap) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static nccl_library all;
    static bool opened;
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

/* ---- errors ------------------------------------------------------------------------------------------------------ */
ESP__FN esp_status nccl_failed(const esp_host *h, const nccl_library *l, const char *call, int result,
                               nccl_handle comm) {
    const char *more = l->ncclGetLastError ? l->ncclGetLastError(comm) : NULL;
    const esp_status s = result == NCCL_CUDA_ERROR     ? ESP_E_DEVICE
                         : result == NCCL_REMOTE_ERROR ? ESP_E_PEER
                         : result == NCCL_BAD_ARGUMENT ? ESP_E_ARG
                                                       : ESP_E_COMM;
    return nccl_log(
        h, s, "%s: %s%s%.300s%s", call, l->ncclGetErrorString(result), more && *more ? ": " : "", more ? more : "",
        result == NCCL_BAD_USAGE ? " (NCCL needs a GPU of its own for each rank: see the parameter device=)" : "");
}
ESP__FN esp_status nccl_cuda_failed(const esp_host *h, const nccl_library *l, const char *call, int result) {
    const char *text = NULL;
    if (l->cuGetErrorString(result, &text) || !text) text = "unknown error";
    return nccl_log(h, ESP_E_DEVICE, "%s: CUDA error %d: %s", call, result, text);
}
