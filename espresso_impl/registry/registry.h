/* registry.h: the codecs, backends and devices of a context: those built in, and those of plugins. */
#ifndef ESP__REGISTRY_H
#define ESP__REGISTRY_H
#include "espresso_impl/base/base.h"

typedef struct esp__codec esp__codec; /* codec/codec.h */
typedef enum esp__kind { ESP__CODEC, ESP__BACKEND, ESP__DEVICE, ESP__KINDS } esp__kind;
/* A table of a plugin. */
typedef struct esp__registered {
    union {
        const void *table;
        const esp_codec *codec;
        const esp_backend *backend;
        const esp_device_table *device;
    };
    const char *name; /* the table's */
    char *from;       /* "built in", or the plugin's path */
} esp__registered;
typedef struct esp__registered_list {
    esp__registered *at;
    uint32_t n;
    uint64_t cap_bytes;
} esp__registered_list;

typedef struct esp__registry {
    const esp_host *host;    /* the table that plugins get */
    const char *plugin_path; /* esp_config's, searched first */
    bool may_override;       /* ESP_ALLOW_OVERRIDE */
    bool frozen;             /* after esp_start, when no plugin may be added */
    union {
        esp__registered_list of[ESP__KINDS];
        struct {
            esp__registered_list codecs, backends, devices; /* without the CPU */
        };
    };
    esp__codec **opened; /* one for each spec */
    uint32_t n_opened;
    esp_devkind opening; /* the device for which a codec's open() runs */
} esp__registry;
static inline esp__registry *esp__registry_of(const esp_ctx *ctx) { return esp__base_of(ctx)->registry; }

/* ---- registry.c ---- */
ESP__FN const char *esp__kind_word(esp__kind kind);
/* Adds a plugin's tables after it has checked all of them; they may replace built-in ones if `replaces`. */
ESP__FN esp_status esp__registry_add_from(esp_ctx *ctx, const esp_plugin *p, const char *from, bool replaces);
ESP__FN esp_status esp__registry_add(esp_ctx *ctx, const esp_plugin *plugin, const char *from);
ESP__FN void esp__registry_free(esp_ctx *ctx);

/* ---- lookup.c ---- */
/* The codec (its table for the CPU) or backend of that name. If the registry has none, loads libespresso-<name>.so.
 * NULL if that fails, too: then the error lists the known names. */
ESP__FN const esp_codec *esp__registry_codec(esp_ctx *ctx, const char *name);
ESP__FN const esp_backend *esp__registry_backend(esp_ctx *ctx, const char *name);
/* A known codec's table for devices of one kind, or NULL. */
ESP__FN const esp_codec *esp__registry_codec_on(esp_ctx *ctx, const char *name, esp_devkind kind);
/* The device's table, or NULL. Loads the plugin for CUDA. */
ESP__FN const esp_device_table *esp__registry_device(esp_ctx *ctx, esp_devkind kind);

/* ---- loader.c, trust.c, builtin.c ---- */
/* esp_plugin_load after its check of ctx. */
ESP__FN esp_status esp__plugin_load(esp_ctx *ctx, const char *path_or_name);
/* Fails if another user could change this file. */
ESP__FN esp_status esp__plugin_trust(esp_ctx *ctx, const char *path);
/* The entry functions of the built-in plugins, up to a NULL. */
ESP__FN const esp_plugin_fn *esp__builtin_entries(void);

/* ---- validate.c ---- */
/* These fail if the table asks for something that this library does not know, or contradicts itself. */
ESP__FN esp_status esp__codec_validate(esp_ctx *ctx, const esp_codec *c, const char *from);
ESP__FN esp_status esp__backend_validate(esp_ctx *ctx, const esp_backend *b, const char *from);
ESP__FN esp_status esp__device_validate(esp_ctx *ctx, const esp_device_table *d, const char *from);
/* Fails unless two tables of one codec, for different devices, agree. They may differ in the capabilities
 * ESP__CALL_CAPS, which only tell the host how to call a table. */
enum { ESP__CALL_CAPS = ESP_CODEC_LISTS | ESP_CODEC_FUSED_RESIDUAL };
ESP__FN esp_status esp__tables_validate(esp_ctx *ctx, const esp_codec *c, const char *from, const esp_codec *other,
                                        const char *other_from);
#endif
