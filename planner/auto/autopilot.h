/* autopilot.h: shared by the autopilot's files: its options, its state, the words that ranks exchange, and the planning thread's
 * job. Only the autopilot and tests include it. */
#ifndef ESP__AUTOPILOT_H
#define ESP__AUTOPILOT_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include "planner/calibrate/costs.h"
#include "planner/plan.h"

/* Phases. All ranks are in the same phase after the same step. */
enum {
    ESP__AUTO_WARM,    /* first steps: caches and pages fill, no step time is counted              */
    ESP__AUTO_MEASURE, /* steps are timed, links and codecs probed between them                    */
    ESP__AUTO_PLAN,    /* rank 0 plans on a thread, training goes on                               */
    ESP__AUTO_FLUSH,   /* one uncompressed step sends pending residuals                            */
    ESP__AUTO_CHECK,   /* the new strategy is timed against the one before                         */
    ESP__AUTO_BACK,    /* the one before is timed again, because the new one is not clearly faster */
    ESP__AUTO_WATCH,   /* now and then a look at step times and errors                             */
    ESP__AUTO_OFF      /* the program set a strategy itself, or there is no choice                 */
};
enum {
    ESP__AUTO_TIMES = 1024,
    ESP__AUTO_READY = 32,
    ESP__AUTO_PROBES = 256,
    ESP__AUTO_TEXT = 256,
    ESP__AUTO_LOSSES = 256
};
/* Which codecs may be chosen after a loss rose: all, those that round finely, those that are not lossy. */
enum { ESP__TRUST_ALL, ESP__TRUST_ROUNDING, ESP__TRUST_NONE };

typedef struct esp__auto_options {
    uint32_t steps, window, cooldown;
    uint64_t warmup; /* no lossy codec before this step                             */
    double min_gain, drift, max_error;
    char plan[ESP__NAME_MAX];
    int no_codec; /* "none": plans never compress   */
    char codecs[ESP__SURVEY_CODECS]
               [ESP__SPEC_MAX]; /* the allowed codecs: the user's, and those that only round numbers */
    uint32_t n_codecs;
} esp__auto_options;

/* One microbenchmark that the measuring phase may make. */
typedef struct esp__auto_probe {
    uint8_t codec, level, done, pass; /* codec: 1 + its index; 0: a collective. pass: coarse probes come first */
    uint32_t coll;
    uint64_t size; /* bytes of a collective, or elements of a codec call */
} esp__auto_probe;

/* What each rank sends in an exchange. Decisions use only what all ranks received, so that all ranks decide alike. */
typedef struct esp__auto_word {
    uint64_t step_ns, spread_ns; /* step times since the phase began: median and quartile distance */
    uint64_t spent_ns;           /* by the autopilot since the exchange before                 */
    uint64_t exchange_ns;        /* shortest exchange so far                                   */
    uint64_t cpu_ns, compute_ns; /* of the trainer's computing: processor time; real time      */
    double over_ns, first_ns;    /* of a try: how much longer than before all its steps took, and its first step */
    double waiting;              /* share of the step time that lies after the last push                              */
    int64_t pid;
    uint32_t excess;             /* tensors whose error or feedback is too large */
    uint32_t losses, bad_losses; /* reported since they were last forgotten: finite ones (the newest), others */
    double loss, loss_spread;    /* of the finite ones: median and quartile distance                          */
    /* only rank 0 sets these */
    uint32_t done, verdict, compresses;
    uint64_t text_bytes;
    double pushed_ns;                     /* from a step's begin to its last push: mean since the phase began */
    double gain, predicted_ns, second_ns; /* second_ns: as in the job */
} esp__auto_word;

enum { ESP__VERDICT_STAY = 1, ESP__VERDICT_SWITCH = 2 };

/* Losses that the trainer reported: means of the ranks' figures. */
typedef struct esp__losses {
    uint64_t n;       /* reports; 0: none                              */
    int32_t bad_rank; /* this rank's loss was not finite; -1: no one's */
    double median, spread;
} esp__losses;

/* What a codec costs in loss with an optimizer. */
typedef struct esp__effect {
    double slower;    /* how many times as many steps to the same loss; 1: it is safe, or nothing is known       */
    const char *loss; /* what is to be expected, as in "a loss within 1% of fp32's"; NULL: the optimizer is not known */
} esp__effect;

/* The account of what trying may cost, in steps: the same on all ranks. */
typedef struct esp__budget {
    int open;
    uint64_t step;       /* credit was added up to this step                                                 */
    double step_ns;      /* of one training step, as last measured                                           */
    double credit;       /* steps; below 0: a try cost more than the credit                                  */
    double measure;      /* steps that measuring and planning cost the last time                             */
    double misjudged[2]; /* measured / predicted step time of the last try that lost; [1]: of plans that compress */
    double spent, lost;  /* steps so far: spent by the autopilot itself, lost by tries                       */
} esp__budget;

