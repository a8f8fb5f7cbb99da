/* autopilot.h: what the autopilot's files share: its options, its state, the data that ranks exchange, and the planning
 * thread's job. Only the autopilot and tests include it.
 * These files call each other in a circle, because each phase begins the next one (measure, plan, watch, measure
 * again). */
#ifndef ESP__AUTOPILOT_H
#define ESP__AUTOPILOT_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include "planner/calibrate/costs.h"
#include "planner/plan.h"

/* All ranks are in the same phase after the same step. */
enum {
    ESP__AUTO_WARM,    /* fills caches and pages; steps do not count */
    ESP__AUTO_MEASURE, /* times steps, and probes links and codecs between them */
    ESP__AUTO_PLAN,    /* rank 0 plans on a thread while training goes on */
    ESP__AUTO_FLUSH,   /* one step without compression sends pending residuals */
    ESP__AUTO_CHECK,   /* times the new strategy */
    ESP__AUTO_BACK,    /* times the previous strategy again: no clear gain */
    ESP__AUTO_WATCH,   /* checks step times and errors now and then */
    ESP__AUTO_OFF      /* the program set a strategy, or there is no choice */
};
enum {
    ESP__AUTO_TIMES = 1024,
    ESP__AUTO_READY = 32,
    ESP__AUTO_PROBES = 256,
    ESP__AUTO_TEXT = 256,
    ESP__AUTO_LOSSES = 256
};
/* Which codecs a plan may use after the loss rose: all, those that only round finely, or lossless ones. */
enum { ESP__TRUST_ALL, ESP__TRUST_ROUNDING, ESP__TRUST_NONE };

typedef struct esp__auto_options {
    uint32_t steps, window, cooldown;
    uint64_t warmup; /* no lossy codec before this step */
    double min_gain, drift, max_error;
    char plan[ESP__NAME_MAX];
    int no_codec; /* set by "none": plans never compress */
    /* The codecs that plans may use: the user's, and those that only round numbers. */
    char codecs[ESP__CALIBRATION_CODECS][ESP__SPEC_MAX];
    uint32_t n_codecs;
} esp__auto_options;

/* A probe: one microbenchmark of the measuring phase. */
typedef struct esp__auto_probe {
    /* `codec` is its index + 1, or 0 for a collective. Probes of lower passes run first. */
    uint8_t codec, level, done, pass;
    uint32_t coll;
    uint64_t size; /* bytes of a collective, or elements of a codec call */
} esp__auto_probe;

/* What each rank sends in an exchange (its word). Ranks decide only by what all of them received, so all decide the
 * same. */
typedef struct esp__auto_word {
    uint64_t step_ns, spread_ns; /* median and quartile distance since the phase began */
    uint64_t spent_ns;           /* the autopilot's time since the previous exchange */
    uint64_t exchange_ns;        /* time of the shortest exchange so far */
    uint64_t cpu_ns, compute_ns; /* processor and wall time of the trainer's computing */
    /* How much longer a trial's steps were than the previous strategy's: in total, and for the first step. */
    double over_ns, first_ns;
    double waiting; /* the part after the last push, as a share of the step */
    int64_t pid;
    uint32_t excess; /* tensors whose error or feedback is too large */
    /* Numbers of reported losses since the last clearing: of the newest finite ones, and of all others. */
    uint32_t losses, bad_losses;
    double loss, loss_spread; /* median and quartile distance of the finite ones */
    /* Only rank 0 sets the members from here on. */
    uint32_t done, decision, compresses;
    uint64_t text_bytes;
    double pushed_ns;                     /* from a step's begin to its last push: mean of the phase */
    double gain, predicted_ns, second_ns; /* second_ns: predicted for strategy layerwise */
} esp__auto_word;

enum { ESP__DECISION_STAY = 1, ESP__DECISION_SWITCH = 2 };

/* Statistics of the losses that all ranks reported. */
typedef struct esp__losses {
    uint64_t n;       /* number of reports */
    int32_t bad_rank; /* a rank whose loss was not finite; -1 if there is none */
    double median, spread;
} esp__losses;

/* How a codec affects the loss if training uses a given optimizer. */
typedef struct esp__effect {
    /* Steps to the same loss, relative to fp32; 1 if the codec is safe or nothing is known. */
    double slower;
    /* What a user can expect, such as "a loss within 1% of fp32's"; NULL if the optimizer is unknown. */
    const char *loss;
} esp__effect;

