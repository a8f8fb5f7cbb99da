/* survey.c: real mode's costs for the planner: links, codecs, and starting an op. All ranks measure them together,
 * in the processes that later run the strategies. Must not know how a survey measures. */
#include "tools/replay/replay.h"

enum {
    REPLAY_ROUGH_BYTES = 8 << 20,
    REPLAY_FIRST_BYTES = 64,
    REPLAY_LEAST_BYTES = 2048,
    REPLAY_ROOM = 128 << 20, /* of all ranks together: more than caches hold, so that measured data is not cached */
    REPLAY_AGAIN = 2,        /* an outlier is measured again this many times */
    REPLAY_FIRST_ELEMENTS = 16,
    REPLAY_DISPATCH_STEPS = 4
};
#define REPLAY_LONGEST_NS 400e6 /* no larger size is measured after one that takes this long */

/* Returns 1 if a point is an outlier: above the line through its neighbours, or, for the last point, more than in
 * proportion to the point before. Other work of the machine may have disturbed it. */
static int replay_survey_outliers(const esp__survey_curve *c, uint32_t i) {
    const esp_cost_point *p = c->at;
    double most;
    if (i == 0 || i >= c->n) return 0;
    if (i + 1 == c->n)
        most = p[i - 1].ns * (p[i].size / p[i - 1].size);
    else
        most =
            p[i - 1].ns + (p[i + 1].ns - p[i - 1].ns) * ((p[i].size - p[i - 1].size) / (p[i + 1].size - p[i - 1].size));
    return p[i].ns > 1.05 * most;
}

/* Measures outliers again, and keeps the smaller time of each point. */
static esp_status replay_survey_again(replay_run *r, uint8_t level, uint32_t coll) {
    const esp__survey_curve *c = &r->survey->link[level][coll];
    esp_status s = ESP_OK;
    for (int k = 0; k < REPLAY_AGAIN; k++)
        for (uint32_t i = c->n; i-- > 0 && !s;)
            if (replay_survey_outliers(c, i))
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
    const esp_status s = esp__survey_finish(r->ctx, r->survey);
    if (s) return s;
    r->in.system = r->survey->system;
    r->in.system.name = "as measured";
    r->in.system.cores_per_rank = r->compute == REPLAY_BUSY;
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

/* Runs a few steps under strategy `text`, which is the same on all ranks. */
static esp_status replay_survey_steps(replay_run *r, char *name, const char *text, replay_dispatch *d) {
    replay_strategy s = {.name = name};
    esp_status status = ESP_E_ARG;
    esp__text_add(&s.text, "%s", text);
    if (replay_predict(r, &s) == TOOL_OK) {
        replay_strategy_room(&s, REPLAY_DISPATCH_STEPS);
        status = replay_turn(r, &s, REPLAY_DISPATCH_STEPS);
        if (!status) status = replay_gather_spans(r, &s);
        if (!status) replay_dispatch_add(d, &s);
    }
    s.name = NULL;
    replay_strategy_free(&s);
    return status;
}

/* Multiplies the costs of large sizes inside a machine by `times`. */
static esp_status replay_survey_slower(replay_run *r, double times) {
    const uint8_t level = r->machines == 1 ? ESP__FLAT : ESP__INTRA;
    for (uint32_t c = 0; c < ESP_PLAN_COLLS; c++) {
        esp__survey_curve *x = &r->survey->link[level][c];
        for (uint32_t i = 0; i < x->n; i++)
            if (x->at[i].size >= REPLAY_LARGE_BYTES) x->at[i].ns *= times;
    }
    return replay_survey_take(r);
}

/* Measures dispatch under two strategies: without compression, and with every tensor compressed. */
static esp_status replay_survey_dispatch(replay_run *r) {
    static const char *const names[] = {"fp32", "layerwise"};
    replay_dispatch d;
    esp_status s = ESP_OK;
    memset(&d, 0, sizeof d);
    memset(r->in.system.dispatch_ns, 0, sizeof r->in.system.dispatch_ns);
    for (size_t i = 0; i < sizeof names / sizeof *names && !s; i++) {
        char *text = NULL, name[16];
        plan_made m;
        snprintf(name, sizeof name, "%s", names[i]);
        replay_say(r, "replay: what starting an op costs, under %s", name);
        if (r->ctx->job.rank == 0 && !plan_make(&r->in, name, ESP_PLAN_NO_BOUND, &m)) {
            text = strdup(esp_plan_text(m.plan));
            plan_free(&m);
        }
        s = replay_share_text(r, &text);
        if (!s && text) s = replay_survey_steps(r, name, text, &d);
        free(text);
    }
    if (!s) s = replay_survey_slower(r, replay_slower(&d));
    replay_dispatch_take(&d, r->in.system.dispatch_ns);
    return s;
}
