/* open.c: opens a context without peers, for subcommands that show parts of the library. */
#include "tools/common/args.h"

/* Opens the context after removing from the environment the variables that are meant for training jobs. */
ESP__FN int tool_open(const tool_command *c, esp_config *cfg, esp_ctx **out) {
    static const char *const unwanted[] = {
        "ESPRESSO_RANK",  "ESPRESSO_SIZE",     "ESPRESSO_MACHINE", "ESPRESSO_ROOT",       "ESPRESSO_BACKEND",
        "ESPRESSO_CODEC", "ESPRESSO_STRATEGY", "ESPRESSO_TRACE",   "ESPRESSO_INTER_LINK", "ESPRESSO_WORKERS"};
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++) unsetenv(unwanted[i]);
    cfg->size = 1;
    cfg->backend = "loop";
    cfg->cpu_workers = 1;
    if (esp_open(cfg, out) == ESP_OK) return TOOL_OK;
    return tool_fail(c, "%s", esp_last_error(NULL));
}
