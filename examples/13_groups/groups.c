/* groups.c: model parallel x data parallel training: the ranks of a job form several groups, here one for each of two
 * parts of a model, and each group averages the gradients of its part. Works with every launcher, on any number of
 * machines. Run: espresso run -n 4 -- ./groups */
#include "espresso.h"
#include <stdio.h>
#include <stdlib.h>

enum { PARTS = 2, COUNT = 9000, STEPS = 3 };

static int check(esp_status s, const esp_ctx *ctx) {
    if (s < 0) fprintf(stderr, "groups: %s\n", esp_last_error(ctx));
    return s < 0;
}

/* esp_config.oob_allgather of a group: through it the group's ranks exchange an address at which they connect. All
 * ranks of the job call it at the same time, and each keeps what its own group's ranks sent. */
static esp_status exchange(void *user, const void *in, void *out, uint64_t bytes) {
    esp_ctx *all = user;
    const int32_t size = esp_size(all), rank = esp_rank(all);
    char *one = malloc(bytes), *to = out;
    esp_status s = one ? ESP_OK : ESP_E_NOMEM;
    for (int32_t r = 0; r < size && !s; r++) {
        memcpy(one, in, bytes); /* only rank r's bytes are broadcast */
        s = esp_broadcast(all, one, bytes, r);
        if (!s && r % PARTS == rank % PARTS) memcpy(to + (uint64_t)(r / PARTS) * bytes, one, bytes);
    }
    free(one);
    return s;
}

static int train(esp_ctx *group, int32_t rank) {
    static float grad[COUNT];
    const esp_stream cpu = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    uint32_t id = 0;
    desc.name = "gradient", desc.count = COUNT;
    int failed = check(esp_tensor_add(group, &desc, &id), group) || check(esp_start(group), group);
    for (int step = 0; !failed && step < STEPS; step++) {
        for (int i = 0; i < COUNT; i++) grad[i] = (float)rank;
        failed = check(esp_push(group, id, grad, cpu), group) || check(esp_wait_all(group), group);
    }
    if (!failed)
        printf("part %d, rank %d of %d: the mean is %g\n", (int)(rank % PARTS), (int)esp_rank(group),
               (int)esp_size(group), (double)grad[0]);
    return failed;
}

int main(void) {
    const esp_config all_config = ESP_ZERO;
    esp_ctx *all = NULL, *group = NULL;
    if (check(esp_open(&all_config, &all), NULL)) return 1;
    const int32_t rank = esp_rank(all), size = esp_size(all);
    esp_config config = ESP_ZERO;
    config.rank = rank / PARTS, config.size = size / PARTS;
    config.oob_allgather = exchange, config.oob_user = all;
    int failed = size % PARTS != 0;
    if (failed) fprintf(stderr, "groups: the number of ranks must be a multiple of %d\n", PARTS);
    failed = failed || check(esp_open(&config, &group), NULL) || train(group, rank);
    esp_close(group);
    esp_close(all);
    return failed;
}
