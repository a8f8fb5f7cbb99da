/* show_strategy.c: `espresso strategy` checks a strategy file without its model, and prints it. */
#include "tools/inspect/inspect.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/strategy/strategy.h"
#include "espresso_impl/strategy/text.h"
#include "tools/plan/plan.h"

static esp_status strategy_add_tensor(void *user, const char *where, const char *name, uint64_t count) {
    uint32_t id;
    /* any tensor may be a matrix, which some codecs need, since the file does not tell */
    esp_tensor_desc d = {.name = name, .count = count, .rows = 1, .cols = count};
    esp_status s = esp_tensor_add((esp_ctx *)user, &d, &id);
    return s ? esp__fail((esp_ctx *)user, s, "%s: %s", where, esp_last_error((esp_ctx *)user)) : ESP_OK;
}

static esp_status strategy_add_tensors(esp_ctx *ctx, const char *path, const char *text) {
    const esp__strategy_lines to = {.user = ctx, .tensor = strategy_add_tensor};
    char *words = esp__strdup(ctx, text);
    esp_status s = words ? esp__strategy_read(ctx, path, words, NULL, &to) : ESP_E_NOMEM;
    esp__free(ctx, words);
    return s;
}

static int strategy_check(const tool_command *c, esp_ctx *ctx, const char *path) {
    esp__text text = {0};
    if (plan_read_strategy(c, path, &text) != TOOL_OK) return TOOL_FAILED;
    /* assumes several machines with several ranks each, since that allows every option */
    esp__strategy y;
    memset(&y, 0, sizeof y);
    ctx->job.topo.n_machines = 2;
    ctx->job.topo.n_local = 2;
    ctx->job.topo.n_levels = 2;
    for (uint32_t level = 1; level <= 2; level++) ctx->job.topo.level_size[level] = 2;
    int status = TOOL_OK;
    if (strategy_add_tensors(ctx, path, text.data) != ESP_OK || esp__strategy_parse(ctx, &y, path, text.data) ||
        esp__strategy_print(ctx, &y) != ESP_OK)
        status = tool_fail(c, "%s", esp_last_error(ctx));
    if (status == TOOL_OK) fputs(y.text, stdout);
    esp__strategy_free(ctx, &y);
    esp__text_free(&text);
    return status;
}

static int strategy_main(const tool_command *self, int argc, char **argv) {
    esp_ctx *ctx;
    const char *value;
    int at = 0;
    (void)tool_next(self, argc, argv, &at, &value); /* handles --help */
    if (argc - at != 1) tool_usage(self, "expected one strategy file");
    if (esp__open_alone(&ctx) != ESP_OK) return tool_fail(self, "%s", esp_last_error(NULL));
    const int status = strategy_check(self, ctx, argv[at]);
    esp_close(ctx);
    return status;
}

const tool_command strategy_command = {
    .name = "strategy",
    .summary = "Checks a strategy file and prints it as the library reads it.",
    .synopsis = "FILE",
    .run = strategy_main,
    .details =
        "The output is a strategy file itself, with the order of collectives written out. An error is printed as\n"
        "FILE:LINE and what was expected. Whether it fits a model is checked when training starts.",
};
