/* trace.c: tells what a file is, and reads traces of torch.profiler (Kineto's JSON), as export_chrome_trace writes
 * them.
 */
#include "tools/advise/advise.h"

static const json_t *advise_arg(const advise_span *s, const char *key) { return json_object_get(s->args, key); }

/* Adds an event to those of one kind. */
ESP__FN void advise_add(advise_trace *t, int kind, advise_span span) {
    advise_spans *s = &t->of[kind];
    if (s->n == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        s->at = tool_realloc(s->at, s->room * sizeof *s->at);
    }
    s->at[s->n++] = span;
}

/* Returns the kind of an event, or ADVISE_KINDS if it is of no interest. */
static int advise_kind(const char *name, const char *category, const advise_span *s) {
    static const struct {
        const char *name;
        int kind;
    } exact[] = {{"DistributedDataParallel.forward", ADVISE_FORWARD},
                 {"torch::autograd::AccumulateGrad", ADVISE_GRAD},
                 {"c10d::allreduce_", ADVISE_BUCKET},
                 {"gloo:all_reduce", ADVISE_REDUCE},
                 {"aten::copy_", ADVISE_COPY},
                 {"aten::mul_", ADVISE_SCALING},
                 {"aten::_foreach_mul_", ADVISE_SCALING},
                 {"aten::_fused_sgd_", ADVISE_SCALING}};
    if (strcmp(category, "kernel") == 0) {
        const char *collective = json_string_value(advise_arg(s, "Collective name"));
        if (collective && strstr(collective, "allreduce")) return ADVISE_REDUCE;
        return collective || strncmp(name, "nccl", 4) == 0 ? ADVISE_KINDS : ADVISE_KERNEL;
    }
    if (strcmp(category, "cuda_runtime") == 0 || strcmp(category, "cuda_driver") == 0) return ADVISE_LAUNCH;
    if (strncmp(name, "autograd::engine::evaluate_function", 35) == 0) return ADVISE_BACKWARD;
    if (strncmp(name, "Optimizer.step#", 15) == 0) return ADVISE_UPDATE;
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (strcmp(name, exact[i].name) == 0) return exact[i].kind;
    return ADVISE_KINDS;
}

/* Returns an object's text, or "" if it has none. */
ESP__FN const char *advise_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Sorts the events of a trace by kind. Returns how many have a duration. */
static size_t advise_sort_events(advise_trace *t, const json_t *events) {
    const size_t end = json_array_size(events);
    size_t n = 0;
    for (size_t i = 0; i < end; i++) {
        const json_t *e = json_array_get(events, i);
        if (strcmp(advise_text(e, "ph"), "X") != 0) continue;
        const char *name = advise_text(e, "name");
        const double begin = json_number_value(json_object_get(e, "ts"));
        const advise_span s = {begin, begin + json_number_value(json_object_get(e, "dur")), json_object_get(e, "args")};
        const int kind = advise_kind(name, advise_text(e, "cat"), &s);
        n++;
        if (kind == ADVISE_KINDS) continue;
        advise_add(t, kind, s);
        if (kind == ADVISE_UPDATE)
            snprintf(t->optimizer, sizeof t->optimizer, "%.*s", (int)strcspn(name + 15, "."), name + 15);
    }
    return n;
}

ESP__FN int advise_ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static json_int_t advise_correlation(const advise_span *s) { return json_integer_value(advise_arg(s, "correlation")); }
static int advise_by_correlation(const void *a, const void *b) {
    const json_int_t x = advise_correlation(a), y = advise_correlation(b);
    return (x > y) - (x < y);
}

/* Lets each kernel begin when it was launched, and drops kernels whose launch is not in the trace. Then sets the end
 * of each kernel to the latest end of all that were launched up to it. */
static void advise_order_kernels(advise_trace *t) {
    advise_spans *launches = &t->of[ADVISE_LAUNCH], *kernels = &t->of[ADVISE_KERNEL];
    size_t n = 0;
    if (!kernels->n) return;
    if (launches->n) qsort(launches->at, launches->n, sizeof *launches->at, advise_by_correlation);
    for (size_t i = 0; i < kernels->n; i++) {
        const advise_span *launch = launches->n ? bsearch(&kernels->at[i], launches->at, launches->n,
                                                          sizeof *launches->at, advise_by_correlation)
                                                : NULL;
        if (!launch) continue;
        kernels->at[n] = kernels->at[i];
        kernels->at[n++].begin = launch->begin;
    }
    kernels->n = n;
    qsort(kernels->at, n, sizeof *kernels->at, advise_ascending);
    for (size_t i = 1; i < n; i++)
        if (kernels->at[i].end < kernels->at[i - 1].end) kernels->at[i].end = kernels->at[i - 1].end;
}

