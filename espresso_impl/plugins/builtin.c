/* builtin.c: the codecs and backends that are part of the library, behind the same table as any plugin. */
/* the plugins' sources are included below: their entries become private functions of this file */
#undef ESPRESSO_PLUGIN_ENTRY
#define ESPRESSO_PLUGIN_ENTRY(id) static const esp_plugin *espresso_plugin_v1_##id(const esp_host *h)
#include "codecs/codecs.inc"
#include "backends/backends.inc"
static const esp_plugin_fn esp__builtin[] = {ESP_CODEC_ENTRIES, ESP_BACKEND_ENTRIES, NULL};

ESP__FN const esp_plugin_fn *esp__builtin_entries(void) { return esp__builtin; }
