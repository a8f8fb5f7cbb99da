/* resume.c: a job that stops and resumes computes the same bits as one that never stopped, since the library's state
 * (what compression left out so far) is saved with the parameters.
 * ./resume FROM TO: trains from step FROM to step TO. Loads the checkpoint if FROM is not 0, and writes one at TO. */
#include "espresso.h"
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 50000 };
static float params[COUNT], grad[COUNT];

static void check(esp_status s, const esp_ctx *ctx) {
    if (s >= 0) return;
    fprintf(stderr, "resume: %s\n", esp_last_error(ctx));
    exit(1);
}

/* Reads or writes the parameters: rank 0 writes, all read. */
static void params_file(const char *mode) {
    FILE *f = fopen("params.bin", mode);
    const size_t done = !f ? 0 : *mode == 'r' ? fread(params, 4, COUNT, f) : fwrite(params, 4, COUNT, f);
    if ((f && fclose(f)) || done != COUNT) {
        perror("resume: params.bin");
        exit(1);
    }
}

int main(int argc, char **argv) {
    const esp_stream cpu = ESP_ZERO;
    esp_config cfg = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    esp_ctx *ctx = NULL;
    uint32_t id = 0, bits = 2166136261u;
    if (argc != 3) return fprintf(stderr, "usage: resume FROM TO\n"), 2;
    const int from = atoi(argv[1]), to = atoi(argv[2]);
    cfg.codec = "topk:ratio=0.01";
    check(esp_open(&cfg, &ctx), NULL);
    desc.name = "params", desc.count = COUNT;
    check(esp_tensor_add(ctx, &desc, &id), ctx);
    check(esp_start(ctx), ctx);
    if (from > 0) {
        params_file("rb");
        check(esp_state_load(ctx, "espresso.state"), ctx); /* each rank its own file */
    }
    for (int step = from; step < to; step++) {
        for (int i = 0; i < COUNT; i++)
            grad[i] = params[i] - (float)((i * 7 + step * 13 + esp_rank(ctx) * 5) % 101) / 50 + 1;
        check(esp_push(ctx, id, grad, cpu), ctx);
        check(esp_wait_all(ctx), ctx);
        for (int i = 0; i < COUNT; i++) params[i] -= 0.1f * grad[i];
    }
    check(esp_state_save(ctx, "espresso.state"), ctx);
    if (esp_rank(ctx) == 0) params_file("wb");
    for (size_t i = 0; i < sizeof params; i++) bits = (bits ^ ((unsigned char *)params)[i]) * 16777619u;
    printf("step %d: parameters %08x\n", to, (unsigned)bits);
    esp_close(ctx);
    return 0;
}
