/* outer.c: `espresso plan --outer` plans a round of an outer loop (docs/use/outer.md): `every` inner steps, in which
 * each fragment of the model is pushed once, and used `delay` steps later. A fragment's plan is that of a model of its
 * tensors, whose gradients are all ready at once. What does not end within the delay, training waits for. */
#include "tools/plan/plan.h"
#include "espresso_impl/strategy/fragments.h"
#include "espresso_impl/strategy/text.h"
#include <math.h>

enum { OUTER_MOST_STEPS = 100000 };

static bool outer_range(const char *text, uint32_t least, uint32_t most, uint32_t out[2]) {
    const char *dots = strstr(text, "..");
    char low[32];
    double a, b;
    snprintf(low, sizeof low, "%.*s", dots ? (int)(dots - text) : 31, text);
    if (!esp_params_number(low, NULL, &a) || !esp_params_number(dots ? dots + 2 : low, NULL, &b)) return false;
    if (a != floor(a) || b != floor(b) || a < least || b > most || a > b) return false;
    out[0] = (uint32_t)a, out[1] = (uint32_t)b;
    return true;
}

ESP__FN void plan_outer_read(const tool_command *c, const char *text, plan_outer_ranges *out) {
    static const char *const keys[] = {"every", "fragments", "delay"};
    static const uint32_t least[] = {1, 1, 0}, most[] = {OUTER_MOST_STEPS, ESP__FRAGMENTS_MOST, OUTER_MOST_STEPS};
    uint32_t *const to[] = {out->every, out->fragments, out->delay};
    char key[32], value[64];
    const char *at = text;
    int more;
    *out = (plan_outer_ranges){{0, 0}, {1, 1}, {0, 0}};
    while ((more = esp_params_next(&at, key, sizeof key, value, sizeof value)) > 0) {
        int k = 0;
        while (k < 3 && strcmp(key, keys[k])) k++;
        if (k == 3) tool_usage(c, "--outer %s: '%s' is none of every, fragments, delay", text, key);
        if (!outer_range(value, least[k], most[k], to[k]))
            tool_usage(c, "--outer %s: %s is '%s': expected a whole number or LO..HI, from %u to %u", text, key, value,
                       least[k], most[k]);
    }
    if (more < 0) tool_usage(c, "--outer %s: expected every=LO..HI,fragments=LO..HI,delay=LO..HI", text);
    if (!out->every[0]) tool_usage(c, "--outer %s: every is missing, such as every=1..500", text);
    if (out->fragments[0] > out->every[1])
        tool_usage(c, "--outer %s: a round of %u steps has no turns for %u fragments", text, out->every[1],
                   out->fragments[0]);
    if (out->delay[0] > out->every[1] / out->fragments[0])
        tool_usage(c, "--outer %s: delay is at most every / fragments, here %u", text,
                   out->every[1] / out->fragments[0]);
}

/* ---- plans of fragments ---- */
static uint64_t outer_count(const void *model, uint32_t tensor) {
    return ((const esp_plan_model *)model)->tensors[tensor].elements;
}

/* Returns how long a rank's thread takes to subtract a fragment from its anchor, to look for NaN in the mean, and to
 * update anchor and parameters. Each pass takes as long as a copy, the look half of it; parameters that are averaged
 * uncompressed need no difference, a pass less. */
static double outer_update_ns(const esp_plan_system *s, const plan_made *m) {
    double passed = 0;
    for (uint32_t u = 0; u < m->n_units; u++)
        passed += (double)m->units[u].elements * (strcmp(m->units[u].codec, ESP__CODEC_NONE) != 0 ? 4.5 : 3.5);
    return s->pack_bytes_per_us > 0 ? 4 * passed * 1000 / s->pack_bytes_per_us : 0;
}

