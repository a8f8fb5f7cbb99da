/* test_codecs.c checks that CUDA codecs on the tests' emulator give the CPU's bytes: payloads, residuals, state and
 * decoded numbers, for all kinds of inputs, sizes from 0 to 70,000, lists of tensors, grid sizes, and orders of threads
 * and blocks. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "tests/cuda/compare.h"

static const char *const specs[] = {"none",
                                    "efsignsgd",
                                    "fp16",
                                    "bf16",
                                    "twobit",
                                    "twobit:threshold=0.01",
                                    "twobit:relative=1.2",
                                    "int8",
                                    "int8:block=32",
                                    "int8:block=512",
                                    "int8:shared=1",
                                    "int4",
                                    "int4:block=64",
                                    "int4:block=1024",
                                    "topk",
                                    "topk:ratio=0.3",
                                    "dgc",
                                    "dgc:ratio=0.002,warmup=4,nesterov=1",
                                    "dgc:ratio=0.1,masking=0",
                                    "randomk:ratio=0.01",
                                    "randomk:ratio=0.3,unbiased=1",
                                    "threshold:value=0.5",
                                    "threshold:value=1.2",
                                    "threshold:value=1000",
                                    "powersgd:rank=2",
                                    "chunktopk",
                                    "chunktopk:chunk=512,k=9",
                                    "chunktopk:chunk=16,k=3",
                                    "chunktopk:chunk=1024,k=300,decay=0.5",
                                    "fp8",
                                    "fp8:block=32,mantissa=2",
                                    "dynamic8",
                                    "dynamic8:block=64",
                                    "maxmin",
                                    "maxmin:bits=3,block=64,random=1",
                                    "maxmin:bits=7,block=512",
                                    "mxnet1bit",
                                    "mxnet1bit:threshold=0.3",
                                    "signsgd",
                                    "signum",
                                    "signum:momentum=0",
                                    "onebit",
                                    "onebit:block=32",
                                    "natural",
                                    "terngrad",
                                    "terngrad:block=32,clip=0",
                                    "qsgd",
                                    "qsgd:bits=5,block=256,norm=0",
                                    "qsgd:bits=2,block=32",
                                    "inceptionn",
                                    "inceptionn:bound=3",
                                    "inceptionn:bound=20",
                                    "threelc",
                                    "threelc:s=1.9",
                                    "sketchml",
                                    "sketchml:bits=1",
                                    "sketchml:bits=3",
                                    "sketchml:bits=8",
                                    "adaptive",
                                    "adaptive:ratio=0.3",
                                    "adaptive:ratio=1",
                                    "lossless"};

/* Returns 1 if the codec was already tested with other parameters, so that some of the cases suffice. */
static int again(size_t s) {
    const size_t n = strcspn(specs[s], ":");
    return s > 0 && strcspn(specs[s - 1], ":") == n && !strncmp(specs[s - 1], specs[s], n);
}

/* Returns 1 under sanitizers, which are slow, so that only some cases run. TEST_ALL runs all. */
static int quick(void) {
#if defined(__SANITIZE_ADDRESS__)
    return 1;
#elif defined(__has_feature)
#if __has_feature(memory_sanitizer)
    return 1;
#endif
#endif
    return getenv("TEST_ALL") == NULL;
}
static int left_out_name(const char *spec) {
    const char *some = getenv("CODECS");
    char name[64];
    int n;
    if (!some) return 0;
    for (; sscanf(some, "%63s%n", name, &n) == 1; some += n)
        if (strstr(spec, name)) return 0;
    return 1;
}
static int left_out(size_t s) { return left_out_name(specs[s]) || (again(s) && quick()); }

TEST(all_codecs) {
    const esp_plugin *p = espresso_plugin_v1_cuda(&pair_host);
    for (uint32_t i = 0; i < p->n_codecs; i++) {
        int found = 0;
        for (size_t k = 0; k < CF_COUNT(specs); k++)
            found |= strcspn(specs[k], ":") == strlen(p->codecs[i]->name) &&
                     !strncmp(specs[k], p->codecs[i]->name, strlen(p->codecs[i]->name));
        if (!found)
            fail_msg("'%s' has a CUDA implementation, but is not among the specs of this test", p->codecs[i]->name);
    }
}

/* The largest numbers of f32, which become infinite if they are rounded to fewer bits. */
enum { HUGE_NUMBERS = CF_KINDS, KINDS };
static void fill(pair_part *p, int kind) {
    static const float huge[] = {0x1.FFFFFEp127f, -0x1.FFFFFEp127f, 0x1.FEp127f, 0x1.FFp127f, -0x1.FEFFFEp127f, 0, -1};
    float *g = (float *)(void *)p->cpu.at[TW_G] + p->shift;
    if (kind == HUGE_NUMBERS)
        for (uint64_t i = 0; i < p->count; i++) g[i] = huge[(i + p->count) % CF_COUNT(huge)];
    else
        cf_fill(g, p->count, kind);
    pair_up(p, TW_G);
}

