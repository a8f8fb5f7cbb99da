/* show_tree.c: `espresso tree` prints or counts the options of the decision tree. espresso_impl/strategy/option.c
 * enumerates them, and planner/problem/tree.c leaves some out. */
#include "tools/inspect/inspect.h"
#include "planner/problem/problem.h"

enum { TREE_COUNT, TREE_MATCH, TREE_FORBID, TREE_MAX_COMP, TREE_LEVELS, TREE_NARROW, TREE_EXTENDED };
static const tool_flag tree_flags[] = {
    {"--count", NULL, "print how many there are instead"},
    {"--match", "PATTERN", "only options with PATTERN in them, such as flat (* is anything); repeated: with all"},
    {"--forbid", "PATTERN", "no options with PATTERN in them, such as @gpu; repeated: with none of them"},
    {"--max-comp", "N", "only options that compress at most N times"},
    {"--levels", "N", "of a job of N levels, 2 or 3 (default 2): ranks, machines, racks"},
    {"--narrow", NULL, "the options that end narrow instead, for sharded tensors: each rank gets its part"},
    {"--extended", NULL, "also options that sum payloads undecoded (fp16, shared-seed randomk)"},
};

static int tree_print(void *user, const esp__option *o, const char *text) {
    (void)user, (void)o;
    return puts(text) < 0; /* a nonzero result ends the enumeration, as when the output is closed */
}

static int tree_main(const tool_command *self, int argc, char **argv) {
    const char **match = tool_realloc(NULL, (size_t)(argc + 1) * sizeof *match);
    const char **forbid = tool_realloc(NULL, (size_t)(argc + 1) * sizeof *forbid);
    esp__tree_filter f = {.devices = 3,
                          .max_comp = -1,
                          .parts = ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL,
                          .match = match,
                          .forbid = forbid};
    esp__tree_counts n;
    const char *value;
    uint32_t levels = 2;
    int at = 0, flag, count = 0;
    while ((flag = tool_next(self, argc, argv, &at, &value)) >= 0) {
        switch (flag) {
        case TREE_COUNT: count = 1; break;
        case TREE_MATCH: match[f.n_match++] = value; break;
        case TREE_FORBID: forbid[f.n_forbid++] = value; break;
        case TREE_LEVELS: levels = (uint32_t)tool_whole(self, "--levels", value, 2, ESP__LEVELS); break;
        case TREE_NARROW: f.parts |= ESP__TREE_NARROW; break;
        case TREE_MAX_COMP: f.max_comp = (int)tool_whole(self, "--max-comp", value, 0, ESP__MAX_COMPS); break;
        default: f.extended = true;
        }
    }
    if (at < argc) tool_usage(self, "'%s': takes flags only; to search for it: --match '%s'", argv[at], argv[at]);
    f.parts |= ESP__TREE_OF(levels);
    esp__tree_each(&f, &n, count ? NULL : tree_print, NULL);
    if (count)
        printf("%llu options: %llu flat, %llu hierarchical; %llu without compression\n",
               (unsigned long long)(n.flat + n.hierarchical), (unsigned long long)n.flat,
               (unsigned long long)n.hierarchical, (unsigned long long)n.raw);
    free((void *)match);
    free((void *)forbid);
    return n.flat + n.hierarchical ? TOOL_OK : tool_fail(self, "no option matches");
}

const tool_command tree_command = {
    .name = "tree",
    .summary = "Prints every way in which one tensor can be synchronised, one option a line.",
    .synopsis = "[--count] [--match PATTERN] [--forbid PATTERN] [--max-comp N] [--levels N] [--narrow]",
    TOOL_FLAGS(tree_flags),
    .run = tree_main,
    .details = "A strategy file takes options in this form. With one device there are 174, with two 4341;\n"
               "for jobs of three levels 2556 and 299271.\n"
               "They give every rank the result; those that end narrow, of sharded tensors, come on top.\n"
               "\n"
               "examples:\n"
               "  espresso tree --count\n"
               "  espresso tree --forbid @gpu --match flat\n"
               "  espresso tree --match 'inter.alltoall' --match 'comp@gpu*decomp@cpu'\n"
               "  espresso tree --forbid @gpu --forbid gather --max-comp 1\n"
               "  espresso tree --forbid @gpu --levels 3 --match outer.allreduce",
};
