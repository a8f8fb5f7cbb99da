/* plugin_builtin.c: brings a codec with the name of a built-in one. */
#define RAW_NAME "none"
#include "raw_codec.h"

static const esp_codec codec = RAW_TABLE(sizeof codec);
static const esp_codec *const codecs[] = {&codec};

ESPRESSO_PLUGIN_ENTRY(builtin) {
    static const esp_plugin plugin = {sizeof plugin, 1, 0, 0, "builtin", "1", "MIT", codecs, NULL, NULL};
    (void)h;
    return &plugin;
}
