/* plugins.c: `espresso plugins`: lists codecs, backends and devices, and shows what a plugin file contains.
 * Must not know any codec: everything is read from the tables. */

enum { PLUGINS_PATH, PLUGINS_LONG, PLUGINS_CHECK };
static const tool_flag plugins_flags[] = {
    {"--path", "DIR[:DIR...]", "look for plugins there first"},
    {"--long", NULL, "say all of each, as with names"},
    {"--check", NULL, "run the conformance checks over each, and say what fails and what to do"},
};

typedef struct plugins_word {
    uint64_t bit;
    const char *text;
} plugins_word;

/* Prints "  label: " and a word for each bit that is set. */
static void plugins_bits(const char *label, uint64_t bits, const plugins_word *words, size_t n) {
    int some = 0;
    for (size_t i = 0; i < n; i++)
        if (bits & words[i].bit) printf("%s%s", some++ ? ", " : label, words[i].text);
    if (some) putchar('\n');
}
#define PLUGINS_BITS(label, bits, words) plugins_bits(label, bits, words, sizeof words / sizeof *words)

static const plugins_word plugins_devices[] = {{ESP_BIT(ESP_CPU), "cpu"}, {ESP_BIT(ESP_CUDA), "cuda"}};

static void plugins_codec(const esp_codec *c, const char *from) {
    static const plugins_word caps[] = {
        {ESP_CODEC_FIXED_SIZE, "size follows from the count"},
        {ESP_CODEC_HAS_STATE, "keeps state of its own"},
        {ESP_CODEC_REDUCIBLE, "payloads can be summed undecoded"},
        {ESP_CODEC_OWN_FEEDBACK, "memory of its method on the rank's own gradient"},
        {ESP_CODEC_DETERMINISTIC, "draws no random numbers"},
        {ESP_CODEC_NEEDS_MATRIX, "needs rows and cols"},
        {ESP_CODEC_NO_FEEDBACK, "without feedback by default"},
        {ESP_CODEC_LISTS, "takes several parts in one call"},
        {ESP_CODEC_WRAPPER, "wraps another codec"},
    };
    printf("%s\n  %s\n", c->name, ESP_HAS(esp_codec, c, summary) ? c->summary : "(no summary)");
    printf("  parameters: %s\n", ESP_HAS(esp_codec, c, params) ? c->params : "none");
    PLUGINS_BITS("  properties: ", c->caps, caps);
    PLUGINS_BITS("  devices:    ", c->devices, plugins_devices);
    if (ESP_HAS(esp_codec, c, default_option)) printf("  layerwise:  %s\n", c->default_option);
    printf("  from:       %s\n", from);
}

static int plugins_score(const esp_ctx *ctx, const esp_backend *b) {
    int32_t score = 0;
    return ESP_HAS(esp_backend, b, probe) && b->probe(&ctx->host, &score) == ESP_OK ? (int)score : 0;
}

static void plugins_backend(const esp_ctx *ctx, const esp_backend *b, const char *from) {
    const int score = plugins_score(ctx, b);
    static const plugins_word colls[] = {
        {ESP_BIT(ESP_COLL_ALLREDUCE), "allreduce"}, {ESP_BIT(ESP_COLL_REDUCE_SCATTER), "reduce_scatter"},
        {ESP_BIT(ESP_COLL_ALLGATHER), "allgather"}, {ESP_BIT(ESP_COLL_ALLTOALL), "alltoall"},
        {ESP_BIT(ESP_COLL_REDUCE), "reduce"},       {ESP_BIT(ESP_COLL_BROADCAST), "broadcast"},
        {ESP_BIT(ESP_COLL_GATHER), "gather"},
    };
    static const plugins_word caps[] = {
        {ESP_BACKEND_STREAM_ORDERED, "completes in stream order"},
        {ESP_BACKEND_VARLEN, "moves only the used bytes of payloads"},
        {ESP_BACKEND_SCALE, "scales sums"},
        {ESP_BACKEND_PACED, "can emulate a link"},
    };
    printf("%s\n  %s\n", b->name, ESP_HAS(esp_backend, b, summary) ? b->summary : "(no summary)");
    printf("  parameters: %s\n", ESP_HAS(esp_backend, b, params) ? b->params : "none");
    PLUGINS_BITS("  properties: ", b->caps, caps);
    PLUGINS_BITS("  offers:     ", b->colls, colls);
    PLUGINS_BITS("  devices:    ", b->devices, plugins_devices);
    printf("  score here: %d (%s)\n", score, score > 0 ? "the highest is the default" : "it cannot run");
    printf("  from:       %s\n", from);
}

/* How many devices of the table can be used here. */
static int plugins_count(const esp_ctx *ctx, const esp_device_table *d) {
    int32_t count = 0;
    return d->probe(&ctx->host, &count) == ESP_OK ? (int)count : 0;
}

static void plugins_device(const esp_ctx *ctx, const esp_device_table *d, const char *from) {
    static const plugins_word caps[] = {{ESP_DEVICE_HOST_ACCESS, "the host may read and write its memory"}};
    printf("%s\n  %s\n", d->name, ESP_HAS(esp_device_table, d, summary) ? d->summary : "(no summary)");
    printf("  kind:       %u\n", (unsigned)d->kind);
    PLUGINS_BITS("  properties: ", d->caps, caps);
    printf("  here:       %d\n", plugins_count(ctx, d));
    printf("  from:       %s\n", from);
}

