/* main.c: trains the network of model.h on many ranks, and shows all calls of espresso that a trainer needs: open, add
 * the tensors, start, broadcast; push during backward and wait before the update in each step; close at the end. */
#include "espresso.h"
#include "data.h"
#include "denormals.h"
#include "model.h"
#include "report.h"
#include "run.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Flags with their defaults. Flags with numbers come first. The enumerators are indices into flags[]. */
enum { EPOCHS, BATCH, LR, MOMENTUM, SEED, MAX_STEPS, LIMIT_TRAIN, EVAL, SHARD, ELASTIC, N_NUMBERS };
enum { STRATEGY = N_NUMBERS, CODEC, BACKEND, GATHER, DATA, JSON, CURVE, N_FLAGS };
static flag flags[N_FLAGS] = {
    {"--epochs", "3", "passes over the training images", 1, 0},
    {"--batch", "128", "images a step and rank", 1, 0},
    {"--lr", "0.3", "learning rate at its highest", 0, 0},
    {"--momentum", "0.5", "of the updates", 0, 0},
    {"--seed", "1", "of the first parameters and of the order of images", 0, 0},
    {"--max-steps", "0", "stop after so many steps; 0: do not", 0, 0},
    {"--limit-train", "0", "use the first N training images; 0: all", 0, 0},
    {"--eval", "1", "1: test after every epoch, 0: at the end only", 0, 0},
    {"--shard", "0", "1: each rank keeps the optimizer's state for a part of the parameters only", 0, 0},
    {"--elastic", "0", "1: when a rank dies, the others go on without it", 0, 0},
    {"--strategy", NULL, "fp32, layerwise, auto, or a strategy file", 0, 0},
    {"--codec", NULL, "such as topk:ratio=0.01; for auto several, ';' between", 0, 0},
    {"--backend", NULL, "such as shm", 0, 0},
    {"--gather", NULL, "with --shard 1: codec of the parameters, such as bf16", 0, 0},
    {"--data", "/usr/share/datasets/fashion-mnist", "folder of IDX files, plain or .gz", 0, 0},
    {"--json", NULL, "file for the result as one line of JSON; - is the standard output", 0, 0},
    {"--curve", NULL, "file for a line a step: step, seconds, loss", 0, 0},
};

typedef struct trainer {
    esp_ctx *ctx;
    uint32_t id[N_PARAMS];
    model net;
    dataset train, test;
    uint32_t *order;
    uint8_t *labels;           /* labels of one batch */
    double *step_ms, *wait_ms; /* per step: total time, and wait for gradients */
    double *loss;              /* per step */
    double lr;
    size_t n_steps;
    size_t state_bytes;
    int lost; /* a rank was lost in this step (--elastic 1) */
} trainer;

static void die(const char *what, const char *why) { run_die("train", what, why); }

static void check(const trainer *t, esp_status s, const char *what) {
    if (s < 0) die(what, esp_last_error(t->ctx));
}

/* Ends the program on an error; but with --elastic 1, if the error is a lost rank, sets t->lost and returns 0. */
static int check_elastic(trainer *t, esp_status s, const char *what) {
    if (flags[ELASTIC].number > 0 && (s == ESP_E_PEER || s == ESP_E_TIMEOUT))
        t->lost = 1;
    else
        check(t, s, what);
    return !t->lost;
}

/* With --shard 1, a rank has optimizer state only for the parts of parameters that it updates. */
static void open_state(trainer *t) {
    for (int i = 0; i < N_PARAMS; i++) {
        uint64_t begin, n;
        check(t, esp_part(t->ctx, t->id[i], esp_rank(t->ctx), &begin, &n), "esp_part");
        t->net.p[i].begin = (size_t)begin, t->net.p[i].n = (size_t)n;
    }
    t->state_bytes = model_state(&t->net, flags[GATHER].text != NULL);
    if (!t->state_bytes) die("model", "out of memory");
}

