/* plugins.h: codecs and backends: where they come from, and how one is opened. Knows nothing of tensors and ranks. */
#ifndef ESP__PLUGINS_H
#define ESP__PLUGINS_H
#include "espresso_impl/base/base.h"

/* ---- registry.c, loader.c: codecs and backends of one context ----------------------------------------------------- */
typedef struct esp__registry {
    const esp_codec **codecs;
    const esp_backend **backends;
    uint32_t n_codecs, n_backends, cap_codecs, cap_backends;
    char **codec_from, **backend_from; /* "built in", or the plugin's path: for messages and `espresso plugins` */
    int frozen;                        /* after esp_start */
} esp__registry;
ESP__FN esp_status esp__registry_add(esp_ctx *ctx, const esp_plugin *plugin, const char *from);
/* NULL, and an error that lists what there is, when there is none of that name. Tries to load the plugin
 * libespresso-<name>.so before it gives up. */
ESP__FN const esp_codec *esp__registry_codec(esp_ctx *ctx, const char *name);
ESP__FN const esp_backend *esp__registry_backend(esp_ctx *ctx, const char *name);
ESP__FN void esp__registry_free(esp_ctx *ctx);
/* esp_plugin_load's body. */
ESP__FN esp_status esp__plugin_load(esp_ctx *ctx, const char *path_or_name);
/* The built-in plugins' entries (builtin.c), NULL-terminated. */
ESP__FN const esp_plugin_fn *esp__builtin_entries(void);

#endif