/* Returns the number of elements of an event's only tensor, and its sizes. Returns 0 if the trace has none. */
ESP__FN double advise_elements(const advise_span *s, const json_t **dims) {
    const json_t *d = json_array_get(advise_arg(s, "Input Dims"), 0);
    while (json_is_array(json_array_get(d, 0))) d = json_array_get(d, 0); /* a list of one tensor */
    if (dims) *dims = d;
    if (!json_is_array(d)) return json_number_value(advise_arg(s, "In msg nelems"));
    double n = 1;
    for (size_t i = 0; i < json_array_size(d); i++) n *= json_number_value(json_array_get(d, i));
    return n;
}

static void advise_header(advise_trace *t) {
    const json_t *job = json_object_get(t->root, "distributedInfo");
    const json_t *gpu = json_array_get(json_object_get(t->root, "deviceProperties"), 0);
    t->host = json_string_value(json_object_get(t->root, "host_name"));
    t->backend = json_string_value(json_object_get(job, "backend"));
    t->gpu = json_string_value(json_object_get(gpu, "name"));
    t->rank = (uint32_t)json_integer_value(json_object_get(job, "rank"));
    t->world = (uint32_t)json_integer_value(json_object_get(job, "world_size"));
}

/* Parses a file, and reads it if it is NCCL's, whose first line tells. Returns TOOL_OK, or the exit status after it has
 * printed an error. */
static int advise_parse(const tool_command *c, advise_trace *t) {
    char *text = NULL;
    size_t len = 0;
    json_error_t e;
    int status = TOOL_OK;
    if (files_input_load(t->path, &text, &len) != ESP_OK) {
        status = tool_fail(c, "%s", esp_last_error(NULL));
    } else if (!len) {
        status = tool_fail(c, "%s: it is empty: the job must live until it is written", t->path);
    } else if (len > 1 && (unsigned char)text[0] == 0x1f && (unsigned char)text[1] == 0x8b) {
        status = tool_fail(c, "%s: it is compressed: run gunzip first", t->path);
    } else if (!(t->root = json_loadb(text, len, JSON_DISABLE_EOF_CHECK, &e))) {
        const char first = text[strspn(text, " \t\r\n")];
        const bool cut = (first == '{' || first == '[') &&
                         (json_error_code(&e) == json_error_premature_end_of_input || e.position >= (int)len);
        status = tool_fail(c, "%s:%d: %s", t->path, e.line > 0 ? e.line : 1,
                           cut ? "the file ends in the middle: the job must live until export_chrome_trace returns"
                               : "this is not JSON: expected a file of torch.profiler's export_chrome_trace");
    } else {
        t->kind = json_object_get(t->root, "header") ? ADVISE_INSPECTOR
                  : json_object_get(t->root, "func") ? ADVISE_NCCL
                                                     : ADVISE_TORCH;
        if (t->kind) status = advise_nccl(c, text, len, t);
    }
    free(text);
    return status;
}

/* Says what the trace lacks, and what to do. Returns NULL if it lacks nothing. */
static const char *advise_lacks(const advise_trace *t, size_t n) {
    if (!n) return "it has no events: with a profiler schedule, call export_chrome_trace in on_trace_ready";
    if (!t->of[ADVISE_GRAD].n) return "it has no gradients (AccumulateGrad): record whole training steps";
    if (advise_elements(&t->of[ADVISE_GRAD].at[0], NULL) < 1)
        return "it has no sizes of tensors: record it with profile(record_shapes=True), by a torch built with Kineto";
    if (!t->of[ADVISE_FORWARD].n) return "it has no DistributedDataParallel.forward: only DDP's traces can be read";
    if (!t->of[ADVISE_UPDATE].n) return "it has no Optimizer.step: record whole training steps";
    return NULL;
}

ESP__FN int advise_read(const tool_command *c, const char *path, advise_trace *out) {
    *out = (advise_trace){.path = path};
    const int status = advise_parse(c, out);
    if (status != TOOL_OK || out->kind) return status;
    const json_t *events = json_is_array(out->root) ? out->root : json_object_get(out->root, "traceEvents");
    if (!json_is_array(events))
        return tool_fail(
            c,
            "%s: it has no \"traceEvents\": expected a file of torch.profiler's export_chrome_trace, or of a "
            "profiler plugin of NCCL",
            path);
    advise_header(out);
    const size_t n = advise_sort_events(out, events);
    const char *why = advise_lacks(out, n);
    if (why) return tool_fail(c, "%s: %s", path, why);
    for (int k = 0; k < ADVISE_LAUNCH; k++)
        if (out->of[k].n) qsort(out->of[k].at, out->of[k].n, sizeof *out->of[k].at, advise_ascending);
    advise_order_kernels(out);
    return advise_steps(c, out);
}

ESP__FN void advise_free(advise_trace *t) {
    for (int k = 0; k < ADVISE_KINDS; k++) free(t->of[k].at);
    free(t->grad);
    free(t->bucket);
    free(t->bursts);
    json_decref(t->root);
}
