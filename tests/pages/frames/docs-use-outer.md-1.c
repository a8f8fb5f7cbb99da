#include "lib.h"
static const uint64_t count = 8192;
static void forward_backward_update(void) {
    for (int i = 0; i < n; i++) params[i] += (float)(esp_rank(ctx) + 1);
}
int main(void) {
    esp_config config = ESP_ZERO;
    esp_tensor_desc desc[1] = {ESP_ZERO};
    uint32_t ids[1];
    float *param[1] = {params};
    const int steps = 200, bytes = sizeof params;
    const esp_stream stream = here;
    uint32_t *const the_ids = ids;
    int i, step;
    desc[0].name = "w", desc[0].count = count;
    setenv("ESPRESSO_CODEC", "none", 1);
    {
        const int n = 1;
        uint32_t *id = the_ids;
        BLOCK;
    }
    EXPECT(params[0] > 400 && params[0] < 600); /* two rounds of 150, and the outer momentum */
    esp_close(ctx);
    return 0;
}
