/* codec.c: measures how fast each codec compresses and decompresses on one thread, for several sizes and instruction
 * sets. SPEC@none means without error feedback. GB/s counts the f32 input, 4 bytes per element. Times are the
 * thread's CPU time, and the best of all repetitions counts. Speeds are also given relative to simple loops over as
 * many elements (1.00 means as fast): memcpy; triad (a = b + 3 c); and two that write as many bytes as a compress does:
 * stream reads the gradient twice and the residual once, stream2 both twice (without feedback or state: the gradient
 * once). generator draws 16 random bits for each element.
 *     build/bench/codec [-n REPEATS] [-l LOG] [SPEC...] >bench/results/micro/codec.csv
 * By default 7 repeats of all codecs, for 2^6 to 2^26 elements; -l measures only 2^LOG. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "espresso.h"
#include "bench/head.h"
#include "codecs/common/blocks.h"
#include "espresso_impl/registry/builtin.h"

enum { LEVELS = 3, MAX_SPECS = 40, LOG_MIN = 6, LOG_MAX = 26, LOG_STEP = 2 };
static const char *const default_specs[] = {
    "none",         "fp16",        "bf16",           "signsgd",       "mxnet1bit", "onebit",
    "efsignsgd",    "twobit",      "int8",           "int8:shared=1", "int4",      "fp8",
    "dynamic8",     "maxmin",      "natural",        "terngrad",      "qsgd",      "maxmin:random=1",
    "signsgd@none", "signum@none", "natural@none",   "terngrad@none", "qsgd@none", "threshold:value=1",
    "inceptionn",   "topk",        "topk:ratio=0.1", "chunktopk",     "randomk",   "dgc"};
static const char *const level_names[LEVELS] = {"scalar", "avx2", "avx512"};
static int repeats = 7;
static const esp_plugin_fn entries[] = {ESP__BUILTIN_CODECS(ESP__BUILTIN_ENTRY) NULL};

static void *bench_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    (void)user, (void)d;
    return aligned_alloc(align, (bytes + align - 1) / align * align + align);
}
static void bench_free(void *user, esp_device d, void *p, uint64_t bytes) {
    (void)user, (void)d, (void)bytes;
    free(p);
}
static void bench_log(void *user, const esp_log_event *ev) {
    (void)user;
    fprintf(stderr, "%s\n", ev->message);
}
static const esp_host bench_host = {
    .struct_size = sizeof(esp_host), .abi_major = 1, .alloc = bench_alloc, .free_ = bench_free, .log = bench_log};

typedef struct bench_codec {
    const esp_codec *table;
    void *self[LEVELS];
    esp_traits traits;
    bool feedback;
    double to[LEVELS], from[LEVELS], stream[2]; /* best times in seconds */
    uint64_t used;
} bench_codec;

typedef struct bench_memory {
    float *g, *e, *out;
    unsigned char *payload;
    esp_buf scratch, state;
} bench_memory;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void die(const char *what, const char *name) {
    fprintf(stderr, "bench codec: %s: %s\n", name, what);
    exit(1);
}
static void *zeroed(uint64_t bytes) {
    void *p = bench_alloc(NULL, (esp_device){ESP_CPU, 0}, bytes + 64, 4096);
    if (!p) die("out of memory", "alloc");
    return memset(p, 0, bytes + 64);
}

static void open_codec(bench_codec *c, const char *spec_at, int best) {
    char spec[256];
    memset(c, 0, sizeof *c);
    snprintf(spec, sizeof spec, "%s", spec_at);
    char *at = strchr(spec, '@');
    c->feedback = !at;
    if (at && strcmp(at, "@none")) die("only none may follow @", spec);
    if (at) *at = 0;
    const size_t n = strcspn(spec, ":");
    for (const esp_plugin_fn *e = entries; *e && !c->table; e++) {
        const esp_plugin *p = (*e)(&bench_host);
        for (uint32_t i = 0; i < p->n_codecs; i++)
            if (strlen(p->codecs[i]->name) == n && !memcmp(p->codecs[i]->name, spec, n)) c->table = p->codecs[i];
    }
    if (!c->table) die("no such codec is built in", spec);
    for (int l = 0; l <= best; l++) {
        setenv("ESPRESSO_SIMD", level_names[l], 1);
        if (c->table->open(&bench_host, spec[n] ? spec + n + 1 : "", &c->self[l]) != ESP_OK) exit(2);
    }
    c->traits.struct_size = sizeof c->traits;
    c->traits.n_rounds = c->table->n_rounds;
    if (c->table->traits && c->table->traits(c->self[0], &c->traits) != ESP_OK) die("traits failed", spec);
}

