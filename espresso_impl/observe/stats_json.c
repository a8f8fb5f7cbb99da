/* stats_json.c: prints statistics as JSON lines: a header, then a line for each strategy and for each interval's
 * sample. docs/use/stats.md explains the members. */
#include "espresso_impl/base/json.h"
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/base/machine.h"
#include "espresso_impl/observe/stats.h"
#include <math.h>
#include <unistd.h>

static void esp__stats_member(esp__text *t, const char *key, const char *text) {
    if (!text || !*text) return;
    esp__text_add(t, ",\"%s\":", key);
    esp__json_string(t, text);
}

static void esp__stats_begin(esp__text *t, const char *kind, double time_s) {
    esp__text_add(t, "{\"kind\":\"%s\",\"time\":%lld.%03d", kind, (long long)time_s,
                  (int)((time_s - (double)(long long)time_s) * 1000));
}

ESP__FN void esp__stats_json_header(const esp_ctx *ctx, const esp__stats_file *f, double time_s, esp__text *t) {
    char text[ESP__SPEC_MAX];
    esp__stats_begin(t, "header", time_s);
    esp__text_add(t, ",\"version\":1");
    esp__stats_member(t, "espresso", ESPRESSO_VERSION);
    esp__program_name(text, sizeof text);
    esp__stats_member(t, "program", text);
    if (gethostname(text, sizeof text) == 0) text[sizeof text - 1] = 0, esp__stats_member(t, "host", text);
    esp__text_add(t, ",\"pid\":%ld,\"rank\":%d,\"ranks\":%d,\"machines\":%d,\"cores\":%u", (long)getpid(),
                  ctx->job.rank, ctx->job.size, ctx->job.topo.n_machines, esp__cores());
    esp__stats_member(t, "backend", ctx->job.backend ? ctx->job.backend->name : NULL);
    for (uint32_t k = 1; k <= ctx->job.topo.n_levels; k++)
        esp__text_add(t, "%s\"%s\"", k > 1 ? "," : ",\"levels\":[", esp__scope_name(&ctx->job.names, k));
    esp__text_add(t, "]");
    esp__stats_member(t, "link", getenv("ESPRESSO_INTER_LINK"));
    esp__stats_member(t, "asked_strategy", ctx->config.strategy_spec);
    esp__stats_member(t, "asked_codec", ctx->model.codec_spec);
    esp__text_add(t, ",\"every_s\":");
    esp__json_double(t, (double)f->every_ns / 1e9, 9);
    esp__text_add(t, ",\"strategy\":\"%016llx\",\"codecs\":[", (unsigned long long)ctx->active.strategy.hash);
    for (uint32_t i = 0; i < ctx->registry.n_opened; i++) {
        if (i) esp__text_add(t, ",");
        esp__json_string(t, ctx->registry.opened[i]->spec);
    }
    esp__text_add(t, "],\"tensors\":[");
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__text_add(t, "%s{\"name\":", i ? "," : "");
        esp__json_string(t, ctx->model.tensors[i].name);
        esp__text_add(t, ",\"elements\":%llu,\"dtype\":\"%s\"}", (unsigned long long)ctx->model.tensors[i].count,
                      esp__dtype_word(ctx->model.tensors[i].dtype));
    }
    esp__text_add(t, "]}\n");
}

static bool esp__stats_compresses(const esp__unit *u) {
    return u->codec && strcmp(u->codec->table->name, ESP__CODEC_NONE);
}

/* True if the unit (tensor or group) is compressed and none before it has the same codec. */
static bool esp__stats_first_with(const esp_ctx *ctx, uint32_t unit) {
    const esp__codec *codec = ctx->active.strategy.units[unit].codec;
    for (uint32_t i = 0; i < unit; i++)
        if (ctx->active.strategy.units[i].codec == codec) return false;
    return esp__stats_compresses(&ctx->active.strategy.units[unit]);
}

ESP__FN void esp__stats_json_strategy(const esp_ctx *ctx, esp__text *t) {
    const esp__strategy *s = &ctx->active.strategy;
    uint32_t compressed = 0, n = 0;
    for (uint32_t i = 0; i < s->n_units; i++) compressed += esp__stats_compresses(&s->units[i]);
    esp__text_add(t, ",\"strategy\":\"%016llx\",\"units\":%u,\"compressed_units\":%u,\"codecs\":[",
                  (unsigned long long)s->hash, s->n_units, compressed);
    for (uint32_t i = 0; i < s->n_units; i++) {
        if (!esp__stats_first_with(ctx, i)) continue;
        if (n++) esp__text_add(t, ",");
        esp__json_string(t, s->units[i].codec->spec);
    }
    esp__text_add(t, "]");
    esp__stats_member(t, "text", s->text);
}

static void esp__stats_levels(const esp_ctx *ctx, esp__text *t, const uint64_t *values, double divide) {
    for (uint32_t k = 1; k <= ctx->job.topo.n_levels; k++) {
        esp__text_add(t, "%s\"%s\":", k > 1 ? "," : "", esp__scope_name(&ctx->job.names, k));
        esp__json_double(t, (double)values[k - 1] / divide, 12);
    }
}

