/* codec.c: lists the checks of a codec, and checks that opening and closing it keep the rules in plugins/abi.h. Must
 * not know any codec by name. */
#include "tools/check/check.h"

static void check_open_refuses(const esp__codec *c, const char *params, const char *why) {
    void *self = NULL;
    esp__plugin_detail_clear();
    check_doing("opening with the parameters '%s'", params);
    if (c->table->open(check_ctx_host, params, &self) == ESP_OK)
        check_fail("open() took the %s parameters '%s': return ESP_E_ARG, so that a misspelt one is noticed", why,
                   params);
    if (!*esp__plugin_detail()) check_fail("open() refused '%s', but logged no reason with ESP_LOG_ERROR", params);
}

static void check_params_run(void *target) {
    const esp__codec *c = target;
    const char *own = c->table->params;
    void *self = NULL;
    check_open_refuses(c, "no_such_parameter=1", "unknown");
    if (!strstr(esp__plugin_detail(), "no_such_parameter"))
        check_fail("open() refused no_such_parameter=1, but its message does not name it: %s", esp__plugin_detail());
    check_open_refuses(c, "=1", "malformed");
    check_open_refuses(c, "word", "malformed");
    check_open_refuses(c, "a=(", "malformed");
    if (!own || strstr(own, "SPEC")) return; /* a codec around another one has SPEC here, which is no default */
    esp__plugin_detail_clear();
    if (c->table->open(check_ctx_host, own, &self) != ESP_OK)
        check_fail("open() refuses '%s', which the table's params give as its defaults: %s", own, esp__plugin_detail());
    c->table->close(self);
}

static int64_t check_live;
static esp_host check_real;
static void *check_count_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    void *p = check_real.alloc(user, d, bytes, align);
    check_live += p != NULL;
    return p;
}
static void check_count_free(void *user, esp_device d, void *p, uint64_t bytes) {
    check_live -= p != NULL;
    check_real.free_(user, d, p, bytes);
}
static void *check_no_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    return (void)user, (void)d, (void)bytes, (void)align, NULL;
}

static void check_memory_run(void *target) {
    const esp__codec *c = target;
    const char *colon = strchr(c->spec, ':'), *params = colon ? colon + 1 : "";
    esp_host *host = (esp_host *)(uintptr_t)check_ctx_host;
    void *self = NULL;
    if (strstr(params, "feedback=")) check_skip("feedback= is the library's: check the codec without it");
    check_real = *host;
    host->alloc = check_count_alloc, host->free_ = check_count_free;
    if (c->table->open(host, params, &self) != ESP_OK) check_fail("open() failed the second time");
    c->table->close(self);
    if (check_live) check_fail("close() leaves %d of the allocations of open()", (int)check_live);
    host->alloc = check_no_alloc;
    check_doing("opening without memory");
    const esp_status s = c->table->open(host, params, &self);
    if (s == ESP_OK)
        c->table->close(self);
    else if (s != ESP_E_NOMEM)
        check_fail("host->alloc gave no memory, and open() returned %d, not ESP_E_NOMEM", (int)s);
    if (check_live) check_fail("open() without memory leaves %d allocations", (int)check_live);
    *host = check_real;
}

static const check check_codec_list[] = {
    {"parameters", "open refuses unknown and malformed parameters, and logs why", check_params_run},
    {"memory", "close frees what open took; ESP_E_NOMEM where there is none", check_memory_run},
    {"bound", "never falls as count rises; respects the caller's struct_size", check_bound_run},
    {"inputs", "all sizes and difficult inputs: decoded + residual is what went in", check_inputs_run},
    {"steps", "over 20 steps nothing is lost, not even by a step with NaN", check_steps_run},
    {"small", "a short buffer gives ESP_E_TOO_SMALL and nothing is written", check_small_run},
    {"many", "many payloads in one call, SET and SUM, scaled, empty ones", check_many_run},
    {"corrupt", "damaged payloads give ESP_E_CORRUPT, and nothing is written out of bounds", check_corrupt_run},
    {"one of many", "one damaged payload among several: nothing is written", check_among_run},
    {"same", "the same input gives the same bytes, however the work is divided", check_same_run},
    {"seed", "ESP_CODEC_DETERMINISTIC: the seed changes nothing", check_seed_run},
    {"lists", "ESP_CODEC_LISTS: several parts in one call are as each part alone", check_lists_run},
    {"threads", "two tensors at the same time", check_threads_run},
    {"reduce", "reduced bodies decode to the sum", check_reduce_run},
    {"model", "sizes as they are, times that rise", check_model_run},
    {"error", "the error that model() states", check_error_run},
    {"lossy", "a codec that is not lossy only rounds, and a lossy one does more", check_lossy_run},
};

ESP__FN void check_codec(esp_ctx *ctx, const esp__codec *c, check_report *r) {
    check_ctx_host = &ctx->host;
    check_all(r, check_codec_list, sizeof check_codec_list / sizeof *check_codec_list, (void *)(uintptr_t)c);
}
