/* plugin_lazy.c: the backend loop, which says that it moves data by itself, and does not: `espresso plugins --check` must find that. */
#include "espresso.h"
#undef ESPRESSO_PLUGIN_ENTRY
#define ESPRESSO_PLUGIN_ENTRY(id) __attribute__((unused)) static const esp_plugin *unused_##id(const esp_host *h)
#include "backends/loop.c"

static esp_backend lazy;
static const esp_backend *const lazies[] = {&lazy};

#undef ESPRESSO_PLUGIN_ENTRY
#define ESPRESSO_PLUGIN_ENTRY(id)                                                                                      \
    ESP__C ESPRESSO_EXPORT const esp_plugin *espresso_plugin_v1(const esp_host *h);                                    \
    ESPRESSO_EXPORT const esp_plugin *espresso_plugin_v1(const esp_host *h)
ESPRESSO_PLUGIN_ENTRY(lazy) {
    static const esp_plugin plugin = {sizeof plugin, 0, 1, 0, NULL, lazies, NULL};
    (void)h;
    lazy = loop_backend;
    lazy.name = "lazy";
    lazy.caps &= ~(uint64_t)ESP_BACKEND_NEEDS_PROGRESS;
    return &plugin;
}
