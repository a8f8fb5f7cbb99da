/* plan.h: shared by the files of `espresso plan` and `espresso compare`: a plan's inputs, and a finished plan.
 * Except for --explain, plans are made through the library's public calls only. */
#ifndef ESPRESSO_TOOLS_PLAN_H
#define ESPRESSO_TOOLS_PLAN_H
#include "espresso.h"
#include "planner/builtin/builtin.h"
#include "planner/files/files.h"
#include "tools/common/args.h"
#include "tools/common/json.h"
#include "tools/common/quantity.h"
#include "tools/page/page.h"

enum { PLAN_CODECS_MAX = 16, PLAN_SCENARIOS_MAX = 16, PLAN_NOISY = 400 };

/* Where one codec's costs came from: a file, or the codec itself. */
typedef struct plan_codec {
    esp__gc_file file;
    esp__costs costs;
} plan_codec;

/* A plan's inputs, from the flags that plan and compare share. */
typedef struct plan_inputs {
    const tool_command *command;
    /* from the command line */
    const char *costs_name, *model_name, *system_name, *gc[PLAN_CODECS_MAX]; /* by their --costs, if one is said */
    long machines;                                                           /* 0: as many as the system file says */
    int quiet;                                    /* 1: nothing is warned of: another process of this command does it */
    int simulated;                                /* 1: the strategy came from a file */
    const char **forbid, **only, **keep, **shard; /* each has room for as many entries as the command line has words */
    uint32_t n_shard;
    esp_plan_tensor *sharded; /* the model's tensors with what --shard says; NULL: no such flag */
    /* from the files */
    esp__costs_file costs_file; /* owns what the three below were given of it */
    esp__model_file model_file;
    esp__system_file system_file;
    plan_codec codec_files[PLAN_CODECS_MAX];
    esp_ctx *registry; /* opened for codecs that are named, whose models tell their costs; NULL: not yet */
    uint32_t n_codecs;
    esp_plan_model model;
    esp_plan_codec codecs[PLAN_CODECS_MAX];
    esp_plan_system system;
    esp_plan_config config;             /* its strategy is NULL */
    char codec_text[ESP__SPEC_MAX * 2]; /* all specs, for people */
} plan_inputs;

/* A plan, and its report, units and events. */
typedef struct plan_made {
    esp_plan *plan; /* NULL: none */
    const char *name;
    esp_plan_report report;
    const esp_plan_unit *units;
    const esp_plan_event *events;
    uint32_t n_units, n_events;
} plan_made;

/* flags.c */
static void plan_open(plan_inputs *in, const tool_command *c, int argc);
static int plan_flag(plan_inputs *in, int flag, const char *value); /* TOOL_OK or TOOL_USAGE */
/* read.c */
static int plan_read(plan_inputs *in);
static void plan_close(plan_inputs *in);
static const esp__gc_file *plan_costs_codec(const plan_inputs *in, const char *spec);
static int plan_read_strategy(const tool_command *c, const char *path, esp__text *out);
static int plan_noisy(const plan_inputs *in, char *out, size_t cap);
/* make.c */
static esp_status plan_make(const plan_inputs *in, const char *strategy, uint32_t flags, plan_made *out);
static esp_status plan_simulate(const plan_inputs *in, const char *text, const char *name, plan_made *out);
static void plan_free(plan_made *m);
/* text.c, json.c, output.c */
static void plan_say(FILE *to, const char *label, const char *fmt, ...) ESP__PRINTF(3, 4);
static void plan_say_inputs(FILE *to, const plan_inputs *in);
static void plan_json_inputs(tool_json *j, const plan_inputs *in);
static void plan_json_times(tool_json *j, const char *key, const double *ns); /* by lane */
static page_plan plan_as_page(const plan_inputs *in, const plan_made *m);
/* `noisy`: room for a text that lives as long as the result. */
static page_info plan_page_info(const plan_inputs *in, const char *command, char noisy[PLAN_NOISY]);
/* Makes the page in memory first, so that the file is complete or not there at all. "-": standard output. */
static int plan_write_page(const plan_inputs *in, const char *path, int (*print)(FILE *to, const void *what),
                           const void *what);
#endif