/* Prints one line for each codec, backend and device. */
static void plugins_table(const esp_ctx *ctx) {
    const esp__registry *r = &ctx->registry;
    for (uint32_t i = 0; i < r->n_codecs; i++) {
        const esp_codec *c = r->codecs[i];
        const char *params = ESP_HAS(esp_codec, c, params) ? c->params : "";
        printf("codec    %-10s %s%s%s\n", c->name, ESP_HAS(esp_codec, c, summary) ? c->summary : "",
               *params ? "; " : "", params);
    }
    for (uint32_t i = 0; i < r->n_backends; i++) {
        const esp_backend *b = r->backends[i];
        printf("backend  %-10s %s; score here %d\n", b->name, ESP_HAS(esp_backend, b, summary) ? b->summary : "",
               plugins_score(ctx, b));
    }
    for (uint32_t i = 0; i < r->n_devices; i++) {
        const esp_device_table *d = r->devices[i];
        printf("device   %-10s %s; kind %u, %d here\n", d->name,
               ESP_HAS(esp_device_table, d, summary) ? d->summary : "", (unsigned)d->kind, plugins_count(ctx, d));
    }
    puts("\nMore of one: espresso plugins NAME. The backend with the highest score is the default.");
}

static int plugins_wanted(const char *name, const char *from, char *const *names, int n_names) {
    if (!n_names || strcmp(from, "built in") != 0) return 1;
    for (int i = 0; i < n_names; i++)
        if (strcmp(names[i], name) == 0) return 1;
    return 0;
}

static void plugins_print(const esp_ctx *ctx, char *const *names, int n_names) {
    const esp__registry *r = &ctx->registry;
    int n = 0;
    for (uint32_t i = 0; i < r->n_codecs; i++)
        if (plugins_wanted(r->codecs[i]->name, r->codec_from[i], names, n_names)) {
            printf("%scodec ", n++ ? "\n" : "");
            plugins_codec(r->codecs[i], r->codec_from[i]);
        }
    for (uint32_t i = 0; i < r->n_backends; i++)
        if (plugins_wanted(r->backends[i]->name, r->backend_from[i], names, n_names)) {
            printf("%sbackend ", n++ ? "\n" : "");
            plugins_backend(ctx, r->backends[i], r->backend_from[i]);
        }
    for (uint32_t i = 0; i < r->n_devices; i++)
        if (plugins_wanted(r->devices[i]->name, r->device_from[i], names, n_names)) {
            printf("%sdevice ", n++ ? "\n" : "");
            plugins_device(ctx, r->devices[i], r->device_from[i]);
        }
}

static int plugins_known(const esp_ctx *ctx, const char *name) {
    const esp__registry *r = &ctx->registry;
    for (uint32_t i = 0; i < r->n_codecs; i++)
        if (strcmp(r->codecs[i]->name, name) == 0) return 1;
    for (uint32_t i = 0; i < r->n_backends; i++)
        if (strcmp(r->backends[i]->name, name) == 0) return 1;
    for (uint32_t i = 0; i < r->n_devices; i++)
        if (strcmp(r->devices[i]->name, name) == 0) return 1;
    return 0;
}

static int plugins_main(const tool_command *self, int argc, char **argv) {
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    const char *value;
    int at = 0, flag, status = TOOL_OK, all = 0, checks = 0;
    while ((flag = tool_next(self, argc, argv, &at, &value)) != -1) {
        if (flag == -2) return TOOL_USAGE;
        if (flag == -3) return TOOL_OK;
        if (flag == PLUGINS_PATH) cfg.plugin_path = value;
        if (flag == PLUGINS_LONG) all = 1;
        if (flag == PLUGINS_CHECK) checks = 1;
    }
    if (tool_open(self, &cfg, &ctx) != TOOL_OK) return TOOL_FAILED;
    if (checks) {
        status = check_main(self, ctx, argv + at, argc - at);
        esp_close(ctx);
        return status;
    }
    for (int i = at; i < argc && status == TOOL_OK; i++)
        if (!plugins_known(ctx, argv[i]) && esp_plugin_load(ctx, argv[i]) != ESP_OK)
            status = tool_fail(self, "%s", esp_last_error(ctx));
    if (status == TOOL_OK && at == argc && !all)
        plugins_table(ctx);
    else if (status == TOOL_OK)
        plugins_print(ctx, argv + at, argc - at);
    esp_close(ctx);
    return status;
}

static const tool_command plugins_command = {
    .name = "plugins",
    .summary = "Lists codecs, backends and devices; with names, loads these plugins and shows what they bring.",
    .synopsis = "[--path DIR] [--long | --check] [NAME|SPEC|FILE.so...]",
    .flags = plugins_flags,
    .n_flags = sizeof plugins_flags / sizeof *plugins_flags,
    .run = plugins_main,
    .details = "A NAME is built in, or the file libespresso-NAME.so in --path, in $ESPRESSO_PLUGIN_PATH, or "
               "in\n" ESPRESSO_PREFIX "/lib/espresso. A FILE has a '/' in it.\n"
               "\n"
               "examples:\n"
               "  espresso plugins\n"
               "  espresso plugins topk\n"
               "  espresso plugins ./libespresso-mine.so\n"
               "  espresso plugins --check ./libespresso-mine.so\n"
               "  espresso plugins --check topk:ratio=0.3 shm",
};
