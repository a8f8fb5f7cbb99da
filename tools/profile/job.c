/* job.c: the parts of a profile that do not depend on what is measured: flags, starting the ranks, the time budget, and
 * noise, which is what else the machine did meanwhile. */
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/machine.h"
#include "tools/profile/profile.h"
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- command line --------------------------------------------------------------------------------------------------------- */
/* Reads "4096" or "2^12". Returns 0 for other text. */
static uint64_t profile_size(const char *text, size_t len) {
    char word[32], *end;
    if (!len || len >= sizeof word) return 0;
    snprintf(word, sizeof word, "%.*s", (int)len, text);
    if (*word < '0' || *word > '9') return 0;
    const unsigned long v = strtoul(word, &end, 10);
    if (!*end) return v;
    if (v != 2 || *end != '^' || end[1] < '0' || end[1] > '9') return 0;
    const unsigned long power = strtoul(end + 1, &end, 10);
    return *end || power > 40 ? 0 : (uint64_t)1 << power;
}

/* Reads "2^10..2^26": the first size, then its doubles up to the second. */
static int profile_sizes(profile_job *j, const char *text, uint64_t least) {
    const char *dots = strstr(text, "..");
    const uint64_t from = profile_size(text, dots ? (size_t)(dots - text) : strlen(text));
    const uint64_t to = dots ? profile_size(dots + 2, strlen(dots + 2)) : from;
    j->n_sizes = 0;
    if (from < least || to < from || to > (uint64_t)1 << 36)
        return tool_usage(j->command, "--sizes %s: write a size or two, %llu to 2^36, as in 2^10..2^20", text,
                          (unsigned long long)least);
    for (uint64_t size = from; size <= to && j->n_sizes < PROFILE_SIZES_MAX; size *= 2) j->sizes[j->n_sizes++] = size;
    return TOOL_OK;
}

static int profile_budget(profile_job *j, const char *text) {
    char *end;
    double v = 0;
    if (*text >= '0' && *text <= '9') v = strtod(text, &end) * 1e9;
    if (v > 0 && !strcmp(end, "")) {
        j->budget_ns = v;
    } else if (!tool_quantity(text, tool_times, &j->budget_ns)) {
        return tool_usage(j->command, "--budget %s: write a time, as in 30s", text);
    }
    return TOOL_OK;
}

/* Reads --as-rank. A process with this flag never starts ranks, or ranks would start ranks without end. */
static int profile_as_rank(profile_job *j, const char *text) {
    j->as_rank = 1;
    if (getenv("ESPRESSO_RANK") && sscanf(text, "%d,%d", &j->status_fd, &j->terminal_fd) == 2) return TOOL_OK;
    return tool_usage(j->command, "--as-rank is the command's own: leave it out, and it starts the ranks");
}

/* Did a launcher (espresso run, mpirun, srun, torchrun) start several of this command? Then each is a rank, on the machine where it is. */
static int profile_launched(profile_job *j) {
    esp__where w;
    const esp_config cfg = ESP_ZERO;
    if (esp__env_where(&cfg, &w) || w.size < 2) return 0;
    j->as_rank = j->launched = 1;
    j->rank = w.rank;
    if (!w.rank && isatty(2)) j->terminal_fd = 2;
    return 1;
}

/* Checks, before anything is measured, that the output file can be written. */
static int profile_check_out(const profile_job *j, const char *path) {
    const int error = strcmp(path, "-") ? esp__file_check(path) : 0;
    return error ? tool_fail(j->command, "-o %s: cannot be written: %s", path, strerror(error)) : TOOL_OK;
}

/* Leaves out sizes that do not fit into half of the memory. `each`: bytes that a rank needs, for each element or
 * byte of a size. */
static int profile_fit_memory(profile_job *j, double each) {
    const double there = esp__machine_memory(), room = there > 0 ? there / 2 : 1e18;
    const uint32_t asked = j->n_sizes;
    while (j->n_sizes && (double)j->sizes[j->n_sizes - 1] * each * (double)j->n > room) j->n_sizes--;
    if (!j->n_sizes)
        return tool_fail(j->command, "no size of --sizes fits into this machine's memory (%s free, %ld ranks)",
                         tool_bytes(2 * room), j->n);
    if (j->n_sizes < asked)
        fprintf(stderr, "espresso %s: sizes above %llu are left out: %ld ranks have no memory for them\n",
                j->command->name, (unsigned long long)j->sizes[j->n_sizes - 1], j->n);
    return TOOL_OK;
}

