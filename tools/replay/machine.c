/* machine.c: what the machine has: cores, memory, and to whom it gave its time during the run. Must not know what is run. */
#include "tools/replay/replay.h"
#include <sys/resource.h>

static uint32_t replay_cores(void) {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* Bytes that can be had without swapping; 0: not known. */
static double replay_memory_there(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu", &kib) != 1) {
    }
    if (f) fclose(f);
    return (double)kib * 1024;
}

/* Before anything is started: gradients, their source, feedback and payloads of all ranks. */
static int replay_memory_fits(const replay_run *r) {
    double elements = 0;
    for (uint32_t t = 0; t < r->in.model.n_tensors; t++) elements += (double)r->in.model.tensors[t].elements;
    const double need = (double)r->n * elements * 4 * 6, there = replay_memory_there();
    if (there <= 0 || need < 0.8 * there) return TOOL_OK;
    return tool_fail(r->in.command,
                     "%ld ranks with %s elements each need about %s of memory, and %s are free: use a smaller "
                     "--elements-scale (it is %.3g)",
                     r->n, tool_count(elements), tool_bytes(need), tool_bytes(there), r->elements_scale);
}

/* All ranks together: what they used, and what the machine did meanwhile. */
static esp_status replay_cpu_now(const replay_run *r, replay_cpu_time *out) {
    struct rusage u;
    double own, all[RUN_RANKS_MAX > 1024 ? 1024 : RUN_RANKS_MAX];
    unsigned long long v[8] = {0};
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    memset(out, 0, sizeof *out);
    getrusage(RUSAGE_SELF, &u);
    own = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    const esp_status s = esp__peers_allgather(r->ctx->job.peers, NULL, r->ctx->job.size, &own, all, sizeof own);
    for (int32_t k = 0; !s && k < r->ctx->job.size; k++) out->own += all[k];
    FILE *f = fopen("/proc/stat", "r");
    /* user nice system idle iowait irq softirq steal */
    if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6],
                    &v[7]) == 8) {
        out->busy = tick * (double)(v[0] + v[1] + v[2] + v[5] + v[6]);
        out->stolen = tick * (double)v[7];
        out->all = out->busy + out->stolen + tick * (double)(v[3] + v[4]);
    }
    if (f) fclose(f);
    return s;
}

static double replay_stolen(const replay_cpu_time *from, const replay_cpu_time *to) {
    const double all = to->all - from->all;
    double others = to->busy - from->busy - (to->own - from->own);
    if (!(all > 0)) return 0;
    if (others < 0) others = 0;
    return (others + to->stolen - from->stolen) / all;
}

/* What is being done, on the terminal that the command was started from; nothing where it was none. */
static void replay_say(const replay_run *r, const char *fmt, ...) {
    char text[200];
    va_list ap;
    if (r->progress_fd < 0 || (r->ctx && r->ctx->job.rank)) return;
    va_start(ap, fmt);
    const int head = snprintf(text, sizeof text, "\r\033[K"), n = vsnprintf(text + head, sizeof text - 8, fmt, ap);
    va_end(ap);
    const ssize_t wrote = write(r->progress_fd, text, n < 0 ? 0 : strlen(text));
    (void)wrote; /* nobody may look */
}
