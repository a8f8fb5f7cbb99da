/* trace.c: records when each op ran. Ranks keep their events in memory and send them to rank 0 when they close. Rank 0
 * writes them as Chrome/Perfetto trace JSON. */
#include "espresso_impl/observe/trace.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/json.h"
#include "espresso_impl/base/limits.h"
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include <errno.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>

enum { ESP__TRACE_EVENTS = 1 << 20, ESP__TRACE_STEPS = 4096 };
enum { ESP__TRACE_TEXT = 1 << 16 }; /* bytes to collect before writing */

ESP__FN esp_status esp__trace_open(esp_ctx *ctx, uint64_t capacity, esp__trace **out) {
    esp__trace *t = (esp__trace *)esp__alloc(ctx, sizeof *t);
    *out = NULL;
    if (!t) return esp__fail(ctx, ESP_E_NOMEM, "no memory for the trace");
    t->capacity = capacity;
    t->origin_ns = esp__now_ns();
    t->n_labels = ESP__LABELS_MIN;
    while (t->n_labels < ESP__LABELS_MAX && t->n_labels < capacity / 16) t->n_labels *= 2;
    t->labels = (esp__label *)esp__alloc(ctx, t->n_labels * sizeof *t->labels);
    t->events = (esp__event *)esp__alloc(ctx, capacity * sizeof *t->events);
    if (!t->labels || !t->events) {
        esp__trace_free(ctx, t);
        return esp__fail(ctx, ESP_E_NOMEM, "no memory for a trace of %llu events", (unsigned long long)capacity);
    }
    *out = t;
    return ESP_OK;
}

ESP__FN void esp__trace_free(esp_ctx *ctx, esp__trace *t) {
    if (!t) return;
    esp__free(ctx, t->labels);
    esp__free(ctx, t->events);
    esp__free(ctx, t);
}

/* Returns the label's index in the hash table, or n_labels if it is full. The thread that takes a free entry writes the
 * text; texts are read only after all threads have ended. */
static uint32_t esp__trace_label(esp__trace *t, const char *text) {
    uint64_t key = esp__hash64(ESP__HASH0, text, strlen(text)) | 1u;
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t at = (uint32_t)(key >> 8) + i;
        esp__label *l = &t->labels[at & (t->n_labels - 1)];
        unsigned long long found = atomic_load_explicit(&l->key, memory_order_relaxed);
        if (found == 0 && atomic_compare_exchange_strong(&l->key, &found, key)) {
            snprintf(l->text, sizeof l->text, "%s", text);
            return at & (t->n_labels - 1);
        }
        if (found == key) return at & (t->n_labels - 1);
    }
    return t->n_labels;
}

ESP__FN void esp__trace_add(esp__trace *t, uint32_t lane, const char *label, uint32_t tensor, uint64_t step,
                            esp__span when, uint64_t core_ns, uint64_t bytes) {
    uint64_t at = atomic_fetch_add_explicit(&t->n, 1, memory_order_relaxed);
    if (at >= t->capacity) return;
    t->events[at] = (esp__event){when.start_ns, when.end_ns, core_ns,       bytes, esp__trace_label(t, label),
                                 lane,          tensor,      (uint32_t)step};
}

ESP__FN esp_status esp__trace_pack(esp_ctx *ctx, esp__trace *t, void **data, uint64_t *bytes) {
    struct timespec wall;
    uint64_t added = atomic_load(&t->n), label_bytes = t->n_labels * (uint64_t)ESP__LABEL_MAX;
    esp__trace_head h = {ESP__TRACE_MAGIC,
                         ctx ? ctx->job.topo.machine : 0,
                         t->origin_ns,
                         added,
                         0,
                         0,
                         t->n_labels,
                         ESP__LANE_INTRA + (ctx && ctx->job.topo.n_levels ? ctx->job.topo.n_levels : 2),
                         0};
    uint8_t *out;
    if (added > t->capacity) {
        h.n_events = t->capacity;
        h.n_dropped = added - t->capacity;
        esp__log(ctx, ESP_LOG_WARN, "trace", "the trace is full: its last %llu events were not kept",
                 (unsigned long long)h.n_dropped);
    }
    clock_gettime(CLOCK_REALTIME, &wall);
    h.wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)esp__now_ns();
    const uint64_t all = sizeof h + label_bytes + h.n_events * sizeof(esp__event);
    *data = out = (uint8_t *)esp__alloc(ctx, all);
    *bytes = out ? all : 0;
    if (!out) return esp__fail(ctx, ESP_E_NOMEM, "no memory to send the trace");
    memcpy(out, &h, sizeof h);
    for (uint32_t i = 0; i < t->n_labels; i++)
        memcpy(out + sizeof h + (uint64_t)i * ESP__LABEL_MAX, t->labels[i].text, ESP__LABEL_MAX);
    memcpy(out + sizeof h + label_bytes, t->events, h.n_events * sizeof(esp__event));
    return ESP_OK;
}

