/* registry.h: which codecs, backends and devices there are: those built in, and those that plugins bring. */
#ifndef ESP__REGISTRY_H
#define ESP__REGISTRY_H
#include "espresso_impl/base/base.h"

/* ---- registry.c, loader.c: codecs, backends and devices of one context -------------------------------------------- */
typedef struct esp__codec esp__codec; /* codec/codec.h */
typedef struct esp__registry {
    const esp_host *host;    /* the table that plugins get                        */
    const char *plugin_path; /* esp_config's: folders that are searched first      */
    int may_override;        /* ESP_ALLOW_OVERRIDE: a later codec or backend replaces one of the same name */
    const esp_codec **codecs;
    const esp_backend **backends;
    const esp_device_table **devices; /* without the CPU */
    uint32_t n_codecs, n_backends, n_devices, cap_codecs, cap_backends, cap_devices;
    /* "built in", or the plugin's path: for messages and `espresso plugins` */
    char **codec_from, **backend_from, **device_from;
    int frozen;          /* 1 after esp_start: no plugin may be added */
    esp__codec **opened; /* one for each spec, which units with this spec share */
    uint32_t n_opened;
    esp_devkind opening; /* the kind of device for which a codec's open() runs; 0: the CPU */
} esp__registry;
static inline esp__registry *esp__registry_of(const esp_ctx *ctx) { return esp__base_of(ctx)->registry; }
ESP__FN esp_status esp__registry_add(esp_ctx *ctx, const esp_plugin *plugin, const char *from);
/* The codec or backend of that name; if the registry has none, tries to load libespresso-<name>.so. NULL: not found, and the error
 * lists the names that exist. */
ESP__FN const esp_codec *esp__registry_codec(esp_ctx *ctx, const char *name);
ESP__FN const esp_backend *esp__registry_backend(esp_ctx *ctx, const char *name);
/* The table of a codec that was found, for devices of one kind; esp__registry_codec gives the CPU's. NULL: there is none. */
ESP__FN const esp_codec *esp__registry_codec_on(esp_ctx *ctx, const char *name, esp_devkind kind);
ESP__FN const esp_device_table *esp__registry_device(esp_ctx *ctx, esp_devkind kind); /* NULL: no plugin brought it */
ESP__FN void esp__registry_free(esp_ctx *ctx);
/* esp_plugin_load after its check of ctx. */
ESP__FN esp_status esp__plugin_load(esp_ctx *ctx, const char *path_or_name);
/* trust.c: ESP_OK, or the error that says who else could change this file, and what to do about it. */
ESP__FN esp_status esp__plugin_trust(esp_ctx *ctx, const char *path);
/* The built-in plugins' entries (builtin.c), NULL-terminated. */
ESP__FN const esp_plugin_fn *esp__builtin_entries(void);

/* validate.c: ESP_OK, or the error that names what this library cannot do, or what the table says wrongly. */
ESP__FN esp_status esp__codec_validate(esp_ctx *ctx, const esp_codec *c, const char *from);
ESP__FN esp_status esp__backend_validate(esp_ctx *ctx, const esp_backend *b, const char *from);
ESP__FN esp_status esp__device_validate(esp_ctx *ctx, const esp_device_table *d, const char *from);
/* Two tables of one codec, for different devices: do they agree in all that ranks and users see? Capabilities that only say how the
 * host calls a table may differ; the host looks at those of the table that it calls. */
enum { ESP__CALL_CAPS = ESP_CODEC_LISTS | ESP_CODEC_FUSED_RESIDUAL };
ESP__FN esp_status esp__tables_validate(esp_ctx *ctx, const esp_codec *c, const char *from, const esp_codec *other,
                                        const char *other_from);

ESP__FN esp_status esp__registry_add_from(esp_ctx *ctx, const esp_plugin *p, const char *from, int replaces);
#endif
