/* plugin_short.c: a plugin whose author forgot a part of the table: it ends before a required member. */
#define RAW_NAME "short"
#include "raw_codec.h"

static const esp_codec codec = RAW_TABLE(offsetof(esp_codec, decompress));
ESP_PLUGIN_CODEC(short, &codec)
