/* exact.c: finds the optimal plan for a few tensors or groups by branch and bound. It branches over their options, with
 * the inequalities of bound/bound.c. For each choice of options that could be optimal (a leaf), it branches over the
 * orders of ops (Giffler, Thompson 1960), with a bound for each processor or link alone (Carlier 1982). After a limited
 * number of nodes it stops with the best schedule so far. */
#include "planner/bound/bound.h"
#include "planner/search/search.h"

enum { ESP__SMALL_UNITS = 12, ESP__SMALL_USUAL = 6 };
enum { ESP__SMALL_BATCH = 2048, ESP__SMALL_LOOK = 64, ESP__SMALL_JOBS = ESP__SMALL_UNITS + 1 };
enum { ESP__SMALL_OPS = ESP__SMALL_UNITS * (ESP__MAX_OPS + 1) };

/* One option for each tensor or group, and a lower bound on all orders of their ops. */
typedef struct esp__small_leaf {
    uint64_t bound;
    uint16_t path[ESP__SMALL_UNITS];
} esp__small_leaf;

/* A job is a list of ops that run one after the other. Job 0 is the backward pass; each other job has the ops of one
 * tensor or group. */
typedef struct esp__small_job {
    const esp__plan_op *ops;
    uint32_t n, next;
    uint32_t after;
    uint64_t ready, rest[ESP__MAX_OPS + 1]; /* rest[k]: time from op k to the job's end */
} esp__small_job;

typedef struct esp__small {
    esp__problem *p;
    esp__schedule *d;
    esp__bounding *b;
    const esp__candidates *candidates[ESP__SMALL_UNITS];
    uint64_t nodes, nodes_end, nodes_max;
    uint32_t n, n_leaves, n_jobs, tries;
    const double *order_cost[ESP__SMALL_UNITS];
    uint16_t *order[ESP__SMALL_UNITS];
    double least[ESP__SMALL_UNITS + 1];
    double row_least[ESP__SMALL_UNITS + 1][ESP__GAME_ROWS];
    double use_least[ESP__SMALL_UNITS + 1][ESP__LIMITS], may[ESP__LIMITS];
    uint16_t path[ESP__SMALL_UNITS];
    uint16_t base[ESP__SMALL_UNITS];
    uint32_t reach;
    uint64_t looks;
    esp__small_leaf leaves[ESP__SMALL_BATCH];
    esp__small_job jobs[ESP__SMALL_JOBS];
    esp__plan_op backward[ESP__SMALL_UNITS];
    uint64_t free_at[ESP__LANES];
    uint32_t sequence[ESP__SMALL_OPS], placed;
} esp__small;

static const esp__path *esp__small_path(const esp__small *s, uint32_t u, uint32_t x) {
    return &s->candidates[u]->paths[x];
}

/* ---- orders ---------------------------------------------------------------------------------------------------- */
typedef struct esp__small_op {
    uint64_t head, ns, tail;
} esp__small_op;

/* Returns a lower bound on the step time from the ops of one processor or link. For any set of ops, the earliest start,
 * the sum of their times and the shortest remaining time after one of them are such a bound. */
static uint64_t esp__small_lane(esp__small_op *ops, uint32_t n) {
    uint64_t most = 0;
    for (uint32_t i = 1; i < n; i++) { /* insertion sort, longest tail first */
        esp__small_op x = ops[i];
        uint32_t k = i;
        for (; k && ops[k - 1].tail < x.tail; k--) ops[k] = ops[k - 1];
        ops[k] = x;
    }
    for (uint32_t h = 0; h < n; h++) {
        uint64_t sum = ops[h].head;
        for (uint32_t k = 0; k < n; k++) {
            if (ops[k].head < ops[h].head) continue;
            sum += ops[k].ns;
            if (sum + ops[k].tail > most) most = sum + ops[k].tail;
        }
    }
    return most;
}

