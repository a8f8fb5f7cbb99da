/* costs.h: the calibration. All ranks of a job together measure how long collectives and codecs take, between
 * training steps and during steps, and make the planner's input from the results. Strategy auto and `espresso
 * profile` use it.
 *
 * An observation is the wall time of one op, and how long it occupied a processor core. It comes from a probe (a
 * microbenchmark) or from a step. A point of a cost curve is the median of the observations of one size. Steps add
 * those of codecs, and of collectives that no probe measured. Under the trainer's load, the ops of a step take longer
 * than the points predict; the difference is the dispatch time of their thread or link (lane). */
#ifndef ESP__COSTS_H
#define ESP__COSTS_H
#include "espresso_impl/executor/executor.h"

/* ---- probe.c: one microbenchmark, by all ranks at the same time, between steps ----------------------------------- */
/* esp__probe_collective measures one collective. All ranks of the level call it at the same time. It runs the
 * collective `repeats` times, after one time that does not count. `bytes` are those of the whole buffer, as in the
 * planner's tables. `room` has esp__probe_room(...) bytes or more, zeros or finite floats, the same number on every
 * rank. If it has more, each repetition uses another part, because a step's gradients are not in the caches either. */
typedef struct esp__probe {
    uint64_t median_ns;
    uint64_t spread_ns; /* from the first to the third quartile */
    uint64_t core_ns;
} esp__probe;
enum { ESP__PROBE_REPEATS = 64 };
/* Returns the outermost level that is measured: ESP__OUTER if the job has three levels with several members each (ranks
 * of a machine, machines, racks). Else ESP__INTER, which then includes everything beyond the innermost level. */
ESP__FN uint8_t esp__calibration_outermost(const esp_ctx *ctx);
/* esp__calibration_scope returns the levels over which the collectives of a measured level run, as ESP__INTRA and so
 * on, or ESP__SCOPES if the job does not have it. esp__calibration_ranks returns their number of ranks, or 0. */
ESP__FN uint8_t esp__calibration_scope(const esp_ctx *ctx, uint8_t level);
ESP__FN int32_t esp__calibration_ranks(const esp_ctx *ctx, uint8_t level);
ESP__FN uint64_t esp__probe_room(const esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes);
ESP__FN esp_status esp__probe_collective(esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes, uint32_t repeats,
                                         void *room, uint64_t room_bytes, esp__probe *out);

/* ---- the calibration --------------------------------------------------------------------------------------------- */
enum { ESP__CALIBRATION_ROUND_NS = 500000 };
enum { ESP__CALIBRATION_LEVELS = ESP__OUTER + 1 };
/* CALIBRATION_PROBED: how many points of a curve are for probes only */
enum { ESP__CALIBRATION_POINTS = 32, ESP__CALIBRATION_PROBED = 8, ESP__CALIBRATION_CODECS = 16 };
enum { ESP__CALIBRATION_SEEN = 9 };

typedef struct esp__calibration_seen {
    float ns[ESP__CALIBRATION_SEEN], core_ns[ESP__CALIBRATION_SEEN];
    uint32_t n; /* number of all observations, even older ones */
} esp__calibration_seen;

/* A cost curve: points, sorted by size. `at` has wall times, `core` the time on a processor core. */
typedef struct esp__calibration_curve {
    esp_cost_point at[ESP__CALIBRATION_POINTS], core[ESP__CALIBRATION_POINTS];
    /* Quartile distance / median of the last probe's times, on the rank where it is largest; 0 if no probe. */
    double spread[ESP__CALIBRATION_POINTS];
    esp__calibration_seen seen[ESP__CALIBRATION_POINTS];
    uint32_t n;
    double probed; /* the largest size of a probe; 0: there was none */
} esp__calibration_curve;

typedef struct esp__calibration_codec {
    char spec[ESP__SPEC_MAX];
    esp__codec *codec;
    /* Time by number of elements. On the CPU, all ranks of a machine call at once and share its cores. A point is then
     * the slowest rank's time divided by the number of ranks. On a device it is not divided. */
    esp__calibration_curve compress, decompress, decompress_more;
    double header_bytes, unit_bytes, units, error;
    double sizes[2], used[2];
} esp__calibration_codec;

