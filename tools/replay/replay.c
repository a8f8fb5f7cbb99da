/* replay.c: `espresso replay`: runs steps with a model's timing and real buffers on ranks that it starts, and compares
 * predicted with measured times. The other files of this folder are its parts. This file reads the flags and starts the
 * ranks. */
#include "espresso_impl/base/cores.h"
#include "tools/replay/replay.h"

enum {
    REPLAY_STRATEGY = PLAN_COMMON,
    REPLAY_N,
    REPLAY_INTER,
    REPLAY_MODE,
    REPLAY_ELEMENTS,
    REPLAY_TIMES,
    REPLAY_RATIO,
    REPLAY_COUNT,
    REPLAY_COMPUTE,
    REPLAY_CSV,
    REPLAY_TIMELINE,
    REPLAY_TRACE,
    REPLAY_PAGE,
    REPLAY_SAVE_COSTS,
    REPLAY_FORCE,
    REPLAY_AS_RANK
};
static const tool_flag replay_flags[] = {
    {"--strategy", "all|A,B,...",
     "strategies or their files (default fp32,espresso+); all: every one of 'espresso compare'"},
    {"-n", "N", "ranks, all on this machine (default 4)"},
    {"--inter", "RATE[,LATENCY]",
     "the link between machines, such as 100mbit,50us; --mode model: of the modelled ones"},
    {"--mode", "model|real", "real (default): all of it runs here; model: ops take a modelled system's times"},
    {"--elements-scale", "PART", "that part of the model's elements (default 0.01, in model mode 0.001)"},
    {"--time-scale", "FACTOR", "computing takes that many times as long (model mode: everything does; default 1)"},
    {"--ratio", "R", "choose scales so that fp32 communication / computing is R, such as 1"},
    {"--steps", "N", "measured steps of each strategy (default 9)"},
    {"--compute", "hold|busy", "computing leaves the cores alone (an accelerator's), or takes one (a CPU's)"},
    {"--csv", "FILE", "a row for each strategy"},
    {"--timeline", "FILE", "write a page with the predicted step above the measured one"},
    {"--trace", "FILE", "both as a trace for Perfetto"},
    {"--page", "FILE", "write a page that compares the strategies"},
    {"--save-costs", "FILE", "write the costs that were measured, as a costs file"},
    {"--force", NULL, "run what would be refused, and mark it"},
    {"--as-rank", "FDS", "internal: this is one of the ranks"},
};

/* ---- flags ------------------------------------------------------------------------------------------------------------ */
static int replay_part(const replay_run *r, const char *flag, const char *value, double low, double high, double *out) {
    if (tool_quantity(value, tool_parts, out) && *out >= low && *out <= high) return TOOL_OK;
    return tool_usage(r->in.command, "%s %s: expected a number from %g to %g", flag, value, low, high);
}

static int replay_whole(const replay_run *r, const char *flag, const char *value, long high, long *out) {
    if (tool_number(value, 1, high, out)) return TOOL_OK;
    return tool_usage(r->in.command, "%s %s: expected a whole number from 1 to %ld", flag, value, high);
}

/* Reads one of two words: `zero` gives 0, `one` gives 1. */
static int replay_word(const replay_run *r, const char *flag, const char *value, const char *zero, const char *one,
                       int *out) {
    *out = strcmp(value, one) == 0;
    if (*out || strcmp(value, zero) == 0) return TOOL_OK;
    return tool_usage(r->in.command, "%s %s: expected %s or %s", flag, value, zero, one);
}

static int replay_own_flag(replay_run *r, int flag, const char *value) {
    switch (flag) {
    case PLAN_JSON: r->job.json = "-"; break;
    case PLAN_MACHINES: return replay_whole(r, "--machines", value, 1024, &r->machines);
    case REPLAY_STRATEGY: r->strategies = value; break;
    case REPLAY_N: return replay_whole(r, "-n", value, 1024, &r->n);
    case REPLAY_INTER: r->job.inter = value; return run_check_link(r->in.command, "--inter", value);
    case REPLAY_MODE: return replay_word(r, "--mode", value, "model", "real", &r->job.mode);
    case REPLAY_ELEMENTS: return replay_part(r, "--elements-scale", value, 1e-7, 10, &r->elements_scale);
    case REPLAY_TIMES: return replay_part(r, "--time-scale", value, 0.01, 1000, &r->time_scale);
    case REPLAY_RATIO: return replay_part(r, "--ratio", value, 0.01, 100, &r->ratio);
    case REPLAY_COUNT: return replay_whole(r, "--steps", value, 10000, &r->steps);
    case REPLAY_COMPUTE: return replay_word(r, "--compute", value, "hold", "busy", &r->compute);
    case REPLAY_CSV: r->job.csv = value; break;
    case REPLAY_TIMELINE: r->job.timeline = value; break;
    case REPLAY_TRACE: r->job.trace = value; break;
    case REPLAY_PAGE: r->job.page = value; break;
    case REPLAY_SAVE_COSTS: r->save_costs = value; break;
    case REPLAY_FORCE: r->force = 1; break;
    case REPLAY_AS_RANK: /* with this flag the process starts no ranks, or ranks would start ranks without end */
        r->as_rank = 1;
        if (getenv("ESPRESSO_RANK") && sscanf(value, "%d,%d", &r->status_fd, &r->progress_fd) == 2) break;
        return tool_usage(r->in.command, "--as-rank is the command's own: leave it out, and it starts the ranks");
    default: return plan_flag(&r->in, flag, value);
    }
    return TOOL_OK;
}

