/* plan.c: selects the strategies, makes their plans (on rank 0), and refuses bad runs before anything runs. Must not
 * know how strategies are run. */
#include "tools/replay/replay.h"

/* ---- which ------------------------------------------------------------------------------------------------------------ */
static int replay_is_scheme(const char *name) { return strcmp(name, "espresso+") == 0 || esp__scheme_find(name); }

static int replay_add(replay_run *r, const char *name, size_t len) {
    if (r->n_list == REPLAY_STRATEGIES_MAX)
        return tool_usage(r->in.command, "--strategy: at most %d strategies", (int)REPLAY_STRATEGIES_MAX);
    replay_strategy *s = &r->list[r->n_list++];
    memset(s, 0, sizeof *s);
    s->name = tool_realloc(NULL, len + 1);
    memcpy(s->name, name, len);
    s->name[len] = 0;
    for (uint32_t i = 0; i + 1 < r->n_list; i++)
        if (strcmp(r->list[i].name, s->name) == 0)
            return tool_usage(r->in.command, "--strategy: '%s' is there twice", s->name);
    if (replay_is_scheme(s->name)) return TOOL_OK;
    if (plan_is_path(s->name) || access(s->name, F_OK) == 0)
        return plan_read_strategy(r->in.command, s->name, &s->text);
    return plan_no_strategy(r->in.command, s->name);
}

static int replay_list(replay_run *r) {
    int status = TOOL_OK;
    if (strcmp(r->strategies, "all") == 0) {
        for (const esp__scheme *const *s = esp__schemes(); *s && status == TOOL_OK; s++)
            status = replay_add(r, (*s)->name, strlen((*s)->name));
        return status == TOOL_OK ? replay_add(r, "espresso+", 9) : status;
    }
    for (const char *at = r->strategies; *at && status == TOOL_OK; at += *at == ',') {
        const size_t n = strcspn(at, ",");
        if (n) status = replay_add(r, at, n);
        at += n;
    }
    if (status == TOOL_OK && !r->n_list) status = tool_usage(r->in.command, "--strategy names none");
    return status;
}

static void replay_strategy_free(replay_strategy *s) {
    free(s->name);
    esp__text_free(&s->text);
    free(s->step_ns);
    free(s->communication_ns);
    free(s->compression_ns);
    free(s->spans);
    free(s->event_of_op);
    plan_free(&s->predicted);
    memset(s, 0, sizeof *s);
}

static void replay_drop(replay_run *r, uint32_t i) {
    replay_strategy_free(&r->list[i]);
    memmove(&r->list[i], &r->list[i + 1], (r->n_list - i - 1) * sizeof *r->list);
    r->n_list--;
}

/* ---- plans -------------------------------------------------------------------------------------------------------------- */
/* Makes the plan that runs, and its text with the complete order. The user's limits apply only to the search for a
 * plan; a plan that was found, or came from a file, is taken without them. */
static int replay_predict(replay_run *r, replay_strategy *s) {
    plan_inputs in = r->in;
    memset(&in.config, 0, sizeof in.config);
    in.config.struct_size = sizeof in.config;
    in.config.flags = ESP_PLAN_NO_BOUND;
    plan_free(&s->predicted);
    if (plan_simulate(&in, s->text.data, s->name, &s->predicted) != ESP_OK)
        return tool_fail(r->in.command, "%s: %s", s->name, esp_last_error(NULL));
    esp__text_free(&s->text);
    esp__text_add(&s->text, "%s", esp_plan_text(s->predicted.plan));
    return s->text.failed ? tool_fail(r->in.command, "out of memory") : TOOL_OK;
}

/* Makes the text of one strategy. Returns 0 where it cannot be made here; the error says why. */
static int replay_plan_text(replay_run *r, replay_strategy *s) {
    plan_inputs in = r->in;
    plan_made m;
    if (s->text.data) return 1;
    const esp__scheme *scheme = esp__scheme_find(s->name);
    if (!scheme || !scheme->codec) in.n_codecs = r->n_given;
    if (plan_make(&in, s->name, ESP_PLAN_NO_BOUND, &m) != ESP_OK) return 0;
    const char *text = esp_plan_text(m.plan);
    if (text) esp__text_add(&s->text, "%s", text);
    plan_free(&m);
    return text != NULL;
}

static int replay_plan_all(replay_run *r) {
    const int all = strcmp(r->strategies, "all") == 0;
    for (uint32_t i = 0; i < r->n_list; i++) {
        replay_strategy *s = &r->list[i];
        replay_say(r, "replay: planning %s", s->name);
        if (replay_plan_text(r, s)) {
            if (replay_predict(r, s) != TOOL_OK) return TOOL_FAILED;
            continue;
        }
        if (!all) return tool_fail(r->in.command, "%s: %s", s->name, esp_last_error(NULL));
        fprintf(stderr, "espresso replay: %s is left out: %s\n", s->name, esp_last_error(NULL));
        replay_drop(r, i--);
    }
    return r->n_list ? TOOL_OK : tool_fail(r->in.command, "no strategy is left");
}

