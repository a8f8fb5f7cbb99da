/* test_cuda_tree.c runs plugin cuda on an emulator of CUDA. One job has a tensor for each option that compresses only
 * on the GPU, and for some that also use the CPU, with all codecs in turn. Results must have the same bits as with
 * gradients in CPU memory. */
/* runs: slow asan-long no-tsan: the emulator runs kernels as fibers, which the thread sanitizer does not follow */
#include "tests/lib/test.h"

const esp_plugin *espresso_plugin_v1_cuda(const esp_host *h);

enum { ELEMENTS = 96, MOST = 700, STEPS = 3, RANKS = 4 };
static const char *const codecs[] = {
    "none",          "topk:ratio=0.1",         "fp16",          "efsignsgd", "twobit:relative=1.2", "int8:block=32",
    "int4:block=32", "chunktopk:chunk=16,k=2", "dgc:ratio=0.1", "bf16",      "randomk:ratio=0.2"};
/* Codecs whose payloads can be summed without decoding. Each compresses a tensor with summed_option. */
static const char *const summed[] = {"powersgd:rank=2", "int8:shared=1", "randomk:ratio=0.2", "fp16", "none"};
static const char summed_option[] = "intra.reduce_scatter > comp@gpu > inter.allreduce > decomp@gpu > intra.allgather";
enum { CODECS = sizeof codecs / sizeof *codecs, SUMMED = sizeof summed / sizeof *summed };

typedef struct tree_job {
    int on_device;
    uint32_t n;
    const char *codec[MOST];
    float *out; /* results, as [rank][step][tensor][element] */
} tree_job;
typedef struct adding {
    esp_ctx *ctx;
    tree_job *j;
    uint32_t seen, n;
} adding;

static void add_tensor(adding *a, const char *codec, const char *option) {
    char name[32];
    esp_tensor_desc d = ESP_ZERO;
    snprintf(name, sizeof name, "t%u", a->n);
    d.name = name;
    d.count = ELEMENTS;
    d.rows = 8, d.cols = ELEMENTS / 8;
    d.codec = codec_for(option, codec);
    d.option = option;
    if (a->j->on_device) d.device.kind = ESP_CUDA;
    CHECK(a->n < MOST && esp_tensor_add(a->ctx, &d, NULL) == ESP_OK);
    a->j->codec[a->n++] = codec;
}
static int add_option(void *user, const esp__option *o) {
    adding *a = user;
    char text[ESP__TEXT_MAX];
    int gpu = 1;
    for (uint32_t i = 0; i < o->n; i++)
        if ((o->steps[i].kind == ESP__STAGE_COMP || o->steps[i].kind == ESP__STAGE_DECOMP) &&
            o->steps[i].device != ESP_ON_GPU)
            gpu = 0;
    if (!gpu && a->seen++ % 17) return 0;
    esp__option_print(o, text, sizeof text);
    add_tensor(a, codecs[a->n % CODECS], text);
    return 0;
}

static void tree_body(esp_ctx *ctx, void *user) {
    tree_job *j = user;
    adding a = {ctx, j, 0, 0};
    const esp_device_table *table = NULL;
    const esp_device device = {j->on_device ? ESP_CUDA : 0, 0};
    void *self, *grad = NULL, *pinned = NULL, *event = NULL;
    esp_stream stream = ESP_ZERO;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 0, add_option, &a);
    for (int i = 0; i < SUMMED; i++) add_tensor(&a, summed[i], summed_option);
    const uint64_t all = (uint64_t)a.n * ELEMENTS * 4;
    CHECK(ctx->host.device(ctx->host.user, device, &table, &self) == ESP_OK);
    CHECK(table->alloc(self, all, ESP_MEM_DEVICE, &grad) == ESP_OK);
    CHECK(table->alloc(self, all, ESP_MEM_PINNED, &pinned) == ESP_OK);
    CHECK(table->stream_create(self, &stream) == ESP_OK);
    CHECK(table->event_create(self, &event) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < all / 4; i++)
            ((float *)pinned)[i] =
                ((float)((i * 2654435761u + (uint64_t)esp_rank(ctx) * 97u + (uint64_t)step * 31u) % 2003u) - 1001.0f) /
                64.0f;
        CHECK(table->copy(self, grad, pinned, all, stream) == ESP_OK);
        for (uint32_t t = 0; t < a.n; t++)
            CHECK(esp_push(ctx, t, (float *)grad + (uint64_t)t * ELEMENTS, stream) == ESP_OK);
        /* In one step, the results are read in the trainer's stream, without waiting on the CPU. */
        for (uint32_t t = 0; t < a.n && step == 1; t++) CHECK(esp_wait_on(ctx, t, stream) == ESP_OK);
        if (step != 1) CHECK(esp_wait_all(ctx) == ESP_OK);
        CHECK(table->copy(self, pinned, grad, all, stream) == ESP_OK);
        CHECK(table->event_record(self, event, stream) == ESP_OK && table->event_sync(self, event) == ESP_OK);
        if (step == 1) CHECK(esp_wait_all(ctx) == ESP_OK);
        memcpy(j->out + ((uint64_t)esp_rank(ctx) * STEPS + (uint64_t)step) * MOST * ELEMENTS, pinned, all);
    }
    if (esp_rank(ctx) == 0) j->n = a.n;
    table->event_destroy(self, event);
    table->stream_destroy(self, stream);
    table->free_(self, grad, all, ESP_MEM_DEVICE);
    table->free_(self, pinned, all, ESP_MEM_PINNED);
}

TEST(tree) {
    static const esp_plugin_fn entries[1] = {espresso_plugin_v1_cuda};
    const uint64_t floats = (uint64_t)RANKS * STEPS * MOST * ELEMENTS;
    const char *names[MOST];
    float *out[2];
    uint32_t n[2];
    for (int k = 0; k < 2; k++) {
        static tree_job j;
        j = (tree_job){.on_device = k, .out = calloc(floats, sizeof(float))};
        RUN_RANKS(.size = RANKS, .per_machine = 2, .body = tree_body, .user = &j, .config.timeout_ms = 60000,
                  .config.builtin = entries, .config.n_builtin = 1);
        out[k] = j.out;
        n[k] = j.n;
        memcpy(names, j.codec, sizeof names);
    }
    assert_true(n[0] == n[1] && n[0] > 174);
    for (uint64_t i = 0; i < floats; i++)
        if (memcmp(&out[0][i], &out[1][i], 4))
            fail_msg("rank %d, step %d, tensor %d (%s), element %d: %g on the CPU, %g on the device",
                     (int)(i / ELEMENTS / MOST / STEPS), (int)(i / ELEMENTS / MOST % STEPS), (int)(i / ELEMENTS % MOST),
                     names[i / ELEMENTS % MOST], (int)(i % ELEMENTS), (double)out[0][i], (double)out[1][i]);
    free(out[0]);
    free(out[1]);
}
