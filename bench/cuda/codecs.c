/* codecs.c: measures codecs on CUDA by calls of their compress and decompress functions, without training. It prints
 * CSV with a row for each codec, size and function. Row `copy` is a device-to-device copy of 4 bytes per element, for
 * comparison. Rows `step` are per tensor, of training steps with one tensor (us) and with 32 (us_in_a_row, host_us),
 * from the first esp_push to the end of esp_wait_all; host_us is the time in esp_push (steps.c).
 *
 *     build/bench/cuda [SPEC...]            on a GPU: median of 21 calls after 5 for warm-up, timed by CUDA events.
 *                                           Calls take turns in buffers that no L2 can hold: gradients of 128 MiB or
 *                                           more
 *     build/bench/cuda-counted [SPEC...]    on tests/cuda, which runs kernels on the CPU: counts launches and the
 *                                           bytes that kernels move, and divides these by an H100's 3.35 TB/s */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/cuda/steps.h"

const esp_plugin *espresso_plugin_v1_cuda(const esp_host *h);
typedef struct cuda_host_counts {
    uint64_t launches, fills, copies, read, written;
    uint64_t records, waits, queries, elapsed, captures, devices, untouched;
} cuda_host_counts;
cuda_host_counts cuda_host_counted(int reset) __attribute__((weak)); /* defined in tests/cuda; NULL on a GPU */

#define H100_BYTES_PER_NS 3350.0
enum { WARM = 5, RUNS = 21 };
enum { TENSORS = 32, TENSORS_COUNTED = 8, MOST_STEP = 1 << 22 };
#define ROTATED_BYTES (1ull << 27)

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

/* ---- buffers ----------------------------------------------------------------------------------------------------- */
/* Device memory with the buffers of a call, `slots` times. Pointers elsewhere point into slot 0. */
static struct {
    uint8_t *at;
    uint64_t stride, slots, turn; /* turn: the slot of the next call */
} arena;

static uint64_t part_bytes(uint64_t bytes) { return (bytes + 255) / 256 * 256; }
static void arena_open(uint64_t stride, uint64_t data_bytes) {
    const uint64_t least = cuda_host_counted ? TENSORS_COUNTED : data_bytes > 4ull * MOST_STEP ? 1 : TENSORS;
    arena.stride = stride;
    arena.slots = cuda_host_counted ? 1 : (ROTATED_BYTES - 1) / data_bytes + 1;
    if (arena.slots < least) arena.slots = least;
    arena.at = take(stride * arena.slots, ESP_MEM_DEVICE);
    arena.turn = 0;
}
static void arena_close(void) { table->free_(device, arena.at, arena.stride * arena.slots, ESP_MEM_DEVICE); }
static void *arena_part(uint64_t *offset, uint64_t bytes) {
    uint8_t *p = bytes ? arena.at + *offset : NULL;
    *offset += part_bytes(bytes);
    return p;
}
static void settle(void) {
    must(table->event_record(device, end, stream), "event");
    must(table->event_sync(device, end), "work");
}
/* Copies slot 0 into all others. */
static void arena_spread(void) {
    const uint64_t all = arena.stride * arena.slots;
    for (uint64_t done = arena.stride; done < all; done *= 2)
        must(table->copy(device, arena.at + done, arena.at, done < all - done ? done : all - done, stream), "copy");
    settle();
}
static void *in_turn(void *p) { return p ? (uint8_t *)p + arena.turn * arena.stride : NULL; }

/* ---- measuring --------------------------------------------------------------------------------------------------- */
typedef struct job {
    const esp_codec *codec;
    void *self;
    esp_codec_args args;
    int kind; /* COPY, COMPRESS or DECOMPRESS */
    void *to, *from;
    uint64_t bytes;
} job;
enum { COPY, COMPRESS, DECOMPRESS, MOST = 4 };

