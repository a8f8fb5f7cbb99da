/* codecs.c: `espresso profile codecs`: measures compression and decompression times over size, and writes them as codec
 * files. Must not know how one call is measured (espresso_impl/costs/codecs.c). */
#include "tools/profile/profile.h"

enum {
    CODECS_N,
    CODECS_MACHINES,
    CODECS_CODEC,
    CODECS_DEVICE,
    CODECS_SIZES,
    CODECS_BUDGET,
    CODECS_O,
    CODECS_JSON,
    CODECS_AS_RANK
};
static const char *const codecs_devices[] = {"cpu", "gpu", "both"}; /* by ESP_PLAN_CPU, ESP_PLAN_GPU */
static const tool_flag profile_codecs_flags[] = {
    {"-n", "N", "ranks that compress at the same time (default 1): as many as train on a machine"},
    {"--machines", "M", "spread them over M emulated machines"},
    {"--codec", "SPEC", "a codec, as in dgc:ratio=0.01; may be repeated (default: all that there are)"},
    {"--device", "cpu|gpu|both", "where they compress (default cpu); gpu needs plugin cuda"},
    {"--sizes", "FROM..TO", "elements, doubled from one to the next (default 2^10..2^26, as far as memory goes)"},
    {"--budget", "TIME", "how long it may take (default 60s)"},
    {"-o", "FILE", "the codec file to write; with several codecs % stands for the codec's name"},
    {"--json", NULL, "print JSON rather than a table"},
    {"--as-rank", "FDS", "internal: this is one of the ranks"},
};
static const tool_command profile_codecs_command = {
    .name = "profile codecs",
    .summary = "Measures what codecs take to compress and decompress, as codec files for espresso plan.",
    .synopsis = "[-n N] [--codec SPEC ...] [--sizes FROM..TO] [-o FILE]",
    .flags = profile_codecs_flags,
    .n_flags = sizeof profile_codecs_flags / sizeof *profile_codecs_flags,
    .details =
        "All ranks compress at the same time, as they do in a step, numbers like a gradient's, with feedback. What "
        "counts\n"
        "is the slowest rank, divided by the ranks of a machine: a file is for as many ranks and cores as it was made\n"
        "with. A size is measured in up to three rounds of several runs; the best round's median is kept. Measure on "
        "a\n"
        "machine that does nothing else: a file from a busy one is marked as noisy.\n"
        "On GPUs, ranks take those of their machine in turn, and calls follow each other on a stream; a time is not\n"
        "divided. Codecs without a table for GPUs are left out, unless --codec names them, which is an error.\n"
        "\n"
        "examples:\n"
        "  espresso profile codecs -n 4 --codec dgc:ratio=0.01 -o gc.json\n"
        "  espresso profile codecs -n 4 --codec fp16 --codec efsignsgd --sizes 2^10..2^22 -o gc-%.json\n"
        "  espresso profile codecs -n 2 --device both --codec efsignsgd -o gc.json\n"
        "  espresso plan --model bert-base --system one-box --gc gc.json",
};

static int codecs_device(profile_job *j, const char *value) {
    const int all = (int)(sizeof codecs_devices / sizeof *codecs_devices);
    int k = 0;
    while (k < all && strcmp(value, codecs_devices[k])) k++;
    if (k == all) return tool_usage(j->command, "--device %s: write cpu, gpu or both", value);
    j->devices = k < 2 ? 1u << k : 3u;
    return 0;
}

