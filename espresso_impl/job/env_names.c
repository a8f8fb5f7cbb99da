/* env_names.c: lists every ESPRESSO_* variable that the sources read (tests/compile/test_env_names.sh checks this), and
 * warns of variables that look misspelt, since they would be ignored. */
#include "espresso_impl/job/job.h"
extern char **environ;

static const char *const esp__env_names[] = {
    /* read by the library; see docs/use/using.md and docs/use/launching.md */
    "ESPRESSO_BACKEND", "ESPRESSO_CODEC", "ESPRESSO_STRATEGY", "ESPRESSO_PLUGIN_PATH", "ESPRESSO_LOG", "ESPRESSO_TRACE",
    "ESPRESSO_PROFILE", "ESPRESSO_PROGRESS", "ESPRESSO_STATS", "ESPRESSO_TIMEOUT_MS", "ESPRESSO_WORKERS",
    "ESPRESSO_SIMD", "ESPRESSO_RANK", "ESPRESSO_SIZE", "ESPRESSO_MACHINE", "ESPRESSO_PLACE", "ESPRESSO_ROOT",
    "ESPRESSO_INTER_LINK", "ESPRESSO_OUTER_LINK", "ESPRESSO_OUTER", "ESPRESSO_TOKENS", "ESPRESSO_NCCL",
    "ESPRESSO_CUDA_SMS", "ESPRESSO_CUDA_PRIORITY", "ESPRESSO_MIN_COMPRESS_ELEMENTS", "ESPRESSO_OPTIMIZER",
    "ESPRESSO_STRAGGLER_MS", "ESPRESSO_MEMORY_MAX", "ESPRESSO_SECRET",
    /* read by the command espresso, or set by it for programs */
    "ESPRESSO_LOCAL_RANK", "ESPRESSO_LAUNCHER", "ESPRESSO_HOSTS", "ESPRESSO_MODELS",
    /* read by the preloaded MPI library and by the plugin for NCCL's profiler */
    "ESPRESSO_MPI_SUMS", "ESPRESSO_NCCL_TRACE"};

static const struct {
    const char *before, *now;
} esp__env_renamed[] = {{"RAW_UP_TO", "ESPRESSO_MIN_COMPRESS_ELEMENTS"}, {"STALL_MS", "ESPRESSO_STRAGGLER_MS"}};

/* Returns the known name that `name` is probably a misspelling of, or NULL. */
static const char *esp__env_suggestion(const char *name, size_t length) {
    static const char ours[] = "ESPRESSO";
    char head[ESP__NAME_MAX], tail[ESP__NAME_MAX];
    const char *meant = NULL, *dash = memchr(name, '_', length);
    unsigned best = 3, slip = 3;
    if (!dash || length >= sizeof head) return NULL;
    snprintf(head, sizeof head, "%.*s", (int)(dash - name), name);
    snprintf(tail, sizeof tail, "%.*s", (int)(length - (size_t)(dash - name) - 1), dash + 1);
    if (strcmp(head, ours) && !esp__suggests(head, ours, &slip)) return NULL;
    for (size_t i = 0; i < sizeof esp__env_renamed / sizeof *esp__env_renamed; i++)
        if (!strcmp(tail, esp__env_renamed[i].before)) return esp__env_renamed[i].now;
    for (size_t i = 0; i < sizeof esp__env_names / sizeof *esp__env_names; i++)
        if (esp__suggests(tail, esp__env_names[i] + sizeof ours, &best)) meant = esp__env_names[i];
    return meant;
}

static bool esp__env_known(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof esp__env_names / sizeof *esp__env_names; i++)
        if (strlen(esp__env_names[i]) == length && !memcmp(esp__env_names[i], name, length)) return true;
    return false;
}

/* Warns only of variables that look like misspelt names of the list, because scripts and plugins may have their own. */
ESP__FN void esp__env_check_names(const esp_ctx *ctx) {
    for (char **v = environ; v && *v; v++) {
        size_t length = strcspn(*v, "=");
        const char *meant = esp__env_known(*v, length) ? NULL : esp__env_suggestion(*v, length);
        if (meant)
            esp__log(ctx, ESP_LOG_WARN, "environment",
                     "%.*s is set, but no variable of that name is read: did you mean %s?", (int)length, *v, meant);
    }
}
