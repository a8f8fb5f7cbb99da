/* search.c: the search of strategy "espresso+", an iterated local search. It runs several times: without compression,
 * with the GPU alone and with all options, each first with tensors as given and then with groups and chunks. Each run
 * also starts from the results of those that allow less, so allowing more does not lengthen the plan. Effort is
 * counted in ops, not in seconds, so that the same inputs give the same plan on every machine. */
#include "planner/baselines/baselines.h"
#include "planner/search/search.h"

enum { ESP__AS_GIVEN = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT };
static bool esp__as_given(const esp__problem *p) { return (p->config.flags & ESP__AS_GIVEN) == ESP__AS_GIVEN; }

/* Lets the next part of the search use the share `share` of the whole search's effort. Planning should take less than
 * 10 ms; with two devices there are far more plans to search. */
static void esp__stage(esp__problem *p, double share) {
    double n = (double)p->n_tensors;
    double all = esp__devices(p) == 3u && p->allow == ESP__ALLOW_ALL && !(p->config.flags & ESP_PLAN_NO_COMP)
                     ? 800.0 * n + 310000.0
                     : 88.0 * n + 52000.0;
    if (p->allow == ESP__ALLOW_RAW || p->config.flags & ESP_PLAN_NO_COMP) all *= 0.4; /* there are few options */
    if (p->n_levels > 2) all *= 4.0; /* with three levels there are far more options */
    p->work_end = p->work + (uint64_t)(share * (p->effort < 1.0 ? p->effort : 1.0) * all) + 1;
}

/* Lets every op start as soon as it is ready, if the step is then shorter. Returns whether it is. */
static int esp__reorder(esp__problem *p, esp__schedule *d) {
    esp__schedule *other = &p->spare[0];
    esp__schedule_copy(p, other, d);
    esp__generate(p, other);
    return esp__schedule_keep_better(p, d, other);
}

static void esp__local_search(esp__problem *p, esp__schedule *d, bool regroup) {
    esp__incremental *k = esp__incremental_open(p, d);
    for (int round = 0; round < 8 && !esp__out_of_time(p); round++) {
        uint64_t before = d->makespan;
        if (esp__reorder(p, d)) esp__incremental_prepare(k);
        esp__improve_passes(k, esp__ranking(p, d));
        esp__improve_orders(k);
        if (regroup) esp__regroup_passes(k);
        if (d->makespan == before) break;
    }
}

/* Improves `d`, and copies it to `best` if it is better. */
static void esp__search_from(esp__problem *p, esp__schedule *best, esp__schedule *d, double share) {
    esp__stage(p, share);
    if (!d->n_units || !esp__fit(p, d)) return;
    esp__local_search(p, d, !esp__as_given(p));
    esp__keep_better_allowed(p, best, d);
}

/* ---- iterated local search --------------------------------------------------------------------------------------- */
static uint32_t esp__random_below(esp__problem *p, uint32_t n) {
    p->seed = p->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((p->seed >> 32) * n >> 32);
}

/* Gives one to three neighbours, the first of which is on a longest path, random options, or merges or splits the
 * first. */
static void esp__kick(esp__incremental *k) {
    const esp__schedule *d = k->d;
    esp__swap *w = &k->swaps[0];
    uint32_t u = esp__random_below(k->p, d->n_units), n = 1 + esp__random_below(k->p, 3);
    for (uint32_t i = 0; i < d->n_units && !esp__incremental_critical(k, u, 1); i++) u = (u + 1) % d->n_units;
    if (!esp__as_given(k->p) && esp__random_below(k->p, 2))
        esp__regroup_random(k, u, esp__random_below(k->p, 1u << 16));
    for (u = u < d->n_units ? u : 0; n; n--, u = (u + 1) % d->n_units) {
        const esp__candidates *candidates = esp__candidates_get(k->p, &d->units[u]);
        const esp__path *path = NULL;
        uint32_t open = 0;
        for (uint32_t i = 0; i < candidates->n; i++)
            if (esp__path_open(k->p, &candidates->paths[i]) && !esp__random_below(k->p, ++open))
                path = &candidates->paths[i];
        if (!path) continue;
        esp__incremental_remove(k, w, u, 1);
        w->n = 0;
        esp__swap_add(k, w, &d->units[u], path);
        esp__incremental_try(k, w, UINT64_MAX);
        esp__incremental_restore(k, w);
        esp__incremental_set(k, w);
    }
}