static int codecs_parse(profile_job *j, int argc, char **argv) {
    const tool_command *c = j->command;
    const char *value;
    int at = 0, flag, bad = 0;
    while (!bad && (flag = tool_next(c, argc, argv, &at, &value)) >= 0) {
        switch (flag) {
        case CODECS_N:
            if (!tool_number(value, 1, 1024, &j->n))
                bad = tool_usage(c, "-n %s: write a number of ranks from 1 to 1024", value);
            break;
        case CODECS_MACHINES:
            if (!tool_number(value, 1, 1024, &j->machines))
                bad = tool_usage(c, "--machines %s: write a number of machines from 1 to 1024", value);
            break;
        case CODECS_CODEC:
            if (j->n_codecs == ESP__SURVEY_CODECS)
                bad = tool_usage(c, "--codec %s: at most %d codecs at a time", value, ESP__SURVEY_CODECS);
            else
                j->codecs[j->n_codecs++] = value;
            break;
        case CODECS_DEVICE: bad = codecs_device(j, value); break;
        case CODECS_SIZES: bad = profile_sizes(j, value, 1); break;
        case CODECS_BUDGET: bad = profile_budget(j, value); break;
        case CODECS_O: j->out = value; break;
        case CODECS_JSON: j->json = 1; break;
        default: bad = profile_as_rank(j, value);
        }
    }
    if (bad) return bad;
    if (flag == -2) return TOOL_USAGE;
    if (flag == -3) return -1;
    if (at < argc) return tool_usage(c, "'%s': takes flags only", argv[at]);
    if (j->machines > 0 && j->n % j->machines)
        return tool_usage(c, "%ld ranks do not divide by %ld machines", j->n, j->machines);
    return TOOL_OK;
}

/* The path of one codec's file: % stands for the codec's text, with '-' for every character other than letters,
 * digits and dots. */
static int codecs_path(const profile_job *j, const char *spec, char *out, size_t cap) {
    size_t n = 0;
    for (const char *p = j->out; *p && n + 1 < cap; p++) {
        if (*p != '%') {
            out[n++] = *p;
            continue;
        }
        for (const char *s = spec; *s && n + 1 < cap; s++)
            out[n++] = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || *s == '.'
                           ? *s
                           : '-';
    }
    out[n] = 0;
    return n + 1 < cap;
}

/* ---- before the ranks start ----------------------------------------------------------------------------------------------- */
static int codecs_on(const profile_job *j, int device) { return (j->devices >> device & 1u) != 0; }

/* Is there a table for GPUs? */
static int codecs_runs_on_gpu(esp_ctx *ctx, const char *spec) {
    esp__codec *c = NULL, *gpu = NULL;
    if (!esp__codec_get(ctx, spec, &c)) (void)esp__codec_on(ctx, c, ESP_CUDA, &gpu);
    return gpu != NULL;
}

/* Checks that the codecs exist and their parameters are valid. Without --codec, takes all codecs and adds their
 * names to `more` as flags for the ranks. */
static int codecs_check(profile_job *j, char **more) {
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx = NULL;
    size_t n = 0;
    uint32_t gpu;
    int status = tool_open(j->command, &cfg, &ctx);
    const int all = !j->n_codecs;
    if (status == TOOL_OK && codecs_on(j, ESP_PLAN_GPU) &&
        esp__device_open(ctx, (esp_device){ESP_CUDA, 0}, "--device", &gpu) != ESP_OK)
        status = tool_fail(j->command, "%s", esp_last_error(ctx));
    for (uint32_t i = 0; status == TOOL_OK && all && i < ctx->registry.n_codecs; i++) {
        const esp_codec *c = ctx->registry.codecs[i];
        if (j->n_codecs == ESP__SURVEY_CODECS || esp__codec_opens(ctx, i, NULL) <= 0) continue;
        if (codecs_on(j, ESP_PLAN_GPU) && !codecs_runs_on_gpu(ctx, c->name)) continue;
        j->codecs[j->n_codecs++] = c->name;
        more[n++] = strdup("--codec");
        more[n++] = strdup(c->name);
    }
    for (uint32_t i = 0; status == TOOL_OK && i < j->n_codecs; i++) {
        esp__codec *c = NULL;
        if (strlen(j->codecs[i]) >= ESP__SPEC_MAX || esp__codec_make(ctx, j->codecs[i], NULL, &c) != ESP_OK)
            status = tool_fail(j->command, "--codec %s: %s", j->codecs[i], c ? "too long" : esp_last_error(ctx));
        if (status == TOOL_OK && codecs_on(j, ESP_PLAN_GPU) && !codecs_runs_on_gpu(ctx, j->codecs[i]))
            status = tool_fail(j->command, "--codec %s: it has no table for GPUs: measure it with --device cpu",
                               j->codecs[i]);
        for (uint32_t k = 0; k < i && status == TOOL_OK; k++)
            if (!strcmp(j->codecs[i], j->codecs[k]))
                status = tool_usage(j->command, "--codec %s: named twice", j->codecs[i]);
        esp__codec_free(ctx, c);
    }
    esp_close(ctx);
    more[n] = NULL;
    return status;
}

