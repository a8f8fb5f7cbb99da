/* strategy.c: `espresso strategy`: checks a strategy file without the model that it is for, and prints it as the library
 * reads it. Must not know the format beyond a line's name and elements: espresso_impl/strategy/strategy.c parses. */

/* The file's own tensors stand in for the model's. A malformed line is left to the parser, which says it better. */
static int strategy_add_tensors(const tool_command *c, esp_ctx *ctx, const char *path, const char *text) {
    esp__lines l = {.name = path, .at = text};
    while (esp__lines_next(&l) == 1) {
        char *rest = l.line, *word = esp__word(&rest), *name, *end;
        uint32_t id;
        if (strcmp(word, "tensor") != 0) continue;
        name = esp__word(&rest);
        unsigned long long count = strtoull(esp__word(&rest), &end, 10);
        /* rows and cols: a strategy does not say which tensors are matrices, so any may be */
        esp_tensor_desc d = {.name = name, .count = count, .rows = 1, .cols = count};
        if (*name && !*end && esp_tensor_add(ctx, &d, &id) != ESP_OK)
            return tool_fail(c, "%s:%d: %s", path, l.number, esp_last_error(ctx));
    }
    return TOOL_OK;
}

static int strategy_check(const tool_command *c, esp_ctx *ctx, const char *path) {
    struct stat st;
    char *text = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? (errno = EISDIR, NULL) : esp__file_text(ctx, path);
    if (!text) return tool_fail(c, "%s: %s", path, errno ? strerror(errno) : esp_last_error(ctx));
    int status = strategy_add_tensors(c, ctx, path, text);
    /* several machines with several ranks, so that every option is allowed */
    esp__topology before = ctx->job.topo;
    ctx->job.topo.n_machines = 2;
    ctx->job.topo.n_local = 2;
    if (status == TOOL_OK && (esp__strategy_parse(ctx, path, text) != ESP_OK || esp__strategy_print(ctx) != ESP_OK))
        status = tool_fail(c, "%s", esp_last_error(ctx));
    if (status == TOOL_OK) fputs(ctx->in_force.strategy.text, stdout);
    ctx->job.topo = before;
    free(text);
    return status;
}

static int strategy_main(const tool_command *self, int argc, char **argv) {
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    const char *value;
    int at = 0, flag = tool_next(self, argc, argv, &at, &value);
    if (flag == -2) return TOOL_USAGE;
    if (flag == -3) return TOOL_OK;
    if (argc - at != 1) return tool_usage(self, "expected one strategy file");
    if (tool_open(self, &cfg, &ctx) != TOOL_OK) return TOOL_FAILED;
    int status = strategy_check(self, ctx, argv[at]);
    esp_close(ctx);
    return status;
}

static const tool_command strategy_command = {
    .name = "strategy",
    .summary = "Checks a strategy file and prints it as the library reads it.",
    .synopsis = "FILE",
    .run = strategy_main,
    .details =
        "The output is a strategy file itself, with the order of collectives written out. What is wrong is said as\n"
        "FILE:LINE and what was expected. Whether it fits a model is checked when training starts.",
};
