/* search.c: the search of strategy "espresso+". It starts from schedules that initial.c finds, for whole tensors and
 * for groups and chunks. Local search improves each by changing options, merging, splitting and reordering, and the
 * best one counts. Effort is counted in ops, not in seconds, so that the same inputs give the same plan on every
 * machine. A time limit ends the search sooner, or repeats it with more effort. */
#include "planner/baselines/baselines.h"
#include "planner/search/search.h"

/* Lets the next part of the search use the share `share` of the whole search's effort. Planning should take less than
 * 10 ms; with two devices there are far more plans to search. */
static void esp__stage(esp__problem *p, double share) {
    double n = (double)p->n_tensors;
    double all = esp__devices(p) == 3u ? 900.0 * n + 280000.0 : 230.0 * n + 50000.0;
    if (p->n_levels > 2) all *= 4.0; /* with three levels there are far more options */
    p->work_end = p->work + (uint64_t)(share * p->effort * all) + 1;
}

static void esp__local_search(esp__problem *p, esp__schedule *d, int regroup) {
    esp__incremental *k = esp__incremental_open(p, d);
    const esp__ranked *ranking;
    for (int round = 0; round < 8 && !esp__out_of_time(p); round++) {
        uint64_t before = d->makespan;
        if (esp__reorder(p, d)) esp__incremental_prepare(k);
        ranking = esp__ranking(p, d);
        esp__improve_passes(k, ranking);
        if (regroup) esp__regroup_passes(k);
        if (d->makespan == before) break;
    }
}

static void esp__best_start(esp__problem *p, esp__schedule *d) {
    esp__schedule x = {0};
    esp__schedule_set_units(p, &x, d->units, d->n_units);
    esp__start_balanced(p, d, 0.0);
    if (esp__out_of_time(p)) return;
    esp__start_balanced(p, &x, 0.3);
    esp__schedule_keep_better(p, d, &x);
}

static void esp__search_units(esp__problem *p, esp__schedule *best, double share) {
    esp__schedule d = {0};
    esp__schedule_tensors(p, &d);
    esp__stage(p, 0.45 * share);
    esp__best_start(p, &d);
    esp__stage(p, 0.55 * share);
    if (!esp__fit(p, &d)) return;
    esp__local_search(p, &d, 0);
    esp__keep_better_allowed(p, best, &d);
}

enum { ESP__PRICED = 4, ESP__LOCALLY_BEST = 3 };
static void esp__search_partitions(esp__problem *p, esp__schedule *best) {
    esp__partition_start *cuts = esp__arena_get(p->arena, ESP__PARTITIONS_MAX * sizeof *cuts);
    esp__schedule d[ESP__PRICED] = {{0}};
    uint32_t m = 0;
    esp__stage(p, 0.3);
    uint32_t n = esp__partitions(p, cuts);
    for (; m < n && m < ESP__PRICED; m++) {
        esp__partition(p, &d[m], cuts[m].merge, cuts[m].split);
        esp__stage(p, 0.06);
        esp__best_start(p, &d[m]);
    }
    for (uint32_t r = 0; r < ESP__LOCALLY_BEST && r < m; r++) {
        uint32_t b = r;
        for (uint32_t i = r + 1; i < m; i++)
            if (d[i].makespan < d[b].makespan) b = i;
        esp__schedule x = d[r];
        d[r] = d[b];
        d[b] = x;
        if (!esp__fit(p, &d[r])) continue;
        esp__stage(p, r ? 0.12 : 0.2);
        esp__local_search(p, &d[r], 1);
        esp__keep_better_allowed(p, best, &d[r]);
    }
}

/* Comparison strategies ignore constraints, so the search may use their results only if constraints allow
 * everything. */
static int esp__all_options(const esp__problem *p) {
    const esp_plan_config *c = &p->config;
    return !(c->n_forbid || c->n_only || c->max_comp || c->devices || c->flags & ESP_PLAN_NO_COMP);
}
static int esp__unconstrained(const esp__problem *p) {
    const esp_plan_config *c = &p->config;
    return esp__all_options(p) && !(c->max_memory_bytes || c->max_volume > 0.0 || c->max_error > 0.0);
}

enum { ESP__AS_GIVEN = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT };

static bool esp__as_given(const esp__problem *p) { return (p->config.flags & ESP__AS_GIVEN) == ESP__AS_GIVEN; }