/* The budget of trials in training steps; equal on all ranks. */
typedef struct esp__budget {
    int open;
    uint64_t step;  /* credit was last added at this step */
    double step_ns; /* last measured time of a training step */
    double credit;  /* negative if a trial cost more than there was */
    double measure; /* steps that the last measuring and planning cost */
    /* Measured / predicted step time of the last trial that lost, for plans without [0] and with compression [1]. */
    double misjudged[2];
    double spent, lost; /* total cost of the autopilot, and of lost trials */
} esp__budget;

/* Input and result of the planning thread. No other thread uses them until `done`. */
typedef struct esp__auto_job {
    /* input */
    esp_ctx *ctx; /* only for its allocator, because training goes on */
    esp_plan_model model;
    /* free_tensors has no `keep`, so that the planner can also predict the active strategy. */
    esp_plan_tensor *tensors, *free_tensors;
    esp_plan_system system;
    esp_plan_codec codecs[ESP__CALIBRATION_CODECS],
        all_codecs[ESP__CALIBRATION_CODECS]; /* those that plans may use now, and all measured ones */
    uint32_t n_codecs, n_all_codecs;
    const esp__effect *effects[ESP__CALIBRATION_CODECS]; /* for each of all_codecs */
    char optimizer[ESP__NAME_MAX];
    int kept; /* whether some tensor has a prescribed codec */
    esp_plan_config config;
    char *active;   /* text of the active strategy */
    double base_ns; /* measured step time of the active strategy */
    double min_gain;
    int forced;          /* another strategy must be chosen, even a slower one */
    uint64_t refuse;     /* hash of a plan that lost its trial; 0 if there is none */
    double exposed;      /* exposed communication as a share of a measured step */
    double misjudged[2]; /* as in esp__budget; predicted gains are divided by it */
    /* result */
    uint32_t decision;
    esp_plan *plan;
    uint64_t text_hash;
    double need; /* the gain that pays for a change, such as 1.05 */
    double gain, predicted_ns;
    double explained_ns; /* predicted step time of the active strategy */
    esp_plan_report best;
    /* The plan keeps the core that computes busy nearly all the time. */
    int full_cores;
    /* Strategy layerwise with the codec that makes it fastest by prediction; NULL if there is none or `plan` is the
     * same. */
    esp_plan *second;
    esp_plan_report second_report;
    double second_ns;
    char second_chosen[ESP__SPEC_MAX + 16];
    int tried; /* layerwise had a trial already */
    int compresses;
    uint64_t cpu_ns;       /* processor time of planning */
    double bound, plan_ns; /* bound: (plan - lower bound) / lower bound, or < 0 */
    char chosen[ESP__AUTO_TEXT * 2], reason[ESP__AUTO_TEXT * 2];
    char passed_over[ESP__AUTO_TEXT * 2]; /* a faster plan with which training needs more steps */
    /* the planning thread */
    pthread_t thread;
    pthread_mutex_t lock;
    int running, done;
} esp__auto_job;

/* Where costs and times come from: they are measured where a function is NULL. Tests set functions of their own. */
typedef struct esp__auto_source {
    void *user;
    uint64_t (*step_ns)(void *user, esp_ctx *ctx);          /* time of the last step */
    void (*ready)(void *user, esp_ctx *ctx, uint64_t *out); /* sets out[n_tensors] to the last step's ready times */
    esp_status (*costs)(void *user, esp_ctx *ctx, esp_plan_system *system, esp_plan_codec *codecs, uint32_t *n);
    int (*excess)(void *user, esp_ctx *ctx, uint32_t tensor); /* whether the tensor's error or feedback is too large */
    double (*waiting)(void *user, esp_ctx *ctx);              /* share of the step after the last push */
    double exposed;                                           /* exposed communication as a share of the step */
    int tries_second;                                         /* whether layerwise gets a trial if a plan disappoints */
} esp__auto_source;

/* A tensor's compression errors, as samples showed them. */
typedef struct esp__auto_tensor {
    double feedback_seen;  /* largest feedback so far; 0 if there was none */
    uint32_t samples_seen; /* esp_tensor_stats.samples at the last look */
    uint8_t level;         /* number of changes to a codec that loses less */
    uint8_t bad;           /* consecutive bad samples */
} esp__auto_tensor;

