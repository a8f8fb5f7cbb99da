/* vnmse.c: how much of a gradient each codec leaves out: vNMSE, |x - decoded x|^2 / |x|^2, of rank 0's gradients in
 * steps 50 and 250 of the small GPT that accuracy.sh trains (AdamW, 4 ranks, one process, seed 1). Codecs compress
 * without error feedback, and tensors of 4,096 elements or fewer do not count. Nothing depends on the clock.
 *     sh bench/accuracy/accuracy.sh vnmse              writes bench/results/accuracy/vnmse.csv */
#include "espresso.h"
#include "examples/gpt/model.h"
#include "examples/gpt/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, BATCH = 4, STEPS = 300, SMALL = 4096, N_AT = 2 };
static const size_t at[N_AT] = {50, 250};
static const shape form = {0, 32, 72, 4, 2, BATCH}; /* the GPT of accuracy.sh */
static const char *const specs[] = {"fp16",
                                    "bf16",
                                    "int8",
                                    "int8:shared=1",
                                    "int4",
                                    "fp8",
                                    "dynamic8",
                                    "inceptionn",
                                    "maxmin",
                                    "maxmin:random=1",
                                    "natural",
                                    "qsgd",
                                    "qsgd:bits=4",
                                    "qsgd:elias=1,bits=4",
                                    "terngrad",
                                    "sketchml",
                                    "threelc",
                                    "onebit",
                                    "efsignsgd",
                                    "efsignsgd:norm=2",
                                    "signsgd",
                                    "mxnet1bit",
                                    "twobit",
                                    "twobit:relative=1.2",
                                    "threshold",
                                    "topk:ratio=0.1",
                                    "topk:ratio=0.01",
                                    "topk:ratio=0.001",
                                    "chunktopk",
                                    "adaptive",
                                    "randomk:ratio=0.1",
                                    "randomk:ratio=0.01",
                                    "randomk:ratio=0.01,unbiased=1",
                                    "dgc",
                                    "powersgd:rank=1",
                                    "powersgd:rank=4",
                                    "lossless"};
enum { SPECS = sizeof specs / sizeof *specs };

static void die(const char *what, const char *why) {
    fprintf(stderr, "vnmse: %s: %s\n", what, why);
    exit(1);
}

typedef struct sums {
    double error, square, bytes, elements;
} sums;

static void add(esp_ctx *ctx, const char *spec, const param *p, sums *s) {
    esp_codec_handle *h;
    uint64_t used = 0;
    if ((p->rows ? esp_codec_open_matrix(ctx, spec, p->rows, p->cols, "none", &h)
                 : esp_codec_open(ctx, spec, p->count, "none", &h)) != ESP_OK)
        die(spec, esp_last_error(ctx));
    void *payload = malloc(esp_compress_bound(h));
    float *back = malloc(p->count * sizeof *back);
    if (!payload || !back) die(spec, "out of memory");
    if (esp_compress(h, p->grad, p->count, payload, esp_compress_bound(h), &used) != ESP_OK ||
        esp_decompress(h, payload, used, back, p->count, ESP_OUT_SET) != ESP_OK)
        die(spec, esp_last_error(ctx));
    for (size_t i = 0; i < p->count; i++) {
        const double x = (double)p->grad[i], left = x - (double)back[i];
        s->error += left * left;
        s->square += x * x;
    }
    s->bytes += (double)used, s->elements += (double)p->count;
    free(payload), free(back);
    esp_codec_close(h);
}

/* Adds the gradients of a rank's batch, which is that of accuracy.sh with seed 1. */
static void gradients(gpt *m, const text *t, size_t step, size_t rank) {
    const uint8_t *seq[BATCH];
    for (size_t b = 0; b < BATCH; b++) {
        uint64_t random = (uint64_t)1 << 40 ^ ((step * RANKS + rank) * BATCH + b);
        seq[b] = t->token + random_u64(&random) % (t->n_train - form.context - 1);
    }
    gpt_forward(m, seq, BATCH);
    gpt_backward(m, seq, BATCH, step % 3 == 0, 1, NULL, NULL);
}

static void train(esp_ctx *ctx, gpt *m, const text *t, sums sum[SPECS][N_AT]) {
    for (size_t step = 0, k = 0; k < N_AT; step++) {
        const double x = (double)(step + 1) / STEPS, rate = x < 0.05 ? 20 * x : 1.0 - 0.9 * (x - 0.05) / 0.95;
        memset(m->grad, 0, m->n_values * sizeof *m->grad);
        for (size_t rank = 0; rank < RANKS; rank++) {
            gradients(m, t, step, rank);
            for (int c = 0; rank == 0 && step + 1 == at[k] && c < SPECS; c++)
                for (size_t i = 0; i < m->n_params; i++)
                    if (m->p[i].count > SMALL) add(ctx, specs[c], &m->p[i], &sum[c][k]);
        }
        k += step + 1 == at[k];
        for (size_t i = 0; i < m->n_values; i++) m->grad[i] /= RANKS;
        gpt_clip(m, 1);
        gpt_adamw(m, step + 1, (float)(0.004 * rate), 0.9f, 0.01f);
    }
}

int main(void) {
    static sums sum[SPECS][N_AT];
    static gpt m;
    static text t;
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx = NULL;
    const char *why = text_open(&t, "/usr/share/common-licenses");
    if (why) die("the text", why);
    shape s = form;
    s.vocab = t.vocab;
    if (gpt_open(&m, s, 1)) die("the model", "out of memory");
    if (esp_open(&cfg, &ctx) != ESP_OK) die("esp_open", esp_last_error(ctx));
    train(ctx, &m, &t, sum);
    printf("# bench/accuracy/vnmse.c: |x - decoded x|^2 / |x|^2 of the small GPT's gradients in two steps, without "
           "feedback\n");
    printf("codec,bits_per_element,vnmse_step_%zu,vnmse_step_%zu\n", at[0], at[1]);
    for (int c = 0; c < SPECS; c++) {
        const sums *a = &sum[c][0], *b = &sum[c][1];
        printf("\"%s\",%.3f,%.3g,%.3g\n", specs[c], 8 * (a->bytes + b->bytes) / (a->elements + b->elements),
               a->error / a->square, b->error / b->square);
    }
    esp_close(ctx);
    return 0;
}