/* The Espresso paper's Algorithms 1 and 2. */
static void esp__search_paper(esp__problem *p, esp__schedule *best) {
    esp__schedule d = {0};
    esp__stage(p, 1.0);
    esp__paper(p, &d);
    esp__stage(p, 0.2);
    esp__local_search(p, &d, 0);
    esp__keep_better_allowed(p, best, &d);
}

static void esp__search_twice(esp__problem *p, esp__schedule *d, void (*search)(esp__problem *, esp__schedule *));
static void esp__search_once(esp__problem *p, esp__schedule *d);

/* Makes the plan `from` of another problem, which allows fewer options, a plan of p. Returns 0 if p lacks an option. */
static int esp__adopt(esp__problem *p, esp__schedule *to, const esp__schedule *from) {
    esp__schedule_copy(p, to, from);
    for (uint32_t u = 0; u < from->n_units; u++) {
        const esp__path *path = from->paths[u];
        uint32_t like = u > 256 ? u - 256 : 0;
        while (from->paths[like] != path || (from->units[like].n > 1) != (from->units[u].n > 1)) like++;
        to->paths[u] = like < u       ? to->paths[like]
                       : path->option ? esp__path_of(p, &to->units[u], path->option, path->codec)
                                      : NULL;
        if (!to->paths[u]) return 0;
    }
    return 1;
}

/* Searches with fewer options, as `config` says, and from there on with all, so that allowing more does not lengthen
 * the plan. If `offload`, compression first moves to the CPU as in Algorithm 2. */
static void esp__search_stricter(esp__problem *p, esp__schedule *best, const esp_plan_config *config, double share,
                                 bool offload) {
    esp__problem *other;
    esp__schedule strict = {0}, d = {0};
    if (p->free_compression) return; /* options have no text if compression is free */
    other = esp__arena_get(p->arena, sizeof *other);
    if (esp__problem_open(other, p->arena, p->model, p->codecs, p->n_codecs, &p->system, config, 0)) return;
    other->effort = share * p->effort, other->seed = p->seed, other->deadline_ns = p->deadline_ns;
    esp__search_twice(other, &strict, esp__search_once);
    if (!strict.n_units || !esp__adopt(p, &d, &strict)) return;
    esp__stage(p, 0.2);
    if (offload) esp__algorithm2(p, &d);
    esp__stage(p, 0.2);
    esp__local_search(p, &d, !esp__as_given(p));
    esp__keep_better_allowed(p, best, &d);
}

static void esp__search_devices(esp__problem *p, esp__schedule *best) {
    esp_plan_config config = p->config;
    config.devices = 1u << ESP_ON_GPU;
    if (esp__devices(p) == 3u) esp__search_stricter(p, best, &config, 1.0, true);
}

/* Searches from every comparison strategy, so that the result is never worse than any of them. */
static void esp__search_schemes(esp__problem *p, esp__schedule *best) {
    if (!esp__unconstrained(p) || p->config.flags & (ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT)) return;
    p->work_end = 0;
    for (const esp__scheme *s = esp__schemes(); s->name; s++) {
        esp__schedule d = {0};
        if (esp__scheme_brings_codec(p, s)) continue;
        s->make(p, &d);
        if (d.makespan >= best->makespan) continue;
        esp__stage(p, 0.1);
        esp__local_search(p, &d, 1);
        esp__keep_better_allowed(p, best, &d);
    }
}

enum { ESP__NODES = 200000, ESP__FEW = 8, ESP__SMALL_MODEL = 64 };

/* Searches plans whose tensors are neither merged nor split, so that merging and splitting do not lengthen the plan. */
static void esp__search_given(esp__problem *p, esp__schedule *d) {
    esp__search_units(p, d, 0.3);
    if (p->n_tensors <= ESP__FEW || p->effort > 4.0) esp__search_paper(p, d);
    esp__search_devices(p, d);
}

static void esp__search_once(esp__problem *p, esp__schedule *d) {
    if (esp__as_given(p)) {
        esp__search_given(p, d);
        return;
    }
    esp__search_devices(p, d);
    esp__search_partitions(p, d);
    if (p->effort > 4.0) esp__search_schemes(p, d);
    if (!d->n_units) return; /* no schedule is within the limits */
    esp__stage(p, 0.2);
    esp__local_search(p, d, 1);
}

static void esp__search_again(esp__problem *p, esp__schedule *d) {
    esp__schedule other = {0};
    esp__search_once(p, &other);
    if (other.n_units) esp__keep_better_allowed(p, d, &other);
}

