/* plugins.c: `espresso plugins` lists codecs, backends and devices, and shows what plugin files contain. Must not know
 * any codec: it reads their tables. */
#include "tools/inspect/inspect.h"
#include "espresso_impl/base/base.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/registry/registry.h"
#include "planner/plan.h"
#include "tools/check/check.h"
#include "tools/common/quantity.h"

enum { PLUGINS_PATH, PLUGINS_CHECK };
static const tool_flag plugins_flags[] = {
    {"--path", "DIR[:DIR...]", "look for plugins there first"},
    {"--check", NULL, "run the conformance checks over each, and print what fails and what to do"},
};

typedef struct plugins_word {
    uint64_t bit;
    const char *text;
} plugins_word;

static void plugins_bits(const char *label, uint64_t bits, const plugins_word *words, size_t n) {
    int some = 0;
    for (size_t i = 0; i < n; i++)
        if (bits & words[i].bit) printf("%s%s", some++ ? ", " : label, words[i].text);
    if (some) putchar('\n');
}
#define PLUGINS_BITS(label, bits, words) plugins_bits(label, bits, words, sizeof words / sizeof *words)

static const plugins_word plugins_devices[] = {{ESP_BIT(ESP_CPU), "cpu"}, {ESP_BIT(ESP_CUDA), "cuda"}};

static void plugins_caps(uint64_t caps) {
    static const plugins_word words[] = {
        {ESP_CODEC_HAS_STATE, "keeps state of its own"},
        {ESP_CODEC_REDUCIBLE, "payloads can be summed undecoded"},
        {ESP_CODEC_OWN_FEEDBACK, "memory of its method on the rank's own gradient"},
        {ESP_CODEC_DETERMINISTIC, "draws no random numbers"},
        {ESP_CODEC_NEEDS_MATRIX, "needs rows and cols"},
        {ESP_CODEC_NO_FEEDBACK, "without feedback by default"},
        {ESP_CODEC_LISTS, "takes several parts in one call"},
        {ESP_CODEC_WRAPPER, "can wrap another codec"},
    };
    PLUGINS_BITS("  properties: ", caps, words);
}

/* Returns the payload's bits per element, for 2^20 elements in a square matrix. */
static double plugins_bits_each(const esp_payload_size *s) {
    return 8 * esp__payload_size(s, 1u << 20, 1u << 10, 1u << 10) / (1u << 20);
}

/* Returns how long the codec takes for 2^20 elements, in ns. */
static double plugins_time_at(const esp_codec_model *m, bool decompress) {
    esp_cost_point p[ESP_MODEL_TIMES];
    for (uint32_t i = 0; i < m->n_times; i++)
        p[i] = (esp_cost_point){m->times[i].elements, decompress ? m->times[i].decompress_ns : m->times[i].compress_ns};
    const esp_cost_curve c = {p, m->n_times, 0};
    return esp__curve_at(&c, 1u << 20);
}

static void plugins_model(esp_ctx *ctx, const esp__codec *c) {
    static const char *const ops[] = {"not reduced", "sum", "max", "min"};
    const bool matrix = c->traits.caps & ESP_CODEC_NEEDS_MATRIX;
    esp_codec_model of_matrix, two;
    const esp_codec_model *m = &c->model;
    if (matrix && !esp__codec_model(ctx, c, true, 1, ESP_CPU, &of_matrix)) m = &of_matrix;
    if (!esp__codec_has_model(c)) {
        puts("  model:      none: it takes part in no plan until it is measured (espresso profile)");
        return;
    }
    printf("  payload:    %.4g bits an element (2^20 elements)\n", plugins_bits_each(&m->sent));
    for (uint32_t r = 0; r < c->traits.n_rounds; r++) {
        const esp_round round = esp__codec_round(c, r);
        if (round.op && !esp__codec_model(ctx, c, matrix, 2, ESP_CPU, &two))
            printf("  round %u:    %s of %s: %.4g bits an element\n", r + 1, ops[round.op & 3u],
                   esp__dtype_word(round.dtype), plugins_bits_each(&two.reduced[r]));
    }
    if (m->n_times)
        printf("  times:      compress %s, decompress %s (2^20 elements, one core)\n", tool_time(plugins_time_at(m, 0)),
               tool_time(plugins_time_at(m, 1)));
    if (m->error >= 0)
        printf("  error:      %.4g of |x|^2, for normal x without feedback\n", m->error);
    else
        puts("  error:      not known");
    printf("  lossy:      %s\n", m->flags & ESP_MODEL_LOSSY ? "yes: strategy auto watches training with it"
                                                            : "no: it only rounds, or changes nothing");
}