static int replay_stdout_users(const replay_job *j) {
    const char *const all[] = {j->json, j->csv, j->timeline, j->trace, j->page};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) n += all[i] && strcmp(all[i], "-") == 0;
    return n;
}

/* A strategy such as fp16 uses a codec of its own, whatever --gc says: adds that codec, so that its costs are
 * measured. */
static void replay_add_codecs(replay_run *r) {
    const uint32_t most = r->job.mode == REPLAY_REAL ? (uint32_t)ESP__SURVEY_CODECS : (uint32_t)PLAN_CODECS_MAX;
    for (uint32_t i = 0; i < r->n_list; i++) {
        const esp__scheme *s = esp__scheme_find(r->list[i].name);
        int wanted = s && s->codec;
        for (uint32_t k = 0; k < r->in.n_codecs && wanted; k++) wanted = strcmp(r->in.gc[k], s->codec) != 0;
        if (wanted && r->in.n_codecs < most) r->in.gc[r->in.n_codecs++] = s->codec;
    }
}

/* Checks combinations of flags, and sets defaults. */
static int replay_complete(replay_run *r) {
    const tool_command *c = r->in.command;
    if (!r->as_rank && getenv("ESPRESSO_RANK"))
        return tool_fail(c,
                         "this is rank %s of a job already, and replay starts ranks of its own: run it by itself (or "
                         "unset ESPRESSO_RANK)",
                         getenv("ESPRESSO_RANK"));
    if (replay_costs_known(r) != TOOL_OK) return TOOL_FAILED;
    if (!r->in.model_name) return tool_usage(c, "--model is missing: a JSON file, or a name such as vgg16");
    if (replay_stdout_users(&r->job) > 1)
        return tool_usage(c, "only one of --json, --csv, --timeline, --trace and --page can go to standard output");
    if (r->costs_auto && r->job.mode == REPLAY_MODEL)
        return tool_usage(c, "--costs auto: nothing is measured with --mode model");
    if (r->save_costs && (r->job.mode == REPLAY_MODEL || r->in.costs_name))
        return tool_usage(c, "--save-costs: nothing is measured with --mode model or --costs FILE");
    if (r->job.mode == REPLAY_REAL && r->in.system_name && r->in.system_name != r->in.costs_name)
        return tool_usage(c,
                          "--system %s: in real mode this machine is the system, and it is measured; for a modelled "
                          "one use --mode model",
                          r->in.system_name);
    if (r->job.mode == REPLAY_MODEL && r->compute == REPLAY_BUSY)
        return tool_usage(c, "--compute busy is for --mode real: in model mode computing is held");
    if (!r->n) r->n = r->machines > 4 ? r->machines : 4;
    if (!r->machines) r->machines = r->n % 2 == 0 && r->n > 2 ? 2 : 1;
    if (r->n % r->machines) return tool_usage(c, "-n %ld: does not divide by %ld machines", r->n, r->machines);
    if (r->job.inter && r->machines == 1)
        return tool_usage(c, "--inter has no effect with one machine: add --machines");
    if (r->job.mode == REPLAY_REAL && replay_costs_fit(r) != TOOL_OK) return TOOL_FAILED;
    if (!r->in.n_codecs) r->in.gc[r->in.n_codecs++] = "dgc:ratio=0.01";
    if (r->job.mode == REPLAY_REAL && r->in.n_codecs > ESP__SURVEY_CODECS)
        return tool_usage(c, "--gc: at most %d codecs in real mode", (int)ESP__SURVEY_CODECS);
    if (!r->strategies) r->strategies = "fp32,espresso+";
    if (!r->steps) r->steps = REPLAY_STEPS;
    r->job.n = (int)r->n;
    r->job.machines = (int)r->machines;
    r->job.cores = esp__cores();
    r->n_given = r->in.n_codecs;
    const int status = replay_list(r);
    if (status == TOOL_OK) replay_add_codecs(r);
    return status;
}

