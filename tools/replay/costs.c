/* costs.c: --costs and --save-costs: costs from a file instead of a survey, and a survey's costs as a file. Must not know how
 * costs are measured. */
#include "tools/replay/replay.h"

static int replay_costs_known(replay_run *r) {
    plan_inputs *in = &r->in;
    r->costs_auto = in->costs_name && strcmp(in->costs_name, "auto") == 0;
    if (r->costs_auto || (in->costs_name && strcmp(in->costs_name, "survey") == 0))
        in->costs_name = NULL; /* "survey" is what is done without --costs */
    in->quiet = r->as_rank;    /* the command that started the ranks has warned */
    const int status = plan_read_costs(in);
    if (status != TOOL_OK || !in->costs_name) return status;
    const esp_plan_system *s = &in->costs_file.system.system;
    if (!r->machines && (!r->n || r->n % (long)s->machines == 0)) r->machines = s->machines;
    if (!r->n) r->n = r->machines * (long)s->ranks_per_machine;
    if (!r->job.inter && r->machines > 1 && r->job.mode == REPLAY_REAL) r->job.inter = in->costs_file.inter;
    return TOOL_OK;
}

static int replay_costs_fit(replay_run *r) {
    const esp__costs_file *f = &r->in.costs_file;
    const esp_plan_system *s = &f->system.system;
    const char *const name = r->in.costs_name, *link = r->job.inter ? r->job.inter : "none",
                      *made = f->inter ? f->inter : "none";
    const uint32_t cores = f->system.measured.cores;
    if (!name) return TOOL_OK;
    if ((long)s->machines != r->machines || (long)s->machines * s->ranks_per_machine != r->n)
        return tool_fail(r->in.command,
                         "--costs %s: it is for %u machine(s) of %u rank(s), and this run has %ld of %ld: leave -n and "
                         "--machines out, or measure again with espresso profile costs -n %ld --machines %ld",
                         name, s->machines, s->ranks_per_machine, r->machines, r->n / r->machines, r->n, r->machines);
    if (r->as_rank) return TOOL_OK;
    if (cores && cores != esp__cores())
        fprintf(stderr, "espresso replay: warning: %s was measured on %u cores, and this machine has %u\n", name, cores,
                esp__cores());
    if (strcmp(link, made) != 0)
        fprintf(stderr,
                "espresso replay: warning: %s was measured with link %s between machines, and this run has %s\n", name,
                made, link);
    return TOOL_OK;
}

static int replay_costs_save(const replay_run *r) {
    char host[256] = "", device[128] = "";
    const esp__survey *s = r->surveyed;
    const esp__measured measured = {.ranks = s->ranks,
                                    .cores = s->cores,
                                    .spread = s->noise,
                                    .has_spread = 1,
                                    .noisy = s->noise > PROFILE_NOISY_SPREAD,
                                    .device = device};
    const esp__system_file system = {
        .system = r->in.system, .source = "measured by espresso replay", .measured = measured};
    esp__costs_texts t = {.host = host, .inter = r->job.inter, .n_codecs = r->in.n_codecs};
    esp__text part[1 + ESP__COSTS_CODECS] = {{0}};
    if (gethostname(host, sizeof host - 1) || !*host) snprintf(host, sizeof host, "unknown");
    esp__cpu_name(device, sizeof device);
    esp__system_print(&system, &part[0]);
    t.system = part[0].data ? part[0].data : "";
    for (uint32_t i = 0; i < t.n_codecs; i++) {
        esp__gc_file f = {.codec = r->in.codecs[i], .source = system.source, .measured = measured};
        f.codec.decompress[ESP_PLAN_CPU].log_size = f.codec.compress[ESP_PLAN_CPU].log_size;
        esp__gc_print(&f, &part[1 + i]);
        t.codecs[i] = part[1 + i].data ? part[1 + i].data : "";
    }
    const esp_status status = esp__costs_write(r->save_costs, &t);
    for (uint32_t i = 0; i <= t.n_codecs; i++) esp__text_free(&part[i]);
    return status == ESP_OK ? TOOL_OK : tool_fail(r->in.command, "%s", esp_last_error(NULL));
}