/* ---- the file on rank 0 ---- */
struct esp__trace_file {
    esp_ctx *ctx;
    char *path;
    esp__file to;
    esp__text text;
    bool any;
    int failed;
    uint64_t origin_ns; /* times count from the first rank's origin_ns */
    int64_t wall_ns;
};

static void esp__trace_file_free(esp__trace_file *f) {
    esp_ctx *ctx = f->ctx;
    esp__file_drop(&f->to);
    esp__text_free(&f->text);
    esp__free(ctx, f->path);
    esp__free(ctx, f);
}

/* Fails now, and not after hours of training, if the file cannot be written. Leaves nothing on the disk. */
ESP__FN esp_status esp__trace_file_open(esp_ctx *ctx, const char *path, esp__trace_file **out) {
    esp__trace_file *f = (esp__trace_file *)esp__alloc(ctx, sizeof *f);
    char own[PATH_MAX];
    *out = NULL;
    if (!f) return esp__fail(ctx, ESP_E_NOMEM, "no memory for the trace file");
    f->ctx = f->text.ctx = ctx;
    int error = esp__path_of_context(ctx, path, own);
    f->path = error ? NULL : esp__strdup(ctx, own);
    if (!error) error = f->path ? esp__file_check(own) : ENOMEM;
    if (!error) {
        *out = f;
        return ESP_OK;
    }
    esp__trace_file_free(f);
    if (error == ENOMEM) return esp__fail(ctx, ESP_E_NOMEM, "no memory for the trace file");
    if (error == ENAMETOOLONG)
        return esp__fail(ctx, ESP_E_ARG, "the trace file's name is too long (ESPRESSO_TRACE or esp_config.trace)");
    if (error == EISDIR)
        return esp__fail(ctx, ESP_E_ARG, "the trace %s is a directory: give the name of a file (ESPRESSO_TRACE)", path);
    return esp__fail(ctx, ESP_E_ARG, "cannot write the trace %s: %s (ESPRESSO_TRACE or esp_config.trace)", path,
                     esp__strerror(error));
}

static void esp__trace_file_flush(esp__trace_file *f) {
    esp__text *t = &f->text;
    if (t->failed && !f->failed) f->failed = ENOMEM;
    if (!f->failed) esp__file_put(&f->to, t->data, t->len);
    t->len = 0;
}

static void esp__trace_put_us(esp__text *t, const char *key, int64_t ns) {
    uint64_t u = ns < 0 ? (uint64_t)-ns : (uint64_t)ns;
    esp__text_add(t, ",\"%s\":%s%llu.%03u", key, ns < 0 ? "-" : "", (unsigned long long)(u / 1000),
                  (unsigned)(u % 1000));
}

/* Process ids count from 1, since viewers take 0 for the idle process. Thread ids are unique in the job. */
static unsigned esp__trace_pid(int32_t rank) { return (unsigned)rank + 1; }
static unsigned esp__trace_tid(int32_t rank, uint32_t lane) { return ((unsigned)rank + 1) * 10 + lane; }

static void esp__trace_file_names(esp__trace_file *f, int32_t rank, const esp__trace_head *h) {
    unsigned pid = esp__trace_pid(rank);
    esp__text_add(
        &f->text,
        "%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":\"rank %d (machine %d)\"}}",
        f->any ? "," : "", pid, (int)rank, (int)h->machine);
    esp__text_add(&f->text, ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%u,\"args\":{\"sort_index\":%d}}",
                  pid, (int)rank);
    for (uint32_t lane = 0; lane < h->n_lanes && lane < ESP__LANES; lane++) {
        unsigned tid = esp__trace_tid(rank, lane);
        esp__text_add(&f->text,
                      ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"%s\"}}",
                      pid, tid, esp__lane_name(f->ctx, lane));
        esp__text_add(
            &f->text,
            ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%u,\"tid\":%u,\"args\":{\"sort_index\":%u}}", pid,
            tid, (unsigned)lane);
    }
    f->any = true;
}

static void esp__trace_file_event(esp__trace_file *f, int32_t rank, const esp__event *e, const char *label,
                                  int64_t shift) {
    uint32_t lane = e->lane < ESP__LANES ? e->lane : 0;
    esp__text_add(&f->text, ",\n{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u", esp__lane_name(f->ctx, lane),
                  esp__trace_pid(rank), esp__trace_tid(rank, lane));
    esp__trace_put_us(&f->text, "ts", (int64_t)(e->start_ns - f->origin_ns) + shift);
    esp__trace_put_us(&f->text, "dur", e->end_ns > e->start_ns ? (int64_t)(e->end_ns - e->start_ns) : 0);
    esp__text_add(&f->text, ",\"name\":");
    esp__json_string(&f->text, label);
    esp__text_add(&f->text, ",\"args\":{\"step\":%u", (unsigned)e->step);
    if (e->tensor != UINT32_MAX) esp__text_add(&f->text, ",\"tensor\":%u", (unsigned)e->tensor);
    if (e->core_ns) esp__trace_put_us(&f->text, "core_us", (int64_t)e->core_ns);
    esp__text_add(&f->text, ",\"bytes\":%llu}}", (unsigned long long)e->bytes);
}

