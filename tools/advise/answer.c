/* answer.c: predicts the step with each codec and with the best plan, and prints the answer. */
#include "tools/advise/advise.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/job/job.h"
#include <math.h>

/* A prediction with one codec, or with several. */
typedef struct advise_row {
    const char *name, *loss;
    bool safe;
    double ns;
} advise_row;

typedef struct advise_results {
    double now_ns;                        /* prediction for the job as it is */
    advise_row rows[PLAN_CODECS_MAX + 1]; /* the last one: without compression */
    plan_inputs best_in;                  /* with the codecs of the best plan */
    plan_made best;
    bool best_safe;
} advise_results;

/* ---- predictions ------------------------------------------------------------------------------------------------- */
/* Writes DDP's buckets as a strategy. Returns false if the trace does not have them. */
static bool advise_buckets(const advise_job *j, esp__text *out) {
    const esp_plan_model *m = &j->in.model;
    esp__text_add(out, "espresso-strategy 1\n");
    for (uint32_t i = 0, end; j->slowest->bucket && i < m->n_tensors; i = end) {
        const bool group = j->slowest->bucket[i] > 1;
        double n = 0;
        for (end = i; end < i + j->slowest->bucket[i]; end++) {
            esp__text_add(out, "tensor %s %llu %s\n", m->tensors[end].name,
                          (unsigned long long)m->tensors[end].elements, group ? "group" : "none flat.allreduce");
            n += (double)m->tensors[end].elements;
        }
        if (group) esp__text_add(out, "group %.0f none flat.allreduce\n", n);
    }
    return j->slowest->bucket && !out->failed;
}

ESP__FN int advise_now(const advise_job *j, plan_made *now) {
    esp__text text = {NULL, 0, 0, 0, NULL};
    esp_status s = ESP_E_ARG;
    plan_inputs in = j->in;
    in.config = (esp_plan_config){.struct_size = sizeof in.config, .flags = ESP_PLAN_NO_BOUND};
    /* the trace's times include what its own all-reduces take of the cores */
    for (uint32_t k = 0; !in.system_name && k < ESP_PLAN_COLLS; k++)
        in.system.inter.table[k].n = in.system.inter.core[k].n = in.system.flat.table[k].n = in.system.flat.core[k].n =
            0;
    if (advise_buckets(j, &text)) s = plan_simulate(&in, text.data, "ddp", now);
    if (s) s = plan_make(&in, "ddp", 0, now);
    esp__text_free(&text);
    return s ? tool_fail(j->in.command, "%s", esp_last_error(NULL)) : TOOL_OK;
}

/* Sets how a codec affects the loss. A codec is safe if what was measured with this optimizer says so. */
static void advise_effect(const advise_job *j, uint32_t i, advise_row *row) {
    const esp__config *config = &j->in.registry->config;
    esp__codec *c;
    row->loss = "not known";
    if (esp__codec_get(j->in.registry, j->in.codecs[i].spec, &c) != ESP_OK) return;
    const esp__effect *e = esp__safety(c, j->in.codecs[i].error, config->optimizer, config->momentum);
    if (!e->loss) return;
    row->loss = e->loss;
    row->safe = e->slower <= 1;
}