/* Compresses one tensor in two steps, then decodes the payload in several ways. */
static void one(const pair_codec *c, uint64_t count, int kind, int feedback, uint32_t n_reduced) {
    pair_part p, *list = &p;
    pair_how how = {.feedback = feedback,
                    .beta = 1,
                    .gamma = 1,
                    .n_reduced = n_reduced,
                    .n_summed = count % 2 ? 3 : 1,
                    .n_payloads = 1};
    how.flags = feedback && cf_has(&c->cpu, ESP_CODEC_OWN_FEEDBACK) ? ESP_ARG_OWN_MEMORY : 0;
    pair_part_make(&p, c, count, n_reduced, count % 3);
    for (how.step = 0; how.step < 2; how.step++) {
        fill(&p, how.step ? CF_RANDOM : kind);
        if (how.step && feedback && !how.flags) how.beta = 0.5f, how.gamma = 2;
        pair_compress(c, &list, 1, &how);
        how.mode = ESP_OUT_SET;
        pair_decompress(c, &list, 1, &how);
    }
    fill(&p, kind);
    pair_compress(c, &list, 1, &how);
    if (n_reduced == 1) {
        how.mode = ESP_OUT_SUM, how.n_payloads = 3, how.scale = 0.25f;
        pair_decompress(c, &list, 1, &how);
        how.mode = ESP_OUT_SET;
        pair_decompress(c, &list, 1, &how);
    }
    pair_part_free(&p);
}

static const uint64_t sizes[] = {0,   1,   2,    7,    8,    31,   32,   33,   96,  127,
                                 128, 129, 1000, 1023, 1024, 1025, 4095, 4096, 4097};
static const uint64_t large[] = {8192, 10007, 65535, 65536, 65537, 70000};

TEST(inputs) {
    pair_open("4", 1);
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        if (left_out(s)) continue;
        pair_codec_open(&c, specs[s]);
        const int fused = cf_has(&c.cpu, ESP_CODEC_FUSED_RESIDUAL);
        for (size_t i = 0; i < CF_COUNT(sizes); i++)
            for (int kind = 0; kind < KINDS; kind++)
                for (int feedback = 0; feedback <= fused; feedback++)
                    if ((sizes[i] < 40 && !again(s) && !quick()) || (i + (size_t)kind + s) % (quick() ? 9 : 4) == 0)
                        one(&c, sizes[i], kind, feedback, 1);
        for (size_t i = again(s) ? 4 : 0; i < CF_COUNT(large); i += quick() ? 2 : 1)
            one(&c, large[i], (int)((i + s) % CF_KINDS), (int)i & fused, 1);
        pair_codec_close(&c);
    }
    pair_close();
}

TEST(last_number) {
    static const uint64_t ends[] = {1, 33, 257, 513, 1025, 2049, 4097, 8193, 65537};
    pair_open("4", 9);
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        if (left_out_name(specs[s]) || (again(s) && strcmp(specs[s], "int8:shared=1") != 0)) continue;
        pair_codec_open(&c, specs[s]);
        const int fused = cf_has(&c.cpu, ESP_CODEC_FUSED_RESIDUAL);
        const int forms = cf_has(&c.cpu, ESP_CODEC_NEEDS_MATRIX) ? 2 : 1;
        for (size_t i = 0; i < CF_COUNT(ends) * forms; i++) {
            const uint64_t n = ends[i / forms];
            pair_part p, *list = &p;
            pair_how how = {.feedback = fused, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1};
            how.flags = fused && cf_has(&c.cpu, ESP_CODEC_OWN_FEEDBACK) ? ESP_ARG_OWN_MEMORY : 0;
            if (i % forms)
                pair_matrix_make(&p, &c, n, 0, 1, 0);
            else
                pair_part_make(&p, &c, n, 1, 0);
            float *g = (float *)(void *)p.cpu.at[TW_G];
            for (how.step = 0; how.step < 5; how.step++) {
                if (how.step % 2) {
                    memset(g, 0, n * sizeof *g);
                    g[n - 1] = how.step == 1 ? NAN : 3.0f;
                } else {
                    cf_fill(g, n, CF_RANDOM);
                }
                if (how.step < 2) cf_fill((float *)(void *)p.cpu.at[TW_E], n, CF_RANDOM);
                pair_up(&p, TW_E);
                pair_up(&p, TW_G);
                pair_compress(&c, &list, 1, &how);
                pair_decompress(&c, &list, 1, &how);
            }
            pair_part_free(&p);
        }
        pair_codec_close(&c);
    }
    pair_close();
}

TEST(reduced) {
    pair_open("3", 2);
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        if (left_out(s)) continue;
        pair_codec_open(&c, specs[s]);
        for (uint32_t n = 2; n < 1000 && cf_has(&c.cpu, ESP_CODEC_REDUCIBLE); n *= 20)
            for (int kind = 0; kind < CF_KINDS; kind++) one(&c, 1200 + n, kind, 1, n);
        pair_codec_close(&c);
    }
    pair_close();
}

