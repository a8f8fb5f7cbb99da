/* between.h: measures links, codecs and the trainer's processor time between training steps. */
#ifndef ESP__BETWEEN_H
#define ESP__BETWEEN_H
#include "planner/calibrate/costs.h"

enum { ESP__PROBES = 256 };

/* One microbenchmark. */
typedef struct esp__calibration_probe {
    /* `codec` is its index + 1, or 0 for a collective. Probes of lower passes run first. */
    uint8_t codec, level, pass;
    bool done;
    uint32_t coll;
    uint64_t size; /* bytes of a collective, or elements of a codec call */
} esp__calibration_probe;

typedef struct esp__calibration_probes {
    esp__calibration_probe at[ESP__PROBES];
    uint32_t n, n_done;
    bool stale[ESP__CALIBRATION_CODECS]; /* the codec's points are from an earlier calibration */
    double exchange_ns;                  /* rank 0's time for an exchange between ranks */
    double spent_ns;                     /* estimated time of those that ran */
} esp__calibration_probes;

/* The trainer's computing: processor time, and wall time up to the last push of each step. */
typedef struct esp__calibration_trainer {
    uint64_t since_ns, cpu_ns, compute_ns;
} esp__calibration_trainer;

/* Lists all probes. If `again`, the links' points are dropped, and a codec's points as soon as it has a new one. */
ESP__FN void esp__calibration_probes_list(const esp_ctx *ctx, esp__calibration *s, esp__calibration_probes *p,
                                          bool again);
/* Runs the probes of the first `passes` passes that are estimated to take at most each_ns, while the time of all is at
 * most all_ns. Those of the first pass always run, so that every link has a point, and those of the first `must` passes
 * at the outermost level, which decides most. All ranks run the same ones, because estimates are the same on all. */
ESP__FN esp_status esp__calibration_probes_run(esp_ctx *ctx, esp__calibration *s, esp__calibration_probes *p,
                                               uint32_t passes, uint32_t must, double each_ns, double all_ns);
/* Adds the step that just ended. A step begins for the trainer with esp__calibration_trainer_begins. */
ESP__FN void esp__calibration_trainer_step(const esp_ctx *ctx, esp__calibration_trainer *t);
ESP__FN void esp__calibration_trainer_begins(const esp_ctx *ctx, esp__calibration_trainer *t);
/* Sets s->load to the cores that computing keeps busy, on the rank that needs the most. All ranks call it. */
ESP__FN esp_status esp__calibration_load(esp_ctx *ctx, esp__calibration *s, const esp__calibration_trainer *t);
/* Logs the planner's input at level DEBUG. */
ESP__FN void esp__calibration_log(const esp_ctx *ctx, const esp_plan_system *system, const esp_plan_codec *codecs,
                                  uint32_t n_codecs);
#endif
