/* autopilot.h: what the autopilot's files share. Only the autopilot and tests include it.
 * These files call each other in a circle, because each phase begins the next one (measure, plan, try, watch, measure
 * again). */
#ifndef ESP__AUTOPILOT_H
#define ESP__AUTOPILOT_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include "planner/builtin/builtin.h"
#include "planner/calibrate/between.h"
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
    ESP__AUTO_CODECS = 8,
    ESP__AUTO_TIMES = 1024,
    ESP__AUTO_READY = 32,
    ESP__AUTO_LOSSES = 256,
    ESP__AUTO_NAME = 128
};
/* Which codecs may be used after the loss rose: all, those that only round finely, or lossless ones. */
enum { ESP__TRUST_ALL, ESP__TRUST_ROUNDING, ESP__TRUST_NONE };

typedef struct esp__auto_options {
    double steps, window, cooldown, warmup, min_gain, drift, max_error; /* max_error 0: no limit */
    char plan[ESP__NAME_MAX];
    char codecs[ESP__AUTO_CODECS][ESP__SPEC_MAX]; /* the user's, and those that only round numbers */
    uint32_t n_codecs;
} esp__auto_options;

/* What each rank sends in an exchange (its word). Ranks decide only by what all of them received, so all decide the
 * same. */
typedef struct esp__auto_word {
    uint64_t step_ns, spread_ns; /* median and quartile distance of the steps that are compared */
    uint64_t total_ns;           /* time of all steps of the block */
    uint64_t spent_ns;           /* the autopilot's time since the previous exchange */
    uint64_t exchange_ns;        /* time of the shortest exchange so far */
    double waiting;              /* the part of the phase's steps after the last push, as a share */
    double loss, loss_spread;    /* median and quartile distance of the finite losses */
    uint32_t losses, bad_losses; /* numbers of finite ones and of others since the last clearing */
    uint32_t excess;             /* tensors whose error or feedback is too large */
    uint32_t done;               /* on rank 0: the number of candidates, or 1 if planning failed; 0 while it goes on */
    uint64_t bytes;              /* on rank 0: size of the candidates and their texts; 0 if planning failed */
} esp__auto_word;

/* Statistics of the losses that all ranks reported. */
typedef struct esp__losses {
    uint64_t n;       /* number of reports */
    int32_t bad_rank; /* a rank whose loss was not finite; -1 if there is none */
    double median, spread;
} esp__losses;

/* ---- tournament.c: which candidate is the fastest ---------------------------------------------------------------- */
enum { ESP__AUTO_CANDIDATES = ESP__AUTO_CODECS + 5, ESP__TRY_TIMES = 64 };
typedef struct esp__auto_candidate {
    char name[ESP__AUTO_NAME];
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
    const char *ended; /* why comparing ended early, or NULL */
} esp__tournament;

/* Begins with candidates that have name, predicted_ns, slower and loss. One that was measured just before has also ns,
 * spread, n and `stale`. */
ESP__FN void esp__tournament_begin(esp__tournament *t, uint32_t now, double least_gain, double noise);
/* Stores a step's time on this rank. Returns whether the block of steps is over. */
ESP__FN bool esp__tournament_step(esp__tournament *t, double ns);
/* Stores what ranks agreed on after a block: the active candidate's median and quartile distance, and the time of the
 * block. */
ESP__FN void esp__tournament_block(esp__tournament *t, double ns, double spread_ns, double total_ns);
/* Begins the next block. Returns its candidate, or -1 if the tournament is over. */
ESP__FN int esp__tournament_next(esp__tournament *t);
/* Returns the winner, or t->n if all candidates are out. */
ESP__FN uint32_t esp__tournament_winner(const esp__tournament *t);
/* Writes each candidate's times and why the winner won. */
ESP__FN void esp__tournament_text(const esp__tournament *t, char *text, size_t room);

/* ---- the planning thread ----------------------------------------------------------------------------------------- */
/* Input and result of the planning thread. No other thread uses them until `done`. */
typedef struct esp__auto_job {
    esp_ctx *ctx; /* only for its allocator, because training goes on */
    esp_plan_model model;
    /* free_tensors has no `keep`, so that the planner can also predict the active strategy. */
    esp_plan_tensor *tensors, *free_tensors;
    esp_plan_system system;
    /* Codecs that plans may use now, those of tensors' descriptions, and all measured ones. */
    esp_plan_codec codecs[ESP__AUTO_CODECS], described[ESP__CALIBRATION_CODECS], all_codecs[ESP__CALIBRATION_CODECS];
    uint32_t n_codecs, n_described, n_all_codecs;
    uint32_t n_described_units;                          /* tensors that their descriptions compress */
    const esp__effect *effects[ESP__CALIBRATION_CODECS]; /* for each of all_codecs */
    char optimizer[ESP__NAME_MAX];
    esp_plan_config config;
    char *active;            /* the active strategy's text */
    const char *text;        /* a shorter text with which it is activated */
    esp__auto_candidate now; /* its name and what was measured */
    bool forced;             /* the active strategy is no candidate: it must be replaced */
    /* result */
    esp__auto_candidate candidates[ESP__AUTO_CANDIDATES];
    struct esp__auto_proposal {
        esp_plan *plan;
        const char *text;
        uint64_t hash;    /* of the text without comments */
        char effect[256]; /* what users can expect of the loss, as the end of a log line */
    } of[ESP__AUTO_CANDIDATES];
    uint32_t n;
    double explained_ns; /* predicted step time of the active strategy */
    char failed[512];    /* why there are no candidates; else "" */
    pthread_t thread;
    pthread_mutex_t lock;
    bool running, done;
} esp__auto_job;

