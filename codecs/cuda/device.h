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

typedef struct cuda_device {
    const esp_host *host;
    int ordinal, priority;
    unsigned sms; /* multiprocessors that codecs may use */
    cuda_finding *finding;
    cudaStream_t own;
    int logged;
} cuda_device;

extern const esp_device_table cuda_device_table;
esp_status cuda_failed(const esp_host *h, const char *call, cudaError_t e);
const char *cuda_codec_name(uint32_t hash);

/* Makes a device the calling thread's current one, which kernel launches need, until the end of the scope. */
struct cuda_on {
    int before, changed;
    explicit cuda_on(int ordinal) : before(-1), changed(0) {
        if (cudaGetDevice(&before) == cudaSuccess && before != ordinal) changed = cudaSetDevice(ordinal) == cudaSuccess;
    }
    ~cuda_on() {
        if (changed) (void)cudaSetDevice(before);
    }
};
#endif
