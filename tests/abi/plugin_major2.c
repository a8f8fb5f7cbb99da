/* plugin_major2.c is a plugin for ABI 2, which the library must refuse. */
#include "espresso.h"
ESPRESSO_EXPORT const void *espresso_plugin_v2(const esp_host *h);
ESPRESSO_EXPORT const void *espresso_plugin_v2(const esp_host *h) { return h; }