static int codecs_check_out(const profile_job *j) {
    char path[PATH_MAX];
    if (!j->out) return TOOL_OK;
    if (j->n_codecs > 1 && (!strchr(j->out, '%') || !strcmp(j->out, "-")))
        return tool_usage(j->command,
                          "-o %s: %u codecs make a file each: write %% where a codec's name goes, as in gc-%%.json",
                          j->out, j->n_codecs);
    for (uint32_t i = 0; i < j->n_codecs; i++) {
        if (!codecs_path(j, j->codecs[i], path, sizeof path)) return tool_usage(j->command, "-o %s: too long", j->out);
        const int status = profile_check_out(j, path);
        if (status != TOOL_OK) return status;
    }
    return TOOL_OK;
}

static int codecs_start(profile_job *j, int argc, char **argv) {
    char *more[2 * ESP__SURVEY_CODECS + 4], sizes[64];
    uint32_t n = 0;
    int status = codecs_check(j, more);
    while (more[n]) n++;
    const uint32_t named = n;
    if (status == TOOL_OK) status = codecs_check_out(j);
    if (status == TOOL_OK) status = profile_fit_memory(j, 44);
    if (status == TOOL_OK) {
        snprintf(sizes, sizeof sizes, "%llu..%llu", (unsigned long long)j->sizes[0],
                 (unsigned long long)j->sizes[j->n_sizes - 1]);
        more[n++] = (char[]){"--sizes"};
        more[n++] = sizes;
        more[n] = NULL;
        status = profile_start(j, "codecs", argc, argv, more);
    }
    for (uint32_t i = 0; i < named; i++) free(more[i]);
    return status;
}

/* ---- as a rank ---------------------------------------------------------------------------------------------------------------- */
/* Measures one size with all codecs. Large sizes get few runs. */
static esp_status codecs_measure_size(profile_job *j, uint32_t size, int pass) {
    const double all = (double)j->n_sizes * j->n_codecs;
    esp_status s = ESP_OK;
    for (uint32_t k = 0; k < j->n_codecs && !s; k++) {
        const uint64_t e = j->sizes[size];
        char what[ESP__SPEC_MAX + 64];
        snprintf(what, sizeof what, "round %d, %s, %llu elements", pass + 1, j->codecs[k], (unsigned long long)e);
        profile_say(j, ((double)size * j->n_codecs + k) / all, what);
        const uint32_t repeats = e > 1 << 22 ? 3 : e > 1 << 18 ? 5 : 9;
        s = esp__survey_codec_at(j->ctx, j->survey, k, e, repeats);
        if (!s && j->gpu) s = esp__survey_codec_at(j->ctx, j->gpu, k, e, repeats);
    }
    return s;
}

/* A survey of the codecs, on GPUs or on the CPU. */
static esp_status codecs_open(const profile_job *j, esp__survey *survey, int gpu) {
    esp_status s = esp__survey_open(j->ctx, survey, 4096, j->sizes[j->n_sizes - 1]);
    if (!s && gpu) s = esp__survey_use(j->ctx, survey, ESP_CUDA);
    for (uint32_t k = 0; k < j->n_codecs && !s; k++) s = esp__survey_codec_add(j->ctx, survey, j->codecs[k]);
    return s;
}

