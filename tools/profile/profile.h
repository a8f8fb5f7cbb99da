/* profile.h: `espresso profile` measures up to three things: the model in the user's trainer (trainer.c), links
 * (link_sizes.c) and codecs (codec_sizes.c). For the last two it starts ranks (ranks.c), which are processes of this
 * command. Rank 0 writes the costs file. */
#ifndef ESPRESSO_TOOLS_PROFILE_H
#define ESPRESSO_TOOLS_PROFILE_H
#include "tools/common/args.h"
#include "espresso_impl/base/machine.h"
#include "planner/calibrate/costs.h"
#include "planner/files/files.h"
#include <stdbool.h>

enum { PROFILE_MODEL = 1, PROFILE_LINKS = 2, PROFILE_CODECS = 4 }; /* what to measure, as bits */
enum { PROFILE_SIZES_MAX = ESP__CALIBRATION_POINTS, PROFILE_CODECS_MAX = 8, PROFILE_ROUNDS = 3, PROFILE_SKIP = 5 };

/* The costs file marks times as noisy if one of these limits is exceeded. */
#define PROFILE_NOISY_OTHERS 0.10 /* fraction of the processor time that other programs used */
#define PROFILE_NOISY_STOLEN 0.02 /* fraction of the time that a hypervisor took */
#define PROFILE_NOISY_SPREAD 0.50 /* spread of repeated measurements: sum of quartile distances / sum of medians */

typedef struct profile_job {
    const tool_command *command;
    /* from the command line: */
    uint32_t parts;
    long n, machines, steps; /* 0 if not given */
    const char *inter, *out;
    char codecs[PROFILE_CODECS_MAX][ESP__SPEC_MAX];
    uint32_t n_codecs;
    uint32_t devices;                  /* bits 1 << ESP_ON_CPU and 1 << ESP_ON_GPU */
    uint64_t sizes[PROFILE_SIZES_MAX]; /* in elements for codecs, in bytes for collectives */
    uint32_t n_sizes;
    double budget_ns; /* ns for measuring links and codecs together */
    char **program;
    bool started;   /* true if this command started the rank, rather than mpirun */
    int terminal;   /* on rank 0: descriptor of the user's terminal, or -1 */
    int model_file; /* on rank 0: descriptor of the model file that the trainer wrote, or -1 */
    /* used only in ranks: */
    esp_ctx *ctx;
    esp__calibration *calibration, *gpu; /* gpu measures codecs on a GPU, or is NULL */
    double others, stolen;               /* fractions, compared with PROFILE_NOISY_OTHERS and PROFILE_NOISY_STOLEN */
    esp__measured measured;
    char device[256];
    /* numbers of sizes for which memory suffices, for collectives and for codecs */
    uint32_t n_links, n_elements;
    /* progress of measuring links or codecs; points in time are those of esp__now_ns() */
    uint32_t covered;             /* number of sizes that were measured in every repetition */
    double deadline_ns, later_ns; /* later_ns: time that must remain for codecs while links are measured */
    double round_begun_ns;
    double round_ns; /* duration of the last repetition over all sizes, or 0 */
    int round;
} profile_job;

/* Defined in profile.c: */
extern const tool_command profile_command;
/* Writes the costs file from the model and from what the ranks have measured, as far as these exist. */
ESP__FN esp_status profile_write(const profile_job *j, esp__costs_texts *t);

/* Defined in trainer.c. Runs the user's trainer, and opens the model file that it has written. Returns the exit
 * status. */
ESP__FN int profile_trainer(profile_job *j);

/* Defined in ranks.c: */
ESP__FN int profile_start(const profile_job *j, char **argv);
ESP__FN int profile_as_rank(profile_job *j);
/* Measures with sizes[size]. All ranks call it for every size, and several times, so that outliers can be dropped.
 * took_ns is how long the previous size took. Sets *complete to false if too little time is left. */
typedef esp_status (*profile_measure)(profile_job *j, uint32_t size, double left_ns, double took_ns, bool *complete);
ESP__FN esp_status profile_rounds(profile_job *j, const char *part, uint32_t sizes, profile_measure measure);
ESP__FN void profile_progress(const profile_job *j, const char *fmt, ...) ESP__PRINTF(2, 3);

/* Defined in link_sizes.c: */
ESP__FN esp_status profile_links(profile_job *j);
ESP__FN void profile_links_print(const profile_job *j, const char *source, esp__text *out);
ESP__FN void profile_links_show(const profile_job *j);

/* Defined in codec_sizes.c: */
ESP__FN void profile_codecs_read(profile_job *j, const char *list);
/* Checks the codecs that the user named. Selects all codecs if the user named none. */
ESP__FN esp_status profile_codecs_choose(profile_job *j, esp_ctx *ctx);
ESP__FN esp_status profile_codecs(profile_job *j);
ESP__FN void profile_codecs_print(const profile_job *j, uint32_t k, const char *source, esp__text *out);
ESP__FN void profile_codecs_show(const profile_job *j);
#endif
