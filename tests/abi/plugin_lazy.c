/* plugin_lazy.c is a copy of backend loop with a false claim in its table: that collectives make progress without
 * further calls. `espresso plugins --check` must detect it. */
#include "espresso.h"

const esp_plugin *espresso_plugin_v1_loop(const esp_host *h);

static esp_backend lazy;
static const esp_backend *const lazies[] = {&lazy};

ESPRESSO_PLUGIN_ENTRY(lazy) {
    static const esp_plugin plugin = {sizeof plugin, 0, 1, 0, NULL, lazies, NULL};
    lazy = *espresso_plugin_v1_loop(h)->backends[0];
    lazy.name = "lazy";
    lazy.caps &= ~(uint64_t)ESP_BACKEND_NEEDS_PROGRESS;
    return &plugin;
}
