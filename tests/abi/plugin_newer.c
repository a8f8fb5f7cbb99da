/* plugin_newer.c is a plugin as a newer espresso.h would make it: its tables are longer than the library's. It finds
 * out by the host's struct_size that this host lacks a newer function, as every plugin should. */
#define RAW_NAME "newer"
#include "raw_codec.h"

typedef struct newer_host {
    esp_host now;
    void (*later)(void);
} newer_host;
static const struct {
    esp_codec now;
    void (*later)(void);
    uint64_t also_later[4];
} newer = {RAW_TABLE(sizeof newer), NULL, {0, 0, 0, 0}};
static const esp_codec *const codecs[] = {&newer.now};
static const struct {
    esp_plugin now;
    uint64_t later[8];
} plugin = {{sizeof plugin, 1, 0, 0, codecs, NULL, NULL}, {0}};

ESPRESSO_PLUGIN_ENTRY(newer) {
    if (h->struct_size >= offsetof(newer_host, later) + sizeof(void (*)(void))) return NULL; /* no host has it yet */
    return &plugin.now;
}
