/* plan.h: what the source files of `espresso plan` and `espresso compare` share. */
#ifndef ESPRESSO_TOOLS_PLAN_H
#define ESPRESSO_TOOLS_PLAN_H
#include "tools/common/args.h"
#include "espresso_impl/base/text.h"
#include "espresso_impl/strategy/option.h"
#include "planner/builtin/builtin.h"
#include "planner/files/files.h"
#include "tools/common/json.h"
#include "tools/common/quantity.h"
#include "espresso_impl/strategy/fragments.h"
#include "tools/page/page.h"

enum { PLAN_CODECS_MAX = 16, PLAN_SCENARIOS_MAX = 16, PLAN_NOISY = 400 };

typedef struct plan_codec {
    esp__gc_file file;
    esp__costs costs;
} plan_codec;

enum {
    PLAN_COSTS,
    PLAN_MODEL,
    PLAN_GC,
    PLAN_SYSTEM,
    PLAN_MACHINES,
    PLAN_DEVICES,
    PLAN_FORBID,
    PLAN_ONLY,
    PLAN_KEEP,
    PLAN_SHARD,
    PLAN_MIN_COMPRESS,
    PLAN_MAX_COMP,
    PLAN_MAX_MEMORY,
    PLAN_MAX_VOLUME,
    PLAN_MAX_ERROR,
    PLAN_NO_MERGE,
    PLAN_NO_SPLIT,
    PLAN_THOROUGH,
    PLAN_BUDGET,
    PLAN_JSON,
    PLAN_COMMON
};
extern const tool_flag plan_common[PLAN_COMMON];
extern const tool_command plan_command, compare_command;

/* Inputs of a plan: the values of flags, and the contents of the files that they name. */
typedef struct plan_inputs {
    const tool_command *command;
    /* from the command line: */
    const char *costs_name, *model_name, *system_name, *gc[PLAN_CODECS_MAX];
    long machines; /* 0 if not given: the system file's number is used */
    bool quiet;
    void (*after_change)(esp_plan_system *); /* completes a system that was changed; may be NULL */
    bool simulated;
    const char **forbid, **only, **keep, **shard;
    uint32_t n_shard;
    esp_plan_tensor *sharded; /* copy of the model's tensors with the layouts that --shard gives, or NULL */
    /* from files: */
    esp__costs_file costs_file; /* owns memory to which `model`, `system` and `codecs` may point */
    esp__model_file model_file;
    esp__system_file system_file;
    plan_codec codec_files[PLAN_CODECS_MAX];
    /* context that opens codecs to ask for their costs; NULL until needed */
    esp_ctx *registry;
    uint32_t n_codecs;
    esp_plan_model model;
    esp_plan_codec codecs[PLAN_CODECS_MAX];
    esp_plan_system system;
    esp_plan_config config; /* all settings but the strategy, which is NULL */
    char codec_text[ESP__SPEC_MAX * 2];
} plan_inputs;

typedef struct plan_made {
    esp_plan *plan;
    const char *name;
    esp_plan_report report;
    const esp_plan_unit *units;
    const esp_plan_event *events;
    uint32_t n_units, n_events;
} plan_made;

/* Paths of the output files, or NULL if not wanted. "-" is standard output. */
typedef struct plan_files {
    const char *strategy, *timeline, *trace;
    char *command;
} plan_files;

typedef struct plan_shape {
    uint32_t groups, grouped_tensors;
    uint32_t split_tensors, chunks;
} plan_shape;

/* Totals over the tensors, chunks and groups that a plan synchronizes with one codec and option. */
typedef struct plan_row {
    const char *codec, *option;
    uint32_t units, tensors;
    uint64_t elements;
} plan_row;

/* Inputs of a plan after a --what-if change. Owns copies of what has changed; its other pointers are those of the
 * original inputs. */
typedef struct plan_changed {
    plan_inputs in;
    esp_plan_tensor *tensors;
    esp_cost_point *points;
    size_t n_points;
} plan_changed;

/* Step times after a --what-if change: without compression, with the old plan, with a new plan, and the lower bound.
 * NAN if unknown. */