static int outer_plan_fragment(const plan_inputs *in, esp__division *d, outer_plans *p, uint32_t f) {
    plan_inputs part = *in;
    const uint32_t n = p->first[f + 1] - p->first[f];
    esp_plan_tensor *tensors = tool_realloc(NULL, n * sizeof *tensors);
    memcpy(tensors, in->model.tensors + p->first[f], n * sizeof *tensors);
    for (uint32_t i = 0; i < n; i++) tensors[i].compute_ns = 0;
    part.model.tensors = tensors;
    part.model.n_tensors = n;
    part.model.forward_ns = part.model.update_ns = 0;
    const esp_status s = plan_make(&part, NULL, 0, &p->plan[f]);
    free(tensors);
    if (s) return tool_fail(in->command, "--outer: fragment %u of %u: %s", f + 1, d->n, esp_last_error(NULL));
    const esp_plan_report *r = &p->plan[f].report;
    const double update_ns = outer_update_ns(&in->system, &p->plan[f]);
    d->ns[f] = r->iteration_ns + update_ns;
    d->busy_ns[f] = r->lane_ns[ESP__LANE_COMPUTE] + update_ns;
    p->bound_ns += r->bound_ns;
    p->bytes += (double)r->inter_bytes;
    return TOOL_OK;
}

static int outer_plan_all(outer_job *j) {
    const uint32_t most =
        j->ranges->fragments[1] < j->in->model.n_tensors ? j->ranges->fragments[1] : j->in->model.n_tensors;
    if (j->ranges->fragments[0] > most)
        return tool_fail(j->in->command, "--outer: fragments is %u, but the model has %u tensors",
                         j->ranges->fragments[0], j->in->model.n_tensors);
    j->all = tool_zeroed((most - j->ranges->fragments[0] + 1) * sizeof *j->all);
    j->plans = tool_zeroed((most - j->ranges->fragments[0] + 1) * sizeof *j->plans);
    for (uint32_t n = j->ranges->fragments[0]; n <= most; n++) {
        outer_plans *p = &j->plans[j->n];
        esp__division *d = &j->all[j->n++];
        d->n = n;
        esp__fragments_divide(outer_count, &j->in->model, j->in->model.n_tensors, n, p->first);
        for (uint32_t f = 0; f < n; f++)
            if (outer_plan_fragment(j->in, d, p, f) != TOOL_OK) return TOOL_FAILED;
    }
    return TOOL_OK;
}

/* ---- rounds ---- */
static const outer_plans *outer_plans_of(const outer_job *j, const esp__outer_round *r) {
    return &j->plans[r->of - j->all];
}

static void outer_search(outer_job *j) {
    for (uint32_t every = j->ranges->every[0]; every <= j->ranges->every[1]; every++) {
        const esp__outer_round r = esp__outer_round_best(j->all, j->n, j->alone_ns, every, j->ranges->delay);
        if (!r.of) continue;
        if (!j->at95.of && r.used >= 0.95) j->at95 = r;
        if (!j->at99.of && r.used >= 0.99) j->at99 = r;
        if (!j->best.of || r.used > j->best.used) j->best = r;
        j->last = r;
        if (j->at99.of) break; /* longer rounds would only communicate less */
    }
    if (j->at95.of) j->best = j->at95;
}

static double outer_step_ns(const outer_job *j, const esp__outer_round *r) {
    return j->alone_ns + r->exposed_ns / r->every;
}
static double outer_bound_ns(const outer_job *j, const esp__outer_round *r) {
    return fmax(j->alone_ns, outer_plans_of(j, r)->bound_ns / r->every);
}
/* True if averaging gradients in every step is as fast as the recommended round. */
static bool outer_needless(const outer_job *j) { return j->every_ns <= outer_step_ns(j, &j->best) * 1.005; }