TEST(lists) {
    static const char *const sms[] = {"1", "2", "4"};
    for (uint64_t seed = 0; seed < (quick() ? 2 : 4); seed++) {
        pair_open(sms[seed % 3], 10 + seed);
        for (size_t s = 0; s < CF_COUNT(specs); s++) {
            pair_codec c;
            pair_part part[40], *list[40];
            const uint32_t n = seed % 2 ? 40 : 5;
            if (left_out(s) || (again(s) && seed > 1)) continue;
            pair_how how = {.feedback = seed % 3 != 0, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1};
            pair_codec_open(&c, specs[s]);
            how.feedback &= cf_has(&c.cpu, ESP_CODEC_FUSED_RESIDUAL);
            for (uint32_t t = 0; t < n; t++) {
                pair_part_make(&part[t], &c, t == 3 ? 0 : n == 5 ? 5000 + 977 * t : 1 + cf_random() % 700, 1, t % 4);
                list[t] = &part[t];
            }
            for (how.step = 0; how.step < 2; how.step++) {
                for (uint32_t t = 0; t < n; t++) fill(&part[t], t % 5 == 4 ? (int)t % CF_KINDS : CF_RANDOM);
                pair_compress(&c, list, n, &how);
            }
            how.n_payloads = 4, how.mode = seed % 2 ? ESP_OUT_SUM : ESP_OUT_SET;
            pair_decompress(&c, list, n, &how);
            how.n_payloads = 300; /* more payloads than one kernel launch takes */
            if (seed == 1) pair_decompress(&c, list, 2, &how);
            for (uint32_t t = 0; t < n; t++) pair_part_free(&part[t]);
            pair_codec_close(&c);
        }
        pair_close();
    }
}

/* Compresses and decompresses a list. Returns the largest number of blocks that a tensor got. */
static uint32_t most_blocks(const pair_codec *c, pair_part *const *list, uint32_t n) {
    const pair_how how = {.beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SET};
    (void)cuda_host_widest();
    pair_compress(c, list, n, &how);
    const uint32_t most = cuda_host_widest();
    pair_decompress(c, list, n, &how);
    return most * 1000 + cuda_host_widest();
}
/* A large tensor in a list of small ones gets as many blocks as alone. */
TEST(large_in_list) {
    enum { N = 9, LARGE = 6 };
    pair_open("1", 30);
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        pair_part part[N], *list[N];
        if (left_out(s) || again(s)) continue;
        pair_codec_open(&c, specs[s]);
        for (uint32_t t = 0; t < N; t++) {
            pair_part_make(&part[t], &c, t == LARGE ? 40000 : 100 + t, 1, 0);
            fill(list[t] = &part[t], CF_RANDOM);
        }
        assert_int_equal(most_blocks(&c, list, N), most_blocks(&c, list + LARGE, 1));
        for (uint32_t t = 0; t < N; t++) pair_part_free(&part[t]);
        pair_codec_close(&c);
    }
    pair_close();
}

static void one_nan(float *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (x[i] != x[i]) x[i] = NAN;
}
/* Decodes a damaged payload with both implementations. Status and results must be equal, except for the bits of
 * NaNs. */
static void decode_damaged(const pair_codec *c, pair_part *p, const pair_how *how, int round) {
    float *out = (float *)(void *)p->cpu.at[TW_OUT];
    cf_fill(out, p->count, CF_RANDOM);
    pair_up(p, TW_OUT);
    const esp_status cpu = pair_on_cpu(c, &p, 1, how, 0, 1), cuda = pair_on_cuda(c, &p, 1, how, 0, 1);
    if (cpu != cuda)
        fail_msg("%s: case %d: the CPU says '%s', CUDA '%s'", c->spec, round, pair_status(cpu), pair_status(cuda));
    one_nan(out, p->count);
    if (cf_has(&c->cpu, ESP_CODEC_NEEDS_MATRIX)) {
        float *any = malloc(p->count * 4 + 1);
        pair_copy(any, p->cuda.at[TW_OUT], p->count * 4, 0);
        one_nan(any, p->count);
        pair_copy(p->cuda.at[TW_OUT], any, p->count * 4, 1);
        free(any);
    }
    pair_same(c->spec, p, "after damage: the output", p->cpu.at[TW_OUT], p->cuda.at[TW_OUT], p->count * 4);
}
/* Decoding several payloads adds them in their order, because floating-point sums depend on it. */
TEST(orders) {
    enum { FROM = 5 };
    pair_open("1", 7);
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        pair_part part[FROM], *list[FROM];
        pair_how how = {.n_reduced = 1, .n_payloads = FROM, .from = list, .n_from = FROM};
        pair_codec_open(&c, specs[s]);
        for (int t = 0; t < FROM && c.cpu.traits.n_rounds == 1; t++) {
            list[t] = &part[t];
            pair_part_make(&part[t], &c, 3001, 1, 1);
            fill(&part[t], CF_RANDOM);
            pair_compress(&c, &list[t], 1, &how);
        }
        for (int set = 0; set < 2 && c.cpu.traits.n_rounds == 1; set++) {
            how.mode = set ? ESP_OUT_SET : ESP_OUT_SUM;
            pair_decompress(&c, list, 1, &how);
        }
        for (int t = 0; t < FROM && c.cpu.traits.n_rounds == 1; t++) pair_part_free(&part[t]);
        pair_codec_close(&c);
    }
    pair_close();
}

