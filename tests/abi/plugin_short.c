/* plugin_short.c is a plugin whose table ends before a required member. */
#define RAW_NAME "short"
#include "raw_codec.h"

static const esp_codec codec = RAW_TABLE(offsetof(esp_codec, decompress));
ESP_PLUGIN_CODEC(short, &codec)
