/* plugin.cu: the entry point of plugin cuda, which registers the codecs of codecs.inc and the table of CUDA
 * devices. It calls no CUDA function, so the plugin loads on machines without a device too. */
#include "codecs/cuda/device.h"

#define CUDA_CODECS(name) extern "C" const esp_codec *cuda_codec_##name(void);
#include "codecs/cuda/codecs.inc"
#undef CUDA_CODECS

static const esp_codec *const *cuda_codecs(uint32_t *n) {
#define CUDA_CODECS(name) cuda_codec_##name(),
    static const esp_codec *const all[] = {
#include "codecs/cuda/codecs.inc"
    };
#undef CUDA_CODECS
    *n = sizeof all / sizeof *all;
    return all;
}
const char *cuda_codec_name(uint32_t hash) {
    uint32_t n;
    const esp_codec *const *all = cuda_codecs(&n);
    for (uint32_t i = 0; i < n; i++)
        if (esp_name_hash(all[i]->name) == hash) return all[i]->name;
    return NULL;
}

ESPRESSO_PLUGIN_ENTRY(cuda) {
    static const esp_device_table *const devices[] = {&cuda_device_table};
    static const esp_plugin plugin = [] {
        esp_plugin p = {.struct_size = sizeof p, .n_devices = 1, .devices = devices};
        p.codecs = cuda_codecs(&p.n_codecs);
        return p;
    }();
    (void)h;
    return &plugin;
}
