/* costs.h: the cost calibration. All ranks together measure the links and codecs of their job, between steps and during
 * steps, and make the planner's input from the results. Strategy auto and `espresso profile` use it.
 * An observation is the wall time and the core time of an op of one kind and size, from a probe (a microbenchmark)
 * or from a step. The times of a point are the medians of its observations. Steps add points only where no probe
 * did. Under the trainer's load, ops of a step take longer than the points predict; the difference is the dispatch
 * time of their lane. */
#ifndef ESP__COSTS_H
#define ESP__COSTS_H
#include "espresso_impl/executor/executor.h"

/* ---- probe.c: one microbenchmark, by all ranks at the same time, between steps ----------------------------------- */
/* Measures one collective. All ranks of the level call it at the same time. It runs `repeats` times back to back,
 * after one run that does not count. `bytes` are those of the whole buffer, as in the planner's tables. `room` has
 * esp__probe_room(...) bytes or more, zeros or finite floats, the same number on every rank. If it has more, each
 * run uses another part, because a step's gradients are not in the caches either. */
typedef struct esp__probe {
    uint64_t median_ns;
    uint64_t spread_ns; /* from the first to the third quartile */
    uint64_t core_ns;   /* median core time of a run */
} esp__probe;
enum { ESP__PROBE_REPEATS = 64 };
/* Returns the outermost level with costs, ESP__INTER or ESP__OUTER. A job has three levels of costs if it has three
 * levels with several members each. Else it has two, and inter is everything beyond the innermost level. */
ESP__FN uint8_t esp__calibration_outermost(const esp_ctx *ctx);
/* esp__calibration_scope returns the scope of a level of costs, or ESP__SCOPES if the level does not exist;
 * esp__calibration_ranks returns the ranks in one of its groups, or 0. */
ESP__FN uint8_t esp__calibration_scope(const esp_ctx *ctx, uint8_t level);
ESP__FN int32_t esp__calibration_ranks(const esp_ctx *ctx, uint8_t level);
ESP__FN uint64_t esp__probe_room(const esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes);
ESP__FN esp_status esp__probe_collective(esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes, uint32_t repeats,
                                         void *room, uint64_t room_bytes, esp__probe *out);

/* ---- the calibration --------------------------------------------------------------------------------------------- */
enum { ESP__CALIBRATION_ROUND_NS = 500000 }; /* short codec calls are repeated for about this time */
enum { ESP__CALIBRATION_LEVELS = ESP__OUTER + 1 };
enum { ESP__CALIBRATION_POINTS = 32, ESP__CALIBRATION_CODECS = 8, ESP__CALIBRATION_SEEN = 9 };

/* The last ESP__CALIBRATION_SEEN observations of one point. */
typedef struct esp__calibration_seen {
    float ns[ESP__CALIBRATION_SEEN], core_ns[ESP__CALIBRATION_SEEN];
    uint32_t n; /* number of all observations, even dropped ones */
} esp__calibration_seen;

/* A cost curve: points, sorted by size. */
typedef struct esp__calibration_curve {
    esp_cost_point at[ESP__CALIBRATION_POINTS], core[ESP__CALIBRATION_POINTS];
    /* Spread of the last probe's runs: quartile distance / median, on the rank where it is largest. */
    double spread[ESP__CALIBRATION_POINTS];
    esp__calibration_seen seen[ESP__CALIBRATION_POINTS];
    uint32_t n;
    uint32_t n_probed; /* number of observations from probes */
} esp__calibration_curve;

typedef struct esp__calibration_codec {
    char spec[ESP__SPEC_MAX];
    esp__codec *codec;
    /* Curves of time by number of elements. On the CPU, all ranks of a machine call at once and share its cores. A
     * point is then the slowest rank's time divided by the number of ranks. On a device it is not divided. */
    esp__calibration_curve compress, decompress, decompress_more; /* the last: a further payload in a call */
    double header_bytes, unit_bytes, units, error; /* as in esp_plan_codec, computed from real payloads */
    /* Elements and payload bytes of the smallest and of the largest call. */
    double sizes[2], used[2];
} esp__calibration_codec;

