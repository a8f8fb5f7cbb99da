/* test_rounds.c checks CUDA codecs on the tests' emulator in further cases: matrices of many shapes (powersgd), and
 * payloads of one tensor that differ because they come from several random draws (randomk), are empty, or are
 * damaged. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "tests/cuda/compare.h"

static void fill(pair_part *p, int kind) {
    cf_fill((float *)(void *)p->cpu.at[TW_G] + p->shift, p->count, kind);
    pair_up(p, TW_G);
}

/* ---- payloads that differ ---------------------------------------------------------------------------------------- */
enum { MOST = 150 };
typedef struct payloads {
    unsigned char *cpu[MOST], *cuda[MOST];
    uint64_t bytes[MOST];
    uint32_t n;
} payloads;

static void keep(payloads *all, const pair_part *p, uint32_t last) {
    const uint64_t bytes = p->body[last];
    all->bytes[all->n] = bytes;
    all->cpu[all->n] = malloc(bytes);
    all->cuda[all->n] = pair_take(bytes);
    memcpy(all->cpu[all->n], p->cpu.payload[last], bytes);
    pair_copy(all->cuda[all->n], all->cpu[all->n], bytes, 1);
    all->n++;
}
static void keep_empty(payloads *all) {
    esp_payload_header h;
    memcpy(&h, all->cpu[0], sizeof h);
    h.flags = ESP_PAYLOAD_EMPTY, h.body_bytes = 0, h.aux = 77;
    all->bytes[all->n] = sizeof h;
    all->cpu[all->n] = malloc(sizeof h);
    all->cuda[all->n] = pair_take(sizeof h);
    memcpy(all->cpu[all->n], &h, sizeof h);
    pair_copy(all->cuda[all->n], &h, sizeof h, 1);
    all->n++;
}
static void forget(payloads *all) {
    for (uint32_t i = 0; i < all->n; i++) {
        free(all->cpu[i]);
        pair_give(all->cuda[i], all->bytes[i]);
    }
    all->n = 0;
}
static esp_status decode(const pair_codec *c, pair_part *p, const pair_how *how, const payloads *all, int cuda) {
    const esp_codec *table = cuda ? c->cuda : c->cpu.table;
    void *self = cuda ? c->self : c->cpu.self;
    const uint64_t bytes = pair_scratch(table, self, &p, 1, 0, 1);
    esp_codec_args a = pair_args(c, &p, 1, how, 0, cuda, 1);
    esp_buf scratch = {!bytes ? NULL : cuda ? pair_take(bytes) : aligned_alloc(64, bytes), bytes, {0, 0}};
    a.scratch = bytes ? &scratch : NULL;
    for (uint32_t i = 0; i < all->n; i++) {
        pair_now.payload[i].data.ptr = cuda ? all->cuda[i] : all->cpu[i];
        pair_now.payload[i].data.bytes = all->bytes[i];
    }
    esp_status s = table->decompress(self, &a);
    if (!cuda) return free(scratch.ptr), s;
    const esp_status later = pair_wait();
    if (bytes) pair_give(scratch.ptr, bytes);
    return s ? s : later;
}
static void decode_all(const pair_codec *c, pair_part *p, const payloads *all) {
    pair_how how = {.n_reduced = 1, .n_payloads = all->n, .scale = 0.5f};
    for (how.mode = 0; how.mode < 2; how.mode++) {
        cf_fill((float *)(void *)p->cpu.at[TW_OUT], p->count + p->shift, CF_RANDOM);
        pair_up(p, TW_OUT);
        const esp_status s = decode(c, p, &how, all, 0), d = decode(c, p, &how, all, 1);
        assert_int_equal(s, ESP_OK);
        assert_int_equal(d, ESP_OK);
        pair_same(c->spec, p, "what was decoded", p->cpu.at[TW_OUT], p->cuda.at[TW_OUT], p->cpu.bytes[TW_OUT]);
        pair_same(c->spec, p, "the state", p->cpu.at[TW_STATE], p->cuda.at[TW_STATE], p->cpu.bytes[TW_STATE]);
    }
}