/* Tensors are added in backward order, and all ranks begin with rank 0's values. */
static void join_ranks(trainer *t) {
    esp_config cfg = ESP_ZERO;
    cfg.strategy = flags[STRATEGY].text, cfg.codec = flags[CODEC].text, cfg.backend = flags[BACKEND].text;
    cfg.optimizer = flags[MOMENTUM].number > 0 ? ESP_OPTIMIZER_MOMENTUM : ESP_OPTIMIZER_SGD;
    cfg.momentum = (float)flags[MOMENTUM].number;
    check(t, esp_open(&cfg, &t->ctx), "esp_open");
    for (int i = 0; i < N_PARAMS; i++) {
        const param *p = &t->net.p[i];
        esp_tensor_desc desc = {.name = p->name, .count = p->count, .rows = p->rows, .cols = p->cols};
        if (flags[SHARD].number > 0) desc.flags = ESP_SHARD;
        desc.gather = flags[GATHER].text;
        check(t, esp_tensor_add(t->ctx, &desc, &t->id[i]), p->name);
    }
    check(t, esp_start(t->ctx), "esp_start");
    check(t, esp_broadcast(t->ctx, t->net.p[0].value, t->net.n_values * sizeof(float), 0), "esp_broadcast");
    open_state(t);
}

/* Backward calls this when gradient i is complete. espresso averages gradient i while backward goes on. */
static void push(void *user, int i) {
    trainer *t = user;
    if (!t->lost) check_elastic(t, esp_push(t->ctx, t->id[i], t->net.p[i].grad, (esp_stream){0}), t->net.p[i].name);
}

/* Residuals of earlier steps must be scaled to a new learning rate. Changes of less than a tenth do not matter. */
static void scale_feedback(trainer *t, double lr) {
    if (t->lr > 0 && fabs(lr / t->lr - 1) < 0.1) return;
    if (t->lr > 0 && !check_elastic(t, esp_feedback_scale(t->ctx, (float)(t->lr / lr)), "esp_feedback_scale")) return;
    t->lr = lr;
}

/* Goes on without the lost ranks. Some ranks may have finished the failed step and others not, so all take over rank
 * 0's parameters, optimizer state and step. Returns the step to repeat. */
static size_t shrink(trainer *t, size_t s) {
    uint64_t at;
    do {
        at = s;
        t->lost = 0;
        int ok = check_elastic(t, esp_shrink(t->ctx), "esp_shrink");
        ok = ok &&
             check_elastic(t, esp_broadcast(t->ctx, t->net.p[0].value, t->net.n_values * sizeof(float), 0), "values");
        for (int i = 0; i < N_PARAMS; i++)
            ok = ok && check_elastic(t, esp_broadcast(t->ctx, t->net.p[i].momentum, t->net.p[i].n * sizeof(float), 0),
                                     "state");
        if (ok) check_elastic(t, esp_broadcast(t->ctx, &at, sizeof at, 0), "step");
    } while (t->lost);
    if (esp_rank(t->ctx) == 0) printf("%d ranks go on at step %zu\n", esp_size(t->ctx), (size_t)at + 1);
    return t->n_steps = (size_t)at;
}

/* Trains on the images whose numbers are in `pick`. Returns the loss. */
static double step(trainer *t, const uint32_t *pick, size_t batch, double lr) {
    const double start = run_now_ms();
    scale_feedback(t, lr);
    data_batch(&t->train, pick, batch, t->net.x[0], t->labels);
    model_forward(&t->net, batch);
    const float loss = model_backward(&t->net, t->labels, batch, push, t);
    const double wait = run_now_ms();
    if (!t->lost) check_elastic(t, esp_report_loss(t->ctx, (double)loss), "esp_report_loss");
    if (t->lost || !check_elastic(t, esp_wait_all(t->ctx), "esp_wait_all")) return 0;
    t->wait_ms[t->n_steps] = run_now_ms() - wait;
    model_update(&t->net, (float)lr, (float)flags[MOMENTUM].number);
    for (int i = N_PARAMS - 1; i >= 0 && flags[SHARD].number > 0; i--) /* next forward uses layer 0 first */
        if (!check_elastic(t, esp_gather(t->ctx, t->id[i], t->net.p[i].value, (esp_stream){0}), "esp_gather")) return 0;
    t->loss[t->n_steps] = (double)loss;
    t->step_ms[t->n_steps++] = run_now_ms() - start;
    return (double)loss;
}

/* Returns the fraction of test images that are classified correctly. Each rank tests some of them. Sets t->lost if a
 * rank is lost. */
