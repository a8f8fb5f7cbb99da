/* machines.c: `espresso plan --machines 1,2,...,4096`: plans for each number of machines, and shows the scaling factor as a table, as JSON
 * and as a picture: the throughput of all ranks, as a part of what they would have if nothing was communicated. */

enum { MACHINES_MAX = 64 };

typedef struct plan_sweep {
    uint32_t n, machines[MACHINES_MAX];
    double alone_ns; /* a step without communication: forward, backward and update */
    esp_plan_report report[MACHINES_MAX];
    const char *strategy;
} plan_sweep;

static int plan_is_sweep(const char *value) { return strchr(value, ',') || strstr(value, ".."); }

/* Adds the numbers between the last one and `last`, each `factor` times the one before, and `last` itself. */
static int sweep_fill(plan_sweep *s, long factor, long last) {
    while (s->n < MACHINES_MAX && (long)s->machines[s->n - 1] * factor < last) {
        s->machines[s->n] = s->machines[s->n - 1] * (uint32_t)factor;
        s->n++;
    }
    return s->n < MACHINES_MAX;
}

/* Reads "1,2,4" or "1,2,...,4096": the dots stand for numbers that grow by the factor between the two before them, by 2 after one. */
static int plan_sweep_read(const plan_inputs *in, const char *value, plan_sweep *s) {
    static const char help[] =
        "expected rising numbers of machines from 1 to 1048576, at most 64 of them, such as 1,2,8 or "
        "1,2,...,4096, where the dots go on by the factor of the two numbers before them";
    long factor = 0;
    s->n = 0;
    for (const char *at = value;; at++) {
        char one[16];
        const size_t len = strcspn(at, ",");
        long n;
        snprintf(one, sizeof one, "%.*s", (int)(len < sizeof one ? len : 0), at);
        at += len;
        if (!strcmp(one, "...") && s->n && !factor && *at) {
            const uint32_t last = s->machines[s->n - 1], before = s->n > 1 ? s->machines[s->n - 2] : 0;
            factor = before ? last / before : 2;
            if (factor < 2 || (before && last % before))
                return tool_usage(in->command, "--machines %s: %u is no multiple of %u: %s", value, last, before, help);
            continue;
        }
        if (!tool_number(one, 1, 1 << 20, &n) || (s->n && n <= (long)s->machines[s->n - 1]) ||
            (factor && !sweep_fill(s, factor, n)) || s->n == MACHINES_MAX)
            return tool_usage(in->command, "--machines %s: %s", value, help);
        s->machines[s->n++] = (uint32_t)n;
        factor = 0;
        if (!*at) return TOOL_OK;
    }
}

static double sweep_part(const plan_sweep *s, double ns) { return ns > 0 ? s->alone_ns / ns : NAN; }

/* Tables of times were measured with one number of ranks, and know no other. */
static void sweep_check_tables(const plan_inputs *in) {
    const esp_plan_link *const links[] = {&in->system.inter, &in->system.flat};
    for (size_t k = 0; k < 2; k++)
        for (int c = 0; c < ESP_PLAN_COLLS; c++)
            if (links[k]->table[c].n) {
                fprintf(
                    stderr,
                    "espresso %s: warning: %s has measured tables for its own number of machines. They say how times "
                    "grow with bytes, not with machines, so latencies of more machines are predicted too low; a "
                    "system file with alpha_us and bytes_per_us alone has them\n",
                    in->command->name, in->system_name);
                return;
            }
}

static void plan_sweep_begin(const plan_inputs *in, const char *strategy, plan_sweep *s) {
    s->alone_ns = in->model.forward_ns + in->model.update_ns;
    for (uint32_t i = 0; i < in->model.n_tensors; i++) s->alone_ns += in->model.tensors[i].compute_ns;
    s->strategy = strategy ? strategy : "espresso+";
    sweep_check_tables(in);
}

/* Is the latency between machines that of a collective, however many machines there are? */
static int sweep_flat_latency(const plan_inputs *in) {
    const esp_plan_link *l = in->system.n_outer ? &in->system.outer[0].link : &in->system.inter;
    return l->alpha_ns > 0 && l->alpha_is == ESP_ALPHA_COLLECTIVE;
}

