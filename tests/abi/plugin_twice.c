/* plugin_twice.c: brings a codec with the name of plugin_older's codec, and a codec of its own. Neither may be
 * accepted. */
#define RAW_NAME "older"
#include "raw_codec.h"

static const esp_codec same = RAW_TABLE(sizeof same);
#undef RAW_NAME
#define RAW_NAME "only-in-twice"
static const esp_codec own = RAW_TABLE(sizeof own);
ESP_PLUGIN_CODEC(twice, &own, &same)
