/* page.h: shows plans: a page with a timeline, a page that compares strategies, and a trace for Perfetto. Takes the
 * planner's public structs. Must not know how a plan is made, nor where files go. */
#ifndef ESPRESSO_TOOLS_PAGE_H
#define ESPRESSO_TOOLS_PAGE_H
#include "espresso_impl/base/private.h"

/* One strategy's step, from esp_plan_events, esp_plan_units and esp_plan_report_read; or the same ops as they were measured. */
typedef struct page_plan {
    const char *name; /* of the strategy: "fp32", "espresso+" */
    const esp_plan_model *model;
    const esp_plan_unit *units;
    const esp_plan_event *events;
    uint32_t n_units, n_events;
    esp_plan_report report;
    int measured; /* 1: an op keeps its lanes to its end, and was not measured if that is UINT64_MAX; report.fp32_ns is 0 */
} page_plan;

/* The inputs of a plan. Any text may be NULL; 0 machines are not shown. */
typedef struct page_info {
    const char *model, *codec, *system;          /* codec: one spec, or several joined with ", " */
    const char *command;                         /* command line that makes this page again      */
    const char *warning;                         /* such as that times were measured on a busy machine */
    uint32_t racks, machines, ranks_per_machine; /* racks 0: not shown; machines: of one rack */
    uint32_t cores_per_rank;                     /* as in esp_plan_system: how many lanes are cores of the host */
} page_info;

/* One row of a comparison. */
typedef struct page_row {
    const char *name;    /* "hipress"                                          */
    const char *summary; /* one line on what the strategy does, or NULL        */
    const char *source;  /* where the strategy is described, or NULL           */
    int ours;            /* 1: drawn with emphasis                             */
    esp_plan_report report;
} page_row;

/* Lines across a comparison, in ns; 0: none. */
typedef struct page_bounds {
    double bound_ns, bound_any_ns, free_compression_ns;
} page_bounds;

/* Each function writes one complete file and returns 0, or -1 with errno where the stream has an error. The pages are
 * HTML that needs nothing else: no network, no fonts, no other file. */
/* The step as lanes over time: fp32 (may be NULL), or the step as predicted, above the plan for the same model, on one time scale. */
ESP__FN int page_timeline(FILE *to, const page_plan *above, const page_plan *plan, const page_info *info);
/* A bar for each row, in the given order. `base_ns`: time of the model's forward, backward and update; 0: unknown. */
ESP__FN int page_compare(FILE *to, const page_row *rows, uint32_t n_rows, double base_ns, const page_bounds *bounds,
                         const page_info *info);
/* Chrome/Perfetto trace JSON: a process for each plan, a thread for each lane. */
ESP__FN int page_trace(FILE *to, const page_plan *plans, uint32_t n_plans, const page_info *info);
/* An op's name in a trace: "inter.allreduce". */
ESP__FN void page_trace_name(const page_plan *p, const esp_plan_event *e, char *out, size_t cap);

/* page.c, for trace.c; lanes of the jobs with most levels: pages show those that a plan uses */
enum { PAGE_LANES = ESP_PLAN_LANES, PAGE_PROGRESS = ESP_PLAN_LANES - 1 };
extern const char *const page_lanes[ESP_PLAN_LANES];
ESP__FN void page_text(FILE *to, const char *text);
ESP__FN void page_key(FILE *to, const char *key, const char *text);
ESP__FN double page_finite(double x);
ESP__FN void page_info_json(FILE *to, const page_info *info);
ESP__FN uint64_t page_kept(const page_plan *p, const esp_plan_event *e, uint32_t lane);
ESP__FN int page_end(FILE *to);
#endif
