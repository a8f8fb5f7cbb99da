/* device.h: one open CUDA device of one context, as the plugin's codecs use it. device.cu has its table. */
#ifndef ESP_CUDA_DEVICE_H
#define ESP_CUDA_DEVICE_H
#include "espresso.h"
#include <cuda_runtime.h>

/* A corrupt payload that a kernel found, in host memory that the device can access. It is never reset, and fails every
 * later event. */
typedef struct cuda_finding {
    uint32_t corrupt; /* nonzero where a payload is corrupt */
    uint32_t codec;   /* esp_name_hash of the codec's name */
} cuda_finding;

typedef struct cuda_device {
    const esp_host *host;
    int ordinal, priority;
    unsigned sms; /* multiprocessors that codecs may use */
    cuda_finding *finding;
    cudaStream_t own; /* for work that a call waits for */
    int logged;       /* atomic: the finding was logged */
} cuda_device;

extern const esp_device_table cuda_device_table;
/* Logs a CUDA error. Returns ESP_E_NOMEM or ESP_E_DEVICE. */
esp_status cuda_failed(const esp_host *h, const char *call, cudaError_t e);
/* The name of one of the plugin's codecs, or NULL. */
const char *cuda_codec_name(uint32_t hash);

/* Makes a device the calling thread's current one, as launches require, until the end of the scope. */
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
