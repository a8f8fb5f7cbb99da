/* main.c: connects espresso to two kinds of trainers: gradients are final layer by layer, or all at the end of
 * backward. docs/use/wiring.md quotes this file.
 * ./wiring layers   gradients are final layer by layer: each is pushed while backward goes on
 * ./wiring flat     gradients are final when backward is over: all are pushed then
 * Both print the same weights. Or: espresso run -n 4 -- ./wiring layers */
#include "espresso.h"
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const esp_stream cpu = ESP_ZERO;

static void must(esp_status s) {
    if (s >= 0) return;
    fprintf(stderr, "wiring: %s\n", esp_last_error(NULL));
    exit(1); /* the other ranks notice at once */
}

/* The layer whose backward is the last to add to a parameter: the first one that uses it. */
static int last_contribution(int param) {
    int layer = 0;
    while (param_of[layer] != param) layer++;
    return layer;
}

/* ---- gradients that are final layer by layer --------------------------------------------------------------------- */
static void layers_register(esp_ctx *ctx, uint32_t id[PARAMS]) {
    for (int layer = LAYERS; layer-- > 0;) { /* backward order: that in which they will be pushed */
        int p = param_of[layer];
        esp_tensor_desc d = ESP_ZERO;
        if (layer != last_contribution(p)) continue;
        d.name = param_names[p], d.count = WEIGHTS, d.rows = d.cols = WIDTH;
        must(esp_tensor_add(ctx, &d, &id[p]));
    }
}

static void layers_backward(esp_ctx *ctx, const uint32_t id[PARAMS], model *m) {
    for (int layer = LAYERS; layer-- > 0;) {
        int p = param_of[layer];
        model_backward(m, layer);
        if (layer == last_contribution(p)) /* with tied weights: all layers that share it have added to it */
            must(esp_push(ctx, id[p], m->grads[p], cpu));
    }
    must(esp_wait_all(ctx)); /* from here on, m->grads holds the means */
}

/* ---- one buffer of gradients that is final at the end ------------------------------------------------------------ */
static void flat_register(esp_ctx *ctx, uint32_t id[PARAMS]) {
    for (int p = PARAMS; p-- > 0;) { /* one tensor per parameter: each is sent in the way that suits it */
        esp_tensor_desc d = ESP_ZERO;
        d.name = param_names[p], d.count = WEIGHTS, d.rows = d.cols = WIDTH;
        must(esp_tensor_add(ctx, &d, &id[p]));
    }
}

static void flat_backward(esp_ctx *ctx, const uint32_t id[PARAMS], model *m) {
    for (int layer = LAYERS; layer-- > 0;) model_backward(m, layer); /* your trainer's one call */
    for (int p = PARAMS; p-- > 0;) must(esp_push(ctx, id[p], m->grads[p], cpu));
    must(esp_wait_all(ctx)); /* one tensor is compressed while another is on the wire */
}

/* ---- the loop, the same for both --------------------------------------------------------------------------------- */
int main(int argc, char **argv) {
    static model m;
    int flat = argc == 2 && !strcmp(argv[1], "flat");
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    uint32_t id[PARAMS], bits = 2166136261u;
    float first = 0, loss = 0;
    if (!flat && (argc != 2 || strcmp(argv[1], "layers"))) return fputs("usage: wiring layers|flat\n", stderr), 2;
    must(esp_open(&cfg, &ctx));
    if (flat)
        flat_register(ctx, id);
    else
        layers_register(ctx, id);
    must(esp_start(ctx));
    if (esp_rank(ctx) == 0) model_init(&m);
    must(esp_broadcast(ctx, m.weights, sizeof m.weights, 0));
    for (int step = 0; step < 200; step++) {
        loss = model_forward(&m, step * esp_size(ctx) + esp_rank(ctx)); /* each rank has samples of its own */
        must(esp_allreduce(ctx, &loss, 1));
        if (step == 0) first = loss;
        if (flat)
            flat_backward(ctx, id, &m);
        else
            layers_backward(ctx, id, &m);
        model_update(&m, 0.02f);
    }
    for (size_t i = 0; i < sizeof m.weights; i++) bits = (bits ^ ((unsigned char *)m.weights)[i]) * 16777619u;
    printf("loss %.3f -> %.3f, weights %08x\n", (double)first, (double)loss, (unsigned)bits);
    esp_close(ctx);
    return 0;
}
