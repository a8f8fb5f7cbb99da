/* tree.c: `espresso tree`: prints or counts the options of the decision tree.
 * Must not know the grammar: espresso_impl/strategy/option.c enumerates, planner/problem/tree.c filters. */
#include "tools/inspect/inspect.h"
#include "planner/problem/problem.h"

enum {
    TREE_DEVICES,
    TREE_COUNT,
    TREE_FLAT,
    TREE_HIERARCHICAL,
    TREE_MATCH,
    TREE_FORBID,
    TREE_MAX_COMP,
    TREE_LEVELS,
    TREE_NARROW,
    TREE_EXTENDED
};
static const tool_flag tree_flags[] = {
    {"--devices", "cpu,gpu", "devices that may compress (default cpu,gpu)"},
    {"--count", NULL, "print how many there are instead"},
    {"--flat", NULL, "only the flat part: what one machine, or one rank a machine, has"},
    {"--hierarchical", NULL, "only the hierarchical part"},
    {"--match", "PATTERN", "only options with PATTERN in them (* is anything); repeated: with all of them"},
    {"--forbid", "PATTERN", "no options with PATTERN in them; repeated: with none of them"},
    {"--max-comp", "N", "only options that compress at most N times"},
    {"--levels", "N", "of a job of N levels, 2 or 3 (default 2): ranks, machines, racks"},
    {"--narrow", NULL, "the options that end narrow instead, for sharded tensors: each rank gets its part"},
    {"--extended", NULL, "also options that sum payloads undecoded (fp16, shared-seed randomk)"},
};

static int tree_print(void *user, const esp__option *o, const char *text) {
    (void)user, (void)o;
    return puts(text) < 0; /* the reader is gone: stop */
}

static int tree_number(const tool_command *c, const char *text, int *out) {
    char *end;
    long n = strtol(text, &end, 10);
    *out = (int)n;
    return *text && !*end && n >= 0 && n <= ESP__MAX_COMPS
               ? TOOL_OK
               : tool_usage(c, "--max-comp %s: expected 0 to %d", text, (int)ESP__MAX_COMPS);
}

static int tree_levels(const tool_command *c, const char *text, uint32_t *out) {
    *out = (uint32_t)(text[0] - '0');
    return *out >= 2 && *out <= ESP__LEVELS && !text[1] ? TOOL_OK : tool_usage(c, "--levels %s: expected 2 or 3", text);
}

static int tree_devices(const tool_command *c, const char *text, uint32_t *out) {
    *out = 0;
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        if (n == 3 && strncmp(at, "cpu", 3) == 0)
            *out |= 1u << ESP__DEV_CPU;
        else if (n == 3 && strncmp(at, "gpu", 3) == 0)
            *out |= 1u << ESP__DEV_GPU;
        else
            return tool_usage(c, "--devices %s: expected cpu, gpu or cpu,gpu", text);
        at += n;
        if (!*at) return TOOL_OK;
    }
}

static int tree_main(const tool_command *self, int argc, char **argv) {
    const char **match = tool_realloc(NULL, (size_t)(argc + 1) * sizeof *match);
    const char **forbid = tool_realloc(NULL, (size_t)(argc + 1) * sizeof *forbid);
    esp__tree_filter f = {.devices = 3, .max_comp = -1, .match = match, .forbid = forbid};
    esp__tree_counts n;
    const char *value;
    uint32_t levels = 2, narrow = 0;
    int at = 0, flag, status = TOOL_OK, count = 0;
    while (status == TOOL_OK && (flag = tool_next(self, argc, argv, &at, &value)) != -1) {
        switch (flag) {
        case -2: status = TOOL_USAGE; break;
        case -3: status = -1; break;
        case TREE_DEVICES: status = tree_devices(self, value, &f.devices); break;
        case TREE_COUNT: count = 1; break;
        case TREE_FLAT: f.parts |= ESP__TREE_FLAT; break;
        case TREE_HIERARCHICAL: f.parts |= ESP__TREE_HIERARCHICAL; break;
        case TREE_MATCH: match[f.n_match++] = value; break;
        case TREE_FORBID: forbid[f.n_forbid++] = value; break;
        case TREE_LEVELS: status = tree_levels(self, value, &levels); break;
        case TREE_NARROW: narrow = ESP__TREE_NARROW; break;
        case TREE_MAX_COMP: status = tree_number(self, value, &f.max_comp); break;
        default: f.extended = true;
        }
    }
    if (status == TOOL_OK && at < argc)
        status = tool_usage(self, "'%s': takes flags only; to search for it: --match '%s'", argv[at], argv[at]);
    if (status == TOOL_OK) {
        if (!f.parts) f.parts = ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL;
        f.parts |= narrow | ESP__TREE_OF(levels);
        esp__tree_each(&f, &n, count ? NULL : tree_print, NULL);
        if (count)
            printf("%llu options: %llu flat, %llu hierarchical; %llu without compression\n",
                   (unsigned long long)(n.flat + n.hierarchical), (unsigned long long)n.flat,
                   (unsigned long long)n.hierarchical, (unsigned long long)n.raw);
        if (!(n.flat + n.hierarchical)) status = tool_fail(self, "no option matches");
    }
    free((void *)match);
    free((void *)forbid);
    return status == -1 ? TOOL_OK : status;
}

const tool_command tree_command = {
    .name = "tree",
    .summary = "Prints every way in which one tensor can be synchronised, one option a line.",
    .synopsis =
        "[--devices cpu,gpu] [--count] [--flat|--hierarchical] [--match PATTERN] [--forbid PATTERN] [--max-comp N] "
        "[--levels N] [--narrow]",
    .flags = tree_flags,
    .n_flags = sizeof tree_flags / sizeof *tree_flags,
    .run = tree_main,
    .details = "A strategy file takes options in this form. With one device there are 174, with two 4341;\n"
               "for jobs of three levels 2556 and 299271.\n"
               "They give every rank the result; those that end narrow, of sharded tensors, come on top.\n"
               "\n"
               "examples:\n"
               "  espresso tree --count\n"
               "  espresso tree --devices cpu --flat\n"
               "  espresso tree --match 'inter.alltoall' --match 'comp@gpu*decomp@cpu'\n"
               "  espresso tree --devices cpu --forbid gather --max-comp 1\n"
               "  espresso tree --devices cpu --levels 3 --match outer.allreduce",
};