/* The planning thread's input and result. No other thread touches it until `done`. */
typedef struct esp__auto_job {
    /* in */
    esp_ctx *ctx; /* its allocator alone: training goes on while the job's thread plans */
    esp_plan_model model;
    esp_plan_tensor *tensors, *free_tensors; /* free: without `keep`, to predict the strategy in force */
    esp_plan_system system;
    esp_plan_codec codecs[ESP__SURVEY_CODECS],
        all_codecs[ESP__SURVEY_CODECS]; /* those allowed now; all that were measured */
    uint32_t n_codecs, n_all_codecs;
    const esp__effect *effects[ESP__SURVEY_CODECS]; /* of all_codecs */
    char optimizer[ESP__NAME_MAX];
    int kept; /* some tensor's codec is prescribed */
    esp_plan_config config;
    char *in_force; /* text of the strategy in force */
    double base_ns; /* its measured step time */
    double min_gain;
    int forced;          /* the strategy in force must be replaced, even by a slower one */
    uint64_t refuse;     /* hash of a plan that was tried and was slower; 0: none */
    double exposed;      /* exposed communication as a share of a measured step                      */
    double misjudged[2]; /* the budget's: the predicted gain must be larger by this factor */
    /* out */
    uint32_t verdict;
    esp_plan *plan;
    uint64_t text_hash;
    double need; /* the gain that makes the plan worth a change, such as 1.05 */
    double gain, predicted_ns;
    double explained_ns; /* the planner's prediction for the strategy in force */
    esp_plan_report best;
    int full_cores; /* the plan keeps the core that computes busy nearly all the time */
    /* strategy layerwise with the codec for which it is predicted fastest; NULL: none, or `plan` is the same */
    esp_plan *second;
    esp_plan_report second_report;
    double second_ns;
    char second_chosen[ESP__SPEC_MAX + 16];
    int tried; /* layerwise was tried already */
    int compresses;
    uint64_t cpu_ns;       /* processor time of planning */
    double bound, plan_ns; /* bound: the gap, how far the plan is above the bound at most; < 0: not known */
    char chosen[ESP__AUTO_TEXT * 2], reason[ESP__AUTO_TEXT * 2];
    char passed_over[ESP__AUTO_TEXT * 2]; /* a faster plan with which training needs more steps; "": none */
    /* the thread */
    pthread_t thread;
    pthread_mutex_t lock;
    int running, done;
} esp__auto_job;

/* The source of figures. Tests set functions of their own; NULL: the real figures. */
typedef struct esp__auto_source {
    void *user;
    uint64_t (*step_ns)(void *user, esp_ctx *ctx);          /* of the step just made         */
    void (*ready)(void *user, esp_ctx *ctx, uint64_t *out); /* the step's ready times, [n_tensors] */
    esp_status (*figures)(void *user, esp_ctx *ctx, esp_plan_system *system, esp_plan_codec *codecs, uint32_t *n);
    int (*excess)(void *user, esp_ctx *ctx, uint32_t tensor); /* 1: the tensor's error or feedback is too large */
    double (*waiting)(void *user, esp_ctx *ctx); /* share of the step time after the last push; NULL: not known */
    double exposed;                              /* exposed communication as a share of the step */
    int tries_second;                            /* 1: strategy layerwise is tried too where a plan disappoints */
} esp__auto_source;

/* What is known of a tensor's errors. */
typedef struct esp__auto_tensor {
    double feedback_seen;  /* the largest feedback in samples so far, 0: none */
    uint32_t samples_seen; /* esp_tensor_stats.samples at the last look */
    uint8_t level;         /* how often it fell back to a gentler codec */
    uint8_t strikes;       /* how often in a row a sample was suspicious */
} esp__auto_tensor;

