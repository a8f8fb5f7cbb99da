/* costs.h: the cost survey: all ranks together measure the job's links and codecs, between steps and in steps, and make the planner's
 * input from what they observed. Used by the autopilot and by espresso profile.
 * An observation is the wall time and the core time of an op of one kind and size, from a probe or from a step. A point's times are the
 * medians of its observations. Steps give points only where no probe did; by how much the ops of a step are later than the points say, under
 * the trainer's load, is the dispatch time of their lane. */
#ifndef ESP__COSTS_H
#define ESP__COSTS_H
#include "espresso_impl/executor/executor.h"

/* ---- probe.c: one microbenchmark, by all ranks at the same time, between steps --------------------------------------- */
/* Times one collective on this rank: `repeats` runs back to back, after one that is not counted. All ranks call it. It allocates
 * nothing. bytes: of the whole buffer, as the planner's tables count them; all ranks of the level take part. `room`: at least
 * esp__probe_room(...) bytes of zeros or finite floats, as many on every rank. In a larger room the runs use different places,
 * because gradients are not in the caches either. */
typedef struct esp__probe {
    uint64_t median_ns;
    uint64_t spread_ns; /* from the first quartile to the third */
    uint64_t core_ns;   /* median of the core time that a run took of this rank */
} esp__probe;
enum { ESP__PROBE_REPEATS = 64 };
/* Costs are known of two levels, or of three where each level of a job of three has several units. In other jobs of more than two
 * levels inter is everything beyond the innermost one. */
ESP__FN uint8_t esp__survey_outermost(const esp_ctx *ctx); /* ESP__INTER or ESP__OUTER */
/* The scope of a level here; ESP__SCOPES: there is no such level. And the ranks of its groups; 0: none. */
ESP__FN uint8_t esp__survey_scope(const esp_ctx *ctx, uint8_t level);
ESP__FN int32_t esp__survey_ranks(const esp_ctx *ctx, uint8_t level);
ESP__FN uint64_t esp__probe_room(const esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes);
ESP__FN esp_status esp__probe_collective(esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes, uint32_t repeats,
                                         void *room, uint64_t room_bytes, esp__probe *out);

/* ---- the survey ----------------------------------------------------------------------------------------------------------- */
enum { ESP__SURVEY_ROUND_NS = 500000 };       /* a short codec call is repeated for about so long */
enum { ESP__SURVEY_LEVELS = ESP__OUTER + 1 }; /* ESP__FLAT, ESP__INTRA, ESP__INTER, ESP__OUTER */
enum { ESP__SURVEY_POINTS = 32, ESP__SURVEY_CODECS = 8, ESP__SURVEY_SEEN = 9 };

/* The last ESP__SURVEY_SEEN observations of one point. */
typedef struct esp__survey_seen {
    float ns[ESP__SURVEY_SEEN], core_ns[ESP__SURVEY_SEEN];
    uint32_t n; /* observations so far, with those that are no longer here */
} esp__survey_seen;

/* A cost curve: times, by rising size. */
typedef struct esp__survey_curve {
    esp_cost_point at[ESP__SURVEY_POINTS], core[ESP__SURVEY_POINTS];
    double spread
        [ESP__SURVEY_POINTS]; /* quartile distance of the last probe's runs / their median, on the rank where it is largest */
    esp__survey_seen seen[ESP__SURVEY_POINTS];
    uint32_t n;
    uint32_t n_probed; /* observations from probes */
} esp__survey_curve;

typedef struct esp__survey_codec {
    char spec[ESP__SPEC_MAX];
    esp__codec *codec;
    /* by elements. All ranks of a machine call at once and share its cores: a point is the slowest rank's time divided by the
     * ranks of a machine, and the planner multiplies by them. On a device, which a rank has for itself, it is not divided. */
    esp__survey_curve compress, decompress,
        decompress_more; /* a further payload, summed into the same elements by the same call */
    double header_bytes, unit_bytes, units, error; /* as in esp_plan_codec, from real payloads */
    double sizes[2], used[2]; /* elements, and payload bytes, of the smallest and the largest call */
} esp__survey_codec;