/* Where costs and times come from: they are measured where a function is NULL. Tests set functions of their own. */
typedef struct esp__auto_source {
    void *user;
    uint64_t (*step_ns)(void *user, esp_ctx *ctx);          /* time of the last step */
    void (*ready)(void *user, esp_ctx *ctx, uint64_t *out); /* sets out[n_tensors] to the last step's ready times */
    esp_status (*costs)(void *user, esp_ctx *ctx, esp_plan_system *system, esp_plan_codec *codecs, uint32_t *n);
    bool (*excess)(void *user, esp_ctx *ctx, uint32_t tensor); /* whether the tensor's error or feedback is too large */
    double (*waiting)(void *user, esp_ctx *ctx);               /* share of the step after the last push */
} esp__auto_source;

/* A tensor's compression errors, as samples showed them. */
typedef struct esp__auto_tensor {
    double feedback_seen;  /* largest feedback so far; 0 if there was none */
    uint32_t samples_seen; /* esp_tensor_stats.samples at the last look */
    uint8_t level;         /* 1 + index of the codec that it fell back to; 255: none; 0: it did not */
    uint8_t bad;           /* consecutive bad samples */
} esp__auto_tensor;

typedef struct esp__autopilot {
    esp__auto_options opt;
    esp__auto_source source;
    int phase;
    uint64_t active, fp32; /* hashes of the strategy that the autopilot activated last, and of fp32 */
    uint32_t phase_steps, n_times;
    uint64_t times[ESP__AUTO_TIMES]; /* last step times of this phase */
    double sorted[ESP__AUTO_TIMES];
    uint64_t steps_ns, waiting_ns; /* sums over the phase: of step times, and of their parts after the last push */
    uint64_t waited_ns;            /* time that this step's exchanges waited for slower ranks */
    uint64_t spent_ns;             /* the autopilot's time in this phase or block, on the slowest rank */
    esp__auto_word mine, *all;     /* words of this rank and of all ranks */
    /* Over all ranks, at the last exchange: largest median and quartile distance, and smallest share of waiting. */
    double step_ns, spread_ns, waiting;
    uint32_t every; /* steps between exchanges while measuring and planning */
    /* used while measuring and planning */
    esp__calibration calibration;
    esp__calibration_probes probes;
    esp__calibration_trainer trainer;
    bool calibration_open, have_costs;
    uint64_t *ready, *ready_max; /* [ESP__AUTO_READY][n_tensors] ready times; those of the slowest rank */
    uint32_t n_ready;
    esp__auto_job *job; /* rank 0's planning */
    /* used while trying */
    esp__tournament tournament;
    char *texts[ESP__AUTO_CANDIDATES]; /* the candidates' strategies */
    char *won, won_name[ESP__AUTO_NAME];
    uint64_t won_hash;  /* of the last winner, whose text is `won` */
    bool forced, lossy; /* forced as in the job; whether lossy codecs are allowed */
    /* used while watching the active strategy */
    double reference_ns; /* its step time; 0 if it is unknown */
    uint32_t interval, over, under;
    uint64_t settled_step; /* training step of the last decision */
    uint32_t tournaments;  /* how often drift has begun one */
    /* Losses. The first three members are this rank's and need lanes.lock. */
    double losses[ESP__AUTO_LOSSES]; /* newest losses since they were cleared */
    uint32_t n_losses, bad_losses;
    esp__losses before_losses; /* losses before the change of strategy, or lower ones since */
    uint32_t risen;            /* consecutive checks that found a higher loss */
    int trust;
    esp__auto_tensor *tensors;
    char **described; /* [n_tensors] codec and option of each tensor whose description says to compress it, else NULL */
    uint8_t *bits, *all_bits; /* bit sets of the tensors whose error is too large, on this rank and on all ranks */
} esp__autopilot;

/* Returns NULL if the strategy is not auto. */
ESP__UNUSED static inline esp__autopilot *esp__autopilot_of(const esp_ctx *ctx) {
    return ctx->observers.self[ESP__OBSERVE_AUTO];
}

