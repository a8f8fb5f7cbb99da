/* device_job.h runs a job with gradients in host memory and one with gradients in device memory, and compares
 * results and statistics bit by bit. The device is a fake one or, with DEVICE_IS_CUDA, that of plugin cuda: a GPU,
 * or an emulator. */
#ifndef DEVICE_JOB_H
#define DEVICE_JOB_H
#include "tests/lib/test.h"
#include "tests/executor/small_model.h"
#ifdef DEVICE_IS_CUDA
const esp_plugin *espresso_plugin_v1_cuda(const esp_host *h);
#define device_plugin espresso_plugin_v1_cuda
#define DEVICE_KIND ESP_CUDA
static int fake_live, fake_refused;
#else
#include "tests/device/fake.c"
#define device_plugin fake_plugin
#define DEVICE_KIND FAKE_KIND
#endif

#define FLAT_GPU "comp@gpu > flat.allgather > decomp@gpu"
#define TREE_GPU "intra.reduce_scatter > comp@gpu > inter.allgather > decomp@gpu > intra.allgather"
#define TREE_MIXED                                                                                                     \
    "comp@gpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > "  \
    "decomp@gpu > intra.allgather"

enum { RANKS = 4, STEPS = 3 };

typedef struct outcome {
    uint32_t value[STEPS][TOTAL]; /* bits of floats */
    uint64_t nonfinite;
} outcome;

typedef struct device_job {
    task task;
    /* where gradients are: 0 in host memory; 1 on a device; 2 tensors alternate between two devices and the host; 3 on
     * the second device */
    int devices;
    int nonfinite;
    int wait;
    esp_plugin_fn plugin;
    const char *backend;
    const char *gather; /* codec for the parameters that ranks gather */
    esp_plugin_fn backends;
    void (*between)(esp_ctx *ctx, struct device_job *j, int step);
    outcome *out;
} device_job;

/* Returns a job whose ranks synchronize gradients of this type, split and merged as small_model.h's `kind` says. */
static inline device_job job_of(const char *codec, const char *option, esp_dtype dtype, int kind) {
    return (device_job){.task = {.codec = codec, .option = option, .dtype = dtype, .kind = kind}};
}

/* The memory of a tensor's gradient. On a device, it has a stream, and pinned host memory that the test accesses. */
typedef struct place {
    const esp_device_table *table;
    void *self, *grad, *pinned;
    esp_stream stream;
    esp_device device;
    uint64_t bytes;
} place;

static inline void place_take(place *p) {
#ifdef DEVICE_IS_CUDA
    if (p->table->alloc(p->self, p->bytes, ESP_MEM_DEVICE, &p->grad) ||
        p->table->alloc(p->self, p->bytes, ESP_MEM_PINNED, &p->pinned))
        abort();
#else
    p->grad = fake_take(p->bytes, 0), p->pinned = fake_take(p->bytes, 1);
#endif
}
static inline void place_give(place *p) {
#ifdef DEVICE_IS_CUDA
    p->table->free_(p->self, p->grad, p->bytes, ESP_MEM_DEVICE);
    p->table->free_(p->self, p->pinned, p->bytes, ESP_MEM_PINNED);
#else
    fake_give(p->grad), fake_give(p->pinned);
#endif
}
static inline void place_open(esp_ctx *ctx, place *p, esp_device d, uint64_t bytes) {
    memset(p, 0, sizeof *p);
    p->device = d;
    p->bytes = bytes;
    if (ctx->host.device(ctx->host.user, d, &p->table, &p->self)) abort();
    if (d.kind) {
        place_take(p);
        p->table->stream_create(p->self, &p->stream);
    } else {
        p->grad = p->pinned = malloc(bytes);
    }
}
static inline void place_sync(place *p) {
    void *event;
    p->table->event_create(p->self, &event);
    p->table->event_record(p->self, event, p->stream);
    p->table->event_sync(p->self, event);
    p->table->event_destroy(p->self, event);
}
static inline void place_get(place *p) {
#ifdef DEVICE_IS_CUDA
    CHECK(p->table->copy(p->self, p->pinned, p->grad, p->bytes, p->stream) == ESP_OK);
    place_sync(p);
#else
    fake_get(p->pinned, p->grad, p->bytes);
#endif
}
static inline void place_close(place *p) {
    if (!p->device.kind) {
        free(p->grad);
        return;
    }
    place_sync(p);
    if (p->stream.native) p->table->stream_destroy(p->self, p->stream);
    place_give(p);
}
static inline void place_default(place *p) {
#ifdef DEVICE_IS_CUDA
    if (p->device.kind) p->table->stream_destroy(p->self, p->stream), p->stream.native = NULL;
#else
    (void)p;
#endif
}
/* Returns device number k, or the last one if there are fewer. */
static inline esp_device test_device(int32_t k) {
    int32_t n = k + 1;
#ifdef DEVICE_IS_CUDA
    const esp_host host = ESP_ZERO;
    CHECK(device_plugin(&host)->devices[0]->probe(&host, &n) == ESP_OK && n > 0);
#endif
    return (esp_device){DEVICE_KIND, k < n ? k : n - 1};
}