/* Clocks of machines differ, so times are shifted by the difference of their times of day. */
ESP__FN void esp__trace_file_rank(void *file, int32_t rank, const void *data, uint64_t bytes) {
    esp__trace_file *f = (esp__trace_file *)file;
    const uint8_t *at = (const uint8_t *)data + sizeof(esp__trace_head), *events;
    esp__trace_head h;
    int64_t shift;
    if (!f || !data || bytes < sizeof h || f->failed) return;
    memcpy(&h, data, sizeof h);
    bytes -= sizeof h;
    if (h.magic != ESP__TRACE_MAGIC || h.n_labels > ESP__LABELS_MAX || h.n_labels * ESP__LABEL_MAX > bytes ||
        h.n_events > (bytes - h.n_labels * ESP__LABEL_MAX) / sizeof(esp__event))
        return;
    events = at + h.n_labels * ESP__LABEL_MAX;
    if (!f->to.to && (f->failed = esp__file_open(&f->to, f->path)) != 0) return;
    if (!f->any) {
        esp__text_add(&f->text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
        f->origin_ns = h.origin_ns;
        f->wall_ns = h.wall_ns;
    }
    shift = h.wall_ns - f->wall_ns;
    if (shift > -1000000 && shift < 1000000) shift = 0; /* less than 1 ms means that both ranks have the same clock */
    esp__trace_file_names(f, rank, &h);
    for (uint64_t i = 0; i < h.n_events; i++) {
        esp__event e;
        char label[ESP__LABEL_MAX] = "op";
        memcpy(&e, events + i * sizeof e, sizeof e);
        if (e.label < h.n_labels) memcpy(label, at + (uint64_t)e.label * ESP__LABEL_MAX, sizeof label);
        label[sizeof label - 1] = 0;
        esp__trace_file_event(f, rank, &e, label, shift);
        if (f->text.len > ESP__TRACE_TEXT) esp__trace_file_flush(f);
    }
    esp__trace_file_flush(f);
}

ESP__FN esp_status esp__trace_file_close(esp__trace_file *f) {
    esp_status s = ESP_OK;
    if (!f) return ESP_OK;
    if (f->to.to && !f->failed) {
        esp__file_put(&f->to, "\n]}\n", 4);
        f->failed = esp__file_close(&f->to);
    }
    if (f->failed) {
        s = esp__fail(f->ctx, ESP_E_DEVICE, "cannot write the trace %s: %s", f->path, esp__strerror(f->failed));
        esp__log(f->ctx, ESP_LOG_WARN, "trace", "%s", esp_last_error(f->ctx));
    }
    esp__trace_file_free(f);
    return s;
}

/* ---- the observer ---- */
/* ESPRESSO_TRACE is "FILE" or "FILE,steps=60". */
static esp_status esp__trace_parse(esp_ctx *ctx, esp__trace *t, char path[PATH_MAX]) {
    const char *spec = ctx->config.trace_path, *more = strstr(spec, ",steps=");
    char *end, name[PATH_MAX];
    snprintf(name, sizeof name, "%.*s", more ? (int)(more - spec) : (int)strlen(spec), spec);
    if (!more) return snprintf(path, PATH_MAX, "%s", name), ESP_OK;
    t->steps_left = strtoull(more + 7, &end, 10);
    t->own_file = true;
    if (more[7] < '0' || more[7] > '9' || *end || !t->steps_left || t->steps_left > ESP__TRACE_STEPS)
        return esp__fail(ctx, ESP_E_ARG, "ESPRESSO_TRACE=%s: steps= takes a whole number from 1 to %d", spec,
                         (int)ESP__TRACE_STEPS);
    if (!esp__path_of_rank(name, ctx->job.rank, path, PATH_MAX) && ctx->job.size > 1)
        return esp__fail(ctx, ESP_E_ARG,
                         "ESPRESSO_TRACE=%s: with steps= every rank writes a file of its own: put %%r for the rank "
                         "into the name, such as trace.%%r.json,steps=60",
                         spec);
    return ESP_OK;
}

static esp_status esp__trace_start(esp_ctx *ctx, void **self) {
    uint64_t events = (uint64_t)ctx->active.program.n_ops * ESP__TRACE_STEPS;
    char path[PATH_MAX];
    esp__trace *t;
    if (!ctx->config.trace_path) return ESP_OK;
    if (events > ESP__TRACE_EVENTS) events = ESP__TRACE_EVENTS;
    esp_status s = esp__trace_open(ctx, events < 4096 ? 4096 : events, &t);
    if (s) return s;
    *self = t;
    esp__core_times(ctx, ESP__CORE_TRACE, 1);
    s = esp__trace_parse(ctx, t, path);
    return !s && (t->own_file || ctx->job.rank == 0) ? esp__trace_file_open(ctx, path, &t->file) : s;
}

/* Does not subtract the time of the first event, so that traces of several ranks of one machine fit together. */
static void esp__trace_write_own(esp_ctx *ctx, esp__trace *t) {
    void *data = NULL;
    uint64_t bytes;
    t->origin_ns = 0;
    if (esp__trace_pack(ctx, t, &data, &bytes) == ESP_OK) esp__trace_file_rank(t->file, ctx->job.rank, data, bytes);
    esp__free(ctx, data);
    esp__trace_file_close(t->file);
    t->file = NULL;
    t->done = true;
    esp__core_times(ctx, ESP__CORE_TRACE, 0);
}

static esp_status esp__trace_step(esp_ctx *ctx, void *self) {
    esp__trace *t = self;
    if (t->own_file && !t->done && --t->steps_left == 0) esp__trace_write_own(ctx, t);
    return ESP_OK;
}

static void esp__trace_pushed(esp_ctx *ctx, void *self, uint32_t tensor, esp__span in_push) {
    esp__trace *t = self;
    if (t->done) return;
    if (t->push_step == ctx->steps.step + 1)
        esp__trace_add(t, ESP__LANE_COMPUTE, ctx->model.tensors[tensor].name, tensor, ctx->steps.step,
                       (esp__span){t->last_push_ns, in_push.start_ns}, 0, 0);
    t->push_step = ctx->steps.step + 1;
    t->last_push_ns = in_push.end_ns;
}

static uint64_t esp__op_moves(const esp__op *op) {
    if (op->kind == ESP__OP_COPY) return 0;
    if (op->kind != ESP__OP_COLLECTIVE) return op->codec.n_ranges * op->codec.slot_bytes;
    return op->collective.coll.dst.bytes > op->collective.coll.src.bytes ? op->collective.coll.dst.bytes
                                                                         : op->collective.coll.src.bytes;
}

static void esp__trace_op(esp_ctx *ctx, void *self, const esp__op *op, esp__span when) {
    if (((const esp__trace *)self)->done) return;
    uint64_t bytes = esp__op_moves(op), step = ctx->steps.step;
    uint32_t tensor = ctx->active.strategy.units[op->unit].place.first;
    const uint64_t core = ctx->active.op_core_ns[op - ctx->active.program.ops];
    esp__trace_add(self, op->lane, op->label, tensor, step, when, core, bytes);
    for (uint32_t lane = ESP__LANE_INTRA; lane < op->lane; lane++)
        if (op->kind == ESP__OP_COLLECTIVE && op->collective.links >> (lane - ESP__LANE_INTRA) & 1u)
            esp__trace_add(self, lane, op->label, tensor, step, when, core, bytes);
}

static void esp__trace_done(void *user) { esp__trace_file_close(user); }

static void esp__trace_close(esp_ctx *ctx, void *self) {
    esp__trace *t = self;
    esp__final *f = &ctx->job.last;
    if (t->own_file) {
        if (t->file && ctx->started) esp__trace_write_own(ctx, t);
        if (t->file) esp__trace_file_close(t->file);
        esp__trace_free(ctx, t);
        return;
    }
    if (ctx->started) esp__trace_pack(ctx, t, &f->data, &f->bytes);
    if (t->file && f->data) esp__trace_file_rank(t->file, ctx->job.rank, f->data, f->bytes);
    f->collect = t->file ? esp__trace_file_rank : NULL;
    f->done = t->file ? esp__trace_done : NULL;
    f->user = t->file;
    esp__trace_free(ctx, t);
}

/* After a loss of ranks, another rank may be rank 0, which writes the file. */
static esp_status esp__trace_shrunk(esp_ctx *ctx, void **self) {
    esp__trace *t = *self;
    char path[PATH_MAX];
    if (!t || t->own_file || t->file || ctx->job.rank) return ESP_OK;
    const esp_status s = esp__trace_parse(ctx, t, path);
    return s ? s : esp__trace_file_open(ctx, path, &t->file);
}

ESP__FN const esp__observer *esp__trace_observer(void) {
    static const esp__observer o = {.open = esp__trace_start,
                                    .pushed = esp__trace_pushed,
                                    .op_done = esp__trace_op,
                                    .step = esp__trace_step,
                                    .shrunk = esp__trace_shrunk,
                                    .close = esp__trace_close};
    return &o;
}