typedef struct plan_outcome {
    const char *change;
    double fp32_ns, kept_ns, planned_ns, bound_ns;
} plan_outcome;

typedef struct plan_sweep {
    uint32_t n, machines[PLAN_SCENARIOS_MAX];
    double alone_ns;
    esp_plan_report report[PLAN_SCENARIOS_MAX];
    const char *strategy;
} plan_sweep;

/* A way to synchronize the tensor that --explain names (an option), and the step time with it. */
typedef struct plan_explained {
    double step_ns, chain_ns, load_ns[ESP__LANES], memory;
    bool current;
    char codec[ESP__SPEC_MAX], option[ESP__TEXT_MAX];
    char *ops; /* the option's steps and times, such as "intra.reduce_scatter 12 us > ..." */
} plan_explained;

typedef struct plan_explanation {
    const char *tensor;
    char what[256]; /* how the plan synchronizes the tensor, such as "in a group of 3 tensors" */
    uint64_t elements;
    /* ns after backward began: when the gradient is ready, when it is synchronized, and when all gradients are */
    double ready_ns, done_ns, end_ns;
    double without_ns; /* step time without this tensor's synchronization */
    uint32_t n, tried;
    plan_explained *rows;
} plan_explanation;

/* From --outer: the lowest and highest inner steps of a round, numbers of fragments, and delays. */
typedef struct plan_outer_ranges {
    uint32_t every[2], fragments[2], delay[2];
} plan_outer_ranges;

/* What a division into fragments has besides its costs. */
typedef struct outer_plans {
    uint32_t first[ESP__FRAGMENTS_MOST + 1];
    plan_made plan[ESP__FRAGMENTS_MOST];
    double bound_ns, bytes;
} outer_plans;

typedef struct outer_job {
    const plan_inputs *in;
    const plan_outer_ranges *ranges;
    double alone_ns;            /* an inner step */
    double every_ns;            /* a step that averages gradients */
    double fp32_ns, fp32_bytes; /* one without compression; its bytes */
    uint32_t n;
    esp__division *all;
    outer_plans *plans;                /* [n] those of all[n] */
    esp__outer_round at95, at99, last; /* the shortest rounds that reach 95% and 99%; the longest allowed */
    esp__outer_round best;             /* what is recommended */
} outer_job;

/* Defined in artifact.c: */
ESP__FN int artifact_read(const tool_command *c, const char *path, esp__text *text);
/* Defined in flags.c: */
ESP__FN void plan_complete(const plan_inputs *in);
ESP__FN void plan_open(plan_inputs *in, const tool_command *c, int argc);
ESP__FN void plan_flag(plan_inputs *in, int flag, const char *value);
/* Defined in read.c: */
ESP__FN int plan_read_model(plan_inputs *in);
ESP__FN const esp__measured *plan_measured(const plan_inputs *in, uint32_t i, const char **name);
ESP__FN int plan_read(plan_inputs *in);
ESP__FN void plan_close(plan_inputs *in);
ESP__FN const esp__gc_file *plan_costs_codec(const plan_inputs *in, const char *spec);
ESP__FN int plan_read_strategy(const tool_command *c, const char *path, esp__text *out);
ESP__FN int plan_noisy(const plan_inputs *in, char *out, size_t cap);
/* Defined in make.c: */
ESP__FN double plan_alone_ns(const plan_inputs *in);
ESP__FN double plan_gap_percent(const esp_plan_report *r);
ESP__FN esp_status plan_make(const plan_inputs *in, const char *strategy, uint32_t flags, plan_made *out);
ESP__FN esp_status plan_simulate(const plan_inputs *in, const char *text, const char *name, plan_made *out);
ESP__FN void plan_free(plan_made *m);
/* Defined in change.c: */
#define CHANGE_HELP                                                                                                    \
    "inter (or nic), intra, outer, wan (the outermost of them), latency, host, codec and compute take a factor: 2x "   \
    "is\n"                                                                                                             \
    "twice as fast, 0.5x half; links and host a bandwidth as well: 25gbit, 12.5GB/s, or 100mbit/500mbit if its\n"      \
    "directions differ; latency a time of the outermost link: 80ms; machines and ranks (of a machine) a number or a\n" \
    "factor; cores (of a rank) 1, 2 or 3, where the system has cores_per_rank"