/* Makes the last number of the last payload infinite. This happens in practice if a sum of payloads overflows. */
static void overflow(payloads *all) {
    const float inf = INFINITY;
    unsigned char *at = all->cpu[all->n - 1] + all->bytes[all->n - 1] - sizeof inf;
    memcpy(at, &inf, sizeof inf);
    pair_copy(all->cuda[all->n - 1], all->cpu[all->n - 1], all->bytes[all->n - 1], 1);
}

/* randomk decodes several payloads that were drawn with the same or with different random numbers, and empty ones
 * between them. */
TEST(draws) {
    static const uint64_t sizes[] = {1, 5, 33, 1000, 1100, 9000};
    pair_open("1", 5);
    for (size_t i = 0; i < CF_COUNT(sizes); i++) {
        pair_codec c;
        pair_part p, *list = &p;
        payloads all = {.n = 0};
        pair_how how = {.feedback = 1, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1};
        pair_codec_open(&c, "randomk:ratio=0.4");
        pair_part_make(&p, &c, sizes[i], 1, i % 3);
        for (int n = 0; n < 8; n++) {
            how.step = (uint64_t)(n / 2 % 3);
            fill(&p, n == 5 ? CF_WIDE : n == 6 ? CF_MINUS_ZERO : CF_RANDOM);
            pair_compress(&c, &list, 1, &how);
            pair_same(c.spec, &p, "what is behind the payload", p.cpu.payload[0], p.cuda.payload[0], p.cpu.capacity[0]);
            keep(&all, &p, 0);
            if (n == 1 || n == 2) keep_empty(&all);
            if (n == 1) decode_all(&c, &p, &all);
        }
        decode_all(&c, &p, &all);
        while (all.n < 140) keep(&all, &p, 0); /* more payloads than one kernel launch takes */
        decode_all(&c, &p, &all);
        overflow(&all);
        decode_all(&c, &p, &all);
        forget(&all);
        fill(&p, CF_NAN);
        pair_compress(&c, &list, 1, &how);
        keep(&all, &p, 0);
        decode_all(&c, &p, &all);
        keep_empty(&all);
        free(all.cpu[0]), pair_give(all.cuda[0], all.bytes[0]);
        all.cpu[0] = all.cpu[1], all.cuda[0] = all.cuda[1], all.bytes[0] = all.bytes[1], all.n = 1;
        decode_all(&c, &p, &all);
        forget(&all);
        pair_part_free(&p);
        pair_codec_close(&c);
    }
    pair_close();
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */
typedef struct shape {
    uint64_t rows, cols;
    const char *spec;
} shape;
static const shape shapes[] = {
    {3, 9, "powersgd"},           {1, 100, "powersgd:rank=4"},   {33, 65, "powersgd"},
    {64, 64, "powersgd:rank=4"},  {257, 16, "powersgd:rank=2"},  {513, 31, "powersgd:rank=4"},
    {6, 1024, "powersgd"},        {7, 1025, "powersgd:rank=2"},  {40, 2100, "powersgd:rank=3,start=cold"},
    {4099, 9, "powersgd"},        {1029, 40, "powersgd:rank=5"}, {66, 130, "powersgd:rank=17"},
    {34, 45, "powersgd:rank=22"}, {1100, 3, "powersgd:rank=2"},
};

static void one(const pair_codec *c, const shape *x, int kind, uint64_t shift) {
    pair_part p, *list = &p;
    payloads all = {.n = 0};
    pair_how how = {.feedback = kind != CF_WIDE, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1};
    pair_matrix_make(&p, c, x->rows * x->cols, x->rows, 1, shift);
    for (how.step = 0; how.step < 3; how.step++) {
        fill(&p, how.step == 1 ? kind : CF_RANDOM);
        if (how.step == 2) how.beta = 0.5f, how.gamma = 2;
        pair_compress(c, &list, 1, &how);
        how.mode = ESP_OUT_SUM;
        pair_decompress(c, &list, 1, &how);
        pair_same(c->spec, &p, "state after decoding", p.cpu.at[TW_STATE], p.cuda.at[TW_STATE], p.cpu.bytes[TW_STATE]);
    }
    for (int n = 0; n < 3; n++) {
        fill(&p, CF_RANDOM);
        pair_compress(c, &list, 1, &how);
        keep(&all, &p, 1);
    }
    decode_all(c, &p, &all);
    while (all.n < 70) keep(&all, &p, 1); /* more payloads than one kernel launch takes */
    if (x->rows * x->cols < 6000) decode_all(c, &p, &all);
    forget(&all);
    pair_part_free(&p);
}
TEST(matrices) {
    for (size_t i = 0; i < CF_COUNT(shapes); i++) {
        static const int kinds[] = {CF_RANDOM, CF_EQUAL, CF_NAN, CF_WIDE, CF_LARGE, CF_ZERO, CF_INF};
        pair_codec c;
        pair_open(i % 2 ? "1" : "4", 100 + i);
        pair_codec_open(&c, shapes[i].spec);
        for (size_t k = 0; k < CF_COUNT(kinds); k++)
            if (k == 0 || (shapes[i].rows * shapes[i].cols < 5000 && (i + k) % 3 == 0))
                one(&c, &shapes[i], kinds[k], (i + k) % 4);
        pair_codec_close(&c);
        pair_close();
    }
}

/* One list has matrices and tensors that are not matrices. */
TEST(mixed) {
    static const uint64_t rows[] = {0, 30, 300, 0, 1, 5, 700, 0}, cols[] = {90, 40, 7, 3000, 200, 2, 13, 0};
    for (int feedback = 0; feedback < 2; feedback++) {
        pair_codec c;
        pair_part part[8], *list[8];
        pair_how how = {.feedback = feedback, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1};
        pair_open(feedback ? "2" : "4", 7);
        pair_codec_open(&c, "powersgd:rank=3");
        for (uint32_t t = 0; t < 8; t++) {
            pair_matrix_make(&part[t], &c, cols[t] * (rows[t] ? rows[t] : 1), rows[t], 1, t % 3);
            list[t] = &part[t];
        }
        for (how.step = 0; how.step < 3; how.step++) {
            for (uint32_t t = 0; t < 8; t++) {
                cf_fill((float *)(void *)part[t].cpu.at[TW_E], part[t].cpu.bytes[TW_E] / 4, CF_RANDOM);
                pair_up(&part[t], TW_E);
                fill(&part[t], how.step == 1 && t % 4 == 3 ? CF_NAN : how.step == 2 && t == 6 ? CF_INF : CF_RANDOM);
            }
            pair_compress(&c, list, 8, &how);
            how.mode = (uint32_t)how.step % 2;
            pair_decompress(&c, list, 8, &how);
            for (uint32_t t = 0; t < 8; t++)
                pair_same(c.spec, &part[t], "state after decoding", part[t].cpu.at[TW_STATE], part[t].cuda.at[TW_STATE],
                          part[t].cpu.bytes[TW_STATE]);
        }
        for (uint32_t t = 0; t < 8; t++) pair_part_free(&part[t]);
        pair_codec_close(&c);
        pair_close();
    }
}

TEST(large) {
    pair_codec c;
    pair_part p, *list = &p;
    pair_how how = {.feedback = 1, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1};
    esp_payload_header h;
    pair_open("4", 3);
    pair_codec_open(&c, "powersgd");
    pair_matrix_make(&p, &c, 600, 300, 1, 0);
    for (uint64_t i = 0; i < p.count; i++) ((float *)(void *)p.cpu.at[TW_G])[i] = 1.5e38f;
    pair_up(&p, TW_G);
    pair_compress(&c, &list, 1, &how);
    memcpy(&h, p.cpu.payload[0], sizeof h);
    assert_int_equal(h.flags, 0);
    memcpy(&h, p.cpu.payload[1], sizeof h);
    assert_int_equal(h.flags, ESP_PAYLOAD_NONFINITE);
    pair_decompress(&c, &list, 1, &how);
    pair_part_free(&p);
    pair_codec_close(&c);
    pair_close();
}

TEST(before) {
    for (int round = 0; round < 60; round++) {
        pair_codec c;
        pair_part p, *list = &p;
        pair_how how = {.feedback = 1, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1, .mode = round % 2};
        pair_open("2", (uint64_t)round);
        pair_codec_open(&c, "powersgd:rank=2");
        pair_matrix_make(&p, &c, 50 * 30, 50, 1, 0);
        fill(&p, CF_RANDOM);
        pair_compress(&c, &list, 1, &how);
        unsigned char *x = p.cpu.payload[0];
        if (round < 40)
            x[round] ^= (unsigned char)(1u << cf_random() % (round == 6 ? 2 : 8));
        else if (round == 44 || round == 46)
            x[6] |= ESP_PAYLOAD_NONFINITE;
        else if (round == 48) /* the buffer lacks a byte */
            p.cpu.capacity[0] = p.cuda.capacity[0] = p.body[0] - 1;
        else
            ((float *)(void *)x)[ESP_PAYLOAD_HEADER / 4 + (round < 50 ? cf_random() % 100 : 99)] =
                round % 3 ? cf_number(CF_WIDE) : INFINITY;
        pair_copy(p.cuda.payload[0], x, p.body[0], 1);
        cf_fill((float *)(void *)p.cpu.at[TW_OUT], p.count, CF_RANDOM);
        pair_up(&p, TW_OUT);
        if (round % 4 < 2) {
            const esp_status cpu = pair_on_cpu(&c, &list, 1, &how, 1, 0), cuda = pair_on_cuda(&c, &list, 1, &how, 1, 0);
            if (cpu != cuda) fail_msg("case %d: round 1: the CPU says %d, CUDA %d", round, cpu, cuda);
            if (cpu == ESP_OK) pair_same(c.spec, &p, "the payload", p.cpu.payload[1], p.cuda.payload[1], p.body[1]);
            pair_same(c.spec, &p, "the residual", p.cpu.at[TW_E], p.cuda.at[TW_E], p.cpu.bytes[TW_E]);
        } else {
            const esp_status cpu = pair_on_cpu(&c, &list, 1, &how, 0, 1), cuda = pair_on_cuda(&c, &list, 1, &how, 0, 1);
            if (cpu != cuda) fail_msg("case %d: decompress: the CPU says %d, CUDA %d", round, cpu, cuda);
            pair_same(c.spec, &p, "the output", p.cpu.at[TW_OUT], p.cuda.at[TW_OUT], p.cpu.bytes[TW_OUT]);
            pair_same(c.spec, &p, "state", p.cpu.at[TW_STATE], p.cuda.at[TW_STATE], p.cpu.bytes[TW_STATE]);
        }
        pair_part_free(&p);
        pair_codec_close(&c);
        pair_close();
    }
}

/* The planner must know that powersgd's orthonormal basis takes a GPU long: one block adds, number after number. */
TEST(price_of_a_basis) {
    pair_codec c;
    pair_open("4", 1);
    pair_codec_open(&c, "powersgd:rank=32");
    const esp_tensor like = {sizeof like, ESP_F32, 7, 25088 * 4096, {NULL, 0, {0, 0}}, 25088, 4096};
    esp_codec_model m = {.struct_size = sizeof m};
    assert_int_equal(c.cpu.table->model(c.cpu.self, &like, 1, (esp_device){ESP_CUDA, 0}, &m), ESP_OK);
    assert_true(m.n_times > 0 && m.times[0].compress_ns > 40e6 && m.times[0].decompress_ns > 40e6);
    pair_codec_close(&c);
    pair_close();
}

int main(void) { return cuda_missing() ? 77 : test_main(); }
