/* outer.h: what the files of outer contexts share: outer.c, and outer_choose.c, which is listed after it. */
#ifndef ESP__OUTER_H
#define ESP__OUTER_H
#include "espresso_impl/context/context.h"

/* ---- outer_choose.c: chooses every, fragments and delay within the user's limits ---- */
enum { ESP__OUTER_TIMED = 3 }; /* rounds of a division into fragments that are timed */
/* Times of a round: of an inner step; of the exchange of all fragments; the part of it that is no wait. */
typedef struct esp__outer_times {
    double alone_ns, exchange_ns, busy_ns;
} esp__outer_times;
/* Times rounds without a delay, after a first one. At first they have the fewest fragments that are allowed, then the
 * most. */
typedef struct esp__outer_timer {
    bool on;
    bool early; /* this round does not count: it is the first one, or begins or ends within a round */
    uint32_t n, fragments[2];
    esp__outer_times at[2][ESP__OUTER_TIMED];
    uint64_t begin_ns, waited_ns, pushed_ns, exchange_ns;                 /* of this round */
    void (*times)(void *user, const esp_ctx *ctx, esp__outer_times *out); /* set by tests, which make up times */
    void *user;
} esp__outer_timer;

typedef struct esp__outer_tensor {
    void *params; /* the caller's */
    float *anchor, *momentum;
    void *pushed; /* anchor - params, then its mean; in esp__outer.room */
    bool whole;   /* the parameters themselves were pushed */
} esp__outer_tensor;

typedef struct esp__outer {
    uint32_t flags, every, fragments, delay;
    /* Limits of every, fragments and delay. Where they differ, the library chooses. */
    uint32_t low[3], high[3];
    float alpha, lr, momentum;
    float check;                    /* 0, or how many times the others' median a rank's difference may be as long */
    bool nesterov, compared, calls; /* all ranks' anchors were compared; the library itself pushes */
    bool joined;                    /* this rank has the anchors of a job that it joined */
    uint32_t at;                    /* inner steps of this round */
    uint32_t pushed, applied;       /* fragments of this round */
    bool outlier;                   /* this rank pushed zeros for the fragment under way, as it failed the check */
    uint32_t outliers;              /* how many ranks did */
    uint32_t left;                  /* inner steps until the fragment that is under way is applied */
    uint32_t *first;                /* [fragments + 1] fragment f has tensors first[f] to first[f + 1] - 1 */
    esp__outer_timer timer;
    esp__outer_tensor *tensors; /* [n_tensors], NULL before esp_start */
    uint8_t *room[ESP__DEVICES_MAX];
    uint64_t room_bytes[ESP__DEVICES_MAX];
} esp__outer;

/* Whether the user gave limits, so that the library chooses. */
static inline bool esp__outer_chooses(const esp__outer *o) {
    return o->low[0] != o->high[0] || o->low[1] != o->high[1] || o->low[2] != o->high[2];
}
/* Changes a round's numbers between rounds. If it changed the fragments, activate a strategy. */
ESP__FN void esp__outer_shape(esp_ctx *ctx, uint32_t every, uint32_t fragments, uint32_t delay);
ESP__FN void esp__outer_divide(const esp_ctx *ctx, uint32_t fragments, uint32_t *first);
/* Begins to time rounds. If it changed the fragments, activate a strategy. */
ESP__FN void esp__outer_timer_begin(esp_ctx *ctx);
/* Call it at the end of a round. When enough rounds were timed, all ranks choose. Collective. */
ESP__FN esp_status esp__outer_timed(esp_ctx *ctx);
/* Activates the active strategy again, after a change of fragments. Collective. */
ESP__FN esp_status esp__outer_activate(esp_ctx *ctx);
#endif