typedef struct esp__calibration {
    /* Curves by [level][ESP_COLL_*], whose sizes are in bytes, as in the planner's tables. */
    esp__calibration_curve link[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS];
    /* For each lane, how much longer an op of a step takes than its points predict (mean over ops). */
    double dispatch_ns[ESP__LANES];
    esp__calibration_codec codecs[ESP__CALIBRATION_CODECS];
    uint32_t n_codecs;
    /* Cores of a host and the number of ranks that share them, for the host with the fewest cores per rank. */
    uint32_t cores, sharing;
    /* Cores that computing keeps busy on one rank: 1 unless the caller changes it, 0 if ranks compute on devices. */
    double load;
    double noise; /* median spread of all points so far */
    void *room;   /* memory of room_bytes for the buffers of collectives */
    uint64_t room_bytes, max_bytes, max_elements;
    uint32_t device;    /* where codecs are measured; 0 is the CPU */
    float *device_data; /* a copy of `data` in the device's memory */
    float *data;        /* max_elements numbers like a gradient's, to compress */
    /* Payloads, residuals and scratch memory of the codecs, on the device where they are measured. */
    uint8_t *work;
    uint64_t work_bytes;
    double pack_bytes_per_us;
    esp__calibration_seen dispatch[ESP__LANES];
    /* Points of collectives that were not measured, estimated from those of a reference collective. */
    esp_cost_point estimated[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS][ESP__CALIBRATION_POINTS];
    esp_cost_point estimated_core[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS]
                                 [ESP__CALIBRATION_POINTS]; /* core times of these points */
    /* esp__calibration_finish sets these; their points belong to the calibration. */
    esp_plan_system system;
    esp_plan_codec plan_codecs[ESP__CALIBRATION_CODECS];
} esp__calibration;

/* Allocates memory for collectives of up to max_bytes and codec calls of up to max_elements, and measures how fast
 * memory is copied. All ranks call it; `s` may hold anything. esp__calibration_close is also allowed after a failure
 * or on a zeroed `s`. */
ESP__FN esp_status esp__calibration_open(esp_ctx *ctx, esp__calibration *s, uint64_t max_bytes, uint64_t max_elements);
ESP__FN void esp__calibration_close(esp_ctx *ctx, esp__calibration *s);
/* Makes later esp__calibration_codec_add calls measure on a device of this kind: number (rank on its machine) modulo
 * the number of devices. All ranks call it. Calls are enqueued, and a run ends when the device has done them. */
ESP__FN esp_status esp__calibration_use(esp_ctx *ctx, esp__calibration *s, esp_devkind kind);
/* Opens a codec so that it can be measured. */
ESP__FN esp_status esp__calibration_codec_add(esp_ctx *ctx, esp__calibration *s, const char *spec);
/* Both measure one point. All ranks call them and get the largest of the ranks' medians. Measuring a size again adds
 * an observation. A level with one rank has nothing to measure. */
ESP__FN esp_status esp__calibration_link(esp_ctx *ctx, esp__calibration *s, uint8_t level, uint32_t coll,
                                         uint64_t bytes, uint32_t repeats);
ESP__FN esp_status esp__calibration_codec_at(esp_ctx *ctx, esp__calibration *s, uint32_t codec, uint64_t elements,
                                             uint32_t repeats);
/* Adds observations of links and of dispatch times from the step that just ended, at no extra time. All ranks call
 * it. */
ESP__FN esp_status esp__calibration_step(esp_ctx *ctx, esp__calibration *s);
/* mine[steps][n_tensors] are the times when this rank's tensors were ready. Sets out[n_tensors] to the median over
 * the steps of the slowest rank's time, because a step waits for its slowest rank. All ranks call it. */
ESP__FN esp_status esp__calibration_ready(esp_ctx *ctx, const uint64_t *mine, uint32_t steps, uint64_t *out);
/* Returns for how many threads a rank has cores, 1 to 3, as in esp_plan_system.cores_per_rank. */
ESP__FN uint32_t esp__calibration_cores(const esp__calibration *s);
/* Returns the factor by which core time grows if a host has fewer cores than ranks. It is 1 if a rank has several
 * cores. */
ESP__FN double esp__calibration_stretch(const esp__calibration *s);
/* Returns the estimated nanoseconds of a collective, the same on all ranks, or 0 if no point exists yet. */
ESP__FN double esp__calibration_estimate(const esp_ctx *ctx, const esp__calibration *s, uint8_t level, uint32_t coll,
                                         uint64_t bytes);
/* Returns how many runs make a point of a collective that takes about `guess` ns (0 if unknown): at least two, and
 * about 30 ms of runs. */
ESP__FN uint32_t esp__calibration_repeats(double guess);
/* Whether the level should be measured. If its collectives use the same links as flat ones, it should not. */
ESP__FN int esp__calibration_has(const esp_ctx *ctx, uint8_t level);
/* Sets system and plan_codecs: cost tables where there are enough points, else a latency and a rate fitted for each
 * level. Estimates collectives that were not measured from a reference collective of the level. A rank calls it
 * alone. */
ESP__FN esp_status esp__calibration_finish(const esp_ctx *ctx, esp__calibration *s);
ESP__FN uint32_t esp__calibration_locals(const esp_ctx *ctx);
/* Whether the job's backends can reduce the payloads of this codec. */
ESP__FN bool esp__calibration_reduces(const esp_ctx *ctx, const esp__codec *c);
ESP__FN void esp__calibration_noise(esp__calibration *s);
ESP__FN void esp__calibration_observe(esp__calibration_curve *c, double size, double ns, double core_ns, double spread);
ESP__FN void esp__calibration_seen_add(esp__calibration_seen *s, double ns, double core_ns);
ESP__FN double esp__calibration_seen_median(const esp__calibration_seen *s, const float *from);
#endif
