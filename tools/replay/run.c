/* run.c: one rank from start to end: takes part in the survey, gets rank 0's plans, runs all strategies round by
 * round, and gives rank 0 its measurements. Must not know how results are shown. */
#include "espresso_impl/base/machine.h"
#include "espresso_impl/base/quantile.h"
#include "tools/replay/replay.h"

/* ---- rank 0 decides, all follow ---------------------------------------------------------------------------------------- */
/* Gives rank 0's status to all ranks. */
static esp_status replay_share_status(replay_run *r, int *status) {
    int32_t v = *status;
    const esp_status s = esp_broadcast(r->ctx, &v, sizeof v, 0);
    *status = v;
    return s;
}

/* Gives the scales that rank 0 chose to all ranks. */
static esp_status replay_share_scales(replay_run *r) {
    double v[2] = {r->elements_scale, r->time_scale};
    const esp_status s = esp_broadcast(r->ctx, v, sizeof v, 0);
    if (!s && r->ctx->job.rank) replay_scale(r, v[0], v[1]);
    return s;
}

/* ---- before the strategies ------------------------------------------------------------------------------------------------ */
static esp_status replay_add_tensors(replay_run *r) {
    esp_status s = ESP_OK;
    for (uint32_t t = 0; t < r->in.model.n_tensors && !s; t++) {
        esp_tensor_desc d = {.struct_size = sizeof d};
        uint32_t id;
        d.name = r->in.model.tensors[t].name;
        d.count = r->in.model.tensors[t].elements;
        d.rows = r->in.model.tensors[t].rows, d.cols = r->in.model.tensors[t].cols;
        s = esp_tensor_add(r->ctx, &d, &id);
    }
    if (!s) s = esp_start(r->ctx);
    return s ? s : replay_buffers(r);
}

/* Chooses scales for --ratio with the link times measured so far. */
static esp_status replay_rescale(replay_run *r, int *status) {
    if (!(r->ratio > 0)) return ESP_OK;
    if (r->ctx->job.rank == 0) *status = replay_choose(r);
    const esp_status s = replay_share_status(r, status);
    return s || *status != TOOL_OK ? s : replay_share_scales(r);
}

/* Real mode: measures the costs that the planner needs. Scales are chosen twice: first to know which sizes to
 * measure, then with the measured times. */
static esp_status replay_measure(replay_run *r, int *status) {
    esp_status s = r->ratio > 0 && !r->in.costs_name ? replay_survey_rough(r) : ESP_OK;
    r->surveyed = NULL; /* only a first look */
    if (!s) s = replay_rescale(r, status);
    if (s || *status != TOOL_OK) return s;
    if (r->ctx->job.rank == 0) *status = replay_memory_fits(r);
    s = replay_share_status(r, status);
    if (r->in.costs_name) return s || *status != TOOL_OK ? s : replay_add_tensors(r);
    if (!s && *status == TOOL_OK && !r->costs_auto) s = replay_survey_links(r);
    if (!s && *status == TOOL_OK && !r->costs_auto) s = replay_rescale(r, status);
    if (s || *status != TOOL_OK) return s;
    if (!r->costs_auto) s = replay_survey_codecs(r);
    if (!s) s = replay_add_tensors(r);
    if (!s) s = r->costs_auto ? replay_survey_auto(r) : replay_survey_in_steps(r);
    if (!s && r->ctx->job.rank == 0 && r->save_costs) *status = replay_costs_save(r);
    return s ? s : replay_share_status(r, status);
}

static esp_status replay_prepare(replay_run *r, int *status) {
    esp_status s = r->job.mode == REPLAY_REAL ? replay_measure(r, status) : replay_add_tensors(r);
    if (s || *status != TOOL_OK) return s;
    if (r->ctx->job.rank == 0) *status = replay_plan_all(r);
    if (r->ctx->job.rank == 0 && *status == TOOL_OK) *status = replay_check(r);
    s = replay_share_status(r, status);
    if (!s && *status == TOOL_OK) s = replay_share_texts(r);
    /* every rank makes the same plan, from the same text and costs */
    for (uint32_t i = 0; i < r->n_list && !s && *status == TOOL_OK; i++)
        if (r->ctx->job.rank && replay_predict(r, &r->list[i]) != TOOL_OK) s = ESP_E_ARG;
    return s;
}

