/* main.c: trains the GPT of model.h on many ranks. It shows more than examples/train: gradients that accumulate over
 * several micro-batches and are averaged once a step, clipping after that, a tensor that has a gradient in some steps
 * only, and a resume with the same bits as a run that never stopped. */
#include "espresso.h"
#include "checkpoint.h"
#include "model.h"
#include "text.h"
#include "../train/denormals.h"
#include "../train/report.h"
#include "../train/run.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Flags with their defaults. The enumerators are indices into flags[]. The flags before N_RUN determine the results, so
 * a checkpoint can be resumed only with the same values of them. */
enum { LAYERS, WIDTH, HEADS, CONTEXT, BATCH, ACCUMULATE, LR, MOMENTUM, DECAY, CLIP, SECOND, SEED, MAX_STEPS, N_RUN };
enum { STOP_AT = N_RUN, SAVE_EVERY, SAMPLE, WARMUP, N_NUMBERS };
enum { OPTIMIZER = N_NUMBERS, STRATEGY, CODEC, BACKEND, OUTER, TEXT, CHECKPOINT, RESUME, JSON, CURVE, N_FLAGS };
static flag flags[N_FLAGS] = {
    {"--layers", "2", "of the model", 1, 0},
    {"--width", "64", "numbers a character", 1, 0},
    {"--heads", "4", "of attention; divides --width", 1, 0},
    {"--context", "64", "characters that the model sees", 1, 0},
    {"--batch", "4", "pieces of text a micro-batch", 1, 0},
    {"--accumulate", "2", "micro-batches a step and rank", 1, 0},
    {"--lr", "0.004", "learning rate at its highest", 0, 0},
    {"--momentum", "0.3", "share of the mean gradient that a step keeps", 0, 0},
    {"--decay", "0.01", "of weights", 0, 0},
    {"--clip", "1", "gradients' norm at most; 0: any", 0, 0},
    {"--second", "3", "the second head learns in every such step; 0: in none", 0, 0},
    {"--seed", "1", "of the first parameters and of what text is seen", 0, 0},
    {"--max-steps", "600", "of the whole run; the learning rate falls to its end", 1, 0},
    {"--stop-at", "0", "stop after this step, to be resumed; 0: at the end", 0, 0},
    {"--save-every", "100", "steps between checkpoints", 1, 0},
    {"--sample", "300", "characters to write at the end", 0, 0},
    {"--warmup", "0", "steps that average gradients, before --outer begins", 0, 0},
    {"--optimizer", "adamw", "adamw or sgd", 0, 0},
    {"--strategy", NULL, "fp32, layerwise, auto, or a strategy file", 0, 0},
    {"--codec", NULL, "such as topk:ratio=0.01", 0, 0},
    {"--backend", NULL, "such as shm", 0, 0},
    {"--outer", NULL, "train alone between averages, such as diloco:every=30; ESPRESSO_OUTER overrides it", 0, 0},
    {"--text", "/usr/share/common-licenses", "file, or folder of files, to learn from", 0, 0},
    {"--checkpoint", NULL, "folder for checkpoints, one at the end too", 0, 0},
    {"--resume", NULL, "go on from the checkpoint (takes no value)", 0, 0},
    {"--json", NULL, "file for the result as one line of JSON; - is the standard output", 0, 0},
    {"--curve", NULL, "file for a line a step: step, seconds, loss", 0, 0},
};
static int is_adam(void) { return !strcmp(flags[OPTIMIZER].text, "adamw"); }
static size_t count(int f) { return (size_t)flags[f].number; }

typedef struct trainer {
    esp_ctx *ctx;
    const char *outer; /* NULL until the warm-up is over */
    uint32_t id[MAX_PARAMS];
    gpt net;
    text text;
    const uint8_t **seq;                     /* [batch] sequences of characters */
    double *step_ms, *wait_ms, *at_s, *loss; /* for each step of this process */
    size_t n_steps;
    char run[900]; /* line in checkpoints with the flags before N_RUN */
} trainer;

static void die(const char *what, const char *why) { run_die("gpt", what, why); }