/* The survey of the codecs on a device. */
static const esp__survey *codecs_survey(const profile_job *j, int device) {
    return device == ESP_PLAN_GPU && j->gpu ? j->gpu : j->survey;
}

/* Says which GPU it is, as far as its driver does. */
static void codecs_name_gpu(profile_job *j) {
    const esp__device *d = esp__device_at(j->ctx, codecs_survey(j, ESP_PLAN_GPU)->on);
    char name[128] = "";
    const size_t at = codecs_on(j, ESP_PLAN_CPU) ? strlen(j->device) : 0;
    if (!ESP_HAS(esp_device_table, d->table, device_name) || d->table->device_name(d->self, name, sizeof name))
        snprintf(name, sizeof name, "%s", d->table->name);
    snprintf(j->device + at, sizeof j->device - at, "%s%s", at ? "; " : "", name);
}

/* Measures all sizes in several rounds and keeps the best of each, so that a disturbance of one round has no effect. */
static esp_status codecs_measure(profile_job *j) {
    double left = 0, before = 0, took = 0, round = 0;
    if (j->devices == 3u) j->gpu = tool_realloc(NULL, sizeof *j->gpu), memset(j->gpu, 0, sizeof *j->gpu);
    esp_status s = codecs_open(j, j->survey, !codecs_on(j, ESP_PLAN_CPU));
    if (!s && j->gpu) s = codecs_open(j, j->gpu, 1);
    if (!s && codecs_on(j, ESP_PLAN_GPU)) codecs_name_gpu(j);
    j->n_done = 0;
    for (int pass = 0; pass < PROFILE_PASSES && !s; pass++) {
        s = profile_left(j, &left);
        if (s || (pass && left < round)) break;
        const double begun = left;
        for (uint32_t i = 0; i < (pass ? j->n_done : j->n_sizes) && !s; i++) {
            before = left;
            if (!pass && i && left < 2.2 * took) break; /* the next size takes twice as long */
            s = codecs_measure_size(j, i, pass);
            if (!s && !pass) j->n_done = i + 1;
            if (!s) s = profile_left(j, &left);
            took = before - left;
        }
        round = begun - left;
    }
    if (!s) s = esp__survey_finish(j->ctx, j->survey);
    if (!s && j->gpu) s = esp__survey_finish(j->ctx, j->gpu);
    return s ? s : profile_noise(j);
}

static esp_status codecs_write(const profile_job *j) {
    char path[PATH_MAX], source[256];
    esp_status s = ESP_OK;
    snprintf(source, sizeof source, "measured by espresso profile codecs: %d rank(s) at once on %u core(s)",
             j->ctx->job.size, j->survey->cores);
    for (uint32_t k = 0; k < j->n_codecs && !s && j->out; k++) {
        esp__gc_file f = {.codec = j->survey->plan_codecs[k], .spec = j->codecs[k], .source = source};
        for (int d = 0; d < 2; d++) {
            const esp_plan_codec *c = &codecs_survey(j, d)->plan_codecs[k];
            f.codec.compress[d] = c->compress[d];
            f.codec.decompress[d] = c->decompress[d];
            f.codec.decompress_more[d] = c->decompress_more[d];
            f.codec.decompress[d].log_size = f.codec.decompress_more[d].log_size = c->compress[d].log_size;
        }
        profile_measured(j, &f.measured);
        codecs_path(j, j->codecs[k], path, sizeof path);
        s = esp__gc_write(path, &f);
    }
    return s;
}