/* Changes a schedule in random places, improves that, and continues from there unless the step is clearly longer, until
 * the effort is used up (Lourenco, Martin, Stuetzle 2003). Copies better ones to `best`. */
static void esp__iterate(esp__problem *p, esp__schedule *best) {
    esp__schedule now = {0}, d = {0};
    if (!best->n_units) return;
    esp__local_search(p, best, !esp__as_given(p));
    esp__schedule_copy(p, &now, best);
    while (!esp__out_of_time(p)) {
        p->work += 100; /* so that this ends if nothing can be changed */
        esp__schedule_copy(p, &d, &now);
        esp__incremental *k = esp__incremental_open(p, &d);
        esp__kick(k);
        esp__improve_passes(k, esp__ranking(p, &d));
        esp__improve_orders(k);
        if (d.makespan <= best->makespan + best->makespan / 500)
            esp__local_search(p, &d, !esp__as_given(p) && d.makespan < best->makespan);
        if (!esp__schedule_allowed(p, &d)) continue;
        if (d.makespan < best->makespan) esp__schedule_copy(p, best, &d);
        if (d.makespan <= best->makespan + best->makespan / 500) esp__schedule_copy(p, &now, &d);
    }
}

/* ---- starts ------------------------------------------------------------------------------------------------------ */
enum { ESP__PARTITIONS_TAKEN = 3 };
/* Searches from tensors as given if they may be neither merged nor split, else from the best sizes of groups and
 * chunks. */
static void esp__search_partitions(esp__problem *p, esp__schedule *best) {
    esp__partition_start *cuts = esp__arena_get(p->arena, ESP__PARTITIONS_MAX * sizeof *cuts);
    esp__schedule d = {0};
    esp__stage(p, 0.3);
    uint32_t n = esp__partitions(p, cuts);
    for (uint32_t r = 0; r < ESP__PARTITIONS_TAKEN && r < n; r++) {
        esp__partition(p, &d, cuts[r].merge, cuts[r].split);
        esp__stage(p, 0.15);
        esp__start_balanced(p, &d);
        esp__search_from(p, best, &d, r ? 0.12 : 0.2);
    }
}

/* Returns whether the configuration and its limits allow a schedule from outside the search. */
static bool esp__permitted(esp__problem *p, const esp__schedule *d) {
    const uint32_t flags = p->config.flags;
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__path *path = d->paths[u];
        if (!esp__path_open(p, path) || (path->option && !esp__option_permitted(p, path->option)) ||
            (flags & ESP_PLAN_NO_MERGE && d->units[u].n > 1) ||
            (flags & ESP_PLAN_NO_SPLIT && esp__is_chunk(p, &d->units[u])))
            return false;
    }
    return esp__schedule_allowed(p, d);
}

/* Searches from a schedule of another strategy if that is better than `best`, which thus is never worse. */
static void esp__search_other(esp__problem *p, esp__schedule *best, const esp__schedule *other) {
    esp__schedule d = {0};
    if (!best->n_units || other->makespan >= best->makespan || !esp__permitted(p, other)) return;
    esp__schedule_copy(p, &d, other);
    esp__search_from(p, best, &d, 0.2);
}

static void esp__search_simple(esp__problem *p, esp__schedule *best) {
    p->work_end = 0;
    if (p->fp32) esp__search_other(p, best, p->fp32);
    if (!p->layerwise) p->layerwise = esp__arena_get(p->arena, (p->n_free_codecs + 1u) * sizeof *p->layerwise);
    for (uint32_t codec = 0; codec < p->n_free_codecs && p->allow != ESP__ALLOW_RAW; codec++) {
        p->work_end = 0;
        if (!p->layerwise[codec].n_units) esp__layerwise_with(p, &p->layerwise[codec], codec);
        esp__search_other(p, best, &p->layerwise[codec]);
    }
}