/* ---- the strategies ---------------------------------------------------------------------------------------------------------- */
static void replay_strategy_room(replay_strategy *s, uint32_t steps) {
    const size_t n = steps;
    s->step_ns = tool_realloc(NULL, n * sizeof(double));
    s->communication_ns = tool_realloc(NULL, n * sizeof(double));
    s->compression_ns = tool_realloc(NULL, n * sizeof(double));
    s->n_events = s->predicted.n_events;
    s->spans = tool_realloc(NULL, n * s->n_events * sizeof *s->spans);
}

static esp_status replay_turn_begin(replay_run *r, replay_strategy *s) {
    esp_status status = esp_strategy_set(r->ctx, s->text.data);
    if (!status && r->job.mode == REPLAY_MODEL) status = esp__clocked_set(r->ctx, s->predicted.plan, 1.0);
    if (status) return status;
    s->event_of_op = tool_realloc(s->event_of_op, (r->ctx->in_force.program.n_ops + 1) * sizeof *s->event_of_op);
    return esp__clocked_match(r->ctx, s->predicted.plan, s->event_of_op);
}

/* Runs one strategy in one round: a step that is not recorded, then a few that are. */
static esp_status replay_turn(replay_run *r, replay_strategy *s, uint32_t steps) {
    esp_stats before = {.struct_size = sizeof before}, after = before;
    esp_status status = replay_turn_begin(r, s);
    if (!status) status = replay_step(r, NULL);
    if (!status) status = esp_stats_read(r->ctx, &before);
    for (uint32_t i = 0; i < steps && !status; i++) status = replay_step(r, s);
    if (!status) status = esp_stats_read(r->ctx, &after);
    if (!status) s->intra_bytes += after.intra_bytes - before.intra_bytes;
    if (!status) s->inter_bytes += after.inter_bytes - before.inter_bytes;
    return status;
}

/* Runs all strategies in every round, so that other work of the machine disturbs all of them alike. */
static esp_status replay_rounds(replay_run *r) {
    const uint32_t rounds = ((uint32_t)r->steps + REPLAY_ROUND_STEPS - 1) / REPLAY_ROUND_STEPS;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < r->n_list; i++) replay_strategy_room(&r->list[i], (uint32_t)r->steps);
    for (uint32_t k = 0; k < rounds && !s; k++) {
        const uint32_t left = (uint32_t)r->steps - k * REPLAY_ROUND_STEPS;
        for (uint32_t i = 0; i < r->n_list && !s; i++) {
            replay_say(r, "replay: round %u of %u, %s", k + 1, rounds, r->list[i].name);
            s = replay_turn(r, &r->list[i], left < REPLAY_ROUND_STEPS ? left : REPLAY_ROUND_STEPS);
        }
    }
    return s;
}

/* ---- results ---------------------------------------------------------------------------------------------------------------------- */
/* Begin and end of each op, as medians over the steps. */
static esp_plan_event *replay_medians(const replay_strategy *s) {
    esp_plan_event *out = tool_realloc(NULL, (s->n_events + 1) * sizeof *out);
    double *start = tool_realloc(NULL, s->n_steps * sizeof *start), *end = tool_realloc(NULL, s->n_steps * sizeof *end);
    for (uint32_t e = 0; e < s->n_events; e++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < s->n_steps; k++) {
            const esp__span x = s->spans[(size_t)k * s->n_events + e];
            if (x.end_ns == UINT64_MAX) continue;
            start[n] = (double)x.start_ns;
            end[n++] = (double)x.end_ns;
        }
        out[e] = s->predicted.events[e];
        out[e].start_ns = out[e].end_ns = UINT64_MAX;
        if (!n) continue;
        out[e].start_ns = (uint64_t)esp__median(start, n);
        out[e].end_ns = (uint64_t)esp__median(end, n);
        if (out[e].end_ns < out[e].start_ns) out[e].end_ns = out[e].start_ns;
    }
    free(start);
    free(end);
    return out;
}

