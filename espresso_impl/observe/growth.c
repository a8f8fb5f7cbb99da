/* growth.c: warns of a residual that grows without bound, because its codec sends less than each gradient adds:
 * training then learns ever less from this tensor. It checks at most ESP__GROWTH_MOST compress ops, spread over all,
 * one in every ESP__GROWTH_EVERY-th step. A check reads one block in a few microseconds, so it is always on. Residuals
 * in device memory are not checked. */
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include <math.h>

enum { ESP__GROWTH_EVERY = 4, ESP__GROWTH_MOST = 8, ESP__GROWTH_BLOCK = 4096 };
/* A check is bad if |residual| / |gradient| is above 300, or above 30 and 1.2 times the largest value so far. */
static const double esp__growth_ratio = 30.0, esp__growth_factor = 1.2;

ESP__FN int esp__growth_bad(double *largest, double feedback) {
    const double before = *largest;
    if (!isfinite(feedback)) return ESP__GROWTH_LIMIT;
    if (feedback < esp__growth_ratio) return 0;
    if (feedback > before) *largest = feedback;
    if (feedback > 10.0 * esp__growth_ratio) return 1;
    return before > 0.0 && feedback > esp__growth_factor * before;
}

typedef struct esp__growth {
    uint32_t op[ESP__GROWTH_MOST];
    double largest[ESP__GROWTH_MOST];
    int bad[ESP__GROWTH_MOST]; /* consecutive bad checks, as esp__growth_bad counts them */
    uint32_t n, now;
    uint64_t checked;
    bool warned;
} esp__growth;

static bool esp__growth_watches(const esp_ctx *ctx, const esp__op *op) {
    return op->kind == ESP__OP_COMPRESS && op->codec.comp_index == 0 && op->codec.n_ranges > 0 &&
           op->round + 1u == op->n_rounds && !op->on && op->codec.feedback >= 0 &&
           ctx->active.feedback[op->codec.feedback].residual;
}

static esp_status esp__growth_open(esp_ctx *ctx, void **self) {
    *self = esp__alloc(ctx, sizeof(esp__growth));
    return *self ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "out of memory for the watch over feedback");
}

static void esp__growth_activated(esp_ctx *ctx, void *self) {
    esp__growth *g = self;
    const esp__program *p = &ctx->active.program;
    uint32_t all = 0, k = 0;
    memset(g, 0, sizeof *g);
    for (uint32_t i = 0; i < p->n_ops; i++) all += esp__growth_watches(ctx, &p->ops[i]);
    g->n = all < ESP__GROWTH_MOST ? all : ESP__GROWTH_MOST;
    for (uint32_t i = 0, n = 0; i < p->n_ops && n < g->n; i++) {
        if (!esp__growth_watches(ctx, &p->ops[i])) continue;
        if ((uint64_t)k++ * g->n >= (uint64_t)n * all) g->op[n++] = i;
    }
}

static double esp__growth_square(const float *x, uint64_t n) {
    double part[8] = {0}, sum = 0; /* partial sums, so that the compiler vectorizes */
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) part[k] += (double)x[i + (uint64_t)k] * (double)x[i + (uint64_t)k];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int k = 0; k < 8; k++) sum += part[k];
    return sum;
}

static void esp__growth_warn(const esp_ctx *ctx, const esp__op *op, double feedback) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    esp__log(ctx, ESP_LOG_WARN, "feedback",
             "step %llu: tensor '%s': what codec '%s' leaves out has grown to %.0f times the gradient, so that "
             "training hardly learns from it: let the codec send more (a larger ratio or rank; for twobit a smaller "
             "threshold, or relative=1.2), give it feedback=(residual:beta=0.9), or lower the learning rate or the "
             "momentum (docs/use/codecs.md)",
             (unsigned long long)ctx->steps.step, u->name, u->codec->spec, feedback);
}

static void esp__growth_check(esp_ctx *ctx, esp__growth *g, const esp__op *op, const esp__range *r) {
    const esp__feedback *f = &ctx->active.feedback[op->codec.feedback];
    const uint64_t blocks = (r->length + ESP__GROWTH_BLOCK - 1) / ESP__GROWTH_BLOCK;
    const uint64_t at = blocks ? ctx->steps.step / ESP__GROWTH_EVERY * 7919u % blocks * ESP__GROWTH_BLOCK : 0;
    const uint64_t n = r->length - at < ESP__GROWTH_BLOCK ? r->length - at : ESP__GROWTH_BLOCK;
    const uint32_t k = g->now;
    esp__codec_call c;
    g->now = (k + 1) % g->n;
    esp__call_range(ctx, op, r, &c);
    const double gradient = esp__growth_square((const float *)c.part.data.ptr + at, n);
    const double residual = esp__growth_square(f->residual + (r->begin - f->offset) + at, n);
    if (!(gradient > 0.0) || !isfinite(gradient)) return;
    const double feedback = sqrt(residual / gradient);
    const int bad = esp__growth_bad(&g->largest[k], feedback);
    g->bad[k] = bad ? g->bad[k] + bad : 0;
    if (g->bad[k] < ESP__GROWTH_LIMIT || g->warned) return;
    g->warned = true;
    if (!esp__log_speaks(ctx)) return;
    esp__growth_warn(ctx, op, feedback);
}

static void esp__growth_compressed(esp_ctx *ctx, void *self, const esp__op *op, const esp__range *part) {
    esp__growth *g = self;
    const uint64_t step = ctx->steps.step;
    if (step % ESP__GROWTH_EVERY || !g->n || g->checked == step + 1) return;
    if (op != &ctx->active.program.ops[g->op[g->now]]) return;
    if (part != &ctx->active.program.ranges[op->codec.first_range]) return;
    g->checked = step + 1;
    esp__growth_check(ctx, g, op, part);
}

static void esp__growth_close(esp_ctx *ctx, void *self) { esp__free(ctx, self); }

ESP__FN const esp__observer *esp__growth_observer(void) {
    static const esp__observer o = {.open = esp__growth_open,
                                    .activated = esp__growth_activated,
                                    .compressed = esp__growth_compressed,
                                    .close = esp__growth_close};
    return &o;
}
