/* page.c: writes a page with a plan's timeline. The page's HTML, CSS and scripts are files in this folder; it
 * contains its data as JSON. */
#include "espresso_impl/base/json.h"
#include "tools/page/page.h"
#include "tools/page/page.inc"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Names of the cores and links of a timeline, each of which executes one op at a time: the trainer's computation,
 * processor cores that compress, links inside machines, between machines and between racks, and the thread that
 * waits for communication. */
const char *const page_lanes[ESP_PLAN_LANES] = {"compute", "cpu", "intra", "inter", "outer", "progress"};
/* ---- JSON inside <script>: escapes "<" and the like, so that no text can end the script --------------------- */
ESP__FN void page_text(FILE *to, const char *text) {
    char one[ESP__JSON_CHAR];
    fputc('"', to);
    for (const char *s = text ? text : ""; *s;) fwrite(one, 1, esp__json_char(&s, "\"\\<>&\n\x7f", one), to);
    fputc('"', to);
}

ESP__FN void page_key(FILE *to, const char *key, const char *text) {
    fprintf(to, "\"%s\":", key);
    page_text(to, text);
}

/* Returns 0 for an infinity or NaN, which JSON does not have. */
ESP__FN double page_finite(double x) { return isfinite(x) ? x : 0; }

static void page_lanes_json(FILE *to) {
    fputs(",\n\"lanes\":", to);
    for (uint32_t lane = 0; lane < PAGE_LANES; lane++) fputc(lane ? ',' : '[', to), page_text(to, page_lanes[lane]);
    fputc(']', to);
}

static void page_numbers(FILE *to, const char *key, const double *x, uint32_t n) {
    fprintf(to, "\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++) fprintf(to, "%s%.15g", i ? "," : "", page_finite(x[i]));
    fputs("]", to);
}

static void page_report(FILE *to, const esp_plan_report *r) {
    const struct {
        const char *key;
        double value;
    } times[] = {
        {"fp32_ns", r->fp32_ns},
        {"iteration_ns", r->iteration_ns},
        {"bound_ns", r->bound_ns},
        {"free_compression_ns", r->free_compression_ns},
        {"plan_ns", r->plan_ns},
        {"exposed_communication_ns", r->exposed_communication_ns},
        {"exposed_compression_ns", r->exposed_compression_ns},
    };
    fputc('{', to);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        fprintf(to, "\"%s\":%.15g,", times[i].key, page_finite(times[i].value));
    page_numbers(to, "lane_ns", r->lane_ns, PAGE_LANES), fputc(',', to);
    page_numbers(to, "bubble_ns", r->bubble_ns, PAGE_LANES);
    fputs(",\"level_bytes\":", to);
    for (int k = 0; k < ESP_LEVELS; k++) fprintf(to, "%c%" PRIu64, k ? ',' : '[', r->level_bytes[k]);
    fprintf(to,
            "],\"memory_bytes\":%" PRIu64 ",\"intra_bytes\":%" PRIu64 ",\"inter_bytes\":%" PRIu64
            ",\"n_tensors\":%u,\"n_units\":%u,\"compressed\":%u}",
            r->memory_bytes, r->intra_bytes, r->inter_bytes, r->n_tensors, r->n_units, r->compressed);
}

ESP__FN void page_info_json(FILE *to, const page_info *info) {
    static const page_info none;
    if (!info) info = &none;
    fputs("\"info\":{", to);
    page_key(to, "model", info->model), fputc(',', to);
    page_key(to, "codec", info->codec), fputc(',', to);
    page_key(to, "system", info->system), fputc(',', to);
    page_key(to, "command", info->command), fputc(',', to);
    page_key(to, "warning", info->warning);
    if (info->inner_steps) fprintf(to, ",\"inner\":%u", info->inner_steps);
    fprintf(to, ",\"racks\":%u,\"machines\":%u,\"ranks\":%u,\"cores\":%u}", info->racks, info->machines,
            info->ranks_per_machine, info->cores_per_rank);
}

/* ---- the pages' data --------------------------------------------------------------------------------------------- */
typedef struct page_content {
    const page_plan *plans[2];
    uint32_t n_plans;
    const page_info *info;
} page_content;

/* Returns how long an op keeps core or link `lane` busy, in ns. */
ESP__FN uint64_t page_kept(const page_plan *p, const esp_plan_event *e, uint32_t lane) {
    if (p->measured) return e->end_ns - e->start_ns;
    return lane < 2 || lane == PAGE_PROGRESS ? e->core_ns : e->link_ns;
}

static void page_plan_json(FILE *to, const page_plan *p) {
    fputs("\n{", to);
    page_key(to, "name", p->name);
    fputs(",\"report\":", to);
    page_report(to, &p->report);
    fputs(",\n\"units\":[", to);
    for (uint32_t i = 0; i < p->n_units; i++) {
        const esp_plan_unit *u = &p->units[i];
        fprintf(to, "%s[%u,%u,%" PRIu64 ",%" PRIu64 ",", i ? ",\n" : "", u->first, u->n_tensors, u->begin, u->elements);
        page_text(to, u->codec), fputc(',', to);
        page_text(to, u->option), fputc(']', to);
    }
    fputs("],\n\"events\":[", to);
    for (uint32_t i = 0; i < p->n_events; i++) {
        const esp_plan_event *e = &p->events[i];
        fprintf(to, "%s%u,%u,%u,%u,%" PRIu64 ",", i ? ",\n" : "", e->unit, e->step, e->kind, e->lanes, e->bytes);
        if (e->end_ns != UINT64_MAX)
            fprintf(to, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, e->start_ns, e->end_ns - e->start_ns,
                    page_kept(p, e, 0), page_kept(p, e, 2));
        else
            fputs("-1,0,0,0", to);
    }
    fputs("]}", to);
}

static void page_model_json(FILE *to, const esp_plan_model *m) {
    fprintf(to, ",\n\"model\":{\"forward\":%.0f,\"update\":%.0f,\"tensors\":[", page_finite(m->forward_ns),
            page_finite(m->update_ns));
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        fputs(i ? ",\n[" : "[", to);
        page_text(to, m->tensors[i].name);
        fprintf(to, ",%" PRIu64 "]", m->tensors[i].elements);
    }
    fputs("]}", to);
}

