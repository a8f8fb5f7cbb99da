/* machine.c: the machine's cores and memory, and which processes used its time during the run. Must not know what is
 * run. */
#include "espresso_impl/base/machine.h"
#include "tools/replay/replay.h"

/* Checks, before anything is started, that memory is enough for gradients, their source, feedback and payloads of all
 * ranks. */
static int replay_memory_fits(const replay_run *r) {
    double elements = 0;
    for (uint32_t t = 0; t < r->in.model.n_tensors; t++) elements += (double)r->in.model.tensors[t].elements;
    const double need = (double)r->n * elements * 4 * 6, there = esp__machine_memory();
    if (there <= 0 || need < 0.8 * there) return TOOL_OK;
    return tool_fail(r->in.command,
                     "%ld ranks with %s elements each need about %s of memory, and %s are free: use a smaller "
                     "--elements-scale (it is %.3g)",
                     r->n, tool_count(elements), tool_bytes(need), tool_bytes(there), r->elements_scale);
}

/* The machine's CPU times now, with the sum over all ranks as its own time. */
static esp_status replay_cpu_now(const replay_run *r, esp__machine_time *out) {
    double all[RUN_RANKS_MAX > 1024 ? 1024 : RUN_RANKS_MAX];
    *out = esp__machine_time_now();
    const esp_status s =
        esp__peers_allgather(r->ctx->job.peers, NULL, r->ctx->job.size, &out->own, all, sizeof out->own);
    out->own = 0;
    for (int32_t k = 0; !s && k < r->ctx->job.size; k++) out->own += all[k];
    return s;
}

static double replay_stolen(const esp__machine_time *from, const esp__machine_time *to) {
    const double all = to->all - from->all;
    double others = to->busy - from->busy - (to->own - from->own);
    if (!(all > 0)) return 0;
    if (others < 0) others = 0;
    return (others + to->stolen - from->stolen) / all;
}

/* Shows the progress on the terminal that the command was started from. Shows nothing without a terminal. */
static void replay_say(const replay_run *r, const char *fmt, ...) {
    char text[200];
    va_list ap;
    if (r->progress_fd < 0 || (r->ctx && r->ctx->job.rank)) return;
    va_start(ap, fmt);
    const int head = snprintf(text, sizeof text, "\r\033[K"), n = vsnprintf(text + head, sizeof text - 8, fmt, ap);
    va_end(ap);
    const ssize_t wrote = write(r->progress_fd, text, n < 0 ? 0 : strlen(text));
    (void)wrote; /* an error is ignored: the terminal may be gone */
}
