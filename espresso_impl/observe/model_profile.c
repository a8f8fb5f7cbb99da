/* model_profile.c: records when a trainer's gradients are ready, and writes the times as a model file for the planner
 * (ESPRESSO_PROFILE=FILE[,steps=100]). After the last recorded step, ranks exchange their times. The latest rank of
 * each step counts, as a tensor can be synchronized only once all ranks have it. */
#include "espresso_impl/observe/model_profile.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/json.h"
#include "espresso_impl/base/limits.h"
#include "espresso_impl/base/machine.h"
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include <errno.h>

enum { ESP__PROFILE_STEPS = 100, ESP__PROFILE_SKIP = 5, ESP__PROFILE_MAX_STEPS = 1000000 };
#define ESP__PROFILE_MAX_BYTES (256ull << 20)
static const double esp__profile_noisy_stolen = 0.02;

/* ---- ESPRESSO_PROFILE ---- */
static esp_status esp__profile_count(const esp_ctx *ctx, const char *key, const char *val, uint32_t least,
                                     uint32_t *out) {
    char *end;
    unsigned long v = strtoul(val, &end, 10);
    if (val[0] < '0' || val[0] > '9' || *end || v < least || v > ESP__PROFILE_MAX_STEPS)
        return esp__fail(ctx, ESP_E_ARG, "ESPRESSO_PROFILE: %s=%s: write a whole number from %u to %u", key, val, least,
                         (unsigned)ESP__PROFILE_MAX_STEPS);
    *out = (uint32_t)v;
    return ESP_OK;
}

/* Reads a text such as "FILE,steps=100,skip=5,name=resnet". */
static esp_status esp__profile_parse(esp_ctx *ctx, esp__profile *r, const char *spec) {
    const char *comma = strchr(spec, ','), *at = comma ? comma : "";
    char path[4096], key[32], val[ESP__SPEC_MAX];
    int more;
    esp_status s = ESP_OK;
    snprintf(path, sizeof path, "%.*s", comma ? (int)(comma - spec) : (int)strlen(spec), spec);
    if (!*path)
        return esp__fail(ctx, ESP_E_ARG,
                         "ESPRESSO_PROFILE=%s: write FILE or FILE,steps=100: the file's name is missing", spec);
    esp__program_name(val, sizeof val);
    r->name = esp__strdup(ctx, val);
    while (!s && (more = esp_params_next(&at, key, sizeof key, val, sizeof val)) != 0) {
        if (more < 0)
            s = esp__fail(ctx, ESP_E_ARG,
                          "ESPRESSO_PROFILE=%s: write FILE,steps=100: what follows the file is no key=value", spec);
        else if (!strcmp(key, "steps"))
            s = esp__profile_count(ctx, key, val, 1, &r->steps);
        else if (!strcmp(key, "skip"))
            s = esp__profile_count(ctx, key, val, 0, &r->skip);
        else if (!strcmp(key, "name") && *val)
            esp__free(ctx, r->name), r->name = esp__strdup(ctx, val);
        else
            s = esp__fail(ctx, ESP_E_ARG, "ESPRESSO_PROFILE: '%s' is not known: there are steps, skip and name", key);
    }
    char whole[PATH_MAX];
    int error = s ? 0 : ctx->job.rank ? esp__path_absolute(path, whole) : esp__path_of_context(ctx, path, whole);
    if (error)
        s = esp__fail(ctx, error == ENOMEM ? ESP_E_NOMEM : ESP_E_ARG, "ESPRESSO_PROFILE: %s: %s", path,
                      strerror(error));
    r->path = s ? NULL : esp__strdup(ctx, whole);
    if (!s && (!r->path || !r->name)) s = esp__fail(ctx, ESP_E_NOMEM, "ESPRESSO_PROFILE: out of memory");
    return s;
}

