/* totals.h trains the small model, and checks that no part of a gradient is lost when the strategy changes. */
#ifndef TOTALS_H
#define TOTALS_H
#include "tests/executor/small_model.h"

static esp_stream here;

static float gradient(int32_t rank, uint64_t i, int step) {
    return (float)((int)((i * 31 + (uint64_t)step * 7 + (uint64_t)rank) % 23) - 11);
}

/* Sums over all steps: of the gradients of all ranks, and of the results. */
typedef struct totals {
    double in[TOTAL], out[TOTAL];
    int step;
} totals;

static void train(esp_ctx *ctx, totals *b, int steps) {
    float *g = malloc(TOTAL * sizeof *g);
    for (int s = 0; s < steps; s++, b->step++) {
        for (uint64_t i = 0; i < TOTAL; i++) {
            g[i] = gradient(ctx->job.rank, i, b->step);
            for (int32_t r = 0; r < ctx->job.size; r++) b->in[i] += (double)gradient(r, i, b->step);
        }
        for (uint32_t t = 0; t < TENSORS; t++) CHECK(!esp_push(ctx, t, g + begins[t], here));
        CHECK(esp_wait_all(ctx) == ESP_OK);
        for (uint64_t i = 0; i < TOTAL; i++) b->out[i] += (double)g[i] * ctx->job.size;
    }
    free(g);
}

/* Adds up this rank's residuals. If `own` is set, only those of its own gradients count. Otherwise those of sums
 * over several ranks count too, and residuals that are kept for the next push. */
static void add_residuals(const esp_ctx *ctx, float *held, int own) {
    memset(held, 0, TOTAL * sizeof *held);
    for (uint32_t k = 0; k < ctx->active.n_feedback; k++) {
        const esp__feedback *f = &ctx->active.feedback[k];
        uint64_t first = begins[f->place.first] + f->place.begin + f->offset;
        for (uint64_t i = 0; f->residual && (own ? f->raw : f->owner_replica) && i < f->count; i++)
            held[first + i] += f->residual[i];
    }
    for (uint32_t t = 0; t < TENSORS && !own; t++)
        for (uint64_t i = 0; ctx->model.tensors[t].pending_residual && i < counts[t]; i++)
            held[begins[t] + i] += ctx->model.tensors[t].pending_residual[i];
}

/* Checks that no gradient is lost: for each element, the sum of gradients must equal the sum of results and
 * residuals over all ranks. */
static void check_totals(esp_ctx *ctx, const totals *b) {
    float *held = malloc(TOTAL * sizeof *held);
    add_residuals(ctx, held, 0);
    CHECK(esp_allreduce(ctx, held, TOTAL) == ESP_OK);
    double worst = 0;
    for (int i = 0; i < TOTAL; i++) {
        double off = fabs(b->out[i] + (double)held[i] - b->in[i]);
        if (off > worst) worst = off;
    }
    CHECK(worst < 2e-2);
    free(held);
}
#endif
