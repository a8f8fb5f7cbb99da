/* costs.h: the cost calibration: all ranks together measure the job's links and codecs, between steps and in steps, and
 * make the planner's input from the results. Used by the autopilot and by espresso profile.
 *
 * An observation is the wall time and the core time of an op of one kind and size, from a probe (a microbenchmark) or
 * from a step. A point's times are the medians of its observations. Steps give points only where no probe did. The ops
 * of a step, under the trainer's load, take longer than the points predict; the difference is the dispatch time of
 * their lane. */
#ifndef ESP__COSTS_H
#define ESP__COSTS_H
#include "espresso_impl/executor/executor.h"

/* ---- probe.c: one microbenchmark, by all ranks at the same time, between steps ----------------------------------- */
/* Times one collective on this rank: `repeats` runs back to back, after one that is not counted. All ranks of the level
 * call it. It allocates nothing. bytes: of the whole buffer, as the planner's tables count them. `room`: at least
 * esp__probe_room(...) bytes of zeros or finite floats, the same number on every rank. In a larger room each run uses
 * another place, because gradients are not in the caches either. */
typedef struct esp__probe {
    uint64_t median_ns;
    uint64_t spread_ns; /* from the first quartile to the third */
    uint64_t core_ns;   /* median core time of a run on this rank */
} esp__probe;
enum { ESP__PROBE_REPEATS = 64 };
/* The outermost level with costs, ESP__INTER or ESP__OUTER. There are three levels of costs if the job has three levels
 * with several units each; else there are two, and inter is everything beyond the innermost level. */
ESP__FN uint8_t esp__calibration_outermost(const esp_ctx *ctx);
/* The scope of a level of costs (ESP__SCOPES if it does not exist), and the ranks in its groups (0 if it does not
 * exist). */
ESP__FN uint8_t esp__calibration_scope(const esp_ctx *ctx, uint8_t level);
ESP__FN int32_t esp__calibration_ranks(const esp_ctx *ctx, uint8_t level);
ESP__FN uint64_t esp__probe_room(const esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes);
ESP__FN esp_status esp__probe_collective(esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes, uint32_t repeats,
                                         void *room, uint64_t room_bytes, esp__probe *out);

/* ---- the calibration --------------------------------------------------------------------------------------------- */
enum { ESP__CALIBRATION_ROUND_NS = 500000 }; /* short codec calls are repeated for about this long */
enum { ESP__CALIBRATION_LEVELS = ESP__OUTER + 1 };
enum { ESP__CALIBRATION_POINTS = 32, ESP__CALIBRATION_CODECS = 8, ESP__CALIBRATION_SEEN = 9 };

/* The last ESP__CALIBRATION_SEEN observations of one point. */
typedef struct esp__calibration_seen {
    float ns[ESP__CALIBRATION_SEEN], core_ns[ESP__CALIBRATION_SEEN];
    uint32_t n; /* all observations so far, including the dropped ones */
} esp__calibration_seen;

/* A cost curve: points by rising size. */
typedef struct esp__calibration_curve {
    esp_cost_point at[ESP__CALIBRATION_POINTS], core[ESP__CALIBRATION_POINTS];
    /* Quartile distance / median of the last probe's runs, on the rank where it is largest. */
    double spread[ESP__CALIBRATION_POINTS];
    esp__calibration_seen seen[ESP__CALIBRATION_POINTS];
    uint32_t n;
    uint32_t n_probed; /* observations from probes */
} esp__calibration_curve;

typedef struct esp__calibration_codec {
    char spec[ESP__SPEC_MAX];
    esp__codec *codec;
    /* Times over elements. On the CPU all ranks of a machine call at once and share its cores: a point is the slowest
     * rank's time divided by the number of ranks, by which the planner multiplies. On a device it is not divided. */
    esp__calibration_curve compress, decompress, decompress_more; /* more: a further payload in the same call */
    double header_bytes, unit_bytes, units, error;                /* as in esp_plan_codec, from real payloads */
    /* The elements, and the payload bytes, of the smallest and the largest call. */
    double sizes[2], used[2];
} esp__calibration_codec;

