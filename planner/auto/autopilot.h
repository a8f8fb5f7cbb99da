/* autopilot.h: what the autopilot's files share. Only the autopilot and tests include it. No file calls one that is
 * listed after it. */
#ifndef ESP__AUTOPILOT_H
#define ESP__AUTOPILOT_H
#include "espresso_impl/context/outer.h"
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"
#include "planner/builtin/builtin.h"
#include "planner/calibrate/between.h"
#include "planner/plan.h"

/* All ranks are in the same phase after the same step. */
enum {
    ESP__AUTO_MEASURE, /* times steps, and probes links and codecs between them */
    ESP__AUTO_MERGE,   /* groups of tensors are tried, if merge=N asks for them */
    ESP__AUTO_TRY,     /* candidates run in turns, and the slower ones are left out */
    ESP__AUTO_WATCH,   /* the winner runs; step times and compression errors are checked at intervals */
    ESP__AUTO_DONE,    /* in an outer context: the winner runs, and nothing is measured */
    ESP__AUTO_OFF      /* the program set a strategy, or there is only one rank */
};
enum { ESP__AUTO_CODECS = 8, ESP__AUTO_READY = 32, ESP__AUTO_LOSSES = 256, ESP__AUTO_NAME = 128 };
enum { ESP__TRUST_ALL, ESP__TRUST_ROUNDING, ESP__TRUST_NONE };

typedef struct esp__auto_options {
    double steps, window, cooldown, warmup, min_gain, drift, max_error; /* max_error 0: no limit */
    double merge, merge_gain;                                           /* merge 0: no search for groups */
    char codecs[ESP__AUTO_CODECS][ESP__SPEC_MAX];
    uint32_t n_codecs;
} esp__auto_options;

/* The last step times of a phase or candidate, in ns. */
enum { ESP__TRY_TIMES = 64 };
typedef struct esp__step_times {
    uint32_t n; /* number of all times, even older ones */
    double at[ESP__TRY_TIMES];
} esp__step_times;
ESP__UNUSED static inline void esp__step_times_add(esp__step_times *t, double ns) {
    t->at[t->n++ % ESP__TRY_TIMES] = ns;
}
ESP__UNUSED static inline uint32_t esp__step_times_held(const esp__step_times *t) {
    return t->n < ESP__TRY_TIMES ? t->n : ESP__TRY_TIMES;
}

/* What each rank sends when ranks exchange measurements. Ranks decide only by what all of them received, so all decide
 * the same. */
typedef struct esp__auto_word {
    uint64_t step_ns;         /* median step time: of the active candidate while trying, else of the phase */
    uint64_t spread_ns;       /* quartile distance of the same steps */
    uint64_t spent_ns;        /* time of probes since the previous exchange */
    double waiting;           /* share of the phase's time that was spent after the last push of a step */
    double loss, loss_spread; /* median and quartile distance of the finite losses */
    uint32_t losses, bad_losses;
    uint32_t excess; /* number of tensors whose compression error is too large */
    /* on rank 0: the number of candidates, and the bytes to send them, or 0 if there are none */
    uint32_t candidates;
    uint64_t bytes;
} esp__auto_word;

/* Statistics of the losses that all ranks reported. */
typedef struct esp__losses {
    uint64_t n;       /* number of reports */
    int32_t bad_rank; /* a rank whose loss was not finite; -1 if there is none */
    double median, spread;
} esp__losses;

/* ---- tournament.c: which candidate is the fastest ---------------------------------------------------------------- */
enum { ESP__AUTO_CANDIDATES = ESP__AUTO_CODECS + 5 };
enum { ESP__TRY_ROUNDS = 48, ESP__TRY_OUTER = 3 }; /* most rounds; in an outer context */
typedef struct esp__auto_candidate {
    char name[ESP__AUTO_NAME];
    double predicted_ns; /* of a step, before it ran */
    double slower;       /* steps to the same loss with its codecs, relative to fp32 */
    double loss;         /* grows with the mean compression error; 0 for fp32 */
    double ns;           /* measured step time, the same on all ranks; 0: it never ran */
    uint32_t n;          /* number of its steps in this tournament that count */
    uint32_t ran;        /* number of all its steps in this tournament */
    bool out;
    /* its block in each round: the number of steps that count, 0 if there was none, and their time */
    uint8_t steps[ESP__TRY_ROUNDS + 1];
    double block[ESP__TRY_ROUNDS + 1];
} esp__auto_candidate;

/* A tournament begins with zeros, candidates that have name, predicted_ns, slower and loss, and the index of the active
 * one; if its steps were just measured, it also has ns. */
