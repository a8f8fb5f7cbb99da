/* main.c: trains the network of model.h on many ranks. It does all that espresso needs of a trainer: open, add the
 * tensors, start, broadcast; in each step push during backward and wait before the update; at the end close. */
#include "espresso.h"
#include "data.h"
#include "model.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Flags, with their defaults. These names are indices into the list. */
enum { EPOCHS, BATCH, LR, MOMENTUM, SEED, MAX_STEPS, LIMIT_TRAIN, EVAL, SHARD, ELASTIC, N_NUMBERS };
enum { STRATEGY = N_NUMBERS, CODEC, BACKEND, GATHER, DATA, JSON, CURVE, N_FLAGS };
static struct flag {
    const char *name, *text, *help;
    double number;
} flag[N_FLAGS] = {
    {"--epochs", "3", "passes over the training images", 0},
    {"--batch", "128", "images a step and rank", 0},
    {"--lr", "0.3", "learning rate at its highest", 0},
    {"--momentum", "0.5", "of the updates", 0},
    {"--seed", "1", "of the first parameters and of the order of images", 0},
    {"--max-steps", "0", "stop after so many steps; 0: do not", 0},
    {"--limit-train", "0", "use the first N training images; 0: all", 0},
    {"--eval", "1", "1: test after every epoch, 0: at the end only", 0},
    {"--shard", "0", "1: each rank keeps the optimizer's state for a part of the parameters only", 0},
    {"--elastic", "0", "1: when a rank dies, the others go on without it", 0},
    {"--strategy", NULL, "fp32, layerwise, auto, or a strategy file", 0},
    {"--codec", NULL, "such as topk:ratio=0.01; for auto several, ';' between", 0},
    {"--backend", NULL, "such as shm", 0},
    {"--gather", NULL, "with --shard 1: codec of the parameters, such as bf16", 0},
    {"--data", "/usr/share/datasets/fashion-mnist", "folder of IDX files, plain or .gz", 0},
    {"--json", NULL, "file for the result as one line of JSON; - is the standard output", 0},
    {"--curve", NULL, "file for a line a step: step, seconds, loss", 0},
};

typedef struct trainer {
    esp_ctx *ctx;
    uint32_t id[N_PARAMS]; /* espresso's tensor ids of the parameters */
    model net;
    dataset train, test;
    uint32_t *order;             /* order of the training images in this epoch; the same on every rank */
    uint8_t *labels;             /* labels of one batch */
    double *step_ms, *wait_ms;   /* of each step: whole time, and time that it waited for gradients */
    double *loss;                /* of each step                                              */
    double lr;                   /* learning rate for which residuals are scaled              */
    size_t n_steps, state_bytes; /* of the optimizer's state on this rank                     */
    int lost;                    /* with --elastic 1: a rank was lost in this step            */
} trainer;

static void die(const char *what, const char *why) {
    fprintf(stderr, "train: %s: %s\n", what, why);
    exit(1);
}

static void check(const trainer *t, esp_status s, const char *what) {
    if (s < 0) die(what, esp_last_error(t->ctx));
}

/* As check, but with --elastic 1 the loss of a rank is no reason to end. Returns 0 then. */
static int goes_on(trainer *t, esp_status s, const char *what) {
    if (flag[ELASTIC].number > 0 && (s == ESP_E_PEER || s == ESP_E_TIMEOUT))
        t->lost = 1;
    else
        check(t, s, what);
    return !t->lost;
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        int f = 0;
        while (f < N_FLAGS && strcmp(argv[i], flag[f].name) != 0) f++;
        if (f == N_FLAGS || i + 1 == argc) {
            fprintf(stderr, "usage: train [FLAG VALUE]...   or   espresso run -n 4 -- train [FLAG VALUE]...\n");
            for (f = 0; f < N_FLAGS; f++)
                fprintf(stderr, "  %-14s %s (%s)\n", flag[f].name, flag[f].help,
                        flag[f].text ? flag[f].text : "not set");
            exit(2);
        }
        flag[f].text = argv[i + 1];
    }
    for (int f = 0; f < N_NUMBERS; f++) {
        char *end;
        flag[f].number = strtod(flag[f].text, &end);
        const int least = f == EPOCHS || f == BATCH;
        if (*end || end == flag[f].text || !(flag[f].number >= least && flag[f].number < 1e9))
            die(flag[f].name, least ? "needs a number, 1 or more" : "needs a number, 0 or more");
    }
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* The optimizer's state: for all parameters, or with --shard 1 for this rank's parts. */
static void open_state(trainer *t) {
    for (int i = 0; i < N_PARAMS; i++) {
        uint64_t begin, n;
        check(t, esp_part(t->ctx, t->id[i], esp_rank(t->ctx), &begin, &n), "esp_part");
        t->net.p[i].begin = (size_t)begin, t->net.p[i].n = (size_t)n;
    }
    t->state_bytes = model_state(&t->net, flag[GATHER].text != NULL);
    if (!t->state_bytes) die("model", "out of memory");
}

