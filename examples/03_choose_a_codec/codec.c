/* codec.c: compresses a gradient with one codec, without other ranks. It prints how small the gradient becomes, and how
 * error feedback sends in later steps what compression dropped. ./codec [SPEC], for example ./codec topk:ratio=0.05 */
#include "espresso.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000000, STEPS = 10 };

static void check(esp_status s, const esp_ctx *ctx) {
    if (s >= 0) return;
    fprintf(stderr, "codec: %s\n", esp_last_error(ctx));
    exit(1);
}

int main(int argc, char **argv) {
    const char *spec = argc > 1 ? argv[1] : "topk:ratio=0.01";
    const esp_config cfg = ESP_ZERO;
    esp_ctx *ctx = NULL;
    esp_codec_handle *codec = NULL;
    check(esp_open(&cfg, &ctx), NULL);
    check(esp_codec_open(ctx, spec, COUNT, NULL, &codec), ctx);

    const uint64_t capacity = esp_compress_bound(codec);
    float *grad = malloc(COUNT * sizeof *grad), *sum = calloc(COUNT, sizeof *sum);
    void *payload = malloc(capacity);
    if (!grad || !sum || !payload) return fprintf(stderr, "codec: out of memory\n"), 1;
    for (int step = 1; step <= STEPS; step++) {
        uint64_t used = 0;
        double lost = 0, all = 0;
        for (int i = 0; i < COUNT; i++) grad[i] = sinf((float)i * 7.0f) / (float)(1 + i % 97);
        check(esp_compress(codec, grad, COUNT, payload, capacity, &used), ctx);
        check(esp_decompress(codec, payload, used, sum, COUNT, ESP_OUT_SUM), ctx);
        for (int i = 0; i < COUNT; i++) {
            lost += pow((double)(sum[i] - grad[i] * (float)step), 2);
            all += pow((double)grad[i] * step, 2);
        }
        printf("%s, step %2d: %d bytes became %llu; the sum of all steps so far is off by %.1f%%\n", spec, step,
               COUNT * 4, (unsigned long long)used, 100 * sqrt(lost / all));
    }
    printf("%s\n", esp_codec_residual(codec) ? "the residual of a payload is sent with a later one"
                                             : "this codec has no residual");
    esp_codec_close(codec);
    esp_close(ctx);
    free(grad), free(sum), free(payload);
    return 0;
}