/* Returns whether a schedule from outside the search may be the result: it must be within the limits, and constraints
 * must allow its options. The planner's own options for a tensor (candidates) are always allowed, because a tensor's
 * `keep` overrides `forbid`. */
static int esp__permitted(esp__problem *p, const esp__schedule *d) {
    for (uint32_t u = 0; u < d->n_units && !esp__all_options(p); u++) {
        const esp__candidates *candidates = esp__candidates_get(p, &d->units[u]);
        const esp__path *path = d->paths[u];
        int candidate = 0;
        for (uint32_t i = 0; i < candidates->n && !candidate; i++) candidate = path == &candidates->paths[i];
        if (!candidate && (!path->option || !esp__option_permitted(p, path->option))) return 0;
    }
    return esp__schedule_allowed(p, d);
}

/* If the plan without compression is better than `d`, searches from it, so that the result is never worse. */
static void esp__search_fp32(esp__problem *p, esp__schedule *d) {
    esp__schedule fp32 = {0};
    if (!p->fp32 || (d->n_units && p->fp32->makespan >= d->makespan) || !esp__permitted(p, p->fp32)) return;
    esp__schedule_copy(p, &fp32, p->fp32);
    esp__stage(p, 0.2);
    esp__local_search(p, &fp32, !(p->config.flags & ESP_PLAN_NO_MERGE));
    esp__keep_better_allowed(p, d, &fp32);
}

static void esp__search_layerwise(esp__problem *p, esp__schedule *d) {
    esp__schedule best = {0}, one = {0};
    for (uint32_t codec = 0; codec < p->n_free_codecs; codec++) {
        esp__layerwise_with(p, &one, codec);
        if ((!d->n_units || one.makespan < d->makespan) && esp__permitted(p, &one))
            esp__schedule_keep_better(p, &best, &one);
    }
    if (!best.n_units) return;
    esp__stage(p, 0.2);
    esp__local_search(p, &best, !(p->config.flags & ESP_PLAN_NO_MERGE));
    esp__keep_better_allowed(p, d, &best);
}

/* Searches without compression, and with the usual limit of sizes. */
static void esp__search_tighter(esp__problem *p, esp__schedule *d) {
    esp_plan_config config = p->config;
    if (!p->n_codecs || config.flags & ESP_PLAN_NO_COMP) return;
    const bool small = p->n_tensors < ESP__SMALL_MODEL;
    config.flags |= ESP_PLAN_NO_COMP;
    esp__search_stricter(p, d, &config, small ? 1.0 : 0.1, false);
    config = p->config;
    if (config.min_compress_elements >= ESP_MIN_COMPRESS_ELEMENTS) return;
    config.min_compress_elements = ESP_MIN_COMPRESS_ELEMENTS;
    if (small) esp__search_stricter(p, d, &config, 1.0, false);
}

/* Searches without merging and splitting first, so that these do not lengthen the plan. */
static void esp__search_twice(esp__problem *p, esp__schedule *d, void (*search)(esp__problem *, esp__schedule *)) {
    const uint32_t flags = p->config.flags;
    const uint64_t deadline = p->deadline_ns, now = deadline ? esp__now_ns() : 0;
    if (!esp__as_given(p)) {
        p->config.flags |= ESP__AS_GIVEN;
        if (now < deadline) p->deadline_ns = now + (deadline - now) / 2;
        search(p, d);
        p->config.flags = flags;
        p->deadline_ns = deadline;
    }
    search(p, d);
}

static void esp__search_guarded(esp__problem *p, esp__schedule *d) {
    double effort = p->effort;
    /* Runs the usual search first, so that more effort never gives a worse result. */
    if (effort > 4.0) {
        p->effort = 1.0;
        esp__search_once(p, d);
        p->effort = effort;
    }
    esp__search_again(p, d);
    for (int round = 1; p->deadline_ns && esp__now_ns() < p->deadline_ns && round < 64; round++) {
        p->effort *= 2.0; /* time is left, so search more, with other random numbers */
        p->seed++;
        esp__search_again(p, d);
    }
    p->effort = effort;
    p->work_end = 0;
    esp__search_fp32(p, d);
    p->work_end = 0;
    esp__search_layerwise(p, d);
    p->work_end = 0;
    esp__search_tighter(p, d);
    p->work_end = 0;
    esp__small_exact(p, d, effort > 4.0 ? 5 * ESP__NODES : ESP__NODES);
}

ESP__FN void esp__search_all(esp__problem *p, esp__schedule *d) { esp__search_twice(p, d, esp__search_guarded); }