static void check(const trainer *t, esp_status s, const char *what) {
    if (s < 0) die(what, esp_last_error(t->ctx));
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--resume")) {
            flags[RESUME].text = "yes", argc--;
            memmove(argv + i, argv + i + 1, (size_t)(argc - i) * sizeof *argv), i--;
        }
    run_flags("gpt", flags, N_FLAGS, N_NUMBERS, argc, argv);
    if (count(LAYERS) > MAX_LAYERS) die("--layers", "at most 12");
    if (count(WIDTH) % count(HEADS)) die("--heads", "must divide --width");
    if (strcmp(flags[OPTIMIZER].text, "adamw") && strcmp(flags[OPTIMIZER].text, "sgd"))
        die("--optimizer", "is adamw or sgd");
    if (flags[MOMENTUM].number >= 1) die("--momentum", "must be below 1");
    if (flags[RESUME].text && !flags[CHECKPOINT].text) die("--resume", "needs --checkpoint DIR");
    if (!flags[OUTER].text) flags[OUTER].text = getenv("ESPRESSO_OUTER");
    if (flags[OUTER].text && flags[CHECKPOINT].text)
        die("--outer", "excludes --checkpoint, which has one optimizer state, and here each rank has its own");
}

/* Tensors are added in backward order, and all ranks begin with rank 0's values. */
static void join_ranks(trainer *t) {
    esp_config cfg = ESP_ZERO;
    cfg.strategy = flags[STRATEGY].text, cfg.codec = flags[CODEC].text, cfg.backend = flags[BACKEND].text;
    const float momentum = (float)flags[MOMENTUM].number;
    cfg.optimizer = is_adam() ? ESP_OPTIMIZER_ADAM : momentum > 0 ? ESP_OPTIMIZER_MOMENTUM : ESP_OPTIMIZER_SGD;
    cfg.momentum = momentum > 0 ? momentum : -1;
    const esp_outer_desc outer = {.method = t->outer};
    check(t, esp_open(&cfg, &t->ctx), "esp_open");
    if (outer.method) check(t, esp_outer_open(t->ctx, &outer), "esp_outer_open");
    for (size_t i = 0; i < t->net.n_params; i++) {
        const param *p = &t->net.p[i];
        esp_tensor_desc desc = {.name = p->name, .count = p->count, .rows = p->rows, .cols = p->cols};
        check(t, esp_tensor_add(t->ctx, &desc, &t->id[i]), p->name);
    }
    check(t, esp_start(t->ctx), "esp_start");
    check(t, esp_broadcast(t->ctx, t->net.value, t->net.n_values * sizeof(float), 0), "esp_broadcast");
    for (size_t i = 0; outer.method && i < t->net.n_params; i++)
        check(t, esp_outer_add(t->ctx, t->id[i], t->net.p[i].value), t->net.p[i].name);
}

/* The pieces of text depend only on the seed and on how many were drawn before, so a resumed run needs no saved random
 * state. */
static void draw(trainer *t, size_t step, size_t micro) {
    const size_t ranks = (size_t)esp_size(t->ctx), rank = (size_t)esp_rank(t->ctx), batch = count(BATCH);
    for (size_t b = 0; b < batch; b++) {
        uint64_t at = (uint64_t)count(SEED) << 40 ^ (((step * count(ACCUMULATE) + micro) * ranks + rank) * batch + b);
        t->seq[b] = t->text.token + random_u64(&at) % (t->text.n_train - count(CONTEXT) - 1);
    }
}

/* Backward calls this when gradient i is complete. espresso averages gradient i while backward goes on. */
static void push(void *user, int i) {
    trainer *t = user;
    check(t, esp_push(t->ctx, t->id[i], t->net.p[i].grad, (esp_stream){0}), t->net.p[i].name);
}

/* Pushes zeros for the second head (tensor 0) in steps in which it has no gradient, because its residual may still have
 * something to send. */
static void push_without_second(void *user, int i) {
    trainer *t = user;
    if (i)
        push(t, i);
    else
        check(t, esp_push_zero(t->ctx, t->id[0], t->net.p[0].grad, (esp_stream){0}), t->net.p[0].name);
}

/* Adds the gradients of all micro-batches. Only the last backward pass pushes them, with --outer none. Returns the mean
 * loss. */
static double accumulate(trainer *t, size_t step, int second) {
    const size_t n = count(ACCUMULATE), batch = count(BATCH);
    double loss = 0;
    memset(t->net.grad, 0, t->net.n_values * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        draw(t, step, i);
        gpt_forward(&t->net, t->seq, batch);
        loss += gpt_backward(&t->net, t->seq, batch, second, 1.0f / (float)n,
                             i + 1 < n || t->outer ? NULL
                             : second              ? push
                                                   : push_without_second,
                             t) /
                (double)n;
    }
    return loss;
}

/* The learning rate of step s rises in the first twentieth of a run, then falls to a tenth of its peak. */
static double lr_at(size_t s) {
    const double x = (double)(s + 1) / flags[MAX_STEPS].number;
    return flags[LR].number * (x < 0.05 ? 20 * x : 1.0 - 0.9 * (x - 0.05) / 0.95);
}

/* Residuals of earlier steps must be scaled if the learning rate changes. This scales them by powers of 1.1 that depend
 * only on the step, so that a resumed run computes the same bits. */
