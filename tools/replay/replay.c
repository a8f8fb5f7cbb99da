/* replay.c: `espresso replay` runs a model's steps without the model, and compares them with the plan's prediction.
 * This file reads the flags, measures costs if the user gave none, and starts the ranks. */
#include "tools/replay/replay.h"

#include "espresso_impl/base/file.h"
#include "espresso_impl/base/machine.h"
#include "espresso_impl/job/job.h"
#include "tools/profile/profile.h"
#include "tools/run/run.h"
#include "tools/run/ranks.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

enum { REPLAY_STRATEGY = PLAN_COMMON, REPLAY_N, REPLAY_INTER, REPLAY_ELEMENTS, REPLAY_COUNT, REPLAY_TIMELINE };
static const tool_flag replay_flags[] = {
    {"--strategy", "A,B,...", "strategies of 'espresso compare', or strategy files (default fp32,espresso+)"},
    {"-n", "N", "ranks, all on this machine (default 4, or what --costs is for)"},
    {"--inter", "RATE[,LATENCY]", "emulate this link between machines, as in 100mbit,50us"},
    {"--elements-scale", "PART", "that part of the model's elements, as in 0.1: for a machine with little memory"},
    {"--steps", "N", "measured steps of each strategy (default 9)"},
    {"--timeline", "FILE", "write a page: the last strategy's predicted step above the measured one"},
};