/* Codec powersgd compresses in several rounds, each with the payload of the round before as an input. `p` receives
 * the last payload. */
static void compress_rounds(bench_codec *c, int level, esp_codec_args *a, esp_payload *p, esp_payload *early) {
    for (a->round = 0; a->round < c->traits.n_rounds; a->round++) {
        esp_bound b = {sizeof b, 0, 0, 0, 0};
        const int last = a->round + 1 == c->traits.n_rounds;
        if (!last && c->table->bound(c->self[level], a->tensor[0], a->round, 1, &b) != ESP_OK)
            die("bound failed", c->table->name);
        if (!last && !b.payload_bytes) continue;
        a->payload = last ? p : early;
        if (c->table->compress(c->self[level], a) != ESP_OK) die("compress failed", c->table->name);
        a->reduced = early;
    }
}

typedef struct bench_call {
    uint64_t used, used_early;
    unsigned char first[ESP_PAYLOAD_HEADER + 64];
    esp_tensor tensor, *one;
    esp_buf residual;
    uint64_t offset;
    esp_payload payload, early;
    esp_codec_args args;
} bench_call;

static void call_begin(bench_call *k, bench_codec *c, bench_memory *m, uint64_t n) {
    const esp_device cpu = {ESP_CPU, 0};
    memset(k, 0, sizeof *k);
    k->tensor = (esp_tensor){sizeof k->tensor, ESP_F32, 1, n, {m->g, 4 * n, cpu}, 0, 0};
    k->one = &k->tensor;
    k->residual = (esp_buf){m->e, 4 * n, cpu};
    k->payload = (esp_payload){{m->payload, ESP_PAYLOAD_HEADER + 8 * n + 4096, cpu}, &k->used};
    k->early = (esp_payload){{k->first, sizeof k->first, cpu}, &k->used_early};
    k->args = (esp_codec_args){
        .struct_size = sizeof k->args, .n_payloads = 1, .n_reduced = 1, .n_tensors = 1, .beta = 1, .gamma = 1};
    k->args.flags = ESP_ARG_OWN_MEMORY;
    k->args.residual = c->feedback ? &k->residual : NULL;
    k->args.offset = &k->offset;
    k->args.scratch = &m->scratch;
    k->args.state = &m->state;
    k->args.tensor = &k->one;
}

static void measure(bench_codec *c, int level, bench_memory *m, uint64_t n, uint64_t steps) {
    bench_call k;
    call_begin(&k, c, m, n);
    compress_rounds(c, level, &k.args, &k.payload, &k.early); /* fills the caches, and the residual as usual */
    double start = now();
    for (k.args.step = 1; k.args.step <= steps; k.args.step++) compress_rounds(c, level, &k.args, &k.payload, &k.early);
    const double to = (now() - start) / (double)steps;
    c->used = k.payload.data.bytes = k.used;
    k.tensor.data.ptr = m->out;
    k.args.residual = NULL;
    start = now();
    for (uint64_t s = 0; s < steps; s++)
        if (c->table->decompress(c->self[level], &k.args) != ESP_OK) die("decompress failed", c->table->name);
    const double from = (now() - start) / (double)steps;
    if (c->to[level] == 0 || to < c->to[level]) c->to[level] = to;
    if (c->from[level] == 0 || from < c->from[level]) c->from[level] = from;
}