static int outer_run(outer_job *j, const plan_inputs *in, const plan_outer_ranges *ranges) {
    plan_made every = {0}, fp32 = {0};
    *j = (outer_job){.in = in, .ranges = ranges, .alone_ns = plan_alone_ns(in)};
    if (j->alone_ns <= 0)
        return tool_fail(in->command, "--outer: the model '%s' has no times, so a round has no length", in->model.name);
    if (plan_make(in, NULL, 0, &every) || plan_make(in, "fp32", ESP_PLAN_NO_BOUND, &fp32)) {
        plan_free(&every);
        return tool_fail(in->command, "%s", esp_last_error(NULL));
    }
    j->every_ns = every.report.iteration_ns;
    j->fp32_ns = fp32.report.iteration_ns;
    j->fp32_bytes = (double)fp32.report.inter_bytes;
    plan_free(&every);
    plan_free(&fp32);
    if (outer_plan_all(j) != TOOL_OK) return TOOL_FAILED;
    outer_search(j);
    if (j->best.of) return TOOL_OK;
    return tool_fail(in->command, "--outer: no round fits: fragments is at most every, and delay every / fragments");
}

static void outer_free(outer_job *j) {
    for (uint32_t k = 0; k < j->n; k++)
        for (uint32_t f = 0; f < j->all[k].n; f++) plan_free(&j->plans[k].plan[f]);
    free(j->all);
    free(j->plans);
}

/* ---- the strategy ---- */
/* Adds a fragment's units and order of ops to the texts; its units come after `before` others. */
static void outer_add_text(const char *text, uint32_t before, esp__text *units, esp__text *order) {
    for (const char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        const int n = (int)strcspn(line + 1, "\n");
        if (strncmp(line + 1, "order ", 6) != 0) {
            if (line[1] != '#') esp__text_add(units, "%.*s\n", n, line + 1);
            continue;
        }
        for (const char *at = line + 7, *end = line + 1 + n; at < end; at += strspn(at, " ")) {
            const int word = (int)strcspn(at, " \n");
            const int digits = (int)strspn(at, "0123456789");
            if (digits)
                esp__text_add(order, " %lu%.*s", strtoul(at, NULL, 10) + before, word - digits, at + digits);
            else
                esp__text_add(order, " %.*s", word, at);
            at += word;
        }
    }
}

static int outer_write(const outer_job *j, const char *path) {
    esp__text text = {NULL, 0, 0, 0, NULL}, order = {NULL, 0, 0, 0, NULL};
    const outer_plans *p = outer_plans_of(j, &j->best);
    uint32_t before = 0;
    esp__text_add(&text, "espresso-strategy 1\n");
    for (uint32_t f = 0; f < j->best.of->n; before += p->plan[f++].n_units)
        outer_add_text(esp_plan_text(p->plan[f].plan), before, &text, &order);
    if (order.data) esp__text_add(&text, "order%s\n", order.data);
    int status = TOOL_OK;
    if (text.failed || order.failed || esp__output_write(path, text.data, strlen(text.data)) != ESP_OK)
        status = tool_fail(j->in->command, "%s", text.failed || order.failed ? "out of memory" : esp_last_error(NULL));
    esp__text_free(&text);
    esp__text_free(&order);
    return status;
}

/* ---- output ---- */
static void outer_print_round(FILE *to, const outer_job *j, const char *label, const esp__outer_round *r) {
    if (!r->of) return;
    fprintf(to, "%-11s %7u %9u %5u  %10s  %10s %6.1f%%  %9s\n", label, r->every, r->of->n, r->delay,
            tool_time(outer_step_ns(j, r)), tool_time(r->exposed_ns), 100 * r->used,
            tool_bytes(outer_plans_of(j, r)->bytes / r->every));
}

