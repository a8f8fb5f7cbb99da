/* outer.h: what the files of outer contexts share: outer.c, and outer_open.c, outer_state.c, outer_choose.c and
 * outer_late.c, which are listed after it. */
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
    bool automatic;  /* strategy auto is active, or was until it had chosen */
    bool tries;      /* strategy auto tries strategies in these rounds */
    double alone_ns; /* of an inner step, for strategy auto: once measured, it stays */
    bool early;      /* this round does not count: it is the first one, or begins or ends within a round */
    uint32_t n, fragments[2];
    esp__outer_times at[2][ESP__OUTER_TIMED];
    uint64_t begin_ns, waited_ns, pushed_ns, exchange_ns, gather_ns;      /* of this round */
    void (*times)(void *user, const esp_ctx *ctx, esp__outer_times *out); /* set by tests, which make up times */
    void *user;
} esp__outer_timer;

typedef struct esp__outer_tensor {
    void *params; /* the caller's */
    float *anchor;
    /* The rank's part, whose mean it gets and whose anchor it updates: n elements from `begin` on; without ESP_SHARD
     * the whole tensor. The momentum has as many. */
    uint64_t begin, n;
    float *momentum;
    void *pushed; /* anchor - params, then its mean; in esp__outer.room */
    bool whole;   /* the parameters themselves were pushed */
    /* What outer_late.c does to the parameters in the next call: ESP__OUTER_MOVE and so on, and how far it moves them.
     */
    uint32_t due;
    float *move;
} esp__outer_tensor;
enum {
    ESP__OUTER_MOVE = 1,  /* params += move, and so keep their difference from the anchor */
    ESP__OUTER_MIX = 2,   /* params = alpha * params + (1 - alpha) * anchor */
    ESP__OUTER_RETURN = 4 /* params = anchor */
};

/* ---- outer_late.c: ranks that push a fragment too late ---- */
typedef struct esp__outer_late {
    uint64_t window_ns; /* 0: late ranks hold up the others */
    /* Held by the thread that pushes and applies: the caller's, in esp_outer_step and esp_outer_sync, or the late
     * thread. It protects the members below up to `status`. */
    pthread_mutex_t lock;
    uint64_t pushes;   /* of fragments, in all rounds since ranks were lost or joined */
    bool stepped;      /* esp_outer_step was called since esp_outer_sync; within that, on any rank */
    bool armed;        /* the late thread may act: no other call of the library is under way */
    bool acts;         /* the late thread does */
    bool misses;       /* this rank pushes zeros for the fragment under way */
    bool missed;       /* it did since the last call, whose inner step therefore belongs to a turn that is over */
    esp_status status; /* of the late thread, with the error's text */
    char text[ESP__ERROR_MAX];
    /* News of other ranks, under `news`. */
    pthread_mutex_t news;
    pthread_cond_t changed;
    uint64_t begun, begun_ns; /* how many pushes some rank has made; when the last of them was heard of */
    uint64_t handled;         /* pushes for which the late thread need not wait any more */
    bool quit, has_thread;
    pthread_t thread;
} esp__outer_late;

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
    esp__outer_late late;
    uint32_t *first; /* [fragments + 1] fragment f has tensors first[f] to first[f + 1] - 1 */
    esp__outer_timer timer;
    esp__outer_tensor *tensors; /* [n_tensors], NULL before esp_start */
    uint8_t *room[ESP__DEVICES_MAX];
    uint64_t room_bytes[ESP__DEVICES_MAX];
} esp__outer;

/* Size of a tensor's parameters. */
static inline uint64_t esp__outer_bytes(const esp__tensor *t) { return t->count * esp_dtype_bytes(t->dtype); }
/* Whether the user gave limits, so that the library chooses. */
static inline bool esp__outer_limits(const esp__outer *o) {
    return o->low[0] != o->high[0] || o->low[1] != o->high[1] || o->low[2] != o->high[2];
}
/* Whether some rounds are timed before they get the numbers with which training goes on. */
static inline bool esp__outer_chooses(const esp__outer *o) { return o->timer.automatic || esp__outer_limits(o); }
/* Changes a round's numbers between rounds. If it changed the fragments, activate a strategy. */
ESP__FN void esp__outer_shape(esp_ctx *ctx, uint32_t every, uint32_t fragments, uint32_t delay);
ESP__FN void esp__outer_divide(const esp_ctx *ctx, uint32_t fragments, uint32_t *first);
/* Begins to time rounds. If it changed the fragments, activate a strategy. */
ESP__FN void esp__outer_timer_begin(esp_ctx *ctx);
/* Strategy auto begins to try strategies. Until it ends, rounds have no delay, and the fewest fragments. */
ESP__FN void esp__outer_try(esp_ctx *ctx);
ESP__FN void esp__outer_try_end(esp_ctx *ctx);
/* Call it when a round ends. Returns the time of the shortest round that the limits allow, with this round's exchange.
 */
ESP__FN double esp__outer_tried_ns(const esp_ctx *ctx);
/* Call it at the end of a round. When enough rounds were timed, all ranks choose. Collective. */
ESP__FN esp_status esp__outer_timed(esp_ctx *ctx);
/* Activates the active strategy again, after a change of fragments. Collective. */
ESP__FN esp_status esp__outer_activate(esp_ctx *ctx);

/* ---- outer.c, for outer_late.c ---- */
/* Pushes fragment f; waits for its mean, and applies it. */
ESP__FN esp_status esp__outer_push(esp_ctx *ctx, uint32_t f, esp_stream stream);
ESP__FN esp_status esp__outer_apply(esp_ctx *ctx, esp_stream stream);
ESP__FN esp_status esp__outer_mix(esp_ctx *ctx, uint32_t id, float alpha);
/* Returns the inner step of a round, from 1, at which fragment f is pushed. */
ESP__FN uint32_t esp__outer_turn(const esp__outer *o, uint32_t f);

/* ---- outer_late.c; without a window, these do nothing ---- */
ESP__FN esp_status esp__outer_late_open(esp_ctx *ctx);
ESP__FN void esp__outer_late_close(esp_ctx *ctx);
/* Begin and end a call that pushes or applies. The former may fail, and then the latter is not called. */
ESP__FN esp_status esp__outer_late_enter(esp_ctx *ctx, esp_stream stream);
ESP__FN void esp__outer_late_leave(esp_ctx *ctx);
/* At the beginning of esp_outer_sync, waits until all ranks are there, and brings them to the same place in a round. */
ESP__FN esp_status esp__outer_late_meet(esp_ctx *ctx, esp_stream stream);
/* Tells the other ranks that this one has pushed the fragment whose turn it is. */
ESP__FN void esp__outer_late_tell(esp_ctx *ctx);
/* Whether others have pushed the next fragment for longer than the window. */
ESP__FN bool esp__outer_late_called(const esp_ctx *ctx);
/* Before and after an outer update of a fragment which this rank has missed. */
ESP__FN esp_status esp__outer_late_moves(esp_ctx *ctx, uint32_t id, bool after);
/* Keeps the late thread from acting until the next call of esp_outer_step or esp_outer_sync. */
ESP__FN void esp__outer_late_pause(esp_ctx *ctx);
/* Forgets what other ranks pushed. */
ESP__FN void esp__outer_late_restart(esp_ctx *ctx);
#endif
