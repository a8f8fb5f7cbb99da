/* matrix.c: measures codec powersgd on square matrices, with error feedback and one thread: a whole compress,
 * and a decompress. GB/s counts the f32 input, 4 bytes per element. Speeds are also given relative to a loop
 * that only moves the bytes: per element, 28 to compress (gradient and residual read 3 times, residual written), 4
 * to decompress. The best of all repetitions counts. Results are in bench/results/micro/matrix.csv
 *     build/bench/matrix [SGEMM.SO [SYMBOL]]     also times the same products by a library's Fortran sgemm_, such
 *                                                as OpenBLAS's, on a stored sum of gradient and residual */
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
#include "bench/head.h"
#include "espresso_impl/registry/builtin.h"

enum { REPEATS = 15, SIDES = 2, RANKS = 4 };
static const uint64_t sides[SIDES] = {1024, 4096}, ranks[RANKS] = {1, 2, 4, 16};
typedef void (*sgemm_fn)(const char *ta, const char *tb, const int *m, const int *n, const int *k, const float *alpha,
                         const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c,
                         const int *ldc);

static void *bench_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    (void)user, (void)d;
    return aligned_alloc(align, (bytes + align - 1) / align * align + align);
}
static void bench_free(void *user, esp_device d, void *p, uint64_t bytes) {
    (void)user, (void)d, (void)bytes;
    free(p);
}
static const esp_host bench_host = {
    .struct_size = sizeof(esp_host), .abi_major = 1, .alloc = bench_alloc, .free_ = bench_free};
static const esp_codec *powersgd;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void better(double *best, double begin) {
    const double took = now() - begin;
    if (took < *best) *best = took;
}

typedef struct work {
    uint64_t n, r;
    void *self;
    float *g, *e, *out, *p, *q;
    esp_payload payload[2];
    esp_buf state, scratch, residual;
    esp_tensor tensor;
} work;

static void *zeroed(uint64_t bytes) {
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p) exit(1);
    return memset(p, 0, bytes);
}

static work work_open(uint64_t n, uint64_t r) {
    work w;
    char params[32];
    uint64_t scratch = 0;
    memset(&w, 0, sizeof w);
    w.n = n, w.r = r;
    snprintf(params, sizeof params, "rank=%d", (int)r);
    if (powersgd->open(&bench_host, params, &w.self) != ESP_OK) exit(1);
    w.tensor = (esp_tensor){sizeof(esp_tensor), ESP_F32, 1, n * n, {NULL, n * n * 4, {ESP_CPU, 0}}, n, n};
    for (uint32_t round = 0; round < 2; round++) {
        esp_bound b = {sizeof b, 0, 0, 0, 0};
        if (powersgd->bound(w.self, &w.tensor, round, 1, &b) != ESP_OK) exit(1);
        w.payload[round].data = (esp_buf){zeroed(b.payload_bytes), b.payload_bytes, {ESP_CPU, 0}};
        if (b.scratch_bytes > scratch) scratch = b.scratch_bytes;
        if (!round) w.state = (esp_buf){zeroed(b.state_bytes), b.state_bytes, {ESP_CPU, 0}};
    }
    w.scratch = (esp_buf){zeroed(scratch), scratch, {ESP_CPU, 0}};
    w.g = zeroed(n * n * 4), w.e = zeroed(n * n * 4), w.out = zeroed(n * n * 4);
    w.p = zeroed(n * r * 4), w.q = zeroed(n * r * 4);
    w.residual = (esp_buf){w.e, n * n * 4, {ESP_CPU, 0}};
    for (uint64_t i = 0; i < n * n; i++) w.g[i] = (float)((int)(i * 7919 % 1009) - 504) / 256;
    for (uint64_t i = 0; i < n * r; i++) w.p[i] = w.q[i] = (float)(i % 7) / 100;
    return w;
}
static void work_close(work *w) {
    void *all[] = {w->g,         w->e,          w->out, w->p, w->q, w->payload[0].data.ptr, w->payload[1].data.ptr,
                   w->state.ptr, w->scratch.ptr};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    powersgd->close(w->self);
}

