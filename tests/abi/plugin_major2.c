/* plugin_major2.c: made for plugin ABI 2. */
#include "espresso.h"
ESPRESSO_EXPORT const void *espresso_plugin_v2(const esp_host *h);
ESPRESSO_EXPORT const void *espresso_plugin_v2(const esp_host *h) { return h; }
