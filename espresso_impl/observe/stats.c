/* stats.c: writes statistics while training runs, as JSON lines or in Prometheus' text format
 * (ESPRESSO_STATS=FILE[,FILE...][,every=1s]). A step only copies counters, and the sampler's thread writes them. */
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/limits.h"
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/base/os.h"
#include "espresso_impl/observe/stats.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- ESPRESSO_STATS ---- */
static esp_status esp__stats_every(const esp_ctx *ctx, const char *val, uint64_t *out) {
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"", 1e9}, {"s", 1e9}, {"ms", 1e6}, {"min", 60e9}};
    const char *end;
    double v;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (esp_params_number(val, &end, &v) && !strcmp(end, units[i].name) && v * units[i].ns >= 1e7 &&
            v * units[i].ns <= 86400e9) {
            *out = (uint64_t)(v * units[i].ns);
            return ESP_OK;
        }
    return esp__fail(ctx, ESP_E_ARG, "ESPRESSO_STATS: every=%s: write a time from 10ms to 1440min, such as every=1s",
                     val);
}

/* A name with "%r" is a file on every rank ("%r" becomes the rank), any other one is written by rank 0 only. */
static esp_status esp__stats_file_add(esp_ctx *ctx, esp__stats_file *f, const char *name) {
    char path[4096];
    const size_t len = strlen(name);
    if (!esp__path_of_rank(name, ctx->job.rank, path, sizeof path) && ctx->job.rank) return ESP_OK;
    esp__stats_out *o = &f->out[f->n_out++];
    o->prometheus = len >= 5 && !strcmp(name + len - 5, ".prom");
    char whole[PATH_MAX];
    const int error = esp__path_of_context(ctx, path, whole);
    if (error)
        return esp__fail(ctx, error == ENOMEM ? ESP_E_NOMEM : ESP_E_ARG, "ESPRESSO_STATS: %s: %s", path,
                         strerror(error));
    o->path = esp__strdup(ctx, whole);
    return o->path ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "ESPRESSO_STATS: out of memory");
}

static esp_status esp__stats_parse(esp_ctx *ctx, esp__stats_file *f) {
    esp_status s = ESP_OK;
    uint32_t named = 0;
    for (const char *at = ctx->config.stats_spec; *at && !s;) {
        char word[4096];
        size_t len = strcspn(at, ",");
        if (len >= sizeof word) return esp__fail(ctx, ESP_E_ARG, "ESPRESSO_STATS: a name is too long");
        memcpy(word, at, len);
        word[len] = 0;
        at += len + (at[len] == ',');
        size_t key = strspn(word, "abcdefghijklmnopqrstuvwxyz");
        if (!strncmp(word, "every=", 6))
            s = esp__stats_every(ctx, word + 6, &f->every_ns);
        else if (key && word[key] == '=')
            s = esp__fail(ctx, ESP_E_ARG,
                          "ESPRESSO_STATS: '%s' is not known: there is every=1s (for a file of that name write ./%s)",
                          word, word);
        else if (len && named++ == ESP__STATS_FILES)
            s = esp__fail(ctx, ESP_E_ARG, "ESPRESSO_STATS: at most %d files", ESP__STATS_FILES);
        else if (len)
            s = esp__stats_file_add(ctx, f, word);
    }
    if (!s && !named)
        s = esp__fail(ctx, ESP_E_ARG, "ESPRESSO_STATS=%s: write FILE or FILE,every=1s: no file is named",
                      ctx->config.stats_spec);
    return s;
}

/* ---- writing: the sampler's thread ---- */
static void esp__stats_failed(const esp_ctx *ctx, esp__stats_out *o, int error) {
    if (!error || o->warned) return;
    o->warned = true;
    esp__log(ctx, ESP_LOG_WARN, "stats", "%s cannot be written: %s. Training continues; this warns once", o->path,
             esp__strerror(error));
}

