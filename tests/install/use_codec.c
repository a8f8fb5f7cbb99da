/* use_codec.c loads the plugin argv[1] and runs its codec argv[2] for five steps with error feedback: decoded payloads
 * and the last residual must add up to the gradients. It prints "ok". */
#include "espresso.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1003 };

int main(int argc, char **argv) {
    static float in[N], out[N], sent[N], given[N];
    esp_config cfg = ESP_ZERO;
    esp_codec_handle *h = NULL;
    esp_ctx *ctx = NULL;
    unsigned char *data = NULL;
    uint64_t used = 0;
    double worst = 0;
    cfg.size = 1;
    if (argc != 3 || esp_open(&cfg, &ctx) != ESP_OK || esp_plugin_load(ctx, argv[1]) != ESP_OK ||
        esp_codec_open(ctx, argv[2], N, "residual", &h) != ESP_OK)
        return fprintf(stderr, "%s\n", esp_last_error(NULL)), 1;
    data = malloc(esp_compress_bound(h));
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < N; i++) given[i] += in[i] = (float)(rand() % 2001 - 1000) / 1000;
        if (esp_compress(h, in, N, data, esp_compress_bound(h), &used) != ESP_OK ||
            esp_decompress(h, data, used, out, N, ESP_OUT_SET) != ESP_OK)
            return fprintf(stderr, "%s\n", esp_last_error(ctx)), 1;
        for (int i = 0; i < N; i++) sent[i] += out[i];
    }
    for (int i = 0; i < N; i++) worst = fmax(worst, fabs((double)sent[i] + esp_codec_residual(h)[i] - given[i]));
    if (used > ESP_PAYLOAD_HEADER + 4 + (N + 7) / 8 || worst > 1e-5)
        return fprintf(stderr, "%llu bytes, off by %g\n", (unsigned long long)used, worst), 1;
    data[8] ^= 1; /* damages the header's count */
    if (esp_decompress(h, data, used, out, N, ESP_OUT_SET) != ESP_E_CORRUPT) return fprintf(stderr, "not refused\n"), 1;
    esp_codec_close(h);
    esp_close(ctx);
    free(data);
    puts("ok");
    return 0;
}
