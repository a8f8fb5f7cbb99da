/* ranks.c: starts the ranks that measure links and codecs, divides time and memory among them, and finds how much other
 * programs used the machine. */
#include "espresso_impl/executor/executor.h"
#include "tools/common/progress.h"
#include "tools/common/quantity.h"
#include "tools/run/ranks.h"
#include "tools/profile/profile.h"
#include <unistd.h>

/* ---- starting the ranks ------------------------------------------------------------------------------------------ */
ESP__FN int profile_start(const profile_job *j, char **argv) {
    char fds[32];
    /* stderr of a rank is a pipe, so ranks get the terminal as another descriptor */
    const int terminal = isatty(2) ? dup(2) : -1;
    snprintf(fds, sizeof fds, "%d,%d", terminal, j->model_file);
    char *const program = *j->program;
    *j->program = NULL; /* ranks must not get the trainer's command line, which ends argv */
    const int status = tool_ranks(j->command, j->n, j->machines ? j->machines : 1, j->inter,
                                  (const char *const[]){"--as-rank", fds}, argv);
    *j->program = program;
    if (terminal >= 0) close(terminal);
    return status;
}

static esp_status profile_open(profile_job *j) {
    static const char *const unwanted[] = {"ESPRESSO_CODEC", "ESPRESSO_STRATEGY", "ESPRESSO_TRACE", "ESPRESSO_STATS",
                                           "ESPRESSO_PROFILE"};
    const esp_config cfg = {.struct_size = sizeof cfg, .strategy = "fp32", .codec = "fp16"};
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++) unsetenv(unwanted[i]);
    const esp_status s = esp_open(&cfg, &j->ctx);
    if (s) return s;
    if (j->ctx->job.rank) j->terminal = -1;
    if (j->terminal >= 0) dup2(j->terminal, 2);
    j->calibration = tool_zeroed(sizeof *j->calibration);
    esp__cpu_name(j->device, 128);
    return ESP_OK;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */
/* Sets *all to an array with each rank's `mine`. The next call overwrites it. */
static esp_status profile_gather(const profile_job *j, double mine, const double **all) {
    *all = j->ctx->job.room;
    return esp__peers_allgather(j->ctx->job.peers, NULL, j->ctx->job.size, &mine, j->ctx->job.room, sizeof mine);
}

/* Sets the time that is left to rank 0's value, so that all ranks decide alike. */
static esp_status profile_left(const profile_job *j, double *ns) {
    const double *all;
    const esp_status s = profile_gather(j, j->deadline_ns - (double)esp__now_ns(), &all);
    if (!s) *ns = all[0];
    return s;
}

