/* codecs.c: measures codecs on CUDA by calls of their compress and decompress functions, without training. It prints
 * CSV with a row for each codec, size and function. Row `copy` is a device-to-device copy of 4 bytes per element,
 * for comparison.
 *
 *     build/bench/cuda [SPEC...]            on a GPU: median of 21 calls after 5 for warm-up, timed by CUDA events
 *     build/bench/cuda-counted [SPEC...]    on tests/cuda, which runs kernels on the CPU: counts launches and the bytes
 *                                           that kernels move, and divides these by an H100's 3.35 TB/s */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "espresso.h"

const esp_plugin *espresso_plugin_v1_cuda(const esp_host *h);
typedef struct cuda_host_counts {
    uint64_t launches, fills, copies, read, written;
    uint64_t records, waits, queries, elapsed, captures, devices, untouched;
} cuda_host_counts;
cuda_host_counts cuda_host_counted(int reset) __attribute__((weak)); /* defined in tests/cuda; NULL on a GPU */

#define H100_BYTES_PER_NS 3350.0
enum { WARM = 5, RUNS = 21 };

/* ---- host -------------------------------------------------------------------------------------------------------- */
static const esp_device_table *table;
static void *device;
static esp_stream stream;
static void *begin, *end;

static void *host_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    (void)user, (void)d;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void host_free(void *user, esp_device d, void *p, uint64_t bytes) {
    (void)user, (void)d, (void)bytes;
    free(p);
}
static void host_log(void *user, const esp_log_event *ev) {
    (void)user;
    if (ev->level <= ESP_LOG_WARN) fprintf(stderr, "%s: %s\n", ev->component, ev->message);
}
static esp_status host_device(void *user, esp_device d, const esp_device_table **t, void **self) {
    (void)user, (void)d;
    *t = table, *self = device;
    return ESP_OK;
}
static const esp_host host = {.struct_size = sizeof host,
                              .abi_major = 1,
                              .alloc = host_alloc,
                              .free_ = host_free,
                              .log = host_log,
                              .device = host_device};

static void must(esp_status s, const char *what) {
    if (s == ESP_OK) return;
    fprintf(stderr, "%s: status %d\n", what, (int)s);
    exit(1);
}
static void *take(uint64_t bytes, uint32_t where) {
    void *p = NULL;
    if (bytes) must(table->alloc(device, bytes, where, &p), "memory");
    return p;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */
typedef struct job {
    const esp_codec *codec;
    void *self;
    esp_codec_args args;
    int kind; /* COPY, COMPRESS or DECOMPRESS */
    void *to, *from;
    uint64_t bytes;
} job;
enum { COPY, COMPRESS, DECOMPRESS };

static void call(const job *j) {
    if (j->kind == COPY) must(table->copy(device, j->to, j->from, j->bytes, stream), "copy");
    if (j->kind == COMPRESS) must(j->codec->compress(j->self, &j->args), "compress");
    if (j->kind == DECOMPRESS) must(j->codec->decompress(j->self, &j->args), "decompress");
}
static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
/* Returns the median time of a call in ns. Sets *in_a_row to the mean time when calls are enqueued without waiting
 * in between, and *enqueue to how long the CPU then needs for one. */
static double measured(const job *j, double *in_a_row, double *enqueue) {
    double ns[RUNS];
    uint64_t took = 0;
    for (int i = 0; i < WARM + RUNS; i++) {
        must(table->event_record(device, begin, stream), "event");
        call(j);
        must(table->event_record(device, end, stream), "event");
        must(table->event_sync(device, end), "work");
        must(table->elapsed(device, begin, end, &took), "elapsed");
        if (i >= WARM) ns[i - WARM] = (double)took;
    }
    must(table->event_record(device, begin, stream), "event");
    const double began = now();
    for (int i = 0; i < RUNS; i++) call(j);
    *enqueue = (now() - began) / RUNS;
    must(table->event_record(device, end, stream), "event");
    must(table->event_sync(device, end), "work");
    must(table->elapsed(device, begin, end, &took), "elapsed");
    *in_a_row = (double)took / RUNS;
    qsort(ns, RUNS, sizeof *ns, by_size);
    return ns[RUNS / 2];
}
static void row(const char *spec, uint64_t n, const char *what, int feedback, uint32_t payloads, const job *j,
                double copy_ns) {
    if (cuda_host_counted) {
        cuda_host_counted(1);
        call(j);
        const cuda_host_counts in = cuda_host_counted(0);
        const uint64_t calls = in.launches + in.fills + in.copies + in.records + in.waits + in.queries + in.elapsed +
                               in.captures + in.devices;
        must(table->event_record(device, end, stream), "event");
        must(table->event_sync(device, end), "work");
        const cuda_host_counts c = cuda_host_counted(1);
        const double moved = (double)(c.read + c.written);
        printf("\"%s\",%llu,%s,%d,%u,%d,%d,%d,%.3f,%.3f,%.1f\n", spec, (unsigned long long)n, what, feedback, payloads,
               (int)c.launches, (int)c.fills, (int)calls, (double)c.read / (double)n, (double)c.written / (double)n,
               moved / H100_BYTES_PER_NS / 1000);
    } else {
        double in_a_row, enqueue;
        const double ns = measured(j, &in_a_row, &enqueue);
        printf("\"%s\",%llu,%s,%d,%u,%.2f,%.2f,%.2f,%.1f,%.3f\n", spec, (unsigned long long)n, what, feedback, payloads,
               ns / 1000, in_a_row / 1000, enqueue / 1000, 4 * (double)n / in_a_row, copy_ns / in_a_row);
    }
    fflush(stdout);
}

/* ---- one codec, one size ----------------------------------------------------------------------------------------- */
enum { MOST = 4 };
static void fill(float *x, uint64_t n) { /* normally distributed numbers */
    uint64_t s = 88172645463325252u;
    for (uint64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) {
            s ^= s << 13, s ^= s >> 7, s ^= s << 17;
            sum += (double)(s >> 40) / 16777216.0 - 0.5;
        }
        x[i] = (float)sum;
    }
}