/* Searches from every comparison strategy, so that the result is never worse than any of them. */
static void esp__search_schemes(esp__problem *p, esp__schedule *best) {
    for (const esp__scheme *s = esp__schemes(); s->name && p->n_codecs; s++) {
        esp__schedule d = {0};
        if (esp__scheme_brings_codec(p, s)) continue;
        p->work_end = 0;
        s->make(p, &d);
        esp__search_other(p, best, &d);
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */
enum { ESP__NODES = 6000000 }; /* some 50 ms for five tensors or groups */
/* The share of the usual effort for small tensors, after a search that leaves them uncompressed. */
static const double esp__small_share = 0.1;

/* Searches with what p->allow and the configuration allow, from `best` and, if `partitions`, from other groups on. */
static void esp__search_once(esp__problem *p, esp__schedule *best, bool partitions) {
    esp__schedule d = {0};
    if (best->n_units) esp__schedule_copy(p, &d, best);
    esp__search_from(p, best, &d, 0.2);
    if (partitions) esp__search_partitions(p, best);
    esp__search_simple(p, best);
    /* fewer tensors have fewer options, so that random changes help sooner */
    esp__stage(p, (esp__as_given(p) ? 80.0 : 160.0) / ((double)p->n_tensors + 48.0));
    esp__iterate(p, best);
    p->work_end = 0;
    if (p->allow == ESP__ALLOW_ALL) esp__small_exact(p, best, ESP__NODES);
}

/* Runs the search with less allowed first: `results` has those of tensors as given when this is called for groups and
 * chunks. */
static void esp__search_allowed(esp__problem *p, esp__schedule results[ESP__ALLOWANCES]) {
    const esp__schedule *last = NULL;
    static const uint32_t order[] = {ESP__ALLOW_RAW, ESP__ALLOW_GPU, ESP__ALLOW_ALL};
    for (uint32_t i = 0; i < ESP__ALLOWANCES; i++) {
        const uint32_t a = order[i];
        if (a == ESP__ALLOW_RAW && (!p->n_codecs || p->config.flags & ESP_PLAN_NO_COMP)) continue;
        if (a == ESP__ALLOW_GPU && esp__devices(p) != 3u) continue;
        p->allow = a, p->seed = p->config.seed;
        if (last && last->n_units) esp__keep_better_allowed(p, &results[a], last);
        esp__search_once(p, &results[a], true);
        last = &results[a];
    }
}

/* Searches on from a result that leaves small tensors uncompressed, with compression of them, too. If there is none
 * within the limits, begins anew. */
static void esp__search_small(esp__problem *p, esp__schedule *best, const uint32_t *small) {
    const uint32_t *usual = p->n_small;
    const double effort = p->effort;
    if (usual == small) return;
    p->n_small = small, p->layerwise = NULL;
    p->effort = esp__small_share * effort;
    const bool found = best->n_units && esp__schedule_allowed(p, best);
    esp__search_once(p, best, !esp__as_given(p) || !found);
    if (effort > 1.0) esp__search_schemes(p, best);
    p->effort = effort;
    p->n_small = usual, p->layerwise = NULL;
}

/* Searches with tensors as given first, and without compression of small tensors, so that neither merging and splitting
 * nor a lower limit lengthens the plan. */
static void esp__search_phases(esp__problem *p, esp__schedule *d) {
    const uint32_t *small = p->n_small;
    esp__schedule results[ESP__ALLOWANCES] = {{0}}, *best = &results[ESP__ALLOW_ALL], given = {0};
    const uint32_t flags = p->config.flags, phases = esp__as_given(p) ? 1 : 2;
    const double more = (p->effort - 1.0) / 2.0;
    p->n_small = p->n_small_usual;
    for (uint32_t phase = 0; phase < phases; phase++) {
        if (phase && best->n_units) esp__schedule_copy(p, &given, best);
        if (phase) esp__search_small(p, &given, small);
        p->config.flags = phase ? flags : flags | ESP__AS_GIVEN;
        esp__search_allowed(p, results);
        if (more <= 0.0) continue;
        esp__search_schemes(p, best);
        esp__stage(p, more);
        esp__iterate(p, best);
    }
    esp__search_small(p, best, small);
    p->n_small = small, p->layerwise = NULL;
    if (given.n_units) esp__keep_better_allowed(p, best, &given);
    p->work_end = 0;
    if (p->deadline_ns) esp__iterate(p, best);
    esp__schedule_copy(p, d, best);
}

/* Searches without limits first: limits that the plan keeps anyway do not change it. A time budget is too short for two
 * searches. */
ESP__FN void esp__search_all(esp__problem *p, esp__schedule *d) {
    const esp_plan_config config = p->config;
    double may[ESP__LIMITS];
    if (!p->deadline_ns && esp__may_use(p, may)) {
        p->config.max_memory_bytes = 0, p->config.max_volume = p->config.max_error = 0.0;
        memset((void *)p->candidate_sets, 0, p->n_candidate_slots * sizeof *p->candidate_sets);
        esp__search_phases(p, d);
        memset((void *)p->candidate_sets, 0, p->n_candidate_slots * sizeof *p->candidate_sets);
        p->config = config;
        if (esp__schedule_allowed(p, d)) return;
    }
    esp__search_phases(p, d);
}
