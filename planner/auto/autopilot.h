/* autopilot.h: what the autopilot's files share: its options, its state, the data that ranks exchange, and the planning
 * thread's job. Only the autopilot and tests include it.
 * These files call each other in a circle, because each phase begins the next one (measure, plan, try, watch, measure
 * again). */
#ifndef ESP__AUTOPILOT_H
#define ESP__AUTOPILOT_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include "planner/calibrate/costs.h"
#include "planner/plan.h"

/* All ranks are in the same phase after the same step. */
enum {
    ESP__AUTO_MEASURE, /* times steps, and probes links and codecs between them */
    ESP__AUTO_PLAN,    /* rank 0 makes candidates on a thread while training goes on */
    ESP__AUTO_TRY,     /* candidates run in turns, and the slower ones are left out */
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
    uint64_t step_ns, spread_ns; /* median and quartile distance of the steps that are compared */
    uint64_t total_ns;           /* time of all steps since the phase or block began */
    uint64_t spent_ns;           /* the autopilot's time since the previous exchange */
    uint64_t exchange_ns;        /* time of the shortest exchange so far */
    uint64_t cpu_ns, compute_ns; /* processor and wall time of the trainer's computing */
    double waiting;              /* the part after the last push, as a share of the step */
    double pushed_ns;            /* from a step's begin to its last push: mean of the phase */
    int64_t pid;
    uint32_t excess; /* tensors whose error or feedback is too large */
    /* Numbers of reported losses since the last clearing: of the newest finite ones, and of all others. */
    uint32_t losses, bad_losses;
    uint32_t done;            /* on rank 0: planning has ended */
    double loss, loss_spread; /* median and quartile distance of the finite ones */
    uint64_t bytes;           /* on rank 0: length of the candidates' texts; 0 if there are none */
} esp__auto_word;

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

/* ---- tournament.c: which candidate is the fastest ---------------------------------------------------------------- */
enum { ESP__AUTO_CANDIDATES = ESP__CALIBRATION_CODECS + 5, ESP__TRY_TIMES = 64 };
typedef struct esp__auto_candidate {
    char name[ESP__AUTO_TEXT / 2];
    double predicted_ns; /* of a step */
    double slower;       /* the largest esp__effect.slower of its codecs */
    double loss;         /* 0 if it compresses nothing; else larger if it compresses more */
    /* Measured, the same on all ranks: median step time, and quartile distance / median, of n steps. */
    double ns, spread;
    uint32_t n;
    bool out;         /* it was clearly slower, or could not be activated */
    bool stale;       /* it was measured before the tournament only */
    bool tie;         /* as fast as the fastest one, so it needs no more steps */
    uint32_t n_times; /* this rank's step times */
    double times[ESP__TRY_TIMES];
} esp__auto_candidate;

typedef struct esp__tournament {
    esp__auto_candidate at[ESP__AUTO_CANDIDATES];
    uint32_t n, now;      /* number of candidates; the active one */
    double least_gain;    /* a candidate that compresses more wins only if it is faster by this share */
    double noise;         /* spread of steps before the tournament */
    uint32_t round, left; /* `left` steps of the current block are not over */
    bool skip;            /* the next step does not count */
    uint32_t steps;       /* of the tournament, so far */
    double total_ns;      /* time of these steps and of the changes between them */
    uint8_t queue[2 * ESP__AUTO_CANDIDATES];
    uint32_t n_queue, at_queue;
    const char *ended; /* why no more steps are run: for the log */
} esp__tournament;

/* Begins with candidates that have name, predicted_ns, slower and loss, and, if they were measured just before, also
 * times, ns, spread, n and `stale`. */
ESP__FN void esp__tournament_begin(esp__tournament *t, double least_gain, double noise);
/* Stores a step's time on this rank. Returns whether the block of steps is over. */
ESP__FN bool esp__tournament_step(esp__tournament *t, double ns);
/* Stores what ranks agreed on after a block: the active candidate's median and quartile distance, and the time of the
 * block. */
ESP__FN void esp__tournament_block(esp__tournament *t, double ns, double spread_ns, double total_ns);
/* Begins the next block. Returns its candidate, or -1 if the tournament is over. */
ESP__FN int esp__tournament_next(esp__tournament *t);
ESP__FN uint32_t esp__tournament_winner(const esp__tournament *t);
/* Writes each candidate's times and why the winner won. */
ESP__FN void esp__tournament_text(const esp__tournament *t, char *text, size_t room);

