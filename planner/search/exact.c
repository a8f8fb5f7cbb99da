/* exact.c: finds the optimal plan for a few tensors or groups by branch and bound: over their options and, for each
 * choice of options, over the orders of ops (Giffler, Thompson 1960). A branch ends if the work that is left for one
 * processor, link, tensor or group makes it no better than the best plan. After a limited number of nodes the search
 * stops with the best plan so far. */
#include "planner/search/search.h"

enum { ESP__SMALL_UNITS = 6, ESP__SMALL_JOBS = ESP__SMALL_UNITS + 1 };
enum { ESP__SMALL_OPS = ESP__SMALL_UNITS * (ESP__MAX_OPS + 1), ESP__SMALL_TAKES = ESP__LANES + ESP__LIMITS };

/* A job is a list of ops that run one after the other. Job 0 is the backward pass; each other job has the ops of one
 * tensor or group. */
typedef struct esp__small_job {
    const esp__plan_op *ops;
    uint32_t n, next;
    uint32_t after; /* how many backward ops come first */
    uint64_t ready, rest;
} esp__small_job;

typedef struct esp__small {
    esp__problem *p;
    esp__schedule *d;
    const esp__candidates *candidates[ESP__SMALL_UNITS];
    const esp__path *paths[ESP__SMALL_UNITS];
    uint64_t nodes, nodes_max, beat; /* beat: plans as long or longer are not looked for */
    uint32_t gain;                   /* the least gain is the makespan / gain; 0: none */
    uint32_t n, placed;
    /* what the last tensors or groups take at least, and the limits */
    double least[ESP__SMALL_UNITS + 1][ESP__SMALL_TAKES], may[ESP__LIMITS];
    esp__small_job jobs[ESP__SMALL_JOBS];
    esp__plan_op backward[ESP__SMALL_UNITS];
    uint64_t free_at[ESP__LANES], left[ESP__LANES]; /* of each processor and link: when it is free, work left */
    uint32_t sequence[ESP__SMALL_OPS];
} esp__small;

/* ---- orders ---------------------------------------------------------------------------------------------------- */
static uint64_t esp__small_start(const esp__small *s, const esp__small_job *job) {
    if (job->next == job->n || s->jobs[0].next < job->after) return UINT64_MAX;
    return esp__lanes_free(s->free_at, job->ops[job->next].lanes, job->ready);
}

static bool esp__small_hopeless(const esp__small *s) {
    const uint64_t best = s->beat;
    for (uint32_t l = 0; l < ESP__LANES; l++)
        if (s->left[l] && s->free_at[l] + s->left[l] >= best) return true;
    for (uint32_t j = 0; j <= s->n; j++) {
        const uint64_t start = esp__small_start(s, &s->jobs[j]);
        if ((start < UINT64_MAX ? start : s->jobs[j].ready) + s->jobs[j].rest >= best) return true;
    }
    return false;
}

static void esp__small_beat(esp__small *s) { s->beat = s->d->makespan - (s->gain ? s->d->makespan / s->gain : 0); }

static void esp__small_keep(esp__small *s) {
    esp__schedule *d = s->d;
    memcpy((void *)d->paths, (const void *)s->paths, s->n * sizeof *d->paths);
    esp__sequence_room(s->p, d);
    memcpy(d->sequence, s->sequence, d->n_sequence * sizeof *d->sequence);
    d->makespan = 0;
    for (uint32_t j = 0; j <= s->n; j++)
        if (s->jobs[j].ready > d->makespan) d->makespan = s->jobs[j].ready;
    esp__small_beat(s);
}

static void esp__small_orders(esp__small *s);

/* Sets when those tensors or groups are ready that the last backward op completes. */
static void esp__small_ready(esp__small *s, uint64_t ready) {
    for (uint32_t u = 1; u <= s->n; u++)
        if (s->jobs[u].after == s->jobs[0].next) s->jobs[u].ready = ready;
}

/* Runs the next op of job j, and then tries all orders of the ops that are left. */
static void esp__small_place(esp__small *s, uint32_t j, uint64_t start) {
    esp__small_job *job = &s->jobs[j];
    const esp__plan_op *op = &job->ops[job->next];
    const uint64_t ready = job->ready;
    uint64_t free_at[ESP__LANES], left[ESP__LANES];
    memcpy(free_at, s->free_at, sizeof free_at), memcpy(left, s->left, sizeof left);
    esp__lanes_take(s->free_at, op->lanes, start, &op->time);
    for (uint32_t l = 0; l < ESP__LANES; l++)
        if (op->lanes >> l & 1u) s->left[l] -= esp__kept(&op->time, l);
    job->ready = start + op->time.ns, job->rest -= op->time.ns, job->next++;
    if (!j) esp__small_ready(s, job->ready);
    s->sequence[s->placed++] = j ? j - 1 : ESP__NEXT_BACKWARD;
    esp__small_orders(s);
    s->placed--;
    if (!j) esp__small_ready(s, s->p->ready[job->next - 1]); /* at the earliest, as before */
    job->ready = ready, job->rest += op->time.ns, job->next--;
    memcpy(s->free_at, free_at, sizeof free_at), memcpy(s->left, left, sizeof left);
}

/* Tries as the next op the one that would end first, and all ops on the same processors and links that could start
 * before that end. */
