/* links.c: opens and closes a calibration, and measures links: all ranks together time collectives of several sizes. */
#include "codecs/common/rng.h"
#include "espresso_impl/base/quantile.h"
#include "planner/calibrate/costs.h"
#include <math.h>

enum { ESP__CALIBRATION_TABLE = 4096, ESP__CALIBRATION_COPY = 1 << 20 };

ESP__FN void esp__calibration_seen_add(esp__calibration_seen *s, double ns, double core_ns) {
    s->ns[s->n % ESP__CALIBRATION_SEEN] = (float)ns;
    s->core_ns[s->n++ % ESP__CALIBRATION_SEEN] = (float)core_ns;
}

ESP__FN double esp__calibration_seen_median(const esp__calibration_seen *s, const float *from) {
    double v[ESP__CALIBRATION_SEEN];
    uint32_t n = s->n < ESP__CALIBRATION_SEEN ? s->n : ESP__CALIBRATION_SEEN;
    for (uint32_t i = 0; i < n; i++) v[i] = (double)from[i];
    return esp__median(v, n);
}

/* Fills `out` with numbers like a gradient's: normally distributed with several scales, so that there are more large
 * ones. A hash picks each number from a table of random ones, which is faster than drawing each. */
static void esp__calibration_fill(float *out, uint64_t n, uint64_t seed, uint32_t rank) {
    float table[ESP__CALIBRATION_TABLE];
    for (uint32_t i = 0; i < ESP__CALIBRATION_TABLE; i++) {
        esp_philox_t r = esp_philox(seed ^ 0x737572766579ull, i, rank);
        double a = ((double)r.w[0] + 0.5) / 4294967296.0, b = (double)r.w[1] / 4294967296.0;
        double c = ((double)r.w[2] + 0.5) / 4294967296.0, d = (double)r.w[3] / 4294967296.0;
        const double turn = 6.283185307179586;
        double wide = exp(sqrt(-2.0 * log(c)) * cos(turn * d) * 0.8);
        table[i] = (float)(1e-3 * wide * sqrt(-2.0 * log(a)) * cos(turn * b));
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t h = (i + 1) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 29;
        out[i] = table[h % ESP__CALIBRATION_TABLE] * (0.5f + (float)(h >> 40 & 0xFFFFu) / 65536.0f);
    }
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
ESP__FN void esp__calibration_close(esp_ctx *ctx, esp__calibration *s) {
    esp__free(ctx, s->room);
    esp__free(ctx, s->data);
    if (s->device_data) esp__device_give(ctx, s->device, s->device_data, s->max_elements * 4u, ESP_MEM_DEVICE);
    if (s->work) esp__device_give(ctx, s->device, s->work, s->work_bytes, ESP_MEM_DEVICE);
    esp__core_times(ctx, ESP__CORE_CALIBRATION, 0);
    memset(s, 0, sizeof *s);
}

ESP__FN uint32_t esp__calibration_locals(const esp_ctx *ctx) {
    uint32_t most = 0;
    if (ctx->job.topo.n_local) return (uint32_t)ctx->job.topo.n_local;
    for (int32_t m = 0; m < ctx->job.topo.n_machines; m++) {
        uint32_t n = 0;
        for (int32_t r = 0; r < ctx->job.size; r++) n += ctx->job.topo.machine_of[r] == m;
        if (n > most) most = n;
    }
    return most ? most : 1;
}

/* Returns the bytes per microsecond at which this rank copies memory while all ranks do. Each copy uses another part of
 * `room` if possible, because gradients are usually not in the caches. */
static double esp__calibration_copy_speed(uint8_t *room, uint64_t half) {
    uint64_t bytes = half < ESP__CALIBRATION_COPY ? half : ESP__CALIBRATION_COPY, places = half / bytes;
    double ns[5];
    for (uint64_t i = 0; i < 5; i++) {
        uint8_t *at = room + i % places * bytes;
        uint64_t start = esp__now_ns();
        memcpy(at, at + half, bytes);
        ns[i] = (double)(esp__now_ns() - start);
    }
    return (double)bytes * 1000.0 / (esp__median(ns, 5) + 1.0);
}

ESP__FN esp_status esp__calibration_open(esp_ctx *ctx, esp__calibration *s, uint64_t max_bytes, uint64_t max_elements) {
    memset(s, 0, sizeof *s);
    s->max_bytes = max_bytes < 4096 ? 4096 : max_bytes;
    s->max_elements = max_elements < 1024 ? 1024 : max_elements;
    for (uint8_t level = 0; level < ESP__CALIBRATION_LEVELS; level++)
        for (uint32_t coll = 1; coll < ESP_PLAN_COLLS; coll++) {
            uint64_t need = esp__probe_room(ctx, level, coll, s->max_bytes);
            if (need > s->room_bytes) s->room_bytes = need;
        }
    s->room = esp__alloc(ctx, s->room_bytes);
    s->data = esp__alloc(ctx, s->max_elements * 4u);
    struct {
        int32_t status;
        uint32_t cores, sharing, reserved0;
        double speed;
    } mine = {s->room && s->data ? ESP_OK : ESP_E_NOMEM, ctx->job.cores, ctx->job.sharing, 0, 0.0},
      *all = ctx->job.room;
    _Static_assert(sizeof mine <= ESP__JOB_ROOM, "it must fit into the room of a rank");
    if (!mine.status) {
        esp__calibration_fill(s->data, s->max_elements, ctx->config.seed, (uint32_t)ctx->job.rank);
        /* Writes to all pages, because the kernel maps pages that were never written to one shared page of zeros. */
        memset(s->room, 0, s->room_bytes);
        mine.speed = esp__calibration_copy_speed(s->room, s->room_bytes / 2);
    }
    esp_status st = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &mine, all, sizeof mine);
    s->load = 1.0;
    for (int32_t r = 0; r < ctx->job.size && !st; r++) {
        if (all[r].status) st = esp__fail(ctx, ESP_E_NOMEM, "measuring: rank %d is out of memory", r);
        if (!r || (uint64_t)all[r].cores * s->sharing < (uint64_t)s->cores * all[r].sharing)
            s->cores = all[r].cores, s->sharing = all[r].sharing;
        if (!r || all[r].speed < s->pack_bytes_per_us) s->pack_bytes_per_us = all[r].speed;
    }
    if (st) esp__calibration_close(ctx, s);
    if (!st) esp__core_times(ctx, ESP__CORE_CALIBRATION, 1);
    return st;
}

