/* errors.c: measures the compression error of real payloads, without changing what ranks send. In a step it decodes at
 * most one payload and compares it with the numbers that were compressed: error = |input - decoded|^2 / |input|^2. It
 * also computes |residual| / |gradient|, which stays small if error feedback works. Of large tensors it measures only
 * some blocks. This takes less than 1/256 of the run time, apart from the first samples of small tensors. */
#include "espresso_impl/observe/errors.h"
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include <math.h>

static bool esp__errors_measures(const esp__op *op) {
    return op->kind == ESP__OP_COMPRESS && op->codec.comp_index == 0 && op->codec.n_ranges > 0 &&
           op->round + 1u == op->n_rounds;
}

static esp_status esp__errors_open(esp_ctx *ctx, void **self) {
    if (!ctx->config.sample_errors) return ESP_OK;
    *self = esp__alloc(ctx, sizeof(struct esp__errors));
    return *self ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "out of memory for the measuring of errors");
}

static void esp__errors_activated(esp_ctx *ctx, void *self) {
    struct esp__errors *g = self;
    const esp__program *p = &ctx->active.program;
    uint64_t n = 0;
    esp__free(ctx, g->units);
    memset(g, 0, sizeof *g);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++)
        memset(&ctx->model.tensors[i].sampled, 0, sizeof(esp_tensor_stats));
    for (uint32_t i = 0; i < p->n_ops; i++) n += esp__errors_measures(&p->ops[i]);
    g->units = n ? esp__alloc(ctx, n * sizeof *g->units) : NULL;
    if (n && !g->units) {
        esp__log(ctx, ESP_LOG_WARN, "errors", "out of memory: what compression loses is not measured");
        return;
    }
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!esp__errors_measures(&p->ops[i])) continue;
        g->units[g->n].op = i;
        g->units[g->n++].unit = p->ops[i].unit;
    }
    g->opened_ns = esp__now_ns();
    ctx->active.memory_bytes += sizeof *g + n * sizeof *g->units;
}

static void esp__errors_close(esp_ctx *ctx, void *self) {
    esp__free(ctx, ((struct esp__errors *)self)->units);
    esp__free(ctx, self);
}

static bool esp__errors_turn(struct esp__errors *g, uint32_t op, bool small) {
    uint32_t low = 0, high = g->n;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (g->units[middle].op <= op)
            low = middle;
        else
            high = middle;
    }
    g->now = low;
    return g->units[low].op == op && (low == g->next || (small && !g->units[low].samples));
}

static bool esp__errors_begin(esp_ctx *ctx, const esp__op *op) {
    struct esp__errors *g = esp__errors_of(ctx);
    if (g->last_step == ctx->steps.step + 1) return false;
    uint64_t count = 0;
    for (uint32_t i = 0; i < op->codec.n_ranges; i++)
        count += ctx->active.program.ranges[op->codec.first_range + i].length;
    const bool small = count < ESP__ERRORS_SMALL;
    if (!esp__errors_turn(g, (uint32_t)(op - ctx->active.program.ops), small)) return false;
    double cost = (double)count * (g->elements ? (double)g->spent_ns / (double)g->elements : 1.0);
    double time = (double)(esp__now_ns() - g->opened_ns);
    if (!(small && !g->units[g->now].samples) && ((double)g->spent_ns + cost) * ESP__ERRORS_SHARE > time) return false;
    g->last_step = ctx->steps.step + 1;
    g->input = g->lost = g->gradient = g->residual = 0;
    g->invalid = false;
    return true;
}

/* Sums of squares of input, error and gradient. Each has several partial sums, so that the compiler vectorizes. */
typedef struct esp__errors_sums {
    double of[3][ESP__ERRORS_LANES];
} esp__errors_sums;

/* `x` is the gradient, `y` the decoded payload, `e` the residual or NULL. n is at most ESP__ERRORS_LANES. */
static inline void esp__errors_few(esp__errors_sums *s, const float *x, const float *y, const float *e, uint64_t n) {
    for (uint64_t k = 0; k < n; k++) {
        double in = (double)x[k], out = (double)y[k], rest = e ? (double)e[k] : in - out;
        double whole = e ? out + rest : in;
        s->of[0][k] += whole * whole;
        s->of[1][k] += rest * rest;
        s->of[2][k] += in * in;
    }
}

