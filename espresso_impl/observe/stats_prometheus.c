/* stats_prometheus.c: prints statistics in Prometheus' text format, version 0.0.4. */
#include "espresso_impl/base/json.h"
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/observe/stats.h"

/* Escapes backslashes, quotes and newlines; invalid UTF-8 becomes U+FFFD. */
static void esp__prom_label(esp__text *t, const char *name, const char *value) {
    esp__text_add(t, ",%s=\"", name);
    for (const unsigned char *p = (const unsigned char *)value; *p;) {
        size_t n = esp__utf8_bytes(p);
        if (*p == '\n')
            esp__text_add(t, "\\n");
        else if (*p == '"' || *p == '\\')
            esp__text_add(t, "\\%c", *p);
        else
            esp__text_add(t, "%.*s", n ? (int)n : 3, n ? (const char *)p : "\xef\xbf\xbd");
        p += n ? n : 1;
    }
    esp__text_add(t, "\"");
}

static void esp__prom_family(esp__text *t, const char *name, const char *type, const char *help) {
    esp__text_add(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void esp__prom_value(const esp_ctx *ctx, esp__text *t, const char *name, const char *label, const char *text,
                            double value) {
    esp__text_add(t, "%s{rank=\"%d\"", name, ctx->job.rank);
    if (label) esp__prom_label(t, label, text);
    esp__text_add(t, "} ");
    esp__json_double(t, value, 15);
    esp__text_add(t, "\n");
}

static void esp__prom_one(const esp_ctx *ctx, esp__text *t, const char *name, const char *type, const char *help,
                          double value) {
    esp__prom_family(t, name, type, help);
    esp__prom_value(ctx, t, name, NULL, NULL, value);
}

static void esp__prom_info(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    char hash[32];
    esp__prom_family(t, "espresso_info", "gauge", "The job; always 1.");
    esp__text_add(t, "espresso_info{rank=\"%d\",ranks=\"%d\",machines=\"%d\"", ctx->job.rank, ctx->job.size,
                  ctx->job.topo.n_machines);
    esp__prom_label(t, "version", ESPRESSO_VERSION);
    esp__prom_label(t, "backend", ctx->job.backend ? ctx->job.backend->name : "");
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s->now.strategy);
    esp__prom_label(t, "strategy", hash);
    if (s->now.phase) esp__prom_label(t, "phase", s->now.phase);
    esp__text_add(t, "} 1\n");
}

static void esp__prom_step_times(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    static const char name[] = "espresso_step_seconds";
    esp__prom_family(t, name, "summary",
                     "Time from one esp_wait_all to the next; quantiles are of the steps since the last update.");
    if (s->n_times) {
        esp__prom_value(ctx, t, name, "quantile", "0.5", esp__quantile(s->step_ns, s->n_times, 0.5) / 1e9);
        esp__prom_value(ctx, t, name, "quantile", "0.9", esp__quantile(s->step_ns, s->n_times, 0.9) / 1e9);
    }
    esp__prom_value(ctx, t, "espresso_step_seconds_sum", NULL, NULL, (double)s->now.all.step_ns / 1e9);
    esp__prom_value(ctx, t, "espresso_step_seconds_count", NULL, NULL, (double)s->now.all.steps);
}

/* Prints |residual| / |gradient| of each sampled tensor if `feedback`, else its compression error. */
static void esp__prom_tensors(const esp_ctx *ctx, const esp__stats_sample *s, const char *name, const char *help,
                              bool feedback, esp__text *t) {
    int any = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        if (!s->tensors[i].samples) continue;
        if (!any++) esp__prom_family(t, name, "gauge", help);
        esp__prom_value(ctx, t, name, "tensor", ctx->model.tensors[i].name,
                        feedback ? s->tensors[i].feedback : s->tensors[i].error);
    }
}

static void esp__prom_levels(const esp_ctx *ctx, const esp_stats *a, esp__text *t) {
    static const char bytes_name[] = "espresso_bytes_total", lane_name[] = "espresso_lane_seconds_total";
    uint64_t bytes[ESP_LEVELS];
    esp__stats_bytes(ctx, a, bytes);
    esp__prom_family(t, bytes_name, "counter", "Bytes received by this rank.");
    for (uint32_t k = 1; k <= ctx->job.topo.n_levels; k++)
        esp__prom_value(ctx, t, bytes_name, "level", esp__scope_name(&ctx->job.names, k), (double)bytes[k - 1]);
    esp__prom_family(t, lane_name, "counter", "Time in which a lane was busy.");
    esp__prom_value(ctx, t, lane_name, "lane", "compress", (double)a->compress_ns / 1e9);
    esp__prom_value(ctx, t, lane_name, "lane", "decompress", (double)a->decompress_ns / 1e9);
    for (uint32_t k = 1; k <= ctx->job.topo.n_levels; k++)
        esp__prom_value(ctx, t, lane_name, "lane", esp__scope_name(&ctx->job.names, k),
                        (double)a->level_ns[k - 1] / 1e9);
}

static void esp__prom_exposed(const esp_ctx *ctx, const esp_stats *a, esp__text *t) {
    static const char name[] = "espresso_exposed_seconds_total";
    esp__prom_family(t, name, "counter", "Time after a step's last push: a link busy, else compression only.");
    esp__prom_value(ctx, t, name, "kind", "communication", (double)a->exposed_communication_ns / 1e9);
    esp__prom_value(ctx, t, name, "kind", "compression", (double)a->exposed_compression_ns / 1e9);
}

ESP__FN void esp__stats_prometheus(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t) {
    const esp_stats *a = &s->now.all;
    esp__prom_info(ctx, s, t);
    esp__prom_one(ctx, t, "espresso_running", "gauge", "1 while the job trains, 0 after esp_close.", !s->ended);
    esp__prom_one(ctx, t, "espresso_update_time_seconds", "gauge", "When these figures were written, since 1970.",
                  s->time_s);
    esp__prom_one(ctx, t, "espresso_step", "gauge", "Number of the last step; it survives a resume.",
                  (double)s->now.step);
    esp__prom_one(ctx, t, "espresso_steps_total", "counter", "Steps made since esp_start.", (double)a->steps);
    esp__prom_step_times(ctx, s, t);
    esp__prom_one(ctx, t, "espresso_backward_seconds_total", "counter", "From a step's first push to its last.",
                  (double)a->backward_ns / 1e9);
    esp__prom_levels(ctx, a, t);
    esp__prom_exposed(ctx, a, t);
    esp__prom_one(ctx, t, "espresso_nonfinite_total", "counter",
                  "Updates of the feedback state that were dropped: NaN or infinity.", (double)a->nonfinite);
    esp__prom_one(ctx, t, "espresso_memory_bytes", "gauge", "Memory taken by esp_start.", (double)a->memory_bytes);
    esp__prom_one(ctx, t, "espresso_strategy_changes_total", "counter", "Changes of strategy since esp_start.",
                  (double)s->now.changes);
    esp__prom_tensors(ctx, s, "espresso_compression_error",
                      "Squared error of compression over the squared input, of the last sample.", false, t);
    esp__prom_tensors(ctx, s, "espresso_feedback_ratio",
                      "Norm of the feedback over the gradient's, of the last sample.", true, t);
}
