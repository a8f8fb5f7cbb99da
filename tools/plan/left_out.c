/* left_out.c: stands in for `espresso plan`, `compare`, `replay`, `top` and `profile` where there was no jansson at
 * build time: models come from JSON files. */

static int plan_left_out_main(const tool_command *self, int argc, char **argv) {
    (void)argc, (void)argv;
    return tool_fail(self,
                     "left out: this command was built without jansson, which reads the models' files. Install its "
                     "headers (Debian: libjansson-dev) and build again");
}
static const tool_command plan_command = {.name = "plan",
                                          .summary = "Finds the fastest strategy for a model (left out: no jansson).",
                                          .synopsis = "",
                                          .run = plan_left_out_main};
static const tool_command compare_command = {.name = "compare",
                                             .summary = "Shows strategies side by side (left out: no jansson).",
                                             .synopsis = "",
                                             .run = plan_left_out_main};
static const tool_command replay_command = {.name = "replay",
                                            .summary = "Runs a model's timing on ranks (left out: no jansson).",
                                            .synopsis = "",
                                            .run = plan_left_out_main};
static const tool_command top_command = {.name = "top",
                                         .summary = "Shows the statistics of a running job (left out: no jansson).",
                                         .synopsis = "",
                                         .run = plan_left_out_main};
static const tool_command profile_command = {.name = "profile",
                                             .summary = "Measures codecs, links or a trainer (left out: no jansson).",
                                             .synopsis = "",
                                             .run = plan_left_out_main};