static esp_status esp__profile_take(esp_ctx *ctx, esp__profile *r) {
    uint64_t n = ctx->model.n_tensors, most = ESP__PROFILE_MAX_BYTES / (n * 8u);
    if (r->steps > most) {
        if (ctx->job.rank == 0)
            esp__log(ctx, ESP_LOG_WARN, "profile", "%u steps of %u tensors are too many to keep: %llu are taken",
                     r->steps, ctx->model.n_tensors, (unsigned long long)(most ? most : 1));
        r->steps = most ? (uint32_t)most : 1;
    }
    r->bytes = sizeof(esp__profile_rank) + n * sizeof(double);
    r->ready = esp__alloc(ctx, r->steps * n * 8u);
    r->forward = esp__alloc(ctx, r->steps * 8u);
    r->sorted = esp__alloc(ctx, r->steps * 8u);
    r->mine = esp__alloc(ctx, r->bytes);
    r->all = esp__alloc(ctx, r->bytes * (uint64_t)ctx->job.size);
    if (r->ready && r->forward && r->sorted && r->mine && r->all) return ESP_OK;
    return esp__fail(ctx, ESP_E_NOMEM,
                     "ESPRESSO_PROFILE: no memory for %u steps of %u tensors: ask for fewer with steps=", r->steps,
                     ctx->model.n_tensors);
}

static void esp__profile_free(esp_ctx *ctx, esp__profile *r) {
    esp__free(ctx, r->path);
    esp__free(ctx, r->name);
    esp__free(ctx, r->ready);
    esp__free(ctx, r->forward);
    esp__free(ctx, r->sorted);
    esp__free(ctx, r->mine);
    esp__free(ctx, r->all);
    esp__free(ctx, r);
}

ESP__FN esp_status esp__profile_agree(esp_ctx *ctx, const esp__profile *r, esp_status mine) {
    esp__text lines = {.ctx = ctx};
    esp__text_add(&lines, "ESPRESSO_PROFILE: %u steps, after %u others\n", r ? r->steps : 0, r ? r->skip : 0);
    return esp__agree_lines(ctx, &lines, mine);
}

static esp_status esp__profile_open(esp_ctx *ctx, void **self) {
    const char *spec = getenv("ESPRESSO_PROFILE");
    esp__profile *r = NULL;
    esp_status s = ESP_OK;
    if (spec && *spec) {
        r = *self = esp__alloc(ctx, sizeof *r);
        if (!r) s = esp__fail(ctx, ESP_E_NOMEM, "ESPRESSO_PROFILE: out of memory");
        if (!s) r->steps = ESP__PROFILE_STEPS, r->skip = ESP__PROFILE_SKIP, s = esp__profile_parse(ctx, r, spec);
        int error = !s && ctx->job.rank == 0 ? esp__file_check(r->path) : 0;
        if (error)
            s = esp__fail(ctx, ESP_E_ARG, "ESPRESSO_PROFILE: %s cannot be written: %s", r->path, esp__strerror(error));
        if (!s) s = esp__profile_take(ctx, r);
    }
    s = esp__profile_agree(ctx, r, s);
    if (s && r) esp__profile_free(ctx, r), *self = NULL;
    return s;
}

/* Returns the ns from the start of the forward pass until tensor i was ready. If i is -1, until the first esp_push. */
static double esp__profile_at(const esp_ctx *ctx, const esp__profile *r, uint32_t step, int64_t i) {
    uint64_t first = r->forward[step],
             at = i < 0 ? first : r->ready[step * (uint64_t)ctx->model.n_tensors + (uint64_t)i];
    return (double)(at > first ? at : first);
}

/* Returns the median, over n steps, of the ns between two tensors' ready times. In `earlier`, -1 stands for the first
 * esp_push and -2 for the start of the forward pass. */
static double esp__profile_gap(const esp_ctx *ctx, esp__profile *r, uint32_t n, int64_t earlier, int64_t later) {
    for (uint32_t k = 0; k < n; k++)
        r->sorted[k] = esp__profile_at(ctx, r, k, later) - (earlier < -1 ? 0 : esp__profile_at(ctx, r, k, earlier));
    return esp__median(r->sorted, n);
}

ESP__FN void esp__profile_mine(const esp_ctx *ctx, esp__profile *r, uint32_t n) {
    esp__profile_rank *head = (esp__profile_rank *)r->mine;
    double *ready = (double *)(void *)(head + 1);
    const esp__machine_time now = esp__machine_time_now(), *then = &r->time;
    head->forward_ns = esp__profile_gap(ctx, r, n, -2, -1);
    head->stolen = now.all > then->all ? (now.stolen - then->stolen) / (now.all - then->all) : 0;
    head->cores = esp__cores();
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        ready[i] = esp__profile_gap(ctx, r, n, -2, i);
        const double before = i ? ready[i - 1] : head->forward_ns;
        if (ready[i] < before) ready[i] = before;
    }
    const double whole = esp__profile_gap(ctx, r, n, -1, (int64_t)ctx->model.n_tensors - 1);
    const double wide = esp__quantile(r->sorted, n, 0.9) - esp__quantile(r->sorted, n, 0.1);
    /* divides by the time of both passes, since the backward time is tiny if all gradients are pushed at its end */
    head->spread = head->forward_ns + whole > 0 ? wide / (head->forward_ns + whole) : 0;
}