/* One payload more than a kernel launch takes: the last one must be added too. */
TEST(many_payloads) {
    static const uint32_t numbers[] = {65, 97, 193};
    pair_open("2", 11);
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        pair_part p, *list = &p;
        pair_how how = {.n_reduced = 1, .n_payloads = 1};
        if (left_out(s) || again(s)) continue;
        pair_codec_open(&c, specs[s]);
        pair_part_make(&p, &c, 300, 1, 0);
        fill(&p, CF_RANDOM);
        pair_compress(&c, &list, 1, &how);
        for (size_t i = 0; i < CF_COUNT(numbers); i++) {
            how.n_payloads = numbers[i], how.mode = i % 2 ? ESP_OUT_SUM : ESP_OUT_SET;
            pair_decompress(&c, &list, 1, &how);
        }
        pair_part_free(&p);
        pair_codec_close(&c);
    }
    pair_close();
}

/* A damaged payload is refused, and the output unchanged, or it is decoded as on the CPU. After an error, every
 * later call of the device fails, so each case opens it again. */
TEST(damage) {
    for (size_t s = 0; s < CF_COUNT(specs); s++)
        for (int round = 0; round < 60 && !left_out(s); round += quick() ? 5 : again(s) ? 2 : 1) {
            pair_codec c;
            pair_part p, *list = &p;
            pair_how how = {.n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SUM};
            pair_open("2", (uint64_t)round);
            pair_codec_open(&c, specs[s]);
            const uint32_t last = c.cpu.traits.n_rounds - 1;
            pair_part_make(&p, &c, round % 2 ? 301 : 5001, 1, 0);
            fill(&p, CF_RANDOM);
            pair_compress(&c, &list, 1, &how);
            unsigned char *x = p.cpu.payload[last];
            const uint64_t bytes = p.body[last];
            if (round < 20 && round < (int)ESP_PAYLOAD_HEADER / 2)
                x[(round * 2 + (int)(cf_random() % 2)) % 40] ^= (unsigned char)(1u << cf_random() % 8);
            else if (bytes > ESP_PAYLOAD_HEADER + 8 && round % 10 == 9)
                memset(x + ESP_PAYLOAD_HEADER + cf_random() % (bytes - ESP_PAYLOAD_HEADER - 4) / 4 * 4, 0xFF, 4);
            else if (bytes > ESP_PAYLOAD_HEADER && round % 3 == 2)
                x[bytes - 1 - cf_random() % 2] ^= (unsigned char)(1 + cf_random() % 255);
            else if (bytes > ESP_PAYLOAD_HEADER)
                x[ESP_PAYLOAD_HEADER + cf_random() % (bytes - ESP_PAYLOAD_HEADER)] ^=
                    (unsigned char)(1 + cf_random() % 255);
            if (round % 7 == 6) p.body[last] -= 1 + cf_random() % (bytes - ESP_PAYLOAD_HEADER);
            pair_copy(p.cuda.payload[last], x, bytes, 1);
            decode_damaged(&c, &p, &how, round);
            pair_part_free(&p);
            pair_codec_close(&c);
            pair_close();
        }
}

/* Sets all bits of one 32-bit word of a payload, for each word in turn. Both implementations must agree on it. */
TEST(each_word) {
    for (size_t s = 0; s < CF_COUNT(specs); s++)
        for (uint64_t word = 0, words = 1; word < words && !left_out(s) && !again(s); word += quick() ? 3 : 1) {
            pair_codec c;
            pair_part p, *list = &p;
            pair_how how = {.n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SUM};
            pair_open("2", word);
            pair_codec_open(&c, specs[s]);
            const uint32_t last = c.cpu.traits.n_rounds - 1;
            pair_part_make(&p, &c, 300, 1, 0);
            fill(&p, CF_RANDOM);
            pair_compress(&c, &list, 1, &how);
            words = (p.body[last] - ESP_PAYLOAD_HEADER) / 4;
            if (words > 100) words = 100;
            memset(p.cpu.payload[last] + ESP_PAYLOAD_HEADER + 4 * word, 0xFF, 4);
            pair_copy(p.cuda.payload[last], p.cpu.payload[last], p.body[last], 1);
            decode_damaged(&c, &p, &how, (int)word);
            pair_part_free(&p);
            pair_codec_close(&c);
            pair_close();
        }
}