/* Prints each parameter with its default and the values that it may have, which the codec's own error message says. */
static void plugins_params(esp_ctx *ctx, const esp_codec *t) {
    const char *at = ESP_HAS(esp_codec, t, params) ? t->params : "", *label = "  parameters: ";
    char key[64], value[128], spec[ESP__SPEC_MAX];
    if (!at || !*at) printf("%snone\n", label);
    for (; at && esp_params_next(&at, key, sizeof key, value, sizeof value) > 0; label = "              ") {
        esp__codec *c = NULL;
        printf("%s%s=%s", label, key, value);
        snprintf(spec, sizeof spec, "%s:%s=?", t->name, key);
        if (esp__codec_make(ctx, spec, NULL, &c) != ESP_OK) {
            const char *words = strstr(esp_last_error(ctx), "must be "), *end = words ? strstr(words, " (param") : NULL;
            if (end) printf(": %.*s", (int)(end - words) - 8, words + 8);
        }
        esp__codec_free(ctx, c);
        putchar('\n');
    }
}

/* `c` is the opened codec, or NULL if it cannot be opened without parameters or is only for GPUs. */
static void plugins_codec(esp_ctx *ctx, const char *name, const esp_codec *t, const char *from, esp__codec *c) {
    printf("codec %s\n  %s\n", name, ESP_HAS(esp_codec, t, summary) ? t->summary : "(no summary)");
    if (ESP_HAS(esp_codec, t, family) && t->family) printf("  class:      %s\n", t->family);
    if (ESP_HAS(esp_codec, t, paper) && t->paper) printf("  paper:      %s\n", t->paper);
    plugins_params(ctx, t);
    plugins_caps(c ? c->traits.caps : t->caps);
    PLUGINS_BITS("  devices:    ", t->devices, plugins_devices);
    const char *option = c                                       ? c->traits.default_option
                         : ESP_HAS(esp_codec, t, default_option) ? t->default_option
                                                                 : NULL;
    if (option) printf("  layerwise:  %s\n", option);
    if (c)
        plugins_model(ctx, c);
    else if (t->devices & ESP_BIT(ESP_CPU)) /* codecs only for GPUs get no line */
        printf("  model:      depends on its parameters: espresso plugins '%s:...'\n", t->name);
    printf("  from:       %s\n", from);
    esp__codec_free(ctx, c);
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
        {ESP_BACKEND_CALLER, "is called by the trainer's threads only"},
        {ESP_BACKEND_REOPENS, "can be opened again after ranks were lost"},
        {ESP_BACKEND_DELIVERS, "a request is done when its data has arrived"},
    };
    printf("backend %s\n  %s\n", b->name, ESP_HAS(esp_backend, b, summary) ? b->summary : "(no summary)");
    printf("  parameters: %s\n", ESP_HAS(esp_backend, b, params) ? b->params : "none");
    PLUGINS_BITS("  properties: ", b->caps, caps);
    PLUGINS_BITS("  offers:     ", b->colls, colls);
    PLUGINS_BITS("  devices:    ", b->devices, plugins_devices);
    printf("  score here: %d (%s)\n", score, score > 0 ? "the highest is the default" : "it cannot run");
    printf("  from:       %s\n", from);
}

static int plugins_count(const esp_ctx *ctx, const esp_device_table *d) {
    int32_t count = 0;
    return d->probe(&ctx->host, &count) == ESP_OK ? (int)count : 0;
}

static void plugins_device(const esp_ctx *ctx, const esp_device_table *d, const char *from) {
    static const plugins_word caps[] = {{ESP_DEVICE_HOST_ACCESS, "the host may read and write its memory"}};
    printf("device %s\n  %s\n", d->name, ESP_HAS(esp_device_table, d, summary) ? d->summary : "(no summary)");
    printf("  kind:       %u\n", (unsigned)d->kind);
    PLUGINS_BITS("  properties: ", d->caps, caps);
    printf("  here:       %d\n", plugins_count(ctx, d));
    printf("  from:       %s\n", from);
}

static void plugins_table(const esp_ctx *ctx) {
    const esp__registry *r = &ctx->registry;
    for (uint32_t i = 0; i < r->codecs.n; i++) {
        const esp_codec *c = r->codecs.at[i].codec;
        const char *params = ESP_HAS(esp_codec, c, params) ? c->params : "";
        const char *family = ESP_HAS(esp_codec, c, family) && c->family ? c->family : "";
        printf("codec    %-10s %-9s %s%s%s\n", c->name, family, ESP_HAS(esp_codec, c, summary) ? c->summary : "",
               *params ? "; " : "", params);
    }
    for (uint32_t i = 0; i < r->backends.n; i++) {
        const esp_backend *b = r->backends.at[i].backend;
        printf("backend  %-10s %s; score here %d\n", b->name, ESP_HAS(esp_backend, b, summary) ? b->summary : "",
               plugins_score(ctx, b));
    }
    for (uint32_t i = 0; i < r->devices.n; i++) {
        const esp_device_table *d = r->devices.at[i].device;
        printf("device   %-10s %s; kind %u, %d here\n", d->name,
               ESP_HAS(esp_device_table, d, summary) ? d->summary : "", (unsigned)d->kind, plugins_count(ctx, d));
    }
    puts("\nMore of one: espresso plugins NAME. The backend with the highest score is the default.");
}

