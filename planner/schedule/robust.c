/* robust.c: how long a plan's step takes if its inputs are wrong. In each sample every input gets its own random factor between
 * 0.8 and 1.2, and the schedule's sequence is replayed with the ops' times that follow. The sequence does not change, as it
 * would not when the plan runs (its text contains the order of all ops); so a longer input never makes a sample shorter. */
#include "espresso_impl/base/quantile.h"
#include "planner/plan.h"

enum { ESP__ROBUST_SAMPLES = 200, ESP__FINALISTS = 8 };
static const double esp__robust_error = 0.2;
/* Inputs, by number: single values, a table for each level and collective, four curves for each codec, each tensor's
 * backward. */
enum {
    ESP__IN_INTRA_ALPHA = 0,
    ESP__IN_INTRA_SPEED,
    ESP__IN_INTER_ALPHA,
    ESP__IN_INTER_SPEED,
    ESP__IN_HOST,
    ESP__IN_PACK,
    ESP__IN_PACK_SPEED,
    ESP__IN_FORWARD,
    ESP__IN_UPDATE,
    ESP__IN_TABLES,
    ESP__IN_CODECS = ESP__IN_TABLES + 3 * ESP_PLAN_COLLS
};

/* An op of the sequence. Its time is fixed + max(one, other), each multiplied by its input's factor. */
typedef struct esp__robust_op {
    double fixed, one, other; /* ns */
    double core, link;        /* the shares of this time for which it keeps its core lane and its links */
    uint32_t in_fixed, in_one, in_other;
    uint32_t unit; /* or ESP__NEXT_BACKWARD */
    uint32_t lanes;
} esp__robust_op;

typedef struct esp__robust_run {
    const esp__problem *p;
    const esp__schedule *d;
    esp__robust_op *ops; /* [n_sequence] */
    double *factor;      /* [n_inputs] for times; of a speed: 1 / its factor */
    uint64_t *ready;     /* [n_units] */
    uint32_t n_inputs;
} esp__robust_run;

static uint64_t esp__robust_dice(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

/* Divides a collective's time, which op->one contains, into the parts that depend on different inputs. */
static void esp__robust_collective(const esp__problem *p, const esp__unit *u, const esp__path *path,
                                   const esp__op_template *r, esp__robust_op *op) {
    const esp_plan_system *s = &p->system;
    uint32_t outermost = esp__system_outermost(s, r->level), first, last;
    int inside = outermost == 1; /* links further out than machines vary as those between machines do */
    const esp_plan_link *link = esp__system_link(s, outermost), *tables = esp__system_tables(s, r->level);
    esp__scope_levels(r->level, p->n_levels, &first, &last);
    double all = op->one;
    const esp_plan_codec *codec = path->codec == ESP__NO_CODEC ? NULL : &p->codecs[path->codec];
    esp__shape shape;
    if (tables && tables->table[r->coll].n) {
        op->in_one = (uint32_t)ESP__IN_TABLES +
                     (r->level > ESP__INTER ? ESP__INTER : r->level) * (uint32_t)ESP_PLAN_COLLS + r->coll;
        return;
    }
    if (p->size[r->level] < 2) return;
    op->fixed = esp__alpha(link, r->coll, p->size[r->level]);
    op->in_fixed = inside ? ESP__IN_INTRA_ALPHA : ESP__IN_INTER_ALPHA;
    op->one = all - op->fixed;
    op->in_one = inside ? ESP__IN_INTRA_SPEED : ESP__IN_INTER_SPEED;
    if (inside || first > 1 || s->ranks_per_machine == 1) return;
    esp__problem other = *p; /* a flat one takes as long as its slower part: how long is the part inside a machine? */
    other.system.inter.bytes_per_us = 1e300;
    for (uint32_t k = 0; k < s->n_outer; k++) other.system.outer[k].link.bytes_per_us = 1e300;
    esp__shape_make(p, u->elements, esp__unit_cols(p, u), codec, &shape);
    op->other = (double)esp__template_ns(&other, r, &shape, codec) - op->fixed;
    op->in_other = ESP__IN_INTRA_SPEED;
    if (op->other < op->one) return;
    op->other = op->one; /* that part is the slower one: how long is the part between machines? */
    other = *p;
    other.system.intra.bytes_per_us = 1e300;
    op->one = (double)esp__template_ns(&other, r, &shape, codec) - op->fixed;
}

static void esp__robust_kept(const esp__op_time *time, esp__robust_op *op) {
    op->one = (double)time->ns;
    op->core = time->ns ? (double)time->core / op->one : 0.0;
    op->link = time->ns ? (double)time->link / op->one : 0.0;
}

static void esp__robust_unit(const esp__problem *p, const esp__unit *u, const esp__path *path, uint32_t k,
                             esp__robust_op *op) {
    const esp__op_template *r = &p->op_templates[path->ops[k].op_template];
    uint32_t curves = (uint32_t)ESP__IN_CODECS + 4 * path->codec;
    esp__robust_kept(&path->ops[k].time, op);
    op->lanes = path->ops[k].lanes;
    switch (path->ops[k].kind) {
    case ESP_PLAN_COLLECTIVE: esp__robust_collective(p, u, path, r, op); break;
    case ESP_PLAN_COMP: op->in_one = curves + r->device; break;
    case ESP_PLAN_DECOMP: op->in_one = curves + 2 + r->device; break;
    case ESP_PLAN_COPY: op->in_one = ESP__IN_HOST; break;
    default:
        op->fixed = p->system.pack_ns < op->one ? p->system.pack_ns : op->one;
        op->in_fixed = ESP__IN_PACK;
        op->one -= op->fixed;
        op->in_one = ESP__IN_PACK_SPEED;
    }
}

static void esp__robust_open(esp__robust_run *r, esp__problem *p, const esp__schedule *d) {
    uint32_t tensor = 0;
    r->p = p;
    r->d = d;
    r->n_inputs = ESP__IN_CODECS + 4 * p->n_codecs + (uint32_t)p->n_tensors;
    r->ops = esp__arena_get(p->arena, d->n_sequence * sizeof *r->ops);
    r->factor = esp__arena_get(p->arena, r->n_inputs * sizeof *r->factor);
    r->ready = esp__arena_get(p->arena, d->n_units * sizeof *r->ready);
    uint8_t *next = esp__arena_get(p->arena, d->n_units);
    for (uint32_t i = 0; i < d->n_sequence; i++) {
        esp__robust_op *op = &r->ops[i];
        op->unit = d->sequence[i];
        if (op->unit == ESP__NEXT_BACKWARD) {
            const esp__op_time time = esp__backward_time(p->compute[tensor]);
            esp__robust_kept(&time, op);
            op->in_one = ESP__IN_CODECS + 4 * p->n_codecs + tensor++;
            op->lanes = 1u << ESP__LANE_COMPUTE;
        } else {
            esp__robust_unit(p, &d->units[op->unit], d->paths[op->unit], next[op->unit]++, op);
        }
    }
}

static int esp__robust_is_speed(uint32_t input) {
    return input == ESP__IN_INTRA_SPEED || input == ESP__IN_INTER_SPEED || input == ESP__IN_HOST ||
           input == ESP__IN_PACK_SPEED;
}

/* Draws the factors of one sample: with one seed the same for every schedule of a problem. */
static void esp__robust_roll(esp__robust_run *r, uint64_t *seed) {
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        double part = (double)(esp__robust_dice(seed) >> 11) / 9007199254740992.0;
        double f = 1.0 + esp__robust_error * (2.0 * part - 1.0);
        r->factor[i] = esp__robust_is_speed(i) ? 1.0 / f : f;
    }
}

