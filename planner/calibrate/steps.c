/* steps.c: adds measurements of the last training step to a calibration: the times of its collectives and codec calls,
 * and for each thread and link how much later than possible its ops start. */
#include "planner/calibrate/steps.h"
#include "espresso_impl/base/quantile.h"
#include "planner/calibrate/costs.h"
#include "planner/plan.h"
#include <math.h>

/* Whether every rank of this collective waits until all have started. Then the shortest of the ranks' times is the time
 * of the collective itself. With a root, a rank may end early. */
static int esp__calibration_even(uint32_t coll) {
    return coll == ESP_COLL_ALLREDUCE || coll == ESP_COLL_ALLGATHER || coll == ESP_COLL_ALLTOALL ||
           coll == ESP_COLL_REDUCE_SCATTER;
}

/* Bytes of the whole buffer, as in the planner's tables; 0 for payloads, because their sizes differ by rank. */
ESP__FN uint64_t esp__calibration_op_size(const esp_coll *c) {
    if (c->slot_bytes || !esp__calibration_even(c->op)) return 0;
    return c->count * (c->dtype == ESP_F32 ? 4u : 2u);
}

/* A rank sends n times of collectives, then n times on processor cores, then n sizes in bytes. A time is 0 if the
 * collective began too early to count, and ABSENT if the rank has none. */
enum { ESP__SENT_TIMES, ESP__SENT_CORE_TIMES, ESP__SENT_BYTES, ESP__SENT_OF_EACH, ESP__SENT_ABSENT = -1 };

/* Sets out[k] to the time of collective k, the same on all ranks. Ranks that start early wait for the last one, so a
 * group's time is the shortest of its ranks', or 0 if one of them is 0. The slowest group counts. If a rank has no such
 * collective, the time is 0. */
static void esp__calibration_own_times(const esp_ctx *ctx, const float *all, uint32_t n, const uint8_t *level,
                                       float *out) {
    const esp__topology *t = &ctx->job.topo;
    for (uint32_t k = 0; k < n; k++) {
        bool everywhere = true;
        out[k] = 0.0f;
        for (int32_t a = 0; a < ctx->job.size; a++) {
            float least = 0.0f;
            int first = 1, known = 1;
            for (int32_t r = 0; r < ctx->job.size; r++) {
                int same = level[k] == ESP__FLAT || esp__group_same(t, level[k], r, a);
                float ns = all[(uint64_t)ESP__SENT_OF_EACH * (uint64_t)r * n + k];
                everywhere &= ns >= 0.0f;
                if (!same) continue;
                if (r < a) first = 0;
                known &= ns > 0.0f;
                if (least <= 0.0f || ns < least) least = ns;
            }
            if (first && known && least > out[k]) out[k] = least;
        }
        if (!everywhere) out[k] = 0.0f;
    }
}

static uint8_t esp__calibration_level_of(const esp_ctx *ctx, uint8_t scope) {
    for (uint8_t level = ESP__FLAT; level <= esp__calibration_outermost(ctx); level++)
        if (esp__calibration_scope(ctx, level) == scope) return level;
    return 255;
}

static uint64_t esp__calibration_last_push(const esp_ctx *ctx) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++)
        if (ctx->model.tensors[i].enter_ns > last) last = ctx->model.tensors[i].enter_ns;
    return last;
}

/* Returns the time from which ops count. If ops run inside the trainer's calls, this is the last push. An op that
 * starts earlier ends only at the trainer's next call. */
static uint64_t esp__calibration_observed_from(const esp_ctx *ctx) {
    return ctx->lanes.caller_drives ? esp__calibration_last_push(ctx) : 0;
}

