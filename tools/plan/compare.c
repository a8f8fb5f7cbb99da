/* compare.c: `espresso compare` compares the step times of strategies for a model on a system. */
#include "tools/plan/plan.h"

enum { COMPARE_STRATEGIES = PLAN_COMMON };
static const tool_flag compare_flags[] = {
    {"--strategies", "A,B,...",
     "only these, in this order (default: all but mergecomp-1 to -4 and even-2 to -4, of that number of groups)"},
};
enum { COMPARE_MAX = 64 };

typedef struct compare_row {
    const char *name, *summary, *source;
    int failed;
    esp_plan_report report;
    char why[512];
} compare_row;

typedef struct compare_job {
    plan_inputs in;
    const char *names;
    int json;
    compare_row rows[COMPARE_MAX];
    uint32_t n;
    esp_plan_report bounds;
} compare_job;

static const esp__scheme compare_plus = {
    .name = "espresso+",
    .summary = "Algorithms 1 and 2, then local search: options, merging, splitting, order",
    .source = "this library"};

static void compare_add(compare_job *j, const esp__scheme *s) {
    if (j->n < COMPARE_MAX)
        j->rows[j->n++] = (compare_row){.name = s->name, .summary = s->summary, .source = s->source};
}

static void compare_all(compare_job *j) {
    for (const esp__scheme *s = esp__schemes(); s->name; s++) compare_add(j, s);
    compare_add(j, &compare_plus);
}

/* Puts the strategies that the user named into the user's order, and drops the others. */
static void compare_pick(compare_job *j) {
    for (const char *at = j->names; *at; at += *at == ',') {
        char name[64];
        const size_t len = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)len, at);
        const esp__scheme *s = strcmp(name, compare_plus.name) == 0 ? &compare_plus : esp__scheme_find(name);
        if (!s) plan_no_strategy(j->in.command, name);
        compare_add(j, s);
        at += len;
    }
    if (!j->n) tool_usage(j->in.command, "--strategies: names none");
}

/* Makes a plan with every strategy. Computes lower bounds once, since they are the same for all: with espresso+ if it
 * is selected, otherwise with the last strategy. */
static int compare_run(compare_job *j) {
    uint32_t with_bounds = j->n - 1, failed = 0;
    for (uint32_t i = 0; i < j->n; i++)
        if (strcmp(j->rows[i].name, "espresso+") == 0) with_bounds = i;
    for (uint32_t i = 0; i < j->n; i++) {
        compare_row *r = &j->rows[i];
        plan_made m;
        if (plan_make(&j->in, r->name, i == with_bounds ? 0 : ESP_PLAN_NO_BOUND, &m) != ESP_OK) {
            snprintf(r->why, sizeof r->why, "%.*s", (int)sizeof r->why - 1, esp_last_error(NULL));
            r->failed = 1;
            failed++;
        } else {
            r->report = m.report;
            if (i == with_bounds) j->bounds = m.report;
        }
        plan_free(&m);
    }
    if (failed < j->n) return TOOL_OK;
    return tool_fail(j->in.command, "%s", j->rows[j->n - 1].why);
}

