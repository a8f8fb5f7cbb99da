/* plugin_builtin.c is a plugin with a codec that has the name of a built-in one. */
#define RAW_NAME "none"
#include "raw_codec.h"

static const esp_codec codec = RAW_TABLE(sizeof codec);
ESP_PLUGIN_CODEC(builtin, &codec)
