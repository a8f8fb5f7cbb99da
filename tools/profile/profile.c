/* profile.c: `espresso profile`: calls the function for the kind of profile that the first word names. */

static int profile_main(const tool_command *self, int argc, char **argv);
static const tool_command profile_command = {
    .name = "profile",
    .summary = "Measures codecs, links or a trainer, as files for espresso plan.",
    .synopsis = "costs|codecs|links|model [flags]",
    .run = profile_main,
    .details = "  costs      all of the following, in one file (a costs file)\n"
               "  codecs     what codecs take to compress and decompress, by size (codec files)\n"
               "  links      what collectives take between ranks, by size (a system file)\n"
               "  model      when a trainer's gradients are ready (a model file)\n"
               "\n"
               "'espresso profile costs --help' explains one. Strategy \"auto\" measures all of it by itself while it "
               "trains.\n"
               "\n"
               "examples:\n"
               "  espresso profile costs -n 4 --codec dgc:ratio=0.01 -o costs.json -- ./train\n"
               "  espresso plan --costs ./costs.json -o plan.strategy",
};

static int profile_main(const tool_command *self, int argc, char **argv) {
    const char *value;
    int at = 0, flag = tool_next(self, argc, argv, &at, &value);
    if (flag == -3) return TOOL_OK;
    if (flag == -2) return TOOL_USAGE;
    if (at >= argc) return tool_usage(self, "what? costs, codecs, links or model");
    if (!strcmp(argv[at], "codecs")) return profile_codecs_main(argc - at - 1, argv + at + 1);
    if (!strcmp(argv[at], "links")) return profile_links_main(argc - at - 1, argv + at + 1);
    if (!strcmp(argv[at], "costs")) return profile_costs_main(argc - at - 1, argv + at + 1);
    if (!strcmp(argv[at], "model")) return profile_model_main(0, argc - at - 1, argv + at + 1);
    return tool_usage(self, "no profile of '%s': costs, codecs, links or model", argv[at]);
}