/* Whether the tensor's description names a codec or an option, so that auto does not change it. */
ESP__UNUSED static inline bool esp__auto_described(const esp_ctx *ctx, uint32_t tensor) {
    return ctx->model.tensors[tensor].codec_override || ctx->model.tensors[tensor].option_override;
}
/* Whether the unit is compressed, and not because a description says so. */
ESP__UNUSED static inline bool esp__auto_compresses(const esp_ctx *ctx, const esp__unit *u) {
    return esp__option_compresses(&u->option) && !esp__auto_described(ctx, u->place.first);
}

/* ---- options.c ---- */
/* Writes the trainer's optimizer, such as "adam:0.9", to `text`. */
ESP__FN const char *esp__auto_optimizer(const esp_ctx *ctx, char *text, size_t room);
ESP__FN esp_status esp__auto_options_read(const esp_ctx *ctx, const char *spec, esp__auto_options *o);
ESP__FN esp_status esp__auto_codecs_read(esp_ctx *ctx, const char *list, esp__auto_options *o);
/* Returns the opened codec with this spec, or NULL. */
ESP__FN const esp__codec *esp__auto_codec_of(const esp_ctx *ctx, const char *spec);
/* ---- measure.c ---- */
ESP__FN esp_status esp__auto_exchange(esp_ctx *ctx);
ESP__FN esp_status esp__auto_measure_open(esp_ctx *ctx);
ESP__FN void esp__auto_measure_begin(esp_ctx *ctx, bool again);
ESP__FN esp_status esp__auto_measure_step(esp_ctx *ctx);
/* ---- plan.c, candidates.c ---- */
ESP__FN esp_status esp__auto_plan_begin(esp_ctx *ctx);
ESP__FN bool esp__auto_plan_done(esp__autopilot *a);
/* Whether fp32 is active, and no strategy can bring the least gain: it can only shorten the part of a step after the
 * last push, and on some rank that part is too short. Valid after an exchange. */
ESP__FN bool esp__auto_hidden(const esp_ctx *ctx);
/* Whether codecs[n] has the codec. */
ESP__FN bool esp__auto_has(const esp_plan_codec *codecs, uint32_t n, const char *spec);
ESP__FN void esp__auto_job_free(esp_ctx *ctx, esp__auto_job *job);
ESP__FN esp_status esp__auto_candidates(esp__auto_job *job); /* runs on the planning thread */
/* ---- try.c ---- */
ESP__FN esp_status esp__auto_plan_step(esp_ctx *ctx);
ESP__FN esp_status esp__auto_try_step(esp_ctx *ctx, double ns);
/* Frees the candidates' texts, but keeps the winner's as `won`, if winner is one of them. */
ESP__FN void esp__auto_texts_free(esp_ctx *ctx, esp__autopilot *a, uint32_t winner);
/* ---- watch.c ---- */
ESP__FN esp_status esp__auto_watch_step(esp_ctx *ctx);
ESP__FN void esp__auto_settle(esp_ctx *ctx, double reference_ns);
ESP__FN uint32_t esp__auto_looks(const esp__autopilot *a); /* number of checks in opt.window steps, at least two */
/* ---- loss.c ---- */
/* Whether losses are clearly higher than before. If they are lower, sets *before to them. */
ESP__FN int esp__losses_risen(esp__losses *before, const esp__losses *now);
ESP__FN void esp__auto_loss_word(esp_ctx *ctx);
ESP__FN void esp__auto_loss_begin(esp_ctx *ctx);  /* clears all, so that later losses are compared with the next ones */
ESP__FN void esp__auto_loss_forget(esp_ctx *ctx); /* drops the newest ones */
ESP__FN void esp__auto_loss_before(esp_ctx *ctx);
ESP__FN esp_status esp__auto_loss_try(esp_ctx *ctx, bool *back);
ESP__FN esp_status esp__auto_loss_look(esp_ctx *ctx, bool *back);
/* ---- fallback.c ---- */
ESP__FN uint32_t esp__auto_excess(esp_ctx *ctx);
ESP__FN esp_status esp__auto_fall_back(esp_ctx *ctx, bool *changed);
ESP__FN double esp__auto_error_of(const esp_ctx *ctx, const char *spec);
ESP__FN const char *esp__auto_keep(const esp_ctx *ctx, uint32_t tensor);
/* ---- autopilot.c ---- */
ESP__FN void esp__auto_enter(esp_ctx *ctx, int phase);
ESP__FN esp_status esp__auto_set(esp_ctx *ctx, const char *text);
/* Logs a line on rank 0, at a level that users see by default. */
ESP__FN void esp__auto_say(const esp_ctx *ctx, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN void esp__auto_loss_reported(esp_ctx *ctx, void *self, double loss);
#endif