/* ---- what is refused ------------------------------------------------------------------------------------------------------ */
/* Share of all cores' time that codecs take, and computing where it uses cores. The planner's cpu lane stands for one
 * machine's cores; it was measured while the ranks of all emulated machines worked on this machine's cores. */
static double replay_load(const replay_run *r, const plan_made *m) {
    const double step = m->report.iteration_ns, cores = (double)r->job.cores;
    const double computing = r->compute == REPLAY_BUSY ? (double)r->n * replay_computing(&r->in.model) / cores : 0;
    return (computing + m->report.lane_ns[ESP__LANE_CPU]) / step;
}

static int replay_refuse(replay_run *r, const char *what) {
    if (!r->force) return tool_fail(r->in.command, "%s; --force runs it all the same, and marks it", what);
    if (!r->warning[0]) snprintf(r->warning, sizeof r->warning, "run with --force: %s", what);
    r->job.warning = r->warning;
    return TOOL_OK;
}

static int replay_check_gap(replay_run *r) {
    char what[200];
    const double gap = replay_median_gap(&r->in.model);
    if (gap >= REPLAY_GAP_MIN_NS || r->in.model.n_tensors < 2) return TOOL_OK;
    snprintf(what, sizeof what,
             "half of all backward gaps are under %s, which no thread can be woken for in time (at least %s): use "
             "--time-scale %.2g",
             tool_time(gap), tool_time(REPLAY_GAP_MIN_NS), ceil(r->time_scale * REPLAY_GAP_MIN_NS / gap * 10) / 10);
    return replay_refuse(r, what);
}

static int replay_check(replay_run *r) {
    const int all = strcmp(r->strategies, "all") == 0;
    int status = replay_check_gap(r);
    r->job.load = 0;
    if (r->job.mode == REPLAY_MODEL) return status; /* ops only occupy their lanes, and take no core */
    for (uint32_t i = 0; i < r->n_list && status == TOOL_OK; i++) {
        const plan_made *m = &r->list[i].predicted;
        const double load = replay_load(r, m);
        char what[200];
        snprintf(what, sizeof what,
                 "%.60s: computing%s and codecs take %.0f%% of %u cores x step (%s), over %.0f%%: that measures the "
                 "scheduler, not the strategy",
                 r->list[i].name, r->compute == REPLAY_BUSY ? "" : " (held, 0)", 100 * load, r->job.cores,
                 tool_time(m->report.iteration_ns), 100 * REPLAY_LOAD_MAX);
        if (load > REPLAY_LOAD_MAX && all && !r->force) {
            fprintf(stderr, "espresso replay: left out: %s\n", what);
            replay_drop(r, i--);
            continue;
        }
        if (load > REPLAY_LOAD_MAX) status = replay_refuse(r, what);
        if (load > r->job.load) r->job.load = load;
    }
    if (status == TOOL_OK && !r->n_list)
        status =
            tool_fail(r->in.command, "no strategy is left: use a larger --time-scale, fewer ranks or lighter codecs");
    return status;
}

/* ---- from rank 0 to all ------------------------------------------------------------------------------------------------------ */
/* Gives rank 0's text, or NULL, to all ranks. */
static esp_status replay_share_text(replay_run *r, char **text) {
    uint32_t len = r->ctx->job.rank == 0 && *text ? (uint32_t)strlen(*text) + 1 : 0;
    esp_status s = esp_broadcast(r->ctx, &len, sizeof len, 0);
    if (s || !len) return s;
    if (r->ctx->job.rank) *text = tool_realloc(NULL, len);
    return esp_broadcast(r->ctx, *text, len, 0);
}

/* Gives rank 0's list of strategies and texts to all ranks. */
static esp_status replay_share_texts(replay_run *r) {
    uint32_t n = r->n_list;
    esp_status s = esp_broadcast(r->ctx, &n, sizeof n, 0);
    while (!s && r->ctx->job.rank && r->n_list > n) replay_drop(r, r->n_list - 1);
    for (uint32_t i = 0; i < n && !s; i++) {
        char *text = r->ctx->job.rank ? NULL : r->list[i].text.data;
        s = replay_share_text(r, &text);
        if (!r->ctx->job.rank) continue;
        esp__text_free(&r->list[i].text);
        if (text) esp__text_add(&r->list[i].text, "%s", text);
        free(text);
    }
    return s;
}