/* At the start: opens the context, adds the parameters in backward order, starts, and broadcasts rank 0's values. */
static void join_ranks(trainer *t) {
    esp_config cfg = ESP_ZERO;
    cfg.strategy = flag[STRATEGY].text, cfg.codec = flag[CODEC].text, cfg.backend = flag[BACKEND].text;
    cfg.optimizer = flag[MOMENTUM].number > 0 ? ESP_OPTIMIZER_MOMENTUM : ESP_OPTIMIZER_SGD;
    cfg.momentum = (float)flag[MOMENTUM].number;
    check(t, esp_open(&cfg, &t->ctx), "esp_open");
    for (int i = 0; i < N_PARAMS; i++) {
        const param *p = &t->net.p[i];
        esp_tensor_desc desc = {.name = p->name, .count = p->count, .rows = p->rows, .cols = p->cols};
        if (flag[SHARD].number > 0) desc.flags = ESP_SHARD;
        desc.gather = flag[GATHER].text;
        check(t, esp_tensor_add(t->ctx, &desc, &t->id[i]), p->name);
    }
    check(t, esp_start(t->ctx), "esp_start");
    check(t, esp_broadcast(t->ctx, t->net.p[0].value, t->net.n_values * sizeof(float), 0), "esp_broadcast");
    open_state(t);
}

/* Backward calls this when gradient i is done. The gradient is synchronised while backward goes on. */
static void push(void *user, int i) {
    trainer *t = user;
    if (!t->lost) goes_on(t, esp_push(t->ctx, t->id[i], t->net.p[i].grad, (esp_stream){0}), t->net.p[i].name);
}

/* Residuals were computed at another learning rate than the one at which they will be applied, so they are scaled.
 * Small changes do not matter, so this waits for a larger one. */
static void scale_feedback(trainer *t, double lr) {
    if (t->lr > 0 && fabs(lr / t->lr - 1) < 0.1) return;
    if (t->lr > 0) check(t, esp_feedback_scale(t->ctx, (float)(t->lr / lr)), "esp_feedback_scale");
    t->lr = lr;
}

/* Ranks were lost in step `s`. The others have rank 0's parameters and optimizer state afterwards, and repeat the step that is
 * returned: some ranks may have ended the one that failed on others. */
static size_t go_on(trainer *t, size_t s) {
    uint64_t at;
    do {
        at = s;
        t->lost = 0;
        int ok = goes_on(t, esp_shrink(t->ctx), "esp_shrink");
        ok = ok && goes_on(t, esp_broadcast(t->ctx, t->net.p[0].value, t->net.n_values * sizeof(float), 0), "values");
        for (int i = 0; i < N_PARAMS; i++)
            ok = ok &&
                 goes_on(t, esp_broadcast(t->ctx, t->net.p[i].momentum, t->net.p[i].n * sizeof(float), 0), "state");
        if (ok) goes_on(t, esp_broadcast(t->ctx, &at, sizeof at, 0), "step");
    } while (t->lost);
    if (esp_rank(t->ctx) == 0) printf("%d ranks go on at step %zu\n", esp_size(t->ctx), (size_t)at + 1);
    return t->n_steps = (size_t)at;
}

