/* registry.h: the codecs, backends and devices of a context, built in or from plugins, as tables of functions. */
#ifndef ESP__REGISTRY_H
#define ESP__REGISTRY_H
#include "espresso_impl/base/base.h"

typedef struct esp__codec esp__codec;
typedef enum esp__kind { ESP__CODEC, ESP__BACKEND, ESP__DEVICE, ESP__KINDS } esp__kind;
typedef struct esp__registered {
    union {
        const void *table;
        const esp_codec *codec;
        const esp_backend *backend;
        const esp_device_table *device;
    };
    const char *name;
    char *from; /* "built in", or the plugin's path */
} esp__registered;
typedef struct esp__registered_list {
    esp__registered *at;
    uint32_t n;
    uint64_t cap_bytes;
} esp__registered_list;

typedef struct esp__registry {
    const esp_host *host;    /* functions that plugins may call */
    const char *plugin_path; /* esp_config.plugin_path, searched first */
    bool may_override;       /* ESP_ALLOW_OVERRIDE */
    bool frozen;             /* true after esp_start: no plugin may be added */
    union {
        esp__registered_list of[ESP__KINDS];
        struct {
            esp__registered_list codecs, backends, devices; /* `devices` does not contain the CPU */
        };
    };
    esp__codec **opened; /* one for each spec, such as "topk:ratio=0.01" */
    uint32_t n_opened;
    esp_devkind opening; /* kind of device for which a codec is being opened */
} esp__registry;
static inline esp__registry *esp__registry_of(const esp_ctx *ctx) { return esp__base_of(ctx)->registry; }

/* ---- registry.c ---- */
ESP__FN const char *esp__kind_word(esp__kind kind);
/* Checks all function tables of a plugin, then adds them. If `replaces` is true, they may replace built-in ones of the
 * same name. */
ESP__FN esp_status esp__registry_add_from(esp_ctx *ctx, const esp_plugin *p, const char *from, bool replaces);
ESP__FN esp_status esp__registry_add(esp_ctx *ctx, const esp_plugin *plugin, const char *from);
ESP__FN void esp__registry_free(esp_ctx *ctx);

/* ---- lookup.c ---- */
/* Return the codec (for the CPU) or backend of that name. Load libespresso-<name>.so if it is unknown. Return NULL if
 * that fails, too; the error then lists the known names. */
ESP__FN const esp_codec *esp__registry_codec(esp_ctx *ctx, const char *name);
ESP__FN const esp_backend *esp__registry_backend(esp_ctx *ctx, const char *name);
/* Returns a known codec's table for one kind of device, or NULL. */
ESP__FN const esp_codec *esp__registry_codec_on(esp_ctx *ctx, const char *name, esp_devkind kind);
ESP__FN const esp_device_table *esp__registry_device(esp_ctx *ctx, esp_devkind kind);

/* ---- loader.c, trust.c, builtin.c ---- */
ESP__FN esp_status esp__plugin_load(esp_ctx *ctx, const char *path_or_name);
/* Fails if another user could change this file. */
ESP__FN esp_status esp__plugin_trust(esp_ctx *ctx, const char *path);
ESP__FN const esp_plugin_fn *esp__builtin_entries(void);

/* ---- validate.c ---- */
/* These fail if a table contradicts itself, or needs something that this library does not have. */
ESP__FN esp_status esp__codec_validate(esp_ctx *ctx, const esp_codec *c, const char *from);
ESP__FN esp_status esp__backend_validate(esp_ctx *ctx, const esp_backend *b, const char *from);
ESP__FN esp_status esp__device_validate(esp_ctx *ctx, const esp_device_table *d, const char *from);
/* Fails if a codec's function tables for two devices contradict each other. Only the capabilities in ESP__CALL_CAPS may
 * differ, because they only say how to call the functions. */
enum { ESP__CALL_CAPS = ESP_CODEC_LISTS | ESP_CODEC_FUSED_RESIDUAL };
ESP__FN esp_status esp__tables_validate(esp_ctx *ctx, const esp_codec *c, const char *from, const esp_codec *other,
                                        const char *other_from);
#endif
