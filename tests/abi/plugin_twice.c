/* plugin_twice.c is a plugin with two codecs, one of which has the name of plugin_older's codec. Neither may be
 * accepted. */
#define RAW_NAME "older"
#include "raw_codec.h"

static const esp_codec same = RAW_TABLE(sizeof same);
#undef RAW_NAME
#define RAW_NAME "only-in-twice"
static const esp_codec own = RAW_TABLE(sizeof own);
ESP_PLUGIN_CODEC(twice, &own, &same)