ESP__FN void change_make(const plan_inputs *from, const char *text, plan_changed *out);
ESP__FN void change_free(plan_changed *c);
/* Defined in explain.c: */
ESP__FN int plan_explain(const plan_inputs *in, const plan_made *m, const char *name, plan_explanation *e);
ESP__FN void plan_explanation_free(plan_explanation *e);
ESP__FN void plan_print_explanation(FILE *to, const plan_explanation *e);
ESP__FN void plan_json_explanation(json_t *j, const plan_explanation *e);
/* Defined in json.c: */
ESP__FN void plan_json_inputs(json_t *j, const plan_inputs *in);
ESP__FN void plan_json_times(json_t *to, const char *key, const double *ns);
ESP__FN void plan_json_or_null(json_t *j, const char *key, double ns);
ESP__FN void plan_json_report(json_t *j, const plan_made *m);
ESP__FN void plan_json_plan(json_t *j, const plan_inputs *in, const plan_made *m);
/* Defined in machines.c: */
ESP__FN void plan_sweep_read(const plan_inputs *in, const char *value, plan_sweep *s);
ESP__FN void sweep_check_tables(const plan_inputs *in);
ESP__FN void plan_sweep_print(FILE *to, const plan_inputs *in, const plan_sweep *s);
ESP__FN int plan_sweep_json(const plan_inputs *in, const plan_sweep *s);
/* Defined in models.c: */
ESP__FN bool plan_is_path(const char *name);
ESP__FN int plan_find_model(const tool_command *c, const char *name, char *path, size_t size);
/* Defined in names.c: */
ESP__FN plan_shape plan_shape_of(const plan_inputs *in, const plan_made *m);
ESP__FN plan_row *plan_rows(const plan_made *m, uint32_t *n);
/* Defined in output.c: */
ESP__FN page_plan plan_as_page(const plan_inputs *in, const plan_made *m);
ESP__FN page_info plan_page_info(const plan_inputs *in, const char *command, char noisy[PLAN_NOISY]);
/* Writes a page to a file, or to standard output ("-"). Formats it in memory first, so that no file is incomplete. */
ESP__FN int plan_write_page(const plan_inputs *in, const char *path, int (*print)(FILE *to, const void *what),
                            const void *what);
ESP__FN int plan_to_stdout(const plan_files *f);
ESP__FN char *plan_command_line(const tool_command *c, int argc, char **argv);
ESP__FN int plan_write(const plan_inputs *in, const plan_made *m, const plan_files *f);
/* Defined in outer.c: */
ESP__FN void plan_outer_read(const tool_command *c, const char *text, plan_outer_ranges *out);
ESP__FN int plan_outer(const plan_inputs *in, const plan_outer_ranges *ranges, const char *const *what_if,
                       uint32_t n_what_if, const plan_files *files, bool json);
/* Defined in round.c: */
ESP__FN int plan_outer_timeline(const outer_job *j, const plan_files *files);
/* Defined in plan.c: */
ESP__FN _Noreturn void plan_no_strategy(const tool_command *c, const char *name);
/* Defined in text.c: */
ESP__FN void plan_line(FILE *to, const char *label, const char *fmt, ...) ESP__PRINTF(3, 4);
ESP__FN void plan_print_inputs(FILE *to, const plan_inputs *in);
ESP__FN const char *plan_s(uint64_t n);
ESP__FN void plan_print(FILE *to, const plan_inputs *in, const plan_made *m);
/* Defined in what.c: */
ESP__FN int plan_try(const plan_inputs *in, const plan_made *m, const char *strategy, const char *change,
                     plan_outcome *out);
ESP__FN const char *plan_change_of(double ns, double from);
ESP__FN void plan_print_outcomes(FILE *to, const plan_made *m, double bound, const plan_outcome *o, uint32_t n);
ESP__FN void plan_json_outcomes(json_t *j, const plan_outcome *o, uint32_t n);
#endif