TEST(late_damage) {
    enum { PARTS = 9, COUNT = 40001 };
    for (size_t s = 0; s < CF_COUNT(specs); s++)
        for (int round = 0; round < 4 && !left_out(s); round++) {
            pair_codec c;
            pair_part part[PARTS], *list[PARTS];
            pair_how how = {.n_reduced = 1, .n_payloads = 1};
            pair_open("1", (uint64_t)round);
            pair_codec_open(&c, specs[s]);
            for (uint32_t t = 0; t < PARTS; t++) {
                pair_part_make(&part[t], &c, t ? t : COUNT, 1, 0);
                fill(&part[t], CF_RANDOM);
                list[t] = &part[t];
            }
            pair_compress(&c, list, PARTS, &how);
            const uint32_t last = c.cpu.traits.n_rounds - 1;
            const uint64_t bytes = part[0].body[last];
            unsigned char *x = part[0].cpu.payload[last] + bytes / 2 + cf_random() % (bytes / 2 - 4);
            for (int i = 0; i < 4; i++) x[i] ^= 0x55;
            pair_copy(part[0].cuda.payload[last], part[0].cpu.payload[last], bytes, 1);
            const esp_status cpu = pair_on_cpu(&c, list, PARTS, &how, 0, 1);
            const esp_status cuda = pair_on_cuda(&c, list, PARTS, &how, 0, 1);
            if (cpu != cuda)
                fail_msg("%s: case %d: the CPU says '%s', CUDA '%s'", specs[s], round, pair_status(cpu),
                         pair_status(cuda));
            for (uint32_t t = 0; t < PARTS; t++) pair_part_free(&part[t]);
            pair_codec_close(&c);
            pair_close();
        }
}
TEST(damaged_rounds) {
    for (size_t s = 0; s < CF_COUNT(specs); s++)
        for (int round = 0; round < 60 && !left_out(s); round += quick() ? 5 : 1) {
            pair_codec c;
            pair_part p, *list = &p;
            pair_how how = {.n_reduced = 1, .n_payloads = 1, .feedback = 1, .beta = 1, .gamma = 1};
            pair_open("2", (uint64_t)round);
            pair_codec_open(&c, specs[s]);
            const uint32_t last = c.cpu.traits.n_rounds - 1;
            pair_part_make(&p, &c, 300, 1, 0);
            fill(&p, CF_RANDOM);
            if (last) pair_compress(&c, &list, 1, &how);
            if (last && p.cpu.capacity[last - 1]) {
                unsigned char *x = p.cpu.payload[last - 1];
                const uint64_t body = p.body[last - 1] - ESP_PAYLOAD_HEADER;
                if (round < 30)
                    x[(round * 2 + (int)(cf_random() % 2)) % 32] ^= (unsigned char)(1u << cf_random() % 8);
                else if (body)
                    x[ESP_PAYLOAD_HEADER + cf_random() % body] ^= (unsigned char)(1 + cf_random() % 255);
                pair_copy(p.cuda.payload[last - 1], x, p.body[last - 1], 1);
                decode_damaged(&c, &p, &how, round);
                pair_close();
                pair_open("2", (uint64_t)round);
                const esp_status cpu = pair_on_cpu(&c, &list, 1, &how, last, 0);
                const esp_status cuda = pair_on_cuda(&c, &list, 1, &how, last, 0);
                if (cpu != cuda)
                    fail_msg("%s: case %d of compress: the CPU says '%s', CUDA '%s'", specs[s], round, pair_status(cpu),
                             pair_status(cuda));
                if (cpu != ESP_OK)
                    pair_same(specs[s], &p, "the residual", p.cpu.at[TW_E], p.cuda.at[TW_E], p.cpu.bytes[TW_E]);
            }
            pair_part_free(&p);
            pair_codec_close(&c);
            pair_close();
        }
}

/* The sum of the ranks' votes becomes what the majority voted. */
static void vote(uint64_t count) {
    static const char *const voting[] = {"signsgd", "signum"};
    static const float sums[] = {0, -0.0f, 1, -1, 3, -2, NAN, INFINITY, -INFINITY, 0x1p-149f, -0x1p-149f};
    for (size_t s = 0; s < CF_COUNT(voting); s++) {
        pair_codec c;
        pair_part p;
        pair_codec_open(&c, voting[s]);
        pair_part_make(&p, &c, count, 1, 1);
        float *sum = (float *)(void *)p.cpu.at[TW_OUT], *cuda = (float *)(void *)p.cuda.at[TW_OUT];
        for (uint64_t i = 0; i <= count; i++) sum[i] = sums[i * i % 101 % CF_COUNT(sums)];
        pair_up(&p, TW_OUT);
        assert_int_equal(c.cpu.table->finalize(c.cpu.self, sum + 1, count, 4, (esp_stream){0}), ESP_OK);
        assert_int_equal(c.cuda->finalize(c.self, cuda + 1, count, 4, pair_stream), ESP_OK);
        assert_int_equal(pair_wait(), ESP_OK);
        pair_same(c.spec, &p, "the vote", sum, cuda, 4 * count + 4);
        pair_part_free(&p);
        pair_codec_close(&c);
    }
}
TEST(votes) {
    static const uint64_t counts[] = {0, 1, 255, 256, 257, 70000};
    pair_open("2", 3);
    for (size_t i = 0; i < CF_COUNT(counts); i++) vote(counts[i]);
    pair_close();
}

/* Tensors so large that loops which few tensors need take a second turn: over 256 spans of 65536 elements, over 256
 * segments or chunks, and over what a warp of the grid compresses. */