/* The same in ranks that a launcher started, which know their machine now: what fits on all machines. */
static esp_status profile_fit_launched(profile_job *j, double each) {
    const int32_t n = j->ctx->job.size;
    double most, *all = tool_realloc(NULL, (size_t)n * sizeof *all);
    j->n = j->ctx->job.sharing;
    most = profile_fit_memory(j, each) == TOOL_OK ? j->n_sizes : 0;
    const esp_status s = esp__peers_allgather(j->ctx->job.peers, NULL, n, &most, all, sizeof *all);
    for (int32_t r = 0; r < n && !s; r++)
        if (all[r] < most) most = all[r];
    free(all);
    j->n_sizes = (uint32_t)most;
    if (!s && !j->n_sizes)
        return esp__fail(j->ctx, ESP_E_NOMEM, "no size of --sizes fits into the memory of all machines");
    return s;
}

/* ---- starting ranks ---------------------------------------------------------------------------------------------------------- */
/* Starts the ranks with the user's words, then `more` (which ends with NULL), which overrule the user's. Rank 0
 * returns the exit status as a byte in an unnamed file. */
static int profile_start(const profile_job *j, const char *what, int argc, char **argv, char *const *more) {
    char fds[32], said = -1;
    int n = 4, status;
    const int out = (int)syscall(SYS_memfd_create, "espresso-profile", 0u), tty = isatty(2) ? dup(2) : -1;
    char **words = tool_realloc(NULL, (size_t)(argc + 64) * sizeof *words);
    snprintf(fds, sizeof fds, "%d,%d", out, tty);
    words[0] = (char[]){"profile"};
    words[1] = strdup(what);
    words[2] = (char[]){"--as-rank"};
    words[3] = fds;
    for (int i = 0; i < argc; i++) words[n++] = argv[i];
    while (more && *more && n < argc + 63) words[n++] = *more++;
    words[n] = NULL;
    status = tool_ranks(j->command, j->n, j->machines, j->inter, words);
    if (status > TOOL_USAGE) status = TOOL_FAILED; /* a rank was killed: this is reported already */
    if (status == TOOL_OK) status = pread(out, &said, 1, 0) == 1 ? said : TOOL_FAILED;
    if (out >= 0) close(out);
    if (tty >= 0) close(tty);
    free(words[1]);
    free(words);
    return status;
}

/* ---- as a rank ----------------------------------------------------------------------------------------------------------------- */
/* A codec that costs next to nothing: the first that only rounds. NULL: there is none, and ops that compress stay unmeasured. */
static esp_status profile_rounding_codec(const char **name) {
    esp_ctx *ctx;
    int lossy;
    esp_status s = esp__open_alone(&ctx);
    *name = NULL;
    for (uint32_t i = 0; !s && i < ctx->registry.n_codecs && !*name; i++)
        if (esp__codec_opens(ctx, i, &lossy) > 0 && !lossy) *name = ctx->registry.codecs[i]->name; /* static storage */
    if (!s) esp_close(ctx);
    return s;
}

static esp_status profile_open(profile_job *j) {
    static const char *const unwanted[] = {"ESPRESSO_CODEC", "ESPRESSO_STRATEGY", "ESPRESSO_TRACE", "ESPRESSO_STATS",
                                           "ESPRESSO_PROFILE"};
    esp_config cfg = ESP_ZERO;
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++) unsetenv(unwanted[i]);
    if (j->backend) unsetenv("ESPRESSO_BACKEND");
    cfg.backend = j->backend;
    esp_status s = profile_rounding_codec(&cfg.codec); /* for the steps that measure what starting an op costs */
    if (s) return s;
    cfg.strategy = "fp32";
    if (!j->launched) j->rank = atoi(getenv("ESPRESSO_RANK"));
    if (j->terminal_fd >= 0 && j->rank == 0) dup2(j->terminal_fd, 2);
    s = esp_open(&cfg, &j->ctx);
    if (s) return s;
    j->survey = tool_realloc(NULL, sizeof *j->survey);
    memset(j->survey, 0, sizeof *j->survey);
    esp__cpu_name(j->device, 128);
    j->begun = esp__machine_time_now();
    j->begun_ns = esp__now_ns();
    return ESP_OK;
}

/* All ranks get rank 0's number. */
static esp_status profile_share(const profile_job *j, double *number) {
    double *all = tool_realloc(NULL, (size_t)j->ctx->job.size * sizeof *all);
    const esp_status s = esp__peers_allgather(j->ctx->job.peers, NULL, j->ctx->job.size, number, all, sizeof *number);
    if (!s) *number = all[0];
    free(all);
    return s;
}