typedef struct esp__calibration {
    /* [level][ESP_COLL_*] Sizes are in bytes, as the planner's tables count them. */
    esp__calibration_curve link[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS];
    /* How much longer an op of a step takes than its points predict: the mean over the step's ops. */
    double dispatch_ns[ESP__LANES];
    esp__calibration_codec codecs[ESP__CALIBRATION_CODECS];
    uint32_t n_codecs;
    /* A host's cores and the ranks that share them, for the host with the fewest cores per rank. */
    uint32_t cores, sharing;
    /* Cores that one rank's computing keeps busy: 1 unless the caller sets it; 0 if ranks compute on devices. */
    double load;
    double noise; /* median spread of all points so far */
    void *room;   /* room_bytes for the buffers of collectives */
    uint64_t room_bytes, max_bytes, max_elements;
    uint32_t device;    /* the device where codecs are measured; 0: the CPU */
    float *device_data; /* a copy of `data` in the device's memory */
    float *data;        /* max_elements numbers like a gradient's, to compress */
    /* The codecs' payloads, residuals and scratch memory, on the device where they are measured. */
    uint8_t *work;
    uint64_t work_bytes;
    double pack_bytes_per_us;
    esp__calibration_seen dispatch[ESP__LANES];
    /* Points of collectives that were not measured, estimated from those of a reference collective. */
    esp_cost_point estimated[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS][ESP__CALIBRATION_POINTS];
    esp_cost_point estimated_core[ESP__CALIBRATION_LEVELS][ESP_PLAN_COLLS]
                                 [ESP__CALIBRATION_POINTS]; /* their core times, as the planner counts them */
    /* Made by esp__calibration_finish; their points belong to the calibration. */
    esp_plan_system system;
    esp_plan_codec plan_codecs[ESP__CALIBRATION_CODECS];
} esp__calibration;

/* Allocates memory for collectives of up to max_bytes and codec calls of up to max_elements, and measures how fast
 * memory is copied. All ranks call it. `s` need not be zeroed. esp__calibration_close may be called after a failure,
 * and on a zeroed `s`. */
ESP__FN esp_status esp__calibration_open(esp_ctx *ctx, esp__calibration *s, uint64_t max_bytes, uint64_t max_elements);
ESP__FN void esp__calibration_close(esp_ctx *ctx, esp__calibration *s);
/* Codecs that are added after this call are measured on a device of this kind: device number (rank on its machine)
 * modulo the number of devices. All ranks call it. Calls are enqueued, and a run ends when the device has done them. */
ESP__FN esp_status esp__calibration_use(esp_ctx *ctx, esp__calibration *s, esp_devkind kind);
/* Opens a codec for measuring. */
ESP__FN esp_status esp__calibration_codec_add(esp_ctx *ctx, esp__calibration *s, const char *spec);
/* Measure one point: all ranks call them, and get the largest of the ranks' medians. Measuring a size again adds an
 * observation. A level with one rank has nothing to measure. */
ESP__FN esp_status esp__calibration_link(esp_ctx *ctx, esp__calibration *s, uint8_t level, uint32_t coll,
                                         uint64_t bytes, uint32_t repeats);
ESP__FN esp_status esp__calibration_codec_at(esp_ctx *ctx, esp__calibration *s, uint32_t codec, uint64_t elements,
                                             uint32_t repeats);
/* All ranks call it after a step. Takes observations of the links from that step's collectives, at no extra time, and
 * each lane's dispatch time. */
ESP__FN esp_status esp__calibration_step(esp_ctx *ctx, esp__calibration *s);
/* All ranks call it. mine[steps][n_tensors]: when this rank's tensors were ready, in several steps. out[n_tensors]: the
 * median over the steps of the slowest rank's time in each, because a step waits for its slowest rank. */
ESP__FN esp_status esp__calibration_ready(esp_ctx *ctx, const uint64_t *mine, uint32_t steps, uint64_t *out);
/* The threads for which a rank has cores, as in esp_plan_system.cores_per_rank: 1 to 3. */
ESP__FN uint32_t esp__calibration_cores(const esp__calibration *s);
/* The factor by which core time gets longer if a host has more ranks than cores; 1 if a rank has cores for several
 * threads. */
ESP__FN double esp__calibration_stretch(const esp__calibration *s);
/* The estimated nanoseconds of a collective, from the points so far; 0 if unknown. The same on all ranks. */
ESP__FN double esp__calibration_estimate(const esp_ctx *ctx, const esp__calibration *s, uint8_t level, uint32_t coll,
                                         uint64_t bytes);
/* The number of runs that make a point of a collective that takes about `guess` nanoseconds (0: unknown): about 30 ms
 * of runs, but at least two. */
ESP__FN uint32_t esp__calibration_repeats(double guess);
/* Whether the level is worth measuring, which it is not if its collectives use the same links as flat ones. */
ESP__FN int esp__calibration_has(const esp_ctx *ctx, uint8_t level);
/* Fills system and plan_codecs: cost tables where there are enough points, else a latency and a rate fitted for each
 * level. The points of a collective that was not measured come from its level's reference collective. Not collective: a
 * rank calls it alone. */
ESP__FN esp_status esp__calibration_finish(const esp_ctx *ctx, esp__calibration *s);
ESP__FN uint32_t esp__calibration_locals(const esp_ctx *ctx);
ESP__FN void esp__calibration_noise(esp__calibration *s);
ESP__FN void esp__calibration_observe(esp__calibration_curve *c, double size, double ns, double core_ns, double spread);
ESP__FN void esp__calibration_seen_add(esp__calibration_seen *s, double ns, double core_ns);
ESP__FN double esp__calibration_seen_median(const esp__calibration_seen *s, const float *from);
#endif