static uint64_t esp__small_bound(const esp__small *s, uint64_t limit) {
    esp__small_op ops[ESP__LANES][ESP__SMALL_OPS];
    uint32_t n[ESP__LANES] = {0};
    uint64_t most = 0, backward[ESP__SMALL_UNITS + 1];
    uint64_t tails[ESP__SMALL_UNITS + 1] = {0}, after = 0;
    for (uint32_t j = 1; j < s->n_jobs; j++) {
        const esp__small_job *job = &s->jobs[j];
        if (job->n && job->after > s->jobs[0].next && job->rest[0] > tails[job->after])
            tails[job->after] = job->rest[0];
    }
    for (uint32_t j = 0; j < s->n_jobs; j++) {
        const esp__small_job *job = &s->jobs[j];
        uint64_t head = job->ready;
        if (j && job->after > s->jobs[0].next) head = backward[job->after];
        for (uint32_t k = job->next; k < job->n; k++) {
            head = k == job->next ? esp__lanes_free(s->free_at, job->ops[k].lanes, head) : head;
            for (uint32_t l = 0; l < ESP__LANES; l++) {
                if (!(job->ops[k].lanes >> l & 1u)) continue;
                const uint64_t kept = esp__kept(&job->ops[k].time, l);
                esp__small_op op = {head, kept, job->ops[k].time.ns - kept + job->rest[k + 1]};
                ops[l][n[l]++] = op;
            }
            head += job->ops[k].time.ns;
            if (!j) backward[k + 1] = head;
        }
        if (head > most) most = head;
    }
    /* The time that must follow a backward op includes the later backward ops, and the ops of tensors and groups that
     * become ready with them. */
    for (uint32_t k = s->jobs[0].n; k-- > s->jobs[0].next;) {
        if (tails[k + 1] > after) after = tails[k + 1];
        ops[ESP__LANE_COMPUTE][k - s->jobs[0].next].tail = after;
        after += s->jobs[0].ops[k].time.ns;
    }
    for (uint32_t l = 0; l < ESP__LANES && most < limit; l++) {
        uint64_t lane = esp__small_lane(ops[l], n[l]);
        if (lane > most) most = lane;
    }
    return most;
}

static void esp__small_keep(esp__small *s, const uint64_t end) {
    esp__schedule *d = s->d;
    for (uint32_t u = 0; u < s->n; u++) d->paths[u] = esp__small_path(s, u, s->path[u]);
    esp__sequence_room(s->p, d);
    memcpy(d->sequence, s->sequence, d->n_sequence * sizeof *d->sequence);
    d->makespan = end;
}

typedef struct esp__small_undo {
    uint64_t free_at[ESP__LANES], ready;
} esp__small_undo;

static void esp__small_place(esp__small *s, uint32_t j, uint64_t start, esp__small_undo *was) {
    esp__small_job *job = &s->jobs[j];
    const esp__plan_op *op = &job->ops[job->next];
    memcpy(was->free_at, s->free_at, sizeof was->free_at);
    was->ready = job->ready;
    esp__lanes_take(s->free_at, op->lanes, start, &op->time);
    job->ready = start + op->time.ns;
    job->next++;
    for (uint32_t u = 1; !j && u < s->n_jobs; u++)
        if (s->jobs[u].after == job->next) s->jobs[u].ready = job->ready;
    s->sequence[s->placed++] = j ? j - 1 : ESP__NEXT_BACKWARD;
}

static void esp__small_unplace(esp__small *s, uint32_t j, const esp__small_undo *was) {
    s->placed--;
    s->jobs[j].next--;
    s->jobs[j].ready = was->ready;
    memcpy(s->free_at, was->free_at, sizeof was->free_at);
}

/* Writes the jobs whose next op may be placed now, and when it could start. These are the op that would end first, and
 * all ops on the same processor or link that could start before that end (Giffler, Thompson 1960). Returns their
 * number. */
