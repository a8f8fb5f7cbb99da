/* costs.h: what a job's links and codecs cost: points measured by all ranks together, between steps, and what the planner
 * reads made from them. Used by the autopilot and by the command's profile and replay. */
#ifndef ESP__SURVEY_H
#define ESP__SURVEY_H
#include "espresso_impl/executor/executor.h"

/* ---- probe.c: one measurement, by all ranks at the same time, between steps ------------------------------------------ */
/* How long one collective takes on this rank: `best_ns` and `median_ns` of `repeats` runs back to back after one that is not
 * counted. bytes: as a table of the planner counts them (of the whole buffer; all ranks of the level take part). `room`: at
 * least esp__probe_room(...) bytes, zeroed or holding finite floats; as many bytes on every rank. Where it is larger, runs are at
 * different places: gradients are not in the caches either. Collective over all ranks; no memory is taken. */
typedef struct esp__probe {
    uint64_t best_ns, median_ns, worst_ns;
    uint64_t spread_ns; /* between the quartiles */
} esp__probe;
enum { ESP__PROBE_REPEATS = 64 };
ESP__FN int32_t esp__group_size(const esp_ctx *ctx, uint8_t level); /* ranks of one collective */
ESP__FN uint64_t esp__probe_room(const esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes);
ESP__FN esp_status esp__probe_collective(esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes, uint32_t repeats,
                                         void *room, uint64_t room_bytes, esp__probe *out);

/* ---- the survey ----------------------------------------------------------------------------------------------------------- */
enum { ESP__SURVEY_ROUND_NS = 500000 }; /* one collective is repeated for about so long */
enum { ESP__SURVEY_POINTS = 32, ESP__SURVEY_CODECS = 8, ESP__SURVEY_SEEN = 9 };

/* The last times that were seen in steps; their median counts. */
typedef struct esp__survey_seen {
    float ns[ESP__SURVEY_SEEN];
    uint32_t n; /* ever */
} esp__survey_seen;

/* Time over size, by rising size. */
typedef struct esp__survey_curve {
    esp_cost_point at[ESP__SURVEY_POINTS];
    double spread[ESP__SURVEY_POINTS]; /* distance of the runs' quartiles / median, of the rank where it is largest */
    esp__survey_seen
        seen[ESP__SURVEY_POINTS]; /* where steps gave times as well: three of them count more than at[] was */
    uint32_t n;
} esp__survey_curve;

typedef struct esp__survey_codec {
    char spec[ESP__SPEC_MAX];
    esp__codec *codec;
    /* over elements: what one rank's call takes of its machine's pool: all ranks call at once, and the time of the slowest is
     * divided by the ranks of a machine (the planner multiplies by them) */
    esp__survey_curve compress, decompress;
    double header_bytes, unit_bytes, units, error; /* as in esp_plan_codec, from real payloads */
    double sizes[2], used[2];                      /* elements and bytes of the smallest and the largest payload seen */
} esp__survey_codec;

typedef struct esp__survey {
    esp__survey_curve
        link[3][ESP_PLAN_COLLS]; /* by ESP__FLAT, ESP__INTRA, ESP__INTER and ESP_COLL_*; bytes as the planner counts */
    double dispatch_ns[ESP__LANES];
    esp__survey_codec codecs[ESP__SURVEY_CODECS];
    uint32_t n_codecs;
    uint32_t ranks, cores; /* at once; of the machine that the slowest rank runs on */
    double noise;          /* median spread of all points so far                    */
    void *room;            /* for collectives                                       */
    uint64_t room_bytes, max_bytes, max_elements;
    const float
        *data; /* max_elements numbers to compress: like a gradient, or the caller's, set after esp__survey_open */
    float *own_data;
    uint8_t *work; /* for codecs                                            */
    uint64_t work_bytes;
    double pack_bytes_per_us;
    esp__survey_seen gaps[ESP__LANES];
    esp_cost_point told[3][ESP_PLAN_COLLS]
                       [ESP__SURVEY_POINTS]; /* collectives that were not measured, from those that were */
    /* what esp__survey_finish makes; points belong to the survey */
    esp_plan_system system;
    esp_plan_codec plan_codecs[ESP__SURVEY_CODECS];
} esp__survey;

/* Takes memory for collectives of up to max_bytes and codecs of up to max_elements. Collective, as the copy of memory is
 * measured here. `s` needs no zeroing; esp__survey_close is fine after a failure, and on a zeroed one. */
ESP__FN esp_status esp__survey_open(esp_ctx *ctx, esp__survey *s, uint64_t max_bytes, uint64_t max_elements);
ESP__FN void esp__survey_close(esp_ctx *ctx, esp__survey *s);
/* Opens a codec for measuring. */
ESP__FN esp_status esp__survey_codec_add(esp_ctx *ctx, esp__survey *s, const char *spec);
/* Each of these is collective over all ranks and gives all ranks the same points: the largest of the ranks' medians. A point
 * at a size that is there already replaces it where it is smaller. A level with one rank: nothing to do. */
ESP__FN esp_status esp__survey_link(esp_ctx *ctx, esp__survey *s, uint8_t level, uint32_t coll, uint64_t bytes,
                                    uint32_t repeats);
ESP__FN esp_status esp__survey_codec_at(esp_ctx *ctx, esp__survey *s, uint32_t codec, uint64_t elements,
                                        uint32_t repeats);
/* Points of the links from the collectives of the step just made (they were measured for nothing), and the cost of starting an
 * op on each lane: the gaps between an op's end and the next one's start where nothing else held it up. */
ESP__FN esp_status esp__survey_step(esp_ctx *ctx, esp__survey *s);
/* Nanoseconds that a collective will about take, from the points so far; 0: not known. Same on all ranks. */
ESP__FN double esp__survey_guess(const esp_ctx *ctx, const esp__survey *s, uint8_t level, uint32_t coll,
                                 uint64_t bytes);
/* Runs of a collective that takes about `guess` ns (0: not known) for one point: some 30 ms, and never fewer than two. */
ESP__FN uint32_t esp__survey_repeats(double guess);
/* Is the level worth measuring: does it have links that the flat one does not stand for? */
ESP__FN int esp__survey_has(const esp_ctx *ctx, uint8_t level);
/* Fills system and plan_codecs: tables where there are enough points, else alpha and rate fitted per level. Points not measured
 * are told from the traffic of those that were. Not collective. */
ESP__FN esp_status esp__survey_finish(const esp_ctx *ctx, esp__survey *s);
#endif
