/* plugin_short.c: forgot to set the whole table: it ends before a required member. */
#define RAW_NAME "short"
#include "raw_codec.h"

static const esp_codec codec = RAW_TABLE(offsetof(esp_codec, decompress));
static const esp_codec *const codecs[] = {&codec};

ESPRESSO_PLUGIN_ENTRY(short) {
    static const esp_plugin plugin = {sizeof plugin, 1, 0, 0, "short", "1", "MIT", codecs, NULL};
    (void)h;
    return &plugin;
}
