/* profile.c: `espresso profile`: calls the function for the kind of profile that the first word names. */

static int profile_main(const tool_command *self, int argc, char **argv);
static const tool_command profile_command = {
    .name = "profile",
    .summary = "Measures codecs, links or a trainer, as files for espresso plan.",
    .synopsis = "codecs|links|model [flags]",
    .run = profile_main,
    .details = "  codecs     what codecs take to compress and decompress, by size (codec files)\n"
               "  links      what collectives take between ranks, by size (a system file)\n"
               "  model      when a trainer's gradients are ready (a model file)\n"
               "\n"
               "'espresso profile codecs --help' explains one. Strategy \"auto\" measures all of it by itself while it "
               "trains.\n"
               "\n"
               "examples:\n"
               "  espresso profile codecs -n 4 --codec dgc:ratio=0.01 -o gc.json\n"
               "  espresso profile links -n 4 -o system.json\n"
               "  espresso profile model -n 4 -o model.json -- ./train\n"
               "  espresso plan --model ./model.json --gc ./gc.json --system ./system.json -o plan.strategy",
};

static int profile_main(const tool_command *self, int argc, char **argv) {
    const char *value;
    int at = 0, flag = tool_next(self, argc, argv, &at, &value);
    if (flag == -3) return TOOL_OK;
    if (flag == -2) return TOOL_USAGE;
    if (at >= argc) return tool_usage(self, "what? codecs, links or model");
    if (!strcmp(argv[at], "codecs")) return profile_codecs_main(argc - at - 1, argv + at + 1);
    if (!strcmp(argv[at], "links")) return profile_links_main(argc - at - 1, argv + at + 1);
    if (!strcmp(argv[at], "model")) return profile_model_main(&profile_model_command, argc - at - 1, argv + at + 1);
    return tool_usage(self, "no profile of '%s': codecs, links or model", argv[at]);
}
