/* main.c: trains an LSTM or a wide model on many ranks, for benchmarks. An LSTM's gradients are ready only at the
 * end of backward, so they overlap little with computing; the wide model has few large tensors. The training loop is
 * that of examples/train. */
#include "espresso.h"
#include "examples/train/denormals.h"
#include "net.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH, LENGTH, WIDTH, HIDDEN, LR, MOMENTUM, CLIP, SEED, MAX_STEPS, N_NUMBERS };
enum { STRATEGY = N_NUMBERS, CODEC, BACKEND, OUTER, TEXT, JSON, CURVE, N_FLAGS };
static struct flag {
    const char *name, *text, *help;
    double least, number;
} flag[N_FLAGS] = {
    {"--batch", "0", "pieces of text a step and rank; 0: the model's default", 0, 0},
    {"--length", "0", "characters a piece; 0: the model's default", 0, 0},
    {"--width", "0", "numbers a character or row; 0: the model's default", 0, 0},
    {"--hidden", "0", "units of a hidden layer; 0: the model's default", 0, 0},
    {"--lr", "2", "learning rate", 0, 0},
    {"--momentum", "0.5", "of the updates", 0, 0},
    {"--clip", "1", "gradients' norm at most", 1e-6, 0},
    {"--seed", "1", "of the first parameters and of what text is seen", 0, 0},
    {"--max-steps", "300", "of the run", 1, 0},
    {"--strategy", NULL, "fp32, layerwise, auto, or a strategy file", 0, 0},
    {"--codec", NULL, "such as topk:ratio=0.01", 0, 0},
    {"--backend", NULL, "such as shm", 0, 0},
    {"--outer", NULL, "train alone between averages, such as diloco:every=30; ESPRESSO_OUTER overrides it", 0, 0},
    {"--text", "/usr/share/common-licenses", "file, or folder of files, to learn from", 0, 0},
    {"--json", NULL, "file for the result as one line of JSON; - is the standard output", 0, 0},
    {"--curve", NULL, "file for a line a step: step, seconds, loss", 0, 0},
};
static size_t count(int f) { return (size_t)flag[f].number; }

typedef struct trainer {
    esp_ctx *ctx;
    const net_kind *kind;
    uint32_t id[NET_PARAMS];
    net net;
    text text;
    const uint8_t **seq; /* the pieces of text of one step */
    double *step_ms, *wait_ms, *loss;
    size_t n_steps;
} trainer;

static void die(const char *what, const char *why) {
    fprintf(stderr, "trainer: %s: %s\n", what, why);
    exit(1);
}

static void check(const trainer *t, esp_status s, const char *what) {
    if (s < 0) die(what, esp_last_error(t->ctx));
}

static void usage(void) {
    fprintf(stderr,
            "usage: trainer lstm|wide [FLAG VALUE]...   or   espresso run -n 4 -- trainer lstm [FLAG VALUE]...\n");
    for (int f = 0; f < N_FLAGS; f++)
        fprintf(stderr, "  %-12s %s (%s)\n", flag[f].name, flag[f].help, flag[f].text ? flag[f].text : "not set");
    exit(2);
}