static void codecs_table_on(const esp__survey_codec *c) {
    printf("%12s %12s %12s %12s %8s %10s\n", "elements", "compress", "decompress", "and another", "spread", "compress");
    for (uint32_t i = 0; i < c->compress.n && i < c->decompress.n; i++) {
        const double spread =
            c->compress.spread[i] > c->decompress.spread[i] ? c->compress.spread[i] : c->decompress.spread[i];
        printf("%12.0f %12s %12s %12s %7.0f%% %8s/s\n", c->compress.at[i].size, tool_time(c->compress.at[i].ns),
               tool_time(c->decompress.at[i].ns),
               i < c->decompress_more.n ? tool_time(c->decompress_more.at[i].ns) : "-", 100 * spread,
               tool_bytes(4e9 * c->compress.at[i].size / (c->compress.at[i].ns + 1e-3)));
    }
}

static void codecs_table(const profile_job *j) {
    printf("%d rank(s) at once on %u core(s), %s%s\n", j->ctx->job.size, j->survey->cores,
           *j->device ? j->device : "CPU", j->noisy ? ": NOISY" : "");
    for (uint32_t k = 0; k < j->n_codecs; k++)
        for (int d = 0; d < 2; d++) {
            const esp__survey_codec *c = &codecs_survey(j, d)->codecs[k];
            if (!codecs_on(j, d)) continue;
            printf("\n%s%s: %.4g bytes an element + %.0f, error %.3g\n", c->spec, d == ESP_PLAN_GPU ? ", on a GPU" : "",
                   c->units * c->unit_bytes, c->header_bytes, c->error);
            codecs_table_on(c);
        }
}

static void codecs_json(const profile_job *j) {
    tool_json t = {{NULL, 0, 0, 0, NULL}, 0, 0};
    json_open(&t, NULL, '{');
    profile_json_head(j, &t);
    json_open(&t, "codecs", '[');
    for (uint32_t k = 0; k < j->n_codecs; k++) {
        const esp__survey_codec *c = &j->survey->codecs[k];
        json_open(&t, NULL, '{');
        json_text(&t, "codec", c->spec);
        json_number(&t, "error", c->error);
        json_number(&t, "header_bytes", c->header_bytes);
        json_number(&t, "bytes_per_element", c->units * c->unit_bytes);
        for (int d = 0; d < 2; d++) {
            const esp__survey_codec *on = &codecs_survey(j, d)->codecs[k];
            if (!codecs_on(j, d)) continue;
            if (d == ESP_PLAN_GPU) json_open(&t, codecs_devices[d], '{');
            profile_json_curve(&t, "compress", &on->compress);
            profile_json_curve(&t, "decompress", &on->decompress);
            profile_json_curve(&t, "decompress_more", &on->decompress_more);
            if (d == ESP_PLAN_GPU) json_close(&t, '}');
        }
        json_close(&t, '}');
    }
    json_close(&t, ']');
    json_close(&t, '}');
    fputs(t.text.data ? t.text.data : "", stdout);
    esp__text_free(&t.text);
}

static int codecs_as_rank(profile_job *j) {
    esp_status s = profile_open(j);
    if (!s) s = codecs_measure(j);
    if (s) return profile_fail(j);
    if (j->ctx->job.rank == 0) {
        if (codecs_write(j) != ESP_OK) return profile_fail(j);
        progress_done();
        profile_warn(j);
        if (j->json)
            codecs_json(j);
        else if (!j->out || strcmp(j->out, "-"))
            codecs_table(j);
    }
    return profile_end(j, TOOL_OK);
}

static int profile_codecs_main(int argc, char **argv) {
    profile_job j = {.command = &profile_codecs_command,
                     .n = 1,
                     .machines = 1,
                     .devices = 1u << ESP_PLAN_CPU,
                     .budget_ns = 60e9,
                     .status_fd = -1,
                     .terminal_fd = -1};
    profile_sizes(&j, "2^10..2^26", 1);
    const int status = codecs_parse(&j, argc, argv);
    if (status) return status == -1 ? TOOL_OK : status;
    return j.as_rank ? codecs_as_rank(&j) : codecs_start(&j, argc, argv);
}
