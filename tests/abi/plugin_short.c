/* plugin_short.c: a plugin whose author forgot a part of the table: it ends before a required member. */
#define RAW_NAME "short"
#include "raw_codec.h"

static const esp_codec codec = RAW_TABLE(offsetof(esp_codec, decompress));
static const esp_codec *const codecs[] = {&codec};

ESPRESSO_PLUGIN_ENTRY(short) {
    static const esp_plugin plugin = {sizeof plugin, 1, 0, 0, "short", "1", "MIT", codecs, NULL, NULL};
    (void)h;
    return &plugin;
}
