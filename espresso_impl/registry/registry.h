/* registry.h: codecs, backends and devices: the registry, the loader of plugins, and opened codecs. Knows nothing of tensors and
 * ranks. */
#ifndef ESP__PLUGINS_H
#define ESP__PLUGINS_H
#include "espresso_impl/base/base.h"

/* ---- registry.c, loader.c: codecs, backends and devices of one context -------------------------------------------- */
/* One opened codec: all tensors with the same spec share it. */
typedef struct esp__codec esp__codec;
struct esp__codec {
    char *spec; /* as the user wrote it: compared between ranks, printed in strategies */
    const esp_codec *table;
    void *self;
    esp_traits traits; /* what this instance is: the table's, or narrower              */
    esp_codec_model
        model;    /* on its device, for tensors that are no matrix; without model(): zero, and its error is not known */
    uint32_t id;  /* esp_name_hash(name)                                          */
    int feedback; /* 1: its Comps have residuals                                        */
    int own_memory; /* 1: Comps on the rank's own gradient use the method's own feedback  */
    float beta, gamma;
    esp__codec *twin; /* the same spec opened with a table for another device, or NULL; this one frees it */
};

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

/* refuse.c: ESP_OK, or the error that names what this library cannot do, or what the table says wrongly. */
ESP__FN esp_status esp__codec_refuse(esp_ctx *ctx, const esp_codec *c, const char *from);
ESP__FN esp_status esp__backend_refuse(esp_ctx *ctx, const esp_backend *b, const char *from);
ESP__FN esp_status esp__device_refuse(esp_ctx *ctx, const esp_device_table *d, const char *from);
/* Two tables of one codec, for different devices: do they agree in all that ranks and users see? Capabilities that only say how the
 * host calls a table may differ; the host looks at those of the table that it calls. */
enum { ESP__CALL_CAPS = ESP_CODEC_LISTS | ESP_CODEC_FUSED_RESIDUAL };
ESP__FN esp_status esp__twins_refuse(esp_ctx *ctx, const esp_codec *c, const char *from, const esp_codec *other,
                                     const char *other_from);

/* codec_instance.c: the opened codec for a spec, which all units with this spec share. The registry owns it. */
ESP__FN esp_status esp__codec_get(esp_ctx *ctx, const char *spec, esp__codec **out);
/* Opens a codec that is not shared; free it with esp__codec_free. feedback NULL: as the spec says. */
ESP__FN esp_status esp__codec_make(esp_ctx *ctx, const char *spec, const char *feedback, esp__codec **out);
ESP__FN void esp__codec_free(esp_ctx *ctx, esp__codec *c);
/* *out: the same codec, opened for devices of a kind; NULL: it has no table for them, or one that does not support this spec (a
 * wrapper whose codec has none). `c` owns it. */
ESP__FN esp_status esp__codec_on(esp_ctx *ctx, esp__codec *c, esp_devkind kind, esp__codec **out);
/* The host's codec_open and codec_close, for wrappers. */
ESP__FN esp_status esp__host_codec_open(void *user, const char *spec, const esp_codec **table, void **self);
ESP__FN void esp__host_codec_close(void *user, const esp_codec *table, void *self);

/* codec_model.c: what an opened codec says of itself. Fills c->traits and c->model. */
ESP__FN esp_status esp__codec_describe(esp_ctx *ctx, esp__codec *c, esp_devkind kind);
ESP__FN int esp__codec_has_model(const esp__codec *c);
/* The codec's model on one kind of device: of matrices, or of parts that are none. */
ESP__FN esp_status esp__codec_model(esp_ctx *ctx, const esp__codec *c, int matrix, uint32_t n_reduced, esp_devkind kind,
                                    esp_codec_model *out);
/* Does training need to be watched with this codec? Not if it only rounds numbers, or changes nothing. */
ESP__FN int esp__codec_lossy(const esp__codec *c);
/* A part of `count` elements, rows x cols (0 and 0: no matrix), without data. */
ESP__FN esp_tensor esp__codec_like(uint64_t count, uint64_t rows, uint64_t cols);
/* The codec's sizes for a part, in one round, with its body reduced over n_reduced ranks (1: sent as it is). Sets every member. */
ESP__FN esp_status esp__codec_bound_of(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, uint32_t round,
                                       uint32_t n_reduced, esp_bound *b);
/* Are its payloads smaller than the gradient? Yes, if it has no model. */
ESP__FN int esp__codec_shrinks(const esp__codec *c);
/* Bytes of a payload of a size that a model gives. */
ESP__FN double esp__payload_size(const esp_payload_size *s, uint64_t count, uint64_t rows, uint64_t cols);
/* 1 if the registry's i-th codec can compress any tensor by its name alone, without parameters; 0 if not; -1: out of memory.
 * *lossy: as above; NULL: not wanted. 0 and -1 leave an error behind. */
ESP__FN int esp__codec_opens(esp_ctx *ctx, uint32_t i, int *lossy);
/* How bodies of round `round` are reduced; its op is 0 where they are not. */
ESP__FN esp_round esp__codec_round(const esp__codec *c, uint32_t round);
ESP__FN esp_status esp__registry_add_from(esp_ctx *ctx, const esp_plugin *p, const char *from, int replaces);
#endif
