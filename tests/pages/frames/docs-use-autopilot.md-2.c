#include "lib.h"
int main(void) {
    struct esp_config esp_config = ESP_ZERO;
    BLOCK;
    esp_config.strategy = "auto";
    open_ctx(&esp_config);
    add_and_start();
    must(esp_push(ctx, id, grad, here));
    must(esp_wait_all(ctx));
    esp_close(ctx);
    return 0;
}