static void page_timeline_json(FILE *to, const page_content *c) {
    page_model_json(to, c->plans[c->n_plans - 1]->model);
    fputs(",\n\"plans\":[", to);
    for (uint32_t i = 0; i < c->n_plans; i++) {
        if (i) fputc(',', to);
        page_plan_json(to, c->plans[i]);
    }
    fputc(']', to);
}

/* ---- a page is its HTML file, in which this inserts the included files and the data ------------------------- */
static void page_put(FILE *to, const char *name, const page_content *content) {
    const char *const *line = NULL;
    for (size_t i = 0; i < sizeof page_files / sizeof *page_files; i++)
        if (strcmp(page_files[i].name, name) == 0) line = page_files[i].lines;
    for (; line && *line; line++) {
        if (strncmp(*line, "@include ", 9) == 0) {
            page_put(to, *line + 9, content);
        } else if (strcmp(*line, "@data") == 0) {
            fputc('{', to);
            page_info_json(to, content->info);
            page_lanes_json(to);
            page_timeline_json(to, content);
            fputs("}\n", to);
        } else {
            fputs(*line, to);
            fputc('\n', to);
        }
    }
}

ESP__FN int page_end(FILE *to) { return fflush(to) != 0 || ferror(to) ? -1 : 0; }

ESP__FN int page_timeline(FILE *to, const page_plan *above, const page_plan *plan, const page_info *info) {
    page_content c = {.plans = {above ? above : plan, plan}, .n_plans = above ? 2 : 1, .info = info};
    page_put(to, "timeline.html", &c);
    return page_end(to);
}
