/* test_lists.c checks codecs with ESP_CODEC_LISTS, which compress several pieces of a tensor in one call. The results
 * must have the same bits as with one call for each piece. */
/* runs: tsan-long */
#include "tests/lib/test.h"
#include "tests/lib/rounds_codec.h"
#include "codecs/common/parts.h"

enum { RANKS = 4, STEPS = 3 };
static atomic_int calls, parts, longest;

/* ---- topk and a codec that needs two exchanges, each with and without ESP_CODEC_LISTS ---------------------------- */
static esp_codec topk;

static void look(const esp_codec_args *a) {
    atomic_fetch_add(&calls, 1);
    atomic_fetch_add(&parts, (int)a->n_tensors);
    int most = atomic_load(&longest);
    while ((int)a->n_tensors > most && !atomic_compare_exchange_weak(&longest, &most, (int)a->n_tensors)) {
    }
    CHECK(a->n_tensors >= 1);
    for (uint32_t t = 0; t + 1 < a->n_tensors; t++) {
        const uint64_t n = a->tensor[t]->count;
        CHECK(a->offset[t + 1] == a->offset[t] + n || !a->tensor[t + 1]->count);
        CHECK(a->tensor[t + 1]->key == a->tensor[t]->key);
        CHECK((float *)a->tensor[t]->data.ptr + n == a->tensor[t + 1]->data.ptr || !a->tensor[t + 1]->count);
        CHECK(a->payload[t].data.ptr != a->payload[t + 1].data.ptr);
        CHECK(!a->payload[t].used || a->payload[t].used != a->payload[t + 1].used);
        if (a->residual) CHECK(a->residual[t].bytes == 4 * n);
    }
}

static esp_status topk_call(void *self, const esp_codec_args *a) {
    look(a);
    return topk.compress(self, a);
}
static esp_status topk_back(void *self, const esp_codec_args *a) {
    look(a);
    return topk.decompress(self, a);
}
static esp_status shared_one(const void *self, const esp_host *h, const esp_codec_args *a) {
    return rounds_compress((void *)(uintptr_t)self, a);
}
static esp_status shared_one_back(const void *self, const esp_host *h, const esp_codec_args *a) {
    return rounds_decompress((void *)(uintptr_t)self, a);
}
static esp_status shared_call(void *self, const esp_codec_args *a) {
    look(a);
    return parts_run(self, ((const rounds_self *)self)->host, a, 1, shared_one);
}
static esp_status shared_back(void *self, const esp_codec_args *a) {
    look(a);
    return parts_run(self, ((const rounds_self *)self)->host, a, 1, shared_one_back);
}

static const char *const names[] = {"topk_one", "topk_list", "host_one", "host_list", "rounds_one", "rounds_list"};
enum { CODECS = 6 };
static const esp_plugin *entry(const esp_host *h) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static esp_codec tables[CODECS];
    static const esp_codec *const list[] = {&tables[0], &tables[1], &tables[2], &tables[3], &tables[4], &tables[5]};
    static const esp_plugin plugin = {sizeof plugin, CODECS, 0, 0, list, NULL, NULL};
    pthread_mutex_lock(&once);
    for (int k = 0; k < CODECS && !tables[CODECS - 1].name; k++) {
        topk = *esp__registry_codec(h->user, "topk");
        esp_codec c = k < 4 ? topk : rounds_shared2;
        c.caps = (c.caps & ~(uint64_t)ESP_CODEC_LISTS) | (k % 2 ? (uint64_t)ESP_CODEC_LISTS : 0);
        /* the library computes residuals for codecs without this flag */
        if (k == 2 || k == 3) c.caps &= ~(uint64_t)ESP_CODEC_FUSED_RESIDUAL;
        c.compress = k < 4 ? topk_call : shared_call;
        c.decompress = k < 4 ? topk_back : shared_back;
        c.name = names[k];
        tables[k] = c;
    }
    pthread_mutex_unlock(&once);
    return &plugin;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */
typedef struct task {
    const char *codec, *option;
    uint64_t count;
    float *out; /* results of rank 0, as [step][element] */
    atomic_int ops, ranges;
} task;

/* Computes how many calls a step needs. If the library computes residuals, it decodes each payload once more. */
static void expect(const esp_ctx *ctx, task *k) {
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++) {
        const esp__op *op = &ctx->active.program.ops[i];
        const int times = op->kind == ESP__OP_COMPRESS && strstr(k->codec, "host") ? 2 : 1;
        if (op->kind != ESP__OP_COMPRESS && op->kind != ESP__OP_DECOMPRESS) continue;
        k->ops += times;
        k->ranges += times * (int)op->codec.n_ranges;
    }
}

static void body(esp_ctx *ctx, void *user) {
    task *k = user;
    esp_stream here = ESP_ZERO;
    float *g = malloc((k->count + 1) * sizeof *g);
    esp_tensor_desc d = {.name = "w", .count = k->count, .codec = k->codec, .option = k->option};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    expect(ctx, k);
    for (int step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < k->count; i++)
            g[i] = (float)((int)((i * 2654435761u + (uint64_t)step * 97u + (uint64_t)esp_rank(ctx) * 31u) % 2003u) -
                           1001) /
                   64.0f;
        if (step == 1 && esp_rank(ctx) == 2) g[k->count / 2] = NAN;
        CHECK(esp_push(ctx, 0, g, here) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (!esp_rank(ctx)) memcpy(k->out + (uint64_t)step * k->count, g, k->count * sizeof *g);
    }
    free(g);
}

