/* lib.h: what the blocks of C in the pages take for granted: one rank's context, tensor `id` of n elements, and a
 * stream of the CPU. */
#ifndef FRAMES_LIB_H
#define FRAMES_LIB_H
#include <stdio.h>
#include <stdlib.h>

#include "espresso.h"

static esp_ctx *ctx;
static uint32_t id;
static float grad[8192], params[8192];
static const int n = 8192;
static const esp_stream here; /* zeros: the CPU */

static inline void must(esp_status s) {
    if (s == ESP_OK) return;
    fprintf(stderr, "%s\n", ctx ? esp_last_error(ctx) : "esp_open failed");
    exit(1);
}
static inline void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}
#define EXPECT(x) expect((x) != 0, #x)
static inline void open_ctx(const esp_config *config) { must(esp_open(config, &ctx)); }
static inline void add_and_start(void) {
    esp_tensor_desc d = ESP_ZERO;
    d.name = "w", d.count = (uint64_t)n;
    must(esp_tensor_add(ctx, &d, &id));
    must(esp_start(ctx));
}
#endif
