/* codec.c: measures how fast each codec compresses (with error feedback) and decompresses on one thread, for several
 * sizes and instruction sets. GB/s counts the f32 input, 4 bytes per element. Three simple loops over as many
 * elements are measured too, and speeds are also given relative to them (1.00 means as fast): memcpy; triad (a = b +
 * 3 c); and stream, which reads and writes as many bytes as a compress does. The best of all repetitions counts.
 *     build/bench/codec [-n REPEATS] [SPEC...] >bench/results/micro/codec.csv      by default 7 repeats of all codecs
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "espresso.h"
#include "bench/head.h"
#include "codecs/common/dense.h"
#include "espresso_impl/registry/builtin.h"

enum { LEVELS = 3, MAX_SPECS = 16, LOG_MIN = 12, LOG_MAX = 24, LOG_STEP = 2 };
static const char *const default_specs[] = {"none",      "fp16",          "bf16", "efsignsgd", "twobit",
                                            "int8",      "int8:shared=1", "int4", "topk",      "topk:ratio=0.1",
                                            "chunktopk", "randomk",       "dgc"};
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
    double to[LEVELS], from[LEVELS], stream; /* best times in seconds */
    uint64_t used;
} bench_codec;

typedef struct bench_memory {
    float *g, *e, *out;
    unsigned char *payload;
    esp_buf scratch, state;
} bench_memory;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
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

static void open_codec(bench_codec *c, const char *spec, int best) {
    const size_t n = strcspn(spec, ":");
    memset(c, 0, sizeof *c);
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

static void one_step(bench_codec *c, int level, bench_memory *m, uint64_t n, uint64_t step, double seconds[2]) {
    uint64_t used = 0, used_early = 0;
    const uint64_t capacity = ESP_PAYLOAD_HEADER + 8 * n + 4096;
    unsigned char first[ESP_PAYLOAD_HEADER + 64] = {0};
    esp_tensor t = {sizeof t, ESP_F32, 1, n, {m->g, 4 * n, {ESP_CPU, 0}}, 0, 0}, *one = &t;
    const esp_buf residual = {m->e, 4 * n, {ESP_CPU, 0}};
    const uint64_t offset = 0;
    esp_payload p = {{m->payload, capacity, {ESP_CPU, 0}}, &used};
    esp_payload early = {{first, sizeof first, {ESP_CPU, 0}}, &used_early};
    esp_codec_args a = {.struct_size = sizeof a, .step = step, .n_payloads = 1, .n_reduced = 1, .beta = 1, .gamma = 1};
    a.flags = ESP_ARG_OWN_MEMORY;
    a.residual = &residual;
    a.offset = &offset;
    a.n_tensors = 1;
    a.scratch = &m->scratch;
    a.state = &m->state;
    a.tensor = &one;
    const double start = now();
    compress_rounds(c, level, &a, &p, &early);
    const double middle = now();
    p.data.bytes = used;
    t.data.ptr = m->out;
    a.residual = NULL;
    if (c->table->decompress(c->self[level], &a) != ESP_OK) die("decompress failed", c->table->name);
    seconds[0] += middle - start;
    seconds[1] += now() - middle;
    c->used = used;
}

static void measure(bench_codec *c, int level, bench_memory *m, uint64_t n, uint64_t steps) {
    double seconds[2] = {0, 0};
    one_step(c, level, m, n, 0, seconds); /* fills the caches, and the residual with typical values */
    seconds[0] = seconds[1] = 0;
    for (uint64_t s = 1; s <= steps; s++) one_step(c, level, m, n, s, seconds);
    seconds[0] /= (double)steps;
    seconds[1] /= (double)steps;
    if (c->to[level] == 0 || seconds[0] < c->to[level]) c->to[level] = seconds[0];
    if (c->from[level] == 0 || seconds[1] < c->from[level]) c->from[level] = seconds[1];
}

static void measure_memory(bench_memory *m, uint64_t n, uint64_t steps, double best[2]) {
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
}

ESP_INLINE uint64_t bench_update_body(float *restrict e, const float *restrict g, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) e[i] = 0.5f * (g[i] - e[i]);
    return 0;
}
ESP_KERNEL(bench_update, (float *restrict e, const float *restrict g, uint64_t n), (e, g, n))

