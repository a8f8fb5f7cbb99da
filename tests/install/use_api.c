/* use_api.c is a user's program, which the tests build outside the source tree, as C and as C++: it compresses and
 * decompresses without a job, then runs a training step with one rank. It prints "ok". */
#include "espresso.h"
#include <stdio.h>

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, esp_last_error(NULL));
    return 1;
}

/* Compresses and decompresses. `share` elements must be restored, and the others must become 0. */
static int round_trip(esp_ctx *ctx, const char *spec, int share) {
    enum { N = 1000 };
    static float in[N], out[N];
    static unsigned char data[8 * N];
    esp_codec_handle *h = NULL;
    uint64_t used = 0;
    int same = 0;
    for (int i = 0; i < N; i++) in[i] = (i % 2 ? 1.0f : -1.0f) * ESP__CAST(float, i + 1);
    if (esp_codec_open(ctx, spec, N, "none", &h) != ESP_OK) return fail(spec);
    if (esp_compress(h, in, N, data, sizeof data, &used) != ESP_OK) return fail("esp_compress");
    if (esp_decompress(h, data, used, out, N, ESP_OUT_SET) != ESP_OK) return fail("esp_decompress");
    for (int i = 0; i < N; i++) same += memcmp(&in[i], &out[i], sizeof in[i]) == 0;
    esp_codec_close(h);
    return same == share ? 0 : fail("other values came back");
}

static int one_step(esp_ctx *ctx) {
    float grad[5] = {1, 2, 3, 4, 5};
    const esp_stream cpu = ESP_ZERO;
    esp_tensor_desc d = ESP_ZERO;
    uint32_t id = 0;
    d.name = "w";
    d.count = 5;
    if (esp_tensor_add(ctx, &d, &id) != ESP_OK) return fail("esp_tensor_add");
    if (esp_start(ctx) != ESP_OK) return fail("esp_start");
    if (esp_push(ctx, id, grad, cpu) != ESP_OK) return fail("esp_push");
    if (esp_wait_all(ctx) != ESP_OK) return fail("esp_wait_all");
    return grad[4] < 5 || grad[4] > 5 ? fail("another mean") : 0;
}

int main(void) {
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx = NULL;
    int wrong;
    cfg.size = 1;
    cfg.backend = "loop";
    if (esp_open(&cfg, &ctx) != ESP_OK) return fail("esp_open");
    wrong = round_trip(ctx, "none", 1000) || round_trip(ctx, "topk:ratio=0.01", 10) || one_step(ctx);
    esp_close(ctx);
    if (!wrong) puts("ok");
    return wrong;
}
