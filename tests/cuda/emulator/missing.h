/* missing.h lets tests skip if there is no CUDA device. */
#ifndef CUDA_HOST_MISSING_H
#define CUDA_HOST_MISSING_H
const esp_plugin *espresso_plugin_v1_cuda(const esp_host *h);

static inline int cuda_missing(void) {
    static const esp_host host = ESP_ZERO;
    int32_t count = 0;
    if (espresso_plugin_v1_cuda(&host)->devices[0]->probe(&host, &count) == ESP_OK && count > 0) return 0;
    puts("skipped: no CUDA device");
    return 1;
}
#endif
