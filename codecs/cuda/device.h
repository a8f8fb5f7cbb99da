/* device.h: one open CUDA device. */
#ifndef ESP_CUDA_DEVICE_H
#define ESP_CUDA_DEVICE_H
#include "espresso.h"
#include <cuda_runtime.h>

/* Where a kernel reports a corrupt payload, in host memory that the device can access. The report is never cleared:
 * it makes every later event of the device fail. */
typedef struct cuda_finding {
    uint32_t corrupt; /* nonzero if a payload is corrupt */
    uint32_t codec;   /* hash of the codec's name (esp_name_hash) */
} cuda_finding;

enum : uint64_t {
    CUDA_PITCH_MAX = 0x7FFFFFFF
}; /* rows of cudaMemcpy2D and cudaMemset2D begin at most this far apart */

typedef struct cuda_device {
    const esp_host *host;
    int ordinal, priority;
    void *context; /* the primary one, which runtime calls use */
    unsigned sms;  /* multiprocessors that codecs may use */
    cuda_finding *finding;
    cudaStream_t own;
    int logged;
} cuda_device;

/* All kernels. A launch names its kernel by cuda_kernel<kernel>, which adds it to the list when the plugin is loaded.
 */
typedef struct cuda_kernel_node {
    const void *kernel;
    const struct cuda_kernel_node *next;
} cuda_kernel_node;
inline const cuda_kernel_node *cuda_kernels = NULL;
template <typename K> K cuda_add_kernel(K kernel) {
    cuda_kernels = new cuda_kernel_node{(const void *)kernel, cuda_kernels};
    return kernel;
}
template <auto KERNEL> inline const decltype(KERNEL) cuda_kernel = cuda_add_kernel(KERNEL);

extern const esp_device_table cuda_device_table;
esp_status cuda_failed(const esp_host *h, const char *call, cudaError_t e);
const char *cuda_codec_name(uint32_t hash);
/* cuda_enter returns true if cuda_leave must be called. See cuda_on. */
bool cuda_enter(const cuda_device *d);
void cuda_leave(void);

/* Makes a device the calling thread's current one until the end of the scope, which every call that needs a context
 * must be in. A thread of the library keeps the device, so this costs no calls there. A thread of the program gets back
 * what it had, even no context: cudaSetDevice would make one on GPU 0, of half a gigabyte, in each process. */
struct cuda_on {
    const bool pushed;
    explicit cuda_on(const cuda_device *d) : pushed(cuda_enter(d)) {}
    ~cuda_on() {
        if (pushed) cuda_leave();
    }
};
#endif