static void parse(trainer *t, int argc, char **argv) {
    static const net_kind *const kinds[] = {&net_lstm, &net_wide};
    for (size_t k = 0; argc > 1 && k < sizeof kinds / sizeof *kinds; k++)
        if (!strcmp(argv[1], kinds[k]->name)) t->kind = kinds[k];
    if (!t->kind) usage();
    for (int i = 2; i < argc; i += 2) {
        int f = 0;
        while (f < N_FLAGS && strcmp(argv[i], flag[f].name) != 0) f++;
        if (f == N_FLAGS || i + 1 == argc) {
            fprintf(stderr, "%s: %s\n", argv[i], f == N_FLAGS ? "there is no such flag" : "needs a value");
            usage();
        }
        flag[f].text = argv[i + 1];
    }
    for (int f = 0; f < N_NUMBERS; f++) {
        char *end, need[64];
        flag[f].number = strtod(flag[f].text, &end);
        snprintf(need, sizeof need, "needs a number, %g or more", flag[f].least);
        if (*end || end == flag[f].text || !(flag[f].number >= flag[f].least && flag[f].number < 1e6))
            die(flag[f].name, need);
    }
    if (!flag[OUTER].text) flag[OUTER].text = getenv("ESPRESSO_OUTER");
    t->net.batch = count(BATCH) ? count(BATCH) : t->kind->batch;
    t->net.length = count(LENGTH) ? count(LENGTH) : t->kind->length;
    t->net.width = count(WIDTH) ? count(WIDTH) : t->kind->width;
    t->net.hidden = count(HIDDEN) ? count(HIDDEN) : t->kind->hidden;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void join_ranks(trainer *t) {
    esp_config cfg = ESP_ZERO;
    cfg.strategy = flag[STRATEGY].text, cfg.codec = flag[CODEC].text, cfg.backend = flag[BACKEND].text;
    cfg.optimizer = flag[MOMENTUM].number > 0 ? ESP_OPTIMIZER_MOMENTUM : ESP_OPTIMIZER_SGD;
    cfg.momentum = (float)flag[MOMENTUM].number;
    const esp_outer_desc outer = {.method = flag[OUTER].text};
    check(t, esp_open(&cfg, &t->ctx), "esp_open");
    if (outer.method) check(t, esp_outer_open(t->ctx, &outer), "esp_outer_open");
    for (size_t i = 0; i < t->net.n_params; i++) {
        const net_param *p = &t->net.p[i];
        esp_tensor_desc desc = {.name = p->name, .count = p->count, .rows = p->rows, .cols = p->cols};
        check(t, esp_tensor_add(t->ctx, &desc, &t->id[i]), p->name);
    }
    check(t, esp_start(t->ctx), "esp_start");
    check(t, esp_broadcast(t->ctx, t->net.value, t->net.n_values * sizeof(float), 0), "esp_broadcast");
    for (size_t i = 0; outer.method && i < t->net.n_params; i++)
        check(t, esp_outer_add(t->ctx, t->id[i], t->net.p[i].value), t->net.p[i].name);
}

static void push(void *user, int i) {
    trainer *t = user;
    if (flag[OUTER].text) return;
    check(t, esp_push(t->ctx, t->id[i], t->net.p[i].grad, (esp_stream){0}), t->net.p[i].name);
}

/* A step's pieces of text depend on seed, step and rank only. */
static void draw(trainer *t, size_t step) {
    const size_t ranks = (size_t)esp_size(t->ctx), rank = (size_t)esp_rank(t->ctx), batch = t->net.batch;
    for (size_t b = 0; b < batch; b++) {
        uint64_t at = (uint64_t)count(SEED) << 40 ^ ((step * ranks + rank) * batch + b);
        t->seq[b] = t->text.token + random_u64(&at) % (t->text.n_train - t->net.length - 1);
    }
}

static void step(trainer *t, size_t s) {
    const double start = now_ms();
    draw(t, s);
    t->loss[s] = t->kind->pass(&t->net, t->seq, push, t);
    double wait = now_ms();
    check(t, esp_report_loss(t->ctx, t->loss[s]), "esp_report_loss");
    if (!flag[OUTER].text) check(t, esp_wait_all(t->ctx), "esp_wait_all");
    t->wait_ms[s] = now_ms() - wait;
    net_update(&t->net, (float)flag[LR].number, (float)flag[MOMENTUM].number, flag[CLIP].number);
    wait = now_ms();
    if (flag[OUTER].text) check(t, esp_outer_step(t->ctx, (esp_stream){0}), "esp_outer_step");
    t->wait_ms[s] += now_ms() - wait;
    t->step_ms[s] = now_ms() - start;
}

/* Checks that all ranks' parameters have the same bits, as they must after any step and with any codec. */
static void compare_ranks(const trainer *t) {
    const net *n = &t->net;
    if (esp_rank(t->ctx) == 0) memcpy(n->grad, n->value, n->n_values * sizeof(float));
    check(t, esp_broadcast(t->ctx, n->grad, n->n_values * sizeof(float), 0), "esp_broadcast");
    if (memcmp(n->grad, n->value, n->n_values * sizeof(float))) die("parameters", "differ from rank 0's");
}

/* Returns the bytes that all ranks have received from other machines. */
static double inter_bytes(const trainer *t) {
    esp_stats stats = {.struct_size = sizeof stats};
    check(t, esp_stats_read(t->ctx, &stats), "esp_stats_read");
    float sum = (float)stats.inter_bytes;
    check(t, esp_allreduce(t->ctx, &sum, 1), "esp_allreduce");
    return (double)sum;
}

/* Returns the loss, in bits a character, on the held-out text. Each rank evaluates some of it. */
static double held_out_bits(trainer *t) {
    const size_t ranks = (size_t)esp_size(t->ctx), batch = t->net.batch, length = t->net.length;
    const size_t pieces = (t->text.n - t->text.n_train - 1) / length;
    float sum[2] = {0, 0};
    for (size_t i = (size_t)esp_rank(t->ctx) * batch; i + batch <= pieces; i += ranks * batch) {
        for (size_t b = 0; b < batch; b++) t->seq[b] = t->text.token + t->text.n_train + (i + b) * length;
        sum[0] += (float)t->kind->pass(&t->net, t->seq, NULL, NULL), sum[1] += 1;
    }
    check(t, esp_allreduce(t->ctx, sum, 2), "esp_allreduce");
    return sum[1] > 0 ? (double)(sum[0] / sum[1]) / log(2) : 0;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *x, size_t n) {
    qsort(x, n, sizeof *x, by_value);
    return n ? x[n / 2] : 0;
}

static FILE *open_file(const char *path) {
    FILE *f = strcmp(path, "-") ? fopen(path, "w") : stdout;
    if (!f) die(path, "cannot be written");
    return f;
}
static void close_file(FILE *f, const char *path) {
    if (fflush(f) || (f != stdout && fclose(f))) die(path, "cannot be written");
}

static void write_results(trainer *t, double bits, double bytes) {
    const size_t n = t->n_steps, last = n < 20 ? n : 20;
    double at = 0, loss = 0;
    for (size_t s = n - last; s < n; s++) loss += t->loss[s] / (double)last;
    printf("%s: %zu parameters, %zu steps, loss of the last %zu: %.3f\n", t->kind->name, t->net.n_values, n, last,
           loss);
    if (flag[CURVE].text) {
        FILE *f = open_file(flag[CURVE].text);
        for (size_t s = 0; s < n; s++) fprintf(f, "%zu,%.4f,%.9g\n", s + 1, (at += t->step_ms[s]) / 1e3, t->loss[s]);
        close_file(f, flag[CURVE].text);
    }
    if (!flag[JSON].text) return;
    FILE *f = open_file(flag[JSON].text);
    fprintf(f, "{\"model\": \"%s\", \"ranks\": %d, \"machines\": %d, \"steps\": %zu, \"parameters\": %zu, ",
            t->kind->name, esp_size(t->ctx), esp_machines(t->ctx), n, t->net.n_values);
    fprintf(f, "\"settled_step_ms\": %.2f, ", median(t->step_ms + n / 2, n - n / 2));
    fprintf(f, "\"step_ms\": %.2f, \"wait_ms\": %.2f, \"inter_bytes_per_step\": %.0f, ", median(t->step_ms, n),
            median(t->wait_ms, n), bytes / (double)n);
    fprintf(f, "\"loss\": %.4f, \"bits_per_character\": %.4f}\n", loss, bits);
    close_file(f, flag[JSON].text);
}

int main(int argc, char **argv) {
    static trainer t;
    denormals_flush();
    setvbuf(stdout, NULL, _IOLBF, 0);
    parse(&t, argc, argv);
    const char *why = text_open(&t.text, flag[TEXT].text);
    if (!why && t.text.n_train < 2 * t.net.length) why = "is too short for this --length";
    if (why) die("--text", why);
    t.net.vocab = t.text.vocab;
    const size_t steps = t.n_steps = count(MAX_STEPS);
    t.seq = calloc(t.net.batch, sizeof *t.seq), t.step_ms = calloc(3 * steps, sizeof *t.step_ms);
    if (!t.seq || !t.step_ms || t.kind->open(&t.net, (uint64_t)count(SEED))) die("model", "out of memory");
    t.wait_ms = t.step_ms + steps, t.loss = t.wait_ms + steps;
    join_ranks(&t);
    double bytes = -inter_bytes(&t);
    for (size_t s = 0; s < steps; s++) {
        step(&t, s);
        if (esp_rank(t.ctx) == 0 && (s + 1) % 50 == 0)
            printf("step %zu of %zu: loss %.3f, last step %.0f ms\n", s + 1, steps, t.loss[s], t.step_ms[s]);
    }
    if (flag[OUTER].text) check(&t, esp_outer_sync(t.ctx, (esp_stream){0}), "esp_outer_sync");
    bytes += inter_bytes(&t);
    const double bits = held_out_bits(&t);
    compare_ranks(&t);
    if (esp_rank(t.ctx) == 0) write_results(&t, bits, bytes);
    esp_close(t.ctx);
    return 0;
}