static double accuracy(trainer *t, size_t batch) {
    const size_t classes = t->net.width[N_LAYERS], stride = (size_t)esp_size(t->ctx) * batch;
    float right = 0;
    for (size_t i = (size_t)esp_rank(t->ctx) * batch; i < t->test.n; i += stride) {
        const size_t n = t->test.n - i < batch ? t->test.n - i : batch;
        for (size_t j = 0; j < n; j++) t->order[j] = (uint32_t)(i + j);
        data_batch(&t->test, t->order, n, t->net.x[0], t->labels);
        const float *score = model_forward(&t->net, n);
        for (size_t j = 0; j < n; j++, score += classes) {
            size_t best = 0;
            for (size_t c = 1; c < classes; c++) best = score[c] > score[best] ? c : best;
            right += best == t->labels[j];
        }
    }
    check_elastic(t, esp_allreduce(t->ctx, &right, 1), "esp_allreduce");
    return (double)right / (double)t->test.n;
}

static void train(trainer *t) {
    const size_t batch = (size_t)flags[BATCH].number, ranks = (size_t)esp_size(t->ctx);
    const size_t per_epoch = t->train.n / (batch * ranks), limit = (size_t)flags[MAX_STEPS].number;
    const size_t all = per_epoch * (size_t)flags[EPOCHS].number, total = limit && limit < all ? limit : all;
    t->order = calloc(t->train.n, sizeof *t->order), t->labels = calloc(batch, 1);
    t->step_ms = calloc(3 * total + 1, sizeof *t->step_ms);
    if (!t->order || !t->labels || !t->step_ms) die("train", "out of memory");
    t->wait_ms = t->step_ms + total, t->loss = t->wait_ms + total;
    if (total == 0) die("--batch", "is more than there are images for");
    double loss = 0, right = 0, bytes = -report_bytes(t->ctx, "train");
    int again = 0;
    for (size_t s = 0; s < total; s++) {
        const size_t at = s % per_epoch, last = s + 1 == total;
        const size_t rank = (size_t)esp_rank(t->ctx);
        if (at == 0 || again) run_shuffle(t->order, t->train.n, (uint64_t)flags[SEED].number << 32 | (s - at));
        if (at == 0) loss = 0;
        loss += step(t, t->order + (at * (size_t)esp_size(t->ctx) + rank) * batch, batch,
                     run_lr(flags[LR].number, s, total));
        again = t->lost;
        if (again) {
            s = shrink(t, s) - 1;
            continue;
        }
        if (rank == 0 && at % 40 == 39) printf("step %zu of %zu: loss %.3f\n", s + 1, total, loss / (double)(at + 1));
        if (!last && (at + 1 < per_epoch || flags[EVAL].number < 1)) continue;
        right = accuracy(t, batch);
        again = t->lost;
        if (again) {
            s = shrink(t, last ? s : s + 1) - 1;
            continue;
        }
        loss /= (double)(at + 1);
        if (rank) continue;
        printf("epoch %zu, step %zu of %zu: loss %.3f, test accuracy %.2f%%, last step %.0f ms\n", s / per_epoch + 1,
               s + 1, total, loss, 100 * right, t->step_ms[s]);
    }
    bytes += report_bytes(t->ctx, "train");
    report_compare(t->ctx, "train", t->net.p[0].value, t->net.n_values);
    if (esp_rank(t->ctx)) return;
    const report r = {"train", t->n_steps, t->step_ms, t->wait_ms, t->loss, loss, right, bytes, t->state_bytes};
    if (flags[CURVE].text) report_curve(&r, flags[CURVE].text);
    if (flags[JSON].text) report_json(&r, t->ctx, flags[JSON].text);
}

int main(int argc, char **argv) {
    static trainer t;
    denormals_flush();
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that a pipe gets each line at once */
    run_flags("train", flags, N_FLAGS, N_NUMBERS, argc, argv);
    const char *why = data_open(&t.train, flags[DATA].text, "train", (size_t)flags[LIMIT_TRAIN].number);
    if (!why) why = data_open(&t.test, flags[DATA].text, "t10k", 0);
    const size_t pixels = t.train.rows * t.train.cols, batch = (size_t)flags[BATCH].number;
    if (!why && (pixels != t.test.rows * t.test.cols || t.test.classes > t.train.classes))
        why = "test images differ in kind";
    if (why) die("--data", why);
    if (model_open(&t.net, pixels, t.train.classes, batch, (uint64_t)flags[SEED].number)) die("model", "out of memory");
    join_ranks(&t);
    train(&t);
    esp_close(t.ctx);
    return 0; /* other memory is freed when the process ends */
}