static void call_codec(const job *j) {
    esp_codec_args a = j->args;
    esp_tensor x = *a.tensor[0], *list = &x;
    esp_buf residual, state;
    esp_payload reduced, payload[MOST];
    x.data.ptr = in_turn(x.data.ptr);
    a.tensor = &list;
    if (a.residual) residual = *a.residual, residual.ptr = in_turn(residual.ptr), a.residual = &residual;
    if (a.state) state = *a.state, state.ptr = in_turn(state.ptr), a.state = &state;
    if (a.reduced) reduced = *a.reduced, reduced.data.ptr = in_turn(reduced.data.ptr), a.reduced = &reduced;
    for (uint32_t k = 0; k < a.n_payloads; k++) {
        payload[k] = a.payload[k];
        payload[k].data.ptr = in_turn(payload[k].data.ptr), payload[k].used = in_turn(payload[k].used);
    }
    a.payload = payload;
    must(j->kind == COMPRESS ? j->codec->compress(j->self, &a) : j->codec->decompress(j->self, &a), "codec");
}
static void call(const job *j) {
    if (j->kind == COPY)
        must(table->copy(device, in_turn(j->to), in_turn(j->from), j->bytes, stream), "copy");
    else
        call_codec(j);
    arena.turn = (arena.turn + 1) % arena.slots;
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
    const double began = bench_now();
    for (int i = 0; i < RUNS; i++) call(j);
    *enqueue = (bench_now() - began) / RUNS;
    must(table->event_record(device, end, stream), "event");
    must(table->event_sync(device, end), "work");
    must(table->elapsed(device, begin, end, &took), "elapsed");
    *in_a_row = (double)took / RUNS;
    qsort(ns, RUNS, sizeof *ns, bench_by_size);
    return ns[RUNS / 2];
}
/* Prints what was counted in `calls` calls for n elements each. */
static void counted(const char *spec, uint64_t n, const char *what, int feedback, uint32_t payloads, uint32_t calls,
                    const cuda_host_counts *c, uint64_t of_runtime) {
    const double each = 1.0 / calls, moved = (double)(c->read + c->written) * each;
    printf("\"%s\",%llu,%s,%d,%u,%g,%g,%g,%.3f,%.3f,%.1f\n", spec, (unsigned long long)n, what, feedback, payloads,
           (double)c->launches * each, (double)c->fills * each, (double)of_runtime * each,
           (double)c->read * each / (double)n, (double)c->written * each / (double)n, moved / H100_BYTES_PER_NS / 1000);
    fflush(stdout);
}
/* Calls of the runtime, without those that ask whether work has ended: their number depends on how long it takes. */
static uint64_t calls_of(const cuda_host_counts *c) {
    return c->launches + c->fills + c->copies + c->records + c->waits + c->elapsed;
}
static void timed(const char *spec, uint64_t n, const char *what, int feedback, uint32_t payloads, double ns,
                  double in_a_row, double enqueue, double copy_ns) {
    printf("\"%s\",%llu,%s,%d,%u,%.2f,%.2f,%.2f,%.1f,%.3f\n", spec, (unsigned long long)n, what, feedback, payloads,
           ns / 1000, in_a_row / 1000, enqueue / 1000, 4 * (double)n / in_a_row, copy_ns / in_a_row);
    fflush(stdout);
}
static void row(const char *spec, uint64_t n, const char *what, int feedback, uint32_t payloads, const job *j,
                double copy_ns) {
    arena.turn = 0;
    if (cuda_host_counted) {
        cuda_host_counted(1);
        call(j);
        cuda_host_counts c = cuda_host_counted(0);
        const uint64_t calls = calls_of(&c) + c.captures + c.devices;
        settle();
        c = cuda_host_counted(1);
        counted(spec, n, what, feedback, payloads, 1, &c, calls);
    } else {
        double in_a_row, enqueue;
        const double ns = measured(j, &in_a_row, &enqueue);
        timed(spec, n, what, feedback, payloads, ns, in_a_row, enqueue, copy_ns);
    }
}
static cuda_host_counts last_step;
static void step_begins(void) { cuda_host_counted(1); }
static void step_ended(void) { last_step = cuda_host_counted(0); }
/* What each further tensor costs in a step. */
static void steps_counted(const char *spec, uint64_t n, bench_step *b) {
    cuda_host_counts few, c;
    b->begins = step_begins, b->ended = step_ended;
    b->tensors = TENSORS_COUNTED / 2;
    bench_steps(b);
    few = last_step;
    b->tensors = TENSORS_COUNTED;
    bench_steps(b);
    c = last_step;
    c.launches -= few.launches, c.fills -= few.fills, c.read -= few.read, c.written -= few.written;
    counted(spec, n, "step", 0, 1, TENSORS_COUNTED / 2, &c, calls_of(&last_step) - calls_of(&few));
}
static void steps(const char *spec, uint64_t n, void *gradient, double copy_ns) {
    void *at[TENSORS];
    bench_step b = {.codec = spec, .gradient = at, .elements = n, .stream = stream};
    for (uint32_t t = 0; t < TENSORS; t++) at[t] = (uint8_t *)gradient + t % arena.slots * arena.stride;
    if (cuda_host_counted) {
        steps_counted(spec, n, &b);
        return;
    }
    b.tensors = 1;
    bench_steps(&b);
    const double alone = b.step_ns;
    b.tensors = TENSORS;
    bench_steps(&b);
    timed(spec, n, "step", 0, 1, alone, b.step_ns, b.push_ns, copy_ns);
}