static void measure_memory(bench_memory *m, uint64_t n, uint64_t steps, double best[3]) {
    double start = now();
    for (uint64_t s = 0; s < steps; s++) {
        memcpy(m->out, m->g, 4 * n);
        __asm__ volatile("" ::"r"(m->out) : "memory");
    }
    double t = (now() - start) / (double)steps;
    if (best[0] == 0 || t < best[0]) best[0] = t;
    const dense_phi_fn triad = dense_phi_for(esp_simd_best());
    start = now();
    for (uint64_t s = 0; s < steps; s++) {
        triad(m->out, m->g, (const float *)(const void *)m->payload, 3.0f, 1.0f, n);
        __asm__ volatile("" ::"r"(m->out) : "memory");
    }
    t = (now() - start) / (double)steps;
    if (best[1] == 0 || t < best[1]) best[1] = t;
    const blocks_noise_fn noise = blocks_noise_for(esp_simd_best());
    start = now();
    for (uint64_t s = 0; s < steps; s++)
        for (uint64_t at = 0; at < n; at += DENSE_BLOCK) {
            uint32_t words[BLOCKS_NOISE_WORDS];
            noise(words, s, at / 8, (n - at < DENSE_BLOCK ? n - at : DENSE_BLOCK) / 8);
            __asm__ volatile("" ::"r"(words) : "memory");
        }
    t = (now() - start) / (double)steps;
    if (best[2] == 0 || t < best[2]) best[2] = t;
}

ESP_INLINE uint64_t bench_update_body(float *restrict e, const float *restrict g, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) e[i] = 0.5f * (g[i] - e[i]);
    return 0;
}
ESP_KERNEL(bench_update, (float *restrict e, const float *restrict g, uint64_t n), (e, g, n))

/* Measures the loops that move as many bytes as a compress. `twice`: reads the residual twice, as the gradient. */
static void measure_stream(bench_codec *c, bench_memory *m, uint64_t n, uint64_t steps, int twice) {
    const dense_check_fn look = dense_check_for(esp_simd_best());
    const dense_check_phi_fn look_twice = dense_check_phi_for(esp_simd_best());
    const bench_update_fn update = bench_update_for(esp_simd_best());
    const uint64_t block = n < DENSE_BLOCK ? n : DENSE_BLOCK, body = c->used * block / n;
    const bool memory = c->feedback || c->table->caps & ESP_CODEC_HAS_STATE;
    uint64_t bad = 0;
    const double start = now();
    for (uint64_t s = 0; s < steps; s++) {
        if (memory) bad |= twice ? look_twice(m->g, m->e, 1, 1, n) : look(m->g, n);
        for (uint64_t at = 0; at < n; at += block) {
            if (memory)
                update(m->e + at, m->g + at, block);
            else
                bad |= look(m->g + at, block);
            memset(m->payload + at / block * body, (int)s, body);
        }
        __asm__ volatile("" ::"r"(m->payload) : "memory");
    }
    const double t = (now() - start) / (double)steps;
    if (bad) die("an element is not finite", "stream");
    if (c->stream[twice] == 0 || t < c->stream[twice]) c->stream[twice] = t;
}

