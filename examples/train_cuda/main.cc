/* main.cc: the trainer of examples/train with the network on a CUDA device. Forward, backward and update are enqueued
 * on one stream. esp_push waits on the device for the gradient; esp_wait_on makes the update wait there for the average
 * of the ranks. The host calls esp_wait_all only after it has enqueued the next forward pass. */
#include "espresso.h"
#include "net.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
extern "C" {
#include "../train/report.h"
#include "../train/run.h"
}

/* Flags with their defaults. Flags with numbers come first. The enumerators are indices into flags[]. */
enum { EPOCHS, BATCH, LR, MOMENTUM, SEED, MAX_STEPS, LIMIT_TRAIN, LIMIT_TEST, SHARD, BF16, N_NUMBERS };
enum { STRATEGY = N_NUMBERS, CODEC, BACKEND, DATA, JSON, CURVE, N_FLAGS };
static flag flags[N_FLAGS] = {
    {"--epochs", "3", "passes over the training images", 1, 0},
    {"--batch", "128", "images a step and rank", 1, 0},
    {"--lr", "0.3", "learning rate at its highest", 0, 0},
    {"--momentum", "0.5", "of the updates", 0, 0},
    {"--seed", "1", "of the first parameters and of the order of images", 0, 0},
    {"--max-steps", "0", "stop after so many steps; 0: do not", 0, 0},
    {"--limit-train", "0", "use the first N training images; 0: all", 0, 0},
    {"--limit-test", "0", "use the first N test images; 0: all", 0, 0},
    {"--shard", "0", "1: each rank keeps the optimizer's state for a part of the parameters only", 0, 0},
    {"--bf16", "0", "1: gradients in bfloat16", 0, 0},
    {"--strategy", NULL, "fp32, layerwise, auto, or a strategy file", 0, 0},
    {"--codec", NULL, "such as topk:ratio=0.01; for auto several, ';' between", 0, 0},
    {"--backend", NULL, "such as nccl, or shm", 0, 0},
    {"--data", "/usr/share/datasets/fashion-mnist", "folder of IDX files, plain or .gz", 0, 0},
    {"--json", NULL, "file for the result as one line of JSON; - is the standard output", 0, 0},
    {"--curve", NULL, "file for a line a step: step, seconds, loss", 0, 0},
};

typedef struct trainer {
    esp_ctx *ctx;
    uint32_t id[N_PARAMS];
    esp_stream stream;
    model host;            /* names, sizes and initial values */
    network net;
    dataset train, test;
    images train_images, test_images;
    uint32_t *order, *order_here; /* order of training images on the device, and in pinned host memory */
    double *loss, *loss_here;     /* loss of each step on the device, and on the host */
    double *step_ms;
    double lr;
    size_t n_read; /* losses that were copied to the host */
    int open;
} trainer;

static void die(const char *what, const char *why) { run_die("train_cuda", what, why); }
static void check(const trainer *t, esp_status s, const char *what) {
    if (s < 0) die(what, esp_last_error(t->ctx));
}

