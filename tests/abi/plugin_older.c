/* plugin_older.c is a plugin as an older espresso.h would make it: its table ends before the optional members, so that
 * the host would crash if it read them. */
#define RAW_NAME "older"
#include "raw_codec.h"

static const struct {
    esp_codec codec; /* only the members before `traits` belong to the table */
} older = {RAW_TABLE(offsetof(esp_codec, traits))};
static unsigned char memory[sizeof(esp_codec) + 64];
static const esp_codec *codecs[1];

ESPRESSO_PLUGIN_ENTRY(older) {
    static const esp_plugin plugin = {sizeof plugin, 1, 0, 0, codecs, NULL, NULL};
    (void)h;
    memset(memory, 0x5a, sizeof memory);
    memcpy(memory, &older, offsetof(esp_codec, traits));
    codecs[0] = (const esp_codec *)(const void *)memory;
    return &plugin;
}