typedef struct esp__tournament {
    esp__auto_candidate at[ESP__AUTO_CANDIDATES];
    uint32_t n, now;
    /* A candidate that loses more to compression than another wins only if it is faster by this share. */
    double least_gain;
    bool more; /* further candidates will come; until then each one runs at most one block of steps */
    uint32_t round, left;
    bool skip;             /* the next step does not count: the strategy has changed */
    esp__step_times times; /* of this block, on this rank */
    double spread;         /* of single steps' times, relative to them */
    double within, blocks; /* the sum of the blocks' quartile distances, each relative to its time, and their number */
    uint32_t steps;        /* steps of the tournament so far */
    uint32_t inner;   /* 0, or steps are rounds of an outer context, and times are of one with this many inner steps */
    bool ended_early; /* trying had cost too much */
} esp__tournament;

/* Whether `steps` steps, of which ranks wait for communication for the share `waiting`, have cost so much time that
 * other strategies must be tried now. */
ESP__FN bool esp__measured_enough(uint32_t steps, double waiting);
/* Returns the candidate for the first step of all, if times were predicted as if computing took none: the fastest if it
 * is far faster than candidate 0, else 0. */
ESP__FN uint32_t esp__tournament_first(const esp__tournament *t);
/* Stores a step's time on this rank. Returns whether the block of steps is over. */
ESP__FN bool esp__tournament_step(esp__tournament *t, double ns);
/* Call it after a block of steps, with median and quartile distance of the steps' times, the same on all ranks. */
ESP__FN void esp__tournament_block(esp__tournament *t, double ns, double spread_ns);
/* Chooses the candidate that runs the next block of steps. Returns its index, or -1 if the tournament is over, or has
 * to wait for more candidates. */
ESP__FN int esp__tournament_next(esp__tournament *t);
/* Returns the winner, or t->n if all candidates are out. */
ESP__FN uint32_t esp__tournament_winner(const esp__tournament *t);
/* Adds each candidate's times and why the winner won. */
ESP__FN void esp__tournament_text(const esp__tournament *t, esp__text *text);

/* ---- merge.c: MergeComp's search on measured steps --------------------------------------------------------------- */
enum { ESP__GROUPING_MOST = 8, ESP__GROUPING_BLOCK = 3 }; /* most groups, and steps of a try */
typedef struct esp__groups {
    uint32_t n, first[ESP__GROUPING_MOST + 1]; /* group k has tensors [first[k], first[k + 1]) */
    double ns;                                 /* of a step */
} esp__groups;

typedef struct esp__grouping {
    const char *codec;                /* NULL: it has not begun */
    uint32_t most;                    /* groups */
    double least_gain, before_ns;     /* the share that one group more must save, and the best time without it */
    esp__groups trial, best, fastest; /* the active one, the best with as many groups, and the best of all */
    uint32_t far, move, left;         /* how far borders move, which one moves next, and tries left */
} esp__grouping;
/* Begins with a single group. `codec` stays. */
ESP__FN void esp__grouping_begin(const esp_ctx *ctx, esp__grouping *m, uint32_t most, double least_gain);
/* A step with m->trial took `ns`. Returns whether there is another m->trial to try. */
ESP__FN bool esp__grouping_next(const esp_ctx *ctx, esp__grouping *m, double ns);
/* Writes the strategy "merged:..." of these groups. */
ESP__FN void esp__grouping_text(const esp__groups *g, const char *codec, char *text, size_t room);

/* ---- planning ---------------------------------------------------------------------------------------------------- */
/* Rank 0's candidates, and what the planner needs to make them. */
typedef struct esp__auto_job {
    esp_ctx *ctx;
    esp_plan_model model;
    esp_plan_tensor *tensors;
    esp_plan_system system;
    /* Codecs that new strategies may use for any tensor, and all measured ones. */
    esp_plan_codec codecs[ESP__AUTO_CODECS], all_codecs[ESP__CALIBRATION_CODECS];
    uint32_t n_codecs, n_all_codecs;
    double slowest; /* new strategies use no codec with which training needs more steps to the same loss than this */
    uint32_t n_described_units;                          /* number of tensors whose description says to compress */
    const esp__effect *effects[ESP__CALIBRATION_CODECS]; /* for each of all_codecs */
    esp_plan_config config;
    /* result */
    esp__auto_candidate candidates[ESP__AUTO_CANDIDATES];
    struct esp__auto_proposal {
        esp_plan *plan;
        const char *text;
        char effect[256];
    } of[ESP__AUTO_CANDIDATES];
    uint32_t n;
    char failed[512]; /* why there are no candidates; else "" */
} esp__auto_job;