/* Replaces each recorded time by the latest of all ranks. Collective. */
static esp_status esp__profile_latest(esp_ctx *ctx, esp__profile *r) {
    const uint64_t n = ctx->model.n_tensors;
    uint64_t *row = (uint64_t *)(void *)r->mine;
    for (uint32_t k = 0; k < r->steps; k++) {
        row[0] = r->forward[k];
        memcpy(row + 1, r->ready + k * n, n * 8u);
        esp_status s = esp__agree_latest(ctx, row, n + 1, (uint64_t *)(void *)r->all);
        if (s) return s;
        r->forward[k] = row[0];
        memcpy(r->ready + k * n, row + 1, n * 8u);
    }
    return ESP_OK;
}

static void esp__profile_combine(esp__profile *r, int32_t ranks) {
    esp__profile_rank *first = (esp__profile_rank *)r->all;
    for (int32_t k = 1; k < ranks; k++) {
        const esp__profile_rank *other = (const esp__profile_rank *)(r->all + (uint64_t)k * r->bytes);
        if (other->stolen > first->stolen) first->stolen = other->stolen;
        if (other->cores < first->cores) first->cores = other->cores;
    }
}

/* ---- the file ---- */
static void esp__profile_print_tensor(esp__text *t, const esp__tensor *x, double ns) {
    const char *keep = x->flags & ESP_RAW ? "fp32" : x->option_override ? x->option_override : x->codec_override;
    esp__text_add(t, "    {\"name\": ");
    esp__json_string(t, x->name);
    esp__text_add(t, ", \"elements\": %llu, \"compute_us\": ", (unsigned long long)x->count);
    esp__json_us(t, ns);
    if (keep && *keep) {
        esp__text_add(t, ", \"keep\": ");
        esp__json_string(t, keep);
    }
    if (x->flags & ESP_SHARD) {
        char cuts[ESP__CUTS_TEXT];
        esp__scopes_print(x->shard.scopes, x->shard.n, cuts, sizeof cuts);
        esp__text_add(t, ", \"shard\": \"%s\"", cuts);
    }
    if (x->rows && x->cols)
        esp__text_add(t, ", \"rows\": %llu, \"cols\": %llu", (unsigned long long)x->rows, (unsigned long long)x->cols);
    esp__text_add(t, "}");
}

static void esp__profile_print(const esp_ctx *ctx, const esp__profile *r, uint32_t steps, int32_t ranks, bool noisy,
                               esp__text *t) {
    const esp__profile_rank *head = (const esp__profile_rank *)r->all;
    const double *ready = (const double *)(const void *)(head + 1);
    char cpu[128];
    uint64_t elements = 0;
    esp__cpu_name(cpu, sizeof cpu);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) elements += ctx->model.tensors[i].count;
    esp__text_add(t, "{\n  \"espresso\": 1,\n  \"model\": ");
    esp__json_string(t, r->name);
    esp__text_add(t, ",\n  \"source\": \"measured: medians of %u steps, in each the latest of %d rank(s)\"", steps,
                  ranks);
    esp__text_add(t, ",\n  \"device\": ");
    char device[192];
    snprintf(device, sizeof device, "cpu%s%s", *cpu ? ": " : "", cpu);
    esp__json_string(t, device);
    esp__text_add(t, ",\n  \"parameters\": %llu,\n  \"forward_us\": ", (unsigned long long)elements);
    esp__json_us(t, head->forward_ns);
    esp__text_add(t, ",\n  \"forward_is\": \"measured: from the end of a step to the first push: update, forward pass "
                     "and the first gradient\"");
    esp__text_add(t, ",\n  \"dtype\": \"f32\",\n  \"steps\": %u,\n  \"ranks\": %d,\n  \"cores\": %u,\n  \"noisy\": %s",
                  steps, ctx->job.size, head->cores, noisy ? "true" : "false");
    esp__text_add(t, ",\n  \"tensors\": [\n");
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__profile_print_tensor(t, &ctx->model.tensors[i], ready[i] - (i ? ready[i - 1] : head->forward_ns));
        esp__text_add(t, i + 1 < ctx->model.n_tensors ? ",\n" : "\n  ]\n}\n");
    }
}