ESP__FN void profile_progress(const profile_job *j, const char *fmt, ...) {
    char what[120];
    va_list ap;
    if (j->terminal < 0) return;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    const double now = (double)esp__now_ns();
    double left = j->deadline_ns - now;
    if (j->round_ns > 0) { /* all repetitions may end before the deadline */
        const double rounds = (PROFILE_ROUNDS - j->round) * j->round_ns - (now - j->round_begun_ns);
        left = rounds < left ? rounds : left;
    }
    left += j->later_ns;
    progress_set("%s, round %d of %d: at most %.0f s left, after", what, j->round + 1, PROFILE_ROUNDS,
                 left > 0 ? left / 1e9 : 0);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
/* Sets *n to the number of sizes for which *room, a machine's free memory, suffices, and subtracts what they take. A
 * size s needs s * each bytes on every rank. */
static esp_status profile_fit_memory(profile_job *j, const char *part, double each, double *room, uint32_t *n) {
    const double *all;
    uint32_t fits = j->n_sizes;
    while (fits && (double)j->sizes[fits - 1] * each * j->ctx->job.sharing > *room) fits--;
    const esp_status s = profile_gather(j, fits, &all);
    for (int32_t r = 0; r < j->ctx->job.size && !s; r++)
        if (all[r] < fits) fits = (uint32_t)all[r];
    *n = fits;
    if (s) return s;
    if (!fits) return esp__fail(j->ctx, ESP_E_NOMEM, "%s: not even 1024 fit into the memory of every machine", part);
    *room -= (double)j->sizes[fits - 1] * each * j->ctx->job.sharing;
    if (fits < j->n_sizes && !j->ctx->job.rank)
        fprintf(stderr, "espresso profile: %s: sizes above %llu are left out: there is no memory for them\n", part,
                (unsigned long long)j->sizes[fits - 1]);
    return ESP_OK;
}

static esp_status profile_prepare(profile_job *j) {
    const bool cpu = (j->devices >> ESP_ON_CPU & 1u) != 0, gpu = (j->devices >> ESP_ON_GPU & 1u) != 0;
    const double there = esp__machine_memory();
    double room = there > 0 ? there / 2 : 1e18;
    uint64_t bytes = 0, elements = 0;
    esp_status s = ESP_OK;
    if (j->parts & PROFILE_LINKS) s = profile_fit_memory(j, "links", 2.5, &room, &j->n_links);
    if (!s && (j->parts & PROFILE_CODECS)) s = profile_fit_memory(j, "codecs", 44, &room, &j->n_elements);
    if (s) return s;
    if (j->parts & PROFILE_LINKS) bytes = j->sizes[j->n_links - 1];
    if (j->parts & PROFILE_CODECS) elements = j->sizes[j->n_elements - 1];
    s = esp__calibration_open(j->ctx, j->calibration, bytes, cpu ? elements : 0);
    j->calibration->load = gpu ? 0.0 : 1.0; /* if a GPU trains, the cores are free for communication */
    if (s || !gpu || !elements) return s;
    j->gpu = tool_zeroed(sizeof *j->gpu);
    s = esp__calibration_open(j->ctx, j->gpu, 0, elements);
    return s ? s : esp__calibration_use(j->ctx, j->gpu, ESP_CUDA);
}

/* Measures all sizes several times, so that a short disturbance of the machine has little effect. */
ESP__FN esp_status profile_rounds(profile_job *j, const char *part, uint32_t sizes, profile_measure measure) {
    double left = 0, took = 0;
    esp_status s = ESP_OK;
    j->covered = sizes;
    j->round_ns = 0;
    for (j->round = 0; j->round < PROFILE_ROUNDS && !s; j->round++) {
        s = profile_left(j, &left);
        if (s || left < 1.2 * j->round_ns) break;
        const double begun = left;
        j->round_begun_ns = (double)esp__now_ns();
        for (uint32_t i = 0; i < sizes && !s; i++) {
            const double before = left;
            bool complete = true;
            s = measure(j, i, left, took, &complete);
            if (!complete && i < j->covered) j->covered = i;
            if (!s) s = profile_left(j, &left);
            took = before - left;
        }
        j->round_ns = begun - left;
    }
    if (!s && j->covered < sizes && !j->ctx->job.rank) {
        progress_done();
        fprintf(stderr, "espresso profile: %s: --budget was used up: some of the sizes above %llu were not measured\n",
                part, (unsigned long long)j->sizes[j->covered ? j->covered - 1 : 0]);
    }
    return s;
}

/* ---- noise ------------------------------------------------------------------------------------------------------- */
/* Finds how much other programs have used the processors since `then`. */
static esp_status profile_find_noise(profile_job *j, const esp__machine_time *then) {
    const esp__machine_time now = esp__machine_time_now();
    const double *all;
    double own = 0;
    const esp_status s = profile_gather(j, now.own - then->own, &all);
    for (int32_t r = 0; r < j->ctx->job.size && !s; r++) own += all[r];
    const double whole = now.all - then->all, busy = now.busy - then->busy;
    if (whole > 0) j->others = busy > own ? (busy - own) / whole : 0, j->stolen = (now.stolen - then->stolen) / whole;
    esp__measured *m = &j->measured;
    *m = (esp__measured){.ranks = (uint32_t)j->ctx->job.size,
                         .cores = j->calibration->cores,
                         .has_spread = true,
                         .device = *j->device ? j->device : NULL};
    m->spread = j->gpu && j->gpu->noise > j->calibration->noise ? j->gpu->noise : j->calibration->noise;
    m->noisy = j->others > PROFILE_NOISY_OTHERS || j->stolen > PROFILE_NOISY_STOLEN || m->spread > PROFILE_NOISY_SPREAD;
    return s;
}

/* ---- a rank from start to end ------------------------------------------------------------------------------------ */
static esp_status profile_parts(profile_job *j) {
    const bool both = (j->parts & PROFILE_LINKS) && (j->parts & PROFILE_CODECS);
    const double begun = (double)esp__now_ns();
    const esp__machine_time then = esp__machine_time_now();
    esp_status s = profile_prepare(j);
    j->deadline_ns = begun + (both ? 0.5 : 1.0) * j->budget_ns;
    j->later_ns = both ? 0.5 * j->budget_ns : 0;
    if (!s && (j->parts & PROFILE_LINKS)) s = profile_links(j);
    j->deadline_ns = begun + j->budget_ns;
    j->later_ns = 0;
    if (!s && (j->parts & PROFILE_CODECS)) s = profile_codecs(j);
    if (!s) s = esp__calibration_finish(j->ctx, j->calibration);
    if (!s && j->gpu) s = esp__calibration_finish(j->ctx, j->gpu);
    return s ? s : profile_find_noise(j, &then);
}

static esp_status profile_write_all(const profile_job *j) {
    char source[256];
    esp__text parts[1 + PROFILE_CODECS_MAX] = {{0}};
    esp__costs_texts t = {.inter = getenv("ESPRESSO_INTER_LINK")};
    esp_status s = ESP_OK;
    snprintf(source, sizeof source, "measured by espresso profile: %d rank(s) on %u core(s), backend %.40s",
             j->ctx->job.size, j->calibration->cores, j->ctx->job.backend->name);
    if (j->parts & PROFILE_LINKS) {
        profile_links_print(j, source, &parts[0]);
        t.system = parts[0].data;
    }
    for (; (j->parts & PROFILE_CODECS) && t.n_codecs < j->n_codecs; t.n_codecs++) {
        profile_codecs_print(j, t.n_codecs, source, &parts[1 + t.n_codecs]);
        t.codecs[t.n_codecs] = parts[1 + t.n_codecs].data;
    }
    for (uint32_t i = 0; i <= t.n_codecs && !s; i++)
        if (parts[i].failed) s = esp__fail(NULL, ESP_E_NOMEM, "out of memory");
    if (!s) s = profile_write(j, &t);
    for (uint32_t i = 0; i <= t.n_codecs; i++) esp__text_free(&parts[i]);
    return s;
}

static void profile_show(const profile_job *j) {
    const bool noisy = j->measured.noisy;
    if (noisy)
        fprintf(
            stderr,
            "espresso profile: %s is noisy: other programs took %.0f%% of the machine, %.1f%% of its time was stolen, "
            "runs spread by %.0f%% of the time: measure again when the machine does nothing else\n",
            strcmp(j->out, "-") ? j->out : "the costs file", 100 * j->others, 100 * j->stolen,
            100 * j->measured.spread);
    if (strcmp(j->out, "-") == 0) return;
    printf("%d rank(s), %d machine(s), backend %s, %u core(s), %s%s\n", j->ctx->job.size, j->ctx->job.topo.n_machines,
           j->ctx->job.backend->name, j->calibration->cores, *j->device ? j->device : "CPU", noisy ? ": NOISY" : "");
    if (j->parts & PROFILE_LINKS) profile_links_show(j);
    if (j->parts & PROFILE_CODECS) profile_codecs_show(j);
}

ESP__FN int profile_as_rank(profile_job *j) {
    esp_status s = profile_open(j);
    const bool first = !j->ctx || j->ctx->job.rank == 0;
    if (!s && (j->parts & PROFILE_CODECS)) s = profile_codecs_choose(j, j->ctx);
    if (!s) s = profile_parts(j);
    progress_done();
    if (!s && first) profile_show(j);
    if (!s && first) s = profile_write_all(j);
    if (s && first) tool_fail(j->command, "%s", esp_last_error(NULL));
    if (j->gpu) esp__calibration_close(j->ctx, j->gpu);
    if (j->calibration) esp__calibration_close(j->ctx, j->calibration);
    free(j->gpu);
    free(j->calibration);
    esp_close(j->ctx);
    return s ? TOOL_FAILED : TOOL_OK;
}
