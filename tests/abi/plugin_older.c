/* plugin_older.c is compiled with an espresso.h without the optional members: its table ends after decompress. The host
 * would crash if it read the memory after the table. */
#define RAW_NAME "older"
#include "raw_codec.h"

static const struct {
    esp_codec codec; /* only the part up to `traits` is the table */
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
