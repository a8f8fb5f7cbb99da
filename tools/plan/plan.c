/* plan.c: `espresso plan` finds the fastest strategy for a model, and shows it. */
#include "tools/plan/plan.h"
#include <unistd.h>

enum { PLAN_OUT = PLAN_COMMON, PLAN_STRATEGY, PLAN_TIMELINE, PLAN_TRACE, PLAN_WHAT_IF, PLAN_EXPLAIN, PLAN_OUTER };
static const tool_flag plan_flags[] = {
    {"-o", "FILE", "write the strategy there ('-': standard output)"},
    {"--strategy", "NAME|FILE",
     "not the best: a built-in strategy such as hipress (see 'espresso compare'), or a file's"},
    {"--timeline", "FILE", "write a page that shows the step, lane by lane"},
    {"--trace", "FILE", "write the step as a trace for Perfetto"},
    {"--what-if", "CHANGES", "plan for changed inputs as well, such as inter=2x,machines=16; repeated: a row each"},
    {"--explain", "TENSOR", "the best options for that tensor with all else kept, and what each would cost"},
    {"--outer", "RANGES", "plan an outer loop: every=LO..HI,fragments=LO..HI,delay=LO..HI (docs/use/outer.md)"},
};

typedef struct plan_job {
    plan_inputs in;
    plan_files files;
    const char *strategy, *explain, *what_if[PLAN_SCENARIOS_MAX];
    uint32_t n_what_if, n_outcomes;
    int json;
    bool outer;
    plan_outer_ranges ranges;
    plan_sweep sweep;
    plan_made plan;
    plan_outcome outcomes[PLAN_SCENARIOS_MAX];
    plan_explanation explanation;
} plan_job;

static void plan_own_flag(void *job, int flag, const char *value) {
    plan_job *j = job;
    switch (flag) {
    case PLAN_JSON: j->json = 1; break;
    case PLAN_OUT: j->files.strategy = value; break;
    case PLAN_STRATEGY: j->strategy = value; break;
    case PLAN_TIMELINE: j->files.timeline = value; break;
    case PLAN_TRACE: j->files.trace = value; break;
    case PLAN_EXPLAIN: j->explain = value; break;
    case PLAN_OUTER:
        plan_outer_read(j->in.command, value, &j->ranges);
        j->outer = true;
        break;
    case PLAN_MACHINES:
        j->sweep.n = 0;
        if (strchr(value, ','))
            plan_sweep_read(&j->in, value, &j->sweep);
        else
            plan_flag(&j->in, flag, value);
        break;
    case PLAN_WHAT_IF:
        if (j->n_what_if == PLAN_SCENARIOS_MAX)
            tool_usage(j->in.command, "--what-if %s: at most %d", value, (int)PLAN_SCENARIOS_MAX);
        j->what_if[j->n_what_if++] = value;
        break;
    default: plan_flag(&j->in, flag, value);
    }
}

static void plan_parse(plan_job *j, int argc, char **argv) {
    const tool_command *c = j->in.command;
    tool_flags_only(c, argc, argv, plan_own_flag, j);
    if (j->sweep.n && (j->files.strategy || j->files.timeline || j->files.trace || j->n_what_if || j->explain))
        tool_usage(c, "-o, --timeline, --trace, --what-if and --explain are about one plan: give --machines one "
                      "number");
    if (j->outer && (j->sweep.n || j->strategy || j->explain || j->in.n_shard || j->files.trace))
        tool_usage(c,
                   "--outer plans a round of its own: leave out --strategy, --explain, --shard, --trace, and several "
                   "--machines");
    if (plan_to_stdout(&j->files) + j->json > 1)
        tool_usage(c, "only one of --json and '-' files can go to standard output");
    plan_complete(&j->in);
}

ESP__FN _Noreturn void plan_no_strategy(const tool_command *c, const char *name) {
    esp__text names = {NULL, 0, 0, 0, NULL};
    unsigned best = 3;
    const char *guess = NULL;
    for (const esp__scheme *s = esp__schemes(); s->name; s++) {
        esp__text_add(&names, " %s", s->name);
        if (esp__suggests(name, s->name, &best)) guess = s->name;
    }
    tool_usage(c, "no strategy '%s'%s\nThere are: espresso+%s", name, tool_meant(guess), names.data ? names.data : "");
}

static int plan_from_file(plan_job *j, const char *path) {
    static const char stands_for_it[] = "strategy:"; /* errors in the strategy's text begin with this */
    const size_t n = sizeof stands_for_it - 1;
    esp__text text = {NULL, 0, 0, 0, NULL};
    if (plan_read_strategy(j->in.command, path, &text) != TOOL_OK) return TOOL_FAILED;
    j->in.simulated = true;
    const esp_status status = plan_simulate(&j->in, text.data, path, &j->plan);
    esp__text_free(&text);
    if (status == ESP_OK) return TOOL_OK;
    const char *why = esp_last_error(NULL);
    if (strncmp(why, stands_for_it, n) == 0) return tool_fail(j->in.command, "%s:%s", path, why + n);
    return tool_fail(j->in.command, "%s", why);
}