/* Appends all lines, or none if the disk is full. Opens the file each time, since logrotate may have moved or emptied
 * it; then it writes the header again. */
static int esp__stats_append(const esp__stats_file *f, esp__stats_out *o, const esp__text *lines) {
    struct stat st;
    char last = '\n';
    int flags = O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK; /* O_NONBLOCK: a pipe without a reader must not block */
    int fd = open(o->path, O_RDWR | flags, 0666);
    if (fd < 0) fd = open(o->path, O_WRONLY | flags, 0666);
    if (fd < 0) return errno;
    const bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    int error = 0;
    if (regular && st.st_size && pread(fd, &last, 1, st.st_size - 1) != 1) last = '\n';
    if (last != '\n') error = esp__file_write_all(fd, "\n", 1); /* a job was killed while it wrote a line */
    const bool begin = !o->begun || (regular && st.st_size == 0);
    if (!error && begin) error = esp__file_write_all(fd, f->header.data, f->header.len);
    if (!error) error = esp__file_write_all(fd, lines->data, lines->len);
    if (error && regular && ftruncate(fd, st.st_size) != 0) error = errno;
    if (!error) o->begun = true;
    close(fd);
    return error;
}

/* `strategy` is the active strategy's JSON, or NULL if the file has it already. */
static void esp__stats_lines(const esp__stats_file *f, const esp__stats_sample *s, const char *strategy, esp__text *t) {
    if (strategy)
        esp__text_add(t, "{\"kind\":\"strategy\",\"time\":%.0f,\"step\":%llu%s}\n", s->time_s,
                      (unsigned long long)s->now.since, strategy);
    if (!s->ended || s->now.all.steps != s->before.all.steps || f->before.all.steps == 0)
        esp__stats_json_sample(f->ctx, s, t);
    if (s->ended) esp__stats_json_end(f->ctx, s, t);
}

static bool esp__stats_is_new(const esp__stats_out *o) {
    struct stat st;
    return !o->begun || stat(o->path, &st) != 0 || (S_ISREG(st.st_mode) && st.st_size == 0);
}

static void esp__stats_write(esp__stats_file *f, const esp__stats_sample *s, const char *strategy) {
    const bool changed = s->now.strategy != f->strategy_written;
    for (uint32_t i = 0; i < f->n_out; i++) {
        esp__stats_out *o = &f->out[i];
        esp__text t = {.ctx = f->ctx};
        int error;
        if (o->prometheus)
            esp__stats_prometheus(f->ctx, s, &t);
        else
            esp__stats_lines(f, s, changed || esp__stats_is_new(o) ? strategy : NULL, &t);
        if (t.failed || !t.data)
            error = ENOMEM;
        else
            error = o->prometheus ? esp__file_replace(o->path, t.data, t.len) : esp__stats_append(f, o, &t);
        esp__stats_failed(f->ctx, o, error);
        esp__text_free(&t);
    }
    f->strategy_written = s->now.strategy;
}

static void esp__stats_times(esp__stats_file *f, esp__stats_sample *s) {
    uint64_t end = s->now.n_times, at = f->times_read;
    if (end - at > ESP__STATS_TIMES) at = end - ESP__STATS_TIMES;
    f->times_read = end;
    s->n_times = (uint32_t)(end - at);
    for (uint32_t k = 0; k < s->n_times; k++)
        f->sorted[k] = (double)__atomic_load_n(&f->times[(at + k) % ESP__STATS_TIMES], __ATOMIC_RELAXED);
    if (s->n_times) s->last_ns = f->sorted[s->n_times - 1];
    esp__sort(f->sorted, s->n_times);
    s->step_ns = f->sorted;
}