static inline esp_device device_of(const device_job *j, int t) {
    const esp_device all[] = {test_device(0), {0, 0}, test_device(1)};
    return j->devices == 3 ? all[2] : j->devices == 2 ? all[t % 3] : j->devices ? all[0] : all[1];
}

static inline float input(int32_t rank, int step, uint64_t i) {
    const uint64_t x = (i * 2654435761u + (uint64_t)rank * 97u + (uint64_t)step * 31u) % 2003u;
    return ((float)x - 1001.0f) / 64.0f;
}

/* Writes the gradient by a copy on the trainer's stream, which runs late, so that the library must wait for it. */
static inline void write_late(place *p) {
    if (p->device.kind) CHECK(p->table->copy(p->self, p->grad, p->pinned, p->bytes, p->stream) == ESP_OK);
}

/* Ends a step. j->wait selects how: 0 waits for all tensors at once, 1 for each, the last first, 2 lets streams wait,
 * and 3 calls esp_test() before it waits. */
static inline void end_step(esp_ctx *ctx, const device_job *j, place *p) {
    for (int t = TENSORS - 1; t >= 0; t--) {
        if (j->wait == 1) CHECK(esp_wait(ctx, (uint32_t)t) == ESP_OK);
        if (j->wait == 2) CHECK(esp_wait_on(ctx, (uint32_t)t, p[t].stream) == ESP_OK);
        while (j->wait == 3 && esp_test(ctx, (uint32_t)t) == ESP_PENDING) usleep(50);
        if (j->wait == 2 && p[t].device.kind)
            CHECK(p[t].table->copy(p[t].self, p[t].pinned, p[t].grad, p[t].bytes, p[t].stream) == ESP_OK);
        if ((j->wait == 1 || j->wait == 3) && p[t].device.kind) place_get(&p[t]);
    }
    CHECK(esp_wait_all(ctx) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) {
        if (!p[t].device.kind) continue;
        place_sync(&p[t]);
        if (!j->wait) place_get(&p[t]);
    }
}

/* Checks that a tensor's ops on its device ran one after the other, during the step. A GPU's times are floats. */
static inline void check_times(const esp_ctx *ctx, uint64_t begin) {
    const uint64_t slack = (int)DEVICE_KIND == (int)ESP_CUDA ? 1000 : 0;
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++) {
        const esp__op *op = &ctx->active.program.ops[i], *next = op + 1;
        const esp__span *t = &ctx->active.op_time[i];
        const int last = i + 1 == ctx->active.program.n_ops || next->unit != op->unit;
        CHECK(t->start_ns + slack >= begin && t->end_ns + slack >= t->start_ns && t->end_ns <= esp__now_ns() + slack);
        if (!last && op->timed_later && next->timed_later) CHECK(t[1].start_ns + slack >= t->end_ns);
    }
}

/* Zeroes the elements of a sharded gradient that belong to other ranks, since their values are undefined. */
static inline void forget_others(esp_ctx *ctx, uint32_t t, uint16_t *half) {
    uint64_t begin = 0, n = 0;
    CHECK(esp_part(ctx, t, esp_rank(ctx), &begin, &n) == ESP_OK);
    for (uint64_t i = 0; i < counts[t]; i++)
        if (i - begin >= n) half[i] = 0;
}

static inline void device_step(esp_ctx *ctx, const device_job *j, place *p, int step) {
    const esp_dtype d = j->task.dtype;
    outcome *out = &j->out[esp_rank(ctx)];
    const uint64_t begin = esp__now_ns();
    for (int t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < counts[t]; i++)
            test_value_set(d, p[t].pinned, i, input(esp_rank(ctx), step, begins[t] + i));
        if (j->nonfinite && step == 1 && esp_rank(ctx) == 1 && t % 2 == 0) {
            test_value_set(d, p[t].pinned, counts[t] / 2, t ? NAN : INFINITY);
        }
    }
    for (int k = 0; k < TENSORS; k++) {
        const int t = (k + step + esp_rank(ctx)) % TENSORS;
        write_late(&p[t]);
        CHECK(esp_push(ctx, (uint32_t)t, p[t].grad, p[t].stream) == ESP_OK);
    }
    end_step(ctx, j, p);
    check_times(ctx, begin);
    for (int t = 0; t < TENSORS && j->task.tensor_flags & ESP_SHARD; t++) {
        float *params = p[t].pinned;
        if (d != ESP_F32) {
            forget_others(ctx, (uint32_t)t, p[t].pinned);
            continue;
        }
        for (uint64_t i = 0; i < counts[t]; i++) params[i] *= -1.0f;
        write_late(&p[t]);
        const int now = p[t].device.kind && t % 2;
        if (now) place_sync(&p[t]);
        CHECK(esp_gather(ctx, (uint32_t)t, p[t].grad, now ? (esp_stream){{0, 0}, NULL} : p[t].stream) == ESP_OK);
        if (p[t].device.kind) place_get(&p[t]);
    }
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < counts[t]; i++)
            memcpy(&out->value[step][begins[t] + i], (uint8_t *)p[t].pinned + i * esp_dtype_bytes(d),
                   esp_dtype_bytes(d));
}

