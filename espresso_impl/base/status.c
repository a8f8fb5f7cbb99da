/* status.c: names of status codes, the text of the last error, the log, the clock and a hash. */
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/limits.h"
#include <sys/resource.h>
#include <time.h>

static __thread char esp__error_text[ESP__ERROR_MAX];
static __thread const esp_ctx *esp__error_ctx;
static __thread char esp__detail_text[ESP__ERROR_MAX];
static __thread bool esp__quiet;
static __thread const esp_ctx *esp__logging; /* the context whose log callback this thread is in, or NULL */

#define ESP__STATUS_ROW(name, value, text) {value, #name, text},
static const struct {
    esp_status value;
    const char *name, *text;
} esp__statuses[] = {ESP_STATUS_LIST(ESP__STATUS_ROW)};

ESPRESSO_API const char *esp_status_name(esp_status s) {
    for (size_t i = 0; i < sizeof esp__statuses / sizeof *esp__statuses; i++)
        if (esp__statuses[i].value == s) return esp__statuses[i].name;
    return "unknown status";
}

ESPRESSO_API const char *esp_status_text(esp_status s) {
    for (size_t i = 0; i < sizeof esp__statuses / sizeof *esp__statuses; i++)
        if (esp__statuses[i].value == s) return esp__statuses[i].text;
    return "unknown status";
}

ESPRESSO_API uint32_t esp_abi_version(void) { return ESP_ABI_MAJOR << 16 | ESP_ABI_MINOR; }

ESPRESSO_API const char *esp_last_error(const esp_ctx *ctx) {
    /* an error without a context, such as that of esp_open, is returned for every context */
    return !ctx || !esp__error_ctx || esp__error_ctx == ctx ? esp__error_text : "";
}

static const char *const esp__level_words[] = {"", "error", "warn", "info", "debug"};

ESP__FN int32_t esp__log_level_read(const char *text) {
    for (int32_t i = ESP_LOG_ERROR; text && i <= ESP_LOG_DEBUG; i++)
        if (!strcmp(text, esp__level_words[i]) || (text[0] == '0' + i && !text[1])) return i;
    return 0;
}

/* The context's log level. Before esp_open has made a context, it is that of ESPRESSO_LOG. */
static int32_t esp__log_level(const esp_ctx *ctx) {
    const int32_t level = ctx ? esp__base_of(ctx)->log_level : esp__log_level_read(getenv("ESPRESSO_LOG"));
    return level > 0 ? level : ESP_LOG_WARN;
}

static bool esp__log_is_own(const esp_ctx *ctx) { return ctx && ESP_HAS(esp_host, esp__base_of(ctx)->user_host, log); }

ESP__FN bool esp__log_speaks(const esp_ctx *ctx) { return esp__log_is_own(ctx) || !ctx || !esp__base_of(ctx)->rank; }

/* Passes an event to the user's log, or writes it to stderr by one call, so that lines of several ranks do not mix. */
static void esp__log_event(const esp_ctx *ctx, const esp_log_event *ev) {
    char line[ESP__ERROR_MAX + 128];
    esp__held_signals held;
    int n = 0;
    if (ev->level < ESP_LOG_ERROR || ev->level > ESP_LOG_DEBUG || ev->level > esp__log_level(ctx)) return;
    if (esp__log_is_own(ctx)) {
        const esp_ctx *before = esp__logging;
        if (before == ctx) return; /* the callback has called a function that logs */
        esp__logging = ctx;
        esp__base_of(ctx)->user_host->log(esp__base_of(ctx)->user_host->user, ev);
        esp__logging = before;
        return;
    }
    if (ctx && esp__base_of(ctx)->size > 1)
        n = snprintf(line, sizeof line, "espresso: rank %d: ", (int)esp__base_of(ctx)->rank);
    else
        n = snprintf(line, sizeof line, "espresso: ");
    snprintf(line + n, sizeof line - (size_t)n - 1, "%s: %s%s%s", esp__level_words[ev->level],
             ev->component ? ev->component : "", ev->component ? ": " : "", ev->message ? ev->message : "");
    strcat(line, "\n");
    esp__signals_hold(&held);
    fputs(line, stderr);
    esp__signals_release(&held);
}

ESP__FN void esp__log(const esp_ctx *ctx, int32_t level, const char *component, const char *fmt, ...) {
    char text[ESP__ERROR_MAX];
    esp_log_event ev = {sizeof ev, level, ESP_OK, 0, component, text, NULL};
    va_list ap;
    if (level > esp__log_level(ctx)) return;
    va_start(ap, fmt);
    esp__format_list(text, sizeof text, fmt, ap);
    va_end(ap);
    esp__log_event(ctx, &ev);
}

