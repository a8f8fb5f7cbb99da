/* profile.c: `espresso profile` measures what the planner must know, and writes it to a costs file. */
#include "tools/profile/profile.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/context/context.h"
#include "tools/common/quantity.h"
#include "tools/run/ranks.h"
#include <unistd.h>

enum {
    PROFILE_N,
    PROFILE_MACHINES,
    PROFILE_INTER,
    PROFILE_CODEC_LIST,
    PROFILE_DEVICE,
    PROFILE_STEPS,
    PROFILE_UP_TO,
    PROFILE_BUDGET,
    PROFILE_ONLY,
    PROFILE_O,
    PROFILE_AS_RANK
};
static const tool_flag profile_flags[] = {
    [PROFILE_N] = {"-n", "N", "how many ranks, as many as train together"},
    [PROFILE_MACHINES] = {"--machines", "M", "spread them over M emulated machines (default 1)"},
    [PROFILE_INTER] = {"--inter", "RATE[,LATENCY]",
                       "with --machines: emulate this link between them, as in 1gbit,50us"},
    [PROFILE_CODEC_LIST] = {"--codecs", "LIST", "as in 'fp16;dgc:ratio=0.01' (default: those that there are)"},
    [PROFILE_DEVICE] = {"--device", "cpu|gpu|both", "where codecs compress (default cpu); gpu needs plugin cuda"},
    [PROFILE_STEPS] = {"--steps", "N", "steps of PROGRAM to measure, after 5 that are not (default 100)"},
    [PROFILE_UP_TO] = {"--up-to", "SIZE", "the most bytes of links and elements of codecs (default 64MiB)"},
    [PROFILE_BUDGET] = {"--budget", "TIME", "how long links and codecs may take together (default 60s)"},
    [PROFILE_ONLY] = {"--only", "PART,...", "of the parts model, links and codecs only these"},
    [PROFILE_O] = {"-o", "FILE", "the costs file to write; - is standard output (needed)"},
    [PROFILE_AS_RANK] = {"--as-rank", "FDS", "internal: this is one of the ranks"},
};

static int profile_main(const tool_command *self, int argc, char **argv);
const tool_command profile_command = {
    .name = "profile",
    .summary = "Measures a trainer, its links and codecs, as a costs file for espresso plan.",
    .synopsis = "-n N [--machines M [--inter RATE[,LATENCY]]] [--codecs LIST] -o FILE [-- PROGRAM [ARG...]]",
    TOOL_FLAGS(profile_flags),
    .run = profile_main,
    .details =
        "First PROGRAM, a trainer, is started as N ranks, and ended when its steps are measured; its output goes to\n"
        "standard error. Then N ranks measure collectives and compression at the same time. Without PROGRAM the file\n"
        "has no model: espresso plan then needs --model. The file of a busy machine is marked as noisy.\n"
        "On several machines a launcher starts this command without -n, and each process measures as a rank.\n"
        "PROGRAM without -n is started once, as it is, and may be such a launcher.\n"
        "\n"
        "examples:\n"
        "  espresso profile -n 4 -o costs.json -- ./train --batch 64\n"
        "  espresso plan --costs costs.json -o plan.strategy\n"
        "  espresso profile -n 4 --machines 2 --inter 1gbit,50us --codecs 'fp16;dgc:ratio=0.01' -o costs.json\n"
        "  mpirun -n 8 --hostfile hosts espresso profile -o costs.json\n"
        "  espresso profile --only model -o model.json -- mpirun -n 8 -x ESPRESSO_PROFILE -x ESPRESSO_STATS ./train",
};

/* ---- flags ------------------------------------------------------------------------------------------------------- */
/* Reads the largest size. Sizes to measure are 1024, 2048, 4096, and so on, up to it. */
static void profile_sizes(profile_job *j, const char *text) {
    double most;
    if (!tool_quantity(text, tool_sizes, &most) || most < 1024 || most > 0x1p36)
        tool_usage(j->command, "--up-to %s: write a number from 1024 to 2^36, as in 16MiB", text);
    for (j->n_sizes = 0; j->n_sizes < PROFILE_SIZES_MAX && UINT64_C(1024) << j->n_sizes <= (uint64_t)most; j->n_sizes++)
        j->sizes[j->n_sizes] = UINT64_C(1024) << j->n_sizes;
}

