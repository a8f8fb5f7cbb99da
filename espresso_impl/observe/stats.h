/* stats.h: shared by stats*.c only: the counters that a step passes to the sampler's thread, and a sample. */
#ifndef ESP__STATS_H
#define ESP__STATS_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

enum { ESP__STATS_FILES = 8, ESP__STATS_TIMES = 4096 };

/* Counters after a step. */
typedef struct esp__stats_now {
    esp_stats all; /* since esp_start, with the traffic */
    uint64_t step;
    uint64_t strategy;    /* hash of the active strategy */
    uint64_t changes;     /* of the strategy so far */
    uint64_t since;       /* the last step with another strategy */
    const char *phase;    /* the autopilot's, or NULL */
    double predicted_ns;  /* the autopilot's prediction for a step, or 0 */
    char difference[160]; /* why measured steps differ from the prediction */
    double loss;          /* the trainer's last; not finite if none */
    uint64_t n_times;     /* step times written so far */
} esp__stats_now;

/* One sample: the statistics of one interval, which the sampler's thread writes. */
typedef struct esp__stats_sample {
    esp__stats_now now, before; /* at the interval's end and begin */
    double time_s;              /* since 1970 */
    const double *step_ns;      /* [n_times] the last steps' times, sorted */
    uint32_t n_times;
    double last_ns;
    const esp_tensor_stats *tensors, *seen; /* now, and when last written */
    bool ended;                             /* the context is closing */
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
    pthread_mutex_t lock; /* a step never waits for it */
    pthread_cond_t cond;
    bool has_lock, has_thread, stop;
    /* under the lock */
    esp__stats_now now;
    esp_tensor_stats *tensors;
    bool want_tensors;
    esp__text strategy; /* the active strategy, as JSON members */
    /* A ring of the newest step times, without the lock: the trainer's thread writes, and the sampler's reads. */
    uint64_t times[ESP__STATS_TIMES];
    uint64_t n_times; /* only for the trainer's thread */
    /* only for the sampler's thread */
    esp__stats_now before;
    esp_tensor_stats *taken, *seen;
    uint64_t times_read;
    double sorted[ESP__STATS_TIMES];
    uint64_t strategy_written;
    esp__text header; /* the first line of a JSON file */
} esp__stats_file;

/* ---- stats_json.c ---- */
ESP__FN void esp__stats_json_header(const esp_ctx *ctx, const esp__stats_file *f, double time_s, esp__text *t);
ESP__FN void esp__stats_json_strategy(const esp_ctx *ctx, esp__text *t); /* members, without braces */
/* The bytes that this rank received at each level. */
ESP__FN void esp__stats_bytes(const esp_ctx *ctx, const esp_stats *a, uint64_t bytes[ESP_LEVELS]);
ESP__FN void esp__stats_json_sample(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
ESP__FN void esp__stats_json_end(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
/* ---- stats_prometheus.c ---- */
ESP__FN void esp__stats_prometheus(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
#endif