static void bench_size(bench_codec *codecs, int n_codecs, const char *const *specs, int best_level, uint64_t n) {
    bench_memory m = {zeroed(4 * n),        zeroed(4 * n),     zeroed(4 * n),
                      zeroed(8 * n + 8192), {NULL, 0, {0, 0}}, {NULL, 0, {0, 0}}};
    const uint64_t steps = n < 1u << 20 ? (1u << 20) / n : 1;
    uint64_t seed = 1, scratch = 0, state = 0;
    double best[3] = {0, 0, 0};
    for (uint64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            sum += (double)(seed >> 32) / 4294967296.0 - 0.5;
        }
        m.g[i] = (float)sum;
    }
    for (int c = 0; c < n_codecs; c++) {
        esp_tensor like = {sizeof like, ESP_F32, 1, n, {NULL, 0, {0, 0}}, 0, 0};
        esp_bound b = {sizeof b, 0, 0, 0, 0};
        if (codecs[c].table->bound(codecs[c].self[0], &like, 0, 1, &b) != ESP_OK) die("bound failed", specs[c]);
        scratch = b.scratch_bytes > scratch ? b.scratch_bytes : scratch;
        state = b.state_bytes > state ? b.state_bytes : state;
        memset(codecs[c].to, 0, sizeof codecs[c].to);
        memset(codecs[c].from, 0, sizeof codecs[c].from);
        codecs[c].stream[0] = codecs[c].stream[1] = 0;
    }
    m.scratch = (esp_buf){zeroed(scratch), scratch, {ESP_CPU, 0}};
    m.state = (esp_buf){zeroed(state), state, {ESP_CPU, 0}};
    for (int r = 0; r < repeats; r++) {
        measure_memory(&m, n, steps, best);
        for (int c = 0; c < n_codecs; c++) {
            for (int l = 0; l <= best_level; l++) {
                memset(m.e, 0, 4 * n);
                memset(m.state.ptr, 0, state);
                measure(&codecs[c], l, &m, n, steps);
            }
            for (int twice = 0; twice < 2; twice++) measure_stream(&codecs[c], &m, n, steps, twice);
        }
    }
    const double gb = 4e-9 * (double)n;
    for (int c = 0; c < n_codecs; c++)
        for (int l = 0; l <= best_level; l++) {
            const bench_codec *k = &codecs[c];
            printf("%llu,%.1f,%.1f,%.1f,\"%s\",%s,%.3f,%.3f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f\n",
                   (unsigned long long)n, gb / best[0], 3 * gb / best[1], gb / best[2], specs[c], level_names[l],
                   8.0 * (double)(k->used - ESP_PAYLOAD_HEADER) / (double)n, 1e6 * k->to[l], gb / k->to[l],
                   best[0] / k->to[l], best[1] / k->to[l], k->stream[0] / k->to[l], k->stream[1] / k->to[l],
                   best[2] / k->to[l], gb / k->from[l], best[0] / k->from[l], best[1] / k->from[l]);
        }
    fflush(stdout);
    free(m.g);
    free(m.e);
    free(m.out);
    free(m.payload);
    free(m.scratch.ptr);
    free(m.state.ptr);
}

static void print_head(int best) {
    bench_head(stdout, "build/bench/codec: GB/s of f32 input, one thread");
    printf("# best instruction set %s; best of %d, interleaved, CPU time. compress: with feedback unless @none, all "
           "rounds. decompress: one payload\n"
           "# to_*: the simple loop's time over the codec's, same elements; triad_gbps: 12 bytes an element\n"
           "elements,memcpy_gbps,triad_gbps,generator_gbps,codec,level,bits_per_element,compress_us,compress_gbps,"
           "compress_to_memcpy,compress_to_triad,compress_to_stream,compress_to_stream2,compress_to_generator,"
           "decompress_gbps,decompress_to_memcpy,decompress_to_triad\n",
           level_names[best], repeats);
}

int main(int argc, char **argv) {
    bench_codec codecs[MAX_SPECS];
    int first = LOG_MIN, end = LOG_MAX;
    for (; argc > 2 && (!strcmp(argv[1], "-n") || !strcmp(argv[1], "-l")); argc -= 2, argv += 2) {
        if (argv[1][1] == 'n') repeats = atoi(argv[2]);
        if (argv[1][1] == 'l') first = end = atoi(argv[2]);
    }
    const char *const *specs = argc > 1 ? (const char *const *)(argv + 1) : default_specs;
    const int n = argc > 1 ? argc - 1 : (int)(sizeof default_specs / sizeof *default_specs);
    const int best = esp_simd_best();
    if (n > MAX_SPECS || repeats < 1 || first < 4 || end > 30 || (argc > 1 && argv[1][0] == '-')) {
        fprintf(stderr, "usage: codec [-n REPEATS] [-l LOG] [SPEC...]   (at most %d, like topk:ratio=0.01)\n",
                MAX_SPECS);
        return 2;
    }
    for (int c = 0; c < n; c++) open_codec(&codecs[c], specs[c], best);
    print_head(best);
    for (int log = first; log <= end; log += LOG_STEP) bench_size(codecs, n, specs, best, (uint64_t)1 << log);
    for (int c = 0; c < n; c++)
        for (int l = 0; l <= best; l++) codecs[c].table->close(codecs[c].self[l]);
    return 0;
}