static double copying(uint64_t n) {
    job j = {.kind = COPY, .bytes = 4 * n};
    double in_a_row, enqueue;
    j.to = take(4 * n, ESP_MEM_DEVICE), j.from = take(4 * n, ESP_MEM_DEVICE);
    const double ns = (measured(&j, &in_a_row, &enqueue), in_a_row);
    printf("\"copy\",%llu,copy,0,1,%.2f,%.2f,%.2f,%.1f,1\n", (unsigned long long)n, ns / 1000, ns / 1000,
           enqueue / 1000, 4 * (double)n / ns);
    table->free_(device, j.to, j.bytes, ESP_MEM_DEVICE), table->free_(device, j.from, j.bytes, ESP_MEM_DEVICE);
    return ns;
}

static void codec(const char *spec, uint64_t n, double copy_ns) {
    const esp_plugin *p = espresso_plugin_v1_cuda(&host);
    const char *params = strchr(spec, ':');
    const size_t name = strcspn(spec, ":");
    const esp_device dev = {ESP_CUDA, 0};
    job j = {.codec = NULL};
    for (uint32_t i = 0; i < p->n_codecs; i++)
        if (strlen(p->codecs[i]->name) == name && !strncmp(p->codecs[i]->name, spec, name)) j.codec = p->codecs[i];
    if (!j.codec) {
        fprintf(stderr, "%s: there is no such codec on CUDA\n", spec);
        exit(1);
    }
    must(j.codec->open(&host, params ? params + 1 : "", &j.self), spec);
    const uint64_t rows = n % 1024 ? 1 : n / 1024;
    esp_tensor x = {sizeof x, ESP_F32, 7, n, {take(4 * n, ESP_MEM_DEVICE), 4 * n, dev}, rows, n / rows}, *list = &x;
    esp_bound bound[ESP_ROUNDS_MAX];
    esp_payload payload[ESP_ROUNDS_MAX], many[MOST];
    uint64_t scratch_bytes = 0, offset = 0;
    uint64_t *used = (uint64_t *)take(sizeof *used * ESP_ROUNDS_MAX, ESP_MEM_DEVICE);
    for (uint32_t r = 0; r < j.codec->n_rounds; r++) {
        bound[r] = (esp_bound){.struct_size = sizeof *bound};
        must(j.codec->bound(j.self, &x, r, 1, &bound[r]), "bound");
        payload[r] =
            (esp_payload){{take(bound[r].payload_bytes, ESP_MEM_DEVICE), bound[r].payload_bytes, dev}, used + r};
        if (bound[r].scratch_bytes > scratch_bytes) scratch_bytes = bound[r].scratch_bytes;
    }
    const esp_buf scratch = {take(scratch_bytes, ESP_MEM_DEVICE), scratch_bytes, dev};
    const esp_buf residual = {take(4 * n, ESP_MEM_DEVICE), 4 * n, dev};
    const esp_buf state = {take(bound[0].state_bytes, ESP_MEM_DEVICE), bound[0].state_bytes, dev};
    float *pinned = (float *)take(4 * n, ESP_MEM_PINNED);
    fill(pinned, n);
    must(table->copy(device, x.data.ptr, pinned, 4 * n, stream), "copy");
    must(table->event_record(device, end, stream), "event");
    must(table->event_sync(device, end), "copy");
    j.args = (esp_codec_args){.struct_size = sizeof j.args, .seed = 1, .n_reduced = 1, .n_tensors = 1, .n_payloads = 1};
    j.args.beta = j.args.gamma = 1;
    j.args.tensor = &list, j.args.offset = &offset, j.args.scratch = scratch_bytes ? &scratch : NULL;
    j.args.state = bound[0].state_bytes ? &state : NULL;
    j.args.stream = stream;
    for (int feedback = 0; feedback < 2; feedback++)
        for (uint32_t r = 0; r < j.codec->n_rounds; r++) {
            char what[32];
            snprintf(what, sizeof what, r ? "compress%u" : "compress", r + 1);
            if (!bound[r].payload_bytes) continue;
            j.kind = COMPRESS;
            j.args.round = r;
            j.args.residual = feedback ? &residual : NULL;
            j.args.flags = feedback && j.codec->caps & ESP_CODEC_OWN_FEEDBACK ? ESP_ARG_OWN_MEMORY : 0u;
            j.args.reduced = r && bound[r - 1].payload_bytes ? &payload[r - 1] : NULL;
            j.args.payload = &payload[r];
            row(spec, n, what, feedback, 1, &j, copy_ns);
        }
    const uint32_t last = j.codec->n_rounds - 1;
    uint64_t bytes = 0;
    must(table->copy(device, pinned, used + last, sizeof bytes, stream), "copy");
    must(table->event_record(device, end, stream), "event");
    must(table->event_sync(device, end), "copy");
    memcpy(&bytes, pinned, sizeof bytes);
    for (uint32_t k = 0; k < MOST; k++) many[k] = (esp_payload){{payload[last].data.ptr, bytes, dev}, NULL};
    for (uint32_t k = 1; k <= MOST; k += 3) {
        if (k > 1 && j.codec->n_rounds > 1) continue;
        j.kind = DECOMPRESS;
        j.args.residual = NULL, j.args.round = 0;
        j.args.reduced = last ? &payload[last - 1] : NULL;
        j.args.payload = many, j.args.n_payloads = k, j.args.mode = ESP_OUT_SET;
        row(spec, n, "decompress", 0, k, &j, copy_ns);
    }
    table->free_(device, x.data.ptr, 4 * n, ESP_MEM_DEVICE), table->free_(device, pinned, 4 * n, ESP_MEM_PINNED);
    table->free_(device, residual.ptr, 4 * n, ESP_MEM_DEVICE), table->free_(device, used, 0, ESP_MEM_DEVICE);
    if (scratch.ptr) table->free_(device, scratch.ptr, scratch_bytes, ESP_MEM_DEVICE);
    if (state.ptr) table->free_(device, state.ptr, state.bytes, ESP_MEM_DEVICE);
    for (uint32_t r = 0; r < j.codec->n_rounds; r++)
        if (payload[r].data.ptr) table->free_(device, payload[r].data.ptr, bound[r].payload_bytes, ESP_MEM_DEVICE);
    j.codec->close(j.self);
}