typedef struct esp__calibration {
    /* Times of collectives by bytes of the whole buffer: [level][ESP_COLL_*]. */
    esp__calibration_curve link[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS];
    /* For each thread and link, how much longer an op of a step takes than the curves predict (mean over ops). */
    double dispatch_ns[ESP__LANES];
    esp__calibration_codec codecs[ESP__CALIBRATION_CODECS];
    uint32_t n_codecs;
    /* Cores of a host and the number of ranks that share them, for the host with the fewest cores per rank. */
    uint32_t cores, sharing;
    /* Cores that training keeps busy on each rank: 1 unless the caller changes it, 0 if ranks compute on devices. */
    double load;
    bool extends; /* collectives of steps add points for sizes larger than all probes */
    double noise; /* spread of repeated measurements, as a share of the measured time */
    void *room;
    uint64_t room_bytes, max_bytes, max_elements;
    uint32_t device; /* 0 if codecs are measured on the CPU */
    float *device_data;
    float *data; /* max_elements numbers like a gradient's */
    uint8_t *work;
    uint64_t work_bytes;
    double pack_bytes_per_us;
    esp__calibration_seen dispatch[ESP__LANES];
    /* Points of collectives that were not measured, estimated from those of another collective. */
    esp_cost_point estimated[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS][ESP__CALIBRATION_POINTS];
    esp_cost_point estimated_core[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS][ESP__CALIBRATION_POINTS];
    /* esp__calibration_finish sets these; they point into this struct. */
    esp_plan_system system;
    esp_plan_codec plan_codecs[ESP__CALIBRATION_CODECS];
} esp__calibration;

/* Allocates memory for collectives of up to max_bytes and codec calls of up to max_elements, and measures how fast
 * memory is copied. All ranks call it; `s` may hold anything. esp__calibration_close is also allowed after a failure or
 * on a zeroed `s`. */
ESP__FN esp_status esp__calibration_open(esp_ctx *ctx, esp__calibration *s, uint64_t max_bytes, uint64_t max_elements);
ESP__FN void esp__calibration_close(esp_ctx *ctx, esp__calibration *s);
/* Makes later esp__calibration_codec_add calls measure on a device of this kind. The ranks of a machine use its devices
 * in turn. All ranks call it. Codec calls are then enqueued, and their time ends when the device has done them. */
ESP__FN esp_status esp__calibration_use(esp_ctx *ctx, esp__calibration *s, esp_devkind kind);
ESP__FN esp_status esp__calibration_codec_add(esp_ctx *ctx, esp__calibration *s, const char *spec);
/* These two measure one point of a cost curve. All ranks call them and get the largest of the ranks' medians. Measuring
 * a size again adds an observation. They do nothing on a level with one rank. */
ESP__FN esp_status esp__calibration_link(esp_ctx *ctx, esp__calibration *s, uint8_t level, uint32_t coll,
                                         uint64_t bytes, uint32_t repeats);
ESP__FN esp_status esp__calibration_codec_at(esp_ctx *ctx, esp__calibration *s, uint32_t codec, uint64_t elements,
                                             uint32_t repeats);
/* Adds observations of collectives, codecs and dispatch times from the step that just ended, which costs no extra time.
 * All ranks call it. */
ESP__FN esp_status esp__calibration_step(esp_ctx *ctx, esp__calibration *s);
/* mine[steps][n_tensors] are the times when this rank's gradients were ready. Sets out[n_tensors] to the median over
 * the steps of the slowest rank's time, because a step waits for its slowest rank. All ranks call it. */
ESP__FN esp_status esp__calibration_ready(esp_ctx *ctx, const uint64_t *mine, uint32_t steps, uint64_t *out);
/* Returns how many threads of a rank can run at the same time, 1 to 3, as in esp_plan_system.cores_per_rank. */
ESP__FN uint32_t esp__calibration_cores(const esp__calibration *s);
/* Returns the factor by which the time on a processor core grows if a host has fewer cores than ranks. */
ESP__FN double esp__calibration_stretch(const esp__calibration *s);
/* Returns the estimated ns of a collective, the same on all ranks, or 0 if nothing was measured yet. */
ESP__FN double esp__calibration_estimate(const esp_ctx *ctx, const esp__calibration *s, uint8_t level, uint32_t coll,
                                         uint64_t bytes);
/* Returns how often to repeat a collective that takes about `guess` ns (0 if unknown): for about 30 ms, at least
 * twice. */
ESP__FN uint32_t esp__calibration_repeats(double guess);
/* Returns 0 for a level whose collectives use the same links as those over all ranks, so that it need not be
 * measured. */
ESP__FN int esp__calibration_has(const esp_ctx *ctx, uint8_t level);
/* Sets s->system and s->plan_codecs: tables of measured times where there are enough points, else a latency and a rate
 * fitted for each level. Estimates collectives that were not measured from others of the level. A rank may call it
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
