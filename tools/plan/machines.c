/* machines.c: `espresso plan --machines 1,2,8` makes a plan for each number of machines, and prints how throughput
 * scales: it is compared with the throughput without communication. */
#include "tools/plan/plan.h"
#include <math.h>

ESP__FN void plan_sweep_read(const plan_inputs *in, const char *value, plan_sweep *s) {
    s->n = 0;
    for (const char *at = value;; at++) {
        char one[16];
        const size_t len = strcspn(at, ",");
        long n;
        snprintf(one, sizeof one, "%.*s", (int)(len < sizeof one ? len : 0), at);
        if (s->n == PLAN_SCENARIOS_MAX || !tool_number(one, 1, 1 << 20, &n))
            tool_usage(in->command,
                       "--machines %s: expected numbers of machines from 1 to 1048576, at most %d of them, such as "
                       "1,2,8",
                       value, (int)PLAN_SCENARIOS_MAX);
        s->machines[s->n++] = (uint32_t)n;
        at += len;
        if (!*at) return;
    }
}

static double sweep_part(const plan_sweep *s, double ns) { return ns > 0 ? s->alone_ns / ns : NAN; }

/* Warns if the system file has measured times of collectives, since they are valid only for the number of machines
 * that measured them. */
ESP__FN void sweep_check_tables(const plan_inputs *in) {
    const esp_plan_link *const links[] = {&in->system.inter, &in->system.flat};
    for (size_t k = 0; k < 2; k++)
        for (int c = 0; c < ESP_PLAN_COLLS; c++)
            if (links[k]->table[c].n) {
                fprintf(
                    stderr,
                    "espresso %s: warning: %s has measured tables for its own number of machines. With more machines "
                    "latencies are predicted too low; a system file with alpha_us and bytes_per_us alone has them\n",
                    in->command->name, in->system_name);
                return;
            }
}

/* Returns whether the system file's latency is that of a whole collective, which then does not grow with the number of
 * machines. */
static bool sweep_flat_latency(const plan_inputs *in) {
    const esp_plan_link *l = in->system.n_outer ? &in->system.outer[0].link : &in->system.inter;
    return l->alpha_ns > 0 && l->alpha_is == ESP_ALPHA_COLLECTIVE;
}

/* ---- table and JSON ---------------------------------------------------------------------------------------------- */
static uint32_t sweep_ranks(const plan_inputs *in, uint32_t machines) {
    return machines * in->system.ranks_per_machine * (in->system.n_outer ? in->system.outer[0].size : 1);
}

ESP__FN void plan_sweep_print(FILE *to, const plan_inputs *in, const plan_sweep *s) {
    plan_line(to, "model", "%s: %u tensor%s; a step without communication takes %s", in->model.name,
              in->model.n_tensors, plan_s(in->model.n_tensors), tool_time(s->alone_ns));
    plan_line(to, in->n_codecs > 1 ? "codecs" : "codec", "%s", in->codec_text);
    plan_line(to, "system", "%s: %u rank%s a machine", in->system.name, in->system.ranks_per_machine,
              plan_s(in->system.ranks_per_machine));
    plan_line(to, "scaling",
              "throughput as a part of that of ranks that do not communicate; at most: no strategy can scale better");
    if (sweep_flat_latency(in))
        plan_line(to, "latency",
                  "between machines it is that of a whole collective here, %s for any number of them: with many it is "
                  "more; \"alpha_is\": \"hop\" in a system file counts hops",
                  tool_time(in->system.inter.alpha_ns));
    fprintf(to, "\n%8s %8s  %9s %7s  %9s %7s %7s %7s  %9s %9s\n", "machines", "ranks", "fp32", "scaling", s->strategy,
            "scaling", "at most", "gain", "memory", "planning");
    for (uint32_t i = 0; i < s->n; i++) {
        const esp_plan_report *r = &s->report[i];
        const double bound = r->bound_ns;
        char most[16] = "";
        if (bound > 0) snprintf(most, sizeof most, "%.3f", sweep_part(s, bound));
        fprintf(to, "%8u %8u  %9s %7.3f  %9s %7.3f %7s %6.2fx  %9s %9s\n", s->machines[i],
                sweep_ranks(in, s->machines[i]), tool_time(r->fp32_ns), sweep_part(s, r->fp32_ns),
                tool_time(r->iteration_ns), sweep_part(s, r->iteration_ns), most, r->fp32_ns / r->iteration_ns,
                tool_bytes((double)r->memory_bytes), tool_time(r->plan_ns));
    }
}

ESP__FN int plan_sweep_json(const plan_inputs *in, const plan_sweep *s) {
    json_t *out = json_object();
    plan_json_inputs(out, in);
    json_text(out, "strategy", s->strategy);
    json_us(out, "alone_us", s->alone_ns);
    json_t *rows = json_add(out, "scaling", json_array());
    for (uint32_t i = 0; i < s->n; i++) {
        const esp_plan_report *r = &s->report[i];
        const double bound = r->bound_ns;
        json_t *row = json_add(rows, NULL, json_object());
        json_double(row, "machines", s->machines[i]);
        json_double(row, "ranks", sweep_ranks(in, s->machines[i]));
        json_us(row, "fp32_us", r->fp32_ns);
        json_double(row, "fp32_scaling", sweep_part(s, r->fp32_ns));
        json_us(row, "iteration_us", r->iteration_ns);
        json_double(row, "scaling", sweep_part(s, r->iteration_ns));
        plan_json_or_null(row, "bound_us", bound);
        json_double(row, "scaling_at_most", sweep_part(s, bound));
        json_double(row, "compressed", r->compressed);
        json_double(row, "memory_bytes", (double)r->memory_bytes);
        json_us(row, "plan_us", r->plan_ns);
    }
    return json_print(out);
}
