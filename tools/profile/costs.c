/* costs.c: `espresso profile costs`: calls the three other profiles one after the other, and puts their files into one costs file. Must
 * not know how anything is measured, nor what is in the files. */
#include "espresso_impl/base/file.h"
#include "tools/profile/profile.h"

enum {
    COSTS_N,
    COSTS_MACHINES,
    COSTS_INTER,
    COSTS_CODEC,
    COSTS_SIZES,
    COSTS_BUDGET,
    COSTS_COMPUTE,
    COSTS_STEPS,
    COSTS_O
};
static const tool_flag profile_costs_flags[] = {
    [COSTS_N] = {"-n", "N", "how many ranks, as many as train together"},
    [COSTS_MACHINES] = {"--machines", "M", "spread them over M emulated machines (default 1)"},
    [COSTS_INTER] = {"--inter", "RATE[,LATENCY]", "with --machines: emulate this link between them, as in 1gbit,50us"},
    [COSTS_CODEC] = {"--codec", "SPEC", "a codec, as in dgc:ratio=0.01; may be repeated (default: all that there are)"},
    [COSTS_SIZES] = {"--sizes", "FROM..TO", "bytes of links and elements of codecs (default 2^10..2^26)"},
    [COSTS_BUDGET] = {"--budget", "TIME", "how long links and codecs may take, half of it each (default 60s)"},
    [COSTS_COMPUTE] = {"--compute-on", "cpu|device", "as in espresso profile links"},
    [COSTS_STEPS] = {"--steps", "N", "steps of PROGRAM to measure (default 100)"},
    [COSTS_O] = {"-o", "FILE", "the costs file to write (needed)"},
};
static const tool_command profile_costs_command = {
    .name = "profile costs",
    .summary = "Measures links, codecs and a trainer, as one file for plan, compare and replay.",
    .synopsis = "-n N [--machines M [--inter RATE[,LATENCY]]] [--codec SPEC ...] -o FILE [-- PROGRAM [ARG...]]",
    .flags = profile_costs_flags,
    .n_flags = sizeof profile_costs_flags / sizeof *profile_costs_flags,
    .details =
        "Does what espresso profile links, codecs and, if there is a PROGRAM, model do, one after the other. The "
        "file is\n"
        "written when all of it is measured, or not at all. Without PROGRAM it has no model: espresso plan then "
        "needs --model.\n"
        "\n"
        "examples:\n"
        "  espresso profile costs -n 4 --codec dgc:ratio=0.01 -o costs.json -- ./train --batch 64\n"
        "  espresso profile costs -n 4 --machines 2 --inter 1gbit,50us -o costs.json\n"
        "  espresso plan --costs costs.json --model bert-base -o plan.strategy",
};

typedef struct profile_costs_job {
    const tool_command *command;
    const char *out, *value[COSTS_O]; /* value: as the user said them; NULL: not said */
    const char *codecs[ESP__SURVEY_CODECS];
    uint32_t n_codecs;
    char budget[40];
    char **program;            /* what is to be measured; *program NULL: nothing */
    char folder[PATH_MAX];     /* of the parts */
    char path[PATH_MAX + 257]; /* of one of them */
} profile_costs_job;

/* ---- command line --------------------------------------------------------------------------------------------------- */
static int profile_costs_budget(profile_costs_job *j, const char *text) {
    profile_job half = {.command = j->command};
    const int bad = profile_budget(&half, text);
    snprintf(j->budget, sizeof j->budget, "%.6f", half.budget_ns / 2e9);
    return bad;
}

static int profile_costs_parse(profile_costs_job *j, int argc, char **argv) {
    const tool_command *c = j->command;
    const char *value;
    int at = 0, flag, bad = 0;
    while (!bad && (flag = tool_next(c, argc, argv, &at, &value)) >= 0) {
        if (flag == COSTS_BUDGET)
            bad = profile_costs_budget(j, value);
        else if (flag == COSTS_CODEC && j->n_codecs == ESP__SURVEY_CODECS)
            bad = tool_usage(c, "--codec %s: at most %d codecs at a time", value, ESP__SURVEY_CODECS);
        else if (flag == COSTS_CODEC)
            j->codecs[j->n_codecs++] = value;
        else if (flag == COSTS_O)
            j->out = value;
        else
            j->value[flag] = value;
    }
    if (bad) return bad;
    if (flag == -2) return TOOL_USAGE;
    if (flag == -3) return -1;
    j->program = argv + at;
    if (!j->value[COSTS_N])
        return tool_usage(c, "how many ranks? For example: espresso profile costs -n 4 -o costs.json -- ./train");
    if (!j->out || !*j->out || !strcmp(j->out, "-"))
        return tool_usage(c, "-o is missing: the costs file to write, such as -o costs.json");
    if (j->value[COSTS_STEPS] && !*j->program) return tool_usage(c, "--steps needs a PROGRAM to measure, after --");
    const int error = esp__file_check(j->out);
    return error ? tool_fail(c, "-o %s: cannot be written: %s", j->out, strerror(error)) : TOOL_OK;
}

/* ---- the parts ---------------------------------------------------------------------------------------------------------- */
typedef struct profile_costs_words {
    char *argv[4 * ESP__SURVEY_CODECS + 4096];
    int n;
} profile_costs_words;

static void profile_costs_add(profile_costs_words *w, const char *flag, const char *value) {
    if (!value) return;
    w->argv[w->n++] = (char *)(uintptr_t)flag;
    w->argv[w->n++] = (char *)(uintptr_t)value;
}