static void profile_device(profile_job *j, const char *text) {
    static const char *const devices[] = {"cpu", "gpu", "both"};
    uint32_t k = 0;
    while (k < 3 && strcmp(text, devices[k])) k++;
    if (k == 3) tool_usage(j->command, "--device %s: write cpu, gpu or both", text);
    j->devices = k + 1;
}

static void profile_only(profile_job *j, const char *text) {
    static const char *const parts[] = {"model", "links", "codecs", NULL};
    for (const char *at = text; *at;) {
        const int k = tool_listed(&at, parts);
        if (k < 0) tool_usage(j->command, "--only %s: the parts are model, links and codecs", text);
        j->parts |= 1u << k;
    }
    if (!j->parts) tool_usage(j->command, "--only: which of model, links and codecs?");
}

static void profile_flag(profile_job *j, int flag, const char *value) {
    const tool_command *c = j->command;
    switch (flag) {
    case PROFILE_N: j->n = tool_whole(c, "-n", value, 1, 1024); break;
    case PROFILE_MACHINES: j->machines = tool_whole(c, "--machines", value, 1, 1024); break;
    case PROFILE_INTER: j->inter = value; break;
    case PROFILE_CODEC_LIST: profile_codecs_read(j, value); break;
    case PROFILE_DEVICE: profile_device(j, value); break;
    case PROFILE_STEPS: j->steps = tool_whole(c, "--steps", value, 1, 1000000); break;
    case PROFILE_UP_TO: profile_sizes(j, value); break;
    case PROFILE_BUDGET:
        if (!tool_quantity(value, tool_times, &j->budget_ns))
            tool_usage(c, "--budget %s: write a time, as in 30s", value);
        break;
    case PROFILE_ONLY: profile_only(j, value); break;
    case PROFILE_O: j->out = value; break;
    default:
        j->started = true;
        if (!getenv("ESPRESSO_RANK") || sscanf(value, "%d,%d", &j->terminal, &j->model_file) != 2)
            tool_usage(c, "--as-rank is the command's own: leave it out, and it starts the ranks");
    }
}

static void profile_parse(profile_job *j, int argc, char **argv) {
    const char *value;
    int at = 0, flag;
    while ((flag = tool_next(j->command, argc, argv, &at, &value)) >= 0) profile_flag(j, flag, value);
    j->program = argv + at;
    if (!j->parts) j->parts = PROFILE_LINKS | PROFILE_CODECS | (*j->program ? PROFILE_MODEL : 0u);
}

/* ---- checks: before anything is measured ------------------------------------------------------------------------- */
static void profile_check_parts(profile_job *j, bool launched) {
    const tool_command *c = j->command;
    const char *program = *j->program;
    if (launched && (j->parts & PROFILE_MODEL))
        tool_usage(c, "ranks of a launcher measure no PROGRAM: see the example with --only model");
    if (program && !(j->parts & PROFILE_MODEL))
        tool_usage(c, "'%s' is no flag, and --only leaves out PROGRAM", program);
    if (!program && (j->parts & PROFILE_MODEL))
        tool_usage(c, "no program to measure: espresso profile -n 4 --only model -o model.json -- ./train");
    if (!program && j->steps) tool_usage(c, "--steps needs a PROGRAM to measure, after --");
    if (!j->out || !*j->out) tool_usage(c, "-o is missing: the costs file to write, such as -o costs.json");
}