ESP__FN void esp__calibration_op(esp_ctx *ctx, esp__calibration *s, const esp__op *op, uint64_t bytes, double ns,
                                 double core_ns, esp__calibration_longer *longer) {
    const uint8_t level = esp__calibration_level_of(ctx, op->collective.scope);
    if (bytes < 4 || level == 255) return;
    esp__calibration_curve *c = &s->link[level][op->collective.coll.op];
    if ((double)bytes > 1.06 * c->probed) { /* no estimate to compare with, or an extrapolated one */
        if (s->extends || !(c->probed > 0.0)) esp__calibration_observe(c, (double)bytes, ns, core_ns, -1.0);
        return;
    }
    longer->ns[op->lane] += ns - esp__calibration_estimate(ctx, s, level, op->collective.coll.op, bytes);
    longer->n[op->lane]++;
}

static esp_status esp__calibration_collectives(esp_ctx *ctx, esp__calibration *s, esp__calibration_longer *longer) {
    const uint64_t observed_from = esp__calibration_observed_from(ctx);
    const uint32_t n = ctx->active.strategy.n_order;
    const uint64_t each = (uint64_t)ESP__SENT_OF_EACH * n * sizeof(float);
    float *mine = esp__alloc(ctx, each + 4), *all = esp__alloc(ctx, each * (uint64_t)ctx->job.size + 4);
    uint8_t *level = esp__alloc(ctx, (uint64_t)n + 1);
    uint32_t *op_at = esp__alloc(ctx, (uint64_t)n * 4u + 4u);
    esp_status st = mine && all && level && op_at ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "measuring: out of memory");
    for (uint32_t k = 0; k < n && !st; k++) {
        uint32_t unit = ctx->active.strategy.order[k] >> 8, step = ctx->active.strategy.order[k] & 255u;
        const esp__unit *u = &ctx->active.strategy.units[unit];
        level[k] = u->option.steps[step].level;
        op_at[k] = UINT32_MAX;
        mine[k] = ESP__SENT_ABSENT;
        for (uint32_t i = u->first_op; i < u->first_op + u->n_ops; i++) {
            const esp__op *op = &ctx->active.program.ops[i];
            if (op->kind != ESP__OP_COLLECTIVE || op->step != step) continue;
            op_at[k] = i;
            const esp__span *t = &ctx->active.op_time[i];
            mine[k] = t->start_ns < observed_from ? 0.0f : (float)(t->end_ns - t->start_ns);
            mine[ESP__SENT_CORE_TIMES * n + k] = mine[k] > 0.0f ? (float)ctx->active.op_core_ns[i] : 0.0f;
            mine[ESP__SENT_BYTES * n + k] = (float)esp__calibration_op_size(&op->collective.coll);
        }
    }
    if (!st) st = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, mine, all, each);
    if (!st) esp__calibration_own_times(ctx, all, n, level, mine);
    if (!st) esp__calibration_own_times(ctx, all + n, n, level, mine + n);
    for (uint32_t k = 0; k < n && !st; k++) {
        float bytes = 0.0f; /* the parts of an uneven tensor differ */
        for (int32_t r = 0; r < ctx->job.size; r++)
            bytes = fmaxf(bytes, all[((uint64_t)r * ESP__SENT_OF_EACH + ESP__SENT_BYTES) * n + k]);
        if (mine[k] > 0.0f)
            esp__calibration_op(ctx, s, &ctx->active.program.ops[op_at[k]], (uint64_t)bytes, (double)mine[k],
                                (double)mine[n + k], longer);
    }
    esp__free(ctx, mine);
    esp__free(ctx, all);
    esp__free(ctx, level);
    esp__free(ctx, op_at);
    return st;
}

/* ---- codecs ------------------------------------------------------------------------------------------------------ */
/* Returns the measured codec of a unit, or NULL. One of several rounds, or of matrices, takes a time that depends on
 * more than the number of elements. */
static esp__calibration_codec *esp__calibration_codec_of(esp__calibration *s, const esp__unit *u) {
    if (!u->codec || u->codec->traits.n_rounds > 1 || u->codec->traits.caps & ESP_CODEC_NEEDS_MATRIX || s->device)
        return NULL;
    for (uint32_t k = 0; k < s->n_codecs; k++)
        if (!strcmp(s->codecs[k].spec, u->codec->spec)) return s->codecs[k].compress.n ? &s->codecs[k] : NULL;
    return NULL;
}