static void profile_costs_ranks(const profile_costs_job *j, profile_costs_words *w) {
    profile_costs_add(w, "-n", j->value[COSTS_N]);
    profile_costs_add(w, "--machines", j->value[COSTS_MACHINES]);
}

static const char *profile_costs_path(profile_costs_job *j, const char *name) {
    snprintf(j->path, sizeof j->path, "%s/%s", j->folder, name);
    return j->path;
}

static int profile_costs_links(profile_costs_job *j) {
    profile_costs_words w = {.n = 0};
    profile_costs_ranks(j, &w);
    profile_costs_add(&w, "--inter", j->value[COSTS_INTER]);
    profile_costs_add(&w, "--sizes", j->value[COSTS_SIZES]);
    profile_costs_add(&w, "--compute-on", j->value[COSTS_COMPUTE]);
    profile_costs_add(&w, "--budget", j->budget);
    profile_costs_add(&w, "-o", profile_costs_path(j, "system.json"));
    return profile_links_main(w.n, w.argv);
}

static int profile_costs_codecs(profile_costs_job *j) {
    profile_costs_words w = {.n = 0};
    profile_costs_ranks(j, &w);
    for (uint32_t i = 0; i < j->n_codecs; i++) profile_costs_add(&w, "--codec", j->codecs[i]);
    profile_costs_add(&w, "--sizes", j->value[COSTS_SIZES]);
    profile_costs_add(&w, "--budget", j->budget);
    profile_costs_add(&w, "-o", profile_costs_path(j, "codec-%.json"));
    return profile_codecs_main(w.n, w.argv);
}

static int profile_costs_model(profile_costs_job *j) {
    profile_costs_words w = {.n = 0};
    if (!*j->program) return TOOL_OK;
    profile_costs_ranks(j, &w);
    profile_costs_add(&w, "--inter", j->value[COSTS_INTER]);
    profile_costs_add(&w, "--steps", j->value[COSTS_STEPS]);
    profile_costs_add(&w, "-o", profile_costs_path(j, "model.json"));
    w.argv[w.n++] = (char *)(uintptr_t) "--";
    for (char **p = j->program; *p; p++) {
        if (w.n + 1 >= (int)(sizeof w.argv / sizeof *w.argv))
            return tool_usage(j->command, "PROGRAM has too many arguments");
        w.argv[w.n++] = *p;
    }
    return profile_model_main(1, w.n, w.argv);
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */
static int profile_costs_read(profile_costs_job *j, const char *name, const char **out) {
    char *text;
    size_t len;
    if (files_input_load(profile_costs_path(j, name), &text, &len) != ESP_OK)
        return tool_fail(j->command, "%s", esp_last_error(NULL));
    *out = text;
    return TOOL_OK;
}

static int profile_costs_is_codec(const struct dirent *e) { return strncmp(e->d_name, "codec-", 6) == 0; }

static int profile_costs_write(profile_costs_job *j) {
    char host[256] = "";
    esp__costs_texts t = {.host = host, .inter = j->value[COSTS_INTER]};
    struct dirent **codecs = NULL;
    if (gethostname(host, sizeof host - 1) || !*host) snprintf(host, sizeof host, "unknown");
    int status = profile_costs_read(j, "system.json", &t.system);
    const int n = scandir(j->folder, &codecs, profile_costs_is_codec, alphasort);
    for (int i = 0; i < n; i++) {
        if (status == TOOL_OK) status = profile_costs_read(j, codecs[i]->d_name, &t.codecs[t.n_codecs]);
        if (status == TOOL_OK) t.n_codecs++;
        free(codecs[i]);
    }
    free(codecs);
    if (status == TOOL_OK && *j->program) status = profile_costs_read(j, "model.json", &t.model);
    if (status == TOOL_OK && esp__costs_write(j->out, &t) != ESP_OK)
        status = tool_fail(j->command, "%s", esp_last_error(NULL));
    free((void *)(uintptr_t)t.system);
    free((void *)(uintptr_t)t.model);
    for (uint32_t i = 0; i < t.n_codecs; i++) free((void *)(uintptr_t)t.codecs[i]);
    if (status == TOOL_OK) printf("\nwritten: %s\n", j->out);
    return status;
}

static int profile_costs_any(const struct dirent *e) { return strcmp(e->d_name, ".") && strcmp(e->d_name, ".."); }

static void profile_costs_remove(profile_costs_job *j) {
    struct dirent **all = NULL;
    const int n = scandir(j->folder, &all, profile_costs_any, alphasort);
    for (int i = 0; i < n; i++) {
        unlink(profile_costs_path(j, all[i]->d_name));
        free(all[i]);
    }
    free(all);
    rmdir(j->folder);
}

/* The folder of the parts is beside the output file: ranks on other machines must reach it too. */
static int profile_costs_main(int argc, char **argv) {
    profile_costs_job j = {.command = &profile_costs_command, .budget = "30"};
    int status = profile_costs_parse(&j, argc, argv);
    if (status) return status == -1 ? TOOL_OK : status;
    const char *slash = strrchr(j.out, '/');
    snprintf(j.folder, sizeof j.folder, "%.*s.espresso-costs-XXXXXX", slash ? (int)(slash - j.out) + 1 : 0, j.out);
    if (!mkdtemp(j.folder)) return tool_fail(j.command, "%s: cannot be made: %s", j.folder, strerror(errno));
    status = profile_costs_links(&j);
    if (status == TOOL_OK) status = profile_costs_codecs(&j);
    if (status == TOOL_OK) status = profile_costs_model(&j);
    if (status == TOOL_OK) status = profile_costs_write(&j);
    profile_costs_remove(&j);
    return status;
}