static void esp__stats_lanes(const esp_ctx *ctx, const esp_stats *a, const esp_stats *b, double steps, esp__text *t) {
    uint64_t ns[ESP_LEVELS];
    for (int k = 0; k < ESP_LEVELS; k++) ns[k] = a->level_ns[k] - b->level_ns[k];
    esp__text_add(t, ",\"lane_us\":{\"compress\":");
    esp__json_double(t, (double)(a->compress_ns - b->compress_ns) / (steps * 1000.0), 12);
    esp__text_add(t, ",\"decompress\":");
    esp__json_double(t, (double)(a->decompress_ns - b->decompress_ns) / (steps * 1000.0), 12);
    esp__text_add(t, ",");
    esp__stats_levels(ctx, t, ns, steps * 1000.0);
    esp__text_add(t, "}");
}

ESP__FN void esp__stats_bytes(const esp_ctx *ctx, const esp_stats *a, uint64_t bytes[ESP_LEVELS]) {
    memcpy(bytes, a->level_bytes, sizeof a->level_bytes);
    if (ctx->job.topo.n_levels == 2) bytes[0] = a->intra_bytes, bytes[1] = a->inter_bytes;
}

static void esp__stats_us(esp__text *t, const char *key, double ns) {
    esp__text_add(t, ",\"%s\":", key);
    esp__json_us(t, ns);
}

/* Prints means and quantiles over the interval's steps, of which there must be at least one. */
static void esp__stats_json_steps(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    const esp_stats *a = &s->now.all, *b = &s->before.all;
    const double steps = (double)(a->steps - b->steps);
    uint64_t bytes[ESP_LEVELS], before[ESP_LEVELS];
    esp__stats_bytes(ctx, a, bytes);
    esp__stats_bytes(ctx, b, before);
    for (int k = 0; k < ESP_LEVELS; k++) bytes[k] -= before[k];
    esp__text_add(t, ",\"step_us\":{\"mean\":");
    esp__json_us(t, (double)(a->step_ns - b->step_ns) / steps);
    esp__text_add(t, ",\"median\":");
    esp__json_us(t, esp__quantile(s->step_ns, s->n_times, 0.5));
    esp__text_add(t, ",\"p90\":");
    esp__json_us(t, esp__quantile(s->step_ns, s->n_times, 0.9));
    esp__text_add(t, ",\"last\":");
    esp__json_us(t, s->last_ns);
    esp__text_add(t, "}");
    esp__stats_us(t, "backward_us", (double)(a->backward_ns - b->backward_ns) / steps);
    esp__stats_us(t, "exposed_communication_us",
                  (double)(a->exposed_communication_ns - b->exposed_communication_ns) / steps);
    esp__stats_us(t, "exposed_compression_us", (double)(a->exposed_compression_ns - b->exposed_compression_ns) / steps);
    esp__stats_lanes(ctx, a, b, steps, t);
    esp__text_add(t, ",\"step_bytes\":{");
    esp__stats_levels(ctx, t, bytes, steps);
    esp__text_add(t, "}");
}

static void esp__stats_json_tensors(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp_tensor_stats *x = &s->tensors[i];
        if (!x->samples || x->samples == s->seen[i].samples) continue;
        esp__text_add(t, "%s{\"name\":", n++ ? "," : ",\"tensors\":[");
        esp__json_string(t, ctx->model.tensors[i].name);
        esp__text_add(t, ",\"error\":");
        esp__json_double(t, x->error, 6);
        esp__text_add(t, ",\"feedback\":");
        esp__json_double(t, x->feedback, 6);
        esp__text_add(t, ",\"samples\":%u}", x->samples);
    }
    if (n) esp__text_add(t, "]");
}

/* Prints the tensors that this rank took part in with zeros only, since the last sample. */
static void esp__stats_json_unpushed(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp_tensor_stats *x = &s->tensors[i], *before = &s->seen[i];
        if (x->zeros == before->zeros || x->pushes != before->pushes) continue;
        esp__text_add(t, n++ ? "," : ",\"unpushed\":[");
        esp__json_string(t, ctx->model.tensors[i].name);
    }
    if (n) esp__text_add(t, "]");
}

ESP__FN void esp__stats_json_sample(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    uint64_t bytes[ESP_LEVELS];
    esp__stats_bytes(ctx, &s->now.all, bytes);
    const uint64_t steps = s->now.all.steps - s->before.all.steps;
    esp__stats_begin(t, "sample", s->time_s);
    esp__text_add(t, ",\"step\":%llu,\"steps\":%llu", (unsigned long long)s->now.step, (unsigned long long)steps);
    if (steps) esp__stats_json_steps(ctx, s, t);
    esp__text_add(t, ",\"bytes\":{");
    esp__stats_levels(ctx, t, bytes, 1);
    esp__text_add(t, "},\"nonfinite\":%llu,\"memory_bytes\":%llu,\"strategy\":\"%016llx\"",
                  (unsigned long long)s->now.all.nonfinite, (unsigned long long)s->now.all.memory_bytes,
                  (unsigned long long)s->now.strategy);
    esp__stats_member(t, "phase", s->now.phase);
    if (s->now.predicted_ns > 0.0) esp__text_add(t, ",\"predicted_us\":%.3f", s->now.predicted_ns / 1e3);
    if (isfinite(s->now.loss)) {
        esp__text_add(t, ",\"loss\":");
        esp__json_double(t, s->now.loss, 9);
    }
    esp__stats_json_tensors(ctx, s, t);
    esp__stats_json_unpushed(ctx, s, t);
    esp__text_add(t, "}\n");
}

ESP__FN void esp__stats_json_end(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    esp__stats_begin(t, "end", s->time_s);
    esp__text_add(t, ",\"step\":%llu", (unsigned long long)s->now.step);
    if (ctx->health.fatal) esp__stats_member(t, "error", ctx->health.fatal_text);
    esp__text_add(t, "}\n");
}