static void own(work *w, double best[2]) {
    esp_tensor *t = &w->tensor;
    const uint64_t offset = 0;
    esp_codec_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a, a.n_tensors = a.n_payloads = a.n_reduced = 1;
    a.beta = a.gamma = a.scale = 1;
    a.tensor = &t, a.offset = &offset, a.state = &w->state, a.scratch = &w->scratch;
    a.residual = &w->residual;
    t->data.ptr = w->g;
    double begin = now();
    for (a.round = 0; a.round < 2; a.round++) {
        a.payload = &w->payload[a.round];
        a.reduced = a.round ? &w->payload[0] : NULL;
        if (powersgd->compress(w->self, &a) != ESP_OK) exit(1);
    }
    better(&best[0], begin);
    t->data.ptr = w->out;
    a.residual = NULL;
    begin = now();
    if (powersgd->decompress(w->self, &a) != ESP_OK) exit(1);
    better(&best[1], begin);
}

/* Computes the products of `own` by sgemm. Fortran stores matrices by columns, so it sees the transposed ones. */
static void blas(work *w, sgemm_fn sgemm, double best[2]) {
    const int n = (int)w->n, r = (int)w->r;
    const float one = 1, zero = 0, minus = -1;
    double begin = now();
    for (uint64_t i = 0; i < w->n * w->n; i++) w->e[i] += w->g[i];
    sgemm("T", "N", &r, &n, &n, &one, w->q, &n, w->e, &n, &zero, w->p, &r);
    for (uint64_t i = 0; i < w->n * w->r; i++) w->p[i] *= 1e-3f;
    sgemm("N", "T", &n, &r, &n, &one, w->e, &n, w->p, &r, &zero, w->q, &n);
    sgemm("N", "N", &n, &n, &r, &minus, w->q, &n, w->p, &r, &one, w->e, &n);
    better(&best[0], begin);
    begin = now();
    sgemm("N", "N", &n, &n, &r, &one, w->q, &n, w->p, &r, &zero, w->out, &n);
    better(&best[1], begin);
    for (uint64_t i = 0; i < w->n * w->r; i++) w->q[i] = (float)(i % 7) / 100;
}

/* Reads and writes as many bytes as the codec, without its arithmetic: the limit that memory sets. */
static void stream(work *w, double best[2]) {
    const uint64_t n = w->n * w->n;
    float s[16] = {0};
    double begin = now();
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t i = 0; i + 16 <= n; i += 16)
            for (int k = 0; k < 16; k++) s[k] += w->g[i + (uint64_t)k] + w->e[i + (uint64_t)k];
    for (uint64_t i = 0; i < n; i++) w->e[i] = 0.5f * (w->g[i] - w->e[i]);
    better(&best[0], begin);
    w->out[0] = s[3];
    begin = now();
    for (uint64_t i = 0; i < n; i++) w->out[i] = s[5];
    better(&best[1], begin);
}

int main(int argc, char **argv) {
    sgemm_fn sgemm = NULL;
    powersgd = espresso_plugin_v1_powersgd(&bench_host)->codecs[0];
    void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    void *symbol = lib ? dlsym(lib, argc > 2 ? argv[2] : "sgemm_") : NULL;
    memcpy(&sgemm, &symbol, sizeof sgemm);
    if (argc > 1 && !sgemm) return fprintf(stderr, "bench matrix: %s: %s\n", argv[1], lib ? "no sgemm_" : dlerror()), 1;
    bench_head(stdout, "build/bench/matrix: powersgd, one thread, and the same products by sgemm: GB/s of f32 input");
    printf(
        "# best of %d, interleaved; to_stream: ratio to a loop that moves the same bytes; compare only within a row\n"
        "side,rank,compress_gbps,compress_to_stream,decompress_gbps,decompress_to_stream,sgemm_compress_gbps,"
        "sgemm_compress_to_stream,sgemm_decompress_gbps,sgemm_decompress_to_stream\n",
        REPEATS);
    for (int s = 0; s < SIDES; s++)
        for (int k = 0; k < RANKS; k++) {
            work w = work_open(sides[s], ranks[k]);
            double best[3][2] = {{1e9, 1e9}, {1e9, 1e9}, {1e9, 1e9}};
            for (int i = 0; i < REPEATS; i++) {
                own(&w, best[0]);
                stream(&w, best[1]);
                if (sgemm) blas(&w, sgemm, best[2]);
                memset(w.e, 0, w.n * w.n * 4);
            }
            printf("%d,%d", (int)w.n, (int)w.r);
            for (int what = 0; what < 4; what++) {
                if (what == 2 && !sgemm) {
                    printf(",,,,");
                    break;
                }
                const double took = best[what / 2 * 2][what % 2];
                printf(",%.2f,%.2f", 4e-9 * (double)(w.n * w.n) / took, best[1][what % 2] / took);
            }
            printf("\n");
            fflush(stdout);
            work_close(&w);
        }
    return 0;
}