TEST(second_turns) {
    static const struct {
        const char *spec, *sms;
        uint64_t count;
        int slow;
    } large_for[] = {{"threshold:value=1.2", "4", 257 * 65536 + 4097, 1},
                     {"adaptive", "4", 257 * 65536 + 4097, 1},
                     {"inceptionn", "4", 257 * 16 * 1024 + 1, 1},
                     {"threelc", "4", 257 * 16 * 1280 + 1, 1},
                     {"lossless", "4", 257 * 16384 + 1, 1},
                     {"sketchml", "1", 70000, 0}};
    for (size_t i = 0; i < CF_COUNT(large_for); i++) {
        const pair_how how = {.n_reduced = 1, .n_payloads = 1, .gamma = 1};
        pair_codec c;
        pair_part p, *list = &p;
        if ((large_for[i].slow && quick()) || left_out_name(large_for[i].spec)) continue;
        pair_open(large_for[i].sms, 5);
        pair_codec_open(&c, large_for[i].spec);
        pair_part_make(&p, &c, large_for[i].count, 1, 0);
        fill(&p, CF_RANDOM);
        pair_compress(&c, &list, 1, &how);
        pair_part_free(&p);
        pair_codec_close(&c);
        pair_close();
    }
}

/* A payload that says that it has NaN, and does not; one whose last number is NaN; and an empty one */
TEST(rare_payloads) {
    static const char *const some[] = {"none", "fp16", "randomk:ratio=0.3", "threelc", "inceptionn"};
    for (size_t i = 0; i < 3 * CF_COUNT(some); i++) {
        const pair_how how = {.n_reduced = 1, .n_payloads = 1, .gamma = 1, .mode = ESP_OUT_SET};
        const char *spec = some[i / 3];
        esp_payload_header h;
        pair_codec c;
        pair_part p, *list = &p;
        if (left_out_name(spec)) continue;
        pair_open("2", i);
        pair_codec_open(&c, spec);
        pair_part_make(&p, &c, 3000, 1, 0);
        fill(&p, CF_RANDOM);
        pair_compress(&c, &list, 1, &how);
        memcpy(&h, p.cpu.payload[0], sizeof h);
        if (i % 3 == 1) memset(p.cpu.payload[0] + p.body[0] - 4, 0xFF, 4);
        if (i % 3 == 0) h.flags |= ESP_PAYLOAD_NONFINITE;
        if (i % 3 == 2) h.flags |= ESP_PAYLOAD_EMPTY, h.body_bytes = 0, p.body[0] = ESP_PAYLOAD_HEADER;
        memcpy(p.cpu.payload[0], &h, sizeof h);
        pair_copy(p.cuda.payload[0], p.cpu.payload[0], p.body[0], 1);
        decode_damaged(&c, &p, &how, (int)i);
        pair_part_free(&p);
        pair_codec_close(&c);
        pair_close();
    }
}

/* Chunks of lossless in all forms: with 24, 11 or 8 bits of sign and mantissa, or as they are; with long code words, a
 * single one, or 255. */
enum { FORM_F32, FORM_F16, FORM_BF16, FORM_ANY, FORM_LONG, FORM_EQUAL, FORM_ALL, FORMS };
static float form_number(int form, uint64_t i) {
    const float x = cf_normal();
    uint32_t bits = cf_random();
    if (form == FORM_LONG) return ldexpf(1, -__builtin_ctz(bits | 1u << 28));
    if (form == FORM_EQUAL) return bits & 1 ? -0.75f : 0.75f;
    if (form == FORM_ALL) bits = (uint32_t)(i % 255) << 23 | (bits & 1) << 31;
    if (form == FORM_F32 || form == FORM_F16 || form == FORM_BF16) memcpy(&bits, &x, 4);
    bits &= form == FORM_F16 ? 0xFFFFE000u : form == FORM_BF16 ? 0xFFFF0000u : 0xFFFFFFFFu;
    if (form == FORM_ANY && (bits >> 23 & 0xFF) == 0xFF) bits ^= 1u << 30;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}
