/* tree.c: `espresso tree`: prints or counts the options of the decision tree.
 * Must not know the grammar: espresso_impl/option.c enumerates. */
#include <fnmatch.h>

enum { TREE_DEVICES, TREE_COUNT, TREE_FLAT, TREE_HIERARCHICAL, TREE_MATCH, TREE_EXTENDED };
static const tool_flag tree_flags[] = {
    {"--devices", "cpu,gpu", "devices that may compress (default cpu,gpu)"},
    {"--count", NULL, "print how many there are instead"},
    {"--flat", NULL, "only the flat part: what one machine, or one rank a machine, has"},
    {"--hierarchical", NULL, "only the hierarchical part"},
    {"--match", "PATTERN", "only options with PATTERN in them (* is anything); repeated: with all of them"},
    {"--extended", NULL, "also options that sum payloads undecoded (fp16, shared-seed randomk)"},
};

typedef struct tree_ask {
    uint32_t parts, devices;
    int count, extended;
    const char **patterns;
    int n_patterns;
    uint64_t flat, hierarchical, raw; /* counted so far */
} tree_ask;

static int tree_matches(const tree_ask *a, const char *text) {
    char glob[ESP__TEXT_MAX];
    for (int i = 0; i < a->n_patterns; i++) {
        snprintf(glob, sizeof glob, "*%s*", a->patterns[i]);
        if (fnmatch(glob, text, 0) != 0) return 0;
    }
    return 1;
}

static int tree_visit(void *user, const esp__option *o) {
    tree_ask *a = user;
    char text[ESP__TEXT_MAX];
    esp__option_print(o, text, sizeof text);
    if (!tree_matches(a, text)) return 0;
    if (esp__option_is_flat(o))
        a->flat++;
    else
        a->hierarchical++;
    a->raw += !esp__option_uses(o, ESP__COMP);
    return !a->count && puts(text) < 0; /* nobody reads any more: stop */
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
    tree_ask a = {.devices = 3, .patterns = tool_realloc(NULL, (size_t)(argc + 1) * sizeof(char *))};
    const char *value;
    int at = 0, flag, status = TOOL_OK;
    while (status == TOOL_OK && (flag = tool_next(self, argc, argv, &at, &value)) != -1) {
        if (flag == -2)
            status = TOOL_USAGE;
        else if (flag == -3)
            status = -1;
        else if (flag == TREE_DEVICES)
            status = tree_devices(self, value, &a.devices);
        else if (flag == TREE_COUNT)
            a.count = 1;
        else if (flag == TREE_FLAT)
            a.parts |= ESP__TREE_FLAT;
        else if (flag == TREE_HIERARCHICAL)
            a.parts |= ESP__TREE_HIERARCHICAL;
        else if (flag == TREE_MATCH)
            a.patterns[a.n_patterns++] = value;
        else if (flag == TREE_EXTENDED)
            a.extended = 1;
    }
    if (status == TOOL_OK && at < argc)
        status = tool_usage(self, "'%s': takes flags only; to search for it: --match '%s'", argv[at], argv[at]);
    if (status == TOOL_OK) {
        if (!a.parts) a.parts = ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL;
        esp__option_each(a.parts, a.devices, a.extended, tree_visit, &a);
        if (a.count)
            printf("%llu options: %llu flat, %llu hierarchical; %llu without compression\n",
                   (unsigned long long)(a.flat + a.hierarchical), (unsigned long long)a.flat,
                   (unsigned long long)a.hierarchical, (unsigned long long)a.raw);
        if (!(a.flat + a.hierarchical) && a.n_patterns) status = tool_fail(self, "no option matches");
    }
    free(a.patterns);
    return status == -1 ? TOOL_OK : status;
}

static const tool_command tree_command = {
    .name = "tree",
    .summary = "Prints every way in which one tensor can be synchronised, one option a line.",
    .synopsis = "[--devices cpu,gpu] [--count] [--flat|--hierarchical] [--match PATTERN]",
    .flags = tree_flags,
    .n_flags = sizeof tree_flags / sizeof *tree_flags,
    .run = tree_main,
    .details = "A strategy file takes options in this form. With one device there are 174, with two 4341.\n"
               "\n"
               "examples:\n"
               "  espresso tree --count\n"
               "  espresso tree --devices cpu --flat\n"
               "  espresso tree --match 'inter.alltoall' --match 'comp@gpu*decomp@cpu'",
};