/* ---- table and JSON --------------------------------------------------------------------------------------------------- */
static uint32_t sweep_ranks(const plan_inputs *in, uint32_t machines) {
    return machines * in->system.ranks_per_machine * (in->system.n_outer ? in->system.outer[0].size : 1);
}

static void plan_sweep_print(FILE *to, const plan_inputs *in, const plan_sweep *s) {
    plan_say(to, "model", "%s: %u tensor%s; a step without communication takes %s", in->model.name, in->model.n_tensors,
             plan_s(in->model.n_tensors), tool_time(s->alone_ns));
    plan_say(to, in->n_codecs > 1 ? "codecs" : "codec", "%s", in->codec_text);
    plan_say(to, "system", "%s: %u rank%s a machine", in->system.name, in->system.ranks_per_machine,
             plan_s(in->system.ranks_per_machine));
    plan_say(to, "scaling",
             "throughput as a part of that of ranks that do not communicate; at most: no strategy can scale better");
    if (sweep_flat_latency(in))
        plan_say(to, "latency",
                 "between machines it is that of a whole collective here, %s for any number of them: with many it is "
                 "more; \"alpha_is\": \"hop\" in a system file counts hops",
                 tool_time(in->system.inter.alpha_ns));
    fprintf(to, "\n%8s %8s  %9s %7s  %9s %7s %7s %7s  %9s %9s\n", "machines", "ranks", "fp32", "scaling", s->strategy,
            "scaling", "at most", "gain", "memory", "planning");
    for (uint32_t i = 0; i < s->n; i++) {
        const esp_plan_report *r = &s->report[i];
        const double bound = plan_bound(in, r);
        char most[16] = "";
        if (bound > 0) snprintf(most, sizeof most, "%.3f", sweep_part(s, bound));
        fprintf(to, "%8u %8u  %9s %7.3f  %9s %7.3f %7s %6.2fx  %9s %9s\n", s->machines[i],
                sweep_ranks(in, s->machines[i]), tool_time(r->fp32_ns), sweep_part(s, r->fp32_ns),
                tool_time(r->iteration_ns), sweep_part(s, r->iteration_ns), most, r->fp32_ns / r->iteration_ns,
                tool_bytes((double)r->memory_bytes), tool_time(r->plan_ns));
    }
}

static void plan_sweep_json(tool_json *j, const plan_inputs *in, const plan_sweep *s) {
    plan_json_inputs(j, in);
    json_text(j, "strategy", s->strategy);
    json_us(j, "alone_us", s->alone_ns);
    json_open(j, "scaling", '[');
    for (uint32_t i = 0; i < s->n; i++) {
        const esp_plan_report *r = &s->report[i];
        const double bound = plan_bound(in, r);
        json_open(j, NULL, '{');
        json_number(j, "machines", s->machines[i]);
        json_number(j, "ranks", sweep_ranks(in, s->machines[i]));
        json_us(j, "fp32_us", r->fp32_ns);
        json_number(j, "fp32_scaling", sweep_part(s, r->fp32_ns));
        json_us(j, "iteration_us", r->iteration_ns);
        json_number(j, "scaling", sweep_part(s, r->iteration_ns));
        plan_json_or_null(j, "bound_us", bound);
        json_number(j, "scaling_at_most", sweep_part(s, bound));
        json_number(j, "compressed", r->compressed);
        json_number(j, "memory_bytes", (double)r->memory_bytes);
        json_us(j, "plan_us", r->plan_ns);
        json_close(j, '}');
    }
    json_close(j, ']');
}

/* ---- the picture ------------------------------------------------------------------------------------------------------- */
enum { SWEEP_X = 62, SWEEP_Y = 64, SWEEP_W = 620, SWEEP_H = 300 };

typedef struct sweep_picture {
    const plan_inputs *in;
    const plan_sweep *s;
} sweep_picture;

static double sweep_x(const plan_sweep *s, uint32_t i) {
    const double first = log(s->machines[0]), last = log(s->machines[s->n - 1]);
    return SWEEP_X + (last > first ? SWEEP_W * (log(s->machines[i]) - first) / (last - first) : SWEEP_W / 2.0);
}
static double sweep_y(double part) { return SWEEP_Y + SWEEP_H * (1 - fmin(fmax(part, 0), 1)); }