ESP__FN void esp__calibration_codec_op(esp__calibration_codec *k, bool compress, double elements, uint32_t sources,
                                       double ns) {
    if (compress) {
        esp__calibration_observe(&k->compress, elements, ns, ns, -1.0);
        return;
    }
    if (!k->decompress.n) return;
    const esp_cost_curve first = {k->decompress.at, k->decompress.n, 0},
                         more = {k->decompress_more.at, k->decompress_more.n, 0};
    const double one = esp__curve_at(&first, elements), further = more.n ? esp__curve_at(&more, elements) : one;
    const double predicted = one + (sources - 1.0) * further;
    if (!(one > 0.0)) return;
    esp__calibration_observe(&k->decompress, elements, one / predicted * ns, one / predicted * ns, -1.0);
    if (sources > 1 && more.n)
        esp__calibration_observe(&k->decompress_more, elements, further / predicted * ns, further / predicted * ns,
                                 -1.0);
}

/* A codec op of this rank. Ranks without the op, such as those that are no root, have zeros. */
typedef struct esp__codec_time {
    float ns, elements;
    uint32_t sources, compress, unit;
} esp__codec_time;

/* Lists the codec steps of all units, the same on all ranks. Sets mine[i] to this rank's op, unless `mine` is NULL.
 * Returns their number. */
static uint32_t esp__codec_times(const esp_ctx *ctx, esp__codec_time *mine) {
    const esp__active *f = &ctx->active;
    uint32_t n = 0;
    for (uint32_t u = 0; u < f->strategy.n_units; u++) {
        const esp__unit *unit = &f->strategy.units[u];
        for (uint32_t step = 0; step < unit->option.n; step++) {
            if (unit->option.steps[step].kind == ESP__STAGE_COLLECTIVE) continue;
            if (mine) mine[n] = (esp__codec_time){.unit = u};
            for (uint32_t i = unit->first_op; mine && i < unit->first_op + unit->n_ops; i++) {
                const esp__op *op = &f->program.ops[i];
                if (op->step != step || !esp__op_is_codec(op) || f->on[op->on].device->async) continue;
                const uint32_t sources = op->kind == ESP__OP_DECOMPRESS ? op->codec.n_sources : 1;
                const float elements = (float)esp__op_elements(f, op) / (float)sources;
                const float ns = elements > 0.0f ? (float)f->op_core_ns[i] : 0.0f;
                mine[n] = (esp__codec_time){ns, elements, sources, op->kind == ESP__OP_COMPRESS, u};
            }
            n++;
        }
    }
    return n;
}

/* Adds the processor times of the step's codec calls, each on the slowest rank. They are of the tensors' own sizes,
 * which probes between short steps do not reach. */
static esp_status esp__calibration_codec_calls(esp_ctx *ctx, esp__calibration *s) {
    const uint32_t n = esp__codec_times(ctx, NULL);
    const uint64_t each = n * sizeof(esp__codec_time);
    esp__codec_time *mine = esp__alloc(ctx, each + 1), *all = esp__alloc(ctx, each * (uint64_t)ctx->job.size + 1);
    esp_status st = mine && all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "measuring: out of memory");
    if (!st) esp__codec_times(ctx, mine);
    if (!st && n) st = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, mine, all, each);
    for (uint32_t i = 0; i < n && !st; i++) {
        const esp__codec_time *slowest = &all[i];
        for (int32_t r = 1; r < ctx->job.size; r++)
            if (all[(uint64_t)r * n + i].ns > slowest->ns) slowest = &all[(uint64_t)r * n + i];
        esp__calibration_codec *k = esp__calibration_codec_of(s, &ctx->active.strategy.units[slowest->unit]);
        if (k && slowest->ns > 0.0f)
            esp__calibration_codec_op(k, slowest->compress, (double)slowest->elements, slowest->sources,
                                      (double)slowest->ns);
    }
    esp__free(ctx, mine);
    esp__free(ctx, all);
    return st;
}

