/* device_options.h runs many options (ways to synchronize a tensor), each with a tensor of its own, once with gradients
 * in host memory and once on an emulated device. Results must have the same bits. */
#ifndef DEVICE_OPTIONS_H
#define DEVICE_OPTIONS_H
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

#ifdef DEVICE_IS_CUDA
enum { ROWS = 8, ELEMENTS = 96, TREE_STEPS = 3 };
#else
enum { ROWS = 0, ELEMENTS = 67, TREE_STEPS = 2 };
#endif
enum { MOST = 700, TREE_RANKS = 4 };

/* Of the options that compress on the CPU, too, every `every`-th runs, and of those that compress only on the device
 * every `every_gpu`-th. 0 stands for all. */
typedef struct tree_plan {
    const char *codec, *backend[2]; /* backends for gradients in host memory and on the device */
    const esp_plugin_fn *entries;
    uint32_t n_entries, every;
    uint32_t every_gpu;
    const char *const *codecs; /* if not NULL, used in turn instead of `codec` */
    uint32_t n_codecs;
    const char *const *summed; /* codecs whose payloads can be summed, or NULL */
    uint32_t n_summed;
} tree_plan;
typedef struct tree_job {
    const tree_plan *plan;
    int on_device;
    uint32_t n;
    const char *codec[MOST];
    float *out; /* results, as [rank][step][tensor][element] */
} tree_job;

typedef struct adding {
    esp_ctx *ctx;
    tree_job *j;
    uint32_t seen[2], n;
} adding;

static inline void add_one(adding *a, const char *codec, const char *option) {
    char name[32];
    snprintf(name, sizeof name, "t%u", a->n);
    esp_tensor_desc d = {.name = name,
                         .count = ELEMENTS,
                         .rows = ROWS,
                         .cols = ROWS ? ELEMENTS / ROWS : 0,
                         .codec = codec_for(option, codec),
                         .option = option};
    if (a->j->on_device) d.device.kind = DEVICE_KIND;
    CHECK(a->n < MOST && esp_tensor_add(a->ctx, &d, NULL) == ESP_OK);
    if (esp_rank(a->ctx) == 0) a->j->codec[a->n] = codec;
    a->n++;
}
static inline int add_option(void *user, const esp__option *o) {
    adding *a = user;
    const tree_plan *plan = a->j->plan;
    char text[ESP__TEXT_MAX];
    int gpu = 1;
    for (uint32_t i = 0; i < o->n; i++)
        if ((o->steps[i].kind == ESP__STAGE_COMP || o->steps[i].kind == ESP__STAGE_DECOMP) &&
            o->steps[i].device != ESP_ON_GPU)
            gpu = 0;
    const uint32_t every = gpu ? plan->every_gpu : plan->every;
    if (every && a->seen[!gpu]++ % every) return 0;
    esp__option_print(o, text, sizeof text);
    add_one(a, plan->codecs ? plan->codecs[a->n % plan->n_codecs] : plan->codec, text);
    return 0;
}

static inline void tree_body(esp_ctx *ctx, void *user) {
    tree_job *j = user;
    adding a = {ctx, j, {0, 0}, 0};
    place p;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 0, add_option, &a);
    for (uint32_t i = 0; i < j->plan->n_summed; i++)
        add_one(&a, j->plan->summed[i],
                "intra.reduce_scatter > comp@gpu > inter.allreduce > decomp@gpu > intra.allgather");
    const uint64_t all = (uint64_t)a.n * ELEMENTS;
    place_open(ctx, &p, (esp_device){j->on_device ? DEVICE_KIND : 0, 0}, all * 4);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < TREE_STEPS; step++) {
        for (uint64_t i = 0; i < all; i++) ((float *)p.pinned)[i] = input(esp_rank(ctx), step, i);
        write_late(&p);
        for (uint32_t t = 0; t < a.n; t++)
            CHECK(esp_push(ctx, t, (float *)p.grad + (uint64_t)t * ELEMENTS, p.stream) == ESP_OK);
        /* In one step, the results are read in the trainer's stream, without waiting on the CPU. */
        for (uint32_t t = 0; t < a.n && step == 1; t++) CHECK(esp_wait_on(ctx, t, p.stream) == ESP_OK);
        if (j->on_device && step == 1) {
            CHECK(p.table->copy(p.self, p.pinned, p.grad, p.bytes, p.stream) == ESP_OK);
            place_sync(&p);
        }
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (j->on_device && step != 1) place_get(&p);
        memcpy(j->out + ((uint64_t)esp_rank(ctx) * TREE_STEPS + (uint64_t)step) * MOST * ELEMENTS, p.pinned, all * 4);
    }
    if (esp_rank(ctx) == 0) j->n = a.n;
    place_close(&p);
}

static inline void run_tree(const tree_plan *plan) {
    const uint64_t floats = (uint64_t)TREE_RANKS * TREE_STEPS * MOST * ELEMENTS;
    static tree_job j;
    float *out[2];
    uint32_t n[2];
    for (int k = 0; k < 2; k++) {
        j = (tree_job){.plan = plan, .on_device = k, .out = calloc(floats, sizeof(float))};
        RUN_RANKS(.size = TREE_RANKS, .per_machine = 2, .body = tree_body, .user = &j,
                  .config.backend = plan->backend[k], .config.timeout_ms = 60000, .config.builtin = plan->entries,
                  .config.n_builtin = plan->n_entries);
        out[k] = j.out;
        n[k] = j.n;
    }
    assert_true(n[0] == n[1] && n[0] > (plan->every_gpu ? 20 : 174));
    for (uint64_t i = 0; i < floats; i++)
        if (memcmp(&out[0][i], &out[1][i], 4))
            fail_msg("%s over %s: rank %d, step %d, tensor %d, element %d: %g on the CPU, %g on the device",
                     j.codec[i / ELEMENTS % MOST], plan->backend[1] ? plan->backend[1] : "loop",
                     (int)(i / ELEMENTS / MOST / TREE_STEPS), (int)(i / ELEMENTS / MOST % TREE_STEPS),
                     (int)(i / ELEMENTS % MOST), (int)(i % ELEMENTS), (double)out[0][i], (double)out[1][i]);
    free(out[0]);
    free(out[1]);
    assert_int_equal(fake_live + fake_refused, 0);
}
#endif