static void replay_result_make(replay_strategy *s, replay_result *out) {
    double *sorted = tool_realloc(NULL, s->n_steps * sizeof *sorted);
    memcpy(sorted, s->step_ns, s->n_steps * sizeof *sorted);
    memset(out, 0, sizeof *out);
    out->name = s->name;
    out->predicted = s->predicted;
    out->step_ns = s->step_ns;
    out->n_steps = s->n_steps;
    out->measured = replay_medians(s);
    out->median_ns = esp__median(sorted, s->n_steps);
    out->p10_ns = esp__quantile(sorted, s->n_steps, 0.1);
    out->p90_ns = esp__quantile(sorted, s->n_steps, 0.9);
    out->exposed_communication_ns = esp__median(s->communication_ns, s->n_steps);
    out->exposed_compression_ns = esp__median(s->compression_ns, s->n_steps);
    out->intra_bytes = s->intra_bytes / s->n_steps;
    out->inter_bytes = s->inter_bytes / s->n_steps;
    out->noisy = out->p90_ns - out->p10_ns > REPLAY_NOISY * out->median_ns;
    free(sorted);
}

/* An op lasts from when the last rank began until the last rank ended it. Earlier ranks' waiting for the last one
 * does not count. */
static esp_status replay_gather_spans(replay_run *r, replay_strategy *s) {
    const size_t each = s->n_events * sizeof *s->spans;
    esp__span *all = tool_realloc(NULL, (size_t)r->ctx->job.size * each);
    esp_status status = ESP_OK;
    for (uint32_t k = 0; k < s->n_steps && !status; k++) {
        esp__span *mine = s->spans + (size_t)k * s->n_events;
        status = esp__peers_allgather(r->ctx->job.peers, NULL, r->ctx->job.size, mine, all, each);
        for (size_t i = 0; i < (size_t)r->ctx->job.size * s->n_events && !status; i++) {
            esp__span *to = &mine[i % s->n_events];
            if (all[i].end_ns == UINT64_MAX) continue; /* this rank has no such op */
            if (to->end_ns == UINT64_MAX) *to = all[i];
            if (all[i].start_ns > to->start_ns) to->start_ns = all[i].start_ns;
            if (all[i].end_ns > to->end_ns) to->end_ns = all[i].end_ns;
        }
    }
    free(all);
    return status;
}

/* Gathers from all ranks: each step's time is that of the slowest rank; bytes are summed. */
static esp_status replay_gather(replay_run *r) {
    const size_t n = (size_t)r->ctx->job.size;
    esp_status status = ESP_OK;
    for (uint32_t i = 0; i < r->n_list && !status; i++) {
        replay_strategy *s = &r->list[i];
        double *all = tool_realloc(NULL, n * s->n_steps * sizeof *all);
        uint64_t bytes[2] = {s->intra_bytes, s->inter_bytes};
        uint64_t *moved = tool_realloc(NULL, n * sizeof bytes);
        status =
            esp__peers_allgather(r->ctx->job.peers, NULL, r->ctx->job.size, s->step_ns, all, s->n_steps * sizeof *all);
        if (!status)
            status = esp__peers_allgather(r->ctx->job.peers, NULL, r->ctx->job.size, bytes, moved, sizeof bytes);
        for (size_t k = 0; k < n && !status; k++) {
            for (uint32_t j = 0; j < s->n_steps; j++)
                if (all[k * s->n_steps + j] > s->step_ns[j]) s->step_ns[j] = all[k * s->n_steps + j];
            s->intra_bytes = (k ? s->intra_bytes : 0) + moved[2 * k];
            s->inter_bytes = (k ? s->inter_bytes : 0) + moved[2 * k + 1];
        }
        free(all);
        free(moved);
        if (!status) status = replay_gather_spans(r, s);
    }
    return status;
}

