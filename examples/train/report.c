/* report.c: implements report.h. */
#include "report.h"
#include "run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double report_bytes(esp_ctx *ctx, const char *program) {
    esp_stats stats = {.struct_size = sizeof stats};
    if (esp_stats_read(ctx, &stats)) run_die(program, "esp_stats_read", esp_last_error(ctx));
    float sum = (float)stats.inter_bytes;
    if (esp_allreduce(ctx, &sum, 1)) run_die(program, "esp_allreduce", esp_last_error(ctx));
    return (double)sum;
}

void report_compare(esp_ctx *ctx, const char *program, const float *values, size_t n) {
    float *first = malloc(n * sizeof *first + 1); /* rank 0's parameters */
    if (!first) run_die(program, "parameters", "no memory to compare them");
    memcpy(first, values, n * sizeof *first);
    if (esp_broadcast(ctx, first, n * sizeof *first, 0)) run_die(program, "esp_broadcast", esp_last_error(ctx));
    if (memcmp(first, values, n * sizeof *first)) run_die(program, "parameters", "differ from rank 0's");
    free(first);
}

static void close_file(const report *r, FILE *f, const char *path) {
    if (fflush(f) || (f != stdout && fclose(f))) run_die(r->program, path, "cannot be written");
}

void report_curve(const report *r, const char *path) {
    FILE *f = fopen(path, "w");
    double at = 0;
    if (!f) run_die(r->program, path, "cannot be written");
    for (size_t i = 0; i < r->steps; i++)
        fprintf(f, "%zu,%.4f,%.9g\n", i + 1, (at += r->step_ms[i]) / 1e3, r->step_loss[i]);
    close_file(r, f, path);
}

void report_json(const report *r, const esp_ctx *ctx, const char *path) {
    FILE *f = strcmp(path, "-") ? fopen(path, "w") : stdout;
    const size_t n = r->steps, first = n / 2;
    if (!f) run_die(r->program, path, "cannot be written");
    fprintf(f, "{\"ranks\": %d, \"machines\": %d, \"steps\": %zu, ", esp_size(ctx), esp_machines(ctx), n);
    fprintf(f, "\"settled_step_ms\": %.2f, ", run_median(r->step_ms + first, n - first));
    fprintf(f, "\"step_ms\": %.2f, ", run_median(r->step_ms, n));
    if (r->wait_ms) fprintf(f, "\"wait_ms\": %.2f, ", run_median(r->wait_ms, n));
    fprintf(f, "\"inter_bytes_per_step\": %.0f, ", r->bytes / (double)n);
    fprintf(f, "\"loss\": %.4f, \"accuracy\": %.4f, \"state_bytes\": %zu}\n", r->loss, r->accuracy, r->state_bytes);
    close_file(r, f, path);
}