static void scale_feedback(const trainer *t, size_t s) {
    const double now = floor(log(lr_at(s)) / log(1.1)), before = s ? floor(log(lr_at(s - 1)) / log(1.1)) : now;
    if (now < before || now > before)
        check(t, esp_feedback_scale(t->ctx, (float)pow(1.1, before - now)), "esp_feedback_scale");
}

static void step(trainer *t, size_t s) {
    const double start = run_now_ms();
    if (flags[LR].number > 0 && !t->outer) scale_feedback(t, s);
    const size_t second = count(SECOND), i = t->n_steps++;
    t->loss[i] = accumulate(t, s, second && s % second == 0);
    double wait = run_now_ms();
    check(t, esp_report_loss(t->ctx, t->loss[i]), "esp_report_loss");
    if (!t->outer) check(t, esp_wait_all(t->ctx), "esp_wait_all");
    t->wait_ms[i] = run_now_ms() - wait;
    if (flags[CLIP].number > 0) gpt_clip(&t->net, flags[CLIP].number); /* all ranks compute the same norm */
    const float lr = (float)lr_at(s), momentum = (float)flags[MOMENTUM].number, decay = (float)flags[DECAY].number;
    if (is_adam())
        gpt_adamw(&t->net, s + 1, lr, momentum, decay);
    else
        gpt_sgd(&t->net, lr, momentum, decay);
    wait = run_now_ms();
    if (t->outer) check(t, esp_outer_step(t->ctx, (esp_stream){0}), "esp_outer_step");
    t->wait_ms[i] += run_now_ms() - wait;
    t->step_ms[i] = run_now_ms() - start;
    t->at_s[i] = t->step_ms[i] / 1e3 + (i ? t->at_s[i - 1] : 0);
}

/* Returns the mean bits per character on the held-out text. Each rank evaluates some of it. */
static double held_out_bits(trainer *t) {
    const size_t context = count(CONTEXT), batch = count(BATCH), first = t->text.n_train;
    const size_t pieces = (t->text.n - first - 1) / context, ranks = (size_t)esp_size(t->ctx);
    float sum[2] = {0, 0};
    for (size_t i = (size_t)esp_rank(t->ctx) * batch; i < pieces; i += ranks * batch) {
        const size_t n = pieces - i < batch ? pieces - i : batch;
        for (size_t b = 0; b < n; b++) t->seq[b] = t->text.token + first + (i + b) * context;
        gpt_forward(&t->net, t->seq, n);
        sum[0] += (float)(gpt_loss(&t->net, t->seq, n) * (double)n), sum[1] += (float)n;
    }
    check(t, esp_allreduce(t->ctx, sum, 2), "esp_allreduce");
    return (double)(sum[0] / sum[1]) / log(2);
}

/* Prints text that the model generates, with characters drawn at temperature 0.7. */
static void write_sample(trainer *t, size_t length) {
    const size_t context = count(CONTEXT), vocab = t->text.vocab;
    uint8_t seen[1024] = {0};
    uint64_t random = (uint64_t)count(SEED);
    const uint8_t *seq = seen;
    size_t n = 1;
    memcpy(seen, t->text.token + t->text.n_train, n);
    for (size_t i = 0; i < length; i++) {
        const float *score = gpt_forward(&t->net, &seq, 1) + (n - 1) * vocab;
        double sum = 0, draw = (double)(random_u64(&random) >> 11) * 0x1p-53;
        size_t next = 0;
        for (size_t v = 0; v < vocab; v++) sum += exp((double)score[v] / 0.7);
        for (draw *= sum; next + 1 < vocab && (draw -= exp((double)score[next] / 0.7)) > 0;) next++;
        putchar(t->text.character[next]);
        if (n == context) memmove(seen, seen + 1, --n);
        seen[n++] = (uint8_t)next;
    }
    printf("\n");
}

static void write_curve(const trainer *t, const char *path, size_t first) {
    FILE *f = fopen(path, "w");
    if (!f) die(path, "cannot be written");
    for (size_t i = 0; i < t->n_steps; i++) fprintf(f, "%zu,%.4f,%.5f\n", first + i + 1, t->at_s[i], t->loss[i]);
    if (fclose(f)) die(path, "cannot be written");
}