/* Plans with each codec alone, with none, and with all safe ones; or with all if none is safe. */
static int advise_plans(const advise_job *j, advise_results *r) {
    const uint32_t n = j->in.n_codecs;
    r->best_in = j->in;
    r->best_in.n_codecs = 0;
    for (uint32_t i = 0; i <= n; i++) {
        plan_inputs one = j->in;
        plan_made m;
        const bool none = i == n;
        one.codecs[0] = j->in.codecs[none ? 0 : i], one.n_codecs = 1;
        r->rows[i] = (advise_row){.name = none ? "none, other buckets" : one.codecs[0].spec, .loss = "fp32's"};
        if (!none) advise_effect(j, i, &r->rows[i]);
        if (plan_make(&one, NULL, ESP_PLAN_NO_BOUND | (none ? ESP_PLAN_NO_COMP : 0), &m))
            return tool_fail(j->in.command, "%s", esp_last_error(NULL));
        r->rows[i].ns = m.report.iteration_ns;
        plan_free(&m);
        if (r->rows[i].safe) r->best_in.codecs[r->best_in.n_codecs++] = one.codecs[0];
    }
    r->best_safe = r->best_in.n_codecs > 0;
    if (!r->best_safe) r->best_in = j->in;
    if (plan_make(&r->best_in, NULL, 0, &r->best)) return tool_fail(j->in.command, "%s", esp_last_error(NULL));
    return TOOL_OK;
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */
/* The median error of predicted gains in docs/plan/truth.md, and how much too high at most the answers were where their
 * codecs were adopted on hosts with a core for each rank (bench/results/validate/advise.csv). */
static const double advise_median_error = 0.045, advise_large_error = 0.14;
/* A prediction for the step as it is that is farther off says that the planner's model of the job is wrong. */
static const double advise_far_off = 0.15;

static void advise_print_verdict(const advise_job *j, const advise_results *r) {
    const double best = r->best.report.iteration_ns, gain = r->now_ns / best;
    const double apart = r[1].best.report.iteration_ns, most = j->apart ? r->now_ns / apart : gain;
    printf("%s: with %s codecs, a step is predicted to take\n%s",
           most < 1 + advise_median_error  ? "Nothing to gain"
           : most < 1 + advise_large_error ? "Little to gain, and within the error of predictions"
           : gain < 1 + advise_large_error ? "Compression may help"
                                           : "Compression would help",
           r->best_safe ? "safe" : "these", tool_time(best));
    if (j->apart) {
        printf(" to %s instead of %s, %.2f to %.2f times as fast. This trace does not tell\nwhich of it: computing "
               "takes %s if nothing overlaps all-reduces, ",
               tool_time(apart), tool_time(r->now_ns), gain, most, tool_time(j->in.model.forward_ns));
        printf("%s if all but the last one\noverlap it. A trace of torch.profiler tells.",
               tool_time(plan_alone_ns(&j->in)));
    } else {
        printf(" instead of %s, %.2f times as fast; no strategy takes less than %s.\nComputing alone takes %s.",
               tool_time(r->now_ns), gain, tool_time(r->best.report.bound_ns), tool_time(plan_alone_ns(&j->in)));
        if (j->n_traces < j->slowest->world)
            printf(" All-reduces may have waited for other ranks, which compression leaves:\nthe traces of all ranks "
                   "tell.");
    }
    if (j->in.model_file.measured.noisy)
        printf("\nSteps differ by more than a quarter: do not rely on this, and record them without other load.");
    printf("\n\n");
}

/* Prints what the traces say about the job. */
static void advise_print_job(const advise_job *j, const advise_results *r) {
    const advise_trace *t = j->slowest;
    const esp_plan_system *s = &j->in.system;
    const double compute = t->forward + t->backward + t->update, measured = j->step * 1000;
    plan_line(stdout, "job", "%u machine%s x %u rank%s%s; backend %s; %zu step%s of %u rank%s", s->machines,
              plan_s(s->machines), s->ranks_per_machine, plan_s(s->ranks_per_machine), j->system_note,
              t->backend ? t->backend : "unknown", t->n_steps, plan_s(t->n_steps), j->n_traces, plan_s(j->n_traces));
    plan_line(stdout, "model", "%u %s, %s elements", j->in.model.n_tensors,
              j->apart ? "all-reduces, each taken to be of one gradient in float32" : "gradients",
              tool_count(t->elements));
    if (j->apart)
        plan_line(stdout, "step now", "%s; all-reduces take %s", tool_time(measured), tool_time(j->reducing));
    else
        plan_line(
            stdout, "step now", "%s; computing %s (forward %s, backward %s, optimizer %s), exposed communication %s",
            tool_time(measured), tool_time(compute * 1000), tool_time(t->forward * 1000), tool_time(t->backward * 1000),
            tool_time(t->update * 1000), tool_time(fmax(0, measured - compute * 1000)));
    if (j->link.bytes_per_us > 0) {
        plan_line(stdout, "link", "%s/s, latency of an all-reduce %s%s", tool_bytes(j->link.bytes_per_us * 1e6),
                  tool_time(j->link.latency * 1000), j->link.latency_measured ? "" : " (assumed)");
        if (s->machines > 1 && s->ranks_per_machine > 1)
            plan_line(stdout, "", "links inside machines: taken to be as fast, which is the least that they are");
    }
    const double off = r->now_ns / measured - 1;
    if (!j->apart)
        plan_line(stdout, "check", "the step as it is is predicted to take %s, %+.0f%%%s", tool_time(r->now_ns),
                  100 * off,
                  off < -advise_far_off  ? ": the rest is waits for other ranks or cores, which compression leaves"
                  : off > advise_far_off ? ": do not rely on this answer"
                                         : "");
}

static void advise_print_row(const advise_job *j, const advise_results *r, const char *name, double ns, double apart,
                             const char *loss) {
    printf("%-22s %10s %6.2fx", name, tool_time(ns), r->now_ns / ns);
    if (j->apart) printf("%8.2fx", r->now_ns / apart);
    printf("%s%s\n", *loss ? "  " : "", loss);
}

/* Prints the table of codecs. */
static void advise_print_codecs(const advise_job *j, const advise_results *r) {
    const esp__config *config = &j->in.registry->config;
    char with[128];
    snprintf(with, sizeof with, "%s", esp__optimizer_name(config->optimizer));
    if (config->momentum > 0)
        snprintf(with, sizeof with, "%s:%g", esp__optimizer_name(config->optimizer), config->momentum);
    printf("\n%-22s %10s %7s%s  final loss (%s%s%s)\n", "codec", "step", "gain", j->apart ? "  at most" : "",
           j->slowest->optimizer, *j->slowest->optimizer ? ", rated as " : "rated as ", with);
    advise_print_row(j, r, "as it is", r->now_ns, r->now_ns, "fp32's");
    for (uint32_t i = j->in.n_codecs + 1; i-- > 0;)
        advise_print_row(j, r, r->rows[i].name, r->rows[i].ns, r[1].rows[i].ns, r->rows[i].loss);
    advise_print_row(j, r, r->best_safe ? "the safe ones together" : "all together", r->best.report.iteration_ns,
                     r[1].best.report.iteration_ns, "");
    advise_print_row(j, r, "bound", r->best.report.bound_ns, r[1].best.report.bound_ns, "");
    printf("\nGains predicted from measured costs were wrong by 4.5%% in the median, and 90%% of them by at most 15%%. "
           "Here\n"
           "the costs of codecs are estimates: gains were 10%% too low to 14%% too high (docs/plan/advise.md).\n");
}

/* Prints what changes of the cluster would bring. */
static int advise_print_changes(const advise_results *r) {
    /* links inside machines were taken to be as fast as those between them, so both change */
    static const char *const changes[][4] = {{"intra=2x", "intra=10x", "latency=2x", "ranks=2x"},
                                             {"inter=2x", "inter=10x", "latency=2x", "machines=2x"},
                                             {"inter=2x,intra=2x", "inter=10x,intra=10x", "latency=2x", "machines=2x"}};
    const esp_plan_system *s = &r->best_in.system;
    const int kind = s->machines == 1 ? 0 : s->ranks_per_machine == 1 || r->best_in.system_name ? 1 : 2;
    plan_outcome o[4];
    for (uint32_t i = 0; i < 4; i++)
        if (plan_try(&r->best_in, &r->best, NULL, changes[kind][i], &o[i]) != TOOL_OK) return TOOL_FAILED;
    plan_print_outcomes(stdout, &r->best, r->best.report.bound_ns, o, 4);
    return TOOL_OK;
}

/* Prints how to use the codecs of the best plan. */
static void advise_print_adoption(const advise_job *j, const advise_results *r) {
    uint32_t n = 0;
    if (r->now_ns / r->best.report.iteration_ns >= 1 + advise_median_error) {
        printf("\nTo try it (docs/use/pytorch.md):\n  model.register_comm_hook(espresso.DDP(model, codecs=[");
        for (uint32_t i = 0; i < r->best_in.n_codecs; i++) {
            bool used = false;
            for (uint32_t u = 0; u < r->best.n_units; u++)
                used |= !strcmp(r->best.units[u].codec, r->best_in.codecs[i].spec);
            if (used) printf("%s\"%s\"", n++ ? ", " : "", r->best_in.codecs[i].spec);
        }
        printf("], strategy=\"auto\", optimizer=optimizer), espresso.hook)\n");
    }
    if (j->out) printf("\nwritten: %s/model.json, %s/system.json\n", j->out, j->out);
}

ESP__FN int advise_answer(advise_job *j) {
    advise_results *r = tool_zeroed(2 * sizeof *r); /* r[1]: if nothing overlaps */
    advise_job apart = *j;
    plan_made now;
    int status = advise_now(j, &now);
    if (status == TOOL_OK) r->now_ns = now.report.iteration_ns, plan_free(&now), status = advise_plans(j, r);
    if (j->apart) apart.in.model.tensors = j->apart;
    if (status == TOOL_OK && j->apart) status = advise_plans(&apart, r + 1);
    if (status == TOOL_OK) {
        advise_print_verdict(j, r);
        advise_print_job(j, r);
        advise_print_codecs(j, r);
        status = advise_print_changes(r);
    }
    if (status == TOOL_OK) advise_print_adoption(j, r);
    const plan_files files = {.timeline = j->timeline};
    if (status == TOOL_OK) status = plan_write(&r->best_in, &r->best, &files);
    plan_free(&r[0].best);
    plan_free(&r[1].best);
    free(r);
    return status;
}