static void esp__small_orders(esp__small *s) {
    uint64_t start[ESP__SMALL_JOBS], soonest = UINT64_MAX;
    uint32_t lanes = 0;
    s->nodes += 8; /* an order takes longer to extend than a choice of options */
    if (s->nodes >= s->nodes_max || esp__small_hopeless(s)) return;
    for (uint32_t j = 0; j <= s->n; j++) {
        const esp__small_job *job = &s->jobs[j];
        start[j] = esp__small_start(s, job);
        if (start[j] == UINT64_MAX || start[j] + job->ops[job->next].time.ns >= soonest) continue;
        soonest = start[j] + job->ops[job->next].time.ns, lanes = job->ops[job->next].lanes;
    }
    if (soonest == UINT64_MAX) esp__small_keep(s);
    for (uint32_t j = 0; j <= s->n; j++) {
        if (start[j] == UINT64_MAX) continue;
        const esp__plan_op *op = &s->jobs[j].ops[s->jobs[j].next];
        if (op->lanes & lanes && (start[j] < soonest || start[j] + op->time.ns == soonest))
            esp__small_place(s, j, start[j]);
    }
}

static esp__small_job esp__small_job_of(esp__small *s, const esp__plan_op *ops, uint32_t n, uint32_t after) {
    esp__small_job job = {.ops = ops, .n = n, .after = after};
    for (uint32_t k = 0; k < n; k++) {
        job.rest += ops[k].time.ns;
        for (uint32_t l = 0; l < ESP__LANES; l++)
            if (ops[k].lanes >> l & 1u) s->left[l] += esp__kept(&ops[k].time, l);
    }
    return job;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */
/* Writes how long the option occupies each processor and link, and what it uses of each limit. */
static void esp__small_takes(const esp__small *s, uint32_t u, uint32_t x, double takes[ESP__SMALL_TAKES]) {
    memcpy(takes, s->candidates[u]->times[x], ESP__LANES * sizeof *takes);
    memset(takes + ESP__LANES, 0, ESP__LIMITS * sizeof *takes);
    esp__uses_add(&s->candidates[u]->paths[x], 1.0, takes + ESP__LANES);
}

/* Tries every option for u and the later tensors or groups. `taken` is what backward and the earlier ones take of each
 * processor, link and limit. */
static void esp__small_options(esp__small *s, uint32_t u, const double taken[ESP__SMALL_TAKES]) {
    const esp__extent *units = s->d->units;
    if (u == s->n || u == ESP__SMALL_UNITS) {
        memset(s->left, 0, sizeof s->left), memset(s->free_at, 0, sizeof s->free_at);
        s->jobs[0] = esp__small_job_of(s, s->backward, (uint32_t)s->p->n_tensors, 0);
        for (uint32_t i = 0; i < s->n; i++) {
            s->jobs[i + 1] = esp__small_job_of(s, s->paths[i]->ops, s->paths[i]->n, units[i].first + units[i].n);
            s->jobs[i + 1].ready = s->p->ready[units[i].first + units[i].n - 1];
        }
        esp__small_orders(s);
        return;
    }
    for (uint32_t x = 0; x < s->candidates[u]->n && s->nodes < s->nodes_max; x++) {
        const esp__path *path = s->paths[u] = &s->candidates[u]->paths[x];
        double with[ESP__SMALL_TAKES];
        bool out = s->p->ready[units[u].first + units[u].n - 1] + path->total >= s->beat;
        s->nodes++;
        esp__small_takes(s, u, x, with);
        for (uint32_t k = 0; k < ESP__SMALL_TAKES && !out; k++) {
            with[k] += taken[k];
            out = k < ESP__LANES ? with[k] + s->least[u + 1][k] > (double)s->beat - 0.5
                                 : with[k] + s->least[u + 1][k] > s->may[k - ESP__LANES] * (1.0 + 1e-12);
        }
        if (!out) esp__small_options(s, u + 1, with);
    }
}

/* Improves the schedule if it has few tensors or groups, which stay. The result is optimal for them if the last of
 * three searches ends within a third of nodes_max steps. */
ESP__FN void esp__small_exact(esp__problem *p, esp__schedule *d, uint64_t nodes_max) {
    static const uint32_t gains[] = {12, 50, 0};
    double takes[ESP__SMALL_TAKES] = {(double)p->ready[p->n_tensors - 1]};
    if (!d->n_units || d->n_units > ESP__SMALL_UNITS || p->n_tensors > ESP__SMALL_UNITS) return;
    if (!esp__schedule_allowed(p, d)) return;
    esp__small *s = esp__arena_get(p->arena, sizeof *s);
    s->p = p, s->d = d, s->n = d->n_units, s->nodes_max = nodes_max;
    esp__may_use(p, s->may);
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        s->backward[t].time = esp__backward_time(p->compute[t]);
        s->backward[t].lanes = 1u << ESP__LANE_COMPUTE;
    }
    for (uint32_t u = s->n; u-- > 0;) {
        s->candidates[u] = esp__candidates_get(p, &d->units[u]);
        for (uint32_t x = 0; x < s->candidates[u]->n; x++) {
            double own[ESP__SMALL_TAKES];
            esp__small_takes(s, u, x, own);
            for (uint32_t k = 0; k < ESP__SMALL_TAKES; k++)
                if (!x || s->least[u + 1][k] + own[k] < s->least[u][k]) s->least[u][k] = s->least[u + 1][k] + own[k];
        }
    }
    /* large gains first: they end more branches */
    for (uint32_t k = 0; k < sizeof gains / sizeof *gains; k++) {
        s->gain = gains[k], s->nodes_max = s->nodes + nodes_max / 3;
        esp__small_beat(s);
        esp__small_options(s, 0, takes);
    }
    p->work += s->nodes;
}