typedef struct esp__autopilot {
    esp__auto_options opt;
    esp__auto_source source;
    int phase, stays;        /* stays: the verdict was that no plan wins */
    uint64_t in_force, fp32; /* hashes: of the strategy that the autopilot last put in force; of fp32 */
    uint32_t phase_steps;
    uint64_t times[ESP__AUTO_TIMES]; /* step times since the phase began: the last ones */
    double sorted[ESP__AUTO_TIMES];
    uint32_t n_times;
    uint64_t *ready; /* [ESP__AUTO_READY][n_tensors] */
    uint32_t n_ready;
    /* exchange */
    esp__auto_word mine, *all;
    uint32_t every; /* steps between exchanges while not watching */
    /* measuring */
    esp__survey survey;
    int survey_open, have_figures;
    uint8_t stale[ESP__SURVEY_CODECS]; /* 1: the codec's points are from an earlier measuring phase */
    esp__auto_probe probes[ESP__AUTO_PROBES];
    uint32_t n_probes;
    uint8_t pass;       /* of the probes that are listed next */
    uint64_t spent_ns;  /* by the autopilot in this measuring phase, as agreed by all ranks */
    uint64_t waited_ns; /* in this step's exchanges, for ranks that came later */
    uint64_t cpu_since, stats_step, stats_exposed;
    esp_stats phase_stats;         /* as the phase began */
    uint64_t steps_ns, waiting_ns; /* since the phase began: all step times; the part of them after the last push */
    uint64_t *ready_max;           /* rank 0: [n_tensors] the slowest rank's ready times */
    /* planning: rank 0 */
    esp__auto_job *job;
    /* the strategy in force, and the one before: step times */
    double base_ns, base_spread_ns; /* of the strategy before, measured         */
    double predicted_ns;            /* of the new one                           */
    double second_ns;               /* of strategy layerwise, which may be tried after the new one; 0: may not */
    int tried_layerwise;            /* rank 0 */
    double gain;
    double tried_ns;     /* of the new one, measured before the one before is timed again */
    double again_ns;     /* of the one before, timed again; 0: not yet                    */
    char *before, *next; /* texts */
    uint32_t check_steps;
    uint64_t tries_ns, first_try_ns, tries; /* the try under way: time of its steps, of the first, their number */
    int compresses;                         /* 1: the strategy that is tried compresses */
    esp__budget budget;
    int forced, lossy; /* forced: as in the job; lossy: lossy codecs may be chosen */
    uint64_t refuse;   /* rank 0: hash of a plan that was tried and was slower */
    /* watching */
    double reference_ns;
    uint32_t interval, over, under;
    uint64_t settled_step; /* ctx->steps.step when the last decision was made */
    int said_waiting;
    /* losses. The first three: of this rank, under lanes.lock */
    double losses[ESP__AUTO_LOSSES]; /* since they were last forgotten: the last ones */
    uint32_t n_losses, bad_losses;
    esp__losses before_losses; /* before the change, or lower ones since                                       */
    uint32_t risen;            /* looks in a row that found losses risen                                       */
    int trust;                 /* ESP__TRUST_*                                                                 */
    /* fallback */
    esp__auto_tensor *tensors; /* [n_tensors] */
    uint8_t *bits, *all_bits;  /* a bit for each tensor whose error is too large: on this rank; on all ranks */
} esp__autopilot;

/* NULL: the strategy is not auto. */
ESP__UNUSED static inline esp__autopilot *esp__autopilot_of(const esp_ctx *ctx) {
    return ctx->observers[ESP__OBSERVE_autopilot];
}

/* ---- options.c ---- */
ESP__FN esp_status esp__auto_options_read(const esp_ctx *ctx, const char *spec, esp__auto_options *o);
ESP__FN esp_status esp__auto_codecs_read(esp_ctx *ctx, const char *list, esp__auto_options *o);
/* The caps of an opened codec (ESP_CODEC_*); 0: no codec with this spec is open. */
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
ESP__FN double esp__auto_spread(const esp_ctx *ctx);    /* the largest of the ranks' quartile distances, likewise */
ESP__FN uint64_t esp__auto_step_ns(const esp_ctx *ctx); /* the largest of the ranks' medians, after an exchange */
ESP__FN int esp__auto_hidden(const esp_ctx *ctx);       /* 1: steps wait too little for the least gain */
ESP__FN esp_status esp__auto_measure_open(esp_ctx *ctx);
ESP__FN void esp__auto_measure_begin(esp_ctx *ctx, int again);
ESP__FN esp_status esp__auto_measure_step(esp_ctx *ctx);
/* ---- safer.c ---- */
/* A plan for the job's model and system, with these codecs, and its report. */
ESP__FN esp_status esp__auto_make(const esp__auto_job *job, const esp_plan_codec *codecs, uint32_t n,
                                  const esp_plan_config *config, esp_plan **out, esp_plan_report *r);
ESP__FN double esp__auto_promise(const esp__auto_job *job, double plan_ns);  /* the step time that a plan promises */
ESP__FN double esp__auto_slower(const esp__auto_job *job, const char *spec); /* esp__effect.slower of a codec      */
ESP__FN void esp__auto_safer(esp__auto_job *job, esp_plan_report *best);
/* What to expect of the loss with job->plan, as the end of a log line; "": it compresses nothing. */
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
ESP__FN uint32_t esp__auto_looks(const esp__autopilot *a); /* that make a window, two or more */
/* ---- safety.c ---- */
/* 1: the codec changes every number by little. `error`: its compression error, where its model does not know it. */
ESP__FN int esp__safety_rounds(const esp__codec *c, double error);
ESP__FN const esp__effect *esp__safety(const esp__codec *c, double error, uint32_t optimizer, double momentum);
/* The trainer's optimizer, such as "adam:0.9", written into `text`. */
ESP__FN const char *esp__safety_optimizer(const esp_ctx *ctx, char *text, size_t room);
/* ---- loss.c ---- */
/* 1: losses are clearly higher than before. Where they are lower, these are in *before from now on. */
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
