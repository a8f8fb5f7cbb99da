/* stats.h: shared by the statistics' files, stats*.c, only: the counters that a step hands to the sampler's thread, and a
 * sample. */
#ifndef ESP__STATS_H
#define ESP__STATS_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

enum { ESP__STATS_FILES = 8, ESP__STATS_TIMES = 4096 };

/* Counters after a step. */
typedef struct esp__stats_now {
    esp_stats all;                           /* since esp_start, with the traffic      */
    uint64_t step, strategy, changes, since; /* strategy: its hash; since: the step before its first */
    const char *phase;                       /* the autopilot's; NULL: no autopilot */
    double predicted_ns;                     /* the autopilot's prediction for a step; 0: none */
    char difference[160];                    /* what explains the difference from it */
    double loss;                             /* the last that the trainer reported; not finite: none */
    uint64_t n_times;                        /* step times that were written until then */
} esp__stats_now;

/* One sample: the statistics of one interval, which the sampler's thread writes. */
typedef struct esp__stats_sample {
    esp__stats_now now, before; /* at the end of this interval, and of the one before */
    double time_s;              /* seconds since 1970                             */
    const double *step_ns;      /* [n_times] sorted: the interval's steps (the last ESP__STATS_TIMES of them) */
    uint32_t n_times;
    double last_ns;
    const esp_tensor_stats *tensors, *seen; /* [n_tensors] now, and as last written */
    int ended;                              /* the context is about to close         */
} esp__stats_sample;

typedef struct esp__stats_out {
    char *path;
    int prometheus, begun, warned;
} esp__stats_out;

typedef struct esp__stats_file {
    esp_ctx *ctx;
    esp__stats_out out[ESP__STATS_FILES];
    uint32_t n_out;
    uint64_t every_ns;
    pthread_t thread;
    pthread_mutex_t lock; /* a step only tries to take it, and never waits for it */
    pthread_cond_t cond;
    int running, stop;
    /* under lock */
    esp__stats_now now;
    esp_tensor_stats *tensors;
    int want_tensors;
    esp__text strategy; /* the strategy with hash now.strategy, as members of a JSON object */
    /* the newest ESP__STATS_TIMES step times, a ring: the trainer's thread writes, the sampler's reads, without the lock */
    uint64_t times[ESP__STATS_TIMES];
    uint64_t n_times; /* only the trainer's thread uses it */
    /* only the sampler's thread uses these */
    esp__stats_now before;
    esp_tensor_stats *taken, *seen;
    uint64_t times_read;
    double sorted[ESP__STATS_TIMES];
    uint64_t strategy_written;
    esp__text header; /* the first line of a JSON file, made at the start */
} esp__stats_file;

/* ---- stats_json.c ---- */
ESP__FN void esp__stats_json_header(const esp_ctx *ctx, const esp__stats_file *f, double time_s, esp__text *t);
ESP__FN void esp__stats_json_strategy(const esp_ctx *ctx, esp__text *t); /* without braces */
/* Bytes that this rank received at each level. With two levels those of intra and inter, which every backend counts. */
ESP__FN void esp__stats_bytes(const esp_ctx *ctx, const esp_stats *a, uint64_t bytes[ESP_LEVELS]);
ESP__FN void esp__stats_json_sample(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
ESP__FN void esp__stats_json_end(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
/* ---- stats_prometheus.c ---- */
ESP__FN void esp__stats_prometheus(const esp_ctx *ctx, const esp__stats_sample *s, esp__text *t);
#endif