typedef struct esp__autopilot {
    esp__auto_options opt;
    esp__auto_source source;
    int phase, stays; /* stays is set if no plan was predicted to win */
    /* Hashes of the strategy that the autopilot activated last, and of fp32. */
    uint64_t active, fp32;
    uint32_t phase_steps;
    uint64_t times[ESP__AUTO_TIMES]; /* last step times of this phase */
    double sorted[ESP__AUTO_TIMES];
    uint32_t n_times;
    uint64_t *ready; /* [ESP__AUTO_READY][n_tensors] ready times */
    uint32_t n_ready;
    /* used for exchanges between ranks */
    esp__auto_word mine, *all;
    uint32_t every; /* steps between exchanges, except while watching */
    /* used while measuring */
    esp__calibration calibration;
    int calibration_open, have_costs;
    uint8_t stale[ESP__CALIBRATION_CODECS]; /* whether the codec's points are from an earlier phase */
    esp__auto_probe probes[ESP__AUTO_PROBES];
    uint32_t n_probes;
    uint8_t pass;       /* the pass whose probes are listed next */
    uint64_t spent_ns;  /* the autopilot's time in this phase, agreed by all ranks */
    uint64_t waited_ns; /* time that this step's exchanges waited for slower ranks */
    uint64_t cpu_since, stats_step, stats_exposed;
    esp_stats phase_stats; /* statistics when the phase began */
    /* Sums over the phase: of step times, and of their parts after the last push. */
    uint64_t steps_ns, waiting_ns;
    uint64_t *ready_max; /* rank 0: ready times of the slowest rank, per tensor */
    /* used on rank 0 while planning */
    esp__auto_job *job;
    /* Step times of the active strategy and the previous one. */
    double base_ns, base_spread_ns; /* of the previous strategy, measured */
    double predicted_ns;            /* predicted for the active strategy */
    /* Predicted for strategy layerwise, which may get a trial after this one; 0 if it may not. */
    double second_ns;
    int tried_layerwise; /* set on rank 0 only */
    double gain;
    /* Measured for the active strategy, before the previous one is timed again. */
    double tried_ns;
    double again_ns;     /* previous strategy, timed again; 0 until then */
    char *before, *next; /* texts of the previous and of the next strategy */
    uint32_t check_steps;
    /* The current trial: time of all its steps and of the first one; number of steps. */
    uint64_t tries_ns, first_try_ns, tries;
    int compresses; /* whether the strategy on trial compresses */
    esp__budget budget;
    int forced, lossy; /* forced as in the job; whether lossy codecs are allowed */
    uint64_t refuse;   /* rank 0: hash of a plan that lost its trial */
    /* used while watching the active strategy */
    double reference_ns;
    uint32_t interval, over, under;
    uint64_t settled_step; /* training step of the last decision */
    int said_waiting;
    /* Losses. The first three members are this rank's and need lanes.lock. */
    double losses[ESP__AUTO_LOSSES]; /* newest losses since they were cleared */
    uint32_t n_losses, bad_losses;
    esp__losses before_losses; /* losses before the change of strategy, or lower ones since */
    uint32_t risen;            /* consecutive checks that found a higher loss */
    int trust;
    /* used if a tensor's error is too large */
    esp__auto_tensor *tensors; /* one entry for each tensor */
    /* Bit sets of the tensors whose error is too large, on this rank and on all ranks. */
    uint8_t *bits, *all_bits;
} esp__autopilot;

/* Returns NULL if the strategy is not auto. */
ESP__UNUSED static inline esp__autopilot *esp__autopilot_of(const esp_ctx *ctx) {
    return ctx->observers.self[ESP__OBSERVE_AUTO];
}

/* ---- options.c ---- */
ESP__FN esp_status esp__auto_options_read(const esp_ctx *ctx, const char *spec, esp__auto_options *o);
ESP__FN esp_status esp__auto_codecs_read(esp_ctx *ctx, const char *list, esp__auto_options *o);
/* Returns the opened codec with this spec, or NULL. */
ESP__FN const esp__codec *esp__auto_codec_of(const esp_ctx *ctx, const char *spec);
/* ---- budget.c ---- */
ESP__FN void esp__budget_open(esp__budget *b, uint64_t step, double step_ns);
ESP__FN void esp__budget_update(esp__budget *b, uint64_t step, double step_ns, double spent_ns);
ESP__FN void esp__budget_measured(esp__budget *b, double spent_ns);
ESP__FN uint64_t esp__budget_wait(const esp__budget *b);
ESP__FN int esp__budget_exhausted(const esp__budget *b, double over_ns, double first_ns);
ESP__FN void esp__budget_pay(esp__budget *b, double over_ns);
ESP__FN void esp__budget_lost(esp__budget *b, int compresses, double measured_ns, double predicted_ns);
ESP__FN void esp__budget_won(esp__budget *b, int compresses, double saved_ns);
ESP__FN void esp__budget_drifted(esp__budget *b);
/* ---- measure.c ---- */
ESP__FN esp_status esp__auto_exchange(esp_ctx *ctx);
ESP__FN double esp__auto_spread(const esp_ctx *ctx);    /* largest quartile distance of any rank's step times */
ESP__FN uint64_t esp__auto_step_ns(const esp_ctx *ctx); /* largest median step time of any rank */
ESP__FN int esp__auto_hidden(const esp_ctx *ctx);       /* whether no plan can bring the least gain */
ESP__FN esp_status esp__auto_measure_open(esp_ctx *ctx);
ESP__FN void esp__auto_measure_begin(esp_ctx *ctx, int again);
ESP__FN esp_status esp__auto_measure_step(esp_ctx *ctx);
/* ---- safer.c ---- */
/* Makes a plan with these codecs for the job's model and system, and its report. */
ESP__FN esp_status esp__auto_make(const esp__auto_job *job, const esp_plan_codec *codecs, uint32_t n,
                                  const esp_plan_config *config, esp_plan **out, esp_plan_report *r);
