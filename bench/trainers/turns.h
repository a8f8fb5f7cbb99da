/* turns.h: runs a trainer's strategies in turns, within one job, so that what slows down the machine hits all alike
 * (bench/validate/auto). Compile the trainer with `-include bench/trainers/turns.h`; it must call esp_wait_all once a
 * step. TURNS names a file: the first line has the steps of a block, and each other line the path of a block's
 * strategy. Rank 0 writes to the file TURNS_OUT, for each block, the mean time of its steps but the first, in ms.
 * Without TURNS, nothing changes. */
#ifndef TURNS_H
#define TURNS_H
#include "espresso.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct turns {
    FILE *blocks, *out; /* `out` is NULL but on rank 0 */
    int steps;          /* of a block */
    int step;           /* of this block, from 0 on */
    double begin;
} turns;

static inline double turns_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static inline void turns_fail(const char *path, const char *why) {
    fprintf(stderr, "turns: %s: %s\n", path, why);
    exit(1);
}

static inline FILE *turns_open(const char *path, const char *mode) {
    FILE *f = fopen(path ? path : "", mode);
    if (!f) turns_fail(path ? path : "no file is named", strerror(errno));
    return f;
}

static inline void turns_start(turns *t, const esp_ctx *ctx) {
    char line[64];
    t->blocks = turns_open(getenv("TURNS"), "r");
    if (!esp_rank(ctx)) t->out = turns_open(getenv("TURNS_OUT"), "w");
    t->steps = fgets(line, sizeof line, t->blocks) ? atoi(line) : 0;
    if (t->steps < 2) turns_fail(getenv("TURNS"), "the first line has no number of steps of at least 2");
}

/* Activates the next block's strategy. After the last block the last strategy stays. */
static inline esp_status turns_next(turns *t, esp_ctx *ctx) {
    static char path[4096], text[1 << 22];
    if (!fgets(path, sizeof path, t->blocks)) return ESP_OK;
    path[strcspn(path, "\n")] = 0;
    FILE *f = turns_open(path, "r");
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return esp_strategy_set(ctx, text);
}

static inline esp_status turns_wait_all(esp_ctx *ctx) {
    static turns t;
    esp_status s = esp_wait_all(ctx);
    if (s || !getenv("TURNS")) return s;
    if (!t.blocks) {
        turns_start(&t, ctx);
    } else if (++t.step == 1) {
        t.begin = turns_now_ms();
    } else if (t.step == t.steps && t.out) {
        fprintf(t.out, "%.6f\n", (turns_now_ms() - t.begin) / (t.steps - 1));
        fflush(t.out);
    }
    if (t.step % t.steps == 0) s = turns_next(&t, ctx), t.step = 0;
    return s;
}
#define esp_wait_all turns_wait_all
#endif