/* ---- one codec, one size ----------------------------------------------------------------------------------------- */
static void fill(float *x, uint64_t n) { /* normally distributed numbers, the same ones in each call */
    static float *numbers;
    static uint64_t have, s = 88172645463325252u;
    float *all = n > have ? realloc(numbers, n * sizeof *all) : numbers;
    if (!all) must(ESP_E_NOMEM, "numbers");
    for (numbers = all; have < n; have++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) {
            s ^= s << 13, s ^= s >> 7, s ^= s << 17;
            sum += (double)(s >> 40) / 16777216.0 - 0.5;
        }
        numbers[have] = (float)sum;
    }
    memcpy(x, numbers, n * sizeof *x);
}

static double copying(uint64_t n) {
    job j = {.kind = COPY, .bytes = 4 * n};
    double in_a_row, enqueue;
    uint64_t offset = 0;
    arena_open(2 * part_bytes(4 * n), 4 * n);
    j.to = arena_part(&offset, 4 * n), j.from = arena_part(&offset, 4 * n);
    const double ns = measured(&j, &in_a_row, &enqueue);
    timed("copy", n, "copy", 0, 1, ns, in_a_row, enqueue, in_a_row);
    arena_close();
    return in_a_row;
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
    esp_tensor x = {sizeof x, ESP_F32, 7, n, {NULL, 4 * n, dev}, rows, n / rows}, *list = &x;
    esp_bound bound[ESP_ROUNDS_MAX];
    esp_payload payload[ESP_ROUNDS_MAX], many[MOST];
    uint64_t scratch_bytes = 0, offset = 0, at = 0, stride = 2 * part_bytes(4 * n);
    for (uint32_t r = 0; r < j.codec->n_rounds; r++) {
        bound[r] = (esp_bound){.struct_size = sizeof *bound};
        must(j.codec->bound(j.self, &x, r, 1, &bound[r]), "bound");
        stride += part_bytes(bound[r].payload_bytes) + part_bytes(sizeof *payload->used);
        if (bound[r].scratch_bytes > scratch_bytes) scratch_bytes = bound[r].scratch_bytes;
    }
    arena_open(stride + part_bytes(bound[0].state_bytes), 4 * n);
    x.data.ptr = arena_part(&at, 4 * n);
    const esp_buf residual = {arena_part(&at, 4 * n), 4 * n, dev};
    const esp_buf state = {arena_part(&at, bound[0].state_bytes), bound[0].state_bytes, dev};
    for (uint32_t r = 0; r < j.codec->n_rounds; r++) {
        payload[r].data = (esp_buf){arena_part(&at, bound[r].payload_bytes), bound[r].payload_bytes, dev};
        payload[r].used = arena_part(&at, sizeof *payload->used);
    }
    const esp_buf scratch = {take(scratch_bytes, ESP_MEM_DEVICE), scratch_bytes, dev};
    float *pinned = (float *)take(4 * n, ESP_MEM_PINNED);
    fill(pinned, n);
    must(table->copy(device, x.data.ptr, pinned, 4 * n, stream), "copy");
    arena_spread();
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
            arena_spread(); /* the next calls read what this one wrote, in any slot */
        }
    const uint32_t last = j.codec->n_rounds - 1;
    uint64_t bytes = 0;
    must(table->copy(device, pinned, payload[last].used, sizeof bytes, stream), "copy");
    settle();
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
    if (n <= (cuda_host_counted ? 1 << 12 : MOST_STEP)) {
        steps(spec, n, x.data.ptr, copy_ns);
    }
    arena_close();
    table->free_(device, pinned, 4 * n, ESP_MEM_PINNED);
    if (scratch.ptr) table->free_(device, scratch.ptr, scratch_bytes, ESP_MEM_DEVICE);
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