static void esp__errors_block(esp__errors_sums *s, const float *x, const float *y, const float *e, uint64_t n) {
    uint64_t i = 0;
    if (e)
        for (; n - i >= ESP__ERRORS_LANES; i += ESP__ERRORS_LANES)
            esp__errors_few(s, x + i, y + i, e + i, ESP__ERRORS_LANES);
    else
        for (; n - i >= ESP__ERRORS_LANES; i += ESP__ERRORS_LANES)
            esp__errors_few(s, x + i, y + i, NULL, ESP__ERRORS_LANES);
    esp__errors_few(s, x + i, y + i, e ? e + i : NULL, n - i);
}

static esp_status esp__errors_block_on(const esp_ctx *ctx, esp__errors_sums *s, const esp__errors_arrays *a,
                                       uint64_t begin, uint64_t n) {
    float here[3][ESP__ERRORS_BLOCK];
    for (int k = 0; k < 3; k++) {
        if (!a->of[k]) continue;
        const esp_status st = esp__device_copy(ctx, ESP__CPU_INDEX, here[k], a->device, a->of[k] + begin, n * 4u);
        if (st) return st;
    }
    esp__errors_block(s, here[0], here[1], a->of[2] ? here[2] : NULL, n);
    return ESP_OK;
}

ESP__FN esp_status esp__errors_add(const esp_ctx *ctx, struct esp__errors *g, const esp__errors_arrays *a, uint64_t n) {
    const uint64_t every = n / ESP__ERRORS_EXACT + 1;
    const float *e = a->of[2];
    esp_status st = ESP_OK;
    esp__errors_sums s;
    memset(&s, 0, sizeof s);
    for (uint64_t begin = 0; begin < n && !st; begin += every * ESP__ERRORS_BLOCK) {
        const uint64_t length = n - begin < ESP__ERRORS_BLOCK ? n - begin : ESP__ERRORS_BLOCK;
        if (a->device)
            st = esp__errors_block_on(ctx, &s, a, begin, length);
        else
            esp__errors_block(&s, a->of[0] + begin, a->of[1] + begin, e ? e + begin : NULL, length);
    }
    for (int k = 0; k < ESP__ERRORS_LANES; k++) {
        g->input += (double)every * s.of[0][k];
        g->lost += (double)every * s.of[1][k];
        g->gradient += (double)every * s.of[2][k];
        g->residual += e ? (double)every * s.of[1][k] : 0.0;
    }
    return st;
}

/* The arrays are read on the compute stream, so make it wait until the op's stream has written them. */
static esp_status esp__errors_settle(const esp_ctx *ctx, const esp__op *op) {
    return esp__op_behind(op) ? esp__device_join(ctx, op->on, op->stream) : ESP_OK;
}

static void esp__errors_range(esp_ctx *ctx, const esp__op *op, const esp__range *r) {
    struct esp__errors *g = esp__errors_of(ctx);
    const esp__feedback *f = op->codec.feedback >= 0 ? &ctx->active.feedback[op->codec.feedback] : NULL;
    uint64_t begin = esp__now_ns();
    const uint8_t *payload =
        esp__at(&ctx->active, op, op->codec.slots) + ctx->active.program.slots[r->first_slot] * op->codec.slot_bytes;
    esp__errors_arrays a = {op->on, {NULL, ctx->active.on[op->on].phi, NULL}};
    esp__codec_call c;
    esp_payload_header h;
    if (esp__errors_settle(ctx, op) || esp__device_copy(ctx, ESP__CPU_INDEX, &h, op->on, payload, sizeof h) ||
        h.flags & ESP_PAYLOAD_NONFINITE)
        g->invalid = true;
    if (g->invalid) return;
    esp__call_range(ctx, op, r, &c);
    esp__call_payload(&c, payload, op->codec.slot_bytes, NULL);
    a.of[0] = c.part.data.ptr;
    memcpy(&c.part.data.ptr, &a.of[1], sizeof a.of[1]);
    if (f && f->residual) a.of[2] = f->residual + (r->begin - f->offset);
    if (esp__call_decompress(&c) != ESP_OK || esp__errors_settle(ctx, op) ||
        esp__errors_add(ctx, g, &a, r->length) != ESP_OK) {
        g->invalid = true;
        return;
    }
    g->spent_ns += esp__now_ns() - begin;
    g->elements += r->length;
}

