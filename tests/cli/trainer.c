/* trainer.c is a program for the test scripts of this folder. It averages made-up gradients over the ranks:
 *   trainer STEPS [--say] [--die STEP] [--save BASE] NAME:ELEMENTS[:raw] ...
 * --say prints the averages of the first tensor's first and last element after each step, --die kills rank 2 in that
 * step, --save saves the state at the end, and ":raw" sends a tensor uncompressed. */
#include "espresso.h"
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 8, ELEMENTS = 100003 };
static float grad[MOST][ELEMENTS];

static int failed(const esp_ctx *ctx) {
    fprintf(stderr, "%s\n", esp_last_error(ctx));
    return 1;
}

static int step(esp_ctx *ctx, int s, const uint32_t *count, uint32_t n) {
    const esp_stream here = ESP_ZERO;
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t i = 0; i < count[t]; i++) grad[t][i] = (float)(esp_rank(ctx) * 4 + s) + (float)(i % 13);
        usleep(300);
        if (esp_push(ctx, t, grad[t], here)) return failed(ctx);
    }
    return esp_wait_all(ctx) ? failed(ctx) : 0;
}

int main(int argc, char **argv) {
    uint32_t count[MOST] = {0}, n = 0;
    int say = 0, die = -1, status = 0;
    const char *save = NULL;
    esp_ctx *ctx;
    if (argc < 3) return 2;
    setlocale(LC_ALL, "");
    if (esp_open(NULL, &ctx)) return failed(NULL);
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--say"))
            say = 1;
        else if (!strcmp(argv[i], "--die") && i + 1 < argc)
            die = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--save") && i + 1 < argc)
            save = argv[++i];
        else {
            esp_tensor_desc d = ESP_ZERO;
            char name[64] = "", raw[8] = "";
            if (n == MOST || sscanf(argv[i], "%63[^:]:%u:%7s", name, &count[n], raw) < 2 || count[n] > ELEMENTS)
                return 2;
            d.name = name, d.count = count[n++], d.flags = *raw ? ESP_RAW : 0;
            if (esp_tensor_add(ctx, &d, NULL)) return failed(ctx);
        }
    }
    if (esp_start(ctx)) return failed(ctx);
    for (int s = 0; s < atoi(argv[1]) && !status; s++) {
        if (s == die && esp_rank(ctx) == 2) raise(SIGKILL);
        status = step(ctx, s, count, n);
        if (say && !status)
            printf("step %d: %g %g on machine %d of %d\n", s, (double)grad[0][0], (double)grad[0][count[0] - 1],
                   (int)esp_machine(ctx), (int)esp_machines(ctx));
    }
    if (save && !status && esp_state_save(ctx, save)) status = failed(ctx);
    esp_close(ctx);
    return status;
}
