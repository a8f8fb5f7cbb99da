/* stats.h: for stats*.c: the counters that a step passes to the sampler's thread, and a sample. */
#ifndef ESP__STATS_H
#define ESP__STATS_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

enum { ESP__STATS_FILES = 8, ESP__STATS_TIMES = 4096 };

/* The counters after a step. */
typedef struct esp__stats_now {
    esp_stats all; /* counters since esp_start, with the bytes sent */
    uint64_t step;
    uint64_t strategy;   /* hash of the active strategy's text */
    uint64_t changes;    /* how often the strategy has changed */
    uint64_t since;      /* the last step that ran another strategy */
    const char *phase;   /* what the autopilot is doing, or NULL */
    double predicted_ns; /* ns of a step as the autopilot predicts it, or 0 */
    double loss;         /* the last that the trainer reported; else not finite */
    uint64_t n_times;    /* number of step times written to the ring so far */
} esp__stats_now;

/* A sample: the statistics of one interval. The sampler's thread writes it. */
typedef struct esp__stats_sample {
    esp__stats_now now, before; /* counters at the end of the interval, and at its begin */
    double time_s;              /* time of day, in seconds since 1970 */
    const double *step_ns;      /* [n_times] times of the interval's steps, sorted */
    uint32_t n_times;
    double last_ns;
    const esp_tensor_stats *tensors, *seen; /* statistics now, and as last written */
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
    pthread_mutex_t lock; /* the trainer's thread only tries to lock it */
    pthread_cond_t cond;
    bool has_lock, has_thread, stop;
    /* the members below are protected by the lock */
    esp__stats_now now;
    esp_tensor_stats *tensors;
    bool want_tensors;
    esp__text strategy; /* the active strategy as members of a JSON object */
    /* A ring of the newest step times without lock: the trainer's thread writes, and the sampler's thread reads. */
    uint64_t times[ESP__STATS_TIMES];
    uint64_t n_times; /* used by the trainer's thread only */
    /* the members below are used by the sampler's thread only */
    esp__stats_now before;
    esp_tensor_stats *taken, *seen;
    uint64_t times_read;
    double sorted[ESP__STATS_TIMES];
    uint64_t strategy_written;
    esp__text header; /* the first line of a JSON file */
} esp__stats_file;

/* ---- stats_json.c ---- */
ESP__FN void esp__stats_json_header(const esp_ctx *ctx, const esp__stats_file *f, double time_s, esp__text *t);
ESP__FN void esp__stats_json_strategy(const esp_ctx *ctx, esp__text *t); /* a JSON object without its braces */
/* Writes the number of bytes that this rank has received at each level. */
ESP__FN void esp__stats_bytes(const esp_ctx *ctx, const esp_stats *a, uint64_t bytes[ESP_LEVELS]);
ESP__FN void esp__stats_json_sample(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
ESP__FN void esp__stats_json_end(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
/* ---- stats_prometheus.c ---- */
ESP__FN void esp__stats_prometheus(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
#endif