ESP__FN void esp__say(const esp_ctx *ctx, const char *component, const char *fmt, ...) {
    char text[ESP__ERROR_MAX];
    const esp_log_event ev = {sizeof ev, ESP_LOG_INFO, ESP_OK, 0, component, text, NULL};
    va_list ap;
    if (esp__base_of(ctx)->rank || esp__log_level(ctx) < ESP_LOG_WARN) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (esp__log_is_own(ctx)) {
        esp__base_of(ctx)->user_host->log(esp__base_of(ctx)->user_host->user, &ev);
        return;
    }
    esp__held_signals held;
    esp__signals_hold(&held);
    fprintf(stderr, "espresso: %s: %s\n", component, text);
    esp__signals_release(&held);
}

ESP__FN esp_status esp__fail(const esp_ctx *ctx, esp_status s, const char *fmt, ...) {
    char text[ESP__ERROR_MAX]; /* the arguments may point into esp__error_text */
    struct rlimit most;
    size_t n;
    esp_log_event ev = {sizeof ev, ESP_LOG_INFO, s, 0, "error", NULL, NULL};
    va_list ap;
    if (esp__quiet && s != ESP_E_NOMEM) return s;
    va_start(ap, fmt);
    esp__format_list(text, sizeof text, fmt, ap);
    va_end(ap);
    n = strlen(text);
    if (s == ESP_E_NOMEM && getrlimit(RLIMIT_AS, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
        !strstr(text, "ulimit"))
        snprintf(text + n, sizeof text - n, " (this process may have %llu KiB: see ulimit -v)",
                 (unsigned long long)most.rlim_cur / 1024);
    memcpy(esp__error_text, text, sizeof text);
    esp__error_ctx = ctx;
    ev.component = esp_status_name(s);
    ev.message = text;
    esp__log_event(ctx, &ev);
    memcpy(esp__error_text, text, sizeof text); /* the log callback may have caused another error */
    esp__error_ctx = ctx;
    return s;
}

ESP__FN bool esp__in_log(const esp_ctx *ctx) { return ctx && esp__logging == ctx; }

ESP__FN void esp__errors_quiet(bool quiet) { esp__quiet = quiet; }

ESP__FN const char *esp__plugin_detail(void) { return esp__detail_text; }
ESP__FN const char *esp__plugin_why(esp_status s) { return *esp__detail_text ? esp__detail_text : esp_status_text(s); }
ESP__FN void esp__plugin_detail_clear(void) { esp__detail_text[0] = 0; }
ESP__FN void esp__plugin_detail_set(const char *text) {
    snprintf(esp__detail_text, sizeof esp__detail_text, "%s", text);
}

/* Passes a plugin's event to the log, and keeps an error's text for esp__plugin_detail. On stderr, errors appear only
 * at level INFO, since the caller's own error will contain the text. */
ESP__FN void esp__plugin_log(void *user, const esp_log_event *ev) {
    const esp_ctx *ctx = (const esp_ctx *)user;
    esp_log_event copy = {sizeof copy, 0, ESP_OK, 0, NULL, NULL, NULL};
    if (esp__quiet || !ev || ev->struct_size < offsetof(esp_log_event, message) + sizeof ev->message) return;
    memcpy(&copy, ev, ev->struct_size < sizeof copy ? ev->struct_size : sizeof copy);
    copy.struct_size = sizeof copy;
    if (copy.level == ESP_LOG_ERROR && copy.message) {
        char text[ESP__ERROR_MAX];
        snprintf(text, sizeof text, "%s", copy.message);
        memcpy(esp__detail_text, text, sizeof text);
        if (!esp__log_is_own(ctx)) copy.level = ESP_LOG_INFO;
    }
    esp__log_event(ctx, &copy);
}

ESP__FN uint64_t esp__now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

ESP__FN uint64_t esp__hash64(uint64_t h, const void *data, uint64_t bytes) {
    const unsigned char *p = (const unsigned char *)data;
    for (uint64_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 1099511628211ull;
    return h;
}

ESP__FN const char *esp__dtype_word(esp_dtype d) {
    static const char *const words[] = {"?", "f32", "f16", "bf16", "i8", "i16", "i32"};
    return words[d <= ESP_I32 ? d : 0];
}
