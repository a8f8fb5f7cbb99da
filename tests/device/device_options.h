/* device_options.h runs many options in one job with a tensor for each, with gradients in host memory and on the fake
 * device. Results must have the same bits. */
#ifndef DEVICE_OPTIONS_H
#define DEVICE_OPTIONS_H
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

enum { ELEMENTS = 67, MOST = 700, TREE_STEPS = 2, TREE_RANKS = 4 };

typedef struct tree_plan {
    const char *codec, *backend[2]; /* backends for gradients in host memory and on the device */
    const esp_plugin_fn *entries;
    uint32_t n_entries, every; /* every: takes each `every`th option that uses the CPU */
    uint32_t every_gpu;        /* takes each `every_gpu`th option that uses only the device, or all if it is 0 */
} tree_plan;
typedef struct tree_job {
    const tree_plan *plan;
    int on_device;
    uint32_t n;
    float *out; /* results, as [rank][step][tensor][element] */
} tree_job;

typedef struct adding {
    esp_ctx *ctx;
    tree_job *j;
    uint32_t seen[2], n; /* number of options seen, those on the device alone and others; number of tensors */
} adding;

/* Adds a tensor for each option that compresses only on the device, and for some of the others. */
static inline int add_option(void *user, const esp__option *o) {
    adding *a = user;
    char text[ESP__TEXT_MAX], name[32];
    int gpu = 1;
    for (uint32_t i = 0; i < o->n; i++)
        if ((o->steps[i].kind == ESP__STAGE_COMP || o->steps[i].kind == ESP__STAGE_DECOMP) &&
            o->steps[i].device != ESP_ON_GPU)
            gpu = 0;
    const uint32_t every = gpu ? a->j->plan->every_gpu : a->j->plan->every;
    if (every && a->seen[!gpu]++ % every) return 0;
    snprintf(name, sizeof name, "t%u", a->n);
    esp__option_print(o, text, sizeof text);
    esp_tensor_desc d = {.name = name, .count = ELEMENTS, .codec = a->j->plan->codec, .option = text};
    if (a->j->on_device) d.device.kind = DEVICE_KIND;
    CHECK(a->n < MOST && esp_tensor_add(a->ctx, &d, NULL) == ESP_OK);
    a->n++;
    return 0;
}

static inline void tree_body(esp_ctx *ctx, void *user) {
    tree_job *j = user;
    adding a = {ctx, j, {0, 0}, 0};
    place p;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 0, add_option, &a);
    const uint64_t all = (uint64_t)a.n * ELEMENTS;
    place_open(ctx, &p, (esp_device){j->on_device ? DEVICE_KIND : 0, 0}, all * 4);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < TREE_STEPS; step++) {
        for (uint64_t i = 0; i < all; i++) ((float *)p.pinned)[i] = input(esp_rank(ctx), step, i);
        write_late(&p);
        for (uint32_t t = 0; t < a.n; t++)
            CHECK(esp_push(ctx, t, (float *)p.grad + (uint64_t)t * ELEMENTS, p.stream) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (j->on_device) place_get(&p);
        memcpy(j->out + ((uint64_t)esp_rank(ctx) * TREE_STEPS + (uint64_t)step) * MOST * ELEMENTS, p.pinned, all * 4);
    }
    if (esp_rank(ctx) == 0) j->n = a.n;
    place_close(&p);
}

static inline void run_tree(const tree_plan *plan) {
    const uint64_t floats = (uint64_t)TREE_RANKS * TREE_STEPS * MOST * ELEMENTS;
    float *out[2];
    uint32_t n = 0;
    for (int k = 0; k < 2; k++) {
        tree_job j = {plan, k, 0, calloc(floats, sizeof(float))};
        RUN_RANKS(.size = TREE_RANKS, .per_machine = 2, .body = tree_body, .user = &j,
                  .config.backend = plan->backend[k], .config.timeout_ms = 60000, .config.builtin = plan->entries,
                  .config.n_builtin = plan->n_entries);
        out[k] = j.out;
        n = j.n;
    }
    assert_true(n > (plan->every_gpu ? 20 : 174));
    for (uint64_t i = 0; i < floats; i++)
        if (memcmp(&out[0][i], &out[1][i], 4))
            fail_msg("%s over %s: tensor %d, element %d: %g on the CPU, %g on the device", plan->codec,
                     plan->backend[1], (int)(i / ELEMENTS % MOST), (int)(i % ELEMENTS), (double)out[0][i],
                     (double)out[1][i]);
    free(out[0]);
    free(out[1]);
    assert_int_equal(fake_live + fake_refused, 0);
}
#endif
