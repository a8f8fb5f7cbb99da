/* joins.c is a rank of a job that other ranks join, for tests with several hosts and backends. Usage: joins N [join].
 * The job's ranks train in an outer loop (every 1) until it has N ranks, those started with `join` too; then ROUNDS
 * rounds more. Each round's mean must be that of all ranks. JOINS_OUTER is the outer method; if it is
 * empty or has max_every, ranks do not train. With JOINS_SHARD, the tensor is sharded. */
#include "espresso.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 20000, ROUNDS = 10 };
static float params[COUNT];

static int check(esp_status s, const esp_ctx *ctx) {
    if (s < 0) fprintf(stderr, "joins: %s\n", esp_last_error(ctx));
    return s < 0;
}

/* Rank r adds r + 1 to each parameter, so the mean adds (size + 1) / 2. */
static int one_round(esp_ctx *ctx) {
    const esp_stream cpu = ESP_ZERO;
    const float before = params[0], add = (float)(esp_size(ctx) + 1) / 2;
    for (int i = 0; i < COUNT; i++) params[i] += (float)(esp_rank(ctx) + 1);
    if (check(esp_outer_step(ctx, cpu), ctx)) return 1;
    for (int i = 0; i < COUNT; i++)
        if (fabsf(params[i] - before - add) > 1e-3f) {
            fprintf(stderr, "joins: parameter %d is %g, expected %g\n", i, (double)params[i], (double)(before + add));
            return 1;
        }
    return 0;
}

int main(int argc, char **argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 2, joins = argc > 2 && !strcmp(argv[2], "join");
    esp_config cfg = ESP_ZERO;
    esp_outer_desc outer = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    esp_ctx *ctx = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    cfg.flags = joins ? ESP_JOIN : 0;
    outer.method = getenv("JOINS_OUTER") ? getenv("JOINS_OUTER") : "average:every=1";
    desc.name = "w", desc.count = COUNT, desc.flags = getenv("JOINS_SHARD") ? ESP_SHARD : 0;
    const int trains = *outer.method && !strstr(outer.method, "max_every");
    if (check(esp_open(&cfg, &ctx), NULL)) return 1;
    int failed = !*outer.method ? 0 : check(esp_outer_open(ctx, &outer), ctx);
    failed = failed || check(esp_tensor_add(ctx, &desc, NULL), ctx) || check(esp_start(ctx), ctx) ||
             (*outer.method && check(esp_outer_add(ctx, 0, params), ctx));
    if (!failed) printf("rank %d of %d\n", (int)esp_rank(ctx), (int)esp_size(ctx));
    while (!failed && esp_size(ctx) < n) {
        failed = (trains && one_round(ctx)) || check(esp_reconfigure(ctx), ctx);
        usleep(1000);
    }
    for (int k = 0; k < ROUNDS && !failed && trains; k++) failed = one_round(ctx);
    if (!failed) printf("all rounds are right on rank %d of %d\n", (int)esp_rank(ctx), (int)esp_size(ctx));
    esp_close(ctx);
    return failed;
}