/* The caller has the lock, which is released while files are written. */
static void esp__stats_take(esp__stats_file *f) {
    uint64_t bytes = f->ctx->model.n_tensors * sizeof *f->tensors;
    esp__stats_sample s;
    struct timespec now;
    memset(&s, 0, sizeof s);
    s.now = f->now;
    s.before = f->before;
    s.ended = f->stop;
    memcpy(f->taken, f->tensors, bytes);
    f->want_tensors = true;
    esp__text strategy = {.ctx = f->ctx};
    esp__text_add(&strategy, "%s", f->strategy.data ? f->strategy.data : "");
    pthread_mutex_unlock(&f->lock);
    clock_gettime(CLOCK_REALTIME, &now);
    s.time_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    if (s.now.all.steps != s.before.all.steps) esp__stats_times(f, &s);
    s.tensors = f->taken;
    s.seen = f->seen;
    esp__stats_write(f, &s, strategy.data);
    esp__text_free(&strategy);
    f->before = s.now;
    memcpy(f->seen, f->taken, bytes);
    pthread_mutex_lock(&f->lock);
}

static void *esp__stats_main(void *arg) {
    esp__stats_file *f = arg;
    struct timespec until;
    prctl(PR_SET_NAME, "espresso-stats", 0, 0, 0);
    clock_gettime(CLOCK_MONOTONIC, &until);
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        uint64_t ns = (uint64_t)until.tv_sec * 1000000000u + (uint64_t)until.tv_nsec + f->every_ns, now = esp__now_ns();
        if (ns < now) ns = now;
        until.tv_sec = (time_t)(ns / 1000000000u);
        until.tv_nsec = (long)(ns % 1000000000u);
        while (!f->stop && pthread_cond_timedwait(&f->cond, &f->lock, &until) != ETIMEDOUT) {
        }
        if (!f->stop) esp__stats_take(f);
    }
    esp__stats_take(f);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- the trainer's thread ---- */
static void esp__stats_publish(esp_ctx *ctx, esp__stats_file *f) {
    esp__stats_now *n = &f->now;
    n->all.struct_size = sizeof n->all;
    esp_stats_read(ctx, &n->all);
    n->step = ctx->steps.step;
    n->n_times = f->n_times;
    n->phase = ctx->steps.phase;
    pthread_mutex_lock(&ctx->lanes.lock);
    n->loss = ctx->steps.loss;
    pthread_mutex_unlock(&ctx->lanes.lock);
    n->predicted_ns = ctx->steps.predicted_ns;
    if (n->strategy != ctx->active.strategy.hash) {
        if (n->strategy) n->changes++;
        n->since = n->strategy && n->step ? n->step - 1 : n->step;
        n->strategy = ctx->active.strategy.hash;
        f->strategy.len = 0;
        if (f->strategy.data) f->strategy.data[0] = 0;
        esp__stats_json_strategy(ctx, &f->strategy);
    }
    for (uint32_t i = 0; f->want_tensors && i < ctx->model.n_tensors; i++) {
        const esp__tensor *x = &ctx->model.tensors[i];
        f->tensors[i] = x->sampled;
        f->tensors[i].pushes = x->pushes;
        f->tensors[i].zeros = x->zero_pushes;
    }
    f->want_tensors = false;
}

static esp_status esp__stats_step(esp_ctx *ctx, void *self) {
    esp__stats_file *f = self;
    if (ctx->steps.clock.end_ns > ctx->steps.clock.begin_ns) {
        __atomic_store_n(&f->times[f->n_times % ESP__STATS_TIMES], ctx->steps.clock.end_ns - ctx->steps.clock.begin_ns,
                         __ATOMIC_RELAXED);
        f->n_times++;
    }
    if (pthread_mutex_trylock(&f->lock) != 0) return ESP_OK;
    esp__stats_publish(ctx, f);
    pthread_mutex_unlock(&f->lock);
    return ESP_OK;
}

/* A pipe without a reader cannot end the process by SIGPIPE, because esp__thread_start blocks signals in the thread. */
static int esp__stats_start(esp__stats_file *f) {
    pthread_mutex_init(&f->lock, NULL);
    esp__cond_init(&f->cond);
    f->has_lock = true;
    const int error = esp__thread_start(&f->thread, esp__stats_main, f);
    f->has_thread = !error;
    return error;
}