typedef struct esp__survey {
    esp__survey_curve
        link[ESP__SURVEY_LEVELS]
            [ESP_PLAN_COLLS]; /* [level][ESP_COLL_*]; sizes in bytes, as the planner's tables count them */
    double dispatch_ns
        [ESP__LANES]; /* by how much an op of a step is later than its points say: the mean over the step's ops */
    esp__survey_codec codecs[ESP__SURVEY_CODECS];
    uint32_t n_codecs;
    uint32_t cores, sharing; /* cores of a host, and the ranks that share them: of the host where cores are shortest */
    double
        load; /* cores that the computing of one rank keeps busy; 0: it computes on a device. 1 unless the caller sets it */
    double noise; /* median spread of all points so far                    */
    void *room;   /* room_bytes for the buffers of collectives             */
    uint64_t room_bytes, max_bytes, max_elements;
    uint32_t on;   /* the device on which codecs are measured; 0: the CPU (esp__survey_use) */
    float *there;  /* on a device: data, copied */
    float *data;   /* max_elements numbers to compress, made up like a gradient */
    uint8_t *work; /* the codecs' memory: payload, residual, scratch; where they are measured */
    uint64_t work_bytes;
    double pack_bytes_per_us;
    esp__survey_seen dispatch[ESP__LANES];
    esp_cost_point told
        [ESP__SURVEY_LEVELS][ESP_PLAN_COLLS]
        [ESP__SURVEY_POINTS]; /* points of collectives that were not measured, estimated from a reference collective */
    esp_cost_point told_core[ESP__SURVEY_LEVELS][ESP_PLAN_COLLS]
                            [ESP__SURVEY_POINTS]; /* core times, as the planner counts them */
    /* made by esp__survey_finish; their points belong to the survey */
    esp_plan_system system;
    esp_plan_codec plan_codecs[ESP__SURVEY_CODECS];
} esp__survey;

/* Takes memory for collectives of up to max_bytes and codec calls of up to max_elements, and measures how fast memory is copied.
 * All ranks call it. `s` need not be zeroed. esp__survey_close may follow a failure, and takes a zeroed `s` too. */
ESP__FN esp_status esp__survey_open(esp_ctx *ctx, esp__survey *s, uint64_t max_bytes, uint64_t max_elements);
ESP__FN void esp__survey_close(esp_ctx *ctx, esp__survey *s);
/* Codecs that are added from here on are measured on this rank's device of that kind: the one of its number on its machine, or, where
 * ranks outnumber devices, one that it shares. All ranks call it. Calls are enqueued, and a run ends when the device has done them. */
ESP__FN esp_status esp__survey_use(esp_ctx *ctx, esp__survey *s, esp_devkind kind);
/* Opens a codec for measuring. */
ESP__FN esp_status esp__survey_codec_add(esp_ctx *ctx, esp__survey *s, const char *spec);
/* All ranks call these two, and get the same points: the largest of the ranks' medians. Another measurement at the same size is
 * another observation. A level with one rank has nothing to measure. */
ESP__FN esp_status esp__survey_link(esp_ctx *ctx, esp__survey *s, uint8_t level, uint32_t coll, uint64_t bytes,
                                    uint32_t repeats);
ESP__FN esp_status esp__survey_codec_at(esp_ctx *ctx, esp__survey *s, uint32_t codec, uint64_t elements,
                                        uint32_t repeats);
/* All ranks call it after a step. Takes observations of the links from that step's collectives, which cost no extra time, and each
 * lane's dispatch time. */
ESP__FN esp_status esp__survey_step(esp_ctx *ctx, esp__survey *s);
/* All ranks call it. mine[steps][n_tensors]: when this rank's tensors were ready, in several steps. out[n_tensors]: the median over the
 * steps of the slowest rank's time in each: a step waits for its own slowest rank. */
ESP__FN esp_status esp__survey_ready(esp_ctx *ctx, const uint64_t *mine, uint32_t steps, uint64_t *out);
/* For how many threads a rank has cores, as esp_plan_system.cores_per_rank counts them: 1 to 3. */
ESP__FN uint32_t esp__survey_cores(const esp__survey *s);
/* How much longer core time lasts where a host has more ranks than cores. Where a rank has cores for several threads, it does not. */
ESP__FN double esp__survey_stretch(const esp__survey *s);
/* Estimated nanoseconds of a collective, from the points so far; 0: not known. Same on all ranks. */
ESP__FN double esp__survey_guess(const esp_ctx *ctx, const esp__survey *s, uint8_t level, uint32_t coll,
                                 uint64_t bytes);
/* How often to run a collective of about `guess` nanoseconds (0: not known) for one point: for some 30 ms, but at least twice. */
ESP__FN uint32_t esp__survey_repeats(double guess);
/* Is the level worth measuring? Not if its collectives use the same links as flat ones. */
ESP__FN int esp__survey_has(const esp_ctx *ctx, uint8_t level);
/* Fills system and plan_codecs: cost tables where there are enough points, else a latency and a rate fitted for each level. The
 * points of a collective that was not measured come from its level's reference collective. Needs no other rank. */
ESP__FN esp_status esp__survey_finish(const esp_ctx *ctx, esp__survey *s);
ESP__FN uint32_t esp__survey_locals(const esp_ctx *ctx);
ESP__FN void esp__survey_noise(esp__survey *s);
ESP__FN void esp__survey_observe(esp__survey_curve *c, double size, double ns, double core_ns, double spread);
ESP__FN void esp__survey_seen_add(esp__survey_seen *s, double ns, double core_ns);
ESP__FN double esp__survey_seen_median(const esp__survey_seen *s, const float *from);
#endif