static void form_fill(pair_part *p, int form) {
    float *g = (float *)(void *)p->cpu.at[TW_G] + p->shift;
    for (uint64_t i = 0; i < p->count; i++) g[i] = form_number((form + (int)(i / 16384)) % FORMS, i);
    pair_up(p, TW_G);
}
TEST(forms_of_chunks) {
    static const uint64_t counts[] = {1000, 16383, 16384, 16385, 9 * 16384 + 77};
    pair_codec c;
    if (left_out_name("lossless")) return;
    pair_open("1", 12);
    pair_codec_open(&c, "lossless");
    for (size_t k = 0; k < CF_COUNT(counts); k++)
        for (int form = 0; form < FORMS; form++) {
            pair_part part[2], *list[2] = {&part[0], &part[1]};
            pair_how how = {.beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 2, .from = list, .n_from = 2};
            if (quick() && (k + (size_t)form) % 3) continue;
            how.feedback = form == FORM_EQUAL || form == FORM_F16;
            for (uint32_t t = 0; t < 2; t++) {
                pair_part_make(&part[t], &c, counts[k], 1, t + k % 2);
                form_fill(&part[t], form + (int)t);
                pair_compress(&c, &list[t], 1, &how);
            }
            for (how.mode = ESP_OUT_SET; how.mode <= ESP_OUT_SUM; how.mode++) pair_decompress(&c, list, 1, &how);
            for (how.mode = ESP_OUT_SET; part[1].body[0] > ESP_PAYLOAD_HEADER;) { /* one empty payload, then two */
                pair_part *p = &part[part[0].body[0] == ESP_PAYLOAD_HEADER];
                ((uint16_t *)(void *)p->cpu.payload[0])[3] = ESP_PAYLOAD_EMPTY;
                ((uint64_t *)(void *)p->cpu.payload[0])[2] = 0, p->body[0] = ESP_PAYLOAD_HEADER;
                pair_copy(p->cuda.payload[0], p->cpu.payload[0], ESP_PAYLOAD_HEADER, 1);
                pair_decompress(&c, list, 1, &how);
            }
            pair_part_free(&part[0]), pair_part_free(&part[1]);
        }
    pair_codec_close(&c);
    pair_close();
}
/* Changes a byte of the sizes, of the first or last chunk's head, of the last stream, or of anything. Or the last chunk
 * keeps one bit more, or has a byte less in the second stream, and more in the first, so that zeros follow the second,
 * or the word of exponent 126, which may be the only one, becomes that of 255. Or a byte follows the last chunk, which
 * may count it as its own. Where four bytes change, a block of threads has chunks after the damaged one. */
TEST(damaged_chunks) {
    enum { SIZES, FIRST, LAST, END, ANY, KEPT, STREAMS, WORD, MORE, PLACES, HEAD = 1 + 128 };
    if (left_out_name("lossless")) return;
    for (uint32_t round = 0; round < 12 * PLACES * FORMS; round += quick() ? 5 : 1) {
        const uint32_t form = round % FORMS, place = round / FORMS % PLACES, how_changed = round / FORMS / PLACES;
        const int many = place == FIRST && how_changed < 2;
        const pair_how how = {.n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SUM};
        pair_codec c;
        pair_part p, *list = &p;
        pair_open("1", round);
        pair_codec_open(&c, "lossless");
        pair_part_make(&p, &c, many ? 9 * 16384 : how_changed % 3 && place != MORE ? 1200 : 17600, 1, 0);
        form_fill(&p, (int)form);
        pair_compress(&c, &list, 1, &how);
        const uint32_t chunks = (uint32_t)((p.count + 16383) / 16384);
        unsigned char *x = p.cpu.payload[0] + ESP_PAYLOAD_HEADER, *end = p.cpu.payload[0] + p.body[0];
        unsigned char *last = x + 4 * chunks;
        for (uint32_t i = 0; i + 1 < chunks; i++) last += ((const uint32_t *)(void *)x)[i];
        x = place == SIZES   ? x + cf_random() % (4 * chunks)
            : place == FIRST ? x + 4 * chunks + cf_random() % (HEAD + 16)
            : place == LAST  ? last + cf_random() % (HEAD + 16)
            : place == END   ? end - 1 - cf_random() % 40
            : place == ANY   ? x + cf_random() % (uint32_t)(end - x)
                             : last;
        if (place == MORE && p.body[0] < p.cpu.capacity[0]) {
            ((uint64_t *)(void *)p.cpu.payload[0])[2]++, p.body[0]++;
            ((uint32_t *)(void *)(p.cpu.payload[0] + ESP_PAYLOAD_HEADER))[chunks - 1] += how_changed % 2;
        }
        if (place == KEPT) ++*x;
        if (place == STREAMS) x[HEAD + 4]--, x[HEAD]++;
        if (place == WORD) x[1 + 126 / 2] = 0, x[1 + 254 / 2] |= 1 << 4;
        if (many) memset(x, 0xFF, 4);
        if (place < KEPT && !many)
            *x = how_changed % 4 == 0   ? 0xFF
                 : how_changed % 4 == 1 ? *x ^ (unsigned char)(1u << cf_random() % 8)
                                        : *x + 1;
        pair_copy(p.cuda.payload[0], p.cpu.payload[0], p.body[0], 1);
        decode_damaged(&c, &p, &how, (int)round);
        pair_part_free(&p);
        pair_codec_close(&c);
        pair_close();
    }
}

