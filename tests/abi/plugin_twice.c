/* plugin_twice.c: brings a codec whose name plugin_older has already, and one of its own: neither may be taken in. */
#define RAW_NAME "older"
#include "raw_codec.h"

static const esp_codec same = RAW_TABLE(sizeof same);
#undef RAW_NAME
#define RAW_NAME "only-in-twice"
static const esp_codec own = RAW_TABLE(sizeof own);
static const esp_codec *const codecs[] = {&own, &same};

ESPRESSO_PLUGIN_ENTRY(twice) {
    static const esp_plugin plugin = {sizeof plugin, 2, 0, 0, "twice", "1", "MIT", codecs, NULL};
    (void)h;
    return &plugin;
}