/* ---- the planning thread ----------------------------------------------------------------------------------------- */
/* A plan that becomes a candidate. */
typedef struct esp__auto_proposal {
    esp_plan *plan; /* NULL for fp32 and the active strategy */
    const char *text;
    uint64_t hash; /* of the text without comments */
    esp_plan_report report;
    char effect[ESP__AUTO_TEXT * 2]; /* what users can expect of the loss, as the end of a log line */
} esp__auto_proposal;

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
    esp_plan_config config;
    char *active, active_name[ESP__AUTO_TEXT / 2];
    int active_fp32; /* whether the active strategy is fp32 */
    /* The active strategy's step time and its spread, as in esp__auto_candidate, of base_n steps. */
    double base_ns, base_spread;
    uint32_t base_n;
    int forced; /* the active strategy is no candidate: it must be replaced */
    /* result */
    esp__auto_candidate candidates[ESP__AUTO_CANDIDATES];
    esp__auto_proposal of[ESP__AUTO_CANDIDATES];
    uint32_t n;
    double explained_ns; /* predicted step time of the active strategy */
    uint64_t cpu_ns;     /* processor time of planning */
    double plan_ns;
    char failed[ESP__AUTO_TEXT * 2]; /* why there are no candidates; else "" */
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
    int phase;
    uint64_t active, fp32; /* hashes of the strategy that the autopilot activated last, and of fp32 */
    uint32_t phase_steps;
    uint64_t times[ESP__AUTO_TIMES]; /* last step times of this phase */
    double sorted[ESP__AUTO_TIMES];
    uint32_t n_times;
    uint64_t *ready; /* [ESP__AUTO_READY][n_tensors] ready times */
    uint32_t n_ready;
    /* used for exchanges between ranks */
    esp__auto_word mine, *all;
    uint32_t every; /* steps between exchanges while measuring and planning */
    /* used while measuring */
    esp__calibration calibration;
    int calibration_open, have_costs;
    uint8_t stale[ESP__CALIBRATION_CODECS]; /* whether the codec's points are from an earlier phase */
    esp__auto_probe probes[ESP__AUTO_PROBES];
    uint32_t n_probes;
    uint8_t pass;          /* the pass whose probes are listed next */
    double probed_ns;      /* estimated time of this phase's probes */
    uint64_t waited_ns;    /* time that this step's exchanges waited for slower ranks */
    uint64_t cpu_since;    /* the trainer's processor time when the step began */
    esp_stats phase_stats; /* statistics when the phase began */
    /* Sums over the phase: of step times, and of their parts after the last push. */
    uint64_t steps_ns, waiting_ns;
    uint64_t *ready_max; /* rank 0: ready times of the slowest rank, per tensor */
    double base_ns;      /* the active strategy's median step time before planning */
    uint32_t base_n;     /* of so many steps */
    esp__auto_job *job;  /* rank 0's planning */
    /* used while trying */
    esp__tournament tournament;
    char *texts[ESP__AUTO_CANDIDATES];       /* the candidates' strategies */
    char *won, won_name[ESP__AUTO_TEXT / 2]; /* the last winner's text, or NULL */
    uint64_t won_hash;
    uint32_t winner;
    uint64_t spent_ns; /* the autopilot's time since the last block, on the slowest rank */
    int forced, lossy; /* forced as in the job; whether lossy codecs are allowed */
    /* used while watching the active strategy */
    double reference_ns;
    uint32_t interval, over, under;
    uint64_t settled_step; /* training step of the last decision */
    uint32_t tournaments;  /* how often drift has begun one */
    int said_waiting, explained;
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
/* ---- measure.c ---- */
ESP__FN esp_status esp__auto_exchange(esp_ctx *ctx);
ESP__FN double esp__auto_spread(const esp_ctx *ctx);  /* largest quartile distance of any rank's step times */
ESP__FN double esp__auto_step_ns(const esp_ctx *ctx); /* largest median step time of any rank */
ESP__FN double esp__auto_waiting(const esp_ctx *ctx); /* the smallest share of a step that any rank waits */
ESP__FN esp_status esp__auto_measure_open(esp_ctx *ctx);
ESP__FN void esp__auto_measure_begin(esp_ctx *ctx, int again);
ESP__FN esp_status esp__auto_measure_step(esp_ctx *ctx);
/* ---- plan.c ---- */
ESP__FN esp_status esp__auto_plan_begin(esp_ctx *ctx);
ESP__FN int esp__auto_plan_done(esp__autopilot *a);
ESP__FN bool esp__auto_hidden(const esp_ctx *ctx);
ESP__FN void esp__auto_job_free(esp_ctx *ctx, esp__auto_job *job);
/* ---- candidates.c: runs on the planning thread ---- */
ESP__FN esp_status esp__auto_candidates(esp__auto_job *job);
/* ---- try.c ---- */
ESP__FN esp_status esp__auto_plan_step(esp_ctx *ctx);
ESP__FN esp_status esp__auto_try_step(esp_ctx *ctx, double ns);
ESP__FN void esp__auto_texts_free(esp_ctx *ctx, esp__autopilot *a, uint32_t winner);
/* ---- watch.c ---- */
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
