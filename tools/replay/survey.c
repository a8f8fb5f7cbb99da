/* survey.c: real mode's costs for the planner: links, codecs, and dispatch times. All ranks measure them together,
 * in the processes that later run the strategies. Must not know how a survey measures. */
#include "tools/replay/replay.h"

enum {
    REPLAY_ROUGH_BYTES = 8 << 20,
    REPLAY_FIRST_BYTES = 64,
    REPLAY_LEAST_BYTES = 2048,
    REPLAY_ROOM = 128 << 20, /* of all ranks together: more than caches hold, so that measured data is not cached */
    REPLAY_AGAIN = 2,        /* a point whose runs differ much is measured again this many times */
    REPLAY_FIRST_ELEMENTS = 16,
    REPLAY_SURVEY_STEPS = 4,
    REPLAY_AUTO_STEPS = 500 /* far more than strategy auto measures */
};
#define REPLAY_SPREAD 0.2
#define REPLAY_LONGEST_NS 400e6 /* no larger size is measured after one that takes this long */

/* Measures points again whose runs differ much: each time is one more observation. */
static esp_status replay_survey_again(replay_run *r, uint8_t level, uint32_t coll) {
    const esp__survey_curve *c = &r->survey->link[level][coll];
    esp_status s = ESP_OK;
    for (int k = 0; k < REPLAY_AGAIN; k++)
        for (uint32_t i = c->n; i-- > 0 && !s;)
            if (c->spread[i] > REPLAY_SPREAD)
                s = esp__survey_link(r->ctx, r->survey, level, coll, (uint64_t)c->at[i].size,
                                     esp__survey_repeats(c->at[i].ns));
    return s;
}

/* Measures one collective at sizes up to `most` bytes, each four times the size before. */
static esp_status replay_survey_link(replay_run *r, uint8_t level, uint32_t coll, uint64_t most) {
    esp_status s = ESP_OK;
    double guess = 0;
    for (uint64_t bytes = REPLAY_FIRST_BYTES; !s; bytes *= 4) {
        const uint64_t size = bytes < most ? bytes : most;
        s = esp__survey_link(r->ctx, r->survey, level, coll, size, esp__survey_repeats(guess));
        guess = 4 * esp__survey_guess(r->ctx, r->survey, level, coll, size);
        if (size == most || guess > REPLAY_LONGEST_NS) break;
    }
    return s ? s : replay_survey_again(r, level, coll);
}

static esp_status replay_survey_open(replay_run *r, uint64_t bytes, uint64_t elements) {
    if (r->survey) esp__survey_close(r->ctx, r->survey);
    r->survey = tool_realloc(r->survey, sizeof *r->survey);
    memset(r->survey, 0, sizeof *r->survey);
    return esp__survey_open(r->ctx, r->survey, bytes, elements);
}

/* Gives the survey's costs to the planner. */
static esp_status replay_survey_take(replay_run *r) {
    r->survey->load = r->compute == REPLAY_BUSY ? 1.0 : 0.0;
    const esp_status s = esp__survey_finish(r->ctx, r->survey);
    if (s) return s;
    r->surveyed = r->survey;
    r->in.system = r->survey->system;
    r->in.system.name = "as measured";
    /* before codecs are measured, n_codecs is 0 and the user's specs stay */
    memcpy(r->in.codecs, r->survey->plan_codecs, r->survey->n_codecs * sizeof *r->in.codecs);
    return ESP_OK;
}

/* Measures what strategy fp32 needs. */
static esp_status replay_survey_rough(replay_run *r) {
    static const struct {
        uint8_t level;
        uint32_t coll;
    } all[] = {{ESP__FLAT, ESP_COLL_ALLREDUCE},
               {ESP__INTRA, ESP_COLL_REDUCE_SCATTER},
               {ESP__INTRA, ESP_COLL_ALLGATHER},
               {ESP__INTER, ESP_COLL_ALLREDUCE}};
    esp_status s = replay_survey_open(r, REPLAY_ROUGH_BYTES, 1024);
    replay_say(r, "replay: a first look at the links");
    for (size_t i = 0; i < sizeof all / sizeof *all && !s; i++)
        s = replay_survey_link(r, all[i].level, all[i].coll, REPLAY_ROUGH_BYTES);
    return s ? s : replay_survey_take(r);
}

static uint64_t replay_elements(const replay_run *r) {
    uint64_t n = 0;
    for (uint32_t t = 0; t < r->in.model.n_tensors; t++) n += r->in.model.tensors[t].elements;
    return n;
}