/* ---- dispatch time ----------------------------------------------------------------------------------------------- */
static uint64_t esp__calibration_input(const esp_ctx *ctx, uint32_t i) {
    const esp__op *op = &ctx->active.program.ops[i];
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    uint64_t at = i > u->first_op ? ctx->active.op_time[i - 1].end_ns : 0, pushed = 0;
    if (op->kind == ESP__OP_COPY && op->copy.what == ESP__COPY_PACK)
        pushed = ctx->model.tensors[op->copy.member].enter_ns;
    else if (i == u->first_op)
        pushed = ctx->model.tensors[u->place.first + u->place.n - 1].enter_ns;
    return pushed > at ? pushed : at;
}

/* Waits of a lane's ops: of all, and of those that could start only after the last push. */
typedef struct esp__calibration_waits {
    uint64_t last_push;
    double all_ns, late_ns;
    uint32_t n_all, n_late;
} esp__calibration_waits;

/* Adds how long the op waited for a thread or processor core after its input was ready and the op before it on its
 * thread or link had ended, at `free_at`. */
static void esp__calibration_wait(const esp_ctx *ctx, uint32_t i, uint64_t free_at, esp__calibration_waits *w) {
    const uint64_t ready = esp__calibration_input(ctx, i), start = ctx->active.op_time[i].start_ns;
    const uint64_t from = free_at > ready ? free_at : ready;
    const double ns = start > from ? (double)(start - from) : 0.0;
    w->all_ns += ns, w->n_all++;
    if (from >= w->last_push) w->late_ns += ns, w->n_late++;
}

/* Returns the mean wait, or -1 if there are no ops. Ops wait longer while backward computes, but these waits do not
 * make the step longer, so they count only if no op starts later. */
static double esp__calibration_mean(const esp__calibration_waits *w) {
    if (w->n_late) return w->late_ns / w->n_late;
    return w->n_all ? w->all_ns / w->n_all : -1.0;
}

typedef struct esp__calibration_start {
    uint64_t start_ns;
    uint32_t op;
} esp__calibration_start;

static int esp__calibration_start_order(const void *a, const void *b) {
    const esp__calibration_start *x = a, *y = b;
    return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

/* Returns the mean wait on the thread that compresses and decompresses. Start times give the order of its ops. */
static double esp__calibration_cpu_wait(const esp_ctx *ctx, esp__calibration_start *starts) {
    esp__calibration_waits waits = {.last_push = esp__calibration_last_push(ctx)};
    uint32_t n = 0;
    uint64_t free_at = 0;
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++)
        if (ctx->active.program.ops[i].kind != ESP__OP_COLLECTIVE)
            starts[n++] = (esp__calibration_start){ctx->active.op_time[i].start_ns, i};
    if (n) qsort(starts, n, sizeof *starts, esp__calibration_start_order);
    for (uint32_t k = 0; k < n; k++) {
        esp__calibration_wait(ctx, starts[k].op, free_at, &waits);
        free_at = ctx->active.op_time[starts[k].op].end_ns;
    }
    return esp__calibration_mean(&waits);
}