static int replay_parse(replay_run *r, int argc, char **argv) {
    const tool_command *c = r->in.command;
    const char *value;
    int at = 0, flag, status = TOOL_OK;
    while (status == TOOL_OK && (flag = tool_next(c, argc, argv, &at, &value)) != -1)
        status = flag == -2 ? TOOL_USAGE : flag == -3 ? -1 : replay_own_flag(r, flag, value);
    if (status != TOOL_OK) return status;
    if (at < argc) return tool_usage(c, "'%s': takes flags only", argv[at]);
    return replay_complete(r);
}

/* ---- what is replayed ---------------------------------------------------------------------------------------------------- */
/* The modelled system: its number of machines and ranks, and the link that --inter describes. */
static int replay_read_system(replay_run *r) {
    esp_plan_system *s = &r->in.system;
    if (!r->in.system_name) r->in.system_name = "paper-pcie";
    const int status = plan_read_system(&r->in);
    if (status != TOOL_OK) return status;
    s->machines = (uint32_t)r->machines;
    s->ranks_per_machine = (uint32_t)(r->n / r->machines);
    if (r->job.inter) {
        char rate[64];
        const char *comma = strchr(r->job.inter, ',');
        snprintf(rate, sizeof rate, "%.*s", (int)strcspn(r->job.inter, ","), r->job.inter);
        s->inter.bytes_per_us = engine_parse_rate(rate) / 8e6;
        if (comma) s->inter.alpha_ns = engine_parse_time(comma + 1);
        memset(s->inter.table, 0, sizeof s->inter.table);
    }
    return TOOL_OK;
}

/* Reads a codec. Real mode needs only its name and parameters, since the costs are measured. */
static int replay_read_codec(replay_run *r, uint32_t i) {
    plan_inputs *in = &r->in;
    const char *name = in->gc[i];
    if (r->job.mode == REPLAY_REAL && in->costs_name && !plan_costs_codec(in, name))
        return tool_fail(in->command,
                         "--costs %s: it has no codec '%s': measure it, with espresso profile costs --codec %s",
                         in->costs_name, name, name);
    if (r->job.mode == REPLAY_MODEL || in->costs_name || plan_is_path(name) ||
        (!strchr(name, ':') && access(name, F_OK) == 0))
        return plan_read_codec(in, i);
    esp_codec_handle *h = NULL;
    esp_config cfg = {.struct_size = sizeof cfg};
    esp_ctx *ctx = NULL;
    int status = r->as_rank ? TOOL_OK : tool_open(in->command, &cfg, &ctx);
    if (ctx && esp_codec_open(ctx, name, 1024, NULL, &h) != ESP_OK)
        status = tool_fail(in->command, "--gc %s: %s", name, esp_last_error(ctx));
    if (h) esp_codec_close(h);
    esp_close(ctx);
    in->codecs[i].spec = name;
    const size_t len = strlen(in->codec_text);
    snprintf(in->codec_text + len, sizeof in->codec_text - len, "%s%s", i ? ", " : "", name);
    return status;
}

/* Were the model's times measured where computing takes the host's cores? A profile's device is "cpu: NAME". */
static int replay_on_cpu(const char *device) {
    return device && strncasecmp(device, "cpu", 3) == 0 && (!device[3] || device[3] == ':');
}

static int replay_read(replay_run *r) {
    int status = r->job.mode == REPLAY_MODEL ? replay_read_system(r) : TOOL_OK;
    if (r->job.mode == REPLAY_REAL && r->in.costs_name) status = plan_read_system(&r->in);
    for (uint32_t i = 0; status == TOOL_OK && i < r->in.n_codecs; i++) {
        const size_t shown = strlen(r->in.codec_text);
        status = replay_read_codec(r, i);
        if (i >= r->n_given) r->in.codec_text[shown] = 0;
    }
    if (status == TOOL_OK) status = plan_read_model(&r->in);
    if (status != TOOL_OK) return status;
    plan_check_keeps(&r->in);
    replay_own_tensors(r);
    if (r->compute < 0) r->compute = r->job.mode == REPLAY_REAL && replay_on_cpu(r->in.model_file.measured.device);
    const int small = r->job.mode == REPLAY_MODEL;
    const double elements = r->elements_scale > 0 ? r->elements_scale : small ? 0.001 : 0.01;
    r->times_said = r->time_scale;
    replay_scale(r, elements, r->time_scale > 0 ? r->time_scale : 1);
    if (small) replay_scale_machine(&r->in, r->elements_scale, r->time_scale, 1, &r->scaled);
    return small ? replay_choose(r) : TOOL_OK;
}

