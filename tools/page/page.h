/* page.h: shows plans: a timeline page, a page that compares strategies, and a trace for Perfetto. Uses the planner's
 * public structs. Must not know how a plan is made, nor where files go. */
#ifndef ESPRESSO_TOOLS_PAGE_H
#define ESPRESSO_TOOLS_PAGE_H
#include "espresso_impl/base/private.h"

/* A step of one strategy, predicted or measured, in the structs of the planner's public calls. */
typedef struct page_plan {
    const char *name; /* of the strategy: "fp32", "espresso+" */
    const esp_plan_model *model;
    const esp_plan_unit *units;
    const esp_plan_event *events;
    uint32_t n_units, n_events;
    esp_plan_report report;
    /* measured events: an end of UINT64_MAX means none, ops occupy lanes to their end, and report.fp32_ns is 0 */
    bool measured;
} page_plan;

/* The inputs of a plan. Any text may be NULL; 0 machines are not shown. */
typedef struct page_info {
    const char *model, *codec, *system;          /* codec: one spec, or several joined with ", " */
    const char *command;                         /* the command line that made the page          */
    const char *warning;                         /* such as that times are noisy                 */
    uint32_t racks, machines, ranks_per_machine; /* machines per rack            */
    uint32_t cores_per_rank;                     /* as in esp_plan_system        */
} page_info;

/* One row of a comparison. */
typedef struct page_row {
    const char *name;    /* "hipress"                                          */
    const char *summary; /* one line on what the strategy does, or NULL        */
    const char *source;  /* where the strategy is described, or NULL           */
    bool ours;           /* drawn with emphasis                                */
    esp_plan_report report;
} page_row;

/* Lower bounds to draw as lines across a comparison, in ns; 0 draws none. */
typedef struct page_bounds {
    double bound_ns, bound_any_ns, free_compression_ns;
} page_bounds;

/* Each function writes a complete file. Returns 0, or -1 and sets errno. A page needs no other file and no network. */
/* Draws two steps as lanes on one time scale. `above` is fp32, the predicted step of the plan, or NULL. */
ESP__FN int page_timeline(FILE *to, const page_plan *above, const page_plan *plan, const page_info *info);
/* Draws a bar for each row. `base_ns` is the step time without communication, or 0 if it is unknown. */
ESP__FN int page_compare(FILE *to, const page_row *rows, uint32_t n_rows, double base_ns, const page_bounds *bounds,
                         const page_info *info);
/* Writes a trace in the JSON format of Chrome and Perfetto: a process for each plan, a thread for each lane. */
ESP__FN int page_trace(FILE *to, const page_plan *plans, uint32_t n_plans, const page_info *info);
/* Writes an op's name in a trace, such as "inter.allreduce". */
ESP__FN void page_trace_name(const page_plan *p, const esp_plan_event *e, char *out, size_t cap);

/* Of page.c, for trace.c. */
enum { PAGE_LANES = ESP_PLAN_LANES, PAGE_PROGRESS = ESP_PLAN_LANES - 1 };
extern const char *const page_lanes[ESP_PLAN_LANES];
ESP__FN void page_text(FILE *to, const char *text);
ESP__FN void page_key(FILE *to, const char *key, const char *text);
ESP__FN double page_finite(double x);
ESP__FN void page_info_json(FILE *to, const page_info *info);
ESP__FN uint64_t page_kept(const page_plan *p, const esp_plan_event *e, uint32_t lane);
ESP__FN int page_end(FILE *to);
#endif