ESP__FN void replay_progress(const replay_run *r, const char *fmt, ...) {
    va_list ap;
    if (r->json || (r->ctx && r->ctx->job.rank)) return;
    fputs("espresso replay: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* ---- flags ------------------------------------------------------------------------------------------------------- */
static void replay_flag(void *job, int flag, const char *value) {
    replay_run *r = job;
    const tool_command *const c = r->in.command;
    double *const scale = &r->elements_scale;
    switch (flag) {
    case PLAN_JSON: r->json = true; break;
    case PLAN_MACHINES: r->machines = tool_whole(c, "--machines", value, 1, 1024); break;
    case PLAN_SYSTEM: tool_usage(c, "--system: costs are measured here, or come from --costs FILE");
    case REPLAY_STRATEGY: r->strategies = value; break;
    case REPLAY_N: r->n = tool_whole(c, "-n", value, 2, 1024); break;
    case REPLAY_INTER: r->inter = value; break;
    case REPLAY_ELEMENTS:
        if (!tool_quantity(value, tool_parts, scale) || *scale < 1e-7 || *scale > 10)
            tool_usage(c, "--elements-scale %s: expected a number from 1e-7 to 10", value);
        break;
    case REPLAY_COUNT: r->steps = tool_whole(c, "--steps", value, 1, 10000); break;
    case REPLAY_TIMELINE: r->timeline = value; break;
    default: plan_flag(&r->in, flag, value);
    }
}

static int replay_add(replay_run *r, const char *name, size_t len) {
    if (r->n_list == REPLAY_STRATEGIES_MAX)
        tool_usage(r->in.command, "--strategy: at most %d strategies", (int)REPLAY_STRATEGIES_MAX);
    replay_strategy *s = &r->list[r->n_list++];
    s->name = tool_realloc(NULL, len + 1);
    snprintf(s->name, len + 1, "%s", name);
    for (uint32_t i = 0; i + 1 < r->n_list; i++)
        if (strcmp(r->list[i].name, s->name) == 0)
            tool_usage(r->in.command, "--strategy: '%s' is there twice", s->name);
    if (strcmp(s->name, "espresso+") == 0 || esp__scheme_find(s->name)) return TOOL_OK;
    if (plan_is_path(s->name) || access(s->name, F_OK) == 0)
        return plan_read_strategy(r->in.command, s->name, &s->text);
    plan_no_strategy(r->in.command, s->name);
}

static int replay_list(replay_run *r) {
    int status = TOOL_OK;
    for (const char *at = r->strategies; *at && status == TOOL_OK; at += *at == ',') {
        const size_t n = strcspn(at, ",");
        if (n) status = replay_add(r, at, n);
        at += n;
    }
    if (!r->n_list) tool_usage(r->in.command, "--strategy names none");
    return status;
}

static int replay_parse(replay_run *r, int argc, char **argv) {
    const tool_command *c = r->in.command;
    tool_flags_only(c, argc, argv, replay_flag, r);
    if (!r->in.model_name && !r->in.costs_name)
        tool_usage(c, "--model is missing: a JSON file, or a name such as vgg16");
    if (r->json && r->timeline && strcmp(r->timeline, "-") == 0)
        tool_usage(c, "only one of --json and --timeline - can go to standard output");
    return replay_list(r);
}

static double replay_elements(const replay_run *r) {
    double elements = 0;
    for (uint32_t t = 0; t < r->in.model.n_tensors; t++) elements += (double)r->in.model.tensors[t].elements;
    return elements * r->elements_scale;
}

/* ---- costs ------------------------------------------------------------------------------------------------------- */
ESP__FN int replay_costs_fit(replay_run *r) {
    const esp_plan_system *s = &r->in.costs_file.system.system;
    const char *const inter = r->in.costs_file.inter;
    if ((long)s->machines != r->machines || (long)s->machines * s->ranks_per_machine != r->n)
        return tool_fail(r->in.command,
                         "--costs %s: it is for %u machine(s) of %u rank(s), and this run has %ld of %ld",
                         r->in.costs_name, s->machines, s->ranks_per_machine, r->machines, r->n / r->machines);
    for (uint32_t i = 0; i < r->in.n_codecs; i++)
        if (!plan_costs_codec(&r->in, r->in.gc[i]))
            return tool_fail(r->in.command, "--costs %s: it has no codec '%s'", r->in.costs_name, r->in.gc[i]);
    if (!r->ctx && strcmp(r->inter ? r->inter : "", inter ? inter : "") != 0)
        fprintf(stderr,
                "espresso replay: warning: %s was measured with link %s between machines, and this run has %s\n",
                r->in.costs_name, inter ? inter : "none", r->inter ? r->inter : "none");
    return TOOL_OK;
}

/* Runs `espresso profile`, which measures links and codecs up to the model's sizes, and writes the costs to `path`. */
static int replay_measure(replay_run *r, const char *path) {
    char n[24], machines[24], most[24];
    const char *words[16] = {"-n",       n,     "--machines", machines, "--up-to", most,
                             "--budget", "20s", "-o",         path,     "--codecs"};
    esp__text codecs = {0};
    int k = 11;
    long up_to = 1024;
    while (up_to < 1 << 26 && (double)up_to < 4 * replay_elements(r)) up_to *= 2;
    snprintf(n, sizeof n, "%ld", r->n);
    snprintf(machines, sizeof machines, "%ld", r->machines);
    snprintf(most, sizeof most, "%ld", up_to);
    if (!r->in.n_codecs) r->in.gc[r->in.n_codecs++] = "dgc:ratio=0.01";
    for (uint32_t i = 0; i < r->in.n_codecs; i++) esp__text_add(&codecs, "%s%s", i ? ";" : "", r->in.gc[i]);
    words[k++] = codecs.data ? codecs.data : "";
    if (r->inter) words[k++] = "--inter", words[k++] = r->inter;
    replay_progress(r, "measuring links and codecs (--costs FILE takes them from a file of espresso profile)");
    fflush(stdout);
    const int out = dup(1), null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    const int status = profile_command.run(&profile_command, k, (char **)(uintptr_t)words);
    esp__text_free(&codecs);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    close(null);
    return status;
}

/* ---- the command that starts the ranks --------------------------------------------------------------------------- */
static int replay_memory_fits(const replay_run *r) {
    const double elements = replay_elements(r);
    const double need = (double)r->n * elements * 4 * 6, there = esp__machine_memory();
    if (there <= 0 || need < 0.8 * there) return TOOL_OK;
    return tool_fail(r->in.command,
                     "%ld ranks with %s elements each need about %s of memory, and %s are free: use fewer ranks, or "
                     "--elements-scale",
                     r->n, tool_count(elements), tool_bytes(need), tool_bytes(there));
}

/* Completes the numbers of ranks and machines that the user did not give, from the costs file or with defaults. */
static void replay_complete(replay_run *r) {
    const esp_plan_system *s = &r->in.costs_file.system.system;
    if (r->in.costs_name) {
        if (!r->machines && (!r->n || r->n % (long)s->machines == 0)) r->machines = s->machines;
        if (!r->n) r->n = r->machines * (long)s->ranks_per_machine;
        if (!r->inter && r->machines > 1) r->inter = r->in.costs_file.inter;
    }
    if (!r->n) r->n = r->machines > 4 ? r->machines : 4;
    if (!r->machines) r->machines = r->n % 2 == 0 && r->n > 2 ? 2 : 1;
    ranks_check(r->in.command, r->n, r->machines, r->inter);
}

static int replay_start(const replay_run *r, char **argv) {
    return tool_ranks(r->in.command, r->n, r->machines, r->inter, (const char *const[]){"--costs", r->in.costs_name},
                      argv);
}

static int replay_as_parent(replay_run *r, char **argv) {
    char folder[PATH_MAX], path[PATH_MAX + 16];
    const char *const tmp = getenv("TMPDIR");
    const int error = r->timeline && strcmp(r->timeline, "-") ? esp__file_check(r->timeline) : 0;
    if (error) return tool_fail(r->in.command, "--timeline %s: cannot be written: %s", r->timeline, strerror(error));
    const bool measure = !r->in.costs_name;
    r->in.quiet = true;
    int status = measure ? plan_read_model(&r->in) : plan_read(&r->in);
    if (status == TOOL_OK) {
        replay_complete(r);
        status = replay_memory_fits(r);
    }
    if (status == TOOL_OK && !measure) status = replay_costs_fit(r);
    if (status == TOOL_OK && !measure) return replay_start(r, argv);
    if (status != TOOL_OK) return status;
    snprintf(folder, sizeof folder, "%s/espresso-replay-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) return tool_fail(r->in.command, "%s: cannot be made: %s", folder, strerror(errno));
    snprintf(path, sizeof path, "%s/costs.json", folder);
    status = replay_measure(r, path);
    r->in.costs_name = path;
    if (status == TOOL_OK) status = replay_start(r, argv);
    unlink(path);
    rmdir(folder);
    return status;
}

static void replay_free(replay_run *r) {
    for (uint32_t i = 0; i < r->n_list; i++) {
        replay_strategy *s = &r->list[i];
        free(s->name);
        esp__text_free(&s->text);
        free(s->event_of_op);
        free(s->step_ns);
        free(s->spans);
        free(s->measured);
        plan_free(&s->predicted);
    }
    plan_close(&r->in);
    free(r->command);
    free(r);
}

/* Starts the ranks, or acts as one of them if a launcher has started this process. */
static int replay_main(const tool_command *self, int argc, char **argv) {
    replay_run *r = tool_zeroed(sizeof *r);
    const esp_config cfg = {.struct_size = sizeof cfg};
    esp__where w;
    r->strategies = "fp32,espresso+";
    r->steps = 9;
    r->elements_scale = 1;
    plan_open(&r->in, self, argc);
    int status = replay_parse(r, argc, argv);
    if (status == TOOL_OK && esp__env_where(&cfg, &w) != ESP_OK) status = tool_fail(self, "%s", esp_last_error(NULL));
    if (status == TOOL_OK && w.size < 2) {
        status = replay_as_parent(r, argv);
    } else if (status == TOOL_OK && !r->in.costs_name) {
        status =
            tool_fail(self, "--costs is missing: in a job that is started already nothing is measured; run espresso "
                            "profile with the same launcher first");
    } else if (status == TOOL_OK) {
        r->in.quiet = w.rank > 0;
        r->command = plan_command_line(self, argc, argv);
        status = plan_read(&r->in);
        if (status == TOOL_OK) status = replay_as_rank(r);
    }
    replay_free(r);
    return status;
}

const tool_command replay_command = {
    .name = "replay",
    .summary = "Runs a model's steps without its trainer: measured against predicted.",
    .synopsis = "--model FILE|NAME [--costs FILE] [--strategy A,B] [-n 4 --machines 2 [--inter 1gbit,50us]] [flags]",
    TOOL_FLAGS(replay_flags),
    .common = plan_common,
    .n_common = PLAN_COMMON,
    .run = replay_main,
    .details =
        "Each rank keeps a core busy for as long as the model's forward and backward take, and synchronises random\n"
        "gradients. Strategies run in turn, a few steps each. Without --costs, links and codecs are measured first.\n"
        "As a program of espresso run, mpirun or srun, replay runs on the job's ranks and needs --costs.\n"
        "\n"
        "examples:\n"
        "  espresso replay --model resnet50 -n 4 --machines 2 --inter 1gbit,50us\n"
        "  espresso replay --model bert-base --costs costs.json --strategy fp32,plan.strategy --timeline bert.html\n"
        "  espresso run --hosts a,b -n 8 -- espresso replay --model gpt2 --costs costs.json",
};