/* Makes a plan from a strategy file, or by the named strategy. Finds the best plan if the user named none. */
static int plan_main_plan(plan_job *j) {
    const char *s = j->strategy;
    const int known = !s || strcmp(s, "espresso+") == 0 || esp__scheme_find(s);
    if (!known && (plan_is_path(s) || access(s, F_OK) == 0)) return plan_from_file(j, s);
    if (!known) plan_no_strategy(j->in.command, s);
    if (plan_make(&j->in, s, 0, &j->plan) == ESP_OK) return TOOL_OK;
    return tool_fail(j->in.command, "%s", esp_last_error(NULL));
}

static int plan_main_sweep(plan_job *j) {
    plan_sweep *s = &j->sweep;
    int status = TOOL_OK;
    s->alone_ns = plan_alone_ns(&j->in);
    s->strategy = j->strategy ? j->strategy : "espresso+";
    sweep_check_tables(&j->in);
    for (uint32_t i = 0; i < s->n && status == TOOL_OK; i++) {
        j->in.system.machines = s->machines[i];
        status = plan_main_plan(j);
        s->report[i] = j->plan.report;
        if (status != TOOL_OK) fprintf(stderr, "  this was the plan for %u machines\n", s->machines[i]);
        plan_free(&j->plan);
    }
    if (status != TOOL_OK) return status;
    if (j->json) return plan_sweep_json(&j->in, s);
    plan_sweep_print(stdout, &j->in, s);
    return TOOL_OK;
}

static int plan_more(plan_job *j) {
    int status = TOOL_OK;
    for (uint32_t i = 0; i < j->n_what_if && status == TOOL_OK; i++, j->n_outcomes++)
        status = plan_try(&j->in, &j->plan, j->strategy, j->what_if[i], &j->outcomes[i]);
    if (j->explain && status == TOOL_OK) status = plan_explain(&j->in, &j->plan, j->explain, &j->explanation);
    return status;
}

static void plan_show_text(const plan_job *j) {
    FILE *to = plan_to_stdout(&j->files) ? stderr : stdout;
    plan_print(to, &j->in, &j->plan);
    if (j->n_outcomes) plan_print_outcomes(to, &j->plan, j->plan.report.bound_ns, j->outcomes, j->n_outcomes);
    if (j->explain) plan_print_explanation(to, &j->explanation);
    if (j->files.strategy && strcmp(j->files.strategy, "-") != 0) fprintf(to, "\nwritten: %s\n", j->files.strategy);
}

static int plan_show_json(const plan_job *j) {
    json_t *json = json_object();
    plan_json_plan(json, &j->in, &j->plan);
    if (j->n_outcomes) plan_json_outcomes(json, j->outcomes, j->n_outcomes);
    if (j->explain) plan_json_explanation(json, &j->explanation);
    return json_print(json);
}

static int plan_main_one(plan_job *j) {
    int status = plan_main_plan(j);
    if (status == TOOL_OK) status = plan_more(j);
    if (status != TOOL_OK) return status;
    status = plan_write(&j->in, &j->plan, &j->files);
    if (status != TOOL_OK || j->json) return status == TOOL_OK ? plan_show_json(j) : status;
    plan_show_text(j);
    return TOOL_OK;
}

static int plan_main(const tool_command *self, int argc, char **argv) {
    plan_job *j = tool_zeroed(sizeof *j);
    plan_open(&j->in, self, argc);
    plan_parse(j, argc, argv);
    int status = plan_read(&j->in);
    if (status == TOOL_OK) j->files.command = plan_command_line(self, argc, argv);
    if (status == TOOL_OK && j->outer)
        status = plan_outer(&j->in, &j->ranges, j->what_if, j->n_what_if, &j->files, j->json);
    else if (status == TOOL_OK)
        status = j->sweep.n ? plan_main_sweep(j) : plan_main_one(j);
    plan_explanation_free(&j->explanation);
    plan_free(&j->plan);
    plan_close(&j->in);
    free(j->files.command);
    free(j);
    return status;
}

const tool_command plan_command = {
    .name = "plan",
    .summary = "Finds the fastest strategy for a model on a system: which tensors to compress, where and how.",
    .synopsis = "--model FILE|NAME --gc FILE|SPEC --system FILE|NAME [-o plan.strategy] [flags]",
    TOOL_FLAGS(plan_flags),
    .common = plan_common,
    .n_common = PLAN_COMMON,
    .run = plan_main,
    .details =
        "The strategy is for ESPRESSO_STRATEGY or esp_config.strategy. 'espresso tree' prints all options.\n"
        "--what-if takes NAME=CHANGE, several with commas: " CHANGE_HELP ".\n"
        "\n"
        "examples:\n"
        "  espresso plan --model vgg16 --gc dgc:ratio=0.01 --system paper-pcie -o s.strategy --timeline s.html\n"
        "  espresso plan --model bert-base --gc efsignsgd --gc fp16 --system cloud-h100 --max-error 0.2\n"
        "  espresso plan --model lstm --gc fp16 --system paper-nvlink --what-if inter=2x --what-if codec=2x\n"
        "  espresso plan --model bert-base --gc dgc:ratio=0.01 --system paper-pcie --machines 1,8,64,512,4096\n"
        "  espresso plan --model gpt2 --gc dgc:ratio=0.01 --system s.json --keep 'wte*=fp32' --max-comp 1 --json",
};
