/* check.c: `espresso plugins --check` runs the checks of the codecs and backends that the user named. */
#include "tools/check/check.h"

static void check_codec_spec(const tool_command *self, esp_ctx *ctx, const char *spec, const char *from,
                             check_report *r) {
    esp__codec *c = NULL;
    printf("codec %s (%s)\n", spec, from);
    if (esp__codec_make(ctx, spec, NULL, &c)) {
        tool_fail(self, "%s", esp_last_error(ctx));
        r->failed++;
        return;
    }
    check_codec(ctx, c, r);
    esp__codec_free(ctx, c);
}

/* Checks the codecs and backends that `spec` names or that `file` contains; NULL selects all. Returns their number. */
static int check_found(const tool_command *self, esp_ctx *ctx, const char *spec, const char *file, check_report *r) {
    const esp__registry *g = &ctx->registry;
    const size_t n = spec ? strcspn(spec, ":") : 0;
    int found = 0;
    for (uint32_t i = 0; i < g->codecs.n; i++) {
        const char *name = g->codecs.at[i].codec->name;
        /* checks run in host memory, so they skip codecs that are only for GPUs */
        if (!(g->codecs.at[i].codec->devices & ESP_BIT(ESP_CPU))) continue;
        if (file && strcmp(g->codecs.at[i].from, file) != 0) continue;
        if (spec && (strlen(name) != n || strncmp(name, spec, n))) continue;
        found++;
        check_codec_spec(self, ctx, spec ? spec : name, g->codecs.at[i].from, r);
    }
    for (uint32_t i = 0; i < g->backends.n; i++) {
        const esp_backend *b = g->backends.at[i].backend;
        if (file && strcmp(g->backends.at[i].from, file) != 0) continue;
        int32_t score = 0;
        if (spec && (strlen(b->name) != n || strncmp(b->name, spec, n))) continue;
        found++;
        printf("backend %s (%s)\n", spec ? spec : b->name, g->backends.at[i].from);
        if (b->probe(&ctx->host, &score) || score <= 0) {
            puts("  skipped  by its probe() it cannot run here");
            r->skipped++;
        } else if (check_launched_open(ctx, b, spec && spec[n] ? spec + n + 1 : "")) {
            printf("  FAILED   %s\n", esp_last_error(ctx));
            r->failed++;
        } else {
            check_backend(ctx, b, spec && spec[n] ? spec + n + 1 : "", r);
        }
    }
    return found;
}

/* Checks what an argument names: a plugin file, or a codec or backend with or without parameters. */
static int check_argument(const tool_command *self, esp_ctx *ctx, const char *what, check_report *r) {
    const uint32_t devices = ctx->registry.devices.n;
    /* a ":" before the first "/" begins parameters, as in "mynet:dir=/tmp" */
    const int file = what[strcspn(what, ":/")] == '/';
    char name[ESP__SPEC_MAX];
    if (!file && check_found(self, ctx, what, NULL, r)) return TOOL_OK;
    snprintf(name, sizeof name, "%.*s", file ? (int)sizeof name - 1 : (int)strcspn(what, ":"), what);
    if (esp_plugin_load(ctx, name) != ESP_OK) return tool_fail(self, "%s", esp_last_error(ctx));
    if (check_found(self, ctx, file ? NULL : what, file ? what : NULL, r)) return TOOL_OK;
    /* the plugin has only a device, which has no checks of its own: checks of backends named later use it */
    if (ctx->registry.devices.n > devices) {
        printf("device %s (%s)\n", ctx->registry.devices.at[devices].device->name, name);
        return TOOL_OK;
    }
    return tool_fail(self, "%s brings no codec for the CPU, no backend and no device that is new here", name);
}

ESP__FN int check_main(const tool_command *self, esp_ctx *ctx, char *const *names, int n_names) {
    check_report r = {0, 0, 0};
    esp__where w;
    const esp_config cfg = ESP_ZERO;
    int status = TOOL_OK;
    if (!esp__env_where(&cfg, &w) && w.size > 1 && w.rank && !freopen("/dev/null", "w", stdout)) return TOOL_FAILED;
    if (!n_names) check_found(self, ctx, NULL, NULL, &r);
    for (int i = 0; i < n_names && status == TOOL_OK; i++) status = check_argument(self, ctx, names[i], &r);
    if (status != TOOL_OK) return status;
    check_launched_close();
    printf("%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped);
    return r.failed ? TOOL_FAILED : TOOL_OK;
}