static int plugins_print(esp_ctx *ctx, const char *wanted, const esp__registry *before) {
    const esp__registry *r = &ctx->registry;
    int n = 0;
    for (uint32_t i = 0; i < r->codecs.n; i++) {
        const esp_codec *t = r->codecs.at[i].codec;
        esp__codec *c = NULL;
        if (before ? i < before->codecs.n : strcmp(t->name, wanted) != 0) continue;
        if (n++) putchar('\n');
        if (t->devices & ESP_BIT(ESP_CPU)) (void)esp__codec_make(ctx, t->name, NULL, &c);
        plugins_codec(ctx, t->name, t, r->codecs.at[i].from, c);
    }
    for (uint32_t i = 0; i < r->backends.n; i++) {
        if (before ? i < before->backends.n : strcmp(r->backends.at[i].backend->name, wanted) != 0) continue;
        if (n++) putchar('\n');
        plugins_backend(ctx, r->backends.at[i].backend, r->backends.at[i].from);
    }
    for (uint32_t i = 0; i < r->devices.n; i++) {
        if (before ? i < before->devices.n : strcmp(r->devices.at[i].device->name, wanted) != 0) continue;
        if (n++) putchar('\n');
        plugins_device(ctx, r->devices.at[i].device, r->devices.at[i].from);
    }
    return n;
}

static int plugins_print_spec(const tool_command *self, esp_ctx *ctx, const char *spec) {
    esp__codec *c;
    uint32_t at = 0;
    if (esp__codec_make(ctx, spec, NULL, &c) != ESP_OK) return tool_fail(self, "%s", esp_last_error(ctx));
    while (ctx->registry.codecs.at[at].codec != c->table) at++;
    plugins_codec(ctx, spec, c->table, ctx->registry.codecs.at[at].from, c);
    return TOOL_OK;
}

static int plugins_show(const tool_command *self, esp_ctx *ctx, char *const *names, int n_names) {
    if (!n_names) plugins_table(ctx);
    for (int i = 0; i < n_names; i++) {
        const esp__registry before = ctx->registry;
        if (i) putchar('\n');
        if (strchr(names[i], ':') && !strchr(names[i], '/')) {
            if (plugins_print_spec(self, ctx, names[i]) != TOOL_OK) return TOOL_FAILED;
        } else if (!plugins_print(ctx, names[i], NULL)) {
            if (esp_plugin_load(ctx, names[i]) != ESP_OK) return tool_fail(self, "%s", esp_last_error(ctx));
            (void)plugins_print(ctx, NULL, &before);
        }
    }
    return TOOL_OK;
}

static int plugins_main(const tool_command *self, int argc, char **argv) {
    esp_ctx *ctx;
    const char *value;
    int at = 0, flag, checks = 0;
    if (esp__open_alone(&ctx) != ESP_OK) return tool_fail(self, "%s", esp_last_error(NULL));
    while ((flag = tool_next(self, argc, argv, &at, &value)) >= 0) {
        if (flag == PLUGINS_PATH) ctx->registry.plugin_path = value;
        if (flag == PLUGINS_CHECK) checks = 1;
    }
    const int status = (checks ? check_main : plugins_show)(self, ctx, argv + at, argc - at);
    esp_close(ctx);
    return status;
}

const tool_command plugins_command = {
    .name = "plugins",
    .summary = "Lists codecs, backends and devices; with names, loads these plugins and shows what they bring.",
    .synopsis = "[--path DIR] [--check] [NAME|SPEC|FILE.so...]",
    TOOL_FLAGS(plugins_flags),
    .run = plugins_main,
    .details = "A NAME is built in, or the file libespresso-NAME.so in --path, in $ESPRESSO_PLUGIN_PATH, or "
               "in\n" ESPRESSO_PREFIX "/lib/espresso. A FILE has a '/' in it.\n"
               "\n"
               "examples:\n"
               "  espresso plugins\n"
               "  espresso plugins topk\n"
               "  espresso plugins topk:ratio=0.001\n"
               "  espresso plugins ./libespresso-mine.so\n"
               "  espresso plugins --check ./libespresso-mine.so\n"
               "  espresso plugins --check topk:ratio=0.3 shm",
};