static uint32_t esp__small_choices(const esp__small *s, uint32_t choice[ESP__SMALL_JOBS],
                                   uint64_t start[ESP__SMALL_JOBS]) {
    uint64_t soonest = UINT64_MAX;
    uint32_t first = 0, n = 0;
    for (uint32_t j = 0; j < s->n_jobs; j++) {
        const esp__small_job *job = &s->jobs[j];
        start[j] = UINT64_MAX;
        if (job->next == job->n || s->jobs[0].next < job->after) continue;
        start[j] = esp__lanes_free(s->free_at, job->ops[job->next].lanes, job->ready);
        if (start[j] + job->ops[job->next].time.ns >= soonest) continue;
        soonest = start[j] + job->ops[job->next].time.ns;
        first = j;
    }
    if (soonest == UINT64_MAX) return 0;
    uint32_t lanes = s->jobs[first].ops[s->jobs[first].next].lanes;
    for (uint32_t j = 0; j < s->n_jobs; j++) {
        const esp__small_job *job = &s->jobs[j];
        if (j != first && (start[j] >= soonest || !(job->ops[job->next].lanes & lanes))) continue;
        choice[n++] = j;
    }
    return n;
}

/* Tries to place each possible next op, the one with the lowest bound first. */
static void esp__small_orders(esp__small *s) {
    uint64_t start[ESP__SMALL_JOBS], bound[ESP__SMALL_JOBS], end = 0;
    uint32_t choice[ESP__SMALL_JOBS], n = esp__small_choices(s, choice, start), j;
    esp__small_undo was;
    if (s->nodes >= s->nodes_end) return;
    if (!n) {
        for (j = 0; j < s->n_jobs; j++)
            if (s->jobs[j].next && s->jobs[j].ready > end) end = s->jobs[j].ready;
        if (end < s->d->makespan) esp__small_keep(s, end);
        return;
    }
    for (uint32_t i = 0; i < n && n > 1; i++) {
        uint32_t k = i;
        j = choice[i];
        esp__small_place(s, j, start[j], &was);
        uint64_t least = esp__small_bound(s, s->d->makespan);
        esp__small_unplace(s, j, &was);
        s->nodes++;
        for (; k && bound[k - 1] > least; k--) bound[k] = bound[k - 1], choice[k] = choice[k - 1];
        bound[k] = least;
        choice[k] = j;
    }
    for (uint32_t i = 0; i < n && (n == 1 || bound[i] < s->d->makespan); i++) {
        esp__small_place(s, choice[i], start[choice[i]], &was);
        esp__small_orders(s);
        esp__small_unplace(s, choice[i], &was);
    }
}

static void esp__small_job_set(esp__small_job *job, const esp__plan_op *ops, uint32_t n, uint32_t after) {
    job->ops = ops;
    job->n = n;
    job->after = after;
    job->next = 0;
    job->ready = 0;
    job->rest[n] = 0;
    for (uint32_t k = n; k-- > 0;) job->rest[k] = job->rest[k + 1] + ops[k].time.ns;
}

static void esp__small_jobs(esp__small *s) {
    uint32_t tensors = (uint32_t)s->p->n_tensors;
    for (uint32_t t = 0; t < tensors; t++) {
        s->backward[t].time = esp__backward_time(s->p->compute[t]);
        s->backward[t].lanes = 1u << ESP__LANE_COMPUTE;
    }
    esp__small_job_set(&s->jobs[0], s->backward, tensors, 0);
    for (uint32_t u = 0; u < s->n; u++) {
        const esp__path *path = esp__small_path(s, u, s->path[u]);
        esp__small_job_set(&s->jobs[u + 1], path->ops, path->n, s->d->units[u].first + s->d->units[u].n);
    }
    memset(s->free_at, 0, sizeof s->free_at);
    s->n_jobs = s->n + 1;
    s->placed = 0;
}

