/* device.h: one open CUDA device of one context, as the plugin's codecs see it. device.cu has its table. */
#ifndef ESP_CUDA_DEVICE_H
#define ESP_CUDA_DEVICE_H
#include "espresso.h"
#include <cuda_runtime.h>

/* What a kernel found wrong: in host memory that the device reaches. The first finding stays, and fails every later event. */
typedef struct cuda_finding {
    uint32_t corrupt; /* 1: a payload is corrupt                    */
    uint32_t codec;   /* by this codec (esp_name_hash of its name)  */
} cuda_finding;

typedef struct cuda_device {
    const esp_host *host;
    int ordinal, priority;
    unsigned sms; /* that codecs may use; at most all of the device */
    cuda_finding *finding;
    cudaStream_t own; /* for what must be done when a call returns */
    int said;         /* the finding was logged; atomic */
} cuda_device;

extern const esp_device_table cuda_device_table;
/* The text of CUDA's error, to the host's log; returns ESP_E_DEVICE. */
esp_status cuda_failed(const esp_host *h, const char *call, cudaError_t e);
/* The name of one of the plugin's codecs, or NULL. */
const char *cuda_codec_name(uint32_t hash);

/* The device becomes the calling thread's, as launches want it, until the end of the scope. */
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
