/* scale.c: makes a replay smaller and slower than the model. With fewer elements real links move fewer bytes. In
 * model mode links and codecs are slowed down by the same factor, so that every op takes as long as with all
 * elements. Must not know how anything is run. */
#include "espresso_impl/base/quantile.h"
#include "tools/replay/replay.h"

/* Gives the run its own copy of the tensors, to be scaled. */
static void replay_own_tensors(replay_run *r) {
    r->tensors = tool_realloc(NULL, r->in.model.n_tensors * sizeof *r->tensors);
    memcpy(r->tensors, r->in.model.tensors, r->in.model.n_tensors * sizeof *r->tensors);
}

/* ---- the modelled machine, in model mode -------------------------------------------------------------------------- */
static uint32_t replay_link_points(const esp_plan_link *l) {
    uint32_t n = 0;
    for (int c = 0; c < ESP_PLAN_COLLS; c++) n += l->table[c].n + l->gap[c].n + l->core[c].n;
    return n;
}

static esp_cost_point *replay_scale_curve(esp_cost_curve *c, double sizes, double times, esp_cost_point *room) {
    for (uint32_t i = 0; i < c->n; i++) room[i] = (esp_cost_point){c->points[i].size * sizes, c->points[i].ns * times};
    c->points = room;
    return room + c->n;
}

static esp_cost_point *replay_scale_link(esp_plan_link *l, double sizes, double times, esp_cost_point *room) {
    l->alpha_ns *= times;
    l->bytes_per_us *= sizes / times;
    for (int c = 0; c < ESP_PLAN_COLLS; c++) {
        room = replay_scale_curve(&l->table[c], sizes, times, room);
        room = replay_scale_curve(&l->gap[c], sizes, times, room);
        room = replay_scale_curve(&l->core[c], sizes, times, room);
    }
    return room;
}

/* Scales the costs in `in`, but not the model: a size times `sizes` takes the old time times `times`; links are
 * slower by a further factor `links`. */
static void replay_scale_machine(plan_inputs *in, double sizes, double times, double links, void **memory) {
    esp_plan_system *s = &in->system;
    uint32_t points = replay_link_points(&s->intra) + replay_link_points(&s->inter) + replay_link_points(&s->flat);
    for (uint32_t c = 0; c < in->n_codecs; c++)
        for (int d = 0; d < 2; d++)
            points += in->codecs[c].compress[d].n + in->codecs[c].decompress[d].n + in->codecs[c].decompress_more[d].n;
    esp_cost_point *room = tool_realloc(NULL, (points + 1) * sizeof *room);
    void *old = *memory; /* the curves point into it until they are scaled */
    *memory = room;
    room = replay_scale_link(&s->intra, sizes, times * links, room);
    room = replay_scale_link(&s->inter, sizes, times * links, room);
    room = replay_scale_link(&s->flat, sizes, times * links, room);
    s->host_bytes_per_us *= sizes / times;
    s->pack_ns *= times;
    s->pack_bytes_per_us *= sizes / times;
    for (int l = 0; l < ESP__LANES; l++) s->dispatch_ns[l] *= times;
    for (uint32_t c = 0; c < in->n_codecs; c++) {
        esp_plan_codec *k = &in->codecs[c];
        k->header_bytes *= sizes;
        for (int d = 0; d < 2; d++) {
            room = replay_scale_curve(&k->compress[d], sizes, times, room);
            room = replay_scale_curve(&k->decompress[d], sizes, times, room);
            room = replay_scale_curve(&k->decompress_more[d], sizes, times, room);
        }
    }
    free(old);
}

/* ---- the model ---------------------------------------------------------------------------------------------------------- */
static void replay_scale(replay_run *r, double elements, double times) {
    const esp_plan_model *full = &r->in.model_file.model;
    esp_plan_model *m = &r->in.model;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const double e = (double)full->tensors[t].elements * elements + 0.5;
        r->tensors[t].elements = e < 1 ? 1 : (uint64_t)e;
        r->tensors[t].compute_ns = full->tensors[t].compute_ns * times;
    }
    m->tensors = r->tensors;
    m->forward_ns = full->forward_ns * times;
    m->update_ns = full->update_ns * times;
    r->elements_scale = elements;
    r->time_scale = times;
}

