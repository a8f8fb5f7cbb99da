/* sensitivity.c: --sensitivity: would more cores, faster links or faster codecs help? A row for each change, and one sentence
 * that says which helps most. Must not know how plans are made. */

/* What a change makes faster, for the sentence below the table. */
enum { SENSITIVITY_CORES, SENSITIVITY_LINK, SENSITIVITY_CODEC, SENSITIVITY_OTHER };
/* Where a change makes sense. */
enum {
    SENSITIVITY_MACHINES = 1,
    SENSITIVITY_RANKS = 2,
    SENSITIVITY_RACKS = 4,
    SENSITIVITY_ONE = 8,
    SENSITIVITY_TWO = 16
};
static const struct {
    const char *change, *label;
    int needs, kind;
} sensitivity_changes[] = {
    {"cores=2", "a second core for each rank", SENSITIVITY_ONE, SENSITIVITY_CORES},
    {"cores=3", "a third core for each rank", SENSITIVITY_TWO, SENSITIVITY_CORES},
    {"outer=2x", "links between racks twice as fast", SENSITIVITY_RACKS, SENSITIVITY_LINK},
    {"inter=2x", "NIC twice as fast", SENSITIVITY_MACHINES, SENSITIVITY_LINK},
    {"intra=2x", "links in a machine twice as fast", SENSITIVITY_RANKS, SENSITIVITY_LINK},
    {"latency=2x", "half the latency of links", 0, SENSITIVITY_LINK},
    {"codec=2x", "codec twice as fast", 0, SENSITIVITY_CODEC},
    {"compute=2x", "computing twice as fast", 0, SENSITIVITY_OTHER},
    {"machines=2x", "twice the machines", 0, SENSITIVITY_OTHER},
};
enum { SENSITIVITY_CHANGES = sizeof sensitivity_changes / sizeof *sensitivity_changes };
static const double sensitivity_little = 0.02; /* a gain below this share of the step is no reason to change anything */

typedef struct plan_sensitivity {
    plan_outcome rows[SENSITIVITY_CHANGES];
    int kinds[SENSITIVITY_CHANGES];
    uint32_t n, best;     /* best: the row of cores, links and codecs that helps most */
    double gain;          /* how much shorter the best row's step is, as a share; may be 0 */
    char conclusion[400]; /* for people */
} plan_sensitivity;

/* The step with a row's change. Where the strategy is given, none is planned anew. */
static double sensitivity_step(const plan_outcome *o) { return isfinite(o->planned_ns) ? o->planned_ns : o->kept_ns; }

static double sensitivity_gain(const plan_made *m, const plan_outcome *o) {
    const double step = sensitivity_step(o);
    return isfinite(step) ? 1 - step / m->report.iteration_ns : 0;
}

/* The share of the step in which the computing core is in use, by computing or by anything. */
static double sensitivity_core(const plan_inputs *in, const plan_made *m, int all) {
    double ns = in->model.forward_ns + in->model.update_ns;
    for (uint32_t t = 0; !all && t < in->model.n_tensors; t++) ns += in->model.tensors[t].compute_ns;
    if (all) ns += m->report.lane_ns[ESP__LANE_COMPUTE];
    return m->report.iteration_ns > 0 ? ns / m->report.iteration_ns : 0;
}

/* What else to say of rows that are not the best: their gains, as "...; NIC twice as fast -3.1%". */
static void sensitivity_others(const plan_sensitivity *s, const plan_made *m, esp__text *out) {
    double most[SENSITIVITY_OTHER] = {0};
    static const char *const kind[] = {"more cores", "faster links", "faster codecs"};
    int have[SENSITIVITY_OTHER] = {0};
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->kinds[i] == SENSITIVITY_OTHER || s->kinds[i] == s->kinds[s->best]) continue;
        have[s->kinds[i]] = 1;
        most[s->kinds[i]] = fmax(most[s->kinds[i]], sensitivity_gain(m, &s->rows[i]));
    }
    for (int k = 0, first = 1; k < SENSITIVITY_OTHER; k++)
        if (have[k]) {
            esp__text_add(out, first ? "; %s %.1f%%" : ", %s %.1f%%", kind[k], 100 * most[k]);
            first = 0;
        }
}