/* The step time with the current factors. */
static double esp__robust_step(esp__robust_run *r) {
    const esp__schedule *d = r->d;
    const double *f = r->factor;
    uint64_t free_at[ESP__LANES] = {0}, backward = 0, makespan = 0;
    uint32_t tensor = 0, unit = 0;
    for (uint32_t i = 0; i < d->n_sequence; i++) {
        const esp__robust_op *op = &r->ops[i];
        double one = op->one * f[op->in_one], other = op->other * f[op->in_other];
        const uint64_t ns = (uint64_t)(op->fixed * f[op->in_fixed] + (one > other ? one : other) + 0.5);
        const esp__op_time time = {ns, (uint64_t)(op->core * (double)ns + 0.5),
                                   (uint64_t)(op->link * (double)ns + 0.5)};
        uint64_t *ready = op->unit == ESP__NEXT_BACKWARD ? &backward : &r->ready[op->unit];
        const uint64_t start = esp__lanes_free(free_at, op->lanes, *ready);
        *ready = start + ns;
        esp__lanes_take(free_at, op->lanes, start, &time);
        if (*ready > makespan) makespan = *ready;
        if (op->unit != ESP__NEXT_BACKWARD) continue;
        for (; unit < d->n_units && d->units[unit].first + d->units[unit].n - 1 == tensor; unit++)
            r->ready[unit] = backward;
        tensor++;
    }
    return r->p->model->forward_ns * f[ESP__IN_FORWARD] + (double)makespan + r->p->model->update_ns * f[ESP__IN_UPDATE];
}

/* The 50th and 90th percentile of the step time over the samples. The seed determines the samples. */
ESP__FN void esp__robust(esp__problem *p, const esp__schedule *d, uint64_t seed, double *p50, double *p90) {
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    double step[ESP__ROBUST_SAMPLES];
    esp__robust_run r;
    esp__robust_open(&r, p, d);
    for (uint32_t s = 0; s < ESP__ROBUST_SAMPLES; s++) {
        esp__robust_roll(&r, &seed);
        step[s] = esp__robust_step(&r);
    }
    esp__sort(step, ESP__ROBUST_SAMPLES);
    *p50 = esp__quantile_rank(step, ESP__ROBUST_SAMPLES, 0.5);
    *p90 = esp__quantile_rank(step, ESP__ROBUST_SAMPLES, 0.9);
    esp__arena_rewind(p->arena, mark);
}

/* The index of the schedule with the smallest 90th percentile over the same samples; of equal ones the first. If the first is
 * within the limits, those that are not do not count. */
ESP__FN uint32_t esp__robust_pick(esp__problem *p, const esp__schedule *schedules, uint32_t n, uint64_t seed) {
    double p50, p90, least = 0.0;
    uint32_t best = 0;
    int allowed = esp__schedule_allowed(p, &schedules[0]);
    for (uint32_t i = 0; i < n; i++) {
        if (i && allowed && !esp__schedule_allowed(p, &schedules[i])) continue;
        esp__robust(p, &schedules[i], seed, &p50, &p90);
        if (i && p90 >= least) continue;
        least = p90;
        best = i;
    }
    return best;
}

/* Replaces the schedule by one of the finalists if that has a smaller 90th percentile. */
ESP__FN void esp__robust_best(esp__problem *p, esp__schedule *d) {
    esp__schedule schedules[ESP__FINALISTS + 1];
    schedules[0] = *d;
    for (uint32_t i = 0; i < p->n_finalists; i++) schedules[i + 1] = p->finalists[i];
    uint32_t best = esp__robust_pick(p, schedules, p->n_finalists + 1, p->config.seed);
    if (best) esp__schedule_copy(p, d, &schedules[best]);
}