static int replay_show(replay_run *r) {
    replay_job *j = &r->job;
    j->in = &r->in;
    j->elements_scale = r->elements_scale;
    j->time_scale = r->time_scale;
    const double ratio = replay_ratio(&r->in);
    j->ratio = ratio > 0 ? ratio : 0;
    j->results = tool_realloc(NULL, r->n_list * sizeof *j->results);
    j->n_results = r->n_list;
    for (uint32_t i = 0; i < r->n_list; i++) replay_result_make(&r->list[i], &j->results[i]);
    if (r->progress_fd >= 0 && write(r->progress_fd, "\r\033[K", 4) < 0) r->progress_fd = -1;
    const int status = replay_report(j);
    for (uint32_t i = 0; i < r->n_list; i++) free(j->results[i].measured);
    free(j->results);
    return status;
}

/* What strategy auto may choose from, and so measures: the codecs of this run. */
static void replay_name_codecs(const replay_run *r, char *text, size_t room) {
    size_t at = 0;
    snprintf(text, room, "none");
    for (uint32_t c = 0; c < r->in.n_codecs && at < room; c++)
        at += (size_t)snprintf(text + at, room - at, "%s%s", c ? ";" : "", r->in.codecs[c].spec);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------------------------- */
static esp_status replay_open(replay_run *r) {
    static const char *const unwanted[] = {"ESPRESSO_CODEC", "ESPRESSO_STRATEGY", "ESPRESSO_TRACE", "ESPRESSO_STATS",
                                           "ESPRESSO_PROFILE"};
    char codecs[ESP__SURVEY_CODECS * ESP__SPEC_MAX];
    esp_config cfg = {.struct_size = sizeof cfg};
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++) unsetenv(unwanted[i]);
    prctl(PR_SET_TIMERSLACK, 1); /* threads inherit this when they are created */
    cfg.backend = getenv("ESPRESSO_BACKEND") ? NULL : "shm";
    cfg.strategy = "fp32";
    /* a modelled GPU needs no warning that this machine lacks one */
    if (r->job.mode == REPLAY_MODEL || r->costs_auto) cfg.log_level = ESP_LOG_ERROR;
    if (r->costs_auto) { /* what it decides is not followed, and so not logged */
        replay_name_codecs(r, codecs, sizeof codecs);
        cfg.strategy = "auto";
        cfg.codec = codecs;
    }
    cfg.seed = 1;
    return esp_open(&cfg, &r->ctx);
}

static esp_status replay_measured_rounds(replay_run *r) {
    esp__machine_time from, to;
    esp_status s = replay_cpu_now(r, &from);
    if (!s) s = replay_rounds(r);
    if (!s) s = replay_cpu_now(r, &to);
    if (!s) s = replay_gather(r);
    if (!s) r->job.stolen = replay_stolen(&from, &to);
    return s;
}

static void replay_rank_close(replay_run *r) {
    for (uint32_t t = 0; r->grads && t < r->in.model.n_tensors; t++) free(r->grads[t]);
    free(r->grads);
    free(r->pool);
    free(r->ready_ns);
    if (r->survey) esp__survey_close(r->ctx, r->survey);
    esp_close(r->ctx);
    free(r->survey); /* freed last: the inputs' curves point into it */
}

/* Runs one rank. Rank 0's status goes to the command that started the ranks. Other ranks do not repeat a peer's
 * error. */
static int replay_as_rank(replay_run *r) {
    int status = TOOL_OK;
    esp_status s = replay_open(r);
    if (!s) s = replay_prepare(r, &status);
    if (!s && status == TOOL_OK) s = replay_measured_rounds(r);
    if (!s && status == TOOL_OK && r->ctx->job.rank == 0) status = replay_show(r);
    if (s && (!r->ctx || r->ctx->job.rank == 0 || s != ESP_E_PEER))
        tool_fail(r->in.command, "%s", esp_last_error(r->ctx));
    if (s) status = TOOL_FAILED;
    if (!s && r->ctx->job.rank == 0 && r->status_fd >= 0) {
        const char said = (char)status;
        if (write(r->status_fd, &said, 1) == 1) status = TOOL_OK;
    }
    if (!s && r->ctx->job.rank) status = TOOL_OK;
    replay_rank_close(r);
    return status;
}
