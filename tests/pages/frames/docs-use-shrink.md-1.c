#include "lib.h"
static const uint32_t params_bytes = sizeof params;
static int calls;
static esp_status train_one_step(esp_ctx *c) {
    if (calls++ == 1 && esp_rank(c) == 1) abort(); /* without esp_close: the other ranks notice */
    esp_status s = esp_push(c, id, grad, here);
    return s ? s : esp_wait_all(c);
}
int main(void) {
    esp_config config = ESP_ZERO;
    int step = 0;
    open_ctx(&config);
    add_and_start();
    must(train_one_step(ctx));
    {
        BLOCK;
        must(s);
    }
    EXPECT(esp_size(ctx) == 1);
    must(train_one_step(ctx));
    esp_close(ctx);
    return 0;
}