/* If rank 0 cannot write the file, it only warns, and training continues. */
static void esp__profile_write(esp_ctx *ctx, esp__profile *r, uint32_t steps, int32_t ranks) {
    const esp__profile_rank *head = (const esp__profile_rank *)r->all;
    esp__text t = {.ctx = ctx};
    const bool noisy = head->spread > esp__profile_noisy_spread || head->stolen > esp__profile_noisy_stolen;
    esp__profile_print(ctx, r, steps, ranks, noisy, &t);
    int error = t.failed ? ENOMEM : esp__file_replace(r->path, t.data, t.len);
    esp__text_free(&t);
    if (error)
        esp__log(ctx, ESP_LOG_WARN, "profile", "%s cannot be written: %s", r->path, esp__strerror(error));
    else
        esp__log(ctx, ESP_LOG_INFO, "profile", "%s: %u tensors, medians of %u steps", r->path, ctx->model.n_tensors,
                 steps);
    if (noisy && !error)
        esp__log(ctx, ESP_LOG_WARN, "profile",
                 "%s is noisy: the backward time spread by %.0f%% of a step, %.1f%% of the machine's time was stolen: "
                 "measure again on a quieter machine",
                 r->path, head->spread * 100, head->stolen * 100);
}

/* ---- steps ---- */
static esp_status esp__profile_step(esp_ctx *ctx, void *self) {
    esp__profile *r = self;
    if (r->done) return ESP_OK;
    if (r->seen == r->skip) r->time = esp__machine_time_now();
    if (++r->seen <= r->skip) return ESP_OK;
    uint64_t row = r->seen - r->skip - 1;
    esp__meter_ready(ctx, r->ready + row * ctx->model.n_tensors);
    r->forward[row] = ctx->steps.clock.first_push_ns - ctx->steps.clock.begin_ns;
    if (row + 1 < r->steps) return ESP_OK;
    r->done = true;
    esp_status s = esp__profile_latest(ctx, r);
    if (s) return s;
    esp__profile_mine(ctx, r, r->steps);
    s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, r->mine, r->all, r->bytes);
    if (s || ctx->job.rank) return s;
    esp__profile_combine(r, ctx->job.size);
    esp__profile_write(ctx, r, r->steps, ctx->job.size);
    return ESP_OK;
}

/* If the job ends early, rank 0 writes a file from its own steps alone, since other ranks may be gone. */
static void esp__profile_close(esp_ctx *ctx, void *self) {
    esp__profile *r = self;
    if (!r->done && ctx->job.rank == 0 && r->seen > r->skip) {
        uint32_t n = (uint32_t)(r->seen - r->skip);
        esp__profile_mine(ctx, r, n);
        memcpy(r->all, r->mine, r->bytes);
        esp__profile_write(ctx, r, n, 1);
        esp__log(ctx, ESP_LOG_WARN, "profile",
                 "only %u of %u steps were made (after %u that do not count): %s has the times of rank 0 alone", n,
                 r->steps, r->skip, r->path);
    } else if (!r->done && ctx->job.rank == 0) {
        esp__log(ctx, ESP_LOG_WARN, "profile",
                 "%s was not written: %llu step(s) were made, and the first %u do not count "
                 "(ESPRESSO_PROFILE=FILE,skip=0 counts them)",
                 r->path, (unsigned long long)r->seen, r->skip);
    }
    esp__profile_free(ctx, r);
}

/* Stops recording after a loss of ranks, because the remaining ones may have recorded different steps. */
static esp_status esp__profile_shrunk(esp_ctx *ctx, void **self) {
    esp__profile *r = *self;
    if (r && !r->done && ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_WARN, "profile", "%s is not written: a rank was lost while steps were recorded", r->path);
    if (r) r->done = true;
    return ESP_OK;
}

ESP__FN const esp__observer *esp__profile_observer(void) {
    static const esp__observer o = {.open = esp__profile_open,
                                    .collective = 1,
                                    .step = esp__profile_step,
                                    .shrunk = esp__profile_shrunk,
                                    .close = esp__profile_close};
    return &o;
}