int main(int argc, char **argv) {
    const esp_plugin *p = espresso_plugin_v1_cuda(&host);
    int32_t devices = 0;
    table = p->devices[0];
    must(table->probe(&host, &devices), "probe");
    if (!devices) {
        fprintf(stderr, "skipped: no CUDA device (cuda-counted needs none)\n");
        return 77;
    }
    must(table->open(&host, 0, &device), "open");
    must(table->stream_create(device, &stream), "stream");
    must(table->event_create(device, &begin), "event");
    must(table->event_create(device, &end), "event");
    if (cuda_host_counted)
        puts("codec,elements,call,feedback,payloads,launches,fills,calls,read_bytes_per_element,written_bytes_per_"
             "element,us_"
             "at_3.35TBps");
    else
        puts("codec,elements,call,feedback,payloads,us,us_in_a_row,host_us,input_GBps,of_copy");
    const int first = cuda_host_counted ? 12 : 10, last = cuda_host_counted ? 20 : 26;
    for (int log = first; log <= last; log += cuda_host_counted ? 8 : 4) {
        const uint64_t n = (uint64_t)1 << log;
        const double copy_ns = cuda_host_counted ? 1 : copying(n);
        for (uint32_t i = 0; i < p->n_codecs && argc < 2; i++) codec(p->codecs[i]->name, n, copy_ns);
        for (int i = 1; i < argc; i++) codec(argv[i], n, copy_ns);
    }
    table->event_destroy(device, begin), table->event_destroy(device, end);
    table->stream_destroy(device, stream);
    table->close(device);
    return 0;
}