/* Where costs and times come from: they are measured where a function is NULL. Tests set functions of their own. */
typedef struct esp__auto_source {
    void *user;
    uint64_t (*step_ns)(void *user, esp_ctx *ctx); /* time of the last step */
    void (*ready)(void *user, esp_ctx *ctx, uint64_t *out);
    esp_status (*costs)(void *user, esp_ctx *ctx, esp_plan_system *system, esp_plan_codec *codecs, uint32_t *n);
    /* Returns whether the tensor's compression error is too large. */
    bool (*excess)(void *user, esp_ctx *ctx, uint32_t tensor);
    double (*waiting)(void *user, esp_ctx *ctx);
} esp__auto_source;

typedef struct esp__auto_tensor {
    /* Largest relative size of the residual that was sampled, or 0. */
    double feedback_seen;
    uint32_t samples_seen;
    /* If compression errors were too large: 1 + index of the gentler codec that the tensor got, or 255 if it is not
     * compressed. Else 0. */
    uint8_t level;
    uint8_t bad; /* number of samples in a row whose error was too large */
} esp__auto_tensor;

typedef struct esp__autopilot {
    esp__auto_options opt;
    esp__auto_source source;
    int phase;
    uint64_t active, fp32; /* hashes of two strategies: the one that the autopilot activated last, and fp32 */
    uint32_t phase_steps;
    uint32_t left;         /* steps until ranks exchange measurements again, except while trying */
    esp__step_times times; /* of this phase */
    double sorted[ESP__AUTO_LOSSES];
    /* Sums over the phase: of step times, and of the parts of steps after the last push. */
    uint64_t steps_ns, waiting_ns;
    uint64_t spent_ns; /* time of probes since measuring began, on the slowest rank */
    esp__auto_word mine, *all;
    /* Largest median step time of all ranks, and largest quartile distance; the smallest share of time after the last
     * push. */
    double step_ns, spread_ns, waiting;
    esp__calibration calibration;
    esp__calibration_probes probes;
    esp__calibration_trainer trainer;
    /* `calibrating`: from the begin of measuring to that of planning, steps and probes add to the calibration. */
    bool calibrating;
    /* [ESP__AUTO_READY][n_tensors] times from a step's begin to each push: on this rank, and on the slowest one. */
    uint64_t *ready, *ready_max;
    uint32_t n_ready;
    esp__auto_job *job; /* rank 0's planning */
    /* After a tournament, the winner is active and its index is tournament.now. The texts are in `received`. */
    esp__tournament tournament;
    const char *texts[ESP__AUTO_CANDIDATES];
    esp__grouping merge;
    esp__auto_candidate *received;
    /* `forced`: a compression error was too large, so the active strategy must be replaced. `lossy`: lossy codecs are
     * allowed. */
    bool forced, lossy;
    /* used while watching the active strategy */
    double reference_ns;
    /* A change of step times or losses counts if this number of checks in a row find it. */
    uint32_t checks;
    uint32_t over, under;
    uint64_t settled_step; /* training step of the last decision */
    uint32_t tournaments;  /* number of tournaments that began because step times had changed */
    /* Reported losses. Use of losses, n_losses and bad_losses needs lanes.lock. */
    double losses[ESP__AUTO_LOSSES];
    uint32_t n_losses, bad_losses;
    esp__losses before_losses; /* losses of the former strategy, or of the active one if they are lower */
    uint32_t risen;            /* consecutive checks that found a higher loss */
    int trust;
    esp__auto_tensor *tensors;
    char **described; /* [n_tensors] codec and option of each tensor whose description says to compress it, else NULL */
    uint8_t *bad, *all_bad; /* for each tensor whether its error is too large, on this rank and on all ranks */
} esp__autopilot;

/* Returns NULL if the strategy is not auto. */
ESP__UNUSED static inline esp__autopilot *esp__autopilot_of(const esp_ctx *ctx) {
    return ctx->observers.self[ESP__OBSERVE_AUTO];
}

/* Returns whether the tensor's description names a codec or an option, so that strategy auto does not change it. */
ESP__UNUSED static inline bool esp__auto_described(const esp_ctx *ctx, uint32_t tensor) {
    return ctx->model.tensors[tensor].codec_override || ctx->model.tensors[tensor].option_override;
}
/* Returns whether the tensor or group is compressed, and not because its description says so. */
ESP__UNUSED static inline bool esp__auto_compresses(const esp_ctx *ctx, const esp__unit *u) {
    return esp__option_compresses(&u->option) && !esp__auto_described(ctx, u->place.first);
}