static void esp__stats_close(esp_ctx *ctx, void *self) {
    esp__stats_file *f = self;
    if (f->has_lock) {
        pthread_mutex_lock(&f->lock);
        f->stop = f->want_tensors = true;
        if (ctx->started) esp__stats_publish(ctx, f);
        pthread_cond_signal(&f->cond);
        pthread_mutex_unlock(&f->lock);
        if (f->has_thread) pthread_join(f->thread, NULL);
        pthread_cond_destroy(&f->cond);
        pthread_mutex_destroy(&f->lock);
    }
    for (uint32_t i = 0; i < f->n_out; i++) esp__free(ctx, f->out[i].path);
    esp__free(ctx, f->tensors);
    esp__free(ctx, f->taken);
    esp__free(ctx, f->seen);
    esp__text_free(&f->strategy);
    esp__text_free(&f->header);
    esp__free(ctx, f);
}

static esp_status esp__stats_open(esp_ctx *ctx, void **self) {
    esp__stats_file *f;
    struct timespec now;
    if (!ctx->config.stats_spec || !*ctx->config.stats_spec) return ESP_OK;
    f = esp__alloc(ctx, sizeof *f);
    if (!f) return esp__fail(ctx, ESP_E_NOMEM, "ESPRESSO_STATS: out of memory");
    *self = f;
    f->ctx = f->strategy.ctx = f->header.ctx = ctx;
    f->every_ns = 1000000000u;
    esp_status s = esp__stats_parse(ctx, f);
    if (s) return s;
    if (!f->n_out) {
        esp__stats_close(ctx, f);
        *self = NULL;
        return ESP_OK;
    }
    uint64_t bytes = ctx->model.n_tensors * sizeof(esp_tensor_stats);
    f->tensors = esp__alloc(ctx, bytes);
    f->taken = esp__alloc(ctx, bytes);
    f->seen = esp__alloc(ctx, bytes);
    clock_gettime(CLOCK_REALTIME, &now);
    esp__stats_json_header(ctx, f, (double)now.tv_sec + (double)now.tv_nsec / 1e9, &f->header);
    if (!f->tensors || !f->taken || !f->seen || f->header.failed)
        return esp__fail(ctx, ESP_E_NOMEM, "ESPRESSO_STATS: out of memory");
    esp__stats_publish(ctx, f);
    f->before = f->now;
    int failed = esp__stats_start(f);
    if (failed) esp__log(ctx, ESP_LOG_WARN, "stats", "no statistics: cannot start a thread: %s", esp__strerror(failed));
    return ESP_OK;
}

/* The new rank 0 continues the file of the old one. */
static esp_status esp__stats_shrunk(esp_ctx *ctx, void **self) { return *self ? ESP_OK : esp__stats_open(ctx, self); }

ESPRESSO_API esp_status esp_stats_read(esp_ctx *ctx, esp_stats *out) {
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!out || out->struct_size < 8)
        return esp__fail(ctx, ESP_E_ARG, "esp_stats_read: set struct_size to sizeof(esp_stats)");
    esp__core_times(ctx, ESP__CORE_STATS, true);
    pthread_mutex_lock(&ctx->lanes.lock);
    esp_stats all = ctx->steps.stats;
    pthread_mutex_unlock(&ctx->lanes.lock);
    esp__comms_traffic(ctx, &all);
    all.struct_size = out->struct_size < sizeof all ? out->struct_size : (uint32_t)sizeof all;
    memcpy(out, &all, all.struct_size);
    return ESP_OK;
}

ESP__FN const esp__observer *esp__stats_observer(void) {
    static const esp__observer o = {
        .open = esp__stats_open, .step = esp__stats_step, .shrunk = esp__stats_shrunk, .close = esp__stats_close};
    return &o;
}