static double esp__calibration_link_wait(const esp_ctx *ctx, int k) {
    esp__calibration_waits waits = {.last_push = esp__calibration_last_push(ctx)};
    const esp__active *f = &ctx->active;
    const uint32_t *sequence = f->sequence[k];
    uint32_t other[ESP__LEVELS] = {0};
    for (uint32_t j = 0; j < f->n_sequence[k]; j++) {
        const esp__op *op = &f->program.ops[sequence[j]];
        uint64_t free_at = j ? f->op_time[sequence[j - 1]].end_ns : 0;
        if (op->lane != ESP__LANE_INTRA + k) continue;
        for (int l = 0; l < k; l++) {
            if (!(op->collective.links >> l & 1u)) continue;
            while (other[l] < f->n_sequence[l] && f->sequence[l][other[l]] != sequence[j]) other[l]++;
            if (other[l] && other[l] < f->n_sequence[l] && f->op_time[f->sequence[l][other[l] - 1]].end_ns > free_at)
                free_at = f->op_time[f->sequence[l][other[l] - 1]].end_ns;
        }
        esp__calibration_wait(ctx, sequence[j], free_at, &waits);
    }
    return esp__calibration_mean(&waits);
}

static esp_status esp__calibration_starts(esp_ctx *ctx, esp__calibration *s, const esp__calibration_longer *longer) {
    double mine[ESP__LANES];
    esp__calibration_start *starts = esp__alloc(ctx, ((uint64_t)ctx->active.program.n_ops + 1) * sizeof *starts);
    double *all = esp__alloc(ctx, (uint64_t)ctx->job.size * sizeof mine);
    esp_status st = starts && all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "measuring: out of memory");
    for (int lane = 0; lane < ESP__LANES; lane++) mine[lane] = -1.0;
    if (!st) {
        mine[ESP__LANE_CPU] = esp__calibration_cpu_wait(ctx, starts);
        for (int k = 0; k < ESP__LEVELS; k++) mine[ESP__LANE_INTRA + k] = esp__calibration_link_wait(ctx, k);
        st = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, mine, all, sizeof mine);
    }
    for (int lane = 0; lane < ESP__LANES && !st; lane++) {
        for (int32_t r = 0; r < ctx->job.size; r++)
            if (all[r * ESP__LANES + lane] > mine[lane]) mine[lane] = all[r * ESP__LANES + lane];
        if (mine[lane] < 0.0) continue;
        if (longer->n[lane]) mine[lane] += longer->ns[lane] / longer->n[lane];
        if (mine[lane] < 0.0) mine[lane] = 0.0;
        esp__calibration_seen_add(&s->dispatch[lane], mine[lane], 0.0);
        s->dispatch_ns[lane] = esp__calibration_seen_median(&s->dispatch[lane], s->dispatch[lane].ns);
    }
    esp__free(ctx, starts);
    esp__free(ctx, all);
    return st;
}

ESP__FN esp_status esp__calibration_step(esp_ctx *ctx, esp__calibration *s) {
    esp__calibration_longer longer;
    memset(&longer, 0, sizeof longer);
    esp_status st = esp__calibration_collectives(ctx, s, &longer);
    if (!st) st = esp__calibration_codec_calls(ctx, s);
    return st ? st : esp__calibration_starts(ctx, s, &longer);
}

/* ---- ready times ------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__calibration_ready(esp_ctx *ctx, const uint64_t *mine, uint32_t steps, uint64_t *out) {
    const uint64_t n = ctx->model.n_tensors, ranks = (uint64_t)ctx->job.size;
    uint64_t *all = esp__alloc(ctx, n * ranks * sizeof *all), *slowest = esp__alloc(ctx, n * steps * sizeof *slowest);
    double *column = esp__alloc(ctx, (steps + 1u) * sizeof *column);
    esp_status s = all && slowest && column ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "measuring: out of memory");
    s = esp__agree_ok(ctx, s);
    if (!s) memcpy(slowest, mine, n * steps * sizeof *slowest);
    for (uint32_t k = 0; k < steps && !s; k++) s = esp__agree_latest(ctx, slowest + k * n, n, all);
    for (uint64_t i = 0; i < n && !s; i++) {
        for (uint32_t k = 0; k < steps; k++) column[k] = (double)slowest[k * n + i];
        out[i] = (uint64_t)esp__median(column, steps);
    }
    esp__free(ctx, all);
    esp__free(ctx, slowest);
    esp__free(ctx, column);
    return s;
}