/* Checks, before a run of minutes, that the output files can be written. */
static int replay_check_outputs(const replay_job *j, const char *costs, const tool_command *c) {
    const char *const all[] = {j->csv, j->timeline, j->trace, j->page, costs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char folder[PATH_MAX];
        struct stat st;
        if (!all[i] || strcmp(all[i], "-") == 0) continue;
        const char *slash = strrchr(all[i], '/');
        snprintf(folder, sizeof folder, "%.*s",
                 slash == all[i] ? 1
                 : slash         ? (int)(slash - all[i])
                                 : 1,
                 slash ? all[i] : ".");
        if (stat(all[i], &st) == 0 && S_ISDIR(st.st_mode))
            errno = EISDIR;
        else if (access(folder, W_OK | X_OK) == 0)
            continue;
        return tool_fail(c, "%s: cannot be written: %s", all[i], strerror(errno));
    }
    return TOOL_OK;
}

/* ---- the command ------------------------------------------------------------------------------------------------------------ */
/* Starts the ranks with the same flags. Rank 0 returns the exit status as a byte in an unnamed file. */
static int replay_start(replay_run *r, int argc, char **argv) {
    char fds[32], said = 0;
    const int out = (int)syscall(SYS_memfd_create, "espresso-replay", 0u), tty = isatty(2) ? dup(2) : -1;
    char **words = tool_realloc(NULL, (size_t)(argc + 4) * sizeof *words);
    snprintf(fds, sizeof fds, "%d,%d", out, tty);
    words[0] = (char[]){"replay"};
    words[1] = (char[]){"--as-rank"};
    words[2] = fds;
    for (int i = 0; i < argc; i++) words[3 + i] = argv[i];
    words[3 + argc] = NULL;
    const char *inter = r->job.mode == REPLAY_REAL ? r->job.inter : NULL;
    int status = tool_ranks(r->in.command, r->n, r->machines, inter, words);
    if (status > TOOL_USAGE) status = TOOL_FAILED; /* a rank was killed: this is reported already */
    if (status == TOOL_OK && pread(out, &said, 1, 0) == 1) status = said;
    if (out >= 0) close(out);
    if (tty >= 0) close(tty);
    free(words);
    return status;
}

static int replay_main(const tool_command *self, int argc, char **argv) {
    replay_run *r = tool_realloc(NULL, sizeof *r);
    memset(r, 0, sizeof *r);
    r->status_fd = r->progress_fd = r->compute = -1;
    r->job.mode = REPLAY_REAL;
    plan_open(&r->in, self, argc);
    int status = replay_parse(r, argc, argv);
    if (status == TOOL_OK) status = replay_check_outputs(&r->job, r->save_costs, self);
    if (status == TOOL_OK) status = replay_read(r);
    if (status == TOOL_OK && r->as_rank) {
        char *command = plan_command_line(self, argc - 2, argv + 2);
        r->job.command = command;
        status = replay_as_rank(r);
        free(command);
    } else if (status == TOOL_OK && (r->ratio > 0 || (status = replay_memory_fits(r)) == TOOL_OK)) {
        status = replay_start(r, argc, argv);
    }
    for (uint32_t i = 0; i < r->n_list; i++) replay_strategy_free(&r->list[i]);
    free(r->tensors);
    free(r->scaled);
    plan_close(&r->in);
    free(r);
    return status == -1 ? TOOL_OK : status;
}

static const tool_command replay_command = {
    .name = "replay",
    .summary = "Runs a model's timing with real buffers on ranks of its own: measured against predicted.",
    .synopsis =
        "--model FILE|NAME [--strategy all|A,B] [--gc FILE|SPEC] [-n 8 --machines 4] [--inter 100mbit,50us] [flags]",
    .flags = replay_flags,
    .n_flags = sizeof replay_flags / sizeof *replay_flags,
    .common = plan_common,
    .n_common = PLAN_COMMON,
    .run = replay_main,
    .details =
        "Real mode: links, codecs and the cost of starting an op are measured first, by all ranks at once; then every\n"
        "strategy is planned for what was measured, and all run in turn, a few steps each, round after round.\n"
        "Model mode: every op takes the time that the plan for --system says, on absolute deadlines, while the real\n"
        "bytes move in the real order: it tests the clock. Elements are scaled for the buffers, and links and codecs\n"
        "with them, so that times stay those of the whole model; --ratio makes its links slower or faster as a whole.\n"
        "In real mode --ratio chooses --elements-scale, and --time-scale where it is not given.\n"
        "Refused, with the figures: computing and codecs over 70% of cores x step; half of all gaps under 100 us.\n"
        "\n"
        "examples:\n"
        "  espresso replay --model vgg16 --strategy all -n 4 --machines 2 --inter 100mbit,50us --ratio 1 --page "
        "vgg16.html\n"
        "  espresso replay --model bert-base --strategy plan.strategy --timeline bert.html\n"
        "  espresso replay --model lstm --mode model --system paper-nvlink -n 8 --machines 4 --strategy fp32,espresso+ "
        "--json",
};