/* Measures the loop that moves as many bytes as a compress. */
static void measure_stream(bench_codec *c, bench_memory *m, uint64_t n, uint64_t steps) {
    const dense_check_phi_fn look = dense_check_phi_for(esp_simd_best());
    const bench_update_fn update = bench_update_for(esp_simd_best());
    const uint64_t body = c->used * DENSE_BLOCK / n;
    const double start = now();
    for (uint64_t s = 0; s < steps; s++) {
        if (look(m->g, m->e, 1, 1, n)) die("the residual is not finite", "stream");
        for (uint64_t at = 0; at < n; at += DENSE_BLOCK) {
            update(m->e + at, m->g + at, DENSE_BLOCK);
            memset(m->payload + at / DENSE_BLOCK * body, (int)s, body);
        }
        __asm__ volatile("" ::"r"(m->payload) : "memory");
    }
    const double t = (now() - start) / (double)steps;
    if (c->stream == 0 || t < c->stream) c->stream = t;
}

static void bench_size(bench_codec *codecs, int n_codecs, const char *const *specs, int best_level, uint64_t n) {
    bench_memory m = {zeroed(4 * n),        zeroed(4 * n),     zeroed(4 * n),
                      zeroed(8 * n + 8192), {NULL, 0, {0, 0}}, {NULL, 0, {0, 0}}};
    const uint64_t steps = n < 1u << 20 ? (1u << 20) / n : 1;
    uint64_t seed = 1, scratch = 0, state = 0;
    double best[2] = {0, 0};
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
        codecs[c].stream = 0;
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
            measure_stream(&codecs[c], &m, n, steps);
        }
    }
    const double gb = 4e-9 * (double)n;
    for (int c = 0; c < n_codecs; c++)
        for (int l = 0; l <= best_level; l++) {
            const bench_codec *k = &codecs[c];
            printf("%llu,%.1f,%.1f,\"%s\",%s,%.3f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f\n", (unsigned long long)n,
                   gb / best[0], 3 * gb / best[1], specs[c], level_names[l],
                   8.0 * (double)(k->used - ESP_PAYLOAD_HEADER) / (double)n, gb / k->to[l], best[0] / k->to[l],
                   best[1] / k->to[l], k->stream / k->to[l], gb / k->from[l], best[0] / k->from[l],
                   best[1] / k->from[l]);
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
    printf("# best instruction set %s; best of %d, interleaved. compress: with feedback, all rounds. decompress: one "
           "payload\n"
           "# to_memcpy, to_triad, to_stream: their time over the codec's, same elements; triad_gbps: 12 bytes an "
           "element\n"
           "elements,memcpy_gbps,triad_gbps,codec,level,bits_per_element,compress_gbps,compress_to_memcpy,"
           "compress_to_triad,compress_to_stream,decompress_gbps,decompress_to_memcpy,decompress_to_triad\n",
           level_names[best], repeats);
}

int main(int argc, char **argv) {
    bench_codec codecs[MAX_SPECS];
    if (argc > 2 && !strcmp(argv[1], "-n")) {
        repeats = atoi(argv[2]);
        argc -= 2, argv += 2;
    }
    const char *const *specs = argc > 1 ? (const char *const *)(argv + 1) : default_specs;
    const int n = argc > 1 ? argc - 1 : (int)(sizeof default_specs / sizeof *default_specs);
    const int best = esp_simd_best();
    if (n > MAX_SPECS || repeats < 1 || (argc > 1 && argv[1][0] == '-')) {
        fprintf(stderr, "usage: codec [-n REPEATS] [SPEC...]   (at most %d, like topk:ratio=0.01)\n", MAX_SPECS);
        return 2;
    }
    for (int c = 0; c < n; c++) open_codec(&codecs[c], specs[c], best);
    print_head(best);
    for (int log = LOG_MIN; log <= LOG_MAX; log += LOG_STEP) bench_size(codecs, n, specs, best, (uint64_t)1 << log);
    for (int c = 0; c < n; c++)
        for (int l = 0; l <= best; l++) codecs[c].table->close(codecs[c].self[l]);
    return 0;
}