/* ---- paths ----------------------------------------------------------------------------------------------------- */
static int esp__small_leaf_before(const void *a, const void *b) {
    const esp__small_leaf *x = a, *y = b;
    if (x->bound != y->bound) return x->bound < y->bound ? -1 : 1;
    return memcmp(x->path, y->path, sizeof x->path);
}

/* Searches orders of ops for the collected choices of options, the lowest bound first. Each choice gets a few nodes of
 * the search tree; in each further pass, unfinished ones get four times as many. */
static void esp__small_flush(esp__small *s) {
    qsort(s->leaves, s->n_leaves, sizeof *s->leaves, esp__small_leaf_before);
    for (uint64_t look = ESP__SMALL_LOOK; s->n_leaves && s->nodes < s->nodes_max && look <= s->looks; look *= 4) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < s->n_leaves && s->leaves[i].bound < s->d->makespan && s->nodes < s->nodes_max; i++) {
            memcpy(s->path, s->leaves[i].path, sizeof s->path);
            s->nodes_end = s->nodes + look < s->nodes_max ? s->nodes + look : s->nodes_max;
            esp__small_jobs(s);
            esp__small_orders(s);
            if (s->nodes >= s->nodes_end) s->leaves[left++] = s->leaves[i];
        }
        s->n_leaves = left;
    }
    s->n_leaves = 0;
}

static void esp__small_leaf_add(esp__small *s) {
    esp__small_leaf *leaf = &s->leaves[s->n_leaves];
    esp__small_jobs(s);
    s->nodes++;
    leaf->bound = esp__small_bound(s, UINT64_MAX);
    if (leaf->bound >= s->d->makespan) return;
    memcpy(leaf->path, s->path, sizeof s->path);
    if (++s->n_leaves == ESP__SMALL_BATCH) {
        uint16_t path[ESP__SMALL_UNITS];
        memcpy(path, s->path, sizeof path);
        esp__small_flush(s);
        memcpy(s->path, path, sizeof path);
    }
}

static void esp__small_paths(esp__small *s, uint32_t u, const double *rows, double cost, const double used[ESP__LIMITS],
                             uint32_t changes) {
    uint32_t n_rows = s->b->game.n_rows;
    if (u >= s->n || u >= ESP__SMALL_UNITS) {
        esp__small_leaf_add(s);
        return;
    }
    for (uint32_t i = 0; i < s->b->loads[u]->n && s->nodes < s->nodes_max; i++) {
        uint32_t x = s->order[u][i];
        double best = (double)s->d->makespan - 0.5, with[ESP__GAME_ROWS], uses[ESP__LIMITS];
        const esp__path *path = esp__small_path(s, u, x);
        uint32_t now = changes + (x != s->base[u]);
        int out = now > s->reach || s->b->ready[u] + (double)path->total > best;
        if (cost + s->order_cost[u][x] + s->least[u + 1] > best) break;
        s->nodes += !(++s->tries & 15u);
        esp__uses(path, uses);
        for (uint32_t k = 0; k < ESP__LIMITS; k++) {
            uses[k] += used[k];
            out |= uses[k] + s->use_least[u + 1][k] > s->may[k] * (1.0 + 1e-12);
        }
        for (uint32_t j = 0; j < n_rows && !out; j++) {
            with[j] = rows[j] + esp__row_load(s->b, j, u, x);
            out = with[j] + s->row_least[u + 1][j] > best;
        }
        if (out) continue;
        s->path[u] = (uint16_t)x;
        esp__small_paths(s, u + 1, with, cost + s->order_cost[u][x], uses, now);
    }
}