/* One step on the images `pick`; returns the loss. */
static double step(trainer *t, const uint32_t *pick, size_t batch, double lr) {
    const double start = now_ms();
    scale_feedback(t, lr);
    data_batch(&t->train, pick, batch, t->net.x[0], t->labels);
    model_forward(&t->net, batch);
    const float loss = model_backward(&t->net, t->labels, batch, push, t);
    const double wait = now_ms();
    check(t, esp_report_loss(t->ctx, (double)loss), "esp_report_loss");
    if (t->lost || !goes_on(t, esp_wait_all(t->ctx), "esp_wait_all")) return 0;
    t->wait_ms[t->n_steps] = now_ms() - wait;
    model_update(&t->net, (float)lr, (float)flag[MOMENTUM].number);
    for (int i = N_PARAMS - 1; i >= 0 && flag[SHARD].number > 0; i--) /* the next forward's first layer first */
        check(t, esp_gather(t->ctx, t->id[i], t->net.p[i].value, (esp_stream){0}), "esp_gather");
    t->loss[t->n_steps] = (double)loss;
    t->step_ms[t->n_steps++] = now_ms() - start;
    return (double)loss;
}

static void shuffle(uint32_t *order, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (size_t i = n; i > 1; i--) {
        const size_t j = random_u64(&seed) % i;
        const uint32_t other = order[j];
        order[j] = order[i - 1], order[i - 1] = other;
    }
}

/* Learning rate: rises over the first tenth of the steps, then falls to a tenth of its maximum. */
static double lr_at(size_t s, size_t total) {
    const double x = (double)(s + 1) / (double)total;
    return flag[LR].number * (x < 0.1 ? 10 * x : 1.1 - x);
}

/* Share of the test images that the model classifies correctly; each rank tests a part. */
static double accuracy(trainer *t, size_t batch) {
    const size_t classes = t->net.width[N_LAYERS], stride = (size_t)esp_size(t->ctx) * batch;
    float right = 0;
    for (size_t i = (size_t)esp_rank(t->ctx) * batch; i < t->test.n; i += stride) {
        const size_t n = t->test.n - i < batch ? t->test.n - i : batch;
        for (size_t j = 0; j < n; j++) t->order[j] = (uint32_t)(i + j); /* the next epoch makes a new order */
        data_batch(&t->test, t->order, n, t->net.x[0], t->labels);
        const float *score = model_forward(&t->net, n);
        for (size_t j = 0; j < n; j++, score += classes) {
            size_t best = 0;
            for (size_t c = 1; c < classes; c++) best = score[c] > score[best] ? c : best;
            right += best == t->labels[j];
        }
    }
    check(t, esp_allreduce(t->ctx, &right, 1), "esp_allreduce");
    return (double)right / (double)t->test.n;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, size_t n) {
    qsort(x, n, sizeof *x, by_value);
    return n ? x[n / 2] : 0;
}

/* Bytes that went from machine to machine so far, by all ranks' counters. */
static double inter_bytes(const trainer *t) {
    esp_stats stats = {.struct_size = sizeof stats};
    check(t, esp_stats_read(t->ctx, &stats), "esp_stats_read");
    float sum = (float)stats.inter_bytes;
    check(t, esp_allreduce(t->ctx, &sum, 1), "esp_allreduce");
    return (double)sum;
}

/* Checks that all ranks' parameters have the same bits, which must be so after any number of steps and with any
 * codec. */
static void compare_ranks(const trainer *t) {
    const param *p = &t->net.p[0]; /* rank 0's parameters are received in the gradients' memory */
    if (esp_rank(t->ctx) == 0) memcpy(p->grad, p->value, t->net.n_values * sizeof(float));
    check(t, esp_broadcast(t->ctx, p->grad, t->net.n_values * sizeof(float), 0), "esp_broadcast");
    if (memcmp(p->grad, p->value, t->net.n_values * sizeof(float))) die("parameters", "differ from rank 0's");
}

static void write_curve(const trainer *t, const char *path) {
    FILE *f = fopen(path, "w");
    double at = 0;
    if (!f) die(path, "cannot be written");
    for (size_t i = 0; i < t->n_steps; i++)
        fprintf(f, "%zu,%.4f,%.9g\n", i + 1, (at += t->step_ms[i]) / 1e3, t->loss[i]);
    if (fclose(f)) die(path, "cannot be written");
}