static esp_status replay_survey_links(replay_run *r) {
    static const uint32_t colls[] = {ESP_COLL_ALLREDUCE, ESP_COLL_REDUCE_SCATTER, ESP_COLL_ALLGATHER, ESP_COLL_ALLTOALL,
                                     ESP_COLL_BROADCAST, ESP_COLL_GATHER,         ESP_COLL_REDUCE};
    enum { COLLS = sizeof colls / sizeof *colls };
    const uint64_t elements = replay_elements(r),
                   most = elements * 4 < REPLAY_LEAST_BYTES ? REPLAY_LEAST_BYTES : elements * 4;
    const int flat_only = !esp__survey_has(r->ctx, ESP__INTER);
    const uint64_t room = most < REPLAY_ROOM / (uint64_t)r->n ? REPLAY_ROOM / (uint64_t)r->n : most;
    esp_status s = replay_survey_open(r, room, 4 * elements); /* more than now needed: the scale may change */
    for (uint8_t level = ESP__FLAT; level <= (flat_only ? ESP__FLAT : ESP__INTER) && !s; level++)
        for (uint32_t c = 0; c < COLLS && !s; c++) {
            replay_say(r, "replay: measuring links, %u of %u", level * COLLS + c + 1, (flat_only ? 1 : 3) * COLLS);
            s = replay_survey_link(r, level, colls[c], most);
        }
    return s ? s : replay_survey_take(r);
}

static esp_status replay_survey_codecs(replay_run *r) {
    const uint64_t there = replay_elements(r), most = r->survey->max_elements, elements = there < most ? there : most;
    esp_status s = ESP_OK;
    const uint32_t n = r->in.n_codecs;
    for (uint32_t c = 0; c < n && !s; c++) {
        s = esp__survey_codec_add(r->ctx, r->survey, r->in.codecs[c].spec);
        replay_say(r, "replay: measuring codecs, %u of %u", c + 1, n);
        for (uint64_t e = REPLAY_FIRST_ELEMENTS; !s; e *= 4) {
            const uint64_t size = e < elements ? e : elements;
            s = esp__survey_codec_at(r->ctx, r->survey, c, size, size > 1 << 18 ? 3 : size > 1 << 14 ? 7 : 15);
            if (size == elements) break;
        }
    }
    return s ? s : replay_survey_take(r);
}

/* Runs a few steps under strategy `text`, which is the same on all ranks, and takes observations from them. */
static esp_status replay_survey_steps(replay_run *r, char *name, const char *text) {
    replay_strategy s = {.name = name};
    esp_status status = ESP_E_ARG;
    esp__text_add(&s.text, "%s", text);
    if (replay_predict(r, &s) == TOOL_OK) {
        replay_strategy_room(&s, 1);
        status = replay_turn(r, &s, 1);
        for (int k = 0; k < REPLAY_SURVEY_STEPS && !status; k++) {
            status = replay_step(r, NULL);
            if (!status) status = esp__survey_step(r->ctx, r->survey);
        }
    }
    s.name = NULL;
    replay_strategy_free(&s);
    return status;
}

/* Observes ops in steps, under two strategies: without compression, and with every tensor compressed. */
static esp_status replay_survey_in_steps(replay_run *r) {
    static const char *const names[] = {"fp32", "layerwise"};
    esp_status s = ESP_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !s; i++) {
        char *text = NULL, name[16];
        plan_made m;
        snprintf(name, sizeof name, "%s", names[i]);
        replay_say(r, "replay: measuring ops in steps, under %s", name);
        if (r->ctx->job.rank == 0 && !plan_make(&r->in, name, ESP_PLAN_NO_BOUND, &m)) {
            text = strdup(esp_plan_text(m.plan));
            plan_free(&m);
        }
        s = replay_share_text(r, &text);
        if (!s && text) s = replay_survey_steps(r, name, text);
        free(text);
    }
    if (!s) esp__core_times(r->ctx, ESP__CORE_SURVEY, 0); /* what is replayed runs as it would in a job */
    return s ? s : replay_survey_take(r);
}

/* The codecs as the autopilot measured them, in the order that the user gave. */
static esp_status replay_auto_codecs(replay_run *r) {
    const esp__survey *a = r->surveyed;
    for (uint32_t c = 0; c < r->in.n_codecs; c++) {
        uint32_t k = 0;
        while (k < a->n_codecs && strcmp(a->plan_codecs[k].spec, r->in.codecs[c].spec) != 0) k++;
        if (k == a->n_codecs)
            return esp__fail(r->ctx, ESP_E_ARG,
                             "--costs auto: strategy auto did not measure codec '%s': it takes %d at most",
                             r->in.codecs[c].spec, ESP__SURVEY_CODECS);
        r->in.codecs[c] = a->plan_codecs[k];
    }
    return ESP_OK;
}

static esp_status replay_survey_auto(replay_run *r) {
    esp_status s = ESP_OK;
    replay_say(r, "replay: strategy auto measures in its first steps");
    for (int k = 0; k < REPLAY_AUTO_STEPS && !s && !r->surveyed; k++) {
        s = replay_step(r, NULL);
        if (!s) s = esp__auto_survey(r->ctx, &r->surveyed);
    }
    if (s) return s;
    if (!r->surveyed)
        return esp__fail(r->ctx, ESP_E_TIMEOUT, "--costs auto: strategy auto has not planned after %d steps",
                         REPLAY_AUTO_STEPS);
    r->in.system = r->surveyed->system;
    r->in.system.name = "as strategy auto measured it";
    s = replay_auto_codecs(r);
    return s ? s : esp_strategy_set(r->ctx, "fp32"); /* from now on the autopilot does nothing */
}