/* ---- options.c ---- */
#define esp__auto_say(ctx, ...) esp__say(ctx, "autopilot", __VA_ARGS__)
/* Writes the trainer's optimizer, such as "adam:0.9", to `text`. */
ESP__FN const char *esp__auto_optimizer(const esp_ctx *ctx, char *text, size_t room);
ESP__FN esp_status esp__auto_options_read(const esp_ctx *ctx, const char *spec, esp__auto_options *o);
ESP__FN esp_status esp__auto_codecs_read(esp_ctx *ctx, const char *list, esp__auto_options *o);
/* Returns the opened codec with this spec, or NULL. */
ESP__FN const esp__codec *esp__auto_codec_of(const esp_ctx *ctx, const char *spec);
/* ---- fallback.c ---- */
ESP__FN uint32_t esp__auto_excess(esp_ctx *ctx);
ESP__FN esp_status esp__auto_fall_back(esp_ctx *ctx, bool *changed);
ESP__FN double esp__auto_error_of(const esp_ctx *ctx, const char *spec);
ESP__FN const char *esp__auto_keep(const esp_ctx *ctx, uint32_t tensor);
/* ---- loss.c ---- */
ESP__FN void esp__auto_loss_reported(esp_ctx *ctx, void *self, double loss);
/* Returns whether losses are clearly higher than before the last change of strategy. If they are lower, sets *before to
 * them. */
ESP__FN int esp__losses_risen(esp__losses *before, const esp__losses *now);
ESP__FN void esp__auto_loss_word(esp_ctx *ctx);
/* Forgets all losses, so that the next ones become the reference for later ones. */
ESP__FN void esp__auto_loss_begin(esp_ctx *ctx);
ESP__FN void esp__auto_loss_forget(esp_ctx *ctx); /* drops the newest ones */
ESP__FN void esp__auto_loss_before(esp_ctx *ctx);
/* Call it when ranks have exchanged losses. Returns whether to return to fp32, and if so logs why. */
ESP__FN bool esp__auto_loss_rose(esp_ctx *ctx);
/* ---- measure.c ---- */
/* Ranks exchange their words, and each computes the same step_ns and waiting. */
ESP__FN esp_status esp__auto_exchange(esp_ctx *ctx);
ESP__FN esp_status esp__auto_measure_open(esp_ctx *ctx);
/* Forgets times. If `again`, links and codecs are measured anew, too. */
ESP__FN void esp__auto_measure_begin(esp_ctx *ctx, bool again);
ESP__FN void esp__auto_measure_end(esp_ctx *ctx); /* steps and probes no longer add to the calibration */
/* Stores when gradients were ready in the step that ended, unless the step does not count. */
ESP__FN void esp__auto_ready(esp_ctx *ctx);
/* Adds the step that ended to the calibration, and runs some probes. All ranks call it after an exchange. */
ESP__FN esp_status esp__auto_calibrate(esp_ctx *ctx);
/* While calibrating, sets what the planner needs besides costs of links and codecs. All ranks call it. */
ESP__FN esp_status esp__auto_calibrated(esp_ctx *ctx);
/* ---- candidates.c ---- */
/* Makes rank 0's candidates that need no search. Steps of the active strategy took `ns`, or 0 if none was measured. */
ESP__FN esp__auto_job *esp__auto_job_open(esp_ctx *ctx, double ns);
/* Adds the planner's plans, and predicts again the candidates that have not run. */
ESP__FN void esp__auto_job_plan(esp__auto_job *job);
ESP__FN void esp__auto_job_free(esp_ctx *ctx, esp__auto_job *job);
/* ---- phases.c ---- */
ESP__FN void esp__auto_enter(esp_ctx *ctx, int phase);
/* Begins to watch the active strategy, whose steps take reference_ns. */
ESP__FN void esp__auto_settle(esp_ctx *ctx, double reference_ns);
/* Begins to measure the active strategy. */
ESP__FN void esp__auto_measure(esp_ctx *ctx, bool again);
/* Call it before the first step: activates another strategy for it if fp32 is predicted to be far slower. */
ESP__FN esp_status esp__auto_first(esp_ctx *ctx);
/* Ranks exchange measurements after a block of steps, and decide what to do next. */
ESP__FN esp_status esp__auto_block(esp_ctx *ctx);
ESP__FN void esp__auto_forget(esp_ctx *ctx, esp__autopilot *a); /* forgets the last tournament */
#endif