/* Sets a tensor's statistics: the mean over its chunks, weighted by their elements, or those of its group. The caller
 * has the lock. */
static void esp__errors_tensor(esp_ctx *ctx, uint32_t tensor) {
    const struct esp__errors *g = esp__errors_of(ctx);
    const esp__tensor_units *t = &ctx->active.strategy.of_tensor[tensor];
    esp_tensor_stats all = {.error = 0.0};
    double weight = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const esp__errors_unit *u = &g->units[i];
        if (!u->samples || u->unit < t->first || u->unit >= t->first + t->n) continue;
        double w = (double)ctx->active.strategy.units[u->unit].place.elements;
        all.samples += u->samples;
        all.error += u->error * w;
        all.feedback += u->feedback * w;
        weight += w;
    }
    if (weight > 0) all.error /= weight, all.feedback /= weight;
    ctx->model.tensors[tensor].sampled = all;
}

static void esp__errors_end(esp_ctx *ctx) {
    struct esp__errors *g = esp__errors_of(ctx);
    esp__errors_unit *u = &g->units[g->now];
    const esp__extent *place = &ctx->active.strategy.units[u->unit].place;
    if (g->now == g->next) g->next = (g->next + 1) % g->n;
    if (g->invalid || !isfinite(g->input + g->lost + g->gradient + g->residual)) return;
    u->samples++;
    u->error = g->input > 0 ? g->lost / g->input : 0.0;
    u->feedback = g->gradient > 0 ? sqrt(g->residual / g->gradient) : 0.0;
    pthread_mutex_lock(&ctx->lanes.lock);
    for (uint32_t k = place->first; k < place->first + place->n; k++) esp__errors_tensor(ctx, k);
    pthread_mutex_unlock(&ctx->lanes.lock);
}

static void esp__errors_compressed(esp_ctx *ctx, void *self, const esp__op *op, const esp__range *part) {
    struct esp__errors *g = self;
    const esp__range *first = &ctx->active.program.ranges[op->codec.first_range];
    if (part == first) g->sampling = g->n && esp__errors_begin(ctx, op);
    if (!g->sampling) return;
    esp__errors_range(ctx, op, part);
    if (part + 1 == first + op->codec.n_ranges) {
        g->sampling = false;
        esp__errors_end(ctx);
    }
}

ESP__FN const esp__observer *esp__errors_observer(void) {
    static const esp__observer o = {.open = esp__errors_open,
                                    .activated = esp__errors_activated,
                                    .compressed = esp__errors_compressed,
                                    .close = esp__errors_close};
    return &o;
}

ESPRESSO_API esp_status esp_tensor_stats_read(esp_ctx *ctx, uint32_t id, esp_tensor_stats *out) {
    esp_status s = esp__usable_id(ctx, id);
    if (s) return s;
    if (!out || out->struct_size < 8)
        return esp__fail(ctx, ESP_E_ARG, "esp_tensor_stats_read: set struct_size to sizeof(esp_tensor_stats)");
    pthread_mutex_lock(&ctx->lanes.lock);
    esp_tensor_stats all = ctx->model.tensors[id].sampled;
    all.pushes = ctx->model.tensors[id].pushes;
    all.zeros = ctx->model.tensors[id].zero_pushes;
    pthread_mutex_unlock(&ctx->lanes.lock);
    all.struct_size = out->struct_size < sizeof all ? out->struct_size : (uint32_t)sizeof all;
    memcpy(out, &all, all.struct_size);
    return ESP_OK;
}