static void sweep_text(FILE *to, double x, double y, int size, const char *anchor, const char *text) {
    fprintf(to,
            "<text x=\"%.1f\" y=\"%.1f\" font-family=\"sans-serif\" font-size=\"%d\" text-anchor=\"%s\" fill=\"#222\">",
            x, y, size, anchor);
    for (; *text; text++)
        if (*text == '<' || *text == '&')
            fputs(*text == '<' ? "&lt;" : "&amp;", to);
        else
            fputc((unsigned char)*text < 32 ? ' ' : *text, to);
    fputs("</text>\n", to);
}

static double sweep_value(const sweep_picture *p, int line, uint32_t i) {
    const esp_plan_report *r = &p->s->report[i];
    return sweep_part(p->s, line == 0 ? r->fp32_ns : line == 1 ? r->iteration_ns : plan_bound(p->in, r));
}

static void sweep_line(FILE *to, const sweep_picture *p, int line, const char *label) {
    static const char *const colour[] = {"#8a8a8a", "#1f5fbf", "#1f5fbf"};
    const double legend = SWEEP_X + 190.0 * line;
    const char *dash = line == 2 ? " stroke-dasharray=\"2 4\"" : "";
    if (isnan(sweep_value(p, line, 0))) return;
    fprintf(to, "<line x1=\"%.1f\" y1=\"50\" x2=\"%.1f\" y2=\"50\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", legend,
            legend + 24, colour[line], dash);
    sweep_text(to, legend + 30, 54, 12, "start", label);
    fputs("<polyline points=\"", to);
    for (uint32_t i = 0; i < p->s->n; i++)
        fprintf(to, "%.1f,%.1f ", sweep_x(p->s, i), sweep_y(sweep_value(p, line, i)));
    fprintf(to, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", colour[line], dash);
    for (uint32_t i = 0; i < p->s->n && line < 2; i++)
        fprintf(to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", sweep_x(p->s, i),
                sweep_y(sweep_value(p, line, i)), colour[line]);
}

static void sweep_axes(FILE *to, const plan_sweep *s) {
    char text[32];
    double last = -100;
    for (int k = 0; k <= 5; k++) {
        const double y = sweep_y(k / 5.0);
        fprintf(to, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/>\n", SWEEP_X, y,
                SWEEP_X + SWEEP_W, y, k ? "#e4e4e4" : "#888");
        snprintf(text, sizeof text, "%.1f", k / 5.0);
        sweep_text(to, SWEEP_X - 8, y + 4, 12, "end", text);
    }
    for (uint32_t i = 0; i < s->n; i++) {
        const double x = sweep_x(s, i);
        if (x - last < 34 && i) continue; /* no room for its number */
        last = x;
        snprintf(text, sizeof text, "%u", s->machines[i]);
        sweep_text(to, x, SWEEP_Y + SWEEP_H + 18, 12, "middle", text);
    }
    sweep_text(to, SWEEP_X + SWEEP_W / 2.0, SWEEP_Y + SWEEP_H + 40, 12, "middle", "machines");
}

static int sweep_svg(FILE *to, const void *what) {
    const sweep_picture *p = what;
    char title[512];
    fprintf(to, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"420\" viewBox=\"0 0 720 420\">\n"
                "<rect width=\"720\" height=\"420\" fill=\"#fff\"/>\n");
    snprintf(title, sizeof title, "Predicted scaling factor: %.60s, %.80s, %.60s with %u ranks a machine",
             p->in->model.name, p->in->codec_text, p->in->system.name, p->in->system.ranks_per_machine);
    sweep_text(to, SWEEP_X, 28, 14, "start", title);
    sweep_axes(to, p->s);
    sweep_line(to, p, 2, "no strategy is above");
    sweep_line(to, p, 0, "fp32");
    sweep_line(to, p, 1, p->s->strategy);
    fputs("</svg>\n", to);
    return 0;
}

static int plan_sweep_draw(const plan_inputs *in, const plan_sweep *s, const char *path) {
    const sweep_picture p = {in, s};
    return plan_write_page(in, path, sweep_svg, &p);
}