/* ---- points ------------------------------------------------------------------------------------------------------ */
/* Returns the index of the size's point; adds one if there is none. Returns ESP__CALIBRATION_POINTS if the curve is
 * full. In steps, sizes may differ by 6% from the point's, and leave some points for probes. */
static uint32_t esp__calibration_place(esp__calibration_curve *c, double size, bool in_step) {
    const double tolerance = in_step ? 0.06 : 0.0;
    uint32_t i = 0;
    for (uint32_t k = 0; k < c->n; k++)
        if (fabs(c->at[k].size - size) <= tolerance * size) return k;
    if (c->n >= ESP__CALIBRATION_POINTS - (in_step ? ESP__CALIBRATION_PROBED : 0u)) return ESP__CALIBRATION_POINTS;
    while (i < c->n && c->at[i].size < size) i++;
    memmove(&c->at[i + 1], &c->at[i], (c->n - i) * sizeof *c->at);
    memmove(&c->spread[i + 1], &c->spread[i], (c->n - i) * sizeof *c->spread);
    memmove(&c->core[i + 1], &c->core[i], (c->n - i) * sizeof *c->core);
    memmove(&c->seen[i + 1], &c->seen[i], (c->n - i) * sizeof *c->seen);
    c->at[i] = c->core[i] = (esp_cost_point){size, 0.0};
    c->spread[i] = 0.0;
    memset(&c->seen[i], 0, sizeof *c->seen);
    c->n++;
    return i;
}

