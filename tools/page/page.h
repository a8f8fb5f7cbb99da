/* page.h: writes a page with a plan's timeline, and a trace for Perfetto. */
#ifndef ESPRESSO_TOOLS_PAGE_H
#define ESPRESSO_TOOLS_PAGE_H
#include "espresso_impl/base/private.h"

/* A training step with one strategy, predicted or measured. */
typedef struct page_plan {
    const char *name;
    const esp_plan_model *model;
    const esp_plan_unit *units;
    const esp_plan_event *events;
    uint32_t n_units, n_events;
    esp_plan_report report;
    /* True for a measured step. Its ops keep cores and links busy until they end, and events that end at UINT64_MAX
     * did not occur. The time without compression (report.fp32_ns) is unknown: 0. */
    bool measured;
} page_plan;

/* Inputs of a plan, shown on the page. Texts may be NULL. If `machines` is 0, it is not shown. */
typedef struct page_info {
    const char *model, *codec, *system; /* codec: its name and parameters, or several joined by ", " */
    const char *command;
    const char *warning;                         /* for example that times are noisy, or NULL */
    uint32_t racks, machines, ranks_per_machine; /* machines in each rack, ranks in each machine */
    uint32_t cores_per_rank;
    uint32_t inner_steps; /* if the page is about a round of an outer loop, else 0 */
} page_info;

/* These write a complete file, and return 0, or -1 with errno. The page loads no other files. */
/* Draws `plan` and, on the same time scale above it, the step `above`, which may be NULL. */
ESP__FN int page_timeline(FILE *to, const page_plan *above, const page_plan *plan, const page_info *info);
/* Writes a trace for Chrome and Perfetto. Each plan becomes a process of the trace, and each core or link a thread. */
ESP__FN int page_trace(FILE *to, const page_plan *plans, uint32_t n_plans, const page_info *info);
/* Writes the name that an op has in a trace, such as "inter.allreduce". */
ESP__FN void page_trace_name(const page_plan *p, const esp_plan_event *e, char *out, size_t cap);

enum { PAGE_LANES = ESP_PLAN_LANES, PAGE_PROGRESS = ESP_PLAN_LANES - 1 };
extern const char *const page_lanes[ESP_PLAN_LANES];
ESP__FN void page_text(FILE *to, const char *text);
ESP__FN void page_key(FILE *to, const char *key, const char *text);
ESP__FN double page_finite(double x);
ESP__FN void page_info_json(FILE *to, const page_info *info);
ESP__FN uint64_t page_kept(const page_plan *p, const esp_plan_event *e, uint32_t lane);
ESP__FN int page_end(FILE *to);
#endif