static double compare_fp32(const compare_job *j) {
    for (uint32_t i = 0; i < j->n; i++)
        if (!j->rows[i].failed) return j->rows[i].report.fp32_ns;
    return 0;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */
static void compare_print(const compare_job *j) {
    const double fp32 = compare_fp32(j);
    plan_print_inputs(stdout, &j->in);
    printf("\n%-20s %10s %8s  %10s %10s %11s %9s %9s %9s\n", "strategy", "step", "speed-up", "exposed", "exposed",
           "compressed", "NIC", "memory", "planned");
    printf("%-20s %10s %8s  %10s %10s %11s %9s %9s %9s\n", "", "", "", "links", "codecs", "tensors", "traffic",
           "a rank", "in");
    for (uint32_t i = 0; i < j->n; i++) {
        const compare_row *r = &j->rows[i];
        const esp_plan_report *p = &r->report;
        if (r->failed)
            printf("%-20s %10s %s\n", r->name, "-", r->why);
        else
            printf("%-20s %10s %7.2fx  %10s %10s %11u %9s %9s %9s\n", r->name, tool_time(p->iteration_ns),
                   fp32 / p->iteration_ns, tool_time(p->exposed_communication_ns), tool_time(p->exposed_compression_ns),
                   p->compressed, tool_bytes((double)p->inter_bytes), tool_bytes((double)p->memory_bytes),
                   tool_time(p->plan_ns));
    }
    const double line[] = {j->bounds.free_compression_ns, j->bounds.bound_ns};
    static const char *const what[] = {"were compressing free", "bound"};
    putchar('\n');
    for (int k = 0; k < 2; k++)
        if (line[k] > 0) printf("%-24s %10s %7.2fx\n", what[k], tool_time(line[k]), fp32 / line[k]);
}

static int compare_print_json(const compare_job *j) {
    json_t *out = json_object();
    plan_json_inputs(out, &j->in);
    json_us(out, "fp32_us", compare_fp32(j));
    plan_json_or_null(out, "bound_us", j->bounds.bound_ns);
    plan_json_or_null(out, "free_compression_us", j->bounds.free_compression_ns);
    json_t *strategies = json_add(out, "strategies", json_array());
    for (uint32_t i = 0; i < j->n; i++) {
        const compare_row *r = &j->rows[i];
        const plan_made m = {.name = r->name, .report = r->report};
        json_t *row = json_add(strategies, NULL, json_object());
        if (r->failed) {
            json_text(row, "strategy", r->name);
            json_text(row, "error", r->why);
        } else {
            plan_json_report(row, &m);
            json_text(row, "summary", r->summary);
            json_text(row, "source", r->source);
        }
    }
    return json_print(out);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */
static void compare_own_flag(void *job, int flag, const char *value) {
    compare_job *j = job;
    switch (flag) {
    case PLAN_JSON: j->json = 1; break;
    case COMPARE_STRATEGIES: j->names = value; break;
    default: plan_flag(&j->in, flag, value);
    }
}

static void compare_parse(compare_job *j, int argc, char **argv) {
    tool_flags_only(j->in.command, argc, argv, compare_own_flag, j);
    if (j->names)
        compare_pick(j);
    else
        compare_all(j);
    plan_complete(&j->in);
}

static int compare_main(const tool_command *self, int argc, char **argv) {
    compare_job *j = tool_zeroed(sizeof *j);
    plan_open(&j->in, self, argc);
    compare_parse(j, argc, argv);
    int status = plan_read(&j->in);
    if (status == TOOL_OK) status = compare_run(j);
    if (status == TOOL_OK && j->json)
        status = compare_print_json(j);
    else if (status == TOOL_OK)
        compare_print(j);
    plan_close(&j->in);
    free(j);
    return status;
}

const tool_command compare_command = {
    .name = "compare",
    .summary = "Shows what published strategies, fp32 and ours make of a model on a system, side by side.",
    .synopsis = "--model FILE|NAME --gc FILE|SPEC --system FILE|NAME [--strategies A,B] [flags]",
    TOOL_FLAGS(compare_flags),
    .common = plan_common,
    .n_common = PLAN_COMMON,
    .run = compare_main,
    .details = "One simulator scores all strategies with the same costs. Limits such as --forbid hold for those that\n"
               "search; what a strategy fixes stays fixed. Speed-ups are over fp32, tensor by tensor.\n"
               "\n"
               "examples:\n"
               "  espresso compare --model vgg16 --gc dgc:ratio=0.01 --system paper-pcie\n"
               "  espresso compare --model bert-base --gc efsignsgd --system paper-nvlink --machines 4\n"
               "  espresso compare --model lstm --gc fp16 --system paper-pcie --strategies ddp,hipress --json",
};
