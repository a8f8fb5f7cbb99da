/* timeline_trace.c: writes timelines as JSON for the trace viewers of Chrome and Perfetto, in the form in which the
 * library records real steps. */
#include "tools/page/page.h"
#include <inttypes.h>
#include <math.h>

enum { PAGE_STEP_MAX = 64 };

/* Copies step `k` of an option, a text such as "intra.reduce_scatter > comp@cpu > inter.allgather". */
static void page_step(const char *option, uint32_t k, char *out, size_t cap) {
    const char *at = option ? option : "", *end;
    for (; k > 0 && (end = strstr(at, " > ")); k--) at = end + 3;
    end = strstr(at, " > ");
    snprintf(out, cap, "%.*s", k ? 0 : (int)(end ? end - at : (ptrdiff_t)strlen(at)), at);
}

ESP__FN void page_trace_name(const page_plan *p, const esp_plan_event *e, char *out, size_t cap) {
    static const char *const kinds[] = {"backward", "collective", "comp", "decomp", "copy", "pack"};
    const char *kind = e->kind < sizeof kinds / sizeof *kinds ? kinds[e->kind] : "op";
    int in_option = e->kind == ESP_PLAN_COLLECTIVE || e->kind == ESP_PLAN_COMPRESS || e->kind == ESP_PLAN_DECOMPRESS;
    out[0] = 0;
    if (in_option && e->unit < p->n_units) page_step(p->units[e->unit].option, e->step, out, cap);
    if (!out[0]) snprintf(out, cap, "%s", kind);
}

/* Writes an event for each core and link that the op keeps busy, in microseconds since the forward pass began. */
static void page_trace_event(FILE *to, const page_plan *p, uint32_t pid, const esp_plan_event *e) {
    char name[PAGE_STEP_MAX];
    double start = ((double)e->start_ns + page_finite(p->model->forward_ns)) / 1e3;
    const esp_plan_unit *u = e->kind != ESP_PLAN_BACKWARD && e->unit < p->n_units ? &p->units[e->unit] : NULL;
    uint32_t tensor = u ? u->first : e->unit;
    page_trace_name(p, e, name, sizeof name);
    for (uint32_t lane = 0; lane < PAGE_LANES; lane++) {
        const uint64_t kept = page_kept(p, e, lane), whole = e->end_ns - e->start_ns;
        if (!(e->lanes >> lane & 1) || (!kept && whole)) continue;
        fputs(",\n{\"ph\":\"X\",", to);
        page_key(to, "name", name);
        fprintf(to, ",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"args\":{", pid, lane, start, (double)kept / 1e3);
        page_key(to, "tensor", tensor < p->model->n_tensors ? p->model->tensors[tensor].name : "");
        if (u) {
            fprintf(to, ",\"unit\":%u,\"tensors\":%u,\"elements\":%" PRIu64 ",", e->unit, u->n_tensors, u->elements);
            page_key(to, "codec", u->codec), fputc(',', to);
            page_key(to, "option", u->option);
            fprintf(to, ",\"step\":%u", e->step);
        }
        if (kept < whole) fprintf(to, ",\"takes_us\":%.3f", (double)whole / 1e3);
        fprintf(to, ",\"bytes\":%" PRIu64 "}}", e->bytes);
    }
}

static void page_trace_block(FILE *to, const char *name, uint32_t pid, double start_ns, double ns) {
    if (ns > 0)
        fprintf(to, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%u,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,\"args\":{}}", name,
                pid, start_ns / 1e3, ns / 1e3);
}

/* Returns a bit for each row of the trace: computation, compression, both links, and others that the plan uses. */
static uint32_t page_trace_lanes(const page_plan *p) {
    uint32_t lanes = 15;
    for (uint32_t i = 0; i < p->n_events; i++) lanes |= p->events[i].lanes;
    return lanes;
}

static void page_trace_plan(FILE *to, const page_plan *p, uint32_t pid) {
    double forward = page_finite(p->model->forward_ns), end = 0;
    fprintf(to, "%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{", pid > 1 ? "," : "", pid);
    page_key(to, "name", p->name);
    fprintf(to, "}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%u,\"args\":{\"sort_index\":%u}}", pid,
            pid);
    for (uint32_t lane = 0; lane < PAGE_LANES; lane++)
        if (page_trace_lanes(p) >> lane & 1)
            fprintf(
                to,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"%s\"}}"
                ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%u,\"tid\":%u,\"args\":{\"sort_index\":%u}}",
                /* sort_index: viewers show the row "progress" above the links */
                pid, lane, page_lanes[lane], pid, lane,
                lane == PAGE_PROGRESS ? 2
                : lane < 2            ? lane
                                      : lane + 1);
    page_trace_block(to, "forward", pid, 0, forward);
    for (uint32_t i = 0; i < p->n_events; i++) {
        page_trace_event(to, p, pid, &p->events[i]);
        end = fmax(end, (double)p->events[i].end_ns);
    }
    page_trace_block(to, "update", pid, forward + end, page_finite(p->model->update_ns));
}

ESP__FN int page_trace(FILE *to, const page_plan *plans, uint32_t n_plans, const page_info *info) {
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":{", to);
    page_info_json(to, info);
    fputs("},\"traceEvents\":[", to);
    for (uint32_t i = 0; i < n_plans; i++) page_trace_plan(to, &plans[i], i + 1);
    fputs("\n]}\n", to);
    return page_end(to);
}