/* Adds a measured time to the curve. A negative `spread` means that it was measured in a training step. */
ESP__FN void esp__calibration_observe(esp__calibration_curve *c, double size, double ns, double core_ns,
                                      double spread) {
    const uint32_t i = esp__calibration_place(c, size, spread < 0.0);
    if (i >= ESP__CALIBRATION_POINTS) return;
    const double scale = c->at[i].size / size;
    esp__calibration_seen_add(&c->seen[i], ns * scale, core_ns * scale);
    if (spread >= 0.0) c->spread[i] = spread, c->probed = fmax(c->probed, size);
    c->at[i].ns = esp__calibration_seen_median(&c->seen[i], c->seen[i].ns);
    c->core[i].ns = esp__calibration_seen_median(&c->seen[i], c->seen[i].core_ns);
}

static void esp__calibration_spreads(const esp__calibration_curve *c, double *spread_ns, double *ns) {
    for (uint32_t i = 0; i < c->n; i++) {
        if (!(c->spread[i] > 0.0)) continue;
        *spread_ns += c->spread[i] * c->at[i].ns;
        *ns += c->at[i].ns;
    }
}

ESP__FN void esp__calibration_noise(esp__calibration *s) {
    double spread_ns = 0, ns = 0;
    for (int level = 0; level < ESP__CALIBRATION_LEVELS; level++)
        for (int k = 0; k < ESP_PLAN_COLLS; k++) esp__calibration_spreads(&s->link[level][k], &spread_ns, &ns);
    for (uint32_t k = 0; k < s->n_codecs; k++) {
        esp__calibration_spreads(&s->codecs[k].compress, &spread_ns, &ns);
        esp__calibration_spreads(&s->codecs[k].decompress, &spread_ns, &ns);
    }
    s->noise = ns > 0.0 ? spread_ns / ns : 0.0;
}

ESP__FN esp_status esp__calibration_link(esp_ctx *ctx, esp__calibration *s, uint8_t level, uint32_t coll,
                                         uint64_t bytes, uint32_t repeats) {
    esp__probe p;
    if (esp__calibration_ranks(ctx, level) < 2 || !ctx->job.comms[esp__calibration_scope(ctx, level)].handle)
        return ESP_OK;
    if (bytes < 4 || bytes > s->max_bytes)
        return esp__fail(ctx, ESP_E_ARG, "measuring links: %llu bytes, but there is room for 4 to %llu",
                         (unsigned long long)bytes, (unsigned long long)s->max_bytes);
    esp_status st = esp__probe_collective(ctx, level, coll, bytes, repeats, s->room, s->room_bytes, &p);
    if (st) return st;
    double mine[3] = {(double)p.median_ns, (double)p.core_ns, (double)p.spread_ns / ((double)p.median_ns + 1.0)};
    double *all = ctx->job.room;
    _Static_assert(sizeof mine <= ESP__JOB_ROOM, "it must fit into the room of a rank");
    st = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, mine, all, sizeof mine);
    for (int32_t r = 0; r < ctx->job.size && !st; r++)
        for (int k = 0; k < 3; k++)
            if (all[3 * r + k] > mine[k]) mine[k] = all[3 * r + k];
    if (st) return st;
    esp__calibration_observe(&s->link[level][coll], (double)bytes, mine[0], mine[1], mine[2]);
    esp__calibration_noise(s);
    return ESP_OK;
}

ESP__FN uint32_t esp__calibration_repeats(double guess) {
    const double most = 15.0, n = 30e6 / (guess + 1.0);
    return n < 2.0 ? 2u : (uint32_t)(n > most ? most : n);
}

ESP__FN int esp__calibration_has(const esp_ctx *ctx, uint8_t level) {
    return level == ESP__FLAT ? ctx->job.size > 1 : esp__hierarchical(ctx);
}
