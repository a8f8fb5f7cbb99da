/* plugin_refuses.c is a plugin that says that it cannot run on this machine, and logs the reason. */
#include "espresso.h"
ESPRESSO_PLUGIN_ENTRY(refuses) {
    const esp_log_event ev = {
        sizeof ev, ESP_LOG_ERROR, ESP_E_UNSUPPORTED, __LINE__, "refuses", "needs a coffee machine", __FILE__};
    h->log(h->user, &ev);
    return NULL;
}
