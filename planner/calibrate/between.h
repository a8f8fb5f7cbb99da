/* between.h: measures links, codecs and the trainer's processor time between training steps. */
#ifndef ESP__BETWEEN_H
#define ESP__BETWEEN_H
#include "planner/calibrate/costs.h"

enum { ESP__PROBES = 256 };

/* One microbenchmark. */
typedef struct esp__calibration_probe {
    /* Index of the codec + 1, or 0 for a collective. Probes with a lower `pass` run first. */
    uint8_t codec, level, pass;
    bool done;
    uint32_t coll;
    uint64_t size; /* bytes of a collective, or elements of a codec call */
} esp__calibration_probe;

typedef struct esp__calibration_probes {
    esp__calibration_probe at[ESP__PROBES];
    uint32_t n, n_done;
    bool stale[ESP__CALIBRATION_CODECS];
    double spent_ns;
} esp__calibration_probes;

/* Computing of the trainer: processor time, and wall time from the begin of a step to its last push, added over
 * steps. */
typedef struct esp__calibration_trainer {
    uint64_t since_ns, cpu_ns, compute_ns;
} esp__calibration_trainer;

/* Lists all probes. If `again`, old results are dropped: those of links at once, those of a codec when it has a new
 * one. */
ESP__FN void esp__calibration_probes_list(const esp_ctx *ctx, esp__calibration *s, esp__calibration_probes *p,
                                          bool again);
/* Runs probes with pass < `passes` that have not run. Skips one if its estimated time is more than each_ns, or if all
 * that ran would take more than all_ns. Probes of the first pass always run, so that every link and codec has a result;
 * so do probes of the outermost links with pass < `must`, whose times matter most. All ranks run the same probes,
 * because their estimates are the same. */
ESP__FN esp_status esp__calibration_probes_run(esp_ctx *ctx, esp__calibration *s, esp__calibration_probes *p,
                                               uint32_t passes, uint32_t must, double each_ns, double all_ns);
ESP__FN void esp__calibration_trainer_step(const esp_ctx *ctx, esp__calibration_trainer *t);
ESP__FN void esp__calibration_trainer_begins(const esp_ctx *ctx, esp__calibration_trainer *t);
/* Sets s->load to the cores that computing keeps busy, on the rank that needs the most. All ranks call it. */
ESP__FN esp_status esp__calibration_load(esp_ctx *ctx, esp__calibration *s, const esp__calibration_trainer *t);
/* Logs the planner's input at level DEBUG. */
ESP__FN void esp__calibration_log(const esp_ctx *ctx, const esp_plan_system *system, const esp_plan_codec *codecs,
                                  uint32_t n_codecs);
#endif