static void profile_check_place(const profile_job *j, bool launched) {
    const tool_command *c = j->command;
    if (launched && (j->machines || j->inter))
        tool_usage(c, "%s: ranks of a launcher are on the machines where it starts them: leave it out",
                   j->inter ? "--inter" : "--machines");
    if (launched) return;
    if (!j->n && j->parts != PROFILE_MODEL)
        tool_usage(c, "how many ranks? For example: espresso profile -n 4 -o costs.json -- ./train");
    if (!j->n && j->machines) tool_usage(c, "--machines needs -n: how many ranks?");
    if (j->n == 1 && (j->parts & PROFILE_LINKS))
        tool_usage(c, "1 rank has no links: write -n 2 or more, or leave them out with --only");
    if (!j->n && j->inter) tool_usage(c, "--inter has no effect with one machine: add --machines");
    if (j->n) ranks_check(c, j->n, j->machines ? j->machines : 1, j->inter);
}

static int profile_check_codecs(profile_job *j) {
    esp_ctx *ctx;
    if (!(j->parts & PROFILE_CODECS)) return TOOL_OK;
    esp_status s = esp__open_alone(&ctx);
    if (s) return tool_fail(j->command, "%s", esp_last_error(NULL));
    s = profile_codecs_choose(j, ctx);
    if (s) tool_fail(j->command, "%s", esp_last_error(ctx));
    esp_close(ctx);
    return s ? TOOL_FAILED : TOOL_OK;
}

static int profile_check_out(const profile_job *j) {
    const int error = strcmp(j->out, "-") ? esp__file_check(j->out) : 0;
    return error ? tool_fail(j->command, "-o %s: cannot be written: %s", j->out, strerror(error)) : TOOL_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
ESP__FN esp_status profile_write(const profile_job *j, esp__costs_texts *t) {
    char host[256] = "", path[32], *model = NULL;
    size_t len;
    esp_status s = ESP_OK;
    if (gethostname(host, sizeof host - 1) || !*host) snprintf(host, sizeof host, "unknown");
    snprintf(path, sizeof path, "/proc/self/fd/%d", j->model_file);
    if (j->model_file >= 0) s = files_input_load(path, &model, &len);
    t->host = host;
    t->model = model;
    if (!s) s = esp__costs_write(j->out, t);
    free(model);
    if (!s && strcmp(j->out, "-")) printf("\nwritten: %s\n", j->out);
    return s;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */
/* Runs in the process that the user started: measures the trainer, and starts ranks that measure links and codecs. */
static int profile_all(profile_job *j, char **argv) {
    profile_check_place(j, false);
    int status = profile_check_out(j);
    if (status == TOOL_OK) status = profile_check_codecs(j);
    if (status == TOOL_OK && (j->parts & PROFILE_MODEL)) status = profile_trainer(j);
    if (status == TOOL_OK && j->parts != PROFILE_MODEL)
        status = profile_start(j, argv);
    else if (status == TOOL_OK && profile_write(j, &(esp__costs_texts){.inter = j->inter}) != ESP_OK)
        status = tool_fail(j->command, "%s", esp_last_error(NULL));
    if (j->model_file >= 0) close(j->model_file);
    return status;
}

/* Runs in each rank if another launcher, such as mpirun, has started them: measures links and codecs. */
static int profile_launched(profile_job *j, int rank) {
    if (rank == 0) {
        profile_check_place(j, true);
        if (profile_check_out(j) != TOOL_OK) return TOOL_FAILED;
        if (isatty(2)) j->terminal = 2;
    }
    return profile_as_rank(j);
}

static int profile_main(const tool_command *self, int argc, char **argv) {
    const esp_config cfg = {.struct_size = sizeof cfg};
    esp__where w;
    profile_job *j = tool_zeroed(sizeof *j);
    j->command = self;
    j->devices = 1u << ESP_ON_CPU;
    j->budget_ns = 60e9;
    j->terminal = j->model_file = -1;
    profile_sizes(j, "64MiB");
    profile_parse(j, argc, argv);
    const bool launched = !j->n && !j->started && esp__env_where(&cfg, &w) == ESP_OK && w.size > 1;
    if (!j->started && (!launched || w.rank == 0)) profile_check_parts(j, launched);
    if (!j->steps) j->steps = 100;
    const int status = j->started ? profile_as_rank(j) : launched ? profile_launched(j, w.rank) : profile_all(j, argv);
    free(j);
    return status;
}