static void run(task *k) {
    static const esp_plugin_fn entries[] = {entry};
    k->out = calloc(STEPS * k->count, sizeof *k->out);
    k->ops = k->ranges = 0;
    calls = parts = longest = 0;
    RUN_RANKS(.size = RANKS, .per_machine = 2, .body = body, .user = k, .config.builtin = entries,
              .config.n_builtin = 1, .config.timeout_ms = 30000);
}

#define CUT "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu"
#define ROOTED "comp@cpu > flat.gather > decomp@cpu > comp@cpu > flat.broadcast > decomp@cpu"
#define TREE                                                                                                           \
    "comp@cpu > intra.alltoall > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > intra.allgather > "        \
    "decomp@cpu"
#define MIXED                                                                                                          \
    "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > "  \
    "decomp@cpu > intra.allgather"

/* Here the last decompression has two pieces of the tensor, with two payloads each. */
#define SPREAD "intra.reduce_scatter > comp@cpu > inter.allgather > intra.allgather > decomp@cpu"

/* Of 3 elements, some pieces get none. Of 300000, a piece is too little work for all threads, but a list is enough. */
TEST(one_call_a_list) {
    static const char *const options[] = {CUT, ROOTED, TREE, MIXED, SPREAD};
    static const uint64_t counts[] = {1, 3, 997, 300000};
    int most = 0;
    for (int o = 0; o < 5; o++)
        for (int n = 0; n < 4; n++)
            for (int k = 0; k < CODECS; k += 2) {
                task one = {.codec = names[k], .option = options[o], .count = counts[n]};
                task list = {.codec = names[k + 1], .option = options[o], .count = counts[n]};
                run(&one);
                assert_int_equal(parts, calls);
                assert_true(longest <= 1);
                const int alone = parts;
                run(&list);
                /* If all pieces contain NaN or infinity, the library does not decode them to compute residuals. */
                if (strstr(list.codec, "host")) {
                    assert_true(calls <= STEPS * list.ops && calls >= (STEPS - 1) * list.ops);
                } else {
                    assert_int_equal(calls, STEPS * list.ops);
                    assert_int_equal(parts, STEPS * list.ranges);
                    assert_int_equal(parts, alone);
                }
                if (longest > most) most = longest;
                if (memcmp(one.out, list.out, STEPS * counts[n] * sizeof(float)))
                    fail_msg("%s, %d elements, codec %s: other bits than one call for each part", options[o],
                             (int)counts[n], list.codec);
                free(one.out);
                free(list.out);
            }
    assert_int_equal(most, RANKS);
}

/* One of many small payloads is damaged. The caller gets the error's text, whichever thread has found the damage. */
TEST(errors) {
    static const esp_plugin_fn entries[] = {entry};
    enum { N = 4, COUNT = 40000 };
    esp_ctx *ctx = NULL;
    esp__codec *codec = NULL;
    esp_bound b;
    esp_config config = {.size = 1, .machine = 1, .backend = "loop", .builtin = entries, .n_builtin = 1};
    assert_int_equal(esp_open(&config, &ctx), ESP_OK);
    assert_int_equal(esp__codec_make(ctx, "topk:ratio=0.1", NULL, &codec), ESP_OK);
    const esp_tensor like = esp__codec_like(COUNT, 0, 0);
    assert_int_equal(esp__codec_bound_of(ctx, codec, &like, 0, 1, &b), ESP_OK);
    float *x = calloc((size_t)N * COUNT, sizeof *x);
    char *payload = calloc(N, b.payload_bytes), *scratch = aligned_alloc(64, N * ((b.scratch_bytes + 63) / 64 * 64));
    void *room = malloc(esp__call_list_bytes(N));
    uint64_t used[N];
    for (int i = 0; i < N * COUNT; i++) x[i] = (float)(i % 999);
    for (int back = 0; back < 2; back++) {
        esp__codec_list l;
        esp__codec_call c;
        esp__call_list_place(&l, room, N);
        for (uint32_t t = 0; t < N; t++) {
            esp__call_begin(&c, codec, esp__host_stream(), x + t * COUNT, COUNT);
            c.offset = t * COUNT;
            esp__call_payload(&c, payload + t * b.payload_bytes, b.payload_bytes, &used[t]);
            esp__call_scratch(&c, scratch, N * ((b.scratch_bytes + 63) / 64 * 64));
            esp__call_list_add(&l, &c);
        }
        esp__call_list_take(&c, &l);
        if (!back) assert_int_equal(esp__call_compress(&c, NULL, NULL), ESP_OK);
        if (!back) continue;
        assert_int_equal(esp__call_decompress(&c), ESP_OK);
        payload[2 * b.payload_bytes] ^= 1;
        esp__plugin_detail_clear();
        assert_int_equal(esp__call_decompress(&c), ESP_E_CORRUPT);
        assert_non_null(strstr(esp__plugin_detail(), "header is corrupt"));
    }
    free(x), free(payload), free(scratch), free(room);
    esp__codec_free(ctx, codec);
    esp_close(ctx);
}