/* Time left, the same on all ranks. */
static esp_status profile_left(const profile_job *j, double *ns) {
    *ns = j->budget_ns - (double)(esp__now_ns() - j->begun_ns);
    return profile_share(j, ns);
}

/* Shows a progress bar on the terminal that the command was started from. */
static void profile_say(const profile_job *j, double done, const char *what) {
    char bar[21];
    if (j->ctx->job.rank || j->terminal_fd < 0) return;
    for (int i = 0; i < 20; i++) bar[i] = done * 20 > i ? '#' : '.';
    bar[20] = 0;
    progress_say("%s [%s] %.0f%%", what, bar, done < 1 ? done * 100 : 100.0);
}

/* Finds what else the machine did during the measurement. Called by all ranks. */
static esp_status profile_noise(profile_job *j) {
    esp__machine_time now = esp__machine_time_now();
    const esp__machine_time *then = &j->begun;
    double own = 0, *all = tool_realloc(NULL, (size_t)j->ctx->job.size * sizeof *all);
    now.own -= then->own;
    const esp_status s = esp__peers_allgather(j->ctx->job.peers, NULL, j->ctx->job.size, &now.own, all, sizeof *all);
    for (int32_t r = 0; r < j->ctx->job.size && !s; r++) own += all[r];
    free(all);
    const double whole = now.all - then->all, busy = now.busy - then->busy;
    if (whole > 0) {
        j->others = busy > own ? (busy - own) / whole : 0;
        j->stolen = (now.stolen - then->stolen) / whole;
    }
    j->spread = j->survey->noise;
    j->noisy = j->others > PROFILE_NOISY_OTHERS || j->stolen > PROFILE_NOISY_STOLEN || j->spread > PROFILE_NOISY_SPREAD;
    return s;
}

/* Warns of noise, on stderr, so that a script that reads stdout does not meet it. */
static void profile_warn(const profile_job *j) {
    if (j->noisy)
        fprintf(stderr,
                "espresso %s: noisy: other programs took %.0f%% of the machine, %.1f%% of its time was stolen, runs "
                "spread by %.0f%% (median): measure again when the machine does nothing else\n",
                j->command->name, 100 * j->others, 100 * j->stolen, 100 * j->spread);
    if (j->n_done < j->n_sizes)
        fprintf(stderr, "espresso %s: --budget was used up: some of the sizes above %llu were not measured\n",
                j->command->name, (unsigned long long)j->sizes[j->n_done ? j->n_done - 1 : 0]);
}

static void profile_measured(const profile_job *j, esp__measured *m) {
    *m = (esp__measured){.ranks = (uint32_t)j->ctx->job.size,
                         .cores = j->survey->cores,
                         .spread = j->spread,
                         .has_spread = 1,
                         .noisy = j->noisy,
                         .device = *j->device ? j->device : NULL};
}

static void profile_json_head(const profile_job *j, tool_json *t) {
    json_number(t, "ranks", j->ctx->job.size);
    json_number(t, "machines", j->ctx->job.topo.n_machines);
    json_number(t, "cores", j->survey->cores);
    json_text(t, "device", j->device);
    json_text(t, "backend", j->ctx->job.backend->name);
    json_number(t, "spread", j->spread);
    json_number(t, "others", j->others);
    json_number(t, "stolen", j->stolen);
    json_bool(t, "noisy", j->noisy);
}

static void profile_json_curve(tool_json *t, const char *key, const esp__survey_curve *c) {
    json_open(t, key, '[');
    for (uint32_t i = 0; i < c->n; i++) {
        json_open(t, NULL, '{');
        json_number(t, "size", c->at[i].size);
        json_us(t, "us", c->at[i].ns);
        json_number(t, "spread", c->spread[i]);
        json_close(t, '}');
    }
    json_close(t, ']');
}

/* Ends a rank. Rank 0 gives the exit status to the command that started the ranks; a launcher gets each rank's. */
static int profile_end(profile_job *j, int status) {
    char said = (char)status;
    progress_done();
    if (j->rank == 0 && !j->launched) {
        const ssize_t wrote = pwrite(j->status_fd, &said, 1, 0);
        (void)wrote;
    }
    if (j->gpu) esp__survey_close(j->ctx, j->gpu);
    if (j->survey) esp__survey_close(j->ctx, j->survey);
    free(j->gpu);
    free(j->survey);
    esp_close(j->ctx);
    return j->launched ? status : TOOL_OK;
}
static int profile_fail(profile_job *j) {
    progress_done();
    if (j->rank == 0) tool_fail(j->command, "%s", esp_last_error(NULL));
    return profile_end(j, TOOL_FAILED);
}