static double replay_computing(const esp_plan_model *m) {
    double ns = m->forward_ns + m->update_ns;
    for (uint32_t t = 0; t < m->n_tensors; t++) ns += m->tensors[t].compute_ns;
    return ns;
}

/* Median time between one tensor's gradient and the next. Tensors that are ready at the same time, such as a layer's weight and bias,
 * count once. */
static double replay_median_gap(const esp_plan_model *m) {
    double *gap = tool_realloc(NULL, m->n_tensors * sizeof *gap);
    uint32_t n = 0;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (t == 0 || m->tensors[t].compute_ns > 0) gap[n++] = m->tensors[t].compute_ns;
    const double median = esp__median(gap, n);
    free(gap);
    return median;
}

static double replay_ratio(const plan_inputs *in) {
    plan_made m;
    if (plan_make(in, "fp32", ESP_PLAN_NO_BOUND, &m) != ESP_OK) return -1;
    const double busy = m.report.lane_ns[ESP__LANE_INTRA] > m.report.lane_ns[ESP__LANE_INTER]
                            ? m.report.lane_ns[ESP__LANE_INTRA]
                            : m.report.lane_ns[ESP__LANE_INTER];
    plan_free(&m);
    return busy / replay_computing(&in->model);
}

/* ---- --ratio ---------------------------------------------------------------------------------------------------------------- */
/* Finds the elements scale that gives the ratio at this time scale. Returns 0 where even one element a tensor takes too
 * long. */
static double replay_search_elements(replay_run *r, double times) {
    double low = 1e-7, high = 10;
    replay_scale(r, low, times);
    if (replay_ratio(&r->in) > 0.7 * r->ratio) return 0; /* nearly all of the link time would be latency */
    for (int i = 0; i < 30 && high / low > 1.001; i++) {
        const double middle = sqrt(low * high);
        replay_scale(r, middle, times);
        *(replay_ratio(&r->in) < r->ratio ? &low : &high) = middle;
    }
    return high > 9.99 ? -1 : sqrt(low * high);
}

static int replay_choose_real(replay_run *r) {
    static const double scales[] = {1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20};
    const double given = r->times_said;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        const double times = given > 0 ? given : scales[i];
        replay_scale(r, 1e-7, times);
        if (!(given > 0) && replay_median_gap(&r->in.model) < 1.1 * REPLAY_GAP_MIN_NS) continue;
        const double elements = replay_search_elements(r, times);
        if (elements > 0) {
            replay_scale(r, elements, times);
            return TOOL_OK;
        }
        if (elements < 0)
            return tool_fail(r->in.command,
                             "--ratio %g: these links are so fast that even ten times the model's elements take less: "
                             "use a slower --inter, such as 1gbit,50us",
                             r->ratio);
        if (given > 0) break;
    }
    return tool_fail(r->in.command,
                     "--ratio %g: the links' latency alone takes more than that: use a larger --time-scale, a larger "
                     "--ratio, or an --inter with less latency",
                     r->ratio);
}

/* Makes all modelled links slower or faster, by the factor that gives the ratio. */
static int replay_choose_model(replay_run *r) {
    for (int i = 0; i < 4; i++) { /* dispatch time does not scale, so the first factor is only close: repeat */
        const double ratio = replay_ratio(&r->in);
        if (!(ratio > 0))
            return tool_fail(r->in.command, "--ratio %g: one rank has nothing to communicate: use -n 4", r->ratio);
        replay_scale_machine(&r->in, 1, 1, r->ratio / ratio, &r->scaled);
    }
    return TOOL_OK;
}

static int replay_choose(replay_run *r) {
    if (!(r->ratio > 0)) return TOOL_OK;
    return r->job.mode == REPLAY_REAL ? replay_choose_real(r) : replay_choose_model(r);
}
