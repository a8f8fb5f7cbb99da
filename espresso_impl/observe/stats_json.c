/* stats_json.c: prints statistics as JSON lines: a header, a line for each strategy, one sample an interval. docs/stats.md says
 * what each member means. Must not know when or to which file they are written. */
#include "espresso_impl/base/json.h"
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/base/machine.h"
#include "espresso_impl/observe/stats.h"
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
    esp__stats_member(t, "link", getenv("ESPRESSO_INTER_LINK"));
    esp__stats_member(t, "asked_strategy", ctx->config.strategy_spec);
    esp__stats_member(t, "asked_codec", ctx->model.codec_spec);
    esp__text_add(t, ",\"every_s\":");
    esp__json_double(t, (double)f->every_ns / 1e9, 9);
    esp__text_add(t, ",\"strategy\":\"%016llx\",\"codecs\":[", (unsigned long long)ctx->in_force.strategy.hash);
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

static int esp__stats_compresses(const esp__work_unit *u) {
    return u->codec && strcmp(u->codec->table->name, ESP__CODEC_NONE);
}

/* Is it the first unit with its codec, and does that compress? */
static int esp__stats_first_with(const esp_ctx *ctx, uint32_t unit) {
    const esp__codec *codec = ctx->in_force.strategy.units[unit].codec;
    for (uint32_t i = 0; i < unit; i++)
        if (ctx->in_force.strategy.units[i].codec == codec) return 0;
    return esp__stats_compresses(&ctx->in_force.strategy.units[unit]);
}

ESP__FN void esp__stats_json_strategy(const esp_ctx *ctx, esp__text *t) {
    const esp__strategy *s = &ctx->in_force.strategy;
    uint32_t compressed = 0, n = 0;
    for (uint32_t i = 0; i < s->n_units; i++) compressed += (uint32_t)esp__stats_compresses(&s->units[i]);
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

/* ,"key":{"name":value / divide,...} */
static void esp__stats_group(esp__text *t, const char *key, const char *const *names, const uint64_t *values,
                             uint32_t n, double divide) {
    esp__text_add(t, ",\"%s\":{", key);
    for (uint32_t i = 0; i < n; i++) {
        esp__text_add(t, "%s\"%s\":", i ? "," : "", names[i]);
        esp__json_double(t, (double)values[i] / divide, 12);
    }
    esp__text_add(t, "}");
}

static void esp__stats_us(esp__text *t, const char *key, double ns) {
    esp__text_add(t, ",\"%s\":", key);
    esp__json_us(t, ns);
}

/* The members that a sample has only if its interval had a step. */
static void esp__stats_json_steps(const esp__stats_sample *s, esp__text *t) {
    static const char *const lanes[] = {"compress", "decompress", "intra", "inter"};
    static const char *const levels[] = {"intra", "inter"};
    const esp_stats *a = &s->now.all, *b = &s->before.all;
    const double steps = (double)(a->steps - b->steps);
    const uint64_t lane[] = {a->compress_ns - b->compress_ns, a->decompress_ns - b->decompress_ns,
                             a->intra_ns - b->intra_ns, a->inter_ns - b->inter_ns};
    const uint64_t bytes[] = {a->intra_bytes - b->intra_bytes, a->inter_bytes - b->inter_bytes};
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
    esp__stats_group(t, "lane_us", lanes, lane, 4, steps * 1000.0);
    esp__stats_group(t, "step_bytes", levels, bytes, 2, steps);
}

/* The tensors whose compression error was sampled since the last line. */
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

ESP__FN void esp__stats_json_sample(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    static const char *const levels[] = {"intra", "inter"};
    const uint64_t bytes[] = {s->now.all.intra_bytes, s->now.all.inter_bytes};
    const uint64_t steps = s->now.all.steps - s->before.all.steps;
    esp__stats_begin(t, "sample", s->time_s);
    esp__text_add(t, ",\"step\":%llu,\"steps\":%llu", (unsigned long long)s->now.step, (unsigned long long)steps);
    if (steps) esp__stats_json_steps(s, t);
    esp__stats_group(t, "bytes", levels, bytes, 2, 1);
    esp__text_add(t, ",\"nonfinite\":%llu,\"memory_bytes\":%llu,\"strategy\":\"%016llx\"",
                  (unsigned long long)s->now.all.nonfinite, (unsigned long long)s->now.all.memory_bytes,
                  (unsigned long long)s->now.strategy);
    esp__stats_member(t, "phase", s->now.phase);
    esp__stats_json_tensors(ctx, s, t);
    esp__text_add(t, "}\n");
}

ESP__FN void esp__stats_json_end(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    esp__stats_begin(t, "end", s->time_s);
    esp__text_add(t, ",\"step\":%llu", (unsigned long long)s->now.step);
    if (ctx->health.fatal) esp__stats_member(t, "error", ctx->health.fatal_text);
    esp__text_add(t, "}\n");
}
