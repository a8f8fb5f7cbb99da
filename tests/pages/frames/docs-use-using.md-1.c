#include "lib.h"
static void update(float *part, const float *mean, float *state, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) part[i] -= mean[i] + state[i];
}
int main(void) {
    esp_config config = ESP_ZERO;
    uint64_t begin, count;
    float *state = calloc((size_t)n, sizeof *state);
    open_ctx(&config);
    for (int i = 0; i < n; i++) grad[i] = (float)esp_rank(ctx);
    { BLOCK; }
    EXPECT(count == (uint64_t)n / (uint64_t)esp_size(ctx));
    for (int i = 0; i < n; i++) EXPECT(params[i] == -0.5f); /* on both ranks all parameters are updated */
    esp_close(ctx);
    free(state);
    return 0;
}
