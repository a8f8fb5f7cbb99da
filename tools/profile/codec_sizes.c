/* codec_sizes.c: measures codecs with several sizes of input, for a costs file. */
#include "espresso_impl/executor/executor.h"
#include "tools/common/quantity.h"
#include "tools/profile/profile.h"
#include <ctype.h>

static bool codecs_on(const profile_job *j, int device) { return (j->devices >> device & 1u) != 0; }

/* ---- which codecs ------------------------------------------------------------------------------------------------ */
ESP__FN void profile_codecs_read(profile_job *j, const char *list) {
    for (const char *at = list; *at;) {
        size_t n = esp__spec_length(at);
        const char *spec = at;
        at += n + (at[n] == ';');
        while (n && isspace((unsigned char)*spec)) spec++, n--;
        while (n && isspace((unsigned char)spec[n - 1])) n--;
        if (!n) continue;
        if (j->n_codecs == ESP__CALIBRATION_CODECS)
            tool_usage(j->command, "--codecs %s: at most %d codecs at a time", list, ESP__CALIBRATION_CODECS);
        if (n >= ESP__SPEC_MAX) tool_usage(j->command, "--codecs: '%.40s...' is too long", spec);
        snprintf(j->codecs[j->n_codecs], sizeof *j->codecs, "%.*s", (int)n, spec);
        for (uint32_t k = 0; k < j->n_codecs; k++)
            if (!strcmp(j->codecs[k], j->codecs[j->n_codecs]))
                tool_usage(j->command, "--codecs: %s is there twice", j->codecs[k]);
        j->n_codecs++;
    }
    if (!j->n_codecs) tool_usage(j->command, "--codecs '%s': write codecs with ';' between", list);
}

static bool codecs_runs_on_gpu(esp_ctx *ctx, const char *spec) {
    esp__codec *c = NULL, *gpu = NULL;
    if (!esp__codec_get(ctx, spec, &c)) (void)esp__codec_on(ctx, c, ESP_CUDA, &gpu);
    return gpu != NULL;
}

/* Selects all registered codecs with default parameters, up to the limit of the array. */
static void codecs_take_all(profile_job *j, esp_ctx *ctx) {
    uint32_t left_out = 0;
    for (uint32_t i = 0; i < ctx->registry.codecs.n; i++) {
        const char *name = ctx->registry.codecs.at[i].codec->name;
        if (esp__codec_opens(ctx, i, NULL) <= 0 || (codecs_on(j, ESP_ON_GPU) && !codecs_runs_on_gpu(ctx, name)))
            continue;
        if (j->n_codecs == ESP__CALIBRATION_CODECS)
            left_out++;
        else
            snprintf(j->codecs[j->n_codecs++], sizeof *j->codecs, "%s", name);
    }
    if (left_out && !j->started && !ctx->job.rank)
        fprintf(stderr, "espresso profile: %u codecs are left out, because at most %d are measured: see --codecs\n",
                left_out, ESP__CALIBRATION_CODECS);
}