static void matrix(const char *spec) {
    pair_codec c;
    pair_part p, *list = &p;
    pair_how how = {.beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1};
    pair_codec_open(&c, spec);
    pair_matrix_make(&p, &c, 100 * 80, 100, 1, 0);
    fill(&p, CF_RANDOM);
    pair_compress(&c, &list, 1, &how);
    pair_part_free(&p);
    pair_codec_close(&c);
}
#ifndef CUDA_DEVICE
/* Returns how many kernels a call launches: all rounds of compress, or decompress. */
static uint64_t launches(const pair_codec *c, uint64_t count, uint64_t rows, int decompress) {
    pair_part p, *list = &p;
    pair_how how = {.beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SET};
    how.step = 100; /* behind dgc's warm-up */
    how.feedback = !cf_has(&c->cpu, ESP_CODEC_NO_FEEDBACK);
    how.flags = how.feedback && cf_has(&c->cpu, ESP_CODEC_OWN_FEEDBACK) ? ESP_ARG_OWN_MEMORY : 0;
    pair_matrix_make(&p, c, count, rows, 1, 0);
    fill(&p, CF_RANDOM);
    (void)cuda_host_counted(1);
    pair_compress(c, &list, 1, &how);
    if (decompress) (void)cuda_host_counted(1), pair_decompress(c, &list, 1, &how);
    const uint64_t n = cuda_host_counted(0).launches;
    pair_part_free(&p);
    return n;
}
/* Returns how many launches the planner expects. The bytes that are moved take less than the time of one. */
static uint64_t modelled(const esp_codec_model *m, uint64_t count, int decompress) {
    uint32_t i = 1;
    while (m->times[i].elements < (double)count) i++;
    const esp_codec_time *t = &m->times[i - 1];
    const double share = ((double)count - t->elements) / (t[1].elements - t->elements);
    const double ns = decompress ? t->decompress_ns + share * (t[1].decompress_ns - t->decompress_ns)
                                 : t->compress_ns + share * (t[1].compress_ns - t->compress_ns);
    return (uint64_t)(ns / 1e4);
}
/* model() must expect as many launches as there are, for tensors of every size and for matrices. */
TEST(launches_as_modelled) {
    static const uint64_t counts[] = {1, 64, 1000, 4096, 4097, 8192, 8193, 16384, 20000, 70000};
    const esp_device cuda = {ESP_CUDA, 0};
    pair_open("4", 1);
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        pair_codec c;
        if (left_out_name(specs[s])) continue;
        pair_codec_open(&c, specs[s]);
        for (uint64_t rows = 0; rows <= 16; rows += 16) {
            esp_codec_model m = {.struct_size = sizeof m};
            const esp_tensor like = {.struct_size = sizeof like, .rows = rows, .cols = rows ? 1 << 16 : 0};
            if (rows && !cf_has(&c.cpu, ESP_CODEC_NEEDS_MATRIX)) continue;
            assert_int_equal(c.cuda->model(c.self, &like, 1, cuda, &m), ESP_OK);
            for (size_t k = rows ? 2 : 0; k < CF_COUNT(counts); k++)
                for (int d = 0; d < 2; d++) {
                    const uint64_t n = rows ? counts[k] / rows * rows : counts[k];
                    const uint64_t is = launches(&c, n, rows, d), as = modelled(&m, n, d);
                    if (is != as)
                        fail_msg("%s, %llu elements, %llu rows, %s: %llu launches, model() expects %llu", specs[s],
                                 (unsigned long long)n, (unsigned long long)rows, d ? "decompress" : "compress",
                                 (unsigned long long)is, (unsigned long long)as);
                }
        }
        pair_codec_close(&c);
    }
    pair_close();
}
#endif

/* Each form of a kernel, such as those for other sizes of blocks, must be launched by this program. */
TEST(every_kernel) {
    if (getenv("CODECS")) return; /* the others' kernels were not launched */
    static const char *const forms[] = {"chunktopk:chunk=16,k=2", "chunktopk:chunk=64",   "chunktopk:chunk=128",
                                        "chunktopk:chunk=256",    "chunktopk:chunk=512",  "chunktopk:chunk=1024",
                                        "chunktopk:chunk=2048",   "chunktopk:chunk=4096", "int8:shared=1",
                                        "twobit:relative=1.2",    "maxmin:random=1"};
    const void *idle = NULL;
    pair_open("4", 1);
    for (size_t s = 0; s < CF_COUNT(specs) + CF_COUNT(forms); s++) {
        pair_codec c;
        pair_codec_open(&c, s < CF_COUNT(specs) ? specs[s] : forms[s - CF_COUNT(specs)]);
        for (uint32_t ranks = 1; ranks < 100000; ranks *= 200)
            one(&c, ranks == 1 ? 70000 : 9000, CF_RANDOM, cf_has(&c.cpu, ESP_CODEC_FUSED_RESIDUAL), ranks);
        pair_codec_close(&c);
    }
    matrix("powersgd:rank=8");
    matrix("powersgd:rank=32");
    void *numbers = pair_take(64);
    assert_int_equal(pair_table->convert(pair_device, numbers, ESP_F32, numbers, ESP_F32, 2, 0, 16, pair_stream),
                     ESP_OK);
    assert_int_equal(pair_wait(), ESP_OK);
    pair_give(numbers, 64);
    pair_close();
    const int n = cuda_host_idle(&idle);
    /* the payloads of int8:shared are summed, so none of its calls decodes more than 96, for which there is a check */
    if (n > 1) fail_msg("%d kernels were never launched, such as that at %p", n, idle);
}

int main(void) { return cuda_missing() ? 77 : test_main(); }