static void outer_print(FILE *to, const outer_job *j) {
    const double bytes = outer_plans_of(j, &j->best)->bytes;
    plan_print_inputs(to, j->in);
    fprintf(to, "\n%-11s %7s %9s %5s  %10s  %10s %7s  %9s\n", "rounds", "every", "fragments", "delay", "a step",
            "waits/round", "trains", "sent/step");
    fprintf(to, "%-11s %7s %9s %5s  %10s  %10s %6.1f%%  %9s\n", "every step", "", "", "", tool_time(j->every_ns),
            tool_time(j->every_ns - j->alone_ns), 100 * j->alone_ns / j->every_ns, "");
    outer_print_round(to, j, "95%", &j->at95);
    outer_print_round(to, j, "99%", &j->at99);
    if (!j->at99.of) outer_print_round(to, j, "longest", &j->last);
    fputc('\n', to);
    if (!j->at95.of) plan_line(to, "missed", "no round of up to %u steps trains 95%% of the time", j->ranges->every[1]);
    if (outer_needless(j))
        plan_line(to, "advice", "average gradients in every step: it takes no longer, so no outer loop is needed");
    plan_line(to, "bound", "a step takes at least %s in such a round", tool_time(outer_bound_ns(j, &j->best)));
    plan_line(to, "sent", "%.4g times fewer bytes between machines than without compression in every step",
              bytes > 0 ? j->fp32_bytes * j->best.every / bytes : NAN);
    plan_line(to, "assumed", "the loss allows such rounds; the outer optimizer has no momentum");
    plan_line(to, "use", "ESPRESSO_OUTER=average:every=%u,fragments=%u,delay=%u, or a method with these numbers",
              j->best.every, j->best.of->n, j->best.delay);
}

static void outer_json_round(json_t *to, const char *key, const outer_job *j, const esp__outer_round *r) {
    if (!r->of) {
        json_add(to, key, json_null());
        return;
    }
    json_t *o = json_add(to, key, json_object());
    json_add(o, "every", json_integer(r->every));
    json_add(o, "fragments", json_integer(r->of->n));
    json_add(o, "delay", json_integer(r->delay));
    json_us(o, "step_us", outer_step_ns(j, r));
    json_us(o, "exposed_us", r->exposed_ns);
    json_us(o, "bound_us", outer_bound_ns(j, r));
    json_double(o, "utilisation", r->used);
    json_double(o, "bytes_per_step", outer_plans_of(j, r)->bytes / r->every);
}

static json_t *outer_json(const outer_job *j) {
    json_t *out = json_object();
    json_us(out, "every_step_us", j->every_ns);
    json_us(out, "alone_us", j->alone_ns);
    json_double(out, "fp32_bytes_per_step", j->fp32_bytes);
    json_add(out, "needed", json_boolean(!outer_needless(j)));
    outer_json_round(out, "at_95", j, &j->at95);
    outer_json_round(out, "at_99", j, &j->at99);
    outer_json_round(out, "chosen", j, &j->best);
    return out;
}

static int outer_change(const outer_job *before, const char *change, FILE *to, json_t *rows) {
    plan_changed changed;
    outer_job j = {0};
    change_make(before->in, change, &changed);
    const int status = outer_run(&j, &changed.in, before->ranges);
    if (status == TOOL_OK && rows) {
        json_t *row = json_add(rows, NULL, outer_json(&j));
        json_text(row, "change", change);
    } else if (status == TOOL_OK) {
        fprintf(to, "\nwhat if %s\n", change);
        outer_print_round(to, &j, j.at95.of ? "95%" : "best", &j.best);
    }
    outer_free(&j);
    change_free(&changed);
    return status;
}

ESP__FN int plan_outer(const plan_inputs *in, const plan_outer_ranges *ranges, const char *const *what_if,
                       uint32_t n_what_if, const plan_files *files, bool json) {
    FILE *to = plan_to_stdout(files) ? stderr : stdout;
    outer_job j = {0};
    int status = outer_run(&j, in, ranges);
    if (status == TOOL_OK && files->strategy) status = outer_write(&j, files->strategy);
    if (status == TOOL_OK && files->timeline) status = plan_outer_timeline(&j, files);
    json_t *out = status == TOOL_OK && json ? outer_json(&j) : NULL;
    json_t *rows = out && n_what_if ? json_add(out, "what_if", json_array()) : NULL;
    if (status == TOOL_OK && !json) outer_print(to, &j);
    for (uint32_t i = 0; i < n_what_if && status == TOOL_OK; i++) status = outer_change(&j, what_if[i], to, rows);
    if (status == TOOL_OK && !json && files->strategy && strcmp(files->strategy, "-") != 0)
        fprintf(to, "\nwritten: %s\n", files->strategy);
    outer_free(&j);
    if (out && status == TOOL_OK) return json_print(out);
    json_decref(out);
    return status;
}