static void esp__small_open(esp__small *s) {
    esp__bounding *b = s->b;
    esp__may_use(s->p, s->may);
    for (uint32_t u = s->n; u-- > 0;) {
        uint32_t n = b->loads[u]->n;
        double *cost = esp__arena_get(s->p->arena, n * sizeof *cost), uses[ESP__LIMITS];
        s->order[u] = esp__arena_get(s->p->arena, n * sizeof **s->order);
        s->order_cost[u] = cost;
        for (uint32_t x = 0; x < n; x++) {
            uint32_t k = x;
            for (uint32_t j = 0; j < b->game.n_rows; j++) {
                double w = esp__row_load(b, j, u, x);
                cost[x] += b->lambda[j] * w;
                if (!x || w < s->row_least[u][j]) s->row_least[u][j] = w;
            }
            esp__uses(esp__small_path(s, u, x), uses);
            for (uint32_t j = 0; j < ESP__LIMITS; j++)
                if (!x || uses[j] < s->use_least[u][j]) s->use_least[u][j] = uses[j];
            for (; k && cost[s->order[u][k - 1]] > cost[x]; k--) s->order[u][k] = s->order[u][k - 1];
            s->order[u][k] = (uint16_t)x;
        }
        s->least[u] = cost[s->order[u][0]] + s->least[u + 1];
        for (uint32_t j = 0; j < b->game.n_rows; j++) s->row_least[u][j] += s->row_least[u + 1][j];
        for (uint32_t j = 0; j < ESP__LIMITS; j++) s->use_least[u][j] += s->use_least[u + 1][j];
    }
}

static void esp__small_base(esp__small *s) {
    for (uint32_t u = 0; u < s->n; u++) {
        s->base[u] = UINT16_MAX;
        for (uint32_t x = 0; x < s->b->loads[u]->n; x++)
            if (esp__small_path(s, u, x) == s->d->paths[u]) s->base[u] = (uint16_t)x;
    }
}

/* Improves the schedule if it has few tensors or groups, which stay. The result is optimal for them if the search ends
 * within nodes_max nodes. */
ESP__FN void esp__small_exact(esp__problem *p, esp__schedule *d, uint64_t nodes_max) {
    double rows[ESP__GAME_ROWS], cost = 0.0, used[ESP__LIMITS] = {0.0};
    uint64_t was = d->makespan;
    uint32_t most = p->effort > 4.0 ? ESP__SMALL_UNITS : ESP__SMALL_USUAL;
    if (!d->n_units || d->n_units > most || p->n_tensors > most) return;
    esp__sequence_room(p, d);
    if (d->room_sequence < ESP__SMALL_OPS) {
        d->room_sequence = ESP__SMALL_OPS;
        d->sequence = esp__arena_grow(p->arena, d->sequence, d->n_sequence * sizeof *d->sequence,
                                      d->room_sequence * sizeof *d->sequence);
    }
    for (uint32_t u = 0; u < d->n_units; u++) esp__candidates_get(p, &d->units[u]);
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    esp__small *s = esp__arena_get(p->arena, sizeof *s);
    s->p = p, s->d = d, s->n = d->n_units, s->nodes_max = nodes_max;
    for (uint32_t u = 0; u < s->n; u++) s->candidates[u] = esp__candidates_get(p, &d->units[u]);
    s->b = esp__bounding_of(p, d->units, s->n);
    esp__small_open(s);
    if (!esp__schedule_allowed(p, d)) d->makespan = UINT64_MAX;
    for (uint32_t j = 0; j < s->b->game.n_rows; j++) {
        rows[j] = s->b->rows[j].base;
        cost += s->b->lambda[j] * rows[j];
    }
    for (s->reach = 1; s->reach <= s->n && s->nodes < s->nodes_max;) {
        uint64_t before = d->makespan;
        if (s->reach > 2) s->reach = s->n;
        s->looks = s->reach == s->n ? UINT64_MAX / 8 : s->reach == 1 ? ESP__SMALL_LOOK * 8 : ESP__SMALL_LOOK;
        esp__small_base(s);
        esp__small_paths(s, 0, rows, cost, used, 0);
        esp__small_flush(s);
        s->reach = d->makespan < before && s->reach < s->n ? 1 : s->reach + 1;
    }
    if (d->makespan == UINT64_MAX) d->makespan = was;
    p->work += 30 * s->nodes;
    esp__arena_rewind(p->arena, mark);
}