static void write_json(trainer *t, const char *path, double loss, double bits, double bytes) {
    const size_t n = t->n_steps, settled = n / 2; /* with strategy auto, the first half includes its measurements */
    FILE *f = strcmp(path, "-") ? fopen(path, "w") : stdout;
    if (!f) die(path, "cannot be written");
    fprintf(f, "{\"ranks\": %d, \"machines\": %d, \"steps\": %zu, ", esp_size(t->ctx), esp_machines(t->ctx), n);
    fprintf(f, "\"settled_step_ms\": %.2f, ", run_median(t->step_ms + settled, n - settled));
    fprintf(f, "\"step_ms\": %.2f, \"wait_ms\": %.2f, ", run_median(t->step_ms, n), run_median(t->wait_ms, n));
    fprintf(f, "\"inter_bytes_per_step\": %.0f, \"loss\": %.4f, ", n ? bytes / (double)n : 0, loss);
    fprintf(f, "\"bits_per_character\": %.4f, \"unigram_bits\": %.4f}\n", bits, text_unigram_bits(&t->text));
    if (fflush(f) || (f != stdout && fclose(f))) die(path, "cannot be written");
}

static void train(trainer *t) {
    const size_t total = count(MAX_STEPS), stop = count(STOP_AT), last = stop && stop < total ? stop : total;
    const char *folder = flags[CHECKPOINT].text, *why = NULL;
    const int prints = esp_rank(t->ctx) == 0;
    size_t first = 0;
    if (flags[RESUME].text) why = checkpoint_load(t->ctx, &t->net, folder, t->run, &first);
    if (why) die("--resume", why);
    if (prints && first) printf("resumed after step %zu\n", first);
    double mean = 0, bytes = -report_bytes(t->ctx, "gpt");
    for (size_t s = first; s < last; s++) {
        if (flags[OUTER].text && s && s == count(WARMUP)) {
            bytes += report_bytes(t->ctx, "gpt");
            esp_close(t->ctx);
            t->outer = flags[OUTER].text;
            join_ranks(t);
            bytes -= report_bytes(t->ctx, "gpt");
        }
        step(t, s);
        mean += ((t->loss[s - first]) - mean) / (s - first < 20 ? (double)(s - first + 1) : 20);
        if (prints && (s + 1) % 50 == 0)
            printf("step %zu of %zu: loss %.3f, last step %.0f ms\n", s + 1, total, mean, t->step_ms[s - first]);
        if (folder && ((s + 1) % count(SAVE_EVERY) == 0 || s + 1 == last))
            why = checkpoint_save(t->ctx, &t->net, folder, t->run, s + 1);
        if (why) die("--checkpoint", why);
    }
    if (t->outer) check(t, esp_outer_sync(t->ctx, (esp_stream){0}), "esp_outer_sync");
    bytes += report_bytes(t->ctx, "gpt");
    const double bits = held_out_bits(t);
    report_compare(t->ctx, "gpt", t->net.value, t->net.n_values);
    if (!prints) return;
    printf("held out: %.3f bits a character (how often each occurs: %.3f)\n", bits, text_unigram_bits(&t->text));
    if (count(SAMPLE)) write_sample(t, count(SAMPLE));
    if (flags[CURVE].text) write_curve(t, flags[CURVE].text, first);
    if (flags[JSON].text) write_json(t, flags[JSON].text, mean, bits, bytes);
}

int main(int argc, char **argv) {
    static trainer t;
    denormals_flush();
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that a pipe gets each line at once */
    parse(argc, argv);
    const char *why = text_open(&t.text, flags[TEXT].text);
    if (!why && t.text.n / 10 < count(CONTEXT) + 2) why = "is too short for this --context";
    if (why) die("--text", why);
    const shape s = {t.text.vocab, count(CONTEXT), count(WIDTH), count(HEADS), count(LAYERS), count(BATCH)};
    if (gpt_open(&t.net, s, (uint64_t)count(SEED))) die("model", "out of memory");
    const size_t steps = count(MAX_STEPS);
    t.seq = calloc(s.batch, sizeof *t.seq), t.step_ms = calloc(4 * steps, sizeof *t.step_ms);
    if (!t.seq || !t.step_ms) die("train", "out of memory");
    t.wait_ms = t.step_ms + steps, t.at_s = t.wait_ms + steps, t.loss = t.at_s + steps;
    int at = snprintf(t.run, sizeof t.run, "gpt 1 text %016llx", (unsigned long long)t.text.hash);
    t.outer = count(WARMUP) ? NULL : flags[OUTER].text;
    join_ranks(&t);
    at += snprintf(t.run + at, sizeof t.run - (size_t)at, " ranks %d %s", esp_size(t.ctx), flags[OPTIMIZER].text);
    for (int f = 0; f < N_RUN; f++)
        at += snprintf(t.run + at, sizeof t.run - (size_t)at, " %s %g", flags[f].name + 2, flags[f].number);
    train(&t);
    esp_close(t.ctx);
    return 0; /* other memory is freed when the process ends */
}