static void sensitivity_conclude(const plan_inputs *in, const plan_made *m, plan_sensitivity *s) {
    const double computing = sensitivity_core(in, m, 0), used = sensitivity_core(in, m, 1);
    esp__text t = {NULL, 0, 0, 0, NULL};
    if (in->system.cores_per_rank == 1 && used >= 1 - sensitivity_little)
        esp__text_add(&t, "%s all cores (%.0f%% of the step): nothing to hide communication behind. ",
                      computing >= 0.9 * used ? "Computing takes" : "Computing, compression and communication take",
                      100 * used);
    if (s->gain >= sensitivity_little) {
        esp__text_add(&t, "Most helps: %s, %.1f%% off the step", s->rows[s->best].label, 100 * s->gain);
        sensitivity_others(s, m, &t);
        esp__text_add(&t, ".");
    } else {
        esp__text_add(&t, "Neither %sfaster links nor faster codecs bring %.0f%%: computing is %.0f%% of the step.",
                      in->system.cores_per_rank && in->system.cores_per_rank < 3 ? "more cores, " : "",
                      100 * sensitivity_little, 100 * computing);
    }
    snprintf(s->conclusion, sizeof s->conclusion, "%s", t.data ? t.data : "");
    esp__text_free(&t);
}

/* Tries the changes that make sense for this system. */
static int plan_sensitivity_try(const plan_inputs *in, const plan_made *m, const char *strategy, plan_sensitivity *s) {
    const esp_plan_system *y = &in->system;
    const int have = (y->machines > 1 ? SENSITIVITY_MACHINES : 0) | (y->ranks_per_machine > 1 ? SENSITIVITY_RANKS : 0) |
                     (y->n_outer && y->outer[0].size > 1 ? SENSITIVITY_RACKS : 0) |
                     (y->cores_per_rank == 1 ? SENSITIVITY_ONE : 0) | (y->cores_per_rank == 2 ? SENSITIVITY_TWO : 0);
    int status = TOOL_OK;
    for (int i = 0; i < SENSITIVITY_CHANGES && status == TOOL_OK; i++) {
        if (sensitivity_changes[i].needs & ~have) continue;
        status = plan_try(in, m, strategy, "--sensitivity", sensitivity_changes[i].change, &s->rows[s->n]);
        s->rows[s->n].label = sensitivity_changes[i].label;
        s->kinds[s->n] = sensitivity_changes[i].kind;
        const double gain = sensitivity_gain(m, &s->rows[s->n]);
        if (s->kinds[s->n] != SENSITIVITY_OTHER && gain > s->gain) s->gain = gain, s->best = s->n;
        s->n++;
    }
    if (status == TOOL_OK) sensitivity_conclude(in, m, s);
    return status;
}

/* Says which lane limits the step: each lane's share of the lower bound. */
static void sensitivity_print_prices(FILE *to, const plan_inputs *in, const esp_plan_report *r) {
    static const char *const lane[] = {"computing", "compression on the CPU", "links inside machines", "the NICs",
                                       "links between racks"};
    const int shared = in->system.cores_per_rank == 1;
    int most = 0;
    double sum = 0;
    for (int k = 0; k < ESP__LANES; k++) {
        if (r->price[k] > r->price[most]) most = k;
        sum += r->price[k];
    }
    if (!(sum > 0)) return;
    fprintf(to, "\nWhat the bound rests on:");
    for (int k = 0, first = 1; k < ESP__LANES; k++)
        if (k < ESP__LANE_OUTER || r->price[k] > 0) {
            fprintf(to, "%s %s %.0f%%", first ? "" : ",", esp__lane_word((uint32_t)k), 100 * r->price[k]);
            first = 0;
        }
    fprintf(to, ": %s bind%s most.\n",
            shared && most == 0                        ? "the core that does everything"
            : most < (int)(sizeof lane / sizeof *lane) ? lane[most]
            : most == ESP__LANE_PROGRESS               ? "the core that drives collectives"
                                                       : "the outermost links",
            most < 2 || most == ESP__LANE_PROGRESS ? "s" : "");
}

static void plan_print_sensitivity(FILE *to, const plan_inputs *in, const plan_made *m, const plan_sensitivity *s) {
    sensitivity_print_prices(to, in, &m->report);
    plan_print_outcomes(to, m, plan_bound(in, &m->report), s->rows, s->n);
    fprintf(to, "\n%s\n", s->conclusion);
}

static void plan_json_sensitivity(tool_json *j, const plan_sensitivity *s) {
    plan_json_outcomes(j, "sensitivity", s->rows, s->n);
    json_text(j, "helps_most", s->gain >= sensitivity_little ? s->rows[s->best].change : NULL);
    json_text(j, "conclusion", s->conclusion);
}