/* Returns the step time to expect from a plan: its prediction, plus measured time that costs do not explain. */
ESP__FN double esp__auto_promise(const esp__auto_job *job, double plan_ns);
ESP__FN double esp__auto_slower(const esp__auto_job *job, const char *spec); /* esp__effect.slower of a codec */
ESP__FN void esp__auto_safer(esp__auto_job *job, esp_plan_report *best);
/* Writes what users can expect of the loss with job->plan, as the end of a log line; "" if it compresses nothing. */
ESP__FN void esp__auto_effect_text(const esp__auto_job *job, char *text, size_t room);
/* ---- plan.c ---- */
ESP__FN esp_status esp__auto_plan_begin(esp_ctx *ctx);
ESP__FN int esp__auto_plan_done(esp__autopilot *a);
ESP__FN int esp__auto_worth(const esp__auto_job *job, double now_ns, double plan_ns, int compresses, double need);
ESP__FN void esp__auto_second(esp__auto_job *job);
ESP__FN void esp__auto_job_free(esp_ctx *ctx, esp__auto_job *job);
/* ---- watch.c ---- */
ESP__FN esp_status esp__auto_plan_step(esp_ctx *ctx);
ESP__FN esp_status esp__auto_flush_step(esp_ctx *ctx);
ESP__FN esp_status esp__auto_check_step(esp_ctx *ctx);
ESP__FN esp_status esp__auto_watch_step(esp_ctx *ctx);
ESP__FN void esp__auto_settle(esp_ctx *ctx, double reference_ns);
ESP__FN uint32_t esp__auto_looks(const esp__autopilot *a); /* number of checks in opt.window steps, at least two */
/* ---- safety.c ---- */
/* Whether the codec changes every number only a little. `error` counts if its model has none. */
ESP__FN int esp__safety_rounds(const esp__codec *c, double error);
ESP__FN const esp__effect *esp__safety(const esp__codec *c, double error, uint32_t optimizer, double momentum);
/* Writes the trainer's optimizer, such as "adam:0.9", to `text`. */
ESP__FN const char *esp__safety_optimizer(const esp_ctx *ctx, char *text, size_t room);
/* ---- loss.c ---- */
/* Whether losses are clearly higher than before. If they are lower, sets *before to them. */
ESP__FN int esp__losses_risen(esp__losses *before, const esp__losses *now);
ESP__FN void esp__auto_loss_word(esp_ctx *ctx);
ESP__FN void esp__auto_loss_begin(esp_ctx *ctx);
ESP__FN void esp__auto_loss_before(esp_ctx *ctx);
ESP__FN void esp__auto_loss_settle(esp_ctx *ctx);
ESP__FN esp_status esp__auto_loss_try(esp_ctx *ctx, int *back);
ESP__FN esp_status esp__auto_loss_look(esp_ctx *ctx, int *back);
/* ---- fallback.c ---- */
ESP__FN uint32_t esp__auto_excess(esp_ctx *ctx);
ESP__FN esp_status esp__auto_fall_back(esp_ctx *ctx, int *changed);
ESP__FN double esp__auto_error_of(const esp_ctx *ctx, const char *spec);
ESP__FN const char *esp__auto_keep(const esp_ctx *ctx, uint32_t tensor);
/* ---- autopilot.c ---- */
ESP__FN void esp__auto_enter(esp_ctx *ctx, int phase);
ESP__FN esp_status esp__auto_set(esp_ctx *ctx, const char *text);
/* Logs a line on rank 0, at a level that users see by default. */
ESP__FN void esp__auto_say(const esp_ctx *ctx, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN void esp__auto_loss_reported(esp_ctx *ctx, void *self, double loss);
#endif