static inline void device_body(esp_ctx *ctx, void *user) {
    device_job *j = user;
    place p[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = names[t],
                             .count = counts[t],
                             .dtype = j->task.dtype,
                             .flags = j->task.tensor_flags,
                             .gather = j->gather,
                             .device = device_of(j, t)};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], d.device, d.count * esp_dtype_bytes(d.dtype));
        if (t % 2) place_default(&p[t]);
    }
    if (j->wait % 2 == 0) ctx->devices.piece_bytes = 64;
    const esp_status s = esp_start(ctx);
    CHECK(s == ESP_OK);
    esp__core_times(ctx, ESP__CORE_STATS, true);
    if (s) fprintf(stderr, "%s %s\n", j->task.codec, j->task.option);
    for (int step = 0; step < STEPS && !s; step++) {
        if (step) ctx->steps.unasked = 100; /* from then on, waits for a tensor come as a surprise */
        device_step(ctx, j, p, step);
        if (j->between && step + 1 < STEPS) j->between(ctx, j, step);
    }
    esp_stats stats = ESP_ZERO;
    stats.struct_size = sizeof stats;
    CHECK(esp_stats_read(ctx, &stats) == ESP_OK);
    j->out[esp_rank(ctx)].nonfinite = stats.nonfinite;
    for (int t = 0; t < TENSORS; t++) place_close(&p[t]);
}

static inline int run_devices(device_job *j, int32_t size, int32_t per_machine, uint32_t flags) {
    static _Thread_local text strategy;
    esp_plugin_fn entries[2] = {j->plugin ? j->plugin : device_plugin, j->backends};
    strategy = strategy_of(j->task.kind, j->task.codec, j->task.option);
    return test_run_failures(&(test_job){.size = size,
                                         .per_machine = per_machine,
                                         .body = device_body,
                                         .user = j,
                                         .config.backend = j->backend,
                                         .config.strategy = strategy.data,
                                         .config.flags = flags,
                                         .config.timeout_ms = 30000,
                                         .config.builtin = entries,
                                         .config.n_builtin = j->backends ? 2 : 1});
}

/* Runs the job with gradients in host memory and in device memory, and compares the results. */
static inline int same_on_device(const device_job *like, int32_t size, int32_t per_machine, uint32_t flags) {
    device_job j = *like;
    outcome *cpu = calloc(RANKS, sizeof *cpu), *dev = calloc(RANKS, sizeof *dev);
    int bad;
    j.devices = 0, j.out = cpu;
    bad = run_devices(&j, size, per_machine, flags);
    j.devices = like->devices ? like->devices : 1, j.out = dev;
    bad += run_devices(&j, size, per_machine, flags);
    for (int32_t r = 0; r < size; r++)
        for (int s = 0; s < STEPS; s++)
            for (uint64_t i = 0; i < TOTAL; i++)
                if (cpu[r].value[s][i] != dev[r].value[s][i]) {
                    if (bad++ < 5)
                        fprintf(stderr, "rank %d, step %d, element %d: %08x on the CPU, %08x on the device\n", (int)r,
                                s, (int)i, cpu[r].value[s][i], dev[r].value[s][i]);
                    i = TOTAL;
                }
    for (int32_t r = 0; r < size; r++)
        if (cpu[r].nonfinite != dev[r].nonfinite && bad++ < 5)
            fprintf(stderr, "rank %d: %d parts with NaN or Inf on the CPU, %d on the device\n", (int)r,
                    (int)cpu[r].nonfinite, (int)dev[r].nonfinite);
    if (fake_live || fake_refused) {
        fprintf(stderr, "%d blocks, streams or events are left, %d copies were refused\n", fake_live, fake_refused);
        bad++;
    }
    fake_refused = 0;
    if (bad)
        fprintf(stderr, "%d ranks, %d a machine, %s, kind %d, dtype %u, wait %d: %s\n", (int)size, (int)per_machine,
                like->task.codec, like->task.kind, (unsigned)like->task.dtype, like->wait, like->task.option);
    free(cpu);
    free(dev);
    return bad;
}
#endif
