/* dispatch.c: measures per-op overhead: starting an op, waking threads, waiting for the last rank. Compares a few
 * steps with predictions that leave this overhead out. Must not know how steps are run.
 * Per-op overhead matters only on a busy link, where it accumulates. On an idle link it delays one op, and other
 * work mostly hides the delay. So a link's overhead is that of ops that queued. Queued ops of all sizes count: where
 * ranks share a link, a small op waits for another rank's large one, and the large one then takes less time than
 * alone. */
#include "espresso_impl/base/quantile.h"
#include "tools/replay/replay.h"

#define REPLAY_SMALL_OP_NS 1e6 /* longer ops that did not queue are ignored: other effects hide their overhead */
enum {
    REPLAY_QUEUED_MIN = 4,        /* with fewer queued ops the mean is unreliable   */
    REPLAY_LARGE_BYTES = 64 << 10 /* from here on, memory decides an op's time inside a machine */
};
#define REPLAY_SLOWER_MOST 8.0

/* The lane to which an event's overhead counts. Of two lanes it is the one between machines. */
static int replay_lane(const esp_plan_event *e) {
    int lane = 0;
    for (int l = 0; l < ESP__LANES; l++)
        if (e->lanes >> l & 1) lane = l;
    return lane;
}

static int replay_is_link(int lane) { return lane == ESP__LANE_INTRA || lane == ESP__LANE_INTER; }

static int replay_is_large(const esp_plan_event *e) {
    return e->kind == ESP_PLAN_COLLECTIVE && e->lanes == 1u << ESP__LANE_INTRA && e->bytes >= REPLAY_LARGE_BYTES;
}

/* When the event could have begun, by the measured times: when its unit's ops before it and its lane were done.
 * *queued: the lane was the later of the two. */
static uint64_t replay_could_begin(const plan_made *m, const esp_plan_event *at, uint32_t i, int *queued) {
    const esp_plan_unit *u = &m->units[m->events[i].unit];
    uint64_t ready = 0;
    *queued = 0;
    for (uint32_t k = 0; k < m->n_events; k++) {
        const esp_plan_event *e = &m->events[k];
        if (k == i || at[k].end_ns == UINT64_MAX || at[k].start_ns > at[i].start_ns) continue;
        const int backward = e->kind == ESP_PLAN_BACKWARD;
        const int mine =
            backward ? e->unit >= u->first && e->unit < u->first + u->n_tensors : e->unit == m->events[i].unit;
        const int same_lane = !backward && (e->lanes & m->events[i].lanes) != 0;
        if ((mine || (same_lane && at[k].start_ns < at[i].start_ns)) && at[k].end_ns > ready) {
            ready = at[k].end_ns;
            *queued = !mine;
        }
    }
    return ready < at[i].end_ns ? ready : at[i].end_ns;
}

static void replay_dispatch_add(replay_dispatch *d, const replay_strategy *s) {
    const plan_made *m = &s->predicted;
    esp_plan_event *at = replay_medians(s);
    for (uint32_t i = 0; i < m->n_events; i++) {
        const esp_plan_event *e = &m->events[i];
        const double takes = (double)(e->end_ns - e->start_ns);
        int queued;
        if (e->kind == ESP_PLAN_BACKWARD || at[i].end_ns == UINT64_MAX) continue;
        const double more = (double)(at[i].end_ns - replay_could_begin(m, at, i, &queued)) - takes;
        const int lane = replay_lane(e), large = replay_is_large(e);
        if (large && d->n_slower < REPLAY_SLOWER_MAX)
            d->slower[d->n_slower++] = (double)(at[i].end_ns - at[i].start_ns) / (takes + 1);
        if (queued) d->queued[lane] += more, d->n_queued[lane]++, d->queued_large += large ? takes : 0;
        if (takes <= REPLAY_SMALL_OP_NS && !(queued && replay_is_link(lane)))
            d->small[lane] += more, d->n_small[lane]++, d->small_large += large ? takes : 0;
    }
    free(at);
}

/* How much longer large ops inside a machine take in a step than in a microbenchmark. In a step their data is in no
 * cache, and cores were asleep. */
static double replay_slower(replay_dispatch *d) {
    const double x = d->n_slower >= REPLAY_QUEUED_MIN ? esp__median(d->slower, d->n_slower) : 1;
    return x < 1 ? 1 : x > REPLAY_SLOWER_MOST ? REPLAY_SLOWER_MOST : x;
}

/* Mean overhead by lane: mean times number of ops then gives the ops' total overhead. */
static void replay_dispatch_take(replay_dispatch *d, double out[ESP__LANES]) {
    const double slower = replay_slower(d) - 1; /* this part is in the cost tables already */
    d->queued[ESP__LANE_INTRA] -= slower * d->queued_large;
    d->small[ESP__LANE_INTRA] -= slower * d->small_large;
    for (int l = 0; l < ESP__LANES; l++) {
        out[l] = d->n_small[l] ? d->small[l] / d->n_small[l] : 0;
        if (replay_is_link(l) && d->n_queued[l] >= REPLAY_QUEUED_MIN) out[l] = d->queued[l] / d->n_queued[l];
        if (out[l] < 0) out[l] = 0;
    }
}
