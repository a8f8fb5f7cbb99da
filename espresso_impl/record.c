/* record.c: a trainer's own times over many steps, as a model file for the planner (ESPRESSO_PROFILE). */
#include "context.h"

ESP__FN esp_status esp__record_open(esp_ctx *ctx) {
    (void)ctx;
    return ESP_OK;
}
ESP__FN esp_status esp__record_step(esp_ctx *ctx) {
    (void)ctx;
    return ESP_OK;
}
ESP__FN void esp__record_close(esp_ctx *ctx) { (void)ctx; }