/* settled_step_ms is the step time of the second half of the steps, since an autopilot measures in the first ones. */
static void write_json(trainer *t, const char *path, double loss, double right, double bytes) {
    FILE *f = strcmp(path, "-") ? fopen(path, "w") : stdout;
    const size_t n = t->n_steps, first = n / 2;
    if (!f) die(path, "cannot be written");
    fprintf(f, "{\"ranks\": %d, \"machines\": %d, \"steps\": %zu, ", esp_size(t->ctx), esp_machines(t->ctx), n);
    fprintf(f, "\"settled_step_ms\": %.2f, ", median(t->step_ms + first, n - first));
    fprintf(f, "\"step_ms\": %.2f, \"wait_ms\": %.2f, ", median(t->step_ms, n), median(t->wait_ms, n));
    fprintf(f, "\"inter_bytes_per_step\": %.0f, \"loss\": %.4f, \"accuracy\": %.4f, ", bytes, loss, right);
    fprintf(f, "\"state_bytes\": %zu}\n", t->state_bytes);
    if (fflush(f) || (f != stdout && fclose(f))) die(path, "cannot be written");
}

static void train(trainer *t) {
    const size_t batch = (size_t)flag[BATCH].number, ranks = (size_t)esp_size(t->ctx);
    const size_t per_epoch = t->train.n / (batch * ranks), limit = (size_t)flag[MAX_STEPS].number;
    const size_t all = per_epoch * (size_t)flag[EPOCHS].number, total = limit && limit < all ? limit : all;
    t->order = calloc(t->train.n, sizeof *t->order), t->labels = calloc(batch, 1);
    t->step_ms = calloc(3 * total + 1, sizeof *t->step_ms);
    if (!t->order || !t->labels || !t->step_ms) die("train", "out of memory");
    t->wait_ms = t->step_ms + total, t->loss = t->wait_ms + total;
    if (total == 0) die("--batch", "is more than there are images for");
    double loss = 0, right = 0, bytes = -inter_bytes(t);
    int again = 0;
    for (size_t s = 0; s < total; s++) {
        const size_t at = s % per_epoch, last = s + 1 == total;
        const size_t rank = (size_t)esp_rank(t->ctx);
        if (at == 0 || again) shuffle(t->order, t->train.n, (uint64_t)flag[SEED].number << 32 | (s - at));
        if (at == 0) loss = 0;
        loss += step(t, t->order + (at * (size_t)esp_size(t->ctx) + rank) * batch, batch, lr_at(s, total));
        again = t->lost;
        if (again) {
            s = go_on(t, s) - 1;
            continue;
        }
        if (rank == 0 && at % 40 == 39) printf("step %zu of %zu: loss %.3f\n", s + 1, total, loss / (double)(at + 1));
        if (!last && (at + 1 < per_epoch || flag[EVAL].number < 1)) continue;
        right = accuracy(t, batch);
        loss /= (double)(at + 1);
        if (rank) continue;
        printf("epoch %zu, step %zu of %zu: loss %.3f, test accuracy %.2f%%, last step %.0f ms\n", s / per_epoch + 1,
               s + 1, total, loss, 100 * right, t->step_ms[s]);
    }
    bytes += inter_bytes(t);
    compare_ranks(t);
    if (esp_rank(t->ctx)) return;
    if (flag[CURVE].text) write_curve(t, flag[CURVE].text);
    if (flag[JSON].text) write_json(t, flag[JSON].text, loss, right, bytes / (double)total);
}

int main(int argc, char **argv) {
    static trainer t;
    setvbuf(stdout, NULL, _IOLBF, 0); /* line by line, so that a pipe shows progress too */
    parse(argc, argv);
    const char *why = data_open(&t.train, flag[DATA].text, "train", (size_t)flag[LIMIT_TRAIN].number);
    if (!why) why = data_open(&t.test, flag[DATA].text, "t10k", 0);
    const size_t pixels = t.train.rows * t.train.cols, batch = (size_t)flag[BATCH].number;
    if (!why && (pixels != t.test.rows * t.test.cols || t.test.classes > t.train.classes))
        why = "test images differ in kind";
    if (why) die("--data", why);
    if (model_open(&t.net, pixels, t.train.classes, batch, (uint64_t)flag[SEED].number)) die("model", "out of memory");
    join_ranks(&t);
    train(&t);
    esp_close(t.ctx);
    return 0; /* the rest of the memory ends with the process */
}