/* ---- start ------------------------------------------------------------------------------------------------------- */
#ifdef ESPRESSO_STATIC_PLUGINS /* plugin cuda is linked into this program */
extern "C" const esp_plugin *espresso_plugin_v1_cuda(const esp_host *h);
static const esp_plugin_fn linked[] = {espresso_plugin_v1_cuda};
#endif
static void join_ranks(trainer *t) {
    esp_config cfg = ESP_ZERO;
    cfg.strategy = flags[STRATEGY].text, cfg.codec = flags[CODEC].text, cfg.backend = flags[BACKEND].text;
    cfg.optimizer = flags[MOMENTUM].number > 0 ? ESP_OPTIMIZER_MOMENTUM : ESP_OPTIMIZER_SGD;
    cfg.momentum = (float)flags[MOMENTUM].number;
#ifdef ESPRESSO_STATIC_PLUGINS
    cfg.builtin = linked, cfg.n_builtin = 1;
#endif
    check(t, esp_open(&cfg, &t->ctx), "esp_open");
}
static int choose_device(const trainer *t) {
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) die("no CUDA device", e != cudaSuccess ? cudaGetErrorString(e) : "there is none");
    CUDA(cudaSetDevice(esp_rank(t->ctx) % n));
    return esp_rank(t->ctx) % n;
}
/* Tensors are added in backward order, and all ranks begin with rank 0's values. */
static void add_tensors(trainer *t, int device) {
    t->stream.dev.kind = ESP_CUDA, t->stream.dev.ordinal = device, t->stream.native = t->net.stream;
    for (int i = 0; i < N_PARAMS; i++) {
        const param *p = &t->host.p[i];
        esp_tensor_desc desc = ESP_ZERO;
        desc.name = p->name, desc.count = p->count, desc.rows = p->rows, desc.cols = p->cols;
        desc.device = t->stream.dev, desc.dtype = flags[BF16].number > 0 ? ESP_BF16 : ESP_F32;
        desc.flags = flags[SHARD].number > 0 ? ESP_SHARD : 0;
        check(t, esp_tensor_add(t->ctx, &desc, &t->id[i]), p->name);
    }
    check(t, esp_start(t->ctx), "esp_start");
    check(t, esp_broadcast_on(t->ctx, t->stream, t->net.value[0], t->host.n_values * sizeof(float), 0), "broadcast");
    for (int i = 0; i < N_PARAMS; i++) {
        uint64_t begin, n;
        check(t, esp_part(t->ctx, t->id[i], esp_rank(t->ctx), &begin, &n), "esp_part");
        t->host.p[i].begin = (size_t)begin, t->host.p[i].n = (size_t)n;
    }
    net_state(&t->net);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */
/* Backward calls this when it has enqueued the work for gradient i, which espresso averages while backward goes on. */
static void push(void *user, int i) {
    trainer *t = (trainer *)user;
    check(t, esp_push(t->ctx, t->id[i], t->net.grad[i], t->stream), t->host.p[i].name);
}
static void end_step(trainer *t) {
    if (t->open) check(t, esp_wait_all(t->ctx), "esp_wait_all");
    t->open = 0;
}
/* Residuals of earlier steps must be scaled to a new learning rate. Changes of less than a tenth do not matter. */
static void scale_feedback(trainer *t, double lr) {
    if (t->lr > 0 && fabs(lr / t->lr - 1) < 0.1) return;
    if (t->lr > 0) check(t, esp_feedback_scale(t->ctx, (float)(t->lr / lr)), "esp_feedback_scale");
    t->lr = lr;
}
static void step(trainer *t, size_t s, size_t first, double lr) {
    const size_t batch = (size_t)flags[BATCH].number;
    net_forward(&t->net, &t->train_images, t->order + first, 0, batch);
    end_step(t); /* ends the previous step */
    scale_feedback(t, lr);
    t->open = 1;
    net_backward(&t->net, batch, t->loss + s, push, t);
    for (int i = 0; i < N_PARAMS; i++) check(t, esp_wait_on(t->ctx, t->id[i], t->stream), "esp_wait_on");
    net_update(&t->net, (float)lr, (float)flags[MOMENTUM].number);
    if (flags[SHARD].number < 1) return;
    end_step(t);
    for (int i = N_PARAMS - 1; i >= 0; i--)
        check(t, esp_gather(t->ctx, t->id[i], t->net.value[i], t->stream), "esp_gather");
}
/* Waits for the device. Returns the mean of the losses of the first n steps that were not yet read. */
static double read_losses(trainer *t, size_t n) {
    double sum = 0;
    CUDA(cudaStreamSynchronize(t->net.stream));
    CUDA(cudaMemcpy(t->loss_here + t->n_read, t->loss + t->n_read, (n - t->n_read) * sizeof(double),
                    cudaMemcpyDeviceToHost));
    for (size_t i = t->n_read; i < n; i++) sum += t->loss_here[i];
    sum /= (double)(n - t->n_read), t->n_read = n;
    check(t, esp_report_loss(t->ctx, sum), "esp_report_loss");
    return sum;
}

/* Returns the fraction of test images that the model classifies correctly. Each rank tests some of them. */
static double accuracy(trainer *t) {
    const size_t batch = (size_t)flags[BATCH].number, stride = (size_t)esp_size(t->ctx) * batch;
    uint32_t right = 0;
    CUDA(cudaMemsetAsync(t->net.right, 0, sizeof right, t->net.stream));
    for (size_t i = (size_t)esp_rank(t->ctx) * batch; i < t->test.n; i += stride) {
        const size_t n = t->test.n - i < batch ? t->test.n - i : batch;
        net_forward(&t->net, &t->test_images, NULL, i, n);
        net_count(&t->net, n);
    }
    CUDA(cudaStreamSynchronize(t->net.stream));
    CUDA(cudaMemcpy(&right, t->net.right, sizeof right, cudaMemcpyDeviceToHost));
    float sum = (float)right;
    check(t, esp_allreduce(t->ctx, &sum, 1), "esp_allreduce");
    return (double)sum / (double)t->test.n;
}
static void shuffle(trainer *t, size_t s) {
    CUDA(cudaStreamSynchronize(t->net.stream)); /* the stream may still read the last order */
    run_shuffle(t->order_here, t->train.n, (uint64_t)flags[SEED].number << 32 | s);
    CUDA(cudaMemcpyAsync(t->order, t->order_here, t->train.n * sizeof *t->order, cudaMemcpyDefault, t->net.stream));
}
static void train(trainer *t) {
    const size_t batch = (size_t)flags[BATCH].number, rank = (size_t)esp_rank(t->ctx);
    const size_t ranks = (size_t)esp_size(t->ctx), per_epoch = t->train.n / (batch * ranks);
    const size_t all = per_epoch * (size_t)flags[EPOCHS].number, limit = (size_t)flags[MAX_STEPS].number;
    const size_t total = limit && limit < all ? limit : all;
    if (total == 0) die("--batch", "is more than there are images for");
    t->step_ms = (double *)calloc(2 * total, sizeof *t->step_ms), t->loss_here = t->step_ms + total;
    if (!t->step_ms) die("train", "out of memory");
    CUDA(cudaMalloc((void **)&t->loss, total * sizeof(double)));
    CUDA(cudaMalloc((void **)&t->order, t->train.n * sizeof(uint32_t)));
    CUDA(cudaHostAlloc((void **)&t->order_here, t->train.n * sizeof(uint32_t), 0));
    double loss = 0, right = 0, bytes = -report_bytes(t->ctx, "train_cuda");
    for (size_t s = 0; s < total; s++) {
        const size_t at = s % per_epoch, last = s + 1 == total;
        if (at == 0) shuffle(t, s);
        const double begin = run_now_ms();
        step(t, s, (at * ranks + rank) * batch, run_lr(flags[LR].number, s, total));
        t->step_ms[s] = run_now_ms() - begin; /* includes the wait for the previous step */
        if (at % 40 != 39 && at + 1 < per_epoch && !last) continue;
        loss = read_losses(t, s + 1);
        if (rank == 0) printf("step %zu of %zu: loss %.3f\n", s + 1, total, loss);
        if (at + 1 < per_epoch && !last) continue;
        end_step(t);
        right = accuracy(t);
        if (rank == 0) printf("epoch %zu: test accuracy %.2f%%\n", s / per_epoch + 1, 100 * right);
    }
    bytes += report_bytes(t->ctx, "train_cuda");
    CUDA(cudaMemcpy(t->host.p[0].value, t->net.value[0], t->host.n_values * sizeof(float), cudaMemcpyDeviceToHost));
    report_compare(t->ctx, "train_cuda", t->host.p[0].value, t->host.n_values);
    if (rank) return;
    report r = {"train_cuda", total, t->step_ms, NULL, t->loss_here, loss, right, bytes, t->net.state_bytes};
    if (flags[CURVE].text) report_curve(&r, flags[CURVE].text);
    if (flags[JSON].text) report_json(&r, t->ctx, flags[JSON].text);
}

int main(int argc, char **argv) {
    static trainer t;
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that a pipe gets each line at once */
    run_flags("train_cuda", flags, N_FLAGS, N_NUMBERS, argc, argv);
    const char *why = data_open(&t.train, flags[DATA].text, "train", (size_t)flags[LIMIT_TRAIN].number);
    if (!why) why = data_open(&t.test, flags[DATA].text, "t10k", (size_t)flags[LIMIT_TEST].number);
    const size_t pixels = t.train.rows * t.train.cols, batch = (size_t)flags[BATCH].number;
    if (!why && (pixels != t.test.rows * t.test.cols || t.test.classes > t.train.classes))
        why = "test images differ in kind";
    if (why) die("--data", why);
    if (model_open(&t.host, pixels, t.train.classes, 1, (uint64_t)flags[SEED].number)) die("model", "out of memory");
    join_ranks(&t);
    const int device = choose_device(&t);
    net_open(&t.net, &t.host, batch, flags[BF16].number > 0);
    net_images(&t.train_images, &t.train), net_images(&t.test_images, &t.test);
    add_tensors(&t, device);
    train(&t);
    esp_close(t.ctx);
    return 0; /* other memory is freed when the process ends */
}