ESP__FN esp_status profile_codecs_choose(profile_job *j, esp_ctx *ctx) {
    uint32_t gpu;
    esp_status s = ESP_OK;
    if (codecs_on(j, ESP_ON_GPU)) s = esp__device_open(ctx, (esp_device){ESP_CUDA, 0}, "--device", &gpu);
    if (!s && !j->n_codecs) codecs_take_all(j, ctx);
    for (uint32_t i = 0; i < j->n_codecs && !s; i++) {
        esp__codec *c = NULL;
        s = esp__codec_get(ctx, j->codecs[i], &c);
        if (!s && codecs_on(j, ESP_ON_GPU) && !codecs_runs_on_gpu(ctx, j->codecs[i]))
            s = esp__fail(ctx, ESP_E_UNSUPPORTED, "codec '%s' has no table for GPUs: measure it with --device cpu",
                          j->codecs[i]);
    }
    return s;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */
static esp__calibration *codecs_calibration(const profile_job *j, int device) {
    return !codecs_on(j, device) ? NULL : device == ESP_ON_GPU ? j->gpu : j->calibration;
}

/* Measures all codecs with one size of input. Large sizes are measured fewer times. */
static esp_status codecs_measure(profile_job *j, uint32_t size, double left_ns, double took_ns, bool *complete) {
    const uint64_t e = j->sizes[size];
    const uint32_t repeats = e > 1 << 22 ? 3 : e > 1 << 18 ? 5 : 9;
    esp_status s = ESP_OK;
    /* skips sizes for which too little time is left: each takes about twice as long as the one before */
    if (size >= j->covered || (!j->round && size && left_ns < 2.2 * took_ns)) {
        *complete = false;
        return ESP_OK;
    }
    for (uint32_t k = 0; k < j->n_codecs; k++)
        for (int d = 0; d < 2 && !s; d++) {
            if (!codecs_calibration(j, d)) continue;
            profile_progress(j, "codecs: %s, %llu elements", j->codecs[k], (unsigned long long)e);
            s = esp__calibration_codec_at(j->ctx, codecs_calibration(j, d), k, e, repeats);
        }
    return s;
}

/* Adds the GPU's name, as its driver reports it, to the processor's name. */
static void codecs_name_gpu(profile_job *j) {
    const esp__device *d = esp__device_at(j->ctx, j->gpu->device);
    char name[128] = "";
    const size_t at = codecs_on(j, ESP_ON_CPU) || (j->parts & PROFILE_LINKS) ? strlen(j->device) : 0;
    if (!ESP_HAS(esp_device_table, d->table, device_name) || d->table->device_name(d->self, name, sizeof name))
        snprintf(name, sizeof name, "%s", d->table->name);
    snprintf(j->device + at, sizeof j->device - at, "%s%s", at ? "; " : "", name);
}

ESP__FN esp_status profile_codecs(profile_job *j) {
    esp_status s = ESP_OK;
    for (int d = 0; d < 2; d++)
        for (uint32_t k = 0; k < j->n_codecs && codecs_calibration(j, d) && !s; k++)
            s = esp__calibration_codec_add(j->ctx, codecs_calibration(j, d), j->codecs[k]);
    if (!s && j->gpu) codecs_name_gpu(j);
    return s ? s : profile_rounds(j, "codecs", j->n_elements, codecs_measure);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */
ESP__FN void profile_codecs_print(const profile_job *j, uint32_t k, const char *source, esp__text *out) {
    esp__gc_file f = {.spec = j->codecs[k], .source = source, .measured = j->measured};
    for (int d = 1; d >= 0; d--) {
        const esp__calibration *s = codecs_calibration(j, d);
        if (!s) continue;
        const esp_plan_codec *c = &s->plan_codecs[k], other = f.codec;
        f.codec = *c;
        f.codec.compress[!d] = other.compress[!d];
        f.codec.decompress[!d] = other.decompress[!d];
        f.codec.decompress_more[!d] = other.decompress_more[!d];
        f.codec.decompress[d].log_size = f.codec.decompress_more[d].log_size = c->compress[d].log_size;
    }
    esp__gc_print(&f, out);
}

ESP__FN void profile_codecs_show(const profile_job *j) {
    printf("\n%-28s %8s %8s %12s %12s %12s %12s\n", "codec", "bits", "error", "elements", "compress", "decompress",
           "and another");
    for (uint32_t k = 0; k < j->n_codecs; k++)
        for (int d = 0; d < 2; d++) {
            const esp__calibration *s = codecs_calibration(j, d);
            if (!s || !s->codecs[k].compress.n) continue;
            const esp__calibration_codec *c = &s->codecs[k];
            const uint32_t last = c->compress.n - 1;
            char name[64];
            snprintf(name, sizeof name, "%.50s%s", c->spec, d == ESP_ON_GPU ? ", gpu" : "");
            printf("%-28s %8.3g %8.3g %12.0f %12s %12s %12s\n", name, 8 * c->units * c->unit_bytes, c->error,
                   c->compress.at[last].size, tool_time(c->compress.at[last].ns),
                   last < c->decompress.n ? tool_time(c->decompress.at[last].ns) : "-",
                   last < c->decompress_more.n ? tool_time(c->decompress_more.at[last].ns) : "-");
        }
}
