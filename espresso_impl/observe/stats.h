/* stats.h: data of the statistics files. The trainer's thread records each step, and another thread, the sampler,
 * writes the files at regular intervals (stats*.c). */
#ifndef ESP__STATS_H
#define ESP__STATS_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

enum { ESP__STATS_FILES = 8, ESP__STATS_TIMES = 4096 };

typedef struct esp__stats_now {
    esp_stats all; /* counters since esp_start */
    uint64_t step;
    uint64_t strategy;
    uint64_t changes;
    uint64_t since; /* last step under the previous strategy */
    const char *phase;
    double predicted_ns; /* step time that the autopilot predicts, or 0 */
    double loss;         /* the trainer's last reported loss, or not finite */
    uint64_t n_times;
} esp__stats_now;

typedef struct esp__stats_sample {
    esp__stats_now now, before; /* counters at the interval's end and begin */
    double time_s;              /* time of day, in seconds since 1970 */
    const double *step_ns;      /* [n_times] times of the interval's steps, sorted */
    uint32_t n_times;
    double last_ns;
    const esp_tensor_stats *tensors, *seen;
    bool ended; /* the context is closing */
} esp__stats_sample;

typedef struct esp__stats_out {
    char *path;
    bool prometheus, begun, warned;
} esp__stats_out;

typedef struct esp__stats_file {
    esp_ctx *ctx;
    esp__stats_out out[ESP__STATS_FILES];
    uint32_t n_out;
    uint64_t every_ns;
    pthread_t thread;
    pthread_mutex_t lock; /* the trainer's thread never waits for it */
    pthread_cond_t cond;
    bool has_lock, has_thread, stop;
    esp__stats_now now;
    esp_tensor_stats *tensors;
    bool want_tensors;
    esp__text strategy; /* description of the active strategy, as members of a JSON object */
    /* Ring of the newest step times, in ns. The trainer's thread writes it and the sampler's thread reads it, without
     * lock. */
    uint64_t times[ESP__STATS_TIMES];
    uint64_t n_times;
    /* only the sampler's thread uses the members below */
    esp__stats_now before;
    esp_tensor_stats *taken, *seen;
    uint64_t times_read;
    double sorted[ESP__STATS_TIMES];
    uint64_t strategy_written;
    esp__text header;
} esp__stats_file;

/* ---- stats_json.c ---- */
ESP__FN void esp__stats_json_header(const esp_ctx *ctx, const esp__stats_file *f, double time_s, esp__text *t);
ESP__FN void esp__stats_json_strategy(const esp_ctx *ctx, esp__text *t);
/* Writes how many bytes this rank has received over the links of each level. */
ESP__FN void esp__stats_bytes(const esp_ctx *ctx, const esp_stats *a, uint64_t bytes[ESP_LEVELS]);
ESP__FN void esp__stats_json_sample(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
ESP__FN void esp__stats_json_end(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
/* ---- stats_prometheus.c ---- */
ESP__FN void esp__stats_prometheus(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
#endif
