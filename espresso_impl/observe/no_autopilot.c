/* no_autopilot.c: stands in the autopilot's place in a build without planner (ESP_NO_PLANNER): it refuses strategy "auto", and says
 * what to do. Its ranks can work with ranks whose build has a planner. */
#include "espresso_impl/observe/observe.h"

static esp_status esp__no_autopilot_strategy(esp_ctx *ctx, void **self, const char **spec) {
    (void)self;
    if (!esp__auto_asked(*spec)) return ESP_OK;
    return esp__fail(
        ctx, ESP_E_UNSUPPORTED,
        "strategy auto is not in this build (ESP_NO_PLANNER): compile espresso.c without that define, or link "
        "libespresso; or use fp32, layerwise or a strategy file, which `espresso plan -o FILE` writes");
}

static void esp__no_autopilot_agree(const esp_ctx *ctx, const void *self, esp__text *lines) {
    (void)ctx, (void)self;
    esp__text_add(lines, ESP__NOT_AUTO);
}

/* The autopilot's open is collective: ranks that have one tell each other first that none has failed, and wait for this rank too. */
static esp_status esp__no_autopilot_open(esp_ctx *ctx, void **self) {
    (void)ctx, (void)self;
    return ESP_OK;
}

ESP__FN const esp__observer *esp__no_autopilot_observer(void) {
    static const esp__observer o = {.strategy = esp__no_autopilot_strategy,
                                    .agree = esp__no_autopilot_agree,
                                    .open = esp__no_autopilot_open,
                                    .collective = 1};
    return &o;
}
